//! The lock of a device: one process has it, and keeps it until its last request has ended.

use crate::device::DeviceErrorKind;
use crate::probe::{self, Probe};
use crate::region::Medium;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// A device that this process alone may change.
pub(crate) struct Locked {
    /// For metadata, through the page cache.
    pub(crate) file: File,
    /// For data, direct if that is possible. It has the lock: requests of a process that was killed go on for as long as their device
    /// takes, and keep nothing but the open file that they were sent to. The next process must not write before they have ended.
    pub(crate) data: File,
    pub(crate) is_direct: bool,
    pub(crate) probe: Probe,
}

impl Locked {
    /// The device as a medium of metadata, which keeps the lock.
    pub(crate) fn into_medium(self) -> (Held, Probe) {
        (Held::new(self.file, Arc::default(), self.data), self.probe)
    }
}

/// A file, with the lock of its device.
#[derive(Debug)]
pub(crate) struct Held {
    file: File,
    has_failed_sync: Arc<AtomicBool>,
    _lock: File,
}

impl Held {
    /// `has_failed_sync` becomes true when a sync fails.
    pub(crate) fn new(file: File, has_failed_sync: Arc<AtomicBool>, lock: File) -> Held {
        Held { file, has_failed_sync, _lock: lock }
    }

    pub(crate) fn file(&self) -> &File {
        &self.file
    }
}

impl Medium for Held {
    fn read_at(&self, out: &mut [u8], offset: u64) -> io::Result<()> {
        Medium::read_at(&self.file, out, offset)
    }

    fn write_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        Medium::write_at(&self.file, data, offset)
    }

    fn sync(&self) -> io::Result<()> {
        Medium::sync(&self.file).inspect_err(|_| self.has_failed_sync.store(true, Ordering::SeqCst))
    }
}

/// Pause between two tries of a lock.
const PAUSE: Duration = Duration::from_millis(5);
/// Time for which a lock is tried that a process has. A `plimsoll check` may have it for a moment ([`DeviceFile::is_in_use`](crate::DeviceFile::is_in_use)). Waiting for the
/// lock itself would hang where another node has it.
const WAIT: Duration = Duration::from_millis(20);
/// The same where a thread of this process may be about to close it.
const WAIT_FOR_OWN: Duration = Duration::from_millis(500);
/// The same where the process that took the lock has ended: the kernel waits for its requests, and takes down its ring.
const WAIT_FOR_REQUESTS: Duration = Duration::from_secs(5);

/// Opens the device at `path` and locks it, or creates a regular file there.
///
/// # Errors
/// [`DeviceErrorKind::Locked`] and [`DeviceErrorKind::RequestsUnderWay`] after a wait, and those of the file.
pub(crate) fn lock(path: &Path, create: bool) -> Result<Locked, DeviceErrorKind> {
    let begun = Instant::now();
    loop {
        let locked = try_lock(path, create);
        let wait = match &locked {
            Err(DeviceErrorKind::Locked { pid: Some(pid) }) if *pid == std::process::id() => WAIT_FOR_OWN,
            Err(DeviceErrorKind::Locked { pid: Some(_) }) => WAIT,
            // In a container, and on some file systems, the kernel doesn't say whose it is: it may have ended.
            Err(DeviceErrorKind::Locked { pid: None } | DeviceErrorKind::RequestsUnderWay { .. }) => WAIT_FOR_REQUESTS,
            _ => return locked,
        };
        if begun.elapsed() >= wait {
            return locked;
        }
        std::thread::sleep(PAUSE);
    }
}

/// The reason why a device that `file` is open on can't be locked.
fn held_by(file: Option<&File>) -> DeviceErrorKind {
    match file.and_then(probe::lock_holder) {
        Some(pid) if has_ended(pid) => DeviceErrorKind::RequestsUnderWay { pid },
        pid => DeviceErrorKind::Locked { pid },
    }
}

/// Returns whether this process has ended, as far as this one can see.
pub(crate) fn has_ended(pid: u32) -> bool {
    let pid = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw);
    pid.is_some_and(|pid| rustix::process::test_kill_process(pid) == Err(rustix::io::Errno::SRCH))
}

fn try_lock(path: &Path, create: bool) -> Result<Locked, DeviceErrorKind> {
    let io = |doing| move |error| DeviceErrorKind::Io { doing, error };
    let found = probe::kind(path).map_err(io("cannot stat it"))?;
    let open = |flags: rustix::fs::OFlags, create: bool| {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(create).mode(0o600).custom_flags(flags.bits() as i32).open(path)
    };
    let exclusive = match found {
        Some(probe::Kind::Other) => return Err(DeviceErrorKind::NotAFile),
        // The kernel refuses a block device that is mounted, or open under another name.
        Some(probe::Kind::Block) => rustix::fs::OFlags::EXCL,
        Some(probe::Kind::Regular) | None => rustix::fs::OFlags::empty(),
    };
    let opened = match open(exclusive | rustix::fs::OFlags::DIRECT, create && found.is_none()) {
        Err(e) if e.raw_os_error() == Some(rustix::io::Errno::INVAL.raw_os_error()) => {
            open(exclusive, create && found.is_none()).map(|data| (data, false))
        }
        opened => opened.map(|data| (data, true)),
    };
    let (data, is_direct) = opened.map_err(|error| match error.kind() {
        // A mount, or a node: that one has it locked, too.
        io::ErrorKind::ResourceBusy => held_by(File::open(path).ok().as_ref()),
        _ => DeviceErrorKind::Io { doing: "cannot open it", error },
    })?;
    match rustix::fs::flock(&data, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(rustix::io::Errno::WOULDBLOCK) => return Err(held_by(Some(&data))),
        Err(e) => return Err(io("cannot lock it")(e.into())),
    }
    // Opened anew, not duplicated: the kernel tells a lost write once per open file, and the metadata store's own sync must not be the
    // one that hears of lost data.
    let file = open(rustix::fs::OFlags::empty(), false).map_err(io("cannot open it"))?;
    if !probe::same_file(&data, &file).map_err(io("cannot stat it"))? {
        return Err(io("cannot open it")(io::Error::other("the path was replaced meanwhile")));
    }
    let probe = Probe::of(&file).map_err(io("cannot find its size and block size"))?;
    Ok(Locked { file, data, is_direct, probe })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_sync_of_the_metadata_is_noted() {
        let file = |path: &str| OpenOptions::new().write(true).open(path).expect("opens");
        let has_failed = Arc::new(AtomicBool::new(false));
        let held = |path: &str| Held::new(file(path), has_failed.clone(), file(path));
        let fine = tempfile::NamedTempFile::new().expect("made");
        held(fine.path().to_str().expect("text")).sync().expect("syncs");
        assert!(!has_failed.load(Ordering::SeqCst));
        held("/dev/full").sync().expect_err("can't be synced");
        assert!(has_failed.load(Ordering::SeqCst));
    }
}
