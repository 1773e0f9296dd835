//! Volumes whose dirty extents the slow device refuses, and their next tries.
//!
//! A volume is *halted* while nothing of it can be written.

use crate::index::Key;
use crate::request::RETRY;
use plimsoll_base::{IoError, Time};
use std::collections::BTreeMap;

/// A volume is halted if a batch had this number of its extents refused for the first time, and none written.
const HALTING: usize = 4;

/// The extents of a volume that couldn't be written back.
struct Refusal {
    error: IoError,
    since: Time,
    /// Nothing of it was written since several extents were refused together.
    halted: bool,
    /// The next tries are at this time, from this extent on.
    retry_at: Time,
    next: Key,
}

/// The outcome of a batch for one volume.
#[derive(Default)]
pub(crate) struct Tally {
    pub written: usize,
    /// Refused for the first time.
    pub refused: usize,
    pub error: Option<IoError>,
}

/// Tries that are due of a volume: from `next` on.
pub(crate) struct Due {
    pub slot: u16,
    pub halted: bool,
    pub next: Key,
}

/// See the module's documentation.
#[derive(Default)]
pub(crate) struct Refusals {
    /// By slot.
    volumes: BTreeMap<u16, Refusal>,
}

impl Refusals {
    pub(crate) fn is_empty(&self) -> bool {
        self.volumes.is_empty()
    }

    /// Slots of the volumes, ascending.
    pub(crate) fn slots(&self) -> impl Iterator<Item = u16> {
        self.volumes.keys().copied()
    }

    /// True if only a few extents of a volume are tried.
    pub(crate) fn is_halted(&self, slot: u16) -> bool {
        self.volumes.get(&slot).is_some_and(|r| r.halted)
    }

    /// The slow device's last error of a volume.
    pub(crate) fn error(&self, slot: u16) -> Option<IoError> {
        self.volumes.get(&slot).map(|r| r.error)
    }

    /// Of each volume its slot, the slow device's last error, and the time of the first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u16, IoError, Time)> {
        self.volumes.iter().map(|(slot, r)| (*slot, r.error, r.since))
    }

    /// A batch has ended with this outcome for a volume. `least` is the size of the smallest batch; `is_any_refused` says whether an extent
    /// of the volume is still refused.
    pub(crate) fn tallied(&mut self, now: Time, slot: u16, tally: &Tally, least: usize, is_any_refused: bool) {
        match tally.error {
            Some(error) => {
                let new = Refusal { error, since: now, halted: false, retry_at: now, next: Key::new(slot, 0) };
                let r = self.volumes.entry(slot).or_insert(new);
                (r.error, r.retry_at) = (error, now + RETRY);
                r.halted = tally.written == 0 && (r.halted || tally.refused >= HALTING.min(least));
            }
            None if tally.written > 0 && !is_any_refused => drop(self.volumes.remove(&slot)),
            None if tally.written > 0 => {
                if let Some(r) = self.volumes.get_mut(&slot) {
                    (r.halted, r.retry_at) = (false, now);
                }
            }
            None => {}
        }
    }

    /// Keeps the volumes of these slots only.
    pub(crate) fn retain(&mut self, stays: impl Fn(u16) -> bool) {
        self.volumes.retain(|slot, _| stays(*slot));
    }

    /// Nothing is written back any more.
    pub(crate) fn clear(&mut self) {
        self.volumes.clear();
    }

    /// Volumes with tries that are due.
    pub(crate) fn due(&self, now: Time) -> impl Iterator<Item = Due> {
        let due = self.volumes.iter().filter(move |(_, r)| r.retry_at <= now);
        due.map(|(slot, r)| Due { slot: *slot, halted: r.halted, next: r.next })
    }

    /// An extent is being tried: the next tries begin after it.
    pub(crate) fn probed(&mut self, key: Key) {
        if let Some(r) = self.volumes.get_mut(&key.volume()) {
            r.next = Key::new(key.volume(), key.extent() + 1);
        }
    }
}

/// A part of a change for which there was no room, and which goes through once the journal has this record.
pub(crate) struct Diverted {
    pub needs: u64,
    pub op: usize,
    pub range: (u64, u64),
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLOT: u16 = 3;

    fn tally(written: usize, refused: usize) -> Tally {
        Tally { written, refused, error: (refused > 0).then_some(IoError::NoSpace) }
    }

    #[test]
    fn a_volume_is_halted_until_something_of_it_is_written() {
        let (mut all, now) = (Refusals::default(), Time::from_nanos(5));
        all.tallied(now, SLOT, &tally(0, 2), 8, true);
        assert!(!all.is_halted(SLOT) && all.error(SLOT) == Some(IoError::NoSpace), "two alone say little");
        all.tallied(now, SLOT, &tally(0, 4), 8, true);
        assert!(all.is_halted(SLOT));
        all.tallied(now, SLOT, &tally(0, 1), 8, true);
        assert!(all.is_halted(SLOT), "it stays so");
        all.tallied(now, SLOT, &tally(1, 0), 8, true);
        assert!(!all.is_halted(SLOT) && !all.is_empty(), "others of it are refused");
        all.tallied(now, SLOT, &tally(1, 0), 8, false);
        assert!(all.is_empty());
    }

    #[test]
    fn a_batch_of_a_few_halts_a_volume_too() {
        let mut all = Refusals::default();
        all.tallied(Time::ZERO, SLOT, &tally(0, 2), 2, true);
        assert!(all.is_halted(SLOT));
        all.retain(|slot| slot != SLOT);
        assert!(all.is_empty());
    }

    #[test]
    fn tries_come_every_second_and_go_on_after_the_last() {
        let (mut all, now) = (Refusals::default(), Time::from_nanos(5));
        let due = |all: &Refusals, at| all.due(at).map(|d| (d.slot, d.next)).collect::<Vec<_>>();
        all.tallied(now, SLOT, &tally(0, 1), 8, true);
        assert!(due(&all, now).is_empty());
        assert_eq!(due(&all, now + RETRY), [(SLOT, Key::new(SLOT, 0))]);
        all.probed(Key::new(SLOT, 7));
        all.probed(Key::new(SLOT + 1, 9));
        assert_eq!(due(&all, now + RETRY), [(SLOT, Key::new(SLOT, 8))]);
        all.tallied(now, SLOT, &tally(1, 0), 8, true);
        assert_eq!(due(&all, now).len(), 1, "when something is written the rest is tried at once");
        assert_eq!(all.iter().collect::<Vec<_>>(), [(SLOT, IoError::NoSpace, now)]);
    }
}
