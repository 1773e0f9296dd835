//! Recorded traces as accuracy experiments replay them: a busy stretch, at a speed that the device can follow.

use crate::experiment::{Inputs, LabError};
use plimsoll_base::{Rng, Span, Time};
use plimsoll_replay::{DeviceChoice, Limits, Pool, PoolConfig, open_loop};
use plimsoll_trace::record::{Op, Tables, TraceRecord};
use plimsoll_trace::stream::{Held, RecordStream};
use plimsoll_trace::tools::window::{Busy, WindowFinder};
use plimsoll_trace::{ReadOptions, TraceReader};
use std::path::PathBuf;

/// A recorded trace.
pub(crate) struct Case {
    pub file: PathBuf,
    pub name: String,
}

/// Traces with reads enough to judge: file and name.
pub(crate) const RECORDED: [(&str, &str); 8] = [
    ("block/cloudphysics_vm.csv.gz", "cloudphysics"),
    ("block/hplajw_workstation.csv.gz", "hplajw"),
    ("block/websearch_small.csv.gz", "websearch"),
    ("block/hadoop_node10.csv.gz", "hadoop"),
    ("block/ycsb_ext4.csv.gz", "ycsb-ext4"),
    ("block/mobile_telegram.csv.gz", "telegram"),
    ("block/mobile_youcut.csv.gz", "youcut"),
    ("block/mobile_genshin.csv.gz", "genshin"),
];

/// Traces that the forecasts' development didn't replay. Others of the folder have too few reads, or no clock.
pub(crate) const HELD_OUT: [(&str, &str); 4] = [
    ("block/mobile_pubg.csv.gz", "pubg"),
    ("block/msr_cut_1006.csv.gz", "msr"),
    ("block/tpcc_small.csv.gz", "tpcc"),
    ("block/ycsb_btrfs.csv.gz", "ycsb-btrfs"),
];

/// The traces of a run: those named, or the recorded ones.
pub(crate) fn cases(inputs: &Inputs) -> Vec<Case> {
    named_or(&RECORDED, inputs)
}

/// The traces of a run: those named, or these.
pub(crate) fn named_or(these: &[(&str, &str)], inputs: &Inputs) -> Vec<Case> {
    if !inputs.traces.is_empty() {
        let name = |file: &PathBuf| file.file_name().unwrap_or(file.as_os_str()).to_string_lossy().into_owned();
        return inputs.traces.iter().map(|file| Case { name: name(file), file: file.clone() }).collect();
    }
    let data = inputs.data.clone().unwrap_or_default();
    these.iter().map(|(file, name)| Case { file: data.join(file), name: name.to_string() }).collect()
}

/// The paper's stretch (§7.6).
const WINDOW: Span = Span::from_secs(300);
/// A stretch with fewer requests tells too little of a twentieth of them: then all of the trace is used.
const REQUESTS_MIN: u64 = 10_000;
/// Idle time beyond this is left out: it only makes runs long.
const GAP_MAX: Span = Span::from_secs(1);
/// Share of the time that the device may be busy.
const BUSY_MOST: f64 = 0.5;

/// All of a trace.
pub(crate) fn whole(case: &Case) -> Result<Vec<TraceRecord>, LabError> {
    let mut reader = TraceReader::open(&case.file, &ReadOptions::default())?;
    reader.records().map(|r| Ok(r?)).collect()
}

/// The busiest five minutes of a trace, or all of it if they are few requests; gaps capped.
pub(crate) fn stretch(case: &Case, count_max: usize) -> Result<Vec<TraceRecord>, LabError> {
    let mut reader = TraceReader::open(&case.file, &ReadOptions::default())?;
    let mut all = Vec::new();
    let mut finder = WindowFinder::new(WINDOW, Busy::Requests);
    for r in reader.records() {
        let r = r?;
        finder.record(&r);
        all.push(r);
    }
    let w = finder.found();
    if w.amount >= REQUESTS_MIN {
        all.retain(|r| r.arrived_at >= w.from && r.arrived_at < w.from + w.len);
    }
    let (mut at, mut before) = (Time::ZERO, all.first().map_or(Time::ZERO, |r| r.arrived_at));
    for r in &mut all {
        at += r.arrived_at.since(before).min(GAP_MAX);
        before = r.arrived_at;
        r.arrived_at = at;
    }
    all.truncate(count_max);
    Ok(all)
}

/// The records at `speed`, powers of two, negative for slower.
pub(crate) fn at_speed(records: &[TraceRecord], speed_log2: i32) -> Vec<TraceRecord> {
    let factor = 2f64.powi(-speed_log2);
    let at = |t: Time| Time::from_nanos((t.as_nanos() as f64 * factor) as u64);
    records.iter().map(|r| TraceRecord { arrived_at: at(r.arrived_at), ..*r }).collect()
}

/// The fastest speed (a power of two) at which the disk is busy at most half of the time. Found by replaying the
/// stretch one request at a time: the sum of the service times says how long the disk is busy.
pub(crate) fn speed_for_disk(records: &[TraceRecord], device: &DeviceChoice) -> Result<i32, LabError> {
    let busy = busy_s(records, device)?;
    let lasts = records.last().map_or(0.0, |r| r.arrived_at.as_secs_f64());
    Ok((BUSY_MOST * lasts / busy.max(1e-9)).log2().floor().clamp(-12.0, 12.0) as i32)
}

/// Returns the time that `records` keep the device busy, one at a time, in seconds.
pub(crate) fn busy_s(records: &[TraceRecord], device: &DeviceChoice) -> Result<f64, LabError> {
    let mut pool = Pool::new(device, &PoolConfig { depth: 1, ..PoolConfig::default() })?;
    let mut source = Held::new(records.to_vec(), Tables::new());
    let m = open_loop(&mut pool, &mut source, &Limits::default(), &mut |_, _| {})?;
    Ok(m.service.sum().as_secs_f64())
}

/// From a start that the seed draws within the first tenth, times counted from there.
pub(crate) fn from_a_start(records: &[TraceRecord], seed: u64) -> Vec<TraceRecord> {
    let from = Rng::new(seed, "trace start").below((records.len() as u64 / 10).max(1)) as usize;
    let base = records.get(from).map_or(Time::ZERO, |r| r.arrived_at);
    let moved = |r: &TraceRecord| TraceRecord { arrived_at: Time::ZERO + r.arrived_at.since(base), ..*r };
    records[from..].iter().map(moved).collect()
}

/// Returns the arrival of the first read of the second half.
pub(crate) fn middle(records: &[TraceRecord]) -> Time {
    let reads: Vec<Time> = records.iter().filter(|r| r.op == Op::Read).map(|r| r.arrived_at).collect();
    reads.get(reads.len() / 2).copied().unwrap_or(Time::ZERO)
}
