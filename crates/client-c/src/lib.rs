//! The client's C interface. `include/plimsoll.h` states each function's promises and requirements, once.
//!
//! All `unsafe` is here: C's pointers become slices and strings at the edge, and nothing else happens to them.

use plimsoll_base::Span;
use plimsoll_client::PolicyKind;
use plimsoll_client::live::{Address, Ask, Blocking, OpenError, Options, ReadError, Volume};
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

const EIO: c_int = 5;
const EBUSY: c_int = 16;
const EINVAL: c_int = 22;
const ENOTCONN: c_int = 107;
const ETIMEDOUT: c_int = 110;

const FOREIGN: u32 = 1;
const NOT_MONOTONIC: u32 = 2;

/// `plimsoll_options`.
#[repr(C)]
pub struct COptions {
    policy: *const c_char,
    deadline_us: u64,
    limit_us: u64,
    stall_us: u64,
    connect_us: u64,
    flags: u32,
    reserved: u32,
}

/// `plimsoll_counts`.
#[repr(C)]
pub struct CCounts {
    gets: u64,
    failed: u64,
    tries: u64,
    busy: u64,
    errors: u64,
    cancels: u64,
    probes: u64,
}

/// `plimsoll_busy`.
#[repr(C)]
pub struct CBusy {
    wait_us: u64,
    confidence: i32,
    reserved: u32,
}

/// A negative errno with its words.
type Failure = (c_int, String);

thread_local! {
    static ERROR: RefCell<CString> = RefCell::default();
}

/// Runs what must not unwind into C.
fn guarded(f: impl FnOnce() -> Result<(), Failure>) -> c_int {
    let panicked = |_| Err((EIO, "the client has failed an assertion: please report what it printed".into()));
    catch_unwind(AssertUnwindSafe(f)).unwrap_or_else(panicked).map_or_else(failed, |()| 0)
}

/// Keeps the words for [`plimsoll_error`]; the number for C.
fn failed((errno, words): Failure) -> c_int {
    ERROR.with(|e| *e.borrow_mut() = CString::new(words.replace('\0', " ")).unwrap_or_default());
    -errno
}

fn bad(what: impl ToString) -> Failure {
    (EINVAL, what.to_string())
}

/// A C string.
///
/// # Safety
/// `text` must be NULL or a string that ends with NUL.
unsafe fn text<'a>(text: *const c_char) -> Result<&'a str, Failure> {
    if text.is_null() {
        return Err(bad("a string is NULL"));
    }
    // SAFETY: not NULL, and the caller promises the NUL.
    unsafe { CStr::from_ptr(text) }.to_str().map_err(|_| bad("a string isn't UTF-8"))
}

/// # Safety
/// `options.policy` must be NULL or a string.
unsafe fn options_of(options: &COptions) -> Result<Options, Failure> {
    let mut o = Options::default();
    if !options.policy.is_null() {
        // SAFETY: NULL or a string that ends in NUL and lives through this call: whoever fills in the options keeps that.
        o.policy = unsafe { text(options.policy) }?.parse::<PolicyKind>().map_err(bad)?;
    }
    if options.flags & !(FOREIGN | NOT_MONOTONIC) != 0 || options.reserved != 0 {
        return Err(bad("unknown flags: fill the options with zeroes first"));
    }
    let set = |time: &mut Duration, us: u64| {
        if us != 0 {
            *time = Duration::from_micros(us);
        }
    };
    set(&mut o.limit, options.limit_us);
    set(&mut o.stall, options.stall_us);
    set(&mut o.connect, options.connect_us);
    if options.deadline_us != 0 {
        o.settings.limit = Span::from_micros(options.deadline_us);
    }
    o.foreign = options.flags & FOREIGN != 0;
    o.monotonic = options.flags & NOT_MONOTONIC == 0;
    Ok(o)
}

/// Reads `count` addresses.
///
/// # Safety
/// `replicas` must have `count` pointers to strings that end in NUL.
unsafe fn addresses(replicas: *const *const c_char, count: usize) -> Result<Vec<Address>, Failure> {
    if replicas.is_null() && count > 0 {
        return Err(bad("a pointer is NULL"));
    }
    // SAFETY: `i` is below `count`, so there is such a pointer, to a string that ends in NUL: the caller promises both.
    (0..count).map(|i| unsafe { text(*replicas.add(i)) }?.parse::<Address>().map_err(bad)).collect()
}

