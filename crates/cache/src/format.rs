//! The format on the fast device: headers of chunks and extents, and the journal's blocks, as bytes and back.
//!
//! ```text
//!  a WEU   │ header of chunk 0 │ of chunk 1 │ ...  free  ... │ extents of chunk 1 │ extents of chunk 0 │
//! ```
//! A chunk of dirty extents has a copy of its header before its extents. If the header is corrupt, its extents aren't lost.
//!
//! A WEU that is written whole is one chunk (NI-M3). If a flush comes before the WEU is full, its extents so far are written as a
//! chunk. The next chunk goes between this chunk's header and its extents.
//!
//! A compressed extent has a head before it. An extent that is stored uncompressed is *bare*. It lies on flash pages of its own, and
//! its checksum is in the chunk's entry, so that reading the extent touches no further page.

use crate::index::Fingerprint;
use plimsoll_base::VolumeKey;
use std::collections::BTreeMap;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// Bytes of a journal's record.
pub const RECORD_BYTES: u64 = 16;
const CHUNK_MAGIC: u32 = u32::from_le_bytes(*b"WEU1");
const BLOCK_MAGIC: u32 = u32::from_le_bytes(*b"JRN2");
/// Of a device of version 2: without [`JournalBlock::since`].
const BLOCK_MAGIC_2: u32 = u32::from_le_bytes(*b"JRN1");
/// Bytes of a chunk's header before its entries.
pub const CHUNK_HEAD_BYTES: usize = 64;
/// Bytes of one of its entries.
pub const CHUNK_ENTRY_BYTES: usize = 40;
/// Bytes before an extent's payload, unless it is bare.
pub const EXTENT_HEAD_BYTES: usize = 32;
/// Bare extents begin at multiples of it: a flash drive reads no less.
pub const FLASH_PAGE_BYTES: u32 = 4096;
const CHUNK_SUM_AT: usize = 56;
const BLOCK_HEAD_BYTES: usize = 48;
const BLOCK_SUM_AT: usize = 40;

fn u16_at(b: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(b[at..at + 2].try_into().expect("two bytes"))
}
fn u32_at(b: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(b[at..at + 4].try_into().expect("four bytes"))
}
fn u64_at(b: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(b[at..at + 8].try_into().expect("eight bytes"))
}

/// An extent's name on the device: also when its volume is gone and its number used again, it can't be mistaken.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct ExtentName {
    /// The volume and its generation.
    pub volume: VolumeKey,
    /// Its number in the volume; below 2^48.
    pub extent: u64,
}

/// The content of one slot of a WEU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Slot {
    /// An extent's bytes, and their fingerprint if there is one.
    Base(Option<Fingerprint>),
    /// A duplicate, dirty or clean as the chunk is: its bytes are in another slot, of this or another WEU.
    Ref {
        /// That WEU.
        weu: u32,
        /// Its number when this was written.
        sequence: u64,
        /// The slot there.
        slot: u32,
    },
}

/// A chunk's entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ChunkEntry {
    /// The extent's name.
    pub name: ExtentName,
    /// It was superseded before the chunk was written.
    pub dead: bool,
    /// The slot's content.
    pub what: Slot,
    /// The offset of the bytes in their WEU, in units.
    pub at_unit: u16,
    /// Their length, in units.
    pub len_units: u16,
    /// The lower half of their checksum, if they are bare.
    pub sum: u32,
}

/// A chunk's header.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ChunkHeader {
    /// Of the cache.
    pub salt: u64,
    /// The WEU.
    pub weu: u32,
    /// The WEU's number.
    pub sequence: u64,
    /// The chunk's number: ascending over all chunks of the device.
    pub chunk: u64,
    /// Its extents were dirty.
    pub dirty: bool,
    /// The number of its first entry among the WEU's.
    pub first_slot: u32,
    /// Its extents, by slot.
    pub entries: Vec<ChunkEntry>,
}

/// Bytes of a header with `entries`, in whole blocks.
pub fn chunk_header_bytes(entries: usize, block_bytes: u32) -> u32 {
    ((CHUNK_HEAD_BYTES + entries * CHUNK_ENTRY_BYTES) as u32).next_multiple_of(block_bytes)
}

