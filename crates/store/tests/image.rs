//! Images of devices as each version of this program wrote them.

use flate2::{Compression, read::GzDecoder, write::GzEncoder};
use plimsoll_base::Class;
use plimsoll_store::{
    CreateOptions, DeviceErrorKind, DeviceFile, Expect, NewVolume, Superblock, TenantLimits, TenantRecord, Uuid,
};
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;

const POOL: Uuid = Uuid::from_u128(0x0a11_0ca7_ed00_4000_8000_0000_0000_0001);

const SIZE_BYTES: u64 = 64 << 20;
const VERSION_1: &[u8] = include_bytes!("images/v1.img.gz");
/// Written at commit 7b1e008.
const VERSION_2: &[u8] = include_bytes!("images/v2.img.gz");

/// Unpacks an image to a file of its full size.
fn unpack(gz: &[u8], path: &Path) -> Vec<u8> {
    let mut image = Vec::new();
    GzDecoder::new(gz).read_to_end(&mut image).expect("a whole image");
    std::fs::write(path, &image).expect("written");
    std::fs::OpenOptions::new().write(true).open(path).expect("there").set_len(SIZE_BYTES).expect("a hole");
    image
}

fn open(path: &Path) -> DeviceFile {
    DeviceFile::open(path, &Expect { pool_uuid: Some(POOL), device_uuid: None, role: "main".into() }).expect("opens")
}

fn first_bytes(path: &Path) -> [u8; 8192] {
    let mut b = [0; 8192];
    File::open(path).expect("there").read_exact(&mut b).expect("long enough");
    b
}

fn check_contents(device: &DeviceFile) {
    let meta = device.open_meta(u64::MAX).expect("opens");
    let volumes: Vec<_> = meta.volumes().collect();
    assert_eq!((volumes.len(), volumes[0].name.as_str(), volumes[0].size_bytes), (1, "old", (5 << 20) + 512));
    assert_eq!(volumes[0].extents.iter().map(|e| e.len).sum::<u64>(), 6 << 20);
    assert_eq!(volumes[0].description.as_deref(), Some("as the first version wrote it"));
    assert_eq!(meta.tenants().map(|t| t.name.as_str()).collect::<Vec<_>>(), ["reports"]);
}

#[test]
fn version_1_is_upgraded_on_open() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("image");
    let before = unpack(VERSION_1, &path);
    assert_eq!((before[8], &before[4096..4104]), (1, &[0; 8][..]), "version 1 has one copy");
    let device = open(&path);
    assert_eq!((device.superblock().role.as_str(), device.superblock().sequence), ("main", 1));
    check_contents(&device);
    drop(device);
    let after = first_bytes(&path);
    assert_eq!((after[8], &after[..4096]), (3, &after[4096..]), "version 3 has two");
    check_contents(&open(&path));
    let wrong = DeviceFile::open(&path, &Expect { pool_uuid: None, device_uuid: None, role: "fast".into() })
        .expect_err("it is main");
    assert!(matches!(wrong.kind, DeviceErrorKind::WrongRole { .. }));
}

/// Version 3 differs in what the metadata region's slots say: the first open that reads the metadata replaces them.
#[test]
fn version_2_is_upgraded_on_open() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("image");
    let before = unpack(VERSION_2, &path);
    assert_eq!((before[8], &before[..4096]), (2, &before[4096..8192]), "version 2 has two copies");
    assert_eq!(&before[1 << 20..][..8], b"PLIMMETA");
    let device = open(&path);
    assert_eq!((device.superblock().role.as_str(), device.superblock().sequence), ("main", 2));
    check_contents(&device);
    drop(device);
    let after = std::fs::read(&path).expect("there");
    assert_eq!((after[8], &after[..4096]), (3, &after[4096..8192]));
    for slot in [1 << 20, (1 << 20) + 4096] {
        assert_eq!(&after[slot..][..8], b"PLIMMET2");
    }
    let device = open(&path);
    assert_eq!(device.superblock().sequence, 2, "it is upgraded once");
    check_contents(&device);
}

