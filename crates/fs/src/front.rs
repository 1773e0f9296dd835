//! The FUSE front: requests of the kernel, on several threads, to one [`Fs`].
//!
//! The lock is held for an operation, not for a sync's writes: while one sync waits for the device, others prepare and write theirs.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{
    BsdFileFlags, Config, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, IoctlFlags,
    LockOwner, MountOption, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyEmpty,
    ReplyEntry, ReplyIoctl, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, Request, Session, SessionACL,
    TimeOrNow, WriteFlags,
};
use rustix::io::Errno;

use crate::ioctl;
use crate::tell::Told;
use crate::{Attr, BLOCK, Disk, Error, Fallocate, Fs, Mode, Prepared, Rename, Result, SetAttr, Stamp};

/// Time for which the kernel caches attributes and names: all changes pass by it.
const TTL: Duration = Duration::from_secs(60);
const NAME_MAX: u32 = 255;
/// Period after which changes become durable by themselves, and journals are checkpointed.
const PERIOD: Duration = Duration::from_secs(5);
/// Logs fuller than this are checkpointed by themselves, unless they hold content that may stay there.
const FULL_PERCENT: u64 = 80;

/// Options of a mount.
#[derive(Clone, Debug)]
pub struct Mount {
    /// Shown as the source in the list of mounts.
    pub source: String,
    /// Other users may use it.
    pub allow_other: bool,
    /// Threads that serve requests.
    pub threads: usize,
    /// No changes.
    pub read_only: bool,
}

struct Shared {
    fs: Mutex<Fs>,
    /// A record became durable, or a sync failed.
    durable: Condvar,
    disk: Arc<dyn Disk>,
    told: Told,
}

