//! QEMU's quorum driver over three nodes, unmodified: a busy read is answered by the next replica, and no old data are read
//! after a node or its link to the writer was lost.

mod common;

use common::client::Client;
use common::noise::Noise;
use common::{Server, config, ok, run};
use plimsoll_testkit::until;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Stdio};
use std::time::Duration;

const DISK: &str = r#"{ file = "disk.img", size = "64GiB", model = "hdd-160g-7200" }
depth = 4
profile = "disk.profile""#;
const PLAIN: &str = r#"{ file = "disk.img", size = "64MiB" }"#;

fn image(dirs: &[tempfile::TempDir], export: &str) -> String {
    let child = |(i, d): (usize, &tempfile::TempDir)| {
        let path = d.path().join("nbd.sock");
        format!(
            r#"{{"driver":"nbd","export":"{export}","server":{{"type":"unix","path":"{}"}},"node-name":"n{i}"}}"#,
            path.display()
        )
    };
    let children: Vec<String> = dirs.iter().enumerate().map(child).collect();
    format!(
        r#"json:{{"driver":"quorum","read-pattern":"fifo","vote-threshold":1,"children":[{}]}}"#,
        children.join(",")
    )
}

/// A qemu-io that stays connected, one command after another.
struct QemuIo {
    child: Child,
    lines: std::sync::mpsc::Receiver<String>,
}

