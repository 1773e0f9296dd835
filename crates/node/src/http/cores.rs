//! What is told of a pool's cores: `GET /v1/pools/{name}/cores` and the metrics.

use super::prometheus::Page;
use super::status::Views;
use super::{ApiError, Control, Shared};
use crate::directory::Directory;
use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use plimsoll_base::Span;
use plimsoll_cores::{CoresStatus, QueueStatus};
use serde::{Deserialize, Serialize};

/// `GET /v1/pools/{name}/cores`: who has a pool's cores.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CoresView {
    /// Who decides: `qwin`, `two-priorities`, …
    pub policy: String,
    /// How many cores there are.
    pub cores: u32,
    /// Requests that one may have in flight.
    pub depth: u32,
    /// Requests in service.
    pub busy: u32,
    /// Cores that no latency-critical queue has: best effort's.
    pub best_effort_cores: u32,
    /// Reads answered busy as their deadline had passed while they waited.
    pub revoked: u64,
    /// Bytes a second that best effort may write; absent while that isn't bounded.
    pub best_effort_write_bytes_per_s: Option<u64>,
    /// How often that was cut.
    pub best_effort_write_cuts: u64,
    /// One for each set of objectives, and for each best-effort tenant.
    pub queues: Vec<CoreQueueView>,
}

/// One queue.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CoreQueueView {
    /// The tenants that share it.
    pub tenants: Vec<String>,
    /// Its core policy: `conservative`, `slo-aware` or `aggressive`; absent of best effort and without windows.
    pub core_policy: Option<String>,
    /// Requests that wait for a core.
    pub waiting: u64,
    /// Requests in service.
    pub in_service: u32,
    /// Cores of its own.
    pub cores: u32,
    /// The most it had.
    pub cores_max: u32,
    /// Core time given to it since the start.
    pub core_time_us: u64,
    /// Cores taken since the start.
    pub grown: u64,
    /// Cores yielded since the start.
    pub yielded: u64,
    /// Windows since the start.
    pub windows: u64,
    /// Temp windows since the start.
    pub temp_windows: u64,
    /// Windows in which a request was later than an objective.
    pub late_windows: u64,
    /// Changes of its core policy.
    pub policy_changes: u64,
    /// What a request takes below.
    pub service_mean_us: u64,
    /// The tail of that at the highest of the objectives' percentiles.
    pub service_tail_us: u64,
    /// What the newest that waits will have taken, by what is known now.
    pub predicted_tail_us: u64,
    /// The tail of response times since the last poll.
    pub measured_tail_us: u64,
    /// The device alone breaks an objective: no number of cores keeps it.
    pub hopeless: bool,
}

impl CoresView {
    fn of(s: &CoresStatus, directory: &Directory) -> CoresView {
        CoresView {
            policy: s.policy.to_string(),
            cores: s.cores,
            depth: s.depth,
            busy: s.busy,
            best_effort_cores: s.unowned,
            revoked: s.revoked,
            best_effort_write_bytes_per_s: s.write_rate,
            best_effort_write_cuts: s.write_cuts,
            queues: s.queues.iter().filter(|q| !q.tenants.is_empty()).map(|q| queue(q, directory)).collect(),
        }
    }
}

fn queue(q: &QueueStatus, directory: &Directory) -> CoreQueueView {
    let named = directory.tenants.iter().filter(|(_, t)| q.tenants.contains(&t.id));
    let us = |s: Span| s.as_micros();
    CoreQueueView {
        tenants: named.map(|(name, _)| name.clone()).collect(),
        core_policy: q.core_policy.map(|p| p.name().to_string()),
        waiting: q.waiting as u64,
        in_service: q.in_service,
        cores: q.cores,
        cores_max: q.cores_max,
        core_time_us: us(q.core_time),
        grown: q.grown,
        yielded: q.yielded,
        windows: q.windows,
        temp_windows: q.temp_windows,
        late_windows: q.late_windows,
        policy_changes: q.policy_changes,
        service_mean_us: us(q.service_mean),
        service_tail_us: q.service_tails.iter().map(|t| us(t.1)).max().unwrap_or(0),
        predicted_tail_us: us(q.predicted_tail),
        measured_tail_us: us(q.measured_tail),
        hopeless: q.is_hopeless,
    }
}

/// `GET /v1/pools/{name}/cores`
pub(super) async fn show(State(control): Shared, Path(name): Path<String>) -> Result<Json<CoresView>, ApiError> {
    let missing = || ApiError::missing(format!("there is no pool `{name}`")).todo("GET /v1/status lists them");
    let n = control.node.pools.iter().position(|p| p.name == name).ok_or_else(missing)?;
    let views = control.node.snapshots().await;
    let gone = || ApiError::new(StatusCode::SERVICE_UNAVAILABLE, format!("pool `{name}` doesn't answer"));
    let view = views[n].as_ref().ok_or_else(gone)?;
    let none = || ApiError::missing(format!("pool `{name}` has no cores")).todo("say `cores = N` in its section");
    let directory = control.node.directory.read().expect("no panic while held");
    Ok(Json(CoresView::of(view.layers.cores.as_deref().ok_or_else(none)?, &directory)))
}

