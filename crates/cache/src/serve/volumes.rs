//! Volumes: announced, cached in another mode, forgotten; and what of them the slow device has durably.

use crate::ahead::Ahead;
use crate::config::{CacheVolume, Mode, Planted, Sharing};
use crate::index::Key;
use crate::request::{Covers, Pending, RETRY};
use crate::serve::Cache;
use crate::state::State;
use crate::streams::Streams;
use crate::volumes::Volume;
use plimsoll_base::{Outcome, Time, VolumeKey};
use plimsoll_stack::Actions;
use std::collections::BTreeSet;

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
        if is_new && self.volumes.has_no_slot() && !self.state.is_starting() {
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
        self.volumes.set_free(free);
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
