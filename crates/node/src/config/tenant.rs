//! `[[tenant]]`, `[[volume]]` and `[[grant]]`: promises, and the peers that may ask for them.

use super::pool::PoolConfig;
use super::read::there_is_no;
use super::text::{ByteSize, SpanText};
use super::{BadConfig, Config, yes};
use crate::reload::{tenant_section, volume_section};
use plimsoll_base::CacheMode;
use plimsoll_base::{Class, Objective, OnBusy, Priority, Span};
use plimsoll_cores::Allotment;
use plimsoll_nvme::opening::is_nqn;
use serde::{Deserialize, Serialize};
use std::net::IpAddr;
use std::path::PathBuf;
use toml::Spanned;

/// `[[tenant]]`
#[derive(Clone, PartialEq, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct TenantConfig {
    /// Name.
    pub name: Spanned<String>,
    /// `latency-critical`, `best-effort` or `fenced`.
    pub class: Spanned<String>,
    /// Objectives, for latency-critical: percentiles and their bounds.
    #[serde(default)]
    pub objectives: Vec<Spanned<ObjectiveConfig>>,
    /// Share relative to others, 1 to 10000 [default: 100; 1000 if latency-critical].
    pub weight: Option<u32>,
    /// Number of slots, for fenced [default: 1].
    pub slots: Option<u32>,
    /// Limit of requests in flight in a pool [default: 1024].
    pub jobs_max: Option<u32>,
    /// Limit of bytes in flight in a pool [default: 128MiB].
    pub bytes_max: Option<ByteSize>,
    /// Deadline of its reads, from their arrival; a volume's or a connection's comes first.
    pub deadline: Option<SpanText>,
    /// Answer to a read that would miss the deadline: `wait` (the default) or `error`. Clients that negotiated promises get Busy.
    pub busy: Option<OnBusy>,
    /// Percentile of its reads that the deadline is for; the others may be late [default: every read].
    pub deadline_percentile: Option<f64>,
    /// Automatic deadline, instead of `deadline`: it follows the share of reads that it refuses.
    pub auto_deadline: Option<AutoDeadlineConfig>,
    /// In pools whose core policy is `static`: cores of its own [default: 1].
    pub cores: Option<u32>,
    /// In pools whose core policy is `mclock`: reserved requests a second.
    pub reservation_iops: Option<u64>,
    /// In pools whose core policy is `mclock`: limit of requests a second.
    pub limit_iops: Option<u64>,
    /// Priority for `cfq`: `rt:0` to `rt:7`, `be:0` to `be:7` or `idle`; a connection's comes first.
    pub priority: Option<Spanned<String>>,
}

/// `{ refuse_percent = 5, least = "1ms", most = "1s" }`
#[derive(Clone, Copy, PartialEq, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct AutoDeadlineConfig {
    /// Percent of its reads that may be refused, 0.1 to 50.
    pub refuse_percent: f64,
    /// Shortest deadline.
    #[serde(default = "least_deadline")]
    pub least: SpanText,
    /// Longest deadline, and the first one.
    #[serde(default = "most_deadline")]
    pub most: SpanText,
}

fn least_deadline() -> SpanText {
    SpanText(Span::from_millis(1))
}

fn most_deadline() -> SpanText {
    SpanText(Span::from_secs(1))
}

/// `{ percentile = 99.9, within = "20ms" }`
#[derive(Clone, Copy, PartialEq, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct ObjectiveConfig {
    /// From 0.01 to 99.99.
    pub percentile: f64,
    /// The bound.
    pub within: SpanText,
}

