//! Operations of the core, in each mode: against expectations, against a map, over a mount, on full and failing disks.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use plimsoll_fs::{
    BLOCK, Disk, Error, Fallocate, Format, Fs, MemDisk, Mode, Options, ROOT, Rename, SetAttr, Write, fsck, mkfs,
};
use rustix::io::Errno;

const FILE: u32 = 0o100_644;
const DIR: u32 = 0o040_755;

fn new(mode: Mode, blocks: u64) -> (Arc<MemDisk>, Fs) {
    let disk = Arc::new(MemDisk::new(blocks));
    mkfs(disk.clone(), Format::new(9, mode, blocks), (0, 0)).unwrap();
    let fs = Fs::mount(disk.clone(), Options::default()).unwrap();
    (disk, fs)
}

fn clean(disk: Arc<MemDisk>) {
    assert_eq!(fsck(disk, false).unwrap().problems, Vec::<String>::new());
}

fn file(fs: &mut Fs, name: &[u8]) -> u64 {
    fs.create(ROOT, name, FILE, (1, 2), 0).unwrap().ino
}

#[test]
fn a_file_survives_a_mount() {
    for mode in Mode::ALL {
        let (disk, mut fs) = new(mode, 8192);
        let a = file(&mut fs, b"a");
        assert_eq!(fs.write(a, 5000, b"hello").unwrap(), 5);
        fs.setxattr(a, b"user.k", b"v", false, false).unwrap();
        fs.symlink(ROOT, b"short", b"a", (0, 0)).unwrap();
        fs.symlink(ROOT, b"long", &[b'x'; 4095], (0, 0)).unwrap();
        fs.unmount().unwrap();
        clean(disk.clone());
        let mut fs = Fs::mount(disk.clone(), Options::default()).unwrap();
        assert_eq!(fs.lookup(ROOT, b"a").unwrap().size, 5005);
        assert_eq!(fs.read(a, 4998, 100).unwrap(), b"\0\0hello");
        assert_eq!(fs.getxattr(a, b"user.k").unwrap(), b"v");
        for (name, len) in [(&b"short"[..], 1), (b"long", 4095)] {
            let ino = fs.lookup(ROOT, name).unwrap().ino;
            assert_eq!(fs.readlink(ino).unwrap().len(), len);
        }
        fs.unlink(ROOT, b"long").unwrap();
        fs.unmount().unwrap();
        clean(disk);
    }
}

#[test]
fn names_have_their_errors() {
    let (disk, mut fs) = new(Mode::Manylogs, 8192);
    let is = |r: Result<(), Error>, e: Errno| assert_eq!(r, Err(Error::Os(e)));
    let d = fs.create(ROOT, b"d", DIR, (0, 0), 0).unwrap().ino;
    let e = fs.create(d, b"e", DIR, (0, 0), 0).unwrap().ino;
    let a = file(&mut fs, b"a");
    is(fs.create(ROOT, b"a", FILE, (0, 0), 0).map(drop), Errno::EXIST);
    is(fs.create(ROOT, &[b'n'; 256], FILE, (0, 0), 0).map(drop), Errno::NAMETOOLONG);
    is(fs.lookup(a, b"x").map(drop), Errno::NOTDIR);
    is(fs.lookup(ROOT, b"x").map(drop), Errno::NOENT);
    is(fs.rmdir(ROOT, b"d"), Errno::NOTEMPTY);
    is(fs.rmdir(ROOT, b"a"), Errno::NOTDIR);
    is(fs.unlink(ROOT, b"d"), Errno::ISDIR);
    is(fs.link(d, ROOT, b"x").map(drop), Errno::PERM);
    is(fs.rename((ROOT, b"d"), (e, b"x"), Rename::default()), Errno::INVAL);
    is(fs.rename((ROOT, b"a"), (ROOT, b"d"), Rename::default()), Errno::ISDIR);
    is(fs.rename((ROOT, b"d"), (ROOT, b"a"), Rename::default()), Errno::NOTDIR);
    is(fs.rename((ROOT, b"a"), (ROOT, b"d"), Rename { no_replace: true, ..Rename::default() }), Errno::EXIST);
    is(fs.rename((ROOT, b"a"), (ROOT, b"x"), Rename { exchange: true, ..Rename::default() }), Errno::NOENT);
    fs.rename((d, b"e"), (ROOT, b"a"), Rename { exchange: true, ..Rename::default() }).unwrap();
    assert_eq!((fs.lookup(ROOT, b"a").unwrap().ino, fs.lookup(d, b"e").unwrap().ino), (e, a));
    assert_eq!((fs.getattr(ROOT).unwrap().nlink, fs.getattr(d).unwrap().nlink), (4, 2));
    fs.unmount().unwrap();
    clean(disk);
}

