//! Work: what a layer wants computed beside the pool's thread: fingerprints, compression, checksums.
//!
//! A layer orders it with [`crate::Actions::work`]; the engine runs it (live: on a small pool of threads; in simulation: in
//! no real time, answered after its modelled cost) and tells [`crate::Layer::worked`]. The answer's *words* are what a layer
//! may decide by: a tape keeps them, not the bytes.

use plimsoll_base::{Data, Priority, Span, TenantId};
use std::fmt;

/// How many words an answer has.
pub const WORDS: usize = 4;

/// A pure function over bytes that it owns.
pub trait Task: Send {
    /// What it does, for metrics: `fingerprint`, `decompress`.
    fn name(&self) -> &'static str;

    /// How long one core is modelled to take for it. Live nobody asks.
    fn cost(&self) -> Span;

    /// Does it. Runs on any thread; must neither wait nor panic on any bytes.
    fn run(self: Box<Self>) -> Answer;
}

/// A task on its way to a worker. Each is answered exactly once, in any order, and can't be withdrawn.
pub struct Work {
    /// The layer's own; no two of its outstanding ones may share it.
    pub tag: u64,
    /// For whom it is done: whose core it takes.
    pub tenant: TenantId,
    /// That of the request that waits for it; [`Priority`]'s idle class for what nobody waits for.
    pub priority: Priority,
    /// What is to be done.
    pub task: Box<dyn Task>,
}

impl Work {
    /// Carries it out on the calling thread.
    pub fn run(self) -> Worked {
        Worked { tag: self.tag, tenant: self.tenant, answer: self.task.run() }
    }
}

impl fmt::Debug for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:#x} of {:?}", self.task.name(), self.tag, self.tenant)
    }
}

/// What a task found.
#[derive(Clone, Debug, Default)]
pub struct Answer {
    /// What the layer decides by: a fingerprint, a length, whether a checksum was right.
    pub words: [u64; WORDS],
    /// What the layer only passes on. Absent when a tape is replayed.
    pub data: Data,
}

/// Work that is done.
#[derive(Clone, Debug)]
pub struct Worked {
    /// As ordered.
    pub tag: u64,
    /// As ordered.
    pub tenant: TenantId,
    /// What was found.
    pub answer: Answer,
}
