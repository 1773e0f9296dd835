//! The superblock: what a device is, whose it is, and where its regions lie.
//!
//! ```text
//! byte    0  magic "PLIMSOLL"      }
//!         8  version, u32          } these three and the checksum stay where they are in every version
//!      4088  xxh3-64 of 0..4088    }
//!        12  zero, u32
//!        16  device UUID, 16 bytes
//!        32  pool UUID, 16 bytes
//!        48  created, seconds since 1970, u64
//!        56  block bytes, u32
//!        60  number of regions, u32
//!        64  regions, 24 bytes each: kind u32, zero u32, offset u64, length u64
//! ```
//! Integers are little-endian. Bytes not named are zero. Nothing here does I/O.

use std::fmt;
use uuid::Uuid;
use xxhash_rust::xxh3::xxh3_64;

/// The version that this code writes.
pub const VERSION: u32 = 1;
/// Bytes of an encoded superblock.
pub const SUPERBLOCK_BYTES: usize = 4096;
/// Regions start and end at multiples of this.
pub const REGION_ALIGN: u64 = 1 << 20;
/// The most regions a superblock lists.
pub const REGIONS_MAX: usize = 32;
/// The smallest device: superblock area, the smallest metadata region, and two granules of home.
pub const DEVICE_BYTES_MIN: u64 = 8 << 20;

const MAGIC: &[u8; 8] = b"PLIMSOLL";
const CHECKSUM_AT: usize = SUPERBLOCK_BYTES - 8;
const REGIONS_AT: usize = 64;
const REGION_BYTES: usize = 24;
const METADATA_BYTES_MIN: u64 = 4 << 20;
const METADATA_BYTES_MAX: u64 = 1 << 30;

const _: () = assert!(REGIONS_AT + REGIONS_MAX * REGION_BYTES <= CHECKSUM_AT);

/// What a region holds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum RegionKind {
    /// The superblock itself; the device's first MiB.
    Superblock,
    /// The metadata store.
    Metadata,
    /// Volumes' data at its final place.
    Home,
    /// Logs of writes not yet at home.
    Logs,
    /// Cached data.
    Cache,
}

impl RegionKind {
    const ALL: [RegionKind; 5] =
        [RegionKind::Superblock, RegionKind::Metadata, RegionKind::Home, RegionKind::Logs, RegionKind::Cache];

    const fn code(self) -> u32 {
        match self {
            RegionKind::Superblock => 1,
            RegionKind::Metadata => 2,
            RegionKind::Home => 3,
            RegionKind::Logs => 4,
            RegionKind::Cache => 5,
        }
    }

    fn from_code(code: u32) -> Option<RegionKind> {
        RegionKind::ALL.into_iter().find(|kind| kind.code() == code)
    }
}

/// A run of a device's bytes with one use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Region {
    /// The use.
    pub kind: RegionKind,
    /// First byte on the device; a multiple of [`REGION_ALIGN`].
    pub offset: u64,
    /// How many bytes; a multiple of [`REGION_ALIGN`], not zero.
    pub len: u64,
}

impl Region {
    /// The first byte after it.
    pub const fn end(&self) -> u64 {
        self.offset + self.len
    }
}

/// A device's superblock.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Superblock {
    /// The device's own name.
    pub device_uuid: Uuid,
    /// The pool it belongs to.
    pub pool_uuid: Uuid,
    /// When it was created, in seconds since 1970.
    pub created_unix_s: u64,
    /// The block of its formats: a power of two, 512..=65536.
    pub block_bytes: u32,
    /// Its regions, ascending by offset, disjoint. One each of superblock, metadata and home; any of the others.
    pub regions: Vec<Region>,
}

/// Why bytes are not a superblock that this program can use.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SuperblockError {
    /// No magic: not a Plimsoll device.
    NotOurs,
    /// The magic is there, the checksum is wrong: torn or corrupted.
    Checksum {
        /// As stored.
        stored: u64,
        /// Of the bytes read.
        computed: u64,
    },
    /// Written by a newer program.
    UnknownVersion {
        /// Its version.
        version: u32,
    },
    /// The checksum fits but a field makes no sense: written by a faulty program.
    Invalid {
        /// Which field, and what it should be.
        what: &'static str,
    },
}

impl fmt::Display for SuperblockError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SuperblockError::NotOurs => write!(f, "no Plimsoll superblock"),
            SuperblockError::Checksum { stored, computed } => {
                write!(f, "superblock checksum is {computed:016x}, {stored:016x} is stored: torn or corrupted")
            }
            SuperblockError::UnknownVersion { version } => write!(
                f,
                "superblock version {version} is newer than {VERSION}, the newest this program knows: use the program that wrote it, or a newer one"
            ),
            SuperblockError::Invalid { what } => {
                write!(f, "superblock has a valid checksum but an impossible field: {what}")
            }
        }
    }
}

