//! Checking and repairing.
//!
//! Inodes are taken from their tables, not from the bitmaps; what they hold decides which blocks are in use; directories decide
//! how many names each has. Bitmaps, counts and links are then compared, and rebuilt in a repair. A block that can't be read is a
//! corrupt one: a repair writes another in its place, or frees it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::dir::{Entry, Place};
use crate::disk::{BLOCK, Disk, Write};
use crate::error::{Error, Result, device};
use crate::extents::{Extent, Extents};
use crate::format::{HEADER, INODE_BYTES, INODES_PER_BLOCK, Inode, Kind, ROOT_BYTES, Super};
use crate::fs::{Fs, GUESSED, Node, ORPHANS, Options, ROOT, S_IFDIR, S_IFMT};

/// Findings of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Each problem, in words.
    pub problems: Vec<String>,
    /// All problems were repaired.
    pub repaired: bool,
    /// Inodes in use.
    pub inodes: u64,
    /// Directories among them.
    pub dirs: u64,
    /// Blocks in use.
    pub blocks: u64,
}

/// Checks a file system that isn't mounted, and repairs it if asked to.
///
/// # Errors
/// If there is no superblock to start from, or the device fails.
pub fn fsck(disk: Arc<dyn Disk>, repair: bool) -> Result<Report> {
    fsck_with(disk, repair, BAD_BUCKETS_MAX)
}

fn fsck_with(disk: Arc<dyn Disk>, repair: bool, bad_buckets_max: usize) -> Result<Report> {
    let mut report = check(disk.clone(), repair, bad_buckets_max)?;
    if !repair || report.problems.is_empty() {
        return Ok(report);
    }
    // What a round takes out of the tree leaves links and blocks that the next one counts.
    for _ in 0..ROUNDS_MAX {
        let next = check(disk.clone(), true, bad_buckets_max)?;
        if next.problems.is_empty() {
            return Ok(Report { problems: report.problems, repaired: true, ..next });
        }
        report.problems.extend(next.problems);
    }
    Ok(report)
}

/// Rounds of a repair.
const ROUNDS_MAX: usize = 6;

/// Corrupt or missing buckets of a directory beyond which it is emptied.
const BAD_BUCKETS_MAX: usize = 1024;

fn check(disk: Arc<dyn Disk>, repair: bool, bad_buckets_max: usize) -> Result<Report> {
    let mut report = Report::default();
    let options = Options { read_only: !repair, ..Options::default() };
    let mut fs = match Fs::assemble(disk.clone(), options.clone(), false) {
        Ok(fs) => fs,
        Err(first) => {
            let fs = Fs::assemble(disk, options, true)?;
            report.problems.push(first.what());
            fs
        }
    };
    for block in [0, fs.geo.second_super()] {
        let mut b = vec![0; BLOCK];
        if fs.disk.read(block, &mut b).is_err() || Super::decode(&b, block).is_err() {
            report.problems.push(format!("superblock at block {block} is corrupt"));
        }
    }
    let mut check = Check {
        used: vec![0; fs.geo.blocks.div_ceil(64) as usize],
        links: BTreeMap::new(),
        orphans: BTreeSet::new(),
        report,
        repair,
        bad_buckets_max,
        bitmaps_are_right: false,
    };
    check.inodes(&mut fs)?;
    check.names(&mut fs)?;
    check.links(&mut fs)?;
    check.bitmaps(&mut fs)?;
    if repair && !check.report.problems.is_empty() {
        fs.start_epoch()?;
        fs.drop_orphans()?;
        fs.sync(None)?;
        fs.checkpoint()?;
        rewrite_unreadable(&mut fs)?;
    }
    Ok(check.report)
}

/// Overwrites the blocks of empty logs that can't be read, so that a drive replaces them: the next record may begin in one.
fn rewrite_unreadable(fs: &mut Fs) -> Result<()> {
    if fs.journal.logs.iter().any(|l| l.used > 0) {
        return Ok(());
    }
    let blocks = std::mem::take(&mut fs.unreadable);
    let writes: Vec<Write> = blocks.into_iter().map(|block| Write::new(block, &[0; BLOCK])).collect();
    let written = fs.disk.write(&writes).and_then(|()| fs.disk.flush());
    written.map_err(|e| device("overwriting unreadable", writes.first().map_or(0, |w| w.block), e))
}

