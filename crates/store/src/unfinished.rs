//! The note of a restore that isn't finished. While it is there, the metadata are not opened: they may be an empty store, or
//! show volumes in space that the restore has zeroed.
//!
//! ```text
//! two copies, 2048 bytes after each length slot of the metadata region
//! byte  0  magic "PLIMREST"
//!       8  checksum of the backup, u64
//!      16  the device's UUID, 16 bytes
//!      32  newest sequence of a superblock that was known, u64
//!      40  newest change that was known, or a number that it isn't below, u64
//!      48  1 if that change was known, 2 if the backup's map was the pool's, 4 if logs or a cache were formatted; their sum
//!      49  zero, 3 bytes
//!      52  generation of the pool's cache plus one, u32; 0 if it wasn't known
//!      56  xxh3-64 of 0..56
//! ```
//! The second copy is written and synced before the first, and removed after it. The first holds if it is valid, otherwise the second.
//! So a note that another backup's replaces is there until that one is.
//!
//! The magic's eighth byte is the note's version. A copy with another one is of a later program, whatever else it has, unless the other copy
//! is a note of this version: only that program can finish the restore. Zero isn't one: a torn copy may end before that byte.

use crate::meta::MetaError;
use crate::region::{Medium, SLOT_STRIDE};
use crate::superblock::Region;
use std::io::Result;
use uuid::Uuid;
use xxhash_rust::xxh3::xxh3_64;

const MAGIC: &[u8; 8] = b"PLIMREST";
/// Place of its version in the magic.
const VERSION_AT: usize = 7;
const NOTE_BYTES: usize = 64;
/// Offset in the region of each copy.
const COPIES_AT: [u64; 2] = [SLOT_STRIDE / 2, SLOT_STRIDE + SLOT_STRIDE / 2];

/// Facts that a restore began with, which it can't find out again once it has replaced the metadata.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Note {
    pub(crate) backup: u64,
    pub(crate) device_uuid: Uuid,
    pub(crate) sequence: u64,
    /// `None` if nothing was left that could tell.
    pub(crate) changes: Option<u64>,
    /// The newest change has at least this number.
    pub(crate) changes_min: u64,
    pub(crate) is_same: bool,
    pub(crate) formatted: bool,
    /// `None` if it wasn't known how often the cache's device was declared out of date.
    pub(crate) cache_generation: Option<u32>,
}

impl Note {
    fn encode(self) -> [u8; NOTE_BYTES] {
        let mut b = [0; NOTE_BYTES];
        b[..8].copy_from_slice(MAGIC);
        b[8..16].copy_from_slice(&self.backup.to_le_bytes());
        b[16..32].copy_from_slice(self.device_uuid.as_bytes());
        b[32..40].copy_from_slice(&self.sequence.to_le_bytes());
        b[40..48].copy_from_slice(&self.changes.unwrap_or(self.changes_min).to_le_bytes());
        b[48] = u8::from(self.changes.is_some()) | u8::from(self.is_same) << 1 | u8::from(self.formatted) << 2;
        b[52..56].copy_from_slice(&self.cache_generation.map_or(0, |n| n.saturating_add(1)).to_le_bytes());
        let checksum = xxh3_64(&b[..56]);
        b[56..].copy_from_slice(&checksum.to_le_bytes());
        b
    }

    fn decode(b: &[u8; NOTE_BYTES]) -> Option<Note> {
        let number = |at: usize| u64::from_le_bytes(b[at..at + 8].try_into().expect("eight bytes"));
        if &b[..8] != MAGIC || number(56) != xxh3_64(&b[..56]) {
            return None;
        }
        Some(Note {
            backup: number(8),
            device_uuid: Uuid::from_bytes(b[16..32].try_into().expect("sixteen bytes")),
            sequence: number(32),
            changes: (b[48] & 1 != 0).then_some(number(40)),
            changes_min: number(40),
            is_same: b[48] & 2 != 0,
            formatted: b[48] & 4 != 0,
            cache_generation: u32::from_le_bytes(b[52..56].try_into().expect("four bytes")).checked_sub(1),
        })
    }

    /// Writes the note to a metadata region, durably.
    pub(crate) fn write(self, medium: &impl Medium, region: Region) -> Result<()> {
        for at in [COPIES_AT[1], COPIES_AT[0]] {
            medium.write_at(&self.encode(), region.offset + at)?;
            medium.sync()?;
        }
        Ok(())
    }
}

