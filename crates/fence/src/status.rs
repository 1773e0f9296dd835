//! State of a fence for operators.

use plimsoll_base::{Span, VolumeKey};

/// Counts of one slot.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct SlotCounters {
    /// Turns that it had.
    pub turns: u64,
    /// Turns in which a request of its owner was sent, or, where nobody has it, any.
    pub used: u64,
    /// Turns that ended early, and what was credited for them.
    pub early: (u64, Span),
    /// Turns that overran, and by how much.
    pub overruns: (u64, Span),
}

/// One slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SlotStatus {
    /// Owner.
    pub owner: Option<VolumeKey>,
    /// Difference of its next turn from a slot's length, ns.
    pub balance_ns: i64,
    /// Counts since the start.
    pub counters: SlotCounters,
}

/// Counts of one volume.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct VolumeCounters {
    /// Requests that ended.
    pub requests: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Time from when they came to the fence until they ended, summed.
    pub response: Span,
    /// Time that they waited for a slot, summed.
    pub waited: Span,
    /// Time that its batches had the first device in its slots, summed.
    pub held: Span,
    /// Client reads whose deadline passed while they waited.
    pub revoked: u64,
}

/// One volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct VolumeStatus {
    /// Volume.
    pub volume: VolumeKey,
    /// Slots that it has.
    pub slots: u32,
    /// Requests that wait.
    pub waiting: u64,
    /// Counts since the start.
    pub counters: VolumeCounters,
    /// Time that it waited for requests served in time lent from its slots.
    pub imposed: Span,
}

/// Batches on one device, predicted and served.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct BatchCounters {
    /// Batches of slots' owners.
    pub batches: u64,
    /// Requests in them.
    pub requests: u64,
    /// Predicted time.
    pub predicted: Span,
    /// Actual time.
    pub took: Span,
    /// By how much each was wrong, summed.
    pub error: Span,
    /// Batches that were wrong by no more than the paper's bound: 5 ms on a disk, 250 us on flash.
    pub within: u64,
}

/// See the module's documentation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FenceStatus {
    /// A slot's length.
    pub slot: Span,
    /// The slot that runs.
    pub running: u32,
    /// Time left until its end.
    pub running_left: Span,
    /// Every slot.
    pub slots: Vec<SlotStatus>,
    /// Every volume that is known, by key.
    pub volumes: Vec<VolumeStatus>,
    /// Every device, by port.
    pub devices: Vec<BatchCounters>,
    /// True if volumes without slots share the time that owners leave.
    pub hybrid: bool,
    /// Requests of volumes without slots that wait.
    pub waiting_without: u64,
    /// Idle time that volumes without slots could have used of the first device, and what they used of it.
    pub idle: (Span, Span),
}

impl FenceStatus {
    /// Checks that this volume may be removed now.
    ///
    /// # Errors
    /// If the volume owns the running slot; the error is the time until that slot ends. An owner of all slots may be removed at any time.
    pub fn may_remove(&self, volume: VolumeKey) -> Result<(), Span> {
        let is_its = |s: &SlotStatus| s.owner == Some(volume);
        match self.slots.get(self.running as usize).is_some_and(is_its) && !self.slots.iter().all(is_its) {
            true => Err(self.running_left),
            false => Ok(()),
        }
    }
}
