//! `GET /metrics`: Prometheus' text format, version 0.0.4. Every family is described in docs/reference/metrics.md.

use super::Control;
use super::problems::problems;
use super::status::{Views, objectives, of_pool, state_of, sum_of_tenant, volume_promise};
use crate::directory::{Directory, Volume, VolumeState};
use crate::engine::metrics::{OP_NAMES, SPARED_NAMES};
use crate::node::{Beneath, Pools, RunningPool};
use crate::parts::PoolView;
use crate::parts::page::Page;
use crate::parts::scheduler::Scheduler;
use crate::parts::{About, PARTS};
use crate::replica::Behind;
use crate::view::{ExportView, OpView, Summary};
use plimsoll_base::{Span, TenantId};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

const LAST_MINUTE: &str = "The same by percentile, over the last whole minute or the running one, whichever has more \
                           requests; absent without.";
const PERCENTILES: [(f64, &str); 4] = [(50.0, "50"), (90.0, "90"), (99.0, "99"), (99.9, "99.9")];
const WINDOWS: [&str; 3] = ["minute", "hour", "day"];

const POOL_STATES: [&str; 6] = ["recovering", "ready", "degraded", "failed", "ending", "ended"];
const VOLUME_STATES: [VolumeState; 4] =
    [VolumeState::Recovering, VolumeState::Ready, VolumeState::Degraded, VolumeState::Failed];
const BEHIND: [Behind; 3] = [Behind::Unclean, Behind::WriterLost, Behind::Resync];

/// The whole exposition.
pub fn exposition(control: &Control, views: &Views) -> String {
    let directory = control.node.directory.read().expect("no panic while held");
    let mut page = Page::default();
    node(&mut page, control, &directory, views);
    pools(&mut page, control, views);
    layers(&mut page, control, views);
    let mut abouts = Vec::new();
    let pools = control.node.pools.with(views);
    for (pool, p, view) in &pools {
        let (pool, Some(pool_view)) = (*pool, *view) else { continue };
        abouts.push((p.name.as_str(), About::new(&control.node, &directory, pool, pool_view)));
    }
    PARTS.iter().for_each(|part| part.metrics(&mut page, &abouts));
    volumes(&mut page, &control.node.pools, &directory, views);
    deadlines(&mut page, &directory, views);
    traffic(&mut page, &named_exports(&directory, views), &unused(&directory, views));
    tenants(&mut page, control, &directory, views);
    page.into_text()
}

fn node(page: &mut Page, control: &Control, directory: &Directory, views: &Views) {
    page.family("plimsoll_build_info", "gauge", "Always 1; the label has the version.");
    page.sample("plimsoll_build_info", &[("version", env!("CARGO_PKG_VERSION"))], 1);
    page.family("plimsoll_uptime_seconds", "gauge", "Time since the node began to serve.");
    page.sample("plimsoll_uptime_seconds", &[], control.started.elapsed().as_secs_f64());
    page.family("plimsoll_problems", "gauge", "Problems that `plimsoll status` lists.");
    page.sample("plimsoll_problems", &[], problems(&control.node, directory, views).len());
    if let Some(watchdog) = control.node.watchdog.get() {
        let (name, pauses) = ("plimsoll_host_pause_seconds", Summary::from(&watchdog.pauses()));
        page.family(name, "histogram", "Pauses of 250 us and more that the host or other programs forced on this one.");
        page.histogram(name, &[], &pauses, 0);
    }
}

