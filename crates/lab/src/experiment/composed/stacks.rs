//! The combinations of layers, each as a pool.

use super::{BLOCK, BYTES, CRITICAL, DEEP, DEVICE, OTHER, OTHER_VOLUME, SPREAD, VOLUME};
use crate::experiment::LabError;
use crate::experiment::fence::{Blank, formatted, offer_of};
use plimsoll_base::CacheMode;
use plimsoll_base::{Class, Objective, Span, TenantId, Time, VolumeKey};
use plimsoll_cache::CacheTerms;
use plimsoll_cache::{CacheConfig, Codec, Layout as CacheLayout, Shape as CacheShape};
use plimsoll_cores::CoresConfig;
use plimsoll_device::{AnyModel, DeviceOptions, Model};
use plimsoll_fence::FenceTerms;
use plimsoll_fence::config::DeviceKind;
use plimsoll_fence::{DiskPredictor, FenceConfig};
use plimsoll_logs::{LogsConfig, Shape};
use plimsoll_pool::{BadPlan, CachePlan, Costs, LogsPlan, MemoryPlan, ModelPlan, PoolPlan, SchedulerPlan, UNLIMITED};
use plimsoll_profile::{flash_batches_of, flash_predictor};
use plimsoll_replay::pool::{add_volume, composed_over};
use plimsoll_replay::{DeviceChoice, Pool, PoolConfig};
use plimsoll_sched::{Discipline, DiskModel, Late, Profile, SchedulerKind, SchedulerOptions};
use plimsoll_stack::{Extent, OwnTerms, Terms, VolumeTerms};

/// Layers beside the front, the map and the device.
#[derive(Clone, Copy, Debug)]
pub struct Combination {
    /// In rows.
    pub name: &'static str,
    /// The slow device's scheduler.
    pub sched: SchedulerKind,
    /// With a page cache.
    pub memory: bool,
    /// With scattered logs.
    pub logs: bool,
    /// With two cores.
    pub cores: bool,
    /// With a flash cache.
    pub cache: bool,
    /// With two slots.
    pub fence: bool,
}

const fn plain(name: &'static str, sched: SchedulerKind) -> Combination {
    Combination { name, sched, memory: false, logs: false, cores: false, cache: false, fence: false }
}

use SchedulerKind::{Cfq, Deadline, Noop};

/// All that are tried.
pub const COMBINATIONS: [Combination; 13] = [
    plain("noop", Noop),
    plain("deadline", Deadline),
    plain("cfq", Cfq),
    Combination { memory: true, ..plain("page cache, noop", Noop) },
    Combination { logs: true, ..plain("logs, noop", Noop) },
    Combination { cores: true, ..plain("cores, noop", Noop) },
    Combination { cache: true, ..plain("cache, noop", Noop) },
    Combination { fence: true, ..plain("fence, noop", Noop) },
    Combination { memory: true, logs: true, ..plain("page cache, logs, cfq", Cfq) },
    Combination { cores: true, memory: true, ..plain("cores, page cache, cfq", Cfq) },
    Combination { cores: true, fence: true, ..plain("cores, fence, cfq", Cfq) },
    Combination { cache: true, logs: true, ..plain("cache, logs, cfq", Cfq) },
    Combination { cores: true, cache: true, logs: true, fence: true, ..plain("cores, cache, logs, fence, noop", Noop) },
];

impl Combination {
    /// Returns whether there is a second tenant, with a volume of its own.
    pub fn has_two(&self) -> bool {
        self.cores || self.fence
    }

    /// Reads that each tenant has below the cores: ten at the device and ten in the scheduler, of both together; where
    /// time is fenced they take turns there, and ten more of each wait for theirs.
    pub fn reads_below(&self) -> u64 {
        match (self.fence, self.cores) {
            (true, _) => 4 * DEEP,
            (false, true) => DEEP,
            (false, false) => 2 * DEEP,
        }
    }

    /// Reads that each tenant has.
    pub fn reads(&self) -> u64 {
        self.reads_below() + if self.cores { DEEP } else { 0 }
    }

    /// One core each.
    fn cores_config(&self) -> CoresConfig {
        CoresConfig { depth: self.reads_below() as u32, revoke_late: false, ..CoresConfig::new(2) }
    }
}

/// A cached drive's flash: filled once, so that nothing is collected while it's watched.
const FLASH: &str = "sized:1G:vf-sata-60g";
const CACHE_BYTES: u64 = 512 << 20;
const CACHE_SHAPE: CacheShape = CacheShape { extent_bytes: 16 << 10, weu_bytes: 256 << 10 };
/// As long as some thirty reads take.
const SLOT: Span = Span::from_millis(250);

fn failed(e: impl std::fmt::Display) -> LabError {
    LabError(e.to_string())
}

fn model(name: &str, seed: u64) -> Result<ModelPlan, LabError> {
    Ok(ModelPlan { spec: DeviceChoice::named(name)?.spec, options: DeviceOptions { seed, mismatch: SPREAD } })
}

/// A plan's model as large as it is, of which a cache may have a part.
fn whole(plan: &ModelPlan, _size_bytes: u64) -> Result<AnyModel, BadPlan> {
    plan.before(u64::MAX)
}

