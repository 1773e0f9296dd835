//! Operations of clients and the operator, drawn step by step, so that a driver can stop anywhere.

use crate::oracle::{Asked, Flag, UNIT};
use crate::plan::{Plan, VOLUME_BYTES_MAX};
use plimsoll_base::{Op, Rng};

/// End of a life of the pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// The process is killed; devices that are volatile lose what wasn't flushed.
    Kill,
    /// In order, as on SIGTERM.
    Term,
}

/// A fault that is injected.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// Requests fail.
    Errors,
    /// Answers go out this many microseconds later.
    LatencyUs(u64),
}

/// An operator's change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation {
    /// A volume is cached otherwise.
    Mode(usize, &'static str),
    /// A volume grows to this size in bytes.
    Grow(usize, u64),
    /// A volume is deleted, and another of this size in bytes made in its place.
    Remake(usize, u64),
    /// All that only the cache or the logs have is written back.
    Checkpoint,
    /// The cache may use this many bytes of its device.
    CacheBytes(u64),
    /// Writes up to this many bytes are logged.
    LoggedWrite(u64),
    /// CFQ keeps the device for this many microseconds.
    IdleUs(u64),
    /// Fingerprints that the cache keeps, in percent.
    Fingerprints(u64),
    /// QWin's slack, in microseconds.
    Slack(u64, u64),
    /// Number of slots, and milliseconds of each.
    Slots(u64, u64),
    /// The last volume has this limit of requests per second, or none.
    Limit(Option<u64>),
    /// From now on this fault is injected into N of a thousand requests of a volume, or none is.
    Inject(usize, Option<(Fault, u64)>),
}

/// The next thing to happen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// A client's request, on one of a volume's connections.
    Ask(Asked),
    /// Let some answers come: more or fewer, from 1 to 16.
    Pause(u64),
    /// Let all answers come.
    Rest,
    /// The operator does something.
    Operate(Operation),
}

/// Draws steps.
pub struct Work {
    rng: Rng,
    /// Draws flags: seeds from before them have the same requests.
    flags: Rng,
    /// Draws long ranges.
    ranges: Rng,
    /// Bytes of each volume that are used mostly.
    span: u64,
    /// Operator's steps, of a hundred.
    operations: u64,
}

impl Work {
    /// The work of one life.
    pub fn new(seed: u64, life: u64) -> Work {
        let mut rng = Rng::new(seed.wrapping_mul(1000).wrapping_add(life), "chaos work");
        let span = [32 << 10, 96 << 10, 192 << 10, VOLUME_BYTES_MAX][rng.below(4) as usize];
        let operations = [0, 1, 3][rng.below(3) as usize];
        let flags = Rng::new(seed.wrapping_mul(1000).wrapping_add(life), "chaos flags");
        let ranges = Rng::new(seed.wrapping_mul(1000).wrapping_add(life), "chaos ranges");
        Work { rng, flags, ranges, span, operations }
    }

    /// Draws the end of this life.
    pub fn end(&mut self) -> End {
        if self.rng.chance(0.7) { End::Kill } else { End::Term }
    }

    /// Draws the next step, for volumes of these sizes.
    pub fn next(&mut self, plan: &Plan, sizes: &[u64]) -> Step {
        let rng = &mut self.rng;
        match rng.below(100) {
            n if n < self.operations => operation(rng, plan, sizes).map_or(Step::Pause(1), Step::Operate),
            0..22 => Step::Pause(1 + rng.below(16)),
            22..24 => Step::Rest,
            _ => {
                let asked = lengthened(&mut self.ranges, ask(rng, self.span, sizes), sizes);
                Step::Ask(Asked { flag: flag(&mut self.flags, asked.op), ..asked })
            }
        }
    }
}

