//! A pool's cores (QWin).

use super::page::{Family, Page};
use super::settings::{Live, Setting, Unit};
use super::{About, Part, Shown};
use crate::config::{BadConfig, PoolConfig, SpanText};
use crate::directory::Directory;
use plimsoll_base::{Span, Time, bytes_text};
use plimsoll_cores::admission::Fit;
use plimsoll_cores::{
    CoresConfig, CoresControl, CoresReport, CoresStatus, Missed, PolicyConfig, QueueStatus, QwinConfig,
};
use plimsoll_stack::{Addressed, Stack};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::ops::RangeInclusive;
use std::sync::{Arc, RwLock};

/// Names of the policies that need no more than a name.
const POLICIES: &str =
    "qwin, qwin-window, share-everything, partial-sharing, two-priorities, cake, shenango, static or mclock";

fn policy(name: &str) -> Result<PolicyConfig, BadConfig> {
    Ok(match name {
        "qwin" => PolicyConfig::Qwin(QwinConfig::default()),
        "qwin-window" => PolicyConfig::Qwin(QwinConfig::published()),
        "share-everything" => PolicyConfig::ShareEverything,
        "partial-sharing" => PolicyConfig::PartialSharing,
        "two-priorities" => PolicyConfig::TwoPriorities,
        "cake" => PolicyConfig::Cake { interval: Span::from_secs(1) },
        "shenango" => PolicyConfig::Shenango { interval: Span::from_millis(1) },
        "static" => PolicyConfig::Static,
        "mclock" => PolicyConfig::Mclock,
        other => return Err(BadConfig::new(format!("core_policy `{other}` is unknown: {POLICIES}"))),
    })
}

/// The cores of a pool's section; `None` if it has none.
///
/// # Errors
/// The fault, and the remedy.
pub fn config(pool: &PoolConfig) -> Result<Option<CoresConfig>, BadConfig> {
    let config = unchecked(pool)?;
    config.as_ref().map_or(Ok(()), CoresConfig::check).map_err(BadConfig::new)?;
    Ok(config)
}

/// The same, but for the ranges of its values: settings are put one after the other, and only fit all together.
fn unchecked(pool: &PoolConfig) -> Result<Option<CoresConfig>, BadConfig> {
    let Some(cores) = pool.cores else {
        let stray = [
            ("core_depth", pool.core_depth.is_some()),
            ("core_policy", pool.core_policy.is_some()),
            ("core_slack", pool.core_slack.is_some()),
            ("core_poll_windows", pool.core_poll_windows.is_some()),
            ("bound_best_effort_writes", pool.bound_best_effort_writes.is_some()),
        ];
        return match stray.iter().find(|(_, set)| *set) {
            Some((key, _)) => {
                Err(BadConfig::new(format!("{key} means nothing without `cores`: say how many there are")))
            }
            None => Ok(None),
        };
    };
    let mut policy = policy(pool.core_policy.as_ref().map_or("qwin", |p| p.get_ref()))?;
    match &mut policy {
        PolicyConfig::Qwin(q) => {
            q.bound_writes = pool.bound_best_effort_writes.unwrap_or(true);
            (q.slack_low, q.slack_high) =
                pool.core_slack.map_or((q.slack_low, q.slack_high), |[low, high]| (low.0, high.0));
            q.poll_windows = pool.core_poll_windows.unwrap_or(q.poll_windows);
        }
        _ if pool.bound_best_effort_writes.is_some() => {
            return Err(BadConfig::new("bound_best_effort_writes is for core_policy qwin and qwin-window"));
        }
        _ if pool.core_slack.is_some() => {
            return Err(BadConfig::new("core_slack is for core_policy qwin and qwin-window"));
        }
        _ if pool.core_poll_windows.is_some() => {
            return Err(BadConfig::new("core_poll_windows is for core_policy qwin and qwin-window"));
        }
        _ => {}
    }
    Ok(Some(CoresConfig { depth: pool.core_depth.unwrap_or(1), policy, ..CoresConfig::new(cores) }))
}

