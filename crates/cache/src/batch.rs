//! A batch of what is written back, and how far a partition is with it.

use crate::index::{Key, Loc};
use plimsoll_base::{Data, IoError, Time};
use std::ops::Range;

/// Extents that adjoin, by their numbers in a batch, with the length and content of each: one request of the slow device.
pub(crate) type Piece = (Range<usize>, Vec<(u64, Data)>);

/// One extent of a batch.
#[derive(Clone, Debug)]
pub(crate) struct Item {
    pub key: Key,
    /// Its place in the cache when it was read.
    pub loc: Loc,
    /// It is a request of its own.
    alone: bool,
    /// It was refused before.
    pub again: bool,
    /// It was begun.
    pub begun: bool,
    /// Another content was pointed at since it was begun. The same content may be back since, at the same place: then it is as
    /// the slow device has it, but the header that says so, and with which all before it is dead, is another one.
    pub changed: bool,
    /// The bytes read, until they are written.
    pub data: Option<Data>,
    /// True if it is on the slow device now.
    pub written: bool,
    /// The slow device's error, if it refused it when it was a request of its own.
    pub refused: Option<IoError>,
}

impl Item {
    pub(crate) fn new(key: Key, loc: Loc, alone: bool, again: bool) -> Item {
        Item { key, loc, alone, again, begun: false, changed: false, data: None, written: false, refused: None }
    }
}

/// Adjoining extents of a batch.
pub(crate) struct Run {
    pub items: Range<usize>,
    /// Reads that haven't ended; then writes.
    pub outstanding: u32,
}

/// See the module's documentation.
pub(crate) struct Batch {
    pub items: Vec<Item>,
    pub runs: Vec<Run>,
    /// The next run to begin.
    pub next: usize,
    /// Runs that haven't ended; then flushes.
    pub outstanding: u32,
    /// It waits for a flush of the slow device before it ends.
    pub flushing: bool,
    /// A flush of the slow device failed.
    pub failed: bool,
    /// Its error, if it was one of this batch's.
    pub error: Option<IoError>,
    /// The slow device refused some of it.
    pub refused: bool,
    began_at: Time,
    pub flush_at: Time,
}

impl Batch {
    /// One that begins now.
    pub(crate) fn of(now: Time, items: Vec<Item>, runs: Vec<Run>) -> Batch {
        Batch {
            items,
            runs,
            next: 0,
            outstanding: 0,
            flushing: false,
            failed: false,
            error: None,
            refused: false,
            began_at: now,
            flush_at: now,
        }
    }

    pub(crate) fn run_of(&mut self, item: usize) -> (usize, &mut Run) {
        let at = self.runs.partition_point(|r| r.items.end <= item);
        (at, &mut self.runs[at])
    }
}

/// Dirty extents of a partition.
pub(crate) struct DirtyPart {
    pub part: u16,
    pub dirty: u64,
    /// All dirty extents of some volume in it must be written back.
    pub drains: bool,
}

/// A step of the fast device that a batch waits for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum WaitsFor {
    /// A record of the journal.
    Record(u64),
    /// A flush.
    Flush(u64),
}

/// A partition's write-back.
#[derive(Default)]
pub(crate) struct WriteBack {
    /// True while dirty extents are above the watermark, or haven't fallen to half of it since.
    pub on: bool,
    /// The next batch begins here.
    pub cursor: Option<Key>,
    /// Not before this.
    pub retry_at: Time,
    /// The next batch waits for it.
    pub waits: Option<WaitsFor>,
    /// Extents of the next batch at most.
    pub most: usize,
    pub batch: Option<Batch>,
    /// There is no room for dirty extents, and there will be none before write-back works again.
    pub full: bool,
}

impl WriteBack {
    /// True if a batch is under way.
    pub(crate) fn is_busy(&self) -> bool {
        self.batch.is_some()
    }

    /// Sizes the next batch after one that was as large as it may be: twice the size if the flush took longer than half of the
    /// writes' time. Half the size after any batch whose flush took less than an eighth of that time.
    pub(crate) fn resize(&mut self, b: &Batch, now: Time, (least, most): (usize, usize)) {
        let (writes, flush) = (b.flush_at.since(b.began_at), now.since(b.flush_at));
        if b.items.len() >= self.most && flush.as_nanos() * 2 > writes.as_nanos() {
            self.most = (self.most * 2).clamp(least, most);
        } else if flush.as_nanos() * 8 < writes.as_nanos() {
            self.most = (self.most / 2).clamp(least, most);
        }
    }
}

/// Runs of adjoining items, up to `most` extents each.
pub(crate) fn runs_of(items: &[Item], most: usize) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for (i, item) in items.iter().enumerate() {
        let joins = |r: &Run| r.items.len() < most && items[i - 1].key.adjoins(item.key);
        match runs.last_mut() {
            Some(r) if !item.alone && !items[i - 1].alone && joins(r) => r.items.end = i + 1,
            _ => runs.push(Run { items: i..i + 1, outstanding: 0 }),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Eight extents of a file that were written one by one are one request; neither another volume's nor too many join it.
    #[test]
    fn what_adjoins_is_one_run() {
        let keys = [(1, 4), (1, 5), (1, 6), (1, 8), (1, 9), (2, 10), (2, 11), (2, 12), (2, 13), (2, 14)];
        let item = |(v, n): (u16, u64)| {
            let loc = Loc::new(0, 0, 1, 0);
            Item::new(Key::new(v, n), loc, false, false)
        };
        let items = keys.map(item);
        let runs: Vec<_> = runs_of(&items, 4).into_iter().map(|r| r.items).collect();
        assert_eq!(runs, [0..3, 3..5, 5..9, 9..10]);
    }
}
