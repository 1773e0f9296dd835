//! Content of files: dirty pages in memory until they are written back, everything else on the device.

use std::ops::Range;
use std::sync::Arc;

use rustix::io::Errno;

use crate::disk::BLOCK;
use crate::error::Result;
use crate::extents::Extent;
use crate::format::FILE_BLOCKS_MAX;
use crate::fs::{Fs, Page};

const B: u64 = BLOCK as u64;
/// Blocks that an allocation leaves free: data in allocated blocks cut their extents, and need leaves.
const FOR_CUTS: u64 = 8;

/// Returns a block of memory with content, `spare` memory if there is some that nobody else has.
fn filled(spare: &mut Vec<Arc<[u8]>>, content: &[u8]) -> Arc<[u8]> {
    while let Some(mut block) = spare.pop() {
        if let Some(to) = Arc::get_mut(&mut block) {
            to.copy_from_slice(content);
            return block;
        }
    }
    content.into()
}

/// Extents that the write-back of a page may add, by the extent that it is in. Data within one of zeroes cut it into three.
fn added(extent: Option<Extent>) -> u64 {
    match extent {
        None => 1,
        Some(e) if e.unwritten => 2,
        Some(_) => 0,
    }
}

/// A change of a file's allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fallocate {
    /// Blocks for the range; what is there stays.
    Allocate,
    /// A hole.
    Punch,
    /// Zeroes, with blocks.
    Zero,
}

impl Fs {
    fn file(&mut self, ino: u64) -> Result<u64> {
        let n = self.node(ino)?;
        if n.is_dir() {
            return Err(Errno::ISDIR.into());
        }
        if n.is_file() { Ok(n.size) } else { Err(Errno::INVAL.into()) }
    }

    /// Reads up to `len` bytes; fewer at the end of the file.
    ///
    /// # Errors
    /// `EISDIR`, `EINVAL` for what isn't a file, `EIO`.
    pub fn read(&mut self, ino: u64, offset: u64, len: usize) -> Result<Vec<u8>> {
        let size = self.file(ino)?;
        let end = size.min(offset.saturating_add(len as u64));
        if offset >= end {
            return Ok(Vec::new());
        }
        let (first, last) = (offset / B, end.div_ceil(B));
        let mut blocks = vec![0; ((last - first) * B) as usize];
        let mut at = first;
        while at < last {
            let Some(e) = self.nodes[&ino].extents.next(at).filter(|e| e.logical < last) else { break };
            let (from, to) = (e.logical.max(first), e.end().min(last));
            at = to;
            if e.unwritten {
                continue;
            }
            let start = e.physical + (from - e.logical);
            self.read_blocks(start, &mut blocks[((from - first) * B) as usize..((to - first) * B) as usize])?;
            self.head = start + (to - from);
        }
        for (&page, p) in self.nodes[&ino].pages.range(first..last) {
            blocks[((page - first) * B) as usize..][..BLOCK].copy_from_slice(&p.data);
        }
        // Beyond the end of the file a block may have anything.
        blocks.truncate((end - first * B) as usize);
        Ok(blocks.split_off((offset - first * B) as usize))
    }

    /// Writes; returns how many bytes, fewer than asked for if the space ends.
    ///
    /// # Errors
    /// `ENOSPC` if not a byte fits, `EFBIG`, `EROFS`.
    pub fn write(&mut self, ino: u64, offset: u64, data: &[u8]) -> Result<usize> {
        self.writable()?;
        let size = self.file(ino)?;
        if data.is_empty() {
            return Ok(0);
        }
        if offset.checked_add(data.len() as u64).is_none_or(|end| end > FILE_BLOCKS_MAX * B) {
            return Err(Errno::FBIG.into());
        }
        if offset > size {
            self.zero_tail(ino, size)?;
        }
        let mut done = 0;
        while done < data.len() {
            let at = offset + done as u64;
            let within = (at % B) as usize;
            let mut len = if within == 0 { self.add_pages(ino, at / B, &data[done..]) } else { 0 };
            if len == 0 {
                len = (BLOCK - within).min(data.len() - done);
                let page = match self.page(ino, at / B, len < BLOCK) {
                    Ok(page) => page,
                    Err(e) if done == 0 => return Err(e),
                    Err(_) => break,
                };
                page[within..within + len].copy_from_slice(&data[done..done + len]);
            }
            done += len;
            let n = self.nodes.get_mut(&ino).expect("loaded");
            n.size = n.size.max(at + len as u64);
        }
        let now = self.now;
        let n = self.nodes.get_mut(&ino).expect("loaded");
        n.inode.times[1] = now;
        n.inode.times[2] = now;
        n.dirty = true;
        Ok(done)
    }

