//! `plimsoll check`: a configuration against itself and against this machine. Devices are looked at, and nothing is changed or made.

use anyhow::{Result, bail};
use clap::Args;
use plimsoll_base::OnBusy;
use plimsoll_node::config::{Config, ConfigError, ConfigErrors, Grant, PoolConfig, VolumeConfig};
use plimsoll_node::look::look;
use plimsoll_node::objectives::judge;
use plimsoll_node::open::{rehearse, rehearse_layers};
use plimsoll_pool::PoolPlan;
use plimsoll_store::{GRANULE_BYTES, MetaView};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

/// Check a configuration and the devices that it names; nothing is changed or made.
#[derive(Args)]
#[command(
    after_help = "Reports what `plimsoll serve` would refuse; the exit status is 1 then. The metadata of a pool are read unless a node serves it. Only a start \
        reads logs and the content of caches.\n\nExamples:\n  plimsoll check /etc/plimsoll/plimsoll.toml\n  plimsoll check /etc/plimsoll/plimsoll.toml --json\n  \
        plimsoll config export | plimsoll check -"
)]
pub struct Check {
    /// Configuration file; `-`: standard input, with relative paths from the current folder.
    file: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Print each pool's plan as JSON: every setting of every layer, defaults filled in (but what only a start finds out)
    #[arg(long)]
    resolved: bool,
}

/// An error or a warning.
#[derive(Serialize)]
struct Finding {
    /// Line of the configuration; absent where it is about all of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<usize>,
    what: String,
}

impl Finding {
    fn of(e: &ConfigError) -> Finding {
        Finding { line: (e.line > 0).then_some(e.line), what: e.what.clone() }
    }
}

/// Findings about a configuration.
#[derive(Serialize, Default)]
pub struct Report {
    file: PathBuf,
    pools: usize,
    tenants: usize,
    volumes: usize,
    grants: usize,
    /// Refused by `plimsoll serve`, here and now.
    errors: Vec<Finding>,
    /// Lawful, and yet probably not meant.
    warnings: Vec<Finding>,
    /// Effects of the next start that can't be taken back, and parts that weren't looked at.
    notes: Vec<Finding>,
}

#[derive(Default)]
struct Findings {
    errors: Vec<ConfigError>,
    warnings: Vec<ConfigError>,
    notes: Vec<ConfigError>,
    /// By pool.
    plans: BTreeMap<String, PoolPlan>,
    /// Files that take space as they fill up, with the bytes that they may have.
    sparse: Vec<(PathBuf, u64)>,
    /// Metadata that could be read, by pool.
    stored: Vec<(String, MetaView)>,
}

impl Check {
    /// Runs the command.
    pub fn run(self) -> Result<()> {
        let (name, loaded) = match self.file == Path::new("-") {
            true => (PathBuf::from("stdin"), Config::parse(&crate::output::read(&self.file)?, Path::new("stdin"))),
            false => (self.file.clone(), Config::load(&self.file)),
        };
        let (report, plans) = match loaded {
            Ok(config) => report(&config, &name),
            Err(ConfigErrors(errors)) => {
                let errors = errors.iter().map(Finding::of).collect();
                (Report { file: name, errors, ..Report::default() }, BTreeMap::new())
            }
        };
        match (self.resolved && report.errors.is_empty(), self.json) {
            (true, _) => crate::client::print_json(&plans)?,
            (false, true) => crate::client::print_json(&report)?,
            (false, false) => print!("{}", report.text()),
        }
        report.verdict()
    }
}

fn report(config: &Config, file: &Path) -> (Report, BTreeMap<String, PoolPlan>) {
    let Findings { errors, warnings, notes, plans, .. } = findings(config);
    let report = Report {
        file: file.to_path_buf(),
        pools: config.pool.len(),
        tenants: config.tenant.len(),
        volumes: config.volume.len(),
        grants: config.grant.len(),
        errors: errors.iter().map(Finding::of).collect(),
        warnings: warnings.iter().map(Finding::of).collect(),
        notes: notes.iter().map(Finding::of).collect(),
    };
    (report, plans)
}

/// "1 pool", "2 pools".
fn counted(n: usize, word: &str) -> String {
    format!("{n} {word}{}", if n == 1 { "" } else { "s" })
}

impl Report {
    /// Returns the findings about a configuration.
    pub fn of(config: &Config, file: &Path) -> Report {
        report(config, file).0
    }

    /// True if a start would refuse it.
    pub fn has_errors(&self) -> bool {
        !self.errors.is_empty()
    }

