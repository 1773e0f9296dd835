//! Costs of a device, learned from reads that were timed (MittOS §4.1: "calibrates the predictor").
//!
//! A read that finds the device idle shows a read's time alone. One that finds requests before it shows their delay. The costs
//! follow from least squares over the numbers and bytes of those requests, towards the costs known before. That is done twice,
//! the second time without outliers. Each read is first judged by the costs in force at its arrival, so readers get the errors
//! of real forecasts.

use crate::forecast::{Costs, Forecast, Load, Ratios};
use crate::layout::{CLASSES, QUANTILES, bytes, number};
use std::collections::VecDeque;

/// Reads that are remembered.
const WINDOW: usize = 512;
/// Errors that are remembered, of each class.
const ERRORS: usize = 256;
/// With fewer reads than this nothing is known.
const ENOUGH: u64 = 32;
/// Costs are learned again after this number of reads and this time, by the reads' own: learning must not hold up the agent's heartbeat.
const EVERY: u64 = 32;
const EVERY_NS: u64 = 100_000_000;
/// The weight of earlier costs, in reads.
const PRIOR_WEIGHT: f64 = 4.0;
/// Of the fit for reads with requests before them.
const UNKNOWNS: usize = 6;

/// A read that was timed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sample {
    /// Time of its arrival.
    pub arrived_ns: u64,
    /// Time of its end.
    pub done_ns: u64,
    /// The load just before it.
    pub before: Load,
    /// Its bytes.
    pub bytes: u64,
}

impl Sample {
    /// The time that it took.
    pub fn took_ns(&self) -> u64 {
        self.done_ns.saturating_sub(self.arrived_ns)
    }

    fn kib(&self) -> f64 {
        self.bytes as f64 / 1024.0
    }
}

/// Learns a device's costs.
pub struct Calibration {
    costs: Costs,
    window: VecDeque<Sample>,
    errors: [VecDeque<u32>; CLASSES],
    seen: u64,
    given: bool,
    /// Reads seen, and the last one's end, when costs were learned.
    learned_at: (u64, u64),
}

impl Calibration {
    /// Knows nothing. A rotating device does one request at a time, until reads say otherwise.
    pub fn new(rotational: bool) -> Calibration {
        let (alone, per_kib, several) = if rotational { (8_000_000, 7_000, 1) } else { (100_000, 400, 8) };
        let costs = Costs {
            alone_ns: alone,
            alone_ns_per_kib: per_kib,
            read_ns: alone / several,
            read_ns_per_kib: per_kib,
            write_ns: alone / several,
            write_ns_per_kib: per_kib,
            queued_read_ns: alone / several,
            queued_write_ns: alone / several / 4,
        };
        let (window, errors) = (VecDeque::new(), Default::default());
        Calibration { costs, window, errors, seen: 0, given: false, learned_at: (0, 0) }
    }

    /// Begins with costs that were measured (`plimsoll profile`).
    pub fn with_costs(costs: Costs) -> Calibration {
        Calibration { costs, given: true, ..Calibration::new(true) }
    }

    /// The costs in force.
    pub fn costs(&self) -> &Costs {
        &self.costs
    }

    /// True if enough is known for forecasts: the costs were given, or `ENOUGH` reads were timed.
    pub fn knows(&self) -> bool {
        self.given || self.seen >= ENOUGH
    }

    /// Reads that were timed.
    pub fn seen(&self) -> u64 {
        self.seen
    }

