//! An unmodified program (python3, by os.pread) under the library, with an agent, as root.

#[path = "../../host/tests/common/mod.rs"]
mod common;

use common::{Modelled, Noise, Ticking};
use plimsoll_host::agent::{Access, Wanted};
use plimsoll_host::{Options, Reader};
use plimsoll_testkit::{library_folder, until};
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::process::Command;

/// Reads a page; evicts it; reads it until a read fails, or twenty times. Prints the failure's number.
const PROGRAM: &str = r#"
import errno, os, sys
fd = os.open(sys.argv[1], os.O_RDONLY)
assert os.pread(fd, 4096, 0) == b"\7" * 4096
for _ in range(20):
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    try:
        assert os.pread(fd, 4096, 0) == b"\7" * 4096
    except OSError as e:
        print(errno.errorcode[e.errno])
        raise SystemExit
print("never")
"#;

#[test]
fn an_unmodified_program_is_refused_in_the_folders_that_are_named() {
    let library = library_folder("plimsoll-host-shim").join("libplimsoll_deadline.so");
    let dir = tempfile::tempdir().unwrap();
    let modelled = Modelled::start(dir.path(), 64, 4);
    let disk = modelled.disk.as_ref().unwrap();
    let path = modelled.folder().join("file");
    std::fs::write(&path, vec![7; 1 << 16]).unwrap();
    common::run("sync", &["--file-system", path.to_str().unwrap()]);
    let agent =
        Ticking::start(dir.path(), Wanted { disks: vec![disk.name().into()], ..Wanted::default() }, Access::Owner);
    let reader = Reader::new(Options { socket: agent.socket.clone(), ..Options::default() });
    let dev = File::open(&path).unwrap().metadata().unwrap().dev();
    let noise = Noise::start(disk, 6, 32 << 20);
    until("the disk is busy", || reader.forecast(dev, 4096).is_some_and(|f| f.wait_ns > 8_000_000));
    let run = |deadlines: &str, processes: Option<&str>| {
        let mut python = Command::new("python3");
        python.args(["-c", PROGRAM]).arg(&path).env("LD_PRELOAD", &library).env("PLIMSOLL_DEADLINES", deadlines);
        python.env("PLIMSOLL_HOST_SOCKET", &agent.socket);
        processes.map(|p| python.env("PLIMSOLL_DEADLINE_PROCESSES", p));
        let output = python.output().unwrap();
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
    };
    let here = format!("{}=4ms", modelled.folder().display());
    assert_eq!(run(&here, None).trim(), "EBUSY");
    assert_eq!(run(&here, Some("other,python3")).trim(), "EBUSY");
    let short = |rules: &str, processes| {
        let said = run(rules, processes);
        assert!(said.contains("never"), "{rules} {processes:?}: {said}");
        said
    };
    short(&here, Some("postgres"));
    short(&format!("/={};{}=off", "4ms", modelled.folder().display()), None);
    assert!(short("here=4ms", None).contains("isn't an absolute path"));
    drop(noise);
}
