//! Disks of our own for tests: loop devices, also over a modelled disk that serves one read at a time, and agents in other processes.
#![allow(dead_code)] // each test file uses its own part

use plimsoll_host::agent::{Access, Agent, Change, Handout, TICK, Wanted};
use plimsoll_testkit::until;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;

/// Runs a program that must succeed; what it printed.
pub fn run(program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).output().unwrap_or_else(|e| panic!("{program}: {e}"));
    assert!(output.status.success(), "{program} {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_string()
}

/// Variables of a process that [`as_process`] starts: its role, and the test's folder.
pub const ROLE: &str = "PLIMSOLL_HOST_TEST_ROLE";
pub const WHERE: &str = "PLIMSOLL_HOST_TEST_DIR";

/// This test program again, as another process that runs its test `role`.
pub fn as_process(role: &str, dir: &Path) -> Command {
    // Nobody can read it where it's built. Another process writes it: a file that this one had open for writing is busy ("Text file
    // busy") for as long as a test beside this one starts a program.
    let copy = dir.join("role");
    if !copy.exists() {
        run("cp", &[std::env::current_exe().unwrap().to_str().unwrap(), copy.to_str().unwrap()]);
        std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    let mut program = Command::new(copy);
    program.args(["--exact", "role", "--nocapture", "--test-threads=1"]).env(ROLE, role).env(WHERE, dir);
    program.current_dir("/").stdin(Stdio::null());
    program
}

/// A loop device; detached in the end.
pub struct Loop(pub String);

impl Loop {
    pub fn over(file: &Path) -> Loop {
        Loop(run("losetup", &["--find", "--show", "--direct-io=on", file.to_str().unwrap()]))
    }

    /// Over a fresh file.
    pub fn new(dir: &Path, bytes: u64) -> Loop {
        let file = dir.join("disk");
        File::create(&file).unwrap().set_len(bytes).unwrap();
        Loop::over(&file)
    }

    pub fn name(&self) -> &str {
        self.0.trim_start_matches("/dev/")
    }

    /// For direct I/O.
    pub fn open(&self) -> File {
        direct(Path::new(&self.0))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["--detach", &self.0]).status();
    }
}

/// Of open(2): crates that share this file don't all have the C library's names.
const O_DIRECT: i32 = if cfg!(target_arch = "aarch64") { 0o200000 } else { 0o40000 };

/// A file for direct I/O.
pub fn direct(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).custom_flags(O_DIRECT).open(path).unwrap()
}

/// Blocks for direct I/O.
#[repr(C, align(4096))]
pub struct Blocks(pub [u8; 4096]);

/// A disk that serves one request at a time, each read in a fixed time: nbdkit's memory behind a delay, mounted by nbdfuse, with an ext4 in it.
pub struct Modelled {
    mounted: PathBuf,
    pub disk: Option<Loop>,
    fuse: Child,
    nbdkit: Child,
    mount: PathBuf,
}

impl Modelled {
    pub fn start(dir: &Path, megabytes: u32, read_ms: u32) -> Modelled {
        let (socket, fuse_dir, mounted) = (dir.join("nbd.sock"), dir.join("fuse"), dir.join("fs"));
        for d in [&fuse_dir, &mounted] {
            std::fs::create_dir(d).unwrap();
        }
        let mut nbdkit = Command::new("nbdkit");
        nbdkit.args(["--foreground", "--exit-with-parent", "--filter=noparallel", "--filter=delay", "--unix"]);
        nbdkit.arg(&socket).arg("memory").arg(format!("{megabytes}M")).arg(format!("rdelay={read_ms}ms"));
        let nbdkit = nbdkit.arg("serialize=all-requests").stdin(Stdio::null()).spawn().expect("nbdkit is in test-deps");
        until("nbdkit listens", || socket.exists());
        let mount = fuse_dir.join("nbd");
        let mut fuse = Command::new("nbdfuse");
        let fuse = fuse.arg(&mount).arg("--unix").arg(&socket).spawn().expect("nbdfuse is in test-deps");
        until("nbdfuse mounts", || mount.metadata().is_ok_and(|m| m.len() > 0));
        let disk = Loop::over(&mount);
        run("mkfs.ext4", &["-q", "-E", "nodiscard,lazy_itable_init=1", "-O", "^has_journal", &disk.0]);
        run("mount", &["-o", "noatime", &disk.0, mounted.to_str().unwrap()]);
        Modelled { mounted, disk: Some(disk), fuse, nbdkit, mount }
    }

    pub fn folder(&self) -> &Path {
        &self.mounted
    }
}

impl Drop for Modelled {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.mounted).status();
        drop(self.disk.take());
        let _ = Command::new("fusermount3").args(["-u", "-z"]).arg(self.mount.parent().unwrap()).status();
        let _ = Command::new("umount").arg("--lazy").arg(&self.mount).stderr(Stdio::null()).status();
        for child in [&mut self.fuse, &mut self.nbdkit] {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// An agent in this process, ticking.
pub struct Ticking {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<(Agent, Vec<Change>)>>,
    _handout: Handout,
    pub socket: PathBuf,
}

impl Ticking {
    pub fn start(dir: &Path, wanted: Wanted, access: Access) -> Ticking {
        let mut agent = Agent::start(wanted).unwrap_or_else(|e| panic!("{e}"));
        let socket = dir.join("host.sock");
        let (states, notice) = agent.shared().unwrap();
        let handout = Handout::listen(&socket, access, states, notice).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let ended = stop.clone();
        let thread = std::thread::spawn(move || {
            let mut changes = Vec::new();
            while !ended.load(Relaxed) {
                changes.extend(agent.tick());
                std::thread::sleep(TICK);
            }
            (agent, changes)
        });
        Ticking { stop, thread: Some(thread), _handout: handout, socket }
    }

    pub fn stop(mut self) -> (Agent, Vec<Change>) {
        self.stop.store(true, Relaxed);
        self.thread.take().unwrap().join().unwrap()
    }
}

impl Drop for Ticking {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
    }
}

/// Direct reads without pause in several threads, until it's dropped.
pub struct Noise {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<u64>>,
}

impl Noise {
    pub fn start(disk: &Loop, threads: u64, span: u64) -> Noise {
        let stop = Arc::new(AtomicBool::new(false));
        let threads = (0..threads)
            .map(|t| {
                let (file, stop) = (disk.open(), stop.clone());
                std::thread::spawn(move || {
                    let (mut block, mut n) = (Box::new(Blocks([0; 4096])), 0);
                    while !stop.load(Relaxed) {
                        let at = (t * 7919 + n * 104_729) % (span / 4096) * 4096;
                        file.read_exact_at(&mut block.0, at).unwrap();
                        n += 1;
                    }
                    n
                })
            })
            .collect();
        Noise { stop, threads }
    }

    /// Reads done.
    pub fn stop(mut self) -> u64 {
        self.stop.store(true, Relaxed);
        self.threads.drain(..).map(|t| t.join().unwrap()).sum()
    }
}

impl Drop for Noise {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        self.threads.drain(..).for_each(|t| drop(t.join()));
    }
}
