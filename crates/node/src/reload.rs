//! Reading the configuration again while the node serves: differences that take effect at once, and those that need a restart.
//!
//! | at once | after a restart |
//! |---|---|
//! | `[[grant]]`, for new connections | `[listen]` without `tls`, `[control]` without `drain`, `[limits]` |
//! | `[listen.tls]`, `[[nvme_host]]` and their files, for new connections | `[[pool]]`: changes of one that is served |
//! | `[[pool]]`: new ones, and those that couldn't be opened | |
//! | `[[tenant]]`: all keys; new ones | tenants that are no longer there, `[[subsystem]]` |
//! | `[[volume]]`: new ones, `size` (growth), `tenant`, `read_only`, `deadline`, `busy`, `throttle` | its other keys |
//! | `[log]`, `control.drain` | |
//!
//! A live change (`plimsoll tenant set`) keeps precedence over the configuration.

use crate::config::{Config, Control, Listen, PoolConfig, VolumeConfig};
use std::collections::BTreeSet;

/// The result of a reload.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Reloaded {
    /// Sections that were changed, and took effect.
    pub changed: Vec<String>,
    /// Sections that were changed, and take effect at the next start.
    pub restart: Vec<String>,
    /// Pools that are served though the file hasn't them any more.
    pub still_served: Vec<String>,
    /// Changes that could not be carried out, with the reason; the others took effect.
    pub failed: Vec<String>,
}

impl Reloaded {
    /// In one line.
    pub fn text(&self) -> String {
        let part = |words: &str, all: &[String]| (!all.is_empty()).then(|| format!("{words}: {}", all.join(", ")));
        let parts = [
            part("changed", &self.changed),
            part("needs a restart", &self.restart),
            part("still served", &self.still_served),
            part("failed", &self.failed),
        ];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        if parts.is_empty() { "nothing differs".into() } else { parts.join("; ") }
    }
}

/// A pool's section, as results name it.
pub fn pool_section(name: &str) -> String {
    format!("pool `{name}`")
}

/// A tenant's section, as results name it.
pub fn tenant_section(name: &str) -> String {
    format!("tenant `{name}`")
}

/// A volume's section, as results name it.
pub fn volume_section(name: &str) -> String {
    format!("volume `{name}`")
}

/// The sections that differ between the configuration that is served and a new one, or that the last reload couldn't carry out (`again`).
/// `old` has only the pools that are served.
pub fn differences(old: &Config, new: &Config, again: &BTreeSet<String>) -> Reloaded {
    let mut all = Reloaded::default();
    if old.listen.tls != new.listen.tls {
        all.changed.push("[listen.tls]".into());
    } else if new.listen.tls.is_some() {
        all.changed.push("certificates, read anew".into());
    }
    if old.nvme_host != new.nvme_host {
        all.changed.push("NVMe hosts".into());
    } else if !new.nvme_host.is_empty() {
        all.changed.push("NVMe hosts' secrets, read anew".into());
    }
    for (differs, name) in [(old.log != new.log, "[log]"), (old.grant != new.grant, "grants")] {
        all.changed.extend(differs.then(|| name.into()));
    }
    let plain = |l: &Listen| Listen { tls: None, ..l.clone() };
    let listens = plain(&old.listen) != plain(&new.listen);
    let drainless = |c: &Control| Control { drain: new.control.drain, ..c.clone() };
    let controls = drainless(&old.control) != new.control;
    if !controls && old.control != new.control {
        all.changed.push("control.drain".into());
    }
    let limits = old.limits != new.limits;
    let subsystems = old.subsystem != new.subsystem;
    for (differs, name) in
        [(listens, "[listen]"), (controls, "[control]"), (limits, "[limits]"), (subsystems, "subsystems")]
    {
        all.restart.extend(differs.then(|| name.into()));
    }
    for p in &new.pool {
        let section = pool_section(p.name.get_ref());
        match old.pool.iter().find(|o| o.name == p.name) {
            None => all.changed.push(section),
            Some(was) => all.restart.extend((was != p).then_some(section)),
        }
    }
    all.still_served = gone(&old.pool, &new.pool).map(|p| still_served(p.name.get_ref())).collect();
    for t in &new.tenant {
        let was = old.tenant.iter().find(|o| o.name == t.name);
        let section = tenant_section(t.name.get_ref());
        let differs = was.is_none_or(|was| was != t) || again.contains(&section);
        all.changed.extend(differs.then_some(section));
    }
    let gone = old.tenant.iter().filter(|o| !new.tenant.iter().any(|t| t.name == o.name));
    all.restart.extend(gone.map(|t| format!("tenant `{}` (no longer configured)", t.name.get_ref())));
    for v in &new.volume {
        let was = old.volume.iter().find(|o| o.name == v.name);
        let name = volume_section(v.name.get_ref());
        match was {
            Some(was) if was == v && !again.contains(&name) => {}
            Some(was) if was.pool != v.pool => {
                all.restart.push(format!("{name} (not its `pool`: no volume moves to another, copy its data)"));
            }
            Some(was) if !fixed_alike(was, v) => all.restart.push(name),
            _ => all.changed.push(name),
        }
    }
    all
}

