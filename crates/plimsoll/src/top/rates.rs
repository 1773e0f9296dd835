//! Rates: what two statuses and the time between them say.

use plimsoll_node::http::api::{Latency, Status, Traffic};
use serde::Serialize;

/// A status and the rates since the one before.
#[derive(Serialize)]
pub struct View {
    /// By tenant.
    pub tenants: Vec<Rates>,
    /// By volume.
    pub volumes: Vec<Rates>,
    /// As it was at the end.
    pub status: Status,
}

/// One tenant's or volume's rates.
#[derive(Serialize)]
pub struct Rates {
    /// Tenant or volume.
    pub name: String,
    /// Requests done a second.
    pub iops: f64,
    /// Bytes a second.
    pub bytes_per_s: f64,
    /// Busy answers a second.
    pub busy_per_s: f64,
    /// Requests a second that went wrong.
    pub failed_per_s: f64,
    /// Response times of the last whole second.
    pub last_second: Latency,
}

impl View {
    /// Computes rates between `before` and `now`.
    pub fn between(before: &Status, now: Status) -> View {
        // A node that was restarted in between counts from 0 again: its own uptime is then the time to divide by.
        let restarted = before.node.pid != now.node.pid;
        let since = if restarted { 0 } else { before.node.uptime_us };
        let seconds = now.node.uptime_us.saturating_sub(since) as f64 / 1e6;
        let old = |of: fn(&Status) -> Vec<(&str, &Traffic)>, name: &str| {
            let found = of(before).into_iter().find(|(n, _)| *n == name).filter(|_| !restarted);
            found.map(|(_, t)| t.clone()).unwrap_or_default()
        };
        let rates = |of: fn(&Status) -> Vec<(&str, &Traffic)>| {
            of(&now).into_iter().map(|(name, t)| rates(name, &old(of, name), t, seconds)).collect()
        };
        View { tenants: rates(tenants), volumes: rates(volumes), status: now }
    }
}

fn tenants(s: &Status) -> Vec<(&str, &Traffic)> {
    s.tenants.iter().map(|t| (t.name.as_str(), &t.traffic)).collect()
}

fn volumes(s: &Status) -> Vec<(&str, &Traffic)> {
    s.volumes.iter().map(|v| (v.name.as_str(), &v.traffic)).collect()
}

fn rates(name: &str, old: &Traffic, new: &Traffic, seconds: f64) -> Rates {
    // A volume that was deleted and made anew counts from 0: no rate is better than a negative one.
    let per_s = |a: u64, b: u64| if seconds > 0.0 { b.saturating_sub(a) as f64 / seconds } else { 0.0 };
    Rates {
        name: name.to_string(),
        iops: per_s(old.done, new.done),
        bytes_per_s: per_s(old.bytes, new.bytes),
        busy_per_s: per_s(old.busy_refused + old.busy_revoked, new.busy_refused + new.busy_revoked),
        failed_per_s: per_s(old.failed, new.failed),
        last_second: new.last_second.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn traffic(done: u64, busy: u64) -> Traffic {
        Traffic { done, bytes: done * 4096, busy_refused: busy, ..Traffic::default() }
    }

    #[test]
    fn rates_are_differences_over_time() {
        let r = rates("t", &traffic(100, 5), &traffic(300, 15), 2.0);
        assert_eq!((r.iops, r.bytes_per_s, r.busy_per_s), (100.0, 409_600.0, 5.0));
        let again = rates("t", &traffic(100, 5), &traffic(3, 0), 1.0);
        assert_eq!((again.iops, again.busy_per_s), (0.0, 0.0));
        assert_eq!(rates("t", &traffic(0, 0), &traffic(3, 0), 0.0).iops, 0.0);
    }
}
