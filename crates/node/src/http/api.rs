//! The API's words, for the node that says them and for clients that hear them. Times are in microseconds and sizes in
//! bytes, as the fields' names say; rates are left to the reader, who has two answers and the time between them.

use plimsoll_base::{CacheMode, OnBusy};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// `GET /healthz`
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Health {
    /// Are there no problems?
    pub healthy: bool,
    /// Problems: what is wrong, where, and what to do.
    pub problems: Vec<String>,
}

/// `GET /v1/events`
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct EventsStatus {
    /// Oldest first.
    pub events: Vec<EventStatus>,
    /// Number of the newest event of all: `after` of the next question.
    pub last: u64,
}

/// An event.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct EventStatus {
    /// Its number, from 1, since the start of the node.
    pub number: u64,
    /// Microseconds since 1970.
    pub unix_us: u64,
    /// Its subject.
    #[schemars(extend("enum" = ["node", "change", "problem", "connection", "refusal", "tls"]))]
    pub kind: String,
    /// Its severity.
    #[schemars(extend("enum" = ["info", "warning", "error"]))]
    pub severity: String,
    /// The client that caused it, if one did: `uid:0`, an address, `cert:NAME` and an address.
    pub who: Option<String>,
    /// The event in words.
    pub what: String,
}

/// `POST /v1/reload`
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct Reloaded {
    /// Sections that differed, and took effect.
    pub changed: Vec<String>,
    /// Sections that differ, and take effect at the next start.
    pub restart: Vec<String>,
    /// Changes that could not be carried out; the others took effect.
    pub failed: Vec<String>,
}

/// `POST /v1/drain`
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Draining {
    /// The node has ended after this time, in order or not.
    pub at_most_us: u64,
}

/// `GET /v1/status`
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Status {
    /// The node itself.
    pub node: NodeStatus,
    /// Its pools, as configured.
    pub pools: Vec<PoolStatus>,
    /// Its volumes, by name.
    pub volumes: Vec<VolumeStatus>,
    /// Its tenants, by name.
    pub tenants: Vec<TenantStatus>,
    /// Faults that are injected now.
    pub injections: Vec<InjectStatus>,
}

/// The node itself.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct NodeStatus {
    /// The program's version.
    pub version: String,
    /// Its process.
    pub pid: u32,
    /// Since it began to serve. Grows steadily: differences of counters over differences of this are rates.
    pub uptime_us: u64,
    /// Is it ending? Then it takes no new clients and no changes, and finishes the requests inside.
    pub ending: bool,
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
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct HostPauses {
    /// How many.
    pub count: u64,
    /// All together.
    pub total_us: u64,
    /// The longest.
    pub max_us: u64,
}

/// Where a node listens; absent where it doesn't.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Listens {
    /// NBD on a unix socket.
    pub nbd_unix: Option<String>,
    /// NBD over TCP: address and port.
    pub nbd_tcp: Option<String>,
    /// NVMe/TCP: address and port.
    pub nvme_tcp: Option<String>,
    /// This API over TCP: address and port.
    pub control_http: Option<String>,
    /// This API on a unix socket.
    pub control_unix: Option<String>,
}

/// A pool.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
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

/// A deadline that reads have unless they ask for another.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PromiseStatus {
    /// Reads are done within it, unless they were forecast to be late. An automatic one changes by itself.
    pub deadline_us: u64,
    /// Its source: `connection` (the export's name), `volume`, `tenant`, or `automatic`.
    #[schemars(extend("enum" = ["connection", "volume", "tenant", "automatic"]))]
    pub from: String,
    /// Answer to a read that is forecast to miss the deadline: `wait` (it is served late) or `error` (it is refused at once). A client
    /// that negotiated promises is told in any case.
    #[schemars(with = "String", extend("enum" = ["wait", "error"]))]
    pub busy: OnBusy,
}

/// Reads with a deadline, by what became of them, in windows that slide.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PromisedReads {
    /// The last 60 seconds.
    pub last_minute: Shares,
    /// The last 60 minutes.
    pub last_hour: Shares,
    /// The last 24 hours.
    pub last_day: Shares,
}

/// Reads with a deadline, by what became of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Shares {
    /// Accepted, and done by their deadline.
    pub kept: u64,
    /// Accepted by a forecast that they would meet it, and done after it.
    pub missed: u64,
    /// Done after it as was forecast: their clients wait instead of being refused.
    pub waited: u64,
    /// Answered busy.
    pub refused: u64,
}

impl Shares {
    /// All of them.
    pub fn all(&self) -> u64 {
        self.kept + self.missed + self.waited + self.refused
    }

    /// Of those forecast in time, the percentage that missed; 0 without any.
    pub fn missed_percent(&self) -> f64 {
        self.missed as f64 * 100.0 / (self.kept + self.missed).max(1) as f64
    }
}

