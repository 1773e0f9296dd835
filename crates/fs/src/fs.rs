//! The file system's state in memory, cached metadata blocks and inodes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use rustix::io::Errno;

use crate::commit::Journal;
use crate::disk::{BLOCK, Disk};
use crate::error::{Error, Result, device};
use crate::extents::{Extent, Extents, Leaf, leaves_of};
use crate::format::{
    BLOCK_ENTRIES, HEADER, INODE_BYTES, Inode, Kind, Mode, ROOT_ENTRIES, Super, extent_at, put_extent, put16, put32,
    put64, seal, u16_at, u32_at, u64_at, verify,
};
use crate::geometry::Geometry;

/// The root directory's inode number.
pub const ROOT: u64 = 1;
/// The hidden directory of files that are open but have no name.
pub(crate) const ORPHANS: u64 = 2;

pub(crate) const S_IFMT: u32 = 0o170_000;
pub(crate) const S_IFDIR: u32 = 0o040_000;
pub(crate) const S_IFREG: u32 = 0o100_000;
pub(crate) const S_IFLNK: u32 = 0o120_000;
pub(crate) const S_IFCHR: u32 = 0o020_000;

/// Clean metadata blocks kept, 64 MiB.
const CACHED_MAX: usize = 16_384;
/// Clean inodes kept.
const NODES_MAX: usize = 16_384;

/// Seconds and nanoseconds since 1970.
pub type Stamp = (i64, u32);

/// Options of a mounted file system.
#[derive(Clone, Debug)]
pub struct Options {
    /// Another journaling mode than the superblock's; must fit its journal.
    pub mode: Option<Mode>,
    /// No changes, not even of the superblock.
    pub read_only: bool,
    /// Names (`*.wal`, `commitlog/*`) of files whose content may be anywhere.
    pub anywhere: Vec<String>,
    /// Dirty pages, in bytes, beyond which writers must write back.
    pub dirty_bytes_max: u64,
    /// A number drawn at random for this mount: nobody can tell in advance by what its records are known.
    pub nonce: u64,
    /// A mistake for tests to find.
    #[doc(hidden)]
    pub planted: Option<Planted>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            mode: None,
            read_only: false,
            anywhere: Vec::new(),
            dirty_bytes_max: 64 << 20,
            nonce: 0,
            planted: None,
        }
    }
}

/// Mistakes that the tests plant, to see that they are found.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Planted {
    /// Metadata may become durable before the data that it points to.
    NoFlushBetween,
    /// A sync ends before its record is durable.
    NoFlushAtEnd,
    /// Blocks are given away while their freeing isn't durable.
    EarlyReuse,
    /// Old copies of a block count after newer data went to its place.
    NoRevoke,
    /// A checkpoint empties the logs before its blocks are durable.
    EarlyReset,
    /// A torn record is taken for a whole one.
    NoChecksum,
    /// A rename over a file may become durable without the content of the new one.
    RenameWithoutContent,
    /// A rename's new name becomes durable before the old one goes.
    RenameInTwo,
    /// A record leaves out the blocks that only a rename changed.
    NoRename,
    /// A mount forgets which records of earlier mounts count.
    NoEpochs,
    /// A mount's records look like those that the last one left unfinished.
    SameEpoch,
    /// A record counts although an earlier one doesn't.
    SkipMissing,
    /// A sync ends before an earlier record is durable.
    OutOfOrder,
}

/// A page of a file that differs from the device.
pub(crate) struct Page {
    pub data: Arc<[u8]>,
    /// A block is set aside for it.
    pub reserved: bool,
    /// Extents that its write-back may add.
    pub adds: u64,
}

/// An inode in memory.
pub(crate) struct Node {
    pub inode: Inode,
    /// The size that users see; the inode's follows when the file is written back.
    pub size: u64,
    pub extents: Extents,
    pub pages: BTreeMap<u64, Page>,
    /// The inode, as on the device, has changed.
    pub dirty: bool,
    /// Open handles.
    pub opens: u64,
}

impl Node {
    pub fn is_dir(&self) -> bool {
        self.inode.mode & S_IFMT == S_IFDIR
    }
    pub fn is_file(&self) -> bool {
        self.inode.mode & S_IFMT == S_IFREG
    }
    pub fn is_link(&self) -> bool {
        self.inode.mode & S_IFMT == S_IFLNK
    }
    /// True if a write-back has work: pages, or a size that outlived the pages that made it.
    pub fn is_behind(&self) -> bool {
        !self.pages.is_empty() || (self.is_file() && self.inode.size != self.size)
    }
}

