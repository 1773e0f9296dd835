//! A pool's metadata in a file of text: taken while the pool serves, put back onto its device when it doesn't.
//!
//! A backup has the superblock and all rows of the metadata store. It has no data: those stay on the device, and a restored map shows them again.
//! Data that only the pool's cache or logs hold aren't part of it.
//!
//! A map that is older than the pool shows less than there is, and calls space free that has somebody's data. So a restore says how old the
//! backup is, by the metadata that is still there or by the witness of its newest change, and refuses an older one unless it is asked to.
//! Unless the backup has the pool's own map, all space that it calls free is zeroed: free space reads as zeroes. So is what it calls a
//! volume's and is another volume's by the metadata that are still there. If none are, nobody knows of such space.
//!
//! Logs lie in the midst of a pool's space, so only the serving pool can zero it. There the free space becomes a volume that is being deleted, which the
//! pool goes on with after its start. Space of a volume that is another's can't be zeroed so: such a backup is refused.
//!
//! Knowledge of the pool on other devices, which an older backup takes back: `older.rs`.
//!
//! If the metadata can't be read and the backup knows no cache, the pool may have got one since. Only the operator knows, and is asked: a pool
//! that is restored without it would be served beside a cache that has its newest data.
//!
//! A restore that is broken off leaves a note (`unfinished.rs`), by which every start refuses the pool and the same restore goes on.

use crate::device::{
    DeviceError, DeviceErrorKind, First, ROLE_MAIN, first_bytes, is_used_beyond, open_restored_meta, owner,
    read_superblock, write_superblock,
};
use crate::lock::lock;
use crate::meta::{CACHE_ROW, MetaError, MetaStore, MetaView};
use crate::older::{Found, set_aside};
use crate::probe::Probe;
use crate::record::{
    CacheRecord, ReplicaRecord, VolumeRecord, VolumeState, tenant_from_json, tenant_to_json, volume_from_json,
    volume_to_json,
};
use crate::region::{HEADER_BYTES, Medium, RegionBackend, Witnessed, witness_of};
use crate::remote::{Remote, Shared, probe};
use crate::state::{GivenUp, State};
use crate::superblock::{REGION_ALIGN, Region, RegionKind, SUPERBLOCK_BYTES, Superblock, SuperblockError};
use crate::unfinished::{self, Note, Unfinished};
use plimsoll_stack::map::Extent;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use uuid::Uuid;
use xxhash_rust::xxh3::xxh3_64;

/// Version of the file's format.
pub const BACKUP_FORMAT: u64 = 1;

/// See the module's documentation.
#[derive(Clone, PartialEq, Debug)]
pub struct Backup {
    superblock: Superblock,
    pub(crate) state: State,
}

/// Age of a backup, by what is left of the pool's metadata.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Age {
    /// It says the same as the metadata, or was taken after their last change.
    Current,
    /// The metadata were changed since. The number of changes: a client's first opening of a volume is one, too.
    Older(u64),
    /// The metadata that are there aren't an earlier state of the backup's: a copy of the device was put back and changed since, or the
    /// device is a clone.
    Forked,
    /// Too little is left to tell. Also if one of the two records of the newest change is lost, and the backup is of the change in the other.
    Unknown,
    /// Another backup's restore isn't finished.
    Unfinished,
}

impl fmt::Display for Age {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Age::Current => f.write_str("nothing was changed since it was taken"),
            Age::Older(changes) => write!(f, "the metadata were changed {changes} times since it was taken"),
            Age::Forked => f.write_str(
                "the pool's metadata have volumes that the backup lacks or has otherwise, as after a copy of the device was put back",
            ),
            Age::Unknown => f.write_str("too little is left of the pool's metadata to tell its age"),
            Age::Unfinished => f.write_str(
                "a restore of another backup isn't finished, and may have zeroed what this one calls a volume's: finish that one first",
            ),
        }
    }
}

/// The operator's answers to a restore.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct RestoreOptions {
    /// Restore even if the metadata were changed since the backup, or nobody can tell.
    pub older: bool,
    /// Restore onto a device on which nothing says that it is the backup's.
    pub blank: bool,
    /// True if the pool ever had a cache, for where nothing else tells it. `None`: the operator gave no answer.
    pub had_cache: Option<bool>,
    /// Bytes of the home region that the pool addresses, where it has logs: the rest of the region isn't addressed.
    pub home_bytes: Option<u64>,
}

/// A restore that is done.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Restored {
    /// Age of the backup.
    pub age: Age,
    /// Volumes of the pool, those being deleted included.
    pub volumes: usize,
    /// Bytes that were zeroed: free space, and space of volumes that other volumes had since.
    pub zeroed_bytes: u64,
    /// Bytes of free space that the pool zeroes after its next start, as only its logs can.
    pub zeroed_later_bytes: u64,
}

/// Error of a restore.
#[derive(Debug)]
pub enum RestoreError {
    /// The backup can't be used.
    Backup(String),
    /// It is older than the pool, or may be.
    Old(Age),
    /// Nothing on the device says that it is the backup's. The place of a byte that isn't zero, if one was found.
    Blank(Option<u64>),
    /// Nothing tells whether the pool has got a cache since.
    CacheUnknown,
    /// Both: [`RestoreError::Old`] and [`RestoreError::CacheUnknown`].
    OldAndCacheUnknown(Age),
    /// The operator says that the pool never had a cache, and it had one.
    HadCache,
    /// The device can't be used.
    Device(DeviceError),
}

