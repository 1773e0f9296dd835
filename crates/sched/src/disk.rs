//! Costs of requests on a disk, for a predictor (MittOS §4.1 and Appendix A; MT-M5 to M8). They are a table over distances, a
//! transfer rate per region, and corrections learned from every completion.
//!
//! Appendix A gives `seekCost(X, Y) = seekCostPerGB · distance + transferCostPerKB · size` with a matrix per pair of gigabytes.
//! Here the cost is a piecewise linear function of the distance, with two knots per octave from 4 KiB on. Each direction of the arm
//! and each operation has a function of its own. Near distances hold sequential work and the drive's read-ahead. The table resolves
//! them a quarter of a million times finer than by gigabytes, and a profile takes minutes. All arithmetic is in integers, so that a
//! replay decides the same.

use crate::buffer::DriveBuffer;
use plimsoll_base::{Confidence, IoHead, Op, Span, Time};

/// log2 of the shortest distance that differs from none.
const NEAR_BITS: u32 = 12;
/// log2 of the longest distance that has a knot of its own: 32 TiB.
const FAR_BITS: u32 = 45;
/// Knots of one direction: two per octave.
pub const KNOTS: usize = 2 * (FAR_BITS - NEAR_BITS) as usize;
/// Regions of a device with a transfer rate each: a disk's outer tracks hold more.
pub const REGIONS: usize = 8;
/// Upper bound on any request's predicted cost: a minute.
const COST_MAX_NS: i64 = 60_000_000_000;
/// Depths with a correction of their own: 1, 2, 3 to 4, 5 to 8, …
const DEPTH_CLASSES: usize = 7;
/// 1 in the ratios' fixed point.
const ONE: i64 = 1 << 12;
/// The largest ratio of actual and predicted time, either way.
const RATIO_MAX: i64 = 16;
/// Assumed read-ahead of a drive without a profile.
const READ_AHEAD_GUESS: u64 = 256 << 10;
/// Assumed time of an answer from the drive's buffer until one was seen: the fixed part, and the part for a KiB in 1/1024.
const HIT_NS: i64 = 100_000;
const HIT_TRANSFER: i64 = 3_000 << 10;
/// Samples that a knot from a profile counts for.
const PROFILE_SAMPLES: u16 = 32;
/// A knot follows by 1/2 to the power of this once it has seen enough.
const KNOT_SHIFT: u32 = 5;
/// Shift of the ratio that corrects all costs at once: each sample has the weight 1/2 to the power of this.
const RATIO_SHIFT: u32 = 5;

/// The costs of one operation.
#[derive(Clone, Debug)]
struct Table {
    /// Nanoseconds to the first byte, by direction (0: onwards) and knot.
    knots: [[i64; KNOTS]; 2],
    seen: [[u16; KNOTS]; 2],
    /// Directly behind the request before.
    sequential_ns: i64,
    sequential_seen: u16,
    /// Nanoseconds a KiB, in 1/1024.
    transfer: [i64; REGIONS],
    /// Mean of all, for distances that nothing is known of.
    mean_ns: i64,
    samples: u32,
}

/// Position of a distance between two knots.
#[derive(Clone, Copy)]
struct Between {
    direction: usize,
    knot: usize,
    /// Of 256: how near to the next one.
    share: i64,
}

/// Returns the position of a distance in bytes; `None` if it's too short to be one.
fn between(from: u64, to: u64) -> Option<Between> {
    let distance = from.abs_diff(to);
    if distance < 1 << NEAR_BITS {
        return None;
    }
    let exponent = (63 - distance.leading_zeros()).min(FAR_BITS - 1);
    let half_bits = exponent - 1;
    let half = ((distance >> half_bits) & 1) as usize;
    let rest = distance & ((1 << half_bits) - 1);
    let share = ((rest << 8) >> half_bits) as i64;
    let knot = 2 * (exponent - NEAR_BITS) as usize + half;
    Some(Between { direction: usize::from(to < from), knot: knot.min(KNOTS - 1), share })
}

impl Table {
    fn unknown() -> Table {
        Table {
            knots: [[0; KNOTS]; 2],
            seen: [[0; KNOTS]; 2],
            sequential_ns: 0,
            sequential_seen: 0,
            transfer: [0; REGIONS],
            mean_ns: 0,
            samples: 0,
        }
    }

