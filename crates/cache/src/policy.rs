//! Policies: the WEU that leaves when a partition is full. Each policy is a file, with tests of its own.
//!
//! ```text
//!  a WEU is full ──► enters ──► used … used ──► victim ──► removed
//! ```
//! A policy is a pure state machine. It sees WEUs by number, and takes a [`list::Node`] for each. So an event allocates nothing, and memory
//! doesn't grow with extents.

mod list;
mod lru;

use list::Nodes;
use lru::Lru;

/// The order in which full WEUs of a partition leave.
trait Order: Send {
    /// A WEU is full.
    fn enter(&mut self, nodes: &mut Nodes, weu: u32);

    /// An extent of a WEU that has entered was used.
    fn used(&mut self, nodes: &mut Nodes, weu: u32);

    /// The WEU that is to leave next; `None` if none has entered. It stays until it is removed.
    fn victim(&mut self, nodes: &mut Nodes) -> Option<u32>;

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
    nodes: Nodes,
    partitions: Vec<Box<dyn Order>>,
}

impl Orders {
    /// No partition yet, of `weus` WEUs.
    pub(crate) fn new(weus: u32) -> Orders {
        Orders { nodes: Nodes::new(weus), partitions: Vec::new() }
    }

    /// Sets the number of WEUs, none of which has entered.
    pub(crate) fn set_weus(&mut self, weus: u32) {
        self.nodes = Nodes::new(weus);
    }

    /// Adds a partition.
    pub(crate) fn add_partition(&mut self) {
        self.partitions.push(Box::new(Lru::default()));
    }

    /// A WEU of a partition is full.
    pub(crate) fn enter(&mut self, partition: u16, weu: u32) {
        self.partitions[usize::from(partition)].enter(&mut self.nodes, weu);
    }

    /// An extent of a full WEU was used.
    pub(crate) fn used(&mut self, partition: u16, weu: u32) {
        self.partitions[usize::from(partition)].used(&mut self.nodes, weu);
    }

    /// The WEU of a partition that is to leave next; `None` if none is full.
    pub(crate) fn victim(&mut self, partition: u16) -> Option<u32> {
        self.partitions[usize::from(partition)].victim(&mut self.nodes)
    }

    /// A full WEU of a partition leaves.
    pub(crate) fn remove(&mut self, partition: u16, weu: u32) {
        self.partitions[usize::from(partition)].remove(&mut self.nodes, weu);
    }

    /// Bytes of memory.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.nodes.memory_bytes()
    }

    /// The full WEUs of a partition, for checks.
    ///
    /// # Errors
    /// The rule that is broken.
    pub(crate) fn members(&self, partition: u16) -> Result<Vec<u32>, String> {
        self.partitions[usize::from(partition)].members(&self.nodes)
    }
}
