//! The ring: asynchronous system calls with safe ownership.
//!
//! An operation owns all memory that the kernel reads or writes, until its completion gives the memory back. So nothing can be freed or
//! changed under the kernel. This is the only module of the engine with `unsafe`.

use io_uring::{IoUring, cqueue, opcode, squeue, types};
use plimsoll_base::{Buf, BufMut, BufPool};
use rustix::net::{SendAncillaryBuffer, SendFlags};
use slab::Slab;
use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::os::fd::{BorrowedFd, RawFd};
use std::time::Duration;

/// The destination of received bytes.
#[derive(Debug)]
pub enum RecvInto {
    /// A connection's buffer, from `start` on.
    Buffer(Box<[u8]>, usize),
    /// A request's payload, from `start` on.
    Payload(BufMut, usize),
}

/// One operation sends at most this much: a client's progress is seen each time.
const SEND_BYTES_MAX: usize = 256 << 10;

/// Bytes to send: one run, or several.
#[derive(Debug, Default)]
pub struct SendBatch {
    /// Headers and small payloads.
    pub bytes: Vec<u8>,
    /// Large payloads: each is sent after the first `n` of `bytes`, ascending.
    pub payloads: Vec<(usize, Buf)>,
}

impl SendBatch {
    /// Number of bytes in all.
    pub fn len(&self) -> usize {
        self.bytes.len() + self.payloads.iter().map(|(_, b)| b.len()).sum::<usize>()
    }

    /// True if there is nothing to send.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The runs of bytes from position `skip` on, at most [`SEND_BYTES_MAX`] in all.
    fn runs(&self, mut skip: usize) -> Vec<IoSlice<'_>> {
        let mut runs = Vec::with_capacity(2 * self.payloads.len() + 1);
        let (mut at, mut left) = (0, SEND_BYTES_MAX);
        let tail = (self.bytes.len(), None);
        for (before, payload) in self.payloads.iter().map(|(n, b)| (*n, Some(b))).chain([tail]) {
            for run in [&self.bytes[at..before], payload.map_or(&[], Buf::as_slice)] {
                let from = skip.min(run.len());
                skip -= from;
                let run = &run[from..];
                let run = &run[..left.min(run.len())];
                left -= run.len();
                if !run.is_empty() {
                    runs.push(IoSlice::new(run));
                }
            }
            at = before;
        }
        runs.truncate(libc::UIO_MAXIOV as usize);
        runs
    }

    /// Sends what the socket takes without waiting; how many bytes that was.
    ///
    /// # Errors
    /// Those of `sendmsg`; [`io::ErrorKind::WouldBlock`] if the socket takes nothing now.
    pub fn send_now(&self, socket: BorrowedFd<'_>) -> io::Result<usize> {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        if self.payloads.is_empty() {
            return Ok(rustix::net::send(socket, &self.bytes, flags)?);
        }
        Ok(rustix::net::sendmsg(socket, &self.runs(0), &mut SendAncillaryBuffer::default(), flags)?)
    }
}

/// An operation and all that belongs to it.
#[derive(Debug)]
pub enum Op {
    /// Receive from connection `conn`.
    Recv { conn: usize, fd: RawFd, into: RecvInto },
    /// Send to connection `conn`, from position `start` of the batch on.
    Send { conn: usize, fd: RawFd, batch: SendBatch, start: usize },
    /// Read a file into `buf` from position `start` of it on; `offset` is where `buf` begins in the file.
    Read { slot: usize, fd: RawFd, offset: u64, buf: BufMut, start: usize },
    /// Write `data` to a file from position `start` of it on; with `durable` it's on the medium when done.
    Write { slot: usize, fd: RawFd, offset: u64, data: Buf, start: usize, durable: bool },
    /// Make a file's data durable.
    Sync { slot: usize, fd: RawFd },
    /// Punch a hole into a file, or zero a range and keep it allocated.
    Zero { slot: usize, fd: RawFd, offset: u64, len: u64, keep_allocated: bool },
    /// Read a range of a file into the page cache, as far as the kernel likes.
    Prefetch { slot: usize, fd: RawFd, offset: u64, len: u64 },
    /// Wait for another thread's call.
    Wakeup { fd: RawFd, count: Box<[u8; 8]> },
    /// Wait for a device that announces its completions at an event descriptor.
    Announced { device: usize, fd: RawFd, count: Box<[u8; 8]> },
}

