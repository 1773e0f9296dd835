//! Starting: from what is on the fast device, and nothing else (NI-M19).
//!
//! ```text
//!  page ──► journal, both halves ──► headers of all WEUs ──► dirty chunks that may be torn: all of them is checked
//!     ──► flush ──► a new epoch of the journal ──► ready
//! ```
//! A WEU's header says what was written in it, the journal what of that isn't true any more. Of two entries for one extent
//! the later WEU's counts; within a WEU, the later slot's.

use crate::broken::Life;
use crate::config::Planted;
use crate::evict::headers;
use crate::format::{ChunkHeader, EXTENT_HEAD_BYTES, ExtentHead, Record, Slot, chunk_header_bytes};
use crate::index::{Found, Key, Loc, SLOTS_MAX, bit, set_bit};
use crate::journal::{self, Journal};
use crate::layer::Cache;
use crate::layout::{Layout, PAGE_BYTES};
use crate::request::Pending;
use crate::status::StartReport;
use crate::tasks::{bytes_of, unpack};
use plimsoll_base::{Buf, BufMut, Completion, Data, Op, Outcome, OwnKind, Time, VolumeKey};
use plimsoll_stack::{Actions, Offer};
use std::collections::{BTreeMap, BTreeSet};

/// Headers read at once.
const READS_MAX: u32 = 32;
/// The journal is read in pieces of as much.
const PIECE_BYTES: u64 = 1 << 20;
/// A WEU's headers are looked for in as much first.
const HEADERS_BYTES: u64 = 32 << 10;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    Page,
    Journal,
    Headers,
    Tail,
    Flush,
    Epoch,
}

/// Bits of a WEU, under a number.
#[derive(Clone, Default)]
struct Marks {
    sequence: u64,
    dead: Vec<u64>,
    cleaned: Vec<u64>,
}

/// A duplicate whose bytes are elsewhere.
struct Reference {
    key: Key,
    own: Loc,
    own_sequence: u64,
    target: Loc,
    target_sequence: u64,
}

/// See the module's documentation.
pub(crate) struct Recovery {
    stage: Stage,
    begun_at: Time,
    outstanding: u32,
    halves: [Vec<u8>; 2],
    next_epoch: u64,
    durable: u64,
    /// What is clean is not believed: the device was away.
    stale: bool,
    /// By WEU.
    marks: Vec<Marks>,
    least: Vec<u64>,
    gone: BTreeSet<VolumeKey>,
    next_weu: u32,
    /// WEUs with dirty chunks that no flush is known to have covered.
    tails: Vec<(u32, Vec<ChunkHeader>)>,
    /// All of those WEUs, and of those that they refer to.
    bytes: BTreeMap<u32, Option<Buf>>,
    references: Vec<Reference>,
    /// WEUs that hold something: number, WEU, is it for dirty extents, and whose it is.
    found: Vec<(u64, u32, bool, Option<u16>)>,
    /// What they hold.
    load: Found,
    highest: (u64, u64),
    report: StartReport,
}

impl Cache {
    pub(crate) fn begin_recovery(&mut self, now: Time, fast: Offer, out: &mut Actions) {
        let n = self.layout.weus as usize;
        self.recovery = Some(Box::new(Recovery {
            stage: Stage::Page,
            begun_at: now,
            outstanding: 0,
            halves: [Vec::new(), Vec::new()],
            next_epoch: 0,
            durable: 0,
            stale: false,
            marks: vec![Marks::default(); n],
            least: vec![0; n],
            gone: BTreeSet::new(),
            next_weu: 0,
            tails: Vec::new(),
            bytes: BTreeMap::new(),
            references: Vec::new(),
            found: Vec::new(),
            load: Found::new(self.layout.weus, self.layout.extents() as usize),
            highest: (0, 0),
            report: StartReport::default(),
        }));
        if fast.block_bytes > self.layout.block_bytes || self.layout.weu_at(self.layout.weus) > fast.size_bytes {
            return self.fail("the device is smaller, or has larger blocks, than the cache needs", out);
        }
        self.recovery_send(now, (0, PAGE_BYTES), 0, out);
    }

