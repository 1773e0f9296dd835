//! Properties of a file or block device, as the kernel reports them.

use rustix::fs::{AtFlags, FallocateFlags, FileType, SeekFrom, StatxFlags};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Kind of file at a path.
pub(crate) enum Kind {
    Regular,
    Block,
    Other,
}

/// Returns the kind of file at a path; `None` if there is none.
pub(crate) fn kind(path: &Path) -> io::Result<Option<Kind>> {
    match rustix::fs::stat(path) {
        Ok(stat) => Ok(Some(kind_of(stat.st_mode))),
        Err(rustix::io::Errno::NOENT) => Ok(None),
        Err(e) => Err(e.into()),
    }
}

fn kind_of(mode: u32) -> Kind {
    match FileType::from_raw_mode(mode) {
        FileType::RegularFile => Kind::Regular,
        FileType::BlockDevice => Kind::Block,
        _ => Kind::Other,
    }
}

/// An open file's measures.
pub(crate) struct Probe {
    pub(crate) is_block_device: bool,
    pub(crate) size_bytes: u64,
    /// Of direct I/O; a power of two, 512..=65536.
    pub(crate) block_bytes: u32,
}

impl Probe {
    pub(crate) fn of(file: &File) -> io::Result<Probe> {
        let is_block_device = matches!(kind_of(rustix::fs::fstat(file)?.st_mode), Kind::Block);
        let size_bytes = rustix::fs::seek(file, SeekFrom::End(0))?;
        let block_bytes =
            if is_block_device { rustix::fs::ioctl_blksszget(file)? } else { direct_alignment(file).unwrap_or(4096) };
        let block_bytes = block_bytes.next_power_of_two().clamp(512, 65536);
        Ok(Probe { is_block_device, size_bytes, block_bytes })
    }
}

/// Returns the alignment of direct I/O to a regular file, where the kernel (6.1 and later) and the file system report it.
fn direct_alignment(file: &File) -> Option<u32> {
    const DIOALIGN: u32 = 0x2000; // STATX_DIOALIGN, which rustix doesn't name
    let mask = StatxFlags::from_bits_retain(DIOALIGN);
    let statx = rustix::fs::statx(file, "", AtFlags::EMPTY_PATH, mask).ok()?;
    let known = statx.stx_mask & DIOALIGN != 0 && statx.stx_dio_offset_align != 0;
    known.then(|| statx.stx_dio_offset_align.max(statx.stx_dio_mem_align))
}

/// Returns whether two open files are the same file.
pub(crate) fn same_file(a: &File, b: &File) -> io::Result<bool> {
    let (a, b) = (rustix::fs::fstat(a)?, rustix::fs::fstat(b)?);
    Ok((a.st_dev, a.st_ino) == (b.st_dev, b.st_ino))
}

/// The process that took the flock on the file, if /proc/locks tells. It doesn't of processes of other containers, nor, in a container, of one
/// that has ended; nor on file systems whose device has another number than their files show.
pub(crate) fn lock_holder(file: &File) -> Option<u32> {
    let stat = rustix::fs::fstat(file).ok()?;
    let (major, minor) = (rustix::fs::major(stat.st_dev), rustix::fs::minor(stat.st_dev));
    let name = format!("{major:02x}:{minor:02x}:{}", stat.st_ino);
    let locks = std::fs::read_to_string("/proc/locks").ok()?;
    // "1: FLOCK  ADVISORY  WRITE 1234 08:01:5678 0 EOF"
    let holder = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        (words.get(1) == Some(&"FLOCK") && words.get(5) == Some(&name.as_str())).then(|| words[4].parse().ok())?
    };
    locks.lines().find_map(holder).filter(|pid| *pid != 0)
}

/// Allocates runs (offset and length) of a regular file, so that writing there later can't find its file system full. Data that is
/// written there already stays. False where the file system can't promise that.
///
/// # Errors
/// Those of the file system. Nothing is begun that it has no room for, so that its other users don't find it full.
pub(crate) fn reserve(file: &File, runs: &[(u64, u64)]) -> io::Result<bool> {
    let wanted_bytes: u64 = runs.iter().map(|(_, len)| len).sum();
    let (stat, system) = (rustix::fs::fstat(file)?, rustix::fs::fstatvfs(file)?);
    // What is allocated of the file may lie elsewhere: then the file system says itself that it is full.
    let missing_bytes = wanted_bytes.saturating_sub(stat.st_blocks as u64 * 512);
    let free_bytes = system.f_bavail * system.f_frsize;
    if missing_bytes > free_bytes {
        let what = format!("{missing_bytes} bytes are needed, and its file system has {free_bytes}");
        return Err(io::Error::new(io::ErrorKind::StorageFull, what));
    }
    for (offset, len) in runs {
        match rustix::fs::fallocate(file, FallocateFlags::KEEP_SIZE, *offset, *len) {
            Ok(()) => {}
            Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => return Ok(false),
            Err(e) => return Err(e.into()),
        }
    }
    Ok(true)
}

/// Makes a run of a device read as zeroes, durably.
pub(crate) fn zero(file: &File, offset: u64, len: u64) -> io::Result<()> {
    const STEP_BYTES: u64 = 1 << 30; // one call of the kernel can't be interrupted
    let mut at = offset;
    while at < offset + len {
        let step = STEP_BYTES.min(offset + len - at);
        match rustix::fs::fallocate(file, FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE, at, step) {
            Ok(()) => {}
            Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NODEV) => write_zeroes(file, at, step)?,
            Err(e) => return Err(e.into()),
        }
        at += step;
    }
    file.sync_data()
}

/// Makes a run of a regular file a hole, durably; where the file system has none, zeroes.
pub(crate) fn punch(file: &File, offset: u64, len: u64) -> io::Result<()> {
    match rustix::fs::fallocate(file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, offset, len) {
        Ok(()) => file.sync_all(),
        Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NODEV | rustix::io::Errno::NOSYS) => {
            zero(file, offset, len)
        }
        Err(e) => Err(e.into()),
    }
}

fn write_zeroes(file: &File, offset: u64, len: u64) -> io::Result<()> {
    let zeroes = vec![0; 1 << 20];
    let mut at = offset;
    while at < offset + len {
        let step = (offset + len - at).min(zeroes.len() as u64);
        file.write_all_at(&zeroes[..step as usize], at)?;
        at += step;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    /// A thin pool of an earlier version may be larger than what its file system has left.
    #[test]
    fn nothing_is_allocated_where_not_everything_fits() {
        let file = tempfile::tempfile().unwrap();
        let whole = 1 << 60;
        let e = reserve(&file, &[(0, 1 << 20), (1 << 20, whole)]).unwrap_err();
        assert_eq!((e.kind(), file.metadata().unwrap().blocks()), (io::ErrorKind::StorageFull, 0), "{e}");
        assert!(reserve(&file, &[(0, 1 << 20)]).unwrap());
        assert_eq!(file.metadata().unwrap().blocks() * 512, 1 << 20);
    }
}
