//! A reader's connection to the agent's memory.

use crate::forecast::{Costs, Forecast, Load};
use crate::layout::{Known, MAGIC, Notice, State, States, VERSION, slots};
use crate::shared::{Mapped, is_sealed};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketAddrUnix, SocketFlags, SocketType,
    connect, recvmsg, socket_with,
};
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::time::Duration;

/// The agent's default socket.
pub const SOCKET: &str = "/run/plimsoll-host/host.sock";
/// An agent whose heartbeat is older than this is dead or stopped.
pub const STALE_NS: u64 = 100_000_000;
/// A heartbeat that is further ahead is by another clock.
const AHEAD_NS: u64 = 1_000_000_000;
/// An agent answers a connection within this time.
const PATIENCE: Duration = Duration::from_millis(500);

/// The agent's socket: `PLIMSOLL_HOST_SOCKET`, or the default one.
pub fn socket() -> PathBuf {
    std::env::var_os("PLIMSOLL_HOST_SOCKET").map_or_else(|| SOCKET.into(), PathBuf::from)
}

/// Connects to a socket, and doesn't wait. `WouldBlock`: whoever listens there takes no connections.
pub fn reach(path: &Path) -> io::Result<UnixStream> {
    let socket =
        socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)?;
    connect(&socket, &SocketAddrUnix::new(path)?)?;
    let stream = UnixStream::from(socket);
    stream.set_nonblocking(false)?;
    Ok(stream)
}

/// A search for the agent that may not have answered yet.
///
/// A connection that was given up stays in a hung agent's backlog. So it is kept, and an agent that goes on answers it.
#[derive(Default)]
pub struct Search {
    waiting: Option<UnixStream>,
}

impl Search {
    /// Looks once, for [`PATIENCE`] at most. `WouldBlock`: an agent is there, and hangs.
    pub fn look(&mut self, socket: &Path) -> io::Result<Link> {
        let stream = match self.waiting.take() {
            Some(stream) => stream,
            None => reach(socket)?,
        };
        let found = Link::of(&stream);
        if matches!(&found, Err(e) if e.kind() == io::ErrorKind::WouldBlock) {
            self.waiting = Some(stream);
        }
        found
    }
}

/// The agent's memory, mapped.
pub struct Link {
    states: Mapped<States>,
    notice: Mapped<Notice>,
}

/// A disk in it.
#[derive(Clone, Copy)]
pub struct DiskView<'a> {
    state: &'a State,
    known: &'a Known,
    slot: usize,
}

impl Link {
    /// Asks the agent at `socket` for its memory.
    pub fn connect(socket: &Path) -> io::Result<Link> {
        let at = |e: io::Error| io::Error::new(e.kind(), format!("{}: {e}", socket.display()));
        Link::of(&reach(socket).map_err(at)?).map_err(at)
    }

    fn of(stream: &UnixStream) -> io::Result<Link> {
        stream.set_read_timeout(Some(PATIENCE))?;
        let (states, notice) = receive(stream)?;
        Link::map(states.as_fd(), notice.as_fd())
    }

    fn map(states: BorrowedFd, notice: BorrowedFd) -> io::Result<Link> {
        // A file that may become shorter would end the process that reads it.
        for fd in [states, notice] {
            let name = std::fs::read_link(format!("/proc/thread-self/fd/{}", fd.as_raw_fd())).unwrap_or_default();
            if !is_sealed(fd) && !name.as_os_str().to_string_lossy().starts_with("anon_inode:bpf-map") {
                return Err(io::Error::other("what was handed out is neither sealed memory nor a BPF map"));
            }
        }
        for (fd, size) in [(states, size_of::<States>()), (notice, size_of::<Notice>())] {
            let found = rustix::fs::fstat(fd)?.st_size as usize;
            if is_sealed(fd) && found < size {
                return Err(io::Error::other(format!("what was handed out has {found} bytes of {size}")));
            }
        }
        let link = Link { states: Mapped::read_only(states)?, notice: Mapped::read_only(notice)? };
        let (magic, version) = (link.notice.magic.load(Acquire), link.notice.version.load(Relaxed));
        if magic != MAGIC || version != VERSION {
            return Err(io::Error::other(format!(
                "the agent speaks version {version}, this library version {VERSION}: use those of one release"
            )));
        }
        Ok(link)
    }

    /// True if the agent's last heartbeat is recent at `now_ns`. One in the future is by another clock, as in another time
    /// namespace, and so are the times of the disks.
    pub fn is_fresh(&self, now_ns: u64) -> bool {
        let heartbeat_ns = self.notice.heartbeat_ns.load(Relaxed);
        now_ns.saturating_sub(heartbeat_ns) < STALE_NS && heartbeat_ns.saturating_sub(now_ns) < AHEAD_NS
    }

    /// Time of the agent's last heartbeat, by CLOCK_MONOTONIC.
    pub fn heartbeat_ns(&self) -> u64 {
        self.notice.heartbeat_ns.load(Relaxed)
    }

    /// The numbers of all disks that are watched.
    pub fn disks(&self) -> impl Iterator<Item = u32> {
        self.notice.of.iter().map(|known| known.dev.load(Relaxed)).filter(|dev| *dev != 0)
    }

    /// A disk that is watched, by its number.
    pub fn disk(&self, dev: u32) -> Option<DiskView<'_>> {
        let slot = slots(dev).find(|i| self.notice.of[*i].dev.load(Relaxed) == dev)?;
        Some(DiskView { state: &self.states.of[slot], known: &self.notice.of[slot], slot })
    }
}

impl DiskView<'_> {
    /// The disk's slot in the agent's memory: no other disk has it.
    pub fn slot(&self) -> usize {
        self.slot
    }

    /// Its load, and the costs of its requests if they are known.
    pub fn now(&self) -> (Load, Option<Costs>) {
        // An order to begin anew is obeyed at the next request: until then there is none.
        let behind = self.state.epoch.load(Relaxed).wrapping_sub(self.known.reset_epoch.load(Relaxed)) as i32;
        let load = if behind < 0 { Load::default() } else { Load::of(self.state) };
        (load, self.known.costs())
    }

    /// Forecasts a read, if costs are known.
    pub fn forecast(&self, now_ns: u64, len: u64) -> Option<Forecast> {
        let (load, costs) = self.now();
        Some(costs?.forecast(&load, now_ns, len))
    }

    /// The probability, in thousandths, that a read with this forecast takes longer than `deadline_ns`.
    pub fn late_permille(&self, forecast: &Forecast, deadline_ns: u64) -> u32 {
        self.known.late_permille(forecast, deadline_ns)
    }
}

fn receive(stream: &UnixStream) -> io::Result<(OwnedFd, OwnedFd)> {
    let mut hello = [0; 8];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let got = recvmsg(stream, &mut [IoSliceMut::new(&mut hello)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    let mut fds = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(more) = message {
            fds.extend(more);
        }
    }
    let (Some(notice), Some(states), true) = (fds.pop(), fds.pop(), got.bytes == hello.len()) else {
        return Err(io::Error::other("whoever listens there isn't the agent, or it has no descriptors left"));
    };
    Ok((states, notice))
}
