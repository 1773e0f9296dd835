//! Names: creating, linking, removing, renaming; files without a name that are still open.

use rustix::io::Errno;

use crate::dir::NAME_MAX;
use crate::disk::BLOCK;
use crate::error::{Error, Result};
use crate::extents::Extent;
use crate::format::{ANYWHERE, HEADER, Inode, Kind, LINK_IN_ROOT, PAYLOAD, ROOT_BYTES};
use crate::fs::{Attr, Fs, ORPHANS, Planted, ROOT, S_IFCHR, S_IFDIR, S_IFLNK, S_IFMT, S_IFREG};

const LINKS_MAX: u32 = 65_000;
/// Blocks that a new name may take: two splits of the directory, leaves.
const NAME_BLOCKS: u64 = 8;

/// Flags of a rename.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rename {
    /// Fail if the new name exists.
    pub no_replace: bool,
    /// Swap both names.
    pub exchange: bool,
    /// Leave a whiteout (a character device 0:0) of this owner and group at the old name.
    pub whiteout: Option<(u32, u32)>,
}

fn check_name(name: &[u8]) -> Result<()> {
    if name.len() > NAME_MAX {
        return Err(Errno::NAMETOOLONG.into());
    }
    if name.is_empty() || name.contains(&b'/') || name.contains(&0) { Err(Errno::INVAL.into()) } else { Ok(()) }
}

/// True if a pattern with `*` matches the text.
fn matches(pattern: &[u8], text: &[u8]) -> bool {
    let (mut p, mut t) = (0, 0);
    // Behind the last `*`, and the text from which on it is tried there: an earlier `*` need not take more.
    let mut star = None;
    while t < text.len() {
        if pattern.get(p) == Some(&b'*') {
            p += 1;
            star = Some((p, t));
        } else if pattern.get(p) == Some(&text[t]) {
            (p, t) = (p + 1, t + 1);
        } else if let Some((behind, from)) = star {
            star = Some((behind, from + 1));
            (p, t) = (behind, from + 1);
        } else {
            return false;
        }
    }
    pattern[p..].iter().all(|&c| c == b'*')
}

impl Fs {
    fn dir(&mut self, ino: u64) -> Result<()> {
        let n = self.node(ino)?;
        if !n.is_dir() {
            return Err(Errno::NOTDIR.into());
        }
        if n.inode.nlink == 0 { Err(Errno::NOENT.into()) } else { Ok(()) }
    }

    /// The inode of a name.
    ///
    /// # Errors
    /// `ENOENT`, `ENOTDIR`, `ENAMETOOLONG`.
    pub fn lookup(&mut self, parent: u64, name: &[u8]) -> Result<Attr> {
        if name.len() > NAME_MAX {
            return Err(Errno::NAMETOOLONG.into());
        }
        if !self.node(parent)?.is_dir() {
            return Err(Errno::NOTDIR.into());
        }
        let ino = match name {
            b"." => parent,
            b".." => self.node(parent)?.inode.parent,
            _ => self.find(parent, name)?.ok_or(Errno::NOENT)?.ino,
        };
        if !matches!(name, b"." | b"..") {
            self.remember(ino, name);
        }
        let attr = self.getattr(ino);
        attr.map_err(|e| {
            if e == Error::Os(Errno::STALE) {
                Error::Corrupt(format!("an entry of directory {parent} without inode"))
            } else {
                e
            }
        })
    }

    /// Keeps a directory's name for patterns with a slash.
    fn remember(&mut self, ino: u64, name: &[u8]) {
        if !self.options.anywhere.is_empty() {
            self.names.insert(ino, name.to_vec());
        }
    }

    fn is_named_anywhere(&self, parent: u64, name: &[u8]) -> bool {
        self.options.anywhere.iter().any(|p| match p.rsplit_once('/') {
            Some((dir, file)) => {
                matches(file.as_bytes(), name) && self.names.get(&parent).is_some_and(|n| matches(dir.as_bytes(), n))
            }
            None => matches(p.as_bytes(), name),
        })
    }

