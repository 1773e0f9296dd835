//! The configuration: what the operator wrote, checked, with every default filled in.
//!
//! One TOML file. Unknown keys are refused. An error says which file, line and key. `plimsoll.example.toml` explains
//! every key and is parsed by a test.

mod limits;
mod pool;
mod subsystem;
mod tenant;
mod text;

pub use limits::Limits;
pub use plimsoll_base::CacheMode;
pub use pool::{
    CacheConfig, CacheDedup, DeviceConfig, FenceConfig, LogsConfig, NvramConfig, PoolConfig, VolatileConfig,
};
pub use subsystem::SubsystemConfig;
pub use tenant::{
    AutoDeadlineConfig, Grant, JOBS_MAX, ObjectiveConfig, Peer, TenantConfig, ThrottleConfig, VolumeConfig,
    check_deadline, check_jobs_max, class_of,
};
pub use text::{ByteSize, SpanText};

use serde::Deserialize;
use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use toml::Spanned;

/// Where in the text something is wrong, in bytes; none where it's about the whole.
pub type Place = Option<usize>;

/// The default of what is on unless it's turned off.
fn yes() -> bool {
    true
}

/// The file, as written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Addresses for clients.
    #[serde(default)]
    pub listen: Listen,
    /// Where it's watched and controlled.
    #[serde(default)]
    pub control: Control,
    /// Limits of clients.
    #[serde(default)]
    pub limits: Limits,
    /// Storage: each pool is one device (or several) with one scheduler.
    #[serde(default)]
    pub pool: Vec<PoolConfig>,
    /// Owners of promises.
    #[serde(default)]
    pub tenant: Vec<TenantConfig>,
    /// Volumes that must exist: created at the first start, grown if they are smaller, never shrunk or deleted.
    #[serde(default)]
    pub volume: Vec<VolumeConfig>,
    /// Volumes and their promises for NVMe/TCP hosts.
    #[serde(default)]
    pub subsystem: Vec<SubsystemConfig>,
    /// Who may use what. Without any, nobody may use anything.
    #[serde(default)]
    pub grant: Vec<Grant>,
}

/// `[listen]`
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Listen {
    /// A unix socket's path.
    pub unix: Option<PathBuf>,
    /// A TCP address.
    pub tcp: Option<SocketAddr>,
    /// TLS for the TCP address.
    pub tls: Option<Tls>,
    /// A TCP address for NVMe/TCP hosts.
    pub nvme_tcp: Option<SocketAddr>,
}

/// `[listen.tls]`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tls {
    /// The server's certificate chain, PEM.
    pub certificate: PathBuf,
    /// Its private key, PEM.
    pub key: PathBuf,
    /// Certificate authorities whose clients are believed, PEM. A client certificate's name is what grants match.
    pub client_ca: PathBuf,
    /// Refuse clients without TLS (the default), or only let them use what peers without a certificate are granted.
    #[serde(default = "yes")]
    pub required: bool,
}

/// `[control]`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Control {
    /// Where HTTP is served: metrics and status to peers on this host, everything to who has the token. Port 0 takes a
    /// free one.
    #[serde(default = "default_http")]
    pub http: Option<SocketAddr>,
    /// A unix socket (mode 0600) for changes without a token: for root and the node's own user.
    pub unix: Option<PathBuf>,
    /// A file with the token for changes over HTTP; made (mode 0600) if it doesn't exist.
    pub token_file: Option<PathBuf>,
    /// Whether peers on this host read metrics, status and traces over TCP without the token.
    #[serde(default = "yes")]
    pub local_reads: bool,
    /// Every how many requests of a pool one is traced; 0 traces only refused ones.
    #[serde(default = "default_trace_every")]
    pub trace_every: u32,
}

impl Default for Control {
    fn default() -> Control {
        Control {
            http: default_http(),
            unix: None,
            token_file: None,
            local_reads: true,
            trace_every: default_trace_every(),
        }
    }
}

fn default_http() -> Option<SocketAddr> {
    Some(SocketAddr::from(([127, 0, 0, 1], 7700)))
}

/// Rare enough to cost nothing, often enough to fill the ring within a minute of moderate load.
fn default_trace_every() -> u32 {
    1024
}

/// What is wrong with a configuration, and where.
#[derive(Debug)]
pub struct ConfigError {
    /// The file.
    pub file: PathBuf,
    /// Its line, from 1; 0 where it's about the whole.
    pub line: usize,
    /// What is wrong and what to do.
    pub what: String,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}: {}", self.file.display(), self.what),
            n => write!(f, "{}:{n}: {}", self.file.display(), self.what),
        }
    }
}
impl std::error::Error for ConfigError {}

