//! A flash drive: channels, chips, planes, a translation layer, and the controller before them.
//!
//! ```text
//!  submit ─► controller ─► (writes: link in) ─► buffer ─► translation ─► unit queues ⇄ channels
//!                                                 │                          │
//!            done ◄────────────── (reads: link out) ◄────────────────────────┘
//! ```
//! A request is cut into pages. Each page is an operation of one unit (a die, or a plane where planes are independent). The
//! other work of the translation layer (moving pages, erasing) queues in the same units, so its cost falls on the requests
//! behind it. `docs/design/flash-model.md` has the rules and the assumptions.
//!
//! [`Flash`] shows its inside to a layer that manages flash itself (MittSSD): which chip an offset is on, what
//! waits there. [`BlackBox`] is the same drive without sight.

mod black_box;
mod engine;
mod ftl;
mod hybrid;
#[cfg(test)]
mod oracle;
mod page_ftl;
mod spec;

pub(crate) use spec::in_range;

use std::collections::VecDeque;

use plimsoll_base::{Rng, Time};
use plimsoll_stack::inside::{FlashInside, UnitWork};
use serde::{Deserialize, Serialize};

use crate::disk::{Mismatch, SpecError};
use crate::model::{Done, Model, Op, Request, assert_in_range};
use engine::{Ended, Engine, Kind, NONE, Owner};
use ftl::{Ftl, Shape, Step};

pub use black_box::BlackBox;
pub use engine::Outstanding;
pub use ftl::{FtlStats, Wear};
pub use spec::{FlashGeometry, FlashSpec, FlashTiming, FtlSpec, HybridFtlSpec, Interface, PageFtlSpec, WriteBuffer};

/// Use of a drive before time zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum History {
    /// Nothing was ever written; such pages read as zeroes without touching the flash.
    #[default]
    Fresh,
    /// Every page was written once, in order.
    Filled,
    /// The first pages were, the others never.
    Part {
        /// Written pages, in thousandths of the logical capacity.
        permille: u32,
    },
    /// Filled, then overwritten at random, page by page.
    Aged {
        /// Overwrites in thousandths of the logical capacity; 3,000 reach a steady state.
        overwrites_permille: u32,
    },
}

/// Options in which two drives of one kind differ.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct FlashOptions {
    /// Draws the overwrites of an aged drive.
    pub seed: u64,
    /// Makes this drive differ from its specification, as a real one would.
    pub mismatch: Option<Mismatch>,
    /// Use of the drive before time zero.
    pub history: History,
    /// Shrinks it to about this logical capacity ([`FlashSpec::scaled_to`]).
    pub bytes_max: Option<u64>,
}

/// Place of a page on the drive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The channel.
    pub channel: u32,
    /// The chip on that channel.
    pub chip: u32,
    /// The unit (die or plane) over the drive: the queue it waits in.
    pub unit: u32,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    tag: u64,
    op: Op,
    /// First page, and the first behind the last one.
    pages: (u32, u32),
    /// The first (last) page is written only in part.
    partial: (bool, bool),
    bytes: u64,
    /// Operations (and pages not yet taken in) that it waits for.
    left: u32,
    started_ns: u64,
}

/// A flash drive as a [`Model`] whose inside can be seen.
#[derive(Clone, Debug)]
pub struct Flash {
    spec: FlashSpec,
    shape: Shape,
    page_shift: u32,
    block_bytes: u32,
    ftl: Ftl,
    engine: Engine,
    slots: Vec<Slot>,
    free_slots: Vec<u32>,
    /// Commands the controller has yet to pass on, with their instants: those without data from the host, and those
    /// with. Both in order of time.
    commands: VecDeque<(u64, u32)>,
    writes: VecDeque<(u64, u32)>,
    /// Reads whose data are on the link.
    leaving: VecDeque<(u64, u32)>,
    /// Writes that wait for room in the buffer, first come first served.
    admitting: VecDeque<u32>,
    buffer_free: u32,
    /// One bit a page: the host's data for it are in the buffer, its program hasn't ended.
    buffered: Vec<u64>,
    /// Buffered pages of each epoch; a flush ends one and waits for all up to it.
    epochs: VecDeque<u32>,
    first_epoch: u32,
    flushes: VecDeque<(u32, u32)>,
    command_ns: u64,
    controller_free_ns: u64,
    link_free_ns: (u64, u64),
    steps: Vec<Step>,
    ready: Vec<Done>,
    outstanding: usize,
    now_ns: u64,
}

