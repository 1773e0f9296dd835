//! Opening a pool: its devices, their metadata, and the layers over them.

mod error;

pub use error::{OpenError, Unfit};

use crate::config::{BadConfig, ByteSize, PoolConfig, VolatileConfig};
use crate::engine::{Device, Devices, FileDevice, PoolOptions, RbdDevice, VolatileFile};
use crate::look::{Grower, Growth, Step, Wanted};
use crate::parts::cache::CacheError;
use crate::parts::settings::{self, CacheDevice, Live};
use crate::plan::{CacheFacts, Facts};
use crate::planted::{self, Mistake};
use plimsoll_base::{CacheMode, Time};
use plimsoll_device::{AnyModel, DeviceOptions, DeviceSpec, ModelLayer};
use plimsoll_pool::{GivenUp, KnownVolume, PoolPlan};
use plimsoll_rbd::{Cluster, Image};
use plimsoll_sched::SchedulerKind;
use plimsoll_stack::{Front, Layer, Offer, Stack};
use plimsoll_store::{
    CreateOptions, DeviceFile, GrowError, Look, MetaError, MetaStore, ROLE_MAIN, RegionKind, RemoteDevice, Superblock,
    Uuid, VolumeRecord,
};
use std::fmt;
use std::path::Path;
use std::sync::Arc;

const MIB: u64 = 1 << 20;

/// Keeps a cache's devices locked against another node.
pub(crate) struct CacheLocks(
    #[allow(dead_code, reason = "locks while they are there")] (DeviceFile, Option<DeviceFile>),
);

/// The opened devices of a cache. Without `device` the pool is served without its cache: its fast device answers nothing.
struct OpenCache {
    locks: Option<CacheLocks>,
    device: Option<CacheDevice>,
    devices: Vec<Device>,
}

/// A pool whose devices are open, before its thread begins.
pub(crate) struct Opened {
    pub cache_locks: Option<CacheLocks>,
    /// The pool as it will be served.
    pub live: Live,
    pub stack: Stack,
    pub devices: Devices,
    pub store: Option<MetaStore>,
    pub home_start: u64,
    pub block_bytes: u32,
    pub rotational: bool,
    pub options: PoolOptions,
    pub device: String,
    pub lock: Option<Held>,
    /// Bytes of the device before and now, if it was taken on at more than it had.
    pub grown: Option<(u64, u64)>,
}

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
struct Main {
    held: Held,
    store: MetaStore,
    device: Device,
    home_start: u64,
    block_bytes: u32,
    rotational: bool,
    description: String,
    /// Number of places for handles of the same bytes that read from one host each.
    handles: usize,
}

/// Number of workers: one per CPU, but no more than one pool's thread can feed.
fn workers_max() -> usize {
    std::thread::available_parallelism().map_or(1, |n| n.get()).min(8)
}

fn pool_options(config: &PoolConfig, precise_timers: bool, trace_every: u32) -> PoolOptions {
    PoolOptions {
        worker_cpus: config.worker_cpus.clone().unwrap_or_default(),
        precise_timers,
        trace_every,
        workers_max: workers_max(),
        ..PoolOptions::default()
    }
}

