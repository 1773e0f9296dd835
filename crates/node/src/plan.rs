//! From a pool's section of the configuration to the plan that its stack is built from.

use crate::config::{BadConfig, PoolConfig};
use crate::engine::tape::TapeHeader;
use crate::predict;
use crate::predict::Measured;
use plimsoll_device::{DeviceOptions, DeviceSpec};
use plimsoll_pool::{GivenUp, KnownVolume, ModelPlan, PoolPlan, SchedulerPlan};
use plimsoll_sched::choice::UnknownScheduler;
use plimsoll_sched::{SchedulerKind, SchedulerOptions};
use plimsoll_stack::{Offer, StackConfig};

/// Requests at a device at once by default: enough to keep an SSD busy.
const DEPTH_DEFAULT: u32 = 32;

/// Everything beside the configuration that a plan depends on. The node finds it out when it opens the pool.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// Seconds since midnight (UTC) when the pool starts.
    pub started_s_of_day: u64,
    /// The profile of the pool's device.
    pub profile: Option<Measured>,
    /// The profile of the cache's device.
    pub cache_profile: Option<Measured>,
    /// The cache as the pool's metadata and its own device know it.
    pub cache: CacheFacts,
    /// Tells the bands' map of the pool's device from those of other devices.
    pub salt: u64,
}

/// The part of [`Facts`] that concerns the flash cache.
#[derive(Clone, Debug, Default)]
pub struct CacheFacts {
    /// Number of times that the fast device's content was declared out of date.
    pub generation: u16,
    /// The pool's volumes; `None` before they are known.
    pub known: Option<Vec<KnownVolume>>,
    /// Volumes whose dirty extents were given up.
    pub given_up: Vec<GivenUp>,
    /// Tells the NVRAM's records from those of other caches.
    pub nvram_salt: u64,
    /// The reason for which the fast device or the NVRAM can't be used: the pool is served without the cache.
    pub absent: Option<String>,
}

impl Facts {
    /// The profiles that the configuration names, read; nothing else.
    ///
    /// # Errors
    /// If a profile can't be read or is none.
    pub fn of_files(config: &PoolConfig) -> Result<Facts, BadConfig> {
        let cache_profile = config.fence.as_ref().and_then(|f| f.cache_profile.as_deref());
        Ok(Facts {
            profile: config.profile.as_deref().map(Measured::read).transpose()?,
            cache_profile: cache_profile.map(Measured::read).transpose()?,
            ..Facts::default()
        })
    }
}

/// Returns the plan of the pool that a tape was recorded of.
///
/// # Errors
/// If this program doesn't know everything in the plan.
pub fn recorded(tape: &TapeHeader) -> Result<PoolPlan, BadConfig> {
    serde_json::from_str(&tape.plan).map_err(|e| BadConfig::found(e).about("the recorded pool's plan"))
}

/// The plan of a pool over a device that offers `slow`.
///
/// # Errors
/// Names the fault of the configuration, or of a profile that it names.
pub fn plan(config: &PoolConfig, facts: &Facts, slow: Offer) -> Result<PoolPlan, BadConfig> {
    // Every field is named, so that a new one can't be forgotten here.
    let PoolConfig {
        name: _,
        device,
        depth,
        sched: _,
        idle_time,
        memory,
        throttle,
        miss_percent: _,
        profile: _,
        cores: _,
        core_depth: _,
        core_policy: _,
        core_slack: _,
        core_poll_windows: _,
        bound_best_effort_writes: _,
        worker_cpus: _,
        logs,
        bands,
        cache,
        fence: _,
        tape: _,
        tape_max: _,
    } = config;
    let model = device.model.as_deref().map(model).transpose()?;
    let zones = crate::parts::bands::zones(config, facts.salt);
    let slow = plimsoll_pool::zoned(zones, slow).map_err(BadConfig::found)?;
    let seen = plimsoll_pool::seen(model.as_ref(), slow).map_err(BadConfig::found)?;
    let kind = kind(config)?;
    // A modelled disk's profile is of all of it, however small the file behind it.
    let (costs, discipline) = predict::costs(config, facts.profile.as_ref(), kind, seen.whole_bytes, model.as_ref())?;
    let default = SchedulerOptions::default();
    let slice_idle = idle_time.map_or(default.slice_idle, |t| t.0);
    let depth = depth.unwrap_or(DEPTH_DEFAULT);
    Ok(PoolPlan {
        stack: StackConfig::default(),
        admission: Some(crate::parts::admission::config(config)?),
        throttle: *throttle,
        cores: crate::parts::cores::config(config)?,
        cache: cache.as_ref().map(|c| crate::parts::cache::plan(c, &facts.cache)).transpose()?,
        memory: memory.map(predict::memory).transpose()?,
        logs: logs
            .as_ref()
            .map(|l| crate::parts::logs::plan(l, bands.is_some(), facts.started_s_of_day))
            .transpose()?,
        bands: bands.as_ref().map(|b| crate::parts::bands::plan(b, config, facts.salt)).transpose()?,
        fence: crate::parts::fence::config(config, facts, seen.offer.size_bytes)?,
        scheduler: SchedulerPlan {
            kind,
            options: SchedulerOptions { depth, discipline, slice_idle, ..default },
            costs,
        },
        model,
        zones,
    })
}

/// Scheduler of a pool: the configured one, or the default of its kind of device.
///
/// # Errors
/// If there is no such scheduler.
pub(crate) fn kind(config: &PoolConfig) -> Result<SchedulerKind, BadConfig> {
    match &config.sched {
        Some(name) => name.get_ref().parse().map_err(|e: UnknownScheduler| BadConfig::found(e)),
        None if config.device.rbd.is_some() => Ok(SchedulerKind::Osds),
        None => Ok(SchedulerKind::default()),
    }
}

/// The device modelled by this profile.
///
/// # Errors
/// If there is no such profile, or it can't be read.
pub fn model(name: &str) -> Result<ModelPlan, BadConfig> {
    let spec = DeviceSpec::named(name).map_err(BadConfig::found)?;
    Ok(ModelPlan { spec, options: DeviceOptions::default() })
}
