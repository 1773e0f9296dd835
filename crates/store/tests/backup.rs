//! Metadata that are lost and restored from a backup: the map is right, and nothing is restored over what it must not.

use plimsoll_base::Class;
use plimsoll_store::{
    Age, Backup, CreateOptions, DeviceErrorKind, DeviceFile, Expect, MetaStore, NewVolume, RestoreError, TenantLimits,
    TenantRecord, Uuid,
};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

const MIB: u64 = 1 << 20;

fn create(path: &Path) -> DeviceFile {
    let options =
        CreateOptions { size_bytes: 64 * MIB, pool_uuid: Uuid::from_u128(7), role: "main".into(), logs_bytes: 0 };
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
    let backup = Backup::parse(&text).expect("a backup");
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
    let generation = |name: &str| store.volume(name).map(|v| v.key.generation);
    assert_eq!((generation("a"), generation("later")), (Some(0), None));
    assert_eq!((done.zeroed_bytes, read(&path, at)), (store.free_bytes(), 0), "what is free reads as zeroes");
    // The next volume isn't taken for one that was made since and is in no map.
    let mut store = store;
    add(&mut store, "next", 1);
    assert!(store.volume("next").expect("made").key.generation > 1000);
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
