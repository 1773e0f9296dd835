//! A pool's cores: from what the configuration says to a layer.

use crate::config::PoolConfig;
use plimsoll_base::Span;
use plimsoll_cores::{CoresConfig, PolicyConfig, QwinConfig};

/// Names of the policies that need no more than a name.
const POLICIES: &str =
    "qwin, qwin-window, share-everything, partial-sharing, two-priorities, cake, shenango, static or mclock";

fn policy(name: &str) -> Result<PolicyConfig, String> {
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
        other => return Err(format!("core_policy `{other}` is unknown: {POLICIES}")),
    })
}

/// What a pool's section says; `None` if it has no cores.
///
/// # Errors
/// What is wrong, and what to write.
pub fn config(pool: &PoolConfig) -> Result<Option<CoresConfig>, String> {
    let Some(cores) = pool.cores else {
        let stray = [
            ("core_depth", pool.core_depth.is_some()),
            ("core_policy", pool.core_policy.is_some()),
            ("core_slack", pool.core_slack.is_some()),
            ("bound_best_effort_writes", pool.bound_best_effort_writes.is_some()),
        ];
        return match stray.iter().find(|(_, set)| *set) {
            Some((key, _)) => Err(format!("{key} means nothing without `cores`: say how many there are")),
            None => Ok(None),
        };
    };
    let mut policy = policy(pool.core_policy.as_ref().map_or("qwin", |p| p.get_ref()))?;
    match &mut policy {
        PolicyConfig::Qwin(q) => {
            q.bound_writes = pool.bound_best_effort_writes.unwrap_or(q.bound_writes);
            (q.slack_low, q.slack_high) =
                pool.core_slack.map_or((q.slack_low, q.slack_high), |[low, high]| (low.0, high.0));
        }
        _ if pool.bound_best_effort_writes.is_some() => {
            return Err("bound_best_effort_writes is for core_policy qwin and qwin-window".into());
        }
        _ if pool.core_slack.is_some() => return Err("core_slack is for core_policy qwin and qwin-window".into()),
        _ => {}
    }
    let config = CoresConfig { depth: pool.core_depth.unwrap_or(1), policy, ..CoresConfig::new(cores) };
    config.check()?;
    Ok(Some(config))
}