struct Check {
    /// A bit per block.
    used: Vec<u64>,
    /// Names of each inode; of a directory, its subdirectories.
    links: BTreeMap<u64, u32>,
    /// Inodes in the directory of those without a name.
    orphans: BTreeSet<u64>,
    report: Report,
    repair: bool,
    bad_buckets_max: usize,
    /// The bitmaps have been rebuilt, so that blocks can be allocated.
    bitmaps_are_right: bool,
}

impl Check {
    fn problem(&mut self, what: String) {
        self.report.problems.push(what);
    }

    fn claim(&mut self, start: u64, len: u64) -> bool {
        let free = (start..start + len).all(|b| self.used[(b / 64) as usize] & (1 << (b % 64)) == 0);
        if free {
            (start..start + len).for_each(|b| self.used[(b / 64) as usize] |= 1 << (b % 64));
            self.report.blocks += len;
        }
        free
    }

    fn unclaim(&mut self, runs: impl IntoIterator<Item = (u64, u64)>) {
        for b in runs.into_iter().flat_map(|(start, len)| start..start + len) {
            self.used[(b / 64) as usize] &= !(1 << (b % 64));
            self.report.blocks -= 1;
        }
    }

    /// All inodes into memory, with their blocks claimed.
    fn inodes(&mut self, fs: &mut Fs) -> Result<()> {
        for group in (0..fs.geo.groups).filter(|&g| fs.geo.is_usable(g)).collect::<Vec<_>>() {
            if fs.groups[group as usize].flags & 1 == 0 {
                continue;
            }
            for first in (0..fs.geo.inodes_per_group).step_by(INODES_PER_BLOCK as usize) {
                let (block, _) = fs.geo.inode_block(group, first);
                let b = match fs.block(block, Kind::Table) {
                    Ok(b) => b.to_vec(),
                    Err(e) => {
                        // A table's block that was never written is no problem.
                        let is_guessed = fs.groups[group as usize].flags & GUESSED != 0;
                        let lost =
                            (first..first + INODES_PER_BLOCK).any(|i| fs.inode_in_use(group, i).unwrap_or(!is_guessed));
                        if lost {
                            self.problem(format!(
                                "inodes {} and following are lost: {}",
                                fs.geo.ino(group, first),
                                e.what()
                            ));
                            if self.repair {
                                fs.new_block(block, Kind::Table);
                            }
                        }
                        continue;
                    }
                };
                for slot in 0..INODES_PER_BLOCK {
                    let at = HEADER + slot as usize * INODE_BYTES;
                    let inode = Inode::decode(&b[at..at + INODE_BYTES]);
                    if inode.mode != 0 {
                        self.inode(fs, fs.geo.ino(group, first + slot), inode)?;
                    }
                }
            }
        }
        for (ino, permissions) in [(ROOT, 0o755), (ORPHANS, 0o700)] {
            if fs.nodes.get(&ino).is_none_or(|n| !n.is_dir()) {
                self.problem(format!("directory inode {ino} is missing"));
                let inode = Inode {
                    mode: S_IFDIR | permissions,
                    nlink: 2,
                    parent: ROOT,
                    root: vec![0; ROOT_BYTES],
                    ..Inode::default()
                };
                fs.nodes.insert(ino, empty_node(inode));
            }
        }
        Ok(())
    }