impl fmt::Display for RestoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RestoreError::Backup(what) => write!(f, "the backup can't be used: {what}"),
            RestoreError::Old(age) => write!(
                f,
                "the backup may be older than the pool: {age}. Volumes that were made or grown since would be LOST; --older restores it nevertheless"
            ),
            RestoreError::Blank(used) => {
                f.write_str(
                    "the device doesn't say that it is the backup's: it has neither superblocks, metadata nor a note of a restore. On another \
                     device the volumes would be empty, or show what it held before. ",
                )?;
                match used {
                    Some(at) => write!(f, "It has data: one is at byte {at}. ")?,
                    None => f.write_str("No data were found in the parts that were looked at. ")?,
                }
                f.write_str("If it is the pool's nevertheless, say --blank")
            }
            RestoreError::CacheUnknown => f.write_str(
                "the backup knows no cache, and the pool's metadata can't be read: a cache that was made since may have data that nothing else has. \
                 Say --never-cached if the pool never had a cache, --had-cache otherwise",
            ),
            RestoreError::OldAndCacheUnknown(age) => {
                write!(f, "{}. Beside it, {}", RestoreError::Old(*age), RestoreError::CacheUnknown)
            }
            RestoreError::HadCache => f.write_str(
                "the pool's metadata know a cache, or an earlier restore was given --had-cache: leave out --never-cached. If it never had one, \
                 `plimsoll cache give-up` lets each volume be served without it",
            ),
            RestoreError::Device(e) => e.fmt(f),
        }
    }
}

impl std::error::Error for RestoreError {}

impl Backup {
    /// A backup of a pool's metadata as they are.
    pub fn of(superblock: &Superblock, view: &MetaView) -> Backup {
        Backup { superblock: superblock.clone(), state: view.state().clone() }
    }

    /// Number of its volumes, those being deleted included.
    pub fn volumes(&self) -> usize {
        self.state.volumes.len()
    }

    /// The device that it is of.
    pub fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    /// The file's text.
    pub fn text(&self) -> String {
        let body = self.body();
        let file = json!({ "plimsoll_pool_backup": BACKUP_FORMAT, "xxh3": checksum(&body), "body": body });
        serde_json::to_string_pretty(&file).expect("it is JSON") + "\n"
    }

    fn body(&self) -> Value {
        let row = |json: Vec<u8>| serde_json::from_slice::<Value>(&json).expect("the store's rows are JSON");
        let s = &self.state;
        let mut body = json!({
            "superblock": hex(&self.superblock.encode()),
            "volumes": s.volumes.iter().map(|(id, v)| (id.to_string(), row(volume_to_json(v)))).collect::<BTreeMap<_, _>>(),
            "generations": s.generations,
            "tenants": s.tenants.iter().map(|(name, t)| (name, row(tenant_to_json(t)))).collect::<BTreeMap<_, _>>(),
            "settings": s.settings,
            "cache": s.cache,
            "changes": s.commit,
        });
        let births: BTreeMap<String, u64> =
            s.volumes.iter().filter_map(|(id, v)| Some((id.to_string(), v.birth?))).collect();
        // Earlier programs don't look at these. Backups of all other pools stay as they know them.
        if !births.is_empty() {
            body["births"] = json!(births);
        }
        if let Some(row) = State::given_up_row(&s.given_up) {
            body["given_up"] = json!(row);
        }
        body
    }

    /// The backup in a file's text.
    ///
    /// # Errors
    /// If the text isn't a whole backup of a pool's main device; the error names the fault.
    pub fn parse(text: &str) -> Result<Backup, RestoreError> {
        read(text).map_err(RestoreError::Backup)
    }

    /// Puts the metadata back onto the device that they are of. A restore of this backup that was broken off goes on without further
    /// options.
    ///
    /// # Errors
    /// If the device is in use, another one, or holds what Plimsoll didn't write; if the backup is older than the pool, or it isn't known
    /// whether the pool had a cache, and `options` don't say.
    pub fn restore(&self, path: &Path, options: RestoreOptions) -> Result<Restored, RestoreError> {
        let on_device = |kind| RestoreError::Device(DeviceError { path: path.to_owned(), kind });
        let (medium, probe) = lock(path, false).map_err(on_device)?.into_medium();
        self.restore_onto(path, (Shared(Arc::new(medium)), probe), options)
    }

    /// The same onto a device behind a protocol, which nobody has open. `name` is for errors.
    ///
    /// # Errors
    /// As of [`Backup::restore`].
    pub fn restore_remote(
        &self,
        name: &Path,
        medium: Arc<dyn Remote>,
        options: RestoreOptions,
    ) -> Result<Restored, RestoreError> {
        let on_device = |kind| RestoreError::Device(DeviceError { path: name.to_owned(), kind });
        let probe = probe(&medium).map_err(on_device)?;
        self.restore_onto(name, (Shared(medium), probe), options)
    }