impl Config {
    /// Reads and checks a file. Relative paths in it are taken from its folder.
    pub fn load(file: &Path) -> Result<Config, ConfigError> {
        let fail = |line, what| ConfigError { file: file.to_path_buf(), line, what };
        let text = std::fs::read_to_string(file).map_err(|e| fail(0, format!("cannot be read: {e}")))?;
        Config::parse(&text, file)
    }

    /// Checks a text as the content of `file`.
    pub fn parse(text: &str, file: &Path) -> Result<Config, ConfigError> {
        let line_of = |at: usize| text[..at.min(text.len())].matches('\n').count() + 1;
        let fail = |line, what| ConfigError { file: file.to_path_buf(), line, what };
        let mut config: Config = toml::from_str(text).map_err(|e| {
            let line = e.span().map_or(0, |s| line_of(s.start));
            fail(line, e.message().to_string())
        })?;
        config.check().map_err(|(at, what)| fail(at.map_or(0, line_of), what))?;
        let here = std::path::absolute(file).map_err(|e| fail(0, format!("where it is can't be told: {e}")))?;
        config.make_absolute(here.parent().unwrap_or(Path::new("/")));
        Ok(config)
    }

    fn check(&self) -> Result<(), (Place, String)> {
        let at = |s: &Spanned<String>| Some(s.span().start);
        unique(self.pool.iter().map(|p| &p.name), "pool")?;
        unique(self.tenant.iter().map(|t| &t.name), "tenant")?;
        unique(self.volume.iter().map(|v| &v.name), "volume")?;
        if self.pool.is_empty() {
            return Err((None, "no [[pool]]: a node needs at least one".into()));
        }
        self.limits.check().map_err(|what| (None, what))?;
        for p in &self.pool {
            p.check()?;
        }
        let files: Vec<(&Spanned<String>, &PathBuf)> =
            self.pool.iter().filter_map(|p| Some((&p.name, p.device.file.as_ref()?))).collect();
        let tapes: Vec<(&Spanned<String>, &PathBuf)> =
            self.pool.iter().filter_map(|p| Some((&p.name, p.tape.as_ref()?))).collect();
        for (i, (name, tape)) in tapes.iter().enumerate() {
            if tapes[..i].iter().any(|(_, t)| t == tape) {
                return Err((
                    at(name),
                    format!("pool `{}`: two pools have the tape {}", name.get_ref(), tape.display()),
                ));
            }
        }
        for (i, (name, file)) in files.iter().enumerate() {
            if let Some((first, _)) = files[..i].iter().find(|(_, f)| f == file) {
                let (name_, first, file) = (name.get_ref(), first.get_ref(), file.display());
                return Err((at(name), format!("pool `{name_}`: pool `{first}` has the device {file} already")));
            }
        }
        for t in &self.tenant {
            t.check(&self.pool)?;
        }
        for p in &self.pool {
            let in_pool = |what| (at(&p.name), format!("pool `{}`: {what}", p.name.get_ref()));
            crate::parts::PARTS.iter().try_for_each(|part| part.check_config(self, p)).map_err(in_pool)?;
        }
        for v in &self.volume {
            v.check(self)?;
        }
        unique(self.subsystem.iter().map(|s| &s.nqn), "subsystem")?;
        for s in &self.subsystem {
            s.check(self)?;
        }
        for g in &self.grant {
            Peer::parse(g.peer.get_ref()).map_err(|what| (at(&g.peer), what))?;
        }
        Ok(())
    }

    fn make_absolute(&mut self, base: &Path) {
        let fix = |p: &mut PathBuf| *p = base.join(&*p);
        self.listen.unix.as_mut().map(fix);
        self.control.unix.as_mut().map(fix);
        self.control.token_file.as_mut().map(fix);
        self.pool.iter_mut().for_each(|p| p.make_absolute(base));
        self.volume.iter_mut().filter_map(|v| v.baseline.as_mut()).for_each(fix);
        if let Some(tls) = &mut self.listen.tls {
            [&mut tls.certificate, &mut tls.key, &mut tls.client_ca].into_iter().for_each(fix);
        }
    }
}

fn unique<'a>(names: impl Iterator<Item = &'a Spanned<String>>, kind: &str) -> Result<(), (Place, String)> {
    let mut seen = std::collections::BTreeSet::new();
    for name in names {
        if !seen.insert(name.get_ref()) {
            return Err((Some(name.span().start), format!("{kind} `{}` is declared twice", name.get_ref())));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
