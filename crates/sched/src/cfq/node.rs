//! Process nodes and the groups they are in.

use crate::cfq::CfqConfig;
use crate::cfq::tolerance::Tolerance;
use crate::tree::OffsetTree;
use plimsoll_base::{IoHead, PriorityClass, Span, TenantId, Time};
use std::collections::VecDeque;

/// Requests that share a queue: those of one tenant to one volume with one priority, reads and writes apart (the kernel's
/// "process", whose writes go through shared asynchronous queues).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct NodeKey {
    pub tenant: TenantId,
    pub class: PriorityClass,
    pub level: u8,
    pub volume: u32,
    pub writes: bool,
}

impl NodeKey {
    pub(crate) fn of(head: &IoHead) -> NodeKey {
        NodeKey {
            tenant: head.tenant,
            class: head.priority.class,
            level: head.priority.level.min(7),
            volume: head.volume.id,
            writes: head.op.is_change(),
        }
    }

    /// True if the device may be kept idle for such a node, whose habits then decide.
    pub(crate) fn may_be_waited_for(&self, slice_idle: Span) -> bool {
        slice_idle > Span::ZERO && !self.writes && self.class != PriorityClass::Idle
    }
}

/// Returns the index of a class among a group's three trees.
pub(crate) fn tree_of(class: PriorityClass) -> usize {
    match class {
        PriorityClass::RealTime => 0,
        PriorityClass::BestEffort => 1,
        PriorityClass::Idle => 2,
    }
}

/// A process node.
pub(crate) struct Node {
    pub key: NodeKey,
    pub group: usize,
    pub pending: OffsetTree,
    pub tolerance: Tolerance,
    /// End of its last dispatched request. The next one is the first behind it, or the first of all.
    pub next_offset: u64,
    /// Dispatched, not yet back.
    pub outside: u32,
    /// Time that it has the device in one turn.
    pub slice: Span,
    pub in_round: bool,
    habits: Habits,
}

/// Observations that decide whether it's worth waiting for a process's next request.
#[derive(Default)]
struct Habits {
    last_back: Option<Time>,
    think_ns: u64,
    thoughts: u32,
    /// One bit for each of the last requests: it was far from the one before.
    far: u32,
    /// Offset of the last arrival.
    last_offset: u64,
}

/// A distance that counts as a seek, in bytes: the kernel's 8·100 sectors.
const FAR_BYTES: u64 = 800 * 512;
/// Limit of far requests among the last 32: a process with more is a seeky one. It is the kernel's share.
const FAR_MOST: u32 = 4;

impl Node {
    pub(crate) fn new(key: NodeKey, group: usize, config: &CfqConfig) -> Node {
        Node {
            key,
            group,
            pending: OffsetTree::new(),
            tolerance: Tolerance::default(),
            next_offset: 0,
            outside: 0,
            slice: slice(config, &key),
            in_round: false,
            habits: Habits::default(),
        }
    }

    /// A request came.
    pub(crate) fn arrived(&mut self, now: Time, offset: u64) {
        let h = &mut self.habits;
        h.far = (h.far << 1) | u32::from(offset.abs_diff(h.last_offset) > FAR_BYTES);
        h.last_offset = offset;
        if self.pending.is_empty()
            && self.outside == 0
            && let Some(back) = h.last_back.take()
        {
            h.thoughts = h.thoughts.saturating_add(1);
            let think = now.since(back).as_nanos().min(1_000_000_000);
            h.think_ns = h.think_ns - h.think_ns / 8 + think / 8;
        }
    }

    /// A request of its came back.
    pub(crate) fn came_back(&mut self, now: Time) {
        self.outside -= 1;
        self.habits.last_back = Some(now);
    }

    /// True if the device is kept idle for this node when it has nothing to send. False for writes, for the idle class, and for a
    /// process that seeks anyway or thinks longer than `slice_idle`.
    pub(crate) fn is_waited_for(&self, slice_idle: Span) -> bool {
        let h = &self.habits;
        let thinks_long = h.thoughts >= 4 && h.think_ns > slice_idle.as_nanos();
        self.key.may_be_waited_for(slice_idle) && h.far.count_ones() <= FAR_MOST && !thinks_long
    }
}

impl Node {
    /// True if more than `FAR_MOST` of the node's recent reads were far from the read before.
    pub(crate) fn is_seeky(&self) -> bool {
        !self.key.writes && self.habits.far.count_ones() > FAR_MOST
    }
}

/// A turn's length: a fifth more or less for each level above or below 4; writes have less.
fn slice(config: &CfqConfig, key: &NodeKey) -> Span {
    let base = if key.writes { config.slice_writes } else { config.slice };
    let fifths = 5 + 4 - u64::from(key.level);
    base.scale(fifths, 5)
}

/// All nodes of a tenant.
pub(crate) struct Group {
    pub tenant: TenantId,
    pub weight: u32,
    /// Device time that it has had, divided by its weight (the kernel's `vdisktime`).
    pub had: u64,
    /// Real time, best effort, idle: nodes with something to send and without the turn, in the order of their turns.
    pub round: [VecDeque<usize>; 3],
    /// Its tenant is no more: it goes with its last request.
    pub has_left: bool,
}

/// A weight of this makes virtual time pass as fast as real time.
const WEIGHT_UNIT: u64 = 100;

impl Group {
    pub(crate) fn new(tenant: TenantId, weight: u32) -> Group {
        Group { tenant, weight, had: 0, round: Default::default(), has_left: false }
    }

    pub(crate) fn waits(&self) -> bool {
        self.round.iter().any(|r| !r.is_empty())
    }

    /// True if a node of a better class waits.
    pub(crate) fn waits_above(&self, class: PriorityClass) -> bool {
        self.round[..tree_of(class)].iter().any(|r| !r.is_empty())
    }

    /// Device time to the group's own.
    pub(crate) fn charge(&self, time: Span) -> u64 {
        time.as_nanos().saturating_mul(WEIGHT_UNIT) / u64::from(self.weight.max(1))
    }

    /// The group's own time to device time.
    pub(crate) fn time_of(&self, charge: u64) -> Span {
        Span::from_nanos(charge.saturating_mul(u64::from(self.weight.max(1))) / WEIGHT_UNIT)
    }
}
