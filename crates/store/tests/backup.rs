//! Metadata that are lost and restored from a backup: the map is right, and nothing is restored over what it must not.

use plimsoll_base::{Class, Rng, VolumeKey};
use plimsoll_store::{
    Age, Backup, CreateOptions, DeviceErrorKind, DeviceFile, Expect, MetaStore, NewVolume, RestoreError,
    RestoreOptions, TenantLimits, TenantRecord, Uuid, superblock::SuperblockError,
};
use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

const MIB: u64 = 1 << 20;

/// The operator's words: nothing, that the backup may be older, that the pool never had a cache, and both.
const PLAIN: RestoreOptions = RestoreOptions { older: false, blank: false, had_cache: None, home_bytes: None };
const OLDER: RestoreOptions = RestoreOptions { older: true, blank: true, ..PLAIN };
const NEVER_CACHED: RestoreOptions = RestoreOptions { had_cache: Some(false), ..PLAIN };
const OLDER_NEVER_CACHED: RestoreOptions = RestoreOptions { older: true, blank: true, ..NEVER_CACHED };

fn create(path: &Path) -> DeviceFile {
    let options = CreateOptions {
        size_bytes: 64 * MIB,
        pool_uuid: Uuid::from_u128(7),
        role: "main".into(),
        logs_bytes: 0,
        align_bytes: 0,
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
        let done = match backup.restore(&path, PLAIN) {
            Err(RestoreError::Blank(Some(_)) | RestoreError::OldAndCacheUnknown(Age::Unknown)) if !is_known => {
                backup.restore(&path, OLDER_NEVER_CACHED).expect("asked to")
            }
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
        backup.restore(&path, OLDER),
        Err(RestoreError::Device(e)) if matches!(e.kind, DeviceErrorKind::Locked { .. })
    ));
    add(&mut store, "later", 5);
    let at = store.volume("later").expect("there").extents[0].device_offset;
    File::options().write(true).open(&path).expect("opens").write_all_at(&[9], at).expect("written");
    drop((store, device));
    let refused = backup.restore(&path, PLAIN).expect_err("a volume was made since");
    assert!(matches!(refused, RestoreError::Old(Age::Older(1))), "{refused:?}");
    assert_eq!(open(&path).1.volumes().count(), 3, "nothing was done");
    // Its metadata are lost, too: the witness still tells.
    write_zeroes(&path, MIB + 8192, 64 << 10);
    assert!(matches!(backup.restore(&path, PLAIN), Err(RestoreError::OldAndCacheUnknown(Age::Older(1)))));
    let done = backup.restore(&path, OLDER_NEVER_CACHED).expect("asked to");
    assert_eq!(done.age, Age::Older(1));
    let (_device, store) = open(&path);
    assert_eq!(store.volumes().count(), 2);
    assert_eq!((store.volume("a").map(|v| v.key), store.volume("later")), (Some(key), None));
    assert_eq!((done.zeroed_bytes, read(&path, at)), (store.free_bytes(), 0), "what is free reads as zeroes");
}

/// A copy of the device is put back and changed: it has another history than the backup, whose number of changes is the same, larger or smaller.
/// A volume of another tenant has the key of one of the backup's.
#[test]
fn a_backup_of_another_history_is_not_current() {
    for (newer, older) in [(0, 0), (1, 0), (0, 2)] {
        let dir = tempfile::tempdir().expect("a directory");
        let (path, copy) = (dir.path().join("p.img"), dir.path().join("copy.img"));
        let (mut store, device, _) = pool(&path);
        std::fs::copy(&path, &copy).expect("copied");
        add(&mut store, "theirs", 3);
        (0..newer).for_each(|_| add(&mut store, "more", 3));
        let backup = Backup::of(device.superblock(), &store);
        drop((store, device));
        std::fs::copy(&copy, &path).expect("put back");
        let earlier = backup.restore(&copy, PLAIN).expect("the copy is an earlier state of it");
        assert_eq!(earlier.age, Age::Current);
        let (device, mut store) = open(&path);
        let (name, tenant) = ("ours".to_string(), "u".to_string());
        let new = NewVolume { name, size_bytes: 3 * MIB, tenant, read_only: false, description: None, cache: None };
        let record = store.create_volume(new).expect("room");
        let at = record.extents[0].device_offset;
        (0..older).for_each(|n| add(&mut store, &format!("ours {n}"), 3));
        drop((store, device));
        File::options().write(true).open(&path).expect("opens").write_all_at(&[9], at).expect("written");
        let refused = backup.restore(&path, PLAIN);
        assert!(matches!(refused, Err(RestoreError::Old(Age::Forked))), "{newer}, {older}: {refused:?}");
        assert!(open(&path).1.volume("ours").is_some() && read(&path, at) == 9, "nothing was done");
        let done = backup.restore(&path, OLDER).expect("asked to");
        assert!(done.zeroed_bytes > 0 && open(&path).1.volume("theirs").is_some());
        assert_eq!(read(&path, at), 0, "another tenant's bytes");
    }
}

