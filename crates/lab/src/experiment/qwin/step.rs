//! QW-STEP (ours): how soon the number of cores follows a burst, or a device that becomes slow, compared with who knew it.
//!
//! Open loop, and a device whose service times are exact, so that a clairvoyant minimum can be worked out.

use crate::experiment::qwin::objective;
use crate::experiment::{Check, Experiment, Inputs, LabError, RowSpec, Sample};
use plimsoll_base::{Class, Completion, Confidence, Io, IoHead, Outcome as Ended, Rng, Span, TenantId, Time};
use plimsoll_cores::config::PolicyConfig;
use plimsoll_cores::queue::CoreChange;
use plimsoll_cores::{Cores, CoresConfig, QwinConfig};
use plimsoll_pool::{ModelPlan, PoolPlan};
use plimsoll_replay::pool::composed;
use plimsoll_replay::{Limits, Pool, PoolConfig, open_loop_watched};
use plimsoll_stack::{Actions, Forecast, Layer, Offer, Ports, Terms};
use plimsoll_trace::error::TraceError;
use plimsoll_trace::record::{Op, Tables, TraceRecord};
use plimsoll_trace::stream::RecordStream;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

/// See the module's documentation.
pub struct Steps;

const PERIOD: Span = Span::from_millis(200);
/// The changed part is the last quarter of each period.
const CALM: Span = Span::from_millis(150);
/// Between two arrivals in the calm part, on average.
const GAP: Span = Span::from_micros(50);
const TAKES: Span = Span::from_micros(100);
const BOUND_MS: f64 = 3.0;

/// Changes: the factor of the arrival rate, and the factor of the requests' service times.
const CASES: [(&str, u64, u64); 2] = [("burst of 4x", 4, 1), ("service 5x as slow", 1, 5)];

/// Serves any number of requests at once, each in exactly the time of its beginning.
struct Exact {
    slow: u64,
    due: BinaryHeap<Reverse<(Time, u64)>>,
    ios: BTreeMap<u64, (Time, Io)>,
}

fn is_calm(at: Time) -> bool {
    at.as_nanos() % PERIOD.as_nanos() < CALM.as_nanos()
}

fn takes(at: Time, slow: u64) -> Span {
    if is_calm(at) { TAKES } else { TAKES * slow }
}

impl Layer for Exact {
    fn name(&self) -> &'static str {
        "exact"
    }
    fn serves(&self) -> bool {
        true
    }
    fn offer(&self, _below: &[Offer]) -> Offer {
        Offer { size_bytes: 1 << 40, block_bytes: 512, io_bytes_max: 1 << 26, atomic_bytes: 512, queue_max: 4096 }
    }
    fn forecast(&self, at: Time, _head: &IoHead, below: Ports<'_>) -> Forecast {
        below.serve(Span::ZERO, takes(at, self.slow), Confidence::CERTAIN)
    }
    fn submit(&mut self, now: Time, io: Io, out: &mut Actions) {
        let at = now + takes(now, self.slow);
        self.due.push(Reverse((at, io.id.0)));
        self.ios.insert(io.id.0, (now, io));
        out.wake_at(at);
    }
    fn wake(&mut self, now: Time, out: &mut Actions) {
        while let Some(Reverse((at, id))) = self.due.peek().copied() {
            if at > now {
                return out.wake_at(at);
            }
            self.due.pop();
            let (dispatched_at, io) = self.ios.remove(&id).expect("it's there");
            out.complete(Completion { io, outcome: Ended::Done, dispatched_at });
        }
    }
    fn is_idle(&self) -> bool {
        self.ios.is_empty()
    }
}

/// Exponential gaps whose mean changes with the part of the period.
struct Arrivals {
    rng: Rng,
    at: Time,
    until: Time,
    faster: u64,
    tables: Tables,
}

impl RecordStream for Arrivals {
    fn next_record(&mut self) -> Option<Result<TraceRecord, TraceError>> {
        let mean = if is_calm(self.at) { GAP } else { GAP / self.faster };
        self.at += Span::from_nanos((self.rng.exp1() * mean.as_nanos() as f64) as u64 + 1);
        (self.at < self.until).then(|| Ok(TraceRecord::new(self.at, 0, Op::Read, 0, 4096)))
    }
    fn tables(&self) -> &Tables {
        &self.tables
    }
}

struct Seen {
    late: u64,
    all: u64,
    late_windows: u64,
    windows: u64,
    core_seconds: f64,
    history: Vec<CoreChange>,
}

fn run(policy: PolicyConfig, faster: u64, slow: u64, seed: u64, until: Span) -> Result<Seen, LabError> {
    let config = CoresConfig { policy, history_max: 1 << 22, ..CoresConfig::new(24) };
    let exact = Exact { slow, due: BinaryHeap::new(), ios: BTreeMap::new() };
    let plan = PoolPlan { cores: Some(config), ..PoolPlan::new() };
    let stack = composed(&plan, &mut ModelPlan::before)?.instead("scheduler", Box::new(exact)).stack();
    let mut pool = Pool::of_stack(stack, Vec::new(), &PoolConfig::default())?;
    let o = objective(9990, BOUND_MS);
    let terms = Terms::of(Class::LatencyCritical { objectives: vec![o], weight: 100 }, 256);
    pool.stack.set_tenant(Time::ZERO, TenantId(0), Some(&terms));
    let (rng, until) = (Rng::new(seed, "arrivals"), Time::ZERO + until);
    let mut source = Arrivals { rng, at: Time::ZERO, until, faster, tables: Tables::new() };
    let (mut late, mut all) = (0, 0);
    open_loop_watched(&mut pool, &mut source, &Limits::default(), &mut |_, _| {}, &mut |now, c| {
        all += 1;
        late += u64::from(now.since(c.io.arrived_at) > o.bound);
    })?;
    let status = pool.stack.layer::<Cores>().expect("it has one").status(until);
    let history = pool.stack.with_layer(until + Span::from_secs(1), |c: &mut Cores, _| c.take_history());
    let q = &status.queues[0];
    let core_seconds = q.core_time.as_secs_f64();
    let (late_windows, windows) = (q.late_windows, q.windows);
    Ok(Seen { late, all, late_windows, windows, core_seconds, history: history.unwrap_or_default() })
}

