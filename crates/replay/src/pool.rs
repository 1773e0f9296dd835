//! The simulated pool that a replay drives: a plan's layers over a device model without payload.

use crate::cluster::Begins;
use crate::open::VOLUME;
use plimsoll_bands::Bands;
use plimsoll_base::{Completion, Span, Time, VolumeKey};
use plimsoll_device::{DeviceOptions, DeviceSpec, DiskSpec, any};
use plimsoll_logs::Logs;
use plimsoll_pool::{
    BadPlan, Costs, ModelPlan, Models, PoolPlan, SLOW, SchedulerPlan, UNLIMITED, Wiring, compose, logs_layout, seen,
};
use plimsoll_sched::{Discipline, Late, SchedulerKind, SchedulerOptions};
use plimsoll_stack::sim::{EventQueue, SimDisk, SimWorkers};
use plimsoll_stack::{Extent, Front, FrontVolume, Layer, LayerState, Map, Offer, Stack, StackConfig, Target};
use std::fmt;

/// Reason why a pool can't be built: problem and remedy.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BadPool(pub String);

impl From<BadPlan> for BadPool {
    fn from(e: BadPlan) -> BadPool {
        BadPool(e.0)
    }
}
impl fmt::Display for BadPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
impl std::error::Error for BadPool {}

/// A device model and the name it was asked for by.
#[derive(Clone, Debug)]
pub struct DeviceChoice {
    /// As the user named it.
    pub name: String,
    /// Its parameters.
    pub spec: DeviceSpec,
}

/// Names of the embedded profiles.
pub fn device_names() -> impl Iterator<Item = &'static str> {
    any::names()
}

impl DeviceChoice {
    /// Any device by name, as [`plimsoll_device::any`] reads it.
    ///
    /// # Errors
    /// If there is no such device, or a profile file isn't one.
    pub fn named(name: &str) -> Result<DeviceChoice, BadPool> {
        let spec = DeviceSpec::named(name).map_err(|e| BadPool(e.to_string()))?;
        Ok(DeviceChoice { name: name.to_string(), spec })
    }

    /// The parameters of a plain disk.
    ///
    /// # Errors
    /// If it is none.
    pub fn disk(&self) -> Result<&DiskSpec, BadPool> {
        self.spec.disk().ok_or_else(|| BadPool(format!("device `{}` is no plain disk", self.name)))
    }
}

/// Configuration of a pool.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct PoolConfig {
    /// The scheduler.
    pub sched: SchedulerKind,
    /// Requests the device has at once; bounded by the device's own queue.
    pub depth: u32,
    /// Half width of the device's deviation from its profile, 0 to 0.5 (measuring rule: predictor and device are never
    /// the same thing with the same numbers). 0: none.
    pub mismatch: f64,
    /// Cost of a failover: a read late by no more is served after all (MittOS §3.3).
    pub failover_hop: Span,
    /// Client requests held at most; more wait outside.
    pub inflight_max: usize,
    /// Treatment of accepted reads whose promise breaks later. [`Late::Flag`] also refuses nothing at the top: all reads run,
    /// and their verdicts show the result (MT-M28).
    pub late: Late,
    /// With a layer that notes when requests leave the scheduler for the device ([`crate::cluster::Begins`]).
    pub tells_begin: bool,
    /// Varies the platters' angle and draws the mismatch.
    pub seed: u64,
}

impl Default for PoolConfig {
    fn default() -> PoolConfig {
        let stack = StackConfig::default();
        PoolConfig {
            sched: SchedulerKind::Noop,
            depth: 4,
            mismatch: 0.0,
            failover_hop: stack.failover_hop,
            inflight_max: stack.inflight_max,
            late: Late::Cancel,
            tells_begin: false,
            seed: 1,
        }
    }
}

impl PoolConfig {
    /// Admission of requests by the stack.
    pub fn stack(&self) -> StackConfig {
        StackConfig {
            inflight_max: self.inflight_max,
            failover_hop: self.failover_hop,
            flag_only: self.late == Late::Flag,
        }
    }

