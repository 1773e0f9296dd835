//! The bytes on the device: the layout block, a log's records, images of the MTL table, and notes.
//!
//! ```text
//! layout  0 "PLIMLOGS" │ version u32 │ block u32 │ device, group, log bytes u64 │ extents u32 │ 0 │ salt u64 │ sum u64
//! record  0 "PLLR" │ header bytes u32 │ data bytes u64 │ at u64 │ log u32 │ entries u32 │ previous sum u64 │ data sum u64
//!           │ sum u64 │ 0 … │ entries from 64 on, 32 bytes each: home u64, len u32, kind u32, volume u32, generation u32,
//!           sequence u64 │ then, from the next block on, the data of the entries of kind 0 in order
//! image   0 "PLLI" │ complete u32 │ number u64 │ next sequence u64 │ logs u32 │ extents u32 │ body sum u64 │ sum u64
//!         4096  per log: tail u32, flags u32, last sum u64 │ per extent: home u64, at u64, len u32, log u32, volume u32,
//!               generation u32
//! note    0 "PLLN" │ chunks u32 │ number u64 │ logs per chunk u32 │ 0 u32 │ bits … │ sum u64 at 504
//! ```
//! All little-endian. Every sum is xxh3-64 seeded with the device's salt; the layout's own with 0. A record's sum covers
//! the sum of the record before it in its log: so what an earlier life of the log left behind never follows a newer
//! record. Decoding trusts nothing: any bytes give a value or nothing.

use crate::layout::{
    BadLayout, IMAGE_EXTENT_BYTES, IMAGE_HEADER_BYTES, IMAGE_LOG_BYTES, LOG_BYTES_MIN, Layout, PAGE_BYTES, Shape,
};
use crate::mtl::Mapped;
use plimsoll_base::{Buf, BufPool, Data, VolumeKey};
use xxhash_rust::xxh3::{Xxh3, xxh3_64, xxh3_64_with_seed};

/// The version of all of it. Another is refused.
pub const VERSION: u32 = 1;

const LAYOUT_MAGIC: &[u8; 8] = b"PLIMLOGS";
const RECORD_MAGIC: u32 = u32::from_le_bytes(*b"PLLR");
const IMAGE_MAGIC: u32 = u32::from_le_bytes(*b"PLLI");
const NOTE_MAGIC: u32 = u32::from_le_bytes(*b"PLLN");
const RECORD_HEAD: usize = 64;
const RECORD_SUM_AT: usize = 48;
const ENTRY_BYTES: usize = 32;
/// A note's length.
pub const NOTE_BYTES: usize = 512;
const NOTE_BITS_AT: usize = 24;
const NOTE_SUM_AT: usize = NOTE_BYTES - 8;
/// The most chunks that a note tells apart.
pub const CHUNKS_MAX: u32 = ((NOTE_SUM_AT - NOTE_BITS_AT) * 8) as u32;

fn put(b: &mut [u8], at: usize, bytes: &[u8]) {
    b[at..at + bytes.len()].copy_from_slice(bytes);
}
fn u32_at(b: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(b[at..at + 4].try_into().expect("four bytes"))
}
fn u64_at(b: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(b[at..at + 8].try_into().expect("eight bytes"))
}

/// The layout block.
pub fn encode_layout(l: &Layout) -> Vec<u8> {
    let mut b = vec![0; PAGE_BYTES as usize];
    put(&mut b, 0, LAYOUT_MAGIC);
    put(&mut b, 8, &VERSION.to_le_bytes());
    put(&mut b, 12, &l.block_bytes.to_le_bytes());
    put(&mut b, 16, &l.device_bytes.to_le_bytes());
    put(&mut b, 24, &l.shape.group_bytes.to_le_bytes());
    put(&mut b, 32, &l.shape.log_bytes.to_le_bytes());
    put(&mut b, 40, &l.shape.extents_max.to_le_bytes());
    put(&mut b, 48, &l.salt.to_le_bytes());
    let sum = xxh3_64(&b[..56]);
    put(&mut b, 56, &sum.to_le_bytes());
    b
}

