//! A disk that the agent watches.

use crate::calibrate::{Calibration, Sample};
use crate::disk::Disk;
use crate::forecast::{Costs, Forecast, Load, Ratios};
use crate::layout::{DROP_ALL, Known, Orders, QUANTILES, RawSample, SAMPLES, Samples, State, number};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// A timed read and what was forecast of it.
#[derive(Clone, Copy, Debug)]
pub struct Judged {
    /// The read.
    pub sample: Sample,
    /// By the costs in force when it came.
    pub forecast: Forecast,
    /// The errors of such forecasts when it came.
    ratios: [u32; QUANTILES],
}

impl Judged {
    /// The probability when it came, in thousandths, that the read takes longer than `deadline_ns`.
    pub fn late_permille(&self, deadline_ns: u64) -> u32 {
        self.forecast.late_permille_by(&self.ratios, deadline_ns)
    }
}

/// A disk that the agent watches.
pub struct Watched {
    disk: Disk,
    slot: usize,
    calibration: Calibration,
    judged: Option<Vec<Judged>>,
    ratios: Ratios,
    /// Completions and requests in flight when they were last compared with the kernel's.
    compared: (u64, [u64; 2]),
    round: Round,
    /// Ticks with requests queued, none in flight and none completed.
    idle: u32,
}

impl Watched {
    pub(super) fn new(disk: Disk, slot: usize, costs: Option<Costs>) -> Watched {
        let calibration = costs.map_or_else(|| Calibration::new(disk.rotational), Calibration::with_costs);
        let ratios = calibration.ratios();
        Watched {
            disk,
            slot,
            calibration,
            judged: None,
            ratios,
            compared: (0, [0; 2]),
            round: Round::default(),
            idle: 0,
        }
    }

    /// The disk.
    pub fn disk(&self) -> &Disk {
        &self.disk
    }

    pub(super) fn slot(&self) -> usize {
        self.slot
    }

    /// The costs in force.
    pub fn costs(&self) -> &Costs {
        self.calibration.costs()
    }

    /// True if enough is known for forecasts.
    pub fn knows(&self) -> bool {
        self.calibration.knows()
    }

    /// Reads that were timed.
    pub fn seen(&self) -> u64 {
        self.calibration.seen()
    }

    /// From now on, keeps each timed read with its forecast.
    pub fn judge(&mut self) {
        self.judged = Some(Vec::new());
    }

