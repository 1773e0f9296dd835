//! The state of a device when a read comes, as rows of the tables. Times are taken relative to the time that reads are judged by, so that
//! a disk and flash have the same tables.

use super::tables::{ROWS, Rows, TABLES};
use crate::blackbox::log::{OCTAVE, digits, log_of};
use crate::blackbox::stripes::Part;
use plimsoll_base::{Span, Time};

/// Times over which written bytes are remembered: half of them are forgotten after this long.
const HALF_LIVES: [Span; 3] = [Span::from_millis(16), Span::from_millis(512), Span::from_secs(16)];

/// Bytes written lately.
#[derive(Clone, Copy, Default)]
pub(super) struct Written {
    bytes: u64,
    at: Time,
}

impl Written {
    fn at(&self, now: Time, half_life: Span) -> u64 {
        self.bytes >> (now.since(self.at).as_nanos() / half_life.as_nanos()).min(63)
    }

    fn add(&mut self, now: Time, half_life: Span, bytes: u64) {
        let halves = now.since(self.at).as_nanos() / half_life.as_nanos();
        self.bytes = (self.bytes >> halves.min(63)).saturating_add(bytes);
        self.at += half_life * halves;
    }
}

/// Requests that have ended, and their times.
#[derive(Clone, Copy, Default)]
pub(super) struct Past {
    pub written: [Written; HALF_LIVES.len()],
    /// Times in ns of the last read and the one before it, and a mean of the last few.
    pub last_ns: u64,
    pub before_ns: u64,
    pub recent_ns: u64,
    pub read_at: Time,
    /// Time in ns of the last write.
    pub write_ns: u64,
    pub wrote_at: Time,
    pub flushed_at: Time,
    /// The last read that was late.
    pub slow_at: Time,
    pub slow_ns: u64,
    /// Byte after the last request, and its arrival.
    pub end: u64,
    pub came_at: Time,
}

impl Past {
    pub(super) fn wrote(&mut self, now: Time, bytes: u64) {
        for (written, half_life) in self.written.iter_mut().zip(HALF_LIVES) {
            written.add(now, half_life, bytes);
        }
    }
}

/// Requests outstanding, and the forecasts of the others.
#[derive(Clone, Copy, Default)]
pub(super) struct Scene {
    /// The time that reads are judged by, as a logarithm.
    pub limit_log: i32,
    /// By the costs of requests; by the rates of a throttle; by what the part that it needs has to do.
    pub costs_ns: u64,
    pub rate_ns: u64,
    pub work_ns: u64,
    /// Age of the oldest read outstanding.
    pub oldest_ns: u64,
    pub reads: u64,
    pub pieces: u64,
    pub pieces_outstanding: u64,
    pub write_bytes: u64,
    pub flushes: u64,
    pub offset: u64,
}

/// Steps relative to the limit: `below` octaves under it is step 0, each step 1/2 to the power of `fine` octaves or, negative,
/// that many doublings.
fn steps(ns: u64, limit_log: i32, below: i32, fine: i32, levels: usize) -> usize {
    let shift = OCTAVE.ilog2() as i32 - fine;
    (((log_of(ns) - limit_log + below * OCTAVE) >> shift).max(0) as usize).min(levels - 1)
}

fn row(a: usize, b: usize, b_levels: usize) -> u8 {
    debug_assert!(a * b_levels + b < ROWS);
    (a * b_levels + b) as u8
}

/// The rows by which a read that comes at `now` is judged.
pub(super) fn rows(now: Time, s: &Scene, past: &Past, part: &Part) -> Rows {
    let since = |t: Time| if t == Time::ZERO { u64::MAX } else { now.since(t).as_nanos() };
    let eighths = |ns| row(steps(ns, s.limit_log, 8, 3, ROWS), 0, 1);
    let halves = |ns| steps(ns, s.limit_log, 6, 1, 16);
    let octaves = |ns| steps(ns, s.limit_log, 5, 0, 8);
    // From a quarter of the limit to many thousand times as long.
    let long = |t: Time| steps(since(t), s.limit_log, 2, -1, 8);
    let few = |n: u64, levels: usize| (n as usize).min(levels - 1);
    let written = |i: usize| digits(past.written[i].at(now, HALF_LIVES[i]) >> 14, 16);
    let part_ns = if part.read_at == Time::ZERO { 0 } else { crate::blackbox::log::ns_of(part.read_log) };
    let distance = 64 - s.offset.abs_diff(past.end).leading_zeros() as usize;
    let rows: Rows = [
        eighths(s.costs_ns),
        eighths(s.rate_ns),
        eighths(s.work_ns),
        row(halves(s.oldest_ns), digits(s.reads, 8), 8),
        row(halves(past.last_ns), long(past.read_at), 8),
        row(halves(past.recent_ns), octaves(past.before_ns), 8),
        row(digits(part.writes.into(), 8), steps(since(part.wrote_at), s.limit_log, 5, 0, 16), 16),
        row(digits(part.reads.into(), 8), digits(part.writes.into(), 8), 8),
        row(halves(part_ns), long(part.read_at), 8),
        row(digits(s.pieces, 8), digits(s.pieces_outstanding, 16), 16),
        row(written(0), long(past.wrote_at), 8),
        row(written(1), long(past.slow_at), 8),
        row(written(2), digits(s.write_bytes >> 14, 8), 8),
        row(halves(past.write_ns), digits(s.write_bytes >> 14, 8), 8),
        row(steps(since(past.flushed_at), s.limit_log, 3, -1, 16) * 4 + few(s.flushes, 4), few(s.pieces, 2), 2),
        row((distance / 4).min(15), long(past.came_at), 8),
        row(halves(s.costs_ns), octaves(s.work_ns), 8),
        row(halves(s.oldest_ns), octaves(past.last_ns), 8),
    ];
    debug_assert_eq!(rows.len(), TABLES);
    rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_base::Rng;

    #[test]
    fn every_scene_has_its_rows() {
        let mut rng = Rng::new(4, "scenes");
        for _ in 0..10_000 {
            let mut any = || rng.below(u64::MAX) >> rng.below(64);
            let s = Scene {
                limit_log: (any() % 8000) as i32,
                costs_ns: any(),
                rate_ns: any(),
                work_ns: any(),
                oldest_ns: any(),
                reads: any(),
                pieces: any(),
                pieces_outstanding: any(),
                write_bytes: any(),
                flushes: any(),
                offset: any(),
            };
            let mut past = Past { last_ns: any(), write_ns: any(), recent_ns: any(), end: any(), ..Past::default() };
            past.wrote(Time::from_nanos(any()), any());
            let part = Part {
                reads: any() as u32,
                writes: any() as u32,
                wrote_at: Time::from_nanos(any()),
                read_at: Time::from_nanos(any()),
                read_log: (any() % 8000) as i32,
                ..Part::IDLE
            };
            let now = Time::from_nanos(u64::MAX / 2);
            assert!(rows(now, &s, &past, &part).iter().all(|&r| usize::from(r) < ROWS));
        }
    }

    #[test]
    fn written_bytes_fade() {
        let mut past = Past::default();
        let from = Time::from_nanos(1 << 40);
        past.wrote(from, 1 << 20);
        let later = from + HALF_LIVES[1] * 3;
        assert_eq!(past.written[0].at(later, HALF_LIVES[0]), 0);
        assert!((1 << 17..=1 << 18).contains(&past.written[1].at(later, HALF_LIVES[1])));
        assert!(past.written[2].at(later, HALF_LIVES[2]) >= 1 << 19);
    }
}
