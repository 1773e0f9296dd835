//! The bytes on the device. All numbers are little-endian; `docs/design/fs.md` has the layout.

use std::sync::Arc;

use crate::disk::BLOCK;
use crate::error::{Error, Result};
use crate::extents::Extent;

/// Bytes of a metadata block before its payload.
pub(crate) const HEADER: usize = 32;
/// Bytes of a metadata block's payload.
pub(crate) const PAYLOAD: usize = BLOCK - HEADER;
pub(crate) const INODE_BYTES: usize = 508;
pub(crate) const INODES_PER_BLOCK: u64 = (PAYLOAD / INODE_BYTES) as u64;
/// Bytes of an inode's root: extents, index entries, or a short symbolic link's target.
pub(crate) const ROOT_BYTES: usize = INODE_BYTES - 112;
/// Extents, or index entries, in an inode.
pub(crate) const ROOT_ENTRIES: usize = ROOT_BYTES / 16;
/// Extents, or index entries, in a block.
pub(crate) const BLOCK_ENTRIES: usize = (PAYLOAD - 16) / 16;
pub(crate) const GROUPS_PER_BLOCK: u64 = (PAYLOAD / 16) as u64;
/// Bits of a bitmap block.
pub(crate) const BITS: u64 = (PAYLOAD * 8) as u64;
/// Earlier epochs whose records may still be in the logs.
pub(crate) const EPOCHS_MAX: usize = 32;
/// Records, and superblocks, that a file system can have: nothing counts so far.
const COUNT_MAX: u64 = 1 << 60;
const MAGIC: u32 = 0x4253_4650; // "PFSB"
const RECORD_MAGIC: u32 = 0x5253_4650; // "PFSR"
/// The format that is written. Version 1 had no escaped blocks in records, and `fs_id` for the seed of names' hashes.
pub(crate) const VERSION: u32 = 2;
/// The superblock's word that has the seed of names' hashes.
const SEED_WORD: usize = 14 + 2 * EPOCHS_MAX;
/// Largest logical block: extents count blocks in 32 bits.
pub(crate) const FILE_BLOCKS_MAX: u64 = 1 << 31;

/// The kind of a metadata block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Kind {
    /// Superblock.
    Super = 1,
    /// Summaries of block groups.
    Groups,
    /// Bitmap of a group's blocks.
    Blocks,
    /// Bitmap of a group's inodes.
    Inodes,
    /// Inodes.
    Table,
    /// Extents of a file.
    Leaf,
    /// Pointers to leaves.
    Index,
    /// Entries of a directory.
    Dir,
    /// Extended attributes.
    Xattr,
    /// A symbolic link's target.
    Link,
}

/// A journaling mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Mode {
    /// Data to its place, then metadata to one journal.
    Ordered = 1,
    /// Data and metadata to one journal.
    Data,
    /// Random data and metadata to one journal, sequential data to its place.
    Adaptive,
    /// As adaptive, in the log nearest the disk's head.
    Manylogs,
}

impl Mode {
    /// All modes.
    pub const ALL: [Mode; 4] = [Mode::Ordered, Mode::Data, Mode::Adaptive, Mode::Manylogs];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Ordered => "ordered",
            Mode::Data => "data",
            Mode::Adaptive => "adaptive",
            Mode::Manylogs => "manylogs",
        }
    }

    /// The mode with a name.
    pub fn named(name: &str) -> Option<Mode> {
        Mode::ALL.into_iter().find(|m| m.name() == name)
    }
}

pub(crate) fn u16_at(b: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(b[at..at + 2].try_into().expect("two bytes"))
}
pub(crate) fn u32_at(b: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(b[at..at + 4].try_into().expect("four bytes"))
}
pub(crate) fn u64_at(b: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(b[at..at + 8].try_into().expect("eight bytes"))
}
pub(crate) fn put16(b: &mut [u8], at: usize, v: u16) {
    b[at..at + 2].copy_from_slice(&v.to_le_bytes());
}
pub(crate) fn put32(b: &mut [u8], at: usize, v: u32) {
    b[at..at + 4].copy_from_slice(&v.to_le_bytes());
}
pub(crate) fn put64(b: &mut [u8], at: usize, v: u64) {
    b[at..at + 8].copy_from_slice(&v.to_le_bytes());
}

fn crc_without(b: &[u8], at: usize) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(&b[..at]);
    crc.update(&[0; 4]);
    crc.update(&b[at + 4..]);
    crc.finalize()
}

pub(crate) fn reseal(b: &mut [u8]) {
    let at = if u32_at(b, 0) == RECORD_MAGIC { 4 } else { 8 };
    let crc = crc_without(b, at);
    put32(b, at, crc);
}

