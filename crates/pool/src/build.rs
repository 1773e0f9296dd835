//! The order of a pool's layers.

use crate::plan::{BadPlan, BandsPlan, CachePlan, LogsPlan, ModelPlan, PoolPlan, SchedulerPlan};
use crate::wiring::{To, Wiring};
use plimsoll_bands::{Bands, Places};
use plimsoll_cache::{Cache, Layout as CacheLayout, WEUS_MIN};
use plimsoll_cores::Cores;
use plimsoll_device::pagecache::Lru;
use plimsoll_device::{AnyModel, Model, ModelLayer, PageCache, PageCacheLayer, Zones, ZonesLayout, ZonesSpec};
use plimsoll_fence::Fence;
use plimsoll_fence::config::check_slots;
use plimsoll_logs::{Layout as LogsLayout, Logs};
use plimsoll_nvram::Nvram;
use plimsoll_sched::admission::Admission;
use plimsoll_sched::ssd::{MittSsd, SsdPrecision};
use plimsoll_sched::{Discipline, DiskModel, SchedulerKind, SchedulerOptions};
use plimsoll_stack::ranges::RANGE_BYTES;
use plimsoll_stack::{Front, Layer, Map, Offer, Stack};
use plimsoll_throttle::Throttle;

/// The slow device's number: the pool's own.
pub const SLOW: usize = 0;
/// The fast device's number: the cache's.
pub const FAST: usize = 1;
/// The NVRAM's number.
pub const NVRAM: usize = 2;

/// The offer of a device that limits nothing: what stands behind a model that is alone ([`Wiring::bare`]).
pub const UNLIMITED: Offer =
    Offer { size_bytes: u64::MAX, block_bytes: 1, io_bytes_max: u64::MAX, atomic_bytes: u32::MAX, queue_max: u32::MAX };

/// Bytes of a page in memory.
const PAGE_BYTES: u64 = 4096;
/// Pages of the longest trim or zeroes that a page cache takes without keeping others waiting: it looks at each.
const RANGE_PAGES: u64 = 4096;
/// The same in bytes of a modelled drive, which is busy for their time.
const MODEL_RANGE_BYTES: u64 = 16 << 20;

/// Builds the model of a plan before a device of this size.
pub type Models<'a> = dyn FnMut(&ModelPlan, u64) -> Result<AnyModel, BadPlan> + 'a;

/// Builds the pool of `plan` over devices that offer `offers`: the slow one, then the fast one and the NVRAM if there is a cache that has
/// them, then handles of the slow one that the scheduler `osds` reads replicas by.
///
/// # Errors
/// If a layer's configuration is out of its range, a layer doesn't fit its device, or a device that the plan needs is missing.
pub fn build(plan: &PoolPlan, offers: Vec<Offer>) -> Result<Stack, BadPlan> {
    Ok(compose(plan, offers, &mut ModelPlan::before)?.stack())
}