    /// Fails if a start would refuse it.
    pub fn verdict(&self) -> Result<()> {
        match self.errors.len() {
            0 => Ok(()),
            n => bail!("{}: `plimsoll serve` would refuse it: {}", self.file.display(), counted(n, "error")),
        }
    }

    /// The findings, for people.
    pub fn text(&self) -> String {
        let Report { pools, tenants, volumes, grants, errors, warnings, notes, .. } = self;
        let file = self.file.display();
        let verdict = match (errors.len(), warnings.len()) {
            (0, 0) => "all well".to_string(),
            (0, n) => format!("correct, but {}", counted(n, "warning")),
            (n, _) => counted(n, "error"),
        };
        let has = [(pools, "pool"), (tenants, "tenant"), (volumes, "volume"), (grants, "grant")];
        let has: Vec<_> = has.iter().map(|(n, word)| counted(**n, word)).collect();
        // Where the text couldn't be read, nothing is known of its sections.
        let has = if *pools == 0 { String::new() } else { format!("{}: ", has.join(", ")) };
        let mut text = format!("{file}: {has}{verdict}\n");
        for (kind, found) in [("error", errors), ("warning", warnings), ("note", notes)] {
            for Finding { line, what } in found {
                let line = line.map_or(String::new(), |n| format!(":{n}"));
                text += &format!("{file}{line}: {kind}: {what}\n");
            }
        }
        text
    }
}

fn findings(config: &Config) -> Findings {
    let mut all = Findings::default();
    let anywhere = |what: String| config.source.error(None, what);
    let (mut errors, mut warnings) = (Vec::new(), Vec::new());
    // Another user, or the service's container, may be allowed to use it where this command isn't.
    warnings.extend(plimsoll_node::engine::check_io_uring().err().map(|e| e.to_string()));
    addresses(config, &mut errors, &mut warnings);
    all.errors.extend(errors.into_iter().map(anywhere));
    all.warnings.extend(warnings.into_iter().map(anywhere));
    config.pool.iter().for_each(|p| pool(p, config, &mut all));
    objectives(config, &mut all);
    overcommitted(config, &mut all);
    errors_for_being_late(config, &mut all.warnings);
    grants(config, &all.stored, &mut all.warnings);
    all
}

/// Warns of promises whose refusals are I/O errors to clients that know no promises.
fn errors_for_being_late(config: &Config, warnings: &mut Vec<ConfigError>) {
    let tenants = config.tenant.iter().map(|t| ("tenant", &t.name, t.busy));
    let volumes = config.volume.iter().map(|v| ("volume", &v.name, v.busy));
    for (kind, name, _) in tenants.chain(volumes).filter(|(_, _, busy)| *busy == Some(OnBusy::Error)) {
        let what = format!(
            "{kind} `{}`: busy = \"error\" answers a read that would be late with an I/O error: file systems go read-only \
             or shut down, databases fail queries or end. It is for clients that then read elsewhere (QEMU's quorum)",
            name.get_ref()
        );
        warnings.push(config.source.error(Some(name.span().start), what));
    }
}

/// Warns of files that can't all fill up: then writes fail with "no space" although their volumes have room.
fn overcommitted(config: &Config, all: &mut Findings) {
    let mut systems: BTreeMap<u64, (u64, u64, Vec<String>)> = BTreeMap::new();
    for (file, bytes) in &all.sparse {
        let there = std::fs::metadata(file).ok();
        let folder = file.parent().unwrap_or(Path::new("/"));
        let (Ok(of_folder), Ok(system)) = (std::fs::metadata(folder), rustix::fs::statvfs(folder)) else { continue };
        let missing = bytes.saturating_sub(there.map_or(0, |m| m.blocks() * 512));
        let of = systems.entry(of_folder.dev()).or_insert((0, system.f_bavail * system.f_frsize, Vec::new()));
        of.0 += missing;
        of.2.push(file.display().to_string());
    }
    for (missing, free, files) in systems.into_values().filter(|(missing, free, _)| missing > free) {
        let (missing, free) = (crate::table::bytes(missing), crate::table::bytes(free));
        let what = format!(
            "{} may grow by {missing} together, and their file system has {free}: once it is full, writes and flushes fail",
            files.join(", ")
        );
        all.warnings.push(config.source.error(None, what));
    }
}