/// Opens a pool's devices, makes them at the first use, and stacks its layers over them.
///
/// # Errors
/// If a device or the configuration is wrong; the error names the mistake.
pub(crate) fn open_pool(config: &PoolConfig, mut facts: Facts, trace_every: u32) -> Result<Opened, OpenError> {
    let d = &config.device;
    let allowed = crate::engine::check_allowed(config.worker_cpus.as_deref().unwrap_or_default());
    allowed.map_err(|e| BadConfig::found(e).about("worker_cpus"))?;
    if d.null {
        let size_bytes = d.size.expect("checked with the configuration").0;
        let devices = Devices::new(vec![Device::Null { size_bytes }]);
        let (plan, stack) = build_stack(config, &facts, devices.offers())?;
        let device = format!("null, {size_bytes} bytes");
        let options = pool_options(config, false, trace_every);
        let live = Live { config: config.clone(), configured: config.clone(), plan, cache_device: None };
        return Ok(Opened {
            cache_locks: None,
            live,
            stack,
            devices,
            store: None,
            home_start: 0,
            block_bytes: crate::predict::block_bytes(config, 512),
            rotational: false,
            options,
            device,
            lock: None,
            grown: None,
        });
    }
    let Main { mut held, mut store, device, home_start, block_bytes, rotational, description, handles } = match &d.rbd {
        Some(_) => open_main_image(config)?,
        None => open_main_file(config)?,
    };
    let mut configured = config.clone();
    let mut config = config.clone();
    for unfit in settings::keep(&mut config, &store.settings()) {
        warn_of_settings(&config, &unfit);
    }
    let cache = open_cache(&config, &mut facts.cache, held.superblock(), &mut store)?;
    let (cache_locks, cache_device, fast) = cache.map_or((None, None, Vec::new()), |c| (c.locks, c.device, c.devices));
    if let Some(device) = cache_device {
        // Without a size the cache has all of its device.
        let sections = [&mut config, &mut configured].map(|c| c.cache.as_mut());
        sections.into_iter().flatten().for_each(|c| c.size = c.size.or(Some(ByteSize(device.bytes))));
    }
    let places = 1 + fast.len()..1 + fast.len() + handles;
    let of_main = [0..1, places.clone()];
    let size_bytes = device.offer().size_bytes;
    let mut devices: Vec<Device> = std::iter::once(device).chain(fast).collect();
    devices.resize_with(places.end, || Device::Absent { size_bytes });
    if let Held::Image(_, image) = &mut held {
        image.handles = places;
    }
    let modelled = d.model.is_some() || config.cache.as_ref().is_some_and(|c| c.model.is_some());
    let options = pool_options(&config, modelled, trace_every);
    let build = |devices: &[Device]| build_live([&config, &configured], &facts, devices);
    let from = held.superblock().end();
    check_rest(&config, &held)?;
    // Last, as it can't be taken back: a start that is refused leaves the device as it is.
    let growth = growth([&config, &configured], &held);
    let mut warning = growth.warning;
    let mut grown = None;
    let mut built = None;
    if let Some(to) = growth.to {
        set_len(&mut devices, &of_main, to - home_start);
        match build(&devices) {
            Ok(larger) => (built, grown) = (Some(larger), Some((from, to))),
            Err(why) => {
                warning = Some(crate::look::not_served(&config.device.label(), held.superblock(), to, &why));
            }
        }
    }
    if let Some(what) = &warning {
        warn_of_growth(&config, what);
    }
    if let Some((_, to)) = grown {
        let is_grown;
        (store, is_grown) = grow(&config, &mut held, store, to)?;
        if !is_grown {
            (built, grown) = (None, None);
        }
    }
    let (plan, stack, is_live) = match built {
        Some(built) => built,
        None => {
            if growth.to.is_some() {
                set_len(&mut devices, &of_main, from - home_start);
            }
            build(&devices)?
        }
    };
    if let Err(unfit) = is_live {
        warn_of_settings(&config, &unfit);
        config = configured.clone();
    }
    let devices = Devices::new(devices)
        .with_caches(config.cache.is_some() || config.memory.is_some())
        .with_trims_that_zero(config.cache.is_some() || config.logs.is_some());
    let block_bytes = crate::predict::block_bytes(&config, block_bytes);
    Ok(Opened {
        cache_locks,
        live: Live { config, configured, plan, cache_device },
        stack,
        devices,
        store: Some(store),
        home_start,
        block_bytes,
        rotational,
        options,
        device: description,
        lock: Some(held),
        grown,
    })
}

/// A pool's plan and stack with the first of two configurations, in which are settings that were changed live; or with the second, and why it
/// isn't the first.
type Built = (PoolPlan, Stack, Result<(), BadConfig>);

