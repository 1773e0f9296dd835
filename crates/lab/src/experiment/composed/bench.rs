//! One stack under its load: what keeps each queue ten deep, and the probes.

use super::stacks::{Combination, pool};
use super::{BLOCK, BYTES, CRITICAL, DEEP, OTHER, OTHER_VOLUME, PROBES, Probe, VOLUME};
use crate::experiment::LabError;
use plimsoll_base::{Completion, Data, Io, IoHead, Op, Rng, TenantId, Time};
use plimsoll_device::PageCacheLayer;
use plimsoll_replay::Pool;
use plimsoll_sched::Profile;
use plimsoll_stack::Offered;
use std::collections::VecDeque;

/// Reads until what was read is used again: by then the drive's own buffer has forgotten it.
const WARM: usize = 200;

/// Tag that marks probes.
const PROBE_TAG: u64 = 1;
const READ_TAG: u64 = 2;
const WRITE_TAG: u64 = 3;
const CROWD_TAG: u64 = 4;
const OTHER_TAG: u64 = 5;
const CACHED_TAG: u64 = 6;

/// Forecast and actual time of a probe, in ms.
pub struct Seen {
    pub forecast: f64,
    pub took: f64,
}

pub struct Bench<'a> {
    pub c: &'a Combination,
    pub pool: Pool,
    rng: Rng,
    pub now: Time,
    /// Read earlier, oldest first: in memory, if there is a page cache, or in the cache.
    warm: VecDeque<u64>,
    /// Reads until the next is refused on purpose: every other one.
    refuses: bool,
    /// By kind of probe.
    pub seen: [Vec<Seen>; PROBES.len()],
}

impl<'a> Bench<'a> {
    pub fn new(c: &'a Combination, profile: &Profile, seed: u64) -> Result<Bench<'a>, LabError> {
        let (pool, rng) = (pool(c, profile, seed)?, Rng::new(seed, "composed"));
        let now = pool.ready_at();
        let mut bench = Bench { c, pool, rng, now, warm: VecDeque::new(), refuses: false, seen: Default::default() };
        (0..c.reads()).for_each(|_| bench.send_load(READ_TAG));
        if c.has_two() {
            (0..c.reads()).for_each(|_| bench.send_load(OTHER_TAG));
        }
        if c.logs {
            (0..DEEP).for_each(|_| bench.send_load(WRITE_TAG));
        }
        Ok(bench)
    }

    fn offer(&mut self, head: IoHead) -> Offered {
        let data = if head.op == Op::Write && self.pool.is_backed() { Data::Zeroes } else { Data::Absent };
        let offered = self.pool.stack.offer(self.now, Io::new(head, data));
        self.pool.collect(self.now);
        offered
    }

    fn place(&mut self) -> u64 {
        self.rng.below(BYTES / BLOCK) * BLOCK
    }

    fn head(&self, op: Op, offset: u64, tag: u64) -> IoHead {
        let (volume, tenant) = if tag == OTHER_TAG { (OTHER_VOLUME, OTHER) } else { (VOLUME, CRITICAL) };
        let tenant = if self.c.has_two() { tenant } else { TenantId(1) };
        IoHead { tag, ..IoHead::new(op, volume, tenant, offset, BLOCK, self.now) }
    }

    fn send(&mut self, op: Op, offset: u64, tag: u64) {
        let head = self.head(op, offset, tag);
        self.offer(head);
    }

    /// One more of those that keep the queues full.
    fn send_load(&mut self, tag: u64) {
        let at = self.place();
        if tag == READ_TAG {
            self.warm.push_back(at);
        }
        self.send(if tag == WRITE_TAG { Op::Write } else { Op::Read }, at, tag);
    }

    /// Swaps out pages that were in memory; then a read of them is refused, and then they are brought in in the background. It
    /// does so for every other read, so that half of the reads are in the background.
    fn refuse_one(&mut self) {
        self.refuses = !self.refuses;
        if !self.refuses || self.warm.len() < WARM {
            return;
        }
        let at = self.warm.pop_front().expect("just counted");
        self.pool.stack.with_layer(self.now, |l: &mut PageCacheLayer, _| l.cache().drop_page(at / BLOCK));
        let head = IoHead { deadline: Time::ZERO, ..self.head(Op::Read, at, 0) };
        self.offer(head);
    }

    /// Lets the load go on until `ends` reads of it have ended, or the probe has.
    fn go_on(&mut self, mut ends: u64) -> Option<Seen> {
        let mut seen = None;
        while ends > 0 && seen.is_none() {
            self.now = self.pool.next_event().max(self.now);
            self.pool.advance(self.now);
            while let Some(done) = self.pool.stack.next_done() {
                match done.io.tag {
                    PROBE_TAG => seen = Some(self.told(&done)),
                    tag @ (READ_TAG | WRITE_TAG | OTHER_TAG) => {
                        self.send_load(tag);
                        if tag == READ_TAG {
                            ends -= 1.min(ends);
                            if self.c.memory {
                                self.refuse_one();
                            }
                        }
                    }
                    _ => {}
                }
            }
        }
        seen
    }

    /// One round: the load goes on for a while, then a probe comes.
    pub fn round(&mut self, round: u64) {
        let pause = 1 + self.rng.below(2 * DEEP);
        self.go_on(pause);
        let kinds = if self.c.cache { PROBES.len() } else { PROBES.len() - 1 };
        let kind = (round % kinds as u64) as usize;
        let at = self.prepare(PROBES[kind]);
        self.send(Op::Read, at, PROBE_TAG);
        let seen = self.go_on(u64::MAX);
        self.seen[kind].extend(seen);
    }

    /// Makes queues that only this kind of probe meets; where it reads.
    pub fn prepare(&mut self, probe: Probe) -> u64 {
        match probe {
            Probe::Alone => self.place(),
            Probe::Blocked => {
                let at = self.place();
                // One goes ahead, ten wait for each other.
                (0..=DEEP).for_each(|_| self.send(Op::Write, at, CROWD_TAG));
                at
            }
            Probe::Cached => {
                // Read some time ago, each once: ten at the flash drive, ten in its scheduler.
                let first = self.warm.len().saturating_sub(WARM);
                let cached: Vec<u64> = self.warm.range(first..).copied().take(2 * DEEP as usize + 1).collect();
                cached[1..].iter().for_each(|&at| self.send(Op::Read, at, CACHED_TAG));
                cached[0]
            }
        }
    }

    fn told(&self, c: &Completion) -> Seen {
        let ms = |t: Time| t.since(c.io.arrived_at).as_millis_f64();
        Seen { forecast: ms(c.io.expected_at), took: ms(self.now) }
    }
}
