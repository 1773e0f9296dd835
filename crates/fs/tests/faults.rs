//! The core on devices that fail, lose or rot a block at the worst moment, and on disks that are mounted again and again.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use plimsoll_fs::crash::CrashDisk;
use plimsoll_fs::{
    BLOCK, Disk, Error, Fallocate, Format, Fs, Kind, MemDisk, Mode, Options, Prepared, ROOT, Rename, SetAttr, Write,
    fsck, mkfs,
};
use rustix::io::Errno;

const FILE: u32 = 0o100_644;
const DIR: u32 = 0o040_755;

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
        // A drive replaces the sectors of what it is to write.
        let written: BTreeSet<u64> = writes.iter().flat_map(|w| w.block..w.end()).collect();
        let mut unreadable = self.unreadable.lock().unwrap();
        unreadable.retain(|b| !written.contains(b));
        self.disk.write(writes)
    }
    fn flush(&self) -> io::Result<()> {
        Ok(())
    }
}

/// A disk with groups of 128 blocks.
fn small_groups(mode: Mode) -> Arc<MemDisk> {
    let blocks = 2600;
    let disk = Arc::new(MemDisk::new(blocks));
    let format = Format {
        group_blocks: 128,
        log_blocks: 12,
        journal_blocks: 300,
        inodes_per_group: 16,
        ..Format::new(9, mode, blocks)
    };
    mkfs(disk.clone(), format, (0, 0)).unwrap();
    disk
}

fn mount(disk: &Arc<MemDisk>) -> Fs {
    Fs::mount(disk.clone(), Options::default()).unwrap()
}

fn file(fs: &mut Fs, name: &[u8]) -> u64 {
    fs.create(ROOT, name, FILE, (1, 2), 0).unwrap().ino
}

fn clean(disk: Arc<dyn Disk>) {
    assert_eq!(fsck(disk, false).unwrap().problems, Vec::<String>::new());
}

/// The bitmap of the group that has a block.
fn bitmap_of(content: &BTreeMap<u64, Arc<[u8]>>, block: u64) -> u64 {
    let is_bitmap = |d: &[u8]| d.starts_with(b"PFSB") && d[4..8] == (Kind::Blocks as u32).to_le_bytes();
    *content.range(..block).rev().find(|(_, d)| is_bitmap(d)).unwrap().0
}

