//! SCHED-CMP: noop, deadline and CFQ scheduling on recorded traces.

use crate::experiment::{Check, Experiment, Inputs, LabError, RowSpec, Sample};
use plimsoll_base::{Rng, Span, Time};
use plimsoll_figure::plot::{Curve, Plot};
use plimsoll_replay::{DeviceChoice, Limits, Measured, Pool, PoolConfig, open_loop};
use plimsoll_sched::SchedulerKind;
use plimsoll_trace::record::{Tables, TraceRecord};
use plimsoll_trace::stream::{Held, RecordStream};
use plimsoll_trace::tools::rerate::{Rerate, Speed};
use plimsoll_trace::{ReadOptions, TraceReader};
use std::path::PathBuf;

/// See the module's documentation.
pub struct SchedulerComparison;

/// A trace and how it is replayed.
struct Case {
    file: PathBuf,
    name: String,
    device: &'static str,
    /// Speed: numerator and denominator.
    speed: (u64, u64),
    gap_max: Span,
    note: &'static str,
}

const WHOLE: Span = Span::MAX;
/// File, name, device, speed, longest gap, note.
type Recorded = (&'static str, &'static str, &'static str, (u64, u64), Span, &'static str);

const CASES: [Recorded; 5] = [
    (
        "block/cloudphysics_vm.csv.gz",
        "cloudphysics",
        "cheetah-15k5",
        (1, 4),
        WHOLE,
        "cloudphysics: at a quarter of its speed, as its bursts are more than one disk can do",
    ),
    (
        "block/hplajw_workstation.csv.gz",
        "hplajw",
        "hp-335h",
        (1, 1),
        Span::from_secs(1),
        "hplajw: gaps longer than 1 s shortened to 1 s; its two disks share one modelled disk of their kind",
    ),
    (
        "block/websearch_small.csv.gz",
        "websearch",
        "cheetah-15k5",
        (1, 3),
        WHOLE,
        "websearch: at a third of its speed, its six units on one disk: as recorded it is more than one disk can do",
    ),
    (
        "block/ycsb_ext4.csv.gz",
        "ycsb-ext4",
        "cheetah-15k5",
        (1, 4),
        WHOLE,
        "ycsb-ext4: at a quarter of its speed, as its first burst is more than one disk can do",
    ),
    (
        "block/mobile_telegram.csv.gz",
        "telegram",
        "cheetah-15k5",
        (1, 4),
        WHOLE,
        "telegram: recorded on a phone's flash; at a quarter of its speed, and still its bursts keep a disk busy for seconds",
    ),
];

fn cases(inputs: &Inputs) -> Vec<Case> {
    if !inputs.traces.is_empty() {
        let case = |file: &PathBuf| Case {
            name: file.file_name().unwrap_or(file.as_os_str()).to_string_lossy().into_owned(),
            file: file.clone(),
            device: "cheetah-15k5",
            speed: (1, 1),
            gap_max: WHOLE,
            note: "",
        };
        return inputs.traces.iter().map(case).collect();
    }
    let case =
        |&(file, name, device, speed, gap_max, note): &(&str, &str, &'static str, (u64, u64), Span, &'static str)| {
            Case {
                file: inputs.data.clone().unwrap_or_default().join(file),
                name: name.into(),
                device,
                speed,
                gap_max,
                note,
            }
        };
    CASES.iter().map(case).collect()
}

/// The records from a start that the seed draws within the first tenth, times counted from there.
fn load(case: &Case, seed: u64, count_max: usize) -> Result<Vec<TraceRecord>, LabError> {
    let reader = TraceReader::open(&case.file, &ReadOptions::default())?;
    let speed = Speed::new(case.speed.0, case.speed.1).expect("constant speeds aren't zero");
    let mut stream = Rerate::new(reader, speed, case.gap_max);
    let mut records = Vec::new();
    while let Some(r) = stream.next_record() {
        records.push(r?);
    }
    let from = Rng::new(seed, "trace start").below((records.len() as u64 / 10).max(1)) as usize;
    let mut records: Vec<TraceRecord> = records.into_iter().skip(from).take(count_max).collect();
    let base = records.first().map_or(Time::ZERO, |r| r.arrived_at);
    records.iter_mut().for_each(|r| r.arrived_at = Time::ZERO + r.arrived_at.since(base));
    Ok(records)
}

