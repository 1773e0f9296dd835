//! The API's words, for the node that says them and for clients that hear them. Times are in microseconds and sizes in
//! bytes, as the fields' names say; rates are left to the reader, who has two answers and the time between them.

use plimsoll_base::CacheMode;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// `GET /healthz`
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Health {
    /// Does everything serve?
    pub healthy: bool,
    /// What doesn't, and what to do.
    pub problems: Vec<String>,
}

/// `GET /v1/status`
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Status {
    /// The node itself.
    pub node: NodeStatus,
    /// Its pools, as configured.
    pub pools: Vec<PoolStatus>,
    /// Its volumes, by name.
    pub volumes: Vec<VolumeStatus>,
    /// Its tenants, by name.
    pub tenants: Vec<TenantStatus>,
}

/// The node itself.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct NodeStatus {
    /// The program's version.
    pub version: String,
    /// Its process.
    pub pid: u32,
    /// Since it began to serve. Grows steadily: differences of counters over differences of this are rates.
    pub uptime_us: u64,
    /// As of `/healthz`.
    pub healthy: bool,
    /// As of `/healthz`.
    pub problems: Vec<String>,
    /// Where it listens.
    pub listens: Listens,
    /// When the host stopped this machine for a while, where a pool's device is modelled in real time.
    pub host_pauses: Option<HostPauses>,
}

/// Pauses of the host of 250 us and more, since the start.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct HostPauses {
    /// How many.
    pub count: u64,
    /// All together.
    pub total_us: u64,
    /// The longest.
    pub max_us: u64,
}

/// How a device that is modelled in real time keeps to its model: how long after its due time each completion came.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ModelStatus {
    /// Completions.
    pub completions: u64,
    /// Half of them were at most this late.
    pub late_p50_us: u64,
    /// 95 % of them.
    pub late_p95_us: u64,
    /// 99 % of them.
    pub late_p99_us: u64,
    /// The latest.
    pub late_max_us: u64,
    /// Completions that the real bytes weren't there for in time: the file is slower than the modelled device.
    pub data_late: u64,
}

/// Where a node listens; absent where it doesn't.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Listens {
    /// NBD on a unix socket.
    pub nbd_unix: Option<String>,
    /// NBD over TCP: address and port.
    pub nbd_tcp: Option<String>,
    /// This API over TCP: address and port.
    pub control_http: Option<String>,
    /// This API on a unix socket.
    pub control_unix: Option<String>,
}

/// A pool.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PoolStatus {
    /// Its name.
    pub name: String,
    /// What it's made of, for people.
    pub device: String,
    /// Which one it is: what `device.uuid` in the configuration pins; absent for a null device.
    pub device_uuid: Option<String>,
    /// `recovering`, `ready`, `degraded`, `failed`, or `ended` if its thread is gone.
    pub state: String,
    /// Has a flush failed? Then no flush is believed until `POST /v1/pools/{name}/recover`.
    pub flush_failed: bool,
    /// Space that no volume has; absent for a null device.
    pub free_bytes: Option<u64>,
    /// Volumes being deleted: their space isn't free yet.
    pub deleting: Vec<String>,
    /// NBD connections.
    pub connections: u32,
    /// Requests inside.
    pub inside: u64,
    /// Of those, waiting for an overlapping one.
    pub overlap_waiting: u64,
    /// Of those, waiting in the scheduler.
    pub sched_waiting: u64,
    /// Of those, at the device.
    pub at_device: u64,
    /// The oldest request inside.
    pub oldest: Option<Oldest>,
    /// Requests taken in since the start.
    pub accepted: u64,
    /// Requests refused at once since the start.
    pub refused: u64,
    /// Requests ended since the start.
    pub ended: u64,
    /// Its layers, top first.
    pub layers: Vec<LayerStatus>,
    /// Where its device is modelled.
    pub model: Option<ModelStatus>,
}

/// The oldest request inside.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Oldest {
    /// Since its arrival.
    pub age_us: u64,
    /// A layer's name, or `device`.
    pub at: String,
}