#[test]
fn an_open_file_outlives_its_name() {
    let (disk, mut fs) = new(Mode::Manylogs, 8192);
    let a = file(&mut fs, b"a");
    fs.open(a).unwrap();
    fs.write(a, 0, b"still").unwrap();
    fs.unlink(ROOT, b"a").unwrap();
    assert_eq!(fs.read(a, 0, 9).unwrap(), b"still");
    fs.sync(Some(a)).unwrap();
    let free = fs.statfs().inodes_free;
    // Power is lost while it is open: the next mount frees it.
    drop(fs);
    let mut fs = Fs::mount(disk.clone(), Options::default()).unwrap();
    assert_eq!(fs.statfs().inodes_free, free + 1);
    fs.unmount().unwrap();
    clean(disk);
}

#[test]
fn directories_stay_fast_at_100_000_entries() {
    let blocks = 200_000;
    let disk = Arc::new(MemDisk::new(blocks));
    let format = Format { inodes_per_group: 24_000, ..Format::new(9, Mode::Manylogs, blocks) };
    mkfs(disk.clone(), format, (0, 0)).unwrap();
    let mut fs = Fs::mount(disk.clone(), Options::default()).unwrap();
    let d = fs.create(ROOT, b"d", DIR, (0, 0), 0).unwrap().ino;
    let name = |i: u32| format!("a-file-with-a-name-{i}").into_bytes();
    for i in 0..100_000 {
        fs.create(d, &name(i), FILE, (0, 0), 0).unwrap();
        if fs.must_commit() {
            fs.sync(None).unwrap();
        }
    }
    let (mut listed, mut cookie) = (0, 0);
    loop {
        let part = fs.readdir(d, cookie, 1000).unwrap();
        let Some(last) = part.last() else { break };
        listed += part.len();
        cookie = last.cookie;
    }
    assert_eq!(listed, 100_000);
    fs.unmount().unwrap();
    let mut fs = Fs::mount(disk.clone(), Options::default()).unwrap();
    for i in (0..100_000).step_by(17) {
        fs.lookup(d, &name(i)).unwrap();
    }
    for i in 0..1000 {
        fs.unlink(d, &name(i)).unwrap();
    }
    fs.unmount().unwrap();
    drop(fs);
    clean(disk);
}

#[test]
fn random_operations_agree_with_a_vector() {
    for mode in Mode::ALL {
        let (disk, mut fs) = new(mode, 4096);
        let ino = file(&mut fs, b"a");
        let mut oracle: Vec<u8> = Vec::new();
        let mut x = mode as u64;
        let mut below = |n: u64| {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (x >> 33) % n
        };
        for step in 0..800u64 {
            let (at, len) = (below(300_000) as usize, 1 + below(40_000) as usize);
            match below(9) {
                0..=3 => {
                    assert_eq!(fs.write(ino, at as u64, &vec![step as u8 | 1; len]).unwrap(), len);
                    oracle.resize(oracle.len().max(at + len), 0);
                    oracle[at..at + len].fill(step as u8 | 1);
                }
                4 => {
                    fs.setattr(ino, SetAttr { size: Some(at as u64), ..SetAttr::default() }).unwrap();
                    oracle.resize(at, 0);
                }
                5 => {
                    let how = [Fallocate::Allocate, Fallocate::Punch, Fallocate::Zero][below(3) as usize];
                    fs.fallocate(ino, how, at as u64, len as u64, true).unwrap();
                    let end = oracle.len().min(at + len);
                    if how != Fallocate::Allocate && at < end {
                        oracle[at..end].fill(0);
                    }
                }
                6 => fs.sync(Some(ino)).unwrap(),
                7 if step % 50 == 0 => {
                    fs.unmount().unwrap();
                    fs = Fs::mount(disk.clone(), Options::default()).unwrap();
                }
                7 => fs.checkpoint().unwrap(),
                _ => {}
            }
            assert_eq!(fs.getattr(ino).unwrap().size, oracle.len() as u64);
            let to = oracle.len().min(at + len);
            let expected = if at < to { &oracle[at..to] } else { &[][..] };
            assert!(fs.read(ino, at as u64, len).unwrap() == expected, "mode {}, step {step}", mode.name());
        }
        fs.unlink(ROOT, b"a").unwrap();
        fs.unmount().unwrap();
        clean(disk);
    }
}