    fn inode(&mut self, fs: &mut Fs, ino: u64, inode: Inode) -> Result<()> {
        let extents = match fs.load_extents(ino, &inode) {
            Ok(x) => x,
            Err(e) => return self.clear(fs, ino, inode, &e.what()),
        };
        let runs = held_by(&inode, &extents);
        let held: u64 = runs.iter().map(|r| r.1).sum();
        let (mut taken, mut ok) = (Vec::new(), inode.xattr == 0 || fs.geo.is_data(inode.xattr, 1));
        for &(start, len) in runs.iter().take_while(|_| ok) {
            if !self.claim(start, len) {
                ok = false;
                break;
            }
            taken.push((start, len));
        }
        if !ok {
            self.unclaim(taken);
            return self.clear(fs, ino, inode, "a block of it belongs to another inode");
        }
        let size = inode.size;
        let is_dir = inode.mode & S_IFMT == S_IFDIR;
        let mut node = Node { inode, size, extents, pages: BTreeMap::new(), dirty: false, opens: 0 };
        if node.inode.blocks != held {
            self.problem(format!("inode {ino} counts {} blocks and has {held}", node.inode.blocks));
            node.inode.blocks = held;
            node.dirty = true;
        }
        self.report.inodes += 1;
        self.report.dirs += u64::from(is_dir);
        fs.nodes.insert(ino, node);
        self.attributes(fs, ino)?;
        self.target(fs, ino)
    }

    fn attributes(&mut self, fs: &mut Fs, ino: u64) -> Result<()> {
        match fs.listxattr(ino) {
            Ok(_) => Ok(()),
            Err(e) => {
                self.problem(format!("extended attributes of inode {ino} are lost: {}", e.what()));
                let n = fs.nodes.get_mut(&ino).expect("in memory");
                self.unclaim([(n.inode.xattr, 1)]);
                (n.inode.xattr, n.inode.blocks, n.dirty) = (0, n.inode.blocks - 1, true);
                Ok(())
            }
        }
    }

    /// The target of a symbolic link. None is without: one of an earlier program, whose making failed.
    fn target(&mut self, fs: &mut Fs, ino: u64) -> Result<()> {
        if !fs.nodes[&ino].is_link() {
            return Ok(());
        }
        let why = match fs.readlink(ino) {
            Ok(target) if target.is_empty() => "it is a symbolic link without a target".to_owned(),
            Ok(_) => return Ok(()),
            Err(e) => e.what(),
        };
        let n = fs.nodes.remove(&ino).expect("in memory");
        self.unclaim(held_by(&n.inode, &n.extents));
        self.report.inodes -= 1;
        self.clear(fs, ino, n.inode, &why)
    }

    fn clear(&mut self, fs: &mut Fs, ino: u64, inode: Inode, why: &str) -> Result<()> {
        self.problem(format!("inode {ino} is lost: {why}"));
        if self.repair {
            let gone = Inode { generation: inode.generation, root: vec![0; ROOT_BYTES], ..Inode::default() };
            fs.nodes.insert(ino, empty_node(gone));
            fs.store_node(ino)?;
            fs.nodes.remove(&ino);
        }
        Ok(())
    }

    /// All directories: each entry must be a directory's only name, or a file's.
    fn names(&mut self, fs: &mut Fs) -> Result<()> {
        // The root comes first: a directory with a name keeps it.
        let (mut queue, mut seen) = (vec![ORPHANS, ROOT], BTreeSet::from([ROOT, ORPHANS]));
        let mut all = fs.nodes.keys().copied().collect::<Vec<_>>().into_iter();
        loop {
            while let Some(dir) = queue.pop() {
                self.dir(fs, dir, &mut queue, &mut seen)?;
            }
            // What no directory has gets a name, one after the other: a directory brings what is below it.
            let Some(ino) = all.find(|i| !seen.contains(i)) else { return Ok(()) };
            self.problem(format!("inode {ino} has no name"));
            seen.insert(ino);
            if self.repair {
                self.before_allocation(fs)?;
                self.adopt(fs, ino)?;
            }
            if fs.nodes[&ino].is_dir() {
                queue.push(ino);
            }
        }
    }