/// The layout of a device, from its first page.
///
/// # Errors
/// If there is none, or of another version, or torn.
pub fn decode_layout(b: &[u8]) -> Result<Layout, BadLayout> {
    let bad = |what: String| Err(BadLayout(what));
    if b.len() < 64 || &b[..8] != LAYOUT_MAGIC {
        return bad("the device has no logs: it was formatted without them, or isn't the device it should be".into());
    }
    let version = u32_at(b, 8);
    if version != VERSION {
        return bad(format!(
            "the logs are of version {version}, this program knows {VERSION}: use the program that wrote them"
        ));
    }
    if u64_at(b, 56) != xxh3_64(&b[..56]) {
        return bad("the logs' layout block is torn or corrupted: restore it from a copy of the device".into());
    }
    let shape = Shape { group_bytes: u64_at(b, 24), log_bytes: u64_at(b, 32), extents_max: u32_at(b, 40) };
    if shape.group_bytes == 0 || shape.log_bytes < LOG_BYTES_MIN {
        return bad("the logs' layout block has a valid checksum but an impossible size".into());
    }
    Layout::new(u64_at(b, 16), u32_at(b, 12), shape, u64_at(b, 48))
}

/// What an entry of a record says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EntryKind {
    /// The range's newest bytes are in this record.
    Data,
    /// What was logged of the range before is no longer valid: something newer is at home.
    Kill,
}

/// One entry of a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    /// First home byte.
    pub home: u64,
    /// Bytes.
    pub len: u32,
    /// What about them.
    pub kind: EntryKind,
    /// Whose.
    pub key: VolumeKey,
    /// Its place in the order of all changes.
    pub sequence: u64,
}

/// How long the header of a record with `entries` entries is.
pub fn header_bytes(entries: usize, block: u64) -> u64 {
    ((RECORD_HEAD + entries * ENTRY_BYTES) as u64).next_multiple_of(block)
}

/// Which log a record is in and what comes before it there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// Its device address.
    pub at: u64,
    /// Its log.
    pub log: u32,
    /// The sum of the record before, or the log's first one.
    pub previous: u64,
}

/// A record's header, in a buffer of `buffers`; its data follow. Also the sum that the next record must name.
pub fn encode_record(
    buffers: &mut BufPool,
    layout: &Layout,
    place: Place,
    entries: &[Entry],
    data_bytes: u64,
    data_sum: u64,
) -> (Buf, u64) {
    let len = header_bytes(entries.len(), layout.block());
    let mut header = buffers.take(len as usize);
    let b = header.as_mut_slice();
    b.fill(0);
    put(b, 0, &RECORD_MAGIC.to_le_bytes());
    put(b, 4, &(len as u32).to_le_bytes());
    put(b, 8, &data_bytes.to_le_bytes());
    put(b, 16, &place.at.to_le_bytes());
    put(b, 24, &place.log.to_le_bytes());
    put(b, 28, &(entries.len() as u32).to_le_bytes());
    put(b, 32, &place.previous.to_le_bytes());
    put(b, 40, &data_sum.to_le_bytes());
    for (e, b) in entries.iter().zip(b[RECORD_HEAD..].chunks_exact_mut(ENTRY_BYTES)) {
        put(b, 0, &e.home.to_le_bytes());
        put(b, 8, &e.len.to_le_bytes());
        put(b, 12, &u32::from(e.kind == EntryKind::Kill).to_le_bytes());
        put(b, 16, &e.key.id.to_le_bytes());
        put(b, 20, &e.key.generation.to_le_bytes());
        put(b, 24, &e.sequence.to_le_bytes());
    }
    let sum = xxh3_64_with_seed(b, layout.salt);
    put(b, RECORD_SUM_AT, &sum.to_le_bytes());
    (header.freeze(), sum)
}

/// A record's header, decoded.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Record {
    /// What it says.
    pub entries: Vec<Entry>,
    /// Its header's length.
    pub header_bytes: u64,
    /// Its data's length.
    pub data_bytes: u64,
    /// Its data's sum.
    pub data_sum: u64,
    /// What the next record must name.
    pub sum: u64,
}

/// How long the header in `b` says that it is, if it looks like one at all: how much more must be read.
pub fn header_length(b: &[u8]) -> Option<u64> {
    let len = (b.len() >= RECORD_HEAD && u32_at(b, 0) == RECORD_MAGIC).then(|| u64::from(u32_at(b, 4)))?;
    (len >= RECORD_HEAD as u64).then_some(len)
}