/// Slots of version 2 witness nothing, so they are refused beside metadata that was changed since the upgrade.
#[test]
fn old_slots_beside_newer_metadata_are_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("image");
    let before = unpack(VERSION_2, &path);
    open(&path).open_meta(u64::MAX).expect("opens").begin_delete("old").expect("there");
    let file = std::fs::OpenOptions::new().write(true).open(&path).expect("there");
    file.write_all_at(&before[1 << 20..][..8192], 1 << 20).expect("written");
    let e = open(&path).open_meta(u64::MAX).expect_err("refused");
    assert!(e.to_string().contains("both length slots are older than change 1"), "{e}");
}

/// The upgrade writes the second copy, syncs, writes the first, syncs. Power is lost in either write: whichever of the
/// copy's sectors reached the device, it opens as version 1 or 2 and is upgraded then.
#[test]
fn an_upgrade_cut_short_anywhere_is_done_again() {
    for version in [VERSION_1, VERSION_2] {
        cut_an_upgrade_everywhere(version);
    }
}

fn cut_an_upgrade_everywhere(version: &[u8]) {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("image");
    let before = unpack(version, &path);
    drop(open(&path));
    let after = first_bytes(&path);
    let file = std::fs::OpenOptions::new().write(true).open(&path).expect("there");
    let copies = [before[..4096].try_into().expect("4 KiB"), before[4096..8192].try_into().expect("4 KiB")];
    let upgraded = Superblock::decode(after[..4096].try_into().expect("4 KiB")).expect("version 3");
    let order = upgraded.stale(&copies); // what the upgrade goes by
    assert_eq!(order.len(), 2);
    for (n, copy) in order.iter().copied().enumerate() {
        for written in 0..=255u8 {
            let mut cut = before[..8192].to_vec();
            for whole in &order[..n] {
                cut[whole * 4096..][..4096].copy_from_slice(&after[whole * 4096..][..4096]);
            }
            for sector in (0..8).filter(|sector| written & (1 << sector) != 0) {
                let at = copy * 4096 + sector * 512;
                cut[at..at + 512].copy_from_slice(&after[at..at + 512]);
            }
            file.write_all_at(&cut, 0).expect("written");
            drop(open(&path));
            assert_eq!(first_bytes(&path), after, "copy {copy}, sectors {written:08b}");
        }
    }
    check_contents(&open(&path));
}

/// Run by hand before a new version replaces the current one: `cargo test -p plimsoll-store --test image -- --ignored`.
#[test]
#[ignore = "writes tests/images; run by hand before changing the format"]
fn write_the_current_versions_image() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("image");
    let device = DeviceFile::create(
        &path,
        &CreateOptions {
            size_bytes: SIZE_BYTES,
            pool_uuid: POOL,
            role: "main".into(),
            logs_bytes: 0,
            align_bytes: 0,
            main_uuid: None,
        },
    )
    .expect("created");
    let mut meta = device.open_meta(u64::MAX).expect("formatted");
    let class = Class::BestEffort { weight: 100 };
    meta.set_tenant(TenantRecord {
        name: "reports".into(),
        class,
        limits: TenantLimits::default(),
        change: 0,
        deadline: None,
    })
    .expect("set");
    let description = Some("as the first version wrote it".into());
    let size_bytes = (5 << 20) + 512;
    let (name, tenant) = ("old".into(), "reports".into());
    meta.create_volume(NewVolume { name, size_bytes, tenant, read_only: false, description, cache: None })
        .expect("room");
    drop(meta);
    let version = plimsoll_store::superblock::VERSION;
    let gz = format!("{}/tests/images/v{version}.img.gz", env!("CARGO_MANIFEST_DIR"));
    let mut encoder = GzEncoder::new(File::create(gz).expect("writable"), Compression::best());
    let image = std::fs::read(&path).expect("there");
    let end = image.iter().rposition(|b| *b != 0).expect("not blank") + 1; // the rest is a hole again when unpacked
    encoder.write_all(&image[..end]).expect("written");
    encoder.finish().expect("written");
}
