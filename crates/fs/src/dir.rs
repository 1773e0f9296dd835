//! Directories: a trie of hash buckets, a block each.
//!
//! A name's hash has 63 bits. The bucket at depth d for the first d bits p is the file block `2^d + p - 1`; a bucket that is full
//! is replaced by two, one deeper. So a look-up needs no index beyond the directory's extents, and reads one block.

use rustix::io::Errno;

use crate::disk::BLOCK;
use crate::error::{Error, Result};
use crate::extents::Extent;
use crate::format::{HEADER, Kind, PAYLOAD, put16, put64, u16_at, u64_at};
use crate::fs::{Fs, ORPHANS};

const HASH_BITS: u32 = 63;
const DEPTH_MAX: u32 = 30;
const FIRST: usize = HEADER + 8;
const ROOM: usize = PAYLOAD - 8;
/// Cookies up to this one stand for `.` and `..`.
const DOTS: u64 = 2;
pub(crate) const NAME_MAX: usize = 255;

/// An entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its inode.
    pub ino: u64,
    /// Type bits of its mode.
    pub kind: u32,
    /// Its name.
    pub name: Vec<u8>,
    /// Position of a listing that goes on behind it.
    pub cookie: u64,
}

struct Bucket {
    depth: u32,
    logical: u64,
    block: u64,
}

fn logical_of(hash: u64, depth: u32) -> u64 {
    (1 << depth) + if depth == 0 { 0 } else { hash >> (HASH_BITS - depth) } - 1
}

fn decode(b: &[u8], block: u64, hash: impl Fn(&[u8]) -> u64) -> Result<Vec<Entry>> {
    let bad = || Error::Corrupt(format!("directory block {block}"));
    let (count, used) = (usize::from(u16_at(b, HEADER)), usize::from(u16_at(b, HEADER + 2)));
    if used > ROOM {
        return Err(bad());
    }
    let (mut at, end) = (FIRST, FIRST + used);
    let mut entries = Vec::with_capacity(count.min(ROOM / 11));
    for _ in 0..count {
        if at + 10 > end {
            return Err(bad());
        }
        let (ino, kind, len) = (u64_at(b, at), b[at + 8], usize::from(b[at + 9]));
        if at + 10 + len > end || len == 0 {
            return Err(bad());
        }
        let name = b[at + 10..at + 10 + len].to_vec();
        let cookie = hash(&name);
        entries.push(Entry { ino, kind: u32::from(kind) << 12, name, cookie });
        at += 10 + len;
    }
    Ok(entries)
}

fn bytes(entries: &[Entry]) -> usize {
    entries.iter().map(|e| 10 + e.name.len()).sum()
}

impl Fs {
    fn hash(&self, name: &[u8]) -> u64 {
        (xxhash_rust::xxh3::xxh3_64_with_seed(name, self.sb.fs_id) >> 1).max(DOTS + 1)
    }

    fn bucket(&mut self, dir: u64, hash: u64) -> Result<Option<Bucket>> {
        let x = &self.node(dir)?.extents;
        if x.len() == 0 {
            return Ok(None);
        }
        for depth in 0..=DEPTH_MAX {
            let logical = logical_of(hash, depth);
            if let Some(e) = x.get(logical) {
                return Ok(Some(Bucket { depth, logical, block: e.physical + (logical - e.logical) }));
            }
        }
        Err(Error::Corrupt(format!("directory {dir} has a gap")))
    }

    pub(crate) fn bucket_entries(&mut self, block: u64) -> Result<Vec<Entry>> {
        let b = self.block(block, Kind::Dir)?.to_vec();
        decode(&b, block, |name| self.hash(name))
    }

    fn store_bucket(&mut self, block: u64, entries: &[Entry]) -> Result<()> {
        let b = self.block_mut(block, Kind::Dir)?;
        b[HEADER..].fill(0);
        put16(b, HEADER, entries.len() as u16);
        put16(b, HEADER + 2, bytes(entries) as u16);
        let mut at = FIRST;
        for e in entries {
            put64(b, at, e.ino);
            b[at + 8] = (e.kind >> 12) as u8;
            b[at + 9] = e.name.len() as u8;
            b[at + 10..at + 10 + e.name.len()].copy_from_slice(&e.name);
            at += 10 + e.name.len();
        }
        Ok(())
    }

