//! A device that has become larger: its pool takes on the new space, whatever happens meanwhile.

#[allow(dead_code)]
mod disk;

use disk::Disk;
use plimsoll_base::{Class, Rng};
use plimsoll_store::{
    Backup, CreateOptions, DeviceErrorKind, DeviceFile, Expect, GrowError, Medium, MetaStore, NewVolume, Remote,
    RemoteDevice, RestoreOptions, TenantLimits, TenantRecord, Uuid,
};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;

const MIB: u64 = 1 << 20;
const OLD_BYTES: u64 = 11 * MIB;
const NEW_BYTES: u64 = 16 * MIB;
const POOL: Uuid = Uuid::from_u128(7);

fn expect() -> Expect {
    Expect { pool_uuid: Some(POOL), device_uuid: None, role: "main".into() }
}

fn options(size_bytes: u64) -> CreateOptions {
    CreateOptions { size_bytes, pool_uuid: POOL, role: "main".into(), logs_bytes: 0, align_bytes: 0, main_uuid: None }
}

fn name() -> &'static Path {
    Path::new("disk")
}

fn open(disk: &Disk) -> (RemoteDevice, MetaStore) {
    let device = RemoteDevice::open(name(), Arc::new(disk.clone()), &expect()).expect("opens");
    let store = device.open_meta().expect("opens");
    (device, store)
}

fn add(store: &mut MetaStore, name: &str, mib: u64) {
    let (name, tenant) = (name.to_string(), "t".to_string());
    let new = NewVolume { name, size_bytes: mib * MIB, tenant, read_only: false, description: None, cache: None };
    store.create_volume(new).expect("room");
}

fn tenant() -> TenantRecord {
    let (class, limits) = (Class::BestEffort { weight: 7 }, TenantLimits::default());
    TenantRecord { name: "t".into(), class, limits, change: 1, deadline: None }
}

/// A disk that was made with fewer bytes than it has, full of a volume's data; what is beyond is somebody's old data.
fn full() -> Disk {
    let disk = Disk::of(NEW_BYTES);
    let device = RemoteDevice::create(name(), Arc::new(disk.clone()), &options(OLD_BYTES)).expect("created");
    let mut store = device.open_meta().expect("formatted");
    store.set_tenant(tenant()).expect("set");
    let all = store.free_bytes() / MIB;
    add(&mut store, "v", all);
    drop(store);
    let at = device.home().offset;
    (at..NEW_BYTES).step_by(MIB as usize).for_each(|at| disk.write_at(&[7; 4096], at).expect("written"));
    disk.sync().expect("synced");
    disk
}

fn byte(disk: &Disk, at: u64) -> u8 {
    let mut b = [0; 4096];
    disk.read_at(&mut b, at).expect("read");
    assert!(b.iter().all(|byte| *byte == b[0]), "torn data at {at}");
    b[0]
}

/// Opens the disk, whatever size it has now: no volume's data are touched, and free space reads as zeroes.
fn check(disk: &Disk) -> u64 {
    let (device, mut store) = open(disk);
    let end = device.superblock().end();
    assert!(end == OLD_BYTES || end == NEW_BYTES, "{end}");
    assert_eq!(store.free_bytes(), end - OLD_BYTES);
    assert_eq!(store.home_bytes(), end - device.home().offset);
    let home = (device.home().offset..OLD_BYTES).step_by(MIB as usize);
    home.for_each(|at| assert_eq!(byte(disk, at), 7, "a volume's data at {at}"));
    let new = (OLD_BYTES..end).step_by(MIB as usize);
    new.for_each(|at| assert_eq!(byte(disk, at), 0, "new space at {at}"));
    if end == NEW_BYTES {
        add(&mut store, "w", (NEW_BYTES - OLD_BYTES) / MIB);
        let at = store.volume("w").expect("there").extents[0].device_offset;
        assert_eq!((at, store.free_bytes()), (OLD_BYTES, 0));
    }
    end
}

