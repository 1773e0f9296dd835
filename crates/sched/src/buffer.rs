//! What a drive's own buffer holds, guessed from outside: the runs that were read last, and how far read-ahead has come.
//!
//! A read that the buffer answers takes a tenth of a millisecond instead of a turn, and nothing about its distance tells the
//! two apart. The guess keeps a few runs, oldest replaced first, and lets the last one grow at the media's rate until
//! the arm is wanted elsewhere or the drive's read-ahead ends.

use plimsoll_base::Time;

/// Runs that are kept in mind at most.
const RUNS_MAX: usize = 16;

#[derive(Clone, Copy, Debug)]
struct Run {
    start: u64,
    end: u64,
}

/// See the module's documentation.
#[derive(Clone, Debug)]
pub(crate) struct DriveBuffer {
    runs: [Run; RUNS_MAX],
    /// The one that is replaced next; the one before it is the last.
    next: usize,
    /// The last run grows since then, at this many bytes a microsecond, up to `limit`.
    grows_since: Time,
    bytes_per_us: u64,
    limit: u64,
    /// How far the drive reads ahead, in bytes; zero: not at all.
    ahead_bytes: u64,
}

impl DriveBuffer {
    pub(crate) fn new(ahead_bytes: u64) -> DriveBuffer {
        DriveBuffer {
            runs: [Run { start: 0, end: 0 }; RUNS_MAX],
            next: 0,
            grows_since: Time::NEVER,
            bytes_per_us: 0,
            limit: 0,
            ahead_bytes,
        }
    }

    fn last(&self) -> usize {
        (self.next + RUNS_MAX - 1) % RUNS_MAX
    }

    fn end_of_last(&self, at: Time) -> u64 {
        let run = &self.runs[self.last()];
        let grown = at.since(self.grows_since).as_nanos().saturating_mul(self.bytes_per_us) / 1000;
        run.end.saturating_add(grown).min(self.limit).max(run.end)
    }

    /// Does the buffer hold all of `start..end` at `at`?
    pub(crate) fn holds(&self, at: Time, start: u64, end: u64) -> bool {
        if self.ahead_bytes == 0 {
            return false;
        }
        let last = self.last();
        self.runs.iter().enumerate().any(|(i, r)| {
            start >= r.start && start < r.end.max(if i == last { self.limit } else { 0 }) && {
                let known = if i == last { self.end_of_last(at) } else { r.end };
                end <= known
            }
        })
    }

    /// The arm went to `start..end` and was done at `at`; with a read the drive goes on reading from there.
    pub(crate) fn accessed(&mut self, began: Time, at: Time, start: u64, end: u64, read: bool, bytes_per_us: u64) {
        if self.ahead_bytes == 0 {
            return;
        }
        let last = self.last();
        let reached = self.end_of_last(began);
        self.runs[last].end = reached;
        self.grows_since = Time::NEVER;
        self.limit = 0;
        if !read {
            // What was written over isn't what the buffer holds.
            for r in &mut self.runs {
                if start < r.end && end > r.start {
                    *r = Run { start: 0, end: 0 };
                }
            }
            return;
        }
        let goes_on = self.runs[last].start <= start && start <= reached && self.runs[last].end > 0;
        if goes_on {
            self.runs[last].end = end.max(reached);
        } else {
            self.runs[self.next] = Run { start, end };
            self.next = (self.next + 1) % RUNS_MAX;
        }
        self.grows_since = at;
        self.bytes_per_us = bytes_per_us;
        self.limit = self.runs[self.last()].end.saturating_add(self.ahead_bytes);
    }

    /// The buffer answered `start..end`: the drive reads on as far ahead of that.
    pub(crate) fn answered(&mut self, start: u64, end: u64) {
        let last = self.last();
        if self.runs[last].start <= start && start < self.limit {
            self.limit = self.limit.max(end.saturating_add(self.ahead_bytes));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_base::Span;

    fn us(n: u64) -> Time {
        Time::ZERO + Span::from_micros(n)
    }

    #[test]
    fn read_ahead_grows_until_the_arm_goes_elsewhere() {
        let mut b = DriveBuffer::new(1000);
        b.accessed(us(0), us(10), 5000, 5100, true, 2);
        assert!(b.holds(us(10), 5000, 5100) && !b.holds(us(10), 5100, 5200));
        assert!(b.holds(us(60), 5100, 5200), "two bytes a microsecond");
        assert!(b.holds(us(9999), 5100, 6100) && !b.holds(us(9999), 5100, 6101), "it ends somewhere");
        b.accessed(us(110), us(120), 90_000, 90_100, true, 2);
        assert!(b.holds(us(9999), 5100, 5300) && !b.holds(us(9999), 5100, 5301), "it came so far");
        b.accessed(us(200), us(210), 5150, 5160, false, 2);
        assert!(!b.holds(us(9999), 5100, 5300), "written over");
    }

    #[test]
    fn without_read_ahead_nothing_is_believed() {
        let mut b = DriveBuffer::new(0);
        b.accessed(us(0), us(10), 5000, 5100, true, 2);
        assert!(!b.holds(us(10), 5000, 5100));
    }
}
