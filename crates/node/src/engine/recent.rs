//! Counters of the last minute, hour and day, in fixed memory.
//!
//! ```text
//!  seconds       60 cells ─┐
//!  minutes       60 cells ─┼─ an event is counted in the running cell of each ring
//!  ten minutes  144 cells ─┘
//! ```
//! A window is the sum of its ring: the running cell and the whole ones before it. So the last minute has 59 to 60 seconds, the last
//! hour 59 to 60 minutes, the last day ten minutes less than 24 hours to 24 hours.

use plimsoll_base::{Span, Time};

/// Counters of a cell.
pub trait Counts: Copy + Default {
    /// Adds another cell's.
    fn add(&mut self, other: &Self);
}

/// Requests of a tenant on a volume, as its promise has it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Tally {
    /// Requests that ended as asked.
    pub done: u64,
    /// Accepted reads with a deadline that were done by it.
    pub kept: u64,
    /// Accepted reads with a deadline that were done after it, against the forecast.
    pub missed: u64,
    /// Reads with a deadline that were done after it as was forecast.
    pub waited: u64,
    /// Reads with a deadline that were answered busy by then, at once or later.
    pub refused: u64,
    /// Requests that failed below the node: the device, or its space.
    pub failed: u64,
}

impl Counts for Tally {
    fn add(&mut self, other: &Tally) {
        self.done += other.done;
        self.kept += other.kept;
        self.missed += other.missed;
        self.waited += other.waited;
        self.refused += other.refused;
        self.failed += other.failed;
    }
}

/// Requests that an objective is judged by.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Within {
    /// All of them.
    pub requests: u64,
    /// Those within its bound.
    pub within: u64,
}

impl Counts for Within {
    fn add(&mut self, other: &Within) {
        self.requests += other.requests;
        self.within += other.within;
    }
}

/// Lengths of the windows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Window {
    /// 60 seconds.
    Minute,
    /// 60 minutes.
    Hour,
    /// 24 hours.
    Day,
}

impl Window {
    /// All of them, the shortest first.
    pub const ALL: [Window; 3] = [Window::Minute, Window::Hour, Window::Day];
}

/// See the module's documentation.
#[derive(Clone, Debug)]
pub struct Recent<C> {
    seconds: Ring<C>,
    minutes: Ring<C>,
    ten_minutes: Ring<C>,
    /// The end of the running second.
    turns_at: Time,
}

impl<C: Counts> Default for Recent<C> {
    fn default() -> Recent<C> {
        let ring = |cells, period_s| Ring::new(cells, Span::from_secs(period_s));
        Recent { seconds: ring(60, 1), minutes: ring(60, 60), ten_minutes: Ring::of_a_day(), turns_at: Time::ZERO }
    }
}

impl<C: Counts> Recent<C> {
    /// Counts an event.
    #[inline]
    pub fn count(&mut self, now: Time, event: impl Fn(&mut C)) {
        self.turn(now);
        self.rings().for_each(|ring| event(ring.running()));
    }

    /// Moves on to `now`'s cells.
    #[inline]
    pub fn turn(&mut self, now: Time) {
        if now < self.turns_at {
            return;
        }
        self.rings().for_each(|ring| ring.turn(now));
        self.turns_at = self.seconds.end();
    }

    /// Sum of a window, as of the last turn.
    pub fn sum(&self, window: Window) -> C {
        match window {
            Window::Minute => self.seconds.sum(60),
            Window::Hour => self.minutes.sum(60),
            Window::Day => self.ten_minutes.sum(CELLS_OF_A_DAY),
        }
    }

    /// Sum of the running minute and those before it, `minutes` in all, as of the last turn.
    pub fn sum_of_minutes(&self, minutes: usize) -> C {
        self.minutes.sum(minutes)
    }

    /// The last seconds, the running one last.
    pub fn seconds(&self) -> impl Iterator<Item = C> + '_ {
        self.seconds.last(60)
    }

    /// The last minutes, the running one last.
    pub fn minutes(&self) -> impl Iterator<Item = C> + '_ {
        self.minutes.last(60)
    }

    /// The last day by ten minutes, the running ones last.
    pub fn ten_minutes(&self) -> impl Iterator<Item = C> + '_ {
        self.ten_minutes.last(CELLS_OF_A_DAY)
    }

    fn rings(&mut self) -> impl Iterator<Item = &mut Ring<C>> {
        [&mut self.seconds, &mut self.minutes, &mut self.ten_minutes].into_iter()
    }
}

