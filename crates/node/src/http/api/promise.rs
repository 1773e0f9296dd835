//! Promises, and what became of them.

use plimsoll_base::OnBusy;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A deadline that reads have unless they ask for another.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PromiseStatus {
    /// Reads are done within it, unless they were forecast to be late. An automatic one changes by itself.
    pub deadline_us: u64,
    /// Its source: `connection` (the export's name), `volume`, `tenant`, or `automatic`.
    #[schemars(extend("enum" = ["connection", "volume", "tenant", "automatic"]))]
    pub from: String,
    /// Answer to a read that is forecast to miss the deadline: `wait` (it is served late) or `error` (it is refused at once). A client
    /// that negotiated promises gets Busy in any case.
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