impl std::error::Error for SuperblockError {}

impl Superblock {
    /// A new device's superblock over `size_bytes` bytes (rounded down to [`REGION_ALIGN`]).
    ///
    /// # Panics
    /// If `size_bytes` is below [`DEVICE_BYTES_MIN`].
    pub fn new(device_uuid: Uuid, pool_uuid: Uuid, created_unix_s: u64, block_bytes: u32, size_bytes: u64) -> Self {
        assert!(size_bytes >= DEVICE_BYTES_MIN, "a device of {size_bytes} bytes has no room for its regions");
        let regions = region_map(size_bytes);
        let superblock = Superblock { device_uuid, pool_uuid, created_unix_s, block_bytes, regions };
        assert_eq!(superblock.check(), Ok(()));
        superblock
    }

    /// The only region of `kind`, or the first of several.
    pub fn region(&self, kind: RegionKind) -> Option<Region> {
        self.regions.iter().copied().find(|r| r.kind == kind)
    }

    /// How many bytes a device must have to hold all regions.
    pub fn end(&self) -> u64 {
        self.regions.last().map_or(0, Region::end)
    }

    /// As stored.
    pub fn encode(&self) -> [u8; SUPERBLOCK_BYTES] {
        assert_eq!(self.check(), Ok(()), "a superblock that can't be decoded must not be written");
        let mut b = [0; SUPERBLOCK_BYTES];
        put(&mut b, 0, MAGIC);
        put(&mut b, 8, &VERSION.to_le_bytes());
        put(&mut b, 16, self.device_uuid.as_bytes());
        put(&mut b, 32, self.pool_uuid.as_bytes());
        put(&mut b, 48, &self.created_unix_s.to_le_bytes());
        put(&mut b, 56, &self.block_bytes.to_le_bytes());
        put(&mut b, 60, &(self.regions.len() as u32).to_le_bytes());
        for (i, r) in self.regions.iter().enumerate() {
            let at = REGIONS_AT + i * REGION_BYTES;
            put(&mut b, at, &r.kind.code().to_le_bytes());
            put(&mut b, at + 8, &r.offset.to_le_bytes());
            put(&mut b, at + 16, &r.len.to_le_bytes());
        }
        let checksum = xxh3_64(&b[..CHECKSUM_AT]);
        put(&mut b, CHECKSUM_AT, &checksum.to_le_bytes());
        b
    }

    /// The superblock in `b`.
    ///
    /// # Errors
    /// See [`SuperblockError`]. Any bytes whatsoever give a value or an error.
    pub fn decode(b: &[u8; SUPERBLOCK_BYTES]) -> Result<Superblock, SuperblockError> {
        if &b[..8] != MAGIC {
            return Err(SuperblockError::NotOurs);
        }
        let (stored, computed) = (get_u64(b, CHECKSUM_AT), xxh3_64(&b[..CHECKSUM_AT]));
        if stored != computed {
            return Err(SuperblockError::Checksum { stored, computed });
        }
        match get_u32(b, 8) {
            VERSION => {}
            0 => return Err(SuperblockError::Invalid { what: "version is 0" }),
            version => return Err(SuperblockError::UnknownVersion { version }),
        }
        let superblock = Superblock {
            device_uuid: get_uuid(b, 16),
            pool_uuid: get_uuid(b, 32),
            created_unix_s: get_u64(b, 48),
            block_bytes: get_u32(b, 56),
            regions: decode_regions(b)?,
        };
        superblock.check()?;
        Ok(superblock)
    }

    fn check(&self) -> Result<(), SuperblockError> {
        let invalid = |what| Err(SuperblockError::Invalid { what });
        if !self.block_bytes.is_power_of_two() || !(512..=65536).contains(&self.block_bytes) {
            return invalid("block size is not a power of two from 512 to 65536");
        }
        let mut end = 0;
        for r in &self.regions {
            if r.offset < end || r.len == 0 || r.offset.checked_add(r.len).is_none() {
                return invalid("regions are empty, overlap, or are out of order");
            }
            if !r.offset.is_multiple_of(REGION_ALIGN) || !r.len.is_multiple_of(REGION_ALIGN) {
                return invalid("a region is not aligned to 1 MiB");
            }
            end = r.end();
        }
        for kind in [RegionKind::Superblock, RegionKind::Metadata, RegionKind::Home] {
            if self.regions.iter().filter(|r| r.kind == kind).count() != 1 {
                return invalid("not exactly one region each of superblock, metadata and home");
            }
        }
        if self.regions.len() > REGIONS_MAX
            || self.regions[0].kind != RegionKind::Superblock
            || self.regions[0].offset != 0
        {
            return invalid("the first region is not the superblock's at offset 0");
        }
        Ok(())
    }
}