    fn knot(&self, direction: usize, knot: usize) -> i64 {
        if self.seen[direction][knot] > 0 { self.knots[direction][knot] } else { self.mean_ns }
    }

    /// Corrects all entries after a request took `actual` where `learned` was expected, after a long time without samples. All
    /// entries are scaled by that ratio, down to `measured` at the least.
    fn ease(&mut self, actual: i64, learned: i64, measured: Option<&Table>) {
        let eased = |ns: &mut i64, least: Option<i64>| {
            let scaled = (i128::from(*ns) * i128::from(actual) / i128::from(learned.max(1))) as i64;
            *ns = scaled.max(least.unwrap_or(0).min(*ns));
        };
        for (d, knots) in self.knots.iter_mut().enumerate() {
            knots.iter_mut().enumerate().for_each(|(k, ns)| eased(ns, measured.map(|m| m.knots[d][k])));
        }
        self.transfer.iter_mut().enumerate().for_each(|(r, ns)| eased(ns, measured.map(|m| m.transfer[r])));
        eased(&mut self.sequential_ns, measured.map(|m| m.sequential_ns));
        eased(&mut self.mean_ns, measured.map(|m| m.mean_ns));
    }

    fn position(&self, at: Option<Between>) -> i64 {
        match at {
            None if self.sequential_seen > 0 => self.sequential_ns,
            None => self.mean_ns,
            Some(b) => {
                let next = (b.knot + 1).min(KNOTS - 1);
                (self.knot(b.direction, b.knot) * (256 - b.share) + self.knot(b.direction, next) * b.share) >> 8
            }
        }
    }

    fn learn(&mut self, at: Option<Between>, error_ns: i64, shift: u32) {
        let step = |knot: &mut i64, seen: &mut u16, default: i64, weight: i64| {
            if *seen == 0 {
                *knot = default;
            }
            if weight > 0 {
                *seen = seen.saturating_add(1);
                // The first samples weigh as in a plain mean.
                let shift = shift.min(16 - seen.leading_zeros());
                *knot = (*knot + ((error_ns * weight) >> (8 + shift))).clamp(0, COST_MAX_NS);
            }
        };
        match at {
            None => step(&mut self.sequential_ns, &mut self.sequential_seen, self.mean_ns, 256),
            Some(b) => {
                let (d, next) = (b.direction, (b.knot + 1).min(KNOTS - 1));
                step(&mut self.knots[d][b.knot], &mut self.seen[d][b.knot], self.mean_ns, 256 - b.share);
                step(&mut self.knots[d][next], &mut self.seen[d][next], self.mean_ns, b.share);
            }
        }
        self.samples = self.samples.saturating_add(1);
        let shift = (31 - self.samples.leading_zeros()).min(shift);
        self.mean_ns = (self.mean_ns + (error_ns >> shift)).clamp(0, COST_MAX_NS);
    }
}

/// Operations that name a range and carry none of it: their length says little of their time. A few bytes of a client name gigabytes,
/// so they must not teach what transfers take.
const COMMANDS: [Op; 4] = [Op::Trim, Op::WriteZeroes, Op::Cache, Op::BlockStatus];
/// Samples of a command before its own time counts.
const COMMAND_SAMPLES: u32 = 4;
/// Shift of a command's mean.
const COMMAND_SHIFT: u32 = 3;
/// Bound of a sample, as a multiple of the time so far, which counts as a millisecond at the least: one stall isn't what commands take.
const COMMAND_TIMES_MAX: i64 = 16;

/// Time of one kind of command: whatever its length up to a MiB, and for each MiB beyond.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Command {
    one_ns: i64,
    mib_ns: i64,
    samples: [u32; 2],
}

impl Command {
    /// Returns 1 for a long range, and its length in MiB.
    fn size_of(len: u64) -> (usize, i64) {
        let mib = len.div_ceil(1 << 20).max(1) as i64;
        (usize::from(mib > 1), mib)
    }

