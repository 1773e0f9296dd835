//! Through FUSE: a mount against a native directory as the oracle, syncs of several threads. Needs /dev/fuse.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::path::Path;
use std::sync::Arc;

use plimsoll_fs::front::{Mount, Mounted, mount};
use plimsoll_fs::{Format, Fs, MemDisk, Mode, Options, fsck, mkfs};

fn mounted(disk: Arc<MemDisk>, at: &Path, read_only: bool) -> Mounted {
    let fs = Fs::mount(disk.clone(), Options { read_only, ..Options::default() }).unwrap();
    let how = Mount { source: "test".into(), allow_other: false, threads: 3, read_only };
    mount(fs, disk, at, &how).unwrap()
}

fn unmount(m: Mounted) {
    m.unmounter()().unwrap();
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
