//! A pool's fence (VirtualFence): its time slots, and the volumes that they are promised to.

mod baseline;

pub use baseline::{Baseline, baselines};

use super::page::{Family, Page};
use super::settings::{Live, Setting, Unit, VolumePart};
use super::{About, Part, Shown};
use crate::config::{BadConfig, Config, FenceConfig as Section, PoolConfig, SpanText, VolumeConfig};
use crate::plan::Facts;
use crate::predict::Measured;
use crate::view::ExportView;
use plimsoll_base::{Class, Span, Time, VolumeKey};
use plimsoll_device::DeviceSpec;
use plimsoll_fence::config::{DeviceKind, SLOT_DEFAULT, check_slots};
use plimsoll_fence::status::{BatchCounters, SlotStatus, VolumeStatus};
use plimsoll_fence::{
    DiskPredictor, FenceConfig, FenceControl, FenceStatus, FenceTerms, FlashPredictor, Line, SLOTS_MAX,
};
use plimsoll_sched::batches::FlashBatches;
use plimsoll_stack::{Addressed, OwnTerms, Stack};
use plimsoll_store::VolumeRecord;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ops::RangeInclusive;

/// A disk of `size_bytes`, by what was measured of its batches, or by what is typical.
fn disk(known: Option<&Measured>, size_bytes: u64) -> Result<DeviceKind, BadConfig> {
    let batches = known.and_then(|m| Some((&m.file, m.profile.batches.as_ref()?.disk.as_ref()?)));
    let Some((file, d)) = batches else {
        return Ok(DeviceKind::disk(DiskPredictor::typical(size_bytes)));
    };
    let p = DiskPredictor::new(d.knots_ns(), d.transfer_ns_per_kib.into());
    p.and_then(|p| p.with_first(d.first_knots_ns()))
        .map(DeviceKind::disk)
        .map_err(|e| BadConfig::new(e).about(file.clone()))
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

/// The fence of a pool's section, for a device of `size_bytes`; `None` if nothing is fenced.
///
/// # Errors
/// The fault, and the remedy.
pub fn config(pool: &PoolConfig, facts: &Facts, size_bytes: u64) -> Result<Option<FenceConfig>, BadConfig> {
    let Some(config) = unchecked(pool, facts, size_bytes)? else { return Ok(None) };
    let away = config.arm_away;
    let checked = config.check().and_then(|()| check_slots(config.slots, config.slot, &config.devices, away));
    checked.map_err(|what| BadConfig::new(what).about("fence"))?;
    Ok(Some(config))
}

/// The same without looking at whether it can be.
fn unchecked(pool: &PoolConfig, facts: &Facts, size_bytes: u64) -> Result<Option<FenceConfig>, BadConfig> {
    let Some(section) = &pool.fence else { return Ok(None) };
    // Every field is named, so that a new one can't be forgotten here.
    let Section { slots, slot, hybrid, lend_permille, steady, device, cache_profile: _ } = section;
    let model = pool.device.model.as_deref().map(DeviceSpec::named).transpose().map_err(BadConfig::found)?;
    let slow = facts.profile.as_ref();
    let is_flash = match device.as_deref() {
        Some("flash") => true,
        Some("disk") => false,
        Some(other) => return Err(BadConfig::new(format!("fence: device = \"{other}\": write `disk` or `flash`"))),
        None => model.as_ref().is_some_and(|m| !m.is_rotational()),
    };
    let mut devices = vec![if is_flash { flash(slow) } else { disk(slow, size_bytes)? }];
    if pool.cache.is_some() {
        devices.push(flash(facts.cache_profile.as_ref()));
    }
    let config = FenceConfig {
        slot: slot.map_or(SLOT_DEFAULT, |s| s.0),
        hybrid: *hybrid,
        lend_permille: lend_permille.unwrap_or(10),
        steady: *steady,
        ..FenceConfig::new(*slots, devices)
    };
    Ok(Some(config))
}

/// Slots of a volume: its own, or its tenant's if that is fenced.
pub fn slots_of(own: Option<u32>, class: Option<&Class>) -> u32 {
    match (own, class) {
        (Some(slots), _) => slots,
        (None, Some(Class::Fenced { slots })) => *slots,
        _ => 0,
    }
}

/// Treatment of volumes without slots.
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

/// Checks that volumes with these slots may be served together.
///
/// # Errors
/// The reason, and the remedy.
pub fn check_promises(without: Without, slots: u32, volumes: &[(String, u32)]) -> Result<(), BadConfig> {
    let promised: u64 = volumes.iter().map(|v| u64::from(v.1)).sum();
    if promised > u64::from(slots) {
        let each: Vec<String> = volumes.iter().filter(|v| v.1 > 0).map(|v| format!("{} {}", v.0, v.1)).collect();
        return Err(BadConfig::new(format!(
            "{promised} slots are promised ({}), and there are {slots}: add slots, or promise fewer",
            each.join(", ")
        )));
    }
    match volumes.iter().find(|v| v.1 == 0) {
        Some((name, _)) if without == Without::Refused => Err(BadConfig::new(format!(
            "volume `{name}` has no slots: give it some (`slots`, or a fenced tenant), or say `hybrid = true` so that it shares what \
             is left"
        ))),
        Some((name, _)) if without == Without::Share && promised == u64::from(slots) => Err(BadConfig::new(format!(
            "nothing is left for volume `{name}`, which has no slots: all {slots} are promised, and lend_permille = 0 lends nothing of \
             them: add slots, promise fewer, or lend"
        ))),
        _ => Ok(()),
    }
}

/// Checks a configuration's pools and volumes together.
///
/// # Errors
/// The volume or pool that it's about, and what is wrong.
fn check<'a>(config: &'a Config, pool: &'a PoolConfig) -> Result<(), BadConfig> {
    let name = pool.name.get_ref();
    let mine = || config.volume.iter().filter(move |v| v.pool.get_ref() == name);
    let Some(f) = &pool.fence else {
        return match mine().find(|v| v.slots.is_some()) {
            Some(v) => {
                Err(BadConfig::new(format!("volume `{}`: slots mean nothing without [pool.fence]", v.name.get_ref())))
            }
            None => Ok(()),
        };
    };
    if f.device.as_ref().is_some_and(|kind| kind != "disk" && kind != "flash") {
        return Err(BadConfig::new("fence: device is `disk` or `flash`"));
    }
    // Profiles are read at the start; sizes are known then, too. How long a request takes is not before.
    const SIZE: u64 = 160_000_000_000;
    let facts = Facts::default();
    match pool.profile.is_some() {
        false => drop(self::config(pool, &facts, SIZE)?),
        true => {
            let config = unchecked(pool, &facts, SIZE)?.map(|c| FenceConfig { slot: c.slot.max(SLOT_DEFAULT), ..c });
            config.map_or(Ok(()), |c| c.check()).map_err(|what| BadConfig::new(what).about("fence"))?;
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

/// The fence of a pool as it is served.
pub fn of(live: &Live) -> Option<FenceConfig> {
    let (slots, slot) = slots_configured(&live.config)?;
    Some(FenceConfig { slots, slot, ..live.plan.fence.clone()? })
}

/// Number and length of the slots of a pool's configuration.
fn slots_configured(pool: &PoolConfig) -> Option<(u32, Span)> {
    let section: &Section = pool.fence.as_ref()?;
    Some((section.slots, section.slot.map_or(SLOT_DEFAULT, |s| s.0)))
}

fn slots_message(pool: &PoolConfig) -> Addressed {
    let (slots, slot) = slots_configured(pool).unwrap_or((1, SLOT_DEFAULT));
    Addressed::new(&FenceControl::Slots { slots, slot })
}

/// Slots are milliseconds long; longer ones than this are none.
const SLOT_MAX: Span = Span::from_secs(10);

fn slot_range(_: &Live) -> RangeInclusive<u64> {
    1..=SLOT_MAX.as_micros()
}

/// The part.
pub struct Fence;

impl Part for Fence {
    type Seen = FenceStatus;
    type View = FenceView;
    const NAME: &'static str = "fence";
    const SUMMARY: &'static str = "Time slots of a pool, their owners and their use";
    const HOW: &'static str = "write [pool.fence] in the pool's section";

    fn look(stack: &Stack, now: Time) -> Option<FenceStatus> {
        stack.layer::<plimsoll_fence::Fence>().map(|f| f.status(now))
    }

    fn view(seen: &FenceStatus, about: &About) -> FenceView {
        FenceView::of(seen, about)
    }

    fn shown(v: &FenceView) -> Shown {
        let us = |us: u64| Span::from_micros(us).to_string();
        let rest = if v.hybrid { ", what is left is shared" } else { "" };
        let (slots, length) = (v.slots.len(), us(v.slot_us));
        let mut shown = Shown::new(format!("{slots} slots of {length}, slot {} runs{rest}", v.running));
        let slot = |(i, s): (usize, &FenceSlotView)| {
            vec![
                i.to_string(),
                s.volume.clone().unwrap_or("-".into()),
                format!("{} of {}", s.used, s.turns),
                format!("{} ({})", s.early, us(s.credit_us)),
                format!("{} ({})", s.overruns, us(s.debit_us)),
            ]
        };
        let head = ["SLOT", "VOLUME", "TURNS USED", "EARLY (CREDIT)", "OVERRUNS (DEBIT)"];
        shown.table(&head, v.slots.iter().enumerate().map(slot).collect());
        let volume = |v: &FenceVolumeView| {
            let mean = |sum: u64| us(sum / v.requests.max(1));
            vec![
                v.volume.clone(),
                v.slots.to_string(),
                v.waiting.to_string(),
                v.requests.to_string(),
                mean(v.response_us),
                mean(v.waited_us),
                us(v.imposed_us),
            ]
        };
        let head = ["VOLUME", "SLOTS", "WAIT", "REQUESTS", "RESPONSE", "WAITED", "FOR OTHERS"];
        shown.table(&head, v.volumes.iter().map(volume).collect());
        if v.hybrid {
            shown.line("idle time", format!("{} could be used, {} was", us(v.idle_us), us(v.lent_us)));
        }
        shown
    }

    fn metrics(page: &mut Page, pools: &[(&str, FenceView)]) {
        metrics(page, pools);
    }

    fn check_config(config: &Config, pool: &PoolConfig) -> Result<(), BadConfig> {
        check(config, pool)
    }

    fn add_terms(live: &Live, _: &VolumeRecord, part: &VolumePart, own: OwnTerms) -> OwnTerms {
        let slots = if live.config.fence.is_some() { part.slots } else { 0 };
        own.with(&FenceTerms { slots })
    }

    fn check_volumes(live: &Live, volumes: &[VolumePart]) -> Result<(), BadConfig> {
        let Some(fence) = of(live) else { return Ok(()) };
        check_slots(fence.slots, fence.slot, &fence.devices, fence.arm_away).map_err(BadConfig::new)?;
        let slots: Vec<_> = volumes.iter().map(|v| (v.name.clone(), v.slots)).collect();
        check_promises(Without::of(&fence), fence.slots, &slots)
    }

    const SETTINGS: &'static [Setting] = &[
        Setting {
            key: "slots",
            unit: Unit::Count,
            help: "Time slots in a rotation, from the end of the running one on.",
            get: |pool| slots_configured(pool).map(|s| s.0.into()),
            put: |pool, slots| {
                if let Some(fence) = &mut pool.fence {
                    fence.slots = slots.min(u64::from(SLOTS_MAX)) as u32;
                }
            },
            range: |_| 1..=u64::from(SLOTS_MAX),
            message: slots_message,
        },
        Setting {
            key: "slot_us",
            unit: Unit::Us,
            help: "Length of a time slot.",
            get: |pool| slots_configured(pool).map(|s| s.1.as_micros()),
            put: |pool, us| {
                if let Some(fence) = &mut pool.fence {
                    fence.slot = Some(SpanText(Span::from_micros(us)));
                }
            },
            range: slot_range,
            message: slots_message,
        },
    ];
}

/// `GET /v1/pools/{name}/fence`: whose each slot is, and how it's used.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct FenceView {
    /// A slot's length.
    pub slot_us: u64,
    /// The number of the slot that runs.
    pub running: u32,
    /// Time that it still has.
    pub running_left_us: u64,
    /// Volumes without slots share what is left.
    pub hybrid: bool,
    /// Requests of such volumes that wait.
    pub waiting_without: u64,
    /// Idle time of the first device that such volumes could have used since the start.
    pub idle_us: u64,
    /// The part of it that they used.
    pub lent_us: u64,
    /// Every slot, in their order.
    pub slots: Vec<FenceSlotView>,
    /// Every volume.
    pub volumes: Vec<FenceVolumeView>,
    /// Every fenced device: the pool's, then the cache's.
    pub devices: Vec<FenceDeviceView>,
}

/// One slot.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct FenceSlotView {
    /// Owner; absent without one.
    pub volume: Option<String>,
    /// Time by which its next turn is longer (below zero: shorter).
    pub balance_us: i64,
    /// Turns since the start.
    pub turns: u64,
    /// Turns in which something was sent.
    pub used: u64,
    /// Turns that ended early.
    pub early: u64,
    /// Time credited for them.
    pub credit_us: u64,
    /// Turns that overran.
    pub overruns: u64,
    /// Time debited for them.
    pub debit_us: u64,
}

