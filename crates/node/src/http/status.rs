//! `GET /v1/status`: the node's state as the API says it.

use super::api::{
    HostPauses, Latency, LayerStatus, Listens, NodeStatus, ObjectiveStatus, Oldest, OpTraffic, PartStatus, Permits,
    PoolStatus, Status, TenantStatus, Traffic, VolumeStatus,
};
use super::{Control, inject};
use crate::directory::{Directory, Tenant, Volume};
use crate::engine::PoolSnapshot;
use crate::engine::metrics::OP_NAMES;
use crate::engine::watchdog::Watchdog;
use crate::node::{Node, RunningPool};
use crate::parts::PoolView;
use crate::parts::cores::Cores;
use crate::parts::scheduler::Scheduler;
use crate::parts::{About, PARTS, Shown};
use crate::view::{ExportView, Summary};
use plimsoll_base::{Class, Objective, Span, TenantId, Time};
use plimsoll_stack::{LayerState, NodeStats};

/// What pools answered, by number; `None` for one that didn't.
pub type Views = [Option<PoolView>];

/// All of it.
pub fn status(control: &Control, views: &Views) -> Status {
    let directory = control.node.directory.read().expect("no panic while held");
    let problems = problems(&control.node, &directory, views);
    let bound = &control.bound;
    let shown = |p: &Option<std::path::PathBuf>| p.as_ref().map(|p| p.display().to_string());
    Status {
        node: NodeStatus {
            version: env!("CARGO_PKG_VERSION").to_string(),
            pid: std::process::id(),
            uptime_us: control.started.elapsed().as_micros() as u64,
            healthy: problems.is_empty(),
            problems,
            listens: Listens {
                nbd_unix: shown(&bound.nbd_unix),
                nbd_tcp: bound.nbd_tcp.map(|a| a.to_string()),
                control_http: bound.control_http.map(|a| a.to_string()),
                control_unix: shown(&bound.control_unix),
            },
            host_pauses: control.node.watchdog.as_ref().map(host_pauses),
        },
        pools: (0..views.len()).map(|n| pool(&control.node, &directory, n, views[n].as_ref())).collect(),
        volumes: directory.volumes.values().map(|v| volume(&control.node, v, views)).collect(),
        tenants: directory.tenants.iter().map(|(name, t)| tenant(name, t, &directory, views)).collect(),
        injections: inject::injections(&directory, views),
    }
}

/// What keeps the node from serving as it should, for `/healthz`.
pub fn problems(node: &Node, directory: &Directory, views: &Views) -> Vec<String> {
    let problem = |(p, view): (&RunningPool, &Option<PoolView>)| match &p.failed {
        Some(why) => Some(format!("{why}: mend it, then restart the node")),
        None => problem(&p.name, view.as_ref().map(|v| &v.pool)),
    };
    let injected = inject::injections(directory, views);
    node.pools.iter().zip(views).filter_map(problem).chain(injected.iter().map(inject::problem)).collect()
}

fn problem(name: &str, pool: Option<&PoolSnapshot>) -> Option<String> {
    let what = match pool {
        None => "has ended or doesn't answer: the log says why".to_string(),
        Some(p) if p.flush_failed => format!(
            "has seen a flush fail, and believes none since: check the device, then `plimsoll pool recover {name}`"
        ),
        Some(p) if p.state == LayerState::Recovering => "is recovering: wait".to_string(),
        Some(p) if p.state == LayerState::Failed => "has failed: the log says why".to_string(),
        Some(p) if p.state == LayerState::Degraded => {
            "is degraded: a layer does without what it lost; `plimsoll logs status` and the log say what".to_string()
        }
        Some(_) => return None,
    };
    Some(format!("pool `{name}` {what}"))
}

/// The word for the state of a pool that could be opened, or not.
pub fn pool_state(opened: bool, pool: Option<&PoolSnapshot>) -> &'static str {
    match pool.map(|p| (p.state, p.flush_failed)) {
        None if !opened => "failed",
        None => "ended",
        Some((LayerState::Recovering, _)) => "recovering",
        Some((LayerState::Failed, _)) => "failed",
        Some((LayerState::Degraded, _) | (LayerState::Ready, true)) => "degraded",
        Some((LayerState::Ready, false)) => "ready",
    }
}