/// A layer of a pool, since the start.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LayerStatus {
    /// Its name.
    pub name: String,
    /// Requests that came in.
    pub entered: u64,
    /// Client requests passed on at once.
    pub passed_at_once: u64,
    /// Client requests passed on later; their waits follow.
    pub waited: u64,
    /// Half of those that waited, waited no longer.
    pub wait_p50_us: u64,
    /// 99 % of those that waited, waited no longer.
    pub wait_p99_us: u64,
    /// The longest wait.
    pub wait_max_us: u64,
    /// Requests that it served: only a device does, or the layer that models one.
    pub served: u64,
    /// Half of them took no longer, from arrival there to end.
    pub service_p50_us: u64,
    /// 99 % of them took no longer.
    pub service_p99_us: u64,
    /// Requests of its own.
    pub own_ios: u64,
    /// Their bytes.
    pub own_bytes: u64,
    /// Requests refused at the top in whose forecast it had a part.
    pub refused_with_part: u64,
    /// Requests it gave back busy after they were accepted.
    pub revoked: u64,
}

/// `GET /v1/pools/{name}/logs`: a pool's scattered logs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LogsView {
    /// What is wrong, if something is.
    pub problem: Option<String>,
    /// How many logs there are.
    pub logs: u32,
    /// One log's bytes.
    pub log_bytes: u64,
    /// One group's bytes.
    pub group_bytes: u64,
    /// Writes up to this are logged now; 0: none.
    pub logged_write_bytes: u64,
    /// The same as configured.
    pub logged_write_bytes_configured: u64,
    /// Logging is off because the load doesn't gain by it.
    pub switched_off: bool,
    /// How full each log is in percent, in the order of their places on the device; 255: retired.
    pub occupancy_percent: Vec<u8>,
    /// Valid logged bytes: what a checkpoint would bring home.
    pub valid_bytes: u64,
    /// Extents in the MTL table.
    pub extents: u64,
    /// As many as it may have.
    pub extents_max: u64,
    /// Bytes of the table.
    pub mtl_bytes: u64,
    /// Why logs are being emptied now: `full`, `asked`, `off-hours`, `periodic`, `idle`, `swap`.
    pub cleaning: Option<String>,
    /// Bytes that still have to move.
    pub cleaning_left_bytes: u64,
    /// How long that will take, by what it took so far.
    pub cleaning_left_us: Option<u64>,
    /// Since the start: writes logged.
    pub logged: u64,
    /// Their bytes.
    pub logged_bytes: u64,
    /// Records written for them.
    pub records: u64,
    /// Small writes that went home because no log had room.
    pub spilled: u64,
    /// Reads that found something in a log.
    pub reads_from_logs: u64,
    /// Images of the table written.
    pub images: u64,
    /// Logs swapped.
    pub swaps: u64,
    /// Checkpoints, whole or piece by piece.
    pub checkpoints: u64,
    /// Bytes brought home or swapped.
    pub cleaned_bytes: u64,
    /// Logs retired after an error.
    pub logs_retired: u64,
    /// Reads that found other bytes in a log than were written there.
    pub reads_corrupt: u64,
    /// Reads of logged data that are known lost.
    pub reads_lost: u64,
    /// Bytes whose reads fail until they are written again, as what was logged of them is lost.
    pub lost_bytes: u64,
    /// Records written only to say what was durable before them.
    pub witness_records: u64,
    /// Writes of the MTL table and its notes that failed.
    pub table_errors: u64,
    /// How long the last checkpoint or swap took.
    pub last_cleaning_us: Option<u64>,
    /// How long recovery took at the start.
    pub recovery_us: u64,
    /// Logs that it looked at.
    pub recovery_logs: u32,
    /// Records that it found.
    pub recovery_records: u64,
}

