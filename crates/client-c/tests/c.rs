//! A C program is compiled against the header and the library, and run.

#[path = "../../client/tests/fake/mod.rs"]
mod fake;

use fake::{Does, Fake};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The folder of the library. Cargo builds no cdylib for tests, so it is asked to.
fn library() -> PathBuf {
    let exe = std::env::current_exe().unwrap();
    let folder = exe.ancestors().nth(2).unwrap();
    let mut build = Command::new(env!("CARGO"));
    build.args(["build", "--quiet", "--package", "plimsoll-client-c"]).current_dir(env!("CARGO_MANIFEST_DIR"));
    if folder.ends_with("release") {
        build.arg("--release");
    }
    assert!(build.status().unwrap().success(), "the library doesn't build");
    folder.to_path_buf()
}

#[test]
fn a_c_program_reads() {
    let dir = tempfile::tempdir().unwrap();
    let fakes = [("a", 1, Does::Busy(50_000)), ("b", 2, Does::Serve), ("c", 3, Does::Serve)]
        .map(|(name, fill, does)| Fake::start(dir.path(), name, fill, does));
    let libraries = library();
    let source = Path::new(env!("CARGO_MANIFEST_DIR"));
    let program = dir.path().join("smoke");
    let compiled = Command::new("cc")
        .args(["-std=c99", "-Wall", "-Wextra", "-pedantic", "-Werror", "-pthread", "-D_POSIX_C_SOURCE=200809L"])
        .arg("-I")
        .arg(source.join("include"))
        .arg(source.join("tests/c/smoke.c"))
        .arg("-o")
        .arg(&program)
        .arg("-L")
        .arg(&libraries)
        .arg("-lplimsoll_client_c")
        .output()
        .unwrap();
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    let addresses: Vec<String> = fakes.iter().map(|f| f.address().to_string()).collect();
    let ran = Command::new(program).args(addresses).env("LD_LIBRARY_PATH", &libraries).output().unwrap();
    let said = format!("{}{}", String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
    assert!(ran.status.success() && said.contains("ok"), "{said}");
}