    fn fail(&mut self, why: &str, out: &mut Actions) {
        self.life = Life::Failed(why.into());
        self.recovery = None;
        for io in std::mem::take(&mut self.early) {
            out.end(io, Outcome::Failed(plimsoll_base::IoError::Unavailable));
        }
    }

    fn r(&mut self) -> &mut Recovery {
        self.recovery.as_mut().expect("it is recovering")
    }

    fn recovery_send(&mut self, now: Time, range: (u64, u64), what: u32, out: &mut Actions) {
        self.r().outstanding += 1;
        self.send_fast(now, (Op::Read, OwnKind::Recovery), range, Data::Absent, Pending::Recovery(what), out);
    }

    pub(crate) fn recovery_read(&mut self, now: Time, what: u32, c: Completion, out: &mut Actions) {
        let Some(r) = &mut self.recovery else { return };
        r.outstanding -= 1;
        if !c.outcome.is_done() {
            let during = format!("the cache can't be read ({:?})", r.stage);
            return self.fail(&during, out);
        }
        let bytes = bytes_of(&c.io.data, c.io.len).unwrap_or_else(|| BufMut::zeroed(c.io.len as usize).freeze());
        match r.stage {
            Stage::Page => self.page_read(now, bytes.as_slice(), out),
            Stage::Journal => self.journal_read(now, what as usize, bytes.as_slice(), out),
            Stage::Headers => self.headers_read(now, what, bytes.as_slice(), out),
            Stage::Tail => {
                r.bytes.insert(what, Some(bytes));
                if r.outstanding == 0 {
                    self.settle(now, out);
                }
            }
            Stage::Flush => {
                r.stage = Stage::Epoch;
                self.write_journal(now, true, out);
            }
            Stage::Epoch => unreachable!("the journal's own writes end elsewhere"),
        }
    }

    fn page_read(&mut self, now: Time, page: &[u8], out: &mut Actions) {
        let found = match Layout::decode(page) {
            Ok(found) => found,
            Err(why) => return self.fail(&why, out),
        };
        let ours = Layout { salt: found.salt, ..self.layout };
        if found.nvram != ours.nvram {
            let why = match found.nvram {
                true => {
                    "the device's cache was made with NVRAM, which may have what was written last: configure its `nvram`"
                }
                false => {
                    "the device's cache was made without NVRAM: take `nvram` out, or make the cache anew on an empty device"
                }
            };
            return self.fail(why, out);
        }
        if found != ours {
            let (s, o) = (found.shape, ours.shape);
            let why = format!(
                "the device's cache has extents of {} bytes, WEUs of {} bytes and {} of them; configured are {}, {} and {}",
                s.extent_bytes, s.weu_bytes, found.weus, o.extent_bytes, o.weu_bytes, ours.weus
            );
            return self.fail(&why, out);
        }
        self.layout = found;
        for v in 0..self.volumes.len() {
            let (key, config) = (self.volumes[v].key, self.volumes[v].config);
            if let Some(config) = config {
                // Its fingerprints' key depends on the salt.
                let known = self.announce(now, key, config, out);
                debug_assert!(known.is_ok());
            }
        }
        self.r().stage = Stage::Journal;
        for half in 0..2 {
            self.read_journal_piece(now, half, out);
        }
    }

    fn read_journal_piece(&mut self, now: Time, half: u32, out: &mut Actions) {
        let have = self.r().halves[half as usize].len() as u64;
        let len = PIECE_BYTES.min(self.layout.half_bytes - have);
        let at = self.layout.half_at(u64::from(half)) + have;
        self.recovery_send(now, (at, len), half, out);
    }

