//! filebench's personalities fileserver, varmail and webserver (OLTP: [`oltp`]) as block requests.
//!
//! Flows and defaults are those of the personalities published with filebench (`workloads/*.f`, version 3.0 and 3.1);
//! file sizes are gamma distributed with shape 1.5, filebench's default.
//!
//! Between a personality and a disk is a file system; here, deliberately, a simple one:
//! * each file has its own slot of the region, all slots alike, so that files are spread over it; a file's size is
//!   capped by its slot, and inodes (256 bytes, 16 in a 4 KiB block) lie in front;
//! * optimistic: no directories, no allocation maps, no journal; open, close and stat are answered from memory, and
//!   reads are not preceded by any of metadata;
//! * pessimistic: no page cache: reads always reach the device, and a write is waited for where it is made. One exception: nobody syncs the
//!   log that all threads append to, so its last block is written once it is full, as a page cache does. Otherwise the threads would write one
//!   block many times at once, and each of these writes would wait for the others;
//! * create and delete write the file's inode block; fsync writes it and flushes.

pub mod oltp;

use crate::workload::random::gamma_1_5;
use crate::workload::{BadWorkload, ClosedLoop, RateCap, Request, Step};
use plimsoll_base::{Rng, Span, Time};
use plimsoll_trace::record::Op;
use std::collections::VecDeque;

/// Bytes of a block of the file system.
const BLOCK: u64 = 4096;
/// Inodes in a block.
const INODES_PER_BLOCK: u64 = 16;

/// One operation of a flow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum FlowOp {
    /// Opens a file at random.
    Open,
    Close,
    Stat,
    Create,
    Delete,
    /// Writes the open file anew, with a new size.
    WriteWhole,
    ReadWhole,
    /// Appends up to the append size, uniformly.
    Append,
    /// Appends to the log that all threads share.
    AppendLog,
    Fsync,
}

/// A flow's operation and its name in filebench's file.
type Flow = &'static [(FlowOp, &'static str)];

const FILESERVER: Flow = &[
    (FlowOp::Create, "createfile1"),
    (FlowOp::WriteWhole, "wrtfile1"),
    (FlowOp::Close, "closefile1"),
    (FlowOp::Open, "openfile1"),
    (FlowOp::Append, "appendfilerand1"),
    (FlowOp::Close, "closefile2"),
    (FlowOp::Open, "openfile2"),
    (FlowOp::ReadWhole, "readfile1"),
    (FlowOp::Close, "closefile3"),
    (FlowOp::Delete, "deletefile1"),
    (FlowOp::Stat, "statfile1"),
];

const VARMAIL: Flow = &[
    (FlowOp::Delete, "deletefile1"),
    (FlowOp::Create, "createfile2"),
    (FlowOp::Append, "appendfilerand2"),
    (FlowOp::Fsync, "fsyncfile2"),
    (FlowOp::Close, "closefile2"),
    (FlowOp::Open, "openfile3"),
    (FlowOp::ReadWhole, "readfile3"),
    (FlowOp::Append, "appendfilerand3"),
    (FlowOp::Fsync, "fsyncfile3"),
    (FlowOp::Close, "closefile3"),
    (FlowOp::Open, "openfile4"),
    (FlowOp::ReadWhole, "readfile4"),
    (FlowOp::Close, "closefile4"),
];

const WEBSERVER: Flow = &[
    (FlowOp::Open, "openfile1"),
    (FlowOp::ReadWhole, "readfile1"),
    (FlowOp::Open, "openfile2"),
    (FlowOp::ReadWhole, "readfile2"),
    (FlowOp::Open, "openfile3"),
    (FlowOp::ReadWhole, "readfile3"),
    (FlowOp::Open, "openfile4"),
    (FlowOp::ReadWhole, "readfile4"),
    (FlowOp::Open, "openfile5"),
    (FlowOp::ReadWhole, "readfile5"),
    (FlowOp::Open, "openfile6"),
    (FlowOp::ReadWhole, "readfile6"),
    (FlowOp::Open, "openfile7"),
    (FlowOp::ReadWhole, "readfile7"),
    (FlowOp::Open, "openfile8"),
    (FlowOp::ReadWhole, "readfile8"),
    (FlowOp::Open, "openfile9"),
    (FlowOp::ReadWhole, "readfile9"),
    (FlowOp::Open, "openfile10"),
    (FlowOp::ReadWhole, "readfile10"),
    (FlowOp::AppendLog, "appendlog"),
];

