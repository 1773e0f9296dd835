//! Programs of others on a mount: the tests of PostgreSQL and SQLite, dbench, fio's verification, git with a build.
//! `make fs-programs` fetches them and runs this, as root.
//!
//! `PLIMSOLL_FS_TOOLS` is the folder of `tests/fs_programs.sh`. `PLIMSOLL_FS_MODES` (`ordered,manylogs`) chooses among the modes.

mod common;

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::{disk, folder, mounted, unmount};
use plimsoll_fs::{Fs, MemDisk, Mode, Options, fsck};
use rustix::fs::XattrFlags;

/// 4 GiB, of which only what is written takes memory.
const BLOCKS: u64 = 1 << 20;
/// Rows that are acknowledged before the loss of power.
const ROWS: u64 = 200;

const FIO: &str = "
[global]
verify=crc32c
verify_fatal=1
bs=4k
size=16m
thread=0

[random-with-fsync]
rw=randwrite
fsync=16

[mapped]
ioengine=mmap
rw=randwrite

[direct]
ioengine=libaio
iodepth=16
direct=1
rw=randwrite

[direct-over-buffered]
rw=randrw
bs=16k
verify_async=2

[mail]
rw=randwrite
nrfiles=200
openfiles=16
filesize=4k-64k
fsync=1

[files]
rw=write
nrfiles=50
filesize=128k-512k
bs=64k
fsync_on_close=1
";

fn tools() -> PathBuf {
    let tools = PathBuf::from(std::env::var("PLIMSOLL_FS_TOOLS").unwrap_or_default());
    assert!(tools.is_dir(), "the suites are missing: `make fs-programs` fetches them");
    tools
}

/// Those of the modes that `PLIMSOLL_FS_MODES` names; all without it.
fn chosen(modes: &[Mode]) -> Vec<Mode> {
    let names = std::env::var("PLIMSOLL_FS_MODES").ok();
    let names: Option<Vec<&str>> = names.as_deref().map(|n| n.split(',').collect());
    modes.iter().copied().filter(|m| names.as_ref().is_none_or(|n| n.contains(&m.name()))).collect()
}

/// A program as another user, in a folder.
fn by((user, group): (&str, &str), dir: &Path, program: impl AsRef<Path>) -> Command {
    let mut c = Command::new("setpriv");
    c.args(["--reuid", user, "--regid", group, "--init-groups", "env", "LC_ALL=C", "TZ=UTC"]);
    c.arg(format!("HOME={}", dir.display())).arg(program.as_ref()).current_dir(dir);
    c
}

/// Runs a program to its end, within an hour. Its output.
fn output(c: &mut Command) -> (bool, String) {
    let mut limited = Command::new("timeout");
    limited.arg("3600").arg(c.get_program()).args(c.get_args());
    if let Some(dir) = c.get_current_dir() {
        limited.current_dir(dir);
    }
    let run = limited.output().unwrap();
    let text = [run.stdout, run.stderr].concat();
    (run.status.success(), String::from_utf8_lossy(&text).into_owned())
}

fn succeed(c: &mut Command) -> String {
    let (ok, text) = output(c);
    let last: Vec<&str> = text.lines().rev().take(60).collect();
    assert!(ok, "{c:?}:\n{}", last.into_iter().rev().collect::<Vec<_>>().join("\n"));
    text
}

/// A folder of a user.
fn owned(path: &Path, user: &str) {
    fs::create_dir(path).unwrap();
    succeed(Command::new("chown").arg(user).arg(path));
    fs::set_permissions(path, fs::Permissions::from_mode(0o700)).unwrap();
}

struct Postgres {
    bin: PathBuf,
    at: PathBuf,
}

impl Postgres {
    fn command(&self, program: &str) -> Command {
        by(("postgres", "postgres"), &self.at.join("out"), self.bin.join(program))
    }