/// One volume.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct FenceVolumeView {
    /// Name.
    pub volume: String,
    /// Its slots.
    pub slots: u32,
    /// Requests that wait for a slot.
    pub waiting: u64,
    /// Requests that ended since the start.
    pub requests: u64,
    /// Their bytes.
    pub bytes: u64,
    /// From when they came to the fence until they ended, summed.
    pub response_us: u64,
    /// The part of that for which they waited for a slot.
    pub waited_us: u64,
    /// Time that they waited for requests that were lent idle time.
    pub imposed_us: u64,
    /// Reads answered busy as their deadline had passed while they waited.
    pub revoked: u64,
    /// Time that its batches had the first device in its slots.
    pub held_us: u64,
    /// Clients' requests that ended as asked since the start, wherever they were served.
    pub served: u64,
    /// From their arrival to their completion, summed.
    pub served_us: u64,
    /// By how much the mean response time of the last minute differs from the baseline's, in percent of that; absent without a
    /// baseline of these slots.
    pub deviation_percent: Option<f64>,
}

/// One device's batches.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct FenceDeviceView {
    /// Batches of slots' owners since the start.
    pub batches: u64,
    /// Requests in them.
    pub requests: u64,
    /// Their predicted duration, in total.
    pub predicted_us: u64,
    /// Their duration, in total.
    pub took_us: u64,
    /// By how much predictions were wrong, summed.
    pub error_us: u64,
    /// Batches predicted to 5 ms (a disk) or 250 us (flash).
    pub within: u64,
}

