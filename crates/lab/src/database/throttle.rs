//! PSLO's control without the gate (AppleS §5.3's comparison): who has no objective is slowed until those who have one are served in time.

use plimsoll_base::{LatencyHistogram, Span};

/// Samples that a decision rests on.
const SAMPLES_MIN: u64 = 1000;
/// Below this part of the objective, in thousandths, the others get more.
const SLACK_MILLI: u64 = 800;
/// A step down: at most halved, in proportion to the miss.
const DOWN_MIN_MILLI: u64 = 500;
/// A step up.
const UP_MILLI: u64 = 1050;

/// The least time between two requests of a throttled user.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Throttle {
    objective: Span,
    gap: Span,
}

impl Throttle {
    /// For an objective on p99.9; nobody is slowed at first.
    pub fn new(objective: Span) -> Throttle {
        Throttle { objective, gap: Span::ZERO }
    }

    /// The least time from one request of a throttled user to its next.
    pub fn gap(&self) -> Span {
        self.gap
    }

    /// Takes a window in: times of those with the objective, and what a throttled user's requests are apart now. True if it was long enough.
    pub fn window(&mut self, times: &LatencyHistogram, apart: Span) -> bool {
        if times.count() < SAMPLES_MIN {
            return false;
        }
        let ratio_milli = times.percentile(99.9).as_nanos() * 1000 / self.objective.as_nanos().max(1);
        let base = self.gap.max(Span::from_nanos(1)).as_nanos();
        let gap = match ratio_milli {
            // From no throttle at all one begins at the pace that is there.
            r if r > 1000 => base.max(apart.as_nanos() / 2) * 1000 / (1_000_000 / r).max(DOWN_MIN_MILLI),
            r if r < SLACK_MILLI => base * 1000 / UP_MILLI,
            _ => base,
        };
        self.gap = Span::from_nanos(gap);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tail that grows with the others' rate.
    #[test]
    fn the_others_are_slowed_until_the_tail_fits_and_no_further() {
        let objective = Span::from_millis(60);
        let mut t = Throttle::new(objective);
        let mut apart = Span::from_millis(5);
        let mut tails = Vec::new();
        for _ in 0..400 {
            apart = apart.max(Span::from_millis(5)).max(t.gap());
            let tail = Span::from_nanos(objective.as_nanos() * 40_000_000 / apart.as_nanos());
            let mut times = LatencyHistogram::new();
            (0..2000).for_each(|_| times.record(tail));
            assert!(t.window(&times, apart));
            tails.push(tail);
            apart = Span::from_millis(5);
        }
        let late = &tails[200..];
        assert!(late.iter().filter(|t| **t <= objective).count() >= 170, "{late:?}");
        assert!(late.iter().all(|t| *t > Span::from_millis(30)), "no slower than needed: {late:?}");
        assert!(!t.window(&LatencyHistogram::new(), apart), "few samples say nothing");
    }
}
