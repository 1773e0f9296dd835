//! MT-E18: memory, flash and disk of one node, each with a user and with noise of its own (MittOS §7.8.5).

use super::micro::hogs;
use super::nodes::{drive, flash, flash_spec, known_disk};
use super::{DEVICE, Filled, GET_BYTES, MEMORY_HIT, PAGE_BYTES, REPLICAS, Scene, Storage, Tail, fill, specs};
use crate::experiment::fence::system::{Blank, formatted, offer_of};
use crate::experiment::{Check, Experiment, Inputs, LabError, RowSpec, Sample};
use plimsoll_base::CacheMode;
use plimsoll_base::{
    Completion, Data, Io, IoHead, Op, Origin, OwnKind, Priority, PriorityClass, Rng, Span, TenantId, Time, VolumeKey,
};
use plimsoll_cache::CacheTerms;
use plimsoll_cache::{CacheConfig, Codec, Layout, Shape};
use plimsoll_client::{Get, PolicyKind, Preference};
use plimsoll_device::{Model, PageCache, PageCacheLayer};
use plimsoll_figure::plot::{Plot, Scale, Shares};
use plimsoll_pool::{CachePlan, PoolPlan, UNLIMITED};
use plimsoll_replay::cluster::gap_closed;
use plimsoll_replay::open::VOLUME;
use plimsoll_replay::pool::composed_over;
use plimsoll_replay::{DeviceChoice, Pool, PoolConfig};
use plimsoll_sched::{DiskModel, SchedulerKind};
use plimsoll_stack::{Actions, Layer, Offer, Offered, OwnTerms, VolumeTerms};
use std::ops::Range;

/// See the module's documentation.
pub struct AllInOne;

/// Places of the three groups' data: all from the first on, one after the other.
const IN_MEMORY: Range<u64> = 0..1 << 30;
const ON_FLASH: Range<u64> = IN_MEMORY.end..IN_MEMORY.end + (128 << 20);
const ON_DISK: Range<u64> = ON_FLASH.end..ON_FLASH.end + (4 << 30);
/// Everybody's.
pub(super) const SPAN_BYTES: u64 = ON_DISK.end;
/// Memory has room for what the others read, too, and the flash cache twice what is to be there.
const MEMORY_PAGES: u64 = (IN_MEMORY.end + (64 << 20)) / PAGE_BYTES;
const CACHE_BYTES: u64 = 256 << 20;
const SHAPE: Shape = Shape { extent_bytes: 4096, weu_bytes: 256 << 10 };
/// Size of the writes that fill the flash cache beforehand.
const WARM_BYTES: u64 = 64 << 10;
/// Nobody asks before: nodes have filled their caches by then.
const LEAD: Span = Span::from_secs(60);
/// Of the noisy node's pages, as in MT-E8.
const DROPPED_PERMILLE: u32 = 200;
/// Of the noise on the disk, as in MT-E5.
const THREADS: u64 = 4;
/// Size of the writes of the flash's other users, one after the other.
const WRITE_BYTES: u64 = 64 << 10;

/// A user: its name, data, deadline, and the mean time between two of its gets.
struct User {
    name: &'static str,
    data: Range<u64>,
    deadline: Span,
    gap: Span,
}

const USERS: [User; 3] = [
    User { name: "on disk", data: ON_DISK, deadline: Span::from_millis(20), gap: Span::from_millis(40) },
    User { name: "on flash", data: ON_FLASH, deadline: Span::from_millis(2), gap: Span::from_millis(20) },
    User { name: "in memory", data: IN_MEMORY, deadline: Span::from_micros(100), gap: Span::from_millis(5) },
];

/// Passes everything on, and keeps one write of its own under way beyond what is above: another's on the same drive.
struct Writer {
    from: u64,
    bytes: u64,
    rng: Rng,
}

