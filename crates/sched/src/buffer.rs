//! Content of a drive's own buffer, guessed from outside: the runs that were read last, and the progress of read-ahead.
//!
//! A read that the buffer answers takes a tenth of a millisecond instead of a turn of the platter. Its distance doesn't show which of the
//! two it takes. The guess keeps a few runs, oldest replaced first. The last run grows at the media's rate until the arm is wanted
//! elsewhere or the drive's read-ahead ends.

use plimsoll_base::Time;

/// Runs that are kept in mind at most.
const RUNS_MAX: usize = 16;

/// log2 of what the quick look tells apart.
const PAGE_BITS: u32 = 12;

#[derive(Clone, Copy, Debug)]
struct Run {
    start: u64,
    end: u64,
}

/// Pages that the runs may reach, in 32 bits each so that all are compared in a few instructions: nearly every lookup is for an
/// address that no run is near. Numbers wrap, so a page may be taken for another one's; never the other way round.
#[derive(Clone, Copy, Debug)]
struct Reaches {
    first: [u32; RUNS_MAX],
    pages: [u32; RUNS_MAX],
}

impl Reaches {
    fn set(&mut self, run: usize, start: u64, end: u64) {
        let pages = (end.max(start) >> PAGE_BITS) - (start >> PAGE_BITS) + 1;
        (self.first[run], self.pages[run]) = ((start >> PAGE_BITS) as u32, pages.min(u64::from(u32::MAX)) as u32);
    }

    fn may_hold(&self, at: u64) -> bool {
        let page = (at >> PAGE_BITS) as u32;
        let inside = |(first, pages): (&u32, &u32)| page.wrapping_sub(*first) < *pages;
        // No early end: compilers make vectors of it.
        self.first.iter().zip(&self.pages).fold(false, |any, run| any | inside(run))
    }
}

/// See the module's documentation.
#[derive(Clone, Debug)]
pub(crate) struct DriveBuffer {
    runs: [Run; RUNS_MAX],
    reaches: Reaches,
    /// The one that is replaced next; the one before it is the last.
    next: usize,
    /// The last run grows since then, at this many bytes a microsecond, up to `limit`.
    grows_since: Time,
    bytes_per_us: u64,
    limit: u64,
    /// Length of the drive's read-ahead, in bytes; zero: none.
    ahead_bytes: u64,
}

impl DriveBuffer {
    pub(crate) fn new(ahead_bytes: u64) -> DriveBuffer {
        DriveBuffer {
            runs: [Run { start: 0, end: 0 }; RUNS_MAX],
            reaches: Reaches { first: [0; RUNS_MAX], pages: [0; RUNS_MAX] },
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

    /// True if the buffer holds all of `start..end` at `at`.
    pub(crate) fn holds(&self, at: Time, start: u64, end: u64) -> bool {
        if self.ahead_bytes == 0 || !self.reaches.may_hold(start) {
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
        let last = self.last();
        let run = &self.runs[last];
        self.limit = run.end.saturating_add(self.ahead_bytes);
        self.reaches.set(last, run.start, self.limit);
    }

    /// The buffer answered `start..end`: the drive reads on as far ahead of that.
    pub(crate) fn answered(&mut self, start: u64, end: u64) {
        let last = self.last();
        if self.runs[last].start <= start && start < self.limit {
            self.limit = self.limit.max(end.saturating_add(self.ahead_bytes));
            self.reaches.set(last, self.runs[last].start, self.limit);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_base::Span;
    use proptest::prelude::*;

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

    proptest! {
        #[test]
        fn the_quick_look_misses_nothing(
            accesses in prop::collection::vec((0u64..1 << 20, 1u64..1 << 14, any::<bool>(), any::<bool>()), 1..60),
            asked in prop::collection::vec((0u64..1 << 20, 1u64..1 << 14), 30),
        ) {
            let mut b = DriveBuffer::new(10_000);
            for (i, (start, len, read, hit)) in accesses.into_iter().enumerate() {
                let (start, now) = (start * 4, us(i as u64 * 100));
                if hit {
                    b.answered(start, start + len);
                } else {
                    b.accessed(now, now + Span::from_micros(50), start, start + len, read, 3);
                }
                // The obvious way: any run, the last one as far as it may have grown.
                for (at, len) in asked.iter().map(|(at, len)| (at * 4, len)) {
                    let later = now + Span::from_micros(90);
                    let last = b.last();
                    let end = |i: usize| if i == last { b.end_of_last(later) } else { b.runs[i].end };
                    let obvious = b.runs.iter().enumerate().any(|(i, r)| at >= r.start && at < end(i) && at + len <= end(i));
                    prop_assert_eq!(b.holds(later, at, at + len), obvious);
                }
            }
        }
    }

    #[test]
    fn without_read_ahead_nothing_is_believed() {
        let mut b = DriveBuffer::new(0);
        b.accessed(us(0), us(10), 5000, 5100, true, 2);
        assert!(!b.holds(us(10), 5000, 5100));
    }
}
