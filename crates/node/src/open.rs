//! Opening a pool: its devices, their metadata, and the layers over them.

mod cache;
mod error;
mod give_up;
mod growth;
mod own;
mod rehearsal;
mod stack;

pub(crate) use cache::CacheLocks;
pub use cache::behind;
pub use error::{OpenError, Unfit};
pub use give_up::{GiveUpError, give_up};
pub(crate) use own::{Held, check_modelled};
pub use rehearsal::{rehearse, rehearse_layers};
pub use stack::build_stack;

use crate::config::{BadConfig, ByteSize, PoolConfig, VolatileConfig};
use crate::engine::{Device, Devices, FileDevice, PoolOptions, VolatileFile};
use crate::parts::settings::{self, Live};
use crate::plan::Facts;
use cache::open_cache;
use growth::{Grown, Ports, build_grown};
use own::{HeldImage, Main};
use plimsoll_stack::Stack;
use plimsoll_store::MetaStore;
use std::path::Path;

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
    let Main { mut held, mut store, device, home_start, block_bytes, rotational, description, handles } =
        Main::open(config)?;
    let mut configured = config.clone();
    let mut config = config.clone();
    for unfit in settings::keep(&mut config, &store.settings()) {
        warn_of_settings(&config, &unfit);
    }
    facts.salt = own::salt_of(held.superblock());
    let cache = open_cache(&config, &mut facts.cache, held.superblock(), &mut store)?;
    let (cache_locks, cache_device, fast) = cache.map_or((None, None, Vec::new()), |c| (c.locks, c.device, c.devices));
    if let Some(device) = cache_device {
        // Without a size the cache has all of its device.
        let sections = [&mut config, &mut configured].map(|c| c.cache.as_mut());
        sections.into_iter().flatten().for_each(|c| c.size = c.size.or(Some(ByteSize(device.bytes))));
    }
    let mut ports = Ports::new(device, fast, handles);
    if let Held::Image(_, image) = &mut held {
        image.handles = ports.places();
    }
    let modelled = d.model.is_some() || config.cache.as_ref().is_some_and(|c| c.model.is_some());
    let options = pool_options(&config, modelled, trace_every);
    check_rest(&config, &held)?;
    let Grown { built: (plan, stack, is_live), store, grown } =
        build_grown([&config, &configured], &facts, &mut held, home_start, store, &mut ports)?;
    if let Err(unfit) = is_live {
        warn_of_settings(&config, &unfit);
        config = configured.clone();
    }
    let devices = Devices::new(ports.devices)
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

/// Says that settings which were changed live don't fit the configuration.
pub(crate) fn warn_of_settings(config: &PoolConfig, unfit: &BadConfig) {
    let pool = config.name.get_ref();
    tracing::warn!(pool, what = %unfit, "settings that were changed live don't fit any more: the configured ones hold");
}

/// A device that loses what isn't flushed when the process is killed.
fn volatile(config: &VolatileConfig, file: FileDevice) -> Device {
    let mut volatile = VolatileFile::new(file, config.seed);
    (volatile.flush_lies, volatile.fua_lies) = (config.flush_lies, config.fua_lies);
    Device::Volatile(volatile)
}
