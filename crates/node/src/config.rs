//! The configuration: what the operator wrote, checked, with every default filled in.
//!
//! One TOML file. Unknown keys are refused. An error says which file, line and key. `plimsoll.example.toml` explains
//! every key and is parsed by a test.

use plimsoll_base::{Class, Objective, Priority, Span};
use plimsoll_cache::{Codec, Sharing};
use plimsoll_device::DeviceSpec;
use plimsoll_stack::Allotment;
pub use plimsoll_stack::CacheMode;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use toml::Spanned;

/// The file, as written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Where it listens for NBD clients.
    #[serde(default)]
    pub listen: Listen,
    /// Where it's watched and controlled.
    #[serde(default)]
    pub control: Control,
    /// Storage: each pool is one device (or several) with one scheduler.
    #[serde(default)]
    pub pool: Vec<PoolConfig>,
    /// Owners of promises.
    #[serde(default)]
    pub tenant: Vec<TenantConfig>,
    /// Volumes that must exist: created at the first start, grown if they are smaller, never shrunk or deleted.
    #[serde(default)]
    pub volume: Vec<VolumeConfig>,
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
    /// Every how many requests of a pool one is traced; 0 traces only refused ones.
    #[serde(default = "default_trace_every")]
    pub trace_every: u32,
}

impl Default for Control {
    fn default() -> Control {
        Control { http: default_http(), unix: None, token_file: None, trace_every: default_trace_every() }
    }
}

fn default_http() -> Option<SocketAddr> {
    Some(SocketAddr::from(([127, 0, 0, 1], 7700)))
}

/// Rare enough to cost nothing, often enough to fill the ring within a minute of moderate load.
fn default_trace_every() -> u32 {
    1024
}

fn yes() -> bool {
    true
}

/// `[[pool]]`
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct PoolConfig {
    /// Its name.
    pub name: Spanned<String>,
    /// What it's made of.
    pub device: DeviceConfig,
    /// Requests at the device at once.
    pub depth: Option<u32>,
    /// `noop` (the default), `deadline`, `cfq`, `blackbox` or `ssd`.
    pub sched: Option<Spanned<String>>,
    /// For `cfq`: how long the device is kept for a client's next request; 8 ms if not said. Can be changed live.
    pub idle_time: Option<SpanText>,
    /// Memory for pages that were read or written, as a page cache.
    pub memory: Option<ByteSize>,
    /// Do some tenants' deadlines have percentiles? Set by the node itself, so that a tape replays alike.
    #[serde(default)]
    pub budgets: bool,
    /// What `plimsoll profile` measured of the device; without it, waits are learned from nothing.
    pub profile: Option<PathBuf>,
    /// That file's text. Set by the node itself, so that a tape replays alike wherever the file is by then.
    pub profile_text: Option<String>,
    /// Cores that the pool's requests are served by; see docs/cores.md. Without it, all are served as they come.
    pub cores: Option<u32>,
    /// Requests that a core has in flight; 1 if not said.
    pub core_depth: Option<u32>,
    /// Who decides about them: `qwin` (the default), or what it is compared with.
    pub core_policy: Option<Spanned<String>>,
    /// For `qwin` and `qwin-window`: the slack that objectives are kept with, at least and at most; 300 us and 1 ms if not said.
    pub core_slack: Option<[SpanText; 2]>,
    /// What best effort writes is bounded by how many requests with an objective are late; for `qwin` and `qwin-window`.
    pub bound_best_effort_writes: Option<bool>,
    /// Scattered logs for small writes; see docs/logs.md. They are made with the device and can't be added or removed later.
    pub logs: Option<LogsConfig>,
    /// A flash cache in front of the device; see docs/cache.md.
    pub cache: Option<CacheConfig>,
    /// Volumes are served in time slots of their own; see docs/fence.md.
    pub fence: Option<FenceConfig>,
    /// A file that all that the pool is told and decides is recorded in, anew at each start; `plimsoll tape` replays it.
    pub tape: Option<PathBuf>,
    /// Where the tape ends at the latest; 1 GiB if not said.
    pub tape_max: Option<ByteSize>,
}