    /// Takes in a read. Returns what was forecast of it, if anything was, by the costs before.
    pub fn take(&mut self, sample: Sample) -> Option<Forecast> {
        let forecast = self.costs.forecast(&sample.before, sample.arrived_ns, sample.bytes);
        let known = self.knows();
        // Rounded up: a ratio of zero would say that no read is ever late.
        let ratio = (u128::from(sample.took_ns()) * 1000).div_ceil(u128::from(forecast.total_ns.max(1)));
        let errors = &mut self.errors[forecast.class()];
        if errors.len() == ERRORS {
            errors.pop_front();
        }
        errors.push_back(u32::try_from(ratio).unwrap_or(u32::MAX));
        if self.window.len() == WINDOW {
            self.window.pop_front();
        }
        self.window.push_back(sample);
        self.seen += 1;
        let (seen, done_ns) = self.learned_at;
        let is_due = self.seen - seen >= EVERY && sample.done_ns.abs_diff(done_ns) >= EVERY_NS;
        if is_due || self.seen == ENOUGH {
            self.learned_at = (self.seen, sample.done_ns);
            if !known || self.seen == ENOUGH {
                // What was forecast before anything was known says nothing of forecasts.
                self.errors = Default::default();
            }
            self.learn();
        }
        known.then_some(forecast)
    }

    /// Quantiles of actual by forecast time. A class of which little is known has the ratio one.
    pub fn ratios(&self) -> Ratios {
        let mut ratios = [[1000; QUANTILES]; CLASSES];
        for (to, errors) in ratios.iter_mut().zip(&self.errors) {
            if errors.len() < QUANTILES {
                continue;
            }
            let mut sorted: Vec<u32> = errors.iter().copied().collect();
            sorted.sort_unstable();
            for (i, q) in to.iter_mut().enumerate() {
                *q = sorted[(2 * i + 1) * sorted.len() / (2 * QUANTILES)];
            }
        }
        ratios
    }

    fn learn(&mut self) {
        self.learn_alone();
        self.learn_busy();
    }

    fn learn_alone(&mut self) {
        let mut alone: Vec<Sample> = self.window.iter().filter(|s| s.before.requests() == 0).copied().collect();
        if alone.len() < 8 {
            // Never idle: the fastest tell what a read takes at best.
            alone = self.window.iter().copied().collect();
            alone.sort_unstable_by_key(Sample::took_ns);
            alone.truncate(alone.len() / 8);
            if let Some(s) = alone.last()
                && s.took_ns() < u64::from(self.costs.alone_ns)
            {
                self.costs.alone_ns = to_ns(s.took_ns() as f64);
            }
            return;
        }
        let middle = median(alone.iter().map(Sample::kib).collect());
        let (small, large): (Vec<Sample>, Vec<Sample>) = alone.iter().partition(|s| s.kib() <= middle);
        let typical = |of: &[Sample]| {
            let kib = of.iter().map(Sample::kib).sum::<f64>() / of.len().max(1) as f64;
            (kib, median(of.iter().map(|s| s.took_ns() as f64).collect()))
        };
        let (kib, took) = typical(&small);
        let mut slope = f64::from(self.costs.alone_ns_per_kib);
        if large.len() >= 8 {
            let (more_kib, longer) = typical(&large);
            // Sizes that differ by little say nothing of what a KiB takes.
            if more_kib >= 2.0 * kib {
                slope = ((longer - took) / (more_kib - kib)).max(0.0);
            }
        }
        slope = slope.min(took / kib.max(1.0) / 2.0);
        self.costs.alone_ns_per_kib = to_ns(slope);
        self.costs.alone_ns = to_ns(took - slope * kib);
    }

