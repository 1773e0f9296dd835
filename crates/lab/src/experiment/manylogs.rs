//! Manylogs at block level on recorded traces: ML-E7 and ML-E9 (latency), ML-E12 (GroupSize), and what they share.

use crate::experiment::traces::busy_s;
use crate::experiment::{Check, Experiment, Inputs, LabError, RowSpec, Sample, Switch};
use plimsoll_base::{LatencyHistogram, Rng, Span, Time};
use plimsoll_figure::plot::{Curve, Plot};
use plimsoll_logs::{CleanConfig, Counters, Logs, LogsConfig, Shape};
use plimsoll_pool::{Costs, LogsPlan, ModelPlan, PoolPlan};
use plimsoll_profile::profile_of;
use plimsoll_replay::pool::composed;
use plimsoll_replay::{DeviceChoice, Limits, Measured, Pool, PoolConfig, open_loop};
use plimsoll_trace::record::{Op as TraceOp, Tables, TraceRecord};
use plimsoll_trace::stream::Held;
use plimsoll_trace::stream::RecordStream as _;
use plimsoll_trace::tools::mix::{MANYLOGS_MIXES, MANYLOGS_WINDOW, ManylogsMix, Pick};
use plimsoll_trace::tools::window::{Busy, Window, WindowFinder};
use plimsoll_trace::{ReadOptions, TraceReader};
use std::collections::BTreeMap;

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

/// Rows of ML-E7 for each mix.
const ROWS_OF_MIX: usize = 12;
/// Part of a mix that a quick run plays.
const QUICK: Span = Span::from_secs(60);
const BRIEF: Span = Span::from_secs(8);
/// Of a trace a brief run knows its first requests only.
const BRIEF_RECORDS: usize = 8_000;

/// A pool with logs over a device whose other end has no bytes.
pub(crate) fn pool_with(device: &DeviceChoice, shape: Shape, logs: LogsConfig, seed: u64) -> Result<Pool, LabError> {
    pool_of(&plan(device, shape, logs, seed), seed).map_err(|e| LabError(format!("device `{}`: {e}", device.name)))
}

/// The pool of a plan over a modelled device whose other end has no bytes.
pub(crate) fn pool_of(plan: &PoolPlan, seed: u64) -> Result<Pool, LabError> {
    let config = PoolConfig { mismatch: SPREAD, seed, ..PoolConfig::default() };
    let wiring = composed(plan, &mut ModelPlan::before)?;
    Ok(Pool::of_stack(wiring.stack(), Vec::new(), &config)?)
}

/// The plan of a pool with logs over a modelled device.
pub fn plan(device: &DeviceChoice, shape: Shape, config: LogsConfig, seed: u64) -> PoolPlan {
    let pool = PoolConfig { mismatch: SPREAD, seed, ..PoolConfig::default() };
    PoolPlan { logs: Some(LogsPlan { shape, config }), ..pool.plan(&device.spec, Costs::Unknown) }
}

/// One log for the whole disk, as large as all scattered ones together, in its middle.
pub(crate) fn one_log(device_bytes: u64) -> Shape {
    let group_bytes = device_bytes / 100 * 95 / (1 << 20) * (1 << 20);
    let log_bytes = (group_bytes / 10).min((4 << 30) - (1 << 20)) / (1 << 20) * (1 << 20);
    Shape { group_bytes, log_bytes, ..Shape::default() }
}

/// Recorded traces that stand for the paper's T1 to T10, by role in its mixes (ML-A2): T1 is the one that reads most
/// and largest, T7 to T10 are the four with the largest share of writes, in that order; the rest are the others.
pub(crate) const STANDS_FOR: [&str; 10] = [
    "block/hadoop_node10.csv.gz",
    "block/websearch_small.csv.gz",
    "block/ycsb_ext4.csv.gz",
    "block/mobile_pubg.csv.gz",
    "block/mobile_youcut.csv.gz",
    "block/mobile_genshin.csv.gz",
    "block/mobile_telegram.csv.gz",
    "block/hplajw_workstation.csv.gz",
    "block/cloudphysics_vm.csv.gz",
    "block/tpcc_small.csv.gz",
];