/// `device = { … }`
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceConfig {
    /// A file (made sparse at the first use) or a block device.
    pub file: Option<PathBuf>,
    /// The size of a file that is made.
    pub size: Option<ByteSize>,
    /// The device must be this one, as `plimsoll status` and the start tell it: another of the same pool name, or none, is
    /// refused. Without it, any device of a pool of this name will do.
    pub uuid: Option<plimsoll_store::Uuid>,
    /// A block device that holds nothing of Plimsoll's may be made a Plimsoll device: all of it is zeroed.
    #[serde(default)]
    pub format: bool,
    /// Nothing: reads are zeroes. For measuring.
    #[serde(default)]
    pub null: bool,
    /// A modelled device's profile: the file behind it answers no sooner than the model would.
    pub model: Option<String>,
    /// For tests: lose, tear and reorder what isn't flushed when the process is killed.
    #[serde(default)]
    pub volatile_cache: Option<VolatileConfig>,
}

/// `[pool.logs]`: every key has a default.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct LogsConfig {
    /// One log in every so many bytes. Part of the device's format.
    pub group: Option<ByteSize>,
    /// A log's bytes. Part of the device's format.
    pub log: Option<ByteSize>,
    /// Extents that the table holds at most. Part of the device's format.
    pub extents: Option<u32>,
    /// Writes up to this go to a log.
    pub logged_write: Option<ByteSize>,
    /// When all that is logged goes home, every day: `01:00-05:00`, UTC.
    pub off_hours: Option<String>,
    /// All that is logged goes home every so often.
    pub every: Option<SpanText>,
    /// Clients that ask nothing for this long are idle.
    pub idle: Option<SpanText>,
    /// Use idle time to bring logged data home, not only to swap full logs.
    pub clean_when_idle: bool,
    /// Log smaller writes only, or none, when the logs fill too fast.
    pub adaptive: bool,
    /// Seconds since midnight (UTC) when the pool started. Set by the node itself, so that a tape replays alike.
    pub started_s_of_day: Option<u64>,
}

impl Default for LogsConfig {
    fn default() -> LogsConfig {
        LogsConfig {
            group: None,
            log: None,
            extents: None,
            logged_write: None,
            off_hours: None,
            every: None,
            idle: None,
            clean_when_idle: true,
            adaptive: true,
            started_s_of_day: None,
        }
    }
}

/// `[pool.fence]`
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct FenceConfig {
    /// Slots in a rotation, 1 to 64. Can be changed live.
    pub slots: u32,
    /// How long each is; 20 ms if not said. Can be changed live.
    pub slot: Option<SpanText>,
    /// Volumes without slots share the slots that nobody has, and idle time of the others.
    #[serde(default)]
    pub hybrid: bool,
    /// Lending idle time may lengthen its owner's response times by so many thousandths; 10 if not said.
    pub lend_permille: Option<u64>,
    /// Answer as late as if a neighbour had had the arm, also where none had: slower alone, and hardly different beside others.
    #[serde(default = "yes")]
    pub steady: bool,
    /// What the pool's device is predicted as: `disk` or `flash`; as its model is if not said, or else a disk.
    pub device: Option<String>,
    /// What `plimsoll profile` measured of the cache's device. The pool's own is in its `profile`.
    pub cache_profile: Option<PathBuf>,
    /// That file's text. Set by the node itself, so that a tape replays alike.
    pub cache_profile_text: Option<String>,
}

/// Whose duplicates a cache finds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum CacheDedup {
    /// Nobody's.
    Off,
    /// A tenant's own: nobody can tell from how fast a request is what others have.
    Tenant,
    /// All of the pool's.
    Pool,
}