    fn journal_read(&mut self, now: Time, half: usize, bytes: &[u8], out: &mut Actions) {
        let (salt, block) = (self.layout.salt, self.layout.block_bytes as usize);
        let half_bytes = self.layout.half_bytes;
        let r = self.r();
        r.halves[half].extend_from_slice(bytes);
        // All that was written lies at the beginning: where a piece ends with something else, nothing more matters.
        let goes_on = crate::format::JournalBlock::decode(&bytes[bytes.len() - block..], salt).is_some();
        if goes_on && (r.halves[half].len() as u64) < half_bytes {
            return self.read_journal_piece(now, half as u32, out);
        }
        if r.outstanding > 0 {
            return;
        }
        let layout = self.layout;
        let any_order = self.planted(Planted::OldJournal);
        let halves = std::mem::take(&mut self.r().halves);
        match journal::read([&halves[0], &halves[1]], &layout, any_order) {
            Ok(found) => self.journal_found(now, found, out),
            Err(why) => self.fail(&why, out),
        }
    }

    fn journal_found(&mut self, now: Time, found: journal::Found, out: &mut Actions) {
        let generation = self.config.generation;
        let r = self.r();
        (r.next_epoch, r.durable) = (found.next_epoch, found.durable);
        r.stale = found.generation != generation;
        let mut under = 0;
        for record in found.records {
            r.replay(record, &mut under);
        }
        r.stage = Stage::Headers;
        self.read_headers(now, out);
    }

    fn read_headers(&mut self, now: Time, out: &mut Actions) {
        let len = HEADERS_BYTES.min(u64::from(self.layout.shape.weu_bytes));
        while self.r().outstanding < READS_MAX && self.r().next_weu < self.layout.weus {
            let weu = self.r().next_weu;
            self.r().next_weu += 1;
            let at = self.layout.weu_at(weu);
            self.recovery_send(now, (at, len), weu, out);
        }
        if self.r().outstanding == 0 {
            self.read_tails(now, out);
        }
    }

    fn headers_read(&mut self, now: Time, weu: u32, bytes: &[u8], out: &mut Actions) {
        let (salt, block, whole) = (self.layout.salt, self.layout.block_bytes, u64::from(self.layout.shape.weu_bytes));
        let trusting = self.planted(Planted::IgnoreHeaderChecksum);
        let found = headers(bytes, salt, block, weu, None, trusting);
        let end: u32 = found.iter().map(|h| chunk_header_bytes(h.entries.len(), block)).sum();
        let more = bytes.get(end as usize..).map_or(0, |b| match ChunkHeader::peek(b, salt, block) {
            Some(next) => u64::from(end + next),
            None if b.len() < block as usize => u64::from(end) + 4096,
            None => 0,
        });
        if more > bytes.len() as u64 && (bytes.len() as u64) < whole {
            let len = (more * 2).next_multiple_of(4096).min(whole);
            let at = self.layout.weu_at(weu);
            return self.recovery_send(now, (at, len), weu, out);
        }
        self.take_headers(weu, found);
        self.read_headers(now, out);
    }

    /// What a WEU's headers say, unless its end may be torn: that is looked at first.
    pub(crate) fn take_headers(&mut self, weu: u32, found: Vec<ChunkHeader>) {
        let r = self.recovery.as_mut().expect("it is recovering");
        let Some(first) = found.first() else { return };
        let sequence = first.sequence;
        let last_chunk = found.iter().map(|h| h.chunk).max().unwrap_or(0);
        r.highest = (r.highest.0.max(sequence), r.highest.1.max(last_chunk));
        if sequence < r.least[weu as usize] {
            return;
        }
        if r.marks[weu as usize].sequence != sequence {
            r.marks[weu as usize] = Marks { sequence, ..Marks::default() };
        }
        let doubtful = found.iter().any(|h| h.dirty && h.chunk >= r.durable);
        if doubtful && !self.planted(Planted::BelieveTornChunks) {
            self.index.weu_mut(weu).sequence = sequence;
            self.r().tails.push((weu, found));
        } else {
            self.adopt_headers(weu, found);
        }
    }

