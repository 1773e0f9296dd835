//! `GET /metrics`: Prometheus' text format, version 0.0.4. Every family is described in docs/metrics.md.

use super::Control;
use super::api::LogsView;
use super::status::{Views, objective, objectives, pool_state, sum_of_tenant};
use crate::directory::{Directory, VolumeState};
use crate::engine::metrics::OP_NAMES;
use crate::parts::look::PoolView;
use crate::view::{ExportView, OpView, Summary};
use plimsoll_base::Span;
use plimsoll_cache::CacheStatus;
use plimsoll_device::CacheCounts;
use plimsoll_sched::budgets::BudgetView;
use plimsoll_stack::inside::Knowledge;
use std::fmt::Write;

/// Upper bounds of every histogram's buckets: 10 us to 60 s, two or three a decade.
const BUCKETS: [(Span, &str); 21] = [
    (Span::from_micros(10), "0.00001"),
    (Span::from_micros(25), "0.000025"),
    (Span::from_micros(50), "0.00005"),
    (Span::from_micros(100), "0.0001"),
    (Span::from_micros(250), "0.00025"),
    (Span::from_micros(500), "0.0005"),
    (Span::from_millis(1), "0.001"),
    (Span::from_micros(2500), "0.0025"),
    (Span::from_millis(5), "0.005"),
    (Span::from_millis(10), "0.01"),
    (Span::from_millis(25), "0.025"),
    (Span::from_millis(50), "0.05"),
    (Span::from_millis(100), "0.1"),
    (Span::from_millis(250), "0.25"),
    (Span::from_millis(500), "0.5"),
    (Span::from_secs(1), "1"),
    (Span::from_millis(2500), "2.5"),
    (Span::from_secs(5), "5"),
    (Span::from_secs(10), "10"),
    (Span::from_secs(30), "30"),
    (Span::from_secs(60), "60"),
];

const LAST_MINUTE: &str = "The same by quantile, over the last whole minute or the running one, whichever has more \
                           requests; absent without.";
const QUANTILES: [(f64, &str); 4] = [(50.0, "0.5"), (90.0, "0.9"), (99.0, "0.99"), (99.9, "0.999")];

const POOL_STATES: [&str; 5] = ["recovering", "ready", "degraded", "failed", "ended"];
const VOLUME_STATES: [VolumeState; 4] =
    [VolumeState::Recovering, VolumeState::Ready, VolumeState::Degraded, VolumeState::Failed];

/// The whole exposition.
pub fn exposition(control: &Control, views: &Views) -> String {
    let directory = control.node.directory.read().expect("no panic while held");
    let mut page = Page(String::new());
    node(&mut page, control);
    pools(&mut page, control, views);
    models(&mut page, control, views);
    layers(&mut page, control, views);
    super::cores::metrics(&mut page, control, &directory, views);
    super::fence::metrics(&mut page, control, views);
    predictors(&mut page, control, &directory, views);
    memory(&mut page, control, views);
    cache(&mut page, control, views);
    logs(&mut page, control, views);
    volumes(&mut page, control, &directory, views);
    traffic(&mut page, &named_exports(&directory, views));
    tenants(&mut page, control, &directory, views);
    page.0
}

fn node(page: &mut Page, control: &Control) {
    page.family("plimsoll_build_info", "gauge", "Always 1; the label says the version.");
    page.sample("plimsoll_build_info", &[("version", env!("CARGO_PKG_VERSION"))], 1);
    page.family("plimsoll_uptime_seconds", "gauge", "Since the node began to serve.");
    page.sample("plimsoll_uptime_seconds", &[], control.started.elapsed().as_secs_f64());
}

