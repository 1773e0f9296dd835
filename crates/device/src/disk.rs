//! A disk drive: arm, platters, buffer, bus and command queue.
//!
//! ```text
//!  submit ─► queue ──(discipline)──► arm: seek · rotate · transfer ──► bus ─► done
//!     │                               ▲    └─► read-ahead until the arm is wanted elsewhere
//!     ├─ read hit ──► bus ─► done     │
//!     └─ cached write ─► bus ─► done ─┴─ destage
//! ```
//! Nothing is simulated sector by sector. An access is computed when it starts, track by track. Read-ahead is computed when its
//! progress is needed. `docs/design/disk-model.md` has the mathematics and the assumptions.

mod cache;
mod costs;
mod divide;
mod layout;
mod mech;
mod mismatch;
mod seek;
mod serve;
mod spec;
mod track;

use plimsoll_base::{Rng, Time};

use crate::model::{Done, Model, Op, Request, assert_in_range};
use cache::{Dirty, Segments};
use costs::Costs;
use mech::{Arm, Mech, Stream};

pub use mismatch::Mismatch;
pub use seek::SeekCurve;
pub use spec::{
    Buffer, Bus, Discipline, DiskSpec, Geometry, Mapping, Mechanics, Overheads, Queue, ReadAhead, Sparing, SpecError,
    WriteDisconnect, Zone,
};
pub use track::Track;

/// Differences between two drives of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct DiskOptions {
    /// Draws the platters' angle at time zero.
    pub seed: u64,
    /// Makes this drive differ from its specification, so that a predictor built from the same
    /// specification is wrong about it as it would be about a real one.
    pub mismatch: Option<Mismatch>,
}

/// A request in the drive's queue.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    tag: u64,
    op: Op,
    lbn: u64,
    sectors: u64,
    arrived_ns: u64,
    arm: u32,
    /// True if the request may complete from the buffer.
    cacheable: bool,
}

/// A request whose completion time is known.
#[derive(Clone, Copy, Debug)]
struct Finishing {
    at_ns: u64,
    done: Done,
}

/// A flush that waits for cached writes.
#[derive(Clone, Copy, Debug)]
struct Flushing {
    tag: u64,
    started_ns: u64,
    mark: u64,
}

/// Activity of an arm. Read-ahead isn't work: it yields at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Work {
    Idle,
    Request,
    Destage,
}

#[derive(Clone, Copy, Debug)]
struct ArmState {
    at: Arm,
    work: Work,
    /// Time at which it may take up something else.
    free_ns: u64,
    stream: Option<Stream>,
    /// The segment that the request under way fills: what it will hold isn't there yet.
    filling: Option<u32>,
}

/// A disk drive as a [`Model`].
#[derive(Clone, Debug)]
pub struct Disk {
    mech: Mech,
    costs: Costs,
    buffer: Buffer,
    queue_spec: Queue,
    sector_shift: u32,
    sectors: u64,
    /// LBNs of one arm.
    arm_sectors: u64,
    arms: Vec<ArmState>,
    /// Time at which the first busy arm becomes free; `u64::MAX` if none is busy.
    next_arm_ns: u64,
    segments: Segments,
    dirty: Dirty,
    /// In order of arrival.
    queue: Vec<Waiting>,
    /// Latest first: the next to complete is the last.
    finishing: Vec<Finishing>,
    flushing: Vec<Flushing>,
    bus_free_ns: u64,
    last_was_read: bool,
    last_write_end: u64,
    outstanding: usize,
    now_ns: u64,
    /// Gain of a queued request for each millisecond of waiting, in the discipline's measure of cost.
    age_credit_per_ms: u64,
}

impl Disk {
    /// Builds the drive that `spec` describes. The error names the key at fault.
    pub fn new(spec: &DiskSpec, options: DiskOptions) -> Result<Disk, SpecError> {
        spec.check()?;
        let mut rng = Rng::new(options.seed, "disk phase");
        let altered;
        let spec = match options.mismatch {
            Some(m) => {
                altered = m.apply(spec)?;
                &altered
            }
            None => spec,
        };
        if !spec.geometry.sector_bytes.is_power_of_two() {
            return Err(SpecError::new("geometry.sector_bytes", "must be a power of two"));
        }
        let mech = Mech::new(spec, rng.unit())?;
        let arm_sectors = mech.layout.sectors();
        let sectors = arm_sectors * u64::from(spec.mechanics.actuators);
        let b = &spec.buffer;
        let rooms = if b.write_prebuffering { b.write_segments as usize } else { 1 };
        let depth = spec.queue.depth as usize;
        let worst_cost = match spec.queue.discipline {
            Discipline::Fifo => 0.0,
            Discipline::Sstf => f64::from(spec.geometry.cylinders),
            Discipline::Sptf => mech.worst_positioning_ns() as f64,
        };
        let age_max_ms = spec.queue.age_max_ms;
        let age_credit_per_ms = if age_max_ms > 0.0 { (worst_cost / age_max_ms).round() as u64 } else { 0 };
        let idle = ArmState { at: Arm::default(), work: Work::Idle, free_ns: 0, stream: None, filling: None };
        Ok(Disk {
            costs: Costs::new(spec),
            segments: Segments::new(b.segments, b.segment_sectors, b.write_segments, sectors),
            dirty: Dirty::new(rooms, u64::from(b.segment_sectors)),
            buffer: b.clone(),
            queue_spec: spec.queue.clone(),
            sector_shift: spec.geometry.sector_bytes.trailing_zeros(),
            sectors,
            arm_sectors,
            arms: vec![idle; spec.mechanics.actuators as usize],
            next_arm_ns: u64::MAX,
            mech,
            queue: Vec::with_capacity(depth),
            finishing: Vec::with_capacity(depth),
            flushing: Vec::with_capacity(depth),
            bus_free_ns: 0,
            last_was_read: true,
            last_write_end: u64::MAX,
            outstanding: 0,
            now_ns: 0,
            age_credit_per_ms,
        })
    }