/// Users can calculate the seed of the hashes from a listing's positions.
#[test]
fn positions_in_a_listing_say_nothing_of_the_identity() {
    let positions = |fs_id, hash_seed| {
        let disk = Arc::new(MemDisk::new(4096));
        mkfs(disk.clone(), Format { hash_seed, ..Format::new(fs_id, Mode::Data, 4096) }, (0, 0)).unwrap();
        let mut fs = Fs::mount(disk.clone(), Options::default()).unwrap();
        file(&mut fs, b"a");
        file(&mut fs, b"b");
        fs.unmount().unwrap();
        clean(disk.clone());
        let mut fs = Fs::mount(disk, Options::default()).unwrap();
        fs.lookup(ROOT, b"b").unwrap();
        fs.readdir(ROOT, 0, 9).unwrap().into_iter().map(|e| e.cookie).collect::<Vec<_>>()
    };
    assert_eq!(positions(1, 5), positions(2, 5));
    assert_ne!(positions(1, 5), positions(1, 6));
}

/// The pages that made a file longer are gone before a sync, its size stays.
#[test]
fn a_sync_keeps_the_size_of_pages_that_were_punched_or_zeroed() {
    for (how, other) in [Fallocate::Punch, Fallocate::Zero].into_iter().flat_map(|h| [(h, false), (h, true)]) {
        let (disk, mut fs) = new(Mode::Ordered, 8192);
        let (a, b) = (file(&mut fs, b"a"), file(&mut fs, b"b"));
        fs.write(a, 0, &[7; BLOCK]).unwrap();
        fs.sync(Some(a)).unwrap();
        fs.write(a, BLOCK as u64, &[1; 4 * BLOCK]).unwrap();
        fs.fallocate(a, how, BLOCK as u64, 4 * BLOCK as u64, true).unwrap();
        if other {
            fs.sync(Some(b)).unwrap();
        }
        fs.sync(Some(a)).unwrap();
        drop(fs);
        let mut fs = Fs::mount(disk.clone(), Options::default()).unwrap();
        assert_eq!(fs.getattr(a).unwrap().size, 5 * BLOCK as u64, "{how:?}");
        assert_eq!(fs.read(a, BLOCK as u64 - 1, 2).unwrap(), [7, 0]);
        clean(disk);
    }
}

#[test]
fn content_that_may_be_anywhere_stays_in_logs_until_it_is_deleted() {
    let (disk, mut fs) = new(Mode::Manylogs, 16_384);
    let d = fs.create(ROOT, b"commitlog", DIR, (0, 0), 0).unwrap().ino;
    fs.setxattr(d, b"user.plimsoll.durability", b"anywhere", false, false).unwrap();
    let a = fs.create(d, b"1", FILE, (0, 0), 0).unwrap();
    assert!(a.anywhere, "inherited");
    // Larger than LoggedWriteSize: other files' content would go to its place.
    fs.write(a.ino, 0, &vec![7; 400_000]).unwrap();
    fs.sync(Some(a.ino)).unwrap();
    assert_eq!(fs.info().anywhere_blocks, 98);
    fs.checkpoint_lazily().unwrap();
    assert_eq!(fs.info().checkpoints, 0, "it isn't brought to its place while there is room");
    fs.unmount().unwrap();
    let mut fs = Fs::mount(disk.clone(), Options::default()).unwrap();
    assert_eq!(fs.info().anywhere_blocks, 98);
    assert_eq!(fs.read(a.ino, 399_000, 9000).unwrap(), vec![7; 1000]);
    fs.unlink(d, b"1").unwrap();
    fs.sync(None).unwrap();
    assert_eq!(fs.info().anywhere_blocks, 0, "nothing is left to checkpoint");
    fs.unmount().unwrap();
    clean(disk);
}

/// Nothing would act by them.
#[test]
fn access_control_lists_are_refused() {
    let (_, mut fs) = new(Mode::Manylogs, 4096);
    let a = file(&mut fs, b"a");
    for name in [&b"system.posix_acl_access"[..], b"system.posix_acl_default", b"system.nfs4_acl"] {
        assert_eq!(fs.setxattr(a, name, &[2, 0, 0, 0], false, false), Err(Error::Os(Errno::OPNOTSUPP)));
    }
    fs.setxattr(a, b"security.capability", b"v", false, false).unwrap();
    assert_eq!(fs.listxattr(a).unwrap(), [b"security.capability"]);
}

#[test]
fn name_patterns_mark_files() {
    let disk = Arc::new(MemDisk::new(8192));
    mkfs(disk.clone(), Format::new(9, Mode::Manylogs, 8192), (0, 0)).unwrap();
    let anywhere = vec!["*.wal".to_owned(), "commitlog/*".to_owned()];
    let mut fs = Fs::mount(disk, Options { anywhere, ..Options::default() }).unwrap();
    let d = fs.create(ROOT, b"commitlog", DIR, (0, 0), 0).unwrap().ino;
    assert!(fs.create(d, b"x", FILE, (0, 0), 0).unwrap().anywhere);
    assert!(fs.create(ROOT, b"a.wal", FILE, (0, 0), 0).unwrap().anywhere);
    assert!(!fs.create(ROOT, b"x", FILE, (0, 0), 0).unwrap().anywhere);
}

