//! A pool's flash cache (Nitro): its configuration, its operator's view, and its devices.

mod device;
mod share;

pub use device::{
    CacheError, InMetadata, Known, KnownNvram, Opened, check_before, check_page, expect, format_if_blank, open,
    open_nvram, weus_most, weus_of,
};
pub use share::{check_part, check_parts, part_bytes, too_large};

use super::page::{Family, Page};
use super::settings::{CacheDevice, Live, Setting, Unit, VolumePart};
use super::{About, Acting, Action, Part, Shown};
use crate::config::{BadConfig, ByteSize, CacheConfig as Section, CacheDedup, Config, PoolConfig};
use crate::node::NodeError;
use crate::plan::CacheFacts;
use plimsoll_base::{CacheMode, IoError, Span, Time, VolumeKey, bytes_text};
use plimsoll_cache::{CacheConfig, CacheControl, CacheStatus, CacheTerms, Shape, WriteBackFails};
use plimsoll_nvram::Nvram;
use plimsoll_pool::{CachePlan, NvramPlan};
use plimsoll_stack::{Addressed, OwnTerms, Stack};
use plimsoll_store::{Uuid, VolumeRecord};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

fn shape(c: &Section) -> Shape {
    let default = Shape::default();
    Shape {
        extent_bytes: c.extent.map_or(default.extent_bytes, |b| b.0 as u32),
        weu_bytes: c.weu.map_or(default.weu_bytes, |b| b.0 as u32),
    }
}

/// Bytes of a write-evict unit.
pub fn weu_bytes(c: &Section) -> u64 {
    u64::from(shape(c).weu_bytes)
}

/// The most of a cache that can be asked to be kept free, in percent.
const FREE_PERCENT_MAX: u32 = 50;

/// Bytes without which it can't work.
pub fn size_min(c: &Section) -> u64 {
    weu_bytes(c) * u64::from(plimsoll_cache::WEUS_MIN)
}

/// Checks what can be checked without the device.
///
/// # Errors
/// The fault.
pub fn check(c: &Section) -> Result<(), BadConfig> {
    let too_large = |b: Option<crate::config::ByteSize>| b.is_some_and(|b| b.0 > 4 << 20);
    if too_large(c.extent) || too_large(c.weu) {
        return Err(BadConfig::new("cache: an extent has 4 to 128 KiB, a WEU up to 4 MiB"));
    }
    shape(c).check().map_err(|e| BadConfig::found(e).about("cache"))?;
    if !(1..=90).contains(&c.watermark_percent) {
        return Err(BadConfig::new(format!(
            "cache: watermark_percent {} is not between 1 and 90",
            c.watermark_percent
        )));
    }
    if c.free_percent > FREE_PERCENT_MAX {
        return Err(BadConfig::new(format!("cache: free_percent {} is more than {FREE_PERCENT_MAX}", c.free_percent)));
    }
    // What a file that the node makes must have room for.
    let least = plimsoll_store::DEVICE_BYTES_MIN;
    if let Some(size) = c.nvram.as_ref().and_then(|n| n.size).filter(|size| size.0 < least) {
        return Err(BadConfig::new(format!(
            "cache: nvram size {} is too small: it needs {least} bytes at least",
            size.0
        )));
    }
    if let Some(size) = c.device_size.filter(|size| size.0 < least) {
        return Err(BadConfig::new(format!(
            "cache: device_size {} is too small: it needs {least} bytes at least",
            size.0
        )));
    }
    if c.fingerprints_percent > 100 {
        return Err(BadConfig::new(format!("cache: fingerprints_percent {} is more than 100", c.fingerprints_percent)));
    }
    Ok(())
}

