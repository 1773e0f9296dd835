//! Packing: the chunks that aren't on the fast device yet, open and closed, and the numbers of chunks and WEUs.
//!
//! ```text
//!  a WEU is begun ──► open chunk: takes extents and names ──► closed: full, or somebody waits for it ──► written ──► gone
//!                           ▲                                      │ the WEU has room for more
//!                           └──────────── the next chunk ──────────┘
//! ```
//! A partition has at most one open chunk for clean and one for dirty extents. [`Packing`] receives extents and hands back their places,
//! then the writes of what is closed. A chunk keeps the entries that its extents supersede until it is written, and hands them back then.
//! Packing doesn't look up an extent's place, and doesn't know which WEUs are free and who sends I/O. A chunk is named by its place in a
//! list until the next one is closed or written.

mod check;

use crate::chunk::{Chunk, ChunkWrite, Packed};
use crate::config::{Codec, Planted};
use crate::format::{ExtentHead, ExtentName};
use crate::index::{Fingerprint, Loc};
use crate::layout::Layout;
use crate::place::{LIFE_SHIFT, Superseded};
use plimsoll_base::{Data, Span, Time, VolumeKey};
use std::collections::BTreeSet;
use std::ops::Range;

/// Clean extents are not cached while this number of clean chunks wait for the fast device: it can't keep up.
const CLEAN_CHUNKS_MAX: usize = 4;

/// If changes wait for the journal when a clean chunk has been written, no further clean chunk is sent for this multiple of the
/// time that the chunk took. The device is left to the changes meanwhile.
const CLEAN_PAUSE: u64 = 32;
const CLEAN_PAUSE_MAX: Span = Span::from_millis(250);

/// Room for one more extent or name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Room {
    /// In this open chunk.
    Here(usize),
    /// In none: this open chunk must be closed, as its WEU is full.
    Full(usize),
    /// In none: a WEU must be begun.
    Nowhere,
}

/// A chunk that was closed.
pub(crate) struct Closed {
    pub weu: u32,
    pub is_dirty: bool,
    pub is_empty: bool,
    /// Bytes of the WEU's headers, and its slots.
    pub header_bytes: u32,
    pub slots: u32,
    /// The WEU takes no more.
    pub is_full: bool,
    /// Volumes of a clean one's entries.
    pub volumes: BTreeSet<VolumeKey>,
}

/// Progress of a closed chunk on its way to the device.
pub(crate) enum Sending {
    /// There is nothing to send of it.
    Nothing,
    /// It may be sent at this time.
    Later(Time),
    Now(Outgoing),
}

/// The writes of a closed chunk.
pub(crate) struct Outgoing {
    pub weu: u32,
    pub first_slot: u32,
    pub is_dirty: bool,
    /// The volume of its first entry.
    pub volume: Option<VolumeKey>,
    pub writes: Vec<ChunkWrite>,
}

/// A chunk that is on the device.
pub(crate) struct Written {
    pub weu: u32,
    pub part: u16,
    pub sequence: u64,
    pub number: u64,
    pub is_dirty: bool,
    pub slots: Range<u32>,
    /// Entries that it supersedes: each is dead when it is durable.
    pub supersedes: Vec<Superseded>,
    pub sent_at: Time,
    /// No other closed chunk of its WEU is on its way.
    pub is_last: bool,
}

/// See the module's documentation.
pub(crate) struct Packing {
    planted: Option<Planted>,
    layout: Layout,
    /// A chunk with less room than this for another extent isn't worth a header.
    least_bytes: u32,
    /// Oldest first.
    chunks: Vec<Chunk>,
    next_sequence: u64,
    next_chunk: u64,
    /// Clean chunks aren't written before this.
    clean_after: Time,
}

impl Packing {
    /// Packing on a device with this layout, whose extents are compressed so.
    pub(crate) fn new(layout: Layout, codec: Codec, planted: Option<Planted>) -> Packing {
        // There must be room for a few extents.
        let least_bytes = layout.shape.extent_bytes / if codec == Codec::None { 1 } else { 2 };
        let (next_sequence, next_chunk, clean_after) = (1, 1, Time::ZERO);
        Packing { planted, layout, least_bytes, chunks: Vec::new(), next_sequence, next_chunk, clean_after }
    }

    /// Goes on from what a start has found on a device with this layout: the first numbers of a WEU and of a chunk that weren't given.
    pub(crate) fn restore(&mut self, layout: Layout, first: (u64, u64)) {
        debug_assert!(self.chunks.is_empty(), "nothing is packed before a start is over");
        (self.layout, (self.next_sequence, self.next_chunk)) = (layout, first);
    }

    // Open chunks.

    /// The open chunk of a partition.
    pub(crate) fn open(&self, part: u16, is_dirty: bool) -> Option<usize> {
        self.chunks.iter().position(|c| !c.closed && c.dirty == is_dirty && c.part == part)
    }