fn pools(page: &mut Page, control: &Control, views: &Views) {
    let all = control.node.pools.with(views);
    let named = || all.iter().map(|(_, p, view)| (p, *view));
    page.family("plimsoll_pool_state", "gauge", "1 for the state the pool is in, 0 for the others.");
    for (p, view) in named() {
        for state in POOL_STATES {
            let is = state_of(&control.node, p, view.map(|v| &v.pool)) == state;
            page.sample("plimsoll_pool_state", &[("pool", &p.name), ("state", state)], u8::from(is));
        }
    }
    page.family("plimsoll_pool_size_bytes", "gauge", "Space for volumes, free or not.");
    for (n, p, _) in &all {
        if let Some(bytes) = control.node.home_bytes(*n) {
            page.sample("plimsoll_pool_size_bytes", &[("pool", &p.name)], bytes);
        }
    }
    page.family("plimsoll_pool_free_bytes", "gauge", "Space that no volume has.");
    for (n, p, _) in &all {
        if let Some(free) = control.node.free_bytes(*n) {
            page.sample("plimsoll_pool_free_bytes", &[("pool", &p.name)], free);
        }
    }
    type Gauge = (&'static str, &'static str, fn(Beneath) -> u64);
    let beneath: [Gauge; 3] = [
        ("plimsoll_pool_file_system_size_bytes", "Size of the file system below the pool's file.", |b| b.size_bytes),
        ("plimsoll_pool_file_system_free_bytes", "Free space of the file system below the pool's file.", |b| {
            b.free_bytes
        }),
        (
            "plimsoll_pool_unallocated_bytes",
            "Bytes that the pool's file has no space for yet, and takes as its volumes fill up.",
            |b| b.unallocated_bytes,
        ),
    ];
    for (name, help, value) in beneath {
        page.family(name, "gauge", help);
        for (p, seen) in all.iter().filter_map(|(_, p, _)| Some((p, p.beneath()?))) {
            let file_system = format!("{}:{}", rustix::fs::major(seen.device), rustix::fs::minor(seen.device));
            page.sample(name, &[("pool", &p.name), ("file_system", &file_system)], value(seen));
        }
    }
    let mut per_pool = |name: &str, help: &str, value: fn(&PoolView) -> u64| {
        page.family(name, if name.ends_with("_total") { "counter" } else { "gauge" }, help);
        for (p, view) in named() {
            if let Some(view) = view {
                page.sample(name, &[("pool", &p.name)], value(view));
            }
        }
    };
    per_pool("plimsoll_pool_flush_failed", "1 after a failed flush, until the pool is recovered.", |v| {
        v.pool.flush_failed.into()
    });
    per_pool("plimsoll_pool_exports", "Pairs of a tenant and a volume that are counted.", |v| v.exports.len() as u64);
    per_pool("plimsoll_pool_accepted_total", "Requests taken in.", |v| v.pool.counts.0);
    per_pool("plimsoll_pool_refused_total", "Requests refused busy at once.", |v| v.pool.counts.1);
    per_pool("plimsoll_pool_ended_total", "Requests ended, however.", |v| v.pool.counts.2);
    page.family(
        "plimsoll_queue_depth",
        "gauge",
        "Requests in flight by place: waiting for an overlapping one (front), in the scheduler, at the device.",
    );
    for (p, view) in named() {
        let Some(v) = view.as_ref() else { continue };
        let (waiting, at_device) = v.layers.of::<Scheduler>().map_or((0, 0), |q| (q.waiting, q.at_device));
        let depths = [("front", v.pool.overlap_waiting), ("sched", waiting), ("device", at_device)];
        for (place, depth) in depths {
            page.sample("plimsoll_queue_depth", &[("pool", &p.name), ("at", place)], depth);
        }
    }
    page.family(
        "plimsoll_pool_oldest_age_seconds",
        "gauge",
        "Age of the oldest request in flight, by layer or device; absent when the pool is idle.",
    );
    for (p, view) in named() {
        let Some(s) = view.as_ref().map(|v| &v.pool) else { continue };
        if let Some((at, place)) = s.oldest {
            let age = s.now.since(at).as_secs_f64();
            page.sample("plimsoll_pool_oldest_age_seconds", &[("pool", &p.name), ("at", place)], age);
        }
    }
}

