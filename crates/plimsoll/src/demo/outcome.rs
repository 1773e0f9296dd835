//! The result: a table, a sentence that follows from it, and JSON.

use super::nodes::{DRIVE, NODES};
use super::record::{Figures, Record, Side, Tenant};
use super::screen::{bound, ms};
use super::{DEADLINE, Demo, OBJECTIVE, PERCENTILE};
use crate::table::table;
use serde::Serialize;
use std::fmt::Write as _;

/// The beginning that isn't in the result, in seconds at most: promises learn in it. Of a short run, a fifth of it.
const WARM_UP: u32 = 5;
/// Points of a distribution: shares 1 - 10^(-i / 25), up to 99.99 %.
const POINTS: i32 = 100;
/// From this share of the time on, pauses of this machine are in what was measured.
const PAUSED_MAX: f64 = 0.005;

/// Everything that is known of a run.
#[derive(Serialize)]
pub struct Outcome {
    version: &'static str,
    seed: u64,
    /// Seconds measured, and seconds before them that weren't.
    seconds: u32,
    warm_up_s: u32,
    /// The run's configured length.
    wanted_s: u32,
    model: &'static str,
    nodes_a_side: usize,
    without: String,
    objective: Promise,
    deadline_ms: f64,
    /// Share of the time in which this machine paused.
    paused: f64,
    sides: Side<Tenants>,
    /// p99 and throughput, second by second, from the beginning of the load.
    over_time: Side<Vec<Second>>,
}

#[derive(Serialize)]
struct Promise {
    percentile: u32,
    within_ms: f64,
}

#[derive(Serialize)]
struct Tenants {
    database: Numbers,
    web: Numbers,
    neighbour: Numbers,
}

/// One tenant's figures of one side.
#[derive(Serialize)]
struct Numbers {
    requests: u64,
    p50_ms: Option<f64>,
    p99_ms: Option<f64>,
    p999_ms: Option<f64>,
    /// Share of the requests that took longer than the promise.
    late: Option<f64>,
    requests_per_s: f64,
    transactions_per_s: f64,
    mb_per_s: f64,
    busy: u64,
    redirected: u64,
    failed: u64,
    /// `[milliseconds, share of the requests at most that slow]`.
    distribution: Vec<(f64, f64)>,
}

#[derive(Serialize)]
struct Second {
    database_p99_ms: Option<f64>,
    web_p99_ms: Option<f64>,
    transactions: u64,
    web_reads: u64,
    neighbour_mb: f64,
    busy: u64,
}

impl Numbers {
    fn of(tenant: Tenant, f: &Figures, seconds: u32) -> Numbers {
        let per_s = |n: f64| n / f64::from(seconds);
        let point = |i: i32| {
            let share = 1.0 - 10f64.powf(-f64::from(i) / 25.0);
            Some((f.percentile_ms(100.0 * share)?, share))
        };
        Numbers {
            requests: f.latency.count(),
            p50_ms: f.percentile_ms(50.0),
            p99_ms: f.percentile_ms(99.0),
            p999_ms: f.percentile_ms(99.9),
            late: bound(tenant).map(|b| f.later_than(b)),
            requests_per_s: per_s(f.latency.count() as f64),
            transactions_per_s: per_s(f.transactions as f64),
            mb_per_s: per_s(f.bytes as f64 / 1e6),
            busy: f.busy,
            redirected: f.redirected,
            failed: f.failed,
            distribution: (1..=POINTS).filter_map(point).collect(),
        }
    }

    fn p99(&self) -> f64 {
        self.p99_ms.unwrap_or(0.0)
    }
}

impl Outcome {
    /// Of a run that lasted `ran` seconds.
    pub fn of(demo: &Demo, record: &Record, ran: u32, paused: f64) -> Outcome {
        let warm_up = WARM_UP.min(ran / 5);
        let seconds = ran - warm_up;
        let sides = record.map(|r| {
            let of = |tenant| Numbers::of(tenant, &r.between(tenant, warm_up, ran), seconds);
            Tenants { database: of(Tenant::Database), web: of(Tenant::Web), neighbour: of(Tenant::Neighbour) }
        });
        let over_time = record.map(|r| {
            let second = |at| {
                let of = |tenant| r.between(tenant, at, at + 1);
                let (database, web) = (of(Tenant::Database), of(Tenant::Web));
                Second {
                    database_p99_ms: database.percentile_ms(99.0),
                    web_p99_ms: web.percentile_ms(99.0),
                    transactions: database.transactions,
                    web_reads: web.latency.count(),
                    neighbour_mb: of(Tenant::Neighbour).bytes as f64 / 1e6,
                    busy: web.busy,
                }
            };
            (0..ran).map(second).collect()
        });
        Outcome {
            version: env!("CARGO_PKG_VERSION"),
            seed: demo.seed,
            seconds,
            warm_up_s: warm_up,
            wanted_s: demo.seconds,
            model: DRIVE,
            nodes_a_side: NODES,
            without: demo.without.text(),
            objective: Promise { percentile: PERCENTILE, within_ms: OBJECTIVE.as_millis_f64() },
            deadline_ms: DEADLINE.as_millis_f64(),
            paused,
            sides,
            over_time,
        }
    }

