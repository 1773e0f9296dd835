//! A static partition (Fig 1c): each latency-critical queue has a fixed number of cores, best effort the rest.

use crate::policy::fair::Fair;
use crate::policy::{Policy, partition};
use crate::queue::Queues;
use plimsoll_base::{Span, TenantId, Time};

/// See the module's documentation.
pub struct Fixed {
    cores: Vec<(TenantId, u32)>,
    fair: Fair,
}

impl Fixed {
    /// The queue of each tenant named has so many cores, as far as there are; other latency-critical ones have one.
    pub fn new(cores: Vec<(TenantId, u32)>) -> Fixed {
        Fixed { cores, fair: Fair::default() }
    }
}

impl Policy for Fixed {
    fn name(&self) -> &'static str {
        "static"
    }

    fn queues_changed(&mut self, now: Time, queues: &mut Queues) {
        let critical: Vec<usize> = queues.critical().collect();
        for at in critical {
            let named = self.cores.iter().find(|(t, _)| queues.get(at).tenants.iter().any(|(id, _)| id == t));
            let wanted = named.map_or(1, |(_, n)| *n);
            let have = queues.get(at).cores();
            queues.set_cores(now, at, wanted.min(have + queues.unowned()));
        }
    }

    fn next(&mut self, _now: Time, queues: &mut Queues) -> Option<usize> {
        if let Some(at) = partition::critical_next(queues) {
            return Some(at);
        }
        let at = partition::rest_next(queues, &self.fair)?;
        self.fair.charge(at, queues, queues.get(at).weight());
        Some(at)
    }

    fn wait(&self, _now: Time, at: usize, queues: &Queues) -> Span {
        match queues.get(at).cores() {
            0 => partition::rest_wait(queues, at),
            cores => partition::own_wait(queues, at, cores),
        }
    }
}
