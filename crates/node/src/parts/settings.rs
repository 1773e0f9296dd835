//! Settings of a pool that can be changed while it serves.
//!
//! A setting is a key of the pool's configuration. A change is made in a copy of the configuration, which is checked as a whole; the layer
//! then has a message. It is kept for later starts, until something else is configured for the key.

use super::{AnyPart, PARTS};
use crate::config::{BadConfig, PoolConfig, VolumeConfig};
use plimsoll_base::Span;
use plimsoll_pool::PoolPlan;
use plimsoll_stack::Addressed;
use plimsoll_store::SettingsRecord;
use plimsoll_throttle::ThrottleTerms;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

/// Unit of a setting's value.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Unit {
    /// Microseconds.
    Us,
    /// Bytes.
    Bytes,
    /// Percent.
    Percent,
    /// A number of things.
    Count,
}

impl Unit {
    /// A value of this unit as people write it.
    pub fn text(self, value: u64) -> String {
        match self {
            Unit::Us => (Span::from_micros(1) * value).to_string(),
            Unit::Bytes => plimsoll_base::bytes_text(value),
            Unit::Percent => format!("{value} %"),
            Unit::Count => value.to_string(),
        }
    }

    /// The value that a text such as `16ms`, `64KiB`, `50%` or `8` means.
    ///
    /// # Errors
    /// If it is none of this unit.
    pub fn parse(self, text: &str) -> Result<u64, BadConfig> {
        let number = |text: &str| text.trim().parse().map_err(|_| BadConfig::new(format!("`{text}` is no number")));
        match self {
            Unit::Us => {
                let span: Span =
                    text.parse().map_err(|e| BadConfig::new(format!("`{text}` is no time such as 16ms: {e}")))?;
                Ok(span.as_micros())
            }
            Unit::Bytes => plimsoll_base::parse_bytes(text).map_err(BadConfig::new),
            Unit::Percent => number(text.trim_end_matches('%')),
            Unit::Count => number(text),
        }
    }
}

/// A setting of one layer.
pub struct Setting {
    /// Its key, with the unit.
    pub key: &'static str,
    /// The unit of its value.
    pub unit: Unit,
    /// Its meaning, in a line.
    pub help: &'static str,
    /// Its value in a configuration; `None` if the pool has no layer that it concerns.
    pub get: fn(&PoolConfig) -> Option<u64>,
    /// Puts a value into a configuration that has one.
    pub put: fn(&mut PoolConfig, u64),
    /// The values that it may have.
    pub range: fn(&Live) -> RangeInclusive<u64>,
    /// The layer's message once the configuration has the value.
    pub message: fn(&PoolConfig) -> Addressed,
}

/// A pool as it is served.
#[derive(Clone, Debug)]
pub struct Live {
    /// Its configuration with the settings that were changed live.
    pub config: PoolConfig,
    /// The same without them.
    pub configured: PoolConfig,
    /// The plan that its stack was built from.
    pub plan: PoolPlan,
    /// The device of its cache.
    pub cache_device: Option<CacheDevice>,
}

/// The device of a pool's cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CacheDevice {
    /// Its bytes.
    pub bytes: u64,
    /// Write-evict units on it.
    pub weus: u32,
}

/// A volume's parts of its pool's layers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VolumePart {
    /// Name.
    pub name: String,
    /// Time slots.
    pub slots: u32,
    /// Bytes of the cache, if it says so itself.
    pub cache_bytes: Option<u64>,
    /// Limits of its requests and bytes.
    pub throttle: ThrottleTerms,
}

impl VolumePart {
    /// Parts of a configured volume that don't depend on its tenant.
    pub fn configured(v: &VolumeConfig) -> VolumePart {
        VolumePart {
            name: v.name.get_ref().clone(),
            slots: v.slots.unwrap_or(0),
            cache_bytes: v.cache_size.map(|s| s.0),
            throttle: ThrottleTerms::default(),
        }
    }
}

/// `GET /v1/pools/{name}/settings`: one setting as it is.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct SettingView {
    /// The layer.
    pub part: String,
    /// The key.
    pub key: String,
    /// The unit of the three values.
    pub unit: Unit,
    /// The value.
    pub value: u64,
    /// The least that it may be.
    pub min: u64,
    /// The most that it may be.
    pub max: u64,
    /// The value that was configured, if that is another one.
    pub configured: Option<u64>,
    /// Its meaning.
    pub help: String,
}

