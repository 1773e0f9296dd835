//! The metadata store of a pool: its volumes and the places of their bytes, the tenants that were created or changed
//! live, and the settings that were changed live. Most tenants are only declared in the configuration file, and aren't in the store.
//!
//! Every mutation is one durable transaction: after it returned it survives power loss at any instant, before that nothing
//! of it is seen. Reading is from memory; [`MetaReader`]s read while a change waits for its device. One owner, blocking calls,
//! no threads.
//!
//! A volume's space goes round: free (reads as zeroes) → [`MetaStore::create_volume`] / [`MetaStore::grow_volume`] → in use →
//! [`MetaStore::begin_delete`] → still its own, zeroed by the caller → [`MetaStore::finish_delete`] → free.

use crate::db::{self, Storage};
use crate::record::{
    CacheRecord, DeadlineRecord, EXTENTS_MAX, NewVolume, RecordError, ReplicaRecord, SettingsRecord, TenantRecord,
    VolumeRecord, VolumeState, check_name, check_size,
};
use crate::region::MetaStorage;
use crate::space::{GRANULE_BYTES, Space};
use crate::state::{Edit, State};
use crate::superblock::Region;
use plimsoll_base::CacheMode;
use plimsoll_base::VolumeKey;
use redb::Database;
use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, OnceLock, PoisonError, RwLock, RwLockReadGuard};
use uuid::Uuid;

/// The most volumes of a pool, those being deleted included.
pub const VOLUMES_MAX: usize = 65_536;
/// The most tenants of a pool.
pub const TENANTS_MAX: usize = 4096;

/// Reason why the metadata store refuses a request.
#[derive(Debug)]
pub enum MetaError {
    /// The stored bytes make no sense. The store isn't opened, or not used any more.
    Corrupt {
        /// Problem that was found.
        what: String,
    },
    /// Written by a newer program.
    UnknownVersion {
        /// Its version.
        version: u32,
        /// The newest that this program knows.
        known: u32,
    },
    /// A restore from a backup was broken off: what is there is neither what was there before nor what the backup has.
    RestoreUnfinished,
    /// The same of a restore by a later program, which this one can't go on with.
    LaterRestoreUnfinished,
    /// The storage failed. Whether the mutation is durable is unknown until the store is opened again.
    Io(std::io::Error),
    /// The metadata region is full; nothing was changed.
    Full {
        /// The storage's words.
        why: String,
    },
    /// An earlier mutation failed in the middle: nothing can be changed until the store is opened again.
    Failed,
    /// Not enough free space; nothing was changed.
    NoSpace {
        /// Space wanted, in whole granules.
        wanted_bytes: u64,
        /// Free space.
        free_bytes: u64,
    },
    /// There is enough free space, but in more pieces than a volume can have.
    Fragmented {
        /// Free space.
        free_bytes: u64,
    },
    /// A usable volume has that name.
    NameTaken {
        /// The name.
        name: String,
    },
    /// No usable volume has that name.
    UnknownVolume {
        /// The name.
        name: String,
    },
    /// No volume with that id is being deleted.
    NotDeleting {
        /// The id.
        id: u32,
    },
    /// No tenant has that name.
    UnknownTenant {
        /// The name.
        name: String,
    },
    /// The tenant has volumes.
    TenantInUse {
        /// The tenant.
        name: String,
        /// One of its volumes.
        volume: String,
    },
    /// Volumes don't get smaller.
    Shrink {
        /// The volume.
        name: String,
        /// Its size.
        size_bytes: u64,
        /// Size wanted.
        wanted_bytes: u64,
    },
    /// The pool has reached its limit of them.
    TooMany {
        /// Of what.
        what: &'static str,
        /// The bound.
        max: usize,
    },
    /// A name, size or class that breaks a rule.
    Record(RecordError),
}

impl MetaError {
    /// Returns true if a mutation that failed so may nevertheless be found when the store is opened again.
    pub fn may_be_durable(&self) -> bool {
        matches!(self, MetaError::Io(_) | MetaError::Corrupt { .. })
    }
}

