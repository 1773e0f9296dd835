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
use crate::index::Weu;
use crate::layer::{Cache, SLOW};
use crate::request::{Covers, Pending};
use plimsoll_base::{Data, Op, OwnKind, Span, TenantId, Time};
use plimsoll_stack::Actions;
use std::collections::{BTreeMap, VecDeque};

/// Of all WEUs one in so many (and at most so many) stays on trial when older ones are confirmed, which happens when there are half as many
/// of those; or when they are so old. What is on trial at the end is cold after it, unless that is in order.
const TRIAL_SHARE: u32 = 32;
const TRIAL_MAX: u32 = 128;
const AGE_MAX: Span = Span::from_secs(30);

/// A WEU of clean extents that a start wouldn't believe.
struct Trial {
    sequence: u64,
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

/// WEUs, each under its number, that are being confirmed together.
struct Round {
    weus: Vec<(u32, u64)>,
    /// What they need of the slow device.
    needs: BTreeMap<u16, u64>,
    step: Step,
}

/// See the module's documentation.
#[derive(Default)]
pub(crate) struct Confirming {
    trials: BTreeMap<u32, Trial>,
    /// Those that are written, in the order in which they were, and wait to be confirmed.
    written: VecDeque<(Time, u32, u64)>,
    round: Option<Round>,
    /// Something happened that a round may have waited for.
    news: bool,
}

impl Confirming {
    /// A WEU of clean extents was begun.
    pub(crate) fn begin(&mut self, weu: u32, sequence: u64) {
        self.trials.insert(weu, Trial { sequence, needs: BTreeMap::new(), told: false });
    }

    /// It holds what those volumes have changed.
    pub(crate) fn needs(&mut self, weu: u32, needs: impl IntoIterator<Item = Covers>) {
        if let Some(t) = self.trials.get_mut(&weu) {
            t.needs.extend(needs);
        }
    }

    /// All of it is on the device.
    pub(crate) fn written(&mut self, now: Time, weu: u32) {
        if let Some(t) = self.trials.get(&weu)
            && !self.written.iter().any(|w| (w.1, w.2) == (weu, t.sequence))
        {
            self.written.push_back((now, weu, t.sequence));
        }
    }

    /// It is evicted.
    pub(crate) fn forget(&mut self, weu: u32) {
        if self.trials.remove(&weu).is_some() {
            self.written.retain(|w| w.1 != weu);
        }
    }

    /// A volume is gone: it has nothing that could be read.
    pub(crate) fn forget_volume(&mut self, slot: u16) {
        self.trials.values_mut().for_each(|t| {
            t.needs.remove(&slot);
        });
        self.settled(slot, u64::MAX);
    }

    /// The slow device has so many of a volume's changes for good.
    pub(crate) fn settled(&mut self, slot: u16, changes: u64) {
        if let Some(r) = &mut self.round {
            r.needs.retain(|s, n| *s != slot || *n > changes);
            self.news = true;
        }
    }

    /// The slow device has lost something, and says so once: what may have been lost with it is never confirmed.
    pub(crate) fn lost(&mut self) {
        self.news = true;
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

    fn trial(&self, (weu, sequence): &(u32, u64)) -> Option<&Trial> {
        self.trials.get(weu).filter(|t| t.sequence == *sequence)
    }

    /// The oldest WEUs that wait, if it's time for them; all of them at the end.
    fn due(&mut self, now: Time, keep: usize, ends: bool) -> Vec<(u32, u64)> {
        let (many, mut due) = (self.written.len() >= keep + keep.div_ceil(2), Vec::new());
        while let Some((at, weu, sequence)) = self.written.front().copied()
            && due.len() < TRIAL_MAX as usize
            && (ends || (many && self.written.len() > keep) || at + AGE_MAX <= now)
        {
            self.written.pop_front();
            due.push((weu, sequence));
        }
        due
    }
}

impl Cache {
    /// Begins to confirm what is old enough, and goes on with it.
    pub(crate) fn progress_confirming(&mut self, now: Time, out: &mut Actions) {
        if self.confirming.round.is_none() {
            let keep = (self.config.weus_max.min(self.layout.weus) / TRIAL_SHARE).clamp(1, TRIAL_MAX) as usize;
            let weus = self.confirming.due(now, keep, self.stopping);
            if weus.is_empty() {
                if let Some((at, ..)) = self.confirming.written.front() {
                    out.wake_at(*at + AGE_MAX);
                }
                return;
            }
            let mut needs: BTreeMap<u16, u64> = BTreeMap::new();
            for (slot, n) in weus.iter().filter_map(|w| self.confirming.trial(w)).flat_map(|t| &t.needs) {
                if self.volumes[*slot as usize].flushed < *n {
                    let most = needs.entry(*slot).or_default();
                    *most = (*most).max(*n);
                }
            }
            self.confirming.round = Some(Round { weus, needs, step: Step::Settling });
            self.confirming.news = true;
        }
        let Some(round) = &self.confirming.round else { return };
        match round.step {
            Step::Settling if std::mem::take(&mut self.confirming.news) => self.settle_trials(now, out),
            Step::Journaling(number) if self.journal.durable() >= number => {
                let round = self.confirming.round.take().expect("just seen");
                for w in round.weus {
                    if self.confirming.trial(&w).is_some() {
                        self.confirming.trials.remove(&w.0);
                    }
                }
                // At the end there may be more.
                self.progress_confirming(now, out);
            }
            _ => {}
        }
    }

