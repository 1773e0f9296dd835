//! The storage systems that are compared: Table 4.1's variants, and the plain devices under schedulers.

use crate::experiment::fence::file::FileBacked;
use crate::experiment::{Inputs, LabError, Switch};
use plimsoll_base::CacheMode;
use plimsoll_base::{Completion, Data, Io, Op, Span, Time};
use plimsoll_cache::CacheTerms;
use plimsoll_cache::{CacheConfig, Codec, Layout, Shape, Sharing, format_device};
use plimsoll_device::{AnyModel, DeviceOptions, Disk, DiskOptions, Mismatch, Model};
use plimsoll_fence::FenceTerms;
use plimsoll_fence::config::DeviceKind;
use plimsoll_fence::plan::far;
use plimsoll_fence::{DiskPredictor, FenceConfig, Predictor};
use plimsoll_pool::{BadPlan, CachePlan, Costs, ModelPlan, PoolPlan, UNLIMITED};
use plimsoll_profile::{disk_batches_of, flash_batches_of, flash_predictor};
use plimsoll_replay::pool::{add_volume, composed_over};
use plimsoll_replay::{DeviceChoice, Pool, PoolConfig, volume_of};
use plimsoll_sched::SchedulerKind;
use plimsoll_sched::batches::{DiskBatches, FlashBatches};
use plimsoll_stack::sim::{DiskFaults, SimDisk};
use plimsoll_stack::{Actions, Extent, Layer, Offer, OwnTerms, VolumeTerms};
use std::collections::BTreeMap;
use std::sync::Mutex;

pub const DISK: &str = "hdd-160g-7200";
pub const FLASH: &str = "sized:3G:aged:vf-sata-60g";
/// The same with nothing on it but what the cache writes: as it is after `blkdiscard`.
pub const DISCARDED: &str = "sized:3G:vf-sata-60g";
const SPREAD: f64 = 0.15;
/// The paper's blocks.
const SHAPE: Shape = Shape { extent_bytes: 4 << 10, weu_bytes: 256 << 10 };

/// Storage of the machines' data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Devices {
    /// The disk alone.
    Hdd,
    /// The SSD alone.
    Ssd,
    /// The disk behind a cache on the SSD.
    Hybrid(Sharing),
}

/// Kind of a virtual disk on the host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Backing {
    Partition,
    File,
    /// A file whose writes go through to the device.
    FileThrough,
}

/// Rule of a fence for a turn's first request on the disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rules {
    /// By where the arm is; if it doesn't fit, it waits for credit.
    Published,
    /// It's predicted as if a neighbour had had the arm, and sent although it may overrun.
    Ahead,
    /// The same, and it takes as long as if a neighbour had had the arm: the default.
    Steady,
}

/// A storage system.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct System {
    pub devices: Devices,
    /// Non-work-conserving slots; without them requests go to the scheduler as they come.
    pub fenced: bool,
    /// Rules of the fence; `None`: the defaults.
    pub rules: Option<Rules>,
    /// Of the disk (and of an SSD alone), where nothing is fenced.
    pub sched: SchedulerKind,
    /// Of an uncached device.
    pub backing: Backing,
    /// The SSD: [`FLASH`] or [`DISCARDED`].
    pub flash: &'static str,
    /// Bytes of the cache that each machine has, or has on average where it's shared.
    pub cache_bytes: u64,
    pub machines: u16,
    pub slots: u32,
    pub slot: Span,
    /// Machines from this number on have no slots and share what is left.
    pub fenced_machines: u16,
    /// Writes to a fenced disk end when its write cache has them.
    pub volatile: bool,
    /// The flash cache reads ahead, and doesn't keep what is read in order, as the product's does by default.
    pub reads_ahead: bool,
    /// Lend idle time.
    pub hybrid: bool,
    /// Permitted cost of that for an owner, in thousandths of its response times.
    pub lend_permille: u64,
    pub seed: u64,
}

impl System {
    /// One of Table 4.1's, or a plain device under CFQ, for four machines, with four slots of 20 ms where it has any.
    pub fn new(devices: Devices, fenced: bool, cache_bytes: u64, seed: u64) -> System {
        System {
            devices,
            fenced,
            rules: None,
            sched: SchedulerKind::Cfq,
            backing: Backing::Partition,
            flash: FLASH,
            cache_bytes,
            machines: 4,
            slots: 4,
            slot: Span::from_millis(20),
            fenced_machines: u16::MAX,
            volatile: false,
            reads_ahead: false,
            hybrid: false,
            lend_permille: 10,
            seed,
        }
    }

    pub fn virtual_fence(cache_bytes: u64, seed: u64) -> System {
        System::new(Devices::Hybrid(Sharing::PerVolume), true, cache_bytes, seed)
    }

    /// With the published rules, if that switch is turned.
    pub fn switched(self, inputs: &Inputs) -> System {
        let published = self.fenced && inputs.has(Switch::PublishedFence);
        let rules = if published { Some(Rules::Published) } else { self.rules };
        System { rules, reads_ahead: self.reads_ahead || inputs.has(Switch::ReadAhead), ..self }
    }

