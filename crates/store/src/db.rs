//! The boundary to redb: tables, transactions, and containment of what redb does with bytes it didn't write.
//!
//! redb checks the checksums of its pages when it is asked to ([`Database::check_integrity`]), which opening does here. On
//! some corrupt bytes it panics nevertheless (its own asserts). That is caught here, and only here, because a node must name
//! the device and go on serving its other pools; the database that panicked is never used again.

use crate::earlier;
use crate::meta::MetaError;
use crate::older::CHANGES_SKIPPED;
use crate::record::{VolumeRecord, tenant_from_json, tenant_to_json, volume_from_json, volume_to_json};
use crate::region::{MetaStorage, full};
use crate::state::{Edit, State};
use redb::{Database, ReadableDatabase, ReadableTable, StorageBackend, TableDefinition};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The version of the tables and their records.
const SCHEMA: u32 = 1;

const VOLUMES: TableDefinition<u32, &[u8]> = TableDefinition::new("volumes");
const NAMES: TableDefinition<&str, u32> = TableDefinition::new("names");
const GENERATIONS: TableDefinition<u32, u32> = TableDefinition::new("generations");
const TENANTS: TableDefinition<&str, &[u8]> = TableDefinition::new("tenants");
/// Of the volume with an id: its generation, and [`VolumeRecord::birth`]. Earlier programs don't know the table: a row whose generation isn't the
/// volume's is of a former one. The row of id 0, which no volume has, has the number of the newest change by a program that knows births: see
/// [`births_fit`].
const BIRTHS: TableDefinition<u32, (u32, u64)> = TableDefinition::new("births");
/// The id of no volume.
const NO_VOLUME: u32 = 0;
pub(crate) const SETTINGS: TableDefinition<&str, &[u8]> = TableDefinition::new("settings");

/// The rows of [`SETTINGS`].
const SCHEMA_ROW: &str = "schema";
const LIVE_ROW: &str = "live";
pub(crate) const CACHE_ROW: &str = "cache";
/// Absent as long as no volume that gave up its dirty data in the cache is deleted. Earlier programs don't know it.
const GIVEN_UP_ROW: &str = "given_up";
/// Number of the newest durable mutation; absent before the first since superblocks of version 3.
const COMMIT_ROW: &str = "commit";

/// Changes a store's life has room for; numbers above it are corrupt.
const COMMIT_MAX: u64 = 1 << 62;

/// Memory for redb's page cache; metadata is small and read once.
const CACHE_BYTES: usize = 4 << 20;
const PAGE_BYTES: u64 = 4096;

/// A backend that outlives the database over it, so that a database that ran full can be opened again, with a bound on
/// its length that spares a reserve for deleting.
#[derive(Clone, Debug)]
pub(crate) struct Storage(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    backend: Box<dyn MetaStorage>,
    capacity_bytes: u64,
    may_use_reserve: AtomicBool,
}

impl Storage {
    pub(crate) fn new(backend: impl MetaStorage) -> Storage {
        let (capacity_bytes, may_use_reserve) = (backend.capacity_bytes(), AtomicBool::new(true));
        Storage(Arc::new(Inner { backend: Box::new(backend), capacity_bytes, may_use_reserve }))
    }

    /// Copy-on-write needs room even to delete: an eighth of the storage is kept for it.
    pub(crate) fn set_may_use_reserve(&self, may: bool) {
        self.0.may_use_reserve.store(may, Ordering::Relaxed);
    }

    /// Checks that an opened store isn't older than the newest commit on record, and records its commit.
    pub(crate) fn check_commit(&self, commit: u64) -> Result<(), MetaError> {
        match self.0.backend.witnessed() {
            Some(noted) if commit < noted => {
                let what =
                    format!("it ends with change {commit}, but change {noted} was durable: older metadata came back");
                return Err(MetaError::Corrupt { what });
            }
            None if commit > 0 => {
                let what = format!("it ends with change {commit}, but both length slots are older than change 1");
                return Err(MetaError::Corrupt { what });
            }
            _ => {}
        }
        self.witness(commit)
    }

    /// Notes that `commit` is durable.
    pub(crate) fn witness(&self, commit: u64) -> Result<(), MetaError> {
        self.0.backend.witness(commit).map_err(MetaError::Io)
    }

    /// The longest that it may get now, in whole pages of redb's.
    fn bound_bytes(&self) -> u64 {
        let capacity = self.0.capacity_bytes;
        let bound = if self.0.may_use_reserve.load(Ordering::Relaxed) { capacity } else { capacity - capacity / 8 };
        bound - bound % PAGE_BYTES
    }

    /// Gives a closed database all the room that it may have. redb doubles its file when that is full, and so would leave
    /// up to half of a bounded storage unused; opened over a longer file, it uses that.
    pub(crate) fn extend(&self) -> std::io::Result<bool> {
        let bound = self.bound_bytes();
        let longer = bound > self.len()?;
        if longer {
            self.0.backend.set_len(bound)?;
        }
        Ok(longer)
    }
}

