//! A C program is compiled against the header and the library, and run; the same in Python. As root, with an agent.

#[path = "../../host/tests/common/mod.rs"]
mod common;

use common::{Loop, Ticking, run};
use plimsoll_host::agent::{Access, Wanted};
use plimsoll_host::{Options, Reader};
use plimsoll_testkit::{library_folder, until};
use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;

#[test]
fn programs_in_c_and_python_read_with_deadlines() {
    let dir = tempfile::tempdir().unwrap();
    let libraries = library_folder("plimsoll-host-c");
    let source = Path::new(env!("CARGO_MANIFEST_DIR"));
    let program = dir.path().join("smoke");
    let compiled = Command::new("cc")
        .args(["-std=c99", "-Wall", "-Wextra", "-pedantic", "-Werror", "-D_POSIX_C_SOURCE=200809L"])
        .arg("-I")
        .arg(source.join("include"))
        .arg(source.join("tests/c/smoke.c"))
        .arg("-o")
        .arg(&program)
        .arg("-L")
        .arg(&libraries)
        .arg("-lplimsoll_host_c")
        .output()
        .unwrap();
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));

    let disk = Loop::new(dir.path(), 64 << 20);
    run("mkfs.ext4", &["-q", &disk.0]);
    let mounted = Mounted(dir.path().join("fs"));
    std::fs::create_dir(&mounted.0).unwrap();
    run("mount", &[&disk.0, mounted.0.to_str().unwrap()]);
    let path = mounted.0.join("file");
    std::fs::write(&path, vec![7; 1 << 20]).unwrap();
    let file = File::open(&path).unwrap();
    let agent =
        Ticking::start(dir.path(), Wanted { disks: vec![disk.name().into()], ..Wanted::default() }, Access::Owner);
    let reader = Reader::new(Options { socket: agent.socket.clone(), ..Options::default() });
    let dev = file.metadata().unwrap().dev();
    let evict = || {
        file.sync_all().unwrap();
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    };
    until("the disk is known", || {
        evict();
        (0..64).for_each(|i| file.read_exact_at(&mut [0], i * 16_384).unwrap());
        reader.forecast(dev, 4096).is_some()
    });
    let bindings = source.join("../../bindings/python/python");
    let smoke_py = source.join("tests/python/smoke.py");
    let mut c = Command::new(program);
    c.env("LD_LIBRARY_PATH", &libraries);
    let python = |packaged: &Path| {
        let mut python = Command::new("python3");
        python.arg(&smoke_py).arg(&bindings).arg(packaged).env_remove("LD_LIBRARY_PATH");
        python
    };
    let mut named = python(dir.path());
    named.env("PLIMSOLL_HOST_LIBRARY", libraries.join("libplimsoll_host_c.so"));
    for command in [&mut c, &mut named, python(&libraries).env_remove("PLIMSOLL_HOST_LIBRARY")] {
        evict();
        let ran = command.arg(&agent.socket).arg(&path).output().unwrap();
        let said = format!("{}{}", String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
        assert!(ran.status.success() && said.contains("ok"), "{command:?}: {said}");
    }
}

struct Mounted(PathBuf);
impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}