fn still_served(pool: &str) -> String {
    format!("{} (no longer configured; `plimsoll pool remove {pool}` ends it)", pool_section(pool))
}

/// Takes over the pools of the configuration that the node applied, where they aren't those that a reload asked for: one whose device
/// answered while the reload was under way is served with its earlier section.
pub fn keep_pools(served: &mut Config, done: &mut Reloaded, applied: &Config) {
    for p in &applied.pool {
        let (name, section) = (p.name.get_ref(), pool_section(p.name.get_ref()));
        match served.pool.iter().find(|asked| asked.name == p.name) {
            None => done.still_served.push(still_served(name)),
            Some(asked) if asked != p => {
                done.changed.retain(|changed| *changed != section);
                done.restart.push(section);
            }
            Some(_) => {}
        }
    }
    (served.pool, served.undeclared) = (applied.pool.clone(), applied.undeclared.clone());
}

/// The pools that are in the old configuration alone.
fn gone<'a>(old: &'a [PoolConfig], new: &'a [PoolConfig]) -> impl Iterator<Item = &'a PoolConfig> {
    old.iter().filter(|o| !new.iter().any(|p| p.name == o.name))
}

/// True if the keys of a volume that only a start applies are alike.
fn fixed_alike(a: &VolumeConfig, b: &VolumeConfig) -> bool {
    let of = |v: &VolumeConfig| (v.pool.get_ref().clone(), v.cache_size, v.slots, v.baseline.clone(), v.cache);
    of(a) == of(b)
}