    /// Room of a partition for one more extent, or name if `payload_bytes` is 0.
    pub(crate) fn room(&self, part: u16, is_dirty: bool, payload_bytes: u32) -> Room {
        match self.open(part, is_dirty) {
            Some(c) if self.chunks[c].has_room(payload_bytes, self.layout.slots_max()) => Room::Here(c),
            Some(c) => Room::Full(c),
            None => Room::Nowhere,
        }
    }

    /// Returns whether an open chunk has room for one more name, or its WEU if more than half of the WEU's slots are names: then its
    /// names may have to end.
    pub(crate) fn room_for_name(&self, c: usize) -> Result<bool, u32> {
        let (chunk, slots_max) = (&self.chunks[c], self.layout.slots_max());
        match chunk.names < slots_max / 2 {
            true => Ok(chunk.has_room(0, slots_max)),
            false => Err(chunk.weu),
        }
    }

    /// The number of the next WEU.
    pub(crate) fn next_sequence(&self) -> u64 {
        match Planted::ReuseSequence.is_in(self.planted) {
            true => self.next_sequence & 7,
            false => self.next_sequence,
        }
    }

    /// No WEU from this number on was begun.
    pub(crate) fn unused_sequence(&self) -> u64 {
        self.next_sequence
    }

    /// Chunks from this number on aren't closed yet.
    pub(crate) fn next_chunk(&self) -> u64 {
        self.next_chunk
    }

    /// A free WEU is begun under [`Packing::next_sequence`]. Returns its open chunk.
    pub(crate) fn begin(&mut self, weu: u32, part: u16, is_dirty: bool) -> usize {
        let (sequence, life) = (self.next_sequence(), self.next_sequence >> LIFE_SHIFT);
        self.next_sequence += 1;
        assert_eq!(self.next_sequence >> LIFE_SHIFT, life, "a life has 2^40 WEUs");
        self.chunks.push(Chunk::first(weu, part, sequence, is_dirty, &self.layout));
        self.chunks.len() - 1
    }

    /// Packs an extent into an open chunk with room for it.
    pub(crate) fn add(&mut self, c: usize, head: ExtentHead, data: Data, fp: Option<Fingerprint>) -> Loc {
        self.chunks[c].add(head, data, fp)
    }

    /// Names a duplicate in an open chunk with room for it; its bytes are at `loc` in the WEU of number `sequence`, with this checksum if
    /// they are bare. Returns the place of the name.
    pub(crate) fn add_name(&mut self, c: usize, name: ExtentName, loc: Loc, sequence: u64, sum: u32) -> Loc {
        let slot = self.chunks[c].add_reference(name, loc, sequence, sum);
        Loc::new(self.chunks[c].weu, 0, 0, slot)
    }

    /// The open dirty chunk of some partitions, or any open chunk, that has something.
    pub(crate) fn open_of(&self, of: Option<&BTreeSet<u16>>) -> Option<usize> {
        if of.is_some() && Planted::FlushWithoutChunk.is_in(self.planted) {
            return None;
        }
        let wanted = |c: &Chunk| of.is_none_or(|parts| c.dirty && parts.contains(&c.part));
        self.chunks.iter().position(|c| !c.closed && !c.entries.is_empty() && wanted(c))
    }

    /// An open chunk of a partition, whatever it has.
    pub(crate) fn open_in(&self, part: u16) -> Option<usize> {
        self.chunks.iter().position(|c| !c.closed && c.part == part)
    }

    /// The partition of a chunk.
    pub(crate) fn part(&self, c: usize) -> u16 {
        self.chunks[c].part
    }

    /// Closes an open chunk: it is written from now on. Another one is begun in its WEU if that has room and isn't called full.
    pub(crate) fn close(&mut self, c: usize, full: bool) -> Closed {
        let number = self.next_chunk;
        self.next_chunk += 1;
        let writes = self.chunks[c].close(self.layout.salt, number, full);
        let chunk = &mut self.chunks[c];
        chunk.held = writes;
        let next = if full { None } else { chunk.next(self.least_bytes, self.layout.slots_max()) };
        let closed = Closed {
            weu: chunk.weu,
            is_dirty: chunk.dirty,
            is_empty: chunk.entries.is_empty(),
            header_bytes: chunk.header_end(),
            slots: chunk.first_slot + chunk.entries.len() as u32,
            is_full: next.is_none(),
            volumes: chunk.entries.iter().filter(|_| !chunk.dirty).map(|e| e.name.volume).collect(),
        };
        self.chunks.extend(next);
        closed
    }

    // Entries in memory.

    /// Returns true if a place is in a chunk in memory.
    pub(crate) fn has(&self, place: Loc) -> bool {
        self.chunk_of(place).is_some()
    }

