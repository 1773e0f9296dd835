//! The storage that a cache is over (NI-M26): NVRAM for writes, then either a plain array (`tps`) or a capacity-optimised
//! store on it (`cos`).
//!
//! A write is done when it's in NVRAM; what is in NVRAM goes to the array in address order, by runs or batches. `tps` pays for a
//! small write what RAID-5 does: old data and old parity are read, new ones written.

use crate::nitro::EXTENT_BYTES;
use crate::nitro::dedup_store::{DedupStore, Part};
use plimsoll_base::{Completion, Data, Io, IoHead, Op, Origin, Outcome, OwnKind, TenantId, Time, VolumeKey};
use plimsoll_stack::{Actions, Layer, Offer};
use slab::Slab;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Requests of the array that one batch has at once.
const TOGETHER: usize = 8;
/// Extents of a run of `tps`, and of a batch of `cos`.
const RUN: usize = 16;
const BATCH: usize = 256;
/// The parity of a chunk is taken to be on the next member.
const CHUNK_BYTES: u64 = 64 << 10;

/// Store behind the NVRAM.
pub enum Store {
    /// A plain array, addressed as the file system is.
    Plain,
    /// Deduplicating and compressing, with recipes.
    Dedup(Box<DedupStore>),
}

/// Purpose of a job.
enum For {
    Read(Io),
    /// These leave the NVRAM.
    Destage(Vec<u64>),
}

/// Steps of requests of the array, one after the other.
struct Job {
    steps: VecDeque<Vec<Part>>,
    outstanding: usize,
    what: For,
}

/// See the module's documentation.
pub struct Backend {
    store: Store,
    contents: BTreeMap<u64, u128>,
    nvram_extents: usize,
    /// If true, writes out of the NVRAM cost the disks nothing.
    free_writes: bool,
    /// Extents of one chunk of a plain array leave the NVRAM together, gaps or not.
    coalesces: bool,
    /// In NVRAM only; of those, the ones on their way.
    fresh: BTreeSet<u64>,
    leaving: BTreeSet<u64>,
    cursor: u64,
    waiting: VecDeque<Io>,
    jobs: Slab<Job>,
    destages: usize,
}

impl Backend {
    /// A backend with `nvram_bytes` of NVRAM, in which these extents have these contents.
    pub fn new(mut store: Store, nvram_bytes: u64, contents: impl Iterator<Item = (u64, u128)>) -> Backend {
        let contents: BTreeMap<u64, u128> = contents.collect();
        if let Store::Dedup(s) = &mut store {
            contents.values().for_each(|c| s.preload(*c));
        }
        Backend {
            store,
            contents,
            nvram_extents: (nvram_bytes / EXTENT_BYTES) as usize,
            free_writes: false,
            coalesces: false,
            fresh: BTreeSet::new(),
            leaving: BTreeSet::new(),
            cursor: 0,
            waiting: VecDeque::new(),
            jobs: Slab::new(),
            destages: 0,
        }
    }

    /// The same, but what leaves the NVRAM costs the disks nothing: what reads alone would make of it.
    #[must_use]
    pub fn with_free_writes(mut self, free: bool) -> Backend {
        self.free_writes = free;
        self
    }

    /// The same, but what lies in one chunk of a plain array leaves the NVRAM together: an array's controller with an elevator by chunk.
    #[must_use]
    pub fn coalescing(mut self, coalesces: bool) -> Backend {
        self.coalesces = coalesces;
        self
    }

    /// Returns the store behind the NVRAM.
    pub fn store(&self) -> &Store {
        &self.store
    }

    fn names(&self, io: &IoHead) -> Vec<u128> {
        let extents = io.offset / EXTENT_BYTES..io.end().div_ceil(EXTENT_BYTES);
        extents.map(|e| self.contents.get(&e).copied().unwrap_or(0)).collect()
    }

    fn read(&mut self, now: Time, io: Io, out: &mut Actions) {
        let (first, names) = (io.offset / EXTENT_BYTES, self.names(&io.head));
        let only_recipe = io.origin == Origin::Own(OwnKind::Recipe);
        let in_nvram = |e: u64| self.fresh.contains(&e) || self.leaving.contains(&e);
        let steps = match &mut self.store {
            Store::Dedup(s) if only_recipe => vec![s.recipes(first, names.len() as u64)],
            _ if (first..first + names.len() as u64).all(in_nvram) => vec![],
            Store::Plain => vec![vec![(Op::Read, io.offset, io.len)]],
            Store::Dedup(s) => s.read(first, &names),
        };
        self.begin(now, steps, For::Read(io), out);
    }

