//! Format version 1, read only, to be converted: see [`crate::format`] for what is the same.
//!
//! ```text
//! record  0 "PLLR" │ header bytes u32 │ data bytes u64 │ at u64 │ log u32 │ entries u32 │ previous sum u64 │ data sum u64
//!           │ sum u64 │ 0 … │ entries from 64 on, 32 bytes each: home u64, len u32, kind u32, volume u32, generation u32,
//!           sequence u64 │ data
//! image   0 "PLLI" │ …  4096  per log: tail u32, retired u32, last sum u64 │ per extent: home u64, at u64, len u32, log u32,
//!               volume u32, generation u32
//! note    0 "PLLN" │ chunks u32 │ number u64 │ logs per chunk u32 │ 0 u32 │ bits … │ sum u64 at 504
//! ```
//! Image number n lies in slot n % 2, and notes take turns. Nothing says which image is in force: the newest whole one is.

use crate::format::{
    Entry, EntryKind, Image, ImageHeader, LogEntry, NOTE_BYTES, NOTE_SUM_AT, NUMBER_MAX, Note, Place, RECORD_HEAD,
    RECORD_SUM_AT, image_header, is_in_range, kind_at, logs_per_chunk, put, u32_at, u64_at,
};
use crate::layout::{IMAGE_EXTENT_BYTES, IMAGE_LOG_BYTES, Layout};
use crate::mtl::Mapped;
use plimsoll_base::VolumeKey;
use xxhash_rust::xxh3::xxh3_64_with_seed;

const RECORD_MAGIC: u32 = u32::from_le_bytes(*b"PLLR");
const IMAGE_MAGIC: u32 = u32::from_le_bytes(*b"PLLI");
pub(crate) const NOTE_MAGIC: u32 = u32::from_le_bytes(*b"PLLN");
const ENTRY_BYTES: usize = 32;
const NOTE_BITS_AT: usize = 24;
const CHUNKS_MAX: u32 = ((NOTE_SUM_AT - NOTE_BITS_AT) * 8) as u32;

/// A record's header, decoded.
pub(crate) struct Record {
    pub entries: Vec<Entry>,
    pub header_bytes: u64,
    pub data_bytes: u64,
    pub data_sum: u64,
    pub sum: u64,
}

pub(crate) fn header_length(b: &[u8]) -> Option<u64> {
    let len = (b.len() >= RECORD_HEAD && u32_at(b, 0) == RECORD_MAGIC).then(|| u64::from(u32_at(b, 4)))?;
    (len >= RECORD_HEAD as u64).then_some(len)
}

/// The record at `place`, if a whole header is in `b`. It has no epoch.
pub(crate) fn decode_record(layout: &Layout, place: Place, b: &[u8]) -> Option<Record> {
    let header_bytes = header_length(b).filter(|len| *len <= b.len() as u64)?;
    let b = &b[..header_bytes as usize];
    let mut unsummed = b.to_vec();
    put(&mut unsummed, RECORD_SUM_AT, &[0; 8]);
    let sum = xxh3_64_with_seed(&unsummed, layout.salt);
    let here = Place { at: u64_at(b, 16), log: u32_at(b, 24), previous: u64_at(b, 32), ..place };
    let (count, data_bytes) = (u32_at(b, 28) as usize, u64_at(b, 8));
    let fits =
        count >= 1 && ((RECORD_HEAD + count * ENTRY_BYTES) as u64).next_multiple_of(layout.block()) == header_bytes;
    if sum != u64_at(b, RECORD_SUM_AT) || here != place || !fits {
        return None;
    }
    let entries: Vec<Entry> =
        (0..count).map(|i| entry_at(&b[RECORD_HEAD + i * ENTRY_BYTES..])).collect::<Option<_>>()?;
    let total: u64 = entries.iter().filter(|e| e.kind == EntryKind::Data).map(|e| u64::from(e.len)).sum();
    (entries.iter().all(|e| is_in_range(layout, e)) && total == data_bytes).then(|| Record {
        entries,
        header_bytes,
        data_bytes,
        data_sum: u64_at(b, 40),
        sum,
    })
}

fn entry_at(b: &[u8]) -> Option<Entry> {
    let kind = kind_at(b, 12)?;
    let key = VolumeKey { id: u32_at(b, 16), generation: u32_at(b, 20) };
    Some(Entry { home: u64_at(b, 0), len: u32_at(b, 8), kind, key, sequence: u64_at(b, 24), sum: 0 })
}

pub(crate) fn decode_image_header(layout: &Layout, b: &[u8]) -> Option<ImageHeader> {
    image_header(layout, b, IMAGE_MAGIC)
}

pub(crate) fn decode_image(layout: &Layout, header: &ImageHeader, body: &[u8]) -> Option<Image> {
    let body = body.get(..header.body_bytes as usize)?;
    if xxh3_64_with_seed(body, layout.salt) != header.body_sum {
        return None;
    }
    let (logs, extents) = body.split_at(layout.logs as usize * IMAGE_LOG_BYTES as usize);
    let log = |b: &[u8]| {
        let log = LogEntry { tail: u32_at(b, 0), busy: false, bad: u32_at(b, 4) != 0, sum: u64_at(b, 8), epoch: 0 };
        let fits = u64::from(log.tail) <= layout.shape.log_bytes && u64::from(log.tail).is_multiple_of(layout.block());
        fits.then_some(log)
    };
    let extent = |b: &[u8]| {
        let key = VolumeKey { id: u32_at(b, 24), generation: u32_at(b, 28) };
        let (home, len) = (u64_at(b, 0), u32_at(b, 16));
        let m = Mapped { at: u64_at(b, 8), len, log: u32_at(b, 20), key, unit: None };
        let valid = len > 0
            && layout.log_of(m.at, u64::from(len)) == Some(m.log)
            && home.checked_add(u64::from(len)).is_some_and(|end| end <= layout.home_bytes)
            && (home | m.at | u64::from(len)).is_multiple_of(layout.block());
        valid.then_some((home, m))
    };
    Some(Image {
        number: header.number,
        complete: header.complete,
        has_loss: false,
        next_sequence: header.next_sequence,
        logs: logs.chunks_exact(IMAGE_LOG_BYTES as usize).map(log).collect::<Option<_>>()?,
        extents: extents.chunks_exact(IMAGE_EXTENT_BYTES as usize).map(extent).collect::<Option<_>>()?,
    })
}

/// A note, its bits as version 2 shares them among logs. It names no image.
pub(crate) fn decode_note(layout: &Layout, b: &[u8]) -> Option<Note> {
    let per_chunk = layout.logs.div_ceil(CHUNKS_MAX).max(16);
    let valid = b.len() >= NOTE_BYTES
        && u32_at(b, 0) == NOTE_MAGIC
        && u64_at(b, NOTE_SUM_AT) == xxh3_64_with_seed(&b[..NOTE_SUM_AT], layout.salt)
        && u32_at(b, 4) == layout.logs.div_ceil(per_chunk)
        && u32_at(b, 16) == per_chunk
        && u64_at(b, 8) < NUMBER_MAX;
    if !valid {
        return None;
    }
    let mut chunks = vec![false; layout.logs.div_ceil(logs_per_chunk(layout.logs)) as usize];
    for log in 0..layout.logs {
        let i = (log / per_chunk) as usize;
        if b[NOTE_BITS_AT + i / 8] & 1 << (i % 8) != 0 {
            chunks[(log / logs_per_chunk(layout.logs)) as usize] = true;
        }
    }
    Some(Note { number: u64_at(b, 8), image: 0, chunks })
}
