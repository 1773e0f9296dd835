//! Shingled disks: one log on the outer tracks (SLSMR) against logs in unshingled zones all over the disk (MLSMR, Manylogs §III-I3).
//!
//! Both have the mechanics of the disk of Manylogs §V-B, its write cache off. SLSMR is the drive-managed model; it cleans the band of the oldest
//! data when its map is full, and after an idle time if it has one. MLSMR is the product's own stack: scattered logs over bands over
//! the model of host-managed zones, every tenth zone unshingled.

pub mod clean;
pub mod mitt;
pub mod mixes;
pub mod stalls;

use crate::experiment::LabError;
use crate::experiment::manylogs::{DEVICE, SPREAD, swapping};
use plimsoll_bands::{Bands, BandsConfig};
use plimsoll_base::LatencyHistogram;
use plimsoll_device::smr::zoned::ZoneSpec;
use plimsoll_device::smr::{CleanOrder, SmrCache, SmrClean, SmrSpec, SmrStats};
use plimsoll_device::{AnyModel, DeviceSpec, ModelLayer, profile};
use plimsoll_logs::{LogsConfig, Shape};
use plimsoll_pool::{BandsPlan, Costs, LogsPlan, PoolPlan};
use plimsoll_replay::{DeviceChoice, Limits, Measured, Pool, PoolConfig, open_loop};
use plimsoll_trace::record::{Tables, TraceRecord};
use plimsoll_trace::stream::Held;

/// Bytes of the outermost tracks that the single log has (Manylogs §III-I3: 20 to 25 GB).
const CACHE_MIB: u64 = 20 << 10;
/// One zone in N is unshingled: the paper's surface is one of 8 to 12.
const FREE_EVERY: u32 = 10;
/// Shingled zones without a band.
const SPARES: u32 = 16;
/// Every write is logged (Manylogs §III-C): the longest one of the traces is 1.25 MiB (ycsb-ext4). A log takes writes of up to a quarter of it, so
/// of 2 MiB with the smallest bands that are tried.
const LOGGED_ALL: u64 = 2 << 20;
/// The largest record of writes that were gathered.
const RECORD_MAX: u64 = 2 << 20;
/// A band of 32 MiB: within the 15 to 40 MB of Manylogs §III-I3.
const BAND_MIB: u64 = 32;
/// Runs that the drive's map of its log holds (`seagate-archive-8tb`), and extents of the logs.
const ENTRIES: u32 = 150_000;

/// A choice of the baseline's cleaning: idle time in ms, 0 for none, and the order in which a band's runs are read.
type Cleaning = (f64, CleanOrder);
/// The set of which the baseline's best is taken.
const SWEPT: [Cleaning; 4] =
    [(0.0, CleanOrder::Log), (1000.0, CleanOrder::Log), (100.0, CleanOrder::Log), (100.0, CleanOrder::Band)];

/// The drive-managed disk.
fn single(band_mib: u64, entries_max: u32, (idle_ms, order): Cleaning) -> Result<DeviceChoice, LabError> {
    let disk = profile::by_name(DEVICE).map_err(|e| LabError(e.to_string()))?;
    let outer = u64::from(disk.geometry.zones[0].sectors_per_track) * 512;
    let spec = SmrSpec {
        name: format!("{DEVICE}, shingled"),
        source: Vec::new(),
        assumed: Vec::new(),
        band_tracks: (band_mib << 20).div_ceil(outer) as u32,
        unshingled_surface: false,
        cache: SmrCache { mib: CACHE_MIB, entries_max },
        // Over itself, which a loss of power can tear: the faster of the two.
        clean: SmrClean { order, aside_first: false, io_kib: 1024, idle_ms },
        disk,
    };
    Ok(DeviceChoice { name: spec.name.clone(), spec: DeviceSpec::Shingled(Box::new(spec)) })
}

/// The host-managed disk.
fn zoned(band_mib: u64) -> Result<DeviceSpec, LabError> {
    let disk = profile::by_name(DEVICE).map_err(|e| LabError(e.to_string()))?;
    let zones = ZoneSpec { zone_bytes: band_mib << 20, conventional: 0, conventional_every: FREE_EVERY, open_max: 128 };
    Ok(DeviceSpec::Zoned(Box::new(disk), zones))
}

/// The logs of MLSMR: all writes, swaps in idle time, no checkpoint within a run.
fn all_logged() -> LogsConfig {
    LogsConfig { record_bytes_max: RECORD_MAX, ..swapping(LOGGED_ALL) }
}

fn config_of(seed: u64) -> PoolConfig {
    PoolConfig { mismatch: SPREAD, seed, ..PoolConfig::default() }
}

/// Logs over bands over zones.
fn many_plan(
    band_mib: u64,
    extents: u32,
    logs: LogsConfig,
    bands: BandsConfig,
    seed: u64,
) -> Result<PoolPlan, LabError> {
    let zone_bytes = band_mib << 20;
    // Three quarters of the table are used at most.
    let shape = Shape { extents_max: extents / 3 * 4, ..Shape::default() };
    Ok(PoolPlan {
        logs: Some(LogsPlan { shape, config: logs }),
        bands: Some(BandsPlan {
            zone_bytes,
            free_every: FREE_EVERY,
            spares: SPARES,
            log_bytes: zone_bytes,
            salt: 0,
            config: bands,
        }),
        ..config_of(seed).plan(&zoned(band_mib)?, Costs::Unknown)
    })
}

fn replayed(pool: &mut Pool, records: &[TraceRecord]) -> Result<Measured, LabError> {
    let mut source = Held::new(records.to_vec(), Tables::new());
    Ok(open_loop(pool, &mut source, &Limits::default(), &mut |_, _| {})?)
}

/// Returns the counts of the drive-managed model.
fn stats_of(pool: &Pool) -> SmrStats {
    match pool.stack.layer::<ModelLayer<AnyModel>>().map(ModelLayer::model) {
        Some(AnyModel::Shingled(d)) => d.stats(),
        _ => SmrStats::default(),
    }
}

/// Runs the baseline with each of the swept cleanings; the run with the least of `by`.
fn best_single(
    (band_mib, entries): (u64, u32),
    records: &[TraceRecord],
    seed: u64,
    by: fn(&LatencyHistogram) -> f64,
) -> Result<(Measured, SmrStats, Cleaning), LabError> {
    let mut best: Option<(f64, (Measured, SmrStats, Cleaning))> = None;
    for cleaning in SWEPT {
        let mut pool = Pool::new(&single(band_mib, entries, cleaning)?, &config_of(seed))?;
        let m = replayed(&mut pool, records)?;
        let cost = by(&m.all_responses());
        if best.as_ref().is_none_or(|(least, _)| cost < *least) {
            best = Some((cost, (m, stats_of(&pool), cleaning)));
        }
    }
    Ok(best.expect("some are swept").1)
}

fn bands_of(pool: &Pool) -> plimsoll_bands::Counters {
    *pool.stack.layer::<Bands>().expect("it is there").counters()
}
