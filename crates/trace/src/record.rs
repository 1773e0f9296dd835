//! The one record every reader yields and every tool, writer and generator speaks.

use plimsoll_base::{Span, Time};
use std::collections::BTreeMap;

/// Operation of a request.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Op {
    /// Bytes from the device.
    Read,
    /// Bytes to the device.
    Write,
    /// The bytes are no longer needed (discard, unmap).
    Trim,
    /// Everything acknowledged before must be durable; has no address and no length.
    Flush,
}

impl Op {
    /// All operations, in the order of their codes.
    pub const ALL: [Op; 4] = [Op::Read, Op::Write, Op::Trim, Op::Flush];

    /// The letter our CSV and Parquet files use: `R`, `W`, `T`, `F`.
    pub const fn letter(self) -> char {
        match self {
            Op::Read => 'R',
            Op::Write => 'W',
            Op::Trim => 'T',
            Op::Flush => 'F',
        }
    }

    /// The operation of a letter of [`Op::letter`], either case.
    pub const fn from_letter(letter: u8) -> Option<Op> {
        match letter.to_ascii_uppercase() {
            b'R' => Some(Op::Read),
            b'W' => Some(Op::Write),
            b'T' => Some(Op::Trim),
            b'F' => Some(Op::Flush),
            _ => None,
        }
    }
}

/// One request of a trace.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct TraceRecord {
    /// Arrival, since the start of the trace. Never earlier than the record before it.
    pub arrived_at: Time,
    /// Device or volume: an index into the reader's [`Tables::devices`], dense from 0.
    pub device: u32,
    /// Operation.
    pub op: Op,
    /// First byte, on that device. `offset + len` fits in 63 bits.
    pub offset: u64,
    /// Bytes. Zero for flushes only.
    pub len: u64,
    /// Measured time from arrival to the device, where the source has it.
    pub queue: Option<Span>,
    /// Measured time at the device; the whole response time where the source has nothing finer.
    pub service: Option<Span>,
    /// Fingerprint of the content (an MD5 in the FIU traces), where the source has one.
    pub content: Option<u128>,
    /// Origin of the request (process, thread, disk section): an index into [`Tables::contexts`].
    pub context: Option<u32>,
}

impl TraceRecord {
    /// A request with nothing measured and nothing known beyond what it asks for.
    pub const fn new(arrived_at: Time, device: u32, op: Op, offset: u64, len: u64) -> TraceRecord {
        TraceRecord { arrived_at, device, op, offset, len, queue: None, service: None, content: None, context: None }
    }

    /// First byte after the request.
    pub const fn end(&self) -> u64 {
        self.offset + self.len
    }
}

/// Labels, numbered from 0 in order of first sight.
#[derive(Clone, Debug)]
pub struct Names {
    index: BTreeMap<Box<[u8]>, u32>,
    labels: Vec<String>,
    labels_max: usize,
    last: Option<(Box<[u8]>, u32)>,
}

impl Names {
    /// An empty table that takes at most `labels_max` labels.
    pub fn new(labels_max: usize) -> Names {
        Names { index: BTreeMap::new(), labels: Vec::new(), labels_max, last: None }
    }

    /// The number of `label`, given one if it's new; `None` if it's new and the table is full.
    /// Bytes that are not UTF-8 show as replacement characters in [`Names::get`].
    pub fn intern(&mut self, label: &[u8]) -> Option<u32> {
        // Runs of one label are the rule in traces; comparing with the last one spares the tree.
        if let Some((last, number)) = &self.last
            && **last == *label
        {
            return Some(*number);
        }
        let number = match self.index.get(label) {
            Some(&n) => n,
            None if self.labels.len() >= self.labels_max => return None,
            None => {
                let n = self.labels.len() as u32;
                self.index.insert(label.into(), n);
                self.labels.push(String::from_utf8_lossy(label).into_owned());
                n
            }
        };
        self.last = Some((label.into(), number));
        Some(number)
    }

    /// The label numbered `number`.
    pub fn get(&self, number: u32) -> Option<&str> {
        self.labels.get(number as usize).map(String::as_str)
    }

    /// All labels in the order of their numbers.
    pub fn labels(&self) -> &[String] {
        &self.labels
    }

    /// Returns the number of labels.
    pub fn len(&self) -> usize {
        self.labels.len()
    }

    /// True if there is none.
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty()
    }
}

/// The names behind a trace's numbers. They grow while the trace is read, up to their limits.
#[derive(Clone, Debug)]
pub struct Tables {
    /// Devices or volumes, at most [`Tables::DEVICES_MAX`]; one more is an error.
    pub devices: Names,
    /// Processes, threads or sections, at most [`Tables::CONTEXTS_MAX`]; further ones are recorded as none, because
    /// some traces name a new kernel thread every second and nothing but reports reads them.
    pub contexts: Names,
}

impl Tables {
    /// Most devices in one trace: Tencent's whole warehouse has about 6,000 volumes.
    pub const DEVICES_MAX: usize = 1 << 20;
    /// Most contexts kept.
    pub const CONTEXTS_MAX: usize = 1 << 16;

    /// Empty tables.
    pub fn new() -> Tables {
        Tables { devices: Names::new(Tables::DEVICES_MAX), contexts: Names::new(Tables::CONTEXTS_MAX) }
    }
}

impl Default for Tables {
    fn default() -> Tables {
        Tables::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_dense_stable_and_bounded() {
        let mut n = Names::new(2);
        assert_eq!((n.intern(b"b"), n.intern(b"a"), n.intern(b"b")), (Some(0), Some(1), Some(0)));
        assert_eq!(n.intern(b"c"), None);
        assert_eq!(n.intern(b"a"), Some(1));
        assert_eq!(n.labels(), ["b", "a"]);
    }

    #[test]
    fn letters_name_operations_both_ways() {
        for op in Op::ALL {
            assert_eq!(Op::from_letter(op.letter() as u8), Some(op));
        }
        assert_eq!(Op::from_letter(b'x'), None);
    }
}
