//! Configuration of a cache: its behaviour, and the limits of its settings.

use crate::place::WEU_BYTES_MAX;
use plimsoll_base::{Span, TenantId};
use serde::{Deserialize, Serialize};

/// The compression of extents.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Codec {
    /// Not at all.
    None,
    /// LZ4: fast both ways (Nitro's choice).
    Lz4,
    /// zstd at its fastest regular level: denser, slower to read.
    Zstd,
}

/// The hash function of fingerprints.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Hash {
    /// BLAKE3, keyed by the deduplication domain.
    Blake3,
    /// SHA-1 over content names (NI-M25), for the simulator's reproduction of the paper only.
    Sha1,
}

pub use plimsoll_base::CacheMode as Mode;

/// Sharing of the space between volumes, or a part for each (VirtualFence §4.5).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Sharing {
    /// One space, one order of eviction.
    Shared,
    /// Each volume has a number of WEUs and an order of eviction of its own.
    PerVolume,
}

/// The WEU that leaves when space is needed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Eviction {
    /// The one that was used longest ago (NI-M17).
    #[default]
    Lru,
    /// Of those that were used longest ago, the one in which the fewest extents live. Extents that were used are put in again.
    Live,
    /// SIEVE's hand: the first one that was hardly used since the hand passed it last. Extents that were used are put in again.
    Sieve,
    /// S3-FIFO's queues: the oldest one that was hardly used. Extents that were used are put in again.
    S3Fifo,
}

impl Eviction {
    /// True if extents of a WEU that leaves are put in again if they were used.
    pub const fn reinserts(self) -> bool {
        !matches!(self, Eviction::Lru)
    }
}

/// The extents that come into the cache from clients' reads, and from writes that went through. Dirty extents always come, and so does what
/// replaces a cached copy, unless it is replaced again before it is in.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Admission {
    /// All of them.
    #[default]
    All,
    /// Those that are missed or written a second time while the first is remembered.
    Second,
}

/// A volume, as the cache must know it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CacheVolume {
    /// Its size: an extent that isn't whole inside it is never cached.
    pub size_bytes: u64,
    /// Through, back or off.
    pub mode: Mode,
    /// For whom the cache works when nobody asks (write-back).
    pub tenant: TenantId,
    /// Deduplication reaches as far as this is the same: a stable name of the tenant, or 0 for all.
    pub domain: u64,
    /// WEUs it may have where each volume has its own; ignored where space is shared.
    pub weus_max: u32,
}

/// Mistakes to plant, which the crash tests must find.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Planted {
    /// A write goes to the slow device before the journal says that the cached copy is dead.
    NoBarrier,
    /// Dead extents aren't journaled at all.
    NoDeadRecords,
    /// An evicted WEU isn't journaled as such.
    NoRetireRecord,
    /// A change doesn't wait for that.
    EvictUnwaited,
    /// An extent's checksum is ignored.
    IgnoreChecksum,
    /// A header's checksum is ignored when starting.
    IgnoreHeaderChecksum,
    /// A WEU is begun under the number that it had before.
    ReuseSequence,
    /// A flush in write-back mode doesn't write the open WEU.
    FlushWithoutChunk,
    /// A flush in write-back mode doesn't flush the fast device.
    FlushWithoutBarrier,
    /// A dirty extent is called clean before the slow device was flushed.
    CleanBeforeFlush,
    /// The copy of an extent that a newer dirty one supersedes is called dead before that is durable.
    DeadBeforeDurable,
    /// A fill isn't dropped when its extent is written meanwhile.
    StaleFill,
    /// A write leaves the extent's content in memory that was read ahead.
    AheadKept,
    /// Dirty duplicates aren't recorded.
    ForgetDirtyDuplicates,
    /// An older epoch of the journal is taken than the newest whole one.
    OldJournal,
    /// A volume's deletion isn't recorded.
    ForgetDeletions,
    /// The whole extents of a torn dirty chunk are used.
    BelieveTornChunks,
    /// Confirmed although the slow device may still lose it.
    CacheUnflushed,
    /// Confirmed although the fast device may still lose it.
    ConfirmUnflushed,
    /// Confirmed although it died while it was unconfirmed.
    ConfirmTheDead,
    /// Headers of clean extents count without being confirmed.
    BelieveTrials,
    /// Extents written back are called clean though the fast device failed meanwhile.
    CleanWhenBroken,
    /// Extents written back are forgotten before the journal records that.
    ForgetCleaning,
    /// After the fast device failed, a flush doesn't look at dirty extents.
    FlushWhenBroken,
    /// A change of an extent that was given up doesn't wait for what write-back had sent of it.
    OvertakeWriteBack,
    /// A flush of the slow device is trusted although another, under way with it, has failed.
    BelieveAfterLoss,
    /// A chunk counts as durable although one before it in its WEU isn't written.
    FlushOutOfOrder,
    /// The checksum of a journal's block is ignored.
    JournalUnchecked,
    /// A journal's block that is corrupt, although it was durable, is taken for the journal's end.
    JournalEndsAtCorruption,
    /// Copies of headers aren't looked at.
    HeaderReadOnce,
    /// A start does not seal what a header may name that it could not read.
    UnreadableUnsealed,
    /// A flush ends before the journal says what it made durable.
    FlushUnsaid,
    /// An extent is written back before the journal says that its header is there.
    WriteBackUnsaid,
    /// A chunk that is corrupt is taken for torn, although the journal says that it was durable.
    TornIfCorrupt,
    /// Only the first copy of the journal is read.
    JournalReadOnce,
    /// A dirty duplicate whose bytes can't be found is left out, as if it had never been written.
    LostDuplicateForgotten,
    /// A start doesn't know the checksum of what a duplicate relies on, if the header that lists it was lost.
    UnlistedUnsummed,
    /// BLOCK_STATUS is the slow device's answer, whatever only the cache has.
    StatusFromBelow,
    /// A change that finds no room goes through before the journal says that the cached copy is dead.
    DivertAtOnce,
    /// The WEU that names a dirty duplicate may leave.
    NameUnpinned,
    /// The name of a duplicate that is written again stays true.
    NameKept,
    /// A WEU is retired although something came into it while its header was read.
    RetireUnlooked,
    /// A duplicate is pointed at bytes that are corrupt.
    CorruptReused,
    /// A deletion closes and writes what is open of the volume, although the fast device has failed.
    BrokenWritten,
}

