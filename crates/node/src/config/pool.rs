//! `[[pool]]`: a device and what is stacked over it.

use super::text::{ByteSize, SpanText};
use super::{Place, yes};
use crate::parts::PARTS;
use plimsoll_base::CacheMode;
use plimsoll_cache::{Codec, Sharing};
use plimsoll_device::DeviceSpec;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use toml::Spanned;

/// `[[pool]]`
#[derive(Clone, PartialEq, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct PoolConfig {
    /// Its name.
    pub name: Spanned<String>,
    /// What it's made of.
    pub device: DeviceConfig,
    /// Requests at the device at once.
    pub depth: Option<u32>,
    /// `noop` (the default), `auto`, `deadline`, `cfq`, `blackbox` or `ssd`.
    pub sched: Option<Spanned<String>>,
    /// For `cfq`: how long the device is kept for a client's next request; 8 ms if not said. Can be changed live.
    pub idle_time: Option<SpanText>,
    /// Volumes may have limits of their requests and bytes per second; see docs/throttle.md.
    #[serde(default)]
    pub throttle: bool,
    /// Percent of a tenant's accepted reads that may end after their deadline, by default 0.5: a read is refused if its chance to be late
    /// is too large for that. 0: a read is accepted by its forecast alone.
    pub miss_percent: Option<f64>,
    /// Memory for pages that were read or written, as a page cache.
    pub memory: Option<ByteSize>,
    /// What `plimsoll profile` measured of the device; without it, waits are learned from nothing.
    pub profile: Option<PathBuf>,
    /// Cores that the pool's requests are served by; see docs/cores.md. Without it, all are served as they come.
    pub cores: Option<u32>,
    /// Requests that a core has in flight; 1 if not said.
    pub core_depth: Option<u32>,
    /// Who decides about them: `qwin` (the default), or what it is compared with.
    pub core_policy: Option<Spanned<String>>,
    /// For `qwin` and `qwin-window`: the slack that objectives are kept with, at least and at most; 300 us and 1 ms if not said.
    pub core_slack: Option<[SpanText; 2]>,
    /// For `qwin` and `qwin-window`: windows between two looks at the slack, by default 2000.
    pub core_poll_windows: Option<u64>,
    /// Best effort's changes in flight are bounded by how many requests with an objective are late; for `qwin` and `qwin-window`, by
    /// default true.
    pub bound_best_effort_writes: Option<bool>,
    /// The CPUs of the threads that hash, compress and check, one thread on each; else as many as there are CPUs, up to 8, on any.
    pub worker_cpus: Option<Vec<usize>>,
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
#[derive(Clone, PartialEq, Debug, Deserialize, Serialize)]
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
#[derive(Clone, PartialEq, Debug, Deserialize, Serialize)]
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
    /// Serve, degraded, although durable records in the logs are lost of which the ranges aren't known.
    pub accept_loss: bool,
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
            accept_loss: false,
        }
    }
}

/// `[pool.fence]`
#[derive(Clone, PartialEq, Debug, Deserialize, Serialize)]
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
#[derive(Clone, PartialEq, Debug, Deserialize, Serialize)]
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
    /// So much of the cache (of each volume's part) is kept free, in percent, so that writes find room; two units are in any case.
    #[serde(default)]
    pub free_percent: u32,
    /// Tell the device what isn't needed before it's written again.
    #[serde(default = "yes")]
    pub trim: bool,
    /// What is read ahead of sequential reads at most.
    pub prefetch: Option<ByteSize>,
    /// A small device that keeps what is written to it: flushes in write-back mode wait for nothing else.
    pub nvram: Option<NvramConfig>,
    /// A modelled device's profile: the device answers no sooner than the model would.
    pub model: Option<String>,
    /// For tests, as a pool's `device` has it: the fast device loses, tears and reorders what isn't flushed when the process is killed.
    #[serde(default)]
    pub volatile_cache: Option<VolatileConfig>,
}

/// `nvram = { … }` of `[pool.cache]`
#[derive(Clone, PartialEq, Debug, Deserialize, Serialize)]
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
    plimsoll_cache::CacheConfig::default().fingerprints_percent
}
fn default_sharing() -> Sharing {
    Sharing::Shared
}
fn default_watermark() -> u32 {
    plimsoll_cache::CacheConfig::default().watermark_percent
}

/// `volatile_cache = { … }`, for tests.
#[derive(Clone, PartialEq, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct VolatileConfig {
    /// Decides which sectors go out early.
    pub seed: u64,
    /// Acknowledge flushes without doing them: what a test must find.
    pub flush_lies: bool,
    /// Ignore FUA: likewise.
    pub fua_lies: bool,
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

impl PoolConfig {
    /// Is what it says of itself possible? What depends on volumes and tenants is checked with them.
    pub(super) fn check(&self) -> Result<(), (Place, String)> {
        let named = |s: &Spanned<String>, what: String| (Some(s.span().start), what);
        let wrong = |what| named(&self.name, format!("pool `{}`: {what}", self.name.get_ref()));
        self.device.check().map_err(wrong)?;
        for part in PARTS {
            part.check(self).map_err(|(place, what)| (place.or(wrong(String::new()).0), wrong(what).1))?;
        }
        if let Some(cpus) = &self.worker_cpus {
            crate::engine::check_cpus(cpus).map_err(|what| wrong(format!("worker_cpus: {what}")))?;
        }
        Ok(())
    }

    /// Paths that aren't absolute are taken from `base`.
    pub(super) fn make_absolute(&mut self, base: &Path) {
        let fix = |p: &mut PathBuf| *p = base.join(&*p);
        self.device.file.as_mut().map(fix);
        self.tape.as_mut().map(fix);
        self.profile.as_mut().map(fix);
        self.cache.as_mut().map(|c| &mut c.file).map(fix);
        self.cache.as_mut().and_then(|c| c.nvram.as_mut()).map(|n| &mut n.file).map(fix);
        self.fence.as_mut().and_then(|f| f.cache_profile.as_mut()).map(fix);
    }
}
