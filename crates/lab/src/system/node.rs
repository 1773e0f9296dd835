//! A Plimsoll node's pool as a system to tune, in the simulator. It is set by the same orders as a live one
//! (`/v1/pools/{name}/settings`) and by a load's own deadline. State that survives a change of settings there survives it here.
//!
//! Two pools: a disk behind cores, logs, time slots and CFQ ([`NodePool::on_disk`]), and a flash cache over an array
//! ([`NodePool::cached`]). A read that is refused, or given back, for its deadline goes to another replica, which isn't
//! simulated. Its time is the hop and a fixed time of that replica ([`ELSEWHERE`]).

use crate::experiment::LabError;
use crate::nitro::EXTENT_BYTES;
use crate::nitro::machine::{self, Behind, Extents, Front, Setup};
use crate::nitro::traces::{Generator, TRACES, Tweak};
use crate::system::{record, set_each};
use plimsoll_base::CacheMode;
use plimsoll_base::{Class, Data, Io, IoHead, Objective, Op, Outcome, Rng, Span, TenantId, Time, VolumeKey};
use plimsoll_cache::CacheControl;
use plimsoll_cache::{CacheConfig, Shape as CacheShape};
use plimsoll_cores::CoresConfig;
use plimsoll_cores::CoresControl;
use plimsoll_fence::config::DeviceKind;
use plimsoll_fence::{DiskPredictor, FenceConfig};
use plimsoll_fence::{FenceControl, FenceTerms};
use plimsoll_logs::LogsControl;
use plimsoll_logs::{LogsConfig, Shape};
use plimsoll_pool::{Costs, LogsPlan, ModelPlan, PoolPlan, UNLIMITED, seen};
use plimsoll_replay::pool::{add_volume, composed};
use plimsoll_replay::workload::web::Ranks;
use plimsoll_replay::{DeviceChoice, Placer, PoolConfig};
use plimsoll_sched::SchedulerKind;
use plimsoll_sched::cfq::CfqControl;
use plimsoll_stack::sim::SimPool;
use plimsoll_stack::{Addressed, Extent, LayerState, Message, Offered, OwnTerms, Terms, VolumeTerms};
use plimsoll_trace::record::TraceRecord;
use plimsoll_tune::adapter::{Adapter, AdapterError, Run};
use plimsoll_tune::graph::{ServiceGraph, WrittenGraph};
use plimsoll_tune::space::{Parameter, Setting, Space};

/// One request of the load, at a time since the load's beginning.
#[derive(Clone, Debug)]
pub struct Request {
    /// Time.
    pub at: Span,
    /// Tenant.
    pub tenant: u16,
    /// True for a write, false for a read.
    pub is_write: bool,
    /// Offset.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
    /// Written content, where that matters: a name for each extent.
    pub content: Option<u128>,
}

/// Cost of a refused read: the hop to another replica, and a disk's mean random read there.
pub const ELSEWHERE: Span = Span::from_micros(300 + 9_000);
const DISK: &str = "hdd-160g-7200";
/// Tenants of the pool on a disk, each with a slot: the first has an objective, the other the rest.
pub const TENANTS: u16 = 2;
const OBJECTIVE: Objective = Objective { percentile_bp: 9900, bound: Span::from_millis(100) };
const CORES: u32 = 8;
/// Between two requests of the disk's load: what two slots of 20 ms can bear, in which a turn of 40 ms may serve no more than one request of
/// each. Under a load that some setting can't bear there is no distribution: reads wait ever longer, and none of a window's end in it.
const MEAN_GAP: Span = Span::from_millis(60);
/// The second tenant's volume begins here.
const BACKUPS_AT: u64 = 100_000_000_000 >> 12 << 12;
/// Divisor of Nitro's Homes; the cache is `CACHED_PERMILLE` thousandths of the scaled size.
const CACHED_SCALE: u64 = 4096;
const CACHED_PERMILLE: u64 = 10;

/// See the module's documentation.
pub struct NodePool {
    pool: SimPool,
    requests: Vec<Request>,
    /// Time of one pass over the requests.
    lap: Span,
    next: usize,
    lap_began: Time,
    deadline: Option<Span>,
    slots: u32,
    space: Space,
    number: u64,
    run: Run,
}

