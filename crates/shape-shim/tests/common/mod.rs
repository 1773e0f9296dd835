//! A real server under the shim, with a controller that only keeps its heart beating.

#![allow(dead_code, reason = "each test file uses a part")]

pub mod gate;
pub mod observer;

use plimsoll_shape::control::{ControlConfig, Controller, PMode, ZetaMode};
use plimsoll_shape::drive::client::Client;
use plimsoll_shape::gate::Knobs;
use plimsoll_shape::profile::Profile;
use plimsoll_shape::proxy::{ProxyConfig, serve};
use plimsoll_shape::segment::{Segment, is_dead, monotonic};
use plimsoll_shape::tend::{LOOK, Tender};
use plimsoll_shape::walk::Protocol;
use plimsoll_testkit::free_port;
use std::net::SocketAddr;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

pub struct Server {
    pub segment: Arc<Segment>,
    /// Port for clients: the server's own, or a proxy's before it.
    pub port: u16,
    pub server_port: u16,
    pub dir: tempfile::TempDir,
    pub child: Child,
    pub protocol: Protocol,
    pub launch: Launch,
    beating: Arc<AtomicBool>,
    heart: Option<JoinHandle<()>>,
    _turn: MutexGuard<'static, ()>,
}

/// One server at a time: the tests bound how long something takes, which nine servers on two cores would decide.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(|failed_test| failed_test.into_inner())
}

/// The library.
pub fn shim() -> PathBuf {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| plimsoll_testkit::library_folder("plimsoll-shape-shim")).join("libplimsoll_shim.so")
}

/// The user that a server runs as, since none will run as root.
pub fn account(name: &str) -> Option<(u32, u32)> {
    let passwd = std::fs::read_to_string("/etc/passwd").unwrap();
    let line = passwd.lines().find(|l| l.starts_with(&format!("{name}:")))?;
    let field = |i: usize| line.split(':').nth(i)?.parse().ok();
    Some((field(2)?, field(3)?))
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Runs to its end as `user`; panics with what it said if it fails.
fn run(user: Option<(u32, u32)>, program: &str, args: &[&str]) {
    let mut c = Command::new(program);
    if let Some((uid, gid)) = user {
        c.uid(uid).gid(gid);
    }
    let out = c
        .args(args)
        .current_dir("/")
        .output()
        .unwrap_or_else(|e| panic!("{program}: {e}: `make test-deps` installs what tests need"));
    assert!(out.status.success(), "{program}: {}", String::from_utf8_lossy(&out.stderr));
}

fn folder(user: Option<(u32, u32)>) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    if let Some((uid, gid)) = user {
        chown(dir.path(), Some(uid), Some(gid)).unwrap();
    }
    dir
}

/// A data folder that was installed once for all tests of this program.
fn fresh_mariadb(user: Option<(u32, u32)>) -> String {
    static INSTALLED: OnceLock<tempfile::TempDir> = OnceLock::new();
    let dir = INSTALLED.get_or_init(|| {
        let dir = folder(user);
        let data = format!("--datadir={}/data", dir.path().display());
        let tmp = format!("--tmpdir={}", dir.path().display());
        let method = "--auth-root-authentication-method=normal";
        run(user, "mariadb-install-db", &["--no-defaults", &data, &tmp, method, "--skip-test-db"]);
        dir
    });
    dir.path().join("data").display().to_string()
}

/// Settings with which a server is started, and started again.
pub struct Launch {
    pub profile: Profile,
    /// Under the shim; else a proxy stands before it.
    preload: bool,
    user: Option<(u32, u32)>,
    program: String,
    args: Vec<String>,
}

impl Launch {
    fn spawn(&self, dir: &Path) -> Child {
        let log = std::fs::File::options().create(true).append(true).open(dir.join("log")).unwrap();
        let mut c = Command::new(&self.program);
        if let Some((uid, gid)) = self.user {
            c.uid(uid).gid(gid);
        }
        c.args(&self.args).current_dir("/").stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        if self.preload {
            c.env("LD_PRELOAD", shim()).env("PLIMSOLL_SHAPE_SEGMENT", dir.join("segment"));
            c.env("PLIMSOLL_SHAPE_PROFILE", self.profile.to_string());
        }
        c.spawn().unwrap_or_else(|e| panic!("{}: {e}: `make test-deps` installs what tests need", self.program))
    }
}