impl fmt::Display for MetaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MetaError::Corrupt { what } => {
                write!(
                    f,
                    "the metadata store is corrupt ({what}): restore the metadata from a backup (`plimsoll pool restore`) or the device from a copy"
                )
            }
            MetaError::UnknownVersion { version, known } => write!(
                f,
                "the metadata store has version {version}, the newest this program knows is {known}: use the program that wrote it, or a newer one"
            ),
            MetaError::RestoreUnfinished => write!(
                f,
                "a restore of the metadata from a backup isn't finished: repeat `plimsoll pool restore` with the same backup"
            ),
            MetaError::LaterRestoreUnfinished => write!(
                f,
                "a restore of the metadata by a later version of Plimsoll isn't finished: repeat `plimsoll pool restore` with that version and the same backup"
            ),
            MetaError::Io(e) => write!(f, "the metadata store's storage failed: {e}: check the device, then restart"),
            MetaError::Full { why } => write!(f, "{why}: delete volumes or use a larger device"),
            MetaError::Failed => {
                write!(f, "an earlier change of the metadata failed half-way: restart, so that it is recovered")
            }
            MetaError::NoSpace { wanted_bytes, free_bytes } => {
                write!(
                    f,
                    "no space: {wanted_bytes} bytes are needed, {free_bytes} are free: delete a volume or ask for less"
                )
            }
            MetaError::Fragmented { free_bytes } => write!(
                f,
                "the free space ({free_bytes} bytes) is in more than {EXTENTS_MAX} pieces: delete a volume or ask for less"
            ),
            MetaError::NameTaken { name } => write!(f, "there is a volume {name:?} already: choose another name"),
            MetaError::UnknownVolume { name } => write!(f, "there is no volume {name:?}"),
            MetaError::NotDeleting { id } => write!(f, "no volume with id {id} is being deleted"),
            MetaError::UnknownTenant { name } => write!(f, "there is no tenant {name:?}: declare it first"),
            MetaError::TenantInUse { name, volume } => {
                write!(f, "tenant {name:?} has volumes, {volume:?} for one: delete them first")
            }
            MetaError::Shrink { name, size_bytes, wanted_bytes } => {
                write!(
                    f,
                    "volume {name:?} has {size_bytes} bytes and can't shrink to {wanted_bytes}: copy it to a smaller one"
                )
            }
            MetaError::TooMany { what, max } => write!(f, "a pool can have {max} {what}, and has them: delete some"),
            MetaError::Record(e) => e.fmt(f),
        }
    }
}

impl std::error::Error for MetaError {}

impl From<RecordError> for MetaError {
    fn from(e: RecordError) -> MetaError {
        MetaError::Record(e)
    }
}

impl MetaError {
    pub(crate) fn of(e: redb::Error) -> MetaError {
        match e {
            redb::Error::Io(e) if e.kind() == std::io::ErrorKind::StorageFull => MetaError::Full { why: e.to_string() },
            // It refers to what lies beyond its end, or isn't a database.
            redb::Error::Io(e)
                if matches!(e.kind(), std::io::ErrorKind::InvalidData | std::io::ErrorKind::UnexpectedEof) =>
            {
                MetaError::Corrupt { what: e.to_string() }
            }
            redb::Error::Io(e) => MetaError::Io(e),
            redb::Error::PreviousIo => MetaError::Failed,
            other => MetaError::Corrupt { what: other.to_string() },
        }
    }
}

/// With fewer volumes than this, debug builds check the whole store after each change.
const STRICT_VOLUMES_MAX: usize = 256;

/// Among the generations of volumes' ids: 0 is no volume's.
pub(crate) const CACHE_ROW: u32 = 0;

/// The store's contents as of its newest durable change.
#[derive(Clone, Debug)]
pub struct MetaView {
    state: State,
    space: Space,
    home_bytes: u64,
}

/// Reads the store from other threads. A change that waits for its device doesn't hold a reader up.
#[derive(Clone, Debug)]
pub struct MetaReader(Arc<RwLock<MetaView>>, Arc<OnceLock<String>>);

