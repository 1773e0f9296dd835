//! A file behind a volatile write cache, for testing: a killed process loses what it hadn't flushed, torn and out of
//! order.
//!
//! Writes are kept in memory by sector. At random (seeded) some of the sectors go to the file early, alone and in any
//! order. A flush writes them all and syncs. So `kill -9` finds the file as a power cut would find a disk with a
//! write cache. Slow and synchronous: correctness is its only purpose.

use super::device::FileDevice;
use plimsoll_base::{BufMut, Data, Io, IoError, IoFlags, Op, Outcome, Rng, StatusExtent};
use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::FileExt;

const SECTOR: u64 = 512;

/// See the module's documentation.
pub struct VolatileFile {
    /// The file, opened without direct I/O (sectors are written one by one).
    pub inner: FileDevice,
    unflushed: BTreeMap<u64, [u8; SECTOR as usize]>,
    rng: Rng,
    /// Acknowledge flushes without making anything durable: a planted bug that a test must find.
    pub flush_lies: bool,
    /// Ignore FUA, which a test must find.
    pub fua_lies: bool,
}

impl VolatileFile {
    /// A cache over `inner`; `seed` decides which sectors go out early.
    pub fn new(inner: FileDevice, seed: u64) -> VolatileFile {
        let rng = Rng::new(seed, "volatile file");
        VolatileFile { inner, unflushed: BTreeMap::new(), rng, flush_lies: false, fua_lies: false }
    }

    /// Carries out a request.
    pub fn apply(&mut self, io: &Io) -> (Outcome, Data) {
        let result = match io.op {
            Op::Read => return self.read(io),
            Op::Write | Op::WriteZeroes | Op::Trim => self.write(io),
            Op::Flush if self.flush_lies => Ok(()),
            Op::Flush => self.flush(),
            Op::Cache => Ok(()),
            Op::BlockStatus => {
                let all = StatusExtent { len: io.len, hole: false, zero: false };
                return (Outcome::Done, Data::Status(vec![all].into()));
            }
        };
        (result.map_or(Outcome::Failed(IoError::Device), |()| Outcome::Done), Data::Absent)
    }

    fn read(&self, io: &Io) -> (Outcome, Data) {
        let mut buf = BufMut::zeroed(io.len as usize);
        if self.inner.file.read_exact_at(buf.as_mut_slice(), self.inner.start + io.offset).is_err() {
            return (Outcome::Failed(IoError::Device), Data::Absent);
        }
        for (s, bytes) in self.unflushed.range(io.offset / SECTOR..io.end() / SECTOR) {
            let at = (s * SECTOR - io.offset) as usize;
            buf.as_mut_slice()[at..at + SECTOR as usize].copy_from_slice(bytes);
        }
        (Outcome::Done, Data::Bytes(buf.freeze()))
    }

    fn write(&mut self, io: &Io) -> io::Result<()> {
        let mut bytes = vec![0; io.len as usize];
        if io.op == Op::Write {
            io.data.copy_to(&mut bytes);
        }
        let sectors = bytes.chunks_exact(SECTOR as usize).map(|c| c.try_into().expect("a sector"));
        for (s, sector) in (io.offset / SECTOR..).zip(sectors) {
            self.unflushed.insert(s, sector);
        }
        if io.flags.has(IoFlags::FUA) && !self.fua_lies {
            for s in io.offset / SECTOR..io.end() / SECTOR {
                self.write_out(s)?;
            }
            return self.inner.file.sync_data();
        }
        self.leak()
    }

    /// Lets a few random sectors reach the file out of their turn.
    fn leak(&mut self) -> io::Result<()> {
        for _ in 0..self.rng.below(3) {
            let nth = self.rng.below(self.unflushed.len().max(1) as u64) as usize;
            if let Some(&s) = self.unflushed.keys().nth(nth.min(500)) {
                self.write_out(s)?;
            }
        }
        Ok(())
    }

    fn write_out(&mut self, s: u64) -> io::Result<()> {
        match self.unflushed.remove(&s) {
            Some(bytes) => self.inner.file.write_all_at(&bytes, self.inner.start + s * SECTOR),
            None => Ok(()),
        }
    }

    /// Writes everything out and syncs.
    pub fn flush(&mut self) -> io::Result<()> {
        while let Some((&s, _)) = self.unflushed.first_key_value() {
            self.write_out(s)?;
        }
        self.inner.file.sync_data()
    }
}
