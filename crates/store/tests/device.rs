//! Devices in files: creating, opening, locking, refusing.

use plimsoll_base::Class;
use plimsoll_store::{
    CreateOptions, DeviceErrorKind, DeviceFile, Expect, NewVolume, SuperblockError, TenantLimits, TenantRecord, Uuid,
};
use std::os::unix::fs::FileExt;
use std::path::Path;

const POOL: Uuid = Uuid::from_u128(0x0a11_0ca7_ed00_4000_8000_0000_0000_0001);
const SIZE_BYTES: u64 = 64 << 20;

fn create(path: &Path) -> Result<DeviceFile, DeviceErrorKind> {
    DeviceFile::create(
        path,
        &CreateOptions {
            size_bytes: SIZE_BYTES,
            pool_uuid: POOL,
            role: "main".into(),
            logs_bytes: 0,
            align_bytes: 0,
            main_uuid: None,
        },
    )
    .map_err(|e| e.kind)
}

fn open(path: &Path) -> Result<DeviceFile, DeviceErrorKind> {
    DeviceFile::open(path, &Expect { pool_uuid: Some(POOL), device_uuid: None, role: "main".into() })
        .map_err(|e| e.kind)
}

fn tenant() -> TenantRecord {
    TenantRecord {
        name: "t".into(),
        class: Class::BestEffort { weight: 100 },
        limits: TenantLimits::default(),
        change: 0,
        deadline: None,
    }
}

fn volume(name: &str) -> NewVolume {
    NewVolume {
        name: name.into(),
        size_bytes: 5 << 20,
        tenant: "t".into(),
        read_only: false,
        description: None,
        cache: None,
    }
}

#[test]
fn a_device_keeps_its_volumes() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("main.plim");
    let device = create(&path).expect("created");
    let mut meta = device.open_meta(u64::MAX).expect("formatted");
    meta.set_tenant(tenant()).expect("set");
    let web = meta.create_volume(volume("web")).expect("room");
    drop((meta, device));
    let device = open(&path).expect("opens");
    let meta = device.open_meta(u64::MAX).expect("opens");
    assert_eq!(meta.volumes().collect::<Vec<_>>(), [&web]);
    assert_eq!(meta.free_bytes(), device.home().len - (5 << 20));
    let on_disk = std::os::unix::fs::MetadataExt::blocks(&std::fs::metadata(&path).expect("there")) * 512;
    assert!(on_disk < 8 << 20, "{on_disk} bytes of a sparse file are allocated");
}

#[test]
fn a_second_user_is_refused_and_told_of_the_first() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("d");
    let first = create(&path).expect("created");
    let me = std::process::id();
    assert!(DeviceFile::is_in_use(&path).expect("it can be locked"));
    let told = |e| matches!(e, DeviceErrorKind::Locked { pid } if pid.is_none_or(|p| p == me));
    assert!(told(open(&path).expect_err("locked")));
    assert!(told(create(&path).expect_err("locked")));
    let meta = first.open_meta(u64::MAX).expect("opens");
    drop(first);
    assert!(told(open(&path).expect_err("the store still has it")));
    drop(meta);
    open(&path).expect("free again");
}

/// Requests of a killed process keep the open file that they were sent to, and nothing else.
#[test]
fn a_device_stays_locked_until_requests_to_it_have_ended() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("d");
    let first = create(&path).expect("created");
    let of_a_request = first.data_fd().try_clone_to_owned().expect("a file");
    drop(first);
    assert!(DeviceFile::is_in_use(&path).expect("it can be locked"));
    assert!(matches!(open(&path).expect_err("a request is under way"), DeviceErrorKind::Locked { .. }));
    // A start waits for a request that ends soon.
    let ends = std::thread::spawn(move || drop(of_a_request));
    open(&path).expect("free again");
    ends.join().expect("ends");
}

#[test]
fn what_is_not_ours_is_left_alone() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("d");
    for content in [vec![b'x'; 5], vec![0; 3 << 20], [vec![0; 1 << 19], vec![1], vec![0; 1 << 20]].concat()] {
        std::fs::write(&path, &content).expect("written");
        let e = create(&path).expect_err("foreign");
        assert!(matches!(e, DeviceErrorKind::Foreign), "{e:?}");
        assert!(open(&path).is_err());
        assert_eq!(std::fs::read(&path).expect("there"), content);
    }
    assert!(matches!(open(&dir.path().join("absent")), Err(DeviceErrorKind::Io { .. })));
    assert!(matches!(open(dir.path()), Err(DeviceErrorKind::NotAFile)));
}

