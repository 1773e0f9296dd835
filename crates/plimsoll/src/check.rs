//! `plimsoll check`: a configuration against itself and against this machine, without opening or making anything.

use anyhow::Result;
use clap::Args;
use plimsoll_node::config::{Config, DeviceConfig, PoolConfig};
use plimsoll_sched::Profile;
use serde::Serialize;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

/// Check a configuration without using anything of it.
#[derive(Args)]
#[command(after_help = "Example:\n  plimsoll check /etc/plimsoll/node.toml")]
pub struct Check {
    /// The configuration file.
    file: PathBuf,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report<'a> {
    file: &'a Path,
    pools: usize,
    tenants: usize,
    volumes: usize,
    grants: usize,
    warnings: Vec<String>,
}

impl Check {
    /// Runs the command.
    pub fn run(self) -> Result<()> {
        let config = Config::load(&self.file)?;
        let report = Report {
            file: &self.file,
            pools: config.pool.len(),
            tenants: config.tenant.len(),
            volumes: config.volume.len(),
            grants: config.grant.len(),
            warnings: warnings(&config),
        };
        if self.json {
            return crate::client::print_json(&report);
        }
        let Report { pools, tenants, volumes, grants, .. } = report;
        let verdict = match report.warnings.len() {
            0 => "all well".to_string(),
            1 => "correct, but 1 warning".to_string(),
            n => format!("correct, but {n} warnings"),
        };
        let file = self.file.display();
        println!("{file}: {pools} pools, {tenants} tenants, {volumes} volumes, {grants} grants: {verdict}");
        report.warnings.iter().for_each(|w| println!("{file}: warning: {w}"));
        Ok(())
    }
}

/// What is lawful and yet probably not meant, or won't work on this machine as it is now.
fn warnings(config: &Config) -> Vec<String> {
    let mut all = Vec::new();
    addresses(config, &mut all);
    config.pool.iter().for_each(|p| pool(p, config, &mut all));
    grants(config, &mut all);
    all
}

fn addresses(config: &Config, all: &mut Vec<String>) {
    if config.listen.unix.is_none() && config.listen.tcp.is_none() {
        all.push("listen: neither unix nor tcp: no NBD client can come".into());
    }
    for (key, path) in [("listen.unix", &config.listen.unix), ("control.unix", &config.control.unix)] {
        let Some(path) = path else { continue };
        folder(key, path, all);
        // sun_path of sockaddr_un has 108 bytes, one of them the end's.
        if path.as_os_str().len() > 107 {
            all.push(format!("{key} {}: longer than the 107 bytes that a socket's path may have", path.display()));
        }
    }
    let here = |a: SocketAddr| a.ip().is_loopback();
    match (&config.listen.tcp, &config.listen.tls) {
        (Some(tcp), None) if !here(*tcp) => all.push(format!(
            "listen.tcp {tcp}: other hosts reach it, but without [listen.tls] nobody from there is granted anything"
        )),
        (None, Some(_)) => all.push("listen.tls: is for listen.tcp, which isn't set".into()),
        _ => {}
    }
    if let Some(http) = config.control.http.filter(|a| !here(*a)) {
        all.push(format!(
            "control.http {http}: other hosts reach it, with the token in the clear: prefer a loopback address"
        ));
    }
    if let (Some(a), Some(b)) = (config.listen.tcp, config.control.http)
        && a.port() == b.port()
        && a.port() != 0
        && (a.ip() == b.ip() || a.ip().is_unspecified() || b.ip().is_unspecified())
    {
        all.push(format!("listen.tcp and control.http both want {a}"));
    }
    match &config.control.token_file {
        Some(path) => folder("control.token_file", path, all),
        None if config.control.unix.is_none() => {
            all.push("control: neither token_file nor unix: nothing can be changed while the node runs".into());
        }
        None => {}
    }
    for (key, path) in config
        .listen
        .tls
        .iter()
        .flat_map(|t| [("certificate", &t.certificate), ("key", &t.key), ("client_ca", &t.client_ca)])
    {
        if !path.is_file() {
            all.push(format!("listen.tls.{key} {}: there is no such file", path.display()));
        }
    }
}