impl MetaReader {
    /// The contents; a change that has become durable waits until the guard is dropped.
    pub fn view(&self) -> RwLockReadGuard<'_, MetaView> {
        // Who writes panics only on our own mistakes, before it changes anything.
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns why nothing can be changed until the store is opened again, if that is so.
    pub fn failed(&self) -> Option<&str> {
        self.1.get().map(String::as_str)
    }
}

impl MetaView {
    /// The usable volumes, by id.
    pub fn volumes(&self) -> impl Iterator<Item = &VolumeRecord> {
        self.state.volumes.values().filter(|v| v.state == VolumeState::Ready)
    }

    /// The usable volume of that name.
    pub fn volume(&self, name: &str) -> Option<&VolumeRecord> {
        self.state.names.get(name).map(|id| &self.state.volumes[id])
    }

    /// The volumes whose deletion began and hasn't finished, by id: to be zeroed and finished at start.
    pub fn deleting(&self) -> impl Iterator<Item = &VolumeRecord> {
        self.state.volumes.values().filter(|v| v.state == VolumeState::Deleting)
    }

    pub(crate) fn state(&self) -> &State {
        &self.state
    }

    /// The tenants, by name.
    pub fn tenants(&self) -> impl Iterator<Item = &TenantRecord> {
        self.state.tenants.values()
    }

    /// Returns the bytes of the home region, free or not.
    pub fn home_bytes(&self) -> u64 {
        self.home_bytes
    }

    /// Returns the free space of the home region.
    pub fn free_bytes(&self) -> u64 {
        self.space.free_bytes()
    }

    /// Returns whether the newest data of a volume may be in the cache only. Without a record the answer is true if the pool
    /// ever had a cache.
    pub fn may_be_behind(&self, volume: &VolumeRecord) -> bool {
        volume.behind.unwrap_or(self.cache_generation() > 0)
    }

    /// The pool's settings that were ever changed live.
    pub fn settings(&self) -> SettingsRecord {
        self.state.settings.clone().unwrap_or_default()
    }

    /// Returns how often the pool's cache device was declared out of date; 0 if the pool never had one.
    pub fn cache_generation(&self) -> u32 {
        self.state.generations.get(&CACHE_ROW).copied().unwrap_or(0)
    }

    /// Returns the record of the pool's cache.
    pub fn cache(&self) -> CacheRecord {
        self.state.cache.unwrap_or_default()
    }

    /// Returns the record of a volume that has grown to `size_bytes`; nothing is changed.
    ///
    /// # Errors
    /// If it can't grow so: it is larger already, or there isn't the space.
    pub fn grown(&self, name: &str, size_bytes: u64) -> Result<VolumeRecord, MetaError> {
        check_size(size_bytes)?;
        let mut volume = self.ready(name)?.clone();
        if size_bytes < volume.size_bytes {
            let name = name.to_owned();
            return Err(MetaError::Shrink { name, size_bytes: volume.size_bytes, wanted_bytes: size_bytes });
        }
        if size_bytes == volume.size_bytes {
            return Ok(volume);
        }
        let held = volume.size_bytes.next_multiple_of(GRANULE_BYTES);
        let more = size_bytes.next_multiple_of(GRANULE_BYTES) - held;
        let last = volume.extents.last().expect("a volume isn't empty");
        let follow = last.device_offset + last.len;
        let mut added = self.allocate(more, EXTENTS_MAX - volume.extents.len(), Some(follow))?;
        if added.first().is_some_and(|e| e.device_offset == follow) {
            volume.extents.last_mut().expect("a volume isn't empty").len += added.remove(0).len;
        }
        volume.extents.extend(added);
        volume.size_bytes = size_bytes;
        Ok(volume)
    }

    fn ready(&self, name: &str) -> Result<&VolumeRecord, MetaError> {
        self.volume(name).ok_or_else(|| MetaError::UnknownVolume { name: name.to_owned() })
    }

    /// Chooses space without taking it: [`MetaStore::commit`] takes it, once that is durable.
    fn allocate(
        &self,
        wanted_bytes: u64,
        extents_max: usize,
        follow: Option<u64>,
    ) -> Result<Vec<plimsoll_stack::map::Extent>, MetaError> {
        let free_bytes = self.space.free_bytes();
        if free_bytes < wanted_bytes {
            return Err(MetaError::NoSpace { wanted_bytes, free_bytes });
        }
        self.space.choose(wanted_bytes, extents_max, follow).ok_or(MetaError::Fragmented { free_bytes })
    }
}

