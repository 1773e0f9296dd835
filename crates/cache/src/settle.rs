//! The end of a start: what headers say is judged, references are resolved, and the index is complete.

use crate::config::{Planted, Sharing};
use crate::format::{ChunkHeader, Slot, chunk_header_bytes};
use crate::index::{Found, Key, Loc, SLOTS_MAX, UNIT_BYTES, bit, set_bit};
use crate::journal::Journal;
use crate::layer::Cache;
use crate::layout::PAGE_BYTES;
use crate::recover::{LIFE_SHIFT, Stage};
use crate::relearn::Relearn;
use crate::request::Pending;
use crate::status::StartReport;
use crate::tails::Tails;
use plimsoll_base::{Buf, Data, Op, OwnKind, Time, VolumeKey};
use plimsoll_stack::Actions;

impl Cache {
    /// Takes what a WEU's headers say for true.
    pub(crate) fn adopt_headers(&mut self, weu: u32, found: Vec<ChunkHeader>) {
        let doubtful = found.iter().any(|h| self.is_doubtful(h));
        let r = self.recovery.as_mut().expect("it is recovering");
        let (sequence, dirty) = (found[0].sequence, found[0].dirty);
        let marks = std::mem::take(&mut r.marks[weu as usize]);
        // Once and for all: this start's number is above all of its chunks, so the next one couldn't tell.
        let suspect = r.suspect.contains(&(weu, sequence)) || doubtful;
        let header_bytes: u32 =
            found.iter().map(|h| chunk_header_bytes(h.entries.len(), self.layout.block_bytes)).sum();
        let w = self.index.weu_mut(weu);
        (w.sequence, w.for_dirty, w.header_bytes) = (sequence, dirty, header_bytes);
        let slots = found.last().map_or(0, |h| h.first_slot + h.entries.len() as u32);
        w.slots = slots;
        w.durable_slots = if dirty { slots } else { 0 };
        (w.dead, w.cleaned) = (marks.dead, marks.cleaned);
        if suspect {
            self.suspect.insert(weu);
        }
        let names = found.iter().flat_map(|h| &h.entries).filter(|e| matches!(e.what, Slot::Ref { .. })).count();
        if !dirty && names as u32 > self.layout.slots_max() / 2 {
            self.r().of_names.push(weu);
        }
        let (stale, extent_bytes) = (self.r().stale, self.extent_bytes());
        let mut last: Option<(VolumeKey, Option<u16>)> = None;
        let (mut whose, mut fingerprints) = (None, 0);
        for h in found {
            self.r().chunks[weu as usize].push((h.first_slot, h.chunk));
            for (i, e) in h.entries.iter().enumerate() {
                let slot = h.first_slot + i as u32;
                let end = (u32::from(e.at_unit) + u32::from(e.len_units)) * UNIT_BYTES;
                let fits = (1..1 << 12).contains(&e.len_units) && end <= self.layout.shape.weu_bytes;
                if slot >= SLOTS_MAX || !fits {
                    continue; // no header that was written says so
                }
                let cleaned = bit(&self.index.weu(weu).cleaned, slot);
                let own = Loc::new(weu, u32::from(e.at_unit), u32::from(e.len_units), slot);
                fingerprints += u32::from(matches!(e.what, Slot::Base(Some(_))));
                // Also of what is dead: a duplicate may have its bytes.
                if own.is_bare(extent_bytes) && matches!(e.what, Slot::Base(_)) {
                    self.index.weu_mut(weu).set_sum(slot, e.sum, slots);
                }
                if stale && (!h.dirty || cleaned || self.is_given_up(&e.name.volume)) {
                    set_bit(&mut self.index.weu_mut(weu).dead, slot);
                    continue;
                }
                if e.dead || self.index.weu(weu).is_dead(slot) {
                    continue;
                }
                let volume = match last {
                    Some((key, volume)) if key == e.name.volume => volume,
                    _ => self.found_volume(e.name.volume),
                };
                last = Some((e.name.volume, volume));
                let Some(volume) = volume else { continue };
                whose = whose.or(Some(self.volumes[volume as usize].partition));
                let key = Key::new(volume, e.name.extent);
                match e.what {
                    Slot::Base(_) => self.r().load.extent(key, own.dirty(h.dirty && !cleaned)),
                    Slot::Ref { weu: to, sequence: target_sequence, slot: target_slot } => {
                        if to < self.layout.weus && target_slot < SLOTS_MAX {
                            let target = Loc::new(to, u32::from(e.at_unit), u32::from(e.len_units), target_slot);
                            let target = target.dup(true).dirty(h.dirty && !cleaned);
                            self.r().load.name(key, own, target, target_sequence);
                        }
                    }
                }
            }
        }
        self.r().found.push((sequence, weu, dirty, whose));
        if fingerprints > 0 {
            self.r().fingerprints.push((sequence, weu, fingerprints));
        }
    }