#[test]
fn a_full_disk_and_no_inodes_are_enospc() {
    for mode in Mode::ALL {
        let (disk, mut fs) = new(mode, 2048);
        let a = file(&mut fs, b"a");
        let full = loop {
            match fs.write(a, fs.statfs().blocks * 4096, &[1]) {
                Err(e) => break e,
                Ok(_) => {
                    let size = fs.getattr(a).unwrap().size;
                    if let Err(e) = fs.write(a, size, &vec![1; 64 * BLOCK]) {
                        break e;
                    }
                }
            }
        };
        assert_eq!(full, Error::Os(Errno::NOSPC));
        fs.sync(None).unwrap();
        fs.unlink(ROOT, b"a").unwrap();
        fs.sync(None).unwrap();
        let mut made = 0;
        let out = loop {
            if fs.must_commit() {
                fs.sync(None).unwrap();
            }
            match fs.create(ROOT, format!("{made}").as_bytes(), FILE, (0, 0), 0) {
                Ok(_) => made += 1,
                Err(e) => break e,
            }
        };
        assert_eq!(out, Error::Os(Errno::NOSPC));
        assert_eq!(fs.statfs().inodes_free, 0);
        fs.unmount().unwrap();
        clean(disk);
    }
}

/// Performs a change as a mount does: without space it is tried again after a sync.
fn change<T>(fs: &mut Fs, mut f: impl FnMut(&mut Fs) -> Result<T, Error>) -> Result<T, Error> {
    if fs.must_commit() {
        fs.sync(None)?;
    }
    match f(fs) {
        Err(Error::Os(Errno::NOSPC)) => {
            fs.sync(None)?;
            f(fs)
        }
        result => result,
    }
}

fn allocate_all(fs: &mut Fs, ino: u64) -> u64 {
    let (mut blocks, mut step) = (0, 1024);
    while step > 0 {
        let (at, len) = (blocks * BLOCK as u64, step * BLOCK as u64);
        match change(fs, |fs| fs.fallocate(ino, Fallocate::Allocate, at, len, false)) {
            Ok(()) => blocks += step,
            Err(e) => {
                assert_eq!(e, Error::Os(Errno::NOSPC));
                step /= 2;
            }
        }
    }
    fs.sync(None).unwrap();
    blocks
}

#[test]
fn a_full_disk_takes_cuts_of_extents_or_refuses_them() {
    for mode in Mode::ALL {
        for punch in [false, true] {
            let (disk, mut fs) = new(mode, 16_384);
            let (a, b) = (file(&mut fs, b"a"), file(&mut fs, b"b"));
            let blocks = allocate_all(&mut fs, a);
            let mut done = 0;
            for block in (0..blocks).step_by(2) {
                let at = block * BLOCK as u64;
                let result = change(&mut fs, |fs| match punch {
                    true => fs.fallocate(a, Fallocate::Punch, at, BLOCK as u64, true),
                    false => fs.write(a, at, &[1; BLOCK]).map(drop),
                });
                match result {
                    Ok(()) => done += 1,
                    Err(e) => {
                        assert_eq!((e, punch), (Error::Os(Errno::NOSPC), false));
                        break;
                    }
                }
            }
            assert!(done > 16, "{done}");
            fs.sync(None).unwrap();
            change(&mut fs, |fs| fs.fallocate(a, Fallocate::Punch, 0, blocks / 2 * BLOCK as u64, true)).unwrap();
            change(&mut fs, |fs| fs.write(b, 0, b"b")).unwrap();
            fs.unmount().unwrap();
            clean(disk);
        }
    }
}

/// A leaf has up to 253 extents. When each is full, one more extent in each takes a block per leaf: by how many extents there are, it
/// would be a few.
#[test]
fn a_write_that_splits_every_leaf_has_its_blocks() {
    for mode in [Mode::Manylogs] {
        // Extents of a leaf that a sync of all of them at once makes.
        for per in [126u64, 189] {
            let (disk, mut fs) = new(mode, 65_536);
            let (a, b) = (file(&mut fs, b"a"), file(&mut fs, b"b"));
            let page = |i: u64, add: u64| (i * 8 + add) * BLOCK as u64;
            let leaves = 80;
            for i in 0..per * leaves {
                fs.write(a, page(i, 0), &[1]).unwrap();
            }
            fs.sync(None).unwrap();
            for i in (0..leaves).flat_map(|l| (0..253 - per).map(move |i| (l * per + i % per, 2 + i / per * 2))) {
                fs.write(a, page(i.0, i.1), &[2]).unwrap();
            }
            fs.sync(None).unwrap();
            let blocks = allocate_all(&mut fs, b);
            change(&mut fs, |fs| fs.truncate(b, (blocks - 110) * BLOCK as u64)).unwrap();
            fs.sync(None).unwrap();
            let mut written = 0;
            for leaf in 0..leaves {
                match fs.write(a, page(leaf * per, 6), &[3]) {
                    Ok(_) => written += 1,
                    Err(e) => assert_eq!(e, Error::Os(Errno::NOSPC)),
                }
            }
            assert!(written > 30, "{written} of {leaves}");
            fs.sync(None).unwrap();
            fs.unmount().unwrap();
            clean(disk);
        }
    }
}

