//! Flash whose channels and chips are seen: MittSSD (MittOS §4.3; MT-M14 to M18).
//!
//! A chip is free when all its waiting work is done. So a read waits for the sum of its chip's operations, garbage collection's
//! among them: page reads, programs by class of page, and erases. It also waits for the transfers of other chips on its channel. A
//! request over several pages waits for the slowest page, behind its own pages on that chip and channel. If that page is late, all
//! of the request is refused and no page is sent. The costs come from a profile and follow the actual times of reads.

use crate::device::PROBE_AFTER;
use crate::fifo::Fifo;
use crate::profile::FlashProfile;
use plimsoll_base::{Completion, Confidence, Io, IoError, IoHead, IoId, Op, Outcome, Span, Time};
use plimsoll_stack::inside::{FlashInside, FlashPredictor, Knowledge, Predicted, UnitWork};
use plimsoll_stack::{Actions, Forecast, Layer, Offer, Ports};
use std::collections::BTreeMap;

/// Number of classes of pages with costs of their own.
const CLASSES: usize = 9;
/// Terms of a read's time: its own read, others' reads of its chip, programs by class, erases, others on its channel.
const TERMS: usize = 3 + CLASSES + 1;
const OWN: usize = 0;
const READ: usize = 1;
const PROGRAM: usize = 2;
const ERASE: usize = 2 + CLASSES;
const CHANNEL: usize = 3 + CLASSES;

/// Parts of the prediction that are used: all of them except in ablations (MT-E13).
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

/// Work that a read found in front of it.
#[derive(Clone, Copy)]
struct Seen {
    counts: [u32; TERMS],
    arrived_at: Time,
    predicted_ns: i64,
    /// It was to be late, and went because no read had been seen for long.
    asked_again: bool,
}

/// Work that the slowest of a request's pages finds in front of it.
struct Slowest {
    counts: [u32; TERMS],
    wait_ns: i64,
}

/// See the module's documentation.
pub struct MittSsd {
    /// Nanoseconds of each term.
    costs: [i64; TERMS],
    /// Costs by the profile; learned ones stay within [`OFF_MOST`] of it.
    measured: [i64; TERMS],
    precision: SsdPrecision,
    seen: BTreeMap<u64, Seen>,
    last_read: Time,
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
            last_read: Time::ZERO,
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

    /// Returns the work in front of a read of the page at `offset`.
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

    /// The slowest page of a request, by these costs. Its own pages of one chip follow each other, and those of other chips on
    /// the channel have it one after the other.
    fn slowest(&self, costs: &[i64; TERMS], inside: &dyn FlashInside, at: Time, head: &IoHead) -> Slowest {
        let page = u64::from(inside.page_bytes());
        let first = head.offset / page;
        let pages = head.end().div_ceil(page).max(first + 1) - first;
        let units = u64::from(inside.units());
        // Consecutive pages go round the units.
        let on_unit = |i: u64| (pages - i).div_ceil(units) as u32;
        let shares_channels = pages > 1 && self.precision.channels && self.precision.chips && head.op == Op::Read;
        let mut on_channel = vec![0u32; if shares_channels { units as usize } else { 0 }];
        if shares_channels {
            for i in 0..pages.min(units) {
                on_channel[inside.place((first + i) * page).0 as usize] += on_unit(i);
            }
        }
        let mut slowest = Slowest { counts: [0; TERMS], wait_ns: -1 };
        for i in 0..pages.min(units) {
            let (mut counts, elapsed_ns) = self.look(inside, at, (first + i) * page);
            counts[READ] += on_unit(i) - 1;
            if shares_channels {
                counts[CHANNEL] += on_channel[inside.place((first + i) * page).0 as usize] - on_unit(i);
            }
            let wait_ns = wait_ns(costs, &counts, elapsed_ns);
            if wait_ns > slowest.wait_ns {
                slowest = Slowest { counts, wait_ns };
            }
        }
        slowest
    }

    fn by(&self, costs: &[i64; TERMS], inside: &dyn FlashInside, at: Time, head: &IoHead) -> Predicted {
        let wait = Span::from_nanos(self.slowest(costs, inside, at, head).wait_ns as u64);
        let service = if head.op == Op::Read { costs[OWN] } else { costs[PROGRAM] };
        Predicted { wait, service: Span::from_nanos(service as u64), confidence: self.confidence() }
    }

    /// True if no read was seen for `PROBE_AFTER`. The next read is then sent whatever its forecast: a wrong forecast could refuse
    /// every read, and would never be corrected.
    fn is_forgotten(&self, at: Time) -> bool {
        self.seen.is_empty() && at.since(self.last_read) > PROBE_AFTER
    }

