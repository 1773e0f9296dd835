//! A piece of a trace.

use crate::error::TraceError;
use crate::record::{Tables, TraceRecord};
use crate::stream::RecordStream;
use plimsoll_base::Time;

/// Piece to cut out; every bound applies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Piece {
    /// First arrival in it.
    pub from: Time,
    /// First arrival after it; [`Time::NEVER`]: to the end.
    pub to: Time,
    /// Records left out first, of those between `from` and `to`.
    pub skip: u64,
    /// Records at most.
    pub count_max: u64,
}

impl Default for Piece {
    /// All of it.
    fn default() -> Piece {
        Piece { from: Time::ZERO, to: Time::NEVER, skip: 0, count_max: u64::MAX }
    }
}

/// The records of a piece, their times counted from its start: from `from`, or from the first record if records were
/// skipped by number.
pub struct Cut<S> {
    stream: S,
    piece: Piece,
    skipped: u64,
    given: u64,
    base: Option<Time>,
}

impl<S: RecordStream> Cut<S> {
    /// The piece `piece` of `stream`.
    pub fn new(stream: S, piece: Piece) -> Cut<S> {
        Cut { stream, piece, skipped: 0, given: 0, base: (piece.skip == 0).then_some(piece.from) }
    }
}

impl<S: RecordStream> RecordStream for Cut<S> {
    fn next_record(&mut self) -> Option<Result<TraceRecord, TraceError>> {
        if self.given == self.piece.count_max {
            return None;
        }
        loop {
            let mut r = match self.stream.next_record()? {
                Ok(r) => r,
                Err(e) => return Some(Err(e)),
            };
            if r.arrived_at >= self.piece.to {
                // Arrivals are sorted: nothing further belongs to the piece.
                self.given = self.piece.count_max;
                return None;
            }
            if r.arrived_at < self.piece.from {
                continue;
            }
            if self.skipped < self.piece.skip {
                self.skipped += 1;
                continue;
            }
            self.given += 1;
            let base = *self.base.get_or_insert(r.arrived_at);
            r.arrived_at = Time::from_nanos(r.arrived_at.since(base).as_nanos());
            return Some(Ok(r));
        }
    }

    fn tables(&self) -> &Tables {
        self.stream.tables()
    }
}