fn folder(key: &str, path: &Path, all: &mut Vec<String>) {
    if !path.parent().is_some_and(Path::is_dir) {
        all.push(format!("{key} {}: its folder doesn't exist", path.display()));
    }
}

fn pool(p: &PoolConfig, config: &Config, all: &mut Vec<String>) {
    let name = p.name.get_ref();
    let said = |what: String| format!("pool `{name}`: {what}");
    device(&p.device).into_iter().for_each(|what| all.push(said(what)));
    if let Some(file) = &p.profile {
        let shown = file.display().to_string();
        match std::fs::read_to_string(file) {
            Err(e) => all.push(said(format!("{shown}: cannot be read: {e}"))),
            Ok(text) => all.extend(Profile::parse(&shown, &text).err().map(|e| said(e.to_string()))),
        }
    }
    let wanted: u64 = config.volume.iter().filter(|v| v.pool.get_ref() == name).map(|v| v.size.0).sum();
    let has = p.device.size.map(|s| s.0);
    if let Some(has) = has.filter(|has| *has < wanted) {
        all.push(said(format!("its volumes want {wanted} bytes, but its device has {has}")));
    }
}

fn device(d: &DeviceConfig) -> Vec<String> {
    use std::os::unix::fs::FileTypeExt;
    let mut all = Vec::new();
    if let Some(model) = &d.model
        && let Err(e) = plimsoll_device::DeviceSpec::named(model)
    {
        all.push(e.to_string());
    }
    if d.volatile_cache.is_some() {
        all.push("volatile_cache loses data on purpose: for tests only".into());
    }
    let Some(path) = &d.file else { return all };
    let shown = path.display();
    match std::fs::metadata(path) {
        Ok(m) if !m.is_file() && !m.file_type().is_block_device() => {
            all.push(format!("{shown} is neither a file nor a block device"));
        }
        Ok(m) if m.is_file() && m.len() > 0 && d.size.is_some_and(|s| s.0 != m.len()) => {
            all.push(format!("{shown} has {} bytes already: `size` is for a file that is made", m.len()));
        }
        Ok(_) => {}
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            if d.size.is_none() {
                all.push(format!("{shown} doesn't exist: say how large to make it with `size`"));
            }
            folder("file", path, &mut all);
        }
        Err(e) => all.push(format!("{shown}: {e}")),
    }
    all
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

    fn check(dir: &Path, text: &str) -> Vec<String> {
        warnings(&Config::parse(text, &dir.join("node.toml")).unwrap())
    }

    #[test]
    fn a_sound_configuration_has_no_warnings() {
        let dir = tempfile::tempdir().unwrap();
        let none: [String; 0] = [];
        assert_eq!(check(dir.path(), include_str!("default.toml")), none);
    }

    #[test]
    fn what_is_probably_not_meant_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let text = r#"
            [listen]
            tcp = "0.0.0.0:7700"
            [control]
            http = "127.0.0.1:7700"
            token_file = "no such folder/token"
            [[pool]]
            name = "a"
            device = { file = "a.img", size = "1MiB", model = "no such" }
            [[pool]]
            name = "b"
            device = { file = "b.img" }
            [[tenant]]
            name = "t"
            class = "best-effort"
            [[volume]]
            name = "v"
            pool = "a"
            size = "2MiB"
            tenant = "t"
            [[grant]]
            peer = "cert:x"
            volumes = ["w"]
            tenants = ["u"]
        "#;
        let all = check(dir.path(), text).join("\n");
        for part in [
            "listen.tcp 0.0.0.0:7700: other hosts",
            "listen.tcp and control.http both want",
            "control.token_file",
            "pool `a`: device: `no such` is unknown; there are ",
            "pool `a`: its volumes want 2097152 bytes, but its device has 1048576",
            "pool `b`: ",
            "there is no volume `w`",
            "there is no tenant `u`",
            "without [listen.tls] nobody can show",
            "volume `v`: no grant covers it",
        ] {
            assert!(all.contains(part), "{part} is missing in:\n{all}");
        }
        assert!(!dir.path().join("a.img").exists(), "nothing is made");
    }
}