impl Planted {
    /// Returns true if a test has planted this mistake. Without the feature `mutants` it never is, and its code is not built.
    pub const fn is_in(self, planted: Option<Planted>) -> bool {
        cfg!(any(test, feature = "mutants")) && matches!(planted, Some(p) if p as u8 == self as u8)
    }

    /// Those that show when devices fail.
    pub const OF_FAULTS: [Planted; 4] =
        [Planted::CleanWhenBroken, Planted::ForgetCleaning, Planted::BelieveAfterLoss, Planted::FlushOutOfOrder];

    /// That shows when devices fail and the operator has flushes served again.
    pub const OF_RECOVERED_FLUSHES: Planted = Planted::FlushWhenBroken;

    /// That shows when the slow device has no space.
    pub const OF_FULL: Planted = Planted::DivertAtOnce;

    /// That shows when a volume is deleted after the fast device failed.
    pub const OF_DELETION: Planted = Planted::BrokenWritten;

    /// That shows when a volume is given up while it is written back.
    pub const OF_GIVE_UP: Planted = Planted::OvertakeWriteBack;

    /// Those that show when sectors are corrupt.
    pub const OF_ROT: [Planted; 10] = [
        Planted::HeaderReadOnce,
        Planted::UnreadableUnsealed,
        Planted::IgnoreChecksum,
        Planted::JournalUnchecked,
        Planted::JournalEndsAtCorruption,
        Planted::JournalReadOnce,
        Planted::FlushUnsaid,
        Planted::TornIfCorrupt,
        Planted::LostDuplicateForgotten,
        Planted::WriteBackUnsaid,
    ];

    /// That shows when a cache is started several times: a clean WEU that was torn in one life, and relied on in the next.
    pub const OF_LIVES: Planted = Planted::ConfirmUnflushed;

    /// Those that show when the power goes.
    pub const ALL: [Planted; 21] = [
        Planted::NoBarrier,
        Planted::NoDeadRecords,
        Planted::NoRetireRecord,
        Planted::EvictUnwaited,
        Planted::IgnoreChecksum,
        Planted::IgnoreHeaderChecksum,
        Planted::ReuseSequence,
        Planted::FlushWithoutChunk,
        Planted::FlushWithoutBarrier,
        Planted::CleanBeforeFlush,
        Planted::DeadBeforeDurable,
        Planted::StaleFill,
        Planted::AheadKept,
        Planted::ForgetDirtyDuplicates,
        Planted::OldJournal,
        Planted::ForgetDeletions,
        Planted::BelieveTornChunks,
        Planted::CacheUnflushed,
        Planted::ConfirmTheDead,
        Planted::BelieveTrials,
        Planted::StatusFromBelow,
    ];
}

/// Speeds of a modelled core at a layer's work, in bytes per second.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Speeds {
    /// Any task, before its first byte.
    pub task: Span,
    /// Fingerprints.
    pub hash: u64,
    /// Compressing.
    pub pack: u64,
    /// Decompressing what was compressed, counted by what comes out.
    pub unpack: u64,
    /// Checking what was not.
    pub check: u64,
}

