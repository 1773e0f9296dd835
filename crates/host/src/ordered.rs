//! Pages that were refused and ordered, and the time of their order.
//!
//! A fixed number of entries. One that is overwritten, as too many pages are ordered at once, begins its time anew.

use crate::seen::{Of, table};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Entries.
const ENTRIES: usize = 1024;
/// Entries that pages may be in, from their own on.
const CHAIN: usize = 8;
/// An order that is older may have been carried out, and its pages evicted again since.
const OLD_NS: u64 = 10_000_000_000;
/// Milliseconds of an entry's word; above them are the flag and the tag.
const TIME_BITS: u32 = 40;
/// The entry has begun anew once.
const AGAIN: u64 = 1 << TIME_BITS;
const TAG: u64 = !(2 * AGAIN - 1);

/// Pages by their owner and first page.
pub struct Ordered(Box<[AtomicU64]>);

impl Default for Ordered {
    fn default() -> Ordered {
        Ordered(table(ENTRIES))
    }
}

fn ms(now_ns: u64) -> u64 {
    (now_ns / 1_000_000) & (AGAIN - 1)
}

fn age_ns(word: u64, now_ns: u64) -> u64 {
    ms(now_ns).saturating_sub(word & (AGAIN - 1)) * 1_000_000
}

impl Ordered {
    fn entries(&self, hash: u64) -> impl Iterator<Item = &AtomicU64> {
        (0..CHAIN).filter_map(move |i| self.0.get((hash as usize + i) % ENTRIES))
    }

    /// The entry of pages, and its word.
    fn find(&self, hash: u64) -> Option<(&AtomicU64, u64)> {
        self.entries(hash).map(|e| (e, e.load(Relaxed))).find(|(_, word)| *word != 0 && (word ^ hash) & TAG == 0)
    }

    /// The time since the pages were ordered, in nanoseconds. `None`: they weren't.
    pub fn age_ns(&self, of: Of, page: u64, now_ns: u64) -> Option<u64> {
        self.find(of.hash(page)).map(|(_, word)| age_ns(word, now_ns))
    }

    /// True if the pages were ordered at least `due_ns` ago, and so can't be brought in. Otherwise they count as ordered from now on,
    /// if they don't yet.
    ///
    /// A very old order begins anew, but only once: pages that can't be brought in may be asked for seldom.
    pub fn is_overdue(&self, of: Of, page: u64, now_ns: u64, due_ns: u64) -> bool {
        let hash = of.hash(page);
        let new = hash & TAG | ms(now_ns).max(1);
        let Some((entry, word)) = self.find(hash) else {
            // Free, or the oldest.
            let Some(entry) = self.entries(hash).min_by_key(|e| e.load(Relaxed) & (AGAIN - 1)) else {
                return true; // there was no memory for entries: nothing is refused that would never be known as late
            };
            entry.store(new, Relaxed);
            return false;
        };
        let age = age_ns(word, now_ns);
        if word & AGAIN == 0 && age >= due_ns.saturating_add(OLD_NS) {
            entry.store(new | AGAIN, Relaxed);
            return false;
        }
        age >= due_ns
    }

    /// Forgets pages: they have come in.
    pub fn clear(&self, of: Of, page: u64) {
        if let Some((entry, word)) = self.find(of.hash(page)) {
            let _ = entry.compare_exchange(word, 0, Relaxed, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    #[test]
    fn other_pages_orders_make_none_overdue() {
        let ordered = Ordered::default();
        let (a, b) = (Of::file(1, 2), Of::file(1, 3));
        // A hundred a second, each asked for once.
        for page in 0..3000 {
            assert!(!ordered.is_overdue(a, page, S + page * 10_000_000, 2 * S), "page {page}");
        }
        assert!(!ordered.is_overdue(b, 0, 31 * S, 2 * S));
        assert!(ordered.is_overdue(b, 0, 33 * S, 2 * S), "its own order is");
        assert!(ordered.is_overdue(b, 0, 34 * S, 2 * S), "until it's read");
    }

    #[test]
    fn pages_that_came_in_are_ordered_anew() {
        let (ordered, of) = (Ordered::default(), Of::file(1, 2));
        assert!(!ordered.is_overdue(of, 7, S, 2 * S));
        assert_eq!((ordered.age_ns(of, 7, 2 * S), ordered.age_ns(of, 8, 2 * S)), (Some(S), None));
        ordered.clear(of, 7);
        assert!(!ordered.is_overdue(of, 7, 4 * S, 2 * S), "the order before is no longer theirs");
        assert!(ordered.is_overdue(of, 7, 6 * S, 2 * S));
    }

    #[test]
    fn pages_that_are_seldom_asked_for_are_overdue_in_the_end() {
        let (ordered, of) = (Ordered::default(), Of::file(1, 2));
        let outcomes = [1, 21, 41].map(|at| ordered.is_overdue(of, 7, at * S, 2 * S));
        assert_eq!(outcomes, [false, false, true]);
    }

    #[test]
    fn without_memory_no_read_waits_for_an_order() {
        let ordered = Ordered(Box::default());
        assert!(ordered.is_overdue(Of::file(1, 2), 7, S, 2 * S));
        assert_eq!(ordered.age_ns(Of::file(1, 2), 7, S), None);
    }
}
