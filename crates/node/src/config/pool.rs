//! `[[pool]]`: a device and what is stacked over it.

use super::text::{ByteSize, SpanText};
use super::{BadConfig, yes};
use crate::parts::PARTS;
use crate::reload::pool_section;
use plimsoll_base::CacheMode;
use plimsoll_cache::{Admission, Codec, Eviction, Sharing};
use plimsoll_device::DeviceSpec;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use toml::Spanned;

/// `[[pool]]`
#[derive(Clone, PartialEq, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct PoolConfig {
    /// Name.
    pub name: Spanned<String>,
    /// The device.
    pub device: DeviceConfig,
    /// Requests in flight at the device [default: 32].
    pub depth: Option<u32>,
    /// `noop` (the default), `auto`, `deadline`, `cfq`, `blackbox`, `ssd`; `osds` for an RBD image, where it is the default. "Which scheduler" in
    /// docs/guides/profile-a-device.md has the choice.
    pub sched: Option<Spanned<String>>,
    /// For `cfq`: time that the device is kept idle for a client's next request [default: 8ms]. Can be changed live.
    pub idle_time: Option<SpanText>,
    /// Allow limits of volumes' requests and bytes per second (docs/guides/throttle.md).
    #[serde(default)]
    pub throttle: bool,
    /// Percent of a tenant's accepted reads that may end after their deadline [default: 0.5]. A read is refused if its chance to be late
    /// is too large for that. 0: a read is accepted by its forecast alone.
    pub miss_percent: Option<f64>,
    /// Memory for a page cache.
    pub memory: Option<ByteSize>,
    /// Profile of the device, from `plimsoll profile`; without it, forecasts are learned from response times.
    pub profile: Option<PathBuf>,
    /// Number of cores (docs/guides/cores.md); without it, requests are served as they arrive and objectives are only measured.
    pub cores: Option<u32>,
    /// Requests that a core has in flight [default: 1].
    pub core_depth: Option<u32>,
    /// Policy of the cores: `qwin` (the default), `qwin-window`, `share-everything`, `partial-sharing`, `two-priorities`, `cake`, `shenango`, `static` or `mclock`.
    pub core_policy: Option<Spanned<String>>,
    /// For `qwin` and `qwin-window`: least and greatest slack of objectives [default: 300us and 1ms]. Can be changed live.
    pub core_slack: Option<[SpanText; 2]>,
    /// For `qwin` and `qwin-window`: windows between two adjustments of the slack [default: 2000]. Can be changed live.
    pub core_poll_windows: Option<u64>,
    /// Limit best effort's changes in flight while requests with an objective are late, for `qwin` and `qwin-window`
    /// [default: true].
    pub bound_best_effort_writes: Option<bool>,
    /// CPUs of the threads that hash, compress and check, one thread on each [default: one thread per CPU, at most 8, unpinned].
    pub worker_cpus: Option<Vec<usize>>,
    /// Scattered logs for small writes; see docs/guides/logs.md. They are made with the device and can't be added or removed later.
    pub logs: Option<LogsConfig>,
    /// Bands of a shingled drive, below the logs; see docs/guides/bands.md. They are made with the device and can't be added or removed later.
    pub bands: Option<BandsConfig>,
    /// A flash cache in front of the device; see docs/guides/cache.md.
    pub cache: Option<CacheConfig>,
    /// Time slots of volumes (docs/guides/fences.md).
    pub fence: Option<FenceConfig>,
    /// File that records all inputs and decisions of the pool since its start; `plimsoll tape` replays it.
    pub tape: Option<PathBuf>,
    /// Size limit of the tape [default: 1GiB].
    pub tape_max: Option<ByteSize>,
}

