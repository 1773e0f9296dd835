//! A device that two processes want.
//!
//! A program of its own: a process that a test starts holds copies of all files of its program, with their locks, until it runs
//! (close-on-exec closes them no sooner). Tests beside it that drop a device and open it again would find it locked.

use plimsoll_store::{CreateOptions, DeviceErrorKind, DeviceFile, Expect, Uuid};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

/// A process that one test starts has copies of the other's files, too.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

const POOL: Uuid = Uuid::from_u128(0x0a11_0ca7_ed00_4000_8000_0000_0000_0001);

fn expect() -> Expect {
    Expect { pool_uuid: Some(POOL), device_uuid: None, role: "main".into() }
}

/// In a process of its own when run by the next tests; nothing otherwise.
#[test]
fn as_a_second_process() {
    if std::env::var_os("PLIMSOLL_TEST_LOCK").is_some() {
        rustix::fs::flock(std::io::stdin(), rustix::fs::FlockOperation::NonBlockingLockExclusive).expect("it is free");
        return;
    }
    let Some(path) = std::env::var_os("PLIMSOLL_TEST_OPEN") else { return };
    println!("told: {}", DeviceFile::open(Path::new(&path), &expect()).expect_err("locked"));
}

#[test]
fn a_second_process_is_refused_and_told_which_the_first_is() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("d");
    let options = CreateOptions {
        size_bytes: 64 << 20,
        pool_uuid: POOL,
        role: "main".into(),
        logs_bytes: 0,
        align_bytes: 0,
        main_uuid: None,
    };
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

/// A process took the lock and ended, and its open file is still in use, as requests under way keep it.
#[test]
fn requests_of_a_process_that_has_ended_are_waited_for() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("d");
    let options = CreateOptions {
        size_bytes: 64 << 20,
        pool_uuid: POOL,
        role: "main".into(),
        logs_bytes: 0,
        align_bytes: 0,
        main_uuid: None,
    };
    drop(DeviceFile::create(&path, &options).expect("created"));
    let file = std::fs::File::options().read(true).write(true).open(&path).expect("it is there");
    let mut command = std::process::Command::new(std::env::current_exe().expect("known"));
    command.args(["--exact", "as_a_second_process"]).env("PLIMSOLL_TEST_LOCK", "1");
    let mut owner = command.stdin(file.try_clone().expect("a copy")).spawn().expect("runs");
    drop(command); // which has a copy of the open file
    assert!(owner.wait().expect("it ends").success());
    let kind = DeviceFile::open(&path, &expect()).expect_err("locked").kind;
    match kind {
        DeviceErrorKind::RequestsUnderWay { pid } => assert_eq!(pid, owner.id()),
        // In a container.
        other => assert!(matches!(other, DeviceErrorKind::Locked { pid: None }), "{other:?}"),
    }
    let waits = std::thread::spawn(move || DeviceFile::open(&path, &expect()).map(drop));
    drop(file);
    waits.join().expect("no panic").expect("they have ended");
}
