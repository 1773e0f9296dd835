//! The metadata region as the metadata store's storage: a file of bounded length inside a device, and the witness of its
//! newest commit.
//!
//! ```text
//! region    0  length slot A, odd sequences   }  the valid one with the higher sequence holds
//!        4096  length slot B, even sequences  }
//!        8192  the file's bytes
//!
//! slot      0  magic "PLIMMET2"
//!           8  sequence, u64
//!          16  length of the file, u64
//!          24  the newest commit that was made durable in the file, u64
//!          32  sequence of the superblock when this was written, u64
//!          40  the device's UUID, 16 bytes
//!          56  xxh3-64 of 0..56
//! ```
//! A slot repeats what the file and the superblock say of themselves. So an older state of either, though each of its
//! bytes checks out, is refused: the slot proves that a newer one was durable.
//!
//! Writing a slot replaces the older one and syncs: torn, it leaves the other. A change of length is written to both, one
//! after the other, so that losing either slot later doesn't bring an old length back.
//!
//! 2048 bytes after each slot, a restore that isn't finished has its note (`unfinished.rs`).
//!
//! Two slots that are there always have numbers that follow each other. If one is lost, the other one's change may not be the newest: who has
//! only the slots to go by, as a restore over a lost file, must not take it for that.
//!
//! Slots of superblocks before version 3 have magic "PLIMMETA", sequence, length and xxh3-64 only. They are replaced at
//! the first open, before the first commit that has a number.

use crate::superblock::Region;
use crate::unfinished;
use redb::StorageBackend;
use std::fs::File;
use std::io::{Error, ErrorKind, Result};
use std::os::unix::fs::FileExt;
use std::sync::Mutex;
use uuid::Uuid;
use xxhash_rust::xxh3::xxh3_64;

const MAGIC: &[u8; 8] = b"PLIMMET2";
const MAGIC_OF_VERSION_2: &[u8; 8] = b"PLIMMETA";
pub(crate) const SLOT_STRIDE: u64 = 4096;
const SLOT_BYTES: usize = 64;
/// Writes of slots a region's life has room for; higher sequences are corrupt.
const SEQUENCE_MAX: u64 = 1 << 62;
/// The slots' bytes before the file's.
pub(crate) const HEADER_BYTES: u64 = 2 * SLOT_STRIDE;

/// Bytes that are read, written and synced by position: a device's file, or a disk of a test.
pub trait Medium: std::fmt::Debug + Send + Sync + 'static {
    /// Fills `out` from `offset`.
    ///
    /// # Errors
    /// Those of the file, and an end before `out` is full.
    fn read_at(&self, out: &mut [u8], offset: u64) -> Result<()>;

    /// Writes all of `data` at `offset`.
    ///
    /// # Errors
    /// Those of the file.
    fn write_at(&self, data: &[u8], offset: u64) -> Result<()>;

    /// Makes durable what was written.
    ///
    /// # Errors
    /// Those of the file.
    fn sync(&self) -> Result<()>;
}

impl Medium for File {
    fn read_at(&self, out: &mut [u8], offset: u64) -> Result<()> {
        self.read_exact_at(out, offset)
    }

    fn write_at(&self, data: &[u8], offset: u64) -> Result<()> {
        self.write_all_at(data, offset)
    }

    fn sync(&self) -> Result<()> {
        self.sync_data()
    }
}

/// The superblock that a metadata region belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Owner {
    /// The device.
    pub device_uuid: Uuid,
    /// The superblock's sequence.
    pub sequence: u64,
}

/// See the module's documentation.
#[derive(Debug)]
pub struct RegionBackend<M: Medium = File> {
    medium: M,
    region: Region,
    owner: Owner,
    slot: Mutex<State>,
}

