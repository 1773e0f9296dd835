//! Volumes: announced, cached in another mode, forgotten; and the changes of them that the slow device has durably.

use crate::config::{CacheVolume, Mode, Planted, Sharing};
use crate::index::Key;
use crate::layer::Cache;
use crate::read::Ahead;
use crate::request::{Covers, Pending, RETRY};
use crate::state::State;
use crate::streams::Streams;
use plimsoll_base::{Outcome, Time, VolumeKey};
use plimsoll_stack::Actions;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Index, IndexMut};

/// A volume that is known, or of which something is cached.
pub(crate) struct Volume {
    pub key: VolumeKey,
    /// `None` until it is announced.
    pub config: Option<CacheVolume>,
    pub partition: u16,
    /// The key of its fingerprints.
    pub hash_key: [u8; 32],
    pub dirty: u64,
    pub reads: u64,
    pub read_hits: u64,
    /// All of it is to be written back: it isn't write-back any more.
    pub draining: bool,
    /// Changes that the slow device has acknowledged, and how many of them a flush has covered.
    pub changes: u64,
    pub flushed: u64,
    /// A flush of the cache's own is under way.
    pub settling: bool,
}

impl Volume {
    fn new(key: VolumeKey, partition: u16) -> Volume {
        Volume {
            key,
            config: None,
            partition,
            hash_key: [0; 32],
            dirty: 0,
            reads: 0,
            read_hits: 0,
            draining: false,
            changes: 0,
            flushed: 0,
            settling: false,
        }
    }

    /// True if all of it is to be written back.
    pub fn drains(&self) -> bool {
        self.draining || self.config.is_some_and(|c| c.mode != Mode::Back)
    }
}

/// Volumes, by slot and by key, and what is known of them before the device is read. A slot is an index of this.
#[derive(Default)]
pub(crate) struct Volumes {
    slots: Vec<Volume>,
    by_key: BTreeMap<VolumeKey, u16>,
    /// Slots to give out again.
    free: Vec<u16>,
    /// The volumes that there are, and whether only the cache may have something of each; anything else it holds is nobody's.
    known: Option<BTreeMap<VolumeKey, bool>>,
    /// Volumes of which nothing counts that only the cache had under an earlier [`crate::CacheConfig::generation`] than this.
    given_up: BTreeMap<VolumeKey, u16>,
}

impl Index<usize> for Volumes {
    type Output = Volume;
    fn index(&self, slot: usize) -> &Volume {
        &self.slots[slot]
    }
}

impl IndexMut<usize> for Volumes {
    fn index_mut(&mut self, slot: usize) -> &mut Volume {
        &mut self.slots[slot]
    }
}

impl Volumes {
    pub(crate) fn set_known(&mut self, known: impl IntoIterator<Item = (VolumeKey, bool)>) {
        self.known = Some(known.into_iter().collect());
    }

    pub(crate) fn set_given_up(&mut self, since: impl IntoIterator<Item = (VolumeKey, u16)>) {
        self.given_up = since.into_iter().collect();
    }

