//! The least sum of points of the distribution, exactly.

use super::program::{Cost, Division, Row, Solved, mean_row, minimise};
use super::{Candidate, Epochs, GAP_PROVEN, Mix, Solution, Unsolved, best_static};
use crate::objective::{Objective, Point};
use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// Programs after which a sum of several points is given with the gap that is left.
const PROGRAMS_MAX: u32 = 4_000;

struct Search<'a> {
    candidates: &'a [Candidate],
    division: Division,
    objective: &'a Objective,
    /// The bounds' rows.
    rows: Vec<Row>,
    /// The cost of the mean, and none.
    cost: Cost,
    /// Percentiles asked for, with their weights.
    shares: Vec<(f64, f64)>,
    /// All times at which a CDF rises.
    times_ms: Vec<f64>,
    programs: u32,
    best: Option<(Mix, f64)>,
}

/// The best mix for `terms`; `None` if the bounds can't be kept.
pub(super) fn solve(
    candidates: &[Candidate],
    epochs: Epochs,
    objective: &Objective,
    terms: &[(Point, f64)],
) -> Result<Option<Solution>, Unsolved> {
    let mean_weight: f64 = terms.iter().filter(|t| t.0 == Point::Mean).map(|t| t.1).sum();
    let mut shares: Vec<(f64, f64)> = Vec::new();
    for &(p, w) in terms {
        if let Point::Share(s) = p {
            shares.push((s, w));
        }
    }
    let (mean, extra) = mean_row(candidates);
    let weighed = |v: Vec<f64>| v.into_iter().map(|m| mean_weight * m).collect();
    let cost = if mean_weight > 0.0 { Cost { at: weighed(mean), extra: weighed(extra) } } else { Cost::default() };
    let static_best = best_static(candidates, objective);
    let mut search = Search {
        candidates,
        division: Division::new(candidates, epochs),
        objective,
        rows: objective.bounds.iter().map(|b| Row::of_bound(candidates, b)).collect(),
        cost,
        times_ms: if shares.is_empty() { Vec::new() } else { times(candidates) },
        shares,
        programs: 0,
        best: static_best.map(|(i, v)| (Mix::only(i), v)),
    };
    let bound = match search.shares.len() {
        0 => search.mean()?,
        _ => search.percentiles()?,
    };
    search.settle_ties()?;
    let programs = search.programs;
    if search.best.is_none() && bound.is_finite() {
        return Err(Unsolved::Gave("no mix that keeps the bounds was found, and none was ruled out".into()));
    }
    Ok(search.best.map(|(mix, value)| Solution {
        mix,
        value,
        bound: bound.min(value),
        programs,
        best_static: static_best,
    }))
}

fn times(candidates: &[Candidate]) -> Vec<f64> {
    let settling = candidates.iter().filter_map(|c| c.settling.as_ref()).map(|s| &s.cdf);
    let all = candidates.iter().map(|c| &c.cdf).chain(settling);
    let mut times: Vec<f64> = all.flat_map(|c| c.values_ms().iter().copied()).collect();
    times.sort_by(f64::total_cmp);
    times.dedup();
    times
}

/// A box of percentiles: each lies between two of the times that occur.
#[derive(Clone, Debug)]
struct Box {
    ends: Vec<(usize, usize)>,
    /// Nothing in it is worth less.
    bound: f64,
    /// The program's cost at its upper ends.
    cost: f64,
    /// Its program was given up: nobody knows whether anything is in it.
    is_open: bool,
}

impl PartialEq for Box {
    fn eq(&self, other: &Box) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}
impl Eq for Box {}
impl PartialOrd for Box {
    fn partial_cmp(&self, other: &Box) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Box {
    /// The least bound first.
    fn cmp(&self, other: &Box) -> Ordering {
        other.bound.total_cmp(&self.bound).then_with(|| other.ends.cmp(&self.ends))
    }
}

impl Search<'_> {
    fn program(&mut self, rows: &[Row], cost: &Cost) -> Result<Option<Solved>, Unsolved> {
        self.programs += 1;
        minimise(rows, cost, &self.division)
    }

    fn offer(&mut self, parts: Vec<(usize, f64)>) {
        if parts.is_empty() {
            return; // given up
        }
        let mix = Mix { parts };
        let value = mix.value(self.candidates, &self.objective.goal);
        let better = self.best.as_ref().is_none_or(|b| value < b.1);
        if better && mix.keeps(self.candidates, self.objective) {
            self.best = Some((mix, value));
        }
    }

    /// The mean is linear: one program.
    fn mean(&mut self) -> Result<f64, Unsolved> {
        let (rows, cost) = (self.rows.clone(), self.cost.clone());
        match self.program(&rows, &cost)? {
            Some(s) => {
                self.offer(s.parts);
                Ok(s.bound)
            }
            None => Ok(f64::INFINITY),
        }
    }