/// Composes the pool of `plan` as [`build`] does, with models that `models` builds, and leaves its layers open to changes by name.
///
/// # Errors
/// As [`build`].
pub fn compose(plan: &PoolPlan, offers: Vec<Offer>, models: &mut Models<'_>) -> Result<Wiring, BadPlan> {
    let PoolPlan { stack, admission, throttle, cores, cache, memory, logs, bands, fence, scheduler, model, zones } =
        plan;
    let cache = cache.as_ref();
    let devices = 1 + usize::from(cache.is_some()) + usize::from(cache.is_some_and(|c| c.nvram.is_some()));
    if offers.len() < devices {
        return Err(BadPlan(format!("the pool needs {devices} devices, and {} are there", offers.len())));
    }
    let mut modelled = |m: &ModelPlan, device: usize| Ok(ModelLayer::new(models(m, offers[device].size_bytes)?));
    let model = model.as_ref().map(|m| modelled(m, SLOW)).transpose()?;
    let zones = zones.map(|spec| zones_layout(spec, offers[SLOW])).transpose()?;
    let slow = zones.map_or(offers[SLOW], |z| Offer { size_bytes: z.size_bytes(), ..offers[SLOW] });
    let below = model.as_ref().map_or(slow, |m| m.offer(&[slow]));
    let mut w = Wiring::new(*stack, offers.clone());
    if let Some(config) = admission {
        config.room.map_or(Ok(()), |r| r.check()).map_err(|e| BadPlan(format!("admission: {e}")))?;
        w.chain("admission", Box::new(Admission::new(*config, stack.failover_hop)));
    }
    // Above the front, which makes several requests of an odd one: a limit is of clients' requests.
    if *throttle {
        w.chain("throttle", Box::new(Throttle::new()));
    }
    let parts = [
        cache.map(|c| c.shape.range_bytes()),
        memory.as_ref().map(|_| RANGE_PAGES * PAGE_BYTES),
        logs.as_ref().map(|_| plimsoll_logs::config::RANGE_BYTES),
        model.as_ref().map(|_| MODEL_RANGE_BYTES),
    ];
    let parts = parts.into_iter().flatten().fold(RANGE_BYTES, u64::min);
    w.chain("front", Box::new(Front::new().with_parts(parts)));
    if let Some(config) = cores {
        config.check().map_err(BadPlan)?;
        let mut cores = Cores::new(config.clone());
        plan.expected().into_iter().for_each(|times| cores.expect(&times));
        w.chain("cores", Box::new(cores));
    }
    let mut flash_model = None;
    if let Some(c) = cache {
        flash_model = c.model.as_ref().map(|m| modelled(m, FAST)).transpose()?;
        let seen = flash_model.as_ref().map_or(offers[FAST], |m| m.offer(&[offers[FAST]]));
        let seen = Offer { size_bytes: seen.size_bytes.min(offers[FAST].size_bytes), ..seen };
        w.chain("cache", Box::new(cache_layer(c, &seen)?));
    }
    let map = Map::new();
    w.chain(
        "map",
        Box::new(match fence {
            Some(f) => map.with_pieces(f.piece_bytes()),
            None => map,
        }),
    );
    if let Some(m) = memory {
        if m.pages == 0 {
            return Err(BadPlan("memory: 0 pages: at least one is needed".into()));
        }
        let pages = PageCache::<Lru>::new(m.pages, below.size_bytes / PAGE_BYTES, m.hit);
        w.chain("memory", Box::new(PageCacheLayer::new(pages)));
    }
    if let Some(l) = logs {
        let (layout, places) = logs_layout(l, bands.as_ref(), below)?;
        // Home addresses are the bands' own: the logs are left out of both alike.
        let band_bytes = bands.as_ref().map_or(0, |b| b.zone_bytes);
        w.chain("logs", Box::new(Logs::new(layout, l.config).over_bands(band_bytes)));
        if let (Some(b), Some(places)) = (bands, places) {
            w.chain("bands", Box::new(Bands::new(places, b.config)));
        }
    } else if bands.is_some() {
        return Err(BadPlan(
            "bands: only logs over them make writes durable without a band's copy: plan logs, too".into(),
        ));
    }
    if let Some(f) = fence {
        let wrong = |what| BadPlan(format!("fence: {what}"));
        f.check().and_then(|()| check_slots(f.slots, f.slot, &f.devices, f.arm_away)).map_err(wrong)?;
        if f.devices.len() != 1 + usize::from(cache.is_some()) {
            return Err(wrong(format!("{} devices are described, but the pool's are another number", f.devices.len())));
        }
        w.chain("fence", Box::new(Fence::new(f.clone())));
    }
    let has_room = admission.is_some_and(|a| a.room.is_some());
    let (queue, model) = scheduled(scheduler, has_room, model, below.size_bytes)?;
    w.chain("scheduler", queue);
    if let Some(model) = model {
        w.chain("model", Box::new(model));
    }
    // Below the model: a drive takes its time for a write that it refuses, too.
    if let Some(zones) = zones {
        w.chain("zones", Box::new(Zones::new(zones)));
    }
    w.end_chain(To::Device(SLOW));
    if scheduler.kind == SchedulerKind::Osds {
        // Handles of the slow device's bytes that read from one host each.
        (devices..offers.len()).for_each(|handle| w.port("scheduler", To::Device(handle)));
    }
    if let Some(c) = cache {
        let drive = if flash_model.is_some() { To::Layer("flash queue") } else { To::Device(FAST) };
        let mut flash = drive;
        if let Some(n) = c.nvram {
            let offer = offers[NVRAM];
            let nvram = Nvram::new(offer.size_bytes, offer.block_bytes, n.salt);
            let nvram = nvram.map_err(|e| BadPlan(format!("cache: {e}")))?.with_units(u64::from(c.shape.weu_bytes));
            w.beside("nvram", Box::new(nvram), vec![To::Device(NVRAM), drive]);
            flash = To::Layer("nvram");
        }
        if let Some(model) = flash_model {
            // It takes no more than its queue holds.
            let depth = model.model().queue_max() as u32;
            let rotational = c.model.as_ref().is_some_and(|m| m.spec.is_rotational());
            let discipline = if rotational { Discipline::Sstf } else { Discipline::Fifo };
            let options = SchedulerOptions { depth, discipline, ..SchedulerOptions::default() };
            let queue = SchedulerKind::Noop.layer(&options, DiskModel::unknown(model.model().size_bytes()));
            w.beside("flash queue", queue, vec![To::Layer("flash")]);
            w.beside("flash", Box::new(model), vec![To::Device(FAST)]);
        }
        // The cache's device is behind the fence, too, by a face of its own.
        match fence {
            Some(_) => {
                w.port("cache", To::Face("fence", 1));
                w.port("fence", flash);
            }
            None => w.port("cache", flash),
        }
    }
    Ok(w)
}

