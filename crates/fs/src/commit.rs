//! Transactions: what is written in which order, in each journaling mode, and the table of blocks whose newest copy is in a log.
//!
//! ```text
//! ordered    data to its place ─ flush ─ record(metadata) ─ flush ─ durable
//! data                                   record(data, metadata) ─ flush ─ durable
//! adaptive   long runs to their place ─ flush ─ record(short runs, metadata) ─ flush ─ durable
//! manylogs   the same, the record in the log nearest the disk's head
//! ```
//! A record has checksums of all its blocks, so that no flush is needed between its header and its blocks. Rules:
//! 1. A record counts only if all earlier ones do. Records may be written at the same time; they are durable in order.
//! 2. A freed block is given away only when the record that frees it is durable.
//! 3. When data goes to its place while the table has a copy of the block, the record revokes the copy.
//! 4. A checkpoint runs only while no record is under way: table and records agree. The logs are empty once the superblock, which
//!    numbers the last record that counts no more, is durable twice.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use rustix::io::Errno;

use crate::disk::{BLOCK, Disk, Write};
use crate::error::{Error, Result, device};
use crate::format::{ANYWHERE, INODES_PER_BLOCK, Mode, Record, RecordEntry, escaped, unescape};
use crate::fs::{Fs, Node, Planted};

/// Inodes that a change changes at most: a rename's directories, the file, the one that it replaces.
const INODES_OF_A_CHANGE: u64 = 4;

/// A log: records from its start, one behind the other.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Log {
    pub start: u64,
    pub len: u64,
    pub used: u64,
}

/// Place of a block's newest copy.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Logged {
    pub at: u64,
    pub anywhere: bool,
    /// The log has it without a record's magic.
    pub escaped: bool,
}

/// The logs and what is in them.
#[derive(Default)]
pub(crate) struct Journal {
    pub logs: Vec<Log>,
    /// By the block's own place (the MTL table).
    pub table: BTreeMap<u64, Logged>,
    pub next_seq: u64,
    pub durable_seq: u64,
    /// Durable, but an earlier record isn't yet.
    done: BTreeSet<u64>,
    /// Content of blocks on their way, with the record's number.
    flying: BTreeMap<u64, (u64, Arc<[u8]>)>,
    /// Blocks of each record on its way.
    homes: BTreeMap<u64, Vec<u64>>,
    /// Data on its way to its place.
    direct: BTreeMap<u64, u64>,
    revokes: BTreeSet<u64>,
    pub checkpoints: u64,
}

impl Journal {
    /// Logs with a table, all of it durable up to a record.
    pub fn new(logs: Vec<Log>, table: BTreeMap<u64, Logged>, last: u64) -> Journal {
        Journal { logs, table, next_seq: last + 1, durable_seq: last, ..Journal::default() }
    }

    pub fn place(&self, home: u64) -> u64 {
        self.table.get(&home).map_or(home, |l| l.at)
    }

    /// Gives blocks that were read from where [`Journal::place`] has them the content of their file.
    pub fn restore(&self, home: u64, blocks: &mut [u8]) {
        let end = home + (blocks.len() / BLOCK) as u64;
        for (&block, _) in self.table.range(home..end).filter(|(_, l)| l.escaped) {
            unescape(&mut blocks[(block - home) as usize * BLOCK..][..BLOCK]);
        }
    }

    pub fn in_flight(&self, home: u64) -> Option<&[u8]> {
        self.flying.get(&home).map(|(_, data)| &data[..])
    }

    pub fn revoke(&mut self, home: u64) {
        if self.table.contains_key(&home) {
            self.revokes.insert(home);
        }
    }

    fn is_idle(&self) -> bool {
        self.homes.is_empty()
    }

    /// Blocks that the logs can take.
    fn room(&self) -> u64 {
        self.logs.iter().map(|l| l.len - l.used).sum()
    }