    /// The time of one of `len` bytes; `None` while too few were seen.
    pub(crate) fn time_ns(&self, len: u64) -> Option<i64> {
        let (long, mib) = Command::size_of(len);
        let ns = if long == 1 { self.one_ns.max(self.mib_ns.saturating_mul(mib)) } else { self.one_ns };
        (self.samples[long] >= COMMAND_SAMPLES).then(|| ns.min(COST_MAX_NS))
    }

    /// One of `len` bytes took so long.
    pub(crate) fn learn(&mut self, len: u64, actual_ns: i64) {
        let (long, mib) = Command::size_of(len);
        let mean = if long == 1 { &mut self.mib_ns } else { &mut self.one_ns };
        let seen = &mut self.samples[long];
        *seen = seen.saturating_add(1);
        let so_far = mean.saturating_mul(if long == 1 { mib } else { 1 });
        let bounded =
            if *seen > COMMAND_SAMPLES { actual_ns.min(COMMAND_TIMES_MAX * so_far.max(1_000_000)) } else { actual_ns };
        let each = if long == 1 { bounded / mib } else { bounded };
        *mean += (each - *mean) >> (32 - seen.leading_zeros() - 1).min(COMMAND_SHIFT);
    }
}

/// Correction at one depth of the device's queue: a drive that chooses among several requests needs less for each.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ratio {
    actual: i64,
    predicted: i64,
    /// The one by the other, in 1/[`ONE`].
    value: u64,
}

impl Ratio {
    /// As if one had been predicted right.
    pub(crate) const NEUTRAL: Ratio = Ratio { actual: 1 << 22, predicted: 1 << 22, value: ONE as u64 };

    /// Follows by 1/2 to the power of `shift`. A sample counts as no more than the largest ratio: a pause of this machine says nothing of
    /// the device, and would raise all costs for hundreds of requests.
    pub(crate) fn learn(&mut self, actual: i64, predicted: i64, shift: u32) {
        let actual = actual.min(predicted.max(1_000_000).saturating_mul(RATIO_MAX));
        self.actual += (actual - self.actual) >> shift;
        self.predicted += (predicted - self.predicted) >> shift;
        let value = self.actual.saturating_mul(ONE) / self.predicted.max(1);
        self.value = value.clamp(ONE / RATIO_MAX, ONE * RATIO_MAX) as u64;
    }

    pub(crate) fn apply(&self, cost: Span) -> Span {
        Span::from_nanos(cost.as_nanos().saturating_mul(self.value) / ONE as u64)
    }
}

fn depth_class(depth: usize) -> usize {
    (usize::BITS - depth.saturating_sub(1).leading_zeros()).min(DEPTH_CLASSES as u32 - 1) as usize
}

/// Parts of the prediction that are used: all of them except in ablations (MT-E13).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Precision {
    /// Learn from completions.
    pub calibrate: bool,
    /// Tell distances apart; otherwise every request of an operation costs the same.
    pub distances: bool,
}

impl Precision {
    /// Everything.
    pub const FULL: Precision = Precision { calibrate: true, distances: true };
}

/// Measured costs of one operation, for [`DiskModel::from_costs`].
#[derive(Clone, PartialEq, Debug)]
pub struct OpCosts {
    /// To the first byte, directly behind the request before.
    pub sequential: Span,
    /// `(distance in bytes, to the first byte)`, distances rising from 4 KiB or more; onwards and backwards. Linear in
    /// between, level outside. Not empty.
    pub distances: [Vec<(u64, Span)>; 2],
    /// A KiB's transfer in each eighth of the device, in nanoseconds.
    pub transfer_ns_per_kib: [u32; REGIONS],
}

/// A disk's costs, from a profile or from nothing, corrected by completions.
#[derive(Clone, Debug)]
pub struct DiskModel {
    tables: [Table; 2],
    /// As the profile has them.
    measured: Option<Box<[Table; 2]>>,
    ratios: [Ratio; DEPTH_CLASSES],
    region_shift: u32,
    flush_ns: i64,
    /// In the order of [`COMMANDS`].
    commands: [Command; COMMANDS.len()],
    buffer: DriveBuffer,
    /// Time of an answer from the drive's buffer: the fixed part, and nanoseconds for a KiB in 1/1024.
    hit_ns: i64,
    hit_transfer: i64,
    precision: Precision,
    /// Means of |error| and of the cost, for the confidence.
    error_ns: i64,
    cost_ns: i64,
    samples: u64,
    profiled: bool,
}