/// The header of the record at `place`, if a whole one is in `b`: it lies where it says, follows `place.previous`, and its
/// sum and every number in it make sense.
pub fn decode_record(layout: &Layout, place: Place, b: &[u8]) -> Option<Record> {
    let header_bytes = header_length(b).filter(|len| *len <= b.len() as u64)?;
    let b = &b[..header_bytes as usize];
    let mut unsummed = b.to_vec();
    put(&mut unsummed, RECORD_SUM_AT, &[0; 8]);
    let sum = xxh3_64_with_seed(&unsummed, layout.salt);
    let here = Place { at: u64_at(b, 16), log: u32_at(b, 24), previous: u64_at(b, 32) };
    let (count, data_bytes) = (u32_at(b, 28) as usize, u64_at(b, 8));
    let fits = count >= 1 && self::header_bytes(count, layout.block()) == header_bytes;
    if sum != u64_at(b, RECORD_SUM_AT) || here != place || !fits {
        return None;
    }
    let entries: Vec<Entry> =
        (0..count).map(|i| entry_at(&b[RECORD_HEAD + i * ENTRY_BYTES..])).collect::<Option<_>>()?;
    let in_range = |e: &Entry| {
        e.len > 0
            && (e.home | u64::from(e.len)).is_multiple_of(layout.block())
            && e.home.checked_add(u64::from(e.len)).is_some_and(|end| end <= layout.home_bytes)
    };
    let total: u64 = entries.iter().filter(|e| e.kind == EntryKind::Data).map(|e| u64::from(e.len)).sum();
    (entries.iter().all(in_range) && total == data_bytes).then(|| Record {
        entries,
        header_bytes,
        data_bytes,
        data_sum: u64_at(b, 40),
        sum,
    })
}

fn entry_at(b: &[u8]) -> Option<Entry> {
    let kind = match u32_at(b, 12) {
        0 => EntryKind::Data,
        1 => EntryKind::Kill,
        _ => return None,
    };
    let key = VolumeKey { id: u32_at(b, 16), generation: u32_at(b, 20) };
    Some(Entry { home: u64_at(b, 0), len: u32_at(b, 8), kind, key, sequence: u64_at(b, 24) })
}

/// The sum that a log's first record names: another one after each reset.
pub fn first_sum(layout: &Layout, log: u32, image: u64) -> u64 {
    let mut b = [0; 16];
    put(&mut b, 0, &u64::from(log).to_le_bytes());
    put(&mut b, 8, &image.to_le_bytes());
    xxh3_64_with_seed(&b, layout.salt)
}

/// A sum over several pieces of data.
pub struct DataSum(Xxh3);

impl DataSum {
    /// Of nothing yet.
    pub fn new(layout: &Layout) -> DataSum {
        DataSum(Xxh3::with_seed(layout.salt))
    }

    /// Adds `len` bytes. What carries no bytes counts as zeroes, which is what it reads as.
    pub fn add(&mut self, len: u64, data: &Data) {
        const ZEROES: [u8; 4096] = [0; 4096];
        match data {
            Data::Bytes(b) => self.0.update(b.as_slice()),
            Data::Parts(parts) => parts.iter().for_each(|(n, d)| self.add(*n, d)),
            // Nothing is carried in simulations of timing, and nobody will read it back.
            Data::Absent | Data::Content(_) | Data::Status(_) => {}
            Data::Zeroes => {
                for from in (0..len).step_by(ZEROES.len()) {
                    self.0.update(&ZEROES[..(len - from).min(4096) as usize]);
                }
            }
        }
    }

    /// The sum.
    pub fn digest(&self) -> u64 {
        self.0.digest()
    }
}

/// The sum of the bytes of one record.
pub fn sum_of_parts<'a>(layout: &Layout, mut parts: impl Iterator<Item = (u64, &'a Data)>) -> u64 {
    match (parts.next(), parts.next()) {
        (Some((_, Data::Bytes(b))), None) => data_sum(layout, b.as_slice()),
        (first, second) => {
            let mut sum = DataSum::new(layout);
            first.into_iter().chain(second).chain(parts).for_each(|(len, data)| sum.add(len, data));
            sum.digest()
        }
    }
}

/// The sum of bytes as read back.
pub fn data_sum(layout: &Layout, bytes: &[u8]) -> u64 {
    xxh3_64_with_seed(bytes, layout.salt)
}

/// A log as an image has it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LogEntry {
    /// Bytes used.
    pub tail: u32,
    /// Retired: nothing more is written to it.
    pub bad: bool,
    /// What the next record must name.
    pub sum: u64,
}

/// The MTL table at an instant.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Image {
    /// Counts up.
    pub number: u64,
    /// Written by a capacitor when the power was lost: no record knows more.
    pub complete: bool,
    /// Every change so far has a lower sequence number.
    pub next_sequence: u64,
    /// All logs.
    pub logs: Vec<LogEntry>,
    /// What is in them.
    pub extents: Vec<(u64, Mapped)>,
}

