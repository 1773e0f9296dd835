//! The journal: what the headers on the device don't say, in the order it happened (NI-M14, NI-M19).
//!
//! Records gather while a write is under way and go out together (a group commit), with FUA. When a half is full, the other
//! begins with a snapshot of all that still matters. Who must not act before a record is durable waits for its number.

use crate::format::{JournalBlock, Record, records_per_block};
use crate::layout::Layout;
use std::collections::VecDeque;

/// Blocks in one write of records.
const BLOCKS_MAX: usize = 64;
/// Bytes in one write of a snapshot.
const PIECE_BYTES: usize = 1 << 20;

/// A write that the journal wants.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct JournalWrite {
    /// Where on the device.
    pub at: u64,
    /// Whole blocks.
    pub bytes: Vec<u8>,
}

/// See the module's documentation.
pub struct Journal {
    layout: Layout,
    generation: u16,
    epoch: u64,
    /// The half's next block.
    index: u32,
    queue: VecDeque<Record>,
    /// Records ever pushed, and of those durable.
    pushed: u64,
    durable: u64,
    /// What the write under way makes durable.
    writing: Option<u64>,
    /// What is still to be written of a snapshot, in order, and the records it covers.
    snapshot: VecDeque<JournalWrite>,
    covers: u64,
    /// A block is wanted for what it says beside records.
    wants_block: bool,
    /// The number of chunks that the last block called durable.
    said: u64,
    written_bytes: u64,
    snapshots: u64,
}

impl Journal {
    /// A journal that begins epoch `epoch` with a snapshot, as soon as something is written.
    pub fn new(layout: Layout, generation: u16, epoch: u64) -> Journal {
        Journal {
            layout,
            generation,
            epoch: epoch - 1,
            index: u32::MAX, // the half before is full, so to say
            queue: VecDeque::new(),
            pushed: 0,
            durable: 0,
            writing: None,
            snapshot: VecDeque::new(),
            covers: 0,
            wants_block: false,
            said: 0,
            written_bytes: 0,
            snapshots: 0,
        }
    }

    /// Adds a record; it is durable when [`Journal::durable`] has reached the returned number.
    pub fn push(&mut self, record: Record) -> u64 {
        self.queue.push_back(record);
        self.pushed += 1;
        self.pushed
    }

    /// Records pushed so far.
    pub fn pushed(&self) -> u64 {
        self.pushed
    }

    /// Records durable.
    pub fn durable(&self) -> u64 {
        self.durable
    }

    /// Has the next write tell how many chunks are durable, though there may be nothing else to say.
    pub fn want_block(&mut self) {
        self.wants_block = true;
    }

    /// The number of chunks that the last block called durable.
    pub fn said(&self) -> u64 {
        self.said
    }

