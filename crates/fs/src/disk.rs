//! The block device below the file system, with a disk's semantics.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex};

/// Bytes of a block, the file system's unit.
pub const BLOCK: usize = 4096;

/// One write: whole blocks from `block` on.
#[derive(Clone, Debug)]
pub struct Write {
    /// First block.
    pub block: u64,
    /// A multiple of [`BLOCK`] bytes.
    pub data: Vec<u8>,
}

/// A block device. An acknowledged write may be lost, torn or overtaken by later ones until a flush ends.
pub trait Disk: Send + Sync {
    /// Capacity in blocks.
    fn blocks(&self) -> u64;
    /// Reads whole blocks.
    ///
    /// # Errors
    /// If the device fails or the range is beyond its end.
    fn read(&self, block: u64, into: &mut [u8]) -> io::Result<()>;
    /// Performs all writes, in any order. Returns when each is acknowledged.
    ///
    /// # Errors
    /// If one fails. Some of the others may have been done.
    fn write(&self, writes: &[Write]) -> io::Result<()>;
    /// Returns when every write acknowledged before is on the media.
    ///
    /// # Errors
    /// If any of them may be lost.
    fn flush(&self) -> io::Result<()>;
}

/// A file or a block device.
#[derive(Debug)]
pub struct FileDisk {
    file: File,
    blocks: u64,
}

impl FileDisk {
    /// Takes a file of `bytes` bytes; a part of a block at its end isn't used.
    pub fn new(file: File, bytes: u64) -> FileDisk {
        FileDisk { file, blocks: bytes / BLOCK as u64 }
    }
}

impl Disk for FileDisk {
    fn blocks(&self) -> u64 {
        self.blocks
    }

    fn read(&self, block: u64, into: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(into, block * BLOCK as u64)
    }

    fn write(&self, writes: &[Write]) -> io::Result<()> {
        writes.iter().try_for_each(|w| self.file.write_all_at(&w.data, w.block * BLOCK as u64))
    }

    fn flush(&self) -> io::Result<()> {
        self.file.sync_data()
    }
}

/// Blocks in memory; what was never written reads as zeroes.
#[derive(Debug, Default)]
pub struct MemDisk {
    blocks: u64,
    content: Mutex<BTreeMap<u64, Arc<[u8]>>>,
}

impl MemDisk {
    /// An empty disk of `blocks` blocks.
    pub fn new(blocks: u64) -> MemDisk {
        MemDisk { blocks, content: Mutex::default() }
    }

    /// A disk with content.
    pub fn with(blocks: u64, content: BTreeMap<u64, Arc<[u8]>>) -> MemDisk {
        MemDisk { blocks, content: Mutex::new(content) }
    }

    /// A copy of all that was written.
    pub fn content(&self) -> BTreeMap<u64, Arc<[u8]>> {
        self.content.lock().expect("no panic under the lock").clone()
    }
}

pub(crate) fn beyond_end() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "beyond the device's end")
}

impl Disk for MemDisk {
    fn blocks(&self) -> u64 {
        self.blocks
    }

    fn read(&self, block: u64, into: &mut [u8]) -> io::Result<()> {
        let content = self.content.lock().expect("no panic under the lock");
        for (i, part) in into.chunks_mut(BLOCK).enumerate() {
            let at = block + i as u64;
            if at >= self.blocks {
                return Err(beyond_end());
            }
            match content.get(&at) {
                Some(data) => part.copy_from_slice(data),
                None => part.fill(0),
            }
        }
        Ok(())
    }

    fn write(&self, writes: &[Write]) -> io::Result<()> {
        let mut content = self.content.lock().expect("no panic under the lock");
        for w in writes {
            for (i, part) in w.data.chunks(BLOCK).enumerate() {
                let at = w.block + i as u64;
                if at >= self.blocks {
                    return Err(beyond_end());
                }
                content.insert(at, part.into());
            }
        }
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }
}
