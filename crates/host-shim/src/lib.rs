//! Preloaded into a program (`LD_PRELOAD=libplimsoll_deadline.so`): its pread(2) and preadv(2) of files in some folders have a deadline. A read
//! that would be late fails with EBUSY at once; everything else is as it was.
//!
//! `PLIMSOLL_DEADLINES`: `FOLDER=TIME`, several separated by `;`, the longest folder counts (`/var/lib/db=20ms;/var/lib/db/wal=off`).
//! `PLIMSOLL_DEADLINE_PROCESSES`: names of the processes that it's for, separated by `,`; unset: all.
//! Not covered: read(2), whose callers seldom expect a failure, mapped files, io_uring and what the C library reads for itself.

mod rules;

use plimsoll_host::{Answer, Options, Reader};
use rules::Rules;
use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::os::fd::BorrowedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Files whose rule is remembered, by descriptor; of others it's looked up at each read.
const REMEMBERED: usize = 4096;
/// No deadline.
const NONE: u64 = u64::MAX;

struct Shim {
    rules: Rules,
    reader: OnceLock<Reader>,
    /// The file of a descriptor when its rule was looked up, and the deadline in microseconds.
    known: [(AtomicU64, AtomicU64); REMEMBERED],
}

static SHIM: OnceLock<Option<Box<Shim>>> = OnceLock::new();

thread_local! {
    // Constant and without a destructor: no allocation, no registration.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

fn shim() -> Option<&'static Shim> {
    let made = SHIM.get_or_init(|| {
        let rules = Rules::of_environment(|words| eprintln!("plimsoll: {words}"))?;
        let known = std::array::from_fn(|_| (AtomicU64::new(0), AtomicU64::new(NONE)));
        Some(Box::new(Shim { rules, reader: OnceLock::new(), known }))
    });
    made.as_deref()
}

impl Shim {
    /// The deadline of a file's reads, if it has one.
    fn deadline(&self, fd: c_int) -> Option<Duration> {
        let mut stat = std::mem::MaybeUninit::<libc::stat>::uninit();
        // SAFETY: the kernel fills `stat`, or says that it didn't.
        if unsafe { libc::fstat(fd, stat.as_mut_ptr()) } != 0 {
            return None;
        }
        // SAFETY: it was filled.
        let stat = unsafe { stat.assume_init() };
        if stat.st_mode & libc::S_IFMT != libc::S_IFREG {
            return None;
        }
        // Never the 0 of what isn't known.
        let file = (stat.st_dev.rotate_left(32) ^ stat.st_ino) | 1 << 63;
        let known = usize::try_from(fd).ok().and_then(|i| self.known.get(i));
        let us = match known {
            Some((of, us)) if of.load(Relaxed) == file => us.load(Relaxed),
            _ => {
                let path = std::fs::read_link(format!("/proc/self/fd/{fd}")).ok()?;
                let us = self.rules.deadline(&path).map_or(NONE, |d| d.as_micros() as u64);
                if let Some((of, to)) = known {
                    of.store(0, Relaxed);
                    to.store(us, Relaxed);
                    of.store(file, Relaxed);
                }
                us
            }
        };
        (us != NONE).then(|| Duration::from_micros(us))
    }
}

/// The outcome of a read: the C function's result with errno set, or `None`: the kernel's to answer.
fn within(fd: c_int, buf: *mut c_void, n: usize, offset: libc::off_t) -> Option<isize> {
    if buf.is_null() || offset < 0 || isize::try_from(n).is_err() || INSIDE.with(|i| i.replace(true)) {
        return None;
    }
    let answer = catch_unwind(AssertUnwindSafe(|| {
        let shim = shim()?;
        let deadline = shim.deadline(fd)?;
        let reader = shim.reader.get_or_init(|| Reader::new(Options::default()));
        // SAFETY: the program gave `n` bytes at `buf` to be written; only system calls write there.
        let buf = unsafe { std::slice::from_raw_parts_mut(buf.cast::<u8>(), n) };
        // SAFETY: `fstat` has just found it open; the program keeps it so during its own call.
        let fd = unsafe { BorrowedFd::borrow_raw(fd) };
        Some(match reader.read(fd, buf, offset as u64, deadline) {
            Ok(Answer::Read(n)) => Ok(n as isize),
            Ok(Answer::Busy(_)) => Err(libc::EBUSY),
            Err(e) => Err(e.raw_os_error().unwrap_or(libc::EIO)),
        })
    }));
    INSIDE.with(|i| i.set(false));
    match answer.ok()?? {
        Ok(n) => Some(n),
        Err(errno) => {
            // SAFETY: the address is always valid.
            unsafe { *libc::__errno_location() = errno };
            Some(-1)
        }
    }
}

fn pread_here(fd: c_int, buf: *mut c_void, n: usize, offset: libc::off_t) -> isize {
    // SAFETY: the same call with the same arguments as the program made; `syscall` sets errno as the wrapper would.
    within(fd, buf, n, offset)
        .unwrap_or_else(|| unsafe { libc::syscall(libc::SYS_pread64, fd, buf, n, offset) } as isize)
}

fn preadv_here(fd: c_int, iov: *const libc::iovec, count: c_int, offset: libc::off_t) -> isize {
    // Of several pieces the first may be read before the second is refused: these are left alone.
    if count == 1 && !iov.is_null() {
        // SAFETY: the program's own array of one.
        let one = unsafe { *iov };
        if let Some(n) = within(fd, one.iov_base, one.iov_len, offset) {
            return n;
        }
    }
    // SAFETY: as above.
    unsafe { libc::syscall(libc::SYS_preadv, fd, iov, count, offset, 0) as isize }
}

/// # Safety
/// As the C library's function of this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pread(fd: c_int, buf: *mut c_void, n: usize, offset: libc::off_t) -> isize {
    pread_here(fd, buf, n, offset)
}

/// # Safety
/// As the C library's function of this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pread64(fd: c_int, buf: *mut c_void, n: usize, offset: libc::off_t) -> isize {
    pread_here(fd, buf, n, offset)
}

/// # Safety
/// As the C library's function of this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn preadv(fd: c_int, iov: *const libc::iovec, count: c_int, offset: libc::off_t) -> isize {
    preadv_here(fd, iov, count, offset)
}

/// # Safety
/// As the C library's function of this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn preadv64(fd: c_int, iov: *const libc::iovec, count: c_int, offset: libc::off_t) -> isize {
    preadv_here(fd, iov, count, offset)
}
