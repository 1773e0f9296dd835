//! Metadata that are lost and restored from a backup: the map is right, and nothing is restored over what it must not.

use plimsoll_base::{Class, Rng, VolumeKey};
use plimsoll_store::{
    Age, Backup, CreateOptions, DeviceErrorKind, DeviceFile, Expect, MetaStore, NewVolume, RestoreError, TenantLimits,
    TenantRecord, Uuid,
};
use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

const MIB: u64 = 1 << 20;

fn create(path: &Path) -> DeviceFile {
    let options = CreateOptions {
        size_bytes: 64 * MIB,
        pool_uuid: Uuid::from_u128(7),
        role: "main".into(),
        logs_bytes: 0,
        main_uuid: None,
    };
    DeviceFile::create(path, &options).expect("created")
}

fn open(path: &Path) -> (DeviceFile, MetaStore) {
    let expect = Expect { pool_uuid: None, device_uuid: None, role: "main".into() };
    let device = DeviceFile::open(path, &expect).expect("opens");
    let store = device.open_meta(u64::MAX).expect("opens");
    (device, store)
}

fn add(store: &mut MetaStore, name: &str, mib: u64) {
    let (name, tenant) = (name.to_string(), "t".to_string());
    let new = NewVolume { name, size_bytes: mib * MIB, tenant, read_only: false, description: None, cache: None };
    store.create_volume(new).expect("room");
}

/// A pool with two volumes, one being deleted and a tenant; and a backup's text.
fn pool(path: &Path) -> (MetaStore, DeviceFile, String) {
    let device = create(path);
    let mut store = device.open_meta(u64::MAX).expect("formatted");
    let class = Class::BestEffort { weight: 7 };
    let limits = TenantLimits::default();
    store.set_tenant(TenantRecord { name: "t".into(), class, limits, change: 1, deadline: None }).expect("set");
    ["a", "b", "gone"].iter().for_each(|name| add(&mut store, name, 3));
    store.begin_delete("gone").expect("there");
    let text = Backup::of(device.superblock(), &store).text();
    (store, device, text)
}

fn write_zeroes(path: &Path, offset: u64, len: u64) {
    let file = File::options().write(true).open(path).expect("opens");
    file.write_all_at(&vec![0; len as usize], offset).expect("written");
}

fn read(path: &Path, offset: u64) -> u8 {
    let mut b = [0];
    File::open(path).expect("opens").read_exact_at(&mut b, offset).expect("read");
    b[0]
}

#[test]
fn lost_metadata_come_back_and_a_backup_of_unknown_age_only_when_asked() {
    for (offset, len, is_known) in [
        (MIB + 8192, 64 << 10, true), // the store's pages: the witness is left
        (0, 8192, true),              // both superblocks
        (0, 2 * MIB + 8192, false),   // all of it
        (MIB, 2 * 4096, false),       // both length slots
    ] {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("p.img");
        let (store, device, text) = pool(&path);
        let before: Vec<_> = store.volumes().map(|v| (v.key, v.name.clone(), v.extents.clone())).collect();
        let at = store.volume("b").expect("there").extents[0].device_offset;
        File::options().write(true).open(&path).expect("opens").write_all_at(&[9], at).expect("written");
        let uuid = device.superblock().device_uuid;
        drop((store, device));
        write_zeroes(&path, offset, len);
        // A restore that is broken off leaves the last of these.
        let expect = Expect { pool_uuid: None, device_uuid: None, role: "main".into() };
        let opens = DeviceFile::open(&path, &expect).is_ok_and(|device| device.open_meta(u64::MAX).is_ok());
        assert!(!opens, "{offset}+{len}");
        let backup = Backup::parse(&text).expect("a backup");
        let done = match backup.restore(&path, false) {
            Err(RestoreError::Old(Age::Unknown)) if !is_known => backup.restore(&path, true).expect("asked to"),
            done if is_known => done.expect("its age is known"),
            done => panic!("{offset}+{len}: {done:?}"),
        };
        assert_eq!((done.volumes, done.age == Age::Current), (3, is_known), "{offset}+{len}");
        let (device, store) = open(&path);
        assert_eq!(device.superblock().device_uuid, uuid);
        let after: Vec<_> = store.volumes().map(|v| (v.key, v.name.clone(), v.extents.clone())).collect();
        assert_eq!(before, after);
        assert_eq!((store.deleting().count(), store.tenants().count(), read(&path, at)), (1, 1, 9));
        assert!(store.volumes().all(|v| v.replica.open), "each may lack other replicas' changes");
        // It goes on as a store does.
        let mut store = store;
        add(&mut store, "more", 3);
        drop((store, device));
        assert_eq!(open(&path).1.volumes().count(), 3);
    }
}

