//! Flushes of a file that isn't open for direct I/O: one at a time, for all that wait.
//!
//! The kernel reports lost writeback to one flush of an open file. Of two that are under way together, one may get the error while the other
//! ends first and well, although both owe the same data.

use std::mem::take;

/// Requests that wait for a flush of a file, by their slot.
#[derive(Default)]
pub struct Syncs {
    under_way: Vec<usize>,
    waiting: Vec<usize>,
}

impl Syncs {
    /// A request wants a flush that begins now or later. True if it is to begin now, with this slot.
    #[must_use]
    pub fn add(&mut self, slot: usize) -> bool {
        let begins = self.under_way.is_empty();
        if begins { &mut self.under_way } else { &mut self.waiting }.push(slot);
        begins
    }

    /// The flush under way has ended. Returns the requests that it was for, and the slot with which the next one is to begin.
    #[must_use]
    pub fn ended(&mut self) -> (Vec<usize>, Option<usize>) {
        let ended = std::mem::replace(&mut self.under_way, take(&mut self.waiting));
        (ended, self.under_way.first().copied())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flush_is_for_those_that_were_there_when_it_began() {
        let mut syncs = Syncs::default();
        assert_eq!([1, 2, 3].map(|slot| syncs.add(slot)), [true, false, false]);
        assert_eq!(syncs.ended(), (vec![1], Some(2)));
        assert!(!syncs.add(4));
        assert_eq!(syncs.ended(), (vec![2, 3], Some(4)));
        assert_eq!(syncs.ended(), (vec![4], None));
        assert!(syncs.add(5));
    }
}
