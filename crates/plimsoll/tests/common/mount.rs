//! Devices that misbehave as real ones do: a loop device, one whose reads, writes or flushes fail on demand, a full disk.

use super::ok;
use super::shaped::{Ended, until};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// True if this process may make loop devices and mounts. If not, a line is printed, and the caller must return.
pub fn may_mount() -> bool {
    let may = Path::new("/dev/fuse").exists() && rustix::process::geteuid().is_root();
    if !may {
        println!("ran without loop devices and mounts: they need /dev/fuse and root");
    }
    may
}

/// A block device over a file.
pub struct Loop {
    pub path: PathBuf,
}

impl Loop {
    pub fn over(file: &Path, options: &[&str]) -> Loop {
        let file = file.to_str().unwrap();
        let said = ok("losetup", &[&["--find", "--show", "--direct-io=on"], options, &[file]].concat());
        Loop { path: said.trim().into() }
    }

    /// Flush requests that the kernel has sent to it (Documentation/block/stat.rst, field 16).
    pub fn flushes(&self) -> u64 {
        let name = self.path.file_name().unwrap().to_str().unwrap();
        let stat = std::fs::read_to_string(format!("/sys/block/{name}/stat")).unwrap();
        stat.split_whitespace().nth(15).expect("Linux 5.5 or later").parse().unwrap()
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        // A test that failed may have broken it.
        let _ = Command::new("losetup").arg("-d").arg(&self.path).stderr(Stdio::null()).status();
    }
}

/// An empty file system of its own, in memory.
pub struct Tmpfs {
    pub path: PathBuf,
}

impl Tmpfs {
    pub fn at(path: PathBuf, size: &str) -> Tmpfs {
        std::fs::create_dir(&path).unwrap();
        ok("mount", &["-t", "tmpfs", "-o", &format!("size={size}"), "none", path.to_str().unwrap()]);
        Tmpfs { path }
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.path).status(); // likewise
    }
}

/// A block device that fails or waits on demand: nbdkit, nbdfuse and a loop device over a file.
pub struct Failing {
    pub device: Loop,
    dir: PathBuf,
    fuse: Child,
    nbdkit: Child,
}

impl Failing {
    pub fn new(dir: &Path) -> Failing {
        let dir = dir.join("failing");
        std::fs::create_dir(&dir).unwrap();
        let backing = dir.join("backing");
        std::fs::File::create(&backing).unwrap().set_len(64 << 20).unwrap();
        let d = dir.display();
        let fail = |what: &str| format!("if [ -e {d}/fail-{what} ]; then echo EIO failing on demand >&2; exit 1; fi");
        let hold = format!("while [ -e {d}/hold-flush ]; do : > {d}/held; sleep 0.05; done");
        // Every second read takes longer, by much.
        let odd = format!("if [ -e {d}/odd ]; then rm {d}/odd; sleep 0.1; else : > {d}/odd; fi");
        let uneven = format!("if [ -e {d}/fail-evenly ]; then {odd}; fi");
        let dd = "dd bs=1M status=none iflag=fullblock,count_bytes,skip_bytes oflag=seek_bytes";
        let nbdkit = Command::new("nbdkit")
            .args(["-f", "-t", "1", "-U"])
            .arg(dir.join("sock"))
            .args(["eval", "get_size=echo 67108864", "can_write=exit 0", "can_flush=exit 0", "can_fua=echo emulate"])
            .arg(format!("pread={}; {uneven}; {dd} if={d}/backing count=$3 skip=$4", fail("read")))
            .arg(format!("pwrite={}; {dd} of={d}/backing seek=$4 conv=notrunc", fail("write")))
            .arg(format!("flush={}; {hold}; exit 0", fail("flush")))
            .stderr(Stdio::null())
            .spawn()
            .expect("nbdkit (`make test` installs it)");
        let (sock, file) = (dir.join("sock"), dir.join("mnt/disk"));
        std::fs::create_dir(dir.join("mnt")).unwrap();
        wait_for(&sock);
        let uri = format!("nbd+unix:///?socket={}", sock.display());
        let fuse = Command::new("nbdfuse").arg(&file).arg(uri).spawn().expect("nbdfuse (`make test` installs it)");
        wait_for(&file);
        Failing { device: Loop::over(&file, &[]), dir, fuse, nbdkit }
    }

