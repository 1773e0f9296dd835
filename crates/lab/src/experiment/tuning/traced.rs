//! OT-E10-TRACE: the file-system emulator under recorded traces.

use super::rows::{IDENTITY, between, shown};
use super::{Profiled, figures, objective, profiled, told, tried_for};
use crate::experiment::{Check, Experiment, Inputs, LabError, RowSpec, Sample};
use crate::system::fs_emulator::{FsConfig, FsEmulator, FsRequest, footprint, graph, of_trace, paced, space};
use crate::system::web::IDLE_MS;
use plimsoll_base::Span;
use plimsoll_trace::{ReadOptions, RecordStream, TraceReader};
use plimsoll_tune::adapter::Adapter;
use plimsoll_tune::space::Setting;

/// Those with processes, or with a file server's mix.
const TRACES: [(&str, &str); 2] =
    [("CloudPhysics", "block/cloudphysics_vm.csv.gz"), ("Genshin", "block/mobile_genshin.csv.gz")];
/// Length of the profiled part that each of the thirty runs sees at most, from the end of the one before.
const RUN: Span = Span::from_secs(900);
/// OpTune: the disk is slowed to about 60 % of saturation.
const BUSY: f64 = 0.6;
const PERIOD: Span = Span::from_secs(600);

/// See the module's documentation.
pub struct Traced;

struct Halves {
    config: FsConfig,
    /// The first two thirds, to profile, and the last, to try.
    profile: Vec<FsRequest>,
    trial: Vec<FsRequest>,
}

fn halves(name: &str, seed: u64, inputs: &Inputs) -> Result<Halves, LabError> {
    let path = inputs.file(name).ok_or_else(|| LabError(format!("{name} is not in the data folder")))?;
    let mut reader = TraceReader::open(&path, &ReadOptions::default())?;
    let records = reader.records().collect::<Result<Vec<_>, _>>()?;
    let all = of_trace(&records, Span::from_millis(14));
    // The paper names no size: a quarter of what is asked for, as of the generated load.
    let config = FsConfig { cache_blocks: footprint(&all) / 4, seed, ..FsConfig::default() };
    let mut all = paced(&config, &all, BUSY)?;
    let trial = all.split_off(all.len() * 2 / 3);
    Ok(Halves { config, profile: all, trial })
}

impl Halves {
    fn emulator(&self, requests: &[FsRequest]) -> Result<FsEmulator, LabError> {
        FsEmulator::new(&self.config, requests.to_vec(), space(&IDLE_MS))
    }

    fn profiled(&self, inputs: &Inputs) -> Result<Profiled, LabError> {
        let time = inputs.length(RUN, RUN.scale(1, 4), RUN.scale(1, 24));
        profiled(&mut self.emulator(&self.profile)?, graph(), space(&IDLE_MS), time.scale(1, 4), time)
    }
}

impl Experiment for Traced {
    fn id(&self) -> &'static str {
        "OT-E10-TRACE"
    }
    fn title(&self) -> &'static str {
        "File-system emulator under recorded traces"
    }
    fn source(&self) -> &'static str {
        "OpTune Appendix A.1"
    }
    fn device(&self) -> &'static str {
        "hdd-160g-7200"
    }
    fn files(&self) -> Vec<&'static str> {
        TRACES.map(|t| t.1).to_vec()
    }
    fn notes(&self) -> Vec<String> {
        vec![
            "the paper's MSN trace isn't to be had; these are block traces, of which pieces of 4 MiB stand for files. Paced so that \
             the disk is 60 % busy, cache of a quarter of the blocks; the first two thirds are profiled, the last third is the trial: \
             what differs between predicted and achieved is mostly how these differ"
                .into(),
        ]
    }
    fn rows(&self, _inputs: &Inputs) -> Vec<RowSpec> {
        let of = |(name, _): &(&str, &str)| {
            vec![
                RowSpec::new(format!("{name}: hit ratio, eviction_prob 0"), "%"),
                RowSpec::new(format!("{name}: hit ratio, eviction_prob 1"), "%"),
                RowSpec::new(format!("{name}: least p99, predicted"), "ms"),
                RowSpec::new(format!("{name}: its p99 on the profiled part again"), "ms"),
                RowSpec::new(format!("{name}: KS of predicted and the profiled part again"), "1")
                    .goal(Check::AtMost(0.03)),
                RowSpec::new(format!("{name}: KS of predicted and the last third"), "1"),
                RowSpec::new(format!("{name}: p99 of the least mean over the least p99, predicted"), "1")
                    .note(IDENTITY),
                RowSpec::new(format!("{name}: what a mix gains, p99 under a bound on the median"), "%").note(IDENTITY),
            ]
        };
        TRACES.iter().flat_map(of).collect()
    }
    fn sample(&self, seed: u64, inputs: &Inputs) -> Result<Sample, LabError> {
        let mut sample = Sample::default();
        for (name, file) in TRACES {
            let h = halves(file, seed, inputs)?;
            for eviction in [0, 5] {
                let mut e = h.emulator(&h.profile)?;
                e.apply(&Setting(vec![2, eviction])).map_err(told)?;
                e.serve(tried_for(PERIOD, inputs));
                e.serve(tried_for(PERIOD, inputs));
                sample.values.push(Some(100.0 * e.hit_ratio()));
            }
            let p = h.profiled(inputs)?;
            let (tail, mean) = (p.solve(&objective("p99", &[]))?, p.solve(&objective("mean", &[]))?);
            let expected = tail.mix.cdf(&p.all);
            let mut again = h.emulator(&h.profile)?;
            let same = p.achieved(&mut again, &tail.mix, tried_for(PERIOD, inputs), 3)?;
            let other = p.achieved(&mut h.emulator(&h.trial)?, &tail.mix, tried_for(PERIOD, inputs), 3)?;
            let bound = between(&p, 0.5, 0.88)?;
            let mixed = p.solve(&objective("p99", &[(0.5, bound)]))?;
            let gain = mixed.best_static.map(|b| 100.0 * (1.0 - mixed.value / b.1));
            sample.values.extend([
                Some(tail.value),
                Some(figures(&same)[3]),
                Some(same.ks(&expected)),
                Some(other.ks(&expected)),
                Some(figures(&mean.mix.cdf(&p.all))[3] / tail.value),
                gain,
            ]);
            sample.notes.push(format!("{name}, least p99 in one seed: {}", shown(&p, &tail.mix)));
        }
        Ok(sample)
    }
}