    fn write(&mut self, now: Time, io: Io, out: &mut Actions) {
        let extents = io.len / EXTENT_BYTES;
        if self.fresh.len() + self.leaving.len() + extents as usize > self.nvram_extents {
            return self.waiting.push_back(io);
        }
        let mut names = Vec::new();
        names_of(&io.data, &mut names);
        assert_eq!(names.len() as u64, extents, "whole extents with names");
        for (e, name) in (io.offset / EXTENT_BYTES..).zip(names) {
            self.contents.insert(e, name);
            self.fresh.insert(e);
        }
        out.done(io, Data::Absent);
        self.destage(now, out);
    }

    /// Moves what is in NVRAM on, if there is enough of it.
    fn destage(&mut self, now: Time, out: &mut Actions) {
        let (most, at_once) = match self.store {
            Store::Plain => (RUN, TOGETHER),
            Store::Dedup(_) => (BATCH, 1),
        };
        while self.destages < at_once && self.fresh.len() > self.nvram_extents / 4 {
            let after = self.fresh.range(self.cursor..).chain(self.fresh.range(..self.cursor));
            // What was written again while it's on its way waits.
            let mut chosen: Vec<u64> = after.copied().filter(|e| !self.leaving.contains(e)).take(most).collect();
            if let Store::Plain = self.store {
                let chunk = |e: u64| e / (CHUNK_BYTES / EXTENT_BYTES);
                let together = |w: &&[u64]| if self.coalesces { chunk(w[1]) == chunk(w[0]) } else { w[1] == w[0] + 1 };
                let run = chosen.windows(2).take_while(together).count() + 1;
                chosen.truncate(run);
            }
            let Some(last) = chosen.last() else { return };
            self.cursor = last + 1;
            for e in &chosen {
                self.fresh.remove(e);
                self.leaving.insert(*e);
            }
            let steps = match &mut self.store {
                _ if self.free_writes => vec![],
                Store::Plain => {
                    let (at, end) = (chosen[0] * EXTENT_BYTES, (last + 1) * EXTENT_BYTES);
                    let len = end - at;
                    let both = |op| vec![(op, at, len), (op, at + CHUNK_BYTES, len)];
                    vec![both(Op::Read), both(Op::Write)]
                }
                Store::Dedup(s) => {
                    let batch: Vec<(u64, u128)> = chosen.iter().map(|e| (*e, self.contents[e])).collect();
                    s.write(&batch, TOGETHER)
                }
            };
            self.destages += 1;
            self.begin(now, steps, For::Destage(chosen), out);
        }
    }

    fn begin(&mut self, now: Time, steps: Vec<Vec<Part>>, what: For, out: &mut Actions) {
        let job = self.jobs.insert(Job { steps: steps.into(), outstanding: 0, what });
        self.go_on(now, job, out);
    }

    fn go_on(&mut self, now: Time, at: usize, out: &mut Actions) {
        let job = &mut self.jobs[at];
        while let Some(parts) = job.steps.pop_front() {
            for (op, offset, len) in &parts {
                let mut head = IoHead::new(*op, VolumeKey::POOL, TenantId::default(), *offset, *len, now);
                (head.id, head.tag) = (out.new_id(), at as u64);
                head.origin = Origin::Own(OwnKind::Fill);
                out.submit(0, Io::new(head, Data::Absent));
            }
            job.outstanding = parts.len();
            if job.outstanding > 0 {
                return;
            }
        }
        match self.jobs.remove(at).what {
            For::Read(io) => {
                let names = self.names(&io.head);
                out.done(io, Data::Content(names.into()));
            }
            For::Destage(extents) => {
                self.destages -= 1;
                extents.iter().for_each(|e| {
                    self.leaving.remove(e);
                });
                for io in std::mem::take(&mut self.waiting) {
                    self.write(now, io, out);
                }
                self.destage(now, out);
            }
        }
    }
}

/// All names of `data`, in order.
fn names_of(data: &Data, into: &mut Vec<u128>) {
    match data {
        Data::Content(names) => into.extend(names.iter()),
        Data::Parts(parts) => parts.iter().for_each(|(_, d)| names_of(d, into)),
        _ => {}
    }
}

impl Layer for Backend {
    fn name(&self) -> &'static str {
        "backend"
    }

    fn offer(&self, below: &[Offer]) -> Offer {
        below[0]
    }

    fn submit(&mut self, now: Time, io: Io, out: &mut Actions) {
        match io.op {
            Op::Read => self.read(now, io, out),
            Op::Write => self.write(now, io, out),
            // NVRAM survives.
            Op::Flush | Op::Trim | Op::WriteZeroes | Op::Cache | Op::BlockStatus => out.done(io, Data::Absent),
        }
    }

    fn completed(&mut self, now: Time, c: Completion, out: &mut Actions) {
        assert_eq!(c.outcome, Outcome::Done, "a model never fails");
        let at = c.io.tag as usize;
        self.jobs[at].outstanding -= 1;
        if self.jobs[at].outstanding == 0 {
            self.go_on(now, at, out);
        }
    }

    fn is_idle(&self) -> bool {
        self.jobs.is_empty() && self.waiting.is_empty()
    }
}
