//! A pool's own device: a file, a block device or an RBD image, with the pool's metadata.

use super::cache::behind;
use super::stack::model_of;
use super::{OpenError, Unfit, volatile};
use crate::config::{BadConfig, PoolConfig};
use crate::engine::{Device, FileDevice, RbdDevice};
use crate::look::{Step, Wanted};
use plimsoll_device::DeviceSpec;
use plimsoll_rbd::{Cluster, Image};
use plimsoll_sched::SchedulerKind;
use plimsoll_stack::Layer;
use plimsoll_store::{
    CreateOptions, DeviceError, DeviceFile, Look, MetaStore, MetaView, ROLE_MAIN, Region, RegionKind, RemoteDevice,
    Superblock, Uuid,
};
use std::path::Path;
use std::sync::Arc;

const MIB: u64 = 1 << 20;

/// Keeps a pool's device from other nodes as long as it is there.
pub(crate) enum Held {
    File(DeviceFile),
    Image(RemoteDevice, HeldImage),
}

/// An RBD image, with what its map is made of.
pub(crate) struct HeldImage {
    pub image: Arc<Image>,
    pub cluster: Arc<Cluster>,
    /// The pool's devices that are places for handles of the same image that read from one host each.
    pub handles: std::ops::Range<usize>,
}

impl Held {
    pub fn uuid(&self) -> Uuid {
        self.superblock().device_uuid
    }

    pub fn superblock(&self) -> &Superblock {
        match self {
            Held::File(d) => d.superblock(),
            Held::Image(d, _) => d.superblock(),
        }
    }
}

/// A pool's own device, opened.
pub(super) struct Main {
    pub held: Held,
    pub store: MetaStore,
    pub device: Device,
    pub home_start: u64,
    pub block_bytes: u32,
    pub rotational: bool,
    pub description: String,
    /// Number of places for handles of the same bytes that read from one host each.
    pub handles: usize,
}

impl Main {
    /// Opens the device, or makes it at the first use.
    ///
    /// # Errors
    /// If it can't be, or its pool couldn't be served.
    pub(super) fn open(config: &PoolConfig) -> Result<Main, OpenError> {
        match config.device.rbd {
            Some(_) => open_main_image(config),
            None => open_main_file(config),
        }
    }
}

/// Opens a pool's own file or block device.
fn open_main_file(config: &PoolConfig) -> Result<Main, OpenError> {
    let d = &config.device;
    let path = d.file.as_deref().expect("checked with the configuration");
    let (device_file, store) = open_device(config, path, |main| {
        crate::look::check_cache(config, main)?;
        check_converted(config, main, || DeviceFile::look_meta(path, &crate::look::expect(config), u64::MAX))
    })?;
    if !device_file.is_direct() {
        tracing::warn!(path = %path.display(), "the file system refuses direct I/O: the page cache lies between");
    }
    let home = device_file.home();
    let block_bytes = device_file.block_bytes();
    let model = d.model.as_deref().map(DeviceSpec::named).transpose().map_err(BadConfig::found)?;
    let unopened = |error| OpenError::Io { device: path.display().to_string(), error };
    let rotational = model.is_some_and(|m| m.is_rotational());
    let data = match &d.volatile_cache {
        None => std::fs::File::from(device_file.data_fd().try_clone_to_owned().map_err(unopened)?),
        // It writes sector by sector, which direct I/O may refuse.
        Some(_) => std::fs::File::options().read(true).write(true).open(path).map_err(unopened)?,
    };
    // With logs, their tables come before home, and the logs lie in it.
    let region = device_file.logs().map_or(home, |tables| crate::parts::logs::device_of(tables, home));
    let has_failed_sync = device_file.has_failed_sync().clone();
    let file = FileDevice { file: data, start: region.offset, len: region.len, block_bytes, has_failed_sync };
    let kind = d.model.as_ref().map_or("file".to_string(), |m| format!("modelled {m} over"));
    let description = format!("{kind} {}", path.display());
    let device = match &d.volatile_cache {
        None => Device::File(file),
        Some(v) => volatile(v, file),
    };
    Ok(Main {
        held: Held::File(device_file),
        store,
        device,
        home_start: home.offset,
        block_bytes,
        rotational,
        description,
        handles: 0,
    })
}

