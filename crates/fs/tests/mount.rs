//! Through FUSE: a mount against a native directory as the oracle, syncs of several threads. Needs /dev/fuse.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::Path;
use std::sync::Arc;

use plimsoll_fs::mount::{Mount, Mounted, mount};
use plimsoll_fs::{Format, Fs, MemDisk, Mode, Options, fsck, ioctl as numbers, mkfs};
use rustix::fs::{CWD, FallocateFlags, OFlags, RenameFlags, SeekFrom, XattrFlags};
use rustix::io::Errno;
use rustix::ioctl::{Getter, NoArg, Setter, ioctl};

fn mounted(disk: Arc<MemDisk>, at: &Path, read_only: bool) -> Mounted {
    let fs = Fs::mount(disk.clone(), Options { read_only, ..Options::default() }).unwrap();
    let how = Mount { source: "test".into(), allow_other: false, threads: 3, read_only };
    mount(fs, disk, at, &how).unwrap()
}

fn unmount(m: Mounted) {
    m.unmounter().unmount().unwrap();
    m.wait().unwrap();
}

fn disk(mode: Mode) -> Arc<MemDisk> {
    let disk = Arc::new(MemDisk::new(32_768));
    mkfs(disk.clone(), Format::new(3, mode, 32_768), (0, 0)).unwrap();
    disk
}

#[test]
fn a_mount_does_what_a_directory_does() {
    let dir = tempfile::tempdir().unwrap();
    let (at, native) = (dir.path().join("mnt"), dir.path().join("native"));
    fs::create_dir(&at).unwrap();
    fs::create_dir(&native).unwrap();
    let disk = disk(Mode::Manylogs);
    let m = mounted(disk.clone(), &at, false);
    let mut seed = 11u64;
    let mut below = |n: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % n
    };
    for step in 0..1500 {
        let (a, b) = (format!("f{}", below(8)), format!("f{}", below(8)));
        let (offset, len, what) = (below(100_000), below(30_000), below(10));
        let results = [&at, &native].map(|root| {
            let (a, to) = (root.join(&a), root.join(&b));
            let write = || OpenOptions::new().write(true).open(&a);
            let result = match what {
                0 => File::create(&a).map(drop),
                1 => fs::remove_file(&a),
                2 => fs::rename(&a, &to),
                3 => fs::hard_link(&a, &to),
                4 => write().and_then(|f| f.set_len(offset)),
                5 => File::open(&a).and_then(|f| f.sync_all()),
                6 => symlink(&b, &a),
                _ => write().and_then(|f| f.write_all_at(&vec![step as u8; len as usize], offset)),
            };
            let state = fs::symlink_metadata(&a).ok().map(|m| (m.is_file().then_some(m.size()), m.nlink(), m.mode()));
            (result.map_err(|e| e.raw_os_error()), state)
        });
        assert_eq!(results[0], results[1], "step {step}: {what} of {a}, {b}");
    }
    let content = |root: &Path| {
        let mut names: Vec<_> = fs::read_dir(root).unwrap().map(|e| e.unwrap().file_name()).collect();
        names.sort();
        names.into_iter().map(|n| (n.clone(), fs::read(root.join(n)).map_err(|e| e.raw_os_error()))).collect::<Vec<_>>()
    };
    let expected = content(&native);
    assert!(content(&at) == expected);
    unmount(m);
    assert_eq!(fsck(disk.clone(), false).unwrap().problems, Vec::<String>::new());
    let m = mounted(disk, &at, true);
    assert!(content(&at) == expected);
    assert_eq!(File::create(at.join("new")).unwrap_err().raw_os_error(), Some(30));
    unmount(m);
}

#[test]
fn syncs_of_several_threads_are_durable() {
    for mode in Mode::ALL {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path();
        let disk = disk(mode);
        let m = mounted(disk.clone(), at, false);
        std::thread::scope(|s| {
            for t in 0..4 {
                s.spawn(move || {
                    for i in 0..10 {
                        let mut f = File::create(at.join(format!("{t}-{i}"))).unwrap();
                        f.write_all(&vec![t as u8 + 1; 3000 * (i + 1)]).unwrap();
                        f.sync_all().unwrap();
                    }
                });
            }
        });
        // What a loss of power now would leave, as this disk keeps what it acknowledges.
        let image = Arc::new(MemDisk::with(32_768, disk.content()));
        unmount(m);
        assert_eq!(fsck(image.clone(), false).unwrap().problems, Vec::<String>::new());
        let mut fs = Fs::mount(image, Options::default()).unwrap();
        for (t, i) in (0..4u8).flat_map(|t| (0..10).map(move |i| (t, i))) {
            let ino = fs.lookup(plimsoll_fs::ROOT, format!("{t}-{i}").as_bytes()).unwrap().ino;
            assert!(fs.read(ino, 0, 1 << 20).unwrap() == vec![t + 1; 3000 * (i + 1)]);
        }
    }
}

