//! `GET /v1/status`: the node's state as the API reports it.

use super::api::{
    ForecastStatus, HostPauses, Latency, LayerStatus, Listens, NodeStatus, ObjectiveStatus, Oldest, OpTraffic,
    PartStatus, Permits, PoolPromises, PoolStatus, PromiseStatus, PromisedReads, Shares, SparedReads, Status,
    TenantStatus, Traffic, VolumeStatus, Waits, WithinBound,
};
use super::problems::problems;
use super::{Control, inject};
use crate::directory::{Directory, Tenant, Volume};
use crate::engine::lateness::Deviations;
use crate::engine::metrics::OP_NAMES;
use crate::engine::recent::{Counts, Tally, Within};
use crate::engine::watchdog::Watchdog;
use crate::engine::{DeadlineFrom, PoolSnapshot};
use crate::node::{Node, RunningPool, unclean_note};
use crate::parts::cores::{Cores, shortage};
use crate::parts::fence::Fence;
use crate::parts::scheduler::Scheduler;
use crate::parts::{About, PARTS, Part, PoolView, Shown};
use crate::view::{ExportView, SparedView, Summary};
use plimsoll_base::{Class, Objective, OnBusy, Span, TenantId, Time};
use plimsoll_stack::{LayerState, NodeStats};
use std::collections::BTreeMap;

/// Answers of the pools, by number; `None` for a pool that didn't answer.
pub type Views = [Option<PoolView>];

/// The answer of a pool. `None` if it didn't answer, or wasn't there when they were asked.
pub fn of_pool(views: &Views, number: usize) -> Option<&PoolView> {
    views.get(number).and_then(Option::as_ref)
}

/// All of it.
pub fn status(control: &Control, views: &Views) -> Status {
    let node = &control.node;
    let directory = node.directory.read().expect("no panic while held");
    let problems: Vec<String> = problems(node, &directory, views).into_iter().map(|p| p.text).collect();
    let bound = &control.bound;
    let shown = |p: &Option<std::path::PathBuf>| p.as_ref().map(|p| p.display().to_string());
    Status {
        node: NodeStatus {
            version: env!("CARGO_PKG_VERSION").to_string(),
            pid: std::process::id(),
            uptime_us: control.started.elapsed().as_micros() as u64,
            ending: control.orders.is_ending(),
            healthy: problems.is_empty(),
            problems,
            notes: unclean_note(directory.volumes.values()).into_iter().collect(),
            listens: Listens {
                nbd_unix: shown(&bound.nbd_unix),
                nbd_tcp: bound.nbd_tcp.map(|a| a.to_string()),
                nvme_tcp: bound.nvme_tcp.map(|a| a.to_string()),
                control_http: bound.control_http.map(|a| a.to_string()),
                control_unix: shown(&bound.control_unix),
            },
            host_pauses: node.watchdog.get().map(host_pauses),
        },
        pools: node.pools.with(views).iter().map(|(n, p, view)| pool(node, &directory, (*n, p), *view)).collect(),
        volumes: {
            let at_device: Vec<_> = views.iter().map(|view| at_device_by_tenant(view.as_ref(), &directory)).collect();
            let none = BTreeMap::new();
            // One of a pool that came after the views were taken has no place.
            let of = |v: &Volume| volume(node, &directory, v, views, at_device.get(v.pool).unwrap_or(&none));
            directory.volumes.values().map(of).collect()
        },
        tenants: directory.tenants.iter().map(|(name, t)| tenant(node, name, t, &directory, views)).collect(),
        injections: inject::injections(&directory, views),
    }
}

/// The word for a pool's state.
pub fn state_of(node: &Node, p: &RunningPool, pool: Option<&PoolSnapshot>) -> &'static str {
    match pool_state(p.failed.is_none(), pool) {
        "ready" if node.ending().is_some() => "ending",
        "ended" if node.is_done(p) => "ending",
        state => state,
    }
}