    /// Chooses the logs of a record: each with a number of entries. The nearest that has room for all, else several.
    fn choose(&self, entries: usize, revokes: usize, near: u64) -> Option<Vec<(usize, usize)>> {
        let whole = Record::header_blocks(entries, revokes) + entries as u64;
        let right = self.logs.partition_point(|l| l.start < near);
        let mut order = Vec::new();
        let (mut lo, mut hi) = (right, right);
        while lo > 0 || hi < self.logs.len() {
            let left_distance = lo.checked_sub(1).map(|i| near - self.logs[i].start);
            let right_distance = self.logs.get(hi).map(|l| l.start - near);
            let i = match (left_distance, right_distance) {
                (Some(l), Some(r)) if l < r => lo - 1,
                (_, Some(_)) => hi,
                _ => lo - 1,
            };
            if i < lo {
                lo -= 1
            } else {
                hi += 1
            }
            let log = &self.logs[i];
            if log.len - log.used >= whole {
                return Some(vec![(i, entries)]);
            }
            order.push(i);
        }
        if entries == 0 {
            // A record of a header alone can't be divided.
            return None;
        }
        let (mut left, mut parts) = (entries, Vec::new());
        for i in order {
            let free = self.logs[i].len - self.logs[i].used;
            let revokes = if parts.is_empty() { revokes } else { 0 };
            let mut take = left.min(free as usize);
            while take > 0 && Record::header_blocks(take, revokes) + take as u64 > free {
                take -= 1;
            }
            if take > 0 {
                parts.push((i, take));
                left -= take;
            }
            if left == 0 {
                return Some(parts);
            }
        }
        None
    }
}

/// Outcome of [`Fs::prepare`]: the work that is left of a sync.
#[derive(Debug)]
pub enum Prepared {
    /// Nothing: all is durable.
    Clean,
    /// The record with this number, which another sync is writing.
    Wait(u64),
    /// The logs are full and records are under way: finish those, then prepare again.
    Busy,
    /// This must be executed and finished.
    Commit(Commit),
}

/// The writes of one transaction. They need neither the file system nor its lock.
#[derive(Debug)]
pub struct Commit {
    /// Number of the record.
    pub seq: u64,
    /// The record that must be durable before this may be executed; 0: none.
    pub after: u64,
    direct: Vec<Write>,
    flush_between: bool,
    record: Vec<Write>,
    flush_at_end: bool,
}

/// A part of a commit. The next one begins when all of it has ended.
#[derive(Clone, Copy, Debug)]
pub enum Step<'a> {
    /// These writes, in any order.
    Write(&'a [Write]),
    /// A flush.
    Flush,
}

impl Commit {
    /// The steps, in the order that the mode requires: for a simulator, which does other work between them.
    pub fn steps(&self) -> impl Iterator<Item = Step<'_>> {
        let is_direct = !self.direct.is_empty();
        let steps = [
            is_direct.then_some(Step::Write(&self.direct)),
            (is_direct && self.flush_between).then_some(Step::Flush),
            Some(Step::Write(&self.record)),
            self.flush_at_end.then_some(Step::Flush),
        ];
        steps.into_iter().flatten()
    }

    /// Performs the steps.
    ///
    /// # Errors
    /// If the device fails; pass it on to [`Fs::finish`].
    pub fn execute(&self, disk: &dyn Disk) -> std::io::Result<()> {
        self.steps().try_for_each(|step| match step {
            Step::Write(writes) => disk.write(writes),
            Step::Flush => disk.flush(),
        })
    }

    /// Blocks of data that go to their place.
    pub fn direct_blocks(&self) -> u64 {
        self.direct.iter().map(|w| w.data.len() as u64).sum()
    }

    /// Blocks that go to logs, with headers.
    pub fn record_blocks(&self) -> u64 {
        self.record.iter().map(|w| w.data.len() as u64).sum()
    }
}

struct Item {
    home: u64,
    data: Arc<[u8]>,
    anywhere: bool,
}

fn joined(items: &[Item]) -> Vec<Write> {
    let mut writes: Vec<Write> = Vec::new();
    for i in items {
        match writes.last_mut() {
            Some(w) if w.end() == i.home => w.data.push(i.data.clone()),
            _ => writes.push(Write { block: i.home, data: vec![i.data.clone()] }),
        }
    }
    writes
}