    fn adopt_headers(&mut self, weu: u32, found: Vec<ChunkHeader>) {
        let r = self.recovery.as_mut().expect("it is recovering");
        let (sequence, dirty) = (found[0].sequence, found[0].dirty);
        let marks = std::mem::take(&mut r.marks[weu as usize]);
        let doubtful = found.iter().any(|h| h.chunk >= r.durable);
        let header_bytes: u32 =
            found.iter().map(|h| chunk_header_bytes(h.entries.len(), self.layout.block_bytes)).sum();
        let w = self.index.weu_mut(weu);
        (w.sequence, w.for_dirty, w.header_bytes) = (sequence, dirty, header_bytes);
        w.slots = found.last().map_or(0, |h| h.first_slot + h.entries.len() as u32);
        (w.dead, w.cleaned) = (marks.dead, marks.cleaned);
        if doubtful {
            self.suspect.insert(weu);
        }
        let stale = self.r().stale;
        let mut last: Option<(VolumeKey, Option<u16>)> = None;
        let mut whose = None;
        for h in found {
            for (i, e) in h.entries.iter().enumerate() {
                let slot = h.first_slot + i as u32;
                if slot >= SLOTS_MAX || e.len_units >= 1 << 12 {
                    continue; // no header that was written says so
                }
                let cleaned = bit(&self.index.weu(weu).cleaned, slot);
                let own = Loc::new(weu, u32::from(e.at_unit), u32::from(e.len_units), slot);
                if let Slot::Base(Some(fp)) = e.what
                    && self.config.fingerprints_percent > 0
                {
                    self.r().load.content(fp, own);
                }
                if stale && (!h.dirty || cleaned) {
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
                            let reference = Reference { key, own, own_sequence: sequence, target, target_sequence };
                            self.r().references.push(reference);
                        }
                    }
                }
            }
        }
        self.r().found.push((sequence, weu, dirty, whose));
    }

    /// The slot of a volume that a header names, unless it is gone.
    fn found_volume(&mut self, key: VolumeKey) -> Option<u16> {
        (!self.r().gone.contains(&key)).then(|| self.slot_of(key)).flatten()
    }

    /// An entry is there; the later one of two counts, and the other is dead from now on.
    fn found_entry(&mut self, key: Key, loc: Loc, own: Loc, sequence: u64) {
        if let Some(old) = self.index.look(key) {
            let old_own = self.refs.get(&key).copied().unwrap_or(old);
            let old_at = (self.index.weu(old_own.weu()).sequence, old_own.slot());
            let loser = if old_at > (sequence, own.slot()) { own } else { old_own };
            set_bit(&mut self.index.weu_mut(loser.weu()).dead, loser.slot());
            if loser == own {
                return;
            }
        }
        self.index.set(key, loc);
        self.refs.remove(&key);
        if loc.is_dup() {
            self.refs.insert(key, own);
        }
    }

    /// Reads all of the WEUs whose last chunks may be torn, and those that they refer to.
    fn read_tails(&mut self, now: Time, out: &mut Actions) {
        let weus = self.layout.weus;
        let r = self.r();
        r.stage = Stage::Tail;
        let durable = r.durable;
        let mut wanted: BTreeSet<u32> = BTreeSet::new();
        for (weu, chunks) in &r.tails {
            wanted.insert(*weu);
            for e in chunks.iter().filter(|h| h.chunk >= durable).flat_map(|h| &h.entries) {
                if let Slot::Ref { weu, .. } = e.what
                    && weu < weus
                {
                    wanted.insert(weu);
                }
            }
        }
        if wanted.is_empty() {
            return self.settle(now, out);
        }
        let len = u64::from(self.layout.shape.weu_bytes);
        for weu in wanted {
            let at = self.layout.weu_at(weu);
            self.recovery_send(now, (at, len), weu, out);
        }
    }

    /// Is every extent of a chunk there, and what it should be? What a duplicate relied on may be gone when the duplicate is, and
    /// a WEU whose header isn't there will be written again, whatever of it is there.
    fn is_whole(&self, h: &ChunkHeader) -> bool {
        let r = self.recovery.as_ref().expect("it is recovering");
        let e = u64::from(self.layout.shape.extent_bytes);
        let marks = &r.marks[h.weu as usize];
        h.entries.iter().zip(h.first_slot..).all(|(entry, slot)| {
            let past = || bit(&marks.dead, slot) || bit(&marks.cleaned, slot) || r.gone.contains(&entry.name.volume);
            let (weu, sequence, name) = match entry.what {
                Slot::Base(_) => (h.weu, h.sequence, Some(entry.name)),
                Slot::Ref { .. } if entry.dead || past() => return true,
                Slot::Ref { weu, .. } if weu >= self.layout.weus => return false,
                Slot::Ref { weu, sequence, .. } if self.index.weu(weu).sequence != sequence => return false,
                Slot::Ref { weu, sequence, .. } => (weu, sequence, None),
            };
            let Some(Some(bytes)) = r.bytes.get(&weu) else { return false };
            let at = usize::from(entry.at_unit) * 64;
            let Some(head) = bytes.as_slice().get(at..at + EXTENT_HEAD_BYTES) else { return false };
            let Some(head) = ExtentHead::decode(head.try_into().expect("as long as a head"), sequence) else {
                return false;
            };
            let from = at + EXTENT_HEAD_BYTES;
            let fits = from + head.payload_bytes as usize <= bytes.len();
            fits && name.is_none_or(|n| n == head.name)
                && unpack(Data::Bytes(bytes.slice(from, head.payload_bytes as usize)), &head, e, false).is_some()
        })
    }

    /// All has been read: what is torn goes, references are resolved, and the index is complete.
    fn settle(&mut self, now: Time, out: &mut Actions) {
        for (weu, chunks) in std::mem::take(&mut self.r().tails) {
            let durable = self.r().durable;
            let torn: Vec<bool> = chunks.iter().map(|h| h.chunk >= durable && !self.is_whole(h)).collect();
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
            let mut chunks = chunks;
            for (h, torn) in chunks.iter_mut().zip(torn) {
                if torn {
                    h.entries.iter_mut().for_each(|e| (e.dead, e.what) = (true, Slot::Base(None)));
                }
            }
            self.adopt_headers(weu, chunks);
        }
        let load = std::mem::replace(&mut self.r().load, Found::new(0, 0));
        self.r().report.extents = load.extents() as u64;
        self.index.load(load);
        for x in std::mem::take(&mut self.r().references) {
            if self.index.weu(x.target.weu()).sequence == x.target_sequence {
                self.found_entry(x.key, x.target, x.own, x.own_sequence);
            } else if x.target.is_dirty() {
                self.lose(x.key);
            } else {
                set_bit(&mut self.index.weu_mut(x.own.weu()).dead, x.own.slot());
            }
        }
        self.finish_index();
        let r = self.r();
        (r.bytes, r.stage) = (BTreeMap::new(), Stage::Flush);
        r.outstanding += 1;
        // Whether the power was lost or only the node: what is believed from now on must stay.
        self.send_fast(now, (Op::Flush, OwnKind::Recovery), (0, 0), Data::Absent, Pending::Recovery(0), out);
    }

    /// The index's own order of WEUs, and what is dirty.
    fn finish_index(&mut self) {
        let mut found = std::mem::take(&mut self.r().found);
        found.sort_unstable();
        let first = self.volumes.first().map_or(0, |v| v.partition);
        let has_partition = self.config.sharing == crate::config::Sharing::Shared || !self.volumes.is_empty();
        if has_partition {
            self.index.adopt_all(found.iter().map(|(s, w, d, whose)| (*w, whose.unwrap_or(first), *s, *d)));
            found.iter().for_each(|(_, weu, ..)| self.index.filled(*weu));
        }
        let dirty: Vec<Key> = self.index.entries().filter(|(_, l)| l.is_dirty()).map(|(k, _)| k).collect();
        for key in dirty {
            self.volumes[key.volume() as usize].dirty += 1;
            self.dirty.insert(key);
        }
        let pinned: Vec<Loc> = self.refs.iter().filter(|(k, _)| self.dirty.contains(k)).map(|(_, own)| *own).collect();
        pinned.into_iter().for_each(|own| self.pin(own.weu()));
        for v in &mut self.volumes {
            v.draining = v.config.is_some_and(|c| c.mode != crate::config::Mode::Back) && v.dirty > 0;
        }
        let dirty = self.dirty.len() as u64;
        let r = self.recovery.as_mut().expect("it is recovering");
        // A number that was begun and left no header is never used again: each start has its own.
        let life = r.next_epoch << 40;
        assert!(life > r.highest.0 && life > r.highest.1, "epochs ascend");
        (self.next_sequence, self.next_chunk, self.durable_chunks) = (life, life, life);
        if self.config.planted == Some(Planted::ReuseSequence) {
            (self.next_sequence, self.next_chunk) = (r.highest.0 + 1, r.highest.1 + 1);
        }
        self.gone = r.gone.iter().map(|key| (*key, life)).collect();
        for (weu, least) in r.least.iter().enumerate() {
            let w = self.index.weu_mut(weu as u32);
            // What a free WEU held is forgotten under the same number in the next snapshot too.
            w.sequence = w.sequence.max(least.saturating_sub(1));
        }
        (r.report.weus, r.report.dirty) = (found.len() as u32, dirty);
        self.journal = Journal::new(self.layout, self.config.generation, r.next_epoch);
    }

    /// The new epoch has begun.
    pub(crate) fn recovery_journaled(&mut self, now: Time, out: &mut Actions) {
        if self.journal.in_snapshot() {
            return self.write_journal(now, false, out);
        }
        let r = self.recovery.take().expect("it is recovering");
        self.start_report = StartReport { took: now.since(r.begun_at), ..r.report };
        self.ready(now, out);
    }
}

