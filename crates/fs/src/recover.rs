//! Mounting: superblocks, then a scan of the logs for records that count. Nothing is replayed: the table is rebuilt, and blocks
//! go to their places at the next checkpoint.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::commit::{Journal, Log, Logged};
use crate::disk::{BLOCK, Disk};
use crate::error::{Error, Result, device};
use crate::format::{EPOCHS_MAX, Mode, Record, RecordEntry, Super, VERSION, is_metadata};
use crate::fs::{Fs, Options, Planted};
use crate::geometry::Geometry;

/// Reads both superblocks and returns the newer one.
pub(crate) fn read_super(disk: &dyn Disk) -> Result<Super> {
    let no = || Error::Unfit("there is no file system of `plimsoll mkfs`: is it the right device?".to_owned());
    let read = |block: u64| {
        let mut b = vec![0; BLOCK];
        disk.read(block, &mut b).map_err(|e| device("reading superblock", block, e))?;
        if is_metadata(&b) { Super::decode(&b, block) } else { Err(no()) }
    };
    let (a, b) = match disk.blocks().checked_sub(1) {
        Some(last) if last > 0 => (read(0), read(last)),
        _ => return Err(no()),
    };
    let sb = match (a, b) {
        (Ok(a), Ok(b)) if a.fs_id == b.fs_id && b.generation > a.generation => b,
        (Ok(a), _) => a,
        (Err(_), Ok(b)) => b,
        // There was one, or there is one for another program.
        (Err(a), Err(b)) => return Err(if a == no() { b } else { a }),
    };
    if sb.blocks > disk.blocks() {
        return Err(Error::Unfit(format!(
            "the file system has {} blocks, the device {}: give it the whole device",
            sb.blocks,
            disk.blocks()
        )));
    }
    Ok(sb)
}

/// Blocks of a log that seems empty in which a scan looks for later records. A device has many scattered logs.
const LOOK_JOURNAL: u64 = 256;
const LOOK_LOG: u64 = 32;
/// Blocks of a log that are read at once.
const PIECE: u64 = 256;

/// Result of a scan of the logs.
pub(crate) struct Scan {
    pub logs: Vec<Log>,
    pub table: BTreeMap<u64, Logged>,
    /// The last record that counts.
    pub last: u64,
    /// Records up to this one were durable once: more than `last` means that something was lost.
    pub witness: u64,
    /// Blocks that the scan went on without.
    pub unreadable: BTreeSet<u64>,
}

struct Found {
    record: Record,
    /// First block of the payload.
    payload: u64,
    log: usize,
    end: u64,
}

/// An epoch that nobody can tell in advance who doesn't know the last one and the nonce. Epochs are compared for equality only.
fn next_epoch(sb: &Super, nonce: u64) -> u64 {
    let bytes: Vec<u8> = [sb.fs_id, sb.epoch, sb.generation].into_iter().flat_map(u64::to_le_bytes).collect();
    xxhash_rust::xxh3::xxh3_64_with_seed(&bytes, nonce)
}

fn is_live(sb: &Super, epoch: u64, seq: u64) -> bool {
    let old = || sb.epochs.iter().any(|&(e, last)| e == epoch && seq <= last);
    seq > sb.checkpoint_seq && (epoch == sb.epoch || old())
}

/// Reads of logs.
struct Reader<'a> {
    disk: &'a dyn Disk,
    salvage: bool,
    unreadable: BTreeSet<u64>,
}

impl Reader<'_> {
    /// Reads a part of a log in which nothing counts. A block that can't be read is taken for empty: it may never have been used.
    fn leniently(&mut self, at: u64, blocks: u64) -> Vec<u8> {
        let mut all = vec![0; blocks as usize * BLOCK];
        if self.disk.read(at, &mut all).is_err() {
            for (block, b) in (at..).zip(all.chunks_mut(BLOCK)) {
                if self.disk.read(block, b).is_err() {
                    b.fill(0);
                    self.unreadable.insert(block);
                }
            }
        }
        all
    }

    /// Reads what may be a record that counts: none if it can't be read and the scan goes on without it, as it does behind a gap.
    fn record(&mut self, at: u64, blocks: u64, gap: bool) -> Result<Option<Vec<u8>>> {
        let mut all = vec![0; blocks as usize * BLOCK];
        match self.disk.read(at, &mut all) {
            Ok(()) => Ok(Some(all)),
            Err(_) if gap || self.salvage => {
                self.leniently(at, blocks);
                Ok(None)
            }
            Err(e) => {
                let what = "it may be of a durable record, which `plimsoll fsck --repair` goes on without";
                Err(device("reading", at, std::io::Error::other(format!("{e}; {what}"))))
            }
        }
    }

    /// Reads a record's content piece by piece, as its length comes from the device. True if all of it is what the header says.
    fn is_whole(&mut self, at: u64, entries: &[RecordEntry], verify: bool) -> Result<bool> {
        let mut whole = true;
        for (piece, at) in entries.chunks(PIECE as usize).zip((at..).step_by(PIECE as usize)) {
            match self.record(at, piece.len() as u64, false)? {
                Some(b) => {
                    whole &= b.chunks(BLOCK).zip(piece).all(|(d, e)| !verify || crc32fast::hash(d) == e.crc);
                }
                None => whole = false,
            }
        }
        Ok(whole)
    }
}

