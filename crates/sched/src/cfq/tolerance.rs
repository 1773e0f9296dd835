//! Remaining tolerance of each accepted request: the time that it may still be kept waiting (MittOS §4.2, MT-M12).
//!
//! Requests are grouped by the milliseconds they can still tolerate. When a request comes in front of all of them, no request is moved. One
//! number has their common loss, and a group whose key falls below that number is late.

use crate::tree::Key;
use plimsoll_base::IoId;
use std::collections::BTreeSet;

const GROUP_NS: i64 = 1_000_000;

/// The key of a request without a deadline.
pub(crate) const NO_LIMIT: i64 = i64::MAX;

/// The requests of one process node by what they tolerate.
#[derive(Default)]
pub(crate) struct Tolerance {
    /// Common loss of all requests here since creation, in nanoseconds.
    lost_ns: i64,
    /// Tolerable time plus what was lost when it came, in milliseconds, rounded down; id and offset. Each is removed by itself: many
    /// requests of one group may be late at once.
    groups: BTreeSet<(i64, IoId, u64)>,
}

impl Tolerance {
    /// Adds a request that tolerates `slack_ns` from now on. Gives the key of its group.
    pub(crate) fn add(&mut self, slack_ns: i64, key: Key) -> i64 {
        let group = slack_ns.saturating_add(self.lost_ns).div_euclid(GROUP_NS);
        self.groups.insert((group, key.1, key.0));
        group
    }

    /// Takes a request out.
    pub(crate) fn remove(&mut self, group: i64, key: Key) {
        self.groups.remove(&(group, key.1, key.0));
    }

    /// Something of `ns` came in front of all in here.
    pub(crate) fn lose(&mut self, ns: i64) {
        self.lost_ns = self.lost_ns.saturating_add(ns);
    }

    /// A request whose tolerable time has become negative, if there is one. Its whole group's has: a group is late when
    /// its most tolerant member is.
    pub(crate) fn next_late(&self) -> Option<Key> {
        let &(group, id, offset) = self.groups.first()?;
        (group.saturating_add(1).saturating_mul(GROUP_NS) <= self.lost_ns).then_some((offset, id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_base::IoId;

    const MS: i64 = 1_000_000;

    /// The paper's example: 9 ms are tolerated, two arrivals of 6 ms come in front: 3 ms, then -3 ms.
    #[test]
    fn nine_three_minus_three() {
        let mut t = Tolerance::default();
        let key = (7, IoId(1));
        let group = t.add(9 * MS, key);
        assert_eq!(group, 9);
        t.lose(6 * MS);
        assert_eq!(t.next_late(), None);
        t.lose(6 * MS);
        assert_eq!(t.next_late(), Some(key));
        t.remove(group, key);
        assert_eq!(t.next_late(), None);
    }

    #[test]
    fn what_comes_later_has_not_lost_what_was_lost_before() {
        let mut t = Tolerance::default();
        t.lose(100 * MS);
        t.add(5 * MS, (1, IoId(1)));
        assert_eq!(t.next_late(), None);
        t.lose(6 * MS);
        assert_eq!(t.next_late(), Some((1, IoId(1))));
    }
}
