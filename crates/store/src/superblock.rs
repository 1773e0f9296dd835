//! The superblock: what a device is, whose it is, and where its regions lie. Two copies, at bytes 0 and 4096.
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
//!        64  regions, 24 bytes each: kind u32, zero u32, offset u64, length u64; room for 32
//!       832  sequence, u64                     (since version 2; version 1 also had no second copy)
//!       840  length of the role, 1..=31, u8    (since version 2)
//!       841  role                              (since version 2)
//!       872  1 once the logs or the cache of the device were formatted, u8 (since version 3)
//!       880  UUID of the pool's main device, 16 bytes (since version 4)
//! ```
//! Integers are little-endian. Bytes not named are zero. Nothing here does I/O.
//!
//! Since version 3 the metadata region notes its newest commit and the superblock's sequence
//! (`region.rs`), which programs that know version 2 don't.
//!
//! Version 4 is that of a cache's device: it names the main device of its pool. A pool that is made anew under the name of a former one has
//! the same UUID, which follows from the name; its main device hasn't. A superblock that names none is written as version 3.

use std::fmt;
use uuid::Uuid;
use xxhash_rust::xxh3::xxh3_64;

/// The newest version that this code knows.
pub const VERSION: u32 = 4;
/// The version of a superblock that names no main device.
const VERSION_WITHOUT_MAIN: u32 = 3;
/// Offsets of the two copies. An update writes and syncs the second before it touches the first.
pub const COPIES_AT: [u64; 2] = [0, SUPERBLOCK_BYTES as u64];
/// The role of a device of version 1, which knew no roles: pools had one device.
pub const ROLE_OF_VERSION_1: &str = "main";
/// The longest role.
pub const ROLE_BYTES_MAX: usize = 31;
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
const SEQUENCE_AT: usize = REGIONS_AT + REGIONS_MAX * REGION_BYTES;
const ROLE_AT: usize = SEQUENCE_AT + 8;
const FORMATTED_AT: usize = ROLE_AT + 1 + ROLE_BYTES_MAX;
const MAIN_AT: usize = 880;
const METADATA_BYTES_MIN: u64 = 4 << 20;
const METADATA_BYTES_MAX: u64 = 1 << 30;
/// Bytes of home that a byte of the metadata region describes after a growth, even if each granule is an extent of its own: 64 bytes for
/// each. A new device with less than 64 GiB has 16 KiB for each.
const GROWN_HOME_BYTES_PER_METADATA_BYTE: u64 = 16 << 10;

const _: () =
    assert!(SEQUENCE_AT == 832 && FORMATTED_AT == 872 && MAIN_AT > FORMATTED_AT && MAIN_AT + 16 <= CHECKSUM_AT);

/// Content of a region.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum RegionKind {
    /// The superblock itself; the device's first MiB.
    Superblock,
    /// The metadata store.
    Metadata,
    /// Volumes' data at its final place.
    Home,
    /// The tables of logs of writes not yet at home; the logs themselves lie all over the home region.
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
    /// Length in bytes; a multiple of [`REGION_ALIGN`], not zero.
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
    /// Purpose of the device in its pool ("main", "fast"): 1 to 31 of a-z, 0-9 and '-'.
    pub role: String,
    /// Number of updates so far; the copy with the higher number is valid. 0 in version 1.
    pub sequence: u64,
    /// Time of creation, in seconds since 1970.
    pub created_unix_s: u64,
    /// The block of its formats: a power of two, 512..=65536.
    pub block_bytes: u32,
    /// The logs' tables, or the cache, were written here once: a blank first page is lost, not new.
    pub formatted: bool,
    /// The main device of its pool, which only a cache's device names. `None` if an earlier program made it.
    pub main_uuid: Option<Uuid>,
    /// Its regions, ascending by offset, disjoint. One each of superblock, metadata and home; any of the others.
    pub regions: Vec<Region>,
}

/// Reason why bytes are not a superblock that this program can use.
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
    /// Neither copy can be used.
    BothCopies {
        /// Problem of the copy at byte 0.
        first: Box<SuperblockError>,
        /// Problem of the copy at byte 4096.
        second: Box<SuperblockError>,
    },
    /// The checksum fits but a field makes no sense: written by a faulty program.
    Invalid {
        /// Field, and its expected value.
        what: &'static str,
    },
    /// Both copies check out, but no update writes these two.
    Disagree {
        /// The field that differs.
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
            SuperblockError::BothCopies { first, second } => write!(
                f,
                "neither superblock can be used (at byte 0: {first}; at byte {}: {second}): restore the device's first 8 KiB from a copy",
                COPIES_AT[1]
            ),
            SuperblockError::Invalid { what } => {
                write!(f, "superblock has a valid checksum but an impossible field: {what}")
            }
            SuperblockError::Disagree { what } => write!(
                f,
                "the two superblocks are whole but differ in their {what}: one is of another device or time, restore the device's first 8 KiB from a copy"
            ),
        }
    }
}

