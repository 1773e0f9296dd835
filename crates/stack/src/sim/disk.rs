//! A simulated device that holds bytes and can fail: a volatile write cache in front of durable sectors.
//!
//! It has no mechanics (a model layer above it has those). Completions come in a seeded random order within a given latency
//! range. At a power loss each sector written since the last flush keeps, independently, any of the values it had since: that
//! is dropping, tearing and reordering in one. Data of a flush, or of an acknowledged FUA write, survive; a FUA write in flight
//! is lost, torn and reordered like any other. Blocks may be larger than the sectors that tear. Sectors can be corrupted or
//! made unreadable at any time ([`SimDisk::corrupt`], [`SimDisk::lose_sector`]).

use plimsoll_base::{
    Buf, BufMut, Completion, Data, Io, IoError, IoFlags, IoId, Op, Outcome, Rng, Span, StatusExtent, Time,
};
use std::collections::{BTreeMap, BTreeSet};

/// Bytes of the smallest unit that is written whole.
pub const SECTOR_BYTES: u64 = 512;

/// Earlier durable contents that are kept of each sector, where any are.
const HISTORY_MAX: usize = 4;

type Sector = Option<Box<[u8; SECTOR_BYTES as usize]>>;

/// A corruption of a sector that the device doesn't notice: a later read succeeds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Corruption {
    /// One bit, counted from the sector's first byte's lowest, is the other way round.
    Bit(u16),
    /// All bytes are zero.
    Zeroes,
    /// Its content is the n-th (from 1) before the newest durable one: a write that was lost though it was acknowledged.
    Older(usize),
    /// Its content is that of another sector: a misdirected write or read.
    Other(u64),
}

/// Faults to inject, each by a count of operations so that a seed finds them again.
#[derive(Clone, Debug, Default)]
pub struct DiskFaults {
    /// The n-th flush (from 1) fails, and what it should have made durable is lost or torn.
    pub flush_fails_at: Option<u64>,
    /// The n-th FUA write (from 1) fails and takes with it what wasn't flushed, of which no flush will say anything: the kernel
    /// tells of a lost write once.
    pub fua_fails_at: Option<u64>,
    /// Reads that touch this byte range fail.
    pub unreadable: Option<(u64, u64)>,
    /// Writes that touch this byte range fail, and change nothing.
    pub unwritable: Option<(u64, u64)>,
    /// Writes of sectors that were never written fail for lack of space, and change nothing: a sparse file in a full file system.
    pub full: bool,
    /// It isn't there: everything fails, and changes nothing.
    pub away: bool,
    /// Flushes are acknowledged but nothing is made durable: a planted bug that the checkers must find.
    pub flush_lies: bool,
    /// If true, FUA is ignored: the write is acknowledged, but isn't durable.
    pub fua_lies: bool,
}

/// See the module's documentation. A copy is the same disk at this instant: to lose its power and see, while the other runs on.
#[derive(Clone)]
pub struct SimDisk {
    size_bytes: u64,
    durable: BTreeMap<u64, Sector>,
    /// Values since the last flush, oldest first, per sector, each with the write that brought it.
    volatile: BTreeMap<u64, Vec<(IoId, Sector)>>,
    /// Writes whose answer hasn't been delivered yet: a flush owes them nothing, so it gives them nothing.
    unanswered: BTreeSet<IoId>,
    /// FUA writes among them, and their sectors.
    fua: BTreeMap<IoId, (u64, u64)>,
    /// Earlier durable contents by sector, newest last, at most [`HISTORY_MAX`]; `None`: not kept.
    history: Option<BTreeMap<u64, Vec<Sector>>>,
    /// Sectors that can't be read until they are written again or healed, and how many reads of each still fail.
    unreadable: BTreeMap<u64, u32>,
    block_bytes: u64,
    faults: DiskFaults,
    flushes: u64,
    fua_writes: u64,
    /// The request that failed, until its answer is delivered: what asks for durability meanwhile fails with it.
    failing: Option<IoId>,
    latency: (Span, Span),
    rng: Rng,
}

