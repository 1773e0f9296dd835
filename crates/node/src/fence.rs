//! A pool's fence: from what the configuration says to a layer, and who may have how many slots.

use crate::config::{ByteSize, Config, FenceConfig as Section, PoolConfig, SpanText, VolumeConfig};
use crate::plan::Facts;
use crate::predict::Measured;
use plimsoll_base::{Class, Span};
use plimsoll_device::DeviceSpec;
use plimsoll_fence::config::{DeviceKind, SLOT_DEFAULT, check_slots};
use plimsoll_fence::{DiskPredictor, FenceConfig, FlashPredictor, Line};
use plimsoll_sched::batches::FlashBatches;
use plimsoll_store::FenceRecord;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// A disk of `size_bytes`, by what was measured of its batches, or by what is typical.
fn disk(known: Option<&Measured>, size_bytes: u64) -> Result<DeviceKind, String> {
    let batches = known.and_then(|m| Some((&m.file, m.profile.batches.as_ref()?.disk.as_ref()?)));
    let Some((file, d)) = batches else {
        return Ok(DeviceKind::disk(DiskPredictor::typical(size_bytes)));
    };
    let p = DiskPredictor::new(d.knots_ns(), d.transfer_ns_per_kib.into());
    p.and_then(|p| p.with_first(d.first_knots_ns())).map(DeviceKind::disk).map_err(|e| format!("{file}: {e}"))
}

/// A fence's predictor by what was measured.
fn flash_predictor(f: &FlashBatches) -> FlashPredictor {
    let [reads, writes] = f.lines_ns().map(|[fixed_ns, each_ns, ns_per_kib]| Line { fixed_ns, each_ns, ns_per_kib });
    FlashPredictor { reads, writes, both_permille: f.both_permille.unwrap_or(1000).into() }
}

/// A flash drive, by what was measured of its batches, or by what is typical.
fn flash(known: Option<&Measured>) -> DeviceKind {
    let batches = known.and_then(|m| m.profile.batches.as_ref()?.flash.as_ref());
    DeviceKind::flash(batches.map_or(FlashPredictor::TYPICAL, flash_predictor))
}

/// What a pool's section says, for a device of `size_bytes`; `None` if nothing is fenced.
///
/// # Errors
/// What is wrong, and what to write.
pub fn config(pool: &PoolConfig, facts: &Facts, size_bytes: u64) -> Result<Option<FenceConfig>, String> {
    let Some(config) = unchecked(pool, facts, size_bytes)? else { return Ok(None) };
    let away = config.arm_away;
    let checked = config.check().and_then(|()| check_slots(config.slots, config.slot, &config.devices, away));
    checked.map_err(|what| format!("fence: {what}"))?;
    Ok(Some(config))
}

/// The same without looking at whether it can be.
fn unchecked(pool: &PoolConfig, facts: &Facts, size_bytes: u64) -> Result<Option<FenceConfig>, String> {
    let Some(f) = &pool.fence else { return Ok(None) };
    let model = pool.device.model.as_deref().map(DeviceSpec::named).transpose().map_err(|e| e.to_string())?;
    let slow = facts.profile.as_ref();
    let is_flash = match f.device.as_deref() {
        Some("flash") => true,
        Some("disk") => false,
        Some(other) => return Err(format!("fence: device = \"{other}\": write `disk` or `flash`")),
        None => model.as_ref().is_some_and(|m| !m.is_rotational()),
    };
    let mut devices = vec![if is_flash { flash(slow) } else { disk(slow, size_bytes)? }];
    if pool.cache.is_some() {
        devices.push(flash(facts.cache_profile.as_ref()));
    }
    let config = FenceConfig {
        slot: f.slot.map_or(SLOT_DEFAULT, |s| s.0),
        hybrid: f.hybrid,
        lend_permille: f.lend_permille.unwrap_or(10),
        steady: f.steady,
        ..FenceConfig::new(f.slots, devices)
    };
    Ok(Some(config))
}

