//! Checks the first rule of overlaps (see "Overlaps" in [`crate::layer`]): two changes in flight at one target never overlap.
//!
//! It remembers every change at every target, so it is for tests: debug builds and simulated pools.

use plimsoll_base::{IoHead, IoId, VolumeKey};
use std::collections::BTreeMap;

/// A target: a node and its face, or a device.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Place {
    Node(usize, u8),
    Device(usize),
}

/// Start of a change: the target, the volume whose address it is (none below the map), the offset.
type Begin = (Place, VolumeKey, u64);

/// Changes in flight at each target.
#[derive(Default)]
pub(crate) struct Overlaps {
    changes: BTreeMap<Begin, IoHead>,
    begins: BTreeMap<(Place, IoId), Begin>,
}

impl Overlaps {
    /// A request is sent to `place`; `by_volume` if its addresses are a volume's there.
    ///
    /// # Panics
    /// If it is a change and overlaps another one that is in flight there.
    pub fn sent(&mut self, place: Place, by_volume: bool, head: &IoHead, name: &str) {
        if !head.op.is_change() || head.len == 0 {
            return;
        }
        let space = if by_volume { head.volume } else { VolumeKey::POOL };
        let before = self.changes.range((place, space, 0)..(place, space, head.end())).next_back();
        if let Some((_, other)) = before.filter(|(_, other)| other.end() > head.offset) {
            panic!(
                "contract: a change was sent to {name} while one that overlaps it is in flight there: {head:?} was sent, {other:?} is in \
                 flight"
            );
        }
        self.changes.insert((place, space, head.offset), *head);
        self.begins.insert((place, head.id), (place, space, head.offset));
    }

    /// A request that was sent to `place` has ended.
    pub fn ended(&mut self, place: Place, head: &IoHead) {
        if let Some(begin) = self.begins.remove(&(place, head.id)) {
            self.changes.remove(&begin);
        }
    }
}
