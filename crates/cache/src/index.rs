//! The cache's index: the file index, the fingerprint index and the WEUs, without any I/O or bytes.
//!
//! ```text
//!  file index     <volume, extent> ──► WEU, place in it, generation; base or duplicate, dirty or clean
//!  fingerprints   128 bits         ──► the same; in LRU order if there may be fewer fingerprints than extents
//!  WEUs           generation, live and dirty extents, dead slots; per partition in the order in which they leave
//! ```
//! A WEU that is evicted gets its next generation. All entries with the old generation are stale from then on. Base entries are removed
//! by the WEU's header, which lists them. A header doesn't list duplicates by the place of their bytes. They are removed when a look-up
//! meets them, or by the cleaner (NI-M17, NI-M18).

use crate::config::Eviction;
use crate::fingerprints::{Fingerprints, FpEntry};
use crate::place::mix;
use crate::policy::Orders;
use crate::table::{Entry, Table};

pub use crate::place::{Fingerprint, Key, Loc, SLOTS_MAX, UNIT_BYTES, WEU_BYTES_MAX, WEUS_MAX};
pub use crate::weu::{Weu, WeuState, bit, set_bit};

/// 18 bytes; packed, because there are tens of millions.
#[derive(Clone, Copy)]
#[repr(Rust, packed(2))]
pub(crate) struct FileEntry {
    pub key: u64,
    pub loc: u64,
    pub generation: u16,
}

impl Entry for FileEntry {
    type Key = u64;
    fn key(&self) -> u64 {
        self.key
    }
    fn hash(key: u64) -> u64 {
        mix(key)
    }
}

/// WEUs in use by a partition, and how many it may have.
#[derive(Clone, Debug)]
struct Partition {
    used: u32,
    quota: u32,
}

/// Counters of the index.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct IndexCounters {
    /// Stale entries met by a lookup.
    pub stale_met: u64,
    /// Stale entries that the cleaner removed.
    pub stale_cleaned: u64,
    /// Fingerprints dropped because the index may hold no more.
    pub fingerprints_dropped: u64,
    /// Generation numbers that began anew.
    pub rollovers: u64,
}

/// See the module's documentation.
pub struct Index {
    pub(crate) files: Table<FileEntry>,
    fps: Fingerprints,
    pub(crate) weus: Vec<Weu>,
    free: Vec<u32>,
    partitions: Vec<Partition>,
    /// Full WEUs.
    pub(crate) orders: Orders,
    /// Volumes that are gone: their entries are stale.
    deleted: Vec<bool>,
    sweep_at: u32,
    counters: IndexCounters,
}

impl Index {
    /// An index of `weus` free WEUs that keeps at most `fps_max` fingerprints. Its buckets are enough for `room` extents from
    /// the beginning; with more than that it grows, which takes a moment.
    pub fn new(weus: u32, fps_max: usize, room: usize) -> Index {
        assert!(weus <= WEUS_MAX);
        Index {
            files: Table::with_room(room),
            fps: Fingerprints::new(fps_max),
            weus: vec![Weu::free(); weus as usize],
            free: (0..weus).rev().collect(),
            partitions: Vec::new(),
            orders: Orders::new(weus, Eviction::default()),
            deleted: Vec::new(),
            sweep_at: 0,
            counters: IndexCounters::default(),
        }
    }

    /// The same, whose WEUs leave by another policy than LRU. It has no partition yet.
    #[must_use]
    pub fn evicting(mut self, eviction: Eviction) -> Index {
        assert!(self.partitions.is_empty(), "a partition has its policy when it is added");
        self.orders = Orders::new(self.weus.len() as u32, eviction);
        self
    }

    /// Sets the number of WEUs; all of them are free.
    ///
    /// # Panics
    /// If something is in one already.
    pub fn set_weus(&mut self, weus: u32) {
        assert!(weus <= WEUS_MAX && self.free.len() == self.weus.len(), "nothing was found yet");
        self.weus = vec![Weu::free(); weus as usize];
        self.orders.set_weus(weus);
        self.free = (0..weus).rev().collect();
    }

