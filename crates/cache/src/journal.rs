//! The journal: facts that the headers on the device don't have, in the order of their events (NI-M14, NI-M19).
//!
//! Records gather while a write is under way and go out together (a group commit), with FUA. When a half is full, the other begins
//! with a snapshot of all facts that are still needed. A caller that must not act before a record is durable waits for the record's
//! number.
//!
//! Each block is written to two places, and is durable when both have it. So a block that is corrupt in one place is read from the
//! other. A block that is whole in neither place was never durable, unless later data record that it was. Such data are a later
//! block ([`JournalBlock::since`]), or a chunk's header with the block's epoch. Then the journal is corrupt: it isn't taken for a
//! journal that ends there.

use crate::format::{JournalBlock, Record, records_per_block};
use crate::layout::Layout;
use std::collections::VecDeque;

/// Blocks in one write of records.
const BLOCKS_MAX: usize = 64;
/// Bytes in one write of a snapshot.
const PIECE_BYTES: usize = 1 << 20;

/// A write that the journal wants, in two places.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct JournalWrite {
    /// Both copies' places on the device.
    pub at: [u64; 2],
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
    /// Records that the write in flight makes durable, and the number of copies not yet written.
    writing: Option<(u64, u32)>,
    /// Writes of a snapshot that are still to be sent, in order, and the number of records that it covers.
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

    /// Orders a block that records how many chunks are durable, even if there is no other record to write.
    pub fn want_block(&mut self) {
        self.wants_block = true;
    }

    /// The number of chunks that the last block called durable.
    pub fn said(&self) -> u64 {
        self.said
    }

    /// True if no record waits and nothing is under way.
    pub fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.writing.is_none() && self.snapshot.is_empty() && !self.wants_block
    }

    /// True if a snapshot is being written.
    pub fn in_snapshot(&self) -> bool {
        !self.snapshot.is_empty() || (self.writing.is_some() && self.covers > self.durable)
    }

    /// Bytes written, and snapshots among them.
    pub fn written(&self) -> (u64, u64) {
        (self.written_bytes, self.snapshots)
    }

    fn blocks_per_half(&self) -> u32 {
        (self.layout.copy_bytes() / u64::from(self.layout.block_bytes)) as u32
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
        self.writing = Some((if self.snapshot.is_empty() { self.covers } else { self.durable }, 2));
        self.written_bytes += 2 * write.bytes.len() as u64;
        Some(write)
    }

    fn write_records(&mut self, blocks_max: usize, durable_chunks: u64) -> JournalWrite {
        let block_bytes = self.layout.block_bytes;
        let at = self.layout.copies_at(self.epoch).map(|at| at + u64::from(self.index) * u64::from(block_bytes));
        let (since, mut bytes) = (self.index, Vec::new());
        for i in 0..blocks_max {
            let n = records_per_block(block_bytes).min(self.queue.len());
            if n == 0 && i > 0 {
                break;
            }
            let records: Vec<Record> = self.queue.drain(..n).collect();
            bytes.extend(self.block(records, since, 0, durable_chunks));
        }
        self.writing = Some((self.pushed - self.queue.len() as u64, 2));
        self.written_bytes += 2 * bytes.len() as u64;
        JournalWrite { at, bytes }
    }

    fn block(&mut self, records: Vec<Record>, since: u32, snapshot: u8, durable: u64) -> Vec<u8> {
        let (salt, generation, epoch, index) = (self.layout.salt, self.generation, self.epoch, self.index);
        self.index += 1;
        JournalBlock { salt, epoch, index, since, snapshot, generation, durable, records }
            .encode(self.layout.block_bytes)
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
        assert!(blocks as u32 <= self.blocks_per_half(), "a copy of a half has room for a snapshot");
        let mut at = self.layout.copies_at(self.epoch);
        let (mut since, mut bytes) = (0, Vec::new());
        for i in 0..blocks {
            let part = &records[i * per_block..records.len().min((i + 1) * per_block)];
            let last = i + 1 == blocks;
            bytes.extend(self.block(part.to_vec(), since, 1 + u8::from(last), durable_chunks));
            if last || bytes.len() >= PIECE_BYTES {
                let write = JournalWrite { at, bytes: std::mem::take(&mut bytes) };
                at = at.map(|at| at + write.bytes.len() as u64);
                since = self.index;
                self.snapshot.push_back(write);
            }
        }
    }

    /// The write that was under way is on the device in one more place; true if that was the last.
    pub fn wrote(&mut self) -> bool {
        let (covers, places) = self.writing.as_mut().expect("one was under way");
        *places -= 1;
        if *places > 0 {
            return false;
        }
        self.durable = *covers;
        self.writing = None;
        true
    }
}

