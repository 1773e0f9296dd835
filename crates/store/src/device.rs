//! A file or block device that Plimsoll has formatted: created, opened, and locked for one process.

use crate::lock::{Held, Locked, has_ended, lock};
use crate::meta::{MetaError, MetaStore, MetaView};
use crate::overlay::Overlay;
use crate::probe::{self, Probe};
use crate::region::{self, Medium, Owner, RegionBackend};
use crate::superblock::{
    COPIES_AT, DEVICE_BYTES_MIN, REGION_ALIGN, Region, RegionKind, SUPERBLOCK_BYTES, Superblock, SuperblockError,
    check_role,
};
use crate::unfinished;
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::SystemTime;
use uuid::Uuid;

/// Magic at byte 0 while a device is being created. It distinguishes an interrupted creation from foreign data.
pub(crate) const CREATING: &[u8; 8] = b"PLIMMKFS";

/// The role of the device that has a pool's volumes.
pub const ROLE_MAIN: &str = "main";

/// Properties of a new device.
#[derive(Clone, Debug)]
pub struct CreateOptions {
    /// Its size, rounded down to 1 MiB. For a block device at most its size; 0 is all of it.
    pub size_bytes: u64,
    /// The pool it is for.
    pub pool_uuid: Uuid,
    /// Purpose of the device in its pool: "main", "fast"; see [`check_role`].
    pub role: String,
    /// Bytes for the tables of logs, a multiple of 1 MiB; 0 if it has no logs.
    pub logs_bytes: u64,
    /// Alignment of the regions behind the metadata, a multiple of 1 MiB; 0 where it doesn't matter.
    pub align_bytes: u64,
    /// The main device of its pool, for a cache's device.
    pub main_uuid: Option<Uuid>,
}

/// Properties that a device must have to be opened.
#[derive(Clone, Debug)]
pub struct Expect {
    /// The pool it must belong to; `None` accepts any.
    pub pool_uuid: Option<Uuid>,
    /// The device that it must be; `None` accepts any.
    pub device_uuid: Option<Uuid>,
    /// The role it must have.
    pub role: String,
}

/// Reason why a device can't be created or opened: the device, and its problem.
#[derive(Debug)]
pub struct DeviceError {
    /// The device.
    pub path: PathBuf,
    /// The reason.
    pub kind: DeviceErrorKind,
}

/// Problem of a device.
#[derive(Debug)]
pub enum DeviceErrorKind {
    /// A system call failed.
    Io {
        /// Step that failed.
        doing: &'static str,
        /// The error.
        error: io::Error,
    },
    /// Another process has it.
    Locked {
        /// That process, if known.
        pid: Option<u32>,
    },
    /// A process that had it has ended, but its requests haven't: they could still change what is written from now on.
    RequestsUnderWay {
        /// That process.
        pid: u32,
    },
    /// It is there and is a Plimsoll device already.
    Exists,
    /// It holds data that Plimsoll didn't write.
    Foreign,
    /// Its creation was cut short.
    CreationInterrupted,
    /// It has neither a superblock nor data.
    Blank,
    /// Both superblocks read as zeroes, but its metadata is there.
    SuperblockLost,
    /// Its superblock can't be used.
    Superblock(SuperblockError),
    /// It belongs to another pool.
    WrongPool {
        /// The pool it belongs to.
        found: Uuid,
        /// The pool asked for.
        expected: Uuid,
    },
    /// It isn't the one that was asked for.
    OtherDevice {
        /// Identity found.
        found: Uuid,
        /// Identity expected.
        expected: Uuid,
    },
    /// It has another role: devices were swapped.
    WrongRole {
        /// The role it has.
        found: String,
        /// The role asked for.
        expected: String,
    },
    /// It is smaller than its region map, or than any device can be.
    TooSmall {
        /// Its size.
        size_bytes: u64,
        /// The least it must be.
        needed_bytes: u64,
    },
    /// Neither a regular file nor a block device.
    NotAFile,
    /// Its metadata store can't be created.
    Meta(MetaError),
}

