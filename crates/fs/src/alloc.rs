//! Bitmaps of blocks and of inodes.

use std::ops::Range;

use rustix::io::Errno;

use crate::error::{Error, Result};
use crate::extents::Extents;
use crate::format::{HEADER, INODE_BYTES, Inode, Kind, ROOT_BYTES};
use crate::fs::{Fs, Node, Planted, S_IFDIR, S_IFMT};

/// Blocks kept for directories that are split, and for files without a name.
const SLACK: u64 = 16;

fn bit(b: &[u8], i: u64) -> bool {
    b[HEADER + (i / 8) as usize] & (1 << (i % 8)) != 0
}

fn set_bit(b: &mut [u8], i: u64, on: bool) {
    let (byte, mask) = (HEADER + (i / 8) as usize, 1 << (i % 8));
    if on { b[byte] |= mask } else { b[byte] &= !mask }
}

impl Fs {
    /// Free blocks of all groups, by their summaries.
    pub(crate) fn counted_free_blocks(&self) -> u64 {
        self.groups.iter().map(|g| u64::from(g.free_blocks)).sum()
    }

    /// Free blocks that nothing needs.
    pub(crate) fn room(&self) -> u64 {
        self.free_blocks.saturating_sub(self.reserved + self.tree_need + self.pinned_blocks + SLACK)
    }

    /// Refuses what the free space can't hold: called before an operation changes anything.
    pub(crate) fn need_blocks(&self, blocks: u64) -> Result<()> {
        if self.room() < blocks { Err(Errno::NOSPC.into()) } else { self.has_slack(SLACK) }
    }

    fn has_slack(&self, slack: u64) -> Result<()> {
        let taken = self.reserved + self.tree_need + self.pinned_blocks + slack;
        if self.free_blocks < taken { Err(Errno::NOSPC.into()) } else { Ok(()) }
    }

    /// Refuses a few blocks for a directory that must grow on a full disk: it may use a half of the blocks that are kept.
    pub(crate) fn need_slack(&self) -> Result<()> {
        self.has_slack(SLACK / 2)
    }

    /// Returns what `judge` finds while `adds` more extents are expected at a file's block. Refuses more than its tree can have.
    fn with_extents<T>(
        &mut self,
        ino: u64,
        logical: u64,
        adds: u64,
        judge: impl FnOnce(&Fs) -> Result<T>,
    ) -> Result<T> {
        let fit = self.change_extents(ino, |x| {
            x.expect(logical, 0, adds);
            x.fit_tree()
        });
        let result = if fit { judge(self) } else { Err(Errno::FBIG.into()) };
        self.change_extents(ino, |x| x.expect(logical, adds, 0));
        result
    }

    /// Expects `adds` more extents at each of a file's blocks, for which `blocks` more blocks are needed. Refuses what has no room.
    pub(crate) fn expect_extents(&mut self, ino: u64, run: Range<u64>, adds: u64, blocks: u64) -> Result<()> {
        let fit = self.change_extents(ino, |x| {
            run.clone().for_each(|page| x.expect(page, 0, adds));
            x.fit_tree()
        });
        let result = if fit { self.need_blocks(blocks) } else { Err(Errno::FBIG.into()) };
        if result.is_err() {
            self.change_extents(ino, |x| run.for_each(|page| x.expect(page, adds, 0)));
        }
        result
    }

    /// Refuses `adds` more extents at a file's block if their leaves, or `blocks` more blocks, have no room. Returns the room for blocks.
    pub(crate) fn need_extents(&mut self, ino: u64, logical: u64, adds: u64, blocks: u64) -> Result<u64> {
        self.with_extents(ino, logical, adds, |fs| fs.need_blocks(blocks).map(|()| fs.room()))
    }

    /// Refuses to cut an extent if the leaf for its parts has no room. A cut frees blocks, but not before a record: it may use a half
    /// of the blocks that are kept.
    pub(crate) fn need_cut(&mut self, ino: u64, logical: u64, adds: u64) -> Result<()> {
        self.with_extents(ino, logical, adds, |fs| fs.has_slack(SLACK / 2))
    }

    /// Refuses two buckets more than a directory's tree can have.
    pub(crate) fn need_buckets(&mut self, dir: u64, logical: u64) -> Result<()> {
        self.with_extents(dir, logical, 2, |_| Ok(())).map_err(|_| Errno::NOSPC.into())
    }

