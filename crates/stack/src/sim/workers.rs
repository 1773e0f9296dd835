//! Workers in virtual time: a few cores that take work in the order it came.

use crate::sim::events::EventQueue;
use crate::work::{Work, Worked};
use plimsoll_base::Time;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// See the module's documentation. The result is computed at once, and answered when a core would have done it.
pub struct SimWorkers {
    /// Times at which the cores are free again.
    free_at: BinaryHeap<Reverse<Time>>,
    done: EventQueue<(usize, Worked)>,
}

impl SimWorkers {
    /// Workers on `cores` cores, at least one.
    pub fn new(cores: usize) -> SimWorkers {
        SimWorkers { free_at: (0..cores.max(1)).map(|_| Reverse(Time::ZERO)).collect(), done: EventQueue::new() }
    }

    /// Takes node `node`'s work.
    pub fn begin(&mut self, now: Time, node: usize, work: Work) {
        let Reverse(free) = self.free_at.pop().expect("at least one core");
        let done_at = free.max(now) + work.task.cost();
        self.free_at.push(Reverse(done_at));
        self.done.add(done_at, (node, work.run()));
    }

    /// Returns the time of the next completion; [`Time::NEVER`] if there is none.
    pub fn next_at(&self) -> Time {
        self.done.next_at()
    }

    /// The next that is done: when, for which node, and what.
    pub fn pop(&mut self) -> Option<(Time, (usize, Worked))> {
        self.done.pop()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::work::{Answer, Task};
    use plimsoll_base::{Priority, Span, TenantId};

    struct Takes(u64);
    impl Task for Takes {
        fn name(&self) -> &'static str {
            "takes"
        }
        fn cost(&self) -> Span {
            Span::from_micros(self.0)
        }
        fn run(self: Box<Self>) -> Answer {
            Answer { words: [self.0, 0, 0, 0], ..Answer::default() }
        }
    }

    #[test]
    fn two_cores_do_two_at_once_and_the_third_waits() {
        let mut w = SimWorkers::new(2);
        let now = Time::ZERO + Span::from_micros(100);
        for (tag, us) in [(1, 30), (2, 10), (3, 5)] {
            let task = Box::new(Takes(us));
            w.begin(now, 7, Work { tag, tenant: TenantId(1), priority: Priority::DEFAULT, task });
        }
        let mut done = Vec::new();
        while let Some((at, (node, worked))) = w.pop() {
            assert_eq!((node, worked.tenant), (7, TenantId(1)));
            done.push((at.since(now).as_micros(), worked.tag, worked.answer.words[0]));
        }
        assert_eq!(done, [(10, 2, 10), (15, 3, 5), (30, 1, 30)]);
    }
}