/// `[pool.cache]`
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct CacheConfig {
    /// The fast device: a file (made sparse at the first use) or a block device. All of it is the cache's.
    pub file: PathBuf,
    /// The size of a file that is made.
    pub device_size: Option<ByteSize>,
    /// Bytes of the device that are used at most; all of them if not said. Can be changed live.
    pub size: Option<ByteSize>,
    /// How volumes are cached that don't say it themselves: `off`, `through` or `back`.
    #[serde(default = "default_cache_mode")]
    pub mode: CacheMode,
    /// The unit of caching, 4 to 128 KiB. Part of the device's format.
    pub extent: Option<ByteSize>,
    /// The unit of writing and evicting, up to 4 MiB. Part of the device's format.
    pub weu: Option<ByteSize>,
    /// `lz4`, `zstd` or `none`.
    #[serde(default = "default_codec")]
    pub codec: Codec,
    /// Whose duplicates are found: `tenant`, `pool` or `off`.
    #[serde(default = "default_dedup")]
    pub dedup: CacheDedup,
    /// Fingerprints kept in memory, in percent of the extents that fit uncompressed.
    #[serde(default = "default_fingerprints")]
    pub fingerprints_percent: u32,
    /// `shared`, or `pervolume`: each volume has as much as `[[volume]] cache_size` says.
    #[serde(default = "default_sharing")]
    pub sharing: Sharing,
    /// Write-back begins when this much is dirty.
    #[serde(default = "default_watermark")]
    pub watermark_percent: u32,
    /// Tell the device what isn't needed before it's written again.
    #[serde(default = "yes")]
    pub trim: bool,
    /// What is read ahead of sequential reads at most.
    pub prefetch: Option<ByteSize>,
    /// A small device that keeps what is written to it: flushes in write-back mode wait for nothing else.
    pub nvram: Option<NvramConfig>,
    /// A modelled device's profile: the device answers no sooner than the model would.
    pub model: Option<String>,
    /// Set by the node itself, so that a tape replays alike.
    pub generation: Option<u16>,
    /// Likewise: what tells its NVRAM's records from those of other caches.
    pub nvram_salt: Option<u64>,
}

/// `nvram = { … }` of `[pool.cache]`
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct NvramConfig {
    /// A file on persistent memory, or a block device with a battery.
    pub file: PathBuf,
    /// The size of a file that is made.
    pub size: Option<ByteSize>,
}

fn default_cache_mode() -> CacheMode {
    CacheMode::Through
}
fn default_codec() -> Codec {
    Codec::Lz4
}
fn default_dedup() -> CacheDedup {
    CacheDedup::Tenant
}
fn default_fingerprints() -> u32 {
    100
}
fn default_sharing() -> Sharing {
    Sharing::Shared
}
fn default_watermark() -> u32 {
    30
}

/// `volatile_cache = { … }`, for tests.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct VolatileConfig {
    /// Decides which sectors go out early.
    pub seed: u64,
    /// Acknowledge flushes without doing them: what a test must find.
    pub flush_lies: bool,
    /// Ignore FUA: likewise.
    pub fua_lies: bool,
}

/// `[[tenant]]`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TenantConfig {
    /// Its name.
    pub name: Spanned<String>,
    /// `latency-critical`, `best-effort` or `fenced`.
    pub class: Spanned<String>,
    /// For latency-critical: the bounds.
    #[serde(default)]
    pub objectives: Vec<ObjectiveConfig>,
    /// Its share relative to others, 1 to 10000: of what is left, or of too few cores if it's latency-critical.
    pub weight: Option<u32>,
    /// For fenced: how many slots.
    pub slots: Option<u32>,
    /// Requests inside the node at once.
    pub jobs_max: Option<u32>,
    /// Bytes inside the node at once.
    pub bytes_max: Option<ByteSize>,
    /// Its reads must be done within this, or are refused at once; a volume or a connection may say otherwise.
    pub deadline: Option<SpanText>,
    /// Its deadlines are of this percentile of its reads: the others may be late. Every read's, if not said.
    pub deadline_percentile: Option<f64>,
    /// Instead of `deadline`: one that sets itself by the share of reads that it refuses.
    pub auto_deadline: Option<AutoDeadlineConfig>,
    /// In pools whose core policy is `static`: cores of its own.
    pub cores: Option<u32>,
    /// In pools whose core policy is `mclock`: requests a second that it has at least.
    pub reservation_iops: Option<u64>,
    /// Likewise: requests a second that it has at most.
    pub limit_iops: Option<u64>,
    /// For schedulers that know priorities: `rt:0` to `rt:7`, `be:0` to `be:7` or `idle`; a connection may say otherwise.
    pub priority: Option<Spanned<String>>,
}