fn table_of(op: Op) -> usize {
    usize::from(op == Op::Write || op == Op::WriteZeroes)
}

/// Its place in [`COMMANDS`], if it is one.
fn command_of(op: Op) -> Option<usize> {
    COMMANDS.iter().position(|c| *c == op)
}

/// True for an operation after which the arm is at its range's end.
pub(crate) fn moves_arm(op: Op) -> bool {
    matches!(op, Op::Read | Op::Write | Op::WriteZeroes)
}

impl DiskModel {
    /// A device of which nothing is known: everything costs nothing until completions say otherwise, so nothing is
    /// refused on a guess.
    pub fn unknown(size_bytes: u64) -> DiskModel {
        let bits = size_bytes.clamp(1 << 20, 1 << 63).next_power_of_two().trailing_zeros();
        DiskModel {
            tables: [Table::unknown(), Table::unknown()],
            measured: None,
            ratios: [Ratio::NEUTRAL; DEPTH_CLASSES],
            region_shift: bits - REGIONS.trailing_zeros(),
            flush_ns: 0,
            commands: Default::default(),
            buffer: DriveBuffer::new(READ_AHEAD_GUESS),
            hit_ns: HIT_NS,
            hit_transfer: HIT_TRANSFER,
            precision: Precision::FULL,
            error_ns: 0,
            cost_ns: 0,
            samples: 0,
            profiled: false,
        }
    }

    /// A device that was measured: reads, then writes, and how far it reads ahead.
    ///
    /// # Panics
    /// If a list of distances is empty: profiles are checked when they are read.
    pub fn from_costs(size_bytes: u64, costs: &[OpCosts; 2], read_ahead_bytes: u64) -> DiskModel {
        let mut m = DiskModel::unknown(size_bytes);
        m.buffer = DriveBuffer::new(read_ahead_bytes);
        let region_bytes = 1u64 << m.region_shift;
        for (t, c) in m.tables.iter_mut().zip(costs) {
            (t.sequential_ns, t.sequential_seen) = (c.sequential.as_nanos() as i64, PROFILE_SAMPLES);
            for (direction, points) in c.distances.iter().enumerate() {
                for knot in 0..KNOTS {
                    let distance = (2 + (knot as u64 & 1)) << (NEAR_BITS - 1 + knot as u32 / 2);
                    t.knots[direction][knot] = interpolate(points, distance);
                    t.seen[direction][knot] = PROFILE_SAMPLES;
                }
            }
            let eighth = (size_bytes / REGIONS as u64).max(1);
            for (region, ns) in t.transfer.iter_mut().enumerate() {
                let of = (region as u64 * region_bytes / eighth).min(REGIONS as u64 - 1);
                *ns = i64::from(c.transfer_ns_per_kib[of as usize]) << 10;
            }
            t.mean_ns = t.knots[0][KNOTS * 3 / 4];
            t.samples = u32::from(PROFILE_SAMPLES);
        }
        m.measured = Some(Box::new(m.tables.clone()));
        m.profiled = true;
        m
    }

    /// The same with only some of what makes it precise.
    #[must_use]
    pub fn with_precision(mut self, precision: Precision) -> DiskModel {
        self.precision = precision;
        self
    }

    /// True if the predictor's model was measured (a profile).
    pub fn is_profiled(&self) -> bool {
        self.profiled
    }

    /// True if the predictor learns from completions.
    pub(crate) fn calibrates(&self) -> bool {
        self.precision.calibrate
    }

    /// Completions that it has learned from.
    pub fn samples(&self) -> u64 {
        self.samples
    }

    fn region(&self, offset: u64) -> usize {
        ((offset >> self.region_shift) as usize).min(REGIONS - 1)
    }

    /// Returns the time of `head` at `at`, right after a request that ended at the byte `from`, with the device to itself.
    pub fn cost(&self, at: Time, from: u64, head: &IoHead) -> Span {
        Span::from_nanos(self.cost_ns(from, head, self.hits(at, head)) as u64)
    }