/// Translates the configuration's section into the cache's part of a pool's plan.
///
/// # Errors
/// Names the invalid setting and its limit.
pub fn plan(c: &Section, facts: &CacheFacts) -> Result<CachePlan, BadConfig> {
    // Every field is named, so that a new one can't be forgotten here.
    let Section {
        file: _,
        device_size: _,
        size,
        mode: _,
        extent: _,
        weu: _,
        codec,
        dedup,
        fingerprints_percent,
        sharing,
        eviction,
        admission,
        watermark_percent,
        free_percent,
        trim,
        prefetch,
        nvram,
        model,
        volatile_cache: _,
    } = c;
    let CacheFacts { generation, known, given_up, nvram_salt, absent } = facts;
    let default = CacheConfig::default();
    Ok(CachePlan {
        shape: shape(c),
        config: CacheConfig {
            fingerprints_percent: if *dedup == CacheDedup::Off { 0 } else { *fingerprints_percent },
            codec: *codec,
            sharing: *sharing,
            eviction: *eviction,
            admission: *admission,
            watermark_percent: *watermark_percent,
            free_percent: *free_percent,
            trim: *trim,
            prefetch_bytes_max: prefetch.map_or(default.prefetch_bytes_max, |b| b.0),
            generation: *generation,
            ..default
        },
        size_bytes: size.map(|b| b.0),
        known: known.clone(),
        given_up: given_up.clone(),
        absent: absent.clone(),
        // Without its fast device the cache has no use for it.
        nvram: nvram.as_ref().filter(|_| absent.is_none()).map(|_| NvramPlan { salt: *nvram_salt }),
        model: model.as_deref().map(crate::plan::model).transpose()?,
    })
}

/// Scope of deduplication: the tenant's extents, or the pool's.
fn domain(c: &Section, tenant: &str) -> u64 {
    match c.dedup {
        CacheDedup::Pool => 0,
        CacheDedup::Tenant | CacheDedup::Off => {
            Uuid::new_v5(&Uuid::NAMESPACE_OID, tenant.as_bytes()).as_u64_pair().0 | 1
        }
    }
}

/// The part.
pub struct Cache;

impl Part for Cache {
    type Seen = CacheStatus;
    type View = CacheView;
    const NAME: &'static str = "cache";
    const SUMMARY: &'static str = "A pool's flash cache";
    const HOW: &'static str = "configure [pool.cache]";

    fn look(stack: &Stack, _: Time) -> Option<CacheStatus> {
        let mut status = stack.layer::<plimsoll_cache::Cache>()?.status();
        // Without its NVRAM the cache never starts: the NVRAM says why.
        if let Some(why) = stack.layer::<Nvram>().and_then(Nvram::why) {
            (status.state, status.why) = ("failed", Some(why.to_string()));
        }
        Some(status)
    }

    fn view(seen: &CacheStatus, about: &About) -> CacheView {
        let now = about.pool_view.pool.now;
        let behind = about.node.volumes_behind(about.pool).into_iter().collect();
        CacheView::of(seen, now, |key| about.volume_name(key), &behind)
    }

