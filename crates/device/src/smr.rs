//! A drive-managed shingled disk (the baseline that Manylogs calls SLSMR), on the mechanics of [`Disk`].
//!
//! ```text
//!  write ─► room in the cache? ─► append to the log on the outermost tracks ─► done
//!              └ no: wait ◄──── clean: read band · read its cached runs · write band ─┐
//!  read ──► each piece from the log or from its band                                  │
//!  host silent ───────────────────────────────────────────────────────────────────────┘
//! ```
//! Bands can't be overwritten in part, so written data go to a log. The band of the oldest data is cleaned when the log (or the
//! map of it) is full, or when the host is silent. A write that covers a band goes to the band. `docs/design/smr-model.md` has
//! the rules and the assumptions.
//!
//! With an unshingled surface (MLSMR) its tracks have addresses of their own that can be overwritten at will.
//! [`SmrDisk::unshingled_near`] returns those under the heads. The policy decides which data it logs there.
//!
//! Host-managed disks, with write pointers instead of a cache, are in [`zoned`].

mod bands;
mod cache_map;
mod spec;
pub mod zoned;

use std::collections::VecDeque;
use std::ops::Range;

use plimsoll_base::{Span, Time};

use crate::disk::{Disk, DiskOptions, SpecError};
use crate::model::{Done, Model, Op, Request, assert_in_range};
use bands::{Band, Bands};
use cache_map::{CacheMap, Piece, Run};

pub use spec::{CleanOrder, SmrCache, SmrClean, SmrSpec};

/// No request of the host: the cleaner.
const NOBODY: u32 = u32::MAX;

/// Counters of a shingled disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SmrStats {
    /// Runs appended to the cache.
    pub cached_runs: u64,
    /// Writes that covered a band and went there.
    pub whole_bands: u64,
    /// Bands cleaned.
    pub cleaned_bands: u64,
    /// Cached runs that were merged into them.
    pub merged_runs: u64,
    /// Time from the first to the last transfer of each cleaning, summed; interruptions included.
    pub clean_time: Span,
    /// The longest.
    pub clean_longest: Span,
    /// Writes that found no room and waited.
    pub stalled_writes: u64,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    tag: u64,
    left: u32,
    arrived_ns: u64,
    started_ns: u64,
}

/// A transfer for the disk.
#[derive(Clone, Copy, Debug)]
struct Transfer {
    slot: u32,
    op: Op,
    lbn: u64,
    sectors: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    ReadBand,
    ReadRuns,
    WriteAside,
    WriteBand,
}

/// A band being cleaned. One transfer at a time.
#[derive(Clone, Debug)]
struct Cleaning {
    band: Band,
    runs: Vec<Run>,
    phase: Phase,
    /// Sectors (runs) of the phase that are done.
    next: u64,
    began_ns: u64,
    busy: bool,
}

/// A shingled disk as a [`Model`].
#[derive(Clone, Debug)]
pub struct SmrDisk {
    disk: Disk,
    spec: SmrSpec,
    bands: Bands,
    map: CacheMap,
    sector_shift: u32,
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// Transfers that the disk has no room for, first come first served.
    waiting: VecDeque<Transfer>,
    /// Transfers at the disk by tag; the host request (or nobody) each is for.
    at_disk: Vec<Option<u32>>,
    free_tags: Vec<u32>,
    /// Writes that wait for room in the cache.
    stalled: VecDeque<(u32, Request)>,
    cleaning: Option<Cleaning>,
    idle_ns: u64,
    /// Time at which the host's last request ended.
    silent_since_ns: u64,
    ready: Vec<Done>,
    scratch: Vec<Done>,
    stats: SmrStats,
    now_ns: u64,
}

impl SmrDisk {
    /// Builds the disk that `spec` describes. The error names the key at fault.
    pub fn new(spec: &SmrSpec, options: DiskOptions) -> Result<SmrDisk, SpecError> {
        spec.check()?;
        let disk = Disk::new(&spec.disk, options)?;
        let bands = Bands::new(spec, &disk)?;
        let depth = spec.disk.queue.depth;
        // The cleaner has one transfer at the disk besides the host's.
        let none = Slot { tag: 0, left: 0, arrived_ns: 0, started_ns: u64::MAX };
        Ok(SmrDisk {
            map: CacheMap::new(bands.cache(), spec.cache.entries_max as usize),
            sector_shift: spec.disk.geometry.sector_bytes.trailing_zeros(),
            slots: vec![none; depth as usize],
            free: (0..depth).rev().collect(),
            waiting: VecDeque::new(),
            at_disk: vec![None; disk.queue_max()],
            free_tags: (0..disk.queue_max() as u32).rev().collect(),
            stalled: VecDeque::with_capacity(depth as usize),
            cleaning: None,
            idle_ns: Span::from_millis_f64(spec.clean.idle_ms).as_nanos(),
            silent_since_ns: 0,
            ready: Vec::with_capacity(depth as usize),
            scratch: Vec::with_capacity(depth as usize),
            stats: SmrStats::default(),
            now_ns: 0,
            spec: spec.clone(),
            bands,
            disk,
        })
    }