    fn restore_onto(
        &self,
        name: &Path,
        (medium, probe): (Shared, Probe),
        options: RestoreOptions,
    ) -> Result<Restored, RestoreError> {
        let on_device = |kind| RestoreError::Device(DeviceError { path: name.to_owned(), kind });
        let mut found = self.look(&medium, &probe).map_err(on_device)?;
        if found.is_blank && !options.blank {
            let used = is_used_beyond(&medium, self.region(RegionKind::Home).offset, probe.size_bytes);
            return Err(RestoreError::Blank(used.map_err(io("cannot read it")).map_err(on_device)?));
        }
        let is_refused = found.age != Age::Current && !found.goes_on && !options.older;
        // All answers that are missing are asked for at once.
        match (self.settle_cache(&mut found, options.had_cache), is_refused) {
            (Err(RestoreError::CacheUnknown), true) => return Err(RestoreError::OldAndCacheUnknown(found.age)),
            (Ok(()), true) => return Err(RestoreError::Old(found.age)),
            (settled, _) => settled?,
        }
        if found.age == Age::Unfinished && found.state.as_ref().is_some_and(|there| there.volumes.is_empty()) {
            let what = "a restore of another backup was broken off while the metadata had none of the volumes, so nothing tells whose space it \
                        would give to this one's: repeat that restore first, then this one";
            return Err(RestoreError::Backup(what.into()));
        }
        if self.zeroes_later() && !found.is_same {
            let what = "its pool has logs, whose layout pages can't be read: restore the device from a copy";
            found.home_bytes = options.home_bytes.ok_or_else(|| RestoreError::Backup(what.into()))?;
        }
        if self.zeroes_later() && !self.of_others(&found).is_empty() {
            let what = "its pool has logs, and space that the backup calls a volume's is another's by the pool's metadata, or was set aside by an \
                        earlier restore: restore a backup of the pool as it is, or a copy of the device";
            return Err(RestoreError::Backup(what.into()));
        }
        self.put_and_verify(&medium, &probe, &found).map_err(on_device)?;
        let free_bytes = self.home(&found).len - self.state.volumes.values().map(held_bytes).sum::<u64>();
        let others_bytes: u64 = self.of_others(&found).iter().map(|(_, len)| len).sum();
        let bytes = if found.is_same { 0 } else { free_bytes + others_bytes };
        let (zeroed_bytes, zeroed_later_bytes) = if self.zeroes_later() { (0, bytes) } else { (bytes, 0) };
        Ok(Restored { age: found.age, volumes: self.volumes(), zeroed_bytes, zeroed_later_bytes })
    }

    /// Writes the metadata, reads them as a start does, and only then lets a start read them.
    fn put_and_verify(&self, medium: &Shared, probe: &Probe, found: &Found) -> Result<(), DeviceErrorKind> {
        let (superblock, state) = self.put(medium, found)?;
        let (read, _) = read_superblock(medium, probe)?;
        let store = open_restored_meta(medium.clone(), &read, u64::MAX).map_err(DeviceErrorKind::Meta)?;
        if read != superblock || *store.state() != state {
            let what = "what is read back isn't what was written: check the device".to_string();
            return Err(DeviceErrorKind::Meta(MetaError::Corrupt { what }));
        }
        drop(store);
        unfinished::remove(medium, self.region(RegionKind::Metadata)).map_err(io("cannot write its metadata"))
    }

    /// True if only the serving pool can zero its space: logs lie in the midst of it.
    fn zeroes_later(&self) -> bool {
        self.superblock.region(RegionKind::Logs).is_some()
    }

    fn region(&self, kind: RegionKind) -> Region {
        self.superblock.region(kind).expect("every superblock has one")
    }

    /// The part of the home region that the pool addresses. It may have grown since the backup.
    fn home(&self, found: &Found) -> Region {
        let home = self.region(RegionKind::Home);
        Region { len: (found.end - home.offset).min(found.home_bytes), ..home }
    }

    /// Identifies the backup in the note of its restore.
    fn id(&self) -> u64 {
        sum(&self.body())
    }

