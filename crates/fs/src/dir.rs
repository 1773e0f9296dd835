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

/// A place in a directory's trie.
pub(crate) enum Place {
    /// A bucket's block in the file and on the device.
    Bucket(u64, u64),
    /// The file block of a bucket that closes the gap.
    Gap(u64),
}

fn logical_of(hash: u64, depth: u32) -> u64 {
    (1 << depth) + if depth == 0 { 0 } else { hash >> (HASH_BITS - depth) } - 1
}

/// The first hash behind a bucket.
fn behind(hash: u64, depth: u32) -> u64 {
    let shift = HASH_BITS - depth;
    ((hash >> shift) + 1) << shift
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
        (xxhash_rust::xxh3::xxh3_64_with_seed(name, self.sb.hash_seed) >> 1).max(DOTS + 1)
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

    /// The place of a hash and the first hash behind it, for fsck. None at the end.
    pub(crate) fn place(&mut self, dir: u64, hash: u64) -> Result<Option<(Place, u64)>> {
        if hash >= 1 << HASH_BITS {
            return Ok(None);
        }
        match self.bucket(dir, hash) {
            Ok(None) => return Ok(None),
            Ok(Some(b)) => return Ok(Some((Place::Bucket(b.logical, b.block), behind(hash, b.depth)))),
            Err(Error::Corrupt(_)) => {}
            Err(e) => return Err(e),
        }
        let x = &self.node(dir)?.extents;
        // The widest bucket that has none below it.
        let is_empty = |depth: u32| {
            (depth..=DEPTH_MAX).all(|below| {
                let first = (1 << below) - 1 + (hash >> (HASH_BITS - depth) << (below - depth));
                x.next(first).is_none_or(|e| e.logical >= first + (1 << (below - depth)))
            })
        };
        let depth = (0..DEPTH_MAX).find(|&d| is_empty(d)).unwrap_or(DEPTH_MAX);
        Ok(Some((Place::Gap(logical_of(hash, depth)), behind(hash, depth))))
    }

    /// Closes a gap with an empty bucket; returns its block.
    pub(crate) fn close_gap(&mut self, dir: u64, logical: u64) -> Result<u64> {
        let block = self.allocate_buckets(dir, 1)?[0];
        self.put_bucket(dir, logical, block, &[])?;
        Ok(block)
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

    /// Allocates blocks for buckets, or none.
    fn allocate_buckets(&mut self, dir: u64, count: usize) -> Result<Vec<u64>> {
        let node = self.nodes.get(&dir).expect("loaded by the caller");
        let goal = node.extents.iter().last().map_or_else(|| self.goal(dir, &node.extents), |e| e.physical + e.len);
        let mut blocks = Vec::with_capacity(count);
        while blocks.len() < count {
            match self.allocate(goal, 1) {
                Ok((block, _)) => blocks.push(block),
                Err(e) => {
                    blocks.into_iter().try_for_each(|b| self.free(b, 1))?;
                    return Err(e);
                }
            }
        }
        Ok(blocks)
    }

    /// Makes an allocated block a bucket.
    fn put_bucket(&mut self, dir: u64, logical: u64, block: u64, entries: &[Entry]) -> Result<()> {
        self.new_block(block, Kind::Dir);
        self.store_bucket(block, entries)?;
        self.change_extents(dir, |x| x.insert(Extent { logical, len: 1, physical: block, unwritten: false }));
        let n = self.node(dir)?;
        n.inode.blocks += 1;
        n.inode.size += BLOCK as u64;
        n.size = n.inode.size;
        n.dirty = true;
        Ok(())
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
            self.close_gap(dir, 0)?;
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
            let next = logical_of(hash, bucket.depth + 1);
            // Of two siblings the left one is odd: 2i + 1 and 2i + 2.
            let left = if next % 2 == 1 { next } else { next - 1 };
            if self.node(dir)?.extents.next(left).is_some_and(|e| e.logical <= left + 1) {
                return Err(Error::Corrupt(format!("directory {dir} has buckets below a bucket")));
            }
            if dir == ORPHANS {
                // On a full disk, too, a file that is open can be deleted.
                self.need_slack()?;
            } else {
                self.need_blocks(4)?;
            }
            self.need_buckets(dir, left)?;
            // The steps that can fail come first: the bucket stays as it was.
            let blocks = self.allocate_buckets(dir, 2)?;
            if let Err(e) = self.free(bucket.block, 1) {
                blocks.into_iter().try_for_each(|b| self.free(b, 1))?;
                return Err(e);
            }
            self.change_extents(dir, |x| x.remove(bucket.logical, bucket.logical + 1));
            let n = self.node(dir)?;
            n.inode.blocks -= 1;
            n.inode.size -= BLOCK as u64;
            let (zeroes, ones): (Vec<Entry>, Vec<Entry>) =
                entries.into_iter().partition(|e| logical_of(e.cookie, bucket.depth + 1) == left);
            for (block, logical, part) in [(blocks[0], left, zeroes), (blocks[1], left + 1, ones)] {
                self.put_bucket(dir, logical, block, &part)?;
            }
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
            hash = behind(hash, bucket.depth);
        }
        Ok(found)
    }

    pub(crate) fn is_empty(&mut self, dir: u64) -> Result<bool> {
        Ok(self.readdir(dir, 0, 1)?.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::tests::{Unreadable, file, new};
    use crate::{Disk, Fallocate, Options, ROOT, Rename, fsck};
    use std::sync::Arc;
    use std::sync::atomic::Ordering;

    fn names(fs: &mut Fs) -> Vec<Vec<u8>> {
        let mut names: Vec<Vec<u8>> = fs.readdir(ROOT, 0, usize::MAX).unwrap().into_iter().map(|e| e.name).collect();
        names.sort();
        names
    }

    fn mount(disk: &Arc<Unreadable>) -> Fs {
        Fs::mount(disk.clone(), Options::default()).unwrap()
    }

    /// The root's bucket is in group 0. It is full, and a bitmap that its split needs can't be read.
    #[test]
    fn a_split_that_fails_keeps_the_names_of_the_bucket() {
        // For the first new bucket, for the second one, to free the old one.
        for (free, group) in [(50, 0), (1, 1), (0, 0)] {
            let (disk, mut fs) = new(4096);
            let filler = file(&mut fs, b"filler");
            let len = u64::from(fs.groups[0].free_blocks) - free;
            fs.fallocate(filler, Fallocate::Allocate, 0, len * BLOCK as u64, false).unwrap();
            assert_eq!(u64::from(fs.groups[0].free_blocks), free);
            let bitmap_is_written = fs.allocate(fs.geo.data(1).start, 1).unwrap();
            fs.free(bitmap_is_written.0, 1).unwrap();
            fs.unmount().unwrap();
            fs = mount(&disk);
            let before = names(&mut fs);
            disk.block.store(fs.geo.block_bitmap(group), Ordering::Relaxed);
            let space = fs.statfs();
            let mut created = before.clone();
            let failed = loop {
                let name = format!("{:0200}", created.len());
                match fs.create(ROOT, name.as_bytes(), 0o100_644, (0, 0), 0) {
                    Ok(_) => created.push(name.into_bytes()),
                    Err(e) => break e,
                }
            };
            assert!(matches!(failed, Error::Device(_)), "{failed}");
            created.sort();
            assert!(created.len() > before.len() + 10);
            let how = Rename { whiteout: Some((0, 0)), ..Rename::default() };
            let renamed = fs.rename((ROOT, b"filler"), (ROOT, &[b'x'; 250]), how);
            assert!(matches!(renamed, Err(Error::Device(_))), "{renamed:?}");
            assert_eq!(names(&mut fs), created, "{free} {group}");
            fs.sync(None).unwrap();
            assert_eq!(fs.statfs().blocks_free, space.blocks_free);
            disk.block.store(u64::MAX, Ordering::Relaxed);
            drop(fs);
            fs = mount(&disk);
            assert_eq!(names(&mut fs), created, "{free} {group}");
            file(&mut fs, &[b'x'; 250]);
            assert_eq!(names(&mut fs).len(), created.len() + 1);
            fs.unmount().unwrap();
            let disk: Arc<dyn Disk> = disk;
            assert_eq!(fsck(disk, false).unwrap().problems, Vec::<String>::new());
        }
    }
}
