//! A pool's fence: from what the configuration says to a layer, and who may have how many slots.

use crate::config::{ByteSize, Config, FenceConfig as Section, PoolConfig, SpanText, VolumeConfig};
use plimsoll_base::{Class, Span};
use plimsoll_device::DeviceSpec;
use plimsoll_fence::config::{DeviceKind, SLOT_DEFAULT, check_slots};
use plimsoll_fence::{DiskPredictor, Fence, FenceConfig, FlashPredictor, Line};
use plimsoll_sched::Profile;
use plimsoll_sched::batches::{BatchProfile, FlashBatches};
use plimsoll_store::FenceRecord;
use std::path::Path;

/// What is known of a device's batches: what was measured, or what is typical.
fn batches(path: Option<&Path>, text: Option<&str>) -> Result<Option<(String, BatchProfile)>, String> {
    let (Some(path), Some(text)) = (path, text) else { return Ok(None) };
    let file = path.display().to_string();
    let profile = Profile::parse(&file, text).map_err(|e| e.to_string())?;
    Ok(profile.batches.map(|b| (file, b)))
}

fn disk(known: &Option<(String, BatchProfile)>, size_bytes: u64) -> Result<DeviceKind, String> {
    let Some((file, BatchProfile { disk: Some(d), .. })) = known else {
        return Ok(DeviceKind::disk(DiskPredictor::typical(size_bytes)));
    };
    let p = DiskPredictor::new(d.knots_ns(), d.transfer_ns_per_kib.into());
    p.map(DeviceKind::disk).map_err(|e| format!("{file}: {e}"))
}

/// A fence's predictor by what was measured.
fn flash_predictor(f: &FlashBatches) -> FlashPredictor {
    let [reads, writes] = f.lines_ns().map(|[fixed_ns, each_ns, ns_per_kib]| Line { fixed_ns, each_ns, ns_per_kib });
    FlashPredictor { reads, writes }
}

fn flash(known: &Option<(String, BatchProfile)>) -> DeviceKind {
    let Some((_, BatchProfile { flash: Some(f), .. })) = known else {
        return DeviceKind::flash(FlashPredictor::TYPICAL);
    };
    DeviceKind::flash(flash_predictor(f))
}

/// What a pool's section says, for a device of `size_bytes`; `None` if nothing is fenced.
///
/// # Errors
/// What is wrong, and what to write.
pub fn config(pool: &PoolConfig, size_bytes: u64) -> Result<Option<FenceConfig>, String> {
    let Some(f) = &pool.fence else { return Ok(None) };
    let model = pool.device.model.as_deref().map(DeviceSpec::named).transpose().map_err(|e| e.to_string())?;
    let slow = batches(pool.profile.as_deref(), pool.profile_text.as_deref())?;
    let is_flash = match f.device.as_deref() {
        Some("flash") => true,
        Some("disk") => false,
        Some(other) => return Err(format!("fence: device = \"{other}\": write `disk` or `flash`")),
        None => model.as_ref().is_some_and(|m| !m.is_rotational()),
    };
    let mut devices = vec![if is_flash { flash(&slow) } else { disk(&slow, size_bytes)? }];
    if pool.cache.is_some() {
        devices.push(flash(&batches(f.cache_profile.as_deref(), f.cache_profile_text.as_deref())?));
    }
    let config = FenceConfig {
        slot: f.slot.map_or(SLOT_DEFAULT, |s| s.0),
        hybrid: f.hybrid,
        lend_permille: f.lend_permille.unwrap_or(10),
        steady: f.steady,
        ..FenceConfig::new(f.slots, devices)
    };
    config.check().map_err(|what| format!("fence: {what}"))?;
    Ok(Some(config))
}

/// The layer, if the pool is fenced.
///
/// # Errors
/// As [`config`].
pub fn layer(pool: &PoolConfig, size_bytes: u64) -> Result<Option<Fence>, String> {
    Ok(config(pool, size_bytes)?.map(Fence::new))
}

/// Slots of a volume: its own, or as many as its tenant has if it's fenced.
pub fn slots_of(own: Option<u32>, class: Option<&Class>) -> u32 {
    match (own, class) {
        (Some(slots), _) => slots,
        (None, Some(Class::Fenced { slots })) => *slots,
        _ => 0,
    }
}

/// May volumes with these slots be served together?
///
/// # Errors
/// Why not, and what to write.
pub fn check_promises(hybrid: bool, slots: u32, volumes: &[(String, u32)]) -> Result<(), String> {
    let promised: u64 = volumes.iter().map(|v| u64::from(v.1)).sum();
    if promised > u64::from(slots) {
        let each: Vec<String> = volumes.iter().filter(|v| v.1 > 0).map(|v| format!("{} {}", v.0, v.1)).collect();
        return Err(format!(
            "{promised} slots are promised ({}), and there are {slots}: add slots, or promise fewer",
            each.join(", ")
        ));
    }
    match volumes.iter().find(|v| v.1 == 0) {
        Some((name, _)) if !hybrid => Err(format!(
            "volume `{name}` has no slots: give it some (`slots`, or a fenced tenant), or say `hybrid = true` so that it shares what \
             is left"
        )),
        _ => Ok(()),
    }
}

