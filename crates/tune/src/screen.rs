//! Finds by few runs which node each parameter affects (OpTune §5.2.4 leaves this to future work).
//!
//! Every parameter is tried at its first and last value only, all at once, in the runs of a Plackett–Burman design. Each run
//! gives every node's figures, and each parameter's effect on each figure rests on all runs. An effect is tested against the
//! spread that the other parameters' main effects leave (Student's t). A node's figures share its threshold (Bonferroni). Over
//! all pairs of parameter and node the rate of false discoveries is controlled (Benjamini and Hochberg). An effect must also be
//! large enough to matter ([`ScreenConfig::effect_min`]).
//!
//! Limits: effects that cancel between the first and the last value are not found. As in every such design, an interaction of
//! two parameters shows as a third of a main effect of others.

use crate::adapter::Run;
use crate::graph::{Kind, ServiceGraph};
use crate::profile::{outcomes, times};
use crate::space::{Setting, Space};
use crate::stats::student_two_sided;

/// First rows of Plackett and Burman's designs (1946) of 12, 20 and 24 runs.
const ROWS: [&str; 3] = ["++-+++---+-", "++--++++-+-+----++-", "+++++-+-++--++--+-+----"];
/// Degrees of freedom that must be left for the spread.
const FREE_MIN: usize = 4;

/// Confidence that is required.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct ScreenConfig {
    /// Share of the found pairs that may be false.
    pub false_discoveries: f64,
    /// An effect below this doesn't matter: a relative change of a time, or a change of a probability.
    pub effect_min: f64,
}

impl Default for ScreenConfig {
    fn default() -> ScreenConfig {
        ScreenConfig { false_discoveries: 0.05, effect_min: 0.05 }
    }
}

/// One pair.
#[derive(Clone, PartialEq, Debug)]
pub struct Effect {
    /// The parameter.
    pub parameter: String,
    /// The node.
    pub node: String,
    /// The largest change of the node's figures from the first to the last value: relative for times.
    pub size: f64,
    /// Probability that chance alone has an effect of at least this size.
    pub p: f64,
    /// True if it is one.
    pub moves: bool,
}

/// The settings to run, in order.
///
/// Parameters of one value stay out of it: there is nothing to see of them.
///
/// # Errors
/// If there are more parameters than a design has room for, or none with two values.
pub fn design(space: &Space) -> Result<Vec<Setting>, String> {
    let tried = tried(space);
    let m = tried.len();
    if m == 0 {
        return Err("no parameter has two values to try: there is nothing to screen".into());
    }
    let row = ROWS.iter().find(|r| r.len() >= m + FREE_MIN);
    let row =
        row.ok_or_else(|| format!("{m} parameters are more than the {} that can be screened at once", 23 - FREE_MIN))?;
    let n = row.len();
    let signs: Vec<bool> = row.chars().map(|c| c == '+').collect();
    let high = |run: usize, p: usize| run < n && signs[(p + n - run) % n];
    let level = |run: usize, p: usize| {
        let column = tried.iter().position(|&t| t == p);
        let last = space.parameters()[p].values.len() as u16 - 1;
        if column.is_some_and(|c| high(run, c)) { last } else { 0 }
    };
    let all = space.parameters().len();
    Ok((0..=n).map(|run| Setting((0..all).map(|p| level(run, p)).collect())).collect())
}

/// Parameters that have two values at least.
fn tried(space: &Space) -> Vec<usize> {
    (0..space.parameters().len()).filter(|&p| space.parameters()[p].values.len() > 1).collect()
}

