//! The devices of a pool's cache: opened, or left out where no volume needs them.

use super::own::set_formatted;
use super::rehearsal::FAST_BYTES_ASSUMED;
use super::stack::model_named;
use super::{OpenError, volatile};
use crate::config::{CacheConfig, PoolConfig};
use crate::engine::{Device, FileDevice};
use crate::parts::cache::{self, CacheError};
use crate::parts::settings::CacheDevice;
use crate::plan::CacheFacts;
use plimsoll_base::CacheMode;
use plimsoll_pool::{GivenUp, KnownVolume};
use plimsoll_stack::Layer;
use plimsoll_store::{DeviceFile, MetaError, MetaStore, MetaView, Superblock, Uuid, VolumeRecord};

/// Keeps a cache's devices locked against another node.
pub(crate) struct CacheLocks(
    #[allow(dead_code, reason = "locks while they are there")] (DeviceFile, Option<DeviceFile>),
);

/// The opened devices of a cache. Without `device` the pool is served without its cache: its fast device answers nothing.
pub(super) struct OpenCache {
    pub locks: Option<CacheLocks>,
    pub device: Option<CacheDevice>,
    pub devices: Vec<Device>,
}

/// Opens a pool's fast device and the NVRAM before it, if it's configured to have them; formats them at the first use.
///
/// If they can't be opened, read or written, the pool is served without its cache, unless the cache may have data that the pool's own
/// device lacks. The pool's metadata say so, volume by volume: a volume's record is made before its first write-back write, and taken back
/// only after the cache's journal says durably that all of it is written back. Before the pool is served without it, the metadata say
/// that the device's content is out of date.
pub(super) fn open_cache(
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
pub fn behind(view: &MetaView) -> Vec<String> {
    view.volumes().filter(|v| view.may_be_behind(v)).map(|v| v.name.clone()).collect()
}

/// The cache of a pool whose fast device can't be used, and isn't needed by any volume.
fn serve_without(
    config: &PoolConfig,
    c: &CacheConfig,
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
    c: &CacheConfig,
    facts: &mut CacheFacts,
    main: &Superblock,
    needed: Option<&str>,
    store: &mut MetaStore,
) -> Result<OpenCache, CacheError> {
    let had_one = store.cache_generation() > 0;
    let needed = needed.filter(|_| had_one);
    let Superblock { pool_uuid, device_uuid, .. } = *main;
    let metadata = cache::InMetadata { had_one, device: store.cache().device, is_needed: needed.is_some() };
    let known = cache::Known { pool_uuid, main_uuid: Some(device_uuid), metadata: Some(metadata) };
    let mut opened = cache::open(c, known, needed)?;
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
    cache::check_page(&buffered, &opened, needed.filter(|_| !fresh))?;
    let is_needed = needed.is_some();
    let nvram_known = cache::KnownNvram { pool_uuid, named, is_needed, is_outdated: is_another };
    let nvram = cache::open_nvram(c, nvram_known, &buffered, &opened)?;
    // Before it is formatted: from then on no other devices are this pool's cache.
    let nvram_uuid = nvram.as_ref().map(|n| n.superblock().device_uuid);
    store.set_cache_devices(opened.device.superblock().device_uuid, nvram_uuid)?;
    let salt = Uuid::new_v4().as_u64_pair().0;
    let salt = cache::format_if_blank(c, &buffered, opened.region, block_bytes, generation, salt)?;
    facts.nvram_salt = salt.unwrap_or(0);
    set_formatted(&mut opened.device).map_err(|e| CacheError::Unusable(e.to_string()))?;
    let devices = [Some(&opened.device), nvram.as_ref()];
    let weus = cache::weus_of(c, &buffered, opened.region, block_bytes)?;
    let mut devices: Vec<Device> = devices.into_iter().flatten().map(home_of).collect::<Result<_, _>>()?;
    if let Some(v) = &c.volatile_cache {
        // It writes sector by sector, which direct I/O may refuse.
        let region = opened.device.home();
        let has_failed_sync = opened.device.has_failed_sync().clone();
        let file = FileDevice { file: buffered, start: region.offset, len: region.len, block_bytes, has_failed_sync };
        devices[0] = volatile(v, file);
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

/// All of a device that its layer may use.
fn home_of(device: &DeviceFile) -> Result<Device, OpenError> {
    let unopened = |error| OpenError::Io { device: device.path().display().to_string(), error };
    let file = std::fs::File::from(device.data_fd().try_clone_to_owned().map_err(unopened)?);
    let (home, block_bytes) = (device.home(), device.block_bytes());
    let has_failed_sync = device.has_failed_sync().clone();
    Ok(Device::File(FileDevice { file, start: home.offset, len: home.len, block_bytes, has_failed_sync }))
}