impl SimDisk {
    /// An empty disk of `size_bytes` whose requests take between `latency.0` and `latency.1`, drawn from `seed`.
    pub fn new(size_bytes: u64, latency: (Span, Span), seed: u64, faults: DiskFaults) -> SimDisk {
        assert!(size_bytes.is_multiple_of(SECTOR_BYTES));
        let rng = Rng::new(seed, "sim disk");
        SimDisk {
            size_bytes,
            durable: BTreeMap::new(),
            volatile: BTreeMap::new(),
            unanswered: BTreeSet::new(),
            fua: BTreeMap::new(),
            history: None,
            unreadable: BTreeMap::new(),
            block_bytes: SECTOR_BYTES,
            faults,
            flushes: 0,
            fua_writes: 0,
            failing: None,
            latency,
            rng,
        }
    }

    /// Sets the disk's block to `block_bytes`, a multiple of [`SECTOR_BYTES`]; the disk takes and offers whole blocks only. A block
    /// still tears between sectors.
    #[must_use]
    pub fn with_blocks_of(mut self, block_bytes: u64) -> SimDisk {
        assert!(block_bytes.is_multiple_of(SECTOR_BYTES) && self.size_bytes.is_multiple_of(block_bytes));
        self.block_bytes = block_bytes;
        self
    }

    /// Keeps earlier contents, for [`Corruption::Older`].
    #[must_use]
    pub fn with_history(mut self) -> SimDisk {
        self.history.get_or_insert_default();
        self
    }

    /// Bytes of a block.
    pub fn block_bytes(&self) -> u64 {
        self.block_bytes
    }

    /// Its size.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Draws the latency of the next request.
    pub fn draw_latency(&mut self) -> Span {
        let (low, high) = self.latency;
        low + Span::from_nanos(self.rng.below(high.as_nanos() - low.as_nanos() + 1))
    }

    /// Carries out a request (now: its effects are visible at once, its answer later).
    pub fn apply(&mut self, mut io: Io, dispatched_at: Time) -> Completion {
        let outcome = match io.op {
            _ if self.faults.away => Outcome::Failed(IoError::Device),
            _ if io.end() > self.size_bytes => Outcome::Failed(IoError::Invalid),
            Op::Read => self.read(&mut io),
            Op::Write | Op::WriteZeroes | Op::Trim => self.write(&io),
            Op::Flush => self.flush(io.id),
            Op::Cache => Outcome::Done,
            Op::BlockStatus => {
                io.data = self.status(io.offset, io.len);
                Outcome::Done
            }
        };
        Completion { io, outcome, dispatched_at }
    }

    /// From now on it has these faults; what was failing no longer does.
    pub fn set_faults(&mut self, faults: DiskFaults) {
        (self.faults, self.failing) = (faults, None);
    }

    /// The answer to write `id` has been delivered: a FUA write is durable, and the next flush covers any other.
    pub fn answered(&mut self, id: IoId) {
        self.unanswered.remove(&id);
        self.settle_fua(id);
        self.failing = self.failing.filter(|failing| *failing != id);
    }

    /// FUA write `id`, and what it overwrote, is durable.
    fn settle_fua(&mut self, id: IoId) {
        let Some((first, end)) = self.fua.remove(&id) else { return };
        for s in first..end {
            let Some(versions) = self.volatile.get_mut(&s) else { continue };
            let Some(at) = versions.iter().rposition(|(of, _)| *of == id) else { continue };
            let (_, value) = versions.drain(..=at).next_back().expect("just found");
            if versions.is_empty() {
                self.volatile.remove(&s);
            }
            self.make_durable(s, value);
        }
    }

    fn make_durable(&mut self, s: u64, value: Sector) {
        let before = self.durable.insert(s, value);
        if let Some(history) = &mut self.history {
            let earlier = history.entry(s).or_default();
            earlier.push(before.flatten());
            if earlier.len() > HISTORY_MAX {
                earlier.remove(0);
            }
        }
    }

    /// Writes whole sectors durably, past everything: to make an image. Nobody's answer is waited for.
    pub fn write_durably(&mut self, offset: u64, bytes: &[u8]) {
        assert!(offset.is_multiple_of(SECTOR_BYTES) && (bytes.len() as u64).is_multiple_of(SECTOR_BYTES));
        assert!(offset + bytes.len() as u64 <= self.size_bytes);
        for (s, value) in (offset / SECTOR_BYTES..).zip(sectors_of(bytes)) {
            self.volatile.remove(&s);
            self.unreadable.remove(&s);
            self.make_durable(s, value);
        }
    }

