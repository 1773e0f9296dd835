//! OT-E1 to OT-E8: the web server.

use super::rows::{
    IDENTITY, KS_MAX, Trial, between, curve, fill_single_point, quantiles, shown, single_point, two_bound_rows,
    two_bounds,
};
use super::{EPOCHS, Profiled, jobs, objective, profiled_by, told, tried_for, whole, work};
use crate::experiment::{Check, Experiment, Inputs, LabError, RowSpec, Sample};
use crate::system::web::{EXPONENTS, IDLE_MS, WebConfig, WebServer, graph, space};
use plimsoll_base::{Rng, Span};
use plimsoll_figure::plot::Plot;
use plimsoll_tune::adapter::Adapter;
use plimsoll_tune::cdf::Cdf;
use plimsoll_tune::compose::Composer;
use plimsoll_tune::confirm::confirmed;
use plimsoll_tune::objective::{Goal, Objective};
use plimsoll_tune::predict::{How, candidates};
use plimsoll_tune::profile::{Observation, Profile, times};
use plimsoll_tune::solve::{Candidate, best_static, solve};
use plimsoll_tune::space::Setting;

const NOTE: &str = "Zipf 0.9, a tail of index 1.2 and a median of 60 KB as in the paper; 60,000 files, 32 MiB of cache and a request every \
                    27 ms are ours: the disk is then about as busy as in the paper, and 41 % hit with Size = |f|";
const PERIOD: Span = Span::from_secs(600);
/// The gap between requests at low, normal and high load.
const GAPS_MS: [u64; 3] = [54, 27, 22];

pub(super) fn config(seed: u64) -> WebConfig {
    WebConfig { seed, ..WebConfig::default() }
}

pub(super) fn server(config: WebConfig) -> Result<WebServer, LabError> {
    WebServer::new(config, space(&IDLE_MS, &EXPONENTS))
}

fn lengths(inputs: &Inputs) -> (Span, Span) {
    let (warm, time) = inputs.length((1_200, 3_600), (300, 600), (60, 120));
    (Span::from_secs(warm), Span::from_secs(time))
}

/// Returns the service under one setting, by the indices of its values, after a warm-up.
pub(super) fn under(
    idle: usize,
    exponent: usize,
    config: WebConfig,
    inputs: &Inputs,
) -> Result<(Cdf, WebServer), LabError> {
    let (warm, time) = lengths(inputs);
    let mut s = server(config)?;
    s.apply(&Setting(vec![idle as u16, exponent as u16])).map_err(told)?;
    s.serve(warm);
    let run = s.serve(time);
    Ok((whole(&graph(), &run)?, s))
}

/// A server of its own for each setting, warm for an hour: what the cache holds of the setting before lasts longer than a run.
fn profile(seed: u64, inputs: &Inputs) -> Result<Profiled, LabError> {
    profile_of(&config(seed), inputs)
}

fn profile_of(config: &WebConfig, inputs: &Inputs) -> Result<Profiled, LabError> {
    let time = lengths(inputs).1;
    profiled_by(graph(), space(&IDLE_MS, &EXPONENTS), &mut |setting| {
        let mut s = server(config.clone())?;
        s.apply(setting).map_err(told)?;
        s.serve(time);
        Ok(s.serve(time))
    })
}

/// The same files and disk, another stream of requests.
fn fresh(seed: u64) -> Result<Box<dyn Adapter>, LabError> {
    fresh_of(config(seed))
}

fn fresh_of(config: WebConfig) -> Result<Box<dyn Adapter>, LabError> {
    Ok(Box::new(server(WebConfig { stream: 2, ..config })?))
}

fn periods(inputs: &Inputs) -> u32 {
    if inputs.quick { 1 } else { 6 }
}

macro_rules! web_experiment {
    ($name:ident, $id:literal, $title:literal, $source:literal, $rows:expr, $sample:expr) => {
        #[doc = $id]
        pub struct $name;
        impl Experiment for $name {
            fn id(&self) -> &'static str {
                $id
            }
            fn title(&self) -> &'static str {
                $title
            }
            fn source(&self) -> &'static str {
                $source
            }
            fn device(&self) -> &'static str {
                "hdd-160g-7200"
            }
            fn notes(&self) -> Vec<String> {
                vec![NOTE.into()]
            }
            fn rows(&self, _inputs: &Inputs) -> Vec<RowSpec> {
                $rows
            }
            fn sample(&self, seed: u64, inputs: &Inputs) -> Result<Sample, LabError> {
                $sample(seed, inputs)
            }
        }
    };
}

