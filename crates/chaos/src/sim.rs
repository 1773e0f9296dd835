//! Runs plans in virtual time: the node's own stack over simulated disks, which lose their power between one life and the next.

use crate::oracle::{Asked, Flag, Oracle};
use crate::plan::{Lies, Plan, VOLUME_BYTES_MAX};
use crate::work::{End, Operation, Step, Work};
use plimsoll_base::CacheMode;
use plimsoll_base::{Buf, Data, Io, IoError, IoFlags, IoHead, Op, Outcome, Rng, Span, TenantId, VolumeKey};
use plimsoll_cache::{CacheControl, CacheTerms};
use plimsoll_cores::CoresControl;
use plimsoll_device::pagecache::Planted as PagePlanted;
use plimsoll_device::{DeviceOptions, DeviceSpec, ModelLayer, PageCacheLayer};
use plimsoll_fence::{FenceControl, FenceTerms};
use plimsoll_logs::LogsControl;
use plimsoll_node::config::{Config, PoolConfig};
use plimsoll_node::open::build_stack;
use plimsoll_node::plan::Facts;
use plimsoll_pool::KnownVolume;
use plimsoll_sched::cfq::CfqControl;
use plimsoll_stack::sim::{DiskFaults, SimDisk, SimPool};
use plimsoll_stack::{
    Addressed, Extent, Front, FrontVolume, Layer, LayerState, Map, Message, Offer, OwnTerms, Terms, VolumeTerms,
};
use plimsoll_store::superblock::{Region, RegionKind};
use plimsoll_throttle::{Limit, ThrottleTerms};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

const SECTOR: u64 = 512;
/// Bytes of the pool's device, the cache's, and its NVRAM.
const BYTES: [u64; 3] = [16 << 20, 10 << 20, 1 << 20];
/// Runs of a pool, with a restart between two.
const LIVES: u64 = 4;
/// Requests in flight at most.
const IN_FLIGHT_MAX: usize = 48;
/// No request and no operation takes longer, in virtual time.
const HANG: Span = Span::from_secs(600);
/// Nor in events.
const HANG_EVENTS: u64 = 1_000_000;

/// A mistake to plant, which the oracle must find.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Planted {
    /// All disks lie.
    Lies(Lies),
    /// The page cache keeps what was changed while it was read.
    KeepOverlapped,
}

/// Counts of a run.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Tally {
    /// Requests that were answered.
    pub requests: u64,
    /// Reads that were refused for their deadline.
    pub refused: u64,
    /// Power losses while requests were in flight.
    pub power_losses: u64,
    /// Ends in order.
    pub stops: u64,
    /// Starts that a power loss cut off.
    pub interrupted_starts: u64,
    /// The operator's changes.
    pub operations: u64,
    /// Units compared by the oracle.
    pub compared: u64,
}

impl Tally {
    /// Adds another run's.
    pub fn add(&mut self, other: Tally) {
        self.requests += other.requests;
        self.refused += other.refused;
        self.power_losses += other.power_losses;
        self.stops += other.stops;
        self.interrupted_starts += other.interrupted_starts;
        self.operations += other.operations;
        self.compared += other.compared;
    }
}

/// A volume as the node's store would know it.
struct Volume {
    key: VolumeKey,
    size_bytes: u64,
    mode: CacheMode,
    /// Only the cache may have the latest of it.
    behind: bool,
    tenant: usize,
}

struct Run {
    plan: Plan,
    planted: Option<Planted>,
    pool: SimPool,
    oracle: Oracle,
    volumes: Vec<Volume>,
    /// A volume that is being deleted: what waits for its limit fails.
    deleted: Option<VolumeKey>,
    /// The pool ends in order.
    stopping: bool,
    rng: Rng,
    tally: Tally,
}

