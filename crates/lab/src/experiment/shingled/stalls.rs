//! A load that writes more than a shingled disk's log holds: how long requests wait for cleaning, with one log and with many.

use super::{all_logged, bands_of, best_single, many_plan, replayed};
use crate::experiment::manylogs::{DEVICE, mean_ms, pool_of};
use crate::experiment::{Check, Experiment, Inputs, LabError, RowSpec, Sample};
use plimsoll_bands::BandsConfig;
use plimsoll_base::{LatencyHistogram, Rng, Span, Time};
use plimsoll_figure::plot::{Curve, Plot};
use plimsoll_logs::{CleanConfig, Logs, LogsConfig};
use plimsoll_trace::record::{Op, TraceRecord};

/// See the module's documentation.
pub struct Stalls;

/// Runs in the drive's map, and extents of the logs: minutes fill them.
pub(super) const ENTRIES: u32 = 4_000;
/// Bytes in which the load lies, somewhere on the disk.
const REGION: u64 = 1 << 30;
/// Both disks offer more.
const CAPACITY: u64 = 800 << 30;
/// From one idle time's end to the next one's.
const PERIOD: Span = Span::from_secs(20);
/// Requests a second while the load isn't idle, and how many of a hundred write.
const RATE: f64 = 60.0;
const WRITES_PERCENT: f64 = 0.7;
/// A change waits in memory for no longer than a few bands' worth of them.
pub(super) const BUFFER: u64 = 4 << 20;

/// Idle share in percent, band in MiB, name.
const CASES: [(u64, u64, &str); 5] = [
    (0, 32, "never idle, bands of 32 MiB"),
    (25, 32, "25 % idle, bands of 32 MiB"),
    (50, 32, "50 % idle, bands of 32 MiB"),
    (50, 16, "50 % idle, bands of 16 MiB"),
    (50, 40, "50 % idle, bands of 40 MiB"),
];

/// Random requests of 4 KiB, with idle time at each period's end.
pub(super) fn bursts(seed: u64, idle_percent: u64, time: Span) -> Vec<TraceRecord> {
    let mut rng = Rng::new(seed, "bursts");
    let base = rng.below((CAPACITY - REGION) / 4096) * 4096;
    let busy = Span::from_nanos(PERIOD.as_nanos() / 100 * (100 - idle_percent));
    let (mut at, mut records) = (Time::ZERO, Vec::new());
    loop {
        at += Span::from_secs_f64(rng.exp1() / RATE);
        let within = at.since(Time::ZERO).as_nanos() % PERIOD.as_nanos();
        if within >= busy.as_nanos() {
            at += Span::from_nanos(PERIOD.as_nanos() - within);
        }
        if at.since(Time::ZERO) >= time {
            return records;
        }
        let op = if rng.chance(WRITES_PERCENT) { Op::Write } else { Op::Read };
        let offset = base + rng.below(REGION / 4096) * 4096;
        records.push(TraceRecord::new(at, 0, op, offset, 4096));
    }
}

/// Logs that are emptied in idle time from a quarter of the table on.
pub(super) fn cleaned() -> LogsConfig {
    let clean = CleanConfig { idle_after: Some(Span::from_millis(100)), ..CleanConfig::default() };
    LogsConfig { clean, ..all_logged() }
}

fn p999(h: &LatencyHistogram) -> f64 {
    h.percentile(99.9).as_millis_f64()
}

impl Experiment for Stalls {
    fn id(&self) -> &'static str {
        "ML-STALLS"
    }
    fn title(&self) -> &'static str {
        "Shingled disk: stalls of a load that writes more than the log holds"
    }
    fn source(&self) -> &'static str {
        "Manylogs §VI (band cleaning takes 0.6 to 1.6 s); the comparison is ours"
    }
    fn device(&self) -> &'static str {
        DEVICE
    }
    fn notes(&self) -> Vec<String> {
        vec![
            "60 random requests of 4 KiB a second, 70 % writes, within 1 GiB somewhere on the disk, for ten minutes; of every 20 s the named share \
             is idle; both maps hold 4,000 runs"
                .into(),
            "SLSMR: at the best of four cleanings by p99.9; its band is written over itself, which a power loss can tear. MLSMR: bands \
             are copied to spare zones; idle cleaning after 100 ms; at most 4 MiB of changes of bands wait in memory"
                .into(),
            "written in place: found the table full, and were acknowledged in that memory, as by a drive's write cache".into(),
        ]
    }
    fn rows(&self, _inputs: &Inputs) -> Vec<RowSpec> {
        let mut rows = Vec::new();
        for (idle, _, name) in CASES {
            let row = |what: &str, unit| RowSpec::new(format!("{name}: {what}"), unit);
            let longest = row("longest request, SLSMR", "s");
            rows.extend([
                if idle == 0 {
                    longest.paper_says(
                        Check::AtLeast(0.6),
                        "SMR log cleaning is indeed long and can take 0.6-1.6s per band",
                    )
                } else {
                    longest
                },
                row("longest request, MLSMR", "s").goal(Check::AtMost(0.6)),
                row("p99.9, SLSMR", "ms"),
                row("p99.9, MLSMR", "ms").goal(Check::AtMost(100.0)),
                row("mean latency, SLSMR", "ms"),
                row("mean latency, MLSMR", "ms"),
                row("speed-up of the mean", "x").goal(Check::AtLeast(1.2)),
                row("bands cleaned, SLSMR", "1"),
                row("bands copied, MLSMR", "1"),
                row("written in place, MLSMR", "1"),
                row("one band's copy, mean, MLSMR", "s"),
            ]);
        }
        rows
    }
    fn sample(&self, seed: u64, inputs: &Inputs) -> Result<Sample, LabError> {
        let time = Span::from_secs(inputs.length(600, 200, 120));
        let mut sample = Sample::default();
        for (idle, band_mib, name) in CASES {
            let records = bursts(seed, idle, time);
            let (single, stats, _) = best_single((band_mib, ENTRIES), &records, seed, p999)?;
            let bands = BandsConfig { buffer_bytes: BUFFER, ..BandsConfig::default() };
            let mut pool = pool_of(&many_plan(band_mib, ENTRIES, cleaned(), bands, seed)?, seed)?;
            let many = replayed(&mut pool, &records)?;
            let copies = bands_of(&pool);
            let spilled = pool.stack.layer::<Logs>().expect("it is there").counters().spilled;
            let [one_all, many_all] = [&single, &many].map(|m| m.all_responses());
            let values = [
                one_all.max().as_secs_f64(),
                many_all.max().as_secs_f64(),
                p999(&one_all),
                p999(&many_all),
                mean_ms(&one_all),
                mean_ms(&many_all),
                mean_ms(&one_all) / mean_ms(&many_all),
                stats.cleaned_bands as f64,
                copies.copied as f64,
                spilled as f64,
                copies.copy_time.as_secs_f64() / copies.copied.max(1) as f64,
            ];
            sample.values.extend(values.map(Some));
            let curves = [("SLSMR", &one_all), ("MLSMR", &many_all)].map(|(n, h)| Curve::of_histogram(n, h).thinned());
            sample.plots.push(Plot::of_times(name, curves.into()));
        }
        Ok(sample)
    }
}