pub(crate) struct Cached {
    pub data: Box<[u8]>,
    pub kind: Kind,
}

/// A group's summary.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Summary {
    pub free_blocks: u32,
    pub free_inodes: u32,
    pub dirs: u32,
    /// 1: the bitmaps have been written. Before that both are empty. [`GUESSED`] is in memory only.
    pub flags: u32,
}

/// A summary's flag: the block that had it is lost, and a check counts what the group has.
pub(crate) const GUESSED: u32 = 2;

/// An inode's attributes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attr {
    /// Number.
    pub ino: u64,
    /// Type and permissions.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Names.
    pub nlink: u32,
    /// Bytes.
    pub size: u64,
    /// Blocks of 512 bytes.
    pub sectors: u64,
    /// Access, change of content, change of status, creation.
    pub times: [Stamp; 4],
    /// Device number of a special file.
    pub rdev: u32,
    /// Differs each time the number is used again.
    pub generation: u32,
    /// Its content may be anywhere (O_DUR).
    pub anywhere: bool,
}

/// Attributes to change.
#[derive(Clone, Copy, Debug, Default)]
pub struct SetAttr {
    /// Permissions.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Size.
    pub size: Option<u64>,
    /// Access time.
    pub atime: Option<Stamp>,
    /// Time of the last change of content.
    pub mtime: Option<Stamp>,
}

/// Space, as `statfs` shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatFs {
    /// Data blocks.
    pub blocks: u64,
    /// Free ones.
    pub blocks_free: u64,
    /// Inodes.
    pub inodes: u64,
    /// Free ones.
    pub inodes_free: u64,
}

/// The state of a file system, for `plimsoll fs info`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Info {
    /// Identity.
    pub fs_id: u64,
    /// Journaling mode of this mount.
    pub mode: Mode,
    /// Number of block groups.
    pub groups: u64,
    /// Number of logs, 1 for a single journal.
    pub logs: u64,
    /// Blocks of all logs.
    pub log_blocks: u64,
    /// Blocks of logs that have records.
    pub log_blocks_used: u64,
    /// Blocks whose newest copy is in a log.
    pub logged_blocks: u64,
    /// Those of files whose content may be anywhere.
    pub anywhere_blocks: u64,
    /// Newest record.
    pub seq: u64,
    /// Checkpoints since the mount.
    pub checkpoints: u64,
    /// Space.
    pub space: StatFs,
}

/// A mounted file system.
pub struct Fs {
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) sb: Super,
    pub(crate) geo: Geometry,
    pub(crate) options: Options,
    pub(crate) mode: Mode,
    pub(crate) now: Stamp,
    pub(crate) cache: BTreeMap<u64, Cached>,
    /// Metadata blocks that the next record has.
    pub(crate) dirty_blocks: BTreeSet<u64>,
    pub(crate) nodes: BTreeMap<u64, Node>,
    pub(crate) groups: Vec<Summary>,
    /// Free blocks of all groups: many are not counted for each write.
    pub(crate) free_blocks: u64,
    pub(crate) groups_dirty: BTreeSet<u64>,
    /// Freed blocks that can't be given away yet: start, length, the record that frees them (0: not made yet).
    pub(crate) pinned: BTreeMap<u64, (u64, u64)>,
    pub(crate) pinned_blocks: u64,
    /// Blocks set aside for dirty pages.
    pub(crate) reserved: u64,
    pub(crate) dirty_pages: u64,
    /// Blocks of memory that were written back, for the next pages: new memory costs more than the copy into it.
    pub(crate) spare: Vec<Arc<[u8]>>,
    /// Blocks that files' extents may need for leaves and pointers to them, with what dirty pages may add.
    pub(crate) tree_need: u64,
    /// Metadata blocks at most that changed inodes have to write.
    pub(crate) changed_max: u64,
    /// Inodes whose pages must go with the next record.
    pub(crate) must_write: BTreeSet<u64>,
    pub(crate) journal: Journal,
    /// Block of the disk's head, by the last large request.
    pub(crate) head: u64,
    pub(crate) failed: Option<String>,
    pub(crate) names: BTreeMap<u64, Vec<u8>>,
    /// Answers by which the kernel knows an inode.
    pub(crate) known: BTreeMap<u64, u64>,
    /// Inodes without a name that somebody has.
    pub(crate) orphans: BTreeSet<u64>,
    /// Blocks of logs that the mount couldn't read, and went on without.
    pub(crate) unreadable: BTreeSet<u64>,
}