/// A volume that was renamed and given to another tenant since is the backup's, whichever program made it or wrote the backup.
#[test]
fn a_volume_that_was_renamed_and_given_away_keeps_its_data() {
    let dir = tempfile::tempdir().expect("a directory");
    let (path, copy) = (dir.path().join("p.img"), dir.path().join("copy.img"));
    let (mut store, device, text) = pool(&path);
    let at = store.volume("a").expect("there").extents[0].device_offset;
    store.rename_volume("a", "b2").expect("renamed");
    store.set_volume_owner("b2", "u".into(), false).expect("given");
    drop((store, device));
    File::options().write(true).open(&path).expect("opens").write_all_at(&[9], at).expect("written");
    std::fs::copy(&path, &copy).expect("copied");
    for (path, text) in [(path, text.clone()), (copy, without_births(&text))] {
        let backup = Backup::parse(&text).expect("a backup");
        let refused = backup.restore(&path, PLAIN);
        assert!(matches!(refused, Err(RestoreError::Old(Age::Older(2)))), "{refused:?}");
        backup.restore(&path, OLDER).expect("asked to");
        let (device, store) = open(&path);
        assert_eq!((store.volume("a").map(|v| v.tenant.clone()), read(&path, at)), (Some("t".into()), 9));
        // What is written from here on knows the volumes again.
        assert!(Backup::of(device.superblock(), &store).text().contains("births"));
    }
}

/// A backup as an earlier program wrote it.
fn without_births(text: &str) -> String {
    let mut file: serde_json::Value = serde_json::from_str(text).expect("JSON");
    assert!(file["body"].as_object_mut().expect("an object").remove("births").is_some());
    file["xxh3"] = format!("{:016x}", xxhash_rust::xxh3::xxh3_64(file["body"].to_string().as_bytes())).into();
    file.to_string()
}

/// The cache may have data of the other volume, under the key of both.
#[test]
fn data_in_the_cache_of_another_historys_volume_are_given_up() {
    let dir = tempfile::tempdir().expect("a directory");
    let (path, copy) = (dir.path().join("p.img"), dir.path().join("copy.img"));
    let (mut store, device, _) = pool(&path);
    store.outdate_cache().expect("a cache was made");
    drop((store, device));
    std::fs::copy(&path, &copy).expect("copied");
    let backup = {
        let (device, mut store) = open(&path);
        add(&mut store, "theirs", 3);
        Backup::of(device.superblock(), &store)
    };
    let (device, mut store) = open(&copy);
    ["ours", "more"].iter().for_each(|name| add(&mut store, name, 3));
    let (key, written_under) = (store.volume("ours").expect("made").key, store.cache_generation());
    drop((store, device));
    backup.restore(&copy, OLDER).expect("asked to");
    let (_device, store) = open(&copy);
    let theirs = store.volume("theirs").expect("restored");
    assert_eq!(theirs.key, key);
    assert!(theirs.given_up.is_some_and(|since| since > written_under), "{:?}", theirs.given_up);
    assert_eq!(store.volume("a").expect("of both").given_up, None);
}

