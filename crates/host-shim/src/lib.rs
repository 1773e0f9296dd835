//! Preloaded into a program (`LD_PRELOAD=libplimsoll_deadline.so`): its pread(2) and preadv(2) of files in some folders have a deadline. A read
//! that would be late fails with EBUSY at once; everything else is as it was.
//!
//! `PLIMSOLL_DEADLINES`: `FOLDER=TIME`, several separated by `;`, the longest folder counts (`/var/lib/db=20ms;/var/lib/db/wal=off`).
//! `PLIMSOLL_DEADLINE_PROCESSES`: names of the processes that it's for, separated by `,`; unset: all.
//! `PLIMSOLL_DEADLINE_TITLES`: beginnings of these processes' titles, as ps(1) shows them, separated by `;`; unset: all. A server that forks gives each
//! child its title before the child reads, as PostgreSQL does.
//! `PLIMSOLL_DEADLINE_FIRST`: `refuse` refuses pages that were never in memory, too; unset or `read`: they are read.
//! Not covered: read(2), whose callers seldom expect a failure, mapped files, io_uring, reads by bare system calls and those of the C
//! library for itself.
//!
//! Nothing here waits for another thread: it may be missing after a fork. A child of fork begins anew.

mod rules;

use plimsoll_host::{Answer, Options, Reader};
use rules::Rules;
use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::os::fd::BorrowedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU64, fence};
use std::time::Duration;

/// Files whose rule is remembered, by descriptor; of others it's looked up at each read.
const REMEMBERED: usize = 4096;
/// No deadline.
const NONE: u64 = u64::MAX;

struct Shim {
    rules: Option<Rules>,
    /// The file of a descriptor when its rule was looked up, and the deadline in microseconds.
    known: Box<[(AtomicU64, AtomicU64)]>,
}

/// A value that is made when it's first needed, and stays. Threads may make it at the same time; the first one's is kept.
struct First<T>(AtomicPtr<T>);

impl<T: Sync + 'static> First<T> {
    fn get(&self, make: impl FnOnce() -> T) -> &'static T {
        let mut at = self.0.load(Acquire);
        if at.is_null() {
            let made = Box::into_raw(Box::new(make()));
            at = match self.0.compare_exchange(std::ptr::null_mut(), made, AcqRel, Acquire) {
                Ok(_) => made,
                Err(first) => {
                    // SAFETY: made above, and nobody else has seen it.
                    drop(unsafe { Box::from_raw(made) });
                    first
                }
            };
        }
        // SAFETY: from `Box::into_raw`, and never freed.
        unsafe { &*at }
    }
}

static SHIM: First<Shim> = First(AtomicPtr::new(std::ptr::null_mut()));
static READER: First<Reader> = First(AtomicPtr::new(std::ptr::null_mut()));
static WATCHES_FORKS: AtomicBool = AtomicBool::new(false);
/// Of this process, by its title: has deadlines, has none, or not looked up yet.
static TITLED: AtomicU8 = AtomicU8::new(UNKNOWN);
const UNKNOWN: u8 = 0;
const WITH: u8 = 1;
const WITHOUT: u8 = 2;

thread_local! {
    // Constant and without a destructor: no allocation, no registration.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

fn shim() -> Option<(&'static Shim, &'static Rules)> {
    let shim = SHIM.get(|| {
        let rules = Rules::of_environment(|words| plimsoll_host::say::error(&words));
        let known = if rules.is_some() { REMEMBERED } else { 0 };
        Shim { rules, known: (0..known).map(|_| (AtomicU64::new(0), AtomicU64::new(NONE))).collect() }
    });
    Some((shim, shim.rules.as_ref()?))
}

fn watch_forks() {
    if !WATCHES_FORKS.swap(true, Relaxed) {
        // SAFETY: a function that may run in a child of fork: it stores two words.
        unsafe { libc::pthread_atfork(None, None, Some(begin_anew)) };
    }
}

/// True if this process's title is one with deadlines. It's looked up once: a title changes with the process's work, its beginning doesn't.
fn is_titled(rules: &Rules) -> bool {
    if !rules.has_titles() {
        return true;
    }
    watch_forks();
    match TITLED.load(Relaxed) {
        UNKNOWN => {
            let title = std::fs::read("/proc/self/cmdline").unwrap_or_default();
            // Arguments end with zeros, and a title that is shorter than these with more of them.
            let title = title.split(|b| *b == 0).map(String::from_utf8_lossy).collect::<Vec<_>>().join(" ");
            let is_for = rules.is_for(title.trim_end());
            TITLED.store(if is_for { WITH } else { WITHOUT }, Relaxed);
            is_for
        }
        known => known == WITH,
    }
}

fn reader(rules: &Rules) -> &'static Reader {
    watch_forks();
    READER.get(|| Reader::new(Options { refuse_first: rules.refuse_first, ..Options::default() }))
}

