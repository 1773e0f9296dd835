//! A backup beside what is left of the pool: rows as they are put back.
//!
//! The devices of the pool's cache, and the data in the pool's own space, are of the pool as it was before the restore. An older backup
//! takes back which keys of volumes were given away, how often the cache's device was out of date, and whose the space is. The first two go
//! on above all that was ever used. Space that another volume has had since is zeroed.

use crate::backup::{Age, Backup, RestoreError};
use crate::meta::CACHE_ROW;
use crate::record::{CacheRecord, EXTENTS_MAX, ReplicaRecord, VolumeRecord, VolumeState};
use crate::space::Space;
use crate::state::State;
use plimsoll_base::VolumeKey;
use plimsoll_stack::Extent;
use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

/// Numbers of changes that the restore of an older backup skips. The newest change may be a few above the newest that is known, and an
/// earlier program may have given an id's volumes generations above it.
pub(crate) const CHANGES_SKIPPED: u64 = 1 << 20;
/// Generations of the cache that such a restore skips if nothing tells the newest: more failures of its device than there were since the
/// backup. Few beside the 32,768 that the cache's device can distinguish.
const CACHE_GENERATIONS_SKIPPED: u32 = 1024;

/// The name of free space that is zeroed after a start.
const SET_ASIDE: &str = "free space of a restore";

/// Remains of a device's metadata, and what the operator knows.
pub(crate) struct Found {
    pub(crate) age: Age,
    /// The backup's map is the pool's: what it calls free reads as zeroes.
    pub(crate) is_same: bool,
    /// The newest sequence of a superblock that is known.
    pub(crate) sequence: u64,
    pub(crate) formatted: bool,
    /// The newest change, if it is known.
    pub(crate) changes: Option<u64>,
    /// A number that the newest change isn't below.
    pub(crate) changes_min: u64,
    /// The cache's generation, if it is known. 0: the pool never had a cache.
    pub(crate) cache_generation: Option<u32>,
    /// The metadata, if they can be read.
    pub(crate) state: Option<State>,
    /// A restore of this backup isn't finished.
    pub(crate) goes_on: bool,
    /// Nothing on the device says whose it is.
    pub(crate) is_blank: bool,
    /// Bytes that the device's regions have: the pool may have grown since the backup.
    pub(crate) end: u64,
    /// Bytes of the home region that the pool addresses.
    pub(crate) home_bytes: u64,
}

impl Backup {
    /// The rows as they are put back where nothing was changed since.
    pub(crate) fn same(&self, found: &Found) -> State {
        let newest = found.changes.unwrap_or(0).max(self.state.commit);
        let mut state = State { commit: newest + 1, ..restored(&self.state) };
        if let Some(CacheRecord { device: Some(device), nvram, .. }) = found.state.as_ref().and_then(|s| s.cache) {
            state.cache = Some(CacheRecord { device: Some(device), nvram, ..state.cache.unwrap_or_default() });
        }
        // The operator says that there was one, and nobody else knows.
        if let Some(generation) = found.cache_generation.filter(|n| *n > 0) {
            state.generations.entry(CACHE_ROW).or_insert(generation);
        }
        part_from_namesakes(&mut state, found);
        keep_given_up(&mut state, found);
        state
    }

    /// The rows as they are put back where they may be older than the pool. Their change gets a number above all that were ever used,
    /// and so does each volume that is made afterwards: its key is new, also to a cache that has data of volumes that aren't in these
    /// rows. If nothing tells the newest number, the time of day in seconds is above it: nobody changes metadata once a second for long.
    pub(crate) fn older(&self, found: &Found) -> State {
        let mut state = restored(&self.state);
        let highest = |s: &State| s.generations.iter().filter(|(id, _)| **id != CACHE_ROW).map(|(_, n)| *n).max();
        let generations = [Some(&self.state), found.state.as_ref()].into_iter().flatten().filter_map(highest).max();
        let newest = found.changes_min.max(self.state.commit).max(generations.unwrap_or(0).into());
        state.commit = newest + CHANGES_SKIPPED;
        if found.changes.is_none() {
            let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            state.commit = state.commit.max(since_1970.as_secs());
        }
        if let Some(generation) = self.cache_generation_after(found, state.commit) {
            state.generations.insert(CACHE_ROW, generation);
        }
        // The cache's device and its NVRAM may have been replaced since.
        let CacheRecord { device, nvram, .. } = found.state.as_ref().and_then(|s| s.cache).unwrap_or_default();
        if device.is_some() || state.cache.is_some() {
            state.cache = Some(CacheRecord { device, nvram, ..state.cache.unwrap_or_default() });
        }
        part_from_namesakes(&mut state, found);
        keep_given_up(&mut state, found);
        state
    }

    /// Decides, by the operator's answer, if the pool ever had a cache. Nothing else may tell it: a cache that was made after the backup may
    /// have what nothing else has, and old data, too.
    ///
    /// # Errors
    /// If the answer is missing, or the metadata deny it.
    pub(crate) fn settle_cache(&self, found: &mut Found, had_cache: Option<bool>) -> Result<(), RestoreError> {
        let of_backup = self.state.generations.get(&CACHE_ROW).copied();
        let is_known = found.cache_generation.max(of_backup).is_some_and(|n| n > 0);
        match had_cache {
            Some(false) if is_known => return Err(RestoreError::HadCache),
            Some(false) => found.cache_generation = Some(0),
            Some(true) if !is_known => {
                // Greater than any that its device may have been written under, also by an earlier answer: a pool that is started once a
                // second doesn't get there.
                let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
                found.cache_generation = Some(since_1970.min(u64::from(u32::MAX / 2)) as u32);
            }
            Some(true) => {}
            None if is_known || found.is_same || found.cache_generation.is_some() => {}
            None => return Err(RestoreError::CacheUnknown),
        }
        Ok(())
    }

