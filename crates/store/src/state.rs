//! The metadata store's contents in memory, and the edits that change them.

use crate::record::{CacheRecord, SettingsRecord, TenantRecord, VolumeRecord, VolumeState};
use crate::space::{GRANULE_BYTES, Space};
use crate::superblock::Region;
use std::collections::BTreeMap;

/// Notes of what deleted volumes gave up. Their row is written whole, in a region that can't grow.
const GIVEN_UP_MAX: usize = 4096;

/// One change of one row. A mutation is a list of these, made durable in one transaction and then applied in memory.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Edit {
    PutVolume(VolumeRecord),
    DropVolume(u32),
    PutName(String, u32),
    DropName(String),
    /// The generation of the volume with this id, or, where there is none, the least that the next one may get. Of id 0: how often the
    /// cache's device was declared out of date.
    PutGeneration(u32, u32),
    /// Undoes the first [`Edit::PutGeneration`] of an id. Written by a restore only.
    DropGeneration(u32),
    PutTenant(TenantRecord),
    DropTenant(String),
    PutSettings(Option<SettingsRecord>),
    PutCache(Option<CacheRecord>),
    /// [`State::given_up`].
    PutGivenUp(GivenUp),
    /// The number of the mutation that this is part of.
    PutCommit(u64),
}

/// Id and generation of volumes, and the generation of the cache at which each gave up its dirty data.
pub(crate) type GivenUp = BTreeMap<(u32, u32), u32>;

/// Calls `each` for all keys whose rows differ, with the row in `after`.
fn differing<K: Ord, V: PartialEq>(
    before: &BTreeMap<K, V>,
    after: &BTreeMap<K, V>,
    mut each: impl FnMut(&K, Option<&V>),
) {
    before.keys().filter(|key| !after.contains_key(key)).for_each(|key| each(key, None));
    after.iter().filter(|(key, v)| before.get(key) != Some(*v)).for_each(|(key, v)| each(key, Some(v)));
}

/// Everything stored, by key.
#[derive(Clone, PartialEq, Default, Debug)]
pub(crate) struct State {
    pub(crate) volumes: BTreeMap<u32, VolumeRecord>,
    /// Of the volumes in [`VolumeState::Ready`].
    pub(crate) names: BTreeMap<String, u32>,
    pub(crate) tenants: BTreeMap<String, TenantRecord>,
    pub(crate) generations: BTreeMap<u32, u32>,
    pub(crate) settings: Option<SettingsRecord>,
    pub(crate) cache: Option<CacheRecord>,
    /// Of volumes that aren't here any more. A restore may bring them back, and the cache's device, too, may come back.
    pub(crate) given_up: GivenUp,
    /// Number of mutations, since mutations have numbers.
    pub(crate) commit: u64,
}

impl State {
    /// The edits that make a store with the rows of `before` this one.
    pub(crate) fn edits_from(&self, before: &State) -> Vec<Edit> {
        let mut edits = Vec::new();
        differing(&before.volumes, &self.volumes, |id, v| {
            edits.push(v.map_or(Edit::DropVolume(*id), |v| Edit::PutVolume(v.clone())));
        });
        differing(&before.names, &self.names, |name, id| {
            edits.push(id.map_or(Edit::DropName(name.clone()), |id| Edit::PutName(name.clone(), *id)));
        });
        differing(&before.generations, &self.generations, |id, generation| {
            edits.push(generation.map_or(Edit::DropGeneration(*id), |n| Edit::PutGeneration(*id, *n)));
        });
        differing(&before.tenants, &self.tenants, |name, t| {
            edits.push(t.map_or(Edit::DropTenant(name.clone()), |t| Edit::PutTenant(t.clone())));
        });
        // Always: an earlier program's rows for them go.
        let single = [
            Edit::PutSettings(self.settings.clone()),
            Edit::PutCache(self.cache),
            Edit::PutGivenUp(self.given_up.clone()),
            Edit::PutCommit(self.commit),
        ];
        edits.extend(single);
        edits
    }

    /// Makes `edits` here and in the free `space`, and returns the edits that undo them. Costs what the edits touch, not what
    /// is stored.
    ///
    /// # Panics
    /// If a touched row doesn't fit the others afterwards.
    pub(crate) fn apply_all(&mut self, edits: &[Edit], space: &mut Space) -> Vec<Edit> {
        let mut undo: Vec<Edit> = edits.iter().map(|edit| self.apply(edit.clone(), space)).collect();
        undo.reverse();
        for edit in edits {
            if let Edit::PutVolume(v) = edit {
                self.check_volume(v).unwrap_or_else(|what| panic!("a mutation broke the store: {what}"));
            }
        }
        undo
    }

