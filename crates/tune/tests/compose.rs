//! Sampling and convolution agree, on every pattern and on what is known in closed form.

use plimsoll_base::Rng;
use plimsoll_tune::cdf::{Cdf, ks_critical};
use plimsoll_tune::compose::Composer;
use plimsoll_tune::compose::convolve::{BINS_COARSE, BINS_FINE};
use plimsoll_tune::graph::{ServiceGraph, WrittenGraph};
use plimsoll_tune::profile::{Observation, Profile};
use plimsoll_tune::space::{Parameter, Setting, Space};
use proptest::prelude::*;

const DRAWS: usize = 40_000;

fn graph(node: &str) -> ServiceGraph {
    let text = format!("root = 'r'\ncomponents = ['a', 'b', 'c']\n[node]\n{node}\n");
    ServiceGraph::new(&toml::from_str::<WrittenGraph>(&text).unwrap()).unwrap()
}

/// Three components: short and steady, long-tailed over four orders of magnitude, and one that is moved.
fn profile(space: &Space) -> Profile {
    let mut rng = Rng::new(11, "profile");
    let mut profile = Profile::new();
    for setting in space.settings() {
        for request in 0..3_000 {
            let mut add = |node, value| profile.add(node, &setting, Observation { request, value, weight: 1.0 });
            add("a", 0.05 + 0.01 * rng.unit());
            add("b", (rng.normal() * 1.5).exp() * 2.0);
            add("c", rng.exp1() * (1.0 + f64::from(setting.0[0])));
        }
    }
    profile
}

fn space() -> Space {
    let p = Parameter { name: "p".into(), values: vec!["0".into(), "1".into()], moves: vec!["c".into()] };
    Space::new(vec![p]).unwrap()
}

/// KS of the two ways at the worse setting, times being equal up to a step of the grid.
fn disagreement(node: &str, bins: usize) -> f64 {
    let (graph, space) = (graph(node), space());
    let composer = Composer::new(&graph, &space, &profile(&space)).unwrap();
    let mut convolver = composer.convolved(bins).unwrap();
    let mut rng = Rng::new(12, node);
    let mut worst = 0.0f64;
    for s in space.settings() {
        let (ours, drawn) = (convolver.cdf(&s), composer.sampled(&s, DRAWS, &mut rng));
        for &t in ours.values_ms().iter().chain(drawn.values_ms()) {
            let step = 1.01 * convolver.step_ms(t);
            let (low, high) = (drawn.at(t - step), drawn.at(t + step));
            worst = worst.max(low - ours.at(t)).max(ours.at(t) - high);
        }
    }
    worst
}

/// Returns the distance that chance alone exceeds once in ten thousand.
fn allowed() -> f64 {
    ks_critical(1e-4, DRAWS as f64, 1e9)
}

#[test]
fn every_pattern_agrees() {
    for node in [
        "r = { sequence = ['a', 'b', 'c'] }",
        "r = { condition = ['a', 'b', 'c'], probabilities = [0.5, 0.2, 0.3] }",
        "r = { parallel = ['b', 'c'] }",
        "r = { parallel = ['c'], counts = [0.1, 0.2, 0.0, 0.7] }",
        "r = { loop = 'b', counts = [0.1, 0.3, 0.3, 0.2, 0.1] }",
        "r = { sequence = ['a', 's', 'l'] }\ns = { condition = ['a', 'q'], probabilities = [0.6, 0.4] }\n\
         q = { parallel = ['b', 'k'] }\nk = { loop = 'c', counts = [0.5, 0.25, 0.25] }\nl = { loop = 'k', counts = [0.0, 0.5, 0.5] }",
    ] {
        for bins in [BINS_FINE, BINS_COARSE] {
            let ks = disagreement(node, bins);
            assert!(ks < allowed(), "{node}: KS {ks:.4} with {bins} bins, allowed {:.4}", allowed());
        }
    }
}

#[test]
fn a_sequence_of_a_constant_shifts_and_means_add() {
    let space = Space::default();
    let mut p = Profile::new();
    for request in 0..1_000 {
        let mut add = |node, value| p.add(node, &Setting(vec![]), Observation { request, value, weight: 1.0 });
        add("a", 5.0);
        add("b", request as f64 / 100.0);
        add("c", 0.0);
    }
    let g = graph("r = { sequence = ['a', 'b', 'c'] }");
    let composer = Composer::new(&g, &space, &p).unwrap();
    let cdf = composer.convolved(BINS_FINE).unwrap().cdf(&Setting(vec![]));
    assert!((cdf.mean_ms() - (5.0 + 4.995)).abs() < 0.01, "{}", cdf.mean_ms());
    assert!((cdf.quantile(0.5) - 10.0).abs() < 0.02, "{}", cdf.quantile(0.5));
    assert!((cdf.quantile(0.999) - 14.98).abs() < 0.02, "{}", cdf.quantile(0.999));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, rng_seed: proptest::test_runner::RngSeed::Fixed(7), failure_persistence: None, ..ProptestConfig::default() })]

    /// Two components of a few values each: the convolution can be written out.
    #[test]
    fn a_sequence_is_the_double_sum(a in prop::collection::vec(0u8..20, 1..6), b in prop::collection::vec(0u8..20, 1..6)) {
        let space = Space::default();
        let mut p = Profile::new();
        for i in 0..200 {
            let mut add = |node, v: &[u8]| p.add(node, &Setting(vec![]), Observation { request: i, value: f64::from(v[i as usize % v.len()]), weight: 1.0 });
            add("a", &a);
            add("b", &b);
            add("c", &[0]);
        }
        let g = graph("r = { sequence = ['a', 'b'] }");
        let composer = Composer::new(&g, &space, &p).unwrap();
        let ours = composer.convolved(BINS_FINE).unwrap().cdf(&Setting(vec![]));
        let (ca, cb) = (
            Cdf::of_samples(&(0..200).map(|i| f64::from(a[i % a.len()])).collect::<Vec<_>>()).unwrap(),
            Cdf::of_samples(&(0..200).map(|i| f64::from(b[i % b.len()])).collect::<Vec<_>>()).unwrap(),
        );
        // Between the whole numbers, where a step of the grid doesn't matter.
        for t in 0..40 {
            let t = f64::from(t) + 0.5;
            let exact: f64 = ca.masses().flat_map(|(x, m)| cb.masses().map(move |(y, n)| if x + y <= t { m * n } else { 0.0 })).sum();
            prop_assert!((ours.at(t) - exact).abs() < 1e-6, "at {}: {} against {}", t, ours.at(t), exact);
        }
    }
}
