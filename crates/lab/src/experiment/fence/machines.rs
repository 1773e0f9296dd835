//! Virtual machines on a storage system, alone and together.

use crate::experiment::fence::system::System;
use crate::experiment::{Inputs, LabError};
use plimsoll_base::{LatencyHistogram, Op, Span, Time};
use plimsoll_cache::Cache;
use plimsoll_fence::plan::deviation_percent;
use plimsoll_fence::status::BatchCounters;
use plimsoll_fence::{Fence, FenceStatus};
use plimsoll_replay::workload::filebench::{Filebench, FilebenchConfig, Personality};
use plimsoll_replay::workload::together::Together;
use plimsoll_replay::workload::{BadWorkload, ClosedLoop};
use plimsoll_replay::{Limits, Pool, closed_loop, closed_loop_watched};

/// The paper's three.
pub const ALL: [Personality; 3] = [Personality::Fileserver, Personality::Varmail, Personality::Webserver];

pub fn name(p: Personality) -> &'static str {
    match p {
        Personality::Fileserver => "Fileserver",
        Personality::Varmail => "Mailserver",
        Personality::Webserver => "Webserver",
    }
}

/// Threads of a machine that saturates.
const MANY: u32 = 16;
/// Share of saturation that a thread makes.
const THREAD_PERCENT: u64 = 8;

/// Requests for each operation that the rate's cap counts: an fsync is two.
fn requests_an_operation(p: Personality) -> f64 {
    if p == Personality::Varmail { 1.25 } else { 1.0 }
}

/// Returns the cache of a machine at which about `hit_percent` of its reads hit, found once by trial.
pub fn cache_bytes(p: Personality, hit_percent: u32) -> u64 {
    let mib = match (p, hit_percent) {
        (Personality::Fileserver, 50) => 28,
        (Personality::Fileserver, 75) => 42,
        (Personality::Fileserver, _) => 96,
        (Personality::Varmail, 50) => 30,
        (Personality::Varmail, 75) => 46,
        (Personality::Varmail, _) => 96,
        (Personality::Webserver, 50) => 24,
        (Personality::Webserver, 75) => 36,
        (Personality::Webserver, _) => 96,
    };
    mib << 20
}

/// Phases of a run. Each machine warms up by itself, at full speed, so that its cache doesn't depend on later neighbours. Then
/// all of them settle, and are measured.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    pub warm_up: Span,
    pub settle: Span,
    pub measured: Span,
}

impl Times {
    pub fn of(inputs: &Inputs) -> Times {
        let (warm_up, settle, measured) = inputs.length((90, 30, 240), (30, 10, 60), (6, 2, 12));
        let secs = Span::from_secs;
        Times { warm_up: secs(warm_up), settle: secs(settle), measured: secs(measured) }
    }

    /// The same, begun by a part of a slot later: who is alone meets the same requests in other parts of its rotation. No neighbour
    /// causes the difference.
    pub fn later(self) -> Times {
        Times { warm_up: self.warm_up + Span::from_millis(7), ..self }
    }
}

/// Load of a machine.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Machine {
    pub personality: Personality,
    pub threads: u32,
    /// Operations a second; 0: no limit.
    pub rate: u64,
}

/// Results of a machine.
#[derive(Clone)]
pub struct Got {
    pub response: LatencyHistogram,
    /// Those that read or write a file's data: not inodes, not flushes. An access of a file is one request, up to 1 MiB.
    pub files: LatencyHistogram,
    /// Bytes of the data of files.
    pub file_bytes: u64,
    /// Requests a second.
    pub per_second: f64,
}

/// Results of all machines.
pub struct Run {
    /// By machine; of one that wasn't there, nothing.
    pub got: Vec<Option<Got>>,
    /// Of blocks read, those in the cache; 0 without one.
    pub hit_percent: f64,
    /// As it was when measuring began, and when it ended.
    pub fence: Option<(FenceStatus, FenceStatus)>,
    pub measured: Span,
}

impl Run {
    /// Of the time of these machines' slots, what their batches used, %.
    pub fn used_percent(&self, machines: std::ops::Range<usize>) -> f64 {
        let Some((before, after)) = &self.fence else { return f64::NAN };
        let held =
            |s: &FenceStatus| s.volumes[machines.clone()].iter().map(|v| v.counters.held.as_secs_f64()).sum::<f64>();
        let slots: u32 = after.volumes[machines.clone()].iter().map(|v| v.slots).sum();
        let had = self.measured.as_secs_f64() * f64::from(slots) / after.slots.len() as f64;
        100.0 * (held(after) - held(before)) / had
    }

