//! The parts of a cache that volumes have where each has its own.

use super::weu_bytes;
use crate::config::{BadConfig, CacheConfig as Section};
use crate::parts::settings::{CacheDevice, VolumePart};
use crate::reload::volume_section;

/// A volume that doesn't set its own part has this fraction of the device: 1/8.
const PARTS: u64 = 8;

/// Bytes of a volume's part of the cache, on a device of `device_bytes`.
pub fn part_bytes(own: Option<u64>, device_bytes: u64) -> u64 {
    own.unwrap_or(device_bytes / PARTS)
}

/// Checks that the parts of these volumes fit the cache together, also those that have the default. Otherwise the last volume would wait
/// for space that never gets free.
///
/// # Errors
/// By how much not, and what to write.
pub fn check_parts(
    cache: &Section,
    CacheDevice { bytes: device_bytes, weus }: CacheDevice,
    volumes: &[VolumePart],
) -> Result<(), BadConfig> {
    let weu = weu_bytes(cache);
    let part = |v: &VolumePart| part_bytes(v.cache_bytes, device_bytes) / weu;
    let sum: u64 = volumes.iter().map(part).sum();
    if cache.sharing != plimsoll_cache::Sharing::PerVolume || sum <= u64::from(weus) {
        return Ok(());
    }
    let without_size = volumes.iter().filter(|v| v.cache_bytes.is_none()).count();
    Err(BadConfig::new(format!(
        "parts of the cache of {} volumes add up to {} bytes, and there are {}: give less to some with `cache_size` ({without_size} say \
         nothing and have an eighth of the device, {} bytes, each)",
        volumes.len(),
        sum * weu,
        u64::from(weus) * weu,
        part_bytes(None, device_bytes)
    )))
}

/// A volume's part of the cache is larger than the device.
pub fn too_large(volume: &str, bytes: u64, all: u64) -> BadConfig {
    let what = format!("cache_size {bytes} is more than the cache's device has: {all}");
    BadConfig::new(what).about(volume_section(volume))
}

/// WEUs that a volume's own part has at least: one is filled and one evicted while others hold something.
const PART_WEUS_MIN: u64 = 4;

/// Checks that a volume's part of the cache is large enough to work.
///
/// # Errors
/// The least size.
pub fn check_part(cache: &Section, volume: &str, bytes: u64) -> Result<(), BadConfig> {
    let least = PART_WEUS_MIN * weu_bytes(cache);
    match cache.sharing == plimsoll_cache::Sharing::PerVolume && bytes < least {
        true => {
            let what = format!("cache_size {bytes} is less than {PART_WEUS_MIN} write-evict units: {least}");
            Err(BadConfig::new(what).about(volume_section(volume)))
        }
        false => Ok(()),
    }
}