struct Pending {
    op: Op,
    /// For a vectored send: what the kernel reads besides the bytes.
    message: Option<Box<(libc::msghdr, Vec<libc::iovec>)>>,
}

// SAFETY: the raw pointers in `message` lead into `op`'s own heap data and into `message`'s own vector; both move
// with the entry, and are only dereferenced by the kernel.
unsafe impl Send for Pending {}

/// An io_uring and the operations under way in it.
pub struct Ring {
    uring: IoUring,
    pending: Slab<Pending>,
    /// Completions taken out of the kernel's queue to make room there.
    early: VecDeque<cqueue::Entry>,
}

/// The answer of a kernel that refuses io_uring: the fault, its cause as far as it is known, and the remedy. `disabled` and `group` are the
/// values of the sysctls.
fn refusal(error: &io::Error, disabled: Option<i64>, group: Option<i64>) -> String {
    let remedy = match (error.raw_os_error(), disabled) {
        (Some(libc::EPERM), Some(2)) => {
            "the sysctl kernel.io_uring_disabled is 2, which forbids it to every process: set it to 0, or to 1 and kernel.io_uring_group to \
             the number of the node's group"
                .to_string()
        }
        (Some(libc::EPERM), Some(1)) => format!(
            "the sysctl kernel.io_uring_disabled is 1, which allows it to the group kernel.io_uring_group only, now {}: set that to the \
             number of the node's group, or kernel.io_uring_disabled to 0",
            group.unwrap_or(-1)
        ),
        (Some(libc::EPERM | libc::ENOSYS | libc::EACCES), _) => {
            "a seccomp filter forbids it, as the default profiles of most containers do, or the kernel was built without it (5.6 is the \
             oldest that will do). Run the container with `--security-opt seccomp=unconfined`, or with a profile that allows io_uring_setup, \
             io_uring_enter and io_uring_register; a systemd unit needs `SystemCallFilter=@aio`"
                .to_string()
        }
        (Some(libc::ENOMEM), _) => "allow the node more locked memory (`LimitMEMLOCK=` of its unit, `ulimit -l`)".to_string(),
        (Some(libc::EMFILE | libc::ENFILE), _) => {
            "allow the node more open files (`LimitNOFILE=` of its unit, `ulimit -n`)".to_string()
        }
        _ => "see the kernel's log".to_string(),
    };
    format!("the kernel refuses io_uring, without which no pool can be served: {error}: {remedy}")
}

/// Checks that this process may use io_uring.
///
/// # Errors
/// The fault, its cause as far as it is known, and the remedy.
pub fn check_io_uring() -> io::Result<()> {
    Ring::new(4).map(drop)
}

impl Ring {
    /// A ring that takes up to `entries` new operations between two waits.
    ///
    /// # Errors
    /// The kernel's, with its cause as far as it is known, and the remedy.
    pub fn new(entries: u32) -> io::Result<Ring> {
        let modern = IoUring::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_coop_taskrun()
            .setup_cqsize(entries * 4)
            .build(entries);
        // Kernels before 6.1 know neither flag; the plain ring does the same, slower.
        let uring = modern.or_else(|_| IoUring::builder().setup_cqsize(entries * 4).build(entries)).map_err(|e| {
            let sysctl = |name| std::fs::read_to_string(format!("/proc/sys/kernel/{name}")).ok()?.trim().parse().ok();
            io::Error::new(e.kind(), refusal(&e, sysctl("io_uring_disabled"), sysctl("io_uring_group")))
        })?;
        Ok(Ring { uring, pending: Slab::with_capacity(entries as usize), early: VecDeque::new() })
    }