    /// The plan of a pool over the modelled device `spec`.
    pub fn plan(&self, spec: &DeviceSpec, costs: Costs) -> PoolPlan {
        let discipline = if spec.is_rotational() { Discipline::Sstf } else { Discipline::Fifo };
        let options = DeviceOptions { seed: self.seed, mismatch: self.mismatch };
        PoolPlan {
            stack: self.stack(),
            scheduler: SchedulerPlan {
                kind: self.sched,
                options: SchedulerOptions { discipline, ..self.scheduler() },
                costs,
            },
            model: Some(ModelPlan { spec: spec.clone(), options }),
            ..PoolPlan::new()
        }
    }

    /// Returns the scheduler's options.
    pub fn scheduler(&self) -> SchedulerOptions {
        SchedulerOptions {
            depth: self.depth,
            failover_hop: self.failover_hop,
            late: self.late,
            ..SchedulerOptions::default()
        }
    }
}

/// The layers of `plan` as the product composes them, over a modelled device without bytes. Its logs, if it has any, are new, and its bands full of data.
///
/// # Errors
/// Those of [`compose`].
pub fn composed(plan: &PoolPlan, models: &mut Models<'_>) -> Result<Wiring, BadPlan> {
    composed_over(plan, [UNLIMITED; 2], models)
}

/// The same with a cache on a fast device and an NVRAM that offer `fast`.
///
/// # Errors
/// Those of [`compose`].
pub fn composed_over(plan: &PoolPlan, fast: [Offer; 2], models: &mut Models<'_>) -> Result<Wiring, BadPlan> {
    let mut wiring = compose(plan, vec![UNLIMITED, fast[0], fast[1]], models)?.bare(SLOW);
    if let Some(l) = &plan.logs {
        let device = seen(plan.model.as_ref(), UNLIMITED)?.offer;
        let (layout, places) = logs_layout(l, plan.bands.as_ref(), device)?;
        let band_bytes = plan.bands.as_ref().map_or(0, |b| b.zone_bytes);
        wiring = wiring.instead("logs", Box::new(Logs::fresh(layout, l.config).over_bands(band_bytes)));
        if let (Some(b), Some(places)) = (&plan.bands, places) {
            wiring = wiring.instead("bands", Box::new(Bands::full(places, b.config)));
        }
    }
    Ok(wiring)
}

/// Adds a volume that lies in one extent to the front and the map, if the stack has them.
pub fn add_volume(stack: &mut Stack, now: Time, key: VolumeKey, extent: Extent) {
    let volume = FrontVolume { size_bytes: extent.len, read_only: false };
    stack.with_layer(now, |front: &mut Front, _| front.set_volume(key, volume));
    stack.with_layer(now, |map: &mut Map, _| map.set_volume(key, &[extent]));
}

/// Bytes of a sector: clients' requests are of whole ones.
const SECTOR: u32 = 512;

/// Cores that do layers' work.
const WORKERS: usize = 2;

/// One simulated pool.
pub struct Pool {
    /// Its layers, to drive by hand.
    pub stack: Stack,
    /// Disks behind the stack's ports, for layers that keep bytes of their own there; usually none.
    disks: Vec<SimDisk>,
    at_disk: EventQueue<(usize, Completion)>,
    workers: SimWorkers,
    now: Time,
    offer: Offer,
    inflight_max: usize,
    failover_hop: Span,
}

impl Drop for Pool {
    fn drop(&mut self) {
        crate::decided::note(self.stack.decisions());
    }
}

impl Pool {
    /// A pool over `device`, started at time zero, its costs unknown.
    ///
    /// # Errors
    /// If the device's parameters contradict each other or the depth is zero.
    pub fn new(device: &DeviceChoice, config: &PoolConfig) -> Result<Pool, BadPool> {
        Pool::with_costs(device, config, Costs::Unknown)
    }

    /// The same with initial knowledge of the cost of the device's requests.
    ///
    /// # Errors
    /// As [`Pool::new`].
    pub fn with_costs(device: &DeviceChoice, config: &PoolConfig, costs: Costs) -> Result<Pool, BadPool> {
        let bad = |what: BadPlan| BadPool(format!("device `{}`: {what}", device.name));
        if config.inflight_max == 0 {
            return Err(BadPool("depth 0 would serve nothing: use 1 or more".into()));
        }
        let plan = config.plan(&device.spec, costs);
        let mut wiring = composed(&plan, &mut ModelPlan::before).map_err(bad)?;
        if config.tells_begin {
            wiring = wiring.above("model", "begins", Box::new(Begins::default()));
        }
        Pool::of_stack(wiring.stack(), Vec::new(), config)
    }