impl From<&plimsoll_logs::LogsStatus> for LogsView {
    fn from(s: &plimsoll_logs::LogsStatus) -> LogsView {
        let c = &s.counters;
        LogsView {
            problem: s.problem.clone(),
            logs: s.logs,
            log_bytes: s.log_bytes,
            group_bytes: s.group_bytes,
            logged_write_bytes: s.logged_write_bytes,
            logged_write_bytes_configured: s.logged_write_bytes_configured,
            switched_off: s.switched_off,
            occupancy_percent: s.occupancy.clone(),
            valid_bytes: s.valid_bytes,
            extents: s.extents,
            extents_max: s.extents_max,
            mtl_bytes: s.mtl_bytes,
            cleaning: s.cleaning.map(|(why, _)| why.name().to_string()),
            cleaning_left_bytes: s.cleaning.map_or(0, |(_, left)| left),
            cleaning_left_us: s.cleaning_left.map(|l| l.as_micros()),
            logged: c.logged,
            logged_bytes: c.logged_bytes,
            records: c.records,
            spilled: c.spilled,
            reads_from_logs: c.reads_from_logs,
            images: c.images,
            swaps: c.swaps,
            checkpoints: c.checkpoints,
            cleaned_bytes: c.cleaned_bytes,
            logs_retired: c.logs_retired,
            reads_corrupt: c.reads_corrupt,
            reads_lost: c.reads_lost,
            lost_bytes: s.lost_bytes,
            witness_records: c.witness_records,
            table_errors: c.table_errors,
            last_cleaning_us: c.last_clean.map(|r| r.took.as_micros()),
            recovery_us: c.recovery.took.as_micros(),
            recovery_logs: c.recovery.logs_scanned,
            recovery_records: c.recovery.records,
        }
    }
}

/// `GET /v1/pools/{name}/cache`: a pool's flash cache.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CacheView {
    /// `recovering`, `ready`, `broken` (its device failed), `failed` (not this cache's device).
    pub state: String,
    /// What is wrong and what is at risk, if something is.
    pub problem: Option<String>,
    /// An extent's bytes.
    pub extent_bytes: u32,
    /// A WEU's bytes.
    pub weu_bytes: u32,
    /// `lz4`, `zstd`, `none`.
    pub codec: String,
    /// Are duplicates found?
    pub dedup: bool,
    /// WEUs on the device.
    pub weus: u32,
    /// WEUs that may be used.
    pub weus_max: u32,
    /// WEUs in use.
    pub weus_used: u32,
    /// Entries of the file index.
    pub extents: u64,
    /// Entries of the fingerprint index.
    pub fingerprints: u64,
    /// Extents that only the cache has.
    pub dirty_extents: u64,
    /// Memory of all indexes.
    pub memory_bytes: u64,
    /// Since the start: reads.
    pub reads: u64,
    /// Reads that needed nothing from the slow device.
    pub read_hits: u64,
    /// Extents that were put in.
    pub inserted: u64,
    /// Of them, those whose content was there.
    pub duplicates: u64,
    /// Extents put in for each that was stored.
    pub dedup_ratio: Option<f64>,
    /// Bytes before compression for each after.
    pub compression_ratio: Option<f64>,
    /// Bytes written to the device for each of compressed extents.
    pub write_amplification: Option<f64>,
    /// Of what a cache without deduplication and compression would have written, how much wasn't, in percent.
    pub wear_saved_percent: Option<f64>,
    /// Bytes of WEUs and of the journal written.
    pub written_bytes: u64,
    /// WEUs evicted.
    pub evicted: u64,
    /// Of what was dirty when somebody asked for all of it to be written back, what isn't yet.
    pub flush_left: u64,
    /// Extents written back.
    pub written_back: u64,
    /// Sequential extents that weren't cached.
    pub scans: u64,
    /// Extents read ahead.
    pub ahead: u64,
    /// Extents read back that weren't what they should be.
    pub corrupt: u64,
    /// Reads of the fast device that failed.
    pub unreadable: u64,
    /// Of both, extents that only the cache had.
    pub lost: u64,
    /// Where they are: volume, offset, length.
    pub lost_ranges: Vec<(String, u64, u64)>,
    /// How long the last start took.
    pub start_us: u64,
    /// Extents that it found.
    pub start_extents: u64,
    /// WEUs with headers that must have been there, and were damaged.
    pub start_damaged: u32,
    /// Per volume.
    pub volumes: Vec<CachedVolume>,
}