fn layers(page: &mut Page, control: &Control, views: &Views) {
    let mut all = Vec::new();
    let pools = control.node.pools.with(views);
    for (_, p, view) in &pools {
        let Some(view) = view else { continue };
        all.extend(view.pool.places().map(|(layer, stats)| ([("pool", p.name.as_str()), ("layer", layer)], stats)));
    }
    page.family(
        "plimsoll_layer_wait_seconds",
        "histogram",
        "Time that client requests spent in a layer before it passed them on.",
    );
    for (labels, s) in &all {
        page.histogram("plimsoll_layer_wait_seconds", labels, &Summary::from(&s.waits), s.passed_at_once);
    }
    page.family(
        "plimsoll_layer_service_seconds",
        "histogram",
        "Time from a request's arrival at a device, or at the layer that models one, to its end there.",
    );
    for (labels, s) in all.iter().filter(|(_, s)| s.service.count() > 0) {
        page.histogram("plimsoll_layer_service_seconds", labels, &Summary::from(&s.service), 0);
    }
    page.family("plimsoll_layer_own_requests_total", "counter", "Requests that a layer made of its own.");
    for (labels, s) in &all {
        page.sample("plimsoll_layer_own_requests_total", labels, s.own_ios);
    }
    page.family("plimsoll_layer_own_bytes_total", "counter", "Bytes of a layer's own requests.");
    for (labels, s) in &all {
        page.sample("plimsoll_layer_own_bytes_total", labels, s.own_bytes);
    }
    page.family(
        "plimsoll_layer_refusals_total",
        "counter",
        "Refused requests whose forecast wait included a wait in this layer.",
    );
    for (labels, s) in &all {
        page.sample("plimsoll_layer_refusals_total", labels, s.refused_with_part);
    }
    page.family("plimsoll_layer_refused_wait_seconds_total", "counter", "The sum of those parts.");
    for (labels, s) in &all {
        page.sample("plimsoll_layer_refused_wait_seconds_total", labels, s.refused_wait.as_secs_f64());
    }
    page.family("plimsoll_layer_revoked_total", "counter", "Accepted requests that a layer gave back busy later.");
    for (labels, s) in &all {
        page.sample("plimsoll_layer_revoked_total", labels, s.revoked);
    }
}

fn volumes(page: &mut Page, pools: &Pools, directory: &Directory, views: &Views) {
    let pools: BTreeMap<usize, Arc<RunningPool>> = pools.all().into_iter().collect();
    let pool = |v: &Volume| pools.get(&v.pool).map_or("", |p| p.name.as_str());
    page.family("plimsoll_volume_state", "gauge", "1 for the state the volume is in, 0 for the others.");
    for v in directory.volumes.values() {
        for state in VOLUME_STATES {
            let labels = [("pool", pool(v)), ("volume", v.name.as_str()), ("state", state.name())];
            page.sample("plimsoll_volume_state", &labels, u8::from(v.state() == state));
        }
    }
    page.family(
        "plimsoll_volume_behind",
        "gauge",
        "1 for the reason for which the volume may lack acknowledged writes, 0 for the others.",
    );
    for v in directory.volumes.values() {
        let behind = v.replica.behind();
        for reason in BEHIND {
            let labels = [("pool", pool(v)), ("volume", v.name.as_str()), ("reason", reason.name())];
            page.sample("plimsoll_volume_behind", &labels, u8::from(behind == reason));
        }
    }
    page.family("plimsoll_volume_size_bytes", "gauge", "The volume's size.");
    for v in directory.volumes.values() {
        let labels = [("pool", pool(v)), ("volume", v.name.as_str())];
        page.sample("plimsoll_volume_size_bytes", &labels, v.size_bytes);
    }
    page.family("plimsoll_connections", "gauge", "Connections of NBD clients, and I/O queues of NVMe hosts.");
    let names = tenant_names(directory);
    for v in directory.volumes.values() {
        for (tenant, n) in of_pool(views, v.pool).into_iter().flat_map(|view| view.connections_of(v.key)) {
            if let Some(name) = names.get(&tenant) {
                page.sample("plimsoll_connections", &[("tenant", name), ("volume", &v.name)], n);
            }
        }
    }
}

fn deadlines(page: &mut Page, directory: &Directory, views: &Views) {
    let name = "plimsoll_deadline_seconds";
    page.family(
        name,
        "gauge",
        "Deadline of a volume's reads without a connection's own, by its source; absent without one.",
    );
    for v in directory.volumes.values() {
        if let Some((deadline, from, _)) = volume_promise(directory, v, views) {
            let labels = [("tenant", v.tenant.as_str()), ("volume", &v.name), ("from", from.name())];
            page.sample(name, &labels, deadline.as_secs_f64());
        }
    }
}

/// An export with its tenant's and volume's names.
type Named<'a> = (Labels<'a>, &'a ExportView, Span);