    /// Beginning of each machine's volume, and the part of it that its files are spread over.
    pub fn part(&self, machine: u16) -> (u64, u64) {
        let (size, most) = match self.devices {
            Devices::Ssd => (2400 << 20, 600 << 20),
            _ => (156_000_000_000, 4 << 30),
        };
        let each = (size / u64::from(self.machines)) >> 20 << 20;
        (u64::from(machine) * each, each.min(most))
    }

    /// The plan of its pool.
    pub fn plan(&self) -> Result<PoolPlan, LabError> {
        let (name, sharing) = match self.devices {
            Devices::Hdd => (DISK, None),
            Devices::Ssd => (self.flash, None),
            Devices::Hybrid(sharing) => (DISK, Some(sharing)),
        };
        let config = PoolConfig {
            sched: if self.fenced { SchedulerKind::Noop } else { self.sched },
            depth: 32,
            mismatch: SPREAD,
            seed: self.seed,
            ..PoolConfig::default()
        };
        let mut kinds = Vec::new();
        if self.fenced && name == DISK {
            kinds.push(self.disk_kind()?);
        }
        if self.fenced && (name != DISK || sharing.is_some()) {
            kinds.push(self.flash_kind()?);
        }
        let plan = config.plan(&DeviceChoice::named(name)?.spec, Costs::Unknown);
        let cache = match sharing {
            Some(sharing) => Some(self.cache(sharing, &config)?),
            None => None,
        };
        Ok(PoolPlan { cache, fence: self.fenced.then(|| self.fence(kinds)), ..plan })
    }

    pub fn pool(&self) -> Result<Pool, LabError> {
        let plan = self.plan()?;
        let mut disks = Vec::new();
        if let Some(cache) = &plan.cache {
            let model = model(self.flash, self.seed)?;
            // What the machines have together, and room for the journal.
            let bytes = (self.cache_bytes * u64::from(self.machines) + (16 << 20)).min(model.size_bytes());
            let layout = Layout::new(bytes, 4096, cache.shape, self.seed).map_err(LabError)?;
            disks.push(formatted(&layout, bytes));
        }
        let fast = disks.first().map_or(UNLIMITED, offer_of);
        let mut kept = |plan: &ModelPlan, _size_bytes| {
            let name = if plan.spec.is_rotational() { DISK } else { self.flash };
            model(name, self.seed).map_err(|e| BadPlan(e.0))
        };
        let mut wiring = composed_over(&plan, [fast, UNLIMITED], &mut kept)?;
        if plan.cache.is_some() {
            wiring = wiring.above("scheduler", "blank", Box::new(Blank));
        } else if self.backing != Backing::Partition {
            let file = FileBacked::new(self.part(1).0, self.backing == Backing::FileThrough);
            wiring = wiring.above(if self.fenced { "fence" } else { "scheduler" }, "file", Box::new(file));
        }
        let config = PoolConfig { seed: self.seed, ..PoolConfig::default() };
        // A file's metadata is written over and over, also while it is being written.
        let stack = wiring.stack();
        let stack = if self.backing == Backing::Partition { stack } else { stack.checking_overlaps(false) };
        let mut pool = Pool::of_stack(stack, disks, &config)?;
        let now = pool.ready_at();
        let size_bytes = self.part(1).0;
        for m in 0..self.machines {
            let extent = Extent { device_offset: self.part(m).0, len: size_bytes };
            add_volume(&mut pool.stack, now, volume_of(m), extent);
            let cache = CacheTerms { mode: CacheMode::Back, domain: u64::from(m) + 1, bytes: self.cache_bytes };
            let terms = VolumeTerms {
                size_bytes,
                tenant: m,
                own: OwnTerms::of(&cache)
                    .with(&FenceTerms { slots: u32::from(self.fenced && m < self.fenced_machines) }),
            };
            pool.stack.set_volume(now, volume_of(m), &terms);
        }
        pool.collect(now);
        Ok(pool)
    }

    fn cache(&self, sharing: Sharing, config: &PoolConfig) -> Result<CachePlan, LabError> {
        let options = DeviceOptions { seed: config.seed, mismatch: config.mismatch };
        let default = CacheConfig::default();
        let (sequential_bytes, prefetch_bytes_max) = match self.reads_ahead {
            true => (default.sequential_bytes, default.prefetch_bytes_max),
            false => (u64::MAX, 0),
        };
        Ok(CachePlan {
            shape: SHAPE,
            config: CacheConfig {
                fingerprints_percent: 0,
                codec: Codec::None,
                sharing,
                free_percent: 10,
                trim: false,
                sequential_bytes,
                prefetch_bytes_max,
                ..default
            },
            size_bytes: Some(self.cache_bytes * u64::from(self.machines)),
            known: None,
            given_up: Vec::new(),
            absent: None,
            nvram: None,
            model: Some(ModelPlan { spec: DeviceChoice::named(self.flash)?.spec, options }),
        })
    }

