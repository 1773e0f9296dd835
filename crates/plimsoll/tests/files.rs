//! The file system through FUSE: commands, a mount against a native directory as the oracle, kill -9, fio's verification.
#![cfg(feature = "tools")]

mod common;

use common::mount::unmount;
use plimsoll_testkit::until;
use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

const PLIMSOLL: &str = env!("CARGO_BIN_EXE_plimsoll");

fn plimsoll(args: &[&str]) -> Output {
    Command::new(PLIMSOLL).args(args).output().unwrap()
}

fn ok(output: Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

struct Mounted {
    child: Child,
    at: PathBuf,
}

impl Mounted {
    fn new(image: &Path, at: &Path, extra: &[&str]) -> Mounted {
        Mounted::with(at, Command::new(PLIMSOLL).arg("mount").args([image, at]).args(extra))
    }

    fn with(at: &Path, command: &mut Command) -> Mounted {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "mounted\n");
        Mounted { child, at: at.to_owned() }
    }

    fn unmount(mut self) {
        unmount(&self.at);
        assert!(self.child.wait().unwrap().success());
    }

    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        ok(Command::new("umount").arg("-l").arg(&self.at).output().unwrap());
    }
}

fn setup(journal: &str) -> (tempfile::TempDir, PathBuf, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let (image, at) = (dir.path().join("fs.img"), dir.path().join("mnt"));
    fs::create_dir(&at).unwrap();
    ok(plimsoll(&["mkfs", image.to_str().unwrap(), "--size", "256MiB", "--journal", journal]));
    (dir, image, at)
}

fn fsck(image: &Path) {
    ok(plimsoll(&["fsck", image.to_str().unwrap()]));
}

#[test]
fn a_mount_does_what_a_directory_does() {
    let (dir, image, at) = setup("manylogs");
    let native = dir.path().join("native");
    fs::create_dir(&native).unwrap();
    let m = Mounted::new(&image, &at, &[]);
    let mut seed = 11u64;
    let mut below = |n: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % n
    };
    for step in 0..2000 {
        let (a, b) = (format!("f{}", below(8)), format!("f{}", below(8)));
        let (offset, len, what) = (below(100_000), below(30_000), below(10));
        let results = [&at, &native].map(|root| {
            let (a, b) = (root.join(&a), root.join(&b));
            let result = match what {
                0 => File::create(&a).map(drop),
                1 => fs::remove_file(&a),
                2 => fs::rename(&a, &b),
                3 => fs::hard_link(&a, &b),
                4 => OpenOptions::new().write(true).open(&a).and_then(|f| f.set_len(offset)),
                5 => File::open(&a).and_then(|f| f.sync_all()),
                6 => symlink(&b, &a),
                _ => OpenOptions::new()
                    .write(true)
                    .open(&a)
                    .and_then(|f| f.write_all_at(&vec![step as u8; len as usize], offset)),
            };
            let size = fs::symlink_metadata(&a).ok().map(|m| (m.is_file().then_some(m.size()), m.nlink(), m.mode()));
            (result.map_err(|e| e.raw_os_error()), size)
        });
        assert_eq!(results[0], results[1], "step {step}: {what} of {a}, {b}");
    }
    let content = |root: &Path| {
        let mut names: Vec<_> = fs::read_dir(root).unwrap().map(|e| e.unwrap().file_name()).collect();
        names.sort();
        names.into_iter().map(|n| (n.clone(), fs::read(root.join(n)).map_err(|e| e.raw_os_error()))).collect::<Vec<_>>()
    };
    let expected: Vec<_> = content(&native).into_iter().map(|(n, c)| (n, c.map_err(|_| ()))).collect();
    let found = |root: &Path| content(root).into_iter().map(|(n, c)| (n, c.map_err(|_| ()))).collect::<Vec<_>>();
    assert!(found(&at) == expected);
    m.unmount();
    fsck(&image);
    let m = Mounted::new(&image, &at, &["--read-only"]);
    assert!(found(&at) == expected);
    m.unmount();
}

/// Content that a user writes must not be a record of the file system: nobody can tell in advance how those begin.
#[test]
fn identity_seed_and_epochs_are_drawn() {
    let (_dir, image, at) = setup("manylogs");
    // The words of the superblock: identity, epoch, seed of the hashes of names.
    let words = || {
        let mut b = [0; 4096];
        File::open(&image).unwrap().read_exact_at(&mut b, 0).unwrap();
        [1, 10, 78].map(|i| u64::from_le_bytes(b[32 + i * 8..][..8].try_into().unwrap()))
    };
    let copy = image.with_extension("copy");
    fs::copy(&image, &copy).unwrap();
    Mounted::new(&image, &at, &[]).unmount();
    let [id, first, seed] = words();
    assert_ne!(id, seed);
    fs::copy(&copy, &image).unwrap();
    Mounted::new(&image, &at, &[]).unmount();
    assert_ne!(words()[1], first);
}

