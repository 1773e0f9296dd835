//! OpTune's file-system emulator (OT-M13, §5.3.2): a block buffer cache over a modelled disk.
//!
//! A request of n blocks loops over its m hits (`hit`) and n - m misses (`miss`: asking the disk), then waits for the disk
//! (`wait`); neighbouring misses are one disk request. Writes go to the cache and are flushed every 30 s, or when a
//! quarter of the cache is dirty, outside of any request's time. Two parameters: CFQ's `idle_time`, and `eviction_prob`:
//! when the cache is full, the least recently used block is evicted with that probability, otherwise the new block isn't cached.

mod block_cache;

use crate::experiment::LabError;
use crate::system::set_each;
use block_cache::BlockCache;
use plimsoll_base::{Op, Rng, Span, Time};
use plimsoll_replay::storage::{Event, Storage};
use plimsoll_replay::workload::web::Ranks;
use plimsoll_trace::record::{Op as TraceOp, TraceRecord};
use plimsoll_tune::adapter::{Adapter, AdapterError, Run};
use plimsoll_tune::graph::{ServiceGraph, WrittenGraph};
use plimsoll_tune::profile::Observation;
use plimsoll_tune::space::{Parameter, Setting, Space};
use slab::Slab;

/// One request of a trace: blocks of one reader.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FsRequest {
    /// Time since the request before.
    pub gap: Span,
    /// Process: a CFQ queue.
    pub process: u16,
    /// True for a write, false for a read.
    pub is_write: bool,
    /// First block.
    pub block: u64,
    /// Blocks.
    pub blocks: u32,
}

/// Configuration of the system.
#[derive(Clone, Debug)]
pub struct FsConfig {
    /// Disk profile.
    pub disk: &'static str,
    /// Blocks of the buffer cache.
    pub cache_blocks: usize,
    /// Everything random.
    pub seed: u64,
}

impl Default for FsConfig {
    /// A quarter of the generated files' bytes.
    fn default() -> FsConfig {
        FsConfig { disk: "hdd-160g-7200", cache_blocks: 40_000, seed: 1 }
    }
}

/// A block of the buffer cache.
pub const BLOCK_BYTES: u64 = 4096;
/// Values of `eviction_prob`.
pub const EVICTION: [f64; 6] = [0.0, 0.2, 0.4, 0.6, 0.8, 1.0];
const FLUSH_EVERY: Span = Span::from_secs(30);
/// Requests of the flusher at the disk at once.
const FLUSH_DEPTH: usize = 8;
const FLUSHER: u16 = u16::MAX;
/// Limit of a trace's gaps, in mean gaps: nights are cut.
const GAP_MAX: u64 = 100;
/// Larger requests of a trace are cut.
const REQUEST_BLOCKS_MAX: u64 = 1_024;
/// Blocks that one disk request reads or writes at most.
const RUN_BLOCKS_MAX: u64 = 64;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Timer {
    Arrival,
    Flush,
    /// A request without misses is over.
    Over(u32),
}

struct Pending {
    number: u64,
    began_at: Time,
    /// Before the wait.
    cpu_ms: f64,
    left: u32,
}

/// Nodes of [`graph`] whose values are recorded.
#[derive(Clone, Copy)]
enum Node {
    Parse,
    Hit,
    Miss,
    Found,
    Whole,
    Serve,
    Misses,
    Wait,
    Request,
}

/// Their names, in their order.
const NODES: [&str; 9] = ["parse", "hit", "miss", "found", "whole", "serve", "misses", "wait", "request"];

/// See the module's documentation.
pub struct FsEmulator {
    space: Space,
    storage: Storage<Timer>,
    trace: Vec<FsRequest>,
    next: usize,
    cache: BlockCache,
    eviction_prob: f64,
    rng: Rng,
    pending: Slab<Pending>,
    flushing: usize,
    to_flush: Vec<(u64, u64)>,
    recorded: [Vec<Observation>; NODES.len()],
    hits: u64,
    asked: u64,
}

