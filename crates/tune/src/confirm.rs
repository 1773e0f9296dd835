//! A second choice, after the chosen settings have been measured again.
//!
//! The best of many measurements is partly luck. The more settings there are, and the less exact the measurement is, the further the choice
//! lies behind its prediction. So a choice is measured again, independently of the reasons for it. The new measurement replaces the
//! prediction, and the choice is made again, until all of its settings were measured again.

use crate::adapter::AdapterError;
use crate::cdf::Cdf;
use crate::objective::Objective;
use crate::solve::{Candidate, Epochs, Solution, Unsolved, solve};
use crate::space::Setting;
use std::collections::BTreeSet;
use std::fmt;

/// Reason why there is no confirmed choice.
#[derive(Clone, PartialEq, Debug)]
pub enum Unconfirmed {
    /// Nothing keeps the bounds, by what is known by now.
    Unsolved(Unsolved),
    /// The choice couldn't be measured.
    Measuring(AdapterError),
}

impl fmt::Display for Unconfirmed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unconfirmed::Unsolved(e) => e.fmt(f),
            Unconfirmed::Measuring(e) => e.fmt(f),
        }
    }
}
impl std::error::Error for Unconfirmed {}

/// Solves, with `repeats` new measurements of each candidate that is chosen. `measure` gives the distribution of whole requests
/// under a setting. The number of candidates measured anew comes with the solution; their distributions in `all` are the new ones.
///
/// # Errors
/// The solver's, and `measure`'s.
pub fn confirmed(
    all: &mut [Candidate],
    epochs: Epochs,
    objective: &Objective,
    repeats: u32,
    measure: &mut dyn FnMut(&Setting) -> Result<Cdf, AdapterError>,
) -> Result<(Solution, usize), Unconfirmed> {
    assert!(repeats > 0, "nothing would be measured");
    let mut known: BTreeSet<usize> = BTreeSet::new();
    loop {
        let solution = solve(all, epochs, objective).map_err(Unconfirmed::Unsolved)?;
        // Each round measures one more candidate at least: it ends.
        let new: Vec<usize> = solution.mix.parts.iter().map(|p| p.0).filter(|i| !known.contains(i)).collect();
        if new.is_empty() {
            return Ok((solution, known.len()));
        }
        for i in new {
            let runs = (0..repeats).map(|_| measure(&all[i].setting));
            let runs = runs.collect::<Result<Vec<_>, _>>().map_err(Unconfirmed::Measuring)?;
            let share = 1.0 / f64::from(repeats);
            let cdf = Cdf::mix(&runs.iter().map(|c| (share, c)).collect::<Vec<_>>());
            // As many requests as before, at least: each run lasts as long as the one that was profiled.
            let (settling, requests) = (all[i].settling.take(), all[i].requests);
            all[i] = Candidate { settling, requests, ..Candidate::new(all[i].setting.clone(), cdf) };
            known.insert(i);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_base::Rng;

    /// Twenty settings that are all the same, each measurement off by 15 % as a whole.
    #[test]
    fn luck_is_not_taken_for_merit() {
        let truth = Cdf::of_samples(&(1..=200).map(f64::from).collect::<Vec<_>>()).unwrap();
        let o = Objective { goal: "p99".parse().unwrap(), bounds: Vec::new() };
        let (mut plain, mut sure, mut anew) = (0, 0, 0);
        for seed in 0..100 {
            let mut rng = Rng::new(seed, "noise");
            let mut measured = || truth.scaled((1.0 + 0.15 * rng.normal()).max(0.2));
            let mut all: Vec<Candidate> = (0..20).map(|i| Candidate::new(Setting(vec![i]), measured())).collect();
            let is_worse = |predicted: f64| truth.quantile(0.99) >= 1.3 * predicted;
            plain += i32::from(is_worse(solve(&all, Epochs::Count(5), &o).unwrap().value));
            let (s, n) = confirmed(&mut all, Epochs::Count(5), &o, 3, &mut |_| Ok(measured())).unwrap();
            sure += i32::from(is_worse(s.value));
            anew += n;
        }
        assert!(plain > 30 && sure <= 5, "{plain} of 100 were 30 % worse than predicted, {sure} when confirmed");
        assert!(anew < 100 * 12, "{anew} measured anew");
    }

    #[test]
    fn what_cannot_be_measured_is_told() {
        let cdf = Cdf::of_samples(&[1.0, 2.0]).unwrap();
        let o = Objective { goal: "mean".parse().unwrap(), bounds: Vec::new() };
        let mut all = vec![Candidate::new(Setting(vec![0]), cdf)];
        let e = confirmed(&mut all, Epochs::Any, &o, 1, &mut |_| Err(AdapterError("it broke".into()))).unwrap_err();
        assert_eq!(e.to_string(), "it broke");
    }
}