    /// Adds a partition of at most `quota` WEUs; its number.
    pub fn add_partition(&mut self, quota: u32) -> u16 {
        self.partitions.push(Partition { used: 0, quota });
        self.orders.add_partition();
        (self.partitions.len() - 1) as u16
    }

    /// Number of partitions.
    pub fn partitions(&self) -> u16 {
        self.partitions.len() as u16
    }

    /// Lets a partition have at most `quota` WEUs; what is too much is to be evicted.
    pub fn set_quota(&mut self, partition: u16, quota: u32) {
        self.partitions[partition as usize].quota = quota;
    }

    /// WEUs in use by a partition, and its quota.
    pub fn use_of(&self, partition: u16) -> (u32, u32) {
        let p = &self.partitions[partition as usize];
        (p.used, p.quota)
    }

    /// A WEU.
    pub fn weu(&self, weu: u32) -> &Weu {
        &self.weus[weu as usize]
    }

    /// All WEUs, by number.
    pub fn weus(&self) -> &[Weu] {
        &self.weus
    }

    /// A WEU, to change.
    pub fn weu_mut(&mut self, weu: u32) -> &mut Weu {
        &mut self.weus[weu as usize]
    }

    /// WEUs that hold nothing.
    pub fn free_weus(&self) -> u32 {
        self.free.len() as u32
    }

    /// Entries of the file index, stale ones included.
    pub fn files(&self) -> usize {
        self.files.len()
    }

    /// Limits the fingerprints to `max` from now on, at least 1.
    pub fn set_fingerprints_max(&mut self, max: usize) {
        self.fps.set_max(max);
    }

    /// Fingerprints that there may be.
    pub fn fingerprints_max(&self) -> usize {
        self.fps.max()
    }

    /// Entries of the fingerprint index, stale ones included.
    pub fn fingerprints(&self) -> usize {
        self.fps.len()
    }

    /// The counters.
    pub fn counters(&self) -> IndexCounters {
        IndexCounters { fingerprints_dropped: self.fps.dropped(), ..self.counters }
    }

    /// The bytes that all of it takes.
    pub fn memory_bytes(&self) -> u64 {
        let bits: usize =
            self.weus.iter().map(|w| (w.dead.capacity() + w.cleaned.capacity()) * 8 + w.sums.capacity() * 4).sum();
        let lists = self.orders.memory_bytes();
        self.files.memory_bytes() + self.fps.memory_bytes() + lists + (self.weus.len() * size_of::<Weu>() + bits) as u64
    }

    /// Removes all that belongs to volumes that are gone, whose slots may be given out again then. It looks at all entries.
    pub fn sweep_gone(&mut self) {
        let mut at = 0;
        while at < self.files.len() as u32 {
            match self.is_stale(self.files.get(at)) {
                true => self.forget_at(at),
                false => at += 1,
            }
        }
        self.deleted.clear();
    }

    /// A volume is gone: its entries are stale from now on.
    pub fn forget_volume(&mut self, volume: u16) {
        let at = volume as usize;
        if self.deleted.len() <= at {
            self.deleted.resize(at + 1, false);
        }
        self.deleted[at] = true;
    }

    fn is_stale(&self, e: FileEntry) -> bool {
        let gone = self.deleted.get(Key(e.key).volume() as usize).copied().unwrap_or(false);
        gone || self.weus[Loc::of_bits(e.loc).weu() as usize].generation != e.generation
    }

    /// The place of an extent.
    pub fn look(&self, key: Key) -> Option<Loc> {
        let e = self.files.get(self.files.find(key.0)?);
        (!self.is_stale(e)).then_some(Loc::of_bits(e.loc))
    }

