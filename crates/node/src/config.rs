//! The configuration: the operator's file, checked, with every default filled in.
//!
//! It is one TOML file. Unknown keys are refused. An error names file, line and key. `plimsoll.example.toml` explains every key and is
//! parsed by a test.

mod bad;
mod limits;
mod nvme_host;
mod pool;
mod read;
mod subsystem;
mod tenant;
mod text;

pub use bad::BadConfig;
pub use limits::Limits;
pub use nvme_host::NvmeHostConfig;
pub use plimsoll_base::CacheMode;
pub use pool::{
    BandsConfig, CacheConfig, CacheDedup, DeviceConfig, FenceConfig, LogsConfig, NvramConfig, PoolConfig,
    VolatileConfig, ZonesConfig,
};
pub(crate) use read::there_is_no;
pub use subsystem::{PATHS_MAX, SubsystemConfig};
pub use tenant::{
    AutoDeadlineConfig, Grant, JOBS_MAX, ObjectiveConfig, Peer, TenantConfig, ThrottleConfig, VolumeConfig,
    check_deadline, check_jobs_max, class_of,
};
pub use text::{ByteSize, SpanText};

use crate::engine::tape::older_tape;
use crate::reload::pool_section;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;
use std::io::Read;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use toml::Spanned;

/// Place of an error in the text, in bytes; none for an error of the whole.
pub type Place = Option<usize>;

/// The default of what is on unless it's turned off.
fn yes() -> bool {
    true
}

/// The file, as written.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Addresses for clients.
    #[serde(default)]
    pub listen: Listen,
    /// Control: dashboard, API, token.
    #[serde(default)]
    pub control: Control,
    /// The log.
    #[serde(default)]
    pub log: Log,
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
    /// NVMe/TCP hosts that prove who they are.
    #[serde(default)]
    pub nvme_host: Vec<NvmeHostConfig>,
    /// Grants of volumes and tenants to peers. Without any, no client may connect.
    #[serde(default)]
    pub grant: Vec<Grant>,
    /// Take a free port where another process listens on the one that is written. Only the embedded default does.
    #[serde(skip)]
    pub takes_free_ports: bool,
    /// Pools that are served though the file hasn't them any more.
    #[serde(skip)]
    pub undeclared: BTreeSet<String>,
    /// The file that it is from.
    #[serde(skip)]
    pub source: Source,
}

/// `[listen]`
#[derive(Clone, PartialEq, Debug, Default, Deserialize, Serialize)]
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
#[derive(Clone, PartialEq, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Tls {
    /// The server's certificate chain, PEM.
    pub certificate: PathBuf,
    /// Its private key, PEM.
    pub key: PathBuf,
    /// Certificate authorities of trusted clients, PEM. Grants match the common name of a client's certificate.
    pub client_ca: PathBuf,
    /// Refuse clients without TLS (the default), or only let them use what peers without a certificate are granted.
    #[serde(default = "yes")]
    pub required: bool,
}

/// `[control]`
#[derive(Clone, PartialEq, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Control {
    /// HTTP address: metrics and status for peers on this host, everything with the token. Port 0 takes a
    /// free one.
    #[serde(default = "default_http")]
    pub http: Option<SocketAddr>,
    /// A unix socket (mode 0600) for changes without a token: for root and the node's own user.
    pub unix: Option<PathBuf>,
    /// A file with the token for changes over HTTP; made (mode 0600) if it doesn't exist.
    pub token_file: Option<PathBuf>,
    /// Let peers on this host read metrics, status and traces over TCP without the token.
    #[serde(default = "yes")]
    pub local_reads: bool,
    /// Number of a pool's requests of which one is traced, beside up to 16 refused reads a second; 0 traces only these.
    #[serde(default = "default_trace_every")]
    pub trace_every: u32,
    /// Time limit of an orderly stop, in which requests in flight finish and data is flushed.
    #[serde(default = "default_drain")]
    pub drain: SpanText,
}

impl Default for Control {
    fn default() -> Control {
        Control {
            http: default_http(),
            unix: None,
            token_file: None,
            local_reads: true,
            trace_every: default_trace_every(),
            drain: default_drain(),
        }
    }
}

/// `[log]`
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Log {
    /// Least level of what is logged: `off`, `error`, `warn`, `info` (the default), `debug` or `trace`.
    pub level: LogLevel,
}

/// A level of the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs, reason = "the names say it")]
pub enum LogLevel {
    Off,
    Error,
    Warn,
    #[default]
    Info,
    Debug,
    Trace,
}

/// Longer than anything takes that doesn't hang, and shorter than an operator's patience.
fn default_drain() -> SpanText {
    SpanText(plimsoll_base::Span::from_secs(60))
}

