//! The configuration as it is served: what was read, with what was changed live; and its drift from the file as that is now.

use super::{Node, permits_of};
use crate::config::{ByteSize, Config, ObjectiveConfig, SpanText, TenantConfig, VolumeConfig};
use crate::directory::{Directory, Promise, Tenant, Volume, VolumePromise};
use crate::parts::settings;
use plimsoll_base::{Class, OnBusy};
use std::collections::BTreeMap;
use std::path::PathBuf;
use toml::{Spanned, Value};

/// See the module's documentation.
#[derive(Clone, Debug)]
pub struct Effective {
    /// The configuration's file; `(embedded default)` if the program has the configuration in itself.
    pub file: PathBuf,
    /// The configuration as it is served.
    pub toml: String,
    /// Its differences from the file.
    pub drift: Vec<Drift>,
    /// Reason for which the file can't be compared with: then `drift` is from what was last read of it.
    pub fault: Option<String>,
}

/// A key that isn't served as the file has it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Drift {
    /// Section: `tenant web`, `listen`.
    pub section: String,
    /// Key within it; empty for the whole section.
    pub key: String,
    /// Its value in the file, if it's there.
    pub file: Option<String>,
    /// Its value as it is served, if it has one.
    pub served: Option<String>,
    /// The file was changed since it was read: a reload or a restart ends the difference. Otherwise it was changed live.
    pub unread: bool,
}

impl Node {
    /// The configuration as it is served, and its drift. Reads the file, if there is one: blocks.
    ///
    /// # Errors
    /// If it can't be written as TOML.
    pub fn effective(&self) -> Result<Effective, toml::ser::Error> {
        let configured = self.configured();
        let read = &configured.config;
        let served = self.served(read);
        let file = read.source.file().to_path_buf();
        // An embedded one doesn't change.
        let loaded = (!read.source.is_embedded()).then(|| Config::load(&file));
        let (now, fault) = match loaded {
            None => (None, None),
            Some(Ok(now)) => (Some(now), None),
            Some(Err(_)) if !file.exists() => (None, Some(format!("{} doesn't exist", file.display()))),
            Some(Err(e)) => (None, Some(e.to_string())),
        };
        let table = |config: &Config| Value::try_from(config);
        let (served_table, read_table) = (table(&served)?, table(read)?);
        let file_table = now.as_ref().map(table).transpose()?.unwrap_or_else(|| read_table.clone());
        let mut drift = Vec::new();
        sections(&file_table, &served_table, &mut drift);
        let mut unread = Vec::new();
        sections(&file_table, &read_table, &mut unread);
        for d in &mut drift {
            d.unread = unread
                .iter()
                .any(|u| (&u.section, &u.key) == (&d.section, &d.key) || (u.section == d.section && u.key.is_empty()));
        }
        Ok(Effective { file, toml: toml::to_string_pretty(&served)?, drift, fault })
    }

    /// Returns what was read, with what was changed live.
    fn served(&self, read: &Config) -> Config {
        let mut config = read.clone();
        for p in &mut config.pool {
            let running = self.pools.named(p.name.get_ref());
            running.and_then(|(_, r)| r.live()).into_iter().for_each(|live| settings::put_live(p, &live));
        }
        let directory = self.directory.read().expect("no panic while held");
        config.tenant.retain(|t| directory.tenants.contains_key(t.name.get_ref()));
        for (name, tenant) in &directory.tenants {
            let at = config.tenant.iter().position(|t| t.name.get_ref() == name).unwrap_or_else(|| {
                config.tenant.push(new_tenant(name, &tenant.class));
                config.tenant.len() - 1
            });
            put_tenant(&mut config.tenant[at], tenant, &directory.promises.tenant(name));
        }
        // Volumes of a pool that couldn't be opened are as they were read.
        let serves = |pool: &str| self.pools.named(pool).is_some_and(|(_, p)| p.failed.is_none());
        config.volume.retain(|v| !serves(v.pool.get_ref()) || directory.volumes.contains_key(v.name.get_ref()));
        for volume in directory.volumes.values() {
            self.put_volume(&mut config.volume, volume, &directory);
        }
        config
    }

    fn put_volume(&self, all: &mut Vec<VolumeConfig>, volume: &Volume, directory: &Directory) {
        let pool = self.pools.get(volume.pool);
        let at = all.iter().position(|v| *v.name.get_ref() == volume.name).unwrap_or_else(|| {
            all.push(new_volume(volume, &pool.name));
            all.len() - 1
        });
        let v = &mut all[at];
        v.size = ByteSize(volume.size_bytes);
        v.read_only = volume.read_only;
        if *v.tenant.get_ref() != volume.tenant {
            v.tenant = text(&volume.tenant);
        }
        let promise = directory.promises.volumes.get(&volume.name);
        let written = v.deadline.map(|d| VolumePromise { deadline: d.0, busy: v.busy.unwrap_or_default() });
        if promise != written.as_ref() {
            v.deadline = promise.map(|p| SpanText(p.deadline));
            v.busy = promise.map(|p| p.busy).filter(|b| *b != OnBusy::default());
        }
        let kept = pool.store.as_ref().and_then(|store| store.view().volume(&volume.name)?.cache);
        if pool.cache_section().is_some() && kept.is_some() {
            v.cache = kept;
        }
    }
}

fn text(text: &str) -> Spanned<String> {
    Spanned::new(0..0, text.to_string())
}

