//! The host's page cache: which pages are in memory, which were and aren't any more, which never were.
//!
//! The difference between the last two matters: a read of a page that was swapped out may be refused, a first read
//! never (MT-M21). Every operation takes constant time; memory is bounded by the capacity, plus one bit for each
//! page of the file.

#![expect(
    clippy::disallowed_types,
    reason = "its maps have a hasher without a seed, and nothing depends on their order"
)]

mod layer;

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use plimsoll_base::{Rng, Span};

pub use layer::{CacheCounts, PageCacheLayer, Planted};

/// State of a page in the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Residency {
    /// In memory.
    Resident,
    /// Not in memory any more: evicted or dropped.
    SwappedOut,
    /// Never read, and so never in memory.
    NeverRead,
}

/// The order of eviction, over slots `0..capacity`. Each call takes constant time.
pub trait EvictionOrder {
    /// Creates an order for `slots` slots, none of them used.
    fn with_slots(slots: u32) -> Self;
    /// A page came into `slot`.
    fn inserted(&mut self, slot: u32);
    /// The page in `slot` was used.
    fn touched(&mut self, slot: u32);
    /// The page in `slot` is gone.
    fn removed(&mut self, slot: u32);
    /// The slot to empty next; called only while some slot is used. Doesn't remove it.
    fn victim(&mut self) -> u32;
}

/// "No slot" in links.
const NONE: u32 = u32::MAX;

/// Slots in order, oldest first, linked both ways.
#[derive(Clone, Debug)]
struct Chain {
    /// (before, behind) of each slot.
    links: Vec<(u32, u32)>,
    first: u32,
    last: u32,
}

impl Chain {
    fn new(slots: u32) -> Chain {
        Chain { links: vec![(NONE, NONE); slots as usize], first: NONE, last: NONE }
    }

    fn append(&mut self, slot: u32) {
        self.links[slot as usize] = (self.last, NONE);
        if self.last == NONE {
            self.first = slot;
        } else {
            self.links[self.last as usize].1 = slot;
        }
        self.last = slot;
    }

    fn remove(&mut self, slot: u32) {
        let (before, behind) = self.links[slot as usize];
        if before == NONE {
            self.first = behind;
        } else {
            self.links[before as usize].1 = behind;
        }
        if behind == NONE {
            self.last = before;
        } else {
            self.links[behind as usize].0 = before;
        }
    }
}

/// Least recently used first.
#[derive(Clone, Debug)]
pub struct Lru(Chain);

impl EvictionOrder for Lru {
    fn with_slots(slots: u32) -> Lru {
        Lru(Chain::new(slots))
    }
    fn inserted(&mut self, slot: u32) {
        self.0.append(slot);
    }
    fn touched(&mut self, slot: u32) {
        self.0.remove(slot);
        self.0.append(slot);
    }
    fn removed(&mut self, slot: u32) {
        self.0.remove(slot);
    }
    fn victim(&mut self) -> u32 {
        self.0.first
    }
}

/// As they came.
#[derive(Clone, Debug)]
pub struct Fifo(Chain);

impl EvictionOrder for Fifo {
    fn with_slots(slots: u32) -> Fifo {
        Fifo(Chain::new(slots))
    }
    fn inserted(&mut self, slot: u32) {
        self.0.append(slot);
    }
    fn touched(&mut self, _: u32) {}
    fn removed(&mut self, slot: u32) {
        self.0.remove(slot);
    }
    fn victim(&mut self) -> u32 {
        self.0.first
    }
}

/// Spreads page numbers. The map is never iterated, so its order can't matter; but a hasher with a random key
/// would make even its timing differ from run to run.
#[derive(Clone, Copy, Debug, Default)]
pub struct PageHasher(u64);

impl Hasher for PageHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for b in bytes {
            self.write_u64(u64::from(*b));
        }
    }
    fn write_u64(&mut self, n: u64) {
        let mixed = (self.0 ^ n).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ mixed >> 32;
    }
}