/// The plan of a combination's pool.
///
/// # Errors
/// If a model can't be built, or the profile lacks what a fence needs.
pub fn plan(c: &Combination, profile: &Profile, seed: u64) -> Result<PoolPlan, LabError> {
    let flash = c.cache.then(|| model(FLASH, seed)).transpose()?;
    let fence = |kinds| FenceConfig { slot: SLOT, revoke_late: false, ..FenceConfig::new(2, kinds) };
    Ok(PoolPlan {
        cores: c.cores.then(|| c.cores_config()),
        memory: c.memory.then_some(MemoryPlan { pages: 1 << 16, hit: Span::ZERO }),
        logs: c.logs.then(|| LogsPlan { shape: Shape::default(), config: LogsConfig::default() }),
        fence: if c.fence { Some(fence(fenced(profile, flash.as_ref(), seed)?)) } else { None },
        scheduler: SchedulerPlan {
            kind: c.sched,
            options: SchedulerOptions {
                depth: DEEP as u32,
                discipline: profile.discipline(),
                late: Late::Keep,
                ..SchedulerOptions::default()
            },
            costs: Costs::Profile(Box::new(profile.clone())),
        },
        model: Some(model(DEVICE, seed)?),
        cache: flash.map(|flash| CachePlan {
            shape: CACHE_SHAPE,
            config: cache_config(),
            size_bytes: None,
            known: None,
            given_up: Vec::new(),
            absent: None,
            nvram: None,
            model: Some(flash),
        }),
        ..PoolPlan::new()
    })
}

/// Returns the fence's knowledge of the devices, measured beforehand on others of the kind.
fn fenced(profile: &Profile, flash: Option<&ModelPlan>, seed: u64) -> Result<Vec<DeviceKind>, LabError> {
    let batches = profile.batches.as_ref().and_then(|b| b.disk.as_ref());
    let d = batches.ok_or_else(|| failed("the profile has no batches"))?;
    let disk = DiskPredictor::new(d.knots_ns(), d.transfer_ns_per_kib.into())
        .and_then(|p| p.with_first(d.first_knots_ns()))
        .map_err(LabError)?;
    let mut kinds = vec![DeviceKind::disk(disk)];
    if let Some(flash) = flash {
        let f = flash_batches_of(whole(flash, 0)?, seed).ok_or_else(|| failed("flash batches tell nothing"))?;
        kinds.push(DeviceKind::flash(flash_predictor(&f)));
    }
    Ok(kinds)
}

fn cache_config() -> CacheConfig {
    CacheConfig {
        fingerprints_percent: 0,
        codec: Codec::None,
        trim: false,
        sequential_bytes: u64::MAX,
        prefetch_bytes_max: 0,
        ..CacheConfig::default()
    }
}

/// The pool of a combination, its tenants and volumes known. The flash cache holds zeroes for the slow device's data. Its drive's
/// own queue is as deep as the others.
pub fn pool(c: &Combination, profile: &Profile, seed: u64) -> Result<Pool, LabError> {
    let plan = plan(c, profile, seed)?;
    let mut disks = Vec::new();
    if c.cache {
        let layout = CacheLayout::new(CACHE_BYTES, BLOCK as u32, CACHE_SHAPE, seed).map_err(LabError)?;
        disks.push(formatted(&layout, CACHE_BYTES));
    }
    let fast = disks.first().map_or(UNLIMITED, offer_of);
    let mut wiring = composed_over(&plan, [fast, UNLIMITED], &mut whole)?;
    if let Some(flash) = plan.cache.as_ref().and_then(|c| c.model.as_ref()) {
        let options =
            SchedulerOptions { depth: DEEP as u32, discipline: Discipline::Fifo, ..SchedulerOptions::default() };
        let queue = Noop.layer(&options, DiskModel::unknown(whole(flash, CACHE_BYTES)?.size_bytes()));
        wiring = wiring.above("scheduler", "blank", Box::new(Blank)).instead("flash queue", queue);
    }
    let config = PoolConfig { seed, late: Late::Keep, ..PoolConfig::default() };
    let mut pool = Pool::of_stack(wiring.stack(), disks, &config).map_err(|e| failed(format!("{}: {e}", c.name)))?;
    let now = pool.ready_at();
    tell_tenants(&mut pool, now, c);
    tell_volume(&mut pool, now, (VOLUME, CRITICAL), 0);
    tell_volume(&mut pool, now, (OTHER_VOLUME, OTHER), BYTES);
    pool.collect(now);
    Ok(pool)
}

/// The probes' tenant has an objective, so loose that one core is enough for it; the other has none.
fn tell_tenants(pool: &mut Pool, now: Time, c: &Combination) {
    if !c.has_two() {
        return;
    }
    let objectives = vec![Objective { percentile_bp: 9900, bound: Span::from_secs(3600) }];
    let classes =
        [(CRITICAL, Class::LatencyCritical { objectives, weight: 100 }), (OTHER, Class::BestEffort { weight: 100 })];
    for (tenant, class) in classes {
        let terms = Terms::of(class, 1000);
        pool.stack.set_tenant(now, tenant, Some(&terms));
    }
}

fn tell_volume(pool: &mut Pool, now: Time, (volume, tenant): (VolumeKey, TenantId), device_offset: u64) {
    add_volume(&mut pool.stack, now, volume, Extent { device_offset, len: BYTES });
    let cache = CacheTerms { mode: CacheMode::Through, domain: u64::from(tenant.0), bytes: CACHE_BYTES / 2 };
    let terms =
        VolumeTerms { size_bytes: BYTES, tenant: tenant.0, own: OwnTerms::of(&cache).with(&FenceTerms { slots: 1 }) };
    pool.stack.set_volume(now, volume, &terms);
}