    /// The same by the profile, whatever was learned since; nothing if there is none.
    pub fn measured_cost(&self, at: Time, from: u64, head: &IoHead) -> Span {
        let Some(measured) = &self.measured else { return Span::ZERO };
        let hit = self.hits(at, head).then_some((HIT_NS, HIT_TRANSFER));
        Span::from_nanos(self.cost_by(measured, from, head, hit) as u64)
    }

    /// True for a read that the drive's buffer is expected to answer.
    fn hits(&self, at: Time, head: &IoHead) -> bool {
        self.precision.distances && head.op == Op::Read && self.buffer.holds(at, head.offset, head.end())
    }

    fn cost_ns(&self, from: u64, head: &IoHead, hit: bool) -> i64 {
        self.cost_by(&self.tables, from, head, hit.then_some((self.hit_ns, self.hit_transfer)))
    }

    /// Returns the time by these tables, or by the drive's buffer if that answers.
    fn cost_by(&self, tables: &[Table; 2], from: u64, head: &IoHead, hit: Option<(i64, i64)>) -> i64 {
        if head.op == Op::Flush {
            return self.flush_ns;
        }
        if let Some(command) = command_of(head.op) {
            match self.commands[command].time_ns(head.len) {
                Some(ns) => return ns,
                // A drive may write them out, until it is seen not to.
                None if head.op == Op::WriteZeroes => {}
                None => return self.commands[command].one_ns,
            }
        }
        if let Some((begin, transfer)) = hit {
            return (begin + (transfer.saturating_mul((head.len >> 10) as i64) >> 10)).min(COST_MAX_NS);
        }
        let t = &tables[table_of(head.op)];
        let position = if self.precision.distances { t.position(between(from, head.offset)) } else { t.mean_ns };
        let transfer = t.transfer[self.region(head.offset)].saturating_mul((head.len >> 10) as i64) >> 10;
        (position + transfer).clamp(0, COST_MAX_NS)
    }

    /// Returns the time of work of `cost` with `depth` requests at the device at once.
    pub fn at_depth(&self, cost: Span, depth: usize) -> Span {
        if depth <= 1 || !self.precision.calibrate {
            return cost;
        }
        self.ratios[depth_class(depth)].apply(cost)
    }

    /// `head`, right after a request that ended at `from`, kept the device busy until `now` for `actual`, with `depth`
    /// requests there.
    pub fn learn(&mut self, now: Time, from: u64, head: &IoHead, actual: Span, depth: usize) {
        let actual_ns = (actual.as_nanos().min(COST_MAX_NS as u64)) as i64;
        if let Some(command) = command_of(head.op) {
            if self.precision.calibrate {
                self.commands[command].learn(head.len, actual_ns);
            }
            return;
        }
        let hit = self.hits(now - actual, head);
        let raw = self.cost_ns(from, head, hit);
        let predicted = self.at_depth(Span::from_nanos(raw as u64), depth).as_nanos() as i64;
        let error = actual_ns - predicted;
        self.samples += 1;
        let shift = (63 - self.samples.leading_zeros()).min(RATIO_SHIFT + 1);
        self.error_ns += (error.abs() - self.error_ns) >> shift;
        self.cost_ns += (actual_ns - self.cost_ns) >> shift;
        self.note_access(now, head, actual, hit);
        if !self.precision.calibrate {
            return;
        }
        if hit {
            return self.learn_hit(head, error);
        }
        if head.op == Op::Flush {
            self.flush_ns += (actual_ns - self.flush_ns) >> shift.min(3);
            return;
        }
        let class = depth_class(depth);
        if class > 0 {
            self.ratios[class].learn(actual_ns, raw, RATIO_SHIFT);
        }
        let region = self.region(head.offset);
        let t = &mut self.tables[table_of(head.op)];
        // One request far off says something of the device's moment, not of the distance.
        let bound = 4 * predicted.max(1_000_000);
        let error = if t.samples < u32::from(PROFILE_SAMPLES) { error } else { error.clamp(-bound, bound) };
        let kib = (head.len >> 10) as i64;
        if kib >= 16 {
            // Normalised least mean squares: the larger the transfer, the more of the error is its.
            let rate = &mut t.transfer[region];
            *rate = (*rate + ((error / 64) << 10) * kib / (kib * kib / 4 + 4096)).clamp(0, 1 << 40);
        }
        let at = if self.precision.distances { between(from, head.offset) } else { None };
        t.learn(at, error, KNOT_SHIFT);
    }

