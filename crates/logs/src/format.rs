//! The bytes on the device: the layout page, a log's records, images of the MTL table, and notes.
//!
//! ```text
//! layout  0 "PLIMLOGS" │ version u32 │ block u32 │ device, group, log bytes u64 │ extents u32 │ 0 │ salt u64 │ sum u64
//! record  0 "PLR2" │ header bytes u32 │ data bytes u64 │ at u64 │ log u32 │ entries u32 │ previous sum u64 │ epoch u32
//!           │ witnesses u32 │ sum u64 │ start u64 │ entries from 64 on, 40 bytes each: home u64, len u32, kind u32, volume u32,
//!           generation u32, sequence u64, sum u64 │ witnesses, 12 bytes each: log u32, epoch u32, tail u32 │ then, from the
//!           next block on, the data of the entries of kind 0 in order
//! image   0 "PLI2" │ complete, has_loss u32 │ number u64 │ next sequence u64 │ logs u32 │ extents u32 │ body sum u64 │ sum u64
//!         4096  per log: tail u32, retired u1 and epoch u31, last sum u64 │ per extent, in units of 512 bytes: home u48,
//!               at u48, len u8, skip u8, unit u8, then kind u8, volume u32, generation u32, sum u64
//! note    0 "PLN2" │ chunks u32 │ number u64 │ logs per chunk u32 │ 0 u32 │ image u64 │ bits … │ sum u64 at 504
//! ```
//! All little-endian. Every sum is xxh3-64 seeded with the device's salt; the layout's own with 0. A record's sum covers
//! its header and so the sum of the record before it in its log: what an earlier life of the log left behind never follows a
//! newer record. It covers the number of the node's start, too (the newest note's when the logs began to serve): else two starts could write
//! the same empty record, and what the first one wrote behind it, unacknowledged, would follow the second one's. Each entry has a sum of its data. Decoding trusts nothing: any bytes give a value or nothing.
//!
//! A corrupt structure is never taken for one that was not written, because another one says that it was:
//! * layout page, note and image are kept twice;
//! * a note names the newest image that is in force, and is durable in both copies before anything is done that the image
//!   allows (a log emptied, a kill forgotten);
//! * a record names the ends of logs whose records were durable when it was written (witnesses), and a log's epoch is the
//!   number of the image that last emptied it.

use crate::layout::{
    BadLayout, IMAGE_EXTENT_BYTES, IMAGE_HEADER_BYTES, IMAGE_LOG_BYTES, LAYOUTS_AT, LOG_BYTES_MIN, Layout, NOTES_AT,
    PAGE_BYTES, Shape,
};
use crate::mtl::{LOST, Mapped, Unit};
use plimsoll_base::{Buf, BufPool, Data, VolumeKey};
use std::num::NonZeroU32;
use xxhash_rust::xxh3::{Xxh3, xxh3_64, xxh3_64_with_seed};

/// The version of all of it. Version 1 is read and converted, another is refused.
pub const VERSION: u32 = 2;

const LAYOUT_MAGIC: &[u8; 8] = b"PLIMLOGS";
const RECORD_MAGIC: u32 = u32::from_le_bytes(*b"PLR2");
const IMAGE_MAGIC: u32 = u32::from_le_bytes(*b"PLI2");
const NOTE_MAGIC: u32 = u32::from_le_bytes(*b"PLN2");
pub(crate) const RECORD_HEAD: usize = 64;
pub(crate) const RECORD_SUM_AT: usize = 48;
const RECORD_START_AT: usize = 56;
const ENTRY_BYTES: usize = 40;
const WITNESS_BYTES: usize = 12;
/// The most bytes that one sum covers: what must be read to check a part of them.
pub const UNIT_BYTES: u64 = 64 << 10;
/// A note's length.
pub const NOTE_BYTES: usize = 512;
const NOTE_BITS_AT: usize = 32;
pub(crate) const NOTE_SUM_AT: usize = NOTE_BYTES - 8;
/// The most chunks that a note tells apart.
pub const CHUNKS_MAX: u32 = ((NOTE_SUM_AT - NOTE_BITS_AT) * 8) as u32;