/// Gives a metadata block its header and checksum.
pub(crate) fn seal(b: &mut [u8], kind: Kind, block: u64, fs_id: u64) {
    put32(b, 0, MAGIC);
    put32(b, 4, kind as u32);
    put64(b, 16, block);
    put64(b, 24, fs_id);
    put32(b, 12, 0);
    reseal(b);
}

/// Returns whether a block begins as metadata of some file system do.
pub(crate) fn is_metadata(b: &[u8]) -> bool {
    u32_at(b, 0) == MAGIC
}

/// Checks a metadata block's header and checksum.
pub(crate) fn verify(b: &[u8], kind: Kind, block: u64, fs_id: u64) -> Result<()> {
    let bad = |what: &str| Err(Error::Corrupt(format!("block {block} as {kind:?}: {what}")));
    if u32_at(b, 0) != MAGIC {
        return bad("isn't a metadata block");
    }
    if u32_at(b, 8) != crc_without(b, 8) {
        return bad("checksum");
    }
    if u32_at(b, 4) != kind as u32 {
        return bad("is of another kind");
    }
    if u64_at(b, 16) != block {
        return bad("belongs elsewhere");
    }
    if u64_at(b, 24) != fs_id {
        return bad("belongs to another file system");
    }
    Ok(())
}

/// The superblock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Super {
    pub version: u32,
    pub fs_id: u64,
    /// Seed of the hashes of directories' names: users can calculate it from a listing.
    pub hash_seed: u64,
    pub generation: u64,
    pub mode: Mode,
    pub blocks: u64,
    pub group_blocks: u64,
    pub inodes_per_group: u64,
    /// Blocks of each group's log; 0 with a single journal.
    pub log_blocks: u64,
    /// Blocks of the single journal; 0 with scattered logs.
    pub journal_blocks: u64,
    /// Longest run of a file's blocks that goes to a log (LoggedWriteSize).
    pub logged_write_blocks: u64,
    pub epoch: u64,
    /// Records up to this one have been checkpointed.
    pub checkpoint_seq: u64,
    /// Records up to this one were durable when this was written.
    pub durable_seq: u64,
    /// Earlier epochs, each with its last record.
    pub epochs: Vec<(u64, u64)>,
}

impl Super {
    pub fn encode(&self, block: u64) -> Vec<u8> {
        let mut b = vec![0; BLOCK];
        let words = [
            self.version.into(),
            self.fs_id,
            self.generation,
            self.mode as u64,
            self.blocks,
            self.group_blocks,
            self.inodes_per_group,
            self.log_blocks,
            self.journal_blocks,
            self.logged_write_blocks,
            self.epoch,
            self.checkpoint_seq,
            self.durable_seq,
            self.epochs.len() as u64,
        ];
        let pairs = self.epochs.iter().flat_map(|&(epoch, last)| [epoch, last]);
        for (i, w) in words.into_iter().chain(pairs).enumerate() {
            put64(&mut b, HEADER + i * 8, w);
        }
        if self.version > 1 {
            put64(&mut b, HEADER + SEED_WORD * 8, self.hash_seed);
        }
        seal(&mut b, Kind::Super, block, self.fs_id);
        b
    }

    pub fn decode(b: &[u8], block: u64) -> Result<Super> {
        let word = |i: usize| u64_at(b, HEADER + i * 8);
        verify(b, Kind::Super, block, word(1))?;
        let bad = |what: &str| Error::Corrupt(format!("superblock at block {block}: {what}"));
        if word(0) == 0 || word(0) > u64::from(VERSION) {
            return Err(Error::Unfit(format!(
                "superblock at block {block}: has version {} of the format, and this program knows 1 to {VERSION}: \
                 use a program that knows it",
                word(0)
            )));
        }
        let mode =
            Mode::ALL.into_iter().find(|&m| m as u64 == word(3)).ok_or_else(|| bad("journaling mode is unknown"))?;
        if word(2).max(word(11)).max(word(12)) > COUNT_MAX {
            return Err(bad("a count is too large"));
        }
        if word(13) > EPOCHS_MAX as u64 {
            return Err(bad("too many epochs"));
        }
        let epochs = (0..word(13) as usize).map(|i| (word(14 + 2 * i), word(15 + 2 * i))).collect();
        Ok(Super {
            version: word(0) as u32,
            fs_id: word(1),
            hash_seed: if word(0) == 1 { word(1) } else { word(SEED_WORD) },
            generation: word(2),
            mode,
            blocks: word(4),
            group_blocks: word(5),
            inodes_per_group: word(6),
            log_blocks: word(7),
            journal_blocks: word(8),
            logged_write_blocks: word(9),
            epoch: word(10),
            checkpoint_seq: word(11),
            durable_seq: word(12),
            epochs,
        })
    }
}