/// The recorded traces of a run, each read once.
pub(crate) struct Traces<'a> {
    inputs: &'a Inputs,
    kept: BTreeMap<u8, Vec<TraceRecord>>,
    /// Addresses are spread over the whole disk, by the megabyte.
    spread: bool,
}

impl<'a> Traces<'a> {
    pub fn new(inputs: &'a Inputs) -> Traces<'a> {
        Traces { inputs, kept: BTreeMap::new(), spread: inputs.has(Switch::SpreadMixes) }
    }

    /// Those of the same run with their addresses spread over the whole disk, by the megabyte, or as recorded.
    pub fn spread(self, spread: bool) -> Traces<'a> {
        Traces { spread, ..self }
    }

    /// Returns the trace that stands for the paper's trace of that number.
    fn number(&mut self, n: u8) -> Result<&[TraceRecord], LabError> {
        if !self.kept.contains_key(&n) {
            let name = STANDS_FOR[usize::from(n) - 1];
            let path = self.inputs.file(name).ok_or_else(|| LabError(format!("{name} is not in the data folder")))?;
            let mut reader = TraceReader::open(&path, &ReadOptions::default())?;
            let most = if self.inputs.brief { BRIEF_RECORDS } else { usize::MAX };
            self.kept.insert(n, reader.records().take(most).collect::<Result<Vec<_>, _>>()?);
        }
        Ok(&self.kept[&n])
    }

    /// Five minutes of a trace as one device of a mix: the window that is asked for, slowed as little as it takes for it alone to
    /// keep the disk without logs busy for at most `busy` seconds of them. The slower, the shorter the window.
    fn part(
        &mut self,
        (pick, trace): (Pick, u8),
        device: u32,
        busy: f64,
        rng: &mut Rng,
    ) -> Result<Vec<TraceRecord>, LabError> {
        let all = self.number(trace)?;
        let disk = DeviceChoice::named(DEVICE)?;
        let draw = rng.clone();
        rng.next_u64();
        let at = |slower: f64| {
            let part = slowed(all, pick, device, slower, &mut draw.clone());
            let fits = part.is_empty() || busy_s(&part, &disk)? <= busy;
            Ok::<_, LabError>((part, fits))
        };
        let mut slower = 1.0;
        let mut best = at(slower)?;
        while !best.1 && slower < SLOWER_MOST {
            slower *= 2.0;
            best = at(slower)?;
        }
        let (mut low, mut high) = (slower / 2.0, slower);
        for _ in 0..if slower > 1.0 { REFINE } else { 0 } {
            let middle = (low * high).sqrt();
            let tried = at(middle)?;
            if tried.1 {
                (high, best) = (middle, tried);
            } else {
                low = middle;
            }
        }
        Ok(best.0)
    }

    /// A mix of Table I(b) for each of `loads`, the share of the time for which it may keep the disk without logs busy. Its parts
    /// would do so alone for equal shares; together they are slower, as each interrupts the others' runs: so they are slowed
    /// further until the mix is within the load.
    pub fn mixes(&mut self, which: &ManylogsMix, loads: &[f64], seed: u64) -> Result<Vec<Vec<TraceRecord>>, LabError> {
        let disk = DeviceChoice::named(DEVICE)?;
        let mut found: Vec<Option<Vec<TraceRecord>>> = vec![None; loads.len()];
        let mut alone = loads.iter().copied().fold(0.0, f64::max);
        while found.iter().any(Option::is_none) && alone > 1e-3 {
            let mix = self.mix(which, alone, seed)?;
            let busy = busy_s(&mix, &disk)? / MANYLOGS_WINDOW.as_secs_f64();
            for (found, _) in found.iter_mut().zip(loads).filter(|(f, load)| f.is_none() && busy <= **load) {
                *found = Some(mix.clone());
            }
            alone /= STEP;
        }
        found.into_iter().collect::<Option<_>>().ok_or_else(|| LabError(format!("{} overloads any disk", which.name)))
    }