/// Runs the plan of `seed` through several restarts.
///
/// # Errors
/// Failures that were found.
pub fn run(seed: u64, planted: Option<Planted>) -> Result<Tally, String> {
    let plan = Plan::draw(seed, false);
    let mut rng = Rng::new(seed, "chaos lives");
    let sizes: Vec<u64> = plan.volumes.iter().map(|v| v.size_bytes).collect();
    let oracle = Oracle::new(seed, &sizes);
    let (config, _) = parsed(&plan)?;
    let volumes: Vec<Volume> = plan
        .volumes
        .iter()
        .enumerate()
        .map(|(n, v)| Volume {
            key: VolumeKey { id: n as u32 + 1, generation: 1 },
            size_bytes: v.size_bytes,
            mode: v.cache.map_or(config.cache.as_ref().map_or(CacheMode::Off, |c| c.mode), mode_of),
            behind: false,
            tenant: v.tenant,
        })
        .collect();
    let disks = blank(&plan, &config, &mut rng)?;
    let pool = SimPool::with_stack(disks, |_| plimsoll_stack::Stack::new(Default::default(), Vec::new()));
    let mut run =
        Run { plan, planted, pool, oracle, volumes, deleted: None, stopping: false, rng, tally: Tally::default() };
    let lived = run.lives(seed);
    lived.map_err(|e| format!("{e}\n  {}", run.plan.summary()))?;
    Ok(Tally { compared: run.oracle.compared(), ..run.tally })
}
fn mode_of(name: &str) -> CacheMode {
    match name {
        "off" => CacheMode::Off,
        "through" => CacheMode::Through,
        _ => CacheMode::Back,
    }
}

fn parsed(plan: &Plan) -> Result<(PoolConfig, Config), String> {
    let mut config =
        Config::parse(&plan.toml(), Path::new("/chaos/node.toml")).map_err(|e| format!("{e}\n{}", plan.toml()))?;
    let pool = config.pool.remove(0);
    Ok((pool, config))
}

fn offer_of(disk: &SimDisk) -> Offer {
    let block_bytes = disk.block_bytes() as u32;
    Offer { size_bytes: disk.size_bytes(), block_bytes, io_bytes_max: 64 << 20, atomic_bytes: 512, queue_max: 1 << 16 }
}

/// The offer of a device behind a modelled drive.
fn seen(model: Option<&str>, disk: &SimDisk) -> Result<Offer, String> {
    let Some(name) = model else { return Ok(offer_of(disk)) };
    let spec = DeviceSpec::named(name).map_err(|e| e.to_string())?.at_most(disk.size_bytes());
    let model = ModelLayer::new(spec.build(DeviceOptions::default()).map_err(|e| e.to_string())?);
    Ok(model.offer(&[offer_of(disk)]))
}

/// Formatted disks, as the node makes them.
fn blank(plan: &Plan, config: &PoolConfig, rng: &mut Rng) -> Result<Vec<SimDisk>, String> {
    let us = Span::from_micros;
    let latencies = [(us(20), us(900)), (us(2), us(200)), (us(1), us(20))];
    let mut disks = Vec::new();
    for n in 0..3 {
        let block = if n < 2 && rng.chance(0.3) { 4096 } else { 512 };
        disks.push(SimDisk::new(BYTES[n], latencies[n], rng.next_u64(), DiskFaults::default()).with_blocks_of(block));
    }
    if config.logs.is_some() {
        let seen = seen(config.device.model.as_deref(), &disks[0])?;
        let region = Region { kind: RegionKind::Home, offset: 0, len: seen.size_bytes };
        format(&mut disks[0], |f| {
            let made = plimsoll_node::parts::logs::format_if_blank(config, f, region, seen.block_bytes, [7, 0], false);
            made.map(drop).map_err(|e| e.to_string())
        })?;
    }
    if let Some(cache) = &config.cache {
        let seen = seen(cache.model.as_deref(), &disks[1])?;
        let region = Region { kind: RegionKind::Home, offset: 0, len: seen.size_bytes };
        let block = seen.block_bytes;
        format(&mut disks[1], |f| {
            let made = plimsoll_node::parts::cache::format_if_blank(cache, f, region, block, 1, 11);
            made.map(drop).map_err(|e| e.to_string())
        })?;
    }
    disks.truncate(match &plan.cache {
        None => 1,
        Some(c) if !c.nvram => 2,
        Some(_) => 3,
    });
    Ok(disks)
}

