//! The common face of all device models: requests in, exactly timed completions out.

use plimsoll_base::Time;
use plimsoll_stack::inside::FlashInside;

/// Operation of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Bytes from the device.
    Read,
    /// Bytes to the device; with `fua` (force unit access) it completes only when they are on the media.
    Write {
        /// True if a write cache must be passed by.
        fua: bool,
    },
    /// Everything that was acknowledged before this arrived is on the media when it completes. Has no range.
    Flush,
    /// The range's content is no longer needed.
    Trim,
    /// The range reads as zeroes afterwards; no data crosses the bus.
    WriteZeroes,
}

/// One request to a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The caller's name for it, given back in [`Done`]. Unique among the outstanding ones.
    pub tag: u64,
    /// Operation.
    pub op: Op,
    /// First byte, a multiple of [`Model::block_bytes`].
    pub offset: u64,
    /// Number of bytes, a multiple of [`Model::block_bytes`]; not zero, except for a flush, where it is ignored.
    pub len: u64,
}

/// A completed request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    /// The request's tag.
    pub tag: u64,
    /// Time of completion: its due time, however late the caller asked.
    pub at: Time,
    /// Time at which the device began to work on it; before that it waited in the device's own queue.
    pub started_at: Time,
}

/// A device's timing, as a pure state machine: it moves no bytes.
///
/// Time never goes backwards between calls. Due times don't depend on when `advance` is called: a late caller
/// gets the same completions with the same times.
pub trait Model {
    /// Capacity in bytes.
    fn size_bytes(&self) -> u64;

    /// The smallest addressable unit in bytes, a power of two.
    fn block_bytes(&self) -> u32;

    /// Hands in a request that arrives at `now`.
    ///
    /// # Panics
    /// If [`Model::queue_max`] requests are outstanding, or the range is empty, unaligned or beyond the end:
    /// the layers above check what comes from outside.
    fn submit(&mut self, now: Time, req: Request);

    /// Returns the time at which `advance` next has work; [`Time::NEVER`] if idle. May be earlier than the next completion, as
    /// models have work of their own.
    fn next_event(&self) -> Time;

    /// No completion is due before this: at least [`Model::next_event`]. A caller that doesn't look at the model's inside may skip
    /// the events before it. The model catches up at the next call, with the same completions.
    fn next_completion(&self) -> Time {
        self.next_event()
    }

    /// Advances the model to `now`: performs what is due, in order of time, and appends the completions to `done`.
    fn advance(&mut self, now: Time, done: &mut Vec<Done>);

    /// Number of requests handed in and not yet given back.
    fn outstanding(&self) -> usize;

    /// Returns the number of requests that it accepts at once (a disk's NCQ or TCQ depth).
    fn queue_max(&self) -> usize;

    /// Returns whether it would take `req`, whose range is on the device, now. Host-managed zones refuse writes anywhere but at their
    /// pointers; [`Model::submit`] panics at what isn't accepted.
    fn accepts(&self, _req: &Request) -> bool {
        true
    }

    /// Its inside, if it's flash that shows it.
    fn flash(&self) -> Option<&dyn FlashInside> {
        None
    }
}

/// Checks a request's range against a model; every model calls it first in `submit`.
///
/// # Panics
/// As [`Model::submit`] says.
pub(crate) fn assert_in_range(req: &Request, size_bytes: u64, block_bytes: u32) {
    if req.op == Op::Flush {
        return;
    }
    let block = u64::from(block_bytes);
    assert!((req.offset | req.len) & (block - 1) == 0 && req.len > 0, "{req:?} is not whole blocks of {block} bytes");
    assert!(
        req.offset <= size_bytes && req.len <= size_bytes - req.offset,
        "{req:?} ends beyond the device's {size_bytes} bytes"
    );
}