/// Slack is measured against objectives of milliseconds to seconds.
const SLACK_MAX: Span = Span::from_secs(10);
/// More windows than one looks at in a day.
const POLL_WINDOWS_MAX: u64 = 1_000_000_000;

/// QWin's configuration of a pool that has it.
fn qwin(pool: &PoolConfig) -> Option<QwinConfig> {
    match unchecked(pool) {
        Ok(Some(CoresConfig { policy: PolicyConfig::Qwin(q), .. })) => Some(q),
        _ => None,
    }
}

fn put_slack(pool: &mut PoolConfig, change: impl FnOnce(&mut Span, &mut Span)) {
    let Some(QwinConfig { slack_low: mut low, slack_high: mut high, .. }) = qwin(pool) else { return };
    change(&mut low, &mut high);
    pool.core_slack = Some([SpanText(low), SpanText(high)]);
}

fn slack_message(pool: &PoolConfig) -> Addressed {
    let q = qwin(pool).unwrap_or_default();
    Addressed::new(&CoresControl::Slack { low: q.slack_low, high: q.slack_high, poll_windows: q.poll_windows })
}

fn slack_range(_: &Live) -> RangeInclusive<u64> {
    0..=SLACK_MAX.as_micros()
}

/// Reports that wait for the log at most; what doesn't change is shown by the pool's part all the same.
const REPORTS_MAX: usize = 16;

/// Returns a logger of the cores' reports. A thread writes the log, which ends with the pool: neither the directory nor the log may
/// hold up the pool's own.
///
/// # Errors
/// If there is no thread to be had.
pub fn logger(pool: String, directory: Arc<RwLock<Directory>>) -> std::io::Result<impl Fn(CoresReport) + Send> {
    let (report, reports) = std::sync::mpsc::sync_channel(REPORTS_MAX);
    let logging = move || {
        for cores in reports {
            log(&pool, &cores, &directory.read().expect("no panic while held"));
        }
    };
    std::thread::Builder::new().name("reports".into()).spawn(logging)?;
    Ok(move |cores| _ = report.try_send(cores))
}

fn log(pool: &str, report: &CoresReport, directory: &Directory) {
    let named = |tenants: &[u16]| {
        let of = |(name, t): (&String, &crate::directory::Tenant)| tenants.contains(&t.id.0).then(|| name.clone());
        directory.tenants.iter().filter_map(of).collect::<Vec<_>>().join(", ")
    };
    match report {
        CoresReport::Unkept { tenants, missed: Missed { percentile_bp, within, alone } } => {
            let (tenants, percentile) = (named(tenants), f64::from(*percentile_bp) / 100.0);
            tracing::warn!(
                pool,
                tenants,
                "the objective p{percentile} within {within} can't be kept: it's {alone} although best effort does nothing or is at \
                 its least; allow more with `plimsoll tenant set`, or move other tenants with objectives to another pool"
            );
        }
        CoresReport::KeptAgain { tenants } => {
            tracing::info!(pool, tenants = named(tenants), "the objectives can be kept again");
        }
    }
}

/// The part.
pub struct Cores;

impl Part for Cores {
    type Seen = CoresStatus;
    type View = CoresView;
    const NAME: &'static str = "cores";
    const SUMMARY: &'static str = "Who has a pool's cores";
    const HOW: &'static str = "say `cores = N` in the pool's section";

    fn look(stack: &Stack, now: Time) -> Option<CoresStatus> {
        stack.layer::<plimsoll_cores::Cores>().map(|c| c.status(now))
    }

    fn view(seen: &CoresStatus, about: &About) -> CoresView {
        CoresView::of(seen, about.directory)
    }