impl fmt::Display for DeviceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.path.display())?;
        match &self.kind {
            DeviceErrorKind::Io { doing, error } => write!(f, "{doing}: {error}"),
            DeviceErrorKind::Locked { pid: Some(pid) } => {
                write!(f, "process {pid} uses this device: stop it, or give each node a device of its own")
            }
            DeviceErrorKind::Locked { pid: None } => {
                write!(
                    f,
                    "another process (or a mount) uses this device, or requests of one that has ended: stop it, or give each node a device of its own"
                )
            }
            DeviceErrorKind::RequestsUnderWay { pid } => write!(
                f,
                "process {pid} has ended, and its requests to this device are still under way: wait until the device answers, then start again"
            ),
            DeviceErrorKind::Exists => write!(f, "is a Plimsoll device already: open it, or remove it first"),
            DeviceErrorKind::Foreign => write!(
                f,
                "holds data that Plimsoll didn't write: choose another path, or clear its first 2 MiB if nobody needs it"
            ),
            DeviceErrorKind::CreationInterrupted => write!(f, "its creation was cut short: create it again"),
            DeviceErrorKind::Blank => write!(f, "holds nothing: create the device first, or check the path"),
            DeviceErrorKind::SuperblockLost => write!(
                f,
                "has metadata but its superblocks are zero: restore them from a backup (`plimsoll pool restore`), or clear its first 2 MiB if nobody needs it"
            ),
            DeviceErrorKind::Superblock(e) => e.fmt(f),
            DeviceErrorKind::WrongPool { found, expected } => {
                write!(f, "belongs to pool {found}, not to {expected}: check which device this is")
            }
            DeviceErrorKind::OtherDevice { found, expected } => write!(
                f,
                "is the device {found}, not {expected}: check which one is attached, or correct `uuid` in the configuration"
            ),
            DeviceErrorKind::WrongRole { found, expected } => write!(
                f,
                "is the pool's device {found:?}, not {expected:?}: devices are swapped, correct their paths in the configuration"
            ),
            DeviceErrorKind::TooSmall { size_bytes, needed_bytes } => write!(
                f,
                "has {size_bytes} bytes, {needed_bytes} are needed: it was cut, or is not the device it was copied from"
            ),
            DeviceErrorKind::NotAFile => write!(f, "is neither a regular file nor a block device"),
            DeviceErrorKind::Meta(e) => e.fmt(f),
        }
    }
}

impl std::error::Error for DeviceError {}

/// A device, looked at only.
#[derive(Debug)]
pub struct Look {
    /// Its size.
    pub size_bytes: u64,
    /// A block device, not a regular file.
    pub is_block_device: bool,
    /// The process that has it locked, if one has and that is known.
    pub used_by: Option<u32>,
    /// Its superblock, or why [`DeviceFile::open`] would refuse it.
    pub found: Result<Superblock, DeviceError>,
    /// Opening it converts it to a newer version, which earlier programs refuse.
    pub is_converted: bool,
}

/// An open device. The lock is held until this and every metadata store opened from it are dropped, and until the last request to
/// [`DeviceFile::data`] has ended: also if its process ended before.
#[derive(Debug)]
pub struct DeviceFile {
    path: PathBuf,
    /// The lock is this file's.
    data: File,
    buffered: File,
    superblock: Superblock,
    block_bytes: u32,
    is_block_device: bool,
    is_direct: bool,
    unreserved: Option<io::Error>,
    has_failed_sync: Arc<AtomicBool>,
}

impl DeviceFile {
    /// Formats the device at `path` and opens it. A regular file is created sparse, but for what is Plimsoll's own: the
    /// superblocks, the metadata and the logs' tables, and all of a device that isn't the pool's main one.
    ///
    /// # Errors
    /// Refuses anything that holds data: a file must not exist, or be empty; a block device's first MiB must be zero. The remains
    /// of an interrupted creation are created anew.
    pub fn create(path: &Path, options: &CreateOptions) -> Result<DeviceFile, DeviceError> {
        create(path, options).map_err(|kind| DeviceError { path: path.to_owned(), kind })
    }