const DEAD: u64 = 1 << 48;
const REF: u64 = 1 << 49;
const HAS_FP: u64 = 1 << 50;

impl ChunkHeader {
    /// As bytes, in whole blocks.
    pub fn encode(&self, block_bytes: u32) -> Vec<u8> {
        let mut b = vec![0; chunk_header_bytes(self.entries.len(), block_bytes) as usize];
        b[..4].copy_from_slice(&CHUNK_MAGIC.to_le_bytes());
        b[4..6].copy_from_slice(&u16::from(self.dirty).to_le_bytes());
        b[8..16].copy_from_slice(&self.salt.to_le_bytes());
        b[16..20].copy_from_slice(&self.weu.to_le_bytes());
        b[20..24].copy_from_slice(&(self.entries.len() as u32).to_le_bytes());
        b[24..32].copy_from_slice(&self.sequence.to_le_bytes());
        b[32..40].copy_from_slice(&self.chunk.to_le_bytes());
        b[40..44].copy_from_slice(&self.first_slot.to_le_bytes());
        for (e, to) in self.entries.iter().zip(b[CHUNK_HEAD_BYTES..].chunks_exact_mut(CHUNK_ENTRY_BYTES)) {
            let (flags, words) = match e.what {
                Slot::Base(None) => (0, [0, 0]),
                Slot::Base(Some(fp)) => (HAS_FP, fp),
                Slot::Ref { weu, sequence, slot } => (REF, [sequence, u64::from(weu) | u64::from(slot) << 32]),
            };
            let extent = e.name.extent | flags | if e.dead { DEAD } else { 0 };
            to[..4].copy_from_slice(&e.name.volume.id.to_le_bytes());
            to[4..8].copy_from_slice(&e.name.volume.generation.to_le_bytes());
            to[8..16].copy_from_slice(&extent.to_le_bytes());
            to[16..24].copy_from_slice(&words[0].to_le_bytes());
            to[24..32].copy_from_slice(&words[1].to_le_bytes());
            to[32..34].copy_from_slice(&e.at_unit.to_le_bytes());
            to[34..36].copy_from_slice(&e.len_units.to_le_bytes());
            to[36..].copy_from_slice(&e.sum.to_le_bytes());
        }
        let sum = xxh3_64(&b);
        b[CHUNK_SUM_AT..CHUNK_HEAD_BYTES].copy_from_slice(&sum.to_le_bytes());
        b
    }

    /// Length in bytes of the header at the beginning of `b`, if it looks like one of this cache.
    pub fn peek(b: &[u8], salt: u64, block_bytes: u32) -> Option<u32> {
        let ours = b.len() >= CHUNK_HEAD_BYTES && u32_at(b, 0) == CHUNK_MAGIC && u64_at(b, 8) == salt;
        (ours && u32_at(b, 20) < 1 << 16).then(|| chunk_header_bytes(u32_at(b, 20) as usize, block_bytes))
    }

    /// The header at the beginning of `b`, if it is whole and of this cache. `trusting` ignores its checksum.
    pub fn decode(b: &[u8], salt: u64, block_bytes: u32, trusting: bool) -> Option<ChunkHeader> {
        let len = ChunkHeader::peek(b, salt, block_bytes)? as usize;
        let mut bytes = b.get(..len)?.to_vec();
        let sum = u64_at(&bytes, CHUNK_SUM_AT);
        bytes[CHUNK_SUM_AT..CHUNK_HEAD_BYTES].fill(0);
        if sum != xxh3_64(&bytes) && !trusting {
            return None;
        }
        let entry = |e: &[u8]| {
            let extent = u64_at(e, 8);
            let words = [u64_at(e, 16), u64_at(e, 24)];
            let what = match (extent & REF != 0, extent & HAS_FP != 0) {
                (true, _) => Slot::Ref { weu: words[1] as u32, sequence: words[0], slot: (words[1] >> 32) as u32 },
                (false, true) => Slot::Base(Some(words)),
                (false, false) => Slot::Base(None),
            };
            ChunkEntry {
                name: ExtentName {
                    volume: VolumeKey { id: u32_at(e, 0), generation: u32_at(e, 4) },
                    extent: extent & ((1 << 48) - 1),
                },
                dead: extent & DEAD != 0,
                what,
                at_unit: u16_at(e, 32),
                len_units: u16_at(e, 34),
                sum: u32_at(e, 36),
            }
        };
        let count = u32_at(b, 20) as usize;
        Some(ChunkHeader {
            salt,
            weu: u32_at(b, 16),
            sequence: u64_at(b, 24),
            chunk: u64_at(b, 32),
            dirty: u16_at(b, 4) & 1 == 1,
            first_slot: u32_at(b, 40),
            entries: b[CHUNK_HEAD_BYTES..].chunks_exact(CHUNK_ENTRY_BYTES).take(count).map(entry).collect(),
        })
    }
}