    /// Returns the counters.
    pub fn stats(&self) -> SmrStats {
        self.stats
    }

    /// Runs that the persistent cache holds.
    pub fn cached_runs(&self) -> usize {
        self.map.entries()
    }

    /// Number of bands.
    pub fn bands(&self) -> u64 {
        self.bands.count()
    }

    /// The band that holds `offset`, in bytes.
    ///
    /// # Panics
    /// If `offset` isn't in a band.
    pub fn band_of(&self, offset: u64) -> Range<u64> {
        assert!(offset >> self.sector_shift < self.bands.logical(), "offset {offset} isn't in a band");
        let b = self.bands.band(offset >> self.sector_shift);
        b.first << self.sector_shift..(b.first + b.sectors) << self.sector_shift
    }

    /// Addresses of the unshingled surface; empty without one.
    pub fn unshingled(&self) -> Range<u64> {
        self.bands.logical() << self.sector_shift..self.size_bytes()
    }

    /// Addresses of the unshingled track that passes under its head while the arm is over `offset`: Manylogs
    /// §III-I3 puts the near-head log there. Getting exactly onto it is a matter of tens to hundreds of
    /// microseconds for the drive; here it costs what the disk takes for a head switch.
    pub fn unshingled_near(&self, offset: u64) -> Option<Range<u64>> {
        let r = self.bands.unshingled_near(offset >> self.sector_shift)?;
        Some(r.start << self.sector_shift..r.end << self.sector_shift)
    }

    fn finish(&mut self, slot: u32, at_ns: u64) {
        let s = self.slots[slot as usize];
        let started_at = Time::from_nanos(s.started_ns.clamp(s.arrived_ns, at_ns));
        self.ready.push(Done { tag: s.tag, at: Time::from_nanos(at_ns), started_at });
        self.free.push(slot);
        self.silent_since_ns = at_ns;
    }

    fn host_busy(&self) -> bool {
        self.free.len() < self.slots.len()
    }

    /// Returns the time at which cleaning in silence begins or goes on; `u64::MAX` if it doesn't.
    fn idle_due_ns(&self) -> u64 {
        let wanted = self.cleaning.as_ref().map_or(self.map.entries() > 0, |c| !c.busy);
        if self.idle_ns == 0 || self.host_busy() || !wanted {
            return u64::MAX;
        }
        self.silent_since_ns + self.idle_ns
    }

    /// Everything until `now_ns`, event by event.
    fn run(&mut self, now_ns: u64) {
        loop {
            let disk_ns = self.disk.next_event().as_nanos();
            let idle_ns = self.idle_due_ns();
            let next = disk_ns.min(idle_ns.max(self.now_ns));
            if next > now_ns || next == u64::MAX {
                break;
            }
            self.now_ns = self.now_ns.max(next);
            if disk_ns == next {
                let mut scratch = std::mem::take(&mut self.scratch);
                self.disk.advance(Time::from_nanos(next), &mut scratch);
                for d in scratch.drain(..) {
                    self.transfer_done(d);
                }
                self.scratch = scratch;
                self.hand_in(next);
            } else {
                self.clean_on(next);
            }
        }
        self.now_ns = self.now_ns.max(now_ns);
    }

    fn transfer_done(&mut self, d: Done) {
        self.free_tags.push(d.tag as u32);
        let slot = self.at_disk[d.tag as usize].take().expect("the disk completes what it was given");
        let at_ns = d.at.as_nanos();
        if slot == NOBODY {
            self.clean_step_done(at_ns);
            return;
        }
        let s = &mut self.slots[slot as usize];
        s.started_ns = s.started_ns.min(d.started_at.as_nanos());
        s.left -= 1;
        if s.left == 0 {
            self.finish(slot, at_ns);
        }
    }