impl std::error::Error for SuperblockError {}

impl Superblock {
    /// Regions for a new device of `size_bytes` bytes (rounded down to [`REGION_ALIGN`]): superblock area, metadata (1/64 of
    /// the device, 4 MiB to 1 GiB), the logs' tables if there are any (`logs_bytes`, a multiple of [`REGION_ALIGN`]), home.
    ///
    /// # Panics
    /// If `size_bytes` is below [`DEVICE_BYTES_MIN`], or the logs leave no home.
    pub fn region_map(size_bytes: u64, logs_bytes: u64) -> Vec<Region> {
        Superblock::region_map_aligned(size_bytes, logs_bytes, REGION_ALIGN)
    }

    /// The same with a gap behind the metadata, so that what follows begins at a multiple of `align`, itself one of [`REGION_ALIGN`]: the
    /// zones of a shingled drive.
    ///
    /// # Panics
    /// As [`Superblock::region_map`].
    pub fn region_map_aligned(size_bytes: u64, logs_bytes: u64, align: u64) -> Vec<Region> {
        assert!(align.is_multiple_of(REGION_ALIGN), "regions are aligned");
        assert!(size_bytes >= DEVICE_BYTES_MIN, "a device of {size_bytes} bytes has no room for its regions");
        let share = (size_bytes / 64).clamp(METADATA_BYTES_MIN, METADATA_BYTES_MAX);
        let size_bytes = size_bytes - size_bytes % REGION_ALIGN;
        let metadata =
            Region { kind: RegionKind::Metadata, offset: REGION_ALIGN, len: share.next_multiple_of(REGION_ALIGN) };
        let logs = Region { kind: RegionKind::Logs, offset: metadata.end().next_multiple_of(align), len: logs_bytes };
        assert!(logs.end() < size_bytes, "the logs' tables leave no room");
        let mut regions = vec![Region { kind: RegionKind::Superblock, offset: 0, len: REGION_ALIGN }, metadata];
        regions.extend((logs_bytes > 0).then_some(logs));
        regions.push(Region { kind: RegionKind::Home, offset: logs.end(), len: size_bytes - logs.end() });
        regions
    }

    /// The only region of `kind`, or the first of several.
    pub fn region(&self, kind: RegionKind) -> Option<Region> {
        self.regions.iter().copied().find(|r| r.kind == kind)
    }

    /// Returns the number of bytes that a device must have to hold all regions.
    pub fn end(&self) -> u64 {
        self.regions.last().map_or(0, Region::end)
    }

    /// Returns the number of bytes up to which the device can grow: its metadata region stays where it is, and describes no more.
    /// A device with logs can't grow: where they lie follows from its size.
    pub fn end_max(&self) -> u64 {
        let home_bytes = match self.regions.as_slice() {
            [
                _,
                metadata @ Region { kind: RegionKind::Metadata, .. },
                Region { kind: RegionKind::Home, offset, .. },
            ] => {
                let bytes = match metadata.len {
                    METADATA_BYTES_MAX.. => u64::MAX - offset - REGION_ALIGN, // as on any larger device
                    len => len * GROWN_HOME_BYTES_PER_METADATA_BYTE,
                };
                offset + bytes / REGION_ALIGN * REGION_ALIGN
            }
            _ => 0,
        };
        home_bytes.max(self.end())
    }

    /// The superblock of the device after it has grown to `end` bytes, rounded down to [`REGION_ALIGN`].
    ///
    /// # Panics
    /// If that isn't more than [`Superblock::end`], or more than [`Superblock::end_max`].
    pub fn grown(&self, end: u64) -> Superblock {
        let end = end - end % REGION_ALIGN;
        let is_lawful = end > self.end() && end <= self.end_max();
        assert!(is_lawful, "it can't grow to {end} bytes");
        let mut next = Superblock { sequence: self.sequence + 1, ..self.clone() };
        let home = next.regions.last_mut().expect("every superblock has regions");
        home.len = end - home.offset;
        next
    }

