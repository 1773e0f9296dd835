//! Replays accesses on a cache over a backend in virtual time, some clients at once.

use crate::experiment::LabError;
use crate::nitro::EXTENT_BYTES;
use crate::nitro::backend::{Backend, Store};
use crate::nitro::contents::Held;
use crate::nitro::dedup_store::{DedupStore, PAGE_EXTENTS};
use crate::nitro::extent_cache::ExtentCache;
use crate::nitro::traces::Access;
use plimsoll_base::CacheMode;
use plimsoll_base::{Data, Io, IoHead, Op, Outcome, Rng, Span, TenantId, VolumeKey};
use plimsoll_cache::{Cache, CacheConfig, Layout, Shape, format_device};
use plimsoll_cache::{CacheControl, CacheTerms};
use plimsoll_device::{AnyModel, DeviceOptions, DeviceSpec, Model, Raid0};
use plimsoll_pool::{
    BadPlan, CachePlan, Costs, FAST, ModelPlan, NVRAM, NvramPlan, PoolPlan, SLOW, SchedulerPlan, UNLIMITED, compose,
};
use plimsoll_replay::DeviceChoice;
use plimsoll_replay::pool::add_volume;
use plimsoll_sched::{Discipline, SchedulerKind, SchedulerOptions};
use plimsoll_stack::sim::SimPool;
use plimsoll_stack::{Addressed, Extent, Layer, LayerState, Offer, Offered, OwnTerms, VolumeTerms};

const VOLUME: VolumeKey = VolumeKey { id: 1, generation: 1 };
/// Nitro's platform (§3.5.4), data spindles only; both backends get the same number.
const DISK: &str = "constellation-es3-1tb";
const DISKS: u32 = 10;
const CHUNK_BYTES: u64 = 64 << 10;
/// Divisor of a recipe's pages and the containers' lists for the part that is in memory: one in eight.
const METADATA_IN_MEMORY: u64 = 8;

/// The cache in front.
#[derive(Clone, Copy, Debug)]
pub enum Front {
    /// None.
    None,
    /// The plain extent cache.
    Extents,
    /// The flash cache, and how it treats the volume.
    Nitro(CacheConfig, Shape, CacheMode),
    /// Everything is on the fast device, nothing else is there.
    AllFast,
}

/// The storage behind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Behind {
    /// A plain array.
    Plain,
    /// The deduplicating, compressing store.
    Dedup,
}

/// Setup of a replay.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// The cache.
    pub front: Front,
    /// Its bytes.
    pub cache_bytes: u64,
    /// The storage.
    pub behind: Behind,
    /// Bytes of NVRAM there.
    pub nvram_bytes: u64,
    /// If true, writes out of it cost the disks nothing.
    pub free_writes: bool,
    /// A plain array writes together what lies in one chunk.
    pub coalesces: bool,
    /// Clients, each with one request at a time.
    pub clients: usize,
    /// Requests a second of the measured part, which come at random times and wait for none before them; `None`: it is the clients', too.
    pub rate: Option<f64>,
    /// If true, all dirty data is written back when the measured part begins.
    pub write_back: bool,
    /// Turns the platters.
    pub seed: u64,
}

/// Measurements after the warm-up.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Measured {
    /// Requests per second, reads and writes.
    pub iops: f64,
    /// Mean time of a read, milliseconds.
    pub read_ms: f64,
    /// Reads that needed nothing from behind, percent.
    pub hit_percent: f64,
    /// Reads measured.
    pub reads: u64,
}

/// The extents of a volume: where they are, and what they hold at first.
pub struct Extents<'a> {
    /// An extent's address, a multiple of its size.
    pub address: &'a dyn Fn(u64) -> u64,
    /// First contents, by extent.
    pub contents: &'a [u128],
    /// Size of a request from there on: an extent, unless the drive alone is measured.
    pub bytes: u64,
}

fn bad(e: impl std::fmt::Display) -> LabError {
    LabError(e.to_string())
}

