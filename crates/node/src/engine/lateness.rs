//! Distribution of reads' ends relative to their forecasts at acceptance: later or earlier.
//!
//! A bucket is a quarter of an octave, from 1 us to 134 s, on either side of zero. So quantiles are within 25 % of the measured values, with
//! 432 counters for two minutes.

use plimsoll_base::{Span, Time};

/// Buckets on either side of zero.
const SIDE: usize = 108;
const PERIOD: Span = Span::from_secs(60);

/// The last whole minute and the running one.
#[derive(Clone, Debug)]
pub struct Lateness {
    last: Counted,
    running: Counted,
    /// Number of the running minute.
    number: u64,
}

/// Counts from the earliest bucket to the latest.
#[derive(Clone, Debug)]
struct Counted {
    buckets: Box<[u32]>,
    count: u64,
}

impl Counted {
    fn new() -> Counted {
        Counted { buckets: vec![0; 2 * SIDE].into_boxed_slice(), count: 0 }
    }

    fn clear(&mut self) {
        self.buckets.fill(0);
        self.count = 0;
    }
}

/// Bucket of a distance from zero.
fn side(us: u64) -> usize {
    let us = us.max(1);
    let octave = us.ilog2();
    let quarter = if octave >= 2 { us >> (octave - 2) & 3 } else { (us << (2 - octave)) & 3 };
    (4 * octave as usize + quarter as usize).min(SIDE - 1)
}

/// Far end of a bucket of one side, in microseconds.
fn side_end(index: usize) -> i64 {
    let (octave, quarter) = (index / 4, index % 4);
    (((5 + quarter as u64) << octave) / 4) as i64
}

/// Measured values in microseconds, ascending, with their counts. Negative: earlier than forecast.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Deviations(Vec<(i64, u64)>);

impl Default for Lateness {
    fn default() -> Lateness {
        Lateness { last: Counted::new(), running: Counted::new(), number: 0 }
    }
}

impl Lateness {
    /// A read that was expected at `expected_at` has ended.
    #[inline]
    pub fn ended(&mut self, now: Time, expected_at: Time) {
        self.turn(now);
        let late = now.since(expected_at).as_micros();
        let at = match late {
            0 if expected_at > now => SIDE - 1 - side(expected_at.since(now).as_micros()),
            _ => SIDE + side(late),
        };
        self.running.buckets[at] = self.running.buckets[at].saturating_add(1);
        self.running.count += 1;
    }

    /// Moves on to `now`'s minute.
    pub fn turn(&mut self, now: Time) {
        let number = now.as_nanos() / PERIOD.as_nanos();
        if number == self.number {
            return;
        }
        std::mem::swap(&mut self.last, &mut self.running);
        if number != self.number + 1 {
            self.last.clear(); // a whole minute without a read lies between
        }
        self.running.clear();
        self.number = number;
    }

    /// The larger sample of the two minutes.
    pub fn deviations(&self) -> Deviations {
        let judged = if self.last.count > self.running.count { &self.last } else { &self.running };
        let value = |at: usize| if at >= SIDE { side_end(at - SIDE) } else { -side_end(SIDE - 1 - at) };
        let some = judged.buckets.iter().enumerate().filter(|(_, n)| **n > 0);
        Deviations(some.map(|(at, n)| (value(at), u64::from(*n))).collect())
    }
}

impl Deviations {
    /// Adds another export's.
    pub fn add(&mut self, other: &Deviations) {
        self.0.extend_from_slice(&other.0);
        self.0.sort_unstable();
    }

    /// Number of reads.
    pub fn count(&self) -> u64 {
        self.0.iter().map(|(_, n)| n).sum()
    }

    /// A percentile in microseconds; 0 without reads.
    pub fn percentile(&self, percent: f64) -> i64 {
        let rank = (self.count() as f64 * percent / 100.0).ceil().max(1.0) as u64;
        let mut so_far = 0;
        let reached = self.0.iter().find(|(_, n)| {
            so_far += n;
            so_far >= rank
        });
        reached.map_or(0, |(us, _)| *us)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Span {
        Span::from_millis(ms)
    }

    #[test]
    fn buckets_join_and_hold_their_values() {
        for us in [1, 2, 3, 4, 5, 7, 8, 100, 1000, 12_345, 1 << 26] {
            let (end, next) = (side_end(side(us)) as f64, side_end(side(us) + 1) as f64);
            assert!(end >= us as f64 && end <= us as f64 * 1.25 + 1.0 && next > end - 1.0, "{us} us: {end}, {next}");
        }
        assert_eq!((side(0), side(u64::MAX)), (0, SIDE - 1));
    }

    #[test]
    fn quantiles_go_from_early_to_late() {
        let start = Time::ZERO + ms(1000);
        let mut l = Lateness::default();
        (0..90).for_each(|_| l.ended(start, start + ms(8)));
        (0..10).for_each(|_| l.ended(start + ms(16), start));
        let d = l.deviations();
        assert_eq!((d.count(), d.percentile(50.0), d.percentile(99.0)), (100, -8_192, 16_384));
        let mut both = d.clone();
        both.add(&d);
        assert_eq!((both.count(), both.percentile(90.0), both.percentile(91.0)), (200, -8_192, 16_384));
        assert_eq!(Deviations::default().percentile(50.0), 0);
    }

    #[test]
    fn minutes_turn() {
        let at = |s| Time::ZERO + Span::from_secs(s);
        let mut l = Lateness::default();
        (0..3).for_each(|_| l.ended(at(59), at(58)));
        l.ended(at(61), at(61));
        assert_eq!(l.deviations().count(), 3, "the last whole minute has more");
        l.turn(at(200));
        assert_eq!(l.deviations().count(), 0);
    }
}
