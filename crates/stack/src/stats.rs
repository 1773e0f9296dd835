//! What the stack counts at each node, the same for every layer: who entered, how long requests stayed before they
//! were passed on, how much own I/O a layer made.

use plimsoll_base::{IoHead, LatencyHistogram, Origin, OwnKind, Span, Time};

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
    /// How long what serves (a device, or a layer that models one) took for a request, from its first part's arrival there to
    /// its end: wait and service at the device, which from outside can't be told apart. Empty for all others.
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

impl NodeStats {
    pub(crate) fn entered(&mut self) {
        self.entered += 1;
    }

    pub(crate) fn passed(&mut self, waited: Span, head: &IoHead) {
        if let Origin::Own(kind) = head.origin
            && kind != OwnKind::Piece
        {
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
