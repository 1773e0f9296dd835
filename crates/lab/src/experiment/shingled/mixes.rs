//! ML-E8: mixes of traces on a shingled disk with one log and with many.

use super::{BAND_MIB, ENTRIES, LOGGED_ALL, all_logged, bands_of, best_single, many_plan, replayed};
use crate::experiment::manylogs::{DEVICE, LOADS, STANDS_FOR, TRACES_NOTE, Traces, mean_ms, pool_of, speed_up};
use crate::experiment::{Check, Experiment, Inputs, LabError, RowSpec, Sample};
use plimsoll_bands::BandsConfig;
use plimsoll_figure::plot::{Curve, Plot};
use plimsoll_logs::Logs;
use plimsoll_trace::record::{Op, TraceRecord};
use plimsoll_trace::tools::mix::MANYLOGS_MIXES;

/// See the module's documentation.
pub struct ShingledMixes;

/// Rows for each mix and placement.
const ROWS_OF_MIX: usize = 9;
/// Placements of the traces' addresses.
const PLACES: [(bool, &str); 2] = [(false, ""), (true, ", spread")];

impl Experiment for ShingledMixes {
    fn id(&self) -> &'static str {
        "ML-E8"
    }
    fn title(&self) -> &'static str {
        "Shingled disk: one log on the outer tracks against logs near the head"
    }
    fn source(&self) -> &'static str {
        "Manylogs §V-C, Fig 6a/c"
    }
    fn device(&self) -> &'static str {
        DEVICE
    }
    fn files(&self) -> Vec<&'static str> {
        STANDS_FOR.to_vec()
    }
    fn notes(&self) -> Vec<String> {
        vec![
            TRACES_NOTE.into(),
            "SLSMR: the drive-managed model with a log of 20 GiB on the outermost tracks and bands of 20 tracks, at the best of four cleanings \
             (none, after 1 s or 100 ms of idle time, in the log's order or the band's) by the mean; MLSMR: logs over bands of 32 MiB \
             over host-managed zones, every tenth unshingled"
                .into(),
            "spread: each megabyte of a trace lies a hundred apart, as on a full disk".into(),
            "the device differs from its profile by ±15 % per component, drawn by the seed; depth 4".into(),
        ]
    }
    fn rows(&self, _inputs: &Inputs) -> Vec<RowSpec> {
        let swaps = [64.0, 24.0, 3.0, 10.0, 12.0];
        let mut rows = Vec::new();
        for (w, swaps) in MANYLOGS_MIXES.iter().zip(swaps) {
            for (spread, place) in PLACES {
                let row = |what: &str, unit| RowSpec::new(format!("{}{place}: {what}", w.name), unit);
                let over = row("speed-up over the percentiles", "x");
                rows.extend([
                    row("mean latency, SLSMR", "ms"),
                    row("mean latency, MLSMR", "ms"),
                    row("speed-up of the mean", "x").goal(Check::AtLeast(1.0)),
                    if spread { over.goal(Check::AtLeast(1.2)) } else { over.reproduces_range(1.2, 1.3) },
                    row("speed-up of reads' mean", "x"),
                    row("speed-up of writes' mean", "x"),
                    row("swaps in 5 min", "1").beside(swaps),
                    row("bands copied", "1"),
                    row("writes that no log took", "1").property(Check::AtMost(0.0)),
                ]);
            }
        }
        rows.push(RowSpec::new("all mixes: mean speed-up over the percentiles", "x").reproduces(1.3));
        rows.push(RowSpec::new("all mixes, spread: mean speed-up over the percentiles", "x"));
        rows
    }
    fn sample(&self, seed: u64, inputs: &Inputs) -> Result<Sample, LabError> {
        let mut sample = Sample::default();
        if inputs.data.is_none() {
            sample.values = vec![None; self.rows(inputs).len()];
            return Ok(sample);
        }
        let mut traces = PLACES.map(|(spread, _)| Traces::new(inputs).spread(spread));
        let mut gains = [Vec::new(), Vec::new()];
        for (i, which) in MANYLOGS_MIXES.iter().enumerate() {
            for (place, traces) in traces.iter_mut().enumerate() {
                if inputs.brief && i + place > 0 {
                    sample.values.extend([None; ROWS_OF_MIX]);
                    continue;
                }
                let records = traces.rated(which, &[LOADS[0].0], seed)?.remove(0);
                gains[place].push(one_mix(&format!("{}{}", which.name, PLACES[place].1), &records, seed, &mut sample)?);
            }
        }
        let mean = |v: &Vec<f64>| (!v.is_empty()).then(|| v.iter().sum::<f64>() / v.len() as f64);
        sample.values.extend(gains.iter().map(mean));
        Ok(sample)
    }
}

/// One mix's rows and picture; its speed-up over the percentiles.
fn one_mix(name: &str, records: &[TraceRecord], seed: u64, sample: &mut Sample) -> Result<f64, LabError> {
    let (single, ..) = best_single((BAND_MIB, ENTRIES), records, seed, mean_ms)?;
    let plan = many_plan(BAND_MIB, ENTRIES, all_logged(), BandsConfig::default(), seed)?;
    let mut pool = pool_of(&plan, seed)?;
    let many = replayed(&mut pool, records)?;
    let counters = pool.stack.layer::<Logs>().expect("it is there").counters().clone();
    let [one_all, many_all] = [&single, &many].map(|m| m.all_responses());
    let side = |i: usize| mean_ms(&single.response[i]) / mean_ms(&many.response[i]).max(1e-9);
    let large = records.iter().filter(|r| r.op == Op::Write && r.len > LOGGED_ALL).count() as u64;
    let (over, _) = speed_up(&one_all, &many_all);
    let values = [
        mean_ms(&one_all),
        mean_ms(&many_all),
        mean_ms(&one_all) / mean_ms(&many_all),
        over,
        side(0),
        side(1),
        counters.swaps as f64,
        bands_of(&pool).copied as f64,
        (counters.spilled + large) as f64,
    ];
    sample.values.extend(values.map(Some));
    let curves = [("SLSMR", &one_all), ("MLSMR", &many_all)].map(|(n, h)| Curve::of_histogram(n, h).thinned());
    sample.plots.push(Plot::of_times(&format!("{name}: all requests"), curves.into()));
    Ok(over)
}
