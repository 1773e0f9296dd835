//! Forecasts against what reads took, and what deadlines would have made of them. Nothing is refused meanwhile, so both errors are seen.

use serde::Serialize;

/// A read that was timed, with its forecast.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pair {
    /// The time that it took.
    pub took_ns: u64,
    /// The time that was forecast.
    pub forecast_ns: u64,
}

/// Errors of forecasts, in microseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Errors {
    /// Reads.
    pub reads: u64,
    /// Median of the reads' times.
    pub took_p50_us: u64,
    /// Their 95th percentile.
    pub took_p95_us: u64,
    /// Their 99th percentile.
    pub took_p99_us: u64,
    /// Median of the forecasts' errors.
    pub error_p50_us: u64,
    /// Their 90th percentile.
    pub error_p90_us: u64,
    /// Their 99th percentile.
    pub error_p99_us: u64,
}

/// The outcome of reads under a deadline.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct AtDeadline {
    /// The deadline.
    pub deadline_us: u64,
    /// Reads that would have been refused.
    pub refused: u64,
    /// Of them, those that were in time: needless refusals.
    pub needless: u64,
    /// Reads that would have been accepted, and were late: misses.
    pub missed: u64,
    /// Reads that were late, however judged.
    pub late: u64,
    /// All.
    pub reads: u64,
}

impl AtDeadline {
    /// Needless refusals of those in time, in percent.
    pub fn needless_percent(&self) -> f64 {
        100.0 * self.needless as f64 / (self.reads - self.late).max(1) as f64
    }

    /// Misses of those accepted, in percent.
    pub fn missed_percent(&self) -> f64 {
        100.0 * self.missed as f64 / (self.reads - self.refused).max(1) as f64
    }
}

fn quantile(sorted: &[u64], percent: usize) -> u64 {
    sorted.get((sorted.len() * percent / 100).min(sorted.len().saturating_sub(1))).copied().unwrap_or(0)
}

/// Percentiles of what reads took, in nanoseconds.
pub fn took_ns(pairs: &[Pair], percents: &[usize]) -> Vec<u64> {
    let mut took: Vec<u64> = pairs.iter().map(|p| p.took_ns).collect();
    took.sort_unstable();
    percents.iter().map(|p| quantile(&took, *p)).collect()
}

/// Returns the errors of forecasts.
pub fn errors(pairs: &[Pair]) -> Errors {
    let took = took_ns(pairs, &[50, 95, 99]);
    let mut off: Vec<u64> = pairs.iter().map(|p| p.took_ns.abs_diff(p.forecast_ns)).collect();
    off.sort_unstable();
    Errors {
        reads: pairs.len() as u64,
        took_p50_us: took[0] / 1000,
        took_p95_us: took[1] / 1000,
        took_p99_us: took[2] / 1000,
        error_p50_us: quantile(&off, 50) / 1000,
        error_p90_us: quantile(&off, 90) / 1000,
        error_p99_us: quantile(&off, 99) / 1000,
    }
}

/// Returns the outcome under a deadline; each read comes with whether it would have been refused.
pub fn at_deadline(deadline_ns: u64, reads: impl Iterator<Item = (Pair, bool)>) -> AtDeadline {
    let mut at = AtDeadline { deadline_us: deadline_ns / 1000, refused: 0, needless: 0, missed: 0, late: 0, reads: 0 };
    for (pair, is_refused) in reads {
        let is_late = pair.took_ns > deadline_ns;
        at.reads += 1;
        at.late += u64::from(is_late);
        at.refused += u64::from(is_refused);
        at.needless += u64::from(is_refused && !is_late);
        at.missed += u64::from(!is_refused && is_late);
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_errors_are_counted_by_what_they_are_of() {
        let pair = |took_ns| Pair { took_ns, forecast_ns: 1000 };
        let reads = [(pair(10), false), (pair(20), true), (pair(200), false), (pair(300), true)];
        let at = at_deadline(100, reads.into_iter());
        assert_eq!((at.reads, at.late, at.refused, at.needless, at.missed), (4, 2, 2, 1, 1));
        assert_eq!((at.needless_percent(), at.missed_percent()), (50.0, 50.0));
        assert_eq!(at_deadline(1, [].into_iter()).missed_percent(), 0.0);
    }

    #[test]
    fn errors_are_percentiles() {
        let pairs: Vec<Pair> = (1..=100).map(|i| Pair { took_ns: i * 1000, forecast_ns: 50_000 }).collect();
        let e = errors(&pairs);
        assert_eq!((e.reads, e.took_p50_us, e.took_p99_us, e.error_p50_us), (100, 51, 100, 25));
        assert_eq!(errors(&[]).reads, 0);
    }
}