web_experiment!(
    SizeExponents,
    "OT-E1",
    "Web server: what Size(f) does",
    "OpTune Fig. 5.1, 5.8",
    exponent_rows(),
    exponents
);

const PRIORITY: &str =
    "lowering the caching priority of larger objects helps most of the requests and hurts the tail (Fig. 5.8)";

fn exponent_rows() -> Vec<RowSpec> {
    let hit = |(e, hit): (&f64, f64)| {
        let row = RowSpec::new(format!("hit ratio, Size = |f|^{e}"), "%");
        if *e == 1.0 { row.beside(hit).given(Check::Within(hit * 0.8, hit * 1.2)) } else { row.reproduces(hit) }
    };
    let mut rows: Vec<RowSpec> = EXPONENTS.iter().zip([18.0, 24.0, 41.0, 44.0]).map(hit).collect();
    rows.push(RowSpec::new("hit ratio, |f|^2 less |f|^0.1", "%").reproduces(26.0));
    rows.push(RowSpec::new("p99, |f|^2 over |f|^0.1", "1").paper_says(Check::AtLeast(1.0), PRIORITY));
    rows.push(RowSpec::new("median, |f|^0.1 over |f|^2", "1").paper_says(Check::AtLeast(1.0), PRIORITY));
    rows.push(
        RowSpec::new("percentiles that are a tenth as long, or less, with |f|^2 as with |f|^0.1", "1")
            .reproduces(30.0)
            .note("where misses become hits; the paper: “differences in CDFs from ~15-45%”, taken as the 15th to the 45th percentile"),
    );
    rows
}

fn exponents(seed: u64, inputs: &Inputs) -> Result<Sample, LabError> {
    let (mut hits, mut cdfs) = (Vec::new(), Vec::new());
    for e in 0..EXPONENTS.len() {
        let (cdf, s) = under(2, e, config(seed), inputs)?;
        hits.push(100.0 * s.hit_ratio());
        cdfs.push(cdf);
    }
    let p = |i: usize, s: f64| cdfs[i].quantile(s);
    let mut values = hits.clone();
    let helped = (1..100).map(|i| f64::from(i) / 100.0).filter(|&s| p(3, s) <= p(0, s) / 10.0).count();
    values.extend([hits[3] - hits[0], p(3, 0.99) / p(0, 0.99), p(0, 0.5) / p(3, 0.5), helped as f64]);
    let curves = EXPONENTS.iter().zip(&cdfs).map(|(e, c)| curve(&format!("|f|^{e}"), c, 1.0)).collect();
    let plots = vec![Plot::of_times("Web server, idle_time 8 ms", curves)];
    Ok(Sample { values: values.into_iter().map(Some).collect(), plots, notes: Vec::new() })
}

fn at_gap(gap_ms: u64, seed: u64, inputs: &Inputs) -> Result<Vec<Cdf>, LabError> {
    let config = || WebConfig { mean_gap: Span::from_millis(gap_ms), ..config(seed) };
    (0..IDLE_MS.len()).map(|i| Ok(under(i, 2, config(), inputs)?.0)).collect()
}

fn idle_plot(title: &str, cdfs: &[Cdf]) -> Plot {
    let curves = IDLE_MS.iter().zip(cdfs).map(|(i, c)| curve(&format!("idle_time {i} ms"), c, 1.0)).collect();
    Plot::of_times(title, curves)
}

web_experiment!(
    IdleTimes,
    "OT-E2",
    "Web server: what CFQ's idle_time does",
    "OpTune Fig. 5.9",
    idle_rows(),
    idle_times
);