/// The configuration as it is served after a reload: the new one, but for the sections that need a restart. `old` has only the pools that
/// are served.
pub fn served(old: Config, new: Config) -> Config {
    let mut control = old.control;
    control.drain = new.control.drain;
    let volume = |v: VolumeConfig| match old.volume.iter().find(|o| o.name == v.name) {
        // Its place is the new file's.
        Some(was) if !fixed_alike(was, &v) => VolumeConfig { name: v.name, ..was.clone() },
        _ => v,
    };
    let pool = |p: &PoolConfig| match old.pool.iter().find(|o| o.name == p.name) {
        // Its place is the new file's.
        Some(was) => PoolConfig { name: p.name.clone(), ..was.clone() },
        None => p.clone(),
    };
    let undeclared: Vec<PoolConfig> = gone(&old.pool, &new.pool).cloned().collect();
    let gone = old.tenant.iter().filter(|o| !new.tenant.iter().any(|t| t.name == o.name)).cloned();
    Config {
        listen: Listen { tls: new.listen.tls, ..old.listen },
        control,
        limits: old.limits,
        undeclared: undeclared.iter().map(|p| p.name.get_ref().clone()).collect(),
        pool: new.pool.iter().map(pool).chain(undeclared).collect(),
        tenant: new.tenant.iter().cloned().chain(gone).collect(),
        volume: new.volume.into_iter().map(volume).collect(),
        subsystem: old.subsystem,
        nvme_host: new.nvme_host,
        log: new.log,
        grant: new.grant,
        takes_free_ports: old.takes_free_ports,
        source: new.source,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    const OLD: &str = r#"
        [listen]
        unix = "nbd.sock"
        [[pool]]
        name = "p"
        device = { null = true, size = "1GiB" }
        [[tenant]]
        name = "t"
        class = "best-effort"
        [[tenant]]
        name = "u"
        class = "best-effort"
        [[volume]]
        name = "v"
        pool = "p"
        size = "1MiB"
        tenant = "t"
    "#;

    #[test]
    fn differences_are_named_by_section() {
        let parse = |text: &str| Config::parse(text, Path::new("/node.toml")).unwrap();
        let of = |replaced: &[(&str, &str)]| {
            let text = replaced.iter().fold(OLD.to_string(), |text, (a, b)| {
                assert!(text.contains(a), "{a}");
                text.replacen(a, b, 1)
            });
            differences(&parse(OLD), &parse(&text), &BTreeSet::new())
        };
        let lists = |r: &Reloaded| (r.changed.join(", "), r.restart.join(", "));
        let none = String::new();
        assert_eq!(of(&[("[listen]", "\n\n[listen]")]), Reloaded::default(), "only lines moved");
        for (old, new, changed, restart) in [
            ("nbd.sock", "other.sock", "", "[listen]"),
            ("[[pool]]", "[control]\ndrain = \"5s\"\n[[pool]]", "control.drain", ""),
            ("[[pool]]", "[control]\ndrain = \"5s\"\nlocal_reads = false\n[[pool]]", "", "[control]"),
            ("1GiB", "2GiB", "", "pool `p`"),
            ("[[pool]]", "[log]\nlevel = \"debug\"\n[[pool]]", "[log]", ""),
            ("[[pool]]", "[[pool]]\nname = \"q\"\ndevice = { null = true, size = \"1GiB\" }\n[[pool]]", "pool `q`", ""),
            ("name = \"t\"", "name = \"t\"\ndeadline = \"5ms\"", "tenant `t`", ""),
            ("name = \"u\"", "name = \"x\"", "tenant `x`", "tenant `u` (no longer configured)"),
            ("size = \"1MiB\"", "size = \"2MiB\"", "volume `v`", ""),
            ("size = \"1MiB\"", "size = \"1MiB\"\ncache = \"off\"", "", "volume `v`"),
        ] {
            assert_eq!(lists(&of(&[(old, new)])), (changed.to_string(), restart.to_string()), "{new}");
        }
        let grant = "[[grant]]\npeer = \"local\"\nvolumes = [\"*\"]\n[[pool]]";
        let both = of(&[("[[pool]]", grant), ("nbd.sock", "other.sock")]);
        assert_eq!(both.text(), "changed: grants; needs a restart: [listen]");
        assert_eq!(of(&[]).text(), "nothing differs");
        assert_eq!(lists(&of(&[])), (none.clone(), none));
        // What needs a restart is named again by the next reload; what took effect isn't.
        let new = parse(&OLD.replace("1GiB", "2GiB").replace("name = \"u\"", "name = \"x\""));
        let served = served(parse(OLD), parse(&OLD.replace("1GiB", "2GiB").replace("name = \"u\"", "name = \"x\"")));
        let again = differences(&served, &new, &BTreeSet::new());
        assert_eq!(lists(&again), (String::new(), "pool `p`, tenant `u` (no longer configured)".into()));
        // A pool that left the file is served until it's removed, with its old section.
        let two = parse(
            &OLD.replace("[[pool]]", "[[pool]]\nname = \"q\"\ndevice = { null = true, size = \"2GiB\" }\n[[pool]]"),
        );
        let served = super::served(two.clone(), parse(OLD));
        let names: Vec<&str> = served.pool.iter().map(|p| p.name.get_ref().as_str()).collect();
        assert_eq!((names, served.undeclared.len()), (vec!["p", "q"], 1));
        for old in [&two, &served] {
            let still = differences(old, &parse(OLD), &BTreeSet::new());
            assert_eq!(lists(&still), (String::new(), String::new()));
            assert_eq!(still.text(), "still served: pool `q` (no longer configured; `plimsoll pool remove q` ends it)");
        }
        assert!(super::served(served, two).undeclared.is_empty());
        // So is what could not be carried out.
        let unmade = ["tenant `t`", "volume `v`", "volume `gone`"].map(String::from).into();
        let again = differences(&parse(OLD), &parse(OLD), &unmade);
        assert_eq!(lists(&again), ("tenant `t`, volume `v`".into(), String::new()));
    }
}
