//! The load of the library into a server, and forks of the server.

use crate::sys::{self, call};
use plimsoll_shape::profile::Profile;
use plimsoll_shape::segment::{FAILED_SHIM, Segment, monotonic};
use std::ffi::{CStr, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// Libraries that the loader brings into a program.
const ENV_PRELOAD: &str = "LD_PRELOAD";
/// Names the segment's file; without it nothing is done.
const ENV_SEGMENT: &str = "PLIMSOLL_SHAPE_SEGMENT";
/// Names the profile.
const ENV_PROFILE: &str = "PLIMSOLL_SHAPE_PROFILE";
/// Names the program to act in: wrappers before it pass the environment on.
const ENV_PROGRAM: &str = "PLIMSOLL_SHAPE_PROGRAM";

/// State that the shim works with.
pub struct Shim {
    /// The gate.
    pub segment: Segment,
    /// Profile of how this server reads.
    pub profile: Profile,
}

static SHIM: OnceLock<Shim> = OnceLock::new();
/// Off: in a process that isn't served, or after a panic.
static ON: AtomicBool = AtomicBool::new(false);
static PID: AtomicU32 = AtomicU32::new(0);

/// Off, and connections of this process are still in the gate.
static OWING: AtomicBool = AtomicBool::new(false);

/// The shim, unless it is off.
pub fn shim() -> Option<&'static Shim> {
    if is_on() {
        return SHIM.get();
    }
    if is_owing() {
        SHIM.get().into_iter().for_each(crate::engine::pay_back);
    }
    None
}

/// Not off.
pub fn is_on() -> bool {
    // In one order with `hold`: who switches off and then shows all, and who withholds an event and then looks here.
    ON.load(Ordering::SeqCst)
}

/// Connections of this process are still in the gate, after it was switched off.
pub fn is_owing() -> bool {
    OWING.load(Ordering::Relaxed)
}

/// Notes whether connections of this process are still in the gate, after it was switched off; whether they were before.
pub fn set_owing(owing: bool) -> bool {
    OWING.swap(owing, Ordering::Relaxed)
}

/// This process.
pub fn pid() -> u32 {
    PID.load(Ordering::Relaxed)
}

/// Passes everything through from now on.
pub fn switch_off() {
    ON.store(false, Ordering::SeqCst);
}

#[used]
#[unsafe(link_section = ".init_array")]
// SAFETY: the loader runs it once, before the program begins, with only this thread.
static INIT: extern "C" fn() = init;

extern "C" fn init() {
    // Allocation is fine here: the program has not begun.
    let _ = std::panic::catch_unwind(|| {
        let (Some(path), Some(profile)) = (std::env::var_os(ENV_SEGMENT), std::env::var(ENV_PROFILE).ok()) else {
            return;
        };
        let own = std::fs::read_link("/proc/self/exe").unwrap_or_default();
        if std::env::var_os(ENV_PROGRAM).is_some_and(|p| Path::new(&p) != own) {
            return;
        }
        // What the server starts is not the server.
        // SAFETY: no other thread exists yet.
        unsafe { [ENV_SEGMENT, ENV_PROFILE, ENV_PROGRAM].iter().for_each(|k| std::env::remove_var(k)) };
        leave_preload();
        match (Segment::open(Path::new(&path)), profile.parse::<Profile>()) {
            (Ok(segment), Ok(profile)) => begin(Shim { segment, profile }),
            (Err(e), _) => complain(&format!("{}: {e}", Path::new(&path).display())),
            (_, Err(e)) => complain(&e.to_string()),
        }
    });
}

/// Takes this library out of `LD_PRELOAD`. Others there are the operator's, and stay.
fn leave_preload() {
    let Some(all) = std::env::var_os(ENV_PRELOAD) else { return };
    let mut own = std::mem::MaybeUninit::<libc::Dl_info>::uninit();
    // SAFETY: an address in this library; the struct is filled if the result isn't 0.
    if unsafe { libc::dladdr(INIT as *const libc::c_void, own.as_mut_ptr()) } == 0 {
        return;
    }
    // SAFETY: it was filled, and the loader keeps the name while the library is loaded.
    let own = unsafe { CStr::from_ptr(own.assume_init().dli_fname) }.to_bytes();
    let others = all.as_bytes().split(|b| matches!(b, b':' | b' ')).filter(|name| !name.is_empty() && *name != own);
    let others = others.collect::<Vec<_>>().join(&b':');
    // SAFETY: no other thread exists yet.
    unsafe {
        match others.is_empty() {
            true => std::env::remove_var(ENV_PRELOAD),
            false => std::env::set_var(ENV_PRELOAD, OsStr::from_bytes(&others)),
        }
    }
}

fn begin(shim: Shim) {
    std::panic::set_hook(Box::new(|_| {}));
    PID.store(std::process::id(), Ordering::Relaxed);
    shim.segment.join();
    let control = shim.segment.control();
    control.server_pid.store(std::process::id(), Ordering::Relaxed);
    control.profile.store(shim.profile.code(), Ordering::Relaxed);
    control.failed_open.fetch_and(!FAILED_SHIM, Ordering::Relaxed);
    // Whatever an earlier server left is gone with it.
    let now = monotonic();
    if !shim.segment.reap_earlier_server(sys::tid(), now) {
        return complain("whoever has the control segment's lock was stopped");
    }
    crate::ssl::resolve();
    // SAFETY: registers a function that only stores integers.
    unsafe { libc::pthread_atfork(None, None, Some(forked)) };
    // A second call finds it set and changes nothing.
    let _ = SHIM.set(shim);
    ON.store(true, Ordering::Relaxed);
}

/// In a forked child.
extern "C" fn forked() {
    sys::forget_tid();
    PID.store(call!(SYS_getpid) as u32, Ordering::Relaxed);
    // Only PostgreSQL serves clients in children; elsewhere a child is a helper (a snapshot, a script).
    if SHIM.get().is_none_or(|s| s.profile != Profile::Postgres) {
        switch_off();
    }
}

fn complain(what: &str) {
    let text = format!("plimsoll: shaping is off: {what}\n");
    call!(SYS_write, 2, text.as_ptr(), text.len());
}
