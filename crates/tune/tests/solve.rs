//! The solver against complete search, and on what it can't do.

use plimsoll_base::Rng;
use plimsoll_tune::cdf::Cdf;
use plimsoll_tune::objective::{Goal, Objective};
use plimsoll_tune::solve::baseline::Grid;
use plimsoll_tune::solve::{Candidate, Epochs, Mix, Settling, Unsolved, solve};
use plimsoll_tune::space::Setting;
use std::time::Instant;

/// Candidates that trade a low median against a low tail, as the web server's do.
fn candidates(n: usize, points: usize, seed: u64) -> Vec<Candidate> {
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

fn objective(goal: &str, bounds: &[&str]) -> Objective {
    Objective { goal: goal.parse().unwrap(), bounds: bounds.iter().map(|b| b.parse().unwrap()).collect() }
}

#[test]
fn nothing_is_better_by_complete_search() {
    for seed in 1..=6 {
        let c = candidates(9, 40, seed);
        for (goal, bounds) in [
            ("mean", &[][..]),
            ("p99", &[]),
            ("mean", &["p90 <= 60ms"]),
            ("p95", &["p50 <= 12ms"]),
            ("p50", &["p95 <= 120ms", "mean <= 30ms"]),
            ("2*p50 + 0.5*p90", &["p95 <= 200ms"]),
            ("mean + p90", &[]),
        ] {
            let o = objective(goal, bounds);
            let brute = Grid::new(&c, &o, usize::MAX).brute_force(4, &mut |_, _| true);
            match solve(&c, Epochs::Count(4), &o) {
                Ok(s) => {
                    let (mix, worth) = brute
                        .best
                        .unwrap_or_else(|| panic!("{seed} {goal} {bounds:?}: complete search finds nothing, we {s:?}"));
                    assert!(
                        (s.value - worth).abs() <= 1e-3 * worth,
                        "{seed} {goal} {bounds:?}: {} against {worth} by {mix:?}",
                        s.value
                    );
                    assert!(s.is_proven() && s.mix.keeps(&c, &o), "{seed} {goal} {bounds:?}: {s:?}");
                    let any = solve(&c, Epochs::Any, &o).unwrap();
                    assert!(any.value <= s.value * 1.0001, "any shares are at least as good as four epochs");
                }
                Err(Unsolved::Infeasible(_)) => assert_eq!(brute.best, None, "{seed} {goal} {bounds:?}"),
                Err(e) => panic!("{seed} {goal} {bounds:?}: {e}"),
            }
        }
    }
}

#[test]
fn a_target_is_met_as_closely_as_complete_search_meets_it() {
    for seed in 1..=4 {
        let c = candidates(8, 60, seed);
        // A CDF that three of the candidates make together, somewhat faster than they do.
        let made = Mix { parts: vec![(0, 0.25), (3, 0.5), (5, 0.25)] }.cdf(&c).scaled(0.9);
        let points = (1..=99).map(|p| (f64::from(p) / 100.0, made.quantile(f64::from(p) / 100.0))).collect();
        let o = Objective { goal: Goal::Target(points), bounds: Vec::new() };
        let brute = Grid::new(&c, &o, usize::MAX).brute_force(4, &mut |_, _| true).best.unwrap();
        let s = solve(&c, Epochs::Count(4), &o).unwrap();
        assert!(
            (s.value - brute.1).abs() <= 1e-3 * brute.1 && s.is_proven(),
            "{seed}: {} (bound {}) against {}, {:?} against {:?}",
            s.value,
            s.bound,
            brute.1,
            s.mix,
            brute.0
        );
        // Too many mixes to look at them all: what is found is as good, and the bound holds.
        let many = solve(&c, Epochs::Count(40), &o).unwrap();
        assert!(many.bound <= many.value && many.value <= brute.1 * (1.0 + 1e-9), "{seed}: {many:?}");
        println!("{seed}: {} ms², bound {}, complete search {}", s.value, s.bound, brute.1);
    }
}

#[test]
fn a_target_that_a_mix_makes_is_met_closely() {
    let c = candidates(40, 300, 9);
    let made = Mix { parts: vec![(4, 0.6), (17, 0.4)] };
    let cdf = made.cdf(&c);
    let points = (1..=100).map(|p| (f64::from(p) / 100.0, cdf.quantile(f64::from(p) / 100.0))).collect();
    let o = Objective { goal: Goal::Target(points), bounds: Vec::new() };
    let s = solve(&c, Epochs::Count(5), &o).unwrap();
    let (_, alone) = s.best_static.unwrap();
    println!("{} ms² against {alone} ms² by {:?}, made of {made:?}", s.value, s.mix);
    assert!(s.value < 0.1 * alone, "{} against {alone} with one configuration", s.value);
}

#[test]
fn what_binds_is_told_with_the_nearest() {
    let c = candidates(30, 200, 3);
    let (p50, p99) = (
        solve(&c, Epochs::Count(5), &objective("p50", &[])).unwrap(),
        solve(&c, Epochs::Count(5), &objective("p99", &[])).unwrap(),
    );
    // Each can be had alone, not both.
    let bounds =
        [format!("p50 <= {}ms", p50.value * 1.01), format!("p99 <= {}ms", p99.value * 1.01), "p90 <= 100s".into()];
    let bounds: Vec<&str> = bounds.iter().map(String::as_str).collect();
    let o = objective("mean", &bounds);
    let Err(Unsolved::Infeasible(e)) = solve(&c, Epochs::Count(5), &o) else { panic!("it is infeasible") };
    assert_eq!(e.conflict, o.bounds[..2], "{e}");
    assert!((e.alone_ms[0].1 - p50.value).abs() < 1e-9 && (e.alone_ms[1].1 - p99.value).abs() < 1e-9);
    let eased = |by: f64| {
        let bounds =
            o.bounds.iter().map(|b| plimsoll_tune::objective::Bound { at_most_ms: b.at_most_ms * by, ..*b }).collect();
        Objective { goal: o.goal.clone(), bounds }
    };
    assert!(e.nearest.keeps(&c, &eased(e.stretch)));
    assert!(solve(&c, Epochs::Count(5), &eased(e.stretch / 1.01)).is_err(), "and with a hundredth less it isn't");
}

#[test]
fn a_mix_whose_switching_eats_its_gain_is_not_chosen() {
    let mut c = candidates(20, 300, 5);
    let o = objective("p99", &["p50 <= 6ms"]);
    let free = solve(&c, Epochs::Count(5), &o).unwrap();
    let (only, alone) = free.best_static.expect("one of them keeps the bound");
    assert!(free.mix.parts.len() > 1 && free.value < alone, "a mix gains: {free:?}");
    let settle = |c: &mut Vec<Candidate>, share: f64| {
        for one in c.iter_mut() {
            one.settling = Some(Settling { cdf: one.cdf.scaled(20.0), share });
        }
    };
    settle(&mut c, 0.0001);
    let cheap = solve(&c, Epochs::Count(5), &o).unwrap();
    assert!(cheap.mix.parts.len() > 1 && cheap.value < alone, "a small cost is worth it: {cheap:?}");
    settle(&mut c, 0.15);
    let dear = solve(&c, Epochs::Count(5), &o).unwrap();
    assert_eq!((dear.mix, dear.value), (Mix::only(only), alone));
}

/// 400 configurations, as OpTune's Table A.3 has. The debug profile is optimised little, so the bound is four times the
/// second that the release build is held to.
#[test]
fn four_hundred_configurations_take_no_time() {
    let c = candidates(400, 2_000, 7);
    for epochs in [Epochs::Count(5), Epochs::Count(10), Epochs::Count(300), Epochs::Any] {
        for (goal, bounds) in
            [("mean", &[][..]), ("p50", &[]), ("p99", &["p50 <= 10ms"]), ("p99", &["p50 <= 5ms", "p90 <= 60ms"])]
        {
            let o = objective(goal, bounds);
            let started = Instant::now();
            let s = solve(&c, epochs, &o).unwrap();
            let took = started.elapsed();
            println!(
                "{goal} {bounds:?} {epochs:?}: {:.3} ms, {} parts, {} programs, {took:?}",
                s.value,
                s.mix.parts.len(),
                s.programs
            );
            assert!(s.is_proven(), "{goal}: {s:?}");
            assert!(took.as_secs_f64() < 4.0, "{goal} {bounds:?} {epochs:?} took {took:?}");
        }
        let made = Mix { parts: vec![(0, 0.25), (3, 0.5), (5, 0.25)] }.cdf(&c).scaled(0.9);
        let points = (1..=100).map(|p| (f64::from(p) / 100.0, made.quantile(f64::from(p) / 100.0))).collect();
        let o = Objective { goal: Goal::Target(points), bounds: Vec::new() };
        let started = Instant::now();
        let s = solve(&c, epochs, &o).unwrap();
        println!(
            "target {epochs:?}: {:.3} ms², bound {:.3}, static {:?} {} parts, {} programs, {:?}",
            s.value,
            s.bound,
            s.best_static,
            s.mix.parts.len(),
            s.programs,
            started.elapsed()
        );
    }
}