/// What an image's header says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ImageHeader {
    /// As in [`Image`].
    pub number: u64,
    /// As in [`Image`].
    pub complete: bool,
    /// As in [`Image`].
    pub next_sequence: u64,
    /// Bytes that follow the header.
    pub body_bytes: u64,
    extents: u32,
    body_sum: u64,
}

/// Header and body, a multiple of the page.
///
/// # Panics
/// If it holds more than the layout has room for.
pub fn encode_image(layout: &Layout, image: &Image) -> Vec<u8> {
    assert_eq!(image.logs.len(), layout.logs as usize, "an image has all logs");
    assert!(image.extents.len() <= layout.shape.extents_max as usize, "the MTL table is bounded");
    let body = image.logs.len() * IMAGE_LOG_BYTES as usize + image.extents.len() * IMAGE_EXTENT_BYTES as usize;
    let mut b = vec![0; (IMAGE_HEADER_BYTES as usize + body).next_multiple_of(PAGE_BYTES as usize)];
    let mut at = IMAGE_HEADER_BYTES as usize;
    for log in &image.logs {
        put(&mut b, at, &log.tail.to_le_bytes());
        put(&mut b, at + 4, &u32::from(log.bad).to_le_bytes());
        put(&mut b, at + 8, &log.sum.to_le_bytes());
        at += IMAGE_LOG_BYTES as usize;
    }
    for (home, m) in &image.extents {
        put(&mut b, at, &home.to_le_bytes());
        put(&mut b, at + 8, &m.at.to_le_bytes());
        put(&mut b, at + 16, &m.len.to_le_bytes());
        put(&mut b, at + 20, &m.log.to_le_bytes());
        put(&mut b, at + 24, &m.key.id.to_le_bytes());
        put(&mut b, at + 28, &m.key.generation.to_le_bytes());
        at += IMAGE_EXTENT_BYTES as usize;
    }
    let body_sum = xxh3_64_with_seed(&b[IMAGE_HEADER_BYTES as usize..at], layout.salt);
    put(&mut b, 0, &IMAGE_MAGIC.to_le_bytes());
    put(&mut b, 4, &u32::from(image.complete).to_le_bytes());
    put(&mut b, 8, &image.number.to_le_bytes());
    put(&mut b, 16, &image.next_sequence.to_le_bytes());
    put(&mut b, 24, &layout.logs.to_le_bytes());
    put(&mut b, 28, &(image.extents.len() as u32).to_le_bytes());
    put(&mut b, 32, &body_sum.to_le_bytes());
    let sum = xxh3_64_with_seed(&b[..40], layout.salt);
    put(&mut b, 40, &sum.to_le_bytes());
    b
}

/// An image's header, if there is one.
pub fn decode_image_header(layout: &Layout, b: &[u8]) -> Option<ImageHeader> {
    let valid = b.len() >= 48
        && u32_at(b, 0) == IMAGE_MAGIC
        && u64_at(b, 40) == xxh3_64_with_seed(&b[..40], layout.salt)
        && u32_at(b, 24) == layout.logs
        && u32_at(b, 28) <= layout.shape.extents_max;
    valid.then(|| ImageHeader {
        number: u64_at(b, 8),
        complete: u32_at(b, 4) != 0,
        next_sequence: u64_at(b, 16),
        body_bytes: u64::from(layout.logs) * IMAGE_LOG_BYTES + u64::from(u32_at(b, 28)) * IMAGE_EXTENT_BYTES,
        extents: u32_at(b, 28),
        body_sum: u64_at(b, 32),
    })
}