/// The packing of an extent's payload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Packing {
    /// As it is.
    Raw = 0,
    /// LZ4.
    Lz4 = 1,
    /// zstd.
    Zstd = 2,
    /// A content name, in simulation: shorter by the ratio that was drawn for it.
    Modelled = 3,
}

/// The head before an extent's payload (NI-M11), unless the extent is bare.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ExtentHead {
    /// The payload's bytes.
    pub payload_bytes: u32,
    /// Their packing.
    pub packing: Packing,
    /// The extent's name when it was packed.
    pub name: ExtentName,
    /// xxh3 of the payload.
    pub sum: u64,
}

impl ExtentHead {
    /// As bytes, in the WEU of number `sequence`: what another left there has another checksum.
    pub fn encode(&self, sequence: u64) -> [u8; EXTENT_HEAD_BYTES] {
        let mut b = [0; EXTENT_HEAD_BYTES];
        b[..4].copy_from_slice(&(self.payload_bytes | u32::from(self.packing as u8) << 24).to_le_bytes());
        b[8..12].copy_from_slice(&self.name.volume.id.to_le_bytes());
        b[12..16].copy_from_slice(&self.name.volume.generation.to_le_bytes());
        b[16..24].copy_from_slice(&self.name.extent.to_le_bytes());
        let over = self.sum ^ xxh3_64_with_seed(&b[..24], sequence);
        b[24..].copy_from_slice(&over.to_le_bytes());
        b
    }

    /// From bytes in the WEU of number `sequence`. Whether they are right shows when the payload's checksum is compared with
    /// `sum`.
    pub fn decode(b: &[u8; EXTENT_HEAD_BYTES], sequence: u64) -> Option<ExtentHead> {
        let packing = match b[3] {
            0 => Packing::Raw,
            1 => Packing::Lz4,
            2 => Packing::Zstd,
            3 => Packing::Modelled,
            _ => return None,
        };
        Some(ExtentHead {
            payload_bytes: u32_at(b, 0) & 0xff_ffff,
            packing,
            name: ExtentName {
                volume: VolumeKey { id: u32_at(b, 8), generation: u32_at(b, 12) },
                extent: u64_at(b, 16),
            },
            sum: u64_at(b, 24) ^ xxh3_64_with_seed(&b[..24], sequence),
        })
    }
}

/// An event, as the journal records it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Record {
    /// A slot's base entry is no longer true.
    Dead {
        /// The WEU, its number, and the slot.
        weu: u32,
        /// See above.
        sequence: u64,
        /// See above.
        slot: u32,
    },
    /// The slow device has a dirty slot's content.
    Cleaned {
        /// The WEU, its number, and the slot.
        weu: u32,
        /// See above.
        sequence: u64,
        /// See above.
        slot: u32,
    },
    /// The WEU holds nothing valid under a lower number (it was evicted).
    Least {
        /// The WEU.
        weu: u32,
        /// The least number that counts.
        sequence: u64,
        /// Its content under this number may be torn or corrupt, whatever its headers say.
        suspect: bool,
        /// True if the headers of the WEU's clean extents are valid under this number. If false, recovery ignores them.
        confirmed: bool,
    },
    /// Headers of dirty extents are durable, of the first `slots` slots of the WEU under this number.
    Held {
        /// The WEU.
        weu: u32,
        /// Its number.
        sequence: u64,
        /// Number of slots.
        slots: u32,
    },
    /// Nothing of this volume counts.
    Gone(VolumeKey),
    /// Headers of what only the cache had of this volume, or of any if it is [`VolumeKey::POOL`], were corrupt at a start.
    Missed(VolumeKey),
    /// In a snapshot, or before a WEU counts: 64 slots' dead bits, of the WEU under the number of the record before.
    DeadBits {
        /// The WEU.
        weu: u32,
        /// The number of the group of 64 slots.
        word: u32,
        /// Their bits.
        bits: u64,
    },
    /// In a snapshot: 64 slots that the slow device has.
    CleanBits {
        /// The WEU.
        weu: u32,
        /// The number of the group of 64 slots.
        word: u32,
        /// Their bits.
        bits: u64,
    },
}

