//! RocksDB's plug-in: its deadlines are RocksDB's own. Debian's db_bench, unmodified, is served, and refused with RocksDB's own Busy while the
//! disk is busy.

#[path = "../../host/tests/common/mod.rs"]
mod common;
#[path = "../../host/tests/common/posed.rs"]
mod posed;

use common::{Modelled, Noise, Ticking};
use plimsoll_host::agent::{Access, Wanted};
use plimsoll_host::{Options, Reader};
use plimsoll_testkit::{library_folder, until};
use posed::Posed;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Standard output and error of a program.
fn both(command: &mut Command) -> (bool, String) {
    let output = command.output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    (
        output.status.success(),
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr)),
    )
}

/// Compiles the plug-in and other sources into `to`; returns the folder of host mode's library.
fn compile(to: &Path, arguments: &[&str], sources: &[&str]) -> PathBuf {
    let libraries = library_folder("plimsoll-host-c");
    let source = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut compile = Command::new("g++");
    compile.args(["-std=c++17", "-Wall", "-Wextra", "-Werror"]).args(arguments).arg("-o").arg(to);
    compile.arg("-I").arg(source.join("include")).arg("-I").arg(source.join("../../integrations/common"));
    compile.arg(source.join("../../integrations/rocksdb/plimsoll_fs.cc")).args(sources.iter().map(|s| source.join(s)));
    compile.arg("-L").arg(&libraries).args(["-lplimsoll_host_c", "-lrocksdb", "-pthread"]);
    let (compiled, said) = both(&mut compile);
    assert!(compiled, "librocksdb-dev is in test-deps: {said}");
    libraries
}

#[test]
fn a_deadline_and_an_io_timeout_are_kept() {
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("rocksdb");
    let libraries = compile(&program, &[], &["tests/cc/rocksdb.cc"]);
    // On the disk that has the build, as /tmp may have none.
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let socket = dir.path().join("host.sock");
    let _agent = Posed::start(folder.path(), &socket, false);
    let mut program = Command::new(program);
    program.arg(folder.path().join("db")).env("LD_LIBRARY_PATH", libraries).env("PLIMSOLL_HOST_SOCKET", socket);
    let (done, said) = both(program.env_remove("PLIMSOLL_DEADLINE_US"));
    assert!(done && said.contains("ok"), "{said}");
}

/// RocksDB keeps all tables open (`max_open_files` of -1): with a second descriptor for each these would be too many.
#[test]
fn many_tables_open_within_the_limit_of_descriptors() {
    let dir = tempfile::tempdir().unwrap();
    let plugin = dir.path().join("libplimsoll_rocksdb.so");
    let libraries = compile(&plugin, &["-fPIC", "-shared"], &[]);
    let db = dir.path().join("db");
    let db_bench = |arguments: &[&str]| {
        let mut program = Command::new("prlimit");
        program.args(["--nofile=160", "db_bench", "--fs_uri=plimsoll://", "--open_files=-1", "--num=10000"]);
        program.args(["--value_size=1000", "--compression_type=none", "--disable_auto_compactions=1", "--threads=1"]);
        program.args(["--write_buffer_size=102400", "--level0_slowdown_writes_trigger=1000"]);
        program.args(["--level0_stop_writes_trigger=1000", "--max_background_flushes=1"]).args(arguments);
        program.arg(format!("--db={}", db.display())).env("LD_PRELOAD", &plugin).env("LD_LIBRARY_PATH", &libraries);
        both(program.env("PLIMSOLL_HOST_SOCKET", dir.path().join("none")).env("PLIMSOLL_DEADLINE_US", "1000"))
    };
    let (done, said) = db_bench(&["--benchmarks=fillrandom,flush,readrandom", "--reads=100"]);
    assert!(done, "{said}");
    let is_table = |e: &std::fs::DirEntry| e.path().extension().is_some_and(|x| x == "sst");
    let tables = std::fs::read_dir(&db).unwrap().flatten().filter(is_table).count();
    assert!((80..150).contains(&tables), "{tables} tables don't show it");
    let reports =
        |said: &str| said.matches("tables beyond a fifth of the limit of open files have no deadline").count();
    assert_eq!(reports(&said), 1, "{said}");
    let (done, said) = db_bench(&["--benchmarks=readrandom", "--use_existing_db=1", "--reads=100"]);
    assert!(done && said.contains("readrandom"), "{said}");
}