    /// Nothing waits and nothing is under way?
    pub fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.writing.is_none() && self.snapshot.is_empty() && !self.wants_block
    }

    /// Is a snapshot being written?
    pub fn in_snapshot(&self) -> bool {
        !self.snapshot.is_empty() || (self.writing.is_some() && self.covers > self.durable)
    }

    /// Bytes written, and snapshots among them.
    pub fn written(&self) -> (u64, u64) {
        (self.written_bytes, self.snapshots)
    }

    fn blocks_per_half(&self) -> u32 {
        (self.layout.half_bytes / u64::from(self.layout.block_bytes)) as u32
    }

    /// The next write, unless one is under way. `durable_chunks` goes into each block; `snapshot` tells all that still matters,
    /// if that's needed. With `force` a snapshot is begun even if there is nothing to record.
    pub fn next_write(
        &mut self,
        durable_chunks: u64,
        force: bool,
        snapshot: impl FnOnce() -> Vec<Record>,
    ) -> Option<JournalWrite> {
        if self.writing.is_some() {
            return None;
        }
        if self.snapshot.is_empty() {
            if self.queue.is_empty() && !force && !self.wants_block {
                return None;
            }
            (self.wants_block, self.said) = (false, durable_chunks);
            let room = self.blocks_per_half().saturating_sub(self.index) as usize;
            if room > 0 && !force {
                return Some(self.write_records(room.min(BLOCKS_MAX), durable_chunks));
            }
            self.begin_epoch(snapshot(), durable_chunks);
        }
        let write = self.snapshot.pop_front().expect("there is some");
        // Only the last piece makes the snapshot, and all that it covers, count.
        self.writing = Some(if self.snapshot.is_empty() { self.covers } else { self.durable });
        self.written_bytes += write.bytes.len() as u64;
        Some(write)
    }

    fn write_records(&mut self, blocks_max: usize, durable_chunks: u64) -> JournalWrite {
        let block_bytes = self.layout.block_bytes;
        let at = self.layout.half_at(self.epoch) + u64::from(self.index) * u64::from(block_bytes);
        let mut bytes = Vec::new();
        for i in 0..blocks_max {
            let n = records_per_block(block_bytes).min(self.queue.len());
            if n == 0 && i > 0 {
                break;
            }
            let records: Vec<Record> = self.queue.drain(..n).collect();
            bytes.extend(self.block(records, 0, durable_chunks));
        }
        self.writing = Some(self.pushed - self.queue.len() as u64);
        self.written_bytes += bytes.len() as u64;
        JournalWrite { at, bytes }
    }

    fn block(&mut self, records: Vec<Record>, snapshot: u8, durable: u64) -> Vec<u8> {
        let (salt, generation, epoch, index) = (self.layout.salt, self.generation, self.epoch, self.index);
        self.index += 1;
        JournalBlock { salt, epoch, index, snapshot, generation, durable, records }.encode(self.layout.block_bytes)
    }

    fn begin_epoch(&mut self, records: Vec<Record>, durable_chunks: u64) {
        self.epoch += 1;
        self.index = 0;
        self.snapshots += 1;
        // The snapshot says what the records that wait would.
        self.queue.clear();
        self.covers = self.pushed;
        let per_block = records_per_block(self.layout.block_bytes);
        let blocks = records.len().div_ceil(per_block).max(1);
        assert!((blocks as u32) < self.blocks_per_half(), "a half has room for a snapshot");
        let mut at = self.layout.half_at(self.epoch);
        let mut bytes = Vec::new();
        for i in 0..blocks {
            let part = &records[i * per_block..records.len().min((i + 1) * per_block)];
            let last = i + 1 == blocks;
            bytes.extend(self.block(part.to_vec(), 1 + u8::from(last), durable_chunks));
            if last || bytes.len() >= PIECE_BYTES {
                let write = JournalWrite { at, bytes: std::mem::take(&mut bytes) };
                at += write.bytes.len() as u64;
                self.snapshot.push_back(write);
            }
        }
    }

    /// The write that was under way is on the device.
    pub fn wrote(&mut self) {
        self.durable = self.writing.take().expect("one was under way");
    }
}

/// What a journal says, read back.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Found {
    /// The epoch to begin next: none of its number was ever begun, and it doesn't overwrite what was found.
    pub next_epoch: u64,
    /// The generation it was written under.
    pub generation: u16,
    /// Chunks with a lower number were durable.
    pub durable: u64,
    /// All that happened, in order.
    pub records: Vec<Record>,
}