/// See the module's documentation.
#[derive(Debug)]
pub struct MetaStore {
    storage: Storage,
    /// `None` after a failure from which only opening anew recovers.
    db: Option<Database>,
    home: Region,
    view: MetaView,
    /// A copy of `view` that others read: changed after a change is durable, by what it touched.
    shared: MetaReader,
    /// No volume's id is free below this.
    lowest_free_id: u32,
}

impl Deref for MetaStore {
    type Target = MetaView;
    fn deref(&self) -> &MetaView {
        &self.view
    }
}

/// The record of a volume that gives up what only the cache has of it, with the cache's generation from then on.
fn given_up_at(generation: u32, volume: VolumeRecord) -> VolumeRecord {
    VolumeRecord { behind: Some(false), given_up: Some(generation), ..volume }
}

impl MetaStore {
    /// Writes an empty store to `backend`, which is empty, and opens it.
    ///
    /// # Errors
    /// Those of the storage; [`MetaError::Full`] if it is smaller than about 2 MiB.
    pub fn format(backend: impl MetaStorage, home: Region) -> Result<MetaStore, MetaError> {
        let storage = Storage::new(backend);
        db::format(&storage)?;
        MetaStore::open_storage(storage, home)
    }

    /// Opens the store in `backend`, recovering it if its last user crashed.
    ///
    /// # Errors
    /// [`MetaError::Corrupt`], [`MetaError::UnknownVersion`], and those of the storage.
    pub fn open(backend: impl MetaStorage, home: Region) -> Result<MetaStore, MetaError> {
        MetaStore::open_storage(Storage::new(backend), home)
    }

    /// Makes these the store's rows, in one transaction. Their change has a number that isn't below the store's.
    ///
    /// # Errors
    /// Those of the storage, and its size.
    pub(crate) fn replace(mut self, state: State) -> Result<(), MetaError> {
        let edits = state.edits_from(&self.view.state);
        self.view.state = state;
        self.storage.set_may_use_reserve(true);
        match db::write(self.db.as_ref().ok_or(MetaError::Failed)?, &edits) {
            Err(MetaError::Full { why }) => self.write_with_more_room(&edits, why)?,
            written => written?,
        }
        self.storage.witness(self.view.state.commit)
    }

    #[cfg(test)]
    pub(crate) fn db(&self) -> &Database {
        self.db.as_ref().expect("it is open")
    }

    fn open_storage(storage: Storage, home: Region) -> Result<MetaStore, MetaError> {
        storage.set_may_use_reserve(true);
        let (db, state) = db::open(&storage)?;
        storage.check_commit(state.commit)?;
        let space = state.check(home).map_err(|what| MetaError::Corrupt { what })?;
        let view = MetaView { state, space, home_bytes: home.len };
        let shared = MetaReader(Arc::new(RwLock::new(view.clone())), Arc::default());
        Ok(MetaStore { storage, db: Some(db), home, view, shared, lowest_free_id: 1 })
    }

    /// Creates a volume. Its space reads as zeroes, if free space does.
    ///
    /// # Errors
    /// A name that is taken or unlawful, no space, or a failing storage.
    pub fn create_volume(&mut self, new: NewVolume) -> Result<VolumeRecord, MetaError> {
        new.check()?;
        if self.view.state.names.contains_key(&new.name) {
            return Err(MetaError::NameTaken { name: new.name });
        }
        // Whether the tenant exists is the node's to know: most are declared in its configuration, not here.
        if self.view.state.volumes.len() >= VOLUMES_MAX {
            return Err(MetaError::TooMany { what: "volumes", max: VOLUMES_MAX });
        }
        let (id, generation) = self.view.state.next_key(self.lowest_free_id);
        let volume = VolumeRecord {
            key: VolumeKey { id, generation },
            extents: self.allocate(new.size_bytes.next_multiple_of(GRANULE_BYTES), EXTENTS_MAX, None)?,
            name: new.name,
            size_bytes: new.size_bytes,
            tenant: new.tenant,
            read_only: new.read_only,
            description: new.description,
            cache: new.cache,
            state: VolumeState::Ready,
            replica: ReplicaRecord::default(),
            deadline: None,
            behind: None,
            given_up: None,
            birth: Some(Uuid::new_v4().as_u64_pair().1),
        };
        let (name, own) = (Edit::PutName(volume.name.clone(), id), Edit::PutGeneration(id, generation));
        self.commit(vec![name, own, Edit::PutVolume(volume.clone())], false)?;
        self.lowest_free_id = id + 1;
        Ok(volume)
    }