    /// Writes a group's first, empty bitmaps into the cache.
    fn init_group(&mut self, group: u64) {
        let s = &mut self.groups[group as usize];
        if s.flags & 1 == 0 {
            s.flags |= 1;
            self.groups_dirty.insert(group);
            self.new_block(self.geo.block_bitmap(group), Kind::Blocks);
            self.new_block(self.geo.inode_bitmap(group), Kind::Inodes);
        }
    }

    fn is_pinned(&self, block: u64) -> Option<u64> {
        let (&start, &(len, _)) = self.pinned.range(..=block).next_back()?;
        (block < start + len && !self.plants(Planted::EarlyReuse)).then_some(start + len)
    }

    /// Returns the best address of a file's next block.
    pub(crate) fn goal(&self, ino: u64, x: &Extents) -> u64 {
        if let Some(e) = x.iter().last() {
            return e.physical + e.len;
        }
        let group = self.geo.inode_place(ino).map_or(0, |(g, _)| g);
        self.geo.data(group).start
    }

    /// Allocates a run of 1 to `want` blocks, near `goal`.
    pub(crate) fn allocate(&mut self, goal: u64, want: u64) -> Result<(u64, u64)> {
        let first = self.geo.group_of(goal);
        for i in 0..self.geo.groups {
            let group = (first + i) % self.geo.groups;
            if !self.geo.is_usable(group) || self.groups[group as usize].free_blocks == 0 {
                continue;
            }
            let from = if i == 0 { goal } else { 0 };
            if let Some((start, len)) = self.allocate_in(group, from, want)? {
                return Ok((start, len));
            }
        }
        Err(Errno::NOSPC.into())
    }

    fn allocate_in(&mut self, group: u64, goal: u64, want: u64) -> Result<Option<(u64, u64)>> {
        self.init_group(group);
        let data = self.geo.data(group);
        let goal = goal.clamp(data.start, data.end - 1);
        let bitmap = self.geo.block_bitmap(group);
        self.block(bitmap, Kind::Blocks)?;
        let b = &self.cache[&bitmap].data;
        let find = |from: u64, to: u64| {
            let mut at = from;
            while at < to {
                if at % 8 == data.start % 8 && b[HEADER + ((at - data.start) / 8) as usize] == 0xff {
                    at += 8;
                } else if bit(b, at - data.start) {
                    at += 1;
                } else if let Some(end) = self.is_pinned(at) {
                    at = end;
                } else {
                    return Some(at);
                }
            }
            None
        };
        let Some(start) = find(goal, data.end).or_else(|| find(data.start, goal)) else { return Ok(None) };
        let is_free = |at: u64| at < data.end && !bit(b, at - data.start) && self.is_pinned(at).is_none();
        let mut len = 1;
        while len < want && is_free(start + len) {
            len += 1;
        }
        let b = self.block_mut(bitmap, Kind::Blocks)?;
        (start..start + len).for_each(|at| set_bit(b, at - data.start, true));
        let s = &mut self.groups[group as usize];
        s.free_blocks = s.free_blocks.checked_sub(len as u32).ok_or_else(|| miscounted(group))?;
        self.free_blocks -= len;
        self.groups_dirty.insert(group);
        // A block that a planted mistake gives away early isn't pinned any more.
        if self.plants(Planted::EarlyReuse) {
            self.unpin(start, len);
        }
        Ok(Some((start, len)))
    }

    fn unpin(&mut self, start: u64, len: u64) {
        self.pinned.retain(|&s, &mut (l, _)| s + l <= start || start + len <= s);
        self.pinned_blocks = self.pinned.values().map(|p| p.0).sum();
    }

    /// Returns the error that [`Fs::free`] would meet.
    pub(crate) fn can_free(&mut self, start: u64, len: u64) -> Result<()> {
        let group = self.geo.group_of(start);
        let data = self.geo.data(group);
        let b = self.block(self.geo.block_bitmap(group), Kind::Blocks)?;
        match (start..start + len).find(|at| !bit(b, at - data.start)) {
            Some(at) => Err(Error::Corrupt(format!("block {at} is freed twice"))),
            None => Ok(()),
        }
    }

