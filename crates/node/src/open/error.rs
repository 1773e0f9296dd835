//! Reasons for which a pool isn't opened, each with its device and the remedy.

use crate::config::{BadConfig, ByteSize};
use crate::parts::cache::CacheError;
use plimsoll_store::{DeviceError, MetaError, Uuid};
use std::fmt;
use std::io;
use std::path::PathBuf;

/// The reason for which a pool isn't opened, or one of its devices isn't used.
///
/// The text of an error has that of its cause in it, so no `source` repeats it: the cause is the variant's.
#[derive(Debug)]
pub enum OpenError {
    /// The configuration, or a file that it names, can't be: correct it.
    Config(BadConfig),
    /// The device isn't the pool's, is in use, or can't be read: see its kind.
    Device(DeviceError),
    /// The device and the configuration don't fit each other, or the device doesn't fit this program.
    Unfit {
        /// The device.
        device: String,
        /// Its fault.
        fault: Unfit,
    },
    /// The device can't be opened once more.
    Io {
        /// The device.
        device: String,
        /// The system's error.
        error: io::Error,
    },
    /// The logs of the pool's device can't be formatted.
    Formatting(io::Error),
    /// There is no room for the logs: make some, or choose smaller logs.
    NoRoomForLogs {
        /// The device.
        device: String,
        /// The system's error.
        error: io::Error,
    },
    /// The device's superblock can't record that logs or a cache are formatted.
    NotMarked {
        /// The device.
        device: String,
        /// The system's error.
        error: io::Error,
    },
    /// The device may have grown, or not: a start finds out.
    MayHaveGrown {
        /// The device.
        device: String,
        /// Bytes that it may have now.
        to: u64,
        /// The system's error.
        error: io::Error,
    },
    /// The pool's metadata can't be opened.
    Meta {
        /// The device that has them.
        device: String,
        /// The store's error.
        error: MetaError,
    },
    /// The pool's metadata can't record what the start is about to do.
    Unrecorded(MetaError),
    /// Ceph's libraries, the cluster or the image refuse.
    Rbd(plimsoll_rbd::Error),
    /// The file of the tape can't be made.
    Tape {
        /// The file.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// Volumes need a cache, and none is configured.
    NeedsCache {
        /// The volumes.
        volumes: Vec<String>,
    },
    /// The devices of the cache are wrong.
    Cache(CacheError),
    /// The device of the cache isn't there and can't be made, and volumes need it.
    CacheMissing {
        /// The fault of the device.
        fault: Box<OpenError>,
        /// The volumes.
        volumes: Vec<String>,
    },
    /// The devices of the cache can't be used, and volumes need it.
    CacheUnusable {
        /// The fault of the devices.
        fault: CacheError,
        /// The volumes.
        volumes: Vec<String>,
    },
}

/// Faults of a device that is, or would be, a pool's.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Unfit {
    /// A file would be made among devices.
    NoSuchDevice,
    /// The file's folder isn't there.
    NoFolder,
    /// The file isn't there, and nothing is mounted at this mount point above it.
    NotMounted(PathBuf),
    /// The file isn't there, and may not be made without a size.
    NoFile {
        /// Words for the file.
        file: &'static str,
        /// The key of its size.
        key: &'static str,
    },
    /// The device that is asked for by its UUID isn't there.
    Missing(Uuid),
    /// It is modelled, and the model is smaller than what its volumes have.
    ModelTooSmall {
        /// The model.
        model: String,
        /// Bytes that it leaves for volumes.
        home_bytes: u64,
        /// Bytes from the beginning of the volumes' space to the end of the last one.
        used_bytes: u64,
    },
    /// It holds nothing, and may not be formatted.
    Blank,
    /// It holds no pool.
    NoPool,
    /// It has logs, and none are configured.
    HasLogs,
    /// It has no logs, and some are configured.
    HasNoLogs,
    /// It is an image with logs.
    LogsOnImage,
    /// Its logs are of a version that this program doesn't know.
    UnknownLogs(String),
    /// Its logs were in use, and their layout is lost.
    LogsLost,
    /// It has no bands, or others than those that are configured.
    OtherBands,
    /// Its logs were made with other settings: these.
    OtherLogs(plimsoll_logs::Shape),
    /// Its file keeps zones, and the configuration doesn't say so.
    HasZones,
}

impl Unfit {
    /// As an error of a device.
    pub(crate) fn of(self, device: impl fmt::Display) -> OpenError {
        OpenError::Unfit { device: device.to_string(), fault: self }
    }
}