fn all() -> impl Iterator<Item = (&'static str, &'static Setting)> {
    PARTS.iter().flat_map(|p| p.settings().iter().map(|s| (p.name(), s)))
}

/// Values of all settings of a configuration.
pub fn values(config: &PoolConfig) -> BTreeMap<String, u64> {
    all().filter_map(|(_, s)| Some((s.key.to_string(), (s.get)(config)?))).collect()
}

/// The settings of a pool.
pub fn views(live: &Live) -> Vec<SettingView> {
    let view = |(part, s): (&'static str, &'static Setting)| {
        let (value, range) = ((s.get)(&live.config)?, (s.range)(live));
        Some(SettingView {
            part: part.to_string(),
            key: s.key.to_string(),
            unit: s.unit,
            value,
            min: *range.start(),
            max: *range.end(),
            configured: (s.get)(&live.configured).filter(|c| *c != value),
            help: s.help.to_string(),
        })
    };
    all().filter_map(view).collect()
}

/// Puts the settings that differ from the configured ones into a configuration of the pool.
pub fn put_live(config: &mut PoolConfig, live: &Live) {
    for (_, s) in all() {
        let now = (s.get)(&live.config);
        if let Some(value) = now.filter(|_| now != (s.get)(&live.configured)) {
            (s.put)(config, value);
        }
    }
}

/// The record of a change: `wanted` beside what was changed before and holds in `now`, with the `configured` values of all.
pub fn recorded(
    before: SettingsRecord,
    wanted: &BTreeMap<String, u64>,
    now: &BTreeMap<String, u64>,
    configured: &BTreeMap<String, u64>,
) -> SettingsRecord {
    let mut set: BTreeMap<String, u64> =
        before.set.into_iter().filter(|(key, value)| now.get(key) == Some(value)).collect();
    set.extend(wanted.clone());
    let configured =
        configured.iter().filter(|(key, _)| set.contains_key(*key)).map(|(key, value)| (key.clone(), *value));
    SettingsRecord { configured: configured.collect(), set }
}

/// Puts the settings that were changed live into a pool's configuration: those that are configured as they were then. A layer whose
/// settings don't fit each other or the configuration any more has none of them; its fault is returned.
pub fn keep(config: &mut PoolConfig, record: &SettingsRecord) -> Vec<BadConfig> {
    let mut faults = Vec::new();
    for part in PARTS {
        let mut with = config.clone();
        for s in part.settings() {
            let (now, then) = ((s.get)(config), record.configured.get(s.key).copied());
            if let Some(set) = record.set.get(s.key).filter(|_| now == then) {
                (s.put)(&mut with, *set);
            }
        }
        match part.check(&with) {
            Ok(()) => *config = with,
            Err(e) => faults.push(e),
        }
    }
    faults
}

/// A change of settings, checked.
#[derive(Clone, Debug)]
pub struct Changed {
    /// The pool with them.
    pub live: Live,
    /// The messages that make it so, each with the one that undoes it.
    pub messages: Vec<(Addressed, Addressed)>,
}

impl Changed {
    fn new(before: &Live, live: Live, changed: &[&Setting]) -> Changed {
        let mut messages: Vec<(Addressed, Addressed)> = Vec::new();
        for s in changed {
            // Several settings may have one message.
            let both = ((s.message)(&live.config), (s.message)(&before.config));
            if !messages.contains(&both) {
                messages.push(both);
            }
        }
        Changed { live, messages }
    }

    /// The change back to what was before it.
    pub fn back(&self, before: &Live) -> Changed {
        let messages = self.messages.iter().rev().map(|(to, back)| (back.clone(), to.clone())).collect();
        Changed { live: before.clone(), messages }
    }
}

