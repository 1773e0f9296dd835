//! ML-E6: commit logs of databases beside a sequential reader; their content may be anywhere (`O_DUR`; Manylogs Fig 5).

use super::stream::MODES;
use super::{ALONE, DEVICE, DEVICE_NOTE, Setup, mean_ms};
use crate::experiment::{Check, Experiment, Inputs, LabError, RowSpec, Sample};
use crate::mlfs::{CommitLog, Host, LOG_BYTES, Machine, Meter, SimDisk, Tender, Work};
use plimsoll_base::{LatencyHistogram, Span, Time};
use plimsoll_device::Op;
use plimsoll_fs::Mode;

/// See the module's documentation.
pub struct CommitLogs;

/// Flush periods in ms.
pub(super) const PERIODS: [u64; 2] = [33, 1];
const DATABASES: [usize; 2] = [1, 4];
const THREADS: u64 = 16;
/// Of a database's threads together: the paper has 4,000 of 4.
const REQUESTS_PER_S: u64 = 1000;
/// Reads of 1 MiB, which the host cuts in two.
pub(super) const HOST: Host = Host { stream_depth: 2, stream_bytes: 512 << 10, ..Host::ALTERNATE };
const SIMILAR: &str =
    "MLFS provides a similar throughput (89% and 90%) even when the flush period is reduced from 33 to 1 ms";

/// Hosts that differ, for one database in manylogs mode at 1 ms.
const HOSTS: [(&str, Host); 3] = [
    ("all requests in the disk", Host { depth: 32, window: 24, ..HOST }),
    ("reads of 128 KiB", Host { stream_bytes: 128 << 10, ..HOST }),
    ("4 MiB of read-ahead", Host { stream_depth: 8, ..HOST }),
];

/// A run's figures.
pub(super) struct Outcome {
    /// Bandwidth that the reader kept, in percent of that alone.
    pub kept: f64,
    /// Mean time of a request until it is durable.
    pub request_ms: f64,
    flushes_per_s: f64,
}

pub(super) fn run(
    host: Host,
    mode: Mode,
    databases: usize,
    period_ms: u64,
    seed: u64,
    time: Span,
) -> Result<Outcome, LabError> {
    let mut m = Machine::new(SimDisk::new(DEVICE, 1, host, databases + 1, seed).map_err(LabError)?, mode)?;
    let mut logs = Vec::new();
    for i in 0..databases {
        let share = (i as f64 + 0.5) / databases as f64 * 0.9;
        let log = m.file(share, "commit-log", LOG_BYTES)?;
        // The inherited attribute of a directory does the same.
        m.fs.setxattr(log, b"user.plimsoll.durability", b"anywhere", false, false)?;
        logs.push(log);
    }
    m.start()?;
    m.stream_large(Op::Read)?;
    let alone = Meter::new(&m.disk);
    m.run(&mut [], Time::ZERO + ALONE)?;
    let alone = alone.mb_per_s(&m.disk);
    let (from, beside) = (m.disk.now(), Meter::new(&m.disk));
    let new = |log| CommitLog::new(log, THREADS, REQUESTS_PER_S, Span::from_millis(period_ms), from);
    let mut logs: Vec<CommitLog> = logs.into_iter().map(new).collect();
    let mut tender = Tender::new(from, Setup::on(1).checkpoint);
    let mut works: Vec<&mut dyn Work> = logs.iter_mut().map(|l| l as &mut dyn Work).collect();
    works.push(&mut tender);
    m.run(&mut works, from + time)?;
    let mut requests = LatencyHistogram::new();
    logs.iter().for_each(|l| requests.merge(&l.requests));
    let flushes: u64 = logs.iter().map(|l| l.flushes).sum();
    Ok(Outcome {
        kept: 100.0 * beside.mb_per_s(&m.disk) / alone,
        request_ms: mean_ms(&requests),
        flushes_per_s: flushes as f64 / m.disk.now().since(from).as_secs_f64(),
    })
}

