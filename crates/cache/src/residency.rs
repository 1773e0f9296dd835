//! Residency: the extents that are cached and their places, the headers' entries that name them, and the WEUs that leave.
//!
//! ```text
//!  extent ──► place in a WEU: base, named by the header's entry of that slot
//!                           │ duplicate of what is there, named by an entry elsewhere, or by none if it is clean
//!  WEU: open ──► full ──► leaving: waits ──► its header is read ──► retired: waits for the journal ──► trimmed ──► free
//! ```
//! [`Residency`] owns the index, the names of duplicates, pins, corrupt places, and the stages of WEUs that leave. A
//! change of an extent's place hands back the header's entry that is no longer true by that, if there is one. Each entry is handed back
//! once. The caller must see that no start trusts it.
//!
//! A WEU stays while anything *pins* it: a fetch, the name of a dirty duplicate, or an entry that was superseded by what isn't durable
//! yet. Residency doesn't know what a request, a chunk, or the journal is.

mod check;

use crate::bits::Bits;
use crate::config::{Eviction, Planted};
use crate::index::{Fingerprint, Index, IndexCounters, Key, Loc, Weu, WeuState};
use crate::place::Superseded;
use std::collections::{BTreeMap, BTreeSet};

/// One of this number of a part's WEUs may be mostly for names of clean duplicates.
pub(crate) const NAMES_SHARE: u32 = 8;

/// Entries that the cleaner looks at per eviction, beside its share of all.
const SWEEP_LEAST: usize = 64;

/// Entries of the index that are looked at for one to give way to a duplicate.
const LOOKED_AT: usize = 64;

/// The stage of a WEU that leaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Evict {
    /// Something in it is dirty or relied on.
    Waiting,
    /// Its header is being read.
    Reading,
    /// Retired; waits for the journal.
    Journaling(u64),
    /// Being trimmed.
    Trimming,
}

/// An entry of a WEU's header, as the eviction reads it.
pub(crate) struct Entry {
    pub slot: u32,
    /// Its extent, unless its volume is gone.
    pub key: Option<Key>,
    /// It names a duplicate.
    pub is_name: bool,
    pub fp: Option<Fingerprint>,
    /// It was dead already when the header was made.
    pub is_dead: bool,
}

/// Results of a WEU's retirement.
pub(crate) struct Retired {
    /// Extents of entries that weren't dead: a start may trust those until the journal says that the WEU was evicted.
    pub trusted: Vec<Key>,
    /// Clean duplicates that it named, and whose bytes are elsewhere: their places. They have no name now.
    pub nameless: Vec<(Key, Loc)>,
    /// Some of its entries are unknown, as headers were damaged.
    pub is_damaged: bool,
}

/// A dirty extent that a start has found.
pub(crate) struct FoundDirty {
    pub key: Key,
    pub loc: Loc,
    /// The header's entry that names it, if it is a duplicate.
    pub own: Option<Loc>,
}

/// See the module's documentation.
pub(crate) struct Residency {
    planted: Option<Planted>,
    index: Index,
    /// Duplicates, and the header's entry that names each. A dirty one has a name, which pins its WEU. A clean one may have none; of one
    /// that has a name nothing more than this may be known.
    refs: BTreeMap<Key, Loc>,
    /// By partition, WEUs whose slots are for more than a half names of clean duplicates.
    name_weus: BTreeMap<u16, BTreeSet<u32>>,
    /// WEUs that must stay, and for how many reasons.
    pins: BTreeMap<u32, u32>,
    /// Places whose bytes are not what they should be.
    bad: BTreeSet<(u32, u32)>,
    leaving: BTreeMap<u32, Evict>,
    /// Leaving WEUs whose used extents were taken to be put in again: that happens once.
    reinserted: BTreeSet<u32>,
    /// Entries have changed since [`Residency::take_clean_on`].
    has_changed: bool,
}

impl Residency {
    /// Residency of `weus` free WEUs, with at most `fps_max` fingerprints, whose tables have room for `extents` from the beginning.
    pub(crate) fn new(
        weus: u32,
        fps_max: usize,
        extents: usize,
        eviction: Eviction,
        planted: Option<Planted>,
    ) -> Residency {
        Residency {
            planted,
            index: Index::new(weus, fps_max, extents).evicting(eviction),
            refs: BTreeMap::new(),
            name_weus: BTreeMap::new(),
            pins: BTreeMap::new(),
            bad: BTreeSet::new(),
            leaving: BTreeMap::new(),
            reinserted: BTreeSet::new(),
            has_changed: false,
        }
    }