    /// Opens the device at `path` and locks it.
    ///
    /// # Errors
    /// See [`DeviceErrorKind`].
    pub fn open(path: &Path, expect: &Expect) -> Result<DeviceFile, DeviceError> {
        open(path, expect).map_err(|kind| DeviceError { path: path.to_owned(), kind })
    }

    /// Looks at what is at `path`, without locking or changing it. `None` if nothing is there, or an empty file.
    ///
    /// # Errors
    /// If it can't be read, or is neither a file nor a block device.
    pub fn look(path: &Path, expect: &Expect) -> Result<Option<Look>, DeviceError> {
        look(path, expect).map_err(|kind| DeviceError { path: path.to_owned(), kind })
    }

    /// True if a process has the device open, or a mount: in whatever container, on this kernel. Its lock is taken for that, and given back
    /// at once: whoever opens the device meanwhile tries again.
    ///
    /// # Errors
    /// If it can't be opened or locked.
    pub fn is_in_use(path: &Path) -> io::Result<bool> {
        let mut options = OpenOptions::new();
        options.read(true);
        if let Some(probe::Kind::Block) = probe::kind(path)? {
            options.custom_flags(rustix::fs::OFlags::EXCL.bits() as i32);
        }
        let file = match options.open(path) {
            Err(e) if e.kind() == io::ErrorKind::ResourceBusy => return Ok(true),
            opened => opened?,
        };
        match rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockShared) {
            Ok(()) => Ok(false),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(true),
            Err(e) => Err(e.into()),
        }
    }

    /// Reads the metadata of the device at `path` as an open would, without locking or changing it. Of a device that a node has open they may
    /// be of several moments: don't ask then.
    ///
    /// # Errors
    /// As [`DeviceFile::open`] and [`DeviceFile::open_meta`].
    pub fn look_meta(path: &Path, expect: &Expect, home_bytes: u64) -> Result<MetaView, DeviceError> {
        let io = |doing| move |error| DeviceErrorKind::Io { doing, error };
        let look = || {
            let file = File::open(path).map_err(io("cannot open it for reading"))?;
            let probe = Probe::of(&file).map_err(io("cannot find its size and block size"))?;
            look_meta(file, &probe, expect, home_bytes)
        };
        look().map_err(|kind| DeviceError { path: path.to_owned(), kind })
    }

    /// Opens the metadata store in the device, which gives out at most the first `home_bytes` of the home region (a multiple
    /// of 1 MiB): the rest isn't addressed there when logs take room between.
    ///
    /// # Errors
    /// See [`MetaError`].
    pub fn open_meta(&self, home_bytes: u64) -> Result<MetaStore, MetaError> {
        let file = self.buffered.try_clone().map_err(MetaError::Io)?;
        let lock = self.data.try_clone().map_err(MetaError::Io)?;
        open_meta(Held::new(file, self.has_failed_sync.clone(), lock), &self.superblock, home_bytes)
    }

    /// Allocates runs (offset and length) of the device, so that writing there later can't find its file system full. Does
    /// nothing on a block device, and where the file system can't promise that.
    ///
    /// # Errors
    /// Those of the file system. If it has no room for all of them, nothing is allocated.
    pub fn reserve(&self, runs: &[(u64, u64)]) -> io::Result<()> {
        if self.is_block_device { Ok(()) } else { probe::reserve(&self.buffered, runs).map(drop) }
    }

    /// Returns why the device's own regions couldn't be allocated when it was opened: writes of metadata may fail when the
    /// file system fills up.
    pub fn unreserved(&self) -> Option<&io::Error> {
        self.unreserved.as_ref()
    }

    /// Returns whether logs or a cache were formatted here: blank ones are then lost.
    pub fn is_formatted(&self) -> bool {
        self.superblock.formatted
    }

    /// Notes durably that they are.
    ///
    /// # Errors
    /// Those of writing the superblocks.
    pub fn set_formatted(&mut self) -> io::Result<()> {
        self.renew(Superblock { formatted: true, ..self.superblock.clone() })
    }

    /// Names the main device of its pool, durably, in a device of a cache that an earlier program made.
    ///
    /// # Errors
    /// Those of writing the superblocks.
    pub fn set_main(&mut self, main_uuid: Uuid) -> io::Result<()> {
        self.renew(Superblock { main_uuid: Some(main_uuid), ..self.superblock.clone() })
    }

    /// The device's size now, which may be more than it has regions for.
    ///
    /// # Errors
    /// Those of the kernel.
    pub fn size_bytes(&self) -> io::Result<u64> {
        Probe::of(&self.buffered).map(|probe| probe.size_bytes)
    }

    /// Looks for data in a range of the device, without opening it: in its last MiB, and in the first one of each 64th of the range.
    /// Returns the place of a byte that isn't zero.
    ///
    /// # Errors
    /// If it can't be read.
    pub fn is_used_beyond(path: &Path, from: u64, to: u64) -> io::Result<Option<u64>> {
        is_used_beyond(&File::open(path)?, from, to)
    }

    /// Takes on what the device has beyond its superblock's regions, up to `end` bytes: the home region becomes longer. A regular file is
    /// made as long as that. The new space reads as zeroes. Power loss leaves the old size or the new one. No metadata store of the device
    /// may be open, and it must have been opened since the device was: that an older superblock came back is noticed there.
    ///
    /// # Errors
    /// Those of the device.
    ///
    /// # Panics
    /// As [`Superblock::grown`].
    pub fn grow(&mut self, end: u64) -> Result<(), GrowError> {
        let next = self.superblock.grown(end);
        let zero = |from, len| {
            if self.is_block_device {
                return probe::zero(&self.buffered, from, len);
            }
            if self.size_bytes()? > from + len {
                return probe::punch(&self.buffered, from, len); // what is behind it stays
            }
            self.buffered.set_len(from)?; // whatever was there becomes a hole
            self.buffered.set_len(from + len)?;
            self.buffered.sync_all()
        };
        take_on(&self.buffered, &self.superblock, &next, zero)?;
        self.superblock = next;
        Ok(())
    }

    /// Writes a superblock if it says something else than the one that is there.
    fn renew(&mut self, superblock: Superblock) -> io::Result<()> {
        if superblock != self.superblock {
            let before = [self.superblock.encode(); 2];
            let next = Superblock { sequence: self.superblock.sequence + 1, ..superblock };
            write_superblock(&self.buffered, &next, &next.stale(&before))?;
            self.superblock = next;
        }
        Ok(())
    }

    /// For data: direct if [`DeviceFile::is_direct`].
    pub fn data_fd(&self) -> BorrowedFd<'_> {
        self.data.as_fd()
    }

    /// Becomes true when a sync of a metadata store opened from it fails. A device's cache may say once only that it lost writes, to whoever
    /// syncs next: the next flush of a client must fail, too.
    pub fn has_failed_sync(&self) -> &Arc<AtomicBool> {
        &self.has_failed_sync
    }

    /// Place of volumes' data.
    pub fn home(&self) -> Region {
        self.region(RegionKind::Home)
    }

    /// Place of the tables of logs, if it was made with logs.
    pub fn logs(&self) -> Option<Region> {
        self.superblock.region(RegionKind::Logs)
    }

    /// Offsets, lengths and addresses of direct I/O are multiples of this; a power of two, at least 512.
    pub fn block_bytes(&self) -> u32 {
        self.block_bytes
    }

    /// A block device, not a regular file.
    pub fn is_block_device(&self) -> bool {
        self.is_block_device
    }

    /// Data passes by the page cache. False where the file system refuses O_DIRECT.
    pub fn is_direct(&self) -> bool {
        self.is_direct
    }

    /// Returns the device's superblock.
    pub fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    /// Returns the device's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn region(&self, kind: RegionKind) -> Region {
        self.superblock.region(kind).expect("every superblock has one")
    }
}