/// An inode's flag: its content may be anywhere (O_DUR), and what is created in it inherits that.
pub(crate) const ANYWHERE: u32 = 1;
/// An inode's flag: its root is a symbolic link's target.
pub(crate) const LINK_IN_ROOT: u32 = 2;

/// An inode without its extents.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Inode {
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub nlink: u32,
    pub size: u64,
    /// Blocks it holds, of data and of metadata.
    pub blocks: u64,
    /// Access, change of content, change of status, creation: seconds and nanoseconds.
    pub times: [(i64, u32); 4],
    pub generation: u32,
    pub flags: u32,
    pub rdev: u32,
    /// A directory's parent.
    pub parent: u64,
    /// Block of extended attributes; 0: none.
    pub xattr: u64,
    /// 0: the root has extents; 1: leaves; 2: blocks of pointers to leaves.
    pub depth: u16,
    pub entries: u16,
    pub root: Vec<u8>,
}

impl Inode {
    pub fn encode(&self, b: &mut [u8]) {
        b.fill(0);
        for (i, v) in [self.mode, self.uid, self.gid, self.nlink].into_iter().enumerate() {
            put32(b, i * 4, v);
        }
        put64(b, 16, self.size);
        put64(b, 24, self.blocks);
        for (i, (sec, ns)) in self.times.into_iter().enumerate() {
            put64(b, 32 + i * 8, sec as u64);
            put32(b, 64 + i * 4, ns);
        }
        put32(b, 80, self.generation);
        put32(b, 84, self.flags);
        put32(b, 88, self.rdev);
        put16(b, 92, self.entries);
        put16(b, 94, self.depth);
        put64(b, 96, self.parent);
        put64(b, 104, self.xattr);
        b[112..112 + self.root.len()].copy_from_slice(&self.root);
    }

    pub fn decode(b: &[u8]) -> Inode {
        let times = std::array::from_fn(|i| (u64_at(b, 32 + i * 8) as i64, u32_at(b, 64 + i * 4).min(999_999_999)));
        Inode {
            mode: u32_at(b, 0),
            uid: u32_at(b, 4),
            gid: u32_at(b, 8),
            nlink: u32_at(b, 12),
            size: u64_at(b, 16),
            blocks: u64_at(b, 24),
            times,
            generation: u32_at(b, 80),
            flags: u32_at(b, 84),
            rdev: u32_at(b, 88),
            entries: u16_at(b, 92),
            depth: u16_at(b, 94),
            parent: u64_at(b, 96),
            xattr: u64_at(b, 104),
            root: b[112..INODE_BYTES].to_vec(),
        }
    }
}

const UNWRITTEN: u32 = 1 << 31;

pub(crate) fn put_extent(b: &mut [u8], at: usize, e: Extent) {
    put32(b, at, e.logical as u32);
    put32(b, at + 4, e.len as u32 | if e.unwritten { UNWRITTEN } else { 0 });
    put64(b, at + 8, e.physical);
}

pub(crate) fn extent_at(b: &[u8], at: usize) -> Extent {
    let len = u32_at(b, at + 4);
    Extent {
        logical: u64::from(u32_at(b, at)),
        len: u64::from(len & !UNWRITTEN),
        physical: u64_at(b, at + 8),
        unwritten: len & UNWRITTEN != 0,
    }
}

/// A part of a transaction in one log: its header; the blocks follow it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub epoch: u64,
    pub seq: u64,
    /// Records up to this one were durable when this was written: the witness.
    pub durable: u64,
    pub part: u32,
    pub parts: u32,
    pub entries: Vec<RecordEntry>,
    /// Blocks whose copies in earlier records count no more.
    pub revokes: Vec<u64>,
}

/// A block in a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordEntry {
    pub home: u64,
    pub crc: u32,
    /// Of a file whose content may be anywhere.
    pub anywhere: bool,
    /// The block begins with a record's magic, which is zeroes in the log: [`escape`].
    pub escaped: bool,
}

/// An entry's flags.
const ENTRY_ANYWHERE: u32 = 1;
const ENTRY_ESCAPED: u32 = 2;

/// Returns what goes to a log in place of a file's block that is like a record's header. Else whoever may write a file could write records.
pub(crate) fn escaped(b: &[u8]) -> Option<Arc<[u8]>> {
    (u32_at(b, 0) == RECORD_MAGIC).then(|| {
        let mut b = b.to_vec();
        put32(&mut b, 0, 0);
        b.into()
    })
}

/// Undoes [`escaped`].
pub(crate) fn unescape(b: &mut [u8]) {
    put32(b, 0, RECORD_MAGIC);
}

