//! The walk along a log's chain, from the end that the image knows: the records that follow, and how it ends.
//!
//! A record names the sum of the one before it: the chain ends where the next place has no such record. Behind that end there may be
//! records that follow on a corrupt one; the walk looks for them as far as one may be, as their witnesses say what was durable.
//!
//! [`Walk::next`] says what to read, and [`Walk::read`] takes it. Records are judged when all logs have been walked along.

use crate::config::Planted;
use crate::format::{
    Entry, EntryKind, Place, Record, Witness, data_sum, decode_record, header_length, previous_of, sum_of_units, units,
};
use crate::format_v1;
use crate::layout::Layout;
use crate::log::Log;

/// Bytes of a log that are read at first: enough to see that nothing is there, or a few records.
pub(crate) const LOOK_BYTES: u64 = 64 << 10;
/// Bytes that are read at a time after that.
pub(crate) const READ_BYTES: u64 = 1 << 20;
/// The longest header of a record.
pub(crate) const RECORD_HEADER_MAX: u64 = 4096;

/// A record that was found.
pub(crate) struct Found {
    pub log: u32,
    /// Its end, from the log's beginning, and the sum that the next one must name.
    pub end: u32,
    pub sum: u64,
    pub is_whole: bool,
    /// Entries with the places and the sums of their data.
    pub entries: Vec<(Entry, u64, Sums)>,
}

/// The sums of an entry's units, as its data were read.
pub(crate) enum Sums {
    /// Kills have none, and format version 1 kept none.
    None,
    One(u64),
    Many(Vec<u64>),
    /// They are not what the header says.
    Corrupt,
}

/// The same in all walks of a recovery.
#[derive(Clone, Copy)]
pub(crate) struct Rules<'a> {
    pub layout: &'a Layout,
    /// The format's version.
    pub version: u32,
    /// Longest distance from a log's end to a record that follows a corrupt one.
    pub search_bytes: u64,
    pub planted: Option<Planted>,
}

impl Rules<'_> {
    fn has(&self, planted: Planted) -> bool {
        self.planted == Some(planted)
    }
}

/// The next need of a walk.
pub(crate) enum Next {
    /// Bytes of the device: place and length.
    Read(u64, u64),
    /// It has ended.
    End,
}

/// The end of a chain.
#[derive(Clone, Copy)]
struct Ended {
    at: u64,
    sum: u64,
    /// A record behind it is looked for up to there.
    until: u64,
}

enum Step {
    /// Bytes that must be read at least, and bytes that should be read.
    Read(u64, u64),
    End,
}

/// See the module's documentation.
pub(crate) struct Walk {
    pub log: u32,
    /// The image that last emptied the log.
    pub epoch: u32,
    /// The log's first byte, and its end.
    start: u64,
    end: u64,
    /// A record was under way behind its end when the image was begun.
    is_busy: bool,
    /// The place of the next record, and the sum that it would have to name.
    at: u64,
    sum: u64,
    /// Bytes read from `from` on, which are used up to `at`.
    bytes: Vec<u8>,
    from: u64,
    /// Bytes that the next step needs, if the rest can't be read.
    need: u64,
    asked: u64,
    /// The record whose data are read, and one whose data can't be.
    record: Option<u64>,
    unreadable_data: Option<u64>,
    ended: Option<Ended>,
    /// The records of the chain.
    pub found: Vec<Found>,
    /// Witnesses in them, and in records behind the chain's end.
    pub witnesses: Vec<Witness>,
    /// Data of one of its records can't be read now, and perhaps at a later start.
    pub is_sealed: bool,
    /// It could not be read to its end.
    pub is_unreadable: bool,
    /// Something may be left of a record behind the end of its chain.
    pub is_torn: bool,
}

impl Walk {
    /// A walk along this log from the end that the image knows.
    pub fn new(layout: &Layout, number: u32, log: &Log, is_busy: bool) -> Walk {
        let start = layout.log_start(number);
        let at = start + u64::from(log.tail);
        Walk {
            log: number,
            epoch: log.epoch,
            start,
            end: start + layout.shape.log_bytes,
            is_busy,
            at,
            sum: log.sum,
            bytes: Vec::new(),
            from: at,
            need: 0,
            asked: 0,
            record: None,
            unreadable_data: None,
            ended: None,
            found: Vec::new(),
            witnesses: Vec::new(),
            is_sealed: false,
            is_unreadable: false,
            is_torn: false,
        }
    }