    /// A read of a device of which nothing had been heard for long took `actual`, and `learned` had been learned. If that was
    /// too long it was for all reads: one that is refused for it would never correct it. Not beyond the profile.
    pub(crate) fn ease(&mut self, actual: Span, learned: Span) {
        if actual < learned && self.precision.calibrate {
            let measured = self.measured.as_ref().map(|m| &m[0]);
            self.tables[0].ease(actual.as_nanos() as i64, learned.as_nanos() as i64, measured);
            self.hit_ns = self.hit_ns.min(HIT_NS);
            self.hit_transfer = self.hit_transfer.min(HIT_TRANSFER);
        }
    }

    fn note_access(&mut self, now: Time, head: &IoHead, actual: Span, hit: bool) {
        if hit {
            self.buffer.answered(head.offset, head.end());
        } else if matches!(head.op, Op::Read | Op::Write) {
            let ns_per_kib = (self.tables[0].transfer[self.region(head.offset)] >> 10).max(1) as u64;
            let rate = (1024 * 1000 / ns_per_kib).clamp(1, 10_000);
            self.buffer.accessed(now - actual, now, head.offset, head.end(), head.op == Op::Read, rate);
        }
    }

    /// A read that the drive's buffer should have answered was off by `error`.
    fn learn_hit(&mut self, head: &IoHead, error: i64) {
        let kib = (head.len >> 10) as i64;
        let error = error.clamp(-2_000_000, 2_000_000);
        if kib >= 16 {
            self.hit_transfer =
                (self.hit_transfer + ((error / 64) << 10) * kib / (kib * kib / 4 + 4096)).clamp(0, 1 << 40);
        }
        self.hit_ns = (self.hit_ns + (error >> KNOT_SHIFT)).clamp(0, COST_MAX_NS);
    }

    /// Returns the confidence of a prediction: 1 less the mean relative error.
    pub fn confidence(&self) -> Confidence {
        if self.samples < 16 && !self.profiled {
            return Confidence::NONE;
        }
        if self.samples < 16 {
            return Confidence(500);
        }
        let relative = self.error_ns.saturating_mul(1000) / self.cost_ns.max(1);
        Confidence((1000 - relative).clamp(50, 990) as u16)
    }
}