/// The layout of a pool's logs on a device that offers `device`, and the places of the bands below them, if there are any.
///
/// # Errors
/// If they don't fit the device.
pub fn logs_layout(
    logs: &LogsPlan,
    bands: Option<&BandsPlan>,
    device: Offer,
) -> Result<(LogsLayout, Option<Places>), BadPlan> {
    if let Some(b) = bands {
        let (places, layout) = b.places(device, logs.shape.extents_max)?;
        return Ok((layout, Some(places)));
    }
    let layout = LogsLayout::new(device.size_bytes, device.block_bytes, logs.shape, 0);
    Ok((layout.map_err(|e| BadPlan(format!("logs: {e}")))?, None))
}

/// A device as the layers above its model see it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Seen {
    /// Its offer to the layers above.
    pub offer: Offer,
    /// Bytes of the whole modelled device, which may be larger than the device behind it; those of the offer without a model.
    pub whole_bytes: u64,
}

/// The zones of a device that offers `device`.
///
/// # Errors
/// If it can't be divided so.
pub fn zones_layout(spec: ZonesSpec, device: Offer) -> Result<ZonesLayout, BadPlan> {
    ZonesLayout::new(device.size_bytes, device.block_bytes, spec).map_err(|e| BadPlan(format!("zones: {e}")))
}

/// The offer of a device that offers `device` behind its zones, if it has such.
///
/// # Errors
/// If it can't be divided so.
pub fn zoned(zones: Option<ZonesSpec>, device: Offer) -> Result<Offer, BadPlan> {
    let zones = zones.map(|spec| zones_layout(spec, device)).transpose()?;
    Ok(zones.map_or(device, |z| Offer { size_bytes: z.size_bytes(), ..device }))
}

