//! Durability: the state that the next start will find, and the requests that must wait until it will.
//!
//! ```text
//!  a dirty chunk written ──► fast device flushed ──► journal: its headers are there ──► the flush ends; extents it supersedes are dead
//!  a clean WEU written   ──► both devices flushed ──► journal: dead slots, and that the rest is valid
//!  an entry dead, a WEU evicted, an extent clean, a volume gone ──► journal ──► requests that wait for that go on
//! ```
//! [`Durability`] owns the journal, the flushes of the fast device, the confirmation of clean WEUs, and the requests that wait for
//! any of them. It receives events. It returns what to write, which device to flush, and which requests go on. The bits of WEUs that
//! the journal records are lent to it. It doesn't know what a chunk holds, what a request is, and who sends I/O.

mod confirming;
mod deaths;
mod flushes;
mod unjournaled;

pub(crate) use confirming::Confirm;
pub(crate) use flushes::{OnItsWay, Undurable};

use crate::bits::Bits;
use crate::config::Planted;
use crate::format::Record;
use crate::index::{Index, Key, Loc, WeuState};
use crate::journal::{Journal, JournalWrite};
use crate::layout::Layout;
use crate::place::Superseded;
use confirming::{Confirming, TRIAL_MAX, TRIAL_SHARE, dead_bits};
use deaths::Deaths;
use flushes::Flushes;
use plimsoll_base::{Time, VolumeKey};
use std::collections::BTreeSet;
use unjournaled::Unjournaled;

/// Findings of a start that durability goes on from.
pub(crate) struct Restored {
    /// Chunks below this number are durable once the device was flushed.
    pub durable_chunks: u64,
    /// The epoch of the journal to begin.
    pub next_epoch: u64,
    /// WEUs that nothing dirty may rely on.
    pub suspect: BTreeSet<u32>,
    /// Volumes that are gone, and the first WEU's number that can't hold anything of theirs.
    pub gone: Vec<(VolumeKey, u64)>,
    /// Volumes of which the newest data may be missing.
    pub missed: BTreeSet<VolumeKey>,
}

/// A flush of the fast device that is over.
pub(crate) struct Flushed {
    pub number: u64,
    /// The partition that it was for; `None` for all.
    pub part: Option<u16>,
    /// Entries that are superseded by what is durable now: nothing pins their WEUs any more.
    pub superseded: Vec<Superseded>,
    /// Client requests that waited for it and needn't wait for the journal.
    pub ended: Vec<usize>,
}

/// Progress of the journal.
pub(crate) struct Journaled {
    /// Records up to this number are durable.
    pub durable: u64,
    /// Changes that may go to the slow device now.
    pub changes: Vec<usize>,
    /// Flushes, and requests that are flushes too, that end now.
    pub flushes: Vec<usize>,
}

/// Client requests that waited when the fast device failed.
pub(crate) struct Broken {
    /// Flushes, and requests that are flushes too.
    pub flushes: Vec<usize>,
    /// Changes that haven't gone to the slow device.
    pub changes: Vec<usize>,
}

/// See the module's documentation.
pub(crate) struct Durability {
    planted: Option<Planted>,
    journal: Journal,
    flushes: Flushes,
    unjournaled: Unjournaled,
    confirming: Confirming,
    deaths: Deaths,
    /// Changes that wait for a record of the journal.
    held: Vec<(u64, usize)>,
    /// Volumes that are gone, and the first WEU's number that can't hold anything of theirs.
    gone: Vec<(VolumeKey, u64)>,
    /// Of them, those of which the journal doesn't say it durably yet: the number of its record.
    deleting: Vec<(VolumeKey, u64)>,
    /// Volumes of which headers were corrupt, at this start or an earlier one: what was written last to them may be missing. Each
    /// snapshot of the journal says so. [`VolumeKey::POOL`] stands for those of which it isn't known which.
    missed: BTreeSet<VolumeKey>,
    /// WEUs of dirty extents found at this or an earlier start that no flush was known to have covered, and any with corrupt bytes:
    /// nothing dirty may rely on them.
    suspect: BTreeSet<u32>,
    /// Deletions and records that a snapshot of the journal has at most.
    snapshot_max: (usize, usize),
}

