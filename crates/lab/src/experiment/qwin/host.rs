//! Cost of a request to its core before the drive sees it: checksums and copies. Each core works on its own request, so
//! this only delays.

use plimsoll_base::{Completion, Io, IoError, IoId, Outcome, Span, Time};
use plimsoll_stack::{Actions, Layer, Offer};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

/// A request, whatever it is.
const EACH: Span = Span::from_micros(10);
/// A KiB of it.
const PER_KIB: Span = Span::from_micros(2);

/// See the module's documentation.
#[derive(Default)]
pub struct Host {
    due: BinaryHeap<Reverse<(Time, u64)>>,
    waiting: BTreeMap<u64, Io>,
}

impl Host {
    /// Nothing under way.
    pub fn new() -> Host {
        Host::default()
    }

    fn arm(&self, out: &mut Actions) {
        if let Some(Reverse((at, _))) = self.due.peek() {
            out.wake_at(*at);
        }
    }
}

impl Layer for Host {
    fn name(&self) -> &'static str {
        "host"
    }

    fn offer(&self, below: &[Offer]) -> Offer {
        below[0]
    }

    fn submit(&mut self, now: Time, io: Io, out: &mut Actions) {
        let at = now + EACH + PER_KIB * io.len / 1024;
        self.due.push(Reverse((at, io.id.0)));
        self.waiting.insert(io.id.0, io);
        self.arm(out);
    }

    fn completed(&mut self, _now: Time, c: Completion, out: &mut Actions) {
        out.complete(c);
    }

    fn wake(&mut self, now: Time, out: &mut Actions) {
        while let Some(Reverse((at, id))) = self.due.peek().copied()
            && at <= now
        {
            self.due.pop();
            if let Some(io) = self.waiting.remove(&id) {
                out.submit(0, io);
            }
        }
        self.arm(out);
    }

    fn cancel(&mut self, _now: Time, id: IoId, out: &mut Actions) {
        match self.waiting.remove(&id.0) {
            Some(io) => out.end(io, Outcome::Failed(IoError::Cancelled)),
            None => out.cancel(0, id),
        }
    }

    fn is_idle(&self) -> bool {
        self.waiting.is_empty()
    }
}
