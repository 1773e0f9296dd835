//! Extents that were read before anybody asked for them.

use crate::index::Key;
use plimsoll_base::Data;
use std::collections::{BTreeMap, VecDeque};

/// Bytes read ahead and held in memory, at most.
const AHEAD_BYTES_MAX: u64 = 8 << 20;

/// Extents read ahead of sequential streams, in memory only: they go to flash if they are wanted twice (NI-M20).
#[derive(Default)]
pub(crate) struct Ahead {
    extents: BTreeMap<Key, (Data, bool)>,
    order: VecDeque<Key>,
}

impl Ahead {
    /// Holds an extent of `extent_bytes`; the oldest ones make room.
    pub(crate) fn add(&mut self, key: Key, data: Data, extent_bytes: u64) {
        if self.extents.insert(key, (data, false)).is_none() {
            self.order.push_back(key);
        }
        while self.order.len() as u64 * extent_bytes > AHEAD_BYTES_MAX {
            let oldest = self.order.pop_front().expect("not empty");
            self.extents.remove(&oldest);
        }
    }

    /// The extent, and whether it was wanted before.
    pub(crate) fn take(&mut self, key: Key) -> Option<(Data, bool)> {
        let (data, wanted) = self.extents.get_mut(&key)?;
        Some((data.clone(), std::mem::replace(wanted, true)))
    }

    /// It has changed, or is elsewhere now.
    pub(crate) fn remove(&mut self, key: Key) {
        self.extents.remove(&key);
    }

    /// Those for which `mine` holds are gone.
    pub(crate) fn forget(&mut self, mine: impl Fn(&Key) -> bool) {
        self.extents.retain(|k, _| !mine(k));
    }

    /// True if it is held.
    pub(crate) fn has(&self, key: Key) -> bool {
        self.extents.contains_key(&key)
    }
}
