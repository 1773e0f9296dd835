//! Bytes of a READ that have been answered: chunks come in any order and must not overlap.

use std::collections::BTreeMap;

/// Limit of separate pieces of one reply's content at a time: every other 512-byte sector of the longest READ would be half of
/// it.
pub(crate) const PIECES_MAX: usize = 1 << 16;

/// Reason why a piece was not added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CoverageError {
    Overlap,
    TooManyPieces,
}

/// A set of bytes, as ranges of which no two touch.
#[derive(Debug, Default)]
pub(crate) struct Coverage {
    /// Start to end (exclusive).
    pieces: BTreeMap<u64, u64>,
}

impl Coverage {
    /// Adds `start..end`, which must not be empty nor share a byte with what is there.
    pub(crate) fn add(&mut self, start: u64, end: u64) -> Result<(), CoverageError> {
        assert!(start < end, "an empty piece");
        let before = self.pieces.range(..=start).next_back().map(|(&from, &to)| (from, to));
        let after = self.pieces.range(start..).next().map(|(&from, &to)| (from, to));
        if before.is_some_and(|(_, to)| to > start) || after.is_some_and(|(from, _)| from < end) {
            return Err(CoverageError::Overlap);
        }
        let joined_start = before.filter(|&(_, to)| to == start).map_or(start, |(from, _)| from);
        let joined_end = match after.filter(|&(from, _)| from == end) {
            Some((from, to)) => {
                self.pieces.remove(&from);
                to
            }
            None => end,
        };
        if self.pieces.len() == PIECES_MAX && joined_start == start {
            return Err(CoverageError::TooManyPieces);
        }
        self.pieces.insert(joined_start, joined_end);
        Ok(())
    }

    /// Returns whether it is exactly `start..end`.
    pub(crate) fn is(&self, start: u64, end: u64) -> bool {
        self.pieces.len() == 1 && self.pieces.get(&start) == Some(&end)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn pieces_are_bounded() {
        let mut coverage = Coverage::default();
        for piece in 0..PIECES_MAX as u64 {
            coverage.add(piece * 2, piece * 2 + 1).expect("it is apart");
        }
        let end = PIECES_MAX as u64 * 2;
        assert_eq!(coverage.add(end, end + 1), Err(CoverageError::TooManyPieces));
        coverage.add(1, 2).expect("filling a gap needs no piece");
    }

    proptest! {
        #[test]
        fn it_agrees_with_a_row_of_flags(pieces in prop::collection::vec((0usize..60, 1usize..8), 0..40)) {
            let mut flags = [false; 68];
            let mut coverage = Coverage::default();
            for (start, length) in pieces {
                let range = start..start + length;
                let free = flags[range.clone()].iter().all(|taken| !taken);
                prop_assert_eq!(coverage.add(range.start as u64, range.end as u64).is_ok(), free);
                if free {
                    flags[range].fill(true);
                }
                let first = flags.iter().position(|taken| *taken).expect("one was added");
                let last = flags.iter().rposition(|taken| *taken).expect("one was added") + 1;
                let whole = flags[first..last].iter().all(|taken| *taken);
                prop_assert_eq!(coverage.is(first as u64, last as u64), whole);
            }
        }
    }
}
