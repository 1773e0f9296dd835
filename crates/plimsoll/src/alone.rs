//! Devices that a command has for itself while it writes to them: not mounted, not a running node's, and blank unless its data are given up.

use anyhow::{Context, Result};
use rustix::fs::{FlockOperation, OFlags};
use std::fs::{File, OpenOptions};
use std::io::{Seek, SeekFrom};
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::Path;

/// Options to open a device with, and these flags. The kernel refuses to have a block device written that it has mounted, or that another
/// program holds.
pub fn options(path: &Path, write: bool, flags: OFlags) -> OpenOptions {
    let is_block_device = std::fs::metadata(path).is_ok_and(|m| m.file_type().is_block_device());
    let alone = if write && is_block_device { OFlags::EXCL } else { OFlags::empty() };
    let mut options = OpenOptions::new();
    options.read(true).write(write).custom_flags((flags | alone).bits() as i32);
    options
}

/// Locks a device against nodes and other commands, shared by those that only read.
///
/// # Errors
/// If one has it.
pub fn lock(file: &File, path: &Path, write: bool) -> Result<()> {
    let how = if write { FlockOperation::NonBlockingLockExclusive } else { FlockOperation::NonBlockingLockShared };
    rustix::fs::flock(file, how).with_context(|| format!("{}: is it mounted, or a node's? lock it", path.display()))
}

/// Bytes at both ends of a device that are looked at: other systems have their marks there (btrfs at 64 KiB, ISO 9660 at 32 KiB, ZFS in the
/// first and last 512 KiB, md at 4 KiB or at the end).
const ENDS_BYTES: u64 = 1 << 20;

/// Returns whether a device, open without direct I/O, has nothing but zeroes at its ends.
///
/// # Errors
/// Those of the device.
pub fn is_blank(mut file: &File) -> std::io::Result<bool> {
    let bytes = file.seek(SeekFrom::End(0))?;
    let mut end = vec![0; ENDS_BYTES.min(bytes) as usize];
    for at in [0, bytes - end.len() as u64] {
        file.read_exact_at(&mut end, at)?;
        if end.iter().any(|b| *b != 0) {
            return Ok(false);
        }
    }
    Ok(true)
}