/// The array. Its drives' buffers are as small as they can be: at full size they would hold all of a scaled-down footprint.
fn array() -> Result<DeviceSpec, LabError> {
    let mut spec = DeviceChoice::named(DISK)?.disk()?.clone();
    let b = &mut spec.buffer;
    (b.segments, b.write_segments, b.segment_sectors, b.read_ahead_max_sectors) = (2, 1, 64, 0);
    let member = Box::new(DeviceSpec::Disk(Box::new(spec)));
    Ok(DeviceSpec::Raid0 { member, members: DISKS, chunk_bytes: CHUNK_BYTES })
}

/// The model of a plan as large as it is: the cache has half of the fast drive. The array's platters are turned one by one.
fn models(plan: &ModelPlan, _size_bytes: u64) -> Result<AnyModel, BadPlan> {
    let DeviceSpec::Raid0 { member, members, chunk_bytes } = &plan.spec else { return plan.before(u64::MAX) };
    let failed = |e: &dyn std::fmt::Display| BadPlan(e.to_string());
    let each = (0..u64::from(*members)).map(|i| {
        let seed = plan.options.seed * u64::from(*members) + i;
        member.build(DeviceOptions { seed, ..plan.options }).map_err(|e| failed(&e))
    });
    let striped = Raid0::new(each.collect::<Result<_, _>>()?, *chunk_bytes);
    Ok(AnyModel::Raid0(Box::new(striped.map_err(|e| failed(&e))?)))
}

/// A queue before a device, as deep as the device's own.
fn scheduler(model: &ModelPlan) -> Result<SchedulerPlan, LabError> {
    let depth = models(model, u64::MAX)?.queue_max() as u32;
    let discipline = if model.spec.is_rotational() { Discipline::Sstf } else { Discipline::Fifo };
    let options = SchedulerOptions { depth, discipline, ..SchedulerOptions::default() };
    Ok(SchedulerPlan { kind: SchedulerKind::Noop, options, costs: Costs::Unknown })
}

fn of_bytes(size_bytes: u64) -> Offer {
    Held::new(size_bytes).offer(&[])
}

/// The plan of a setup's pool over a volume of `volume_bytes`.
///
/// # Errors
/// If a model can't be built.
pub fn plan(setup: &Setup, volume_bytes: u64) -> Result<PoolPlan, LabError> {
    let fast_bytes = match setup.front {
        Front::AllFast => volume_bytes,
        _ => setup.cache_bytes,
    };
    // A read of what was never written costs a drive nothing: the one that has everything is a filled one.
    let history = if matches!(setup.front, Front::AllFast) { "" } else { "fresh:" };
    let fast_name = format!("{history}sized:{}M:vf-sata-60g", ((fast_bytes * 2) >> 20).max(512));
    let options = DeviceOptions { seed: setup.seed, mismatch: 0.0 };
    let fast = ModelPlan { spec: DeviceChoice::named(&fast_name)?.spec, options };
    let slow = ModelPlan { spec: array()?, options };
    let cache = match setup.front {
        // The plain extent cache takes the flash cache's place, whose units must fit a small one, too. It writes in place, and has no
        // NVRAM.
        Front::Extents => Some((CacheConfig::default(), Shape { weu_bytes: 32 << 10, ..Shape::default() })),
        Front::Nitro(config, shape, _) => Some((config, shape)),
        Front::None | Front::AllFast => None,
    };
    // A plain array has no recipes (NI-M13): asked for them it would read all that they are of.
    let has_recipes = setup.behind == Behind::Dedup;
    let cache = cache.map(|(config, shape)| CachePlan {
        shape,
        config: CacheConfig { recipe_bytes: if has_recipes { config.recipe_bytes } else { 0 }, ..config },
        size_bytes: None,
        known: None,
        given_up: Vec::new(),
        absent: None,
        nvram: matches!(setup.front, Front::Nitro(..)).then_some(NvramPlan { salt: setup.seed }),
        model: Some(fast.clone()),
    });
    let model = if matches!(setup.front, Front::AllFast) { fast } else { slow };
    Ok(PoolPlan { cache, scheduler: scheduler(&model)?, model: Some(model), ..PoolPlan::new() })
}

