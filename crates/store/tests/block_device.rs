//! A block device: a loop device over a temporary file. Needs root and loop devices; says so where they are absent.

use plimsoll_base::Class;
use plimsoll_store::{CreateOptions, DeviceErrorKind, DeviceFile, Expect, NewVolume, TenantLimits, TenantRecord, Uuid};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

const POOL: Uuid = Uuid::from_u128(7);
const SIZE_BYTES: u64 = 32 << 20;

/// Detached when dropped.
struct Loop(PathBuf);

impl Loop {
    fn over(file: &Path, sector_bytes: u32) -> Result<Loop, String> {
        let sector_bytes = sector_bytes.to_string();
        let out = Command::new("losetup").args(["--find", "--show", "--sector-size", &sector_bytes]).arg(file).output();
        let out = out.map_err(|e| e.to_string())?;
        let name = String::from_utf8_lossy(&out.stdout).trim().to_owned();
        if out.status.success() { Ok(Loop(name.into())) } else { Err(String::from_utf8_lossy(&out.stderr).into()) }
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("--detach").arg(&self.0).status();
    }
}

fn open(path: &Path) -> Result<DeviceFile, DeviceErrorKind> {
    DeviceFile::open(path, &Expect { pool_uuid: Some(POOL), device_uuid: None, role: "fast".into() })
        .map_err(|e| e.kind)
}

fn create(path: &Path, size_bytes: u64) -> Result<DeviceFile, DeviceErrorKind> {
    DeviceFile::create(
        path,
        &CreateOptions {
            size_bytes,
            pool_uuid: POOL,
            role: "fast".into(),
            logs_bytes: 0,
            align_bytes: 0,
            main_uuid: None,
        },
    )
    .map_err(|e| e.kind)
}

#[test]
fn a_block_device_is_formatted_zeroed_and_claimed() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("backing");
    std::fs::write(&file, vec![0xa5; SIZE_BYTES as usize]).expect("written"); // an old owner's data
    let device = match Loop::over(&file, 4096) {
        Ok(device) => device,
        Err(why) => {
            // Past the capture of passing tests' output, so that the gap is seen.
            let _ = writeln!(std::io::stderr(), "ran WITHOUT a loop device, block devices are not tested: {why}");
            return;
        }
    };
    let path = device.0.as_path();
    assert!(matches!(create(path, 0), Err(DeviceErrorKind::Foreign)));
    let raw = std::fs::OpenOptions::new().write(true).open(path).expect("there");
    raw.write_all_at(&vec![0; 1 << 20], 0).expect("its owner clears the first MiB");
    raw.sync_all().expect("synced");
    drop(raw);
    assert!(matches!(create(path, SIZE_BYTES + 1), Err(DeviceErrorKind::TooSmall { .. })));
    let made = create(path, 0).expect("created");
    assert!(made.is_block_device() && made.is_direct());
    assert_eq!((made.block_bytes(), made.superblock().end()), (4096, SIZE_BYTES));
    let home = made.home();
    let mut bytes = vec![1; home.len as usize];
    std::fs::File::open(path).expect("there").read_exact_at(&mut bytes, home.offset).expect("readable");
    assert!(bytes.iter().all(|b| *b == 0), "free space reads as zeroes");
    let mut meta = made.open_meta(u64::MAX).expect("formatted");
    let class = Class::Fenced { slots: 2 };
    meta.set_tenant(TenantRecord {
        name: "t".into(),
        class,
        limits: TenantLimits::default(),
        change: 0,
        deadline: None,
    })
    .expect("set");
    let new = NewVolume {
        name: "v".into(),
        size_bytes: home.len,
        tenant: "t".into(),
        read_only: false,
        description: None,
        cache: None,
    };
    meta.create_volume(new).expect("room");
    assert!(matches!(open(path), Err(DeviceErrorKind::Locked { .. })));
    // Under another name: another inode, so that only the kernel's own claim on the device refuses.
    let alias = dir.path().join("alias");
    let major_minor =
        std::fs::read_to_string(format!("/sys/class/block/{}/dev", path.file_name().expect("a name").display()));
    let major_minor = major_minor.expect("in sysfs");
    let (major, minor) = major_minor.trim().split_once(':').expect("major:minor");
    let made_node = Command::new("mknod").arg(&alias).args(["b", major, minor]).status().expect("mknod runs");
    assert!(made_node.success());
    assert!(matches!(open(&alias), Err(DeviceErrorKind::Locked { pid: None })));
    drop((meta, made));
    let again = open(&alias).expect("opens");
    assert_eq!(again.open_meta(u64::MAX).expect("opens").volumes().count(), 1);
}