#[test]
fn blocks_that_lie_apart_are_allocated_with_their_leaves_or_refused() {
    for mode in [Mode::Data, Mode::Manylogs] {
        let (disk, mut fs) = new(mode, 32_768);
        let (a, b, c) = (file(&mut fs, b"a"), file(&mut fs, b"b"), file(&mut fs, b"c"));
        let mut full = false;
        while !full {
            full = [a, b].into_iter().any(|ino| {
                let at = fs.getattr(ino).unwrap().size;
                change(&mut fs, |fs| fs.fallocate(ino, Fallocate::Allocate, at, BLOCK as u64, false)).is_err()
            });
        }
        fs.sync(None).unwrap();
        fs.unlink(ROOT, b"b").unwrap();
        fs.sync(None).unwrap();
        let mut step = fs.statfs().blocks_free - 25;
        let mut blocks = 0;
        assert!(step > 8000, "{step}");
        while step > 0 {
            let (at, len) = (blocks * BLOCK as u64, step * BLOCK as u64);
            match fs.fallocate(c, Fallocate::Allocate, at, len, false) {
                Ok(()) => blocks += step,
                Err(e) => {
                    assert_eq!(e, Error::Os(Errno::NOSPC));
                    step /= 2;
                }
            }
            fs.sync(None).unwrap();
        }
        assert!(blocks > 8000, "{blocks}");
        fs.unmount().unwrap();
        clean(disk);
    }
}

/// An accepted change can be written back, however full the disk is; and all blocks are free again in the end.
#[test]
fn a_disk_that_is_nearly_full_keeps_what_it_accepted() {
    for (mode, seed) in Mode::ALL.into_iter().flat_map(|m| (0..6u64).map(move |s| (m, s))) {
        let (disk, mut fs) = new(mode, 3000);
        let mut x = seed;
        let mut below = |n: u64| {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (x >> 33) % n
        };
        let files: Vec<u64> = (0..6).map(|i| file(&mut fs, format!("{i}").as_bytes())).collect();
        fs.sync(None).unwrap();
        let free = fs.statfs().blocks_free;
        let mut refused = 0;
        for _ in 0..6000 {
            let ino = files[below(6) as usize];
            let (at, most) = (below(4000) * BLOCK as u64, 1 << below(9));
            let len = (1 + below(most)) * BLOCK as u64;
            let result = match below(40) {
                0..=19 => change(&mut fs, |fs| fs.write(ino, at, &vec![1; 1 + len as usize % 20_000]).map(drop)),
                20..=24 => change(&mut fs, |fs| fs.fallocate(ino, Fallocate::Allocate, at, len, true)),
                25..=31 => change(&mut fs, |fs| fs.fallocate(ino, Fallocate::Punch, at, len.min(9 * 4096), true)),
                32..=34 => change(&mut fs, |fs| fs.fallocate(ino, Fallocate::Zero, at, len, true)),
                35 => change(&mut fs, |fs| fs.truncate(ino, at)),
                36 => fs.sync(None),
                37 => fs.checkpoint(),
                _ => fs.sync(Some(ino)),
            };
            if let Err(e) = result {
                assert_eq!(e, Error::Os(Errno::NOSPC), "mode {}, seed {seed}", mode.name());
                refused += 1;
            }
        }
        assert!(refused > 50, "{refused}: it wasn't full");
        for ino in files {
            fs.truncate(ino, 0).unwrap();
        }
        fs.sync(None).unwrap();
        assert_eq!(fs.statfs().blocks_free, free);
        fs.unmount().unwrap();
        clean(disk);
    }
}

#[test]
fn files_that_are_open_can_be_deleted_on_a_full_disk() {
    for mode in Mode::ALL {
        let (disk, mut fs) = new(mode, 8192);
        let names: Vec<Vec<u8>> = (0..700).map(|i| format!("{i}").into_bytes()).collect();
        let files: Vec<u64> = names.iter().map(|n| file(&mut fs, n)).collect();
        let a = file(&mut fs, b"a");
        allocate_all(&mut fs, a);
        for page in 0.. {
            if change(&mut fs, |fs| fs.write(files[0], page * BLOCK as u64, &[1])).is_err() {
                break;
            }
        }
        for (name, &ino) in names.iter().zip(&files) {
            fs.open(ino).unwrap();
            change(&mut fs, |fs| fs.unlink(ROOT, name)).unwrap();
        }
        fs.sync(None).unwrap();
        for ino in files {
            fs.release(ino).unwrap();
        }
        fs.unmount().unwrap();
        clean(disk);
    }
}

