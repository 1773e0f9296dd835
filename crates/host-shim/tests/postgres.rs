//! PostgreSQL under the library, unmodified: back ends of one role are refused late reads by an error of SQL. All other processes read, also
//! the one that recovers the database. The agent is posed: each read that isn't resident would be late.

#[path = "../../host/tests/common/mod.rs"]
mod common;
#[path = "../../host/tests/common/posed.rs"]
mod posed;

use common::{Loop, run};
use plimsoll_testkit::{library_folder, until};
use posed::Posed;
use rustix::fs::{Advice, fadvise};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

const ROWS: u32 = 2000;
const BUSY: &str = "Device or resource busy";

/// PostgreSQL's programs.
fn bin() -> PathBuf {
    let versions = std::fs::read_dir("/usr/lib/postgresql").expect("PostgreSQL is in test-deps");
    versions.flatten().map(|v| v.path().join("bin")).find(|b| b.join("initdb").exists()).expect("a server")
}

/// As the account of PostgreSQL's package.
fn as_postgres(program: &Path) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--reuid=postgres", "--regid=postgres", "--init-groups"]).arg(program).current_dir("/");
    command
}

struct Server {
    // In this order: the server ends before its disk goes.
    child: Option<Child>,
    _agent: Posed,
    mount: Mounted,
    _disk: Loop,
    dir: tempfile::TempDir,
}

struct Mounted(PathBuf);
impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end(Signal::QUIT);
    }
}

impl Server {
    fn new() -> Server {
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
        let disk = Loop::new(dir.path(), 512 << 20);
        run("mkfs.ext4", &["-q", &disk.0]);
        let mount = Mounted(dir.path().join("fs"));
        std::fs::create_dir(&mount.0).unwrap();
        run("mount", &[&disk.0, mount.0.to_str().unwrap()]);
        run("chown", &["postgres:postgres", mount.0.to_str().unwrap()]);
        let socket = dir.path().join("host.sock");
        let agent = Posed::start(&mount.0, &socket, false);
        std::fs::set_permissions(&socket, Permissions::from_mode(0o666)).unwrap();
        let library = library_folder("plimsoll-host-shim").join("libplimsoll_deadline.so");
        std::fs::copy(library, dir.path().join("libplimsoll_deadline.so")).unwrap();
        let mut server = Server { child: None, _agent: agent, mount, _disk: disk, dir };
        let mut init = as_postgres(&bin().join("initdb"));
        let init = init.arg("-D").arg(server.data()).args(["-A", "trust", "-U", "root", "--no-locale", "--no-sync"]);
        assert!(init.stdout(Stdio::null()).status().unwrap().success(), "initdb");
        server.start();
        server
    }

    fn data(&self) -> PathBuf {
        self.mount.0.join("data")
    }

    fn start(&mut self) {
        let data = self.data();
        let mut server = as_postgres(&bin().join("postgres"));
        server.arg("-D").arg(&data).args([
            "-c",
            "listen_addresses=",
            "-c",
            "shared_buffers=256kB",
            "-c",
            "autovacuum=off",
        ]);
        // Recovery reads the pages that it changes.
        server.args(["-c", "full_page_writes=off", "-c", "log_line_prefix=%u|%b|", "-c"]);
        server.arg(format!("unix_socket_directories={}", self.mount.0.display()));
        server.env("LD_PRELOAD", self.dir.path().join("libplimsoll_deadline.so"));
        server.env("PLIMSOLL_HOST_SOCKET", self.dir.path().join("host.sock"));
        server.env("PLIMSOLL_DEADLINES", format!("{}=20ms", data.join("base").display()));
        server.env("PLIMSOLL_DEADLINE_PROCESSES", "postgres").env("PLIMSOLL_DEADLINE_TITLES", "postgres: app");
        server.env("PLIMSOLL_DEADLINE_FIRST", "refuse").stdin(Stdio::null()).stdout(Stdio::null());
        let log = File::options().create(true).append(true).open(self.dir.path().join("log")).unwrap();
        self.child = Some(server.stderr(log).spawn().unwrap());
        until("the server answers", || self.sql("root", "SELECT 'answers'").contains("answers"));
    }

    fn end(&mut self, signal: Signal) {
        if let Some(mut child) = self.child.take() {
            let _ = kill_process(Pid::from_child(&child), signal);
            let _ = child.wait();
        }
    }