/// The graph of Fig. 5.5: what is all there loops over hits; what isn't loops over hits and misses, and waits. Each way has
/// its own counts, as a request's hits and misses sum to its blocks: one count of hits for both would give requests that
/// lack everything the hits of those that lack nothing.
pub fn graph() -> ServiceGraph {
    let text = "root = 'request'\ncomponents = ['parse', 'hit', 'miss', 'wait']\n[node]\n\
        request = { sequence = ['parse', 'serve'] }\nserve = { condition = ['whole', 'lacking'] }\n\
        whole = { loop = 'hit' }\nlacking = { sequence = ['found', 'misses', 'wait'] }\n\
        found = { loop = 'hit' }\nmisses = { loop = 'miss' }\n";
    let written: WrittenGraph = toml::from_str(text).expect("a constant");
    ServiceGraph::new(&written).expect("a constant")
}

/// Both parameters. OpTune declares that `eviction_prob` moves hits and misses and only `idle_time` the disk (Appendix
/// A.1.1). Here it moves the wait for the disk too, as its misses are the disk's load: OT-E10 measures how much.
pub fn space(idle_ms: &[u64]) -> Space {
    let p = |name: &str, values: Vec<String>, moves: &[&str]| Parameter {
        name: name.into(),
        values,
        moves: moves.iter().map(|m| m.to_string()).collect(),
    };
    let idle = p("idle_time", idle_ms.iter().map(|i| format!("{i}ms")).collect(), &["wait"]);
    let evict = p(
        "eviction_prob",
        EVICTION.iter().map(f64::to_string).collect(),
        &["serve", "whole", "found", "misses", "wait"],
    );
    Space::new(vec![idle, evict]).expect("distinct values")
}

/// A file server's requests: sixteen processes, files by Zipf (0.9) of 4 KiB to 4 MiB, read in runs from their start,
/// a fifth written; popularity drifts, so that no fixed set of blocks stays right. `busy` sets the arrival rate.
pub fn file_server(requests: usize, mean_gap: Span, seed: u64) -> Vec<FsRequest> {
    let mut rng = Rng::new(seed, "file server");
    let files = 6_000u64;
    let zipf = Ranks::new(files as usize, 0.9);
    let stride = 1_024u64;
    let mut sizes = Rng::new(7, "file sizes");
    let lengths: Vec<u64> =
        (0..files).map(|_| (1.0 + 8.0 * (1.0 - sizes.unit()).powf(-0.9)).min(1_000.0) as u64).collect();
    let mut at: Vec<(u64, u64)> = vec![(0, 0); 16];
    (0..requests)
        .map(|n| {
            let process = rng.below(16) as u16;
            let (file, done) = &mut at[usize::from(process)];
            if *done >= lengths[*file as usize] {
                // What is popular moves on by one file every 200 requests.
                let rank = zipf.draw(&mut rng) as u64;
                (*file, *done) = ((rank * 7_919 + n as u64 / 200) % files, 0);
            }
            let blocks = (1 + rng.below(16)).min(lengths[*file as usize] - *done);
            let block = *file * stride + *done;
            *done += blocks;
            let gap = Span::from_nanos((rng.exp1() * mean_gap.as_nanos() as f64) as u64);
            FsRequest { gap, process, is_write: rng.chance(0.2), block, blocks: blocks as u32 }
        })
        .collect()
}

