//! The metadata store's contents in memory, and the edits that change them.

use crate::record::{CacheRecord, FenceRecord, KnobsRecord, TenantRecord, VolumeRecord, VolumeState};
use crate::space::{GRANULE_BYTES, Space};
use crate::superblock::Region;
use std::collections::BTreeMap;

/// One change of one row. A mutation is a list of these, made durable in one transaction and then applied in memory.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Edit {
    PutVolume(VolumeRecord),
    DropVolume(u32),
    PutName(String, u32),
    DropName(String),
    /// The generation that the next volume with this id gets.
    PutGeneration(u32, u32),
    PutTenant(TenantRecord),
    DropTenant(String),
    PutFence(FenceRecord),
    PutKnobs(KnobsRecord),
    PutCache(CacheRecord),
}

/// Everything stored, by key.
#[derive(Clone, PartialEq, Default, Debug)]
pub(crate) struct State {
    pub(crate) volumes: BTreeMap<u32, VolumeRecord>,
    /// Of the volumes in [`VolumeState::Ready`].
    pub(crate) names: BTreeMap<String, u32>,
    pub(crate) tenants: BTreeMap<String, TenantRecord>,
    pub(crate) generations: BTreeMap<u32, u32>,
    pub(crate) fence: Option<FenceRecord>,
    pub(crate) knobs: Option<KnobsRecord>,
    pub(crate) cache: Option<CacheRecord>,
}

impl State {
    pub(crate) fn apply(&mut self, edit: Edit) {
        match edit {
            Edit::PutVolume(v) => drop(self.volumes.insert(v.key.id, v)),
            Edit::DropVolume(id) => drop(self.volumes.remove(&id)),
            Edit::PutName(name, id) => drop(self.names.insert(name, id)),
            Edit::DropName(name) => drop(self.names.remove(&name)),
            Edit::PutGeneration(id, generation) => drop(self.generations.insert(id, generation)),
            Edit::PutTenant(t) => drop(self.tenants.insert(t.name.clone(), t)),
            Edit::DropTenant(name) => drop(self.tenants.remove(&name)),
            Edit::PutFence(f) => self.fence = Some(f),
            Edit::PutKnobs(k) => self.knobs = Some(k),
            Edit::PutCache(c) => self.cache = Some(c),
        }
    }

    /// Checks that the rows fit each other, and returns what the volumes leave free of `home`.
    ///
    /// # Errors
    /// Says what doesn't fit: rows of a store that this code didn't write.
    pub(crate) fn check(&self, home: Region) -> Result<Space, String> {
        let mut space = Space::new(home);
        let mut used_bytes = 0;
        for v in self.volumes.values() {
            for e in &v.extents {
                let taken = space.take(*e);
                taken.map_err(|m| format!("volume {:?}: {:?} overlaps another or is outside {home:?}", v.name, m.0))?;
                used_bytes += e.len;
            }
            let named = self.names.get(&v.name) == Some(&v.key.id);
            if named != (v.state == VolumeState::Ready) {
                return Err(format!("volume {:?} is {:?}, which its name's entry denies", v.name, v.state));
            }
            if v.key.id == 0 || self.generations.get(&v.key.id).copied().unwrap_or(0) != v.key.generation {
                return Err(format!("volume {:?} has key {:?}, which its id's generation denies", v.name, v.key));
            }
        }
        let ready = self.volumes.values().filter(|v| v.state == VolumeState::Ready).count();
        if self.names.len() != ready {
            return Err(format!("{} names for {ready} volumes", self.names.len()));
        }
        assert_eq!(space.free_bytes() + used_bytes, home.len, "space is neither lost nor made");
        assert!(used_bytes.is_multiple_of(GRANULE_BYTES));
        Ok(space)
    }

    /// The lowest id that no volume has, and the generation its next use gets. 0 is no volume's id.
    pub(crate) fn next_key(&self) -> (u32, u32) {
        let mut id = 1;
        while self.volumes.contains_key(&id) || self.generations.get(&id) == Some(&u32::MAX) {
            id += 1;
        }
        (id, self.generations.get(&id).copied().unwrap_or(0))
    }
}
