//! OT-NODE: a Plimsoll node's own settings, tuned in the simulator.

use super::rows::shown;
use super::{EPOCHS, Profiled, figures, objective, profiled, profiled_by, told};
use crate::experiment::{Check, Experiment, Inputs, LabError, RowSpec, Sample};
use crate::system::node::{NodePool, Request, cached_space, disk_space, graph, mixed, of_trace};
use plimsoll_base::Span;
use plimsoll_trace::{ReadOptions, RecordStream, TraceReader};
use plimsoll_tune::adapter::Adapter;
use plimsoll_tune::cdf::Cdf;
use plimsoll_tune::solve::{Mix, solve};
use plimsoll_tune::space::Space;

const TRACE: &str = "block/cloudphysics_vm.csv.gz";
/// Settings of an untuned node: no deadline, 256 KiB, 20 ms, 8 ms, 1 ms.
const DEFAULTS: [u16; 5] = [0, 2, 0, 1, 0];

/// See the module's documentation.
pub struct TunedNode;

fn load(seed: u64, stream: u64, inputs: &Inputs, traced: bool) -> Result<Vec<Request>, LabError> {
    Ok(match inputs.file(TRACE).filter(|_| traced) {
        Some(path) => {
            let mut reader = TraceReader::open(&path, &ReadOptions::default())?;
            let records = reader.records().collect::<Result<Vec<_>, _>>()?;
            of_trace(&records)?
        }
        None => mixed(Span::from_secs(3_600), seed + 1_000 * stream),
    })
}

fn lengths(inputs: &Inputs) -> (Span, Span) {
    let (warm, time) = inputs.length((60, 300), (20, 60), (10, 30));
    (Span::from_secs(warm), Span::from_secs(time))
}

/// A load under the defaults and under the mix of least p99 whose median is at most the defaults', both predicted and tried. A trial has the
/// minutes of its load that the profile had: a trace's other minutes are another load.
fn tuned(
    p: &Profiled,
    inputs: &Inputs,
    fresh: &mut dyn FnMut() -> Result<NodePool, LabError>,
) -> Result<(Vec<f64>, String), LabError> {
    let defaults = p.all.iter().position(|c| c.setting.0 == DEFAULTS).expect("all settings are profiled");
    let bound = p.all[defaults].cdf.quantile(0.5);
    let s = solve(&p.all, EPOCHS, &objective("p99", &[(0.5, bound)])).map_err(told)?;
    let (warm, time) = lengths(inputs);
    let mut tried = |mix: &Mix| -> Result<Cdf, LabError> {
        let mut pool = fresh()?;
        pool.apply(&p.all[mix.parts[0].0].setting).map_err(told)?;
        pool.serve(warm);
        p.served(&mut pool, mix, time)
    };
    let (untuned, achieved) = (tried(&Mix::only(defaults))?, tried(&s.mix)?);
    let gain = s.best_static.map_or(0.0, |b| 100.0 * (1.0 - s.value / b.1));
    let p99 = |cdf: &Cdf| figures(cdf)[3];
    let values = vec![
        p99(&untuned),
        untuned.ks(&p.all[defaults].cdf),
        s.value,
        p99(&achieved),
        achieved.ks(&s.mix.cdf(&p.all)),
        gain,
        p99(&achieved) / p99(&untuned),
        achieved.quantile(0.5) / untuned.quantile(0.5),
    ];
    Ok((values, shown(p, &s.mix)))
}

impl Experiment for TunedNode {
    fn id(&self) -> &'static str {
        "OT-NODE"
    }
    fn title(&self) -> &'static str {
        "A Plimsoll node's settings, tuned"
    }
    fn source(&self) -> &'static str {
        "no paper's figure: ours alone"
    }
    fn device(&self) -> &'static str {
        "hdd-160g-7200"
    }
    fn files(&self) -> Vec<&'static str> {
        vec![TRACE]
    }
    fn notes(&self) -> Vec<String> {
        vec![
            "cores, logs, two time slots and CFQ over a disk, set by the orders of a live node: deadline of reads, LoggedWriteSize, slot \
             length, idle_time and QWin's slack; 108 settings, all profiled. A generated database beside a backup, and a trace as \
             slow; a refused read counts as one at another replica. The cache: fingerprint index ratio, Nitro's Homes scaled down"
                .into(),
            "defaults and tuned settings are tried for the same minutes of the load as the profile saw, after the same warm-up, as one period; \
             the generated load's other requests are of the same law, the trace's are the very same"
                .into(),
        ]
    }
    fn rows(&self, _inputs: &Inputs) -> Vec<RowSpec> {
        let of = |load: &str| {
            vec![
                RowSpec::new(format!("{load}: p99 with the defaults"), "ms"),
                RowSpec::new(format!("{load}: KS of the defaults' profile and their trial"), "1")
                    .note("what one setting alone is off by"),
                RowSpec::new(format!("{load}: least p99 with a median of the defaults' at most, predicted"), "ms"),
                RowSpec::new(format!("{load}: the same, achieved"), "ms"),
                RowSpec::new(format!("{load}: KS of predicted and achieved"), "1").goal(Check::AtMost(0.03)),
                RowSpec::new(format!("{load}: what the mix gains over the best single setting"), "%"),
                RowSpec::new(format!("{load}: p99 tuned over p99 with the defaults, achieved"), "1")
                    .goal(Check::AtMost(1.0)),
                RowSpec::new(format!("{load}: median tuned over median with the defaults, achieved"), "1")
                    .note("bounded by 1 in the prediction"),
            ]
        };
        let mut rows = [of("generated"), of("trace")].concat();
        for percent in ["5", "25", "50", "100"] {
            rows.push(RowSpec::new(format!("cache, fingerprints of {percent} %: mean"), "ms"));
        }
        rows.push(
            RowSpec::new("cache: least mean over that of 100 %, predicted", "1")
                .note("predicted, over a choice that has 100 % in it: not judged"),
        );
        rows
    }
    fn sample(&self, seed: u64, inputs: &Inputs) -> Result<Sample, LabError> {
        let mut sample = Sample::default();
        let (warm, time) = lengths(inputs);
        for (name, traced) in [("generated", false), ("trace", true)] {
            let (profile, trial) = (load(seed, 0, inputs, traced)?, load(seed, 1, inputs, traced)?);
            // A pool of its own for each setting: what waits when one ends is none of the next one's.
            let p = profiled_by(graph(), disk_space(), &mut |setting| {
                let mut pool = NodePool::on_disk(profile.clone(), seed)?;
                pool.apply(setting).map_err(told)?;
                pool.serve(warm);
                Ok(pool.serve(time))
            })?;
            let (values, mix) = tuned(&p, inputs, &mut || NodePool::on_disk(trial.clone(), seed))?;
            sample.values.extend(values.into_iter().map(Some));
            sample.notes.push(format!("{name}, in one seed: {mix}"));
        }
        let accesses = inputs.length(100_000, 20_000, 4_000);
        let space: Space = cached_space();
        let p = profiled(&mut NodePool::cached(accesses, seed)?, graph(), space, warm, time)?;
        let means: Vec<f64> = p.all.iter().map(|c| c.mean_ms).collect();
        sample.values.extend(means.iter().map(|&m| Some(m)));
        let least = means.iter().copied().fold(f64::INFINITY, f64::min);
        sample.values.push(Some(least / means[3]));
        Ok(sample)
    }
}
