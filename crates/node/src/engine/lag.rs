//! Lag of a client that takes its answers slowly.

use plimsoll_base::{Span, Time};

/// Bounds on how slowly a client may take its answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pace {
    /// Bytes a second.
    pub rate: u64,
    /// Lag behind that rate up to which a client is in time.
    pub allowed: Span,
}

/// Tracks how far a client is behind its [`Pace`], from its first unsent byte until nothing is unsent.
///
/// The lag grows with the time, and each byte taken lowers it by what one byte takes at the rate. It is never below zero,
/// because a client that was fast for an hour could otherwise pause for days. It is at most twice what is allowed when
/// bytes are taken, so that a client that paused while nobody waited can catch up.
#[derive(Clone, Copy, Debug)]
pub struct Lag {
    pace: Pace,
    behind: Span,
    /// Time of `behind`.
    at: Time,
}

impl Lag {
    /// Returns a lag of zero.
    pub fn new(pace: Pace) -> Lag {
        Lag { pace, behind: Span::ZERO, at: Time::ZERO }
    }

    /// Begins with nothing unsent before.
    pub fn begin(&mut self, now: Time) {
        (self.behind, self.at) = (Span::ZERO, now);
    }

    /// Lowers the lag by `bytes` that the client has taken.
    pub fn took(&mut self, now: Time, bytes: usize) {
        let ns = bytes as u128 * 1_000_000_000 / u128::from(self.pace.rate.max(1));
        let most = self.pace.allowed + self.pace.allowed;
        let worth = Span::from_nanos(ns.min(u128::from(most.as_nanos())) as u64);
        self.behind = self.behind(now).min(most).saturating_sub(worth);
        self.at = now;
    }

    /// Returns the lag at `now`.
    pub fn behind(&self, now: Time) -> Span {
        self.behind + now.since(self.at)
    }

    /// True if the client is too slow.
    pub fn is_too_long(&self, now: Time) -> bool {
        self.behind(now) > self.pace.allowed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PACE: Pace = Pace { rate: 64 << 10, allowed: Span::from_secs(30) };

    fn at(s: u64) -> Time {
        Time::ZERO + Span::from_secs(s)
    }

    /// Seconds until a client is too slow that takes `bytes` every `every` seconds; `None` if an hour doesn't show it.
    fn too_slow_after(lag: &mut Lag, from: u64, every: u64, bytes: usize) -> Option<u64> {
        (1..3600).find(|s| {
            let now = at(from + s);
            if s % every == 0 {
                lag.took(now, bytes);
            }
            lag.is_too_long(now)
        })
    }

    #[test]
    fn the_rate_is_an_average_over_all_that_is_unsent() {
        let after = |every, bytes| {
            let mut lag = Lag::new(PACE);
            lag.begin(at(100));
            too_slow_after(&mut lag, 100, every, bytes)
        };
        assert_eq!(after(1, 64 << 10), None, "at the rate");
        assert_eq!(after(29, 29 * (64 << 10)), None, "the same with pauses");
        assert_eq!(after(1, 32 << 10), Some(61), "at half of it");
        assert_eq!(after(45, 1 << 20), Some(31), "nothing for the time allowed");
        assert_eq!(after(20, 1 << 20), Some(79), "a mebibyte is worth 16 s: behind by 4 s more after each");
    }

    #[test]
    fn no_credit_is_kept_and_no_endless_debt() {
        let mut lag = Lag::new(PACE);
        lag.begin(at(0));
        (1..1000).for_each(|s| lag.took(at(s), 1 << 30));
        assert_eq!(too_slow_after(&mut lag, 999, 10_000, 0), Some(31), "fast before, silent now");
        let mut lag = Lag::new(PACE);
        lag.begin(at(0));
        // Silent for an hour; then it takes what 31 s are worth.
        lag.took(at(3600), 31 * (64 << 10));
        assert!(!lag.is_too_long(at(3600)));
        lag.took(at(3600), usize::MAX);
        assert_eq!(lag.behind(at(3600)), Span::ZERO);
    }
}