/// Makes the space that the next superblock has more read as zeroes, by `zero`, and then writes that superblock.
pub(crate) fn take_on(
    medium: &impl Medium,
    now: &Superblock,
    next: &Superblock,
    zero: impl FnOnce(u64, u64) -> io::Result<()>,
) -> Result<(), GrowError> {
    let zeroed = zero(now.end(), next.end() - now.end()).and_then(|()| medium.sync());
    zeroed.map_err(GrowError::Kept)?;
    write_superblock(medium, next, &next.stale(&[now.encode(); 2])).map_err(GrowError::Unclear)
}

/// Reason why a device hasn't grown.
#[derive(Debug)]
pub enum GrowError {
    /// The new space couldn't be made or zeroed: the device is as it was.
    Kept(io::Error),
    /// Its superblocks couldn't be written: it may have grown. Open it anew.
    Unclear(io::Error),
}

impl fmt::Display for GrowError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GrowError::Kept(e) | GrowError::Unclear(e) => e.fmt(f),
        }
    }
}

impl std::error::Error for GrowError {}

/// Parts of a range of which the first MiB is read to find out whether it holds data.
const PARTS: u64 = 64;

/// Looks for data in the range from `from` to `to`: in its last MiB, and in the first one of each 64th of it. Returns the place of a byte
/// that isn't zero.
pub(crate) fn is_used_beyond(medium: &impl Medium, from: u64, to: u64) -> io::Result<Option<u64>> {
    let len = to.saturating_sub(from);
    let part = |n| (u128::from(len) * u128::from(n) / u128::from(PARTS)) as u64 / REGION_ALIGN * REGION_ALIGN;
    let mut places: Vec<u64> = (0..PARTS).map(part).chain([len.saturating_sub(REGION_ALIGN)]).collect();
    places.dedup();
    let mut b = vec![0; REGION_ALIGN as usize];
    for at in places {
        let b = &mut b[..REGION_ALIGN.min(len - at) as usize];
        medium.read_at(b, from + at)?;
        if let Some(n) = b.iter().position(|b| *b != 0) {
            return Ok(Some(from + at + n as u64));
        }
    }
    Ok(None)
}