impl Writer {
    fn write(&mut self, now: Time, out: &mut Actions) {
        let offset = self.from + self.rng.below(self.bytes / WRITE_BYTES) * WRITE_BYTES;
        let mut head = IoHead::new(Op::Write, VolumeKey::POOL, TenantId(1), offset, WRITE_BYTES, now);
        (head.id, head.origin) = (out.new_id(), Origin::Own(OwnKind::Fill));
        out.submit(0, Io::new(head, Data::Zeroes));
    }
}

impl Layer for Writer {
    fn name(&self) -> &'static str {
        "writer"
    }
    /// The front part of the drive.
    fn offer(&self, below: &[Offer]) -> Offer {
        Offer { size_bytes: self.from, ..below[0] }
    }
    fn start(&mut self, _: Time, _: &[Offer], out: &mut Actions) {
        out.wake_at(Time::ZERO + LEAD);
    }
    fn wake(&mut self, now: Time, out: &mut Actions) {
        self.write(now, out);
    }
    fn submit(&mut self, _: Time, io: Io, out: &mut Actions) {
        out.submit(0, io);
    }
    fn completed(&mut self, now: Time, c: Completion, out: &mut Actions) {
        if c.io.tenant == TenantId(1) && c.io.offset >= self.from {
            return self.write(now, out);
        }
        out.complete(c);
    }
    fn is_idle(&self) -> bool {
        true
    }
}

/// A node; with `dropped_permille` of its pages gone it is the noisy one, whose flash others write, too. The page cache is above the flash
/// cache, as a host's is above bcache: a pool of the product has it below.
pub(super) fn node(dropped_permille: u32, config: &PoolConfig) -> Result<Pool, LabError> {
    let mut memory: PageCache = PageCache::new(MEMORY_PAGES as u32, SPAN_BYTES / PAGE_BYTES, MEMORY_HIT);
    // Everything was in memory once: a read that isn't served from there may be refused.
    for page in 0..SPAN_BYTES / PAGE_BYTES {
        memory.insert(page);
    }
    let flash = flash(&flash_spec(Storage::Flash)?, config)?;
    let cache = CachePlan {
        shape: SHAPE,
        config: cache_config(),
        size_bytes: None,
        known: None,
        given_up: Vec::new(),
        absent: None,
        nvram: None,
        model: flash.model.clone(),
    };
    let plan = PoolPlan { cache: Some(cache), ..config.plan(&DeviceChoice::named(DEVICE)?.spec, known_disk()?) };
    let drive = drive(&flash)?;
    let flash_bytes = drive.model().size_bytes();
    let layout = Layout::new(CACHE_BYTES, 4096, SHAPE, config.seed).map_err(LabError)?;
    let held = formatted(&layout, flash_bytes);
    // The cache has a part of the drive.
    let fast = Offer { size_bytes: CACHE_BYTES, ..offer_of(&held) };
    let mut wiring = composed_over(&plan, [fast, UNLIMITED], &mut |m, _| m.before(u64::MAX))?;
    wiring = wiring.instead("flash", Box::new(drive));
    // A queue that asks the drive.
    wiring = wiring.instead("flash queue", SchedulerKind::Ssd.layer(&flash.scheduler.options, DiskModel::unknown(0)));
    wiring = wiring.above("cache", "memory", Box::new(PageCacheLayer::new(memory)));
    wiring = wiring.above("scheduler", "blank", Box::new(Blank));
    if dropped_permille > 0 {
        let rng = Rng::new(config.seed, "writer");
        wiring = wiring.above("flash", "writer", Box::new(Writer { from: CACHE_BYTES, bytes: flash_bytes / 2, rng }));
    }
    let mut pool = Pool::of_stack(wiring.stack(), vec![held], config)?;
    let terms = VolumeTerms {
        size_bytes: SPAN_BYTES,
        tenant: 0,
        own: OwnTerms::of(&CacheTerms { mode: CacheMode::Through, domain: 0, bytes: 0 }),
    };
    let now = pool.ready_at();
    pool.stack.set_volume(now, VOLUME, &terms);
    pool.collect(now);
    ON_FLASH.step_by(WARM_BYTES as usize).for_each(|offset| read_alone(&mut pool, offset, WARM_BYTES));
    let now = pool.ready_at();
    pool.stack.with_layer(now, |memory: &mut PageCacheLayer, _| {
        let memory = memory.cache();
        for page in 0..SPAN_BYTES / PAGE_BYTES {
            memory.drop_page(page);
            if IN_MEMORY.contains(&(page * PAGE_BYTES)) {
                memory.insert(page);
            }
        }
        memory.drop_fraction(dropped_permille, config.seed);
    });
    if pool.ready_at() > Time::ZERO + LEAD {
        return Err(LabError(format!("a node's caches weren't full before {:?}", pool.ready_at())));
    }
    Ok(pool)
}