/// Actual minus forecast response times of reads that were accepted with a deadline, of the last whole minute or the running one,
/// whichever has more; within 25 %. Negative: earlier than forecast.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ForecastStatus {
    /// Number of reads; the others are 0 without any.
    pub samples: u64,
    /// 1st percentile.
    pub p1_us: i64,
    /// 10th percentile.
    pub p10_us: i64,
    /// Median.
    pub p50_us: i64,
    /// 90th percentile.
    pub p90_us: i64,
    /// 99th percentile.
    pub p99_us: i64,
}

/// Time of a volume's requests by place, in the last whole minute and in the running one.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Waits {
    /// Summed time in each layer before it passed requests on, and at the `device`.
    pub by_layer_us: BTreeMap<String, u64>,
    /// Summed time that each tenant's requests were at the pool's devices meanwhile: who may have made others wait.
    pub at_device_by_tenant_us: BTreeMap<String, u64>,
}

/// `GET /v1/connections`
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct Connections {
    /// Some of them.
    pub connections: Vec<ConnectionStatus>,
    /// Number of all.
    pub total: u64,
}

/// A client that is connected.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ConnectionStatus {
    /// The client: `uid:N` on the unix socket, an address over TCP, `cert:NAME` and the address over TLS.
    pub peer: String,
    /// Its volume; absent if that is being deleted.
    pub volume: Option<String>,
    /// Its tenant; absent if that was removed.
    pub tenant: Option<String>,
    /// Its reads' deadline. Absent: they have none.
    pub promise: Option<PromiseStatus>,
    /// Does it understand Busy, and may its reads ask for deadlines of their own?
    pub negotiated: bool,
    /// Requests inside.
    pub in_flight: u32,
    /// Time that its next request has waited for a permit; absent if none does.
    pub permit_wait_us: Option<u64>,
    /// Since it was attached.
    pub connected_us: u64,
}

/// `GET /v1/tenants/{name}/history`, `GET /v1/volumes/{name}/history`: oldest first, the running second and minute last.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct History {
    /// The last 60 seconds.
    pub seconds: Vec<HistoryPoint>,
    /// The last 60 minutes.
    pub minutes: Vec<HistoryPoint>,
}

/// A second or a minute.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct HistoryPoint {
    /// Requests that ended as asked.
    pub done: u64,
    /// Reads with a deadline, by what became of them.
    #[serde(flatten)]
    pub reads: Shares,
    /// 99th percentile of response times; of several volumes' or tenants', the largest. Absent without a request.
    pub p99_us: Option<u64>,
}

/// A layer of a pool, for people.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct PartStatus {
    /// Its name.
    pub name: String,
    /// The most important in a few words.
    pub headline: String,
    /// The fault and its consequences, if there is one.
    pub problem: Option<String>,
    /// Further lines: label and text.
    pub lines: Vec<(String, String)>,
}

/// The oldest request inside.
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

/// A volume.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
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
    /// Deadline of reads whose connection doesn't ask for one. Absent: they have none.
    pub promise: Option<PromiseStatus>,
    /// All tenants' requests on it.
    pub traffic: Traffic,
    /// Its requests' time by place.
    pub waits: Waits,
    /// Changes that it has acknowledged since it was made.
    pub generation: u64,
    /// Why it may lack changes that other replicas have: `no`, `unclean stop`, `writer lost`, `resync`.
    pub behind: String,
}

/// What requests there were since the start, and how long they took lately.
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
    /// Reads with a deadline, by what became of them lately.
    pub promised: PromisedReads,
    /// Actual times against forecast ones.
    pub forecast: ForecastStatus,
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
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
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
    /// Are all objectives kept in the last minute? Absent without objectives or without requests.
    pub kept: Option<bool>,
    /// Deadline of its reads on volumes without one, where the connection doesn't ask for one either. Absent: none.
    pub promise: Option<PromiseStatus>,
    /// What it may have inside, and has.
    pub permits: Permits,
    /// Volumes it owns.
    pub volumes: Vec<String>,
    /// Its requests on all volumes.
    pub traffic: Traffic,
}

/// An objective and how it's kept.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ObjectiveStatus {
    /// Such as 99.9.
    pub percentile: f64,
    /// The bound.
    pub within_us: u64,
    /// What that percentile was in the last whole minute or the running one, whichever has more requests; absent without.
    pub measured_us: Option<u64>,
    /// Requests measured.
    pub samples: u64,
    /// Kept in the last minute? Absent without requests.
    pub kept: Option<bool>,
    /// The last 60 seconds.
    pub last_minute: WithinBound,
    /// The last 60 minutes.
    pub last_hour: WithinBound,
    /// The last 24 hours.
    pub last_day: WithinBound,
}

/// Requests of a window, and those within an objective's bound.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct WithinBound {
    /// All that ended as asked.
    pub requests: u64,
    /// Those within the bound.
    pub within: u64,
    /// Are they as many as the objective has? Absent without requests.
    pub kept: Option<bool>,
}

