//! Requests in flight at an image, and their completions.

use crate::api::Handle;
use crate::error::{Error, check};
use crate::image::{Image, LockState, THICK};
use plimsoll_base::{Buf, BufMut};
use slab::Slab;
use std::ffi::c_int;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::null_mut;
use std::sync::Arc;

/// `EVENT_TYPE_EVENTFD`.
const EVENTFD: c_int = 2;
/// Completions taken from the library at once.
const EVENTS_MAX: usize = 64;

/// Memory that a request uses.
enum Memory {
    Read(BufMut),
    Write(Buf),
    None,
}

struct InFlight {
    tag: usize,
    bytes: usize,
    memory: Memory,
}

/// An ended request.
pub struct Done {
    /// The tag that it was begun with.
    pub tag: usize,
    /// Success, or the library's error number, positive; `EIO` for a read that was short.
    pub result: Result<(), i32>,
    /// Bytes of a read that succeeded.
    pub read: Option<Buf>,
    /// The buffer of a write, to be used again.
    pub written: Option<Buf>,
}

/// See the module's documentation. Several queues of one cluster are independent.
pub struct Queue {
    image: Arc<Image>,
    in_flight: Slab<InFlight>,
    /// Completions that were taken and not yet handed out.
    taken: Vec<Handle>,
}

// SAFETY: completions may be released by any thread (librbd's own do); `taken` is only touched through `&mut`.
unsafe impl Send for Queue {}

impl Queue {
    /// A queue at `image`, which has no other.
    ///
    /// # Errors
    /// The library's.
    pub fn new(image: Arc<Image>) -> Result<Queue, Error> {
        let event = image.event().as_raw_fd();
        // SAFETY: the image is open; the library writes to the descriptor until the image is closed, which owns it.
        let set = unsafe { (image.cluster.libraries.rbd_set_image_notification)(image.handle, event, EVENTFD) };
        check(set, || format!("RBD image {}: completions can't be announced", image.name()))?;
        Ok(Queue { image, in_flight: Slab::with_capacity(64), taken: Vec::with_capacity(EVENTS_MAX) })
    }