/// A device that was never the pool's says as little as one that has lost everything.
#[test]
fn a_device_that_names_no_pool_is_taken_only_when_asked() {
    let dir = tempfile::tempdir().expect("a directory");
    let (path, other) = (dir.path().join("p.img"), dir.path().join("other.img"));
    let (_store, _device, text) = pool(&path);
    let backup = Backup::parse(&text).expect("a backup");
    let file = File::create(&other).expect("made");
    file.set_len(64 * MIB).expect("as long");
    let said_older = RestoreOptions { blank: false, ..OLDER_NEVER_CACHED };
    assert!(matches!(backup.restore(&other, said_older), Err(RestoreError::Blank(None))));
    file.write_all_at(b"somebody's", 40 * MIB).expect("written");
    let before = std::fs::read(&other).expect("read");
    let refused = backup.restore(&other, said_older).expect_err("it isn't the pool's");
    assert!(matches!(refused, RestoreError::Blank(Some(at)) if at == 40 * MIB), "{refused:?}");
    assert!(refused.to_string().contains("--blank"), "{refused}");
    assert!(std::fs::read(&other).expect("read") == before, "the device was changed");
    backup.restore(&other, OLDER_NEVER_CACHED).expect("asked to");
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
                backup.restore(&self.path, OLDER_NEVER_CACHED).map_err(|e| e.to_string())?;
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
    let age = history.backups[0].restore(&history.path, OLDER_NEVER_CACHED).expect("asked to").age;
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
            backup.restore(&path, OLDER).expect("asked to");
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
    Backup::parse(&text).expect("a backup").restore(&path, OLDER).expect("asked to");
    assert_eq!(open(&path).1.cache_generation(), 0);
}