/// `device = { … }`
#[derive(Clone, PartialEq, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceConfig {
    /// A file (made sparse at the first use) or a block device.
    pub file: Option<PathBuf>,
    /// An RBD image of a Ceph cluster, `pool/image`; see docs/guides/ceph.md.
    pub rbd: Option<String>,
    /// For `rbd`: configuration file of the cluster [default: /etc/ceph/ceph.conf].
    pub conf: Option<PathBuf>,
    /// For `rbd`: user, without `client.` [default: admin].
    pub user: Option<String>,
    /// For `rbd`: folder of librbd.so.1 and librados.so.2 [default: the system's].
    pub libraries: Option<PathBuf>,
    /// Size of a file to create. A larger one makes the pool grow at the next start; it never shrinks.
    pub size: Option<ByteSize>,
    /// The device must be this one, as `plimsoll status` and the start tell it: another of the same pool name, or none, is
    /// refused. Without it, any device of a pool of this name will do.
    pub uuid: Option<plimsoll_store::Uuid>,
    /// A block device that holds nothing of Plimsoll's may be made a Plimsoll device: all of it is zeroed.
    #[serde(default)]
    pub format: bool,
    /// No device: reads are zeroes, writes are discarded. For measuring.
    #[serde(default)]
    pub null: bool,
    /// A modelled device's profile: the file behind it answers no sooner than the model would.
    pub model: Option<String>,
    /// Make the file a host-managed shingled drive, for tests and trials: it refuses writes beside its zones' write pointers.
    pub zones: Option<ZonesConfig>,
    /// For tests: lose, tear and reorder what isn't flushed when the process is killed.
    #[serde(default)]
    pub volatile_cache: Option<VolatileConfig>,
}

/// `[pool.logs]`: every key has a default.
#[derive(Clone, PartialEq, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct LogsConfig {
    /// Distance of two logs, in bytes [default: 100MiB; over bands it is given by them]. Part of the device's format.
    pub group: Option<ByteSize>,
    /// Size of a log [default: 10MiB]. Part of the device's format.
    pub log: Option<ByteSize>,
    /// Most extents in the table of logged data [default: 1048576]. Part of the device's format.
    pub extents: Option<u32>,
    /// Largest write that is logged [default: 256KiB; over bands 2MiB, but at most a quarter of a log]. Can be changed live.
    pub logged_write: Option<ByteSize>,
    /// Daily window in which all logged data are checkpointed, UTC: `01:00-05:00` [default: none].
    pub off_hours: Option<String>,
    /// Interval of checkpoints of all logged data [default: none].
    pub every: Option<SpanText>,
    /// Time without requests after which clients are idle [default: 1s].
    pub idle: Option<SpanText>,
    /// Checkpoint logged data in idle time, besides swapping full logs.
    pub clean_when_idle: bool,
    /// Log smaller writes only, or none, when the logs fill too fast. Without effect over bands.
    pub adaptive: bool,
    /// Serve, degraded, although durable records of unknown ranges are corrupt. OLDER DATA MAY BE READ.
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

/// `zones = { … }` of a device: part of its format.
#[derive(Clone, PartialEq, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct ZonesConfig {
    /// Size of a zone.
    pub size: ByteSize,
    /// One zone in N is conventional and takes any write, from the first zone on: 2 or more.
    pub conventional_every: u32,
}

/// `[pool.bands]`: every key has a default.
#[derive(Clone, PartialEq, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct BandsConfig {
    /// Size of a zone, which a band fills [default: that of the device's `zones` or of its model, else 256MiB]. Part of the device's format.
    pub zone: Option<ByteSize>,
    /// One zone in N holds logs and tables, and is written anywhere [default: that of the device's `zones` or of its model, else 50]. Part of the device's format.
    pub free_every: Option<u32>,
    /// Zones that hold no band, so that a band can be copied there [default: 2]. Part of the device's format.
    pub spares: Option<u32>,
    /// Memory for changes that wait for their bands' copies [default: 64MiB].
    pub buffer: Option<ByteSize>,
    /// Time without requests after which bands are copied that only the logs wait for [default: 200ms].
    pub idle: Option<SpanText>,
    /// Longest time between two requests of such a copy under load [default: 2s].
    pub copy_patience: Option<SpanText>,
    /// The same for a copy that clients wait for [default: 50ms].
    pub patience: Option<SpanText>,
}