    /// Readable when requests have ended: a read of 8 bytes takes the announcement, then [`Queue::next_done`] has them.
    pub fn event(&self) -> BorrowedFd<'_> {
        self.image.event()
    }

    /// The image.
    pub fn image(&self) -> &Arc<Image> {
        &self.image
    }

    /// Requests in flight.
    pub fn len(&self) -> usize {
        self.in_flight.len()
    }

    /// True if no request is in flight.
    pub fn is_empty(&self) -> bool {
        self.in_flight.is_empty()
    }

    /// Reads into all of `buf` from `offset`.
    ///
    /// # Errors
    /// The library's error number, positive. The request has ended.
    pub fn read(&mut self, tag: usize, offset: u64, mut buf: BufMut) -> Result<(), i32> {
        let (at, len) = (buf.as_mut_slice().as_mut_ptr(), buf.len());
        let read = self.image.cluster.libraries.rbd_aio_read;
        self.begin(tag, len, Memory::Read(buf), |image, completion| {
            // SAFETY: the image is open; `at` leads to `len` bytes on the heap that the entry in `in_flight` owns until the completion.
            unsafe { read(image, offset, len, at.cast(), completion) }
        })
    }

    /// Writes `data` at `offset`. It is on all replicas when it has ended: librbd's cache is off.
    ///
    /// # Errors
    /// The library's error number, positive; `ESHUTDOWN` once the lock is lost. The request has ended.
    pub fn write(&mut self, tag: usize, offset: u64, data: Buf) -> Result<(), i32> {
        self.may_write()?;
        let (at, len) = (data.as_slice().as_ptr(), data.len());
        let write = self.image.cluster.libraries.rbd_aio_write;
        self.begin(tag, len, Memory::Write(data), |image, completion| {
            // SAFETY: the image is open; the entry in `in_flight` keeps the bytes until the completion.
            unsafe { write(image, offset, len, at.cast(), completion) }
        })
    }

    /// Makes a range read as zeroes; with `keep_allocated` its objects stay. Not librbd's discard: that leaves what isn't a whole 64 KiB.
    ///
    /// # Errors
    /// As [`Queue::write`].
    pub fn zero(&mut self, tag: usize, offset: u64, len: u64, keep_allocated: bool) -> Result<(), i32> {
        self.may_write()?;
        let zero = self.image.cluster.libraries.rbd_aio_write_zeroes;
        let flags = if keep_allocated { THICK } else { 0 };
        self.begin(tag, len as usize, Memory::None, |image, completion| {
            // SAFETY: the image is open; no memory of ours is used.
            unsafe { zero(image, offset, len as usize, completion, flags, 0) }
        })
    }

    /// Makes durable what has ended.
    ///
    /// # Errors
    /// As [`Queue::write`].
    pub fn flush(&mut self, tag: usize) -> Result<(), i32> {
        self.may_write()?;
        let flush = self.image.cluster.libraries.rbd_aio_flush;
        self.begin(tag, 0, Memory::None, |image, completion| {
            // SAFETY: the image is open; no memory of ours is used.
            unsafe { flush(image, completion) }
        })
    }

    fn may_write(&self) -> Result<(), i32> {
        match self.image.known_lock_state() {
            LockState::Owned | LockState::Unconfirmed => Ok(()),
            LockState::Lost => Err(libc::ESHUTDOWN),
        }
    }

    fn begin(
        &mut self,
        tag: usize,
        bytes: usize,
        memory: Memory,
        order: impl FnOnce(Handle, Handle) -> c_int,
    ) -> Result<(), i32> {
        let l = &self.image.cluster.libraries;
        let slot = self.in_flight.insert(InFlight { tag, bytes, memory });
        let mut completion = null_mut();
        // SAFETY: the argument is a number that comes back with the completion; there is no callback; `completion` is written.
        let made = unsafe { (l.rbd_aio_create_completion)(slot as Handle, None, &mut completion) };
        let result = if made < 0 { made } else { order(self.image.handle, completion) };
        if result >= 0 {
            return Ok(());
        }
        if made >= 0 {
            // SAFETY: the order was refused, so that the library doesn't use the completion.
            unsafe { (l.rbd_aio_release)(completion) };
        }
        self.in_flight.remove(slot);
        Err(self.noted(-result))
    }

    /// A cluster that refuses this client has given its lock away.
    fn noted(&self, errno: i32) -> i32 {
        if errno == libc::ESHUTDOWN {
            self.image.lose();
        }
        errno
    }

    /// The next ended request.
    pub fn next_done(&mut self) -> Option<Done> {
        let l = &self.image.cluster.libraries;
        if self.taken.is_empty() {
            let mut events = [null_mut(); EVENTS_MAX];
            // SAFETY: the image is open; at most EVENTS_MAX completions are written.
            let n = unsafe { (l.rbd_poll_io_events)(self.image.handle, events.as_mut_ptr(), EVENTS_MAX as c_int) };
            self.taken.extend(events[..usize::try_from(n).unwrap_or(0)].iter().rev());
        }
        let completion = self.taken.pop()?;
        // SAFETY: the completion has ended and was handed out once; it isn't used after its release.
        let (slot, value) = unsafe {
            let ended = ((l.rbd_aio_get_arg)(completion) as usize, (l.rbd_aio_get_return_value)(completion));
            (l.rbd_aio_release)(completion);
            ended
        };
        let InFlight { tag, bytes, memory } = self.in_flight.remove(slot);
        let result = match i32::try_from(value) {
            Ok(errno) if errno < 0 => Err(self.noted(-errno)),
            // An image that has become shorter reads short.
            _ if matches!(memory, Memory::Read(_)) && value as usize != bytes => Err(libc::EIO),
            _ => Ok(()),
        };
        let (read, written) = match memory {
            Memory::Read(buf) => (result.is_ok().then(|| buf.freeze()), None),
            Memory::Write(data) => (None, Some(data)),
            Memory::None => (None, None),
        };
        Some(Done { tag, result, read, written })
    }
}

impl Drop for Queue {
    /// Memory of requests that haven't ended is leaked: librbd's threads may still use it.
    fn drop(&mut self) {
        std::mem::forget(std::mem::take(&mut self.in_flight));
    }
}
