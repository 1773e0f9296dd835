//! Copies of writes in records that failed: all of such a record may be on the device, though nothing of it was acknowledged.
//!
//! A recovery that finds such a copy takes it for logged. So it must be killed; but a kill says of everything older that it is invalid,
//! and the range may have an older copy that is durable, when nothing newer is yet. So the kill is recorded only when the write, which is
//! logged anew elsewhere or goes to its place, is durable there.

use plimsoll_base::{IoId, VolumeKey};
use std::collections::BTreeMap;

/// The stale copies of which no kill is wanted yet.
#[derive(Default)]
pub(crate) struct StaleCopies {
    /// Of writes under way: the number from which on records are newer than the copy.
    under_way: BTreeMap<IoId, u64>,
    /// Of writes that ended otherwise: by where they begin, their length, volume, and that number.
    left: BTreeMap<u64, (u64, VolumeKey, u64)>,
}

impl StaleCopies {
    /// A record with write `id` failed; what is logged from `sequence` on is newer.
    pub fn failed(&mut self, id: IoId, sequence: u64) {
        self.under_way.insert(id, sequence);
    }

    /// Write `id` is logged or in its place now. Returns the number of its stale copy's kill, if it has one.
    pub fn replaced(&mut self, id: IoId) -> Option<u64> {
        self.under_way.remove(&id)
    }

    /// Write `id` ended without being replaced.
    pub fn ended(&mut self, id: IoId, home: u64, len: u64, key: VolumeKey) {
        if let Some(sequence) = self.under_way.remove(&id) {
            let (before, ..) = self.left.get(&home).copied().unwrap_or((0, key, 0));
            self.left.insert(home, (len.max(before), key, sequence));
        }
    }

    /// Something newer is in place of `from..to`: true if a copy of a write that ended otherwise is there. Copies that lie in the range
    /// are forgotten, since their kill is recorded.
    pub fn superseded(&mut self, from: u64, to: u64) -> bool {
        if self.left.is_empty() {
            return false;
        }
        let any = self.left.range(..to).any(|(home, (len, ..))| home + len > from);
        self.left.retain(|home, (len, ..)| *home < from || home + *len > to);
        any
    }

    /// An image that was begun at `sequence` is in force: it says that the records of failed logs don't count.
    pub fn discharged(&mut self, sequence: u64) {
        self.left.retain(|_, (_, _, since)| *since >= sequence);
        self.under_way.retain(|_, since| *since >= sequence);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: VolumeKey = VolumeKey { id: 1, generation: 1 };

    #[test]
    fn a_copy_is_known_until_it_is_killed_or_an_image_leaves_it_out() {
        let mut s = StaleCopies::default();
        s.failed(IoId(1), 5);
        s.failed(IoId(1), 9);
        assert_eq!((s.replaced(IoId(1)), s.replaced(IoId(1))), (Some(9), None), "of the last record that failed");
        s.failed(IoId(2), 10);
        s.ended(IoId(2), 1000, 24, KEY);
        s.ended(IoId(3), 2000, 24, KEY);
        assert!(!s.superseded(2000, 2024), "it was in no failed record");
        assert!(s.superseded(1008, 1016) && s.superseded(1000, 1024) && !s.superseded(1000, 1024));
        s.failed(IoId(4), 20);
        s.ended(IoId(4), 0, 8, KEY);
        s.failed(IoId(5), 21);
        s.discharged(21);
        assert!(!s.superseded(0, 8) && s.replaced(IoId(5)) == Some(21));
    }
}
