//! Compact copies of a pool's counters, for observers.
//!
//! A histogram has 40 KiB, however little it holds, and an export has eleven. A scrape of a node of many volumes would
//! hold them all at once; of each only the buckets that hold something are kept.

use crate::engine::lateness::Deviations;
use crate::engine::metrics::{ExportMetrics, SPARED_NAMES, SparedMetrics};
use crate::engine::recent::{Counts, Recent, Tally, Window, Within};
use plimsoll_base::{IoError, LatencyHistogram, Objective, Span, TenantId, Time, VolumeKey};

/// Counters of one tenant on one volume; [`crate::engine::metrics::ExportMetrics`] explains them.
#[derive(Clone, Debug)]
pub struct ExportView {
    /// The volume.
    pub key: VolumeKey,
    /// The tenant.
    pub tenant: TenantId,
    /// By layer, top first: time that requests spent there before they were passed on; summed.
    pub waited: Vec<(&'static str, Span)>,
    /// Requests in flight, by the layer or device that they, or their last parts, reached last.
    pub inside: Vec<(&'static str, usize)>,
    /// Arrival and place of the oldest of them.
    pub oldest: Option<(Time, &'static str)>,
    /// Present value of the tenant's deadline, if it sets itself.
    pub auto_deadline: Option<Span>,
    /// Wait of a small read that would arrive now, as the pool forecasts.
    pub next_read_wait: Span,
    /// Reads, writes, flushes, and all else.
    pub ops: [OpView; 4],
    /// Refused at once.
    pub busy_refused: u64,
    /// Given back later.
    pub busy_revoked: u64,
    /// Reads done in time.
    pub deadline_met: u64,
    /// Reads done too late, against the forecast.
    pub deadline_missed: u64,
    /// Done too late as was forecast: their clients wait.
    pub deadline_waited: u64,
    /// Reads that were spared a refusal.
    pub spared: SparedView,
    /// Outcomes of requests and promises in the last minute, hour and day.
    pub recent: [Tally; 3],
    /// The tenant's objectives, and how requests kept to them in the last minute, hour and day.
    pub objectives: Vec<(Objective, [Within; 3])>,
    /// By how much reads with a deadline ended later than forecast, or earlier.
    pub deviations: Deviations,
    /// By layer, top first, then the device: where requests' time went in the last whole minute and in the running one.
    pub waits: Vec<(&'static str, Span)>,
    /// From dispatch to completion.
    pub device: Summary,
    /// Errors of forecasts.
    pub forecast_error: Summary,
    /// Response times of the last whole minute or the running one, whichever has more.
    pub minute: Summary,
    /// Response times of the last whole second.
    pub second: Summary,
}

/// Reads of NVMe hosts that are served, however late, as their host was refused reads before.
#[derive(Clone, Debug, Default)]
pub struct SparedView {
    /// By rule.
    pub by_rule: [u64; SPARED_NAMES.len()],
    /// From the refusal to the read's return.
    pub returned: Summary,
    /// Response times of those done.
    pub response: Summary,
}

impl SparedView {
    fn of(m: &SparedMetrics) -> SparedView {
        let SparedMetrics { by_rule, returned, response } = m;
        SparedView { by_rule: *by_rule, returned: returned.into(), response: response.into() }
    }

    /// True before the first.
    pub fn is_empty(&self) -> bool {
        self.by_rule.iter().all(|n| *n == 0)
    }

    /// Adds another export's.
    pub fn add(&mut self, other: &SparedView) {
        self.by_rule.iter_mut().zip(other.by_rule).for_each(|(sum, n)| *sum += n);
        self.returned.add(&other.returned);
        self.response.add(&other.response);
    }
}

/// One operation's counters.
#[derive(Clone, Debug)]
pub struct OpView {
    /// Ended as asked.
    pub done: u64,
    /// Bytes of those.
    pub bytes: u64,
    /// Went wrong.
    pub failed: u64,
    /// Response times.
    pub response: Summary,
}

impl ExportView {
    /// A copy of what was counted; what isn't counted there is empty.
    pub fn of(key: VolumeKey, tenant: TenantId, m: &ExportMetrics) -> ExportView {
        ExportView {
            key,
            tenant,
            waited: Vec::new(),
            inside: Vec::new(),
            oldest: None,
            auto_deadline: None,
            next_read_wait: Span::ZERO,
            ops: m.ops.each_ref().map(|op| OpView {
                done: op.done,
                bytes: op.bytes,
                failed: op.failed,
                response: Summary::from(&op.response),
            }),
            busy_refused: m.busy_refused,
            busy_revoked: m.busy_revoked,
            deadline_met: m.deadline_met,
            deadline_missed: m.deadline_missed,
            deadline_waited: m.deadline_waited,
            spared: m.spared.as_deref().map(SparedView::of).unwrap_or_default(),
            recent: windows(&m.recent),
            objectives: m.objectives.iter().map(|(o, recent)| (*o, windows(recent))).collect(),
            deviations: m.lateness.deviations(),
            waits: Vec::new(),
            device: Summary::from(&m.device),
            forecast_error: Summary::from(&m.forecast_error),
            minute: Summary::from(m.minutes.judged()),
            second: Summary::from(&m.seconds.last),
        }
    }
}

fn windows<C: Counts>(recent: &Recent<C>) -> [C; 3] {
    Window::ALL.map(|w| recent.sum(w))
}

/// Minutes for which a failed request is remembered as a problem.
pub const FAILED_MINUTES: usize = 10;

/// An export's promises in the last minute: enough to see whether something is wrong.
#[derive(Clone, Debug)]
pub struct ExportPromise {
    /// The volume.
    pub key: VolumeKey,
    /// The tenant.
    pub tenant: TenantId,
    /// Outcomes of requests and promises.
    pub minute: Tally,
    /// The tenant's objectives, and how requests kept to them.
    pub objectives: Vec<(Objective, Within)>,
    /// Requests that failed below the node in the last [`FAILED_MINUTES`], and why the last one did.
    pub failed: Option<(u64, IoError)>,
}

impl ExportPromise {
    /// Of what was counted, as of its last turn.
    pub fn of(key: VolumeKey, tenant: TenantId, m: &ExportMetrics) -> ExportPromise {
        let failed = m.recent.sum_of_minutes(FAILED_MINUTES).failed;
        ExportPromise {
            key,
            tenant,
            minute: m.recent.sum(Window::Minute),
            objectives: m.objectives.iter().map(|(o, recent)| (*o, recent.sum(Window::Minute))).collect(),
            failed: m.last_failure.filter(|_| failed > 0).map(|why| (failed, why)),
        }
    }

    /// Returns whether there was nothing.
    pub fn is_empty(&self) -> bool {
        self.minute == Tally::default() && self.failed.is_none()
    }
}

/// The last minute by seconds, the last hour by minutes, and the last day by ten minutes, the running ones last.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// Counters, and the 99th percentile of response times.
    pub seconds: Vec<(Tally, Span)>,
    /// The same.
    pub minutes: Vec<(Tally, Span)>,
    /// Counters, and the 99th percentile of the worst minute.
    pub ten_minutes: Vec<(Tally, Span)>,
}

impl History {
    /// Of one export, as of its last turn.
    pub fn of(m: &ExportMetrics) -> History {
        History {
            seconds: m.recent.seconds().zip(m.seconds.tails()).collect(),
            minutes: m.recent.minutes().zip(m.minutes.tails()).collect(),
            ten_minutes: m.recent.ten_minutes().zip(m.day_tails()).collect(),
        }
    }

    /// Adds another export's. The percentile becomes the larger one.
    pub fn add(&mut self, other: &History) {
        let History { seconds, minutes, ten_minutes } = self;
        for (mine, theirs) in [(seconds, &other.seconds), (minutes, &other.minutes), (ten_minutes, &other.ten_minutes)]
        {
            // A pool without requests of theirs has none.
            mine.resize(mine.len().max(theirs.len()), Default::default());
            for ((tally, tail), (t, p99)) in mine.iter_mut().zip(theirs) {
                tally.add(t);
                *tail = (*tail).max(*p99);
            }
        }
    }
}

/// A histogram's buckets that hold something.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// Upper value and count, ascending.
    buckets: Vec<(Span, u64)>,
    count: u64,
    sum: Span,
    max: Span,
}

impl From<&LatencyHistogram> for Summary {
    fn from(h: &LatencyHistogram) -> Summary {
        Summary { buckets: h.buckets().collect(), count: h.count(), sum: h.sum(), max: h.max() }
    }
}

impl Summary {
    /// Returns the number of values.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Their exact sum.
    pub fn sum(&self) -> Span {
        self.sum
    }

    /// The exact largest; zero when empty.
    pub fn max(&self) -> Span {
        self.max
    }

    /// Upper values and counts, ascending.
    pub fn buckets(&self) -> &[(Span, u64)] {
        &self.buckets
    }

    /// As [`LatencyHistogram::percentile`], for `percent` above 0.
    pub fn percentile(&self, percent: f64) -> Span {
        let rank = (self.count as f64 * percent.clamp(0.0, 100.0) / 100.0).ceil().max(1.0) as u64;
        let mut so_far = 0;
        let reached = self.buckets.iter().find(|(_, n)| {
            so_far += n;
            so_far >= rank
        });
        reached.map_or(self.max, |(upper, _)| (*upper).min(self.max))
    }

    /// Adds all of `other`'s values.
    pub fn add(&mut self, other: &Summary) {
        self.count += other.count;
        self.sum += other.sum;
        self.max = self.max.max(other.max);
        self.buckets.extend_from_slice(&other.buckets);
        self.buckets.sort_unstable_by_key(|(upper, _)| *upper);
        self.buckets.dedup_by(|from, into| {
            let same = from.0 == into.0;
            into.1 += if same { from.1 } else { 0 };
            same
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_base::Rng;

    #[test]
    fn a_sum_of_summaries_is_the_summary_of_the_sum() {
        let mut rng = Rng::new(5, "summary");
        let mut histogram = |n: u32| {
            let mut h = LatencyHistogram::new();
            (0..n).for_each(|_| h.record(Span::from_nanos((rng.exp1() * 1e6) as u64 + 1)));
            h
        };
        let (mut a, b) = (histogram(5000), histogram(300));
        let mut sum = Summary::from(&a);
        sum.add(&Summary::from(&b));
        sum.add(&Summary::default());
        a.merge(&b);
        assert_eq!(sum.buckets(), a.buckets().collect::<Vec<_>>());
        assert_eq!((sum.count(), sum.sum(), sum.max()), (a.count(), a.sum(), a.max()));
        for percent in [1.0, 50.0, 90.0, 99.0, 99.9, 100.0] {
            assert_eq!(sum.percentile(percent), a.percentile(percent), "p{percent}");
        }
        assert_eq!(Summary::default().percentile(50.0), Span::ZERO);
    }
}