#[derive(Debug)]
struct State {
    newest: Slot,
    /// The other slot says the same of length and commit, or one commit less.
    other_is_valid: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Slot {
    sequence: u64,
    len: u64,
    /// `None` in slots of version 2, which witness nothing.
    witness: Option<Witness>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Witness {
    commit: u64,
    superblock: u64,
    device_uuid: Uuid,
}

impl Slot {
    fn encode(self) -> [u8; SLOT_BYTES] {
        let witness = self.witness.expect("only slots that witness are written");
        let mut b = [0; SLOT_BYTES];
        b[..8].copy_from_slice(MAGIC);
        b[8..16].copy_from_slice(&self.sequence.to_le_bytes());
        b[16..24].copy_from_slice(&self.len.to_le_bytes());
        b[24..32].copy_from_slice(&witness.commit.to_le_bytes());
        b[32..40].copy_from_slice(&witness.superblock.to_le_bytes());
        b[40..56].copy_from_slice(witness.device_uuid.as_bytes());
        let checksum = xxh3_64(&b[..56]);
        b[56..].copy_from_slice(&checksum.to_le_bytes());
        b
    }

    fn decode(b: &[u8; SLOT_BYTES]) -> Option<Slot> {
        let number = |at: usize| u64::from_le_bytes(b[at..at + 8].try_into().expect("eight bytes"));
        let (magic, sequence, len) = (&b[..8], number(8), number(16));
        if magic == MAGIC_OF_VERSION_2 {
            return (number(24) == xxh3_64(&b[..24])).then_some(Slot { sequence, len, witness: None });
        }
        let device_uuid = Uuid::from_bytes(b[40..56].try_into().expect("sixteen bytes"));
        let witness = Some(Witness { commit: number(24), superblock: number(32), device_uuid });
        (magic == MAGIC && number(56) == xxh3_64(&b[..56])).then_some(Slot { sequence, len, witness })
    }
}

/// Returns whether a region that begins with these bytes has a valid slot, or the note of a restore, of any device.
pub(crate) fn is_region(first_bytes: &[u8]) -> bool {
    let slot = |at: u64| first_bytes.get(at as usize..)?.first_chunk().and_then(Slot::decode);
    slot(0).or_else(|| slot(SLOT_STRIDE)).is_some() || unfinished::note_in(first_bytes).is_some()
}

/// Makes both slots of a region invalid. The caller syncs.
fn clear_slots(medium: &impl Medium, region: Region) -> Result<()> {
    medium.write_at(&[0; SLOT_BYTES], region.offset)?;
    medium.write_at(&[0; SLOT_BYTES], region.offset + SLOT_STRIDE)
}

/// The newest change of a region, as its slots have it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Witnessed {
    pub(crate) changes: u64,
    pub(crate) superblock: u64,
    pub(crate) device_uuid: Uuid,
    /// False if one of the slots is lost: the next change may have been recorded there.
    pub(crate) is_newest: bool,
}

/// The newest witness in a region's slots, whatever else is lost.
pub(crate) fn witness_of(medium: &impl Medium, region: Region) -> Result<Option<Witnessed>> {
    let slots = slots_of(medium, region)?;
    let newest = slots.into_iter().flatten().max_by_key(|slot| slot.sequence);
    let is_newest = matches!(slots, [Some(a), Some(b)] if a.sequence.abs_diff(b.sequence) == 1);
    let witness = newest.and_then(|slot| slot.witness);
    Ok(witness.map(|Witness { commit, superblock, device_uuid }| Witnessed {
        changes: commit,
        superblock,
        device_uuid,
        is_newest,
    }))
}

/// The valid slots of a region.
fn slots_of(medium: &impl Medium, region: Region) -> Result<[Option<Slot>; 2]> {
    let slot = |offset: u64| {
        let mut b = [0; SLOT_BYTES];
        medium.read_at(&mut b, region.offset + offset)?;
        let fits = |slot: &Slot| {
            slot.len <= region.len - HEADER_BYTES && slot.sequence < SEQUENCE_MAX && place(slot.sequence) == offset
        };
        Ok::<_, Error>(Slot::decode(&b).filter(fits))
    };
    Ok([slot(0)?, slot(SLOT_STRIDE)?])
}

/// Offset in the region of the slot with that sequence.
fn place(sequence: u64) -> u64 {
    if sequence % 2 == 1 { 0 } else { SLOT_STRIDE }
}

impl<M: Medium> RegionBackend<M> {
    /// Makes the region an empty file, whatever it held.
    ///
    /// # Errors
    /// Those of writing and syncing `medium`.
    pub fn format(medium: M, region: Region, owner: Owner) -> Result<RegionBackend<M>> {
        clear_slots(&medium, region)?;
        sync(&medium)?;
        let witness = Some(Witness { commit: 0, superblock: owner.sequence, device_uuid: owner.device_uuid });
        let newest = Slot { sequence: 0, len: 0, witness };
        let backend =
            RegionBackend { medium, region, owner, slot: Mutex::new(State { newest, other_is_valid: false }) };
        backend.write_both(&mut backend.slot(), 0)?;
        Ok(backend)
    }

