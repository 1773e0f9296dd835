//! Gateways of a fake Ceph cluster (`crates/rbd/examples/fake_ceph.rs`): its folder, an image, and nodes that serve it.

use super::{Server, config, run};
use serde_json::Value;
use std::fs::File;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

/// A folder with a cluster and an image, and a node's configuration.
pub struct Fake {
    pub dir: tempfile::TempDir,
}

impl Fake {
    /// Cargo builds examples for tests; they lie beside the tests' own folder.
    pub fn new(bytes: u64) -> Fake {
        let exe = std::env::current_exe().unwrap();
        let library = exe.ancestors().nth(2).unwrap().join("examples/libfake_ceph.so");
        assert!(library.exists(), "{} is missing: `cargo build --workspace --examples` makes it", library.display());
        let dir = tempfile::tempdir().unwrap();
        for name in ["librados.so.2", "librbd.so.1"] {
            symlink(&library, dir.path().join(name)).unwrap();
        }
        std::fs::write(dir.path().join("ceph.conf"), "").unwrap();
        let fake = Fake { dir };
        File::create(fake.image()).unwrap().set_len(bytes).unwrap();
        fake
    }

    pub fn image(&self) -> PathBuf {
        self.dir.path().join("pool.image")
    }

    pub fn control(&self, lines: &str) {
        std::fs::write(self.dir.path().join("control"), lines).unwrap();
    }

    pub fn text(&self, more: &str) -> String {
        let folder = self.dir.path().display();
        let device = format!(
            "{{ rbd = \"pool/image\", conf = \"{folder}/ceph.conf\", libraries = \"{folder}\", format = true{more} }}"
        );
        // What the cluster's maps say is another test's.
        config(&device, "4MiB").replace("[[tenant]]", "sched = \"noop\"\n[[tenant]]")
    }

    pub fn start(&self) -> Server {
        Server::start(self.dir.path(), &self.text(""))
    }

    /// Errors, warnings and notes.
    pub fn check(&self, text: &str) -> [String; 3] {
        let file = self.dir.path().join("checked.toml");
        std::fs::write(&file, text).unwrap();
        let checked = run(env!("CARGO_BIN_EXE_plimsoll"), &["check", file.to_str().unwrap(), "--json"]);
        let checked: Value = serde_json::from_slice(&checked.stdout).unwrap();
        ["errors", "warnings", "notes"].map(|kind| checked[kind].to_string())
    }
}

/// Both gateways have a pool of their own, and are to have `p`.
pub fn gateway(fake: &Fake, dir: &Path) -> Server {
    gateway_with(fake, dir, "")
}

/// The same, with more lines for `p`.
pub fn gateway_with(fake: &Fake, dir: &Path, lines: &str) -> Server {
    // Without a cache it doesn't matter how long an owner's lease is, and takes by force wait for less.
    let short = [("PLIMSOLL_TEST_LEASE_MS", "2000")];
    let environment = if lines.is_empty() { &short[..] } else { &[] };
    Server::try_start_with(dir, &gateway_text(fake, lines), environment).expect("the node starts")
}

/// Its configuration.
pub fn gateway_text(fake: &Fake, lines: &str) -> String {
    let own = "[[pool]]\nname = \"own\"\ndevice = { null = true, size = \"64MiB\" }\n[[pool]]\nname = \"p\"";
    let text = fake.text("").replacen("[[pool]]\nname = \"p\"", own, 1);
    text.replacen("[[tenant]]", &format!("{lines}[[tenant]]"), 1)
}

/// A cache of `p` in a mode.
pub fn cache(mode: &str) -> String {
    format!("[pool.cache]\nfile = \"fast.img\"\ndevice_size = \"64MiB\"\nmode = \"{mode}\"\n")
}

/// True if all threads of a node have stopped. The signal is sent; each thread stops when it comes to it.
pub fn has_stopped(server: &Server) -> bool {
    let has_stopped = |task: std::io::Result<std::fs::DirEntry>| {
        let status = std::fs::read_to_string(task.unwrap().path().join("status")).unwrap_or_default();
        status.lines().any(|l| l.starts_with("State:") && l.contains("(stopped)"))
    };
    std::fs::read_dir(format!("/proc/{}/task", server.pid())).unwrap().all(has_stopped)
}