/// Superblock area, metadata (1/64 of the device, 4 MiB to 1 GiB), home.
fn region_map(size_bytes: u64) -> Vec<Region> {
    let metadata_bytes = (size_bytes / 64).clamp(METADATA_BYTES_MIN, METADATA_BYTES_MAX).next_multiple_of(REGION_ALIGN);
    let size_bytes = size_bytes - size_bytes % REGION_ALIGN;
    let metadata = Region { kind: RegionKind::Metadata, offset: REGION_ALIGN, len: metadata_bytes };
    vec![
        Region { kind: RegionKind::Superblock, offset: 0, len: REGION_ALIGN },
        metadata,
        Region { kind: RegionKind::Home, offset: metadata.end(), len: size_bytes - metadata.end() },
    ]
}

fn decode_regions(b: &[u8; SUPERBLOCK_BYTES]) -> Result<Vec<Region>, SuperblockError> {
    let count = get_u32(b, 60) as usize;
    if count > REGIONS_MAX {
        return Err(SuperblockError::Invalid { what: "more regions than fit" });
    }
    let decode_region = |i| {
        let at = REGIONS_AT + i * REGION_BYTES;
        let kind =
            RegionKind::from_code(get_u32(b, at)).ok_or(SuperblockError::Invalid { what: "unknown region kind" })?;
        Ok(Region { kind, offset: get_u64(b, at + 8), len: get_u64(b, at + 16) })
    };
    (0..count).map(decode_region).collect()
}

fn put(b: &mut [u8], at: usize, bytes: &[u8]) {
    b[at..at + bytes.len()].copy_from_slice(bytes);
}

fn get_u32(b: &[u8; SUPERBLOCK_BYTES], at: usize) -> u32 {
    u32::from_le_bytes(b[at..at + 4].try_into().expect("four bytes"))
}

fn get_u64(b: &[u8; SUPERBLOCK_BYTES], at: usize) -> u64 {
    u64::from_le_bytes(b[at..at + 8].try_into().expect("eight bytes"))
}

fn get_uuid(b: &[u8; SUPERBLOCK_BYTES], at: usize) -> Uuid {
    Uuid::from_bytes(b[at..at + 16].try_into().expect("sixteen bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn example(size_bytes: u64) -> Superblock {
        Superblock::new(Uuid::from_u128(1), Uuid::from_u128(2), 1_700_000_000, 512, size_bytes)
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(size in DEVICE_BYTES_MIN..1 << 50, a: u128, b: u128, created: u64, shift in 9u32..=16) {
            let superblock = Superblock::new(Uuid::from_u128(a), Uuid::from_u128(b), created, 1 << shift, size);
            prop_assert!(superblock.end() <= size && superblock.end() + REGION_ALIGN > size);
            prop_assert_eq!(Superblock::decode(&superblock.encode()), Ok(superblock));
        }

        #[test]
        fn any_changed_byte_is_noticed(at in 0..SUPERBLOCK_BYTES, flip in 1u8..) {
            let mut b = example(64 << 20).encode();
            b[at] ^= flip;
            prop_assert!(Superblock::decode(&b).is_err());
        }

        #[test]
        fn arbitrary_bytes_never_panic(noise in proptest::collection::vec(any::<u8>(), CHECKSUM_AT), version in 0u32..4) {
            let mut b = [0; SUPERBLOCK_BYTES];
            b[..CHECKSUM_AT].copy_from_slice(&noise);
            let _ = Superblock::decode(&b);
            put(&mut b, 0, MAGIC);
            put(&mut b, 8, &version.to_le_bytes());
            b[61] = 0; // a plausible number of regions, so that they're looked at
            b[62] = 0;
            b[63] = 0;
            let checksum = xxh3_64(&b[..CHECKSUM_AT]);
            put(&mut b, CHECKSUM_AT, &checksum.to_le_bytes());
            prop_assert!(Superblock::decode(&b).is_err());
        }
    }

    #[test]
    fn a_newer_version_is_told_from_corruption() {
        let mut b = example(64 << 20).encode();
        put(&mut b, 8, &(VERSION + 1).to_le_bytes());
        assert!(matches!(Superblock::decode(&b), Err(SuperblockError::Checksum { .. })));
        let checksum = xxh3_64(&b[..CHECKSUM_AT]);
        put(&mut b, CHECKSUM_AT, &checksum.to_le_bytes());
        assert_eq!(Superblock::decode(&b), Err(SuperblockError::UnknownVersion { version: VERSION + 1 }));
    }

    #[test]
    fn metadata_has_its_share_within_bounds() {
        let metadata = |size| example(size).region(RegionKind::Metadata).expect("it has one").len;
        assert_eq!(metadata(64 << 20), 4 << 20);
        assert_eq!(metadata(1 << 30), 16 << 20);
        assert_eq!(metadata(1 << 40), 1 << 30);
    }
}
