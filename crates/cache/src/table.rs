//! A hash table for tens of millions of small entries: they lie densely, in the order they came, and buckets of 32 bits point
//! at them. Nothing is spent on empty places but those four bytes, and a sweep over all entries is a walk over an array.

/// What a table holds.
pub trait Entry: Copy {
    /// What it is found by.
    type Key: Copy + Eq;
    /// Its key.
    fn key(&self) -> Self::Key;
    /// Well mixed bits of a key.
    fn hash(key: Self::Key) -> u64;
}

/// Entries are allocated by as many at a time, so that growth costs no more than this.
const BLOCK: usize = 4096;
/// Buckets are doubled when more than this many of eight are full.
const FULL_OF_8: usize = 6;
const EMPTY: u32 = u32::MAX;

/// See the module's documentation. Entries are named by their place, which changes when another is removed.
pub struct Table<E> {
    blocks: Vec<Vec<E>>,
    len: usize,
    buckets: Vec<u32>,
}

impl<E: Entry> Default for Table<E> {
    fn default() -> Table<E> {
        Table { blocks: Vec::new(), len: 0, buckets: vec![EMPTY; 16] }
    }
}

impl<E: Entry> Table<E> {
    /// How many entries.
    pub fn len(&self) -> usize {
        self.len
    }

    /// None?
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The bytes that it takes.
    pub fn memory_bytes(&self) -> u64 {
        let entries: usize = self.blocks.iter().map(|b| b.capacity() * size_of::<E>()).sum();
        (entries + self.blocks.capacity() * size_of::<Vec<E>>() + self.buckets.capacity() * 4) as u64
    }

    /// The entry at a place.
    pub fn get(&self, at: u32) -> E {
        self.blocks[at as usize / BLOCK][at as usize % BLOCK]
    }

    /// Changes the entry at a place; its key stays.
    pub fn change(&mut self, at: u32, f: impl FnOnce(&mut E)) {
        let e = &mut self.blocks[at as usize / BLOCK][at as usize % BLOCK];
        let key = e.key();
        f(e);
        assert!(e.key() == key, "an entry's key stays");
    }

    fn home(&self, key: E::Key) -> usize {
        // The upper bits: multiplicative hashes are best there.
        (E::hash(key) >> (64 - self.buckets.len().trailing_zeros())) as usize
    }

    fn bucket_of(&self, key: E::Key) -> Result<usize, usize> {
        let mut b = self.home(key);
        loop {
            match self.buckets[b] {
                EMPTY => return Err(b),
                at if self.get(at).key() == key => return Ok(b),
                _ => b = (b + 1) & (self.buckets.len() - 1),
            }
        }
    }

    /// Where the entry of `key` is.
    pub fn find(&self, key: E::Key) -> Option<u32> {
        self.bucket_of(key).ok().map(|b| self.buckets[b])
    }

    /// Adds an entry whose key isn't there; its place.
    ///
    /// # Panics
    /// If its key is there, or there are 2^32 - 1 entries.
    pub fn insert(&mut self, e: E) -> u32 {
        if (self.len + 1) * 8 > self.buckets.len() * FULL_OF_8 {
            self.grow();
        }
        let b = self.bucket_of(e.key()).expect_err("a key that isn't there");
        let at = u32::try_from(self.len).expect("fewer than 2^32 entries");
        if self.len.is_multiple_of(BLOCK) {
            self.blocks.push(Vec::with_capacity(BLOCK));
        }
        self.blocks.last_mut().expect("just made").push(e);
        self.len += 1;
        self.buckets[b] = at;
        at
    }

    fn grow(&mut self) {
        self.buckets = vec![EMPTY; self.buckets.len() * 2];
        for at in 0..self.len as u32 {
            let b = self.bucket_of(self.get(at).key()).expect_err("each key once");
            self.buckets[b] = at;
        }
    }

    /// Removes the entry at a place. The last entry moves there: its old place is returned, unless it was the last itself.
    pub fn remove(&mut self, at: u32) -> Option<u32> {
        let b = self.bucket_of(self.get(at).key()).expect("it is there");
        self.empty(b);
        let last = self.len as u32 - 1;
        let moved = self.blocks.last_mut().and_then(Vec::pop).expect("not empty");
        self.len -= 1;
        if self.len.is_multiple_of(BLOCK) {
            self.blocks.pop();
        }
        if at == last {
            return None;
        }
        let b = self.home_of_place(moved.key(), last);
        self.buckets[b] = at;
        self.blocks[at as usize / BLOCK][at as usize % BLOCK] = moved;
        Some(last)
    }

    /// The bucket that points at `place`, whose entry has `key`.
    fn home_of_place(&self, key: E::Key, place: u32) -> usize {
        let mut b = self.home(key);
        while self.buckets[b] != place {
            assert!(self.buckets[b] != EMPTY, "each entry has its bucket");
            b = (b + 1) & (self.buckets.len() - 1);
        }
        b
    }

    /// Empties a bucket and moves up what had passed it by.
    fn empty(&mut self, mut hole: usize) {
        let mask = self.buckets.len() - 1;
        let mut b = hole;
        loop {
            b = (b + 1) & mask;
            if self.buckets[b] == EMPTY {
                break;
            }
            let home = self.home(self.get(self.buckets[b]).key());
            // May it go to the hole? Only if its home isn't between the hole (exclusive) and where it is.
            if (b.wrapping_sub(home) & mask) >= (b.wrapping_sub(hole) & mask) {
                self.buckets[hole] = self.buckets[b];
                hole = b;
            }
        }
        self.buckets[hole] = EMPTY;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    #[derive(Clone, Copy, PartialEq, Debug)]
    struct Pair(u64, u32);
    impl Entry for Pair {
        type Key = u64;
        fn key(&self) -> u64 {
            self.0
        }
        fn hash(key: u64) -> u64 {
            // Bad on purpose: many share a home.
            (key % 7) << 61 | key << 20
        }
    }

    proptest! {
        #[test]
        fn it_is_a_map(ops in prop::collection::vec((0u64..60, any::<u32>(), any::<bool>()), 1..600)) {
            let mut table = Table::default();
            let mut model = BTreeMap::new();
            for (key, value, add) in ops {
                match (table.find(key), add) {
                    (None, true) => {
                        table.insert(Pair(key, value));
                        model.insert(key, value);
                    }
                    (Some(at), true) => {
                        table.change(at, |e| e.1 = value);
                        model.insert(key, value);
                    }
                    (Some(at), false) => {
                        let last = table.len() as u32 - 1;
                        let moved = table.get(last);
                        prop_assert_eq!(table.remove(at), (at != last).then_some(last));
                        model.remove(&key);
                        if at != last {
                            prop_assert_eq!(table.get(at), moved);
                        }
                    }
                    (None, false) => prop_assert!(!model.contains_key(&key)),
                }
                prop_assert_eq!(table.len(), model.len());
                for (k, v) in &model {
                    prop_assert_eq!(table.find(*k).map(|at| table.get(at)), Some(Pair(*k, *v)));
                }
            }
        }
    }
}