/// A volume in a cache.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CachedVolume {
    /// Its name.
    pub name: String,
    /// `off`, `through`, `back`.
    pub mode: CacheMode,
    /// Only the cache may have the latest of it, as the pool has noted: the cache must not go.
    pub behind: bool,
    /// Extents that only the cache has.
    pub dirty_extents: u64,
    /// Reads.
    pub reads: u64,
    /// Reads that needed nothing from the slow device.
    pub read_hits: u64,
}

impl CacheView {
    /// What a cache says of itself; `name_of` names its volumes, `behind` are those of which only it may have the latest.
    pub fn of(
        s: &plimsoll_cache::CacheStatus,
        name_of: impl Fn(plimsoll_base::VolumeKey) -> String,
        behind: &[String],
    ) -> CacheView {
        let c = &s.counters;
        let volume = |v: &plimsoll_cache::VolumeStatus| CachedVolume {
            behind: behind.contains(&name_of(v.key)),
            name: name_of(v.key),
            mode: v.mode,
            dirty_extents: v.dirty,
            reads: v.reads,
            read_hits: v.read_hits,
        };
        CacheView {
            state: s.state.into(),
            problem: s.why.clone(),
            extent_bytes: s.extent_bytes,
            weu_bytes: s.weu_bytes,
            codec: format!("{:?}", s.codec).to_lowercase(),
            dedup: s.dedup,
            weus: s.weus.0,
            weus_max: s.weus.1,
            weus_used: s.weus.2,
            extents: s.entries.0,
            fingerprints: s.entries.1,
            dirty_extents: s.dirty,
            memory_bytes: s.memory_bytes,
            reads: c.reads,
            read_hits: c.read_hits,
            inserted: c.inserted,
            duplicates: c.duplicates,
            dedup_ratio: s.dedup_ratio(),
            compression_ratio: s.compression_ratio(),
            write_amplification: s.write_amplification(),
            wear_saved_percent: s.wear_saved_percent(u64::from(s.extent_bytes)),
            written_bytes: c.weu_bytes + c.journal_bytes,
            evicted: c.evicted,
            flush_left: s.flush_left,
            written_back: c.written_back,
            scans: c.scans,
            ahead: c.ahead,
            corrupt: c.corrupt,
            unreadable: c.unreadable,
            lost: c.lost,
            lost_ranges: s.lost.iter().map(|l| (name_of(l.volume), l.offset, l.len)).collect(),
            start_us: s.start.took.as_micros(),
            start_extents: s.start.extents,
            start_damaged: s.start.damaged,
            volumes: s.volumes.iter().map(volume).collect(),
        }
    }
}

/// A volume.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct VolumeStatus {
    /// Its name.
    pub name: String,
    /// Its pool.
    pub pool: String,
    /// Its size.
    pub size_bytes: u64,
    /// Are changes refused?
    pub read_only: bool,
    /// Who pays unless a connection says otherwise.
    pub tenant: String,
    /// `recovering`, `ready`, `degraded`, `failed`.
    pub state: String,
    /// NBD connections.
    pub connections: u32,
    /// All tenants' requests on it.
    pub traffic: Traffic,
    /// Changes that it has acknowledged since it was made.
    pub generation: u64,
    /// Why it may lack changes that other replicas have: `no`, `unclean stop`, `writer lost`, `resync`.
    pub behind: String,
}