    fn control(&self, args: &[&str]) {
        let log = self.at.join("out/log");
        let mut c = self.command("pg_ctl");
        // Its output goes to a file: the server would keep a pipe open.
        let to = fs::File::create(self.at.join("out/pg_ctl")).unwrap();
        c.arg("-D").arg(self.at.join("data")).arg("-l").arg(&log).arg("-w").args(["-t", "600"]).args(args);
        let ok = c.stdin(Stdio::null()).stdout(to.try_clone().unwrap()).stderr(to).status().unwrap().success();
        assert!(ok, "pg_ctl {args:?}: {}", fs::read_to_string(log).unwrap_or_default());
    }

    /// Stops the server. It removes its file before it ends. Until then its folder is on the mount, and another one refuses to start.
    fn stop(&self, how: &str) {
        let file = fs::read_to_string(self.at.join("data/postmaster.pid")).unwrap();
        let id = file.lines().next().unwrap();
        self.control(&["-m", how, "stop"]);
        let limit = Instant::now() + Duration::from_secs(60);
        while Path::new("/proc").join(id).exists() {
            assert!(Instant::now() < limit, "PostgreSQL, process {id}, didn't end");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn client(&self, program: &str) -> Command {
        let mut c = self.command(program);
        c.arg("-h").arg(self.at.join("sock")).args(["-U", "postgres"]);
        c
    }

    fn ask(&self, sql: &str) -> String {
        succeed(self.client("psql").args(["-X", "-A", "-t", "-q", "-d", "postgres", "-c", sql])).trim().to_string()
    }

    /// Inserts rows, each acknowledged, while other clients change tables. The disk as it is then.
    fn image_under_load(&self, disk: &MemDisk) -> Arc<MemDisk> {
        succeed(self.client("pgbench").args(["-i", "-q", "-s", "2", "postgres"]));
        self.ask("create table acknowledged (n bigint primary key)");
        let mut load = self.client("pgbench");
        let mut load = load
            .args(["-c", "4", "-T", "600", "postgres"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let limit = Instant::now() + Duration::from_secs(120);
        while self.ask("select count(*) >= 20 from pgbench_history") != "t" {
            assert!(Instant::now() < limit, "the load changes nothing");
        }
        let mut rows = self.client("psql");
        rows.args(["-X", "-A", "-t", "-q", "-d", "postgres"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut rows = rows.spawn().unwrap();
        let (mut ask, mut answers) = (rows.stdin.take().unwrap(), BufReader::new(rows.stdout.take().unwrap()).lines());
        for n in 1..=ROWS {
            writeln!(ask, "insert into acknowledged values ({n}) returning n;").unwrap();
            assert_eq!(answers.next().unwrap().unwrap(), n.to_string());
        }
        let image = Arc::new(MemDisk::with(BLOCKS, disk.content()));
        drop(ask);
        assert!(rows.wait().unwrap().success());
        assert_eq!(load.try_wait().unwrap(), None, "the load ended before");
        self.stop("immediate");
        load.wait().unwrap();
        image
    }
}

#[test]
#[ignore = "needs PostgreSQL and its tests: make fs-programs"]
fn postgresql() {
    let tools = tools().join("postgresql");
    for mode in chosen(&[Mode::Ordered, Mode::Manylogs]) {
        let dir = folder();
        let at = dir.path().join("mnt");
        let disk = disk(mode, BLOCKS);
        let m = mounted(disk.clone(), &at);
        for name in ["data", "wal", "sock", "out"] {
            owned(&at.join(name), "postgres");
        }
        let mark = "user.plimsoll.durability";
        rustix::fs::setxattr(at.join("wal"), mark, b"anywhere", XattrFlags::empty()).unwrap();
        let server = Postgres { bin: tools.join("bin"), at: at.clone() };
        let mut initdb = server.command("initdb");
        initdb.arg("-D").arg(at.join("data")).arg("-X").arg(at.join("wal"));
        succeed(initdb.args(["--no-locale", "-E", "UTF8", "--data-checksums", "-A", "trust"]));
        let conf = at.join("data/postgresql.conf");
        let sock = at.join("sock");
        let lines =
            format!("listen_addresses = ''\nunix_socket_directories = '{}'\nmax_wal_size = '256MB'\n", sock.display());
        fs::write(&conf, fs::read_to_string(&conf).unwrap() + &lines).unwrap();
        server.control(&["start"]);
        let log = fs::read_dir(at.join("wal")).unwrap().map(|e| e.unwrap().path()).find(|p| p.is_file()).unwrap();
        let mut value = [0; 16];
        assert_eq!(rustix::fs::getxattr(&log, mark, &mut value), Ok(8), "{} isn't marked", log.display());

        let tests = tools.join("regress");
        let mut regress = by(("postgres", "postgres"), &at.join("out"), tools.join("pg_regress"));
        regress.arg("--inputdir").arg(&tests).arg("--outputdir").arg(at.join("out")).arg("--dlpath").arg(&tests);
        regress.arg("--bindir").arg(tools.join("bin")).arg("--host").arg(at.join("sock")).arg("--user=postgres");
        regress.arg("--max-concurrent-tests=20").arg("--schedule").arg(tests.join("parallel_schedule"));
        let (ok, text) = output(&mut regress);
        let count = text.lines().filter(|l| l.contains("... ok ")).count();
        let failed: Vec<&str> = text.lines().filter(|l| l.contains("... FAILED")).collect();
        println!("{}: PostgreSQL: {count} of its tests passed, {} failed", mode.name(), failed.len());
        let differences = || fs::read_to_string(at.join("out/regression.diffs")).unwrap_or_default();
        assert!(ok && failed.is_empty() && count > 200, "{text}\n{}", differences());

        let image = server.image_under_load(&disk);
        unmount(disk, m);
        assert_eq!(fsck(image.clone(), false).unwrap().problems, Vec::<String>::new());
        let anywhere = Fs::mount(image.clone(), Options { read_only: true, ..Options::default() }).unwrap().info();
        assert_eq!(anywhere.anywhere_blocks > 0, mode == Mode::Manylogs, "{anywhere:?}");

        let m = mounted(image.clone(), &at);
        // As after a loss of power, the socket and the file with the process's id are there.
        server.control(&["start"]);
        assert_eq!(server.ask("select count(*) from acknowledged"), ROWS.to_string());
        let sums = "select (select sum(abalance) from pgbench_accounts) = (select sum(delta) from pgbench_history)
            and (select sum(tbalance) from pgbench_tellers) = (select sum(delta) from pgbench_history)
            and (select sum(bbalance) from pgbench_branches) = (select sum(delta) from pgbench_history)";
        assert_eq!(server.ask(sums), "t");
        let changes = server.ask("select count(*) from pgbench_history");
        succeed(server.client("pg_amcheck").args(["-d", "postgres", "--install-missing", "--heapallindexed"]));
        server.stop("fast");
        succeed(server.command("pg_checksums").arg("--check").arg("-D").arg(at.join("data")));
        unmount(image, m);
        println!(
            "{}: PostgreSQL: all of {ROWS} rows and {changes} changes are there after a loss of power",
            mode.name()
        );
    }
}

#[test]
#[ignore = "needs SQLite's tests: make fs-programs"]
fn sqlite() {
    let tools = tools().join("sqlite");
    for mode in chosen(&[Mode::Ordered, Mode::Manylogs]) {
        let dir = folder();
        let at = dir.path().join("mnt");
        let disk = disk(mode, BLOCKS);
        let m = mounted(disk.clone(), &at);
        let mut tests = by(("nobody", "nogroup"), &at, tools.join("build/testfixture"));
        let (_, text) = output(tests.arg(tools.join("test/veryquick.test")));
        unmount(disk, m);
        let result = text.lines().find(|l| l.contains(" errors out of "));
        let last = || text.lines().rev().take(60).collect::<Vec<_>>().join("\n");
        let result = result.unwrap_or_else(|| panic!("SQLite's tests didn't end:\n{}", last()));
        println!("{}: SQLite: {result}", mode.name());
        let failures: Vec<&str> = text.lines().filter(|l| l.starts_with("!Failures")).collect();
        let count: Vec<u64> = result.split(' ').filter_map(|w| w.parse().ok()).collect();
        assert!(count[0] == 0 && count[1] > 200_000, "{result}: {failures:?}\n{}", last());
    }
}

#[test]
#[ignore = "needs dbench: make fs-programs"]
fn dbench() {
    for mode in chosen(&Mode::ALL) {
        for options in [&["-x"][..], &["-x", "-s", "-S"]] {
            let dir = folder();
            let at = dir.path().join("mnt");
            let disk = disk(mode, BLOCKS);
            let m = mounted(disk.clone(), &at);
            let mut c = Command::new("dbench");
            c.args(["-c", "/usr/share/dbench/client.txt", "-t", "15"]).args(options).arg("-D").arg(&at).arg("8");
            let text = succeed(&mut c);
            unmount(disk, m);
            let result = text.lines().find(|l| l.starts_with("Throughput")).expect("it ended");
            let operations: u64 = text.lines().filter_map(|l| l.split_whitespace().nth(1)?.parse::<u64>().ok()).sum();
            println!("{}: dbench {}: {operations} operations", mode.name(), options.join(" "));
            let errors: Vec<&str> = text.lines().filter(|l| l.starts_with('[') && l.contains("failed")).collect();
            assert!(errors.is_empty(), "{errors:?} {result}");
        }
    }
}

#[test]
#[ignore = "needs fio: make fs-programs"]
fn fio() {
    for mode in chosen(&Mode::ALL) {
        let dir = folder();
        let jobs = dir.path().join("jobs");
        fs::write(&jobs, FIO).unwrap();
        let at = dir.path().join("mnt");
        let disk = disk(mode, BLOCKS);
        for verify_only in [false, true] {
            let m = mounted(disk.clone(), &at);
            let mut c = Command::new("fio");
            c.arg("--directory").arg(&at).current_dir(dir.path());
            let text = succeed(c.args(verify_only.then_some("--verify_only")).arg(&jobs));
            unmount(disk.clone(), m);
            let jobs = text.lines().filter(|l| l.contains("err= 0")).count();
            println!("{}: fio{}: {jobs} jobs", mode.name(), if verify_only { ", after another mount" } else { "" });
            assert_eq!(jobs, 6, "{text}");
        }
    }
}

#[test]
#[ignore = "needs git and zlib's source: make fs-programs"]
fn git_and_a_build() {
    let zlib = tools().join("zlib");
    let git = |at: &Path, args: &[&str]| {
        let mut c = Command::new("git");
        c.args(["-c", "safe.directory=*", "-C"]).arg(at).args(args);
        succeed(&mut c)
    };
    let make = |at: &Path, args: &[&str]| succeed(Command::new("make").current_dir(at).args(args));
    let build = |at: &Path| {
        git(at, &["-c", "core.fsync=all", "clone", "--quiet", "--no-local", &zlib.to_string_lossy(), "zlib"]);
        let at = at.join("zlib");
        git(&at, &["fsck", "--strict"]);
        assert_eq!(git(&at, &["status", "--porcelain"]), "");
        succeed(Command::new("./configure").current_dir(&at));
        make(&at, &["-j", "2"]);
        let text = make(&at, &["test"]);
        assert_eq!(text.matches("test OK").count(), 3, "{text}");
        ["libz.a", "libz.so", "minigzip", "example"].map(|f| fs::read(at.join(f)).unwrap())
    };
    for mode in chosen(&Mode::ALL) {
        let dir = folder();
        let at = dir.path().join("mnt");
        let disk = disk(mode, BLOCKS);
        let m = mounted(disk.clone(), &at);
        let built = build(&at);
        assert!(built == build(&dir.path().join("other")), "another result than natively");
        git(&at.join("zlib"), &["gc", "--quiet", "--prune=now"]);
        unmount(disk.clone(), m);
        let m = mounted(disk.clone(), &at);
        git(&at.join("zlib"), &["fsck", "--strict"]);
        // By the times of the files nothing is left to be done.
        make(&at.join("zlib"), &["--question", "all"]);
        assert!(built[0] == fs::read(at.join("zlib/libz.a")).unwrap());
        unmount(disk, m);
        println!("{}: git clone, gc and fsck; a build of zlib and its tests", mode.name());
    }
}