    fn shown(v: &CoresView) -> Shown {
        let depth = if v.depth == 1 { String::new() } else { format!(" of depth {}", v.depth) };
        let bounded = bound_text(v);
        let mut shown = Shown::new(format!(
            "{} cores{depth} by {}, {} busy, best effort has {}{bounded}",
            v.cores, v.policy, v.busy, v.best_effort_cores
        ));
        let us = |us: u64| Span::from_micros(us).to_string();
        let row = |q: &CoreQueueView| {
            let own = |text: String| if q.core_policy.is_some() { text } else { "-".into() };
            let hopeless = match (q.hopeless, q.alone_tail_us) {
                (false, _) => String::new(),
                (true, None) => ", the device alone misses it".into(),
                (true, Some(tail)) => format!(", missed whatever best effort does: {}", us(tail)),
            };
            vec![
                q.tenants.join(","),
                own(format!("{} (at most {})", q.cores, q.cores_max)),
                q.waiting.to_string(),
                q.in_service.to_string(),
                q.core_policy.clone().unwrap_or("-".into()),
                own(format!("{} ({} late)", q.windows, q.late_windows)),
                format!("{} / {}", us(q.service_mean_us), us(q.service_tail_us)),
                own(us(q.predicted_tail_us)),
                own(format!("{}{hopeless}", us(q.measured_tail_us))),
            ]
        };
        let held: Vec<String> = v
            .queues
            .iter()
            .filter_map(|q| Some((q, q.held_us?)))
            .map(|(q, held)| format!("{} (for {})", q.tenants.join(","), us(held)))
            .collect();
        if !held.is_empty() {
            let deciding: Vec<String> =
                v.queues.iter().filter(|q| q.decides_bound).flat_map(|q| q.tenants.clone()).collect();
            shown.line("held", format!("{}, for the objectives of {}", held.join(", "), deciding.join(", ")));
        }
        for q in &v.queues {
            if let Some(what) = &q.shortage {
                shown.line("at worst", format!("the objective of {} {what}", q.tenants.join(",")));
            }
        }
        let head = ["TENANTS", "CORES", "WAIT", "SERVED", "POLICY", "WINDOWS", "SERVICE/TAIL", "PREDICTED", "MEASURED"];
        shown.table(&head, v.queues.iter().map(row).collect());
        shown
    }

    fn metrics(page: &mut Page, pools: &[(&str, CoresView)]) {
        metrics(page, pools);
    }

    fn check(pool: &PoolConfig) -> Result<(), BadConfig> {
        let place = pool.core_policy.as_ref().filter(|_| pool.cores.is_some());
        config(pool).map(drop).map_err(|e| e.at(place.map(|p| p.span().start)))
    }

    const SETTINGS: &'static [Setting] = &[
        Setting {
            key: "core_slack_low_us",
            unit: Unit::Us,
            help: "With less slack than this, QWin gives a tenant cores aggressively.",
            get: |pool| Some(qwin(pool)?.slack_low.as_micros()),
            put: |pool, us| put_slack(pool, |low, _| *low = Span::from_micros(us)),
            range: slack_range,
            message: slack_message,
        },
        Setting {
            key: "core_slack_high_us",
            unit: Unit::Us,
            help: "With more slack than this, QWin gives a tenant cores conservatively.",
            get: |pool| Some(qwin(pool)?.slack_high.as_micros()),
            put: |pool, us| put_slack(pool, |_, high| *high = Span::from_micros(us)),
            range: slack_range,
            message: slack_message,
        },
        Setting {
            key: "core_poll_windows",
            unit: Unit::Count,
            help: "Windows between two looks at the slack.",
            get: |pool| Some(qwin(pool)?.poll_windows),
            put: |pool, windows| pool.core_poll_windows = Some(windows),
            range: |_| 1..=POLL_WINDOWS_MAX,
            message: slack_message,
        },
    ];
}

/// Text of the bound on best effort's changes; empty while there is none. A bound that holds no request is shown as such.
fn bound_text(v: &CoresView) -> String {
    let Some(bytes) = v.best_effort_in_flight_bytes else { return String::new() };
    let holds = v.queues.iter().any(|q| q.held_us.is_some());
    match (holds, v.best_effort_is_least) {
        (false, _) => ", none of its writes is held".into(),
        (true, true) => ", its writes are held to the least pace".into(),
        (true, false) => format!(", its writes are held to {} in flight on average", bytes_text(bytes)),
    }
}