impl Record {
    fn encode(&self) -> [u8; RECORD_BYTES as usize] {
        let (kind, small, weu, large) = match *self {
            Record::Dead { weu, sequence, slot } => (1, slot, weu, sequence),
            Record::Cleaned { weu, sequence, slot } => (2, slot, weu, sequence),
            Record::Least { weu, sequence, suspect, confirmed } => {
                (3, u32::from(suspect) | u32::from(confirmed) << 1, weu, sequence)
            }
            Record::Gone(v) => (4, 0, v.id, u64::from(v.generation)),
            Record::DeadBits { weu, word, bits } => (5, word, weu, bits),
            Record::CleanBits { weu, word, bits } => (6, word, weu, bits),
            Record::Held { weu, sequence, slots } => (7, slots, weu, sequence),
            Record::Missed(v) => (8, 0, v.id, u64::from(v.generation)),
        };
        let mut b = [0; RECORD_BYTES as usize];
        b[0] = kind;
        b[2..4].copy_from_slice(&(small as u16).to_le_bytes());
        b[4..8].copy_from_slice(&weu.to_le_bytes());
        b[8..].copy_from_slice(&large.to_le_bytes());
        b
    }

    fn decode(b: &[u8]) -> Option<Record> {
        let (small, weu, large) = (u32::from(u16_at(b, 2)), u32_at(b, 4), u64_at(b, 8));
        Some(match b[0] {
            1 => Record::Dead { weu, sequence: large, slot: small },
            2 => Record::Cleaned { weu, sequence: large, slot: small },
            3 => Record::Least { weu, sequence: large, suspect: small & 1 == 1, confirmed: small & 2 == 2 },
            4 => Record::Gone(VolumeKey { id: weu, generation: large as u32 }),
            5 => Record::DeadBits { weu, word: small, bits: large },
            6 => Record::CleanBits { weu, word: small, bits: large },
            7 => Record::Held { weu, sequence: large, slots: small },
            8 => Record::Missed(VolumeKey { id: weu, generation: large as u32 }),
            _ => return None,
        })
    }
}

/// A block of the journal.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct JournalBlock {
    /// Of the cache.
    pub salt: u64,
    /// Number of times that the journal began anew; its parity is the half.
    pub epoch: u64,
    /// The block's number in the half.
    pub index: u32,
    /// The first block of the write that this one is part of: when that was sent, all before it were durable.
    pub since: u32,
    /// Part of the snapshot that the epoch begins with; 2 for its last block.
    pub snapshot: u8,
    /// [`crate::CacheConfig::generation`].
    pub generation: u16,
    /// Chunks with a lower number are durable, or never counted.
    pub durable: u64,
    /// The events.
    pub records: Vec<Record>,
}

/// Records that a block takes.
pub fn records_per_block(block_bytes: u32) -> usize {
    (block_bytes as usize - BLOCK_HEAD_BYTES) / RECORD_BYTES as usize
}