fn now() -> Stamp {
    let d = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    (d.as_secs() as i64, d.subsec_nanos())
}

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

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Fs> {
        let mut fs = self.fs.lock().expect("a panic under the lock ends the process");
        fs.set_now(now());
        fs
    }

    /// Makes a file, or everything, durable.
    fn sync(&self, file: Option<u64>) -> Result<()> {
        let mut fs = self.lock();
        loop {
            let failed = |fs: &Fs| fs.failure().map(|why| Error::Device(why.into()));
            let wait = |fs| self.durable.wait_timeout(fs, PERIOD).expect("no panic under the lock").0;
            let seq = match fs.prepare(file)? {
                Prepared::Clean => return Ok(()),
                Prepared::Busy => {
                    fs = wait(fs);
                    continue;
                }
                Prepared::Wait(seq) => seq,
                Prepared::Commit(c) => {
                    while fs.durable_seq() < c.after && failed(&fs).is_none() {
                        fs = wait(fs);
                    }
                    // The write that this one waits for may still be under way.
                    if let Some(e) = failed(&fs) {
                        return Err(e);
                    }
                    drop(fs);
                    let result = c.execute(&*self.disk);
                    fs = self.lock();
                    let result = fs.finish(c.seq, result);
                    self.durable.notify_all();
                    result?;
                    c.seq
                }
            };
            while fs.durable_seq() < seq {
                if let Some(e) = failed(&fs) {
                    return Err(e);
                }
                fs = wait(fs);
            }
            return Ok(());
        }
    }

    /// Performs a change. A transaction that is large enough is made durable first. Without space, freed blocks are reclaimed and
    /// the change is tried again.
    fn change<T>(&self, mut f: impl FnMut(&mut Fs) -> Result<T>) -> Result<T> {
        let full = self.lock().must_commit();
        if full {
            self.sync(None)?;
        }
        let result = f(&mut self.lock());
        match result {
            Err(Error::Os(Errno::NOSPC)) => {
                self.sync(None)?;
                f(&mut self.lock())
            }
            result => result,
        }
    }

    /// Writes until the space ends. Pages that the kernel writes back from its cache are written whole, or it is an error: the
    /// kernel takes them for clean also if the answer counts fewer bytes.
    fn write(&self, ino: u64, offset: u64, data: &[u8], from_cache: bool) -> Result<usize> {
        let mut done = 0;
        while done < data.len() {
            match self.change(|fs| fs.write(ino, offset + done as u64, &data[done..])) {
                Ok(n) => done += n,
                Err(e) if done == 0 || from_cache => return Err(e),
                Err(_) => break,
            }
        }
        Ok(done)
    }

    /// Takes answers back that gave the kernel an inode. The deletion of one without a name is a change as any other.
    fn forget(&self, ino: u64, answers: u64) {
        let mut fs = self.lock();
        let full = fs.is_orphan(ino) && fs.must_commit();
        drop(fs);
        if full {
            // Each later sync fails as well.
            let _ = self.sync(None);
        }
        // Nobody waits for it. A corrupt block is found again by the next change of the same blocks.
        let _ = self.lock().forget(ino, answers);
    }

    /// Performs an ioctl of a user, and returns what it writes to the caller's memory.
    fn ioctl(&self, uid: u32, ino: u64, number: u32, data: &[u8]) -> Result<Vec<u8>> {
        match number {
            ioctl::GET_DURABILITY => {
                let anywhere = self.lock().getattr(ino)?.anywhere;
                Ok(if anywhere { ioctl::ANYWHERE } else { ioctl::AT_ITS_PLACE }.to_ne_bytes().to_vec())
            }
            ioctl::SET_DURABILITY => {
                let anywhere = match data.try_into().map(u32::from_ne_bytes) {
                    Ok(ioctl::AT_ITS_PLACE) => false,
                    Ok(ioctl::ANYWHERE) => true,
                    _ => return Err(Errno::INVAL.into()),
                };
                self.change(|fs| {
                    // The kernel doesn't check it: the file may be open for reading only.
                    if uid != 0 && fs.getattr(ino)?.uid != uid {
                        return Err(Errno::PERM.into());
                    }
                    fs.set_anywhere(ino, anywhere)
                })?;
                Ok(Vec::new())
            }
            ioctl::SYNC => self.sync(None).map(|()| Vec::new()),
            _ => Err(Errno::NOTTY.into()),
        }
    }

    /// Performs the periodic work; false if the next round would only repeat a failure, which each sync reports. A block that
    /// couldn't be read changes nothing: it is tried again.
    fn tend_on(&self) -> bool {
        let result = self.tend();
        if let Some(why) = self.lock().failure() {
            self.told.failure(why);
            return false;
        }
        if let Err(e) = result {
            self.told.error(&e);
        }
        true
    }

    /// The errno of an operation that failed.
    fn errno(&self, e: &Error) -> fuser::Errno {
        self.told.error(e);
        fuser::Errno::from_i32(e.errno().raw_os_error())
    }

    /// Performs the periodic work: write-back and checkpoint.
    fn tend(&self) -> Result<()> {
        let dirty = self.lock().is_dirty();
        if dirty {
            self.sync(None)?;
        }
        let mut fs = self.lock();
        if !dirty {
            // Nobody writes at present.
            fs.forget_spare();
        }
        if fs.logs_used_percent() > FULL_PERCENT || fs.info().mode != Mode::Manylogs {
            fs.checkpoint_lazily()
        } else {
            Ok(())
        }
    }
}

/// A mounted file system, served by threads of its own.
pub struct Mounted {
    session: Option<std::thread::JoinHandle<io::Result<()>>>,
    at: PathBuf,
    shared: Arc<Shared>,
    tender: Option<std::thread::JoinHandle<()>>,
    end: std::sync::mpsc::Sender<()>,
}

