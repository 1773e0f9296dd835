//! Score of a read's expected slowness: a sum over small tables. Each table is looked up by two or three observations and is
//! corrected a little by every read that ends. (Branch predictors add up weights in this way: integers, a handful of loads.)

use super::log::{OCTAVE, digits, log_of, octave};
use super::stripes::Part;
use plimsoll_base::Time;

/// Tables, and rows of each.
const TABLES: usize = 9;
const ROWS: usize = 128;
/// Sums are kept in 2 to the power of this of a logarithm's steps.
const FINE_BITS: u32 = 8;
/// Each table takes over this part of an error: with all of them together an eighth.
const STEP_SHIFT: u32 = 6;

/// Observations of the device when a read arrives, beside the part that it needs.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Scene {
    /// Pieces that the read has, and that are outstanding.
    pub pieces: u64,
    pub outstanding: u64,
    /// Time that those would take at the recent rate.
    pub backlog_ns: u64,
    /// Time that the part it needs still works on its present requests.
    pub work_ns: u64,
    /// Bytes of writes outstanding.
    pub write_bytes: u64,
    /// Times of the last reads; of the last one; and the age of the oldest outstanding one.
    pub recent_ns: u64,
    pub last_ns: u64,
    pub oldest_ns: u64,
}

/// A row of each table.
pub(super) type Rows = [u8; TABLES];

fn row(a: usize, b: usize, b_levels: usize) -> u8 {
    debug_assert!(a * b_levels + b < ROWS);
    (a * b_levels + b) as u8
}

/// Selects the rows for a read that arrives at `now`.
pub(super) fn rows(now: Time, s: &Scene, part: &Part) -> Rows {
    let few = |n: u32, levels: usize| (n as usize).min(levels - 1);
    let since = |t: Time| if t == Time::ZERO { u64::MAX } else { now.since(t).as_nanos() };
    let read_octave = (part.read_log / OCTAVE) as usize;
    [
        row(digits(part.writes.into(), 8), octave(since(part.wrote_at), 16), 16),
        row(digits(part.reads.into(), 8), digits(part.writes.into(), 8), 8),
        row(read_octave.min(15), octave(since(part.read_at), 16) / 2, 8),
        row(digits(s.pieces, 8), digits(s.outstanding, 10), 10),
        row(octave(s.recent_ns, 16), digits(s.write_bytes >> 14, 8), 8),
        row(octave(s.oldest_ns, 16), octave(s.backlog_ns, 16) / 2, 8),
        row(octave(s.backlog_ns, 16), few(part.reads, 8), 8),
        row(octave(s.last_ns, 16), octave(since(part.wrote_at), 16) / 2, 8),
        row((log_of(s.work_ns) / (OCTAVE / 4)) as usize, 0, 1),
    ]
}

/// The tables.
pub(super) struct Score {
    weights: Box<[[i32; ROWS]; TABLES]>,
    base: i32,
    samples: u32,
}

impl Score {
    /// Every read looks alike.
    pub(super) fn new() -> Score {
        Score { weights: Box::new([[0; ROWS]; TABLES]), base: 0, samples: 0 }
    }

    /// Returns the score of these rows, as a logarithm of the read's time.
    pub(super) fn of(&self, rows: &Rows) -> i32 {
        let sum: i32 = self.weights.iter().zip(rows).map(|(t, &r)| t[usize::from(r)]).sum();
        (self.base + sum) >> FINE_BITS
    }

    /// It took so long.
    pub(super) fn learn(&mut self, rows: &Rows, took_log: i32) {
        let off = (took_log << FINE_BITS) - (self.of(rows) << FINE_BITS);
        self.samples = self.samples.saturating_add(1);
        // The base follows fast at first, as in a plain mean.
        let shift = (u32::BITS - self.samples.leading_zeros()).min(STEP_SHIFT);
        self.base += off >> shift;
        for (table, &r) in self.weights.iter_mut().zip(rows) {
            table[usize::from(r)] += off >> STEP_SHIFT;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_base::Rng;

    /// A sum of two effects that come in all combinations is found, drift included.
    #[test]
    fn effects_are_told_apart_and_followed() {
        let mut s = Score::new();
        let mut rng = Rng::new(3, "score");
        for drift in [0, 3 * OCTAVE] {
            let truth = |r: &Rows| 800 + drift + if r[0] == 5 { 1000 } else { 0 } + i32::from(r[3]) * 50;
            let mut draw = || {
                let mut rows = [0; TABLES];
                rows[0] = 4 + rng.below(2) as u8;
                rows[3] = rng.below(10) as u8;
                rows
            };
            for _ in 0..8000 {
                let r = draw();
                s.learn(&r, truth(&r));
            }
            for _ in 0..100 {
                let r = draw();
                assert!((s.of(&r) - truth(&r)).abs() < 30, "{r:?}: {} for {}", s.of(&r), truth(&r));
            }
        }
    }

    #[test]
    fn every_scene_has_its_rows() {
        let mut rng = Rng::new(4, "scenes");
        for _ in 0..10_000 {
            let mut any = || rng.below(u64::MAX) >> rng.below(64);
            let s = Scene {
                pieces: any(),
                outstanding: any(),
                backlog_ns: any(),
                work_ns: any(),
                write_bytes: any(),
                recent_ns: any(),
                last_ns: any(),
                oldest_ns: any(),
            };
            let part = Part {
                reads: any() as u32,
                writes: any() as u32,
                wrote_at: Time::from_nanos(any()),
                read_at: Time::from_nanos(any()),
                read_log: (any() % (32 * OCTAVE as u64)) as i32,
                moved_at: Time::from_nanos(any()),
            };
            assert!(rows(Time::from_nanos(u64::MAX / 2), &s, &part).iter().all(|&r| usize::from(r) < ROWS));
        }
    }
}
