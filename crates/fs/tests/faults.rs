//! The core on devices that fail, lose or rot a block at the worst moment, and on disks that are mounted again and again.

use std::collections::BTreeSet;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use plimsoll_fs::{BLOCK, Disk, Error, Format, Fs, MemDisk, Mode, Options, ROOT, Write, fsck, mkfs};

const FILE: u32 = 0o100_644;

/// A disk with blocks that can't be read, and one that writes nothing but superblocks.
struct Faulty {
    disk: MemDisk,
    unreadable: Mutex<BTreeSet<u64>>,
    unwritable: AtomicBool,
}

impl Faulty {
    fn new(disk: MemDisk) -> Arc<Faulty> {
        Arc::new(Faulty { disk, unreadable: Mutex::default(), unwritable: AtomicBool::new(false) })
    }
}

impl Disk for Faulty {
    fn blocks(&self) -> u64 {
        self.disk.blocks()
    }
    fn read(&self, block: u64, into: &mut [u8]) -> io::Result<()> {
        let end = block + (into.len() / BLOCK) as u64;
        if self.unreadable.lock().unwrap().range(block..end).next().is_some() {
            return Err(io::Error::other("unreadable"));
        }
        self.disk.read(block, into)
    }
    fn write(&self, writes: &[Write]) -> io::Result<()> {
        let is_super = |w: &Write| w.block == 0 || w.block == self.disk.blocks() - 1;
        if self.unwritable.load(Ordering::Relaxed) && !writes.iter().all(is_super) {
            return Err(io::Error::other("unwritable"));
        }
        self.disk.write(writes)
    }
    fn flush(&self) -> io::Result<()> {
        Ok(())
    }
}

fn file(fs: &mut Fs, name: &[u8]) -> u64 {
    fs.create(ROOT, name, FILE, (1, 2), 0).unwrap().ino
}

fn clean(disk: Arc<dyn Disk>) {
    assert_eq!(fsck(disk, false).unwrap().problems, Vec::<String>::new());
}

/// A disk whose logs hold content that may stay there: an unmount doesn't empty them.
fn marked() -> (Arc<Faulty>, u64) {
    let disk = Faulty::new(MemDisk::new(16_384));
    mkfs(disk.clone(), Format::new(9, Mode::Manylogs, 16_384), (0, 0)).unwrap();
    let mut fs = Fs::mount(disk.clone(), Options::default()).unwrap();
    let ino = file(&mut fs, b"a");
    fs.setxattr(ino, b"user.plimsoll.durability", b"anywhere", false, false).unwrap();
    fs.write(ino, 0, &[1; 3 * BLOCK]).unwrap();
    fs.unmount().unwrap();
    (disk, ino)
}

#[test]
fn mounts_that_fail_in_their_checkpoint_leave_a_disk_that_can_be_mounted() {
    let (disk, ino) = marked();
    let mut lives = 0u8;
    // Until a mount must checkpoint, as the superblock has no room for another life.
    disk.unwritable.store(true, Ordering::Relaxed);
    while let Ok(mut fs) = Fs::mount(disk.clone(), Options::default()) {
        disk.unwritable.store(false, Ordering::Relaxed);
        lives += 1;
        assert!(lives < 100);
        fs.write(ino, 0, &[lives; BLOCK]).unwrap();
        fs.unmount().unwrap();
        disk.unwritable.store(true, Ordering::Relaxed);
    }
    for _ in 0..3 {
        let result = Fs::mount(disk.clone(), Options::default()).map(drop);
        assert!(matches!(result, Err(Error::Device(_))), "{result:?}");
    }
    disk.unwritable.store(false, Ordering::Relaxed);
    let mut fs = Fs::mount(disk.clone(), Options::default()).unwrap();
    assert_eq!(fs.read(ino, 0, BLOCK).unwrap(), [lives; BLOCK]);
    fs.unmount().unwrap();
    clean(disk);
}

#[test]
fn mounts_without_a_change_never_need_a_checkpoint() {
    let (disk, ino) = marked();
    disk.unwritable.store(true, Ordering::Relaxed);
    for _ in 0..40 {
        let mut fs = Fs::mount(disk.clone(), Options::default()).unwrap();
        assert_eq!(fs.read(ino, 0, BLOCK).unwrap(), [1; BLOCK]);
        fs.unmount().unwrap();
    }
    clean(disk);
}