fn pools(page: &mut Page, control: &Control, views: &Views) {
    let named = || control.node.pools.iter().zip(views);
    page.family("plimsoll_pool_state", "gauge", "1 for the state the pool is in, 0 for the others.");
    for (p, view) in named() {
        for state in POOL_STATES {
            let is = pool_state(p.failed.is_none(), view.as_ref().map(|v| &v.pool)) == state;
            page.sample("plimsoll_pool_state", &[("pool", &p.name), ("state", state)], u8::from(is));
        }
    }
    page.family("plimsoll_pool_free_bytes", "gauge", "Space that no volume has.");
    for (n, p) in control.node.pools.iter().enumerate() {
        if let Some(free) = control.node.free_bytes(n) {
            page.sample("plimsoll_pool_free_bytes", &[("pool", &p.name)], free);
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
        "Requests by where they are: waiting for an overlapping one (front), in the scheduler, at the device.",
    );
    for (p, view) in named() {
        let Some((s, l)) = view.as_ref().map(|v| (&v.pool, &v.layers)) else { continue };
        let depths = [("front", s.overlap_waiting), ("sched", l.sched_depths.0), ("device", l.sched_depths.1)];
        for (place, depth) in depths {
            page.sample("plimsoll_queue_depth", &[("pool", &p.name), ("at", place)], depth);
        }
    }
    page.family(
        "plimsoll_pool_oldest_age_seconds",
        "gauge",
        "Age of the oldest request inside, by where it is; absent when the pool is idle.",
    );
    for (p, view) in named() {
        let Some(s) = view.as_ref().map(|v| &v.pool) else { continue };
        if let Some((at, place)) = s.oldest {
            let age = s.now.since(at).as_secs_f64();
            page.sample("plimsoll_pool_oldest_age_seconds", &[("pool", &p.name), ("at", place)], age);
        }
    }
}

/// How devices that are modelled in real time keep to their models, and how often the host kept them from it.
fn models(page: &mut Page, control: &Control, views: &Views) {
    let Some(watchdog) = &control.node.watchdog else { return };
    let modelled = || {
        let with_view = control.node.pools.iter().zip(views);
        with_view.filter_map(|(p, view)| Some((&p.name, view.as_ref()?.layers.model.as_ref()?)))
    };
    page.family(
        "plimsoll_model_lateness_seconds",
        "histogram",
        "How long after its due time a modelled device's completion came.",
    );
    for (pool, m) in modelled() {
        let lateness = Summary::from(&m.lateness);
        page.histogram("plimsoll_model_lateness_seconds", &[("pool", pool)], &lateness, 0);
    }
    page.family(
        "plimsoll_model_data_late_total",
        "counter",
        "Completions that the real bytes weren't there for in time.",
    );
    for (pool, m) in modelled() {
        page.sample("plimsoll_model_data_late_total", &[("pool", pool)], m.data_late);
    }
    page.family(
        "plimsoll_host_pause_seconds",
        "histogram",
        "Pauses of 250 us and more that the host or other programs forced on this one.",
    );
    page.histogram("plimsoll_host_pause_seconds", &[], &Summary::from(&watchdog.pauses()), 0);
}

fn layers(page: &mut Page, control: &Control, views: &Views) {
    let mut all = Vec::new();
    for (p, view) in control.node.pools.iter().zip(views) {
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
        "Requests refused at the top in whose forecast wait a layer had a part.",
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

/// What waits are predicted by, and how many late reads tenants' budgets let in.
fn predictors(page: &mut Page, control: &Control, directory: &Directory, views: &Views) {
    let pools =
        || control.node.pools.iter().zip(views).filter_map(|(p, v)| Some((p.name.as_str(), &v.as_ref()?.layers)));
    let mut per_predictor = |name: &str, help: &str, value: fn(&Knowledge) -> f64| {
        page.family(name, if name.ends_with("_total") { "counter" } else { "gauge" }, help);
        for (pool, l) in pools() {
            if let Some((predictor, k)) = &l.predictor {
                page.sample(name, &[("pool", pool), ("predictor", predictor)], value(k));
            }
        }
    };
    per_predictor(
        "plimsoll_predictor_profiled",
        "1 if waits are predicted from a measured profile, 0 if they are learned from conservative defaults.",
        |k| f64::from(u8::from(k.profiled)),
    );
    per_predictor("plimsoll_predictor_learned_total", "Completions that the predictor has learned from.", |k| {
        k.learned as f64
    });
    per_predictor("plimsoll_predictor_confidence", "How sure predictions are, 0 to 1.", |k| {
        f64::from(k.confidence.0) / 1000.0
    });
    let mut per_budget = |name: &str, help: &str, value: fn(&BudgetView) -> u64| {
        page.family(name, if name.ends_with("_total") { "counter" } else { "gauge" }, help);
        for (pool, l) in pools() {
            for b in &l.budgets {
                if let Some((tenant, _)) = directory.tenants.iter().find(|(_, t)| t.id == b.tenant) {
                    page.sample(name, &[("tenant", tenant), ("pool", pool)], value(b));
                }
            }
        }
    };
    per_budget("plimsoll_budget_reads", "Reads that a percentile's budget is counted over.", |b| b.reads);
    per_budget("plimsoll_budget_slow", "Those of them that were slow.", |b| b.slow);
    per_budget("plimsoll_budget_let_in_total", "Reads accepted on the budget though they were expected late.", |b| {
        b.let_in
    });
}

/// Of pools with a page cache.
fn memory(page: &mut Page, control: &Control, views: &Views) {
    let mut per_pool = |name: &str, help: &str, value: fn(&CacheCounts) -> u64| {
        page.family(name, if name.ends_with("_total") { "counter" } else { "gauge" }, help);
        for (p, view) in control.node.pools.iter().zip(views) {
            if let Some(counts) = view.as_ref().and_then(|v| v.layers.memory.as_ref()) {
                page.sample(name, &[("pool", &p.name)], value(counts));
            }
        }
    };
    per_pool("plimsoll_memory_bytes", "Pages in the page cache.", |c| c.resident * 4096);
    per_pool("plimsoll_memory_hits_total", "Reads answered from the page cache.", |c| c.hits);
    per_pool("plimsoll_memory_misses_total", "Reads that went below it.", |c| c.misses);
    per_pool("plimsoll_memory_fills_total", "Reads of its own that bring in what was asked for and refused.", |c| {
        c.fills
    });
    per_pool(
        "plimsoll_memory_fills_dropped_total",
        "Refused reads whose pages weren't brought in for too many others.",
        |c| c.fills_dropped,
    );
}

/// Of pools with a flash cache.
fn cache(page: &mut Page, control: &Control, views: &Views) {
    let mut per_pool = |name: &str, help: &str, value: fn(&CacheStatus) -> u64| {
        page.family(name, if name.ends_with("_total") { "counter" } else { "gauge" }, help);
        for (p, v) in control.node.pools.iter().zip(views) {
            if let Some(status) = v.as_ref().and_then(|v| v.layers.cache.as_deref()) {
                page.sample(name, &[("pool", p.name.as_str())], value(status));
            }
        }
    };
    per_pool("plimsoll_cache_up", "1 while the cache serves, 0 if its device failed.", |s| {
        u64::from(s.state == "ready")
    });
    per_pool("plimsoll_cache_used_bytes", "WEUs in use.", |s| u64::from(s.weus.2) * u64::from(s.weu_bytes));
    per_pool("plimsoll_cache_size_bytes", "WEUs that may be used.", |s| u64::from(s.weus.1) * u64::from(s.weu_bytes));
    per_pool("plimsoll_cache_extents", "Entries of the file index.", |s| s.entries.0);
    per_pool("plimsoll_cache_dirty_extents", "Extents that only the cache has.", |s| s.dirty);
    per_pool("plimsoll_cache_memory_bytes", "Memory of all indexes.", |s| s.memory_bytes);
    per_pool("plimsoll_cache_reads_total", "Reads.", |s| s.counters.reads);
    per_pool("plimsoll_cache_read_hits_total", "Reads that needed nothing from the slow device.", |s| {
        s.counters.read_hits
    });
    per_pool("plimsoll_cache_inserted_total", "Extents put in.", |s| s.counters.inserted);
    per_pool("plimsoll_cache_duplicates_total", "Extents put in whose content was there.", |s| s.counters.duplicates);
    per_pool("plimsoll_cache_packed_bytes_total", "Bytes packed, before compression.", |s| s.counters.packed_bytes);
    per_pool("plimsoll_cache_payload_bytes_total", "Bytes packed, after compression.", |s| s.counters.payload_bytes);
    per_pool("plimsoll_cache_written_bytes_total", "Bytes written to the fast device.", |s| {
        s.counters.weu_bytes + s.counters.journal_bytes
    });
    per_pool("plimsoll_cache_evicted_total", "WEUs evicted.", |s| s.counters.evicted);
    per_pool("plimsoll_cache_written_back_total", "Extents written back.", |s| s.counters.written_back);
    per_pool("plimsoll_cache_corrupt_total", "Extents read back that weren't what they should be.", |s| {
        s.counters.corrupt
    });
    per_pool("plimsoll_cache_unreadable_total", "Reads of the fast device that failed.", |s| s.counters.unreadable);
    per_pool("plimsoll_cache_lost_total", "Of both, extents that only the cache had.", |s| s.counters.lost);
}

/// Of pools with scattered logs.
fn logs(page: &mut Page, control: &Control, views: &Views) {
    let all: Vec<_> = (control.node.pools.iter().zip(views))
        .filter_map(|(p, v)| Some((p.name.as_str(), LogsView::from(v.as_ref()?.layers.logs.as_deref()?))))
        .collect();
    let mut per_pool = |name: &str, help: &str, value: fn(&LogsView) -> u64| {
        page.family(name, if name.ends_with("_total") { "counter" } else { "gauge" }, help);
        for (pool, l) in &all {
            page.sample(name, &[("pool", pool)], value(l));
        }
    };
    per_pool("plimsoll_logs_logged_write_bytes", "Writes up to this are logged now.", |l| l.logged_write_bytes);
    per_pool("plimsoll_logs_valid_bytes", "Logged bytes that a checkpoint would bring home.", |l| l.valid_bytes);
    per_pool("plimsoll_logs_used_bytes", "Bytes of logs that are taken, valid or not.", |l| {
        let percent: u64 = l.occupancy_percent.iter().filter(|p| **p <= 100).map(|p| u64::from(*p)).sum();
        percent * (l.log_bytes / 100)
    });
    per_pool("plimsoll_logs_size_bytes", "Bytes of all logs.", |l| u64::from(l.logs) * l.log_bytes);
    per_pool("plimsoll_logs_mtl_extents", "Extents in the MTL table.", |l| l.extents);
    per_pool("plimsoll_logs_mtl_extents_max", "As many as it may have.", |l| l.extents_max);
    per_pool("plimsoll_logs_retired", "Logs retired after an error.", |l| l.logs_retired);
    per_pool("plimsoll_logs_cleaning", "1 while logs are being emptied.", |l| u64::from(l.cleaning.is_some()));
    per_pool("plimsoll_logs_writes_total", "Writes logged.", |l| l.logged);
    per_pool("plimsoll_logs_written_bytes_total", "Bytes of those.", |l| l.logged_bytes);
    per_pool("plimsoll_logs_records_total", "Records written for them.", |l| l.records);
    per_pool("plimsoll_logs_spilled_total", "Small writes sent home as no log had room.", |l| l.spilled);
    per_pool("plimsoll_logs_reads_total", "Reads that found something in a log.", |l| l.reads_from_logs);
    per_pool("plimsoll_logs_images_total", "Images of the MTL table written.", |l| l.images);
    per_pool("plimsoll_logs_swaps_total", "Logs swapped.", |l| l.swaps);
    per_pool("plimsoll_logs_checkpoints_total", "Checkpoints, whole or in idle time.", |l| l.checkpoints);
    per_pool("plimsoll_logs_cleaned_bytes_total", "Bytes brought home or swapped.", |l| l.cleaned_bytes);
    per_pool(
        "plimsoll_logs_reads_corrupt_total",
        "Reads that found other bytes in a log than were written there.",
        |l| l.reads_corrupt,
    );
    per_pool("plimsoll_logs_reads_lost_total", "Reads of logged data that are known lost.", |l| l.reads_lost);
    per_pool("plimsoll_logs_lost_bytes", "Bytes whose reads fail until they are written again.", |l| l.lost_bytes);
    per_pool("plimsoll_logs_witness_records_total", "Records written only to say what was durable before them.", |l| {
        l.witness_records
    });
    per_pool("plimsoll_logs_table_errors_total", "Writes of the MTL table and its notes that failed.", |l| {
        l.table_errors
    });
    page.family("plimsoll_logs_recovery_seconds", "gauge", "How long the logs took to recover at the start.");
    for (pool, l) in &all {
        page.sample("plimsoll_logs_recovery_seconds", &[("pool", pool)], l.recovery_us as f64 / 1e6);
    }
}

fn volumes(page: &mut Page, control: &Control, directory: &Directory, views: &Views) {
    page.family("plimsoll_volume_state", "gauge", "1 for the state the volume is in, 0 for the others.");
    for v in directory.volumes.values() {
        for state in VOLUME_STATES {
            let labels =
                [("pool", control.node.pools[v.pool].name.as_str()), ("volume", &v.name), ("state", state.name())];
            page.sample("plimsoll_volume_state", &labels, u8::from(v.state() == state));
        }
    }
    page.family("plimsoll_volume_size_bytes", "gauge", "The volume's size.");
    for v in directory.volumes.values() {
        let labels = [("pool", control.node.pools[v.pool].name.as_str()), ("volume", &v.name)];
        page.sample("plimsoll_volume_size_bytes", &labels, v.size_bytes);
    }
    page.family("plimsoll_connections", "gauge", "NBD connections.");
    for v in directory.volumes.values() {
        let Some(view) = &views[v.pool] else { continue };
        for (name, t) in &directory.tenants {
            if let Some(n) = view.pool.connections.get(&(v.key, t.id)) {
                page.sample("plimsoll_connections", &[("tenant", name), ("volume", &v.name)], n);
            }
        }
    }
}

/// An export with its tenant's and volume's names.
type Named<'a> = ([(&'static str, &'a str); 2], &'a ExportView, Span);

/// Exports whose tenant and volume are still there, with the age of the oldest request.
fn named_exports<'a>(directory: &'a Directory, views: &'a Views) -> Vec<Named<'a>> {
    let mut all = Vec::new();
    for (pool, view) in views.iter().enumerate() {
        let Some(view) = view else { continue };
        for e in &view.exports {
            let volume = directory.volumes.values().find(|v| v.pool == pool && v.key == e.key);
            let tenant = directory.tenants.iter().find(|(_, t)| t.id == e.tenant);
            if let (Some(volume), Some((tenant, _))) = (volume, tenant) {
                let age = e.oldest.map_or(Span::ZERO, |(at, _)| view.pool.now.since(at));
                all.push(([("tenant", tenant.as_str()), ("volume", &volume.name)], e, age));
            }
        }
    }
    all
}

fn traffic(page: &mut Page, all: &[Named<'_>]) {
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
        "Requests with a deadline that were done by it (met) or after it (missed).",
    );
    for (labels, e, _) in all {
        for (result, n) in [("met", e.deadline_met), ("missed", e.deadline_missed)] {
            page.sample("plimsoll_deadlines_total", &[labels[0], labels[1], ("result", result)], n);
        }
    }
    page.family(
        "plimsoll_next_read_wait_seconds",
        "gauge",
        "What a small read would wait if it arrived now, as the pool forecasts.",
    );
    for (labels, e, _) in all {
        page.sample("plimsoll_next_read_wait_seconds", labels, e.next_read_wait.as_secs_f64());
    }
    page.family(
        "plimsoll_requests_inside",
        "gauge",
        "Requests inside the node now, by the layer or device that they, or their last parts, came to last.",
    );
    for (labels, e, _) in all {
        for (place, n) in &e.inside {
            page.sample("plimsoll_requests_inside", &[labels[0], labels[1], ("at", place)], n);
        }
    }
    page.family(
        "plimsoll_oldest_age_seconds",
        "gauge",
        "Age of the oldest request inside, by where it is; absent without one.",
    );
    for (labels, e, age) in all {
        if let Some((_, place)) = e.oldest {
            page.sample("plimsoll_oldest_age_seconds", &[labels[0], labels[1], ("at", place)], age.as_secs_f64());
        }
    }
    page.family(
        "plimsoll_wait_seconds_total",
        "counter",
        "Time that requests spent in a layer before it passed them on, summed. Of the device, plimsoll_device_seconds tells.",
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

fn latencies(page: &mut Page, all: &[Named<'_>]) {
    page.family(
        "plimsoll_response_seconds",
        "histogram",
        "From a request's arrival to its completion, of those that ended as asked.",
    );
    for (labels, e, _) in all {
        for (op, m) in OP_NAMES.iter().zip(&e.ops) {
            page.histogram("plimsoll_response_seconds", &[labels[0], labels[1], ("op", op)], &m.response, 0);
        }
    }
    page.family("plimsoll_response_last_minute_seconds", "gauge", LAST_MINUTE);
    for (labels, e, _) in all {
        let judged = &e.minute;
        for (percent, quantile) in QUANTILES.iter().filter(|_| judged.count() > 0) {
            let labels = [labels[0], labels[1], ("quantile", *quantile)];
            page.sample("plimsoll_response_last_minute_seconds", &labels, judged.percentile(*percent).as_secs_f64());
        }
    }
    page.family(
        "plimsoll_device_seconds",
        "histogram",
        "From a request's first dispatch to a device to its completion, of those that reached one.",
    );
    for (labels, e, _) in all {
        page.histogram("plimsoll_device_seconds", labels, &e.device, 0);
    }
    page.family(
        "plimsoll_forecast_error_seconds",
        "histogram",
        "How far the forecast at admission was off, either way.",
    );
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
        let measured = sum_of_tenant(t.id, views).minute;
        for o in all {
            let (percentile, within) = (f64::from(o.percentile_bp) / 100.0, o.bound.as_secs_f64());
            slos.push((name, percentile.to_string(), within.to_string(), objective(o, &measured)));
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
    per_slo("plimsoll_slo_samples", "Requests that the objective is judged by.", |o| Some(o.samples as f64));
    permits(page, control, directory, views);
}

fn permits(page: &mut Page, control: &Control, directory: &Directory, views: &Views) {
    page.family("plimsoll_permits", "gauge", "What a tenant has inside a pool: requests and bytes.");
    let pools = || control.node.pools.iter().zip(views);
    for (name, t) in &directory.tenants {
        for (p, view) in pools() {
            let Some((jobs, bytes)) = view.as_ref().and_then(|v| v.pool.permits.get(&t.id)) else { continue };
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
    page.family(
        "plimsoll_permit_waiting",
        "gauge",
        "Connections that aren't read from until their tenant has a permit.",
    );
    for (name, t) in &directory.tenants {
        for (p, view) in pools() {
            let Some(view) = view else { continue };
            let waiting = view.pool.permit_waiting.get(&t.id).copied().unwrap_or(0);
            page.sample("plimsoll_permit_waiting", &[("tenant", name), ("pool", &p.name)], waiting);
        }
    }
}

/// The text as it grows.
pub(super) struct Page(String);

impl Page {
    pub(super) fn family(&mut self, name: &str, kind: &str, help: &str) {
        writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}").expect("a string takes all");
    }

    pub(super) fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: impl std::fmt::Display) {
        self.0.push_str(name);
        for (i, (label, text)) in labels.iter().enumerate() {
            self.0.push(if i == 0 { '{' } else { ',' });
            self.0.push_str(label);
            self.0.push_str("=\"");
            for c in text.chars() {
                match c {
                    '\\' => self.0.push_str("\\\\"),
                    '"' => self.0.push_str("\\\""),
                    '\n' => self.0.push_str("\\n"),
                    other => self.0.push(other),
                }
            }
            self.0.push('"');
        }
        self.0.push_str(if labels.is_empty() { " " } else { "} " });
        writeln!(self.0, "{value}").expect("a string takes all");
    }

    /// A histogram's buckets, sum and count; `zeroes` more values were zero and aren't in `h`.
    fn histogram(&mut self, name: &str, labels: &[(&'static str, &str)], h: &Summary, zeroes: u64) {
        let mut with_le = labels.to_vec();
        with_le.push(("le", ""));
        let last = with_le.len() - 1;
        let bucket = format!("{name}_bucket");
        let mut recorded = h.buckets().iter().peekable();
        let mut so_far = zeroes;
        for (bound, text) in BUCKETS {
            while let Some((_, n)) = recorded.next_if(|(upper, _)| *upper <= bound) {
                so_far += n;
            }
            with_le[last].1 = text;
            self.sample(&bucket, &with_le, so_far);
        }
        let count = h.count() + zeroes;
        with_le[last].1 = "+Inf";
        self.sample(&bucket, &with_le, count);
        self.sample(&format!("{name}_sum"), labels, h.sum().as_secs_f64());
        self.sample(&format!("{name}_count"), labels, count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_base::LatencyHistogram;

    #[test]
    fn buckets_count_all_up_to_their_bound() {
        let mut h = LatencyHistogram::new();
        [9, 60, 60, 2_000_000, 90_000_000].into_iter().for_each(|us| h.record(Span::from_micros(us)));
        let mut page = Page(String::new());
        page.histogram("x", &[("a", "b")], &Summary::from(&h), 2);
        let count = |le: &str| {
            let start = format!("x_bucket{{a=\"b\",le=\"{le}\"}} ");
            page.0.lines().find_map(|l| l.strip_prefix(&start)).unwrap().parse::<u64>().unwrap()
        };
        let counts = ["0.00001", "0.00005", "0.0001", "1", "2.5", "60", "+Inf"].map(count);
        assert_eq!(counts, [3, 3, 5, 5, 6, 6, 7]);
        assert!(page.0.ends_with("x_sum{a=\"b\"} 92.000129\nx_count{a=\"b\"} 7\n"), "{}", page.0);
        assert_eq!(page.0.lines().count(), BUCKETS.len() + 3);
    }

    #[test]
    fn bucket_bounds_are_what_they_say() {
        for (bound, text) in BUCKETS {
            assert_eq!(text.parse::<f64>().unwrap(), bound.as_secs_f64());
        }
    }

    #[test]
    fn label_texts_are_escaped() {
        let mut page = Page(String::new());
        page.sample("x", &[("a", "q\"b\\n\n")], 1);
        assert_eq!(page.0, "x{a=\"q\\\"b\\\\n\\n\"} 1\n");
    }
}