fn default_http() -> Option<SocketAddr> {
    Some(SocketAddr::from(([127, 0, 0, 1], 7700)))
}

/// Rare enough to cost nothing, often enough to fill the ring within a minute of moderate load.
fn default_trace_every() -> u32 {
    1024
}

/// An error in a configuration.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConfigError {
    /// The file.
    pub file: PathBuf,
    /// Its line, from 1; 0 where it's about the whole.
    pub line: usize,
    /// The fault and its remedy.
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

/// All errors in a configuration, by line.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConfigErrors(pub Vec<ConfigError>);

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut all = self.0.iter();
        all.next().map_or(Ok(()), |first| first.fmt(f))?;
        all.try_for_each(|e| write!(f, "\n{e}"))
    }
}
impl std::error::Error for ConfigErrors {}

/// Stands for the file of a configuration that the program has in itself.
const EMBEDDED: &str = "(embedded default)";

/// The file that a configuration is from: which one, and where its lines begin.
#[derive(Clone, Debug, Default)]
pub struct Source {
    file: PathBuf,
    is_embedded: bool,
    /// Bytes at which lines end.
    ends: Vec<usize>,
}

impl Source {
    fn new(file: &Path, text: &str) -> Source {
        Source {
            file: file.to_path_buf(),
            is_embedded: false,
            ends: text.match_indices('\n').map(|(at, _)| at).collect(),
        }
    }

    /// A finding at a place in the text.
    pub fn error(&self, at: Place, what: String) -> ConfigError {
        let line = at.map_or(0, |at| self.line(at));
        ConfigError { file: self.file.clone(), line, what }
    }

    fn fault(&self, e: &BadConfig) -> ConfigError {
        self.error(e.place(), e.to_string())
    }

    /// The file; of an embedded configuration a name that says so.
    pub fn file(&self) -> &Path {
        if self.is_embedded { Path::new(EMBEDDED) } else { &self.file }
    }

    /// Returns whether there is no file: the program has the configuration in itself.
    pub fn is_embedded(&self) -> bool {
        self.is_embedded
    }

    /// The file and the line of a place in the text, for people.
    pub fn place(&self, at: usize) -> String {
        format!("{}:{}", self.file.display(), self.line(at))
    }

    fn line(&self, at: usize) -> usize {
        self.ends.partition_point(|end| *end < at) + 1
    }
}

/// Longest file that is read, in bytes: 65,536 volumes take less. Any longer one is something else, and a reload of it would take all memory.
const FILE_BYTES_MAX: u64 = 32 << 20;

/// Text of a file, if it isn't too long.
fn text_of(file: &Path) -> std::io::Result<String> {
    let mut text = String::new();
    std::fs::File::open(file)?.take(FILE_BYTES_MAX + 1).read_to_string(&mut text)?;
    if text.len() as u64 > FILE_BYTES_MAX {
        return Err(std::io::Error::other("it is longer than 32 MiB, which no configuration is"));
    }
    Ok(text)
}

impl Config {
    /// Reads and checks a file. Relative paths in it are taken from its folder.
    ///
    /// # Errors
    /// All that is wrong with it.
    pub fn load(file: &Path) -> Result<Config, ConfigErrors> {
        let unread = |e| ConfigError { file: file.to_path_buf(), line: 0, what: format!("cannot be read: {e}") };
        let text = text_of(file).map_err(|e| ConfigErrors(vec![unread(e)]))?;
        Config::parse(&text, file)
    }

    /// Checks a text as the content of `file`.
    ///
    /// # Errors
    /// All that is wrong with it.
    pub fn parse(text: &str, file: &Path) -> Result<Config, ConfigErrors> {
        let source = Source::new(file, text);
        let (mut config, mut errors) = read::read(text);
        let here = std::path::absolute(file);
        if let Some(config) = &mut config {
            // Profiles are read when they are checked.
            let folder = here.as_ref().ok().and_then(|here| here.parent());
            folder.into_iter().for_each(|folder| config.pool.iter_mut().for_each(|p| p.models_from(folder)));
            config.check(&mut errors);
        }
        let mut errors: Vec<_> = errors.iter().map(|e| source.fault(e)).collect();
        if let Err(e) = &here {
            errors.push(source.error(None, format!("cannot find out where it is: {e}")));
        }
        errors.sort_by_key(|e| e.line);
        match (config.take(), here) {
            (Some(mut config), Ok(here)) if errors.is_empty() => {
                config.make_absolute(here.parent().unwrap_or(Path::new("/")));
                config.source = source;
                Ok(config)
            }
            _ => Err(ConfigErrors(errors)),
        }
    }

