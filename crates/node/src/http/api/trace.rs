//! Traced requests.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A sampled request: what was forecast, what was decided, how it ended.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Trace {
    /// Place.
    pub pool: String,
    /// Its number among the pool's traces.
    pub number: u64,
    /// Absent if the volume was deleted since.
    pub volume: Option<String>,
    /// Absent if the tenant was removed since.
    pub tenant: Option<String>,
    /// Operation.
    pub op: String,
    /// First byte within the volume.
    pub offset: u64,
    /// Number.
    pub len_bytes: u64,
    /// Arrival, since the pool's start.
    pub arrived_us: u64,
    /// Its deadline, from its arrival; absent without a promise.
    pub deadline_us: Option<u64>,
    /// Predicted wait.
    pub forecast_wait_us: u64,
    /// And how long its own service would take.
    pub forecast_service_us: u64,
    /// Confidence of the forecast, 0 to 1.
    pub forecast_confidence: f64,
    /// The wait by layer.
    pub forecast_parts: Vec<TracePart>,
    /// `accepted` or `refused`.
    pub decision: String,
    /// Time from its arrival to the first dispatch of a part to a device.
    pub dispatched_us: Option<u64>,
    /// Time from its arrival to its end.
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