impl Fs {
    /// Records up to this one are durable.
    pub fn durable_seq(&self) -> u64 {
        self.journal.durable_seq
    }

    /// True if a sync must precede the next change, so that the transaction stays small enough for the logs and the memory.
    pub fn must_commit(&mut self) -> bool {
        let capacity: u64 = self.journal.logs.iter().map(|l| l.len).sum();
        let (blocks, limit) = (self.dirty_blocks.len() as u64, capacity / 8);
        self.changed_max += INODES_OF_A_CHANGE;
        let mut many = blocks > limit;
        if !many && blocks + self.changed_max > 2 * limit {
            // The bound may be far too high: a program writes the same file again and again. So they are counted.
            self.changed_max = self.blocks_of_changed();
            many = blocks + self.changed_max > limit;
        }
        many || self.dirty_pages * BLOCK as u64 > self.options.dirty_bytes_max
    }

    /// Metadata blocks that changed inodes and their extents will write.
    fn blocks_of_changed(&self) -> u64 {
        let changed = || self.nodes.iter().filter(|(_, n)| n.dirty || n.extents.dirty);
        let tables: BTreeSet<u64> = changed().map(|(ino, _)| (ino - 1) / INODES_PER_BLOCK).collect();
        let leaves = changed().map(|(_, n)| n.extents.leaves.values().filter(|l| l.dirty).count() as u64).sum::<u64>();
        tables.len() as u64 + leaves
    }

    /// True if over a half of the pages are dirty after which writers must wait for write-back.
    pub fn has_many_pages(&self) -> bool {
        self.dirty_pages * BLOCK as u64 > self.options.dirty_bytes_max / 2
    }

    /// True if memory has changes that aren't in a record.
    pub fn is_dirty(&self) -> bool {
        !self.dirty_blocks.is_empty() || self.nodes.values().any(|n| n.dirty || n.extents.dirty || n.is_behind())
    }

    /// Returns the memory of pages that were written back, which is kept for the next ones.
    pub fn forget_spare(&mut self) {
        self.spare = Vec::new();
    }

    /// The share of the logs that is in use, in percent.
    pub fn logs_used_percent(&self) -> u64 {
        let capacity: u64 = self.journal.logs.iter().map(|l| l.len).sum();
        100 - self.journal.room() * 100 / capacity.max(1)
    }

    /// Makes a transaction of all changed metadata and of the pages and the size of one file, or of all files.
    ///
    /// # Errors
    /// The device's, while reading; corrupt metadata; `EIO` after a failed sync; `EROFS`.
    pub fn prepare(&mut self, file: Option<u64>) -> Result<Prepared> {
        if let Some(why) = &self.failed {
            return Err(Error::Device(why.clone()));
        }
        if self.options.read_only {
            return Ok(Prepared::Clean);
        }
        let mut files: Vec<u64> = match file {
            Some(ino) => vec![ino],
            None => self.nodes.iter().filter(|(_, n)| n.is_behind()).map(|(&i, _)| i).collect(),
        };
        files.extend(self.must_write.iter().copied());
        files.sort_unstable();
        files.dedup();
        files.retain(|i| self.nodes.get(i).is_some_and(Node::is_behind));
        let result = self.prepare_files(&files);
        if let Err(Error::Os(errno)) = &result {
            // The reservations were to exclude that. What has blocks already must not become durable without its content.
            let why = format!("writing back: {errno}");
            self.failed = Some(why.clone());
            return Err(Error::Device(why));
        }
        result
    }

