//! TLS: the server's calls of `SSL_read` and `SSL_write` show the bytes in plain.

use crate::engine::{Takes, around_tls_read, around_write};
use crate::hooks::bytes;
use crate::sys::Size;
use std::ffi::{c_char, c_int, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

static READ: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
static WRITE: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
static FD: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

type Io = unsafe extern "C" fn(*mut c_void, *mut c_void, c_int) -> c_int;
type Fd = unsafe extern "C" fn(*const c_void) -> c_int;

/// Finds the library's own functions, if the server has any.
pub fn resolve() {
    for (name, to) in [(c"SSL_read", &READ), (c"SSL_write", &WRITE), (c"SSL_get_fd", &FD)] {
        // SAFETY: looks a name up; the result is only called as what that name is.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr().cast::<c_char>()) };
        to.store(found, Ordering::Relaxed);
    }
}

/// A function of the library by its address; `None` if there is none. The library may have come after us.
fn found(of: &AtomicPtr<c_void>) -> Option<*mut c_void> {
    if of.load(Ordering::Relaxed).is_null() {
        resolve();
    }
    let p = of.load(Ordering::Relaxed);
    (!p.is_null()).then_some(p)
}

fn fd_of(ssl: *mut c_void) -> c_int {
    // SAFETY: the address is that of `SSL_get_fd`, and `ssl` what the server gave to `SSL_read`.
    found(&FD).map_or(-1, |f| unsafe { std::mem::transmute::<*mut c_void, Fd>(f)(ssl) })
}

/// # Safety
/// As OpenSSL's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn SSL_read(ssl: *mut c_void, buf: *mut c_void, num: c_int) -> c_int {
    let Some(real) = found(&READ) else { return -1 };
    // SAFETY: the address is that of `SSL_read`.
    let real = unsafe { std::mem::transmute::<*mut c_void, Io>(real) };
    // SAFETY: the server's own arguments.
    let mut call = || unsafe { real(ssl, buf, num) } as Size;
    around_tls_read(fd_of(ssl), &mut call, &mut |w, n| w.input(bytes(buf, n))) as c_int
}

/// # Safety
/// As OpenSSL's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn SSL_write(ssl: *mut c_void, buf: *mut c_void, num: c_int) -> c_int {
    let Some(real) = found(&WRITE) else { return -1 };
    // SAFETY: the address is that of `SSL_write`.
    let real = unsafe { std::mem::transmute::<*mut c_void, Io>(real) };
    // SAFETY: the server's own arguments.
    let mut call = || unsafe { real(ssl, buf, num) } as Size;
    around_write(fd_of(ssl), true, Takes::Bytes, &mut call, &mut |w, n| w.output(bytes(buf, n))) as c_int
}