/// What requests there were since the start, and how long they took lately.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Traffic {
    /// Ended as asked.
    pub done: u64,
    /// Bytes of those.
    pub bytes: u64,
    /// Went wrong.
    pub failed: u64,
    /// Refused at once: they would have missed their deadline.
    pub busy_refused: u64,
    /// Accepted, and given back busy later.
    pub busy_revoked: u64,
    /// Done by their deadline, of those with one.
    pub deadlines_met: u64,
    /// Done after it.
    pub deadlines_missed: u64,
    /// Inside now.
    pub inside: u64,
    /// The oldest inside.
    pub oldest: Option<Oldest>,
    /// What a small read would wait if it arrived now, as the pool forecasts; the longest of several pools' or tenants'.
    pub next_read_wait_us: u64,
    /// Time that requests spent in each layer before it passed them on, summed, since the start.
    pub waited_us: BTreeMap<String, u64>,
    /// By operation: read, write, flush, other.
    pub ops: Vec<OpTraffic>,
    /// Response times of the last whole second.
    pub last_second: Latency,
    /// Response times of the last whole minute or the running one, whichever has more.
    pub last_minute: Latency,
}

/// One operation's share of the traffic.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct OpTraffic {
    /// `read`, `write`, `flush`, `other`.
    pub op: String,
    /// Ended as asked.
    pub done: u64,
    /// Bytes of those.
    pub bytes: u64,
    /// Went wrong.
    pub failed: u64,
}

/// Response times, from arrival to completion, of requests that ended as asked.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Latency {
    /// How many.
    pub samples: u64,
    /// Median; 0 without samples, like the others.
    pub p50_us: u64,
    /// 90th percentile.
    pub p90_us: u64,
    /// 99th percentile.
    pub p99_us: u64,
    /// 99.9th percentile.
    pub p999_us: u64,
    /// The longest.
    pub max_us: u64,
}

/// A tenant.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TenantStatus {
    /// Its name.
    pub name: String,
    /// `latency-critical`, `best-effort` or `fenced`.
    pub class: String,
    /// Of a latency-critical one.
    pub objectives: Vec<ObjectiveStatus>,
    /// Of a best-effort or latency-critical one.
    pub weight: Option<u32>,
    /// Of a fenced one.
    pub slots: Option<u32>,
    /// Does a layer enforce its class? If not, it's only measured.
    pub enforced: bool,
    /// What is and isn't enforced.
    pub enforcement: String,
    /// Are all objectives kept? Absent without objectives or without requests.
    pub kept: Option<bool>,
    /// What it may have inside, and has.
    pub permits: Permits,
    /// Volumes it owns.
    pub volumes: Vec<String>,
    /// Its requests on all volumes.
    pub traffic: Traffic,
}

/// An objective and how it's kept.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ObjectiveStatus {
    /// Such as 99.9.
    pub percentile: f64,
    /// The bound.
    pub within_us: u64,
    /// What that percentile was in the last whole minute or the running one, whichever has more requests; absent without.
    pub measured_us: Option<u64>,
    /// Requests measured.
    pub samples: u64,
    /// Kept? Absent without requests.
    pub kept: Option<bool>,
}

/// A tenant's permits, summed over pools.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Permits {
    /// Requests inside at once, per pool.
    pub jobs_max: u32,
    /// Bytes inside at once, per pool.
    pub bytes_max: u64,
    /// Requests inside now.
    pub jobs: u64,
    /// Bytes inside now.
    pub bytes: u64,
    /// Connections that aren't read from until there's a permit.
    pub waiting: u32,
}

/// `POST /v1/volumes`
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewVolume {
    /// Its name: what NBD clients ask for.
    pub name: String,
    /// The pool it's to live in.
    pub pool: String,
    /// Its size, a multiple of 512.
    pub size_bytes: u64,
    /// Who pays.
    pub tenant: String,
    /// Refuse changes?
    #[serde(default)]
    pub read_only: bool,
    /// How its pool's cache treats it: `off`, `through`, `back`; as the pool says if not said.
    #[serde(default)]
    pub cache: Option<CacheMode>,
}

