//! ML-E11: a lazy checkpoint on a shingled disk, where each modified band is read and written.

use super::{BAND_MIB, ENTRIES, all_logged, bands_of, many_plan, replayed};
use crate::experiment::manylogs::{DEVICE, LOGGED_MAX, pool_of, replay, swapping};
use crate::experiment::manylogs_clean::{HOUR, TRACES, busiest_hour, read};
use crate::experiment::{Check, Experiment, Inputs, LabError, RowSpec, Sample};
use plimsoll_bands::BandsConfig;
use plimsoll_base::Time;
use plimsoll_logs::{CleanConfig, Logs, LogsConfig, LogsControl, LogsStatus, Shape};
use plimsoll_replay::{DeviceChoice, Pool};
use plimsoll_stack::Addressed;
use plimsoll_trace::record::TraceRecord;

/// See the module's documentation.
pub struct BandCleaning;

const ROWS_OF_TRACE: usize = 6;

fn untouched(logs: LogsConfig) -> LogsConfig {
    LogsConfig { clean: CleanConfig { idle_after: None, ..CleanConfig::default() }, ..logs }
}

fn status(pool: &Pool) -> LogsStatus {
    pool.stack.layer::<Logs>().expect("it is there").status(Time::ZERO)
}

/// An hour after the last request all logs are emptied; how long that takes, in seconds.
fn checkpoint_s(pool: &mut Pool, last: Time) -> f64 {
    let begun = last + HOUR;
    pool.stack.tell(begun, &Addressed::new(&LogsControl::Checkpoint));
    while status(pool).cleaning.is_some() {
        let at = pool.stack.next_wake().max(begun);
        pool.stack.wake(at);
    }
    status(pool).counters.last_clean.unwrap_or_default().took.as_secs_f64()
}

impl Experiment for BandCleaning {
    fn id(&self) -> &'static str {
        "ML-E11"
    }
    fn title(&self) -> &'static str {
        "One lazy checkpoint on a shingled disk after the write-busiest hour"
    }
    fn source(&self) -> &'static str {
        "Manylogs §VI, Fig 8"
    }
    fn device(&self) -> &'static str {
        DEVICE
    }
    fn files(&self) -> Vec<&'static str> {
        TRACES.map(|t| t.0).to_vec()
    }
    fn notes(&self) -> Vec<String> {
        vec![
            "the traces, their speeds and the disk of ML-E10; there MLB-256, here all writes are logged, as the paper does".into(),
            "MLSMR: logs over bands of 32 MiB over host-managed zones, every tenth unshingled; a band is read, merged and written to a spare zone, \
             then the map is written twice"
                .into(),
        ]
    }
    fn rows(&self, _inputs: &Inputs) -> Vec<RowSpec> {
        let of = |name: &str| {
            let row = |what: &str, unit| RowSpec::new(format!("{name}: {what}"), unit);
            vec![
                row("checkpoint", "s"),
                row("checkpoint of the unshingled disk (ML-E10)", "s"),
                row("checkpoint over the unshingled disk's", "x"),
                row("bands copied", "1"),
                row("one band's copy, mean", "s").reproduces_range(0.6, 1.6),
                row("MTL table over the unshingled disk's", "x")
                    .paper_says(Check::AtMost(2.0), "with MLSMR, MTL table size is interesting similar"),
            ]
        };
        let mut rows: Vec<RowSpec> = TRACES.iter().flat_map(|t| of(t.1)).collect();
        rows.push(RowSpec::new("the most of the four: checkpoint over the unshingled disk's", "x").paper_says(
            Check::AtLeast(10.0),
            "checkpoint time in SMR drives can be an order of magnitude longer (depending on the workload)",
        ));
        rows
    }
    fn sample(&self, seed: u64, inputs: &Inputs) -> Result<Sample, LabError> {
        let (mut values, mut most) = (Vec::new(), None::<f64>);
        for (file, _, slower) in TRACES {
            let Some(all) = read(inputs, file)? else {
                values.extend([None; ROWS_OF_TRACE]);
                continue;
            };
            let mut records = busiest_hour(all, slower);
            if inputs.quick {
                records.truncate(inputs.length(usize::MAX, 5000, 2000));
            }
            let of_trace = one_trace(&records, seed)?;
            most = of_trace[2].map_or(most, |ratio| Some(most.unwrap_or(0.0).max(ratio)));
            values.extend(of_trace);
        }
        values.push(most);
        Ok(Sample { values, ..Sample::default() })
    }
}

fn one_trace(records: &[TraceRecord], seed: u64) -> Result<[Option<f64>; ROWS_OF_TRACE], LabError> {
    let device = DeviceChoice::named(DEVICE)?;
    let (m, _, mut plain) = replay(&device, Shape::default(), untouched(swapping(LOGGED_MAX)), records, seed)?;
    let plain_table = status(&plain).mtl_bytes;
    let plain_s = checkpoint_s(&mut plain, Time::ZERO + m.elapsed());
    let plan = many_plan(BAND_MIB, ENTRIES, untouched(all_logged()), BandsConfig::default(), seed)?;
    let mut pool = pool_of(&plan, seed)?;
    let m = replayed(&mut pool, records)?;
    let table = status(&pool).mtl_bytes;
    let ours_s = checkpoint_s(&mut pool, Time::ZERO + m.elapsed());
    let copies = bands_of(&pool);
    // A part of a trace may have no write.
    let over = |ours: f64, theirs: f64| (ours > 0.0 && theirs > 0.0).then(|| ours / theirs);
    Ok([
        Some(ours_s),
        Some(plain_s),
        over(ours_s, plain_s),
        Some(copies.copied as f64),
        over(copies.copy_time.as_secs_f64(), copies.copied as f64),
        over(table as f64, plain_table as f64),
    ])
}