/// Changes settings, all or none.
///
/// # Errors
/// The setting that there isn't, that is out of its range, or that doesn't fit the others, the devices or the volumes.
pub fn change(live: &Live, wanted: &BTreeMap<String, u64>, volumes: &[VolumePart]) -> Result<Changed, BadConfig> {
    let mut new = live.clone();
    let (mut changed, mut concerned) = (Vec::new(), BTreeSet::new());
    for (key, value) in wanted {
        let found = all().find(|(_, s)| s.key == key);
        let (part, s) = found.ok_or_else(|| BadConfig::new(format!("`{key}` is no setting: there are {}", keys())))?;
        if (s.get)(&live.config).is_none() {
            let how = super::by_name(part).map_or("", |p| p.how());
            return Err(BadConfig::new(format!(
                "`{key}`: the pool has no such layer as {part}, or it has no use for this: {how}"
            )));
        }
        let range = (s.range)(live);
        if !range.contains(value) {
            let [value, min, max] = [*value, *range.start(), *range.end()].map(|v| s.unit.text(v));
            return Err(BadConfig::new(format!("`{key}`: {value} is not between {min} and {max}")));
        }
        (s.put)(&mut new.config, *value);
        changed.push(s);
        concerned.insert(part);
    }
    for part in PARTS.iter().filter(|p| concerned.contains(p.name())) {
        check(*part, &new, volumes)?;
    }
    Ok(Changed::new(live, new, &changed))
}

/// Checks a layer's settings together with each other, the pool's devices and its volumes.
///
/// # Errors
/// The fault, and the remedy.
pub fn check(part: &dyn AnyPart, live: &Live, volumes: &[VolumePart]) -> Result<(), BadConfig> {
    part.check(&live.config)?;
    part.check_volumes(live, volumes)
}

/// The change of a layer's settings back to the configured ones.
pub fn as_configured(part: &dyn AnyPart, live: &Live) -> Changed {
    let mut new = live.clone();
    let differs = |s: &&Setting| (s.get)(&live.config) != (s.get)(&live.configured);
    let changed: Vec<&Setting> = part.settings().iter().filter(differs).collect();
    for s in &changed {
        if let Some(value) = (s.get)(&live.configured) {
            (s.put)(&mut new.config, value);
        }
    }
    Changed::new(live, new, &changed)
}