    fn hand_in(&mut self, now_ns: u64) {
        while self.disk.outstanding() < self.disk.queue_max()
            && let Some(t) = self.waiting.pop_front()
        {
            let tag = self.free_tags.pop().expect("the disk takes at most one command for each tag");
            self.at_disk[tag as usize] = Some(t.slot);
            let (offset, len) = (t.lbn << self.sector_shift, t.sectors << self.sector_shift);
            self.disk.submit(Time::from_nanos(now_ns), Request { tag: u64::from(tag), op: t.op, offset, len });
        }
    }

    fn transfer(&mut self, slot: u32, op: Op, lbn: u64, sectors: u64) {
        if slot != NOBODY {
            self.slots[slot as usize].left += 1;
        }
        self.waiting.push_back(Transfer { slot, op, lbn, sectors });
    }

    /// Transfers to or from where the addresses are at home.
    fn transfer_home(&mut self, slot: u32, op: Op, mut first: u64, sectors: u64) {
        let end = first + sectors;
        while first < end {
            let (lbn, run) = self.bands.locate(first, end - first);
            self.transfer(slot, op, lbn, run);
            first += run;
        }
    }

    fn read(&mut self, slot: u32, first: u64, sectors: u64) {
        let shingled = self.bands.logical().saturating_sub(first).min(sectors);
        let pieces: Vec<Piece> = self.map.pieces(first, shingled).collect();
        for p in pieces {
            match p.at {
                Some(at) => self.transfer(slot, Op::Read, self.map.lbn(at), p.sectors),
                None => self.transfer_home(slot, Op::Read, p.first, p.sectors),
            }
        }
        if sectors > shingled {
            self.transfer_home(slot, Op::Read, first + shingled, sectors - shingled);
        }
    }

    /// Cuts a write at the bands' ends: (first, sectors, covers its band).
    fn cut(&self, first: u64, sectors: u64) -> impl Iterator<Item = (u64, u64, bool)> + '_ {
        let end = (first + sectors).min(self.bands.logical());
        let mut at = first;
        std::iter::from_fn(move || {
            if at >= end {
                return None;
            }
            let band = self.bands.band(at);
            let (from, to) = (at, end.min(band.first + band.sectors));
            at = to;
            Some((from, to - from, to - from == band.sectors))
        })
    }

    /// Takes a write in, if there's room.
    fn try_write(&mut self, slot: u32, req: &Request) -> bool {
        let (first, sectors) = (req.offset >> self.sector_shift, req.len >> self.sector_shift);
        let cached = self.cut(first, sectors).filter(|c| !c.2);
        let (count, sum) = cached.fold((0, 0), |(n, s), c| (n + 1, s + c.1));
        if count > 0 && !self.map.has_room(sum, count) {
            return false;
        }
        let pieces: Vec<_> = self.cut(first, sectors).collect();
        for (from, n, whole) in pieces {
            if whole {
                self.map.forget(from, n);
                self.transfer_home(slot, req.op, from, n);
                self.stats.whole_bands += 1;
            } else {
                let lbn = self.map.append(from, n);
                self.transfer(slot, req.op, lbn, n);
                self.stats.cached_runs += 1;
            }
        }
        let beyond = (first + sectors).saturating_sub(self.bands.logical()).min(sectors);
        self.transfer_home(slot, req.op, first + sectors - beyond, beyond);
        true
    }

    fn admit_stalled(&mut self) {
        while let Some((slot, req)) = self.stalled.front().copied() {
            if !self.try_write(slot, &req) {
                break;
            }
            self.stalled.pop_front();
        }
    }

    /// Begins or continues cleaning with the next transfer.
    fn clean_on(&mut self, now_ns: u64) {
        if self.cleaning.is_none() {
            let Some(oldest) = self.map.oldest() else { return };
            let band = self.bands.band(oldest.first);
            let pieces = self.map.pieces(band.first, band.sectors);
            let mut runs: Vec<Run> =
                pieces.filter_map(|p| Some(Run { first: p.first, sectors: p.sectors, at: p.at? })).collect();
            if self.spec.clean.order == CleanOrder::Log {
                runs.sort_by_key(|r| r.at);
            }
            let phase = Phase::ReadBand;
            self.cleaning = Some(Cleaning { band, runs, phase, next: 0, began_ns: now_ns, busy: false });
        }
        self.clean_transfer();
        self.hand_in(now_ns);
    }

    fn clean_transfer(&mut self) {
        let Some(c) = &mut self.cleaning else { return };
        debug_assert!(!c.busy);
        c.busy = true;
        let io = (u64::from(self.spec.clean.io_kib) << 10 >> self.sector_shift).max(1);
        let n = io.min(c.band.sectors - c.next.min(c.band.sectors));
        // Around the drive's own write cache: what is cleaned leaves the cache only when it's on the media.
        let write = Op::Write { fua: true };
        let (op, lbn, sectors) = match c.phase {
            Phase::ReadRuns => {
                let r = c.runs[c.next as usize];
                (Op::Read, self.map.lbn(r.at), r.sectors)
            }
            Phase::WriteAside => (write, self.bands.cache() + c.next, n),
            Phase::ReadBand | Phase::WriteBand => {
                let (lbn, run) = self.bands.locate(c.band.first + c.next, n);
                (if c.phase == Phase::ReadBand { Op::Read } else { write }, lbn, run)
            }
        };
        c.next += if c.phase == Phase::ReadRuns { 1 } else { sectors };
        // Before what the host has waiting: while it's silent there is nothing, and else it waits for this.
        self.waiting.push_front(Transfer { slot: NOBODY, op, lbn, sectors });
    }

    fn clean_step_done(&mut self, now_ns: u64) {
        let c = self.cleaning.as_mut().expect("a transfer of the cleaner's");
        c.busy = false;
        let phase_end = if c.phase == Phase::ReadRuns { c.runs.len() as u64 } else { c.band.sectors };
        if c.next >= phase_end {
            c.next = 0;
            c.phase = match c.phase {
                Phase::ReadBand => Phase::ReadRuns,
                Phase::ReadRuns if self.spec.clean.aside_first => Phase::WriteAside,
                Phase::ReadRuns | Phase::WriteAside => Phase::WriteBand,
                Phase::WriteBand => return self.cleaned(now_ns),
            };
        }
        let silent = self.idle_ns > 0 && !self.host_busy() && self.silent_since_ns + self.idle_ns <= now_ns;
        if silent || !self.stalled.is_empty() {
            self.clean_transfer();
        }
    }

    fn cleaned(&mut self, now_ns: u64) {
        let c = self.cleaning.take().expect("just finished");
        for r in &c.runs {
            self.map.forget_cleaned(r);
        }
        let took = Span::from_nanos(now_ns - c.began_ns);
        self.stats.cleaned_bands += 1;
        self.stats.merged_runs += c.runs.len() as u64;
        self.stats.clean_time += took;
        self.stats.clean_longest = self.stats.clean_longest.max(took);
        self.admit_stalled();
        if !self.stalled.is_empty() {
            self.clean_on(now_ns);
        }
    }
}