/// `[[volume]]`
#[derive(Clone, PartialEq, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct VolumeConfig {
    /// Name: the export that clients open.
    pub name: Spanned<String>,
    /// Pool that stores it.
    pub pool: Spanned<String>,
    /// Size.
    pub size: ByteSize,
    /// Tenant of its requests, unless the connection names another.
    pub tenant: Spanned<String>,
    /// Refuse changes.
    #[serde(default)]
    pub read_only: bool,
    /// Deadline of its reads, from their arrival; a connection's comes first.
    pub deadline: Option<SpanText>,
    /// Answer to a read that would miss the deadline, as a tenant's.
    pub busy: Option<OnBusy>,
    /// Cache mode at its creation: `off`, `through` or `back` [default: the pool's].
    pub cache: Option<CacheMode>,
    /// Size of its part of a cache with `sharing = "pervolume"` [default: an eighth].
    pub cache_size: Option<ByteSize>,
    /// Baseline file of `plimsoll fence baseline`: metrics show the deviation from it.
    pub baseline: Option<PathBuf>,
    /// Time slots of its own, in a fenced pool [default: the tenant's slots if it is fenced, else none].
    pub slots: Option<u32>,
    /// Limits of its requests and bytes per second, in a pool with `throttle = true`.
    pub throttle: Option<ThrottleConfig>,
}

/// `throttle = { … }` of `[[volume]]`: requests and bytes per second, each with a burst, by default a tenth of a second's.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct ThrottleConfig {
    /// Reads, writes, trims and zeroings per second.
    pub iops: Option<u64>,
    /// Requests that go on at once after an idle time.
    pub iops_burst: Option<u64>,
    /// Bytes read and written per second.
    pub bandwidth: Option<ByteSize>,
    /// Bytes that go on at once after an idle time.
    pub bandwidth_burst: Option<ByteSize>,
}

/// `[[grant]]`
#[derive(Clone, PartialEq, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Grant {
    /// `local` (any peer on the unix socket or from a loopback address), `uid:1000` (a unix peer's), `cert:NAME` (a TLS
    /// client certificate's common name), `host:NQN` (an NVMe host from a loopback address, or one that has proved
    /// itself: `[[nvme_host]]`) or `host:NQN@ADDRESS` (an NVMe host from this address).
    pub peer: Spanned<String>,
    /// Volume names, or `*`.
    pub volumes: Vec<String>,
    /// Tenants whose promise the peer may use; without any, only the volume's own.
    #[serde(default)]
    pub tenants: Vec<String>,
    /// Allow writes
    #[serde(default = "yes")]
    pub write: bool,
}

impl TenantConfig {
    /// Its class, if what was written makes one.
    pub fn class(&self) -> Result<Class, BadConfig> {
        let of = |o: &Spanned<ObjectiveConfig>| (o.get_ref().percentile, o.get_ref().within.0);
        let objectives: Vec<(f64, Span)> = self.objectives.iter().map(of).collect();
        class_of(self.class.get_ref(), &objectives, self.weight, self.slots)
    }

    /// Allotment under the policies `static` and `mclock`.
    pub fn allotment(&self) -> Allotment {
        let (reservation, limit) = (self.reservation_iops.unwrap_or(0), self.limit_iops.unwrap_or(0));
        Allotment { cores: self.cores.unwrap_or(0), reservation, limit }
    }

    /// Checks that it is possible, by itself and with these pools.
    pub(super) fn check(&self, pools: &[PoolConfig]) -> Result<(), BadConfig> {
        let wrong =
            |at: &Spanned<String>, e: BadConfig| e.about(tenant_section(self.name.get_ref())).at(at.span().start);
        self.class().map_err(|e| wrong(&self.class, e))?;
        check_jobs_max(self.jobs_max)
            .and_then(|()| self.check_allotment(pools))
            .and_then(|()| self.deadline.map_or(Ok(()), |d| check_deadline(d.0)))
            .and_then(|()| self.deadline_percentile.map_or(Ok(()), |p| crate::predict::percentile_bp(p).map(drop)))
            .and_then(|()| crate::predict::auto_terms(self).map(drop))
            .and_then(|()| match self.busy {
                Some(_) if self.deadline.is_none() && self.auto_deadline.is_none() => Err(BadConfig::new(
                    "`busy` is for reads with a deadline: set `deadline` or `auto_deadline`, or take it out",
                )),
                _ => Ok(()),
            })
            .map_err(|e| wrong(&self.name, e))?;
        if let Some(p) = &self.priority {
            p.get_ref().parse::<Priority>().map_err(|e| BadConfig::found(e).at(p.span().start))?;
        }
        Ok(())
    }