impl JournalBlock {
    /// As a block of bytes.
    pub fn encode(&self, block_bytes: u32) -> Vec<u8> {
        assert!(self.records.len() <= records_per_block(block_bytes));
        let behind = u16::try_from(self.index - self.since).expect("a write has less than 2^16 blocks");
        let mut b = vec![0; block_bytes as usize];
        b[..4].copy_from_slice(&BLOCK_MAGIC.to_le_bytes());
        b[4..6].copy_from_slice(&(self.records.len() as u16).to_le_bytes());
        b[6..8].copy_from_slice(&behind.to_le_bytes());
        b[8..16].copy_from_slice(&self.salt.to_le_bytes());
        b[16..24].copy_from_slice(&self.epoch.to_le_bytes());
        b[24..28].copy_from_slice(&self.index.to_le_bytes());
        b[28] = self.snapshot;
        b[30..32].copy_from_slice(&self.generation.to_le_bytes());
        b[32..40].copy_from_slice(&self.durable.to_le_bytes());
        for (r, to) in self.records.iter().zip(b[BLOCK_HEAD_BYTES..].chunks_exact_mut(RECORD_BYTES as usize)) {
            to.copy_from_slice(&r.encode());
        }
        let sum = xxh3_64(&b);
        b[BLOCK_SUM_AT..BLOCK_HEAD_BYTES].copy_from_slice(&sum.to_le_bytes());
        b
    }

    /// From a block of bytes, if it is whole and of this cache.
    pub fn decode(b: &[u8], salt: u64) -> Option<JournalBlock> {
        JournalBlock::decode_as(b, salt, BLOCK_MAGIC, false)
    }

    /// The same, whether it's whole or not (a planted mistake).
    pub(crate) fn decode_unchecked(b: &[u8], salt: u64) -> Option<JournalBlock> {
        JournalBlock::decode_as(b, salt, BLOCK_MAGIC, true)
    }

    /// From a block of a device of version 2.
    pub(crate) fn decode_2(b: &[u8], salt: u64) -> Option<JournalBlock> {
        JournalBlock::decode_as(b, salt, BLOCK_MAGIC_2, false)
    }

    fn decode_as(b: &[u8], salt: u64, magic: u32, trusting: bool) -> Option<JournalBlock> {
        if b.len() < BLOCK_HEAD_BYTES || u32_at(b, 0) != magic || u64_at(b, 8) != salt {
            return None;
        }
        let mut bytes = b.to_vec();
        bytes[BLOCK_SUM_AT..BLOCK_HEAD_BYTES].fill(0);
        let (count, index) = (usize::from(u16_at(b, 4)), u32_at(b, 24));
        let whole = trusting || u64_at(b, BLOCK_SUM_AT) == xxh3_64(&bytes);
        if !whole || count > records_per_block(b.len() as u32) {
            return None;
        }
        let records = b[BLOCK_HEAD_BYTES..].chunks_exact(RECORD_BYTES as usize).take(count).map(Record::decode);
        Some(JournalBlock {
            salt,
            epoch: u64_at(b, 16),
            index,
            since: index.saturating_sub(u32::from(u16_at(b, 6))),
            snapshot: b[28],
            generation: u16_at(b, 30),
            durable: u64_at(b, 32),
            records: records.collect::<Option<_>>()?,
        })
    }
}

/// The chunks' headers at the beginning of a WEU, as far as they are whole and belong together.
pub(crate) fn headers(
    bytes: &[u8],
    salt: u64,
    block_bytes: u32,
    weu: u32,
    sequence: Option<u64>,
    trusting: bool,
) -> Vec<ChunkHeader> {
    let mut found: Vec<ChunkHeader> = Vec::new();
    let mut at = 0;
    while let Some(h) = bytes.get(at..).and_then(|b| ChunkHeader::decode(b, salt, block_bytes, trusting)) {
        let follows = match found.last() {
            None => sequence.is_none_or(|s| s == h.sequence) && h.first_slot == 0,
            Some(p) => p.sequence == h.sequence && h.first_slot == p.first_slot + p.entries.len() as u32,
        };
        if h.weu != weu || !follows {
            break;
        }
        at += chunk_header_bytes(h.entries.len(), block_bytes) as usize;
        found.push(h);
    }
    found
}