#[test]
fn db_bench_is_refused_with_rocksdbs_own_busy() {
    let dir = tempfile::tempdir().unwrap();
    let plugin = dir.path().join("libplimsoll_rocksdb.so");
    let libraries = compile(&plugin, &["-fPIC", "-shared"], &[]);

    let modelled = Modelled::start(dir.path(), 96, 4);
    let disk = modelled.disk.as_ref().unwrap();
    let socket = dir.path().join("host.sock");
    let db = format!("--db={}", modelled.folder().join("db").display());
    let db_bench_within = |arguments: &[&str], deadline_us: &str| {
        let mut program = Command::new("db_bench");
        program.args(["--fs_uri=plimsoll://", &db, "--num=2000", "--value_size=1000", "--compression_type=none"]);
        program.args(["--cache_size=0", "--threads=1"]).args(arguments).env("LD_PRELOAD", &plugin);
        program.env("LD_LIBRARY_PATH", &libraries).env("PLIMSOLL_HOST_SOCKET", &socket);
        both(program.env("PLIMSOLL_DEADLINE_US", deadline_us))
    };
    let db_bench = |arguments: &[&str], deadline_us: u32| db_bench_within(arguments, &deadline_us.to_string());
    // Nobody listens: plain reads, and that is told once.
    let (done, said) = db_bench(&["--benchmarks=fillseq,compact,readrandom", "--reads=200"], 1000);
    assert!(done && said.matches("no host agent can be reached").count() == 1, "{said}");

    // A unit isn't ignored: it would be a deadline of a microsecond.
    let (done, said) = db_bench_within(&["--benchmarks=readrandom", "--use_existing_db=1", "--reads=9"], "1ms");
    assert!(done && said.contains("PLIMSOLL_DEADLINE_US=1ms isn't a number of microseconds"), "{said}");
    assert!(!said.contains("no host agent"), "{said}");

    // A table above the others, so that a compaction has to read.
    let (done, said) =
        db_bench(&["--benchmarks=overwrite,flush", "--use_existing_db=1", "--disable_auto_compactions=1"], 0);
    assert!(done, "{said}");

    let wanted = Wanted { disks: vec![disk.name().into()], ..Wanted::default() };
    let agent = Ticking::start(dir.path(), wanted, Access::Owner);
    let reader = Reader::new(Options { socket: agent.socket.clone(), ..Options::default() });
    let dev = File::open(modelled.folder()).unwrap().metadata().unwrap().dev();
    let noise = Noise::start(disk, 6, 64 << 20);
    until("the disk is busy", || reader.forecast(dev, 4096).is_some_and(|f| f.wait_ns > 8_000_000));
    let over = AtomicBool::new(false);
    std::thread::scope(|s| {
        s.spawn(|| {
            while !over.load(Relaxed) {
                // A compaction makes new ones.
                for entry in std::fs::read_dir(modelled.folder().join("db")).unwrap().flatten() {
                    if let Ok(file) = File::open(entry.path()) {
                        let _ = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed);
                    }
                }
                std::thread::sleep(std::time::Duration::from_millis(2));
            }
        });
        // Opening a database and compactions have no default deadline, however short it is.
        let arguments = ["--benchmarks=compact", "--use_existing_db=1", "--disable_auto_compactions=1"];
        let (done, said) = db_bench(&arguments, 1);
        assert!(done && !said.contains("busy"), "{said}");
        let arguments = ["--benchmarks=readrandom", "--use_existing_db=1", "--reads=2000"];
        let (_, said) = db_bench(&arguments, 4000);
        over.store(true, Relaxed);
        assert!(said.contains("Resource busy: plimsoll: wait about"), "{said}");
    });
    // Without noise, within a long deadline, it ends in order.
    drop(noise);
    let (done, said) = db_bench(&["--benchmarks=readrandom", "--use_existing_db=1", "--reads=200"], 60_000_000);
    assert!(done && said.contains("readrandom"), "{said}");
}
