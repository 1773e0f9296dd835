//! Headers of dirty extents that the journal has recorded, and that aren't on the device.

use super::{Recovery, World};
use crate::config::Planted;
use crate::format::ChunkHeader;
use plimsoll_base::VolumeKey;
use std::collections::BTreeSet;

/// Volumes that are named one by one: of more the journal says only that there are some.
const MISSED_MAX: usize = 16;

impl Recovery {
    /// The newest data of a volume may be missing.
    pub(super) fn miss(&mut self, key: VolumeKey) {
        self.missed.insert(key);
        if self.missed.len() > MISSED_MAX {
            self.missed = BTreeSet::from([VolumeKey::POOL]);
        }
    }

    /// True if a power loss may have torn a chunk. Not if the journal says that it was durable.
    pub(super) fn is_doubtful(&self, h: &ChunkHeader) -> bool {
        let held = self.held[h.weu as usize];
        let said = held.0 == h.sequence && h.first_slot + h.entries.len() as u32 <= held.1;
        h.dirty && h.chunk >= self.durable && (!said || self.planted(Planted::TornIfCorrupt))
    }

    /// True if headers of dirty extents are missing although the journal says that they are there.
    pub(super) fn lacks_headers(&self, weu: u32, found: &[ChunkHeader]) -> bool {
        let (held, held_slots) = self.held[weu as usize];
        let sequence = found.first().map_or(0, |h| h.sequence);
        let slots = found.last().map_or(0, |h| h.first_slot + h.entries.len() as u32);
        held > 0 && held >= self.least[weu as usize] && (sequence != held || slots < held_slots)
    }

    /// Counts headers that the journal says are there, and aren't among those that were found. The extents that a missing header
    /// named are permanently lost. `hides`: further headers may be in blocks that could not be read.
    pub(super) fn miss_headers(&mut self, weu: u32, found: &[ChunkHeader], hides: bool, world: &World) {
        let (may_miss, mut dirty) = (world.volumes.may_be_behind(), self.lacks_headers(weu, found));
        // The journal of a version 2 device does not say which headers there are.
        dirty |= self.old && hides && found.first().is_none_or(|h| h.dirty);
        if dirty && may_miss {
            match world.volumes.known() {
                None => self.miss(VolumeKey::POOL),
                Some(known) => known.iter().filter(|(_, behind)| **behind).for_each(|(key, _)| self.miss(*key)),
            }
        }
        let sequence = found.first().map_or(0, |h| h.sequence);
        let counts = |s: u64| s > 0 && s >= self.least[weu as usize];
        let held = self.held[weu as usize].0;
        let confirmed = self.confirmed[weu as usize];
        let clean = counts(confirmed) && sequence != confirmed;
        self.report.damaged += u32::from(dirty || clean);
        self.report.damaged_dirty += u32::from(dirty && may_miss);
        // Counted once: what is missing is in `missed` from now on. What is left of it counts.
        if (dirty || clean) && found.is_empty() {
            self.least[weu as usize] = self.least[weu as usize].max(held.max(confirmed) + 1);
        }
        if found.is_empty() {
            self.seal_whole(weu);
        }
    }

    /// True if missing headers of a volume, found at this start or an earlier one, are still to be reported. Not once the volume was
    /// given up or deleted, or the slow device has all that is left of it.
    pub(super) fn is_missed(&self, key: &VolumeKey, world: &World) -> bool {
        if *key == VolumeKey::POOL {
            return world.volumes.may_be_behind();
        }
        let behind = world.volumes.known().is_none_or(|known| known.get(key) == Some(&true));
        behind && !self.is_gone(key, world) && !self.is_given_up(key, world)
    }
}