impl Fs {
    /// Tells the time of the operations that follow.
    pub fn set_now(&mut self, now: Stamp) {
        self.now = now;
    }

    /// Tells where the disk's head is by requests that pass by the file system.
    pub fn set_head(&mut self, block: u64) {
        self.head = block;
    }

    /// Returns the reason why no change is possible any more, if so.
    pub fn failure(&self) -> Option<&str> {
        self.failed.as_deref()
    }

    pub(crate) fn writable(&self) -> Result<()> {
        if self.options.read_only || self.failed.is_some() { Err(Errno::ROFS.into()) } else { Ok(()) }
    }

    pub(crate) fn plants(&self, p: Planted) -> bool {
        self.options.planted == Some(p)
    }

    /// Reads blocks as the newest record has them: from memory, from a log, from their place.
    pub(crate) fn read_blocks(&self, block: u64, into: &mut [u8]) -> Result<()> {
        let count = (into.len() / BLOCK) as u64;
        let mut at = 0;
        while at < count {
            let home = block + at;
            let part = &mut into[at as usize * BLOCK..];
            if let Some(data) = self.journal.in_flight(home) {
                part[..BLOCK].copy_from_slice(data);
                at += 1;
                continue;
            }
            // As many as follow each other where they are.
            let from = self.journal.place(home);
            let mut run = 1;
            while at + run < count {
                let next = home + run;
                if self.journal.in_flight(next).is_some() || self.journal.place(next) != from + run {
                    break;
                }
                run += 1;
            }
            let part = &mut part[..run as usize * BLOCK];
            self.disk.read(from, part).map_err(|e| device("reading", from, e))?;
            self.journal.restore(home, part);
            at += run;
        }
        Ok(())
    }

    /// A metadata block's bytes.
    pub(crate) fn block(&mut self, block: u64, kind: Kind) -> Result<&[u8]> {
        if !self.cache.contains_key(&block) {
            if block >= self.geo.blocks {
                return Err(Error::Corrupt(format!("block {block} as {kind:?}: beyond the end")));
            }
            let mut data = vec![0; BLOCK].into_boxed_slice();
            self.read_blocks(block, &mut data)?;
            verify(&data, kind, block, self.sb.fs_id)?;
            self.shrink_cache();
            self.cache.insert(block, Cached { data, kind });
        }
        let cached = &self.cache[&block];
        if cached.kind != kind {
            return Err(Error::Corrupt(format!("block {block} is {:?} and {kind:?} at once", cached.kind)));
        }
        Ok(&cached.data)
    }

    /// A metadata block's bytes, to change.
    pub(crate) fn block_mut(&mut self, block: u64, kind: Kind) -> Result<&mut [u8]> {
        self.block(block, kind)?;
        let cached = self.cache.get_mut(&block).expect("just read");
        self.dirty_blocks.insert(block);
        Ok(&mut cached.data)
    }

    /// A new, empty metadata block.
    pub(crate) fn new_block(&mut self, block: u64, kind: Kind) -> &mut [u8] {
        let data = vec![0; BLOCK].into_boxed_slice();
        self.dirty_blocks.insert(block);
        self.cache.insert(block, Cached { data, kind });
        &mut self.cache.get_mut(&block).expect("just inserted").data
    }

    fn shrink_cache(&mut self) {
        if self.cache.len() >= CACHED_MAX {
            let mut keep = false;
            let dirty = &self.dirty_blocks;
            self.cache.retain(|b, _| {
                keep = !keep;
                keep || dirty.contains(b)
            });
        }
    }

    fn shrink_nodes(&mut self) {
        if self.nodes.len() >= NODES_MAX {
            let mut keep = false;
            self.nodes.retain(|_, n| {
                keep = !keep;
                keep || n.dirty || n.extents.dirty || n.opens > 0 || n.is_behind()
            });
        }
    }

