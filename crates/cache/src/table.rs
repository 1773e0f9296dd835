//! A hash table for tens of millions of small entries. The entries lie densely in an array, and buckets of 32 bits point at them. An
//! empty bucket costs four bytes and nothing else, and a sweep over all entries is a walk over an array.
//!
//! A bucket has the entry's place. In the bits that the place leaves free it has a tag of the entry's hash. So a look-up that passes
//! other entries' buckets needn't read those entries, which are anywhere in memory.

/// An entry of a table.
pub trait Entry: Copy {
    /// The key of a look-up.
    type Key: Copy + Eq;
    /// Its key.
    fn key(&self) -> Self::Key;
    /// Well mixed bits of a key.
    fn hash(key: Self::Key) -> u64;
}

/// Entries are allocated in blocks of this number, so that growth costs no more than one block.
const BLOCK: usize = 4096;
/// The buckets are more by a quarter when more than this many of twenty are full.
const FULL_OF_20: usize = 17;
/// An empty bucket; others have the place plus one.
const EMPTY: u32 = 0;
const BUCKETS_MIN: usize = 16;

/// See the module's documentation. Entries are named by their place, which changes when another is removed.
pub struct Table<E> {
    blocks: Vec<Vec<E>>,
    len: usize,
    buckets: Vec<u32>,
    /// Bits of a bucket that are the place.
    place_bits: u32,
}

impl<E: Entry> Default for Table<E> {
    fn default() -> Table<E> {
        Table::with_room(0)
    }
}

/// `hash` scaled to `0..n`, in the order of hashes.
fn scaled(hash: u64, n: usize) -> usize {
    ((u128::from(hash) * n as u128) >> 64) as usize
}

impl<E: Entry> Table<E> {
    /// An empty table whose buckets are enough for `entries`.
    pub fn with_room(entries: usize) -> Table<E> {
        let buckets = (entries * 20).div_ceil(FULL_OF_20).max(BUCKETS_MIN);
        let mut table = Table { blocks: Vec::new(), len: 0, buckets: Vec::new(), place_bits: 0 };
        table.set_buckets(buckets);
        table
    }