impl Durability {
    /// Durability of a cache that hasn't read its device yet.
    pub(crate) fn new(layout: Layout, generation: u16, planted: Option<Planted>) -> Durability {
        Durability {
            planted,
            journal: Journal::new(layout, generation, 2),
            flushes: Flushes::new(planted, 0),
            unjournaled: Unjournaled::default(),
            confirming: Confirming::new(planted),
            deaths: Deaths::default(),
            held: Vec::new(),
            gone: Vec::new(),
            deleting: Vec::new(),
            missed: BTreeSet::new(),
            suspect: BTreeSet::new(),
            snapshot_max: (layout.gone_max(), layout.records_max()),
        }
    }

    /// Goes on from what a start has found on a device with this layout.
    pub(crate) fn restore(&mut self, layout: Layout, generation: u16, found: Restored) {
        self.flushes = Flushes::new(self.planted, found.durable_chunks);
        self.journal = Journal::new(layout, generation, found.next_epoch);
        (self.gone, self.missed, self.suspect) = (found.gone, found.missed, found.suspect);
        self.snapshot_max = (layout.gone_max(), layout.records_max());
    }

    /// The start has ended: what it found, and what was deleted until all was found, is in the journal.
    pub(crate) fn started(&mut self) {
        self.deleting.retain(|(_, number)| *number != u64::MAX);
    }

    // Events of WEUs and chunks.

    /// A WEU of clean extents was begun.
    pub(crate) fn clean_begun(&mut self, weu: u32, sequence: u64) {
        self.confirming.begin(weu, sequence);
    }

    /// A clean chunk was closed that holds what those volumes have changed, so often.
    pub(crate) fn clean_closed(&mut self, weu: u32, needs: impl IntoIterator<Item = (u16, u64)>) {
        self.confirming.needs(weu, needs);
    }

    /// All closed chunks of a clean WEU are on the device.
    pub(crate) fn clean_written(&mut self, now: Time, weu: u32) {
        self.confirming.written(now, weu);
    }

    /// A dirty chunk is on the device.
    pub(crate) fn dirty_written(&mut self, chunk: Undurable) {
        self.flushes.written(chunk);
    }

    /// A slot's entry, of `key`, is no longer true: the journal says so if a start would trust it, and waits may be for that.
    pub(crate) fn died(&mut self, bits: &mut Bits, key: Key, place: Loc) {
        if Planted::NoDeadRecords.is_in(self.planted) {
            return;
        }
        if let Some(sequence) = bits.set_dead(place)
            && self.confirming.counts(place.weu())
        {
            let number = self.journal.push(Record::Dead { weu: place.weu(), sequence, slot: place.slot() });
            self.deaths.add(key, number);
        }
    }

    /// The slow device has the dirty extent that the header at `place` names, unless the journal says so already.
    pub(crate) fn cleaned(&mut self, bits: &mut Bits, place: Loc) {
        if let Some(sequence) = bits.set_cleaned(place) {
            self.journal.push(Record::Cleaned { weu: place.weu(), sequence, slot: place.slot() });
        }
    }

    /// A WEU under a number was evicted. `trusted` are the extents of those of its entries that weren't dead; some entries may be unknown
    /// if its headers were damaged. Returns the record to wait for.
    pub(crate) fn retired(
        &mut self,
        (weu, sequence): (u32, u64),
        trusted: impl IntoIterator<Item = Key>,
        is_damaged: bool,
    ) -> u64 {
        self.suspect.remove(&weu);
        // No start trusts a WEU on trial.
        let counts = self.confirming.counts(weu);
        self.confirming.forget(weu);
        if Planted::NoRetireRecord.is_in(self.planted) || !counts {
            return 0;
        }
        let least = Record::Least { weu, sequence: sequence + 1, suspect: false, confirmed: false };
        let number = self.journal.push(least);
        if !Planted::EvictUnwaited.is_in(self.planted) {
            trusted.into_iter().for_each(|key| self.deaths.add(key, number));
        }
        if is_damaged {
            self.deaths.add_unknown(number);
        }
        number
    }

    /// Bytes in a WEU under a number are corrupt. Nothing dirty may rely on it, nor after the next start, which finds the fingerprints in
    /// its headers.
    pub(crate) fn suspect(&mut self, weu: u32, sequence: u64) {
        if self.suspect.insert(weu) {
            self.journal.push(Record::Least { weu, sequence, suspect: true, confirmed: false });
        }
    }

    // Events of volumes.

