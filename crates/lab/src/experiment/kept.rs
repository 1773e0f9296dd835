//! KEPT, KEPT-HELD-OUT: accepted means kept. Reads with a deadline on modelled disks at loads of 50 to 300 % of what the disk can do.
//! KEPT-HELD-OUT has drives, deadlines, loads and seeds that KEPT hasn't: nobody may change the admission after its figures.
//! KEPT-START judges the first reads of pools that are fresh and have no profile.

use crate::experiment::even::Even;
use crate::experiment::{Check, Experiment, Inputs, LabError, RowSpec, Sample};
use plimsoll_base::{Completion, Op, Outcome, Rng, Span, Time};
use plimsoll_device::{AnyModel, Disk, DiskOptions, Model, ModelLayer, Request, model};
use plimsoll_pool::{Costs, ModelPlan};
use plimsoll_profile::{costs_of, profile_of};
use plimsoll_replay::pool::composed;
use plimsoll_replay::{DeviceChoice, Limits, Pool, PoolConfig, open_loop_watched};
use plimsoll_sched::admission::AdmissionConfig;
use plimsoll_sched::room::RoomConfig;
use plimsoll_sched::{Late, SchedulerKind};
use plimsoll_trace::record::{Op as TraceOp, Tables, TraceRecord};
use plimsoll_trace::stream::Held;

/// See the module's documentation.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kept {
    /// Pools that have served for a while.
    Settled,
    /// The same, where nothing of what is judged was developed with.
    HeldOut,
    /// Fresh pools.
    Start,
}

const LOADS: [u64; 4] = [50, 100, 200, 300];
const OTHER_LOADS: [u64; 3] = [70, 130, 250];
/// Added to seeds of what is held out.
const OTHER_SEEDS: u64 = 10_000;
/// Beside all that is compared with it.
const NEEDED: &str = "needed: by one that knows the true times, first come, first served, one at a time; a pool that reorders may need less";
/// A room that misses all that the goal allows. Its refusals beyond need have another cause than the default's aim of 0.5 %.
const ALL_ALLOWED: RoomConfig = RoomConfig { miss_permyriad: 100 };
const ALLOWED: &str = "not a node's default: shows the part of the refusals that the default's aim of 0.5 % costs";
/// First reads of a fresh pool that are judged, and fresh pools of a sample.
const FIRST_READS: u64 = 400;
const STARTS: u64 = 8;

/// A pool and the reads that it gets.
struct Case {
    name: &'static str,
    device: &'static str,
    sched: SchedulerKind,
    depth: u32,
    profiled: bool,
    /// Of the volume, in bytes.
    span: u64,
    /// Writes of 16 KiB without a promise, of a hundred requests.
    writes: u64,
    /// On a drive whose times follow from distances alone.
    even: bool,
    deadline: Span,
}

const fn case(name: &'static str, sched: SchedulerKind, depth: u32, profiled: bool) -> Case {
    let deadline = Span::from_millis(20);
    Case {
        name,
        device: "constellation-es3-1tb",
        sched,
        depth,
        profiled,
        span: 1 << 30,
        writes: 0,
        even: false,
        deadline,
    }
}

const CASES: [Case; 9] = [
    case("noop, depth 1", SchedulerKind::Noop, 1, false),
    case("noop, depth 1, profile", SchedulerKind::Noop, 1, true),
    Case { even: true, ..case("noop, depth 1, profile, a drive without chance", SchedulerKind::Noop, 1, true) },
    case("noop, depth 4", SchedulerKind::Noop, 4, false),
    case("cfq, depth 1, profile", SchedulerKind::Cfq, 1, true),
    case("cfq, depth 4, profile", SchedulerKind::Cfq, 4, true),
    case("deadline, depth 4", SchedulerKind::Deadline, 4, false),
    Case { span: 1 << 39, ..case("noop, depth 1, whole disk", SchedulerKind::Noop, 1, false) },
    Case { writes: 30, ..case("noop, depth 1, 30 % writes", SchedulerKind::Noop, 1, false) },
];