/// `GET /v1/pools/{name}/cores`: who has a pool's cores.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct CoresView {
    /// The policy: `qwin`, `two-priorities`, …
    pub policy: String,
    /// Number of cores.
    pub cores: u32,
    /// Requests that one may have in flight.
    pub depth: u32,
    /// Requests in service.
    pub busy: u32,
    /// Cores that no latency-critical queue has: best effort's.
    pub best_effort_cores: u32,
    /// Reads answered busy as their deadline had passed while they waited.
    pub revoked: u64,
    /// Bytes of writes that best effort may have in flight on average; absent while that isn't bounded.
    pub best_effort_in_flight_bytes: Option<u64>,
    /// The bound is at its least.
    pub best_effort_is_least: bool,
    /// Late requests that lowered the bound since the start.
    pub best_effort_cuts: u64,
    /// One for each set of objectives, and for each best-effort tenant.
    pub queues: Vec<CoreQueueView>,
}

/// One queue.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
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
    /// Mean time of a request below.
    pub service_mean_us: u64,
    /// The tail of that at the highest of the objectives' percentiles.
    pub service_tail_us: u64,
    /// Predicted response time of the newest request that waits.
    pub predicted_tail_us: u64,
    /// The tail of response times since the last poll.
    pub measured_tail_us: u64,
    /// The device alone breaks an objective: no number of cores keeps it.
    pub hopeless: bool,
    /// The tail of response times while best effort did nothing or was at its least; absent until enough were measured.
    pub alone_tail_us: Option<u64>,
    /// The bound on best effort holds the oldest request, which has waited for this long; absent if it doesn't.
    pub held_us: Option<u64>,
    /// The bound on best effort follows from this queue's objectives.
    pub decides_bound: bool,
    /// The cores or the time that the objectives lack at the worst load that their tenants' permits let in. Absent if they lack none, or if
    /// nothing was measured yet.
    pub shortage: Option<String>,
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
            best_effort_in_flight_bytes: s.bound.and_then(|b| b.in_flight_bytes),
            best_effort_is_least: s.bound.is_some_and(|b| b.is_least),
            best_effort_cuts: s.bound.map_or(0, |b| b.cuts),
            queues: s.queues.iter().filter(|q| !q.tenants.is_empty()).map(|q| queue(q, directory)).collect(),
        }
    }
}

/// Returns in words what a queue's objectives lack at the worst load; `None` if they lack nothing.
pub fn shortage(q: &QueueStatus) -> Option<String> {
    q.fit.filter(Fit::is_lacking).map(|fit| fit.to_string())
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
        alone_tail_us: q.alone_tails.iter().map(|t| us(t.1)).max(),
        held_us: q.held.map(us),
        decides_bound: q.is_deciding,
        shortage: shortage(q),
    }
}

const QUEUES: [Family<CoreQueueView>; 15] = [
    ("plimsoll_cores_owned", "Cores that a queue has of its own.", |q| f64::from(q.cores)),
    ("plimsoll_cores_waiting", "Requests of a queue that wait for a core.", |q| q.waiting as f64),
    ("plimsoll_cores_in_service", "Requests of a queue in service.", |q| f64::from(q.in_service)),
    ("plimsoll_cores_seconds_total", "Core time given to a queue.", |q| q.core_time_us as f64 / 1e6),
    ("plimsoll_cores_grown_total", "Cores that a queue took.", |q| q.grown as f64),
    ("plimsoll_cores_yielded_total", "Cores that a queue gave back.", |q| q.yielded as f64),
    ("plimsoll_cores_windows_total", "Windows of a queue.", |q| q.windows as f64),
    ("plimsoll_cores_temp_windows_total", "Temporary windows that were evaluated.", |q| q.temp_windows as f64),
    ("plimsoll_cores_late_windows_total", "Windows in which a request missed an objective.", |q| q.late_windows as f64),
    ("plimsoll_cores_policy_changes_total", "Changes of a queue's core policy.", |q| q.policy_changes as f64),
    ("plimsoll_cores_service_mean_seconds", "Mean service time of a queue's requests below the cores.", |q| {
        q.service_mean_us as f64 / 1e6
    }),
    (
        "plimsoll_cores_service_tail_seconds",
        "Service time below the cores at the objectives' highest percentile.",
        |q| q.service_tail_us as f64 / 1e6,
    ),
    ("plimsoll_cores_predicted_tail_seconds", "Predicted response time of the request at the end of the queue.", |q| {
        q.predicted_tail_us as f64 / 1e6
    }),
    (
        "plimsoll_cores_measured_tail_seconds",
        "Response time at the objectives' highest percentile since the last poll of the queue.",
        |q| q.measured_tail_us as f64 / 1e6,
    ),
    ("plimsoll_cores_objective_unreachable", "1 if the device alone misses an objective of the queue, else 0.", |q| {
        f64::from(u8::from(q.hopeless))
    }),
];

