//! Loads of the paper's random writers.

use super::{Turn, Work};
use plimsoll_base::{LatencyHistogram, Rng, Span, Time};
use plimsoll_fs::{BLOCK, Fs, Result};

/// A page in each of the files, then `sync()`, at a capped rate (§V-A1, ML-M19).
pub struct Batches {
    files: Vec<u64>,
    /// Pages of a file that are written.
    pages: u64,
    /// Between two batches' beginnings.
    period: Span,
    /// The writer goes on during a sync: the next one has what came meanwhile.
    goes_on: bool,
    due: Time,
    /// Begin of the sync under way.
    began: Option<Time>,
    last: Time,
    /// Writes that came and aren't made yet.
    carried: f64,
    rng: Rng,
    /// Syncs' times.
    pub syncs: LatencyHistogram,
    /// Writes made durable.
    pub written: u64,
    batch: u64,
}

impl Batches {
    /// `writes_per_s` at most, from `from` on.
    pub fn new(files: Vec<u64>, pages: u64, writes_per_s: u64, goes_on: bool, from: Time, seed: u64) -> Batches {
        let period = Span::from_nanos(files.len() as u64 * 1_000_000_000 / writes_per_s);
        Batches {
            carried: files.len() as f64,
            files,
            pages,
            period,
            goes_on,
            due: from,
            began: None,
            last: from,
            rng: Rng::new(seed, "batches"),
            syncs: LatencyHistogram::new(),
            written: 0,
            batch: 0,
        }
    }
}

impl Work for Batches {
    fn turn(&mut self, fs: &mut Fs, now: Time) -> Result<Turn> {
        if let Some(began) = self.began.take() {
            self.syncs.record(now.since(began));
            self.written += self.batch;
        }
        if now < self.due {
            return Ok(Turn::Sleep(self.due));
        }
        // A writer that is late goes on from now: the rate is a cap.
        self.due = now + self.period;
        self.batch = self.files.len() as u64;
        if self.goes_on {
            self.carried += now.since(self.last).as_secs_f64() / self.period.as_secs_f64() * self.batch as f64;
            self.carried -= self.batch as f64;
            self.last = now;
            let more = self.carried.max(0.0) as u64;
            self.batch += more;
            self.carried -= more as f64;
        }
        for &ino in self.files.iter().cycle().take(self.batch as usize) {
            fs.write(ino, self.rng.below(self.pages) * BLOCK as u64, &[7; BLOCK])?;
        }
        self.began = Some(now);
        Ok(Turn::Sync(None))
    }
}

/// A database's commit log: requests of threads are durable once a flush that began after them has ended (§V-A4).
pub struct CommitLog {
    file: u64,
    at: u64,
    /// Time between two requests of a thread, if they are made durable at once.
    gap: Span,
    /// Arrival of each thread's request.
    arrivals: Vec<Time>,
    flush_period: Span,
    flush_due: Time,
    /// Threads whose requests the flush under way has.
    flushed: Vec<usize>,
    /// Requests' times until they are durable.
    pub requests: LatencyHistogram,
    /// Flushes that wrote something.
    pub flushes: u64,
}

/// Bytes of a log, which is written over and over.
pub const LOG_BYTES: u64 = 16 << 20;
/// Bytes of an entry: a record of YCSB.
const ENTRY_BYTES: u64 = 1 << 10;
/// A flush's entries are padded to this (MongoDB 2.6).
const PADDED_BYTES: u64 = 8 << 10;

impl CommitLog {
    /// Threads that ask for `per_s` requests a second together.
    pub fn new(file: u64, threads: u64, per_s: u64, flush_period: Span, from: Time) -> CommitLog {
        let gap = Span::from_nanos(threads * 1_000_000_000 / per_s);
        CommitLog {
            file,
            at: 0,
            gap,
            arrivals: (0..threads).map(|i| from + gap.scale(i, threads)).collect(),
            flush_period,
            flush_due: from,
            flushed: Vec::new(),
            requests: LatencyHistogram::new(),
            flushes: 0,
        }
    }
}

impl Work for CommitLog {
    fn turn(&mut self, fs: &mut Fs, now: Time) -> Result<Turn> {
        for i in std::mem::take(&mut self.flushed) {
            let arrived = self.arrivals[i];
            self.requests.record(now.since(arrived));
            // A thread whose request took longer goes on at once.
            self.arrivals[i] = now.max(arrived + self.gap);
        }
        if now < self.flush_due {
            return Ok(Turn::Sleep(self.flush_due));
        }
        self.flush_due = now + self.flush_period;
        self.flushed = (0..self.arrivals.len()).filter(|&i| self.arrivals[i] <= now).collect();
        if self.flushed.is_empty() {
            return Ok(Turn::Sleep(self.flush_due));
        }
        let bytes = (self.flushed.len() as u64 * ENTRY_BYTES).next_multiple_of(PADDED_BYTES);
        if self.at + bytes > LOG_BYTES {
            self.at = 0;
        }
        fs.write(self.file, self.at, &vec![3; bytes as usize])?;
        self.at += bytes;
        self.flushes += 1;
        Ok(Turn::Sync(Some(self.file)))
    }
}

/// A sequential writer through the file system: one of several that write the chunks of a file in turn.
pub struct LargeWrites {
    file: u64,
    chunk: Vec<u8>,
    at: u64,
    /// From a chunk to this writer's next one.
    stride: u64,
    file_bytes: u64,
    is_writing: bool,
    /// Bytes made durable.
    pub bytes: u64,
}

impl LargeWrites {
    /// Writer `i` of `writers` to a file of `file_bytes` bytes.
    pub fn new(file: u64, file_bytes: u64, chunk_bytes: u64, i: u64, writers: u64) -> LargeWrites {
        LargeWrites {
            file,
            chunk: vec![5; chunk_bytes as usize],
            at: i * chunk_bytes,
            stride: writers * chunk_bytes,
            file_bytes,
            is_writing: false,
            bytes: 0,
        }
    }
}

impl Work for LargeWrites {
    fn turn(&mut self, fs: &mut Fs, _: Time) -> Result<Turn> {
        if self.is_writing {
            self.bytes += self.chunk.len() as u64;
        }
        self.is_writing = true;
        fs.write(self.file, self.at, &self.chunk)?;
        self.at = (self.at + self.stride) % self.file_bytes;
        Ok(Turn::Sync(Some(self.file)))
    }
}
