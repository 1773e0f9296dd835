//! AUTO, AUTO-HELD-OUT, AUTO-RECORDED: the predictor that chooses itself against the others, on models whose inside is hidden and on recorded
//! times of real devices. AUTO-HELD-OUT has devices, loads and seeds that AUTO hasn't: nobody may change a predictor after its figures.
//!
//! Every request runs; reads that would have been refused are only flagged (MT-M28). All predictors see the same run. The first half of the
//! reads sets the deadline (its p95), trains the networks and lets the others learn; the second half is judged. Hindsight's limit
//! is the one on a predictor's own forecasts that finds the most late reads at 1 % needless refusals in the judged half.

mod loads;
mod nets;
mod recorded;
mod throttled;

use crate::experiment::judged::{NEEDLESS, Read, Verdict, from, missed_in_hindsight, p95};
use crate::experiment::traces;
use crate::experiment::{Check, Experiment, Inputs, LabError, RowSpec, Sample};
use loads::{Load, generated};
use nets::{Features, Net, examples};
use plimsoll_base::{Completion, Op, Span, Time};
use plimsoll_device::{AnyModel, DeviceOptions, Model, ModelLayer};
use plimsoll_profile::profile_of;
use plimsoll_replay::{DeviceChoice, Limits, Pool, PoolConfig, open_loop_watched};
use plimsoll_sched::{Discipline, DiskModel, Late, Profile, SchedulerKind, SchedulerOptions};
use plimsoll_stack::Layer;
use plimsoll_trace::record::{Tables, TraceRecord};
use plimsoll_trace::stream::Held;
use recorded::Recorded;
use throttled::Throttled;

const SPREAD: f64 = 0.15;
const IN_FLIGHT_MAX: usize = 1 << 16;

/// A request that has ended.
#[derive(Clone, Copy, Debug)]
struct Ended {
    op: Op,
    len: u64,
    arrived_at: Time,
    expected_at: Time,
    done_at: Time,
}

impl Ended {
    fn read(&self) -> Option<Read> {
        let Ended { arrived_at, expected_at, done_at, .. } = *self;
        (self.op == Op::Read).then_some(Read { arrived_at, expected_at, done_at, flagged_at: None })
    }
}

fn reads(all: &[Ended]) -> Vec<Read> {
    all.iter().filter_map(Ended::read).collect()
}

/// A device to predict.
trait Device {
    fn layer(&self) -> Box<dyn Layer>;
    fn size_bytes(&self) -> u64;
}

struct Modelled<M>(M);

impl<M: Model + Clone + Send + 'static> Device for Modelled<M> {
    fn layer(&self) -> Box<dyn Layer> {
        Box::new(ModelLayer::new(self.0.clone()))
    }
    fn size_bytes(&self) -> u64 {
        self.0.size_bytes()
    }
}

/// A record is its own device.
struct Played<'a>(&'a [TraceRecord]);

fn took(r: &TraceRecord) -> Option<Span> {
    Some(r.queue.unwrap_or(Span::ZERO) + r.service?)
}

impl Device for Played<'_> {
    fn layer(&self) -> Box<dyn Layer> {
        Box::new(ModelLayer::new(Recorded::new(self.0.iter().filter_map(took))))
    }
    fn size_bytes(&self) -> u64 {
        1 << 50
    }
}

/// A run of all predictors on the same arrivals.
struct Run<'a> {
    device: &'a dyn Device,
    records: &'a [TraceRecord],
    depth: u32,
    discipline: Discipline,
    profile: Option<&'a Profile>,
    seed: u64,
}

