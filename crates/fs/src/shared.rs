//! One [`Fs`] that several threads use.
//!
//! The lock is held for an operation, not for a sync's writes: while one sync waits for the device, others prepare and write theirs.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, mpsc};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::io::Errno;

use crate::ioctl;
use crate::tell::Told;
use crate::{Disk, Error, Fs, Mode, Prepared, Result, Stamp};

/// Period after which changes become durable by themselves, and journals are checkpointed.
const PERIOD: Duration = Duration::from_secs(5);
/// Logs fuller than this are checkpointed by themselves, unless they hold content that may stay there.
const FULL_PERCENT: u64 = 80;

pub(crate) struct Shared {
    fs: Mutex<Fs>,
    /// A record became durable, or a sync failed.
    durable: Condvar,
    disk: Arc<dyn Disk>,
    told: Told,
    /// Notified when there is enough to write back that nobody should wait for all of it.
    wake: mpsc::Sender<Wake>,
    /// It was notified, and has not begun.
    woken: AtomicBool,
}

/// A message to the thread of the periodic work.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Wake {
    /// To write back now.
    WriteBack,
    /// To end.
    End,
}

pub(crate) fn now() -> Stamp {
    let d = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    (d.as_secs() as i64, d.subsec_nanos())
}

impl Shared {
    /// Takes a file system, and whom it tells when there is work beside the requests.
    pub fn new(fs: Fs, disk: Arc<dyn Disk>, wake: mpsc::Sender<Wake>) -> Shared {
        let woken = AtomicBool::new(false);
        Shared { fs: Mutex::new(fs), durable: Condvar::new(), disk, told: Told::default(), wake, woken }
    }

    /// The file system, with the present time.
    pub fn lock(&self) -> MutexGuard<'_, Fs> {
        let mut fs = self.fs.lock().expect("a panic under the lock ends the process");
        fs.set_now(now());
        fs
    }

    /// Makes a file, or everything, durable.
    pub fn sync(&self, file: Option<u64>) -> Result<()> {
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
    pub fn change<T>(&self, mut f: impl FnMut(&mut Fs) -> Result<T>) -> Result<T> {
        let full = self.lock().must_commit();
        if full {
            self.sync(None)?;
        }
        let mut fs = self.lock();
        let result = f(&mut fs);
        let many = fs.has_many_pages();
        drop(fs);
        if many && !self.woken.swap(true, Ordering::Relaxed) {
            let _ = self.wake.send(Wake::WriteBack); // without the thread, as after a failure, writers write back
        }
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
    pub fn write(&self, ino: u64, offset: u64, data: &[u8], from_cache: bool) -> Result<usize> {
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
    pub fn forget(&self, ino: u64, answers: u64) {
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
    pub fn ioctl(&self, uid: u32, ino: u64, number: u32, data: &[u8]) -> Result<Vec<u8>> {
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

    /// Performs work beside the requests until it receives the end, or each round would only repeat a failure, which each sync reports.
    /// While it writes back, writers go on; what they have made dirty when it has ended is its next work.
    pub fn tend_until_end(&self, told: &mpsc::Receiver<Wake>) {
        let mut next = Instant::now() + PERIOD;
        loop {
            // The periodic work comes first: writers that never rest have no end of pages.
            let left = next.saturating_duration_since(Instant::now());
            let wake = if left.is_zero() { Err(RecvTimeoutError::Timeout) } else { told.recv_timeout(left) };
            let result = match wake {
                Ok(Wake::WriteBack) => {
                    self.woken.store(false, Ordering::Relaxed);
                    self.sync(None)
                }
                Err(RecvTimeoutError::Timeout) => {
                    next = Instant::now() + PERIOD;
                    self.tend()
                }
                Ok(Wake::End) | Err(RecvTimeoutError::Disconnected) => return,
            };
            if !self.noted(result) {
                return;
            }
        }
    }

    /// Prints what work beside the requests met; false after a failure that ends it. A block that couldn't be read changes nothing:
    /// it is tried again.
    fn noted(&self, result: Result<()>) -> bool {
        if let Some(why) = self.lock().failure() {
            self.told.failure(why);
            return false;
        }
        if let Err(e) = result {
            self.told.error(&e);
        }
        true
    }

    /// The errno of an operation that failed. Damage and failures are printed once.
    pub fn errno(&self, e: &Error) -> Errno {
        self.told.error(e);
        e.errno()
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BLOCK, Format, MemDisk, Options, ROOT, Write, mkfs};
    use std::io;

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
        let shared = Shared::new(fs, disk.clone(), mpsc::channel().0);
        // The bitmap, which the page's block comes from, isn't in memory.
        disk.now.store(true, Ordering::Relaxed);
        assert!(shared.tend().is_err());
        assert!(shared.noted(shared.tend()));
        disk.now.store(false, Ordering::Relaxed);
        assert!(shared.noted(shared.tend()) && !shared.lock().is_dirty());
    }

    fn shared(disk: Arc<dyn Disk>, mode: Mode) -> Shared {
        mkfs(disk.clone(), Format::new(9, mode, disk.blocks()), (0, 0)).unwrap();
        let fs = Fs::mount(disk.clone(), Options::default()).unwrap();
        Shared::new(fs, disk, mpsc::channel().0)
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
        assert!(shared.noted(shared.tend()));
        shared.lock().failed = Some("lost".to_owned());
        assert!(!shared.noted(shared.tend()));
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
        let shared = Shared::new(fs, disk, mpsc::channel().0);
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

    /// Of 16 pages that may be dirty a half is enough, and it is told once until somebody begins.
    #[test]
    fn pages_are_written_back_before_a_writer_must_wait_for_it() {
        let disk = Arc::new(MemDisk::new(4096));
        mkfs(disk.clone(), Format::new(9, Mode::Ordered, 4096), (0, 0)).unwrap();
        let options = Options { dirty_bytes_max: 16 * BLOCK as u64, ..Options::default() };
        let (wake, told) = mpsc::channel();
        let shared = Shared::new(Fs::mount(disk.clone(), options).unwrap(), disk, wake);
        let a = file(&shared, b"a");
        shared.write(a, 0, &[1; 8 * BLOCK], false).unwrap();
        assert!(told.try_recv().is_err());
        for page in 8..10 {
            shared.write(a, page * BLOCK as u64, &[1; BLOCK], false).unwrap();
        }
        assert_eq!(told.try_iter().collect::<Vec<Wake>>(), [Wake::WriteBack]);
        assert!(shared.lock().is_dirty() && shared.lock().info().seq == 0);
        for wake in [Wake::WriteBack, Wake::End] {
            shared.wake.send(wake).unwrap();
        }
        shared.tend_until_end(&told);
        assert!(!shared.lock().is_dirty());
        shared.write(a, 0, &[2; 9 * BLOCK], false).unwrap();
        assert_eq!(told.try_recv(), Ok(Wake::WriteBack));
    }
}