impl Model for SmrDisk {
    fn size_bytes(&self) -> u64 {
        (self.bands.logical() + self.bands.unshingled()) << self.sector_shift
    }

    fn block_bytes(&self) -> u32 {
        self.disk.block_bytes()
    }

    fn submit(&mut self, now: Time, req: Request) {
        assert_in_range(&req, self.size_bytes(), self.block_bytes());
        let now_ns = now.as_nanos();
        assert!(now_ns >= self.now_ns, "time went backwards");
        self.run(now_ns);
        let slot = self.free.pop().expect("more than queue_max requests are outstanding");
        self.slots[slot as usize] = Slot { tag: req.tag, left: 0, arrived_ns: now_ns, started_ns: u64::MAX };
        let (first, sectors) = (req.offset >> self.sector_shift, req.len >> self.sector_shift);
        match req.op {
            Op::Read => self.read(slot, first, sectors),
            Op::Flush => self.transfer(slot, Op::Flush, 0, 0),
            Op::Trim => {
                self.map.forget(first, sectors);
                self.transfer(slot, Op::Trim, self.bands.locate(first, 1).0, 1);
            }
            Op::Write { .. } | Op::WriteZeroes => {
                if !self.stalled.is_empty() || !self.try_write(slot, &req) {
                    self.stats.stalled_writes += 1;
                    self.stalled.push_back((slot, req));
                    if self.cleaning.as_ref().is_none_or(|c| !c.busy) {
                        self.clean_on(now_ns);
                    }
                }
            }
        }
        self.hand_in(now_ns);
    }

    fn next_event(&self) -> Time {
        let next = self.disk.next_event().as_nanos().min(self.idle_due_ns().max(self.now_ns));
        self.ready.first().map_or(Time::from_nanos(next), |d| d.at)
    }

    fn advance(&mut self, now: Time, done: &mut Vec<Done>) {
        self.run(now.as_nanos());
        done.append(&mut self.ready);
    }

    fn outstanding(&self) -> usize {
        self.slots.len() - self.free.len() + self.ready.len()
    }

    fn queue_max(&self) -> usize {
        self.slots.len()
    }
}
