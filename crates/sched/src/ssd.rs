//! Flash whose channels and chips are seen: MittSSD (MittOS §4.3; MT-M14 to M18).
//!
//! A chip is free when all that waits for it is done, so a read waits for the sum of its chip's operations (page reads,
//! programs by class of page, erases, those of garbage collection among them), and for the transfers of other chips on
//! its channel. A request over several pages waits for the slowest; if that is late, all of it is refused and no page
//! is sent. The costs come from a profile and follow what reads really took.

use crate::fifo::Fifo;
use crate::profile::FlashProfile;
use plimsoll_base::{Completion, Confidence, Io, IoError, IoHead, IoId, Op, Outcome, Span, Time};
use plimsoll_stack::inside::{FlashInside, FlashPredictor, Knowledge, Predicted, UnitWork};
use plimsoll_stack::{Actions, Forecast, Layer, Offer, Ports};
use std::collections::BTreeMap;

/// Classes of pages that are told apart.
const CLASSES: usize = 9;
/// What a read's time is made of: its own read, others' reads of its chip, programs by class, erases, others on its channel.
const TERMS: usize = 3 + CLASSES + 1;
const OWN: usize = 0;
const READ: usize = 1;
const PROGRAM: usize = 2;
const ERASE: usize = 2 + CLASSES;
const CHANNEL: usize = 3 + CLASSES;

/// Which parts of the prediction are used: all of them except in ablations (MT-E13).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SsdPrecision {
    /// Per chip; otherwise the device is taken for one queue, whose chips share the work evenly.
    pub chips: bool,
    /// The channel's other chips.
    pub channels: bool,
    /// Classes of pages; otherwise every program takes as long as the mean one.
    pub classes: bool,
    /// Learn from completions.
    pub calibrate: bool,
}

impl SsdPrecision {
    /// Everything.
    pub const FULL: SsdPrecision = SsdPrecision { chips: true, channels: true, classes: true, calibrate: true };
}

/// What a read found in front of it.
#[derive(Clone, Copy)]
struct Seen {
    counts: [u32; TERMS],
    arrived_at: Time,
    predicted_ns: i64,
}

/// See the module's documentation.
pub struct MittSsd {
    /// Nanoseconds of each term.
    costs: [i64; TERMS],
    /// What the profile says they are; learned ones stay within [`OFF_MOST`] of it.
    measured: [i64; TERMS],
    precision: SsdPrecision,
    seen: BTreeMap<u64, Seen>,
    error_ns: i64,
    took_ns: i64,
    samples: u64,
    profiled: bool,
}

/// Reads that a predictor without a profile must have seen before it says anything.
const UNPROFILED_READS: u64 = 64;

/// A cost that was measured is off by half of it at most: what is beyond is not the chip's own.
const OFF_MOST: i64 = 2;

/// A term follows by this share of a read's error, spread over what was in front.
const STEP_SHIFT: u32 = 5;

impl MittSsd {
    /// A predictor that starts from `profile`.
    pub fn new(profile: &FlashProfile, precision: SsdPrecision) -> MittSsd {
        let ns = |us: f64| (us * 1e3).round() as i64;
        let mut costs = [0; TERMS];
        (costs[OWN], costs[READ], costs[CHANNEL]) = (ns(profile.read_us), ns(profile.chip_us), ns(profile.channel_us));
        costs[ERASE] = ns(profile.erase_us);
        let mean = profile.program_us.iter().sum::<f64>() / profile.program_us.len().max(1) as f64;
        for (class, cost) in costs[PROGRAM..ERASE].iter_mut().enumerate() {
            let own = profile.program_us.get(class).copied().unwrap_or(mean);
            *cost = ns(if precision.classes { own } else { mean });
        }
        MittSsd {
            costs,
            measured: costs,
            precision,
            seen: BTreeMap::new(),
            error_ns: 0,
            took_ns: 0,
            samples: 0,
            profiled: true,
        }
    }

    /// A predictor of flash that wasn't measured: it starts from the paper's drive (§4.3), says nothing before it has seen
    /// some reads, and learns.
    pub fn unprofiled() -> MittSsd {
        let papers = FlashProfile {
            page_bytes: 16 << 10,
            read_us: 100.0,
            chip_us: 100.0,
            channel_us: 60.0,
            program_us: vec![1000.0, 2000.0],
            erase_us: 6000.0,
        };
        MittSsd { profiled: false, ..MittSsd::new(&papers, SsdPrecision::FULL) }
    }