/// Copies to a disk what `write` writes to a file of its size.
fn format(disk: &mut SimDisk, write: impl FnOnce(&File) -> Result<(), String>) -> Result<(), String> {
    let io = |e: std::io::Error| format!("a temporary file: {e}");
    let file = tempfile::tempfile().map_err(io)?;
    file.set_len(disk.size_bytes()).map_err(io)?;
    write(&file)?;
    let mut bytes = vec![0; disk.size_bytes() as usize];
    file.read_exact_at(&mut bytes, 0).map_err(io)?;
    for (at, chunk) in (0u64..).step_by(4096).zip(bytes.chunks(4096)) {
        if chunk.iter().any(|&b| b != 0) {
            disk.write_durably(at, chunk);
        }
    }
    Ok(())
}

/// Two pieces, so that requests cross from one to the other, and volumes lie between each other.
fn extents_of(key: VolumeKey) -> [Extent; 2] {
    let half = VOLUME_BYTES_MAX / 2;
    [0, 1].map(|h| Extent { device_offset: (h * 3 + u64::from(key.id - 1)) * half, len: half })
}

impl Run {
    /// Runs the pool several times, with a restart between two.
    fn lives(&mut self, seed: u64) -> Result<(), String> {
        for life in 0..LIVES {
            if life > 0 {
                self.plan = self.plan.otherwise(&mut self.rng, false);
            }
            if life > 0 && self.rng.chance(0.2) {
                self.interrupted_start()?;
            }
            let what = |e| format!("life {life}: {e}");
            self.start().map_err(what)?;
            self.read_all().map_err(what)?;
            let mut work = Work::new(seed, life);
            let steps = 20 + self.rng.below(500);
            for _ in 0..steps {
                let sizes: Vec<u64> = self.volumes.iter().map(|v| v.size_bytes).collect();
                self.step(work.next(&self.plan, &sizes)).map_err(what)?;
            }
            if life + 1 < LIVES {
                self.end(work.end()).map_err(what)?;
            }
        }
        let at_end = |e| format!("at the end: {e}");
        self.rest().map_err(at_end)?;
        self.operate(Operation::Checkpoint).map_err(at_end)?;
        self.read_all().map_err(at_end)?;
        self.end(End::Term).map_err(at_end)?;
        self.start().map_err(at_end)?;
        self.read_all().map_err(at_end)?;
        Ok(())
    }

    /// Builds the pool anew over the disks as they are.
    fn build(&mut self) -> Result<(), String> {
        let (config, all) = parsed(&self.plan)?;
        let mut facts = Facts::default();
        if config.cache.is_some() {
            let known = |v: &Volume| KnownVolume { id: v.key.id, generation: v.key.generation, behind: v.behind };
            facts.cache.generation = 1;
            facts.cache.known = Some(self.volumes.iter().map(known).collect());
            let page = self.pool.disk(1).peek(0, 4096);
            facts.cache.nvram_salt = plimsoll_cache::Layout::decode(page.as_slice()).map_or(0, |l| l.salt);
        }
        let stub = SimPool::with_stack(Vec::new(), |_| plimsoll_stack::Stack::new(Default::default(), Vec::new()));
        let mut disks = std::mem::replace(&mut self.pool, stub).lose_power();
        for (disk, on) in disks.iter_mut().zip([true, true, false]) {
            let lies = match self.planted {
                Some(Planted::Lies(lies)) if on => lies,
                _ => Lies::default(),
            };
            disk.set_faults(DiskFaults { flush_lies: lies.flush, fua_lies: lies.fua, ..DiskFaults::default() });
        }
        let mut wrong = None;
        self.pool = SimPool::with_stack(disks, |offers| {
            build_stack(&config, &facts, offers).map_or_else(
                |e| {
                    wrong = Some(e);
                    plimsoll_stack::Stack::new(Default::default(), Vec::new())
                },
                |(_, stack)| stack,
            )
        });
        if let Some(e) = wrong {
            return Err(format!("the stack can't be built: {e}"));
        }
        if self.planted == Some(Planted::KeepOverlapped) {
            self.pool.with_layer(|l: &mut PageCacheLayer, _| l.plant(PagePlanted::KeepOverlapped));
        }
        // Volumes are small: so are the parts that long ranges are cut to, in most runs.
        let parts = [4 << 10, 16 << 10, 64 << 10, 16 << 20][Rng::new(self.plan.seed, "chaos parts").below(4) as usize];
        self.pool.with_layer(|f: &mut Front, _| f.set_parts(parts));
        let now = self.pool.now();
        for (n, t) in all.tenant.iter().enumerate() {
            let terms = Terms::of(t.class().map_err(|e| e.to_string())?, 1024);
            self.pool.stack().set_tenant(now, TenantId(n as u16 + 1), Some(&terms));
        }
        self.pool.stack().start(now);
        for v in 0..self.volumes.len() {
            self.publish(v);
        }
        Ok(())
    }