/// Flow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Personality {
    /// Create and write, append, read whole, delete, stat.
    Fileserver,
    /// Delete, create-append-fsync, read-append-fsync, read.
    Varmail,
    /// Ten files read whole, one append to a shared log.
    Webserver,
}

/// Parameters, by filebench's names where it has them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FilebenchConfig {
    /// The flow.
    pub personality: Personality,
    /// Files (`nfiles`).
    pub files: u32,
    /// Share of them that exist at the start, in percent (`prealloc`).
    pub prealloc_percent: u32,
    /// Mean size (`meanfilesize`).
    pub mean_file_bytes: u64,
    /// Longest append (`meanappendsize`: the sizes are uniform up to it).
    pub append_bytes: u64,
    /// Longest request (`iosize`).
    pub io_bytes: u64,
    /// Threads (`nthreads`).
    pub threads: u32,
    /// First byte of the region that holds the file system.
    pub start: u64,
    /// Its size.
    pub bytes: u64,
    /// Operations that cause I/O, a second, all threads together; 0: no cap. Manylogs §V-A3 limits to 20.
    pub ops_per_second: u64,
    /// The cap holds from then on: before, caches become warm.
    pub capped_from: Time,
    /// Under the cap operations come as they come to a server, with exponentially distributed gaps, instead of like clockwork.
    pub at_random: bool,
}

impl FilebenchConfig {
    /// The published defaults of `personality`, in a region of `bytes` from `start`.
    pub fn new(personality: Personality, start: u64, bytes: u64) -> FilebenchConfig {
        let (files, prealloc_percent, mean_file_bytes, threads) = match personality {
            Personality::Fileserver => (10_000, 80, 128 << 10, 50),
            Personality::Varmail => (1_000, 80, 16 << 10, 16),
            Personality::Webserver => (1_000, 100, 16 << 10, 100),
        };
        FilebenchConfig {
            personality,
            files,
            prealloc_percent,
            mean_file_bytes,
            append_bytes: 16 << 10,
            io_bytes: 1 << 20,
            threads,
            start,
            bytes,
            ops_per_second: 0,
            capped_from: Time::ZERO,
            at_random: false,
        }
    }

    fn slot_bytes(&self) -> u64 {
        // One more for the webserver's log.
        self.bytes.saturating_sub(self.inode_bytes()) / (u64::from(self.files) + 1) / BLOCK * BLOCK
    }

    /// Bytes of inodes, which lie in front of all files.
    pub fn inode_bytes(&self) -> u64 {
        (u64::from(self.files) + 1).div_ceil(INODES_PER_BLOCK) * BLOCK
    }

    fn check(&self) -> Result<(), BadWorkload> {
        if self.files == 0 || self.threads == 0 || self.io_bytes == 0 || self.append_bytes == 0 {
            return Err(BadWorkload::new("files, threads, io_bytes and append_bytes", "each is at least 1"));
        }
        if !(1..=100).contains(&self.prealloc_percent) {
            return Err(BadWorkload::new("prealloc_percent", "between 1 and 100"));
        }
        if self.start.checked_add(self.bytes).is_none_or(|e| e > i64::MAX as u64) {
            return Err(BadWorkload::new("start", "the region ends beyond 2^63"));
        }
        // Of gamma-distributed sizes 1 in 150 is beyond four times the mean.
        let needed = (self.mean_file_bytes.saturating_mul(4)).max(self.append_bytes).max(BLOCK);
        if self.slot_bytes() < needed {
            return Err(BadWorkload::new(
                "bytes",
                format!("a file's share of the region is {} bytes, less than {needed}: enlarge it", self.slot_bytes()),
            ));
        }
        Ok(())
    }
}