/// A page cache over a file (or device) of a known number of pages.
#[derive(Clone, Debug)]
pub struct PageCache<O = Lru> {
    index: HashMap<u64, u32, BuildHasherDefault<PageHasher>>,
    /// Page in each slot; `u64::MAX` if none.
    pages: Vec<u64>,
    free: Vec<u32>,
    order: O,
    /// One bit a page of the file: it was in memory once.
    seen: Vec<u64>,
    file_pages: u64,
    hit: Span,
}

impl<O: EvictionOrder> PageCache<O> {
    /// A cache of `capacity` pages (1 to 2^32 - 2) over a file of `file_pages`; finding and copying a page takes
    /// `hit`.
    ///
    /// # Panics
    /// If the capacity is out of range.
    pub fn new(capacity: u32, file_pages: u64, hit: Span) -> PageCache<O> {
        assert!(capacity > 0 && capacity < NONE, "a page cache of {capacity} pages");
        PageCache {
            index: HashMap::with_capacity_and_hasher(capacity as usize, BuildHasherDefault::default()),
            pages: vec![u64::MAX; capacity as usize],
            free: (0..capacity).rev().collect(),
            order: O::with_slots(capacity),
            seen: vec![0; file_pages.div_ceil(64) as usize],
            file_pages,
            hit,
        }
    }

    /// Pages in memory.
    pub fn resident(&self) -> u32 {
        (self.pages.len() - self.free.len()) as u32
    }

    /// Pages that fit.
    pub fn capacity(&self) -> u32 {
        self.pages.len() as u32
    }

    /// Pages of the file (or device).
    pub fn file_pages(&self) -> u64 {
        self.file_pages
    }

    /// Returns the time of a hit of `pages` pages.
    pub fn hit_latency(&self, pages: u64) -> Span {
        self.hit * pages
    }

    /// Returns the state of `page`; changes nothing, not even the order of eviction.
    ///
    /// # Panics
    /// If the page lies beyond the file.
    pub fn residency(&self, page: u64) -> Residency {
        self.assert_page(page);
        if self.index.contains_key(&page) {
            Residency::Resident
        } else if self.seen[(page / 64) as usize] >> (page % 64) & 1 != 0 {
            Residency::SwappedOut
        } else {
            Residency::NeverRead
        }
    }

    /// Uses `page`; true if it's in memory.
    pub fn touch(&mut self, page: u64) -> bool {
        self.assert_page(page);
        match self.index.get(&page) {
            Some(&slot) => {
                self.order.touched(slot);
                true
            }
            None => false,
        }
    }

    /// Brings `page` into memory (a use, if it's there); gives the page evicted for it.
    pub fn insert(&mut self, page: u64) -> Option<u64> {
        if self.touch(page) {
            return None;
        }
        let evicted = if self.free.is_empty() { Some(self.evict_slot()) } else { None };
        let slot = self.free.pop().expect("just made sure");
        self.pages[slot as usize] = page;
        self.index.insert(page, slot);
        self.order.inserted(slot);
        self.seen[(page / 64) as usize] |= 1 << (page % 64);
        evicted
    }

    /// Drops `page` from memory; true if it was there.
    pub fn drop_page(&mut self, page: u64) -> bool {
        self.assert_page(page);
        match self.index.get(&page) {
            Some(&slot) => {
                self.empty(slot);
                true
            }
            None => false,
        }
    }

    /// Drops this number of permille of the resident pages, chosen at random, as `posix_fadvise` over random ranges does
    /// (MT-E8: 200). Returns the number dropped. It is the one operation that looks at every slot.
    pub fn drop_fraction(&mut self, permille: u32, seed: u64) -> u32 {
        let mut rng = Rng::new(seed, "page cache drop");
        let mut left = self.resident();
        let mut wanted = (u64::from(left) * u64::from(permille.min(1000)) / 1000) as u32;
        let dropped = wanted;
        for slot in 0..self.capacity() {
            if wanted == 0 {
                break;
            }
            if self.pages[slot as usize] == u64::MAX {
                continue;
            }
            // Each with the share that is still wanted of those still to come: exactly so many in the end.
            if rng.below(u64::from(left)) < u64::from(wanted) {
                self.empty(slot);
                wanted -= 1;
            }
            left -= 1;
        }
        dropped
    }

