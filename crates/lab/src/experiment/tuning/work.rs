//! OT-E10: the file-system emulator.

use super::rows::{IDENTITY, Trial, between, fill_single_point, single_point};
use super::{Profiled, objective, profiled, tried_for};
use crate::experiment::{Check, Experiment, Inputs, LabError, RowSpec, Sample};
use crate::system::fs_emulator;
use crate::system::web::IDLE_MS;
use plimsoll_base::Span;
use plimsoll_tune::adapter::Adapter;
use plimsoll_tune::cdf::Cdf;
use plimsoll_tune::profile::times;
use plimsoll_tune::space::Setting;

/// A request every 14 ms: the disk is then about 60 % busy, as the paper's.
const FS_GAP: Span = Span::from_millis(14);
pub(super) const FS_PERIOD: Span = Span::from_secs(600);

pub(super) fn emulator(seed: u64, stream: u64) -> Result<fs_emulator::FsEmulator, LabError> {
    let config = fs_emulator::FsConfig { seed, ..fs_emulator::FsConfig::default() };
    let trace = fs_emulator::file_server(200_000, FS_GAP, seed + 1_000 * stream);
    fs_emulator::FsEmulator::new(&config, trace, fs_emulator::space(&IDLE_MS))
}

/// The emulator, profiled.
pub(super) fn fs_profile(seed: u64, inputs: &Inputs) -> Result<Profiled, LabError> {
    let (warm, time) = inputs.length((600, 1_200), (200, 300), (40, 60));
    let (warm, time) = (Span::from_secs(warm), Span::from_secs(time));
    profiled(&mut emulator(seed, 0)?, fs_emulator::graph(), fs_emulator::space(&IDLE_MS), warm, time)
}

/// OT-E10.
pub struct FileSystem;

const INDEPENDENT: &str = "The RMSE for both I=0ms and I=24ms are 0.4 and 1.3, which means the CDFs in one tier will not affect the CDF in \
                           another tier";

/// Average, median, p90 and p99 of Table A.1's rows, in milliseconds.
const TABLE_A_1: [[f64; 4]; 4] =
    [[5.6, 1.2, 7.56, 61.2], [8.06, 1.1, 10.1, 117.8], [5.9, 2.8, 6.5, 61.2], [23.2, 29.3, 32.4, 39.4]];

impl Experiment for FileSystem {
    fn id(&self) -> &'static str {
        "OT-E10"
    }
    fn title(&self) -> &'static str {
        "File-system emulator: independence, single points, bounds"
    }
    fn source(&self) -> &'static str {
        "OpTune Table A.1, Fig. A.1, A.2"
    }
    fn device(&self) -> &'static str {
        "hdd-160g-7200"
    }
    fn notes(&self) -> Vec<String> {
        vec![
            "the paper's MSN trace isn't to be had: sixteen processes read files by Zipf's law in runs, a fifth writes, popularity \
             drifts; a request every 14 ms"
                .into(),
            "the paper declares the wait for the disk independent of eviction_prob; here it isn't (the rows of RMSE), so all thirty \
             settings are profiled"
                .into(),
        ]
    }
    fn rows(&self, _inputs: &Inputs) -> Vec<RowSpec> {
        let mut rows = single_point(TABLE_A_1, "ms");
        rows.push(RowSpec::new("hit, idle 0 against 24 ms: KS", "1").goal(Check::AtMost(0.03)));
        for (idle, paper) in [("0", 0.4), ("24 ms", 1.3)] {
            let rmse = RowSpec::new(format!("wait, eviction 0 against 1, idle {idle}: RMSE of percentiles"), "ms");
            rows.push(rmse.beside(paper).paper_says(Check::AtMost(paper), INDEPENDENT));
        }
        rows.push(RowSpec::new("p99 under the tighter bound on the median over the looser", "1").note(IDENTITY));
        rows
    }
    fn sample(&self, seed: u64, inputs: &Inputs) -> Result<Sample, LabError> {
        let p = fs_profile(seed, inputs)?;
        let periods = if inputs.quick { 1 } else { 3 };
        let mut fresh = || Ok(Box::new(emulator(seed, 1)?) as Box<dyn Adapter>);
        let mut sample =
            fill_single_point(&p, Trial { fresh: &mut fresh, period: tried_for(FS_PERIOD, inputs), periods }, 1.0)?;
        let of = |idle: u16, eviction: u16, node: &str| -> Result<Cdf, LabError> {
            let mut e = emulator(seed, 0)?;
            e.apply(&Setting(vec![idle, eviction])).map_err(super::told)?;
            e.serve(tried_for(Span::from_secs(300), inputs));
            times(node, &e.serve(tried_for(Span::from_secs(600), inputs))[node]).map_err(super::told)
        };
        let rmse = |a: &Cdf, b: &Cdf| {
            let square = |i: u32| (a.quantile(f64::from(i) / 100.0) - b.quantile(f64::from(i) / 100.0)).powi(2);
            ((1..100).map(square).sum::<f64>() / 99.0).sqrt()
        };
        sample.values.push(Some(of(0, 5, "hit")?.ks(&of(4, 5, "hit")?)));
        sample.values.push(Some(rmse(&of(0, 0, "wait")?, &of(0, 5, "wait")?)));
        sample.values.push(Some(rmse(&of(4, 0, "wait")?, &of(4, 5, "wait")?)));
        let under = |part| p.solve(&objective("p99", &[(0.5, between(&p, 0.5, part)?)])).map(|s| s.value);
        sample.values.push(Some(under(0.3)? / under(0.7)?));
        Ok(sample)
    }
}