impl Flash {
    /// Builds the drive that `spec` describes. The error names the key at fault.
    pub fn new(spec: &FlashSpec, options: FlashOptions) -> Result<Flash, SpecError> {
        spec.check()?;
        let mut spec = match options.bytes_max {
            Some(bytes) => spec.scaled_to(bytes),
            None => spec.clone(),
        };
        if let Some(m) = options.mismatch {
            spec = spec.mismatched(m)?;
        }
        let shape = Shape::new(&spec);
        let mut ftl = Ftl::new(&spec);
        let mut steps = Vec::new();
        age(&mut ftl, shape, options, &mut steps);
        let depth = spec.interface.queue_depth as usize;
        let none = Slot {
            tag: 0,
            op: Op::Flush,
            pages: (0, 0),
            partial: (false, false),
            bytes: 0,
            left: 0,
            started_ns: u64::MAX,
        };
        // A flush begins another one.
        let mut epochs = VecDeque::with_capacity(depth + 1);
        epochs.push_back(0);
        let buffered = if spec.buffer.pages > 0 { (shape.pages() as usize).div_ceil(64) } else { 0 };
        Ok(Flash {
            page_shift: spec.geometry.page_bytes.trailing_zeros(),
            block_bytes: 512,
            engine: Engine::new(&spec),
            slots: vec![none; depth],
            free_slots: (0..depth as u32).rev().collect(),
            commands: VecDeque::with_capacity(depth),
            writes: VecDeque::with_capacity(depth),
            leaving: VecDeque::with_capacity(depth),
            admitting: VecDeque::with_capacity(depth),
            buffer_free: spec.buffer.pages,
            buffered: vec![0; buffered],
            epochs,
            first_epoch: 0,
            flushes: VecDeque::with_capacity(depth),
            command_ns: (spec.interface.command_us * 1e3).round() as u64,
            controller_free_ns: 0,
            link_free_ns: (0, 0),
            steps,
            ready: Vec::with_capacity(depth),
            outstanding: 0,
            now_ns: 0,
            ftl,
            shape,
            spec,
        })
    }

    /// The specification that this drive keeps to, scaled and altered as its options asked.
    pub fn spec(&self) -> &FlashSpec {
        &self.spec
    }

    /// Counters of the translation layer, aging included.
    pub fn stats(&self) -> FtlStats {
        *self.ftl.stats()
    }

    /// Numbers of erases of blocks, aging included.
    pub fn wear(&self) -> Wear {
        Wear::of(&self.ftl.erases())
    }

    /// Erases of each block, unit by unit, aging included.
    pub fn block_erases(&self) -> Vec<u32> {
        self.ftl.erases()
    }

    /// Returns the place of the page at `offset`, written or not. The place is fixed, as logical pages go round the units.
    ///
    /// # Panics
    /// If `offset` lies beyond the end.
    pub fn place(&self, offset: u64) -> Place {
        assert!(offset < self.size_bytes(), "offset {offset} lies beyond the device");
        let g = &self.spec.geometry;
        let unit = self.shape.unit_of((offset >> self.page_shift) as u32);
        Place { channel: unit % g.channels, chip: unit / g.channels % g.chips_per_channel, unit }
    }

    /// Returns the outstanding operations of `unit`, collection included.
    pub fn unit_queue(&self, unit: u32) -> Outstanding {
        *self.engine.outstanding(unit)
    }

    /// Returns the outstanding operations of all units of a chip together.
    pub fn chip_queue(&self, channel: u32, chip: u32) -> Outstanding {
        let g = &self.spec.geometry;
        let per_chip = g.channels * g.chips_per_channel;
        let mut sum = Outstanding::default();
        for unit in (channel + chip * g.channels..self.shape.units).step_by(per_chip as usize) {
            let o = self.engine.outstanding(unit);
            sum.reads += o.reads;
            sum.erases += o.erases;
            for (a, b) in sum.programs.iter_mut().zip(o.programs) {
                *a += b;
            }
        }
        sum
    }

    /// Since when `unit` has been at what it does now; `None` if it's idle.
    pub fn unit_busy_since(&self, unit: u32) -> Option<Time> {
        self.engine.busy_since_ns(unit).map(Time::from_nanos)
    }

    /// Operations on all chips of `channel` that haven't ended.
    pub fn channel_queue(&self, channel: u32) -> u32 {
        self.engine.channel_outstanding(channel)
    }

    fn next_after(&self, array_ns: u64) -> Time {
        let front = |q: &VecDeque<(u64, u32)>| q.front().map_or(u64::MAX, |e| e.0);
        let next = array_ns.min(front(&self.commands)).min(front(&self.writes)).min(front(&self.leaving));
        self.ready.first().map_or(Time::from_nanos(next), |d| d.at)
    }