impl Run<'_> {
    fn with(&self, kind: SchedulerKind, deadline: Option<Span>) -> Result<Vec<Ended>, LabError> {
        let options = SchedulerOptions { depth: self.depth, discipline: self.discipline, ..Default::default() };
        let unknown = || DiskModel::unknown(self.device.size_bytes());
        let costs = self.profile.and_then(Profile::disk_model).unwrap_or_else(unknown);
        let layers = vec![kind.layer(&options, costs), self.device.layer()];
        let config = PoolConfig {
            late: Late::Flag,
            failover_hop: Span::ZERO,
            inflight_max: IN_FLIGHT_MAX,
            seed: self.seed,
            ..PoolConfig::default()
        };
        let mut pool = Pool::alone(layers, &config)?;
        let mut all = Vec::new();
        let mut watch = |now: Time, c: &Completion| {
            let Completion { io, .. } = c;
            let (arrived_at, expected_at) = (io.arrived_at, io.expected_at);
            all.push(Ended { op: io.op, len: io.len, arrived_at, expected_at, done_at: now });
        };
        let limits = Limits { deadline, ..Limits::default() };
        let mut source = Held::new(self.records.to_vec(), Tables::new());
        open_loop_watched(&mut pool, &mut source, &limits, &mut |_, _| {}, &mut watch)?;
        all.sort_by_key(|r| r.arrived_at);
        Ok(all)
    }

    /// Missed and needless, in percent, and missed with hindsight's limit, of a network.
    fn net(&self, all: &[Ended], kind: Features, deadline: Span, middle: Time) -> [Option<f64>; 3] {
        let examples = examples(all, kind, deadline.as_nanos());
        let half = examples.partition_point(|e| e.arrived_at < middle);
        let (train, judged) = examples.split_at(half);
        let Some(net) = Net::trained(train, self.seed) else { return [None; 3] };
        // The limit is chosen where it was trained.
        let chance_ns = |e: &nets::Example| 1 + (f64::from(net.chance(&e.features)) * 1e9) as u64;
        let mut needless: Vec<u64> = train.iter().filter(|e| !e.late).map(chance_ns).collect();
        needless.sort_unstable_by(|a, b| b.cmp(a));
        let limit = needless.get((needless.len() as f64 * NEEDLESS / 100.0) as usize).map_or(0, |n| n + 1);
        // As a read that is forecast to take its chance, with a deadline of a second.
        let as_read = |flagged: &dyn Fn(u64) -> u64, e: &nets::Example| Read {
            arrived_at: e.arrived_at,
            expected_at: e.arrived_at + Span::from_nanos(flagged(chance_ns(e))),
            done_at: e.arrived_at + Span::from_secs(if e.late { 3 } else { 1 }),
            flagged_at: None,
        };
        let second = Span::from_secs(2);
        let verdicts: Vec<Read> =
            judged.iter().map(|e| as_read(&|n| if n >= limit { 3_000_000_000 } else { 0 }, e)).collect();
        let v = Verdict::of(&verdicts, second);
        let by_chance: Vec<Read> = judged.iter().map(|e| as_read(&|n| n, e)).collect();
        [v.missed_percent(), v.needless_percent(), missed_in_hindsight(&by_chance, second, NEEDLESS)]
    }

    fn fill(&self, values: &mut Vec<Option<f64>>) -> Result<(), LabError> {
        let middle = traces::middle(self.records);
        let free = self.with(SchedulerKind::Noop, None)?;
        let deadline = p95(&reads(&free), middle);
        let (mut own, mut wrong, mut late) = (Vec::new(), Vec::new(), 0.0);
        for kind in [SchedulerKind::Auto, SchedulerKind::BlackBox, SchedulerKind::Noop] {
            let all = reads(&self.with(kind, Some(deadline))?);
            let judged = from(&all, middle);
            let v = Verdict::of(judged, deadline);
            late = v.late_percent();
            wrong.push(v.percent(v.wrong()));
            own.push([v.missed_percent(), v.needless_percent(), missed_in_hindsight(judged, deadline, NEEDLESS)]);
        }
        for kind in [Features::LinnOs, Features::Heimdall] {
            own.push(self.net(&free, kind, deadline, middle));
        }
        let best = own.iter().filter_map(|o| o[2]).min_by(f64::total_cmp);
        let goal = best.map(|best| if best <= MISSED { MISSED } else { best + BEHIND });
        let beyond = goal.zip(own[0][0]).map(|(goal, missed)| missed - goal);
        values.extend([Some(deadline.as_millis_f64()), Some(late), beyond]);
        values.extend(own.iter().flatten());
        values.push(best);
        // In the order of the kinds above.
        values.push(Some(wrong[0] - wrong[2]));
        Ok(())
    }
}