    /// As [`Index::look`], for a request: a stale entry that is met goes (NI-M18).
    pub fn find(&mut self, key: Key) -> Option<Loc> {
        let at = self.files.find(key.0)?;
        let e = self.files.get(at);
        if self.is_stale(e) {
            self.counters.stale_met += 1;
            self.forget_at(at);
            return None;
        }
        Some(Loc::of_bits(e.loc))
    }

    /// Points `key` at `loc`. Returns the place it pointed at before, unless that was stale.
    pub fn set(&mut self, key: Key, loc: Loc) -> Option<Loc> {
        let generation = self.weus[loc.weu() as usize].generation;
        self.count(loc);
        let Some(at) = self.files.find(key.0) else {
            self.files.insert(FileEntry { key: key.0, loc: loc.bits(), generation });
            return None;
        };
        let old = self.files.get(at);
        let stale = self.is_stale(old);
        self.files.change(at, |e| (e.loc, e.generation) = (loc.bits(), generation));
        self.uncount(old);
        (!stale).then_some(Loc::of_bits(old.loc))
    }

    /// Forgets `key`. Returns the place it pointed at, unless that was stale.
    pub fn remove(&mut self, key: Key) -> Option<Loc> {
        let at = self.files.find(key.0)?;
        let old = self.files.get(at);
        let stale = self.is_stale(old);
        self.forget_at(at);
        (!stale).then_some(Loc::of_bits(old.loc))
    }

    fn forget_at(&mut self, at: u32) {
        self.uncount(self.files.get(at));
        self.files.remove(at);
    }

    /// An entry points at `loc` from now on.
    pub(crate) fn count(&mut self, loc: Loc) {
        self.weus[loc.weu() as usize].dirty += u32::from(loc.is_dirty());
        self.orders.added(loc.weu());
    }

    /// An entry points where it did no longer. It counts as long as its WEU wasn't replaced.
    fn uncount(&mut self, e: FileEntry) {
        let loc = Loc::of_bits(e.loc);
        if self.weus[loc.weu() as usize].generation == e.generation {
            self.uncount_at(loc);
        }
    }

    /// An entry points at `loc` no longer.
    pub(crate) fn uncount_at(&mut self, loc: Loc) {
        let w = &mut self.weus[loc.weu() as usize];
        w.dirty = w.dirty.checked_sub(u32::from(loc.is_dirty())).expect("dirty extents are counted in and out");
        self.orders.left(loc.weu(), loc.slot(), loc.is_dup());
    }

    /// Returns the place of content with this fingerprint, and makes it the most recently used one.
    pub fn find_content(&mut self, fp: Fingerprint) -> Option<Loc> {
        self.fps.find(fp)
    }

    /// Content of this fingerprint is at `loc`. The fingerprint used longest ago goes if there are too many.
    pub fn set_content(&mut self, fp: Fingerprint, loc: Loc) {
        self.fps.set(FpEntry::new(fp, loc));
    }

    /// Content of this fingerprint is at `loc`, as a header says that was read late. Newer knowledge stays.
    pub fn learn_content(&mut self, fp: Fingerprint, loc: Loc) {
        self.fps.add_oldest(FpEntry::new(fp, loc));
    }

    /// A free WEU for `partition`, which has room for one more; it is open from now on.
    pub fn take_free(&mut self, partition: u16, sequence: u64, for_dirty: bool) -> Option<u32> {
        let p = &mut self.partitions[partition as usize];
        // Who has no part keeps what only the cache has for as long as it takes to write it back.
        if p.used >= p.quota && !(for_dirty && p.quota == 0) {
            return None;
        }
        let weu = self.free.pop()?;
        p.used += 1;
        let w = &mut self.weus[weu as usize];
        assert!(w.dirty == 0, "nothing dirty points at a free WEU");
        (w.state, w.sequence, w.partition, w.for_dirty) = (WeuState::Open, sequence, partition, for_dirty);
        (w.slots, w.header_bytes, w.durable_slots) = (0, 0, 0);
        w.dead.clear();
        w.cleaned.clear();
        w.sums.clear();
        Some(weu)
    }

