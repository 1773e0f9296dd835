//! Mount points of the host's table of file systems on which nothing is mounted.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The file systems that the host mounts (fstab(5)).
const TABLE: &str = "/etc/fstab";

/// Returns the mount point of [`TABLE`] that `folder` is at or below, if nothing is mounted there: a file that is made in the folder is
/// hidden as soon as something is. `None` also if nobody can tell.
pub(super) fn unmounted_above(folder: &Path) -> Option<PathBuf> {
    let table = std::fs::read(TABLE).ok()?;
    unmounted_in(&String::from_utf8_lossy(&table), folder, |path| Some(path.metadata().ok()?.dev()))
}

/// The same by a table's text. `device_of` returns the file system that a directory is in.
fn unmounted_in(table: &str, folder: &Path, device_of: impl Fn(&Path) -> Option<u64>) -> Option<PathBuf> {
    let folder = folder.canonicalize().ok()?;
    let its = device_of(&folder)?;
    // One that isn't mounted is in the file system of its parent, and so is what is below it, unless something else is mounted there.
    let is_unmounted = |at: &PathBuf| {
        let at = at.canonicalize().ok();
        at.is_some_and(|at| folder.starts_with(&at) && at.parent().and_then(&device_of) == Some(its))
    };
    table.lines().filter_map(mount_point).find(is_unmounted)
}

/// The mount point of one of a table's lines. `None` for a bind mount, too, which may be in the file system of its parent.
fn mount_point(line: &str) -> Option<PathBuf> {
    let mut fields = line.split_whitespace();
    let (source, at, _kind, options) = (fields.next()?, fields.next()?, fields.next()?, fields.next().unwrap_or(""));
    let is_bind = options.split(',').any(|o| o == "bind" || o == "rbind");
    let at = at.replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\");
    (!source.starts_with('#') && at.starts_with('/') && !is_bind).then(|| at.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_below_a_mount_point_without_a_mount_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        let [at, below, spaced, beside] = ["m", "m/below", "a b", "mm"].map(|name| root.join(name));
        for folder in [&at, &below, &spaced, &beside] {
            std::fs::create_dir(folder).unwrap();
        }
        std::os::unix::fs::symlink(&below, root.join("link")).unwrap();
        let table = format!(
            "# /dev/sdz {beside} ext4\n\n/dev/sda1 / ext4 defaults 0 1\nUUID=7 {at} xfs nofail 0 2\n/dev/sdb none swap sw\n\
             LABEL=x {root}/a\\040b ext4\n/srv {beside} none bind\nx {root}/gone ext4 noauto\n",
            beside = beside.display(),
            at = at.display(),
            root = root.display(),
        );
        // Of those that are mounted.
        let find = |folder: &Path, mounted: &[&Path]| {
            unmounted_in(&table, folder, |path| {
                let above = mounted.iter().rposition(|m| path.starts_with(m));
                Some(above.map_or(0, |n| n as u64 + 1))
            })
        };
        for folder in [&at, &below, &root.join("link")] {
            assert_eq!(find(folder, &[]), Some(at.clone()));
            assert_eq!(find(folder, &[&at]), None);
        }
        assert_eq!(find(&spaced, &[]), Some(spaced.clone()));
        assert_eq!(find(&below, &[&below]), None, "mounted by hand, and it isn't in the table");
        for folder in [&beside, &root, Path::new("/"), &root.join("gone")] {
            assert_eq!(find(folder, &[]), None, "{}", folder.display());
        }
    }
}
