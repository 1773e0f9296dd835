//! Manylogs at block level on recorded traces: ML-E7 and ML-E9 (latency), ML-E12 (GroupSize), and what they share.

use crate::experiment::traces::speed_for_disk;
use crate::experiment::{Check, Experiment, Inputs, LabError, RowSpec, Sample};
use crate::plot::{Curve, Plot};
use crate::replay::{DeviceChoice, Limits, Measured, Pool, PoolConfig, open_loop};
use crate::trace::record::{Tables, TraceRecord};
use crate::trace::stream::Held;
use crate::trace::stream::RecordStream as _;
use crate::trace::tools::mix::{MANYLOGS_MIXES, MANYLOGS_WINDOW, ManylogsMix, Pick};
use crate::trace::tools::window::{Busy, Window, WindowFinder};
use crate::trace::{ReadOptions, TraceReader};
use plimsoll_base::{LatencyHistogram, Rng, Span, Time};
use plimsoll_device::{DeviceOptions, Model, ModelLayer};
use plimsoll_logs::{CleanConfig, Counters, Layout, Logs, LogsConfig, Shape};
use plimsoll_sched::DiskModel;
use plimsoll_stack::Layer;

/// The disk of Manylogs §V-B, its write cache off as there.
pub(crate) const DEVICE: &str = "constellation-es3-1tb";
/// Half width of the drive's deviation from its profile.
pub(crate) const SPREAD: f64 = 0.15;

/// The paper's way of cleaning: not within a run; full logs are swapped in idle time.
pub(crate) fn swapping(logged_write_bytes: u64) -> LogsConfig {
    LogsConfig {
        logged_write_bytes,
        clean: CleanConfig { when_idle: false, ..CleanConfig::default() },
        // So that the size that is compared is the size that is used.
        adaptive: false,
        swap_reach_groups: 0,
        off_below: Span::ZERO,
        ..LogsConfig::default()
    }
}

/// What of a mix a quick run plays.
const QUICK: Span = Span::from_secs(60);

/// A pool with logs over a device whose other end has no bytes.
pub(crate) fn pool_with(device: &DeviceChoice, shape: Shape, logs: LogsConfig, seed: u64) -> Result<Pool, LabError> {
    let config = PoolConfig { mismatch: SPREAD, seed, ..PoolConfig::default() };
    let failed = |e: &dyn std::fmt::Display| LabError(format!("device `{}`: {e}", device.name));
    let model = device.spec.build(DeviceOptions { seed, mismatch: SPREAD }).map_err(|e| failed(&e))?;
    let layout = Layout::new(model.size_bytes(), model.block_bytes(), shape, 1).map_err(|e| failed(&e))?;
    let scheduler = config.sched.layer(&config.scheduler(), DiskModel::unknown(model.size_bytes()));
    let layers: Vec<Box<dyn Layer>> =
        vec![Box::new(Logs::fresh(layout, logs)), scheduler, Box::new(ModelLayer::new(model))];
    Ok(Pool::of_layers(layers, &config)?)
}

/// One log for the whole disk, as large as all scattered ones together, in its middle.
pub(crate) fn one_log(device_bytes: u64) -> Shape {
    let group_bytes = device_bytes / 100 * 95 / (1 << 20) * (1 << 20);
    let log_bytes = (group_bytes / 10).min((4 << 30) - (1 << 20)) / (1 << 20) * (1 << 20);
    Shape { group_bytes, log_bytes, ..Shape::default() }
}

/// Which of the recorded traces stands for which of the paper's T1 to T10, by role: T1 reads most and large, T7 writes most.
const STANDS_FOR: [&str; 10] = [
    "block/hadoop_node10.csv.gz",
    "block/websearch_small.csv.gz",
    "block/ycsb_ext4.csv.gz",
    "block/mobile_telegram.csv.gz",
    "block/mobile_youcut.csv.gz",
    "block/mobile_genshin.csv.gz",
    "block/cloudphysics_vm.csv.gz",
    "block/hplajw_workstation.csv.gz",
    "block/tpcc_small.csv.gz",
    "block/mobile_pubg.csv.gz",
];