    /// A mix whose parts keep the disk busy, each alone, for at most equal shares of `busy` of the time.
    fn mix(&mut self, which: &ManylogsMix, busy: f64, seed: u64) -> Result<Vec<TraceRecord>, LabError> {
        let mut rng = Rng::new(seed, "manylogs mix");
        let share = busy * MANYLOGS_WINDOW.as_secs_f64() / which.parts.len() as f64;
        let mut all = Vec::new();
        for (device, (pick, trace)) in which.parts.iter().enumerate() {
            // ML-A2: the paper calls W2's four write-heavy traces "most-read"; their role is the other.
            let pick = if which.name == "W2" && *trace > 1 { Pick::Busiest(Busy::Writes) } else { *pick };
            all.extend(self.part((pick, *trace), device as u32, share, &mut rng)?);
        }
        if self.spread {
            all.iter_mut().for_each(|r| r.offset = spread(r.offset));
        }
        all.sort_by_key(|r| r.arrived_at);
        Ok(all)
    }
}

/// The address that a megabyte has if those of a trace lie a hundred apart: beyond the disk's end they wrap around.
fn spread(offset: u64) -> u64 {
    (offset >> 20) * (100 << 20) + offset % (1 << 20)
}

/// Slowed by no more than this.
const SLOWER_MOST: f64 = 4096.0;
/// Halvings of the last factor of two.
const REFINE: u32 = 2;
/// Parts are slowed by this much until their mix fits.
const STEP: f64 = 1.25;
/// Shares of the time that a mix may keep the disk without logs busy: the one for all rows, then two others, to see what of a
/// speed-up comes from the load.
pub(crate) const LOADS: [(f64, &str); 3] = [(0.5, "half"), (0.25, "a quarter"), (0.75, "three quarters")];

/// A window of a trace, slowed so that it lasts five minutes.
fn slowed(all: &[TraceRecord], pick: Pick, device: u32, slower: f64, rng: &mut Rng) -> Vec<TraceRecord> {
    let len = Span::from_nanos((MANYLOGS_WINDOW.as_nanos() as f64 / slower) as u64);
    let w = match pick {
        Pick::Busiest(busy) => {
            let mut finder = WindowFinder::new(len, busy);
            all.iter().for_each(|r| finder.record(r));
            finder.found()
        }
        Pick::Random => {
            let lasts = all.last().map_or(Span::ZERO, |r| r.arrived_at.since(Time::ZERO));
            Window::random(lasts, len, rng)
        }
    };
    let inside = |r: &&TraceRecord| r.arrived_at >= w.from && r.arrived_at.since(w.from) < w.len;
    let moved = |r: &TraceRecord| {
        let at = (r.arrived_at.since(w.from).as_nanos() as f64 * slower) as u64;
        TraceRecord { arrived_at: Time::from_nanos(at), device, ..*r }
    };
    all.iter().filter(inside).map(moved).collect()
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
    let counters = pool.stack.layer::<Logs>().expect("it is there").counters().clone();
    Ok((m, counters, pool))
}

/// The mean over the percentiles 1 to 99 of how much shorter `ours` is (the paper's "averaging the speed-ups at all
/// percentiles"), and the most.
pub(crate) fn speed_up(base: &LatencyHistogram, ours: &LatencyHistogram) -> (f64, f64) {
    let at = |h: &LatencyHistogram, p: u32| h.percentile(f64::from(p)).as_nanos().max(1) as f64;
    let ratios: Vec<f64> = (1..100).map(|p| at(base, p) / at(ours, p)).collect();
    (ratios.iter().sum::<f64>() / ratios.len() as f64, ratios.iter().copied().fold(0.0, f64::max))
}

pub(crate) fn mean_ms(h: &LatencyHistogram) -> f64 {
    h.sum().as_millis_f64() / h.count().max(1) as f64
}