    /// Slots that were ever given out.
    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    /// By slot, also those that are gone.
    pub(crate) fn iter(&self) -> std::slice::Iter<'_, Volume> {
        self.slots.iter()
    }

    pub(crate) fn iter_mut(&mut self) -> std::slice::IterMut<'_, Volume> {
        self.slots.iter_mut()
    }

    /// The slot of a volume that has one.
    pub(crate) fn slot(&self, key: &VolumeKey) -> Option<u16> {
        self.by_key.get(key).copied()
    }

    /// The slot of a volume with requests under way: it is not forgotten before they end.
    pub(crate) fn slot_known(&self, key: &VolumeKey) -> u16 {
        self.by_key[key]
    }

    /// Returns true unless a slot's volume is gone.
    pub(crate) fn is_there(&self, slot: u16) -> bool {
        self.slots.get(usize::from(slot)).is_some_and(|v| self.by_key.get(&v.key) == Some(&slot))
    }

    /// The volume whose part this is, where each has its own.
    pub(crate) fn of_partition(&self, part: u16) -> Option<VolumeKey> {
        let mine = |(key, slot): (&VolumeKey, &u16)| (self.slots[usize::from(*slot)].partition == part).then_some(*key);
        self.by_key.iter().find_map(mine)
    }

    /// The volumes that there are, if that is known, and whether only the cache may have something of each.
    pub(crate) fn known(&self) -> Option<&BTreeMap<VolumeKey, bool>> {
        self.known.as_ref()
    }

    /// Returns true if a volume is none of those that there are.
    pub(crate) fn is_unknown(&self, key: &VolumeKey) -> bool {
        self.known.as_ref().is_some_and(|known| !known.contains_key(key) && !self.by_key.contains_key(key))
    }

    /// The generation since which a volume's dirty extents count again.
    pub(crate) fn given_up_since(&self, key: &VolumeKey) -> Option<u16> {
        self.given_up.get(key).copied()
    }

    /// True if the cache may have something newer than the slow device, as far as is known before it was read.
    pub(crate) fn may_be_behind(&self) -> bool {
        self.known.as_ref().is_none_or(|known| known.values().any(|behind| *behind))
    }

    /// Names those volumes.
    pub(crate) fn behind(&self) -> String {
        let Some(known) = &self.known else { return "its write-back volumes".into() };
        let names =
            known.iter().filter(|(_, behind)| **behind).map(|(k, _)| format!("volume {}.{}", k.id, k.generation));
        names.collect::<Vec<_>>().join(", ")
    }

    /// The volume's slot, a new one if it has none; nothing if all are given out. `add_partition` adds a partition without a WEU: until
    /// the volume is announced it may keep what it has, and take no more.
    pub(crate) fn slot_of(
        &mut self,
        key: VolumeKey,
        sharing: Sharing,
        add_partition: impl FnOnce() -> u16,
    ) -> Option<u16> {
        if let Some(&slot) = self.by_key.get(&key) {
            return Some(slot);
        }
        if self.is_full() {
            // That of a volume that is gone, and of which nothing is left, is given out again.
            let slot = self.free.pop()?;
            let v = &mut self.slots[usize::from(slot)];
            *v = Volume::new(key, v.partition);
            self.by_key.insert(key, slot);
            return Some(slot);
        }
        let slot = self.slots.len() as u16;
        let partition = match sharing {
            Sharing::Shared => 0,
            Sharing::PerVolume => add_partition(),
        };
        self.slots.push(Volume::new(key, partition));
        self.by_key.insert(key, slot);
        Some(slot)
    }

    /// True if all slots were given out.
    fn is_full(&self) -> bool {
        self.slots.len() >= usize::from(u16::MAX)
    }

    /// Forgets a volume; its slot stays until nothing is left of it.
    fn remove(&mut self, key: &VolumeKey) -> Option<u16> {
        self.by_key.remove(key)
    }
}

