//! Content of the persistent cache: a log with a map of runs over it. All in sectors.

use std::collections::{BTreeMap, VecDeque};

/// A run of logical sectors that is in the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub first: u64,
    pub sectors: u64,
    /// Position in the log, counted since the log began: the place on the disk is this modulo the log's size.
    pub at: u64,
}

/// A piece of a range: where it is in the log, if it's there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub first: u64,
    pub sectors: u64,
    pub at: Option<u64>,
}

/// Writes remembered per entry of the map, dead ones included: bounds the memory of the log's order.
const RECORDS_PER_ENTRY: usize = 8;

/// The map and the log's order.
#[derive(Clone, Debug)]
pub(crate) struct CacheMap {
    size: u64,
    entries_max: usize,
    /// First sector → (sectors, place in the log).
    runs: BTreeMap<u64, (u64, u64)>,
    /// Appended runs, oldest first; parts of them may be superseded.
    log: VecDeque<Run>,
    head: u64,
}

impl CacheMap {
    pub(crate) fn new(size: u64, entries_max: usize) -> CacheMap {
        CacheMap { size, entries_max, runs: BTreeMap::new(), log: VecDeque::new(), head: 0 }
    }

    pub(crate) fn entries(&self) -> usize {
        self.runs.len()
    }

    /// LBN of a place in the log.
    pub(crate) fn lbn(&self, at: u64) -> u64 {
        at % self.size
    }

    /// True if a write of `sectors` in `pieces` runs can be taken in, however it cuts those already there.
    pub(crate) fn has_room(&self, sectors: u64, pieces: usize) -> bool {
        let tail = self.log.front().map_or(self.head, |r| r.at);
        // A write that wraps round the log leaves a stub at its end, and cuts one run more.
        self.head + 2 * sectors <= tail + self.size
            && self.runs.len() + 2 * pieces + 1 < self.entries_max.max(2 * pieces + 2)
            && self.log.len() + pieces < self.entries_max * RECORDS_PER_ENTRY
    }

    /// Appends a run; gives its LBN. It's never cut by the log's end.
    pub(crate) fn append(&mut self, first: u64, sectors: u64) -> u64 {
        if self.head % self.size + sectors > self.size {
            self.head += self.size - self.head % self.size;
        }
        let at = self.head;
        self.head += sectors;
        self.forget(first, sectors);
        self.runs.insert(first, (sectors, at));
        self.log.push_back(Run { first, sectors, at });
        self.drop_dead();
        self.lbn(at)
    }

    /// Takes `[first, first + sectors)` out of the map.
    pub(crate) fn forget(&mut self, first: u64, sectors: u64) {
        let end = first + sectors;
        if let Some((&before, &(n, at))) = self.runs.range(..first).next_back() {
            if before + n > end {
                self.runs.insert(end, (before + n - end, at + (end - before)));
            }
            if before + n > first {
                self.runs.insert(before, (first - before, at));
            }
        }
        while let Some((&inside, &(n, at))) = self.runs.range(first..end).next() {
            self.runs.remove(&inside);
            if inside + n > end {
                self.runs.insert(end, (inside + n - end, at + (end - inside)));
            }
        }
        self.drop_dead();
    }

    /// Takes out what of `run` is still where it was.
    pub(crate) fn forget_cleaned(&mut self, run: &Run) {
        let live: Vec<Run> = self.live(run).collect();
        for r in live {
            self.forget(r.first, r.sectors);
        }
    }

    /// The parts of `run` that are still where it was.
    fn live<'a>(&'a self, run: &'a Run) -> impl Iterator<Item = Run> + 'a {
        self.pieces(run.first, run.sectors).filter_map(move |p| {
            let at = p.at?;
            (at == run.at + (p.first - run.first)).then_some(Run { first: p.first, sectors: p.sectors, at })
        })
    }

    fn drop_dead(&mut self) {
        while let Some(r) = self.log.front() {
            if self.live(r).next().is_some() {
                break;
            }
            self.log.pop_front();
        }
    }

    /// The oldest run that is still needed.
    pub(crate) fn oldest(&self) -> Option<Run> {
        self.live(self.log.front()?).next()
    }

    /// `[first, first + sectors)` in pieces that are either in the log or not, in order.
    pub(crate) fn pieces(&self, first: u64, sectors: u64) -> impl Iterator<Item = Piece> + '_ {
        let end = first + sectors;
        let start =
            self.runs.range(..first).next_back().filter(|(f, (n, _))| *f + n > first).map_or(first, |(f, _)| *f);
        let mut runs = self.runs.range(start..end).peekable();
        let mut at = first;
        std::iter::from_fn(move || {
            if at >= end {
                return None;
            }
            let piece = match runs.peek() {
                Some(&(&f, &(n, place))) if f <= at => {
                    runs.next();
                    Piece { first: at, sectors: (f + n).min(end) - at, at: Some(place + (at - f)) }
                }
                Some(&(&f, _)) => Piece { first: at, sectors: f - at, at: None },
                None => Piece { first: at, sectors: end - at, at: None },
            };
            at += piece.sectors;
            Some(piece)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Against an array that says of each sector where it is.
        #[test]
        fn the_map_is_what_an_array_says(acts in prop::collection::vec((0u8..4, 0u64..200, 1u64..30), 1..120)) {
            let mut map = CacheMap::new(400, 1000);
            let mut naive: Vec<Option<u64>> = vec![None; 230];
            for (kind, first, n) in acts {
                if kind == 0 {
                    map.forget(first, n);
                    naive[first as usize..(first + n) as usize].fill(None);
                } else if map.has_room(n, 1) {
                    let lbn = map.append(first, n);
                    for i in 0..n {
                        // Nothing live may be overwritten in the log.
                        prop_assert!(!naive.contains(&Some(lbn + i)), "sector {} of the log is still needed", lbn + i);
                        naive[(first + i) as usize] = Some(lbn + i);
                    }
                } else {
                    let oldest = map.oldest().expect("a full log holds something");
                    prop_assert_eq!(naive[oldest.first as usize], Some(map.lbn(oldest.at)));
                    map.forget_cleaned(&oldest);
                    naive[oldest.first as usize..(oldest.first + oldest.sectors) as usize].fill(None);
                }
                let mut seen = Vec::new();
                for p in map.pieces(0, 230) {
                    seen.extend((0..p.sectors).map(|i| p.at.map(|a| map.lbn(a) + i)));
                }
                prop_assert_eq!(&seen, &naive);
            }
        }
    }

    #[test]
    fn a_run_written_again_while_it_was_cleaned_stays() {
        let mut map = CacheMap::new(1000, 10);
        map.append(100, 8);
        let old = map.oldest().expect("one");
        map.append(102, 2);
        map.forget_cleaned(&old);
        let kept: Vec<Piece> = map.pieces(100, 8).filter(|p| p.at.is_some()).collect();
        assert_eq!(kept, [Piece { first: 102, sectors: 2, at: Some(8) }]);
        assert_eq!(map.oldest(), Some(Run { first: 102, sectors: 2, at: 8 }));
    }

    #[test]
    fn the_map_fills_up_by_runs_not_by_bytes() {
        let mut map = CacheMap::new(1 << 30, 100);
        let mut taken = 0;
        while map.has_room(8, 1) {
            map.append(taken * 100, 8);
            taken += 1;
        }
        assert!((96..=100).contains(&taken), "{taken}");
    }
}