fn build_live([live, configured]: [&PoolConfig; 2], facts: &Facts, devices: &[Device]) -> Result<Built, BadConfig> {
    let offers = || devices.iter().map(Device::offer).collect();
    match build_stack(live, facts, offers()) {
        Err(unfit) if settings::values(live) != settings::values(configured) => {
            let (plan, stack) = build_stack(configured, facts, offers())?;
            Ok((plan, stack, Err(unfit)))
        }
        built => built.map(|(plan, stack)| (plan, stack, Ok(()))),
    }
}

/// Asks for the rest of a start that may be refused, after the devices are open: the tape, and what an RBD image is watched by.
fn check_rest(config: &PoolConfig, held: &Held) -> Result<(), OpenError> {
    if let Some(path) = &config.tape {
        crate::engine::tape::TapeWriter::check(path).map_err(|e| tape_fault(path, e))?;
    }
    match held {
        Held::File(_) => Ok(()),
        Held::Image(_, HeldImage { image, .. }) => Ok(image.size_bytes().and_then(|_| image.layout()).map(drop)?),
    }
}

/// The fault of a tape that can't be made.
pub(crate) fn tape_fault(path: &Path, error: std::io::Error) -> OpenError {
    OpenError::Tape { path: path.to_owned(), error }
}

/// Gives the devices of these numbers, whose region is at the end of theirs, another length.
fn set_len(devices: &mut [Device], numbers: &[std::ops::Range<usize>], len: u64) {
    for number in numbers.iter().cloned().flatten() {
        match &mut devices[number] {
            Device::File(f) => f.len = len,
            Device::Volatile(v) => v.inner.len = len,
            Device::Rbd(d) => d.len = len,
            Device::Absent { size_bytes } => *size_bytes = len,
            Device::Null { .. } => {}
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
    let file = FileDevice { file: data, start: region.offset, len: region.len, block_bytes };
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

/// Decides whether a pool's own device, open, grows now. Its metadata were opened before: they tell if an older superblock came back, beyond
/// which somebody's data would be zeroed.
fn growth(configs: [&PoolConfig; 2], held: &Held) -> Growth {
    let label = configs[1].device.label();
    let (path, d) = (Path::new(&label), &configs[1].device);
    let (there, is_block_device) = match held {
        Held::File(device) => (device.size_bytes(), device.is_block_device()),
        Held::Image(device, _) => (device.size_bytes(), true),
    };
    let there = match there {
        Ok(there) => there,
        Err(e) => {
            let warning = Some(format!("{label}: it doesn't grow: its size can't be found: {e}"));
            return Growth { to: None, warning };
        }
    };
    let path = d.file.as_deref().unwrap_or(path);
    let grower = Grower { configs, path, there, is_block_device };
    grower.decide(held.superblock(), |from, to| match held {
        Held::File(device) => DeviceFile::is_used_beyond(device.path(), from, to),
        Held::Image(_, image) => RemoteDevice::is_used_beyond(&crate::rbd::medium(&image.image), from, to),
    })
}

/// Tells that a pool doesn't have all of its device.
fn warn_of_growth(config: &PoolConfig, what: &str) {
    tracing::warn!(pool = config.name.get_ref(), what, "the pool doesn't have all of its device");
}

/// Takes on what a pool's own device has beyond its regions, up to `to` bytes; its metadata are opened anew. False, after a warning, if there
/// is no room for that, or it can't be zeroed: the device is as it was.
fn grow(config: &PoolConfig, held: &mut Held, store: MetaStore, to: u64) -> Result<(MetaStore, bool), OpenError> {
    let (label, from) = (config.device.label(), held.superblock().end());
    drop(store);
    if !matches!(held, Held::File(device) if !device.is_block_device()) {
        let (pool, bytes) = (config.name.get_ref(), to - from);
        tracing::info!(
            pool,
            device = label,
            bytes,
            "zeroing the space that the pool grows by; a start of the node waits for it"
        );
    }
    let grown = match held {
        Held::File(device) => device.grow(to),
        Held::Image(device, _) => device.grow(to),
    };
    let is_grown = grown.is_ok();
    match grown {
        Ok(()) => {}
        Err(GrowError::Kept(e)) => {
            warn_of_growth(config, &format!("{label}: cannot grow from {from} to {to} bytes: {e}"));
        }
        Err(GrowError::Unclear(error)) => {
            return Err(OpenError::MayHaveGrown { device: label, to, error });
        }
    }
    let store = match held {
        Held::File(device) => device.open_meta(home_bytes(config, device)?),
        Held::Image(device, _) => device.open_meta(),
    };
    Ok((store.map_err(|error| OpenError::Meta { device: label, error })?, is_grown))
}

/// Bytes of a device's home that volumes can have, without logs: a modelled disk may be smaller than the file behind it.
fn home_bytes(config: &PoolConfig, device: &DeviceFile) -> Result<u64, BadConfig> {
    let model = model_of(config, device.home().len)?;
    Ok(model.map_or(u64::MAX, |m| m.offer(&[]).size_bytes / MIB * MIB))
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
fn open_image(
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
            let options =
                CreateOptions { size_bytes, pool_uuid, role: ROLE_MAIN.into(), logs_bytes: 0, main_uuid: None };
            RemoteDevice::create(path, medium, &options)
        }
    }?;
    if device.logs().is_some() {
        return Err(Unfit::LogsOnImage.of(label));
    }
    let store = device.open_meta().map_err(|error| OpenError::Meta { device: label, error })?;
    Ok((device, store, HeldImage { image, cluster, handles: 0..0 }))
}

/// Says that settings which were changed live don't fit the configuration.
pub(crate) fn warn_of_settings(config: &PoolConfig, unfit: &BadConfig) {
    let pool = config.name.get_ref();
    tracing::warn!(pool, what = %unfit, "settings that were changed live don't fit any more: the configured ones hold");
}

/// Bytes of a cache's device, and of its NVRAM, that are rehearsed with where the configuration leaves the size to what is there.
const FAST_BYTES_ASSUMED: u64 = 1 << 30;
const NVRAM_BYTES_ASSUMED: u64 = 64 << 20;

/// Computes the room for volumes in a pool on a new device of `device_bytes`, and the plan of its stack. Makes nothing. Facts that only a start finds out (the cache's generation and volumes, the time of day, settings that were changed live) are
/// left at their defaults in the plan.
///
/// # Errors
/// Why the pool couldn't be served.
pub fn rehearse(config: &PoolConfig, device_bytes: u64) -> Result<(u64, PoolPlan), BadConfig> {
    if config.device.null {
        let (plan, _) = build_stack(config, &Facts::of_files(config)?, vec![rehearsed(device_bytes)])?;
        return Ok((device_bytes, plan));
    }
    if device_bytes < plimsoll_store::DEVICE_BYTES_MIN {
        return Err(BadConfig::new(format!("a device needs at least {} bytes", plimsoll_store::DEVICE_BYTES_MIN)));
    }
    let tables = config.logs.as_ref().map_or(Ok(0), |logs| crate::parts::logs::table_bytes(logs, device_bytes))?;
    let home = *Superblock::region_map(device_bytes, tables).last().expect("home is the last");
    rehearse_layers(config, home.len + tables)
}

/// The offer of a device that is rehearsed with.
fn rehearsed(size_bytes: u64) -> Offer {
    Offer { size_bytes, block_bytes: 512, io_bytes_max: 32 << 20, atomic_bytes: 512, queue_max: 64 }
}

/// The same for a pool whose layers have `len` bytes of its device: the logs' tables and home.
///
/// # Errors
/// Why the pool couldn't be served.
pub fn rehearse_layers(config: &PoolConfig, len: u64) -> Result<(u64, PoolPlan), BadConfig> {
    let (facts, offer) = (Facts::of_files(config)?, rehearsed);
    let seen = model_of(config, len)?.map_or(len, |m| m.offer(&[offer(len)]).size_bytes.min(len));
    let fast = |c: &crate::config::CacheConfig| offer(c.device_size.map_or(FAST_BYTES_ASSUMED, |s| s.0));
    let nvram =
        |c: &crate::config::CacheConfig| Some(offer(c.nvram.as_ref()?.size.map_or(NVRAM_BYTES_ASSUMED, |s| s.0)));
    let further = config.cache.iter().flat_map(|c| std::iter::once(fast(c)).chain(nvram(c)));
    let (plan, _) = build_stack(config, &facts, std::iter::once(offer(len)).chain(further).collect())?;
    let has = match &config.logs {
        None => seen / MIB * MIB,
        Some(logs) => crate::parts::logs::home_bytes(logs, seen, 512)?,
    };
    Ok((has, plan))
}

/// Opens a pool's device and its metadata; makes them at the first use. Before, `check` is asked whether that may be.
fn open_device(
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
            (Some(_), Some(tables)) => crate::parts::logs::check_before(path, tables)?,
        }
    }
    let mut device = match step {
        Step::Open => DeviceFile::open(path, &expect)?,
        Step::Make(size_bytes) => {
            let bytes = if size_bytes == 0 { device_bytes(path) } else { size_bytes };
            let tables = |logs| crate::parts::logs::table_bytes(logs, bytes);
            let logs_bytes = config.logs.as_ref().map_or(Ok(0), tables)?;
            let pool_uuid = expect.pool_uuid.expect("a pool's device is that pool's");
            let options = CreateOptions { size_bytes, pool_uuid, role: ROLE_MAIN.into(), logs_bytes, main_uuid: None };
            DeviceFile::create(path, &options)?
        }
    };
    // A device has logs if its pool has: that was checked, and a new one is made so.
    let home_bytes = match config.logs.as_ref().zip(device.logs()) {
        None => home_bytes(config, &device)?,
        Some((logs, tables)) => {
            let mut region = crate::parts::logs::device_of(tables, device.home());
            // A modelled disk may be smaller than the file behind it.
            region.len = region.len.min(model_of(config, region.len)?.map_or(u64::MAX, |m| m.offer(&[]).size_bytes));
            let unopened = |error| OpenError::Io { device: path.display().to_string(), error };
            let file = std::fs::File::options().read(true).write(true).open(path).map_err(unopened)?;
            let salt = Uuid::new_v4().as_u64_pair().0;
            let (block_bytes, was_formatted) = (device.block_bytes(), device.is_formatted());
            let made = crate::parts::logs::format_if_blank(logs, &file, region, block_bytes, salt, was_formatted)?;
            if !was_formatted {
                reserve_logs(&device, &crate::parts::logs::log_runs(logs, region, block_bytes)?, made)?;
            }
            set_formatted(&mut device)?;
            crate::parts::logs::home_bytes(logs, region.len, device.block_bytes())?
        }
    };
    if let Some(error) = device.unreserved() {
        tracing::warn!(path = %path.display(), %error, "cannot allocate the pool's own regions: changes of metadata and flushes fail when the file system is full");
    }
    let unread = |error| OpenError::Meta { device: path.display().to_string(), error };
    let store = device.open_meta(home_bytes).map_err(unread)?;
    Ok((device, store))
}

