//! YCSB's core workloads A to F, as the block requests of a store that keeps records one after the other.
//!
//! A key-value store's use of its disk is its own matter; here, deliberately, it is the least possible. Record `i` lies at byte
//! `i · record_bytes`. A read or a scan is one read of the 4 KiB blocks that cover it. An update or an insert is one write of
//! them. A read-modify-write is the one and, when that is answered, the other. No cache, no index, no journal.

use crate::workload::random::{Zipf, fnv_scramble};
use crate::workload::{BadWorkload, ClosedLoop, RateCap, Request, Requests, Step};
use plimsoll_base::{Rng, Span, Time};
use plimsoll_trace::record::Op;
use std::collections::VecDeque;

/// Popularity of records.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Popularity {
    /// All alike.
    Uniform,
    /// By Zipf's law, scattered over the records by a hash (YCSB's scrambled zipfian: exponent 0.99 over 10^10
    /// items, hashed onto the records).
    Zipfian,
    /// By Zipf's law, the newest the most popular.
    Latest,
}

/// Shares of the operations in percent, adding up to 100, and their targets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mix {
    /// One record.
    pub read: u64,
    /// One record overwritten.
    pub update: u64,
    /// One new record.
    pub insert: u64,
    /// Several records in a row.
    pub scan: u64,
    /// One record read, then overwritten.
    pub read_modify_write: u64,
    /// Popularity of records.
    pub popularity: Popularity,
}

impl Mix {
    const fn of(read: u64, update: u64, insert: u64, scan: u64, rmw: u64, popularity: Popularity) -> Mix {
        Mix { read, update, insert, scan, read_modify_write: rmw, popularity }
    }
    /// Update heavy.
    pub const A: Mix = Mix::of(50, 50, 0, 0, 0, Popularity::Zipfian);
    /// Read mostly.
    pub const B: Mix = Mix::of(95, 5, 0, 0, 0, Popularity::Zipfian);
    /// Read only.
    pub const C: Mix = Mix::of(100, 0, 0, 0, 0, Popularity::Zipfian);
    /// Read latest.
    pub const D: Mix = Mix::of(95, 0, 5, 0, 0, Popularity::Latest);
    /// Short ranges.
    pub const E: Mix = Mix::of(0, 0, 5, 95, 0, Popularity::Zipfian);
    /// Read-modify-write.
    pub const F: Mix = Mix::of(50, 0, 0, 0, 50, Popularity::Zipfian);

    /// The workload of a letter, `A` to `F`.
    pub fn named(letter: char) -> Option<Mix> {
        Some(match letter.to_ascii_uppercase() {
            'A' => Mix::A,
            'B' => Mix::B,
            'C' => Mix::C,
            'D' => Mix::D,
            'E' => Mix::E,
            'F' => Mix::F,
            _ => return None,
        })
    }
}

/// Parameters; the defaults are YCSB's but for the number of records, which YCSB leaves at 1,000.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct YcsbConfig {
    /// Operations.
    pub mix: Mix,
    /// Records at the start (`recordcount`).
    pub records: u64,
    /// Records there is room for: inserts beyond it overwrite the oldest inserted ones.
    pub records_max: u64,
    /// Bytes of a record (10 fields of 100).
    pub record_bytes: u64,
    /// First byte of the store.
    pub start: u64,
    /// Longest scan, lengths being uniform from 1 (`maxscanlength`).
    pub scan_max: u64,
    /// Client threads, one operation outstanding each (`threadcount`).
    pub threads: u32,
    /// Operations a second, all threads together; 0: no cap (`target`).
    pub target: u64,
}

impl YcsbConfig {
    /// A store of `records` records with room for `records / 2` more.
    pub fn new(mix: Mix, records: u64) -> YcsbConfig {
        YcsbConfig {
            mix,
            records,
            records_max: records.saturating_add(records / 2).max(1),
            record_bytes: 1_000,
            start: 0,
            scan_max: 100,
            threads: 1,
            target: 0,
        }
    }

    fn check(&self) -> Result<(), BadWorkload> {
        let m = &self.mix;
        if [m.read, m.update, m.insert, m.scan, m.read_modify_write].iter().fold(0u64, |a, &b| a.saturating_add(b))
            != 100
        {
            return Err(BadWorkload::new("mix", "the shares must add up to 100 percent"));
        }
        if self.records == 0 || self.records > self.records_max || self.record_bytes == 0 {
            return Err(BadWorkload::new("records", "at least one record, of at least one byte, within records_max"));
        }
        if self.threads == 0 || self.scan_max == 0 {
            return Err(BadWorkload::new("threads and scan_max", "each is at least 1"));
        }
        let end = self.records_max.checked_mul(self.record_bytes).and_then(|b| b.checked_add(self.start));
        if end.is_none_or(|e| e > i64::MAX as u64 - BLOCK) {
            return Err(BadWorkload::new("records_max", "the store ends beyond 2^63"));
        }
        Ok(())
    }
}

/// Bytes of the blocks the store reads and writes.
const BLOCK: u64 = 4096;
/// Items YCSB's scrambled zipfian draws from before hashing.
const SCRAMBLED_ITEMS: u64 = 10_000_000_000;
/// YCSB's exponent.
const THETA: f64 = 0.99;

const READ: u16 = 0;
const UPDATE: u16 = 1;
const INSERT: u16 = 2;
const SCAN: u16 = 3;
const RMW: u16 = 4;