pub(crate) fn put(b: &mut [u8], at: usize, bytes: &[u8]) {
    b[at..at + bytes.len()].copy_from_slice(bytes);
}
pub(crate) fn u32_at(b: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(b[at..at + 4].try_into().expect("four bytes"))
}
pub(crate) fn u64_at(b: &[u8], at: usize) -> u64 {
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

/// The layout of a device, from one copy of its layout page, and the format version of what is on it.
///
/// # Errors
/// If there is none, or of another version, or corrupt.
pub fn decode_layout(b: &[u8]) -> Result<(Layout, u32), BadLayout> {
    let bad = |what: String| Err(BadLayout(what));
    if b.len() < 64 || &b[..8] != LAYOUT_MAGIC {
        return bad("the device has no logs: it was formatted without them, or isn't the device it should be".into());
    }
    if u64_at(b, 56) != xxh3_64(&b[..56]) {
        return bad("the logs' layout page is torn or corrupt in both places: restore the device from a copy".into());
    }
    if let Some(what) = unknown_version(b) {
        return bad(what);
    }
    let shape = Shape { group_bytes: u64_at(b, 24), log_bytes: u64_at(b, 32), extents_max: u32_at(b, 40) };
    if shape.group_bytes == 0 || shape.log_bytes < LOG_BYTES_MIN {
        return bad("the logs' layout block has a valid checksum but an impossible size".into());
    }
    Ok((Layout::new(u64_at(b, 16), u32_at(b, 12), shape, u64_at(b, 48))?, u32_at(b, 8)))
}

/// The words for a whole layout page of a version that this program doesn't know; `None` for any other page.
pub(crate) fn unknown_version(b: &[u8]) -> Option<String> {
    let is_whole = b.len() >= 64 && &b[..8] == LAYOUT_MAGIC && u64_at(b, 56) == xxh3_64(&b[..56]);
    let version = is_whole.then(|| u32_at(b, 8)).filter(|version| !(1..=VERSION).contains(version))?;
    Some(format!(
        "the logs are of version {version}, this program knows 1 to {VERSION}: use the program that wrote them, or a newer one"
    ))
}

/// The same for either page of a device's first [`LOOK_BYTES`]. A program of that version was converting the device, or has.
pub fn of_unknown_version(first: &[u8]) -> Option<String> {
    LAYOUTS_AT.iter().find_map(|at| unknown_version(first.get(*at as usize..)?))
}

/// The epoch of a log that image `number` emptied. It wraps after 2^31 images.
pub fn epoch_of(number: u64) -> u32 {
    (number & 0x7fff_ffff) as u32
}

/// The kind of a record's entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EntryKind {
    /// The range's newest bytes are in this record.
    Data,
    /// The data logged of the range before is no longer valid: the home address has newer data.
    Kill,
}

/// One entry of a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    /// First home byte.
    pub home: u64,
    /// Bytes.
    pub len: u32,
    /// The entry's kind.
    pub kind: EntryKind,
    /// The volume of the range.
    pub key: VolumeKey,
    /// Its place in the order of all changes.
    pub sequence: u64,
    /// The sum of its data, see [`sum_of_units`]; of a kill 0.
    pub sum: u64,
}

/// A log's records were durable up to here when the record that says so was written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Witness {
    /// The log.
    pub log: u32,
    /// Its epoch.
    pub epoch: u32,
    /// Bytes from the log's beginning.
    pub tail: u32,
}

/// Length in bytes of the header of a record with `entries` entries. One witness has room in any.
pub fn header_bytes(entries: usize, block: u64) -> u64 {
    ((RECORD_HEAD + entries * ENTRY_BYTES + WITNESS_BYTES) as u64).next_multiple_of(block)
}

/// Length in bytes of the header of a record without entries that has `witnesses`.
pub fn empty_header_bytes(witnesses: usize, block: u64) -> u64 {
    ((RECORD_HEAD + witnesses * WITNESS_BYTES) as u64).next_multiple_of(block)
}

