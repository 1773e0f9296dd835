//! Recovery: the state of the cache from the fast device alone (NI-M19).
//!
//! ```text
//!  page ──► journal, both copies of both halves ──► headers of all WEUs ──► dirty chunks that may be torn: each is checked
//!     ──► [`Recovered`]
//! ```
//! A WEU's header lists the extents that were written in it. The journal records which of them are no longer valid, and which WEUs'
//! clean extents are valid at all. Of two entries for one extent, that of the later chunk is valid; within a chunk, that of the later
//! slot. The number of the WEU doesn't decide, as a WEU for dirty extents may be open for long.
//!
//! [`Recovery`] is a state machine: it takes the bytes read, orders what to read next, and ends with a value. It owns all that it has
//! read so far; the index and the volumes are lent to it. Nothing is written before it has ended: see `start`.

mod judge;
mod marks;
mod missing;
mod tails;
#[cfg(test)]
mod tests;
mod unreadable;

use crate::config::{CacheConfig, Planted};
use crate::format::{ChunkHeader, JournalBlock, chunk_header_bytes, headers, headers_or_copies};
use crate::found::Found;
use crate::index::{Index, Key, Loc, Weu};
use crate::journal;
use crate::layout::{Layout, PAGE_BYTES};
use crate::place::LIFE_SHIFT;
use crate::status::StartReport;
use crate::volumes::Volumes;
use marks::Marks;
use plimsoll_base::{Buf, Time, VolumeKey};
use std::collections::{BTreeMap, BTreeSet};
use tails::Tails;
use unreadable::Unreadable;

/// Headers read at once.
const READS_MAX: u32 = 32;
/// Bytes of a piece in which the journal is read.
const PIECE_BYTES: u64 = 1 << 20;
/// Bytes at a WEU's beginning that are first searched for headers.
const HEADERS_BYTES: u64 = 32 << 10;

/// Starts that a cache may have.
const LIVES_MAX: u64 = (1 << 24) - 2;
/// More epochs than any device reaches.
const EPOCHS_MAX: u64 = 1 << 62;

/// Phases of a recovery, in order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    Page,
    Journal,
    Headers,
    Tail,
}

/// An order of a recovery to whoever runs it.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Order {
    /// The device is laid out like this: from now on that is the cache's layout.
    Layout(Layout),
    /// Read an offset and a length of the fast device, and answer with [`Recovery::handle_read`] and the same `what`.
    Read { what: u32, range: (u64, u64) },
    /// Call [`Recovery::handle_wake`] at this time.
    Wake(Time),
}

/// The reason why a recovery ended without a result.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Failure {
    /// The device is not this cache's, or does not fit its configuration.
    Foreign(String),
    /// The device can't be read, or what it holds makes no sense.
    Device(String),
}

/// The parts of a cache that a recovery fills or asks.
pub(crate) struct World<'a> {
    pub config: &'a CacheConfig,
    pub index: &'a mut Index,
    pub volumes: &'a mut Volumes,
}

/// Findings of a recovery, beside the index that it filled.
pub(crate) struct Recovered {
    /// The first number of a WEU and the first of a chunk that this start may give: above all that were ever begun.
    pub first: (u64, u64),
    /// Chunks below this number are durable once the device was flushed.
    pub durable_chunks: u64,
    /// The epoch of the journal to begin.
    pub next_epoch: u64,
    /// Duplicates, and where a header says so.
    pub refs: BTreeMap<Key, Loc>,
    /// Extents of which a dirty entry was found, whether it counts or not.
    pub maybe_dirty: Vec<Key>,
    /// Dirty duplicates whose bytes aren't there.
    pub lost: Vec<Key>,
    /// WEUs that nothing dirty may rely on.
    pub suspect: BTreeSet<u32>,
    /// WEUs that are mostly names.
    pub of_names: Vec<u32>,
    /// WEUs with fingerprints: number, which, how many.
    pub fingerprints: Vec<(u64, u32, u32)>,
    /// Volumes that are gone, and the first WEU's number that can't hold anything of theirs.
    pub gone: Vec<(VolumeKey, u64)>,
    /// Volumes of which the newest data may be missing.
    pub missed: BTreeSet<VolumeKey>,
    /// The device is of version 2 and must be upgraded.
    pub old: bool,
    pub begun_at: Time,
    /// All of it but what is dirty and how long it took.
    pub report: StartReport,
}