    /// Corrupts a sector, in its cache and on the medium; nothing tells of it. False if its content is the same as before.
    ///
    /// A bit of a sector that was never written flips, too. [`Corruption::Older`] needs [`SimDisk::with_history`].
    pub fn corrupt(&mut self, sector: u64, how: Corruption) -> bool {
        assert!(sector < self.size_bytes / SECTOR_BYTES);
        let now = self.sector(sector).clone();
        let other = match how {
            Corruption::Bit(n) => {
                let mut bytes = now.clone().unwrap_or_else(|| Box::new([0; SECTOR_BYTES as usize]));
                bytes[usize::from(n / 8) % SECTOR_BYTES as usize] ^= 1 << (n % 8);
                bytes.iter().any(|b| *b != 0).then_some(bytes)
            }
            Corruption::Zeroes => None,
            Corruption::Older(n) => {
                let earlier = self.history.as_ref().and_then(|h| h.get(&sector)).map_or(&[][..], |e| e);
                match earlier.len().checked_sub(n) {
                    Some(at) => earlier[at].clone(),
                    None => return false,
                }
            }
            Corruption::Other(from) => self.sector(from).clone(),
        };
        if other == now {
            return false;
        }
        self.volatile.remove(&sector);
        self.durable.insert(sector, other);
        true
    }

    /// Makes a sector unreadable until it is written again, or until [`SimDisk::heal_sectors`].
    pub fn lose_sector(&mut self, sector: u64) {
        self.unreadable.insert(sector, u32::MAX);
    }

    /// Fails the next `reads` reads that touch a sector.
    pub fn fail_reads_of(&mut self, sector: u64, reads: u32) {
        self.unreadable.insert(sector, reads);
    }

    /// Makes all sectors readable again, with the content that they had.
    pub fn heal_sectors(&mut self) {
        self.unreadable.clear();
    }

    /// Sectors from `first` up to `end` that hold something other than zeroes, in order: what a corruption is worth trying on.
    pub fn written_sectors(&self, first: u64, end: u64) -> Vec<u64> {
        let mut found: Vec<u64> = self.durable.range(first..end).map(|(s, _)| *s).collect();
        found.extend(self.volatile.range(first..end).map(|(s, _)| *s));
        found.sort_unstable();
        found.dedup();
        found.retain(|s| self.sector(*s).is_some());
        found
    }

    /// True if all sectors of a range have been written.
    fn is_allocated(&self, from: u64, to: u64) -> bool {
        (from / SECTOR_BYTES..to / SECTOR_BYTES)
            .all(|s| self.durable.contains_key(&s) || self.volatile.contains_key(&s))
    }

    fn sector(&self, s: u64) -> &Sector {
        match self.volatile.get(&s) {
            Some(versions) => &versions.last().expect("never empty").1,
            None => self.durable.get(&s).unwrap_or(&None),
        }
    }

    fn read(&mut self, io: &mut Io) -> Outcome {
        self.assert_aligned(io);
        let mut lost = false;
        let sectors = io.offset / SECTOR_BYTES..io.end() / SECTOR_BYTES;
        for (_, left) in self.unreadable.range_mut(sectors).filter(|(_, left)| **left > 0) {
            lost = true;
            if *left < u32::MAX {
                *left -= 1;
            }
        }
        if lost || self.faults.unreadable.is_some_and(|(from, to)| io.offset < to && from < io.end()) {
            return Outcome::Failed(IoError::Device);
        }
        io.data = Data::Bytes(self.peek(io.offset, io.len));
        Outcome::Done
    }

    fn assert_aligned(&self, io: &Io) {
        let aligned = io.offset.is_multiple_of(self.block_bytes) && io.len.is_multiple_of(self.block_bytes);
        assert!(aligned, "unaligned: {:?}", io.head);
    }

    /// Returns the content that a read would see, without a request.
    pub fn peek(&self, offset: u64, len: u64) -> Buf {
        let mut buf = BufMut::zeroed(len as usize);
        for (i, chunk) in buf.as_mut_slice().chunks_mut(SECTOR_BYTES as usize).enumerate() {
            if let Some(bytes) = self.sector(offset / SECTOR_BYTES + i as u64) {
                chunk.copy_from_slice(&bytes[..]);
            }
        }
        buf.freeze()
    }