    /// Makes a buffer pool whose fixed blocks the kernel knows: it needn't look them up and pin them at each use, which is a
    /// twentieth of what a read of 4 KiB from a file costs and a third of one of 64 KiB. Where it won't have them (the
    /// user's limit on locked memory), the pool has none.
    pub fn buffers(&self) -> BufPool {
        let (pool, places) = BufPool::with_fixed();
        let vector = |&(at, len): &(*const u8, usize)| libc::iovec { iov_base: at.cast_mut().cast(), iov_len: len };
        let vectors: Vec<libc::iovec> = places.iter().map(vector).collect();
        // SAFETY: the kernel pins the pages, so that they stay what they are even if the memory is freed; it touches them only
        // for an operation that names a block by its number, and whoever holds a buffer with that number owns the block.
        match unsafe { self.uring.submitter().register_buffers(&vectors) } {
            Ok(()) => pool,
            Err(error) => {
                tracing::debug!(%error, "buffers aren't registered");
                BufPool::new()
            }
        }
    }

    /// Begins an operation. It's handed to the kernel at the next wait (or now, if the queue is full).
    pub fn submit(&mut self, op: Op) -> io::Result<()> {
        let key = self.pending.insert(Pending { op, message: None });
        let entry = Ring::entry(&mut self.pending[key]).user_data(key as u64);
        loop {
            // SAFETY: all memory that `entry` names is owned by `self.pending[key]`: heap data that doesn't move when the
            // entry moves, and that is neither touched nor freed until the completion with this key has been seen
            // (`next`), or is leaked (`drop`). The file descriptors are kept open by the engine until their operations
            // are done; were one closed early, the kernel would answer with an error.
            let pushed = unsafe { self.uring.submission().push(&entry) };
            if pushed.is_ok() {
                return Ok(());
            }
            self.make_room()?;
        }
    }

    /// Hands what was submitted to the kernel. Where it takes nothing before it's rid of its completions, those are kept
    /// here.
    fn make_room(&mut self) -> io::Result<()> {
        let submitted = self.uring.submit();
        if let Err(e) = submitted.as_ref()
            && e.raw_os_error().is_none_or(|e| !TRY_AGAIN.contains(&e))
        {
            return submitted.map(|_| ());
        }
        self.early.extend(self.uring.completion());
        Ok(())
    }

