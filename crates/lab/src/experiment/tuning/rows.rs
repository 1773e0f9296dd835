//! Rows that several of the tuner's experiments share.

use super::{Profiled, figures, objective};
use crate::experiment::{Check, LabError, RowSpec, Sample};
use plimsoll_base::Span;
use plimsoll_figure::plot::{Curve, Plot, Scale, Shares};
use plimsoll_tune::adapter::Adapter;
use plimsoll_tune::cdf::Cdf;
use plimsoll_tune::solve::Mix;

const FIGURES: [&str; 4] = ["mean", "median", "p90", "p99"];
const GOALS: [(&str, &str); 4] = [("min mean", "mean"), ("min median", "p50"), ("min p90", "p90"), ("min p99", "p99")];

/// Beside figures of optima that can only be in one order.
pub(super) const IDENTITY: &str = "an optimum under fewer bounds, or over more choices, can't be worse: not judged";
/// Largest distance between predicted and achieved (Kolmogorov–Smirnov).
pub(super) const KS_MAX: Check = Check::AtMost(0.03);

/// The rows of Tables 5.1, A.1 and A.2.
pub(super) fn single_point(paper: [[f64; 4]; 4], unit: &'static str) -> Vec<RowSpec> {
    let mut rows = Vec::new();
    for ((goal, _), paper) in GOALS.iter().zip(paper) {
        for (figure, paper) in FIGURES.iter().zip(paper) {
            rows.push(RowSpec::new(format!("{goal}: {figure}, achieved"), unit).beside(paper));
        }
        rows.push(RowSpec::new(format!("{goal}: KS of predicted and achieved"), "1").goal(KS_MAX));
    }
    let trade = RowSpec::new("p99 of min median over p99 of min p99, achieved", "1");
    rows.push(trade.reproduces(paper[1][3] / paper[3][3]));
    rows
}

/// Trial of a choice: a fresh system, and the length and number of periods.
pub(super) struct Trial<'a> {
    pub fresh: &'a mut dyn FnMut() -> Result<Box<dyn Adapter>, LabError>,
    pub period: Span,
    pub periods: u32,
}

/// Fills [`single_point`]; times are shown divided by `per_unit`.
pub(super) fn fill_single_point(p: &Profiled, trial: Trial<'_>, per_unit: f64) -> Result<Sample, LabError> {
    let (mut sample, mut p99s, mut curves) = (Sample::default(), Vec::new(), Vec::new());
    for (name, goal) in GOALS {
        let s = p.solve(&objective(goal, &[]))?;
        let achieved = p.achieved((trial.fresh)()?.as_mut(), &s.mix, trial.period, trial.periods)?;
        let f = figures(&achieved);
        sample.values.extend(f.map(|v| Some(v / per_unit)));
        sample.values.push(Some(achieved.ks(&s.mix.cdf(&p.all))));
        p99s.push(f[3]);
        curves.push(curve(name, &achieved, per_unit));
        sample.notes.push(format!("{name}, in one seed: {}", shown(p, &s.mix)));
    }
    sample.values.push(Some(p99s[1] / p99s[3]));
    sample.plots.push(Plot::of_times("Single points, achieved", curves));
    Ok(sample)
}

/// The rows that [`two_bounds`] fills.
pub(super) fn two_bound_rows(system: &str, unit: &'static str) -> Vec<RowSpec> {
    vec![
        RowSpec::new(format!("{system}: p99 under a bound on the median"), unit),
        RowSpec::new(format!("{system}: p99 under bounds on median and p90"), unit),
        RowSpec::new(format!("{system}: median under a bound on the median"), unit),
        RowSpec::new(format!("{system}: median under both"), unit),
        RowSpec::new(format!("{system}: p99, both over one"), "1").note(IDENTITY),
        RowSpec::new(format!("{system}: what a mix gains, p99 under a bound on the median"), "%")
            .note(IDENTITY)
            .note("the paper's web server: 7.1 %"),
        RowSpec::new(format!("{system}: p99 under both, achieved over predicted"), "1").goal(Check::Within(0.9, 1.1)),
        RowSpec::new(format!("{system}: KS of predicted and achieved, under both"), "1").goal(KS_MAX),
    ]
}