pub(crate) const TRACES_NOTE: &str = "the paper's ten production traces can't be had: recorded block traces stand for them by role (T1, read most and \
    largest: hadoop; T7 to T10, the largest shares of writes: telegram 90 %, hplajw 71 %, cloudphysics 59 %, tpcc 37 %; T2 websearch, \
    T3 ycsb-ext4, T4 pubg, T5 youcut, T6 genshin), re-rated: \
    slowed until the mix keeps the disk without logs busy, one request at a time, for at most half of the five minutes, and each \
    part alone for an equal share";

/// ML-E7: mixes of traces with no logging, one log, and many.
pub struct TraceMixes;

pub(crate) const LOGGED_MAX: u64 = 256 << 10;

pub(crate) fn is_small_write(r: &TraceRecord) -> bool {
    r.op == TraceOp::Write && r.len <= LOGGED_MAX
}

/// Returns the mean if logged writes took no time at all, neither their own nor others': no log can be better.
fn mean_at_best(device: &DeviceChoice, records: &[TraceRecord], seed: u64) -> Result<f64, LabError> {
    let rest: Vec<TraceRecord> = records.iter().filter(|r| !is_small_write(r)).copied().collect();
    let (m, ..) = replay(device, Shape::default(), swapping(0), &rest, seed)?;
    Ok(m.all_responses().sum().as_millis_f64() / records.len().max(1) as f64)
}

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
            "at best: the same without its writes of up to 256 KiB, counted as taking no time; gap closed: of the mean's time above that"
                .into(),
            "ML-A1: W1 is played with six parts, as printed; ML-A2: W2's four write-heavy traces are taken by their writes".into(),
            "the device differs from its profile by ±15 % per component, drawn by the seed; depth 4".into(),
        ]
    }
    fn rows(&self, _inputs: &Inputs) -> Vec<RowSpec> {
        let swaps = [17.0, 16.0, 0.0, 4.0, 6.0];
        let mut rows = Vec::new();
        for (w, swaps) in MANYLOGS_MIXES.iter().zip(swaps) {
            let name = |what: &str| format!("{}: {what}", w.name);
            rows.push(RowSpec::new(name("writes of up to 256 KiB"), "%"));
            rows.push(RowSpec::new(name("mean latency without logging"), "ms"));
            rows.push(RowSpec::new(name("speed-up of the mean, one log"), "x"));
            rows.push(RowSpec::new(name("speed-up of the mean, MLB-32"), "x"));
            rows.push(RowSpec::new(name("speed-up of the mean, MLB-256"), "x").goal(Check::AtLeast(1.0)));
            rows.push(RowSpec::new(name("speed-up of the mean at best"), "x"));
            rows.push(RowSpec::new(name("gap closed, MLB-256"), "%"));
            rows.push(RowSpec::new(name("speed-up over the percentiles, MLB-256"), "x").reproduces_range(1.2, 2.8));
            rows.push(RowSpec::new(name("largest speed-up at a percentile"), "x"));
            rows.push(RowSpec::new(name("speed-up of reads' mean, MLB-256"), "x"));
            rows.push(RowSpec::new(name("speed-up of writes' mean, MLB-256"), "x"));
            rows.push(RowSpec::new(name("swaps in 5 min"), "1").beside(swaps));
        }
        rows.push(RowSpec::new("all mixes: mean speed-up of the mean, MLB-256", "x").reproduces(1.9));
        rows.push(RowSpec::new("all mixes: mean speed-up over the percentiles, MLB-256", "x").reproduces(1.9));
        rows.push(RowSpec::new("all mixes: MLB-256 over MLB-32, mean latency", "x").goal(Check::AtLeast(1.0)));
        rows.push(RowSpec::new("all mixes: mean speed-up of the mean at best", "x"));
        let one = RowSpec::new("all mixes: MLB-256 over one log in the middle, mean latency", "x").derived();
        rows.push(
            one.goal(Check::AtLeast(1.0)).note("not a comparator of the paper's MLB, but a simpler thing to build"),
        );
        for (_, load) in &LOADS[1..] {
            rows.push(RowSpec::new(format!("all mixes, rated for {load}: mean speed-up of the mean, MLB-256"), "x"));
            rows.push(RowSpec::new(format!("all mixes, rated for {load}: the same at best"), "x"));
        }
        rows
    }
    fn sample(&self, seed: u64, inputs: &Inputs) -> Result<Sample, LabError> {
        let mut sample = Sample::default();
        if inputs.data.is_none() {
            sample.values = vec![None; self.rows(inputs).len()];
            return Ok(sample);
        }
        let device = DeviceChoice::named(DEVICE)?;
        let mut traces = Traces::new(inputs);
        let mut all = Means::default();
        let mut others = vec![(Vec::new(), Vec::new()); LOADS.len() - 1];
        for (i, which) in MANYLOGS_MIXES.iter().enumerate() {
            if inputs.brief && i > 0 {
                // One mix shows that all runs work.
                sample.values.extend([None; ROWS_OF_MIX]);
                continue;
            }
            let mixes = traces.rated(which, &LOADS.map(|l| l.0), seed)?;
            one_mix(&device, which, &mixes[0], seed, &mut sample, &mut all)?;
            for (records, (gains, best)) in mixes[1..].iter().zip(&mut others) {
                let run = |bytes| replay(&device, Shape::default(), swapping(bytes), records, seed);
                let none = mean_ms(&run(0)?.0.all_responses());
                gains.push(none / mean_ms(&run(LOGGED_MAX)?.0.all_responses()));
                best.push(none / mean_at_best(&device, records, seed)?);
            }
        }
        let mean = |v: &Vec<f64>| Some(v.iter().sum::<f64>() / v.len() as f64);
        sample.values.extend([&all.gains, &all.percentiles, &all.over_32, &all.best, &all.over_one].map(mean));
        sample.values.extend(others.iter().flat_map(|(gains, best)| [mean(gains), mean(best)]));
        Ok(sample)
    }
}