    /// The summaries of all groups, from the device. `salvage`: those that are lost or impossible are [`GUESSED`].
    pub(crate) fn load_groups(&mut self, salvage: bool) -> Result<()> {
        let guessed = Summary { flags: 1 | GUESSED, ..Summary::default() };
        for i in 0..self.geo.summary_blocks() {
            let per = crate::format::GROUPS_PER_BLOCK;
            let count = (self.geo.groups - i * per).min(per) as usize;
            let b = match self.block(1 + i, Kind::Groups) {
                Ok(b) => b.to_vec(),
                Err(_) if salvage => {
                    self.new_block(1 + i, Kind::Groups);
                    self.groups.resize(self.groups.len() + count, guessed);
                    continue;
                }
                Err(e) => return Err(e),
            };
            for g in 0..count {
                let at = HEADER + g * 16;
                let [free_blocks, free_inodes, dirs, flags] = std::array::from_fn(|w| u32_at(&b, at + w * 4));
                self.groups.push(Summary { free_blocks, free_inodes, dirs, flags });
            }
        }
        for (g, s) in self.groups.iter_mut().enumerate() {
            let data = if self.geo.is_usable(g as u64) { self.geo.data(g as u64) } else { 0..0 };
            if u64::from(s.free_blocks) > data.end - data.start || u64::from(s.free_inodes) > self.geo.inodes_per_group
            {
                if salvage {
                    *s = guessed;
                    continue;
                }
                return Err(Error::Corrupt(format!("summary of group {g} has more free than there is")));
            }
        }
        let is_guessed = |g: &u64| self.groups[*g as usize].flags & GUESSED != 0;
        // A group without room for data has a summary, too.
        let unusable: Vec<u64> = (0..self.geo.groups).filter(|&g| is_guessed(&g) && !self.geo.is_usable(g)).collect();
        self.groups_dirty = (0..self.geo.groups).filter(is_guessed).collect();
        unusable.into_iter().for_each(|g| self.groups[g as usize] = Summary::default());
        self.free_blocks = self.counted_free_blocks();
        Ok(())
    }

    /// Writes changed summaries into their blocks.
    pub(crate) fn store_groups(&mut self) -> Result<()> {
        debug_assert_eq!(self.free_blocks, self.counted_free_blocks());
        while let Some(&g) = self.groups_dirty.first() {
            let per = crate::format::GROUPS_PER_BLOCK;
            let s = self.groups[g as usize];
            let b = self.block_mut(1 + g / per, Kind::Groups)?;
            let at = HEADER + (g % per) as usize * 16;
            for (w, v) in [s.free_blocks, s.free_inodes, s.dirs, s.flags].into_iter().enumerate() {
                put32(b, at + w * 4, v);
            }
            self.groups_dirty.remove(&g);
        }
        Ok(())
    }

    /// An inode, from memory or the device. `ESTALE` if the number isn't in use.
    pub(crate) fn node(&mut self, ino: u64) -> Result<&mut Node> {
        if !self.nodes.contains_key(&ino) {
            let node = self.load_node(ino)?;
            self.shrink_nodes();
            self.nodes.insert(ino, node);
        }
        Ok(self.nodes.get_mut(&ino).expect("just loaded"))
    }

    fn load_node(&mut self, ino: u64) -> Result<Node> {
        let (group, index) = self.geo.inode_place(ino).ok_or(Errno::STALE)?;
        if !self.inode_in_use(group, index)? {
            return Err(Errno::STALE.into());
        }
        let (block, slot) = self.geo.inode_block(group, index);
        let b = self.block(block, Kind::Table)?;
        let at = HEADER + slot * INODE_BYTES;
        let inode = Inode::decode(&b[at..at + INODE_BYTES]);
        if inode.xattr != 0 && !self.geo.is_data(inode.xattr, 1) {
            return Err(Error::Corrupt(format!("inode {ino}: its block of extended attributes")));
        }
        let extents = self.load_extents(ino, &inode)?;
        let size = inode.size;
        Ok(Node { inode, size, extents, pages: BTreeMap::new(), dirty: false, opens: 0 })
    }

    /// Changes the extents of an inode in memory, and keeps count of the blocks that all need.
    pub(crate) fn change_extents<T>(&mut self, ino: u64, change: impl FnOnce(&mut Extents) -> T) -> T {
        let x = &mut self.nodes.get_mut(&ino).expect("loaded by the caller").extents;
        let before = x.need();
        let result = change(x);
        self.tree_need = self.tree_need + x.need() - before;
        result
    }