#[test]
fn nothing_is_restored_over_another_device_or_from_a_file_that_was_changed() {
    let dir = tempfile::tempdir().expect("a directory");
    let (path, other) = (dir.path().join("p.img"), dir.path().join("o.img"));
    let (store, device, text) = pool(&path);
    drop((store, device, create(&other)));
    let backup = Backup::parse(&text).expect("a backup");
    let refused = |path: &Path| match backup.restore(path, OLDER) {
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

/// A copy of the superblock that a later program wrote: valid, and with the next version.
fn later_superblock(path: &Path) -> Vec<u8> {
    let mut b = vec![0; 4096];
    File::open(path).expect("opens").read_exact_at(&mut b, 0).expect("read");
    let version = u32::from_le_bytes(b[8..12].try_into().expect("four bytes"));
    b[8..12].copy_from_slice(&(version + 9).to_le_bytes());
    let sum = xxhash_rust::xxh3::xxh3_64(&b[..4088]);
    b[4088..].copy_from_slice(&sum.to_le_bytes());
    b
}

/// One copy is enough: the other one may be older, or lost. Nothing on the device is changed.
#[test]
fn superblocks_of_a_later_program_are_not_replaced() {
    for (later, lost) in [(0, None), (4096, None), (0, Some(4096)), (4096, Some(0))] {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("p.img");
        let (store, device, text) = pool(&path);
        drop((store, device));
        let file = File::options().write(true).open(&path).expect("opens");
        file.write_all_at(&later_superblock(&path), later).expect("written");
        lost.into_iter().for_each(|at| write_zeroes(&path, at, 4096));
        let before = std::fs::read(&path).expect("read");
        let backup = Backup::parse(&text).expect("a backup");
        for options in [PLAIN, OLDER, OLDER_NEVER_CACHED] {
            let Err(RestoreError::Device(e)) = backup.restore(&path, options) else { panic!("it is restored") };
            let kind = &e.kind;
            let is_named = matches!(kind, DeviceErrorKind::Superblock(SuperblockError::UnknownVersion { .. }));
            assert!(is_named && e.to_string().contains("use the program that wrote it"), "{later}, {lost:?}: {e}");
        }
        assert!(std::fs::read(&path).expect("read") == before, "{later}, {lost:?}: the device was changed");
    }
}

/// A number of a length slot.
fn note(path: &Path, slot: u64, field: u64) -> u64 {
    let mut b = [0; 8];
    File::open(path).expect("opens").read_exact_at(&mut b, slot + field).expect("read");
    u64::from_le_bytes(b)
}

/// The offset of the length slot with the higher sequence.
fn newest_slot(path: &Path) -> u64 {
    let slots = [MIB, MIB + 4096];
    let sequence = |at: u64| note(path, at, 8);
    if sequence(slots[0]) > sequence(slots[1]) { slots[0] } else { slots[1] }
}

/// A pool with `more` volumes, backups of its newest change and of the three before, and a byte of the newest volume.
fn changed_after(more: usize) -> (tempfile::TempDir, Vec<Backup>, u64) {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("p.img");
    let (mut store, device, _) = pool(&path);
    (0..more).for_each(|n| add(&mut store, &format!("{n}"), 1));
    let mut backups = Vec::new();
    let mut at = 0;
    for name in ["c", "d", "e"] {
        backups.push(Backup::of(device.superblock(), &store));
        add(&mut store, name, 1);
        at = store.volume(name).expect("there").extents[0].device_offset;
        File::options().write(true).open(&path).expect("opens").write_all_at(&[9], at).expect("written");
    }
    backups.push(Backup::of(device.superblock(), &store));
    (dir, backups, at)
}

/// Backups of each change up to the newest, of a pool whose metadata can't be read, and that has lost one of the two notes of the newest
/// change. A backup is current only if it surely is, and it is if it has the newest change: then no option is needed.
#[test]
fn a_backup_of_one_change_before_is_not_current_when_the_newest_note_is_lost() {
    for is_newest_lost in [true, false] {
        // A store whose file gets shorter at its end writes both notes: then no note of the change before is left.
        let of_two_changes = (0..8).map(changed_after).find(|(dir, ..)| {
            let slot = newest_slot(&dir.path().join("p.img"));
            let changes = |at: u64| note(&dir.path().join("p.img"), at, 24);
            changes(slot) != changes(2 * MIB + 4096 - slot)
        });
        let (dir, backups, at) = of_two_changes.expect("most have two");
        let path = dir.path().join("p.img");
        let newest = newest_slot(&path);
        let lost = if is_newest_lost { newest } else { 2 * MIB + 4096 - newest };
        write_zeroes(&path, lost, 64);
        write_zeroes(&path, MIB + 8192, 64 << 10);
        let copy = dir.path().join("copy.img");
        let restored = |n: usize, options| {
            std::fs::copy(&path, &copy).expect("copied");
            backups[n].restore(&copy, options)
        };
        // With the newest note lost, the other one has the change before: what followed it isn't known.
        assert!(
            matches!(restored(0, PLAIN), Err(RestoreError::OldAndCacheUnknown(Age::Older(2 | 3)))),
            "{is_newest_lost}"
        );
        let before = restored(2, PLAIN);
        match (is_newest_lost, before) {
            (true, Err(RestoreError::OldAndCacheUnknown(Age::Unknown)))
            | (false, Err(RestoreError::OldAndCacheUnknown(Age::Older(1)))) => {}
            (_, before) => panic!("{is_newest_lost}: {before:?}"),
        }
        let done = restored(2, OLDER_NEVER_CACHED).expect("asked to");
        assert_eq!((done.zeroed_bytes, read(&copy, at)), (open(&copy).1.free_bytes(), 0), "{is_newest_lost}");
        let newest = restored(3, PLAIN);
        match (is_newest_lost, newest) {
            (true, Ok(done)) => assert_eq!((done.age, done.zeroed_bytes, read(&copy, at)), (Age::Current, 0, 9)),
            (false, Err(RestoreError::OldAndCacheUnknown(Age::Unknown))) => {}
            (_, newest) => panic!("{is_newest_lost}: {newest:?}"),
        }
    }
}

/// The backup is from before the pool got its cache, and nothing else is left: only the operator knows. With a cache, nothing that its
/// device may have counts as current but dirty data, and every volume may need it.
#[test]
fn whether_there_was_a_cache_is_asked_when_nothing_tells() {
    let lose_all = (0, 2 * MIB);
    let lose_pages = (MIB + 8192, 64 << 10);
    for (offset, len) in [lose_all, lose_pages] {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("p.img");
        let (mut store, device, text) = pool(&path);
        for _ in 0..3 {
            store.outdate_cache().expect("noted");
        }
        drop((store, device));
        write_zeroes(&path, offset, len);
        let before = std::fs::read(&path).expect("read");
        let backup = Backup::parse(&text).expect("a backup");
        assert!(matches!(backup.restore(&path, OLDER), Err(RestoreError::CacheUnknown)));
        assert!(std::fs::read(&path).expect("read") == before, "the device was changed");
        let had_cache = RestoreOptions { had_cache: Some(true), ..OLDER };
        backup.restore(&path, had_cache).expect("asked to");
        let check = || {
            let (_device, store) = open(&path);
            assert!(store.cache_generation() > 1000, "{}", store.cache_generation());
            assert!(store.volumes().all(|v| store.may_be_behind(v)));
        };
        check();
        // From now on the metadata tell.
        assert!(matches!(backup.restore(&path, OLDER_NEVER_CACHED), Err(RestoreError::HadCache)));
        backup.restore(&path, OLDER).expect("asked to");
        check();
    }
}

/// The answer that there never was a cache can be corrected, as long as the metadata are there.
#[test]
fn a_cache_that_was_forgotten_can_be_named_afterwards() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("p.img");
    let (store, device, text) = pool(&path);
    drop((store, device));
    write_zeroes(&path, 0, 2 * MIB);
    let backup = Backup::parse(&text).expect("a backup");
    backup.restore(&path, OLDER_NEVER_CACHED).expect("asked to");
    {
        let (_device, store) = open(&path);
        assert!(store.cache_generation() == 0 && !store.volumes().any(|v| store.may_be_behind(v)));
    }
    backup.restore(&path, RestoreOptions { had_cache: Some(true), ..PLAIN }).expect("it is the same otherwise");
    let (_device, store) = open(&path);
    assert!(store.cache_generation() > 1000 && store.volumes().all(|v| store.may_be_behind(v)));
}

/// A volume gives up its dirty data, and isn't in the metadata for a time: one backup lacks it, or it was deleted. The backup that brings
/// it back doesn't bring back what was given up, whatever lies between.
#[test]
fn what_was_given_up_of_a_volume_is_known_when_a_restore_brings_it_back() {
    for is_deleted in [false, true] {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("p.img");
        let (mut store, device, _) = pool(&path);
        store.outdate_cache().expect("noted");
        let without = Backup::of(device.superblock(), &store);
        add(&mut store, "v", 1);
        let with = Backup::of(device.superblock(), &store);
        let given_up = store.give_up("v").expect("there").given_up;
        assert!(given_up.is_some());
        if is_deleted {
            delete(&mut store, "v");
        }
        drop((store, device));
        if !is_deleted {
            for _ in 0..2 {
                without.restore(&path, OLDER).expect("asked to");
                assert!(open(&path).1.volume("v").is_none());
            }
        }
        // Also in a backup of what is there now.
        let between = {
            let (device, store) = open(&path);
            Backup::parse(&Backup::of(device.superblock(), &store).text()).expect("a backup")
        };
        with.restore(&path, OLDER).expect("asked to");
        assert_eq!(open(&path).1.volume("v").expect("back").given_up, given_up, "deleted {is_deleted}");
        write_zeroes(&path, MIB + 8192, 64 << 10);
        between.restore(&path, OLDER).expect("asked to");
        with.restore(&path, OLDER).expect("asked to");
        assert_eq!(open(&path).1.volume("v").expect("back").given_up, given_up, "deleted {is_deleted}");
    }
}

/// A volume is deleted while its pool is served without the cache that may have its latest data, while that cache fails, after its start
/// failed, or before that. The cache can't record the deletion. So a restore that brings the volume back doesn't bring those data back, should the device come back, too.
#[test]
fn what_an_absent_cache_has_of_a_deleted_volume_is_given_up() {
    #[derive(Clone, Copy, Debug)]
    enum Cache {
        Absent,
        Fails,
        StartFailed,
        StartFails,
    }
    for how in [Cache::Absent, Cache::Fails, Cache::StartFailed, Cache::StartFails] {
        for is_behind in [false, true] {
            let dir = tempfile::tempdir().expect("a directory");
            let path = dir.path().join("p.img");
            let (mut store, device, _) = pool(&path);
            store.outdate_cache().expect("noted");
            add(&mut store, "v", 1);
            let id = store.volume("v").expect("there").key.id;
            store.set_behind(&[id], is_behind).expect("noted");
            let with = Backup::of(device.superblock(), &store);
            let written_under = store.cache_generation();
            match how {
                Cache::Fails => {
                    store.begin_delete("v").expect("there");
                    store.miss_cache().expect("noted");
                }
                Cache::Absent => {
                    store.miss_cache().expect("noted");
                    store.begin_delete("v").expect("there");
                }
                Cache::StartFailed => drop(store.begin_delete_given_up("v").expect("there")),
                Cache::StartFails => drop(store.begin_delete("v").expect("there")),
            }
            match how {
                Cache::StartFails => store.finish_delete_given_up(id).expect("deleted"),
                _ => store.finish_delete(id).expect("deleted"),
            }
            drop((store, device));
            with.restore(&path, OLDER).expect("asked to");
            let (_device, store) = open(&path);
            let given_up = store.volume("v").expect("back").given_up;
            assert_eq!(given_up.is_some_and(|since| since > written_under), is_behind, "{how:?}, {given_up:?}");
            assert!(given_up.is_none_or(|since| since <= store.cache_generation()));
        }
    }
}
