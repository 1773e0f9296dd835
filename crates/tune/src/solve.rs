//! Finds a mix of configurations, and the number of epochs for each (OT-M6, OT-M8).
//!
//! Configurations that share a period mix their CDFs linearly (equation 5.3). So "at least 99 % are done within t" is linear in
//! each one's epochs, although the percentile isn't. A percentile is least at the smallest t for which a linear program has a
//! solution. Bisection over the times that occur finds that t. The program of the time before has no solution, which proves it
//! ([`least`]). A target CDF's mean squared error is bounded from below by a convex function ([`target`]). OpTune's complete
//! search and simulated annealing are in [`baseline`], to compare with.

pub mod baseline;
pub mod explain;
pub mod least;
mod program;
pub mod target;

use crate::cdf::Cdf;
use crate::objective::{Bound, Goal, Objective, Point};
use crate::space::Setting;
use std::fmt;

pub use explain::Explanation;

/// A configuration that may be chosen.
#[derive(Clone, PartialEq, Debug)]
pub struct Candidate {
    /// Setting.
    pub setting: Setting,
    /// The distribution that it gives once it has settled.
    pub cdf: Cdf,
    /// Its mean, exact where the CDF is thinned.
    pub mean_ms: f64,
    /// Number of recorded requests that it rests on; infinite: it's exact.
    pub requests: f64,
    /// Distribution right after a switch to it.
    pub settling: Option<Settling>,
}

impl Candidate {
    /// One that gives `cdf` at once.
    pub fn new(setting: Setting, cdf: Cdf) -> Candidate {
        let mean_ms = cdf.mean_ms();
        Candidate { setting, cdf, mean_ms, requests: f64::INFINITY, settling: None }
    }

    fn figure(&self, of: Point) -> f64 {
        if of == Point::Mean { self.mean_ms } else { of.of(&self.cdf) }
    }

    /// True if the candidate keeps all bounds on its own.
    fn keeps(&self, bounds: &[Bound]) -> bool {
        bounds.iter().all(|b| self.figure(b.of) <= b.at_most_ms)
    }
}

/// Cost of a switch (OT-A5): caches and queues carry over from the configuration before.
#[derive(Clone, PartialEq, Debug)]
pub struct Settling {
    /// The distribution of what completes meanwhile.
    pub cdf: Cdf,
    /// Length, as a share of the whole period's time: epochs are weighted by their time, whatever they serve (equation 5.3).
    pub share: f64,
}

/// Into how many parts a period can be cut.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Epochs {
    /// This many epochs, each with one configuration.
    Count(u32),
    /// Any shares at all: the limit of many epochs.
    Any,
}

/// Shares of a period.
#[derive(Clone, PartialEq, Debug)]
pub struct Mix {
    /// Candidates by index, each with its share of the period; ascending, shares positive and summing to 1.
    pub parts: Vec<(usize, f64)>,
}

impl Mix {
    /// One configuration for the whole period.
    pub fn only(candidate: usize) -> Mix {
        Mix { parts: vec![(candidate, 1.0)] }
    }

    /// The distribution over a period, what a switch costs included.
    pub fn cdf(&self, candidates: &[Candidate]) -> Cdf {
        let switches = self.parts.len() > 1;
        let mut parts: Vec<(f64, &Cdf)> = Vec::new();
        for &(i, share) in &self.parts {
            match &candidates[i].settling {
                Some(s) if switches => {
                    parts.extend([(share - s.share.min(share), &candidates[i].cdf), (s.share.min(share), &s.cdf)])
                }
                _ => parts.push((share, &candidates[i].cdf)),
            }
        }
        Cdf::mix(&parts)
    }

    /// Returns the number of recorded requests that the mix's distribution rests on: the number that would leave it as
    /// uncertain as its parts do.
    pub fn requests(&self, candidates: &[Candidate]) -> f64 {
        1.0 / self.parts.iter().map(|&(i, share)| share * share / candidates[i].requests).sum::<f64>()
    }

    /// The exact mean over a period.
    pub fn mean_ms(&self, candidates: &[Candidate]) -> f64 {
        let switches = self.parts.len() > 1;
        let mean = |&(i, share): &(usize, f64)| {
            let c = &candidates[i];
            let settling = c.settling.as_ref().filter(|_| switches);
            share * c.mean_ms + settling.map_or(0.0, |s| s.share.min(share) * (s.cdf.mean_ms() - c.mean_ms))
        };
        self.parts.iter().map(mean).sum()
    }

