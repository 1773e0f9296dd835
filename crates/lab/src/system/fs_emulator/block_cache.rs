//! The buffer cache of the file-system emulator: clean blocks leave it by last use, dirty ones stay.

use plimsoll_device::pagecache::PageHasher;
use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, HashMap};
use std::hash::BuildHasherDefault;

struct Block {
    used: u64,
    is_dirty: bool,
}

/// Never iterated, so its order can't matter.
type Blocks = HashMap<u64, Block, BuildHasherDefault<PageHasher>>;

/// A use of a block: its number among all uses, and the block.
type Use = (u64, u64);

/// True if the block is clean and wasn't used again.
fn is_last(blocks: &Blocks, &(used, block): &Use) -> bool {
    blocks.get(&block).is_some_and(|b| !b.is_dirty && b.used == used)
}

/// See the module's documentation.
pub(super) struct BlockCache {
    blocks: Blocks,
    /// Uses, the oldest first: the last one of each clean block, and earlier ones, which are skipped. A tree of last uses alone would have to be
    /// searched at each use.
    by_use: BinaryHeap<Reverse<Use>>,
    dirty: BTreeSet<u64>,
    capacity: usize,
    clock: u64,
}

impl BlockCache {
    /// Room for `capacity` blocks, empty.
    pub fn new(capacity: usize) -> BlockCache {
        BlockCache { blocks: Blocks::default(), by_use: BinaryHeap::new(), dirty: BTreeSet::new(), capacity, clock: 0 }
    }

    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Dirty blocks.
    pub fn dirty(&self) -> usize {
        self.dirty.len()
    }

    /// Uses a block. Returns whether it is there.
    pub fn touch(&mut self, block: u64) -> bool {
        self.clock += 1;
        let Some(b) = self.blocks.get_mut(&block) else { return false };
        b.used = self.clock;
        if !b.is_dirty {
            self.note_use(self.clock, block);
        }
        true
    }

    /// Puts a block in. If there is no room and `may_evict` says so, the least recently used clean one leaves, else the new one isn't kept.
    pub fn keep(&mut self, block: u64, is_dirty: bool, may_evict: impl FnOnce() -> bool) {
        if let Some(b) = self.blocks.get_mut(&block) {
            if is_dirty && !b.is_dirty {
                b.is_dirty = true;
                self.dirty.insert(block);
            }
            return;
        }
        if self.blocks.len() >= self.capacity && !(may_evict() && self.evict()) {
            return;
        }
        self.blocks.insert(block, Block { used: self.clock, is_dirty });
        if is_dirty {
            self.dirty.insert(block);
        } else {
            self.note_use(self.clock, block);
        }
    }

    /// Makes all dirty blocks clean and returns them, in order.
    pub fn take_dirty(&mut self) -> Vec<u64> {
        let dirty: Vec<u64> = std::mem::take(&mut self.dirty).into_iter().collect();
        for &block in &dirty {
            let b = self.blocks.get_mut(&block).expect("a dirty block is cached");
            b.is_dirty = false;
            let used = b.used;
            self.note_use(used, block);
        }
        dirty
    }

    fn note_use(&mut self, used: u64, block: u64) {
        self.by_use.push(Reverse((used, block)));
        if self.by_use.len() > 4 * self.capacity {
            self.by_use.retain(|Reverse(u)| is_last(&self.blocks, u));
        }
    }

    /// Takes the least recently used clean block out. Returns whether there was one.
    fn evict(&mut self) -> bool {
        while let Some(Reverse(u)) = self.by_use.pop() {
            if is_last(&self.blocks, &u) {
                self.blocks.remove(&u.1);
                return true;
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_base::Rng;
    use std::collections::BTreeMap;

    /// The obvious way: of all clean blocks the one with the oldest use.
    #[test]
    fn the_least_recently_used_clean_block_leaves() {
        let capacity = 20;
        let mut cache = BlockCache::new(capacity);
        let mut obvious: BTreeMap<u64, (u64, bool)> = BTreeMap::new();
        let mut rng = Rng::new(1, "uses");
        for n in 1..20_000 {
            let (block, is_write, may_evict) = (rng.below(60), rng.chance(0.2), rng.chance(0.8));
            if !cache.touch(block) || is_write {
                cache.keep(block, is_write, || may_evict);
            }
            if let Some((used, is_dirty)) = obvious.get_mut(&block) {
                (*used, *is_dirty) = (n, *is_dirty || is_write);
            } else {
                let clean = obvious.iter().filter(|(_, (_, is_dirty))| !is_dirty);
                let victim = clean.min_by_key(|(block, (used, _))| (*used, **block)).map(|(block, _)| *block);
                let victim = victim.filter(|_| may_evict);
                if obvious.len() < capacity || victim.is_some_and(|v| obvious.remove(&v).is_some()) {
                    obvious.insert(block, (n, is_write));
                }
            }
            if rng.chance(0.02) {
                let dirty: Vec<u64> = obvious.iter().filter(|(_, (_, dirty))| *dirty).map(|(b, _)| *b).collect();
                assert_eq!(cache.take_dirty(), dirty);
                obvious.values_mut().for_each(|(_, is_dirty)| *is_dirty = false);
            }
            let same = cache.blocks.len() == obvious.len() && obvious.keys().all(|b| cache.blocks.contains_key(b));
            assert!(same, "use {n}");
            assert!(cache.by_use.len() <= 4 * capacity);
        }
    }
}
