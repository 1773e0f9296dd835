//! A simulated device that holds bytes and can fail: a volatile write cache in front of durable sectors.
//!
//! It has no mechanics (a model layer above it has those); completions come in a seeded random order within a given
//! latency range. At a power loss each sector written since the last flush keeps, independently, any of the values
//! it had since: that is dropping, tearing and reordering in one. What was flushed or written with FUA survives.

use plimsoll_base::{
    Buf, BufMut, Completion, Data, Io, IoError, IoFlags, IoId, Op, Outcome, Rng, Span, StatusExtent, Time,
};
use std::collections::{BTreeMap, BTreeSet};

/// Bytes of the smallest unit that is written whole.
pub const SECTOR_BYTES: u64 = 512;

type Sector = Option<Box<[u8; SECTOR_BYTES as usize]>>;

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
    /// It isn't there: everything fails, and changes nothing.
    pub away: bool,
    /// Flushes are acknowledged but nothing is made durable: a planted bug that the checkers must find.
    pub flush_lies: bool,
    /// FUA is ignored: likewise.
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
            faults,
            flushes: 0,
            fua_writes: 0,
            failing: None,
            latency,
            rng,
        }
    }

    /// Its size.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// How long the next request takes.
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

    /// The answer to write `id` has been delivered: the next flush covers it.
    pub fn answered(&mut self, id: IoId) {
        self.unanswered.remove(&id);
        self.failing = self.failing.filter(|failing| *failing != id);
    }

    fn sector(&self, s: u64) -> &Sector {
        match self.volatile.get(&s) {
            Some(versions) => &versions.last().expect("never empty").1,
            None => self.durable.get(&s).unwrap_or(&None),
        }
    }

    fn read(&mut self, io: &mut Io) -> Outcome {
        if self.faults.unreadable.is_some_and(|(from, to)| io.offset < to && from < io.end()) {
            return Outcome::Failed(IoError::Device);
        }
        assert!(
            io.offset.is_multiple_of(SECTOR_BYTES) && io.len.is_multiple_of(SECTOR_BYTES),
            "unaligned: {:?}",
            io.head
        );
        io.data = Data::Bytes(self.peek(io.offset, io.len));
        Outcome::Done
    }

    /// What a read would see, without being one.
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
        assert!(
            io.offset.is_multiple_of(SECTOR_BYTES) && io.len.is_multiple_of(SECTOR_BYTES),
            "unaligned: {:?}",
            io.head
        );
        self.fua_writes += u64::from(io.flags.has(IoFlags::FUA));
        if io.flags.has(IoFlags::FUA) && self.fails(io.id, self.faults.fua_fails_at == Some(self.fua_writes)) {
            return Outcome::Failed(IoError::Device);
        }
        let mut bytes = vec![0; io.len as usize];
        if io.op == Op::Write {
            io.data.copy_to(&mut bytes);
        }
        let fua = io.flags.has(IoFlags::FUA) && !self.faults.fua_lies;
        for (i, chunk) in bytes.chunks(SECTOR_BYTES as usize).enumerate() {
            let s = io.offset / SECTOR_BYTES + i as u64;
            let value: Sector = chunk.iter().any(|&b| b != 0).then(|| Box::new(chunk.try_into().expect("a sector")));
            if fua {
                self.volatile.remove(&s);
                self.durable.insert(s, value);
            } else {
                self.volatile.entry(s).or_default().push((io.id, value));
            }
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
            let (durable, unanswered) = (&mut self.durable, &self.unanswered);
            self.volatile.retain(|s, versions| {
                if let Some(last) = versions.iter().rposition(|(id, _)| !unanswered.contains(id)) {
                    let (_, value) = versions.drain(..=last).next_back().expect("just found");
                    durable.insert(*s, value);
                }
                !versions.is_empty()
            });
        }
        Outcome::Done
    }

    /// Does a request for durability fail, now or with one that is under way?
    fn fails(&mut self, id: IoId, now: bool) -> bool {
        if now {
            self.lose_power();
            self.failing = Some(id);
        }
        self.failing.is_some()
    }

    /// Flushes and FUA writes so far.
    pub fn counts(&self) -> (u64, u64) {
        (self.flushes, self.fua_writes)
    }

    /// Has it lost what it had acknowledged?
    pub fn has_failed(&self) -> bool {
        let reached = |at: Option<u64>, n: u64| at.is_some_and(|at| n >= at);
        reached(self.faults.flush_fails_at, self.flushes) || reached(self.faults.fua_fails_at, self.fua_writes)
    }

    /// Power is lost: each sector not yet durable keeps any one of its values.
    pub fn lose_power(&mut self) {
        for (s, versions) in std::mem::take(&mut self.volatile) {
            let pick = self.rng.below(versions.len() as u64 + 1) as usize;
            if pick > 0 {
                self.durable.insert(s, versions[pick - 1].1.clone());
            }
        }
    }

    /// Who used it is gone without a power loss, and its answers are nobody's: the next flush covers all that was written.
    pub fn abandoned(&mut self) {
        self.unanswered.clear();
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
