//! Many logs where their places matter: on traces spread over the whole disk, against one log in its middle; and on a disk with two arms.

use crate::experiment::manylogs::{
    DEVICE, LOADS, LOGGED_MAX, STANDS_FOR, TRACES_NOTE, Traces, mean_ms, one_log, plan, pool_of, replay, swapping,
};
use crate::experiment::manylogs_stream::{FILE_BYTES, STREAM_BYTES, STREAM_THREADS, beside};
use crate::experiment::{Check, Experiment, Inputs, LabError, RowSpec, Sample};
use plimsoll_base::{Rng, Span};
use plimsoll_device::{DeviceSpec, profile};
use plimsoll_logs::Shape;
use plimsoll_replay::{DeviceChoice, Pool, PoolConfig};
use plimsoll_trace::tools::mix::MANYLOGS_MIXES;

/// The mixes of ML-E7, each megabyte a hundred apart.
pub struct SpreadTraces;

const ROWS_OF_MIX: usize = 4;

impl Experiment for SpreadTraces {
    fn id(&self) -> &'static str {
        "ML-SPREAD"
    }
    fn title(&self) -> &'static str {
        "Many logs against one in the middle, on traces spread over the whole disk"
    }
    fn source(&self) -> &'static str {
        "Manylogs §V-B; the paper has no such comparison"
    }
    fn device(&self) -> &'static str {
        DEVICE
    }
    fn files(&self) -> Vec<&'static str> {
        STANDS_FOR.to_vec()
    }
    fn notes(&self) -> Vec<String> {
        vec![
            TRACES_NOTE.into(),
            "each megabyte of a trace lies a hundred apart and wraps around the disk's end: reads and writes are everywhere on it".into(),
            "one log: 4 GiB in the middle of the disk; the device differs from its profile by ±15 % per component, drawn by the seed".into(),
        ]
    }
    fn rows(&self, _inputs: &Inputs) -> Vec<RowSpec> {
        let of = |w: &str| {
            let row = |what: &str, unit| RowSpec::new(format!("{w}: {what}"), unit);
            [
                row("mean latency without logging", "ms"),
                row("speed-up of the mean, one log", "x"),
                row("speed-up of the mean, many logs", "x").goal(Check::AtLeast(1.0)),
                row("many logs over one, mean latency", "x").goal(Check::AtLeast(1.0)),
            ]
        };
        let mut rows: Vec<RowSpec> = MANYLOGS_MIXES.iter().flat_map(|w| of(w.name)).collect();
        rows.push(RowSpec::new("all mixes: mean speed-up of the mean, many logs", "x").reproduces(1.9));
        rows.push(RowSpec::new("all mixes: many logs over one, mean latency", "x").goal(Check::AtLeast(1.0)));
        rows
    }
    fn sample(&self, seed: u64, inputs: &Inputs) -> Result<Sample, LabError> {
        if inputs.data.is_none() {
            return Ok(Sample { values: vec![None; self.rows(inputs).len()], ..Sample::default() });
        }
        let device = DeviceChoice::named(DEVICE)?;
        let size_bytes = Pool::new(&device, &PoolConfig::default())?.offer().size_bytes;
        let mut traces = Traces::new(inputs).spread(true);
        let (mut values, mut gains, mut over) = (Vec::new(), Vec::new(), Vec::new());
        for (i, which) in MANYLOGS_MIXES.iter().enumerate() {
            if inputs.brief && i > 0 {
                values.extend([None; ROWS_OF_MIX]);
                continue;
            }
            let records = traces.rated(which, &[LOADS[0].0], seed)?.remove(0);
            let mean = |shape, bytes| {
                let (m, ..) = replay(&device, shape, swapping(bytes), &records, seed)?;
                Ok::<_, LabError>(mean_ms(&m.all_responses()))
            };
            let none = mean(Shape::default(), 0)?;
            let (one, many) = (mean(one_log(size_bytes), LOGGED_MAX)?, mean(Shape::default(), LOGGED_MAX)?);
            gains.push(none / many);
            over.push(one / many);
            values.extend([none, none / one, none / many, one / many].map(Some));
        }
        let mean = |v: &Vec<f64>| Some(v.iter().sum::<f64>() / v.len() as f64);
        values.extend([mean(&gains), mean(&over)]);
        Ok(Sample { values, ..Sample::default() })
    }
}

