//! LevelDB's Env: a program that has it is refused and asks another replica. Python's plyvel, unmodified, has it by preloading.

#[path = "../../host/tests/common/mod.rs"]
mod common;
#[path = "../../host/tests/common/posed.rs"]
mod posed;

use common::{Loop, Modelled, Noise, Ticking, run};
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

/// Compiles sources of the Env and others into `to`; returns the folder of host mode's library.
fn compile(to: &Path, arguments: &[&str], sources: &[&str]) -> PathBuf {
    let libraries = library_folder("plimsoll-host-c");
    let crate_folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let env = crate_folder.join("../../integrations/leveldb");
    let mut compile = Command::new("g++");
    compile.args(["-std=c++17", "-Wall", "-Wextra", "-Werror"]).args(arguments).arg("-o").arg(to);
    compile.arg("-I").arg(crate_folder.join("include")).arg("-I").arg(&env);
    compile.arg("-I").arg(env.join("../common")).arg(env.join("plimsoll_env.cc"));
    compile.args(sources.iter().map(|s| crate_folder.join(s))).arg("-L").arg(&libraries);
    let (compiled, said) = both(compile.args(["-lplimsoll_host_c", "-lleveldb", "-ldl", "-pthread"]));
    assert!(compiled, "libleveldb-dev is in test-deps: {said}");
    libraries
}

#[test]
fn a_program_with_the_env_is_refused_and_asks_another_replica() {
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("leveldb");
    let libraries = compile(&program, &[], &["tests/cc/leveldb.cc"]);
    let disk = Loop::new(dir.path(), 256 << 20);
    run("mkfs.ext4", &["-q", &disk.0]);
    let (busy, quiet) = (Mounted(dir.path().join("busy")), dir.path().join("quiet"));
    std::fs::create_dir(&busy.0).unwrap();
    std::fs::create_dir(&quiet).unwrap();
    run("mount", &[&disk.0, busy.0.to_str().unwrap()]);
    let socket = dir.path().join("host.sock");
    let _agent = Posed::start(&busy.0, &socket, false);
    let mut program = Command::new(program);
    program.arg(&busy.0).arg(&quiet).env("LD_LIBRARY_PATH", libraries).env("PLIMSOLL_HOST_SOCKET", socket);
    let (done, said) = both(&mut program);
    assert!(done && said.contains("ok"), "{said}");
}

/// usage: MODE FOLDER. `get` reads a few keys again and again, until a read fails.
const PLYVEL: &str = r#"
import sys
import plyvel
mode, folder = sys.argv[1:]
db = plyvel.DB(folder, create_if_missing=True, compression=None, lru_cache_size=0, write_buffer_size=128 << 10)
key = lambda n: b"key%06d" % n
if mode == "fill":
    for i in range(1000):
        db.put(key(i), b"v" * 1000)
    assert all(db.get(key(i)) == b"v" * 1000 for i in range(1000))
elif mode == "compact":
    for i in range(0, 1000, 9):
        db.put(key(i), b"v" * 1000)
    db.compact_range()
    db.put(key(0), b"v" * 1000)  # a failed compaction would fail it
else:
    for n in range(int(mode)):
        for i in range(0, 1000, 100):
            assert db.get(key(i)) == b"v" * 1000
print("done")
"#;

#[test]
fn plyvel_is_refused_unmodified_and_its_compactions_are_not() {
    let dir = tempfile::tempdir().unwrap();
    let library = dir.path().join("libplimsoll_leveldb.so");
    let sources = ["../../integrations/leveldb/plimsoll_preload.cc"];
    let libraries = compile(&library, &["-fPIC", "-shared"], &sources);
    let modelled = Modelled::start(dir.path(), 96, 4);
    let disk = modelled.disk.as_ref().unwrap();
    let socket = dir.path().join("host.sock");
    let db = modelled.folder().join("db");
    let python = |mode: &str, deadline_us: &str| {
        let mut program = Command::new("/usr/bin/python3"); // Debian's, which has Debian's modules
        program.args(["-c", PLYVEL, mode]).arg(&db).env("LD_PRELOAD", &library).env("LD_LIBRARY_PATH", &libraries);
        both(program.env("PLIMSOLL_HOST_SOCKET", &socket).env("PLIMSOLL_DEADLINE_US", deadline_us))
    };
    // Nobody listens: plain reads, and that is reported once.
    let (done, said) = python("fill", "1000");
    assert!(done && said.matches("no host agent can be reached").count() == 1, "{said}");
    let (done, said) = python("1", "4ms");
    assert!(done && said.contains("PLIMSOLL_DEADLINE_US=4ms isn't a number of microseconds"), "{said}");
    assert!(!said.contains("no host agent"), "{said}");
    let (done, said) = python("1", "0");
    assert!(done && said == "done\n", "{said}");

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
                for entry in std::fs::read_dir(&db).unwrap().flatten() {
                    if let Ok(file) = File::open(entry.path()) {
                        let _ = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed);
                    }
                }
                std::thread::sleep(std::time::Duration::from_millis(2));
            }
        });
        // Opening a database and compactions have no deadline, however short it is.
        let (done, compacted) = python("compact", "1");
        // A program may have read all before its files leave memory the next time.
        let is_refused = (0..100).any(|_| python("1000", "4000").1.contains("plimsoll: busy: wait about"));
        over.store(true, Relaxed);
        assert!(done && !compacted.contains("busy"), "{compacted}");
        assert!(is_refused, "no read is refused");
    });
    // Without noise, within a long deadline, it ends in order.
    drop(noise);
    let (done, said) = python("2", "60000000");
    assert!(done, "{said}");
}

struct Mounted(PathBuf);
impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}