    /// Of the batches on a device while it was measured, those that were predicted well enough, %; `None` if there were none.
    pub fn within_percent(&self, device: usize) -> Option<f64> {
        let (before, after) = self.fence.as_ref()?;
        let since = |f: fn(&BatchCounters) -> u64| f(&after.devices[device]) - f(&before.devices[device]);
        (since(|b| b.batches) > 0).then(|| 100.0 * since(|b| b.within) as f64 / since(|b| b.batches) as f64)
    }
}

fn filebench(system: &System, number: u16, m: Machine, warm_at: Time) -> FilebenchConfig {
    let (_, bytes) = system.part(number);
    let mut config = FilebenchConfig::new(m.personality, 0, bytes);
    config.files = if m.personality == Personality::Fileserver { 400 } else { 2000 };
    (config.threads, config.ops_per_second) = (m.threads, m.rate);
    (config.capped_from, config.at_random) = (warm_at, true);
    config
}

fn load(system: &System, number: u16, m: Machine, warm_at: Time) -> Result<Box<dyn ClosedLoop>, BadWorkload> {
    let config = filebench(system, number, m, warm_at);
    Ok(Box::new(Filebench::new(&config, system.seed * 100 + u64::from(number))?))
}

/// Runs these machines; `None` is one that is switched off.
pub fn run(system: &System, machines: &[Option<Machine>], times: Times) -> Result<Run, LabError> {
    let mut pool = system.pool()?;
    let mut loads = Vec::new();
    // Who isn't there has its time, too, in which nothing happens: alone and beside others a machine has the same history.
    let window = |n: usize| Time::ZERO + times.warm_up * n as u64;
    let warm_at = window(machines.len());
    for (i, m) in (0..).zip(machines) {
        if let Some(m) = m {
            loads.push((i, load(system, i, *m, warm_at)?));
        }
    }
    let mut workload = Together::new(loads);
    let from = warm_at + times.settle;
    let until = from + times.measured;
    let mut response = vec![LatencyHistogram::new(); machines.len()];
    let mut files = vec![(LatencyHistogram::new(), 0); machines.len()];
    let inodes: Vec<u64> =
        (0..).zip(machines).map(|(i, m)| m.map_or(0, |m| filebench(system, i, m, warm_at).inode_bytes())).collect();
    let hits = |pool: &Pool| {
        let counters = pool.stack.layer::<Cache>().map(|c| c.status().counters);
        counters.map_or((0, 0), |c| (c.extents_hit, c.extents_read))
    };
    let limits = |until| Limits { until, volumes: true, ..Limits::default() };
    for n in (0..machines.len()).filter(|n| machines[*n].is_some()) {
        workload.only(Some(n as u16), window(n));
        closed_loop(&mut pool, &mut workload, &limits(window(n + 1)), &mut |_, _| {})?;
    }
    workload.only(None, warm_at);
    closed_loop(&mut pool, &mut workload, &limits(from), &mut |_, _| {})?;
    let fence = |pool: &Pool, at| pool.stack.layer::<Fence>().map(|f| f.status(at));
    let (before, fence_before) = (hits(&pool), fence(&pool, from));
    closed_loop_watched(&mut pool, &mut workload, &limits(until), &mut |_, _| {}, &mut |now, c| {
        if now < until && c.outcome.is_done() {
            let (machine, took) = (usize::from(c.io.tenant.0), now.since(c.io.arrived_at));
            response[machine].record(took);
            if matches!(c.io.op, Op::Read | Op::Write) && c.io.offset >= inodes[machine] {
                files[machine].0.record(took);
                files[machine].1 += c.io.len;
            }
        }
    })?;
    let after = hits(&pool);
    let hit_percent = 100.0 * (after.0 - before.0) as f64 / (after.1 - before.1).max(1) as f64;
    let seconds = times.measured.as_secs_f64();
    let got =
        |((response, (files, file_bytes)), m): ((LatencyHistogram, (LatencyHistogram, u64)), &Option<Machine>)| {
            m.map(|_| Got { per_second: response.count() as f64 / seconds, response, files, file_bytes })
        };
    Ok(Run {
        got: response.into_iter().zip(files).zip(machines).map(got).collect(),
        hit_percent,
        fence: fence_before.zip(fence(&pool, until)),
        measured: times.measured,
    })
}