enum Stopped {
    Growing(GrowError),
    Opening,
}

#[test]
fn a_growth_that_loses_power_anywhere_leaves_the_old_size_or_the_new() {
    let whole = full();
    let calls = {
        let disk = whole.copy();
        let (mut device, store) = open(&disk);
        drop(store);
        let before = disk.calls();
        device.grow(NEW_BYTES + 7).expect("grows");
        drop(device.open_meta().expect("opens"));
        assert_eq!(check(&disk), NEW_BYTES);
        disk.calls() - before
    };
    let mut ends = Vec::new();
    for at in 0..calls {
        for seed in 0..3 {
            let disk = whole.copy();
            let (mut device, store) = open(&disk);
            drop(store);
            disk.fail_after(at);
            let grown = device
                .grow(NEW_BYTES)
                .map_err(Stopped::Growing)
                .and_then(|()| device.open_meta().map(drop).map_err(|_| Stopped::Opening));
            drop(device);
            disk.lose_power(&mut Rng::new(seed, "grow"));
            let end = check(&disk);
            let is_kept = grown.as_ref().is_err_and(|e| matches!(e, Stopped::Growing(GrowError::Kept(_))));
            assert!(end == OLD_BYTES || !is_kept, "it has grown, and was said not to have: call {at}, seed {seed}");
            assert!(grown.is_err() || end == NEW_BYTES, "what was done stays done: call {at}, seed {seed}");
            ends.push(end);
            // It can always go on.
            let (mut device, store) = open(&disk);
            drop(store);
            if end == OLD_BYTES {
                device.grow(NEW_BYTES).expect("grows");
            }
            drop(device);
            assert_eq!(check_again(&disk), NEW_BYTES);
        }
    }
    assert!(ends.contains(&OLD_BYTES) && ends.contains(&NEW_BYTES), "{ends:?}");
}

/// The second look: a volume may be in the new space already.
fn check_again(disk: &Disk) -> u64 {
    let (device, store) = open(disk);
    assert!(store.volume("v").is_some());
    device.superblock().end()
}

/// Once the metadata have been opened in the new size, superblocks of the old one are refused: they would hide volumes.
#[test]
fn superblocks_of_before_a_growth_are_refused() {
    let disk = full();
    let sectors = || (0..2 * 4096 / disk::SECTOR_BYTES).map(|n| disk.sector(n)).collect::<Vec<_>>();
    let before = sectors();
    let (mut device, store) = open(&disk);
    drop(store);
    device.grow(NEW_BYTES).expect("grows");
    let mut store = device.open_meta().expect("opens");
    add(&mut store, "w", 2);
    drop((store, device));
    before.iter().enumerate().for_each(|(n, sector)| disk.put_sector(n, sector));
    let device = RemoteDevice::open(name(), Arc::new(disk.clone()), &expect()).expect("its superblock is whole");
    let e = device.open_meta().expect_err("an older superblock").to_string();
    assert!(e.contains("an older one came back"), "{e}");
}

/// A backup from before a growth knows a smaller device. The pool stays as large as it is.
#[test]
fn a_restore_of_before_a_growth_keeps_the_size() {
    for superblocks_lost in [false, true] {
        let disk = full();
        let (mut device, store) = open(&disk);
        let backup = Backup::of(device.superblock(), &store);
        drop(store);
        device.grow(NEW_BYTES).expect("grows");
        let mut store = device.open_meta().expect("opens");
        add(&mut store, "w", 5);
        let at = store.volume("w").expect("there").extents[0].device_offset;
        disk.write_at(&[9; 4096], at).expect("written");
        disk.sync().expect("synced");
        drop((store, device));
        if superblocks_lost {
            (0..2 * 4096 / disk::SECTOR_BYTES).for_each(|n| disk.put_sector(n, &[0; disk::SECTOR_BYTES]));
        }
        let options = RestoreOptions { older: true, blank: true, had_cache: Some(false), home_bytes: None };
        backup.restore_remote(name(), Arc::new(disk.clone()), options).expect("restored");
        assert_eq!(check(&disk), NEW_BYTES, "lost superblocks: {superblocks_lost}");
    }
}