/// Five minutes of a trace as one device of a mix of `parts`: the window that is asked for, slowed by a power of two until it
/// alone keeps the disk without logs busy for at most its part of half of the time. The slower, the shorter the window.
fn part(
    inputs: &Inputs,
    (pick, trace): (Pick, u8),
    device: u32,
    parts: usize,
    rng: &mut Rng,
) -> Result<Vec<TraceRecord>, LabError> {
    let name = STANDS_FOR[usize::from(trace) - 1];
    let path = inputs.file(name).ok_or_else(|| LabError(format!("{name} is not in the data folder")))?;
    let mut reader = TraceReader::open(&path, &ReadOptions::default())?;
    let all = reader.records().collect::<Result<Vec<_>, _>>()?;
    let lasts = all.last().map_or(Span::ZERO, |r| r.arrived_at.since(Time::ZERO));
    let disk = DeviceChoice::named(DEVICE)?;
    let fair = parts.next_power_of_two().trailing_zeros() as i32;
    let draw = rng.clone();
    for slower_log2 in 0..=SLOWER_LOG2_MAX {
        let len = Span::from_nanos(MANYLOGS_WINDOW.as_nanos() >> slower_log2);
        let w = match pick {
            Pick::Busiest(busy) => {
                let mut finder = WindowFinder::new(len, busy);
                all.iter().for_each(|r| finder.record(r));
                finder.found()
            }
            Pick::Random => Window::random(lasts, len, &mut draw.clone()),
        };
        let inside = |r: &&TraceRecord| r.arrived_at >= w.from && r.arrived_at.since(w.from) < w.len;
        let moved = |r: &TraceRecord| {
            let at = r.arrived_at.since(w.from).as_nanos() << slower_log2;
            TraceRecord { arrived_at: Time::from_nanos(at), device, ..*r }
        };
        let slowed: Vec<TraceRecord> = all.iter().filter(inside).map(moved).collect();
        if slowed.is_empty() || speed_for_disk(&slowed, &disk)? >= fair || slower_log2 == SLOWER_LOG2_MAX {
            rng.next_u64();
            return Ok(slowed);
        }
    }
    unreachable!("the last round returns")
}

/// Slowed by no more than this, as a power of two.
const SLOWER_LOG2_MAX: u32 = 12;

/// A mix of Table I(b) from the traces that there are.
pub(crate) fn mix(inputs: &Inputs, which: &ManylogsMix, seed: u64) -> Result<Vec<TraceRecord>, LabError> {
    let mut rng = Rng::new(seed, "manylogs mix");
    let mut all = Vec::new();
    for (device, (pick, trace)) in which.parts.iter().enumerate() {
        // ML-A2: the paper calls W2's four write-heavy traces "most-read"; their role is the other.
        let pick = if which.name == "W2" && *trace > 1 { Pick::Busiest(Busy::Writes) } else { *pick };
        all.extend(part(inputs, (pick, *trace), device as u32, which.parts.len(), &mut rng)?);
    }
    all.sort_by_key(|r| r.arrived_at);
    Ok(all)
}

/// Replays `records`; what was measured, and what the logs counted.
pub(crate) fn replay(
    device: &DeviceChoice,
    shape: Shape,
    logs: LogsConfig,
    records: &[TraceRecord],
    seed: u64,
) -> Result<(Measured, Counters, Pool), LabError> {
    let mut pool = pool_with(device, shape, logs, seed)?;
    let mut source = Held::new(records.to_vec(), Tables::new());
    let m = open_loop(&mut pool, &mut source, &Limits::default(), &mut |_, _| {})?;
    let counters = pool.stack().layer::<Logs>().expect("it is there").counters().clone();
    Ok((m, counters, pool))
}

/// The mean over the percentiles 1 to 99 of how much shorter `ours` is (the paper's "averaging the speed-ups at all
/// percentiles"), and the most.
fn speed_up(base: &LatencyHistogram, ours: &LatencyHistogram) -> (f64, f64) {
    let at = |h: &LatencyHistogram, p: u32| h.percentile(f64::from(p)).as_nanos().max(1) as f64;
    let ratios: Vec<f64> = (1..100).map(|p| at(base, p) / at(ours, p)).collect();
    (ratios.iter().sum::<f64>() / ratios.len() as f64, ratios.iter().copied().fold(0.0, f64::max))
}