    fn check_allotment(&self, pools: &[PoolConfig]) -> Result<(), BadConfig> {
        let has = |policy| pools.iter().any(|p| p.core_policy.as_ref().is_some_and(|c| c.get_ref() == policy));
        for (key, policy, given) in [
            ("cores", "static", self.cores.map(u64::from)),
            ("reservation_iops", "mclock", self.reservation_iops),
            ("limit_iops", "mclock", self.limit_iops),
        ] {
            match given {
                Some(0) => return Err(BadConfig::new(format!("{key} = 0 would be nothing: take it out"))),
                Some(_) if !has(policy) => {
                    return Err(BadConfig::new(format!(
                        "{key} is for pools with core_policy = \"{policy}\": no pool has it"
                    )));
                }
                _ => {}
            }
        }
        match (self.reservation_iops, self.limit_iops) {
            (Some(least), Some(most)) if least > most => {
                Err(BadConfig::new(format!("reservation_iops {least} is more than limit_iops {most}")))
            }
            _ => Ok(()),
        }
    }
}

/// Greatest `jobs_max` of a tenant: the requests that a pool holds.
pub const JOBS_MAX: u32 = 65_536;

/// Checks that `jobs_max` is possible.
pub fn check_jobs_max(jobs_max: Option<u32>) -> Result<(), BadConfig> {
    match jobs_max {
        Some(0) => Err(BadConfig::new("jobs_max = 0 would let no request in: at least 1")),
        Some(more) if more > JOBS_MAX => {
            Err(BadConfig::new(format!("jobs_max {more} is more than the {JOBS_MAX} that a pool holds")))
        }
        _ => Ok(()),
    }
}

/// Builds a class from its name and settings; `objectives` are percentiles (99.9) and their bounds.
pub fn class_of(
    class: &str,
    objectives: &[(f64, Span)],
    weight: Option<u32>,
    slots: Option<u32>,
) -> Result<Class, BadConfig> {
    for (key, of, given) in
        [("objectives", "latency-critical", !objectives.is_empty()), ("slots", "fenced", slots.is_some())]
    {
        if given && class != of {
            return Err(BadConfig::new(format!("`{key}` is for a {of} tenant, not for a {class} one")));
        }
    }
    if weight.is_some() && class == "fenced" {
        return Err(BadConfig::new(
            "`weight` is for a best-effort or latency-critical tenant: a fenced one's share is its slots",
        ));
    }
    if let Some(other) = weight.filter(|w| !(1..=10_000).contains(w)) {
        return Err(BadConfig::new(format!("weight {other} is not between 1 and 10000")));
    }
    match class {
        "latency-critical" if objectives.is_empty() => {
            Err(BadConfig::new("a latency-critical tenant needs `objectives`, such as 99.9 % within 20 ms"))
        }
        "latency-critical" if objectives.len() > 16 => {
            Err(BadConfig::new(format!("{} objectives are more than 16", objectives.len())))
        }
        "latency-critical" => {
            if let Some((percentile, _)) = objectives.iter().find(|(_, bound)| *bound == Span::ZERO) {
                return Err(BadConfig::new(format!(
                    "objective of {percentile} %: within is 0, set a time such as \"20ms\""
                )));
            }
            let objective = |&(percentile, bound): &(f64, Span)| {
                let bp = (percentile * 100.0).round();
                (1.0..=9999.0)
                    .contains(&bp)
                    .then_some(Objective { percentile_bp: bp as u16, bound })
                    .ok_or_else(|| BadConfig::new(format!("percentile {percentile} is not between 0.01 and 99.99")))
            };
            let mut objectives = objectives.iter().map(objective).collect::<Result<Vec<_>, _>>()?;
            // Tenants with the same ones share a queue, in whatever order they were written.
            objectives.sort_by_key(|o| o.percentile_bp);
            Ok(Class::LatencyCritical { objectives, weight: weight.unwrap_or(Class::CRITICAL_WEIGHT) })
        }
        "best-effort" => Ok(Class::BestEffort { weight: weight.unwrap_or(100) }),
        "fenced" => match slots.unwrap_or(1) {
            slots @ 1..=1000 => Ok(Class::Fenced { slots }),
            other => Err(BadConfig::new(format!("slots {other} is not between 1 and 1000"))),
        },
        other => Err(BadConfig::new(format!("class `{other}` is unknown: latency-critical, best-effort or fenced"))),
    }
}

