//! Pools and their layers.

use super::promise::{ForecastStatus, PromisedReads, Shares};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A pool.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct PoolStatus {
    /// Name.
    pub name: String,
    /// Description of its device.
    pub device: String,
    /// UUID of its device, for `device.uuid` in the configuration; absent for a null device.
    pub device_uuid: Option<String>,
    /// `recovering`, `ready`, `degraded`, `failed`, `ending` while the node ends, or `ended` if its thread is gone.
    pub state: String,
    /// True if a flush has failed. Then every flush fails until `POST /v1/pools/{name}/recover`.
    pub flush_failed: bool,
    /// Space for volumes, free or not; absent for a null device.
    #[serde(default)]
    pub size_bytes: Option<u64>,
    /// Space that no volume has; absent for a null device.
    pub free_bytes: Option<u64>,
    /// Volumes being deleted: their space isn't free yet.
    pub deleting: Vec<String>,
    /// Connections of NBD clients, and I/O queues of NVMe hosts.
    pub connections: u32,
    /// Requests in flight.
    pub inside: u64,
    /// Of those, waiting for an overlapping one.
    pub overlap_waiting: u64,
    /// Of those, waiting in the scheduler.
    pub sched_waiting: u64,
    /// Of those, at the device.
    pub at_device: u64,
    /// The oldest request in flight.
    pub oldest: Option<Oldest>,
    /// Requests taken in since the start.
    pub accepted: u64,
    /// Requests refused at once since the start.
    pub refused: u64,
    /// Requests ended since the start.
    pub ended: u64,
    /// Promises of all its volumes.
    pub promises: PoolPromises,
    /// Its layers, top first.
    pub layers: Vec<LayerStatus>,
    /// Its layers that are more than a queue, for people. The rest is at `/v1/pools/{name}/{layer}`.
    pub parts: Vec<PartStatus>,
}

/// Promises of a pool's volumes.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct PoolPromises {
    /// Reads with a deadline, by what became of them.
    pub reads: PromisedReads,
    /// Actual times against forecast ones.
    pub forecast: ForecastStatus,
}

/// `GET /v1/tenants/{name}/history`, `GET /v1/volumes/{name}/history`: oldest first, the running second, minute and ten minutes last.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct History {
    /// The last 60 seconds.
    pub seconds: Vec<HistoryPoint>,
    /// The last 60 minutes.
    pub minutes: Vec<HistoryPoint>,
    /// The last day: 144 times ten minutes.
    pub ten_minutes: Vec<HistoryPoint>,
}

/// A second, a minute or ten minutes.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct HistoryPoint {
    /// Requests that ended as asked.
    pub done: u64,
    /// Reads with a deadline, by what became of them.
    #[serde(flatten)]
    pub reads: Shares,
    /// 99th percentile of response times; the largest of several volumes or tenants, and of ten minutes. Absent without a request.
    pub p99_us: Option<u64>,
}

/// A layer of a pool, for people.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct PartStatus {
    /// Name.
    pub name: String,
    /// The most important in a few words.
    pub headline: String,
    /// The fault and its consequences, if there is one.
    pub problem: Option<String>,
    /// Further lines: label and text.
    pub lines: Vec<(String, String)>,
}

/// The oldest request in flight.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Oldest {
    /// Since its arrival.
    pub age_us: u64,
    /// A layer's name, or `device`.
    pub at: String,
}

/// A layer of a pool, since the start.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct LayerStatus {
    /// Name.
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

/// `POST /v1/pools/{name}/release`: another gateway may have the pool. Its image's lock is free.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct PoolReleased {
    /// Its name.
    pub released: String,
    /// Description of its device.
    pub device: String,
    /// Its volumes, which aren't served here any more.
    pub volumes: Vec<String>,
    /// Clients that were disconnected.
    pub disconnected: u64,
    /// Time from the withdrawal of its volumes to the end of its image, in microseconds.
    pub closed_in_us: u64,
}

/// `POST /v1/pools/{name}/take`: the pool is served here.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct PoolTaken {
    /// Its name.
    pub taken: String,
    /// Description of its device.
    pub device: String,
    /// Its volumes.
    pub volumes: Vec<String>,
}

/// `GET /v1/pools/{name}/image`: a pool's RBD image as this node sees it.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct PoolImage {
    /// The pool's name.
    pub pool: String,
    /// Description of its device.
    pub device: String,
    /// True if the pool is served here.
    pub served: bool,
    /// Reason why it isn't served here, if the node knows one.
    pub why_not: Option<String>,
    /// UUID of the pool's device, from the image.
    pub device_uuid: Option<String>,
    /// Address of the client that has the image's exclusive lock.
    pub owner: Option<String>,
    /// Volumes of which only a cache may have the newest data: this node's if it serves the pool, otherwise one that isn't here. Null if the
    /// metadata can't be read.
    pub needs_cache: Option<Vec<String>>,
    /// Connections to its volumes here.
    pub connections: u64,
    /// Faults for which a start here would refuse the pool; the lock isn't one of them.
    pub faults: Vec<String>,
    /// Subsystems of its volumes with `path`, as they were configured at the node's start.
    #[serde(default)]
    pub paths: Vec<PoolPath>,
}

/// A subsystem for NVMe/TCP hosts of which the node is one of several paths.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct PoolPath {
    /// Its NQN.
    pub nqn: String,
    /// The node's number.
    pub path: u16,
    /// Its volume.
    pub volume: String,
    /// Size of its namespace.
    pub size_bytes: u64,
    /// True if the volume is read-only.
    pub read_only: bool,
}

/// `DELETE /v1/pools/{name}`: the pool isn't served any more. Its data stay on its devices.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct PoolRemoved {
    /// Its name.
    pub removed: String,
    /// Description of its device.
    pub device: String,
    /// Its volumes, which aren't served any more.
    pub volumes: Vec<String>,
    /// Clients that were disconnected.
    pub disconnected: u64,
}