    /// A volume was deleted while the device is read: the snapshot that the start ends with says so.
    pub(crate) fn volume_deleted_at_start(&mut self, key: VolumeKey) {
        self.deleting.push((key, u64::MAX));
    }

    /// Forgets that the newest data of a volume may be missing.
    pub(crate) fn forget_missed(&mut self, key: &VolumeKey) {
        self.missed.remove(key);
    }

    /// A slot's volume is gone: there is nothing of it that could be read.
    pub(crate) fn forget_slot(&mut self, slot: u16) {
        self.confirming.forget_volume(slot);
    }

    /// A volume was deleted while WEUs below `sequence` had been begun: the journal says so.
    pub(crate) fn volume_deleted(&mut self, key: VolumeKey, sequence: u64) {
        self.gone.push((key, sequence));
        let number = self.journal.push(Record::Gone(key));
        self.deleting.push((key, number));
    }

    /// Returns true until the journal says durably that a volume was deleted.
    pub(crate) fn is_deleting(&self, key: &VolumeKey) -> bool {
        self.deleting.iter().any(|(k, _)| k == key)
    }

    // The slow device.

    /// The slow device has this many of a volume's changes durably.
    pub(crate) fn settled(&mut self, slot: u16, changes: u64) {
        self.confirming.settled(slot, changes);
    }

    /// The slow device has lost something, and says so once: what may have been lost with it is never confirmed.
    pub(crate) fn slow_lost(&mut self) {
        self.confirming.lost();
    }

    // Changes that wait.

    /// The record that must be durable before the slow device has anything newer of `key`; 0 if there is none.
    pub(crate) fn precedes(&self, key: &Key) -> u64 {
        self.deaths.of(key)
    }

    /// Returns true if the journal is durable up to this record.
    pub(crate) fn has_record(&self, number: u64) -> bool {
        self.journal.durable() >= number
    }

    /// The number of the last record.
    pub(crate) fn last_record(&self) -> u64 {
        self.journal.pushed()
    }

    /// A change waits for a record.
    pub(crate) fn hold(&mut self, number: u64, op: usize) {
        self.held.push((number, op));
    }

    pub(crate) fn has_held(&self) -> bool {
        !self.held.is_empty()
    }

    // Flushes of the fast device.

    /// A client's request wants a flush.
    pub(crate) fn want_flush_for(&mut self, op: usize) {
        self.flushes.want_for(op);
    }

    /// A flush is wanted that closes the open chunks of these partitions; its number, or that of the next.
    pub(crate) fn want_flush(&mut self, parts: impl IntoIterator<Item = u16>) -> u64 {
        self.flushes.want(parts)
    }

    /// Flushes to begin now, each for a partition and with the requests that wait for it; see [`Durability::begin_flush`].
    pub(crate) fn due_flushes(&mut self, part_of: impl Fn(usize) -> Option<u16>) -> Vec<(Option<u16>, Vec<usize>)> {
        self.flushes.due(part_of)
    }

    /// Begins a flush, that waits for the closed dirty chunks of its partition. Chunks from number `upto` on aren't closed yet.
    pub(crate) fn begin_flush(&mut self, part: Option<u16>, ops: Vec<usize>, upto: u64, on_their_way: &[OnItsWay]) {
        self.flushes.begin(part, ops, upto, on_their_way);
    }

    /// Returns true if a flush waits to be sent, and none is sent: the device is flushed once at a time.
    pub(crate) fn has_unsent_flush(&self) -> bool {
        self.flushes.has_unsent()
    }

    /// Returns true if the device is to be flushed now; then call [`Durability::flushed`].
    pub(crate) fn poll_flush(&mut self, on_their_way: &[OnItsWay]) -> bool {
        self.flushes.poll(on_their_way)
    }

    /// The device was flushed: what the chunks that are durable now supersede is dead. `ends`: the cache stops, and the journal says how
    /// many chunks are durable though there is nothing else to say.
    pub(crate) fn flushed(&mut self, bits: &mut Bits, ends: bool) -> Option<Flushed> {
        let done = self.flushes.flushed()?;
        for u in &done.durable {
            self.unjournaled.header_durable(bits, u.weu, u.sequence, u.slots.end);
        }
        self.unjournaled.say(bits, &mut self.journal, self.planted);
        if ends && self.journal.said() < self.flushes.durable_chunks() {
            self.journal.want_block();
        }
        let superseded: Vec<Superseded> = done.durable.into_iter().flat_map(|u| u.supersedes).collect();
        for s in &superseded {
            self.died(bits, s.key, s.place);
        }
        let ended = self.unjournaled.wait(done.ops, self.journal.durable());
        Some(Flushed { number: done.number, part: done.part, superseded, ended })
    }

