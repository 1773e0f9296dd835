//! OT-E10-TRACE: the file-system emulator under recorded traces.

use super::rows::{IDENTITY, between, shown};
use super::{Profiled, figures, objective, profiled, told};
use crate::experiment::{Check, Experiment, Inputs, LabError, RowSpec, Sample};
use crate::system::fs_emulator::{FsConfig, FsEmulator, FsRequest, footprint, graph, lasting, of_trace, paced, space};
use crate::system::web::IDLE_MS;
use plimsoll_base::Span;
use plimsoll_trace::{ReadOptions, RecordStream, TraceReader};
use plimsoll_tune::adapter::Adapter;
use plimsoll_tune::space::Setting;

/// Those with processes, or with a file server's mix.
const TRACES: [(&str, &str); 2] =
    [("CloudPhysics", "block/cloudphysics_vm.csv.gz"), ("Genshin", "block/mobile_genshin.csv.gz")];
/// OpTune: the disk is slowed to about 60 % of saturation.
const BUSY: f64 = 0.6;

/// Numbers of requests. Lengths in seconds are no measure here: paced to the same load of the disk, a trace whose requests mostly hit has more of
/// them in a second, by up to twenty times.
struct Lengths {
    /// That a pace is tried for.
    pilot: u64,
    /// Of the profiled part, that each of the thirty runs sees, from the end of the one before.
    run: u64,
    /// Of a period.
    period: u64,
}

impl Lengths {
    /// Full: the numbers that come in 900 and 600 s of OT-E10's generated load.
    fn of(inputs: &Inputs) -> Lengths {
        let (pilot, run, period) =
            inputs.length((30_000, 64_000, 43_000), (8_600, 16_000, 8_600), (1_000, 1_600, 1_000));
        Lengths { pilot, run, period }
    }
}

/// See the module's documentation.
pub struct Traced;

struct Halves {
    config: FsConfig,
    lengths: Lengths,
    /// The first two thirds, to profile, and the last, to try.
    profile: Vec<FsRequest>,
    trial: Vec<FsRequest>,
}

fn halves(name: &str, seed: u64, inputs: &Inputs) -> Result<Halves, LabError> {
    let path = inputs.file(name).ok_or_else(|| LabError(format!("{name} is not in the data folder")))?;
    let mut reader = TraceReader::open(&path, &ReadOptions::default())?;
    let records = reader.records().collect::<Result<Vec<_>, _>>()?;
    let all = of_trace(&records, Span::from_millis(14));
    let lengths = Lengths::of(inputs);
    // The paper names no size: a quarter of what is asked for, as of the generated load.
    let config = FsConfig { cache_blocks: footprint(&all) / 4, seed, ..FsConfig::default() };
    let mut all = paced(&config, &all, BUSY, lengths.pilot)?;
    let trial = all.split_off(all.len() * 2 / 3);
    Ok(Halves { config, lengths, profile: all, trial })
}

impl Halves {
    fn emulator(&self, requests: &[FsRequest]) -> Result<FsEmulator, LabError> {
        FsEmulator::new(&self.config, requests.to_vec(), space(&IDLE_MS))
    }

    /// The length of a period of these requests.
    fn period(&self, requests: &[FsRequest]) -> Span {
        lasting(requests, self.lengths.period)
    }

    fn profiled(&self) -> Result<Profiled, LabError> {
        let time = lasting(&self.profile, self.lengths.run);
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
            "runs are of 64,000 requests and periods of 43,000, which OT-E10's 900 and 600 s have; in seconds they would be longer the more \
             of a trace's requests hit"
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
            let period = h.period(&h.profile);
            for eviction in [0, 5] {
                let mut e = h.emulator(&h.profile)?;
                e.apply(&Setting(vec![2, eviction])).map_err(told)?;
                e.serve(period);
                e.serve(period);
                sample.values.push(Some(100.0 * e.hit_ratio()));
            }
            let p = h.profiled()?;
            let (tail, mean) = (p.solve(&objective("p99", &[]))?, p.solve(&objective("mean", &[]))?);
            let expected = tail.mix.cdf(&p.all);
            let mut again = h.emulator(&h.profile)?;
            let same = p.achieved(&mut again, &tail.mix, period, 3)?;
            let other = p.achieved(&mut h.emulator(&h.trial)?, &tail.mix, h.period(&h.trial), 3)?;
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
