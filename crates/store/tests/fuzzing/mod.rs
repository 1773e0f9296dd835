//! Properties of the store under any corruption of its bytes. Also called by `fuzz/`.

// Each user has its own part of it.
#[allow(dead_code)]
#[path = "../disk/mod.rs"]
pub mod disk;

use disk::{Disk, SECTOR_BYTES};
use plimsoll_base::Class;
use plimsoll_store::superblock::SUPERBLOCK_BYTES;
use plimsoll_store::{
    MetaError, MetaStore, NewVolume, Region, RegionKind, Superblock, TenantLimits, TenantRecord, Uuid, VolumeRecord,
};
use std::sync::OnceLock;

const MIB: u64 = 1 << 20;
const HOME: Region = Region { kind: RegionKind::Home, offset: 5 * MIB, len: 64 * MIB };

type Contents = (Vec<VolumeRecord>, Vec<TenantRecord>, u64);

fn contents(store: &MetaStore) -> Contents {
    (store.volumes().cloned().collect(), store.tenants().cloned().collect(), store.free_bytes())
}

fn tenant(weight: u32) -> TenantRecord {
    TenantRecord {
        name: "t".into(),
        class: Class::BestEffort { weight },
        limits: TenantLimits::default(),
        change: 0,
        deadline: None,
    }
}

/// A store with a few volumes, what it holds, and the sectors that aren't zero.
fn base() -> &'static (Disk, Contents, Vec<usize>) {
    static BASE: OnceLock<(Disk, Contents, Vec<usize>)> = OnceLock::new();
    BASE.get_or_init(|| {
        let disk = Disk::new();
        let mut store = MetaStore::format(disk.format(), HOME).expect("formats");
        for n in 0..12 {
            let description = Some("d".repeat(n * 20));
            let (name, tenant) = (format!("v{n}"), format!("t{}", n % 3));
            let new = NewVolume { name, size_bytes: MIB, tenant, read_only: false, description, cache: None };
            store.create_volume(new).expect("room");
        }
        store.begin_delete("v3").expect("there");
        store.finish_delete(4).expect("begun");
        store.grow_volume("v5", 3 * MIB).expect("room");
        let contents = contents(&store);
        drop(store);
        let used = disk.used_sectors();
        (disk, contents, used)
    })
}

/// Opens a store that `data` corrupted: it has what it had, or is refused; and it can be changed if it opens.
///
/// # Panics
/// If not.
pub fn mount(data: &[u8]) {
    let (base, expected, used) = base();
    let disk = base.copy();
    for edit in data.chunks_exact(6) {
        let sector = used[usize::from(u16::from_le_bytes([edit[1], edit[2]])) % used.len()];
        let mut bytes = disk.sector(sector);
        match edit[0] % 4 {
            0 => bytes = [0; SECTOR_BYTES],
            1 => bytes = base.sector(used[usize::from(edit[3]) % used.len()]),
            _ => bytes[usize::from(edit[3]) * 2 + usize::from(edit[0] & 1)] ^= edit[4],
        }
        disk.put_sector(sector, &bytes);
    }
    match disk.open(HOME) {
        Err(
            MetaError::Corrupt { .. } | MetaError::UnknownVersion { .. } | MetaError::Io(_) | MetaError::Full { .. },
        ) => {}
        Err(e) => panic!("refused, but not as a store that is corrupt: {e}"),
        Ok(mut store) => {
            assert_eq!(contents(&store), *expected, "corrupt, and not noticed");
            store.set_tenant(tenant(5)).expect("it can be changed");
        }
    }
}

/// Decodes superblocks that `data` changed, with their checksums made right where it says so.
///
/// # Panics
/// If what is decoded can't be encoded to the same.
pub fn superblock(data: &[u8]) {
    let mut example = Superblock {
        device_uuid: Uuid::from_u128(1),
        pool_uuid: Uuid::from_u128(2),
        role: "main".into(),
        sequence: 7,
        created_unix_s: 1_700_000_000,
        block_bytes: 512,
        formatted: true,
        main_uuid: None,
        regions: Superblock::region_map(64 << 20, 2 << 20),
    };
    let first = example.encode();
    example.sequence += 1;
    let mut copies = [first, example.encode()];
    let (Some((&flags, edits)), checksum_at) = (data.split_first(), SUPERBLOCK_BYTES - 8) else { return };
    for edit in edits.chunks_exact(4) {
        let at = usize::from(u16::from_le_bytes([edit[0], edit[1]])) % SUPERBLOCK_BYTES;
        copies[usize::from(edit[2] & 1)][at] = edit[3];
    }
    for (n, copy) in copies.iter_mut().enumerate() {
        if flags & (1 << n) != 0 {
            let sum = xxhash_rust::xxh3::xxh3_64(&copy[..checksum_at]).to_le_bytes();
            copy[checksum_at..].copy_from_slice(&sum);
        }
    }
    if let Ok(chosen) = Superblock::choose(&copies) {
        assert_eq!(Superblock::decode(&chosen.encode()), Ok(chosen.clone()));
        assert!(chosen.stale(&copies).len() <= 2);
        assert!(chosen.end() >= 1 << 20);
        Superblock::is_of_older_version(&copies);
    }
}