/// Mounts a file system on a directory.
///
/// # Errors
/// If the kernel or `fusermount3` refuses.
pub fn mount(fs: Fs, disk: Arc<dyn Disk>, at: &Path, how: &Mount) -> io::Result<Mounted> {
    let shared = Arc::new(Shared { fs: Mutex::new(fs), durable: Condvar::new(), disk, told: Told::default() });
    let mut config = Config::default();
    config.mount_options = vec![
        MountOption::FSName(how.source.clone()),
        MountOption::Subtype("plimsoll".into()),
        MountOption::DefaultPermissions,
        if how.read_only { MountOption::RO } else { MountOption::RW },
    ];
    if rustix::process::getuid().is_root() {
        config.mount_options.extend([MountOption::Dev, MountOption::Suid]);
    }
    config.acl = if how.allow_other { SessionACL::All } else { SessionACL::Owner };
    config.n_threads = Some(how.threads.max(1));
    config.clone_fd = how.threads > 1;
    // The process may have another folder when it unmounts.
    let at = std::path::absolute(at)?;
    let session = Session::new(Front { shared: shared.clone() }, &at, &config)?;
    let session = std::thread::spawn(move || session.run());
    let (end, ended) = std::sync::mpsc::channel();
    let tended = shared.clone();
    let tender = std::thread::spawn(move || {
        while ended.recv_timeout(PERIOD) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
            if !tended.tend_on() {
                break;
            }
        }
    });
    Ok(Mounted { session: Some(session), at, shared, tender: Some(tender), end })
}

impl Mounted {
    /// Waits until somebody unmounts it, then makes all durable.
    ///
    /// # Errors
    /// If not all could be made durable.
    pub fn wait(mut self) -> io::Result<()> {
        let served = match self.session.take() {
            Some(session) => ended(session.join().map_err(|_| io::Error::other("a thread of the front panicked"))?),
            None => Ok(()),
        };
        self.close()?;
        served
    }

    /// Unmounts it from any thread.
    pub fn unmounter(&self) -> Unmounter {
        Unmounter { at: self.at.clone(), shared: self.shared.clone() }
    }

    fn close(&mut self) -> io::Result<()> {
        let _ = self.end.send(()); // the thread may have ended after a failure
        if let Some(t) = self.tender.take() {
            t.join().map_err(|_| io::Error::other("the background thread panicked"))?;
        }
        let result = self.shared.lock().unmount();
        result.map_err(|e| io::Error::other(e.to_string()))
    }
}

/// Ends a mount, by `umount` or, for users other than root, `fusermount3`. (The library's own unmounter can be used once only.)
pub struct Unmounter {
    at: PathBuf,
    shared: Arc<Shared>,
}

impl Unmounter {
    /// Unmounts it; [`Mounted::wait`] then returns.
    ///
    /// # Errors
    /// If it is refused, as a program has a file or a folder of it open. It may be tried again.
    pub fn unmount(&self) -> io::Result<()> {
        self.run(&["umount"], &["fusermount3", "-u"])
    }

    /// Makes all durable, and takes the file system out of the folders' tree. It is served until the last program has closed its files.
    ///
    /// # Errors
    /// If not all could be made durable; it is detached all the same. If it is refused.
    pub fn detach(&self) -> io::Result<()> {
        let synced = self.shared.sync(None);
        self.run(&["umount", "--lazy"], &["fusermount3", "-u", "-z"])?;
        synced.map_err(|e| io::Error::other(format!("not all is durable: {e}")))
    }

    fn run(&self, of_root: &[&str], of_others: &[&str]) -> io::Result<()> {
        let words = if rustix::process::geteuid().is_root() { of_root } else { of_others };
        let said = |e: io::Error| io::Error::new(e.kind(), format!("{}: {e}", words[0]));
        let done =
            Command::new(words[0]).args(&words[1..]).arg(&self.at).stdin(Stdio::null()).output().map_err(said)?;
        if done.status.success() {
            return Ok(());
        }
        Err(io::Error::other(String::from_utf8_lossy(&done.stderr).trim().to_string()))
    }
}

/// Counts an answer that gives the kernel an inode, under the lock of the operation: no other may free it in between.
fn known(fs: &mut Fs, result: &Result<Attr>) {
    if let Ok(a) = result {
        fs.know(a.ino);
    }
}