    /// Takes free WEU `weu` out of the free ones, as it is found to hold something after a restart.
    pub fn adopt(&mut self, weu: u32, partition: u16, sequence: u64, for_dirty: bool) {
        self.free.retain(|&f| f != weu);
        self.partitions[partition as usize].used += 1;
        let w = &mut self.weus[weu as usize];
        (w.state, w.sequence, w.partition, w.for_dirty) = (WeuState::Open, sequence, partition, for_dirty);
    }

    /// Makes the free ones those that are in state [`WeuState::Free`]: after many were adopted at once.
    pub fn adopt_all(&mut self, found: impl Iterator<Item = (u32, u16, u64, bool)>) {
        for (weu, partition, sequence, for_dirty) in found {
            self.partitions[partition as usize].used += 1;
            let w = &mut self.weus[weu as usize];
            (w.state, w.sequence, w.partition, w.for_dirty) = (WeuState::Open, sequence, partition, for_dirty);
        }
        let free = |w: &u32| self.weus[*w as usize].state == WeuState::Free;
        self.free = (0..self.weus.len() as u32).rev().filter(free).collect();
    }

    /// An open WEU is filled.
    pub fn filled(&mut self, weu: u32) {
        let w = &mut self.weus[weu as usize];
        assert_eq!(w.state, WeuState::Open);
        w.state = WeuState::Full;
        self.orders.enter(w.partition, weu);
    }

    /// The extent at `loc` was used.
    pub fn touch(&mut self, loc: Loc) {
        let w = &self.weus[loc.weu() as usize];
        self.orders.used(w.partition, loc.weu(), loc.slot(), w.state == WeuState::Full);
    }

    /// The policy by which WEUs leave.
    pub fn eviction(&self) -> Eviction {
        self.orders.eviction()
    }

    /// True if the policy wants this extent of a leaving WEU to be put in again, as it was used since it came.
    pub fn must_reinsert(&self, loc: Loc) -> bool {
        self.orders.must_reinsert(loc.weu(), loc.slot())
    }

    /// The WEU of a partition that the policy chooses is leaving from now on. `None` if none is full.
    pub fn begin_eviction(&mut self, partition: u16) -> Option<u32> {
        let weu = self.orders.victim(partition)?;
        self.begin_eviction_of(weu);
        Some(weu)
    }

    /// Full WEU `weu` is leaving from now on, whether the policy would choose it or not.
    pub fn begin_eviction_of(&mut self, weu: u32) {
        let w = &mut self.weus[weu as usize];
        assert_eq!(w.state, WeuState::Full);
        w.state = WeuState::Leaving;
        self.orders.remove(w.partition, weu);
    }

    /// A leaving WEU's extents go: `entries` are what its header lists, by slot; if it's not all that it had, its contents are looked
    /// for one by one. Duplicates that point at it are stale from now on.
    ///
    /// # Panics
    /// If something dirty still points at it.
    pub fn retire(&mut self, weu: u32, entries: impl Iterator<Item = (u32, Option<Key>, Option<Fingerprint>)>) {
        let w = &self.weus[weu as usize];
        assert!(w.state == WeuState::Leaving && w.dirty == 0, "WEU {weu}: {:?}, {} dirty", w.state, w.dirty);
        let (slots, mut listed) = (w.slots, 0);
        for (slot, key, fp) in entries {
            listed += 1;
            if let Some(at) = key.and_then(|k| self.files.find(k.0)) {
                let loc = Loc::of_bits(self.files.get(at).loc);
                if loc.weu() == weu && loc.slot() == slot && !loc.is_dup() {
                    self.forget_at(at);
                }
            }
            if let Some(fp) = fp {
                self.fps.forget(fp, weu, slot);
            }
        }
        if listed < slots {
            self.fps.forget_weu(weu);
        }
        self.orders.emptied(weu);
        let w = &mut self.weus[weu as usize];
        w.state = WeuState::Retired;
        w.generation = w.generation.wrapping_add(1);
        if w.generation == 0 {
            // What is still stale from 2^16 replacements ago would look true again.
            self.counters.rollovers += 1;
            self.sweep_all(weu);
        }
    }