    fn learn_busy(&mut self) {
        // Of a device that does several at once, requests up to that number hold up nothing, and say nothing of their costs.
        let own = |s: &Sample| f64::from(self.costs.alone_ns) + f64::from(self.costs.alone_ns_per_kib) * s.kib();
        let busy: Vec<&Sample> = self.window.iter().filter(|s| s.before.requests() > 0).collect();
        let c = &self.costs;
        let now = [c.read_ns, c.read_ns_per_kib, c.write_ns, c.write_ns_per_kib, c.queued_read_ns, c.queued_write_ns];
        let mut costs = now.map(f64::from);
        for round in 0..3 {
            let fits = |s: &Sample| {
                let expected = dot(&costs, &features(s)).max(own(s));
                let took = s.took_ns() as f64;
                round == 0 || (took < 3.0 * expected && took > expected / 3.0)
            };
            let counts = |s: &Sample| dot(&costs, &features(s)) >= own(s) || s.took_ns() as f64 > 2.0 * own(s);
            let used: Vec<([f64; UNKNOWNS], f64)> = busy
                .iter()
                .filter(|s| counts(s) && fits(s))
                .map(|s| {
                    // Each counts by its relative error.
                    let took = (s.took_ns() as f64).max(1.0);
                    (features(s).map(|x| x / took), 1.0)
                })
                .collect();
            if used.len() < 16 {
                break;
            }
            costs = least_squares(&used, &costs);
        }
        self.costs.read_ns = to_ns(costs[0]).max(1);
        self.costs.read_ns_per_kib = to_ns(costs[1]);
        self.costs.write_ns = to_ns(costs[2]);
        self.costs.write_ns_per_kib = to_ns(costs[3]);
        self.costs.queued_read_ns = to_ns(costs[4]);
        self.costs.queued_write_ns = to_ns(costs[5]);
    }
}

/// Numbers and KiB of what is in flight with the read itself, then what is queued.
fn features(s: &Sample) -> [f64; UNKNOWNS] {
    let b = &s.before;
    [
        number(b.reads) as f64 + 1.0,
        bytes(b.reads) as f64 / 1024.0 + s.kib(),
        number(b.writes) as f64,
        bytes(b.writes) as f64 / 1024.0,
        f64::from(b.queued_reads),
        f64::from(b.queued_writes),
    ]
}