    /// Gives a directory a bucket.
    fn add_bucket(&mut self, dir: u64, logical: u64) -> Result<u64> {
        let node = self.nodes.get(&dir).expect("loaded by the caller");
        let goal = node.extents.iter().last().map_or_else(|| self.goal(dir, &node.extents), |e| e.physical + e.len);
        let block = self.allocate(goal, 1)?.0;
        self.new_block(block, Kind::Dir);
        self.change_extents(dir, |x| x.insert(Extent { logical, len: 1, physical: block, unwritten: false }));
        let n = self.node(dir)?;
        n.inode.blocks += 1;
        n.inode.size += BLOCK as u64;
        n.size = n.inode.size;
        n.dirty = true;
        Ok(block)
    }

    /// An entry by its name.
    pub(crate) fn find(&mut self, dir: u64, name: &[u8]) -> Result<Option<Entry>> {
        let hash = self.hash(name);
        let Some(bucket) = self.bucket(dir, hash)? else { return Ok(None) };
        Ok(self.bucket_entries(bucket.block)?.into_iter().find(|e| e.name == name))
    }

    /// Adds a name that isn't there.
    pub(crate) fn add_entry(&mut self, dir: u64, name: &[u8], ino: u64, kind: u32) -> Result<()> {
        let hash = self.hash(name);
        let entry = Entry { ino, kind, name: name.to_vec(), cookie: hash };
        if self.bucket(dir, hash)?.is_none() {
            self.add_bucket(dir, 0)?;
        }
        loop {
            let bucket = self.bucket(dir, hash)?.ok_or_else(|| Error::Corrupt(format!("directory {dir}")))?;
            let mut entries = self.bucket_entries(bucket.block)?;
            if bytes(&entries) + 10 + name.len() <= ROOM {
                entries.push(entry);
                return self.store_bucket(bucket.block, &entries);
            }
            if bucket.depth == DEPTH_MAX {
                return Err(Errno::NOSPC.into());
            }
            if dir == ORPHANS {
                // On a full disk, too, a file that is open can be deleted.
                self.need_slack()?;
            } else {
                self.need_blocks(4)?;
            }
            self.change_extents(dir, |x| x.remove(bucket.logical, bucket.logical + 1));
            let n = self.node(dir)?;
            n.inode.blocks -= 1;
            n.inode.size -= BLOCK as u64;
            let next = logical_of(hash, bucket.depth + 1);
            // Of two siblings the left one is odd: 2i + 1 and 2i + 2.
            let left = if next % 2 == 1 { next } else { next - 1 };
            let (zeroes, ones): (Vec<Entry>, Vec<Entry>) =
                entries.into_iter().partition(|e| logical_of(e.cookie, bucket.depth + 1) == left);
            for (logical, part) in [(left, zeroes), (left + 1, ones)] {
                let block = self.add_bucket(dir, logical)?;
                self.store_bucket(block, &part)?;
            }
            self.free(bucket.block, 1)?;
        }
    }

    /// Takes a name out, or points it elsewhere.
    pub(crate) fn change_entry(&mut self, dir: u64, name: &[u8], to: Option<(u64, u32)>) -> Result<()> {
        let hash = self.hash(name);
        let bucket = self.bucket(dir, hash)?.ok_or(Errno::NOENT)?;
        let mut entries = self.bucket_entries(bucket.block)?;
        let i = entries.iter().position(|e| e.name == name).ok_or(Errno::NOENT)?;
        match to {
            Some((ino, kind)) => (entries[i].ino, entries[i].kind) = (ino, kind),
            None => drop(entries.remove(i)),
        }
        self.store_bucket(bucket.block, &entries)
    }

    /// Up to about `max` entries behind a cookie (0: from the start), without `.` and `..`.
    ///
    /// # Errors
    /// `ENOTDIR`; corrupt blocks.
    pub fn readdir(&mut self, dir: u64, cookie: u64, max: usize) -> Result<Vec<Entry>> {
        if !self.node(dir)?.is_dir() {
            return Err(Errno::NOTDIR.into());
        }
        let mut found = Vec::new();
        let mut hash = cookie.saturating_add(1);
        while found.len() < max && hash < 1 << HASH_BITS {
            let Some(bucket) = self.bucket(dir, hash)? else { break };
            let mut entries = self.bucket_entries(bucket.block)?;
            entries.retain(|e| e.cookie >= hash);
            entries.sort_by(|a, b| (a.cookie, &a.name).cmp(&(b.cookie, &b.name)));
            found.append(&mut entries);
            let shift = HASH_BITS - bucket.depth;
            hash = if bucket.depth == 0 { 1 << HASH_BITS } else { ((hash >> shift) + 1) << shift };
        }
        Ok(found)
    }

    pub(crate) fn is_empty(&mut self, dir: u64) -> Result<bool> {
        Ok(self.readdir(dir, 0, 1)?.is_empty())
    }
}