/// Without deduplication and compression, and what is read in order is cached like anything else.
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

/// Reads, and waits until nothing happens in the pool any more before the users come.
fn read_alone(pool: &mut Pool, offset: u64, len: u64) {
    let now = pool.ready_at();
    let head = IoHead::new(Op::Read, VOLUME, TenantId(0), offset, len, now);
    let offered = pool.stack.offer(now, Io::new(head, Data::Absent));
    assert!(matches!(offered, Offered::Accepted(_)), "a read without a deadline is never refused");
    pool.collect(now);
    while pool.next_event() < Time::ZERO + LEAD {
        pool.advance(pool.next_event());
    }
    let done = pool.stack.next_done().expect("nothing else is under way");
    assert!(done.outcome.is_done(), "models never fail: {:?}", done.outcome);
}

struct Results {
    /// By user: without noise, base, mitt.
    tails: Vec<[Tail; 3]>,
}

const LINES: [&str; 3] = ["no noise", "base", "mitt"];

fn rows_of(r: Option<&Results>) -> Vec<Filled> {
    let mut rows: Vec<Filled> = Vec::new();
    let mut row = |spec: RowSpec, value: &dyn Fn(&Results) -> Option<f64>| rows.push((spec, r.and_then(value)));
    for (u, user) in USERS.iter().enumerate() {
        let name = user.name;
        for (l, line) in LINES.iter().enumerate() {
            for percent in [50.0, 90.0, 95.0, 99.0] {
                row(RowSpec::new(format!("{name}: {line}, p{percent}"), "ms"), &|r| Some(r.tails[u][l].at(percent)));
            }
        }
        for (l, line) in LINES.iter().enumerate() {
            let what = format!("{name}: {line}, above the deadline and four hops");
            // A refusal and the next try.
            let most = user.deadline + Span::from_micros(4 * HOP_US);
            row(RowSpec::new(what, "%"), &|r| Some(r.tails[u][l].above(most.as_millis_f64())));
        }
        for percent in [95.0, 99.0] {
            let what = format!("{name}: gap between base and no noise closed by mitt at p{percent}");
            let similar = "We obtained results similar to Figure 4";
            let spec =
                RowSpec::new(what, "%").paper_says(Check::AtLeast(90.0), similar).note("taken as Fig. 4's nine tenths");
            row(spec, &|r| {
                let [quiet, base, mitt] = &r.tails[u];
                gap_closed(base.at(percent), mitt.at(percent), quiet.at(percent)).map(|g| 100.0 * g)
            });
        }
    }
    rows
}

const HOP_US: u64 = 300;

/// The gets of all users in the order of their arrivals, and whose each is.
fn gets(seed: u64, length: Span) -> (Vec<Get>, Vec<usize>) {
    let mut all: Vec<(Get, usize)> = Vec::new();
    for (u, user) in USERS.iter().enumerate() {
        let mut rng = Rng::new(seed, user.name);
        let mut at = Time::ZERO + LEAD;
        loop {
            at += Span::from_nanos((rng.exp1() * user.gap.as_nanos() as f64).round() as u64);
            if at >= Time::ZERO + LEAD + length {
                break;
            }
            let offset = user.data.start + rng.below((user.data.end - user.data.start) / GET_BYTES) * GET_BYTES;
            let get = Get {
                number: 0,
                arrived_at: at,
                until: Time::NEVER,
                client: 0,
                replicas: (0..REPLICAS).collect(),
                offset,
                len: GET_BYTES,
                draw: rng.next_u64(),
                limit: Some(user.deadline),
                refusable: false,
            };
            all.push((get, u));
        }
    }
    all.sort_by_key(|(get, u)| (get.arrived_at, *u));
    let (mut gets, whose): (Vec<Get>, Vec<usize>) = all.into_iter().unzip();
    gets.iter_mut().zip(0..).for_each(|(get, number)| get.number = number);
    (gets, whose)
}