    fn finish(&mut self, slot: u32, at_ns: u64) {
        let s = &self.slots[slot as usize];
        let started_at = Time::from_nanos(s.started_ns.min(at_ns));
        self.ready.push(Done { tag: s.tag, at: Time::from_nanos(at_ns), started_at });
        self.free_slots.push(slot);
    }

    /// Everything until `now_ns`, event by event.
    fn run(&mut self, now_ns: u64) {
        let front = |q: &VecDeque<(u64, u32)>| q.front().map_or(u64::MAX, |e| e.0);
        loop {
            let array_ns = self.engine.next_ns();
            let (command_ns, write_ns) = (front(&self.commands), front(&self.writes));
            let leaving_ns = front(&self.leaving);
            let next = array_ns.min(command_ns).min(write_ns).min(leaving_ns);
            if next > now_ns || next == u64::MAX {
                break;
            }
            // At one instant: what ends makes room before anything new begins.
            if leaving_ns == next {
                let (_, slot) = self.leaving.pop_front().expect("just seen");
                self.finish(slot, next);
            } else if array_ns == next {
                self.array_event(next);
            } else {
                let queue = if command_ns == next { &mut self.commands } else { &mut self.writes };
                let (_, slot) = queue.pop_front().expect("just seen");
                self.begin(slot, next);
            }
        }
        self.now_ns = self.now_ns.max(now_ns);
    }

    fn array_event(&mut self, now_ns: u64) {
        let (unit, ended) = self.engine.step();
        let Some(ended) = ended else { return };
        self.engine.start(unit, now_ns);
        if self.engine.is_idle(unit) {
            self.steps.clear();
            self.ftl.idle_work(unit, &mut self.steps);
            self.queue_steps(unit, Owner::DRIVE, now_ns);
        }
        self.operation_ended(ended, now_ns);
    }

    fn operation_ended(&mut self, ended: Ended, now_ns: u64) {
        if ended.owner.parent != NONE {
            let s = &mut self.slots[ended.owner.parent as usize];
            s.started_ns = s.started_ns.min(ended.started_ns);
            self.part_done(ended.owner.parent, now_ns);
        }
        if ended.kind == Kind::Program && ended.owner.epoch != NONE {
            self.buffered[ended.page as usize / 64] &= !(1 << (ended.page % 64));
            self.buffer_free += 1;
            self.epochs[ended.owner.epoch.wrapping_sub(self.first_epoch) as usize] -= 1;
            self.finish_flushes(now_ns);
            self.admit(now_ns);
        }
    }

    /// One of the things that a request waits for has happened.
    fn part_done(&mut self, slot: u32, now_ns: u64) {
        let s = &mut self.slots[slot as usize];
        s.left -= 1;
        if s.left > 0 {
            return;
        }
        if s.op == Op::Read {
            let bytes = s.bytes;
            let at_ns = self.link(now_ns, bytes, false);
            self.leaving.push_back((at_ns, slot));
        } else {
            self.finish(slot, now_ns);
        }
    }

    /// Takes the link for `bytes` from `now_ns` on; gives the instant of the last one.
    fn link(&mut self, now_ns: u64, bytes: u64, inbound: bool) -> u64 {
        let i = &self.spec.interface;
        if i.link_mb_per_s == 0.0 {
            return now_ns;
        }
        let took_ns = (bytes as f64 * 1e3 / i.link_mb_per_s).round() as u64;
        let free = if i.duplex && inbound { &mut self.link_free_ns.1 } else { &mut self.link_free_ns.0 };
        *free = now_ns.max(*free) + took_ns;
        *free
    }

    /// The controller passes a command on.
    fn begin(&mut self, slot: u32, now_ns: u64) {
        let Slot { op, pages: (first, end), .. } = self.slots[slot as usize];
        match op {
            Op::Read => self.begin_read(slot, first, end, now_ns),
            Op::Write { .. } if self.spec.buffer.pages > 0 => {
                self.admitting.push_back(slot);
                self.admit(now_ns);
            }
            Op::Write { .. } => {
                for lpn in first..end {
                    self.write_page(slot, lpn, Owner { parent: slot, epoch: NONE }, now_ns);
                }
            }
            Op::Flush => self.begin_flush(slot, now_ns),
            Op::Trim | Op::WriteZeroes => self.trim(slot, now_ns),
        }
    }