    pub(crate) fn load_extents(&mut self, ino: u64, inode: &Inode) -> Result<Extents> {
        let bad = |what: &str| Error::Corrupt(format!("inode {ino}: {what}"));
        let mut x = Extents::default();
        if inode.flags & crate::format::LINK_IN_ROOT != 0 {
            return Ok(x);
        }
        let entries = usize::from(inode.entries);
        if entries > ROOT_ENTRIES || inode.depth > 2 {
            return Err(bad("the root of its extents"));
        }
        let mut pointers: Vec<(u64, u64)> = Vec::new();
        let root = |i: usize| (u64::from(u32_at(&inode.root, i * 16)), u64_at(&inode.root, i * 16 + 8));
        if inode.depth == 0 {
            for i in 0..entries {
                self.load_extent(&mut x, extent_at(&inode.root, i * 16)).ok_or_else(|| bad("an extent"))?;
            }
            return Ok(x);
        }
        if inode.depth == 1 {
            pointers.extend((0..entries).map(root));
        } else {
            for (_, block) in (0..entries).map(root) {
                if !self.geo.is_data(block, 1) || x.index.contains(&block) {
                    return Err(bad("a pointer to an index block"));
                }
                let b = self.block(block, Kind::Index)?;
                let count = usize::from(u16_at(b, HEADER));
                if count > BLOCK_ENTRIES {
                    return Err(bad("an index block"));
                }
                let entry = |i: usize| (u64::from(u32_at(b, HEADER + 16 + i * 16)), u64_at(b, HEADER + 24 + i * 16));
                pointers.extend((0..count).map(entry));
                x.index.push(block);
            }
        }
        for (first, block) in pointers {
            if !self.geo.is_data(block, 1) || x.leaves.last_key_value().is_some_and(|(&last, _)| last >= first) {
                return Err(bad("a pointer to a leaf"));
            }
            let b = self.block(block, Kind::Leaf)?.to_vec();
            let count = usize::from(u16_at(&b, HEADER));
            if count > BLOCK_ENTRIES {
                return Err(bad("a leaf"));
            }
            x.add_leaf(first, Leaf::read(block));
            for i in 0..count {
                let e = extent_at(&b, HEADER + 16 + i * 16);
                if e.logical < first {
                    return Err(bad("a leaf's order"));
                }
                self.load_extent(&mut x, e).ok_or_else(|| bad("an extent"))?;
            }
        }
        Ok(x)
    }

    fn load_extent(&self, x: &mut Extents, e: Extent) -> Option<()> {
        (self.geo.is_data(e.physical, e.len) && x.load(e)).then_some(())
    }

    /// Writes a changed inode and its changed leaves into their blocks.
    pub(crate) fn store_node(&mut self, ino: u64) -> Result<()> {
        let mut node = self.nodes.remove(&ino).expect("a changed inode is in memory");
        let before = node.extents.need();
        let result = self.store_parts(ino, &mut node);
        self.tree_need = self.tree_need + node.extents.need() - before;
        self.nodes.insert(ino, node);
        result
    }

    fn store_parts(&mut self, ino: u64, node: &mut Node) -> Result<()> {
        if node.extents.dirty {
            self.store_extents(ino, node)?;
            // The inode has them, and must be written itself.
            (node.extents.dirty, node.dirty) = (false, true);
        }
        let (group, index) = self.geo.inode_place(ino).ok_or(Errno::STALE)?;
        let (block, slot) = self.geo.inode_block(group, index);
        let b = self.block_mut(block, Kind::Table)?;
        let at = HEADER + slot * INODE_BYTES;
        node.inode.encode(&mut b[at..at + INODE_BYTES]);
        node.dirty = false;
        Ok(())
    }

