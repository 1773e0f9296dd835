//! ML-E4 at block level, and the same on one disk: a sequential stream beside small durable writes, with and without logs.
//!
//! The paper's Fig 2 and 3 are of its file system; here its workload is played at block level: a batch of 20 scattered 4 KiB
//! writes, all at once, then one FLUSH, at a fixed number of batches a second. Counted as there, 20 writes a batch.

use crate::experiment::manylogs::{one_log, pool_with, swapping};
use crate::experiment::{Check, Experiment, Inputs, LabError, RowSpec, Sample};
use plimsoll_base::{LatencyHistogram, Rng, Span, Time};
use plimsoll_logs::{LogsConfig, Shape};
use plimsoll_replay::workload::{ClosedLoop, Request, Step};
use plimsoll_replay::{DeviceChoice, Limits, Pool, PoolConfig, closed_loop};
use plimsoll_trace::record::Op;

/// See the module's documentation.
pub struct StreamBesideBatches;

const ONE: &str = "cheetah-15k5";
const RAID: &str = "raid0:4:64K:cheetah-15k5";
pub(crate) const STREAM_BYTES: u64 = 128 << 10;
/// Stream requests outstanding: a file system's read-ahead.
pub(crate) const STREAM_THREADS: u32 = 2;
/// The stream goes round in a file of this size (§V-A1).
pub(crate) const FILE_BYTES: u64 = 2 << 30;
const BATCH: usize = 20;
const ORDERED: &str = "the paper's is ext3's ordered journal, ours the block device without a log: not judged";
const WARM_UP: Span = Span::from_secs(1);

struct Workload {
    /// The stream's files: its threads read them in turn, each its own.
    files: Vec<u64>,
    /// Position in each.
    next: Vec<u64>,
    stream_threads: u32,
    /// Between two batches' beginnings; `None`: no batches.
    period: Option<Span>,
    due: Time,
    left: usize,
    began: Option<Time>,
    capacity: u64,
    rng: Rng,
    syncs: LatencyHistogram,
    read_from: Time,
    /// Stream threads that have sent and must wait, one bit each.
    sent: u64,
}

impl Workload {
    /// A stream's thread sends and waits in turn.
    fn stream(&mut self, thread: u32) -> Step {
        self.sent ^= 1 << thread;
        if self.sent & 1 << thread == 0 {
            return Step::Wait;
        }
        let file = thread as usize % self.files.len();
        let offset = self.files[file] + self.next[file];
        self.next[file] = (self.next[file] + STREAM_BYTES) % FILE_BYTES;
        Step::Send { request: Request { op: Op::Read, offset, len: STREAM_BYTES }, label: 0 }
    }
}

impl ClosedLoop for Workload {
    fn threads(&self) -> u32 {
        self.stream_threads + 1
    }
    fn depth(&self) -> u32 {
        BATCH as u32 + 1
    }
    fn labels(&self) -> &[&'static str] {
        &["stream", "write", "flush"]
    }
    fn next(&mut self, thread: u32, now: Time) -> Step {
        if thread < self.stream_threads {
            // One at a time: a stream's next read comes when this one has.
            return self.stream(thread);
        }
        let Some(period) = self.period else { return Step::Finished };
        match self.left {
            0 => {
                if let Some(began) = self.began.take()
                    && began >= self.read_from
                {
                    self.syncs.record(now.since(began));
                }
                if now < self.due {
                    return Step::Think(self.due.since(now));
                }
                self.began = Some(now);
                // A writer that is late goes on from now: the rate is a cap (ML-M19).
                self.due = now.max(self.due) + period;
                self.left = BATCH + 3;
                self.next(thread, now)
            }
            // Waits for the writes, flushes, waits for the flush.
            3 | 1 => {
                self.left -= 1;
                Step::Wait
            }
            2 => {
                self.left -= 1;
                Step::Send { request: Request::FLUSH, label: 2 }
            }
            _ => {
                self.left -= 1;
                // One file in each twentieth of the disk, the page within it at random.
                let part = self.capacity / BATCH as u64;
                let offset = (self.left - 3) as u64 * part + self.rng.below(part / 4096) * 4096;
                Step::Send { request: Request { op: Op::Write, offset, len: 4096 }, label: 1 }
            }
        }
    }
}

/// Bandwidth of the stream in MB/s; mean and p99 of a batch from its first write to its flush; mean flush alone, in ms.
pub(crate) struct Outcome {
    pub stream: f64,
    pub sync: f64,
    pub sync_p99: f64,
    pub flush: f64,
}

fn run(
    device: &DeviceChoice,
    shape: Shape,
    logs: LogsConfig,
    writes_per_s: u64,
    seed: u64,
    time: Span,
) -> Result<Outcome, LabError> {
    let mut pool = pool_with(device, shape, logs, seed)?;
    // The same addresses for every layout: all offer at least four fifths of the disk.
    let capacity = pool.offer().size_bytes / 100 * 80;
    let mut rng = Rng::new(seed, "stream file");
    let members = if device.name == RAID { 4 } else { 1 };
    let file_at = rng.below((capacity / 2 - FILE_BYTES) / STREAM_BYTES) * STREAM_BYTES;
    beside(&mut pool, (vec![file_at], STREAM_THREADS * members), capacity, writes_per_s, seed, time)
}