/// The goal: percent of the late reads that may be missed where hindsight's best limit misses no more; elsewhere, points more than it.
const MISSED: f64 = 20.0;
const BEHIND: f64 = 10.0;

const PREDICTORS: [&str; 5] = ["auto", "black box", "noop", "LinnOS' features", "Heimdall's features"];

/// The rows that [`Run::fill`] fills. With a profile, auto may be no worse than noop.
fn rows_of(name: &str, profiled: bool) -> Vec<RowSpec> {
    let row = |what: &str, unit| RowSpec::new(format!("{name}: {what}"), unit);
    let mut rows = vec![
        row("deadline: p95 of the first half", "ms"),
        row("late reads, all accepted", "%"),
        row("late reads that auto misses, less the goal", "points").goal(Check::AtMost(0.0)).note(
            "the goal: 20 % of the late reads where hindsight's best limit misses no more, else 10 points more than it",
        ),
    ];
    for predictor in PREDICTORS {
        let needless = row(&format!("{predictor}, needless refusals of the others"), "%");
        rows.push(row(&format!("{predictor}, missed of the late"), "%"));
        rows.push(if predictor == "auto" { needless.goal(Check::AtMost(NEEDLESS)) } else { needless });
        rows.push(row(&format!("{predictor}, missed with hindsight's limit"), "%"));
    }
    rows.push(row("hindsight's best limit on any forecast, missed", "%"));
    let beside = row("auto's wrong answers less noop's, of all reads", "points");
    rows.push(if profiled { beside.goal(Check::AtMost(0.0)) } else { beside });
    rows
}

const ROWS_OF: usize = 3 + 3 * PREDICTORS.len() + 2;

/// A modelled device under a generated load.
#[derive(Clone, Copy)]
struct Case {
    name: &'static str,
    device: &'static str,
    depth: u32,
    /// Requests a second of a throttle, and at once.
    throttle: Option<(u64, u64)>,
    profiled: bool,
    load: Load,
}

const BURSTS: Load = Load {
    reads_per_s: 1_000,
    read_bursts: 2,
    writes_per_s: 300,
    write_kib: 64,
    in_sequence: 50,
    active: Span::from_millis(50),
    idle: Span::from_millis(150),
    flushes: false,
    span: 4 << 30,
};

const ON_FLASH: Case = Case {
    name: "flash",
    device: "sized:8G:aged:vf-sata-60g",
    depth: 32,
    throttle: None,
    profiled: false,
    load: BURSTS,
};

const ON_DISK: Case = Case {
    name: "disk",
    device: "constellation-es3-1tb",
    load: Load {
        reads_per_s: 20,
        read_bursts: 6,
        writes_per_s: 80,
        active: Span::from_millis(200),
        idle: Span::from_millis(600),
        flushes: true,
        span: 1 << 36,
        ..BURSTS
    },
    ..ON_FLASH
};

const CASES: [Case; 8] = [
    ON_FLASH,
    Case {
        name: "flash of 128 chips",
        device: "sized:8G:aged:mittos-openchannel",
        load: Load { reads_per_s: 2_000, writes_per_s: 1_000, ..BURSTS },
        ..ON_FLASH
    },
    Case {
        name: "NVMe flash",
        device: "sized:8G:aged:nvme-modern",
        load: Load { reads_per_s: 8_000, writes_per_s: 12_000, ..BURSTS },
        ..ON_FLASH
    },
    Case { name: "disk, 32 at once", ..ON_DISK },
    Case { name: "disk, one at a time", depth: 1, ..ON_DISK },
    Case { name: "disk, one at a time, profile", depth: 1, profiled: true, ..ON_DISK },
    Case {
        name: "shingled disk",
        device: "seagate-archive-8tb",
        load: Load {
            reads_per_s: 2,
            read_bursts: 30,
            writes_per_s: 60,
            write_kib: 16,
            in_sequence: 0,
            active: Span::from_millis(500),
            idle: Span::from_secs(3),
            flushes: true,
            span: 1 << 38,
        },
        ..ON_FLASH
    },
    Case {
        name: "throttled to 2,000 a second",
        device: "sized:8G:nvme-modern",
        depth: 256,
        throttle: Some((2_000, 100)),
        load: Load { reads_per_s: 800, read_bursts: 5, writes_per_s: 400, write_kib: 16, ..BURSTS },
        ..ON_FLASH
    },
];