/// A record at a log's position.
struct Header {
    record: Record,
    blocks: u64,
    /// The payload is what the header says.
    whole: bool,
}

/// Reads the record at a log's position, if it has a valid header. Behind a gap its content isn't looked at.
fn read_record(
    reader: &mut Reader<'_>,
    sb: &Super,
    first: &[u8],
    geo: &Geometry,
    (at, room, gap): (u64, u64, bool),
    verify: bool,
) -> Result<Option<Header>> {
    let (blocks, payload) = Record::lengths(first);
    if blocks + payload > room {
        return Ok(None);
    }
    let Some(head) = reader.record(at, blocks, gap)? else { return Ok(None) };
    let Some(record) = Record::decode(&head, sb.fs_id) else { return Ok(None) };
    let possible = record.entries.iter().all(|e| geo.may_be_logged(e.home)) && record.part < record.parts;
    let whole = possible && !gap && reader.is_whole(at + blocks, &record.entries, verify)?;
    Ok(Some(Header { record, blocks, whole }))
}

pub(crate) fn scan(
    disk: &dyn Disk,
    sb: &Super,
    geo: &Geometry,
    planted: Option<Planted>,
    salvage: bool,
) -> Result<Scan> {
    let verify = planted != Some(Planted::NoChecksum);
    let mut reader = Reader { disk, salvage, unreadable: BTreeSet::new() };
    let mut logs: Vec<Log> = geo.logs().into_iter().map(|(start, len)| Log { start, len, used: 0 }).collect();
    let mut found: BTreeMap<u64, Vec<Found>> = BTreeMap::new();
    let capacity: u64 = logs.iter().map(|l| l.len).sum();
    let mut witness = sb.durable_seq;
    for (i, log) in logs.iter().enumerate() {
        let mut at = 0;
        // Behind a gap nothing counts, but a header may say what was durable.
        let mut gap = false;
        // Headers of the same time don't overlap. More than a log can have are forged: each would be read for nothing.
        let mut headers_left = 2 * log.len;
        let (mut chunk, mut chunk_at) = (Vec::new(), 0);
        while at < log.len {
            if chunk.is_empty() || at < chunk_at || at >= chunk_at + (chunk.len() / BLOCK) as u64 {
                chunk_at = at;
                let blocks = if gap { (log.len - at).min(PIECE) } else { 1 };
                let at = log.start + at;
                let read = if gap { None } else { reader.record(at, blocks, gap)? };
                chunk = read.unwrap_or_else(|| reader.leniently(at, blocks));
            }
            let first = &chunk[(at - chunk_at) as usize * BLOCK..][..BLOCK];
            let (epoch, seq) = Record::claims(first);
            if !Record::starts(first, sb.fs_id) || !is_live(sb, epoch, seq) {
                // A log that was never used, or whose records have been checkpointed, ends here.
                let ends = at == 0 && (first.iter().all(|&b| b == 0) || Record::starts(first, sb.fs_id));
                if ends {
                    // Unless its first block was lost: later records are there.
                    let look = if geo.journal_blocks > 0 { LOOK_JOURNAL } else { LOOK_LOG };
                    let blocks = reader.leniently(log.start, look.min(log.len));
                    let is_record = |b: &[u8]| {
                        let (epoch, seq) = Record::claims(b);
                        Record::starts(b, sb.fs_id) && is_live(sb, epoch, seq)
                    };
                    if !blocks.chunks(BLOCK).any(is_record) {
                        break;
                    }
                }
                gap = true;
                at += 1;
                continue;
            }
            // No record revokes more than the logs can have.
            let (header, _) = Record::lengths(first);
            let is_possible = Record::revokes(first) <= capacity && header <= headers_left;
            headers_left = headers_left.saturating_sub(header);
            let place = (log.start + at, log.len - at, gap);
            let read = if is_possible { read_record(&mut reader, sb, first, geo, place, verify)? } else { None };
            match read {
                Some(Header { record, blocks, whole: true }) => {
                    witness = witness.max(record.durable);
                    let payload = log.start + at + blocks;
                    at += blocks + record.entries.len() as u64;
                    found.entry(record.seq).or_default().push(Found { record, payload, log: i, end: at });
                }
                Some(Header { record, blocks, .. }) if gap => {
                    witness = witness.max(record.durable);
                    let payload = record.entries.len() as u64;
                    if salvage {
                        // A repair overwrites what can't be read.
                        let pieces = (0..payload).step_by(PIECE as usize);
                        pieces.for_each(|p| {
                            drop(reader.leniently(log.start + at + blocks + p, (payload - p).min(PIECE)))
                        });
                    }
                    at += blocks + payload;
                }
                torn => {
                    witness = witness.max(torn.map_or(0, |t| t.record.durable));
                    gap = true;
                    at += 1;
                }
            }
        }
    }
    let mut last = sb.checkpoint_seq;
    let mut table = BTreeMap::new();
    loop {
        if planted == Some(Planted::SkipMissing) {
            last = found.range(last + 1..).next().map_or(last, |(seq, _)| seq - 1);
        }
        let Some(parts) = found.get(&(last + 1)) else { break };
        let count = parts[0].record.parts;
        let mut numbers: Vec<u32> = parts.iter().map(|f| f.record.part).collect();
        numbers.sort_unstable();
        if parts.iter().any(|f| f.record.parts != count) || !numbers.into_iter().eq(0..count) {
            break;
        }
        last += 1;
        for home in parts.iter().flat_map(|f| &f.record.revokes) {
            table.remove(home);
        }
        for f in parts {
            for (i, e) in f.record.entries.iter().enumerate() {
                let at = f.payload + i as u64;
                table.insert(e.home, Logged { at, anywhere: e.anywhere, escaped: e.escaped });
            }
            logs[f.log].used = logs[f.log].used.max(f.end);
        }
    }
    Ok(Scan { logs, table, last, witness, unreadable: reader.unreadable })
}