fn dot(a: &[f64; UNKNOWNS], b: &[f64; UNKNOWNS]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn to_ns(x: f64) -> u32 {
    x.round().clamp(0.0, f64::from(u32::MAX)) as u32
}

fn median(mut of: Vec<f64>) -> f64 {
    of.sort_unstable_by(f64::total_cmp);
    of.get(of.len() / 2).copied().unwrap_or(0.0)
}

/// Solves `x · costs = y` for costs that aren't negative, drawn towards `prior`.
fn least_squares(rows: &[([f64; UNKNOWNS], f64)], prior: &[f64; UNKNOWNS]) -> [f64; UNKNOWNS] {
    let mut costs = *prior;
    // The normal equations: their size is that of the unknowns, whatever the number of rows.
    let mut products = [[0.0; UNKNOWNS]; UNKNOWNS];
    let mut targets = [0.0; UNKNOWNS];
    for (x, y) in rows {
        for j in 0..UNKNOWNS {
            targets[j] += x[j] * y;
            for k in 0..UNKNOWNS {
                products[j][k] += x[j] * x[k];
            }
        }
    }
    // One unknown after the other, which keeps each at zero at least; it converges, as the sum of squares is convex.
    for _ in 0..200 {
        let mut moved = 0.0;
        for j in 0..UNKNOWNS {
            let square = products[j][j];
            let weight = square * PRIOR_WEIGHT / rows.len() as f64;
            if square <= 0.0 {
                continue;
            }
            let slack = targets[j] - dot(&costs, &products[j]) + costs[j] * square;
            let next = ((slack + weight * prior[j]) / (square + weight)).max(0.0);
            moved += (next - costs[j]).abs() / (costs[j].abs() + 1.0);
            costs[j] = next;
        }
        if moved < 1e-6 {
            break;
        }
    }
    costs
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::COUNT_SHIFT;

    fn word(number: u64, kib: u64) -> u64 {
        (number << COUNT_SHIFT) + number * kib * 1024
    }

    /// Reads at depths 0 to `depth` of a device that does `several` at once, each 4 KiB read `ns` alone.
    fn reads(calibration: &mut Calibration, ns: u64, several: u64, depth: u64, count: u64) {
        for i in 0..count {
            let ahead = i % (depth + 1);
            let arrived_ns = i * 1_000_000_000;
            // A few percent of error, of a fixed pattern.
            let took = ns.max((ahead + 1) * ns / several) * (97 + i * 7 % 7) / 100;
            let costs = calibration.costs();
            let work = ahead * (u64::from(costs.read_ns) + 4 * u64::from(costs.read_ns_per_kib));
            let before = Load { reads: word(ahead, 4), next_free_ns: arrived_ns + work, ..Load::default() };
            calibration.take(Sample { arrived_ns, done_ns: arrived_ns + took, before, bytes: 4096 });
        }
    }

    #[test]
    fn a_disk_is_learned() {
        let mut c = Calibration::new(false);
        assert!(!c.knows());
        reads(&mut c, 5_000_000, 1, 8, 600);
        let f = c.costs().forecast(&Load::default(), 0, 4096).total_ns;
        assert!(f.abs_diff(5_000_000) < 250_000, "{f}");
        let held = c.costs().read_ns + 4 * c.costs().read_ns_per_kib;
        assert!(held.abs_diff(5_000_000) < 400_000, "{held} {:?}", c.costs());
        let ratios = c.ratios();
        assert!(ratios[2].iter().all(|r| (850..1150).contains(r)), "{ratios:?}");
    }

    #[test]
    fn flash_that_does_eight_at_once_is_learned() {
        let mut c = Calibration::new(true);
        reads(&mut c, 80_000, 8, 31, 2000);
        let held = c.costs().read_ns + 4 * c.costs().read_ns_per_kib;
        assert!(held.abs_diff(10_000) < 1_500, "{held} {:?}", c.costs());
    }

    #[test]
    fn forecasts_a_thousand_times_too_long_still_say_that_reads_are_late() {
        let mut c = Calibration::new(true);
        for i in 0..200u64 {
            let before = Load { writes: word(1, 4), next_free_ns: i * 1_000_000_000 + 90_000_000, ..Load::default() };
            let arrived_ns = i * 1_000_000_000;
            c.take(Sample { arrived_ns, done_ns: arrived_ns + 5_000, before, bytes: 4096 });
        }
        assert!(c.ratios().iter().flatten().all(|ratio| *ratio > 0), "{:?}", c.ratios());
    }

    #[test]
    fn a_device_that_becomes_slower_is_followed() {
        let mut c = Calibration::new(false);
        reads(&mut c, 1_000_000, 1, 4, 600);
        reads(&mut c, 4_000_000, 1, 4, 1200);
        let f = c.costs().forecast(&Load::default(), 0, 4096).total_ns;
        assert!(f.abs_diff(4_000_000) < 300_000, "{f}");
    }

    #[test]
    fn writes_before_a_read_are_learned_apart() {
        let mut c = Calibration::new(false);
        for i in 0..600u64 {
            let (r, w) = (i % 3, i / 3 % 4);
            let arrived_ns = i * 1_000_000_000;
            let took = (r + 1) * 1_000_000 + w * 6_000_000;
            let costs = *c.costs();
            let work = r * u64::from(costs.read_ns) + w * u64::from(costs.write_ns);
            let before =
                Load { reads: word(r, 4), writes: word(w, 64), next_free_ns: arrived_ns + work, ..Load::default() };
            c.take(Sample { arrived_ns, done_ns: arrived_ns + took, before, bytes: 4096 });
        }
        let write = c.costs().write_ns + 64 * c.costs().write_ns_per_kib;
        assert!(write.abs_diff(6_000_000) < 500_000, "{write} {:?}", c.costs());
    }

    #[test]
    fn nonsense_is_survived() {
        let mut c = Calibration::new(true);
        for i in 0..200u64 {
            let before =
                Load { reads: u64::MAX, writes: u64::MAX, queued_reads: u32::MAX, queued_writes: 0, next_free_ns: i };
            c.take(Sample { arrived_ns: u64::MAX - i, done_ns: i, before, bytes: u64::MAX >> 24 });
        }
        let _ = c.costs().forecast(&Load::default(), u64::MAX, 4096);
    }
}