impl Cache {
    /// Makes a volume known, or changes how it is cached. Dirty extents of a volume that is no longer write-back are written back
    /// from now on.
    ///
    /// # Errors
    /// If 65,535 volumes are known.
    pub fn announce(
        &mut self,
        now: Time,
        key: VolumeKey,
        volume: CacheVolume,
        out: &mut Actions,
    ) -> Result<(), &'static str> {
        let slot = self.slot_of(key).ok_or("65,535 volumes are cached: this one is not")?;
        let v = &mut self.volumes[slot as usize];
        v.hash_key = *blake3::Hasher::new()
            .update(&self.layout.salt.to_le_bytes())
            .update(&volume.domain.to_le_bytes())
            .finalize()
            .as_bytes();
        v.config = Some(volume);
        // If only the process ended before, what it had changed last may not be durable yet.
        v.changes = v.changes.max(1);
        v.draining = volume.mode != Mode::Back && v.dirty > 0;
        self.dirty.release_volume(slot);
        self.share_out();
        self.progress(now, out);
        Ok(())
    }

    /// The volume's slot, a new one if it has none.
    fn slot_of(&mut self, key: VolumeKey) -> Option<u16> {
        let is_new = self.volumes.slot(&key).is_none();
        if is_new && self.volumes.is_full() && self.volumes.free.is_empty() && !self.state.is_starting() {
            self.find_free_slots();
        }
        self.volumes.slot_of(key, self.config.sharing, || self.residency.add_partition(0))
    }

    /// Frees the slots of deleted volumes: one walk over the whole index for all volumes deleted since the last one.
    fn find_free_slots(&mut self) {
        let needed: BTreeSet<u16> = self.durability.unconfirmed_slots().collect();
        let busy = self.inserts.volumes();
        let empty = |v: &Volume| self.config.sharing == Sharing::Shared || self.residency.use_of(v.partition).0 == 0;
        let free = |(slot, v): &(u16, &Volume)| {
            !self.volumes.is_there(*slot)
                && empty(v)
                && !needed.contains(slot)
                && !busy.contains(slot)
                && !self.is_using_slot(*slot)
        };
        let all = (0..=u16::MAX).zip(self.volumes.iter());
        let free: Vec<u16> = all.filter(free).map(|(slot, _)| slot).collect();
        if free.is_empty() {
            return;
        }
        // Those that are gone and not free stay so.
        let stays = |slot: &u16| !self.volumes.is_there(*slot) && free.binary_search(slot).is_err();
        self.residency.sweep_gone((0..self.volumes.len() as u16).filter(stays));
        self.streams = Streams::default();
        self.volumes.free = free;
    }

    /// True if something of a slot's volume is under way.
    pub(crate) fn is_using_slot(&self, slot: u16) -> bool {
        let mine = |k: &Key| k.volume() == slot;
        let pending = |p: &Pending| match p {
            Pending::Fill { key, .. } => mine(key),
            Pending::Settle((s, _)) => *s == slot,
            _ => false,
        };
        self.destaging.iter().any(mine)
            || self.fetches.iter().any(|(_, f)| mine(&f.key))
            || self.pending.iter().any(|(_, p)| pending(p))
    }

    /// Forgets a volume that was deleted, also what only the cache has of it. No request of it may be under way.
    pub fn forget(&mut self, now: Time, key: VolumeKey, out: &mut Actions) {
        if let State::Recovering(r) = &mut self.state {
            // What is found of it from now on doesn't count, and the snapshot that this start ends with says so.
            r.forget(key);
            self.durability.volume_deleted_at_start(key);
        }
        self.durability.forget_missed(&key);
        let Some(slot) = self.volumes.remove(&key) else { return };
        let mine = |k: &Key| k.volume() == slot;
        self.forget_dirty(slot);
        self.gate.forget(slot);
        self.ahead.forget(mine);
        self.recipes.forget(mine);
        self.residency.forget_volume(slot);
        self.durability.forget_slot(slot);
        self.share_out();
        let is_written = self.state.bypassed().is_none() || self.planted(Planted::BrokenWritten);
        if is_written && self.packing.len() > 0 && self.config.sharing == Sharing::PerVolume {
            // Its part ends: what is open in it goes the way of the rest.
            let part = self.volumes[slot as usize].partition;
            self.close_part(now, part, out);
        }
        // What is found already was taken over: its snapshot may be on its way without this.
        if !Planted::ForgetDeletions.is_in(self.config.planted) && !matches!(self.state, State::Recovering(_)) {
            self.durability.volume_deleted(key, self.packing.unused_sequence());
        }
        self.progress(now, out);
    }

    /// Keeps fingerprints of `percent` percent of the extents from now on; nothing where there is no deduplication.
    pub(crate) fn set_fingerprints(&mut self, percent: u32) {
        if self.config.fingerprints_percent > 0 && percent > 0 {
            self.config.fingerprints_percent = percent;
            self.residency.set_fingerprints_max((self.layout.extents() * u64::from(percent) / 100).max(1) as usize);
        }
    }

    /// The slow device lost something that it had acknowledged: no flush that ends later says that what was changed before is there, and
    /// what was being written back must be written again. Nor is clean content served that may be newer.
    pub(crate) fn slow_lost(&mut self, now: Time) {
        if self.planted(Planted::BelieveAfterLoss) {
            return;
        }
        self.slow_lost = true;
        self.durability.slow_lost();
        for w in &mut self.write_backs {
            if let Some(b) = &mut w.batch {
                b.failed = true;
                w.retry_at = now + RETRY;
            }
        }
        if self.is_ready() {
            self.drop_unflushed();
        }
    }

    /// Drops all clean content that is newer than the last flush of the slow device, or may be: that device may have something older now. An
    /// eviction or the next start would go back to it, though a read has shown the newer one, and a later flush has promised it.
    fn drop_unflushed(&mut self) {
        self.gate.end_all_fills();
        self.ahead = Ahead::default();
        self.recipes.forget(|_| true);
        self.ops.iter_mut().for_each(|(_, o)| o.fills = false);
        // A WEU is confirmed after a flush of what is in it.
        for key in self.residency.take_clean_on(|weu| self.durability.is_on_trial(weu)) {
            self.drop_clean(key);
        }
    }

    /// The slow device was flushed, if that went well.
    pub(crate) fn slow_flushed(&mut self, covers: Option<Covers>, outcome: Outcome) {
        if let Some((slot, n)) = covers.filter(|_| outcome.is_done() && !self.slow_lost) {
            let v = &mut self.volumes[slot as usize];
            v.flushed = v.flushed.max(n);
            self.durability.settled(slot, v.flushed);
        }
    }
}
