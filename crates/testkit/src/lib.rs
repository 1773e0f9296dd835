//! Parts that the tests of several crates share: waits for a state, free ports, libraries that cargo doesn't build for tests, short
//! fuzzing runs. A dependency of tests only.
//!
//! Parts that one crate's tests share are in its `tests/common`: a node of one's own in `crates/plimsoll`, servers under the shim in
//! `crates/shape-shim`, disks with agents in `crates/host`. Losses of power under a layer are simulated by `plimsoll_stack::sim`.

pub mod fuzz;

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Longest wait: longer than a busy machine needs.
const PATIENCE: Duration = Duration::from_secs(60);
/// Time between two looks. Nothing tells of a change, and many looks are programs of their own.
const PAUSE: Duration = Duration::from_millis(10);

/// Waits until it holds.
///
/// # Panics
/// If it doesn't within a minute; `what` is the state that was waited for.
#[track_caller]
pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
        std::thread::sleep(PAUSE);
    }
}

/// The same, while the thread's other tasks go on.
///
/// # Panics
/// As [`until`].
pub async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
        tokio::time::sleep(PAUSE).await;
    }
}

/// Runs a future to its end on this thread, in a runtime of its own.
pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime").block_on(future)
}

/// Takes a lease on a file that may be closed just now, and ends with its input.
const LEASE: &str = "
import fcntl, os, signal, sys, time
signal.signal(signal.SIGIO, lambda *_: None)
file, begun = os.open(sys.argv[1], os.O_RDWR), time.monotonic()
while True:
    try:
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        break
    except BlockingIOError:
        if time.monotonic() > begun + 30:
            raise
        time.sleep(0.01)
print('held', flush=True)
sys.stdin.read()
";

/// A file whose opening hangs, as that of a device that doesn't answer: a process has a lease on it (fcntl(2)), for 45 s at most.
pub struct HeldOpen(Child);

impl HeldOpen {
    /// Of a file that nobody has open, once the kernel has closed it.
    ///
    /// # Panics
    /// If there is no Python, or the file system knows no leases.
    pub fn of(path: &Path) -> HeldOpen {
        let mut python = Command::new("python3");
        python.args(["-c", LEASE]).arg(path).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = python.spawn().expect("python3 runs");
        let mut said = String::new();
        BufReader::new(child.stdout.take().expect("piped")).read_line(&mut said).expect("read");
        assert_eq!(said, "held\n", "no lease on {}", path.display());
        HeldOpen(child)
    }
}

impl Drop for HeldOpen {
    fn drop(&mut self) {
        let _ = self.0.kill(); // it may have ended by itself
        let _ = self.0.wait();
    }
}

/// Returns a free port of the loopback address, another one at each call.
///
/// It is below the ports that the kernel gives to outgoing connections, so that none of those takes it before the server does. Two test
/// programs begin at different ports.
///
/// # Panics
/// If no port is free.
pub fn free_port() -> u16 {
    const FIRST: u32 = 12_000;
    const COUNT: u32 = 18_000;
    static NEXT: AtomicU32 = AtomicU32::new(0);
    loop {
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        assert!(n < COUNT, "no port is free");
        let port = (FIRST + (std::process::id().wrapping_mul(11_123).wrapping_add(n)) % COUNT) as u16;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

/// Builds a package's library and returns the folder that it is in. Cargo builds no cdylib for tests.
///
/// # Panics
/// If it doesn't build.
pub fn library_folder(package: &str) -> PathBuf {
    let test = std::env::current_exe().expect("a test program");
    let folder = test.ancestors().nth(2).expect("it lies in deps, which lies beside the libraries");
    let target = folder.parent().expect("the target directory");
    let mut build = Command::new(env!("CARGO"));
    // Named, as a build for coverage has another target directory than cargo would take.
    build.args(["build", "--quiet", "--package", package, "--target-dir"]).arg(target);
    build.current_dir(env!("CARGO_MANIFEST_DIR"));
    if folder.ends_with("release") {
        build.arg("--release");
    }
    assert!(build.status().expect("cargo").success(), "{package} doesn't build");
    folder.to_path_buf()
}

/// Returns the memory that a process has resident, in bytes.
///
/// # Panics
/// If it doesn't run.
pub fn resident_bytes(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let kib = status.lines().find_map(|l| l.strip_prefix("VmRSS:")).and_then(|l| l.split_whitespace().next());
    kib.and_then(|kib| kib.parse::<u64>().ok()).expect("a number of KiB") << 10
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_ends_with_its_state() {
        let mut looks = 0;
        until("three looks", || {
            looks += 1;
            looks == 3
        });
        block_on(eventually("two more", || {
            looks += 1;
            looks == 5
        }));
    }

    #[test]
    fn ports_differ_and_are_free() {
        let ports = [free_port(), free_port(), free_port()];
        assert!(ports[0] != ports[1] && ports[1] != ports[2], "{ports:?}");
        let taken: Vec<_> = ports.iter().map(|p| TcpListener::bind(("127.0.0.1", *p)).expect("free")).collect();
        assert!(!taken.iter().any(|t| t.local_addr().expect("bound").port() == free_port()));
    }

    #[test]
    fn this_process_has_memory() {
        assert!(resident_bytes(std::process::id()) > 1 << 20);
    }
}