/// The result of a step: nothing as long as the recovery goes on.
pub(crate) type Step = Result<Option<Box<Recovered>>, Failure>;

/// See the module's documentation.
pub(crate) struct Recovery {
    layout: Layout,
    planted: Option<Planted>,
    stage: Stage,
    orders: Vec<Order>,
    begun_at: Time,
    device_bytes: u64,
    outstanding: u32,
    /// Bytes read of the copies of the journal's halves. A device of version 2 has two halves, each twice as long, and no copies.
    copies: [Vec<u8>; 4],
    /// The device is of version 2.
    old: bool,
    /// The journal is corrupt.
    corrupt: Option<journal::Corrupt>,
    next_epoch: u64,
    durable: u64,
    /// The number of this start: above those of all WEUs and chunks that were ever begun, whether anything of them is left or not.
    life: u64,
    /// True if clean extents are ignored, because the device was away.
    stale: bool,
    /// [`crate::CacheConfig::generation`] when the journal was written.
    generation: u16,
    /// By WEU.
    marks: Vec<Marks>,
    least: Vec<u64>,
    /// By WEU, the number under which its clean extents are valid.
    confirmed: Vec<u64>,
    /// By WEU, the number under which headers of dirty extents are there, and of how many slots.
    held: Vec<(u64, u32)>,
    /// WEUs under a number that were found after an earlier power loss, without being known to be durable.
    suspect: BTreeSet<(u32, u64)>,
    /// WEUs of dirty extents found at this or an earlier start that no flush was known to have covered.
    doubted: BTreeSet<u32>,
    gone: BTreeSet<VolumeKey>,
    /// Those of them that were deleted since this start began.
    forgotten: BTreeSet<VolumeKey>,
    /// See [`Recovered::missed`].
    missed: BTreeSet<VolumeKey>,
    next_weu: u32,
    unreadable: Unreadable,
    tails: Tails,
    /// WEUs that hold something: number, WEU, is it for dirty extents, and whose it is.
    found: Vec<(u64, u32, bool, Option<u16>)>,
    /// Of each WEU's chunks: the first slot, and which it was of all.
    chunks: Vec<Vec<(u32, u64)>>,
    /// Content of the WEUs found.
    load: Found,
    /// Bare extents that duplicates rely on and no header listed so far: WEU, its number, slot and checksum.
    unlisted: Vec<(u32, u64, u32, u32)>,
    /// WEUs that are mostly names.
    of_names: Vec<u32>,
    /// WEUs with fingerprints: number, which, how many.
    fingerprints: Vec<(u64, u32, u32)>,
    highest: (u64, u64),
    report: StartReport,
}

impl Recovery {
    /// A recovery of a device that should be laid out as `layout` says.
    pub(crate) fn new(layout: Layout, planted: Option<Planted>) -> Recovery {
        let n = layout.weus as usize;
        Recovery {
            layout,
            planted,
            stage: Stage::Page,
            orders: Vec::new(),
            begun_at: Time::ZERO,
            device_bytes: 0,
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
            doubted: BTreeSet::new(),
            gone: BTreeSet::new(),
            forgotten: BTreeSet::new(),
            missed: BTreeSet::new(),
            next_weu: 0,
            unreadable: Unreadable::default(),
            tails: Tails::default(),
            found: Vec::new(),
            chunks: vec![Vec::new(); n],
            load: Found::new(layout.extents() as usize),
            unlisted: Vec::new(),
            of_names: Vec::new(),
            fingerprints: Vec::new(),
            highest: (0, 0),
            report: StartReport::default(),
        }
    }

    /// Begins to read a device of this size and with blocks of this many bytes.
    pub(crate) fn begin(&mut self, now: Time, size_bytes: u64, block_bytes: u32) -> Step {
        (self.begun_at, self.device_bytes) = (now, size_bytes);
        if block_bytes > self.layout.block_bytes || self.layout.weu_at(self.layout.weus) > size_bytes {
            let why = "the device is smaller, or has larger blocks, than the cache needs";
            return Err(Failure::Foreign(why.into()));
        }
        self.order_read((0, PAGE_BYTES), 0);
        Ok(None)
    }