const RECORD_FIXED: usize = 72;

impl Record {
    /// Blocks of a header.
    pub fn header_blocks(entries: usize, revokes: usize) -> u64 {
        (RECORD_FIXED + entries * 16 + revokes * 8).div_ceil(BLOCK) as u64
    }

    pub fn encode(&self, fs_id: u64) -> Vec<u8> {
        let blocks = Record::header_blocks(self.entries.len(), self.revokes.len());
        let mut b = vec![0; blocks as usize * BLOCK];
        put32(&mut b, 0, RECORD_MAGIC);
        for (i, v) in [fs_id, self.epoch, self.seq, self.durable].into_iter().enumerate() {
            put64(&mut b, 8 + i * 8, v);
        }
        let counts = [self.part, self.parts, self.entries.len() as u32, self.revokes.len() as u32];
        for (i, v) in counts.into_iter().enumerate() {
            put32(&mut b, 40 + i * 4, v);
        }
        let mut at = RECORD_FIXED;
        for e in &self.entries {
            put64(&mut b, at, e.home);
            put32(&mut b, at + 8, e.crc);
            let flag = |is_set, flag| if is_set { flag } else { 0 };
            put32(&mut b, at + 12, flag(e.anywhere, ENTRY_ANYWHERE) | flag(e.escaped, ENTRY_ESCAPED));
            at += 16;
        }
        for &r in &self.revokes {
            put64(&mut b, at, r);
            at += 8;
        }
        let crc = crc_without(&b, 4);
        put32(&mut b, 4, crc);
        b
    }

    /// Returns whether it is a record's first block, of this file system. Says nothing about the rest.
    pub fn starts(b: &[u8], fs_id: u64) -> bool {
        u32_at(b, 0) == RECORD_MAGIC && u64_at(b, 8) == fs_id
    }

    /// Blocks of the header and of the payload, as the first block claims.
    pub fn lengths(b: &[u8]) -> (u64, u64) {
        let (entries, revokes) = (u32_at(b, 48) as usize, u32_at(b, 52) as usize);
        (Record::header_blocks(entries, revokes), entries as u64)
    }

    /// Number of revoked blocks, as the first block claims.
    pub fn revokes(b: &[u8]) -> u64 {
        u32_at(b, 52).into()
    }

    /// The epoch and the number, as the first block claims.
    pub fn claims(b: &[u8]) -> (u64, u64) {
        (u64_at(b, 16), u64_at(b, 24))
    }

    /// Decodes a whole header; none if its checksum is wrong.
    pub fn decode(b: &[u8], fs_id: u64) -> Option<Record> {
        if !Record::starts(b, fs_id) || u32_at(b, 4) != crc_without(b, 4) {
            return None;
        }
        let (entries, revokes) = (u32_at(b, 48) as usize, u32_at(b, 52) as usize);
        if Record::header_blocks(entries, revokes) as usize * BLOCK != b.len() {
            return None;
        }
        let entry = |i: usize| {
            let at = RECORD_FIXED + i * 16;
            let is_set = |flag| u32_at(b, at + 12) & flag != 0;
            RecordEntry {
                home: u64_at(b, at),
                crc: u32_at(b, at + 8),
                anywhere: is_set(ENTRY_ANYWHERE),
                escaped: is_set(ENTRY_ESCAPED),
            }
        };
        let revoked = RECORD_FIXED + entries * 16;
        Some(Record {
            epoch: u64_at(b, 16),
            seq: u64_at(b, 24),
            durable: u64_at(b, 32),
            part: u32_at(b, 40),
            parts: u32_at(b, 44),
            entries: (0..entries).map(entry).collect(),
            revokes: (0..revokes).map(|i| u64_at(b, revoked + i * 8)).collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_superblock_of_a_newer_version_is_refused_by_name() {
        let sb = Super {
            version: VERSION,
            fs_id: 7,
            hash_seed: 8,
            generation: 3,
            mode: Mode::ALL[0],
            blocks: 1000,
            group_blocks: 100,
            inodes_per_group: 10,
            log_blocks: 10,
            journal_blocks: 0,
            logged_write_blocks: 1,
            epoch: 1,
            checkpoint_seq: 0,
            durable_seq: 0,
            epochs: vec![(0, 5)],
        };
        let mut b = sb.encode(0);
        assert_eq!(Super::decode(&b, 0).expect("whole"), sb);
        put64(&mut b, HEADER, u64::from(VERSION) + 1);
        seal(&mut b, Kind::Super, 0, sb.fs_id);
        let e = Super::decode(&b, 0).expect_err("newer").to_string();
        assert!(e.contains("superblock at block 0: has version 3 of the format, and this program knows 1 to 2"), "{e}");
    }
}