impl fmt::Display for Unfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unfit::NoSuchDevice => write!(
                f,
                "there is no such device, and a file in /dev would be in memory: attach the device, or correct the path"
            ),
            Unfit::NoFolder => write!(f, "its folder doesn't exist: create it, or correct the path"),
            Unfit::NotMounted(at) => write!(
                f,
                "the file doesn't exist, and nothing is mounted at {}, which /etc/fstab names: mount it. A new file there would be empty, and \
                 hidden by the mount",
                at.display()
            ),
            Unfit::NoFile { file, key } => {
                write!(f, "{file} doesn't exist: set `{key}` to create it, or correct the path")
            }
            Unfit::Missing(uuid) => write!(
                f,
                "the device {uuid} is missing: attach it, or remove `uuid` from the configuration to create a new one"
            ),
            Unfit::ModelTooSmall { model, home_bytes, used_bytes } => write!(
                f,
                "the modelled device `{model}` (`device.model`) is smaller than its pool: it leaves {home_bytes} bytes for volumes, which \
                 lie in the first {used_bytes}: name the former model, or a larger one"
            ),
            Unfit::Blank => write!(
                f,
                "the device is blank: to initialise it for Plimsoll (ALL OF IT IS ZEROED), set `format = true`"
            ),
            Unfit::NoPool => write!(f, "the pool's device isn't here"),
            Unfit::HasLogs => write!(f, "the device has logs, which hold data: configure [pool.logs]"),
            Unfit::HasNoLogs => {
                write!(f, "the device was made without logs: take [pool.logs] out, or make a new device")
            }
            Unfit::LogsOnImage => {
                write!(f, "the device has logs, which can't be on an RBD image: it was copied from a disk")
            }
            Unfit::UnknownLogs(what) => f.write_str(what),
            Unfit::OtherBands => write!(
                f,
                "the device was made with other bands or logs, or without bands: set `zone`, `free_every` and `spares` of [pool.bands], `log` and `extents` of [pool.logs], \
                 and `zones` and `model` of the device, as they were, or make a new device"
            ),
            Unfit::OtherLogs(made) => write!(
                f,
                "the device's logs were made with group = \"{}\", log = \"{}\" and extents = {}: set these in [pool.logs], and [pool.bands] if the device was made with it: they can't be \
                 changed. Or make a new device",
                ByteSize(made.group_bytes),
                ByteSize(made.log_bytes),
                made.extents_max
            ),
            Unfit::HasZones => f.write_str(
                "the device was made with `zones`, and has a table of them: set `zones` as it was. Without it, what is written is hidden when \
                 `zones` is set again",
            ),
            Unfit::LogsLost => write!(
                f,
                "the layout pages are blank, but logs were in use: not formatted again, as that would lose what is logged; restore the device from a copy"
            ),
        }
    }
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OpenError::Config(e) => e.fmt(f),
            OpenError::Device(e) => e.fmt(f),
            OpenError::Unfit { device, fault } => write!(f, "{device}: {fault}"),
            OpenError::Io { device, error } => write!(f, "{device}: {error}"),
            OpenError::Formatting(e) => write!(f, "logs: formatting failed: {e}"),
            OpenError::NoRoomForLogs { device, error } => {
                write!(f, "{device}: cannot allocate the logs: {error}: make room, or choose smaller logs")
            }
            OpenError::NotMarked { device, error } => write!(f, "{device}: cannot renew its superblock: {error}"),
            OpenError::MayHaveGrown { device, to, error } => write!(
                f,
                "{device}: its superblock cannot be renewed for {to} bytes: {error}: nothing that it has is touched; start again"
            ),
            OpenError::Meta { device, error } => write!(f, "{device}: {error}"),
            OpenError::Unrecorded(e) => e.fmt(f),
            OpenError::Rbd(e) => e.fmt(f),
            OpenError::Tape { path, error } => write!(f, "tape {}: {error}", path.display()),
            OpenError::NeedsCache { volumes } => write!(
                f,
                "volumes {} have or had cache mode `back`: starting without [pool.cache] would lose their dirty data, so the pool \
                 isn't served. Start with the cache, change their mode (`plimsoll volume cache`), and wait until they are written \
                 back; if the cache device is lost, see `plimsoll cache give-up`",
                volumes.join(", ")
            ),
            OpenError::Cache(e) => e.fmt(f),
            OpenError::CacheMissing { fault, volumes } => {
                write!(f, "cache: {fault}; only the cache may have what was written to {}", volumes.join(", "))
            }
            OpenError::CacheUnusable { fault, volumes } => write!(
                f,
                "{fault}; only the cache may have what was written to {}, so the pool isn't served. Repair the cache's device and start again; if it is \
                 lost, see `plimsoll cache give-up`",
                volumes.join(", ")
            ),
        }
    }
}

impl std::error::Error for OpenError {}

impl From<BadConfig> for OpenError {
    fn from(e: BadConfig) -> OpenError {
        OpenError::Config(e)
    }
}

impl From<DeviceError> for OpenError {
    fn from(e: DeviceError) -> OpenError {
        OpenError::Device(e)
    }
}

impl From<plimsoll_rbd::Error> for OpenError {
    fn from(e: plimsoll_rbd::Error) -> OpenError {
        OpenError::Rbd(e)
    }
}

/// A change of metadata that are open.
impl From<MetaError> for OpenError {
    fn from(e: MetaError) -> OpenError {
        OpenError::Unrecorded(e)
    }
}