/// Opens what `open` opens with `options`, into `volume`.
///
/// # Safety
/// `options` must be NULL or as the header says, `volume` NULL or a place for one pointer.
unsafe fn open_into(
    options: *const COptions,
    volume: *mut *mut Blocking,
    open: impl FnOnce(&Options) -> Result<Blocking, OpenError>,
) -> Result<(), Failure> {
    if volume.is_null() {
        return Err(bad("a pointer is NULL"));
    }
    // SAFETY: NULL (checked by `as_ref`) or options that the caller keeps, unchanged, until this call returns.
    let options = match unsafe { options.as_ref() } {
        // SAFETY: each string in them is NULL or ends in NUL and lives through this call; the caller keeps that.
        Some(o) => unsafe { options_of(o) }?,
        None => Options::default(),
    };
    let opened = open(&options).map_err(|e| match e {
        OpenError::NoneOpen(_) => (ENOTCONN, e.to_string()),
        OpenError::Thread(_) => (EIO, e.to_string()),
        _ => bad(e),
    })?;
    // SAFETY: checked not to be NULL; the caller promises a place for one pointer that nobody else uses meanwhile.
    unsafe { *volume = Box::into_raw(Box::new(opened)) };
    Ok(())
}

/// `plimsoll_open`
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn plimsoll_open(
    replicas: *const *const c_char,
    count: usize,
    options: *const COptions,
    volume: *mut *mut Blocking,
) -> c_int {
    guarded(|| {
        // SAFETY: the header asks C for `count` strings that live through this call.
        let replicas = unsafe { addresses(replicas, count) }?;
        // SAFETY: the header asks C for options and a place as `open_into` does.
        unsafe { open_into(options, volume, |o| Blocking::open(&replicas, o)) }
    })
}

/// `plimsoll_open_set`
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn plimsoll_open_set(
    replicas: *const *const c_char,
    groups: usize,
    copies: usize,
    object_bytes: u64,
    options: *const COptions,
    volume: *mut *mut Blocking,
) -> c_int {
    guarded(|| {
        let count = groups.checked_mul(copies).filter(|&n| n > 0).ok_or_else(|| bad("no groups, or no replicas"))?;
        // SAFETY: the header asks C for `groups` times `copies` strings that live through this call.
        let all = unsafe { addresses(replicas, count) }?;
        let groups: Vec<Vec<Address>> = all.chunks(copies).map(<[Address]>::to_vec).collect();
        // SAFETY: the header asks C for options and a place as `open_into` does.
        unsafe { open_into(options, volume, |o| Blocking::open_set(&groups, object_bytes, o)) }
    })
}

/// The volume behind a pointer.
///
/// # Safety
/// `volume` must be NULL or come from [`plimsoll_open`] and not be closed.
unsafe fn opened<'a>(volume: *const Blocking) -> Result<&'a Blocking, Failure> {
    // SAFETY: NULL (checked by `as_ref`), or what `plimsoll_open` made and `plimsoll_close` hasn't ended: the caller of each exported
    // function keeps that for as long as the call lasts.
    unsafe { volume.as_ref() }.ok_or_else(|| bad("the volume is NULL"))
}

/// The volume behind a pointer, to be read. In a child of fork() it fails before any lock, which another thread may have held at the fork.
///
/// # Safety
/// As [`opened`].
unsafe fn readable<'a>(volume: *const Blocking) -> Result<&'a Blocking, Failure> {
    // SAFETY: as `opened` asks; the caller keeps it.
    let open = unsafe { opened(volume) }?;
    if open.is_forked() { Err(failure(ReadError::Forked)) } else { Ok(open) }
}

/// `plimsoll_size`
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn plimsoll_size(volume: *const Blocking) -> u64 {
    // SAFETY: as `opened` asks: an open volume or NULL; the caller keeps it open during the call.
    unsafe { opened(volume) }.map_or(0, |open| open.volume().size_bytes())
}

/// Destination of data; C promises that it stays and is nobody else's until the read has ended.
struct Buffer(*mut u8, usize);

// SAFETY: whoever holds it is the only one to write there until the read has ended (the header's promise).
unsafe impl Send for Buffer {}

impl Buffer {
    fn fill(&self, data: &[u8]) {
        assert_eq!(data.len(), self.1, "a read gives what was asked for");
        // SAFETY: the caller keeps a buffer of `self.1` bytes until the read has ended, which is now; `data` has as many (just
        // checked) and is ours, so that they don't overlap.
        unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), self.0, self.1) };
    }
}

async fn ask(volume: &Volume, offset: u64, length: usize, ask: Ask) -> Result<Vec<u8>, ReadError> {
    let end = offset.checked_add(length as u64);
    let end = end.ok_or_else(|| ReadError::Range("the range ends beyond 2^64".into()))?;
    volume.ask(offset..end, ask).await
}

/// Deadline and limit of a read; 0 is none of its own.
fn terms(deadline_us: u64, limit_us: u64) -> Ask {
    let time = |us: u64| (us != 0).then(|| Duration::from_micros(us));
    Ask { deadline: time(deadline_us), limit: time(limit_us), refusable: false }
}

fn failure(e: ReadError) -> Failure {
    let errno = match &e {
        ReadError::Range(_) | ReadError::Deadline(_) | ReadError::Forked => EINVAL,
        ReadError::Limit { .. } => ETIMEDOUT,
        ReadError::Failed(_) => EIO,
        ReadError::Busy { .. } => EBUSY,
    };
    (errno, e.to_string())
}

