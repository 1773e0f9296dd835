//! The combinations of layers, each as a pool.

use super::{BLOCK, BYTES, CRITICAL, DEEP, DEVICE, OTHER, OTHER_VOLUME, SPREAD, VOLUME};
use crate::experiment::LabError;
use crate::experiment::fence::{Blank, formatted, offer_of};
use plimsoll_base::CacheMode;
use plimsoll_base::{Class, Objective, Span, TenantId, Time, VolumeKey};
use plimsoll_cache::CacheTerms;
use plimsoll_cache::{Cache, CacheConfig, Codec, Layout as CacheLayout, Shape as CacheShape};
use plimsoll_cores::{Cores, CoresConfig};
use plimsoll_device::pagecache::{Lru, PageCache};
use plimsoll_device::{AnyModel, DeviceOptions, Model, ModelLayer, PageCacheLayer};
use plimsoll_fence::FenceTerms;
use plimsoll_fence::config::DeviceKind;
use plimsoll_fence::{DiskPredictor, Fence, FenceConfig};
use plimsoll_logs::{Layout, Logs, LogsConfig, Shape};
use plimsoll_profile::{flash_batches_of, flash_predictor};
use plimsoll_replay::{DeviceChoice, Pool, PoolConfig};
use plimsoll_sched::{Discipline, DiskModel, Late, Profile, SchedulerKind, SchedulerOptions};
use plimsoll_stack::{
    Extent, Front, FrontVolume, Layer, Map, OwnTerms, Stack, StackConfig, Target, Terms, VolumeTerms,
};

/// Which layers there are beside the front, the map and the device.
#[derive(Clone, Copy, Debug)]
pub struct Combination {
    pub name: &'static str,
    pub sched: SchedulerKind,
    pub memory: bool,
    pub logs: bool,
    pub cores: bool,
    pub cache: bool,
    pub fence: bool,
}

const fn plain(name: &'static str, sched: SchedulerKind) -> Combination {
    Combination { name, sched, memory: false, logs: false, cores: false, cache: false, fence: false }
}

use SchedulerKind::{Cfq, Deadline, Noop};

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
    /// Is there a second tenant, with a volume of its own?
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

struct Building<'a> {
    nodes: Vec<(Box<dyn Layer>, Vec<Target>)>,
    c: &'a Combination,
    seed: u64,
}

fn failed(e: impl std::fmt::Display) -> LabError {
    LabError(e.to_string())
}

fn model(name: &str, seed: u64) -> Result<AnyModel, LabError> {
    let spec = DeviceChoice::named(name)?.spec;
    spec.build(DeviceOptions { seed, mismatch: SPREAD }).map_err(failed)
}

impl Building<'_> {
    /// Over the one that is pushed next.
    fn push(&mut self, layer: impl Layer) {
        let next = self.nodes.len() + 1;
        self.nodes.push((Box::new(layer), vec![Target::Node(next)]));
    }

    fn queue(&mut self, kind: SchedulerKind, discipline: Discipline, costs: DiskModel) {
        let depth = DEEP as u32;
        let options = SchedulerOptions { depth, discipline, late: Late::Keep, ..SchedulerOptions::default() };
        let next = self.nodes.len() + 1;
        self.nodes.push((kind.layer(&options, costs), vec![Target::Node(next)]));
    }

    fn upper(&mut self, cache: Option<Cache>) -> Option<usize> {
        self.push(Front::new());
        if self.c.cores {
            self.push(Cores::new(self.c.cores_config()));
        }
        let cache_at = cache.map(|cache| {
            self.push(cache);
            self.nodes.len() - 1
        });
        self.push(Map::new());
        cache_at
    }

    fn lower(&mut self, profile: &Profile, flash: Option<&AnyModel>) -> Result<Option<usize>, LabError> {
        let disk = model(DEVICE, self.seed)?;
        if self.c.memory {
            let cache = PageCache::<Lru>::new(1 << 16, disk.size_bytes() / BLOCK, Span::ZERO);
            self.push(PageCacheLayer::new(cache));
        }
        if self.c.logs {
            let layout = Layout::new(disk.size_bytes(), disk.block_bytes(), Shape::default(), 1).map_err(failed)?;
            self.push(Logs::fresh(layout, LogsConfig::default()));
        }
        let fence_at = self.c.fence.then_some(self.nodes.len());
        if self.c.fence {
            let kinds = fenced(profile, flash, self.seed)?;
            self.push(Fence::new(FenceConfig { slot: SLOT, revoke_late: false, ..FenceConfig::new(2, kinds) }));
        }
        if self.c.cache {
            self.push(Blank);
        }
        let costs = profile.disk_model().ok_or_else(|| failed("the profile has no costs"))?;
        self.queue(self.c.sched, profile.discipline(), costs);
        self.nodes.push((Box::new(ModelLayer::new(disk)), Vec::new()));
        Ok(fence_at)
    }
}

