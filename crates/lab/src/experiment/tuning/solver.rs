//! OT-E12: the solver against complete search, annealing and chance.

use super::{EPOCHS, objective, told};
use crate::experiment::{Check, Experiment, Inputs, LabError, RowSpec, Sample};
use plimsoll_base::Rng;
use plimsoll_figure::plot::{Curve, Plot, Scale, Shares};
use plimsoll_tune::cdf::Cdf;
use plimsoll_tune::compose::Composer;
use plimsoll_tune::graph::{ServiceGraph, WrittenGraph};
use plimsoll_tune::objective::{Goal, Objective};
use plimsoll_tune::predict::{How, candidates};
use plimsoll_tune::profile::{Observation, Profile};
use plimsoll_tune::solve::baseline::{Found, Grid};
use plimsoll_tune::solve::{Candidate, Epochs, Mix, solve};
use plimsoll_tune::space::{Parameter, Setting, Space};

/// See the module's documentation.
pub struct SolverOverhead;

/// Mixes that each search may look at: the same budget for all.
const BUDGET: u64 = 20_000;
/// Points of the searches' grid of times.
const GRID_POINTS: usize = 600;
const EPOCHS_SEARCHED: usize = 5;

/// Numbers of mixes after which the searches' quality is reported (Fig. A.4).
const TOLD_AT: [u64; 3] = [1_024, 5_120, 19_456];
/// Tiers and epochs of the system that grows, and how many values each tier has (Fig. A.5).
const TIERS: usize = 5;
const EPOCHS_GROWN: usize = 10;
const VALUES_GROWN: [u16; 3] = [2, 3, 4];

/// Appendix A.3.2's and A.3.3's synthetic systems: tiers in sequence, each with a parameter of `values` values that trades its
/// middle against its tail.
fn synthetic(tiers: usize, values: u16, seed: u64) -> Result<Vec<Candidate>, LabError> {
    let tiers: Vec<String> = (0..tiers).map(|i| format!("tier{i}")).collect();
    let text = format!("root = 'r'\ncomponents = {tiers:?}\n[node]\nr = {{ sequence = {tiers:?} }}");
    let written: WrittenGraph = toml::from_str(&text).expect("names without quotes");
    let graph = ServiceGraph::new(&written).expect("names of their own");
    let parameter = |n: &String| Parameter {
        name: n.clone(),
        values: (0..values).map(|v| v.to_string()).collect(),
        moves: vec![n.clone()],
    };
    let space = Space::new(tiers.iter().map(parameter).collect()).map_err(told)?;
    let mut rng = Rng::new(seed, "synthetic tiers");
    let mut profile = Profile::new();
    for (i, tier) in tiers.iter().enumerate() {
        for v in 0..values {
            let part = f64::from(v) / f64::from(values.max(2) - 1);
            let (hits, spread) = (0.1 + 0.7 * part, 0.3 + 1.1 * part + 0.1 * rng.unit());
            let scale = (4.0 + 8.0 * i as f64) * (0.9 + 0.2 * rng.unit());
            let mut setting = vec![0; tiers.len()];
            setting[i] = v;
            for request in 0..5_000 {
                let value =
                    if rng.chance(hits) { 0.1 * scale * rng.unit() } else { scale * (spread * rng.normal()).exp() };
                profile.add(tier, &Setting(setting.clone()), Observation { request, value, weight: 1.0 });
            }
        }
    }
    let composer = Composer::new(&graph, &space, &profile).map_err(told)?;
    Ok(candidates(&composer, &space, How::Convolved, &|_| {}))
}