#[test]
fn zeroes_take_no_blocks_that_are_set_aside() {
    for mode in Mode::ALL {
        let (disk, mut fs) = new(mode, 4096);
        let (a, b) = (file(&mut fs, b"a"), file(&mut fs, b"b"));
        let half = fs.statfs().blocks_free / 2;
        fs.write(a, 0, &vec![1; half as usize * BLOCK]).unwrap();
        fs.sync(None).unwrap();
        let rest = fs.statfs().blocks_free - 100;
        fs.write(b, 0, &vec![2; rest as usize * BLOCK]).unwrap();
        fs.fallocate(a, Fallocate::Zero, 0, half * BLOCK as u64, true).unwrap();
        fs.sync(None).unwrap();
        assert_eq!(fs.read(a, 0, BLOCK).unwrap(), [0; BLOCK]);
        assert_eq!(fs.read(b, (rest - 1) * BLOCK as u64, BLOCK).unwrap(), [2; BLOCK]);
        fs.unmount().unwrap();
        clean(disk);
    }
}

#[test]
fn a_small_journal_takes_changes_of_many_inodes() {
    for mode in Mode::ALL {
        let blocks = 16_384;
        let disk = Arc::new(MemDisk::new(blocks));
        let format =
            Format { journal_blocks: 64, log_blocks: 16, inodes_per_group: 1024, ..Format::new(9, mode, blocks) };
        mkfs(disk.clone(), format, (0, 0)).unwrap();
        let mut fs = Fs::mount(disk.clone(), Options::default()).unwrap();
        let files: Vec<u64> = (0..1000u32)
            .map(|i| change(&mut fs, |fs| fs.create(ROOT, format!("{i}").as_bytes(), FILE, (0, 0), 0)).unwrap().ino)
            .collect();
        fs.sync(None).unwrap();
        for ino in files {
            let set = SetAttr { mtime: Some((7, 0)), ..SetAttr::default() };
            change(&mut fs, |fs| fs.setattr(ino, set)).unwrap();
        }
        fs.sync(None).unwrap();
        fs.unmount().unwrap();
        clean(disk);
    }
}

/// A kill leaves more of them than one record of the journal can free.
#[test]
fn a_small_journal_takes_a_mount_that_frees_many_files_without_a_name() {
    for mode in Mode::ALL {
        let blocks = 16_384;
        let disk = Arc::new(MemDisk::new(blocks));
        let format =
            Format { journal_blocks: 64, log_blocks: 16, inodes_per_group: 1024, ..Format::new(9, mode, blocks) };
        mkfs(disk.clone(), format, (0, 0)).unwrap();
        let mut fs = Fs::mount(disk.clone(), Options::default()).unwrap();
        let free = fs.statfs().inodes_free;
        let names: Vec<Vec<u8>> = (0..1000).map(|i| format!("{i}").into_bytes()).collect();
        for name in &names {
            let ino = change(&mut fs, |fs| fs.create(ROOT, name, FILE, (0, 0), 0)).unwrap().ino;
            fs.open(ino).unwrap();
        }
        names.iter().for_each(|name| change(&mut fs, |fs| fs.unlink(ROOT, name)).unwrap());
        fs.sync(None).unwrap();
        fs.checkpoint().unwrap();
        drop(fs);
        let copy = Arc::new(MemDisk::with(blocks, disk.content()));
        let mut fs = Fs::mount(disk.clone(), Options::default()).unwrap();
        assert_eq!(fs.statfs().inodes_free, free);
        let new = file(&mut fs, b"new");
        fs.sync(Some(new)).unwrap();
        fs.unmount().unwrap();
        drop(fs);
        clean(disk);
        // A repair frees them, too.
        let mut content = copy.content();
        let mut groups = content[&1].to_vec();
        // The first group's number of directories.
        groups[32 + 8] ^= 1;
        plimsoll_fs::crash::reseal(&mut groups);
        content.insert(1, groups.into());
        let copy = Arc::new(MemDisk::with(blocks, content));
        let report = fsck(copy.clone(), true).unwrap();
        assert_eq!((report.problems.len(), report.repaired), (1, true), "{:?}", report.problems);
        clean(copy);
    }
}