    fn shown(v: &CacheView) -> Shown {
        let weus = |n: u32| bytes_text(u64::from(n) * u64::from(v.weu_bytes));
        let (used, max, all) = (weus(v.weus_used), weus(v.weus_max), weus(v.weus));
        let hit = percent(v.read_hits, v.reads);
        let mut shown = match v.failed_us {
            Some(_) => Shown::new(format!("{}, the pool is served without its cache", v.state)),
            None => Shown::new(format!("{}, {used} of {max} used, {all} on the device, {hit} hits", v.state)),
        };
        let failing: Vec<String> = v.write_back_fails.iter().map(FailingVolume::text).collect();
        shown.problem = v.problem.clone().or((!failing.is_empty()).then(|| failing.join("; ")));
        let (extent, weu) = (bytes_text(v.extent_bytes.into()), bytes_text(v.weu_bytes.into()));
        shown.line("made of", format!("extents of {extent} in WEUs of {weu}, {}", v.codec));
        let (eviction, admission) = (&v.eviction, &v.admission);
        shown.line("policies", format!("eviction `{eviction}`, admission `{admission}`"));
        shown.line("reads", format!("{}, {hit} hit", v.reads));
        let memory = bytes_text(v.memory_bytes);
        shown.line("extents", format!("{} cached, {} fingerprints, {memory} of memory", v.extents, v.fingerprints));
        let dedup = if v.dedup { ratio(v.dedup_ratio) } else { "off".into() };
        shown.line("saves", format!("dedup ratio {dedup}, compression ratio {}", ratio(v.compression_ratio)));
        let (written, amplified) = (bytes_text(v.written_bytes), ratio(v.write_amplification));
        let saved = v.wear_saved_percent.map_or("-".into(), |p| format!("{p:.0} %"));
        shown.line("writes", format!("{written} to the device, amplification {amplified}, wear saved {saved}"));
        shown.line("only here", format!("{} extents; {} written back", v.dirty_extents, v.written_back));
        let (scans, ahead, rejected) = (v.scans, v.ahead, v.rejected);
        if v.diverted > 0 {
            let what = "extents of write-back volumes, as write-back failed and there was no room";
            shown.line("past it", format!("{} {what}", v.diverted));
        }
        shown.line("not cached", format!("{scans} sequential extents, {rejected} by admission; {ahead} read ahead"));
        shown.line("evicted", format!("{} WEUs; {} of their extents were put in again", v.evicted, v.reinserted));
        shown.line("corrupt", format!("{} extents, {} of them lost", v.corrupt, v.lost));
        for (volume, offset, len) in &v.lost_ranges {
            shown.line("lost", format!("{volume}: {len} bytes at {offset}"));
        }
        for r in &v.at_risk {
            let runs = r.runs;
            shown.line(
                "at risk",
                format!("{}: {} bytes in {runs} ranges; `plimsoll cache status --json` lists them", r.volume, r.bytes),
            );
        }
        let took = Span::from_micros(v.start_us);
        shown.line("last start", format!("{took}, {} extents found", v.start_extents));
        if v.start_damaged > 0 {
            let what = "headers that must have been there: what they named isn't cached";
            shown.line("damaged", format!("{} {what}", v.start_damaged));
        }
        let row = |c: &CachedVolume| {
            let mode = format!("{:?}", c.mode).to_lowercase();
            let needed = if c.behind { "needed" } else { "may go" };
            let (hits, here) = (percent(c.read_hits, c.reads), c.dirty_extents.to_string());
            vec![c.name.clone(), mode, c.reads.to_string(), hits, here, needed.into()]
        };
        let head = ["VOLUME", "MODE", "READS", "HIT", "ONLY HERE", "CACHE"];
        shown.table(&head, v.volumes.iter().map(row).collect());
        shown
    }

    fn metrics(page: &mut Page, pools: &[(&str, CacheView)]) {
        let of: Vec<_> = pools.iter().map(|(pool, v)| (vec![("pool", *pool)], v)).collect();
        page.families(POOLS, &of);
    }

    fn check(pool: &PoolConfig) -> Result<(), BadConfig> {
        let Some(cache) = &pool.cache else { return Ok(()) };
        check(cache)?;
        match pool.device.null {
            true => Err(BadConfig::new("a null device needs no cache: take out `cache`")),
            false => Ok(()),
        }
    }

    fn check_config(config: &Config, pool: &PoolConfig) -> Result<(), BadConfig> {
        let Some(section) = &pool.cache else { return Ok(()) };
        let mine = config.volume.iter().filter(|v| v.pool.get_ref() == pool.name.get_ref());
        let parts: Vec<VolumePart> = mine.map(VolumePart::configured).collect();
        let sized = || parts.iter().filter_map(|v| Some((&v.name, v.cache_bytes?)));
        sized().try_for_each(|(volume, bytes)| check_part(section, volume, bytes))?;
        let Some(ByteSize(all)) = section.device_size else { return Ok(()) };
        if let Some((volume, bytes)) = sized().find(|v| v.1 > all) {
            return Err(too_large(volume, bytes, all));
        }
        // Of a device that isn't there yet; one that is may be of another size, which the start knows.
        match weus_most(section, all, 4096) {
            Ok(weus) => check_parts(section, CacheDevice { bytes: all, weus }, &parts),
            Err(_) => Ok(()),
        }
    }

    fn add_terms(live: &Live, record: &VolumeRecord, part: &VolumePart, own: OwnTerms) -> OwnTerms {
        let device_bytes = live.cache_device.map_or(0, |d| d.bytes);
        own.with(&live.config.cache.as_ref().map_or(CacheTerms::OFF, |section| CacheTerms {
            mode: record.cache.unwrap_or(section.mode),
            domain: domain(section, &record.tenant),
            bytes: part_bytes(part.cache_bytes, device_bytes),
        }))
    }