/// `{ refuse_percent = 5, least = "1ms", most = "1s" }`
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AutoDeadlineConfig {
    /// Of all reads, so many may be refused, %.
    pub refuse_percent: f64,
    /// It's never shorter.
    #[serde(default = "least_deadline")]
    pub least: SpanText,
    /// It's never longer, and this at first.
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
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ObjectiveConfig {
    /// Above 0, below 100.
    pub percentile: f64,
    /// The bound.
    pub within: SpanText,
}

/// `[[volume]]`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VolumeConfig {
    /// Its name: what clients ask for.
    pub name: Spanned<String>,
    /// The pool it lives in.
    pub pool: Spanned<String>,
    /// Its size.
    pub size: ByteSize,
    /// Who pays for its requests unless the connection says otherwise.
    pub tenant: Spanned<String>,
    /// Refuse changes.
    #[serde(default)]
    pub read_only: bool,
    /// Reads must be done within this, or are refused at once; a connection may say otherwise.
    pub deadline: Option<SpanText>,
    /// How its pool's cache treats it when it is made: `off`, `through` or `back`; as the pool says if not said.
    pub cache: Option<CacheMode>,
    /// How much of the cache it may have where each volume has its own part.
    pub cache_size: Option<ByteSize>,
    /// Time slots that are its own where its pool is fenced; as many as its tenant has if that is fenced, else none.
    pub slots: Option<u32>,
}

/// `[[grant]]`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Grant {
    /// `local` (any peer on the unix socket or from a loopback address), `uid:1000` (a unix peer's), or `cert:NAME` (a TLS
    /// client certificate's common name).
    pub peer: Spanned<String>,
    /// Volume names, or `*`.
    pub volumes: Vec<String>,
    /// Tenants whose promise the peer may use; without any, only the volume's own.
    #[serde(default)]
    pub tenants: Vec<String>,
    /// May it change anything?
    #[serde(default = "yes")]
    pub write: bool,
}

/// A number of bytes: `4096`, `"64KiB"`, `"8GiB"`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ByteSize(pub u64);

impl std::str::FromStr for ByteSize {
    type Err = String;
    fn from_str(text: &str) -> Result<ByteSize, String> {
        plimsoll_base::parse_bytes(text).map(ByteSize)
    }
}

impl Serialize for ByteSize {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_u64(self.0)
    }
}

impl<'de> Deserialize<'de> for ByteSize {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<ByteSize, D::Error> {
        struct Visitor;
        impl serde::de::Visitor<'_> for Visitor {
            type Value = ByteSize;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a size such as \"8GiB\", or a number of bytes")
            }
            fn visit_i64<E: serde::de::Error>(self, v: i64) -> Result<ByteSize, E> {
                u64::try_from(v).map(ByteSize).map_err(|_| E::custom("a size is not negative"))
            }
            fn visit_u64<E: serde::de::Error>(self, v: u64) -> Result<ByteSize, E> {
                Ok(ByteSize(v))
            }
            fn visit_str<E: serde::de::Error>(self, v: &str) -> Result<ByteSize, E> {
                v.parse().map_err(E::custom)
            }
        }
        d.deserialize_any(Visitor)
    }
}

/// A length of time: `"20ms"`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SpanText(pub Span);