    /// Branch and bound over boxes of percentiles. A box's upper ends are linear bounds: if no mix keeps them, the box is
    /// empty; its lower ends bound the worth from below. With one percentile this is bisection.
    fn percentiles(&mut self) -> Result<f64, Unsolved> {
        let last = self.times_ms.len() - 1;
        let index = |t: f64| self.times_ms.partition_point(|&x| x < t);
        let least = |s: f64| {
            let all = self.candidates.iter();
            let settling = all.clone().filter_map(|c| c.settling.as_ref()).map(|c| c.cdf.quantile(s));
            index(all.map(|c| c.cdf.quantile(s)).chain(settling).fold(f64::INFINITY, f64::min))
        };
        let mut ends: Vec<(usize, usize)> = self.shares.iter().map(|&(s, _)| (least(s), last)).collect();
        // What is at least as good as what is known already keeps each percentile below the whole worth.
        if let Some((_, value)) = &self.best {
            for (end, (_, w)) in ends.iter_mut().zip(&self.shares) {
                end.1 = self.times_ms.partition_point(|&t| t <= value / w).clamp(end.0 + 1, last + 1) - 1;
            }
        }
        let mut open: BinaryHeap<Box> = BinaryHeap::new();
        open.extend(self.boxed(ends)?);
        let mut bound = f64::INFINITY;
        // What lies in points whose programs were given up.
        let mut given_up = f64::INFINITY;
        while let Some(b) = open.pop() {
            let worth = self.best.as_ref().map_or(f64::INFINITY, |b| b.1);
            bound = b.bound;
            if b.bound >= worth * (1.0 - GAP_PROVEN / 10.0) || self.programs >= PROGRAMS_MAX {
                break;
            }
            let width = |j: usize| self.shares[j].1 * (self.times_ms[b.ends[j].1] - self.times_ms[b.ends[j].0]);
            let widest = (0..b.ends.len()).max_by(|&i, &j| width(i).total_cmp(&width(j))).expect("one at least");
            let (low, high) = b.ends[widest];
            if low == high {
                // A point: its program's solution was offered, if it had one.
                given_up = given_up.min(if b.is_open { b.bound } else { f64::INFINITY });
                bound = f64::INFINITY;
                continue;
            }
            let middle = self.cut(low, high);
            let mut lower = b.ends.clone();
            lower[widest].1 = middle;
            open.extend(self.boxed(lower)?);
            let mut upper = b;
            upper.ends[widest].0 = middle + 1;
            upper.bound = self.least_worth(&upper.ends, upper.cost);
            open.push(upper);
            bound = f64::INFINITY;
        }
        Ok(bound.min(given_up))
    }

    /// Chooses the cut of a range of times: half way in time while that is coarse, else half way in number.
    fn cut(&self, low: usize, high: usize) -> usize {
        let half = (self.times_ms[low] + self.times_ms[high]) / 2.0;
        let by_time = self.times_ms.partition_point(|&t| t < half);
        let is_single = self.shares.len() == 1;
        (if is_single { (low + high) / 2 } else { by_time }).clamp(low, high - 1)
    }

    fn least_worth(&self, ends: &[(usize, usize)], cost: f64) -> f64 {
        cost + ends.iter().zip(&self.shares).map(|(e, (_, w))| w * self.times_ms[e.0]).sum::<f64>()
    }

    /// The box, unless it's empty.
    fn boxed(&mut self, ends: Vec<(usize, usize)>) -> Result<Option<Box>, Unsolved> {
        let mut rows = self.rows.clone();
        let within =
            |(e, &(s, _)): (&(usize, usize), &(f64, f64))| Row::done_within(self.candidates, s, self.times_ms[e.1]);
        rows.extend(ends.iter().zip(&self.shares).map(within));
        let cost = self.cost.clone();
        let Some(solved) = self.program(&rows, &cost)? else { return Ok(None) };
        let is_open = solved.parts.is_empty();
        self.offer(solved.parts);
        let cost = if self.cost.at.is_empty() { 0.0 } else { solved.bound };
        let bound = self.least_worth(&ends, cost);
        Ok(Some(Box { ends, bound, cost, is_open }))
    }

    /// Of all mixes that are as good, the one with the least mean.
    fn settle_ties(&mut self) -> Result<(), Unsolved> {
        let (1, Some((mix, value))) = (self.shares.len(), self.best.clone()) else { return Ok(()) };
        if !self.cost.at.is_empty() {
            return Ok(());
        }
        let (share, weight) = self.shares[0];
        let mut rows = self.rows.clone();
        rows.push(Row::done_within(self.candidates, share, value / weight * (1.0 + 1e-12)));
        let (at, extra) = mean_row(self.candidates);
        if let Some(solved) = self.program(&rows, &Cost { at, extra })?.filter(|s| !s.parts.is_empty()) {
            let other = Mix { parts: solved.parts };
            let is_as_good = other.value(self.candidates, &self.objective.goal) <= value;
            let means = (other.mean_ms(self.candidates), mix.mean_ms(self.candidates));
            if is_as_good && other.keeps(self.candidates, self.objective) && means.0 < means.1 {
                self.best = Some((other, value));
            }
        }
        Ok(())
    }
}