    fn check_volumes(live: &Live, volumes: &[VolumePart]) -> Result<(), BadConfig> {
        let (Some(section), Some(device)) = (&live.config.cache, live.cache_device) else { return Ok(()) };
        for v in volumes {
            match v.cache_bytes {
                Some(bytes) if bytes > device.bytes => return Err(too_large(&v.name, bytes, device.bytes)),
                Some(bytes) => check_part(section, &v.name, bytes)?,
                None => {}
            }
        }
        check_parts(section, device, volumes)
    }

    const SETTINGS: &'static [Setting] = &[
        Setting {
            key: "cache_size_bytes",
            unit: Unit::Bytes,
            help: "Bytes of its device that the cache may use.",
            get: |pool| Some(pool.cache.as_ref()?.size?.0),
            put: |pool, bytes| {
                if let Some(cache) = &mut pool.cache {
                    cache.size = Some(ByteSize(bytes));
                }
            },
            range: |live| {
                let least = live.config.cache.as_ref().map_or(0, size_min);
                least..=live.cache_device.map_or(u64::MAX, |d| d.bytes)
            },
            message: |pool| {
                let bytes = pool.cache.as_ref().and_then(|c| c.size).map_or(u64::MAX, |size| size.0);
                Addressed::new(&CacheControl::Bytes(bytes))
            },
        },
        Setting {
            key: "fingerprints_percent",
            unit: Unit::Percent,
            help: "Fingerprints that the cache keeps, in percent of its extents.",
            get: |pool| {
                let cache = pool.cache.as_ref()?;
                let looks = cache.dedup != CacheDedup::Off && cache.fingerprints_percent > 0;
                looks.then_some(cache.fingerprints_percent.into())
            },
            put: |pool, percent| {
                if let Some(cache) = &mut pool.cache {
                    cache.fingerprints_percent = percent.min(100) as u32;
                }
            },
            range: |_| 1..=100,
            message: |pool| {
                let percent = pool.cache.as_ref().map_or(100, |c| c.fingerprints_percent);
                Addressed::new(&CacheControl::FingerprintsPercent(percent))
            },
        },
    ];

    const ACTIONS: &'static [Action] = &[
        Action {
            name: "flush",
            summary: "Write back all dirty extents",
            body: None,
            act: |node, pool, _| -> Acting {
                Box::pin(async move { node.tell_layer::<Cache>(&pool, &CacheControl::Flush).await })
            },
        },
        Action {
            name: "give-up",
            summary: "Give up the dirty extents of a volume whose cache device failed permanently",
            body: Some(|generator| generator.subschema_for::<CacheGiveUp>().to_value()),
            act: |node, pool, body| -> Acting {
                Box::pin(async move {
                    let wanted: CacheGiveUp =
                        serde_json::from_value(body).map_err(|e| NodeError::Refused(e.to_string()))?;
                    if !wanted.lose {
                        let what =
                            "the dirty extents of the volume would be lost: say `\"lose\": true` if that is meant";
                        return Err(NodeError::Refused(what.into()));
                    }
                    node.give_up(&pool, &wanted.volume).await
                })
            },
        },
    ];
}

fn percent(part: u64, of: u64) -> String {
    if of == 0 { "-".into() } else { format!("{:.1} %", part as f64 * 100.0 / of as f64) }
}

fn ratio(r: Option<f64>) -> String {
    r.map_or("-".into(), |r| format!("{r:.2}"))
}