/// `[pool.fence]`
#[derive(Clone, PartialEq, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct FenceConfig {
    /// Slots in a rotation, 1 to 64. Can be changed live.
    pub slots: u32,
    /// Length of a slot [default: 20ms]. Can be changed live.
    pub slot: Option<SpanText>,
    /// Let volumes without slots share unowned slots and idle time of the others.
    #[serde(default)]
    pub hybrid: bool,
    /// Thousandths by which lending idle time may lengthen its owner's response times [default: 10].
    pub lend_permille: Option<u64>,
    /// Give a slot's first batch the same latency whether or not another volume used the disk before it: slower alone, predictable when shared.
    #[serde(default = "yes")]
    pub steady: bool,
    /// Kind of the pool's device: `disk` or `flash` [default: the model's, else `disk`].
    pub device: Option<String>,
    /// Profile of the cache's device, from `plimsoll profile`. The pool device's is `profile` of the pool.
    pub cache_profile: Option<PathBuf>,
}

/// Scope of a cache's deduplication.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum CacheDedup {
    /// No deduplication.
    Off,
    /// Within a tenant: response times reveal nothing of other tenants' data.
    Tenant,
    /// Within the pool.
    Pool,
}

/// `[pool.cache]`
#[derive(Clone, PartialEq, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct CacheConfig {
    /// The fast device: a file (allocated whole when it is made) or a block device. All of it is the cache's.
    pub file: PathBuf,
    /// Size of a file to create.
    pub device_size: Option<ByteSize>,
    /// Bytes of the device to use [default: all]. Can be changed live.
    pub size: Option<ByteSize>,
    /// Cache mode of volumes without their own: `off`, `through` or `back`.
    #[serde(default = "default_cache_mode")]
    pub mode: CacheMode,
    /// The unit of caching, 4 to 128 KiB [default: 8KiB]. Part of the device's format.
    pub extent: Option<ByteSize>,
    /// The unit of writing and evicting, up to 4 MiB [default: 2MiB]. Part of the device's format.
    pub weu: Option<ByteSize>,
    /// `lz4`, `zstd` or `none`.
    #[serde(default = "default_codec")]
    pub codec: Codec,
    /// Scope of deduplication: `tenant`, `pool` or `off`.
    #[serde(default = "default_dedup")]
    pub dedup: CacheDedup,
    /// Fingerprints kept in memory, in percent of the extents that fit uncompressed. Can be changed live.
    #[serde(default = "default_fingerprints")]
    pub fingerprints_percent: u32,
    /// `shared`, or `pervolume`: each volume has its own part, of `cache_size` of `[[volume]]`.
    #[serde(default = "default_sharing")]
    pub sharing: Sharing,
    /// The unit that leaves when space is needed: `lru`, `live`, `sieve` or `s3fifo`.
    #[serde(default = "default_eviction")]
    pub eviction: Eviction,
    /// The extents that come in from reads and from writes that go through: `all`, or `second`, those that are missed or written a second time.
    #[serde(default = "default_admission")]
    pub admission: Admission,
    /// Percent of the cache that is dirty when write-back begins.
    #[serde(default = "default_watermark")]
    pub watermark_percent: u32,
    /// Percent of the cache (of each volume's part) to keep free for writes, beside two units.
    #[serde(default)]
    pub free_percent: u32,
    /// Send TRIM for space that is no longer needed.
    #[serde(default = "yes")]
    pub trim: bool,
    /// Most bytes to read ahead of sequential reads.
    pub prefetch: Option<ByteSize>,
    /// Small device with durable memory; flushes in write-back mode wait only for it.
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
    /// Size of a file to create.
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
fn default_eviction() -> Eviction {
    Eviction::Lru
}
fn default_admission() -> Admission {
    Admission::All
}
fn default_watermark() -> u32 {
    plimsoll_cache::CacheConfig::default().watermark_percent
}

/// `volatile_cache = { … }`, for tests.
#[derive(Clone, PartialEq, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct VolatileConfig {
    /// Seed of the choice of sectors that are written early.
    pub seed: u64,
    /// Acknowledge flushes without doing them, which a test must find.
    pub flush_lies: bool,
    /// Ignore FUA, which a test must find.
    pub fua_lies: bool,
}