/// A pool of such a setup, started.
pub(crate) fn pool(setup: &Setup, extents: &Extents<'_>) -> Result<SimPool, LabError> {
    let n = extents.contents.len() as u64;
    let volume_bytes = (0..n).map(extents.address).max().unwrap_or(0) + extents.bytes;
    let all = || (0..n).map(|e| ((extents.address)(e) / EXTENT_BYTES, extents.contents[e as usize]));
    let mut held = Held::new(u64::MAX >> 1);
    let pages = (volume_bytes / EXTENT_BYTES).div_ceil(PAGE_EXTENTS);
    let store = || match setup.behind {
        Behind::Plain => Store::Plain,
        Behind::Dedup => {
            // Pages of what is accessed: the others are never asked for.
            let accessed = n.div_ceil(PAGE_EXTENTS);
            let containers = ((n * EXTENT_BYTES / 2) >> 22).max(8);
            let log_at = (pages * 4096).next_multiple_of(4 << 20);
            let (pages, lists) = (accessed / METADATA_IN_MEMORY, containers / METADATA_IN_MEMORY);
            Store::Dedup(Box::new(DedupStore::new(log_at, pages.max(4), lists.max(4))))
        }
    };
    let backend = || {
        let plain = Backend::new(store(), setup.nvram_bytes, all());
        Box::new(plain.with_free_writes(setup.free_writes).coalescing(setup.coalesces))
    };
    let plan = plan(setup, volume_bytes)?;
    let fast = [of_bytes(setup.cache_bytes), of_bytes(setup.nvram_bytes.max(1 << 20))];
    let offers = vec![UNLIMITED, fast[0], fast[1]];
    let mut wiring = compose(&plan, offers, &mut models)?;
    if let Front::AllFast = setup.front {
        all().for_each(|(e, c)| held.put(e * EXTENT_BYTES, EXTENT_BYTES, &Data::Content(vec![c].into())));
        wiring = wiring.ending(SLOW, "held", Box::new(held));
    } else {
        wiring = wiring.bare(SLOW).above("scheduler", "backend", backend());
        if let Front::Nitro(_, shape, _) = setup.front {
            let layout = Layout::new(setup.cache_bytes, 512, shape, setup.seed).map_err(bad)?;
            for (at, bytes) in format_device(&Layout { nvram: true, ..layout }, 0) {
                held.put(at, bytes.len() as u64, &Data::Bytes(plimsoll_base::Buf::copy_of(&bytes)));
            }
        }
        if let Front::Extents = setup.front {
            wiring = wiring.instead("cache", Box::new(ExtentCache::new(setup.cache_bytes)));
        }
        if let Some(cache) = &plan.cache {
            wiring = wiring.ending(FAST, "held", Box::new(held));
            if cache.nvram.is_some() {
                wiring = wiring.ending(NVRAM, "held nvram", Box::new(Held::new(fast[1].size_bytes)));
            }
        }
    }
    let stack = wiring.stack();
    // An array behind the cache writes what it rearranges in places of its own choice.
    let mut pool = SimPool::with_stack(Vec::new(), |_| stack).unchecked();
    if pool.start() != LayerState::Ready {
        return Err(LabError(format!("the cache isn't ready: {:?}", pool.stack().layer::<Cache>().map(Cache::status))));
    }
    let mode = if let Front::Nitro(_, _, mode) = setup.front { mode } else { CacheMode::Off };
    let terms = VolumeTerms {
        size_bytes: volume_bytes,
        tenant: 1,
        own: OwnTerms::of(&CacheTerms { mode, domain: 1, bytes: 0 }),
    };
    let now = pool.now();
    add_volume(pool.stack(), now, VOLUME, Extent { device_offset: 0, len: volume_bytes });
    pool.stack().set_volume(now, VOLUME, &terms);
    Ok(pool)
}

/// Reads, and hits among them, so far.
fn hits(pool: &mut SimPool) -> (u64, u64) {
    if let Some(c) = pool.stack().layer::<Cache>() {
        let counters = c.status().counters;
        return (counters.reads, counters.read_hits);
    }
    pool.stack().layer::<ExtentCache>().map_or((0, 0), ExtentCache::counts)
}