impl Experiment for CommitLogs {
    fn id(&self) -> &'static str {
        "ML-E6"
    }
    fn title(&self) -> &'static str {
        "The file system: databases' commit logs beside a sequential reader"
    }
    fn source(&self) -> &'static str {
        "Manylogs §V-A4, Fig 5"
    }
    fn device(&self) -> &'static str {
        DEVICE
    }
    fn notes(&self) -> Vec<String> {
        let load = "a database: 16 threads that ask for 1,000 writes a second together; each waits until a flush of the commit log that began after it has ended. \
                    A write has 1 KiB, a flush is padded to 8 KiB (MongoDB 2.6). No data files, no Hadoop: the reader's requests are those of a file's blocks";
        let host = "1 MiB of the reader is in flight, in two requests; one request is in the disk at a time, in the order of their coming";
        vec![load.into(), host.into(), DEVICE_NOTE.into()]
    }
    fn rows(&self, _inputs: &Inputs) -> Vec<RowSpec> {
        let mut rows = Vec::new();
        for (n, period) in DATABASES.iter().flat_map(|n| PERIODS.map(|p| (n, p))) {
            for mode in MODES {
                let row = |what: &str, unit| {
                    RowSpec::new(format!("{n} x database, flush each {period} ms, {}: {what}", mode.name()), unit)
                };
                let kept = row("bandwidth kept", "%");
                rows.push(match (n, mode, period) {
                    (1, Mode::Manylogs, 33) => kept.reproduces(89.0),
                    (1, Mode::Manylogs, _) => kept.reproduces(90.0),
                    _ => kept,
                });
                rows.extend([row("request, mean", "ms"), row("flushes", "1/s")]);
            }
        }
        let one = RowSpec::new("1 x database, flush each 1 ms, manylogs: bandwidth kept, the goal", "%").derived();
        rows.push(one.goal(Check::AtLeast(90.0)));
        let similar = RowSpec::new("1 x database, manylogs: bandwidth kept at 1 ms over 33 ms", "x").derived();
        rows.push(
            similar
                .beside(90.0 / 89.0)
                .paper_says(Check::AtLeast(0.9), SIMILAR)
                .note("similar: not less by more than a tenth"),
        );
        let best =
            RowSpec::new("1 x database, flush each 1 ms: bandwidth kept, manylogs over the best other mode", "x");
        let quote = "compared to other journaling modes, MLFS provides the best sustained throughput for HDFS and the best latency for user write requests";
        rows.push(best.derived().paper_says(Check::AtLeast(1.0), quote));
        let latency = RowSpec::new("1 x database, flush each 1 ms: request, manylogs over the best other mode", "x");
        rows.push(latency.derived().paper_says(Check::AtMost(1.0), quote));
        let four = RowSpec::new("4 x database, manylogs: request at 1 ms over 33 ms", "x").derived();
        let note = "in the paper it is worse, as its journal makes one sync at a time; ours makes several";
        rows.push(four.goal(Check::AtMost(1.0)).note(note));
        for (name, _) in HOSTS {
            rows.push(RowSpec::new(format!("{name}; 1 x database, flush each 1 ms, manylogs: bandwidth kept"), "%"));
        }
        rows
    }
    fn sample(&self, seed: u64, inputs: &Inputs) -> Result<Sample, LabError> {
        let time = Span::from_secs(inputs.length(30, 5, 2));
        let (mut values, mut all) = (Vec::new(), Vec::new());
        for (n, period) in DATABASES.iter().flat_map(|&n| PERIODS.map(|p| (n, p))) {
            if inputs.brief && n > 1 {
                values.extend([None; 3 * MODES.len()]);
                continue;
            }
            for mode in MODES {
                let o = run(HOST, mode, n, period, seed, time)?;
                values.extend([o.kept, o.request_ms, o.flushes_per_s].map(Some));
                all.push(o);
            }
        }
        let (slow, fast) = (&all[..4], &all[4..8]);
        // At 33 and at 1 ms.
        let four = all.get(11).zip(all.get(15)).map(|(slow, fast)| fast.request_ms / slow.request_ms);
        let best = |of: fn(&Outcome) -> f64, pick: fn(f64, f64) -> f64| {
            fast[..3].iter().map(of).reduce(pick).expect("three other modes")
        };
        let over = [
            fast[3].kept,
            fast[3].kept / slow[3].kept,
            fast[3].kept / best(|o| o.kept, f64::max),
            fast[3].request_ms / best(|o| o.request_ms, f64::min),
        ];
        values.extend(over.map(Some));
        values.push(four);
        for (_, host) in HOSTS {
            values.push(Some(run(host, Mode::Manylogs, 1, 1, seed, time)?.kept));
        }
        Ok(Sample { values, ..Sample::default() })
    }
}