/// Notes that a device's logs, or its cache, are formatted.
fn set_formatted(device: &mut DeviceFile) -> Result<(), OpenError> {
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

/// Opens a pool's fast device and the NVRAM before it, if it's configured to have them; formats them at the first use.
///
/// If they can't be opened, read or written, the pool is served without its cache, unless the cache may have data that the pool's own
/// device lacks. The pool's metadata say so, volume by volume: a volume's record is made before its first write-back write, and taken back
/// only after the cache's journal says durably that all of it is written back. Before the pool is served without it, the metadata say
/// that the device's content is out of date.
fn open_cache(
    config: &PoolConfig,
    facts: &mut CacheFacts,
    main: &Superblock,
    store: &mut MetaStore,
) -> Result<Option<OpenCache>, OpenError> {
    let behind = behind(store);
    let Some(c) = &config.cache else {
        if !behind.is_empty() {
            return Err(OpenError::NeedsCache { volumes: behind });
        }
        // What is written from now on passes the cache by: what it has is out of date should it come back.
        if store.cache_generation() > 0 {
            store.miss_cache()?;
        }
        return Ok(None);
    };
    let needed = (!behind.is_empty()).then(|| format!("what was written to {}", behind.join(", ")));
    match open_cache_devices(c, facts, main, needed.as_deref(), store) {
        Ok(opened) => Ok(Some(opened)),
        Err(e @ CacheError::Refused(_)) => Err(OpenError::Cache(e)),
        Err(fault) if needed.is_some() => Err(OpenError::CacheUnusable { fault, volumes: behind }),
        Err(fault) => serve_without(config, c, facts, &fault, store).map(Some),
    }
}

/// The volumes of which only the pool's cache may have something.
pub fn behind(view: &plimsoll_store::MetaView) -> Vec<String> {
    view.volumes().filter(|v| view.may_be_behind(v)).map(|v| v.name.clone()).collect()
}

/// Refuses a pool without a cache that volumes need, by its metadata, before its device is converted to a newer version.
fn check_converted(
    config: &PoolConfig,
    look: Option<&Look>,
    meta: impl FnOnce() -> Result<plimsoll_store::MetaView, plimsoll_store::DeviceError>,
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

/// The cache of a pool whose fast device can't be used, and isn't needed by any volume.
fn serve_without(
    config: &PoolConfig,
    c: &crate::config::CacheConfig,
    facts: &mut CacheFacts,
    fault: &CacheError,
    store: &mut MetaStore,
) -> Result<OpenCache, OpenError> {
    store.miss_cache()?;
    let known =
        |v: &VolumeRecord| KnownVolume { id: v.key.id, generation: v.key.generation, behind: store.may_be_behind(v) };
    facts.known = Some(store.volumes().map(known).collect());
    tracing::error!(
        pool = config.name.get_ref(),
        error = %fault,
        "the cache's device can't be used: the pool is served without its cache, which no volume needs; repair the device, then restart the \
         node"
    );
    facts.absent = Some(fault.to_string());
    let size_bytes = c.device_size.map_or(FAST_BYTES_ASSUMED, |size| size.0.max(FAST_BYTES_ASSUMED));
    Ok(OpenCache { locks: None, device: None, devices: vec![Device::Absent { size_bytes }] })
}

/// Opens the devices of a cache, and formats them at the first use. `needed` says what only the cache may have. Volumes that may be
/// behind from now on are recorded last: nothing of this start is left in their records if a device fails before.
fn open_cache_devices(
    c: &crate::config::CacheConfig,
    facts: &mut CacheFacts,
    main: &Superblock,
    needed: Option<&str>,
    store: &mut MetaStore,
) -> Result<OpenCache, CacheError> {
    let had_one = store.cache_generation() > 0;
    let needed = needed.filter(|_| had_one);
    let Superblock { pool_uuid, device_uuid, .. } = *main;
    let metadata =
        crate::parts::cache::InMetadata { had_one, device: store.cache().device, is_needed: needed.is_some() };
    let known = crate::parts::cache::Known { pool_uuid, main_uuid: Some(device_uuid), metadata: Some(metadata) };
    let mut opened = crate::parts::cache::open(c, known, needed)?;
    // A modelled drive may be smaller than the file behind it.
    let seen = model_named(c.model.as_deref(), opened.region.len)?.map_or(u64::MAX, |m| m.offer(&[]).size_bytes);
    opened.region.len = opened.region.len.min(seen);
    // A start that was cut short may have made the device and noted its generation, and formatted nothing.
    let fresh = opened.new || !had_one || !opened.device.is_formatted();
    // Before the generation: a start that is cut between both finds no volume that needs a cache which was never made.
    if fresh {
        let all: Vec<u32> = store.volumes().map(|v| v.key.id).collect();
        store.set_behind(&all, false)?;
    }
    // One that was replaced, and comes back, has what was current then.
    let is_another = store.cache().device.is_some_and(|d| d != opened.device.superblock().device_uuid);
    let named = store.cache().nvram.filter(|_| !is_another);
    if fresh || is_another || store.cache().absent {
        store.outdate_cache()?;
    }
    // It wraps after 65,536 failures of the device, long after any cached content of that number is gone.
    let generation = store.cache_generation() as u16;
    facts.generation = generation;
    let given_up =
        |v: &VolumeRecord| Some(GivenUp { id: v.key.id, generation: v.key.generation, since: v.given_up? as u16 });
    facts.given_up = store.volumes().filter_map(given_up).collect();
    let block_bytes = opened.device.block_bytes();
    let buffered = std::fs::File::options().read(true).write(true).open(&c.file).map_err(CacheError::of_io)?;
    // A cache that is just being made needs nothing of what was there before; a blank page of one that was there is damage.
    crate::parts::cache::check_page(&buffered, &opened, needed.filter(|_| !fresh))?;
    let is_needed = needed.is_some();
    let nvram_known = crate::parts::cache::KnownNvram { pool_uuid, named, is_needed, is_outdated: is_another };
    let nvram = crate::parts::cache::open_nvram(c, nvram_known, &buffered, &opened)?;
    // Before it is formatted: from then on no other devices are this pool's cache.
    let nvram_uuid = nvram.as_ref().map(|n| n.superblock().device_uuid);
    store.set_cache_devices(opened.device.superblock().device_uuid, nvram_uuid)?;
    let salt = Uuid::new_v4().as_u64_pair().0;
    let salt = crate::parts::cache::format_if_blank(c, &buffered, opened.region, block_bytes, generation, salt)?;
    facts.nvram_salt = salt.unwrap_or(0);
    set_formatted(&mut opened.device).map_err(|e| CacheError::Unusable(e.to_string()))?;
    let devices = [Some(&opened.device), nvram.as_ref()];
    let weus = crate::parts::cache::weus_of(c, &buffered, opened.region, block_bytes)?;
    let mut devices: Vec<Device> = devices.into_iter().flatten().map(home_of).collect::<Result<_, _>>()?;
    if let Some(v) = &c.volatile_cache {
        // It writes sector by sector, which direct I/O may refuse.
        let region = opened.device.home();
        devices[0] = volatile(v, FileDevice { file: buffered, start: region.offset, len: region.len, block_bytes });
    }
    let device = CacheDevice { bytes: opened.region.len, weus };
    facts.known = Some(note_behind(c.mode, store)?);
    Ok(OpenCache { locks: Some(CacheLocks((opened.device, nvram))), device: Some(device), devices })
}

/// Notes of which volumes only the cache may have something from now on, before anything is written to them. Returns all volumes, and of
/// which of them it may have something already.
fn note_behind(mode: CacheMode, store: &mut MetaStore) -> Result<Vec<KnownVolume>, MetaError> {
    let known =
        |v: &VolumeRecord| KnownVolume { id: v.key.id, generation: v.key.generation, behind: store.may_be_behind(v) };
    let known = store.volumes().map(known).collect();
    let is_back = |v: &&VolumeRecord| v.cache.unwrap_or(mode) == CacheMode::Back;
    let back: Vec<u32> = store.volumes().filter(is_back).map(|v| v.key.id).collect();
    store.set_behind(&back, true)?;
    Ok(known)
}

/// The reason for which nothing was given up.
#[derive(Debug)]
pub enum GiveUpError {
    /// The pool isn't on a device, and so has no cache.
    NoDevice,
    /// Its device can't be opened, or can't record it.
    Open(OpenError),
    /// There is no such volume.
    NoVolume {
        /// The pool.
        pool: String,
        /// The volume's name.
        volume: String,
    },
    /// Nothing of the volume is in the cache alone.
    NothingDirty {
        /// The volume.
        volume: String,
    },
}

impl fmt::Display for GiveUpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GiveUpError::NoDevice => write!(f, "a pool without a device has no cache"),
            GiveUpError::Open(e) => e.fmt(f),
            GiveUpError::NoVolume { pool, volume } => write!(f, "pool `{pool}` has no volume `{volume}`"),
            GiveUpError::NothingDirty { volume } => {
                write!(f, "the cache has nothing of volume `{volume}` that isn't on the pool's own device")
            }
        }
    }
}

