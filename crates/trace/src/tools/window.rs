//! The busiest stretch of a trace.

use crate::error::TraceError;
use crate::record::{Op, TraceRecord};
use crate::stream::RecordStream;
use plimsoll_base::{Rng, Span, Time};
use std::collections::VecDeque;

/// Criterion of a busy window.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Busy {
    /// Most requests.
    Requests,
    /// Most bytes read and written.
    Bytes,
    /// Most reads: Manylogs' "most-read" (Table I).
    Reads,
    /// Most writes: Manylogs' "most-write" (Table I).
    Writes,
}

impl Busy {
    fn weight(self, r: &TraceRecord) -> u64 {
        match self {
            Busy::Requests => 1,
            Busy::Bytes if r.op != Op::Trim => r.len,
            Busy::Bytes => 0,
            Busy::Reads => u64::from(r.op == Op::Read),
            Busy::Writes => u64::from(r.op == Op::Write),
        }
    }
}

/// A stretch of a trace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Window {
    /// Its start.
    pub from: Time,
    /// Its length.
    pub len: Span,
    /// Requests, reads, writes or bytes in it, whichever was asked for.
    pub amount: u64,
}

impl Window {
    /// A window of `len` at a random place of a trace of `duration` (Manylogs' "random", Table I): its start is
    /// uniform over those that leave it within the trace; zero for a shorter trace. `amount` is not counted.
    pub fn random(duration: Span, len: Span, rng: &mut Rng) -> Window {
        let starts = duration.saturating_sub(len).as_nanos();
        Window { from: Time::from_nanos(rng.below(starts.saturating_add(1))), len, amount: 0 }
    }
}

/// Starts tried in one window's length: a start is found to 1/60 of it.
const STEPS: u64 = 60;

/// Finds the busiest window of a given length, starts being multiples of 1/60 of it; of equals the first.
/// Memory: 60 counters.
pub struct WindowFinder {
    busy: Busy,
    step_ns: u64,
    /// Amounts of the last steps, the last of them number `step`.
    steps: VecDeque<u64>,
    step: u64,
    sum: u64,
    best_end: u64,
    best: u64,
}

impl WindowFinder {
    /// A finder of windows of `len`.
    ///
    /// # Panics
    /// If `len` is shorter than 60 ns.
    pub fn new(len: Span, busy: Busy) -> WindowFinder {
        let step_ns = len.as_nanos() / STEPS;
        assert!(step_ns > 0, "a window of at least 60 ns");
        WindowFinder { busy, step_ns, steps: VecDeque::from([0]), step: 0, sum: 0, best_end: 0, best: 0 }
    }

    /// Takes the next record.
    pub fn record(&mut self, r: &TraceRecord) {
        let step = r.arrived_at.as_nanos() / self.step_ns;
        self.advance(step);
        let weight = self.busy.weight(r);
        // Never empty: it starts with one step and `advance` leaves at least that.
        if let Some(last) = self.steps.back_mut() {
            *last = last.saturating_add(weight);
        }
        self.sum = self.sum.saturating_add(weight);
        if self.sum > self.best {
            self.best = self.sum;
            self.best_end = step;
        }
    }

    fn advance(&mut self, step: u64) {
        if step - self.step >= STEPS {
            self.steps.clear();
            self.steps.push_back(0);
            self.sum = 0;
        } else {
            for _ in self.step..step {
                self.steps.push_back(0);
                if self.steps.len() as u64 > STEPS {
                    self.sum -= self.steps.pop_front().unwrap_or(0);
                }
            }
        }
        self.step = step;
    }

    /// The busiest window so far; the trace's start if nothing came.
    pub fn found(&self) -> Window {
        let first = (self.best_end + 1).saturating_sub(STEPS);
        Window {
            from: Time::from_nanos(first * self.step_ns),
            len: Span::from_nanos(self.step_ns * STEPS),
            amount: self.best,
        }
    }
}

/// The busiest window of the whole stream.
///
/// # Errors
/// The stream's.
pub fn busiest(stream: &mut impl RecordStream, len: Span, busy: Busy) -> Result<Window, TraceError> {
    let mut finder = WindowFinder::new(len, busy);
    for r in stream.records() {
        finder.record(&r?);
    }
    Ok(finder.found())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_busiest_window_is_that_of_trying_every_start() {
        let mut rng = Rng::new(3, "window");
        for case in 0..50 {
            let mut at = 0;
            let times: Vec<u64> = (0..400)
                .map(|_| {
                    at += if rng.chance(0.02) { rng.below(9_000) } else { rng.below(30) };
                    at
                })
                .collect();
            let len = 600;
            let mut f = WindowFinder::new(Span::from_nanos(len), Busy::Requests);
            for &t in &times {
                f.record(&TraceRecord::new(Time::from_nanos(t), 0, Op::Read, 0, 1));
            }
            let count = |from: u64| times.iter().filter(|&&t| t >= from && t < from + len).count() as u64;
            let best = (0..=at / 10).map(|s| count(s * 10)).max().unwrap();
            let found = f.found();
            assert_eq!((found.amount, count(found.from.as_nanos())), (best, best), "case {case}");
        }
    }

    #[test]
    fn a_random_window_lies_within_the_trace() {
        let mut rng = Rng::new(4, "window");
        let starts: Vec<u64> = (0..1_000)
            .map(|_| Window::random(Span::from_secs(10), Span::from_secs(4), &mut rng).from.as_nanos() / 1_000_000_000)
            .collect();
        assert!((0..6).all(|s| starts.contains(&s)) && starts.iter().all(|&s| s <= 6));
        assert_eq!(Window::random(Span::from_secs(1), Span::from_secs(4), &mut rng).from, Time::ZERO);
    }
}