    /// The end of the chain, from the log's beginning, and the sum that the next record must name.
    pub fn tail(&self) -> (u32, u64) {
        let (at, sum) = self.ended.map_or((self.at, self.sum), |ended| (ended.at, ended.sum));
        ((at - self.start) as u32, sum)
    }

    /// Goes along what was read; returns the next read, or that the walk has ended.
    pub fn next(&mut self, rules: &Rules<'_>) -> Next {
        loop {
            if self.is_unreadable {
                return Next::End;
            }
            let step = match (self.ended, rules.version) {
                (Some(ended), _) => self.search(rules, ended),
                (None, 1) => self.follow_v1(rules),
                (None, _) => self.follow(rules),
            };
            match step {
                Step::Read(need, wish) => {
                    (self.need, self.asked) = (need, wish);
                    return Next::Read(self.at, wish);
                }
                Step::End if self.ended.is_none() && rules.version > 1 && !rules.has(Planted::SearchForgotten) => {
                    self.is_torn = header_length(self.have()).is_some() && previous_of(self.have()) == Some(self.sum);
                    let looked = self.at + self.have().len() as u64;
                    // The first one is short unless it was under way when the image was begun.
                    let may_be_long = !self.found.is_empty() || self.is_busy;
                    let until = if may_be_long { self.at + rules.search_bytes } else { looked };
                    self.ended = Some(Ended { at: self.at, sum: self.sum, until });
                }
                Step::End => return Next::End,
            }
        }
    }

    /// Takes the bytes of the last read; `None` if it failed. Returns a smaller read, if one is worth a try.
    pub fn read(&mut self, bytes: Option<Vec<u8>>, rules: &Rules<'_>) -> Option<(u64, u64)> {
        match bytes {
            Some(bytes) => (self.bytes, self.from) = (bytes, self.at),
            None if self.asked > self.need => {
                // Perhaps only what isn't needed can't be read.
                self.asked = self.need;
                return Some((self.at, self.need));
            }
            None => match self.ended {
                // Behind a log's end there may be anything.
                Some(Ended { at, sum, .. }) => {
                    (self.at, self.sum, self.ended) = (at, sum, Some(Ended { at, sum, until: 0 }));
                    (self.bytes, self.from) = (Vec::new(), at);
                }
                // The header can be read, the data can't: as if they were corrupt.
                None if self.record == Some(self.at) => {
                    self.unreadable_data = Some(self.at);
                    self.is_sealed |= !rules.has(Planted::UnreadableUnsealed);
                }
                None => self.is_unreadable = true,
            },
        }
        None
    }

    fn have(&self) -> &[u8] {
        let used = (self.at - self.from) as usize;
        self.bytes.get(used..).unwrap_or(&[])
    }

    /// Asks for `need` bytes of the record at hand: first for few more than that, as most chains are short.
    fn want(&self, need: u64) -> Step {
        let wish = if self.bytes.is_empty() { LOOK_BYTES } else { READ_BYTES };
        Step::Read(need, need.max(wish).min(self.end - self.at))
    }

    /// The bytes read from the record at hand on, if its header is among them; otherwise the next step.
    fn record_bytes(&self, block: u64, header_length: impl Fn(&[u8]) -> Option<u64>) -> Result<&[u8], Step> {
        let (left, bytes) = (self.end - self.at, self.have());
        if left < block {
            return Err(Step::End);
        }
        if (bytes.len() as u64) < block {
            return Err(self.want(block));
        }
        match header_length(bytes).filter(|header| *header <= left) {
            None => Err(Step::End),
            Some(header) if header > bytes.len() as u64 => Err(self.want(header)),
            Some(_) => Ok(bytes),
        }
    }

    /// Takes the records that are in what was read; returns how much more to read, or that the chain ends.
    fn follow(&mut self, rules: &Rules<'_>) -> Step {
        let block = rules.layout.block();
        loop {
            let bytes = match self.record_bytes(block, header_length) {
                Ok(bytes) => bytes,
                Err(step) => return step,
            };
            let (left, have) = (self.end - self.at, bytes.len() as u64);
            let previous = if rules.has(Planted::ChainIgnored) { previous_of(bytes) } else { Some(self.sum) };
            let place = Place { at: self.at, log: self.log, previous: previous.unwrap_or(0), epoch: self.epoch };
            let Some(record) = decode_record(rules.layout, place, bytes) else { return Step::End };
            let total = record.header_bytes.saturating_add(record.data_bytes);
            if total > left {
                return Step::End;
            }
            if total > have && self.unreadable_data != Some(self.at) {
                self.record = Some(self.at);
                return self.want(total);
            }
            let data = bytes.get(record.header_bytes as usize..total as usize);
            let entries = check_entries(rules, &record, self.at + record.header_bytes, data);
            let is_whole = entries.iter().all(|(_, _, s)| !matches!(s, Sums::Corrupt));
            self.witnesses.extend_from_slice(&record.witnesses);
            self.take(record.sum, is_whole || rules.has(Planted::DataSumIgnored), entries, total);
        }
    }