impl DeviceConfig {
    /// The device for people: its path, its image, or `null`.
    pub fn label(&self) -> String {
        match (&self.file, &self.rbd) {
            (Some(file), _) => file.display().to_string(),
            (None, Some(image)) => format!("rbd {image}"),
            (None, None) => "null".into(),
        }
    }

    fn check_rbd(&self, image: &str) -> Result<(), BadConfig> {
        let parts: Vec<&str> = image.split('/').collect();
        if parts.len() != 2 || parts.iter().any(|p| p.is_empty()) {
            return Err(BadConfig::new(format!("rbd = \"{image}\" is no `pool/image`")));
        }
        let others = [
            (self.file.is_some(), "`file`"),
            (self.null, "`null`"),
            (self.size.is_some(), "`size` (the image has one: `rbd create --size …`)"),
            (self.model.is_some(), "`model`: modelled devices need a file"),
            (self.zones.is_some(), "`zones`: they need a file"),
            (self.volatile_cache.is_some(), "`volatile_cache`: it needs a file"),
        ];
        match others.iter().find(|(is_there, _)| *is_there) {
            Some((_, what)) => Err(BadConfig::new(format!("a device with `rbd` can't have {what}"))),
            None => Ok(()),
        }
    }

    fn check(&self) -> Result<(), BadConfig> {
        if let Some(image) = &self.rbd {
            return self.check_rbd(image);
        }
        let keys =
            [("conf", self.conf.is_some()), ("user", self.user.is_some()), ("libraries", self.libraries.is_some())];
        if let Some((key, _)) = keys.iter().find(|(_, is_there)| *is_there) {
            return Err(BadConfig::new(format!("`{key}` is for a device with `rbd`")));
        }
        match (self.null, &self.file) {
            (true, Some(_)) => Err(BadConfig::new("a device is either null or a file, not both")),
            (false, None) => {
                Err(BadConfig::new("device needs `file = \"…\"` (or `rbd = \"pool/image\"`, or `null = true`)"))
            }
            (true, None) if self.size.is_none() => Err(BadConfig::new("a null device needs a size")),
            (true, None) if self.model.is_some() => Err(BadConfig::new("a modelled device needs a file for its data")),
            (true, None) if self.zones.is_some() => Err(BadConfig::new("`zones` need a file for their data")),
            (true, None) if self.uuid.is_some() => Err(BadConfig::new("a null device has no uuid")),
            _ => self.model.as_deref().map_or(Ok(()), |m| DeviceSpec::named(m).map(|_| ()).map_err(BadConfig::found)),
        }
    }
}

impl PoolConfig {
    /// Checks the keys that don't depend on volumes and tenants. The others are checked with those.
    pub(super) fn check(&self) -> Result<(), BadConfig> {
        let wrong = |e: BadConfig| e.about(pool_section(self.name.get_ref())).at(self.name.span().start);
        self.device.check().map_err(wrong)?;
        PARTS.iter().try_for_each(|part| part.check(self)).map_err(wrong)?;
        let cpus = self.worker_cpus.as_deref().map_or(Ok(()), crate::engine::check_cpus);
        cpus.map_err(|e| wrong(BadConfig::found(e).about("worker_cpus")))
    }

    /// Files of modelled devices' profiles that aren't absolute are taken from `base`.
    pub(super) fn models_from(&mut self, base: &Path) {
        let fix = |model: &mut String| *model = plimsoll_device::name_from(base, model);
        self.device.model.as_mut().map(fix);
        self.cache.as_mut().and_then(|c| c.model.as_mut()).map(fix);
    }

    /// Paths that aren't absolute are taken from `base`.
    pub(super) fn make_absolute(&mut self, base: &Path) {
        let fix = |p: &mut PathBuf| *p = base.join(&*p);
        self.device.file.as_mut().map(fix);
        self.device.conf.as_mut().map(fix);
        self.device.libraries.as_mut().map(fix);
        self.tape.as_mut().map(fix);
        self.profile.as_mut().map(fix);
        self.cache.as_mut().map(|c| &mut c.file).map(fix);
        self.cache.as_mut().and_then(|c| c.nvram.as_mut()).map(|n| &mut n.file).map(fix);
        self.fence.as_mut().and_then(|f| f.cache_profile.as_mut()).map(fix);
    }
}