#[test]
fn a_read_only_mount_changes_nothing() {
    let (disk, mut fs) = new(Mode::Data, 4096);
    let a = file(&mut fs, b"a");
    fs.write(a, 0, b"x").unwrap();
    fs.sync(None).unwrap();
    drop(fs);
    let before: BTreeMap<_, _> = disk.content();
    let mut fs = Fs::mount(disk.clone(), Options { read_only: true, ..Options::default() }).unwrap();
    assert_eq!(fs.read(a, 0, 9).unwrap(), b"x");
    assert_eq!(fs.write(a, 0, b"y").unwrap_err(), Error::Os(Errno::ROFS));
    fs.unmount().unwrap();
    assert!(before == disk.content());
}

struct Failing {
    disk: MemDisk,
    fails: AtomicBool,
}

impl Disk for Failing {
    fn blocks(&self) -> u64 {
        self.disk.blocks()
    }
    fn read(&self, block: u64, into: &mut [u8]) -> io::Result<()> {
        self.disk.read(block, into)
    }
    fn write(&self, writes: &[Write]) -> io::Result<()> {
        self.disk.write(writes)
    }
    fn flush(&self) -> io::Result<()> {
        if self.fails.load(Ordering::Relaxed) { Err(io::Error::other("lost")) } else { Ok(()) }
    }
}

#[test]
fn after_a_failed_flush_every_sync_fails_and_nothing_changes() {
    let disk = Arc::new(Failing { disk: MemDisk::new(4096), fails: AtomicBool::new(false) });
    mkfs(disk.clone(), Format::new(9, Mode::Manylogs, 4096), (0, 0)).unwrap();
    let mut fs = Fs::mount(disk.clone(), Options::default()).unwrap();
    let a = file(&mut fs, b"a");
    fs.write(a, 0, b"x").unwrap();
    disk.fails.store(true, Ordering::Relaxed);
    assert_eq!(fs.sync(Some(a)).unwrap_err().errno(), Errno::IO);
    disk.fails.store(false, Ordering::Relaxed);
    assert_eq!(fs.sync(Some(a)).unwrap_err().errno(), Errno::IO);
    assert_eq!(fs.write(a, 0, b"y").unwrap_err(), Error::Os(Errno::ROFS));
}

#[test]
fn a_lost_record_that_was_durable_is_an_error_and_fsck_says_so() {
    let (disk, mut fs) = new(Mode::Data, 4096);
    file(&mut fs, b"a");
    fs.sync(None).unwrap();
    let first = fs.info().log_blocks_used;
    file(&mut fs, b"b");
    fs.sync(None).unwrap();
    assert!(first > 0);
    drop(fs);
    // The second record's witness says that the first was durable.
    let mut content = disk.content();
    let (&record, _) = content.iter().find(|(_, d)| d.starts_with(b"PFSR")).unwrap();
    let mut bytes = content[&record].to_vec();
    bytes[100] ^= 1;
    content.insert(record, bytes.into());
    let bad = Arc::new(MemDisk::with(4096, content));
    let mount = Fs::mount(bad.clone(), Options::default()).map(drop);
    assert!(matches!(mount, Err(Error::Corrupt(_))), "{mount:?}");
    assert!(!fsck(bad.clone(), true).unwrap().problems.is_empty());
    assert_eq!(fsck(bad.clone(), false).unwrap().problems, Vec::<String>::new());
    Fs::mount(bad, Options::default()).unwrap();
}

/// Operations of all kinds on what a damaged image has. They may fail.
fn use_much(fs: &mut Fs, dirs: [u64; 2]) {
    for dir in dirs {
        for (i, e) in fs.readdir(dir, 0, 1000).unwrap_or_default().into_iter().enumerate() {
            drop(fs.read(e.ino, 0, 1 << 16));
            drop(fs.write(e.ino, 0, b"x"));
            let other = format!("other {i}");
            match i % 10 {
                0 => drop(fs.truncate(e.ino, 5000)),
                1 => drop(fs.fallocate(e.ino, Fallocate::Punch, 3000, 30_000, true)),
                2 => drop(fs.fallocate(e.ino, Fallocate::Allocate, 100_000, 50_000, false)),
                3 => drop(fs.fallocate(e.ino, Fallocate::Zero, 5000, 30_000, false)),
                4 => drop(fs.setxattr(e.ino, b"user.k", b"v", false, false)),
                5 => drop(fs.link(e.ino, dir, other.as_bytes())),
                6 => drop(fs.rename((dir, &e.name), (ROOT, other.as_bytes()), Rename::default())),
                7 => drop(fs.listxattr(e.ino).and_then(|_| fs.readlink(e.ino))),
                8 => drop(fs.rmdir(dir, &e.name)),
                _ => drop(fs.unlink(dir, &e.name)),
            }
            if fs.must_commit() {
                drop(fs.sync(None));
            }
        }
        drop(fs.create(dir, b"new", FILE, (0, 0), 0).and_then(|a| fs.write(a.ino, 0, &[1; 20_000])));
        drop(fs.create(dir, b"new directory", DIR, (0, 0), 0));
        drop(fs.symlink(dir, b"new link", &[b'x'; 3000], (0, 0)));
    }
    drop(fs.sync(None));
    drop(fs.checkpoint());
}

