//! What is found after a restart, and the index that it becomes, at once.

use crate::index::{FileEntry, Index};
use crate::place::{Key, Loc};
use crate::table::Bulk;
use crate::weu::set_bit;

/// See the module's documentation.
pub struct Found {
    files: Bulk<FileEntry>,
    dirty: Vec<Key>,
}

impl Found {
    /// Nothing yet, of WEUs that hold about `extents`.
    pub fn new(extents: usize) -> Found {
        Found { files: Bulk::new(extents), dirty: Vec::new() }
    }

    /// `key` is at `loc`.
    pub fn extent(&mut self, key: Key, loc: Loc) {
        if loc.is_dirty() {
            self.dirty.push(key);
        }
        self.files.push(FileEntry { key: key.0, loc: loc.bits(), generation: 0 });
    }

    /// Extents so far.
    pub fn extents(&self) -> usize {
        self.files.len()
    }
}

impl Index {
    /// Takes in all that was found after a restart, into an index that holds nothing. Of two entries of one extent that counts
    /// which is later in `order`; the other is dead from now on. Returns the extents of which a dirty entry was found, whether
    /// it counts or not.
    pub fn load<T: Ord>(&mut self, found: Found, order: impl Fn(Loc) -> T) -> Vec<Key> {
        assert!(self.files.is_empty());
        let room = self.files.room();
        let weus = &mut self.weus;
        self.files = found.files.build(
            room,
            |_| true,
            |there, other| {
                let (there, other) = (Loc::of_bits(there.loc), Loc::of_bits(other.loc));
                let replaces = order(other) > order(there);
                let loser = if replaces { there } else { other };
                set_bit(&mut weus[loser.weu() as usize].dead, loser.slot());
                replaces
            },
        );
        // Nothing is looked at but what may be dirty: a walk over tens of millions takes a second.
        let mut dirty = found.dirty;
        dirty.sort_unstable();
        dirty.dedup();
        for key in &dirty {
            if let Some(loc) = self.look(*key) {
                self.count_dirty(loc, 1);
            }
        }
        dirty
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(n: u64) -> Key {
        Key::new(3, n)
    }

    /// Loaded at once or set one by one, the same is there.
    #[test]
    fn what_is_found_is_as_if_it_had_been_set() {
        const SEQUENCES: [u64; 8] = [3, 9, 1, 7, 2, 8, 4, 6];
        let mut rng = plimsoll_base::Rng::new(5, "found");
        let (mut found, mut model) = (Found::new(100), std::collections::BTreeMap::new());
        let mut i = Index::new(8, 150, 0);
        i.add_partition(8);
        for weu in 0..8 {
            i.weu_mut(weu).sequence = SEQUENCES[weu as usize];
            for slot in 0..30 {
                let (n, loc) = (rng.below(100), Loc::new(weu, slot * 10, 10, slot).dirty(weu == 5));
                found.extent(key(n), loc);
                let at = (i.weu(weu).sequence, slot, loc);
                let e = model.entry(n).or_insert(at);
                *e = if (at.0, at.1) > (e.0, e.1) { at } else { *e };
            }
        }
        let were_dirty = i.load(found, |loc| (SEQUENCES[loc.weu() as usize], loc.slot()));
        assert_eq!(i.files(), model.len());
        assert!(were_dirty.iter().all(|k| i.look(*k).is_some()));
        let mut dirty = 0;
        for (n, (_, _, loc)) in &model {
            assert_eq!(i.look(key(*n)), Some(*loc));
            assert!(!i.weu(loc.weu()).is_dead(loc.slot()));
            dirty += u32::from(loc.is_dirty());
            assert!(!loc.is_dirty() || were_dirty.contains(&key(*n)));
        }
        assert_eq!(i.weu(5).dirty, dirty);
        let dead: u32 = i.weus().iter().flat_map(|w| &w.dead).map(|b| b.count_ones()).sum();
        assert_eq!(dead as usize, 240 - model.len(), "who lost is dead");
    }
}