    /// The generation of the pool's cache after the restore of an older backup: another than any that its device may have been written
    /// under, so that clean data on it don't count. Dirty data do. `None` if the pool never had a cache.
    fn cache_generation_after(&self, found: &Found, commit: u64) -> Option<u32> {
        let backup = self.state.generations.get(&CACHE_ROW).copied().unwrap_or(0);
        match found.cache_generation {
            Some(newest) => Some(newest.max(backup)).filter(|n| *n > 0).map(|n| n.saturating_add(1)),
            // The number of the change makes it differ from that of an earlier restore of the same backup.
            None => {
                let skipped = CACHE_GENERATIONS_SKIPPED + (commit % u64::from(CACHE_GENERATIONS_SKIPPED)) as u32;
                Some(backup.saturating_add(skipped))
            }
        }
    }

    /// Space (offset and length) that the backup calls a volume's, and that is another volume's by the metadata that are still there.
    pub(crate) fn of_others(&self, found: &Found) -> Vec<(u64, u64)> {
        let Some(there) = found.state.as_ref().filter(|_| !found.is_same) else { return Vec::new() };
        let owned: BTreeMap<u64, (u64, &VolumeRecord)> = there
            .volumes
            .values()
            .flat_map(|v| v.extents.iter().map(move |e| (e.device_offset, (e.device_offset + e.len, v))))
            .collect();
        let mut others = Vec::new();
        for v in self.state.volumes.values() {
            for e in &v.extents {
                let (begin, end) = (e.device_offset, e.device_offset + e.len);
                let first = owned.range(..begin).next_back();
                for (from, (to, owner)) in first.into_iter().chain(owned.range(begin..end)) {
                    let (from, to) = ((*from).max(begin), (*to).min(end));
                    if from < to && is_another(owner, v, found.age) {
                        others.push((from, to - from));
                    }
                }
            }
        }
        others
    }
}

/// True if two rows, of the metadata that are there and of the backup, are different volumes. In two histories of a pool two volumes may have one
/// key: each was made by the change of one number. A volume that was renamed and given to another tenant is the same one.
fn is_another(there: &VolumeRecord, ours: &VolumeRecord, age: Age) -> bool {
    // Where an earlier program made one of them: in one history, few are both renamed and given to another tenant.
    let seems_so = || age == Age::Forked && there.name != ours.name && there.tenant != ours.tenant;
    there.key != ours.key || there.is_of_another_history(ours).unwrap_or_else(seems_so)
}

/// Gives all free `space` to volumes that are being deleted: it isn't free again before the pool has zeroed it.
pub(crate) fn set_aside(state: &mut State, space: &Space) {
    let runs: Vec<Extent> = space.free_runs().map(|(device_offset, len)| Extent { device_offset, len }).collect();
    for extents in runs.chunks(EXTENTS_MAX) {
        // The next change makes it, as any volume.
        let (id, generation) = state.next_key(1);
        state.commit += 1;
        state.generations.insert(id, generation);
        let volume = VolumeRecord {
            key: VolumeKey { id, generation },
            name: SET_ASIDE.into(),
            size_bytes: extents.iter().map(|e| e.len).sum(),
            tenant: SET_ASIDE.into(),
            read_only: false,
            description: None,
            cache: None,
            extents: extents.to_vec(),
            state: VolumeState::Deleting,
            replica: ReplicaRecord::default(),
            deadline: None,
            behind: None,
            given_up: None,
            birth: None,
        };
        state.volumes.insert(id, volume);
    }
}

/// Of volumes that have a key of one that is there: another one's data, which the cache has under that key, are given up. The same one keeps
/// its number, which an earlier program's backup lacks.
fn part_from_namesakes(state: &mut State, found: &Found) {
    let generation = state.generations.get(&CACHE_ROW).copied();
    for v in state.volumes.values_mut() {
        let Some(there) = found.state.as_ref().and_then(|there| there.volumes.get(&v.key.id)) else { continue };
        match is_another(there, v, found.age) {
            true if there.key == v.key => v.given_up = v.given_up.max(generation),
            true => {}
            false => v.birth = v.birth.or(there.birth),
        }
    }
}

/// Keeps what was given up, also of volumes that these rows lack.
fn keep_given_up(state: &mut State, found: &Found) {
    let mut all = std::mem::take(&mut state.given_up);
    for (key, since) in found.state.iter().flat_map(State::all_given_up) {
        let known = all.entry(key).or_insert(since);
        *known = since.max(*known);
    }
    for v in state.volumes.values_mut() {
        v.given_up = v.given_up.max(all.remove(&(v.key.id, v.key.generation)));
    }
    state.given_up = all;
}

/// The rows as they are put back. Nobody knows what volumes were written since: each may lack other replicas' changes, and only the cache
/// may have its latest.
fn restored(state: &State) -> State {
    let mut state = state.clone();
    for v in state.volumes.values_mut() {
        v.replica.open = true;
        v.behind = None;
    }
    state
}