    /// The table, the sentence, and how it was measured.
    pub fn text(&self) -> String {
        let Side { without, with } = &self.sides;
        let row = |tenant: Tenant, what: String, cell: &dyn Fn(&Numbers) -> String| {
            let of = |all: &Tenants| match tenant {
                Tenant::Database => cell(&all.database),
                Tenant::Web => cell(&all.web),
                Tenant::Neighbour => cell(&all.neighbour),
            };
            vec![tenant.name().to_string(), what, of(without), of(with)]
        };
        let late = |n: &Numbers| n.late.map_or("-".into(), percent);
        let (objective, deadline) = (OBJECTIVE.to_string(), DEADLINE.to_string());
        let mut rows = vec![
            row(Tenant::Database, "p50".into(), &|n| ms(n.p50_ms)),
            row(Tenant::Database, format!("p{PERCENTILE} (objective {objective})"), &|n| ms(n.p99_ms)),
            row(Tenant::Database, format!("later than {objective}"), &late),
            row(Tenant::Database, "transactions/s".into(), &|n| format!("{:.0}", n.transactions_per_s)),
            row(Tenant::Web, "p50".into(), &|n| ms(n.p50_ms)),
            row(Tenant::Web, "p99".into(), &|n| ms(n.p99_ms)),
            row(Tenant::Web, format!("later than {deadline} (deadline)"), &late),
            row(Tenant::Web, "reads/s".into(), &|n| format!("{:.0}", n.requests_per_s)),
            row(Tenant::Web, "Busy".into(), &|n| n.busy.to_string()),
            row(Tenant::Web, "asked of the other node".into(), &|n| n.redirected.to_string()),
            row(Tenant::Neighbour, "MB/s".into(), &|n| format!("{:.1}", n.mb_per_s)),
        ];
        let failed = |all: &Tenants| all.database.failed + all.web.failed + all.neighbour.failed;
        if failed(without) + failed(with) > 0 {
            rows.push(vec!["all".into(), "failed".into(), failed(without).to_string(), failed(with).to_string()]);
        }
        let mut text = table(&["TENANT", "", "WITHOUT", "WITH PROMISES"], &rows);
        let _ = write!(text, "\n{}\n{}\n", self.sentence(), self.conditions());
        text
    }

    /// The result in a sentence.
    fn sentence(&self) -> String {
        let Side { without, with } = &self.sides;
        let promise = if with.database.p99() <= self.objective.within_ms { "kept" } else { "MISSED" };
        format!(
            "With promises the database's p{} is {} instead of {} (objective {}: {promise}) and {} of the web's reads are late instead of {}, \
             while the neighbour has {} of the throughput that it has without.",
            self.objective.percentile,
            ms(with.database.p99_ms),
            ms(without.database.p99_ms),
            OBJECTIVE,
            percent(with.web.late.unwrap_or(0.0)),
            percent(without.web.late.unwrap_or(0.0)),
            if without.neighbour.mb_per_s > 0.0 {
                format!("{:.0} %", 100.0 * with.neighbour.mb_per_s / without.neighbour.mb_per_s)
            } else {
                "an unknown share".into()
            },
        )
    }

    fn conditions(&self) -> String {
        let early = if self.seconds + self.warm_up_s < self.wanted_s {
            format!("; ended early, {} s were wanted", self.wanted_s)
        } else {
            String::new()
        };
        let paused = if self.paused > PAUSED_MAX {
            format!(" This machine paused for {} of the time: that is in both sides' figures.", percent(self.paused))
        } else {
            String::new()
        };
        format!(
            "Measured by the clients, both sides at once, over {} s after {} s of warm-up{early}; {} modelled drives ({}), seed {}; \
             without promises: {}.{paused}",
            self.seconds,
            self.warm_up_s,
            2 * self.nodes_a_side,
            self.model,
            self.seed,
            self.without
        )
    }
}

fn percent(share: f64) -> String {
    let percent = 100.0 * share;
    if percent < 9.95 { format!("{percent:.1} %") } else { format!("{percent:.0} %") }
}