    fn write(&mut self, io: &Io) -> Outcome {
        if self.faults.unwritable.is_some_and(|(from, to)| io.offset < to && from < io.end()) {
            return Outcome::Failed(IoError::Device);
        }
        self.assert_aligned(io);
        if self.faults.full && io.op != Op::Trim && !self.is_allocated(io.offset, io.end()) {
            return Outcome::Failed(IoError::NoSpace);
        }
        self.fua_writes += u64::from(io.flags.has(IoFlags::FUA));
        if io.flags.has(IoFlags::FUA) && self.fails(io.id, self.faults.fua_fails_at == Some(self.fua_writes)) {
            return Outcome::Failed(IoError::Device);
        }
        let mut bytes = vec![0; io.len as usize];
        if io.op == Op::Write {
            io.data.copy_to(&mut bytes);
        }
        let first = io.offset / SECTOR_BYTES;
        for (s, value) in (first..).zip(sectors_of(&bytes)) {
            self.unreadable.remove(&s);
            self.volatile.entry(s).or_default().push((io.id, value));
        }
        if io.flags.has(IoFlags::FUA) && !self.faults.fua_lies {
            self.fua.insert(io.id, (first, io.end() / SECTOR_BYTES));
        }
        self.unanswered.insert(io.id);
        Outcome::Done
    }

    fn flush(&mut self, id: IoId) -> Outcome {
        self.flushes += 1;
        if self.fails(id, self.faults.flush_fails_at == Some(self.flushes)) {
            return Outcome::Failed(IoError::Device);
        }
        if !self.faults.flush_lies {
            let mut flushed = Vec::new();
            let unanswered = &self.unanswered;
            self.volatile.retain(|s, versions| {
                if let Some(last) = versions.iter().rposition(|(id, _)| !unanswered.contains(id)) {
                    let (_, value) = versions.drain(..=last).next_back().expect("just found");
                    flushed.push((*s, value));
                }
                !versions.is_empty()
            });
            flushed.into_iter().for_each(|(s, value)| self.make_durable(s, value));
        }
        Outcome::Done
    }

    /// True if a request for durability fails: now, or with an earlier one that is under way. If `now`, the disk loses its power first.
    fn fails(&mut self, id: IoId, now: bool) -> bool {
        if now {
            // FUA writes in flight will be answered as done: they are not among the lost.
            while let Some(id) = self.fua.keys().next().copied() {
                self.settle_fua(id);
            }
            self.lose_power();
            self.failing = Some(id);
        }
        self.failing.is_some()
    }

    /// Flushes and FUA writes so far.
    pub fn counts(&self) -> (u64, u64) {
        (self.flushes, self.fua_writes)
    }

    /// Returns whether it has lost what it had acknowledged.
    pub fn has_failed(&self) -> bool {
        let reached = |at: Option<u64>, n: u64| at.is_some_and(|at| n >= at);
        reached(self.faults.flush_fails_at, self.flushes) || reached(self.faults.fua_fails_at, self.fua_writes)
    }

    /// Power is lost: each sector not yet durable keeps any one of its values.
    pub fn lose_power(&mut self) {
        for (s, mut versions) in std::mem::take(&mut self.volatile) {
            let pick = self.rng.below(versions.len() as u64 + 1) as usize;
            if pick > 0 {
                self.make_durable(s, versions.swap_remove(pick - 1).1);
            }
        }
        self.fua.clear();
    }

    /// Its user is gone without a power loss, and nobody waits for its answers: the next flush covers all that was written.
    pub fn abandoned(&mut self) {
        self.fua.clear();
        self.unanswered.clear();
        // Its next user counts requests anew: one in flight must not be taken for one of these, which no flush would cover then.
        self.volatile.values_mut().flatten().for_each(|(id, _)| *id = IoId(0));
    }

    fn status(&self, offset: u64, len: u64) -> Data {
        let mut extents: Vec<StatusExtent> = Vec::new();
        for s in offset / SECTOR_BYTES..(offset + len).div_ceil(SECTOR_BYTES) {
            let hole = self.sector(s).is_none();
            match extents.last_mut() {
                Some(e) if e.hole == hole => e.len += SECTOR_BYTES,
                _ => extents.push(StatusExtent { len: SECTOR_BYTES, hole, zero: hole }),
            }
        }
        Data::Status(extents.into())
    }
}

/// A write's values, sector by sector.
fn sectors_of(bytes: &[u8]) -> impl Iterator<Item = Sector> + '_ {
    let value = |chunk: &[u8]| Box::new(<[u8; SECTOR_BYTES as usize]>::try_from(chunk).expect("a sector"));
    bytes.chunks(SECTOR_BYTES as usize).map(move |chunk| chunk.iter().any(|&b| b != 0).then(|| value(chunk)))
}

#[cfg(test)]
mod tests;