    fn touch_dir(&mut self, dir: u64) -> Result<()> {
        let now = self.now;
        let n = self.node(dir)?;
        n.inode.times[1] = now;
        n.inode.times[2] = now;
        n.dirty = true;
        Ok(())
    }

    fn change_links(&mut self, ino: u64, by: i32) -> Result<u32> {
        let now = self.now;
        let n = self.node(ino)?;
        n.inode.nlink =
            n.inode.nlink.checked_add_signed(by).ok_or_else(|| Error::Corrupt(format!("links of inode {ino}")))?;
        n.inode.times[2] = now;
        n.dirty = true;
        Ok(n.inode.nlink)
    }

    /// Creates a file, a directory or a special file.
    ///
    /// # Errors
    /// `EEXIST`, `ENOSPC`, `ENOTDIR`, `ENAMETOOLONG`, `EMLINK`, `EROFS`.
    pub fn create(&mut self, parent: u64, name: &[u8], mode: u32, owner: (u32, u32), rdev: u32) -> Result<Attr> {
        self.writable()?;
        check_name(name)?;
        self.dir(parent)?;
        if self.find(parent, name)?.is_some() {
            return Err(Errno::EXIST.into());
        }
        self.need_blocks(NAME_BLOCKS)?;
        let is_dir = mode & S_IFMT == S_IFDIR;
        let p = &self.node(parent)?.inode;
        let (p_mode, p_gid, p_flags) = (p.mode, p.gid, p.flags);
        if is_dir && p.nlink >= LINKS_MAX {
            return Err(Errno::MLINK.into());
        }
        // A directory with set-group-id gives its group to what is created in it.
        let inherits = p_mode & 0o2000 != 0;
        let anywhere = p_flags & ANYWHERE != 0 || (mode & S_IFMT == S_IFREG && self.is_named_anywhere(parent, name));
        let inode = Inode {
            mode: if inherits && is_dir { mode | 0o2000 } else { mode },
            uid: owner.0,
            gid: if inherits { p_gid } else { owner.1 },
            nlink: if is_dir { 2 } else { 1 },
            times: [self.now; 4],
            flags: if anywhere { ANYWHERE } else { 0 },
            rdev,
            parent: if is_dir { parent } else { 0 },
            ..Inode::default()
        };
        let ino = self.allocate_inode(parent, inode)?;
        if let Err(e) = self.add_entry(parent, name, ino, mode & S_IFMT) {
            self.drop_inode(ino)?;
            return Err(e);
        }
        if is_dir {
            self.change_links(parent, 1)?;
        }
        self.touch_dir(parent)?;
        self.remember(ino, name);
        self.getattr(ino)
    }

    /// Creates a symbolic link.
    ///
    /// # Errors
    /// As [`Fs::create`]; `ENAMETOOLONG` for a target above 4095 bytes.
    pub fn symlink(&mut self, parent: u64, name: &[u8], target: &[u8], owner: (u32, u32)) -> Result<Attr> {
        if target.len() >= BLOCK {
            return Err(Errno::NAMETOOLONG.into());
        }
        let ino = self.create(parent, name, S_IFLNK | 0o777, owner, 0)?.ino;
        if let Err(e) = self.put_target(ino, target) {
            self.change_entry(parent, name, None)?;
            self.drop_inode(ino)?;
            return Err(e);
        }
        self.getattr(ino)
    }

    fn put_target(&mut self, ino: u64, target: &[u8]) -> Result<()> {
        let short = target.len() <= ROOT_BYTES;
        let goal = if short { 0 } else { self.goal(ino, &self.nodes[&ino].extents) };
        for (i, part) in target.chunks(PAYLOAD).enumerate().filter(|_| !short) {
            let block = self.allocate(goal, 1)?.0;
            self.new_block(block, Kind::Link)[HEADER..HEADER + part.len()].copy_from_slice(part);
            let logical = i as u64;
            self.change_extents(ino, |x| x.insert(Extent { logical, len: 1, physical: block, unwritten: false }));
            let n = self.node(ino)?;
            n.inode.blocks += 1;
        }
        let n = self.node(ino)?;
        n.inode.size = target.len() as u64;
        n.size = n.inode.size;
        n.dirty = true;
        n.inode.flags &= !ANYWHERE;
        if short {
            n.inode.flags |= LINK_IN_ROOT;
            n.inode.root[..target.len()].copy_from_slice(target);
        }
        Ok(())
    }