/// Streams through `files` with that number of threads in all, beside batches of `writes_per_s` writes.
pub(crate) fn beside(
    pool: &mut Pool,
    (files, stream_threads): (Vec<u64>, u32),
    capacity: u64,
    writes_per_s: u64,
    seed: u64,
    time: Span,
) -> Result<Outcome, LabError> {
    let mut w = Workload {
        next: vec![0; files.len()],
        files,
        stream_threads,
        period: (writes_per_s > 0).then(|| Span::from_nanos(BATCH as u64 * 1_000_000_000 / writes_per_s)),
        due: Time::ZERO + Span::from_millis(500),
        left: 0,
        began: None,
        capacity,
        rng: Rng::new(seed, "batches"),
        syncs: LatencyHistogram::new(),
        read_from: Time::ZERO + WARM_UP,
        sent: 0,
    };
    let limits = Limits { until: Time::ZERO + time, ..Limits::default() };
    let (m, labels) = closed_loop(pool, &mut w, &limits, &mut |_, _| {})?;
    let [stream, _, flush] = labels.as_slice() else { unreachable!("three labels") };
    let mean = |h: &LatencyHistogram| h.sum().as_millis_f64() / h.count().max(1) as f64;
    Ok(Outcome {
        stream: stream.response.count() as f64 * STREAM_BYTES as f64 / 1e6 / m.elapsed().as_secs_f64(),
        sync: mean(&w.syncs),
        sync_p99: w.syncs.percentile(99.0).as_millis_f64(),
        flush: mean(&flush.response),
    })
}

/// Writes a second, the paper's bandwidth kept without and with logs in percent, and its sync latencies in ms; of the array
/// per disk. Where the paper names no number, none.
type Point = (u64, [Option<f64>; 4]);
const POINTS_ONE: [Point; 4] = [
    (40, [Some(57.0), Some(97.0), Some(209.0), Some(35.0)]),
    (80, [None; 4]),
    (160, [None; 4]),
    (320, [Some(5.0), Some(51.0), Some(919.0), Some(40.0)]),
];
const POINTS_RAID: [Point; 1] = [(40, [Some(30.0), Some(92.0), None, None])];

fn points() -> impl Iterator<Item = (&'static str, &'static str, u64, Point)> {
    let one = POINTS_ONE.into_iter().map(|p| (ONE, "one disk", 1, p));
    one.chain(POINTS_RAID.into_iter().map(|p| (RAID, "RAID-0 of 4", 4, p)))
}

impl Experiment for StreamBesideBatches {
    fn id(&self) -> &'static str {
        "ML-E4"
    }
    fn title(&self) -> &'static str {
        "A sequential stream beside batches of small durable writes, at block level"
    }
    fn source(&self) -> &'static str {
        "Manylogs §V-A1/2, Fig 2a and 3a (its file system there)"
    }
    fn device(&self) -> &'static str {
        "cheetah-15k5, and raid0:4:64K of it"
    }
    fn notes(&self) -> Vec<String> {
        vec![
            "the paper's figures are of its file system beside ext3's ordered journal; ours are of the block layer, without a file \
             system's metadata: a batch of 20 scattered 4 KiB writes sent together, then one FLUSH; 40 writes/s = 2 batches"
                .into(),
            "2 reads of 128 KiB outstanding per disk over a file of 2 GB; the writer's rate is capped (ML-M19); LoggedWriteSize 32 KiB; \
             RAID-0: logs at the aggregate (ML-M15), 10 MB in 100 MB of it, so 2.5 MB in 25 MB of each disk"
                .into(),
            "the device differs from its profile by ±15 % per component, drawn by the seed; depth 4".into(),
        ]
    }
    fn rows(&self, _inputs: &Inputs) -> Vec<RowSpec> {
        let mut rows = Vec::new();
        for (device, what, _, (rate, paper)) in points() {
            let per = if device == RAID { "/disk" } else { "" };
            let row = |name: &str, unit| RowSpec::new(format!("{what}, {rate} writes/s{per}: {name}"), unit);
            let beside = |row: RowSpec, paper: Option<f64>| paper.into_iter().fold(row, RowSpec::beside);
            let reached = |row: RowSpec, paper: Option<f64>| paper.into_iter().fold(row, RowSpec::reproduces);
            rows.push(beside(row("bandwidth kept without logging", "%"), paper[0]).note(ORDERED));
            rows.push(row("bandwidth kept, one log", "%"));
            rows.push(reached(row("bandwidth kept, many logs", "%"), paper[1]));
            rows.push(beside(row("batch and flush without logging, mean", "ms"), paper[2]).note(ORDERED));
            rows.push(row("batch and flush, one log, mean", "ms"));
            rows.push(reached(row("batch and flush, many logs, mean", "ms"), paper[3]));
            rows.push(row("batch and flush, many logs, p99", "ms"));
            rows.push(row("flush alone, many logs, mean", "ms").goal(Check::AtMost(40.0)));
        }
        rows
    }
    fn sample(&self, seed: u64, inputs: &Inputs) -> Result<Sample, LabError> {
        let time = Span::from_secs(if inputs.quick { 10 } else { 60 });
        let mut values = Vec::new();
        for (name, _, disks, (rate, _)) in points() {
            let device = DeviceChoice::named(name)?;
            let size_bytes = Pool::new(&device, &PoolConfig::default())?.offer().size_bytes;
            let many = Shape::default();
            let of = |shape, bytes, rate| run(&device, shape, swapping(bytes), rate * disks, seed, time);
            let alone = of(many, 0, 0)?.stream;
            let (none, one, logs) =
                (of(many, 0, rate)?, of(one_log(size_bytes), 32 << 10, rate)?, of(many, 32 << 10, rate)?);
            let kept = |o: &Outcome| 100.0 * o.stream / alone;
            values.extend([
                kept(&none),
                kept(&one),
                kept(&logs),
                none.sync,
                one.sync,
                logs.sync,
                logs.sync_p99,
                logs.flush,
            ]);
        }
        Ok(Sample { values: values.into_iter().map(Some).collect(), ..Sample::default() })
    }
}
