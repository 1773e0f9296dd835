//! One log, and which of all is nearest.

use crate::layout::Layout;
use std::collections::{BTreeSet, VecDeque};

/// What may be done with a log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum State {
    /// Takes records while it has room.
    Open,
    /// Being emptied, or filled by a swap.
    Closed,
    /// Emptied, but a client still reads what was in it.
    Draining,
    /// Retired: a write to it or a read from it failed.
    Bad,
}

/// One log. Positions count from its beginning.
#[derive(Debug)]
pub(crate) struct Log {
    pub state: State,
    /// Where the next record goes, and the sum that it must name.
    pub tail: u32,
    pub sum: u64,
    /// The same without records that are still under way.
    pub done_tail: u32,
    pub done_sum: u64,
    /// Up to here everything is known durable.
    pub flushed_tail: u32,
    /// It was filled by a swap and has taken no record since: it is cold, and full on purpose.
    pub swapped_in: bool,
    /// How often it was emptied.
    pub emptied: u32,
    /// Records under way, in order.
    pub order: VecDeque<usize>,
    /// Requests that read from it.
    pub readers: u32,
    /// The record that last came here: how cold it is.
    pub used_at_sequence: u64,
}

impl Log {
    pub fn new(tail: u32, sum: u64, bad: bool) -> Log {
        Log {
            state: if bad { State::Bad } else { State::Open },
            tail,
            sum,
            done_tail: tail,
            done_sum: sum,
            flushed_tail: tail,
            swapped_in: false,
            emptied: 0,
            order: VecDeque::new(),
            readers: 0,
            used_at_sequence: 0,
        }
    }

    /// Empty again, from `sum` on.
    pub fn reset(&mut self, sum: u64) {
        assert!(self.order.is_empty(), "a log is emptied while it is written");
        self.state = if self.readers > 0 { State::Draining } else { State::Open };
        self.emptied += 1;
        self.swapped_in = false;
        (self.tail, self.sum) = (0, sum);
        (self.done_tail, self.done_sum, self.flushed_tail) = (0, sum, 0);
    }
}

/// Where the acknowledged records of a log end at some instant, if it isn't emptied after it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tail {
    pub log: u32,
    emptied: u32,
    tail: u32,
}

impl Log {
    pub fn done(&self, log: u32) -> Tail {
        Tail { log, emptied: self.emptied, tail: self.done_tail }
    }

    /// Everything up to `tail` is durable. True if that is all there is.
    pub fn flushed(&mut self, tail: Tail) -> bool {
        if tail.emptied == self.emptied {
            self.flushed_tail = self.flushed_tail.max(tail.tail);
        }
        self.flushed_tail >= self.done_tail
    }
}

/// The logs that take records.
#[derive(Default)]
pub(crate) struct Open(BTreeSet<u32>);

impl Open {
    pub fn insert(&mut self, log: u32) {
        self.0.insert(log);
    }

    pub fn remove(&mut self, log: u32) {
        self.0.remove(&log);
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// The open log nearest to a device address (ML-M3). O(log n).
    pub fn nearest(&self, layout: &Layout, logs: &[Log], at: u64) -> Option<u32> {
        let group = layout.group_of(at);
        let distance = |&log: &u32| {
            let tail = layout.log_start(log) + u64::from(logs[log as usize].tail);
            (tail.abs_diff(at), log)
        };
        let below = self.0.range(..=group).next_back();
        let above = self.0.range(group + 1..).next();
        below.into_iter().chain(above).copied().min_by_key(distance)
    }
}