/// Returns how a device that offers `offer` is seen behind the model of `plan`, if there is one.
///
/// # Errors
/// If the model's parameters contradict each other.
pub fn seen(plan: Option<&ModelPlan>, offer: Offer) -> Result<Seen, BadPlan> {
    let Some(model) = plan.map(|m| m.before(offer.size_bytes)).transpose()? else {
        return Ok(Seen { offer, whole_bytes: offer.size_bytes });
    };
    let whole_bytes = model.size_bytes();
    Ok(Seen { offer: ModelLayer::new(model).offer(&[offer]), whole_bytes })
}

fn cache_layer(c: &CachePlan, fast: &Offer) -> Result<Cache, BadPlan> {
    let wrong = |e: String| BadPlan(format!("cache: {e}"));
    c.shape.check().map_err(wrong)?;
    let layout = CacheLayout::new(fast.size_bytes, fast.block_bytes, c.shape, 0).map_err(wrong)?;
    let layout = CacheLayout { nvram: c.nvram.is_some(), ..layout };
    let weu_bytes = u64::from(c.shape.weu_bytes);
    let size_min = weu_bytes * u64::from(WEUS_MIN);
    if let Some(size) = c.size_bytes.filter(|size| *size < size_min) {
        return Err(wrong(format!("size {size} is too small: it needs {size_min} bytes at least")));
    }
    let weus = c.size_bytes.map_or(layout.weus, |b| (b / weu_bytes).min(u64::from(layout.weus)) as u32);
    let config = plimsoll_cache::CacheConfig { weus_max: c.config.weus_max.min(weus), ..c.config };
    let cache = Cache::new(layout, config).with_given_up(c.given_up.iter().map(|g| (g.key(), g.since)));
    let cache = cache.with_absent(c.absent.clone());
    Ok(match &c.known {
        Some(known) => cache.with_known(known.iter().map(|k| (k.key(), k.behind))),
        None => cache,
    })
}

/// The scheduler, and the model with the predictor that the scheduler needs.
type Scheduled = (Box<dyn Layer>, Option<ModelLayer<AnyModel>>);

fn scheduled(
    s: &SchedulerPlan,
    has_room: bool,
    model: Option<ModelLayer<AnyModel>>,
    below_bytes: u64,
) -> Result<Scheduled, BadPlan> {
    let options = SchedulerOptions { has_room, ..s.options };
    if s.options.depth == 0 {
        return Err(BadPlan("depth 0 would serve nothing".into()));
    }
    if let crate::Costs::Profile(p) = &s.costs {
        p.check().map_err(|what| BadPlan(format!("the profile of `{}`: {what}", p.device.name)))?;
    }
    if s.kind == SchedulerKind::Ssd {
        let shown = model.and_then(|m| m.model().flash().map(|f| f.page_bytes()).map(|page_bytes| (m, page_bytes)));
        let Some((model, page_bytes)) = shown else {
            let what = "sched `ssd` predicts from a flash drive's inside, which only a modelled one shows: name a flash \
                        `model`, or use sched `blackbox`";
            return Err(BadPlan(what.into()));
        };
        let predictor = match &s.costs {
            crate::Costs::Unknown => MittSsd::unprofiled(),
            crate::Costs::Profile(p) => {
                let flash = p.flash.as_ref();
                let flash =
                    flash.ok_or_else(|| BadPlan("profile: has no `flash` part, which sched `ssd` needs".into()))?;
                if flash.page_bytes != page_bytes {
                    let (theirs, name) = (flash.page_bytes, &p.device.name);
                    return Err(BadPlan(format!(
                        "the profile of `{name}` has pages of {theirs} bytes, and the device has {page_bytes}"
                    )));
                }
                MittSsd::new(flash, SsdPrecision::FULL)
            }
        };
        let queue = s.kind.layer(&options, DiskModel::unknown(0));
        return Ok((queue, Some(model.with_predictor(Box::new(predictor)))));
    }
    // A modelled disk's profile is of all of it, however small the device behind it.
    let size_bytes = model.as_ref().map_or(below_bytes, |m| m.model().size_bytes());
    Ok((s.kind.layer(&options, s.costs.of_disk(size_bytes)?), model))
}