fn get_durability(f: &File) -> rustix::io::Result<u32> {
    // SAFETY: the number says that a u32 is written.
    unsafe { ioctl(f, Getter::<{ numbers::GET_DURABILITY }, u32>::new()) }
}

fn set_durability(f: &File, to: u32) -> rustix::io::Result<()> {
    // SAFETY: the number says that a u32 is read.
    unsafe { ioctl(f, Setter::<{ numbers::SET_DURABILITY }, u32>::new(to)) }
}

#[test]
fn ioctls_have_the_numbers_of_the_guide() {
    let numbers = [numbers::GET_DURABILITY, numbers::SET_DURABILITY, numbers::SYNC];
    assert_eq!(numbers, [0x8004_50b1, 0x4004_50b2, 0x50b3]);
}

#[test]
fn an_ioctl_marks_files_and_directories() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().join("mnt");
    fs::create_dir(&at).unwrap();
    let disk = disk(Mode::Manylogs);
    let fs = Fs::mount(disk.clone(), Options::default()).unwrap();
    let how = Mount { source: "test".into(), allow_other: true, threads: 3, read_only: false };
    let m = mount(fs, disk.clone(), &at, &how).unwrap();
    let mut value = [0; 16];
    let mut attribute = |path: &Path| {
        let n = rustix::fs::getxattr(path, "user.plimsoll.durability", &mut value[..])?;
        rustix::io::Result::Ok(value[..n].to_vec())
    };
    fs::create_dir(at.join("d")).unwrap();
    let d = File::open(at.join("d")).unwrap();
    let before = File::create(at.join("d/before")).unwrap();
    assert_eq!(get_durability(&d), Ok(numbers::AT_ITS_PLACE));
    set_durability(&d, numbers::ANYWHERE).unwrap();
    assert_eq!((get_durability(&d), get_durability(&before)), (Ok(1), Ok(0)));
    assert_eq!(attribute(&at.join("d")).unwrap(), b"anywhere");
    // What is created from now on inherits it, and may lose it.
    let f = File::create(at.join("d/f")).unwrap();
    assert_eq!(get_durability(&f), Ok(1));
    set_durability(&f, 0).unwrap();
    assert_eq!((get_durability(&f), attribute(&at.join("d/f"))), (Ok(0), Err(Errno::NODATA)));
    assert_eq!(set_durability(&f, 2), Err(Errno::INVAL));
    // SAFETY: the number says that no memory is read or written.
    let unknown = unsafe { ioctl(&f, NoArg::<{ rustix::ioctl::opcode::none(b'P', 0xb4) }>::new()) };
    assert_eq!(unknown, Err(Errno::NOTTY));
    // Only its owner, and root, mark a file. Anybody reads the mark.
    let marks = std::thread::scope(|s| {
        let other = s.spawn(|| {
            let uid = rustix::fs::Uid::from_raw(1000);
            rustix::thread::set_thread_uid(uid).unwrap();
            let refused = (set_durability(&f, 1), get_durability(&f));
            (refused, set_durability(&d, 0))
        });
        other.join().unwrap()
    });
    assert_eq!(marks, ((Err(Errno::PERM), Ok(0)), Err(Errno::PERM)));
    rustix::fs::chown(at.join("d/f"), Some(rustix::fs::Uid::from_raw(1000)), None).unwrap();
    let owner = std::thread::scope(|s| {
        s.spawn(|| {
            rustix::thread::set_thread_uid(rustix::fs::Uid::from_raw(1000)).unwrap();
            set_durability(&f, 1)
        })
        .join()
        .unwrap()
    });
    assert_eq!(owner, Ok(()));
    drop((d, before, f));
    unmount(m);
    let m = mounted(disk, &at, true);
    let f = File::open(at.join("d/f")).unwrap();
    assert_eq!((get_durability(&f), set_durability(&f, 0)), (Ok(1), Err(Errno::ROFS)));
    drop(f);
    unmount(m);
}

#[test]
fn an_ioctl_makes_all_files_durable() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path();
    let disk = disk(Mode::Manylogs);
    let m = mounted(disk.clone(), at, false);
    for i in 0..20 {
        fs::write(at.join(format!("{i}")), vec![i as u8 + 1; 5000 * (i + 1)]).unwrap();
    }
    // SAFETY: the number says that no memory is read or written.
    unsafe { ioctl(File::open(at).unwrap(), NoArg::<{ numbers::SYNC }>::new()) }.unwrap();
    // What a loss of power now would leave, as this disk keeps what it acknowledges.
    let image = Arc::new(MemDisk::with(32_768, disk.content()));
    unmount(m);
    let mut fs = Fs::mount(image, Options::default()).unwrap();
    for i in 0..20 {
        let ino = fs.lookup(plimsoll_fs::ROOT, format!("{i}").as_bytes()).unwrap().ino;
        assert!(fs.read(ino, 0, 1 << 20).unwrap() == vec![i as u8 + 1; 5000 * (i + 1)], "{i}");
    }
}