/// `PATCH /v1/volumes/{name}`: what isn't said stays.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VolumeChange {
    /// Its new size; volumes never shrink.
    #[serde(default)]
    pub size_bytes: Option<u64>,
    /// How its pool's cache treats it from now on: `off`, `through`, `back`.
    #[serde(default)]
    pub cache: Option<CacheMode>,
    /// What it is as one of several replicas.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replica: Option<ReplicaChange>,
    /// Its reads' deadline for connections from now on that don't say their own, until something else is configured; 0: its
    /// tenant's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_us: Option<u64>,
}

/// What is said of a volume as one of several replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum ReplicaChange {
    /// It is being caught up: not read as a replica until that is done.
    CatchUp {
        /// A number that whoever does it draws; an attempt that was begun before is void.
        attempt: u32,
    },
    /// It has all that its peer has, whose generation is larger by so much.
    CaughtUp {
        /// The number that it was begun with.
        attempt: u32,
        /// Changes; negative if its own is larger.
        add: i64,
    },
}

/// `PATCH /v1/pools/{name}/cache`
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CacheChange {
    /// Bytes of its device that it may use from now on.
    pub size_bytes: u64,
}

/// `POST /v1/pools/{name}/cache/give-up`
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CacheGiveUp {
    /// Of which volume.
    pub volume: String,
    /// Must be said: what only the cache had of it is lost for good.
    pub lose: bool,
}

/// `PUT /v1/tenants/{name}`: what isn't said is the default, not what was before.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TenantSpec {
    /// `latency-critical`, `best-effort` or `fenced`.
    pub class: String,
    /// For latency-critical: at least one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub objectives: Vec<ObjectiveSpec>,
    /// 1 to 10000; absent: 100 of a best-effort tenant, 1000 of a latency-critical one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<u32>,
    /// For fenced: 1 to 1000, 1 if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slots: Option<u32>,
    /// Requests inside at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jobs_max: Option<u32>,
    /// Bytes inside at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_max: Option<u64>,
}

/// An objective.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ObjectiveSpec {
    /// Such as 99.9.
    pub percentile: f64,
    /// The bound.
    pub within_us: u64,
}

/// A sampled request: what was forecast, what was decided, how it ended.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Trace {
    /// Where.
    pub pool: String,
    /// Its number among the pool's traces.
    pub number: u64,
    /// Absent if the volume was deleted since.
    pub volume: Option<String>,
    /// Absent if the tenant was removed since.
    pub tenant: Option<String>,
    /// What was asked.
    pub op: String,
    /// First byte within the volume.
    pub offset: u64,
    /// How many.
    pub len_bytes: u64,
    /// When it arrived, since the pool's start.
    pub arrived_us: u64,
    /// Its deadline, from its arrival; absent without a promise.
    pub deadline_us: Option<u64>,
    /// What the forecast said it would wait.
    pub forecast_wait_us: u64,
    /// And how long its own service would take.
    pub forecast_service_us: u64,
    /// How sure that was, 0 to 1.
    pub forecast_confidence: f64,
    /// The wait by layer.
    pub forecast_parts: Vec<TracePart>,
    /// `accepted` or `refused`.
    pub decision: String,
    /// When its first part reached a device, from its arrival.
    pub dispatched_us: Option<u64>,
    /// When it ended, from its arrival.
    pub ended_us: Option<u64>,
    /// `under way`, `done`, `busy` or `failed`.
    pub outcome: String,
    /// Of a failed one.
    pub error: Option<String>,
}

/// A layer's part of a forecast wait.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TracePart {
    /// The layer.
    pub layer: String,
    /// Its part.
    pub wait_us: u64,
}

/// Every error's body.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ErrorBody {
    /// The error.
    pub error: ErrorText,
}

/// An error, for people.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ErrorText {
    /// What is wrong.
    pub what: String,
    /// Where.
    #[serde(rename = "where", default, skip_serializing_if = "Option::is_none")]
    pub at: Option<String>,
    /// What to do about it.
    #[serde(rename = "do", default, skip_serializing_if = "Option::is_none")]
    pub todo: Option<String>,
}