/// The same of a WEU under a number whose headers are not all there: all chunks' headers or their copies, wherever in the WEU they are.
pub(crate) fn headers_or_copies(
    bytes: &[u8],
    salt: u64,
    block_bytes: u32,
    weu: u32,
    sequence: u64,
) -> Vec<ChunkHeader> {
    let mut by_slot: BTreeMap<u32, ChunkHeader> = BTreeMap::new();
    for at in (0..bytes.len()).step_by(block_bytes as usize) {
        if let Some(h) = ChunkHeader::decode(&bytes[at..], salt, block_bytes, false)
            && (h.weu, h.sequence) == (weu, sequence)
        {
            by_slot.entry(h.first_slot).or_insert(h);
        }
    }
    let (mut found, mut slots) = (Vec::new(), 0);
    while let Some(h) = by_slot.remove(&slots) {
        slots += h.entries.len() as u32;
        found.push(h);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn name(n: u64) -> ExtentName {
        ExtentName { volume: VolumeKey { id: n as u32 % 7, generation: 3 }, extent: n }
    }

    fn entries(n: u64) -> Vec<ChunkEntry> {
        let what = |i: u64| match i % 3 {
            0 => Slot::Base(None),
            1 => Slot::Base(Some([i, !i])),
            _ => Slot::Ref { weu: i as u32, sequence: i << 20, slot: i as u32 * 2 },
        };
        let entry = |i| ChunkEntry {
            name: name(i),
            dead: i % 5 == 0,
            what: what(i),
            at_unit: i as u16,
            len_units: i as u16 + 1,
            sum: i as u32 * 77,
        };
        (0..n).map(entry).collect()
    }

    proptest! {
        #[test]
        fn a_chunk_comes_back_and_any_flipped_bit_is_seen(n in 0u64..50, flip in any::<u32>()) {
            let h = ChunkHeader { salt: 5, weu: 9, sequence: 77, chunk: 99, dirty: n % 2 == 0, first_slot: 4, entries: entries(n) };
            let mut b = h.encode(512);
            prop_assert_eq!(ChunkHeader::decode(&b, 5, 512, false), Some(h));
            prop_assert_eq!(ChunkHeader::decode(&b, 6, 512, false), None);
            let bit = flip as usize % (b.len() * 8);
            b[bit / 8] ^= 1 << (bit % 8);
            prop_assert_eq!(ChunkHeader::decode(&b, 5, 512, false), None);
        }

        #[test]
        fn any_bytes_are_decoded_without_harm(b in prop::collection::vec(any::<u8>(), 0..2048)) {
            ChunkHeader::decode(&b, 0, 512, true);
            JournalBlock::decode(&b, 0);
        }
    }

    #[test]
    fn a_journal_block_comes_back() {
        let records = vec![
            Record::Dead { weu: 1, sequence: u64::MAX, slot: 2047 },
            Record::Cleaned { weu: 2, sequence: 5, slot: 0 },
            Record::Least { weu: 3, sequence: 6, suspect: false, confirmed: true },
            Record::Least { weu: 4, sequence: 7, suspect: true, confirmed: false },
            Record::Gone(VolumeKey { id: 4, generation: 7 }),
            Record::DeadBits { weu: 5, word: 31, bits: u64::MAX },
            Record::CleanBits { weu: 6, word: 1, bits: 8 },
            Record::Held { weu: 7, sequence: 9, slots: 2048 },
            Record::Missed(VolumeKey { id: 5, generation: 8 }),
        ];
        let block =
            JournalBlock { salt: 1, epoch: 2, index: 3, since: 1, snapshot: 2, generation: 8, durable: 4, records };
        let mut b = block.encode(512);
        assert_eq!(JournalBlock::decode(&b, 1), Some(block));
        assert_eq!(JournalBlock::decode(&b, 2), None);
        b[100] ^= 1;
        assert_eq!(JournalBlock::decode(&b, 1), None);
        assert_eq!((records_per_block(512), records_per_block(4096)), (29, 253));
    }

    #[test]
    fn an_extents_head_guards_itself() {
        let h = ExtentHead { payload_bytes: 4000, packing: Packing::Lz4, name: name(12), sum: 0xabcd };
        let b = h.encode(9);
        assert_eq!(ExtentHead::decode(&b, 9), Some(h));
        assert_ne!(ExtentHead::decode(&b, 9 + (1 << 40)), Some(h), "another life's WEU of the same number");
        for bit in 0..256 {
            let mut b = b;
            b[bit / 8] ^= 1 << (bit % 8);
            let seen = ExtentHead::decode(&b, 9).is_none_or(|h| h.sum != 0xabcd);
            assert!(seen, "bit {bit}");
        }
    }
}
