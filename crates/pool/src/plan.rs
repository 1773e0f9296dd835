//! The plan of a pool: its layers, each with its whole configuration.

use plimsoll_bands::{BandsConfig, Places, Shape as BandsShape};
use plimsoll_base::{Span, VolumeKey};
use plimsoll_cache::{CacheConfig, Shape as CacheShape};
use plimsoll_cores::CoresConfig;
use plimsoll_device::{AnyModel, DeviceOptions, DeviceSpec, ZonesSpec};
use plimsoll_fence::FenceConfig;
use plimsoll_logs::{Layout as LogsLayout, LogsConfig, Shape as LogsShape};
use plimsoll_sched::admission::AdmissionConfig;
use plimsoll_sched::expected::random_reads;
use plimsoll_sched::{DiskModel, Profile, SchedulerKind, SchedulerOptions};
use plimsoll_stack::{Offer, StackConfig};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Reads that a tail is taken of: the most that the cores remember of measured ones.
const EXPECTED_READS: usize = 16_384;

/// A pool, complete and resolved: everything that decides which stack is built, except what its devices offer.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PoolPlan {
    /// Settings of the stack itself: the admission of requests.
    pub stack: StackConfig,
    /// Admission of reads with a deadline beyond their forecast: deadlines of a percentile (MittOS §7.2), room for the forecasts' errors.
    pub admission: Option<AdmissionConfig>,
    /// Limits of volumes' requests and bytes per second.
    pub throttle: bool,
    /// Cores that requests are served by.
    pub cores: Option<CoresConfig>,
    /// The flash cache, on the fast device.
    pub cache: Option<CachePlan>,
    /// A page cache in memory.
    pub memory: Option<MemoryPlan>,
    /// Scattered logs.
    pub logs: Option<LogsPlan>,
    /// Bands of a shingled drive, below the logs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bands: Option<BandsPlan>,
    /// Time slots.
    pub fence: Option<FenceConfig>,
    /// The scheduler of the slow device.
    pub scheduler: SchedulerPlan,
    /// The modelled device in front of the slow one.
    pub model: Option<ModelPlan>,
    /// Zones of the slow device, whose write pointers it keeps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zones: Option<ZonesSpec>,
}

impl PoolPlan {
    /// A front and a map over a scheduler that takes requests as they come.
    pub fn new() -> PoolPlan {
        PoolPlan {
            stack: StackConfig::default(),
            admission: None,
            throttle: false,
            cores: None,
            cache: None,
            memory: None,
            logs: None,
            bands: None,
            fence: None,
            scheduler: SchedulerPlan::default(),
            model: None,
            zones: None,
        }
    }

    /// Times that the profile of the pool's device lets expect of random reads while all cores are busy. `None` without cores or a profile, and
    /// where a cache, memory or a fence changes the times.
    pub fn expected(&self) -> Option<Vec<Span>> {
        let cores =
            self.cores.as_ref().filter(|_| self.cache.is_none() && self.memory.is_none() && self.fence.is_none())?;
        let Costs::Profile(profile) = &self.scheduler.costs else { return None };
        Some(random_reads(profile, cores.cores * cores.depth, self.scheduler.options.depth, EXPECTED_READS))
    }
}

impl Default for PoolPlan {
    fn default() -> PoolPlan {
        PoolPlan::new()
    }
}

/// A flash cache.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CachePlan {
    /// Part of the device's format.
    pub shape: CacheShape,
    /// The cache's own settings. `weus_max` bounds the cache beside `size_bytes`.
    pub config: CacheConfig,
    /// Bytes of the fast device that are used at most; `None`: all.
    pub size_bytes: Option<u64>,
    /// The pool's volumes when it starts; `None`: any may come (a volume of which nothing is known is not recovered, it is kept).
    pub known: Option<Vec<KnownVolume>>,
    /// Volumes whose dirty extents were given up.
    pub given_up: Vec<GivenUp>,
    /// The reason for which the pool is served without the fast device; it is never read or written then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub absent: Option<String>,
    /// A device that keeps writes through a power loss, in front of the fast one.
    pub nvram: Option<NvramPlan>,
    /// The modelled drive in front of the fast device.
    pub model: Option<ModelPlan>,
}

/// A volume that exists when the cache starts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KnownVolume {
    /// Number.
    pub id: u32,
    /// Generation of the number.
    pub generation: u32,
    /// If true, the newest data of the volume may be in the cache only.
    pub behind: bool,
}

/// A volume whose dirty extents were given up.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GivenUp {
    /// Number.
    pub id: u32,
    /// Generation of the number.
    pub generation: u32,
    /// The cache's generation at that time: what it cached before is not used.
    pub since: u16,
}