    fn begin_read(&mut self, slot: u32, first: u32, end: u32, now_ns: u64) {
        // One more, given back at the end, so that a request without operations completes too.
        self.slots[slot as usize].left = 1;
        for lpn in first..end {
            let Some(page) = self.ftl.find(lpn) else { continue };
            if self.is_buffered(page) {
                continue;
            }
            self.slots[slot as usize].left += 1;
            let unit = self.shape.unit_of(lpn);
            // Without a buffer, a page may still wait for its program: then the read stays behind it.
            let may_pass = self.spec.buffer.pages > 0;
            self.engine.push(unit, Step::Read { page }, Owner { parent: slot, epoch: NONE }, may_pass);
            if self.engine.is_idle(unit) {
                self.engine.start(unit, now_ns);
            }
        }
        self.part_done(slot, now_ns);
    }

    fn is_buffered(&self, page: u32) -> bool {
        self.buffered.get(page as usize / 64).is_some_and(|w| w >> (page % 64) & 1 != 0)
    }

    /// Takes pages of waiting writes into the buffer while there is room.
    fn admit(&mut self, now_ns: u64) {
        while let Some(&slot) = self.admitting.front() {
            let Slot { op, pages: (first, end), .. } = self.slots[slot as usize];
            let wait = op == (Op::Write { fua: true }) && !self.spec.buffer.power_protected;
            let now_in = (end - first).min(self.buffer_free);
            self.buffer_free -= now_in;
            for lpn in first..first + now_in {
                let epoch = self.first_epoch.wrapping_add(self.epochs.len() as u32 - 1);
                *self.epochs.back_mut().expect("there is always an epoch") += 1;
                let owner = Owner { parent: if wait { slot } else { NONE }, epoch };
                let page = self.write_page(slot, lpn, owner, now_ns);
                self.buffered[page as usize / 64] |= 1 << (page % 64);
                if !wait {
                    self.part_done(slot, now_ns);
                }
            }
            self.slots[slot as usize].pages.0 = first + now_in;
            if first + now_in < end {
                break;
            }
            self.admitting.pop_front();
        }
    }

    /// Queues what writing `lpn` takes; gives its page.
    fn write_page(&mut self, slot: u32, lpn: u32, owner: Owner, now_ns: u64) -> u32 {
        let unit = self.shape.unit_of(lpn);
        let s = &self.slots[slot as usize];
        let partial = (s.partial.0 && lpn == s.pages.0) || (s.partial.1 && lpn + 1 == s.pages.1);
        self.slots[slot as usize].partial.0 = false;
        self.steps.clear();
        if partial && let Some(old) = self.ftl.find(lpn).filter(|p| !self.is_buffered(*p)) {
            self.engine.push(unit, Step::Read { page: old }, Owner::DRIVE, false);
        }
        let page = self.ftl.write(lpn, &mut self.steps);
        self.queue_steps(unit, owner, now_ns);
        page
    }

    /// Hands what the translation layer wants done to `unit`; programs belong to `owner`.
    fn queue_steps(&mut self, unit: u32, owner: Owner, now_ns: u64) {
        for &step in &self.steps {
            let owner = if matches!(step, Step::Program { .. }) { owner } else { Owner::DRIVE };
            self.engine.push(unit, step, owner, false);
        }
        if self.engine.is_idle(unit) {
            self.engine.start(unit, now_ns);
        }
    }

    fn begin_flush(&mut self, slot: u32, now_ns: u64) {
        if self.spec.buffer.pages == 0 || self.spec.buffer.power_protected {
            // Every acknowledged write is on the flash, or as safe.
            self.finish(slot, now_ns);
            return;
        }
        // Writes that wait for room haven't been acknowledged, so they needn't be waited for.
        let epoch = self.first_epoch.wrapping_add(self.epochs.len() as u32 - 1);
        self.flushes.push_back((epoch, slot));
        self.epochs.push_back(0);
        self.finish_flushes(now_ns);
    }

    fn finish_flushes(&mut self, now_ns: u64) {
        while self.epochs.len() > 1 && self.epochs[0] == 0 {
            self.epochs.pop_front();
            let (epoch, slot) = self.flushes.pop_front().expect("an epoch ends with a flush");
            assert_eq!(epoch, self.first_epoch, "flushes end in order");
            self.first_epoch = self.first_epoch.wrapping_add(1);
            self.finish(slot, now_ns);
        }
    }

