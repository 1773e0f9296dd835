//! Counters that the stack keeps at each node, the same for every layer: requests that entered, how long they stayed before
//! they were passed on, how much own I/O a layer made.

use crate::layer::NODES_MAX;
use plimsoll_base::{IoHead, LatencyHistogram, Span, Time};
use std::collections::BTreeMap;

/// Counters of one node since its stack started.
#[derive(Clone, Debug, Default)]
pub struct NodeStats {
    /// Requests that entered from above.
    pub entered: u64,
    /// Client requests (whole or in pieces) passed on at once.
    pub passed_at_once: u64,
    /// Time in this layer of the client requests that were not passed on at once. Together with `passed_at_once` this
    /// is the layer's wait distribution.
    pub waits: LatencyHistogram,
    /// Time that a device, or a layer that models one, took for a request: from its first part's arrival there to its end. It
    /// includes wait and service at the device, which can't be separated from outside. Empty for all other layers.
    pub service: LatencyHistogram,
    /// Own requests sent below.
    pub own_ios: u64,
    /// Bytes of them.
    pub own_bytes: u64,
    /// Requests refused at the top in whose forecast this layer had a part.
    pub refused_with_part: u64,
    /// The sum of those parts.
    pub refused_wait: Span,
    /// Accepted requests that this layer gave back Busy because a promise broke later.
    pub revoked: u64,
}

/// Distribution of one account's time and requests over the nodes.
#[derive(Clone, Debug, Default)]
pub struct AccountStats {
    /// By node: time that requests, or their parts, spent in it before they were passed on; summed.
    pub waited: [Span; NODES_MAX],
    /// By node, then by device from [`NODES_MAX`] on: requests inside that came there last, or whose last part did.
    pub inside: BTreeMap<usize, usize>,
    /// Oldest request in flight: its arrival and its place, numbered in the same way.
    pub oldest: Option<(Time, usize)>,
}

impl NodeStats {
    pub(crate) fn entered(&mut self) {
        self.entered += 1;
    }

    pub(crate) fn passed(&mut self, waited: Span, head: &IoHead) {
        if !head.is_of_client() {
            self.own_ios += 1;
            self.own_bytes += head.len;
        } else if waited == Span::ZERO {
            self.passed_at_once += 1;
        } else {
            self.waits.record(waited);
        }
    }

    pub(crate) fn served(&mut self, now: Time, dispatched_at: Time) {
        if dispatched_at.is_set() {
            self.service.record(now.since(dispatched_at));
        }
    }

    pub(crate) fn refused_part(&mut self, part: Span) {
        if part > Span::ZERO {
            self.refused_with_part += 1;
            self.refused_wait += part;
        }
    }

    pub(crate) fn revoked(&mut self) {
        self.revoked += 1;
    }
}
