//! File systems and databases on a volume whose tenant has a deadline that is hardly ever met: they never hear that a read is late. And a new
//! file system of best effort beside an objective.

mod common;
use common::Server;
use common::busy::{Metrics, Noise};
use common::client::Client;
use common::database::Database;
use common::mount::{Mounted, may_mount};
use common::{run, write_profile};
use plimsoll_nbd::wire::{Command, CommandFlags};
use plimsoll_testkit::until;
use serde_json::Value;
use std::path::Path;
use std::time::{Duration, Instant};

/// No read of a disk takes less than a millisecond while another's is in front of it.
const NODE: &str = r#"
[listen]
unix = "nbd.sock"
[control]
http = "127.0.0.1:0"
unix = "control.sock"
[[pool]]
name = "p"
device = { file = "p.img", size = "1GiB", model = "cheetah-15k5" }
profile = "disk.profile"
depth = 4
[[tenant]]
name = "web"
class = "best-effort"
deadline = "1ms"
[[tenant]]
name = "noise"
class = "best-effort"
[[volume]]
name = "db"
pool = "p"
size = "400MiB"
tenant = "web"
[[volume]]
name = "noise"
pool = "p"
size = "256MiB"
tenant = "noise"
[[grant]]
peer = "local"
volumes = ["*"]
"#;

/// A folder that others' accounts reach, and a node in it.
fn node() -> (tempfile::TempDir, Server) {
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o1777)).unwrap();
    write_profile(dir.path(), "cheetah-15k5", "disk.profile");
    let server = Server::start(dir.path(), NODE);
    (dir, server)
}

fn noise(server: &Server) -> Noise {
    Noise::within(256 << 20, server, "noise", 6, 1)
}

/// At least this number of reads was served that an error would have ended, and no request failed.
fn assert_waited(server: &Server, least: f64) {
    let m = Metrics::of(server);
    let web = |family, label| m.of_tenant(family, "web", label);
    let waited = web("plimsoll_deadlines_total", ("result", "waited"));
    println!("{waited} reads waited");
    assert!(waited >= least, "only {waited} reads were late");
    assert_eq!(m.value("plimsoll_busy_total") + m.value("plimsoll_failed_total"), 0.0);
}

fn file_system(kind: &str) {
    if !may_mount() {
        return;
    }
    let (dir, server) = node();
    let noise = noise(&server);
    let volume = Mounted::new(dir.path(), &server.uri("db"), kind);
    let content = |i: u32| (0..16_384u32).flat_map(|n| (n * 7 + i).to_le_bytes()).collect::<Vec<u8>>();
    let path = |i: u32| volume.dir.join(format!("folder {}/file {i}", i % 5));
    for i in 0..40 {
        std::fs::create_dir_all(path(i).parent().unwrap()).unwrap();
        std::fs::write(path(i), content(i)).unwrap();
    }
    volume.remount();
    let names = |at: &Path| std::fs::read_dir(at).unwrap().map(|e| e.unwrap().file_name()).collect::<Vec<_>>().len();
    assert!(names(&volume.dir) >= 5);
    for i in 0..40 {
        assert_eq!(names(path(i).parent().unwrap()), 8);
        assert!(std::fs::read(path(i)).unwrap() == content(i), "file {i}");
    }
    assert_waited(&server, 40.0);
    drop((volume, noise));
    assert!(server.stop());
}

#[test]
fn ext4_never_hears_that_a_read_is_late() {
    file_system("ext4");
}

#[test]
fn xfs_never_hears_that_a_read_is_late() {
    file_system("xfs");
}

/// A database reads its tables back from the disk, after an orderly end, beside the noise.
fn database(made: impl Fn(&Path, &Mounted) -> Database, fill: &[&str]) {
    if !may_mount() {
        return;
    }
    let (dir, server) = node();
    let volume = Mounted::new(dir.path(), &server.uri("db"), "ext4");
    let database = made(dir.path(), &volume);
    let running = database.start(dir.path());
    for sql in fill {
        database.sql(dir.path(), sql);
    }
    database.stop(running);
    volume.remount();
    let noise = noise(&server);
    let running = database.start(dir.path());
    let sum = database.sql(dir.path(), "SELECT COUNT(*) + SUM(LENGTH(b)) + SUM(a) FROM t");
    assert_eq!(sum, (20_000 + 20_000 * 100 + 20_000 * 20_001 / 2u64).to_string());
    database.sql(dir.path(), "UPDATE t SET a = a + 1 WHERE a > 19000");
    database.stop(running);
    assert_waited(&server, 20.0);
    drop((volume, noise));
    assert!(server.stop());
}

