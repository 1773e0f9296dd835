//! State of the layer for operators.

use crate::admission::Fit;
use crate::control::Missed;
use crate::demand::Bound;
use crate::queue::{Kind, Queue};
use crate::window::{CorePolicy, Windows};
use plimsoll_base::{Objective, Span, TenantId, Time};

/// The layer's state at one moment.
#[derive(Clone, Debug)]
pub struct CoresStatus {
    /// The policy's name.
    pub policy: &'static str,
    /// Number of cores.
    pub cores: u32,
    /// Requests in flight on one.
    pub depth: u32,
    /// Requests in service.
    pub busy: u32,
    /// Cores that no queue owns: best effort's.
    pub unowned: u32,
    /// Reads answered Busy as their own deadline had passed while they waited.
    pub revoked: u64,
    /// The bound on best effort's changes, if there is one.
    pub bound: Option<BoundStatus>,
    /// Each queue.
    pub queues: Vec<QueueStatus>,
}

/// The state of the bound on best effort's changes.
#[derive(Clone, Copy, Debug)]
pub struct BoundStatus {
    /// Bytes of writes that best effort may have in flight on average; `None` while nothing is held.
    pub in_flight_bytes: Option<u64>,
    /// True if the bound is at its lowest level; it is never lowered further.
    pub is_least: bool,
    /// Late requests that lowered it.
    pub cuts: u64,
}

/// One queue's state.
#[derive(Clone, Debug)]
pub struct QueueStatus {
    /// The tenants that share it.
    pub tenants: Vec<TenantId>,
    /// Its objectives; none of a best-effort queue.
    pub objectives: Vec<Objective>,
    /// A best-effort queue's weight.
    pub weight: u32,
    /// Requests that wait.
    pub waiting: usize,
    /// Requests in service.
    pub in_service: u32,
    /// Cores of its own now, and the most it had.
    pub cores: u32,
    /// See `cores`.
    pub cores_max: u32,
    /// Core time given so far.
    pub core_time: Span,
    /// Cores added and yielded so far.
    pub grown: u64,
    /// See `grown`.
    pub yielded: u64,
    /// Windows begun, temp windows looked at.
    pub windows: u64,
    /// See `windows`.
    pub temp_windows: u64,
    /// Windows in which a request was later than an objective.
    pub late_windows: u64,
    /// Its core policy, if it has windows.
    pub core_policy: Option<CorePolicy>,
    /// Changes of that.
    pub policy_changes: u64,
    /// Mean service time of requests below.
    pub service_mean: Span,
    /// Their tails: percentile in hundredths of a percent, and the time there.
    pub service_tails: Vec<(u16, Span)>,
    /// Predicted response time of the newest waiting request: its wait with the queue's present cores, and the service's tail.
    pub predicted_tail: Span,
    /// An objective that requests miss by what they take below alone: no number of cores keeps it.
    pub is_hopeless: bool,
    /// The same with what they take, as measured while best effort wasn't to blame.
    pub missed: Option<Missed>,
    /// Response times while best effort wasn't to blame: percentile in hundredths of a percent, and the time there.
    pub alone_tails: Vec<(u16, Span)>,
    /// The bound on best effort holds the oldest that waits, which came so long ago.
    pub held: Option<Span>,
    /// That bound follows from this queue's objectives.
    pub is_deciding: bool,
    /// The fit of its objectives beside the others' at the worst load that permits let in, by what was measured so far; `None` of a
    /// best-effort queue.
    pub fit: Option<Fit>,
    /// The same under the load that is expected ([`crate::admission::present`]).
    pub present: Option<Fit>,
    /// The tail measured at the last poll.
    pub measured_tail: Span,
    /// Bytes of requests that were done.
    pub done_bytes: u64,
}

impl QueueStatus {
    pub(crate) fn of(now: Time, q: &Queue, windows: Option<&Windows>, depth: u32) -> QueueStatus {
        let windows = windows.filter(|_| q.is_critical());
        let count = |f: fn(&Windows) -> u64| windows.map_or(0, f);
        QueueStatus {
            tenants: q.tenants.iter().map(|(id, _)| *id).collect(),
            objectives: q.objectives().to_vec(),
            weight: match q.kind {
                Kind::BestEffort(weight) => weight,
                Kind::LatencyCritical(_) => 0,
            },
            waiting: q.waiting().len(),
            in_service: q.in_service,
            cores: q.cores(),
            cores_max: q.cores_max,
            core_time: q.core_time(now),
            grown: q.grown,
            yielded: q.yielded,
            windows: count(|w| w.number),
            temp_windows: count(|w| w.temp),
            late_windows: q.late_windows,
            core_policy: windows.map(|w| w.policy),
            policy_changes: count(|w| w.policy_changes),
            service_mean: q.service.mean(),
            service_tails: q.service.tails().to_vec(),
            predicted_tail: predicted(q, depth),
            is_hopeless: is_hopeless(q),
            missed: q.missed,
            alone_tails: q.measured_alone().map_or(Vec::new(), |a| a.tails().to_vec()),
            held: None,
            is_deciding: false,
            fit: None,
            present: None,
            measured_tail: windows.map_or(Span::ZERO, |w| w.measured_tail),
            done_bytes: q.done_bytes,
        }
    }
}

/// Predicts the response time of the newest waiting request: its wait with the queue's present cores, and the service's tail
/// after that.
fn predicted(q: &Queue, depth: u32) -> Span {
    let slots = u64::from(q.cores().max(1)) * u64::from(depth);
    let wait = q.service.mean().scale(q.waiting().len() as u64, slots);
    let tail = q.service.tails().iter().map(|t| t.1).max().unwrap_or(Span::ZERO);
    wait + tail
}

fn is_hopeless(q: &Queue) -> bool {
    let bounds = q.objectives().iter().zip(q.service.tails());
    q.service.count() > 0 && bounds.into_iter().any(|(o, &(_, tail))| Bound { within: o.bound, tail }.is_hopeless())
}