impl Serialize for SpanText {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(&format!("{}us", self.0.as_micros()))
    }
}

impl<'de> Deserialize<'de> for SpanText {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<SpanText, D::Error> {
        let text = String::deserialize(d)?;
        text.parse().map(SpanText).map_err(serde::de::Error::custom)
    }
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

impl TenantConfig {
    /// Its class, if what was written makes one.
    pub fn class(&self) -> Result<Class, String> {
        let objectives: Vec<(f64, Span)> = self.objectives.iter().map(|o| (o.percentile, o.within.0)).collect();
        class_of(self.class.get_ref(), &objectives, self.weight, self.slots)
    }

    /// What fixed policies give it.
    pub fn allotment(&self) -> Allotment {
        let (reservation, limit) = (self.reservation_iops.unwrap_or(0), self.limit_iops.unwrap_or(0));
        Allotment { cores: self.cores.unwrap_or(0), reservation, limit }
    }

    fn check_allotment(&self, pools: &[PoolConfig]) -> Result<(), String> {
        let has = |policy| pools.iter().any(|p| p.core_policy.as_ref().is_some_and(|c| c.get_ref() == policy));
        for (key, policy, given) in [
            ("cores", "static", self.cores.map(u64::from)),
            ("reservation_iops", "mclock", self.reservation_iops),
            ("limit_iops", "mclock", self.limit_iops),
        ] {
            match given {
                Some(0) => return Err(format!("{key} = 0 would be nothing: take it out")),
                Some(_) if !has(policy) => {
                    return Err(format!("{key} is for pools with core_policy = \"{policy}\": no pool has it"));
                }
                _ => {}
            }
        }
        match (self.reservation_iops, self.limit_iops) {
            (Some(least), Some(most)) if least > most => {
                Err(format!("reservation_iops {least} is more than limit_iops {most}"))
            }
            _ => Ok(()),
        }
    }
}

/// Requests inside at once that a tenant may be allowed: what a pool holds of all.
pub const JOBS_MAX: u32 = 65_536;

/// Can `jobs_max` be meant?
pub fn check_jobs_max(jobs_max: Option<u32>) -> Result<(), String> {
    match jobs_max {
        Some(0) => Err("jobs_max 0 would let nothing in".into()),
        Some(more) if more > JOBS_MAX => Err(format!("jobs_max {more} is more than the {JOBS_MAX} that a pool holds")),
        _ => Ok(()),
    }
}

/// A class from its name and what was said of it; `objectives` are percentiles (99.9) and their bounds.
pub fn class_of(
    class: &str,
    objectives: &[(f64, Span)],
    weight: Option<u32>,
    slots: Option<u32>,
) -> Result<Class, String> {
    for (key, of, given) in
        [("objectives", "latency-critical", !objectives.is_empty()), ("slots", "fenced", slots.is_some())]
    {
        if given && class != of {
            return Err(format!("`{key}` is for a {of} tenant, not for a {class} one"));
        }
    }
    if weight.is_some() && class == "fenced" {
        return Err(
            "`weight` is for a best-effort or latency-critical tenant: a fenced one's share is its slots".into()
        );
    }
    if let Some(other) = weight.filter(|w| !(1..=10_000).contains(w)) {
        return Err(format!("weight {other} is not between 1 and 10000"));
    }
    match class {
        "latency-critical" if objectives.is_empty() => {
            Err("a latency-critical tenant needs `objectives`, such as 99.9 % within 20 ms".into())
        }
        "latency-critical" => {
            let objective = |&(percentile, bound): &(f64, Span)| {
                let bp = (percentile * 100.0).round();
                (1.0..=9999.0)
                    .contains(&bp)
                    .then_some(Objective { percentile_bp: bp as u16, bound })
                    .ok_or_else(|| format!("percentile {percentile} is not between 0.01 and 99.99"))
            };
            let objectives = objectives.iter().map(objective).collect::<Result<_, _>>()?;
            Ok(Class::LatencyCritical { objectives, weight: weight.unwrap_or(Class::CRITICAL_WEIGHT) })
        }
        "best-effort" => Ok(Class::BestEffort { weight: weight.unwrap_or(100) }),
        "fenced" => match slots.unwrap_or(1) {
            slots @ 1..=1000 => Ok(Class::Fenced { slots }),
            other => Err(format!("slots {other} is not between 1 and 1000")),
        },
        other => Err(format!("class `{other}` is unknown: latency-critical, best-effort or fenced")),
    }
}

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