    /// The slot of a volume that a header names, unless it is gone.
    fn found_volume(&mut self, key: VolumeKey) -> Option<u16> {
        (!self.is_gone(&key)).then(|| self.slot_of(key)).flatten()
    }

    /// Was it deleted?
    pub(crate) fn is_gone(&self, key: &VolumeKey) -> bool {
        let deleted = self.recovery.as_ref().is_some_and(|r| r.gone.contains(key));
        let unknown =
            self.known.as_ref().is_some_and(|known| !known.contains_key(key) && !self.by_key.contains_key(key));
        deleted || unknown
    }

    /// Which of a WEU's chunks are torn.
    fn torn(&self, chunks: &[ChunkHeader]) -> Vec<bool> {
        chunks.iter().map(|h| self.is_doubtful(h) && !self.is_whole(h)).collect()
    }

    /// All has been read: what is torn goes, references are resolved, and the index is complete.
    pub(crate) fn settle(&mut self, now: Time, out: &mut Actions) {
        let tails = std::mem::take(&mut self.r().tails.weus);
        // Those that were found after a WEU that one refers to have said by now under which numbers they are.
        let judged: Vec<Vec<bool>> = tails.iter().map(|(_, chunks)| self.torn(chunks)).collect();
        for ((weu, mut chunks), torn) in tails.into_iter().zip(judged) {
            for (h, torn) in chunks.iter().zip(&torn) {
                if *torn {
                    let r = self.r();
                    r.report.torn += 1;
                    let slots = h.first_slot..h.first_slot + h.entries.len() as u32;
                    slots.for_each(|s| {
                        set_bit(&mut r.marks[weu as usize].dead, s);
                    });
                }
            }
            // Their bytes must not be relied on either, but their headers keep their place.
            for (h, torn) in chunks.iter_mut().zip(torn) {
                if torn {
                    h.entries.iter_mut().for_each(|e| (e.dead, e.what) = (true, Slot::Base(None)));
                }
            }
            self.adopt_headers(weu, chunks);
        }
        let mut load = std::mem::replace(&mut self.r().load, Found::new(0));
        load.forgets_lost = self.planted(Planted::LostDuplicateForgotten);
        self.r().report.extents = load.extents() as u64;
        let r = self.recovery.as_ref().expect("it is recovering");
        // Some may have been deleted meanwhile.
        let there: Vec<bool> =
            (0..=u16::MAX).zip(&self.volumes).map(|(slot, v)| self.by_key.get(&v.key) == Some(&slot)).collect();
        let (mut maybe_dirty, named) = self.index.load(load, |loc| r.order(loc), |slot| there[slot as usize]);
        maybe_dirty.extend(named.dirty);
        self.refs = named.refs.into_iter().collect();
        self.finish_index(maybe_dirty);
        for key in named.lost {
            self.dirty.set_lost(key);
            self.lose(key);
        }
        let r = self.r();
        (r.tails, r.stage) = (Tails::default(), Stage::Flush);
        r.outstanding += 1;
        // Whether the power was lost or only the node: what is believed from now on must stay.
        self.send_fast(now, (Op::Flush, OwnKind::Recovery), (0, 0), Data::Absent, Pending::Recovery(0), out);
    }

