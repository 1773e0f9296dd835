//! Counters and status of a cache.

use crate::config::{Admission, Codec, Eviction, Mode, Sharing};
use crate::index::IndexCounters;
use plimsoll_base::{IoError, Span, Time, VolumeKey};
use std::sync::Arc;

/// Counters since the start; bytes of extents are counted before compression.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Counters {
    /// Reads of clients.
    pub reads: u64,
    /// Of them, those that needed nothing from the slow device.
    pub read_hits: u64,
    /// Extents that clients' reads touched.
    pub extents_read: u64,
    /// Of them, those found in a WEU, on the device or in memory.
    pub extents_hit: u64,
    /// Of them, those found in memory.
    pub extents_hit_memory: u64,
    /// Of them, those read ahead.
    pub extents_hit_ahead: u64,
    /// Of them, those whose content was found by their recipe.
    pub recipe_hits: u64,
    /// Extents that clients wrote, whole or in part.
    pub extents_written: u64,
    /// Extents put into the cache, duplicates included.
    pub inserted: u64,
    /// Of them, those whose content was there.
    pub duplicates: u64,
    /// Bytes of extents that were packed.
    pub packed_bytes: u64,
    /// Their bytes after compression.
    pub payload_bytes: u64,
    /// Extents not put into the cache: sequential ones.
    pub scans: u64,
    /// Those that the policy of admission did not let in.
    pub rejected: u64,
    /// Those for which there was no room, or too much under way.
    pub dropped: u64,
    /// Bytes written to the fast device: WEUs, ...
    pub weu_bytes: u64,
    /// ... and their number, whole or in part.
    pub weu_writes: u64,
    /// Bytes of journal written.
    pub journal_bytes: u64,
    /// WEUs evicted.
    pub evicted: u64,
    /// Extents read from them to be put in again, as they were used.
    pub reinserted: u64,
    /// Extents read back that were not what they should be; read from the slow device instead.
    pub corrupt: u64,
    /// Reads of the fast device that failed since it is ready; the slow device serves them instead.
    pub unreadable: u64,
    /// Dirty extents of those that were corrupt or unreadable: lost.
    pub lost: u64,
    /// Extents read ahead.
    pub ahead: u64,
    /// Dirty extents written to the slow device.
    pub written_back: u64,
    /// Extents of write-back volumes that were written through, as write-back failed and there was no room.
    pub diverted: u64,
    /// Reads of the slow device that writes of parts of extents needed.
    pub fetched_for_writes: u64,
}

/// Work in flight at an instant.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Activity {
    /// It is starting.
    pub recovering: bool,
    /// The journal begins anew.
    pub snapshot: bool,
    /// The journal has something to write, or writes.
    pub journal: bool,
    /// Chunks being written.
    pub chunks: usize,
    /// A flush for what only the cache has.
    pub flushing: bool,
    /// Clean WEUs being confirmed.
    pub confirming: bool,
    /// A batch being written back.
    pub destaging: bool,
    /// WEUs on their way out.
    pub evicting: bool,
    /// Extents that only the cache has.
    pub dirty: usize,
}

/// Report of the last start.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct StartReport {
    /// Extents found, base entries.
    pub extents: u64,
    /// Of them, dirty.
    pub dirty: u64,
    /// WEUs that hold something.
    pub weus: u32,
    /// WEUs whose last chunks might have been torn, and were read whole.
    pub doubtful: u32,
    /// Chunks that were torn.
    pub torn: u32,
    /// WEUs of clean extents that weren't confirmed before the end, or were evicted before, and so hold nothing.
    pub unconfirmed: u32,
    /// WEUs with headers that the journal says are there, and that are damaged.
    pub damaged: u32,
    /// Of them, those that had what only the cache had.
    pub damaged_dirty: u32,
    /// Blocks of headers that could not be read, each counted once.
    pub unreadable: u32,
    /// The journal was corrupt in both of its copies, nobody could miss anything, and the cache began anew.
    pub journal_lost: bool,
    /// The device was of an earlier version.
    pub converted: bool,
    /// Its duration.
    pub took: Span,
}

/// A volume's part.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct VolumeStatus {
    /// The volume.
    pub key: VolumeKey,
    /// The caching mode of its requests.
    pub mode: Mode,
    /// Extents that only the cache has.
    pub dirty: u64,
    /// The slow device has all of it, which the next start will know, and it isn't write-back or the fast device failed: the cache isn't
    /// needed for it.
    pub at_home: bool,
    /// Reads of clients, and those that needed nothing from the slow device.
    pub reads: u64,
    /// See above.
    pub read_hits: u64,
}