/// Performs a change as a mount does: without space it is tried again after a sync.
fn change<T>(fs: &mut Fs, mut f: impl FnMut(&mut Fs) -> Result<T, Error>) -> Result<T, Error> {
    match f(fs) {
        Err(Error::Os(Errno::NOSPC)) => {
            fs.sync(None)?;
            f(fs)
        }
        result => result,
    }
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

/// A file in two groups can't be freed in the second: nothing of it may be given away.
#[test]
fn a_file_that_cannot_be_freed_shares_no_block_with_a_later_one() {
    for held in [false, true] {
        let disk = small_groups(Mode::Manylogs);
        let mut fs = mount(&disk);
        let (a, f) = (file(&mut fs, b"a"), file(&mut fs, b"f"));
        for (ino, at) in [(a, 0), (f, 0), (f, 50), (a, 30)] {
            let pages = if ino == a { 30 } else { 50 };
            fs.write(ino, at * BLOCK as u64, &vec![ino as u8; pages * BLOCK]).unwrap();
            fs.sync(None).unwrap();
        }
        fs.unlink(ROOT, b"f").unwrap();
        fs.sync(None).unwrap();
        let runs = fs.map(a).unwrap();
        fs.unmount().unwrap();
        let mut content = disk.content();
        let bitmap = bitmap_of(&content, runs.last().unwrap().1);
        assert_ne!(bitmap, bitmap_of(&content, runs[0].1), "{runs:?}");
        let mut bytes = content[&bitmap].to_vec();
        bytes[3000] ^= 1;
        content.insert(bitmap, bytes.into());
        let disk = Arc::new(MemDisk::with(disk.blocks(), content));

        let mut fs = mount(&disk);
        fs.lookup(ROOT, b"a").unwrap();
        if held {
            fs.know(a);
            fs.unlink(ROOT, b"a").unwrap();
            assert!(matches!(fs.forget(a, 1), Err(Error::Corrupt(_))));
        } else {
            assert!(matches!(fs.unlink(ROOT, b"a"), Err(Error::Corrupt(_))));
        }
        fs.sync(None).unwrap();
        let b = file(&mut fs, b"b");
        fs.write(b, 0, &[0xbb; 50 * BLOCK]).unwrap();
        fs.sync(Some(b)).unwrap();
        drop(fs);
        assert!(fsck(disk.clone(), true).unwrap().repaired);
        let mut fs = mount(&disk);
        let b = fs.lookup(ROOT, b"b").unwrap().ino;
        assert!(fs.read(b, 0, 50 * BLOCK).unwrap() == [0xbb; 50 * BLOCK]);
        if !held {
            assert!(fs.read(a, 0, 60 * BLOCK).unwrap() == [a as u8; 60 * BLOCK]);
            fs.unlink(ROOT, b"a").unwrap();
        }
        assert_eq!(fs.lookup(ROOT, b"a").unwrap_err(), Error::Os(Errno::NOENT));
        fs.unmount().unwrap();
        clean(disk);
    }
}

/// The whiteout of a rename needs an inode, and there is none: the file that would have been replaced stays.
#[test]
fn a_rename_that_fails_for_its_whiteout_changes_nothing() {
    let disk = small_groups(Mode::Manylogs);
    let mut fs = mount(&disk);
    file(&mut fs, b"a");
    let target = file(&mut fs, b"target");
    fs.write(target, 0, b"here").unwrap();
    for i in 0.. {
        if change(&mut fs, |fs| fs.create(ROOT, format!("{i}").as_bytes(), FILE, (0, 0), 0)).is_err() {
            break;
        }
        fs.sync(None).unwrap();
    }
    assert_eq!(fs.statfs().inodes_free, 0);
    fs.know(target);
    let how = Rename { whiteout: Some((0, 0)), ..Rename::default() };
    let renamed = change(&mut fs, |fs| fs.rename((ROOT, b"a"), (ROOT, b"target"), how));
    assert_eq!(renamed, Err(Error::Os(Errno::NOSPC)));
    fs.forget(target, 1).unwrap();
    assert_eq!(fs.lookup(ROOT, b"target").unwrap().ino, target);
    assert_eq!(fs.read(target, 0, 9).unwrap(), b"here");
    fs.know(target);
    fs.unlink(ROOT, b"target").unwrap();
    fs.forget(target, 1).unwrap();
    fs.sync(None).unwrap();
    drop(fs);
    let mut fs = mount(&disk);
    assert_eq!(fs.statfs().inodes_free, 1);
    fs.unmount().unwrap();
    clean(disk);
}

/// The bitmaps of blocks can't be read: an inode is there for a symbolic link, but no block for its target.
#[test]
fn a_symbolic_link_that_cannot_be_made_leaves_nothing() {
    let disk = small_groups(Mode::Manylogs);
    let mut fs = mount(&disk);
    file(&mut fs, b"a");
    fs.unmount().unwrap();
    drop(fs);
    let disk = Faulty::new(MemDisk::with(disk.blocks(), disk.content()));
    let mut fs = Fs::mount(disk.clone(), Options::default()).unwrap();
    let space = fs.statfs();
    let is_bitmap = |d: &[u8]| d.starts_with(b"PFSB") && d[4..8] == (Kind::Blocks as u32).to_le_bytes();
    *disk.unreadable.lock().unwrap() =
        disk.disk.content().iter().filter(|(_, d)| is_bitmap(d)).map(|(&b, _)| b).collect();
    let made = fs.symlink(ROOT, b"l", &[b'x'; 1000], (0, 0));
    assert!(matches!(made, Err(Error::Device(_))), "{made:?}");
    assert_eq!(fs.lookup(ROOT, b"l").map(drop), Err(Error::Os(Errno::NOENT)));
    assert_eq!(fs.statfs(), space);
    fs.sync(None).unwrap();
    disk.unreadable.lock().unwrap().clear();
    fs.symlink(ROOT, b"l", &[b'x'; 1000], (0, 0)).unwrap();
    fs.unmount().unwrap();
    drop(fs);
    clean(disk);
}

/// Later records say that the first one was durable, wherever they are.
#[test]
fn a_log_that_lost_its_first_block_is_an_error() {
    for (mode, zeroes) in [(Mode::Data, true), (Mode::Data, false), (Mode::Manylogs, true), (Mode::Manylogs, false)] {
        let disk = small_groups(mode);
        let mut fs = mount(&disk);
        file(&mut fs, b"before");
        fs.sync(None).unwrap();
        fs.checkpoint().unwrap();
        let before = disk.content();
        for name in [b"a", b"b", b"c"] {
            file(&mut fs, name);
            fs.sync(None).unwrap();
        }
        drop(fs);
        let mut content = disk.content();
        let (&first, _) = content.iter().find(|(_, d)| d.starts_with(b"PFSR")).unwrap();
        content.insert(first, if zeroes { vec![0; BLOCK].into() } else { before[&first].clone() });
        let disk = Arc::new(MemDisk::with(disk.blocks(), content));
        let result = Fs::mount(disk.clone(), Options::default()).map(drop);
        assert!(matches!(result, Err(Error::Corrupt(_))), "mode {}, zeroes {zeroes}: {result:?}", mode.name());
        assert!(fsck(disk.clone(), true).unwrap().repaired);
        clean(disk);
    }
}

/// A file was given blocks, and then a bitmap could not be read: no sync may write its extents without its content.
#[test]
fn blocks_of_a_deleted_file_do_not_appear_after_an_allocation_that_failed() {
    for mode in [Mode::Ordered, Mode::Manylogs] {
        let disk = small_groups(mode);
        let mut fs = mount(&disk);
        let (secret, b) = (file(&mut fs, b"secret"), file(&mut fs, b"b"));
        fs.write(secret, 0, &[0x5e; 600 * BLOCK]).unwrap();
        fs.truncate(b, 300 * BLOCK as u64).unwrap();
        fs.sync(None).unwrap();
        fs.unlink(ROOT, b"secret").unwrap();
        fs.unmount().unwrap();
        let runs = {
            let trial = Arc::new(MemDisk::with(disk.blocks(), disk.content()));
            let mut fs = mount(&trial);
            fs.write(b, 0, &[0xbb; 200 * BLOCK]).unwrap();
            fs.sync(Some(b)).unwrap();
            fs.map(b).unwrap()
        };
        let content = disk.content();
        let bitmap = bitmap_of(&content, runs[1].1);
        assert_ne!(bitmap, bitmap_of(&content, runs[0].1));

        let disk = Faulty::new(MemDisk::with(disk.blocks(), content));
        disk.unreadable.lock().unwrap().insert(bitmap);
        let mut fs = Fs::mount(disk.clone(), Options::default()).unwrap();
        fs.write(b, 0, &[0xbb; 200 * BLOCK]).unwrap();
        assert!(matches!(fs.sync(Some(b)), Err(Error::Device(_))));
        let c = file(&mut fs, b"c");
        let other = fs.sync(Some(c));
        let image = Arc::new(MemDisk::with(disk.blocks(), disk.disk.content()));
        let shown = mount(&image).read(b, 0, 300 * BLOCK).unwrap();
        assert!(!shown.contains(&0x5e), "mode {}: the other sync had {other:?}", mode.name());
        // Once the bitmap can be read, all is as if nothing had been.
        disk.unreadable.lock().unwrap().clear();
        fs.sync(Some(c)).unwrap();
        assert!(fs.read(b, 0, 200 * BLOCK).unwrap() == [0xbb; 200 * BLOCK]);
        fs.unmount().unwrap();
        clean(disk);
    }
}

/// The addresses that the deletion revokes have no room in any log: a checkpoint makes them unnecessary.
#[test]
fn much_content_that_may_be_anywhere_can_be_deleted() {
    let blocks = 64_100;
    let disk = Arc::new(MemDisk::new(blocks));
    let format =
        Format { group_blocks: 64, log_blocks: 4, inodes_per_group: 8, ..Format::new(9, Mode::Manylogs, blocks) };
    mkfs(disk.clone(), format, (0, 0)).unwrap();
    let mut fs = mount(&disk);
    let free = fs.statfs();
    let a = file(&mut fs, b"a");
    fs.setxattr(a, b"user.plimsoll.durability", b"anywhere", false, false).unwrap();
    fs.write(a, 0, &vec![1; 2100 * BLOCK]).unwrap();
    fs.sync(None).unwrap();
    assert_eq!(fs.info().anywhere_blocks, 2100);
    fs.unlink(ROOT, b"a").unwrap();
    fs.sync(None).unwrap();
    assert_eq!(fs.info().anywhere_blocks, 0);
    fs.sync(None).unwrap();
    assert_eq!(fs.statfs().inodes_free, free.inodes_free);
    fs.unmount().unwrap();
    clean(disk);
}

/// Record 2 of three is lost. The repair goes on without it and makes another record 2; power is lost before its checkpoint.
#[test]
fn an_interrupted_repair_brings_back_no_record_behind_the_lost_one() {
    let disk = small_groups(Mode::Manylogs);
    let mut fs = mount(&disk);
    let a = file(&mut fs, b"a");
    fs.open(a).unwrap();
    fs.unlink(ROOT, b"a").unwrap();
    fs.sync(None).unwrap();
    file(&mut fs, b"b");
    fs.sync(None).unwrap();
    fs.set_head(disk.blocks() - 1);
    file(&mut fs, b"c");
    fs.sync(None).unwrap();
    drop(fs);
    drop(mount(&disk));
    let mut content = disk.content();
    let is_second = |d: &[u8]| d.starts_with(b"PFSR") && d[24..32] == 2u64.to_le_bytes();
    let (&second, _) = content.iter().find(|(_, d)| is_second(d)).unwrap();
    let mut bytes = content[&second].to_vec();
    bytes[100] ^= 1;
    content.insert(second, bytes.into());
    let disk = Arc::new(CrashDisk::new(disk.blocks(), content));
    assert!(matches!(Fs::mount(disk.clone(), Options::default()).map(drop), Err(Error::Corrupt(_))));
    assert!(fsck(disk.clone(), true).unwrap().repaired);
    let mut walk = disk.crashes();
    for event in 0..=disk.events() {
        walk.advance(event);
        // All that was written until now is there.
        let image = Arc::new(MemDisk::with(disk.blocks(), walk.image(|n| n - 1)));
        if let Ok(mut fs) = Fs::mount(image.clone(), Options::default()) {
            assert_eq!(fs.lookup(ROOT, b"c").map(drop), Err(Error::Os(Errno::NOENT)), "event {event}");
            fs.unmount().unwrap();
            clean(image);
        }
    }
}

/// The disk of a process that is killed before its flush.
struct Killed(Arc<CrashDisk>);

impl Disk for Killed {
    fn blocks(&self) -> u64 {
        self.0.blocks()
    }
    fn read(&self, block: u64, into: &mut [u8]) -> io::Result<()> {
        self.0.read(block, into)
    }
    fn write(&self, writes: &[Write]) -> io::Result<()> {
        self.0.write(writes)
    }
    fn flush(&self) -> io::Result<()> {
        Err(io::Error::other("killed"))
    }
}

/// A mount finds a record that only the page cache has. Power is lost during that mount.
#[test]
fn a_loss_of_power_in_the_mount_after_a_kill_leaves_a_disk_that_can_be_mounted() {
    let empty = small_groups(Mode::Manylogs);
    let mut fs = mount(&empty);
    file(&mut fs, b"before");
    fs.sync(None).unwrap();
    drop(fs);
    let disk = Arc::new(CrashDisk::new(empty.blocks(), empty.content()));
    let mut fs = Fs::mount(disk.clone(), Options::default()).unwrap();
    file(&mut fs, b"a");
    let Prepared::Commit(c) = fs.prepare(None).unwrap() else { panic!("a change is to be written") };
    c.execute(&Killed(disk.clone())).unwrap_err();
    drop(fs);
    let from = disk.events();
    Fs::mount(disk.clone(), Options::default()).unwrap().lookup(ROOT, b"a").unwrap();
    let mut x = 5u64;
    let mut draw = |n: u64| {
        x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (x >> 33) % n
    };
    let mut walk = disk.crashes();
    for event in from..=disk.events() {
        walk.advance(event);
        for _ in 0..50 {
            let image = Arc::new(MemDisk::with(disk.blocks(), walk.image(&mut draw)));
            let mut fs = Fs::mount(image.clone(), Options::default()).unwrap();
            fs.lookup(ROOT, b"before").unwrap();
            fs.unmount().unwrap();
            clean(image);
        }
    }
}

/// Patterns with a slash are compared with the name by which a directory was found.
#[test]
fn a_listing_of_a_directory_keeps_its_name_for_patterns() {
    let disk = small_groups(Mode::Manylogs);
    let options = Options { anywhere: vec!["pg_wal/*".to_owned()], ..Options::default() };
    let mut fs = Fs::mount(disk, options).unwrap();
    let wal = fs.create(ROOT, b"pg_wal", DIR, (0, 0), 0).unwrap().ino;
    let sub = fs.create(wal, b"archive", DIR, (0, 0), 0).unwrap().ino;
    // As a listing of the subdirectory asks.
    assert_eq!(fs.lookup(sub, b"..").unwrap().ino, wal);
    assert_eq!(fs.lookup(wal, b".").unwrap().ino, wal);
    assert!(fs.create(wal, b"1", FILE, (0, 0), 0).unwrap().anywhere);
}

/// A sync of content that went to its place has a record without blocks, which must be written although the logs are full.
#[test]
fn a_record_without_blocks_is_written_when_the_logs_are_full() {
    for (mode, room) in [(Mode::Manylogs, 11), (Mode::Manylogs, 13), (Mode::Adaptive, 43)] {
        let blocks = 1000;
        let disk = Arc::new(MemDisk::new(blocks));
        let format = Format {
            group_blocks: 128,
            log_blocks: room,
            journal_blocks: room,
            inodes_per_group: 16,
            ..Format::new(9, mode, blocks)
        };
        mkfs(disk.clone(), format, (0, 0)).unwrap();
        let mut fs = mount(&disk);
        let (a, b, marked) = (file(&mut fs, b"a"), file(&mut fs, b"b"), file(&mut fs, b"marked"));
        // With it the logs stay as they are at an unmount.
        fs.setxattr(marked, b"user.plimsoll.durability", b"anywhere", false, false).unwrap();
        fs.write(a, 0, &[0; 9 * BLOCK]).unwrap();
        fs.sync(None).unwrap();
        let mut full = false;
        for round in 1..=200u8 {
            fs.write(marked, 0, &[round; BLOCK]).unwrap();
            fs.write(a, 0, &[round; 9 * BLOCK]).unwrap();
            fs.write(b, 0, &[round; BLOCK]).unwrap();
            fs.sync(Some(b)).unwrap();
            let before = fs.info();
            fs.sync(Some(a)).unwrap();
            full |= before.log_blocks_used == before.log_blocks;
            let mut copy = mount(&Arc::new(MemDisk::with(blocks, disk.content())));
            assert_eq!(copy.info().seq, fs.info().seq, "{} {room}: round {round}", mode.name());
            assert!(copy.read(a, 0, 9 * BLOCK).unwrap() == [round; 9 * BLOCK]);
            if round % 50 == 0 {
                fs.sync(None).unwrap();
            }
        }
        assert!(full, "{} {room}", mode.name());
        fs.unmount().unwrap();
        drop(fs);
        clean(disk.clone());
        assert_eq!(mount(&disk).read(a, 0, BLOCK).unwrap(), [200; BLOCK]);
    }
}

/// A bad sector where no log has anything: an empty log is looked through, and a log is read behind its last record.
#[test]
fn a_bad_sector_in_unused_space_of_a_log_stops_no_mount() {
    for (mode, records) in [(Mode::Data, 0), (Mode::Data, 1), (Mode::Manylogs, 0), (Mode::Manylogs, 1)] {
        let disk = small_groups(mode);
        let mut fs = mount(&disk);
        file(&mut fs, b"before");
        fs.sync(None).unwrap();
        let content = disk.content();
        let (&log, _) = content.iter().find(|(_, d)| d.starts_with(b"PFSR")).unwrap();
        fs.checkpoint().unwrap();
        for i in 0..records {
            file(&mut fs, format!("{i}").as_bytes());
            fs.sync(None).unwrap();
        }
        let used = fs.info().log_blocks_used;
        assert!(used < 10 && (records == 0) == (used == 0));
        drop(fs);
        let disk = Faulty::new(MemDisk::with(disk.blocks(), disk.content()));
        disk.unreadable.lock().unwrap().insert(log + 10);
        clean(disk.clone());
        let mut fs = Fs::mount(disk, Options::default()).unwrap();
        fs.lookup(ROOT, b"before").unwrap();
        assert_eq!(fs.lookup(ROOT, b"0").is_ok(), records > 0);
    }
}

/// The header of a record, its content (which is zeroes, as a block that can't be read seems to be), and the place of the next record.
#[test]
fn a_repair_goes_on_without_a_record_that_cannot_be_read() {
    for (mode, at) in [Mode::Data, Mode::Manylogs].into_iter().flat_map(|m| [(m, 0), (m, 1), (m, u64::MAX)]) {
        let disk = small_groups(mode);
        let mut fs = mount(&disk);
        let (a, b) = (file(&mut fs, b"a"), file(&mut fs, b"b"));
        fs.write(a, 0, &[1; BLOCK]).unwrap();
        fs.sync(None).unwrap();
        fs.checkpoint().unwrap();
        fs.write(a, 0, &[0; BLOCK]).unwrap();
        fs.sync(Some(a)).unwrap();
        fs.write(b, 0, &[2; BLOCK]).unwrap();
        fs.sync(Some(b)).unwrap();
        let last = fs.info().seq;
        drop(fs);
        let content = disk.content();
        let is_record = |d: &[u8], seq: u64| d.starts_with(b"PFSR") && d[24..32] == seq.to_le_bytes();
        let find = |seq| *content.iter().find(|(_, d)| is_record(d, seq)).unwrap().0;
        let bad = if at == u64::MAX {
            (find(last)..).find(|b| !content.contains_key(b)).unwrap()
        } else {
            find(last - 1) + at
        };
        let disk = Faulty::new(MemDisk::with(disk.blocks(), content));
        disk.unreadable.lock().unwrap().insert(bad);
        for read_only in [true, false] {
            let result = Fs::mount(disk.clone(), Options { read_only, ..Options::default() }).map(drop);
            let Err(Error::Device(why)) = result else { panic!("mode {}, {at}: {result:?}", mode.name()) };
            assert!(why.contains("`plimsoll fsck --repair` goes on without"), "{why}");
        }
        assert_eq!(fsck(disk.clone(), false).unwrap().problems.len(), 1);
        assert!(fsck(disk.clone(), true).unwrap().repaired);
        let mut fs = Fs::mount(disk.clone(), Options::default()).unwrap();
        let is_there = at == u64::MAX;
        assert_eq!(fs.read(a, 0, 1).unwrap(), [u8::from(!is_there)], "mode {}, {at}", mode.name());
        assert_eq!(fs.read(b, 0, 1).unwrap(), if is_there { vec![2] } else { vec![] });
        fs.write(a, 0, &[3; BLOCK]).unwrap();
        fs.unmount().unwrap();
        clean(disk);
    }
}

/// A record behind the lost one can't be read either; its header says that the first was durable.
#[test]
fn a_header_whose_content_cannot_be_read_tells_what_was_durable() {
    for mode in [Mode::Data, Mode::Manylogs] {
        let disk = small_groups(mode);
        let mut fs = mount(&disk);
        for name in [b"a", b"b"] {
            file(&mut fs, name);
            fs.sync(None).unwrap();
        }
        drop(fs);
        let mut content = disk.content();
        let records: Vec<u64> = content.iter().filter(|(_, d)| d.starts_with(b"PFSR")).map(|(&b, _)| b).collect();
        content.insert(records[0], vec![0; BLOCK].into());
        let disk = Faulty::new(MemDisk::with(disk.blocks(), content));
        disk.unreadable.lock().unwrap().insert(records[1] + 1);
        let result = Fs::mount(disk.clone(), Options::default()).map(drop);
        assert!(matches!(result, Err(Error::Corrupt(_))), "mode {}: {result:?}", mode.name());
        assert!(fsck(disk.clone(), true).unwrap().repaired);
        clean(disk);
    }
}

/// The sector of a header that was lost is bad as well: the records behind it say that it was durable.
#[test]
fn a_log_with_a_bad_sector_does_not_hide_that_its_first_record_is_lost() {
    for mode in [Mode::Data, Mode::Manylogs] {
        let disk = small_groups(mode);
        let mut fs = mount(&disk);
        for name in [b"a", b"b", b"c"] {
            file(&mut fs, name);
            fs.sync(None).unwrap();
        }
        drop(fs);
        let mut content = disk.content();
        let (&first, _) = content.iter().find(|(_, d)| d.starts_with(b"PFSR")).unwrap();
        content.insert(first, vec![0; BLOCK].into());
        let disk = Faulty::new(MemDisk::with(disk.blocks(), content));
        disk.unreadable.lock().unwrap().insert(first + 1);
        let result = Fs::mount(disk, Options::default()).map(drop);
        assert!(matches!(result, Err(Error::Corrupt(_))), "mode {}: {result:?}", mode.name());
    }
}

/// A header of a record, and a block that the record has, as the file system that is mounted on a disk would write it.
fn forged(disk: &MemDisk, seq: u64, entry: Option<(u64, &[u8])>) -> Vec<u8> {
    let content = disk.content();
    let word = |i: usize| u64::from_le_bytes(content[&0][32 + i * 8..][..8].try_into().unwrap());
    let mut b = vec![0; BLOCK];
    b[..4].copy_from_slice(b"PFSR");
    let mut put = |at: usize, v: u64| b[at..at + 8].copy_from_slice(&v.to_le_bytes());
    // Identity and epoch, from the superblock.
    for (i, v) in [word(1), word(10), seq, seq - 1].into_iter().enumerate() {
        put(8 + i * 8, v);
    }
    // One part.
    put(40, 1 << 32);
    if let Some((home, data)) = entry {
        put(48, 1);
        put(72, home);
        put(80, crc32fast::hash(data).into());
    }
    let crc = crc32fast::hash(&b);
    b[4..8].copy_from_slice(&crc.to_le_bytes());
    b.extend(entry.map_or(&[][..], |e| e.1));
    b
}

#[test]
fn content_that_is_a_record_is_content() {
    for (mode, killed) in Mode::ALL.into_iter().flat_map(|m| [(m, false), (m, true)]) {
        let disk = small_groups(mode);
        let mut fs = mount(&disk);
        let a = file(&mut fs, b"a");
        let content = forged(&disk, 1000, None);
        fs.write(a, 0, &content).unwrap();
        let is_there = |fs: &mut Fs| assert!(fs.read(a, 0, BLOCK).unwrap() == content, "mode {}", mode.name());
        let Prepared::Commit(c) = fs.prepare(Some(a)).unwrap() else { panic!("a page is to be written") };
        is_there(&mut fs);
        let written = c.execute(&*disk);
        fs.finish(c.seq, written).unwrap();
        is_there(&mut fs);
        if !killed {
            // The log is empty, and has the block where a scan looks.
            fs.unmount().unwrap();
        }
        drop(fs);
        for _ in 0..3 {
            let mut fs = mount(&disk);
            is_there(&mut fs);
            fs.checkpoint().unwrap();
            is_there(&mut fs);
            fs.unmount().unwrap();
            drop(fs);
            clean(disk.clone());
        }
    }
}

/// After a checkpoint, new records lie in a log up to the block before an old one of a file's: a header and a block.
#[test]
fn a_record_in_a_file_overwrites_no_other_file() {
    let disk = small_groups(Mode::Data);
    let mut fs = mount(&disk);
    let (a, v) = (file(&mut fs, b"a"), file(&mut fs, b"v"));
    fs.write(v, 0, &[b'v'; BLOCK]).unwrap();
    fs.sync(None).unwrap();
    fs.checkpoint().unwrap();
    let home = fs.map(v).unwrap()[0].1;
    let mut content = vec![0; BLOCK];
    content.extend(forged(&disk, 4, Some((home, &[b'E'; BLOCK]))));
    fs.write(a, 0, &content).unwrap();
    fs.sync(Some(a)).unwrap();
    fs.checkpoint().unwrap();
    fs.setattr(a, SetAttr { mtime: Some((5, 0)), ..SetAttr::default() }).unwrap();
    fs.sync(Some(a)).unwrap();
    assert_eq!((fs.info().seq, fs.info().log_blocks_used), (3, 2));
    drop(fs);
    let mut fs = mount(&disk);
    assert_eq!(fs.info().seq, 3);
    assert!(fs.read(v, 0, BLOCK).unwrap() == [b'v'; BLOCK]);
    assert!(fs.read(a, 0, 1 << 20).unwrap() == content);
    fs.unmount().unwrap();
    clean(disk);
}

#[test]
fn no_mount_has_an_epoch_that_can_be_told_in_advance() {
    let disk = small_groups(Mode::Manylogs);
    let epoch = |nonce| {
        let copy = Arc::new(MemDisk::with(disk.blocks(), disk.content()));
        drop(Fs::mount(copy.clone(), Options { nonce, ..Options::default() }).unwrap());
        copy.content()[&0][112..120].to_vec()
    };
    let epochs: BTreeSet<Vec<u8>> = (0..100).map(epoch).collect();
    assert_eq!(epochs.len(), 100);
}

/// A file in two groups; the bitmap of the second can't be read.
#[test]
fn a_truncation_or_a_hole_that_cannot_be_freed_changes_nothing() {
    for punch in [false, true] {
        let disk = small_groups(Mode::Manylogs);
        let mut fs = mount(&disk);
        let a = file(&mut fs, b"a");
        fs.write(a, 0, &[0xaa; 150 * BLOCK]).unwrap();
        fs.unmount().unwrap();
        let runs = fs.map(a).unwrap();
        drop(fs);
        let content = disk.content();
        let bitmap = bitmap_of(&content, runs.last().unwrap().1);
        assert_ne!(bitmap, bitmap_of(&content, runs[0].1), "{runs:?}");
        let disk = Faulty::new(MemDisk::with(disk.blocks(), content));
        let mut fs = Fs::mount(disk.clone(), Options::default()).unwrap();
        fs.write(a, 10 * BLOCK as u64, &[0xbb; BLOCK]).unwrap();
        let mut expected = vec![0xaa; 150 * BLOCK];
        expected[10 * BLOCK..11 * BLOCK].fill(0xbb);
        disk.unreadable.lock().unwrap().insert(bitmap);
        let (from, len) = (5 * BLOCK + 7, 144 * BLOCK);
        let shorten = |fs: &mut Fs| {
            if punch {
                fs.fallocate(a, Fallocate::Punch, from as u64, len as u64, true)
            } else {
                fs.truncate(a, from as u64)
            }
        };
        assert!(matches!(shorten(&mut fs), Err(Error::Device(_))));
        assert!(fs.read(a, 0, 150 * BLOCK).unwrap() == expected);
        fs.sync(None).unwrap();
        disk.unreadable.lock().unwrap().clear();
        drop(fs);
        clean(disk.clone());
        let mut fs = Fs::mount(disk.clone(), Options::default()).unwrap();
        assert!(fs.read(a, 0, 150 * BLOCK).unwrap() == expected);
        shorten(&mut fs).unwrap();
        if punch {
            expected[from..from + len].fill(0);
        } else {
            expected.truncate(from);
        }
        fs.unmount().unwrap();
        assert!(fs.read(a, 0, 150 * BLOCK).unwrap() == expected);
        clean(disk);
    }
}

/// A disk with files in several groups, the first ones with a map, attributes and a long symbolic link; all is at its place.
fn with_all_kinds(mode: Mode) -> (Arc<MemDisk>, BTreeMap<u64, Kind>) {
    let blocks = 20_000;
    let disk = Arc::new(MemDisk::new(blocks));
    let format = Format { group_blocks: 4000, inodes_per_group: 64, ..Format::new(9, mode, blocks) };
    mkfs(disk.clone(), format, (0, 0)).unwrap();
    let mut fs = mount(&disk);
    let big = file(&mut fs, b"big");
    // More leaves than an inode points to.
    for i in 0..6500 {
        fs.write(big, 2 * i * BLOCK as u64, &[1]).unwrap();
        if fs.must_commit() {
            fs.sync(None).unwrap();
        }
    }
    let d = fs.create(ROOT, b"d", DIR, (0, 0), 0).unwrap().ino;
    for i in 0..40 {
        fs.create(d, format!("{i}").as_bytes(), FILE, (0, 0), 0).unwrap();
    }
    let a = file(&mut fs, b"a");
    fs.setxattr(a, b"user.k", b"v", false, false).unwrap();
    fs.symlink(ROOT, b"l", &[b'x'; 3000], (0, 0)).unwrap();
    fs.sync(None).unwrap();
    fs.checkpoint().unwrap();
    fs.unmount().unwrap();
    drop(fs);
    use Kind::*;
    let kinds = [Super, Groups, Blocks, Inodes, Table, Leaf, Index, Dir, Xattr, Link];
    let kind = |d: &[u8]| {
        let number = u32::from_le_bytes(d[4..8].try_into().unwrap());
        kinds.into_iter().find(|&k| d.starts_with(b"PFSB") && k as u32 == number)
    };
    // Copies in the empty logs are nobody's.
    let is_home = |b: u64, d: &[u8]| d[16..24] == b.to_le_bytes();
    let content = disk.content();
    let found: BTreeMap<u64, Kind> =
        content.iter().filter(|(b, d)| is_home(**b, d)).filter_map(|(&b, d)| Some((b, kind(d)?))).collect();
    assert!(kinds.iter().all(|k| found.values().any(|f| f == k)), "{found:?}");
    (disk, found)
}

/// Says what a check and a repair of a disk do, and that it can be used then.
fn repaired(disk: Arc<dyn Disk>, what: &str) {
    let report = fsck(disk.clone(), false).unwrap_or_else(|e| panic!("{what}: {e}"));
    assert!(!report.problems.is_empty(), "{what}");
    let report = fsck(disk.clone(), true).unwrap_or_else(|e| panic!("{what}: {e}"));
    assert!(report.repaired, "{what}: {:?}", report.problems);
    clean(disk.clone());
    let mut fs = Fs::mount(disk.clone(), Options::default()).unwrap_or_else(|e| panic!("{what}: {e}"));
    for i in 0..30 {
        let ino = file(&mut fs, format!("new {i}").as_bytes());
        fs.write(ino, 0, &[2; 3 * BLOCK]).unwrap();
    }
    fs.unmount().unwrap();
    drop(fs);
    clean(disk);
}

#[test]
fn a_check_goes_on_without_the_summaries_of_groups() {
    for mode in [Mode::Data, Mode::Manylogs] {
        let (disk, _) = with_all_kinds(mode);
        let whole = fsck(disk.clone(), false).unwrap();
        for damage in ["unreadable", "corrupt", "more free than there is"] {
            let mut content = disk.content();
            let mut groups = content[&1].to_vec();
            match damage {
                "corrupt" => groups[100] ^= 1,
                "unreadable" => {}
                _ => {
                    groups[32..36].fill(0xff);
                    plimsoll_fs::crash::reseal(&mut groups);
                }
            }
            content.insert(1, groups.into());
            let disk = Faulty::new(MemDisk::with(disk.blocks(), content));
            if damage == "unreadable" {
                disk.unreadable.lock().unwrap().insert(1);
            }
            assert!(Fs::mount(disk.clone(), Options::default()).is_err());
            let report = fsck(disk.clone(), false).unwrap();
            // Nothing is lost but what the summaries say.
            assert_eq!((report.inodes, report.blocks), (whole.inodes, whole.blocks));
            assert!(report.problems[1..].iter().all(|p| p.starts_with("bitmaps or counts")), "{:?}", report.problems);
            repaired(disk, damage);
        }
    }
}

/// Each kind of metadata, some blocks of it.
#[test]
fn a_repair_goes_on_without_metadata_that_cannot_be_read() {
    let (disk, kinds) = with_all_kinds(Mode::Manylogs);
    let mut taken: BTreeMap<u32, u32> = BTreeMap::new();
    for (&block, &kind) in &kinds {
        let taken = taken.entry(kind as u32).or_default();
        *taken += 1;
        if *taken > 3 {
            continue;
        }
        let disk = Faulty::new(MemDisk::with(disk.blocks(), disk.content()));
        disk.unreadable.lock().unwrap().insert(block);
        repaired(disk, &format!("block {block}, {kind:?}"));
    }
}

/// A disk that counts what is read of it.
struct Counted {
    disk: MemDisk,
    blocks: AtomicU64,
    longest: AtomicU64,
}

impl Disk for Counted {
    fn blocks(&self) -> u64 {
        self.disk.blocks()
    }
    fn read(&self, block: u64, into: &mut [u8]) -> io::Result<()> {
        let blocks = (into.len() / BLOCK) as u64;
        self.blocks.fetch_add(blocks, Ordering::Relaxed);
        self.longest.fetch_max(blocks, Ordering::Relaxed);
        self.disk.read(block, into)
    }
    fn write(&self, writes: &[Write]) -> io::Result<()> {
        self.disk.write(writes)
    }
    fn flush(&self) -> io::Result<()> {
        Ok(())
    }
}

/// Headers that claim much: of one block alone, of many blocks one behind the other, with a checksum that fits and without.
#[test]
fn forged_headers_cost_a_mount_a_few_passes_over_the_journal() {
    let (blocks, journal) = (100_000, 40_000);
    let disk = Arc::new(MemDisk::new(blocks));
    mkfs(disk.clone(), Format { journal_blocks: journal, ..Format::new(9, Mode::Data, blocks) }, (0, 0)).unwrap();
    let mut fs = mount(&disk);
    file(&mut fs, b"a");
    fs.sync(None).unwrap();
    fs.checkpoint().unwrap();
    drop(fs);
    let content = disk.content();
    let (&first, _) = content.iter().find(|(_, d)| d.starts_with(b"PFSR")).unwrap();
    for (count, entries, revokes, fits) in [
        (1, 39_000, 0, false),
        (1, 0, 19_000_000, false),
        (1, 38_000, 400_000, false),
        (3000, 36_000, 0, false),
        (3000, 200, 0, true),
        (3000, 0, 18_000_000, false),
    ] {
        let mut content = content.clone();
        for i in 0..count {
            let mut b = forged(&disk, 2, None);
            b[48..52].copy_from_slice(&u32::to_le_bytes(entries));
            b[52..56].copy_from_slice(&u32::to_le_bytes(revokes));
            if fits {
                plimsoll_fs::crash::reseal(&mut b);
            }
            content.insert(first + i, b.into());
        }
        let disk = MemDisk::with(blocks, content);
        let disk = Arc::new(Counted { disk, blocks: AtomicU64::new(0), longest: AtomicU64::new(0) });
        // An error or not: a forged header may say what was durable.
        drop(Fs::mount(disk.clone(), Options::default()));
        let (read, longest) = (disk.blocks.load(Ordering::Relaxed), disk.longest.load(Ordering::Relaxed));
        let what = format!("{count} headers of {entries} and {revokes}: {read} blocks, {longest} at once");
        assert!(read < 4 * journal && longest < 1000, "{what}");
        let fixed = fsck(disk.clone(), true).unwrap();
        assert!(fixed.repaired || fixed.problems.is_empty(), "{what}");
    }
}

/// An error that no check helps doesn't name one, and a check doesn't name itself.
#[test]
fn errors_name_the_remedy_that_helps() {
    let disk = small_groups(Mode::Data);
    let (blocks, content) = (disk.blocks(), disk.content());
    let newer = {
        let mut content = content.clone();
        for block in [0, blocks - 1] {
            let mut b = content[&block].to_vec();
            b[32] += 1;
            plimsoll_fs::crash::reseal(&mut b);
            content.insert(block, b.into());
        }
        MemDisk::with(blocks, content)
    };
    let shorter =
        MemDisk::with(blocks - 500, content.iter().map(|(&b, d)| (b, d.clone())).take_while(|e| e.0 < 2000).collect());
    let whole = || MemDisk::with(blocks, content.clone());
    let manylogs = Options { mode: Some(Mode::Manylogs), ..Options::default() };
    for (disk, options, remedy) in [
        (newer, Options::default(), "use a program that knows it"),
        (shorter, Options::default(), "the whole device"),
        (MemDisk::new(blocks), Options::default(), "is it the right device?"),
        (MemDisk::new(1), Options::default(), "is it the right device?"),
        (whole(), manylogs, "ordered, data or adaptive"),
    ] {
        let why = Fs::mount(Arc::new(disk), options).map(drop).unwrap_err();
        assert!(matches!(why, Error::Unfit(_)) && why.errno() == Errno::INVAL, "{why:?}");
        let why = why.to_string();
        assert!(why.contains(remedy) && !why.contains("fsck") && !why.contains("corrupt"), "{why}");
    }
    let mut content = content.clone();
    content.insert(1, vec![1; BLOCK].into());
    let disk = Arc::new(MemDisk::with(blocks, content));
    assert!(
        Fs::mount(disk.clone(), Options::default()).map(drop).unwrap_err().to_string().contains("run `plimsoll fsck`")
    );
    let problems = fsck(disk, false).unwrap().problems;
    assert!(!problems.is_empty() && problems.iter().all(|p| !p.contains("plimsoll fsck")), "{problems:?}");
}
