//! System calls, and this thread's id. Everything here is async-signal-safe.

use std::cell::Cell;

/// C's `ssize_t`.
pub type Size = isize;

macro_rules! call {
    ($number:ident $(, $arg:expr)*) => {
        // SAFETY: the same call with the same arguments as the program made; `syscall` sets errno as the wrapper would.
        unsafe { libc::syscall(libc::$number $(, $arg)*) as crate::sys::Size }
    };
}
pub(crate) use call;

/// The C library's error number of this thread.
pub fn errno() -> i32 {
    // SAFETY: the address is always valid.
    unsafe { *libc::__errno_location() }
}

/// Sets it.
pub fn set_errno(value: i32) {
    // SAFETY: the address is always valid.
    unsafe { *libc::__errno_location() = value };
}

thread_local! {
    // Constant and without a destructor: no allocation, no registration.
    static TID: Cell<u32> = const { Cell::new(0) };
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// This thread's id.
pub fn tid() -> u32 {
    TID.with(|t| {
        if t.get() == 0 {
            t.set(call!(SYS_gettid) as u32);
        }
        t.get()
    })
}

/// After a fork this thread is another.
pub fn forget_tid() {
    TID.with(|t| t.set(0));
}

/// Marks this thread as inside the shim; `None` if it is already (a signal handler that reads): pass through then.
pub fn enter() -> Option<Inside> {
    INSIDE.with(|i| if i.replace(true) { None } else { Some(Inside) })
}

/// This thread is inside the shim.
pub struct Inside;
impl Drop for Inside {
    fn drop(&mut self) {
        INSIDE.with(|i| i.set(false));
    }
}
