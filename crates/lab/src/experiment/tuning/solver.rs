//! OT-E12: the solver against complete search, annealing and chance.

use super::{EPOCHS, objective, told};
use crate::experiment::{Check, Experiment, Inputs, LabError, RowSpec, Sample};
use plimsoll_base::Rng;
use plimsoll_tune::cdf::Cdf;
use plimsoll_tune::compose::Composer;
use plimsoll_tune::graph::{ServiceGraph, WrittenGraph};
use plimsoll_tune::objective::{Goal, Objective};
use plimsoll_tune::predict::{How, candidates};
use plimsoll_tune::profile::{Observation, Profile};
use plimsoll_tune::solve::baseline::{Found, Grid};
use plimsoll_tune::solve::{Candidate, Mix, solve};
use plimsoll_tune::space::{Parameter, Setting, Space};

/// See the module's documentation.
pub struct SolverOverhead;

/// Mixes that each search may look at: the same budget for all.
const BUDGET: u64 = 20_000;
/// Points of the searches' grid of times.
const GRID_POINTS: usize = 600;
const EPOCHS_SEARCHED: usize = 5;

/// Appendix A.3.2's synthetic system: two tiers in sequence, each with a parameter of `values` values that trades its middle
/// against its tail.
fn synthetic(values: u16, seed: u64) -> Result<Vec<Candidate>, LabError> {
    let written: WrittenGraph =
        toml::from_str("root = 'r'\ncomponents = ['cache', 'disk']\n[node]\nr = { sequence = ['cache', 'disk'] }")
            .expect("a constant");
    let graph = ServiceGraph::new(&written).expect("a constant");
    let tiers = ["cache", "disk"];
    let parameter = |n: &&str| Parameter {
        name: n.to_string(),
        values: (0..values).map(|v| v.to_string()).collect(),
        moves: vec![n.to_string()],
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
             that equal runs print equal bytes; times are in docs/tuner.md. Optuna's TPE beside them: make tune-peers"
                .into(),
        ]
    }
    fn rows(&self, _inputs: &Inputs) -> Vec<RowSpec> {
        let mut rows = Vec::new();
        for task in ["min mean", "min median", "min p99 under a bound on p50", "target of 100 points"] {
            let is_target = task.starts_with("target");
            let gap = RowSpec::new(format!("{task}: proven to be within this of the best"), "%");
            rows.push(if is_target { gap } else { gap.check(Check::AtMost(0.1)) });
            let programs = RowSpec::new(format!("{task}: linear and integer programs solved"), "1");
            rows.push(programs);
            for search in SEARCHES {
                let row = RowSpec::new(format!("{task}: {search}, worse than ours by"), "%");
                rows.push(if is_target { row } else { row.check(Check::AtLeast(-0.2)).note("20,000 mixes") });
            }
        }
        rows
    }
    fn sample(&self, seed: u64, inputs: &Inputs) -> Result<Sample, LabError> {
        let all = synthetic(if inputs.quick { 8 } else { 20 }, seed)?;
        let mut sample = Sample::default();
        for (_, o) in tasks(&all)? {
            let ours = solve(&all, EPOCHS, &o).map_err(told)?;
            sample.values.extend([Some(100.0 * ours.gap()), Some(f64::from(ours.programs))]);
            let grid = Grid::new(&all, &o, GRID_POINTS);
            let mut rng = Rng::new(seed, "search");
            let found = [
                grid.brute_force(EPOCHS_SEARCHED, &mut |n, _| n < BUDGET),
                grid.anneal(EPOCHS_SEARCHED, BUDGET, &mut rng, &mut |_, _| true),
                grid.random(EPOCHS_SEARCHED, BUDGET, &mut rng),
            ];
            // Judged by the distributions themselves, not by the grid.
            let worse =
                |f: Found| f.best.map(|(mix, _): (Mix, f64)| 100.0 * (mix.value(&all, &o.goal) / ours.value - 1.0));
            sample.values.extend(found.map(worse));
        }
        Ok(sample)
    }
}