/// Reads and writes are different components.
pub fn graph() -> ServiceGraph {
    let text = "root = 'request'\ncomponents = ['read', 'write']\n[node]\nrequest = { sequence = ['op'] }\n\
        op = { condition = ['read', 'write'] }\n";
    let written: WrittenGraph = toml::from_str(text).expect("a constant");
    ServiceGraph::new(&written).expect("a constant")
}

fn parameter(name: &str, values: &[&str]) -> Parameter {
    let values = values.iter().map(ToString::to_string).collect();
    let moves = ["op", "read", "write"].map(String::from).to_vec();
    Parameter { name: name.into(), values, moves }
}

/// Returns the parameters of the pool on a disk; each may move everything.
pub fn disk_space() -> Space {
    let parameters = vec![
        parameter("deadline", &["none", "60ms"]),
        parameter("logged_write", &["0", "16384", "262144"]),
        parameter("slot", &["20ms", "40ms", "80ms"]),
        parameter("idle_time", &["0ms", "8ms"]),
        parameter("core_slack", &["1ms", "10ms", "40ms"]),
    ];
    Space::new(parameters).expect("distinct values")
}

/// Returns the parameters of the cached pool.
pub fn cached_space() -> Space {
    Space::new(vec![parameter("fingerprints", &["5", "25", "50", "100"])]).expect("distinct values")
}

/// A database beside a backup: the first tenant reads 8 KiB at random (a Zipf of hot pages) and writes 4 to 16 KiB, the second
/// reads on in 256 KiB. Poisson arrivals.
pub fn mixed(lasts: Span, seed: u64) -> Vec<Request> {
    let mut rng = Rng::new(seed, "node load");
    let hot = Ranks::new(50_000, 0.9);
    let (mut at, mut backup) = (Span::ZERO, 0u64);
    let mut requests = Vec::new();
    while at < lasts {
        let draw = rng.unit();
        requests.push(if draw < 0.15 {
            backup += 256 << 10;
            let offset = (backup % 20_000_000_000) >> 12 << 12;
            Request { at, tenant: 1, is_write: false, offset, len: 256 << 10, content: None }
        } else {
            let page = hot.draw(&mut rng) as u64;
            let offset = page.wrapping_mul(0x9e37_79b9_7f4a_7c15) % 6_000_000 * 8192;
            let is_write = draw < 0.5;
            let len = if is_write { 4096 << rng.below(3) } else { 8192 };
            Request { at, tenant: 0, is_write, offset, len, content: None }
        });
        at += Span::from_nanos((rng.exp1() * MEAN_GAP.as_nanos() as f64) as u64);
    }
    requests
}

/// A trace as the load, as slow as [`mixed`]: its devices are dealt out to the tenants.
///
/// # Errors
/// If it has no reads or writes.
pub fn of_trace(records: &[TraceRecord]) -> Result<Vec<Request>, LabError> {
    let size_bytes = composed(&disk_plan(1)?, &mut ModelPlan::before)?.stack().offered().size_bytes;
    let lasts = records.last().map_or(1, |r| r.arrived_at.as_nanos().max(1));
    let wanted = MEAN_GAP.as_nanos() * records.len() as u64;
    let mut placers = [0, 1].map(|tenant| Placer::new(part(tenant, size_bytes).len, 4096, 4 << 20));
    let mut one = |r: &TraceRecord| {
        let tenant = (r.device % u32::from(TENANTS)) as u16;
        let (offset, len) = placers[usize::from(tenant)].place(r.device, r.offset, r.len);
        let is_write = r.op == plimsoll_trace::Op::Write;
        Request {
            at: r.arrived_at.since(Time::ZERO).scale(wanted, lasts),
            tenant,
            is_write,
            offset,
            len,
            content: None,
        }
    };
    let kept = records.iter().filter(|r| matches!(r.op, plimsoll_trace::Op::Read | plimsoll_trace::Op::Write));
    let all: Vec<Request> = kept.map(&mut one).collect();
    if all.is_empty() { Err(LabError("the trace has no reads or writes".into())) } else { Ok(begin_mixed(all)) }
}