impl StorageBackend for Storage {
    fn len(&self) -> std::io::Result<u64> {
        self.0.backend.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> std::io::Result<()> {
        self.0.backend.read(offset, out)
    }

    fn set_len(&self, len: u64) -> std::io::Result<()> {
        let bound = self.bound_bytes();
        if len > bound && len > self.0.backend.len()? {
            return Err(full(len, bound));
        }
        self.0.backend.set_len(len)
    }

    fn sync_data(&self) -> std::io::Result<()> {
        self.0.backend.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> std::io::Result<()> {
        self.0.backend.write(offset, data)
    }
}

/// Writes an empty store to empty storage.
pub(crate) fn format(storage: &Storage) -> Result<(), MetaError> {
    contained(|| {
        let db = redb::Builder::new()
            .set_cache_size(CACHE_BYTES)
            .create_with_backend(storage.clone())
            .map_err(|e| MetaError::of(e.into()))?;
        let create_tables = || -> Result<(), redb::Error> {
            let mut txn = db.begin_write()?;
            txn.set_two_phase_commit(true);
            txn.open_table(VOLUMES)?;
            txn.open_table(NAMES)?;
            txn.open_table(GENERATIONS)?;
            txn.open_table(TENANTS)?;
            txn.open_table(SETTINGS)?.insert(SCHEMA_ROW, SCHEMA.to_string().as_bytes())?;
            Ok(txn.commit()?)
        };
        create_tables().map_err(MetaError::of)
    })
}

/// Opens a store that was formatted, recovering it if its last user crashed, and reads all of it.
pub(crate) fn open(storage: &Storage) -> Result<(Database, State), MetaError> {
    contained(|| {
        if storage.len().map_err(MetaError::Io)? == 0 {
            return Err(MetaError::Corrupt { what: "the storage is empty: it was never formatted".into() });
        }
        let mut db = redb::Builder::new()
            .set_cache_size(CACHE_BYTES)
            .create_with_backend(storage.clone())
            .map_err(|e| MetaError::of(e.into()))?;
        db.check_integrity().map_err(|e| MetaError::of(e.into()))?;
        let state = load(&db)?;
        Ok((db, state))
    })
}

/// Makes `edits` durable together.
pub(crate) fn write(db: &Database, edits: &[Edit]) -> Result<(), MetaError> {
    let write = || -> Result<(), redb::Error> {
        let mut txn = db.begin_write()?;
        txn.set_two_phase_commit(true);
        drop_births_of_others(&txn)?;
        for edit in edits {
            match edit {
                Edit::PutVolume(v) => {
                    txn.open_table(VOLUMES)?.insert(v.key.id, volume_to_json(v).as_slice())?;
                    put_birth(&txn, v)?;
                }
                Edit::DropVolume(id) => {
                    drop(txn.open_table(VOLUMES)?.remove(id)?);
                    drop(txn.open_table(BIRTHS)?.remove(id)?);
                }
                Edit::PutName(name, id) => drop(txn.open_table(NAMES)?.insert(name.as_str(), id)?),
                Edit::DropName(name) => drop(txn.open_table(NAMES)?.remove(name.as_str())?),
                Edit::PutGeneration(id, generation) => drop(txn.open_table(GENERATIONS)?.insert(id, generation)?),
                Edit::DropGeneration(id) => drop(txn.open_table(GENERATIONS)?.remove(id)?),
                Edit::PutTenant(t) => {
                    txn.open_table(TENANTS)?.insert(t.name.as_str(), tenant_to_json(t).as_slice())?;
                }
                Edit::DropTenant(name) => drop(txn.open_table(TENANTS)?.remove(name.as_str())?),
                Edit::PutCache(c) => put_setting(&txn, CACHE_ROW, c)?,
                Edit::PutGivenUp(all) => put_setting(&txn, GIVEN_UP_ROW, &State::given_up_row(all))?,
                Edit::PutSettings(s) => {
                    put_setting(&txn, LIVE_ROW, s)?;
                    earlier::drop_rows(&txn)?;
                }
                Edit::PutCommit(commit) => {
                    put_setting(&txn, COMMIT_ROW, &Some(commit))?;
                    drop(txn.open_table(BIRTHS)?.insert(NO_VOLUME, (0, *commit))?);
                }
            }
        }
        Ok(txn.commit()?)
    };
    contained(|| write().map_err(MetaError::of))
}

fn load(db: &Database) -> Result<State, MetaError> {
    let of = MetaError::of;
    let txn = db.begin_read().map_err(|e| of(e.into()))?;
    check_schema(&txn)?;
    let mut state = State::default();
    let rows = txn.open_table(VOLUMES).map_err(|e| of(e.into()))?;
    for row in rows.iter().map_err(|e| of(e.into()))? {
        let (id, json) = row.map_err(|e| of(e.into()))?;
        let volume = volume_from_json(id.value(), json.value()).map_err(|why| bad_row("volume", id.value(), &why))?;
        state.volumes.insert(id.value(), volume);
    }
    let rows = txn.open_table(TENANTS).map_err(|e| of(e.into()))?;
    for row in rows.iter().map_err(|e| of(e.into()))? {
        let (name, json) = row.map_err(|e| of(e.into()))?;
        let tenant =
            tenant_from_json(name.value(), json.value()).map_err(|why| bad_row("tenant", name.value(), &why))?;
        state.tenants.insert(tenant.name.clone(), tenant);
    }
    let rows = txn.open_table(NAMES).map_err(|e| of(e.into()))?;
    for row in rows.iter().map_err(|e| of(e.into()))? {
        let (name, id) = row.map_err(|e| of(e.into()))?;
        state.names.insert(name.value().to_owned(), id.value());
    }
    let rows = txn.open_table(GENERATIONS).map_err(|e| of(e.into()))?;
    for row in rows.iter().map_err(|e| of(e.into()))? {
        let (id, generation) = row.map_err(|e| of(e.into()))?;
        state.generations.insert(id.value(), generation.value());
    }
    let settings = txn.open_table(SETTINGS).map_err(|e| of(e.into()))?;
    state.settings = match setting(&settings, LIVE_ROW)? {
        Some(live) => Some(live),
        None => earlier::settings(&settings)?,
    };
    state.cache = setting(&settings, CACHE_ROW)?;
    state.given_up = State::given_up_of(setting(&settings, GIVEN_UP_ROW)?);
    state.commit = setting(&settings, COMMIT_ROW)?.unwrap_or(0);
    if state.commit > COMMIT_MAX {
        return Err(bad_row("setting", COMMIT_ROW, "no store is changed that often"));
    }
    load_births(&txn, &mut state)?;
    Ok(state)
}

/// Writes the row of [`BIRTHS`] of a volume, if it isn't there: most changes of a volume aren't its first.
fn put_birth(txn: &redb::WriteTransaction, v: &VolumeRecord) -> Result<(), redb::Error> {
    let mut births = txn.open_table(BIRTHS)?;
    let row = v.birth.map(|birth| (v.key.generation, birth));
    if births.get(v.key.id)?.map(|there| there.value()) == row {
        return Ok(());
    }
    match row {
        Some(row) => drop(births.insert(v.key.id, row)?),
        None => drop(births.remove(v.key.id)?),
    }
    Ok(())
}

/// True unless a program that doesn't know births has restored a backup since they were written: then a volume may have the key of the one whose
/// birth that is. Such a program lets the row of [`NO_VOLUME`] be, and skips numbers of changes in each restore but that of a backup which is
/// the same as the pool. That many changes of its own have the same effect: the volumes are distinguished as if that program had made them.
fn births_fit(births: &impl ReadableTable<u32, (u32, u64)>, commit: u64) -> Result<bool, redb::StorageError> {
    let known = births.get(NO_VOLUME)?.map(|row| row.value().1);
    Ok(known.is_none_or(|known| commit.saturating_sub(known) < CHANGES_SKIPPED))
}

/// Removes births that don't fit, before a change writes their witness anew.
fn drop_births_of_others(txn: &redb::WriteTransaction) -> Result<(), redb::Error> {
    let commit = {
        let settings = txn.open_table(SETTINGS)?;
        let row = settings.get(COMMIT_ROW)?;
        row.and_then(|row| serde_json::from_slice(row.value()).ok()).unwrap_or(0)
    };
    let mut births = txn.open_table(BIRTHS)?;
    if !births_fit(&births, commit)? {
        births.retain(|_, _| false)?;
    }
    Ok(())
}

fn load_births(txn: &redb::ReadTransaction, state: &mut State) -> Result<(), MetaError> {
    let of = MetaError::of;
    let births = match txn.open_table(BIRTHS) {
        Err(redb::TableError::TableDoesNotExist(_)) => return Ok(()),
        opened => opened.map_err(|e| of(e.into()))?,
    };
    if !births_fit(&births, state.commit).map_err(|e| of(e.into()))? {
        return Ok(());
    }
    for row in births.iter().map_err(|e| of(e.into()))? {
        let (id, row) = row.map_err(|e| of(e.into()))?;
        let (generation, birth) = row.value();
        if let Some(v) = state.volumes.get_mut(&id.value()).filter(|v| v.key.generation == generation) {
            v.birth = Some(birth);
        }
    }
    Ok(())
}

/// Writes a row of [`SETTINGS`], or removes it.
fn put_setting(
    txn: &redb::WriteTransaction,
    row: &'static str,
    value: &Option<impl serde::Serialize>,
) -> Result<(), redb::Error> {
    let mut settings = txn.open_table(SETTINGS)?;
    match value {
        Some(value) => {
            let json = serde_json::to_vec(value).expect("numbers are JSON");
            drop(settings.insert(row, json.as_slice())?);
        }
        None => drop(settings.remove(row)?),
    }
    Ok(())
}

/// A row that is there only once something was set.
pub(crate) fn setting<T: serde::de::DeserializeOwned>(
    settings: &impl ReadableTable<&'static str, &'static [u8]>,
    row: &'static str,
) -> Result<Option<T>, MetaError> {
    let Some(json) = settings.get(row).map_err(|e| MetaError::of(e.into()))? else { return Ok(None) };
    serde_json::from_slice(json.value()).map(Some).map_err(|e| bad_row("setting", row, &e.to_string()))
}

fn check_schema(txn: &redb::ReadTransaction) -> Result<(), MetaError> {
    let settings = txn.open_table(SETTINGS).map_err(|e| MetaError::of(e.into()))?;
    let schema = settings.get(SCHEMA_ROW).map_err(|e| MetaError::of(e.into()))?;
    let schema = schema.and_then(|json| serde_json::from_slice::<u32>(json.value()).ok());
    match schema {
        Some(SCHEMA) => Ok(()),
        Some(version) if version > SCHEMA => Err(MetaError::UnknownVersion { version, known: SCHEMA }),
        _ => Err(MetaError::Corrupt { what: "it doesn't say which version its tables have".into() }),
    }
}

fn bad_row(table: &str, key: impl std::fmt::Debug, why: &str) -> MetaError {
    MetaError::Corrupt { what: format!("{table} {key:?}: {why}") }
}

fn contained<T>(f: impl FnOnce() -> Result<T, MetaError>) -> Result<T, MetaError> {
    // Unwind safe: on a panic the database is dropped in `f` or, after a write, its owner refuses to use it again.
    catch_unwind(AssertUnwindSafe(f)).unwrap_or_else(|panic| {
        let what = panic.downcast_ref::<String>().cloned();
        let what = what.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned()));
        Err(MetaError::Corrupt { what: what.unwrap_or_else(|| "the database panicked".into()) })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CreateOptions, DeviceFile, Expect, NewVolume, ROLE_MAIN, Uuid};

    /// An earlier program's restore of another history's backup: it replaces rows, and skips numbers of changes.
    fn restore_as_earlier(db: &Database, id: u32, json: &[u8], commit: u64) {
        let txn = db.begin_write().unwrap();
        txn.open_table(VOLUMES).unwrap().insert(id, json).unwrap();
        put_setting(&txn, COMMIT_ROW, &Some(commit)).unwrap();
        txn.commit().unwrap();
    }

    /// The births of the pool's volumes aren't those of the backup's, which have their keys.
    #[test]
    fn births_do_not_outlast_a_restore_by_a_program_that_does_not_know_them() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("p.img");
        let options = CreateOptions {
            size_bytes: 64 << 20,
            pool_uuid: Uuid::from_u128(7),
            role: ROLE_MAIN.into(),
            logs_bytes: 0,
            align_bytes: 0,
            main_uuid: None,
        };
        let new = |name: &str| NewVolume {
            name: name.into(),
            size_bytes: 1 << 20,
            tenant: "t".into(),
            read_only: false,
            description: None,
            cache: None,
        };
        let expect = Expect { pool_uuid: None, device_uuid: None, role: ROLE_MAIN.into() };
        drop(DeviceFile::create(&path, &options).unwrap());
        let open = || {
            let device = DeviceFile::open(&path, &expect).unwrap();
            (device.open_meta(u64::MAX).unwrap(), device)
        };
        let (mut store, mut device) = open();
        let ours = store.create_volume(new("v")).unwrap();
        for skipped in [CHANGES_SKIPPED - 1, CHANGES_SKIPPED] {
            let commit = store.state().commit + skipped;
            let json = volume_to_json(&store.state().volumes[&ours.key.id]);
            restore_as_earlier(store.db(), ours.key.id, &json, commit);
            drop((store, device));
            (store, device) = open();
            let fits = skipped < CHANGES_SKIPPED;
            assert_eq!(store.volume("v").unwrap().birth, ours.birth.filter(|_| fits), "{skipped} changes");
            // A volume that is made from here on has one, and the witness of that change brings no other back.
            store.create_volume(new(&format!("after {skipped}"))).unwrap();
            drop((store, device));
            (store, device) = open();
            assert_eq!(store.volume("v").unwrap().birth, ours.birth.filter(|_| fits), "{skipped} changes");
            assert!(store.volume(&format!("after {skipped}")).unwrap().birth.is_some());
        }
    }
}