    /// Returns true if a flush has covered the entry at `place`, which must be on the device.
    pub(crate) fn is_covered(&self, place: Loc) -> bool {
        !self.flushes.undurable().iter().any(|u| u.weu == place.weu() && u.slots.contains(&place.slot()))
    }

    /// Returns true if a start finds a covered entry at `place`, or reports that its header is missing.
    pub(crate) fn is_said(&self, place: Loc) -> bool {
        self.unjournaled.is_said(place) || Planted::WriteBackUnsaid.is_in(self.planted)
    }

    /// The last record of the journal of headers that isn't durable yet, if there is one.
    pub(crate) fn saying(&self) -> Option<u64> {
        self.unjournaled.saying()
    }

    /// Returns true if a flush is missing for a chunk that supersedes entries for which `of_it` holds.
    pub(crate) fn is_superseding(&self, of_it: impl Fn(&Superseded) -> bool) -> bool {
        self.flushes.undurable().iter().any(|u| u.supersedes.iter().any(&of_it))
    }

    /// Entries that are superseded by chunks on the device for which a flush is missing.
    pub(crate) fn superseded(&self) -> impl Iterator<Item = &Superseded> {
        self.flushes.undurable().iter().flat_map(|u| &u.supersedes)
    }

    pub(crate) fn has_undurable(&self) -> bool {
        !self.flushes.undurable().is_empty()
    }

    // Confirmation of clean WEUs.

    /// The next step of confirming clean WEUs. `weus` is the number of WEUs that the cache may use; `ends`: none stays unconfirmed.
    /// `flushed` tells how many of a volume's changes are durable on the slow device, `slow_lost` that the slow device has lost something.
    pub(crate) fn poll_confirm(
        &mut self,
        now: Time,
        (weus, ends): (u32, bool),
        flushed: impl Fn(u16) -> u64,
        slow_lost: bool,
    ) -> Confirm {
        let keep = (weus / TRIAL_SHARE).clamp(1, TRIAL_MAX) as usize;
        self.confirming.poll(now, (keep, ends), self.journal.durable(), flushed, slow_lost)
    }

    /// The fast device was flushed for the WEUs that are being confirmed.
    pub(crate) fn confirm_flushed(&mut self, index: &Index) {
        self.confirming.flushed(index, &self.suspect, &mut self.journal);
    }

    /// Returns true if a start might not trust a WEU.
    pub(crate) fn is_on_trial(&self, weu: u32) -> bool {
        self.confirming.is_on_trial(weu)
    }

    /// Returns true if something dirty may rely on bytes in a WEU: a start will trust it.
    pub(crate) fn may_rely_on(&self, weu: u32) -> bool {
        !self.confirming.is_on_trial(weu) && !self.suspect.contains(&weu)
    }

    pub(crate) fn is_suspect(&self, weu: u32) -> bool {
        self.suspect.contains(&weu)
    }