    /// Checks a text that the program has in itself. Relative paths in it are taken from `folder`.
    ///
    /// # Errors
    /// All that is wrong with it.
    pub fn embedded(text: &str, folder: &Path) -> Result<Config, ConfigErrors> {
        let mut config = Config::parse(text, &folder.join(EMBEDDED))?;
        config.source.is_embedded = true;
        Ok(config)
    }

    /// Adds what is wrong with it: the first error of each pool, tenant, volume and grant.
    fn check(&self, errors: &mut Vec<BadConfig>) {
        let at = |s: &Spanned<String>| s.span().start;
        let in_pool = |name: &Spanned<String>, e: BadConfig| e.about(pool_section(name.get_ref())).at(at(name));
        unique(self.pool.iter().map(|p| &p.name), "pool", errors);
        unique(self.tenant.iter().map(|t| &t.name), "tenant", errors);
        unique(self.volume.iter().map(|v| &v.name), "volume", errors);
        unique(self.subsystem.iter().map(|s| &s.nqn), "subsystem", errors);
        unique(self.nvme_host.iter().map(|h| &h.nqn), "nvme_host", errors);
        if self.pool.is_empty() {
            errors.push(BadConfig::new("no [[pool]]: a node needs at least one"));
        }
        errors.extend(self.limits.check().err());
        errors.extend(self.pool.iter().filter_map(|p| p.check().err()));
        let tapes: Vec<(&Spanned<String>, &PathBuf)> =
            self.pool.iter().filter_map(|p| Some((&p.name, p.tape.as_ref()?))).collect();
        for (i, (name, tape)) in tapes.iter().enumerate() {
            let is_one = |t: &&PathBuf| *t == *tape || **t == older_tape(tape) || older_tape(t) == **tape;
            if tapes[..i].iter().map(|(_, t)| t).any(is_one) {
                let what = "two pools have the tape {}, or one has the name under which the other's older one is kept";
                errors.push(in_pool(name, BadConfig::new(what.replace("{}", &tape.display().to_string()))));
            }
        }
        let files: Vec<(&Spanned<String>, String)> =
            self.pool.iter().filter(|p| !p.device.null).map(|p| (&p.name, p.device.label())).collect();
        for (i, (name, file)) in files.iter().enumerate() {
            if let Some((first, _)) = files[..i].iter().find(|(_, f)| f == file) {
                let what = format!("pool `{}` has the device {file} already", first.get_ref());
                errors.push(in_pool(name, BadConfig::new(what)));
            }
        }
        errors.extend(self.tenant.iter().filter_map(|t| t.check(&self.pool).err()));
        // Layers are checked with tenants and volumes once each pool and tenant makes sense by itself.
        let sound = if errors.is_empty() { &self.pool[..] } else { &[] };
        for p in sound {
            let parts = crate::parts::PARTS.iter().try_for_each(|part| part.check_config(self, p));
            errors.extend(parts.err().map(|e| in_pool(&p.name, e)));
        }
        errors.extend(self.volume.iter().filter_map(|v| v.check(self).err()));
        errors.extend(self.subsystem.iter().filter_map(|s| s.check(self).err()));
        errors.extend(self.nvme_host.iter().filter_map(|h| h.check().err()));
        for g in &self.grant {
            errors.extend(Peer::parse(g.peer.get_ref()).err().map(|e| e.at(at(&g.peer))));
        }
    }

    fn make_absolute(&mut self, base: &Path) {
        let fix = |p: &mut PathBuf| *p = base.join(&*p);
        self.listen.unix.as_mut().map(fix);
        self.control.unix.as_mut().map(fix);
        self.control.token_file.as_mut().map(fix);
        self.pool.iter_mut().for_each(|p| p.make_absolute(base));
        self.nvme_host.iter_mut().for_each(|h| h.make_absolute(base));
        self.volume.iter_mut().filter_map(|v| v.baseline.as_mut()).for_each(fix);
        if let Some(tls) = &mut self.listen.tls {
            [&mut tls.certificate, &mut tls.key, &mut tls.client_ca].into_iter().for_each(fix);
        }
    }
}

fn unique<'a>(names: impl Iterator<Item = &'a Spanned<String>>, kind: &str, errors: &mut Vec<BadConfig>) {
    let mut seen = std::collections::BTreeSet::new();
    for name in names.filter(|name| !seen.insert(name.get_ref())) {
        let twice = BadConfig::new(format!("{kind} `{}` is declared twice", name.get_ref()));
        errors.push(twice.at(name.span().start));
    }
}

#[cfg(test)]
mod tests;
