//! The solution, as a table, JSON and a plot.

use crate::table::table;
use indicatif::{ProgressBar, ProgressStyle};
use plimsoll_figure::plot::{Curve, Plot};
use plimsoll_tune::cdf::Cdf;
use plimsoll_tune::objective::{Goal, Objective, Point};
use plimsoll_tune::solve::{Candidate, Epochs, Mix, Solution, Unsolved};
use plimsoll_tune::space::Space;
use serde_json::{Value, json};
use std::io::IsTerminal;

/// Points that are always shown.
const SHOWN: [Point; 4] = [Point::Mean, Point::Share(0.5), Point::Share(0.9), Point::Share(0.99)];

/// Choices: parameters and their values.
pub struct Choice<'a> {
    /// The parameters.
    pub space: &'a Space,
    /// The settings with their distributions.
    pub candidates: &'a [Candidate],
    /// Epochs of the period.
    pub epochs: Epochs,
    /// Objective and bounds.
    pub objective: &'a Objective,
}

impl Choice<'_> {
    fn epochs_of(&self, share: f64) -> String {
        match self.epochs {
            Epochs::Count(n) => format!("{} of {n}", (share * f64::from(n)).round()),
            Epochs::Any => format!("{:.1} %", share * 100.0),
        }
    }

    fn figures(&self, cdf: &Cdf) -> Vec<String> {
        SHOWN.iter().map(|p| format!("{:.3}", p.of(cdf))).collect()
    }

    /// The mix, its parts, and the best single setting, as a table.
    pub fn table(&self, s: &Solution) -> String {
        let mut rows: Vec<Vec<String>> = Vec::new();
        let mut row = |what: String, epochs: String, cdf: &Cdf| {
            rows.push([vec![what, epochs], self.figures(cdf)].concat());
        };
        for &(i, share) in &s.mix.parts {
            row(self.space.shown(&self.candidates[i].setting), self.epochs_of(share), &self.candidates[i].cdf);
        }
        if s.mix.parts.len() > 1 {
            row("together".into(), String::new(), &s.mix.cdf(self.candidates));
        }
        if let Some((i, _)) = s.best_static
            && s.mix != Mix::only(i)
        {
            let name = format!("best alone: {}", self.space.shown(&self.candidates[i].setting));
            row(name, String::new(), &self.candidates[i].cdf);
        }
        table(&["SETTING", "EPOCHS", "MEAN ms", "P50 ms", "P90 ms", "P99 ms"], &rows)
    }

    /// One line: what is least, whether it's proven, what the mix gains.
    pub fn verdict(&self, s: &Solution) -> String {
        let (what, unit) = match &self.objective.goal {
            Goal::Target(_) => ("mean squared error".to_string(), "ms²"),
            goal => (goal.to_string(), "ms"),
        };
        let proof = match s.is_proven() {
            true => "proven: nothing is better by more than 0.1 %".to_string(),
            false if s.bound > 0.0 => {
                let above = 100.0 * (s.value / s.bound - 1.0);
                format!("not proven: it may be up to {above:.1} % above what can be had")
            }
            false => "not proven: no bound is known".to_string(),
        };
        let gain = s.best_static.map_or("; no single setting keeps the bounds".to_string(), |(_, alone)| {
            let gain = 100.0 * (1.0 - s.value / alone.max(f64::MIN_POSITIVE));
            if gain > 0.05 { format!("; {gain:.1} % below the best single setting") } else { String::new() }
        });
        format!("{what}: {:.3} {unit} ({proof}{gain})", s.value)
    }

    /// A solution for programs.
    pub fn json(&self, s: &Solution) -> Value {
        let part = |&(i, share): &(usize, f64)| {
            let setting: serde_json::Map<String, Value> =
                self.space.values(&self.candidates[i].setting).map(|(n, v)| (n.into(), v.into())).collect();
            json!({ "setting": setting, "share": share })
        };
        let cdf = s.mix.cdf(self.candidates);
        json!({
            "goal": self.objective.goal.to_string(),
            "bounds": self.objective.bounds.iter().map(ToString::to_string).collect::<Vec<_>>(),
            "value": s.value,
            "bound": s.bound,
            "proven": s.is_proven(),
            "parts": s.mix.parts.iter().map(part).collect::<Vec<_>>(),
            "predicted_ms": SHOWN.iter().map(|p| (p.to_string(), json!(p.of(&cdf)))).collect::<serde_json::Map<_, _>>(),
            "beyond_reach": self.beyond_reach(&s.mix),
            "best_alone": s.best_static.map(|(i, v)| json!({ "setting": self.space.shown(&self.candidates[i].setting), "value": v })),
        })
    }

    /// Target, predicted, and what else there is to compare.
    pub fn plot(&self, title: &str, mix: &Mix, more: &[(&str, &Cdf)]) -> Plot {
        let predicted = mix.cdf(self.candidates);
        self.compared(title, &[&[("predicted", &predicted)], more].concat())
    }

    /// The target, and distributions beside it.
    pub fn compared(&self, title: &str, all: &[(&str, &Cdf)]) -> Plot {
        let mut curves = Vec::new();
        if let Goal::Target(points) = &self.objective.goal {
            let points = points.iter().map(|&(s, t)| (t, s)).collect();
            curves.push(Curve { name: "target".into(), points, is_reference: true });
        }
        curves.extend(all.iter().map(|(name, cdf)| curve(name, cdf)));
        Plot::of_times(title, curves)
    }

    /// Percentiles that were asked for and lie where next to nothing was recorded.
    pub fn beyond_reach(&self, mix: &Mix) -> Vec<String> {
        let mut shares: Vec<f64> = match &self.objective.goal {
            Goal::Least(terms) => terms.iter().filter_map(|t| share(t.0)).collect(),
            Goal::Target(points) => points.iter().map(|p| p.0).rfind(|s| *s < 1.0).into_iter().collect(),
        };
        shares.extend(self.objective.bounds.iter().filter_map(|b| share(b.of)));
        shares.sort_by(f64::total_cmp);
        shares.dedup();
        let requests = mix.requests(self.candidates);
        let told = |s: f64| {
            let (point, needed) = (Point::Share(s), (BEYOND_MIN / (1.0 - s) - 1e-6).ceil());
            format!(
                "{point} is beyond the profile's reach: it rests on {requests:.0} requests, of which {:.1} took longer; record {needed} at least",
                (1.0 - s) * requests
            )
        };
        // A little less than asked is as good: 1 - 0.9 isn't quite a tenth.
        shares.into_iter().filter(|s| (1.0 - s) * requests < BEYOND_MIN * 0.999).map(told).collect()
    }

    /// Conflict of bounds, with the nearest mix that is possible.
    pub fn refusal(&self, e: &Unsolved) -> String {
        let Unsolved::Infeasible(why) = e else { return e.to_string() };
        let parts: Vec<String> = why
            .nearest
            .parts
            .iter()
            .map(|&(i, w)| format!("{} for {}", self.space.shown(&self.candidates[i].setting), self.epochs_of(w)))
            .collect();
        let cdf = why.nearest.cdf(self.candidates);
        let figures: Vec<String> = SHOWN.iter().map(|p| format!("{p} {:.3} ms", p.of(&cdf))).collect();
        format!("{e}\nnearest: {}: {}", parts.join(", "), figures.join(", "))
    }
}

/// Requests that must lie beyond a percentile for it to mean something.
const BEYOND_MIN: f64 = 10.0;

fn share(point: Point) -> Option<f64> {
    if let Point::Share(s) = point { Some(s) } else { None }
}

/// A distribution as a curve.
pub fn curve(name: &str, cdf: &Cdf) -> Curve {
    Curve { name: name.into(), points: cdf.points().collect(), is_reference: false }.thinned()
}

/// A bar on a terminal; nothing anywhere else.
pub fn bar(steps: u64, message: &str) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{msg} {wide_bar} {pos}/{len} {eta}").expect("a constant template");
    ProgressBar::new(steps).with_style(style).with_message(message.to_string())
}