pub(crate) fn mean_ms(h: &LatencyHistogram) -> f64 {
    h.sum().as_millis_f64() / h.count().max(1) as f64
}

const TRACES_NOTE: &str = "the paper's ten production traces can't be had: recorded block traces stand for them by role (T1 hadoop, T2 \
    websearch, T3 ycsb-ext4, T4 telegram, T5 youcut, T6 genshin, T7 cloudphysics, T8 hplajw, T9 tpcc, T10 pubg), re-rated: each \
    part slowed by a power of two until it alone keeps the disk without logs busy for its share of half of the five minutes";

/// ML-E7: mixes of traces with no logging, one log, and many.
pub struct TraceMixes;

impl Experiment for TraceMixes {
    fn id(&self) -> &'static str {
        "ML-E7"
    }
    fn title(&self) -> &'static str {
        "Block-level manylogs on mixes of traces"
    }
    fn source(&self) -> &'static str {
        "Manylogs §V-B, Table I, Fig 6a/b, Table II (ML-E9)"
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
            "no logging has the same addresses: the layer with LoggedWriteSize 0. One log: 4 GiB in the middle of the disk".into(),
            "ML-A1: W1 is played with six parts, as printed; ML-A2: W2's four write-heavy traces are taken by their writes".into(),
            "the device differs from its profile by ±15 % per component, drawn by the seed; depth 4".into(),
        ]
    }
    fn rows(&self, _inputs: &Inputs) -> Vec<RowSpec> {
        let swaps = [17.0, 16.0, 0.0, 4.0, 6.0];
        let mut rows = Vec::new();
        for (w, swaps) in MANYLOGS_MIXES.iter().zip(swaps) {
            let name = |what: &str| format!("{}: {what}", w.name);
            rows.push(RowSpec::new(name("mean latency without logging"), "ms"));
            rows.push(RowSpec::new(name("speed-up of the mean, one log"), "x"));
            rows.push(RowSpec::new(name("speed-up of the mean, MLB-32"), "x"));
            rows.push(RowSpec::new(name("speed-up of the mean, MLB-256"), "x").check(Check::AtLeast(1.0)));
            rows.push(RowSpec::new(name("speed-up over the percentiles, MLB-256"), "x"));
            rows.push(RowSpec::new(name("largest speed-up at a percentile"), "x"));
            rows.push(RowSpec::new(name("speed-up of writes' mean, MLB-256"), "x"));
            rows.push(RowSpec { paper: Some(swaps), ..RowSpec::new(name("swaps in 5 min"), "1") });
        }
        let within = Check::Within(1.2, 2.8);
        rows.push(RowSpec::new("all mixes: mean speed-up of the mean, MLB-256", "x").paper(1.9, within));
        rows.push(RowSpec::new("all mixes: mean speed-up over the percentiles, MLB-256", "x").paper(1.9, within));
        rows.push(RowSpec::new("all mixes: MLB-256 over MLB-32, mean latency", "x").check(Check::AtLeast(1.0)));
        rows
    }
    fn sample(&self, seed: u64, inputs: &Inputs) -> Result<Sample, LabError> {
        let mut sample = Sample::default();
        let device = DeviceChoice::named(DEVICE)?;
        let size_bytes = Pool::new(&device, &PoolConfig::default())?.offer().size_bytes;
        let (mut means, mut percentiles, mut over_32) = (Vec::new(), Vec::new(), Vec::new());
        for which in &MANYLOGS_MIXES {
            if inputs.data.is_none() {
                sample.values.extend([None; 8]);
                continue;
            }
            let mut records = mix(inputs, which, seed)?;
            if inputs.quick {
                records.retain(|r| r.arrived_at.since(Time::ZERO) < QUICK);
            }
            let many = Shape::default();
            let run = |shape, bytes| replay(&device, shape, swapping(bytes), &records, seed);
            let (none, ..) = run(many, 0)?;
            let (one, ..) = run(one_log(size_bytes), 256 << 10)?;
            let (mlb_32, ..) = run(many, 32 << 10)?;
            let (mlb_256, counters, _) = run(many, 256 << 10)?;
            let [none_all, one_all, all_32, all_256] = [&none, &one, &mlb_32, &mlb_256].map(Measured::all_responses);
            let gain = |h: &LatencyHistogram| mean_ms(&none_all) / mean_ms(h);
            let (mean, most) = speed_up(&none_all, &all_256);
            let writes = mean_ms(&none.response[1]) / mean_ms(&mlb_256.response[1]).max(1e-9);
            means.push(gain(&all_256));
            percentiles.push(mean);
            over_32.push(mean_ms(&all_32) / mean_ms(&all_256));
            let values = [mean_ms(&none_all), gain(&one_all), gain(&all_32), gain(&all_256), mean, most, writes];
            sample.values.extend(values.map(Some));
            sample.values.push(Some(counters.swaps as f64));
            let named = [("no logging", &none_all), ("one log", &one_all), ("MLB-32", &all_32), ("MLB-256", &all_256)];
            let curves = named.into_iter().map(|(n, h)| Curve::of_histogram(n, h).thinned()).collect();
            sample.plots.push(Plot::of_times(&format!("{}: all requests", which.name), curves));
        }
        let mean = |v: &[f64]| (!v.is_empty()).then(|| v.iter().sum::<f64>() / v.len() as f64);
        sample.values.extend([mean(&means), mean(&percentiles), mean(&over_32)]);
        Ok(sample)
    }
}

