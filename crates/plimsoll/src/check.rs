//! `plimsoll check`: a configuration against itself and against this machine, without opening or making anything.

use anyhow::{Result, bail};
use clap::Args;
use plimsoll_base::OnBusy;
use plimsoll_node::config::{Config, DeviceConfig, PoolConfig, VolumeConfig};
use plimsoll_node::open::rehearse;
use plimsoll_pool::PoolPlan;
use plimsoll_store::GRANULE_BYTES;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

/// Check a configuration without using anything of it.
#[derive(Args)]
#[command(after_help = "Example:\n  plimsoll check /etc/plimsoll/node.toml")]
pub struct Check {
    /// The configuration file.
    file: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Print each pool's plan as JSON: every setting of every layer, defaults filled in (but what only a start finds out)
    #[arg(long)]
    resolved: bool,
}

#[derive(Serialize)]
struct Report<'a> {
    file: &'a Path,
    pools: usize,
    tenants: usize,
    volumes: usize,
    grants: usize,
    /// What `plimsoll serve` would refuse here and now.
    errors: Vec<String>,
    /// What is lawful and yet probably not meant.
    warnings: Vec<String>,
}

#[derive(Default)]
struct Findings {
    errors: Vec<String>,
    warnings: Vec<String>,
    /// By pool.
    plans: BTreeMap<String, PoolPlan>,
}

impl Check {
    /// Runs the command.
    pub fn run(self) -> Result<()> {
        let config = Config::load(&self.file)?;
        let Findings { errors, warnings, plans } = findings(&config);
        let report = Report {
            file: &self.file,
            pools: config.pool.len(),
            tenants: config.tenant.len(),
            volumes: config.volume.len(),
            grants: config.grant.len(),
            errors,
            warnings,
        };
        match (self.resolved && report.errors.is_empty(), self.json) {
            (true, _) => crate::client::print_json(&plans)?,
            (false, true) => crate::client::print_json(&report)?,
            (false, false) => report.print(),
        }
        match report.errors.len() {
            0 => Ok(()),
            n => bail!("{}: `plimsoll serve` would refuse it: {n} {}", self.file.display(), plural(n, "error")),
        }
    }
}

fn plural(n: usize, word: &str) -> String {
    format!("{word}{}", if n == 1 { "" } else { "s" })
}

impl Report<'_> {
    fn print(&self) {
        let Report { pools, tenants, volumes, grants, errors, warnings, .. } = self;
        let verdict = match (errors.len(), warnings.len()) {
            (0, 0) => "all well".to_string(),
            (0, n) => format!("correct, but {n} {}", plural(n, "warning")),
            (n, _) => format!("{n} {}", plural(n, "error")),
        };
        let file = self.file.display();
        println!("{file}: {pools} pools, {tenants} tenants, {volumes} volumes, {grants} grants: {verdict}");
        errors.iter().for_each(|e| println!("{file}: error: {e}"));
        warnings.iter().for_each(|w| println!("{file}: warning: {w}"));
    }
}

fn findings(config: &Config) -> Findings {
    let mut all = Findings::default();
    addresses(config, &mut all);
    config.pool.iter().for_each(|p| pool(p, config, &mut all));
    errors_for_being_late(config, &mut all.warnings);
    grants(config, &mut all.warnings);
    all
}

/// Warns of promises whose refusals are I/O errors to clients that know no promises.
fn errors_for_being_late(config: &Config, warnings: &mut Vec<String>) {
    let tenants = config.tenant.iter().map(|t| ("tenant", t.name.get_ref(), t.busy));
    let volumes = config.volume.iter().map(|v| ("volume", v.name.get_ref(), v.busy));
    for (kind, name, _) in tenants.chain(volumes).filter(|(_, _, busy)| *busy == Some(OnBusy::Error)) {
        warnings.push(format!(
            "{kind} `{name}`: busy = \"error\" answers a read that would be late with an I/O error: file systems go read-only \
             or shut down, databases fail queries or end. It is for clients that then read elsewhere (QEMU's quorum)"
        ));
    }
}

fn addresses(config: &Config, Findings { errors, warnings, .. }: &mut Findings) {
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
}

fn folder(key: &str, path: &Path, all: &mut Vec<String>) {
    if !path.parent().is_some_and(Path::is_dir) {
        all.push(format!("{key} {}: its folder doesn't exist", path.display()));
    }
}

