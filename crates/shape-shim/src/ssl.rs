//! TLS: the server's calls of `SSL_read` and `SSL_write` show the bytes in plain.

use crate::engine::{Takes, around_tls_read, around_write};
use crate::hooks::bytes;
use crate::sys::Size;
use std::ffi::{CStr, c_int, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

static READ: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
static WRITE: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
static FD: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

type Io = unsafe extern "C" fn(*mut c_void, *mut c_void, c_int) -> c_int;
type Fd = unsafe extern "C" fn(*const c_void) -> c_int;

/// Bytes of a library's path, with the NUL.
const PATH_BYTES: usize = 4096;

/// Finds the library's own functions, if the server has any: those that it linked, or else those that one of its plug-ins brought for
/// itself alone (`dlopen` with RTLD_LOCAL), whose calls come here, too.
pub fn resolve() {
    let mut from = libc::RTLD_NEXT;
    // SAFETY: looks a name up.
    if unsafe { libc::dlsym(from, c"SSL_read".as_ptr()) }.is_null() {
        from = of_plug_in();
        if from.is_null() {
            return;
        }
    }
    for (name, to) in [(c"SSL_read", &READ), (c"SSL_write", &WRITE), (c"SSL_get_fd", &FD)] {
        // SAFETY: looks a name up; the result is only called as what that name is.
        let found = unsafe { libc::dlsym(from, name.as_ptr()) };
        to.store(found, Ordering::Relaxed);
    }
}

/// The first library that is loaded under the name of OpenSSL's. It stays loaded from then on. Null without any.
fn of_plug_in() -> *mut c_void {
    unsafe extern "C" fn visit(info: *mut libc::dl_phdr_info, _: usize, to: *mut c_void) -> c_int {
        // SAFETY: the loader's own struct, whose name ends with a NUL.
        let name = unsafe { CStr::from_ptr((*info).dlpi_name) }.to_bytes_with_nul();
        let file = name.rsplit(|b| *b == b'/').next().unwrap_or_default();
        if !file.starts_with(b"libssl.so") || name.len() > PATH_BYTES {
            return 0;
        }
        // SAFETY: `to` is the array below, and the name fits in.
        unsafe { std::ptr::copy_nonoverlapping(name.as_ptr(), to.cast(), name.len()) };
        1
    }
    let mut path = [0u8; PATH_BYTES];
    // The loader's lock is held only while it visits: `dlopen` takes another first.
    // SAFETY: `visit` writes at most the length of `path`.
    if unsafe { libc::dl_iterate_phdr(Some(visit), path.as_mut_ptr().cast()) } == 0 {
        return std::ptr::null_mut();
    }
    // SAFETY: a path with its NUL. Nothing is loaded that isn't already.
    unsafe { libc::dlopen(path.as_ptr().cast(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) }
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
