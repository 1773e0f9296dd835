//! The node: its health, its status, orders to all of it.

use super::inject::InjectStatus;
use super::pool::PoolStatus;
use super::tenant::TenantStatus;
use super::volume::VolumeStatus;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `GET /healthz`
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Health {
    /// True if there are no problems.
    pub healthy: bool,
    /// Problems: what is wrong, where, and what to do.
    pub problems: Vec<String>,
}

/// `POST /v1/reload`
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct Reloaded {
    /// Sections that differed, and took effect.
    pub changed: Vec<String>,
    /// Sections that differ, and take effect at the next start.
    pub restart: Vec<String>,
    /// Pools that are served though the file hasn't them any more. An older node doesn't say.
    #[serde(default)]
    pub still_served: Vec<String>,
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
    /// True if it is stopping. Then it refuses new clients and changes, and finishes the requests in flight.
    pub ending: bool,
    /// As of `/healthz`.
    pub healthy: bool,
    /// As of `/healthz`.
    pub problems: Vec<String>,
    /// Facts that somebody should look at, of a node that serves: an end that wasn't orderly.
    #[serde(default)]
    pub notes: Vec<String>,
    /// Address to listen on.
    pub listens: Listens,
    /// Pauses of the host, if a pool's device is modelled in real time.
    pub host_pauses: Option<HostPauses>,
}

/// Pauses of the host of 250 us and more, since the start.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct HostPauses {
    /// Number.
    pub count: u64,
    /// All together.
    pub total_us: u64,
    /// The longest.
    pub max_us: u64,
}

/// Addresses of a node; absent if it doesn't listen there.
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
