//! filebench's OLTP personality: readers, database writers and a log writer, tied by semaphores.
//!
//! Parameters as published (`workloads/oltp.f`, version 3.0): 10 data files and one log of 10 MiB each, 200 shadow
//! threads that read 2 KiB at random, compute, and post; 10 database writers that, every 1,000 posts, write 100 times
//! 2 KiB at random; a log writer that, every 3,200 posts, writes 256 KiB. Posting blocks while a semaphore is 2,000
//! (database) or 1,000 (log) above what its waiters need.
//!
//! Ours: filebench's computing (`hog`) is counted in loops, taken as 1 ns each; `dsync` is a flush after a batch of
//! asynchronous writes, as a record has no flag for it; a blocked thread looks again after 1 ms.

use crate::workload::{BadWorkload, ClosedLoop, Request, Step};
use plimsoll_base::{Rng, Span, Time};
use plimsoll_trace::record::Op;
use std::collections::VecDeque;

/// Parameters, by filebench's names in brackets.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OltpConfig {
    /// First byte of the region.
    pub start: u64,
    /// Bytes of the region; the files lie spread over it.
    pub bytes: u64,
    /// Data files (`nfiles`).
    pub files: u64,
    /// Bytes of each of them, and of the log (`filesize`, `logfilesize`).
    pub file_bytes: u64,
    /// Reading threads (`nshadows`).
    pub shadows: u32,
    /// Writing threads (`ndbwriters`).
    pub writers: u32,
    /// Bytes of a read or a write of data (`iosize`).
    pub io_bytes: u64,
    /// Computing after each read (`usermode` = 200,000 loops).
    pub compute: Span,
}

impl OltpConfig {
    /// The published defaults in a region of `bytes` from `start`.
    pub fn new(start: u64, bytes: u64) -> OltpConfig {
        OltpConfig {
            start,
            bytes,
            files: 10,
            file_bytes: 10 << 20,
            shadows: 200,
            writers: 10,
            io_bytes: 2 << 10,
            compute: Span::from_micros(200),
        }
    }
}

const LOG_BYTES: u64 = 256 << 10;
const LOG_POSTS: u64 = 3_200;
const LOG_HIGH: u64 = LOG_POSTS + 1_000;
const WRITER_POSTS: u64 = 1_000;
const WRITER_HIGH: u64 = WRITER_POSTS + 2_000;
const WRITER_BATCH: u32 = 100;
/// The writers' own computing (`hog` of 10,000 loops).
const WRITER_COMPUTE: Span = Span::from_micros(10);
/// Interval at which a blocked thread looks again.
const LOOK_AGAIN: Span = Span::from_millis(1);

const READ: u16 = 0;
const WRITE: u16 = 1;
const LOG: u16 = 2;

struct Thread {
    rng: Rng,
    queue: VecDeque<Step>,
    /// Next data file (`opennext`).
    file: u64,
    /// A shadow's post that is still to be made.
    owes_post: bool,
}

/// OLTP running. Thread 0 is the log writer, then come the database writers, then the shadows.
pub struct Oltp {
    cfg: OltpConfig,
    threads: Vec<Thread>,
    log_posts: u64,
    writer_posts: u64,
}