/// The word for the state of a pool that could be opened, or not, in a node that isn't ending.
fn pool_state(opened: bool, pool: Option<&PoolSnapshot>) -> &'static str {
    match pool.map(|p| (p.state, p.flush_failed)) {
        None if !opened => "failed",
        None => "ended",
        Some((LayerState::Recovering, _)) => "recovering",
        Some((LayerState::Failed, _)) => "failed",
        Some((LayerState::Degraded, _) | (LayerState::Ready, true)) => "degraded",
        Some((LayerState::Ready, false)) => "ready",
    }
}

fn pool(node: &Node, directory: &Directory, (n, p): (usize, &RunningPool), view: Option<&PoolView>) -> PoolStatus {
    let s = view.map(|v| &v.pool);
    let queue = view.and_then(|v| v.layers.of::<Scheduler>());
    let oldest = s.and_then(|s| s.oldest.map(|(at, place)| (s.now.since(at), place)));
    PoolStatus {
        name: p.name.clone(),
        device: p.device.clone(),
        device_uuid: p.device_uuid.map(|u| u.to_string()),
        state: state_of(node, p, s).to_string(),
        flush_failed: s.is_some_and(|s| s.flush_failed),
        size_bytes: node.home_bytes(n),
        free_bytes: node.free_bytes(n),
        deleting: node.deleting(n),
        connections: s.map_or(0, |s| s.connections.values().sum()),
        inside: s.map_or(0, |s| s.inflight as u64),
        overlap_waiting: s.map_or(0, |s| s.overlap_waiting as u64),
        sched_waiting: queue.map_or(0, |q| q.waiting as u64),
        at_device: queue.map_or(0, |q| q.at_device as u64),
        oldest: oldest.map(|(age, place)| Oldest { age_us: age.as_micros(), at: place.to_string() }),
        accepted: s.map_or(0, |s| s.counts.0),
        refused: s.map_or(0, |s| s.counts.1),
        ended: s.map_or(0, |s| s.counts.2),
        promises: view.map_or_else(PoolPromises::default, pool_promises),
        layers: s.map_or(Vec::new(), |s| s.places().map(|(name, stats)| layer(name, stats)).collect()),
        parts: view.map_or(Vec::new(), |pool_view| {
            let about = About::new(node, directory, n, pool_view);
            PARTS.iter().filter_map(|p| Some(part(p.name(), p.shown(&about)?))).collect()
        }),
    }
}

fn pool_promises(view: &PoolView) -> PoolPromises {
    let mut sum = Sum::default();
    view.exports.iter().for_each(|e| sum.add(view.pool.now, e));
    let Traffic { promised: reads, forecast, .. } = sum.traffic();
    PoolPromises { reads, forecast }
}

fn part(name: &str, shown: Shown) -> PartStatus {
    let Shown { headline, problem, lines, tables: _ } = shown;
    PartStatus { name: name.to_string(), headline, problem, lines }
}

fn host_pauses(w: &Watchdog) -> HostPauses {
    let pauses = w.pauses();
    HostPauses { count: pauses.count(), total_us: pauses.sum().as_micros(), max_us: pauses.max().as_micros() }
}

fn layer(name: &str, s: &NodeStats) -> LayerStatus {
    LayerStatus {
        name: name.to_string(),
        entered: s.entered,
        passed_at_once: s.passed_at_once,
        waited: s.waits.count(),
        wait_p50_us: s.waits.percentile(50.0).as_micros(),
        wait_p99_us: s.waits.percentile(99.0).as_micros(),
        wait_max_us: s.waits.max().as_micros(),
        served: s.service.count(),
        service_p50_us: s.service.percentile(50.0).as_micros(),
        service_p99_us: s.service.percentile(99.0).as_micros(),
        own_ios: s.own_ios,
        own_bytes: s.own_bytes,
        refused_with_part: s.refused_with_part,
        revoked: s.revoked,
    }
}

