//! Images of devices as each version of this program wrote them.

use flate2::{Compression, write::GzEncoder};
use plimsoll_base::Class;
use plimsoll_store::{CreateOptions, DeviceFile, NewVolume, TenantLimits, TenantRecord, Uuid};
use std::io::Write;

const POOL: Uuid = Uuid::from_u128(0x0a11_0ca7_ed00_4000_8000_0000_0000_0001);

/// Run by hand before a new version replaces the current one: `cargo test -p plimsoll-store --test image -- --ignored`.
#[test]
#[ignore = "writes tests/images; run by hand before changing the format"]
fn write_the_current_versions_image() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("image");
    let device = DeviceFile::create(&path, &CreateOptions { size_bytes: 64 << 20, pool_uuid: POOL }).expect("created");
    let mut meta = device.open_meta().expect("formatted");
    let class = Class::BestEffort { weight: 100 };
    meta.set_tenant(TenantRecord { name: "reports".into(), class, limits: TenantLimits::default() }).expect("set");
    let description = Some("as the first version wrote it".into());
    let size_bytes = (5 << 20) + 512;
    let (name, tenant) = ("old".into(), "reports".into());
    meta.create_volume(NewVolume { name, size_bytes, tenant, read_only: false, description }).expect("room");
    drop(meta);
    let version = plimsoll_store::superblock::VERSION;
    let gz = format!("{}/tests/images/v{version}.img.gz", env!("CARGO_MANIFEST_DIR"));
    let mut encoder = GzEncoder::new(std::fs::File::create(gz).expect("writable"), Compression::best());
    let image = std::fs::read(&path).expect("there");
    let end = image.iter().rposition(|b| *b != 0).expect("not blank") + 1; // the rest is a hole again when unpacked
    encoder.write_all(&image[..end]).expect("written");
    encoder.finish().expect("written");
}