impl Recovery {
    /// Applies what the journal says; `under` is the number that a snapshot's bits are under.
    fn replay(&mut self, record: Record, under: &mut u64) {
        let weus = self.marks.len() as u32;
        match record {
            Record::Dead { weu, sequence, slot } if weu < weus => {
                if let Some(m) = self.marks_of(weu, sequence) {
                    set_bit(&mut m.dead, slot);
                }
            }
            Record::Cleaned { weu, sequence, slot } if weu < weus => {
                if let Some(m) = self.marks_of(weu, sequence) {
                    set_bit(&mut m.cleaned, slot);
                }
            }
            Record::Least { weu, sequence } if weu < weus => {
                self.least[weu as usize] = self.least[weu as usize].max(sequence);
                *under = sequence;
            }
            Record::Gone(key) => {
                self.gone.insert(key);
            }
            Record::DeadBits { weu, word, bits } if weu < weus => {
                let sequence = *under;
                if let Some(m) = self.marks_of(weu, sequence) {
                    or_word(&mut m.dead, word, bits);
                }
            }
            Record::CleanBits { weu, word, bits } if weu < weus => {
                let sequence = *under;
                if let Some(m) = self.marks_of(weu, sequence) {
                    or_word(&mut m.cleaned, word, bits);
                }
            }
            _ => {} // of a WEU that there isn't: no such block was written by us
        }
    }

    /// The marks of a WEU under a number, unless later ones are known.
    fn marks_of(&mut self, weu: u32, sequence: u64) -> Option<&mut Marks> {
        let m = &mut self.marks[weu as usize];
        if sequence < m.sequence {
            return None;
        }
        if sequence > m.sequence {
            *m = Marks { sequence, ..Marks::default() };
        }
        Some(m)
    }
}

fn or_word(bits: &mut Vec<u64>, word: u32, value: u64) {
    if bits.len() <= word as usize {
        bits.resize(word as usize + 1, 0);
    }
    bits[word as usize] |= value;
}