    fn finish(&mut self, tag: u64, at_ns: u64, started_ns: u64) {
        let done = Done { tag, at: Time::from_nanos(at_ns), started_at: Time::from_nanos(started_ns) };
        let place = self.finishing.partition_point(|f| f.at_ns > at_ns);
        self.finishing.insert(place, Finishing { at_ns, done });
    }

    /// `arm` works until `free_ns`.
    fn occupy(&mut self, arm: usize, work: Work, free_ns: u64) {
        self.arms[arm].work = work;
        self.arms[arm].free_ns = free_ns;
        self.next_arm_ns = self.next_arm_ns.min(free_ns);
    }

    /// Ends the work of the arm that is free first; gives when, which arm and what it did.
    fn release(&mut self) -> (u64, usize, Work) {
        let at_ns = self.next_arm_ns;
        let busy = |a: &ArmState| if a.work == Work::Idle { u64::MAX } else { a.free_ns };
        let arm = self.arms.iter().position(|a| busy(a) == at_ns).expect("an arm is busy");
        let work = std::mem::replace(&mut self.arms[arm].work, Work::Idle);
        self.arms[arm].filling = None;
        self.next_arm_ns = self.arms.iter().map(busy).min().unwrap_or(u64::MAX);
        (at_ns, arm, work)
    }

    /// True if no arm has anything to take up.
    fn nothing_waits(&self) -> bool {
        self.queue.is_empty() && self.dirty.is_empty()
    }

    /// Lets arms become free until `now_ns`.
    fn run_arms(&mut self, now_ns: u64) {
        while self.next_arm_ns <= now_ns {
            let (at_ns, arm, work) = self.release();
            if work == Work::Destage {
                self.dirty.finish(arm as u32);
                self.finish_flushes(at_ns);
                self.absorb_waiting(at_ns);
            }
            if !self.nothing_waits() {
                self.dispatch(arm, at_ns);
            }
        }
        self.now_ns = self.now_ns.max(now_ns);
    }

    fn finish_flushes(&mut self, at_ns: u64) {
        while let Some(i) = self.flushing.iter().position(|f| self.dirty.flushed(f.mark)) {
            let f = self.flushing.remove(i);
            self.finish(f.tag, at_ns + self.costs.write_completion_ns, f.started_ns);
        }
    }

    fn submit_range(&mut self, now_ns: u64, req: Request) {
        let lbn = req.offset >> self.sector_shift;
        let cacheable = self.buffer.write_cache_level > 0
            && req.op == (Op::Write { fua: false })
            && req.len >> self.sector_shift <= self.dirty.extent_max();
        let w = Waiting {
            tag: req.tag,
            op: req.op,
            lbn,
            sectors: req.len >> self.sector_shift,
            arrived_ns: now_ns,
            arm: u32::from(lbn >= self.arm_sectors),
            cacheable,
        };
        if self.serve_at_once(&w, now_ns) {
            return;
        }
        let arm = w.arm as usize;
        if self.arms[arm].work == Work::Idle && self.nothing_waits() {
            return self.serve(&w, now_ns);
        }
        self.queue.push(w);
        self.dispatch(arm, now_ns);
    }
}

impl Model for Disk {
    fn size_bytes(&self) -> u64 {
        self.sectors << self.sector_shift
    }

    fn block_bytes(&self) -> u32 {
        1 << self.sector_shift
    }

    fn submit(&mut self, now: Time, req: Request) {
        assert_in_range(&req, self.size_bytes(), self.block_bytes());
        assert!(self.outstanding < self.queue_max(), "more than queue_max requests are outstanding");
        let now_ns = now.as_nanos();
        assert!(now_ns >= self.now_ns, "time went backwards");
        self.run_arms(now_ns);
        self.outstanding += 1;
        match req.op {
            Op::Flush if !self.dirty.is_empty() => {
                let mark = self.dirty.flush_mark();
                self.flushing.push(Flushing { tag: req.tag, started_ns: now_ns, mark });
            }
            Op::Flush => self.finish(req.tag, now_ns + self.costs.command_ns, now_ns),
            // A disk has nothing to gain from knowing: it takes the command and forgets it.
            Op::Trim => self.finish(req.tag, now_ns + self.costs.command_ns, now_ns),
            Op::Read | Op::Write { .. } | Op::WriteZeroes => self.submit_range(now_ns, req),
        }
    }

    fn next_event(&self) -> Time {
        let done_ns = self.finishing.last().map_or(u64::MAX, |f| f.at_ns);
        // An arm that becomes free with nothing to do is no event: whoever comes next finds it free.
        let arm_ns = if self.nothing_waits() { u64::MAX } else { self.next_arm_ns };
        Time::from_nanos(arm_ns.min(done_ns))
    }

    fn advance(&mut self, now: Time, done: &mut Vec<Done>) {
        self.run_arms(now.as_nanos());
        while self.finishing.last().is_some_and(|f| f.at_ns <= now.as_nanos()) {
            done.extend(self.finishing.pop().map(|f| f.done));
            self.outstanding -= 1;
        }
    }

    fn outstanding(&self) -> usize {
        self.outstanding
    }

    fn queue_max(&self) -> usize {
        self.queue_spec.depth as usize
    }
}