impl std::error::Error for GiveUpError {}

impl From<OpenError> for GiveUpError {
    fn from(e: OpenError) -> GiveUpError {
        GiveUpError::Open(e)
    }
}

/// Gives up what only a pool's cache has of a volume, while no node serves the pool.
///
/// # Errors
/// The reason, before anything was given up.
pub fn give_up(config: &PoolConfig, volume: &str) -> Result<(), GiveUpError> {
    let is_there = |main: Option<&Look>| match main {
        Some(Look { found: Ok(_), .. }) => Ok(()),
        _ => Err(Unfit::NoPool.of(config.device.label())),
    };
    let (_held, mut store) = match (&config.device.file, &config.device.rbd) {
        (None, None) => return Err(GiveUpError::NoDevice),
        (Some(path), _) => {
            let (device, store) = open_device(config, path, is_there)?;
            (Held::File(device), store)
        }
        (None, Some(_)) => {
            let (device, store, image) = open_image(config, is_there)?;
            (Held::Image(device, image), store)
        }
    };
    match store.volume(volume) {
        None => Err(GiveUpError::NoVolume { pool: config.name.get_ref().clone(), volume: volume.into() }),
        Some(v) if !store.may_be_behind(v) => Err(GiveUpError::NothingDirty { volume: volume.into() }),
        Some(_) => Ok(store.give_up(volume).map(drop).map_err(OpenError::from)?),
    }
}