/// The parent's reader is left as it is: a thread that the child hasn't may hold its locks.
extern "C" fn begin_anew() {
    READER.0.store(std::ptr::null_mut(), Release);
    TITLED.store(UNKNOWN, Relaxed);
}

/// True if the file can be known by [`key`]: it was always here under this name only, and the file system tells when it was made.
fn is_of_one_name(stat: &libc::statx) -> bool {
    stat.stx_nlink == 1 && stat.stx_mask & libc::STATX_BTIME != 0
}

/// A file. The next file at its inode was made at another time. Never the 0 of what isn't known.
fn key(stat: &libc::statx) -> u64 {
    let dev = u64::from(stat.stx_dev_major) << 32 | u64::from(stat.stx_dev_minor);
    let made =
        (stat.stx_btime.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(u64::from(stat.stx_btime.tv_nsec));
    let mixed = [stat.stx_ino, made]
        .into_iter()
        .fold(dev, |hash, part| (hash ^ part).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29));
    mixed | 1 << 63
}

impl Shim {
    /// The deadline of a file's reads, if it has one.
    fn deadline(&self, rules: &Rules, fd: c_int) -> Option<Duration> {
        let mut stat = std::mem::MaybeUninit::<libc::statx>::uninit();
        let wanted = libc::STATX_TYPE | libc::STATX_INO | libc::STATX_NLINK | libc::STATX_BTIME;
        // SAFETY: an empty path with its NUL; the kernel fills `stat`, or says that it didn't.
        if unsafe { libc::statx(fd, c"".as_ptr(), libc::AT_EMPTY_PATH, wanted, stat.as_mut_ptr()) } != 0 {
            return None;
        }
        // SAFETY: it was filled.
        let stat = unsafe { stat.assume_init() };
        if u32::from(stat.stx_mode) & libc::S_IFMT != libc::S_IFREG {
            return None;
        }
        let known = usize::try_from(fd).ok().and_then(|i| self.known.get(i)).filter(|_| is_of_one_name(&stat));
        let file = key(&stat);
        let us = match known {
            Some((of, us)) if of.load(Acquire) == file => us.load(Relaxed),
            _ => {
                let path = std::fs::read_link(format!("/proc/self/fd/{fd}")).ok()?;
                let us = rules.deadline(&path).map_or(NONE, |d| d.as_micros() as u64);
                if let Some((of, to)) = known {
                    // Whoever finds the file, before and after, finds its deadline.
                    of.store(0, Relaxed);
                    fence(Release);
                    to.store(us, Relaxed);
                    of.store(file, Release);
                }
                us
            }
        };
        (us != NONE).then(|| Duration::from_micros(us))
    }
}

