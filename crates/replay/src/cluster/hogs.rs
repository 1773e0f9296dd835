//! Noise in a closed loop: threads that always have one request under way, at one node or at several in turn.

use crate::cluster::Noise;
use plimsoll_base::{Priority, Rng, Span, TenantId, Time};
use plimsoll_trace::record::Op;

/// A thread of another process. It asks anew when it has been answered.
#[derive(Clone, Debug)]
pub struct Hog {
    /// Nodes: it is at the first for a period, then at the next, and so on.
    pub nodes: Vec<u16>,
    /// Length of its stay at each.
    pub period: Span,
    /// Operation, at random addresses.
    pub op: Op,
    /// Bytes of each request.
    pub len: u64,
    /// Addresses lie below this.
    pub span_bytes: u64,
    /// Tenant.
    pub tenant: TenantId,
    /// Its priority.
    pub priority: Priority,
    /// Draws its addresses.
    pub rng: Rng,
}

impl Hog {
    /// Its next request.
    ///
    /// # Panics
    /// If it is at no node, its period is zero, or a request is longer than the span.
    pub(super) fn next(&mut self, now: Time) -> Noise {
        let at = now.as_nanos() / self.period.as_nanos() % self.nodes.len() as u64;
        let offset = self.rng.below(self.span_bytes / self.len) * self.len;
        let node = self.nodes[at as usize];
        Noise { at: now, node, op: self.op, offset, len: self.len, tenant: self.tenant, priority: self.priority }
    }
}