fn keys() -> String {
    all().map(|(_, s)| s.key).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn config(more: &str) -> PoolConfig {
        let text = format!("[[pool]]\nname = \"p\"\ndevice = {{ file = \"/nowhere/a\" }}\n{more}");
        let config: Config = toml::from_str(&text).expect("it is a configuration");
        config.pool.into_iter().next().expect("it has a pool")
    }

    fn live(more: &str) -> Live {
        let config = config(more);
        Live { configured: config.clone(), config, plan: PoolPlan::new(), cache_device: None }
    }

    const TUNED: &str = "sched = \"cfq\"\ncores = 4\n[pool.logs]\nlogged_write = \"4KiB\"\n";

    fn of(wanted: &[(&str, u64)]) -> BTreeMap<String, u64> {
        wanted.iter().map(|(key, value)| (key.to_string(), *value)).collect()
    }

    #[test]
    fn a_change_is_made_and_the_rest_stays() {
        use plimsoll_cores::CoresControl;
        use plimsoll_sched::cfq::CfqControl;
        let before = live(TUNED);
        let changed =
            change(&before, &of(&[("idle_us", 0), ("core_slack_high_us", 5000), ("core_slack_low_us", 300)]), &[]);
        let changed = changed.unwrap();
        let now = values(&changed.live.config);
        assert_eq!((now["idle_us"], now["core_slack_high_us"], now["logged_write_bytes"]), (0, 5000, 4096));
        let slack = CoresControl::Slack { low: Span::from_micros(300), high: Span::from_millis(5), poll_windows: 2000 };
        let messages = [Addressed::new(&slack), Addressed::new(&CfqControl::SliceIdle(Span::ZERO))];
        assert_eq!(changed.messages.len(), 2, "the two slacks have one message");
        assert!(messages.iter().all(|m| changed.messages.iter().any(|(to, _)| to == m)));
        let undone = changed.back(&before);
        assert_eq!(values(&undone.live.config), values(&before.config));
        let idle = Addressed::new(&CfqControl::SliceIdle(Span::from_millis(8)));
        assert!(undone.messages.iter().any(|(to, _)| *to == idle), "{undone:?}");
        let back = as_configured(&crate::parts::cores::Cores, &changed.live);
        let back_to = values(&back.live.config);
        assert_eq!((back_to["core_slack_low_us"], back_to["core_slack_high_us"], back.messages.len()), (300, 1000, 1));
        assert_eq!(back_to["idle_us"], 0, "another layer's setting holds");
        let none = change(&before, &of(&[]), &[]).unwrap();
        assert_eq!((values(&none.live.config), none.messages), (values(&before.config), vec![]));
    }

    #[test]
    fn a_setting_changed_live_holds_until_something_else_is_configured() {
        let configured = config(TUNED);
        let with = |before, wanted: &[(&str, u64)], now: &[(&str, u64)]| {
            recorded(before, &of(wanted), &of(now), &values(&configured))
        };
        let first = with(SettingsRecord::default(), &[("idle_us", 0)], &[("idle_us", 8000)]);
        let record = with(first, &[("core_poll_windows", 500)], &[("idle_us", 0)]);
        assert_eq!(record.set, of(&[("idle_us", 0), ("core_poll_windows", 500)]));
        let kept = |config: &PoolConfig, record: &SettingsRecord| {
            let mut config = config.clone();
            let faults = keep(&mut config, record);
            (values(&config), faults.len())
        };
        let (same, faults) = kept(&configured, &record);
        assert_eq!((same["idle_us"], same["core_poll_windows"], faults), (0, 500, 0));
        let other = config(&TUNED.replace("cores = 4", "cores = 4\nidle_time = \"4ms\""));
        let (other, faults) = kept(&other, &record);
        assert_eq!((other["idle_us"], other["core_poll_windows"], faults), (4000, 500, 0));
        let later = with(record.clone(), &[], &[("idle_us", 4000), ("core_poll_windows", 500)]);
        assert_eq!(later.set, of(&[("core_poll_windows", 500)]), "it holds no longer");
        assert_eq!(kept(&config(""), &record), (of(&[]), 0), "the pool has no such layer any more");
    }

    #[test]
    fn settings_of_one_layer_fit_together_or_are_left_out_alone() {
        let configured = config(TUNED);
        let with =
            |wanted: &[(&str, u64)]| recorded(SettingsRecord::default(), &of(wanted), &of(&[]), &values(&configured));
        let mut both = configured.clone();
        assert!(keep(&mut both, &with(&[("core_slack_low_us", 2000), ("core_slack_high_us", 8000)])).is_empty());
        assert_eq!(values(&both)["core_slack_low_us"], 2000, "each alone would be out of order");
        let mut some = configured.clone();
        let faults = keep(&mut some, &with(&[("core_slack_low_us", 2000), ("idle_us", 0)]));
        assert!(faults.len() == 1 && faults[0].to_string().contains("is above"), "{faults:?}");
        assert_eq!((values(&some)["core_slack_low_us"], values(&some)["idle_us"]), (300, 0));
        let change = change(&live(TUNED), &of(&[("core_slack_low_us", 2000), ("core_slack_high_us", 8000)]), &[]);
        assert!(change.is_ok());
    }

    #[test]
    fn a_change_that_cannot_be_is_refused() {
        let refused = |wanted: &[(&str, u64)]| change(&live(TUNED), &of(wanted), &[]).unwrap_err().to_string();
        assert!(refused(&[("fingerprints_percent", 50)]).contains("configure [pool.cache]"));
        assert!(refused(&[("logged_write_bytes", 1 << 40)]).contains("is not between 0 B and"));
        assert!(refused(&[("idle_us", 2_000_000)]).contains("`idle_us`: 2.00s is not between"));
        assert!(refused(&[("core_slack_low_us", 2000)]).contains("2.00ms at least is above 1.00ms"));
        assert!(refused(&[("core_poll_windows", 0)]).contains("is not between 1 and"));
        assert!(refused(&[("tea", 0)]).contains("no setting: there are core_slack_low_us"));
    }

    #[test]
    fn values_are_written_and_read_with_their_units() {
        for (unit, value, text) in [
            (Unit::Us, 16_000, "16ms"),
            (Unit::Bytes, 65_536, "64KiB"),
            (Unit::Percent, 50, "50%"),
            (Unit::Count, 8, "8"),
        ] {
            assert_eq!(unit.parse(text), Ok(value));
        }
        assert!(Unit::Us.parse("16").is_err(), "a time has a unit");
    }
}