impl Oltp {
    /// The workload `cfg`.
    ///
    /// # Errors
    /// If the configuration makes no sense, above all if the region is too small.
    pub fn new(cfg: &OltpConfig, seed: u64) -> Result<Oltp, BadWorkload> {
        if cfg.files == 0 || cfg.shadows == 0 || cfg.writers == 0 || cfg.io_bytes == 0 {
            return Err(BadWorkload::new("files, shadows, writers and io_bytes", "each is at least 1"));
        }
        if cfg.file_bytes < cfg.io_bytes.max(LOG_BYTES) {
            return Err(BadWorkload::new("file_bytes", "a file is smaller than a request: enlarge it"));
        }
        if cfg.start.checked_add(cfg.bytes).is_none_or(|e| e > i64::MAX as u64) {
            return Err(BadWorkload::new("start", "the region ends beyond 2^63"));
        }
        if cfg.bytes / (cfg.files + 1) < cfg.file_bytes {
            return Err(BadWorkload::new("bytes", "the region is smaller than its files: enlarge it"));
        }
        let thread = |t: u32| Thread {
            rng: Rng::new(seed, &format!("oltp thread {t}")),
            queue: VecDeque::new(),
            // Threads of one kind don't all begin with the same file.
            file: u64::from(t) % cfg.files,
            owes_post: false,
        };
        let threads = (0..1 + cfg.writers + cfg.shadows).map(thread).collect();
        Ok(Oltp { cfg: cfg.clone(), threads, log_posts: 0, writer_posts: 0 })
    }

    /// A random request of `len` bytes in file `file`, the log being the last.
    fn request(cfg: &OltpConfig, rng: &mut Rng, op: Op, file: u64, len: u64) -> Request {
        let spacing = cfg.bytes / (cfg.files + 1);
        let at = rng.below(cfg.file_bytes / len) * len;
        Request { op, offset: cfg.start + file * spacing + at, len }
    }

    fn log_writer(&mut self) -> Step {
        if self.log_posts < LOG_POSTS {
            return Step::Think(LOOK_AGAIN);
        }
        self.log_posts -= LOG_POSTS;
        let t = &mut self.threads[0];
        let request = Oltp::request(&self.cfg, &mut t.rng, Op::Write, self.cfg.files, LOG_BYTES);
        t.queue.extend([Step::Wait, Step::Send { request: Request::FLUSH, label: LOG }, Step::Wait]);
        Step::Send { request, label: LOG }
    }

    fn writer(&mut self, thread: usize) -> Step {
        if self.writer_posts < WRITER_POSTS {
            return Step::Think(LOOK_AGAIN);
        }
        self.writer_posts -= WRITER_POSTS;
        let t = &mut self.threads[thread];
        for _ in 0..WRITER_BATCH {
            let request = Oltp::request(&self.cfg, &mut t.rng, Op::Write, t.file, self.cfg.io_bytes);
            t.file = (t.file + 1) % self.cfg.files;
            t.queue.push_back(Step::Send { request, label: WRITE });
        }
        t.queue.extend([Step::Wait, Step::Send { request: Request::FLUSH, label: WRITE }, Step::Wait]);
        Step::Think(WRITER_COMPUTE)
    }

    fn shadow(&mut self, thread: usize) -> Step {
        let t = &mut self.threads[thread];
        if t.owes_post {
            if self.log_posts >= LOG_HIGH || self.writer_posts >= WRITER_HIGH {
                return Step::Think(LOOK_AGAIN);
            }
            self.log_posts += 1;
            self.writer_posts += 1;
        }
        t.owes_post = true;
        let request = Oltp::request(&self.cfg, &mut t.rng, Op::Read, t.file, self.cfg.io_bytes);
        t.file = (t.file + 1) % self.cfg.files;
        t.queue.extend([Step::Wait, Step::Think(self.cfg.compute)]);
        Step::Send { request, label: READ }
    }
}

impl ClosedLoop for Oltp {
    fn threads(&self) -> u32 {
        self.threads.len() as u32
    }
    fn depth(&self) -> u32 {
        WRITER_BATCH
    }
    fn labels(&self) -> &[&'static str] {
        &["shadowread", "dbwrite-a", "lg-write"]
    }
    fn next(&mut self, thread: u32, _: Time) -> Step {
        let t = thread as usize;
        if let Some(step) = self.threads[t].queue.pop_front() {
            return step;
        }
        match thread {
            0 => self.log_writer(),
            n if n <= self.cfg.writers => self.writer(t),
            _ => self.shadow(t),
        }
    }
}
