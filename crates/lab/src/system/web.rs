//! OpTune's web server (OT-M11, §5.3.1): static files, a GDSF memory cache, a disk under CFQ.
//!
//! A request is parsed (`parse`), then its file comes from the cache (`cache`) or from the disk (`disk`), then it is
//! answered (`reply`); which of the two is the outcome of `get`. Two parameters: `idle_time` of CFQ, and the exponent of
//! GDSF's `Size(f)`. Each worker thread is a CFQ queue of its own and reads a file chunk after chunk, as the kernel's
//! read-ahead does.

use crate::experiment::LabError;
use crate::system::{record, set_each};
use plimsoll_base::{Op, Rng, Span, Time};
use plimsoll_replay::gdsf::{Gdsf, SizeExponent};
use plimsoll_replay::storage::{Event, Storage};
use plimsoll_replay::workload::web::{
    BLOCK_BYTES, CACHED_BYTES_MAX, FileSizes, Ranks, WINDOWS_AHEAD, chunk_at, next_window, place_file,
};
use plimsoll_tune::adapter::{Adapter, AdapterError, Run};
use plimsoll_tune::graph::{ServiceGraph, WrittenGraph};
use plimsoll_tune::space::{Parameter, Setting, Space};
use slab::Slab;
use std::collections::VecDeque;

/// The workload, after OpTune §5.4.1 (ProWGen).
#[derive(Clone, Debug)]
pub struct WebConfig {
    /// Disk profile.
    pub disk: &'static str,
    /// Files.
    pub files: usize,
    /// Zipf exponent of their popularity.
    pub zipf: f64,
    /// File sizes.
    pub sizes: FileSizes,
    /// The largest file.
    pub largest_bytes: u64,
    /// Memory of the cache.
    pub cache_bytes: u64,
    /// Mean time between arrivals (Poisson).
    pub mean_gap: Span,
    /// Worker threads.
    pub threads: u16,
    /// Everything random.
    pub seed: u64,
    /// Stream of requests, for the same files and disk.
    pub stream: u64,
}

impl Default for WebConfig {
    /// OpTune's Zipf 0.9, tail 1.2 and median 60 KB, on its disk (160 GB, 7,200/min). Files are 30 % of the requests of its four
    /// hours. The mean gap is chosen so that the disk is about half busy, which is what the paper says of its 72 ms; the cache,
    /// whose size it doesn't say, so that the hit ratio with `Size = |f|` is near its 41 %.
    fn default() -> WebConfig {
        WebConfig {
            disk: "hdd-160g-7200",
            files: 60_000,
            zipf: 0.9,
            sizes: FileSizes::OPTUNE,
            largest_bytes: 64 << 20,
            cache_bytes: 32 << 20,
            mean_gap: Span::from_millis(27),
            threads: 64,
            seed: 1,
            stream: 1,
        }
    }
}

/// `idle_time` in milliseconds, as OpTune explores it.
pub const IDLE_MS: [u64; 5] = [0, 4, 8, 16, 24];
/// Exponents of `Size(f)`, as OpTune explores them.
pub const EXPONENTS: [f64; 4] = [0.1, 0.5, 1.0, 2.0];

/// Purpose of a timer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Timer {
    Arrival,
    /// A request's current stage is over.
    Stage(u32),
    /// A request's thread comes to the window that follows.
    Chunk(u32),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    Parse,
    Cache,
    Disk,
    Reply,
}

struct Request {
    number: u64,
    file: u32,
    thread: u16,
    stage: Stage,
    since: Time,
    /// Asked for, of the file.
    asked_bytes: u64,
    /// The last window, and how many are under way.
    window: u64,
    under_way: usize,
    arrived_at: Time,
    waited: Span,
}

struct File {
    bytes: u64,
    offset: u64,
}

/// See the module's documentation.
pub struct WebServer {
    space: Space,
    storage: Storage<Timer>,
    cache: Gdsf,
    files: Vec<File>,
    popularity: Ranks,
    config: WebConfig,
    rng: Rng,
    requests: Slab<Request>,
    /// Requests that wait for a thread, oldest first.
    waiting: VecDeque<u32>,
    threads: Vec<u16>,
    served: u64,
    hits: u64,
    run: Run,
}

/// The service graph of Fig. 5.2.
pub fn graph() -> ServiceGraph {
    let text = "root = 'request'\ncomponents = ['parse', 'cache', 'disk', 'reply']\n[node]\n\
        request = { sequence = ['parse', 'get', 'reply'] }\nget = { condition = ['cache', 'disk'] }\n";
    let written: WrittenGraph = toml::from_str(text).expect("a constant");
    ServiceGraph::new(&written).expect("a constant")
}

