//! Injected faults.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Fate of a request that an injection hits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum InjectFault {
    /// It fails with an I/O error before anything of it is done.
    Errors,
    /// A read that may be refused is refused with Busy; other requests aren't looked at.
    Busy,
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
    /// `errors`, `busy`, `latency` or `stall`.
    #[schemars(with = "String", extend("enum" = ["errors", "busy", "latency", "stall"]))]
    pub fault: InjectFault,
    /// For `latency`: how much later; a minute at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency_us: Option<u64>,
    /// For `busy`: the wait that is predicted to the client; a minute at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_us: Option<u64>,
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
    #[schemars(with = "String", extend("enum" = ["errors", "busy", "latency", "stall"]))]
    pub fault: InjectFault,
    /// Delay of answers.
    pub latency_us: Option<u64>,
    /// Wait that refused reads are given.
    pub wait_us: Option<u64>,
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
