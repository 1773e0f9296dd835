//! Cores that belong to nobody (QW-M14, Fig 1a and 1b; Ceph's two priorities, QW-M13): any core serves any queue, and only the
//! order differs.

use crate::policy::{Policy, wait_behind};
use crate::queue::{Kind, Queues};
use plimsoll_base::{Span, Time};

/// In which order requests are served.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    /// Share everything: one queue, as they came.
    Arrival,
    /// Partial sharing: a queue a tenant, whose threads get any core in turn.
    Turns,
    /// Two priorities: latency-critical ones as they came, then the others as they came.
    CriticalFirst,
}

/// See the module's documentation.
pub struct Share {
    order: Order,
    /// The queue that was served last.
    last: usize,
}

impl Share {
    /// In this order.
    pub fn new(order: Order) -> Share {
        Share { order, last: 0 }
    }
}

impl Policy for Share {
    fn name(&self) -> &'static str {
        match self.order {
            Order::Arrival => "share-everything",
            Order::Turns => "partial-sharing",
            Order::CriticalFirst => "two-priorities",
        }
    }

    fn next(&mut self, _now: Time, queues: &mut Queues) -> Option<usize> {
        let n = queues.len();
        let waiting = || (0..n).filter_map(|i| Some((i, queues.get(i).waiting().front()?.serial)));
        let chosen = match self.order {
            Order::Arrival => waiting().min_by_key(|&(_, serial)| serial),
            Order::Turns => waiting().min_by_key(|&(i, _)| (i + n - self.last - 1) % n),
            Order::CriticalFirst => waiting().min_by_key(|&(i, serial)| (!queues.get(i).is_critical(), serial)),
        };
        let (at, _) = chosen?;
        self.last = at;
        Some(at)
    }

    fn wait(&self, _now: Time, at: usize, queues: &Queues) -> Span {
        if queues.has_free_slot() {
            return Span::ZERO;
        }
        let mine = queues.get(at);
        let in_front = |other: &crate::queue::Queue| match self.order {
            Order::Arrival => true,
            Order::Turns => false,
            Order::CriticalFirst => other.is_critical() || matches!(mine.kind, Kind::BestEffort(_)),
        };
        let work = |q: &crate::queue::Queue| q.service.mean() * q.waiting().len() as u64;
        match self.order {
            Order::Turns => {
                let turns = queues.all().iter().filter(|q| !q.waiting().is_empty()).count().max(1) as u64;
                wait_behind(mine.waiting().len() as u64, queues.slots(), mine.service.mean()) * turns
            }
            _ => {
                let all: Span = queues.all().iter().filter(|q| in_front(q)).map(work).sum();
                (all + mine.service.mean()) / u64::from(queues.slots().max(1))
            }
        }
    }
}
