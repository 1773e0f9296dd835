//! The block device below the file system, with a disk's semantics.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, IoSlice};
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

/// Bytes of a block, the file system's unit.
pub const BLOCK: usize = 4096;

/// One write: whole blocks from `block` on.
#[derive(Clone, Debug)]
pub struct Write {
    /// First block.
    pub block: u64,
    /// Each has [`BLOCK`] bytes. They are shared with whoever made them: no block is copied on its way to the device.
    pub data: Vec<Arc<[u8]>>,
}

impl Write {
    /// A write of whole blocks that lie one behind the other in memory.
    pub fn new(block: u64, bytes: &[u8]) -> Write {
        Write { block, data: bytes.chunks(BLOCK).map(Arc::from).collect() }
    }

    /// The block behind its last one.
    pub fn end(&self) -> u64 {
        self.block + self.data.len() as u64
    }
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

/// Slices of memory that one system call takes.
const SLICES_MAX: usize = 1024;

/// A file or a block device.
#[derive(Debug)]
pub struct FileDisk {
    file: File,
    blocks: u64,
    flushes: Flushes,
}

impl FileDisk {
    /// Takes a file of `bytes` bytes; a part of a block at its end isn't used.
    ///
    /// Clean pages leave the page cache: after a failed write-back it calls pages clean that the media doesn't have. A mount that took
    /// records from them would build on what the next loss of power takes away.
    pub fn new(file: File, bytes: u64) -> FileDisk {
        // Where it isn't possible nothing is cached, as on tmpfs.
        let _ = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed);
        FileDisk { file, blocks: bytes / BLOCK as u64, flushes: Flushes::default() }
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
        for w in writes {
            let mut offset = w.block * BLOCK as u64;
            for blocks in w.data.chunks(SLICES_MAX) {
                let mut slices: Vec<IoSlice> = blocks.iter().map(|b| IoSlice::new(b)).collect();
                let mut rest = &mut slices[..];
                while !rest.is_empty() {
                    match rustix::io::pwritev(&self.file, rest, offset) {
                        Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                        Ok(n) => {
                            offset += n as u64;
                            IoSlice::advance_slices(&mut rest, n);
                        }
                        Err(rustix::io::Errno::INTR) => {}
                        Err(e) => return Err(e.into()),
                    }
                }
            }
        }
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        self.flushes.flush(|| self.file.sync_data())
    }
}

/// Flushes of a file that several threads ask for. The kernel reports a write that it lost to one of them only, so one runs at a time,
/// for all that wait, and after one that failed all fail.
#[derive(Debug, Default)]
struct Flushes {
    state: Mutex<FlushState>,
    ended: Condvar,
}

#[derive(Debug, Default)]
struct FlushState {
    begun: u64,
    ended: u64,
    failed: Option<io::ErrorKind>,
}

impl Flushes {
    fn flush(&self, sync: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        // One that is under way may have begun before this one's writes.
        let needed = state.begun + 1;
        loop {
            if let Some(kind) = state.failed {
                return Err(io::Error::new(
                    kind,
                    "an earlier flush failed, and what it was to make durable may be lost",
                ));
            }
            if state.ended >= needed {
                return Ok(());
            }
            if state.begun == state.ended {
                break;
            }
            state = self.ended.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.begun += 1;
        drop(state);
        let synced = sync();
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.ended = state.begun;
        state.failed = synced.as_ref().err().map(io::Error::kind);
        self.ended.notify_all();
        synced
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
            for (at, data) in (w.block..).zip(&w.data) {
                if at >= self.blocks {
                    return Err(beyond_end());
                }
                content.insert(at, data.clone());
            }
        }
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicU32, Ordering};

    /// Results of two flushes that are asked for while another one is under way, which ends with `first`; and the number of their syncs.
    fn two_beside(flushes: &Flushes, first: io::Result<()>) -> (io::Result<()>, Vec<io::Result<()>>, u32) {
        let (begun, ends, syncs) = (Barrier::new(2), Barrier::new(2), AtomicU32::new(0));
        let sync = || {
            syncs.fetch_add(1, Ordering::SeqCst);
            Ok(())
        };
        let (first, others) = std::thread::scope(|s| {
            let held = || {
                begun.wait();
                ends.wait();
                first
            };
            let one = s.spawn(|| flushes.flush(held));
            begun.wait();
            let others = [(); 2].map(|()| s.spawn(|| flushes.flush(sync)));
            ends.wait();
            (one.join().expect("no panic"), others.map(|o| o.join().expect("no panic")))
        });
        (first, others.into(), syncs.into_inner())
    }

    /// The kernel reports a lost write to one that asks.
    #[test]
    fn a_flush_that_fails_fails_for_all_that_wait_and_for_later_ones() {
        let flushes = Flushes::default();
        let (first, others, syncs) = two_beside(&flushes, Err(io::Error::other("lost")));
        assert!(first.is_err() && others.iter().all(io::Result::is_err));
        assert!(flushes.flush(|| Ok(())).is_err());
        assert_eq!(syncs, 0);
    }

    /// Returns whether the page cache has a file's first block.
    fn is_cached(file: &File) -> bool {
        let mut block = [0; BLOCK];
        let mut into = [std::io::IoSliceMut::new(&mut block)];
        match rustix::io::preadv2(file, &mut into, 0, rustix::io::ReadWriteFlags::NOWAIT) {
            Ok(n) => n == BLOCK,
            Err(e) => {
                assert_eq!(e, rustix::io::Errno::AGAIN);
                false
            }
        }
    }

    #[test]
    fn what_was_cached_before_is_read_from_the_media() {
        let file = tempfile::tempfile().expect("a temporary file");
        let fill = || {
            file.write_all_at(&[1; BLOCK], 0).expect("written");
            file.sync_all().expect("synced");
            assert!(is_cached(&file));
        };
        fill();
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).expect("advice");
        if is_cached(&file) {
            println!("skipped: this file system has nothing but a page cache");
            return;
        }
        fill();
        let disk = FileDisk::new(file.try_clone().expect("a descriptor"), BLOCK as u64);
        assert!(!is_cached(&file));
        let mut block = [0; BLOCK];
        disk.read(0, &mut block).expect("read");
        assert_eq!(block, [1; BLOCK]);
    }

    /// More blocks than one system call takes, and a second write elsewhere.
    #[test]
    fn a_large_write_is_whole_and_in_order() {
        let blocks = SLICES_MAX as u64 * 2 + 5;
        let file = tempfile::tempfile().expect("a temporary file");
        let disk = FileDisk::new(file, (blocks + 3) * BLOCK as u64);
        let content: Vec<u8> = (0..blocks).flat_map(|i| [i.to_le_bytes(); BLOCK / 8].concat()).collect();
        let large = Write::new(1, &content);
        assert_eq!(large.end(), blocks + 1);
        disk.write(&[large, Write::new(blocks + 2, &[9; BLOCK])]).expect("written");
        let mut found = vec![1; (blocks as usize + 3) * BLOCK];
        disk.read(0, &mut found).expect("read");
        let expected = [&[0; BLOCK][..], &content, &[0; BLOCK], &[9; BLOCK]].concat();
        assert!(found == expected);
    }

    /// Writes that were made while a flush was under way aren't covered by it.
    #[test]
    fn a_flush_is_done_by_one_that_began_after_it_was_asked_for() {
        let (first, others, syncs) = two_beside(&Flushes::default(), Ok(()));
        assert!(first.is_ok() && others.iter().all(io::Result::is_ok));
        assert!((1..=2).contains(&syncs), "{syncs}");
    }
}