/// Opens the metadata store of a device with this superblock, whose bytes `medium` has.
pub(crate) fn open_meta(medium: impl Medium, superblock: &Superblock, home_bytes: u64) -> Result<MetaStore, MetaError> {
    let metadata = superblock.region(RegionKind::Metadata).expect("every superblock has one");
    match unfinished::note_of(&medium, metadata.offset).map_err(MetaError::Io)? {
        Some(unfinished) => Err(unfinished.error()),
        None => open_restored_meta(medium, superblock, home_bytes),
    }
}

/// The same while a restore isn't finished, for the restore itself.
pub(crate) fn open_restored_meta(
    medium: impl Medium,
    superblock: &Superblock,
    home_bytes: u64,
) -> Result<MetaStore, MetaError> {
    let region = |kind| superblock.region(kind).expect("every superblock has one");
    let backend = RegionBackend::open(medium, region(RegionKind::Metadata), owner(superblock));
    let backend = backend.map_err(|e| match e.kind() {
        io::ErrorKind::InvalidData => MetaError::Corrupt { what: e.to_string() },
        _ => MetaError::Io(e),
    })?;
    let home = region(RegionKind::Home);
    MetaStore::open(backend, Region { len: home.len.min(home_bytes), ..home })
}

pub(crate) fn look_meta(
    medium: impl Medium,
    probe: &Probe,
    expect: &Expect,
    home_bytes: u64,
) -> Result<MetaView, DeviceErrorKind> {
    let (superblock, _) = read_superblock(&medium, probe)?;
    must_be(&superblock, expect, probe)?;
    let store = open_meta(Overlay::over(medium), &superblock, home_bytes).map_err(DeviceErrorKind::Meta)?;
    Ok((*store).clone())
}