/// A volume whose write-back fails.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WriteBackFails {
    /// The volume.
    pub volume: VolumeKey,
    /// The slow device's last error.
    pub error: IoError,
    /// The time of the first.
    pub since: Time,
    /// Bytes of the volume that only the cache has.
    pub dirty_bytes: u64,
}

/// A range of a volume that was lost: only the cache had it, and can't read it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LostRange {
    /// The volume.
    pub volume: VolumeKey,
    /// The beginning of the range.
    pub offset: u64,
    /// Its length in bytes.
    pub len: u64,
}

/// Data of a volume that only a failed fast device has.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AtRisk {
    /// The volume.
    pub volume: VolumeKey,
    /// Their bytes, all of them.
    pub bytes: u64,
    /// Offset and length in bytes of each run, ascending: the first thousand.
    pub ranges: Vec<(u64, u64)>,
    /// Number of runs.
    pub runs: u64,
}

/// Status of a cache.
#[derive(Clone, Debug)]
pub struct CacheStatus {
    /// In a word: `recovering`, `ready`, `broken`, `failed`.
    pub state: &'static str,
    /// The problem, if there is one.
    pub why: Option<String>,
    /// The time at which the fast device failed, if it did and the volumes go on without the cache.
    pub failed_at: Option<Time>,
    /// Of an extent and a WEU, bytes.
    pub extent_bytes: u32,
    /// See above.
    pub weu_bytes: u32,
    /// The compression.
    pub codec: Codec,
    /// True if it deduplicates.
    pub dedup: bool,
    /// The owners of the space.
    pub sharing: Sharing,
    /// The policy of eviction.
    pub eviction: Eviction,
    /// The policy of admission.
    pub admission: Admission,
    /// WEUs on the device, those it may use, and those in use; none once the device failed.
    pub weus: (u32, u32, u32),
    /// Entries of the file index and of the fingerprint index.
    pub entries: (u64, u64),
    /// Extents that only the cache has.
    pub dirty: u64,
    /// Of what was dirty when somebody asked for all of it to be written back, what isn't yet.
    pub flush_left: u64,
    /// Memory of all indexes.
    pub memory_bytes: u64,
    /// Counted since the start.
    pub counters: Counters,
    /// Counted in the index.
    pub index: IndexCounters,
    /// The last start.
    pub start: StartReport,
    /// Volumes that it knows.
    pub volumes: Vec<VolumeStatus>,
    /// Volumes whose write-back fails.
    pub write_back_fails: Vec<WriteBackFails>,
    /// Lost ranges, the first thousand.
    pub lost: Vec<LostRange>,
    /// Data that only the fast device has, which failed: by volume.
    pub at_risk: Arc<Vec<AtRisk>>,
    /// Volumes to which what was written last may be missing: headers were corrupt at this start or an earlier one.
    /// [`VolumeKey::POOL`] if it isn't known which.
    pub missed: Vec<VolumeKey>,
}

fn ratio(of: u64, to: u64) -> Option<f64> {
    (to > 0).then(|| of as f64 / to as f64)
}

impl CacheStatus {
    /// Reads that needed nothing from the slow device, of all.
    pub fn hit_ratio(&self) -> Option<f64> {
        ratio(self.counters.read_hits, self.counters.reads)
    }
    /// Extents put in for each one that was packed.
    pub fn dedup_ratio(&self) -> Option<f64> {
        ratio(self.counters.inserted, self.counters.inserted - self.counters.duplicates)
    }
    /// Bytes before compression for each one after.
    pub fn compression_ratio(&self) -> Option<f64> {
        ratio(self.counters.packed_bytes, self.counters.payload_bytes)
    }
    /// Bytes written to the device for each byte of compressed extents.
    pub fn write_amplification(&self) -> Option<f64> {
        ratio(self.counters.weu_bytes + self.counters.journal_bytes, self.counters.payload_bytes)
    }
    /// Percentage of bytes that weren't written, of those that a cache without deduplication and compression would have written.
    pub fn wear_saved_percent(&self, extent_bytes: u64) -> Option<f64> {
        let plain = self.counters.inserted * extent_bytes;
        ratio(self.counters.weu_bytes + self.counters.journal_bytes, plain).map(|r| (1.0 - r) * 100.0)
    }
}
