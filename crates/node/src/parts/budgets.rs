//! Tenants' budgets of slow reads (MittOS §7.2): deadlines that a percentile of the reads is to meet.

use super::page::{Family, Page};
use super::{About, Part, Shown};
use plimsoll_base::Time;
use plimsoll_sched::budgets::BudgetView as Budget;
use plimsoll_stack::Stack;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `GET /v1/pools/{name}/budgets`: the budgets of slow reads of a pool's tenants.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct BudgetsView {
    /// One for each tenant that has one.
    pub tenants: Vec<BudgetView>,
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

/// The part.
pub struct Budgets;

impl Part for Budgets {
    type Seen = Vec<Budget>;
    type View = BudgetsView;
    const NAME: &'static str = "budgets";
    const SUMMARY: &'static str = "Budgets of slow reads of a pool's tenants";
    const HOW: &'static str = "say `deadline_percentile` of a tenant";

    fn look(stack: &Stack, _: Time) -> Option<Vec<Budget>> {
        stack.layer::<plimsoll_sched::budgets::Budgets>().map(|b| b.views())
    }

    fn view(seen: &Vec<Budget>, about: &About) -> BudgetsView {
        let named = |b: &Budget| {
            let (name, _) = about.directory.tenants.iter().find(|(_, t)| t.id == b.tenant)?;
            Some(BudgetView { tenant: name.clone(), reads: b.reads, slow: b.slow, let_in: b.let_in })
        };
        BudgetsView { tenants: seen.iter().filter_map(named).collect() }
    }

    fn shown(v: &BudgetsView) -> Shown {
        let let_in: u64 = v.tenants.iter().map(|t| t.let_in).sum();
        let mut shown = Shown::new(format!("{} tenants, {let_in} reads let in on their budgets", v.tenants.len()));
        let row =
            |t: &BudgetView| vec![t.tenant.clone(), t.reads.to_string(), t.slow.to_string(), t.let_in.to_string()];
        shown.table(&["TENANT", "READS", "SLOW", "LET IN"], v.tenants.iter().map(row).collect());
        shown
    }

    fn metrics(page: &mut Page, pools: &[(&str, BudgetsView)]) {
        let of = |(pool, v): &'_ (&'_ str, BudgetsView)| -> Vec<(String, String, BudgetView)> {
            v.tenants.iter().map(|t| (t.tenant.clone(), pool.to_string(), t.clone())).collect()
        };
        let all: Vec<_> = pools.iter().flat_map(of).collect();
        let of: Vec<_> = all.iter().map(|(tenant, pool, b)| (vec![("tenant", &**tenant), ("pool", pool)], b)).collect();
        page.families(TENANTS, &of);
    }
}

/// Metrics of a tenant's budget.
const TENANTS: &[Family<BudgetView>] = &[
    ("plimsoll_budget_reads", "Reads that a percentile's budget is counted over.", |b| b.reads as f64),
    ("plimsoll_budget_slow", "Those of them that were slow.", |b| b.slow as f64),
    ("plimsoll_budget_let_in_total", "Reads accepted on the budget though they were expected late.", |b| {
        b.let_in as f64
    }),
];
