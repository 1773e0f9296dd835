//! A process node's pending requests in the order of their offsets, with sums of what they cost (MT-M10, MT-M11).
//!
//! The kernel keeps them in a red-black tree. This one is a treap. It is as balanced, but every subtree also knows the sum of
//! its costs. So the cost in front of an offset takes logarithmic time instead of a walk. A node's rank is a hash of the
//! request's id, so a replay builds the same tree.

use plimsoll_base::{Io, IoId, Span};

const NONE: u32 = u32::MAX;

/// Offset, then id.
pub(crate) type Key = (u64, IoId);

struct Entry {
    key: Key,
    rank: u64,
    left: u32,
    right: u32,
    /// From the entry before it (or wherever the arm was) to this one's end.
    cost: Span,
    /// Of the whole subtree.
    sum: Span,
    /// Number of the subtree's requests.
    count: usize,
    /// Group of the request in its node's tolerance.
    group: i64,
    io: Option<Io>,
}

/// See the module's documentation.
pub(crate) struct OffsetTree {
    entries: Vec<Entry>,
    free: Vec<u32>,
    root: u32,
    len: usize,
    /// Requests looked at one after the other.
    #[cfg(test)]
    pub walked: std::cell::Cell<usize>,
}

fn rank(id: IoId) -> u64 {
    let mixed = id.0.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9)
}