/// Offers one access.
fn issue(pool: &mut SimPool, a: &Access, extents: &Extents<'_>) {
    let now = pool.now();
    let (op, data) = match a.write {
        true => (Op::Write, Data::Content(vec![a.content].into())),
        false => (Op::Read, Data::Absent),
    };
    let head = IoHead::new(op, VOLUME, TenantId(1), (extents.address)(a.extent), extents.bytes, now);
    let offered = pool.offer(now, Io::new(head, data));
    assert!(matches!(offered, Offered::Accepted(_)), "a request without a deadline is never refused");
}

/// Replays `accesses` and measures those after the first `warm`.
///
/// # Errors
/// If a model can't be built.
pub fn replay(
    setup: &Setup,
    extents: &Extents<'_>,
    accesses: impl Iterator<Item = Access>,
    warm: u64,
) -> Result<Measured, LabError> {
    let mut pool = pool(setup, extents)?;
    let (mut accesses, mut over) = (accesses.fuse(), false);
    let (mut issued, mut inflight, mut ended, mut reads, mut read_time) = (0u64, 0, 0u64, 0u64, Span::ZERO);
    let (mut began, mut before) = (pool.now(), (0, 0));
    let (mut gaps, mut next_at) = (Rng::new(setup.seed, "arrivals"), None);
    loop {
        // The measured part's requests come at their own times, if they have a rate.
        let rate = setup.rate.filter(|_| issued >= warm);
        let due = rate.filter(|_| !over).map(|_| *next_at.get_or_insert(pool.now()));
        let is_due = due.is_some_and(|at| pool.next_event_at() > at);
        while !over && (is_due || (rate.is_none() && inflight < setup.clients)) {
            let Some(a) = accesses.next() else {
                over = true;
                break;
            };
            if let Some(at) = due {
                pool.run_until(at);
            }
            issue(&mut pool, &a, extents);
            (issued, inflight) = (issued + 1, inflight + 1);
            if let (Some(rate), Some(at)) = (rate, due) {
                next_at = Some(at + Span::from_secs_f64(gaps.exp1() / rate));
            }
            if is_due || (setup.rate.is_some() && issued >= warm) {
                break;
            }
        }
        while let Some(c) = pool.next_done() {
            assert_eq!(c.outcome, Outcome::Done, "models never fail");
            (inflight, ended) = (inflight - 1, ended + 1);
            if ended > warm && c.io.op == Op::Read {
                reads += 1;
                read_time += pool.now().since(c.io.arrived_at);
            }
            if ended == warm {
                (began, before) = (pool.now(), hits(&mut pool));
                if setup.write_back {
                    pool.stack().tell(began, &Addressed::new(&CacheControl::Flush));
                }
            }
        }
        // Who is free asks again before anything else happens, and what is due comes.
        let is_free = rate.is_none() && inflight < setup.clients;
        if !over && (is_due || is_free) {
            continue;
        }
        if inflight == 0 && over {
            break;
        }
        if pool.step().is_none() {
            return Err(LabError("requests are under way, and nothing happens any more".into()));
        }
    }
    let after = hits(&mut pool);
    plimsoll_replay::decided::note(pool.stack().decisions());
    let elapsed = pool.now().since(began).as_secs_f64();
    Ok(Measured {
        iops: (ended - warm) as f64 / elapsed,
        read_ms: read_time.as_millis_f64() / reads.max(1) as f64,
        hit_percent: 100.0 * (after.1 - before.1) as f64 / (after.0 - before.0).max(1) as f64,
        reads,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nitro::traces::{Generator, TRACES, Tweak};
    use plimsoll_cache::Codec;

    fn run(front: Front, behind: Behind) -> Measured {
        run_at(front, behind, None)
    }

    fn run_at(front: Front, behind: Behind, rate: Option<f64>) -> Measured {
        let g = Generator::new(&TRACES[0], Tweak::NONE, 1, 512);
        let address = |e| e / 16 * (1 << 20) + e % 16 * EXTENT_BYTES;
        let contents = g.content().to_vec();
        let extents = Extents { address: &address, contents: &contents, bytes: EXTENT_BYTES };
        let setup = Setup {
            front,
            cache_bytes: 2 << 20,
            behind,
            nvram_bytes: 256 << 10,
            free_writes: false,
            coalesces: false,
            clients: 8,
            rate,
            write_back: false,
            seed: 1,
        };
        replay(&setup, &extents, g.take(6000), 3000).unwrap()
    }

    /// Each of the fronts works over each of the backends, twice alike, and in the order that must be.
    #[test]
    fn caches_are_faster_than_none_and_slower_than_all_flash() {
        let shape = Shape { extent_bytes: 8192, weu_bytes: 32 << 10 };
        let config = CacheConfig { codec: Codec::Lz4, ..CacheConfig::default() };
        for behind in [Behind::Plain, Behind::Dedup] {
            let [none, extents, nitro, all] =
                [Front::None, Front::Extents, Front::Nitro(config, shape, CacheMode::Back), Front::AllFast]
                    .map(|f| run(f, behind));
            assert_eq!(nitro, run(Front::Nitro(config, shape, CacheMode::Back), behind), "the same seed, the same run");
            assert!(none.hit_percent == 0.0 && extents.hit_percent > 10.0, "{extents:?}");
            assert!(nitro.hit_percent > 10.0 && all.hit_percent == 0.0, "{nitro:?} {all:?}");
            assert!(nitro.read_ms < none.read_ms && all.read_ms < nitro.read_ms, "{none:?} {nitro:?} {all:?}");
        }
    }

    /// At a rate requests come as often as asked for. Below saturation they wait less than those of clients that always have one, above it more.
    #[test]
    fn at_a_rate_requests_come_at_their_own_times() {
        let front = Front::None;
        let closed = run(front, Behind::Plain);
        let [below, above] = [0.25, 4.0].map(|of| run_at(front, Behind::Plain, Some(closed.iops * of)));
        assert!((below.iops / (closed.iops * 0.25) - 1.0).abs() < 0.1, "{below:?} {closed:?}");
        assert!(
            below.read_ms < closed.read_ms && above.read_ms > 2.0 * closed.read_ms,
            "{below:?} {closed:?} {above:?}"
        );
    }

    /// A flush of everything beside requests: they go on, reads no more than half as long again as without it. The bound that
    /// docs/guides/cache.md states.
    #[test]
    fn a_flush_slows_the_foreground_only_so_much() {
        let n = 2048;
        let contents: Vec<u128> = (0..n).collect();
        let address = |e: u64| e / 16 * (1 << 20) + e % 16 * EXTENT_BYTES;
        let extents = Extents { address: &address, contents: &contents, bytes: EXTENT_BYTES };
        let shape = Shape { extent_bytes: 8192, weu_bytes: 64 << 10 };
        // Nothing is written back before it is asked for.
        let config = CacheConfig { watermark_percent: 90, ..CacheConfig::default() };
        let front = Front::Nitro(config, shape, CacheMode::Back);
        let run = |write_back| {
            let setup = Setup {
                front,
                cache_bytes: 32 << 20,
                behind: Behind::Plain,
                nvram_bytes: 1 << 20,
                free_writes: false,
                coalesces: false,
                clients: 4,
                rate: None,
                write_back,
                seed: 1,
            };
            let writes =
                (0..n as u64).map(|extent| Access { extent, content: 1 << 70 | u128::from(extent), write: true });
            // Half of what is read then was never cached.
            let mut rng = plimsoll_base::Rng::new(1, "reads");
            let reads =
                (0..2000).map(|_| rng.below(n as u64)).map(|extent| Access { extent, content: 0, write: false });
            let reads: Vec<Access> = reads.collect();
            let dirty = writes.take(1024).collect::<Vec<_>>();
            replay(&setup, &extents, dirty.into_iter().chain(reads), 1024).unwrap()
        };
        let (without, with) = (run(false), run(true));
        println!("reads take {:.3} ms, beside a flush {:.3} ms", without.read_ms, with.read_ms);
        assert!(with.read_ms < without.read_ms * 1.5, "{without:?} {with:?}");
        assert!(with.iops > without.iops / 1.5, "{without:?} {with:?}");
    }
}