    /// Looks at what is left on the device, and at how old the backup is beside it.
    fn look(&self, medium: &Shared, probe: &Probe) -> Result<Found, DeviceErrorKind> {
        let needed_bytes = self.superblock.end();
        if probe.size_bytes < needed_bytes {
            return Err(DeviceErrorKind::TooSmall { size_bytes: probe.size_bytes, needed_bytes });
        }
        let device_uuid = self.superblock.device_uuid;
        let must_be_ours = |found: Option<Uuid>| match found.filter(|found| *found != device_uuid) {
            Some(found) => Err(DeviceErrorKind::OtherDevice { found, expected: device_uuid }),
            None => Ok(()),
        };
        let metadata = self.region(RegionKind::Metadata);
        let note = match unfinished::note_of(medium, metadata.offset).map_err(io("cannot read its metadata"))? {
            None => None,
            Some(Unfinished::Ours(note)) => Some(note),
            Some(Unfinished::Later) => return Err(DeviceErrorKind::Meta(MetaError::LaterRestoreUnfinished)),
        };
        let there = match first_bytes(medium, probe)? {
            First::Ours => match read_superblock(medium, probe) {
                Ok((superblock, _)) => Some(superblock),
                // What it says isn't known, so it isn't replaced.
                Err(e @ DeviceErrorKind::Superblock(SuperblockError::UnknownVersion { .. })) => return Err(e),
                Err(_) => None,
            },
            First::Lost | First::Blank | First::Creating => None,
            // A superblock that the restore was writing.
            First::Foreign if note.is_some() || is_blank(medium)? => None,
            First::Foreign => return Err(DeviceErrorKind::Foreign),
        };
        let witness = witness_of(medium, metadata).map_err(io("cannot read its metadata"))?;
        must_be_ours(there.as_ref().map(|s| s.device_uuid))?;
        must_be_ours(note.map(|n| n.device_uuid))?;
        must_be_ours(witness.map(|w| w.device_uuid))?;
        let sequence = there.as_ref().map_or(0, |s| s.sequence).max(witness.map_or(0, |w| w.superblock));
        // Also of a device on which a restore isn't finished, or whose superblocks are lost: the metadata tell whose the data are. The
        // backup's superblock has the same regions, as the device is the same; home may have grown since, up to the device's end.
        let mut as_there = Superblock { sequence, ..self.superblock.clone() };
        let home = as_there.regions.last_mut().expect("every superblock has regions");
        home.len = probe.size_bytes - probe.size_bytes % REGION_ALIGN - home.offset;
        let store = open_restored_meta(medium.clone(), &as_there, u64::MAX).ok();
        let state = store.map(|s| s.state().clone());
        let of_volumes = state.iter().flat_map(|s| s.volumes.values()).flat_map(|v| &v.extents);
        let end = of_volumes.map(|e| e.device_offset + e.len).max().unwrap_or(0);
        let end = there.as_ref().map_or(0, Superblock::end).max(needed_bytes).max(end);
        if probe.size_bytes < end {
            return Err(DeviceErrorKind::TooSmall { size_bytes: probe.size_bytes, needed_bytes: end });
        }
        if let Some(note) = note {
            return Ok(Found { end, ..self.after(note, sequence, state) });
        }
        let is_blank = there.is_none() && witness.is_none() && state.is_none();
        let formatted = there.as_ref().is_some_and(|s| s.formatted);
        let changes = state.as_ref().map(|s| s.commit).or(witness.and_then(|w| self.newest_change(w)));
        let changes_min = changes.or(witness.map(|w| w.changes)).unwrap_or(0);
        let cache_generation = state.as_ref().map(|s| s.generations.get(&CACHE_ROW).copied().unwrap_or(0));
        // Numbers of changes tell nothing if a copy of the device was put back: two histories have the same ones.
        let is_same = match &state {
            Some(there) => essence(there) == essence(&self.state) && !self.has_namesakes(there),
            None => changes == Some(self.state.commit),
        };
        let age = self.age(changes, is_same, state.as_ref());
        Ok(Found {
            age,
            is_same,
            sequence,
            formatted,
            changes,
            changes_min,
            cache_generation,
            state,
            goes_on: false,
            is_blank,
            end,
            home_bytes: u64::MAX,
        })
    }

    /// True unless metadata that aren't newer than the backup may be an earlier state of it: then it has their volumes, where they were. One
    /// that was deleted or renamed before the backup looks like one of another history.
    fn is_forked(&self, there: &State) -> bool {
        let is_kept = |v: &VolumeRecord| {
            let has = |o: &VolumeRecord, e: &Extent| {
                o.extents
                    .iter()
                    .any(|x| x.device_offset <= e.device_offset && e.device_offset + e.len <= x.device_offset + x.len)
            };
            self.state
                .volumes
                .get(&v.key.id)
                .is_some_and(|o| o.key == v.key && o.name == v.name && v.extents.iter().all(|e| has(o, e)))
        };
        let mut ready = there.volumes.values().filter(|v| v.state == VolumeState::Ready);
        there.commit == self.state.commit || !ready.all(is_kept)
    }

    /// The newest change by a witness alone, if it tells; if not, a number that tells that the backup is older.
    fn newest_change(&self, witness: Witnessed) -> Option<u64> {
        let Witnessed { changes, is_newest, .. } = witness;
        match self.state.commit {
            _ if is_newest => Some(changes),
            // The other slot was lost. Slots are written in turn: this change, which was durable, was noted there, and none since.
            commit if changes.checked_add(1) == Some(commit) => Some(commit),
            commit => Some(changes).filter(|changes| commit < *changes),
        }
    }

    /// A device on which a restore isn't finished: the note says what its metadata were before.
    fn after(&self, note: Note, sequence: u64, state: Option<State>) -> Found {
        let goes_on = note.backup == self.id();
        let is_same = goes_on && note.is_same;
        let age = if goes_on { self.age(note.changes, is_same, state.as_ref()) } else { Age::Unfinished };
        let sequence = sequence.max(note.sequence);
        let Note { changes, changes_min, formatted, cache_generation, .. } = note;
        let end = self.superblock.end();
        Found {
            age,
            is_same,
            sequence,
            formatted,
            changes,
            changes_min,
            cache_generation,
            state,
            goes_on,
            is_blank: false,
            end,
            home_bytes: u64::MAX,
        }
    }

    /// True if a volume of the backup has the key of one that was made in another history of the pool.
    fn has_namesakes(&self, there: &State) -> bool {
        let is_another =
            |o: &VolumeRecord, v: &VolumeRecord| o.key == v.key && o.is_of_another_history(v) == Some(true);
        self.state.volumes.iter().any(|(id, o)| there.volumes.get(id).is_some_and(|v| is_another(o, v)))
    }

    fn age(&self, changes: Option<u64>, is_same: bool, there: Option<&State>) -> Age {
        match changes.map(|changes| changes.saturating_sub(self.state.commit)) {
            // Whichever has more changes.
            Some(_) if there.is_some_and(|there| self.has_namesakes(there)) => Age::Forked,
            Some(0) if !is_same && there.is_some_and(|there| self.is_forked(there)) => Age::Forked,
            Some(since) if since > 0 && !is_same => Age::Older(since),
            Some(_) => Age::Current,
            None => Age::Unknown,
        }
    }