const HELD_OUT: [Case; 4] = [
    Case {
        device: "cheetah-15k5",
        deadline: Span::from_millis(12),
        ..case("cheetah-15k5, 12 ms, noop, depth 2", SchedulerKind::Noop, 2, false)
    },
    Case {
        device: "hdd-160g-7200",
        deadline: Span::from_millis(50),
        span: 1 << 33,
        ..case("hdd-160g-7200, 50 ms, cfq, depth 2, profile", SchedulerKind::Cfq, 2, true)
    },
    Case {
        device: "hdd-160g-7200",
        deadline: Span::from_millis(30),
        writes: 15,
        ..case("hdd-160g-7200, 30 ms, deadline, depth 2, 15 % writes", SchedulerKind::Deadline, 2, false)
    },
    Case {
        device: "cheetah-15k5",
        deadline: Span::from_millis(25),
        span: 1 << 36,
        ..case("cheetah-15k5, 25 ms, noop, depth 8, half the disk", SchedulerKind::Noop, 8, false)
    },
];

const STARTING: [Case; 8] = [
    case("noop, depth 1", SchedulerKind::Noop, 1, false),
    case("noop, depth 4", SchedulerKind::Noop, 4, false),
    case("deadline, depth 4", SchedulerKind::Deadline, 4, false),
    case("cfq, depth 1", SchedulerKind::Cfq, 1, false),
    case("cfq, depth 4", SchedulerKind::Cfq, 4, false),
    case("auto, depth 1", SchedulerKind::Auto, 1, false),
    case("auto, depth 4", SchedulerKind::Auto, 4, false),
    case("auto, depth 32", SchedulerKind::Auto, 32, false),
];

impl Kept {
    fn cases(self) -> &'static [Case] {
        match self {
            Kept::Settled => &CASES,
            Kept::HeldOut => &HELD_OUT,
            Kept::Start => &STARTING,
        }
    }

    fn loads(self) -> &'static [u64] {
        if self == Kept::HeldOut { &OTHER_LOADS } else { &LOADS }
    }

    /// The rows of one case at one load, each named by `row`.
    fn rows_of(self, row: &dyn Fn(&str, &'static str) -> RowSpec) -> Vec<RowSpec> {
        let alone = [row("missed, by the forecast alone", "%"), row("refused over needed, by the forecast alone", "x")];
        let judged = [
            row("missed", "%").goal(Check::AtMost(1.0)).note("the room that a node leaves by default aims at 0.5 %"),
            row("withdrawn", "%"),
            row("refused over needed", "x").goal(Check::AtMost(1.1)).note(NEEDED),
            row("needed", "%").note(NEEDED),
        ];
        let wider = [
            row("missed, with room for 1 %", "%").note(ALLOWED),
            row("refused over needed, with room for 1 %", "x").note(ALLOWED),
        ];
        let alone = alone.into_iter().filter(|_| self != Kept::Start);
        alone.chain(judged).chain(wider).collect()
    }
}

fn arrivals(c: &Case, seed: u64, n: u64, mean: Span) -> Vec<TraceRecord> {
    let mut rng = Rng::new(seed, "arrivals");
    let mut at = Time::ZERO;
    let read = |_| {
        let uniform = (rng.below(1 << 30) + 1) as f64 / (1u64 << 30) as f64;
        at += Span::from_nanos((-uniform.ln() * mean.as_nanos() as f64) as u64);
        let offset = rng.below(c.span / 16384) * 16384;
        let (op, len) = if rng.below(100) < c.writes { (TraceOp::Write, 16384) } else { (TraceOp::Read, 4096) };
        TraceRecord::new(at, 0, op, offset, len)
    };
    (0..n).map(read).collect()
}

#[derive(Clone, Copy, Default, Debug)]
struct Tally {
    reads: u64,
    refused: u64,
    withdrawn: u64,
    missed: u64,
}

impl Tally {
    fn and(self, t: Tally) -> Tally {
        Tally {
            reads: self.reads + t.reads,
            refused: self.refused + t.refused,
            withdrawn: self.withdrawn + t.withdrawn,
            missed: self.missed + t.missed,
        }
    }

    fn missed_percent(&self) -> Option<f64> {
        Tally::percent(self.missed, self.reads - self.refused - self.withdrawn)
    }

    fn refused_over(&self, needed: &Tally) -> f64 {
        (self.refused + self.withdrawn) as f64 / needed.refused.max(1) as f64
    }

    fn percent(n: u64, of: u64) -> Option<f64> {
        (of > 0).then(|| 100.0 * n as f64 / of as f64)
    }
}

/// The drive, by itself: one of its kind, not the one that was profiled.
#[derive(Clone)]
enum Drive {
    Whole(Box<AnyModel>),
    Even(Box<Even>),
}

