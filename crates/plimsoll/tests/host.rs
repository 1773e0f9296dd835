//! `plimsoll host` and its commands on a loop device that is read, as root: the examples of their help, on this device.

mod common;
use common::mount::Loop;
use common::ok;
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const BINARY: &str = env!("CARGO_BIN_EXE_plimsoll");

/// Direct reads without pause, until it's dropped.
struct Reads(Arc<AtomicBool>, Option<std::thread::JoinHandle<()>>);

#[repr(C, align(4096))]
struct Block([u8; 4096]);

impl Reads {
    fn start(disk: &Path) -> Reads {
        const O_DIRECT: i32 = rustix::fs::OFlags::DIRECT.bits() as i32;
        let file = std::fs::OpenOptions::new().read(true).custom_flags(O_DIRECT).open(disk).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let ended = stop.clone();
        let thread = std::thread::spawn(move || {
            let (mut block, mut n) = (Box::new(Block([0; 4096])), 0);
            while !ended.load(Ordering::Relaxed) {
                file.read_exact_at(&mut block.0, n * 7919 % 4096 * 4096).unwrap();
                n += 1;
            }
        });
        Reads(stop, Some(thread))
    }
}

impl Drop for Reads {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
        self.1.take().map(std::thread::JoinHandle::join);
    }
}

struct Ended(Child);
impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn an_agent_is_asked_checked_and_ended() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("disk");
    std::fs::File::create(&file).unwrap().set_len(16 << 20).unwrap();
    let disk = Loop::over(&file, &[]);
    let name = disk.path.file_name().unwrap().to_str().unwrap();
    let socket = dir.path().join("host.sock");
    let at = socket.to_str().unwrap();

    let alone = Command::new(BINARY).args(["host", "status", "--socket", at]).output().unwrap();
    let said = String::from_utf8_lossy(&alone.stderr).into_owned();
    assert!(!alone.status.success() && said.contains("`plimsoll host` starts one"), "{said}");

    let mut agent = Command::new(BINARY);
    agent.args(["host", "--disk", name, "--socket", at, "--group", "0"]).stdout(Stdio::piped());
    let mut agent = Ended(agent.spawn().unwrap());
    let mut line = String::new();
    BufReader::new(agent.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.contains(&format!("watches {name}")), "{line}");
    let again = Command::new(BINARY).args(["host", "--disk", name, "--socket", at]).output().unwrap();
    assert!(String::from_utf8_lossy(&again.stderr).contains("another agent listens here"), "{again:?}");

    let reads = Reads::start(&disk.path);
    let json = |arguments: &[&str]| -> Value { serde_json::from_str(&ok(BINARY, arguments)).unwrap() };
    let mut waited = 0;
    while json(&["host", "status", "--json", "--socket", at])["disks"][0]["read_4kib_us"].is_null() {
        waited += 1;
        assert!(waited < 3000, "nothing is learned");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    assert!(ok(BINARY, &["host", "status", "--socket", at]).contains(name));

    let report = json(&["host", "check", name, "--for", "1s", "--deadline", "1us", "--deadline", "1m", "--json"]);
    let number = |value: &Value| value.as_u64().unwrap();
    let (short, long) = (&report["deadlines"][0], &report["deadlines"][1]);
    let all = number(&report["errors"]["reads"]);
    assert!(all > 0, "{report}");
    assert_eq!((number(&short["refused"]), number(&short["late"])), (all, all), "{report}");
    assert_eq!((number(&long["refused"]), number(&long["late"])), (0, 0), "{report}");
    assert!(ok(BINARY, &["host", "check", name, "--for", "200ms"]).contains("NEEDLESS OF IN TIME"));

    let picture = json(&["host", "top", "--once", "--every", "500ms", "--json"]);
    let mine = std::process::id();
    let rows = picture["owners"].as_array().unwrap();
    let row = rows.iter().find(|r| r["disk"] == name && r["process"] == mine);
    assert!(row.is_some_and(|r| number(&r["requests"]) > 0), "{picture}");
    assert!(ok(BINARY, &["host", "top", "--once", "--every", "200ms"]).starts_with("DISK"));
    drop(reads);

    let pid = rustix::process::Pid::from_child(&agent.0);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert!(agent.0.wait().unwrap().success());
    assert!(!socket.exists(), "the socket is removed");
}
