//! `plimsoll lab` starts `plimsoll-lab`, and says what is missing if it isn't there.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Our program under `dir`, where no other program of ours lies. Another process writes it: a file that this one had open for
/// writing is busy ("Text file busy") for as long as a test beside this one starts a program.
fn installed(dir: &Path) -> PathBuf {
    let program = dir.join("plimsoll");
    assert!(Command::new("cp").arg(env!("CARGO_BIN_EXE_plimsoll")).arg(&program).status().unwrap().success());
    program
}

/// A program that prints its name and arguments, and ends with status 7.
fn stub(dir: &Path, name: &str) {
    let (text, file) = (dir.join("stub"), dir.join("plimsoll-lab"));
    fs::write(&text, format!("#!/bin/sh\necho {name} \"$@\"\necho its error >&2\nexit 7\n")).unwrap();
    // As in `installed`.
    assert!(Command::new("install").args(["-m", "755"]).args([text, file]).status().unwrap().success());
}

fn lab(program: &Path, path: &Path, args: &[&str]) -> Output {
    Command::new(program).arg("lab").args(args).env("PATH", path).output().expect("it starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn the_program_beside_ours_comes_before_the_one_in_path() {
    let (beside, path) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let program = installed(beside.path());

    let out = lab(&program, path.path(), &["list"]);
    assert_eq!((out.status.code(), out.stdout.len()), (Some(1), 0));
    let told = text(&out.stderr);
    assert!(told.contains("neither beside this program nor in PATH"), "{told}");
    assert!(told.contains("cargo build --release -p plimsoll-lab"), "{told}");

    stub(path.path(), "in PATH");
    let out = lab(&program, path.path(), &["run", "MT-E4", "--quick"]);
    assert_eq!((out.status.code(), text(&out.stdout).as_str()), (Some(7), "in PATH run MT-E4 --quick\n"));
    assert_eq!(text(&out.stderr), "its error\n");

    stub(beside.path(), "beside");
    for args in [&["--help"][..], &["--version"], &["run", "--", "-x"], &[]] {
        let out = lab(&program, path.path(), args);
        let expected = format!("{}\n", [&["beside"], args].concat().join(" "));
        assert_eq!((out.status.code(), text(&out.stdout)), (Some(7), expected));
    }
}