/// An image from its header and the bytes after it, if they are what the header says and make sense.
pub fn decode_image(layout: &Layout, header: &ImageHeader, body: &[u8]) -> Option<Image> {
    let body = body.get(..header.body_bytes as usize)?;
    if xxh3_64_with_seed(body, layout.salt) != header.body_sum {
        return None;
    }
    let (logs, extents) = body.split_at(layout.logs as usize * IMAGE_LOG_BYTES as usize);
    let log = |b: &[u8]| LogEntry { tail: u32_at(b, 0), bad: u32_at(b, 4) != 0, sum: u64_at(b, 8) };
    let extent = |b: &[u8]| {
        let key = VolumeKey { id: u32_at(b, 24), generation: u32_at(b, 28) };
        (u64_at(b, 0), Mapped { at: u64_at(b, 8), len: u32_at(b, 16), log: u32_at(b, 20), key })
    };
    let image = Image {
        number: header.number,
        complete: header.complete,
        next_sequence: header.next_sequence,
        logs: logs.chunks_exact(IMAGE_LOG_BYTES as usize).map(log).collect(),
        extents: extents.chunks_exact(IMAGE_EXTENT_BYTES as usize).map(extent).collect(),
    };
    let log_ok = |l: &LogEntry| u64::from(l.tail) <= layout.shape.log_bytes;
    let extent_ok = |(home, m): &(u64, Mapped)| {
        let inside = |start: u64, at: u64, bytes: u64| {
            at >= start && at.checked_add(u64::from(m.len)).is_some_and(|end| end <= start + bytes)
        };
        m.len > 0
            && m.log < layout.logs
            && inside(0, *home, layout.home_bytes)
            && inside(layout.log_start(m.log), m.at, layout.shape.log_bytes)
            && (home | m.at | u64::from(m.len)).is_multiple_of(layout.block())
    };
    (image.logs.iter().all(log_ok) && image.extents.iter().all(extent_ok)).then_some(image)
}

/// A note: which logs may have records that the last image doesn't know of.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Note {
    /// Counts up.
    pub number: u64,
    /// One bit per chunk of neighbouring logs.
    pub chunks: Vec<bool>,
}

/// How many neighbouring logs share a note's bit.
pub fn logs_per_chunk(logs: u32) -> u32 {
    // At least 16: a stream that passes from group to group then needs a note every 1.6 GB.
    logs.div_ceil(CHUNKS_MAX).max(16)
}

/// A note's bytes.
pub fn encode_note(layout: &Layout, note: &Note) -> Vec<u8> {
    let mut b = vec![0; NOTE_BYTES];
    put(&mut b, 0, &NOTE_MAGIC.to_le_bytes());
    put(&mut b, 4, &(note.chunks.len() as u32).to_le_bytes());
    put(&mut b, 8, &note.number.to_le_bytes());
    put(&mut b, 16, &logs_per_chunk(layout.logs).to_le_bytes());
    for (i, _) in note.chunks.iter().enumerate().filter(|(_, set)| **set) {
        b[NOTE_BITS_AT + i / 8] |= 1 << (i % 8);
    }
    let sum = xxh3_64_with_seed(&b[..NOTE_SUM_AT], layout.salt);
    put(&mut b, NOTE_SUM_AT, &sum.to_le_bytes());
    b
}

/// A note, if there is one.
pub fn decode_note(layout: &Layout, b: &[u8]) -> Option<Note> {
    let chunks = layout.logs.div_ceil(logs_per_chunk(layout.logs));
    let valid = b.len() >= NOTE_BYTES
        && u32_at(b, 0) == NOTE_MAGIC
        && u64_at(b, NOTE_SUM_AT) == xxh3_64_with_seed(&b[..NOTE_SUM_AT], layout.salt)
        && u32_at(b, 4) == chunks
        && u32_at(b, 16) == logs_per_chunk(layout.logs);
    let bit = |i: usize| b[NOTE_BITS_AT + i / 8] & 1 << (i % 8) != 0;
    valid.then(|| Note { number: u64_at(b, 8), chunks: (0..chunks as usize).map(bit).collect() })
}