    /// Returns the value under a goal: less is better.
    pub fn value(&self, candidates: &[Candidate], goal: &Goal) -> f64 {
        let cdf = self.cdf(candidates);
        match goal {
            Goal::Least(terms) => {
                let figure = |p: Point| if p == Point::Mean { self.mean_ms(candidates) } else { p.of(&cdf) };
                terms.iter().map(|&(p, w)| w * figure(p)).sum()
            }
            Goal::Target(points) => target::mean_squared_error(&cdf, points),
        }
    }

    /// True if the mix keeps all bounds.
    pub fn keeps(&self, candidates: &[Candidate], objective: &Objective) -> bool {
        let cdf = self.cdf(candidates);
        objective.bounds.iter().all(|b| match b.of {
            Point::Mean => self.mean_ms(candidates) <= b.at_most_ms * (1.0 + 1e-6),
            Point::Share(s) => cdf.quantile(s) <= b.at_most_ms,
        })
    }
}

/// Result of the search.
#[derive(Clone, PartialEq, Debug)]
pub struct Solution {
    /// The shares.
    pub mix: Mix,
    /// Its worth: milliseconds, or squared milliseconds for a target.
    pub value: f64,
    /// Nothing is better than this.
    pub bound: f64,
    /// Linear and integer programs solved for it.
    pub programs: u32,
    /// The best single configuration that keeps the bounds, and its worth.
    pub best_static: Option<(usize, f64)>,
}

/// Worths this close to the bound count as it.
pub const GAP_PROVEN: f64 = 1e-3;

impl Solution {
    /// Returns the largest possible distance above the proven bound, as a share of the value.
    pub fn gap(&self) -> f64 {
        if self.value <= 0.0 { 0.0 } else { ((self.value - self.bound) / self.value).max(0.0) }
    }

    /// True if no solution is better by more than [`GAP_PROVEN`].
    pub fn is_proven(&self) -> bool {
        self.gap() <= GAP_PROVEN
    }
}

/// Reason why there is no solution.
#[derive(Clone, PartialEq, Debug)]
pub enum Unsolved {
    /// No mix keeps the bounds.
    Infeasible(Box<Explanation>),
    /// The solver gave up.
    Gave(String),
    /// Nothing to choose from, or no epoch.
    Empty(&'static str),
}

impl fmt::Display for Unsolved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unsolved::Infeasible(e) => write!(f, "no mix of configurations keeps all bounds: {e}"),
            Unsolved::Gave(what) => write!(f, "the solver gave up: {what}"),
            Unsolved::Empty(what) => f.write_str(what),
        }
    }
}
impl std::error::Error for Unsolved {}

/// Solves exactly.
///
/// # Errors
/// If the bounds can't be kept (with what can), or the solver fails on the numbers.
pub fn solve(candidates: &[Candidate], epochs: Epochs, objective: &Objective) -> Result<Solution, Unsolved> {
    check(candidates, epochs)?;
    let found = match &objective.goal {
        Goal::Least(terms) => least::solve(candidates, epochs, objective, terms)?,
        Goal::Target(points) => target::solve(candidates, epochs, objective, points)?,
    };
    match found {
        Some(s) => Ok(s),
        None => Err(Unsolved::Infeasible(Box::new(explain::explain(candidates, epochs, objective)?))),
    }
}

pub(crate) fn check(candidates: &[Candidate], epochs: Epochs) -> Result<(), Unsolved> {
    if candidates.is_empty() {
        return Err(Unsolved::Empty("there are no configurations to choose from"));
    }
    if epochs == Epochs::Count(0) || matches!(epochs, Epochs::Count(n) if n > EPOCHS_MAX) {
        return Err(Unsolved::Empty("a period has 1 to 100000 epochs"));
    }
    Ok(())
}

/// Epochs a period may have.
pub const EPOCHS_MAX: u32 = 100_000;

/// The best single configuration that keeps the bounds.
pub fn best_static(candidates: &[Candidate], objective: &Objective) -> Option<(usize, f64)> {
    let worth = |c: &Candidate| match &objective.goal {
        Goal::Least(terms) => terms.iter().map(|&(p, w)| w * c.figure(p)).sum::<f64>(),
        Goal::Target(points) => target::mean_squared_error(&c.cdf, points),
    };
    let kept = candidates.iter().enumerate().filter(|(_, c)| c.keeps(&objective.bounds));
    kept.map(|(i, c)| (i, worth(c))).min_by(|a, b| a.1.total_cmp(&b.1))
}
