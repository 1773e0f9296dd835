//! The FUSE front: requests of the kernel, on several threads, to one file system.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{
    BsdFileFlags, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, IoctlFlags, LockOwner,
    OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyIoctl,
    ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};

use crate::shared::{Shared, now};
use crate::{Attr, BLOCK, Error, Fallocate, Fs, Rename, Result, SetAttr, Stamp};

/// Time for which the kernel caches attributes and names: all changes pass by it.
const TTL: Duration = Duration::from_secs(60);
const NAME_MAX: u32 = 255;

fn time(t: Stamp) -> SystemTime {
    let whole = Duration::from_secs(t.0.unsigned_abs());
    let second = if t.0 < 0 { UNIX_EPOCH - whole } else { UNIX_EPOCH.checked_add(whole).unwrap_or(UNIX_EPOCH) };
    second + Duration::from_nanos(t.1.into())
}

fn stamp(t: SystemTime) -> Stamp {
    match t.duration_since(UNIX_EPOCH) {
        Ok(d) => (d.as_secs() as i64, d.subsec_nanos()),
        Err(e) => {
            let d = e.duration();
            let ns = d.subsec_nanos();
            if ns == 0 { (-(d.as_secs() as i64), 0) } else { (-(d.as_secs() as i64) - 1, 1_000_000_000 - ns) }
        }
    }
}

fn kind(mode: u32) -> FileType {
    match mode & 0o170_000 {
        0o040_000 => FileType::Directory,
        0o120_000 => FileType::Symlink,
        0o020_000 => FileType::CharDevice,
        0o060_000 => FileType::BlockDevice,
        0o010_000 => FileType::NamedPipe,
        0o140_000 => FileType::Socket,
        _ => FileType::RegularFile,
    }
}

fn file_attr(a: &Attr) -> FileAttr {
    let [atime, mtime, ctime, crtime] = a.times.map(time);
    FileAttr {
        ino: INodeNo(a.ino),
        size: a.size,
        blocks: a.sectors,
        atime,
        mtime,
        ctime,
        crtime,
        kind: kind(a.mode),
        perm: (a.mode & 0o7777) as u16,
        nlink: a.nlink,
        uid: a.uid,
        gid: a.gid,
        rdev: a.rdev,
        blksize: BLOCK as u32,
        flags: 0,
    }
}

/// Counts an answer that gives the kernel an inode, under the lock of the operation: no other may free it in between.
fn known(fs: &mut Fs, result: &Result<Attr>) {
    if let Ok(a) = result {
        fs.know(a.ino);
    }
}

pub(crate) struct Front {
    shared: Arc<Shared>,
}

impl Front {
    pub fn new(shared: Arc<Shared>) -> Front {
        Front { shared }
    }

    fn errno(&self, e: &Error) -> fuser::Errno {
        fuser::Errno::from_i32(self.shared.errno(e).raw_os_error())
    }

    /// Performs a change that gives the kernel an inode.
    fn named(&self, mut f: impl FnMut(&mut Fs) -> Result<Attr>, reply: ReplyEntry) {
        let result = self.shared.change(|fs| {
            let result = f(fs);
            known(fs, &result);
            result
        });
        self.entry(result, reply);
    }

    fn entry(&self, result: Result<Attr>, reply: ReplyEntry) {
        match result {
            Ok(a) => reply.entry(&TTL, &file_attr(&a), Generation(a.generation.into())),
            Err(e) => reply.error(self.errno(&e)),
        }
    }

    fn empty(&self, result: Result<()>, reply: ReplyEmpty) {
        match result {
            Ok(()) => reply.ok(),
            Err(e) => reply.error(self.errno(&e)),
        }
    }

    fn sized(&self, result: Result<Vec<u8>>, size: u32, reply: ReplyXattr) {
        match result {
            Ok(v) if size == 0 => reply.size(v.len() as u32),
            Ok(v) if v.len() > size as usize => reply.error(fuser::Errno::ERANGE),
            Ok(v) => reply.data(&v),
            Err(e) => reply.error(self.errno(&e)),
        }
    }
}