    /// As stored.
    pub fn encode(&self) -> [u8; SUPERBLOCK_BYTES] {
        assert_eq!(self.check(), Ok(()), "a superblock that can't be decoded must not be written");
        let mut b = [0; SUPERBLOCK_BYTES];
        put(&mut b, 0, MAGIC);
        put(&mut b, 8, &self.version().to_le_bytes());
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
        put(&mut b, SEQUENCE_AT, &self.sequence.to_le_bytes());
        put(&mut b, ROLE_AT, &[self.role.len() as u8]);
        put(&mut b, ROLE_AT + 1, self.role.as_bytes());
        put(&mut b, FORMATTED_AT, &[u8::from(self.formatted)]);
        put(&mut b, MAIN_AT, self.main_uuid.unwrap_or_default().as_bytes());
        let checksum = xxh3_64(&b[..CHECKSUM_AT]);
        put(&mut b, CHECKSUM_AT, &checksum.to_le_bytes());
        b
    }

    /// The version that it is written as.
    fn version(&self) -> u32 {
        if self.main_uuid.is_some() { VERSION } else { VERSION_WITHOUT_MAIN }
    }

    /// The superblock that holds of the two copies read from [`COPIES_AT`].
    ///
    /// # Errors
    /// If either copy is of a newer version (its upgrade may have been cut short), neither can be used, or both can but
    /// differ in what no update changes.
    pub fn choose(copies: &[[u8; SUPERBLOCK_BYTES]; 2]) -> Result<Superblock, SuperblockError> {
        match (Superblock::decode(&copies[0]), Superblock::decode(&copies[1])) {
            (Err(e @ SuperblockError::UnknownVersion { .. }), _) => Err(e),
            (_, Err(e @ SuperblockError::UnknownVersion { .. })) => Err(e),
            (Ok(a), Ok(b)) => newer_of(a, b),
            (Ok(one), Err(_)) | (Err(_), Ok(one)) => Ok(one),
            (Err(SuperblockError::NotOurs), Err(SuperblockError::NotOurs)) => Err(SuperblockError::NotOurs),
            (Err(a), Err(b)) => Err(SuperblockError::BothCopies { first: Box::new(a), second: Box::new(b) }),
        }
    }

    /// Returns whether none of the valid copies read from [`COPIES_AT`] is of a version that this code writes.
    pub fn is_of_older_version(copies: &[[u8; SUPERBLOCK_BYTES]; 2]) -> bool {
        !copies.iter().any(|b| get_u32(b, 8) >= VERSION_WITHOUT_MAIN && Superblock::decode(b).is_ok())
    }

    /// Returns the indices of the copies read from [`COPIES_AT`] that differ from this superblock, in the order of writing.
    /// Each write must be synced before the next begins. Until the second copy is durable, the first stays unchanged.
    pub fn stale(&self, copies: &[[u8; SUPERBLOCK_BYTES]; 2]) -> Vec<usize> {
        let now = self.encode();
        [1, 0].into_iter().filter(|copy| copies[*copy] != now).collect()
    }