/// Number of witnesses with room in a header of `header` bytes beside `entries` entries.
pub fn witnesses_max(entries: usize, header: u64) -> usize {
    (header as usize - RECORD_HEAD - entries * ENTRY_BYTES) / WITNESS_BYTES
}

/// A record's place in its log, and the record before it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// Its device address.
    pub at: u64,
    /// Its log.
    pub log: u32,
    /// The sum of the record before, or the log's first one.
    pub previous: u64,
    /// The log's epoch.
    pub epoch: u32,
}

/// A record's header, in a buffer of `buffers`; its data follow. Also the sum that the next record must name.
pub fn encode_record(
    buffers: &mut BufPool,
    layout: &Layout,
    place: Place,
    entries: &[Entry],
    witnesses: &[Witness],
    start: u64,
) -> (Buf, u64) {
    let len = ((RECORD_HEAD + entries.len() * ENTRY_BYTES + witnesses.len().max(1) * WITNESS_BYTES) as u64)
        .next_multiple_of(layout.block());
    let mut header = buffers.take(len as usize);
    let data_bytes: u64 = entries.iter().filter(|e| e.kind == EntryKind::Data).map(|e| u64::from(e.len)).sum();
    let b = header.as_mut_slice();
    b.fill(0);
    put(b, 0, &RECORD_MAGIC.to_le_bytes());
    put(b, 4, &(len as u32).to_le_bytes());
    put(b, 8, &data_bytes.to_le_bytes());
    put(b, 16, &place.at.to_le_bytes());
    put(b, 24, &place.log.to_le_bytes());
    put(b, 28, &(entries.len() as u32).to_le_bytes());
    put(b, 32, &place.previous.to_le_bytes());
    put(b, 40, &place.epoch.to_le_bytes());
    put(b, 44, &(witnesses.len() as u32).to_le_bytes());
    put(b, RECORD_START_AT, &start.to_le_bytes());
    for (e, b) in entries.iter().zip(b[RECORD_HEAD..].chunks_exact_mut(ENTRY_BYTES)) {
        put(b, 0, &e.home.to_le_bytes());
        put(b, 8, &e.len.to_le_bytes());
        put(b, 12, &u32::from(e.kind == EntryKind::Kill).to_le_bytes());
        put(b, 16, &e.key.id.to_le_bytes());
        put(b, 20, &e.key.generation.to_le_bytes());
        put(b, 24, &e.sequence.to_le_bytes());
        put(b, 32, &e.sum.to_le_bytes());
    }
    let rest = &mut b[RECORD_HEAD + entries.len() * ENTRY_BYTES..];
    for (w, b) in witnesses.iter().zip(rest.chunks_exact_mut(WITNESS_BYTES)) {
        put(b, 0, &w.log.to_le_bytes());
        put(b, 4, &w.epoch.to_le_bytes());
        put(b, 8, &w.tail.to_le_bytes());
    }
    let sum = xxh3_64_with_seed(b, layout.salt);
    put(b, RECORD_SUM_AT, &sum.to_le_bytes());
    (header.freeze(), sum)
}

/// A record's header, decoded.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Record {
    /// Its entries.
    pub entries: Vec<Entry>,
    /// Ends of other logs that were durable.
    pub witnesses: Vec<Witness>,
    /// Its header's length.
    pub header_bytes: u64,
    /// Its data's length.
    pub data_bytes: u64,
    /// The sum that the next record must name.
    pub sum: u64,
}

/// Length of the header in `b`, as it states it, if it looks like one at all: the number of bytes to read.
pub fn header_length(b: &[u8]) -> Option<u64> {
    let len = (b.len() >= RECORD_HEAD && u32_at(b, 0) == RECORD_MAGIC).then(|| u64::from(u32_at(b, 4)))?;
    (len >= RECORD_HEAD as u64).then_some(len)
}

/// Checksum of the record that the one in `b` follows, if it looks like a record at all.
pub fn previous_of(b: &[u8]) -> Option<u64> {
    header_length(b).map(|_| u64_at(b, 32))
}

