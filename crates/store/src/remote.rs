//! A Plimsoll device behind a protocol instead of a path: the same layout, over bytes that somebody else reads and writes.

use crate::device::{
    CREATING, CreateOptions, DeviceError, DeviceErrorKind, Expect, First, GrowError, Look, first_bytes, is_used_beyond,
    look_meta, must_be, new_superblock, open_meta, owner, read_superblock, take_on, write_superblock,
};
use crate::lock::Held;
use crate::meta::{MetaError, MetaStore, MetaView};
use crate::probe::{self, Probe};
use crate::region::{Medium, RegionBackend};
use crate::superblock::{REGION_ALIGN, Region, RegionKind, SUPERBLOCK_BYTES, Superblock, check_role};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Bytes behind a protocol. Before a [`RemoteDevice`] is opened for writing, the caller must make sure that nobody else writes there.
pub trait Remote: Medium {
    /// Bytes that it has now.
    ///
    /// # Errors
    /// Those of the protocol.
    fn size_bytes(&self) -> io::Result<u64>;

    /// Makes a range read as zeroes.
    ///
    /// # Errors
    /// Those of the protocol.
    fn zero(&self, offset: u64, len: u64) -> io::Result<()>;
}

/// A local device, where whoever opens it has locked it.
impl Remote for File {
    fn size_bytes(&self) -> io::Result<u64> {
        Probe::of(self).map(|probe| probe.size_bytes)
    }

    fn zero(&self, offset: u64, len: u64) -> io::Result<()> {
        probe::zero(self, offset, len)
    }
}

impl Remote for Held {
    fn size_bytes(&self) -> io::Result<u64> {
        self.file().size_bytes()
    }

    fn zero(&self, offset: u64, len: u64) -> io::Result<()> {
        self.file().zero(offset, len)
    }
}

/// A shared medium is a medium.
#[derive(Clone, Debug)]
pub(crate) struct Shared(pub(crate) Arc<dyn Remote>);

impl Medium for Shared {
    fn read_at(&self, out: &mut [u8], offset: u64) -> io::Result<()> {
        self.0.read_at(out, offset)
    }

    fn write_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        self.0.write_at(data, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.0.sync()
    }
}

/// Bytes that are zeroed by one call.
const ZERO_STEP_BYTES: u64 = 1 << 30;

/// An open device of which the bytes are elsewhere.
#[derive(Debug)]
pub struct RemoteDevice {
    medium: Shared,
    superblock: Superblock,
}

/// Measures of a remote device: it is a block device whose blocks are 512 bytes.
pub(crate) fn probe(medium: &Arc<dyn Remote>) -> Result<Probe, DeviceErrorKind> {
    let size_bytes = medium.size_bytes();
    let size_bytes = size_bytes.map_err(|error| DeviceErrorKind::Io { doing: "cannot find its size", error })?;
    Ok(Probe { is_block_device: true, size_bytes, block_bytes: 512 })
}

impl RemoteDevice {
    /// Formats the device and opens it. `name` is for errors.
    ///
    /// # Errors
    /// Refuses a device whose first MiB isn't zero.
    pub fn create(name: &Path, medium: Arc<dyn Remote>, options: &CreateOptions) -> Result<RemoteDevice, DeviceError> {
        let create = || {
            check_role(&options.role).map_err(DeviceErrorKind::Superblock)?;
            let probe = probe(&medium)?;
            let medium = Shared(medium.clone());
            match first_bytes(&medium, &probe)? {
                First::Blank | First::Creating => {}
                First::Ours => return Err(DeviceErrorKind::Exists),
                First::Lost => return Err(DeviceErrorKind::SuperblockLost),
                First::Foreign => return Err(DeviceErrorKind::Foreign),
            }
            let superblock = new_superblock(&probe, options)?;
            format(&medium, &superblock)?;
            Ok(RemoteDevice { medium, superblock })
        };
        create().map_err(|kind| DeviceError { path: name.into(), kind })
    }

    /// Opens the device.
    ///
    /// # Errors
    /// See [`DeviceErrorKind`].
    pub fn open(name: &Path, medium: Arc<dyn Remote>, expect: &Expect) -> Result<RemoteDevice, DeviceError> {
        let open = || {
            let probe = probe(&medium)?;
            let medium = Shared(medium.clone());
            let (superblock, copies) = read_superblock(&medium, &probe)?;
            must_be(&superblock, expect, &probe)?;
            write_superblock(&medium, &superblock, &superblock.stale(&copies))
                .map_err(|error| DeviceErrorKind::Io { doing: "cannot renew its superblock", error })?;
            Ok(RemoteDevice { medium, superblock })
        };
        open().map_err(|kind| DeviceError { path: PathBuf::from(name), kind })
    }