    fn dir(&mut self, fs: &mut Fs, dir: u64, queue: &mut Vec<u64>, seen: &mut BTreeSet<u64>) -> Result<()> {
        let entries = match self.listing(fs, dir) {
            Ok(entries) => entries,
            Err(Error::Device(e)) => return Err(Error::Device(e)),
            Err(e) => {
                self.problem(format!("directory {dir} is emptied: {}", e.what()));
                let n = fs.nodes.get_mut(&dir).expect("in memory");
                n.extents = Extents::default();
                n.extents.dirty = true;
                (n.size, n.inode.size, n.inode.blocks, n.dirty) = (0, 0, u64::from(n.inode.xattr != 0), true);
                (n.inode.depth, n.inode.entries) = (0, 0);
                return Ok(());
            }
        };
        for e in entries {
            let kind = fs.nodes.get(&e.ino).map(|n| n.inode.mode & S_IFMT);
            let is_dir = kind == Some(S_IFDIR);
            if kind != Some(e.kind) || (is_dir && seen.contains(&e.ino)) {
                self.problem(format!("entry {:?} of directory {dir} leads nowhere", String::from_utf8_lossy(&e.name)));
                if self.repair {
                    fs.change_entry(dir, &e.name, None)?;
                }
                continue;
            }
            seen.insert(e.ino);
            if dir == ORPHANS {
                self.orphans.insert(e.ino);
                continue;
            }
            if is_dir {
                *self.links.entry(dir).or_default() += 1;
                queue.push(e.ino);
                let n = fs.nodes.get_mut(&e.ino).expect("in memory");
                if n.inode.parent != dir {
                    self.report
                        .problems
                        .push(format!("directory {} takes {} for its parent, not {dir}", e.ino, n.inode.parent));
                    (n.inode.parent, n.dirty) = (dir, true);
                }
            } else {
                *self.links.entry(e.ino).or_default() += 1;
            }
        }
        Ok(())
    }

    /// The names of a directory. Corrupt and missing buckets become empty ones, and their files get other names.
    fn listing(&mut self, fs: &mut Fs, dir: u64) -> Result<Vec<Entry>> {
        let (mut entries, mut corrupt, mut gaps, mut hash) = (Vec::new(), Vec::new(), Vec::new(), 0);
        let mut reached = BTreeSet::new();
        while let Some((place, next)) = fs.place(dir, hash)? {
            match place {
                Place::Gap(logical) => gaps.push(logical),
                Place::Bucket(logical, block) => {
                    reached.insert(logical);
                    match fs.bucket_entries(block) {
                        // A look-up doesn't find names of other buckets.
                        Ok(names) => entries.extend(names.into_iter().filter(|e| e.cookie >= hash)),
                        Err(e) => corrupt.push((block, e)),
                    }
                }
            }
            if corrupt.len() + gaps.len() > self.bad_buckets_max {
                return Err(Error::Corrupt(format!("more than {} buckets are lost", self.bad_buckets_max)));
            }
            hash = next;
        }
        self.take_strays(fs, dir, &reached);
        for (block, e) in corrupt {
            self.problem(format!("names of directory {dir} are lost: {}", e.what()));
            if self.repair {
                fs.new_block(block, Kind::Dir);
            }
        }
        for logical in gaps {
            self.problem(format!("names of directory {dir} are lost: it has a gap at block {logical}"));
            if self.repair {
                self.before_allocation(fs)?;
                let block = fs.close_gap(dir, logical)?;
                self.claim(block, 1);
            }
        }
        Ok(entries)
    }

    /// Takes out the blocks of a directory that no name leads to: they are in the way of splits.
    fn take_strays(&mut self, fs: &mut Fs, dir: u64, reached: &BTreeSet<u64>) {
        let n = fs.nodes.get_mut(&dir).expect("in memory");
        let strays = n.extents.iter().map(|e| e.len).sum::<u64>() - reached.len() as u64;
        if strays == 0 {
            return;
        }
        self.problem(format!("no name leads to {strays} blocks of directory {dir}"));
        if !self.repair {
            return;
        }
        n.inode.blocks -= strays;
        n.dirty = true;
        let starts = std::iter::once(0).chain(reached.iter().map(|b| b + 1));
        let between = starts.zip(reached.iter().copied().chain([u64::MAX])).filter(|(from, to)| from < to);
        let removed: Vec<Extent> =
            fs.change_extents(dir, |x| between.flat_map(|(from, to)| x.remove(from, to)).collect());
        self.unclaim(removed.into_iter().map(|e| (e.physical, e.len)));
    }

