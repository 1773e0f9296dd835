//! A device that two processes want.
//!
//! A program of its own: a process that a test starts holds copies of all files of its program, with their locks, until it runs
//! (close-on-exec closes them no sooner). Tests beside it that drop a device and open it again would find it locked.

use plimsoll_store::{CreateOptions, DeviceFile, Expect, Uuid};
use std::path::Path;

const POOL: Uuid = Uuid::from_u128(0x0a11_0ca7_ed00_4000_8000_0000_0000_0001);

fn expect() -> Expect {
    Expect { pool_uuid: Some(POOL), device_uuid: None, role: "main".into() }
}

/// In a process of its own when run by the next test; nothing otherwise.
#[test]
fn as_a_second_process() {
    let Some(path) = std::env::var_os("PLIMSOLL_TEST_OPEN") else { return };
    println!("told: {}", DeviceFile::open(Path::new(&path), &expect()).expect_err("locked"));
}

#[test]
fn a_second_process_is_refused_and_told_which_the_first_is() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("d");
    let options =
        CreateOptions { size_bytes: 64 << 20, pool_uuid: POOL, role: "main".into(), logs_bytes: 0, main_uuid: None };
    let first = DeviceFile::create(&path, &options).expect("created");
    let exe = std::env::current_exe().expect("known");
    let mut second = std::process::Command::new(exe);
    second.args(["--exact", "as_a_second_process", "--nocapture"]).env("PLIMSOLL_TEST_OPEN", &path);
    let out = second.output().expect("runs");
    let told = String::from_utf8_lossy(&out.stdout);
    let words = [&format!("process {} uses this device", std::process::id()), "another process (or a mount)"];
    assert!(out.status.success() && words.iter().any(|w| told.contains(*w)), "{told}");
    drop(first);
    DeviceFile::open(&path, &expect()).expect("free again");
}