/// The files, and which exist.
struct FileSet {
    start: u64,
    slot_bytes: u64,
    inode_bytes: u64,
    mean: u64,
    sizes: Vec<u64>,
    existing: Vec<u32>,
    absent: Vec<u32>,
}

impl FileSet {
    fn new(cfg: &FilebenchConfig, rng: &mut Rng) -> FileSet {
        let mut set = FileSet {
            start: cfg.start,
            slot_bytes: cfg.slot_bytes(),
            inode_bytes: cfg.inode_bytes(),
            mean: cfg.mean_file_bytes,
            sizes: Vec::new(),
            existing: Vec::new(),
            absent: Vec::new(),
        };
        for file in 0..cfg.files {
            let exists = u64::from(file) * 100 < u64::from(cfg.files) * u64::from(cfg.prealloc_percent);
            let size = if exists { set.draw_size(rng) } else { 0 };
            set.sizes.push(size);
            if exists { &mut set.existing } else { &mut set.absent }.push(file);
        }
        // The log of the webserver: one more file, which nobody opens.
        set.sizes.push(0);
        set
    }

    fn draw_size(&self, rng: &mut Rng) -> u64 {
        (gamma_1_5(rng, self.mean as f64).round() as u64).clamp(1, self.slot_bytes)
    }

    fn pick(&self, rng: &mut Rng) -> Option<u32> {
        let n = self.existing.len() as u64;
        (n > 0).then(|| self.existing[rng.below(n) as usize])
    }

    fn slot(&self, file: u32) -> u64 {
        self.start + self.inode_bytes + u64::from(file) * self.slot_bytes
    }

    fn inode(&self, file: u32) -> Request {
        let offset = self.start + u64::from(file) / INODES_PER_BLOCK * BLOCK;
        Request { op: Op::Write, offset, len: BLOCK }
    }

    /// Requests over the bytes `from..to` of a file, none longer than `io_bytes`, in whole blocks.
    fn transfer(&self, op: Op, file: u32, from: u64, to: u64, io_bytes: u64) -> impl Iterator<Item = Request> + use<> {
        let (slot, end) = (self.slot(file), to.div_ceil(BLOCK) * BLOCK);
        let step = (io_bytes / BLOCK * BLOCK).max(BLOCK);
        let first = from / BLOCK * BLOCK;
        (first..end).step_by(step as usize).map(move |at| Request { op, offset: slot + at, len: step.min(end - at) })
    }
}

struct Thread {
    rng: Rng,
    /// Next operation of the flow.
    at: usize,
    open: Option<u32>,
    queue: VecDeque<Step>,
}

/// A personality running.
pub struct Filebench {
    cfg: FilebenchConfig,
    flow: Flow,
    labels: Vec<&'static str>,
    files: FileSet,
    threads: Vec<Thread>,
    cap: RateCap,
    /// Draws the gaps.
    gaps: Option<Rng>,
}

impl Filebench {
    /// The workload `cfg`.
    ///
    /// # Errors
    /// If the configuration makes no sense, above all if the region is too small.
    pub fn new(cfg: &FilebenchConfig, seed: u64) -> Result<Filebench, BadWorkload> {
        cfg.check()?;
        let flow = match cfg.personality {
            Personality::Fileserver => FILESERVER,
            Personality::Varmail => VARMAIL,
            Personality::Webserver => WEBSERVER,
        };
        let thread = |t| Thread {
            rng: Rng::new(seed, &format!("filebench thread {t}")),
            at: 0,
            open: None,
            queue: VecDeque::new(),
        };
        Ok(Filebench {
            cfg: cfg.clone(),
            flow,
            labels: flow.iter().map(|f| f.1).collect(),
            files: FileSet::new(cfg, &mut Rng::new(seed, "filebench files")),
            threads: (0..cfg.threads).map(thread).collect(),
            cap: RateCap::new(cfg.ops_per_second),
            gaps: cfg.at_random.then(|| Rng::new(seed, "filebench gaps")),
        })
    }