#[test]
fn an_older_backup_is_told_and_its_free_space_is_zeroed() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("p.img");
    let (mut store, device, text) = pool(&path);
    let (backup, key) = (Backup::parse(&text).expect("a backup"), store.volume("a").expect("there").key);
    assert!(matches!(
        backup.restore(&path, true),
        Err(RestoreError::Device(e)) if matches!(e.kind, DeviceErrorKind::Locked { .. })
    ));
    add(&mut store, "later", 5);
    let at = store.volume("later").expect("there").extents[0].device_offset;
    File::options().write(true).open(&path).expect("opens").write_all_at(&[9], at).expect("written");
    drop((store, device));
    let refused = backup.restore(&path, false).expect_err("a volume was made since");
    assert!(matches!(refused, RestoreError::Old(Age::Older(1))), "{refused:?}");
    assert_eq!(open(&path).1.volumes().count(), 3, "nothing was done");
    // Its metadata are lost, too: the witness still tells.
    write_zeroes(&path, MIB + 8192, 64 << 10);
    assert!(matches!(backup.restore(&path, false), Err(RestoreError::Old(Age::Older(1)))));
    let done = backup.restore(&path, true).expect("asked to");
    assert_eq!(done.age, Age::Older(1));
    let (_device, store) = open(&path);
    assert_eq!(store.volumes().count(), 2);
    assert_eq!((store.volume("a").map(|v| v.key), store.volume("later")), (Some(key), None));
    assert_eq!((done.zeroed_bytes, read(&path, at)), (store.free_bytes(), 0), "what is free reads as zeroes");
}

fn delete(store: &mut MetaStore, name: &str) {
    let id = store.begin_delete(name).expect("there").key.id;
    store.finish_delete(id).expect("deleted");
}

/// A pool in a history in which keys are given.
struct History {
    path: PathBuf,
    open: Option<(DeviceFile, MetaStore)>,
    /// Keys of all volumes that were ever made, whether they are in the metadata or not.
    keys: BTreeSet<VolumeKey>,
    /// Volumes that were ever made.
    made: u64,
    backups: Vec<Backup>,
}

/// Steps of a history, each as probable as it is often here.
const STEPS: [Step; 12] = {
    use Step::*;
    [Make, Make, Make, Make, Delete, Delete, Delete, BeginDelete, FinishDelete, Backup, Restore, Restart]
};

#[derive(Clone, Copy, Debug)]
enum Step {
    Make,
    Delete,
    BeginDelete,
    FinishDelete,
    Backup,
    Restore,
    Restart,
}

impl History {
    fn begin(path: PathBuf) -> History {
        drop(create(&path).open_meta(u64::MAX).expect("formatted"));
        let open = Some(open(&path));
        History { path, open, keys: BTreeSet::new(), made: 0, backups: Vec::new() }
    }

    fn store(&mut self) -> &mut MetaStore {
        &mut self.open.as_mut().expect("open").1
    }

    /// Makes a volume. Fails if its key was another's.
    fn make(&mut self) -> Result<(), String> {
        self.made += 1;
        let name = format!("v{}", self.made);
        if self.store().free_bytes() < MIB {
            return Ok(());
        }
        add(self.store(), &name, 1);
        let key = self.store().volume(&name).expect("made").key;
        if self.keys.insert(key) { Ok(()) } else { Err(format!("{key:?} is given again")) }
    }

    fn step(&mut self, step: Step, rng: &mut Rng) -> Result<(), String> {
        let names: Vec<String> = self.store().volumes().map(|v| v.name.clone()).collect();
        let one = (!names.is_empty()).then(|| names[rng.below(names.len() as u64) as usize].clone());
        match (step, one) {
            (Step::Make, _) => self.make()?,
            (Step::Delete, Some(name)) => delete(self.store(), &name),
            (Step::BeginDelete, Some(name)) => drop(self.store().begin_delete(&name).expect("there")),
            (Step::FinishDelete, _) => {
                let ids: Vec<u32> = self.store().deleting().map(|v| v.key.id).collect();
                ids.into_iter().for_each(|id| self.store().finish_delete(id).expect("deleting"));
            }
            (Step::Backup, _) => {
                let (device, store) = self.open.as_ref().expect("open");
                self.backups.push(Backup::of(device.superblock(), store));
            }
            (Step::Restore, _) if !self.backups.is_empty() => {
                self.open = None;
                // Nothing, the store's pages, or superblocks and pages are lost before: something tells the newest change.
                match rng.below(3) {
                    0 => {}
                    1 => write_zeroes(&self.path, MIB + 8192, 64 << 10),
                    _ => [(0, 8192), (MIB + 8192, 64 << 10)]
                        .into_iter()
                        .for_each(|(at, len)| write_zeroes(&self.path, at, len)),
                }
                let backup = &self.backups[rng.below(self.backups.len() as u64) as usize];
                backup.restore(&self.path, true).map_err(|e| e.to_string())?;
                self.open = Some(open(&self.path));
            }
            (Step::Restart, _) => {
                self.open = None;
                self.open = Some(open(&self.path));
            }
            _ => {}
        }
        Ok(())
    }
}