    /// The file in the region.
    ///
    /// # Errors
    /// Those of reading and writing `medium`; [`ErrorKind::InvalidData`] if neither length slot is valid, or the newest
    /// says that the superblock is of another device or older than one that was durable.
    pub fn open(medium: M, region: Region, owner: Owner) -> Result<RegionBackend<M>> {
        let slots = slots_of(&medium, region)?;
        let at = region.offset;
        let Some(newest) = slots.into_iter().flatten().max_by_key(|slot| slot.sequence) else {
            return Err(invalid(format!("neither length slot of the metadata region at {at} is valid")));
        };
        if let Some(witness) = newest.witness {
            check_owner(at, witness, owner)?;
        }
        let commit = |s: &Slot| s.witness.map(|w| w.commit);
        let other_is_valid = slots.into_iter().flatten().any(|s| {
            let same = s.len == newest.len && s.witness.is_some() == newest.witness.is_some();
            same && s.sequence + 1 == newest.sequence && commit(&newest) <= commit(&s).map(|n| n.saturating_add(1))
        });
        let state = State { newest, other_is_valid };
        Ok(RegionBackend { medium, region, owner, slot: Mutex::new(state) })
    }

    fn slot(&self) -> std::sync::MutexGuard<'_, State> {
        // Nothing panics while it is held, and what it guards is plain numbers.
        self.slot.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn position(&self, offset: u64, len: usize) -> Result<u64> {
        let end = offset.checked_add(len as u64);
        if end.is_none_or(|end| end > self.slot().newest.len) {
            return Err(Error::new(ErrorKind::UnexpectedEof, "access beyond the metadata file's end"));
        }
        Ok(self.region.offset + HEADER_BYTES + offset)
    }

    fn zero(&self, from: u64, to: u64) -> Result<()> {
        let zeroes = vec![0; 64 << 10];
        let mut at = from;
        while at < to {
            let len = (to - at).min(zeroes.len() as u64);
            self.medium.write_at(&zeroes[..len as usize], self.region.offset + HEADER_BYTES + at)?;
            at += len;
        }
        sync(&self.medium)
    }

    /// Replaces the older slot, durably.
    fn write_slot(&self, state: &mut State, len: u64, commit: u64) -> Result<()> {
        let Owner { device_uuid, sequence: superblock } = self.owner;
        let witness = Some(Witness { commit, superblock, device_uuid });
        let next = Slot { sequence: state.newest.sequence + 1, len, witness };
        self.medium.write_at(&next.encode(), self.region.offset + place(next.sequence))?;
        sync(&self.medium)?;
        state.newest = next;
        Ok(())
    }

    /// Replaces the older slot, then the other.
    fn write_both(&self, state: &mut State, len: u64) -> Result<()> {
        let commit = state.newest.witness.map_or(0, |w| w.commit);
        state.other_is_valid = false;
        self.write_slot(state, len, commit)?;
        self.write_slot(state, len, commit)?;
        state.other_is_valid = true;
        Ok(())
    }
}

fn check_owner(at: u64, witness: Witness, owner: Owner) -> Result<()> {
    if witness.device_uuid != owner.device_uuid {
        let (found, expected) = (witness.device_uuid, owner.device_uuid);
        return Err(invalid(format!(
            "the metadata region at {at} is of the device {found}, the superblock of {expected}"
        )));
    }
    if witness.superblock > owner.sequence {
        let (noted, found) = (witness.superblock, owner.sequence);
        return Err(invalid(format!(
            "the superblock has sequence {found}, but {noted} was durable: an older one came back"
        )));
    }
    Ok(())
}

fn invalid(message: String) -> Error {
    Error::new(ErrorKind::InvalidData, message)
}

/// A file system that is full says so at the latest when writing. A *sync* that fails, with whatever error, may have dropped
/// what was written: it must not be taken for the full region that the store recovers from by itself.
fn sync(medium: &impl Medium) -> Result<()> {
    medium.sync().map_err(|e| match e.kind() {
        ErrorKind::StorageFull => Error::other(format!("cannot sync: {e}")),
        _ => e,
    })
}

/// The metadata store's storage: what redb asks of one, a bound, and a witness of the newest commit.
pub trait MetaStorage: StorageBackend {
    /// The longest that the file may get.
    fn capacity_bytes(&self) -> u64;