/// Least p99 under a bound on the median, then also on p90 (OT-E7), the latter tried.
pub(super) fn two_bounds(p: &Profiled, trial: Trial<'_>, per_unit: f64) -> Result<Vec<Option<f64>>, LabError> {
    let median = between(p, 0.5, 0.7)?;
    let one = p.solve(&objective("p99", &[(0.5, median)]))?;
    let with_one = figures(&one.mix.cdf(&p.all));
    // Half way to the least p90 that the bound on the median leaves.
    let least = p.solve(&objective("p90", &[(0.5, median)]))?.value;
    let both = p.solve(&objective("p99", &[(0.5, median), (0.9, (least + with_one[2]) / 2.0)]))?;
    let with_both = figures(&both.mix.cdf(&p.all));
    let times = [with_one[3], with_both[3], with_one[1], with_both[1]].map(|t| Some(t / per_unit));
    // Over bounds as far apart as the paper's two, the most.
    let mut gain = 0.0f64;
    for part in [0.44, 0.7, 0.88] {
        let s = p.solve(&objective("p99", &[(0.5, between(p, 0.5, part)?)]))?;
        gain = gain.max(s.best_static.map_or(0.0, |b| 100.0 * (1.0 - s.value / b.1)));
    }
    let achieved = p.achieved((trial.fresh)()?.as_mut(), &both.mix, trial.period, trial.periods)?;
    let tried = [achieved.quantile(0.99) / with_both[3], achieved.ks(&both.mix.cdf(&p.all))];
    Ok([times.as_slice(), &[Some(with_both[3] / with_one[3]), Some(gain)], &tried.map(Some)].concat())
}

/// A bound on a percentile, so far from its least towards what the least p99 has.
pub(super) fn between(p: &Profiled, share: f64, part: f64) -> Result<f64, LabError> {
    let least = p.solve(&objective(&format!("p{}", share * 100.0), &[]))?.value;
    let with_least_tail = p.solve(&objective("p99", &[]))?.mix.cdf(&p.all).quantile(share);
    Ok(least + (with_least_tail - least) * part)
}

/// A mix for people.
pub(super) fn shown(p: &Profiled, mix: &Mix) -> String {
    let part = |&(i, w): &(usize, f64)| format!("{} for {:.0} %", p.space.shown(&p.all[i].setting), w * 100.0);
    mix.parts.iter().map(part).collect::<Vec<_>>().join(", ")
}

/// Percentiles of one distribution by those of another (Q-Q); alike, they lie on the diagonal. The vertical axis is a share of
/// the longer p99.
pub(super) fn quantiles(title: &str, (a_name, a): (&str, &Cdf), (b_name, b): (&str, &Cdf)) -> Plot {
    let reach = a.quantile(0.99).max(b.quantile(0.99));
    let point = |i: u32| (a.quantile(f64::from(i) / 100.0), b.quantile(f64::from(i) / 100.0) / reach);
    let points = (1..100).map(point).collect();
    let diagonal = Curve { name: "alike".into(), points: vec![(0.0, 0.0), (reach, 1.0)], is_reference: true };
    Plot {
        title: title.into(),
        x_label: format!("{a_name}: percentiles (ms)"),
        y_label: format!("{b_name}: percentiles (% of {reach:.0} ms)"),
        scale: Scale::Linear,
        shares: Shares::Linear,
        curves: vec![diagonal, Curve { name: format!("{b_name} by {a_name}"), points, is_reference: false }],
    }
}

/// A distribution's curve.
pub(super) fn curve(name: &str, cdf: &Cdf, per_unit: f64) -> Curve {
    let points = cdf.points().map(|(t, s)| (t / per_unit, s)).collect();
    Curve { name: name.into(), points, is_reference: false }.thinned()
}