/// Other devices, other loads.
const HELD_OUT: [Case; 6] = [
    Case {
        name: "other flash",
        device: "sized:8G:aged:nitro-mlc",
        load: Load {
            reads_per_s: 700,
            read_bursts: 3,
            writes_per_s: 150,
            write_kib: 128,
            in_sequence: 90,
            active: Span::from_millis(20),
            idle: Span::from_millis(300),
            flushes: true,
            span: 6 << 30,
        },
        ..ON_FLASH
    },
    Case {
        name: "flash, small writes without a rest",
        load: Load {
            writes_per_s: 500,
            write_kib: 8,
            in_sequence: 0,
            active: Span::from_secs(2),
            idle: Span::from_millis(20),
            ..BURSTS
        },
        ..ON_FLASH
    },
    Case {
        name: "other disk, 8 at once",
        device: "cheetah-15k5",
        depth: 8,
        load: Load {
            reads_per_s: 60,
            read_bursts: 3,
            writes_per_s: 40,
            write_kib: 256,
            in_sequence: 80,
            span: 1 << 35,
            ..ON_DISK.load
        },
        ..ON_DISK
    },
    Case {
        name: "other disk, one at a time",
        device: "hdd-160g-7200",
        depth: 1,
        load: Load {
            reads_per_s: 25,
            read_bursts: 4,
            writes_per_s: 30,
            write_kib: 16,
            flushes: false,
            span: 1 << 35,
            ..ON_DISK.load
        },
        ..ON_DISK
    },
    Case {
        name: "other disk, one at a time, profile",
        device: "hdd-160g-7200",
        depth: 1,
        profiled: true,
        load: Load {
            reads_per_s: 25,
            read_bursts: 4,
            writes_per_s: 30,
            write_kib: 16,
            flushes: false,
            span: 1 << 35,
            ..ON_DISK.load
        },
        ..ON_DISK
    },
    Case {
        name: "throttled to 500 a second",
        device: "sized:8G:vf-sata-60g",
        depth: 64,
        throttle: Some((500, 20)),
        load: Load { reads_per_s: 250, read_bursts: 4, writes_per_s: 60, write_kib: 32, ..BURSTS },
        ..ON_FLASH
    },
];

/// Added to seeds of what is held out.
const OTHER_SEEDS: u64 = 10_000;

impl Case {
    fn fill(&self, seed: u64, inputs: &Inputs, values: &mut Vec<Option<f64>>) -> Result<(), LabError> {
        let choice = DeviceChoice::named(self.device)?;
        let failed = |e: plimsoll_device::SpecError| LabError(e.to_string());
        let profile = match self.profiled {
            true => Some(profile_of(choice.disk()?, seed, 10).map_err(|e| LabError(e.to_string()))?),
            false => None,
        };
        let model: AnyModel = choice.spec.build(DeviceOptions { seed, mismatch: SPREAD }).map_err(failed)?;
        let load = Load { span: self.load.span.min(model.size_bytes()), ..self.load };
        let records = generated(&load, seed, inputs.length(24_000, 12_000, 3_000));
        let device: Box<dyn Device> = match self.throttle {
            Some((per_s, burst)) => Box::new(Modelled(Throttled::new(model, per_s, burst))),
            None => Box::new(Modelled(model)),
        };
        let discipline = if choice.spec.is_rotational() { Discipline::Sstf } else { Discipline::Fifo };
        let run = Run {
            device: device.as_ref(),
            records: &records,
            depth: self.depth,
            discipline,
            profile: profile.as_ref(),
            seed,
        };
        run.fill(values)
    }
}

/// On models: those of development, or those that are held out.
struct Models {
    is_held_out: bool,
}

impl Models {
    fn cases(&self) -> &'static [Case] {
        if self.is_held_out { &HELD_OUT } else { &CASES }
    }
}