/// An inode that somebody has keeps its number and its content, also without a name and without an open file.
#[test]
fn an_inode_stays_while_somebody_has_it() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path();
    let disk = disk(Mode::Manylogs);
    let m = mounted(disk.clone(), at, false);
    let free = || rustix::fs::statvfs(at).unwrap().f_ffree;
    let before = free();
    fs::write(at.join("f"), b"content").unwrap();
    fs::create_dir(at.join("d")).unwrap();
    let held = ["f", "d"]
        .map(|n| OpenOptions::new().read(true).custom_flags(OFlags::PATH.bits() as i32).open(at.join(n)).unwrap());
    let numbers = held.each_ref().map(|h| h.metadata().unwrap().ino());
    fs::remove_file(at.join("f")).unwrap();
    fs::remove_dir(at.join("d")).unwrap();
    // These would get the numbers of the old ones.
    for i in 0..20 {
        fs::create_dir(at.join(format!("d{i}"))).unwrap();
        fs::write(at.join(format!("f{i}")), b"other").unwrap();
    }
    for (h, ino) in held.iter().zip(numbers) {
        let now = h.metadata().unwrap();
        assert_eq!((now.ino(), now.nlink()), (ino, 0));
    }
    let reopened = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&held[0]));
    assert_eq!(fs::read(reopened).unwrap(), b"content");
    drop(held);
    for i in 0..20 {
        fs::remove_dir(at.join(format!("d{i}"))).unwrap();
        fs::remove_file(at.join(format!("f{i}"))).unwrap();
    }
    // The kernel forgets inodes some time after their last use.
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while free() != before {
        assert!(std::time::Instant::now() < deadline, "{} of {before} inodes are free", free());
        std::thread::yield_now();
    }
    unmount(m);
    assert_eq!(fsck(disk, false).unwrap().problems, Vec::<String>::new());
}

/// A buffer whose address suits O_DIRECT.
#[repr(align(4096))]
struct Aligned([u8; 8192]);

/// Operations that a seed draws, and the result of each.
fn operations(root: &Path, seed: u64, steps: usize) -> Vec<String> {
    let mut x = seed;
    let mut below = |n: u64| {
        x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (x >> 33) % n
    };
    let code = |r: rustix::io::Result<()>| r.map_err(std::io::Error::from);
    let mut results = Vec::new();
    let mut open: Vec<File> = Vec::new();
    for step in 0..steps {
        let mut path = || {
            let name = format!("n{}", below(6));
            match below(4) {
                0 => root.join(format!("n{}", below(6))).join(name),
                _ => root.join(name),
            }
        };
        let (a, b) = (path(), path());
        let (what, at, len) = (below(22), below(60_000), 1 + below(20_000));
        let edit = || OpenOptions::new().write(true).open(&a);
        let attribute = format!("user.{}", below(3));
        let done: std::io::Result<()> = match what {
            0 | 1 => File::create(&a).map(drop),
            2 => fs::create_dir(&a),
            3 => fs::remove_file(&a),
            4 => fs::remove_dir(&a),
            5 => fs::hard_link(&a, &b),
            6 => symlink(b.file_name().unwrap(), &a),
            7 => fs::rename(&a, &b),
            8..=10 => {
                let flags = [RenameFlags::NOREPLACE, RenameFlags::EXCHANGE, RenameFlags::WHITEOUT][what as usize - 8];
                code(rustix::fs::renameat_with(CWD, &a, CWD, &b, flags))
            }
            11 => {
                let flags = [XattrFlags::empty(), XattrFlags::CREATE, XattrFlags::REPLACE][step % 3];
                code(rustix::fs::lsetxattr(&a, &attribute, &vec![step as u8; at as usize % 200], flags))
            }
            12 => code(rustix::fs::lremovexattr(&a, &attribute)),
            13 => {
                let how = [
                    FallocateFlags::empty(),
                    FallocateFlags::KEEP_SIZE,
                    FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
                    FallocateFlags::ZERO_RANGE,
                    FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE,
                ][step % 5];
                edit().and_then(|f| code(rustix::fs::fallocate(&f, how, at, len)))
            }
            14 => edit().and_then(|f| f.set_len(at)),
            15 => fs::set_permissions(&a, fs::Permissions::from_mode(at as u32 % 0o10000)),
            16 => {
                let direct =
                    OpenOptions::new().read(true).write(true).custom_flags(OFlags::DIRECT.bits() as i32).open(&a);
                direct.and_then(|f| {
                    f.write_all_at(&Aligned([step as u8; 8192]).0, at / 4096 * 4096)?;
                    let mut back = Aligned([0; 8192]);
                    f.read_exact_at(&mut back.0, at / 4096 * 4096)?;
                    assert!(back.0 == [step as u8; 8192]);
                    Ok(())
                })
            }
            17 => File::open(&a).map(|f| open.push(f)),
            18 if !open.is_empty() => {
                drop(open.swap_remove(at as usize % open.len()));
                Ok(())
            }
            19 => File::open(&a).and_then(|f| f.sync_all()),
            _ => edit().and_then(|f| f.write_all_at(&vec![step as u8 | 1; len as usize], at)),
        };
        let state = fs::symlink_metadata(&a).map(|m| {
            let size = if m.is_dir() { 0 } else { m.size() };
            (m.mode(), m.nlink(), size, m.uid(), m.rdev())
        });
        let mut value = [0; 256];
        let value = rustix::fs::lgetxattr(&a, &attribute, &mut value[..]).map(|n| (n, value[0]));
        let content = |f: &File| {
            let mut data = vec![0; f.metadata().unwrap().size() as usize];
            f.read_exact_at(&mut data, 0).map(|()| crc32fast::hash(&data)).map_err(|e| e.raw_os_error())
        };
        let regular = state.as_ref().is_ok_and(|s| s.0 & 0o170_000 == 0o100_000);
        let data = regular.then(|| File::open(&a).map(|f| content(&f)).map_err(|e| e.raw_os_error()));
        let held: Vec<_> = open.iter().filter(|f| f.metadata().unwrap().is_file()).map(content).collect();
        let (done, state) = (done.map_err(|e| e.raw_os_error()), state.map_err(|e| e.raw_os_error()));
        results.push(format!(
            "{step}: {what} {:?} {:?} {done:?} {state:?} {value:?} {data:?} {held:?}",
            a.file_name(),
            b.file_name()
        ));
    }
    results
}

