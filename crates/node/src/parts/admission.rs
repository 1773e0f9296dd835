//! Admission of reads with a deadline: the room for the forecasts' errors, and tenants' budgets of slow reads (MittOS §7.2).

use super::page::{Family, Page};
use super::{About, Part, Shown};
use crate::config::{BadConfig, PoolConfig};
use plimsoll_base::{TenantId, Time};
use plimsoll_sched::admission::{AdmissionConfig, BudgetView as Budget, ToleranceView};
use plimsoll_sched::room::{RoomConfig, RoomView};
use plimsoll_stack::Stack;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// State of a pool's admission.
#[derive(Clone, Debug)]
pub struct Admitted {
    budgets: Vec<Budget>,
    tolerances: Vec<ToleranceView>,
    room: Vec<RoomView>,
}

/// `GET /v1/pools/{name}/admission`: the admission of reads with a deadline.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct AdmissionView {
    /// Tenants with reads that had a deadline.
    pub promises: Vec<PromiseView>,
    /// Tenants with a budget of slow reads.
    pub budgets: Vec<BudgetView>,
    /// Errors of the forecasts, by their size; empty where no room is left for them.
    pub errors: Vec<ErrorView>,
}

/// A tenant's share of reads that may be late, and the chance that follows from it.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct PromiseView {
    /// The tenant.
    pub tenant: String,
    /// Percent of its accepted reads that may end after their deadline.
    pub miss_percent: f64,
    /// The largest chance to be late, in percent, with which a read is accepted now.
    pub chance_percent: f64,
    /// Reads refused for that chance though they were forecast in time.
    pub refused: u64,
}

/// A tenant's budget.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct BudgetView {
    /// The tenant.
    pub tenant: String,
    /// Reads that the budget is counted over.
    pub reads: u64,
    /// Those of them that were slow.
    pub slow: u64,
    /// Reads accepted on the budget though they were expected late.
    pub let_in: u64,
}

/// Errors of forecasts of about one size.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ErrorView {
    /// Lower bound of the forecasts' size, µs; the upper one is less than 1.5 times it.
    pub forecast_us: u64,
    /// Reads that the errors are of; older ones weigh less.
    pub reads: u64,
    /// Half of them took no longer than this many times their forecast.
    pub p50: f64,
    /// 90 % of them.
    pub p90: f64,
    /// 99 % of them.
    pub p99: f64,
}

/// The configured admission of a pool whose tenants may have deadlines.
///
/// # Errors
/// If the share of misses makes no sense.
pub fn config(pool: &PoolConfig) -> Result<AdmissionConfig, BadConfig> {
    let room = match pool.miss_percent {
        None => Some(RoomConfig::DEFAULT),
        Some(0.0) => None,
        Some(percent) if (0.01..=50.0).contains(&percent) => {
            Some(RoomConfig { miss_permyriad: (percent * 100.0).round() as u16 })
        }
        Some(percent) => {
            return Err(BadConfig::new(format!("miss_percent {percent} is not between 0.01 and 50, or 0")));
        }
    };
    Ok(AdmissionConfig { room })
}

/// The part.
pub struct Admission;

impl Part for Admission {
    type Seen = Admitted;
    type View = AdmissionView;
    const NAME: &'static str = "admission";
    const SUMMARY: &'static str =
        "Admission of reads with a deadline: room for the forecasts' errors, budgets of slow reads";
    const HOW: &'static str = "every pool has it: `miss_percent` sets the share of misses";

    fn look(stack: &Stack, _: Time) -> Option<Admitted> {
        let a = stack.layer::<plimsoll_sched::admission::Admission>()?;
        Some(Admitted { budgets: a.budgets(), tolerances: a.tolerances(), room: a.room() })
    }