    /// Takes the orders that came up since the last call, in order.
    pub(crate) fn take_orders(&mut self) -> Vec<Order> {
        std::mem::take(&mut self.orders)
    }

    /// A volume was deleted: what is found of it from now on doesn't count.
    pub(crate) fn forget(&mut self, key: VolumeKey) {
        self.gone.insert(key);
        self.forgotten.insert(key);
    }

    /// The range of the device that was ordered under `what` was read, or couldn't be.
    pub(crate) fn handle_read(
        &mut self,
        now: Time,
        what: u32,
        range: (u64, u64),
        bytes: Option<Buf>,
        world: &mut World,
    ) -> Step {
        assert!(self.outstanding > 0, "each read was ordered");
        self.outstanding -= 1;
        match (self.stage, bytes) {
            (Stage::Page, Some(bytes)) => self.page_read(bytes.as_slice()),
            (Stage::Page, None) => Err(Failure::Device("Page: it can't be read or flushed".into())),
            // If it can't be read its other copy may say the same.
            (Stage::Journal, bytes) => self.journal_read(now, what as usize, bytes.as_ref().map(Buf::as_slice), world),
            (Stage::Headers, None) => self.headers_unreadable(now, what, range, world),
            (Stage::Headers, Some(bytes)) => match self.unreadable.take_piece(what, range.0, bytes.as_slice()) {
                true => self.read_around(now, what, world),
                false => self.headers_read(now, what, bytes.as_slice(), world),
            },
            (Stage::Tail, bytes) => self.tail_read(what, bytes, world),
        }
    }

    fn planted(&self, p: Planted) -> bool {
        p.is_in(self.planted)
    }

    fn extent_bytes(&self) -> u64 {
        u64::from(self.layout.shape.extent_bytes)
    }

    fn order_read(&mut self, range: (u64, u64), what: u32) {
        self.outstanding += 1;
        self.orders.push(Order::Read { what, range });
    }