    fn take(&mut self, sum: u64, is_whole: bool, entries: Vec<(Entry, u64, Sums)>, total: u64) {
        self.at += total;
        self.sum = sum;
        self.record = None;
        let end = (self.at - self.start) as u32;
        self.found.push(Found { log: self.log, end, sum, is_whole, entries });
    }

    /// The same for format version 1.
    fn follow_v1(&mut self, rules: &Rules<'_>) -> Step {
        let block = rules.layout.block();
        loop {
            let bytes = match self.record_bytes(block, format_v1::header_length) {
                Ok(bytes) => bytes,
                Err(step) => return step,
            };
            let (left, have) = (self.end - self.at, bytes.len() as u64);
            let place = Place { at: self.at, log: self.log, previous: self.sum, epoch: self.epoch };
            let Some(record) = format_v1::decode_record(rules.layout, place, bytes) else { return Step::End };
            let total = record.header_bytes.saturating_add(record.data_bytes);
            if total > left {
                return Step::End;
            }
            if total > have {
                return self.want(total);
            }
            if data_sum(rules.layout, &bytes[record.header_bytes as usize..total as usize]) != record.data_sum {
                return Step::End;
            }
            let mut at = self.at + record.header_bytes;
            let place = |e: Entry| {
                let here = at;
                at += if e.kind == EntryKind::Data { u64::from(e.len) } else { 0 };
                (e, here, Sums::None)
            };
            let entries = record.entries.into_iter().map(place).collect();
            self.take(record.sum, true, entries, total);
        }
    }

    /// Looks behind the end of a chain for records that follow on a corrupt one: their witnesses say what was durable.
    fn search(&mut self, rules: &Rules<'_>, ended: Ended) -> Step {
        let (end, block) = (self.end, rules.layout.block());
        let mut until = ended.until;
        loop {
            let (left, have) = (end - self.at, self.have().len() as u64);
            if self.at >= until.min(end) || left < block {
                return Step::End;
            }
            let want = |need: u64| Step::Read(need, need.max(READ_BYTES).min(left));
            if have < block {
                return want(block);
            }
            let bytes = self.have();
            let header = header_length(bytes).filter(|h| *h <= left.min(RECORD_HEADER_MAX.max(block)));
            if header.is_some_and(|h| h > have) {
                return want(header.expect("just seen"));
            }
            let previous = header.and_then(|_| previous_of(bytes)).unwrap_or(0);
            let place = Place { at: self.at, log: self.log, previous, epoch: self.epoch };
            match header.and_then(|_| decode_record(rules.layout, place, bytes)) {
                Some(record) => {
                    self.witnesses.extend_from_slice(&record.witnesses);
                    self.at += record.header_bytes.saturating_add(record.data_bytes).min(left);
                    until = self.at + rules.search_bytes;
                    self.ended = Some(Ended { until, ..ended });
                }
                None => self.at += block,
            }
        }
    }
}

/// Each entry with its place and the sums of its units, if its data are what was written.
fn check_entries(rules: &Rules<'_>, record: &Record, mut at: u64, data: Option<&[u8]>) -> Vec<(Entry, u64, Sums)> {
    let start = at;
    let check = |e: &Entry| {
        let here = at;
        if e.kind == EntryKind::Kill {
            return (*e, here, Sums::None);
        }
        at += u64::from(e.len);
        let Some(data) = data.map(|d| &d[(here - start) as usize..(at - start) as usize]) else {
            return (*e, here, Sums::Corrupt);
        };
        let of = |(from, len): (u64, u64)| data_sum(rules.layout, &data[from as usize..(from + len) as usize]);
        let mut sums: Vec<u64> = units(data.len() as u64).map(of).collect();
        let is_whole = sum_of_units(rules.layout, &sums) == e.sum || rules.has(Planted::DataSumIgnored);
        let sums = match sums.len() {
            _ if !is_whole => Sums::Corrupt,
            1 => Sums::One(sums.remove(0)),
            _ => Sums::Many(sums),
        };
        (*e, here, sums)
    };
    record.entries.iter().map(check).collect()
}