    /// A dirty page, with the device's content if it is to be kept.
    fn page(&mut self, ino: u64, page: u64, keep: bool) -> Result<&mut [u8]> {
        if !self.nodes[&ino].pages.contains_key(&page) {
            let n = &self.nodes[&ino];
            let (extent, size) = (n.extents.get(page), n.size);
            let mut content = [0; BLOCK];
            if let Some(e) = extent.filter(|e| keep && !e.unwritten) {
                self.read_blocks(e.physical + (page - e.logical), &mut content)?;
                let valid = size.saturating_sub(page * B).min(B) as usize;
                content[valid..].fill(0);
            }
            self.insert_pages(ino, page..page + 1, extent, &content)?;
        }
        let page = self.nodes.get_mut(&ino).expect("loaded").pages.get_mut(&page).expect("inserted");
        Ok(Arc::make_mut(&mut page.data))
    }

    /// Makes dirty pages of the whole pages of `data`, up to the first that is dirty already or is in another extent than the first one
    /// of them. Returns their bytes; 0 if none can be made in this way.
    fn add_pages(&mut self, ino: u64, first: u64, data: &[u8]) -> usize {
        let n = &self.nodes[&ino];
        let mut end = first + (data.len() / BLOCK) as u64;
        end = n.pages.range(first..end).next().map_or(end, |(&page, _)| page);
        let next = n.extents.next(first);
        let extent = next.filter(|e| e.logical <= first);
        end = end.min(extent.map(|e| e.end()).or(next.map(|e| e.logical)).unwrap_or(end));
        let len = (end - first) as usize * BLOCK;
        // What the space can't hold as a whole is tried page by page.
        if end > first && self.insert_pages(ino, first..end, extent, &data[..len]).is_ok() { len } else { 0 }
    }

    /// Adds dirty pages that are all in one extent, or all in a hole, if there is room for them.
    fn insert_pages(&mut self, ino: u64, pages: Range<u64>, extent: Option<Extent>, content: &[u8]) -> Result<()> {
        let (count, adds, reserved) = (pages.end - pages.start, added(extent), extent.is_none());
        let blocks = if reserved { count } else { 0 };
        if adds > 0 {
            self.expect_extents(ino, pages.clone(), adds, blocks)?;
        }
        self.reserved += blocks;
        self.dirty_pages += count;
        let n = self.nodes.get_mut(&ino).expect("loaded");
        for (page, content) in pages.zip(content.chunks(BLOCK)) {
            n.pages.insert(page, Page { data: filled(&mut self.spare, content), reserved, adds });
        }
        Ok(())
    }

    /// Makes the rest of the last page zeroes, before the file grows beyond it.
    fn zero_tail(&mut self, ino: u64, size: u64) -> Result<()> {
        let within = (size % B) as usize;
        let n = &self.nodes[&ino];
        if within != 0 && (n.pages.contains_key(&(size / B)) || n.extents.get(size / B).is_some_and(|e| !e.unwritten)) {
            self.page(ino, size / B, true)?[within..].fill(0);
            self.must_write.insert(ino);
        }
        Ok(())
    }

    /// Forgets dirty pages from one on.
    pub(crate) fn drop_pages(&mut self, ino: u64, from: u64) -> Result<()> {
        let n = self.node(ino)?;
        let dropped = n.pages.split_off(&from);
        self.reserved -= dropped.values().filter(|p| p.reserved).count() as u64;
        self.change_extents(ino, |x| dropped.iter().for_each(|(&page, p)| x.expect(page, p.adds, 0)));
        self.dirty_pages -= dropped.len() as u64;
        Ok(())
    }

    /// Returns the error that freeing a range would meet half way: an unreadable or corrupt bitmap.
    fn can_free_range(&mut self, ino: u64, from: u64, to: u64) -> Result<()> {
        let mut at = from;
        while let Some(e) = self.node(ino)?.extents.next(at).filter(|e| e.logical < to) {
            at = e.logical.max(from);
            self.can_free(e.physical + (at - e.logical), e.end().min(to) - at)?;
            at = e.end();
        }
        Ok(())
    }

    /// Frees a range, of which the caller knows that it can be. A failure half way ends all changes: no record may have a part of it.
    fn free_range(&mut self, ino: u64, from: u64, to: u64) -> Result<()> {
        self.node(ino)?;
        let removed = self.change_extents(ino, |x| x.remove(from, to));
        for e in removed {
            self.node(ino)?.inode.blocks -= e.len;
            if let Err(e) = self.free(e.physical, e.len) {
                self.failed = Some(format!("freeing blocks of inode {ino}: {e}"));
                return Err(e);
            }
        }
        Ok(())
    }