    /// Slots of volumes that unconfirmed WEUs need something of.
    pub(crate) fn unconfirmed_slots(&self) -> impl Iterator<Item = u16> + '_ {
        self.confirming.volumes()
    }

    // The journal.

    /// The next write of the journal, unless one is under way. With `force` a snapshot is begun even if there is nothing to record.
    pub(crate) fn next_write(&mut self, index: &Index, force: bool) -> Option<JournalWrite> {
        let (durable, most) = (self.flushes.durable_chunks(), self.snapshot_max);
        let (suspect, confirming, missed, gone) = (&self.suspect, &self.confirming, &self.missed, &mut self.gone);
        self.journal.next_write(durable, force, || snapshot(index, suspect, confirming, missed, gone, most))
    }

    /// The journal's write is on the device in one more place; if that was the last, who goes on.
    pub(crate) fn journal_written(&mut self) -> Option<Journaled> {
        if !self.journal.wrote() {
            return None;
        }
        let durable = self.journal.durable();
        let (go, wait): (Vec<_>, Vec<_>) = std::mem::take(&mut self.held).into_iter().partition(|h| h.0 <= durable);
        self.held = wait;
        self.deleting.retain(|(_, number)| *number > durable);
        self.deaths.journaled(durable);
        let changes = go.into_iter().map(|(_, op)| op).collect();
        Some(Journaled { durable, changes, flushes: self.unjournaled.journaled(durable) })
    }

    pub(crate) fn in_snapshot(&self) -> bool {
        self.journal.in_snapshot()
    }

    /// The fast device is gone: nothing is confirmed or flushed any more, and the journal gets no further.
    pub(crate) fn break_down(&mut self) -> Broken {
        self.confirming.break_down();
        let mut flushes = self.flushes.break_down();
        flushes.extend(self.unjournaled.break_down());
        Broken { flushes, changes: std::mem::take(&mut self.held).into_iter().map(|(_, op)| op).collect() }
    }

    // For the status.

    /// Volumes of which the newest data may be missing.
    pub(crate) fn missed(&self) -> &BTreeSet<VolumeKey> {
        &self.missed
    }

    /// Bytes of journal written.
    pub(crate) fn journal_bytes(&self) -> u64 {
        self.journal.written().0
    }

    pub(crate) fn is_journaling(&self) -> bool {
        !self.journal.is_idle()
    }

    pub(crate) fn is_flushing(&self) -> bool {
        self.flushes.is_busy()
    }

    pub(crate) fn is_confirming(&self) -> bool {
        self.confirming.is_busy()
    }

    pub(crate) fn memory_bytes(&self) -> u64 {
        self.deaths.memory_bytes()
    }

    /// Checks what must hold after each event: whoever waits for a record waits for one that was pushed and isn't durable.
    pub(crate) fn check(&self) {
        let (durable, pushed) = (self.journal.durable(), self.journal.pushed());
        let comes = |number: u64| (durable < number || Planted::NoBarrier.is_in(self.planted)) && number <= pushed;
        debug_assert!(durable <= pushed, "no record is durable before it was pushed");
        debug_assert!(self.held.iter().all(|h| comes(h.0)), "a change waits for a record that won't come");
        let gone = |number: u64| number == u64::MAX || comes(number);
        debug_assert!(self.deleting.iter().all(|g| gone(g.1)), "a deletion waits for a record that won't come");
        self.unjournaled.check(durable, pushed);
        self.deaths.check(durable, pushed);
        self.flushes.check();
    }
}

