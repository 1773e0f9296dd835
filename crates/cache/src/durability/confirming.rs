//! Confirmation of clean WEUs. Recovery trusts clean extents only if the journal has confirmed their WEU. A WEU is *confirmed* some
//! time after it was written, once both devices durably have the data that they should. Until then it is *unconfirmed*: a change of
//! one of its extents kills that copy in memory alone. So an extent that is written again and again waits for no journal, and the slow
//! device is flushed once for many WEUs.
//!
//! ```text
//!  written ──► old enough, with others ──► slow device flushed, for volumes changed since ──► fast device flushed
//!     ──► journal: dead slots, and that the rest is valid ──► confirmed
//! ```
//! Nitro rebuilds its index from headers (NI-M19). The paper doesn't state how an index is kept from being newer than the slow device.

use crate::config::Planted;
use crate::format::Record;
use crate::index::{Index, Weu};
use crate::journal::Journal;
use plimsoll_base::{Span, Time};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Share of all WEUs that stays unconfirmed when older ones are confirmed: one in this number.
pub(super) const TRIAL_SHARE: u32 = 32;
/// WEUs that stay unconfirmed at most. Older ones are confirmed when there are half of that number of them.
pub(super) const TRIAL_MAX: u32 = 128;
/// Age at which a WEU is confirmed in any case.
const AGE_MAX: Span = Span::from_secs(30);

/// A WEU of clean extents that recovery wouldn't trust.
struct Trial {
    sequence: u64,
    /// Volumes of which it may hold something that the slow device may still lose, and how many of their changes.
    needs: BTreeMap<u16, u64>,
    /// The journal has the record that it is valid, durable or not.
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
    /// Changes of volumes that must be durable on the slow device before.
    needs: BTreeMap<u16, u64>,
    step: Step,
}

/// The next step of what is being confirmed.
#[derive(PartialEq, Eq, Debug)]
pub(crate) enum Confirm {
    /// Nothing, until something happens.
    Nothing,
    /// Nothing before this time.
    Wake(Time),
    /// Flush the slow device for these volumes.
    FlushSlow(Vec<u16>),
    /// Flush the fast device, then call [`Confirming::flushed`].
    FlushFast,
}

/// See the module's documentation.
#[derive(Default)]
pub(super) struct Confirming {
    planted: Option<Planted>,
    trials: BTreeMap<u32, Trial>,
    /// Those that are written, in the order in which they were, and wait to be confirmed.
    written: VecDeque<(Time, u32, u64)>,
    round: Option<Round>,
    /// Something happened that a round may have waited for.
    news: bool,
}

impl Confirming {
    pub(super) fn new(planted: Option<Planted>) -> Confirming {
        Confirming { planted, ..Confirming::default() }
    }

    /// A WEU of clean extents was begun.
    pub(super) fn begin(&mut self, weu: u32, sequence: u64) {
        self.trials.insert(weu, Trial { sequence, needs: BTreeMap::new(), told: false });
    }

    /// It holds what those volumes have changed.
    pub(super) fn needs(&mut self, weu: u32, needs: impl IntoIterator<Item = (u16, u64)>) {
        if let Some(t) = self.trials.get_mut(&weu) {
            t.needs.extend(needs);
        }
    }

    /// All of it is on the device.
    pub(super) fn written(&mut self, now: Time, weu: u32) {
        if let Some(t) = self.trials.get(&weu)
            && !self.written.iter().any(|w| (w.1, w.2) == (weu, t.sequence))
        {
            self.written.push_back((now, weu, t.sequence));
        }
    }

    /// It is evicted.
    pub(super) fn forget(&mut self, weu: u32) {
        if self.trials.remove(&weu).is_some() {
            self.written.retain(|w| w.1 != weu);
        }
    }

    /// A volume is gone: it has nothing that could be read.
    pub(super) fn forget_volume(&mut self, slot: u16) {
        self.trials.values_mut().for_each(|t| {
            t.needs.remove(&slot);
        });
        self.settled(slot, u64::MAX);
    }

    /// The slow device durably has this number of a volume's changes.
    pub(super) fn settled(&mut self, slot: u16, changes: u64) {
        if let Some(r) = &mut self.round {
            r.needs.retain(|s, n| *s != slot || *n > changes);
            self.news = true;
        }
    }

    /// The slow device has lost something, and says so once: what may have been lost with it is never confirmed.
    pub(super) fn lost(&mut self) {
        self.news = true;
    }

