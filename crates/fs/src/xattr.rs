//! Extended attributes: a block per inode. `user.plimsoll.durability` is the mark of files whose content may be anywhere.

use rustix::io::Errno;

use crate::error::{Error, Result};
use crate::format::{ANYWHERE, HEADER, Kind, PAYLOAD, put16, u16_at};
use crate::fs::Fs;

const DURABILITY: &[u8] = b"user.plimsoll.durability";
const VALUE: &[u8] = b"anywhere";

type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

impl Fs {
    fn pairs(&mut self, ino: u64) -> Result<Pairs> {
        let block = self.node(ino)?.inode.xattr;
        if block == 0 {
            return Ok(Vec::new());
        }
        let bad = || Error::Corrupt(format!("extended attributes of inode {ino}"));
        if !self.geo.is_data(block, 1) {
            return Err(bad());
        }
        let b = &self.block(block, Kind::Xattr)?[HEADER..];
        let (mut at, mut pairs) = (2, Vec::new());
        for _ in 0..u16_at(b, 0) {
            if at + 3 > b.len() {
                return Err(bad());
            }
            let (n, v) = (usize::from(b[at]), usize::from(u16_at(b, at + 1)));
            at += 3;
            if at + n + v > b.len() {
                return Err(bad());
            }
            pairs.push((b[at..at + n].to_vec(), b[at + n..at + n + v].to_vec()));
            at += n + v;
        }
        Ok(pairs)
    }

    fn store_pairs(&mut self, ino: u64, pairs: &Pairs) -> Result<()> {
        if pairs.iter().map(|(n, v)| 3 + n.len() + v.len()).sum::<usize>() + 2 > PAYLOAD {
            return Err(Errno::NOSPC.into());
        }
        let mut block = self.node(ino)?.inode.xattr;
        if pairs.is_empty() {
            if block != 0 {
                self.free(block, 1)?;
                let n = self.node(ino)?;
                n.inode.xattr = 0;
                n.inode.blocks -= 1;
            }
        } else {
            if block == 0 {
                self.need_blocks(4)?;
                let goal = self.goal(ino, &self.nodes[&ino].extents);
                block = self.allocate(goal, 1)?.0;
                self.new_block(block, Kind::Xattr);
                let n = self.node(ino)?;
                n.inode.xattr = block;
                n.inode.blocks += 1;
            }
            let b = &mut self.block_mut(block, Kind::Xattr)?[HEADER..];
            b.fill(0);
            put16(b, 0, pairs.len() as u16);
            let mut at = 2;
            for (n, v) in pairs {
                b[at] = n.len() as u8;
                put16(b, at + 1, v.len() as u16);
                b[at + 3..at + 3 + n.len()].copy_from_slice(n);
                b[at + 3 + n.len()..at + 3 + n.len() + v.len()].copy_from_slice(v);
                at += 3 + n.len() + v.len();
            }
        }
        let now = self.now;
        let n = self.node(ino)?;
        n.inode.times[2] = now;
        n.dirty = true;
        Ok(())
    }

    /// The value of an attribute.
    ///
    /// # Errors
    /// `ENODATA` if there is none.
    pub fn getxattr(&mut self, ino: u64, name: &[u8]) -> Result<Vec<u8>> {
        if name == DURABILITY {
            let marked = self.node(ino)?.inode.flags & ANYWHERE != 0;
            return if marked { Ok(VALUE.to_vec()) } else { Err(Errno::NODATA.into()) };
        }
        self.pairs(ino)?.into_iter().find(|(n, _)| n == name).map(|(_, v)| v).ok_or_else(|| Errno::NODATA.into())
    }

    /// Names of all attributes.
    ///
    /// # Errors
    /// Corrupt blocks.
    pub fn listxattr(&mut self, ino: u64) -> Result<Vec<Vec<u8>>> {
        let mut names: Vec<Vec<u8>> = self.pairs(ino)?.into_iter().map(|(n, _)| n).collect();
        if self.node(ino)?.inode.flags & ANYWHERE != 0 {
            names.push(DURABILITY.to_vec());
        }
        Ok(names)
    }

    /// Sets an attribute: only a new one (`create`), only an existing one (`replace`), or either.
    ///
    /// # Errors
    /// `EEXIST`, `ENODATA`, `ENOSPC`, `ERANGE` for a long name, `EINVAL` for an unknown durability, `EROFS`; `EOPNOTSUPP` for names of the
    /// system's: nothing would act by an access control list.
    pub fn setxattr(&mut self, ino: u64, name: &[u8], value: &[u8], create: bool, replace: bool) -> Result<()> {
        self.writable()?;
        if name.is_empty() || name.len() > 255 {
            return Err(Errno::RANGE.into());
        }
        if name.starts_with(b"system.") {
            return Err(Errno::OPNOTSUPP.into());
        }
        let exists = self.getxattr(ino, name).is_ok();
        if create && exists {
            return Err(Errno::EXIST.into());
        }
        if replace && !exists {
            return Err(Errno::NODATA.into());
        }
        if name == DURABILITY {
            return if value == VALUE { self.set_anywhere(ino, true) } else { Err(Errno::INVAL.into()) };
        }
        let mut pairs = self.pairs(ino)?;
        pairs.retain(|(n, _)| n != name);
        pairs.push((name.to_vec(), value.to_vec()));
        self.store_pairs(ino, &pairs)
    }

    /// Marks a file whose content may be anywhere, or a directory whose new files and directories are such, or takes the mark off.
    ///
    /// # Errors
    /// `EINVAL` if it is neither a file nor a directory; `EROFS`.
    pub fn set_anywhere(&mut self, ino: u64, anywhere: bool) -> Result<()> {
        self.writable()?;
        let n = self.node(ino)?;
        if !(n.is_file() || n.is_dir()) {
            return Err(Errno::INVAL.into());
        }
        n.inode.flags = if anywhere { n.inode.flags | ANYWHERE } else { n.inode.flags & !ANYWHERE };
        n.dirty = true;
        Ok(())
    }

    /// Removes an attribute.
    ///
    /// # Errors
    /// `ENODATA`, `EROFS`.
    pub fn removexattr(&mut self, ino: u64, name: &[u8]) -> Result<()> {
        self.writable()?;
        self.getxattr(ino, name)?;
        if name == DURABILITY {
            return self.set_anywhere(ino, false);
        }
        let mut pairs = self.pairs(ino)?;
        pairs.retain(|(n, _)| n != name);
        self.store_pairs(ino, &pairs)
    }
}