    /// Changes a file's size.
    ///
    /// # Errors
    /// `EISDIR`, `EINVAL`, `EFBIG`, `EROFS`.
    pub fn truncate(&mut self, ino: u64, size: u64) -> Result<()> {
        self.writable()?;
        let old = self.file(ino)?;
        if size > FILE_BLOCKS_MAX * B {
            return Err(Errno::FBIG.into());
        }
        if size < old {
            // The steps that can fail come first.
            self.can_free_range(ino, size.div_ceil(B), u64::MAX)?;
            self.zero_tail(ino, size)?;
            self.drop_pages(ino, size.div_ceil(B))?;
            self.free_range(ino, size.div_ceil(B), u64::MAX)?;
        } else if size > old {
            self.zero_tail(ino, old)?;
        }
        let now = self.now;
        let n = self.node(ino)?;
        n.size = size;
        n.inode.size = size;
        n.inode.times[1] = now;
        n.inode.times[2] = now;
        n.dirty = true;
        Ok(())
    }

    /// Allocates, frees or zeroes a range.
    ///
    /// # Errors
    /// `ENOSPC`, `EFBIG`, `EINVAL`, `EROFS`.
    pub fn fallocate(&mut self, ino: u64, how: Fallocate, offset: u64, len: u64, keep_size: bool) -> Result<()> {
        self.writable()?;
        let size = self.file(ino)?;
        if len == 0 {
            return Err(Errno::INVAL.into());
        }
        let end = offset.checked_add(len).filter(|&end| end <= FILE_BLOCKS_MAX * B).ok_or(Errno::FBIG)?;
        let (first, last) = (offset.div_ceil(B), end / B);
        if how != Fallocate::Punch {
            let (from, to) = (offset / B, end.div_ceil(B));
            let n = &self.nodes[&ino];
            let held: u64 = n.extents.range(0, to).map(|e| e.end().min(to).saturating_sub(e.logical.max(from))).sum();
            self.need_blocks((to - from).saturating_sub(held) + FOR_CUTS)?;
        }
        if how != Fallocate::Allocate && first < last {
            for edge in [first, last] {
                if self.nodes[&ino].extents.get(edge).is_some_and(|e| e.logical < edge) {
                    self.need_cut(ino, edge, 2)?;
                }
            }
            if how == Fallocate::Punch {
                self.can_free_range(ino, first, last)?;
            }
        }
        if how != Fallocate::Allocate {
            for (from, to) in [(offset, end.min(first * B)), (offset.max(last * B), end)] {
                // The edges; if the range is within one page both are the same.
                if from < to && from / B == (to - 1) / B {
                    self.zero_part(ino, from, to)?;
                }
            }
            if first < last {
                let later = self.node(ino)?.pages.split_off(&last);
                self.drop_pages(ino, first)?;
                self.node(ino)?.pages.extend(later);
                if how == Fallocate::Punch {
                    self.free_range(ino, first, last)?;
                } else {
                    // In their place: other blocks may be set aside for pages.
                    self.set_unwritten(ino, first, last, true);
                }
            }
        }
        if how != Fallocate::Punch {
            if end > size && !keep_size {
                self.zero_tail(ino, size)?;
            }
            self.fill(ino, offset / B, end.div_ceil(B), true)?;
        }
        let now = self.now;
        let n = self.node(ino)?;
        if how != Fallocate::Punch && !keep_size && end > size {
            n.size = end;
            n.inode.size = end;
        }
        n.inode.times[1] = now;
        n.inode.times[2] = now;
        n.dirty = true;
        Ok(())
    }

    /// Says whether the blocks of a range read as zeroes.
    fn set_unwritten(&mut self, ino: u64, from: u64, to: u64, unwritten: bool) {
        let mut at = from;
        while let Some(e) = self.nodes[&ino].extents.next(at).filter(|e| e.logical < to) {
            at = e.end();
            if e.unwritten != unwritten {
                self.change_extents(ino, |x| {
                    for mut part in x.remove(from.max(e.logical), to.min(e.end())) {
                        part.unwritten = unwritten;
                        x.insert(part);
                    }
                });
            }
        }
    }

    fn zero_part(&mut self, ino: u64, from: u64, to: u64) -> Result<()> {
        let n = &self.nodes[&ino];
        let page = from / B;
        if n.pages.contains_key(&page) || n.extents.get(page).is_some_and(|e| !e.unwritten) {
            self.page(ino, page, true)?[(from - page * B) as usize..(to - page * B) as usize].fill(0);
        }
        Ok(())
    }

