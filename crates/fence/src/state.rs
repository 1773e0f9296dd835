//! State of requests below the layer, of volumes, and of devices.

use crate::idle::Toll;
use crate::queue::Lane;
use crate::status::{BatchCounters, VolumeCounters};
use plimsoll_base::{IoFlags, IoId, Span, Time, VolumeKey};

/// For whom a request was sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Role {
    /// The slot's owner.
    Owner,
    /// Somebody without slots, or the pool itself, in time that nobody else used.
    Lent,
    /// It isn't held by slots.
    Passed,
}

/// A request below.
pub(crate) struct Sent {
    pub id: IoId,
    /// As it came.
    pub tag: u64,
    pub flags: IoFlags,
    pub face: u8,
    pub role: Role,
    pub volume: VolumeKey,
    pub since: Time,
    /// Delay of the answer after the end of the request, at most until `due_at`.
    pub pad: Span,
    pub due_at: Time,
    /// Number of the device's buffered writes that a flush covers.
    pub covers: u64,
}

#[derive(Default)]
pub(crate) struct Volume {
    pub lanes: Vec<Lane>,
    pub counters: VolumeCounters,
    pub toll: Toll,
}

impl Volume {
    pub fn waiting(&self) -> usize {
        self.lanes.iter().map(Lane::len).sum()
    }
}

/// A device, as far as it is held by slots.
#[derive(Clone, Copy)]
pub(crate) struct Device {
    pub owners: u32,
    pub lent: u32,
    /// End of the last request that was sent.
    pub last_end: u64,
    /// The batch there is began then and is predicted to end then.
    pub began_at: Time,
    pub due_at: Time,
    /// By what is known of the device it would take so long.
    pub expected: Span,
    /// Requests were sent in this turn.
    pub used: bool,
    /// The last ones were those of the turn's owner: the arm is at its place.
    pub at_home: bool,
    /// Since when the owner has waited for a request that was lent time.
    pub blocked_since: Time,
    pub counters: BatchCounters,
    /// Writes that ended without being durable, and those of them that a flush has covered since. Writes from before the start
    /// count as one, as there may be some.
    pub buffered: u64,
    pub flushed: u64,
    /// Ratio of the predicted time of requests together, in a batch by address, to the sum of their own times; in 65536ths.
    pub together: u64,
}

impl Device {
    pub const NEW: Device = Device {
        owners: 0,
        lent: 0,
        last_end: 0,
        began_at: Time::ZERO,
        due_at: Time::ZERO,
        expected: Span::ZERO,
        used: false,
        at_home: false,
        blocked_since: Time::NEVER,
        buffered: 1,
        flushed: 0,
        together: 1 << 16,
        counters: BatchCounters {
            batches: 0,
            requests: 0,
            predicted: Span::ZERO,
            took: Span::ZERO,
            error: Span::ZERO,
            within: 0,
        },
    };

    pub fn busy(&self) -> u32 {
        self.owners + self.lent
    }

    /// A batch is predicted to take `predicted` though its requests would take `alone` one by one.
    pub fn batched(&mut self, predicted: Span, alone: Span) {
        if alone > Span::ZERO {
            let share = (u128::from(predicted.as_nanos()) << 16) / u128::from(alone.as_nanos());
            let share = (share as u64).min(1 << 16);
            self.together = self.together - (self.together >> 3) + (share >> 3);
        }
    }

    /// Returns the time in batches of requests that take `alone` one by one.
    pub fn in_batches(&self, alone: Span) -> Span {
        alone.scale(self.together, 1 << 16)
    }
}