    fn entry(pending: &mut Pending) -> squeue::Entry {
        match &mut pending.op {
            Op::Recv { fd, into, .. } => {
                let to = match into {
                    RecvInto::Buffer(b, start) => &mut b[*start..],
                    RecvInto::Payload(b, start) => &mut b.as_mut_slice()[*start..],
                };
                opcode::Recv::new(types::Fd(*fd), to.as_mut_ptr(), to.len() as u32).build()
            }
            Op::Send { fd, batch, start, .. } if batch.payloads.is_empty() => {
                let run = &batch.bytes[*start..];
                let run = &run[..run.len().min(SEND_BYTES_MAX)];
                opcode::Send::new(types::Fd(*fd), run.as_ptr(), run.len() as u32).flags(SEND_FLAGS).build()
            }
            Op::Send { fd, batch, start, .. } => {
                let runs = batch.runs(*start);
                let vector =
                    |run: &IoSlice| libc::iovec { iov_base: run.as_ptr().cast_mut().cast(), iov_len: run.len() };
                let mut message = Box::new((empty_message(), runs.iter().map(vector).collect::<Vec<_>>()));
                message.0.msg_iov = message.1.as_mut_ptr();
                message.0.msg_iovlen = message.1.len();
                let header: *const libc::msghdr = &message.0;
                pending.message = Some(message);
                opcode::SendMsg::new(types::Fd(*fd), header).flags(SEND_FLAGS as u32).build()
            }
            Op::Read { fd, offset, buf, start, .. } => {
                let fixed = buf.fixed();
                let to = &mut buf.as_mut_slice()[*start..];
                if let Some(block) = fixed {
                    return opcode::ReadFixed::new(types::Fd(*fd), to.as_mut_ptr(), to.len() as u32, block)
                        .offset(*offset + *start as u64)
                        .build();
                }
                opcode::Read::new(types::Fd(*fd), to.as_mut_ptr(), to.len() as u32)
                    .offset(*offset + *start as u64)
                    .build()
            }
            Op::Write { fd, offset, data, start, durable, .. } => {
                let from = &data.as_slice()[*start..];
                let flags = if *durable { libc::RWF_DSYNC } else { 0 };
                if let Some(block) = data.fixed() {
                    return opcode::WriteFixed::new(types::Fd(*fd), from.as_ptr(), from.len() as u32, block)
                        .offset(*offset + *start as u64)
                        .rw_flags(flags)
                        .build();
                }
                opcode::Write::new(types::Fd(*fd), from.as_ptr(), from.len() as u32)
                    .offset(*offset + *start as u64)
                    .rw_flags(flags)
                    .build()
            }
            Op::Sync { fd, .. } => opcode::Fsync::new(types::Fd(*fd)).flags(types::FsyncFlags::DATASYNC).build(),
            Op::Zero { fd, offset, len, keep_allocated, .. } => {
                let how = if *keep_allocated { libc::FALLOC_FL_ZERO_RANGE } else { libc::FALLOC_FL_PUNCH_HOLE };
                opcode::Fallocate::new(types::Fd(*fd), *len)
                    .offset(*offset)
                    .mode(how | libc::FALLOC_FL_KEEP_SIZE)
                    .build()
            }
            Op::Prefetch { fd, offset, len, .. } => {
                opcode::Fadvise::new(types::Fd(*fd), *len as libc::off_t, libc::POSIX_FADV_WILLNEED)
                    .offset(*offset)
                    .build()
            }
            Op::Wakeup { fd, count } | Op::Announced { fd, count, .. } => {
                opcode::Read::new(types::Fd(*fd), count.as_mut_ptr(), 8).build()
            }
        }
    }

    /// Hands new operations to the kernel and waits until one completes or `timeout` has passed; without a timeout, as
    /// long as it takes. A zero timeout only collects what has completed.
    pub fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        let timeout = if self.early.is_empty() { timeout } else { Some(Duration::ZERO) };
        let result = match timeout {
            None => self.uring.submit_and_wait(1),
            Some(t) => {
                let t = types::Timespec::new().sec(t.as_secs()).nsec(t.subsec_nanos());
                self.uring.submitter().submit_with_args(1, &types::SubmitArgs::new().timespec(&t))
            }
        };
        match result {
            Ok(_) => Ok(()),
            Err(e) if e.raw_os_error().is_some_and(|e| e == libc::ETIME || TRY_AGAIN.contains(&e)) => Ok(()),
            Err(e) => Err(e),
        }
    }

    /// The next completed operation and its result: a count, or an error.
    pub fn next_completed(&mut self) -> Option<(Op, io::Result<usize>)> {
        let cqe = self.early.pop_front().or_else(|| self.uring.completion().next())?;
        let op = self.pending.remove(cqe.user_data() as usize).op;
        let result =
            if cqe.result() < 0 { Err(io::Error::from_raw_os_error(-cqe.result())) } else { Ok(cqe.result() as usize) };
        Some((op, result))
    }
}

/// Errors by which the kernel reports that it has no room just now, or was interrupted.
const TRY_AGAIN: [i32; 3] = [libc::EINTR, libc::EAGAIN, libc::EBUSY];
const SEND_FLAGS: i32 = libc::MSG_NOSIGNAL | libc::MSG_WAITALL;

fn empty_message() -> libc::msghdr {
    // SAFETY: a msghdr of zeroes is a valid one: null pointers with zero lengths.
    unsafe { std::mem::zeroed() }
}