/// A disk with two arms: a log near each.
pub struct TwoArms;

/// Durable writes a second beside the streams.
const WRITES_PER_S: u64 = 320;
/// Requests at the drive at once: four for each arm.
const DEPTH: u32 = 8;

/// The disk of ML-E7 with four surfaces, two for each arm.
fn two_arms() -> Result<DeviceChoice, LabError> {
    let mut spec = profile::by_name(DEVICE).map_err(|e| LabError(e.to_string()))?;
    spec.geometry.surfaces = 4;
    spec.mechanics.actuators = 2;
    let name = format!("{DEVICE} with two arms");
    Ok(DeviceChoice { name, spec: DeviceSpec::Disk(Box::new(spec)) })
}

impl Experiment for TwoArms {
    fn id(&self) -> &'static str {
        "ML-ARMS"
    }
    fn title(&self) -> &'static str {
        "Two actuators: streams of both beside small durable writes"
    }
    fn source(&self) -> &'static str {
        "beyond Manylogs: its disks have one arm"
    }
    fn device(&self) -> &'static str {
        DEVICE
    }
    fn notes(&self) -> Vec<String> {
        vec![
            "the mechanics of the disk with four surfaces, the first half of its addresses under one arm, the rest under the other; two reads of 128 KiB \
             outstanding in a file of 2 GB of each arm, at the same place of both"
                .into(),
            "writes: batches of 20 scattered ones of 4 KiB and a FLUSH, as in ML-E4, 320 writes a second; LoggedWriteSize 32 KiB".into(),
            "the device differs from its profile by ±15 % per component, drawn by the seed; depth 8, four for each arm".into(),
        ]
    }
    fn rows(&self, _inputs: &Inputs) -> Vec<RowSpec> {
        let times = |what: &str| RowSpec::new(format!("{what}: streams over one arm's alone"), "x");
        vec![
            RowSpec::new("stream of one arm alone", "MB/s"),
            times("no writes"),
            times("320 writes/s, no logging"),
            times("320 writes/s, one log in the middle"),
            times("320 writes/s, many logs").goal(Check::AtLeast(1.8)),
            RowSpec::new("batch and flush, no logging, mean", "ms"),
            RowSpec::new("batch and flush, many logs, mean", "ms"),
        ]
    }
    fn sample(&self, seed: u64, inputs: &Inputs) -> Result<Sample, LabError> {
        let time = Span::from_secs(inputs.length(60, 10, 5));
        let device = two_arms()?;
        let size_bytes = Pool::new(&device, &PoolConfig::default())?.offer().size_bytes;
        let capacity = size_bytes / 100 * 80;
        let mut rng = Rng::new(seed, "files of the arms");
        let within = (capacity / 4 - FILE_BYTES) / STREAM_BYTES;
        // The same place of each arm, so that they are equally fast.
        let place = rng.below(within) * STREAM_BYTES;
        let files = [0, size_bytes / 2].map(|arm| (arm + place) / 4096 * 4096);
        let run = |shape: Shape, bytes, files: &[u64], rate| {
            let mut plan = plan(&device, shape, swapping(bytes), seed);
            plan.scheduler.options.depth = DEPTH;
            let mut pool = pool_of(&plan, seed)?;
            let threads = STREAM_THREADS * files.len() as u32;
            beside(&mut pool, (files.to_vec(), threads), capacity, rate, seed, time)
        };
        let many = Shape::default();
        let alone = run(many, 0, &files[..1], 0)?.stream;
        let both = run(many, 0, &files, 0)?;
        let none = run(many, 0, &files, WRITES_PER_S)?;
        let one = run(one_log(size_bytes), 32 << 10, &files, WRITES_PER_S)?;
        let logs = run(many, 32 << 10, &files, WRITES_PER_S)?;
        let over = |stream: f64| stream / alone;
        let values =
            [alone, over(both.stream), over(none.stream), over(one.stream), over(logs.stream), none.sync, logs.sync];
        Ok(Sample { values: values.map(Some).into(), ..Sample::default() })
    }
}