/// Requests of a part, and how many parts in a row must have both reads and writes.
const PART: usize = 1_000;
const PARTS: usize = 6;

/// From where reads and writes both come for long: a trace may begin with nothing but one of them for longer than a setting is measured
/// (CloudPhysics' does), and of what isn't seen there is no distribution.
fn begin_mixed(all: Vec<Request>) -> Vec<Request> {
    let is_mixed = |part: &[Request]| {
        let writes = part.iter().filter(|r| r.is_write).count();
        (part.len() / 5..=part.len() * 4 / 5).contains(&writes)
    };
    let parts: Vec<bool> = all.chunks(PART).map(is_mixed).collect();
    let at = parts.windows(PARTS).position(|w| w.iter().all(|m| *m)).unwrap_or(0) * PART;
    let first = all[at].at;
    all.into_iter().skip(at).map(|r| Request { at: r.at.saturating_sub(first), ..r }).collect()
}

/// The plan of the pool on a disk.
pub fn disk_plan(seed: u64) -> Result<PoolPlan, LabError> {
    let spec = DeviceChoice::named(DISK)?.spec;
    let pool = PoolConfig { sched: SchedulerKind::Cfq, depth: 4, mismatch: 0.15, seed, ..PoolConfig::default() };
    let plan = pool.plan(&spec, Costs::Unknown);
    let size_bytes = seen(plan.model.as_ref(), UNLIMITED)?.whole_bytes;
    let kind = DeviceKind::disk(DiskPredictor::typical(size_bytes));
    let config = LogsConfig { adaptive: false, off_below: Span::ZERO, ..LogsConfig::default() };
    Ok(PoolPlan {
        cores: Some(CoresConfig { depth: 2, ..CoresConfig::new(CORES) }),
        logs: Some(LogsPlan { shape: Shape::default(), config }),
        fence: Some(FenceConfig::new(u32::from(TENANTS), vec![kind])),
        ..plan
    })
}

/// A tenant's part of a disk of this size: the first has the databases, the other the backups.
fn part(tenant: u16, size_bytes: u64) -> Extent {
    match tenant {
        0 => Extent { device_offset: 0, len: BACKUPS_AT },
        _ => Extent { device_offset: BACKUPS_AT, len: size_bytes - BACKUPS_AT },
    }
}

fn volume(tenant: u16) -> VolumeKey {
    VolumeKey { id: u32::from(tenant) + 1, generation: 1 }
}

impl Drop for NodePool {
    fn drop(&mut self) {
        plimsoll_replay::decided::note(self.pool.stack().decisions());
    }
}

impl NodePool {
    /// Cores, logs, slots and CFQ over a modelled disk; the load repeats.
    ///
    /// # Errors
    /// If the load is empty, or a layer can't be built.
    pub fn on_disk(requests: Vec<Request>, seed: u64) -> Result<NodePool, LabError> {
        let plan = disk_plan(seed)?;
        let stack = composed(&plan, &mut ModelPlan::before)?.stack();
        let offered = stack.offered().size_bytes;
        let mut pool = SimPool::with_stack(Vec::new(), |_| stack);
        if pool.start() != LayerState::Ready {
            return Err(LabError("a layer isn't ready".into()));
        }
        for tenant in 0..TENANTS {
            let class = match tenant {
                0 => Class::LatencyCritical { objectives: vec![OBJECTIVE], weight: 100 },
                _ => Class::BestEffort { weight: 100 },
            };
            let terms = Terms::of(class, 1024);
            pool.stack().set_tenant(Time::ZERO, TenantId(tenant), Some(&terms));
            let extent = part(tenant, offered);
            add_volume(pool.stack(), Time::ZERO, volume(tenant), extent);
            let terms = VolumeTerms { size_bytes: extent.len, tenant, own: OwnTerms::of(&FenceTerms { slots: 1 }) };
            pool.stack().set_volume(Time::ZERO, volume(tenant), &terms);
        }
        NodePool::new(pool, requests, disk_space(), u32::from(TENANTS))
    }