    /// Returns the newest commit that is known to have been durable; `None` if the storage's version doesn't record it.
    fn witnessed(&self) -> Option<u64>;

    /// Makes durable that `commit` is durable. Writes nothing if that is known already and would survive the loss of
    /// either slot.
    ///
    /// # Errors
    /// Those of writing and syncing.
    fn witness(&self, commit: u64) -> Result<()>;
}

impl<M: Medium> MetaStorage for RegionBackend<M> {
    fn capacity_bytes(&self) -> u64 {
        self.region.len - HEADER_BYTES
    }

    fn witnessed(&self) -> Option<u64> {
        self.slot().newest.witness.map(|w| w.commit)
    }

    fn witness(&self, commit: u64) -> Result<()> {
        let mut state = self.slot();
        let len = state.newest.len;
        // A restore's change skips numbers. The one before it must not be taken for the newest but one.
        let skips = state.newest.witness.is_some_and(|w| commit > w.commit.saturating_add(1));
        let is_behind = state.newest.witness.is_none_or(|w| w.superblock < self.owner.sequence);
        if !state.other_is_valid || is_behind || skips {
            self.write_slot(&mut state, len, commit)?;
            self.write_slot(&mut state, len, commit)?;
            state.other_is_valid = true;
            return Ok(());
        }
        let known = state.newest.witness.is_some_and(|w| w.commit == commit);
        if known { Ok(()) } else { self.write_slot(&mut state, len, commit) }
    }
}

impl<M: Medium> StorageBackend for RegionBackend<M> {
    fn len(&self) -> Result<u64> {
        Ok(self.slot().newest.len)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        self.medium.read_at(out, self.position(offset, out.len())?)
    }

    fn set_len(&self, len: u64) -> Result<()> {
        if len > self.capacity_bytes() {
            return Err(full(len, self.capacity_bytes()));
        }
        let mut state = self.slot();
        if len > state.newest.len {
            self.zero(state.newest.len, len)?; // bytes of an earlier, longer life must not come back
        }
        self.write_both(&mut state, len)
    }