/// Metrics of a pool's cache.
const POOLS: &[Family<CacheView>] = &[
    ("plimsoll_cache_up", "1 while the cache serves, 0 while it recovers or if its device failed.", |s| {
        f64::from(u8::from(s.state == "ready"))
    }),
    ("plimsoll_cache_used_bytes", "Bytes of write-evict units (WEUs) in use.", |s| {
        (u64::from(s.weus_used) * u64::from(s.weu_bytes)) as f64
    }),
    ("plimsoll_cache_size_bytes", "Bytes of WEUs that may be used.", |s| {
        (u64::from(s.weus_max) * u64::from(s.weu_bytes)) as f64
    }),
    ("plimsoll_cache_extents", "Entries of the file index.", |s| s.extents as f64),
    ("plimsoll_cache_dirty_extents", "Dirty extents.", |s| s.dirty_extents as f64),
    ("plimsoll_cache_memory_bytes", "Memory of all indexes.", |s| s.memory_bytes as f64),
    ("plimsoll_cache_reads_total", "Reads.", |s| s.reads as f64),
    ("plimsoll_cache_read_hits_total", "Reads answered by the cache alone.", |s| s.read_hits as f64),
    ("plimsoll_cache_inserted_total", "Extents inserted.", |s| s.inserted as f64),
    ("plimsoll_cache_duplicates_total", "Extents inserted whose content was cached already.", |s| s.duplicates as f64),
    ("plimsoll_cache_packed_bytes_total", "Bytes packed, before compression.", |s| s.packed_bytes as f64),
    ("plimsoll_cache_payload_bytes_total", "Bytes packed, after compression.", |s| s.payload_bytes as f64),
    ("plimsoll_cache_written_bytes_total", "Bytes written to the fast device.", |s| s.written_bytes as f64),
    ("plimsoll_cache_evicted_total", "WEUs evicted.", |s| s.evicted as f64),
    ("plimsoll_cache_reinserted_total", "Extents of evicted WEUs that were put in again.", |s| s.reinserted as f64),
    ("plimsoll_cache_rejected_total", "Extents that admission did not let in.", |s| s.rejected as f64),
    ("plimsoll_cache_written_back_total", "Extents written back.", |s| s.written_back as f64),
    ("plimsoll_cache_write_back_failing", "Volumes whose write-back fails.", |s| s.write_back_fails.len() as f64),
    ("plimsoll_cache_corrupt_total", "Extents whose checksum was wrong when they were read.", |s| s.corrupt as f64),
    ("plimsoll_cache_unreadable_total", "Reads of the fast device that failed.", |s| s.unreadable as f64),
    ("plimsoll_cache_lost_total", "Dirty extents lost to corrupt or failed reads.", |s| s.lost as f64),
];

/// `GET /v1/pools/{name}/cache`: a pool's flash cache.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct CacheView {
    /// `recovering`, `ready`, `broken` (its device failed), `failed` (not this cache's device).
    pub state: String,
    /// The fault and the data at risk, if there is a fault.
    pub problem: Option<String>,
    /// Time since its device failed, in microseconds, if the pool is served without it.
    pub failed_us: Option<u64>,
    /// An extent's bytes.
    pub extent_bytes: u32,
    /// A WEU's bytes.
    pub weu_bytes: u32,
    /// `lz4`, `zstd`, `none`.
    pub codec: String,
    /// True if duplicates are found.
    pub dedup: bool,
    /// Policy of eviction: `lru`, `live`, `sieve`, `s3fifo`.
    #[serde(default)]
    pub eviction: String,
    /// Policy of admission: `all`, `second`.
    #[serde(default)]
    pub admission: String,
    /// WEUs on the device; none once it failed.
    pub weus: u32,
    /// WEUs that may be used.
    pub weus_max: u32,
    /// WEUs in use.
    pub weus_used: u32,
    /// Entries of the file index.
    pub extents: u64,
    /// Entries of the fingerprint index.
    pub fingerprints: u64,
    /// Extents that only the cache has.
    pub dirty_extents: u64,
    /// Memory of all indexes.
    pub memory_bytes: u64,
    /// Since the start: reads.
    pub reads: u64,
    /// Reads that needed nothing from the slow device.
    pub read_hits: u64,
    /// Extents that were put in.
    pub inserted: u64,
    /// Of them, those whose content was there.
    pub duplicates: u64,
    /// Bytes packed, before compression.
    pub packed_bytes: u64,
    /// The same after compression.
    pub payload_bytes: u64,
    /// Extents put in for each that was stored.
    pub dedup_ratio: Option<f64>,
    /// Bytes before compression for each after.
    pub compression_ratio: Option<f64>,
    /// Bytes written to the device for each of compressed extents.
    pub write_amplification: Option<f64>,
    /// Of what a cache without deduplication and compression would have written, how much wasn't, in percent.
    pub wear_saved_percent: Option<f64>,
    /// Bytes of WEUs and of the journal written.
    pub written_bytes: u64,
    /// WEUs evicted.
    pub evicted: u64,
    /// Of their extents, those that were put in again.
    #[serde(default)]
    pub reinserted: u64,
    /// Extents that the policy of admission did not let in.
    #[serde(default)]
    pub rejected: u64,
    /// Of what was dirty when somebody asked for all of it to be written back, what isn't yet.
    pub flush_left: u64,
    /// Extents written back.
    pub written_back: u64,
    /// Volumes whose write-back fails.
    #[serde(default)]
    pub write_back_fails: Vec<FailingVolume>,
    /// Extents of write-back volumes that were written through, as write-back failed and there was no room.
    #[serde(default)]
    pub diverted: u64,
    /// Sequential extents that weren't cached.
    pub scans: u64,
    /// Extents read ahead.
    pub ahead: u64,
    /// Extents read back that weren't what they should be.
    pub corrupt: u64,
    /// Reads of the fast device that failed.
    pub unreadable: u64,
    /// Of both, extents that only the cache had.
    pub lost: u64,
    /// Their places: volume, offset, length.
    pub lost_ranges: Vec<(String, u64, u64)>,
    /// Data that only the cache's device has, which failed: by volume.
    #[serde(default)]
    pub at_risk: Vec<CacheRisk>,
    /// Duration of the last start.
    pub start_us: u64,
    /// Extents that it found.
    pub start_extents: u64,
    /// WEUs with headers that must have been there, and were damaged.
    pub start_damaged: u32,
    /// Per volume.
    pub volumes: Vec<CachedVolume>,
}