fn addresses(config: &Config, errors: &mut Vec<String>, warnings: &mut Vec<String>) {
    if config.listen.unix.is_none() && config.listen.tcp.is_none() {
        warnings.push("listen: neither unix nor tcp: no NBD client can come".into());
    }
    for (key, path) in [("listen.unix", &config.listen.unix), ("control.unix", &config.control.unix)] {
        let Some(path) = path else { continue };
        folder(key, path, errors);
        // sun_path of sockaddr_un has 108 bytes, one of them the end's.
        if path.as_os_str().len() > 107 {
            errors.push(format!("{key} {}: longer than the 107 bytes that a socket's path may have", path.display()));
        }
        if UnixStream::connect(path).is_ok() {
            warnings.push(format!("{key} {}: a process serves this socket now", path.display()));
        }
    }
    for (key, address) in [("listen.tcp", config.listen.tcp), ("control.http", config.control.http)] {
        // Taken for a moment: nothing else says whether this host has the address and this user may listen there.
        match address.map(TcpListener::bind) {
            Some(Err(e)) if e.kind() == std::io::ErrorKind::AddrInUse => {
                warnings.push(format!("{key} {}: a process listens there now", address.expect("it is set")));
            }
            Some(Err(e)) => errors.push(format!("{key} {}: {e}", address.expect("it is set"))),
            Some(Ok(_)) | None => {}
        }
    }
    let here = |a: SocketAddr| a.ip().is_loopback();
    match (&config.listen.tcp, &config.listen.tls) {
        (Some(tcp), None) if !here(*tcp) => warnings.push(format!(
            "listen.tcp {tcp}: other hosts reach it, but without [listen.tls] nobody from there is granted anything"
        )),
        (None, Some(_)) => warnings.push("listen.tls: is for listen.tcp, which isn't set".into()),
        _ => {}
    }
    if let Some(http) = config.control.http.filter(|a| !here(*a)) {
        warnings.push(format!(
            "control.http {http}: other hosts reach it, with the token in the clear: prefer a loopback address"
        ));
    }
    if let (Some(a), Some(b)) = (config.listen.tcp, config.control.http)
        && a.port() == b.port()
        && a.port() != 0
        && (a.ip() == b.ip() || a.ip().is_unspecified() || b.ip().is_unspecified())
    {
        errors.push(format!("listen.tcp and control.http both want {a}"));
    }
    match &config.control.token_file {
        Some(path) => folder("control.token_file", path, errors),
        None if config.control.unix.is_none() => {
            warnings.push("control: neither token_file nor unix: nothing can be changed while the node runs".into());
        }
        None => {}
    }
    if let Some(Err(what)) = config.listen.tls.as_ref().map(plimsoll_node::tls::acceptor) {
        errors.push(format!("listen.tls: {what}"));
    }
    errors.extend(plimsoll_node::secrets::load(&config.nvme_host).err().map(|e| e.to_string()));
}

fn folder(key: &str, path: &Path, all: &mut Vec<String>) {
    if !path.parent().is_some_and(Path::is_dir) {
        all.push(format!("{key} {}: its folder doesn't exist: create it, or correct the path", path.display()));
    }
}

fn pool(p: &PoolConfig, config: &Config, all: &mut Findings) {
    let name = p.name.get_ref();
    let at = |what: String| config.source.error(Some(p.name.span().start), format!("pool `{name}`: {what}"));
    if p.device.volatile_cache.is_some() {
        all.warnings.push(at("volatile_cache loses data on purpose: for tests only".into()));
    }
    let seen = look(p);
    all.errors.extend(seen.errors.iter().map(|e| at(e.to_string())));
    all.warnings.extend(seen.warnings.into_iter().map(at));
    all.sparse.extend(seen.sparse);
    if let Some((from, to)) = seen.grows {
        all.notes.push(at(format!(
            "the next start grows it with its device, from {from} to {to} bytes; it can't shrink again"
        )));
    }
    all.notes.extend(seen.unseen.into_iter().map(at));
    let of_pool = || config.volume.iter().filter(|v| v.pool.get_ref() == name);
    let granules = |bytes: u64| bytes.next_multiple_of(GRANULE_BYTES);
    let stored = |v: &VolumeConfig| seen.meta.as_ref()?.volume(v.name.get_ref()).map(|r| r.size_bytes);
    // Where nothing is known of the pool's volumes, those of the configuration are all.
    let wanted: u64 = of_pool().map(|v| granules(v.size.0).saturating_sub(stored(v).map_or(0, granules))).sum();
    let used = seen.meta.as_ref().map_or(0, |view| view.home_bytes() - view.free_bytes());
    if let Some(view) = seen.meta {
        metadata(p, &view, config, all);
        all.stored.push((name.clone(), view));
    }
    let rehearsed = match seen.layered_bytes {
        Some(len) => Some(rehearse_layers(p, len)),
        None => seen.bytes.map(|bytes| rehearse(p, bytes)),
    };
    match rehearsed {
        None => {} // the fault of the device is among the errors
        Some(Err(e)) => all.errors.push(at(e.to_string())),
        Some(Ok((has, _))) if has < wanted && used == 0 => {
            all.errors.push(at(format!("its volumes want {wanted} bytes, but its device has {has} for them")));
        }
        Some(Ok((has, _))) if has < used + wanted => {
            let left = has.saturating_sub(used);
            all.errors
                .push(at(format!("its volumes want {wanted} bytes more, but its device has {left} left for them")));
        }
        Some(Ok((_, plan))) => drop(all.plans.insert(name.clone(), plan)),
    }
}