/// `plimsoll_read`
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn plimsoll_read(
    volume: *mut Blocking,
    buffer: *mut c_void,
    length: usize,
    offset: u64,
    deadline_us: u64,
    limit_us: u64,
) -> c_int {
    guarded(|| {
        if buffer.is_null() {
            return Err(bad("the buffer is NULL"));
        }
        // SAFETY: as `readable` asks: an open volume or NULL; the caller keeps it open until the read has returned.
        let open = unsafe { readable(volume) }?;
        let data = open.wait(ask(open.volume(), offset, length, terms(deadline_us, limit_us))).map_err(failure)?;
        Buffer(buffer.cast(), length).fill(&data);
        Ok(())
    })
}

/// `plimsoll_read_or_busy`
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn plimsoll_read_or_busy(
    volume: *mut Blocking,
    buffer: *mut c_void,
    length: usize,
    offset: u64,
    deadline_us: u64,
    limit_us: u64,
    busy: *mut CBusy,
) -> c_int {
    guarded(|| {
        if buffer.is_null() {
            return Err(bad("the buffer is NULL"));
        }
        // SAFETY: as `readable` asks: an open volume or NULL; the caller keeps it open until the read has returned.
        let open = unsafe { readable(volume) }?;
        let refusable = Ask { refusable: true, ..terms(deadline_us, limit_us) };
        let data = open.wait(ask(open.volume(), offset, length, refusable)).map_err(|e| {
            // SAFETY: NULL (checked by `as_mut`) or the caller's, written by nobody else during the call.
            if let (ReadError::Busy { wait, confidence_permille, .. }, Some(busy)) = (&e, unsafe { busy.as_mut() }) {
                let wait_us = u64::try_from(wait.as_micros()).unwrap_or(u64::MAX);
                let confidence = confidence_permille.and_then(|c| i32::try_from(c).ok()).unwrap_or(-1);
                *busy = CBusy { wait_us, confidence, reserved: 0 };
            }
            failure(e)
        })?;
        Buffer(buffer.cast(), length).fill(&data);
        Ok(())
    })
}

/// `done` of a read, and its argument.
type Done = extern "C" fn(*mut c_void, c_int);

/// The call of `done`, which comes once: also if the read is dropped, because it has panicked or its volume was closed.
struct Ending {
    done: Done,
    user: *mut c_void,
    outcome: Option<Result<(), Failure>>,
}

// SAFETY: `user` is only given back to C, which was told that it comes from another thread.
unsafe impl Send for Ending {}

impl Drop for Ending {
    fn drop(&mut self) {
        let dropped = || Err((EIO, "the volume was closed before the read had ended, or the client has failed".into()));
        (self.done)(self.user, guarded(|| self.outcome.take().unwrap_or_else(dropped)));
    }
}

/// `plimsoll_read_async`
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn plimsoll_read_async(
    volume: *mut Blocking,
    buffer: *mut c_void,
    length: usize,
    offset: u64,
    deadline_us: u64,
    limit_us: u64,
    done: Option<Done>,
    user: *mut c_void,
) -> c_int {
    guarded(|| {
        if buffer.is_null() {
            return Err(bad("the buffer is NULL"));
        }
        let done = done.ok_or_else(|| bad("`done` is NULL"))?;
        // SAFETY: as `readable` asks: an open volume or NULL; the caller keeps it open during this call.
        let open = unsafe { readable(volume) }?;
        let (volume, into) = (open.volume().clone(), Buffer(buffer.cast(), length));
        let mut ending = Ending { done, user, outcome: None };
        open.spawn(async move {
            let into = into; // the whole of it, which may go to another thread
            let ended = ask(&volume, offset, length, terms(deadline_us, limit_us)).await;
            drop(volume);
            ending.outcome = Some(ended.map(|data| into.fill(&data)).map_err(failure));
            drop(ending);
        });
        Ok(())
    })
}

/// `plimsoll_count`
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn plimsoll_count(volume: *const Blocking, counts: *mut CCounts) {
    // SAFETY: as `opened` asks; `counts` is NULL (checked) or the caller's, written by nobody else during the call.
    let (Ok(open), Some(counts)) = (unsafe { opened(volume) }, unsafe { counts.as_mut() }) else { return };
    let c = open.volume().counts();
    *counts = CCounts {
        gets: c.gets,
        failed: c.failed,
        tries: c.tries,
        busy: c.busy,
        errors: c.errors,
        cancels: c.cancels,
        probes: c.probes,
    };
}

/// `plimsoll_close`
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn plimsoll_close(volume: *mut Blocking) {
    if !volume.is_null() {
        // SAFETY: not NULL (checked), made by `Box::into_raw` in `plimsoll_open`; the caller promises to close it once and to use
        // it no more, in any thread.
        drop(unsafe { Box::from_raw(volume) });
    }
}

/// `plimsoll_error`
#[unsafe(no_mangle)]
pub extern "C" fn plimsoll_error() -> *const c_char {
    ERROR.with(|e| e.borrow().as_ptr())
}