    fn prepare_files(&mut self, files: &[u64]) -> Result<Prepared> {
        for &ino in files {
            // Whatever the next record is, it has these pages: their blocks are allocated now, or some of them before an error.
            self.must_write.insert(ino);
            self.allocate_pages(ino)?;
        }
        let changed: Vec<u64> =
            self.nodes.iter().filter(|(_, n)| n.dirty || n.extents.dirty).map(|(&i, _)| i).collect();
        for ino in changed {
            self.store_node(ino)?;
        }
        self.changed_max = 0;
        self.store_groups()?;
        if self.dirty_blocks.is_empty() && files.is_empty() && self.journal.revokes.is_empty() {
            let last = self.journal.next_seq - 1;
            return Ok(if last > self.journal.durable_seq { Prepared::Wait(last) } else { Prepared::Clean });
        }
        let (mut logged, mut direct) = self.classify(files);
        let near = self.near(&direct);
        let mut parts = self.fit(logged.len(), &direct, near);
        if parts.is_none() {
            if !self.journal.is_idle() {
                return Ok(Prepared::Busy);
            }
            self.checkpoint()?;
            parts = self.fit(logged.len(), &direct, near);
            if parts.is_none() {
                // Too much data for empty logs: it goes to its place.
                direct.append(&mut logged);
                direct.sort_by_key(|i| i.home);
                parts = self.fit(0, &direct, near);
            }
        }
        let Some(parts) = parts else {
            let why = "a transaction's metadata is larger than the journal".to_owned();
            self.failed = Some(why.clone());
            return Err(Error::Device(why));
        };
        Ok(Prepared::Commit(self.record(files, logged, direct, parts)))
    }

    /// Splits dirty pages: those that go to a log, and those that go to their place.
    fn classify(&self, files: &[u64]) -> (Vec<Item>, Vec<Item>) {
        let (mut logged, mut direct) = (Vec::new(), Vec::new());
        for ino in files {
            let n = &self.nodes[ino];
            let anywhere = n.inode.flags & ANYWHERE != 0 && self.mode == Mode::Manylogs;
            let mut items: Vec<Item> = Vec::with_capacity(n.pages.len());
            for (&page, p) in &n.pages {
                let e = n.extents.get(page).expect("each page was given a block");
                items.push(Item { home: e.physical + (page - e.logical), data: p.data.clone(), anywhere });
            }
            items.sort_by_key(|i| i.home);
            let mut run: Vec<Item> = Vec::new();
            let mut end = |run: &mut Vec<Item>| {
                let to_log = match self.mode {
                    Mode::Ordered => false,
                    Mode::Data => true,
                    Mode::Adaptive | Mode::Manylogs => anywhere || run.len() as u64 <= self.sb.logged_write_blocks,
                };
                if to_log { logged.append(run) } else { direct.append(run) }
            };
            for item in items {
                if run.last().is_some_and(|l| l.home + 1 != item.home) {
                    end(&mut run);
                }
                run.push(item);
            }
            end(&mut run);
        }
        direct.sort_by_key(|i| i.home);
        (logged, direct)
    }

    /// The disk's head when the record is written: behind this transaction's own large write, else the last request's.
    fn near(&self, direct: &[Item]) -> u64 {
        direct.last().map_or(self.head, |i| i.home)
    }

    fn fit(&self, logged: usize, direct: &[Item], near: u64) -> Option<Vec<(usize, usize)>> {
        let superseded = direct.iter().filter(|i| self.journal.table.contains_key(&i.home)).count();
        self.journal.choose(self.dirty_blocks.len() + logged, self.journal.revokes.len() + superseded, near)
    }