#[test]
fn a_file_grows_sparse_and_one_that_was_cut_is_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("p.img");
    let mut device = DeviceFile::create(&path, &options(64 * MIB)).expect("created");
    // Remains of something else.
    std::fs::OpenOptions::new()
        .write(true)
        .open(&path)
        .expect("there")
        .write_all_at(&[7; 4096], 80 * MIB)
        .expect("written");
    device.grow(1 << 30).expect("grows");
    drop(device);
    assert_eq!(std::fs::metadata(&path).expect("there").len(), 1 << 30);
    assert!(std::fs::metadata(&path).expect("there").blocks() * 512 < 8 * MIB, "it is sparse");
    let device = DeviceFile::open(&path, &expect()).expect("opens");
    let mut store = device.open_meta(u64::MAX).expect("opens");
    store.set_tenant(tenant()).expect("set");
    add(&mut store, "v", 900);
    let mut b = [1; 4096];
    std::fs::File::open(&path).expect("there").read_exact_at(&mut b, 80 * MIB).expect("read");
    assert_eq!(b, [0; 4096]);
    drop((store, device));
    std::fs::OpenOptions::new().write(true).open(&path).expect("there").set_len(64 * MIB).expect("cut");
    let e = DeviceFile::open(&path, &expect()).expect_err("cut").kind;
    assert!(matches!(e, DeviceErrorKind::TooSmall { needed_bytes, .. } if needed_bytes == 1 << 30), "{e:?}");
}

/// Only the range that the device takes on is emptied.
#[test]
fn data_behind_a_growth_are_left_alone() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("p.img");
    let mut device = DeviceFile::create(&path, &options(64 * MIB)).expect("created");
    let file = std::fs::OpenOptions::new().read(true).write(true).open(&path).expect("there");
    for at in [70 * MIB, 80 * MIB - 4096, 80 * MIB, 90 * MIB] {
        file.write_all_at(&[7; 4096], at).expect("written");
    }
    device.grow(80 * MIB).expect("grows");
    let read = |at| {
        let mut b = [1; 4096];
        file.read_exact_at(&mut b, at).expect("read");
        b
    };
    assert!(read(70 * MIB) == [0; 4096] && read(80 * MIB - 4096) == [0; 4096]);
    assert!(read(80 * MIB) == [7; 4096] && read(90 * MIB) == [7; 4096]);
    assert_eq!(device.size_bytes().expect("there"), 90 * MIB + 4096);
}

/// Data anywhere in the growth's own range is found, at its beginning, end, and the beginning of each 64th. Data outside of it isn't.
#[test]
fn data_are_looked_for_in_the_range_of_a_growth() {
    let (from, to) = (16 * MIB, 16 * MIB + 640 * MIB + 512);
    let used = |at: Option<u64>| {
        let disk = Disk::of(700 * MIB);
        at.iter().for_each(|at| disk.write_at(&[9; 512], *at).expect("written"));
        let medium: Arc<dyn Remote> = Arc::new(disk);
        RemoteDevice::is_used_beyond(&medium, from, to).expect("read")
    };
    assert_eq!(used(None), None);
    for outside in [0, from - 512, to, 699 * MIB] {
        assert_eq!(used(Some(outside)), None, "{outside}");
    }
    for inside in [from, from + MIB - 512, to - 512, from + 10 * MIB, from + 320 * MIB, from + 630 * MIB] {
        assert_eq!(used(Some(inside)), Some(inside));
    }
    let small: Arc<dyn Remote> = Arc::new(Disk::of(20 * MIB));
    assert_eq!(RemoteDevice::is_used_beyond(&small, 16 * MIB, 16 * MIB).expect("nothing is read"), None);
    assert_eq!(RemoteDevice::is_used_beyond(&small, 18 * MIB, 20 * MIB).expect("read"), None);
}