fn new_volume(volume: &Volume, pool: &str) -> VolumeConfig {
    VolumeConfig {
        name: text(&volume.name),
        pool: text(pool),
        size: ByteSize(volume.size_bytes),
        tenant: text(&volume.tenant),
        read_only: volume.read_only,
        deadline: None,
        busy: None,
        cache: None,
        cache_size: None,
        baseline: None,
        slots: None,
        throttle: None,
    }
}

fn new_tenant(name: &str, class: &Class) -> TenantConfig {
    TenantConfig {
        name: text(name),
        class: text(class.name()),
        objectives: Vec::new(),
        weight: None,
        slots: None,
        jobs_max: None,
        bytes_max: None,
        deadline: None,
        busy: None,
        deadline_percentile: None,
        auto_deadline: None,
        cores: None,
        reservation_iops: None,
        limit_iops: None,
        priority: None,
    }
}

/// Puts a tenant's class, permits and promise into its section, where they aren't what the section means already.
fn put_tenant(section: &mut TenantConfig, tenant: &Tenant, promise: &Promise) {
    if section.class().ok().as_ref() != Some(&tenant.class) {
        section.class = text(tenant.class.name());
        (section.objectives, section.weight, section.slots) = (Vec::new(), None, None);
        match &tenant.class {
            Class::LatencyCritical { objectives, weight } => {
                let objective = |o: &plimsoll_base::Objective| {
                    let (percentile, within) = (f64::from(o.percentile_bp) / 100.0, SpanText(o.bound));
                    Spanned::new(0..0, ObjectiveConfig { percentile, within })
                };
                section.objectives = objectives.iter().map(objective).collect();
                section.weight = Some(*weight);
            }
            Class::BestEffort { weight } => section.weight = Some(*weight),
            Class::Fenced { slots } => section.slots = Some(*slots),
        }
    }
    let written = permits_of(section);
    if written != tenant.permits {
        section.jobs_max = Some(tenant.permits.jobs_max);
        section.bytes_max = Some(ByteSize(tenant.permits.bytes_max));
    }
    if (section.deadline.map(|d| d.0), section.busy.unwrap_or_default()) != (promise.deadline, promise.busy) {
        section.deadline = promise.deadline.map(SpanText);
        section.busy = Some(promise.busy).filter(|b| *b != OnBusy::default());
    }
}

/// Tables of a section by name: `[[tenant]]` has one for each `name`, `[listen]` is one.
fn named(section: &str, value: &Value) -> BTreeMap<String, Value> {
    let name = |n: usize, t: &Value| {
        let name = ["name", "nqn"].iter().find_map(|key| t.get(key)?.as_str());
        format!("{section} {}", name.map_or_else(|| (n + 1).to_string(), str::to_string))
    };
    match value {
        Value::Array(all) => all.iter().enumerate().map(|(n, t)| (name(n, t), t.clone())).collect(),
        one => BTreeMap::from([(section.to_string(), one.clone())]),
    }
}

/// Adds the differences of two configurations.
fn sections(file: &Value, served: &Value, drift: &mut Vec<Drift>) {
    let all = |config: &Value| -> BTreeMap<String, Value> {
        config.as_table().into_iter().flatten().flat_map(|(section, value)| named(section, value)).collect()
    };
    let (file, served) = (all(file), all(served));
    let sections: std::collections::BTreeSet<&String> = file.keys().chain(served.keys()).collect();
    for section in sections {
        differ(section, "", file.get(section), served.get(section), drift);
    }
}

/// Adds the differences of two values: of two tables those of their keys.
fn differ(section: &str, key: &str, file: Option<&Value>, served: Option<&Value>, drift: &mut Vec<Drift>) {
    match (file, served) {
        (Some(Value::Table(a)), Some(Value::Table(b))) => {
            let keys: std::collections::BTreeSet<&String> = a.keys().chain(b.keys()).collect();
            for k in keys {
                let inner = if key.is_empty() { k.clone() } else { format!("{key}.{k}") };
                differ(section, &inner, a.get(k), b.get(k), drift);
            }
        }
        (a, b) if a == b => {}
        (a, b) => {
            let shown = |v: Option<&Value>| match v {
                Some(Value::Table(_)) if key.is_empty() => Some("declared".to_string()),
                v => v.map(Value::to_string),
            };
            let (section, key) = (section.to_string(), key.to_string());
            drift.push(Drift { section, key, file: shown(a), served: shown(b), unread: false });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_are_named_by_section_and_key() {
        let parse = |text: &str| toml::from_str::<Value>(text).unwrap();
        let file = parse(
            "[[tenant]]\nname = \"t\"\nweight = 1\n[[volume]]\nname = \"gone\"\n[log]\nlevel = \"info\"\n[[grant]]\npeer = \"a\"",
        );
        let served = parse(
            "[[tenant]]\nname = \"t\"\nweight = 2\nsub = { x = 1 }\n[log]\nlevel = \"info\"\n[[grant]]\npeer = \"b\"\n[[volume]]\nname = \"new\"",
        );
        let mut drift = Vec::new();
        sections(&file, &served, &mut drift);
        let shown = |d: &Drift| format!("{}.{}: {:?} {:?}", d.section, d.key, d.file.as_deref(), d.served.as_deref());
        assert_eq!(
            drift.iter().map(shown).collect::<Vec<_>>(),
            [
                r#"grant 1.peer: Some("\"a\"") Some("\"b\"")"#,
                r#"tenant t.sub: None Some("{ x = 1 }")"#,
                r#"tenant t.weight: Some("1") Some("2")"#,
                r#"volume gone.: Some("declared") None"#,
                r#"volume new.: None Some("declared")"#,
            ]
        );
    }
}