/// Judges tenants' objectives, pool by pool: by all pools' metadata, as those keep what was changed live.
fn objectives(config: &Config, all: &mut Findings) {
    for p in &config.pool {
        let Some(plan) = all.plans.get(p.name.get_ref()) else { continue };
        let judged = judge(p, plan, config, &all.stored);
        for (tenant, what) in judged.unkept {
            let section = config.tenant.iter().find(|t| *t.name.get_ref() == tenant);
            let place = section.map_or(p.name.span(), |t| t.name.span()).start;
            let what = format!("tenant `{tenant}`: in pool `{}`, {what}", p.name.get_ref());
            all.warnings.push(config.source.error(Some(place), what));
        }
        let unjudged = judged.unjudged.map(|what| format!("pool `{}`: {what}", p.name.get_ref()));
        all.notes.extend(unjudged.map(|what| config.source.error(Some(p.name.span().start), what)));
    }
}

/// Compares a pool's stored volumes with the configured ones.
fn metadata(p: &PoolConfig, view: &MetaView, config: &Config, all: &mut Findings) {
    let pool = p.name.get_ref();
    for v in &config.volume {
        let name = v.name.get_ref();
        let at = |what: String| config.source.error(Some(v.name.span().start), what);
        match view.volume(name) {
            Some(_) if v.pool.get_ref() != pool => {
                let configured = v.pool.get_ref();
                all.errors
                    .push(at(format!("volume `{name}` is in pool `{pool}`, and is configured in `{configured}`")));
            }
            Some(there) if there.size_bytes > v.size.0 => all.warnings.push(at(format!(
                "volume `{name}`: `size` is ignored: it has {} bytes, and volumes never shrink",
                there.size_bytes
            ))),
            _ => {}
        }
    }
    let whole = |what: String| config.source.error(Some(p.name.span().start), format!("pool `{pool}`: {what}"));
    for (other, stored) in &all.stored {
        for twice in view.volumes().filter(|v| stored.volume(&v.name).is_some()) {
            let what = format!(
                "volume `{}` is in pool `{other}`, too: a start refuses both; serve one of the pools alone, and rename the volume",
                twice.name
            );
            all.errors.push(whole(what));
        }
    }
    let declared = |name: &String| {
        config.tenant.iter().any(|t| t.name.get_ref() == name) || view.tenants().any(|t| t.name == *name)
    };
    let owners: BTreeSet<&String> = view.volumes().map(|v| &v.tenant).filter(|name| !declared(name)).collect();
    for owner in owners {
        let what = format!(
            "its volumes have the tenant `{owner}`, which isn't declared: it is taken as best-effort with weight 100"
        );
        all.warnings.push(whole(what));
    }
    let deleting: Vec<&str> = view.deleting().map(|v| v.name.as_str()).collect();
    if !deleting.is_empty() {
        all.notes.push(whole(format!("the next start goes on with the deletion of {}", deleting.join(", "))));
    }
}

