//! QW-E1 to QW-E8: how many cores an objective takes, and who has the rest (QWin §2.2, §5).
//!
//! One node, 24 cores, one modelled flash drive; Table 1's loads as closed loops. The paper's node is a Ceph OSD, eight of which
//! share the load; ours has all of it alone, so absolute bandwidths differ.

mod compare;
mod host;
mod policies;
mod rules;
mod step;

use crate::experiment::{Experiment, LabError};
use plimsoll_base::{Class, LatencyHistogram, Objective, Span, TenantId, Time};
use plimsoll_cores::Allotment;
use plimsoll_cores::config::PolicyConfig;
use plimsoll_cores::queue::CoreChange;
use plimsoll_cores::{Cores, CoresConfig, CoresStatus};
use plimsoll_pool::{Costs, ModelPlan, PoolPlan};
use plimsoll_replay::pool::composed;
use plimsoll_replay::workload::filebench::oltp::{Oltp, OltpConfig};
use plimsoll_replay::workload::filebench::{Filebench, FilebenchConfig, Personality};
use plimsoll_replay::workload::fio::{Fio, FioJob, Pattern};
use plimsoll_replay::workload::random::Sizes;
use plimsoll_replay::workload::together::Together;
use plimsoll_replay::workload::{BadWorkload, ClosedLoop};
use plimsoll_replay::{DeviceChoice, Limits, Pool, PoolConfig, closed_loop_watched};
use plimsoll_stack::{OwnTerms, Terms};

/// All of them.
pub fn all() -> Vec<Box<dyn Experiment>> {
    vec![
        Box::new(rules::ShenangoIntervals),
        Box::new(rules::CakeOverTime),
        Box::new(compare::FioGroup),
        Box::new(compare::WebserverGroup),
        Box::new(compare::OltpGroup),
        Box::new(compare::FullFioGroup),
        Box::new(compare::FullWebserverGroup),
        Box::new(compare::FullOltpGroup),
        Box::new(compare::TightFioGroup),
        Box::new(compare::TightWebserverGroup),
        Box::new(compare::TightOltpGroup),
        Box::new(compare::TightFio30),
        Box::new(compare::TightFio60),
        Box::new(compare::TightFio90),
        Box::new(compare::Diverse),
        Box::new(policies::CorePolicies),
        Box::new(step::Steps),
    ]
}

/// Other data on the drive beside the tenants'.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Drive {
    name: &'static str,
    /// Part of it that the tenants' data take, %.
    used_percent: u64,
}

/// As in the paper's testbed: six images of 30 GB over eight drives of 1 TB are 2 % of them, or 7 % with three replicas. There is so
/// much room that nothing is collected while an experiment runs.
const ROOMY: Drive = Drive { name: "used:8:sized:16G:nvme-modern", used_percent: 8 };
/// Filled once, with 7 % to spare: what is written has to be collected after a few seconds.
const FULL: Drive = Drive { name: "sized:16G:nvme-modern", used_percent: 100 };
/// Between the two.
const FILL_30: Drive = Drive { name: "used:30:sized:16G:nvme-modern", used_percent: 30 };
const FILL_60: Drive = Drive { name: "used:60:sized:16G:nvme-modern", used_percent: 60 };
const FILL_90: Drive = Drive { name: "used:90:sized:16G:nvme-modern", used_percent: 90 };
/// A dual 12-core processor (§5).
const CORES: u32 = 24;

/// A load of Table 1. The read ratios of B, D, F, G and H can't be recovered from the paper's text (QW-A7).
#[derive(Clone, Copy, PartialEq, Debug)]
enum Load {
    /// fio, 4 KiB at random, depth 16, 8 jobs, with this percent of reads: A to D.
    Small(u64),
    /// The same with depth 32: P.
    Deep(u64),
    /// fio, 64 KiB in order, depth 16, 2 jobs, with this percent of reads: E to H.
    Large(u64),
    /// filebench's webserver: K.
    Webserver,
    /// filebench's OLTP: J.
    Oltp,
}

const A: Load = Load::Small(100);
const B: Load = Load::Small(95);
const C: Load = Load::Small(90);
const D: Load = Load::Small(85);
const E: Load = Load::Large(100);
const F: Load = Load::Large(95);
const G: Load = Load::Large(90);
const H: Load = Load::Large(85);
const J: Load = Load::Oltp;
const K: Load = Load::Webserver;
const P: Load = Load::Deep(90);