/// Reads the two halves. With `any_order` blocks are believed wherever they stand (a planted mistake).
///
/// # Errors
/// If neither half begins with a whole snapshot.
pub fn read(halves: [&[u8]; 2], layout: &Layout, any_order: bool) -> Result<Found, String> {
    let block = layout.block_bytes as usize;
    let mut best: Option<(u64, Found)> = None;
    let mut highest = 0;
    for half in halves {
        let mut found = Found::default();
        let mut whole = false;
        let mut epoch = None;
        let mut in_order = true;
        for (i, bytes) in half.chunks_exact(block).enumerate() {
            let Some(b) = JournalBlock::decode(bytes, layout.salt) else {
                in_order = false;
                continue;
            };
            highest = highest.max(b.epoch);
            in_order &= b.index == i as u32 && epoch.is_none_or(|e| e == b.epoch);
            if !in_order && !any_order {
                continue;
            }
            epoch = Some(b.epoch);
            whole |= b.snapshot == 2;
            found.generation = b.generation;
            found.durable = found.durable.max(b.durable);
            found.records.extend(b.records);
        }
        if let Some(epoch) = epoch
            && whole
            && best.as_ref().is_none_or(|(e, _)| epoch > *e)
        {
            best = Some((epoch, found));
        }
    }
    let (epoch, mut found) = best.ok_or("its journal can't be read: neither half begins with a whole snapshot")?;
    // In the other half, whatever was begun there before.
    found.next_epoch = highest + 1 + u64::from((highest + 1) % 2 == epoch % 2);
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Shape;

    fn layout() -> Layout {
        Layout::new(2 << 20, 512, Shape { extent_bytes: 4096, weu_bytes: 32 << 10 }, 5).unwrap()
    }

    fn dead(n: u64) -> Record {
        Record::Dead { weu: n as u32 % 8, sequence: n, slot: 1 }
    }

    struct Disk(Vec<u8>);
    impl Disk {
        fn new() -> Disk {
            Disk(vec![0; layout().half_at(1) as usize + layout().half_bytes as usize])
        }
        fn write(&mut self, w: &JournalWrite) {
            self.0[w.at as usize..w.at as usize + w.bytes.len()].copy_from_slice(&w.bytes);
        }
        fn read(&self) -> Result<Found, String> {
            let half = |h| &self.0[layout().half_at(h) as usize..][..layout().half_bytes as usize];
            read([half(0), half(1)], &layout(), false)
        }
    }

    #[test]
    fn what_was_written_is_read_back_through_many_epochs() {
        let mut disk = Disk::new();
        let mut j = Journal::new(layout(), 0, 2);
        let mut all = Vec::new();
        let mut wait_for = 0;
        for n in 0..20_000u64 {
            all.push(dead(n));
            wait_for = wait_for.max(j.push(dead(n)));
            if n % 7 == 0 {
                // The snapshot keeps the last 100 only, as if the rest no longer mattered.
                let keep = all[all.len().saturating_sub(100)..].to_vec();
                while let Some(w) = j.next_write(n, false, || keep.clone()) {
                    disk.write(&w);
                    j.wrote();
                }
                assert_eq!(j.durable(), wait_for);
                let found = disk.read().unwrap();
                assert_eq!((found.records.last(), found.durable), (all.last(), n));
                assert!(all.ends_with(&found.records[found.records.len().saturating_sub(100)..]));
            }
        }
        assert!(j.written().1 > 3, "{:?}", j.written());
    }

    #[test]
    fn a_snapshot_that_is_not_whole_leaves_the_epoch_before() {
        let mut disk = Disk::new();
        let mut j = Journal::new(layout(), 0, 2);
        j.push(dead(1));
        let w = j.next_write(0, false, || vec![dead(1)]).unwrap();
        disk.write(&w);
        j.wrote();
        assert_eq!(disk.read().unwrap(), Found { next_epoch: 3, generation: 0, durable: 0, records: vec![dead(1)] });
        // The next start begins epoch 3, and gets half of its snapshot out.
        let mut again = Journal::new(layout(), 0, 3);
        let w = again.next_write(9, true, || (0..100).map(dead).collect()).unwrap();
        disk.write(&JournalWrite { at: w.at + 512, bytes: w.bytes[512..].to_vec() });
        let found = disk.read().unwrap();
        assert_eq!((found.next_epoch, found.records), (5, vec![dead(1)]), "epoch 3 is never used again");
        disk.write(&w);
        assert_eq!(disk.read().unwrap().records.len(), 100);
    }

    #[test]
    fn a_lost_block_ends_what_is_believed() {
        let mut disk = Disk::new();
        let mut j = Journal::new(layout(), 0, 2);
        for n in 0..12 {
            j.push(dead(n));
            let w = j.next_write(0, false, Vec::new).unwrap();
            if n != 6 {
                disk.write(&w);
            }
            j.wrote();
        }
        assert_eq!(disk.read().unwrap().records.last(), Some(&dead(5)));
        assert!(read([&[], &[]], &layout(), false).is_err());
    }
}