impl Traces<'_> {
    /// A mix for each load, or of a quick run the first of it.
    pub(crate) fn rated(
        &mut self,
        which: &ManylogsMix,
        loads: &[f64],
        seed: u64,
    ) -> Result<Vec<Vec<TraceRecord>>, LabError> {
        let mut mixes = self.mixes(which, loads, seed)?;
        if self.inputs.quick {
            let most = if self.inputs.brief { BRIEF } else { QUICK };
            mixes.iter_mut().for_each(|m| m.retain(|r| r.arrived_at.since(Time::ZERO) < most));
        }
        Ok(mixes)
    }
}

/// Averages over the mixes.
#[derive(Default)]
struct Means {
    gains: Vec<f64>,
    percentiles: Vec<f64>,
    over_32: Vec<f64>,
    over_one: Vec<f64>,
    best: Vec<f64>,
}

/// One mix's rows and picture.
fn one_mix(
    device: &DeviceChoice,
    which: &ManylogsMix,
    records: &[TraceRecord],
    seed: u64,
    sample: &mut Sample,
    all: &mut Means,
) -> Result<(), LabError> {
    let size_bytes = Pool::new(device, &PoolConfig::default())?.offer().size_bytes;
    let many = Shape::default();
    let run = |shape, bytes| replay(device, shape, swapping(bytes), records, seed);
    let (none, ..) = run(many, 0)?;
    let (one, ..) = run(one_log(size_bytes), LOGGED_MAX)?;
    let (mlb_32, ..) = run(many, 32 << 10)?;
    let (mlb_256, counters, _) = run(many, LOGGED_MAX)?;
    let [none_all, one_all, all_32, all_256] = [&none, &one, &mlb_32, &mlb_256].map(Measured::all_responses);
    let (base, ours) = (mean_ms(&none_all), mean_ms(&all_256));
    let best = mean_at_best(device, records, seed)?;
    let small = records.iter().filter(|r| is_small_write(r)).count() as f64 / records.len().max(1) as f64;
    let (mean, most) = speed_up(&none_all, &all_256);
    let side = |i: usize| mean_ms(&none.response[i]) / mean_ms(&mlb_256.response[i]).max(1e-9);
    all.gains.push(base / ours);
    all.percentiles.push(mean);
    all.over_32.push(mean_ms(&all_32) / ours);
    all.over_one.push(mean_ms(&one_all) / ours);
    all.best.push(base / best);
    let gap_closed = 100.0 * (base - ours) / (base - best).max(1e-9);
    let values = [
        100.0 * small,
        base,
        base / mean_ms(&one_all),
        base / mean_ms(&all_32),
        base / ours,
        base / best,
        gap_closed,
        mean,
        most,
        side(0),
        side(1),
        counters.swaps as f64,
    ];
    sample.values.extend(values.map(Some));
    let named = [("no logging", &none_all), ("one log", &one_all), ("MLB-32", &all_32), ("MLB-256", &all_256)];
    let curves = named.into_iter().map(|(n, h)| Curve::of_histogram(n, h).thinned()).collect();
    sample.plots.push(Plot::of_times(&format!("{}: all requests", which.name), curves));
    Ok(())
}

