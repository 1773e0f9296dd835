//! Pace at which the requests of clients that are gone are withdrawn: in stretches, with rests for the others between.

use plimsoll_base::{Span, Time};
use std::time::Duration;

/// A stretch takes at most this much of the thread's time.
pub const STRETCH_TIME: Duration = Duration::from_micros(500);
/// The same as a number of requests.
pub const STRETCH_MAX: usize = 256;
/// Between two stretches, others have this many times as long as the last one took.
const REST: u32 = 3;

/// See the module's documentation.
#[derive(Default)]
pub struct Withdrawal {
    next_at: Time,
}

impl Withdrawal {
    /// True if the next stretch may begin.
    pub fn is_due(&self, now: Time) -> bool {
        now >= self.next_at
    }

    /// Time until the next stretch may begin.
    pub fn rest(&self, now: Time) -> Span {
        self.next_at.since(now.min(self.next_at))
    }

    /// A stretch has ended at `now` that `took` so long.
    pub fn ended(&mut self, now: Time, took: Duration) {
        self.next_at = now + Span::from(took * REST);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_have_three_times_as_long() {
        let at = |us| Time::ZERO + Span::from_micros(us);
        let mut w = Withdrawal::default();
        assert!(w.is_due(at(0)) && w.rest(at(5)) == Span::ZERO);
        w.ended(at(1000), Duration::from_micros(500));
        assert!(!w.is_due(at(2499)) && w.is_due(at(2500)));
        assert_eq!(w.rest(at(2000)), Span::from_micros(500));
    }
}