/// A block trace as requests: each process (or device, where the trace knows none) is a queue, pieces of 4 MiB of its
/// addresses stand for files. Gaps are stretched so that requests come every `mean_gap`; one longer than a hundred of those
/// is cut to that.
pub fn of_trace(records: &[TraceRecord], mean_gap: Span) -> Vec<FsRequest> {
    let kept: Vec<&TraceRecord> = records.iter().filter(|r| matches!(r.op, TraceOp::Read | TraceOp::Write)).collect();
    let Some((first, last)) = kept.first().zip(kept.last()) else { return Vec::new() };
    let lasts = last.arrived_at.since(first.arrived_at).as_nanos().max(1);
    let wanted = mean_gap.as_nanos() * kept.len() as u64;
    let mut before = first.arrived_at;
    let one = |r: &&TraceRecord| {
        let gap = r.arrived_at.since(before).scale(wanted, lasts).min(mean_gap * GAP_MAX);
        before = r.arrived_at;
        let block = (u64::from(r.device) << 32) + r.offset / BLOCK_BYTES;
        let blocks = ((r.offset % BLOCK_BYTES + r.len).div_ceil(BLOCK_BYTES)).clamp(1, REQUEST_BLOCKS_MAX) as u32;
        let process = (r.context.unwrap_or(r.device) % u32::from(FLUSHER)) as u16;
        FsRequest { gap, process, is_write: r.op == TraceOp::Write, block, blocks }
    };
    kept.iter().map(one).collect()
}

/// Different blocks that are asked for.
pub fn footprint(requests: &[FsRequest]) -> usize {
    let mut blocks: Vec<u64> = requests.iter().flat_map(|q| q.block..q.block + u64::from(q.blocks)).collect();
    blocks.sort_unstable();
    blocks.dedup();
    blocks.len()
}

/// Time that a number of requests take to come, on average.
pub fn lasting(requests: &[FsRequest], number: u64) -> Span {
    let all: Span = requests.iter().map(|q| q.gap).sum();
    all.scale(number, requests.len() as u64)
}

/// The requests with gaps such that the disk is busy for about `share` of the time, least recently used blocks being evicted. A pace is tried
/// for the time of `pilot` requests, after a warm-up of the same.
///
/// # Errors
/// As [`FsEmulator::new`].
pub fn paced(config: &FsConfig, requests: &[FsRequest], share: f64, pilot: u64) -> Result<Vec<FsRequest>, LabError> {
    let at = |percent: u64| -> Vec<FsRequest> {
        requests.iter().map(|q| FsRequest { gap: q.gap.scale(percent, 100), ..*q }).collect()
    };
    let (mut low, mut high) = (5u64, 2_000u64);
    while high > low * 26 / 25 {
        let middle = ((low * high) as f64).sqrt() as u64;
        let requests = at(middle);
        let time = lasting(&requests, pilot);
        let mut fs = FsEmulator::new(config, requests, space(&[8]))?;
        fs.serve(time);
        let before = fs.storage.busy();
        fs.serve(time);
        let busy = (fs.storage.busy().as_secs_f64() - before.as_secs_f64()) / time.as_secs_f64();
        if busy > share { low = middle } else { high = middle }
    }
    Ok(at(high))
}

impl FsEmulator {
    /// With an empty cache at time zero. The trace repeats.
    ///
    /// # Errors
    /// If the disk can't be built.
    pub fn new(config: &FsConfig, trace: Vec<FsRequest>, space: Space) -> Result<FsEmulator, LabError> {
        if trace.is_empty() || config.cache_blocks < 4 {
            return Err(LabError("a file-system emulator needs requests, and a cache of four blocks or more".into()));
        }
        let mut storage = Storage::new(config.disk, Span::from_millis(8), config.seed)?;
        storage.after(trace[0].gap, Timer::Arrival);
        storage.after(FLUSH_EVERY, Timer::Flush);
        Ok(FsEmulator {
            space,
            storage,
            trace,
            next: 0,
            cache: BlockCache::new(config.cache_blocks),
            eviction_prob: 1.0,
            rng: Rng::new(config.seed, "emulator"),
            pending: Slab::new(),
            flushing: 0,
            to_flush: Vec::new(),
            recorded: Default::default(),
            hits: 0,
            asked: 0,
        })
    }

    /// Share of blocks found in the cache during the last [`FsEmulator::serve`].
    pub fn hit_ratio(&self) -> f64 {
        self.hits as f64 / self.asked.max(1) as f64
    }