    /// Frees a run. It isn't given away before the record that frees it is durable.
    pub(crate) fn free(&mut self, start: u64, len: u64) -> Result<()> {
        self.can_free(start, len)?;
        let group = self.geo.group_of(start);
        let data = self.geo.data(group);
        let b = self.block_mut(self.geo.block_bitmap(group), Kind::Blocks)?;
        (start..start + len).for_each(|at| set_bit(b, at - data.start, false));
        let s = &mut self.groups[group as usize];
        s.free_blocks += len as u32;
        self.free_blocks += len;
        self.groups_dirty.insert(group);
        self.pinned.insert(start, (len, 0));
        self.pinned_blocks += len;
        for at in start..start + len {
            self.cache.remove(&at);
            self.dirty_blocks.remove(&at);
            self.journal.revoke(at);
        }
        Ok(())
    }

    pub(crate) fn inode_in_use(&mut self, group: u64, index: u64) -> Result<bool> {
        if self.groups[group as usize].flags & 1 == 0 {
            return Ok(false);
        }
        Ok(bit(self.block(self.geo.inode_bitmap(group), Kind::Inodes)?, index))
    }

    /// Allocates an inode: a directory in the emptiest group, a file in its parent's.
    pub(crate) fn allocate_inode(&mut self, parent: u64, inode: Inode) -> Result<u64> {
        let is_dir = inode.mode & S_IFMT == S_IFDIR;
        let near = self.geo.inode_place(parent).map_or(0, |(g, _)| g);
        let mut order = (0..self.geo.groups)
            .map(|i| (near + i) % self.geo.groups)
            .filter(|&g| self.geo.is_usable(g) && self.groups[g as usize].free_inodes > 0);
        let group = if is_dir {
            // Directories spread, so that their files have room near them.
            order.min_by_key(|&g| std::cmp::Reverse(self.groups[g as usize].free_blocks))
        } else {
            order.next()
        };
        let Some(group) = group else { return Err(Errno::NOSPC.into()) };
        self.init_group(group);
        let bitmap = self.geo.inode_bitmap(group);
        let inodes = self.geo.inodes_per_group;
        let b = self.block(bitmap, Kind::Inodes)?;
        let first = (0..inodes.div_ceil(8)).find(|&byte| b[HEADER + byte as usize] != 0xff).unwrap_or(0) * 8;
        let index = (first..inodes).find(|&i| !bit(b, i)).ok_or_else(|| miscounted(group))?;
        let per = crate::format::INODES_PER_BLOCK;
        let siblings = index / per * per..index / per * per + per;
        let is_fresh = siblings.clone().all(|i| !bit(b, i));
        set_bit(self.block_mut(bitmap, Kind::Inodes)?, index, true);
        let (block, slot) = self.geo.inode_block(group, index);
        // The generation outlives the inode where its block has been written before.
        let mut generation = self.now.1 ^ self.now.0 as u32;
        if is_fresh && self.block(block, Kind::Table).is_err() {
            self.new_block(block, Kind::Table);
        } else {
            let at = HEADER + slot * INODE_BYTES;
            generation =
                Inode::decode(&self.block(block, Kind::Table)?[at..at + INODE_BYTES]).generation.wrapping_add(1);
        }
        let s = &mut self.groups[group as usize];
        s.free_inodes -= 1;
        s.dirs += u32::from(is_dir);
        self.groups_dirty.insert(group);
        let ino = self.geo.ino(group, index);
        let inode = Inode { generation, root: vec![0; ROOT_BYTES], ..inode };
        let node =
            Node { inode, size: 0, extents: Extents::default(), pages: Default::default(), dirty: true, opens: 0 };
        self.nodes.insert(ino, node);
        Ok(ino)
    }

    /// Returns the error that [`Fs::free_inode`] would meet.
    pub(crate) fn can_free_inode(&mut self, ino: u64) -> Result<()> {
        let (group, index) = self.geo.inode_place(ino).ok_or(Errno::STALE)?;
        self.block(self.geo.inode_block(group, index).0, Kind::Table)?;
        self.block(self.geo.inode_bitmap(group), Kind::Inodes)?;
        Ok(())
    }

    /// Frees an inode without blocks.
    pub(crate) fn free_inode(&mut self, ino: u64) -> Result<()> {
        let node = self.nodes.get_mut(&ino).expect("it was emptied");
        let is_dir = node.is_dir();
        let generation = node.inode.generation;
        node.inode = Inode { generation, root: vec![0; ROOT_BYTES], ..Inode::default() };
        self.store_node(ino)?;
        self.nodes.remove(&ino);
        self.names.remove(&ino);
        self.must_write.remove(&ino);
        let (group, index) = self.geo.inode_place(ino).ok_or(Errno::STALE)?;
        set_bit(self.block_mut(self.geo.inode_bitmap(group), Kind::Inodes)?, index, false);
        let s = &mut self.groups[group as usize];
        s.free_inodes += 1;
        s.dirs = s.dirs.saturating_sub(is_dir.into());
        self.groups_dirty.insert(group);
        Ok(())
    }