    fn planted(&self, p: Planted) -> bool {
        p.is_in(self.planted)
    }

    // A start.

    /// The index, for a recovery to fill: nothing is resident yet.
    pub(crate) fn index_to_fill(&mut self) -> &mut Index {
        debug_assert!(self.refs.is_empty() && self.pins.is_empty() && self.leaving.is_empty(), "it is in use");
        self.has_changed = true;
        &mut self.index
    }

    /// Sets the number of WEUs, all of them free.
    pub(crate) fn set_weus(&mut self, weus: u32) {
        self.index.set_weus(weus);
    }

    /// Takes over what a recovery has found beside the index: duplicates' names and WEUs that are mostly names. `maybe_dirty` are the
    /// extents of which a dirty entry was found. Returns those that are dirty.
    pub(crate) fn restore(
        &mut self,
        refs: BTreeMap<Key, Loc>,
        of_names: Vec<u32>,
        mut maybe_dirty: Vec<Key>,
    ) -> Vec<FoundDirty> {
        self.refs = refs;
        for weu in of_names {
            self.name_weus.entry(self.index.weu(weu).partition).or_default().insert(weu);
        }
        maybe_dirty.sort_unstable();
        maybe_dirty.dedup();
        let mut dirty = Vec::new();
        for key in maybe_dirty {
            let Some(loc) = self.index.look(key).filter(|l| l.is_dirty()) else { continue };
            let own = self.refs.get(&key).copied();
            own.into_iter().for_each(|own| self.pin(own.weu()));
            dirty.push(FoundDirty { key, loc, own });
        }
        dirty
    }

    // Partitions and volumes.

    /// Number of partitions.
    pub(crate) fn partitions(&self) -> u16 {
        self.index.partitions()
    }

    /// Adds a partition without a WEU; its number.
    pub(crate) fn add_partition(&mut self, quota: u32) -> u16 {
        self.index.add_partition(quota)
    }

    /// Lets a partition have at most `quota` WEUs; what is too much is to be evicted.
    pub(crate) fn set_quota(&mut self, partition: u16, quota: u32) {
        self.index.set_quota(partition, quota);
    }

    /// WEUs in use by a partition, and its quota.
    pub(crate) fn use_of(&self, partition: u16) -> (u32, u32) {
        self.index.use_of(partition)
    }

    /// A volume is gone, which has nothing dirty: nothing of it is resident.
    pub(crate) fn forget_volume(&mut self, slot: u16) {
        let named: Vec<Key> = self.refs.range(Key::new(slot, 0)..Key::new(slot + 1, 0)).map(|r| *r.0).collect();
        for key in named {
            self.refs.remove(&key);
        }
        self.index.forget_volume(slot);
    }

    /// Removes all entries of volumes that are gone. The slots in `gone` aren't given out again.
    pub(crate) fn sweep_gone(&mut self, gone: impl Iterator<Item = u16>) {
        self.index.sweep_gone();
        gone.for_each(|slot| self.index.forget_volume(slot));
    }

    // Look-ups.

    /// The index, to look at.
    pub(crate) fn index(&self) -> &Index {
        &self.index
    }

    /// A WEU.
    pub(crate) fn weu(&self, weu: u32) -> &Weu {
        self.index.weu(weu)
    }

    /// The place of an extent.
    pub(crate) fn look(&self, key: Key) -> Option<Loc> {
        self.index.look(key)
    }

    /// As [`Residency::look`], for a request: an entry without content that is met goes.
    pub(crate) fn find(&mut self, key: Key) -> Option<Loc> {
        self.index.find(key)
    }

    /// The extent at `loc` was used.
    pub(crate) fn touch(&mut self, loc: Loc) {
        self.index.touch(loc);
    }

    /// The place of the header's entry that names `key`, which is at `loc`.
    pub(crate) fn named_at(&self, key: Key, loc: Loc) -> Loc {
        self.refs.get(&key).copied().unwrap_or(loc)
    }

