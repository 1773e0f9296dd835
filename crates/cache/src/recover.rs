//! Starting: from what is on the fast device, and nothing else (NI-M19).
//!
//! ```text
//!  page ──► journal, both copies of both halves ──► headers of all WEUs ──► dirty chunks that may be torn: each is checked
//!     ──► flush ──► a new epoch of the journal ──► the page, if the device was of version 2 ──► ready
//! ```
//! A WEU's header says what was written in it, the journal what of that isn't true any more; of clean extents, if it's true at all. Of two entries for one extent that
//! of the later chunk counts; within a chunk, the later slot's. (Not the later WEU's: one for dirty extents may be open for long.)

use crate::broken::Life;
use crate::config::Planted;
use crate::evict::{headers, headers_or_copies};
use crate::format::{ChunkHeader, JournalBlock, chunk_header_bytes};
use crate::index::{Found, Weu};
use crate::journal;
use crate::layer::Cache;
use crate::layout::{Layout, PAGE_BYTES};
use crate::marks::Marks;
use crate::request::Pending;
use crate::status::StartReport;
use crate::tails::Tails;
use crate::tasks::bytes_of;
use crate::unreadable::Unreadable;
use plimsoll_base::{BufMut, Completion, Data, Op, Outcome, OwnKind, Time, VolumeKey};
use plimsoll_stack::{Actions, Offer};
use std::collections::BTreeSet;

/// Headers read at once.
const READS_MAX: u32 = 32;
/// The journal is read in pieces of as much.
const PIECE_BYTES: u64 = 1 << 20;
/// A WEU's headers are looked for in as much first.
const HEADERS_BYTES: u64 = 32 << 10;

/// Numbers of WEUs and chunks have the number of their start above these bits.
pub(crate) const LIFE_SHIFT: u32 = 40;
/// Starts that a cache may have.
const LIVES_MAX: u64 = (1 << 24) - 2;
/// More epochs than any device lives for.
const EPOCHS_MAX: u64 = 1 << 62;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stage {
    Page,
    Journal,
    Headers,
    Tail,
    Flush,
    Epoch,
    Upgrade,
}

/// See the module's documentation.
pub(crate) struct Recovery {
    pub stage: Stage,
    pub begun_at: Time,
    device_bytes: u64,
    pub outstanding: u32,
    /// What is read of the copies of the journal's halves; of a device of version 2 of the two halves, each twice as long.
    pub copies: [Vec<u8>; 4],
    /// The device is of version 2.
    pub old: bool,
    /// The journal is corrupt.
    pub corrupt: Option<journal::Corrupt>,
    pub next_epoch: u64,
    pub durable: u64,
    /// The number of this start: above those of all WEUs and chunks that were ever begun, whether anything of them is left or not.
    pub life: u64,
    /// What is clean is not believed: the device was away.
    pub stale: bool,
    /// [`crate::CacheConfig::generation`] when the journal was written.
    pub generation: u16,
    /// By WEU.
    pub marks: Vec<Marks>,
    pub least: Vec<u64>,
    /// By WEU, the number under which clean extents in it count.
    pub confirmed: Vec<u64>,
    /// By WEU, the number under which headers of dirty extents are there, and of how many slots.
    pub held: Vec<(u64, u32)>,
    /// WEUs under a number that were found after an earlier power loss, without being known to be durable.
    pub suspect: BTreeSet<(u32, u64)>,
    pub gone: BTreeSet<VolumeKey>,
    /// See [`Cache::missed`].
    pub missed: BTreeSet<VolumeKey>,
    pub next_weu: u32,
    pub unreadable: Unreadable,
    pub tails: Tails,
    /// WEUs that hold something: number, WEU, is it for dirty extents, and whose it is.
    pub found: Vec<(u64, u32, bool, Option<u16>)>,
    /// Of each WEU's chunks: the first slot, and which it was of all.
    pub chunks: Vec<Vec<(u32, u64)>>,
    /// What they hold.
    pub load: Found,
    /// WEUs that are mostly names.
    pub of_names: Vec<u32>,
    /// WEUs with fingerprints: number, which, how many.
    pub fingerprints: Vec<(u64, u32, u32)>,
    pub highest: (u64, u64),
    pub report: StartReport,
}