#[test]
fn mariadb_never_hears_that_a_read_is_late() {
    database(
        Database::maria_db,
        &[
            "CREATE TABLE t (a INT, b VARCHAR(200))",
            "INSERT INTO t SELECT seq, REPEAT(CHAR(97 + seq % 26), 100) FROM seq_1_to_20000",
        ],
    );
}

#[test]
fn postgresql_never_hears_that_a_read_is_late() {
    database(
        |_, volume| Database::postgre_sql(volume),
        &[
            "CREATE TABLE t (a INT, b VARCHAR(200))",
            "INSERT INTO t SELECT n, REPEAT(CHR(97 + n % 26), 100) FROM generate_series(1, 20000) AS n",
        ],
    );
}

/// A database that always reads, with an objective, and a volume of best effort on the same plain file.
const BESIDE: &str = r#"
[listen]
unix = "nbd.sock"
[control]
http = "127.0.0.1:0"
unix = "control.sock"
[[pool]]
name = "p"
device = { file = "p.img", size = "2GiB" }
cores = 4
[[tenant]]
name = "db"
class = "latency-critical"
objectives = [{ percentile = 99, within = "WITHIN" }]
jobs_max = 8
[[tenant]]
name = "batch"
class = "best-effort"
[[volume]]
name = "db"
pool = "p"
size = "64MiB"
tenant = "db"
[[volume]]
name = "batch"
pool = "p"
size = "1536MiB"
tenant = "batch"
[[grant]]
peer = "local"
volumes = ["*"]
"#;

/// The time within which a new file system is made. It took 15 minutes once; it takes seconds.
const SECONDS: u64 = 60;

/// Makes a file system and zeroes a GiB on best effort, beside an objective. Returns the node while the objective's requests go on.
fn beside(dir: &Path, within: &str) -> (Server, Noise) {
    let server = Server::start(dir, &BESIDE.replace("WITHIN", within));
    let database = Noise::within(64 << 20, &server, "db", 4, 1);
    let volume = Mounted::attached(dir, &server.uri("batch"));
    let begun = Instant::now();
    let made = run("timeout", &[&SECONDS.to_string(), "mkfs.ext4", "-q", volume.device()]);
    println!("objective {within}: mkfs.ext4 took {:?}", begun.elapsed());
    assert!(made.status.success(), "within {SECONDS} s: {}", String::from_utf8_lossy(&made.stderr));
    let checked = run("e2fsck", &["-f", "-n", volume.device()]);
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stdout));
    drop(volume);
    let mut client = Client::connect(&server.socket(), "batch").unwrap();
    client.stream().set_read_timeout(Some(Duration::from_secs(SECONDS))).unwrap();
    let begun = Instant::now();
    client.call(Command::WriteZeroes, CommandFlags::EMPTY, 0, 1 << 30, &[]).expect("within the time").unwrap();
    println!("objective {within}: 1 GiB of zeroes took {:?}", begun.elapsed());
    (server, database)
}

#[test]
fn a_new_file_system_takes_seconds_beside_an_objective_that_is_kept() {
    if !may_mount() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (server, database) = beside(dir.path(), "2s");
    let db = server.control("GET", "/v1/tenants/db").expect(200);
    assert_eq!(db["kept"], true, "{db}");
    drop(database);
    assert!(server.stop());
}

/// An objective that nothing keeps holds best effort to its least pace. That, too, is a pace; and a request that is held says who waits for
/// what.
#[test]
fn a_new_file_system_takes_seconds_at_best_efforts_least_pace() {
    if !may_mount() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (server, database) = beside(dir.path(), "1us");
    let mut client = Client::connect(&server.socket(), "batch").unwrap();
    // Two seconds of writes at 64 units a second.
    let block = vec![7; 64 << 10];
    (0..128u64).for_each(|n| _ = client.send(Command::Write, CommandFlags::EMPTY, n << 16, 64 << 10, &block).unwrap());
    let mut line = String::new();
    until("a held request is shown", || {
        let shown = server.cli(&["cores"]);
        line = shown.lines().find(|l| l.trim_start().starts_with("held")).unwrap_or_default().into();
        !line.is_empty()
    });
    assert!(line.contains("batch (for ") && line.contains("s), for the objectives of db"), "{line}");
    let cores: Value = serde_json::from_str(&server.cli(&["cores", "--json"])).unwrap();
    let queue = |tenant: &str| cores["queues"].as_array().unwrap().iter().find(|q| q["tenants"][0] == tenant).unwrap();
    assert_eq!(queue("db")["decides_bound"], true, "{cores}");
    assert!(queue("batch")["held_us"].as_u64().is_none_or(|us| us < 5_000_000), "{cores}");
    (0..128).for_each(|_| drop(client.receive().unwrap().1.unwrap()));
    drop(database);
    assert!(server.stop());
}