/// Tests the runs of a [`design`].
///
/// # Errors
/// If a run lacks a node, or has strange values.
pub fn screen(
    space: &Space,
    graph: &ServiceGraph,
    settings: &[Setting],
    runs: &[Run],
    config: &ScreenConfig,
) -> Result<Vec<Effect>, String> {
    assert_eq!(settings.len(), runs.len(), "a run for each setting");
    let mut effects = Vec::new();
    let tried = tried(space);
    for id in graph.measured() {
        let name = &graph.nodes()[id].name;
        let figures: Vec<Vec<f64>> =
            runs.iter().enumerate().map(|(n, r)| figures(graph, id, n, r)).collect::<Result<_, _>>()?;
        let longest = figures.iter().map(Vec::len).max().unwrap_or(0);
        for &p in &tried {
            let parameter = &space.parameters()[p];
            let (mut least_p, mut size) = (1.0f64, 0.0f64);
            for f in 0..longest {
                let column: Vec<f64> = figures.iter().map(|v| v.get(f).copied().unwrap_or(0.0)).collect();
                let (effect, chance) = effect(settings, &column, p, &tried);
                least_p = least_p.min(chance * longest as f64);
                size = size.max(if graph.nodes()[id].kind == Kind::Component {
                    effect.abs().exp_m1()
                } else {
                    effect.abs()
                });
            }
            effects.push(Effect {
                parameter: parameter.name.clone(),
                node: name.clone(),
                size,
                p: least_p.min(1.0),
                moves: false,
            });
        }
    }
    let limit = benjamini_hochberg(effects.iter().map(|e| e.p).collect(), config.false_discoveries);
    effects.iter_mut().for_each(|e| e.moves = e.p <= limit && e.size >= config.effect_min);
    Ok(effects)
}

/// The largest probability that is still found, if no more than `rate` of the found ones are to be false.
fn benjamini_hochberg(mut p: Vec<f64>, rate: f64) -> f64 {
    p.sort_by(f64::total_cmp);
    let n = p.len() as f64;
    let kept = p.iter().enumerate().filter(|(i, p)| **p <= rate * (*i + 1) as f64 / n).map(|k| *k.1);
    kept.fold(-1.0, f64::max)
}

/// A run's figures of a node: logarithms of mean, median, p90 and p99 of a time; the share of each outcome, and their mean.
fn figures(graph: &ServiceGraph, id: usize, n: usize, run: &Run) -> Result<Vec<f64>, String> {
    let node = &graph.nodes()[id];
    let told = |e: crate::profile::Missing| format!("run {}: {e}", n + 1);
    let observed = run.get(&node.name).filter(|o| !o.is_empty());
    let observed = observed.ok_or_else(|| format!("run {} measured nothing of `{}`", n + 1, node.name))?;
    if node.kind == Kind::Component {
        let cdf = times(&node.name, observed).map_err(told)?;
        let log = |t: f64| t.max(1e-6).ln();
        return Ok(vec![log(cdf.mean_ms()), log(cdf.quantile(0.5)), log(cdf.quantile(0.9)), log(cdf.quantile(0.99))]);
    }
    let shares = outcomes(&node.name, observed, crate::graph::COUNT_MAX).map_err(told)?;
    match node.kind {
        Kind::Condition(..) => Ok(shares),
        _ => Ok(vec![shares.iter().enumerate().map(|(i, s)| i as f64 * s).sum()]),
    }
}