fn create(path: &Path, options: &CreateOptions) -> Result<DeviceFile, DeviceErrorKind> {
    check_role(&options.role).map_err(DeviceErrorKind::Superblock)?;
    let locked = lock(path, true)?;
    let Locked { file, probe, .. } = &locked;
    match first_bytes(file, probe)? {
        First::Blank | First::Creating => {}
        First::Ours => return Err(DeviceErrorKind::Exists),
        First::Lost => return Err(DeviceErrorKind::SuperblockLost),
        First::Foreign => return Err(DeviceErrorKind::Foreign),
    }
    let superblock = new_superblock(probe, options)?;
    format(file, probe, &superblock).map_err(|e| match e {
        FormatError::Io(error) => DeviceErrorKind::Io { doing: "cannot format it", error },
        FormatError::Meta(e) => DeviceErrorKind::Meta(e),
    })?;
    if !probe.is_block_device {
        sync_directory(path).map_err(|error| DeviceErrorKind::Io { doing: "cannot sync its directory", error })?;
    }
    Ok(assemble(path, locked, superblock))
}

/// The superblock of a new device.
pub(crate) fn new_superblock(probe: &Probe, options: &CreateOptions) -> Result<Superblock, DeviceErrorKind> {
    let wanted = match (probe.is_block_device, options.size_bytes) {
        (true, 0) => probe.size_bytes,
        (true, wanted) if wanted > probe.size_bytes => {
            return Err(DeviceErrorKind::TooSmall { size_bytes: probe.size_bytes, needed_bytes: wanted });
        }
        (_, wanted) => wanted,
    };
    let size_bytes = wanted - wanted % REGION_ALIGN;
    let needed_bytes = DEVICE_BYTES_MIN + options.logs_bytes + options.align_bytes;
    if size_bytes < needed_bytes {
        return Err(DeviceErrorKind::TooSmall { size_bytes: wanted, needed_bytes });
    }
    Ok(Superblock {
        device_uuid: Uuid::new_v4(),
        pool_uuid: options.pool_uuid,
        role: options.role.clone(),
        sequence: 1,
        created_unix_s: SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |d| d.as_secs()),
        block_bytes: probe.block_bytes,
        formatted: false,
        main_uuid: options.main_uuid,
        regions: Superblock::region_map_aligned(size_bytes, options.logs_bytes, options.align_bytes.max(REGION_ALIGN)),
    })
}

enum FormatError {
    Io(io::Error),
    Meta(MetaError),
}

/// The superblock comes last: a device with one is complete.
fn format(file: &File, probe: &Probe, superblock: &Superblock) -> Result<(), FormatError> {
    let region = |kind| superblock.region(kind).expect("every superblock has one");
    let home = region(RegionKind::Home);
    let prepare = || {
        let mut first_bytes = [0; 2 * SUPERBLOCK_BYTES];
        first_bytes[..CREATING.len()].copy_from_slice(CREATING);
        file.write_all_at(&first_bytes, 0)?;
        if !probe.is_block_device {
            file.set_len(CREATING.len() as u64)?; // whatever an interrupted creation left becomes a hole
            file.set_len(superblock.end())?;
            probe::reserve(file, &[(0, own_bytes(superblock))])?;
        }
        file.sync_all()?;
        if probe.is_block_device {
            probe::zero(file, REGION_ALIGN, superblock.end() - REGION_ALIGN)?;
        }
        RegionBackend::format(file.try_clone()?, region(RegionKind::Metadata), owner(superblock))
    };
    let backend = prepare().map_err(FormatError::Io)?;
    MetaStore::format(backend, home).map_err(FormatError::Meta)?;
    let finish = || {
        file.sync_all()?;
        write_superblock(file, superblock, &superblock.stale(&[[0; SUPERBLOCK_BYTES]; 2]))
    };
    finish().map_err(FormatError::Io)
}