/// Periods of ten minutes in a day.
pub const CELLS_OF_A_DAY: usize = 144;

/// Cells of the same period, the oldest overwritten by the newest.
#[derive(Clone, Debug)]
pub struct Ring<C> {
    /// Period `n` is at `n` modulo their number.
    cells: Box<[C]>,
    period: Span,
    /// Number of the running period.
    number: u64,
}

impl<C: Counts> Ring<C> {
    /// A day's cells, of ten minutes each.
    pub fn of_a_day() -> Ring<C> {
        Ring::new(CELLS_OF_A_DAY, Span::from_secs(600))
    }

    fn new(cells: usize, period: Span) -> Ring<C> {
        Ring { cells: vec![C::default(); cells].into_boxed_slice(), period, number: 0 }
    }

    /// The running period's cell.
    #[inline]
    pub fn running(&mut self) -> &mut C {
        &mut self.cells[(self.number % self.cells.len() as u64) as usize]
    }

    fn end(&self) -> Time {
        Time::ZERO + self.period * (self.number + 1)
    }

    /// Moves on to `now`'s cell.
    pub fn turn(&mut self, now: Time) {
        let number = now.as_nanos() / self.period.as_nanos();
        let passed = number.saturating_sub(self.number).min(self.cells.len() as u64);
        for n in 0..passed {
            self.cells[((number - n) % self.cells.len() as u64) as usize] = C::default();
        }
        self.number = self.number.max(number);
    }

    /// The last `n` cells, the running one last.
    pub fn last(&self, n: usize) -> impl Iterator<Item = C> + '_ {
        let len = self.cells.len();
        let running = (self.number % len as u64) as usize;
        (0..n.min(len)).rev().map(move |back| self.cells[(running + len - back) % len])
    }

    fn sum(&self, n: usize) -> C {
        self.last(n).fold(C::default(), |mut sum, cell| {
            sum.add(&cell);
            sum
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(s: u64) -> Time {
        Time::ZERO + Span::from_secs(s)
    }

    fn sums(recent: &mut Recent<Tally>, s: u64) -> [u64; 3] {
        recent.turn(at(s));
        Window::ALL.map(|w| recent.sum(w).kept)
    }

    #[test]
    fn events_leave_one_window_after_the_other() {
        let mut recent: Recent<Tally> = Recent::default();
        assert_eq!(sums(&mut recent, 5), [0; 3]);
        (0..3).for_each(|_| recent.count(at(10), |c| c.kept += 1));
        assert_eq!(sums(&mut recent, 10), [3; 3]);
        assert_eq!(sums(&mut recent, 69), [3; 3]);
        assert_eq!(sums(&mut recent, 70), [0, 3, 3]);
        recent.count(at(70), |c| c.kept += 1);
        assert_eq!(sums(&mut recent, 3599), [0, 4, 4]);
        assert_eq!(sums(&mut recent, 3600), [0, 1, 4], "those of the hour's first minute");
        assert_eq!(sums(&mut recent, 24 * 3600 - 1), [0, 0, 4]);
        assert_eq!(sums(&mut recent, 24 * 3600), [0; 3], "all were in the day's first ten minutes");
    }

    /// A second after the other, and after any pause, windows have what was counted in them.
    #[test]
    fn windows_are_sums_of_what_was_counted() {
        let mut rng = plimsoll_base::Rng::new(3, "recent");
        let (mut recent, mut all, mut now) = (Recent::<Within>::default(), Vec::new(), 0);
        for _ in 0..3000 {
            now += rng.below(90);
            recent.count(at(now), |c| c.requests += 1);
            all.push(now);
            let counted =
                |cell_s: u64, cells: u64| all.iter().filter(|&&s| s / cell_s + cells > now / cell_s).count() as u64;
            let expected = [counted(1, 60), counted(60, 60), counted(600, 144)];
            assert_eq!(Window::ALL.map(|w| recent.sum(w).requests), expected, "at {now} s");
            assert_eq!(recent.sum_of_minutes(10).requests, counted(60, 10));
            assert_eq!(recent.seconds().map(|c| c.requests).sum::<u64>(), expected[0]);
            assert_eq!(recent.ten_minutes().map(|c| c.requests).sum::<u64>(), expected[2]);
        }
        assert_eq!(recent.minutes().last().map(|c| c.requests > 0), Some(true), "the running one is the last");
    }
}
