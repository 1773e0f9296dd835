//! From a pool's section of the configuration to the plan that its stack is built from.

use crate::config::PoolConfig;
use crate::predict;
use plimsoll_device::{DeviceOptions, DeviceSpec};
use plimsoll_pool::{ModelPlan, PoolPlan, SchedulerPlan};
use plimsoll_sched::choice::UnknownScheduler;
use plimsoll_sched::{SchedulerKind, SchedulerOptions};
use plimsoll_stack::{Offer, StackConfig};

/// Requests at a device at once by default: enough to keep an SSD busy.
const DEPTH_DEFAULT: u32 = 32;

/// The plan of a pool over a device that offers `slow`.
///
/// # Errors
/// What is wrong with the configuration, or with the profiles that it names.
pub fn plan(config: &PoolConfig, slow: Offer) -> Result<PoolPlan, String> {
    // Every field is named, so that a new one can't be forgotten here.
    let PoolConfig {
        name: _,
        device,
        depth,
        sched,
        idle_time,
        memory,
        budgets,
        profile: _,
        profile_text: _,
        cores: _,
        core_depth: _,
        core_policy: _,
        core_slack: _,
        bound_best_effort_writes: _,
        worker_cpus: _,
        logs,
        cache,
        fence: _,
        tape: _,
        tape_max: _,
    } = config;
    let model = device.model.as_deref().map(model).transpose()?;
    let seen = plimsoll_pool::seen(model.as_ref(), slow).map_err(|e| e.to_string())?;
    let kind: SchedulerKind = match sched {
        Some(name) => name.get_ref().parse().map_err(|e: UnknownScheduler| e.to_string())?,
        None => SchedulerKind::default(),
    };
    // A modelled disk's profile is of all of it, however small the file behind it.
    let (costs, discipline) = predict::costs(config, kind, seen.whole_bytes, model.as_ref())?;
    let default = SchedulerOptions::default();
    let slice_idle = idle_time.map_or(default.slice_idle, |t| t.0);
    let depth = depth.unwrap_or(DEPTH_DEFAULT);
    Ok(PoolPlan {
        stack: StackConfig::default(),
        budgets: *budgets,
        cores: crate::cores::config(config)?,
        cache: cache.as_ref().map(crate::cache::plan).transpose()?,
        memory: memory.map(predict::memory).transpose()?,
        logs: logs.as_ref().map(crate::logs::plan).transpose()?,
        fence: crate::fence::config(config, seen.offer.size_bytes)?,
        scheduler: SchedulerPlan {
            kind,
            options: SchedulerOptions { depth, discipline, slice_idle, ..default },
            costs,
        },
        model,
    })
}

/// The device modelled by this profile.
///
/// # Errors
/// If there is no such profile, or it can't be read.
pub fn model(name: &str) -> Result<ModelPlan, String> {
    let spec = DeviceSpec::named(name).map_err(|e| e.to_string())?;
    Ok(ModelPlan { spec, options: DeviceOptions::default() })
}