    fn record(&mut self, files: &[u64], logged: Vec<Item>, direct: Vec<Item>, parts: Vec<(usize, usize)>) -> Commit {
        let metadata = std::mem::take(&mut self.dirty_blocks);
        let mut items = logged;
        for home in metadata {
            let data = self.sealed(home);
            items.push(Item { home, data, anywhere: false });
        }
        let j = &mut self.journal;
        let seq = j.next_seq;
        j.next_seq += 1;
        direct.iter().for_each(|i| j.revoke(i.home));
        let mut revokes: Vec<u64> = std::mem::take(&mut j.revokes).into_iter().collect();
        for home in &revokes {
            j.table.remove(home);
        }
        if self.options.planted == Some(Planted::NoRevoke) {
            revokes.fill(u64::MAX);
        }
        let after = direct.iter().filter_map(|i| j.direct.get(&i.home)).copied().max().unwrap_or(0);
        j.direct.extend(direct.iter().map(|i| (i.home, seq)));
        let (epoch, durable, fs_id) = (self.sb.epoch, j.durable_seq, self.sb.fs_id);
        let count = parts.len() as u32;
        let (mut record, mut rest) = (Vec::new(), &items[..]);
        for (part, (log, len)) in parts.into_iter().enumerate() {
            let (mine, others) = rest.split_at(len);
            rest = others;
            let mut blocks = Vec::with_capacity(mine.len());
            let mut entries = Vec::with_capacity(mine.len());
            for i in mine {
                let escaped = escaped(&i.data);
                let is_escaped = escaped.is_some();
                let block = escaped.unwrap_or_else(|| i.data.clone());
                let crc = crc32fast::hash(&block);
                entries.push(RecordEntry { home: i.home, crc, anywhere: i.anywhere, escaped: is_escaped });
                blocks.push(block);
            }
            let header = Record {
                epoch,
                seq,
                durable,
                part: part as u32,
                parts: count,
                entries,
                revokes: std::mem::take(&mut revokes),
            };
            let log = &mut j.logs[log];
            let mut write = Write::new(log.start + log.used, &header.encode(fs_id));
            let payload = write.end();
            for (e, at) in header.entries.iter().zip(payload..) {
                j.table.insert(e.home, Logged { at, anywhere: e.anywhere, escaped: e.escaped });
            }
            write.data.append(&mut blocks);
            log.used += write.data.len() as u64;
            record.push(write);
        }
        debug_assert!(rest.is_empty());
        let mut homes = Vec::with_capacity(items.len() + direct.len());
        let writes = joined(&direct);
        for i in items.into_iter().chain(direct) {
            homes.push(i.home);
            j.flying.insert(i.home, (seq, i.data));
        }
        j.homes.insert(seq, homes);
        for ino in files {
            let n = self.nodes.get_mut(ino).expect("it was written back");
            self.dirty_pages -= n.pages.len() as u64;
            n.pages.clear();
        }
        self.must_write.clear();
        self.pinned.values_mut().filter(|p| p.1 == 0).for_each(|p| p.1 = seq);
        if let Some(w) = writes.last() {
            self.head = w.end();
        }
        Commit {
            seq,
            after,
            direct: writes,
            flush_between: !self.plants(Planted::NoFlushBetween),
            record,
            flush_at_end: !self.plants(Planted::NoFlushAtEnd),
        }
    }

    /// Notes how a commit's writes ended. The record is durable once [`Fs::durable_seq`] has reached it.
    ///
    /// # Errors
    /// The device's error: the file system accepts no more changes, as what was acknowledged as written may be lost.
    pub fn finish(&mut self, seq: u64, result: std::io::Result<()>) -> Result<()> {
        if let Err(e) = result {
            let why = format!("writing record {seq}: {e}");
            self.failed = Some(why.clone());
            return Err(Error::Device(why));
        }
        let is_early = self.plants(Planted::OutOfOrder);
        let spare_max = (self.options.dirty_bytes_max / BLOCK as u64) as usize;
        let j = &mut self.journal;
        j.done.insert(seq);
        if is_early {
            j.done.extend(j.durable_seq + 1..seq);
        }
        while j.done.remove(&(j.durable_seq + 1)) {
            j.durable_seq += 1;
            for home in j.homes.remove(&j.durable_seq).unwrap_or_default() {
                if j.flying.get(&home).is_some_and(|f| f.0 == j.durable_seq) {
                    let data = j.flying.remove(&home).map(|f| f.1);
                    self.spare.extend(data.filter(|_| self.spare.len() < spare_max));
                }
                if j.direct.get(&home) == Some(&j.durable_seq) {
                    j.direct.remove(&home);
                }
            }
        }
        let durable = j.durable_seq;
        self.pinned.retain(|_, &mut (_, seq)| seq == 0 || seq > durable);
        self.pinned_blocks = self.pinned.values().map(|p| p.0).sum();
        Ok(())
    }