    /// Changes a volume's mode in its pool's cache. `None` is the pool's default.
    ///
    /// While the pool is served without its cache ([`CacheRecord::absent`]) nothing can be written that only the cache has. So a volume
    /// isn't behind by this then; a start with the cache makes it so before it serves.
    ///
    /// # Errors
    /// An unknown name, or a failing storage.
    pub fn set_volume_cache(&mut self, name: &str, cache: Option<CacheMode>) -> Result<VolumeRecord, MetaError> {
        let before = self.ready(name)?.clone();
        // In one with it: what is written from then on may be nowhere else.
        let is_cached = cache == Some(CacheMode::Back) && !self.cache().absent;
        let behind = if is_cached { Some(true) } else { before.behind };
        let volume = VolumeRecord { cache, behind, ..before };
        self.commit(vec![Edit::PutVolume(volume.clone())], false)?;
        Ok(volume)
    }

    /// Keeps for some volumes, those with these ids, whether only the cache may have the latest of them.
    ///
    /// # Errors
    /// A failing storage.
    pub fn set_behind(&mut self, ids: &[u32], behind: bool) -> Result<(), MetaError> {
        let found = ids.iter().filter_map(|id| self.view.state.volumes.get(id)).filter(|v| v.behind != Some(behind));
        let edits: Vec<Edit> =
            found.map(|v| Edit::PutVolume(VolumeRecord { behind: Some(behind), ..v.clone() })).collect();
        if edits.is_empty() { Ok(()) } else { self.commit(edits, true) }
    }

    /// Keeps what a volume is as one of several replicas. Does nothing if the volume was deleted meanwhile.
    ///
    /// # Errors
    /// A failing storage.
    pub fn set_replica(&mut self, key: VolumeKey, replica: ReplicaRecord) -> Result<(), MetaError> {
        let is_there = |v: &&VolumeRecord| v.key == key && v.state == VolumeState::Ready;
        match self.view.state.volumes.get(&key.id).filter(is_there).cloned() {
            Some(volume) => self.commit(vec![Edit::PutVolume(VolumeRecord { replica, ..volume })], false),
            None => Ok(()),
        }
    }

    /// Gives a volume another name. Its key, space and data stay.
    ///
    /// # Errors
    /// An unknown name, a new name that is taken or unlawful, or a failing storage.
    pub fn rename_volume(&mut self, name: &str, new: &str) -> Result<VolumeRecord, MetaError> {
        check_name(new)?;
        let volume = VolumeRecord { name: new.to_owned(), ..self.ready(name)?.clone() };
        if self.view.state.names.contains_key(new) {
            return Err(MetaError::NameTaken { name: new.to_owned() });
        }
        let (drop, put) = (Edit::DropName(name.to_owned()), Edit::PutName(new.to_owned(), volume.key.id));
        self.commit(vec![drop, put, Edit::PutVolume(volume.clone())], false)?;
        Ok(volume)
    }

    /// Keeps a volume's deadline as it is from now on.
    ///
    /// # Errors
    /// An unknown name, or a failing storage.
    pub fn set_volume_deadline(&mut self, name: &str, deadline: DeadlineRecord) -> Result<(), MetaError> {
        let volume = VolumeRecord { deadline: Some(deadline), ..self.ready(name)?.clone() };
        self.commit(vec![Edit::PutVolume(volume)], false)
    }

    /// Keeps the pool's settings as they are from now on.
    ///
    /// # Errors
    /// A failing storage.
    pub fn set_settings(&mut self, settings: SettingsRecord) -> Result<(), MetaError> {
        self.commit(vec![Edit::PutSettings(Some(settings))], false)
    }