#[test]
fn what_was_synced_survives_kill_9_in_every_mode() {
    for journal in ["ordered", "data", "adaptive", "manylogs"] {
        let (_dir, image, at) = setup(journal);
        let m = Mounted::new(&image, &at, &["--threads", "2"]);
        let threads: Vec<_> = (0..4)
            .map(|t| {
                let at = at.clone();
                std::thread::spawn(move || {
                    for i in 0..10 {
                        let mut f = File::create(at.join(format!("{t}-{i}"))).unwrap();
                        f.write_all(&vec![t as u8 + 1; 3000 * (i + 1)]).unwrap();
                        f.sync_all().unwrap();
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|t| t.join().unwrap());
        m.kill();
        fsck(&image);
        let m = Mounted::new(&image, &at, &[]);
        for (t, i) in (0..4).flat_map(|t| (0..10).map(move |i| (t, i))) {
            assert_eq!(fs::read(at.join(format!("{t}-{i}"))).unwrap(), vec![t as u8 + 1; 3000 * (i + 1)]);
        }
        m.unmount();
        fsck(&image);
    }
}

/// Also by the guide's program. The kernel forwards neither `sync` nor `syncfs`.
#[test]
fn fs_sync_and_its_ioctl_make_all_files_durable() {
    let (dir, image, at) = setup("manylogs");
    let m = Mounted::new(&image, &at, &[]);
    let content = |i: usize| vec![i as u8 + 1; 3000 * (i + 1)];
    (0..10).for_each(|i| fs::write(at.join(i.to_string()), content(i)).unwrap());
    ok(plimsoll(&["fs", "sync", at.join("3").to_str().unwrap()]));
    m.kill();
    fsck(&image);
    let m = Mounted::new(&image, &at, &[]);
    (0..10).for_each(|i| assert!(fs::read(at.join(i.to_string())).unwrap() == content(i), "{i}"));
    let guide = include_str!("../../../docs/guides/fs.md");
    let program = guide.split_once("```python\n").unwrap().1.split_once("```").unwrap().0;
    ok(Command::new("python3").args(["-c", &program.replace("/mnt", at.to_str().unwrap())]).output().unwrap());
    m.kill();
    let m = Mounted::new(&image, &at, &["--read-only"]);
    assert_eq!(fs::read(at.join("log")).unwrap(), b"a record");
    m.unmount();
    for (path, why) in [(dir.path(), "isn't in a file system that"), (Path::new("/dev/null"), "neither a file nor")] {
        let refused = plimsoll(&["fs", "sync", path.to_str().unwrap()]);
        assert!(!refused.status.success() && String::from_utf8_lossy(&refused.stderr).contains(why), "{why}");
    }
}

/// The thread that waits for signals panics. The others would go on without it.
#[test]
#[cfg_attr(not(debug_assertions), ignore = "needs a build with debug assertions")]
fn a_panic_in_a_thread_ends_the_mount() {
    let (dir, image, at) = setup("manylogs");
    let trigger = dir.path().join("end");
    let asked = format!("unmount:{}", trigger.display());
    let mut command = Command::new(PLIMSOLL);
    command.arg("mount").args([&image, &at]).env("PLIMSOLL_TEST_PANIC", asked);
    let mut m = Mounted::with(&at, &mut command);
    let mut f = File::create(at.join("a")).unwrap();
    f.write_all(b"synced").unwrap();
    f.sync_all().unwrap();
    drop(f);
    fs::write(&trigger, b"").unwrap();
    rustix::process::kill_process(rustix::process::Pid::from_child(&m.child), rustix::process::Signal::TERM).unwrap();
    let end = Instant::now() + Duration::from_secs(30);
    let status = loop {
        match m.child.try_wait().unwrap() {
            Some(status) => break status,
            None if Instant::now() > end => {
                m.kill();
                panic!("the mount goes on");
            }
            None => std::thread::sleep(Duration::from_millis(10)),
        }
    };
    assert_eq!(status.signal(), Some(rustix::process::Signal::ABORT.as_raw()));
    ok(Command::new("umount").arg("-l").arg(&at).output().unwrap());
    let m = Mounted::new(&image, &at, &[]);
    assert_eq!(fs::read(at.join("a")).unwrap(), b"synced");
    m.unmount();
    fsck(&image);
}

/// A signal while a program stands in the file system is refused, and isn't the last one that counts. A second one takes the file system out of
/// the tree, though the program still has its file, and the process ends with that.
#[test]
fn a_signal_is_heard_after_an_unmount_was_refused() {
    for second_comes_at_once in [false, true] {
        let (dir, image, at) = setup("manylogs");
        let said = dir.path().join("said");
        let mut command = Command::new(PLIMSOLL);
        command.arg("mount").args([&image, &at]).stderr(File::create(&said).unwrap());
        let mut m = Mounted::with(&at, &mut command);
        let signal = |m: &Mounted| {
            rustix::process::kill_process(rustix::process::Pid::from_child(&m.child), rustix::process::Signal::TERM)
                .unwrap();
        };
        let is_mounted = || fs::read_to_string("/proc/self/mounts").unwrap().contains(at.to_str().unwrap());
        let mut open = File::create(at.join("a")).unwrap();
        open.write_all(b"written").unwrap();
        signal(&m);
        until("the refusal is said", || fs::read_to_string(&said).unwrap().contains("a second signal detaches"));
        assert!(is_mounted());
        if second_comes_at_once {
            signal(&m);
            until("it is detached", || !is_mounted());
            open.write_all(b" and more").unwrap();
            assert!(m.child.try_wait().unwrap().is_none(), "it serves who has a file open");
            drop(open);
        } else {
            drop(open);
            signal(&m);
        }
        assert!(m.child.wait().unwrap().success(), "{}", fs::read_to_string(&said).unwrap());
        assert!(!is_mounted());
        fsck(&image);
        let m = Mounted::new(&image, &at, &[]);
        let kept = if second_comes_at_once { "written and more" } else { "written" };
        assert_eq!(fs::read_to_string(at.join("a")).unwrap(), kept);
        m.unmount();
    }
}

#[test]
fn fio_verifies() {
    let (_dir, image, at) = setup("manylogs");
    let m = Mounted::new(&image, &at, &[]);
    let job = [
        "--name=v",
        "--size=16M",
        "--bs=4k-64k",
        "--rw=randwrite",
        "--verify=crc32c",
        "--fsync=32",
        "--numjobs=2",
        "--randseed=5",
    ];
    ok(Command::new("fio").args(job).arg(format!("--directory={}", at.display())).output().unwrap());
    m.unmount();
    fsck(&image);
}

#[test]
fn misuse_is_explained() {
    let (dir, image, at) = setup("data");
    let again = plimsoll(&["mkfs", image.to_str().unwrap()]);
    assert!(String::from_utf8_lossy(&again.stderr).contains("--force"));
    let m = Mounted::new(&image, &at, &["--journal", "ordered", "--anywhere", "*.wal"]);
    let bytes = fs::metadata(&image).unwrap().len();
    for args in [&["fsck"][..], &["mkfs", "--force"], &["mkfs", "--size", "1MiB"]] {
        let busy = plimsoll(&[args, &[image.to_str().unwrap()]].concat());
        assert!(String::from_utf8_lossy(&busy.stderr).contains("is it mounted, or a node's?"), "{args:?}");
    }
    assert_eq!(fs::metadata(&image).unwrap().len(), bytes);
    m.unmount();
    // Other systems' marks are farther in, or at the end.
    let foreign = dir.path().join("foreign");
    for at in [64 << 10, (64 << 20) - 4096] {
        let mut content = vec![0; 64 << 20];
        content[at..at + 8].copy_from_slice(b"_BHRfS_M");
        fs::write(&foreign, &content).unwrap();
        let refused = plimsoll(&["mkfs", foreign.to_str().unwrap(), "--size", "128MiB"]);
        assert!(String::from_utf8_lossy(&refused.stderr).contains("add --force"), "{at}");
        assert!(fs::read(&foreign).unwrap() == content, "nothing is changed");
    }
    let info: serde_json::Value =
        serde_json::from_str(&ok(plimsoll(&["fs", "info", image.to_str().unwrap(), "--json"]))).unwrap();
    assert_eq!(info["journal"], "data");
    let other = plimsoll(&["mount", image.to_str().unwrap(), at.to_str().unwrap(), "--journal", "manylogs"]);
    assert!(String::from_utf8_lossy(&other.stderr).contains("a single journal"));
    let empty = dir.path().join("empty");
    fs::write(&empty, vec![0; 1 << 20]).unwrap();
    assert!(!plimsoll(&["fsck", empty.to_str().unwrap()]).status.success());
}