impl Fs {
    /// Mounts a file system.
    ///
    /// # Errors
    /// If the device has none, is corrupt where a mount looks, or a record that was durable is missing.
    pub fn mount(disk: Arc<dyn Disk>, options: Options) -> Result<Fs> {
        let mut fs = Fs::assemble(disk, options, false)?;
        if !fs.options.read_only {
            fs.start_epoch()?;
            fs.drop_orphans()?;
        }
        Ok(fs)
    }

    /// The state in memory, nothing changed on the device. `salvage`: go on without durable records that are missing.
    pub(crate) fn assemble(disk: Arc<dyn Disk>, options: Options, salvage: bool) -> Result<Fs> {
        let sb = read_super(&*disk)?;
        let geo = Geometry::new(&sb)?;
        let mode = options.mode.unwrap_or(sb.mode);
        if (mode == Mode::Manylogs) != (geo.journal_blocks == 0) {
            let (has, fits) = if geo.journal_blocks == 0 {
                ("scattered logs", "manylogs")
            } else {
                ("a single journal", "ordered, data or adaptive")
            };
            let why = format!("mode {} doesn't fit: the file system has {has}, for {fits}", mode.name());
            // The superblock's own mode doesn't fit by corruption only.
            return Err(if options.mode.is_some() { Error::Unfit(why) } else { Error::Corrupt(why) });
        }
        let s = scan(&*disk, &sb, &geo, options.planted, salvage)?;
        if s.witness > s.last && !salvage {
            return Err(Error::Corrupt(format!("record {} was durable and is missing or corrupt", s.last + 1)));
        }
        let journal = Journal::new(s.logs, s.table, s.last);
        let mut fs = Fs {
            disk,
            sb,
            geo,
            mode,
            options,
            now: (0, 0),
            cache: BTreeMap::new(),
            dirty_blocks: Default::default(),
            nodes: BTreeMap::new(),
            groups: Vec::new(),
            free_blocks: 0,
            groups_dirty: Default::default(),
            pinned: BTreeMap::new(),
            pinned_blocks: 0,
            reserved: 0,
            dirty_pages: 0,
            spare: Vec::new(),
            tree_need: 0,
            changed_max: 0,
            must_write: Default::default(),
            journal,
            head: 0,
            failed: None,
            names: BTreeMap::new(),
            known: BTreeMap::new(),
            orphans: Default::default(),
            unreadable: s.unreadable,
        };
        fs.load_groups(salvage)?;
        Ok(fs)
    }

    /// Tells this mount's records from those that the last one left behind unfinished, and from all that users can write.
    pub(crate) fn start_epoch(&mut self) -> Result<()> {
        // After a kill the records may be in the page cache only, and the superblock calls them durable.
        self.disk.flush().map_err(|e| device("flushing", 0, e))?;
        if self.sb.version < VERSION {
            // Records of an earlier program have users' blocks as they are. One superblock empties the logs, and ends their epochs.
            self.sb.version = VERSION;
            self.sb.epoch = next_epoch(&self.sb, self.options.nonce);
            self.checkpoint()?;
        }
        let last = self.journal.durable_seq;
        if last == self.sb.checkpoint_seq || self.plants(Planted::NoEpochs) {
            self.sb.epochs.clear();
        } else if self.sb.epochs.last().is_none_or(|e| e.1 < last) {
            // An epoch that left no record needs no entry. So a mount that fails in its checkpoint can be repeated.
            self.sb.epochs.push((self.sb.epoch, last));
        }
        // Records behind one that a repair went on without don't count again.
        self.sb.epochs.iter_mut().for_each(|e| e.1 = e.1.min(last));
        let full = self.sb.epochs.len() >= EPOCHS_MAX;
        if !self.plants(Planted::SameEpoch) {
            self.sb.epoch = next_epoch(&self.sb, self.options.nonce);
        }
        self.write_super()?;
        if full { self.checkpoint() } else { Ok(()) }
    }
}