/// Cores at each step of 50 us: the mean over the step would hide what is asked.
fn course(history: &[CoreChange], until: Span) -> Vec<i64> {
    let step = Span::from_micros(50);
    let mut changes = history.iter().peekable();
    let mut cores = 1;
    (0..until.as_nanos() / step.as_nanos())
        .map(|i| {
            let at = Time::ZERO + step * i;
            while let Some(c) = changes.next_if(|c| c.at <= at) {
                cores = i64::from(c.cores);
            }
            cores
        })
        .collect()
}

/// Of the changed parts, after the first `settle` of each: the share of time within one core of the oracle's mean there or above,
/// and how long it took on average until that was so first, ms.
fn compared(qwin: &[i64], oracle: &[i64]) -> (f64, f64) {
    let per_period = (PERIOD.as_nanos() / 50_000) as usize;
    let calm = (CALM.as_nanos() / 50_000) as usize;
    let (mut lag, mut near, mut parts, mut steps) = (0.0, 0usize, 0usize, 0usize);
    for (q, o) in qwin.chunks_exact(per_period).zip(oracle.chunks_exact(per_period)) {
        let (q, o) = (&q[calm..], &o[calm..]);
        let settled = &o[o.len() / 2..];
        let wanted = settled.iter().sum::<i64>() / settled.len() as i64;
        lag += q.iter().position(|n| n + 1 >= wanted).unwrap_or(q.len()) as f64 * 0.05;
        parts += 1;
        let half = q.len() / 2;
        near += q[half..].iter().filter(|n| (*n - wanted).abs() <= 1).count();
        steps += q.len() - half;
    }
    (100.0 * near as f64 / steps.max(1) as f64, lag / parts.max(1) as f64)
}

impl Experiment for Steps {
    fn id(&self) -> &'static str {
        "QW-STEP"
    }
    fn title(&self) -> &'static str {
        "How soon cores follow a burst and a slow device"
    }
    fn source(&self) -> &'static str {
        "no paper's figure: what QWin §3.3 claims in words"
    }
    fn device(&self) -> &'static str {
        "none: service times are exact, 100 us"
    }
    fn notes(&self) -> Vec<String> {
        vec![
            "20,000 requests/s at random (open loop), p99.9 within 3 ms, 24 cores; in the last 50 ms of every 200 ms four times as many, or \
             requests that take five times as long; the clairvoyant minimum knows when"
                .into(),
            "within one core: of the clairvoyant's mean over the second half of each changed part".into(),
        ]
    }
    fn rows(&self, _inputs: &Inputs) -> Vec<RowSpec> {
        let mut rows = Vec::new();
        for (case, ..) in CASES {
            for system in ["QWin", "clairvoyant"] {
                rows.push(RowSpec::new(format!("{case}: {system}: late requests"), "%"));
                rows.push(RowSpec::new(format!("{case}: {system}: windows with a late request"), "%"));
            }
            rows.push(RowSpec::new(format!("{case}: core time over the clairvoyant's"), "x"));
            rows.push(RowSpec::new(format!("{case}: until within one core of it or above, mean"), "ms"));
            rows.push(RowSpec::new(format!("{case}: time within one core of it, once settled"), "%"));
        }
        rows[1] = rows[1].clone().goal(Check::AtMost(0.1));
        rows
    }
    fn sample(&self, seed: u64, inputs: &Inputs) -> Result<Sample, LabError> {
        let until = Span::from_millis(inputs.length(20_000, 2_000, 400));
        let mut sample = Sample::default();
        for (_, faster, slow) in CASES {
            let periods = until.as_nanos() / PERIOD.as_nanos();
            let from = |p: u64, at: Span| Time::ZERO + PERIOD * p + at;
            let service =
                (0..periods).flat_map(|p| [(from(p, Span::ZERO), TAKES), (from(p, CALM), TAKES * slow)]).collect();
            let qwin = run(PolicyConfig::Qwin(QwinConfig::default()), faster, slow, seed, until)?;
            let oracle = run(PolicyConfig::Clairvoyant { service }, faster, slow, seed, until)?;
            for s in [&qwin, &oracle] {
                sample.values.push(Some(100.0 * s.late as f64 / s.all.max(1) as f64));
                sample.values.push((s.windows > 0).then(|| 100.0 * s.late_windows as f64 / s.windows as f64));
            }
            sample.values.push(Some(qwin.core_seconds / oracle.core_seconds));
            let (near, lag) = compared(&course(&qwin.history, until), &course(&oracle.history, until));
            sample.values.extend([Some(lag), Some(near)]);
        }
        Ok(sample)
    }
}