    fn confidence(&self) -> Confidence {
        if self.samples < 16 {
            return if self.profiled { Confidence(500) } else { Confidence::NONE };
        }
        let relative = self.error_ns.saturating_mul(1000) / self.took_ns.max(1);
        Confidence((1000 - relative).clamp(50, 990) as u16)
    }

    /// What is in front of a read of the page at `offset`.
    fn look(&self, inside: &dyn FlashInside, at: Time, offset: u64) -> ([u32; TERMS], i64) {
        let (channel, unit) = inside.place(offset);
        let w = if self.precision.chips { inside.unit_work(unit) } else { self.evenly(inside) };
        let mut counts = [0; TERMS];
        (counts[OWN], counts[READ], counts[ERASE]) = (1, w.reads, w.erases);
        counts[PROGRAM..ERASE].copy_from_slice(&w.programs);
        if self.precision.channels && self.precision.chips {
            counts[CHANNEL] = inside.channel_reads(channel).saturating_sub(w.reads);
        }
        let elapsed = w.busy_since.map_or(0, |since| at.since(since).as_nanos() as i64);
        (counts, elapsed)
    }

    /// The whole device's work, an even share of it for each unit.
    fn evenly(&self, inside: &dyn FlashInside) -> UnitWork {
        let n = inside.units().max(1);
        let mut sum = UnitWork::default();
        for unit in 0..n {
            let w = inside.unit_work(unit);
            sum.reads += w.reads;
            sum.erases += w.erases;
            sum.programs.iter_mut().zip(w.programs).for_each(|(a, b)| *a += b);
        }
        sum.reads /= n;
        sum.erases /= n;
        sum.programs.iter_mut().for_each(|p| *p /= n);
        sum
    }

    fn wait_ns(&self, counts: &[u32; TERMS], elapsed_ns: i64) -> i64 {
        let chip: i64 = (READ..CHANNEL).map(|i| i64::from(counts[i]) * self.costs[i]).sum();
        // The current operation can't have done more than one of its kind takes.
        let most = (READ..CHANNEL).filter(|&i| counts[i] > 0).map(|i| self.costs[i]).max().unwrap_or(0);
        (chip - elapsed_ns.min(most)).max(0) + i64::from(counts[CHANNEL]) * self.costs[CHANNEL]
    }

    fn learn(&mut self, s: &Seen, took_ns: i64) {
        let error = took_ns - s.predicted_ns;
        self.samples += 1;
        let shift = (63 - self.samples.leading_zeros()).min(6);
        self.error_ns += (error.abs() - self.error_ns) >> shift;
        self.took_ns += (took_ns - self.took_ns) >> shift;
        if !self.precision.calibrate {
            return;
        }
        // The error goes to the terms by what they were predicted to take: one that takes longer can be off by more.
        let parts = |i: usize| i64::from(s.counts[i]) * self.costs[i];
        let whole = (0..TERMS).map(parts).sum::<i64>().max(1);
        let error = error.clamp(-whole / 2, whole / 2);
        let costs = std::array::from_fn(|i| {
            let n = i64::from(s.counts[i]);
            if n == 0 {
                return self.costs[i];
            }
            let share = (i128::from(error) * i128::from(parts(i)) / i128::from(whole)) as i64;
            let cost = (self.costs[i] + ((share / n) >> STEP_SHIFT)).max(0);
            let off = if self.profiled { self.measured[i] / OFF_MOST } else { i64::MAX / 4 };
            cost.clamp((self.measured[i] - off).max(0), self.measured[i].saturating_add(off))
        });
        self.costs = costs;
    }
}

impl FlashPredictor for MittSsd {
    fn predict(&self, inside: &dyn FlashInside, at: Time, head: &IoHead) -> Predicted {
        if !self.profiled && self.samples < UNPROFILED_READS {
            // Nothing is refused on a guess.
            return Predicted { wait: Span::ZERO, service: Span::ZERO, confidence: Confidence::NONE };
        }
        let page = u64::from(inside.page_bytes());
        let first = head.offset / page;
        let pages = head.end().div_ceil(page).max(first + 1) - first;
        let units = u64::from(inside.units());
        let mut worst = 0;
        for i in 0..pages.min(units) {
            let (counts, elapsed) = self.look(inside, at, (first + i) * page);
            // Its own pages of one chip follow each other.
            let more = (pages - i).div_ceil(units).saturating_sub(1) as i64;
            worst = worst.max(self.wait_ns(&counts, elapsed) + more * self.costs[READ]);
        }
        let confidence = self.confidence();
        let service = if head.op == Op::Read { self.costs[OWN] } else { self.costs[PROGRAM] };
        Predicted { wait: Span::from_nanos(worst as u64), service: Span::from_nanos(service as u64), confidence }
    }