/// A volume in a cache.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct CachedVolume {
    /// Name.
    pub name: String,
    /// `off`, `through`, `back`.
    #[schemars(with = "String")]
    pub mode: CacheMode,
    /// The pool has recorded that the cache may have data of it that the device lacks: the cache must stay.
    pub behind: bool,
    /// Extents that only the cache has.
    pub dirty_extents: u64,
    /// Reads.
    pub reads: u64,
    /// Reads that needed nothing from the slow device.
    pub read_hits: u64,
}

/// Reason why data of a volume that was larger can't be written back.
const BEYOND_END: &str = "dirty data beyond the volume's end";

/// A volume whose write-back fails.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct FailingVolume {
    /// Name.
    pub volume: String,
    /// The last error.
    pub error: String,
    /// Time since the first.
    pub for_us: u64,
    /// Bytes of the volume that only the cache has.
    pub dirty_bytes: u64,
}

impl FailingVolume {
    pub(crate) fn of(f: &WriteBackFails, now: Time, name: String) -> FailingVolume {
        let for_us = now.since(f.since).as_micros();
        let error = match f.error {
            // The map's answer: no device was asked.
            IoError::Invalid => BEYOND_END.to_owned(),
            error => error.to_string(),
        };
        FailingVolume { volume: name, error, for_us, dirty_bytes: f.dirty_bytes }
    }

    /// True if dirty data lie beyond the volume's end, so that no device is at fault: only a larger volume takes them.
    pub fn is_beyond_end(&self) -> bool {
        self.error == BEYOND_END
    }

    /// The fault in words.
    pub fn text(&self) -> String {
        let (seconds, bytes) = (self.for_us / 1_000_000, bytes_text(self.dirty_bytes));
        let (volume, error) = (&self.volume, &self.error);
        if self.is_beyond_end() {
            return format!(
                "volume `{volume}` has dirty data beyond its end, as it was restored smaller than it was; only the cache has {bytes} of it: grow it to its former size (`plimsoll volume grow`) to have them written back, or delete it"
            );
        }
        format!(
            "write-back of volume `{volume}` fails for {seconds} s, the last error: {error}; only the cache has {bytes} of it"
        )
    }
}