fn idle_rows() -> Vec<RowSpec> {
    let all = IDLE_MS
        .iter()
        .flat_map(|i| ["p75", "p90", "p99"].map(|f| RowSpec::new(format!("{f}, idle_time {i} ms"), "ms")));
    let mut rows: Vec<RowSpec> = all.collect();
    let less = |name: &str| {
        RowSpec::new(name, "1")
            .paper_says(Check::AtLeast(1.0), "Fig 5.9: idle_time trades p50 to p90 against p95 and above")
    };
    rows.push(less("p75, idle 0 over the best of the others").note("idling helps between p50 and p90"));
    rows.push(less("p99, idle 24 over idle 0").note("and costs beyond p95"));
    rows
}

fn idle_times(seed: u64, inputs: &Inputs) -> Result<Sample, LabError> {
    let cdfs = at_gap(GAPS_MS[1], seed, inputs)?;
    let mut values: Vec<f64> = cdfs.iter().flat_map(|c| [0.75, 0.9, 0.99].map(|s| c.quantile(s))).collect();
    let best = cdfs[1..].iter().map(|c| c.quantile(0.75)).fold(f64::INFINITY, f64::min);
    values.extend([cdfs[0].quantile(0.75) / best, cdfs[4].quantile(0.99) / cdfs[0].quantile(0.99)]);
    let plots = vec![idle_plot("Web server, Size = |f|", &cdfs)];
    Ok(Sample { values: values.into_iter().map(Some).collect(), plots, notes: Vec::new() })
}

web_experiment!(
    Independence,
    "OT-E3",
    "Web server: is what is declared independent so?",
    "OpTune Fig. 5.10",
    apart_rows(),
    apart
);

fn apart_rows() -> Vec<RowSpec> {
    let ks = |name: &str| RowSpec::new(format!("{name}: KS"), "1");
    vec![
        ks("C2, idle 0 against 24 ms, |f|").goal(KS_MAX),
        ks("C2, idle 0 against 24 ms, |f|^0.1").goal(KS_MAX),
        ks("C3, |f| against |f|^0.1, idle 0")
            .goal(Check::AtMost(0.1))
            .note("small enough to be neglected, says the paper"),
        ks("C3, |f| against |f|^0.1, idle 24 ms").goal(Check::AtMost(0.1)),
        RowSpec::new("C3's p99, |f| over |f|^0.1, idle 24 ms", "1").note("the paper: the tail is affected somewhat"),
    ]
}

fn apart(seed: u64, inputs: &Inputs) -> Result<Sample, LabError> {
    let (warm, time) = lengths(inputs);
    let of = |idle: u16, exponent: u16, node: &str| -> Result<Cdf, LabError> {
        let mut s = server(config(seed))?;
        s.apply(&Setting(vec![idle, exponent])).map_err(told)?;
        s.serve(warm);
        times(node, &s.serve(time)[node]).map_err(told)
    };
    let mut sample = Sample::default();
    for exponent in [2, 0] {
        sample.values.push(Some(of(0, exponent, "cache")?.ks(&of(4, exponent, "cache")?)));
    }
    let mut tails = 0.0;
    for idle in [0, 4] {
        let (a, b) = (of(idle, 2, "disk")?, of(idle, 0, "disk")?);
        sample.values.push(Some(a.ks(&b)));
        tails = a.quantile(0.99) / b.quantile(0.99);
        let title = format!("File reads, idle_time {} ms", IDLE_MS[usize::from(idle)]);
        sample.plots.push(Plot::of_times(&title, vec![curve("|f|", &a, 1.0), curve("|f|^0.1", &b, 1.0)]));
        sample.plots.push(quantiles(&format!("{title}: Q-Q"), ("|f|", &a), ("|f|^0.1", &b)));
    }
    sample.values.push(Some(tails));
    Ok(sample)
}

web_experiment!(FullTarget, "OT-E4", "Web server: a whole target CDF", "OpTune Fig. 5.11", target_rows(), target);

fn target_rows() -> Vec<RowSpec> {
    vec![
        RowSpec::new("root mean squared error of 100 points, predicted", "ms"),
        RowSpec::new("the same of the best single setting", "ms"),
        RowSpec::new("the mix over the single setting", "1").note(IDENTITY),
        RowSpec::new("KS of predicted and achieved", "1").goal(KS_MAX),
        RowSpec::new("proven to be within this of the least squared error", "%").note("0: proven"),
    ]
}