    /// Makes one file, or all files and all metadata, durable. For users with one thread.
    ///
    /// # Errors
    /// As [`Fs::prepare`] and [`Fs::finish`].
    pub fn sync(&mut self, file: Option<u64>) -> Result<()> {
        match self.prepare(file)? {
            Prepared::Clean => Ok(()),
            Prepared::Commit(c) => {
                let result = c.execute(&*self.disk);
                self.finish(c.seq, result)
            }
            Prepared::Wait(_) | Prepared::Busy => Err(Errno::BUSY.into()),
        }
    }

    /// Writes all logged blocks to their places and empties the logs. Does nothing while records are under way.
    ///
    /// # Errors
    /// The device's: the file system accepts no more changes.
    pub fn checkpoint(&mut self) -> Result<()> {
        if !self.journal.is_idle() || self.options.read_only || self.failed.is_some() {
            return Ok(());
        }
        if self.journal.logs.iter().all(|l| l.used == 0) {
            return Ok(());
        }
        let result = self.write_home();
        if let Err(e) = &result {
            self.failed = Some(format!("checkpoint: {e}"));
        }
        result
    }

    /// A checkpoint when there is time for it: not while the logs hold content that may stay there.
    ///
    /// # Errors
    /// As [`Fs::checkpoint`].
    pub fn checkpoint_lazily(&mut self) -> Result<()> {
        if self.journal.table.values().any(|l| l.anywhere) { Ok(()) } else { self.checkpoint() }
    }

    fn write_home(&mut self) -> Result<()> {
        const BATCH: usize = 2048;
        let all: Vec<(u64, u64)> = self.journal.table.iter().map(|(&home, l)| (home, l.at)).collect();
        for batch in all.chunks(BATCH) {
            // Read in the order of the logs, write in the order of the places.
            let mut by_log = batch.to_vec();
            by_log.sort_by_key(|&(_, at)| at);
            let mut items: Vec<Item> = Vec::with_capacity(batch.len());
            for run in by_log.chunk_by(|a, b| a.1 + 1 == b.1) {
                let mut data = vec![0; run.len() * BLOCK];
                self.disk.read(run[0].1, &mut data).map_err(|e| device("reading", run[0].1, e))?;
                let blocks = run.iter().zip(data.chunks_mut(BLOCK));
                items.extend(blocks.map(|(&(home, _), d)| {
                    self.journal.restore(home, d);
                    Item { home, data: Arc::from(&*d), anywhere: false }
                }));
            }
            items.sort_by_key(|i| i.home);
            self.disk.write(&joined(&items)).map_err(|e| device("writing", items[0].home, e))?;
        }
        if !self.plants(Planted::EarlyReset) {
            self.disk.flush().map_err(|e| device("flushing", 0, e))?;
        }
        self.sb.checkpoint_seq = self.journal.next_seq - 1;
        self.sb.epochs.clear();
        self.write_super()?;
        self.journal.table.clear();
        self.journal.revokes.clear();
        self.journal.logs.iter_mut().for_each(|l| l.used = 0);
        self.journal.checkpoints += 1;
        Ok(())
    }

    /// Writes both superblocks, one after the other, each durable before the next step.
    pub(crate) fn write_super(&mut self) -> Result<()> {
        self.sb.generation += 1;
        self.sb.durable_seq = self.journal.durable_seq;
        for block in [0, self.geo.second_super()] {
            let data = self.sb.encode(block);
            self.disk.write(&[Write::new(block, &data)]).map_err(|e| device("writing superblock", block, e))?;
            self.disk.flush().map_err(|e| device("flushing superblock", block, e))?;
        }
        Ok(())
    }

    /// Makes everything durable, and brings it to its place unless the logs hold content that may stay there.
    ///
    /// # Errors
    /// As [`Fs::sync`].
    pub fn unmount(&mut self) -> Result<()> {
        if self.options.read_only {
            return Ok(());
        }
        // Nobody has a file open any more. After a failure the next mount frees those without a name.
        let freed = if self.orphans.is_empty() || self.failed.is_some() { Ok(()) } else { self.drop_orphans() };
        self.sync(None)?;
        self.checkpoint_lazily()?;
        if self.journal.logs.iter().any(|l| l.used > 0) {
            self.write_super()?;
        }
        freed
    }
}
