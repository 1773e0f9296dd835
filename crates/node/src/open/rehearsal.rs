//! Building a pool's stack without its devices: the room that its volumes would have, or why it couldn't be served.

use super::stack::{build_stack, model_of};
use crate::config::{BadConfig, CacheConfig, PoolConfig};
use crate::plan::Facts;
use plimsoll_pool::PoolPlan;
use plimsoll_stack::{Layer, Offer};
use plimsoll_store::Superblock;
use plimsoll_store::superblock::REGION_ALIGN;

const MIB: u64 = 1 << 20;

/// Bytes of a cache's device, and of its NVRAM, that are rehearsed with where the configuration leaves the size to what is there.
pub(super) const FAST_BYTES_ASSUMED: u64 = 1 << 30;

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
    let tables = config.logs.as_ref().map_or(Ok(0), |_| crate::parts::logs::table_bytes(config, device_bytes))?;
    let align = crate::parts::bands::align_bytes(config)?;
    if align > 0 && device_bytes < plimsoll_store::DEVICE_BYTES_MIN + tables + align {
        return Err(BadConfig::new(format!("a device of {device_bytes} bytes has no room for zones and logs")));
    }
    let regions = Superblock::region_map_aligned(device_bytes, tables, align.max(REGION_ALIGN));
    let home = *regions.last().expect("home is the last");
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
    let fast = |c: &CacheConfig| offer(c.device_size.map_or(FAST_BYTES_ASSUMED, |s| s.0));
    let nvram = |c: &CacheConfig| Some(offer(c.nvram.as_ref()?.size.map_or(NVRAM_BYTES_ASSUMED, |s| s.0)));
    let further = config.cache.iter().flat_map(|c| std::iter::once(fast(c)).chain(nvram(c)));
    let (plan, _) = build_stack(config, &facts, std::iter::once(offer(len)).chain(further).collect())?;
    let has = match &config.logs {
        None => seen / MIB * MIB,
        Some(_) => crate::parts::logs::home_bytes(config, len, 512)?,
    };
    Ok((has, plan))
}
