//! Volumes: made known, cached otherwise, forgotten; what the slow device has of them for good.

use crate::config::{CacheVolume, Mode, Planted, Sharing};
use crate::format::Record;
use crate::index::Key;
use crate::layer::Cache;
use crate::request::Covers;
use plimsoll_base::{Outcome, Time, VolumeKey};
use plimsoll_stack::Actions;

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
    /// If 65,535 volumes were known since the start.
    pub fn announce(
        &mut self,
        now: Time,
        key: VolumeKey,
        volume: CacheVolume,
        out: &mut Actions,
    ) -> Result<(), &'static str> {
        let slot = self.slot_of(key).ok_or("65,535 volumes were cached since the start: restart the node")?;
        let partition = self.volumes[slot as usize].partition;
        if self.config.sharing == Sharing::PerVolume {
            self.index.set_quota(partition, volume.weus_max.min(self.layout.weus));
        }
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
        self.progress(now, out);
        Ok(())
    }

    /// The volume's slot, a new one if it has none.
    pub(crate) fn slot_of(&mut self, key: VolumeKey) -> Option<u16> {
        if let Some(&slot) = self.by_key.get(&key) {
            return Some(slot);
        }
        let slot = u16::try_from(self.volumes.len()).ok().filter(|s| *s < u16::MAX)?;
        let partition = match self.config.sharing {
            Sharing::Shared => 0,
            // Until it's announced it may keep what it has, and take no more.
            Sharing::PerVolume => self.index.add_partition(0),
        };
        self.volumes.push(Volume {
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
        });
        self.by_key.insert(key, slot);
        Some(slot)
    }

    /// Forgets a volume that was deleted, also what only the cache has of it. No request of it may be under way.
    pub fn forget(&mut self, now: Time, key: VolumeKey, out: &mut Actions) {
        let Some(slot) = self.by_key.remove(&key) else { return };
        let mine = |k: &Key| k.volume() == slot;
        for k in self.dirty.iter().copied().filter(mine).collect::<Vec<_>>() {
            let was_dirty = self.undirty(k);
            self.index.remove(k);
            self.take_reference(k, was_dirty);
        }
        let named: Vec<Key> = self.refs.range(Key::new(slot, 0)..Key::new(slot + 1, 0)).map(|r| *r.0).collect();
        for key in named {
            self.refs.remove(&key);
        }
        self.fills.retain(|k, _| !mine(k));
        self.ahead.forget(mine);
        self.recipes.forget(mine);
        self.index.forget_volume(slot);
        if self.config.planted != Some(Planted::ForgetDeletions) {
            self.gone.push((key, self.next_sequence));
            let number = self.journal.push(Record::Gone(key));
            self.going.push((key, number));
        }
        self.progress(now, out);
    }

    /// May use so many WEUs from now on: a live resize where space is shared.
    pub fn set_weus_max(&mut self, now: Time, weus_max: u32, out: &mut Actions) {
        self.config.weus_max = weus_max;
        if self.config.sharing == Sharing::Shared {
            self.index.set_quota(0, weus_max.min(self.layout.weus));
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

    /// The slow device was flushed, if that went well.
    pub(crate) fn slow_flushed(&mut self, covers: Option<Covers>, outcome: Outcome) {
        if let Some((slot, n)) = covers.filter(|_| outcome.is_done()) {
            let v = &mut self.volumes[slot as usize];
            v.flushed = v.flushed.max(n);
        }
    }
}
