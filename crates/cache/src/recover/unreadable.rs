//! Sectors of headers that a start cannot read.
//!
//! ```text
//!  read failed ──► RETRY_AFTER later it is read again ──► failed again: halved, down to single blocks ──► those that fail are unreadable
//!     ──► headers that are found are valid; the rest of the WEU is sealed
//! ```
//! Sealing makes the loss durable: the first snapshot of the journal records that all extents that such a block may name are dead.
//! Without it, a later start at which the sector can be read again would take an old header for valid. The extents that it names would
//! replace newer ones.

use super::{Failure, Order, Recovery, Step, World};
use crate::config::Planted;
use crate::format::ChunkHeader;
use crate::index::set_bit;
use crate::place::LIFE_SHIFT;
use plimsoll_base::{Span, Time};
use std::collections::{BTreeMap, BTreeSet};

/// Blocks of headers that a start may find unreadable before the device counts as failed: each may take a drive a second.
const BLOCKS_MAX: usize = 1000;
/// Pause before a failed read is repeated.
const RETRY_AFTER: Span = Span::from_millis(100);
/// Failed reads that may wait for that. More WEUs are read when they are over.
const WAITING_MAX: usize = 32;

/// Headers of a WEU that are read in pieces. Bytes that cannot be read are zero in `bytes`.
struct Around {
    /// Byte offset on the device.
    at: u64,
    bytes: Vec<u8>,
    /// Offsets and lengths in `bytes` that are to be read, the next one last.
    todo: Vec<(u64, u64)>,
}

/// See the module's documentation.
#[derive(Default)]
pub(super) struct Unreadable {
    /// WEUs that are being read in pieces.
    around: BTreeMap<u32, Around>,
    /// Reads that failed once, each with its WEU, offset and length, and when they are repeated.
    waiting: Vec<(u32, (u64, u64))>,
    retry_at: Option<Time>,
    /// Those that were repeated.
    retried: BTreeSet<(u64, u64)>,
    /// Offsets of blocks that cannot be read.
    blocks: BTreeSet<u64>,
    /// WEUs with such blocks where their headers are.
    weus: BTreeSet<u32>,
}

impl Unreadable {
    /// True if the limit of reads in flight is reached.
    pub(super) fn is_full(&self) -> bool {
        self.waiting.len() >= WAITING_MAX
    }

    /// Takes a piece of a WEU that is read in pieces; false if it is none of those.
    pub(super) fn take_piece(&mut self, weu: u32, offset: u64, bytes: &[u8]) -> bool {
        let Some(a) = self.around.get_mut(&weu) else { return false };
        let from = (offset - a.at) as usize;
        a.bytes[from..from + bytes.len()].copy_from_slice(bytes);
        true
    }

    /// True if a block in this range is unreadable.
    fn has(&self, from: u64, to: u64) -> bool {
        self.blocks.range(from..to).next().is_some()
    }
}

impl Recovery {
    /// A read of a WEU's headers failed: it is repeated once. If only the cache may have something, it is then halved until what cannot
    /// be read are single blocks. Otherwise the whole WEU is dropped, as nobody misses what it has.
    pub(super) fn headers_unreadable(&mut self, now: Time, weu: u32, (at, len): (u64, u64), world: &mut World) -> Step {
        let (block, whole) = (u64::from(self.layout.block_bytes), !world.volumes.may_be_behind());
        let u = &mut self.unreadable;
        // What has such a block can't be read at once, however often.
        if !u.around.contains_key(&weu) && !u.has(at, at + len) && u.retried.insert((at, len)) {
            u.waiting.push((weu, (at, len)));
            return self.read_headers(now, world);
        }
        if !whole && len > block {
            let new = || Around { at, bytes: vec![0; len as usize], todo: Vec::new() };
            let around = u.around.entry(weu).or_insert_with(new);
            let (from, half) = (at - around.at, (len / 2).next_multiple_of(block));
            around.todo.extend([(from + half, len - half), (from, half)]);
            return self.read_around(now, weu, world);
        }
        u.weus.insert(weu);
        let (is_new, blocks, weus) = (u.blocks.insert(at), u.blocks.len(), u.weus.len());
        self.report.unreadable += u32::from(is_new);
        if weus * 2 > self.layout.weus as usize {
            return Err(Failure::Device("the headers of more than half of its WEUs can't be read".into()));
        }
        if whole {
            self.seal_whole(weu);
            return self.read_headers(now, world);
        }
        if blocks > BLOCKS_MAX {
            return Err(Failure::Device(format!("more than {BLOCKS_MAX} blocks of headers can't be read")));
        }
        self.read_around(now, weu, world)
    }

