//! A device whose times were recorded: each request takes what it took.

use plimsoll_base::{Span, Time};
use plimsoll_device::{Done, Model, Request};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// See the module's documentation. Requests must come in the order of the record, at their times.
pub(super) struct Recorded {
    took: VecDeque<Span>,
    under_way: BinaryHeap<Reverse<(Time, u64, Time)>>,
}

impl Recorded {
    pub(super) fn new(took: impl Iterator<Item = Span>) -> Recorded {
        Recorded { took: took.collect(), under_way: BinaryHeap::new() }
    }
}

impl Model for Recorded {
    fn size_bytes(&self) -> u64 {
        1 << 50
    }
    fn block_bytes(&self) -> u32 {
        512
    }
    fn submit(&mut self, now: Time, req: Request) {
        let took = self.took.pop_front().expect("a time was recorded for each request");
        self.under_way.push(Reverse((now + took, req.tag, now)));
    }
    fn next_event(&self) -> Time {
        self.under_way.peek().map_or(Time::NEVER, |Reverse((at, ..))| *at)
    }
    fn advance(&mut self, now: Time, done: &mut Vec<Done>) {
        while self.next_event() <= now {
            let Reverse((at, tag, started_at)) = self.under_way.pop().expect("just seen");
            done.push(Done { tag, at, started_at });
        }
    }
    fn outstanding(&self) -> usize {
        self.under_way.len()
    }
    fn queue_max(&self) -> usize {
        1 << 20
    }
}