fn volume(
    node: &Node,
    directory: &Directory,
    v: &Volume,
    views: &Views,
    at_device_by_tenant_us: &BTreeMap<String, u64>,
) -> VolumeStatus {
    let mut sum = Sum::default();
    let mut connections = 0;
    let mut waits = Waits::default();
    if let Some(view) = of_pool(views, v.pool) {
        let exports = view.exports_of(v.key);
        exports.iter().for_each(|e| sum.add(view.pool.now, e));
        let at_device_by_tenant_us = at_device_by_tenant_us.clone();
        waits = Waits { by_layer_us: by_layer(exports), at_device_by_tenant_us };
        connections = view.connections_of(v.key).map(|(_, n)| n).sum();
    }
    VolumeStatus {
        generation: v.replica.generation(),
        behind: v.replica.behind().name().into(),
        name: v.name.clone(),
        uuid: v.uuid().to_string(),
        pool: node.pools.get(v.pool).name.clone(),
        size_bytes: v.size_bytes,
        read_only: v.read_only,
        tenant: v.tenant.clone(),
        state: v.state().name().to_string(),
        connections,
        promise: volume_promise(directory, v, views).map(promise_status),
        traffic: sum.traffic(),
        waits,
    }
}

/// Deadline of a volume's reads whose connection doesn't ask for one, its source, and what becomes of reads that would miss it.
pub fn volume_promise(directory: &Directory, v: &Volume, views: &Views) -> Option<(Span, DeadlineFrom, OnBusy)> {
    let owner = directory.tenants.get(&v.tenant).map(|t| t.id);
    let exports = || of_pool(views, v.pool).into_iter().flat_map(|view| view.exports_of(v.key));
    let automatic = || exports().find(|e| Some(e.tenant) == owner).and_then(|e| e.auto_deadline);
    let (set, busy) = directory.promises.of_volume(&v.name, &v.tenant);
    let (deadline, from) = set.or_else(|| automatic_promise(directory, &v.tenant, automatic()))?;
    Some((deadline, from, busy))
}

/// A tenant's deadline that sets itself, as it is now; as it begins where nothing has taught it yet.
fn automatic_promise(directory: &Directory, tenant: &str, now: Option<Span>) -> Option<(Span, DeadlineFrom)> {
    let terms = directory.promises.tenant(tenant).auto?;
    Some((now.unwrap_or(terms.most), DeadlineFrom::Automatic))
}

/// A deadline, its source, and what becomes of reads that would miss it, in the API's terms.
pub fn promise_status((deadline, from, busy): (Span, DeadlineFrom, OnBusy)) -> PromiseStatus {
    PromiseStatus { deadline_us: deadline.as_micros(), from: from.name().to_string(), busy }
}

/// Time that requests of a volume spent in each layer, in microseconds.
fn by_layer(exports: &[ExportView]) -> BTreeMap<String, u64> {
    let mut sums = BTreeMap::<String, u64>::new();
    for (layer, waited) in exports.iter().flat_map(|e| &e.waits).filter(|(_, waited)| waited.as_micros() > 0) {
        *sums.entry(layer.to_string()).or_default() += waited.as_micros();
    }
    sums
}

/// Time that each tenant's requests spent at a pool's device, in microseconds.
fn at_device_by_tenant(view: Option<&PoolView>, directory: &Directory) -> BTreeMap<String, u64> {
    let names: BTreeMap<_, _> = directory.tenants.iter().map(|(name, t)| (t.id, name)).collect();
    let mut sums = BTreeMap::<String, u64>::new();
    for e in view.iter().flat_map(|view| &view.exports) {
        let at_device = e.waits.iter().filter(|(layer, waited)| *layer == "device" && waited.as_micros() > 0);
        for (name, waited) in at_device.filter_map(|(_, waited)| Some((names.get(&e.tenant)?, waited))) {
            *sums.entry((*name).clone()).or_default() += waited.as_micros();
        }
    }
    sums
}