/// The tasks of Table A.3, and the target of Fig. A.4.
fn tasks(all: &[Candidate]) -> Result<Vec<(&'static str, Objective)>, LabError> {
    let least = solve(all, EPOCHS, &objective("p50", &[])).map_err(told)?.value;
    let tail = solve(all, EPOCHS, &objective("p99", &[])).map_err(told)?.mix.cdf(all).quantile(0.5);
    let made = Cdf::mix(&[(0.6, &all[all.len() / 3].cdf), (0.4, &all[all.len() * 2 / 3].cdf)]).scaled(0.9);
    let points = (1..=100).map(|i| f64::from(i) / 100.0).map(|s| (s, made.quantile(s))).collect();
    Ok(vec![
        ("min mean", objective("mean", &[])),
        ("min median", objective("p50", &[])),
        ("min p99 under a bound on p50", objective("p99", &[(0.5, (least + tail) / 2.0)])),
        ("target of 100 points", Objective { goal: Goal::Target(points), bounds: Vec::new() }),
    ])
}

/// Returns the number of mixes of this number of configurations and epochs.
fn mixes(configurations: usize, epochs: usize) -> f64 {
    (0..epochs).map(|k| (configurations + k) as f64 / (k + 1) as f64).product()
}

/// A search by name: the best result and its reports, each after a number of mixes.
fn searched(grid: &Grid<'_>, which: usize, epochs: usize, seed: u64) -> (Found, Vec<(u64, f64)>) {
    let mut reports = Vec::new();
    let mut watch = |n: u64, best: Option<f64>| {
        reports.extend(best.map(|b| (n, b)));
        n < BUDGET
    };
    let mut rng = Rng::new(seed, "search");
    let found = match which {
        0 => grid.brute_force(epochs, &mut watch),
        1 => grid.anneal(epochs, BUDGET, &mut rng, &mut watch),
        _ => grid.random(epochs, BUDGET, &mut rng, &mut watch),
    };
    (found, reports)
}

/// OpTune's quality of a target's answer: 1 - RMSE / WorstPerf, the worst being the worst single configuration.
fn quality(mean_square: f64, worst: f64) -> f64 {
    1.0 - (mean_square / worst).sqrt()
}

/// Our gap, linear and integer programs of ours, how many mixes there are in powers of ten, and by how much annealing with the searches'
/// budget is worse than ours: five tiers, ten epochs, p99 under a bound on the median.
fn grown(values: u16, seed: u64) -> Result<Vec<Option<f64>>, LabError> {
    let all = synthetic(TIERS, values, seed)?;
    let epochs = Epochs::Count(EPOCHS_GROWN as u32);
    let least = |goal: &str| solve(&all, epochs, &objective(goal, &[])).map_err(told);
    let (median, tail) = (least("p50")?.value, least("p99")?.mix.cdf(&all).quantile(0.5));
    let o = objective("p99", &[(0.5, (median + tail) / 2.0)]);
    let ours = solve(&all, epochs, &o).map_err(told)?;
    let grid = Grid::new(&all, &o, GRID_POINTS);
    let (found, _) = searched(&grid, 1, EPOCHS_GROWN, seed);
    let worse = found.best.map(|(mix, _)| 100.0 * (mix.value(&all, &o.goal) / ours.value - 1.0));
    let numbers = [100.0 * ours.gap(), f64::from(ours.programs), mixes(all.len(), EPOCHS_GROWN).log10()];
    Ok([numbers.map(Some).to_vec(), vec![worse]].concat())
}

const SEARCHES: [&str; 3] = ["complete search", "annealing", "random search"];