    fn check(&self) -> Result<(), (Option<usize>, String)> {
        let at = |s: &Spanned<String>| Some(s.span().start);
        unique(self.pool.iter().map(|p| &p.name), "pool")?;
        unique(self.tenant.iter().map(|t| &t.name), "tenant")?;
        unique(self.volume.iter().map(|v| &v.name), "volume")?;
        if self.pool.is_empty() {
            return Err((None, "no [[pool]]: a node needs at least one".into()));
        }
        for p in &self.pool {
            p.device.check().map_err(|what| (at(&p.name), format!("pool `{}`: {what}", p.name.get_ref())))?;
            if let Some(s) = &p.sched {
                let unknown = |e: plimsoll_sched::choice::UnknownScheduler| (at(s), e.to_string());
                s.get_ref().parse::<plimsoll_sched::SchedulerKind>().map_err(unknown)?;
            }
            if let Some(logs) = &p.logs {
                crate::logs::check(logs)
                    .map_err(|what| (at(&p.name), format!("pool `{}`: {what}", p.name.get_ref())))?;
                if p.device.null {
                    let what =
                        format!("pool `{}`: a null device forgets what it logs: take out `logs`", p.name.get_ref());
                    return Err((at(&p.name), what));
                }
            }
            crate::cores::config(p).map_err(|what| {
                let place = p.core_policy.as_ref().filter(|_| p.cores.is_some()).unwrap_or(&p.name);
                (at(place), format!("pool `{}`: {what}", p.name.get_ref()))
            })?;
            if let Some(cache) = &p.cache {
                crate::cache::check(cache)
                    .map_err(|what| (at(&p.name), format!("pool `{}`: {what}", p.name.get_ref())))?;
                if p.device.null {
                    let what = format!("pool `{}`: a null device needs no cache: take out `cache`", p.name.get_ref());
                    return Err((at(&p.name), what));
                }
            }
            if p.depth == Some(0) {
                return Err((at(&p.name), format!("pool `{}`: depth 0 would serve nothing", p.name.get_ref())));
            }
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
            t.class().map_err(|what| (at(&t.class), format!("tenant `{}`: {what}", t.name.get_ref())))?;
            check_jobs_max(t.jobs_max)
                .and(t.check_allotment(&self.pool))
                .map_err(|what| (at(&t.name), format!("tenant `{}`: {what}", t.name.get_ref())))?;
        }
        for p in &self.pool {
            let in_pool = |what| (at(&p.name), format!("pool `{}`: {what}", p.name.get_ref()));
            crate::fence::check(self, p).map_err(in_pool)?;
        }
        for t in &self.tenant {
            let promised = t.deadline.map_or(Ok(()), |d| check_deadline(d.0));
            let percentile = t.deadline_percentile.map_or(Ok(0), crate::predict::percentile_bp);
            let auto = crate::predict::auto_terms(t);
            let all = promised.and(percentile.map(|_| ())).and(auto.map(|_| ()));
            all.map_err(|what| (at(&t.name), format!("tenant `{}`: {what}", t.name.get_ref())))?;
            if let Some(p) = &t.priority {
                p.get_ref().parse::<Priority>().map_err(|e| (at(p), e.to_string()))?;
            }
        }
        for v in &self.volume {
            let promised = v.deadline.map_or(Ok(()), |d| check_deadline(d.0));
            promised.map_err(|what| (at(&v.name), format!("volume `{}`: {what}", v.name.get_ref())))?;
            let known = |names: Vec<&Spanned<String>>, wanted: &Spanned<String>, kind| {
                let (name, found) = (v.name.get_ref(), names.iter().any(|n| n.get_ref() == wanted.get_ref()));
                let problem = || (at(wanted), format!("volume `{name}`: there is no {kind} `{}`", wanted.get_ref()));
                if found { Ok(()) } else { Err(problem()) }
            };
            known(self.pool.iter().map(|p| &p.name).collect(), &v.pool, "pool")?;
            known(self.tenant.iter().map(|t| &t.name).collect(), &v.tenant, "tenant")?;
            if v.name.get_ref().is_empty() || v.name.get_ref().contains(['?', '/', '\0']) {
                let what = format!("volume `{}`: a name can't be empty or have `?` or `/` in it", v.name.get_ref());
                return Err((at(&v.name), what));
            }
            if v.size.0 == 0 {
                return Err((at(&v.name), format!("volume `{}`: its size is 0", v.name.get_ref())));
            }
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
        for p in &mut self.pool {
            p.device.file.as_mut().map(fix);
            p.tape.as_mut().map(fix);
            p.profile.as_mut().map(fix);
            p.cache.as_mut().map(|c| &mut c.file).map(fix);
            p.cache.as_mut().and_then(|c| c.nvram.as_mut()).map(|n| &mut n.file).map(fix);
        }
        if let Some(tls) = &mut self.listen.tls {
            [&mut tls.certificate, &mut tls.key, &mut tls.client_ca].into_iter().for_each(fix);
        }
    }
}

/// No one waits longer for a read that matters.
const DEADLINE_MAX: Span = Span::from_secs(3600);

/// Can a promise of `deadline` be meant?
pub fn check_deadline(deadline: Span) -> Result<(), String> {
    if deadline == Span::ZERO {
        return Err("a deadline of 0 can't be kept".into());
    }
    if deadline > DEADLINE_MAX {
        return Err(format!("a deadline of {deadline} is no promise: at most an hour"));
    }
    Ok(())
}

fn unique<'a>(names: impl Iterator<Item = &'a Spanned<String>>, kind: &str) -> Result<(), (Option<usize>, String)> {
    let mut seen = std::collections::BTreeSet::new();
    for name in names {
        if !seen.insert(name.get_ref()) {
            return Err((Some(name.span().start), format!("{kind} `{}` is declared twice", name.get_ref())));
        }
    }
    Ok(())
}