impl Filesystem for Front {
    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let mut fs = self.shared.lock();
        let result = fs.lookup(parent.0, name.as_bytes());
        known(&mut fs, &result);
        drop(fs);
        self.entry(result, reply);
    }

    fn forget(&self, _: &Request, ino: INodeNo, answers: u64) {
        self.shared.forget(ino.0, answers);
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.shared.lock().getattr(ino.0) {
            Ok(a) => reply.attr(&TTL, &file_attr(&a)),
            Err(e) => reply.error(self.errno(&e)),
        }
    }

    #[allow(clippy::too_many_arguments)] // the trait's
    fn setattr(
        &self,
        req: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let when = |t: Option<TimeOrNow>| {
            t.map(|t| match t {
                TimeOrNow::SpecificTime(t) => stamp(t),
                TimeOrNow::Now => now(),
            })
        };
        let mut set = SetAttr { mode, uid, gid, size, atime: when(atime), mtime: when(mtime) };
        let result = self.shared.change(|fs| {
            // A new owner, or one who isn't root, ends set-user-id and set-group-id.
            if (uid.is_some() || gid.is_some()) && mode.is_none() && req.uid() != 0 {
                let a = fs.getattr(ino.0)?;
                let group = if a.mode & 0o010 != 0 { 0o2000 } else { 0 };
                set.mode = (a.mode & 0o170_000 == 0o100_000).then_some(a.mode & 0o7777 & !(0o4000 | group));
            }
            fs.setattr(ino.0, set)
        });
        match result {
            Ok(a) => reply.attr(&TTL, &file_attr(&a)),
            Err(e) => reply.error(self.errno(&e)),
        }
    }

    fn readlink(&self, _: &Request, ino: INodeNo, reply: ReplyData) {
        match self.shared.lock().readlink(ino.0) {
            Ok(target) => reply.data(&target),
            Err(e) => reply.error(self.errno(&e)),
        }
    }

    fn mknod(&self, req: &Request, parent: INodeNo, name: &OsStr, mode: u32, umask: u32, rdev: u32, reply: ReplyEntry) {
        let mode = mode & !(umask & 0o777);
        let owner = (req.uid(), req.gid());
        self.named(|fs| fs.create(parent.0, name.as_bytes(), mode, owner, rdev), reply);
    }

    fn mkdir(&self, req: &Request, parent: INodeNo, name: &OsStr, mode: u32, umask: u32, reply: ReplyEntry) {
        let mode = 0o040_000 | (mode & 0o7777 & !(umask & 0o777));
        let owner = (req.uid(), req.gid());
        self.named(|fs| fs.create(parent.0, name.as_bytes(), mode, owner, 0), reply);
    }

    fn unlink(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.empty(self.shared.change(|fs| fs.unlink(parent.0, name.as_bytes())), reply);
    }

    fn rmdir(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.empty(self.shared.change(|fs| fs.rmdir(parent.0, name.as_bytes())), reply);
    }

    fn symlink(&self, req: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        let target = target.as_os_str().as_bytes();
        let owner = (req.uid(), req.gid());
        self.named(|fs| fs.symlink(parent.0, name.as_bytes(), target, owner), reply);
    }

    fn rename(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let all = RenameFlags::RENAME_NOREPLACE | RenameFlags::RENAME_EXCHANGE | RenameFlags::RENAME_WHITEOUT;
        if !all.contains(flags) {
            return reply.error(fuser::Errno::EINVAL);
        }
        let how = Rename {
            no_replace: flags.contains(RenameFlags::RENAME_NOREPLACE),
            exchange: flags.contains(RenameFlags::RENAME_EXCHANGE),
            whiteout: flags.contains(RenameFlags::RENAME_WHITEOUT).then_some((req.uid(), req.gid())),
        };
        let (from, to) = ((parent.0, name.as_bytes()), (new_parent.0, new_name.as_bytes()));
        self.empty(self.shared.change(|fs| fs.rename(from, to, how)), reply);
    }

    fn link(&self, _: &Request, ino: INodeNo, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        self.named(|fs| fs.link(ino.0, parent.0, name.as_bytes()), reply);
    }

    fn open(&self, _: &Request, ino: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        match self.shared.lock().open(ino.0) {
            // All writes pass by the kernel's cache of this mount: it needn't be thrown away at an open.
            Ok(()) => reply.opened(FileHandle(0), FopenFlags::FOPEN_KEEP_CACHE),
            Err(e) => reply.error(self.errno(&e)),
        }
    }

    fn read(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        // The answer is a copy into the kernel: not under the lock.
        let result = self.shared.lock().read(ino.0, offset, size as usize);
        match result {
            Ok(data) => reply.data(&data),
            Err(e) => reply.error(self.errno(&e)),
        }
    }

    fn write(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        flags: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        match self.shared.write(ino.0, offset, data, flags.contains(WriteFlags::FUSE_WRITE_CACHE)) {
            Ok(n) => reply.written(n as u32),
            Err(e) => reply.error(self.errno(&e)),
        }
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }

    fn release(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        self.empty(self.shared.change(|fs| fs.release(ino.0)), reply);
    }

    fn fsync(&self, _: &Request, ino: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        self.empty(self.shared.sync(Some(ino.0)), reply);
    }

    fn fsyncdir(&self, _: &Request, ino: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        self.empty(self.shared.sync(Some(ino.0)), reply);
    }

    fn readdir(&self, _: &Request, ino: INodeNo, _: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let mut fs = self.shared.lock();
        if offset < 1 && reply.add(ino, 1, FileType::Directory, ".") {
            return reply.ok();
        }
        if offset < 2 {
            let parent = fs.lookup(ino.0, b"..").map_or(ino.0, |a| a.ino);
            if reply.add(INodeNo(parent), 2, FileType::Directory, "..") {
                return reply.ok();
            }
        }
        match fs.readdir(ino.0, offset.max(2), 256) {
            Ok(entries) => {
                for e in entries {
                    if reply.add(INodeNo(e.ino), e.cookie, kind(e.kind), OsStr::from_bytes(&e.name)) {
                        break;
                    }
                }
                reply.ok();
            }
            Err(e) => reply.error(self.errno(&e)),
        }
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        let s = self.shared.lock().statfs();
        let size = BLOCK as u32;
        reply.statfs(s.blocks, s.blocks_free, s.blocks_free, s.inodes, s.inodes_free, size, NAME_MAX, size);
    }

    fn setxattr(&self, _: &Request, ino: INodeNo, name: &OsStr, value: &[u8], flags: i32, _: u32, reply: ReplyEmpty) {
        // XATTR_CREATE is 1, XATTR_REPLACE 2.
        let (create, replace) = (flags & 1 != 0, flags & 2 != 0);
        self.empty(self.shared.change(|fs| fs.setxattr(ino.0, name.as_bytes(), value, create, replace)), reply);
    }

    fn getxattr(&self, _: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        self.sized(self.shared.lock().getxattr(ino.0, name.as_bytes()), size, reply);
    }

    fn listxattr(&self, _: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        let names = self.shared.lock().listxattr(ino.0);
        let joined = names.map(|n| n.into_iter().flat_map(|n| n.into_iter().chain([0])).collect());
        self.sized(joined, size, reply);
    }

    fn removexattr(&self, _: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.empty(self.shared.change(|fs| fs.removexattr(ino.0, name.as_bytes())), reply);
    }

    fn create(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        _flags: i32,
        reply: ReplyCreate,
    ) {
        let mode = 0o100_000 | (mode & 0o7777 & !(umask & 0o777));
        let result = self.shared.change(|fs| {
            let a = fs.create(parent.0, name.as_bytes(), mode, (req.uid(), req.gid()), 0)?;
            fs.open(a.ino)?;
            fs.know(a.ino);
            Ok(a)
        });
        match result {
            Ok(a) => {
                let generation = Generation(a.generation.into());
                reply.created(&TTL, &file_attr(&a), generation, FileHandle(0), FopenFlags::FOPEN_KEEP_CACHE);
            }
            Err(e) => reply.error(self.errno(&e)),
        }
    }

    fn fallocate(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        // FALLOC_FL_KEEP_SIZE is 1, PUNCH_HOLE 2, ZERO_RANGE 16.
        let how = match mode & !1 {
            0 => Fallocate::Allocate,
            2 if mode & 1 != 0 => Fallocate::Punch,
            16 => Fallocate::Zero,
            _ => return reply.error(fuser::Errno::EOPNOTSUPP),
        };
        self.empty(self.shared.change(|fs| fs.fallocate(ino.0, how, offset, length, mode & 1 != 0)), reply);
    }

    fn ioctl(
        &self,
        req: &Request,
        ino: INodeNo,
        _: FileHandle,
        _: IoctlFlags,
        number: u32,
        data: &[u8],
        _out_size: u32,
        reply: ReplyIoctl,
    ) {
        match self.shared.ioctl(req.uid(), ino.0, number, data) {
            Ok(out) => reply.ioctl(0, &out),
            Err(e) => reply.error(self.errno(&e)),
        }
    }

    fn lseek(&self, _: &Request, ino: INodeNo, _: FileHandle, offset: i64, whence: i32, reply: ReplyLseek) {
        // SEEK_DATA is 3, SEEK_HOLE 4; the kernel does the others.
        let data = match whence {
            3 => true,
            4 => false,
            _ => return reply.error(fuser::Errno::EINVAL),
        };
        let Ok(from) = u64::try_from(offset) else { return reply.error(fuser::Errno::ENXIO) };
        match self.shared.lock().seek(ino.0, from, data) {
            Ok(at) => reply.offset(at as i64),
            Err(e) => reply.error(self.errno(&e)),
        }
    }
}