/// Exports whose tenant and volume are still there, with the age of the oldest request.
fn named_exports<'a>(directory: &'a Directory, views: &'a Views) -> Vec<Named<'a>> {
    let (mut all, names) = (Vec::new(), tenant_names(directory));
    for volume in directory.volumes.values() {
        let Some(view) = of_pool(views, volume.pool) else { continue };
        for e in view.exports_of(volume.key) {
            if let Some(tenant) = names.get(&e.tenant) {
                let age = e.oldest.map_or(Span::ZERO, |(at, _)| view.pool.now.since(at));
                all.push(([("tenant", *tenant), ("volume", &volume.name)], e, age));
            }
        }
    }
    all
}

fn tenant_names(directory: &Directory) -> BTreeMap<TenantId, &str> {
    directory.tenants.iter().map(|(name, t)| (t.id, name.as_str())).collect()
}

/// A tenant and a volume: the labels of an export.
type Labels<'a> = [(&'static str, &'a str); 2];

/// Exports that nothing has been asked of yet, by each volume's owner and the tenants that are connected to it. A rise from an absent
/// sample is none to Prometheus, so the counters that alerts watch are 0 from a volume's beginning, not absent.
fn unused<'a>(directory: &'a Directory, views: &Views) -> Vec<Labels<'a>> {
    // Volumes of two pools may have the same key.
    let mut counted = BTreeSet::new();
    for (pool, view) in views.iter().enumerate() {
        counted.extend(view.iter().flat_map(|v| &v.exports).map(|e| (pool, e.key, e.tenant)));
    }
    let (mut all, names) = (Vec::new(), tenant_names(directory));
    for v in directory.volumes.values() {
        // Nobody knows whether they are 0 in a pool that doesn't answer.
        let Some(view) = of_pool(views, v.pool) else { continue };
        let connected = view.connections_of(v.key).map(|(tenant, _)| tenant);
        let tenants: BTreeSet<_> = connected.chain(directory.tenants.get(&v.tenant).map(|t| t.id)).collect();
        for tenant in tenants.iter().filter(|t| !counted.contains(&(v.pool, v.key, **t))) {
            all.extend(names.get(tenant).map(|name| [("tenant", *name), ("volume", v.name.as_str())]));
        }
    }
    all
}

fn traffic(page: &mut Page, all: &[Named<'_>], unused: &[Labels<'_>]) {
    let mut per_op = |name: &str, help: &str, value: fn(&OpView) -> u64| {
        page.family(name, "counter", help);
        for (labels, e, _) in all {
            for (op, m) in OP_NAMES.iter().zip(&e.ops) {
                page.sample(name, &[labels[0], labels[1], ("op", op)], value(m));
            }
        }
    };
    per_op("plimsoll_requests_total", "Requests that ended as asked.", |m| m.done);
    per_op("plimsoll_bytes_total", "Bytes of the requests that ended as asked.", |m| m.bytes);
    per_op("plimsoll_failed_total", "Requests that went wrong.", |m| m.failed);
    for labels in unused {
        for op in OP_NAMES {
            page.sample("plimsoll_failed_total", &[labels[0], labels[1], ("op", op)], 0);
        }
    }
    page.family(
        "plimsoll_busy_total",
        "counter",
        "Requests answered busy: refused at once, or revoked after they were accepted.",
    );
    for (labels, e, _) in all {
        for (how, n) in [("refused", e.busy_refused), ("revoked", e.busy_revoked)] {
            page.sample("plimsoll_busy_total", &[labels[0], labels[1], ("how", how)], n);
        }
    }
    page.family(
        "plimsoll_deadlines_total",
        "counter",
        "Reads with a deadline, by result: met; missed (late, forecast in time); waited (late, as forecast).",
    );
    for (labels, e, _) in all {
        for (result, n) in [("met", e.deadline_met), ("missed", e.deadline_missed), ("waited", e.deadline_waited)] {
            page.sample("plimsoll_deadlines_total", &[labels[0], labels[1], ("result", result)], n);
        }
    }
    for labels in unused {
        for result in ["met", "missed", "waited"] {
            page.sample("plimsoll_deadlines_total", &[labels[0], labels[1], ("result", result)], 0);
        }
    }
    spared(page, all);
    promises(page, all);
    page.family("plimsoll_next_read_wait_seconds", "gauge", "Forecast wait of a small read that arrives now.");
    for (labels, e, _) in all {
        page.sample("plimsoll_next_read_wait_seconds", labels, e.next_read_wait.as_secs_f64());
    }
    page.family(
        "plimsoll_requests_inside",
        "gauge",
        "Requests in flight, by the layer or device that they, or their last parts, reached last.",
    );
    for (labels, e, _) in all {
        for (place, n) in &e.inside {
            page.sample("plimsoll_requests_inside", &[labels[0], labels[1], ("at", place)], n);
        }
    }
    page.family(
        "plimsoll_oldest_age_seconds",
        "gauge",
        "Age of the oldest request in flight, by layer or device; absent without one.",
    );
    for (labels, e, age) in all {
        if let Some((_, place)) = e.oldest {
            page.sample("plimsoll_oldest_age_seconds", &[labels[0], labels[1], ("at", place)], age.as_secs_f64());
        }
    }
    page.family(
        "plimsoll_wait_seconds_total",
        "counter",
        "Sum of the time that requests spent in a layer before it passed them on. For the device see plimsoll_device_seconds.",
    );
    for (labels, e, _) in all {
        for (layer, waited) in e.waited.iter().filter(|(_, waited)| *waited > Span::ZERO) {
            let labels = [labels[0], labels[1], ("layer", layer)];
            page.sample("plimsoll_wait_seconds_total", &labels, waited.as_secs_f64());
        }
    }
    page.family("plimsoll_auto_deadline_seconds", "gauge", "What a deadline that sets itself is now.");
    for (labels, e, _) in all {
        if let Some(deadline) = e.auto_deadline {
            page.sample("plimsoll_auto_deadline_seconds", labels, deadline.as_secs_f64());
        }
    }
    latencies(page, all);
}