    /// Tells the layers of a volume.
    fn publish(&mut self, volume: usize) {
        let v = &mut self.volumes[volume];
        v.behind |= self.plan.has_cache() && v.mode == CacheMode::Back;
        let key = v.key;
        let cache = CacheTerms {
            mode: v.mode,
            domain: [0, v.tenant as u64 + 1][usize::from(self.plan.seed.is_multiple_of(2))],
            bytes: self.plan.part_bytes(),
        };
        let slots = u32::from(self.plan.fence.is_some() && volume == 0);
        let limit = self.plan.limit_iops.filter(|_| volume + 1 == self.plan.volumes.len()).map(Limit::per_second);
        let own = OwnTerms::of(&cache).with(&FenceTerms { slots });
        let own = own.with(&ThrottleTerms { requests: limit, bytes: None });
        let terms = VolumeTerms { size_bytes: v.size_bytes, tenant: v.tenant as u16 + 1, own };
        let front = FrontVolume { size_bytes: v.size_bytes, read_only: false };
        self.pool.with_layer(|f: &mut Front, _| f.set_volume(key, front));
        self.pool.with_layer(|m: &mut Map, _| m.set_volume(key, &extents_of(key)));
        let now = self.pool.now();
        self.pool.stack().set_volume(now, key, &terms);
        self.collect_orders();
    }

    /// Sends on what layers ordered when they were called directly.
    fn collect_orders(&mut self) {
        self.pool.with_layer(|_: &mut Front, _| ());
    }

    fn start(&mut self) -> Result<(), String> {
        self.build()?;
        match self.pool.start() {
            LayerState::Ready => Ok(()),
            state => Err(format!("after its start it is {state:?}")),
        }
    }

    /// A start that a power loss cuts off.
    fn interrupted_start(&mut self) -> Result<(), String> {
        self.build()?;
        for _ in 0..self.rng.below(60) {
            let now = self.pool.now();
            self.pool.stack().start(now);
            self.collect_orders();
            if self.pool.step().is_none() {
                break;
            }
        }
        self.tally.interrupted_starts += 1;
        Ok(()) // the next start takes the power
    }

    fn end(&mut self, end: End) -> Result<(), String> {
        if end == End::Kill {
            self.tally.power_losses += 1;
            self.oracle.crashed();
            return Ok(()); // the next start takes the power
        }
        self.tally.stops += 1;
        self.stopping = true;
        let now = self.pool.now();
        self.pool.stack().stop(now);
        self.collect_orders();
        self.until("the end in order", |r| r.oracle.in_flight() == 0 && r.pool.stack().is_idle())?;
        let now = self.pool.now();
        self.pool.stack().drain(now);
        self.collect_orders();
        self.until("the drain", |r| r.pool.stack().is_idle())?;
        let nvram = self.plan.cache.as_ref().is_some_and(|c| c.nvram);
        for n in 0..1 + usize::from(self.plan.has_cache()) + usize::from(nvram) {
            self.pool.disk(n).abandoned();
            let head = IoHead::new(Op::Flush, VolumeKey::POOL, TenantId(0), 0, 0, now);
            self.pool.disk(n).apply(Io::new(head, Data::Absent), now);
        }
        self.stopping = false;
        self.oracle.stopped();
        Ok(())
    }

    fn tell(&mut self, message: &impl Message) {
        let now = self.pool.now();
        self.pool.stack().tell(now, &Addressed::new(message));
        self.collect_orders();
    }

    fn step(&mut self, step: Step) -> Result<(), String> {
        match step {
            Step::Ask(asked) => {
                self.until("a free place", |r| r.oracle.in_flight() < IN_FLIGHT_MAX)?;
                self.ask(asked)
            }
            Step::Pause(events) => {
                for _ in 0..events {
                    self.pool.step();
                    self.collect()?;
                }
                Ok(())
            }
            Step::Rest => self.rest(),
            Step::Operate(operation) => {
                self.tally.operations += 1;
                self.operate(operation)
            }
        }
    }