impl VolumeConfig {
    /// Checks that it is possible, in this configuration.
    pub(super) fn check(&self, config: &Config) -> Result<(), BadConfig> {
        let wrong =
            |at: &Spanned<String>, e: BadConfig| e.about(volume_section(self.name.get_ref())).at(at.span().start);
        let named = |at: &Spanned<String>, what: &'static str| wrong(at, BadConfig::new(what));
        self.deadline.map_or(Ok(()), |d| check_deadline(d.0)).map_err(|e| wrong(&self.name, e))?;
        if self.busy.is_some() && self.deadline.is_none() {
            return Err(named(&self.name, "`busy` is for the volume's own `deadline`: set that too, or take it out"));
        }
        if !config.pool.iter().any(|p| p.name.get_ref() == self.pool.get_ref()) {
            let there = config.pool.iter().map(|p| p.name.get_ref().as_str());
            return Err(wrong(&self.pool, BadConfig::new(there_is_no("pool", self.pool.get_ref(), there))));
        }
        if !config.tenant.iter().any(|t| t.name.get_ref() == self.tenant.get_ref()) {
            let there = config.tenant.iter().map(|t| t.name.get_ref().as_str());
            return Err(wrong(&self.tenant, BadConfig::new(there_is_no("tenant", self.tenant.get_ref(), there))));
        }
        if self.name.get_ref().is_empty() || self.name.get_ref().contains(['?', '/', '\0']) {
            return Err(named(&self.name, "a name can't be empty or have `?` or `/` in it"));
        }
        if self.size.0 == 0 {
            return Err(named(&self.name, "its size is 0"));
        }
        Ok(())
    }
}

/// No one waits longer for a read that matters.
const DEADLINE_MAX: Span = Span::from_secs(3600);

/// Checks that a promise of `deadline` is possible.
pub fn check_deadline(deadline: Span) -> Result<(), BadConfig> {
    if deadline == Span::ZERO {
        return Err(BadConfig::new("a deadline of 0 can't be kept"));
    }
    if deadline > DEADLINE_MAX {
        return Err(BadConfig::new(format!("a deadline of {deadline} is no promise: at most an hour")));
    }
    Ok(())
}

/// Peer of a grant.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Peer {
    /// Any on the unix socket or from a loopback address.
    Local,
    /// A unix peer's user id.
    Uid(u32),
    /// A TLS client certificate's common name.
    Cert(String),
    /// An NVMe host's NQN, and its address unless it is a loopback one or the host has proved itself.
    Host(String, Option<IpAddr>),
}

impl Peer {
    /// From its text.
    pub fn parse(text: &str) -> Result<Peer, BadConfig> {
        let bad = || {
            let what = format!("peer `{text}` is unknown: local, uid:NUMBER, cert:NAME, host:NQN or host:NQN@ADDRESS");
            BadConfig::new(what)
        };
        match text.split_once(':') {
            None if text == "local" => Ok(Peer::Local),
            Some(("uid", n)) => n.parse().map(Peer::Uid).map_err(|_| bad()),
            Some(("cert", name)) if !name.is_empty() => Ok(Peer::Cert(name.into())),
            Some(("host", host)) => {
                let (nqn, address) = match host.rsplit_once('@') {
                    None => (host, None),
                    Some((nqn, address)) => (nqn, Some(address.parse().map_err(|_| bad())?)),
                };
                if is_nqn(nqn) { Ok(Peer::Host(nqn.into(), address)) } else { Err(bad()) }
            }
            _ => Err(bad()),
        }
    }
}