    /// Holds every flush until [`Failing::let_go`].
    pub fn hold_flushes(&self) {
        std::fs::write(self.dir.join("hold-flush"), "").unwrap();
    }

    /// True if a flush is held.
    pub fn is_holding(&self) -> bool {
        self.dir.join("held").exists()
    }

    /// Forgets that a flush was held, so that the next one is told.
    pub fn not_held(&self) {
        let _ = std::fs::remove_file(self.dir.join("held")); // none may have been
    }

    /// Ends what [`Failing::hold_flushes`] began.
    pub fn let_go(&self) {
        let _ = std::fs::remove_file(self.dir.join("hold-flush")); // it may have ended already
    }

    /// From now on every `read`, `write` or `flush` fails, or none does. With `evenly` every second read takes much longer.
    pub fn fail(&self, what: &str, fails: bool) {
        let file = self.dir.join(format!("fail-{what}"));
        if fails { std::fs::write(file, "").unwrap() } else { std::fs::remove_file(file).unwrap() }
    }
}

impl Drop for Failing {
    fn drop(&mut self) {
        self.let_go();
        // The daemon's end takes its mount with it; the loop device goes when the last user does.
        for child in [&mut self.fuse, &mut self.nbdkit] {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Block devices over copies of files, which record in one order what is written and flushed: nbdkit, nbdfuse and loop devices.
pub struct Recorder {
    pub devices: Vec<Loop>,
    dir: tempfile::TempDir,
    fuses: Vec<Ended>,
    nbdkit: Ended,
}

/// A write or a flush that reached a device.
pub struct Recorded {
    pub device: String,
    /// Offset and bytes; `None` for a flush.
    pub written: Option<(u64, Vec<u8>)>,
}

impl Recorder {
    /// Over copies of these files of `dir`, whose sizes are multiples of 512.
    pub fn over(dir: &Path, names: &[&str]) -> Recorder {
        let own = tempfile::tempdir().unwrap();
        let d = own.path().display();
        std::fs::create_dir(own.path().join("log")).unwrap();
        std::fs::write(own.path().join("count"), "0").unwrap();
        for name in names {
            std::fs::copy(dir.join(name), own.path().join(name)).unwrap();
        }
        // One request at a time, so that the count needs no lock.
        let next = format!("n=$(($(cat {d}/count) + 1)); echo $n > {d}/count");
        let dd = "dd bs=1M status=none iflag=fullblock,count_bytes,skip_bytes oflag=seek_bytes";
        let nbdkit = Command::new("nbdkit")
            .args(["-f", "-t", "1", "-U"])
            .arg(own.path().join("sock"))
            .args(["eval", "open=echo $3", "can_write=exit 0", "can_flush=exit 0", "can_fua=echo emulate"])
            .arg(format!("get_size=stat -c %s {d}/$2"))
            .arg(format!("pread={dd} if={d}/$2 count=$3 skip=$4"))
            .arg(format!(
                "pwrite={next}; {dd} of={d}/log/$n:$2:$4; {dd} if={d}/log/$n:$2:$4 of={d}/$2 seek=$4 conv=notrunc"
            ))
            .arg(format!("flush={next}; : > {d}/log/$n:$2:flush"))
            .stderr(Stdio::null())
            .spawn()
            .expect("nbdkit (`make test` installs it)");
        let mut recorder = Recorder { devices: Vec::new(), fuses: Vec::new(), nbdkit: Ended(nbdkit), dir: own };
        let dir = recorder.dir.path();
        wait_for(&dir.join("sock"));
        for name in names {
            let (at, uri) =
                (dir.join(format!("mnt-{name}")), format!("nbd+unix:///{name}?socket={}", dir.join("sock").display()));
            std::fs::create_dir(&at).unwrap();
            let fuse = Command::new("nbdfuse").arg(at.join("disk")).arg(uri).spawn();
            recorder.fuses.push(Ended(fuse.expect("nbdfuse (`make test` installs it)")));
            wait_for(&at.join("disk"));
            recorder.devices.push(Loop::over(&at.join("disk"), &[]));
        }
        recorder
    }

    /// All that reached the devices so far, in its order.
    pub fn recorded(&self) -> Vec<Recorded> {
        let entries = std::fs::read_dir(self.dir.path().join("log")).unwrap();
        let mut all: Vec<(u64, Recorded)> = entries
            .map(|entry| {
                let (path, name) = entry.map(|e| (e.path(), e.file_name().into_string().unwrap())).unwrap();
                let [n, device, at] = name.split(':').collect::<Vec<_>>()[..] else { panic!("{name}") };
                let written = at.parse().ok().map(|at: u64| (at, std::fs::read(&path).unwrap()));
                (n.parse().unwrap(), Recorded { device: device.into(), written })
            })
            .collect();
        all.sort_by_key(|(n, _)| *n);
        all.into_iter().map(|(_, r)| r).collect()
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        // The loop devices first: what is below must not wait for what is above.
        self.devices.clear();
        for child in self.fuses.iter_mut().chain([&mut self.nbdkit]) {
            let _ = child.0.kill();
            let _ = child.0.wait();
        }
    }
}

/// A volume of a node, mounted: NBD to a file by nbdfuse, a loop device over it, a file system.
pub struct Mounted {
    pub dir: PathBuf,
    /// Ended before the loop device goes, as it always was: what is below must not wait for what is above.
    fuse: Ended,
    device: Option<Loop>,
}

impl Mounted {
    /// With a new file system of this kind: `ext4` or `xfs`.
    pub fn new(dir: &Path, uri: &str, kind: &str) -> Mounted {
        let mounted = Mounted::attached(dir, uri);
        let device = mounted.device();
        match kind {
            "ext4" => ok("mkfs.ext4", &["-q", "-E", "lazy_itable_init=1,lazy_journal_init=1", device]),
            other => ok(&format!("mkfs.{other}"), &["-q", device]),
        };
        mounted.mount();
        mounted
    }

    /// A block device only: nothing is written to it, and it isn't mounted.
    pub fn attached(dir: &Path, uri: &str) -> Mounted {
        let (at, file) = (dir.join("mnt"), dir.join("nbd/vol"));
        std::fs::create_dir(&at).unwrap();
        std::fs::create_dir(dir.join("nbd")).unwrap();
        let fuse = Command::new("nbdfuse").arg(&file).arg(uri).spawn().expect("nbdfuse (`make test` installs it)");
        let mut mounted = Mounted { dir: at, fuse: Ended(fuse), device: None };
        until("nbdfuse shows the volume", || file.exists());
        mounted.device = Some(Loop::over(&file, &[]));
        mounted
    }

    /// The block device's path.
    pub fn device(&self) -> &str {
        self.device.as_ref().expect("it has one from the beginning").path.to_str().unwrap()
    }

    fn mount(&self) {
        ok("mount", &[self.device(), self.dir.to_str().unwrap()]);
    }

    /// Everything written, and nothing left in memory.
    pub fn remount(&self) {
        unmount(&self.dir);
        self.mount();
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.dir).stderr(Stdio::null()).status(); // it may not be mounted
        let _ = Command::new("umount").arg("-l").arg(self.dir.with_file_name("nbd/vol")).stderr(Stdio::null()).status();
        let _ = self.fuse.0.kill();
        let _ = self.fuse.0.wait();
    }
}

/// Unmounts a file system that nobody uses any more. A test beside this one that starts a program holds copies of this
/// test's files until that program runs (close-on-exec closes them no sooner), so a busy mount is waited for.
pub fn unmount(dir: &Path) {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let ended = Command::new("umount").arg(dir).output().unwrap();
        if ended.status.success() {
            return;
        }
        let said = String::from_utf8_lossy(&ended.stderr);
        assert!(said.contains("busy") && Instant::now() < deadline, "umount {dir:?}: {said}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Waits until nobody has a device that this process had: of its file, too, others may have copies, with its lock.
pub fn await_unlocked(device: &Path) {
    use rustix::fs::{FlockOperation, flock};
    let file = std::fs::File::open(device).unwrap();
    until("the device is unlocked", || flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok());
    // Said, as closing this file isn't enough either.
    flock(&file, FlockOperation::Unlock).unwrap();
}

fn wait_for(path: &Path) {
    until(&format!("{} didn't come", path.display()), || path.exists());
}