/// What a device needs to be given logs: places and bytes to write before its first use, then to sync.
pub fn format_device(layout: &Layout) -> Vec<(u64, Vec<u8>)> {
    let logs = (0..layout.logs).map(|log| LogEntry { tail: 0, bad: false, sum: first_sum(layout, log, 1) }).collect();
    let image = Image { number: 1, complete: false, next_sequence: 1, logs, extents: Vec::new() };
    let chunks = vec![false; layout.logs.div_ceil(logs_per_chunk(layout.logs)) as usize];
    let note = encode_note(layout, &Note { number: 1, chunks });
    // The layout block comes last: with it the device counts as formatted.
    vec![
        (layout.image_at(0), vec![0; IMAGE_HEADER_BYTES as usize]),
        (layout.image_at(1), encode_image(layout, &image)),
        (crate::layout::NOTES_AT[0], vec![0; NOTE_BYTES]),
        (crate::layout::NOTES_AT[1], note),
        (0, encode_layout(layout)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_base::Rng;

    fn layout() -> Layout {
        Layout::new(4 << 20, 512, Shape { group_bytes: 256 << 10, log_bytes: 64 << 10, extents_max: 64 }, 99).unwrap()
    }

    fn entry(home: u64, sequence: u64) -> Entry {
        Entry { home, len: 4096, kind: EntryKind::Data, key: VolumeKey { id: 3, generation: 2 }, sequence }
    }

    #[test]
    fn what_is_written_is_read() {
        let l = layout();
        assert_eq!(decode_layout(&encode_layout(&l)).unwrap(), l);
        let place = Place { at: l.log_start(2), log: 2, previous: 77 };
        let mut entries: Vec<Entry> = (0..20).map(|i| entry(i * 8192, 50 + i)).collect();
        entries[3].kind = EntryKind::Kill;
        let (bytes, sum) = encode_record(&mut BufPool::new(), &l, place, &entries, 19 * 4096, 5);
        assert_eq!(bytes.len(), 1024);
        let r = decode_record(&l, place, bytes.as_slice()).unwrap();
        assert_eq!((r.entries, r.sum, r.data_bytes, r.data_sum), (entries, sum, 19 * 4096, 5));
        let m = Mapped { at: l.log_start(1) + 512, len: 512, log: 1, key: VolumeKey { id: 1, generation: 9 } };
        let logs = (0..l.logs).map(|i| LogEntry { tail: i * 512, bad: i == 3, sum: u64::from(i) }).collect();
        let image =
            Image { number: 8, complete: false, next_sequence: 1234, logs, extents: vec![(1024, m), (4096, m)] };
        let b = encode_image(&l, &image);
        let header = decode_image_header(&l, &b).unwrap();
        assert_eq!(decode_image(&l, &header, &b[4096..]).unwrap(), image);
        let note = Note { number: 3, chunks: vec![true] };
        assert_eq!(decode_note(&l, &encode_note(&l, &note)).unwrap(), note);
    }

    #[test]
    fn a_record_counts_only_where_it_was_written_and_after_what_it_follows() {
        let l = layout();
        let place = Place { at: l.log_start(2), log: 2, previous: 77 };
        let (bytes, _) = encode_record(&mut BufPool::new(), &l, place, &[entry(0, 1)], 4096, 5);
        assert!(decode_record(&l, Place { previous: 78, ..place }, bytes.as_slice()).is_none());
        assert!(decode_record(&l, Place { at: place.at + 512, ..place }, bytes.as_slice()).is_none());
        let mut other = l;
        other.salt = 1;
        assert!(decode_record(&other, place, bytes.as_slice()).is_none());
    }

    /// Any single changed byte is noticed, and no bytes whatsoever make a decoder panic.
    #[test]
    fn corruption_is_noticed() {
        let l = layout();
        let place = Place { at: l.log_start(0), log: 0, previous: 1 };
        let (record, _) = encode_record(&mut BufPool::new(), &l, place, &[entry(0, 1), entry(8192, 2)], 8192, 5);
        let mut rng = Rng::new(4, "corrupt");
        for at in 0..record.len() {
            let mut b = record.as_slice().to_vec();
            b[at] ^= 1 << rng.below(8);
            assert!(decode_record(&l, place, &b).is_none(), "byte {at}");
        }
        let mut layout_block = encode_layout(&l);
        layout_block[9] = 1;
        assert!(decode_layout(&layout_block).unwrap_err().0.contains("version"));
        for _ in 0..20_000 {
            let mut b: Vec<u8> = (0..600).map(|_| rng.next_u64() as u8).collect();
            let magic: [&[u8]; 4] = [b"PLLR", b"PLLI", b"PLLN", b"PLIMLOGS"];
            let m = magic[rng.below(4) as usize];
            b[..m.len()].copy_from_slice(m);
            if rng.chance(0.5) {
                b[4..8].copy_from_slice(&(rng.below(700) as u32).to_le_bytes());
            }
            let _ = (header_length(&b), decode_record(&l, place, &b), decode_note(&l, &b), decode_layout(&b));
            let _ = decode_image_header(&l, &b);
        }
    }

    #[test]
    fn the_sum_of_pieces_is_the_sum_of_their_bytes() {
        let l = layout();
        let bytes: Vec<u8> = (0..9000u32).map(|i| (i * 7) as u8).collect();
        let mut all = bytes.clone();
        all.extend([0; 5000]);
        let mut s = DataSum::new(&l);
        let parts =
            vec![(4000, Data::Bytes(Buf::copy_of(&bytes[..4000]))), (5000, Data::Bytes(Buf::copy_of(&bytes[4000..])))];
        s.add(9000, &Data::Parts(parts.into()));
        s.add(5000, &Data::Zeroes);
        assert_eq!(s.digest(), data_sum(&l, &all));
    }
}
