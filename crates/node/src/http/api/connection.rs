//! Connected clients.

use super::promise::PromiseStatus;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `GET /v1/connections`
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct Connections {
    /// Some of them.
    pub connections: Vec<ConnectionStatus>,
    /// Number of all.
    pub total: u64,
}

/// `DELETE /v1/connections`
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct Disconnected {
    /// Connections from which no more is taken. Each closes when its requests are answered.
    pub closed: u64,
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
    /// True if it understands Busy, and its reads may ask for deadlines of their own.
    pub negotiated: bool,
    /// Requests in flight.
    pub in_flight: u32,
    /// Time that its next request has waited for a permit; absent if none does.
    pub permit_wait_us: Option<u64>,
    /// Since it was attached.
    pub connected_us: u64,
}
