//! The metadata region as the metadata store's storage: a file of bounded length inside a device.
//!
//! ```text
//! region    0  length slot A: magic, sequence, length, xxh3-64 }  the valid one with the higher sequence holds
//!        4096  length slot B                                   }
//!        8192  the file's bytes
//! ```
//! Changing the length writes the older slot and syncs: torn, it leaves the other and so the old length, as a file
//! system's interrupted `ftruncate` would.

use crate::superblock::Region;
use redb::StorageBackend;
use std::fs::File;
use std::io::{Error, ErrorKind, Result};
use std::os::unix::fs::FileExt;
use std::sync::Mutex;
use xxhash_rust::xxh3::xxh3_64;

const SLOT_MAGIC: &[u8; 8] = b"PLIMMETA";
const SLOT_STRIDE: u64 = 4096;
const SLOT_BYTES: usize = 32;
const HEADER_BYTES: u64 = 2 * SLOT_STRIDE;

/// See the module's documentation.
#[derive(Debug)]
pub struct RegionBackend {
    file: File,
    region: Region,
    slot: Mutex<Slot>,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    sequence: u64,
    len: u64,
}

impl Slot {
    fn encode(self) -> [u8; SLOT_BYTES] {
        let mut b = [0; SLOT_BYTES];
        b[..8].copy_from_slice(SLOT_MAGIC);
        b[8..16].copy_from_slice(&self.sequence.to_le_bytes());
        b[16..24].copy_from_slice(&self.len.to_le_bytes());
        let checksum = xxh3_64(&b[..24]);
        b[24..].copy_from_slice(&checksum.to_le_bytes());
        b
    }

    fn decode(b: &[u8; SLOT_BYTES]) -> Option<Slot> {
        let number = |at: usize| u64::from_le_bytes(b[at..at + 8].try_into().expect("eight bytes"));
        let valid = &b[..8] == SLOT_MAGIC && number(24) == xxh3_64(&b[..24]);
        valid.then(|| Slot { sequence: number(8), len: number(16) })
    }
}

impl RegionBackend {
    /// Makes the region an empty file, whatever it held.
    ///
    /// # Errors
    /// Those of writing and syncing `file`.
    pub fn format(file: File, region: Region) -> Result<RegionBackend> {
        let slot = Slot { sequence: 1, len: 0 };
        file.write_all_at(&slot.encode(), region.offset)?;
        file.write_all_at(&[0; SLOT_BYTES], region.offset + SLOT_STRIDE)?;
        file.sync_data()?;
        Ok(RegionBackend { file, region, slot: Mutex::new(slot) })
    }

    /// The file in the region.
    ///
    /// # Errors
    /// Those of reading `file`; [`ErrorKind::InvalidData`] if neither length slot is valid.
    pub fn open(file: File, region: Region) -> Result<RegionBackend> {
        let read_slot = |offset| {
            let mut b = [0; SLOT_BYTES];
            file.read_exact_at(&mut b, region.offset + offset)?;
            Ok::<_, Error>(Slot::decode(&b).filter(|slot| slot.len <= region.len - HEADER_BYTES))
        };
        let slots = [read_slot(0)?, read_slot(SLOT_STRIDE)?];
        let Some(slot) = slots.into_iter().flatten().max_by_key(|slot| slot.sequence) else {
            let message = format!("neither length slot of the metadata region at {} is valid", region.offset);
            return Err(Error::new(ErrorKind::InvalidData, message));
        };
        Ok(RegionBackend { file, region, slot: Mutex::new(slot) })
    }

    /// The longest that the file may get.
    pub fn capacity_bytes(&self) -> u64 {
        self.region.len - HEADER_BYTES
    }

    fn slot(&self) -> std::sync::MutexGuard<'_, Slot> {
        // Nothing panics while it is held, and what it guards is two plain numbers.
        self.slot.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn position(&self, offset: u64, len: usize) -> Result<u64> {
        let end = offset.checked_add(len as u64);
        if end.is_none_or(|end| end > self.slot().len) {
            return Err(Error::new(ErrorKind::UnexpectedEof, "access beyond the metadata file's end"));
        }
        Ok(self.region.offset + HEADER_BYTES + offset)
    }

    fn zero(&self, from: u64, to: u64) -> Result<()> {
        let zeroes = vec![0; 64 << 10];
        let mut at = from;
        while at < to {
            let len = (to - at).min(zeroes.len() as u64);
            self.file.write_all_at(&zeroes[..len as usize], self.region.offset + HEADER_BYTES + at)?;
            at += len;
        }
        sync(&self.file)
    }
}

/// A file system that is full says so at the latest when writing. A *sync* that fails, with whatever error, may have dropped
/// what was written: it must not be taken for the full region that the store recovers from by itself.
fn sync(file: &File) -> Result<()> {
    file.sync_data().map_err(|e| match e.kind() {
        ErrorKind::StorageFull => Error::other(format!("cannot sync: {e}")),
        _ => e,
    })
}

impl StorageBackend for RegionBackend {
    fn len(&self) -> Result<u64> {
        Ok(self.slot().len)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        self.file.read_exact_at(out, self.position(offset, out.len())?)
    }

    fn set_len(&self, len: u64) -> Result<()> {
        if len > self.capacity_bytes() {
            return Err(full(len, self.capacity_bytes()));
        }
        let mut slot = self.slot();
        if len > slot.len {
            self.zero(slot.len, len)?; // bytes of an earlier, longer life must not come back
        }
        let next = Slot { sequence: slot.sequence + 1, len };
        let at = if next.sequence % 2 == 1 { 0 } else { SLOT_STRIDE };
        self.file.write_all_at(&next.encode(), self.region.offset + at)?;
        sync(&self.file)?;
        *slot = next;
        Ok(())
    }

    fn sync_data(&self) -> Result<()> {
        sync(&self.file)
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.file.write_all_at(data, self.position(offset, data.len())?)
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

    fn fresh() -> (File, RegionBackend) {
        let file = tempfile::tempfile().expect("a temporary file");
        file.set_len(4 << 20).expect("sparse");
        let backend = RegionBackend::format(file.try_clone().expect("dup"), REGION).expect("formats");
        (file, backend)
    }

    #[test]
    fn grown_space_is_zero_and_the_region_is_the_bound() {
        let (file, backend) = fresh();
        file.write_all_at(&[7; 1 << 20], 1 << 20).expect("old bytes");
        let backend = {
            drop(backend);
            RegionBackend::format(file, REGION).expect("formats")
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
    fn a_torn_length_leaves_the_one_before() {
        let (file, backend) = fresh();
        for len in [5000, 9000] {
            backend.set_len(len).expect("fits");
        }
        let reopen = || RegionBackend::open(file.try_clone().expect("dup"), REGION);
        assert_eq!(reopen().expect("opens").len().expect("known"), 9000);
        file.write_all_at(&[0xff; 5], (1 << 20) + 16).expect("tears slot A, which has sequence 3");
        assert_eq!(reopen().expect("opens").len().expect("known"), 5000);
        file.write_all_at(&[0xff; 5], (1 << 20) + 16 + SLOT_STRIDE).expect("tears slot B too");
        assert_eq!(reopen().expect_err("no slot").kind(), ErrorKind::InvalidData);
    }
}