    fn store_extents(&mut self, ino: u64, node: &mut Node) -> Result<()> {
        let x = &mut node.extents;
        let goal = self.goal(ino, x);
        if x.fit_root() {
            let tree: Vec<u64> = x.leaves.values().map(|l| l.block).chain(x.index.iter().copied()).collect();
            tree.into_iter().filter(|&b| b != 0).try_for_each(|b| self.can_free(b, 1))?;
            let unused = x.remove_leaves();
            x.index_dirty = false;
            node.inode.blocks -= unused.len() as u64;
            node.inode.depth = 0;
            node.inode.entries = x.len() as u16;
            node.inode.root = vec![0; ROOT_ENTRIES * 16];
            for (i, e) in x.iter().enumerate() {
                put_extent(&mut node.inode.root, i * 16, e);
            }
            return unused.into_iter().try_for_each(|b| self.free(b, 1));
        }
        let pages = &node.pages;
        let adds = |from: u64, to: u64| pages.range(from..to).map(|(_, p)| p.adds).sum::<u64>();
        if x.leaves.is_empty() {
            x.add_leaf(0, Leaf::new());
            x.recount(0, adds);
        }
        let keys: Vec<u64> = x.leaves.iter().filter(|(_, l)| l.dirty).map(|(&k, _)| k).collect();
        for key in keys {
            let block = x.leaves[&key].block;
            if x.is_unused(key) && x.leaves.len() > 1 && key != 0 {
                if block != 0 {
                    self.free(block, 1)?;
                    node.inode.blocks -= 1;
                }
                x.remove_leaf(key);
                x.index_dirty = true;
                continue;
            }
            let end = x.leaves.range(key + 1..).next().map_or(u64::MAX, |(&k, _)| k);
            let extents: Vec<Extent> = x.range(key, end).collect();
            let parts = leaves_of(extents.len() as u64) as usize;
            // The steps that can fail come first: the next sync finds the leaf as it was.
            let mut blocks = Vec::new();
            if block != 0 {
                self.block_mut(block, Kind::Leaf)?;
                blocks.push(block);
            }
            while blocks.len() < parts {
                match self.allocate(goal, 1) {
                    Ok((new, _)) => blocks.push(new),
                    Err(e) => {
                        blocks.into_iter().filter(|&b| b != block).try_for_each(|b| self.free(b, 1))?;
                        return Err(e);
                    }
                }
            }
            for (i, at) in blocks.into_iter().enumerate() {
                let part = &extents[extents.len() * i / parts..extents.len() * (i + 1) / parts];
                let first = if i == 0 { key } else { part[0].logical };
                let mut leaf = x.leaves.get(&first).copied().unwrap_or(Leaf::new());
                if at != block {
                    node.inode.blocks += 1;
                    self.new_block(at, Kind::Leaf);
                    x.index_dirty = true;
                }
                (leaf.block, leaf.dirty) = (at, false);
                x.add_leaf(first, leaf);
                let b = self.block_mut(at, Kind::Leaf)?;
                b[HEADER..].fill(0);
                put16(b, HEADER, part.len() as u16);
                for (j, e) in part.iter().enumerate() {
                    put_extent(b, HEADER + 16 + j * 16, *e);
                }
            }
            if parts > 1 {
                let made: Vec<u64> = x.leaves.range(key..end).map(|(&k, _)| k).collect();
                made.into_iter().for_each(|k| x.recount(k, adds));
            }
        }
        if x.index_dirty { self.store_index(node, goal) } else { Ok(()) }
    }

    fn store_index(&mut self, node: &mut Node, goal: u64) -> Result<()> {
        let x = &mut node.extents;
        let pointers: Vec<(u64, u64)> = x.leaves.iter().map(|(&k, l)| (k, l.block)).collect();
        let chunks: Vec<&[(u64, u64)]> =
            if pointers.len() <= ROOT_ENTRIES { Vec::new() } else { pointers.chunks(BLOCK_ENTRIES).collect() };
        if chunks.len() > ROOT_ENTRIES {
            return Err(Errno::FBIG.into());
        }
        while x.index.len() > chunks.len() {
            self.free(x.index[x.index.len() - 1], 1)?;
            x.index.pop();
            node.inode.blocks -= 1;
        }
        let mut roots = pointers.clone();
        if !chunks.is_empty() {
            roots = chunks.iter().map(|c| (c[0].0, 0)).collect();
            for (i, chunk) in chunks.iter().enumerate() {
                if i == x.index.len() {
                    let block = self.allocate(goal, 1)?.0;
                    node.inode.blocks += 1;
                    self.new_block(block, Kind::Index);
                    x.index.push(block);
                }
                roots[i].1 = x.index[i];
                let b = self.block_mut(x.index[i], Kind::Index)?;
                b[HEADER..].fill(0);
                put16(b, HEADER, chunk.len() as u16);
                for (j, (first, block)) in chunk.iter().enumerate() {
                    put32(b, HEADER + 16 + j * 16, *first as u32);
                    put64(b, HEADER + 24 + j * 16, *block);
                }
            }
        }
        node.inode.depth = if chunks.is_empty() { 1 } else { 2 };
        node.inode.entries = roots.len() as u16;
        node.inode.root = vec![0; ROOT_ENTRIES * 16];
        for (i, (first, block)) in roots.into_iter().enumerate() {
            put32(&mut node.inode.root, i * 16, first as u32);
            put64(&mut node.inode.root, i * 16 + 8, block);
        }
        node.extents.index_dirty = false;
        Ok(())
    }