    /// Queues what an operation sends; nothing if it is answered from memory.
    fn expand(&mut self, thread: usize, op: FlowOp, label: u16) {
        let t = &mut self.threads[thread];
        let files = &mut self.files;
        let io = self.cfg.io_bytes;
        let mut send = |request| t.queue.push_back(Step::Send { request, label });
        match op {
            FlowOp::Close | FlowOp::Stat => {}
            FlowOp::Open => t.open = files.pick(&mut t.rng),
            FlowOp::Create => {
                // Where every file exists already, the flow goes on with one of them.
                let n = files.absent.len() as u64;
                t.open = if n == 0 {
                    files.pick(&mut t.rng)
                } else {
                    let file = files.absent.swap_remove(t.rng.below(n) as usize);
                    files.existing.push(file);
                    files.sizes[file as usize] = 0;
                    Some(file)
                };
                t.open.map(|f| files.inode(f)).into_iter().for_each(&mut send);
            }
            FlowOp::Delete => {
                let n = files.existing.len() as u64;
                if n > 0 {
                    let file = files.existing.swap_remove(t.rng.below(n) as usize);
                    files.absent.push(file);
                    send(files.inode(file));
                }
            }
            FlowOp::WriteWhole => {
                if let Some(f) = t.open {
                    files.sizes[f as usize] = files.draw_size(&mut t.rng);
                    files.transfer(Op::Write, f, 0, files.sizes[f as usize], io).for_each(send);
                }
            }
            FlowOp::ReadWhole => {
                if let Some(f) = t.open {
                    files.transfer(Op::Read, f, 0, files.sizes[f as usize], io).for_each(send);
                }
            }
            FlowOp::Append | FlowOp::AppendLog => {
                let file = if op == FlowOp::AppendLog { Some(self.cfg.files) } else { t.open };
                if let Some(f) = file {
                    let len = 1 + t.rng.below(self.cfg.append_bytes);
                    let size = &mut files.sizes[f as usize];
                    // A full slot begins anew, as a rotated log does.
                    let from = if *size + len > files.slot_bytes { 0 } else { *size };
                    *size = from + len;
                    let to = if op == FlowOp::AppendLog { *size / BLOCK * BLOCK } else { *size };
                    files.transfer(Op::Write, f, from, to, io).for_each(send);
                }
            }
            FlowOp::Fsync => {
                if let Some(f) = t.open {
                    send(files.inode(f));
                    send(Request::FLUSH);
                }
            }
        }
    }
}

impl ClosedLoop for Filebench {
    fn threads(&self) -> u32 {
        self.cfg.threads
    }
    /// One: each request of an operation, and the next operation, waits for the one before.
    fn depth(&self) -> u32 {
        1
    }
    fn labels(&self) -> &[&'static str] {
        &self.labels
    }
    fn next(&mut self, thread: u32, now: Time) -> Step {
        let t = thread as usize;
        // Every flow has an operation that sends: twice its length is more than enough to find one.
        for _ in 0..2 * self.flow.len() {
            if let Some(step) = self.threads[t].queue.pop_front() {
                return step;
            }
            let at = self.threads[t].at;
            let op = self.flow[at].0;
            if now >= self.cfg.capped_from && !matches!(op, FlowOp::Open | FlowOp::Close | FlowOp::Stat) {
                let wait = self.cap.wait_at(now, self.gaps.as_mut());
                if wait != Span::ZERO {
                    return Step::Think(wait);
                }
            }
            self.threads[t].at = (at + 1) % self.flow.len();
            self.expand(t, op, at as u16);
        }
        // No file exists and none can be created: look again later.
        Step::Think(Span::from_millis(1))
    }
}