/// Opens a pool's own RBD image, and takes its exclusive lock.
fn open_main_image(config: &PoolConfig) -> Result<Main, OpenError> {
    let (held, store, image) = open_image(config, |main| crate::look::check_cache(config, main))?;
    let label = config.device.label();
    let home = held.home();
    let queue = plimsoll_rbd::Queue::new(image.image.clone())?;
    let main = Device::Rbd(RbdDevice { queue, start: home.offset, len: home.len });
    // They are opened when the pool runs: a cluster may refuse them for a while, or answer late.
    let handles = if crate::plan::kind(config)? == SchedulerKind::Osds { crate::rbd::HANDLES_MAX } else { 0 };
    let block_bytes = main.offer().block_bytes;
    Ok(Main {
        held: Held::Image(held, image),
        store,
        device: main,
        home_start: home.offset,
        block_bytes,
        rotational: false,
        description: label,
        handles,
    })
}

/// Opens an RBD image and its metadata; makes them at the first use. Before, `check` is asked whether that may be.
pub(super) fn open_image(
    config: &PoolConfig,
    check: impl FnOnce(Option<&Look>) -> Result<(), OpenError>,
) -> Result<(RemoteDevice, MetaStore, HeldImage), OpenError> {
    let (d, expect) = (&config.device, crate::look::expect(config));
    let label = d.label();
    let path = Path::new(&label);
    let cluster = crate::rbd::connect(d, &[])?;
    // Before the lock is asked for: whoever has a foreign image must not be asked to give it up.
    let seen = crate::rbd::look(&cluster, d, &expect)?;
    let (step, seen) = Wanted::main(d, path).step(Some(seen))?;
    check(seen.as_ref())?;
    let image = crate::rbd::open(&cluster, d, false)?;
    image.lock()?;
    let medium = crate::rbd::medium(&image);
    let device = match step {
        Step::Open => RemoteDevice::open(path, medium, &expect),
        Step::Make(size_bytes) => {
            let pool_uuid = expect.pool_uuid.expect("a pool's device is that pool's");
            let options = CreateOptions {
                size_bytes,
                pool_uuid,
                role: ROLE_MAIN.into(),
                logs_bytes: 0,
                align_bytes: 0,
                main_uuid: None,
            };
            RemoteDevice::create(path, medium, &options)
        }
    }?;
    if device.logs().is_some() {
        return Err(Unfit::LogsOnImage.of(label));
    }
    let store = device.open_meta().map_err(|error| OpenError::Meta { device: label, error })?;
    Ok((device, store, HeldImage { image, cluster, handles: 0..0 }))
}

/// Opens a pool's device and its metadata; makes them at the first use. Before, `check` is asked whether that may be.
pub(super) fn open_device(
    config: &PoolConfig,
    path: &Path,
    check: impl FnOnce(Option<&Look>) -> Result<(), OpenError>,
) -> Result<(DeviceFile, MetaStore), OpenError> {
    let d = &config.device;
    let expect = crate::look::expect(config);
    let (step, look) = Wanted::main(d, path).step(DeviceFile::look(path, &expect)?)?;
    check(look.as_ref())?;
    if let Some(Look { found: Ok(superblock), .. }) = &look {
        match (&config.logs, superblock.region(RegionKind::Logs)) {
            (None, Some(_)) => return Err(Unfit::HasLogs.of(path.display())),
            (Some(_), None) => return Err(Unfit::HasNoLogs.of(path.display())),
            (None, None) => {}
            (Some(_), Some(tables)) => crate::parts::logs::check_before(path, tables, Some(config))?,
        }
    }
    let mut device = match step {
        Step::Open => DeviceFile::open(path, &expect)?,
        Step::Make(size_bytes) => {
            let bytes = if size_bytes == 0 { device_bytes(path) } else { size_bytes };
            let tables = |_| crate::parts::logs::table_bytes(config, bytes);
            let logs_bytes = config.logs.as_ref().map_or(Ok(0), tables)?;
            let pool_uuid = expect.pool_uuid.expect("a pool's device is that pool's");
            let align_bytes = crate::parts::bands::align_bytes(config)?;
            let role = ROLE_MAIN.into();
            let options = CreateOptions { size_bytes, pool_uuid, role, logs_bytes, align_bytes, main_uuid: None };
            DeviceFile::create(path, &options)?
        }
    };
    // A device has logs if its pool has: that was checked, and a new one is made so.
    let home_bytes = match config.logs.as_ref().and(device.logs()) {
        None => home_bytes(config, device.home())?,
        Some(tables) => {
            let region = crate::parts::logs::device_of(tables, device.home());
            let unopened = |error| OpenError::Io { device: path.display().to_string(), error };
            let file = std::fs::File::options().read(true).write(true).open(path).map_err(unopened)?;
            let salts = [Uuid::new_v4().as_u64_pair().0, salt_of(device.superblock())];
            let (block_bytes, was_formatted) = (device.block_bytes(), device.is_formatted());
            let made = crate::parts::logs::format_if_blank(config, &file, region, block_bytes, salts, was_formatted)?;
            if !was_formatted {
                reserve_logs(&device, &crate::parts::logs::log_runs(config, region, block_bytes)?, made)?;
            }
            set_formatted(&mut device)?;
            crate::parts::logs::home_bytes(config, region.len, device.block_bytes())?
        }
    };
    if let Some(error) = device.unreserved() {
        tracing::warn!(path = %path.display(), %error, "cannot allocate the pool's own regions: changes of metadata and flushes fail when the file system is full");
    }
    let store = device.open_meta(home_bytes).map_err(|error| {
        let device_name = path.display().to_string();
        let view = || DeviceFile::look_meta(path, &expect, u64::MAX).ok();
        match config.device.model.as_deref().zip(view()) {
            Some((model, view)) => check_model(model, &device_name, device.home(), home_bytes, &view).err(),
            None => None,
        }
        .unwrap_or(OpenError::Meta { device: device_name, error })
    })?;
    Ok((device, store))
}

