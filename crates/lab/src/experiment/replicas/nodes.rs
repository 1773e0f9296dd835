//! The nodes' storage, by kind.

use super::wait_only::WaitOnly;
use super::{DEVICE, FLASH, FLASH_BYTES, MEMORY_BYTES, MEMORY_HIT, PAGE_BYTES, Scene, Storage, tiers};
use crate::experiment::{LabError, Switch};
use plimsoll_base::Time;
use plimsoll_device::{AnyModel, DeviceSpec, FlashSpec, History, ModelLayer, PageCacheLayer};
use plimsoll_pool::{Costs, MemoryPlan, ModelPlan, PoolPlan, SLOW, UNLIMITED, compose};
use plimsoll_profile::{flash_profile_of, profile_of};
use plimsoll_replay::cluster::Begins;
use plimsoll_replay::pool::composed;
use plimsoll_replay::{DeviceChoice, Pool, PoolConfig};
use plimsoll_sched::ssd::{MittSsd, SsdPrecision};
use plimsoll_sched::{Late, Profile, SchedulerKind};
use plimsoll_stack::Offer;
use std::sync::OnceLock;

/// Channels of a part: MittOS cuts its drive of 16 in six that share none (§7.5).
const PART_CHANNELS: u32 = 2;

/// The profile of a drive of the kind, measured once.
pub(super) fn known_disk() -> Result<Costs, LabError> {
    static PROFILE: OnceLock<Profile> = OnceLock::new();
    let known = |p: &Profile| Costs::Profile(Box::new(p.clone()));
    if let Some(p) = PROFILE.get() {
        return Ok(known(p));
    }
    let device = DeviceChoice::named(DEVICE)?;
    let profile = profile_of(device.disk()?, 1, 10).map_err(|e| LabError(e.to_string()))?;
    Ok(known(PROFILE.get_or_init(|| profile)))
}

/// The kind of flash drive that a node has, whole or a part of it.
pub(super) fn flash_spec(storage: Storage) -> Result<FlashSpec, LabError> {
    let mut spec = FlashSpec::by_name(FLASH).map_err(|e| LabError(e.to_string()))?;
    if storage == Storage::FlashPart {
        spec.geometry.channels = PART_CHANNELS;
    }
    Ok(spec)
}

/// The plan of a pool over an aged drive of the kind, predicted from the profile of another one.
pub(super) fn flash(spec: &FlashSpec, config: &PoolConfig) -> Result<PoolPlan, LabError> {
    let profile = flash_profile_of(spec, FLASH_BYTES).map_err(|e| LabError(e.to_string()))?;
    let queue_depth = spec.interface.queue_depth;
    let history = History::Aged { overwrites_permille: 1_000 };
    let spec = DeviceSpec::Flash { spec: Box::new(spec.clone()), history, bytes_max: FLASH_BYTES };
    let config = PoolConfig { sched: SchedulerKind::Ssd, depth: queue_depth, ..*config };
    Ok(config.plan(&spec, Costs::Profile(Box::new(profile))))
}

/// The drive of a plan of [`flash`], by itself.
pub(super) fn drive(plan: &PoolPlan) -> Result<ModelLayer<AnyModel>, LabError> {
    let (Some(model), Costs::Profile(profile)) = (&plan.model, &plan.scheduler.costs) else {
        unreachable!("a flash drive's plan has a model and a profile")
    };
    let profile = profile.flash.as_ref().expect("a drive's profile has a drive's figures");
    let predictor = MittSsd::new(profile, SsdPrecision::FULL);
    Ok(ModelLayer::new(model.before(u64::MAX)?).with_predictor(Box::new(predictor)))
}

/// A page cache that has all of its pages but those dropped, over a disk.
fn memory(dropped_permille: u32, config: &PoolConfig) -> Result<Pool, LabError> {
    let pages = MEMORY_BYTES / PAGE_BYTES;
    let memory = Some(MemoryPlan { pages: pages as u32, hit: MEMORY_HIT });
    let plan = PoolPlan { memory, ..config.plan(&DeviceChoice::named(DEVICE)?.spec, known_disk()?) };
    // Of the disk, memory knows the part that is used.
    let slow = Offer { size_bytes: MEMORY_BYTES, ..UNLIMITED };
    let wiring = compose(&plan, vec![slow], &mut ModelPlan::before)?.bare(SLOW);
    let mut pool = Pool::of_stack(wiring.stack(), Vec::new(), config)?;
    pool.stack.with_layer(Time::ZERO, |memory: &mut PageCacheLayer, _| {
        (0..pages).for_each(|page| {
            memory.cache().insert(page);
        });
        memory.cache().drop_fraction(dropped_permille, config.seed);
    });
    Ok(pool)
}

impl Scene {
    fn disk(&self, config: &PoolConfig) -> Result<Pool, LabError> {
        let costs = if self.has(Switch::NoProfile) { Costs::Unknown } else { known_disk()? };
        if !self.has(Switch::WaitOnly) {
            return Ok(Pool::with_costs(&DeviceChoice::named(DEVICE)?, config, costs)?);
        }
        // Of what is accepted, nothing is given back for its own seek.
        let config = PoolConfig { late: Late::Keep, ..*config };
        let plan = config.plan(&DeviceChoice::named(DEVICE)?.spec, costs);
        let mut wiring = composed(&plan, &mut ModelPlan::before)?;
        if config.tells_begin {
            wiring = wiring.above("model", "begins", Box::new(Begins::default()));
        }
        wiring = wiring.above("scheduler", "wait only", Box::new(WaitOnly));
        Ok(Pool::of_stack(wiring.stack(), Vec::new(), &config)?)
    }

    pub(super) fn node(&self, node: u16, tells_begin: bool) -> Result<Pool, LabError> {
        let config = PoolConfig { seed: self.seed * 1_000 + u64::from(node), tells_begin, ..self.pool };
        match self.storage {
            Storage::Disk => self.disk(&config),
            Storage::Memory => memory(self.dropped[usize::from(node)], &config),
            Storage::Tiers => tiers::node(self.dropped[usize::from(node)], &config),
            Storage::Flash | Storage::FlashPart => {
                let spec = flash_spec(self.storage)?;
                let config = PoolConfig { inflight_max: spec.interface.queue_depth as usize, ..config };
                let wiring = composed(&flash(&spec, &config)?, &mut ModelPlan::before)?;
                Ok(Pool::of_stack(wiring.stack(), Vec::new(), &config)?)
            }
        }
    }
}