    /// New blocks come from bitmaps that must be right. That holds until the end: all inodes are known.
    fn before_allocation(&mut self, fs: &mut Fs) -> Result<()> {
        if std::mem::replace(&mut self.bitmaps_are_right, true) { Ok(()) } else { self.bitmaps(fs) }
    }

    fn adopt(&mut self, fs: &mut Fs, ino: u64) -> Result<()> {
        let kind = fs.nodes[&ino].inode.mode & S_IFMT;
        let name = format!("lost+found.{ino}");
        fs.change_entry(ROOT, name.as_bytes(), None).ok();
        self.root_uses(fs, false);
        fs.add_entry(ROOT, name.as_bytes(), ino, kind)?;
        self.root_uses(fs, true);
        if kind == S_IFDIR {
            *self.links.entry(ROOT).or_default() += 1;
            let n = fs.nodes.get_mut(&ino).expect("in memory");
            (n.inode.parent, n.dirty) = (ROOT, true);
        } else {
            *self.links.entry(ino).or_default() += 1;
        }
        Ok(())
    }

    fn root_uses(&mut self, fs: &Fs, used: bool) {
        for b in fs.nodes[&ROOT].extents.iter().flat_map(|e| e.physical..e.physical + e.len) {
            let (word, bit) = (&mut self.used[(b / 64) as usize], 1 << (b % 64));
            if used { *word |= bit } else { *word &= !bit }
        }
    }

    fn links(&mut self, fs: &mut Fs) -> Result<()> {
        for (&ino, n) in &mut fs.nodes {
            let counted = self.links.get(&ino).copied().unwrap_or(0) + if n.is_dir() { 2 } else { 0 };
            let unnamed = if n.is_dir() { self.orphans.contains(&ino) && counted == 2 } else { counted == 0 };
            let orphan = n.inode.nlink == 0 && unnamed;
            if n.inode.nlink != counted && !orphan {
                self.report.problems.push(format!("inode {ino} counts {} links and has {counted}", n.inode.nlink));
                (n.inode.nlink, n.dirty) = (counted, true);
            }
            let blocks: u64 = n.extents.iter().map(|e| e.len).sum();
            if n.is_dir() && n.inode.size != blocks * BLOCK as u64 {
                self.report
                    .problems
                    .push(format!("directory {ino} has {blocks} blocks and a size of {}", n.inode.size));
                (n.inode.size, n.dirty) = (blocks * BLOCK as u64, true);
            }
        }
        Ok(())
    }

    fn bitmaps(&mut self, fs: &mut Fs) -> Result<()> {
        #[cfg(test)]
        tests::REBUILDS.set(tests::REBUILDS.get() + 1);
        let dirs: BTreeMap<u64, bool> = fs.nodes.iter().map(|(&i, n)| (i, n.is_dir())).collect();
        let used = self.used.clone();
        for group in (0..fs.geo.groups).filter(|&g| fs.geo.is_usable(g)).collect::<Vec<_>>() {
            let block = |b: u64| used[(b / 64) as usize] & (1 << (b % 64)) != 0;
            let differs = fs.rebuild_bitmaps(group, &block, &|ino| dirs.get(&ino).copied(), self.repair)?;
            if differs {
                self.problem(format!("bitmaps or counts of group {group}"));
            }
        }
        Ok(())
    }
}

/// Blocks of an inode: data, the map's, attributes.
fn held_by(inode: &Inode, extents: &Extents) -> Vec<(u64, u64)> {
    let mut runs: Vec<(u64, u64)> = extents.iter().map(|e| (e.physical, e.len)).collect();
    runs.extend(extents.leaves.values().map(|l| l.block).chain(extents.index.iter().copied()).map(|b| (b, 1)));
    runs.extend((inode.xattr != 0).then_some((inode.xattr, 1)));
    runs
}

