//! A file's extents, and which leaf of the tree on the device each is in.

use std::collections::BTreeMap;

use crate::format::{BLOCK_ENTRIES, ROOT_ENTRIES};

/// A run of blocks of a file that is one run on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    /// First block in the file.
    pub logical: u64,
    /// Blocks.
    pub len: u64,
    /// First block on the device.
    pub physical: u64,
    /// Allocated, but reads as zeroes.
    pub unwritten: bool,
}

impl Extent {
    pub fn end(&self) -> u64 {
        self.logical + self.len
    }

    fn part(&self, from: u64, to: u64) -> Extent {
        Extent { logical: from, len: to - from, physical: self.physical + (from - self.logical), ..*self }
    }
}

/// A leaf on the device: it has the extents from its key up to the next leaf's.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Leaf {
    /// 0: not allocated yet.
    pub block: u64,
    pub dirty: bool,
    /// Extents in its range.
    count: u64,
    /// Extents that the write-back of dirty pages in its range may add.
    pending: u64,
}

/// Largest share of a full leaf that a split leaves in each part, so that both can grow.
const SPLIT: u64 = BLOCK_ENTRIES as u64 * 3 / 4;

/// Leaves that a split of `extents` extents makes, of equal size.
pub(crate) fn leaves_of(extents: u64) -> u64 {
    if extents <= BLOCK_ENTRIES as u64 { 1 } else { extents.div_ceil(SPLIT) }
}

/// Leaves that `extents` extents may take, whatever the order in which they come: a split leaves half of a leaf or more in each part.
fn leaves_max(extents: u64) -> u64 {
    if extents <= BLOCK_ENTRIES as u64 { 1 } else { extents / (BLOCK_ENTRIES as u64 / 2) }
}

/// Leaves that the inode's root can point to, by blocks of pointers.
const LEAVES_MAX: u64 = (ROOT_ENTRIES * BLOCK_ENTRIES) as u64;

/// Blocks of pointers to `leaves` leaves.
fn index_blocks(leaves: u64) -> u64 {
    if leaves <= ROOT_ENTRIES as u64 { 0 } else { leaves.div_ceil(BLOCK_ENTRIES as u64) }
}

impl Leaf {
    /// A leaf without a block.
    pub fn new() -> Leaf {
        Leaf { block: 0, dirty: true, count: 0, pending: 0 }
    }

    /// A leaf that was read from a block.
    pub fn read(block: u64) -> Leaf {
        Leaf { block, dirty: false, count: 0, pending: 0 }
    }

    /// Blocks that it may need beyond its own.
    fn need(&self) -> u64 {
        leaves_max(self.count + self.pending) - u64::from(self.block != 0)
    }
}

/// All extents of a file.
#[derive(Clone, Debug, Default)]
pub(crate) struct Extents {
    map: BTreeMap<u64, Extent>,
    /// Leaves by the first logical block that they cover; empty if the inode's root has all extents.
    pub leaves: BTreeMap<u64, Leaf>,
    /// Blocks of pointers to leaves.
    pub index: Vec<u64>,
    /// Changed since it was encoded.
    pub dirty: bool,
    /// Leaves came or went since the pointers to them were encoded.
    pub index_dirty: bool,
    /// Extents that the write-back of dirty pages may add.
    pending: u64,
    /// Blocks that the leaves may need beyond their own.
    leaf_need: u64,
}

/// Longest extent: its length has 31 bits.
const LEN_MAX: u64 = (1 << 31) - 1;

impl Extents {
    pub fn len(&self) -> usize {
        self.map.len()
    }