fn start(turn: MutexGuard<'static, ()>, dir: tempfile::TempDir, knobs: Knobs, port: u16, launch: Launch) -> Server {
    let path = dir.path().join("segment");
    let segment = Arc::new(Segment::create(&path, knobs, monotonic()).unwrap());
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o666)).unwrap();
    let child = launch.spawn(dir.path());
    let beating = Arc::new(AtomicBool::new(true));
    let heart = launch.preload.then(|| beat(segment.clone(), beating.clone()));
    let clients_port = if launch.preload { port } else { proxy(&path, launch.profile.protocol(), port, knobs.p) };
    let protocol = launch.profile.protocol();
    Server { segment, port: clients_port, server_port: port, dir, child, protocol, launch, beating, heart, _turn: turn }
}

/// A proxy before a server's port, on a thread of its own until the tests end; its port.
fn proxy(segment: &Path, protocol: Protocol, server: u16, p: u32) -> u16 {
    let (port, path) = (free_port(), segment.to_path_buf());
    std::thread::spawn(move || {
        let local = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let config = ProxyConfig { listen: local(port), server: local(server), protocol };
        let segment = Segment::open(&path).unwrap();
        let tender = tender(&segment, PMode::Fixed(p));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(serve(config, segment, tid(), tender)).unwrap();
    });
    port
}

/// Returns a controller as an operator would start it, with ζ as it stands.
fn tender(segment: &Segment, p: PMode) -> Tender {
    let control = ControlConfig { zeta: ZetaMode::Kept, ..ControlConfig::new(p) };
    let tender = Tender::new(segment, Controller::new(control, 4));
    segment.control().zeta_wanted.store(segment.lock(tid(), monotonic()).gate().head.knobs.zeta, Ordering::Relaxed);
    tender
}

pub fn tid() -> u32 {
    rustix::thread::gettid().as_raw_nonzero().get() as u32
}

/// A heart that beats for long in advance: a test program that gets no core for a second must not look like a dead controller.
const AHEAD_NS: u64 = 60_000_000_000;

fn beat(segment: Arc<Segment>, beating: Arc<AtomicBool>) -> JoinHandle<()> {
    // The first beat before anybody is told that there is one.
    segment.control().heartbeat_ns.store(monotonic().as_nanos() + AHEAD_NS, Ordering::Relaxed);
    std::thread::spawn(move || {
        while beating.load(Ordering::Relaxed) {
            let now = monotonic();
            segment.control().heartbeat_ns.store(now.as_nanos() + AHEAD_NS, Ordering::Relaxed);
            segment.lock(tid(), now).gate().reap(now, &mut is_dead);
            std::thread::sleep(Duration::from_millis(50));
        }
    })
}

impl Server {
    pub fn mariadb(profile: Profile, knobs: Knobs, more: &[&str]) -> Server {
        Server::mariadb_as(profile, true, knobs, more)
    }

    /// Under the shim (`preload`), or behind a proxy.
    pub fn mariadb_as(profile: Profile, preload: bool, knobs: Knobs, more: &[&str]) -> Server {
        let turn = turn();
        let user = is_root().then(|| account("mysql").expect("the Debian package makes the account mysql"));
        let dir = folder(user);
        let data = dir.path().join("data").display().to_string();
        let datadir = format!("--datadir={data}");
        run(user, "cp", &["-a", &fresh_mariadb(user), &data]);
        let port = free_port();
        let socket = dir.path().join("sock");
        let mut args =
            vec!["--no-defaults".into(), datadir, format!("--port={port}"), format!("--socket={}", socket.display())];
        args.extend(
            [
                "--bind-address=127.0.0.1",
                "--innodb-buffer-pool-size=64M",
                "--innodb-flush-log-at-trx-commit=0",
                "--max-connections=1200",
                "--skip-name-resolve",
                "--performance-schema=OFF",
                "--innodb-log-file-size=16M",
                "--innodb-lock-wait-timeout=10",
            ]
            .map(String::from),
        );
        args.extend(more.iter().map(|s| s.to_string()));
        let launch = Launch { profile, preload, user, program: "/usr/sbin/mariadbd".into(), args };
        let s = start(turn, dir, knobs, port, launch);
        s.await_ready("root", "mysql");
        s.sql(
            "root",
            "mysql",
            &[
                "CREATE DATABASE t",
                "CREATE USER a@'127.0.0.1'",
                "CREATE USER b@'127.0.0.1'",
                "GRANT ALL ON *.* TO a@'127.0.0.1'",
                "GRANT ALL ON *.* TO b@'127.0.0.1'",
                "CREATE TABLE t.hot (id INT PRIMARY KEY, n INT)",
                "INSERT INTO t.hot VALUES (1,0),(2,0),(3,0),(4,0)",
            ],
        );
        s.reset();
        s
    }

    pub fn postgres(knobs: Knobs, more: &[&str]) -> Server {
        Server::postgres_as(true, knobs, more)
    }