fn open(path: &Path, expect: &Expect) -> Result<DeviceFile, DeviceErrorKind> {
    let locked = lock(path, false)?;
    let Locked { file, probe, .. } = &locked;
    let (mut superblock, copies) = read_superblock(file, probe)?;
    must_be(&superblock, expect, probe)?;
    // A copy that isn't what would be written now is torn, behind, or of an older version. An upgrade has a sequence of its
    // own, so that the metadata region can note that it was made.
    if Superblock::is_of_older_version(&copies) {
        superblock.sequence += 1;
        // Earlier versions didn't note it: a cache's device that was opened before has its page.
        superblock.formatted |= superblock.role != ROLE_MAIN;
    }
    write_superblock(file, &superblock, &superblock.stale(&copies))
        .map_err(|error| DeviceErrorKind::Io { doing: "cannot renew its superblock", error })?;
    Ok(assemble(path, locked, superblock))
}

fn look(path: &Path, expect: &Expect) -> Result<Option<Look>, DeviceErrorKind> {
    let io = |doing| move |error| DeviceErrorKind::Io { doing, error };
    match probe::kind(path).map_err(io("cannot stat it"))? {
        None => return Ok(None),
        Some(probe::Kind::Other) => return Err(DeviceErrorKind::NotAFile),
        Some(probe::Kind::Regular | probe::Kind::Block) => {}
    }
    let file = File::open(path).map_err(io("cannot open it for reading"))?;
    let probe = Probe::of(&file).map_err(io("cannot find its size and block size"))?;
    if !probe.is_block_device && probe.size_bytes == 0 {
        return Ok(None);
    }
    let mut is_converted = false;
    let found = read_superblock(&file, &probe)
        .and_then(|(superblock, copies)| {
            is_converted = Superblock::is_of_older_version(&copies);
            must_be(&superblock, expect, &probe).map(|()| superblock)
        })
        .map_err(|kind| DeviceError { path: path.to_owned(), kind });
    let Probe { size_bytes, is_block_device, .. } = probe;
    Ok(Some(Look {
        size_bytes,
        is_block_device,
        used_by: probe::lock_holder(&file).filter(|pid| !has_ended(*pid)),
        found,
        is_converted,
    }))
}

/// Bytes of a device, from its start, without volumes' data: up to home, or all of a device that has no volumes.
fn own_bytes(superblock: &Superblock) -> u64 {
    if superblock.role == ROLE_MAIN {
        superblock.region(RegionKind::Home).expect("every superblock has one").offset
    } else {
        superblock.end()
    }
}

pub(crate) fn owner(superblock: &Superblock) -> Owner {
    Owner { device_uuid: superblock.device_uuid, sequence: superblock.sequence }
}

/// Refuses a device that isn't the one that is expected.
pub(crate) fn must_be(superblock: &Superblock, expect: &Expect, probe: &Probe) -> Result<(), DeviceErrorKind> {
    if let Some(expected) = expect.pool_uuid
        && superblock.pool_uuid != expected
    {
        return Err(DeviceErrorKind::WrongPool { found: superblock.pool_uuid, expected });
    }
    if let Some(expected) = expect.device_uuid
        && superblock.device_uuid != expected
    {
        return Err(DeviceErrorKind::OtherDevice { found: superblock.device_uuid, expected });
    }
    if superblock.role != expect.role {
        let (found, expected) = (superblock.role.clone(), expect.role.clone());
        return Err(DeviceErrorKind::WrongRole { found, expected });
    }
    if superblock.end() > probe.size_bytes {
        return Err(DeviceErrorKind::TooSmall { size_bytes: probe.size_bytes, needed_bytes: superblock.end() });
    }
    Ok(())
}