    /// A symbolic link's target.
    ///
    /// # Errors
    /// `EINVAL` if it isn't one.
    pub fn readlink(&mut self, ino: u64) -> Result<Vec<u8>> {
        let n = self.node(ino)?;
        let size = n.size as usize;
        if !n.is_link() {
            return Err(Errno::INVAL.into());
        }
        if n.inode.flags & LINK_IN_ROOT != 0 {
            return Ok(n.inode.root[..size.min(ROOT_BYTES)].to_vec());
        }
        let blocks: Vec<Extent> = n.extents.iter().collect();
        let mut target = Vec::new();
        for block in blocks.iter().flat_map(|e| e.physical..e.physical + e.len).take(2) {
            target.extend_from_slice(&self.block(block, Kind::Link)?[HEADER..]);
        }
        if size > target.len() {
            return Err(Error::Corrupt(format!("target of symbolic link {ino}")));
        }
        target.truncate(size);
        Ok(target)
    }

    /// Gives a file another name.
    ///
    /// # Errors
    /// `EEXIST`, `EPERM` for a directory, `EMLINK`, `ENOSPC`, `EROFS`.
    pub fn link(&mut self, ino: u64, parent: u64, name: &[u8]) -> Result<Attr> {
        self.writable()?;
        check_name(name)?;
        self.dir(parent)?;
        let n = self.node(ino)?;
        if n.is_dir() {
            return Err(Errno::PERM.into());
        }
        if n.inode.nlink >= LINKS_MAX {
            return Err(Errno::MLINK.into());
        }
        if n.inode.nlink == 0 {
            return Err(Errno::NOENT.into());
        }
        let kind = n.inode.mode & S_IFMT;
        if self.find(parent, name)?.is_some() {
            return Err(Errno::EXIST.into());
        }
        self.need_blocks(NAME_BLOCKS)?;
        self.add_entry(parent, name, ino, kind)?;
        self.change_links(ino, 1)?;
        self.touch_dir(parent)?;
        self.getattr(ino)
    }