    /// A retired WEU may be written again.
    pub fn free(&mut self, weu: u32) {
        let w = &mut self.weus[weu as usize];
        assert_eq!(w.state, WeuState::Retired);
        w.state = WeuState::Free;
        w.dead = Vec::new();
        w.cleaned = Vec::new();
        w.sums = Vec::new();
        self.partitions[w.partition as usize].used -= 1;
        self.free.push(weu);
    }

    /// Removes all that points at `weu`.
    fn sweep_all(&mut self, weu: u32) {
        let mut at = 0;
        while at < self.files.len() as u32 {
            if Loc::of_bits(self.files.get(at).loc).weu() == weu {
                self.files.remove(at);
            } else {
                at += 1;
            }
        }
    }

    /// The cleaner: looks at the next `count` entries and removes the stale ones (NI-M18).
    pub fn sweep(&mut self, count: usize) {
        for _ in 0..count.min(self.files.len()) {
            if self.sweep_at >= self.files.len() as u32 {
                self.sweep_at = 0;
                return;
            }
            if self.is_stale(self.files.get(self.sweep_at)) {
                self.forget_at(self.sweep_at);
                self.counters.stale_cleaned += 1;
            } else {
                self.sweep_at += 1;
            }
        }
    }

    /// The cleaner, for room: walks over at most `count` entries to one that is stale or a clean duplicate, and drops it. True if one was.
    pub fn drop_duplicate(&mut self, count: usize) -> bool {
        for _ in 0..count.min(self.files.len()) {
            self.sweep_at = if self.sweep_at >= self.files.len() as u32 { 0 } else { self.sweep_at };
            let e = self.files.get(self.sweep_at);
            let loc = Loc::of_bits(e.loc);
            if self.is_stale(e) || (loc.is_dup() && !loc.is_dirty()) {
                self.forget_at(self.sweep_at);
                return true;
            }
            self.sweep_at += 1;
        }
        false
    }

    /// Checks what must hold whenever nothing of it is changed: counts, links and states agree with what they are of.
    ///
    /// # Errors
    /// The rule that is broken, and where.
    pub(crate) fn check(&self) -> Result<(), String> {
        let free: std::collections::BTreeSet<u32> = self.free.iter().copied().collect();
        let mut used = vec![0; self.partitions.len()];
        let mut full = vec![std::collections::BTreeSet::new(); self.partitions.len()];
        for (weu, w) in (0..).zip(&self.weus) {
            if (w.state == WeuState::Free) != free.contains(&weu) {
                return Err(format!("WEU {weu} is {:?}, and free if listed so: {}", w.state, free.contains(&weu)));
            }
            if w.state != WeuState::Free {
                used[w.partition as usize] += 1;
            }
            if w.state == WeuState::Full {
                full[w.partition as usize].insert(weu);
            }
        }
        for (partition, p) in self.partitions.iter().enumerate() {
            let members = self.orders.members(partition as u16)?;
            if p.used != used[partition] || free.len() != self.free.len() {
                return Err(format!("partition {partition} is {p:?}, and {} are used", used[partition]));
            }
            if members.len() != full[partition].len() || !members.iter().all(|weu| full[partition].contains(weu)) {
                return Err(format!(
                    "of partition {partition} {:?} are full, and {members:?} may leave",
                    full[partition]
                ));
            }
        }
        let mut live = vec![0; self.weus.len()];
        for e in (0..self.files.len() as u32).map(|at| self.files.get(at)) {
            let weu = Loc::of_bits(e.loc).weu() as usize;
            live[weu] += u32::from(self.weus[weu].generation == e.generation);
        }
        if let Some(weu) = (0..self.weus.len()).find(|weu| self.orders.live(*weu as u32) != live[*weu]) {
            return Err(format!("WEU {weu} has {} live extents, not {}", live[weu], self.orders.live(weu as u32)));
        }
        let mut dirty = vec![0; self.weus.len()];
        self.entries().filter(|e| e.1.is_dirty()).for_each(|(_, loc)| dirty[loc.weu() as usize] += 1);
        let holds = |weu: u32| !matches!(self.weus[weu as usize].state, WeuState::Free | WeuState::Retired);
        if let Some((key, loc)) = self.entries().find(|e| !holds(e.1.weu())) {
            return Err(format!("{key:?} is at {loc:?}, where nothing is"));
        }
        if let Some(weu) = (0..self.weus.len()).find(|weu| self.weus[*weu].dirty != dirty[*weu]) {
            return Err(format!("WEU {weu} has {} dirty extents, not {}", dirty[weu], self.weus[weu].dirty));
        }
        match self.fps.places().find(|loc| !holds(loc.weu())) {
            Some(loc) => Err(format!("a content is at {loc:?}, where nothing is")),
            None => Ok(()),
        }
    }

