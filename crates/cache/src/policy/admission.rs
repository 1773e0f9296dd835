//! Policies of admission: the clean extents that come into the cache. Each policy is a file, with tests of its own.
//!
//! ```text
//!  a client reads or writes an extent that isn't cached ──► admits? ──► yes: it is filled │ no: it stays outside
//! ```
//! A policy is a pure state machine with a bound on its memory. Dirty extents come in without being asked for, and so does what
//! replaces a cached copy, unless it is replaced again before it is in.

mod all;
mod second;

use crate::config::Admission;
use crate::place::Key;
use all::All;
use second::Second;

/// Chooses the extents of a partition that come in.
trait Admit: Send {
    /// Sets the number of extents that fit into the partition uncompressed. The policy may forget extents by that.
    fn set_extents(&mut self, extents: u64);

    /// A client has read or written an extent that isn't cached. True if it is to be cached.
    fn admits(&mut self, key: Key) -> bool;

    /// Bytes of memory.
    fn memory_bytes(&self) -> u64;
}

/// The policies of all partitions of a cache.
pub(crate) struct Admissions {
    admission: Admission,
    partitions: Vec<Box<dyn Admit>>,
}

impl Admissions {
    /// No partition yet.
    pub(crate) fn new(admission: Admission) -> Admissions {
        Admissions { admission, partitions: Vec::new() }
    }

    /// A client has read or written an extent that isn't cached, of a partition into which `extents` fit uncompressed. True if it is to be
    /// cached.
    pub(crate) fn admits(&mut self, partition: u16, extents: u64, key: Key) -> bool {
        while self.partitions.len() <= usize::from(partition) {
            self.partitions.push(match self.admission {
                Admission::All => Box::new(All),
                Admission::Second => Box::new(Second::default()),
            });
        }
        let policy = &mut self.partitions[usize::from(partition)];
        policy.set_extents(extents);
        policy.admits(key)
    }

    /// Into a partition `extents` fit uncompressed from now on: memory of what fits no more is given back.
    pub(crate) fn set_extents(&mut self, partition: u16, extents: u64) {
        if let Some(policy) = self.partitions.get_mut(usize::from(partition)) {
            policy.set_extents(extents);
        }
    }

    /// Bytes of memory.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.partitions.iter().map(|p| p.memory_bytes()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partitions_remember_for_themselves() {
        let mut admissions = Admissions::new(Admission::Second);
        let key = |n| Key::new(0, n);
        assert!(!admissions.admits(1, 100, key(7)));
        assert!(!admissions.admits(0, 100, key(7)), "another partition has seen it");
        // A flood in one partition.
        (1000..10_000).for_each(|n| _ = admissions.admits(0, 100, key(n)));
        assert!(admissions.admits(1, 100, key(7)));
        assert!(!admissions.admits(0, 100, key(7)));
    }

    #[test]
    fn a_partition_that_is_gone_takes_no_memory() {
        let mut admissions = Admissions::new(Admission::Second);
        (0..3).for_each(|n| _ = admissions.admits(n, 100, Key::new(0, 1)));
        let all = admissions.memory_bytes();
        [1, 2, 9].into_iter().for_each(|n| admissions.set_extents(n, 0));
        assert_eq!(admissions.memory_bytes() * 3, all);
        assert!(admissions.admits(0, 100, Key::new(0, 1)), "the others remember");
    }
}
