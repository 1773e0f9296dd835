//! The rule of MittOS §4.1 in place of ours (MT-A2): a read is refused if its wait exceeds the deadline, whatever its own service takes.

use plimsoll_base::{Io, IoHead, Span, Time};
use plimsoll_stack::{Actions, Forecast, Layer, Offer, Ports};

/// Above the scheduler: forecasts the wait only.
pub(super) struct WaitOnly;

impl Layer for WaitOnly {
    fn name(&self) -> &'static str {
        "wait only"
    }

    fn offer(&self, below: &[Offer]) -> Offer {
        below[0]
    }

    fn forecast(&self, at: Time, head: &IoHead, below: Ports<'_>) -> Forecast {
        Forecast { service: Span::ZERO, ..below.ask(0, at, head) }
    }

    fn submit(&mut self, _now: Time, io: Io, out: &mut Actions) {
        out.submit(0, io);
    }

    fn is_idle(&self) -> bool {
        true
    }
}
