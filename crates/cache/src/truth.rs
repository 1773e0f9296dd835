//! Which entries are true: where each extent is, which of the headers' entries aren't so any more, and the journal that says it.

use crate::broken::Life;
use crate::chunk::{Chunk, Superseded};
use crate::config::Planted;
use crate::confirm::{Confirming, dead_bits};
use crate::format::{ExtentName, Record};
use crate::index::{Index, Key, Loc, set_bit};
use crate::layer::Cache;
use crate::request::Pending;
use plimsoll_base::{Data, Op, OwnKind, Time, VolumeKey};
use plimsoll_stack::Actions;
use std::collections::BTreeSet;

impl Cache {
    pub(crate) fn name_of(&self, key: Key) -> ExtentName {
        ExtentName { volume: self.volumes[key.volume() as usize].key, extent: key.extent() }
    }

    pub(crate) fn pin(&mut self, weu: u32) {
        *self.pins.entry(weu).or_default() += 1;
    }

    pub(crate) fn unpin(&mut self, weu: u32) {
        let n = self.pins.get_mut(&weu).expect("pinned before");
        *n -= 1;
        if *n == 0 {
            self.pins.remove(&weu);
        }
    }

    /// Where a header says of `key` that it's a duplicate, which is from now on not said any more; unpinned if it was dirty.
    pub(crate) fn take_reference(&mut self, key: Key, was_dirty: bool) -> Option<Loc> {
        let own = self.refs.remove(&key)?;
        if was_dirty {
            self.unpin(own.weu());
        }
        Some(own)
    }

    /// Is this slot of this WEU still in memory?
    pub(crate) fn chunk_of(&self, weu: u32, slot: u32) -> Option<usize> {
        let has = |c: &Chunk| c.weu == weu && (c.first_slot..c.first_slot + c.entries.len() as u32).contains(&slot);
        self.chunks.iter().position(has)
    }

    /// Points `key` at `loc`; `own` is where a header says so. What it pointed at before is superseded.
    pub(crate) fn point(&mut self, key: Key, loc: Loc, own: Option<Loc>) {
        let was_dirty = self.undirty(key);
        let old_ref = self.take_reference(key, was_dirty);
        let old = self.index.set(key, loc);
        let by = own.filter(|_| loc.is_dirty()).and_then(|o| self.chunk_of(o.weu(), o.slot()));
        self.supersede(key, old, old_ref, by);
        if loc.is_dirty() {
            self.dirtied(key, loc, own);
        }
        if let Some(own) = own.filter(|_| loc.is_dup()) {
            self.refs.insert(key, own);
            if loc.is_dirty() {
                self.pin(own.weu());
            }
        }
    }

    /// Forgets a clean extent.
    pub(crate) fn drop_clean(&mut self, key: Key) -> bool {
        debug_assert!(!self.dirty.contains(&key));
        let old_ref = self.take_reference(key, false);
        let old = self.index.remove(key);
        self.supersede(key, old, old_ref, None);
        old.is_some()
    }

    /// A header's entry is no longer true: it never becomes so; or the journal says it, at once, when the dirty chunk `by` that has the
    /// newer content is durable, or when its WEU is confirmed.
    pub(crate) fn supersede(&mut self, key: Key, old: Option<Loc>, old_ref: Option<Loc>, by: Option<usize>) {
        // A clean duplicate's bytes may be gone: then only its name is superseded.
        let bytes_in = old.map(Loc::weu);
        let Some(old) = old.filter(|o| !o.is_dup()).or(old_ref) else { return };
        let bytes_in = bytes_in.unwrap_or(old.weu());
        if let Some(c) = self.chunk_of(old.weu(), old.slot())
            && self.chunks[c].kill(old.slot())
        {
            return;
        }
        match by {
            Some(c) if !self.planted(Planted::DeadBeforeDurable) => {
                self.chunks[c].supersedes.push(Superseded { key, place: old, bytes_in });
                self.pin(old.weu());
                self.pin(bytes_in);
            }
            _ => self.kill(key, old),
        }
    }

    /// A slot's entry, of `key`, is no longer true; the journal says so if a start would believe it, and waits may be for that.
    pub(crate) fn kill(&mut self, key: Key, place: Loc) {
        if self.planted(Planted::NoDeadRecords) {
            return;
        }
        let w = self.index.weu_mut(place.weu());
        if set_bit(&mut w.dead, place.slot()) && self.confirming.counts(place.weu()) {
            let sequence = w.sequence;
            let number = self.journal.push(Record::Dead { weu: place.weu(), sequence, slot: place.slot() });
            self.deaths.add(key, number);
        }
    }

    /// All that the journal must say when it begins anew.
    pub(crate) fn snapshot(
        index: &Index,
        suspect: &BTreeSet<u32>,
        confirming: &Confirming,
        missed: &BTreeSet<VolumeKey>,
        gone: &mut Vec<(VolumeKey, u64)>,
        (gone_max, records_max): (usize, usize),
    ) -> Vec<Record> {
        use crate::index::WeuState;
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
            records.extend(words(&w.cleaned).into_iter().map(|(i, bits)| Record::CleanBits {
                weu,
                word: i as u32,
                bits,
            }));
        }
        records.extend(missed.iter().map(|key| Record::Missed(*key)));
        // The oldest go where there are too many: a start that is told which volumes there are doesn't need them.
        let room = records_max.saturating_sub(records.len()).min(gone_max);
        gone.drain(..gone.len().saturating_sub(room));
        records.extend(gone.iter().map(|(key, _)| Record::Gone(*key)));
        records
    }

    /// Writes what the journal has to say, if it isn't writing already.
    pub(crate) fn write_journal(&mut self, now: Time, force: bool, out: &mut Actions) {
        if matches!(self.life, Life::Broken { .. } | Life::Failed(_)) {
            return;
        }
        let (index, suspect, gone, durable) = (&self.index, &self.suspect, &mut self.gone, self.durable_chunks);
        let (confirming, missed) = (&self.confirming, &self.missed);
        let most = (self.layout.gone_max(), self.layout.records_max());
        if let Some(w) =
            self.journal.next_write(durable, force, || Cache::snapshot(index, suspect, confirming, missed, gone, most))
        {
            let len = w.bytes.len() as u64;
            let data = Data::Bytes(plimsoll_base::Buf::copy_of(&w.bytes));
            for at in w.at {
                self.send_fast(now, (Op::Write, OwnKind::Metadata), (at, len), data.clone(), Pending::Journal, out);
            }
        }
    }

    /// The journal has come further: who waited for it goes on.
    pub(crate) fn journaled(&mut self, now: Time, out: &mut Actions) {
        let durable = self.journal.durable();
        let (go, wait): (Vec<_>, Vec<_>) = std::mem::take(&mut self.held).into_iter().partition(|h| h.0 <= durable);
        self.held = wait;
        self.going.retain(|(_, number)| *number > durable);
        self.dirty.journaled(durable);
        self.deaths.journaled(durable);
        for (_, op) in go {
            self.send_through(now, op, out);
        }
        for op in self.unsaid.journaled(durable) {
            self.part_done(now, op, out);
        }
        if self.recovery.is_some() {
            self.recovery_journaled(now, out);
        }
    }
}
