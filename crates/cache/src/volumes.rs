//! Volumes by slot and by key, and how many of the changes of each the slow device has durably.

use crate::config::{CacheVolume, Mode, Sharing};
use plimsoll_base::VolumeKey;
use std::collections::BTreeMap;
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

    /// True if a new volume gets no slot before [`Volumes::set_free`].
    pub(crate) fn has_no_slot(&self) -> bool {
        self.is_full() && self.free.is_empty()
    }

    /// Slots of volumes that are gone, and of which nothing is left: they are given out again.
    pub(crate) fn set_free(&mut self, free: Vec<u16>) {
        self.free = free;
    }

    /// Forgets a volume; its slot stays until nothing is left of it.
    pub(crate) fn remove(&mut self, key: &VolumeKey) -> Option<u16> {
        self.by_key.remove(key)
    }
}