    /// Encodes a metadata block for the device.
    pub(crate) fn sealed(&mut self, block: u64) -> Arc<[u8]> {
        let fs_id = self.sb.fs_id;
        let cached = self.cache.get_mut(&block).expect("a dirty block is in memory");
        seal(&mut cached.data, cached.kind, block, fs_id);
        Arc::from(&cached.data[..])
    }

    /// Attributes of an inode.
    ///
    /// # Errors
    /// `ESTALE` if there is no such inode.
    pub fn getattr(&mut self, ino: u64) -> Result<Attr> {
        let n = self.node(ino)?;
        let reserved = n.pages.values().filter(|p| p.reserved).count() as u64;
        Ok(Attr {
            ino,
            mode: n.inode.mode,
            uid: n.inode.uid,
            gid: n.inode.gid,
            nlink: n.inode.nlink,
            size: n.size,
            sectors: (n.inode.blocks + reserved) * (BLOCK as u64 / 512),
            times: n.inode.times,
            rdev: n.inode.rdev,
            generation: n.inode.generation,
            anywhere: n.inode.flags & crate::format::ANYWHERE != 0,
        })
    }

    /// Changes attributes.
    ///
    /// # Errors
    /// `EROFS`, `EFBIG`, `ENOSPC`, `EISDIR` or `EINVAL` for a size that can't be.
    pub fn setattr(&mut self, ino: u64, set: SetAttr) -> Result<Attr> {
        self.writable()?;
        self.node(ino)?;
        if let Some(size) = set.size {
            self.truncate(ino, size)?;
        }
        let now = self.now;
        let n = self.node(ino)?;
        if let Some(mode) = set.mode {
            n.inode.mode = (n.inode.mode & S_IFMT) | (mode & 0o7777);
        }
        n.inode.uid = set.uid.unwrap_or(n.inode.uid);
        n.inode.gid = set.gid.unwrap_or(n.inode.gid);
        n.inode.times[0] = set.atime.unwrap_or(n.inode.times[0]);
        n.inode.times[1] = set.mtime.unwrap_or(n.inode.times[1]);
        n.inode.times[2] = now;
        n.dirty = true;
        self.getattr(ino)
    }

    /// Space and inodes.
    pub fn statfs(&self) -> StatFs {
        let usable = (0..self.geo.groups).filter(|&g| self.geo.is_usable(g));
        let blocks = usable.map(|g| self.geo.data(g)).map(|d| d.end - d.start).sum();
        let groups = (0..self.geo.groups).filter(|&g| self.geo.is_usable(g)).count() as u64;
        StatFs {
            blocks,
            blocks_free: self.free_blocks.saturating_sub(self.reserved),
            inodes: groups * self.geo.inodes_per_group,
            inodes_free: self.groups.iter().map(|g| u64::from(g.free_inodes)).sum(),
        }
    }