/// Records and who is asked for: the state that threads share.
struct Store {
    cfg: YcsbConfig,
    scrambled: Zipf,
    /// Over the records there are; made anew when there are more.
    latest: Zipf,
    records: u64,
    inserted: u64,
}

impl Store {
    fn pick(&self, rng: &mut Rng) -> u64 {
        match self.cfg.mix.popularity {
            Popularity::Uniform => rng.below(self.records),
            Popularity::Zipfian => fnv_scramble(self.scrambled.draw(rng) - 1) % self.records,
            Popularity::Latest => {
                // Rank 1 is the record inserted last; once the room is used up that is not the highest number.
                let behind = self.latest.draw(rng) - 1;
                (self.newest() + self.records - behind % self.records) % self.records
            }
        }
    }

    fn newest(&self) -> u64 {
        if self.inserted == 0 { self.records - 1 } else { self.slot(self.inserted - 1) }
    }

    /// Returns the slot of insert number `n`: in the room beyond the initial records, again and again.
    fn slot(&self, n: u64) -> u64 {
        let room = self.cfg.records_max - self.cfg.records;
        if room == 0 { n % self.cfg.records } else { self.cfg.records + n % room }
    }

    fn insert(&mut self) -> u64 {
        let slot = self.slot(self.inserted);
        self.inserted += 1;
        if slot >= self.records {
            self.records = slot + 1;
            // Can't fail: there is at least one record, and the exponent is ours.
            self.latest = Zipf::new(self.records, THETA).expect("records are not zero");
        }
        slot
    }

    fn request(&self, op: Op, first: u64, count: u64) -> Request {
        let last = (first + count).min(self.cfg.records_max);
        let from = (self.cfg.start + first * self.cfg.record_bytes) / BLOCK * BLOCK;
        let to = (self.cfg.start + last * self.cfg.record_bytes).div_ceil(BLOCK) * BLOCK;
        Request { op, offset: from, len: to - from }
    }
}

/// YCSB, closed loop or as a plain sequence of requests.
pub struct Ycsb {
    store: Store,
    rngs: Vec<Rng>,
    queues: Vec<VecDeque<Step>>,
    cap: RateCap,
}

impl Ycsb {
    /// The workload `cfg`.
    ///
    /// # Errors
    /// If the configuration makes no sense.
    pub fn new(cfg: &YcsbConfig, seed: u64) -> Result<Ycsb, BadWorkload> {
        cfg.check()?;
        Ok(Ycsb {
            store: Store {
                cfg: cfg.clone(),
                scrambled: Zipf::new(SCRAMBLED_ITEMS, THETA)?,
                latest: Zipf::new(cfg.records, THETA)?,
                records: cfg.records,
                inserted: 0,
            },
            rngs: (0..cfg.threads).map(|t| Rng::new(seed, &format!("ycsb thread {t}"))).collect(),
            queues: vec![VecDeque::new(); cfg.threads as usize],
            cap: RateCap::new(cfg.target),
        })
    }

    /// Queues a thread's next operation.
    fn operation(&mut self, thread: usize) {
        let (rng, queue, store) = (&mut self.rngs[thread], &mut self.queues[thread], &mut self.store);
        let m = store.cfg.mix;
        let mut at = rng.below(100);
        let mut falls_in = |share: u64| {
            let hit = at < share;
            at = at.wrapping_sub(share);
            hit
        };
        let send = |request, label| Step::Send { request, label };
        if falls_in(m.read) {
            let i = store.pick(rng);
            queue.push_back(send(store.request(Op::Read, i, 1), READ));
        } else if falls_in(m.update) {
            let i = store.pick(rng);
            queue.push_back(send(store.request(Op::Write, i, 1), UPDATE));
        } else if falls_in(m.insert) {
            let i = store.insert();
            queue.push_back(send(store.request(Op::Write, i, 1), INSERT));
        } else if falls_in(m.scan) {
            let i = store.pick(rng);
            let count = 1 + rng.below(store.cfg.scan_max);
            queue.push_back(send(store.request(Op::Read, i, count), SCAN));
        } else {
            let i = store.pick(rng);
            queue.push_back(send(store.request(Op::Read, i, 1), RMW));
            queue.push_back(send(store.request(Op::Write, i, 1), RMW));
        }
    }
}

impl ClosedLoop for Ycsb {
    fn threads(&self) -> u32 {
        self.store.cfg.threads
    }
    /// One: the write of a read-modify-write thus waits for its read.
    fn depth(&self) -> u32 {
        1
    }
    fn labels(&self) -> &[&'static str] {
        &["read", "update", "insert", "scan", "read-modify-write"]
    }
    fn next(&mut self, thread: u32, now: Time) -> Step {
        let t = thread as usize;
        if self.queues[t].is_empty() {
            let wait = self.cap.wait(now);
            if wait != Span::ZERO {
                return Step::Think(wait);
            }
            self.operation(t);
        }
        self.queues[t].pop_front().unwrap_or(Step::Finished)
    }
}

impl Requests for Ycsb {
    /// The first thread's requests.
    fn next_request(&mut self) -> Request {
        loop {
            match self.queues[0].pop_front() {
                Some(Step::Send { request, .. }) => return request,
                Some(_) => {}
                None => self.operation(0),
            }
        }
    }
}