impl QemuIo {
    fn start(image: &str) -> QemuIo {
        let path = format!("/usr/bin:{}", std::env::var("PATH").unwrap_or_default());
        // Both of its streams in one, in the order in which it wrote.
        let mut child = std::process::Command::new("sh")
            .args(["-c", "exec stdbuf -oL qemu-io \"$0\" 2>&1", image])
            .env("PATH", path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a shell");
        let (send, lines) = std::sync::mpsc::channel();
        let out = child.stdout.take().unwrap();
        std::thread::spawn(move || BufReader::new(out).lines().for_each(|l| drop(send.send(l.unwrap_or_default()))));
        QemuIo { child, lines }
    }

    /// All that was said to a read or write: up to its last line, which counts operations, or says that it failed.
    fn say(&mut self, command: &str) -> String {
        writeln!(self.child.stdin.as_mut().unwrap(), "{command}").unwrap();
        let mut said = String::new();
        loop {
            let line = self.lines.recv_timeout(Duration::from_secs(30));
            let line = line.unwrap_or_else(|e| panic!("{command}: {e}: {said}"));
            said.push_str(&line);
            said.push('\n');
            if line.contains(" ops; ") || line.contains("read failed") || line.contains("write failed") {
                return said;
            }
        }
    }

    fn read(&mut self, pattern: u8, offset: &str) -> String {
        self.say(&format!("read -P {pattern} {offset} 4k"))
    }

    fn write(&mut self, pattern: u8, offset: &str) -> String {
        self.say(&format!("write -P {pattern} {offset} 4k"))
    }
}

impl Drop for QemuIo {
    fn drop(&mut self) {
        let _ = self.child.kill(); // it may have ended
        let _ = self.child.wait();
    }
}

fn three(device: &str, size: &str) -> (Vec<tempfile::TempDir>, Vec<Server>) {
    let dirs: Vec<tempfile::TempDir> = (0..3).map(|_| tempfile::tempdir().unwrap()).collect();
    let profiled = dirs.iter().filter(|_| device.contains("profile"));
    profiled.for_each(|d| common::write_profile(d.path(), "hdd-160g-7200", "disk.profile"));
    let nodes = dirs.iter().map(|d| Server::start(d.path(), &config(device, size))).collect();
    (dirs, nodes)
}

fn behind(node: &Server) -> String {
    let json: serde_json::Value = serde_json::from_str(&node.cli(&["volume", "show", "vol", "--json"])).unwrap();
    json["behind"].as_str().unwrap().to_string()
}

#[test]
fn a_busy_read_is_answered_by_the_next_replica_and_writes_are_never_refused() {
    let (dirs, nodes) = three(DISK, "16GiB");
    let quorum = image(&dirs, "vol?deadline=300ms&busy=error&replica=write");
    let seed = ok("qemu-io", &["-c", "write -P 7 1M 4k", "-c", "flush", &quorum]);
    assert!(seed.contains("wrote 4096/4096"), "{seed}");
    // Nodes that can be told apart: each has its own word beside, written past the quorum.
    for (i, node) in nodes.iter().enumerate() {
        let mut c = Client::connect(&node.socket(), "vol").unwrap();
        // The drives' own caches must not have it.
        c.write(2 << 30, &[i as u8 + 1; 8192]).unwrap().unwrap();
        c.flush().unwrap().unwrap();
        for n in 0..40u64 {
            c.read((3 << 30) + (n << 24), 1 << 20).unwrap().unwrap();
        }
    }
    let mut q = QemuIo::start(&quorum);
    assert!(q.read(1, "2G").contains("read 4096/4096"), "the first answers while it's free");
    // A second's queue in the first node: it refuses.
    let _noise = Noise::start(&nodes[0], 150);
    let said = q.read(2, "2147487744");
    let held = [1, 3].map(|p| !q.read(p, "2147487744").contains("Pattern"));
    assert!(said.contains("read 4096/4096") && !said.contains("Pattern"), "the second answers, not {held:?}: {said}");
    let said = q.read(7, "1M");
    assert!(said.contains("read 4096/4096") && !said.contains("Pattern"), "{said}");
    let said = q.write(9, "1M");
    assert!(said.contains("wrote 4096/4096"), "a promise refuses no write: {said}");
    let metrics = nodes[0].cli(&["volume", "show", "vol"]);
    assert!(!metrics.contains(" 0 busy"), "{metrics}");
    drop(q);
}

#[test]
fn a_replica_that_missed_writes_answers_reads_with_errors_until_it_is_resynced() {
    let (dirs, mut nodes) = three(PLAIN, "16MiB");
    let quorum = image(&dirs, "vol?replica=write");
    let mut q = QemuIo::start(&quorum);
    assert!(q.write(0x41, "0").contains("wrote"));
    let good = |said: &str| said.contains("read 4096/4096") && !said.contains("Pattern");
    assert!(good(&q.read(0x41, "0")));
    // The first node dies and misses a write; QEMU takes it for written.
    nodes.remove(0).kill();
    assert!(q.write(0x77, "0").contains("wrote 4096/4096"));
    nodes.insert(0, Server::start(dirs[0].path(), &config(PLAIN, "16MiB")));
    assert_eq!(behind(&nodes[0]), "unclean stop");
    // QEMU connects again by itself, and would read the old data.
    let connected = || {
        let json: serde_json::Value =
            serde_json::from_str(&nodes[0].cli(&["volume", "show", "vol", "--json"])).unwrap();
        json["connections"].as_u64().unwrap() > 0
    };
    until("QEMU's coming back", || {
        let said = q.read(0x77, "0");
        assert!(good(&said), "old data: {said}");
        connected()
    });
    (0..20).for_each(|_| assert!(good(&q.read(0x77, "0")), "old data"));
    let mut old = Client::connect(&nodes[0].socket(), "vol").unwrap();
    assert_eq!(old.read(0, 512).unwrap().unwrap(), [0x41; 512], "it does hold old data");
    drop(old);
    let uri = |i: usize| format!("nbd+unix:///vol?socket={}/nbd.sock", dirs[i].path().display());
    let said = nodes[0].cli(&["volume", "resync", "vol", "--replica", &uri(0), "--from", &uri(1)]);
    assert!(said.contains("copied"), "{said}");
    assert_eq!(behind(&nodes[0]), "no");
    assert!(good(&q.read(0x77, "0")));
    let mut new = Client::connect(&nodes[0].socket(), "vol?replica=read").unwrap();
    assert_eq!(new.read(0, 512).unwrap().unwrap(), [0x77; 512]);
    // QEMU's end without a word may leave a write in one replica only: all are told apart from those that are sure.
    drop(q);
    until("the loss", || nodes.iter().all(|n| behind(n) == "writer lost"));
    let refused = run("qemu-io", &["-c", "read 0 4k", &quorum]);
    let text = format!("{}{}", String::from_utf8_lossy(&refused.stdout), String::from_utf8_lossy(&refused.stderr));
    assert!(text.contains("read failed"), "{text}");
    nodes[1].cli(&["volume", "resync", "vol", "--trust"]);
    for i in [0, 2] {
        nodes[i].cli(&["volume", "resync", "vol", "--replica", &uri(i), "--from", &uri(1)]);
    }
    assert!(good(&ok("qemu-io", &["-c", "read -P 119 0 4k", &quorum])));
}