    fn ask(&mut self, asked: Asked) -> Result<(), String> {
        let now = self.pool.now();
        // The others are the protocol's: there is none here.
        let flag = Some(asked.flag).filter(|f| matches!(f, Flag::NoHole | Flag::FastZero | Flag::FastNoHole));
        let asked = Asked { flag: flag.unwrap_or_default(), ..asked };
        let (n, payload) = self.oracle.ask(asked, self.plan.block_bytes());
        let tenant = TenantId(1 + (n % 3) as u16);
        let key = self.volumes[asked.volume].key;
        let mut head = IoHead::new(asked.op, key, tenant, asked.offset, asked.len, now);
        head.tag = n;
        head.flags = if asked.fua { IoFlags::FUA } else { IoFlags::NONE };
        head.flags = match asked.flag {
            Flag::NoHole => head.flags.with(IoFlags::NO_HOLE),
            Flag::FastZero => head.flags.with(IoFlags::FAST_ZERO),
            Flag::FastNoHole => head.flags.with(IoFlags::NO_HOLE).with(IoFlags::FAST_ZERO),
            _ => head.flags,
        };
        if asked.op == Op::Read && n.is_multiple_of(16) {
            head.deadline = now + Span::from_millis(1 + n % 20);
            if n.is_multiple_of(48) {
                head.flags = head.flags.with(IoFlags::WAITS);
            }
        }
        let data = if payload.is_empty() { Data::Absent } else { Data::Bytes(Buf::copy_of(&payload)) };
        if let plimsoll_stack::Offered::Busy(_) = self.pool.offer(now, Io::new(head, data)) {
            self.tally.refused += 1;
            self.oracle.failed(n);
        }
        self.collect()
    }

    /// Judges what was answered.
    fn collect(&mut self) -> Result<(), String> {
        while let Some(c) = self.pool.next_done() {
            let n = c.io.tag;
            self.tally.requests += 1;
            match (c.outcome, c.io.op) {
                (Outcome::Busy { .. }, Op::Read) => {
                    self.tally.refused += 1;
                    self.oracle.failed(n);
                }
                (Outcome::Done, Op::Read) => {
                    let mut bytes = vec![0; c.io.len as usize];
                    c.io.data.copy_to(&mut bytes);
                    self.oracle.read(n, &bytes)?;
                }
                (Outcome::Done, Op::BlockStatus) => {
                    let Data::Status(extents) = &c.io.data else {
                        return Err(format!("a block status without extents: {:?}", c.io.head));
                    };
                    let extents: Vec<(u64, bool)> = extents.iter().map(|e| (e.len, e.zero)).collect();
                    self.oracle.status(n, &extents)?;
                }
                (Outcome::Done, _) => self.oracle.done(n),
                (Outcome::Failed(IoError::NotSupported), Op::WriteZeroes) if c.io.flags.has(IoFlags::FAST_ZERO) => {
                    self.oracle.failed(n)
                }
                (Outcome::Failed(IoError::Unavailable), _) if self.deleted == Some(c.io.volume) => {
                    self.oracle.failed(n)
                }
                // A pool that ends doesn't begin the rest of a long range.
                (Outcome::Failed(IoError::Unavailable), op) if self.stopping && op.is_range() => self.oracle.failed(n),
                (outcome, _) => return Err(format!("{:?} ended {outcome:?}", c.io.head)),
            }
        }
        Ok(())
    }

    /// Lets things happen until `is_over`.
    fn until(&mut self, what: &str, is_over: impl Fn(&mut Run) -> bool) -> Result<(), String> {
        let (latest, events) = (self.pool.now() + HANG, self.pool.events() + HANG_EVENTS);
        loop {
            self.collect()?;
            if is_over(self) {
                return Ok(());
            }
            if self.pool.step().is_none() || self.pool.now() > latest || self.pool.events() > events {
                let (oldest, asked, now) = (self.pool.stack().oldest(), self.oracle.asked(), self.pool.now());
                let cache = self.pool.stack().layer::<plimsoll_cache::Cache>().map(|c| c.activity());
                let logs = self.pool.stack().layer::<plimsoll_logs::Logs>().map(|l| l.status(now));
                return Err(format!(
                    "a hang at {now:?}: {what} never comes; oldest {oldest:?}, in flight {asked:?}; cache {cache:?}; logs {logs:?}"
                ));
            }
        }
    }