    /// Every entry that isn't stale.
    pub fn entries(&self) -> impl Iterator<Item = (Key, Loc)> + '_ {
        let all = (0..self.files.len() as u32).map(|at| self.files.get(at));
        all.filter(|e| !self.is_stale(*e)).map(|e| (Key(e.key), Loc::of_bits(e.loc)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(n: u64) -> Key {
        Key::new(3, n)
    }

    /// Fills one WEU with extents `from..to`, each its own fingerprint.
    fn fill(i: &mut Index, sequence: u64, extents: std::ops::Range<u64>) -> u32 {
        let weu = i.take_free(0, sequence, false).unwrap();
        for (slot, n) in extents.enumerate() {
            let loc = Loc::new(weu, slot as u32 * 10, 10, slot as u32);
            i.set(key(n), loc);
            i.set_content([n, 0], loc);
        }
        i.filled(weu);
        weu
    }

    fn evict(i: &mut Index, extents: std::ops::Range<u64>) -> u32 {
        let weu = i.begin_eviction(0).unwrap();
        i.retire(weu, extents.enumerate().map(|(slot, n)| (slot as u32, Some(key(n)), Some([n, 0]))));
        i.free(weu);
        weu
    }

    #[test]
    fn places_and_keys_keep_what_they_are_made_of() {
        let l = Loc::new(WEUS_MAX - 1, 0xffff, 0xfff, SLOTS_MAX - 1).dup(true);
        assert_eq!((l.weu(), l.at_bytes(), l.len_bytes(), l.slot()), (WEUS_MAX - 1, 0xffff * 64, 0xfff * 64, 2047));
        assert!(l.is_dup() && !l.is_dirty() && l.dirty(true).is_dirty() && l.same_place(l.dup(false)));
        let k = Key::new(65_535, (1 << 48) - 1);
        assert_eq!((k.volume(), k.extent()), (65_535, (1 << 48) - 1));
        assert_eq!((size_of::<FileEntry>(), size_of::<FpEntry>()), (18, 32));
    }

    #[test]
    fn the_weu_used_longest_ago_goes_and_its_base_entries_with_it() {
        let mut i = Index::new(2, 1000, 0);
        i.add_partition(2);
        let (a, b) = (fill(&mut i, 1, 0..10), fill(&mut i, 2, 10..20));
        i.touch(Loc::new(a, 0, 10, 0));
        // A duplicate.
        let loc = i.find_content([10, 0]).unwrap();
        i.set(key(99), loc.dup(true));
        assert_eq!(evict(&mut i, 10..20), b);
        assert!((10..20).all(|n| i.look(key(n)).is_none() && i.find_content([n, 0]).is_none()));
        assert!((0..10).all(|n| i.look(key(n)).is_some_and(|l| l.weu() == a)));
        assert_eq!((i.files(), i.fingerprints()), (11, 10), "the duplicate is still there, but stale");
        assert_eq!(i.look(key(99)), None);
        fill(&mut i, 3, 20..30);
        assert_eq!(i.find(key(99)), None, "nor does it come true when the WEU is filled again");
        assert_eq!((i.files(), i.counters().stale_met), (20, 1));
    }

    #[test]
    fn the_cleaner_finds_stale_duplicates() {
        let mut i = Index::new(2, 1000, 0);
        i.add_partition(2);
        fill(&mut i, 1, 0..10);
        for n in 0..50 {
            let loc = i.find_content([n % 10, 0]).unwrap();
            i.set(key(100 + n), loc.dup(true));
        }
        evict(&mut i, 0..10);
        assert_eq!(i.files(), 50);
        for _ in 0..60 {
            i.sweep(1);
        }
        assert_eq!((i.files(), i.counters().stale_cleaned), (0, 50));
    }

    #[test]
    fn a_generation_that_comes_round_resurrects_nothing() {
        let mut i = Index::new(1, 1000, 0);
        i.add_partition(1);
        fill(&mut i, 1, 0..2);
        let dup = i.find_content([0, 0]).unwrap().dup(true);
        i.set(key(7), dup);
        for n in 0..1u64 << 16 {
            evict(&mut i, 0..2);
            fill(&mut i, n + 2, 0..2);
        }
        assert_eq!(i.weu(0).generation, 0, "the same number as at first");
        assert_eq!((i.look(key(7)), i.counters().rollovers), (None, 1));
    }

    #[test]
    fn with_few_fingerprints_the_one_used_longest_ago_goes() {
        let mut i = Index::new(1, 3, 0);
        i.add_partition(1);
        fill(&mut i, 1, 0..3);
        assert!(i.find_content([0, 0]).is_some());
        i.set_content([77, 0], Loc::new(0, 0, 1, 0));
        let kept: Vec<u64> = [0, 1, 2, 77].into_iter().filter(|n| i.find_content([*n, 0]).is_some()).collect();
        assert_eq!((kept, i.counters().fingerprints_dropped), (vec![0, 2, 77], 1));
    }

    #[test]
    fn what_is_learnt_late_is_as_if_used_longest_ago() {
        let mut i = Index::new(1, 3, 0);
        i.add_partition(1);
        fill(&mut i, 1, 0..2);
        for n in [0, 50, 51] {
            i.learn_content([n, 0], Loc::new(0, 7, 1, 7));
        }
        assert_eq!(i.find_content([0, 0]).map(Loc::slot), Some(0), "newer knowledge stays");
        i.set_content([77, 0], Loc::new(0, 0, 1, 0));
        let kept: Vec<u64> = [0, 1, 50, 51, 77].into_iter().filter(|n| i.find_content([*n, 0]).is_some()).collect();
        assert_eq!(kept, [0, 1, 77], "51 wasn't taken in, and 50 went first");
    }

    #[test]
    fn a_volume_that_is_gone_has_nothing_cached() {
        let mut i = Index::new(1, 0, 0);
        i.add_partition(1);
        fill(&mut i, 1, 0..5);
        i.forget_volume(3);
        assert!((0..5).all(|n| i.look(key(n)).is_none()));
        assert_eq!(i.entries().count(), 0);
    }

    #[test]
    fn dirty_extents_are_counted_where_they_lie() {
        let mut i = Index::new(2, 0, 0);
        i.add_partition(2);
        let a = i.take_free(0, 1, true).unwrap();
        let b = i.take_free(0, 2, true).unwrap();
        i.set(key(1), Loc::new(a, 0, 1, 0).dirty(true));
        i.set(key(2), Loc::new(a, 0, 1, 0).dirty(true).dup(true));
        assert_eq!(i.weu(a).dirty, 2);
        i.set(key(1), Loc::new(b, 0, 1, 0).dirty(true));
        i.remove(key(2));
        assert_eq!((i.weu(a).dirty, i.weu(b).dirty), (0, 1));
    }
}
