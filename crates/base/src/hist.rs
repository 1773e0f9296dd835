//! Latency histograms: bounded memory, bounded relative error, mergeable.

use crate::time::Span;

/// A latency histogram from 1 ns to about 18 hours with at most 0.8 % relative error, in about 40 KiB.
///
/// Buckets cover the whole tail, so a percentile never silently ends at the last bucket; values beyond the
/// range are counted at its end, and [`LatencyHistogram::max`] is exact for every one.
#[derive(Clone)]
pub struct LatencyHistogram {
    inner: hdrhistogram::Histogram<u64>,
    sum_ns: u128,
    max_ns: u64,
}

const HIGHEST_NS: u64 = 1 << 46;

impl Default for LatencyHistogram {
    fn default() -> LatencyHistogram {
        LatencyHistogram::new()
    }
}

impl LatencyHistogram {
    /// An empty histogram.
    pub fn new() -> LatencyHistogram {
        let inner = hdrhistogram::Histogram::new_with_bounds(1, HIGHEST_NS, 2).expect("constant bounds are valid");
        LatencyHistogram { inner, sum_ns: 0, max_ns: 0 }
    }

    /// Counts one value. No allocation; a few nanoseconds.
    pub fn record(&mut self, value: Span) {
        self.inner.saturating_record(value.as_nanos());
        self.sum_ns += u128::from(value.as_nanos());
        self.max_ns = self.max_ns.max(value.as_nanos());
    }

    /// How many values were recorded.
    pub fn count(&self) -> u64 {
        self.inner.len()
    }

    /// The exact mean; zero when empty.
    pub fn mean(&self) -> Span {
        if self.count() == 0 { Span::ZERO } else { Span::from_nanos((self.sum_ns / u128::from(self.count())) as u64) }
    }

    /// The exact sum of all values.
    pub fn sum(&self) -> Span {
        Span::from_nanos(u64::try_from(self.sum_ns).unwrap_or(u64::MAX))
    }

    /// The exact largest value; zero when empty.
    pub fn max(&self) -> Span {
        Span::from_nanos(self.max_ns)
    }

    /// The smallest recorded value `v` such that at least `percent` % of the values are `<= v`, up to the bucket's
    /// width (0.8 %); zero when empty. `percent` is clamped to 0..=100.
    pub fn percentile(&self, percent: f64) -> Span {
        if self.count() == 0 {
            return Span::ZERO;
        }
        Span::from_nanos(self.inner.value_at_percentile(percent.clamp(0.0, 100.0)).min(self.max_ns))
    }

    /// How many values were at most `bound` (up to the bucket's width).
    pub fn count_at_most(&self, bound: Span) -> u64 {
        self.inner.count_between(0, bound.as_nanos().min(HIGHEST_NS))
    }

    /// Adds all of `other`'s values.
    pub fn merge(&mut self, other: &LatencyHistogram) {
        self.inner.add(&other.inner).expect("all histograms share their bounds");
        self.sum_ns += other.sum_ns;
        self.max_ns = self.max_ns.max(other.max_ns);
    }

    /// Forgets everything; keeps the memory.
    pub fn clear(&mut self) {
        self.inner.reset();
        self.sum_ns = 0;
        self.max_ns = 0;
    }

    /// The recorded distribution as `(upper value, count)` pairs in ascending order, empty buckets left out.
    pub fn buckets(&self) -> impl Iterator<Item = (Span, u64)> + '_ {
        self.inner.iter_recorded().map(|v| (Span::from_nanos(v.value_iterated_to()), v.count_at_value()))
    }
}

impl std::fmt::Debug for LatencyHistogram {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let p = |q| self.percentile(q);
        write!(
            f,
            "n={} mean={} p50={} p99={} p99.9={} max={}",
            self.count(),
            self.mean(),
            p(50.0),
            p(99.0),
            p(99.9),
            self.max()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    #[test]
    fn percentiles_agree_with_sorting() {
        let mut rng = Rng::new(3, "hist");
        let mut h = LatencyHistogram::new();
        let mut all: Vec<u64> = (0..50_000).map(|_| (rng.exp1() * 2e6) as u64 + 1).collect();
        for &v in &all {
            h.record(Span::from_nanos(v));
        }
        all.sort_unstable();
        for q in [1.0, 50.0, 90.0, 99.0, 99.9, 100.0] {
            let exact = all[((all.len() as f64 * q / 100.0).ceil() as usize).max(1) - 1] as f64;
            let ours = h.percentile(q).as_nanos() as f64;
            assert!((ours / exact - 1.0).abs() < 0.008, "p{q}: {ours} against {exact}");
        }
        assert_eq!(h.max().as_nanos(), *all.last().unwrap());
        assert_eq!(h.mean().as_nanos(), (all.iter().map(|&v| u128::from(v)).sum::<u128>() / all.len() as u128) as u64);
    }

    #[test]
    fn beyond_the_range_is_counted_not_lost() {
        let mut h = LatencyHistogram::new();
        h.record(Span::from_secs(1_000_000));
        assert_eq!((h.count(), h.max()), (1, Span::from_secs(1_000_000)));
        let mut sum = LatencyHistogram::new();
        sum.record(Span::from_millis(1));
        sum.merge(&h);
        assert_eq!((sum.count(), sum.max()), (2, Span::from_secs(1_000_000)));
        assert_eq!(sum.count_at_most(Span::from_millis(2)), 1);
    }
}