impl Default for Speeds {
    /// Eyeballed on one core of a 2020s server: BLAKE3, LZ4, xxh3.
    fn default() -> Speeds {
        let mb = 1_000_000;
        Speeds { task: Span::from_micros(1), hash: 1500 * mb, pack: 600 * mb, unpack: 3000 * mb, check: 10_000 * mb }
    }
}

/// See the module's documentation.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CacheConfig {
    /// Fingerprints kept, in percent of the extents that fit uncompressed; 0 turns deduplication off (NI-M6).
    pub fingerprints_percent: u32,
    /// The compression of extents.
    pub codec: Codec,
    /// The hash function of their fingerprints.
    pub hash: Hash,
    /// The owners of the space: all volumes together, or each its own part.
    pub sharing: Sharing,
    /// The WEU that leaves when space is needed. Tapes of earlier versions don't have it.
    #[serde(default)]
    pub eviction: Eviction,
    /// The clean extents that come into the cache. Tapes of earlier versions don't have it.
    #[serde(default)]
    pub admission: Admission,
    /// WEUs used at most, over all volumes.
    pub weus_max: u32,
    /// Write-back begins when this much of the space is dirty, in percent, and goes on until half of it is (NI-M15).
    pub watermark_percent: u32,
    /// Free space kept in each partition, in percent (VirtualFence §4.5: the free list's threshold); at least two WEUs.
    /// Where nothing is free at all, changes in the cache wait: the list's low watermark.
    pub free_percent: u32,
    /// Own requests at the slow device at once when writing back; they are background work.
    pub write_back_depth: u32,
    /// Tell the device that a WEU's old content is not needed before it's written again.
    pub trim: bool,
    /// A stream that has read this number of bytes in a row is sequential (NI-M20); its reads aren't cached.
    pub sequential_bytes: u64,
    /// The most that is read ahead of such a stream; 0 for nothing.
    pub prefetch_bytes_max: u64,
    /// Memory for recipes, where the slow device is a store that has them (NI-M12); 0 for none.
    pub recipe_bytes: u64,
    /// Number of times that the device's content was recorded as out of date ([`crate::CacheReport::DeviceFailed`]). Clean extents
    /// cached under another number are not valid; dirty extents are.
    pub generation: u16,
    /// Speeds of modelled cores.
    pub speeds: Speeds,
    /// For tests of the tests.
    #[serde(skip)]
    pub planted: Option<Planted>,
}

impl Default for CacheConfig {
    fn default() -> CacheConfig {
        CacheConfig {
            fingerprints_percent: 100,
            codec: Codec::Lz4,
            hash: Hash::Blake3,
            sharing: Sharing::Shared,
            eviction: Eviction::Lru,
            admission: Admission::All,
            weus_max: u32::MAX,
            watermark_percent: 30,
            free_percent: 0,
            write_back_depth: 16,
            trim: true,
            sequential_bytes: 256 << 10,
            prefetch_bytes_max: 128 << 10,
            recipe_bytes: 0,
            generation: 0,
            speeds: Speeds::default(),
            planted: None,
        }
    }
}

/// The parts of a cache's shape that are the device's format (Table 3.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Shape {
    /// The unit of caching: a power of two, 4 to 128 KiB.
    pub extent_bytes: u32,
    /// The unit of writing and evicting: a power of two, up to 4 MiB, with room for at least two extents.
    pub weu_bytes: u32,
}

impl Default for Shape {
    /// The paper's: 8 KiB and 2 MiB.
    fn default() -> Shape {
        Shape { extent_bytes: 8 << 10, weu_bytes: 2 << 20 }
    }
}

/// Extents that a trim, zeroes or a prefetch may have in one request: the cache looks at each, at its begin and at its end.
const RANGE_EXTENTS: u64 = 512;

impl Shape {
    /// Returns the length of the longest trim, zeroes or prefetch that the cache takes without keeping others waiting.
    pub fn range_bytes(&self) -> u64 {
        RANGE_EXTENTS * u64::from(self.extent_bytes)
    }

    /// Checks that the configuration is possible.
    ///
    /// # Errors
    /// The fault.
    pub fn check(&self) -> Result<(), String> {
        let Shape { extent_bytes, weu_bytes } = *self;
        if !extent_bytes.is_power_of_two() || !(4 << 10..=128 << 10).contains(&extent_bytes) {
            return Err(format!("an extent of {extent_bytes} bytes: a power of two from 4 KiB to 128 KiB"));
        }
        if !weu_bytes.is_power_of_two() || weu_bytes > WEU_BYTES_MAX || weu_bytes < extent_bytes * 2 {
            return Err(format!(
                "a WEU of {weu_bytes} bytes: a power of two, at least two extents ({} bytes), at most 4 MiB",
                extent_bytes * 2
            ));
        }
        Ok(())
    }
}