fn ask(rng: &mut Rng, span: u64, sizes: &[u64]) -> Asked {
    let volume = [0, 0, 1, 1, 2][rng.below(5) as usize];
    let size = sizes[volume];
    let span = if rng.chance(0.95) { span.min(size) } else { size };
    let (op, fua) = match rng.below(100) {
        0..38 => (Op::Write, rng.chance(0.15)),
        38..66 => (Op::Read, false),
        66..76 => (Op::WriteZeroes, rng.chance(0.15)),
        76..82 => (Op::Trim, rng.chance(0.15)),
        82..91 => (Op::Flush, false),
        91..98 => (Op::BlockStatus, false),
        _ => (Op::Cache, false),
    };
    if op == Op::Flush {
        return Asked { op, volume, offset: 0, len: 0, fua, flag: Flag::None };
    }
    // Multiples of a page mostly, as file systems have them; then of a sector; then of whatever.
    let unit = match rng.below(10) {
        0..6 => 4096,
        6..9 => 512,
        _ => UNIT,
    };
    let units = (span / unit).max(1);
    let most = match rng.below(20) {
        0 => 32,
        1..4 => 12,
        _ => 3,
    };
    let first = rng.below(units);
    let len = 1 + rng.below((units - first).min(most));
    Asked { op, volume, offset: first * unit, len: len * unit, fua, flag: Flag::None }
}

/// Some ranges are long: they go through a pool in several parts.
fn lengthened(rng: &mut Rng, asked: Asked, sizes: &[u64]) -> Asked {
    if !asked.op.is_range() || !rng.chance(0.25) {
        return asked;
    }
    let most = [64 << 10, 256 << 10, VOLUME_BYTES_MAX][rng.below(3) as usize];
    let units = (sizes[asked.volume] - asked.offset).min(most) / UNIT;
    Asked { len: (1 + rng.below(units)) * UNIT, ..asked }
}

fn flag(rng: &mut Rng, op: Op) -> Flag {
    match (op, rng.below(100)) {
        (_, 0..2) => Flag::Foreign,
        (Op::WriteZeroes, 2..25) => Flag::NoHole,
        (Op::WriteZeroes, 25..45) => Flag::FastZero,
        (Op::WriteZeroes, 45..55) => Flag::FastNoHole,
        (Op::Read, 2..25) => Flag::OneChunk,
        (Op::BlockStatus, 2..40) => Flag::OneExtent,
        _ => Flag::None,
    }
}

fn operation(rng: &mut Rng, plan: &Plan, sizes: &[u64]) -> Option<Operation> {
    let volume = rng.below(sizes.len() as u64) as usize;
    let (cfq, slack) = plan.knobs();
    let operation = match rng.below(18) {
        0..4 if plan.has_cache() => Operation::Mode(volume, ["off", "through", "back"][rng.below(3) as usize]),
        4 if sizes[volume] < VOLUME_BYTES_MAX => {
            let more = 512 * (1 + rng.below(200));
            Operation::Grow(volume, (sizes[volume] + more).min(VOLUME_BYTES_MAX))
        }
        5..7 => Operation::Remake(volume, 512 * (64 + rng.below(1000))),
        7..9 if plan.has_cache() || plan.logs.is_some() => Operation::Checkpoint,
        9 => Operation::CacheBytes(plan.cache_sizes()?[rng.below(3) as usize]),
        10 if plan.logs.is_some() => Operation::LoggedWrite([512, 4096, Plan::LOGGED_WRITE_MAX][rng.below(3) as usize]),
        11 if cfq => Operation::IdleUs(rng.below(10_000)),
        11 if slack => Operation::Slack(100 + rng.below(300), 500 + rng.below(5000)),
        12 if plan.has_cache() => Operation::Fingerprints(1 + rng.below(100)),
        13 if plan.fence.is_some() => Operation::Slots(3 + rng.below(4), [20, 25][rng.below(2) as usize]),
        14..16 if plan.throttled => {
            Operation::Limit([None, Some(200), Some(2000), Some(100_000)][rng.below(4) as usize])
        }
        16..18 if plan.injects() => {
            let fault =
                [None, Some(Fault::Errors), Some(Fault::LatencyUs(rng.below(20_000) + 1))][rng.below(3) as usize];
            Operation::Inject(volume, fault.map(|fault| (fault, 1 + rng.below(500))))
        }
        _ => return None,
    };
    Some(operation)
}