/// The same as a start's look at a modelled device without logs, for a device that isn't opened.
///
/// # Errors
/// If the model is none, or too small.
pub(crate) fn check_modelled(
    config: &PoolConfig,
    superblock: &Superblock,
    view: &MetaView,
    device: &Path,
) -> Result<(), OpenError> {
    let regions = (superblock.region(RegionKind::Home), superblock.region(RegionKind::Logs));
    let (Some(model), (Some(home), None)) = (config.device.model.as_deref(), regions) else { return Ok(()) };
    check_model(model, &device.display().to_string(), home, home_bytes(config, home)?, view)
}

/// Checks that a modelled device has the space that its pool's volumes have. `home_bytes` is what it leaves of their region.
fn check_model(model: &str, device: &str, home: Region, home_bytes: u64, view: &MetaView) -> Result<(), OpenError> {
    let ends = view.volumes().chain(view.deleting()).flat_map(|v| &v.extents).map(|e| e.device_offset + e.len);
    let used_bytes = ends.max().map_or(0, |end| end - home.offset);
    match used_bytes > home_bytes {
        true => Err(Unfit::ModelTooSmall { model: model.to_string(), home_bytes, used_bytes }.of(device)),
        false => Ok(()),
    }
}

/// Refuses a pool without a cache that volumes need, by its metadata, before its device is converted to a newer version.
fn check_converted(
    config: &PoolConfig,
    look: Option<&Look>,
    meta: impl FnOnce() -> Result<MetaView, DeviceError>,
) -> Result<(), OpenError> {
    if config.cache.is_some() || !look.is_some_and(|look| look.found.is_ok() && look.is_converted) {
        return Ok(());
    }
    match meta() {
        Ok(view) => match behind(&view) {
            none if none.is_empty() => Ok(()),
            volumes => Err(OpenError::NeedsCache { volumes }),
        },
        // The opening has the same error, before it changes anything but the superblocks.
        Err(_) => Ok(()),
    }
}

/// Bytes of a device's home that volumes can have, without logs: a modelled disk may be smaller than the file behind it.
pub(super) fn home_bytes(config: &PoolConfig, home: Region) -> Result<u64, BadConfig> {
    let model = model_of(config, home.len)?;
    Ok(model.map_or(u64::MAX, |m| m.offer(&[]).size_bytes / MIB * MIB))
}

/// Makes checksums of the layers on a device its own.
pub(super) fn salt_of(superblock: &Superblock) -> u64 {
    superblock.device_uuid.as_u64_pair().0
}

/// Notes that a device's logs, or its cache, are formatted.
pub(super) fn set_formatted(device: &mut DeviceFile) -> Result<(), OpenError> {
    let path = device.path().to_owned();
    device.set_formatted().map_err(|error| OpenError::NotMarked { device: path.display().to_string(), error })
}

/// Allocates the logs in a sparse file, when they are made or a pool of an earlier version is first opened. Without room for
/// them new logs are refused; logs that hold data are served, with a warning.
fn reserve_logs(device: &DeviceFile, runs: &[(u64, u64)], made: bool) -> Result<(), OpenError> {
    let path = device.path().display();
    match device.reserve(runs) {
        Err(error) if made => Err(OpenError::NoRoomForLogs { device: path.to_string(), error }),
        Err(error) => {
            tracing::warn!(%path, %error, "cannot allocate the pool's logs: flushes fail when the file system is full");
            Ok(())
        }
        Ok(()) => Ok(()),
    }
}

fn device_bytes(path: &Path) -> u64 {
    use std::io::{Seek, SeekFrom};
    std::fs::File::open(path).and_then(|mut f| f.seek(SeekFrom::End(0))).unwrap_or(0)
}
