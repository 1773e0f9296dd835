//! Events.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

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
    #[schemars(extend("enum" = ["node", "change", "problem", "connection", "refusal", "tls", "cleaning"]))]
    pub kind: String,
    /// Its severity.
    #[schemars(extend("enum" = ["info", "warning", "error"]))]
    pub severity: String,
    /// The client that caused it, if one did: `uid:0`, an address, `cert:NAME` and an address.
    pub who: Option<String>,
    /// The event in words.
    pub what: String,
}
