//! The clairvoyant minimum: a policy that knows every request's service time. It gives each queue, at every event, the least
//! number of cores with which all waiting requests begin in time. It is a schedule of the modelled device, not a measurement.
//!
//! QWin's numbers of cores are compared with it. All requests have the same time at a given instant here. So first in, first
//! out is exact: the k-th request waits for k/N rounds, after those in service. Every request of the queue is examined.

use crate::policy::Policy;
use crate::policy::partition::{self, Partition};
use crate::queue::Queues;
use plimsoll_base::{Span, Time};

/// See the module's documentation.
pub struct Clairvoyant {
    service: Vec<(Time, Span)>,
    partition: Partition,
}

/// The least number of requests in service with which `arrivals` (ascending), each taking `takes`, all end within `bound` of their
/// arrival, looked at from `now`. A request that is late already must begin at once.
pub fn least(now: Time, arrivals: impl Iterator<Item = Time>, bound: Span, takes: Span) -> u64 {
    let takes_ns = takes.as_nanos().max(1);
    let mut most = 0;
    for (k, arrived_at) in arrivals.enumerate() {
        let left = bound.saturating_sub(takes).saturating_sub(now.since(arrived_at)).as_nanos();
        // So many whole rounds can be waited for, the one that is being served counted: the k-th begins in round k / n + 1.
        let rounds = (left / takes_ns).max(1);
        most = most.max((k as u64 + 1).div_ceil(rounds));
    }
    most
}

impl Clairvoyant {
    /// Requests that begin at or after each time take so long, until the next one.
    pub fn new(service: Vec<(Time, Span)>) -> Clairvoyant {
        Clairvoyant { service, partition: Partition::default() }
    }

    fn takes(&self, now: Time) -> Span {
        self.service.iter().rev().find(|(from, _)| *from <= now).map_or(Span::ZERO, |s| s.1)
    }

    fn give(&self, now: Time, at: usize, queues: &mut Queues) {
        let q = queues.get(at);
        let Some(bound) = q.objectives().iter().map(|o| o.bound).min() else { return };
        let arrivals = q.waiting().iter().map(|w| w.arrived_at);
        let least = least(now, arrivals, bound, self.takes(now)).div_ceil(u64::from(queues.depth)) as u32;
        // What is in service stays there.
        let wanted = least.max(q.in_service.div_ceil(queues.depth)).max(u32::from(!q.is_unused()));
        let have = q.cores();
        queues.set_cores(now, at, wanted.min(have + queues.unowned()));
    }
}

impl Policy for Clairvoyant {
    fn name(&self) -> &'static str {
        "clairvoyant"
    }

    fn queues_changed(&mut self, now: Time, queues: &mut Queues) {
        let critical: Vec<usize> = queues.critical().collect();
        critical.into_iter().for_each(|at| self.give(now, at, queues));
    }

    fn next(&mut self, now: Time, queues: &mut Queues) -> Option<usize> {
        self.queues_changed(now, queues);
        self.partition.next(now, queues)
    }

    fn wait(&self, _now: Time, at: usize, queues: &Queues) -> Span {
        partition::wait(at, queues)
    }
}