impl KnownVolume {
    /// Its key.
    pub fn key(&self) -> VolumeKey {
        VolumeKey { id: self.id, generation: self.generation }
    }
}

impl GivenUp {
    /// Its key.
    pub fn key(&self) -> VolumeKey {
        VolumeKey { id: self.id, generation: self.generation }
    }
}

/// A cache's NVRAM.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NvramPlan {
    /// Tells its records from those of other caches.
    pub salt: u64,
}

/// A page cache in memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MemoryPlan {
    /// Pages of 4 KiB, at least 1.
    pub pages: u32,
    /// Duration of a hit; 0 where the processor's own time is real.
    pub hit: Span,
}

/// Scattered logs.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LogsPlan {
    /// Part of the device's format.
    pub shape: LogsShape,
    /// The logs' own settings.
    pub config: LogsConfig,
}

/// Bands of a shingled drive. The logs lie in its unshingled zones: group and log sizes follow from these numbers, not from
/// [`LogsPlan::shape`].
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BandsPlan {
    /// Bytes of a zone of the drive.
    pub zone_bytes: u64,
    /// One zone in N takes any write, from zone 0 on: 2 or more.
    pub free_every: u32,
    /// Shingled zones that hold no band: 1 or more.
    pub spares: u32,
    /// Bytes of a log, at most a zone's.
    pub log_bytes: u64,
    /// Makes the checksums of this device's map its own.
    #[serde(default)]
    pub salt: u64,
    /// The layer's own settings.
    pub config: BandsConfig,
}

/// Attempts to fit the logs' tables and the bands to each other: each one changes the tables by a page at most.
const FITS_MAX: u32 = 8;

impl BandsPlan {
    /// Places of the bands on a device that offers `device`, and the layout of logs with `extents_max` extents over them: each log is an
    /// unshingled zone.
    ///
    /// # Errors
    /// If the numbers don't fit the device; says which one to change.
    pub fn places(&self, device: Offer, extents_max: u32) -> Result<(Places, LogsLayout), BadPlan> {
        let BandsPlan { zone_bytes, free_every, spares, log_bytes, salt, .. } = *self;
        let mut head_bytes = 4096;
        for _ in 0..FITS_MAX {
            let shape = BandsShape { zone_bytes, free_every, spares, head_bytes, log_bytes, salt };
            let places = Places::new(device.size_bytes, device.block_bytes, shape);
            let places = places.map_err(|e| BadPlan(format!("bands: {e}")))?;
            let shape = LogsShape { group_bytes: places.group_bytes, log_bytes, extents_max };
            let layout = LogsLayout::new(places.shown_bytes, device.block_bytes, shape, 0);
            let layout = layout.map_err(|e| BadPlan(format!("logs over bands: {e}")))?;
            if layout.base == head_bytes && layout.logs == places.groups {
                return Ok((places, layout));
            }
            head_bytes = layout.base;
        }
        Err(BadPlan(
            "bands: the logs' tables and groups don't fit the zones: choose another zone or fewer extents".into(),
        ))
    }
}

/// A device's scheduler.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SchedulerPlan {
    /// The scheduling algorithm.
    pub kind: SchedulerKind,
    /// The scheduler's options.
    pub options: SchedulerOptions,
    /// Initial costs of its predictions.
    pub costs: Costs,
}

/// Initial knowledge of the cost of a device's requests.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Costs {
    /// Nothing: costs are learned from completions.
    #[default]
    Unknown,
    /// A measured profile.
    Profile(Box<Profile>),
}

impl Costs {
    /// The costs of a disk of `size_bytes`.
    ///
    /// # Errors
    /// If the profile has no `disk` part.
    pub fn of_disk(&self, size_bytes: u64) -> Result<DiskModel, BadPlan> {
        match self {
            Costs::Unknown => Ok(DiskModel::unknown(size_bytes)),
            Costs::Profile(p) => p.disk_model().ok_or_else(|| BadPlan("the profile has no `disk` part".into())),
        }
    }
}

/// A modelled device.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelPlan {
    /// Its parameters.
    pub spec: DeviceSpec,
    /// Deviations from `spec`.
    pub options: DeviceOptions,
}

impl ModelPlan {
    /// The model before a device of `size_bytes`. A flash drive's maps take memory by capacity: no more of it than the device behind it.
    ///
    /// # Errors
    /// If its parameters contradict each other.
    pub fn before(&self, size_bytes: u64) -> Result<AnyModel, BadPlan> {
        self.spec.clone().at_most(size_bytes).build(self.options).map_err(|e| BadPlan(e.to_string()))
    }
}

/// Reason why no stack can be built from a plan.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BadPlan(pub String);

impl fmt::Display for BadPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
impl std::error::Error for BadPlan {}