    /// Whole pages are forgotten; for `WriteZeroes` the ends that aren't whole are left to the controller's memory.
    fn trim(&mut self, slot: u32, now_ns: u64) {
        let Slot { pages: (first, end), partial, .. } = self.slots[slot as usize];
        let (first, end) = (first + u32::from(partial.0), end - u32::from(partial.1));
        for lpn in first..end.max(first) {
            self.steps.clear();
            self.ftl.trim(lpn, &mut self.steps);
            if !self.steps.is_empty() {
                self.queue_steps(self.shape.unit_of(lpn), Owner::DRIVE, now_ns);
            }
        }
        self.finish(slot, now_ns);
    }
}

/// Writes the drive's past; no time passes.
fn age(ftl: &mut Ftl, shape: Shape, options: FlashOptions, steps: &mut Vec<Step>) {
    let of_all = |permille: u32| u64::from(shape.logical_pages()) * u64::from(permille) / 1000;
    let (written, overwrites) = match options.history {
        History::Fresh => return,
        History::Filled => (of_all(1000), 0),
        History::Part { permille } => (of_all(permille), 0),
        History::Aged { overwrites_permille } => (of_all(1000), of_all(overwrites_permille)),
    };
    let mut rng = Rng::new(options.seed, "flash history");
    let mut write = |lpn: u32| {
        steps.clear();
        ftl.write(lpn, steps);
    };
    (0..written as u32).for_each(&mut write);
    (0..overwrites).for_each(|_| write(rng.below(u64::from(shape.logical_pages())) as u32));
    steps.clear();
}

impl FlashInside for Flash {
    fn page_bytes(&self) -> u32 {
        self.spec.geometry.page_bytes
    }
    fn units(&self) -> u32 {
        self.shape.units
    }
    fn place(&self, offset: u64) -> (u32, u32) {
        let p = Flash::place(self, offset);
        (p.channel, p.unit)
    }
    fn unit_work(&self, unit: u32) -> UnitWork {
        let o = self.engine.outstanding(unit);
        let busy_since = self.unit_busy_since(unit);
        UnitWork { reads: o.reads, programs: o.programs, erases: o.erases, busy_since }
    }
    fn channel_reads(&self, channel: u32) -> u32 {
        self.engine.channel_reads(channel)
    }
}

impl Model for Flash {
    fn size_bytes(&self) -> u64 {
        u64::from(self.shape.logical_pages()) << self.page_shift
    }

    fn block_bytes(&self) -> u32 {
        self.block_bytes
    }

    fn submit(&mut self, now: Time, req: Request) {
        assert_in_range(&req, self.size_bytes(), self.block_bytes);
        let now_ns = now.as_nanos();
        assert!(now_ns >= self.now_ns, "time went backwards");
        self.run(now_ns);
        let slot = self.free_slots.pop().expect("more than queue_max requests are outstanding");
        let flush = req.op == Op::Flush;
        let end = req.offset + req.len;
        let in_page = |at: u64| at & ((1 << self.page_shift) - 1);
        let pages = ((req.offset >> self.page_shift) as u32, end.div_ceil(1 << self.page_shift) as u32);
        self.slots[slot as usize] = Slot {
            tag: req.tag,
            op: req.op,
            pages: if flush { (0, 0) } else { pages },
            partial: (in_page(req.offset) != 0, in_page(end) != 0),
            bytes: req.len,
            left: pages.1 - pages.0,
            started_ns: u64::MAX,
        };
        self.outstanding += 1;
        self.controller_free_ns = self.controller_free_ns.max(now_ns) + self.command_ns;
        let at_ns = self.controller_free_ns;
        if matches!(req.op, Op::Write { .. }) {
            let at_ns = self.link(at_ns, req.len, true);
            self.writes.push_back((at_ns, slot));
        } else {
            self.commands.push_back((at_ns, slot));
        }
        self.run(now_ns);
    }

    fn next_event(&self) -> Time {
        self.next_after(self.engine.next_ns())
    }

    fn next_completion(&self) -> Time {
        // What ends a program makes room for writes, and ends flushes.
        let any_counts = !self.admitting.is_empty() || !self.flushes.is_empty();
        self.next_after(if any_counts { self.engine.next_ns() } else { self.engine.next_waited_ns() })
    }

    fn advance(&mut self, now: Time, done: &mut Vec<Done>) {
        self.run(now.as_nanos());
        self.outstanding -= self.ready.len();
        done.append(&mut self.ready);
    }

    fn outstanding(&self) -> usize {
        self.outstanding
    }

    fn queue_max(&self) -> usize {
        self.slots.len()
    }

    fn flash(&self) -> Option<&dyn FlashInside> {
        Some(self)
    }
}