/// The header of the record at `place`, if a whole one is in `b`: it lies where it says, follows `place.previous`, and its
/// sum and every number in it make sense.
pub fn decode_record(layout: &Layout, place: Place, b: &[u8]) -> Option<Record> {
    let header_bytes = header_length(b).filter(|len| *len <= b.len() as u64)?;
    let b = &b[..header_bytes as usize];
    let here = Place { at: u64_at(b, 16), log: u32_at(b, 24), previous: u64_at(b, 32), epoch: u32_at(b, 40) };
    let (count, witnesses, data_bytes) = (u32_at(b, 28) as usize, u32_at(b, 44) as usize, u64_at(b, 8));
    let room = header_bytes as usize - RECORD_HEAD;
    let fits = count <= room / ENTRY_BYTES && witnesses <= (room - count * ENTRY_BYTES) / WITNESS_BYTES;
    if here != place || !fits || !header_bytes.is_multiple_of(layout.block()) {
        return None;
    }
    let mut unsummed = b.to_vec();
    put(&mut unsummed, RECORD_SUM_AT, &[0; 8]);
    let sum = xxh3_64_with_seed(&unsummed, layout.salt);
    if sum != u64_at(b, RECORD_SUM_AT) {
        return None;
    }
    let entries: Vec<Entry> =
        (0..count).map(|i| entry_at(&b[RECORD_HEAD + i * ENTRY_BYTES..])).collect::<Option<_>>()?;
    let rest = &b[RECORD_HEAD + count * ENTRY_BYTES..];
    let witness = |b: &[u8]| Witness { log: u32_at(b, 0), epoch: u32_at(b, 4), tail: u32_at(b, 8) };
    let witnesses: Vec<Witness> = rest.chunks_exact(WITNESS_BYTES).take(witnesses).map(witness).collect();
    let total: u64 = entries.iter().filter(|e| e.kind == EntryKind::Data).map(|e| u64::from(e.len)).sum();
    let makes_sense = entries.iter().all(|e| is_in_range(layout, e)) && witnesses.iter().all(|w| w.log < layout.logs);
    (makes_sense && total == data_bytes).then_some(Record { entries, witnesses, header_bytes, data_bytes, sum })
}

/// Numbers that count up never come near this: one that does is corrupt, and adding to it would overflow.
pub(crate) const NUMBER_MAX: u64 = 1 << 62;

/// True if the blocks that an entry names exist.
pub(crate) fn is_in_range(layout: &Layout, e: &Entry) -> bool {
    e.len > 0
        && e.sequence < NUMBER_MAX
        && (e.home | u64::from(e.len)).is_multiple_of(layout.block())
        && e.home.checked_add(u64::from(e.len)).is_some_and(|end| end <= layout.home_bytes)
}

pub(crate) fn kind_at(b: &[u8], at: usize) -> Option<EntryKind> {
    match u32_at(b, at) {
        0 => Some(EntryKind::Data),
        1 => Some(EntryKind::Kill),
        _ => None,
    }
}

