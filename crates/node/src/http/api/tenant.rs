//! Tenants, their objectives and permits.

use super::promise::PromiseStatus;
use super::volume::Traffic;
use plimsoll_base::OnBusy;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A tenant.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct TenantStatus {
    /// Name.
    pub name: String,
    /// `latency-critical`, `best-effort` or `fenced`.
    pub class: String,
    /// Of a latency-critical one.
    pub objectives: Vec<ObjectiveStatus>,
    /// Of a best-effort or latency-critical one.
    pub weight: Option<u32>,
    /// Of a fenced one.
    pub slots: Option<u32>,
    /// True if a layer enforces its class. If not, it's only measured.
    pub enforced: bool,
    /// Explanation of what enforces its promise.
    pub enforcement: String,
    /// True if all objectives were kept in the last minute. Absent without objectives or without requests.
    pub kept: Option<bool>,
    /// Deadline of its reads on volumes without one, where the connection doesn't ask for one either. Absent: none.
    pub promise: Option<PromiseStatus>,
    /// Limits of its requests in flight, and their use.
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
    /// The percentile in the last whole minute or the current one, whichever has more requests; absent without requests.
    pub measured_us: Option<u64>,
    /// Requests measured.
    pub samples: u64,
    /// True if it was kept in the last minute. Absent without requests.
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
    /// True if the objective is kept. Absent without requests.
    pub kept: Option<bool>,
}

/// A tenant's permits, summed over pools.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Permits {
    /// Limit of requests in flight, per pool.
    pub jobs_max: u32,
    /// Limit of bytes in flight, per pool.
    pub bytes_max: u64,
    /// Requests in flight.
    pub jobs: u64,
    /// Bytes in flight.
    pub bytes: u64,
    /// Connections that aren't read from until there's a permit.
    pub waiting: u32,
}

/// `PUT /v1/tenants/{name}`: absent keys take their defaults, not their earlier values.
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
    /// Limit of requests in flight.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jobs_max: Option<u32>,
    /// Limit of bytes in flight.
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
    /// Limit of requests in flight.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jobs_max: Option<u32>,
    /// Limit of bytes in flight.
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