fn target(seed: u64, inputs: &Inputs) -> Result<Sample, LabError> {
    let p = profile(seed, inputs)?;
    // The paper's target isn't printed. Ours lies between what is best at either end, a twentieth faster.
    let (median, tail) = (p.solve(&objective("p50", &[]))?.mix, p.solve(&objective("p99", &[]))?.mix);
    let made = Cdf::mix(&[(0.5, &median.cdf(&p.all)), (0.5, &tail.cdf(&p.all))]).scaled(0.95);
    let points = (1..=100).map(|i| f64::from(i) / 100.0).map(|s| (s, made.quantile(s))).collect();
    let o = Objective { goal: Goal::Target(points), bounds: Vec::new() };
    let s = p.solve(&o)?;
    let achieved = p.achieved(fresh(seed)?.as_mut(), &s.mix, tried_for(PERIOD, inputs), periods(inputs))?;
    let predicted = s.mix.cdf(&p.all);
    let alone = best_static(&p.all, &o).map_or(f64::NAN, |b| b.1);
    let mut wanted = curve("target", &made, 1.0);
    wanted.is_reference = true;
    let curves = vec![wanted, curve("predicted", &predicted, 1.0), curve("achieved", &achieved, 1.0)];
    let values = [s.value.sqrt(), alone.sqrt(), (s.value / alone).sqrt(), achieved.ks(&predicted), 100.0 * s.gap()];
    let plots = vec![Plot::of_times("Target, predicted and achieved", curves)];
    Ok(Sample { values: values.map(Some).to_vec(), plots, notes: vec![shown(&p, &s.mix)] })
}

/// Average, median, p90 and p99 of Table 5.1's rows, in milliseconds.
const TABLE_5_1: [[f64; 4]; 4] =
    [[12.1, 10.4, 24.2, 102.2], [22.4, 0.1, 49.6, 281.3], [13.4, 3.2, 19.5, 143.7], [13.9, 11.3, 30.1, 46.0]];

web_experiment!(
    SinglePoint,
    "OT-E5",
    "Web server: one point at a time",
    "OpTune Table 5.1",
    single_point(TABLE_5_1, "ms"),
    single
);

fn single(seed: u64, inputs: &Inputs) -> Result<Sample, LabError> {
    let trial = Trial { fresh: &mut || fresh(seed), period: tried_for(PERIOD, inputs), periods: periods(inputs) };
    fill_single_point(&profile(seed, inputs)?, trial, 1.0)
}

web_experiment!(
    Bounded,
    "OT-E6",
    "Web server: a point under a bound on another",
    "OpTune Fig. 5.12b, c",
    bounded_rows(),
    bounded
);

pub(super) fn bounded_rows() -> Vec<RowSpec> {
    vec![
        RowSpec::new("p99 without a bound, predicted", "ms"),
        RowSpec::new("p99 under the looser bound on the median, predicted", "ms").beside(89.2),
        RowSpec::new("the same of the best single setting", "ms").beside(96.0),
        RowSpec::new("what the mix gains", "%").reproduces(7.1),
        RowSpec::new("p99 under the tighter bound, predicted", "ms"),
        RowSpec::new("p99, tighter over looser", "1").note(IDENTITY),
        RowSpec::new("median achieved over its looser bound", "1").goal(Check::AtMost(1.05)),
        RowSpec::new("p99 achieved over predicted, looser bound", "1").goal(Check::Within(0.9, 1.1)),
        RowSpec::new("KS of predicted and achieved, looser bound", "1").goal(KS_MAX),
        RowSpec::new("median under a bound on p99, predicted", "ms"),
        RowSpec::new("configurations in the mix, looser bound", "1").reproduces(3.0),
    ]
}

fn bounded(seed: u64, inputs: &Inputs) -> Result<Sample, LabError> {
    bounded_of(&config(seed), inputs)
}