    /// A deduplicating write-back cache over an array, under Nitro's Homes scaled down; the load repeats.
    ///
    /// # Errors
    /// If a layer can't be built.
    pub fn cached(accesses: usize, seed: u64) -> Result<NodePool, LabError> {
        let trace = &TRACES[1];
        let mut load = Generator::new(trace, Tweak::NONE, seed, CACHED_SCALE);
        let contents = load.content().to_vec();
        let config = CacheConfig::default();
        let setup = Setup {
            front: Front::Nitro(config, CacheShape::default(), CacheMode::Back),
            cache_bytes: trace.cache_bytes(CACHED_SCALE, CACHED_PERMILLE).max(32 << 20),
            behind: Behind::Plain,
            nvram_bytes: 8 << 20,
            clients: 1,
            rate: None,
            write_back: false,
            coalesces: false,
            free_writes: false,
            seed,
        };
        let mut rng = Rng::new(seed, "cached load");
        let mut at = Span::ZERO;
        let mut requests = Vec::new();
        for _ in 0..accesses {
            let a = load.next().expect("it never ends");
            let offset = load.address(a.extent);
            requests.push(Request {
                at,
                tenant: 0,
                is_write: a.write,
                offset,
                len: EXTENT_BYTES,
                content: Some(a.content),
            });
            at += Span::from_nanos((rng.exp1() * 2e6) as u64);
        }
        let pool = machine::pool(
            &setup,
            &Extents { address: &|e| load.address(e), contents: &contents, bytes: EXTENT_BYTES },
        )?;
        NodePool::new(pool, requests, cached_space(), 0)
    }

    fn new(pool: SimPool, requests: Vec<Request>, space: Space, slots: u32) -> Result<NodePool, LabError> {
        let Some(last) = requests.last() else {
            return Err(LabError("a pool without requests can't be tuned".into()));
        };
        let lap = last.at + Span::from_millis(1);
        Ok(NodePool {
            lap_began: pool.now(),
            pool,
            requests,
            lap,
            next: 0,
            deadline: None,
            slots,
            space,
            number: 0,
            run: Run::new(),
        })
    }

    /// The space that it is set in.
    pub fn space(&self) -> &Space {
        &self.space
    }

    /// Serves for `time` and returns what was recorded of the requests that ended.
    pub fn serve(&mut self, time: Span) -> Run {
        let until = self.pool.now() + time;
        loop {
            let due = (self.lap_began + self.requests[self.next].at).max(self.pool.now());
            let event = self.pool.next_event_at();
            if due.min(event) >= until {
                break;
            }
            if event <= due {
                self.pool.step();
            } else {
                self.arrive(due);
            }
            self.take_ended();
        }
        self.pool.run_until(until);
        self.take_ended();
        std::mem::take(&mut self.run)
    }

    fn arrive(&mut self, now: Time) {
        let r = self.requests[self.next].clone();
        self.next += 1;
        if self.next == self.requests.len() {
            (self.next, self.lap_began) = (0, self.lap_began + self.lap);
        }
        let op = if r.is_write { Op::Write } else { Op::Read };
        let mut head = IoHead::new(op, volume(r.tenant), TenantId(r.tenant), r.offset, r.len, now);
        if let Some(deadline) = self.deadline.filter(|_| !r.is_write) {
            head.deadline = now + deadline;
        }
        let data = match r.content {
            Some(c) if r.is_write => Data::Content(vec![c].into()),
            _ => Data::Absent,
        };
        if let Offered::Busy(_) = self.pool.offer(now, Io::new(head, data)) {
            self.ended(false, ELSEWHERE);
        }
    }

    fn take_ended(&mut self) {
        while let Some(c) = self.pool.next_done() {
            let took = self.pool.now().since(c.io.arrived_at);
            let elsewhere = if matches!(c.outcome, Outcome::Busy { .. }) { ELSEWHERE } else { Span::ZERO };
            self.ended(c.io.op == Op::Write, took + elsewhere);
        }
    }

    fn ended(&mut self, is_write: bool, took: Span) {
        let (n, ms) = (self.number, took.as_millis_f64());
        self.number += 1;
        record(&mut self.run, "request", n, ms);
        record(&mut self.run, "op", n, f64::from(u8::from(is_write)));
        record(&mut self.run, if is_write { "write" } else { "read" }, n, ms);
    }