impl Cache {
    pub(crate) fn begin_recovery(&mut self, now: Time, fast: Offer, out: &mut Actions) {
        let n = self.layout.weus as usize;
        self.recovery = Some(Box::new(Recovery {
            stage: Stage::Page,
            begun_at: now,
            device_bytes: fast.size_bytes,
            outstanding: 0,
            copies: Default::default(),
            old: false,
            corrupt: None,
            next_epoch: 0,
            durable: 0,
            life: 0,
            stale: false,
            generation: 0,
            marks: vec![Marks::default(); n],
            least: vec![0; n],
            confirmed: vec![0; n],
            held: vec![(0, 0); n],
            suspect: BTreeSet::new(),
            gone: BTreeSet::new(),
            missed: BTreeSet::new(),
            next_weu: 0,
            unreadable: Unreadable::default(),
            tails: Tails::default(),
            found: Vec::new(),
            chunks: vec![Vec::new(); n],
            load: Found::new(self.layout.extents() as usize),
            of_names: Vec::new(),
            fingerprints: Vec::new(),
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

    pub(crate) fn r(&mut self) -> &mut Recovery {
        self.recovery.as_mut().expect("it is recovering")
    }

    pub(crate) fn recovery_send(&mut self, now: Time, range: (u64, u64), what: u32, out: &mut Actions) {
        self.r().outstanding += 1;
        self.send_fast(now, (Op::Read, OwnKind::Recovery), range, Data::Absent, Pending::Recovery(what), out);
    }

    pub(crate) fn recovery_read(&mut self, now: Time, what: u32, c: Completion, out: &mut Actions) {
        let Some(r) = &mut self.recovery else { return };
        r.outstanding -= 1;
        if !c.outcome.is_done() {
            let stage = r.stage;
            return match stage {
                Stage::Tail => self.tail_read(now, what, None, out),
                // Its other copy may say the same.
                Stage::Journal => self.journal_read(now, what as usize, None, out),
                Stage::Headers => self.headers_unreadable(now, what, (c.io.offset, c.io.len), out),
                stage => self.start_failed(now, &format!("{stage:?}: it can't be read or flushed"), out),
            };
        }
        let bytes = bytes_of(&c.io.data, c.io.len).unwrap_or_else(|| BufMut::zeroed(c.io.len as usize).freeze());
        match r.stage {
            Stage::Page => self.page_read(now, bytes.as_slice(), out),
            Stage::Journal => self.journal_read(now, what as usize, Some(bytes.as_slice()), out),
            Stage::Headers => match r.unreadable.take_piece(what, c.io.offset, bytes.as_slice()) {
                true => self.read_around(now, what, out),
                false => self.headers_read(now, what, bytes.as_slice(), out),
            },
            Stage::Tail => self.tail_read(now, what, Some(bytes), out),
            Stage::Flush => {
                r.stage = Stage::Epoch;
                self.write_journal(now, true, out);
            }
            Stage::Epoch | Stage::Upgrade => unreachable!("these writes end elsewhere"),
        }
    }

    fn page_read(&mut self, now: Time, page: &[u8], out: &mut Actions) {
        let found = match Layout::decode(page) {
            Ok(found) => found,
            Err(why) => return self.fail(&why, out),
        };
        let mut ours = Layout { salt: found.salt, version: found.version, ..self.layout };
        if found.half_bytes != ours.half_bytes
            && let Ok(earlier) = Layout::earlier(self.r().device_bytes, ours.block_bytes, ours.shape, found.salt)
        {
            ours = Layout { version: found.version, nvram: ours.nvram, ..earlier };
        }
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
        self.r().old = found.version != self.layout.version;
        self.take_layout(Layout { version: self.layout.version, ..found });
        for v in 0..self.volumes.len() {
            let (key, config) = (self.volumes[v].key, self.volumes[v].config);
            if let Some(config) = config {
                // Its fingerprints' key depends on the salt.
                let known = self.announce(now, key, config, out);
                debug_assert!(known.is_ok());
            }
        }
        self.r().stage = Stage::Journal;
        for copy in 0..if self.r().old { 2 } else { 4 } {
            self.read_journal_piece(now, copy, out);
        }
    }

    /// The device is laid out so: with as many WEUs as the program had that made it.
    fn take_layout(&mut self, found: Layout) {
        let had = std::mem::replace(&mut self.layout, found).weus;
        if found.weus == had {
            return;
        }
        if self.config.weus_max >= had {
            self.config.weus_max = u32::MAX;
        }
        self.index.set_weus(found.weus);
        let (n, r) = (found.weus as usize, self.r());
        r.marks = vec![Marks::default(); n];
        (r.least, r.confirmed) = (vec![0; n], vec![0; n]);
        r.held = vec![(0, 0); n];
        r.chunks = vec![Vec::new(); n];
        self.share_out();
    }

    /// Offset and length of a copy of a half of the journal.
    fn journal_range(&mut self, copy: u32) -> (u64, u64) {
        let l = self.layout;
        match self.r().old {
            true => (l.half_at(u64::from(copy)), l.half_bytes),
            false => (l.copies_at(u64::from(copy) / 2)[copy as usize % 2], l.copy_bytes()),
        }
    }

    fn read_journal_piece(&mut self, now: Time, copy: u32, out: &mut Actions) {
        let (at, whole) = self.journal_range(copy);
        let have = self.r().copies[copy as usize].len() as u64;
        self.recovery_send(now, (at + have, PIECE_BYTES.min(whole - have)), copy, out);
    }

    /// A piece of a copy of the journal is read, or can't be: nothing more of that copy is.
    fn journal_read(&mut self, now: Time, copy: usize, bytes: Option<&[u8]>, out: &mut Actions) {
        let (salt, block) = (self.layout.salt, self.layout.block_bytes as usize);
        let whole = self.journal_range(copy as u32).1;
        let r = self.r();
        r.copies[copy].extend_from_slice(bytes.unwrap_or_default());
        // All that was written lies at the beginning: where a piece ends with something else, nothing more of this copy matters.
        let decode = if r.old { JournalBlock::decode_2 } else { JournalBlock::decode };
        let goes_on = bytes.is_some_and(|b| b.len() >= block && decode(&b[b.len() - block..], salt).is_some());
        if goes_on && (r.copies[copy].len() as u64) < whole {
            return self.read_journal_piece(now, copy as u32, out);
        }
        if r.outstanding > 0 {
            return;
        }
        let (layout, has) = (self.layout, |p| self.config.planted == Some(p));
        let how = journal::Reading {
            older: has(Planted::OldJournal),
            unchecked: has(Planted::JournalUnchecked),
            trusting: has(Planted::JournalEndsAtCorruption),
            one_copy: has(Planted::JournalReadOnce),
        };
        let r = self.r();
        let [a, b, c, d] = std::mem::take(&mut r.copies);
        let found = match r.old {
            true => journal::read_2([&a, &b], &layout),
            false => journal::read([[&a, &b], [&c, &d]], &layout, how),
        };
        match found {
            Ok(found) => self.journal_found(now, found, out),
            Err(corrupt) => self.journal_corrupt(now, corrupt, out),
        }
    }

    /// The journal doesn't say any more what it said. If nobody can miss anything the cache begins anew, with nothing in it.
    fn journal_corrupt(&mut self, now: Time, corrupt: journal::Corrupt, out: &mut Actions) {
        if self.may_be_behind() {
            return self.start_failed(now, &corrupt.why, out);
        }
        let r = self.r();
        (r.next_epoch, r.durable, r.life) = (corrupt.next_epoch, 0, (corrupt.durable >> LIFE_SHIFT) + 1);
        r.corrupt = Some(corrupt);
        r.stage = Stage::Headers;
        self.read_headers(now, out);
    }

    fn journal_found(&mut self, now: Time, found: journal::Found, out: &mut Actions) {
        let generation = self.config.generation;
        let r = self.r();
        // Each start begins its journal with a number of its own, before it begins any WEU or chunk.
        (r.next_epoch, r.durable, r.life) = (found.next_epoch, found.durable, (found.durable >> LIFE_SHIFT) + 1);
        (r.stale, r.generation) = (found.generation != generation, found.generation);
        let mut under = 0;
        for record in found.records {
            r.replay(record, &mut under);
        }
        r.stage = Stage::Headers;
        self.read_headers(now, out);
    }

    /// All headers are read. One of a start that the journal doesn't know says that the journal lost it.
    fn headers_over(&mut self, now: Time, out: &mut Actions) {
        let r = self.r();
        let highest = r.highest.0.max(r.highest.1) >> LIFE_SHIFT;
        if highest >= r.life && r.corrupt.is_none() && !self.planted(Planted::JournalEndsAtCorruption) {
            let why = format!("the journal knows nothing of start {highest}, which wrote headers: it is corrupt");
            if self.may_be_behind() {
                return self.start_failed(now, &why, out);
            }
            let r = self.r();
            r.corrupt = Some(journal::Corrupt { why, next_epoch: r.next_epoch, durable: 0 });
        }
        let r = self.r();
        r.life = r.life.max(highest + 1);
        if r.life > LIVES_MAX || r.next_epoch > EPOCHS_MAX {
            let why = format!("start {} and epoch {} make no sense", r.life, r.next_epoch);
            return self.start_failed(now, &why, out);
        }
        if r.corrupt.is_some() {
            self.begin_anew();
        }
        self.r().stage = Stage::Tail;
        self.check_tails(now, out);
    }

    /// Nothing that was found counts, now or at a later start.
    fn begin_anew(&mut self) {
        let weus = self.layout.weus as usize;
        let r = self.recovery.as_mut().expect("it is recovering");
        let over = r.life << LIFE_SHIFT;
        r.least = vec![over; weus];
        r.found.clear();
        r.tails = Tails::default();
        r.load = Found::new(0);
        r.chunks = vec![Vec::new(); weus];
        (r.of_names, r.fingerprints) = (Vec::new(), Vec::new());
        (r.report.damaged, r.report.damaged_dirty) = (0, 0);
        self.suspect.clear();
        for weu in 0..self.layout.weus {
            let w = self.index.weu_mut(weu);
            *w = Weu::free();
        }
    }

    pub(crate) fn read_headers(&mut self, now: Time, out: &mut Actions) {
        let len = HEADERS_BYTES.min(u64::from(self.layout.shape.weu_bytes));
        while self.r().outstanding < READS_MAX && !self.r().unreadable.is_full() && self.r().next_weu < self.layout.weus
        {
            let weu = self.r().next_weu;
            self.r().next_weu += 1;
            let at = self.layout.weu_at(weu);
            self.recovery_send(now, (at, len), weu, out);
        }
        if self.r().outstanding == 0 && !self.waits_to_retry(now, out) {
            self.headers_over(now, out);
        }
    }

    pub(crate) fn headers_read(&mut self, now: Time, weu: u32, bytes: &[u8], out: &mut Actions) {
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
        let mut found = found;
        if self.lacks_headers(weu, &found) && !self.planted(Planted::HeaderReadOnce) {
            if (bytes.len() as u64) < whole {
                return self.recovery_send(now, (self.layout.weu_at(weu), whole), weu, out);
            }
            let sequence = self.r().held[weu as usize].0;
            found = headers_or_copies(bytes, salt, block, weu, sequence);
        }
        let hides = self.hides_headers(weu, bytes, &found);
        self.miss_headers(weu, &found, hides);
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
        if !first.dirty
            && r.confirmed[weu as usize] != sequence
            && !self.config.planted.is_some_and(|p| p == Planted::BelieveTrials)
        {
            // It was on trial. Nor does any later start believe it.
            r.report.unconfirmed += 1;
            r.least[weu as usize] = sequence + 1;
            return;
        }
        if r.marks[weu as usize].sequence != sequence {
            r.marks[weu as usize] = Marks { sequence, ..Marks::default() };
        }
        self.seal_behind(weu, &found);
        let doubtful = found.iter().any(|h| self.is_doubtful(h));
        if doubtful && !self.planted(Planted::BelieveTornChunks) {
            self.index.weu_mut(weu).sequence = sequence;
            self.r().tails.weus.push((weu, found));
        } else {
            self.adopt_headers(weu, found);
        }
    }
}