fn promises(page: &mut Page, all: &[Named<'_>]) {
    let name = "plimsoll_promised_reads_ratio";
    page.family(
        name,
        "gauge",
        "Shares kept, missed, waited and refused of the reads with a deadline in the last minute, hour and day; absent without reads.",
    );
    for (labels, e, _) in all {
        for (window, t) in WINDOWS.iter().zip(&e.recent) {
            let results = [("kept", t.kept), ("missed", t.missed), ("waited", t.waited), ("refused", t.refused)];
            let sum: u64 = results.iter().map(|(_, n)| n).sum();
            for (result, n) in results {
                if sum > 0 {
                    let labels = [labels[0], labels[1], ("window", *window), ("result", result)];
                    page.sample(name, &labels, n as f64 / sum as f64);
                }
            }
        }
    }
    let name = "plimsoll_forecast_deviation_seconds";
    page.family(
        name,
        "gauge",
        "Actual minus forecast response time of reads accepted with a deadline, by percentile, over the last minute; absent without reads.",
    );
    for (labels, e, _) in all {
        for (percent, percentile) in PERCENTILES.iter().filter(|_| e.deviations.count() > 0) {
            let labels = [labels[0], labels[1], ("percentile", *percentile)];
            page.sample(name, &labels, e.deviations.percentile(*percent) as f64 / 1e6);
        }
    }
}

/// Reads of NVMe hosts that were served, however late, as their host was refused reads before.
fn spared(page: &mut Page, all: &[Named<'_>]) {
    let any = || all.iter().filter(|(_, e, _)| !e.spared.is_empty());
    page.family(
        "plimsoll_spared_total",
        "counter",
        "Reads of NVMe hosts that were served, however late, as their host was refused reads before, by rule; absent without.",
    );
    for (labels, e, _) in any() {
        for (rule, n) in SPARED_NAMES.iter().zip(e.spared.by_rule) {
            page.sample("plimsoll_spared_total", &[labels[0], labels[1], ("rule", rule)], n);
        }
    }
    page.family(
        "plimsoll_returned_seconds",
        "histogram",
        "Time from a refusal to an NVMe host until its read comes back; absent without.",
    );
    for (labels, e, _) in any() {
        page.histogram("plimsoll_returned_seconds", labels, &e.spared.returned, 0);
    }
    page.family(
        "plimsoll_spared_seconds",
        "histogram",
        "Response time of reads of plimsoll_spared_total, from their last arrival; absent without.",
    );
    for (labels, e, _) in any() {
        page.histogram("plimsoll_spared_seconds", labels, &e.spared.response, 0);
    }
}

fn latencies(page: &mut Page, all: &[Named<'_>]) {
    page.family(
        "plimsoll_response_seconds",
        "histogram",
        "Response time: from arrival to completion, of successful requests.",
    );
    for (labels, e, _) in all {
        for (op, m) in OP_NAMES.iter().zip(&e.ops) {
            page.histogram("plimsoll_response_seconds", &[labels[0], labels[1], ("op", op)], &m.response, 0);
        }
    }
    page.family("plimsoll_response_last_minute_seconds", "gauge", LAST_MINUTE);
    for (labels, e, _) in all {
        let judged = &e.minute;
        for (percent, percentile) in PERCENTILES.iter().filter(|_| judged.count() > 0) {
            let labels = [labels[0], labels[1], ("percentile", *percentile)];
            page.sample("plimsoll_response_last_minute_seconds", &labels, judged.percentile(*percent).as_secs_f64());
        }
    }
    page.family(
        "plimsoll_device_seconds",
        "histogram",
        "Time from a request's first dispatch to a device to its completion, of requests that reached one.",
    );
    for (labels, e, _) in all {
        page.histogram("plimsoll_device_seconds", labels, &e.device, 0);
    }
    page.family("plimsoll_forecast_error_seconds", "histogram", "Absolute error of the forecast at admission.");
    for (labels, e, _) in all {
        page.histogram("plimsoll_forecast_error_seconds", labels, &e.forecast_error, 0);
    }
}

fn tenants(page: &mut Page, control: &Control, directory: &Directory, views: &Views) {
    let mut slos = Vec::new();
    for (name, t) in &directory.tenants {
        let all = objectives(&t.class);
        if all.is_empty() {
            continue;
        }
        let sum = sum_of_tenant(t.id, views);
        for o in all {
            let (percentile, within) = (f64::from(o.percentile_bp) / 100.0, o.bound.as_secs_f64());
            slos.push((name, percentile.to_string(), within.to_string(), sum.objective(o)));
        }
    }
    let mut per_slo = |name: &str, help: &str, value: fn(&super::api::ObjectiveStatus) -> Option<f64>| {
        page.family(name, "gauge", help);
        for (tenant, percentile, within, status) in &slos {
            if let Some(value) = value(status) {
                let labels = [("tenant", tenant.as_str()), ("percentile", percentile), ("within_seconds", within)];
                page.sample(name, &labels, value);
            }
        }
    };
    per_slo(
        "plimsoll_slo_kept",
        "1 if the objective is kept (or there was no request to keep it for), 0 if it's broken.",
        |o| Some(if o.kept == Some(false) { 0.0 } else { 1.0 }),
    );
    per_slo("plimsoll_slo_measured_seconds", "What the objective's percentile was; absent without requests.", |o| {
        o.measured_us.map(|us| us as f64 / 1e6)
    });
    per_slo("plimsoll_slo_samples", "Requests that the objective is judged by.", |o| {
        Some(o.last_minute.requests as f64)
    });
    let name = "plimsoll_slo_within_ratio";
    page.family(
        name,
        "gauge",
        "Share of the requests of the last minute, hour and day within an objective's bound; absent without requests.",
    );
    for (tenant, percentile, within, o) in &slos {
        for (window, w) in WINDOWS.iter().zip([o.last_minute, o.last_hour, o.last_day]) {
            if w.requests > 0 {
                let labels = [
                    ("tenant", tenant.as_str()),
                    ("percentile", percentile),
                    ("within_seconds", within),
                    ("window", window),
                ];
                page.sample(name, &labels, w.within as f64 / w.requests as f64);
            }
        }
    }
    permits(page, control, directory, views);
}

fn permits(page: &mut Page, control: &Control, directory: &Directory, views: &Views) {
    page.family("plimsoll_permits", "gauge", "What a tenant has inside a pool: requests and bytes.");
    let all = control.node.pools.with(views);
    let pools = || all.iter().map(|(_, p, view)| (p, *view));
    for (name, t) in &directory.tenants {
        for (p, view) in pools() {
            let Some((jobs, bytes)) = view.and_then(|v| v.pool.permits.get(&t.id)) else { continue };
            for (unit, value) in [("requests", u64::from(*jobs)), ("bytes", *bytes)] {
                page.sample("plimsoll_permits", &[("tenant", name), ("pool", &p.name), ("unit", unit)], value);
            }
        }
    }
    page.family("plimsoll_permits_max", "gauge", "What a tenant may have inside each pool.");
    for (name, t) in &directory.tenants {
        for (unit, value) in [("requests", u64::from(t.permits.jobs_max)), ("bytes", t.permits.bytes_max)] {
            page.sample("plimsoll_permits_max", &[("tenant", name), ("unit", unit)], value);
        }
    }
    page.family("plimsoll_permit_waiting", "gauge", "Connections that wait for a permit of their tenant.");
    for (name, t) in &directory.tenants {
        for (p, view) in pools() {
            let Some(view) = view else { continue };
            let waiting = view.pool.permit_waiting.get(&t.id).copied().unwrap_or(0);
            page.sample("plimsoll_permit_waiting", &[("tenant", name), ("pool", &p.name)], waiting);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::engine::metrics::ExportMetrics;
    use crate::node::Node;
    use plimsoll_base::VolumeKey;
    use std::time::Duration;

    const TEXT: &str = r#"
        [listen]
        unix = "nbd.sock"
        [[pool]]
        name = "p"
        device = { null = true, size = "1GiB" }
        [[tenant]]
        name = "a"
        class = "best-effort"
        [[volume]]
        name = "v"
        pool = "p"
        size = "1MiB"
        tenant = "a"
    "#;

    /// Time that this thread has run: other programs don't count.
    fn on_cpu() -> Duration {
        let t = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        Duration::new(t.tv_sec as u64, t.tv_nsec as u32)
    }

    /// Returns the shortest time of several scrapes of a node whose `volumes` volumes are all in use, and the text's length in bytes. The time
    /// of the pool's own answer isn't in it.
    async fn scrape(node: &Node, volumes: u32) -> (Duration, usize) {
        let mut views = node.snapshots().await;
        let view = views[0].as_mut().unwrap();
        {
            let mut d = node.directory.write().unwrap();
            let tenant = d.tenants["a"].id;
            let one = d.volumes["v"].clone();
            let key = |id| VolumeKey { id, ..one.key };
            let export = ExportView::of(key(0), tenant, &ExportMetrics::default());
            for id in 1000..1000 + volumes {
                let (name, key) = (format!("v{id}"), key(id));
                d.volumes.insert(name.clone(), crate::directory::Volume { name, key, ..one.clone() });
                view.exports.push(ExportView { key, ..export.clone() });
                view.pool.connections.insert((key, tenant), 1);
            }
        }
        let directory = node.directory.read().unwrap();
        let once = || {
            let (began, mut page) = (on_cpu(), Page::default());
            super::volumes(&mut page, &node.pools, &directory, &views);
            deadlines(&mut page, &directory, &views);
            let about = About::new(node, &directory, 0, views[0].as_ref().unwrap());
            let keys = about.pool_view.exports.iter().map(|e| e.key);
            assert!(keys.map(|key| about.volume_name(key)).all(|name| name.starts_with('v')));
            let (named, unused) = (named_exports(&directory, &views), unused(&directory, &views));
            assert!(named.len() == volumes as usize && unused.len() <= 1, "{} and {}", named.len(), unused.len());
            (on_cpu() - began, page.into_text().len())
        };
        (0..5).map(|_| once()).min().unwrap()
    }

    /// It is done on the thread that serves the operator. So it costs what there is to say: not volumes times exports.
    #[tokio::test]
    async fn a_scrape_of_many_volumes_costs_what_its_text_does() {
        let dir = tempfile::tempdir().unwrap();
        let node = Node::start(&Config::parse(TEXT, &dir.path().join("node.toml")).unwrap()).await.unwrap();
        let (few, few_bytes) = scrape(&node, 500).await;
        let (many, many_bytes) = scrape(&node, 16_000).await;
        println!("{few:?} for {few_bytes} bytes, {many:?} for {many_bytes}");
        assert!(many_bytes > 31 * few_bytes);
        // Of 32 times as many, 1024 times as much if each is compared with each.
        assert!(many < few * 32 * 4, "{few:?} for {few_bytes} bytes, {many:?} for {many_bytes}");
        node.shut_down().unwrap();
    }
}