    fn sync_data(&self) -> Result<()> {
        sync(&self.medium)
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.medium.write_at(data, self.position(offset, data.len())?)
    }
}

/// The error for a metadata file that would outgrow its bound.
pub(crate) fn full(wanted: u64, bound: u64) -> Error {
    let message = format!("the metadata region is full: {wanted} bytes are wanted, it holds {bound}");
    Error::new(ErrorKind::StorageFull, message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::superblock::RegionKind;

    const REGION: Region = Region { kind: RegionKind::Metadata, offset: 1 << 20, len: 1 << 20 };

    const OWNER: Owner = Owner { device_uuid: Uuid::from_u128(7), sequence: 2 };

    fn fresh() -> (File, RegionBackend) {
        let file = tempfile::tempfile().expect("a temporary file");
        file.set_len(4 << 20).expect("sparse");
        let backend = RegionBackend::format(file.try_clone().expect("dup"), REGION, OWNER).expect("formats");
        (file, backend)
    }

    #[test]
    fn grown_space_is_zero_and_the_region_is_the_bound() {
        let (file, backend) = fresh();
        file.write_all_at(&[7; 1 << 20], 1 << 20).expect("old bytes");
        let backend = {
            drop(backend);
            RegionBackend::format(file, REGION, OWNER).expect("formats")
        };
        backend.set_len(100_000).expect("fits");
        let mut b = vec![1; 100_000];
        backend.read(0, &mut b).expect("within");
        assert!(b.iter().all(|b| *b == 0));
        assert_eq!(backend.read(1, &mut b).expect_err("beyond").kind(), ErrorKind::UnexpectedEof);
        assert_eq!(backend.set_len(1 << 20).expect_err("too long").kind(), ErrorKind::StorageFull);
        assert_eq!(backend.len().expect("known"), 100_000);
    }

    #[test]
    fn a_lost_slot_leaves_the_length() {
        let (file, backend) = fresh();
        for len in [5000, 9000] {
            backend.set_len(len).expect("fits");
        }
        let reopen = || RegionBackend::open(file.try_clone().expect("dup"), REGION, OWNER);
        assert_eq!(reopen().expect("opens").len().expect("known"), 9000);
        for slot in [0, SLOT_STRIDE] {
            let mut before = [0; SLOT_BYTES];
            file.read_exact_at(&mut before, (1 << 20) + slot).expect("there");
            file.write_all_at(&[0xff; 5], (1 << 20) + 16 + slot).expect("tears a slot");
            assert_eq!(reopen().expect("opens").len().expect("known"), 9000);
            file.write_all_at(&before, (1 << 20) + slot).expect("restored");
        }
        file.write_all_at(&[0; SLOT_BYTES], 1 << 20).expect("lost");
        file.write_all_at(&[0; SLOT_BYTES], (1 << 20) + SLOT_STRIDE).expect("lost");
        assert_eq!(reopen().expect_err("no slot").kind(), ErrorKind::InvalidData);
    }

    /// Power is lost in either write of a change of length: the other slot holds.
    #[test]
    fn a_torn_length_leaves_the_one_before_or_the_new() {
        let (file, backend) = fresh();
        backend.set_len(5000).expect("fits");
        let slots = |file: &File| {
            [0, SLOT_STRIDE].map(|slot| {
                let mut b = [0; SLOT_BYTES];
                file.read_exact_at(&mut b, (1 << 20) + slot).expect("there");
                b
            })
        };
        let before = slots(&file);
        backend.set_len(9000).expect("fits");
        let after = slots(&file);
        let len_with = |[a, b]: [[u8; SLOT_BYTES]; 2]| {
            file.write_all_at(&a, 1 << 20).expect("written");
            file.write_all_at(&b, (1 << 20) + SLOT_STRIDE).expect("written");
            RegionBackend::open(file.try_clone().expect("dup"), REGION, OWNER).expect("opens").len().expect("known")
        };
        for cut in 0..SLOT_BYTES {
            let mut torn = before;
            torn[0][..cut].copy_from_slice(&after[0][..cut]);
            assert_eq!(len_with(torn), 5000, "the first slot, cut at {cut}");
            let mut torn = [after[0], before[1]];
            torn[1][..cut].copy_from_slice(&after[1][..cut]);
            assert_eq!(len_with(torn), 9000, "the second slot, cut at {cut}");
        }
    }

    #[test]
    fn another_device_and_an_older_superblock_are_refused() {
        let (file, _) = fresh();
        let open = |owner| RegionBackend::open(file.try_clone().expect("dup"), REGION, owner);
        let e = open(Owner { sequence: 1, ..OWNER }).expect_err("older");
        assert!(e.to_string().contains("has sequence 1, but 2 was durable"), "{e}");
        let e = open(Owner { device_uuid: Uuid::from_u128(8), ..OWNER }).expect_err("another");
        assert!(e.to_string().contains("is of the device"), "{e}");
        let backend = open(Owner { sequence: 3, ..OWNER }).expect("newer");
        backend.witness(4).expect("written");
        assert!(open(OWNER).is_err(), "the newer one is noted");
    }

    #[test]
    fn a_commit_is_witnessed_by_either_slot_but_for_the_last() {
        let (file, backend) = fresh();
        for commit in 1..=4 {
            backend.witness(commit).expect("written");
        }
        let reopen = || RegionBackend::open(file.try_clone().expect("dup"), REGION, OWNER).expect("opens");
        assert_eq!(reopen().witnessed(), Some(4));
        let newest = place(backend.slot().newest.sequence);
        file.write_all_at(&[0xff; 5], (1 << 20) + newest).expect("lost");
        let reopened = reopen();
        assert_eq!(reopened.witnessed(), Some(3));
        reopened.witness(4).expect("both are written");
        assert!(reopen().slot().other_is_valid);
    }
}