/// Both parameters, with what OpTune's administrator declares of them (§5.4.2): `Size(f)` moves the hit ratio and the
/// cache's times, `idle_time` the disk's.
pub fn space(idle_ms: &[u64], exponents: &[f64]) -> Space {
    let idle = Parameter {
        name: "idle_time".into(),
        values: idle_ms.iter().map(|i| format!("{i}ms")).collect(),
        moves: vec!["disk".into()],
    };
    let size = Parameter {
        name: "size_exponent".into(),
        values: exponents.iter().map(f64::to_string).collect(),
        moves: vec!["get".into(), "cache".into()],
    };
    Space::new(vec![idle, size]).expect("distinct values")
}

impl WebServer {
    /// Idle, with an empty cache, at time zero.
    ///
    /// # Errors
    /// If the disk can't be built.
    pub fn new(config: WebConfig, space: Space) -> Result<WebServer, LabError> {
        let storage = Storage::new(config.disk, Span::from_millis(8), config.seed)?;
        let mut rng = Rng::new(config.seed, "web files");
        let files = place(&config, storage.size_bytes(), &mut rng);
        let mut server = WebServer {
            popularity: Ranks::new(config.files, config.zipf),
            cache: Gdsf::new(config.cache_bytes, CACHED_BYTES_MAX, SizeExponent(1.0)),
            rng: Rng::new(config.seed, "web requests").split(&config.stream.to_string()),
            threads: (0..config.threads).rev().collect(),
            storage,
            files,
            space,
            config,
            requests: Slab::new(),
            waiting: VecDeque::new(),
            served: 0,
            hits: 0,
            run: Run::new(),
        };
        server.storage.after(Span::ZERO, Timer::Arrival);
        Ok(server)
    }

    /// Share of requests answered from the cache since the last [`WebServer::serve`] began.
    pub fn hit_ratio(&self) -> f64 {
        self.hits as f64 / self.served.max(1) as f64
    }

    /// Returns the disk's busy time since time zero.
    pub fn disk_busy(&self) -> Span {
        self.storage.busy()
    }

    /// Serves for `time` and returns what was recorded of the requests that ended.
    pub fn serve(&mut self, time: Span) -> Run {
        (self.served, self.hits) = (0, 0);
        self.run = Run::new();
        let until = self.storage.now() + time;
        while let Some(event) = self.storage.next(until) {
            match event {
                Event::Timer(Timer::Arrival) => self.arrive(),
                Event::Timer(Timer::Stage(r)) => self.stage_over(r),
                Event::Timer(Timer::Chunk(r)) => self.read_ahead(r, WINDOWS_AHEAD),
                Event::Disk(tag) => self.chunk_read(tag as u32),
            }
        }
        std::mem::take(&mut self.run)
    }

    fn arrive(&mut self) {
        let gap = self.rng.exp1() * self.config.mean_gap.as_nanos() as f64;
        self.storage.after(Span::from_nanos(gap as u64), Timer::Arrival);
        let now = self.storage.now();
        self.served += 1;
        let request = Request {
            number: now.as_nanos(),
            file: self.popularity.draw(&mut self.rng) as u32,
            thread: 0,
            stage: Stage::Parse,
            since: now,
            asked_bytes: 0,
            window: 0,
            under_way: 0,
            arrived_at: now,
            waited: Span::ZERO,
        };
        let r = self.requests.insert(request) as u32;
        match self.threads.pop() {
            Some(thread) => self.begin(r, thread),
            None => self.waiting.push_back(r),
        }
    }

    fn request(&mut self, r: u32) -> &mut Request {
        &mut self.requests[r as usize]
    }

    fn begin(&mut self, r: u32, thread: u16) {
        let now = self.storage.now();
        let q = self.request(r);
        (q.thread, q.waited) = (thread, now.since(q.arrived_at));
        self.enter(r, Stage::Parse);
    }

    /// A stage's own time, where it isn't the disk's: some tens of microseconds with a tail.
    fn enter(&mut self, r: u32, stage: Stage) {
        let now = self.storage.now();
        let q = &mut self.requests[r as usize];
        (q.stage, q.since) = (stage, now);
        let bytes = self.files[q.file as usize].bytes as f64;
        let tail = (self.rng.normal() * 0.4).exp();
        let us = match stage {
            Stage::Parse => 25.0 * tail,
            Stage::Cache => 5.0 * tail + bytes / 5_000.0, // 5 GB/s of memory
            Stage::Reply => 20.0 * tail,
            Stage::Disk => return self.read_ahead(r, 1),
        };
        self.storage.after(Span::from_nanos((us * 1e3) as u64), Timer::Stage(r));
    }