impl Drive {
    fn of(c: &Case, seed: u64) -> Result<Drive, LabError> {
        let spec = DeviceChoice::named(c.device)?;
        if c.even {
            let disk =
                Disk::new(spec.disk()?, DiskOptions { seed, mismatch: None }).map_err(|e| LabError(e.to_string()))?;
            let size_bytes = disk.size_bytes();
            let costs = costs_of(disk, seed, 10).ok_or_else(|| LabError("the drive has no costs".into()))?;
            return Ok(Drive::Even(Box::new(Even::new(costs, size_bytes))));
        }
        let config = PoolConfig { mismatch: 0.15, seed, ..PoolConfig::default() };
        let plan = config.plan(&spec.spec, Costs::Unknown);
        Ok(Drive::Whole(Box::new(plan.model.expect("a modelled device").before(u64::MAX)?)))
    }

    fn model(&mut self) -> &mut dyn Model {
        match self {
            Drive::Whole(m) => &mut **m,
            Drive::Even(m) => &mut **m,
        }
    }
}

fn replay(
    c: &Case,
    records: &[TraceRecord],
    seed: u64,
    from: Time,
    room: Option<RoomConfig>,
) -> Result<Tally, LabError> {
    let device = DeviceChoice::named(c.device)?;
    let config = PoolConfig {
        sched: c.sched,
        depth: c.depth,
        mismatch: 0.15,
        seed,
        late: Late::Cancel,
        ..PoolConfig::default()
    };
    let costs = if c.profiled {
        Costs::Profile(Box::new(profile_of(device.disk()?, seed, 10).map_err(|e| LabError(e.to_string()))?))
    } else {
        Costs::Unknown
    };
    let mut plan = config.plan(&device.spec, costs);
    plan.admission = Some(AdmissionConfig { room });
    let mut wiring = composed(&plan, &mut ModelPlan::before)?;
    if let Drive::Even(even) = Drive::of(c, seed)? {
        wiring = wiring.instead("model", Box::new(ModelLayer::new(*even)));
    }
    let mut pool = Pool::of_stack(wiring.stack(), Vec::new(), &config)?;
    let mut t = Tally::default();
    let mut ended = 0;
    let mut watch = |now: Time, done: &Completion| {
        if done.io.op == Op::Read && done.io.arrived_at >= from {
            ended += 1;
            t.withdrawn += u64::from(matches!(done.outcome, Outcome::Busy { .. }));
            t.missed += u64::from(done.outcome.is_done() && now > done.io.deadline);
        }
    };
    let limits = Limits { deadline: Some(c.deadline), ..Limits::default() };
    open_loop_watched(&mut pool, &mut Held::new(records.to_vec(), Tables::new()), &limits, &mut |_, _| {}, &mut watch)?;
    t.reads = records.iter().filter(|r| r.op == TraceOp::Read && r.arrived_at >= from).count() as u64;
    t.refused = t.reads - ended;
    Ok(t)
}

/// Serves `request` alone after what was accepted before, from `at` on: when it ends.
fn served(model: &mut dyn Model, at: Time, request: Request) -> Time {
    let mut done = Vec::new();
    model.advance(at, &mut done);
    done.clear();
    model.submit(at, request);
    while done.is_empty() {
        model.advance(model.next_event(), &mut done);
    }
    done[0].at
}

/// The least that must be refused by one that knows the true service times: first come, first served, one at a time.
fn needed(c: &Case, records: &[TraceRecord], seed: u64, from: Time) -> Result<Tally, LabError> {
    let mut model = Drive::of(c, seed)?;
    let mut free_at = Time::ZERO;
    let mut t = Tally::default();
    for (tag, r) in records.iter().enumerate() {
        let start = free_at.max(r.arrived_at);
        let op = if r.op == TraceOp::Read { model::Op::Read } else { model::Op::Write { fua: false } };
        let request = Request { tag: tag as u64, op, offset: r.offset, len: r.len };
        let judged = r.arrived_at >= from && r.op == TraceOp::Read;
        t.reads += u64::from(judged);
        if r.op == TraceOp::Read && start > r.arrived_at + c.deadline {
            t.refused += u64::from(judged);
            continue;
        }
        let mut tried = model.clone();
        let end = served(tried.model(), start, request);
        if r.op == TraceOp::Read && end > r.arrived_at + c.deadline {
            t.refused += u64::from(judged);
            continue;
        }
        (model, free_at) = (tried, end);
    }
    Ok(t)
}