fn entry_at(b: &[u8]) -> Option<Entry> {
    let kind = kind_at(b, 12)?;
    let key = VolumeKey { id: u32_at(b, 16), generation: u32_at(b, 20) };
    Some(Entry { home: u64_at(b, 0), len: u32_at(b, 8), kind, key, sequence: u64_at(b, 24), sum: u64_at(b, 32) })
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

    /// Adds `len` bytes. Data without bytes count as zeroes, as they read as zeroes.
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

/// The sum of `len` bytes of `data`.
pub fn sum_of(layout: &Layout, len: u64, data: &Data) -> u64 {
    match data {
        Data::Bytes(b) => data_sum(layout, b.as_slice()),
        other => {
            let mut sum = DataSum::new(layout);
            sum.add(len, other);
            sum.digest()
        }
    }
}

/// The sum of bytes as read back.
pub fn data_sum(layout: &Layout, bytes: &[u8]) -> u64 {
    xxh3_64_with_seed(bytes, layout.salt)
}

/// The runs that `len` logged bytes are checked in: offset and length of each.
pub fn units(len: u64) -> impl Iterator<Item = (u64, u64)> {
    (0..len).step_by(UNIT_BYTES as usize).map(move |from| (from, UNIT_BYTES.min(len - from)))
}

/// An entry's sum: that of its unit, or where it has several a sum of theirs.
pub fn sum_of_units(layout: &Layout, sums: &[u64]) -> u64 {
    match sums {
        [one] => *one,
        many => {
            let mut all = Xxh3::with_seed(layout.salt);
            many.iter().for_each(|s| all.update(&s.to_le_bytes()));
            all.digest()
        }
    }
}

/// True if `sum` was made of `data`. Data without bytes can't be checked (simulations of timing), and passes.
pub fn is_as_written(layout: &Layout, len: u64, data: &Data, sum: u64) -> bool {
    !carries_bytes(data) || sum_of(layout, len, data) == sum
}

fn carries_bytes(data: &Data) -> bool {
    match data {
        Data::Bytes(_) | Data::Zeroes => true,
        Data::Absent | Data::Content(_) | Data::Status(_) => false,
        Data::Parts(parts) => parts.iter().all(|(_, d)| carries_bytes(d)),
    }
}

/// A log as an image has it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LogEntry {
    /// Bytes used.
    pub tail: u32,
    /// A record was under way behind `tail`: it may be as long as records get.
    pub busy: bool,
    /// Retired: nothing more is written to it.
    pub bad: bool,
    /// The sum that the next record must name.
    pub sum: u64,
    /// See [`epoch_of`].
    pub epoch: u32,
}

/// The MTL table at an instant.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Image {
    /// Counts up.
    pub number: u64,
    /// Written by a capacitor when the power was lost: no record knows more.
    pub complete: bool,
    /// A start didn't find all that was durable, of ranges that aren't known, and no operator has accepted that since.
    pub has_loss: bool,
    /// Every change so far has a lower sequence number.
    pub next_sequence: u64,
    /// All logs.
    pub logs: Vec<LogEntry>,
    /// The extents in the logs.
    pub extents: Vec<(u64, Mapped)>,
}

/// The fields of an image's header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ImageHeader {
    /// As in [`Image`].
    pub number: u64,
    /// As in [`Image`].
    pub complete: bool,
    /// As in [`Image`].
    pub has_loss: bool,
    /// As in [`Image`].
    pub next_sequence: u64,
    /// Bytes that follow the header.
    pub body_bytes: u64,
    pub(crate) body_sum: u64,
}

/// Extents of an image, by how they are checked.
const CHECKED: u8 = 0;
const UNCHECKED: u8 = 1;
const KNOWN_LOST: u8 = 2;
const SECTOR: u64 = 512;

fn put48(b: &mut [u8], at: usize, value: u64) {
    put(b, at, &value.to_le_bytes()[..6]);
}
fn u48_at(b: &[u8], at: usize) -> u64 {
    u64::from(u32_at(b, at)) | u64::from(u16::from_le_bytes([b[at + 4], b[at + 5]])) << 32
}

fn put_extent(b: &mut [u8], home: u64, m: &Mapped) {
    put48(b, 0, home / SECTOR);
    put(b, 16, &m.key.id.to_le_bytes());
    put(b, 20, &m.key.generation.to_le_bytes());
    match m.unit {
        Some(u) => {
            put48(b, 6, m.at / SECTOR);
            let sectors = [m.len, u.skip, u.len.get()].map(|n| (u64::from(n) / SECTOR) as u8);
            put(b, 12, &sectors);
            b[15] = CHECKED;
            put(b, 24, &u.sum.to_le_bytes());
        }
        None => {
            put48(b, 6, m.at / SECTOR);
            b[15] = if m.is_lost() { KNOWN_LOST } else { UNCHECKED };
            put(b, 24, &m.len.to_le_bytes());
        }
    }
}