    fn submitted(&mut self, inside: &dyn FlashInside, now: Time, head: &IoHead, token: u64) {
        let page = u64::from(inside.page_bytes());
        // Only reads of one page tell which term was wrong.
        if head.op != Op::Read || head.offset / page != head.end().saturating_sub(1) / page {
            return;
        }
        let (counts, elapsed_ns) = self.look(inside, now, head.offset);
        let predicted_ns = self.wait_ns(&counts, elapsed_ns) + self.costs[OWN];
        self.seen.insert(token, Seen { counts, arrived_at: now, predicted_ns });
    }

    fn ended(&mut self, now: Time, token: u64) {
        if let Some(s) = self.seen.remove(&token) {
            self.learn(&s, now.since(s.arrived_at).as_nanos() as i64);
        }
    }

    fn knowledge(&self) -> Knowledge {
        Knowledge { learned: self.samples, profiled: self.profiled, confidence: self.confidence() }
    }
}

/// First in, first out, over flash whose manager sees its inside: the layer below predicts, and what waits here comes on
/// top.
pub struct SsdQueue {
    fifo: Fifo,
}

impl SsdQueue {
    /// An empty queue over a device that is given at most `depth` requests at once.
    ///
    /// # Panics
    /// If the depth is zero.
    pub fn new(depth: u32) -> SsdQueue {
        SsdQueue { fifo: Fifo::new(depth) }
    }

    /// Requests waiting here and at the device.
    pub fn depths(&self) -> (usize, usize) {
        self.fifo.depths()
    }

    fn fill_device(&mut self, out: &mut Actions) {
        while let Some(io) = self.fifo.next() {
            out.submit(0, io);
        }
    }
}