/// The outcome of a read: the C function's result with errno set, or `None`: the kernel's to answer. A success leaves errno alone.
fn within(fd: c_int, buf: *mut c_void, n: usize, offset: libc::off_t) -> Option<isize> {
    if buf.is_null() || offset < 0 || isize::try_from(n).is_err() || INSIDE.with(|i| i.replace(true)) {
        return None;
    }
    // SAFETY: the address is always valid.
    let before = unsafe { *libc::__errno_location() };
    let answer = catch_unwind(AssertUnwindSafe(|| {
        let (shim, rules) = shim()?;
        let deadline = if is_titled(rules) { shim.deadline(rules, fd)? } else { return None };
        // SAFETY: the program gave `n` bytes at `buf` to be written; only system calls write there.
        let buf = unsafe { std::slice::from_raw_parts_mut(buf.cast::<u8>(), n) };
        // SAFETY: `fstat` has just found it open; the program keeps it so during its own call.
        let fd = unsafe { BorrowedFd::borrow_raw(fd) };
        Some(match reader(rules).read(fd, buf, offset as u64, deadline) {
            Ok(Answer::Read(n)) => Ok(n as isize),
            Ok(Answer::Busy(_)) => Err(libc::EBUSY),
            Err(e) => Err(e.raw_os_error().unwrap_or(libc::EIO)),
        })
    }));
    INSIDE.with(|i| i.set(false));
    let (result, errno) = match answer.ok().flatten() {
        Some(Ok(n)) => (Some(n), before),
        Some(Err(errno)) => (Some(-1), errno),
        None => (None, before),
    };
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
    result
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

fn preadv2_here(fd: c_int, iov: *const libc::iovec, count: c_int, offset: libc::off_t, flags: c_int) -> isize {
    // With flags it's another call; at -1 it reads where the descriptor is.
    if flags == 0 && offset >= 0 {
        return preadv_here(fd, iov, count, offset);
    }
    // SAFETY: as above.
    unsafe { libc::syscall(libc::SYS_preadv2, fd, iov, count, offset, 0, flags) as isize }
}

fn checked(n: usize, size: usize) {
    if n > size {
        // As the C library does: the program would write beyond its buffer.
        plimsoll_host::say::error("a program reads more than its buffer takes");
        std::process::abort();
    }
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

/// # Safety
/// As the C library's function of this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn preadv2(
    fd: c_int,
    iov: *const libc::iovec,
    count: c_int,
    offset: libc::off_t,
    flags: c_int,
) -> isize {
    preadv2_here(fd, iov, count, offset, flags)
}

/// # Safety
/// As the C library's function of this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn preadv64v2(
    fd: c_int,
    iov: *const libc::iovec,
    count: c_int,
    offset: libc::off_t,
    flags: c_int,
) -> isize {
    preadv2_here(fd, iov, count, offset, flags)
}

/// The form of `pread` that compilers choose where they know the buffer's size.
///
/// # Safety
/// As the C library's function of this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __pread_chk(fd: c_int, buf: *mut c_void, n: usize, offset: libc::off_t, size: usize) -> isize {
    checked(n, size);
    pread_here(fd, buf, n, offset)
}

/// # Safety
/// As the C library's function of this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __pread64_chk(
    fd: c_int,
    buf: *mut c_void,
    n: usize,
    offset: libc::off_t,
    size: usize,
) -> isize {
    checked(n, size);
    pread_here(fd, buf, n, offset)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(ino: u64, made_s: i64, links: u32) -> libc::statx {
        // SAFETY: integers only.
        let mut stat: libc::statx = unsafe { std::mem::zeroed() };
        (stat.stx_ino, stat.stx_nlink, stat.stx_mask) = (ino, links, libc::STATX_BTIME);
        stat.stx_btime.tv_sec = made_s;
        stat
    }

    /// A file that is made when another is gone often has its inode, and its descriptor.
    #[test]
    fn the_next_file_of_an_inode_is_another() {
        assert_eq!(key(&file(7, 100, 1)), key(&file(7, 100, 1)));
        assert_ne!(key(&file(7, 100, 1)), key(&file(7, 101, 1)));
        assert_ne!(key(&file(7, 100, 1)), key(&file(8, 100, 1)));
        let of_two_names = file(7, 100, 2);
        let mut untold = file(7, 100, 1);
        untold.stx_mask = 0;
        assert!(is_of_one_name(&file(7, 100, 1)) && !is_of_one_name(&of_two_names) && !is_of_one_name(&untold));
    }
}