    /// Records that the pool is served without its cache from now on: its device failed, can't be opened, or isn't configured. The device's
    /// content is out of date as soon as this is durable, which must be before anything is written without the cache. The next start
    /// that has the device calls [`MetaStore::outdate_cache`] for it before it is read, so that however often the pool is started
    /// without it, its generation moves once. Does nothing if that is recorded.
    ///
    /// Volumes that are being deleted give up what only the cache has of them: it may no longer be able to record that they are gone.
    ///
    /// # Errors
    /// A failing storage.
    pub fn miss_cache(&mut self) -> Result<(), MetaError> {
        let record = CacheRecord { absent: true, ..self.cache() };
        if self.cache() == record {
            return Ok(());
        }
        let mut edits = self.edits_of_cache(record);
        let next = self.cache_generation() + 1;
        let deleting = self.deleting().filter(|v| self.may_be_behind(v));
        let gone: Vec<Edit> = deleting.map(|v| Edit::PutVolume(given_up_at(next, v.clone()))).collect();
        if !gone.is_empty() {
            edits.push(Edit::PutGeneration(CACHE_ROW, next));
            edits.extend(gone);
        }
        self.commit(edits, true)
    }

    /// Declares what the pool's cache device holds to be out of date: the pool was served without it, or it is a new one. The cache is used
    /// from now on.
    ///
    /// # Errors
    /// A failing storage.
    pub fn outdate_cache(&mut self) -> Result<u32, MetaError> {
        let next = self.cache_generation() + 1;
        let mut edits = self.edits_of_cache(CacheRecord { absent: false, ..self.cache() });
        edits.push(Edit::PutGeneration(CACHE_ROW, next));
        self.commit(edits, true)?;
        Ok(next)
    }

    /// Gives up what only the pool's cache has of a volume: nothing that its device holds of that counts any more, should it come back.
    /// Other replicas may have those writes, so the volume lacks changes from then on, until it is resynced.
    ///
    /// # Errors
    /// An unknown name, or a failing storage.
    pub fn give_up(&mut self, name: &str) -> Result<VolumeRecord, MetaError> {
        let next = self.cache_generation() + 1;
        let before = self.ready(name)?.clone();
        let replica = ReplicaRecord { behind: ReplicaRecord::WRITES_LOST, ..before.replica };
        let volume = VolumeRecord { replica, ..given_up_at(next, before) };
        self.commit(vec![Edit::PutGeneration(CACHE_ROW, next), Edit::PutVolume(volume.clone())], true)?;
        Ok(volume)
    }

    /// Records the device of the pool's cache, once it names the pool's main device, and its NVRAM, if it has any. Does nothing if that is
    /// recorded.
    ///
    /// # Errors
    /// A failing storage.
    pub fn set_cache_devices(&mut self, device: Uuid, nvram: Option<Uuid>) -> Result<(), MetaError> {
        let record = CacheRecord { device: Some(device), nvram, ..self.cache() };
        if self.cache() == record { Ok(()) } else { self.set_cache(record) }
    }

    fn set_cache(&mut self, record: CacheRecord) -> Result<(), MetaError> {
        self.commit(self.edits_of_cache(record), true)
    }

    /// The edits that write the cache's row. An earlier program's row may have a size that was changed live: it gets into today's row.
    fn edits_of_cache(&self, record: CacheRecord) -> Vec<Edit> {
        let settings = self.state.settings.clone().map(|settings| Edit::PutSettings(Some(settings)));
        settings.into_iter().chain([Edit::PutCache(Some(record))]).collect()
    }

    /// Makes a volume larger. Its extents keep their places; the last may get longer, others are added.
    ///
    /// # Errors
    /// [`MetaError::Shrink`], an unknown name, an unlawful size, no space, or a failing storage.
    pub fn grow_volume(&mut self, name: &str, size_bytes: u64) -> Result<VolumeRecord, MetaError> {
        let volume = self.grown(name, size_bytes)?;
        if self.volume(name) == Some(&volume) {
            return Ok(volume);
        }
        self.commit(vec![Edit::PutVolume(volume.clone())], false)?;
        Ok(volume)
    }