/// What the fence knows of the devices, measured beforehand on others of the kind.
fn fenced(profile: &Profile, flash: Option<&AnyModel>, seed: u64) -> Result<Vec<DeviceKind>, LabError> {
    let batches = profile.batches.as_ref().and_then(|b| b.disk.as_ref());
    let d = batches.ok_or_else(|| failed("the profile has no batches"))?;
    let disk = DiskPredictor::new(d.knots_ns(), d.transfer_ns_per_kib.into())
        .and_then(|p| p.with_first(d.first_knots_ns()))
        .map_err(LabError)?;
    let mut kinds = vec![DeviceKind::disk(disk)];
    if let Some(flash) = flash {
        let f = flash_batches_of(flash.clone(), seed).ok_or_else(|| failed("flash batches tell nothing"))?;
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

/// The pool of a combination, its tenants and volumes known.
pub fn pool(c: &Combination, profile: &Profile, seed: u64) -> Result<Pool, LabError> {
    let mut b = Building { nodes: Vec::new(), c, seed };
    let flash = c.cache.then(|| model(FLASH, seed)).transpose()?;
    let mut disks = Vec::new();
    let mut cache = None;
    if let Some(flash) = &flash {
        let layout = CacheLayout::new(CACHE_BYTES, BLOCK as u32, CACHE_SHAPE, seed).map_err(LabError)?;
        disks.push(formatted(&layout, flash.size_bytes()));
        cache = Some(Cache::new(layout, cache_config()));
    }
    let cache_at = b.upper(cache);
    let fence_at = b.lower(profile, flash.as_ref())?;
    if let (Some(flash), Some(cache_at)) = (flash, cache_at) {
        let fast = Target::Node(b.nodes.len());
        let unknown = DiskModel::unknown(flash.size_bytes());
        b.queue(Noop, Discipline::Fifo, unknown);
        b.nodes.push((Box::new(ModelLayer::new(flash)), vec![Target::Device(0)]));
        match fence_at {
            Some(fence) => {
                b.nodes[cache_at].1.push(Target::Face(fence, 1));
                b.nodes[fence].1.push(fast);
            }
            None => b.nodes[cache_at].1.push(fast),
        }
    }
    let config = PoolConfig { seed, late: Late::Keep, ..PoolConfig::default() };
    let mut stack = Stack::new(StackConfig::default(), disks.iter().map(offer_of).collect());
    for (layer, ports) in b.nodes {
        stack.push(layer, ports);
    }
    let mut pool = Pool::of_stack(stack, disks, &config).map_err(|e| failed(format!("{}: {e}", c.name)))?;
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
    let front = FrontVolume { size_bytes: BYTES, read_only: false };
    pool.stack.with_layer(now, |f: &mut Front, _| f.set_volume(volume, front));
    let extents = [Extent { device_offset, len: BYTES }];
    pool.stack.with_layer(now, |m: &mut Map, _| m.set_volume(volume, &extents));
    let cache = CacheTerms { mode: CacheMode::Through, domain: u64::from(tenant.0), bytes: CACHE_BYTES / 2 };
    let terms =
        VolumeTerms { size_bytes: BYTES, tenant: tenant.0, own: OwnTerms::of(&cache).with(&FenceTerms { slots: 1 }) };
    pool.stack.set_volume(now, volume, &terms);
}