const CORE_POLICIES: [&str; 3] = ["conservative", "slo-aware", "aggressive"];

/// A queue's label is its tenants, joined by `+`.
fn metrics(page: &mut Page, all: &[(&str, CoresView)]) {
    page.family("plimsoll_cores_best_effort", "gauge", "Cores that no latency-critical queue has.");
    for (pool, v) in all {
        page.sample("plimsoll_cores_best_effort", &[("pool", pool)], v.best_effort_cores);
    }
    page.family("plimsoll_cores_busy", "gauge", "Requests in service on a pool's cores.");
    for (pool, v) in all {
        page.sample("plimsoll_cores_busy", &[("pool", pool)], v.busy);
    }
    page.family(
        "plimsoll_cores_best_effort_in_flight_bytes",
        "gauge",
        "Bytes of writes that best effort may have in flight on average, where that is bounded.",
    );
    for (pool, v) in all {
        if let Some(bytes) = v.best_effort_in_flight_bytes {
            page.sample("plimsoll_cores_best_effort_in_flight_bytes", &[("pool", pool)], bytes);
        }
    }
    page.family("plimsoll_cores_best_effort_cuts_total", "counter", "Late requests that lowered that bound.");
    for (pool, v) in all {
        page.sample("plimsoll_cores_best_effort_cuts_total", &[("pool", pool)], v.best_effort_cuts);
    }
    let name_of = |q: &CoreQueueView| q.tenants.join("+");
    let queues: Vec<_> = all.iter().flat_map(|(pool, v)| v.queues.iter().map(|q| (*pool, name_of(q), q))).collect();
    let labelled: Vec<_> = queues.iter().map(|(pool, name, q)| (vec![("pool", *pool), ("queue", name)], *q)).collect();
    page.families(&QUEUES, &labelled);
    page.family("plimsoll_cores_policy", "gauge", "1 for the core policy that a queue has, 0 for the others.");
    for (pool, v) in all {
        for q in v.queues.iter().filter(|q| q.core_policy.is_some()) {
            for policy in CORE_POLICIES {
                let is = q.core_policy.as_deref() == Some(policy);
                let labels = [("pool", *pool), ("queue", &q.tenants.join("+")), ("policy", policy)];
                page.sample("plimsoll_cores_policy", &labels, u8::from(is));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_headline_has_a_bound_only_while_it_holds_somebody() {
        let mut v = CoresView::default();
        assert_eq!(bound_text(&v), "");
        (v.best_effort_in_flight_bytes, v.best_effort_is_least) = (Some(64), true);
        v.queues.push(CoreQueueView::default());
        assert_eq!(bound_text(&v), ", none of its writes is held");
        v.queues[0].held_us = Some(14_000);
        assert_eq!(bound_text(&v), ", its writes are held to the least pace");
        (v.best_effort_in_flight_bytes, v.best_effort_is_least) = (Some(96 << 10), false);
        assert_eq!(bound_text(&v), ", its writes are held to 96.0 KiB in flight on average");
    }
}