/// Checks a configuration's pools and volumes together.
///
/// # Errors
/// The volume or pool that it's about, and what is wrong.
pub fn check<'a>(config: &'a Config, pool: &'a PoolConfig) -> Result<(), String> {
    let name = pool.name.get_ref();
    let mine = || config.volume.iter().filter(move |v| v.pool.get_ref() == name);
    if let Some(cache) = &pool.cache {
        let sized = |v: &VolumeConfig| v.cache_size.map(|s| (v.name.get_ref().clone(), s.0));
        mine().filter_map(sized).try_for_each(|(volume, bytes)| check_part(cache, &volume, bytes))?;
    }
    let Some(f) = &pool.fence else {
        return match mine().find(|v| v.slots.is_some()) {
            Some(v) => Err(format!("volume `{}`: slots mean nothing without [pool.fence]", v.name.get_ref())),
            None => Ok(()),
        };
    };
    if f.device.as_ref().is_some_and(|kind| kind != "disk" && kind != "flash") {
        return Err("fence: device is `disk` or `flash`".into());
    }
    // Profiles are read at the start; sizes are known then, too.
    let unread = PoolConfig { profile: None, ..pool.clone() };
    self::config(&unread, 160_000_000_000)?;
    let class = |v: &VolumeConfig| {
        let tenant = config.tenant.iter().find(|t| t.name.get_ref() == v.tenant.get_ref());
        tenant.and_then(|t| t.class().ok())
    };
    let volumes: Vec<(String, u32)> =
        mine().map(|v| (v.name.get_ref().clone(), slots_of(v.slots, class(v).as_ref()))).collect();
    check_promises(f.hybrid, f.slots, &volumes)?;
    let Some(ByteSize(all)) = pool.cache.as_ref().and_then(|c| c.device_size) else { return Ok(()) };
    match mine().find(|v| v.cache_size.is_some_and(|s| s.0 > all)) {
        Some(v) => Err(cache_too_large(v.name.get_ref(), v.cache_size.expect("just seen").0, all)),
        None => Ok(()),
    }
}

/// A volume's part of the cache is larger than the device.
pub fn cache_too_large(volume: &str, bytes: u64, all: u64) -> String {
    format!("volume `{volume}`: cache_size {bytes} is more than the cache's device has: {all}")
}

/// WEUs that a volume's own part has at least: one is filled and one evicted while others hold something.
const PART_WEUS_MIN: u64 = 4;

/// Is a volume's part of the cache large enough to work?
///
/// # Errors
/// How large it must be.
pub fn check_part(cache: &crate::config::CacheConfig, volume: &str, bytes: u64) -> Result<(), String> {
    let least = PART_WEUS_MIN * crate::cache::weu_bytes(cache);
    match cache.sharing == plimsoll_cache::Sharing::PerVolume && bytes < least {
        true => Err(format!(
            "volume `{volume}`: cache_size {bytes} is less than {PART_WEUS_MIN} write-evict units: {least}"
        )),
        false => Ok(()),
    }
}

/// May a pool's slots be changed so?
///
/// # Errors
/// Why not, and what to write.
pub fn check_change(fence: &FenceConfig, change: (u32, Span), volumes: &[(String, u32)]) -> Result<(), String> {
    check_slots(change.0, change.1, &fence.devices)?;
    check_promises(fence.hybrid, change.0, volumes)
}

/// Number and length of the slots in the configuration.
pub fn configured(section: &Section) -> (u32, u64) {
    (section.slots, section.slot.map_or(SLOT_DEFAULT, |s| s.0).as_nanos())
}

/// Puts the slots that were last set live into the section, unless it says something else since.
pub fn take_kept(section: &mut Section, kept: Option<FenceRecord>) {
    if let Some(k) = kept.filter(|k| k.configured == configured(section)) {
        (section.slots, section.slot) = (k.slots, Some(SpanText(Span::from_nanos(k.slot_ns))));
    }
}

/// Reads the profile of the cache's device into the section, so that a tape replays alike.
///
/// # Errors
/// If it can't be read.
pub fn read_profile(section: &mut Section) -> Result<(), String> {
    if let Some(path) = &section.cache_profile {
        let text = std::fs::read_to_string(path);
        section.cache_profile_text = Some(text.map_err(|e| format!("{}: cannot be read: {e}", path.display()))?);
    }
    Ok(())
}