/// An extent, if it names blocks that there are.
fn extent_at(layout: &Layout, b: &[u8]) -> Option<(u64, Mapped)> {
    let (home, at) = (u48_at(b, 0) * SECTOR, u48_at(b, 6) * SECTOR);
    let key = VolumeKey { id: u32_at(b, 16), generation: u32_at(b, 20) };
    let [len, skip, unit] = [12, 13, 14].map(|i| u32::from(b[i]) * SECTOR as u32);
    let m = match b[15] {
        CHECKED => {
            let whole = at.checked_sub(u64::from(skip)).filter(|_| skip + len <= unit)?;
            let unit = Unit { sum: u64_at(b, 24), skip, len: NonZeroU32::new(unit)? };
            Mapped { at, len, log: layout.log_of(whole, u64::from(unit.len.get()))?, key, unit: Some(unit) }
        }
        UNCHECKED => {
            let len = u32_at(b, 24);
            Mapped { at, len, log: layout.log_of(at, u64::from(len))?, key, unit: None }
        }
        KNOWN_LOST => Mapped { at: home, len: u32_at(b, 24), log: LOST, key, unit: None },
        _ => return None,
    };
    let valid = m.len > 0
        && home.checked_add(u64::from(m.len)).is_some_and(|end| end <= layout.home_bytes)
        && (home | m.at | u64::from(m.len)).is_multiple_of(layout.block());
    valid.then_some((home, m))
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
        // A tail is a multiple of a block: its lowest bit has room.
        put(&mut b, at, &(log.tail | u32::from(log.busy)).to_le_bytes());
        put(&mut b, at + 4, &(u32::from(log.bad) | log.epoch << 1).to_le_bytes());
        put(&mut b, at + 8, &log.sum.to_le_bytes());
        at += IMAGE_LOG_BYTES as usize;
    }
    for (home, m) in &image.extents {
        put_extent(&mut b[at..at + IMAGE_EXTENT_BYTES as usize], *home, m);
        at += IMAGE_EXTENT_BYTES as usize;
    }
    let body_sum = xxh3_64_with_seed(&b[IMAGE_HEADER_BYTES as usize..at], layout.salt);
    put(&mut b, 0, &IMAGE_MAGIC.to_le_bytes());
    put(&mut b, 4, &(u32::from(image.complete) | u32::from(image.has_loss) << 1).to_le_bytes());
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
    image_header(layout, b, IMAGE_MAGIC)
}

pub(crate) fn image_header(layout: &Layout, b: &[u8], magic: u32) -> Option<ImageHeader> {
    let valid = b.len() >= 48
        && u32_at(b, 0) == magic
        && u64_at(b, 40) == xxh3_64_with_seed(&b[..40], layout.salt)
        && u32_at(b, 24) == layout.logs
        && u64_at(b, 8).max(u64_at(b, 16)) < NUMBER_MAX
        && u32_at(b, 28) <= layout.shape.extents_max;
    valid.then(|| ImageHeader {
        number: u64_at(b, 8),
        complete: u32_at(b, 4) & 1 != 0,
        has_loss: u32_at(b, 4) & 2 != 0,
        next_sequence: u64_at(b, 16),
        body_bytes: u64::from(layout.logs) * IMAGE_LOG_BYTES + u64::from(u32_at(b, 28)) * IMAGE_EXTENT_BYTES,
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
    let log = |b: &[u8]| {
        let (tail, flags) = (u32_at(b, 0), u32_at(b, 4));
        let log = LogEntry {
            tail: tail & !1,
            busy: tail & 1 != 0,
            bad: flags & 1 != 0,
            sum: u64_at(b, 8),
            epoch: flags >> 1,
        };
        let fits = u64::from(log.tail) <= layout.shape.log_bytes && u64::from(log.tail).is_multiple_of(layout.block());
        fits.then_some(log)
    };
    Some(Image {
        number: header.number,
        complete: header.complete,
        has_loss: header.has_loss,
        next_sequence: header.next_sequence,
        logs: logs.chunks_exact(IMAGE_LOG_BYTES as usize).map(log).collect::<Option<_>>()?,
        extents: extents
            .chunks_exact(IMAGE_EXTENT_BYTES as usize)
            .map(|b| extent_at(layout, b))
            .collect::<Option<_>>()?,
    })
}

/// A note: which image is in force, and which logs may have records that it doesn't know of.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Note {
    /// Counts up.
    pub number: u64,
    /// The newest image in force.
    pub image: u64,
    /// One bit per chunk of neighbouring logs.
    pub chunks: Vec<bool>,
}

/// Number of neighbouring logs that share a note's bit.
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
    put(&mut b, 24, &note.image.to_le_bytes());
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
        && u32_at(b, 16) == logs_per_chunk(layout.logs)
        && u64_at(b, 8).max(u64_at(b, 24)) < NUMBER_MAX;
    let bit = |i: usize| b[NOTE_BITS_AT + i / 8] & 1 << (i % 8) != 0;
    valid.then(|| Note { number: u64_at(b, 8), image: u64_at(b, 24), chunks: (0..chunks as usize).map(bit).collect() })
}