/// All that the journal must say when it begins anew.
fn snapshot(
    index: &Index,
    suspect: &BTreeSet<u32>,
    confirming: &Confirming,
    missed: &BTreeSet<VolumeKey>,
    gone: &mut Vec<(VolumeKey, u64)>,
    (gone_max, records_max): (usize, usize),
) -> Vec<Record> {
    let holds = |w: &&crate::index::Weu| !matches!(w.state, WeuState::Free | WeuState::Retired);
    let oldest = index.weus().iter().filter(holds).map(|w| w.sequence).min().unwrap_or(u64::MAX);
    gone.retain(|(_, before)| *before > oldest);
    let mut records: Vec<Record> = Vec::new();
    for (weu, w) in index.weus().iter().enumerate() {
        let weu = weu as u32;
        if !holds(&w) {
            if w.sequence > 0 {
                records.push(Record::Least { weu, sequence: w.sequence + 1, suspect: false, confirmed: false });
            }
            continue;
        }
        let (sequence, suspect, counts) = (w.sequence, suspect.contains(&weu), confirming.counts(weu));
        records.push(Record::Least { weu, sequence, suspect, confirmed: counts && !w.for_dirty });
        if !counts {
            continue;
        }
        records.extend(w.held(weu));
        let words = |bits: &[u64]| bits.iter().copied().enumerate().filter(|(_, b)| *b != 0).collect::<Vec<_>>();
        records.extend(dead_bits(weu, w));
        records.extend(words(&w.cleaned).into_iter().map(|(i, bits)| Record::CleanBits { weu, word: i as u32, bits }));
    }
    records.extend(missed.iter().map(|key| Record::Missed(*key)));
    // The oldest go where there are too many: a start that is told which volumes there are doesn't need them.
    let room = records_max.saturating_sub(records.len()).min(gone_max);
    gone.drain(..gone.len().saturating_sub(room));
    records.extend(gone.iter().map(|(key, _)| Record::Gone(*key)));
    records
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Shape;

    const KEY: Key = Key::new(0, 7);

    /// A part whose journal has begun, and an index in which WEU 3 takes dirty extents under number 40.
    fn part(planted: Option<Planted>) -> (Durability, Index) {
        let layout = Layout::new(8 << 20, 512, Shape { extent_bytes: 4096, weu_bytes: 32 << 10 }, 5).unwrap();
        let mut index = Index::new(layout.weus, 0, 100);
        index.add_partition(layout.weus);
        let mut d = Durability::new(layout, 0, planted);
        d.next_write(&index, true).expect("a snapshot");
        while written(&mut d).is_none() {}
        let weu = index.take_free(0, 40, true).expect("all are free");
        assert_eq!(weu, 0);
        (d, index)
    }

    fn written(d: &mut Durability) -> Option<Journaled> {
        let journaled = d.journal_written();
        d.check();
        journaled
    }

    /// Both copies of what the journal has to say.
    fn journal(d: &mut Durability, index: &Index) -> Option<Journaled> {
        d.next_write(index, false)?;
        assert!(written(d).is_none(), "one copy is not enough");
        written(d)
    }

    fn dirty_chunk(number: u64, slots: std::ops::Range<u32>, supersedes: Vec<Superseded>) -> Undurable {
        Undurable { weu: 0, sequence: 40, part: 0, number, slots, supersedes }
    }

    /// Lets request 9 flush a chunk. Returns whether it has ended after the device's flush, and whether after the journal's write.
    fn flush_ends(planted: Option<Planted>) -> (bool, bool) {
        let (mut d, mut index) = part(planted);
        d.want_flush_for(9);
        let due = d.due_flushes(|_| Some(0));
        assert_eq!(due, [(Some(0), vec![9])]);
        d.begin_flush(Some(0), vec![9], 1, &[]);
        d.dirty_written(dirty_chunk(0, 0..4, Vec::new()));
        assert!(d.poll_flush(&[]) && !d.poll_flush(&[]));
        let flushed = d.flushed(&mut Bits::of(&mut index), false).expect("it was sent");
        let later = journal(&mut d, &index).is_some_and(|j| j.flushes == [9]);
        d.check();
        (flushed.ended == [9], later)
    }

    #[test]
    fn a_flush_ends_when_the_journal_says_what_it_made_durable_and_the_mistake_is_found() {
        assert_eq!(flush_ends(None), (false, true));
        assert_eq!(flush_ends(Some(Planted::FlushUnsaid)), (true, false), "it is found");
    }

    /// True if a change of [`KEY`] must wait for a record, after a dirty entry of it died at slot 2.
    fn waits_for_a_death(planted: Option<Planted>) -> bool {
        let (mut d, mut index) = part(planted);
        d.died(&mut Bits::of(&mut index), KEY, Loc::new(0, 0, 1, 2));
        d.died(&mut Bits::of(&mut index), KEY, Loc::new(0, 0, 1, 2));
        assert!(d.last_record() <= 1, "a death is said once");
        let number = d.precedes(&KEY);
        assert_eq!(d.precedes(&Key::new(0, 8)), 0, "another's isn't held up");
        if d.has_record(number) {
            return false;
        }
        d.hold(number, 4);
        d.check();
        let journaled = journal(&mut d, &index).expect("it has something to say");
        assert_eq!((journaled.changes, d.precedes(&KEY), d.has_held()), (vec![4], 0, false));
        true
    }

    #[test]
    fn a_change_waits_until_the_journal_says_that_the_older_copy_is_dead_and_the_mistake_is_found() {
        assert!(waits_for_a_death(None));
        assert!(!waits_for_a_death(Some(Planted::NoDeadRecords)), "it is found");
    }

    /// Evicts the WEU with an entry of [`KEY`]. Returns whether the WEU must wait for a record then, and whether a change of `KEY` must.
    fn waits_for_an_eviction(planted: Option<Planted>) -> (bool, bool) {
        let (mut d, _) = part(planted);
        let number = d.retired((0, 40), [KEY], false);
        d.check();
        (!d.has_record(number), !d.has_record(d.precedes(&KEY)))
    }

    #[test]
    fn a_change_and_the_weu_itself_wait_for_the_record_of_an_eviction_and_mistakes_are_found() {
        assert_eq!(waits_for_an_eviction(None), (true, true));
        assert_eq!(waits_for_an_eviction(Some(Planted::NoRetireRecord)), (false, false), "it is found");
        assert_eq!(waits_for_an_eviction(Some(Planted::EvictUnwaited)), (true, false), "it is found");
    }

    #[test]
    fn of_an_evicted_weu_whose_header_is_damaged_any_change_waits() {
        let (mut d, _) = part(None);
        d.retired((0, 40), [], true);
        assert!(!d.has_record(d.precedes(&KEY)));
    }

    /// Recovery trusts no unconfirmed WEU: neither its deaths nor its eviction are said, and no dirty duplicate may rely on it.
    #[test]
    fn nothing_waits_for_a_weu_on_trial() {
        let (mut d, mut index) = part(None);
        let weu = index.take_free(0, 41, false).unwrap();
        d.clean_begun(weu, 41);
        d.died(&mut Bits::of(&mut index), KEY, Loc::new(weu, 0, 1, 2));
        assert!(d.last_record() == 0 && d.is_on_trial(weu) && !d.may_rely_on(weu));
        assert_eq!(d.retired((weu, 41), [KEY], false), 0);
        assert!(!d.is_on_trial(weu) && d.last_record() == 0);
    }

    #[test]
    fn what_a_chunk_supersedes_is_dead_once_the_chunk_is_durable_and_not_before() {
        let (mut d, mut index) = part(None);
        let place = Loc::new(0, 0, 1, 1);
        let s = Superseded { key: KEY, place, bytes_in: 0 };
        d.dirty_written(dirty_chunk(0, 2..4, vec![s]));
        assert!(d.is_superseding(|s| s.place == place) && !d.is_covered(Loc::new(0, 0, 1, 3)) && d.is_covered(place));
        d.begin_flush(None, vec![], 1, &[]);
        assert!(d.poll_flush(&[]) && d.last_record() == 0 && !index.weu(0).is_dead(1));
        assert_eq!(d.flushed(&mut Bits::of(&mut index), false).unwrap().superseded, [s]);
        assert!(index.weu(0).is_dead(1) && d.last_record() == 2, "its headers are there, and the older one is dead");
    }

    /// True if an extent may be written back whose header was flushed, before and after the journal says that it is there.
    fn may_be_written_back(planted: Option<Planted>) -> (bool, bool) {
        let (mut d, mut index) = part(planted);
        d.dirty_written(dirty_chunk(0, 0..4, vec![]));
        d.begin_flush(None, vec![], 1, &[]);
        assert!(d.poll_flush(&[]));
        d.flushed(&mut Bits::of(&mut index), false).expect("it was sent");
        let place = Loc::new(0, 0, 1, 3);
        assert!(
            d.is_covered(place) && d.saying().is_some() && d.is_said(Loc::new(1, 0, 1, 3)),
            "another isn't held up"
        );
        let before = d.is_said(place);
        journal(&mut d, &index).expect("it has something to say");
        // Those before the next chunk of the WEU don't wait for it.
        d.dirty_written(dirty_chunk(1, 4..6, vec![]));
        d.begin_flush(None, vec![], 2, &[]);
        assert!(d.poll_flush(&[]));
        d.flushed(&mut Bits::of(&mut index), false).expect("it was sent");
        (before, d.is_said(place))
    }

    #[test]
    fn nothing_is_written_back_before_the_journal_says_that_its_header_is_there_and_the_mistake_is_found() {
        assert_eq!(may_be_written_back(None), (false, true));
        assert_eq!(may_be_written_back(Some(Planted::WriteBackUnsaid)), (true, true), "it is found");
    }

    #[test]
    fn a_deletion_is_over_when_the_journal_says_so() {
        let (mut d, index) = part(None);
        let volume = VolumeKey { id: 3, generation: 1 };
        d.volume_deleted(volume, 50);
        assert!(d.is_deleting(&volume));
        journal(&mut d, &index).expect("it says so");
        assert!(!d.is_deleting(&volume));
    }

    #[test]
    fn when_the_device_fails_each_request_that_waited_is_handed_back_once() {
        let (mut d, mut index) = part(None);
        d.died(&mut Bits::of(&mut index), KEY, Loc::new(0, 0, 1, 2));
        d.hold(d.precedes(&KEY), 4);
        d.want_flush_for(9);
        let Broken { flushes, changes } = d.break_down();
        assert_eq!((flushes, changes), (vec![9], vec![4]));
        let Broken { flushes, changes } = d.break_down();
        assert!(flushes.is_empty() && changes.is_empty());
        d.check();
    }
}