    /// Returns true if recovery might not trust a WEU.
    pub(super) fn is_on_trial(&self, weu: u32) -> bool {
        self.trials.contains_key(&weu)
    }

    /// Returns true if recovery trusts a WEU by the records so far, durable or not.
    pub(super) fn counts(&self, weu: u32) -> bool {
        self.trials.get(&weu).is_none_or(|t| t.told)
    }

    /// Slots of volumes that unconfirmed WEUs need something of.
    pub(super) fn volumes(&self) -> impl Iterator<Item = u16> + '_ {
        self.trials.values().flat_map(|t| t.needs.keys().copied())
    }

    pub(super) fn is_busy(&self) -> bool {
        self.round.is_some()
    }

    /// The fast device is gone.
    pub(super) fn break_down(&mut self) {
        *self = Confirming::new(self.planted);
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

    /// Begins to confirm what is old enough, and goes on with it. `keep`: WEUs that stay unconfirmed; `ends`: none does. The journal is durable
    /// up to `durable`. `flushed`: a volume's changes that are durable on the slow device. `slow_lost`: it has lost something, and what
    /// was not flushed before is never confirmed.
    pub(super) fn poll(
        &mut self,
        now: Time,
        (keep, ends): (usize, bool),
        durable: u64,
        flushed: impl Fn(u16) -> u64,
        slow_lost: bool,
    ) -> Confirm {
        loop {
            if self.round.is_none() {
                let weus = self.due(now, keep, ends);
                if weus.is_empty() {
                    return self.written.front().map_or(Confirm::Nothing, |w| Confirm::Wake(w.0 + AGE_MAX));
                }
                let mut needs: BTreeMap<u16, u64> = BTreeMap::new();
                for (slot, n) in weus.iter().filter_map(|w| self.trial(w)).flat_map(|t| &t.needs) {
                    if flushed(*slot) < *n {
                        let most = needs.entry(*slot).or_default();
                        *most = (*most).max(*n);
                    }
                }
                self.round = Some(Round { weus, needs, step: Step::Settling });
                self.news = true;
            }
            let Some(mut round) = self.round.take() else { return Confirm::Nothing };
            match round.step {
                // Were something cached permanently before, a power loss could leave the cache with what is newer than the slow device, and
                // its eviction would turn back time.
                Step::Settling if std::mem::take(&mut self.news) => {
                    if slow_lost {
                        let has = |t: &Trial| t.needs.iter().all(|(s, n)| flushed(*s) >= *n);
                        round.weus.retain(|w| self.trial(w).is_some_and(has));
                        round.needs.clear();
                    }
                    if round.weus.is_empty() {
                        continue;
                    }
                    if round.needs.is_empty() || Planted::CacheUnflushed.is_in(self.planted) {
                        self.round = Some(Round { step: Step::Flushing, ..round });
                        return Confirm::FlushFast;
                    }
                    let slots = round.needs.keys().copied().collect();
                    self.round = Some(round);
                    return Confirm::FlushSlow(slots);
                }
                // At the end there may be more.
                Step::Journaling(number) if durable >= number => {
                    for w in round.weus {
                        if self.trial(&w).is_some() {
                            self.trials.remove(&w.0);
                        }
                    }
                }
                _ => {
                    self.round = Some(round);
                    return Confirm::Nothing;
                }
            }
        }
    }

    /// Both devices have it durably: the journal records it, first which slots are dead.
    pub(super) fn flushed(&mut self, index: &Index, suspect: &BTreeSet<u32>, journal: &mut Journal) {
        let Some(Round { weus, step: step @ Step::Flushing, .. }) = &mut self.round else { return };
        let mut number = 0;
        for &(weu, sequence) in weus.iter() {
            let Some(trial) = self.trials.get_mut(&weu).filter(|t| t.sequence == sequence) else { continue };
            let suspect = suspect.contains(&weu);
            let w = index.weu(weu);
            if w.dead.iter().any(|bits| *bits != 0) && !Planted::ConfirmTheDead.is_in(self.planted) {
                journal.push(Record::Least { weu, sequence, suspect, confirmed: false });
                dead_bits(weu, w).for_each(|r| {
                    journal.push(r);
                });
            }
            number = journal.push(Record::Least { weu, sequence, suspect, confirmed: true });
            trial.told = true;
        }
        *step = Step::Journaling(number);
    }
}