    /// Changes whose a volume is, and whether it may be changed.
    ///
    /// # Errors
    /// An unknown name or a failing storage.
    pub fn set_volume_owner(&mut self, name: &str, tenant: String, read_only: bool) -> Result<VolumeRecord, MetaError> {
        let volume = VolumeRecord { tenant, read_only, ..self.ready(name)?.clone() };
        self.commit(vec![Edit::PutVolume(volume.clone())], false)?;
        Ok(volume)
    }

    /// Begins to delete a volume: from now on it isn't usable and its name is free. Its space stays its own until
    /// [`MetaStore::finish_delete`], before which the caller zeroes it and makes that durable.
    ///
    /// While the pool is served without its cache ([`CacheRecord::absent`]) the cache can't record that the volume is gone. So the volume
    /// gives up what only the cache has of it: a restore may bring the volume back, and that device, too.
    ///
    /// # Errors
    /// An unknown name or a failing storage.
    pub fn begin_delete(&mut self, name: &str) -> Result<VolumeRecord, MetaError> {
        self.delete(name, self.cache().absent)
    }

    /// The same while the pool has a cache that can't record anything, as its start failed: the volume is given up, too.
    ///
    /// # Errors
    /// As of [`MetaStore::begin_delete`].
    pub fn begin_delete_given_up(&mut self, name: &str) -> Result<VolumeRecord, MetaError> {
        self.delete(name, true)
    }

    fn delete(&mut self, name: &str, gives_up: bool) -> Result<VolumeRecord, MetaError> {
        let mut volume = VolumeRecord { state: VolumeState::Deleting, ..self.ready(name)?.clone() };
        let mut edits = vec![Edit::DropName(name.to_owned())];
        if gives_up && self.may_be_behind(&volume) {
            let next = self.cache_generation() + 1;
            volume = given_up_at(next, volume);
            edits.push(Edit::PutGeneration(CACHE_ROW, next));
        }
        edits.push(Edit::PutVolume(volume.clone()));
        self.commit(edits, true)?;
        Ok(volume)
    }

    /// Gives back the space of a volume being deleted. The next volume with its id has a higher generation.
    ///
    /// # Errors
    /// [`MetaError::NotDeleting`] or a failing storage.
    pub fn finish_delete(&mut self, id: u32) -> Result<(), MetaError> {
        self.free(id, false)
    }

    /// The same while the pool has a cache that has recorded nothing, as its start failed since the deletion began: the volume is given
    /// up, too.
    ///
    /// # Errors
    /// As of [`MetaStore::finish_delete`].
    pub fn finish_delete_given_up(&mut self, id: u32) -> Result<(), MetaError> {
        self.free(id, true)
    }

    fn free(&mut self, id: u32, gives_up: bool) -> Result<(), MetaError> {
        let volume = self.view.state.volumes.get(&id).filter(|v| v.state == VolumeState::Deleting);
        let volume = volume.ok_or(MetaError::NotDeleting { id })?;
        let (generation, mut given_up) = (volume.key.generation, volume.given_up);
        let mut edits = vec![Edit::DropVolume(id), Edit::PutGeneration(id, generation + 1)];
        if gives_up && self.may_be_behind(volume) {
            let next = self.cache_generation() + 1;
            given_up = Some(next);
            edits.push(Edit::PutGeneration(CACHE_ROW, next));
        }
        // A restore may bring the volume back, and what it gave up must not come back with it.
        edits.extend(given_up.map(|since| {
            let mut all = self.view.state.given_up.clone();
            State::note_given_up(&mut all, (id, generation), since);
            Edit::PutGivenUp(all)
        }));
        self.commit(edits, true)?;
        self.lowest_free_id = self.lowest_free_id.min(id);
        Ok(())
    }

    /// Declares a tenant, or changes it.
    ///
    /// # Errors
    /// An unlawful name or class, too many tenants, or a failing storage.
    pub fn set_tenant(&mut self, tenant: TenantRecord) -> Result<(), MetaError> {
        tenant.check()?;
        if self.view.state.tenants.len() >= TENANTS_MAX && !self.view.state.tenants.contains_key(&tenant.name) {
            return Err(MetaError::TooMany { what: "tenants", max: TENANTS_MAX });
        }
        self.commit(vec![Edit::PutTenant(tenant)], false)
    }