    /// Reads the next piece of a WEU's headers, one at a time.
    pub(super) fn read_around(&mut self, now: Time, weu: u32, world: &mut World) -> Step {
        let u = &mut self.unreadable;
        let Some(around) = u.around.get_mut(&weu) else { return Ok(None) };
        if let Some((from, len)) = around.todo.pop() {
            let at = around.at + from;
            self.order_read((at, len), weu);
            return Ok(None);
        }
        match u.around.remove(&weu) {
            Some(all) => self.headers_read(now, weu, &all.bytes, world),
            None => Ok(None),
        }
    }

    /// Called when no read of headers is under way. Orders a wake-up and returns true if some wait to be repeated.
    pub(super) fn waits_to_retry(&mut self, now: Time) -> bool {
        let u = &mut self.unreadable;
        if !u.waiting.is_empty() {
            self.orders.push(Order::Wake(*u.retry_at.get_or_insert(now + RETRY_AFTER)));
        }
        !u.waiting.is_empty()
    }

    /// Time has come further: the reads that failed once are repeated, if it is time.
    pub(crate) fn handle_wake(&mut self, now: Time) {
        let Some(at) = self.unreadable.retry_at else { return };
        if now < at {
            return self.orders.push(Order::Wake(at));
        }
        self.unreadable.retry_at = None;
        for (weu, range) in std::mem::take(&mut self.unreadable.waiting) {
            self.order_read(range, weu);
        }
    }

    /// True if a block that could not be read may hold the header that follows those found in a WEU. `bytes` is the readable part.
    pub(super) fn hides_headers(&self, weu: u32, bytes: &[u8], found: &[ChunkHeader]) -> bool {
        let (salt, block, at) = (self.layout.salt, self.layout.block_bytes, self.layout.weu_at(weu));
        let lens = found.iter().map(|h| crate::format::chunk_header_bytes(h.entries.len(), block));
        let end: u32 = lens.sum();
        let next = bytes.get(end as usize..).and_then(|b| ChunkHeader::peek(b, salt, block)).unwrap_or(block);
        self.unreadable.has(at + u64::from(end), at + u64::from(end) + u64::from(next))
    }

    /// None of a WEU's headers was found, and some blocks could not be read: nothing in it under an earlier number counts, now or at a
    /// later start.
    pub(super) fn seal_whole(&mut self, weu: u32) {
        if self.is_sealed(weu) {
            self.least[weu as usize] = self.life << LIFE_SHIFT;
        }
    }

    /// Some of a WEU's headers were found, and some blocks could not be read: all slots behind those found are dead, now and at later
    /// starts.
    pub(super) fn seal_behind(&mut self, weu: u32, found: &[ChunkHeader]) {
        if !self.is_sealed(weu) {
            return;
        }
        let end = found.last().map_or(0, |h| h.first_slot + h.entries.len() as u32);
        let slots_max = self.layout.slots_max();
        let marks = &mut self.marks[weu as usize];
        for slot in end..slots_max {
            set_bit(&mut marks.dead, slot);
        }
    }

    fn is_sealed(&self, weu: u32) -> bool {
        self.unreadable.weus.contains(&weu) && !self.planted(Planted::UnreadableUnsealed)
    }
}