impl Layer for SsdQueue {
    fn name(&self) -> &'static str {
        "ssd"
    }

    fn offer(&self, below: &[Offer]) -> Offer {
        Offer { queue_max: u32::MAX, ..below[0] }
    }

    fn start(&mut self, _now: Time, below: &[Offer], _out: &mut Actions) {
        self.fifo.limit_depth(below[0].queue_max);
    }

    fn forecast(&self, at: Time, head: &IoHead, below: Ports<'_>) -> Forecast {
        // Nobody knows which of the chips will have done what by the time that the device has room: as they are now.
        below.after(self.fifo.wait(), below.ask(0, at, head))
    }

    fn submit(&mut self, _now: Time, io: Io, out: &mut Actions) {
        self.fifo.push(io);
        self.fill_device(out);
    }

    fn completed(&mut self, now: Time, c: Completion, out: &mut Actions) {
        self.fifo.came_back(now);
        out.complete(c);
        self.fill_device(out);
    }

    fn cancel(&mut self, _now: Time, id: IoId, out: &mut Actions) {
        if let Some(io) = self.fifo.withdraw(id) {
            out.end(io, Outcome::Failed(IoError::Cancelled));
        }
    }

    fn is_idle(&self) -> bool {
        self.fifo.is_idle()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_base::{TenantId, VolumeKey};

    /// Two chips on one channel; 16 KiB pages, the paper's figures.
    struct Chips([UnitWork; 2]);

    impl FlashInside for Chips {
        fn page_bytes(&self) -> u32 {
            16_384
        }
        fn units(&self) -> u32 {
            2
        }
        fn place(&self, offset: u64) -> (u32, u32) {
            (0, (offset / 16_384 % 2) as u32)
        }
        fn unit_work(&self, unit: u32) -> UnitWork {
            self.0[unit as usize]
        }
        fn channel_reads(&self, _: u32) -> u32 {
            self.0.iter().map(|w| w.reads).sum()
        }
    }

    fn profile() -> FlashProfile {
        FlashProfile {
            page_bytes: 16_384,
            read_us: 100.0,
            chip_us: 100.0,
            channel_us: 60.0,
            program_us: vec![1000.0, 2000.0],
            erase_us: 6000.0,
        }
    }

    fn read(offset: u64, len: u64) -> IoHead {
        IoHead::new(Op::Read, VolumeKey::POOL, TenantId(0), offset, len, Time::ZERO)
    }

    fn wait(chips: &Chips, head: &IoHead, precision: SsdPrecision) -> u64 {
        MittSsd::new(&profile(), precision).predict(chips, Time::ZERO + Span::from_millis(1), head).wait.as_micros()
    }

    #[test]
    fn chips_channels_classes_and_erases_are_counted() {
        let full = SsdPrecision::FULL;
        let idle = Chips([UnitWork::default(); 2]);
        assert_eq!(wait(&idle, &read(0, 4096), full), 0);
        let mut programs = [0; 9];
        (programs[0], programs[1]) = (1, 1);
        let busy = Chips([UnitWork { reads: 2, programs, erases: 1, busy_since: None }, UnitWork::default()]);
        assert_eq!(wait(&busy, &read(0, 4096), full), 200 + 1000 + 2000 + 6000);
        assert_eq!(wait(&busy, &read(16_384, 4096), full), 2 * 60, "only the channel is shared, and that by reads");
        let blind = SsdPrecision { channels: false, ..full };
        assert_eq!(wait(&busy, &read(16_384, 4096), blind), 0);
        let classless = SsdPrecision { classes: false, ..full };
        assert_eq!(wait(&busy, &read(0, 4096), classless), 200 + 2 * 1500 + 6000);
    }

    #[test]
    fn a_request_over_several_pages_waits_for_the_slowest() {
        let one = UnitWork { reads: 3, ..UnitWork::default() };
        let chips = Chips([UnitWork::default(), one]);
        assert_eq!(wait(&chips, &read(0, 16_384), SsdPrecision::FULL), 3 * 60);
        assert_eq!(wait(&chips, &read(0, 2 * 16_384), SsdPrecision::FULL), 300);
        assert_eq!(
            wait(&chips, &read(0, 4 * 16_384), SsdPrecision::FULL),
            400,
            "chopped: its own pages follow each other"
        );
    }

    #[test]
    fn what_the_chip_has_done_already_is_not_waited_for_again() {
        let since = Time::ZERO + Span::from_micros(400);
        let w = UnitWork { erases: 1, busy_since: Some(since), ..UnitWork::default() };
        assert_eq!(wait(&Chips([w, UnitWork::default()]), &read(0, 4096), SsdPrecision::FULL), 5400);
    }

    /// Without a profile nothing is said before enough was seen, then what was learned from the paper's figures on.
    #[test]
    fn without_a_profile_it_says_nothing_until_it_has_learned() {
        let mut m = MittSsd::unprofiled();
        let chips = Chips([UnitWork { erases: 1, ..UnitWork::default() }, UnitWork::default()]);
        for i in 0..200 {
            let p = m.predict(&chips, Time::ZERO, &read(0, 4096));
            assert_eq!(p.wait == Span::ZERO, i < UNPROFILED_READS, "after {i}: {p:?}");
            m.submitted(&chips, Time::ZERO, &read(0, 4096), i);
            m.ended(Time::ZERO + Span::from_micros(3000), i);
        }
        let p = m.predict(&chips, Time::ZERO, &read(0, 4096));
        let total = (p.wait + p.service).as_micros();
        assert!((2900..=3200).contains(&total), "it took 3 ms, not the paper's 6: {total}");
        let k = m.knowledge();
        assert!(k.learned == 200 && !k.profiled && k.confidence > Confidence(500), "{k:?}");
    }

    #[test]
    fn costs_follow_what_reads_take() {
        let mut m = MittSsd::new(&profile(), SsdPrecision::FULL);
        let chips = Chips([UnitWork { erases: 1, ..UnitWork::default() }, UnitWork::default()]);
        for i in 0..500 {
            m.submitted(&chips, Time::ZERO, &read(0, 4096), i);
            m.ended(Time::ZERO + Span::from_micros(7200 + 120), i);
        }
        let p = m.predict(&chips, Time::ZERO, &read(0, 4096));
        let total = (p.wait + p.service).as_micros();
        assert!((7200..=7400).contains(&total), "{total}");
    }
}