/// Slots of a volume: its own, or as many as its tenant has if it's fenced.
pub fn slots_of(own: Option<u32>, class: Option<&Class>) -> u32 {
    match (own, class) {
        (Some(slots), _) => slots,
        (None, Some(Class::Fenced { slots })) => *slots,
        _ => 0,
    }
}

/// What becomes of volumes without slots.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Without {
    /// There mustn't be any.
    Refused,
    /// They have the slots that nobody has.
    Share,
    /// Those, and what owners leave.
    Lent,
}

impl Without {
    /// As a fence has it.
    pub fn of(f: &FenceConfig) -> Without {
        match (f.hybrid, f.lends()) {
            (false, _) => Without::Refused,
            (true, false) => Without::Share,
            (true, true) => Without::Lent,
        }
    }
}

/// May volumes with these slots be served together?
///
/// # Errors
/// Why not, and what to write.
pub fn check_promises(without: Without, slots: u32, volumes: &[(String, u32)]) -> Result<(), String> {
    let promised: u64 = volumes.iter().map(|v| u64::from(v.1)).sum();
    if promised > u64::from(slots) {
        let each: Vec<String> = volumes.iter().filter(|v| v.1 > 0).map(|v| format!("{} {}", v.0, v.1)).collect();
        return Err(format!(
            "{promised} slots are promised ({}), and there are {slots}: add slots, or promise fewer",
            each.join(", ")
        ));
    }
    match volumes.iter().find(|v| v.1 == 0) {
        Some((name, _)) if without == Without::Refused => Err(format!(
            "volume `{name}` has no slots: give it some (`slots`, or a fenced tenant), or say `hybrid = true` so that it shares what \
             is left"
        )),
        Some((name, _)) if without == Without::Share && promised == u64::from(slots) => Err(format!(
            "nothing is left for volume `{name}`, which has no slots: all {slots} are promised, and lend_permille = 0 lends nothing of \
             them: add slots, promise fewer, or lend"
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
        if let Some(ByteSize(all)) = cache.device_size {
            if let Some((volume, bytes)) = mine().filter_map(sized).find(|v| v.1 > all) {
                return Err(cache_too_large(&volume, bytes, all));
            }
            let part = |v: &VolumeConfig| (v.name.get_ref().clone(), v.cache_size.map(|s| s.0));
            // Of a device that isn't there yet; one that is may be of another size, which the start knows.
            if let Ok(weus) = crate::cache::weus_most(cache, all, 4096) {
                check_parts(cache, weus, all, &mine().map(part).collect::<Vec<_>>())?;
            }
        }
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
    // Profiles are read at the start; sizes are known then, too. How long a request takes is not before.
    const SIZE: u64 = 160_000_000_000;
    let facts = Facts::default();
    match pool.profile.is_some() {
        false => drop(self::config(pool, &facts, SIZE)?),
        true => {
            let config = unchecked(pool, &facts, SIZE)?.map(|c| FenceConfig { slot: c.slot.max(SLOT_DEFAULT), ..c });
            config.map_or(Ok(()), |c| c.check()).map_err(|what| format!("fence: {what}"))?;
        }
    }
    let class = |v: &VolumeConfig| {
        let tenant = config.tenant.iter().find(|t| t.name.get_ref() == v.tenant.get_ref());
        tenant.and_then(|t| t.class().ok())
    };
    let volumes: Vec<(String, u32)> =
        mine().map(|v| (v.name.get_ref().clone(), slots_of(v.slots, class(v).as_ref()))).collect();
    let without = match (f.hybrid, f.lend_permille) {
        (false, _) => Without::Refused,
        (true, Some(0)) => Without::Share,
        (true, _) => Without::Lent,
    };
    check_promises(without, f.slots, &volumes)
}

/// What a volume's part of the cache is of the device if nothing is said: one of so many.
const PARTS: u64 = 8;

/// Bytes of a volume's part of the cache, of a device of so many.
pub fn part_bytes(own: Option<u64>, device_bytes: u64) -> u64 {
    own.unwrap_or(device_bytes / PARTS)
}

/// Do the parts of these volumes fit the cache together, those of which nothing is said among them? Else who comes last would wait for
/// space that never gets free.
///
/// # Errors
/// By how much not, and what to write.
pub fn check_parts(
    cache: &crate::config::CacheConfig,
    weus: u32,
    device_bytes: u64,
    volumes: &[(String, Option<u64>)],
) -> Result<(), String> {
    let weu = crate::cache::weu_bytes(cache);
    let part = |v: &(String, Option<u64>)| part_bytes(v.1, device_bytes) / weu;
    let sum: u64 = volumes.iter().map(part).sum();
    if cache.sharing != plimsoll_cache::Sharing::PerVolume || sum <= u64::from(weus) {
        return Ok(());
    }
    let unsaid = volumes.iter().filter(|v| v.1.is_none()).count();
    Err(format!(
        "parts of the cache of {} volumes add up to {} bytes, and there are {}: give less to some with `cache_size` ({unsaid} say \
         nothing and have an eighth of the device, {} bytes, each)",
        volumes.len(),
        sum * weu,
        u64::from(weus) * weu,
        part_bytes(None, device_bytes)
    ))
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
    check_slots(change.0, change.1, &fence.devices, fence.arm_away)?;
    check_promises(Without::of(fence), change.0, volumes)
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

/// A volume's measured service while it was alone, as `plimsoll fence baseline` writes it.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Baseline {
    /// The volume.
    pub volume: String,
    /// Mean response time of its clients' requests.
    pub response_ms: f64,
    /// Of which so many ended a second.
    pub per_second: f64,
    /// Requests that the figures rest on.
    pub requests: u64,
    /// How long was measured.
    pub seconds: f64,
    /// Slots of the pool.
    pub slots: u32,
    /// Their length.
    pub slot_us: u64,
    /// Slots of the volume.
    pub own_slots: u32,
}

impl Baseline {
    /// What a file says.
    ///
    /// # Errors
    /// If it can't be read or is no baseline.
    pub fn read(path: &std::path::Path) -> Result<Baseline, String> {
        let file = path.display();
        let text = std::fs::read_to_string(path).map_err(|e| format!("{file}: cannot be read: {e}"))?;
        serde_json::from_str(&text)
            .map_err(|e| format!("{file}: is no baseline ({e}): write one with `plimsoll fence baseline`"))
    }

    /// Compares the slots of the measurement with the pool's `slots` of `slot_us` each, `own_slots` of them the volume's. Returns the
    /// difference, for the operator.
    pub fn differs(&self, slots: u32, slot_us: u64, own_slots: u32) -> Option<String> {
        let (then, is) = ((self.slots, self.slot_us, self.own_slots), (slots, slot_us, own_slots));
        (then != is).then(|| {
            format!(
                "`{}` was measured with {} of {} slots of {} us, and has {} of {} of {} us now: measure it anew",
                self.volume, then.2, then.0, then.1, is.2, is.0, is.1
            )
        })
    }
}

/// What volumes were measured to get alone, as far as their files are named.
///
/// # Errors
/// If one can't be read or is none.
pub fn baselines(volumes: &[VolumeConfig]) -> Result<BTreeMap<String, Baseline>, String> {
    let named = volumes.iter().filter_map(|v| Some((v.name.get_ref(), v.baseline.as_ref()?)));
    let read = |(name, path): (&String, &PathBuf)| {
        let baseline = Baseline::read(path)?;
        match baseline.volume == *name {
            true => Ok((name.clone(), baseline)),
            false => Err(format!("{}: is of volume `{}`, not `{name}`", path.display(), baseline.volume)),
        }
    };
    named.map(read).collect()
}