    /// The place of content with this fingerprint that an extent of a partition may point at.
    pub(crate) fn find_content(&mut self, fp: Fingerprint, partition: u16) -> Option<Loc> {
        let loc = self.index.find_content(fp)?;
        let weu = self.index.weu(loc.weu());
        let stays = matches!(weu.state, WeuState::Open | WeuState::Full) && weu.partition == partition;
        (stays && (!self.is_bad(loc) || self.planted(Planted::CorruptReused))).then_some(loc)
    }

    /// Clean extents of which the bytes or the name are in a WEU `on_trial`, and those without a name: nothing tells their age. Looks through
    /// all entries if any has changed since it was asked last: the caller drops those that it returns.
    pub(crate) fn take_clean_on(&mut self, on_trial: impl Fn(u32) -> bool) -> Vec<Key> {
        if !std::mem::take(&mut self.has_changed) {
            return Vec::new();
        }
        let of_it = |(key, loc): &(Key, Loc)| {
            if loc.is_dirty() {
                return false;
            }
            let own = self.refs.get(key).copied().or((!loc.is_dup()).then_some(*loc));
            on_trial(loc.weu()) || own.is_none_or(|own| on_trial(own.weu()))
        };
        self.index.entries().filter(of_it).map(|e| e.0).collect()
    }

    /// True if the bytes of a place are corrupt.
    pub(crate) fn is_bad(&self, loc: Loc) -> bool {
        self.bad.contains(&(loc.weu(), loc.at_bytes()))
    }

    // Changes of an extent's place.

    /// Points `key` at `loc`; `own` is the header's entry that says so. Returns the entry that is superseded.
    pub(crate) fn point(&mut self, key: Key, loc: Loc, own: Option<Loc>) -> Option<Superseded> {
        self.has_changed = true;
        let old_ref = self.take_reference(key);
        let old = self.index.set(key, loc);
        if let Some(own) = own.filter(|_| loc.is_dup()) {
            self.refs.insert(key, own);
            if loc.is_dirty() && !self.planted(Planted::NameUnpinned) {
                self.pin(own.weu());
            }
        }
        superseded(key, old, old_ref.filter(|_| !self.planted(Planted::NameKept)))
    }

    /// Forgets an extent. Returns whether anything was known of it but a name, and the entry that is superseded.
    pub(crate) fn remove(&mut self, key: Key) -> (bool, Option<Superseded>) {
        let old_ref = self.take_reference(key);
        let old = self.index.remove(key);
        (old.is_some(), superseded(key, old, old_ref))
    }

    /// The slow device has dirty extent `key`. Returns the header's entry that names it, if there is one: as a clean duplicate it stays
    /// named, and its name's WEU may leave.
    pub(crate) fn clean(&mut self, key: Key) -> Option<Loc> {
        let loc = self.index.look(key).filter(|l| l.is_dirty())?;
        let own = self.refs.get(&key).copied();
        if let Some(own) = own.filter(|_| !self.planted(Planted::NameUnpinned)) {
            self.unpin(own.weu());
        }
        self.index.set(key, loc.dirty(false));
        self.has_changed = true;
        own.or((!loc.is_dup()).then_some(loc))
    }

    /// A clean duplicate without a name has one now.
    pub(crate) fn name(&mut self, key: Key, own: Loc) {
        self.refs.insert(key, own);
    }

    /// The reference of `key`, removed; unpinned if it was dirty.
    fn take_reference(&mut self, key: Key) -> Option<Loc> {
        let own = self.refs.remove(&key)?;
        if self.index.look(key).is_some_and(Loc::is_dirty) && !self.planted(Planted::NameUnpinned) {
            self.unpin(own.weu());
        }
        Some(own)
    }