/// Changes a record's header or one of its blocks, so that all checksums fit.
fn change_record(image: &mut BTreeMap<u64, Arc<[u8]>>, at: u64, below: &mut dyn FnMut(u64) -> u64) {
    let mut header = image[&at].to_vec();
    let entries = u64::from(u32::from_le_bytes(header[48..52].try_into().unwrap()));
    if below(2) == 0 && (1..200).contains(&entries) {
        let i = below(entries);
        let Some(block) = image.get(&(at + 1 + i)) else { return };
        let mut block = block.to_vec();
        block[32 + below(300) as usize] = below(256) as u8;
        if block.starts_with(b"PFSB") {
            plimsoll_fs::crash::reseal(&mut block);
        }
        header[72 + 16 * i as usize + 8..][..4].copy_from_slice(&crc32fast::hash(&block).to_le_bytes());
        image.insert(at + 1 + i, block.into());
    } else {
        // Counts, numbers, parts, homes.
        let field = if below(2) == 0 { 40 + 4 * below(4) } else { 16 + below(200) };
        header[field as usize] = [0, 1, 0xff, below(256) as u8][below(4) as usize];
    }
    plimsoll_fs::crash::reseal(&mut header);
    image.insert(at, header.into());
}

/// Changed bytes, also with checksums that fit, of metadata and of records: mounting, using and repairing end, whatever they find.
#[test]
fn damaged_images_end_in_an_error_or_a_repair() {
    let images: u64 = std::env::var("PLIMSOLL_FS_IMAGES").map_or(150, |v| v.parse().expect("a number"));
    for mode in [Mode::Manylogs, Mode::Data] {
        let (disk, mut fs) = new(mode, 2048);
        let d = fs.create(ROOT, b"d", DIR, (0, 0), 0).unwrap().ino;
        for i in 0..30 {
            let ino = fs.create(d, format!("{i}").as_bytes(), FILE, (0, 0), 0).unwrap().ino;
            for page in 0..30 {
                change(&mut fs, |fs| fs.write(ino, page * 9000, &[1; 500])).unwrap();
            }
        }
        fs.unmount().unwrap();
        let file = fs.lookup(d, b"3").unwrap().ino;
        for i in 0..3 {
            fs.write(file, i * 5000, b"in a log").unwrap();
            fs.setxattr(file, b"user.k", b"v", false, false).unwrap();
            fs.sync(None).unwrap();
        }
        drop(fs);
        let content = disk.content();
        let metadata: Vec<u64> = content.iter().filter(|(_, d)| d.starts_with(b"PFS")).map(|(&b, _)| b).collect();
        let is_record = |b: &u64| content[b].starts_with(b"PFSR");
        let records: Vec<u64> = metadata.iter().copied().filter(is_record).collect();
        let mut x = 5u64;
        let mut below = |n: u64| {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (x >> 33) % n
        };
        for number in 0..images {
            let mut image = content.clone();
            let mut has_super = true;
            for _ in 0..1 + below(3) {
                if below(3) == 0 {
                    let at = records[below(records.len() as u64) as usize];
                    change_record(&mut image, at, &mut below);
                    continue;
                }
                let block = metadata[below(metadata.len() as u64) as usize];
                has_super &= block != 0 && block != 2047;
                let mut bytes = image[&block].to_vec();
                for _ in 0..1 + below(4) {
                    let range = if below(2) == 0 { 200 } else { BLOCK as u64 - 32 };
                    let at = 32 + below(range) as usize;
                    bytes[at] = [0, 1, 0xff, below(256) as u8][below(4) as usize];
                }
                if below(3) > 0 && bytes.starts_with(b"PFSB") {
                    plimsoll_fs::crash::reseal(&mut bytes);
                }
                image.insert(block, bytes.into());
            }
            let what = format!("{}, image {number}", mode.name());
            let disk = Arc::new(MemDisk::with(2048, image));
            if let Ok(mut fs) = Fs::mount(disk.clone(), Options::default()) {
                use_much(&mut fs, [ROOT, d]);
                drop(fs.unmount());
            }
            match fsck(disk.clone(), true) {
                Ok(report) => {
                    let again = fsck(disk, false).unwrap();
                    assert_eq!(again.problems, Vec::<String>::new(), "{what}: left after {:?}", report.problems);
                }
                Err(e) => assert!(!has_super, "{what}: {e}"),
            }
        }
    }
}