fn us(s: Span) -> u64 {
    s.as_micros()
}

/// Clients' requests of a volume that ended as asked.
#[derive(Clone, Copy, Default)]
struct Served {
    requests: u64,
    us: u64,
    last_minute: (u64, f64),
}

impl Served {
    fn add(&mut self, e: &ExportView) {
        self.requests += e.ops.iter().map(|o| o.response.count()).sum::<u64>();
        self.us += e.ops.iter().map(|o| us(o.response.sum())).sum::<u64>();
        self.last_minute.0 += e.minute.count();
        self.last_minute.1 += e.minute.sum().as_millis_f64();
    }

    /// Mean response time of the last minute.
    fn last_minute_ms(&self) -> Option<f64> {
        let (requests, ms) = self.last_minute;
        (requests > 0).then(|| ms / requests as f64)
    }
}

impl FenceView {
    fn of(seen: &FenceStatus, about: &About) -> FenceView {
        let mut found = FenceView::of_layer(seen, &|key| about.volume_name(key));
        let (mut served, mut means) = (BTreeMap::<VolumeKey, Served>::new(), Vec::new());
        for e in &about.pool_view.exports {
            served.entry(e.key).or_default().add(e);
        }
        for (v, of) in found.volumes.iter_mut().zip(&seen.volumes) {
            let served = served.get(&of.volume).copied().unwrap_or_default();
            (v.served, v.served_us) = (served.requests, served.us);
            means.push(served.last_minute_ms());
        }
        let deviation = |(v, mean): (&FenceVolumeView, Option<f64>)| {
            let baseline = about.node.baseline(&v.volume).filter(|b| b.differs(&found).is_none())?;
            Some(plimsoll_fence::plan::deviation_percent(baseline.response_ms, mean?))
        };
        let deviations: Vec<_> = found.volumes.iter().zip(means).map(deviation).collect();
        found.volumes.iter_mut().zip(deviations).for_each(|(v, d)| v.deviation_percent = d);
        found
    }