    fn rest(&mut self) -> Result<(), String> {
        self.until("an answer", |r| r.oracle.in_flight() == 0)
    }

    /// Reads all volumes, and asks for their block status.
    fn read_all(&mut self) -> Result<(), String> {
        for op in [Op::BlockStatus, Op::Read, Op::BlockStatus] {
            for volume in 0..self.volumes.len() {
                let size = self.volumes[volume].size_bytes;
                let mut at = 0;
                while at < size {
                    let len = (96 << 10).min(size - at);
                    self.step(Step::Ask(Asked { op, volume, offset: at, len, fua: false, flag: Flag::None }))?;
                    at += len;
                }
            }
            self.rest()?;
        }
        Ok(())
    }

    fn operate(&mut self, operation: Operation) -> Result<(), String> {
        match operation {
            Operation::Mode(volume, mode) => {
                self.volumes[volume].mode = mode_of(mode);
                self.publish(volume);
            }
            Operation::Grow(volume, bytes) => {
                self.volumes[volume].size_bytes = bytes;
                self.oracle.grown(volume, bytes);
                self.publish(volume);
            }
            Operation::Remake(volume, bytes) => self.remake(volume, bytes)?,
            Operation::Checkpoint => {
                self.tell(&CacheControl::Flush);
                self.tell(&LogsControl::Checkpoint);
            }
            Operation::CacheBytes(bytes) => self.tell(&CacheControl::Bytes(bytes)),
            Operation::LoggedWrite(bytes) => self.tell(&LogsControl::LoggedWriteBytes(bytes)),
            Operation::IdleUs(us) => self.tell(&CfqControl::SliceIdle(Span::from_micros(us))),
            Operation::Fingerprints(percent) => self.tell(&CacheControl::FingerprintsPercent(percent as u32)),
            Operation::Slack(low, high) => {
                let (low, high) = (Span::from_micros(low), Span::from_micros(high));
                self.tell(&CoresControl::Slack { low, high, poll_windows: 4 });
            }
            Operation::Limit(iops) => {
                self.plan.limit_iops = iops;
                self.publish(self.volumes.len() - 1);
            }
            Operation::Inject(..) => return Err("faults are injected by a live engine only".into()),
            Operation::Slots(slots, ms) => {
                self.tell(&FenceControl::Slots { slots: slots as u32, slot: Span::from_millis(ms) })
            }
        }
        self.collect()
    }

    /// Deletes a volume as the node does, and makes another in its place.
    fn remake(&mut self, volume: usize, bytes: u64) -> Result<(), String> {
        let key = self.volumes[volume].key;
        self.pool.with_layer(|f: &mut Front, _| f.remove_volume(key));
        self.deleted = Some(key);
        self.until("the end of a deleted volume's requests", |r| r.oracle.in_flight_of(volume) == 0)?;
        let now = self.pool.now();
        self.pool.stack().forget_volume(now, key);
        self.collect_orders();
        self.until("the end of what layers do for a deleted volume", |r| !r.pool.stack().is_using(key))?;
        let now = self.pool.now();
        self.pool.with_layer(|m: &mut Map, out| {
            m.remove_volume(key);
            m.zero(now, u64::from(key.generation), extents_of(key).to_vec(), out);
        });
        let zeroed = std::cell::Cell::new(None);
        self.until("the end of zeroing", |r| {
            zeroed.set(r.pool.with_layer(|m: &mut Map, _| m.next_zeroed()).flatten());
            zeroed.get().is_some()
        })?;
        if let Some((_, Err(e))) = zeroed.get() {
            return Err(format!("zeroing failed: {e:?}"));
        }
        let v = &mut self.volumes[volume];
        v.key.generation += 1;
        (v.size_bytes, v.behind) = (bytes / SECTOR * SECTOR, false);
        self.oracle.remade(volume, bytes);
        self.publish(volume);
        Ok(())
    }
}