    /// Gives blocks to the holes of a range. Those of dirty pages are set aside; `unwritten` ones must have room, and a leaf, each time.
    fn fill(&mut self, ino: u64, from: u64, to: u64, unwritten: bool) -> Result<()> {
        let mut at = from;
        while at < to {
            let x = &self.nodes[&ino].extents;
            let next = x.next(at);
            if let Some(e) = next.filter(|e| e.logical <= at) {
                at = e.end();
                continue;
            }
            let mut hole = next.map_or(to, |e| e.logical.min(to)) - at;
            let before = at.checked_sub(1).and_then(|l| x.get(l)).map(|e| e.physical + (at - e.logical));
            let goal = before.unwrap_or_else(|| self.goal(ino, x));
            if unwritten {
                // The dirty pages of the range will cut the extent.
                let pages = self.nodes[&ino].pages.range(at..at + hole).count() as u64;
                let room = self.need_extents(ino, at, 1 + pages, 1 + FOR_CUTS)?;
                hole = hole.min(room - FOR_CUTS);
            }
            let (physical, len) = self.allocate(goal, hole)?;
            self.change_extents(ino, |x| x.insert(Extent { logical: at, len, physical, unwritten }));
            let n = self.nodes.get_mut(&ino).expect("loaded");
            n.inode.blocks += len;
            n.dirty = true;
            let mut cuts = Vec::new();
            for (&page, p) in n.pages.range_mut(at..at + len) {
                self.reserved -= u64::from(p.reserved);
                p.reserved = false;
                if unwritten {
                    cuts.push((page, p.adds));
                    p.adds = 2;
                }
            }
            self.change_extents(ino, |x| cuts.into_iter().for_each(|(page, adds)| x.expect(page, adds, 2)));
            at += len;
        }
        Ok(())
    }

    /// Gives each dirty page a block, and the inode the size that users see, so that both can be written.
    pub(crate) fn allocate_pages(&mut self, ino: u64) -> Result<()> {
        let n = self.node(ino)?;
        let pages: Vec<u64> = n.pages.keys().copied().collect();
        for run in pages.chunk_by(|a, b| a + 1 == *b) {
            let (from, to) = (run[0], run[run.len() - 1] + 1);
            self.fill(ino, from, to, false)?;
            self.set_unwritten(ino, from, to, false);
            let written = self.nodes.get_mut(&ino).expect("loaded").pages.range_mut(from..to);
            let added: Vec<(u64, u64)> = written.map(|(&page, p)| (page, std::mem::take(&mut p.adds))).collect();
            self.change_extents(ino, |x| added.into_iter().for_each(|(page, adds)| x.expect(page, adds, 0)));
        }
        let n = self.nodes.get_mut(&ino).expect("loaded");
        if n.inode.size != n.size && n.is_file() {
            n.inode.size = n.size;
            n.dirty = true;
        }
        Ok(())
    }

    /// A file's runs: first block in the file, first block on the device, number of blocks.
    ///
    /// # Errors
    /// `ESTALE` if there is no such inode.
    pub fn map(&mut self, ino: u64) -> Result<Vec<(u64, u64, u64)>> {
        Ok(self.node(ino)?.extents.iter().map(|e| (e.logical, e.physical, e.len)).collect())
    }

    /// The next data, or the next hole, at or behind an offset.
    ///
    /// # Errors
    /// `ENXIO` behind the end, or if no data follows.
    pub fn seek(&mut self, ino: u64, offset: u64, data: bool) -> Result<u64> {
        let size = self.file(ino)?;
        if offset >= size {
            return Err(Errno::NXIO.into());
        }
        let n = &self.nodes[&ino];
        let mut at = offset / B;
        while at * B < size {
            let page = n.pages.range(at..).next().map(|(&p, _)| p);
            let extent = n.extents.next(at);
            let has = page == Some(at) || extent.is_some_and(|e| e.logical <= at && !e.unwritten);
            if has == data {
                return Ok((at * B).max(offset));
            }
            at = match (has, extent) {
                (true, Some(e)) if e.logical <= at && !e.unwritten => e.end(),
                (true, _) => at + 1,
                (false, e) => {
                    let next = e.map_or(u64::MAX, |e| if e.logical > at { e.logical } else { e.end() });
                    next.min(page.unwrap_or(u64::MAX)).min(size.div_ceil(B))
                }
            };
        }
        if data { Err(Errno::NXIO.into()) } else { Ok(size) }
    }
}