fn tenant(node: &Node, name: &str, t: &Tenant, directory: &Directory, views: &Views) -> TenantStatus {
    let sum = sum_of_tenant(t.id, views);
    let objectives: Vec<ObjectiveStatus> = objectives(&t.class).iter().map(|o| sum.objective(o)).collect();
    let all_kept = objectives.iter().map(|o| o.kept).collect::<Option<Vec<bool>>>();
    let (weight, slots) = match t.class {
        Class::BestEffort { weight } | Class::LatencyCritical { weight, .. } => (Some(weight), None),
        Class::Fenced { slots } => (None, Some(slots)),
    };
    let without = match t.class {
        Class::Fenced { .. } => pools_without::<Fence>(node, directory, name, views),
        _ => pools_without::<Cores>(node, directory, name, views),
    };
    let (enforced, mut enforcement) = enforcement(&t.class, &without);
    for (_, pool, view) in node.pools.with(views) {
        let cores = view.and_then(|v| v.layers.of::<Cores>());
        let own = cores.and_then(|cores| cores.queues.iter().find(|q| q.tenants.contains(&t.id)));
        if let Some(what) = own.and_then(shortage) {
            enforcement += &format!("; in pool `{}` the objective {what}", pool.name);
        }
    }
    let promised = directory.promises.tenant(name);
    let own = promised.deadline.map(|d| (d, DeadlineFrom::Tenant));
    let deadline = own.or_else(|| automatic_promise(directory, name, sum.automatic));
    let promise = deadline.map(|(deadline, from)| promise_status((deadline, from, promised.busy)));
    TenantStatus {
        name: name.to_string(),
        class: t.class.name().to_string(),
        kept: all_kept.filter(|all| !all.is_empty()).map(|all| all.into_iter().all(|kept| kept)),
        objectives,
        weight,
        slots,
        enforced,
        enforcement,
        promise,
        permits: permits(t, views),
        volumes: directory.volumes.values().filter(|v| v.tenant == name).map(|v| v.name.clone()).collect(),
        traffic: sum.traffic(),
    }
}

/// Pools without a layer among those that a tenant uses; all without, if it uses none yet.
pub fn pools_without<L: Part>(node: &Node, directory: &Directory, tenant: &str, views: &Views) -> Vec<String> {
    let used = directory.pools_of(tenant);
    let has = |pool: usize| of_pool(views, pool).is_some_and(|v| v.layers.of::<L>().is_some());
    let all = node.pools.with(views);
    if used.is_empty() && all.iter().any(|(pool, ..)| has(*pool)) {
        return Vec::new();
    }
    let without = |pool: usize| (used.is_empty() || used.contains(&pool)) && !has(pool);
    all.iter().filter(|(pool, ..)| without(*pool)).map(|(_, p, _)| format!("`{}`", p.name)).collect()
}

/// Tells whether the class is enforced, and by which layer. A class's layer, once it exists, changes its answer here.
fn enforcement(class: &Class, without: &[String]) -> (bool, String) {
    let without = without.join(", ");
    match class {
        Class::LatencyCritical { .. } if without.is_empty() => {
            (true, "objectives are enforced by cores: they get the cores that they need; permits bound the rest".into())
        }
        Class::BestEffort { .. } if without.is_empty() => {
            (true, "the weight shares the cores that no objective needs".into())
        }
        Class::LatencyCritical { .. } => {
            (false, format!("{}; permits bound what is inside", crate::objectives::not_enforced(&without)))
        }
        Class::BestEffort { .. } => (
            false,
            format!(
                "the weight isn't enforced in pool {without}, unless its sched is `cfq`; permits bound what is inside"
            ),
        ),
        Class::Fenced { .. } if without.is_empty() => {
            (true, "slots are enforced by the fence: each volume has its own; permits bound what is inside".into())
        }
        Class::Fenced { .. } => {
            let what = format!("slots aren't enforced: set `fence` for pool {without}; permits bound what is inside");
            (false, what)
        }
    }
}

fn permits(t: &Tenant, views: &Views) -> Permits {
    let pools = || views.iter().flatten().map(|v| &v.pool);
    let inside = || pools().filter_map(|p| p.permits.get(&t.id));
    Permits {
        jobs_max: t.permits.jobs_max,
        bytes_max: t.permits.bytes_max,
        jobs: inside().map(|(jobs, _)| u64::from(*jobs)).sum(),
        bytes: inside().map(|(_, bytes)| bytes).sum(),
        waiting: pools().filter_map(|p| p.permit_waiting.get(&t.id)).sum(),
    }
}