    fn tell(&mut self, message: &impl Message) {
        let now = self.pool.now();
        self.pool.stack().tell(now, &Addressed::new(message));
    }
}

impl Adapter for NodePool {
    fn apply(&mut self, setting: &Setting) -> Result<(), AdapterError> {
        let space = self.space.clone();
        set_each(&space, setting, "a pool", |name, value| {
            let span = || value.parse::<Span>().ok();
            match name {
                "deadline" => self.deadline = if value == "none" { None } else { Some(span()?) },
                "logged_write" => self.tell(&LogsControl::LoggedWriteBytes(value.parse().ok()?)),
                "slot" => self.tell(&FenceControl::Slots { slots: self.slots, slot: span()? }),
                "idle_time" => self.tell(&CfqControl::SliceIdle(span()?)),
                "core_slack" => {
                    let high = span()?;
                    self.tell(&CoresControl::Slack { low: high.scale(3, 10), high, poll_windows: 2000 });
                }
                "fingerprints" => self.tell(&CacheControl::FingerprintsPercent(value.parse().ok()?)),
                _ => return None,
            }
            Some(())
        })
    }

    fn measure(&mut self, time: Span) -> Result<Run, AdapterError> {
        Ok(self.serve(time))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(pool: &mut NodePool, setting: &[u16], seconds: u64) -> (usize, usize, Run) {
        pool.apply(&Setting(setting.to_vec())).unwrap();
        let run = pool.serve(Span::from_secs(seconds));
        let count = |node: &str| run.get(node).map_or(0, Vec::len);
        (count("read"), count("write"), run)
    }

    #[test]
    fn a_pool_on_a_disk_serves_and_repeats() {
        let run = |setting: &[u16]| {
            let mut pool = NodePool::on_disk(mixed(Span::from_secs(600), 1), 1).unwrap();
            times(&mut pool, setting, 300)
        };
        let (reads, writes, first) = run(&[0, 2, 0, 1, 0]);
        assert!(reads > 1_500 && writes > 1_000, "{reads} reads, {writes} writes");
        assert_eq!(run(&[0, 2, 0, 1, 0]).2, first);
        assert_ne!(run(&[1, 0, 2, 0, 2]).2, first, "the settings matter");
    }

    #[test]
    fn a_trace_begins_where_it_has_reads_and_writes() {
        let request = |i: u64| {
            let is_write = i < 2_500 || i.is_multiple_of(2);
            Request { at: Span::from_millis(i), tenant: 0, is_write, offset: 0, len: 4096, content: None }
        };
        let begun = begin_mixed((0..20_000).map(request).collect());
        assert_eq!((begun.len(), begun[0].at), (18_000, Span::ZERO), "the third thousand has a quarter of reads");
        assert_eq!(begin_mixed((0..2_000).map(request).collect()).len(), 2_000, "nothing better is there");
    }

    /// Every setting serves the load. The backlog of one setting doesn't reach the next.
    #[test]
    fn every_setting_bears_the_load() {
        let load = mixed(Span::from_secs(600), 1);
        let asked = load.iter().filter(|r| !r.is_write && r.at < Span::from_secs(200)).count();
        for slot in 0..3 {
            for (logged, idle) in [(0, 0), (2, 1)] {
                let mut pool = NodePool::on_disk(load.clone(), 1).unwrap();
                let (reads, _, run) = times(&mut pool, &[0, logged, slot, idle, 0], 200);
                let slowest = run["read"].iter().map(|o| o.value).fold(0.0, f64::max);
                assert!(reads * 100 >= asked * 98, "{slot} {logged} {idle}: {reads} of {asked} reads");
                assert!(slowest < 5_000.0, "{slot} {logged} {idle}: {slowest} ms");
            }
        }
    }

    #[test]
    fn a_cached_pool_serves_with_few_fingerprints_and_many() {
        let mut pool = NodePool::cached(4_000, 1).unwrap();
        for setting in [0, 3, 0] {
            let (reads, writes, _) = times(&mut pool, &[setting], 4);
            assert!(reads > 50 && writes > 200, "{setting}: {reads} reads, {writes} writes");
        }
    }
}
