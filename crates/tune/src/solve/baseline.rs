//! Methods to compare with: OpTune's complete search and simulated annealing (OT-M8, Appendix A.3), and random search.
//!
//! All three compare mixes by their distributions, epoch by epoch, and don't use that mixing is linear.

use super::{Candidate, Mix};
use crate::cdf::Cdf;
use crate::objective::{Goal, Objective, Point};
use crate::solve::target::mean_squared_error;
use plimsoll_base::Rng;

/// The CDFs on one grid of times, so that a mix is a sum of rows.
pub struct Grid<'a> {
    candidates: &'a [Candidate],
    objective: &'a Objective,
    times_ms: Vec<f64>,
    shares: Vec<Vec<f64>>,
}

/// Result of a search.
#[derive(Clone, PartialEq, Debug)]
pub struct Found {
    /// The best mix that keeps the bounds; `None` if none was met.
    pub best: Option<(Mix, f64)>,
    /// Number of mixes examined.
    pub looked_at: u64,
    /// True if every mix was examined.
    pub is_complete: bool,
}

/// Progress report of a search: the mixes examined and the best value; the callee returns `false` to end the search.
pub type Watch<'a> = &'a mut dyn FnMut(u64, Option<f64>) -> bool;

/// Mixes between two reports.
const REPORT_EVERY: u64 = 1_024;