    fn of_layer(s: &FenceStatus, named: &dyn Fn(VolumeKey) -> String) -> FenceView {
        let slot = |s: &SlotStatus| FenceSlotView {
            volume: s.owner.map(named),
            balance_us: s.balance_ns / 1000,
            turns: s.counters.turns,
            used: s.counters.used,
            early: s.counters.early.0,
            credit_us: us(s.counters.early.1),
            overruns: s.counters.overruns.0,
            debit_us: us(s.counters.overruns.1),
        };
        let volume = |v: &VolumeStatus| FenceVolumeView {
            volume: named(v.volume),
            slots: v.slots,
            waiting: v.waiting,
            requests: v.counters.requests,
            bytes: v.counters.bytes,
            response_us: us(v.counters.response),
            waited_us: us(v.counters.waited),
            imposed_us: us(v.imposed),
            revoked: v.counters.revoked,
            held_us: us(v.counters.held),
            served: 0,
            served_us: 0,
            deviation_percent: None,
        };
        let device = |d: &BatchCounters| FenceDeviceView {
            batches: d.batches,
            requests: d.requests,
            predicted_us: us(d.predicted),
            took_us: us(d.took),
            error_us: us(d.error),
            within: d.within,
        };
        FenceView {
            slot_us: us(s.slot),
            running: s.running,
            running_left_us: us(s.running_left),
            hybrid: s.hybrid,
            waiting_without: s.waiting_without,
            idle_us: us(s.idle.0),
            lent_us: us(s.idle.1),
            slots: s.slots.iter().map(slot).collect(),
            volumes: s.volumes.iter().map(volume).collect(),
            devices: s.devices.iter().map(device).collect(),
        }
    }
}