    fn fence(&self, devices: Vec<DeviceKind>) -> FenceConfig {
        let (slot, hybrid, lend_permille) = (self.slot, self.hybrid, self.lend_permille);
        let plain = FenceConfig::new(self.slots, devices);
        let (ours, steady) = match self.rules {
            None => (plain.arm_away, plain.steady),
            Some(rules) => (rules != Rules::Published, rules == Rules::Steady),
        };
        let (first_anyway, arm_away) = (ours, ours);
        FenceConfig { slot, hybrid, lend_permille, first_anyway, arm_away, steady, ..plain }
    }

    fn disk_kind(&self) -> Result<DeviceKind, LabError> {
        let d = fitted(self.flash, self.seed)?.0;
        let p = DiskPredictor::new(d.knots_ns(), d.transfer_ns_per_kib.into());
        let kind = p.and_then(|p| p.with_first(d.first_knots_ns())).map(DeviceKind::disk).map_err(LabError)?;
        let durable_writes = kind.durable_writes && !self.volatile;
        Ok(DeviceKind { durable_writes, ..kind })
    }

    /// Returns the additional cost of a request on this disk whose predecessor was another machine's, as `fence plan` takes it.
    pub fn far(&self) -> Result<Span, LabError> {
        let Predictor::Disk(d) = self.disk_kind()?.predictor else { unreachable!("it is a disk's") };
        let size = d.knots().last().map_or(0, |k| k.0);
        Ok(far(&d, size, self.machines.into()))
    }

    fn flash_kind(&self) -> Result<DeviceKind, LabError> {
        Ok(DeviceKind::flash(flash_predictor(&fitted(self.flash, self.seed)?.1)))
    }
}

/// The device of a seed. Ageing one takes seconds, and every system of an experiment needs it: copies of it are handed out.
fn model(name: &'static str, seed: u64) -> Result<AnyModel, LabError> {
    static BUILT: Mutex<BTreeMap<(&str, u64), AnyModel>> = Mutex::new(BTreeMap::new());
    let mut built = BUILT.lock().expect("no panic while held");
    if let Some(model) = built.get(&(name, seed)) {
        return Ok(model.clone());
    }
    let options = DeviceOptions { seed, mismatch: SPREAD };
    let model = DeviceChoice::named(name)?.spec.build(options).map_err(|e| LabError(e.to_string()))?;
    built.insert((name, seed), model.clone());
    Ok(model)
}

type Fitted = (DiskBatches, FlashBatches);

/// Returns the fit on this seed's drives. It is kept, as every system of an experiment needs it.
fn fitted(flash: &'static str, seed: u64) -> Result<Fitted, LabError> {
    static KNOWN: Mutex<BTreeMap<(&str, u64), Fitted>> = Mutex::new(BTreeMap::new());
    if let Some(known) = KNOWN.lock().expect("no panic while held").get(&(flash, seed)) {
        return Ok(known.clone());
    }
    let choice = DeviceChoice::named(DISK)?;
    let options = DiskOptions { seed, mismatch: Some(Mismatch { seed, spread: SPREAD }) };
    let disk = Disk::new(choice.disk()?, options).map_err(|e| LabError(e.to_string()))?;
    let undetermined = || LabError("the batches don't determine a predictor".into());
    let disk = disk_batches_of(disk, seed).ok_or_else(undetermined)?;
    let batches = flash_batches_of(model(flash, seed)?, seed).ok_or_else(undetermined)?;
    let both = (disk, batches);
    KNOWN.lock().expect("no panic while held").insert((flash, seed), both.clone());
    Ok(both)
}

pub(crate) fn offer_of(d: &SimDisk) -> Offer {
    Offer {
        size_bytes: d.size_bytes(),
        block_bytes: 4096,
        io_bytes_max: 64 << 20,
        atomic_bytes: 4096,
        queue_max: 1 << 16,
    }
}

/// The cache's device, formatted.
pub(crate) fn formatted(layout: &Layout, bytes: u64) -> SimDisk {
    let mut disk = SimDisk::new(bytes, (Span::ZERO, Span::ZERO), 1, DiskFaults::default());
    for (at, page) in format_device(layout, 0) {
        disk.write_durably(at, &page);
    }
    disk
}

/// Stands for the bytes of the disk, which nobody looks at: all zeroes.
pub(crate) struct Blank;

impl Layer for Blank {
    fn name(&self) -> &'static str {
        "blank"
    }
    fn offer(&self, below: &[Offer]) -> Offer {
        below[0]
    }
    fn submit(&mut self, _now: Time, io: Io, out: &mut Actions) {
        out.submit(0, io);
    }
    fn completed(&mut self, _now: Time, mut c: Completion, out: &mut Actions) {
        if c.io.op == Op::Read {
            c.io.data = Data::Zeroes;
        }
        out.complete(c);
    }
    fn is_idle(&self) -> bool {
        true
    }
}