    /// Removes a name that isn't a directory's.
    ///
    /// # Errors
    /// `ENOENT`, `EISDIR`, `EROFS`.
    pub fn unlink(&mut self, parent: u64, name: &[u8]) -> Result<()> {
        self.writable()?;
        self.dir(parent)?;
        let e = self.find(parent, name)?.ok_or(Errno::NOENT)?;
        if self.node(e.ino)?.is_dir() {
            return Err(Errno::ISDIR.into());
        }
        self.hold(e.ino)?;
        self.change_entry(parent, name, None)?;
        self.touch_dir(parent)?;
        self.drop_link(e.ino)
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// `ENOENT`, `ENOTDIR`, `ENOTEMPTY`, `EROFS`.
    pub fn rmdir(&mut self, parent: u64, name: &[u8]) -> Result<()> {
        self.writable()?;
        self.dir(parent)?;
        let e = self.find(parent, name)?.ok_or(Errno::NOENT)?;
        if !self.node(e.ino)?.is_dir() {
            return Err(Errno::NOTDIR.into());
        }
        if !self.is_empty(e.ino)? {
            return Err(Errno::NOTEMPTY.into());
        }
        self.hold(e.ino)?;
        self.change_entry(parent, name, None)?;
        self.touch_dir(parent)?;
        self.change_links(parent, -1)?;
        self.change_links(e.ino, -1)?;
        self.drop_link(e.ino)
    }

    /// Prepares an inode that is about to lose its last name. One that somebody has is listed: it goes with the last handle, or after a
    /// crash. One that will be freed at once must be such that it can be.
    fn hold(&mut self, ino: u64) -> Result<()> {
        let n = self.node(ino)?;
        let (kind, is_last) = (n.inode.mode & S_IFMT, n.is_dir() || n.inode.nlink == 1);
        let is_held = n.opens > 0 || self.known.contains_key(&ino);
        if !is_last || self.orphans.contains(&ino) {
            return Ok(());
        }
        if is_held {
            self.add_entry(ORPHANS, ino.to_string().as_bytes(), ino, kind)?;
            self.orphans.insert(ino);
            Ok(())
        } else {
            self.can_drop(ino)
        }
    }

    /// One name less; without a name, the inode is freed unless somebody has it.
    fn drop_link(&mut self, ino: u64) -> Result<()> {
        if self.change_links(ino, -1)? > 0 || self.orphans.contains(&ino) { Ok(()) } else { self.drop_inode(ino) }
    }

    /// Returns the error that freeing an inode would meet half way: an unreadable or corrupt bitmap.
    fn can_drop(&mut self, ino: u64) -> Result<()> {
        let n = self.node(ino)?;
        let mut runs: Vec<(u64, u64)> = n.extents.iter().map(|e| (e.physical, e.len)).collect();
        let tree = n.extents.leaves.values().map(|l| l.block).chain(n.extents.index.iter().copied());
        runs.extend(tree.chain([n.inode.xattr]).filter(|&b| b != 0).map(|b| (b, 1)));
        runs.into_iter().try_for_each(|(start, len)| self.can_free(start, len))?;
        self.can_free_inode(ino)
    }

    /// Frees an inode and all that it holds. A failure half way ends all changes: no record may have a part of it.
    pub(crate) fn drop_inode(&mut self, ino: u64) -> Result<()> {
        self.can_drop(ino)?;
        let result = self.drop_parts(ino);
        if let Err(e) = &result {
            self.failed = Some(format!("freeing inode {ino}: {e}"));
        }
        result
    }

    fn drop_parts(&mut self, ino: u64) -> Result<()> {
        self.drop_pages(ino, 0)?;
        self.node(ino)?;
        let (removed, tree) = self.change_extents(ino, |x| (x.remove(0, u64::MAX), x.remove_leaves()));
        let n = self.node(ino)?;
        let mut runs: Vec<(u64, u64)> = removed.into_iter().map(|e| (e.physical, e.len)).collect();
        runs.extend(tree.into_iter().map(|b| (b, 1)));
        runs.extend((n.inode.xattr != 0).then_some((n.inode.xattr, 1)));
        n.extents = Default::default();
        for (start, len) in runs {
            self.free(start, len)?;
        }
        self.free_inode(ino)
    }

    /// Renames.
    ///
    /// # Errors
    /// `ENOENT`, `EEXIST`, `ENOTEMPTY`, `EISDIR`, `ENOTDIR`, `EINVAL` for a directory into itself, `ENOSPC`, `EROFS`.
    pub fn rename(&mut self, from: (u64, &[u8]), to: (u64, &[u8]), flags: Rename) -> Result<()> {
        self.writable()?;
        check_name(to.1)?;
        self.dir(from.0)?;
        self.dir(to.0)?;
        let e = self.find(from.0, from.1)?.ok_or(Errno::NOENT)?;
        let old = self.find(to.0, to.1)?;
        if flags.no_replace && old.is_some() {
            return Err(Errno::EXIST.into());
        }
        if flags.exchange && (old.is_none() || flags.no_replace) {
            return Err(if flags.no_replace { Errno::INVAL } else { Errno::NOENT }.into());
        }
        if flags.exchange && flags.whiteout.is_some() {
            return Err(Errno::INVAL.into());
        }
        let is_dir = self.node(e.ino)?.is_dir();
        if is_dir && self.is_inside(to.0, e.ino)? {
            return Err(Errno::INVAL.into());
        }
        if let Some(old) = &old {
            if old.ino == e.ino {
                return Ok(());
            }
            let old_is_dir = self.node(old.ino)?.is_dir();
            if flags.exchange {
                if old_is_dir && self.is_inside(from.0, old.ino)? {
                    return Err(Errno::INVAL.into());
                }
                return self.exchange(from, to, (e.ino, e.kind, is_dir), (old.ino, old.kind, old_is_dir));
            }
            match (is_dir, old_is_dir) {
                (true, false) => return Err(Errno::NOTDIR.into()),
                (false, true) => return Err(Errno::ISDIR.into()),
                (true, true) if !self.is_empty(old.ino)? => return Err(Errno::NOTEMPTY.into()),
                _ => {}
            }
        }
        if is_dir && from.0 != to.0 && self.node(to.0)?.inode.nlink >= LINKS_MAX {
            return Err(Errno::MLINK.into());
        }
        self.need_blocks(NAME_BLOCKS)?;
        let whiteout = flags.whiteout.map(|owner| self.whiteout(from.0, owner)).transpose()?;
        let recorded = self.plants(Planted::NoRename).then(|| self.dirty_blocks.clone());
        let prepared = match &old {
            Some(old) => self.hold(old.ino),
            None => self.add_entry(to.0, to.1, e.ino, e.kind),
        };
        if let Err(e) = prepared {
            whiteout.map_or(Ok(()), |ino| self.drop_inode(ino))?;
            return Err(e);
        }
        if old.is_some() {
            // What replaces a file is durable with the new name, as programs that forget the fsync expect.
            if !self.plants(Planted::RenameWithoutContent) {
                self.must_write.insert(e.ino);
            }
            self.change_entry(to.0, to.1, Some((e.ino, e.kind)))?;
        }
        if self.plants(Planted::RenameInTwo) {
            self.sync(None)?;
        }
        self.change_entry(from.0, from.1, whiteout.map(|ino| (ino, S_IFCHR)))?;
        if let Some(recorded) = recorded {
            self.dirty_blocks = recorded;
        }
        if is_dir {
            self.move_dir(e.ino, from.0, to.0)?;
        }
        self.change_links(e.ino, 0)?;
        self.remember(e.ino, to.1);
        self.touch_dir(from.0)?;
        self.touch_dir(to.0)?;
        if let Some(old) = old {
            if self.node(old.ino)?.is_dir() {
                self.change_links(to.0, -1)?;
                self.change_links(old.ino, -1)?;
            }
            self.drop_link(old.ino)?;
        }
        Ok(())
    }

    fn whiteout(&mut self, dir: u64, owner: (u32, u32)) -> Result<u64> {
        let (uid, gid) = owner;
        let inode = Inode { mode: S_IFCHR, uid, gid, nlink: 1, times: [self.now; 4], ..Inode::default() };
        self.allocate_inode(dir, inode)
    }

    fn move_dir(&mut self, ino: u64, from: u64, to: u64) -> Result<()> {
        if from != to {
            self.change_links(from, -1)?;
            self.change_links(to, 1)?;
            self.node(ino)?.inode.parent = to;
        }
        Ok(())
    }

    fn exchange(
        &mut self,
        from: (u64, &[u8]),
        to: (u64, &[u8]),
        a: (u64, u32, bool),
        b: (u64, u32, bool),
    ) -> Result<()> {
        self.change_entry(to.0, to.1, Some((a.0, a.1)))?;
        self.change_entry(from.0, from.1, Some((b.0, b.1)))?;
        for ((ino, _, is_dir), old, new) in [(a, from.0, to.0), (b, to.0, from.0)] {
            if is_dir {
                self.move_dir(ino, old, new)?;
            }
            self.change_links(ino, 0)?;
        }
        self.touch_dir(from.0)?;
        self.touch_dir(to.0)
    }

    /// True if directory `dir` is `other`, or below `other`.
    fn is_inside(&mut self, mut dir: u64, other: u64) -> Result<bool> {
        for _ in 0..1_000_000 {
            if dir == other {
                return Ok(true);
            }
            if dir == ROOT {
                return Ok(false);
            }
            dir = self.node(dir)?.inode.parent;
        }
        Err(Error::Corrupt(format!("directory {dir} is its own ancestor")))
    }

    /// Counts a handle: an open file stays when its last name goes.
    ///
    /// # Errors
    /// `ESTALE` if there is no such inode.
    pub fn open(&mut self, ino: u64) -> Result<()> {
        self.node(ino)?.opens += 1;
        Ok(())
    }

    /// Ends a handle.
    ///
    /// # Errors
    /// If freeing the file's blocks meets corrupt ones.
    pub fn release(&mut self, ino: u64) -> Result<()> {
        let n = self.node(ino)?;
        n.opens = n.opens.saturating_sub(1);
        self.drop_orphan(ino)
    }

    /// True if the last handle of an inode and the kernel's forgetting free it: it has no name.
    pub fn is_orphan(&self, ino: u64) -> bool {
        self.orphans.contains(&ino)
    }

    /// Counts an answer that gave the kernel an inode: its number isn't used again before [`Fs::forget`].
    pub fn know(&mut self, ino: u64) {
        *self.known.entry(ino).or_default() += 1;
    }

    /// Takes `answers` answers back.
    ///
    /// # Errors
    /// If freeing the file's blocks meets corrupt ones.
    pub fn forget(&mut self, ino: u64, answers: u64) -> Result<()> {
        let known = self.known.get(&ino).copied().unwrap_or(0);
        if known > answers {
            self.known.insert(ino, known - answers);
            return Ok(());
        }
        self.known.remove(&ino);
        self.drop_orphan(ino)
    }

    /// Frees an inode without a name that nobody has any more.
    fn drop_orphan(&mut self, ino: u64) -> Result<()> {
        let is_held = self.known.contains_key(&ino) || self.nodes.get(&ino).is_some_and(|n| n.opens > 0);
        if is_held || !self.orphans.contains(&ino) || self.writable().is_err() {
            return Ok(());
        }
        // An operation that failed after it had listed the inode has left the name.
        let is_named = self.node(ino)?.inode.nlink > 0;
        if !is_named {
            self.can_drop(ino)?;
        }
        self.change_entry(ORPHANS, ino.to_string().as_bytes(), None)?;
        self.orphans.remove(&ino);
        if is_named { Ok(()) } else { self.drop_inode(ino) }
    }

    /// Frees what was open without a name when the file system stopped.
    pub(crate) fn drop_orphans(&mut self) -> Result<()> {
        for e in self.readdir(ORPHANS, 0, usize::MAX)? {
            if self.must_commit() {
                self.sync(None)?;
            }
            let is_named = self.node(e.ino)?.inode.nlink > 0;
            if !is_named {
                self.can_drop(e.ino)?;
            }
            self.change_entry(ORPHANS, &e.name, None)?;
            self.orphans.remove(&e.ino);
            if !is_named {
                self.drop_inode(e.ino)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn a_pattern_is_compared_as_its_parts_are() {
        let cases: [(&str, &str, bool); 14] = [
            ("*.wal", "a.wal", true),
            ("*.wal", ".wal", true),
            ("*.wal", "a.wal.wal", true),
            ("*.wal", "a.wal2", false),
            ("a*b*c", "abbc", true),
            ("a*b*c", "acb", false),
            ("*", "", true),
            ("**", "x", true),
            ("", "", true),
            ("", "x", false),
            ("x", "", false),
            ("a*", "ba", false),
            ("*ab", "aab", true),
            ("a*a", "a", false),
        ];
        for (pattern, text, matched) in cases {
            assert_eq!(matches(pattern.as_bytes(), text.as_bytes()), matched, "{pattern} {text}");
        }
    }

    /// Each way to divide the text is not tried: that wouldn't end.
    #[test]
    fn many_stars_take_no_time() {
        assert!(!matches("a*".repeat(40).as_bytes().strip_suffix(b"*").unwrap(), &[&[b'a'; 254][..], b"b"].concat()));
    }
}