impl CacheView {
    /// `name_of` names the cache's volumes; of those in `behind` only the cache may have the newest data.
    fn of(s: &CacheStatus, now: Time, name_of: impl Fn(VolumeKey) -> String, behind: &BTreeSet<String>) -> CacheView {
        let c = &s.counters;
        let failing = |f: &WriteBackFails| FailingVolume::of(f, now, name_of(f.volume));
        let volume = |v: &plimsoll_cache::VolumeStatus| CachedVolume {
            behind: behind.contains(&name_of(v.key)),
            name: name_of(v.key),
            mode: v.mode,
            dirty_extents: v.dirty,
            reads: v.reads,
            read_hits: v.read_hits,
        };
        CacheView {
            state: s.state.into(),
            problem: s.why.clone(),
            failed_us: s.failed_at.map(|at| now.since(at).as_micros()),
            extent_bytes: s.extent_bytes,
            weu_bytes: s.weu_bytes,
            codec: format!("{:?}", s.codec).to_lowercase(),
            dedup: s.dedup,
            eviction: format!("{:?}", s.eviction).to_lowercase(),
            admission: format!("{:?}", s.admission).to_lowercase(),
            weus: s.weus.0,
            weus_max: s.weus.1,
            weus_used: s.weus.2,
            extents: s.entries.0,
            fingerprints: s.entries.1,
            dirty_extents: s.dirty,
            memory_bytes: s.memory_bytes,
            reads: c.reads,
            read_hits: c.read_hits,
            inserted: c.inserted,
            duplicates: c.duplicates,
            packed_bytes: c.packed_bytes,
            payload_bytes: c.payload_bytes,
            dedup_ratio: s.dedup_ratio(),
            compression_ratio: s.compression_ratio(),
            write_amplification: s.write_amplification(),
            wear_saved_percent: s.wear_saved_percent(u64::from(s.extent_bytes)),
            written_bytes: c.weu_bytes + c.journal_bytes,
            evicted: c.evicted,
            reinserted: c.reinserted,
            rejected: c.rejected,
            flush_left: s.flush_left,
            written_back: c.written_back,
            write_back_fails: s.write_back_fails.iter().map(failing).collect(),
            diverted: c.diverted,
            scans: c.scans,
            ahead: c.ahead,
            corrupt: c.corrupt,
            unreadable: c.unreadable,
            lost: c.lost,
            lost_ranges: s.lost.iter().map(|l| (name_of(l.volume), l.offset, l.len)).collect(),
            at_risk: s
                .at_risk
                .iter()
                .map(|r| CacheRisk {
                    volume: name_of(r.volume),
                    bytes: r.bytes,
                    runs: r.runs,
                    ranges: r.ranges.clone(),
                })
                .collect(),
            start_us: s.start.took.as_micros(),
            start_extents: s.start.extents,
            start_damaged: s.start.damaged,
            volumes: s.volumes.iter().map(volume).collect(),
        }
    }
}

/// Data of a volume that only a failed cache's device has: lost if it is given up.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct CacheRisk {
    /// The volume.
    pub volume: String,
    /// Bytes, in whole extents.
    pub bytes: u64,
    /// Runs of extents.
    pub runs: u64,
    /// Offset and length in bytes of each run: the first thousand.
    pub ranges: Vec<(u64, u64)>,
}

/// `POST /v1/pools/{name}/cache/give-up`
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CacheGiveUp {
    /// Of which volume.
    pub volume: String,
    /// Confirmation, `true`: the volume's dirty extents are lost.
    pub lose: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_cache::{Admission, Codec, Eviction, Sharing};

    /// The cache's settings, as `keys` in the node's configuration say.
    fn of(keys: &str) -> CacheConfig {
        let text = format!(
            "[[pool]]\nname = \"p\"\ndevice = {{ file = \"/nowhere/d\", size = \"1GiB\" }}\n[pool.cache]\nfile = \"/nowhere/c\"\n{keys}\n"
        );
        let config = crate::config::Config::parse(&text, std::path::Path::new("node.toml")).expect("a configuration");
        let section = config.pool[0].cache.as_ref().expect("it has a cache");
        plan(section, &CacheFacts::default()).expect("a plan").config
    }

    #[test]
    fn the_keys_of_the_section_reach_the_cache() {
        let default = of("");
        assert_eq!((default.eviction, default.admission), (Eviction::Lru, Admission::All));
        assert_eq!(of("admission = \"all\"").admission, Admission::All);
        let policies = of("admission = \"second\"\neviction = \"s3fifo\"\nsharing = \"pervolume\"\ncodec = \"none\"");
        let got = (policies.admission, policies.eviction, policies.sharing, policies.codec);
        assert_eq!(got, (Admission::Second, Eviction::S3Fifo, Sharing::PerVolume, Codec::None));
        let numbers = of("watermark_percent = 70\nfree_percent = 3\ntrim = false\nprefetch = \"1MiB\"");
        let got = (numbers.watermark_percent, numbers.free_percent, numbers.trim, numbers.prefetch_bytes_max);
        assert_eq!(got, (70, 3, false, 1 << 20));
    }
}
