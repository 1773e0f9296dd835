//! ML-E9: the file system's speed-ups over the experiments ML-E2 to ML-E6 (Manylogs Table II).

use super::{DEVICE, DEVICE_NOTE, Setup, beside_reader, commit_log, filebench, writer};
use crate::experiment::{Experiment, Inputs, LabError, RowSpec, Sample};
use crate::mlfs::Personality;
use plimsoll_base::Span;
use plimsoll_fs::Mode;

/// See the module's documentation.
pub struct SpeedUps;

/// The other mode; least, greatest and average speed-up of bandwidth and of latency in Table II.
type Paper = (Mode, [f64; 3], [f64; 3]);
const TABLE: [Paper; 2] =
    [(Mode::Ordered, [1.3, 15.0, 3.7], [1.0, 22.0, 5.7]), (Mode::Adaptive, [1.0, 16.0, 2.7], [0.9, 7.6, 2.0])];

/// Bandwidth kept and latency in each of the paper's situations, in one mode.
fn situations(mode: Mode, seed: u64, inputs: &Inputs) -> Result<Vec<(f64, f64)>, LabError> {
    let time = |full, quick, brief| Span::from_secs(inputs.length(full, quick, brief));
    let ends: &[u64] = if inputs.brief { &[40, 320] } else { &[40, 80, 160, 320] };
    let mut all = Vec::new();
    for rate in ends {
        let o = beside_reader(&Setup::on(1), mode, *rate, seed, time(30, 6, 3))?;
        all.push((o.kept, o.sync_ms));
    }
    let databases: &[usize] = if inputs.brief { &[1] } else { &[1, 4] };
    for (n, period) in databases.iter().flat_map(|n| commit_log::PERIODS.map(|p| (*n, p))) {
        let o = commit_log::run(commit_log::HOST, mode, n, period, seed, time(30, 5, 2))?;
        all.push((o.kept, o.request_ms));
    }
    if inputs.brief {
        return Ok(all);
    }
    for rate in [40, 320] {
        all.push(writer::run(mode, rate, seed, time(20, 11, 6))?);
        let array = Setup::on(4);
        let o = beside_reader(&array, mode, rate * array.disks as u64, seed, time(30, 6, 3))?;
        all.push((o.kept, o.sync_ms));
    }
    for p in [Personality::Varmail, Personality::Fileserver] {
        for n in filebench::COUNTS {
            all.push(filebench::run(p, n, mode, seed, time(30, 10, 6))?);
        }
    }
    Ok(all)
}

fn least_greatest_average(all: &[f64]) -> [f64; 3] {
    let fold = |pick: fn(f64, f64) -> f64| all.iter().copied().reduce(pick).expect("there are situations");
    [fold(f64::min), fold(f64::max), all.iter().sum::<f64>() / all.len() as f64]
}

impl Experiment for SpeedUps {
    fn id(&self) -> &'static str {
        "ML-E9"
    }
    fn title(&self) -> &'static str {
        "The file system's speed-ups over other journaling modes"
    }
    fn source(&self) -> &'static str {
        "Manylogs Table II"
    }
    fn device(&self) -> &'static str {
        DEVICE
    }
    fn notes(&self) -> Vec<String> {
        let ours = "over the situations of ML-E2, ML-E3, ML-E4-FS, ML-E5 and ML-E6, each once: the paper doesn't name those of its table. A speed-up of latency \
                    is of syncs, fileserver's writes, or databases' requests. The table's other two rows are of ML-E7 and ML-E8";
        vec![ours.into(), DEVICE_NOTE.into()]
    }
    fn rows(&self, _inputs: &Inputs) -> Vec<RowSpec> {
        let mut rows = Vec::new();
        for (mode, bandwidth, latency) in TABLE {
            for (subject, [least, greatest, average]) in [("bandwidth", bandwidth), ("latency", latency)] {
                let row =
                    |what: &str| RowSpec::new(format!("{subject}, manylogs against {}: {what}", mode.name()), "x");
                rows.push(row("least speed-up").beside(least));
                rows.push(row("greatest speed-up").beside(greatest));
                rows.push(row("average speed-up").reproduces(average));
            }
        }
        rows
    }
    fn sample(&self, seed: u64, inputs: &Inputs) -> Result<Sample, LabError> {
        let ours = situations(Mode::Manylogs, seed, inputs)?;
        let mut values = Vec::new();
        for (mode, ..) in TABLE {
            let theirs = situations(mode, seed, inputs)?;
            let pairs = || ours.iter().zip(&theirs);
            let bandwidth: Vec<f64> = pairs().map(|(o, t)| o.0 / t.0).collect();
            // A write that met nothing to wait for has no speed-up.
            let latency: Vec<f64> = pairs().filter(|(o, _)| o.1 > 0.0).map(|(o, t)| t.1 / o.1).collect();
            values.extend(least_greatest_average(&bandwidth).map(Some));
            values.extend(least_greatest_average(&latency).map(Some));
        }
        Ok(Sample { values, ..Sample::default() })
    }
}