fn grants(config: &Config, stored: &[(String, MetaView)], all: &mut Vec<ConfigError>) {
    if config.grant.is_empty() {
        all.push(config.source.error(None, "no [[grant]]: nobody may use anything".into()));
    }
    let volumes: BTreeSet<&str> = config.volume.iter().map(|v| v.name.get_ref().as_str()).collect();
    let tenants: BTreeSet<&str> = config.tenant.iter().map(|t| t.name.get_ref().as_str()).collect();
    for g in &config.grant {
        let at = |what: String| {
            config.source.error(Some(g.peer.span().start), format!("grant for `{}`: {what}", g.peer.get_ref()))
        };
        // Volumes and tenants may also be made while the node runs: naming one that isn't here is no error.
        let is_stored = |name: &String| stored.iter().any(|(_, view)| view.volume(name).is_some());
        for v in g.volumes.iter().filter(|v| *v != "*" && !volumes.contains(v.as_str()) && !is_stored(v)) {
            all.push(at(format!("there is no volume `{v}` here")));
        }
        let is_known = |name: &String| stored.iter().any(|(_, view)| view.tenants().any(|t| t.name == *name));
        for t in g.tenants.iter().filter(|t| *t != "*" && !tenants.contains(t.as_str()) && !is_known(t)) {
            all.push(at(format!("there is no tenant `{t}` here")));
        }
        if g.peer.get_ref().starts_with("cert:") && config.listen.tls.is_none() {
            all.push(at("without [listen.tls] nobody can show a certificate".into()));
        }
    }
    let covers = |g: &Grant, name: &String| g.volumes.iter().any(|w| w == "*" || w == name);
    for v in &config.volume {
        let name = v.name.get_ref();
        if !config.grant.is_empty() && !config.grant.iter().any(|g| covers(g, name)) {
            let what = format!("volume `{name}`: no grant covers it, so nobody may use it");
            all.push(config.source.error(Some(v.name.span().start), what));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(dir: &Path, text: &str) -> Findings {
        findings(&Config::parse(text, &dir.join("node.toml")).unwrap())
    }

    #[test]
    fn a_sound_configuration_has_no_warnings() {
        let dir = tempfile::tempdir().unwrap();
        let text = include_str!("default.toml").replace(":10809", ":0").replace(":7700", ":0");
        let mut found = check(dir.path(), &text);
        // How much room there is is this machine's.
        found.warnings.retain(|w| !w.what.contains("their file system has"));
        assert!(found.errors.is_empty() && found.warnings.is_empty(), "{:?} {:?}", found.errors, found.warnings);
    }

    #[test]
    fn what_serve_would_refuse_and_what_is_probably_not_meant_are_told_apart() {
        let dir = tempfile::tempdir().unwrap();
        let text = r#"
            [listen]
            tcp = "0.0.0.0:7700"
            [control]
            http = "127.0.0.1:7700"
            token_file = "no such folder/token"
            [listen.tls]
            certificate = "no.pem"
            key = "no.key"
            client_ca = "no.pem"
            [[pool]]
            name = "a"
            device = { file = "a.img", size = "64MiB" }
            profile = "no.profile"
            [[pool]]
            name = "b"
            device = { file = "b.img" }
            [[pool]]
            name = "c"
            device = { file = "c.img", size = "64MiB" }
            [[pool]]
            name = "d"
            device = { file = "d.img", size = "64MiB" }
            sched = "ssd"
            [[pool]]
            name = "e"
            device = { file = "e.img", size = "1MiB" }
            [[pool]]
            name = "f"
            device = { file = "f.img", size = "200GiB", model = "hdd-160g-7200" }
            [[tenant]]
            name = "t"
            class = "best-effort"
            deadline = "20ms"
            busy = "error"
            [[volume]]
            name = "larger than the model"
            pool = "f"
            size = "180GiB"
            tenant = "t"
            [[volume]]
            name = "v"
            pool = "c"
            size = "62MiB"
            tenant = "t"
            [[grant]]
            peer = "cert:x"
            volumes = ["w"]
            tenants = ["u"]
        "#;
        let Findings { errors, warnings, .. } = check(dir.path(), text);
        let joined = |all: &[ConfigError]| all.iter().map(|e| e.what.as_str()).collect::<Vec<_>>().join("\n");
        let (errors, warnings) = (joined(&errors), joined(&warnings));
        for part in [
            "listen.tcp and control.http both want",
            "control.token_file",
            "listen.tls: ",
            "no.profile: cannot be read",
            "pool `c`: its volumes want 65011712 bytes, but its device has ",
            "pool `d`: sched `ssd` predicts from a flash drive's inside",
            "pool `e`: a device needs at least ",
            "pool `f`: its volumes want 193273528320 bytes, but its device has ",
            "pool `b`: ",
        ] {
            assert!(errors.contains(part), "{part} is missing in:\n{errors}");
        }
        for part in [
            "there is no volume `w`",
            "there is no tenant `u`",
            "volume `v`: no grant covers it",
            "tenant `t`: busy = \"error\" answers a read that would be late with an I/O error",
        ] {
            assert!(warnings.contains(part), "{part} is missing in:\n{warnings}");
        }
        assert!(!dir.path().join("a.img").exists(), "nothing is made");
    }
}