    /// Makes one edit and returns the one that undoes it.
    fn apply(&mut self, edit: Edit, space: &mut Space) -> Edit {
        match edit {
            Edit::PutVolume(v) => {
                let id = v.key.id;
                let before = self.volumes.get(&id);
                if before.is_none_or(|before| before.extents != v.extents) {
                    before.iter().flat_map(|before| &before.extents).for_each(|e| space.release(*e));
                    for e in &v.extents {
                        space
                            .take(*e)
                            .unwrap_or_else(|m| panic!("volume {:?} would get {:?}, which isn't free", v.name, m.0));
                    }
                }
                self.volumes.insert(id, v).map_or(Edit::DropVolume(id), Edit::PutVolume)
            }
            Edit::DropVolume(id) => {
                let before = self.volumes.remove(&id).expect("only volumes that are there are dropped");
                before.extents.iter().for_each(|e| space.release(*e));
                Edit::PutVolume(before)
            }
            Edit::PutName(name, id) => match self.names.insert(name.clone(), id) {
                Some(before) => Edit::PutName(name, before),
                None => Edit::DropName(name),
            },
            Edit::DropName(name) => {
                let before = self.names.remove(&name).expect("only names that are there are dropped");
                Edit::PutName(name, before)
            }
            Edit::PutGeneration(id, generation) => match self.generations.insert(id, generation) {
                Some(before) => Edit::PutGeneration(id, before),
                None => Edit::DropGeneration(id),
            },
            Edit::DropGeneration(id) => {
                let before = self.generations.remove(&id).expect("only generations that are there are dropped");
                Edit::PutGeneration(id, before)
            }
            Edit::PutTenant(t) => {
                let name = t.name.clone();
                self.tenants.insert(name.clone(), t).map_or(Edit::DropTenant(name), Edit::PutTenant)
            }
            Edit::DropTenant(name) => {
                Edit::PutTenant(self.tenants.remove(&name).expect("only tenants that are there are dropped"))
            }
            Edit::PutSettings(s) => Edit::PutSettings(std::mem::replace(&mut self.settings, s)),
            Edit::PutCache(c) => Edit::PutCache(std::mem::replace(&mut self.cache, c)),
            Edit::PutGivenUp(all) => Edit::PutGivenUp(std::mem::replace(&mut self.given_up, all)),
            Edit::PutCommit(commit) => Edit::PutCommit(std::mem::replace(&mut self.commit, commit)),
        }
    }

    /// Checks that a volume's row fits the names and generations.
    fn check_volume(&self, v: &VolumeRecord) -> Result<(), String> {
        let named = self.names.get(&v.name) == Some(&v.key.id);
        if named != (v.state == VolumeState::Ready) {
            return Err(format!("volume {:?} is {:?}, which its name's entry denies", v.name, v.state));
        }
        if v.key.id == 0 || self.generations.get(&v.key.id).copied().unwrap_or(0) != v.key.generation {
            return Err(format!("volume {:?} has key {:?}, which its id's generation denies", v.name, v.key));
        }
        Ok(())
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
            self.check_volume(v)?;
        }
        let ready = self.volumes.values().filter(|v| v.state == VolumeState::Ready).count();
        if self.names.len() != ready {
            return Err(format!("{} names for {ready} volumes", self.names.len()));
        }
        assert_eq!(space.free_bytes() + used_bytes, home.len, "space is neither lost nor made");
        assert!(used_bytes.is_multiple_of(GRANULE_BYTES));
        Ok(space)
    }

    /// Notes in [`State::given_up`] what a deleted volume gave up. Of too many the oldest go: they are of backups that nobody restores.
    pub(crate) fn note_given_up(all: &mut GivenUp, key: (u32, u32), since: u32) {
        all.insert(key, since);
        while all.len() > GIVEN_UP_MAX {
            let oldest = all.iter().min_by_key(|(_, since)| **since).map(|(key, _)| *key).expect("it isn't empty");
            all.remove(&oldest);
        }
    }

    /// Returns the notes of what volumes gave up, those that are there included, by key.
    pub(crate) fn all_given_up(&self) -> GivenUp {
        let mut all = self.given_up.clone();
        for (key, since) in self.volumes.values().filter_map(|v| Some(((v.key.id, v.key.generation), v.given_up?))) {
            let known = all.entry(key).or_insert(since);
            *known = since.max(*known);
        }
        all
    }

    /// The row of [`State::given_up`], if there is one.
    pub(crate) fn given_up_row(all: &GivenUp) -> Option<Vec<(u32, u32, u32)>> {
        let rows = || all.iter().map(|((id, generation), since)| (*id, *generation, *since)).collect();
        (!all.is_empty()).then(rows)
    }

    /// Decodes that row.
    pub(crate) fn given_up_of(row: Option<Vec<(u32, u32, u32)>>) -> GivenUp {
        row.into_iter().flatten().map(|(id, generation, since)| ((id, generation), since)).collect()
    }

    /// The lowest id, from `lowest` on, that no volume has, and the generation of a volume that the next change makes with it. 0 is no
    /// volume's id.
    ///
    /// The generation is the number of that change: a restore goes on above all numbers of changes, so no key is ever given twice. Earlier
    /// programs counted an id's volumes instead. Their next number applies where it is higher, and after 2^32 changes.
    pub(crate) fn next_key(&self, lowest: u32) -> (u32, u32) {
        let mut id = lowest;
        while self.volumes.contains_key(&id) || self.generations.get(&id) == Some(&u32::MAX) {
            id += 1;
        }
        let counted = self.generations.get(&id).copied().unwrap_or(0);
        let change = u32::try_from(self.commit + 1).ok().filter(|change| *change < u32::MAX);
        (id, counted.max(change.unwrap_or(0)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_too_many_notes_the_oldest_go() {
        let mut all = GivenUp::new();
        let count = GIVEN_UP_MAX as u32 + 10;
        // The newest have the lowest ids.
        for n in 1..=count {
            State::note_given_up(&mut all, (count - n, 1), n);
        }
        assert_eq!(all.len(), GIVEN_UP_MAX);
        assert_eq!(all.values().min(), Some(&11));
    }
}