impl<'a> Grid<'a> {
    /// A grid of at most `points` times.
    pub fn new(candidates: &'a [Candidate], objective: &'a Objective, points: usize) -> Grid<'a> {
        let mut times: Vec<f64> = candidates.iter().flat_map(|c| c.cdf.values_ms().iter().copied()).collect();
        times.sort_by(f64::total_cmp);
        times.dedup();
        let step = times.len().div_ceil(points.max(2)).max(1);
        let last = *times.last().expect("distributions have values");
        let mut times_ms: Vec<f64> = times.into_iter().step_by(step).collect();
        times_ms.extend(objective.bounds.iter().map(|b| b.at_most_ms));
        times_ms.push(last);
        times_ms.sort_by(f64::total_cmp);
        times_ms.dedup();
        let shares = candidates.iter().map(|c| times_ms.iter().map(|&t| c.cdf.at(t)).collect()).collect();
        Grid { candidates, objective, times_ms, shares }
    }

    /// True if the grid evaluates mixes exactly. False if it has fewer times than the CDFs, or if switching costs something.
    pub fn is_exact(&self) -> bool {
        let is_there = |t: &f64| self.times_ms.binary_search_by(|x| x.total_cmp(t)).is_ok();
        self.candidates.iter().all(|c| c.settling.is_none() && c.cdf.values_ms().iter().all(is_there))
    }

    /// The worth of epochs of these candidates, and by how much bounds are missed, as a share of each, summed.
    fn judge(&self, epochs: &[usize]) -> (f64, f64) {
        let n = epochs.len() as f64;
        let mixed = |m: usize| epochs.iter().map(|&i| self.shares[i][m]).sum::<f64>() / n;
        let mixed: Vec<f64> = (0..self.times_ms.len()).map(mixed).collect();
        let mean = || epochs.iter().map(|&i| self.candidates[i].mean_ms).sum::<f64>() / n;
        let quantile = |s: f64| {
            let at = mixed.partition_point(|&x| x < s - crate::cdf::SHARE_TOLERANCE);
            self.times_ms[at.min(self.times_ms.len() - 1)]
        };
        let figure = |p: Point| match p {
            Point::Mean => mean(),
            Point::Share(s) => quantile(s),
        };
        let missed = |b: &crate::objective::Bound| (figure(b.of) / b.at_most_ms - 1.0).max(0.0);
        let missed = self.objective.bounds.iter().map(missed).sum();
        let worth = match &self.objective.goal {
            Goal::Least(terms) => terms.iter().map(|&(p, w)| w * figure(p)).sum(),
            Goal::Target(points) => {
                let on_grid = Cdf::of_weighted(
                    self.times_ms
                        .iter()
                        .zip(&mixed)
                        .scan(0.0, |b, (&t, &s)| Some((t, (s - std::mem::replace(b, s)).max(0.0))))
                        .collect(),
                );
                on_grid.map_or(f64::INFINITY, |c| mean_squared_error(&c, points))
            }
        };
        (worth, missed)
    }

    /// Every multiset of `epochs` candidates, in order: OpTune's complete search.
    pub fn brute_force(&self, epochs: usize, watch: Watch<'_>) -> Found {
        assert!(epochs > 0, "no epochs");
        let mut now = vec![0usize; epochs];
        let mut found = Found { best: None, looked_at: 0, is_complete: false };
        loop {
            self.consider(&now, &mut found);
            if found.looked_at.is_multiple_of(REPORT_EVERY) && !watch(found.looked_at, found.best.as_ref().map(|b| b.1))
            {
                return found;
            }
            // The next non-decreasing sequence.
            let Some(at) = now.iter().rposition(|&i| i + 1 < self.candidates.len()) else {
                found.is_complete = true;
                return found;
            };
            let next = now[at] + 1;
            now[at..].fill(next);
        }
    }

    /// Simulated annealing: an epoch at a time gets another candidate, for the better always, for the worse with a
    /// probability that falls. A missed bound counts as a worth that much higher, tenfold.
    pub fn anneal(&self, epochs: usize, steps: u64, rng: &mut Rng, watch: Watch<'_>) -> Found {
        assert!(epochs > 0 && steps > 0, "no epochs, or no steps");
        let any = |rng: &mut Rng| rng.below(self.candidates.len() as u64) as usize;
        let mut now: Vec<usize> = (0..epochs).map(|_| any(rng)).collect();
        let mut found = Found { best: None, looked_at: 0, is_complete: false };
        let mut energy = self.energy(&now, &mut found);
        let start = energy.abs().max(1e-9);
        for step in 0..steps {
            // From a twentieth of the first worth down to a fifty-thousandth of it.
            let heat = start * 0.05 * 1e-3f64.powf(step as f64 / steps as f64);
            let at = rng.below(epochs as u64) as usize;
            let before = std::mem::replace(&mut now[at], any(rng));
            let next = self.energy(&now, &mut found);
            if next <= energy || rng.chance(((energy - next) / heat).exp()) {
                energy = next;
            } else {
                now[at] = before;
            }
            if found.looked_at.is_multiple_of(REPORT_EVERY) && !watch(found.looked_at, found.best.as_ref().map(|b| b.1))
            {
                break;
            }
        }
        found
    }

    /// Mixes at random.
    pub fn random(&self, epochs: usize, steps: u64, rng: &mut Rng, watch: Watch<'_>) -> Found {
        let mut found = Found { best: None, looked_at: 0, is_complete: false };
        for _ in 0..steps {
            let mix: Vec<usize> = (0..epochs).map(|_| rng.below(self.candidates.len() as u64) as usize).collect();
            self.consider(&mix, &mut found);
            if found.looked_at.is_multiple_of(REPORT_EVERY) && !watch(found.looked_at, found.best.as_ref().map(|b| b.1))
            {
                break;
            }
        }
        found
    }

    fn energy(&self, epochs: &[usize], found: &mut Found) -> f64 {
        let (worth, missed) = self.consider(epochs, found);
        worth * (1.0 + 10.0 * missed)
    }

    fn consider(&self, epochs: &[usize], found: &mut Found) -> (f64, f64) {
        let (worth, missed) = self.judge(epochs);
        found.looked_at += 1;
        if missed == 0.0 && found.best.as_ref().is_none_or(|b| worth < b.1) {
            found.best = Some((mix_of(epochs), worth));
        }
        (worth, missed)
    }
}

fn mix_of(epochs: &[usize]) -> Mix {
    let mut sorted = epochs.to_vec();
    sorted.sort_unstable();
    let one = 1.0 / epochs.len() as f64;
    let mut parts: Vec<(usize, f64)> = Vec::new();
    for i in sorted {
        match parts.last_mut() {
            Some(p) if p.0 == i => p.1 += one,
            _ => parts.push((i, one)),
        }
    }
    Mix { parts }
}
