//! Limits on clients that send a payload slowly, or take their answers slowly.

use super::inbox::Transfer;
use super::lag::Pace;
use plimsoll_base::Span;

/// See the module's documentation.
#[derive(Clone, Copy, Debug)]
pub struct SlowLimits {
    /// Time without a byte of a payload, and time after which the rate is judged.
    pub silent: Span,
    /// Least bytes a second.
    pub rate: u64,
    /// Time for a whole payload that takes no longer at the rate.
    pub whole: Span,
}

impl SlowLimits {
    /// True if a payload is too slow, for one of several reasons.
    pub fn is_too_slow(&self, t: &Transfer) -> bool {
        t.silent > self.silent || t.took > self.longest(t) || self.is_below_rate(t)
    }

    /// A payload has at least the time that it takes at the slowest rate.
    fn longest(&self, t: &Transfer) -> Span {
        let at_rate = Span::from_millis(t.whole.saturating_mul(1000) / self.rate.max(1));
        self.whole.max(self.silent + at_rate)
    }

    fn is_below_rate(&self, t: &Transfer) -> bool {
        let judged_ms = u128::from(t.took.saturating_sub(self.silent).as_micros() / 1000);
        u128::from(t.done) * 1000 < judged_ms * u128::from(self.rate)
    }

    /// The pace at which answers are to be taken, if others wait for what they hold.
    pub fn pace(&self) -> Pace {
        Pace { rate: self.rate, allowed: self.silent }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_has_the_time_that_it_takes_at_the_least_rate() {
        let s = Span::from_secs;
        let limits = SlowLimits { silent: s(30), rate: 64 << 10, whole: s(120) };
        let slow =
            |took, silent, done, whole| limits.is_too_slow(&Transfer { took: s(took), silent: s(silent), done, whole });
        assert!(!slow(30, 30, 0, 1 << 20) && slow(31, 31, 0, 1 << 20), "nothing for the time allowed");
        assert!(
            !slow(40, 1, 10 << 16, 1 << 20) && slow(40, 1, (10 << 16) - 1, 1 << 20),
            "the rate counts after that time"
        );
        assert!(!slow(120, 1, 100 << 16, 101 << 16) && slow(121, 1, 100 << 16, 90 << 16), "a small payload's end");
        let large = 1000 << 16;
        assert!(!slow(1030, 1, large, large) && slow(1031, 1, large, large), "a large payload's end");
    }
}
