//! Volumes: made known, cached otherwise, forgotten; what the slow device has of them for good.

use crate::config::{CacheVolume, Mode, Planted, Sharing};
use crate::format::Record;
use crate::index::Key;
use crate::layer::Cache;
use crate::request::{Covers, Pending, RETRY};
use crate::streams::Streams;
use plimsoll_base::{Outcome, Time, VolumeKey};
use plimsoll_stack::Actions;
use std::collections::BTreeSet;

/// A volume that is known, or of which something is cached.
pub(crate) struct Volume {
    pub key: VolumeKey,
    /// `None` until it is announced.
    pub config: Option<CacheVolume>,
    pub partition: u16,
    /// What its fingerprints are keyed with.
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

    /// Is all of it to be written back?
    pub fn drains(&self) -> bool {
        self.draining || self.config.is_some_and(|c| c.mode != Mode::Back)
    }
}

impl Cache {
    /// Makes a volume known, or changes how it is cached. What only the cache has of a volume that is no longer write-back
    /// goes to the slow device from now on.
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
    pub(crate) fn slot_of(&mut self, key: VolumeKey) -> Option<u16> {
        if let Some(&slot) = self.by_key.get(&key) {
            return Some(slot);
        }
        let Some(slot) = u16::try_from(self.volumes.len()).ok().filter(|s| *s < u16::MAX) else {
            return self.reuse_slot(key);
        };
        let partition = match self.config.sharing {
            Sharing::Shared => 0,
            // Until it's announced it may keep what it has, and take no more.
            Sharing::PerVolume => self.index.add_partition(0),
        };
        self.volumes.push(Volume::new(key, partition));
        self.by_key.insert(key, slot);
        Some(slot)
    }

    /// All slots were given out: that of a volume that is gone, and of which nothing is left, is given out again.
    fn reuse_slot(&mut self, key: VolumeKey) -> Option<u16> {
        if self.free_slots.is_empty() && self.recovery.is_none() {
            self.find_free_slots();
        }
        let slot = self.free_slots.pop()?;
        let v = &mut self.volumes[slot as usize];
        *v = Volume::new(key, v.partition);
        self.by_key.insert(key, slot);
        Some(slot)
    }

    /// Looks at all that is cached: once for as many volumes as were deleted since it was last done.
    fn find_free_slots(&mut self) {
        let needed: BTreeSet<u16> = self.confirming.volumes().collect();
        let busy: BTreeSet<u16> = self.inserts.iter().map(|(_, i)| i.key.volume()).collect();
        let empty = |v: &Volume| self.config.sharing == Sharing::Shared || self.index.use_of(v.partition).0 == 0;
        let free = |(slot, v): &(u16, &Volume)| {
            let gone = self.by_key.get(&v.key) != Some(slot);
            gone && empty(v) && !needed.contains(slot) && !busy.contains(slot) && !self.is_using_slot(*slot)
        };
        let all = (0..=u16::MAX).zip(&self.volumes);
        let free: Vec<u16> = all.filter(free).map(|(slot, _)| slot).collect();
        if free.is_empty() {
            return;
        }
        self.index.sweep_gone();
        // Those that are gone and not free stay so.
        for (slot, v) in (0..=u16::MAX).zip(&self.volumes) {
            if self.by_key.get(&v.key) != Some(&slot) && free.binary_search(&slot).is_err() {
                self.index.forget_volume(slot);
            }
        }
        self.streams = Streams::default();
        self.free_slots = free;
    }

    /// Is something of a slot's volume under way?
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
        if let Some(r) = &mut self.recovery {
            // What is found of it from now on doesn't count, and the snapshot that this start ends with says so.
            r.gone.insert(key);
            self.going.push((key, u64::MAX));
        }
        self.missed.remove(&key);
        let Some(slot) = self.by_key.remove(&key) else { return };
        let mine = |k: &Key| k.volume() == slot;
        self.forget_dirty(slot);
        let named: Vec<Key> = self.refs.range(Key::new(slot, 0)..Key::new(slot + 1, 0)).map(|r| *r.0).collect();
        for key in named {
            self.refs.remove(&key);
        }
        self.fills.retain(|k, _| !mine(k));
        self.ahead.forget(mine);
        self.recipes.forget(mine);
        self.index.forget_volume(slot);
        self.confirming.forget_volume(slot);
        self.share_out();
        if !self.chunks.is_empty() && self.config.sharing == Sharing::PerVolume {
            // Its part ends: what is open in it goes the way of the rest.
            let part = self.volumes[slot as usize].partition;
            self.close_part(now, part, out);
        }
        if self.config.planted != Some(Planted::ForgetDeletions) && self.recovery.is_none() {
            self.gone.push((key, self.next_sequence));
            let number = self.journal.push(Record::Gone(key));
            self.going.push((key, number));
        }
        self.progress(now, out);
    }

    /// Keeps fingerprints of so many percent of the extents from now on; nothing where there is no deduplication.
    pub(crate) fn set_fingerprints(&mut self, percent: u32) {
        if self.config.fingerprints_percent > 0 && percent > 0 {
            self.config.fingerprints_percent = percent;
            self.index.set_fingerprints_max((self.layout.extents() * u64::from(percent) / 100).max(1) as usize);
        }
    }

    /// The slow device lost something that it had acknowledged: no flush that ends later says that what was changed before is there, and
    /// what was being written back must be written again.
    pub(crate) fn slow_lost(&mut self, now: Time) {
        if self.planted(Planted::BelieveAfterLoss) {
            return;
        }
        self.slow_lost = true;
        self.confirming.lost();
        for w in &mut self.write_backs {
            if let Some(b) = &mut w.batch {
                b.failed = true;
                w.retry_at = now + RETRY;
            }
        }
    }

    /// The slow device was flushed, if that went well.
    pub(crate) fn slow_flushed(&mut self, covers: Option<Covers>, outcome: Outcome) {
        if let Some((slot, n)) = covers.filter(|_| outcome.is_done() && !self.slow_lost) {
            let v = &mut self.volumes[slot as usize];
            v.flushed = v.flushed.max(n);
            self.confirming.settled(slot, v.flushed);
        }
    }
}
