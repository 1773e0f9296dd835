//! Shenango's rule, as QWin §5 puts it (QW-M13). A queue with a request that is in it at two looks in a row gets one core more.
//! A queue that is empty at a look gives all cores back, except the one that it needs to be served at all.

use crate::policy::Policy;
use crate::policy::partition::{self, Partition};
use crate::queue::Queues;
use plimsoll_base::{Span, Time};

/// See the module's documentation.
pub struct Shenango {
    interval: Span,
    due: Time,
    /// By queue: the request that waited longest at the last look.
    seen: Vec<Option<u64>>,
    partition: Partition,
}

impl Shenango {
    /// Looks every `interval`.
    pub fn new(interval: Span) -> Shenango {
        Shenango { interval, due: Time::NEVER, seen: Vec::new(), partition: Partition::default() }
    }

    fn look(&mut self, now: Time, at: usize, queues: &mut Queues) {
        let q = queues.get(at);
        let first = q.waiting().front().map(|w| w.serial);
        let cores = q.cores();
        // Queues are in order of arrival: if any request was there before, the first one was.
        let stays = first.is_some() && self.seen[at].is_some_and(|last| first.is_some_and(|f| f <= last));
        if first.is_none() {
            queues.set_cores(now, at, cores.min(u32::from(!q.is_unused())));
        } else if stays {
            queues.set_cores(now, at, cores + queues.unowned().min(1));
        }
        self.seen[at] = queues.get(at).waiting().back().map(|w| w.serial);
    }
}

impl Policy for Shenango {
    fn name(&self) -> &'static str {
        "shenango"
    }

    fn queues_changed(&mut self, now: Time, queues: &mut Queues) {
        self.seen.resize(queues.len(), None);
        let critical: Vec<usize> = queues.critical().collect();
        for at in critical {
            match (queues.get(at).is_unused(), queues.get(at).cores()) {
                (true, _) => queues.set_cores(now, at, 0),
                (false, 0) => queues.set_cores(now, at, queues.unowned().min(1)),
                _ => {}
            }
        }
    }

    fn arrived(&mut self, now: Time, at: usize, queues: &mut Queues) {
        if !self.due.is_set() && queues.get(at).is_critical() {
            // Looks are at multiples of the interval, whoever begins; none while all is calm.
            let n = now.as_nanos() / self.interval.as_nanos() + 1;
            self.due = Time::ZERO + self.interval * n;
        }
    }

    fn next(&mut self, now: Time, queues: &mut Queues) -> Option<usize> {
        self.partition.next(now, queues)
    }

    fn wake(&mut self, now: Time, queues: &mut Queues) {
        if now < self.due {
            return;
        }
        let critical: Vec<usize> = queues.critical().collect();
        let mut calm = true;
        for at in critical {
            self.look(now, at, queues);
            calm &= queues.get(at).waiting().is_empty() && queues.get(at).cores() <= 1;
        }
        self.due = if calm { Time::NEVER } else { now + self.interval };
    }

    fn wake_at(&self) -> Time {
        self.due
    }

    fn wait(&self, _now: Time, at: usize, queues: &Queues) -> Span {
        partition::wait(at, queues)
    }
}