    /// The superblock in one copy, of any version up to [`VERSION`].
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
        let (role, sequence) = match get_u32(b, 8) {
            0 => return Err(SuperblockError::Invalid { what: "version is 0" }),
            1 => (ROLE_OF_VERSION_1.to_owned(), 0),
            2..=VERSION => (decode_role(b)?, get_u64(b, SEQUENCE_AT)),
            version => return Err(SuperblockError::UnknownVersion { version }),
        };
        if get_u64(b, SEQUENCE_AT) == u64::MAX {
            return Err(SuperblockError::Invalid { what: "sequence has no successor" });
        }
        let main_uuid = match get_u32(b, 8) {
            ..=VERSION_WITHOUT_MAIN => None,
            _ => match get_uuid(b, MAIN_AT) {
                uuid if uuid.is_nil() => {
                    return Err(SuperblockError::Invalid { what: "it names no main device, as its version does" });
                }
                uuid => Some(uuid),
            },
        };
        let superblock = Superblock {
            device_uuid: get_uuid(b, 16),
            pool_uuid: get_uuid(b, 32),
            role,
            sequence,
            created_unix_s: get_u64(b, 48),
            block_bytes: get_u32(b, 56),
            formatted: b[FORMATTED_AT] == 1,
            main_uuid,
            regions: decode_regions(b)?,
        };
        if b[FORMATTED_AT] > 1 {
            return Err(SuperblockError::Invalid { what: "neither formatted nor not" });
        }
        superblock.check()?;
        Ok(superblock)
    }

    fn check(&self) -> Result<(), SuperblockError> {
        let invalid = |what| Err(SuperblockError::Invalid { what });
        if !self.block_bytes.is_power_of_two() || !(512..=65536).contains(&self.block_bytes) {
            return invalid("block size is not a power of two from 512 to 65536");
        }
        check_role(&self.role)?;
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

fn newer_of(a: Superblock, b: Superblock) -> Result<Superblock, SuperblockError> {
    let differ = |what| Err(SuperblockError::Disagree { what });
    if a.device_uuid != b.device_uuid || a.pool_uuid != b.pool_uuid {
        return differ("UUIDs");
    }
    if a.role != b.role || a.created_unix_s != b.created_unix_s || a.block_bytes != b.block_bytes {
        return differ("role, time of creation or block size");
    }
    if a.main_uuid.is_some() && b.main_uuid.is_some() && a.main_uuid != b.main_uuid {
        return differ("main device");
    }
    match a.sequence.cmp(&b.sequence) {
        std::cmp::Ordering::Equal if a != b => differ("regions, though not in their sequence"),
        std::cmp::Ordering::Less => Ok(b),
        _ => Ok(a),
    }
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

fn decode_role(b: &[u8; SUPERBLOCK_BYTES]) -> Result<String, SuperblockError> {
    let role = &b[ROLE_AT + 1..][..usize::from(b[ROLE_AT]).min(ROLE_BYTES_MAX + 1)];
    std::str::from_utf8(role).map(str::to_owned).map_err(|_| SuperblockError::Invalid { what: "role is not UTF-8" })
}

/// Checks that a device can have that role.
///
/// # Errors
/// [`SuperblockError::Invalid`] if it can't.
pub fn check_role(role: &str) -> Result<(), SuperblockError> {
    let lawful = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-';
    if (1..=ROLE_BYTES_MAX).contains(&role.len()) && role.bytes().all(lawful) {
        return Ok(());
    }
    Err(SuperblockError::Invalid { what: "a role is 1 to 31 of a-z, 0-9 and '-'" })
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
        Superblock {
            device_uuid: Uuid::from_u128(1),
            pool_uuid: Uuid::from_u128(2),
            role: "fast".into(),
            sequence: 1,
            created_unix_s: 1_700_000_000,
            block_bytes: 512,
            formatted: false,
            main_uuid: None,
            regions: Superblock::region_map(size_bytes, 0),
        }
    }

    fn reseal(b: &mut [u8; SUPERBLOCK_BYTES]) {
        let checksum = xxh3_64(&b[..CHECKSUM_AT]);
        put(b, CHECKSUM_AT, &checksum.to_le_bytes());
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(
            size in DEVICE_BYTES_MIN..1 << 50, uuid: u128, main: u128, sequence in 0..u64::MAX, shift in 9u32..=16, role in "[a-z0-9-]{1,31}"
        ) {
            let device_uuid = Uuid::from_u128(uuid);
            let main_uuid = Some(Uuid::from_u128(main)).filter(|_| main % 2 == 1);
            let superblock = Superblock { device_uuid, main_uuid, sequence, block_bytes: 1 << shift, role, ..example(size) };
            prop_assert!(superblock.end() <= size && superblock.end() + REGION_ALIGN > size);
            prop_assert_eq!(Superblock::decode(&superblock.encode()), Ok(superblock));
        }

        /// An update that tears one copy, wherever, leaves the other to hold.
        #[test]
        fn a_torn_update_leaves_the_old_or_the_new(cut in 0..=SUPERBLOCK_BYTES, torn in 0usize..2) {
            let old = example(64 << 20);
            let (main_uuid, regions) = (Some(Uuid::from_u128(3)), Superblock::region_map(96 << 20, 0));
            let new = Superblock { sequence: 2, formatted: true, main_uuid, regions, ..old.clone() };
            let mut copies = [old.encode(); 2];
            let order = new.stale(&copies);
            prop_assert_eq!(order.len(), 2);
            for whole in &order[..torn] {
                copies[*whole] = new.encode();
            }
            copies[order[torn]][..cut].copy_from_slice(&new.encode()[..cut]);
            let chosen = Superblock::choose(&copies).expect("one is whole");
            prop_assert!(chosen == new || (torn == 0 && chosen == old));
        }

        #[test]
        fn any_changed_byte_is_noticed(at in 0..SUPERBLOCK_BYTES, flip in 1u8..) {
            let mut b = example(64 << 20).encode();
            b[at] ^= flip;
            prop_assert!(Superblock::decode(&b).is_err());
        }

        #[test]
        fn arbitrary_bytes_never_panic(noise in proptest::collection::vec(any::<u8>(), CHECKSUM_AT), version in 0u32..=VERSION) {
            let mut b = [0; SUPERBLOCK_BYTES];
            b[..CHECKSUM_AT].copy_from_slice(&noise);
            let _ = Superblock::decode(&b);
            put(&mut b, 0, MAGIC);
            put(&mut b, 8, &version.to_le_bytes());
            put(&mut b, 61, &[0; 3]); // a plausible number of regions, so that they're looked at
            reseal(&mut b);
            prop_assert!(Superblock::decode(&b).is_err());
        }
    }

    #[test]
    fn a_newer_version_is_told_from_corruption() {
        let mut b = example(64 << 20).encode();
        put(&mut b, 8, &(VERSION + 1).to_le_bytes());
        assert!(matches!(Superblock::decode(&b), Err(SuperblockError::Checksum { .. })));
        reseal(&mut b);
        let newer = Err(SuperblockError::UnknownVersion { version: VERSION + 1 });
        assert_eq!(Superblock::decode(&b), newer);
        let ours = example(64 << 20).encode();
        assert_eq!([Superblock::choose(&[ours, b]), Superblock::choose(&[b, ours])], [newer.clone(), newer]);
    }

    /// Programs that don't know main devices read what names none.
    #[test]
    fn the_version_is_the_oldest_that_says_it() {
        let without = example(64 << 20);
        let with = Superblock { main_uuid: Some(Uuid::from_u128(3)), sequence: 2, ..without.clone() };
        assert_eq!([&without, &with].map(|s| get_u32(&s.encode(), 8)), [3, 4]);
        assert!([&without, &with].iter().all(|s| !Superblock::is_of_older_version(&[s.encode(); 2])));
        let mut nameless = with.encode();
        put(&mut nameless, MAIN_AT, &[0; 16]);
        reseal(&mut nameless);
        assert!(matches!(Superblock::decode(&nameless), Err(SuperblockError::Invalid { .. })));
        let other = Superblock { main_uuid: Some(Uuid::from_u128(4)), sequence: 3, ..without.clone() };
        let disagree = Err(SuperblockError::Disagree { what: "main device" });
        assert_eq!(Superblock::choose(&[with.encode(), other.encode()]), disagree);
        assert_eq!(Superblock::choose(&[without.encode(), with.encode()]), Ok(with), "it was just named");
    }

    #[test]
    fn two_bad_copies_are_both_named() {
        let (mut torn, blank) = (example(64 << 20).encode(), [0; SUPERBLOCK_BYTES]);
        torn[100] ^= 1;
        let e = Superblock::choose(&[torn, blank]).expect_err("neither is whole");
        assert!(e.to_string().contains("torn or corrupted; at byte 4096: no Plimsoll superblock"), "{e}");
        assert_eq!(Superblock::choose(&[blank, blank]), Err(SuperblockError::NotOurs));
    }

    #[test]
    fn what_follows_the_metadata_can_be_aligned_to_zones() {
        const ZONE: u64 = 256 << 20;
        for size_bytes in [1 << 30, 200 << 30, 8 << 40] {
            let regions = Superblock::region_map_aligned(size_bytes, 32 << 20, ZONE);
            let [_, metadata, logs, home] = regions[..] else { panic!("{regions:?}") };
            assert_eq!((logs.kind, logs.offset % ZONE), (RegionKind::Logs, 0));
            assert!(logs.offset >= metadata.end() && logs.offset - metadata.end() < ZONE);
            assert_eq!((home.offset, home.end()), (logs.end(), size_bytes));
        }
    }

    #[test]
    fn a_device_grows_as_far_as_its_metadata_describe() {
        let end_max = |size_bytes| example(size_bytes).end_max();
        assert_eq!(end_max(64 << 20), (5 << 20) + (64 << 30));
        assert_eq!(end_max(1 << 30), (17 << 20) + (256 << 30));
        assert!(end_max(1 << 40) > 1 << 60 && end_max(1 << 40).is_multiple_of(REGION_ALIGN));
        let old = example(64 << 20);
        let new = old.grown((200 << 20) + 7);
        assert_eq!((new.end(), new.sequence), (200 << 20, 2));
        assert_eq!(new.regions[..2], old.regions[..2]);
        let logs = Superblock { regions: Superblock::region_map(64 << 20, 1 << 20), ..old };
        assert_eq!(logs.end_max(), logs.end());
    }

    #[test]
    fn metadata_has_its_share_within_bounds() {
        let metadata = |size| example(size).region(RegionKind::Metadata).expect("it has one").len;
        assert_eq!(metadata(64 << 20), 4 << 20);
        assert_eq!(metadata(1 << 30), 16 << 20);
        assert_eq!(metadata(1 << 40), 1 << 30);
    }
}
