//! Measures the solver's time: the 400 configurations of OpTune's Table A.3, and Appendix A.3.3's synthetic system, which
//! complete search can't do. `make tune-large`.

use plimsoll_base::Rng;
use plimsoll_tune::cdf::Cdf;
use plimsoll_tune::compose::Composer;
use plimsoll_tune::graph::{ServiceGraph, WrittenGraph};
use plimsoll_tune::objective::{Goal, Objective};
use plimsoll_tune::predict::{How, candidates};
use plimsoll_tune::profile::{Observation, Profile};
use plimsoll_tune::solve::{Candidate, Epochs, Mix, solve};
use plimsoll_tune::space::{Parameter, Setting, Space};
use std::time::Instant;

fn main() {
    four_hundred();
    six_parameters();
}

fn objective(goal: &str, bounds: &[&str]) -> Objective {
    Objective { goal: goal.parse().unwrap(), bounds: bounds.iter().map(|b| b.parse().unwrap()).collect() }
}

/// Candidates that trade a low median against a low tail, as the web server's do.
fn web_like(n: usize, points: usize, seed: u64) -> Vec<Candidate> {
    let mut rng = Rng::new(seed, "candidates");
    let one = |i: usize, rng: &mut Rng| {
        let (hits, scale) = (0.1 + 0.8 * rng.unit(), 8.0 + 4.0 * rng.unit());
        let miss = |rng: &mut Rng| (rng.normal() * (0.3 + 1.2 * hits)).exp() * scale;
        let draw = |rng: &mut Rng| if rng.chance(hits) { 0.1 + 0.1 * rng.unit() } else { miss(rng) };
        let samples: Vec<f64> = (0..points).map(|_| draw(rng)).collect();
        Candidate::new(Setting(vec![i as u16]), Cdf::of_samples(&samples).unwrap())
    };
    (0..n).map(|i| one(i, &mut rng)).collect()
}

fn four_hundred() {
    for seed in 1..=5 {
        let c = web_like(400, 2_000, seed);
        let made = Mix { parts: vec![(0, 0.25), (3, 0.5), (5, 0.25)] }.cdf(&c).scaled(0.9);
        let points = (1..=100).map(|p| (f64::from(p) / 100.0, made.quantile(f64::from(p) / 100.0))).collect();
        let target = Objective { goal: Goal::Target(points), bounds: Vec::new() };
        let tasks = [
            objective("mean", &[]),
            objective("p50", &[]),
            objective("p99", &["p50 <= 10ms"]),
            objective("p99", &["p50 <= 5ms", "p90 <= 60ms"]),
            objective("2*p50 + 0.5*p99", &[]),
            target,
        ];
        for o in &tasks {
            for epochs in [Epochs::Count(5), Epochs::Count(10), Epochs::Count(300), Epochs::Any] {
                let started = Instant::now();
                let s = solve(&c, epochs, o).unwrap();
                let (took, gap) = (started.elapsed(), 100.0 * s.gap());
                let alone = s.best_static.map_or(f64::NAN, |b| b.1);
                let bounds: Vec<String> = o.bounds.iter().map(ToString::to_string).collect();
                println!(
                    "400, seed {seed}, {} {bounds:?} {epochs:?}: {:.3} (alone {alone:.3}), gap {gap:.2} %, {} programs, {took:.1?}",
                    o.goal, s.value, s.programs
                );
            }
        }
    }
}

/// Six parameters of six values each: 46,656 configurations of a sequence of six components, of 5,000 points each.
fn six_parameters() {
    let names: Vec<String> = (0..6).map(|i| format!("c{i}")).collect();
    let text = format!("root = 'r'\ncomponents = {names:?}\n[node]\nr = {{ sequence = {names:?} }}");
    let graph = ServiceGraph::new(&toml::from_str::<WrittenGraph>(&text).unwrap()).unwrap();
    let parameter = |n: &String| Parameter {
        name: n.clone(),
        values: (0..6).map(|v| v.to_string()).collect(),
        moves: vec![n.clone()],
    };
    let space = Space::new(names.iter().map(parameter).collect()).unwrap();
    let mut rng = Rng::new(21, "six");
    let mut profile = Profile::new();
    for (i, name) in names.iter().enumerate() {
        for v in 0..6u16 {
            let mut setting = vec![0; 6];
            setting[i] = v;
            // Higher values: faster half of the time, a longer tail.
            let spread = 0.3 + 0.25 * f64::from(v);
            for request in 0..5_000 {
                let value = (rng.normal() * spread).exp() * (4.0 - 0.5 * f64::from(v)).max(0.5);
                profile.add(name, &Setting(setting.clone()), Observation { request, value, weight: 1.0 });
            }
        }
    }
    let started = Instant::now();
    let composer = Composer::new(&graph, &space, &profile).unwrap();
    let c = candidates(&composer, &space, How::Convolved, &|_| {});
    let composed = started.elapsed();
    println!("{} configurations composed in {composed:?}", c.len());
    for (goal, bounds) in
        [("mean", &[][..]), ("p99", &[]), ("p99", &["p50 <= 22ms"]), ("p99", &["p50 <= 22ms", "p90 <= 31ms"])]
    {
        let started = Instant::now();
        match solve(&c, Epochs::Count(10), &objective(goal, bounds)) {
            Ok(s) => {
                println!(
                    "{goal} {bounds:?}: {:.3} ms, {} parts, proven {}, {:?}",
                    s.value,
                    s.mix.parts.len(),
                    s.is_proven(),
                    started.elapsed()
                );
                assert!(s.is_proven());
            }
            Err(e) => println!("{goal} {bounds:?}: {e}, {:?}", started.elapsed()),
        }
        assert!((composed + started.elapsed()).as_secs_f64() < 30.0, "more than half a minute");
    }
}
