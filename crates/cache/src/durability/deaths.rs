//! Copies that died and that recovery would still trust, as the journal's record of it isn't durable yet. The slow device must wait for that
//! record before it has anything newer.

use crate::index::Key;
use std::collections::{BTreeMap, VecDeque};

/// See the module's documentation.
#[derive(Default)]
pub(super) struct Deaths {
    /// The journal's last record of a copy of it.
    of: BTreeMap<Key, u64>,
    /// The same, in the journal's order.
    order: VecDeque<(u64, Key)>,
    /// The last record of copies of which it isn't known whose they are.
    others: u64,
}

impl Deaths {
    /// The journal has a record of this number of it.
    pub(super) fn add(&mut self, key: Key, number: u64) {
        self.of.insert(key, number);
        self.order.push_back((number, key));
    }

    /// The journal has such a record of copies of which it isn't known whose they are.
    pub(super) fn add_unknown(&mut self, number: u64) {
        self.others = number;
    }

    /// The record that must be durable before the slow device has anything newer of `key`; 0 if there is none.
    pub(super) fn of(&self, key: &Key) -> u64 {
        self.of.get(key).copied().unwrap_or(0).max(self.others)
    }

    /// The journal is durable up to this record.
    pub(super) fn journaled(&mut self, durable: u64) {
        while let Some((number, key)) = self.order.front().copied()
            && number <= durable
        {
            self.order.pop_front();
            if self.of.get(&key) == Some(&number) {
                self.of.remove(&key);
            }
        }
    }

    /// Checks what must hold after each event: nothing is remembered that is durable.
    pub(super) fn check(&self, durable: u64, pushed: u64) {
        debug_assert!(self.order.iter().all(|o| durable < o.0 && o.0 <= pushed));
        debug_assert!(self.of.len() <= self.order.len() && self.others <= pushed);
    }

    /// Bytes that it takes.
    pub(super) fn memory_bytes(&self) -> u64 {
        ((self.of.len() + self.order.len()) * 16) as u64
    }
}