/// Writes that give a device its logs: places and bytes to write before its first use, then to sync.
pub fn format_device(layout: &Layout) -> Vec<(u64, Vec<u8>)> {
    let log = |log| LogEntry { tail: 0, busy: false, bad: false, sum: first_sum(layout, log, 1), epoch: 1 };
    let logs = (0..layout.logs).map(log).collect();
    let image = Image { number: 1, complete: false, has_loss: false, next_sequence: 1, logs, extents: Vec::new() };
    let image = encode_image(layout, &image);
    let chunks = vec![false; layout.logs.div_ceil(logs_per_chunk(layout.logs)) as usize];
    let note = encode_note(layout, &Note { number: 1, image: 1, chunks });
    // The first copy of the layout page comes last: with it the device is formatted.
    vec![
        (layout.image_at(0), image.clone()),
        (layout.image_at(1), image),
        (NOTES_AT[0], note.clone()),
        (NOTES_AT[1], note),
        (LAYOUTS_AT[1], encode_layout(layout)),
        (LAYOUTS_AT[0], encode_layout(layout)),
    ]
}

/// Bytes at the device's beginning that tell whether it was ever formatted and used: layout pages and notes.
pub const LOOK_BYTES: u64 = 4 * PAGE_BYTES;

/// State of a device's logs, by its first bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Formatted {
    /// It has a layout page, whole or not: the layer sees for itself whether it is what it should be.
    Yes,
    /// It was never formatted, or formatting it was interrupted: nothing was ever logged there.
    No,
    /// Both layout pages are blank, but a note says that logs were in use.
    LayoutLost,
}