    fn page_read(&mut self, page: &[u8]) -> Step {
        let found = Layout::decode(page).map_err(Failure::Foreign)?;
        let mut ours = Layout { salt: found.salt, version: found.version, ..self.layout };
        if found.half_bytes != ours.half_bytes
            && let Ok(earlier) = Layout::earlier(self.device_bytes, ours.block_bytes, ours.shape, found.salt)
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
            return Err(Failure::Foreign(why.into()));
        }
        if found != ours {
            let (s, o) = (found.shape, ours.shape);
            return Err(Failure::Foreign(format!(
                "the device's cache has extents of {} bytes, WEUs of {} bytes and {} of them; configured are {}, {} and {}",
                s.extent_bytes, s.weu_bytes, found.weus, o.extent_bytes, o.weu_bytes, ours.weus
            )));
        }
        self.old = found.version != self.layout.version;
        self.take_layout(Layout { version: self.layout.version, ..found });
        self.stage = Stage::Journal;
        for copy in 0..if self.old { 2 } else { 4 } {
            self.read_journal_piece(copy);
        }
        Ok(None)
    }

    /// Takes the layout found on the device. Its number of WEUs may differ from the one computed here: another version of the
    /// program may have made the cache.
    fn take_layout(&mut self, found: Layout) {
        let had = std::mem::replace(&mut self.layout, found).weus;
        self.orders.push(Order::Layout(found));
        if found.weus == had {
            return;
        }
        let n = found.weus as usize;
        self.marks = vec![Marks::default(); n];
        (self.least, self.confirmed) = (vec![0; n], vec![0; n]);
        self.held = vec![(0, 0); n];
        self.chunks = vec![Vec::new(); n];
    }

    /// Offset and length of a copy of a half of the journal.
    fn journal_range(&self, copy: u32) -> (u64, u64) {
        let l = self.layout;
        match self.old {
            true => (l.half_at(u64::from(copy)), l.half_bytes),
            false => (l.copies_at(u64::from(copy) / 2)[copy as usize % 2], l.copy_bytes()),
        }
    }

    fn read_journal_piece(&mut self, copy: u32) {
        let (at, whole) = self.journal_range(copy);
        let have = self.copies[copy as usize].len() as u64;
        self.order_read((at + have, PIECE_BYTES.min(whole - have)), copy);
    }

    /// A piece of a copy of the journal is read, or can't be: nothing more of that copy is.
    fn journal_read(&mut self, now: Time, copy: usize, bytes: Option<&[u8]>, world: &mut World) -> Step {
        let (layout, block) = (self.layout, self.layout.block_bytes as usize);
        let whole = self.journal_range(copy as u32).1;
        self.copies[copy].extend_from_slice(bytes.unwrap_or_default());
        // All that was written lies at the beginning: where a piece ends with something else, nothing more of this copy matters.
        let decode = if self.old { JournalBlock::decode_2 } else { JournalBlock::decode };
        let goes_on = bytes.is_some_and(|b| b.len() >= block && decode(&b[b.len() - block..], layout.salt).is_some());
        if goes_on && (self.copies[copy].len() as u64) < whole {
            self.read_journal_piece(copy as u32);
            return Ok(None);
        }
        if self.outstanding > 0 {
            return Ok(None);
        }
        let how = journal::Reading {
            older: self.planted(Planted::OldJournal),
            unchecked: self.planted(Planted::JournalUnchecked),
            trusting: self.planted(Planted::JournalEndsAtCorruption),
            one_copy: self.planted(Planted::JournalReadOnce),
        };
        let [a, b, c, d] = std::mem::take(&mut self.copies);
        let found = match self.old {
            true => journal::read_2([&a, &b], &layout),
            false => journal::read([[&a, &b], [&c, &d]], &layout, how),
        };
        match found {
            Ok(found) => self.take_journal(found, world.config.generation),
            Err(corrupt) => self.take_corrupt(corrupt, world)?,
        }
        self.stage = Stage::Headers;
        self.read_headers(now, world)
    }

    /// Handles a journal that lost records which were durable. If no volume can miss data because of that, the cache starts empty.
    fn take_corrupt(&mut self, corrupt: journal::Corrupt, world: &World) -> Result<(), Failure> {
        if world.volumes.may_be_behind() {
            return Err(Failure::Device(corrupt.why));
        }
        (self.next_epoch, self.durable, self.life) = (corrupt.next_epoch, 0, (corrupt.durable >> LIFE_SHIFT) + 1);
        self.corrupt = Some(corrupt);
        Ok(())
    }

    fn take_journal(&mut self, found: journal::Found, generation: u16) {
        // Each start begins its journal with a number of its own, before it begins any WEU or chunk.
        (self.next_epoch, self.durable, self.life) =
            (found.next_epoch, found.durable, (found.durable >> LIFE_SHIFT) + 1);
        (self.stale, self.generation) = (found.generation != generation, found.generation);
        let mut under = 0;
        for record in found.records {
            self.replay(record, &mut under);
        }
    }

    /// All headers are read. One of a start that the journal doesn't know says that the journal lost it.
    fn headers_over(&mut self, world: &mut World) -> Step {
        let highest = self.highest.0.max(self.highest.1) >> LIFE_SHIFT;
        if highest >= self.life && self.corrupt.is_none() && !self.planted(Planted::JournalEndsAtCorruption) {
            let why = format!("the journal knows nothing of start {highest}, which wrote headers: it is corrupt");
            if world.volumes.may_be_behind() {
                return Err(Failure::Device(why));
            }
            self.corrupt = Some(journal::Corrupt { why, next_epoch: self.next_epoch, durable: 0 });
        }
        self.life = self.life.max(highest + 1);
        if self.life > LIVES_MAX || self.next_epoch > EPOCHS_MAX {
            let why = format!("start {} and epoch {} make no sense", self.life, self.next_epoch);
            return Err(Failure::Device(why));
        }
        if self.corrupt.is_some() {
            self.begin_anew(world);
        }
        self.stage = Stage::Tail;
        self.check_tails(world)
    }

    /// Nothing that was found counts, now or at a later start.
    fn begin_anew(&mut self, world: &mut World) {
        let weus = self.layout.weus as usize;
        let over = self.life << LIFE_SHIFT;
        self.least = vec![over; weus];
        self.found.clear();
        self.tails = Tails::default();
        self.load = Found::new(0);
        self.unlisted.clear();
        self.chunks = vec![Vec::new(); weus];
        (self.of_names, self.fingerprints) = (Vec::new(), Vec::new());
        (self.report.damaged, self.report.damaged_dirty) = (0, 0);
        self.doubted.clear();
        for weu in 0..self.layout.weus {
            let w = world.index.weu_mut(weu);
            *w = Weu::free();
        }
    }

    fn read_headers(&mut self, now: Time, world: &mut World) -> Step {
        let len = HEADERS_BYTES.min(u64::from(self.layout.shape.weu_bytes));
        while self.outstanding < READS_MAX && !self.unreadable.is_full() && self.next_weu < self.layout.weus {
            let weu = self.next_weu;
            self.next_weu += 1;
            self.order_read((self.layout.weu_at(weu), len), weu);
        }
        if self.outstanding == 0 && !self.waits_to_retry(now) {
            return self.headers_over(world);
        }
        Ok(None)
    }

    fn headers_read(&mut self, now: Time, weu: u32, bytes: &[u8], world: &mut World) -> Step {
        let (salt, block, whole) = (self.layout.salt, self.layout.block_bytes, u64::from(self.layout.shape.weu_bytes));
        let trusting = self.planted(Planted::IgnoreHeaderChecksum);
        let mut found = headers(bytes, salt, block, weu, None, trusting);
        let end: u32 = found.iter().map(|h| chunk_header_bytes(h.entries.len(), block)).sum();
        let more = bytes.get(end as usize..).map_or(0, |b| match ChunkHeader::peek(b, salt, block) {
            Some(next) => u64::from(end + next),
            None if b.len() < block as usize => u64::from(end) + 4096,
            None => 0,
        });
        if more > bytes.len() as u64 && (bytes.len() as u64) < whole {
            let len = (more * 2).next_multiple_of(4096).min(whole);
            self.order_read((self.layout.weu_at(weu), len), weu);
            return Ok(None);
        }
        if self.lacks_headers(weu, &found) && !self.planted(Planted::HeaderReadOnce) {
            if (bytes.len() as u64) < whole {
                self.order_read((self.layout.weu_at(weu), whole), weu);
                return Ok(None);
            }
            let sequence = self.held[weu as usize].0;
            found = headers_or_copies(bytes, salt, block, weu, sequence);
        }
        let hides = self.hides_headers(weu, bytes, &found);
        self.miss_headers(weu, &found, hides, world);
        self.take_headers(weu, found, world);
        self.read_headers(now, world)
    }

    /// Takes what a WEU's headers list. If the WEU's end may be torn, that end is read first.
    fn take_headers(&mut self, weu: u32, found: Vec<ChunkHeader>, world: &mut World) {
        let Some(first) = found.first() else { return };
        let sequence = first.sequence;
        let last_chunk = found.iter().map(|h| h.chunk).max().unwrap_or(0);
        self.highest = (self.highest.0.max(sequence), self.highest.1.max(last_chunk));
        if sequence < self.least[weu as usize] {
            return;
        }
        if !first.dirty && self.confirmed[weu as usize] != sequence && !self.planted(Planted::BelieveTrials) {
            // It was on trial. Nor does any later start believe it.
            self.report.unconfirmed += 1;
            self.least[weu as usize] = sequence + 1;
            return;
        }
        if self.marks[weu as usize].sequence != sequence {
            self.marks[weu as usize] = Marks { sequence, ..Marks::default() };
        }
        self.seal_behind(weu, &found);
        let doubtful = found.iter().any(|h| self.is_doubtful(h));
        if doubtful && !self.planted(Planted::BelieveTornChunks) {
            world.index.weu_mut(weu).sequence = sequence;
            self.tails.weus.push((weu, found));
        } else {
            self.adopt_headers(weu, found, world);
        }
    }
}
