//! Two layers for tests of the contract of overlaps (see "Overlaps" in `plimsoll_stack::layer`), and pipelined requests over them. Also used
//! by the tests of the logs.

use plimsoll_base::*;
use plimsoll_stack::sim::SimPool;
use plimsoll_stack::*;
use std::collections::BTreeMap;

/// Reads whole units of 32 KiB of a volume, as a cache above does: its reads overlap changes of other clients.
pub struct Widens {
    volume_bytes: u64,
    reads: BTreeMap<IoId, (u64, u64)>,
}

const UNIT: u64 = 32 << 10;
const SECTOR: u64 = 512;

impl Widens {
    pub fn new(volume_bytes: u64) -> Widens {
        Widens { volume_bytes, reads: BTreeMap::new() }
    }
}

impl Layer for Widens {
    fn name(&self) -> &'static str {
        "widens"
    }
    fn offer(&self, below: &[Offer]) -> Offer {
        below[0]
    }
    fn submit(&mut self, _: Time, mut io: Io, out: &mut Actions) {
        if io.op == Op::Read {
            self.reads.insert(io.id, (io.offset, io.len));
            let (from, to) = (io.offset / UNIT * UNIT, io.end().next_multiple_of(UNIT));
            (io.head.offset, io.head.len) = (from, to.min(self.volume_bytes) - from);
        }
        out.submit(0, io);
    }
    fn completed(&mut self, _: Time, mut c: Completion, out: &mut Actions) {
        if let Some((offset, len)) = self.reads.remove(&c.io.id) {
            c.io.data = c.io.data.slice(c.io.len, offset - c.io.offset, len);
            (c.io.head.offset, c.io.head.len) = (offset, len);
        }
        out.complete(c);
    }
    fn is_idle(&self) -> bool {
        self.reads.is_empty()
    }
}

/// Answers reads with other bytes where a change was in flight together with them. Sectors that the change leaves as they were are defined:
/// old and new are the same.
#[derive(Default)]
pub struct Poisons {
    /// By number, what the last change brought; what isn't there is zero.
    sectors: BTreeMap<u64, Vec<u8>>,
    /// Sectors that changes in flight make others.
    changes: BTreeMap<IoId, Vec<u64>>,
    /// Reads in flight, and the sectors that were changed meanwhile.
    reads: BTreeMap<IoId, Vec<u64>>,
    pub poisoned: u64,
}

impl Poisons {
    /// Enters a change; the sectors that are others after it.
    fn change(&mut self, io: &Io) -> Vec<u64> {
        let mut bytes = vec![0; io.len as usize];
        if io.op == Op::Write {
            io.data.copy_to(&mut bytes);
        }
        let news = (io.offset / SECTOR..).zip(bytes.chunks_exact(SECTOR as usize));
        let differs = |sectors: &mut BTreeMap<u64, Vec<u8>>, n: u64, new: &[u8]| {
            let old = sectors.insert(n, new.to_vec()).unwrap_or_else(|| vec![0; SECTOR as usize]);
            old != new
        };
        news.filter(|(n, new)| differs(&mut self.sectors, *n, new)).map(|(n, _)| n).collect()
    }
}

impl Layer for Poisons {
    fn name(&self) -> &'static str {
        "poisons"
    }
    fn offer(&self, below: &[Offer]) -> Offer {
        below[0]
    }
    fn submit(&mut self, _: Time, io: Io, out: &mut Actions) {
        if io.op.is_change() {
            let changed = self.change(&io);
            self.reads.values_mut().for_each(|r| r.extend(&changed));
            self.changes.insert(io.id, changed);
        } else if io.op == Op::Read {
            self.reads.insert(io.id, self.changes.values().flatten().copied().collect());
        }
        out.submit(0, io);
    }
    fn completed(&mut self, _: Time, mut c: Completion, out: &mut Actions) {
        self.changes.remove(&c.io.id);
        let changed = self.reads.remove(&c.io.id).unwrap_or_default();
        let within = |sector: &u64| (c.io.offset..c.io.end()).contains(&(sector * SECTOR));
        let overlaps: Vec<u64> = changed.into_iter().filter(within).collect();
        if c.outcome.is_done() && !overlaps.is_empty() {
            let mut bytes = vec![0; c.io.len as usize];
            c.io.data.copy_to(&mut bytes);
            for sector in overlaps {
                let at = (sector * SECTOR - c.io.offset) as usize;
                bytes[at..at + SECTOR as usize].fill(0xee);
            }
            c.io.data = Data::Bytes(Buf::copy_of(&bytes));
            self.poisoned += 1;
        }
        out.complete(c);
    }
    fn is_idle(&self) -> bool {
        self.reads.is_empty() && self.changes.is_empty()
    }
}

/// Pipelined reads and changes of some sectors of a volume, at times a flush or an `order`; then all is read, twice. What of a
/// read isn't what was written before it, if anything.
pub fn pipelined(
    pool: &mut SimPool,
    volume: VolumeKey,
    bytes: u64,
    rng: &mut Rng,
    order: fn(&mut SimPool),
) -> Option<String> {
    let (mut truth, mut expected) = (vec![0u8; bytes as usize], BTreeMap::new());
    for round in 1..=220u64 {
        let is_last = round > 200;
        let len = (1 + rng.below(16)) * SECTOR;
        let offset = rng.below((bytes - len) / SECTOR) * SECTOR;
        let op =
            [Op::Read, Op::Read, Op::Read, Op::Write, Op::Write, Op::WriteZeroes, Op::Flush][rng.below(7) as usize];
        let (op, offset, len) = match op {
            // After everything else.
            _ if is_last => (Op::Read, (round - 201) % 10 * (bytes / 10), bytes / 10),
            Op::Flush => (Op::Flush, 0, 0),
            op => (op, offset, len),
        };
        if is_last {
            pool.run();
        }
        let (from, to) = (offset as usize, (offset + len) as usize);
        let mut io = Io::new(IoHead::new(op, volume, TenantId(1), offset, len, pool.now()), Data::Absent);
        io.head.tag = round;
        match op {
            Op::Write => {
                truth[from..to].fill(round as u8);
                io.data = Data::Bytes(Buf::copy_of(&truth[from..to]));
            }
            Op::WriteZeroes => truth[from..to].fill(0),
            Op::Read => drop(expected.insert(round, truth[from..to].to_vec())),
            _ => {}
        }
        let now = pool.now();
        pool.offer(now, io);
        if rng.chance(0.02) {
            order(pool);
        }
        for _ in 0..rng.below(4) {
            pool.step();
        }
    }
    pool.run();
    while let Some(c) = pool.next_done() {
        if !c.outcome.is_done() {
            return Some(format!("{:?} {}: {:?}", c.io.op, c.io.tag, c.outcome));
        }
        if let Some(want) = expected.remove(&c.io.tag) {
            let mut got = vec![1; c.io.len as usize];
            c.io.data.copy_to(&mut got);
            if let Some(at) = got.iter().zip(&want).position(|(a, b)| a != b) {
                let (got, want, at) = (got[at], want[at], c.io.offset + at as u64);
                return Some(format!("read {}: byte {at} is {got:#x}, written was {want:#x}", c.io.tag));
            }
        }
    }
    assert!(expected.is_empty() && pool.stack().is_idle());
    None
}
