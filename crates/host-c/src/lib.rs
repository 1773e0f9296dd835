//! Host mode's C interface. The contract of each function is in `include/plimsoll-host.h`.
//!
//! All `unsafe` is here: C's pointers become slices and strings at the edge, and nothing else happens to them.

use plimsoll_host::{Answer, Busy, Options, Reader};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::io;
use std::os::fd::BorrowedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

const EIO: c_int = 5;
const EBUSY: c_int = 16;
const EINVAL: c_int = 22;
const ENODATA: c_int = 61;
const EBADF: c_int = 9;

const REFUSE_FIRST: u32 = 1;
const QUIET: u32 = 2;

/// `plimsoll_host_busy`.
#[repr(C)]
pub struct CBusy {
    wait_us: u64,
    confidence: f64,
}

/// `plimsoll_host_counts`.
#[repr(C)]
pub struct CCounts {
    asked: u64,
    busy: u64,
    plain: u64,
    unfetched: u64,
}

/// Runs what must not unwind into C.
fn guarded(f: impl FnOnce() -> Result<i64, c_int>) -> i64 {
    match catch_unwind(AssertUnwindSafe(f)) {
        Ok(Ok(n)) => n,
        Ok(Err(errno)) => -i64::from(errno),
        Err(_) => -i64::from(EIO),
    }
}

fn errno(e: &io::Error) -> c_int {
    e.raw_os_error().unwrap_or(EIO)
}

/// # Safety
/// `to` is NULL or may be written.
unsafe fn refuse(busy: Busy, to: *mut CBusy) -> c_int {
    if !to.is_null() {
        let wait_us = u64::try_from(busy.wait.as_micros()).unwrap_or(u64::MAX);
        // SAFETY: not NULL, and the caller promises the rest.
        unsafe { to.write(CBusy { wait_us, confidence: busy.confidence }) };
    }
    EBUSY
}

/// # Safety
/// `fd` is -1 or stays open during the call, as the header asks.
unsafe fn borrow<'a>(fd: c_int) -> Result<BorrowedFd<'a>, c_int> {
    // SAFETY: not -1; a descriptor that isn't open makes system calls fail, and nothing else.
    if fd < 0 { Err(EBADF) } else { Ok(unsafe { BorrowedFd::borrow_raw(fd) }) }
}

/// # Safety
/// `socket` is NULL or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn plimsoll_host_open(socket: *const c_char, flags: u32) -> *mut Reader {
    let made = catch_unwind(|| {
        let mut options = Options { refuse_first: flags & REFUSE_FIRST != 0, ..Options::default() };
        if !socket.is_null() {
            // SAFETY: not NULL, and the caller promises the NUL.
            options.socket = unsafe { CStr::from_ptr(socket) }.to_str().ok()?.into();
        }
        if flags & QUIET != 0 {
            options.say = |_| {};
        }
        Some(Box::into_raw(Box::new(Reader::new(options))))
    });
    made.ok().flatten().unwrap_or(std::ptr::null_mut())
}

/// # Safety
/// `host` is NULL or from `plimsoll_host_open`, and isn't used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn plimsoll_host_close(host: *mut Reader) {
    if !host.is_null() {
        // SAFETY: it was made by `Box::into_raw`, and the caller gives it up.
        let _ = catch_unwind(AssertUnwindSafe(|| drop(unsafe { Box::from_raw(host) })));
    }
}

/// # Safety
/// As the header asks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn plimsoll_host_read(
    host: *const Reader,
    fd: c_int,
    buffer: *mut c_void,
    length: usize,
    offset: u64,
    deadline_us: u64,
    busy: *mut CBusy,
) -> isize {
    guarded(|| {
        // SAFETY: the caller promises a host or NULL.
        let host = unsafe { host.as_ref() }.ok_or(EINVAL)?;
        if buffer.is_null() && length > 0 || isize::try_from(length).is_err() {
            return Err(EINVAL);
        }
        let at = if length == 0 { std::ptr::dangling_mut() } else { buffer.cast::<u8>() };
        // SAFETY: the caller promises `length` bytes that are its to write; it is only written to, by system calls.
        let buf = unsafe { std::slice::from_raw_parts_mut(at, length) };
        // SAFETY: the caller's descriptor.
        let fd = unsafe { borrow(fd)? };
        match host.read(fd, buf, offset, Duration::from_micros(deadline_us)) {
            Ok(Answer::Read(n)) => Ok(n as i64),
            // SAFETY: the caller promises NULL or room.
            Ok(Answer::Busy(why)) => Err(unsafe { refuse(why, busy) }),
            Err(e) => Err(errno(&e)),
        }
    }) as isize
}

/// # Safety
/// As the header asks; the address may be any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn plimsoll_host_addrcheck(
    host: *const Reader,
    address: *const c_void,
    length: usize,
    deadline_us: u64,
    busy: *mut CBusy,
) -> c_int {
    guarded(|| {
        // SAFETY: the caller promises a host or NULL.
        let host = unsafe { host.as_ref() }.ok_or(EINVAL)?;
        match host.addrcheck(address as usize, length, Duration::from_micros(deadline_us)) {
            Ok(None) => Ok(0),
            // SAFETY: the caller promises NULL or room.
            Ok(Some(why)) => Err(unsafe { refuse(why, busy) }),
            Err(e) => Err(errno(&e)),
        }
    }) as c_int
}

/// # Safety
/// As the header asks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn plimsoll_host_forecast(host: *const Reader, fd: c_int, length: usize) -> i64 {
    guarded(|| {
        // SAFETY: the caller promises a host or NULL.
        let host = unsafe { host.as_ref() }.ok_or(EINVAL)?;
        // SAFETY: the caller's descriptor.
        let fd = unsafe { borrow(fd)? };
        let forecast = host.forecast_file(fd, length as u64).map_err(|e| errno(&e))?;
        Ok((forecast.ok_or(ENODATA)?.total_ns / 1000) as i64)
    })
}

/// # Safety
/// As the header asks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn plimsoll_host_count(host: *const Reader, counts: *mut CCounts) {
    // SAFETY: the caller promises a host or NULL.
    let Some(host) = (unsafe { host.as_ref() }) else { return };
    if !counts.is_null() {
        let c = host.counts();
        // SAFETY: not NULL, and the caller promises room.
        unsafe { counts.write(CCounts { asked: c.asked, busy: c.busy, plain: c.plain, unfetched: c.unfetched }) };
    }
}