/// The records that say which of a WEU's slots are dead, under the number of the record before.
pub(super) fn dead_bits(weu: u32, w: &Weu) -> impl Iterator<Item = Record> + '_ {
    let words = (0..).zip(&w.dead).filter(|(_, bits)| **bits != 0);
    words.map(move |(word, bits)| Record::DeadBits { weu, word, bits: *bits })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Shape;
    use crate::index::set_bit;
    use crate::layout::Layout;

    const LATE: Time = Time::from_nanos(1 << 50);

    fn journal() -> Journal {
        let shape = Shape { extent_bytes: 4096, weu_bytes: 32 << 10 };
        Journal::new(Layout::new(8 << 20, 512, shape, 5).unwrap(), 0, 2)
    }

    /// A WEU on trial whose bytes are on the device, and that needs 5 changes of volume 1 to be durable on the slow one.
    fn on_trial(planted: Option<Planted>) -> Confirming {
        let mut c = Confirming::new(planted);
        c.begin(3, 40);
        c.needs(3, [(1, 5)]);
        c.written(Time::ZERO, 3);
        assert!(c.is_on_trial(3) && !c.counts(3));
        c
    }

    fn poll(c: &mut Confirming, flushed: u64, durable: u64) -> Confirm {
        c.poll(LATE, (1, false), durable, |_| flushed, false)
    }

    #[test]
    fn both_devices_are_flushed_before_the_journal_is_told_and_the_journal_before_it_counts() {
        let (mut c, mut j) = (on_trial(None), journal());
        let index = Index::new(8, 0, 100);
        assert_eq!(poll(&mut c, 4, 0), Confirm::FlushSlow(vec![1]));
        c.flushed(&index, &BTreeSet::new(), &mut j);
        assert_eq!(j.pushed(), 0, "a flush of the fast device before that of the slow one says nothing");
        c.settled(1, 4);
        assert_eq!(poll(&mut c, 4, 0), Confirm::FlushSlow(vec![1]), "not all of it");
        c.settled(1, 5);
        assert_eq!(poll(&mut c, 5, 0), Confirm::FlushFast);
        c.flushed(&index, &BTreeSet::new(), &mut j);
        assert!(j.pushed() == 1 && c.counts(3) && c.is_on_trial(3), "a start may believe it from now on");
        assert_eq!(poll(&mut c, 5, 0), Confirm::Nothing);
        poll(&mut c, 5, 1);
        assert!(!c.is_on_trial(3) && !c.is_busy());
    }

    /// A former mistake: what the slow device may still lose was confirmed.
    #[test]
    fn what_the_slow_device_may_lose_is_not_confirmed_and_the_mistake_is_found() {
        assert_eq!(poll(&mut on_trial(None), 0, 0), Confirm::FlushSlow(vec![1]));
        assert_eq!(poll(&mut on_trial(Some(Planted::CacheUnflushed)), 0, 0), Confirm::FlushFast, "it is found");
    }

    /// A former mistake: what died on trial was confirmed with the rest.
    #[test]
    fn the_journal_is_told_first_which_slots_are_dead_and_the_mistake_is_found() {
        let records = |planted| {
            let (mut c, mut j, mut index) = (on_trial(planted), journal(), Index::new(8, 0, 100));
            set_bit(&mut index.weu_mut(3).dead, 6);
            assert_eq!(poll(&mut c, 5, 0), Confirm::FlushFast);
            c.flushed(&index, &BTreeSet::new(), &mut j);
            j.pushed()
        };
        assert_eq!(records(None), 3, "under which number, which slots, and that the rest counts");
        assert_eq!(records(Some(Planted::ConfirmTheDead)), 1, "it is found");
    }

    #[test]
    fn what_may_have_been_lost_with_the_slow_device_is_never_confirmed() {
        let mut c = on_trial(None);
        assert_eq!(poll(&mut c, 4, 0), Confirm::FlushSlow(vec![1]));
        c.lost();
        assert_eq!(c.poll(LATE, (1, false), 0, |_| 4, true), Confirm::Nothing);
        assert!(c.is_on_trial(3) && !c.is_busy());
        let mut c = on_trial(None);
        assert_eq!(c.poll(LATE, (1, false), 0, |_| 5, true), Confirm::FlushFast, "what was flushed before is there");
    }

    #[test]
    fn a_weu_that_is_evicted_meanwhile_is_not_confirmed() {
        let (mut c, mut j) = (on_trial(None), journal());
        assert_eq!(poll(&mut c, 5, 0), Confirm::FlushFast);
        c.forget(3);
        c.begin(3, 41);
        c.flushed(&Index::new(8, 0, 100), &BTreeSet::new(), &mut j);
        assert!(j.pushed() == 0 && !c.counts(3), "another WEU's number");
    }
}