    /// Layers by themselves, top first, each over the next: a predictor that is judged alone, a system that is no Plimsoll pool. There is
    /// no front and no map.
    ///
    /// # Errors
    /// If a layer isn't ready at once.
    pub fn alone(layers: Vec<Box<dyn Layer>>, config: &PoolConfig) -> Result<Pool, BadPool> {
        let mut stack = Stack::new(config.stack(), Vec::new());
        let last = layers.len() - 1;
        for (i, layer) in layers.into_iter().enumerate() {
            stack.push(layer, if i < last { vec![Target::Node(i + 1)] } else { Vec::new() });
        }
        Pool::of_stack(stack, Vec::new(), config)
    }

    /// A pool of a stack whose ports lead to `disks`; they hold what layers write, and take no time of their own.
    ///
    /// # Errors
    /// If a layer doesn't become ready.
    pub fn of_stack(stack: Stack, disks: Vec<SimDisk>, config: &PoolConfig) -> Result<Pool, BadPool> {
        let mut pool = Pool {
            offer: Offer { block_bytes: stack.offered().block_bytes.max(SECTOR), ..stack.offered() },
            stack: stack.hashing_decisions(),
            disks,
            at_disk: EventQueue::new(),
            workers: SimWorkers::new(WORKERS),
            now: Time::ZERO,
            inflight_max: config.inflight_max,
            failover_hop: config.failover_hop,
        };
        loop {
            pool.stack.start(pool.now);
            pool.collect(pool.now);
            match (pool.stack.state(), pool.next_event()) {
                (LayerState::Ready, _) => break,
                (LayerState::Recovering, at) if at.is_set() => pool.advance(at),
                (state, _) => return Err(BadPool(format!("a layer isn't ready at the start: {state:?}"))),
            }
        }
        pool.add_volume(VOLUME);
        Ok(pool)
    }

    /// Adds a volume of the whole offered size. A trace's devices, tenants and noise are separated by volumes that share their
    /// addresses, which volumes of a served pool never do.
    pub fn add_volume(&mut self, key: VolumeKey) {
        add_volume(&mut self.stack, self.now, key, Extent { device_offset: 0, len: self.offer.size_bytes });
    }

    /// Returns the time at which it is ready: zero, unless layers had to read first.
    pub fn ready_at(&self) -> Time {
        self.now
    }

    /// True if the pool has disks that hold data, so that requests need bytes.
    pub fn is_backed(&self) -> bool {
        !self.disks.is_empty()
    }

    /// Returns the time of its next event.
    pub fn next_event(&self) -> Time {
        self.stack.next_wake().min(self.at_disk.next_at()).min(self.workers.next_at())
    }

    /// Time has come to its next event.
    pub fn advance(&mut self, now: Time) {
        self.now = now;
        if self.workers.next_at() <= now {
            let (_, (node, done)) = self.workers.pop().expect("just seen");
            self.stack.worked(now, node, done);
        } else if self.at_disk.next_at() <= now {
            let (_, (d, c)) = self.at_disk.pop().expect("just seen");
            self.disks[d].answered(c.io.id);
            self.stack.device_done(now, d, c);
        } else {
            self.stack.wake(now);
        }
        self.collect(now);
    }

    /// Starts the disks' requests and the workers' tasks that layers ordered.
    pub fn collect(&mut self, now: Time) {
        while let Some((node, work)) = self.stack.next_work() {
            self.workers.begin(now, node, work);
        }
        while let Some((d, io)) = self.stack.next_device_io() {
            let c = self.disks[d].apply(io, now);
            self.at_disk.add(now, (d, c));
        }
    }

    /// Returns its offer.
    pub fn offer(&self) -> Offer {
        self.offer
    }

    /// Client requests it holds at most.
    pub fn inflight_max(&self) -> usize {
        self.inflight_max
    }

    /// Returns the cost of a failover; at least a microsecond, so that no request is refused for ever at one instant.
    pub(crate) fn failover_hop(&self) -> Span {
        self.failover_hop.max(Span::from_micros(1))
    }

    pub(crate) fn is_full(&self) -> bool {
        self.stack.inflight() == self.inflight_max
    }
}