    /// The index's own order of WEUs, and what is dirty.
    fn finish_index(&mut self, maybe_dirty: Vec<Key>) {
        let mut found = std::mem::take(&mut self.r().found);
        found.sort_unstable();
        let first = self.volumes.first().map_or(0, |v| v.partition);
        let has_partition = self.config.sharing == Sharing::Shared || !self.volumes.is_empty();
        if has_partition {
            self.index.adopt_all(found.iter().map(|(s, w, d, whose)| (*w, whose.unwrap_or(first), *s, *d)));
            found.iter().for_each(|(_, weu, ..)| self.index.filled(*weu));
        }
        for weu in std::mem::take(&mut self.r().of_names) {
            self.name_weus.entry(self.index.weu(weu).partition).or_default().insert(weu);
        }
        for key in maybe_dirty {
            if let Some(loc) = self.index.look(key).filter(|l| l.is_dirty() && !self.dirty.contains(&key)) {
                let own = self.refs.get(&key).copied();
                self.dirtied(key, loc, own);
                own.into_iter().for_each(|own| self.pin(own.weu()));
                if self.volumes[key.volume() as usize].config.is_none() {
                    self.dirty.hold(key, Time::NEVER);
                }
            }
        }
        for v in &mut self.volumes {
            v.draining = v.config.is_some_and(|c| c.mode != crate::config::Mode::Back) && v.dirty > 0;
        }
        let max = self.index.fingerprints_max();
        let fingerprints = std::mem::take(&mut self.r().fingerprints);
        self.relearn = Relearn::of(if max > 0 { fingerprints } else { Vec::new() }, max);
        let dirty = self.dirty.len() as u64;
        let r = self.recovery.as_mut().expect("it is recovering");
        // A number that was begun and left no header is never used again: each start has its own.
        let life = r.life << LIFE_SHIFT;
        assert!(life > r.highest.0 && life > r.highest.1, "starts ascend");
        (self.next_sequence, self.next_chunk, self.durable_chunks) = (life, life, life);
        if self.config.planted == Some(Planted::ReuseSequence) {
            (self.next_sequence, self.next_chunk) = (r.highest.0 + 1, r.highest.1 + 1);
        }
        let missed = std::mem::take(&mut r.missed);
        self.gone = r.gone.iter().map(|key| (*key, life)).collect();
        for (weu, least) in r.least.iter().enumerate() {
            let w = self.index.weu_mut(weu as u32);
            // What a free WEU held is forgotten under the same number in the next snapshot too.
            w.sequence = w.sequence.max(least.saturating_sub(1));
        }
        (r.report.weus, r.report.dirty) = (found.len() as u32, dirty);
        self.journal = Journal::new(self.layout, self.config.generation, r.next_epoch);
        self.missed = missed.into_iter().filter(|key| self.is_missed(key)).collect();
    }

    /// The new epoch has begun.
    pub(crate) fn recovery_journaled(&mut self, now: Time, out: &mut Actions) {
        if self.journal.in_snapshot() {
            return self.write_journal(now, false, out);
        }
        if !self.r().old {
            return self.recovered(now, out);
        }
        // All that the new version needs is there. A page of both versions is one of the new: see `layout`.
        self.r().stage = Stage::Upgrade;
        let page = Data::Bytes(Buf::copy_of(&self.layout.encode()));
        let write = (Op::Write, OwnKind::Metadata);
        self.send_fast(now, write, (0, PAGE_BYTES), page, Pending::Upgrade, out);
    }

    /// Everything is as a start needs it.
    pub(crate) fn recovered(&mut self, now: Time, out: &mut Actions) {
        self.going.clear();
        self.share_out();
        let r = self.recovery.take().expect("it is recovering");
        let journal_lost = r.corrupt.is_some();
        self.start_report = StartReport { took: now.since(r.begun_at), journal_lost, converted: r.old, ..r.report };
        self.ready(now, out);
    }
}
