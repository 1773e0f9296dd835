//! Start of a request's execution at a node: it leaves the scheduler for the device.
//!
//! From then on no cancel reaches it, so a node reports this moment of a tied request (MittOS §7.8.2). The drive may still have
//! others in its own queue; no host knows.

use plimsoll_base::{Io, IoHead, Time};
use plimsoll_stack::{Actions, Forecast, Layer, Offer, Ports};

/// A layer between scheduler and device that changes nothing and notes which requests pass.
#[derive(Debug, Default)]
pub struct Begins {
    passed: Vec<plimsoll_base::IoId>,
}

impl Begins {
    /// The requests that passed since this was last asked.
    pub fn take(&mut self) -> std::vec::Drain<'_, plimsoll_base::IoId> {
        self.passed.drain(..)
    }
}

impl Layer for Begins {
    fn name(&self) -> &'static str {
        "begins"
    }

    fn offer(&self, below: &[Offer]) -> Offer {
        below[0]
    }

    fn forecast(&self, at: Time, head: &IoHead, below: Ports<'_>) -> Forecast {
        below.ask(0, at, head)
    }

    fn submit(&mut self, _: Time, io: Io, out: &mut Actions) {
        if io.is_client() {
            self.passed.push(io.id);
        }
        out.submit(0, io);
    }

    fn is_idle(&self) -> bool {
        true
    }
}