/// Removes the note from a metadata region, durably.
pub(crate) fn remove(medium: &impl Medium, region: Region) -> Result<()> {
    for at in COPIES_AT {
        medium.write_at(&[0; NOTE_BYTES], region.offset + at)?;
        medium.sync()?;
    }
    Ok(())
}

/// A restore that isn't finished.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Unfinished {
    Ours(Note),
    /// A later program's, which this one can't go on with.
    Later,
}

impl Unfinished {
    /// The reason why the metadata aren't opened.
    pub(crate) fn error(self) -> MetaError {
        match self {
            Unfinished::Ours(_) => MetaError::RestoreUnfinished,
            Unfinished::Later => MetaError::LaterRestoreUnfinished,
        }
    }
}

/// The note in a metadata region that begins with these bytes.
pub(crate) fn note_in(first_bytes: &[u8]) -> Option<Unfinished> {
    let copies = COPIES_AT.map(|at| first_bytes.get(at as usize..)?.first_chunk::<NOTE_BYTES>());
    let is_later = |b: &[u8; NOTE_BYTES]| {
        b[..VERSION_AT] == MAGIC[..VERSION_AT] && ![0, MAGIC[VERSION_AT]].contains(&b[VERSION_AT])
    };
    let ours = copies.into_iter().flatten().find_map(Note::decode).map(Unfinished::Ours);
    // One flipped bit of a note of ours doesn't make it a later program's, as long as the other copy is whole.
    let is_whole = |b: &[u8; NOTE_BYTES]| b[56..] == xxh3_64(&b[..56]).to_le_bytes();
    let mut later = copies.into_iter().flatten().filter(|b| is_later(b));
    if later.any(|b| ours.is_none() || is_whole(b)) { Some(Unfinished::Later) } else { ours }
}

/// The note in the metadata region at `offset`.
pub(crate) fn note_of(medium: &impl Medium, offset: u64) -> Result<Option<Unfinished>> {
    let mut b = vec![0; 2 * SLOT_STRIDE as usize];
    medium.read_at(&mut b, offset)?;
    Ok(note_in(&b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_later_programs_note_is_not_overlooked() {
        let mut region = [0; 2 * SLOT_STRIDE as usize];
        for (at, version, expected) in [
            (COPIES_AT[1], b'U', Some(Unfinished::Later)),
            (COPIES_AT[0], 1, Some(Unfinished::Later)),
            (COPIES_AT[0], 0, None),
        ] {
            let at = at as usize;
            region[at..at + 8].copy_from_slice(MAGIC);
            region[at + VERSION_AT] = version;
            assert_eq!(note_in(&region), expected);
            region[at..at + 8].fill(0);
        }
        assert_eq!(note_in(&region), None);
        let note = Note {
            backup: 7,
            device_uuid: Uuid::from_u128(9),
            sequence: 3,
            changes: None,
            changes_min: 5,
            is_same: false,
            formatted: true,
            cache_generation: None,
        };
        for at in COPIES_AT {
            region[at as usize..][..NOTE_BYTES].copy_from_slice(&note.encode());
        }
        for at in COPIES_AT {
            let mut damaged = region;
            damaged[at as usize + VERSION_AT] ^= 1;
            assert_eq!(note_in(&damaged), Some(Unfinished::Ours(note)), "the other copy is whole");
        }
    }

    #[test]
    fn a_note_is_read_back_and_a_changed_one_is_none() {
        for changes in [None, Some(u64::MAX)] {
            for (is_same, formatted) in [(false, true), (true, false)] {
                let note = Note {
                    backup: 7,
                    device_uuid: Uuid::from_u128(9),
                    sequence: 3,
                    changes,
                    changes_min: changes.unwrap_or(5),
                    is_same,
                    formatted,
                    cache_generation: is_same.then_some(0),
                };
                let b = note.encode();
                assert_eq!(Note::decode(&b), Some(note));
                for at in 0..NOTE_BYTES {
                    let mut changed = b;
                    changed[at] ^= 1;
                    assert_eq!(Note::decode(&changed), None, "byte {at}");
                }
            }
        }
    }
}