/// A class's objectives, if it has any.
pub fn objectives(class: &Class) -> &[Objective] {
    match class {
        Class::LatencyCritical { objectives, .. } => objectives,
        _ => &[],
    }
}

/// True if an objective is kept by these requests. `None` without any.
pub fn is_kept(o: &Objective, w: &Within) -> Option<bool> {
    let wanted = u128::from(w.requests) * u128::from(o.percentile_bp);
    (w.requests > 0).then(|| u128::from(w.within) * 10_000 >= wanted)
}

/// Computes how an objective is kept.
fn objective(o: &Objective, measured: &Summary, windows: &[Within; 3]) -> ObjectiveStatus {
    let percentile = f64::from(o.percentile_bp) / 100.0;
    let seen = (measured.count() > 0).then(|| measured.percentile(percentile));
    let [last_minute, last_hour, last_day] =
        windows.map(|w| WithinBound { requests: w.requests, within: w.within, kept: is_kept(o, &w) });
    ObjectiveStatus {
        percentile,
        within_us: o.bound.as_micros(),
        measured_us: seen.map(|s| s.as_micros()),
        samples: measured.count(),
        kept: last_minute.kept,
        last_minute,
        last_hour,
        last_day,
    }
}

/// A tally's promises in the API's terms.
pub fn shares(t: &Tally) -> Shares {
    Shares { kept: t.kept, missed: t.missed, waited: t.waited, refused: t.refused }
}

fn forecast(d: &Deviations) -> ForecastStatus {
    let us = |percent| d.percentile(percent);
    ForecastStatus {
        samples: d.count(),
        p1_us: us(1.0),
        p10_us: us(10.0),
        p50_us: us(50.0),
        p90_us: us(90.0),
        p99_us: us(99.0),
    }
}

/// Sums of a tenant over all volumes.
pub fn sum_of_tenant(id: TenantId, views: &Views) -> Sum {
    let mut sum = Sum::default();
    for view in views.iter().flatten() {
        view.exports.iter().filter(|e| e.tenant == id).for_each(|e| sum.add(view.pool.now, e));
    }
    sum
}

/// Several exports' traffic together.
pub struct Sum {
    counts: Traffic,
    second: Summary,
    minute: Summary,
    spared: SparedView,
    recent: [Tally; 3],
    deviations: Deviations,
    objectives: Vec<(Objective, [Within; 3])>,
    /// The shortest deadline that sets itself.
    automatic: Option<Span>,
}

impl Default for Sum {
    fn default() -> Sum {
        let ops = OP_NAMES.iter().map(|op| OpTraffic { op: op.to_string(), ..OpTraffic::default() }).collect();
        let counts = Traffic { ops, ..Traffic::default() };
        Sum {
            counts,
            second: Summary::default(),
            minute: Summary::default(),
            spared: SparedView::default(),
            recent: Default::default(),
            deviations: Deviations::default(),
            objectives: Vec::new(),
            automatic: None,
        }
    }
}

impl Sum {
    fn add(&mut self, now: Time, e: &ExportView) {
        let t = &mut self.counts;
        for (sum, op) in t.ops.iter_mut().zip(&e.ops) {
            sum.done += op.done;
            sum.bytes += op.bytes;
            sum.failed += op.failed;
            t.done += op.done;
            t.bytes += op.bytes;
            t.failed += op.failed;
        }
        t.busy_refused += e.busy_refused;
        t.busy_revoked += e.busy_revoked;
        t.deadlines_met += e.deadline_met;
        t.deadlines_missed += e.deadline_missed;
        t.deadlines_waited += e.deadline_waited;
        t.inside += e.inside.iter().map(|(_, n)| *n as u64).sum::<u64>();
        let oldest = e.oldest.map(|(at, place)| Oldest { age_us: now.since(at).as_micros(), at: place.to_string() });
        if oldest.as_ref().map(|o| o.age_us) > t.oldest.as_ref().map(|o| o.age_us) {
            t.oldest = oldest;
        }
        t.next_read_wait_us = t.next_read_wait_us.max(e.next_read_wait.as_micros());
        for (layer, waited) in e.waited.iter().filter(|(_, waited)| *waited > Span::ZERO) {
            *t.waited_us.entry(layer.to_string()).or_default() += waited.as_micros();
        }
        self.second.add(&e.second);
        self.minute.add(&e.minute);
        self.spared.add(&e.spared);
        self.recent.iter_mut().zip(&e.recent).for_each(|(sum, t)| sum.add(t));
        self.deviations.add(&e.deviations);
        for (objective, windows) in &e.objectives {
            match self.objectives.iter_mut().find(|(o, _)| o == objective) {
                Some((_, sums)) => sums.iter_mut().zip(windows).for_each(|(sum, w)| sum.add(w)),
                None => self.objectives.push((*objective, *windows)),
            }
        }
        self.automatic = self.automatic.into_iter().chain(e.auto_deadline).min();
    }