    /// Writes superblock and metadata. Before, the note: until it is removed, a start refuses the device.
    ///
    /// Metadata that can be read stay until everything is zeroed, and one transaction makes them the restored ones. So wherever the
    /// restore is broken off, this one that goes on finds whose the data are, and what was given up. Another backup's does, too, or is refused
    /// ([`replace_rows`] without room for both).
    fn put(&self, medium: &Shared, found: &Found) -> Result<(Superblock, State), DeviceErrorKind> {
        let mut superblock = Superblock {
            sequence: found.sequence.max(self.superblock.sequence) + 1,
            formatted: found.formatted || self.superblock.formatted,
            ..self.superblock.clone()
        };
        // A pool that has grown since doesn't become smaller: other volumes' space would be forgotten, not zeroed.
        let home = superblock.regions.last_mut().expect("every superblock has regions");
        home.len = found.end - home.offset;
        let mut state = if found.is_same { self.same(found) } else { self.older(found) };
        // Where the restore goes on, its rows may be there already: their number doesn't fall, as it is noted beside them.
        state.commit = state.commit.max(found.state.as_ref().map_or(0, |there| there.commit));
        let (home, metadata) = (self.home(found), self.region(RegionKind::Metadata));
        let space = state.check(home).map_err(|what| DeviceErrorKind::Meta(MetaError::Corrupt { what }))?;
        let note = Note {
            backup: self.id(),
            device_uuid: superblock.device_uuid,
            sequence: found.sequence,
            changes: found.changes,
            changes_min: found.changes_min,
            is_same: found.is_same,
            formatted: found.formatted,
            cache_generation: found.cache_generation,
        };
        note.write(medium, metadata).map_err(io("cannot write its metadata"))?;
        if !found.is_same && self.zeroes_later() {
            set_aside(&mut state, &space);
        } else if !found.is_same {
            for (offset, len) in self.of_others(found) {
                medium.0.zero(offset, len).map_err(io("cannot zero what other volumes had since"))?;
            }
            for (offset, len) in space.free_runs() {
                medium.0.zero(offset, len).map_err(io("cannot zero its free space"))?;
            }
            medium.sync().map_err(io("cannot sync it"))?;
        }
        let copies = superblock.stale(&[[0; SUPERBLOCK_BYTES]; 2]);
        write_superblock(medium, &superblock, &copies).map_err(io("cannot write its superblock"))?;
        let replaced = match &found.state {
            Some(there) => replace_rows(medium, &superblock, there, &state),
            None => self.put_anew(medium, &superblock, &state),
        };
        replaced.map_err(DeviceErrorKind::Meta)?;
        medium.sync().map_err(io("cannot sync it"))?;
        Ok((superblock, state))
    }

    /// Writes the rows into an empty store, whatever the region held.
    fn put_anew(&self, medium: &Shared, superblock: &Superblock, state: &State) -> Result<(), MetaError> {
        let backend = RegionBackend::format(medium.clone(), self.region(RegionKind::Metadata), owner(superblock));
        let home = superblock.region(RegionKind::Home).expect("every superblock has one");
        MetaStore::format(backend.map_err(MetaError::Io)?, home)?.replace(state.clone())
    }
}

/// Replaces the rows that are there.
///
/// If old and new rows don't fit beside each other, the old ones go first, all but those that neither the backup nor the note has: what is
/// given up of the cache's data, and the cache's devices. So a restore that goes on knows them. In between no volume is there, and another
/// backup's restore is refused.
fn replace_rows(medium: &Shared, superblock: &Superblock, there: &State, state: &State) -> Result<(), MetaError> {
    let store = || open_restored_meta(medium.clone(), superblock, u64::MAX);
    match store()?.replace(state.clone()) {
        Err(MetaError::Full { .. }) => {}
        done => return done,
    }
    let kept = State {
        generations: there.generations.get_key_value(&CACHE_ROW).map(|(id, n)| (*id, *n)).into_iter().collect(),
        cache: there.cache,
        given_up: state.all_given_up(),
        commit: state.commit,
        ..State::default()
    };
    // The pages of rows that went are free after one more change.
    store()?.replace(kept.clone())?;
    store()?.replace(kept)?;
    store()?.replace(state.clone())
}

fn held_bytes(volume: &VolumeRecord) -> u64 {
    volume.extents.iter().map(|e| e.len).sum()
}

fn io(doing: &'static str) -> impl Fn(std::io::Error) -> DeviceErrorKind {
    move |error| DeviceErrorKind::Io { doing, error }
}

/// True if the superblocks and the beginning of the metadata are zeroes.
fn is_blank(medium: &impl Medium) -> Result<bool, DeviceErrorKind> {
    let mut b = vec![0; (REGION_ALIGN + HEADER_BYTES) as usize];
    medium.read_at(&mut b, 0).map_err(io("cannot read its first MiB"))?;
    Ok(b.iter().all(|b| *b == 0))
}