    fn stage_over(&mut self, r: u32) {
        let now = self.storage.now();
        let (number, file, stage, since, arrived_at, waited) = {
            let q = self.request(r);
            (q.number, q.file, q.stage, q.since, q.arrived_at, q.waited)
        };
        let took = now.since(since).as_millis_f64();
        match stage {
            Stage::Parse => {
                // A wait for a thread is part of getting started.
                record(&mut self.run, "parse", number, took + waited.as_millis_f64());
                let is_hit = self.cache.hit(file);
                self.hits += u64::from(is_hit);
                record(&mut self.run, "get", number, f64::from(u8::from(!is_hit)));
                self.enter(r, if is_hit { Stage::Cache } else { Stage::Disk });
            }
            Stage::Cache | Stage::Disk => {
                record(&mut self.run, if stage == Stage::Cache { "cache" } else { "disk" }, number, took);
                if stage == Stage::Disk {
                    self.cache.insert(file, self.files[file as usize].bytes);
                }
                self.enter(r, Stage::Reply);
            }
            Stage::Reply => {
                record(&mut self.run, "reply", number, took);
                record(&mut self.run, "request", number, now.since(arrived_at).as_millis_f64());
                self.end(r);
            }
        }
    }

    fn end(&mut self, r: u32) {
        let thread = self.requests.remove(r as usize).thread;
        match self.waiting.pop_front() {
            Some(next) => self.begin(next, thread),
            None => self.threads.push(thread),
        }
    }

    /// Asks for windows until `ahead` are under way, or the file ends.
    fn read_ahead(&mut self, r: u32, ahead: usize) {
        let size_bytes = self.storage.size_bytes();
        let q = &mut self.requests[r as usize];
        let file = &self.files[q.file as usize];
        while q.under_way < ahead && q.asked_bytes < file.bytes {
            q.window = next_window(q.window, file.bytes - q.asked_bytes);
            let offset = chunk_at(file.offset, q.asked_bytes, size_bytes);
            q.asked_bytes += q.window;
            q.under_way += 1;
            let len = q.window.next_multiple_of(BLOCK_BYTES);
            self.storage.send(Op::Read, q.thread, offset, len, u64::from(r));
        }
    }

    fn chunk_read(&mut self, r: u32) {
        let file = self.request(r).file;
        let bytes = self.files[file as usize].bytes;
        let q = self.request(r);
        q.under_way -= 1;
        if q.asked_bytes < bytes {
            // The thread wakes and copies some pages before it comes to the next window.
            self.storage.after(Span::from_micros(20), Timer::Chunk(r));
        } else if q.under_way == 0 {
            self.stage_over(r);
        }
    }
}

/// Files somewhere in the disk's outer half, popularity and size independent.
fn place(config: &WebConfig, size_bytes: u64, rng: &mut Rng) -> Vec<File> {
    let one = |_| {
        let bytes = config.sizes.draw(config.largest_bytes, rng);
        File { bytes, offset: place_file(size_bytes, rng) }
    };
    (0..config.files).map(one).collect()
}

impl Adapter for WebServer {
    fn apply(&mut self, setting: &Setting) -> Result<(), AdapterError> {
        set_each(&self.space, setting, "the web server", |name, value| {
            match name {
                "idle_time" => self.storage.set_idle_time(value.parse().ok()?),
                "size_exponent" => self.cache.set_exponent(SizeExponent(value.parse().ok()?)),
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

    fn served(exponent: usize, idle: usize, seed: u64) -> (Run, f64) {
        let space = space(&IDLE_MS, &EXPONENTS);
        let mut server = WebServer::new(WebConfig { seed, ..WebConfig::default() }, space).unwrap();
        server.apply(&Setting(vec![idle as u16, exponent as u16])).unwrap();
        server.serve(Span::from_secs(600));
        let run = server.serve(Span::from_secs(600));
        (run, server.hit_ratio())
    }

    #[test]
    fn a_request_is_the_sum_of_its_parts_and_equal_seeds_give_equal_runs() {
        let (run, _) = served(2, 2, 1);
        assert_eq!(served(2, 2, 1).0, run);
        assert_ne!(served(2, 2, 2).0, run);
        let of = |node: &str, request| run[node].iter().find(|o| o.request == request).map(|o| o.value);
        for o in run["request"].iter().skip(100).take(200) {
            let get = of("cache", o.request).or(of("disk", o.request)).unwrap();
            let sum = of("parse", o.request).unwrap() + get + of("reply", o.request).unwrap();
            assert!((sum - o.value).abs() < 1e-6, "{o:?}: {sum}");
        }
    }

    #[test]
    fn higher_exponents_hit_more() {
        let ratios: Vec<f64> = (0..4).map(|e| served(e, 2, 1).1).collect();
        assert!(ratios[..3].is_sorted() && ratios[3] > ratios[0] + 0.05, "{ratios:?}");
        assert!(ratios[0] > 0.1 && ratios[3] < 0.7, "{ratios:?}");
    }
}
