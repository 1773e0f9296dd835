//! Suites of others against a mount, in each journaling mode: pjdfstest (POSIX) and fsx (random operations on one file, also through
//! mapped memory). `make fs-conformance` installs them and runs this, as root.
//!
//! `PLIMSOLL_FS_TOOLS` is the folder of both programs, `PLIMSOLL_FSX_OPERATIONS` the number of fsx's operations per mode and seed.

mod common;

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use common::{disk, folder, mounted, unmount};
use plimsoll_fs::Mode;

const BLOCKS: u64 = 131_072;

/// Cases that pjdfstest leaves out: those that mount the file system again (`erofs`), and one that asks for the number of links.
const SKIPPED: usize = 14;

const PJDFSTEST: &str = r#"
[features]
posix_fallocate = {}
rename_ctime = {}
utimensat = {}
utime_now = {}
stat_st_birthtime = {}

[settings]
naptime = 0.02
allow_remount = false

[dummy_auth]
entries = [["nobody", "nogroup"], ["daemon", "daemon"]]
"#;

const FSX: &str = "
flen = 1048576

[opsize]
max = 131072

[weights]
close_open = 1
invalidate = 1
mapread = 10
mapwrite = 10
read = 10
write = 10
truncate = 5
fsync = 1
fdatasync = 1
posix_fallocate = 4
punch_hole = 6
sendfile = 3
posix_fadvise = 1
copy_file_range = 5
";

fn program(name: &str) -> PathBuf {
    let path = PathBuf::from(std::env::var("PLIMSOLL_FS_TOOLS").unwrap_or_default()).join(name);
    let found = Command::new(&path).arg("--help").output().is_ok_and(|o| o.status.success());
    assert!(found, "{} is missing: `make fs-conformance` installs it", path.display());
    path
}

#[test]
#[ignore = "needs pjdfstest: make fs-conformance"]
fn pjdfstest() {
    let program = program("pjdfstest");
    for mode in Mode::ALL {
        let dir = folder();
        let config = dir.path().join("pjdfstest.toml");
        fs::write(&config, PJDFSTEST).unwrap();
        let at = dir.path().join("mnt");
        let disk = disk(mode, BLOCKS);
        let m = mounted(disk.clone(), &at);
        let mut pjdfstest = Command::new(&program);
        pjdfstest
            .env("NO_COLOR", "1")
            .arg("-c")
            .arg(&config)
            .arg("-p")
            .arg(&at)
            .arg("-s")
            .arg(dir.path().join("other"));
        let run = pjdfstest.output().unwrap();
        unmount(disk, m);
        let out = String::from_utf8_lossy(&run.stdout);
        println!("{}: {}", mode.name(), out.trim_end().lines().last().unwrap_or(""));
        assert!(run.status.success(), "{out}{}", String::from_utf8_lossy(&run.stderr));
        assert!(out.contains(&format!(" {SKIPPED} skipped")), "{out}");
    }
}

#[test]
#[ignore = "needs fsx: make fs-conformance"]
fn fsx() {
    let program = program("fsx");
    let operations = std::env::var("PLIMSOLL_FSX_OPERATIONS").unwrap_or("25000".into());
    for mode in Mode::ALL {
        for seed in 1..=4 {
            let dir = folder();
            let config = dir.path().join("fsx.toml");
            fs::write(&config, FSX).unwrap();
            let at = dir.path().join("mnt");
            let disk = disk(mode, BLOCKS);
            let m = mounted(disk.clone(), &at);
            let mut fsx = Command::new(&program);
            fsx.arg("-f").arg(&config).arg("-P").arg(dir.path()).arg("-N").arg(&operations);
            let run = fsx.arg("-S").arg(seed.to_string()).arg(at.join("file")).output().unwrap();
            unmount(disk, m);
            println!("{}, seed {seed}: {operations} operations: {}", mode.name(), run.status);
            let text = |b: &[u8]| String::from_utf8_lossy(b).lines().rev().take(60).collect::<Vec<_>>().join("\n");
            assert!(run.status.success(), "{}\n{}", text(&run.stdout), text(&run.stderr));
        }
    }
}