const SLOTS: &[Family<FenceSlotView>] = &[
    ("plimsoll_fence_turns_total", "Turns of a slot.", |s| s.turns as f64),
    ("plimsoll_fence_used_turns_total", "Turns of a slot in which something was sent.", |s| s.used as f64),
    ("plimsoll_fence_early_turns_total", "Turns of a slot that ended early.", |s| s.early as f64),
    ("plimsoll_fence_credit_seconds_total", "Time credited to a slot for early ends.", |s| s.credit_us as f64 / 1e6),
    ("plimsoll_fence_overruns_total", "Turns of a slot that overran.", |s| s.overruns as f64),
    ("plimsoll_fence_debit_seconds_total", "Time debited from a slot for overruns.", |s| s.debit_us as f64 / 1e6),
];

const VOLUMES: &[Family<FenceVolumeView>] = &[
    ("plimsoll_fence_slots", "Slots of a volume.", |v| f64::from(v.slots)),
    ("plimsoll_fence_waiting", "Requests of a volume that wait for a slot.", |v| v.waiting as f64),
    ("plimsoll_fence_requests_total", "Requests of a volume that ended.", |v| v.requests as f64),
    (
        "plimsoll_fence_response_seconds_total",
        "Sum of response times of a volume's requests, from the fence to their end.",
        |v| v.response_us as f64 / 1e6,
    ),
    ("plimsoll_fence_wait_seconds_total", "Sum of a volume's requests' waits for a slot.", |v| {
        v.waited_us as f64 / 1e6
    }),
    (
        "plimsoll_fence_lending_delay_seconds_total",
        "Sum of a volume's requests' waits for requests that were lent idle time.",
        |v| v.imposed_us as f64 / 1e6,
    ),
    ("plimsoll_fence_held_seconds_total", "Time that a volume's batches had the first device.", |v| {
        v.held_us as f64 / 1e6
    }),
];

