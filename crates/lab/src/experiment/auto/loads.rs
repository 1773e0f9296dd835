//! Generated loads: reads at random beside writes that come in bursts.

use plimsoll_base::{Rng, Span, Time};
use plimsoll_trace::record::{Op, TraceRecord};

/// A load. Reads are of 4 to 32 KiB, Poisson; writers are active and idle for random times, each around its mean.
#[derive(Clone, Copy)]
pub(super) struct Load {
    pub reads_per_s: u64,
    /// Factor of the reads' rate while they last. They last as long as those of writes, and are independent of them.
    pub read_bursts: u64,
    pub writes_per_s: u64,
    pub write_kib: u64,
    /// Of a hundred writes, those that go on where the one before ended.
    pub in_sequence: u64,
    pub active: Span,
    pub idle: Span,
    /// A flush ends each burst of writes.
    pub flushes: bool,
    /// The part of the device that is used.
    pub span: u64,
}

/// On and off, for exponentially distributed times.
struct Phases {
    rng: Rng,
    active: Span,
    idle: Span,
    on: bool,
    until: Time,
}

fn exponential(rng: &mut Rng, mean: Span) -> Span {
    Span::from_nanos((-(1.0 - rng.unit()).ln() * mean.as_nanos() as f64) as u64)
}

impl Phases {
    fn new(rng: Rng, load: &Load) -> Phases {
        Phases { rng, active: load.active, idle: load.idle, on: false, until: Time::ZERO }
    }

    /// Returns whether the load is on at `at`. With it comes the end of the last phase that ended since the call before.
    fn at(&mut self, at: Time) -> (bool, Option<Time>) {
        let mut ended = None;
        while self.until <= at {
            if self.on {
                ended = Some(self.until);
            }
            self.on = !self.on;
            let mean = if self.on { self.active } else { self.idle };
            self.until += exponential(&mut self.rng, mean);
        }
        (self.on, ended)
    }
}

/// `n` requests, or a few less.
pub(super) fn generated(load: &Load, seed: u64, n: usize) -> Vec<TraceRecord> {
    let mut rng = Rng::new(seed, "load");
    let mut writes = Phases::new(rng.split("writes"), load);
    let mut reads = Phases::new(rng.split("reads"), load);
    let (mut read_at, mut write_at, mut next) = (Time::ZERO, Time::ZERO, 0);
    let mut records: Vec<TraceRecord> = Vec::new();
    let mut each = |per_s: u64| exponential(&mut rng, Span::from_nanos(1_000_000_000 / per_s.max(1)));
    let mut place = Rng::new(seed, "places");
    while records.len() < n {
        if read_at <= write_at {
            let len = 4096 << place.below(4);
            let offset = place.below((load.span - len) / 4096) * 4096;
            records.push(TraceRecord::new(read_at, 0, Op::Read, offset, len));
            let times = if reads.at(read_at).0 { load.read_bursts } else { 1 };
            read_at += each(load.reads_per_s * times);
            continue;
        }
        let (on, ended) = writes.at(write_at);
        if let Some(ended) = ended.filter(|_| load.flushes) {
            records.push(TraceRecord::new(ended, 0, Op::Flush, 0, 0));
        }
        if !on {
            write_at = writes.until;
            continue;
        }
        let len = load.write_kib << 10;
        if place.below(100) >= load.in_sequence || next + len > load.span {
            next = place.below((load.span - len) / 4096) * 4096;
        }
        records.push(TraceRecord::new(write_at, 0, Op::Write, next, len));
        next += len;
        write_at += each(load.writes_per_s);
    }
    records.sort_by_key(|r| r.arrived_at);
    records
}