    /// Timed reads since the last call.
    pub fn judged(&mut self) -> Vec<Judged> {
        self.judged.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Takes in what was timed.
    pub(super) fn take(&mut self, from: &Samples, orders: &Orders, known: &Known) {
        let (head, mut tail) = (from.head.load(Acquire), from.tail.load(Relaxed));
        let taken = tail != head;
        while tail != head {
            let sample = sample(&from.ring[tail as usize % SAMPLES], self.disk.dev);
            tail = tail.wrapping_add(1);
            if let Some(sample) = sample
                && let Some(forecast) = self.calibration.take(sample)
                && let Some(judged) = &mut self.judged
            {
                judged.push(Judged { sample, forecast, ratios: self.ratios[forecast.class()] });
            }
        }
        from.tail.store(tail, Release);
        if taken {
            self.ratios = self.publish(orders, known);
        }
    }

    /// Gives the costs to the programs and to readers. Returns the ratios that readers got.
    pub(super) fn publish(&self, orders: &Orders, known: &Known) -> Ratios {
        let c = self.costs();
        for (to, ns) in [
            (&orders.read_ns, c.read_ns),
            (&orders.read_ns_per_kib, c.read_ns_per_kib),
            (&orders.write_ns, c.write_ns),
            (&orders.write_ns_per_kib, c.write_ns_per_kib),
            (&known.alone_ns, c.alone_ns),
            (&known.alone_ns_per_kib, c.alone_ns_per_kib),
            (&known.read_ns, c.read_ns),
            (&known.read_ns_per_kib, c.read_ns_per_kib),
            (&known.queued_read_ns, c.queued_read_ns),
            (&known.queued_write_ns, c.queued_write_ns),
        ] {
            to.store(ns, Relaxed);
        }
        let ratios = self.calibration.ratios();
        for (to, from) in known.ratio_permille.iter().flatten().zip(ratios.iter().flatten()) {
            to.store(*from, Relaxed);
        }
        let samples = if self.knows() { self.calibration.seen().clamp(1, u32::MAX.into()) as u32 } else { 0 };
        known.samples.store(samples, Relaxed);
        ratios
    }

    /// Compares what is counted with what the kernel has, once a tick. Returns the reads and writes to drop: [`DROP_ALL`] of both if the
    /// disk has been idle by the kernel's count for two ticks, or for [`IDLE`] ones with requests queued; else those by which the kernel's count
    /// was smaller at every tick of a round.
    pub(super) fn compare(&mut self, state: &State, kernel: impl FnOnce() -> Option<[u64; 2]>) -> Option<[u32; 2]> {
        let load = Load::of(state);
        let ours = [number(load.reads), number(load.writes)];
        let now = (state.completed.load(Relaxed), ours);
        let is_same = std::mem::replace(&mut self.compared, now) == now;
        if ours == [0, 0] {
            self.round = Round::default();
            self.idle = if is_same && load.requests() > 0 { self.idle + 1 } else { 0 };
            if self.idle <= IDLE {
                return None;
            }
            self.idle = 0;
            return (kernel() == Some([0, 0])).then_some([DROP_ALL; 2]);
        }
        self.idle = 0;
        let kernel = kernel()?;
        if is_same && kernel == [0, 0] {
            self.round = Round::default();
            return Some([DROP_ALL; 2]);
        }
        for ((least, ours), kernel) in self.round.least.iter_mut().zip(ours).zip(kernel) {
            *least = (*least).min(ours.saturating_sub(kernel));
        }
        self.round.ticks += 1;
        if self.round.ticks < ROUND {
            return None;
        }
        let least = std::mem::take(&mut self.round).least;
        (least != [0, 0]).then(|| least.map(|n| u32::try_from(n).unwrap_or(u32::MAX - 1)))
    }
}

/// Ticks of a round of comparisons: at each the two counts are of slightly different times.
const ROUND: u32 = 10;

/// Ticks of a second. The kernel has no count of what is queued; a scheduler that holds requests back for longer isn't known.
const IDLE: u32 = 50;

/// By how much the kernel's counts were smaller, at least.
struct Round {
    ticks: u32,
    least: [u64; 2],
}

impl Default for Round {
    fn default() -> Round {
        Round { ticks: 0, least: [u64::MAX; 2] }
    }
}

fn sample(raw: &RawSample, dev: u32) -> Option<Sample> {
    let w: [u64; 8] = std::array::from_fn(|i| raw.words[i].load(Relaxed));
    let [arrived_ns, done_ns, next_free_ns, reads, writes, queued, bytes, of] = w;
    let before =
        Load { reads, writes, queued_reads: queued as u32, queued_writes: (queued >> 32) as u32, next_free_ns };
    (of == u64::from(dev) && done_ns > arrived_ns).then_some(Sample { arrived_ns, done_ns, before, bytes })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watched() -> Watched {
        Watched::new(Disk { dev: 8 << 20, name: "sda".into(), rotational: false }, 3, None)
    }

    /// Memory of the BPF programs, all zeros.
    fn zeros<T: crate::layout::Shared>() -> crate::shared::Mapped<T> {
        use std::os::fd::AsFd;
        let file = crate::shared::memory_file::<T>("test").unwrap();
        crate::shared::Mapped::writable(file.as_fd()).unwrap()
    }

    fn put(samples: &Samples, n: u64) {
        for i in 0..n {
            let at = samples.head.load(Relaxed);
            let words = [1000 + i, 90_000 + 1000 + i, 0, 0, 0, 0, 4096, 8 << 20];
            for (to, w) in samples.ring[at as usize % SAMPLES].words.iter().zip(words) {
                to.store(w, Relaxed);
            }
            samples.head.store(at + 1, Relaxed);
        }
    }

    #[test]
    fn timed_reads_become_costs_for_programs_and_readers() {
        let (samples, orders, notice) = (
            zeros::<crate::layout::AllSamples>(),
            zeros::<crate::layout::AllOrders>(),
            zeros::<crate::layout::Notice>(),
        );
        let mut w = watched();
        w.judge();
        w.publish(&orders.of[3], &notice.of[3]);
        assert!(notice.of[3].costs().is_none());
        for _ in 0..2 {
            put(&samples.of[3], 32);
            w.take(&samples.of[3], &orders.of[3], &notice.of[3]);
        }
        assert_eq!(samples.of[3].tail.load(Relaxed), 64);
        let costs = notice.of[3].costs().unwrap();
        assert_eq!(costs.forecast(&Load::default(), 0, 4096).total_ns, 90_000);
        assert!(orders.of[3].read_ns.load(Relaxed) > 0);
        assert_eq!(w.judged().len(), 32, "those that came before anything was known aren't judged");
    }

    /// As many reads as can be timed of twelve disks in a second take a fifth of a second at most to learn from: the thread also beats.
    #[test]
    fn learning_leaves_time_for_the_heartbeat() {
        const DISKS: u32 = 12;
        const TAKES: u64 = 25;
        let (samples, orders, notice) = (
            zeros::<crate::layout::AllSamples>(),
            zeros::<crate::layout::AllOrders>(),
            zeros::<crate::layout::Notice>(),
        );
        let processor = || {
            let t = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
            t.tv_sec as u64 * 1000 + t.tv_nsec as u64 / 1_000_000
        };
        let each = SAMPLES as u64 - 2 * crate::layout::PROBES as u64;
        let word = |n: u64| (n << crate::layout::COUNT_SHIFT) + n * 4096;
        let begun = processor();
        for _ in 0..DISKS {
            let mut w = watched();
            for i in 0..TAKES * each {
                let (r, writes, queued) = (i % 7, i / 7 % 5, i / 3 % 11);
                let arrived = (i + 1) * 1_000_000_000 / (TAKES * each);
                let took = (r + 1) * 80_000 + writes * 300_000 + queued * 50_000 + i * 7919 % 60_000;
                let at = samples.of[3].head.load(Relaxed);
                let words = [arrived, arrived + took, arrived, word(r), word(writes), queued, 4096, 8 << 20];
                for (to, w) in samples.of[3].ring[at as usize % SAMPLES].words.iter().zip(words) {
                    to.store(w, Relaxed);
                }
                samples.of[3].head.store(at + 1, Relaxed);
                if (i + 1) % each == 0 {
                    w.take(&samples.of[3], &orders.of[3], &notice.of[3]);
                }
            }
            assert_eq!(w.seen(), TAKES * each);
        }
        let took_ms = processor() - begun;
        assert!(took_ms < 200, "{took_ms} ms of a second");
    }

    #[test]
    fn requests_that_stay_queued_on_an_idle_disk_are_dropped() {
        let states = zeros::<crate::layout::States>();
        let state = &states.of[3];
        let mut w = watched();
        state.queued.store(1 << 32 | 2, Relaxed);
        let ticks = |w: &mut Watched, n: u32, kernel: Option<[u64; 2]>| {
            (0..n).filter_map(|_| w.compare(state, || kernel)).collect::<Vec<_>>()
        };
        let none: [[u32; 2]; 0] = [];
        assert_eq!(ticks(&mut w, IDLE, Some([0, 0])), none, "a scheduler may wait that long");
        assert_eq!(ticks(&mut w, 1, Some([0, 0])), [[DROP_ALL; 2]]);
        assert_eq!(ticks(&mut w, IDLE, Some([0, 0])), none, "not again at once");
        state.completed.store(1, Relaxed);
        assert_eq!(ticks(&mut w, IDLE, Some([0, 0])), none, "it isn't idle");
        assert_eq!(ticks(&mut w, 2 * IDLE, Some([1, 0])), none, "the kernel has one in flight");
        assert_eq!(ticks(&mut w, 2 * IDLE, None), none, "the kernel doesn't count");
        state.queued.store(0, Relaxed);
        assert_eq!(ticks(&mut w, 2 * IDLE, Some([0, 0])), none);
    }

    #[test]
    fn requests_that_the_kernel_does_not_have_are_dropped() {
        let states = zeros::<crate::layout::States>();
        let state = &states.of[3];
        let mut w = watched();
        let reads = |n: u64| state.reads.store(n << crate::layout::COUNT_SHIFT, Relaxed);
        reads(1);
        assert_eq!(w.compare(state, || Some([0, 0])), None, "it may just have been issued");
        assert_eq!(w.compare(state, || Some([0, 0])), Some([DROP_ALL; 2]));
        assert!((0..4 * ROUND).all(|_| w.compare(state, || Some([1, 0])).is_none()), "the kernel has one too");
        // A busy disk: two too many at every tick, now and then more.
        let mut busy = |over: u64| {
            let looks = (0..ROUND as u64).map(|i| {
                state.completed.store(i + over * 1000, Relaxed);
                reads(4 + i % 3 + over);
                w.compare(state, || Some([4 - i % 2, 0]))
            });
            looks.last().unwrap()
        };
        assert_eq!(busy(2), Some([2, 0]));
        assert_eq!(busy(0), None);
    }
}
