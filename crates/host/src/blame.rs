//! Waiting of requests for those of other processes.
//!
//! ```text
//!  A's request     ├─────────────────────┤
//!  B's      ├──────────┤                       the disk serves B's until that ends, then A's:
//!  slices   ▓▓▓▓ B ▓▓▓▓▓▒▒▒▒▒▒ A ▒▒▒▒▒▒▒▒▒     A waited for B from its arrival to the end of B's
//! ```
//! A disk's time is cut into slices that end with a request each and are its owner's. A request waited for the slices of others
//! between its arrival and its end. For a disk that serves several requests at once that's an approximation.

use std::collections::{BTreeMap, VecDeque};

/// Slices are kept until this long after their end: a request that took longer waited at least so long.
const KEPT_NS: u64 = 30_000_000_000;
/// Slices of a disk that are kept at most.
const SLICES_MAX: usize = 65_536;

/// A process.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Owner {
    /// Its id.
    pub process: u32,
    /// The command of the thread that ordered.
    pub command: String,
}

/// A request that has ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ended {
    /// The process that ordered it.
    pub owner: Owner,
    /// Of which disk.
    pub dev: u32,
    /// Time of the order.
    pub arrived_ns: u64,
    /// Time of its issue to the disk.
    pub issued_ns: u64,
    /// Time of its end.
    pub done_ns: u64,
    /// Its bytes.
    pub bytes: u64,
}

struct Slice {
    owner: Owner,
    start_ns: u64,
    end_ns: u64,
}

/// An owner's use of a disk.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Had {
    /// Requests that ended.
    pub requests: u64,
    /// Their bytes.
    pub bytes: u64,
    /// The disk's time.
    pub disk_ns: u64,
    /// From arrival to end, all together.
    pub took_ns: u64,
    /// Of that, what others' requests took, by their owner.
    pub waited_ns: BTreeMap<Owner, u64>,
}

/// Waits of owners for owners, by disk.
#[derive(Default)]
pub struct Blame {
    slices: BTreeMap<u32, VecDeque<Slice>>,
    had: BTreeMap<(u32, Owner), Had>,
}

impl Blame {
    /// Takes in a request; those of a disk in the order of their end.
    pub fn ended(&mut self, e: Ended) {
        let slices = self.slices.entry(e.dev).or_default();
        let free_ns = slices.back().map_or(0, |s| s.end_ns);
        let start_ns = e.issued_ns.max(free_ns).min(e.done_ns);
        let had = self.had.entry((e.dev, e.owner.clone())).or_default();
        had.requests += 1;
        had.bytes += e.bytes;
        had.disk_ns += e.done_ns - start_ns;
        had.took_ns += e.done_ns.saturating_sub(e.arrived_ns);
        for s in slices.iter().rev().take_while(|s| s.end_ns > e.arrived_ns) {
            if s.owner.process != e.owner.process {
                *had.waited_ns.entry(s.owner.clone()).or_default() += s.end_ns - s.start_ns.max(e.arrived_ns);
            }
        }
        while slices.len() >= SLICES_MAX || slices.front().is_some_and(|s| s.end_ns + KEPT_NS < e.done_ns) {
            slices.pop_front();
        }
        slices.push_back(Slice { owner: e.owner, start_ns, end_ns: e.done_ns.max(free_ns) });
    }

    /// Takes each owner's use since the last call.
    pub fn take(&mut self) -> BTreeMap<(u32, Owner), Had> {
        std::mem::take(&mut self.had)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(process: u32, arrived_ns: u64, issued_ns: u64, done_ns: u64) -> Ended {
        let owner = Owner { process, command: format!("p{process}") };
        Ended { owner, dev: 1, arrived_ns, issued_ns, done_ns, bytes: 4096 }
    }

    #[test]
    fn a_request_waits_for_those_that_end_before_it() {
        let mut blame = Blame::default();
        blame.ended(ended(2, 0, 0, 100));
        blame.ended(ended(2, 0, 0, 200));
        blame.ended(ended(1, 150, 150, 300)); // half of the second of process 2
        blame.ended(ended(1, 210, 210, 350)); // what is one's own isn't waited for
        let had = blame.take();
        let one = &had[&(1, ended(1, 0, 0, 0).owner)];
        assert_eq!((one.requests, one.disk_ns, one.took_ns), (2, 150, 290));
        assert_eq!(one.waited_ns.values().copied().collect::<Vec<_>>(), [50]);
        let two = &had[&(1, ended(2, 0, 0, 0).owner)];
        assert_eq!((two.disk_ns, two.waited_ns.len()), (200, 0));
        assert!(blame.take().is_empty());
    }

    #[test]
    fn idle_time_is_nobodys() {
        let mut blame = Blame::default();
        blame.ended(ended(1, 0, 0, 10));
        blame.ended(ended(2, 1000, 1000, 1010));
        let had = blame.take();
        assert!(had.values().all(|h| h.disk_ns == 10 && h.waited_ns.is_empty()), "{had:?}");
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let mut blame = Blame::default();
        for i in 0..200_000 {
            blame.ended(ended(1, i, i, i + 1));
        }
        assert!(blame.slices[&1].len() <= SLICES_MAX);
        blame.ended(ended(1, 10 * KEPT_NS, 10 * KEPT_NS, 10 * KEPT_NS));
        assert_eq!(blame.slices[&1].len(), 1);
    }
}