    /// Returns true if a WEU has a chunk in memory.
    pub(crate) fn has_weu(&self, weu: u32) -> bool {
        self.chunks.iter().any(|c| c.weu == weu)
    }

    /// The extent at a place, if it is in memory.
    pub(crate) fn packed(&self, loc: Loc) -> Option<&Packed> {
        self.chunks.iter().filter(|c| c.weu == loc.weu()).find_map(|c| c.packed_in(loc.slot()))
    }

    fn chunk_of(&self, place: Loc) -> Option<usize> {
        let slots = |c: &Chunk| c.first_slot..c.first_slot + c.entries.len() as u32;
        self.chunks.iter().position(|c| c.weu == place.weu() && slots(c).contains(&place.slot()))
    }

    /// An entry is no longer true. Returns true if it never becomes so: it is in an open chunk.
    pub(crate) fn kill(&mut self, place: Loc) -> bool {
        self.chunk_of(place).is_some_and(|c| self.chunks[c].kill(place.slot()))
    }

    /// An entry is superseded by the dirty one at `by`. Returns true if it stays true until the chunk that has that one is durable.
    pub(crate) fn supersede(&mut self, by: Loc, old: Superseded) -> bool {
        let by = self.chunk_of(by).filter(|_| !Planted::DeadBeforeDurable.is_in(self.planted));
        if let Some(c) = by {
            self.chunks[c].supersedes.push(old);
        }
        by.is_some()
    }

    /// Partitions with chunks in memory that supersede entries for which `of_it` holds.
    pub(crate) fn superseding(&self, of_it: impl Fn(&Superseded) -> bool) -> BTreeSet<u16> {
        self.chunks.iter().filter(|c| c.supersedes.iter().any(&of_it)).map(|c| c.part).collect()
    }

    // Closed chunks.

    /// Chunks that are being written.
    pub(crate) fn closed(&self) -> impl Iterator<Item = &Chunk> {
        self.chunks.iter().filter(|c| c.closed)
    }

    /// All chunks in memory.
    pub(crate) fn all(&self) -> &[Chunk] {
        &self.chunks
    }

    /// Number of chunks in memory.
    pub(crate) fn len(&self) -> usize {
        self.chunks.len()
    }

    /// Returns true if a dirty chunk is in memory, even an empty one.
    pub(crate) fn has_dirty(&self) -> bool {
        self.chunks.iter().any(|c| c.dirty)
    }

    /// Returns true if the fast device can't keep up with clean chunks.
    pub(crate) fn is_behind(&self) -> bool {
        self.closed().filter(|c| !c.dirty).count() >= CLEAN_CHUNKS_MAX
    }

    /// Sends a chunk, if it is closed and wasn't sent. A clean one isn't sent in a pause, unless the cache `ends`.
    pub(crate) fn send(&mut self, c: usize, now: Time, ends: bool) -> Sending {
        let chunk = &mut self.chunks[c];
        if chunk.held.is_empty() {
            return Sending::Nothing;
        }
        // For a clean one nobody waits; for the journal, behind it, changes may.
        if !chunk.dirty && now < self.clean_after && !ends {
            return Sending::Later(self.clean_after);
        }
        chunk.sent_at = now;
        Sending::Now(Outgoing {
            weu: chunk.weu,
            first_slot: chunk.first_slot,
            is_dirty: chunk.dirty,
            volume: chunk.entries.first().map(|e| e.name.volume),
            writes: std::mem::take(&mut chunk.held),
        })
    }

    /// A write of a closed chunk is on the device. Returns the chunk, if that was its last.
    ///
    /// # Panics
    /// If there is none.
    pub(crate) fn written(&mut self, weu: u32, first_slot: u32) -> Option<Written> {
        let at = self.chunks.iter().position(|c| c.closed && (c.weu, c.first_slot) == (weu, first_slot));
        let at = at.expect("it stays until it's written");
        self.chunks[at].writes -= 1;
        if self.chunks[at].writes > 0 {
            return None;
        }
        let c = self.chunks.remove(at);
        Some(Written {
            weu,
            part: c.part,
            sequence: c.sequence,
            number: c.number,
            is_dirty: c.dirty,
            slots: c.first_slot..c.first_slot + c.entries.len() as u32,
            supersedes: c.supersedes,
            sent_at: c.sent_at,
            is_last: !self.chunks.iter().any(|other| other.closed && other.weu == weu),
        })
    }

    /// Changes wait for the journal while a clean chunk was written that was sent then: other clean ones wait.
    pub(crate) fn pause(&mut self, now: Time, sent_at: Time) {
        let took = now.since(sent_at).min(CLEAN_PAUSE_MAX);
        self.clean_after = now + Span::from_nanos(took.as_nanos() * CLEAN_PAUSE);
    }
}

#[cfg(test)]
mod tests;