/// ML-E12: how far apart the logs lie.
pub struct GroupSizes;

/// Returns the profile's group size for a drive that keeps to its specification; the drive that is replayed on does not.
fn profiled_group(device: &DeviceChoice, seed: u64) -> Result<u64, LabError> {
    let profile =
        profile_of(device.disk()?, seed, 10).map_err(|e| LabError(format!("device `{}`: {e}", device.name)))?;
    Ok(profile.disk.expect("a disk's profile has its costs").log_group_bytes())
}

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
                .reproduces_range(1.0, 1.05)
                .note("the paper: best on its disk (§VI); taken as within 5 % of the best"),
        );
        rows.push(RowSpec::new("GroupSize that `plimsoll profile` chooses", "MB"));
        rows.push(RowSpec::new("that over the best, mean latency of all", "x").goal(Check::AtMost(1.05)));
        rows.push(RowSpec::new("one log in the middle over the best, mean latency of all", "x"));
        rows
    }
    fn sample(&self, seed: u64, inputs: &Inputs) -> Result<Sample, LabError> {
        if inputs.data.is_none() {
            return Ok(Sample { values: vec![None; 12], ..Sample::default() });
        }
        let device = DeviceChoice::named(DEVICE)?;
        let records = Traces::new(inputs).rated(&MANYLOGS_MIXES[0], &[LOADS[0].0], seed)?.remove(0);
        let (mut all, mut writes) = (Vec::new(), Vec::new());
        for (group, log, _) in GROUPS {
            let shape = Shape { group_bytes: group << 20, log_bytes: log << 20, ..Shape::default() };
            let (m, ..) = replay(&device, shape, swapping(256 << 10), &records, seed)?;
            all.push(mean_ms(&m.all_responses()));
            writes.push(mean_ms(&m.response[1]));
        }
        let chosen = profiled_group(&device, seed)?;
        let shape = Shape { group_bytes: chosen, log_bytes: chosen / 10, ..Shape::default() };
        let ours = mean_ms(&replay(&device, shape, swapping(256 << 10), &records, seed)?.0.all_responses());
        let best = all.iter().copied().fold(ours, f64::min);
        let size_bytes = Pool::new(&device, &PoolConfig::default())?.offer().size_bytes;
        let one = replay(&device, one_log(size_bytes), swapping(256 << 10), &records, seed)?.0;
        let one = mean_ms(&one.all_responses());
        let choice = [all[1] / best, (chosen >> 20) as f64, ours / best, one / best];
        let values = all.iter().chain(&writes).copied().chain(choice).map(Some).collect();
        Ok(Sample { values, ..Sample::default() })
    }
}