    fn set_buckets(&mut self, buckets: usize) {
        self.buckets = vec![EMPTY; buckets];
        // A place plus one is never more than the number of buckets.
        self.place_bits = usize::BITS - buckets.leading_zeros();
        assert!(self.place_bits <= u32::BITS, "fewer than 2^32 buckets");
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if there are no entries.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// For how many entries its buckets are enough.
    pub fn room(&self) -> usize {
        self.buckets.len() * FULL_OF_20 / 20
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

    /// The value of a bucket that points at an entry of this hash at `place`.
    fn bucket(&self, hash: u64, place: u32) -> u32 {
        self.tag(hash) | (place + 1)
    }

    /// The bits of a bucket that aren't its place.
    fn tag(&self, hash: u64) -> u32 {
        // The upper bits say which bucket: these are others.
        ((u64::from(hash as u32) >> self.place_bits) << self.place_bits) as u32
    }

    /// The place that a bucket, which isn't empty, points at.
    fn place(&self, bucket: u32) -> u32 {
        (u64::from(bucket) & ((1 << self.place_bits) - 1)) as u32 - 1
    }

    fn next(&self, bucket: usize) -> usize {
        if bucket + 1 == self.buckets.len() { 0 } else { bucket + 1 }
    }

    fn bucket_of(&self, key: E::Key) -> Result<usize, usize> {
        let hash = E::hash(key);
        let tag = self.tag(hash);
        let mut b = scaled(hash, self.buckets.len());
        loop {
            match self.buckets[b] {
                EMPTY => return Err(b),
                bucket if self.tag(u64::from(bucket)) == tag && self.get(self.place(bucket)).key() == key => {
                    return Ok(b);
                }
                _ => b = self.next(b),
            }
        }
    }

    /// The place of the entry of `key`.
    pub fn find(&self, key: E::Key) -> Option<u32> {
        self.bucket_of(key).ok().map(|b| self.place(self.buckets[b]))
    }

    /// Adds an entry whose key isn't there; its place.
    ///
    /// # Panics
    /// If its key is there, or there are too many entries for 32 bits.
    pub fn insert(&mut self, e: E) -> u32 {
        if (self.len + 1) * 20 > self.buckets.len() * FULL_OF_20 {
            self.grow();
        }
        let b = self.bucket_of(e.key()).expect_err("a key that isn't there");
        self.add(b, e)
    }

    /// Adds an entry, unless one of its key is there: then its place.
    pub fn find_or_insert(&mut self, e: E) -> Option<u32> {
        match self.bucket_of(e.key()) {
            Ok(b) => Some(self.place(self.buckets[b])),
            Err(b) if (self.len + 1) * 20 <= self.buckets.len() * FULL_OF_20 => {
                self.add(b, e);
                None
            }
            Err(_) => {
                self.insert(e);
                None
            }
        }
    }

    /// Adds an entry, which empty bucket `b` is to point at.
    fn add(&mut self, b: usize, e: E) -> u32 {
        let at = self.len as u32;
        if self.len.is_multiple_of(BLOCK) {
            // The first one grows as it must: a small table is to be small.
            self.blocks.push(Vec::with_capacity(if self.blocks.is_empty() { 0 } else { BLOCK }));
        }
        let last = self.blocks.last_mut().expect("just made");
        if last.len() == last.capacity() {
            last.reserve_exact((last.len() / 4).max(BUCKETS_MIN).min(BLOCK - last.len()));
        }
        last.push(e);
        self.len += 1;
        self.buckets[b] = self.bucket(E::hash(e.key()), at);
        at
    }

    fn grow(&mut self) {
        self.set_buckets(self.buckets.len() * 5 / 4);
        for at in 0..self.len as u32 {
            // Each key is there once: none needs to be compared.
            let hash = E::hash(self.get(at).key());
            let mut b = scaled(hash, self.buckets.len());
            while self.buckets[b] != EMPTY {
                b = self.next(b);
            }
            self.buckets[b] = self.bucket(hash, at);
        }
    }

    /// Removes the entry at a place. The last entry moves there: its old place is returned, unless it was the last itself.
    pub fn remove(&mut self, at: u32) -> Option<u32> {
        let b = self.bucket_to(self.get(at).key(), at);
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
        let b = self.bucket_to(moved.key(), last);
        self.buckets[b] = self.bucket(E::hash(moved.key()), at);
        self.blocks[at as usize / BLOCK][at as usize % BLOCK] = moved;
        Some(last)
    }

    /// The bucket that points at `place`, whose entry has `key`.
    fn bucket_to(&self, key: E::Key, place: u32) -> usize {
        let hash = E::hash(key);
        let wanted = self.bucket(hash, place);
        let mut b = scaled(hash, self.buckets.len());
        while self.buckets[b] != wanted {
            assert!(self.buckets[b] != EMPTY, "each entry has its bucket");
            b = self.next(b);
        }
        b
    }

    /// Empties a bucket and moves up what had passed it by.
    fn empty(&mut self, mut hole: usize) {
        let n = self.buckets.len();
        let from_to = |from: usize, to: usize| if to >= from { to - from } else { to + n - from };
        let mut b = hole;
        loop {
            b = self.next(b);
            if self.buckets[b] == EMPTY {
                break;
            }
            let home = scaled(E::hash(self.get(self.place(self.buckets[b])).key()), n);
            // The entry may move into the hole only if its home isn't between the hole (exclusive) and its present bucket.
            if from_to(home, b) >= from_to(hole, b) {
                self.buckets[hole] = self.buckets[b];
                hole = b;
            }
        }
        self.buckets[hole] = EMPTY;
    }
}

/// Entries of one part of a [`Bulk`]: its buckets stay in a core's own cache. Many more parts wouldn't: each has a page of its
/// own that is being filled.
const PART: usize = 1 << 17;
const PARTS_MAX: usize = 1 << 12;

/// Entries that become a table all at once: they are sorted roughly by hash as they come, so that the table is filled from
/// one end to the other instead of everywhere at once, which is many times slower for tens of millions.
pub struct Bulk<E> {
    /// In blocks as the table's: those that are through are the memory for the next ones of the table.
    parts: Vec<Vec<Vec<E>>>,
    len: usize,
}

impl<E: Entry> Bulk<E> {
    /// For about `expected` entries.
    pub fn new(expected: usize) -> Bulk<E> {
        let parts = expected.div_ceil(PART).clamp(1, PARTS_MAX);
        Bulk { parts: (0..parts).map(|_| Vec::new()).collect(), len: 0 }
    }

    /// Adds an entry; there may be several of one key.
    pub fn push(&mut self, e: E) {
        let part = scaled(E::hash(e.key()), self.parts.len());
        let blocks = &mut self.parts[part];
        match blocks.last_mut() {
            Some(last) if last.len() < BLOCK => last.push(e),
            _ => {
                let mut block = Vec::with_capacity(BLOCK);
                block.push(e);
                blocks.push(block);
            }
        }
        self.len += 1;
    }

    /// Number of entries added.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if there are no entries.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// All of them, in parts that hashes tell apart, in their order: whoever looks them up in a table then looks at one part of it after
    /// the other.
    pub fn into_parts(self) -> impl Iterator<Item = Vec<E>> {
        self.parts.into_iter().map(|blocks| blocks.concat())
    }

    /// The table of those that `wanted` says, with room for at least `room` entries. Of two of one key, the one there and
    /// another, `replaces` says whether the other takes its place.
    pub fn build(self, room: usize, wanted: impl Fn(&E) -> bool, mut replaces: impl FnMut(&E, &E) -> bool) -> Table<E> {
        let mut table = Table::with_room(room.max(self.len));
        for block in self.parts.into_iter().flatten() {
            for e in block.into_iter().filter(&wanted) {
                match table.bucket_of(e.key()) {
                    Err(b) => {
                        table.add(b, e);
                    }
                    Ok(b) => {
                        let at = table.place(table.buckets[b]);
                        if replaces(&table.get(at), &e) {
                            table.change(at, |there| *there = e);
                        }
                    }
                }
            }
        }
        table
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

    /// The latest value of each key, however many there are of it, as if inserted one by one.
    #[test]
    fn a_bulk_becomes_the_same_table() {
        let mut rng = plimsoll_base::Rng::new(1, "bulk");
        for n in [0usize, 1, 7, 5_000, 60_000] {
            let mut bulk = Bulk::new(n / 2);
            let mut model = BTreeMap::new();
            for i in 0..n {
                // Few homes are shared here: the hash is spread.
                let key = rng.below(n as u64 * 2).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                bulk.push(Spread(key, i as u32));
                if !key.is_multiple_of(5) {
                    model.insert(key, i as u32);
                }
            }
            let mut seen_twice = 0;
            let table = bulk.build(
                0,
                |e| !e.0.is_multiple_of(5),
                |there, other| {
                    seen_twice += 1;
                    assert!(there.0 == other.0);
                    other.1 > there.1
                },
            );
            assert_eq!(table.len(), model.len());
            assert!(n < 5_000 || seen_twice > 0);
            for (k, v) in &model {
                assert_eq!(table.find(*k).map(|at| table.get(at).1), Some(*v));
            }
            assert_eq!(table.find(3), None);
        }
    }

    #[derive(Clone, Copy)]
    struct Spread(u64, u32);
    impl Entry for Spread {
        type Key = u64;
        fn key(&self) -> u64 {
            self.0
        }
        fn hash(key: u64) -> u64 {
            key ^ key << 32
        }
    }

    proptest! {
        #[test]
        fn it_is_a_map(ops in prop::collection::vec((0u64..60, any::<u32>(), any::<bool>()), 1..600)) {
            let mut table = Table::default();
            let mut model = BTreeMap::new();
            for (key, value, add) in ops {
                match (table.find(key), add) {
                    (None, true) if value % 2 == 0 => {
                        table.insert(Pair(key, value));
                        model.insert(key, value);
                    }
                    (None, true) => {
                        prop_assert_eq!(table.find_or_insert(Pair(key, value)), None);
                        model.insert(key, value);
                    }
                    (Some(at), true) => {
                        prop_assert_eq!(table.find_or_insert(Pair(key, !value)), Some(at));
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
