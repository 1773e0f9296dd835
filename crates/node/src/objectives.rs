//! Tenants' objectives judged before their pool is served, as its cores judge them afterwards. Until requests are measured, the times are those
//! that the profile of the pool's device lets expect.

use crate::config::{Config, PoolConfig};
use crate::node::{permits_of, permits_of_record};
use crate::parts::cores::shortage;
use crate::predict::Particulars;
use plimsoll_base::{Class, TenantId, Time};
use plimsoll_cores::Cores;
use plimsoll_pool::PoolPlan;
use plimsoll_store::MetaView;
use std::collections::{BTreeMap, BTreeSet};

/// A tenant, as a start takes it on.
struct Tenant {
    class: Class,
    jobs_max: u32,
}

/// Result of judging the objectives in a pool.
#[derive(Debug, Default)]
pub struct Judged {
    /// The tenants whose objective can't be kept beside the others', each with what it lacks.
    pub unkept: Vec<(String, String)>,
    /// The reason for which objectives weren't judged, or aren't enforced.
    pub unjudged: Option<String>,
}

/// Tells that objectives have no effect in pools without cores.
pub(crate) fn not_enforced(pools: &str) -> String {
    format!("objectives are measured, not enforced: set `cores` for pool {pools}")
}

/// Judges the objectives of the tenants that have volumes in a pool, by the configuration and, where they could be read, the metadata of all
/// pools. `plan` is the pool's, as it would be served.
pub fn judge(pool: &PoolConfig, plan: &PoolPlan, config: &Config, stored: &[(String, MetaView)]) -> Judged {
    let tenants = tenants_of(pool.name.get_ref(), config, stored);
    let critical: Vec<&str> = tenants.iter().filter(|(_, t)| is_critical(t)).map(|(name, _)| name.as_str()).collect();
    if critical.is_empty() {
        return Judged::default();
    }
    let critical = critical.join(", ");
    let unjudged = |why: &str| Judged {
        unkept: Vec::new(),
        unjudged: Some(format!("the objectives of {critical} aren't judged: {why}")),
    };
    let Some(cores) = &plan.cores else {
        let what = format!("of {critical}: {}", not_enforced(&format!("`{}`", pool.name.get_ref())));
        return Judged { unkept: Vec::new(), unjudged: Some(what) };
    };
    if plan.cache.is_some() || plan.memory.is_some() || plan.fence.is_some() {
        return unjudged(
            "what its cache, its memory or its fence does to the times of requests, only measuring them tells",
        );
    }
    let Some(times) = plan.expected() else {
        return unjudged(
            "without a `profile` nothing tells what requests take: measure the device (`plimsoll profile`)",
        );
    };
    let particulars = Particulars::of(&config.tenant);
    let mut layer = Cores::new(cores.clone());
    let numbered = || tenants.iter().enumerate().map(|(n, (name, t))| (TenantId(n as u16), name, t));
    for (id, name, t) in numbered() {
        layer.set_tenant(Time::ZERO, id, Some(&particulars.terms(name, &t.class, t.jobs_max)));
    }
    layer.expect(&times);
    let mut unkept = Vec::new();
    for q in &layer.status(Time::ZERO).queues {
        let Some(what) = shortage(q) else { continue };
        let its = numbered().filter(|(id, ..)| q.tenants.contains(id));
        unkept.extend(its.map(|(_, name, _)| (name.clone(), format!("the objective {what}"))));
    }
    Judged { unkept, unjudged: None }
}

fn is_critical(t: &Tenant) -> bool {
    matches!(t.class, Class::LatencyCritical { .. })
}

/// The declared tenants that have a volume in a pool, as a start takes them on: one that was changed live is as it was left.
fn tenants_of(pool: &str, config: &Config, stored: &[(String, MetaView)]) -> BTreeMap<String, Tenant> {
    let mut all: BTreeMap<String, Tenant> = BTreeMap::new();
    for t in &config.tenant {
        // Faults of a class are told with the configuration.
        let Ok(class) = t.class() else { continue };
        all.insert(t.name.get_ref().clone(), Tenant { class, jobs_max: permits_of(t).jobs_max });
    }
    let mut changes: BTreeMap<&str, u64> = BTreeMap::new();
    for t in stored.iter().flat_map(|(_, view)| view.tenants()) {
        let change = changes.entry(&t.name).or_insert(0);
        if t.change >= *change {
            *change = t.change;
            let jobs_max = permits_of_record(&t.limits).jobs_max;
            all.insert(t.name.clone(), Tenant { class: t.class.clone(), jobs_max });
        }
    }
    let view = stored.iter().find(|(name, _)| name == pool).map(|(_, view)| view);
    let of_stored = view.into_iter().flat_map(MetaView::volumes);
    let configured = config.volume.iter().filter(|v| v.pool.get_ref() == pool).map(|v| v.tenant.get_ref());
    let users: BTreeSet<&String> = configured.chain(of_stored.map(|v| &v.tenant)).collect();
    all.retain(|name, _| users.contains(name));
    all
}