    pub fn iter(&self) -> impl Iterator<Item = Extent> + '_ {
        self.map.values().copied()
    }

    pub fn range(&self, from: u64, to: u64) -> impl Iterator<Item = Extent> + '_ {
        self.map.range(from..to).map(|(_, e)| *e)
    }

    /// The extent that has a logical block.
    pub fn get(&self, logical: u64) -> Option<Extent> {
        self.map.range(..=logical).next_back().map(|(_, e)| *e).filter(|e| logical < e.end())
    }

    /// The first extent that ends beyond a logical block.
    pub fn next(&self, logical: u64) -> Option<Extent> {
        self.get(logical).or_else(|| self.map.range(logical..).next().map(|(_, e)| *e))
    }

    /// Adds what was read from the device. False if it overlaps what is there.
    pub fn load(&mut self, e: Extent) -> bool {
        if self.next(e.logical).is_some_and(|n| n.logical < e.end()) {
            return false;
        }
        self.put(e);
        true
    }

    /// Changes a leaf's counts by those of one extent or page.
    fn count(&mut self, logical: u64, change: impl FnOnce(&mut Leaf)) {
        if let Some((_, leaf)) = self.leaves.range_mut(..=logical).next_back() {
            let before = leaf.need();
            change(leaf);
            self.leaf_need = self.leaf_need + leaf.need() - before;
        }
    }

    fn put(&mut self, e: Extent) {
        if self.map.insert(e.logical, e).is_none() {
            self.count(e.logical, |l| l.count += 1);
        }
    }

    fn take(&mut self, logical: u64) {
        if self.map.remove(&logical).is_some() {
            self.count(logical, |l| l.count -= 1);
        }
    }

    /// Notes that the write-back of the page at a logical block may add `to` extents, `from` until now.
    pub fn expect(&mut self, logical: u64, from: u64, to: u64) {
        self.pending = self.pending + to - from;
        self.count(logical, |l| l.pending = l.pending + to - from);
    }

    /// Blocks for leaves and pointers to them that the extents may need beyond those they have, with what dirty pages may add.
    pub fn need(&self) -> u64 {
        let leaves = self.leaves_bound();
        let new = if self.leaves.is_empty() { leaves } else { self.leaf_need };
        new + index_blocks(leaves).saturating_sub(self.index.len() as u64)
    }

    /// Leaves at most, with what dirty pages may add.
    fn leaves_bound(&self) -> u64 {
        let all = self.len() as u64 + self.pending;
        match (self.leaves.is_empty(), all <= ROOT_ENTRIES as u64) {
            (true, true) => 0,
            (true, false) => leaves_max(all),
            (false, _) => self.leaves.len() as u64 + self.leaf_need,
        }
    }

    /// True if the inode's root can point to all leaves, with what dirty pages may add.
    pub fn fit_tree(&self) -> bool {
        self.leaves_bound() <= LEAVES_MAX
    }

    /// True if the root has room for all extents, and for those that dirty pages may add.
    pub fn fit_root(&self) -> bool {
        self.len() as u64 + if self.leaves.is_empty() { 0 } else { self.pending } <= ROOT_ENTRIES as u64
    }

    /// Counts a leaf's extents and dirty pages (with the extents that each may add) anew, after it was made or split.
    pub fn recount(&mut self, key: u64, pages: impl Fn(u64, u64) -> u64) {
        let end = self.leaves.range(key + 1..).next().map_or(u64::MAX, |(&k, _)| k);
        let (count, pending) = (self.map.range(key..end).count() as u64, pages(key, end));
        self.count(key, |l| (l.count, l.pending) = (count, pending));
    }

    /// Adds a leaf that has a block, to be counted.
    pub fn add_leaf(&mut self, key: u64, leaf: Leaf) {
        self.leaf_need += leaf.need();
        if let Some(old) = self.leaves.insert(key, leaf) {
            self.leaf_need -= old.need();
        }
    }

    /// Takes a leaf out; its extents and pages go to the one before.
    pub fn remove_leaf(&mut self, key: u64) -> Option<Leaf> {
        let leaf = self.leaves.remove(&key)?;
        self.leaf_need -= leaf.need();
        Some(leaf)
    }

    /// Takes all leaves and blocks of pointers out; returns their blocks.
    pub fn remove_leaves(&mut self) -> Vec<u64> {
        self.leaf_need = 0;
        let leaves = std::mem::take(&mut self.leaves).into_values().map(|l| l.block);
        leaves.chain(std::mem::take(&mut self.index)).filter(|&b| b != 0).collect()
    }

    /// True if a leaf has neither extents nor pages that may add some.
    pub fn is_unused(&self, key: u64) -> bool {
        self.leaves.get(&key).is_some_and(|l| l.count + l.pending == 0)
    }

    fn touch(&mut self, logical: u64) {
        self.dirty = true;
        if let Some((_, leaf)) = self.leaves.range_mut(..=logical).next_back() {
            leaf.dirty = true;
        }
    }

    /// Adds an extent over a hole, joined with its neighbours where they continue each other.
    pub fn insert(&mut self, mut e: Extent) {
        debug_assert!(self.next(e.logical).is_none_or(|n| n.logical >= e.end()));
        let joins = |a: &Extent, b: &Extent| {
            a.end() == b.logical
                && a.physical + a.len == b.physical
                && a.unwritten == b.unwritten
                && a.len + b.len <= LEN_MAX
        };
        if let Some(before) = e.logical.checked_sub(1).and_then(|l| self.get(l)).filter(|b| joins(b, &e)) {
            self.take(before.logical);
            e = Extent { len: before.len + e.len, ..before };
        }
        if let Some(after) = self.map.get(&e.end()).copied().filter(|a| joins(&e, a)) {
            self.touch(after.logical);
            self.take(after.logical);
            e.len += after.len;
        }
        self.touch(e.logical);
        self.put(e);
    }

    /// Takes a range out and returns what it had.
    pub fn remove(&mut self, from: u64, to: u64) -> Vec<Extent> {
        let mut removed = Vec::new();
        while let Some(e) = self.next(from).filter(|e| e.logical < to) {
            self.touch(e.logical);
            self.take(e.logical);
            let (start, end) = (e.logical.max(from), e.end().min(to));
            if e.logical < start {
                self.put(e.part(e.logical, start));
            }
            if end < e.end() {
                self.touch(end);
                self.put(e.part(end, e.end()));
            }
            removed.push(e.part(start, end));
        }
        removed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_is_full_before_its_leaves_have_no_pointer() {
        let mut x = Extents::default();
        let most = LEAVES_MAX * (BLOCK_ENTRIES as u64 / 2) + BLOCK_ENTRIES as u64 / 2 - 1;
        x.expect(0, 0, most);
        assert!(x.fit_tree() && leaves_max(most) == LEAVES_MAX);
        x.expect(0, 0, 1);
        assert!(!x.fit_tree());
        // Leaves that are full don't fit when one of them must be split.
        let mut x = Extents::default();
        for key in 0..LEAVES_MAX {
            x.add_leaf(key, Leaf::read(1 + key));
            x.expect(key, 0, BLOCK_ENTRIES as u64);
        }
        assert!(x.fit_tree());
        x.expect(7, 0, 1);
        assert!(!x.fit_tree());
    }

    #[test]
    fn agrees_with_a_map_of_blocks() {
        let (mut x, mut at) = (7u64, Extents::default());
        let mut oracle: BTreeMap<u64, (u64, bool)> = BTreeMap::new();
        for step in 0..4000u64 {
            x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let (from, len, kind) = ((x >> 33) % 64, 1 + (x >> 50) % 9, (x >> 60) % 3);
            for e in at.remove(from, from + len) {
                for i in 0..e.len {
                    assert_eq!(oracle.remove(&(e.logical + i)), Some((e.physical + i, e.unwritten)));
                }
            }
            assert!((from..from + len).all(|b| !oracle.contains_key(&b)));
            if kind > 0 {
                let physical = if step % 2 == 0 { 1000 + from } else { step * 100 };
                at.insert(Extent { logical: from, len, physical, unwritten: kind == 2 });
                oracle.extend((0..len).map(|i| (from + i, (physical + i, kind == 2))));
            }
            for b in 0..80 {
                let found = at.get(b).map(|e| (e.physical + (b - e.logical), e.unwritten));
                assert_eq!(found, oracle.get(&b).copied(), "block {b} after step {step}");
            }
        }
    }
}