/// Reads the superblock. Where there is none that can be used and a restore isn't finished, the error says so.
pub(crate) fn read_superblock(
    file: &impl Medium,
    probe: &Probe,
) -> Result<(Superblock, [[u8; SUPERBLOCK_BYTES]; 2]), DeviceErrorKind> {
    read_copies(file, probe).map_err(|kind| match unfinished::note_of(file, REGION_ALIGN) {
        Ok(Some(unfinished)) => DeviceErrorKind::Meta(unfinished.error()),
        Ok(None) | Err(_) => kind,
    })
}

fn read_copies(
    file: &impl Medium,
    probe: &Probe,
) -> Result<(Superblock, [[u8; SUPERBLOCK_BYTES]; 2]), DeviceErrorKind> {
    match first_bytes(file, probe)? {
        First::Ours => {}
        First::Blank => return Err(DeviceErrorKind::Blank),
        First::Lost => return Err(DeviceErrorKind::SuperblockLost),
        First::Creating => return Err(DeviceErrorKind::CreationInterrupted),
        First::Foreign => return Err(DeviceErrorKind::Foreign),
    }
    let mut copies = [[0; SUPERBLOCK_BYTES]; 2];
    for (copy, at) in copies.iter_mut().zip(COPIES_AT) {
        file.read_at(copy, at).map_err(|error| DeviceErrorKind::Io { doing: "cannot read its superblock", error })?;
    }
    let superblock = Superblock::choose(&copies).map_err(DeviceErrorKind::Superblock)?;
    Ok((superblock, copies))
}

pub(crate) fn write_superblock(file: &impl Medium, superblock: &Superblock, copies: &[usize]) -> io::Result<()> {
    for copy in copies {
        file.write_at(&superblock.encode(), COPIES_AT[*copy])?;
        file.sync()?;
    }
    Ok(())
}

fn assemble(path: &Path, locked: Locked, superblock: Superblock) -> DeviceFile {
    let Locked { file: buffered, data, is_direct, probe } = locked;
    let block_bytes = probe.block_bytes.max(superblock.block_bytes);
    let is_block_device = probe.is_block_device;
    // A device of an earlier version may have holes. A file system that is full now is no reason to refuse it.
    let reserved = if is_block_device { Ok(true) } else { probe::reserve(&buffered, &[(0, own_bytes(&superblock))]) };
    let unreserved = reserved.err();
    let path = path.to_owned();
    let has_failed_sync = Arc::default();
    DeviceFile {
        path,
        data,
        buffered,
        superblock,
        block_bytes,
        is_block_device,
        is_direct,
        unreserved,
        has_failed_sync,
    }
}

pub(crate) enum First {
    /// Nothing was ever written here.
    Blank,
    Creating,
    Ours,
    /// No superblock, but a metadata region where all devices have theirs.
    Lost,
    Foreign,
}

pub(crate) fn first_bytes(file: &impl Medium, probe: &Probe) -> Result<First, DeviceErrorKind> {
    let mut b = vec![0; probe.size_bytes.min(REGION_ALIGN + region::HEADER_BYTES) as usize];
    file.read_at(&mut b, 0).map_err(|error| DeviceErrorKind::Io { doing: "cannot read its first MiB", error })?;
    let metadata = b.split_off(b.len().min(REGION_ALIGN as usize));
    let blank = b.iter().all(|b| *b == 0);
    Ok(match b.get(..8) {
        Some(magic) if magic == CREATING => First::Creating,
        Some(b"PLIMSOLL") => First::Ours,
        // The first copy may be torn in its first bytes.
        Some(_) if b.get(SUPERBLOCK_BYTES..SUPERBLOCK_BYTES + 8) == Some(b"PLIMSOLL") => First::Ours,
        Some(_) if blank && region::is_region(&metadata) => First::Lost,
        // A regular file of zeroes may be somebody's image whose data begins later.
        Some(_) if !probe.is_block_device => First::Foreign,
        _ if !blank => First::Foreign,
        _ => First::Blank,
    })
}

fn sync_directory(path: &Path) -> io::Result<()> {
    let parent = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(parent)?.sync_all()
}