impl Drop for Ring {
    /// Memory that the kernel may still be writing to must not be freed: it's leaked. An engine that ends in order has nothing
    /// under way but its wake-up call.
    fn drop(&mut self) {
        std::mem::forget(std::mem::take(&mut self.pending));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read as _;
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixStream;

    #[test]
    fn a_refusal_names_the_cause_and_the_remedy() {
        let says = |errno, disabled| refusal(&io::Error::from_raw_os_error(errno), disabled, Some(-1));
        for (errno, disabled, part) in [
            (libc::EPERM, Some(2), "kernel.io_uring_disabled is 2"),
            (libc::EPERM, Some(1), "kernel.io_uring_group only, now -1"),
            (libc::EPERM, Some(0), "--security-opt seccomp=unconfined"),
            (libc::EPERM, None, "--security-opt seccomp=unconfined"),
            (libc::ENOSYS, Some(0), "SystemCallFilter=@aio"),
            (libc::ENOMEM, Some(0), "LimitMEMLOCK="),
            (libc::EMFILE, Some(2), "LimitNOFILE="),
        ] {
            let said = says(errno, disabled);
            assert!(said.starts_with("the kernel refuses io_uring, ") && said.contains(part), "{said}");
            assert!(said.contains(&format!("(os error {errno})")), "{said}");
        }
    }

    #[test]
    fn a_vectored_send_keeps_the_order_and_resumes_anywhere() {
        let big = Buf::copy_of(&[7; 5000]);
        let huge = SendBatch { bytes: vec![0; 8], payloads: vec![(4, Buf::copy_of(&vec![0; 1 << 20]))] };
        assert_eq!(huge.runs(0).iter().map(|r| r.len()).sum::<usize>(), SEND_BYTES_MAX);
        assert_eq!(huge.runs(1 << 20).iter().map(|r| r.len()).sum::<usize>(), 8);
        let batch =
            || SendBatch { bytes: b"headtail".to_vec(), payloads: vec![(4, big.clone()), (8, big.slice(0, 3))] };
        let want: Vec<u8> = [b"head".as_slice(), &[7; 5000], b"tail", &[7; 3]].concat();
        assert_eq!(batch().len(), want.len());
        let mut ring = Ring::new(8).unwrap();
        for start in [0, 3, 4, 2000, 5004, 5006, 5010] {
            let (us, mut them) = UnixStream::pair().unwrap();
            ring.submit(Op::Send { conn: 0, fd: us.as_raw_fd(), batch: batch(), start }).unwrap();
            ring.wait(None).unwrap();
            let (_, n) = ring.next_completed().unwrap();
            assert_eq!(n.unwrap(), want.len() - start);
            drop(us);
            let mut got = Vec::new();
            them.read_to_end(&mut got).unwrap();
            assert_eq!(got, want[start..]);
        }
    }

    #[test]
    fn more_at_once_than_both_queues_hold() {
        const MANY: usize = 200;
        let mut ring = Ring::new(4).unwrap();
        let mut pairs = Vec::new();
        for conn in 0..MANY {
            let (us, them) = UnixStream::pair().unwrap();
            let batch = SendBatch { bytes: vec![conn as u8], payloads: Vec::new() };
            ring.submit(Op::Send { conn, fd: us.as_raw_fd(), batch, start: 0 }).unwrap();
            pairs.push((us, them));
        }
        let mut ended = Vec::new();
        while ended.len() < MANY {
            ring.wait(None).unwrap();
            while let Some((op, n)) = ring.next_completed() {
                let Op::Send { conn, .. } = op else { panic!("{op:?}") };
                assert_eq!(n.unwrap(), 1);
                ended.push(conn);
            }
        }
        ended.sort_unstable();
        assert_eq!(ended, (0..MANY).collect::<Vec<_>>());
    }

    #[test]
    fn a_wait_ends_at_its_timeout() {
        let mut ring = Ring::new(8).unwrap();
        ring.wait(Some(Duration::from_millis(1))).unwrap();
        assert!(ring.next_completed().is_none());
    }
}