    /// Bits of WEUs' slots, for durability to set.
    pub(crate) fn bits(&mut self) -> Bits<'_> {
        Bits::of(&mut self.index)
    }

    /// The bytes of a place are corrupt. Returns whether that is new.
    pub(crate) fn set_bad(&mut self, loc: Loc) -> bool {
        self.bad.insert((loc.weu(), loc.at_bytes()))
    }

    // Contents.

    /// Content of this fingerprint is at `loc`.
    pub(crate) fn set_content(&mut self, fp: Fingerprint, loc: Loc) {
        self.index.set_content(fp, loc);
    }

    /// The same, as a header says that was read late. Newer knowledge stays.
    pub(crate) fn learn_content(&mut self, fp: Fingerprint, loc: Loc) {
        self.index.learn_content(fp, loc);
    }

    /// Limits the fingerprints to `max` from now on, at least 1.
    pub(crate) fn set_fingerprints_max(&mut self, max: usize) {
        self.index.set_fingerprints_max(max);
    }

    /// Makes room for one more duplicate where entries are limited to `most`. False if there is none.
    pub(crate) fn make_room(&mut self, most: u64) -> bool {
        (self.index.files() as u64) < most || self.index.drop_duplicate(LOOKED_AT)
    }

    // WEUs.

    /// A free WEU for `partition`, if it has room for one more; it is open from now on, under number `sequence`.
    pub(crate) fn open(&mut self, partition: u16, sequence: u64, for_dirty: bool) -> Option<u32> {
        self.index.take_free(partition, sequence, for_dirty)
    }

    /// The checksum of the bare extent at `loc`, in a WEU of about `slots` slots.
    pub(crate) fn set_sum(&mut self, loc: Loc, sum: u32, slots: u32) {
        self.index.weu_mut(loc.weu()).set_sum(loc.slot(), sum, slots);
    }

    /// A chunk of an open WEU was closed: the WEU's headers have this number of bytes, and list this number of slots. A full one takes no
    /// more.
    pub(crate) fn closed(&mut self, weu: u32, header_bytes: u32, slots: u32, is_full: bool) {
        let w = self.index.weu_mut(weu);
        (w.header_bytes, w.slots) = (header_bytes, slots);
        if is_full {
            self.index.filled(weu);
        }
    }

    /// True if WEU `weu` of a partition may have more names than other extents: it has already, or it may be one more that has.
    pub(crate) fn may_be_of_names(&mut self, partition: u16, weu: u32) -> bool {
        let most = (self.index.use_of(partition).1 / NAMES_SHARE).max(1) as usize;
        let of_names = self.name_weus.entry(partition).or_default();
        of_names.contains(&weu) || (of_names.len() < most && of_names.insert(weu))
    }

    /// A WEU must stay, for one more reason.
    pub(crate) fn pin(&mut self, weu: u32) {
        *self.pins.entry(weu).or_default() += 1;
    }

    /// One of the reasons is over.
    pub(crate) fn unpin(&mut self, weu: u32) {
        let n = self.pins.get_mut(&weu).expect("pinned before");
        *n -= 1;
        if *n == 0 {
            self.pins.remove(&weu);
        }
    }

    // WEUs that leave.

    /// The WEU of a partition that the policy chooses leaves from now on. `None` if none is full.
    pub(crate) fn begin_eviction(&mut self, partition: u16) -> Option<u32> {
        let weu = self.index.begin_eviction(partition)?;
        self.leaving.insert(weu, Evict::Waiting);
        Some(weu)
    }

    /// WEUs that leave, and their stages.
    pub(crate) fn leaving(&self) -> impl Iterator<Item = (u32, Evict)> + '_ {
        self.leaving.iter().map(|(weu, stage)| (*weu, *stage))
    }

    /// Number of WEUs that leave.
    pub(crate) fn leaving_len(&self) -> usize {
        self.leaving.len()
    }

    /// The stage of a WEU, if it leaves.
    pub(crate) fn stage(&self, weu: u32) -> Option<Evict> {
        self.leaving.get(&weu).copied()
    }

    /// True if dirty extents are in a WEU, or something pins it.
    pub(crate) fn must_stay(&self, weu: u32) -> bool {
        self.index.weu(weu).dirty > 0 || self.is_pinned(weu)
    }

    /// True if something pins a WEU.
    pub(crate) fn is_pinned(&self, weu: u32) -> bool {
        self.pins.contains_key(&weu)
    }

    /// The header of a WEU that leaves is read, which must not stay.
    pub(crate) fn read_header(&mut self, weu: u32) {
        debug_assert!(self.stage(weu) == Some(Evict::Waiting) && !self.must_stay(weu));
        self.leaving.insert(weu, Evict::Reading);
    }

    /// True if a WEU whose header was read can be retired. It waits again if something in it must stay since.
    pub(crate) fn may_retire(&mut self, weu: u32) -> bool {
        if self.stage(weu) != Some(Evict::Reading) {
            return false;
        }
        let stays = self.must_stay(weu) && !self.planted(Planted::RetireUnlooked);
        if stays {
            self.leaving.insert(weu, Evict::Waiting);
        }
        !stays
    }

    /// True if extents of a leaving WEU whose header was read are to be put in again if they were used: by some policies, once.
    pub(crate) fn begin_reinsertion(&mut self, weu: u32) -> bool {
        debug_assert!(self.stage(weu) == Some(Evict::Reading));
        self.index.eviction().reinserts() && self.reinserted.insert(weu)
    }

    /// True if `key` is clean, at this slot of a leaving WEU and nowhere else, and is to be put in again.
    pub(crate) fn must_reinsert(&self, key: Key, weu: u32, slot: u32) -> bool {
        let is_here = |l: &Loc| (l.weu(), l.slot(), l.is_dup(), l.is_dirty()) == (weu, slot, false, false);
        self.look(key).filter(is_here).is_some_and(|loc| !self.is_bad(loc) && self.index.must_reinsert(loc))
    }

    /// A leaving WEU waits for its extents that are fetched to be put in again.
    pub(crate) fn wait_for_reinsertion(&mut self, weu: u32) {
        self.leaving.insert(weu, Evict::Waiting);
    }

    /// The extents of a WEU go. `entries` are those of its headers that could be read. [`Residency::retired`] must follow.
    pub(crate) fn retire(&mut self, weu: u32, entries: Vec<Entry>) -> Retired {
        let slots = self.index.weu(weu).slots;
        let (mut named, mut trusted) = (Vec::new(), Vec::new());
        for e in &entries {
            let here = |own: &Loc| own.weu() == weu && own.slot() == e.slot;
            if e.is_name
                && let Some(key) = e.key.filter(|k| self.refs.get(k).is_some_and(here))
            {
                self.refs.remove(&key);
                named.push(key);
            }
            // What is dead is so in the journal, or waited for already.
            trusted.extend(e.key.filter(|_| !e.is_dead && !self.index.weu(weu).is_dead(e.slot)));
        }
        let is_damaged = entries.len() < slots as usize;
        if is_damaged {
            // Whom it named isn't told by it.
            self.refs.retain(|_, own| own.weu() != weu);
        }
        self.index.retire(weu, entries.into_iter().map(|e| (e.slot, e.key, e.fp)));
        let duplicate = |key: Key| Some((key, self.index.look(key).filter(|l| l.is_dup() && !l.is_dirty())?));
        let nameless = named.into_iter().filter_map(duplicate).collect();
        Retired { trusted, nameless, is_damaged }
    }

    /// A WEU was retired: it may be written again once the journal is durable up to this record.
    pub(crate) fn retired(&mut self, weu: u32, record: u64) {
        self.bad.retain(|(w, _)| *w != weu);
        self.reinserted.remove(&weu);
        if let Some(of_names) = self.name_weus.get_mut(&self.index.weu(weu).partition) {
            of_names.remove(&weu);
        }
        let share = self.index.files() / self.index.weus().len().max(1);
        self.index.sweep(SWEEP_LEAST + 2 * share);
        self.leaving.insert(weu, Evict::Journaling(record));
    }

    /// A retired WEU is trimmed, which nothing pins.
    pub(crate) fn trim(&mut self, weu: u32) {
        debug_assert!(matches!(self.stage(weu), Some(Evict::Journaling(_))) && !self.is_pinned(weu));
        self.leaving.insert(weu, Evict::Trimming);
    }

    /// A retired WEU is free. False if it wasn't leaving: the device has failed since.
    pub(crate) fn free(&mut self, weu: u32) -> bool {
        let left = self.leaving.remove(&weu).is_some();
        if left {
            self.index.free(weu);
        }
        left
    }

    /// The fast device failed: no WEU leaves any more.
    pub(crate) fn break_down(&mut self) {
        self.leaving.clear();
        self.reinserted.clear();
    }

    // For the status.

    /// Bytes that all of it takes.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.index.memory_bytes() + self.refs.len() as u64 * 32
    }

    /// Counters of the index.
    pub(crate) fn counters(&self) -> IndexCounters {
        self.index.counters()
    }
}

/// The header's entry of `key` that was true: that of its base extent, or its name as a duplicate. A clean duplicate's bytes may be
/// gone; then only its name is superseded.
fn superseded(key: Key, old: Option<Loc>, old_ref: Option<Loc>) -> Option<Superseded> {
    let place = old.filter(|o| !o.is_dup()).or(old_ref)?;
    Some(Superseded { key, place, bytes_in: old.map_or(place.weu(), Loc::weu) })
}

#[cfg(test)]
mod tests;