impl Drive {
    fn note(self) -> String {
        match self {
            ROOMY => "the tenants' data are 8 % of the drive, the rest was never written: as in the paper's testbed (180 GB of images over eight \
                      drives of 1 TB), nothing is collected while it runs"
                .into(),
            FULL => "the tenants' data are all of the drive, written once, with 7 % to spare: after some seconds the drive collects garbage".into(),
            Drive { used_percent, .. } => {
                format!("the tenants' data are {used_percent} % of the drive, written once; the rest was never written")
            }
        }
    }
}

/// Returns facts that a reader must know about all of these.
fn common_notes(drive: Drive) -> Vec<String> {
    vec![
        drive.note(),
        "one node with 24 cores of depth 1 over one modelled NVMe drive (16 GiB), ±15 % from its profile by the seed; the \
         paper spreads the same clients over eight Ceph OSDs, so bandwidths can't be compared, only who meets what and by how much"
            .into(),
        "a request takes its core for 10 us and 2 us a KiB of computing (assumed: checksums and copies; the paper's OSD software takes \
         more) and then for as long as the drive takes"
            .into(),
        "read ratios assumed where the paper's can't be recovered (QW-A7): B 95, C 90, D 85, F 95, G 90, H 85 %".into(),
    ]
}

impl Load {
    fn build(self, start: u64, bytes: u64, seed: u64) -> Result<Box<dyn ClosedLoop>, BadWorkload> {
        let fio = |pattern, read_percent, bytes_each, depth, jobs| {
            let stride = bytes / u64::from(jobs);
            let sizes = Sizes::fixed(bytes_each)?;
            let job = FioJob { pattern, read_percent, sizes, start, bytes, stride, depth, jobs, ..FioJob::new(bytes) };
            Ok::<Box<dyn ClosedLoop>, BadWorkload>(Box::new(Fio::new(&job, seed)?))
        };
        match self {
            Load::Small(reads) => fio(Pattern::Uniform, reads, 4 << 10, 16, 8),
            Load::Deep(reads) => fio(Pattern::Uniform, reads, 4 << 10, 32, 8),
            Load::Large(reads) => fio(Pattern::Sequential, reads, 64 << 10, 16, 2),
            Load::Webserver => {
                Ok(Box::new(Filebench::new(&FilebenchConfig::new(Personality::Webserver, start, bytes), seed)?))
            }
            Load::Oltp => Ok(Box::new(Oltp::new(&OltpConfig::new(start, bytes), seed)?)),
        }
    }

    /// Requests that it may have outstanding at once, for terms.
    fn in_flight(self) -> u32 {
        match self {
            Load::Small(_) => 128,
            Load::Deep(_) => 256,
            Load::Large(_) => 32,
            Load::Webserver => 100,
            Load::Oltp => 200,
        }
    }
}

/// `p` of 100 within `ms` milliseconds.
fn objective(percentile_bp: u16, ms: f64) -> Objective {
    Objective { percentile_bp, bound: Span::from_millis_f64(ms) }
}

/// A tenant and its load; without an objective it's best effort.
#[derive(Clone, Copy, Debug)]
struct Client {
    load: Load,
    objective: Option<Objective>,
    /// For policies that go by fixed numbers.
    allotment: Allotment,
}

impl Client {
    fn critical(load: Load, objective: Objective) -> Client {
        Client { load, objective: Some(objective), allotment: Allotment::NONE }
    }
    fn best_effort(load: Load) -> Client {
        Client { load, objective: None, allotment: Allotment::NONE }
    }
    fn terms(&self) -> Terms {
        let class = match self.objective {
            Some(o) => Class::LatencyCritical { objectives: vec![o], weight: Class::CRITICAL_WEIGHT },
            None => Class::BestEffort { weight: 100 },
        };
        Terms { own: OwnTerms::of(&self.allotment), ..Terms::of(class, self.load.in_flight()) }
    }
}

/// One run: who, under which policy, for how long.
#[derive(Clone, Debug)]
struct Run<'a> {
    clients: &'a [Client],
    policy: PolicyConfig,
    cores: u32,
    drive: Drive,
    /// End of the warm-up and start of the measurement ...
    warm_up: Span,
    /// ... and ends here.
    until: Span,
    seed: u64,
}

/// Results.
struct Outcome {
    /// Response times by tenant, after the warm-up.
    response: Vec<LatencyHistogram>,
    /// MB/s by tenant, after the warm-up.
    bandwidth: Vec<f64>,
    /// Tenants' p99.9 in ms, by pieces of [`COURSE`].
    tails: Vec<Vec<f64>>,
    status: CoresStatus,
    history: Vec<CoreChange>,
}

/// Length of one point of a tail's course.
const COURSE: Span = Span::from_secs(10);

