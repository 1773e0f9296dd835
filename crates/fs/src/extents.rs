//! A file's extents, and which leaf of the tree on the device each is in.

use std::collections::BTreeMap;

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
        self.map.insert(e.logical, e);
        true
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
            self.map.remove(&before.logical);
            e = Extent { len: before.len + e.len, ..before };
        }
        if let Some(after) = self.map.get(&e.end()).copied().filter(|a| joins(&e, a)) {
            self.touch(after.logical);
            self.map.remove(&after.logical);
            e.len += after.len;
        }
        self.touch(e.logical);
        self.map.insert(e.logical, e);
    }

    /// Takes a range out and returns what it had.
    pub fn remove(&mut self, from: u64, to: u64) -> Vec<Extent> {
        let mut removed = Vec::new();
        while let Some(e) = self.next(from).filter(|e| e.logical < to) {
            self.touch(e.logical);
            self.map.remove(&e.logical);
            let (start, end) = (e.logical.max(from), e.end().min(to));
            if e.logical < start {
                self.map.insert(e.logical, e.part(e.logical, start));
            }
            if end < e.end() {
                self.touch(end);
                self.map.insert(end, e.part(end, e.end()));
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