    /// A group's bitmaps by what `blocks` and `inodes` say, for fsck. True if they differed.
    pub(crate) fn rebuild_bitmaps(
        &mut self,
        group: u64,
        blocks: &dyn Fn(u64) -> bool,
        inodes: &dyn Fn(u64) -> Option<bool>,
        repair: bool,
    ) -> Result<bool> {
        let data = self.geo.data(group);
        let old = self.groups[group as usize];
        let mut new = crate::fs::Summary { flags: 1, ..Default::default() };
        let mut bits = [vec![0; crate::disk::BLOCK], vec![0; crate::disk::BLOCK]];
        for at in data.clone() {
            set_bit(&mut bits[0], at - data.start, blocks(at));
            new.free_blocks += u32::from(!blocks(at));
        }
        for i in 0..self.geo.inodes_per_group {
            let used = inodes(self.geo.ino(group, i));
            set_bit(&mut bits[1], i, used.is_some());
            new.free_inodes += u32::from(used.is_none());
            new.dirs += u32::from(used == Some(true));
        }
        if old.flags != 1 && bits.iter().all(|b| b.iter().all(|&x| x == 0)) {
            new.flags = 0;
        }
        let places = [(self.geo.block_bitmap(group), Kind::Blocks), (self.geo.inode_bitmap(group), Kind::Inodes)];
        let mut differs = old != new;
        for ((block, kind), new_bits) in places.into_iter().zip(bits) {
            let same = new.flags & 1 == 0 || self.block(block, kind).is_ok_and(|b| b[HEADER..] == new_bits[HEADER..]);
            differs |= !same;
            if repair && !same {
                self.new_block(block, kind).copy_from_slice(&new_bits);
            }
        }
        if repair && differs {
            self.free_blocks = self.free_blocks + u64::from(new.free_blocks) - u64::from(old.free_blocks);
            self.groups[group as usize] = new;
            self.groups_dirty.insert(group);
        }
        Ok(differs)
    }
}

fn miscounted(group: u64) -> Error {
    Error::Corrupt(format!("group {group} has fewer free blocks or inodes than its summary says"))
}

#[cfg(test)]
mod tests {
    use crate::extents::Extent;
    use crate::format::{BLOCK_ENTRIES, ROOT_ENTRIES};
    use crate::fs::tests::{file, new};
    use crate::{BLOCK, Error};
    use rustix::io::Errno;

    /// Nearly all of its extents are made at once: their blocks are nowhere.
    #[test]
    fn a_file_of_too_many_extents_is_efbig_and_harms_nobody() {
        let (_, mut fs) = new(400_000);
        let (a, b) = (file(&mut fs, b"a"), file(&mut fs, b"b"));
        // What a sync of all of them puts into a leaf.
        let mut next = (ROOT_ENTRIES * BLOCK_ENTRIES) as u64 * (BLOCK_ENTRIES as u64 * 3 / 4) - 1000;
        fs.change_extents(a, |x| {
            let one = |i| Extent { logical: 2 * i, len: 1, physical: 2 * i, unwritten: false };
            (0..next).for_each(|i| x.insert(one(i)));
        });
        fs.sync(None).unwrap();
        let mut written = 0;
        let full = loop {
            if fs.must_commit() {
                fs.sync(None).unwrap();
            }
            match fs.write(a, 2 * next * BLOCK as u64, &[1]) {
                Ok(_) => (next, written) = (next + 1, written + 1),
                Err(e) => break e,
            }
        };
        assert_eq!(full, Error::Os(Errno::FBIG));
        assert!((500..2000).contains(&written), "{written}");
        fs.write(b, 0, b"b").unwrap();
        fs.sync(None).unwrap();
        // A page that has a block takes no more of the map, and a hole over it none.
        fs.write(a, 2 * (next - 1) * BLOCK as u64, &[2]).unwrap();
        fs.fallocate(a, crate::Fallocate::Punch, 2 * (next - 1) * BLOCK as u64, BLOCK as u64, true).unwrap();
        fs.sync(None).unwrap();
        assert_eq!(fs.read(b, 0, 1).unwrap(), b"b");
    }
}
