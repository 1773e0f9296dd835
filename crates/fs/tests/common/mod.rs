//! A mount for programs of others.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use plimsoll_fs::mount::{Mount, Mounted, mount};
use plimsoll_fs::{Format, Fs, MemDisk, Mode, Options, fsck, mkfs};

/// A disk in memory with an empty file system.
pub fn disk(mode: Mode, blocks: u64) -> Arc<MemDisk> {
    let disk = Arc::new(MemDisk::new(blocks));
    mkfs(disk.clone(), Format::new(3, mode, blocks), (0, 0)).unwrap();
    disk
}

/// A mount that all users may use.
pub fn mounted(disk: Arc<MemDisk>, at: &Path) -> Mounted {
    let fs = Fs::mount(disk.clone(), Options::default()).unwrap();
    let how = Mount { source: "test".into(), allow_other: true, threads: 3, read_only: false };
    let m = mount(fs, disk, at, &how).unwrap();
    if let Err(e) = fs::set_permissions(at, fs::Permissions::from_mode(0o777)) {
        panic!("{e}; the mount ended with {:?}", m.wait());
    }
    m
}

pub fn unmount(disk: Arc<MemDisk>, m: Mounted) {
    m.unmounter().unmount().unwrap();
    m.wait().unwrap();
    assert_eq!(fsck(disk, false).unwrap().problems, Vec::<String>::new());
}

/// A folder that all users may enter.
pub fn folder() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    for name in ["mnt", "other"] {
        let path = dir.path().join(name);
        fs::create_dir(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).unwrap();
    }
    dir
}