impl Experiment for AllInOne {
    fn id(&self) -> &'static str {
        "MT-E18"
    }
    fn title(&self) -> &'static str {
        "Three users in memory, flash cache and disk of one node, all three noisy"
    }
    fn source(&self) -> &'static str {
        "MittOS §7.8.5"
    }
    fn device(&self) -> &'static str {
        DEVICE
    }
    fn notes(&self) -> Vec<String> {
        vec![
            "three nodes, each a page cache over a flash cache (ours, for bcache) over a disk under CFQ; one volume with the data of three              users: 1 GiB in memory, 128 MiB on flash, 4 GiB on the disk; deadlines 0.1, 2 and 20 ms; a hop takes 0.3 ms"
                .into(),
            "a pool of the product has its page cache below the flash cache; here it is above, as a host's is above bcache, and the \
             flash cache's drive tells its inside; reads are at random, so its read-ahead is off"
                .into(),
            "on the first node, which all ask first: four threads read 4 KiB at random from the disk, one writes 64 KiB at a time to the              flash beside the cache, a fifth of the pages is gone"
                .into(),
        ]
    }
    fn rows(&self, _: &Inputs) -> Vec<RowSpec> {
        specs(rows_of(None))
    }
    fn sample(&self, seed: u64, inputs: &Inputs) -> Result<Sample, LabError> {
        let length = Span::from_secs(inputs.length(120, 20, 3));
        let mut scene = Scene::new(REPLICAS, 1, seed);
        scene.storage = Storage::Tiers;
        scene.order = Preference::Placement;
        scene.hop_us = HOP_US as f64;
        scene.warm = Time::ZERO + LEAD + Span::from_secs(1);
        let (gets, whose) = gets(seed, length);
        scene.gets = gets;
        scene.dropped = vec![0; usize::from(REPLICAS)];
        let tails = |scene: &Scene, kind| {
            let played = scene.play(kind, Span::from_millis(20))?;
            let mine = |u| {
                let each: Vec<_> = played.each.iter().zip(&whose).map(|(r, &w)| r.filter(|_| w == u)).collect();
                Tail { failed: 0, ..scene.tail(&each, 1) }
            };
            Ok::<_, LabError>([mine(0), mine(1), mine(2)])
        };
        let quiet = tails(&scene, PolicyKind::Base)?;
        scene.dropped[0] = DROPPED_PERMILLE;
        scene.hogs = hogs(
            THREADS,
            &[0],
            Span::from_secs(3600),
            4096,
            Priority { class: PriorityClass::BestEffort, level: 7 },
            seed,
        );
        let (base, mitt) = (tails(&scene, PolicyKind::Base)?, tails(&scene, PolicyKind::Mitt)?);
        let tails = quiet.into_iter().zip(base).zip(mitt).map(|((q, b), m)| [q, b, m]).collect();
        let results = Results { tails };
        let mut sample = Sample::default();
        for (user, tails) in USERS.iter().zip(&results.tails) {
            sample.plots.push(Plot {
                title: format!("The user whose data are {}", user.name),
                x_label: "response, ms".into(),
                y_label: "gets at most that long, %".into(),
                scale: Scale::Log,
                shares: Shares::Linear,
                curves: LINES.iter().zip(tails).map(|(line, t)| t.curve(line)).collect(),
            });
        }
        fill(&mut sample, rows_of(Some(&results)));
        Ok(sample)
    }
}