    /// Serves for `time` and returns what was recorded of the requests that ended.
    pub fn serve(&mut self, time: Span) -> Run {
        (self.hits, self.asked) = (0, 0);
        let until = self.storage.now() + time;
        while let Some(event) = self.storage.next(until) {
            match event {
                Event::Timer(Timer::Arrival) => self.arrive(),
                Event::Timer(Timer::Over(r)) => self.over(r),
                Event::Timer(Timer::Flush) => {
                    self.storage.after(FLUSH_EVERY, Timer::Flush);
                    self.flush();
                }
                Event::Disk(u64::MAX) => self.flushed(),
                Event::Disk(tag) => self.read(tag as u32),
            }
        }
        let recorded = NODES.into_iter().zip(&mut self.recorded).filter(|(_, all)| !all.is_empty());
        recorded.map(|(node, all)| (node.to_string(), std::mem::take(all))).collect()
    }

    fn record(&mut self, node: Node, request: u64, value: f64) {
        self.recorded[node as usize].push(Observation { request, value, weight: 1.0 });
    }

    fn arrive(&mut self) {
        let q = self.trace[self.next];
        self.next = (self.next + 1) % self.trace.len();
        self.storage.after(self.trace[self.next].gap, Timer::Arrival);
        let number = self.storage.now().as_nanos();
        let parse = 0.01 * (self.rng.normal() * 0.3).exp();
        self.record(Node::Parse, number, parse);
        let (mut cpu_ms, mut hits) = (parse, 0u32);
        let mut missing: Vec<u64> = Vec::new();
        for block in q.block..q.block + u64::from(q.blocks) {
            self.asked += 1;
            // A write needs no block from the disk: whole blocks are written.
            if self.cache.touch(block) || q.is_write {
                hits += 1;
                let took = 0.002 * (self.rng.normal() * 0.3).exp();
                self.record(Node::Hit, number, took);
                cpu_ms += took;
            } else {
                let took = 0.005 * (self.rng.normal() * 0.3).exp();
                self.record(Node::Miss, number, took);
                cpu_ms += took;
                missing.push(block);
            }
            if q.is_write {
                self.cache.keep(block, true, || true);
            }
        }
        if self.cache.dirty() > self.cache.capacity() / 4 {
            self.flush();
        }
        self.hits += u64::from(hits);
        let lacks = !missing.is_empty();
        self.record(if lacks { Node::Found } else { Node::Whole }, number, f64::from(hits));
        self.record(Node::Serve, number, f64::from(u8::from(lacks)));
        let runs = runs(&missing);
        let pending = Pending { number, began_at: self.storage.now(), cpu_ms, left: runs.len() as u32 };
        let r = self.pending.insert(pending) as u32;
        if missing.is_empty() {
            self.storage.after(Span::from_millis_f64(cpu_ms), Timer::Over(r));
            return;
        }
        self.record(Node::Misses, number, missing.len() as f64);
        for &(first, n) in &runs {
            let offset = self.place(first);
            self.storage.send(Op::Read, q.process, offset, n * BLOCK_BYTES, u64::from(r));
        }
        for &b in &missing {
            self.cache.keep(b, false, || self.rng.chance(self.eviction_prob));
        }
    }

    /// Returns the place of a block: files apart, over the disk's outer half.
    fn place(&self, block: u64) -> u64 {
        let span = self.storage.size_bytes() / 2 / BLOCK_BYTES - 1_024;
        let (file, at) = (block / 1_024, block % 1_024);
        (file.wrapping_mul(0x9e37_79b9_7f4a_7c15) % span + at) * BLOCK_BYTES
    }

    fn flush(&mut self) {
        let dirty = self.cache.take_dirty();
        self.to_flush.extend(runs(&dirty));
        while self.flushing < FLUSH_DEPTH && self.flush_one() {}
    }

    fn flush_one(&mut self) -> bool {
        let Some((first, n)) = self.to_flush.pop() else { return false };
        self.flushing += 1;
        let offset = self.place(first);
        self.storage.send(Op::Write, FLUSHER, offset, n * BLOCK_BYTES, u64::MAX);
        true
    }