    /// Corrects all costs after a read that was let through following a long pause. If it took less than was learned, all
    /// learned costs are scaled by the same ratio, down to the measured ones at the least.
    fn ease(&mut self, s: &Seen, took_ns: i64) {
        if !s.asked_again || took_ns >= s.predicted_ns || !self.precision.calibrate {
            return;
        }
        for (cost, measured) in self.costs.iter_mut().zip(self.measured) {
            let scaled = (i128::from(*cost) * i128::from(took_ns) / i128::from(s.predicted_ns.max(1))) as i64;
            let least = if self.profiled { measured.min(*cost) } else { 0 };
            *cost = scaled.max(least);
        }
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

/// Prediction without any knowledge.
const NOTHING: Predicted = Predicted { wait: Span::ZERO, service: Span::ZERO, confidence: Confidence::NONE };

fn wait_ns(costs: &[i64; TERMS], counts: &[u32; TERMS], elapsed_ns: i64) -> i64 {
    let chip: i64 = (READ..CHANNEL).map(|i| i64::from(counts[i]) * costs[i]).sum();
    // The current operation can't have done more than one of its kind takes.
    let most = (READ..CHANNEL).filter(|&i| counts[i] > 0).map(|i| costs[i]).max().unwrap_or(0);
    (chip - elapsed_ns.min(most)).max(0) + i64::from(counts[CHANNEL]) * costs[CHANNEL]
}

impl FlashPredictor for MittSsd {
    fn predict(&self, inside: &dyn FlashInside, at: Time, head: &IoHead) -> Predicted {
        if !self.profiled && self.samples < UNPROFILED_READS {
            // Nothing is refused on a guess.
            return NOTHING;
        }
        let said = self.by(&self.costs, inside, at, head);
        let is_late = head.op == Op::Read && head.deadline.is_set() && at + said.wait + said.service > head.deadline;
        match is_late && self.is_forgotten(at) {
            true if self.profiled => self.by(&self.measured, inside, at, head),
            true => NOTHING,
            false => said,
        }
    }

    fn submitted(&mut self, inside: &dyn FlashInside, now: Time, head: &IoHead, token: u64) {
        if head.op != Op::Read {
            return;
        }
        let Slowest { counts, wait_ns } = self.slowest(&self.costs, inside, now, head);
        let predicted_ns = wait_ns + self.costs[OWN];
        let is_late = head.deadline.is_set() && predicted_ns as u64 > head.deadline.since(now).as_nanos();
        let asked_again = is_late && self.is_forgotten(now);
        self.seen.insert(token, Seen { counts, arrived_at: now, predicted_ns, asked_again });
    }

    fn ended(&mut self, now: Time, token: u64) {
        if let Some(s) = self.seen.remove(&token) {
            self.last_read = now;
            let took_ns = now.since(s.arrived_at).as_nanos() as i64;
            self.ease(&s, took_ns);
            self.learn(&s, took_ns);
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

    fn fill_device(&mut self, now: Time, out: &mut Actions) {
        while let Some(io) = self.fifo.next(now) {
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

    fn submit(&mut self, now: Time, io: Io, out: &mut Actions) {
        self.fifo.push(io);
        self.fill_device(now, out);
    }

    fn completed(&mut self, now: Time, c: Completion, out: &mut Actions) {
        self.fifo.came_back(now);
        out.complete(c);
        self.fill_device(now, out);
    }

    fn cancel(&mut self, _now: Time, id: IoId, out: &mut Actions) {
        if let Some(io) = self.fifo.withdraw(id) {
            out.end(io, Outcome::Failed(IoError::Cancelled));
        }
    }

    fn is_idle(&self) -> bool {
        self.fifo.is_idle()
    }

    fn check(&self) {
        self.fifo.check();
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
        let alone = SsdPrecision { channels: false, ..SsdPrecision::FULL };
        assert_eq!(wait(&chips, &read(0, 2 * 16_384), alone), 300);
        assert_eq!(wait(&chips, &read(0, 4 * 16_384), alone), 400, "chopped: its own pages follow each other");
    }

    /// A large read's own pages on a channel are in front of its last page.
    #[test]
    fn its_own_pages_share_the_channel() {
        let idle = Chips([UnitWork::default(); 2]);
        assert_eq!(wait(&idle, &read(0, 16_384), SsdPrecision::FULL), 0);
        assert_eq!(wait(&idle, &read(0, 2 * 16_384), SsdPrecision::FULL), 60, "one page of the other chip");
        assert_eq!(wait(&idle, &read(0, 4 * 16_384), SsdPrecision::FULL), 100 + 2 * 60, "each chip two");
    }

    /// Reads of several pages teach, too: a client that makes no others would never be told anything.
    #[test]
    fn large_reads_teach() {
        let mut m = MittSsd::unprofiled();
        let idle = Chips([UnitWork::default(); 2]);
        for i in 0..300 {
            m.submitted(&idle, Time::ZERO, &read(0, 4 * 16_384), i);
            m.ended(Time::ZERO + Span::from_micros(640), i);
        }
        let p = m.predict(&idle, Time::ZERO, &read(0, 4 * 16_384));
        let total = (p.wait + p.service).as_micros();
        assert!((600..=660).contains(&total), "{total} instead of 640");
    }

    /// A chip that was slow for a while and is no more: who has a deadline finds out, and what it can't do is still refused.
    #[test]
    fn a_drive_that_has_healed_is_read_again() {
        let idle = Chips([UnitWork::default(); 2]);
        for (unprofiled, slow_us) in [(true, 3000), (false, 145)] {
            let mut m = if unprofiled { MittSsd::unprofiled() } else { MittSsd::new(&profile(), SsdPrecision::FULL) };
            let mut now = Time::ZERO;
            for i in 0..2000 {
                m.submitted(&idle, now, &read(0, 4096), i);
                now += Span::from_micros(slow_us);
                m.ended(now, i);
            }
            let mut offer = |now: Time, deadline_us: u64, id: u64| {
                let head = IoHead { deadline: now + Span::from_micros(deadline_us), ..read(0, 4096) };
                let p = m.predict(&idle, now, &head);
                let accepted = now + p.wait + p.service <= head.deadline;
                if accepted {
                    m.submitted(&idle, now, &head, id);
                    m.ended(now + Span::from_micros(100), id);
                }
                accepted
            };
            assert!(!offer(now, 120, 5000), "slow it was");
            let accepted = (0..1000).filter(|i| offer(now + Span::from_millis(10 * i), 120, 6000 + i)).count();
            assert!(accepted > 850, "{accepted} of 1000 within ten seconds");
            let later = now + Span::from_secs(30);
            assert!(unprofiled || !offer(later, 50, 9000), "nothing takes less than was measured");
        }
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
