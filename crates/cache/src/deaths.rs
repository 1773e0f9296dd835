//! Copies that died and that a start would still believe, as the journal doesn't say so for good yet: what the slow device must wait for
//! before it has anything newer.

use crate::index::Key;
use std::collections::{BTreeMap, VecDeque};

/// See the module's documentation.
#[derive(Default)]
pub(crate) struct Deaths {
    /// The journal's last record of a copy of it.
    of: BTreeMap<Key, u64>,
    /// The same, in the journal's order.
    order: VecDeque<(u64, Key)>,
    /// The last record of copies of which it isn't known whose they are.
    others: u64,
}

impl Deaths {
    /// The journal was told so under this number.
    pub(crate) fn add(&mut self, key: Key, number: u64) {
        self.of.insert(key, number);
        self.order.push_back((number, key));
    }

    /// Likewise, of copies of anything.
    pub(crate) fn add_unknown(&mut self, number: u64) {
        self.others = number;
    }

    /// The record that must be durable before the slow device has anything newer of `key`; 0 if there is none.
    pub(crate) fn of(&self, key: &Key) -> u64 {
        self.of.get(key).copied().unwrap_or(0).max(self.others)
    }

    /// The journal is durable up to this record.
    pub(crate) fn journaled(&mut self, durable: u64) {
        while let Some((number, key)) = self.order.front().copied()
            && number <= durable
        {
            self.order.pop_front();
            if self.of.get(&key) == Some(&number) {
                self.of.remove(&key);
            }
        }
    }

    /// Bytes that it takes.
    pub(crate) fn memory_bytes(&self) -> u64 {
        ((self.of.len() + self.order.len()) * 16) as u64
    }
}