/// The rows of OT-E6 for a web server.
pub(super) fn bounded_of(config: &WebConfig, inputs: &Inputs) -> Result<Sample, LabError> {
    let p = profile_of(config, inputs)?;
    // The paper's 10 and 5 ms lie 88 % and 44 % of the way between its least median and that of its least p99.
    let (loose_ms, tight_ms) = (between(&p, 0.5, 0.88)?, between(&p, 0.5, 0.44)?);
    let free = p.solve(&objective("p99", &[]))?;
    let loose = p.solve(&objective("p99", &[(0.5, loose_ms)]))?;
    let tight = p.solve(&objective("p99", &[(0.5, tight_ms)]))?;
    let alone = loose.best_static.map_or(f64::NAN, |b| b.1);
    let back = p.solve(&objective("p50", &[(0.99, (free.value + tight.value) / 2.0)]))?;
    let mut system = fresh_of(config.clone())?;
    let achieved = p.achieved(system.as_mut(), &loose.mix, tried_for(PERIOD, inputs), periods(inputs))?;
    let predicted = loose.mix.cdf(&p.all);
    let values = [
        free.value,
        loose.value,
        alone,
        100.0 * (1.0 - loose.value / alone),
        tight.value,
        tight.value / loose.value,
        achieved.quantile(0.5) / loose_ms,
        achieved.quantile(0.99) / loose.value,
        achieved.ks(&predicted),
        back.value,
        loose.mix.parts.len() as f64,
    ];
    let curves = vec![
        curve("looser, predicted", &predicted, 1.0),
        curve("looser, achieved", &achieved, 1.0),
        curve("tighter, predicted", &tight.mix.cdf(&p.all), 1.0),
    ];
    let plots = vec![Plot::of_times("Least p99 under bounds on the median", curves)];
    let notes = vec![format!("one seed, median at most {loose_ms:.3} ms: {}", shown(&p, &loose.mix))];
    Ok(Sample { values: values.map(Some).to_vec(), plots, notes })
}

web_experiment!(
    TwoBounds,
    "OT-E7",
    "Least p99 under two bounds, three systems",
    "OpTune Fig. 5.13",
    three_rows(),
    three
);

fn three_rows() -> Vec<RowSpec> {
    [two_bound_rows("web", "ms"), two_bound_rows("file system", "ms"), two_bound_rows("MapReduce", "s")].concat()
}

fn three(seed: u64, inputs: &Inputs) -> Result<Sample, LabError> {
    let web = Trial { fresh: &mut || fresh(seed), period: tried_for(PERIOD, inputs), periods: periods(inputs) };
    let mut values = two_bounds(&profile(seed, inputs)?, web, 1.0)?;
    let few = if inputs.quick { 1 } else { 3 };
    let mut emulator = || Ok(Box::new(work::emulator(seed, 1)?) as Box<dyn Adapter>);
    let files = Trial { fresh: &mut emulator, period: tried_for(work::FS_PERIOD, inputs), periods: few };
    values.extend(two_bounds(&work::fs_profile(seed, inputs)?, files, 1.0)?);
    let mut cluster = || Ok(Box::new(jobs::to_try(seed, inputs)?) as Box<dyn Adapter>);
    let tried = Trial { fresh: &mut cluster, period: jobs::PERIOD, periods: jobs::periods(inputs) };
    values.extend(two_bounds(&jobs::mr_profile(seed, inputs, None)?, tried, 1e3)?);
    Ok(Sample { values, ..Sample::default() })
}

web_experiment!(Load, "OT-E8", "Web server: idle_time by load", "OpTune Fig. 5.14", load_rows(), load);

fn load_rows() -> Vec<RowSpec> {
    let spread = |load: &str| RowSpec::new(format!("largest over smallest p99 of the idle times, {load} load"), "1");
    let stronger = RowSpec::new("high over low", "1")
        .paper_says(Check::AtLeast(1.0), "Fig 5.14: a higher load has the stronger trade");
    vec![spread("low"), spread("normal"), spread("high"), stronger]
}