impl Experiment for SolverOverhead {
    fn id(&self) -> &'static str {
        "OT-E12"
    }
    fn title(&self) -> &'static str {
        "The solver against complete search, annealing and chance"
    }
    fn source(&self) -> &'static str {
        "OpTune Table A.3, Fig. A.4, A.5"
    }
    fn device(&self) -> &'static str {
        "none"
    }
    fn notes(&self) -> Vec<String> {
        vec![
            "400 configurations of two tiers, five epochs; the searches look at 20,000 mixes each, in virtual work rather than seconds, so \
             that equal runs print equal bytes; times are in docs/guides/tuner.md. Optuna's TPE beside them: make tune-peers"
                .into(),
        ]
    }
    fn rows(&self, _inputs: &Inputs) -> Vec<RowSpec> {
        let mut rows = Vec::new();
        for task in ["min mean", "min median", "min p99 under a bound on p50", "target of 100 points"] {
            let is_target = task.starts_with("target");
            let gap = RowSpec::new(format!("{task}: proven to be within this of the best"), "%");
            rows.push(if is_target { gap } else { gap.goal(Check::AtMost(0.1)) });
            let programs = RowSpec::new(format!("{task}: linear and integer programs solved"), "1");
            rows.push(programs);
            for search in SEARCHES {
                let row = RowSpec::new(format!("{task}: {search}, worse than ours by"), "%");
                rows.push(if is_target { row } else { row.goal(Check::AtLeast(-0.2)).note("20,000 mixes") });
            }
        }
        rows.push(RowSpec::new("target: quality of ours, 1 - RMSE / worst", "%"));
        for search in SEARCHES {
            for n in TOLD_AT {
                rows.push(RowSpec::new(format!("target: quality of {search} after {n} mixes"), "%"));
            }
        }
        for values in VALUES_GROWN {
            let n = usize::from(values).pow(TIERS as u32);
            let of = |what: &str| format!("five tiers of {values} values ({n} configurations), ten epochs: {what}");
            rows.push(RowSpec::new(of("proven to be within this of the best"), "%").goal(Check::AtMost(0.1)));
            rows.push(RowSpec::new(of("linear and integer programs solved"), "1"));
            rows.push(RowSpec::new(of("powers of ten of mixes there are"), "1"));
            rows.push(RowSpec::new(of("annealing, worse than ours by"), "%").goal(Check::AtLeast(-0.2)));
        }
        rows
    }
    fn sample(&self, seed: u64, inputs: &Inputs) -> Result<Sample, LabError> {
        let all = synthetic(2, inputs.length(20, 8, 3), seed)?;
        let mut sample = Sample::default();
        let (mut qualities, mut curves) = (Vec::new(), Vec::new());
        for (_, o) in tasks(&all)? {
            let ours = solve(&all, EPOCHS, &o).map_err(told)?;
            sample.values.extend([Some(100.0 * ours.gap()), Some(f64::from(ours.programs))]);
            let grid = Grid::new(&all, &o, GRID_POINTS);
            let worst = all.iter().enumerate().map(|(i, _)| Mix::only(i).value(&all, &o.goal)).fold(0.0, f64::max);
            let is_target = matches!(o.goal, Goal::Target(_));
            qualities.extend(is_target.then(|| 100.0 * quality(ours.value, worst)));
            for (which, name) in SEARCHES.iter().enumerate() {
                let (found, reports) = searched(&grid, which, EPOCHS_SEARCHED, seed);
                // Judged by the distributions themselves, not by the grid.
                let worse = found.best.map(|(mix, _)| 100.0 * (mix.value(&all, &o.goal) / ours.value - 1.0));
                sample.values.push(worse);
                if is_target {
                    let points: Vec<(f64, f64)> =
                        reports.iter().map(|&(n, w)| (n as f64, quality(w, worst).max(0.0))).collect();
                    let at = |n: u64| points.iter().rfind(|p| p.0 <= n as f64).map_or(0.0, |p| 100.0 * p.1);
                    qualities.extend(TOLD_AT.map(at));
                    curves.push(Curve { name: name.to_string(), points, is_reference: false });
                }
            }
        }
        sample.values.extend(qualities.into_iter().map(Some));
        sample.plots.push(Plot {
            title: "Quality of a target's answer by mixes looked at".into(),
            x_label: "mixes looked at".into(),
            y_label: "1 - RMSE / worst (%)".into(),
            scale: Scale::Linear,
            shares: Shares::Linear,
            curves,
        });
        for values in VALUES_GROWN {
            // A quick look leaves out what takes the longest.
            let is_left_out = inputs.quick && values > VALUES_GROWN[1];
            sample.values.extend(if is_left_out { vec![None; 4] } else { grown(values, seed)? });
        }
        Ok(sample)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mixes_are_counted() {
        assert_eq!(mixes(20, 5), 42_504.0);
        assert_eq!(mixes(1, 10), 1.0);
    }
}
