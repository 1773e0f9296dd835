//! What is clean counts for a start only once the journal says so of its WEU: that WEU is *confirmed*, some time after it was written,
//! when both devices have for good what they should. Until then it is on trial: a change of something in it kills that copy in memory
//! alone, since a start doesn't believe a header of clean extents that it wasn't told of. So what is written again and again waits for
//! no journal, and the slow device is flushed once for many WEUs.
//!
//! ```text
//!  written ──► old enough, with others ──► slow device flushed, for volumes changed since ──► fast device flushed
//!     ──► journal: which slots are dead, and that the rest counts ──► confirmed
//! ```
//! Nitro rebuilds its index from headers (NI-M19) and doesn't say how one is kept from being newer than the slow device.

use crate::config::Planted;
use crate::format::Record;
use crate::index::{Key, Weu};
use crate::layer::{Cache, SLOW};
use crate::request::Pending;
use plimsoll_base::{Data, Op, OwnKind, TenantId, Time};
use plimsoll_stack::Actions;
use std::collections::{BTreeMap, BTreeSet};

/// Of all WEUs one in so many (and at most so many) stays on trial when others are confirmed, which happens when there are half as many
/// of those. All of them are cold after a power loss.
const TRIAL_SHARE: u32 = 32;
const TRIAL_MAX: u32 = 128;

/// A WEU of clean extents that a start wouldn't believe.
struct Trial {
    sequence: u64,
    /// All of it is on the device.
    written: bool,
    /// Volumes of which it may hold something that the slow device may still lose, and how many of their changes.
    needs: BTreeMap<u16, u64>,
    /// The journal was told that it counts.
    told: bool,
}

enum Step {
    Settling,
    Flushing,
    /// The record to wait for.
    Journaling(u64),
}

/// See the module's documentation.
#[derive(Default)]
pub(crate) struct Confirming {
    trials: BTreeMap<u32, Trial>,
    /// How many of them are written, and the journal wasn't told.
    waiting: usize,
    /// WEUs, each under its number, that are being confirmed together.
    round: Option<(Vec<(u32, u64)>, Step)>,
}

impl Confirming {
    /// A WEU of clean extents was begun.
    pub(crate) fn begin(&mut self, weu: u32, sequence: u64) {
        self.trials.insert(weu, Trial { sequence, written: false, needs: BTreeMap::new(), told: false });
    }

    /// It holds what those volumes have changed.
    pub(crate) fn needs(&mut self, weu: u32, needs: impl IntoIterator<Item = (u16, u64)>) {
        if let Some(t) = self.trials.get_mut(&weu) {
            t.needs.extend(needs);
        }
    }

    /// All of it is on the device.
    pub(crate) fn written(&mut self, weu: u32) {
        if let Some(t) = self.trials.get_mut(&weu) {
            self.waiting += usize::from(!t.written);
            t.written = true;
        }
    }

    /// It is evicted.
    pub(crate) fn forget(&mut self, weu: u32) {
        let waited = self.trials.remove(&weu).is_some_and(|t| t.written && !t.told);
        self.waiting -= usize::from(waited);
    }

    /// Might a start not believe it?
    pub(crate) fn is_on_trial(&self, weu: u32) -> bool {
        self.trials.contains_key(&weu)
    }

    /// Does a start believe it from what the journal was told so far?
    pub(crate) fn counts(&self, weu: u32) -> bool {
        self.trials.get(&weu).is_none_or(|t| t.told)
    }

    /// Slots of volumes that a trial asks after.
    pub(crate) fn volumes(&self) -> impl Iterator<Item = u16> + '_ {
        self.trials.values().flat_map(|t| t.needs.keys().copied())
    }

    pub(crate) fn is_busy(&self) -> bool {
        self.round.is_some()
    }

    /// The fast device is gone.
    pub(crate) fn break_down(&mut self) {
        *self = Confirming::default();
    }

    /// The oldest WEUs, if there are enough of them on trial; all that are written at the end.
    fn due(&self, keep: usize, ends: bool) -> Option<Vec<(u32, u64)>> {
        if self.waiting == 0 || (self.waiting < keep + keep.div_ceil(2) && !ends) {
            return None;
        }
        let written = self.trials.iter().filter(|(_, t)| t.written && !t.told);
        let mut all: Vec<(u32, u64)> = written.map(|(weu, t)| (*weu, t.sequence)).collect();
        all.sort_unstable_by_key(|(_, sequence)| *sequence);
        all.truncate(all.len() - if ends { 0 } else { keep });
        Some(all)
    }

    fn still(&self, (weu, sequence): &(u32, u64)) -> Option<&Trial> {
        self.trials.get(weu).filter(|t| t.sequence == *sequence)
    }
}