fn load(seed: u64, inputs: &Inputs) -> Result<Sample, LabError> {
    let mut sample = Sample::default();
    let mut spreads = Vec::new();
    for (gap, name) in GAPS_MS.into_iter().zip(["low", "normal", "high"]) {
        let cdfs = at_gap(gap, seed, inputs)?;
        let p99 = || cdfs.iter().map(|c| c.quantile(0.99));
        spreads.push(p99().fold(0.0, f64::max) / p99().fold(f64::INFINITY, f64::min));
        sample.plots.push(idle_plot(&format!("Web server, {name} load: a request every {gap} ms"), &cdfs));
    }
    sample.values = spreads.iter().map(|&s| Some(s)).collect();
    sample.values.push(Some(spreads[2] / spreads[0]));
    Ok(sample)
}

web_experiment!(Noise, "OT-NOISE", "Chosen from noisy profiles", "no paper's figure: ours alone", noise_rows(), noise);

fn noise_rows() -> Vec<RowSpec> {
    let row =
        |n: u32, of: &str| RowSpec::new(format!("30 % or more worse than predicted, {n} % noise of each {of}"), "%");
    let times = [5, 10, 15].map(|n| row(n, "recorded time").goal(Check::AtMost(5.0)));
    let whole = [5, 10, 15].map(|n| row(n, "setting as a whole").note("the choice then picks the luckiest of twenty"));
    let sure = [5, 10, 15].map(|n| {
        let row = row(n, "setting as a whole, what is chosen being measured three times anew");
        row.goal(Check::AtMost(5.0))
    });
    [times.to_vec(), whole.to_vec(), sure.to_vec()].concat()
}

/// Noise on what is recorded, a normal factor; what is chosen is judged by the true distributions.
fn noise(seed: u64, inputs: &Inputs) -> Result<Sample, LabError> {
    let p = profile(seed, inputs)?;
    let mut rng = Rng::new(seed, "measurement noise");
    let rounds = if inputs.quick { 5 } else { 20 };
    let mut values = Vec::new();
    for (is_whole, is_sure) in [(false, false), (true, false), (true, true)] {
        for noise in [0.05, 0.10, 0.15] {
            let (mut bad, mut all) = (0, 0);
            for _ in 0..rounds {
                let noisy =
                    if is_whole { noisy_settings(&p, noise, &mut rng) } else { noisy_times(&p, noise, &mut rng)? };
                for goal in ["mean", "p50", "p90", "p99"] {
                    let o = objective(goal, &[]);
                    let s = if is_sure {
                        let truth = |s: &Setting| &p.all.iter().find(|c| c.setting == *s).expect("one of them").cdf;
                        let mut anew = |s: &Setting| Ok(truth(s).scaled((1.0 + noise * rng.normal()).max(0.2)));
                        confirmed(&mut noisy.clone(), EPOCHS, &o, REPEATS, &mut anew).map_err(told)?.0
                    } else {
                        solve(&noisy, EPOCHS, &o).map_err(told)?
                    };
                    all += 1;
                    bad += u32::from(s.mix.value(&p.all, &o.goal) >= 1.3 * s.value);
                }
            }
            values.push(Some(100.0 * f64::from(bad) / f64::from(all)));
        }
    }
    Ok(Sample { values, ..Sample::default() })
}

/// Times that what is chosen is measured anew.
const REPEATS: u32 = 3;

fn noisy_settings(p: &Profiled, noise: f64, rng: &mut Rng) -> Vec<Candidate> {
    let mut measured = |c: &Candidate| {
        let factor = (1.0 + noise * rng.normal()).max(0.2);
        Candidate { cdf: c.cdf.scaled(factor), mean_ms: c.mean_ms * factor, ..c.clone() }
    };
    p.all.iter().map(&mut measured).collect()
}

fn noisy_times(p: &Profiled, noise: f64, rng: &mut Rng) -> Result<Vec<Candidate>, LabError> {
    let mut profile = Profile::new();
    for (node, setting, observations) in p.profile.iter() {
        // Which branch was taken is counted, not timed.
        let of_times = node != "get";
        for o in observations {
            let factor = if of_times { (1.0 + noise * rng.normal()).max(0.05) } else { 1.0 };
            profile.add(node, setting, Observation { value: o.value * factor, ..*o });
        }
    }
    let composer = Composer::new(&p.graph, &p.space, &profile).map_err(told)?;
    Ok(candidates(&composer, &p.space, How::Convolved, &|_| {}))
}