    fn flushed(&mut self) {
        self.flushing -= 1;
        self.flush_one();
    }

    fn read(&mut self, r: u32) {
        let now = self.storage.now();
        let p = &mut self.pending[r as usize];
        p.left -= 1;
        if p.left > 0 {
            return;
        }
        let (number, wait) = (p.number, now.since(p.began_at).as_millis_f64());
        self.record(Node::Wait, number, wait);
        self.over(r);
    }

    fn over(&mut self, r: u32) {
        let p = self.pending.remove(r as usize);
        let waited = self.storage.now().since(p.began_at).as_millis_f64();
        // The disk works while blocks are looked up: the emulator's own time comes on top of its wait.
        let total = if waited > p.cpu_ms * 1.001 { waited + p.cpu_ms } else { p.cpu_ms };
        self.record(Node::Request, p.number, total);
    }
}

/// Neighbouring blocks of one file as `(first, number)`.
fn runs(blocks: &[u64]) -> Vec<(u64, u64)> {
    let mut runs: Vec<(u64, u64)> = Vec::new();
    for &b in blocks {
        match runs.last_mut() {
            Some((first, n)) if b == *first + *n && b % 1_024 != 0 && *n < RUN_BLOCKS_MAX => *n += 1,
            _ => runs.push((b, 1)),
        }
    }
    runs
}

impl Adapter for FsEmulator {
    fn apply(&mut self, setting: &Setting) -> Result<(), AdapterError> {
        set_each(&self.space, setting, "the emulator", |name, value| {
            match name {
                "idle_time" => self.storage.set_idle_time(value.parse().ok()?),
                "eviction_prob" => self.eviction_prob = value.parse().ok()?,
                _ => return None,
            }
            Some(())
        })
    }

    fn measure(&mut self, time: Span) -> Result<Run, AdapterError> {
        Ok(self.serve(time))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_neighbours_of_one_file() {
        assert_eq!(runs(&[5, 6, 7, 9, 1_023, 1_024]), [(5, 3), (9, 1), (1_023, 1), (1_024, 1)]);
        assert_eq!(runs(&(0..130).collect::<Vec<_>>()), [(0, 64), (64, 64), (128, 2)]);
    }

    #[test]
    fn a_burst_of_writes_is_flushed_at_the_watermark() {
        let gap = Span::from_millis(5);
        let write = |i: u64| FsRequest { gap, process: 1, is_write: true, block: 16 * i, blocks: 16 };
        let config = FsConfig { cache_blocks: 4_000, ..FsConfig::default() };
        let mut fs = FsEmulator::new(&config, (0..2_000).map(write).collect(), space(&[8])).unwrap();
        fs.serve(Span::from_secs(5)); // long before the flusher's 30 s
        assert!(fs.cache.dirty() <= 1_000, "{} of 4000 blocks are dirty", fs.cache.dirty());
    }

    #[test]
    fn it_serves_hits_and_misses_and_repeats() {
        let serve = |eviction: u16| {
            let trace = file_server(20_000, Span::from_millis(12), 1);
            let mut fs = FsEmulator::new(&FsConfig::default(), trace, space(&[0, 8])).unwrap();
            fs.apply(&Setting(vec![1, eviction])).unwrap();
            fs.serve(Span::from_secs(100));
            let run = fs.serve(Span::from_secs(100));
            (run, fs.hit_ratio())
        };
        let (run, ratio) = serve(5);
        assert_eq!(serve(5).0, run);
        assert!((0.2..0.95).contains(&ratio), "{ratio}");
        // A request is its parts: as many hits as its loop says, and the wait if there was one.
        for o in run["request"].iter().skip(10).take(100) {
            let sum = |node: &str| {
                run.get(node).map_or(0.0, |v| v.iter().filter(|p| p.request == o.request).map(|p| p.value).sum())
            };
            let whole: f64 = ["parse", "hit", "miss", "wait"].map(sum).iter().sum();
            assert!((whole - o.value).abs() < 1e-3, "{o:?}: {whole}");
        }
    }
}
