//! Policies: the WEU that leaves when a partition is full, and the clean extents that come in ([`admission`]). Each policy is a file, with
//! tests of its own.
//!
//! ```text
//!  a WEU is full ──► enters ──► used … used ──► victim ──► removed
//! ```
//! A policy is a pure state machine. One of eviction sees WEUs by number, and takes a [`list::Node`] for each. So an event allocates nothing,
//! and memory doesn't grow with extents.

pub(crate) mod admission;
mod list;
mod live;
mod lru;
mod s3fifo;
mod sieve;
mod uses;

#[cfg(test)]
mod naive;

use crate::config::Eviction;
use list::Nodes;
use live::Live;
use lru::Lru;
use s3fifo::S3Fifo;
use sieve::Sieve;
use uses::Uses;

/// The order in which full WEUs of a partition leave.
trait Order: Send {
    /// A WEU is full.
    fn enter(&mut self, nodes: &mut Nodes, weu: u32);

    /// An extent of a WEU that has entered was used.
    fn used(&mut self, nodes: &mut Nodes, weu: u32);

    /// The WEU that is to leave next; `None` if none has entered. It must be removed before the next is asked for.
    fn victim(&mut self, nodes: &mut Nodes, uses: &mut Uses) -> Option<u32>;

    /// A WEU leaves, whether it is the next or not.
    fn remove(&mut self, nodes: &mut Nodes, weu: u32);

    /// The WEUs that have entered, for checks.
    ///
    /// # Errors
    /// The rule that is broken.
    fn members(&self, nodes: &Nodes) -> Result<Vec<u32>, String>;
}

/// The orders of all partitions of a cache.
pub(crate) struct Orders {
    eviction: Eviction,
    weus: u32,
    nodes: Nodes,
    uses: Uses,
    partitions: Vec<Box<dyn Order>>,
}

impl Orders {
    /// No partition yet, of `weus` WEUs.
    pub(crate) fn new(weus: u32, eviction: Eviction) -> Orders {
        let (nodes, uses) = (Nodes::new(weus), Uses::new(weus, eviction.reinserts()));
        Orders { eviction, weus, nodes, uses, partitions: Vec::new() }
    }

    /// The policy.
    pub(crate) fn eviction(&self) -> Eviction {
        self.eviction
    }

    /// Sets the number of WEUs, none of which has entered or holds anything.
    pub(crate) fn set_weus(&mut self, weus: u32) {
        let partitions = self.partitions.len();
        *self = Orders::new(weus, self.eviction);
        (0..partitions).for_each(|_| self.add_partition());
    }

    /// Adds a partition.
    pub(crate) fn add_partition(&mut self) {
        self.partitions.push(match self.eviction {
            Eviction::Lru => Box::new(Lru::default()),
            Eviction::Live => Box::new(Live::default()),
            Eviction::Sieve => Box::new(Sieve::default()),
            Eviction::S3Fifo => Box::new(S3Fifo::new(self.weus)),
        });
    }

    /// A WEU of a partition is full.
    pub(crate) fn enter(&mut self, partition: u16, weu: u32) {
        self.partitions[usize::from(partition)].enter(&mut self.nodes, weu);
    }

    /// The extent in a slot of a WEU was used; the WEU has entered if it `is_full`.
    pub(crate) fn used(&mut self, partition: u16, weu: u32, slot: u32, is_full: bool) {
        self.uses.mark(weu, slot);
        if is_full {
            self.partitions[usize::from(partition)].used(&mut self.nodes, weu);
        }
    }

    /// True if the extent in a slot of a WEU that leaves is to be put in again.
    pub(crate) fn must_reinsert(&self, weu: u32, slot: u32) -> bool {
        match self.eviction {
            Eviction::Lru => false,
            Eviction::Live => live::must_reinsert(&self.uses, weu, slot),
            Eviction::Sieve | Eviction::S3Fifo => self.uses.is_used(weu, slot),
        }
    }

    /// One more extent is in a WEU.
    pub(crate) fn added(&mut self, weu: u32) {
        self.uses.add(weu, 1);
    }

    /// Extents were found in a WEU after a restart.
    pub(crate) fn found(&mut self, weu: u32, extents: u32) {
        self.uses.add(weu, extents);
    }

    /// An extent is no longer in a WEU; the slot is a duplicate's bytes if it `is_dup`.
    pub(crate) fn left(&mut self, weu: u32, slot: u32, is_dup: bool) {
        self.uses.leave(weu, slot, is_dup);
    }

    /// Nothing is in a WEU any more.
    pub(crate) fn emptied(&mut self, weu: u32) {
        self.uses.empty(weu);
    }

    /// Extents that live in a WEU, duplicates of what is there included.
    pub(crate) fn live(&self, weu: u32) -> u32 {
        self.uses.live(weu)
    }

    /// The WEU of a partition that is to leave next; `None` if none is full. It must be removed before the next is asked for.
    pub(crate) fn victim(&mut self, partition: u16) -> Option<u32> {
        self.partitions[usize::from(partition)].victim(&mut self.nodes, &mut self.uses)
    }

    /// A full WEU of a partition leaves.
    pub(crate) fn remove(&mut self, partition: u16, weu: u32) {
        self.partitions[usize::from(partition)].remove(&mut self.nodes, weu);
    }

    /// Bytes of memory.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.nodes.memory_bytes() + self.uses.memory_bytes()
    }

    /// The full WEUs of a partition, for checks.
    ///
    /// # Errors
    /// The rule that is broken.
    pub(crate) fn members(&self, partition: u16) -> Result<Vec<u32>, String> {
        self.partitions[usize::from(partition)].members(&self.nodes)
    }
}
