//! Disks of the system, by sysfs: which there are, and on which a file lies.

use crate::layout::dev_of;
use std::fs;
use std::path::{Path, PathBuf};

/// A disk: what the block layer queues for, not a partition of it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Disk {
    /// `major << 20 | minor`.
    pub dev: u32,
    /// The kernel's name.
    pub name: String,
    /// It has an arm, says the kernel.
    pub rotational: bool,
}

/// `MAJOR:MINOR` as a number.
fn parse_dev(text: &str) -> Option<u32> {
    let (major, minor) = text.trim().split_once(':')?;
    Some(dev_of(major.parse().ok()?, minor.parse().ok()?))
}

fn read_dev(folder: &Path) -> Option<u32> {
    parse_dev(&fs::read_to_string(folder.join("dev")).ok()?)
}

/// All disks that have a medium and a queue of requests, by name.
pub fn all() -> Vec<Disk> {
    let Ok(entries) = fs::read_dir("/sys/block") else { return Vec::new() };
    let mut disks: Vec<Disk> = entries.flatten().filter_map(|e| at(&e.path())).collect();
    disks.sort_by(|a, b| a.name.cmp(&b.name));
    disks
}

fn at(folder: &Path) -> Option<Disk> {
    let number = |file: &str| fs::read_to_string(folder.join(file)).ok()?.trim().parse::<u64>().ok();
    // Mappers and software RAIDs pass bios on, and have no queue.
    let queues = folder.join("mq").is_dir() && number("size")? > 0;
    // A hidden disk, one of an NVMe disk's paths, has no number.
    let dev = read_dev(folder)?;
    (queues && dev != 0).then_some(Disk {
        dev,
        name: folder.file_name()?.to_str()?.replace('!', "/"),
        rotational: number("queue/rotational") == Some(1),
    })
}

/// The disk that a device's path, name, or partition stands for.
pub fn named(name: &str) -> Option<Disk> {
    let under = under(named_dev(name)?);
    all().into_iter().find(|d| under == [d.dev])
}

/// True if a name stands for an NVMe disk with several paths: its requests are queued on hidden disks.
pub fn has_paths(name: &str) -> bool {
    named_dev(name).is_some_and(|dev| under(dev).into_iter().any(|dev| is_of_paths(&folder(dev))))
}

/// Such a disk's device is an NVMe subsystem, which has a policy for its paths; a controller has none.
fn is_of_paths(folder: &Path) -> bool {
    !folder.join("mq").is_dir() && folder.join("device/iopolicy").exists()
}

fn named_dev(name: &str) -> Option<u32> {
    let path = if name.contains('/') { PathBuf::from(name) } else { Path::new("/dev").join(name) };
    let meta = fs::metadata(&path).ok()?;
    use std::os::unix::fs::{FileTypeExt, MetadataExt};
    // A file stands for the disk that it lies on.
    Some(from_libc(if meta.file_type().is_block_device() { meta.rdev() } else { meta.dev() }))
}

/// A device number of the C library as this crate has them.
pub fn from_libc(dev: u64) -> u32 {
    dev_of(libc::major(dev), libc::minor(dev))
}

/// The disks that a block device's requests end up at: itself, the disk of a partition, the members of a mapper or RAID. Empty if
/// the kernel knows none (a file system without a device of its own).
pub fn under(dev: u32) -> Vec<u32> {
    let mut found = Vec::new();
    descend(&folder(dev), 8, &mut found);
    found.sort_unstable();
    found.dedup();
    found
}

fn descend(folder: &Path, depth: u32, found: &mut Vec<u32>) {
    let Ok(folder) = fs::canonicalize(folder) else { return };
    if depth == 0 {
        return;
    }
    if folder.join("partition").exists() {
        return descend(folder.parent().unwrap_or(&folder), depth - 1, found);
    }
    let slaves: Vec<PathBuf> =
        fs::read_dir(folder.join("slaves")).map(|d| d.flatten().map(|e| e.path()).collect()).unwrap_or_default();
    if slaves.is_empty() {
        found.extend(read_dev(&folder));
    }
    for slave in slaves {
        descend(&slave, depth - 1, found);
    }
}

/// True if the kernel counts a disk's requests. With `queue/iostats` at 0 it shows none in flight, however many there are.
pub fn is_counted(dev: u32) -> bool {
    fs::read_to_string(folder(dev).join("queue/iostats")).is_ok_and(|text| text.trim() != "0")
}

fn folder(dev: u32) -> PathBuf {
    PathBuf::from(format!("/sys/dev/block/{}:{}", dev >> 20, dev & 0xf_ffff))
}

/// Reads and writes in flight, as the kernel counts them; `None` if it doesn't.
pub fn in_flight(dev: u32) -> Option<[u64; 2]> {
    if !is_counted(dev) {
        return None;
    }
    let text = fs::read_to_string(folder(dev).join("inflight")).ok()?;
    let mut numbers = text.split_whitespace().map(|n| n.parse().ok());
    Some([numbers.next()??, numbers.next()??])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_parsed() {
        assert_eq!(parse_dev("8:16\n"), Some(8 << 20 | 16));
        assert_eq!(parse_dev("8"), None);
        assert_eq!(from_libc(libc::makedev(259, 70_000)), 259 << 20 | 70_000);
    }

    /// A disk's folder of sysfs.
    fn folder_of(dev: &str, files: &[&str]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for file in files {
            fs::create_dir_all(folder.path().join(file).parent().unwrap()).unwrap();
            fs::write(folder.path().join(file), "1").unwrap();
        }
        fs::write(folder.path().join("dev"), dev).unwrap();
        fs::write(folder.path().join("size"), "2048").unwrap();
        folder
    }

    #[test]
    fn nvme_disks_with_several_paths_are_recognized() {
        let head = folder_of("259:1\n", &["device/iopolicy", "device/subsysnqn"]);
        assert!(is_of_paths(head.path()) && at(head.path()).is_none());
        let hidden = folder_of("0:0\n", &["mq/0/nr_tags", "device/subsysnqn"]);
        assert!(!is_of_paths(hidden.path()) && at(hidden.path()).is_none(), "it has no number");
        let plain = folder_of("259:1\n", &["mq/0/nr_tags", "device/subsysnqn"]);
        assert!(!is_of_paths(plain.path()));
        assert_eq!(at(plain.path()).unwrap().dev, 259 << 20 | 1);
    }

    #[test]
    fn what_has_no_device_has_no_disk() {
        assert_eq!(under(0), []);
        assert_eq!(named("/proc/self/status"), None);
    }
}
