//! One log, and which of all is nearest.

use crate::layout::Layout;
use std::collections::VecDeque;

/// The permitted use of a log.
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
    /// The end of its records, where the next one goes, and the sum that the next one must name.
    pub tail: u32,
    pub sum: u64,
    /// The same without records that are still under way.
    pub done_tail: u32,
    pub done_sum: u64,
    /// Up to here everything is known durable.
    pub flushed_tail: u32,
    /// The image that last emptied it, see [`crate::format::epoch_of`].
    pub epoch: u32,
    /// End of the last acknowledged record that holds anything.
    pub record_tail: u32,
    /// Up to here a witness of its durable records is wanted, or written.
    pub claimed_tail: u32,
    /// It has a record that the last image doesn't know.
    pub has_new: bool,
    /// A recovery found what was left of a record behind its end: the log is closed until an image has another sum for its end.
    pub has_torn: bool,
    /// It is retired because a write found no space: emptied, it is as good as any.
    pub no_space: bool,
    /// It was filled by a swap and has taken no record since: it is cold, and full on purpose.
    pub swapped_in: bool,
    /// Number of times it was emptied.
    pub emptied: u32,
    /// Records under way, in order.
    pub order: VecDeque<usize>,
    /// Requests that read from it.
    pub readers: u32,
    /// The record that last came here: how cold it is.
    pub used_at_sequence: u64,
}

impl Log {
    pub fn new(tail: u32, sum: u64, epoch: u32, bad: bool) -> Log {
        Log {
            state: if bad { State::Bad } else { State::Open },
            tail,
            sum,
            done_tail: tail,
            done_sum: sum,
            flushed_tail: tail,
            epoch,
            record_tail: tail,
            claimed_tail: tail,
            has_new: false,
            has_torn: false,
            no_space: false,
            swapped_in: false,
            emptied: 0,
            order: VecDeque::new(),
            readers: 0,
            used_at_sequence: 0,
        }
    }

    /// Empty again, from `sum` on, in a new epoch.
    pub fn reset(&mut self, sum: u64, epoch: u32) {
        assert!(self.order.is_empty(), "a log is emptied while it is written");
        self.state = if self.readers > 0 { State::Draining } else { State::Open };
        self.emptied += 1;
        self.swapped_in = false;
        (self.tail, self.sum) = (0, sum);
        (self.done_tail, self.done_sum, self.flushed_tail) = (0, sum, 0);
        (self.epoch, self.record_tail, self.claimed_tail) = (epoch, 0, 0);
        (self.has_new, self.has_torn, self.no_space) = (false, false, false);
    }
}

/// The end of a log's acknowledged records at some instant, if the log isn't emptied after it.
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

/// The logs that take records: one bit each, so that the nearest is found by looking at a word or two.
#[derive(Default)]
pub(crate) struct Open {
    words: Vec<u64>,
    count: usize,
}

impl Open {
    pub fn insert(&mut self, log: u32) {
        let (word, bit) = (log as usize / 64, 1 << (log % 64));
        if self.words.len() <= word {
            self.words.resize(word + 1, 0);
        }
        self.count += usize::from(self.words[word] & bit == 0);
        self.words[word] |= bit;
    }

    pub fn remove(&mut self, log: u32) {
        let (word, bit) = (log as usize / 64, 1 << (log % 64));
        if let Some(w) = self.words.get_mut(word) {
            self.count -= usize::from(*w & bit != 0);
            *w &= !bit;
        }
    }

    pub fn len(&self) -> usize {
        self.count
    }

    /// The last one up to and with `log`.
    fn below(&self, log: u32) -> Option<u32> {
        let word = (log as usize / 64).min(self.words.len().checked_sub(1)?);
        let first = if word == log as usize / 64 { u64::MAX >> (63 - log % 64) } else { u64::MAX };
        let masked = |i: usize| if i == word { self.words[i] & first } else { self.words[i] };
        (0..=word).rev().find(|i| masked(*i) != 0).map(|i| i as u32 * 64 + 63 - masked(i).leading_zeros())
    }

    /// The first one from `log` on.
    fn above(&self, log: u32) -> Option<u32> {
        let word = log as usize / 64;
        let masked = |i: usize| if i == word { self.words[i] & u64::MAX << (log % 64) } else { self.words[i] };
        (word..self.words.len()).find(|i| masked(*i) != 0).map(|i| i as u32 * 64 + masked(i).trailing_zeros())
    }

    /// Distance in groups from `log` to the next other open log.
    pub fn groups_to_next(&self, log: u32) -> u32 {
        let below = log.checked_sub(1).and_then(|l| self.below(l));
        below.into_iter().chain(self.above(log + 1)).map(|l| l.abs_diff(log)).min().unwrap_or(u32::MAX)
    }

    /// The open log nearest to a device address (ML-M3). Looks at one word of 64 logs if any of them is open.
    pub fn nearest(&self, layout: &Layout, logs: &[Log], at: u64) -> Option<u32> {
        let group = layout.group_of(at);
        let distance = |&log: &u32| {
            let tail = layout.log_start(log) + u64::from(logs[log as usize].tail);
            (tail.abs_diff(at), log)
        };
        self.below(group).into_iter().chain(self.above(group + 1)).min_by_key(distance)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn it_is_a_set(acts in prop::collection::vec((any::<bool>(), 0u32..200), 0..60), asked in prop::collection::vec(0u32..300, 20)) {
            let (mut open, mut plain) = (Open::default(), BTreeSet::new());
            for (insert, log) in acts {
                if insert { open.insert(log); plain.insert(log); } else { open.remove(log); plain.remove(&log); }
                prop_assert_eq!(open.len(), plain.len());
            }
            for log in asked {
                prop_assert_eq!(open.below(log), plain.range(..=log).next_back().copied());
                prop_assert_eq!(open.above(log), plain.range(log..).next().copied());
                let others = plain.iter().filter(|l| **l != log).map(|l| l.abs_diff(log));
                prop_assert_eq!(open.groups_to_next(log), others.min().unwrap_or(u32::MAX));
            }
        }
    }
}