    /// One of the tenant's objectives, and whether it is kept.
    pub fn objective(&self, o: &Objective) -> ObjectiveStatus {
        let windows = self.objectives.iter().find(|(known, _)| known == o).map(|(_, windows)| *windows);
        objective(o, &self.minute, &windows.unwrap_or_default())
    }

    fn traffic(self) -> Traffic {
        let [last_minute, last_hour, last_day] = self.recent.map(|t| shares(&t));
        Traffic {
            last_second: latency(&self.second),
            last_minute: latency(&self.minute),
            spared: spared(&self.spared),
            promised: PromisedReads { last_minute, last_hour, last_day },
            forecast: forecast(&self.deviations),
            ..self.counts
        }
    }
}

fn spared(v: &SparedView) -> Option<SparedReads> {
    let [again, overlap, too_many, stranger] = v.by_rule;
    let (returned_after, response) = (latency(&v.returned), latency(&v.response));
    (!v.is_empty()).then_some(SparedReads { again, overlap, too_many, stranger, returned_after, response })
}

fn latency(h: &Summary) -> Latency {
    let us = |percent| h.percentile(percent).as_micros();
    Latency {
        samples: h.count(),
        p50_us: us(50.0),
        p90_us: us(90.0),
        p99_us: us(99.0),
        p999_us: us(99.9),
        max_us: h.max().as_micros(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::problems::outage;

    fn pool(state: LayerState, flush_failed: bool) -> PoolSnapshot {
        PoolSnapshot::idle(Time::ZERO, state, flush_failed)
    }

    #[test]
    fn what_keeps_a_pool_from_serving_is_told() {
        for (state, failed, word, problem_part) in [
            (LayerState::Ready, false, "ready", None),
            (LayerState::Degraded, false, "degraded", Some("is degraded")),
            (LayerState::Ready, true, "degraded", Some("`plimsoll pool recover p`")),
            (LayerState::Recovering, false, "recovering", Some("is recovering")),
            (LayerState::Failed, false, "failed", Some("has failed")),
        ] {
            let p = pool(state, failed);
            assert_eq!(pool_state(true, Some(&p)), word);
            match (outage("p", Some(&p)), problem_part) {
                (None, None) => {}
                (Some(said), Some(part)) => assert!(said.contains(part), "{said}"),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!((pool_state(true, None), pool_state(false, None)), ("ended", "failed"));
        assert!(outage("p", None).unwrap().contains("doesn't answer"));
    }

    #[test]
    fn objectives_are_kept_or_not_or_nobody_knows() {
        let o = Objective { percentile_bp: 9000, bound: Span::from_millis(10) };
        for (requests, within, kept) in [(0, 0, None), (100, 90, Some(true)), (101, 90, Some(false))] {
            let minute = Within { requests, within };
            let judged = objective(&o, &Summary::default(), &[minute, Within::default(), minute]);
            assert_eq!((judged.kept, judged.last_minute.kept, judged.last_day.kept), (kept, kept, kept));
            assert_eq!((judged.measured_us, judged.last_hour.kept), (None, None));
        }
    }
}