impl Experiment for Models {
    fn id(&self) -> &'static str {
        if self.is_held_out { "AUTO-HELD-OUT" } else { "AUTO" }
    }
    fn title(&self) -> &'static str {
        match self.is_held_out {
            false => "The predictor that chooses itself, on models whose inside is hidden",
            true => "The predictor that chooses itself, on devices, loads and seeds that its development hadn't",
        }
    }
    fn source(&self) -> &'static str {
        "beyond the papers"
    }
    fn device(&self) -> &'static str {
        if self.is_held_out {
            "other flash, other disks, another throttle"
        } else {
            "flash, disks, a shingled disk, a throttle"
        }
    }
    fn rows(&self, _: &Inputs) -> Vec<RowSpec> {
        self.cases().iter().flat_map(|c| rows_of(c.name, c.profiled)).collect()
    }
    fn sample(&self, seed: u64, inputs: &Inputs) -> Result<Sample, LabError> {
        let mut values = Vec::new();
        let seed = if self.is_held_out { seed + OTHER_SEEDS } else { seed };
        for case in self.cases() {
            case.fill(seed, inputs, &mut values)?;
        }
        Ok(Sample { values, plots: vec![], notes: vec![] })
    }
}

/// Files of recorded times: file, name, and which of its devices, if it has several that must be taken apart.
const FILES: [(&str, &str, Option<u32>); 6] = [
    ("block/systor17_sample1998.csv.gz", "VDI storage, first", Some(0)),
    ("block/systor17_sample1998.csv.gz", "VDI storage, second", Some(1)),
    ("block/msr_hm_sample1000.csv.gz", "MSR hm", None),
    ("block/hadoop_node10.csv.gz", "Hadoop node", None),
    ("block/ycsb_ext4.csv.gz", "YCSB on ext4", None),
    ("block/ycsb_btrfs.csv.gz", "YCSB on btrfs", None),
];

/// On recorded times.
struct RecordedTimes;

fn files(inputs: &Inputs) -> Vec<(std::path::PathBuf, String, Option<u32>)> {
    if !inputs.traces.is_empty() {
        return traces::cases(inputs).into_iter().map(|c| (c.file, c.name, None)).collect();
    }
    let data = inputs.data.clone().unwrap_or_default();
    FILES.iter().map(|(file, name, device)| (data.join(file), name.to_string(), *device)).collect()
}

impl Experiment for RecordedTimes {
    fn id(&self) -> &'static str {
        "AUTO-RECORDED"
    }
    fn title(&self) -> &'static str {
        "The predictor that chooses itself, on recorded times of real devices"
    }
    fn source(&self) -> &'static str {
        "beyond the papers"
    }
    fn device(&self) -> &'static str {
        "none"
    }
    fn files(&self) -> Vec<&'static str> {
        FILES.iter().map(|f| f.0).collect()
    }
    fn takes_traces(&self) -> bool {
        true
    }
    fn notes(&self) -> Vec<String> {
        vec![
            "each request takes what it took, whoever predicts; requests without a recorded time are left out".into(),
            "the first three files have some 3,000 requests together: a judged half has about 20 late reads, and a predictor has \
             seen about 20 before; the drives of the others aren't named"
                .into(),
        ]
    }
    fn rows(&self, inputs: &Inputs) -> Vec<RowSpec> {
        files(inputs).iter().flat_map(|(_, name, _)| rows_of(name, false)).collect()
    }
    fn sample(&self, seed: u64, inputs: &Inputs) -> Result<Sample, LabError> {
        let mut values = Vec::new();
        for (file, name, device) in files(inputs) {
            if !file.is_file() && inputs.traces.is_empty() {
                values.extend(std::iter::repeat_n(None, ROWS_OF));
                continue;
            }
            let case = traces::Case { file, name };
            let mut records = traces::whole(&case)?;
            records.retain(|r| took(r).is_some() && device.is_none_or(|d| r.device == d));
            let records = traces::from_a_start(&records, seed);
            let run = Run {
                device: &Played(&records),
                records: &records,
                depth: u32::MAX,
                discipline: Discipline::Fifo,
                profile: None,
                seed,
            };
            run.fill(&mut values)?;
        }
        Ok(Sample { values, plots: vec![], notes: vec![] })
    }
}

/// All.
pub fn all() -> Vec<Box<dyn Experiment>> {
    vec![Box::new(Models { is_held_out: false }), Box::new(Models { is_held_out: true }), Box::new(RecordedTimes)]
}