/// Holes are where the file system says, or smaller: no byte outside of its data differs from zero.
fn holes_are_zeroes(root: &Path) {
    for e in fs::read_dir(root).unwrap().map(|e| e.unwrap()).filter(|e| e.file_type().unwrap().is_file()) {
        let (f, content) = (File::open(e.path()).unwrap(), fs::read(e.path()).unwrap());
        let mut at = 0;
        while at < content.len() as u64 {
            let data = rustix::fs::seek(&f, SeekFrom::Data(at)).unwrap_or(content.len() as u64);
            assert!(content[at as usize..data as usize].iter().all(|&b| b == 0));
            if data == content.len() as u64 {
                break;
            }
            at = rustix::fs::seek(&f, SeekFrom::Hole(data)).unwrap();
            assert!(at > data);
        }
    }
}

#[test]
fn threads_of_a_mount_do_what_they_do_in_a_directory() {
    for mode in Mode::ALL {
        let dir = tempfile::tempdir().unwrap();
        let (at, native) = (dir.path().join("mnt"), dir.path().join("native"));
        fs::create_dir(&at).unwrap();
        fs::create_dir(&native).unwrap();
        let disk = disk(mode);
        let m = mounted(disk.clone(), &at, false);
        let free = || rustix::fs::statvfs(&at).map(|s| (s.f_bfree, s.f_ffree)).unwrap();
        let before = free();
        std::thread::scope(|s| {
            for seed in 0..3 {
                let (at, native) = (at.join(format!("{seed}")), native.join(format!("{seed}")));
                s.spawn(move || {
                    let [ours, theirs] = [at, native].map(|root| {
                        fs::create_dir(&root).unwrap();
                        let results = operations(&root, seed, 1500);
                        holes_are_zeroes(&root);
                        results
                    });
                    for (ours, theirs) in ours.iter().zip(&theirs) {
                        assert_eq!(ours, theirs, "mode {}, seed {seed}", mode.name());
                    }
                });
            }
        });
        for seed in 0..3 {
            fs::remove_dir_all(at.join(format!("{seed}"))).unwrap();
        }
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
        // What is left is the directory of files without a name, and a bucket of the root.
        while free().1 != before.1 || before.0 - free().0 > 4 {
            assert!(std::time::Instant::now() < deadline, "{:?} of {before:?} are free", free());
            std::thread::yield_now();
        }
        unmount(m);
        assert_eq!(fsck(disk, false).unwrap().problems, Vec::<String>::new());
    }
}