fn replay(case: &Case, sched: SchedulerKind, records: &[TraceRecord], seed: u64) -> Result<Measured, LabError> {
    let config = PoolConfig { sched, depth: 4, mismatch: 0.15, seed, ..PoolConfig::default() };
    let mut pool = Pool::new(&DeviceChoice::named(case.device)?, &config)?;
    let mut source = Held::new(records.to_vec(), Tables::new());
    Ok(open_loop(&mut pool, &mut source, &Limits::default(), &mut |_, _| {})?)
}

/// Reported figure of each scheduler on each trace, in milliseconds; `None` where the data are too few.
type Metric = (&'static str, fn(&Measured) -> Option<f64>);

const METRICS: [Metric; 3] = [
    ("mean read", |m| enough(m, 0).then(|| m.response[0].mean().as_millis_f64())),
    ("p99 read", |m| enough(m, 0).then(|| m.response[0].percentile(99.0).as_millis_f64())),
    ("p99 write", |m| enough(m, 1).then(|| m.response[1].percentile(99.0).as_millis_f64())),
];

/// A p99 needs at least one value beyond it.
fn enough(m: &Measured, kind: usize) -> bool {
    m.done[kind] >= 100
}

impl Experiment for SchedulerComparison {
    fn id(&self) -> &'static str {
        "SCHED-CMP"
    }
    fn title(&self) -> &'static str {
        "noop, deadline and CFQ scheduling on recorded traces"
    }
    fn source(&self) -> &'static str {
        "no paper's figure: ours alone"
    }
    fn takes_traces(&self) -> bool {
        true
    }
    fn device(&self) -> &'static str {
        "cheetah-15k5, hp-335h"
    }
    fn files(&self) -> Vec<&'static str> {
        CASES.iter().map(|c| c.0).collect()
    }
    fn notes(&self) -> Vec<String> {
        let mut notes = vec![
            "depth 4 over the drive's own queue; devices differ from their profiles by ±15 %; differences are taken under the same \
             seed: same arrivals, same drive, same start within the trace's first tenth"
                .to_string(),
        ];
        notes.extend(CASES.iter().filter(|c| !c.5.is_empty()).map(|c| c.5.to_string()));
        notes
    }
    fn rows(&self, inputs: &Inputs) -> Vec<RowSpec> {
        let mut rows = Vec::new();
        for case in cases(inputs) {
            for (metric, _) in METRICS {
                for (i, sched) in SchedulerKind::FOR_DISKS.into_iter().enumerate() {
                    let name = format!("{}: {metric}, {}", case.name, sched.name());
                    rows.push(RowSpec::new(name, "ms"));
                    if i > 0 {
                        let name = format!("{}: {metric}, {} less noop", case.name, sched.name());
                        rows.push(
                            RowSpec::new(name, "ms").note("paired; a difference only where the interval excludes 0"),
                        );
                    }
                }
            }
            let name = format!("{}: requests ended by every scheduler, of those that arrived", case.name);
            rows.push(
                RowSpec::new(name, "%").property(Check::Within(100.0, 100.0)).note("each request ends exactly once"),
            );
        }
        rows
    }
    fn sample(&self, seed: u64, inputs: &Inputs) -> Result<Sample, LabError> {
        let mut sample = Sample::default();
        for case in cases(inputs) {
            if !case.file.is_file() && inputs.traces.is_empty() {
                sample.values.extend(std::iter::repeat_n(None, rows_per_case()));
                continue;
            }
            let records = load(&case, seed, if inputs.quick { 10_000 } else { usize::MAX })?;
            let runs: Vec<Measured> = SchedulerKind::FOR_DISKS
                .into_iter()
                .map(|s| replay(&case, s, &records, seed))
                .collect::<Result<_, _>>()?;
            for (_, metric) in METRICS {
                let noop = metric(&runs[0]);
                sample.values.push(noop);
                for m in &runs[1..] {
                    let ours = metric(m);
                    sample.values.extend([ours, ours.zip(noop).map(|(a, b)| a - b)]);
                }
            }
            let ended = runs.iter().map(|m| m.done.iter().sum::<u64>()).min().unwrap_or(0);
            sample.values.push(Some(100.0 * ended as f64 / records.len().max(1) as f64));
            let curves = SchedulerKind::FOR_DISKS.into_iter().zip(&runs);
            let curves = curves.map(|(s, m)| Curve::of_histogram(s.name(), &m.response[0]).thinned()).collect();
            sample.plots.push(Plot::of_times(&format!("Reads of {} on modelled {}", case.name, case.device), curves));
            if !case.note.is_empty() {
                sample.notes.push(case.note.into());
            }
        }
        Ok(sample)
    }
}

fn rows_per_case() -> usize {
    METRICS.len() * (1 + 2 * (SchedulerKind::FOR_DISKS.len() - 1)) + 1
}