impl Cache {
    /// Begins to confirm what is old enough, and goes on with it.
    pub(crate) fn progress_confirming(&mut self, now: Time, out: &mut Actions) {
        if self.confirming.round.is_none() {
            let keep = (self.layout.weus / TRIAL_SHARE).clamp(1, TRIAL_MAX) as usize;
            let Some(weus) = self.confirming.due(keep, self.stopping) else { return };
            self.confirming.round = Some((weus, Step::Settling));
        }
        match self.confirming.round {
            Some((_, Step::Settling)) => self.settle_trials(now, out),
            Some((ref weus, Step::Journaling(number))) if self.journal.durable() >= number => {
                for weu in weus {
                    if self.confirming.trials.get(&weu.0).is_some_and(|t| t.sequence == weu.1) {
                        self.confirming.trials.remove(&weu.0);
                    }
                }
                self.confirming.round = None;
                // At the end there may be more.
                self.progress_confirming(now, out);
            }
            _ => {}
        }
    }

    /// Has the slow device flushed, for volumes that have changed since: were something cached for good before, a power loss could
    /// leave the cache with what is newer than the slow device, and its eviction would turn back time.
    fn settle_trials(&mut self, now: Time, out: &mut Actions) {
        let Some((weus, _)) = &self.confirming.round else { return };
        let volumes = &self.volumes;
        // A volume that is gone has nothing that could be read.
        let open =
            |s: u16, n: u64| volumes[s as usize].flushed < n && self.by_key.contains_key(&volumes[s as usize].key);
        let needs = weus.iter().filter_map(|w| self.confirming.still(w)).flat_map(|t| &t.needs);
        let unsettled: BTreeSet<u16> = needs.filter(|(s, n)| open(**s, **n)).map(|(s, _)| *s).collect();
        if unsettled.is_empty() || self.planted(Planted::CacheUnflushed) {
            self.confirming.round.as_mut().expect("it's this one").1 = Step::Flushing;
            return match self.planted(Planted::ConfirmUnflushed) {
                true => self.trials_flushed(),
                false => {
                    self.send_fast(now, (Op::Flush, OwnKind::Metadata), (0, 0), Data::Absent, Pending::Confirm, out)
                }
            };
        }
        for slot in unsettled {
            let v = &mut self.volumes[slot as usize];
            if now < self.settle_retry_at {
                out.wake_at(self.settle_retry_at);
            } else if !v.settling {
                v.settling = true;
                let (whose, covers) = ((v.key, TenantId::default()), (slot, v.changes));
                let what = (Op::Flush, OwnKind::Fill);
                self.send_own(now, SLOW, what, whose, (0, 0), Data::Absent, Pending::Settle(covers), out);
            }
        }
    }

    /// Both devices have it for good: the journal is told, first which slots are dead.
    pub(crate) fn trials_flushed(&mut self) {
        let Some((weus, Step::Flushing)) = &self.confirming.round else { return };
        let weus: Vec<(u32, u64)> = weus.iter().filter(|w| self.confirming.still(w).is_some()).copied().collect();
        let mut number = 0;
        for &(weu, sequence) in &weus {
            let suspect = self.suspect.contains(&weu);
            let w = self.index.weu(weu);
            if w.dead.iter().any(|bits| *bits != 0) && !self.planted(Planted::ConfirmTheDead) {
                self.journal.push(Record::Least { weu, sequence, suspect, confirmed: false });
                dead_bits(weu, w).for_each(|r| {
                    self.journal.push(r);
                });
            }
            number = self.journal.push(Record::Least { weu, sequence, suspect, confirmed: true });
            self.confirming.trials.get_mut(&weu).expect("it was looked up").told = true;
            self.confirming.waiting -= 1;
        }
        self.confirming.round = Some((weus, Step::Journaling(number)));
    }

    /// Forgets a clean extent that is about to be changed. Was it cached?
    pub(crate) fn drop_for_change(&mut self, key: Key) -> bool {
        let (others, before) = (self.deaths, self.journal.pushed());
        let was_cached = self.drop_clean(key);
        if self.journal.pushed() > before {
            self.dying.insert(key, self.journal.pushed());
            self.deaths = others;
        }
        was_cached
    }

    /// The journal's record that must be durable before the slow device has anything newer of `key`: that of its own copy's death, and
    /// those of copies of which it isn't known whose they were.
    pub(crate) fn death_of(&self, key: &Key) -> u64 {
        self.dying.get(key).copied().unwrap_or(0).max(self.deaths)
    }
}

/// The records that say which of a WEU's slots are dead, under the number of the record before.
pub(crate) fn dead_bits(weu: u32, w: &Weu) -> impl Iterator<Item = Record> + '_ {
    let words = (0..).zip(&w.dead).filter(|(_, bits)| **bits != 0);
    words.map(move |(word, bits)| Record::DeadBits { weu, word, bits: *bits })
}