/// ML-E12: how far apart the logs lie.
pub struct GroupSizes;

/// GroupSize and LogSize in MiB: always a tenth, but for the last, where a log has at most 4 GiB.
const GROUPS: [(u64, u64, &str); 4] =
    [(10, 1, "1 in 10 MB"), (100, 10, "10 in 100 MB"), (1000, 100, "100 MB in 1 GB"), (10_000, 1000, "1 in 10 GB")];

impl Experiment for GroupSizes {
    fn id(&self) -> &'static str {
        "ML-E12"
    }
    fn title(&self) -> &'static str {
        "GroupSize: how far apart the logs lie"
    }
    fn source(&self) -> &'static str {
        "Manylogs §VI"
    }
    fn device(&self) -> &'static str {
        DEVICE
    }
    fn files(&self) -> Vec<&'static str> {
        STANDS_FOR.to_vec()
    }
    fn notes(&self) -> Vec<String> {
        vec![TRACES_NOTE.into(), "mix W1, MLB-256; the paper says which is best, no numbers".into()]
    }
    fn rows(&self, _inputs: &Inputs) -> Vec<RowSpec> {
        let of = |what: &str| GROUPS.map(|(.., name)| RowSpec::new(format!("{what}, {name}"), "ms"));
        let mut rows: Vec<RowSpec> =
            of("mean latency of all").into_iter().chain(of("mean latency of writes")).collect();
        rows.push(
            RowSpec::new("10 in 100 MB over the best, mean latency of all", "x")
                .check(Check::AtMost(1.05))
                .note("it is best, or within 5 % of the best"),
        );
        rows
    }
    fn sample(&self, seed: u64, inputs: &Inputs) -> Result<Sample, LabError> {
        if inputs.data.is_none() {
            return Ok(Sample { values: vec![None; 9], ..Sample::default() });
        }
        let device = DeviceChoice::named(DEVICE)?;
        let mut records = mix(inputs, &MANYLOGS_MIXES[0], seed)?;
        if inputs.quick {
            records.retain(|r| r.arrived_at.since(Time::ZERO) < QUICK);
        }
        let (mut all, mut writes) = (Vec::new(), Vec::new());
        for (group, log, _) in GROUPS {
            let shape = Shape { group_bytes: group << 20, log_bytes: log << 20, ..Shape::default() };
            let (m, ..) = replay(&device, shape, swapping(256 << 10), &records, seed)?;
            all.push(mean_ms(&m.all_responses()));
            writes.push(mean_ms(&m.response[1]));
        }
        let best = all.iter().copied().fold(f64::INFINITY, f64::min);
        let values = all.iter().chain(&writes).copied().chain([all[1] / best]).map(Some).collect();
        Ok(Sample { values, ..Sample::default() })
    }
}