/// The rows without what changes as the pool serves: what is left is the same, or the backup is older.
fn essence(state: &State) -> State {
    let mut state = State { commit: 0, given_up: GivenUp::new(), ..state.clone() };
    state.cache =
        state.cache.map(|c| CacheRecord { device: None, nvram: None, ..c }).filter(|c| *c != CacheRecord::default());
    for v in state.volumes.values_mut() {
        (v.replica, v.behind, v.birth) = (ReplicaRecord::default(), None, None);
    }
    state
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits = text.as_bytes().chunks(2);
    digits.map(|d| u8::from_str_radix(std::str::from_utf8(d).ok()?, 16).ok()).collect()
}

fn sum(body: &Value) -> u64 {
    xxh3_64(body.to_string().as_bytes())
}

fn checksum(body: &Value) -> String {
    format!("{:016x}", sum(body))
}

fn read(text: &str) -> Result<Backup, String> {
    let file: Value = serde_json::from_str(text).map_err(|e| format!("it isn't JSON: {e}"))?;
    match file["plimsoll_pool_backup"].as_u64() {
        Some(BACKUP_FORMAT) => {}
        Some(other) => {
            return Err(format!("it has format {other}, this program knows {BACKUP_FORMAT}: use a newer one"));
        }
        None => return Err("it isn't a backup of a pool".into()),
    }
    let body = &file["body"];
    if file["xxh3"].as_str() != Some(&checksum(body)) {
        return Err("its checksum is wrong: it was cut off or changed".into());
    }
    let superblock = body["superblock"].as_str().and_then(unhex);
    let superblock =
        superblock.and_then(|b| <[u8; SUPERBLOCK_BYTES]>::try_from(b).ok()).ok_or("it has no superblock")?;
    let superblock = Superblock::decode(&superblock).map_err(|e| format!("superblock: {e}"))?;
    if superblock.role != ROLE_MAIN {
        return Err(format!("it is of a pool's device {:?}", superblock.role));
    }
    let mut state = State::default();
    let rows = |table: &str| body[table].as_object().ok_or(format!("it has no {table}"));
    let bytes = |row: &Value| row.to_string().into_bytes();
    for (id, row) in rows("volumes")? {
        let id: u32 = id.parse().map_err(|_| format!("volume {id:?}"))?;
        let mut volume = volume_from_json(id, &bytes(row)).map_err(|e| format!("volume {id}: {e}"))?;
        volume.birth = body["births"][id.to_string()].as_u64();
        if volume.state == VolumeState::Ready {
            state.names.insert(volume.name.clone(), id);
        }
        state.volumes.insert(id, volume);
    }
    for (name, row) in rows("tenants")? {
        let tenant = tenant_from_json(name, &bytes(row)).map_err(|e| format!("tenant {name:?}: {e}"))?;
        state.tenants.insert(name.clone(), tenant);
    }
    let of = |e: serde_json::Error| e.to_string();
    state.generations = serde_json::from_value(body["generations"].clone()).map_err(of)?;
    state.settings = serde_json::from_value(body["settings"].clone()).map_err(of)?;
    state.cache = serde_json::from_value(body["cache"].clone()).map_err(of)?;
    state.given_up = State::given_up_of(serde_json::from_value(body["given_up"].clone()).map_err(of)?);
    state.commit = body["changes"].as_u64().ok_or("it doesn't say how many changes there were")?;
    let home = superblock.region(RegionKind::Home).ok_or("its superblock has no home region")?;
    state.check(home)?;
    Ok(Backup { superblock, state })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::remote::Remote;
    use crate::{CreateOptions, DeviceFile, Expect, TenantLimits, TenantRecord};
    use plimsoll_base::Class;
    use std::sync::atomic::Ordering::Relaxed;

    /// Without room for both, the old rows go before the new ones come.
    #[test]
    fn rows_that_fit_only_once_are_restored() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("p.img");
        let pool_uuid = Uuid::from_u128(7);
        let options = CreateOptions {
            size_bytes: 64 << 20,
            pool_uuid,
            role: ROLE_MAIN.into(),
            logs_bytes: 0,
            align_bytes: 0,
            main_uuid: None,
        };
        let device = DeviceFile::create(&path, &options).expect("created");
        let rows = |generation, commit| {
            let generations = (1..350_000).map(|id| (id, generation)).collect();
            State { generations, commit, ..State::default() }
        };
        let store = || device.open_meta(u64::MAX).expect("opens");
        store().replace(rows(1, 1)).expect("room");
        let backup = Backup { superblock: device.superblock().clone(), state: rows(2, 0) };
        assert!(matches!(store().replace(backup.state.clone()), Err(MetaError::Full { .. })), "there is room for both");
        drop(device);
        backup.restore(&path, RestoreOptions { older: true, ..Default::default() }).expect("asked to");
        let expect = Expect { pool_uuid: None, device_uuid: None, role: ROLE_MAIN.into() };
        let store = DeviceFile::open(&path, &expect).map(|device| device.open_meta(u64::MAX).expect("opens"));
        assert_eq!(store.expect("opens").state().generations, backup.state.generations);
    }

    /// A file whose writer is killed at one of its writes.
    #[derive(Debug)]
    struct Cut {
        file: std::fs::File,
        writes_left: std::sync::atomic::AtomicU64,
    }

    impl Cut {
        fn after(path: &Path, writes: u64) -> Arc<Cut> {
            let file = std::fs::File::options().read(true).write(true).open(path).expect("opens");
            Arc::new(Cut { file, writes_left: writes.into() })
        }

        fn writes_left(&self) -> u64 {
            self.writes_left.load(Relaxed)
        }
    }

    impl Medium for Cut {
        fn read_at(&self, out: &mut [u8], offset: u64) -> std::io::Result<()> {
            Medium::read_at(&self.file, out, offset)
        }

        fn write_at(&self, data: &[u8], offset: u64) -> std::io::Result<()> {
            let left = self.writes_left.fetch_update(Relaxed, Relaxed, |n| n.checked_sub(1));
            left.map_err(|_| std::io::Error::other("killed"))?;
            Medium::write_at(&self.file, data, offset)
        }

        fn sync(&self) -> std::io::Result<()> {
            Ok(())
        }
    }

    impl Remote for Cut {
        fn size_bytes(&self) -> std::io::Result<u64> {
            self.file.size_bytes()
        }

        fn zero(&self, offset: u64, len: u64) -> std::io::Result<()> {
            self.file.zero(offset, len)
        }
    }

    /// A restore that is killed while rows that fit only once are replaced, and run again, doesn't serve the cache's data of another
    /// history's volume.
    #[test]
    fn what_is_given_up_outlasts_a_restore_that_was_killed_without_room_for_both() {
        let dir = tempfile::tempdir().expect("a directory");
        let (path, copy) = (dir.path().join("p.img"), dir.path().join("copy.img"));
        let options = CreateOptions {
            size_bytes: 64 << 20,
            pool_uuid: Uuid::from_u128(7),
            role: ROLE_MAIN.into(),
            logs_bytes: 0,
            align_bytes: 0,
            main_uuid: None,
        };
        let device = DeviceFile::create(&path, &options).expect("created");
        let superblock = device.superblock().clone();
        let mut store = device.open_meta(u64::MAX).expect("opens");
        store.outdate_cache().expect("a cache was made");
        let new = |name: &str| crate::NewVolume {
            name: name.into(),
            size_bytes: 1 << 20,
            tenant: "t".into(),
            read_only: false,
            description: None,
            cache: None,
        };
        let (key, cached) = (store.create_volume(new("v")).expect("room").key, Uuid::from_u128(8));
        store.set_cache_devices(cached, None).expect("noted");
        // Most of the region, and not the same rows in the backup.
        let full = |state: &State, prefix: &str| {
            let mut state = State { commit: state.commit + 1, ..state.clone() };
            for n in 0..6000 {
                let name = format!("{prefix}{n:0250}");
                let class = Class::BestEffort { weight: 1 };
                let limits = TenantLimits::default();
                let tenant = TenantRecord { name: name.clone(), class, limits, change: 1, deadline: None };
                state.tenants.insert(name, tenant);
            }
            state
        };
        let mut theirs = full(store.state(), "b");
        theirs.volumes.get_mut(&key.id).expect("made").birth = Some(1);
        let ours = full(store.state(), "a");
        let generation = ours.generations[&CACHE_ROW];
        store.replace(ours).expect("room");
        drop(device);
        let backup = Backup { superblock, state: theirs };
        let older = RestoreOptions { older: true, ..Default::default() };
        let restore = |medium: &Arc<Cut>| backup.restore_remote(&copy, medium.clone(), older);
        let judge = |at: u64| {
            let expect = Expect { pool_uuid: None, device_uuid: None, role: ROLE_MAIN.into() };
            let device = DeviceFile::open(&copy, &expect).expect("opens");
            let store = device.open_meta(u64::MAX).expect("opens");
            let given_up = store.volume("v").expect("restored").given_up;
            assert!(given_up.is_some_and(|since| since > generation), "killed at write {at}: {given_up:?}");
            assert_eq!(store.cache().device, Some(cached), "killed at write {at}");
        };
        let all = {
            std::fs::copy(&path, &copy).expect("copied");
            let medium = Cut::after(&copy, u64::MAX);
            restore(&medium).expect("asked to");
            judge(u64::MAX);
            u64::MAX - medium.writes_left()
        };
        assert!(all > 100, "{all} writes are too few to tell");
        for at in (1..8).map(|n| all * n / 8) {
            std::fs::copy(&path, &copy).expect("copied");
            restore(&Cut::after(&copy, at)).expect_err("killed");
            restore(&Cut::after(&copy, u64::MAX)).unwrap_or_else(|e| panic!("killed at write {at}: {e}"));
            judge(at);
        }
    }

    /// A restore that is killed while rows that fit only once are replaced, and another backup's after it: that one's volume never shows what the
    /// space's owner wrote.
    #[test]
    fn another_backup_after_a_restore_that_was_killed_without_room_for_both_shows_no_data() {
        let dir = tempfile::tempdir().expect("a directory");
        let (path, copy) = (dir.path().join("p.img"), dir.path().join("copy.img"));
        let options = CreateOptions {
            size_bytes: 64 << 20,
            pool_uuid: Uuid::from_u128(7),
            role: ROLE_MAIN.into(),
            logs_bytes: 0,
            align_bytes: 0,
            main_uuid: None,
        };
        let device = DeviceFile::create(&path, &options).expect("created");
        let superblock = device.superblock().clone();
        let mut store = device.open_meta(u64::MAX).expect("opens");
        store.outdate_cache().expect("the backups know of a cache");
        let new = crate::NewVolume {
            name: "v".into(),
            size_bytes: 1 << 20,
            tenant: "t".into(),
            read_only: false,
            description: None,
            cache: None,
        };
        let volume = store.create_volume(new).expect("room");
        let space = volume.extents[0];
        // Most of the region, and other rows in each.
        let full = |state: &State, prefix: &str| {
            let mut state = State { commit: state.commit + 1, ..state.clone() };
            for n in 0..6000 {
                let name = format!("{prefix}{n:0250}");
                let class = Class::BestEffort { weight: 1 };
                let limits = TenantLimits::default();
                let tenant = TenantRecord { name: name.clone(), class, limits, change: 1, deadline: None };
                state.tenants.insert(name, tenant);
            }
            state
        };
        let first = Backup { superblock: superblock.clone(), state: full(store.state(), "a") };
        let mut state = store.state().clone();
        let (id, key) =
            (volume.key.id, plimsoll_base::VolumeKey { generation: volume.key.generation + 1, ..volume.key });
        state.names = [("w".to_string(), id)].into();
        state.generations.insert(id, key.generation);
        let others = VolumeRecord { key, name: "w".into(), tenant: "u".into(), ..volume };
        state.volumes.insert(id, others);
        let second = Backup { superblock, state };
        let pools = full(store.state(), "b");
        store.replace(pools).expect("room");
        drop(device);
        let written = vec![7; space.len as usize];
        Medium::write_at(
            &std::fs::File::options().write(true).open(&path).expect("opens"),
            &written,
            space.device_offset,
        )
        .expect("written");
        let older = RestoreOptions { older: true, ..Default::default() };
        let restore = |backup: &Backup, medium: &Arc<Cut>| backup.restore_remote(&copy, medium.clone(), older);
        std::fs::copy(&path, &copy).expect("copied");
        let medium = Cut::after(&copy, u64::MAX);
        restore(&first, &medium).expect("asked to");
        let all = u64::MAX - medium.writes_left();
        let (mut refused, mut restored) = (0, 0);
        for at in (0..24).map(|n| all * n / 24) {
            std::fs::copy(&path, &copy).expect("copied");
            restore(&first, &Cut::after(&copy, at)).expect_err("killed");
            match restore(&second, &Cut::after(&copy, u64::MAX)) {
                Err(RestoreError::Backup(why)) => {
                    assert!(why.contains("repeat that restore first"), "killed at write {at}: {why}");
                    restore(&first, &Cut::after(&copy, u64::MAX)).expect("it goes on");
                    restore(&second, &Cut::after(&copy, u64::MAX)).expect("its turn has come");
                    refused += 1;
                }
                done => {
                    done.unwrap_or_else(|e| panic!("killed at write {at}: {e}"));
                    restored += 1;
                }
            }
            let mut shown = vec![1; space.len as usize];
            let file = std::fs::File::open(&copy).expect("opens");
            Medium::read_at(&file, &mut shown, space.device_offset).expect("reads");
            assert!(
                shown.iter().all(|b| *b == 0),
                "killed at write {at}: another volume shows what the first one's owner wrote"
            );
        }
        assert!(refused > 0 && restored > 0, "{refused} refused, {restored} restored: a case is missing");
    }

    /// Each granule of a device that has grown as far as it can is an extent of its own: all are in the metadata, and can be changed.
    #[test]
    fn a_grown_device_has_room_for_the_most_extents() {
        use crate::record::VolumeRecord;
        use crate::space::GRANULE_BYTES;
        use plimsoll_base::VolumeKey;
        use plimsoll_stack::map::Extent;
        let dir = tempfile::tempdir().expect("a directory");
        let pool_uuid = Uuid::from_u128(7);
        let options = CreateOptions {
            size_bytes: 64 << 20,
            pool_uuid,
            role: ROLE_MAIN.into(),
            logs_bytes: 0,
            align_bytes: 0,
            main_uuid: None,
        };
        let mut device = DeviceFile::create(&dir.path().join("p.img"), &options).expect("created");
        device.grow(device.superblock().end_max()).expect("grows");
        let home = device.home();
        let mut store = device.open_meta(u64::MAX).expect("opens");
        let new = |n: usize| crate::NewVolume {
            name: format!("v{n}"),
            size_bytes: GRANULE_BYTES,
            tenant: "t".into(),
            read_only: false,
            description: None,
            cache: None,
        };
        let mut records: Vec<VolumeRecord> = (0..2).map(|n| store.create_volume(new(n)).expect("room")).collect();
        let mut state = store.state().clone();
        for (n, v) in records.iter_mut().enumerate() {
            let granules = (home.offset + n as u64 * GRANULE_BYTES..home.end()).step_by(2 * GRANULE_BYTES as usize);
            v.extents = granules.map(|device_offset| Extent { device_offset, len: GRANULE_BYTES }).collect();
            v.size_bytes = v.extents.len() as u64 * GRANULE_BYTES;
            state.volumes.insert(v.key.id, v.clone());
        }
        assert_eq!(state.volumes.values().map(|v| v.extents.len()).sum::<usize>(), 65_536);
        state.commit += 1;
        store.replace(state).expect("room");
        let mut store = device.open_meta(u64::MAX).expect("opens");
        assert_eq!(store.free_bytes(), 0);
        for n in 0..2 {
            store.rename_volume(&format!("v{n}"), &format!("w{n}")).expect("room for a change");
            let VolumeKey { id, .. } = store.begin_delete(&format!("w{n}")).expect("room for a change").key;
            store.finish_delete(id).expect("room for a change");
        }
        assert_eq!(store.free_bytes(), home.len);
    }
}