/// A number of one queue, for a metric.
type Value = fn(&CoreQueueView) -> f64;

const FAMILIES: [(&str, &str, Value); 15] = [
    ("plimsoll_cores_owned", "Cores that a queue has of its own.", |q| f64::from(q.cores)),
    ("plimsoll_cores_waiting", "Requests of a queue that wait for a core.", |q| q.waiting as f64),
    ("plimsoll_cores_in_service", "Requests of a queue in service.", |q| f64::from(q.in_service)),
    ("plimsoll_cores_seconds_total", "Core time given to a queue.", |q| q.core_time_us as f64 / 1e6),
    ("plimsoll_cores_grown_total", "Cores that a queue took.", |q| q.grown as f64),
    ("plimsoll_cores_yielded_total", "Cores that a queue gave back.", |q| q.yielded as f64),
    ("plimsoll_cores_windows_total", "Windows of a queue.", |q| q.windows as f64),
    ("plimsoll_cores_temp_windows_total", "Temp windows that were looked at.", |q| q.temp_windows as f64),
    ("plimsoll_cores_late_windows_total", "Windows in which a request was later than an objective.", |q| {
        q.late_windows as f64
    }),
    ("plimsoll_cores_policy_changes_total", "Changes of a queue's core policy.", |q| q.policy_changes as f64),
    ("plimsoll_cores_service_mean_seconds", "What a queue's requests take below.", |q| q.service_mean_us as f64 / 1e6),
    ("plimsoll_cores_service_tail_seconds", "The tail of that at the objectives' highest percentile.", |q| {
        q.service_tail_us as f64 / 1e6
    }),
    ("plimsoll_cores_predicted_tail_seconds", "What the newest that waits will have taken, as predicted.", |q| {
        q.predicted_tail_us as f64 / 1e6
    }),
    ("plimsoll_cores_measured_tail_seconds", "The tail measured since the last poll of a queue.", |q| {
        q.measured_tail_us as f64 / 1e6
    }),
    ("plimsoll_cores_hopeless", "1 if the device alone breaks an objective of the queue.", |q| {
        f64::from(u8::from(q.hopeless))
    }),
];

const CORE_POLICIES: [&str; 3] = ["conservative", "slo-aware", "aggressive"];

/// The metrics of all pools that have cores; a queue's label is its tenants, joined by `+`.
pub(super) fn metrics(page: &mut Page, control: &Control, directory: &Directory, views: &Views) {
    let all: Vec<(&str, CoresView)> = (control.node.pools.iter().zip(views))
        .filter_map(|(p, v)| Some((p.name.as_str(), CoresView::of(v.as_ref()?.layers.cores.as_deref()?, directory))))
        .collect();
    page.family("plimsoll_cores_best_effort", "gauge", "Cores that no latency-critical queue has.");
    for (pool, v) in &all {
        page.sample("plimsoll_cores_best_effort", &[("pool", pool)], v.best_effort_cores);
    }
    page.family("plimsoll_cores_busy", "gauge", "Requests in service on a pool's cores.");
    for (pool, v) in &all {
        page.sample("plimsoll_cores_busy", &[("pool", pool)], v.busy);
    }
    page.family(
        "plimsoll_cores_best_effort_write_bytes_per_second",
        "gauge",
        "What best effort may write, where that is bounded.",
    );
    for (pool, v) in &all {
        if let Some(rate) = v.best_effort_write_bytes_per_s {
            page.sample("plimsoll_cores_best_effort_write_bytes_per_second", &[("pool", pool)], rate);
        }
    }
    page.family(
        "plimsoll_cores_best_effort_write_cuts_total",
        "counter",
        "How often what best effort may write was cut.",
    );
    for (pool, v) in &all {
        page.sample("plimsoll_cores_best_effort_write_cuts_total", &[("pool", pool)], v.best_effort_write_cuts);
    }
    for (name, help, value) in FAMILIES {
        page.family(name, if name.ends_with("_total") { "counter" } else { "gauge" }, help);
        for (pool, v) in &all {
            for q in &v.queues {
                page.sample(name, &[("pool", pool), ("queue", &q.tenants.join("+"))], value(q));
            }
        }
    }
    page.family("plimsoll_cores_policy", "gauge", "1 for the core policy that a queue has, 0 for the others.");
    for (pool, v) in &all {
        for q in v.queues.iter().filter(|q| q.core_policy.is_some()) {
            for policy in CORE_POLICIES {
                let is = q.core_policy.as_deref() == Some(policy);
                let labels = [("pool", *pool), ("queue", &q.tenants.join("+")), ("policy", policy)];
                page.sample("plimsoll_cores_policy", &labels, u8::from(is));
            }
        }
    }
}