    /// Output of a session of statements, with its errors. The session goes on after an error.
    fn sql(&self, role: &str, statements: &str) -> String {
        let mut psql = Command::new("psql");
        psql.args(["-X", "-q", "-A", "-t", "-U", role, "-d", "postgres", "-f", "-", "-h"]).arg(&self.mount.0);
        let mut psql = psql.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut stdin = psql.stdin.take().unwrap();
        std::thread::scope(|s| {
            s.spawn(move || std::io::Write::write_all(&mut stdin, statements.as_bytes()));
            let output = psql.wait_with_output().unwrap();
            format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
        })
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("log")).unwrap()
    }

    /// Evicts all pages of the database.
    fn evict(&self) {
        for folder in std::fs::read_dir(self.data().join("base")).unwrap().flatten() {
            for file in std::fs::read_dir(folder.path()).into_iter().flatten().flatten() {
                // Tables come and go.
                if let Ok(file) = File::open(file.path()) {
                    let _ = fadvise(&file, 0, None, Advice::DontNeed);
                }
            }
        }
    }

    /// Evicts all the time while `f` runs.
    fn under_pressure<T>(&self, f: impl FnOnce() -> T) -> T {
        struct Over<'a>(&'a AtomicBool);
        impl Drop for Over<'_> {
            fn drop(&mut self) {
                self.0.store(true, Relaxed);
            }
        }
        let over = AtomicBool::new(false);
        std::thread::scope(|s| {
            s.spawn(|| {
                while !over.load(Relaxed) {
                    self.evict();
                    // Without a pause the server would find no page that it has just read.
                    std::thread::sleep(Duration::from_millis(1));
                }
            });
            let _over = Over(&over);
            f()
        })
    }
}

/// The sum of all rows' lengths after `n` updates, which lengthen each row by one.
fn sum(n: u32) -> String {
    (ROWS * (500 + n)).to_string()
}

#[test]
fn back_ends_of_a_role_are_refused_and_all_other_processes_read() {
    let mut server = Server::new();
    let table = format!(
        "CREATE ROLE app LOGIN; CREATE ROLE apple LOGIN SUPERUSER; CREATE TABLE t (id int PRIMARY KEY, v text);
         INSERT INTO t SELECT i, repeat(chr(97 + i % 26), 500) FROM generate_series(1, {ROWS}) i;
         GRANT SELECT ON t TO app; CHECKPOINT;"
    );
    assert_eq!(server.sql("root", &table), "");
    let gets: String = (1..=300).map(|i| format!("SELECT v FROM t WHERE id = {};", i * 7 % ROWS + 1)).collect();
    let gets = format!("{gets}SELECT 'goes on';");
    let expected: String = (1..=300u32)
        .map(|i| format!("{}\n", char::from(b'a' + ((i * 7 % ROWS + 1) % 26) as u8).to_string().repeat(500)))
        .collect();

    server.under_pressure(|| {
        until("a back end is refused by an error, and goes on", || {
            let said = server.sql("app", &gets);
            let errors = said.lines().filter(|l| l.contains("ERROR"));
            let refused =
                errors.inspect(|l| assert!(l.contains("could not read block") && l.contains(BUSY), "{l}")).count();
            // A session that is refused while it begins doesn't come about, and the last query may be refused as well.
            assert!(said.contains("goes on") || said.contains("could not read block"), "{said}");
            refused > 0 && said.contains("goes on")
        });
        // The same pages are read for another role, by the checkpointer, and for a table's changes.
        assert_eq!(server.sql("apple", &gets), format!("{expected}goes on\n"));
        assert_eq!(server.sql("root", "UPDATE t SET v = v || 'x'; CHECKPOINT;"), "");
        assert_eq!(server.sql("root", "UPDATE t SET v = v || 'x'; SELECT sum(length(v)) FROM t;").trim(), sum(2));
    });
    // The second change is recovered from the log: the start reads each page of the table.
    server.end(Signal::QUIT);
    server.evict();
    server.start();
    let log = server.log();
    assert!(log.contains("redo done"), "{log}");
    assert_eq!(server.sql("root", "SELECT sum(length(v)) FROM t;").trim(), sum(2));
    for line in server.log().lines().filter(|l| l.contains(BUSY)) {
        assert!(line.starts_with("app|client backend|"), "{line}");
    }
    assert!(!log.contains("PANIC"), "{log}");
}
