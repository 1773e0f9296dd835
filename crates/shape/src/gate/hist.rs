//! A latency histogram of fixed size, for shared memory: four buckets an octave from 1 µs to over an hour.

use bytemuck::{Pod, Zeroable};
use plimsoll_base::Span;

/// Buckets: bucket 0 is below 1 µs, then four an octave.
pub const BUCKETS: usize = 128;

/// Counts by latency; each bucket is at most 25 % wide.
#[derive(Clone, Copy, Pod, Zeroable, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct LogHist {
    counts: [u32; BUCKETS],
}

impl Default for LogHist {
    fn default() -> LogHist {
        LogHist { counts: [0; BUCKETS] }
    }
}

fn bucket(span: Span) -> usize {
    let us = span.as_micros();
    if us == 0 {
        return 0;
    }
    let octave = us.ilog2();
    // The two bits below the leading one; below 4 µs there are fewer values than buckets.
    let quarter = if octave >= 2 { (us >> (octave - 2)) & 3 } else { (us << (2 - octave)) & 3 };
    (1 + octave as usize * 4 + quarter as usize).min(BUCKETS - 1)
}

/// The first latency above bucket `i`.
fn upper(i: usize) -> Span {
    if i == 0 {
        return Span::from_micros(1);
    }
    let (octave, quarter) = ((i - 1) / 4, (i - 1) as u64 % 4);
    Span::from_nanos(((5 + quarter) * 1000) << octave >> 2)
}

impl LogHist {
    /// Counts one.
    pub fn record(&mut self, span: Span) {
        let c = &mut self.counts[bucket(span)];
        *c = c.wrapping_add(1);
    }

    /// All that were counted.
    pub fn count(&self) -> u64 {
        self.counts.iter().map(|&c| u64::from(c)).sum()
    }

    /// The upper bound of the bucket that holds the nearest rank of `per_mille`; zero if nothing was counted.
    pub fn quantile(&self, per_mille: u64) -> Span {
        let total = self.count();
        let rank = (total * per_mille).div_ceil(1000).max(1);
        let mut seen = 0;
        for (i, &c) in self.counts.iter().enumerate() {
            seen += u64::from(c);
            if seen >= rank {
                return upper(i);
            }
        }
        Span::ZERO
    }

    /// Returns the counts since `earlier`, a copy of this histogram of some time ago.
    #[must_use]
    pub fn since(&self, earlier: &LogHist) -> LogHist {
        let mut out = *self;
        out.counts.iter_mut().zip(&earlier.counts).for_each(|(c, e)| *c = c.wrapping_sub(*e));
        out
    }

    /// Adds another's counts.
    pub fn merge(&mut self, other: &LogHist) {
        self.counts.iter_mut().zip(&other.counts).for_each(|(c, o)| *c = c.wrapping_add(*o));
    }

    /// Upper bounds and counts of buckets that aren't empty, lowest first.
    pub fn buckets(&self) -> impl Iterator<Item = (Span, u32)> + '_ {
        self.counts.iter().enumerate().filter(|(_, c)| **c > 0).map(|(i, &c)| (upper(i), c))
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        self.counts = [0; BUCKETS];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_holds_what_is_below_its_bound_and_not_below_the_one_before() {
        for us in (1..5000).chain([1 << 20, (1 << 20) + 12345, 3_600_000_000]) {
            let b = bucket(Span::from_micros(us));
            assert!(Span::from_micros(us) < upper(b), "{us} us in bucket {b}");
            assert!(us < 4 || Span::from_micros(us) >= upper(b - 1), "{us} us in bucket {b}");
        }
    }

    #[test]
    fn quantiles_are_within_a_quarter() {
        let mut h = LogHist::default();
        (1..=1000).for_each(|i| h.record(Span::from_micros(i * 10)));
        for (pm, exact) in [(500, 5000), (990, 9900), (1000, 10_000)] {
            let got = h.quantile(pm).as_micros();
            assert!((exact..=exact * 5 / 4 + 1).contains(&got), "{pm}: {got}");
        }
        assert_eq!(LogHist::default().quantile(990), Span::ZERO);
    }
}