impl DeviceConfig {
    fn check(&self) -> Result<(), String> {
        match (self.null, &self.file) {
            (true, Some(_)) => Err("a device is either null or a file, not both".into()),
            (false, None) => Err("device needs `file = \"…\"` (or `null = true`)".into()),
            (true, None) if self.size.is_none() => Err("a null device needs a size".into()),
            (true, None) if self.model.is_some() => Err("a modelled device needs a file for its data".into()),
            (true, None) if self.uuid.is_some() => Err("a null device has no uuid".into()),
            _ => self.model.as_deref().map_or(Ok(()), |m| DeviceSpec::named(m).map(|_| ()).map_err(|e| e.to_string())),
        }
    }
}

/// Whom a grant is for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Peer {
    /// Any on the unix socket or from a loopback address.
    Local,
    /// A unix peer's user id.
    Uid(u32),
    /// A TLS client certificate's common name.
    Cert(String),
}

impl Peer {
    /// From its text.
    pub fn parse(text: &str) -> Result<Peer, String> {
        let bad = || format!("peer `{text}` is unknown: local, uid:NUMBER or cert:NAME");
        match text.split_once(':') {
            None if text == "local" => Ok(Peer::Local),
            Some(("uid", n)) => n.parse().map(Peer::Uid).map_err(|_| bad()),
            Some(("cert", name)) if !name.is_empty() => Ok(Peer::Cert(name.into())),
            _ => Err(bad()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &str) -> String {
        Config::parse(text, Path::new("node.toml")).expect_err(text).to_string()
    }

    const POOL: &str = "[[pool]]\nname = \"p\"\ndevice = { null = true, size = \"1GiB\" }\n";

    #[test]
    fn errors_name_file_line_and_key() {
        assert_eq!(error(""), "node.toml: no [[pool]]: a node needs at least one");
        assert!(error(&format!("{POOL}dept = 3\n")).starts_with("node.toml:4: unknown field `dept`"));
        assert!(error("[listen]\ntcp = \"here\"\n").starts_with("node.toml:2: "));
        let two = format!("{POOL}{POOL}");
        assert_eq!(error(&two), "node.toml:5: pool `p` is declared twice");
        let volume = "[[volume]]\nname = \"v\"\npool = \"q\"\nsize = \"1MiB\"\ntenant = \"t\"\n";
        assert_eq!(error(&format!("{POOL}{volume}")), "node.toml:6: volume `v`: there is no pool `q`");
        let tenant = "[[tenant]]\nname = \"t\"\nclass = \"latency-critical\"\n";
        assert!(
            error(&format!("{POOL}{tenant}")).starts_with("node.toml:6: tenant `t`: a latency-critical tenant needs")
        );
        assert!(
            error("[[pool]]\nname = \"p\"\ndevice = { size = \"3 apples\" }\n")
                .contains("node.toml:3: `3 apples` is not a size")
        );
        assert!(
            error("[[pool]]\nname = \"p\"\ndevice = {}\n").starts_with("node.toml:2: pool `p`: device needs `file")
        );
        assert_eq!(
            error(&format!("{POOL}cores = 4\ncore_policy = \"qwon\"\n")),
            "node.toml:5: pool `p`: core_policy `qwon` is unknown: qwin, qwin-window, share-everything, partial-sharing, \
             two-priorities, cake, shenango, static or mclock"
        );
        assert_eq!(error(&format!("{POOL}cores = 0\n")), "node.toml:2: pool `p`: cores = 0 is not between 1 and 1024");
        assert!(error(&format!("{POOL}core_depth = 2\n")).contains("core_depth means nothing without `cores`"));
        let cores = |policy: &str, keys: &str| {
            let tenant = format!("[[tenant]]\nname = \"t\"\nclass = \"best-effort\"\n{keys}\n");
            error(&format!("{POOL}cores = 4\ncore_policy = \"{policy}\"\n{tenant}"))
        };
        assert_eq!(
            cores("qwin", "cores = 2"),
            "node.toml:7: tenant `t`: cores is for pools with core_policy = \"static\": no pool has it"
        );
        let slack = error(&format!("{POOL}cores = 4\ncore_slack = [\"2ms\", \"1ms\"]\n"));
        assert!(slack.contains("core_slack: 2.00ms at least is above 1.00ms"), "{slack}");
        assert!(cores("mclock", "limit_iops = 0").ends_with("limit_iops = 0 would be nothing: take it out"));
        assert!(cores("mclock", "reservation_iops = 9\nlimit_iops = 8").contains("9 is more than limit_iops 8"));
        assert!(cores("qwin", "weight = 20000").contains("weight 20000 is not between 1 and 10000"));
        let grant = "[[grant]]\npeer = \"everyone\"\nvolumes = [\"*\"]\n";
        assert!(error(&format!("{POOL}{grant}")).starts_with("node.toml:5: peer `everyone` is unknown"));
    }

    #[test]
    fn sizes() {
        for (text, n) in [("512", 512), ("64KiB", 65536), ("8 GiB", 8 << 30), ("2T", 2 << 40)] {
            assert_eq!(text.parse::<ByteSize>().unwrap().0, n);
        }
        for text in ["", "GiB", "-1", "1.5GiB", "99999999TiB", "4XB"] {
            assert!(text.parse::<ByteSize>().is_err(), "{text}");
        }
    }
}