const DEVICES: &[Family<FenceDeviceView>] = &[
    ("plimsoll_fence_batches_total", "Batches of slots' owners on a device.", |d| d.batches as f64),
    ("plimsoll_fence_batches_within_total", "Batches predicted to 5 ms (a disk) or 250 us (flash).", |d| {
        d.within as f64
    }),
    ("plimsoll_fence_batch_seconds_total", "Sum of batches' times.", |d| d.took_us as f64 / 1e6),
    ("plimsoll_fence_batch_error_seconds_total", "Sum of absolute errors of batches' predictions.", |d| {
        d.error_us as f64 / 1e6
    }),
];
const DEVIATION: &str = "By how much the last minute's mean response differs from a volume's baseline, over that.";

const POOLS: &[Family<FenceView>] = &[
    ("plimsoll_fence_idle_seconds_total", "Idle time that volumes without slots could have used.", |v| {
        v.idle_us as f64 / 1e6
    }),
    ("plimsoll_fence_lent_seconds_total", "Idle time that volumes without slots used.", |v| v.lent_us as f64 / 1e6),
];

fn metrics(page: &mut Page, pools: &[(&str, FenceView)]) {
    let numbers: Vec<String> = (0..plimsoll_fence::SLOTS_MAX).map(|n| n.to_string()).collect();
    let slot = |(pool, v): &'_ (&'_ str, FenceView)| -> Vec<(String, String, String, FenceSlotView)> {
        let of = v.slots.iter().zip(&numbers).map(|(s, n)| (pool.to_string(), n.clone(), s.volume.clone(), s.clone()));
        of.map(|(pool, n, volume, s)| (pool, n, volume.unwrap_or_default(), s)).collect()
    };
    let slots: Vec<_> = pools.iter().flat_map(slot).collect();
    let labelled =
        slots.iter().map(|(pool, n, volume, s)| (vec![("pool", &**pool), ("slot", n), ("volume", volume)], s));
    page.families(SLOTS, &labelled.collect::<Vec<_>>());
    let volumes = || pools.iter().flat_map(|(pool, v)| v.volumes.iter().map(|volume| (*pool, volume)));
    let labelled = volumes().map(|(pool, v)| (vec![("pool", pool), ("volume", &*v.volume)], v));
    page.families(VOLUMES, &labelled.collect::<Vec<_>>());
    let devices = pools
        .iter()
        .flat_map(|(pool, v)| ["pool", "cache"].into_iter().zip(&v.devices).map(|(name, d)| (*pool, name, d)));
    let labelled = devices.map(|(pool, name, d)| (vec![("pool", pool), ("device", name)], d));
    page.families(DEVICES, &labelled.collect::<Vec<_>>());
    page.family("plimsoll_fence_deviation_ratio", "gauge", DEVIATION);
    for (pool, v) in volumes() {
        if let Some(percent) = v.deviation_percent {
            let labels = [("pool", pool), ("volume", v.volume.as_str())];
            page.sample("plimsoll_fence_deviation_ratio", &labels, percent / 100.0);
        }
    }
    let of: Vec<_> = pools.iter().map(|(pool, v)| (vec![("pool", *pool)], v)).collect();
    page.families(POOLS, &of);
}