/// A journal's content, read back.
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

/// A journal that has lost some of its records.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Corrupt {
    /// The reason.
    pub why: String,
    /// An epoch that was never begun, as far as can be seen.
    pub next_epoch: u64,
    /// The highest number of a chunk that any block called durable.
    pub durable: u64,
}

/// Options of reading a journal; anything but the default is a planted mistake.
#[derive(Clone, Copy, Default, Debug)]
pub struct Reading {
    /// The older of two whole epochs is taken.
    pub older: bool,
    /// Their checksums are ignored.
    pub unchecked: bool,
    /// A corrupt block is taken for the journal's end, or for an epoch that never began.
    pub trusting: bool,
    /// Only the first copy is looked at.
    pub one_copy: bool,
}

/// Contents of one half, from its copies.
#[derive(Default)]
struct Half {
    epoch: Option<u64>,
    /// Its snapshot is whole.
    whole: bool,
    found: Found,
    /// A block that was durable and is whole in neither copy.
    hole: Option<u32>,
    highest: u64,
    durable: u64,
}

fn read_half(copies: [&[u8]; 2], parity: u64, layout: &Layout, how: Reading) -> Half {
    let block = layout.block_bytes as usize;
    let blocks = copies.map(|c| c.len() / block).into_iter().max().unwrap_or(0);
    let at = |copy: &[u8], i: usize| {
        let b = copy.get(i * block..(i + 1) * block)?;
        match how.unchecked {
            true => JournalBlock::decode_unchecked(b, layout.salt),
            false => JournalBlock::decode(b, layout.salt),
        }
    };
    let mut half = Half::default();
    // By place, those that belong there; of two that are whole that of the later epoch counts.
    let mut all: Vec<Option<JournalBlock>> = Vec::with_capacity(blocks);
    for i in 0..blocks {
        let found = copies.iter().take(if how.one_copy { 1 } else { 2 }).filter_map(|c| at(c, i));
        let mut best: Option<JournalBlock> = None;
        for b in found {
            half.highest = half.highest.max(b.epoch);
            half.durable = half.durable.max(b.durable);
            let here = b.index == i as u32 && b.epoch % 2 == parity;
            if here && best.as_ref().is_none_or(|x| b.epoch > x.epoch) {
                best = Some(b);
            }
        }
        all.push(best);
    }
    let Some(epoch) = all.iter().flatten().map(|b| b.epoch).max() else { return half };
    half.epoch = Some(epoch);
    let mut ended = None;
    for (i, b) in (0u32..).zip(all) {
        match b.filter(|b| b.epoch == epoch) {
            Some(b) if ended.is_none() => {
                half.whole |= b.snapshot == 2;
                half.found.generation = b.generation;
                half.found.durable = half.found.durable.max(b.durable);
                half.found.records.extend(b.records);
            }
            // What was durable when this was sent, and what proves that the snapshot was.
            Some(b) if ended.is_some_and(|end| b.since > end || (!half.whole && b.snapshot == 0)) => {
                half.hole = half.hole.or(ended);
            }
            Some(_) => {}
            None => ended = ended.or(Some(i)),
        }
    }
    half
}