fn pool(node: &Node, directory: &Directory, n: usize, view: Option<&PoolView>) -> PoolStatus {
    let p = &node.pools[n];
    let s = view.map(|v| &v.pool);
    let queue = view.and_then(|v| v.layers.of::<Scheduler>());
    let oldest = s.and_then(|s| s.oldest.map(|(at, place)| (s.now.since(at), place)));
    PoolStatus {
        name: p.name.clone(),
        device: p.device.clone(),
        device_uuid: p.device_uuid.map(|u| u.to_string()),
        state: pool_state(p.failed.is_none(), s).to_string(),
        flush_failed: s.is_some_and(|s| s.flush_failed),
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
        layers: s.map_or(Vec::new(), |s| s.places().map(|(name, stats)| layer(name, stats)).collect()),
        parts: view.map_or(Vec::new(), |pool_view| {
            let about = About { node, directory, pool: n, pool_view };
            PARTS.iter().filter_map(|p| Some(part(p.name(), p.shown(&about)?))).collect()
        }),
    }
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

fn volume(node: &Node, v: &Volume, views: &Views) -> VolumeStatus {
    let mut sum = Sum::default();
    let mut connections = 0;
    if let Some(view) = &views[v.pool] {
        view.exports.iter().filter(|e| e.key == v.key).for_each(|e| sum.add(view.pool.now, e));
        connections = view.pool.connections.iter().filter(|((key, _), _)| *key == v.key).map(|(_, n)| n).sum();
    }
    VolumeStatus {
        generation: v.replica.generation(),
        behind: v.replica.behind().name().into(),
        name: v.name.clone(),
        pool: node.pools[v.pool].name.clone(),
        size_bytes: v.size_bytes,
        read_only: v.read_only,
        tenant: v.tenant.clone(),
        state: v.state().name().to_string(),
        connections,
        traffic: sum.traffic(),
    }
}

fn tenant(name: &str, t: &Tenant, directory: &Directory, views: &Views) -> TenantStatus {
    let sum = sum_of_tenant(t.id, views);
    let objectives: Vec<ObjectiveStatus> = objectives(&t.class).iter().map(|o| objective(o, &sum.minute)).collect();
    let all_kept = objectives.iter().map(|o| o.kept).collect::<Option<Vec<bool>>>();
    let (weight, slots) = match t.class {
        Class::BestEffort { weight } | Class::LatencyCritical { weight, .. } => (Some(weight), None),
        Class::Fenced { slots } => (None, Some(slots)),
    };
    let has_cores = views.iter().flatten().any(|v| v.layers.of::<Cores>().is_some());
    let (enforced, enforcement) = enforcement(&t.class, has_cores);
    TenantStatus {
        name: name.to_string(),
        class: t.class.name().to_string(),
        kept: all_kept.filter(|all| !all.is_empty()).map(|all| all.into_iter().all(|kept| kept)),
        objectives,
        weight,
        slots,
        enforced,
        enforcement: enforcement.to_string(),
        permits: permits(t, views),
        volumes: directory.volumes.values().filter(|v| v.tenant == name).map(|v| v.name.clone()).collect(),
        traffic: sum.traffic(),
    }
}

/// Is the class enforced, and by what? A class's layer, once it exists, changes its answer here.
fn enforcement(class: &Class, has_cores: bool) -> (bool, &'static str) {
    match class {
        Class::LatencyCritical { .. } if has_cores => (
            true,
            "objectives are enforced in pools that have cores: requests get as many as the objectives need; beyond \
             that permits bound what is inside, and requests with a deadline are refused at once if they would miss it",
        ),
        Class::BestEffort { .. } if has_cores => {
            (true, "in pools that have cores the weight shares those that no objective needs")
        }
        Class::LatencyCritical { .. } => (
            false,
            "objectives are measured, not enforced: no layer does yet; permits bound what is inside, and requests \
             with a deadline are refused at once if they would miss it",
        ),
        Class::BestEffort { .. } => (
            false,
            "the weight shares the device among tenants in pools with sched `cfq`, not in others; permits bound what is inside",
        ),
        Class::Fenced { .. } => (false, "slots aren't enforced: no layer does yet; permits bound what is inside"),
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

/// How an objective is kept by what was measured.
pub fn objective(o: &Objective, measured: &Summary) -> ObjectiveStatus {
    let percentile = f64::from(o.percentile_bp) / 100.0;
    let seen = (measured.count() > 0).then(|| measured.percentile(percentile));
    ObjectiveStatus {
        percentile,
        within_us: o.bound.as_micros(),
        measured_us: seen.map(|s| s.as_micros()),
        samples: measured.count(),
        kept: seen.map(|s| s <= o.bound),
    }
}

/// What a tenant did on all volumes.
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
    /// What objectives are judged by.
    pub minute: Summary,
}

impl Default for Sum {
    fn default() -> Sum {
        let ops = OP_NAMES.iter().map(|op| OpTraffic { op: op.to_string(), ..OpTraffic::default() }).collect();
        let counts = Traffic { ops, ..Traffic::default() };
        Sum { counts, second: Summary::default(), minute: Summary::default() }
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
    }

    fn traffic(self) -> Traffic {
        Traffic { last_second: latency(&self.second), last_minute: latency(&self.minute), ..self.counts }
    }
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
    use plimsoll_base::{LatencyHistogram, Span};

    fn pool(state: LayerState, flush_failed: bool) -> PoolSnapshot {
        PoolSnapshot {
            now: Time::ZERO,
            state,
            flush_failed,
            layers: Vec::new(),
            devices: Vec::new(),
            permits: Default::default(),
            inflight: 0,
            overlap_waiting: 0,
            oldest: None,
            connections: Default::default(),
            permit_waiting: Default::default(),
            counts: (0, 0, 0),
            injections: Vec::new(),
        }
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
            match (problem("p", Some(&p)), problem_part) {
                (None, None) => {}
                (Some(said), Some(part)) => assert!(said.contains(part), "{said}"),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!((pool_state(true, None), pool_state(false, None)), ("ended", "failed"));
        assert!(problem("p", None).unwrap().contains("doesn't answer"));
    }

    #[test]
    fn objectives_are_kept_or_not_or_nobody_knows() {
        let o = Objective { percentile_bp: 9000, bound: Span::from_millis(10) };
        let mut h = LatencyHistogram::new();
        let judge = |h: &LatencyHistogram| objective(&o, &Summary::from(h));
        assert_eq!((judge(&h).kept, judge(&h).measured_us), (None, None));
        (0..90).for_each(|_| h.record(Span::from_millis(9)));
        (0..10).for_each(|_| h.record(Span::from_millis(50)));
        assert_eq!((judge(&h).kept, judge(&h).samples), (Some(true), 100));
        h.record(Span::from_millis(50));
        assert_eq!(judge(&h).kept, Some(false), "90 of 101 are less than 90 %");
    }
}