/// The mean time of a request when the device has the next one at once.
fn mean_service(c: &Case, seed: u64) -> Result<Span, LabError> {
    let mut model = Drive::of(c, seed)?;
    let records = arrivals(c, seed, 500, Span::ZERO);
    let mut now = Time::ZERO;
    for (tag, r) in records.iter().enumerate() {
        let op = if r.op == TraceOp::Read { model::Op::Read } else { model::Op::Write { fua: false } };
        now = served(model.model(), now, Request { tag: tag as u64, op, offset: r.offset, len: r.len });
    }
    Ok(now.since(Time::ZERO) / records.len() as u64)
}

/// The values of a case of KEPT-START: each load on fresh pools with drives of their own.
fn starts(c: &Case, seed: u64, values: &mut Vec<Option<f64>>) -> Result<(), LabError> {
    let seeds = || (0..STARTS).map(|n| seed * STARTS + n);
    let means = seeds().map(|seed| mean_service(c, seed)).collect::<Result<Vec<Span>, LabError>>()?;
    for load in Kept::Start.loads() {
        let (mut all, mut wider, mut least) = (Tally::default(), Tally::default(), Tally::default());
        for (seed, mean) in seeds().zip(&means) {
            let records = arrivals(c, seed, FIRST_READS, *mean * 100 / *load);
            least = least.and(needed(c, &records, seed, Time::ZERO)?);
            all = all.and(replay(c, &records, seed, Time::ZERO, Some(RoomConfig::DEFAULT))?);
            wider = wider.and(replay(c, &records, seed, Time::ZERO, Some(ALL_ALLOWED))?);
        }
        values.extend([
            all.missed_percent(),
            Tally::percent(all.withdrawn, all.reads),
            Some(all.refused_over(&least)),
            Tally::percent(least.refused, least.reads),
            wider.missed_percent(),
            Some(wider.refused_over(&least)),
        ]);
    }
    Ok(())
}

impl Experiment for Kept {
    fn id(&self) -> &'static str {
        match self {
            Kept::Settled => "KEPT",
            Kept::HeldOut => "KEPT-HELD-OUT",
            Kept::Start => "KEPT-START",
        }
    }
    fn title(&self) -> &'static str {
        match self {
            Kept::Settled => "Accepted means kept: misses of accepted reads, refusals against the least that is needed",
            Kept::HeldOut => "Accepted means kept, on drives, deadlines, loads and seeds that its development hadn't",
            Kept::Start => "Accepted means kept, by a fresh pool without a profile: its first 400 reads",
        }
    }
    fn source(&self) -> &'static str {
        "beyond the papers"
    }
    fn device(&self) -> &'static str {
        if *self == Kept::HeldOut { "cheetah-15k5, hdd-160g-7200" } else { "constellation-es3-1tb" }
    }
    fn rows(&self, _: &Inputs) -> Vec<RowSpec> {
        let mut rows = Vec::new();
        for c in self.cases() {
            for load in self.loads() {
                rows.extend(
                    self.rows_of(&|what, unit| RowSpec::new(format!("{}, load {load} %: {what}", c.name), unit)),
                );
            }
        }
        rows
    }
    fn sample(&self, seed: u64, inputs: &Inputs) -> Result<Sample, LabError> {
        let n = if inputs.quick { 4_000 } else { 20_000 };
        let mut values = Vec::new();
        let seed = if *self == Kept::HeldOut { seed + OTHER_SEEDS } else { seed };
        for c in self.cases() {
            if *self == Kept::Start {
                starts(c, seed, &mut values)?;
                continue;
            }
            let mean = mean_service(c, seed)?;
            for load in self.loads() {
                let records = arrivals(c, seed, n, mean * 100 / *load);
                let from = records[records.len() / 4].arrived_at;
                let needed = needed(c, &records, seed, from)?;
                let with = |room| replay(c, &records, seed, from, room);
                let (alone, t, wider) = (with(None)?, with(Some(RoomConfig::DEFAULT))?, with(Some(ALL_ALLOWED))?);
                values.extend([
                    alone.missed_percent(),
                    Some(alone.refused_over(&needed)),
                    t.missed_percent(),
                    Tally::percent(t.withdrawn, t.reads),
                    Some(t.refused_over(&needed)),
                    Tally::percent(needed.refused, needed.reads),
                    wider.missed_percent(),
                    Some(wider.refused_over(&needed)),
                ]);
            }
        }
        Ok(Sample { values, plots: vec![], notes: vec![] })
    }
}