    /// Looks at the device without changing it.
    ///
    /// # Errors
    /// If its size can't be found.
    pub fn look(name: &Path, medium: Arc<dyn Remote>, expect: &Expect) -> Result<Look, DeviceError> {
        let error = |kind| DeviceError { path: name.into(), kind };
        let probe = probe(&medium).map_err(error)?;
        let medium = Shared(medium);
        let mut is_converted = false;
        let found = read_superblock(&medium, &probe)
            .and_then(|(superblock, copies)| {
                is_converted = Superblock::is_of_older_version(&copies);
                must_be(&superblock, expect, &probe).map(|()| superblock)
            })
            .map_err(error);
        Ok(Look { size_bytes: probe.size_bytes, is_block_device: true, used_by: None, found, is_converted })
    }

    /// Reads the metadata, as [`DeviceFile::look_meta`](crate::DeviceFile::look_meta) does.
    ///
    /// # Errors
    /// As [`RemoteDevice::open`] and [`RemoteDevice::open_meta`].
    pub fn look_meta(name: &Path, medium: Arc<dyn Remote>, expect: &Expect) -> Result<MetaView, DeviceError> {
        let look = || look_meta(Shared(medium.clone()), &probe(&medium)?, expect, u64::MAX);
        look().map_err(|kind| DeviceError { path: name.into(), kind })
    }

    /// The device's size now.
    ///
    /// # Errors
    /// Those of the protocol.
    pub fn size_bytes(&self) -> io::Result<u64> {
        self.medium.0.size_bytes()
    }

    /// Looks for data in a range, as [`DeviceFile::is_used_beyond`](crate::DeviceFile::is_used_beyond) does.
    ///
    /// # Errors
    /// If it can't be read.
    pub fn is_used_beyond(medium: &Arc<dyn Remote>, from: u64, to: u64) -> io::Result<Option<u64>> {
        is_used_beyond(&Shared(medium.clone()), from, to)
    }

    /// Takes on what the device has beyond its superblock's regions, as [`DeviceFile::grow`](crate::DeviceFile::grow) does.
    ///
    /// # Errors
    /// Those of the protocol.
    ///
    /// # Panics
    /// As [`Superblock::grown`].
    pub fn grow(&mut self, end: u64) -> Result<(), GrowError> {
        let next = self.superblock.grown(end);
        take_on(&self.medium, &self.superblock, &next, |from, len| zero(&self.medium, from, from + len))?;
        self.superblock = next;
        Ok(())
    }

    /// Opens the metadata store in the device, as [`DeviceFile::open_meta`](crate::DeviceFile::open_meta) does.
    ///
    /// # Errors
    /// See [`MetaError`].
    pub fn open_meta(&self) -> Result<MetaStore, MetaError> {
        open_meta(self.medium.clone(), &self.superblock, u64::MAX)
    }

    /// Place of volumes' data.
    pub fn home(&self) -> Region {
        self.superblock.region(RegionKind::Home).expect("every superblock has one")
    }

    /// Place of the tables of logs, if it was made with logs.
    pub fn logs(&self) -> Option<Region> {
        self.superblock.region(RegionKind::Logs)
    }

    /// The device.
    pub fn superblock(&self) -> &Superblock {
        &self.superblock
    }
}

/// The superblock comes last: a device with one is complete.
fn format(medium: &Shared, superblock: &Superblock) -> Result<(), DeviceErrorKind> {
    let io = |error| DeviceErrorKind::Io { doing: "cannot format it", error };
    let mut first_bytes = [0; 2 * SUPERBLOCK_BYTES];
    first_bytes[..CREATING.len()].copy_from_slice(CREATING);
    medium.write_at(&first_bytes, 0).map_err(io)?;
    medium.sync().map_err(io)?;
    zero(medium, REGION_ALIGN, superblock.end()).map_err(io)?;
    let region = |kind| superblock.region(kind).expect("every superblock has one");
    let backend = RegionBackend::format(medium.clone(), region(RegionKind::Metadata), owner(superblock)).map_err(io)?;
    MetaStore::format(backend, region(RegionKind::Home)).map_err(DeviceErrorKind::Meta)?;
    medium.sync().map_err(io)?;
    write_superblock(medium, superblock, &superblock.stale(&[[0; SUPERBLOCK_BYTES]; 2])).map_err(io)
}

fn zero(medium: &Shared, from: u64, end: u64) -> io::Result<()> {
    let mut at = from;
    while at < end {
        let step = ZERO_STEP_BYTES.min(end - at);
        medium.0.zero(at, step)?;
        at += step;
    }
    Ok(())
}