fn pool(p: &PoolConfig, config: &Config, all: &mut Findings) {
    let name = p.name.get_ref();
    let said = |what: String| format!("pool `{name}`: {what}");
    let mut found = Findings::default();
    device(&p.device, &mut found);
    let space = |v: &&VolumeConfig| v.pool.get_ref() == name;
    let wanted: u64 = config.volume.iter().filter(space).map(|v| v.size.0.next_multiple_of(GRANULE_BYTES)).sum();
    match bytes_of(&p.device).map(|bytes| rehearse(p, bytes)) {
        None => {} // what is wrong with the device was told
        Some(Err(what)) => found.errors.push(what),
        Some(Ok((has, _))) if has < wanted => {
            found.errors.push(format!("its volumes want {wanted} bytes, but its device has {has} for them"));
        }
        Some(Ok((_, plan))) => drop(all.plans.insert(name.clone(), plan)),
    }
    all.errors.extend(found.errors.into_iter().map(said));
    all.warnings.extend(found.warnings.into_iter().map(said));
}

/// How large the device is, or will be.
fn bytes_of(d: &DeviceConfig) -> Option<u64> {
    let there =
        d.file.as_deref().and_then(|path| File::open(path).ok()).and_then(|mut f| f.seek(SeekFrom::End(0)).ok());
    there.filter(|bytes| *bytes > 0).or(d.size.map(|s| s.0))
}

fn device(d: &DeviceConfig, Findings { errors, warnings, .. }: &mut Findings) {
    use std::os::unix::fs::FileTypeExt;
    if d.volatile_cache.is_some() {
        warnings.push("volatile_cache loses data on purpose: for tests only".into());
    }
    let Some(path) = &d.file else { return };
    let shown = path.display();
    match std::fs::metadata(path) {
        Ok(m) if !m.is_file() && !m.file_type().is_block_device() => {
            errors.push(format!("{shown} is neither a file nor a block device"));
        }
        Ok(m) if m.is_file() && m.len() > 0 && d.size.is_some_and(|s| s.0 != m.len()) => {
            warnings.push(format!("{shown} has {} bytes already: `size` is for a file that is made", m.len()));
        }
        Ok(_) => {}
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            match (d.uuid, d.size) {
                (Some(uuid), _) => errors.push(format!("{shown} doesn't exist: the device {uuid} isn't here")),
                (None, None) => errors.push(format!("{shown} doesn't exist: say how large to make it with `size`")),
                (None, Some(_)) => {}
            }
            folder("file", path, errors);
        }
        Err(e) => errors.push(format!("{shown}: {e}")),
    }
}

fn grants(config: &Config, all: &mut Vec<String>) {
    if config.grant.is_empty() {
        all.push("no [[grant]]: nobody may use anything".into());
    }
    let volumes: BTreeSet<&str> = config.volume.iter().map(|v| v.name.get_ref().as_str()).collect();
    let tenants: BTreeSet<&str> = config.tenant.iter().map(|t| t.name.get_ref().as_str()).collect();
    for g in &config.grant {
        let peer = g.peer.get_ref();
        // Volumes and tenants may also be made while the node runs: naming one that isn't here is no error.
        for v in g.volumes.iter().filter(|v| *v != "*" && !volumes.contains(v.as_str())) {
            all.push(format!("grant for `{peer}`: there is no volume `{v}` here"));
        }
        for t in g.tenants.iter().filter(|t| *t != "*" && !tenants.contains(t.as_str())) {
            all.push(format!("grant for `{peer}`: there is no tenant `{t}` here"));
        }
        if peer.starts_with("cert:") && config.listen.tls.is_none() {
            all.push(format!("grant for `{peer}`: without [listen.tls] nobody can show a certificate"));
        }
    }
    for v in &config.volume {
        let name = v.name.get_ref();
        if !config.grant.is_empty() && !config.grant.iter().any(|g| g.volumes.iter().any(|w| w == "*" || w == name)) {
            all.push(format!("volume `{name}`: no grant covers it, so nobody may use it"));
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
        let found = check(dir.path(), include_str!("default.toml"));
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
        let (errors, warnings) = (errors.join("\n"), warnings.join("\n"));
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