/// Volumes come and go, and any backup is restored at any time, over metadata that are there or lost: no volume ever gets a key that another
/// had. The cache may have data under each of them.
#[test]
fn no_key_is_given_twice_whatever_is_restored() {
    for seed in 0..6 {
        let dir = tempfile::tempdir().expect("a directory");
        let mut history = History::begin(dir.path().join("p.img"));
        let mut rng = Rng::new(seed, "keys");
        for n in 0..120 {
            let step = STEPS[rng.below(STEPS.len() as u64) as usize];
            history.step(step, &mut rng).unwrap_or_else(|e| panic!("seed {seed}, step {n}, {step:?}: {e}"));
        }
        assert!(history.keys.len() > 20 && history.backups.len() > 3, "{} keys", history.keys.len());
    }
}

/// All that could tell the newest change is lost, and volumes were made and deleted since the backup: their keys aren't given again.
#[test]
fn no_key_is_given_twice_after_all_is_lost() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut history = History::begin(dir.path().join("p.img"));
    let mut rng = Rng::new(1, "lost");
    history.make().expect("new");
    history.step(Step::Backup, &mut rng).expect("a backup");
    for _ in 0..30 {
        history.make().expect("new");
        history.step(Step::Delete, &mut rng).expect("one is there");
    }
    history.open = None;
    write_zeroes(&history.path, 0, 2 * MIB);
    let age = history.backups[0].restore(&history.path, true).expect("asked to").age;
    assert_eq!(age, Age::Unknown);
    history.open = Some(open(&history.path));
    for _ in 0..30 {
        history.step(Step::Delete, &mut rng).expect("one is there");
        history.make().unwrap();
    }
}

/// A restore takes back neither the number of times that the cache's device was out of date nor what was given up.
#[test]
fn a_cache_that_was_out_of_date_or_given_up_since_stays_so() {
    for (offset, len) in [(0, 0), (MIB + 8192, 64 << 10), (0, 2 * MIB)] {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("p.img");
        let (mut store, device, _) = pool(&path);
        store.outdate_cache().expect("noted");
        let backup = Backup::of(device.superblock(), &store);
        let mut devices = vec![store.cache_generation()];
        store.outdate_cache().expect("noted");
        devices.push(store.cache_generation());
        let given_up = store.give_up("a").expect("there").given_up;
        devices.push(store.cache_generation());
        drop((store, device));
        write_zeroes(&path, offset, len);
        for restores in 0..3 {
            backup.restore(&path, true).expect("asked to");
            let (_device, mut store) = open(&path);
            let generation = store.cache_generation();
            assert!(devices.iter().all(|g| g % 65_536 != generation % 65_536), "{generation} was {devices:?}");
            assert!(generation - devices[0] < 30_000, "{generation}");
            if restores == 0 && len == 0 {
                assert_eq!(store.volume("a").expect("there").given_up, given_up);
            }
            devices.push(generation);
            add(&mut store, "next", 1);
        }
    }
    // A pool that never had a cache doesn't wait for one.
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("p.img");
    let (mut store, device, text) = pool(&path);
    add(&mut store, "later", 1);
    drop((store, device));
    Backup::parse(&text).expect("a backup").restore(&path, true).expect("asked to");
    assert_eq!(open(&path).1.cache_generation(), 0);
}

#[test]
fn nothing_is_restored_over_another_device_or_from_a_file_that_was_changed() {
    let dir = tempfile::tempdir().expect("a directory");
    let (path, other) = (dir.path().join("p.img"), dir.path().join("o.img"));
    let (store, device, text) = pool(&path);
    drop((store, device, create(&other)));
    let backup = Backup::parse(&text).expect("a backup");
    let refused = |path: &Path| match backup.restore(path, true) {
        Err(RestoreError::Device(e)) => e.kind,
        done => panic!("{done:?}"),
    };
    assert!(matches!(refused(&other), DeviceErrorKind::OtherDevice { .. }));
    write_zeroes(&other, 0, 8192);
    assert!(matches!(refused(&other), DeviceErrorKind::OtherDevice { .. }), "its metadata tell");
    std::fs::write(&other, vec![1; 70 << 20]).expect("written");
    assert!(matches!(refused(&other), DeviceErrorKind::Foreign));
    File::options().write(true).open(&other).expect("opens").set_len(32 * MIB).expect("cut");
    assert!(matches!(refused(&other), DeviceErrorKind::TooSmall { .. }));
    for changed in
        [text.replace("\"t\"", "\"u\""), text.replace("_backup\": 1", "_backup\": 2"), text[..900].to_string()]
    {
        let Err(RestoreError::Backup(what)) = Backup::parse(&changed) else { panic!("it was changed") };
        assert!(["checksum", "format 2", "JSON"].iter().any(|part| what.contains(part)), "{what}");
    }
}