fn interpolate(points: &[(u64, Span)], distance: u64) -> i64 {
    let ns = |i: usize| points[i].1.as_nanos() as i64;
    let after = points.partition_point(|p| p.0 < distance);
    if after == 0 || after == points.len() {
        return ns(after.min(points.len() - 1));
    }
    let (d0, d1) = (points[after - 1].0, points[after].0);
    let (a, b) = (ns(after - 1), ns(after));
    a + (i128::from(b - a) * i128::from(distance - d0) / i128::from(d1 - d0)) as i64
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_base::{TenantId, Time, VolumeKey};

    fn read(offset: u64, len: u64) -> IoHead {
        IoHead::new(Op::Read, VolumeKey::POOL, TenantId(0), offset, len, Time::ZERO)
    }

    fn us(n: u64) -> Span {
        Span::from_micros(n)
    }

    fn profiled() -> DiskModel {
        let points = vec![(4096, us(2000)), (1 << 30, us(4000)), (1 << 40, us(12_000))];
        let costs = OpCosts {
            sequential: us(100),
            distances: [points.clone(), points],
            transfer_ns_per_kib: [5_000, 5_000, 6_000, 6_000, 8_000, 8_000, 10_000, 10_000],
        };
        DiskModel::from_costs(1 << 40, &[costs.clone(), costs], 0)
    }

    #[test]
    fn a_profile_is_read_back_between_its_points() {
        let m = profiled();
        let near = |a: Span, b: Span| assert!(a.as_nanos().abs_diff(b.as_nanos()) < b.as_nanos() / 20, "{a} {b}");
        near(m.cost(Time::ZERO, 0, &read(0, 0)), us(100));
        near(m.cost(Time::ZERO, 0, &read(1 << 30, 0)), us(4000));
        near(m.cost(Time::ZERO, 0, &read(1 << 39, 0)), us(8000));
        near(m.cost(Time::ZERO, 1 << 39, &read(0, 0)), us(8000));
        near(m.cost(Time::ZERO, 1 << 39, &read(1 << 39, 1 << 20)), us(100 + 8192));
    }

    #[test]
    fn it_learns_from_nothing_and_follows_a_shift() {
        let mut m = DiskModel::unknown(1 << 40);
        assert_eq!(m.cost(Time::ZERO, 0, &read(1 << 30, 4096)), Span::ZERO, "nothing is refused on a guess");
        assert_eq!(m.confidence(), Confidence::NONE);
        for scale in [10, 12] {
            for i in 0..600u64 {
                let to = (i * 7919 % 1000) << 30;
                let actual = us(scale * (300 + (to >> 30)));
                m.learn(Time::ZERO, 0, &read(to, 4096), actual, 1);
            }
            let cost = m.cost(Time::ZERO, 0, &read(500 << 30, 4096)).as_nanos() as f64;
            let want = us(scale * 800).as_nanos() as f64;
            assert!((cost / want - 1.0).abs() < 0.05, "{cost} {want}");
        }
        assert!(m.confidence() > Confidence(800));
    }

    /// A client's status queries, hints and trims of gigabytes take microseconds: they neither cost nor teach a transfer.
    #[test]
    fn commands_that_name_a_range_teach_nothing_of_transfers() {
        for op in [Op::BlockStatus, Op::Cache, Op::Trim, Op::WriteZeroes] {
            let mut m = DiskModel::unknown(1 << 40);
            for i in 0..200u64 {
                m.learn(Time::ZERO, 0, &read((i * 7919 % 1000) << 30, 65_536), us(4000), 1 + i as usize % 4);
            }
            let (one, write) = (read(500 << 30, 65_536), IoHead { op: Op::Write, ..read(500 << 30, 65_536) });
            let before = [&one, &write].map(|h| m.cost(Time::ZERO, 0, h));
            let head = IoHead { op, ..read(3 << 30, 3 << 30) };
            (0..50).for_each(|_| m.learn(Time::ZERO, 0, &head, us(100), 2));
            assert_eq!([&one, &write].map(|h| m.cost(Time::ZERO, 0, h)), before, "{op:?}");
            assert_eq!(m.at_depth(us(4000), 2), m.at_depth(us(4000), 2).min(us(4100)), "{op:?}");
            let cost = m.cost(Time::ZERO, 0, &head);
            assert!(cost < us(1000), "{op:?}: {cost}");
            // One stall isn't what they take; what they always take is learned.
            m.learn(Time::ZERO, 0, &head, Span::from_secs(20), 1);
            assert!(m.cost(Time::ZERO, 0, &head) < us(4000), "{op:?}");
            (0..100).for_each(|_| m.learn(Time::ZERO, 0, &head, Span::from_millis(90), 1));
            let slow = m.cost(Time::ZERO, 0, &head);
            assert!(slow > Span::from_millis(80) && slow < Span::from_millis(100), "{op:?}: {slow}");
        }
    }

    #[test]
    fn a_deeper_queue_has_its_own_correction() {
        let mut m = profiled();
        let before = m.cost(Time::ZERO, 0, &read(1 << 35, 4096));
        for _ in 0..300 {
            let half = m.cost(Time::ZERO, 0, &read(1 << 35, 4096)) / 2;
            m.learn(Time::ZERO, 0, &read(1 << 35, 4096), half, 8);
        }
        assert!(m.at_depth(before, 8) < before.scale(6, 10));
    }

    #[test]
    fn without_precision_nothing_is_told_apart_or_learned() {
        let mut m = profiled().with_precision(Precision { calibrate: false, distances: false });
        assert_eq!(m.cost(Time::ZERO, 0, &read(1 << 39, 0)), m.cost(Time::ZERO, 0, &read(1 << 20, 0)));
        let before = m.cost(Time::ZERO, 0, &read(1 << 39, 4096));
        (0..100).for_each(|_| m.learn(Time::ZERO, 0, &read(1 << 39, 4096), us(50_000), 1));
        assert_eq!(m.cost(Time::ZERO, 0, &read(1 << 39, 4096)), before);
    }
}