/// A device that loses what isn't flushed when the process is killed.
fn volatile(config: &VolatileConfig, file: FileDevice) -> Device {
    let mut volatile = VolatileFile::new(file, config.seed);
    (volatile.flush_lies, volatile.fua_lies) = (config.flush_lies, config.fua_lies);
    Device::Volatile(volatile)
}

/// All of a device that its layer may use.
fn home_of(device: &DeviceFile) -> Result<Device, OpenError> {
    let unopened = |error| OpenError::Io { device: device.path().display().to_string(), error };
    let file = std::fs::File::from(device.data_fd().try_clone_to_owned().map_err(unopened)?);
    let (home, block_bytes) = (device.home(), device.block_bytes());
    Ok(Device::File(FileDevice { file, start: home.offset, len: home.len, block_bytes }))
}

/// The modelled device over a file of `file_bytes`, if it is to be one.
fn model_of(config: &PoolConfig, file_bytes: u64) -> Result<Option<ModelLayer<AnyModel>>, BadConfig> {
    model_named(config.device.model.as_deref(), file_bytes)
}

/// The device modelled by this profile, if one is named.
fn model_named(name: Option<&str>, file_bytes: u64) -> Result<Option<ModelLayer<AnyModel>>, BadConfig> {
    let Some(name) = name else { return Ok(None) };
    // A flash drive's maps take memory by capacity: no more of it than the file behind it.
    let spec = DeviceSpec::named(name).map_err(BadConfig::found)?.at_most(file_bytes);
    let model = spec.build(DeviceOptions::default()).map_err(BadConfig::found)?;
    Ok(Some(ModelLayer::new(model)))
}

fn device_bytes(path: &Path) -> u64 {
    use std::io::{Seek, SeekFrom};
    std::fs::File::open(path).and_then(|mut f| f.seek(SeekFrom::End(0))).unwrap_or(0)
}

/// A pool's plan and stack, as configured, over devices that offer `offers`.
///
/// # Errors
/// If the configuration is wrong; the error names the mistake.
pub fn build_stack(config: &PoolConfig, facts: &Facts, offers: Vec<Offer>) -> Result<(PoolPlan, Stack), BadConfig> {
    let plan = crate::plan::plan(config, facts, offers[plimsoll_pool::SLOW])?;
    let mut stack = plimsoll_pool::build(&plan, offers).map_err(BadConfig::found)?;
    if planted::is(Mistake::RangesWhole) {
        stack.with_layer(Time::ZERO, |f: &mut Front, _| f.set_parts(1 << 62));
    }
    Ok((plan, stack))
}
