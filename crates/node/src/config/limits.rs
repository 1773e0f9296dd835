//! `[limits]`: the resources that clients may take before any of their requests is served.

use super::BadConfig;
use super::text::{ByteSize, SpanText};
use plimsoll_base::Span;
use serde::{Deserialize, Serialize};

/// `[limits]`
#[derive(Clone, PartialEq, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// NBD connections at once.
    pub connections: usize,
    /// The same, of one tenant.
    pub connections_per_tenant: usize,
    /// The same, of one peer: a user of this host, or a host.
    pub connections_per_peer: usize,
    /// NBD clients in their handshake at once, per listener.
    pub handshakes: usize,
    /// The same, of one peer.
    pub handshakes_per_peer: usize,
    /// Idle time after which a client that owes a write's payload is disconnected.
    pub payload_idle: SpanText,
    /// Mean bytes a second below which a client that owes a write's payload is disconnected.
    pub payload_rate: ByteSize,
    /// Time limit of a write's payload, or its time at `payload_rate` where that is longer.
    pub payload_time: SpanText,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            connections: 16384,
            connections_per_tenant: 6144,
            connections_per_peer: 3072,
            handshakes: 1024,
            handshakes_per_peer: 512,
            payload_idle: SpanText(Span::from_secs(30)),
            payload_rate: ByteSize(64 << 10),
            payload_time: SpanText(Span::from_secs(120)),
        }
    }
}

impl Limits {
    /// The problem with it.
    pub(super) fn check(&self) -> Result<(), BadConfig> {
        let counts = [
            ("connections", self.connections),
            ("connections_per_tenant", self.connections_per_tenant),
            ("connections_per_peer", self.connections_per_peer),
            ("handshakes", self.handshakes),
            ("handshakes_per_peer", self.handshakes_per_peer),
        ];
        if let Some((key, _)) = counts.iter().find(|(_, n)| *n == 0) {
            return Err(BadConfig::new(format!("limits.{key} = 0 would keep everybody out: at least 1")));
        }
        // A default above a smaller bound means nothing, what somebody wrote does.
        let defaults = Limits::default();
        let of_peer = [
            ("connections", self.connections, self.connections_per_peer, defaults.connections_per_peer),
            ("handshakes", self.handshakes, self.handshakes_per_peer, defaults.handshakes_per_peer),
        ];
        if let Some((key, all, peer, _)) = of_peer.iter().find(|(_, all, peer, default)| peer > all && peer != default)
        {
            return Err(BadConfig::new(format!(
                "limits.{key}_per_peer = {peer} is more than limits.{key} = {all}: lower it"
            )));
        }
        if self.payload_rate.0 == 0 {
            return Err(BadConfig::new(
                "limits.payload_rate = 0 would let a payload take for ever: at least 1 byte a second",
            ));
        }
        let times = [("payload_idle", self.payload_idle), ("payload_time", self.payload_time)];
        if let Some((key, _)) = times.iter().find(|(_, t)| t.0 < Span::from_millis(10)) {
            return Err(BadConfig::new(format!("limits.{key} is too short for any client: at least 10ms")));
        }
        if self.payload_time.0 < self.payload_idle.0 {
            return Err(BadConfig::new("limits.payload_time is shorter than limits.payload_idle"));
        }
        Ok(())
    }
}