/// Reads the two halves, each in two copies.
///
/// # Errors
/// If something is missing that was durable.
pub fn read(halves: [[&[u8]; 2]; 2], layout: &Layout, how: Reading) -> Result<Found, Corrupt> {
    let [even, odd] = [0, 1].map(|h| read_half(halves[h], h as u64, layout, how));
    let (highest, durable) = (even.highest.max(odd.highest), even.durable.max(odd.durable));
    let (newer, older) = if even.epoch > odd.epoch { (even, odd) } else { (odd, even) };
    let in_other_half = |epoch: Option<u64>| {
        let next = highest.saturating_add(1);
        next + u64::from(epoch.is_some_and(|e| e % 2 == next % 2))
    };
    let corrupt = |why: String| Corrupt { why, next_epoch: highest.saturating_add(2), durable };
    let named = |h: &Half| match (h.hole, h.epoch) {
        (Some(block), Some(epoch)) if !how.trusting => {
            Some(corrupt(format!("block {block} of epoch {epoch} of the journal is corrupt in both places")))
        }
        _ => None,
    };
    if let Some(corrupt) = named(&newer) {
        return Err(corrupt);
    }
    let half = if newer.whole && !(how.older && older.whole) { newer } else { older };
    if let Some(corrupt) = named(&half) {
        return Err(corrupt);
    }
    if !half.whole {
        return Err(corrupt("neither half of the journal begins with a whole snapshot".into()));
    }
    Ok(Found { next_epoch: in_other_half(half.epoch), ..half.found })
}

