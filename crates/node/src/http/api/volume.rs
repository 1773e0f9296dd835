//! Volumes and their traffic.

use super::pool::Oldest;
use super::promise::{ForecastStatus, PromiseStatus, PromisedReads, Waits};
use plimsoll_base::{CacheMode, OnBusy};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A volume.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct VolumeStatus {
    /// Name.
    pub name: String,
    /// Identifies the volume: one that is made later under its name has another.
    pub uuid: String,
    /// Its pool.
    pub pool: String,
    /// Size.
    pub size_bytes: u64,
    /// True if changes are refused.
    pub read_only: bool,
    /// Tenant of its requests, unless a connection names another.
    pub tenant: String,
    /// `recovering`, `ready`, `degraded`, `failed`.
    pub state: String,
    /// Connections of NBD clients, and I/O queues of NVMe hosts.
    pub connections: u32,
    /// Deadline of reads whose connection doesn't ask for one. Absent: they have none.
    pub promise: Option<PromiseStatus>,
    /// All tenants' requests on it.
    pub traffic: Traffic,
    /// Its requests' time by place.
    pub waits: Waits,
    /// Changes that it has acknowledged since it was made.
    pub generation: u64,
    /// Reason for which it may lack changes of other replicas: `no`, `unclean stop`, `writer lost`, `resync`.
    pub behind: String,
}

/// Requests since the start, and their recent times.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
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
    /// Reads done by their deadline, of those with one.
    pub deadlines_met: u64,
    /// Reads accepted by a forecast that they would meet it, and done after it.
    pub deadlines_missed: u64,
    /// Done after it as was forecast: their clients wait instead of being refused.
    pub deadlines_waited: u64,
    /// Reads of NVMe hosts that were served, however late, as their host was refused reads before; absent without.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spared: Option<SparedReads>,
    /// Reads with a deadline, by what became of them lately.
    pub promised: PromisedReads,
    /// Actual times against forecast ones.
    pub forecast: ForecastStatus,
    /// Inside now.
    pub inside: u64,
    /// The oldest inside.
    pub oldest: Option<Oldest>,
    /// Forecast wait of a small read that arrives now; the longest of several pools' or tenants'.
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

/// Reads of NVMe hosts that were served, however late, as their host was refused reads before, since the start.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct SparedReads {
    /// They were refused themselves, and came back.
    pub again: u64,
    /// They overlap a refused read in other bounds: that one merged or split, or another read.
    pub overlap: u64,
    /// Their host had the most refusals that are remembered.
    pub too_many: u64,
    /// Their host wasn't among those whose refusals are remembered.
    pub stranger: u64,
    /// Times from the refusal to the return, of those that came back.
    pub returned_after: Latency,
    /// Response times of those that were done, from their last arrival.
    pub response: Latency,
}

/// One operation's share of the traffic.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
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
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct Latency {
    /// Number.
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

/// `POST /v1/volumes`
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NewVolume {
    /// Its name: what NBD clients ask for.
    pub name: String,
    /// The pool it's to live in.
    pub pool: String,
    /// Its size, a multiple of 512.
    pub size_bytes: u64,
    /// Tenant of its requests.
    pub tenant: String,
    /// Refuse changes.
    #[serde(default)]
    pub read_only: bool,
    /// Cache mode: `off`, `through` or `back` [default: the pool's].
    #[serde(default)]
    #[schemars(with = "Option<String>")]
    pub cache: Option<CacheMode>,
}

/// `PATCH /v1/volumes/{name}`: absent keys stay as they are.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct VolumeChange {
    /// Its new name. Refused while a client is connected, and if the configuration declares either name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rename: Option<String>,
    /// Its new size; volumes never shrink.
    #[serde(default)]
    pub size_bytes: Option<u64>,
    /// New cache mode: `off`, `through` or `back`.
    #[serde(default)]
    #[schemars(with = "Option<String>")]
    pub cache: Option<CacheMode>,
    /// New state as a replica.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replica: Option<ReplicaChange>,
    /// Its reads' deadline for connections from now on that don't say their own, until something else is configured; 0: its
    /// tenant's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_us: Option<u64>,
    /// Answer to a read that would miss that deadline, on those connections: `wait` (it is served late) or `error` (it
    /// fails at once). Clients that negotiated promises get Busy in any case.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>", extend("enum" = ["wait", "error", null]))]
    pub busy: Option<OnBusy>,
}

/// Changes of a volume as one of several replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum ReplicaChange {
    /// It is being caught up: not read as a replica until that is done.
    CatchUp {
        /// A number that whoever does it draws; an attempt that was begun before is void.
        attempt: u32,
        /// Nothing is copied: its present content is declared complete. Otherwise it is refused while clients are connected that may change
        /// it and don't write to its other replicas.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        trust: bool,
    },
    /// Excess of the peer's generation, once the volume has all of the peer's data.
    CaughtUp {
        /// The number that it was begun with.
        attempt: u32,
        /// Changes; negative if its own is larger.
        add: i64,
    },
}