/// The end of a session. The kernel ends the connection at an unmount. A thread that is just reading a request then gets
/// `ECONNABORTED` and not `ENODEV`, which is as good an end.
fn ended(served: io::Result<()>) -> io::Result<()> {
    match served {
        Err(e) if e.raw_os_error() == Some(Errno::CONNABORTED.raw_os_error()) => Ok(()),
        served => served,
    }
}

struct Front {
    shared: Arc<Shared>,
}

impl Front {
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
            Err(e) => reply.error(self.shared.errno(&e)),
        }
    }

    fn empty(&self, result: Result<()>, reply: ReplyEmpty) {
        match result {
            Ok(()) => reply.ok(),
            Err(e) => reply.error(self.shared.errno(&e)),
        }
    }

    fn sized(&self, result: Result<Vec<u8>>, size: u32, reply: ReplyXattr) {
        match result {
            Ok(v) if size == 0 => reply.size(v.len() as u32),
            Ok(v) if v.len() > size as usize => reply.error(fuser::Errno::ERANGE),
            Ok(v) => reply.data(&v),
            Err(e) => reply.error(self.shared.errno(&e)),
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
            Err(e) => reply.error(self.shared.errno(&e)),
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
            Err(e) => reply.error(self.shared.errno(&e)),
        }
    }

    fn readlink(&self, _: &Request, ino: INodeNo, reply: ReplyData) {
        match self.shared.lock().readlink(ino.0) {
            Ok(target) => reply.data(&target),
            Err(e) => reply.error(self.shared.errno(&e)),
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
            Err(e) => reply.error(self.shared.errno(&e)),
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
            Err(e) => reply.error(self.shared.errno(&e)),
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
            Err(e) => reply.error(self.shared.errno(&e)),
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
            Err(e) => reply.error(self.shared.errno(&e)),
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
            Err(e) => reply.error(self.shared.errno(&e)),
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
            Err(e) => reply.error(self.shared.errno(&e)),
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
            Err(e) => reply.error(self.shared.errno(&e)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Format, MemDisk, Options, ROOT, Write, mkfs};
    use std::sync::atomic::{AtomicBool, Ordering};

    struct Unreadable {
        disk: MemDisk,
        now: AtomicBool,
    }

    impl Disk for Unreadable {
        fn blocks(&self) -> u64 {
            self.disk.blocks()
        }
        fn read(&self, block: u64, into: &mut [u8]) -> io::Result<()> {
            if self.now.load(Ordering::Relaxed) { Err(io::Error::other("lost")) } else { self.disk.read(block, into) }
        }
        fn write(&self, writes: &[Write]) -> io::Result<()> {
            self.disk.write(writes)
        }
        fn flush(&self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_block_that_is_unreadable_for_a_while_doesnt_end_the_periodic_syncs() {
        let disk = Arc::new(Unreadable { disk: MemDisk::new(4096), now: AtomicBool::new(false) });
        mkfs(disk.clone(), Format::new(9, Mode::Manylogs, 4096), (0, 0)).unwrap();
        let mut fs = Fs::mount(disk.clone(), Options::default()).unwrap();
        fs.create(ROOT, b"a", 0o100_644, (0, 0), 0).unwrap();
        fs.unmount().unwrap();
        let mut fs = Fs::mount(disk.clone(), Options::default()).unwrap();
        let ino = fs.lookup(ROOT, b"a").unwrap().ino;
        fs.write(ino, 0, b"data").unwrap();
        let shared = Shared { fs: Mutex::new(fs), durable: Condvar::new(), disk: disk.clone(), told: Told::default() };
        // The bitmap, which the page's block comes from, isn't in memory.
        disk.now.store(true, Ordering::Relaxed);
        assert!(shared.tend().is_err());
        assert!(shared.tend_on());
        disk.now.store(false, Ordering::Relaxed);
        assert!(shared.tend_on() && !shared.lock().is_dirty());
    }

    fn shared(disk: Arc<dyn Disk>, mode: Mode) -> Shared {
        mkfs(disk.clone(), Format::new(9, mode, disk.blocks()), (0, 0)).unwrap();
        let fs = Fs::mount(disk.clone(), Options::default()).unwrap();
        Shared { fs: Mutex::new(fs), durable: Condvar::new(), disk, told: Told::default() }
    }

    fn file(shared: &Shared, name: &[u8]) -> u64 {
        shared.lock().create(ROOT, name, 0o100_644, (0, 0), 0).unwrap().ino
    }

    #[test]
    fn a_failure_and_what_is_corrupt_are_told() {
        let shared = shared(Arc::new(MemDisk::new(4096)), Mode::Manylogs);
        let corrupt = Error::Corrupt("a block".to_owned());
        shared.errno(&corrupt);
        assert!(!shared.told.error(&corrupt));
        assert!(shared.tend_on());
        shared.lock().failed = Some("lost".to_owned());
        assert!(!shared.tend_on());
        assert!(!shared.told.failure("lost"));
    }

    /// The kernel takes any answer but an error for the whole of what it wrote back.
    #[test]
    fn write_back_of_a_mapping_is_whole_or_an_error() {
        let shared = shared(Arc::new(MemDisk::new(4096)), Mode::Manylogs);
        let (full, mapped) = (file(&shared, b"full"), file(&shared, b"mapped"));
        shared.lock().truncate(mapped, 64 * BLOCK as u64).unwrap();
        let page = |i: u64| (i * BLOCK as u64, [1; BLOCK]);
        for i in 0.. {
            let (at, data) = page(i);
            if shared.write(full, at, &data, false).is_err() {
                break;
            }
        }
        let size = shared.lock().getattr(full).unwrap().size;
        shared.change(|fs| fs.truncate(full, size - 5 * BLOCK as u64)).unwrap();
        shared.sync(None).unwrap();
        let data = vec![2; 32 * BLOCK];
        assert_eq!(shared.write(mapped, 0, &data, true), Err(Error::Os(Errno::NOSPC)));
        let done = shared.write(mapped, 32 * BLOCK as u64, &data, false);
        assert!(done == Err(Error::Os(Errno::NOSPC)) || done.is_ok_and(|n| n < data.len()));
        // What was deleted makes room, also in the middle of a write.
        shared.change(|fs| fs.truncate(full, size / 2)).unwrap();
        assert_eq!(shared.write(mapped, 0, &data, true), Ok(data.len()));
        shared.sync(None).unwrap();
        assert!(shared.lock().read(mapped, 0, data.len()).unwrap() == data);
    }

    /// The kernel forgets many deleted files at once, without a change between.
    #[test]
    fn deleted_files_that_are_forgotten_at_once_fit_a_small_journal() {
        let blocks = 16_384;
        let disk = Arc::new(MemDisk::new(blocks));
        let format = Format { journal_blocks: 64, inodes_per_group: 1024, ..Format::new(9, Mode::Ordered, blocks) };
        mkfs(disk.clone(), format, (0, 0)).unwrap();
        let fs = Fs::mount(disk.clone(), Options::default()).unwrap();
        let shared = Shared { fs: Mutex::new(fs), durable: Condvar::new(), disk, told: Told::default() };
        let free = shared.lock().statfs().inodes_free;
        let names: Vec<String> = (0..1000).map(|i| i.to_string()).collect();
        let files: Vec<u64> = names
            .iter()
            .map(|name| {
                let made = shared.change(|fs| fs.create(ROOT, name.as_bytes(), 0o100_644, (0, 0), 0)).unwrap();
                shared.lock().know(made.ino);
                made.ino
            })
            .collect();
        names.iter().for_each(|name| shared.change(|fs| fs.unlink(ROOT, name.as_bytes())).unwrap());
        shared.sync(None).unwrap();
        files.into_iter().for_each(|ino| shared.forget(ino, 1));
        shared.sync(None).unwrap();
        assert_eq!(shared.lock().statfs().inodes_free, free);
    }

    /// Holds the write of ones until it may end, and fails that of threes.
    struct Held {
        disk: MemDisk,
        ones: (Mutex<(bool, bool)>, Condvar),
        twos: AtomicBool,
    }

    impl Disk for Held {
        fn blocks(&self) -> u64 {
            self.disk.blocks()
        }
        fn read(&self, block: u64, into: &mut [u8]) -> io::Result<()> {
            self.disk.read(block, into)
        }
        fn write(&self, writes: &[Write]) -> io::Result<()> {
            match writes.first().map(|w| &w.data[0][..4]) {
                Some([1, 1, 1, 1]) => {
                    let mut state = self.ones.0.lock().unwrap();
                    state.0 = true;
                    self.ones.1.notify_all();
                    drop(self.ones.1.wait_while(state, |s| !s.1).unwrap());
                }
                Some([2, 2, 2, 2]) => self.twos.store(true, Ordering::Relaxed),
                Some([3, 3, 3, 3]) => return Err(io::Error::other("lost")),
                _ => {}
            }
            self.disk.write(writes)
        }
        fn flush(&self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_direct_write_that_waits_is_not_made_after_a_failure() {
        let disk = Arc::new(Held { disk: MemDisk::new(4096), ones: Default::default(), twos: AtomicBool::new(false) });
        let shared = shared(disk.clone(), Mode::Ordered);
        let (a, b) = (file(&shared, b"a"), file(&shared, b"b"));
        shared.lock().write(a, 0, &[1; BLOCK]).unwrap();
        std::thread::scope(|s| {
            let first = s.spawn(|| shared.sync(Some(a)));
            drop(disk.ones.1.wait_while(disk.ones.0.lock().unwrap(), |s| !s.0).unwrap());
            shared.lock().write(a, 0, &[2; BLOCK]).unwrap();
            let second = s.spawn(|| shared.sync(Some(a)));
            while shared.lock().info().seq < 2 {
                std::thread::yield_now();
            }
            shared.lock().write(b, 0, &[3; BLOCK]).unwrap();
            let third = shared.sync(Some(b));
            let second = second.join().unwrap();
            disk.ones.0.lock().unwrap().1 = true;
            disk.ones.1.notify_all();
            let first = first.join().unwrap();
            assert!(second.is_err() && third.is_err(), "{second:?} {third:?}");
            assert!(!disk.twos.load(Ordering::Relaxed), "beside the first write, which ended with {first:?}");
        });
    }

    #[test]
    fn content_that_may_be_anywhere_stays_in_logs_that_are_nearly_full() {
        for marked in [false, true] {
            let shared = shared(Arc::new(MemDisk::new(4096)), Mode::Manylogs);
            let a = file(&shared, b"a");
            if marked {
                shared.lock().setxattr(a, b"user.plimsoll.durability", b"anywhere", false, false).unwrap();
            }
            let fill = |percent: u64| {
                while shared.lock().logs_used_percent() <= percent && shared.lock().info().checkpoints == 0 {
                    shared.lock().write(a, 0, &[7; BLOCK]).unwrap();
                    shared.sync(Some(a)).unwrap();
                }
            };
            fill(FULL_PERCENT);
            shared.tend().unwrap();
            let info = shared.lock().info();
            assert_eq!((info.checkpoints, info.anywhere_blocks), if marked { (0, 1) } else { (1, 0) });
            if marked {
                // With full logs a sync makes room.
                fill(100);
                let info = shared.lock().info();
                assert_eq!((info.checkpoints, info.anywhere_blocks), (1, 1));
                assert_eq!(shared.lock().read(a, 0, 1).unwrap(), [7]);
            }
        }
    }

    /// The race itself takes about ten unmounts of a busy mount: `make fs-conformance` meets it.
    #[test]
    fn a_connection_that_an_unmount_aborts_has_ended_well() {
        let error = |e: Errno| io::Error::from_raw_os_error(e.raw_os_error());
        assert!(ended(Err(error(Errno::CONNABORTED))).is_ok());
        assert_eq!(ended(Err(error(Errno::IO))).unwrap_err().raw_os_error(), Some(5));
    }
}