    /// The journal's state and the space.
    pub fn info(&self) -> Info {
        let j = &self.journal;
        Info {
            fs_id: self.sb.fs_id,
            mode: self.mode,
            groups: self.geo.groups,
            logs: j.logs.len() as u64,
            log_blocks: j.logs.iter().map(|l| l.len).sum(),
            log_blocks_used: j.logs.iter().map(|l| l.used).sum(),
            logged_blocks: j.table.len() as u64,
            anywhere_blocks: j.table.values().filter(|l| l.anywhere).count() as u64,
            seq: j.next_seq - 1,
            checkpoints: j.checkpoints,
            space: self.statfs(),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::{Format, MemDisk, Write, fsck, mkfs};
    use std::io;
    use std::sync::atomic::{AtomicU64, Ordering};

    /// A disk with a block that can't be read.
    pub(crate) struct Unreadable {
        disk: MemDisk,
        pub block: AtomicU64,
    }

    impl Disk for Unreadable {
        fn blocks(&self) -> u64 {
            self.disk.blocks()
        }
        fn read(&self, block: u64, into: &mut [u8]) -> io::Result<()> {
            let range = block..block + (into.len() / BLOCK) as u64;
            if range.contains(&self.block.load(Ordering::Relaxed)) {
                return Err(io::Error::other("unreadable"));
            }
            self.disk.read(block, into)
        }
        fn write(&self, writes: &[Write]) -> io::Result<()> {
            self.disk.write(writes)
        }
        fn flush(&self) -> io::Result<()> {
            Ok(())
        }
    }

    pub(crate) fn new(blocks: u64) -> (Arc<Unreadable>, Fs) {
        let disk = Arc::new(Unreadable { disk: MemDisk::new(blocks), block: AtomicU64::new(u64::MAX) });
        mkfs(disk.clone(), Format::new(9, Mode::Manylogs, blocks), (0, 0)).unwrap();
        let fs = Fs::mount(disk.clone(), Options::default()).unwrap();
        (disk, fs)
    }

    pub(crate) fn file(fs: &mut Fs, name: &[u8]) -> u64 {
        fs.create(ROOT, name, 0o100_644, (0, 0), 0).unwrap().ino
    }

    /// A sync meets an unreadable block that isn't in memory any more; the next one succeeds.
    fn fails_once(disk: &Unreadable, fs: &mut Fs, block: u64) {
        // Its number is where its newest copy is, and nothing else is there.
        fs.checkpoint().unwrap();
        fs.cache.retain(|b, _| fs.dirty_blocks.contains(b));
        disk.block.store(block, Ordering::Relaxed);
        assert!(matches!(fs.sync(None), Err(Error::Device(_))));
        disk.block.store(u64::MAX, Ordering::Relaxed);
        fs.sync(None).unwrap();
    }

    #[test]
    fn a_sync_after_a_failed_one_writes_the_leaves_that_were_split_and_their_index() {
        let (disk, mut fs) = new(32_768);
        let a = file(&mut fs, b"a");
        let at = |page: u64| page * BLOCK as u64;
        for i in 0..300 {
            fs.write(a, at(4 * i), &[1]).unwrap();
        }
        fs.sync(None).unwrap();
        let leaves: Vec<(u64, u64)> = fs.nodes[&a].extents.leaves.iter().map(|(&k, l)| (k, l.block)).collect();
        assert_eq!(leaves.len(), 2);
        // The first leaf has more than it can hold, the second one a change.
        for page in (0..120).map(|i| 4 * i + 2).chain([4 * 299 + 1]) {
            fs.write(a, at(page), &[1]).unwrap();
        }
        fails_once(&disk, &mut fs, leaves[1].1);
        let map = fs.map(a).unwrap();
        drop(fs);
        assert_eq!(fsck(disk.clone(), false).unwrap().problems, Vec::<String>::new());
        assert!(Fs::mount(disk, Options::default()).unwrap().map(a).unwrap() == map);
    }

    #[test]
    fn a_sync_after_a_failed_one_writes_the_groups_summaries() {
        let (disk, mut fs) = new(4096);
        fs.sync(None).unwrap();
        file(&mut fs, b"a");
        fails_once(&disk, &mut fs, 1);
        drop(fs);
        assert_eq!(fsck(disk, false).unwrap().problems, Vec::<String>::new());
    }

    /// Content came into allocated blocks: only the map has changed since another file's sync.
    #[test]
    fn a_sync_after_a_failed_one_writes_an_inode_whose_map_alone_has_changed() {
        let (disk, mut fs) = new(4096);
        let (a, b) = (file(&mut fs, b"a"), file(&mut fs, b"b"));
        fs.fallocate(a, crate::Fallocate::Allocate, 0, BLOCK as u64, false).unwrap();
        fs.write(a, 0, b"content").unwrap();
        fs.sync(Some(b)).unwrap();
        assert!(!fs.nodes[&a].dirty);
        let (group, index) = fs.geo.inode_place(a).unwrap();
        let table = fs.geo.inode_block(group, index).0;
        fails_once(&disk, &mut fs, table);
        drop(fs);
        let mut fs = Fs::mount(disk, Options::default()).unwrap();
        assert_eq!(fs.read(a, 0, 7).unwrap(), b"content");
    }

    /// The number comes from the device, with a checksum that fits.
    #[test]
    fn a_block_of_attributes_that_is_none_is_an_error() {
        for orphan in [false, true] {
            let (disk, mut fs) = new(4096);
            let a = file(&mut fs, b"a");
            if orphan {
                fs.open(a).unwrap();
                fs.unlink(ROOT, b"a").unwrap();
            }
            let n = fs.node(a).unwrap();
            (n.inode.xattr, n.dirty) = (1, true);
            fs.sync(None).unwrap();
            drop(fs);
            match Fs::mount(disk.clone(), Options::default()) {
                Ok(mut fs) if !orphan => assert!(matches!(fs.unlink(ROOT, b"a"), Err(Error::Corrupt(_)))),
                mounted => assert!(orphan && matches!(mounted.map(drop), Err(Error::Corrupt(_)))),
            }
            assert!(fsck(disk.clone(), true).unwrap().repaired);
            Fs::mount(disk, Options::default()).unwrap();
        }
    }
}