impl Run<'_> {
    fn plan(&self) -> Result<PoolPlan, LabError> {
        // Cores leave fewer requests than the scheduler lets through.
        let pool = PoolConfig { depth: 32, seed: self.seed, mismatch: 0.15, ..PoolConfig::default() };
        let cores = CoresConfig {
            policy: self.policy.clone(),
            history_max: 1 << 18,
            revoke_late: false,
            ..CoresConfig::new(self.cores)
        };
        let spec = DeviceChoice::named(self.drive.name)?.spec;
        Ok(PoolPlan { cores: Some(cores), ..pool.plan(&spec, Costs::Unknown) })
    }

    fn pool(&self) -> Result<Pool, LabError> {
        let config = PoolConfig { seed: self.seed, ..PoolConfig::default() };
        let wiring = composed(&self.plan()?, &mut ModelPlan::before)?;
        let stack = wiring.above("scheduler", "host", Box::new(host::Host::new())).stack();
        let mut pool = Pool::of_stack(stack, Vec::new(), &config)?;
        for (i, client) in self.clients.iter().enumerate() {
            pool.stack.set_tenant(Time::ZERO, TenantId(i as u16), Some(&client.terms()));
        }
        Ok(pool)
    }

    fn run(&self) -> Result<Outcome, LabError> {
        let mut pool = self.pool()?;
        let used = pool.offer().size_bytes / 100 * self.drive.used_percent;
        let each = (used / self.clients.len() as u64) >> 20 << 20;
        let build =
            |(i, c): (usize, &Client)| Ok((i as u16, c.load.build(i as u64 * each, each, self.seed * 100 + i as u64)?));
        let loads = self.clients.iter().enumerate().map(build).collect::<Result<Vec<_>, BadWorkload>>()?;
        let n = self.clients.len();
        let mut workload = Together::new(loads);
        let (from, until) = (Time::ZERO + self.warm_up, Time::ZERO + self.until);
        let mut response = vec![LatencyHistogram::new(); n];
        let mut bytes = vec![0u64; n];
        let mut course = vec![Vec::<LatencyHistogram>::new(); n];
        let limits = Limits { until, ..Limits::default() };
        closed_loop_watched(&mut pool, &mut workload, &limits, &mut |_, _| {}, &mut |now, c| {
            let t = usize::from(c.io.tenant.0);
            let took = now.since(c.io.arrived_at);
            let slot = (now.as_nanos() / COURSE.as_nanos()) as usize;
            if course[t].len() <= slot && now < until {
                course[t].resize_with(slot + 1, LatencyHistogram::new);
            }
            if let Some(h) = course[t].get_mut(slot) {
                h.record(took);
            }
            if now >= from && now < until && c.outcome.is_done() {
                response[t].record(took);
                bytes[t] += c.io.len;
            }
        })?;
        let measured = self.until.saturating_sub(self.warm_up);
        let status = pool.stack.layer::<Cores>().expect("it has one").status(until);
        // Time can't go back; by then all has ended.
        let history = pool.stack.with_layer(until + Span::from_secs(100), |c: &mut Cores, _| c.take_history());
        let tail = |h: &LatencyHistogram| h.percentile(99.9).as_millis_f64();
        Ok(Outcome {
            response,
            bandwidth: bytes.iter().map(|b| *b as f64 / 1e6 / measured.as_secs_f64()).collect(),
            tails: course.iter().map(|c| c.iter().map(tail).collect()).collect(),
            status,
            history: history.unwrap_or_default(),
        })
    }
}

impl Outcome {
    /// The tail of a tenant at its objective's percentile, in ms.
    fn tail(&self, tenant: usize, o: Objective) -> f64 {
        self.response[tenant].percentile(f64::from(o.percentile_bp) / 100.0).as_millis_f64()
    }

    /// Of each client with an objective, its tail in parts of its bound: the worst.
    fn worst(&self, clients: &[Client]) -> f64 {
        let of = |(i, c): (usize, &Client)| Some(self.tail(i, c.objective?) / c.objective?.bound.as_millis_f64());
        clients.iter().enumerate().filter_map(of).fold(0.0, f64::max)
    }

    /// True if each client meets its objective.
    fn meets(&self, clients: &[Client]) -> bool {
        self.worst(clients) <= 1.0
    }

    /// MB/s of all best-effort clients together.
    fn best_effort(&self, clients: &[Client]) -> f64 {
        clients.iter().zip(&self.bandwidth).filter(|(c, _)| c.objective.is_none()).map(|(_, b)| b).sum()
    }
}