fn empty_node(inode: Inode) -> Node {
    Node { inode, size: 0, extents: Extents::default(), pages: BTreeMap::new(), dirty: true, opens: 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Format, MemDisk, Mode, Write, mkfs};
    use rustix::io::Errno;
    use std::cell::Cell;

    thread_local! {
        /// Looks at the bitmaps of all groups.
        pub(super) static REBUILDS: Cell<u64> = const { Cell::new(0) };
    }

    fn new(format: Format, blocks: u64) -> (Arc<MemDisk>, Fs) {
        let disk = Arc::new(MemDisk::new(blocks));
        mkfs(disk.clone(), format, (0, 0)).unwrap();
        let fs = Fs::mount(disk.clone(), Options::default()).unwrap();
        (disk, fs)
    }

    fn repaired(disk: &Arc<MemDisk>) -> Fs {
        assert!(!fsck(disk.clone(), false).unwrap().problems.is_empty());
        let report = fsck(disk.clone(), true).unwrap();
        assert!(report.repaired, "{:?}", report.problems);
        assert_eq!(fsck(disk.clone(), false).unwrap().problems, Vec::<String>::new());
        Fs::mount(disk.clone(), Options::default()).unwrap()
    }

    #[test]
    fn a_name_whose_inode_counts_no_link_is_a_problem() {
        for mode in [S_IFDIR | 0o755, 0o100_644] {
            let (disk, mut fs) = new(Format::new(9, Mode::Manylogs, 4096), 4096);
            let a = fs.create(ROOT, b"a", mode, (0, 0), 0).unwrap();
            let n = fs.node(a.ino).unwrap();
            (n.inode.nlink, n.dirty) = (0, true);
            fs.sync(None).unwrap();
            drop(fs);
            let mut fs = repaired(&disk);
            assert_eq!(fs.lookup(ROOT, b"a").unwrap().nlink, a.nlink);
            if a.nlink == 1 { fs.unlink(ROOT, b"a").unwrap() } else { fs.rmdir(ROOT, b"a").unwrap() }
        }
    }

    /// An interrupted rename can leave a directory with a name and an entry of those without.
    #[test]
    fn a_directory_keeps_its_name_although_it_is_listed_as_without() {
        let (disk, mut fs) = new(Format::new(9, Mode::Manylogs, 4096), 4096);
        let d = fs.create(ROOT, b"d", S_IFDIR | 0o755, (0, 0), 0).unwrap().ino;
        fs.add_entry(ORPHANS, d.to_string().as_bytes(), d, S_IFDIR).unwrap();
        fs.sync(None).unwrap();
        drop(fs);
        assert_eq!(repaired(&disk).lookup(ROOT, b"d").unwrap().ino, d);
    }

    #[test]
    fn attributes_and_targets_of_links_are_read() {
        for attributes in [true, false] {
            let (disk, mut fs) = new(Format::new(9, Mode::Manylogs, 4096), 4096);
            let a = fs.create(ROOT, b"a", 0o100_644, (0, 0), 0).unwrap().ino;
            fs.setxattr(a, b"user.k", b"v", false, false).unwrap();
            fs.symlink(ROOT, b"long", &[b'x'; 3000], (0, 0)).unwrap();
            let l = fs.symlink(ROOT, b"longer", &[b'x'; 4095], (0, 0)).unwrap().ino;
            fs.sync(None).unwrap();
            fs.checkpoint().unwrap();
            let free = fs.statfs().blocks_free;
            let block = if attributes { fs.node(a).unwrap().inode.xattr } else { fs.map(l).unwrap()[0].1 + 1 };
            drop(fs);
            corrupt(&disk, block);
            let mut fs = repaired(&disk);
            let long = fs.lookup(ROOT, b"long").unwrap().ino;
            assert_eq!(fs.readlink(long).unwrap().len(), 3000);
            assert_eq!(fs.lookup(ROOT, b"longer").is_ok(), attributes);
            assert_eq!(fs.getxattr(a, b"user.k").is_ok(), !attributes);
            assert_eq!(fs.statfs().blocks_free, free + if attributes { 1 } else { 2 });
            fs.setxattr(a, b"user.k", b"w", false, false).unwrap();
            assert_eq!(fs.getxattr(a, b"user.k").unwrap(), b"w");
            fs.unmount().unwrap();
            drop(fs);
            assert_eq!(fsck(disk, false).unwrap().problems, Vec::<String>::new());
        }
    }

    /// Earlier programs left one when no block could be allocated.
    #[test]
    fn a_symbolic_link_without_a_target_is_a_problem() {
        let (disk, mut fs) = new(Format::new(9, Mode::Manylogs, 4096), 4096);
        fs.create(ROOT, b"l", crate::fs::S_IFLNK | 0o777, (0, 0), 0).unwrap();
        fs.unmount().unwrap();
        drop(fs);
        assert_eq!(repaired(&disk).lookup(ROOT, b"l"), Err(Error::Os(Errno::NOENT)));
    }

    /// A directory of many buckets, by block of the file, and the disk.
    fn with_buckets() -> (Arc<MemDisk>, Fs, u64, Vec<(u64, u64)>) {
        let (disk, mut fs) = new(Format::new(9, Mode::Manylogs, 16_384), 16_384);
        let d = fs.create(ROOT, b"d", S_IFDIR | 0o755, (0, 0), 0).unwrap().ino;
        for i in 0..800 {
            fs.create(d, format!("a-name-of-some-length-{i}").as_bytes(), 0o100_644, (0, 0), 0).unwrap();
        }
        fs.sync(None).unwrap();
        fs.checkpoint().unwrap();
        let runs = fs.map(d).unwrap().into_iter();
        let buckets: Vec<(u64, u64)> = runs.flat_map(|(x, at, len)| (0..len).map(move |i| (x + i, at + i))).collect();
        assert!(buckets.len() > 6);
        (disk, fs, d, buckets)
    }

    fn corrupt(disk: &MemDisk, block: u64) {
        let mut data = vec![0; BLOCK];
        disk.read(block, &mut data).unwrap();
        data[2000] ^= 1;
        disk.write(&[Write::new(block, &data)]).unwrap();
    }

    /// All names of the directory that are left lead to their files; those that were lost are in the root.
    fn names_after_repair(disk: &Arc<MemDisk>, d: u64) -> (usize, usize) {
        let mut fs = repaired(disk);
        let (kept, lost) = (fs.readdir(d, 0, usize::MAX).unwrap(), fs.readdir(ROOT, 0, usize::MAX).unwrap());
        // The root has the directory as well.
        assert_eq!(kept.len() + lost.len(), 801);
        for e in &kept {
            assert_eq!(fs.lookup(d, &e.name).unwrap().ino, e.ino);
        }
        for i in 0..800 {
            let name = format!("another-name-{i}");
            fs.create(d, name.as_bytes(), 0o100_644, (0, 0), 0).unwrap();
        }
        fs.unmount().unwrap();
        drop(fs);
        assert_eq!(fsck(disk.clone(), false).unwrap().problems, Vec::<String>::new());
        (kept.len(), lost.len())
    }

    #[test]
    fn a_bucket_that_is_corrupt_takes_no_names_of_others() {
        let (disk, fs, d, buckets) = with_buckets();
        drop(fs);
        corrupt(&disk, buckets[1].1);
        let (kept, lost) = names_after_repair(&disk, d);
        assert!(kept > 400 && lost > 10, "{kept} {lost}");
    }

    #[test]
    fn a_bucket_that_is_missing_takes_no_names_of_others() {
        for missing in [0..1, 0..2, 2..3] {
            let (disk, mut fs, d, buckets) = with_buckets();
            for &(logical, block) in &buckets[missing] {
                fs.change_extents(d, |x| x.remove(logical, logical + 1));
                let n = fs.node(d).unwrap();
                (n.inode.blocks, n.inode.size, n.dirty) = (n.inode.blocks - 1, n.inode.size - BLOCK as u64, true);
                fs.free(block, 1).unwrap();
            }
            fs.unmount().unwrap();
            drop(fs);
            let (kept, lost) = names_after_repair(&disk, d);
            assert!(kept > 200 && lost > 10, "{kept} {lost}");
        }
    }

    #[test]
    fn a_directory_with_more_corrupt_buckets_than_a_repair_takes_is_emptied() {
        for (max, emptied) in [(3, false), (2, true)] {
            let (disk, fs, d, buckets) = with_buckets();
            drop(fs);
            buckets[..3].iter().for_each(|b| corrupt(&disk, b.1));
            let report = fsck_with(disk.clone(), true, max).unwrap();
            assert!(report.repaired, "{:?}", report.problems);
            assert_eq!(report.problems.iter().any(|p| p.contains("emptied")), emptied);
            let mut fs = Fs::mount(disk, Options::default()).unwrap();
            assert_eq!(fs.readdir(d, 0, usize::MAX).unwrap().is_empty(), emptied);
        }
    }

    /// An image can give a directory many blocks that no name leads to.
    #[test]
    fn blocks_of_a_directory_that_no_name_leads_to_are_taken_out() {
        let (disk, mut fs) = new(Format::new(9, Mode::Manylogs, 4096), 4096);
        let d = fs.create(ROOT, b"d", S_IFDIR | 0o755, (0, 0), 0).unwrap().ino;
        let add = |fs: &mut Fs, name: &[u8]| fs.create(d, name, 0o100_644, (0, 0), 0).map(drop);
        add(&mut fs, b"a").unwrap();
        let (physical, len) = fs.allocate(fs.geo.data(1).start, 500).unwrap();
        fs.change_extents(d, |x| x.insert(Extent { logical: 1, len, physical, unwritten: false }));
        let n = fs.node(d).unwrap();
        (n.inode.blocks, n.inode.size, n.dirty) = (1 + len, (1 + len) * BLOCK as u64, true);
        fs.sync(None).unwrap();
        let fill = |fs: &mut Fs| (0..100).try_for_each(|i| add(fs, format!("{i:0100}").as_bytes()));
        let filled = fill(&mut fs);
        assert!(matches!(filled, Err(Error::Corrupt(_))), "{filled:?}");
        fs.unmount().unwrap();
        let bucket = fs.map(d).unwrap()[0].1;
        drop(fs);
        corrupt(&disk, bucket);
        let report = fsck(disk.clone(), true).unwrap();
        assert!(report.repaired && report.problems.len() < 100, "{:?}", report.problems);
        let mut fs = Fs::mount(disk.clone(), Options::default()).unwrap();
        assert_eq!(fs.getattr(d).unwrap().sectors, 8);
        fill(&mut fs).unwrap();
        fs.unmount().unwrap();
        drop(fs);
        assert_eq!(fsck(disk, false).unwrap().problems, Vec::<String>::new());
    }

    /// The bitmaps of all groups aren't calculated for each file.
    #[test]
    fn many_lost_files_get_names_on_a_device_of_many_groups() {
        let blocks = 64_000;
        let format =
            Format { group_blocks: 64, log_blocks: 8, inodes_per_group: 8, ..Format::new(9, Mode::Manylogs, blocks) };
        let (disk, mut fs) = new(format, blocks);
        let d = fs.create(ROOT, b"d", S_IFDIR | 0o755, (0, 0), 0).unwrap().ino;
        for i in 0..300 {
            fs.create(d, format!("{i}").as_bytes(), 0o100_644, (0, 0), 0).unwrap();
            if fs.must_commit() {
                fs.sync(None).unwrap();
            }
        }
        fs.change_entry(ROOT, b"d", None).unwrap();
        fs.drop_inode(d).unwrap();
        fs.unmount().unwrap();
        REBUILDS.set(0);
        fsck(disk.clone(), false).unwrap();
        assert_eq!(REBUILDS.take(), 1);
        assert_eq!(repaired(&disk).readdir(ROOT, 0, usize::MAX).unwrap().len(), 300);
        // A check, a repair before its first name and at its end, its second and last round, a check.
        assert_eq!(REBUILDS.get(), 5);
    }
}