/// Tells whether the device was formatted, by its first [`LOOK_BYTES`]. A note beyond the first one is written before any record is.
pub fn is_formatted(first: &[u8]) -> Formatted {
    let page = |at: u64| &first[at as usize..(at + PAGE_BYTES) as usize];
    let is_blank = |b: &[u8]| b.iter().all(|&b| b == 0);
    let is_first =
        |b: &[u8]| (u32_at(b, 0) == NOTE_MAGIC || u32_at(b, 0) == crate::format_v1::NOTE_MAGIC) && u64_at(b, 8) == 1;
    if !is_blank(page(LAYOUTS_AT[0])) {
        return Formatted::Yes;
    }
    if NOTES_AT.iter().all(|at| is_blank(page(*at)) || is_first(page(*at))) {
        return Formatted::No;
    }
    if page(LAYOUTS_AT[1]).starts_with(LAYOUT_MAGIC) { Formatted::Yes } else { Formatted::LayoutLost }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_base::Rng;

    fn layout() -> Layout {
        Layout::new(4 << 20, 512, Shape { group_bytes: 256 << 10, log_bytes: 64 << 10, extents_max: 64 }, 99).unwrap()
    }

    fn entry(home: u64, sequence: u64) -> Entry {
        Entry {
            home,
            len: 4096,
            kind: EntryKind::Data,
            key: VolumeKey { id: 3, generation: 2 },
            sequence,
            sum: home + 7,
        }
    }

    #[test]
    fn what_is_written_is_read() {
        let l = layout();
        assert_eq!(decode_layout(&encode_layout(&l)).unwrap(), (l, VERSION));
        let place = Place { at: l.log_start(2), log: 2, previous: 77, epoch: 3 };
        let mut entries: Vec<Entry> = (0..20).map(|i| entry(i * 8192, 50 + i)).collect();
        entries[3].kind = EntryKind::Kill;
        let witnesses: Vec<Witness> = (0..5).map(|log| Witness { log, epoch: 9, tail: log * 512 }).collect();
        let (bytes, sum) = encode_record(&mut BufPool::new(), &l, place, &entries, &witnesses, 1);
        assert_eq!(bytes.len(), 1024);
        let r = decode_record(&l, place, bytes.as_slice()).unwrap();
        assert_eq!((r.entries, r.witnesses, r.sum, r.data_bytes), (entries, witnesses, sum, 19 * 4096));
        let key = VolumeKey { id: 1, generation: 9 };
        let unit = Unit { sum: 99, skip: 512, len: NonZeroU32::new(65536).unwrap() };
        let m = Mapped { at: l.log_start(1) + 512, len: 65024, log: 1, key, unit: Some(unit) };
        let old = Mapped { at: l.log_start(1) + 1024, len: 512, log: 1, key, unit: None };
        let lost = Mapped::lost(200_704, 131_072, key);
        let log = |i: u32| LogEntry { tail: i * 512, busy: i == 4, bad: i == 3, sum: u64::from(i), epoch: i + 5 };
        let logs = (0..l.logs).map(log).collect();
        let extents = vec![(1024, m), (131_072, old), (200_704, lost)];
        let image = Image { number: 8, complete: false, has_loss: true, next_sequence: 1234, logs, extents };
        let b = encode_image(&l, &image);
        let header = decode_image_header(&l, &b).unwrap();
        assert_eq!(decode_image(&l, &header, &b[4096..]).unwrap(), image);
        let note = Note { number: 3, image: 2, chunks: vec![true] };
        assert_eq!(decode_note(&l, &encode_note(&l, &note)).unwrap(), note);
    }

    #[test]
    fn a_record_counts_only_where_it_was_written_and_after_what_it_follows() {
        let l = layout();
        let place = Place { at: l.log_start(2), log: 2, previous: 77, epoch: 3 };
        let (bytes, _) = encode_record(&mut BufPool::new(), &l, place, &[entry(0, 1)], &[], 1);
        assert!(decode_record(&l, Place { previous: 78, ..place }, bytes.as_slice()).is_none());
        assert!(decode_record(&l, Place { at: place.at + 512, ..place }, bytes.as_slice()).is_none());
        assert!(decode_record(&l, Place { epoch: 4, ..place }, bytes.as_slice()).is_none());
        let mut other = l;
        other.salt = 1;
        assert!(decode_record(&other, place, bytes.as_slice()).is_none());
    }

    /// Any single changed byte is noticed, and no bytes whatsoever make a decoder panic.
    #[test]
    fn corruption_is_noticed() {
        let l = layout();
        let place = Place { at: l.log_start(0), log: 0, previous: 1, epoch: 3 };
        let (record, _) = encode_record(&mut BufPool::new(), &l, place, &[entry(0, 1), entry(8192, 2)], &[], 1);
        let mut rng = Rng::new(4, "corrupt");
        for at in 0..record.len() {
            let mut b = record.as_slice().to_vec();
            b[at] ^= 1 << rng.below(8);
            assert!(decode_record(&l, place, &b).is_none(), "byte {at}");
        }
        let mut layout_block = encode_layout(&l);
        layout_block[9] = 1;
        assert!(decode_layout(&layout_block).unwrap_err().0.contains("corrupt"));
        for _ in 0..20_000 {
            let mut b: Vec<u8> = (0..600).map(|_| rng.next_u64() as u8).collect();
            let magic: [&[u8]; 4] = [b"PLR2", b"PLI2", b"PLN2", b"PLIMLOGS"];
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
