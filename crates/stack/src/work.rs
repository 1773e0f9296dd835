//! Work: what a layer wants computed beside the pool's thread: fingerprints, compression, checksums.
//!
//! A layer orders work with [`crate::Actions::work`]. The engine runs it and reports the end by [`crate::Layer::worked`]. Live,
//! a small pool of threads runs it; in simulation it is answered after its modelled cost. A layer may decide by the answer's
//! *words* only: a tape keeps them, not the bytes.

use plimsoll_base::{Data, Priority, Span, TenantId};
use std::fmt;

/// Number of words in an answer.
pub const WORDS: usize = 4;

/// A pure function over bytes that it owns.
pub trait Task: Send {
    /// Returns the task's name for metrics: `fingerprint`, `decompress`.
    fn name(&self) -> &'static str;

    /// Returns the modelled time of the task on one core. Only the simulator asks for it.
    fn cost(&self) -> Span;

    /// Performs the task, on any thread. It must neither wait nor panic on any bytes.
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
    /// Task to be done.
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

/// Result of a task.
#[derive(Clone, Debug, Default)]
pub struct Answer {
    /// Words that the layer decides by: a fingerprint, a length, whether a checksum was right.
    pub words: [u64; WORDS],
    /// Data that the layer only passes on. Absent when a tape is replayed.
    pub data: Data,
}

/// Work that is done.
#[derive(Clone, Debug)]
pub struct Worked {
    /// As ordered.
    pub tag: u64,
    /// As ordered.
    pub tenant: TenantId,
    /// Result.
    pub answer: Answer,
}
