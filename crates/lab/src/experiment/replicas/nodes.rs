//! The nodes' storage, by kind.

use super::{DEVICE, FLASH, FLASH_BYTES, MEMORY_BYTES, MEMORY_HIT, PAGE_BYTES, Scene, Storage, tiers};
use crate::experiment::LabError;
use plimsoll_device::{
    DeviceOptions, Flash, FlashOptions, FlashSpec, History, Mismatch, ModelLayer, PageCache, PageCacheLayer, SpecError,
};
use plimsoll_profile::{flash_profile_of, profile_of};
use plimsoll_replay::{DeviceChoice, Pool, PoolConfig};
use plimsoll_sched::ssd::{MittSsd, SsdPrecision};
use plimsoll_sched::{Discipline, DiskModel, Profile, SchedulerOptions};
use plimsoll_stack::Layer;
use std::sync::OnceLock;

/// Channels of a part: MittOS cuts its drive of 16 in six that share none (§7.5).
const PART_CHANNELS: u32 = 2;

/// The profile of a drive of the kind, measured once.
pub(super) fn known_disk() -> Result<DiskModel, LabError> {
    static PROFILE: OnceLock<Profile> = OnceLock::new();
    if let Some(p) = PROFILE.get() {
        return Ok(p.disk_model().expect("a disk's profile has a disk's model"));
    }
    let device = DeviceChoice::named(DEVICE)?;
    let profile = profile_of(device.disk()?, 1, 10).map_err(|e| LabError(e.to_string()))?;
    Ok(PROFILE.get_or_init(|| profile).disk_model().expect("a disk's profile has a disk's model"))
}

/// The kind of flash drive that a node has, whole or a part of it.
pub(super) fn flash_spec(storage: Storage) -> Result<FlashSpec, LabError> {
    let mut spec = FlashSpec::by_name(FLASH).map_err(|e| LabError(e.to_string()))?;
    if storage == Storage::FlashPart {
        spec.geometry.channels = PART_CHANNELS;
    }
    Ok(spec)
}

/// An aged drive of the kind, predicted from the profile of another one.
pub(super) fn flash(spec: &FlashSpec, config: &PoolConfig) -> Result<ModelLayer<Flash>, LabError> {
    let failed = |e: SpecError| LabError(e.to_string());
    let profile = flash_profile_of(spec, FLASH_BYTES).map_err(failed)?;
    let options = FlashOptions {
        seed: config.seed,
        mismatch: Some(Mismatch { seed: config.seed, spread: config.mismatch }),
        history: History::Aged { overwrites_permille: 1_000 },
        bytes_max: Some(FLASH_BYTES),
    };
    let profile = profile.flash.expect("a drive's profile has a drive's figures");
    let predictor = Box::new(MittSsd::new(&profile, SsdPrecision::FULL));
    Ok(ModelLayer::new(Flash::new(spec, options).map_err(failed)?).with_predictor(predictor))
}

/// A page cache that has all of its pages but those dropped, over a disk.
fn memory(dropped_permille: u32, config: &PoolConfig) -> Result<Pool, LabError> {
    let pages = MEMORY_BYTES / PAGE_BYTES;
    let mut cache: PageCache = PageCache::new(pages as u32, pages, MEMORY_HIT);
    for page in 0..pages {
        cache.insert(page);
    }
    cache.drop_fraction(dropped_permille, config.seed);
    let model = DeviceChoice::named(DEVICE)?.spec.at_most(MEMORY_BYTES);
    let options = DeviceOptions { seed: config.seed, mismatch: config.mismatch };
    let device = model.build(options).map_err(|e| LabError(e.to_string()))?;
    let scheduler = SchedulerOptions { discipline: Discipline::Sstf, ..config.scheduler() };
    let layers: Vec<Box<dyn Layer>> = vec![
        Box::new(PageCacheLayer::new(cache)),
        config.sched.layer(&scheduler, known_disk()?),
        Box::new(ModelLayer::new(device)),
    ];
    Ok(Pool::of_layers(layers, config)?)
}

impl Scene {
    pub(super) fn node(&self, node: u16, tells_begin: bool) -> Result<Pool, LabError> {
        let config = PoolConfig { seed: self.seed * 1_000 + u64::from(node), tells_begin, ..self.pool };
        match self.storage {
            Storage::Disk => Ok(Pool::with_model(&DeviceChoice::named(DEVICE)?, &config, Some(known_disk()?))?),
            Storage::Memory => memory(self.dropped[usize::from(node)], &config),
            Storage::Tiers => tiers::node(self.dropped[usize::from(node)], &config),
            Storage::Flash | Storage::FlashPart => {
                let spec = flash_spec(self.storage)?;
                let config = PoolConfig { inflight_max: spec.interface.queue_depth as usize, ..config };
                Ok(Pool::of_layers(vec![Box::new(flash(&spec, &config)?)], &config)?)
            }
        }
    }
}