    /// Under the shim (`preload`), or behind a proxy.
    pub fn postgres_as(preload: bool, knobs: Knobs, more: &[&str]) -> Server {
        let turn = turn();
        let user = is_root().then(|| account("postgres").expect("the Debian package makes the account postgres"));
        let dir = folder(user);
        let data = dir.path().join("data").display().to_string();
        let bin = postgres_bin();
        run(user, &bin.join("initdb").display().to_string(), &["-D", &data, "-A", "trust", "-U", "root", "--no-sync"]);
        let port = free_port();
        let mut args: Vec<String> = vec!["-D".into(), data, "-p".into(), port.to_string()];
        let socket = format!("unix_socket_directories={}", dir.path().display());
        for setting in ["listen_addresses=127.0.0.1", "fsync=off", "max_connections=300", &socket].iter().chain(more) {
            args.extend(["-c".to_string(), setting.to_string()]);
        }
        let program = bin.join("postgres").display().to_string();
        let s = start(turn, dir, knobs, port, Launch { profile: Profile::Postgres, preload, user, program, args });
        s.await_ready("root", "postgres");
        s.sql("root", "postgres", &["CREATE DATABASE t"]);
        s.sql(
            "root",
            "t",
            &[
                "CREATE ROLE a SUPERUSER LOGIN",
                "CREATE ROLE b SUPERUSER LOGIN",
                "CREATE TABLE hot (id INT PRIMARY KEY, n INT)",
                "INSERT INTO hot VALUES (1,0),(2,0),(3,0),(4,0)",
            ],
        );
        s.reset();
        s
    }

    pub fn redis(knobs: Knobs, more: &[&str]) -> Server {
        let turn = turn();
        let dir = folder(None);
        let port = free_port();
        let mut args: Vec<String> = ["--save", "", "--bind", "127.0.0.1", "--port"].map(String::from).to_vec();
        args.extend([port.to_string(), "--dir".into(), dir.path().display().to_string()]);
        args.extend(more.iter().map(|s| s.to_string()));
        let program = "/usr/bin/redis-server".into();
        let s =
            start(turn, dir, knobs, port, Launch { profile: Profile::Redis, preload: true, user: None, program, args });
        s.await_port();
        s
    }

    /// `asked.py`, a server with a thread for each connection.
    pub fn asked(profile: Profile, knobs: Knobs) -> Server {
        Server::asked_as(profile, true, knobs)
    }

    /// Under the shim (`preload`), or behind a proxy.
    pub fn asked_as(profile: Profile, preload: bool, knobs: Knobs) -> Server {
        let turn = turn();
        let port = free_port();
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/common/asked.py");
        let args = vec![script.to_string(), profile.to_string(), port.to_string()];
        let program = "/usr/bin/python3".into();
        let s = start(turn, folder(None), knobs, port, Launch { profile, preload, user: None, program, args });
        s.await_port();
        s
    }

    /// `pooled.py`, one thread that takes all events that there are at a time.
    pub fn pooled(knobs: Knobs) -> Server {
        let turn = turn();
        let port = free_port();
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/common/pooled.py");
        let (profile, program) = (Profile::MysqlPool, "/usr/bin/python3".into());
        let args = vec![script.to_string(), port.to_string()];
        let s = start(turn, folder(None), knobs, port, Launch { profile, preload: true, user: None, program, args });
        s.await_port();
        s
    }

    /// The server of `odd.c`, which speaks MongoDB's protocol and reads as no real one does.
    pub fn odd(knobs: Knobs) -> Server {
        let turn = turn();
        let (port, dir) = (free_port(), folder(None));
        let (source, program) = (concat!(env!("CARGO_MANIFEST_DIR"), "/tests/common/odd.c"), dir.path().join("odd"));
        let program = program.to_str().unwrap().to_string();
        run(None, "cc", &["-O1", "-Wall", "-o", &program, source]);
        let launch =
            Launch { profile: Profile::Mongo, preload: true, user: None, program, args: vec![port.to_string()] };
        let s = start(turn, dir, knobs, port, launch);
        s.await_port();
        s
    }

    /// Ends the server as an operator would, and starts it again with the same gate.
    pub fn restart(&mut self) {
        self.end();
        self.child = self.launch.spawn(self.dir.path());
    }

    /// The same by kill -9.
    pub fn restart_killed(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.child = self.launch.spawn(self.dir.path());
    }