    /// Has the slow device flushed, for volumes that have changed since: were something cached for good before, a power loss could
    /// leave the cache with what is newer than the slow device, and its eviction would turn back time.
    fn settle_trials(&mut self, now: Time, out: &mut Actions) {
        let Some(mut round) = self.confirming.round.take() else { return };
        if self.slow_lost {
            let volumes = &self.volumes;
            let has = |t: &Trial| t.needs.iter().all(|(s, n)| volumes[*s as usize].flushed >= *n);
            round.weus.retain(|w| self.confirming.trial(w).is_some_and(has));
            round.needs.clear();
        }
        if round.weus.is_empty() {
            return self.progress_confirming(now, out);
        }
        if round.needs.is_empty() || self.planted(Planted::CacheUnflushed) {
            self.confirming.round = Some(Round { step: Step::Flushing, ..round });
            return match self.planted(Planted::ConfirmUnflushed) {
                true => self.trials_flushed(),
                false => {
                    self.send_fast(now, (Op::Flush, OwnKind::Metadata), (0, 0), Data::Absent, Pending::Confirm, out)
                }
            };
        }
        for slot in round.needs.keys() {
            let v = &mut self.volumes[*slot as usize];
            if !std::mem::replace(&mut v.settling, true) {
                let (whose, covers) = ((v.key, TenantId::default()), (*slot, v.changes));
                let what = (Op::Flush, OwnKind::Fill);
                self.send_own(now, SLOW, what, whose, (0, 0), Data::Absent, Pending::Settle(covers), out);
            }
        }
        self.confirming.round = Some(round);
    }

    /// Both devices have it for good: the journal is told, first which slots are dead.
    pub(crate) fn trials_flushed(&mut self) {
        let Some(Round { weus, step: step @ Step::Flushing, .. }) = &mut self.confirming.round else { return };
        let mut number = 0;
        for &(weu, sequence) in weus.iter() {
            let Some(trial) = self.confirming.trials.get_mut(&weu).filter(|t| t.sequence == sequence) else { continue };
            let suspect = self.suspect.contains(&weu);
            let w = self.index.weu(weu);
            if w.dead.iter().any(|bits| *bits != 0) && self.config.planted != Some(Planted::ConfirmTheDead) {
                self.journal.push(Record::Least { weu, sequence, suspect, confirmed: false });
                dead_bits(weu, w).for_each(|r| {
                    self.journal.push(r);
                });
            }
            number = self.journal.push(Record::Least { weu, sequence, suspect, confirmed: true });
            trial.told = true;
        }
        *step = Step::Journaling(number);
    }
}

/// The records that say which of a WEU's slots are dead, under the number of the record before.
pub(crate) fn dead_bits(weu: u32, w: &Weu) -> impl Iterator<Item = Record> + '_ {
    let words = (0..).zip(&w.dead).filter(|(_, bits)| **bits != 0);
    words.map(move |(word, bits)| Record::DeadBits { weu, word, bits: *bits })
}