/// Operations a second that saturate the system: four machines as busy as can be.
pub fn saturation(system: &System, p: Personality, times: Times) -> Result<f64, LabError> {
    let all = vec![Some(Machine { personality: p, threads: MANY, rate: 0 }); usize::from(system.machines)];
    // What the caches' free space takes at first isn't kept up.
    let times = Times { settle: times.measured, measured: times.measured.scale(1, 2), ..times };
    let run = run(system, &all, times)?;
    let requests: f64 = run.got.iter().flatten().map(|g| g.per_second).sum();
    Ok(requests / requests_an_operation(p))
}

/// Returns a machine that makes `percent` of saturation.
pub fn machine(p: Personality, saturation: f64, percent: u64) -> Machine {
    let threads = percent.div_ceil(THREAD_PERCENT).max(1) as u32;
    Machine { personality: p, threads, rate: ((saturation * percent as f64 / 100.0).round() as u64).max(1) }
}

/// Deviation of a machine beside others from itself alone, in percent of alone.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Deviation {
    pub throughput: f64,
    pub response: f64,
    /// The response time's with its sign: above zero it was slower beside others.
    pub change: f64,
    pub p99: f64,
    /// Mean response times, ms.
    pub alone_ms: f64,
    pub shared_ms: f64,
    /// The same per access of a file's data, as the paper has its raw figures (§4.6.1, §4.6.2).
    pub file_alone_ms: f64,
    pub file_shared_ms: f64,
    /// Mean bytes of such an access, alone.
    pub file_bytes: f64,
}

impl Deviation {
    pub fn of(alone: &Got, shared: &Got) -> Deviation {
        let mean = |g: &Got| g.response.mean().as_millis_f64();
        let p99 = |g: &Got| g.response.percentile(99.0).as_millis_f64();
        Deviation {
            throughput: deviation_percent(alone.per_second, shared.per_second),
            response: deviation_percent(mean(alone), mean(shared)),
            change: 100.0 * (mean(shared) - mean(alone)) / mean(alone),
            p99: deviation_percent(p99(alone), p99(shared)),
            alone_ms: mean(alone),
            shared_ms: mean(shared),
            file_alone_ms: alone.files.mean().as_millis_f64(),
            file_shared_ms: shared.files.mean().as_millis_f64(),
            file_bytes: alone.file_bytes as f64 / alone.files.count().max(1) as f64,
        }
    }

    /// The mean of several, as §4.3.1 has it of machines with the same workload.
    pub fn mean(all: &[Deviation]) -> Deviation {
        let of = |f: fn(&Deviation) -> f64| all.iter().map(f).sum::<f64>() / all.len().max(1) as f64;
        Deviation {
            throughput: of(|d| d.throughput),
            response: of(|d| d.response),
            change: of(|d| d.change),
            p99: of(|d| d.p99),
            alone_ms: of(|d| d.alone_ms),
            shared_ms: of(|d| d.shared_ms),
            file_alone_ms: of(|d| d.file_alone_ms),
            file_shared_ms: of(|d| d.file_shared_ms),
            file_bytes: of(|d| d.file_bytes),
        }
    }
}

/// Result of a comparison.
pub struct Compared {
    /// Of the first machine.
    pub low: Deviation,
    /// Of each of the others against itself alone; empty if only the first was asked for.
    pub others: Vec<Deviation>,
    /// Beside others.
    pub shared: Run,
    /// Operations a second.
    pub saturation: f64,
}

/// Runs the machines together, and the first (or each) alone.
pub fn compare(
    system: &System,
    p: Personality,
    percents: &[u64],
    each: bool,
    times: Times,
) -> Result<Compared, LabError> {
    let saturation = saturation(system, p, times)?;
    let machines: Vec<Option<Machine>> = percents.iter().map(|n| Some(machine(p, saturation, *n))).collect();
    let shared = run(system, &machines, times)?;
    let alone = |i: usize| {
        let only: Vec<Option<Machine>> = machines.iter().enumerate().map(|(j, m)| m.filter(|_| i == j)).collect();
        let run = run(system, &only, times)?;
        let (alone, beside) = (run.got[i].as_ref(), shared.got[i].as_ref());
        Ok::<Deviation, LabError>(Deviation::of(alone.expect("it ran"), beside.expect("it ran")))
    };
    let low = alone(0)?;
    let others = match each {
        false => Vec::new(),
        true => (1..machines.len()).map(alone).collect::<Result<_, _>>()?,
    };
    Ok(Compared { low, others, shared, saturation })
}

/// Four machines at 8 and three times 24 % (§4.3.3).
pub const HETEROGENEOUS: [u64; 4] = [8, 24, 24, 24];