/// A tenant's permits, summed over pools.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
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
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
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
    #[schemars(with = "Option<String>")]
    pub cache: Option<CacheMode>,
}

/// `PATCH /v1/volumes/{name}`: what isn't said stays.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct VolumeChange {
    /// Its new size; volumes never shrink.
    #[serde(default)]
    pub size_bytes: Option<u64>,
    /// How its pool's cache treats it from now on: `off`, `through`, `back`.
    #[serde(default)]
    #[schemars(with = "Option<String>")]
    pub cache: Option<CacheMode>,
    /// What it is as one of several replicas.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replica: Option<ReplicaChange>,
    /// Its reads' deadline for connections from now on that don't say their own, until something else is configured; 0: its
    /// tenant's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_us: Option<u64>,
    /// Answer to a read that would miss that deadline, on those connections: `wait` (it is served late) or `error` (it
    /// fails at once). Clients that negotiated promises are told in any case.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>", extend("enum" = ["wait", "error", null]))]
    pub busy: Option<OnBusy>,
}

/// Fate of a request that an injection hits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum InjectFault {
    /// It fails with an I/O error before anything of it is done.
    Errors,
    /// It is carried out, and answered later.
    Latency,
    /// It is carried out, and answered when the injection ends.
    Stall,
}

/// Operations that an injection looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum InjectOnly {
    /// Reads.
    Reads,
    /// Writes, trims, zeroes and flushes.
    Writes,
}

/// `PUT /v1/volumes/{name}/inject`
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct InjectSpec {
    /// `errors`, `latency` or `stall`.
    #[schemars(with = "String", extend("enum" = ["errors", "latency", "stall"]))]
    pub fault: InjectFault,
    /// For `latency`: how much later; a minute at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency_us: Option<u64>,
    /// Share of requests that are hit, in thousandths: 1 to 1000.
    #[schemars(range(min = 1, max = 1000))]
    pub share_permille: u16,
    /// `reads` or `writes`; all requests if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>", extend("enum" = ["reads", "writes", null]))]
    pub only: Option<InjectOnly>,
    /// Its duration; an hour at most. A restart of the node ends it, too.
    pub for_us: u64,
    /// Draws which requests: under the same seed the same ones.
    #[serde(default)]
    pub seed: u64,
}

/// An injection as it is now.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct InjectStatus {
    /// The volume.
    pub volume: String,
    /// The fault.
    #[schemars(with = "String", extend("enum" = ["errors", "latency", "stall"]))]
    pub fault: InjectFault,
    /// Delay of answers.
    pub latency_us: Option<u64>,
    /// Share of requests that are hit, in thousandths: 1 to 1000.
    #[schemars(range(min = 1, max = 1000))]
    pub share_permille: u16,
    /// Of which operations; all if absent.
    #[schemars(with = "Option<String>", extend("enum" = ["reads", "writes", null]))]
    pub only: Option<InjectOnly>,
    /// Seed of the draw of requests that are hit.
    pub seed: u64,
    /// Time until it ends.
    pub left_us: u64,
    /// Requests that it has looked at.
    pub seen: u64,
    /// Requests that were hit.
    pub hit: u64,
    /// Answers that are held back now.
    pub held: u64,
}

/// Changes of a volume as one of several replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
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

/// `PUT /v1/tenants/{name}`: what isn't said is the default, not what was before.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
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
    /// Deadline of its reads, for connections from now on, on volumes without one; 0: none. Absent: as configured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_us: Option<u64>,
    /// Answer to a read that would miss the deadline: `wait` or `error`. Absent: as configured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>", extend("enum" = ["wait", "error", null]))]
    pub busy: Option<OnBusy>,
}

/// `PATCH /v1/tenants/{name}`: fields that are absent stay as they are. A change of class drops what only the old class has.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TenantChange {
    /// `latency-critical`, `best-effort` or `fenced`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<String>,
    /// Instead of all that there are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub objectives: Option<Vec<ObjectiveSpec>>,
    /// 1 to 10000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<u32>,
    /// 1 to 1000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slots: Option<u32>,
    /// Requests inside at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jobs_max: Option<u32>,
    /// Bytes inside at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_max: Option<u64>,
    /// Deadline of its reads, for connections from now on, on volumes without one; 0: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_us: Option<u64>,
    /// Answer to a read that would miss the deadline: `wait` or `error`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>", extend("enum" = ["wait", "error", null]))]
    pub busy: Option<OnBusy>,
}

/// An objective.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ObjectiveSpec {
    /// Such as 99.9.
    pub percentile: f64,
    /// The bound.
    pub within_us: u64,
}

/// A sampled request: what was forecast, what was decided, how it ended.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
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
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct TracePart {
    /// The layer.
    pub layer: String,
    /// Its part.
    pub wait_us: u64,
}

/// Every error's body.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Error")]
pub struct ErrorBody {
    /// The error.
    pub error: ErrorText,
}

/// An error, for people.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
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
