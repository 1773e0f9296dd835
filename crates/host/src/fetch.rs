//! Work that isn't done on a caller's thread: bringing in the pages of refused reads, and looking for the agent.
//!
//! One thread, started when it's first needed, again in a child of fork. It may block on a full device; what comes meanwhile waits, up
//! to a bound, beyond which pages are left to the next refusal.
//!
//! The thread has a table of descriptors of its own, empty at first. A close in the program's table would release all of the process's
//! POSIX locks of that file, and a copy there would keep its flock. It has no signals: a handler of the program never runs on it.

use crate::link::Search;
use crate::resident::{PAGE, cachestat, is_mapped_resident, will_need};
use rustix::fs::{Advice, FileType, Mode, OFlags, fadvise, fstat, open};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use std::io;
use std::num::NonZeroU64;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, RwLock};

/// Orders that wait at most.
const QUEUED: usize = 256;
/// The kernel reads no more than its read-ahead for one advice: longer ranges go in parts of this length.
const PART: u64 = 128 << 10;
/// The part where read-ahead is set to less than [`PART`].
const LEAST: u64 = 16 << 10;

/// Pages of a file, by a descriptor of the program. The descriptor may be another file's by the time of the order's turn.
pub struct Pages {
    /// The program's descriptor.
    pub fd: RawFd,
    /// The file's device and inode.
    pub file: (u64, u64),
    /// The first byte.
    pub start: u64,
    /// Bytes.
    pub len: u64,
}

/// An order.
pub enum Order {
    /// Bring pages of a file in.
    File(Pages),
    /// Bring pages of mapped memory in.
    Memory(usize, usize),
    /// Look for the agent.
    Link,
}

/// Looks for the agent.
pub type Look = dyn Fn(&mut Search) + Send + Sync;

/// Orders to the thread.
pub struct Fetcher {
    link: Arc<Look>,
    to: RwLock<Option<(u32, SyncSender<Order>)>>,
    dropped: AtomicU64,
}

impl Fetcher {
    /// `link` looks for the agent.
    pub fn new(link: Arc<Look>) -> Fetcher {
        Fetcher { link, to: RwLock::new(None), dropped: AtomicU64::new(0) }
    }

    /// Orders that found no room.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Relaxed)
    }

    /// Gives an order, and doesn't wait.
    pub fn order(&self, order: Order) {
        let pid = std::process::id();
        if let Ok(to) = self.to.try_read()
            && let Some((of, to)) = &*to
            && *of == pid
        {
            if to.try_send(order).is_err() {
                self.dropped.fetch_add(1, Relaxed);
            }
            return;
        }
        // Somebody else is starting it: this order is left out.
        let Ok(mut to) = self.to.try_write() else {
            self.dropped.fetch_add(1, Relaxed);
            return;
        };
        let (send, orders) = sync_channel(QUEUED);
        let _ = send.try_send(order);
        let link = self.link.clone();
        let spawn = || std::thread::Builder::new().name("plimsoll-fetch".into()).spawn(move || serve(&orders, &*link));
        if without_signals(spawn).is_ok() {
            // A parent's channel may be locked by a thread that this child hasn't.
            std::mem::forget(to.replace((pid, send)));
        }
    }
}

impl Drop for Fetcher {
    fn drop(&mut self) {
        let inherited = |of: &mut (u32, SyncSender<Order>)| of.0 != std::process::id();
        if let Ok(to) = self.to.get_mut() {
            // As above: to drop a parent's sender would wait for the channel's lock.
            std::mem::forget(to.take_if(inherited));
        }
    }
}

/// Runs `f` with all signals blocked. A thread that it starts has them blocked for its life.
fn without_signals<T>(f: impl FnOnce() -> T) -> T {
    let (mut all, mut before) = (std::mem::MaybeUninit::uninit(), std::mem::MaybeUninit::uninit());
    // SAFETY: both sets are ours; the first is filled before it's read, the second is written by the call.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
    }
    let result = f();
    // SAFETY: it was written above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut()) };
    result
}

/// Gives this thread an empty table of descriptors. The program's table stays as it is.
fn own_descriptors() -> bool {
    // SAFETY: with UNSHARE the call changes the descriptors of this thread only, and it has none yet.
    unsafe { libc::syscall(libc::SYS_close_range, 0, u32::MAX, libc::CLOSE_RANGE_UNSHARE) == 0 }
}

fn serve(orders: &Receiver<Order>, link: &Look) {
    let is_own = own_descriptors();
    let mut search = Search::default();
    while let Ok(order) = orders.recv() {
        match order {
            Order::File(pages) if is_own => drop(bring_in(&pages)),
            Order::File(_) => {}
            Order::Memory(addr, len) => drop(bring_memory_in(addr, len)),
            Order::Link => link(&mut search),
        }
    }
}

fn bring_in(pages: &Pages) -> io::Result<()> {
    let file = take(pages)?;
    let advise = |from: u64, to: u64| fadvise(&file, from, NonZeroU64::new(to - from), Advice::WillNeed);
    let is_in = |at, to| cachestat(file.as_fd(), at, to - at).map_or(true, |c| c.pages >= (to - at) / PAGE);
    in_parts(pages.start..pages.start + pages.len, advise, is_in)
}

fn bring_memory_in(addr: usize, len: usize) -> io::Result<()> {
    let advise = |at: u64, to: u64| will_need(at as usize, (to - at) as usize);
    // Pages that are being read aren't resident yet: advice to these does nothing.
    let is_in = |at: u64, to: u64| is_mapped_resident(at as usize, (to - at) as usize).unwrap_or(true);
    let start = addr as u64 / PAGE * PAGE;
    in_parts(start..(addr as u64).saturating_add(len as u64), advise, is_in)
}

fn in_parts<E: Into<io::Error>>(
    range: Range<u64>,
    advise: impl Fn(u64, u64) -> Result<(), E>,
    is_in: impl Fn(u64, u64) -> bool,
) -> io::Result<()> {
    let (mut at, end) = (range.start, range.end);
    while at < end {
        let to = end.min(at + PART);
        advise(at, to).map_err(Into::into)?;
        if !is_in(at, to) {
            while at < to {
                let part = to.min(at + LEAST);
                advise(at, part).map_err(Into::into)?;
                at = part;
            }
        }
        at = to;
    }
    Ok(())
}

/// The program's file in this thread's table: opened again, as a copy would share its flock; a copy if this user may not open it.
fn take(pages: &Pages) -> io::Result<OwnedFd> {
    let is_it = |fd: BorrowedFd| {
        let stat = fstat(fd)?;
        let kind = FileType::from_raw_mode(stat.st_mode);
        let is_it = (stat.st_dev, stat.st_ino) == pages.file
            && (kind == FileType::RegularFile || kind == FileType::BlockDevice);
        if is_it { Ok(()) } else { Err(io::Error::other("the descriptor is another file's")) }
    };
    let path = open(format!("/proc/self/fd/{}", pages.fd), OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    is_it(path.as_fd())?;
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let again = open(format!("/proc/thread-self/fd/{}", path.as_raw_fd()), flags, Mode::empty());
    if let Ok(again) = again {
        return Ok(again);
    }
    let process = Pid::from_raw(std::process::id() as i32).ok_or_else(|| io::Error::other("no process"))?;
    let copy = pidfd_getfd(pidfd_open(process, PidfdFlags::empty())?, pages.fd, PidfdGetfdFlags::empty())?;
    is_it(copy.as_fd())?;
    Ok(copy)
}