#[test]
fn cut_swapped_and_damaged_devices_are_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("d");
    let uuid = create(&path).expect("created").superblock().device_uuid;
    assert!(matches!(create(&path), Err(DeviceErrorKind::Exists)));
    let other = Uuid::from_u128(9);
    let e = DeviceFile::open(&path, &Expect { pool_uuid: Some(other), device_uuid: None, role: "main".into() })
        .expect_err("another pool's");
    assert!(matches!(e.kind, DeviceErrorKind::WrongPool { found: POOL, expected } if expected == other));
    assert!(e.to_string().contains(&POOL.to_string()));
    let asked = |device_uuid| Expect { pool_uuid: Some(POOL), device_uuid: Some(device_uuid), role: "main".into() };
    let itself = DeviceFile::open(&path, &asked(uuid)).expect("it is the one").superblock().device_uuid;
    assert_eq!(itself, uuid);
    let e = DeviceFile::open(&path, &asked(other)).expect_err("of the same pool's name, but not the one");
    assert!(matches!(e.kind, DeviceErrorKind::OtherDevice { .. }), "{e}");
    let e = DeviceFile::open(&path, &Expect { pool_uuid: None, device_uuid: None, role: "fast".into() })
        .expect_err("swapped");
    assert!(matches!(e.kind, DeviceErrorKind::WrongRole { .. }), "{e}");
    let file = std::fs::OpenOptions::new().write(true).open(&path).expect("there");
    file.set_len(SIZE_BYTES - (1 << 20)).expect("cut");
    let e = open(&path).expect_err("cut");
    assert!(matches!(e, DeviceErrorKind::TooSmall { needed_bytes: SIZE_BYTES, .. }), "{e:?}");
    file.set_len(SIZE_BYTES).expect("whole");
    for damaged in [0, 700, 4096, 5000] {
        file.write_all_at(&[0xee], damaged).expect("damaged");
        drop(open(&path).expect("the other copy holds, and renews this one"));
    }
    file.write_all_at(&[0xee], 700).expect("damaged");
    file.write_all_at(&[0xee], 4096 + 700).expect("damaged");
    assert!(matches!(open(&path), Err(DeviceErrorKind::Superblock(SuperblockError::BothCopies { .. }))));
}

#[test]
fn an_interrupted_creation_is_done_again() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("d");
    drop(create(&path).expect("created"));
    let file = std::fs::OpenOptions::new().write(true).open(&path).expect("there");
    file.write_all_at(b"PLIMMKFS", 0).expect("as if it hadn't come to the superblock");
    assert!(matches!(open(&path), Err(DeviceErrorKind::CreationInterrupted)));
    let device = create(&path).expect("created again");
    assert_eq!(device.open_meta(u64::MAX).expect("formatted").volumes().count(), 0);
}

/// Every sector of both superblocks, in every way that a sector rots: the device opens as it was, or the error names its
/// superblocks. Never another layout, never another device, never a blank one.
#[test]
fn a_superblock_that_rots_is_noticed_or_harmless() {
    let dir = tempfile::tempdir().expect("a directory");
    let (path, other) = (dir.path().join("main.plim"), dir.path().join("other.plim"));
    let mut device = create(&path).expect("created");
    let older = first_bytes(&path);
    device.set_formatted().expect("written");
    let expected = device.superblock().clone();
    drop((device, create(&other).expect("created")));
    let (good, another) = (first_bytes(&path), first_bytes(&other));
    assert_ne!(older, good, "the update wrote both copies");
    let file = std::fs::OpenOptions::new().write(true).open(&path).expect("there");
    let (mut opened, mut refused) = (0, 0);
    let mut judge = |rotted: &[u8], what: &str| {
        file.write_all_at(rotted, 0).expect("written");
        match open(&path) {
            Ok(device) => {
                assert_eq!(*device.superblock(), expected, "{what}");
                drop(device);
                assert_eq!(first_bytes(&path), good, "{what}: both copies are renewed");
                opened += 1;
            }
            Err(DeviceErrorKind::Superblock(_) | DeviceErrorKind::Foreign | DeviceErrorKind::SuperblockLost) => {
                refused += 1
            }
            Err(e) => panic!("{what}: {e:?}"),
        }
        file.write_all_at(&good, 0).expect("written");
    };
    for sector in 0..16 {
        let range = sector * 512..(sector + 1) * 512;
        let mut with = |bytes: &[u8], what: &str| {
            let mut rotted = good.clone();
            rotted[range.clone()].copy_from_slice(bytes);
            judge(&rotted, &format!("sector {sector}: {what}"));
        };
        for bit in (0..4096).step_by(97) {
            let mut bytes = good[range.clone()].to_vec();
            bytes[bit / 8] ^= 1 << (bit % 8);
            with(&bytes, "a bit");
        }
        with(&[0; 512], "zeroes");
        with(&older[range.clone()], "as it was before");
        with(&another[range.clone()], "another device's");
        let shifted = (sector + 3) % 16 * 512;
        with(&good[shifted..shifted + 512], "another sector");
    }
    // Whole copies, which check out by themselves.
    for copy in [0, 4096] {
        for (bytes, what) in [(&older, "as it was before"), (&another, "another device's")] {
            let mut rotted = good.clone();
            rotted[copy..copy + 4096].copy_from_slice(&bytes[copy..copy + 4096]);
            judge(&rotted, &format!("copy at {copy}: {what}"));
        }
    }
    judge(&[0; 8192], "both zero");
    file.write_all_at(&another, 0).expect("written");
    let e = open(&path).expect("they check out").open_meta(u64::MAX).expect_err("its metadata isn't here");
    assert!(e.to_string().contains("is of the device"), "{e}");
    println!("{opened} opened as it was, {refused} refused");
    assert!(opened > 500 && refused >= 3, "{opened} and {refused}");
}

/// The older superblocks check out, both of them: only the metadata region knows that a newer one was durable.
#[test]
fn older_superblocks_beside_newer_metadata_are_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("main.plim");
    let mut device = create(&path).expect("created");
    let older = first_bytes(&path);
    device.set_formatted().expect("written");
    drop(device);
    drop(open(&path).expect("opens").open_meta(u64::MAX).expect("opens")); // notes it
    std::fs::OpenOptions::new().write(true).open(&path).expect("there").write_all_at(&older, 0).expect("written");
    let e = open(&path).expect("they check out").open_meta(u64::MAX).expect_err("older");
    assert!(e.to_string().contains("an older one came back"), "{e}");
}

fn first_bytes(path: &Path) -> Vec<u8> {
    let mut b = vec![0; 8192];
    std::fs::File::open(path).expect("there").read_exact_at(&mut b, 0).expect("long enough");
    b
}