    pub fn await_port(&self) {
        let end = Instant::now() + Duration::from_secs(30);
        let closed = |port| std::net::TcpStream::connect(("127.0.0.1", port)).is_err();
        // A proxy is up before the server that it stands before.
        while closed(self.server_port) || closed(self.port) {
            assert!(Instant::now() < end, "not up: {}", self.log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub fn await_ready(&self, account: &str, database: &str) {
        let end = Instant::now() + Duration::from_secs(60);
        while let Err(e) = Client::connect(self.protocol, self.port, account, database) {
            assert!(Instant::now() < end, "not up: {e}\n{}", self.log());
            std::thread::sleep(Duration::from_millis(30));
        }
    }

    pub fn protocol_name(&self) -> String {
        self.launch.profile.to_string()
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }

    pub fn client(&self, account: &str) -> Client {
        Client::connect(self.protocol, self.port, account, "t").unwrap_or_else(|e| panic!("{e}\n{}", self.log()))
    }

    pub fn sql(&self, account: &str, database: &str, statements: &[&str]) {
        let mut c = Client::connect(self.protocol, self.port, account, database).unwrap();
        for s in statements {
            assert_eq!(c.query(s).unwrap(), plimsoll_shape::drive::client::Answer::Ok, "{s}");
        }
    }

    /// A real controller, until the server of this test ends: what an operator writes into the segment is done.
    pub fn tend(&mut self, p: u32) {
        self.stop_heart();
        self.segment.control().p_wanted.store(p, Ordering::Relaxed);
        self.beating = Arc::new(AtomicBool::new(true));
        let (segment, beating) = (self.segment.clone(), self.beating.clone());
        let mut tender = tender(&segment, PMode::Fixed(p));
        self.heart = Some(std::thread::spawn(move || {
            while beating.load(Ordering::Relaxed) {
                let now = monotonic();
                tender.look(&segment, tid(), now).iter().for_each(|w| w.wake(&segment));
                segment.control().heartbeat_ns.store(now.as_nanos() + AHEAD_NS, Ordering::Relaxed);
                std::thread::sleep(Duration::from_nanos(LOOK.as_nanos()));
            }
        }));
    }

    pub fn stop_heart(&mut self) {
        self.beating.store(false, Ordering::Relaxed);
        self.heart.take().map(|h| h.join());
        self.segment.control().heartbeat_ns.store(monotonic().as_nanos(), Ordering::Relaxed);
    }

    /// The controller seems to live for [`AHEAD_NS`], and no thread of the test looks into the gate.
    pub fn pause_heart(&mut self) {
        self.stop_heart();
        self.segment.control().heartbeat_ns.store(monotonic().as_nanos() + AHEAD_NS, Ordering::Relaxed);
    }

    pub fn start_heart(&mut self) {
        self.beating = Arc::new(AtomicBool::new(true));
        self.heart = Some(beat(self.segment.clone(), self.beating.clone()));
    }
}

impl Server {
    fn end(&mut self) {
        // A clean end, or PostgreSQL leaves its children's memory behind.
        let pid = rustix::process::Pid::from_child(&self.child);
        // PostgreSQL waits for its clients on a termination, MariaDB knows nothing else.
        let how = if self.protocol == Protocol::Postgres {
            rustix::process::Signal::INT
        } else {
            rustix::process::Signal::TERM
        };
        let _ = rustix::process::kill_process(pid, how);
        let end = Instant::now() + Duration::from_secs(10);
        while Instant::now() < end && self.child.try_wait().is_ok_and(|s| s.is_none()) {
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop_heart();
        self.end();
    }
}

pub fn postgres_bin() -> PathBuf {
    let versions = std::fs::read_dir("/usr/lib/postgresql").expect("PostgreSQL's Debian package is installed");
    let mut found: Vec<PathBuf> = versions.map(|v| v.unwrap().path().join("bin")).collect();
    found.sort();
    found.pop().unwrap()
}

/// Requires a program of the machine.
///
/// # Panics
/// If it's missing: a test that passes without its server tests nothing.
pub fn needs(program: &str) {
    assert!(Path::new(program).exists(), "{program} is missing: `make test` installs it");
}

/// Returns a condition for a load to go on: until `time` has passed and `wanted` requests are done, and a minute at most. So a slow
/// machine does no less.
pub fn for_a_while(time: Duration, wanted: u64) -> impl Fn(u64) -> bool + Sync {
    let begun = Instant::now();
    move |done| begun.elapsed() < time || (done < wanted && begun.elapsed() < Duration::from_secs(60))
}

/// Calls `f` until `time` is over; how often it was called.
pub fn during(time: Duration, mut f: impl FnMut()) -> u64 {
    let end = Instant::now() + time;
    let mut n = 0;
    while Instant::now() < end {
        f();
        n += 1;
    }
    n
}