/// Reads the two halves of a device of version 2: one copy of each, and a block that isn't whole ends what is taken of it.
///
/// # Errors
/// If neither half begins with a whole snapshot.
pub fn read_2(halves: [&[u8]; 2], layout: &Layout) -> Result<Found, Corrupt> {
    let block = layout.block_bytes as usize;
    let mut best: Option<(u64, Found)> = None;
    let mut highest = 0;
    for half in halves {
        let (mut found, mut whole, mut epoch, mut in_order) = (Found::default(), false, None, true);
        for (i, bytes) in half.chunks_exact(block).enumerate() {
            // An earlier start may have begun to convert it.
            highest = highest.max(JournalBlock::decode(bytes, layout.salt).map_or(0, |b| b.epoch));
            let Some(b) = JournalBlock::decode_2(bytes, layout.salt) else {
                in_order = false;
                continue;
            };
            highest = highest.max(b.epoch);
            in_order &= b.index == i as u32 && epoch.is_none_or(|e| e == b.epoch);
            if !in_order {
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
    let Some((epoch, mut found)) = best else {
        let why = "neither half of the journal begins with a whole snapshot".into();
        return Err(Corrupt { why, next_epoch: highest + 2, durable: 0 });
    };
    // In the other half, whatever was begun there before.
    found.next_epoch = highest + 1 + u64::from((highest + 1) % 2 == epoch % 2);
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Shape;

    fn layout() -> Layout {
        Layout::new(8 << 20, 512, Shape { extent_bytes: 4096, weu_bytes: 32 << 10 }, 5).unwrap()
    }

    fn dead(n: u64) -> Record {
        Record::Dead { weu: n as u32 % 8, sequence: n, slot: 1 }
    }

    struct Disk(Vec<u8>);
    impl Disk {
        fn new() -> Disk {
            Disk(vec![0; layout().half_at(1) as usize + layout().half_bytes as usize])
        }
        fn put(&mut self, at: u64, bytes: &[u8]) {
            self.0[at as usize..at as usize + bytes.len()].copy_from_slice(bytes);
        }
        fn write(&mut self, w: &JournalWrite) {
            w.at.iter().for_each(|at| self.put(*at, &w.bytes));
        }
        fn read(&self) -> Result<Found, Corrupt> {
            let copy = |at: u64| &self.0[at as usize..][..layout().copy_bytes() as usize];
            read([0, 1].map(|h| layout().copies_at(h).map(copy)), &layout(), Reading::default())
        }
        /// One byte of a block of a copy is another.
        fn spoil(&mut self, copy: usize, half: u64, block: u64) {
            self.0[(layout().copies_at(half)[copy] + block * 512 + 99) as usize] ^= 4;
        }
    }

    fn write(disk: &mut Disk, j: &mut Journal, w: &JournalWrite) {
        disk.write(w);
        assert!(!j.wrote() && j.wrote(), "durable when both places have it");
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
                    write(&mut disk, &mut j, &w);
                }
                assert_eq!(j.durable(), wait_for);
                let found = disk.read().unwrap();
                assert_eq!((found.records.last(), found.durable), (all.last(), n));
                assert!(all.ends_with(&found.records[found.records.len().saturating_sub(100)..]));
            }
        }
        assert!(j.written().1 > 3, "{:?}", j.written());
    }

    /// With every slot of every WEU in it, a snapshot is followed by as many records before the next.
    #[test]
    fn a_full_table_leaves_room_for_records() {
        for block in [512, 4096] {
            let shape = Shape { extent_bytes: 4096, weu_bytes: 32 << 10 };
            let l = Layout::new(8 << 20, block, shape, 5).unwrap();
            let words = l.slots_max().div_ceil(64);
            let of_weu = |weu| {
                let bits = move |word| {
                    let bits = u64::MAX;
                    [Record::DeadBits { weu, word, bits }, Record::CleanBits { weu, word, bits }]
                };
                let least = Record::Least { weu, sequence: 1, suspect: false, confirmed: true };
                let head = [least, Record::Held { weu, sequence: 1, slots: l.slots_max() }];
                head.into_iter().chain((0..words).flat_map(bits))
            };
            let full: Vec<Record> = (0..l.weus).flat_map(of_weu).collect();
            let mut j = Journal::new(l, 0, 2);
            let end = |j: &mut Journal| while j.writing.is_some() && !j.wrote() {};
            while j.next_write(0, j.snapshots == 0, || full.clone()).is_some() {
                end(&mut j);
            }
            assert_eq!(j.snapshots, 1);
            // A block may hold one record only.
            let lone = (l.copy_bytes() / u64::from(block)) as usize - full.len().div_ceil(records_per_block(block));
            assert!(lone * records_per_block(block) >= full.len(), "{lone} blocks");
            let mut n = 0;
            while j.snapshots == 1 {
                for _ in 0..records_per_block(block) {
                    j.push(dead(n));
                    n += 1;
                }
                while j.next_write(0, false, || full.clone()).is_some() {
                    end(&mut j);
                }
            }
            assert!(n as usize >= full.len(), "{n} records until the next snapshot of {}", full.len());
        }
    }

    #[test]
    fn a_snapshot_that_is_not_whole_leaves_the_epoch_before() {
        let mut disk = Disk::new();
        let mut j = Journal::new(layout(), 0, 2);
        j.push(dead(1));
        let w = j.next_write(0, false, || vec![dead(1)]).unwrap();
        write(&mut disk, &mut j, &w);
        assert_eq!(disk.read().unwrap(), Found { next_epoch: 3, generation: 0, durable: 0, records: vec![dead(1)] });
        // The next start begins epoch 3, and gets half of its snapshot out.
        let mut again = Journal::new(layout(), 0, 3);
        let w = again.next_write(9, true, || (0..100).map(dead).collect()).unwrap();
        w.at.iter().for_each(|at| disk.put(at + 512, &w.bytes[512..]));
        let found = disk.read().unwrap();
        assert_eq!((found.next_epoch, found.records), (5, vec![dead(1)]), "epoch 3 is never used again");
        disk.write(&w);
        assert_eq!(disk.read().unwrap().records.len(), 100);
    }

    /// Twelve writes of one record each, in the epoch after another.
    fn twelve() -> (Disk, Journal) {
        let (mut disk, mut j) = (Disk::new(), Journal::new(layout(), 0, 2));
        for n in 0..12 {
            j.push(dead(n));
            let w = j.next_write(0, n == 0, || vec![dead(77)]).unwrap();
            write(&mut disk, &mut j, &w);
        }
        (disk, j)
    }

    #[test]
    fn a_block_that_is_corrupt_in_one_place_loses_nothing() {
        let (disk, _) = twelve();
        let all = disk.read().unwrap();
        assert_eq!((all.records.len(), all.records[11]), (12, dead(11)));
        for block in 0..12 {
            for copy in 0..2 {
                let mut rotted = Disk(disk.0.clone());
                rotted.spoil(copy, 0, block);
                // Another copy's neighbour, too.
                rotted.spoil(1 - copy, 0, (block + 1) % 12);
                assert_eq!(rotted.read().unwrap(), all, "copy {copy}, block {block}");
            }
        }
    }

    #[test]
    fn a_block_that_is_corrupt_in_both_places_is_no_end() {
        let (disk, mut j) = twelve();
        for block in 0..11 {
            let mut rotted = Disk(disk.0.clone());
            rotted.spoil(0, 0, block);
            rotted.spoil(1, 0, block);
            let corrupt = rotted.read().unwrap_err();
            assert!(corrupt.why.contains(&format!("block {block} of epoch 2")), "{corrupt:?}");
            assert!(corrupt.next_epoch > 2);
        }
        // The last write was never durable if it is whole nowhere: a power loss tears it in both places.
        let mut torn = Disk(disk.0.clone());
        (0..2).for_each(|copy| torn.spoil(copy, 0, 11));
        assert_eq!(torn.read().unwrap().records.last(), Some(&dead(10)));
        // Of several blocks of one write any may be missing.
        (0..100).for_each(|n| {
            j.push(dead(n));
        });
        let w = j.next_write(0, false, Vec::new).unwrap();
        assert!(w.bytes.len() == 4 * 512);
        let mut torn = Disk(disk.0);
        torn.write(&w);
        (0..2).for_each(|copy| torn.spoil(copy, 0, 13));
        assert_eq!(torn.read().unwrap().records.len(), 12 + 29);
        // Not one of the snapshot, if the epoch has more.
        (0..2).for_each(|copy| torn.spoil(copy, 0, 0));
        assert!(torn.read().unwrap_err().why.contains("block 0"));
    }

    #[test]
    fn an_older_version_of_a_block_or_another_one_is_none() {
        let (mut disk, mut j) = twelve();
        let before = disk.0.clone();
        // Epochs 3 and 4: the half is written again.
        for n in 0..2 {
            j.push(dead(n));
            let w = j.next_write(0, true, || vec![dead(50 + n)]).unwrap();
            write(&mut disk, &mut j, &w);
        }
        for n in 0..12 {
            j.push(dead(60 + n));
            let w = j.next_write(0, false, Vec::new).unwrap();
            write(&mut disk, &mut j, &w);
        }
        let all = disk.read().unwrap();
        assert_eq!((all.records.len(), all.records[0]), (13, dead(51)));
        let at = layout().copies_at(4);
        for block in 0..12 {
            let here = (at[1] + block * 512) as usize;
            let mut rotted = Disk(disk.0.clone());
            rotted.put(here as u64, &before[here..here + 512]);
            assert_eq!(rotted.read().unwrap(), all, "an older version of block {block}");
            let mut rotted = Disk(disk.0.clone());
            let other = (at[0] + (block + 1) % 12 * 512) as usize;
            rotted.put(here as u64, &disk.0[other..other + 512]);
            assert_eq!(rotted.read().unwrap(), all, "another block in the place of block {block}");
        }
    }
}
