//! Amounts of requests and bytes: a tenant's bound, and the permits of some requests together.

use crate::planted::{self, Mistake};
use plimsoll_stack::Terms;

/// Requests and bytes of each connection that don't count against its tenant's bound once they have left the stack. A
/// depth of 16 and 64 KiB suit a database beside backups; a connection's receive buffer is larger.
pub const OWN: Held = Held { jobs: 16, bytes: 64 << 10 };

/// [`OWN`], unless a planted mistake takes it away.
pub(super) fn own() -> Held {
    if planted::is(Mistake::NothingOwn) { Held::NONE } else { OWN }
}

/// A tenant's bound.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PermitLimits {
    /// Limit of requests in flight, at least 1.
    pub jobs_max: u32,
    /// Limit of bytes in flight. A single larger request is admitted alone.
    pub bytes_max: u64,
}

impl Default for PermitLimits {
    /// Four connections of depth 256, and four of the largest NBD requests.
    fn default() -> PermitLimits {
        PermitLimits { jobs_max: Terms::IN_FLIGHT_DEFAULT, bytes_max: 128 << 20 }
    }
}

/// Permits of some requests together.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Held {
    /// Requests.
    pub jobs: u32,
    /// Their bytes.
    pub bytes: u64,
}

impl Held {
    /// No request.
    pub(super) const NONE: Held = Held { jobs: 0, bytes: 0 };

    /// The permit of one request of `bytes`.
    pub const fn one(bytes: u64) -> Held {
        Held { jobs: 1, bytes }
    }

    /// Adds another's.
    pub fn add(&mut self, other: Held) {
        self.jobs += other.jobs;
        self.bytes += other.bytes;
    }

    /// Both together.
    pub(super) fn plus(mut self, other: Held) -> Held {
        self.add(other);
        self
    }

    /// Takes another's away.
    ///
    /// # Panics
    /// If it isn't there.
    pub(super) fn subtract(&mut self, other: Held) {
        self.jobs = self.jobs.checked_sub(other.jobs).expect("a permit was given back twice");
        self.bytes = self.bytes.checked_sub(other.bytes).expect("a permit was given back twice");
    }

    /// The excess over `other`, by requests and bytes.
    pub(super) const fn beyond(self, other: Held) -> Held {
        Held { jobs: self.jobs.saturating_sub(other.jobs), bytes: self.bytes.saturating_sub(other.bytes) }
    }
}