    fn view(seen: &Admitted, about: &About) -> AdmissionView {
        let name =
            |id: TenantId| about.directory.tenants.iter().find(|(_, t)| t.id == id).map(|(name, _)| name.clone());
        let budget =
            |b: &Budget| Some(BudgetView { tenant: name(b.tenant)?, reads: b.reads, slow: b.slow, let_in: b.let_in });
        let promise = |t: &ToleranceView| {
            let (miss_percent, chance_percent) = (t.miss_permyriad as f64 / 100.0, t.chance_ppm as f64 / 10_000.0);
            Some(PromiseView { tenant: name(t.tenant)?, miss_percent, chance_percent, refused: t.refused })
        };
        let error = |r: &RoomView| {
            let [p50, p90, p99] = r.ratios;
            ErrorView { forecast_us: r.forecast.as_micros(), reads: u64::from(r.reads), p50, p90, p99 }
        };
        AdmissionView {
            promises: seen.tolerances.iter().filter_map(promise).collect(),
            budgets: seen.budgets.iter().filter_map(budget).collect(),
            errors: seen.room.iter().map(error).collect(),
        }
    }

    fn shown(v: &AdmissionView) -> Shown {
        let refused: u64 = v.promises.iter().map(|t| t.refused).sum();
        let mut shown = Shown::new(format!("{refused} reads refused though forecast in time: too likely late"));
        if !v.promises.is_empty() {
            let row = |t: &PromiseView| {
                let (miss, chance) = (format!("{:.2} %", t.miss_percent), format!("{:.2} %", t.chance_percent));
                vec![t.tenant.clone(), miss, chance, t.refused.to_string()]
            };
            shown.table(&["TENANT", "MAY BE LATE", "ACCEPTED UP TO", "REFUSED"], v.promises.iter().map(row).collect());
        }
        if !v.budgets.is_empty() {
            let row =
                |t: &BudgetView| vec![t.tenant.clone(), t.reads.to_string(), t.slow.to_string(), t.let_in.to_string()];
            shown.table(&["TENANT", "READS", "SLOW", "LET IN"], v.budgets.iter().map(row).collect());
        }
        if !v.errors.is_empty() {
            let row = |e: &ErrorView| {
                let times = |x: f64| format!("{x:.2} x");
                let forecast = format!("{:.2} ms", e.forecast_us as f64 / 1000.0);
                vec![forecast, e.reads.to_string(), times(e.p50), times(e.p90), times(e.p99)]
            };
            shown.table(&["FORECAST FROM", "READS", "TOOK P50", "P90", "P99"], v.errors.iter().map(row).collect());
        }
        shown
    }

    fn metrics(page: &mut Page, pools: &[(&str, AdmissionView)]) {
        let budgets: Vec<_> = pools
            .iter()
            .flat_map(|(pool, v)| v.budgets.iter().map(move |b| (vec![("tenant", &*b.tenant), ("pool", *pool)], b)))
            .collect();
        page.families(BUDGETS, &budgets);
        let promises: Vec<_> = pools
            .iter()
            .flat_map(|(pool, v)| v.promises.iter().map(move |p| (vec![("tenant", &*p.tenant), ("pool", *pool)], p)))
            .collect();
        page.families(PROMISES, &promises);
    }

    fn check(pool: &PoolConfig) -> Result<(), BadConfig> {
        config(pool).map(drop)
    }
}

/// Metrics of a tenant's budget.
const BUDGETS: &[Family<BudgetView>] = &[
    ("plimsoll_budget_reads", "Reads in the window of a percentile's budget.", |b| b.reads as f64),
    ("plimsoll_budget_slow", "Late reads in the window of a percentile's budget.", |b| b.slow as f64),
    (
        "plimsoll_budget_admitted_late_total",
        "Reads forecast late that were accepted within the percentile's budget.",
        |b| b.let_in as f64,
    ),
];

/// Metrics of a tenant's reads with a deadline.
const PROMISES: &[Family<PromiseView>] = &[
    ("plimsoll_admission_chance", "Largest probability of being late with which a read is accepted, 0 to 1.", |p| {
        p.chance_percent / 100.0
    }),
    (
        "plimsoll_admission_refused_total",
        "Reads forecast in time that were refused for their probability of being late.",
        |p| p.refused as f64,
    ),
];