/// Computes a parameter's effect from low to high, and the probability that chance has an effect of that size, in the model of
/// main effects.
fn effect(settings: &[Setting], y: &[f64], parameter: usize, tried: &[usize]) -> (f64, f64) {
    let n = y.len() as f64;
    let sign = |s: &Setting, p: usize| if s.0[p] > 0 { 1.0 } else { -1.0 };
    let mean = y.iter().sum::<f64>() / n;
    // The design is orthogonal: each coefficient is a mean of signed values.
    let coefficient = |p: usize| settings.iter().zip(y).map(|(s, y)| sign(s, p) * y).sum::<f64>() / n;
    let coefficients: Vec<(usize, f64)> = tried.iter().map(|&p| (p, coefficient(p))).collect();
    let fitted = |s: &Setting| mean + coefficients.iter().map(|&(p, c)| c * sign(s, p)).sum::<f64>();
    let rest: f64 = settings.iter().zip(y).map(|(s, y)| (y - fitted(s)).powi(2)).sum();
    let free = n - 1.0 - tried.len() as f64;
    let own = coefficient(parameter);
    // What has no spread at all is exact: then the least change counts.
    let deviation = (rest / free / n).sqrt().max(1e-9);
    (2.0 * own, student_two_sided(own / deviation, free))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::WrittenGraph;
    use crate::profile::Observation;
    use crate::space::Parameter;
    use plimsoll_base::Rng;
    use std::collections::BTreeMap;

    fn space(n: usize) -> Space {
        let p = |i: usize| Parameter { name: format!("p{i}"), values: vec!["a".into(), "b".into()], moves: vec![] };
        Space::new((0..n).map(p).collect()).unwrap()
    }

    fn graph() -> ServiceGraph {
        let text = "root = 'r'\ncomponents = ['x', 'y', 'z']\n[node]\nr = { condition = ['x', 'q'] }\nq = { sequence = ['y', 'z'] }";
        ServiceGraph::new(&toml::from_str::<WrittenGraph>(text).unwrap()).unwrap()
    }

    #[test]
    fn a_parameter_of_one_value_stays_out() {
        let one = Parameter { name: "fixed".into(), values: vec!["a".into()], moves: vec![] };
        let with = Space::new([vec![one.clone()], space(4).parameters().to_vec()].concat()).unwrap();
        let (settings, without) = (design(&with).unwrap(), design(&space(4)).unwrap());
        let rest = |s: &Setting| Setting(s.0[1..].to_vec());
        assert!(settings.iter().zip(&without).all(|(a, b)| a.0[0] == 0 && rest(a) == *b));
        let runs = runs(&without, 0.3, 1);
        let found = |space: &Space, settings: &[Setting]| {
            screen(space, &graph(), settings, &runs, &ScreenConfig::default()).unwrap()
        };
        assert_eq!(found(&with, &settings), found(&space(4), &without));
        assert!(design(&Space::new(vec![one]).unwrap()).unwrap_err().contains("nothing to screen"));
    }

    #[test]
    fn designs_are_balanced_and_orthogonal() {
        for m in [1, 7, 12, 19] {
            let settings = design(&space(m)).unwrap();
            let sign = |s: &Setting, p: usize| if s.0[p] > 0 { 1i32 } else { -1 };
            for p in 0..m {
                assert_eq!(settings.iter().map(|s| sign(s, p)).sum::<i32>(), 0, "{m}: column {p}");
                for q in 0..p {
                    assert_eq!(settings.iter().map(|s| sign(s, p) * sign(s, q)).sum::<i32>(), 0, "{m}: {p} and {q}");
                }
            }
        }
        assert!(design(&space(20)).is_err());
    }

    /// p0 slows y by `strength`, p1 moves the condition; run-to-run noise of 3 %.
    fn runs(settings: &[Setting], strength: f64, seed: u64) -> Vec<Run> {
        let mut rng = Rng::new(seed, "runs");
        let mut run = |s: &Setting| {
            let (a, b) = (s.0[0] > 0, s.0[1] > 0 && strength > 0.0);
            let slow = (1.0 + 0.03 * rng.normal()) * if a { 1.0 + strength } else { 1.0 };
            let mut r: Run = BTreeMap::new();
            for request in 0..1_500 {
                let mut add = |node: &str, value: f64| {
                    r.entry(node.into()).or_default().push(Observation { request, value, weight: 1.0 });
                };
                add("x", rng.exp1());
                add("y", rng.exp1() * slow);
                add("z", rng.exp1());
                add("r", f64::from(u8::from(rng.chance(if b { 0.4 } else { 0.6 }))));
            }
            r
        };
        settings.iter().map(&mut run).collect()
    }

    #[test]
    fn what_moves_is_found_and_what_does_not_is_not() {
        let (space, graph) = (space(4), graph());
        let settings = design(&space).unwrap();
        let (mut found, mut missed, mut false_finds) = (0, 0, 0);
        for seed in 1..=20 {
            let effects =
                screen(&space, &graph, &settings, &runs(&settings, 0.3, seed), &ScreenConfig::default()).unwrap();
            for e in effects {
                let is_true = (e.parameter == "p0" && e.node == "y") || (e.parameter == "p1" && e.node == "r");
                match (is_true, e.moves) {
                    (true, true) => found += 1,
                    (true, false) => missed += 1,
                    (false, true) => false_finds += 1,
                    (false, false) => {}
                }
            }
        }
        assert!(missed <= 2 && false_finds <= 4, "{found} found, {missed} missed, {false_finds} false");
        // Without any effect nothing is found in nearly all screens.
        let none =
            |seed| screen(&space, &graph, &settings, &runs(&settings, 0.0, seed), &ScreenConfig::default()).unwrap();
        let alarms = (1..=40).filter(|&s| none(s).iter().any(|e| e.moves)).count();
        assert!(alarms <= 5, "{alarms} of 40 screens of nothing found something");
    }
}