impl OffsetTree {
    pub(crate) fn new() -> OffsetTree {
        OffsetTree {
            entries: Vec::new(),
            free: Vec::new(),
            root: NONE,
            len: 0,
            #[cfg(test)]
            walked: Default::default(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the cost of all requests.
    pub(crate) fn total(&self) -> Span {
        self.sum(self.root)
    }

    fn sum(&self, at: u32) -> Span {
        if at == NONE { Span::ZERO } else { self.entries[at as usize].sum }
    }

    fn count(&self, at: u32) -> usize {
        if at == NONE { 0 } else { self.entries[at as usize].count }
    }

    fn refresh(&mut self, at: u32) {
        let (left, right) = (self.entries[at as usize].left, self.entries[at as usize].right);
        self.entries[at as usize].sum = self.sum(left) + self.sum(right) + self.entries[at as usize].cost;
        self.entries[at as usize].count = self.count(left) + self.count(right) + 1;
    }

    /// Puts a request in that costs `cost` where it stands and is in `group` of its node's tolerance.
    pub(crate) fn insert(&mut self, io: Io, cost: Span, group: i64) {
        let key = (io.offset, io.id);
        let entry =
            Entry { key, rank: rank(io.id), left: NONE, right: NONE, cost, sum: cost, count: 1, group, io: Some(io) };
        let at = match self.free.pop() {
            Some(at) => {
                self.entries[at as usize] = entry;
                at
            }
            None => {
                self.entries.push(entry);
                (self.entries.len() - 1) as u32
            }
        };
        let (left, right) = self.split(self.root, key);
        let left = self.merge(left, at);
        self.root = self.merge(left, right);
        self.len += 1;
    }

    /// Cuts a subtree into what is before `key` and what isn't.
    fn split(&mut self, at: u32, key: Key) -> (u32, u32) {
        if at == NONE {
            return (NONE, NONE);
        }
        if self.entries[at as usize].key < key {
            let (inner, rest) = self.split(self.entries[at as usize].right, key);
            self.entries[at as usize].right = inner;
            self.refresh(at);
            (at, rest)
        } else {
            let (rest, inner) = self.split(self.entries[at as usize].left, key);
            self.entries[at as usize].left = inner;
            self.refresh(at);
            (rest, at)
        }
    }

    fn merge(&mut self, left: u32, right: u32) -> u32 {
        if left == NONE || right == NONE {
            return if left == NONE { right } else { left };
        }
        if self.entries[left as usize].rank > self.entries[right as usize].rank {
            let merged = self.merge(self.entries[left as usize].right, right);
            self.entries[left as usize].right = merged;
            self.refresh(left);
            left
        } else {
            let merged = self.merge(left, self.entries[right as usize].left);
            self.entries[right as usize].left = merged;
            self.refresh(right);
            right
        }
    }

    /// Takes a request out, with its group; `None` if it isn't there.
    pub(crate) fn remove(&mut self, key: Key) -> Option<(Io, i64)> {
        let (left, rest) = self.split(self.root, key);
        let (found, right) = self.split(rest, (key.0, IoId(key.1.0.saturating_add(1))));
        self.root = self.merge(left, right);
        if found == NONE {
            return None;
        }
        self.free.push(found);
        self.len -= 1;
        let e = &mut self.entries[found as usize];
        e.io.take().map(|io| (io, e.group))
    }

    /// The first key at or behind `from`.
    pub(crate) fn first_from(&self, from: Key) -> Option<Key> {
        let (mut at, mut best) = (self.root, None);
        while at != NONE {
            let e = &self.entries[at as usize];
            if e.key >= from {
                best = Some(e.key);
                at = e.left;
            } else {
                at = e.right;
            }
        }
        best
    }

    /// The last request before `before`.
    pub(crate) fn last_before(&self, before: Key) -> Option<&Io> {
        let (mut at, mut best) = (self.root, None);
        while at != NONE {
            let e = &self.entries[at as usize];
            if e.key < before {
                best = e.io.as_ref();
                at = e.right;
            } else {
                at = e.left;
            }
        }
        best
    }

    /// Returns the cost of all requests before `key`, and their number.
    pub(crate) fn sum_before(&self, key: Key) -> (Span, usize) {
        let (mut at, mut sum, mut count) = (self.root, Span::ZERO, 0);
        while at != NONE {
            let e = &self.entries[at as usize];
            if e.key < key {
                sum += self.sum(e.left) + e.cost;
                count += self.count(e.left) + 1;
                at = e.right;
            } else {
                at = e.left;
            }
        }
        (sum, count)
    }

    /// A request by its key.
    pub(crate) fn get(&self, key: Key) -> Option<&Io> {
        self.entries.get(self.find(key)? as usize)?.io.as_ref()
    }

    fn find(&self, key: Key) -> Option<u32> {
        let mut at = self.root;
        while at != NONE {
            let e = &self.entries[at as usize];
            at = match key.cmp(&e.key) {
                std::cmp::Ordering::Equal => return Some(at),
                std::cmp::Ordering::Less => e.left,
                std::cmp::Ordering::Greater => e.right,
            };
        }
        None
    }

    /// Changes the request at `key` and its group in place; not its offset or id.
    pub(crate) fn change(&mut self, key: Key, f: impl FnOnce(&mut Io, &mut i64)) {
        if let Some(at) = self.find(key)
            && let Entry { io: Some(io), group, .. } = &mut self.entries[at as usize]
        {
            f(io, group);
        }
    }

    /// The key of a request; a walk over all, for cancellations only.
    pub(crate) fn key_of(&self, id: IoId) -> Option<Key> {
        #[cfg(test)]
        self.walked.set(self.walked.get() + self.entries.len());
        self.entries.iter().find(|e| e.key.1 == id && e.io.is_some()).map(|e| e.key)
    }

    /// Sets the cost of the request at `key`, after the requests in front of it changed.
    pub(crate) fn set_cost(&mut self, key: Key, cost: Span) {
        self.set_cost_below(self.root, key, cost);
    }

    fn set_cost_below(&mut self, at: u32, key: Key, cost: Span) {
        if at == NONE {
            return;
        }
        let e = &mut self.entries[at as usize];
        match key.cmp(&e.key) {
            std::cmp::Ordering::Equal => e.cost = cost,
            std::cmp::Ordering::Less => {
                let left = e.left;
                self.set_cost_below(left, key, cost);
            }
            std::cmp::Ordering::Greater => {
                let right = e.right;
                self.set_cost_below(right, key, cost);
            }
        }
        self.refresh(at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_base::{Data, IoHead, Op, TenantId, Time, VolumeKey};
    use proptest::prelude::*;

    fn io(offset: u64, id: u64) -> Io {
        let mut head = IoHead::new(Op::Read, VolumeKey::POOL, TenantId(0), offset, 1, Time::ZERO);
        head.id = IoId(id);
        Io::new(head, Data::Absent)
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

        /// Every question is answered as a sorted list answers it.
        #[test]
        fn it_is_a_sorted_list(acts in prop::collection::vec((0u8..4, 0u64..40, 0u64..500), 1..200)) {
            let mut tree = OffsetTree::new();
            let mut list: Vec<(Key, u64)> = Vec::new();
            for (i, (act, offset, cost)) in acts.into_iter().enumerate() {
                match act {
                    0 | 1 => {
                        tree.insert(io(offset, i as u64), Span::from_nanos(cost), i as i64);
                        list.push(((offset, IoId(i as u64)), cost));
                        list.sort_unstable();
                    }
                    2 if !list.is_empty() => {
                        let (key, _) = list.remove(cost as usize % list.len());
                        prop_assert_eq!(tree.key_of(key.1), Some(key));
                        prop_assert_eq!(tree.remove(key).map(|(io, group)| (io.id.0, group)), Some((key.1.0, key.1.0 as i64)));
                        prop_assert!(tree.remove(key).is_none());
                    }
                    _ if !list.is_empty() => {
                        let at = offset as usize % list.len();
                        list[at].1 = cost;
                        tree.set_cost(list[at].0, Span::from_nanos(cost));
                    }
                    _ => {}
                }
                let key = (offset, IoId(cost));
                prop_assert_eq!(tree.len(), list.len());
                prop_assert_eq!(tree.total().as_nanos(), list.iter().map(|e| e.1).sum::<u64>());
                let before: Vec<u64> = list.iter().filter(|e| e.0 < key).map(|e| e.1).collect();
                let sum = Span::from_nanos(before.iter().sum());
                prop_assert_eq!(tree.sum_before(key), (sum, before.len()));
                prop_assert_eq!(tree.first_from(key), list.iter().map(|e| e.0).find(|k| *k >= key));
                let last = list.iter().map(|e| e.0).rfind(|k| *k < key);
                prop_assert_eq!(tree.last_before(key).map(|io| (io.offset, io.id)), last);
                prop_assert!(list.iter().all(|e| tree.get(e.0).is_some()));
            }
        }
    }
}