    fn evict_slot(&mut self) -> u64 {
        let slot = self.order.victim();
        let page = self.pages[slot as usize];
        self.empty(slot);
        page
    }

    fn empty(&mut self, slot: u32) {
        let page = std::mem::replace(&mut self.pages[slot as usize], u64::MAX);
        self.index.remove(&page);
        self.order.removed(slot);
        self.free.push(slot);
    }

    fn assert_page(&self, page: u64) {
        assert!(page < self.file_pages, "page {page} of a file of {} pages", self.file_pages);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Pages in order of eviction, searched from end to end.
    #[derive(Default)]
    struct Naive {
        pages: Vec<u64>,
        seen: Vec<u64>,
    }

    impl Naive {
        fn touch(&mut self, page: u64, lru: bool) -> bool {
            let Some(i) = self.pages.iter().position(|p| *p == page) else { return false };
            if lru {
                self.pages.remove(i);
                self.pages.push(page);
            }
            true
        }
        fn insert(&mut self, page: u64, capacity: usize, lru: bool) -> Option<u64> {
            if self.touch(page, lru) {
                return None;
            }
            let evicted = (self.pages.len() == capacity).then(|| self.pages.remove(0));
            self.pages.push(page);
            self.seen.push(page);
            evicted
        }
        fn residency(&self, page: u64) -> Residency {
            if self.pages.contains(&page) {
                Residency::Resident
            } else if self.seen.contains(&page) {
                Residency::SwappedOut
            } else {
                Residency::NeverRead
            }
        }
    }

    fn compare<O: EvictionOrder>(capacity: u32, acts: &[(u8, u64)], lru: bool) {
        let mut cache: PageCache<O> = PageCache::new(capacity, 70, Span::from_micros(2));
        let mut naive = Naive::default();
        for &(kind, page) in acts {
            match kind {
                0 => assert_eq!(cache.touch(page), naive.touch(page, lru)),
                1 => {
                    let there = naive.pages.contains(&page);
                    naive.pages.retain(|p| *p != page);
                    assert_eq!(cache.drop_page(page), there);
                }
                _ => assert_eq!(cache.insert(page), naive.insert(page, capacity as usize, lru)),
            }
            assert_eq!(cache.resident() as usize, naive.pages.len());
            for p in 0..70 {
                assert_eq!(cache.residency(p), naive.residency(p));
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

        #[test]
        fn orders_are_what_a_list_says(capacity in 1u32..20, acts in prop::collection::vec((0u8..5, 0u64..70), 1..200)) {
            compare::<Lru>(capacity, &acts, true);
            compare::<Fifo>(capacity, &acts, false);
        }
    }

    /// MT-E8: about 20 % of the pages are dropped; MT-M21: they are then swapped out, not unread.
    #[test]
    fn a_fifth_is_dropped_and_known_as_swapped_out() {
        let mut cache: PageCache = PageCache::new(10_000, 20_000, Span::from_micros(2));
        (0..8_000).for_each(|p| assert_eq!(cache.insert(p), None));
        let mut other = cache.clone();
        assert_eq!(cache.drop_fraction(200, 7), 1_600);
        let out: Vec<u64> = (0..20_000).filter(|p| cache.residency(*p) == Residency::SwappedOut).collect();
        assert_eq!((out.len(), cache.resident()), (1_600, 6_400));
        // Spread evenly: each tenth of the file loses about a tenth of them.
        for tenth in 0..10 {
            let here = out.iter().filter(|p| **p / 800 == tenth).count();
            assert!((110..210).contains(&here), "{here}");
        }
        assert_eq!(cache.residency(8_000), Residency::NeverRead);
        other.drop_fraction(200, 7);
        assert!(out.iter().all(|p| other.residency(*p) == Residency::SwappedOut), "a seed repeats");
        assert_eq!(cache.hit_latency(4), Span::from_micros(8));
        // Swapped in again, they are resident.
        cache.insert(out[0]);
        assert_eq!(cache.residency(out[0]), Residency::Resident);
    }
}