    /// Forgets a tenant that has no volumes.
    ///
    /// # Errors
    /// [`MetaError::UnknownTenant`], [`MetaError::TenantInUse`], or a failing storage.
    pub fn remove_tenant(&mut self, name: &str) -> Result<(), MetaError> {
        check_name(name)?;
        if !self.view.state.tenants.contains_key(name) {
            return Err(MetaError::UnknownTenant { name: name.to_owned() });
        }
        if let Some(v) = self.view.state.volumes.values().find(|v| v.tenant == name) {
            return Err(MetaError::TenantInUse { name: name.to_owned(), volume: v.name.clone() });
        }
        self.commit(vec![Edit::DropTenant(name.to_owned())], true)
    }

    /// Reads the store from other threads.
    pub fn reader(&self) -> MetaReader {
        self.shared.clone()
    }

    /// Makes `edits` durable together with the next commit's number, then notes that number beside the database.
    ///
    /// After an error of the storage the store isn't opened again here. Bytes that didn't reach the device may be in the kernel's memory as if
    /// they had, so a store that is read then is no evidence.
    fn commit(&mut self, edits: Vec<Edit>, may_use_reserve: bool) -> Result<(), MetaError> {
        let done = self.try_commit(edits, may_use_reserve);
        if let Err(e) = &done
            && self.db.is_none()
        {
            let _ = self.shared.1.set(e.to_string()); // the first failure is the reason of the later ones
        }
        done
    }

    fn try_commit(&mut self, mut edits: Vec<Edit>, may_use_reserve: bool) -> Result<(), MetaError> {
        let db = self.db.as_ref().ok_or(MetaError::Failed)?;
        edits.push(Edit::PutCommit(self.view.state.commit + 1));
        self.storage.set_may_use_reserve(may_use_reserve);
        let undo = self.view.state.apply_all(&edits, &mut self.view.space);
        if cfg!(debug_assertions) && self.view.state.volumes.len() < STRICT_VOLUMES_MAX {
            let space =
                self.view.state.check(self.home).unwrap_or_else(|what| panic!("a mutation broke the store: {what}"));
            assert_eq!(space, self.view.space, "the free runs don't fit the volumes");
        }
        let written = match db::write(db, &edits) {
            Err(MetaError::Full { why }) => self.write_with_more_room(&edits, why),
            written => written,
        };
        // The caller hears of the change only after it is noted that it was durable: before that an older state is no lie.
        let written = written.and_then(|()| self.storage.witness(self.view.state.commit));
        if written.is_ok() {
            let mut shared = self.shared.0.write().unwrap_or_else(PoisonError::into_inner);
            let MetaView { state, space, .. } = &mut *shared;
            state.apply_all(&edits, space);
        }
        if let Err(e) = &written {
            self.view.state.apply_all(&undo, &mut self.view.space);
            if !matches!(e, MetaError::Full { .. }) {
                self.db = None;
            }
        }
        written
    }

    /// redb refuses to go on after any error of its storage. Running full is one that harms nothing, so it is opened again,
    /// with all the room that it may have; what is found there is what happened.
    fn write_with_more_room(&mut self, edits: &[Edit], why: String) -> Result<(), MetaError> {
        self.db = None;
        let longer = self.storage.extend().map_err(MetaError::Io)?;
        if self.reopen()? == self.view.state {
            return Ok(());
        }
        let db = self.db.as_ref().expect("it was opened");
        match if longer { db::write(db, edits) } else { Err(MetaError::Full { why }) } {
            Err(MetaError::Full { why }) => {
                self.db = None;
                if self.reopen()? == self.view.state { Ok(()) } else { Err(MetaError::Full { why }) }
            }
            written => written,
        }
    }

    fn reopen(&mut self) -> Result<State, MetaError> {
        let (db, state) = db::open(&self.storage)?;
        self.db = Some(db);
        Ok(state)
    }
}
