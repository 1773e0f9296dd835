//! The mix whose CDF comes closest to a target: least mean squared error of the percentiles (equation 5.1).
//!
//! A percentile is no linear function of the shares, but the error can be written over times instead of percentiles:
//! the square of a percentile's lateness is the sum of `2 (t - target)` over the times t at which the mix has not yet
//! reached that share, and its earliness likewise. So at each time the error is a function of the one number
//! `F(t) = Σ share · F_i(t)`: a staircase, falling up to the target's share there and rising beyond it. Its lower convex
//! envelope is piecewise linear, which makes the sum over times a convex function of the shares that never exceeds the
//! error: its minimum is a bound that no mix gets below. (In the limit of all percentiles the error is the squared
//! Wasserstein distance, which is convex in mixtures, and the envelope is the function.) Cutting planes (Kelley) find
//! that minimum; a local search from the mixes met on the way finds a good mix; what lies between is reported as the gap.

use super::program::Row;
use super::{Candidate, Epochs, GAP_PROVEN, Mix, Solution, Unsolved, best_static};
use crate::cdf::{Cdf, SHARE_TOLERANCE};
use crate::objective::Objective;
use microlp::{ComparisonOp, Error, LinearExpr, OptimizationDirection, Problem, SolveOutcome, Variable};
use plimsoll_base::Rng;

/// The error against `(share, ms)` points.
pub fn mean_squared_error(cdf: &Cdf, points: &[(f64, f64)]) -> f64 {
    points.iter().map(|&(s, t)| (cdf.quantile(s) - t).powi(2)).sum::<f64>() / points.len() as f64
}

/// Times at which the error is summed.
const TIMES_MAX: usize = 600;
/// Steps of the descent that finds where the minimum lies.
const DESCENT_STEPS: usize = 150;
/// Steps of it between two planes.
const PLANE_EVERY: usize = 5;
/// Rounds of cutting planes.
const ROUNDS_MAX: usize = 20;
/// Steps of the local search.
const STEPS_MAX: usize = 40;
/// Epochs that the local search moves where any shares are allowed.
const EPOCHS_OF_ANY: u32 = 200;
/// Steps of the annealing.
const ANNEAL_STEPS: usize = 20_000;
/// Candidates that the last local search tries.
const CANDIDATES_TRIED: usize = 2_000;
/// Candidates that the local search tries besides the mix's own.
const NEAR: usize = 12;

/// The lower convex envelope of the error at one time: slopes and heights of lines, their maximum being it.
struct Envelope {
    lines: Vec<(f64, f64)>,
}

/// The relaxed error: at each time, an envelope over the mix's share there.
struct Relaxed {
    times_ms: Vec<f64>,
    late: Vec<Envelope>,
    early: Vec<Envelope>,
    /// Each candidate's share at each time.
    shares: Vec<Vec<f64>>,
}

impl Envelope {
    /// Of points with ascending `x`, from 0 to 1.
    fn of(points: &[(f64, f64)]) -> Envelope {
        let mut hull: Vec<(f64, f64)> = Vec::new();
        for &p in points {
            while let [.., a, b] = hull[..] {
                // b lies above the line from a to p.
                if (b.1 - a.1) * (p.0 - a.0) >= (p.1 - a.1) * (b.0 - a.0) {
                    hull.pop();
                } else {
                    break;
                }
            }
            match hull.last() {
                Some(&l) if l.0 == p.0 => *hull.last_mut().expect("just seen") = (l.0, l.1.min(p.1)),
                _ => hull.push(p),
            }
        }
        let line = |w: &[(f64, f64)]| {
            let slope = (w[1].1 - w[0].1) / (w[1].0 - w[0].0);
            (slope, w[0].1 - slope * w[0].0)
        };
        Envelope { lines: hull.windows(2).map(line).filter(|l| l.0 != 0.0 || l.1 != 0.0).collect() }
    }

    /// Height and slope at `x`; never negative.
    fn at(&self, x: f64) -> (f64, f64) {
        let zero = (0.0, 0.0);
        self.lines
            .iter()
            .map(|&(slope, height)| (height + slope * x, slope))
            .fold(zero, |a, b| if b.0 > a.0 { b } else { a })
    }
}

impl Relaxed {
    fn new(candidates: &[Candidate], points: &[(f64, f64)]) -> Relaxed {
        let times_ms = times(candidates, points);
        let n = points.len() as f64;
        let square = |x: f64| x.max(0.0).powi(2);
        let (mut late, mut early) = (Vec::new(), Vec::new());
        for w in times_ms.windows(2) {
            // Lateness within (w0, w1] counts where even the share at w1 is too low, earliness where the share at w0 is
            // already too high: below the truth, whatever the shares between are.
            let mut falls = vec![(0.0, 0.0)];
            let mut rises = vec![(0.0, 0.0)];
            let (mut late_left, mut early_sum) = (0.0, 0.0);
            let weights = |&(s, t): &(f64, f64)| {
                (s, (square(w[1] - t) - square(w[0] - t)) / n, (square(t - w[0]) - square(t - w[1])) / n)
            };
            let all: Vec<(f64, f64, f64)> = points.iter().map(weights).collect();
            late_left += all.iter().map(|a| a.1).sum::<f64>();
            falls[0].1 = late_left;
            for &(s, l, e) in &all {
                late_left -= l;
                falls.push((s, late_left.max(0.0)));
                rises.push((s, early_sum));
                early_sum += e;
            }
            if points.last().is_some_and(|p| p.0 < 1.0) {
                falls.push((1.0, 0.0));
                rises.push((1.0, early_sum));
            }
            late.push(Envelope::of(&falls));
            early.push(Envelope::of(&rises));
        }
        let shares = candidates.iter().map(|c| times_ms.iter().map(|&t| c.cdf.at(t)).collect()).collect();
        Relaxed { times_ms, late, early, shares }
    }

    fn mixed(&self, parts: &[(usize, f64)]) -> Vec<f64> {
        let mut mixed = vec![0.0; self.times_ms.len()];
        for &(i, w) in parts {
            mixed.iter_mut().zip(&self.shares[i]).for_each(|(m, s)| *m += w * s);
        }
        mixed
    }

    /// The relaxed error of a mix, and its slope along every candidate's share.
    fn slope(&self, parts: &[(usize, f64)]) -> (f64, Vec<f64>) {
        let mixed = self.mixed(parts);
        let (mut height, mut along) = (0.0, vec![0.0; mixed.len()]);
        for m in 0..self.late.len() {
            for (envelope, x) in [(&self.late[m], m + 1), (&self.early[m], m)] {
                let (h, slope) = envelope.at(mixed[x]);
                height += h;
                along[x] += slope;
            }
        }
        let slopes = self.shares.iter().map(|c| c.iter().zip(&along).map(|(a, b)| a * b).sum()).collect();
        (height, slopes)
    }

    fn error(&self, mixed: &[f64]) -> f64 {
        (0..self.late.len()).map(|m| self.late[m].at(mixed[m + 1]).0 + self.early[m].at(mixed[m]).0).sum()
    }

    /// How much of the share of `from` is best given to `to`: the error is convex along the way.
    fn best_move(&self, parts: &[(usize, f64)], from: (usize, f64), to: usize) -> f64 {
        let mixed = self.mixed(parts);
        let along: Vec<f64> = self.shares[to].iter().zip(&self.shares[from.0]).map(|(a, b)| a - b).collect();
        let at = |x: f64| self.error(&mixed.iter().zip(&along).map(|(m, d)| m + x * d).collect::<Vec<_>>());
        let (mut low, mut high) = (0.0, from.1);
        for _ in 0..18 {
            let third = (high - low) / 3.0;
            if at(low + third) <= at(high - third) { high -= third } else { low += third }
        }
        let (middle, all) = ((low + high) / 2.0, from.1);
        if at(all) <= at(middle) {
            all
        } else if at(middle) < at(0.0) {
            middle
        } else {
            0.0
        }
    }

    /// The error of the percentiles on the grid of times: quick, and close to the truth.
    fn roughly(&self, parts: &[(usize, f64)], points: &[(f64, f64)]) -> f64 {
        let mixed = self.mixed(parts);
        let quantile = |s: f64| {
            let at = mixed.partition_point(|&x| x < s - SHARE_TOLERANCE);
            self.times_ms[at.min(self.times_ms.len() - 1)]
        };
        points.iter().map(|&(s, t)| (quantile(s) - t).powi(2)).sum::<f64>() / points.len() as f64
    }
}

/// The target's own times, the candidates' percentiles around them, and both ends: at most [`TIMES_MAX`].
fn times(candidates: &[Candidate], points: &[(f64, f64)]) -> Vec<f64> {
    let longest = candidates.iter().map(|c| c.cdf.max_ms()).fold(0.0, f64::max);
    let mut times = vec![0.0, longest];
    times.extend(points.iter().map(|p| p.1));
    let every = (candidates.len() * points.len()).div_ceil(TIMES_MAX * 8).max(1);
    let spread = candidates.iter().flat_map(|c| points.iter().map(move |p| c.cdf.quantile(p.0)));
    let mut more: Vec<f64> = spread.step_by(every).collect();
    more.sort_by(f64::total_cmp);
    let room = TIMES_MAX - times.len().min(TIMES_MAX);
    let step = more.len().div_ceil(room.max(1)).max(1);
    times.extend(more.into_iter().step_by(step));
    times.sort_by(f64::total_cmp);
    times.dedup();
    times
}

/// Shares, and what no shares get below.
type Found = (Vec<(usize, f64)>, f64);

struct Search<'a> {
    candidates: &'a [Candidate],
    objective: &'a Objective,
    epochs: Epochs,
    relaxed: Relaxed,
    rows: Vec<Row>,
    points: &'a [(f64, f64)],
    /// Cutting planes: height at no shares, slopes.
    planes: Vec<(f64, Vec<f64>)>,
    best: Option<(Mix, f64)>,
    programs: u32,
}

/// The closest mix; `None` if the bounds can't be kept.
pub(super) fn solve(
    candidates: &[Candidate],
    epochs: Epochs,
    objective: &Objective,
    points: &[(f64, f64)],
) -> Result<Option<Solution>, Unsolved> {
    if candidates.iter().any(|c| c.settling.is_some()) {
        // Settling makes the error of a mix more than that of its parts: the bound without it still holds.
        let settled: Vec<Candidate> = candidates.iter().map(|c| Candidate { settling: None, ..c.clone() }).collect();
        let Some(mut s) = solve(&settled, epochs, objective, points)? else { return Ok(None) };
        let real = s.mix.value(candidates, &objective.goal);
        let keeps = s.mix.keeps(candidates, objective);
        return Ok(match s.best_static {
            Some((i, v)) if !keeps || v <= real => Some(Solution { mix: Mix::only(i), value: v, ..s }),
            None if !keeps => None,
            _ => {
                s.value = real;
                Some(s)
            }
        });
    }
    let static_best = best_static(candidates, objective);
    let mut search = Search {
        candidates,
        objective,
        epochs,
        relaxed: Relaxed::new(candidates, points),
        rows: objective.bounds.iter().map(|b| Row::of_bound(candidates, b)).collect(),
        points,
        planes: Vec::new(),
        best: static_best.map(|(i, v)| (Mix::only(i), v)),
        programs: 0,
    };
    let Some(bound) = search.minimum()? else { return Ok(None) };
    let programs = search.programs;
    let best = search.best.take();
    Ok(best.map(|(mix, value)| Solution { mix, value, bound: bound.min(value), programs, best_static: static_best }))
}

impl Search<'_> {
    /// The least relaxed error over any shares, which bounds whole epochs too; `None` if the bounds can't be kept.
    fn minimum(&mut self) -> Result<Option<f64>, Unsolved> {
        // Where a mix keeps the bounds at all.
        let Some((mut parts, mut bound)) = self.master()? else { return Ok(None) };
        if self.rows.is_empty() {
            let start = self.best.as_ref().map_or(parts, |b| b.0.parts.clone());
            (parts, bound) = self.descend(start);
        }
        for _ in 0..ROUNDS_MAX {
            let here = self.plane(&parts);
            self.improve(&parts);
            let worth = self.best.as_ref().map_or(f64::INFINITY, |b| b.1);
            if here - bound <= 1e-3 * here || bound >= worth * (1.0 - GAP_PROVEN) {
                break;
            }
            let Some((next, below)) = self.master()? else { return Ok(None) };
            (parts, bound) = (next, bound.max(below));
        }
        self.finish();
        Ok(Some(bound))
    }

    /// Adds the plane that touches the relaxed error at a mix; the error there.
    fn plane(&mut self, parts: &[(usize, f64)]) -> f64 {
        let (height, slopes) = self.relaxed.slope(parts);
        let at_none = height - parts.iter().map(|&(i, w)| w * slopes[i]).sum::<f64>();
        self.planes.push((at_none, slopes));
        height
    }

    /// Pairwise conditional gradients: share goes from the candidate with the steepest rise to the one with the steepest
    /// fall, as much as is best. The planes met on the way start the cutting planes near the minimum.
    fn descend(&mut self, mut parts: Vec<(usize, f64)>) -> (Vec<(usize, f64)>, f64) {
        let mut bound = 0.0f64;
        for step in 0..DESCENT_STEPS {
            let (height, slopes) = self.relaxed.slope(&parts);
            let here: f64 = parts.iter().map(|&(i, w)| w * slopes[i]).sum();
            let to = (0..slopes.len()).min_by(|&a, &b| slopes[a].total_cmp(&slopes[b])).expect("candidates");
            bound = bound.max(height + slopes[to] - here);
            if height - bound <= 1e-3 * height {
                break;
            }
            if step % PLANE_EVERY == 0 {
                self.plane(&parts);
                self.improve(&parts);
            }
            let from =
                parts.iter().copied().max_by(|a, b| slopes[a.0].total_cmp(&slopes[b.0])).expect("shares sum to 1");
            let moved = self.relaxed.best_move(&parts, from, to);
            if moved <= 0.0 {
                break;
            }
            parts = shifted(&parts, from.0, to, moved);
        }
        (parts, bound)
    }

    /// The least of all planes over the shares that keep the bounds.
    fn master(&mut self) -> Result<Option<Found>, Unsolved> {
        self.programs += 1;
        let mut problem = Problem::new(OptimizationDirection::Minimize);
        let error = problem.add_var(1.0, (0.0, f64::INFINITY));
        let shares: Vec<Variable> = self.candidates.iter().map(|_| problem.add_var(0.0, (0.0, 1.0))).collect();
        problem.add_constraint(shares.iter().map(|&v| (v, 1.0)), ComparisonOp::Eq, 1.0);
        for row in &self.rows {
            problem.add_constraint(shares.iter().copied().zip(row.at.iter().copied()), ComparisonOp::Ge, row.least);
        }
        // Planes in units of the best error known, so that the numbers are near 1.
        let unit = self.best.as_ref().map_or(1.0, |b| b.1).max(1e-9);
        for (height, slopes) in &self.planes {
            let mut lhs = LinearExpr::empty();
            lhs.add(error, 1.0);
            shares.iter().zip(slopes).for_each(|(&v, s)| lhs.add(v, -s / unit));
            problem.add_constraint(lhs, ComparisonOp::Ge, height / unit);
        }
        match problem.solve() {
            Ok(SolveOutcome::Solution(s)) => {
                let found = shares.iter().map(|&v| s.var_value(v)).enumerate();
                let mut parts: Vec<(usize, f64)> = found.filter(|p| p.1 > 1e-9).collect();
                let sum: f64 = parts.iter().map(|p| p.1).sum();
                parts.iter_mut().for_each(|p| p.1 /= sum);
                Ok(Some((parts, s.objective() * unit)))
            }
            Ok(SolveOutcome::Interrupted(_)) => unreachable!("no limit was set"),
            Err(Error::Infeasible) => Ok(None),
            Err(e) => Err(Unsolved::Gave(e.to_string())),
        }
    }

    /// Rounds a mix to whole epochs and moves single epochs as long as that helps.
    fn improve(&mut self, parts: &[(usize, f64)]) {
        let n = match self.epochs {
            Epochs::Count(n) => n,
            Epochs::Any => {
                self.offer(Mix { parts: parts.to_vec() });
                EPOCHS_OF_ANY
            }
        };
        let near = self.near(parts);
        self.walk(rounded(parts, n), n, &near);
    }

    /// The same from the best that is known, trying every candidate.
    fn finish(&mut self) {
        let Epochs::Count(n) = self.epochs else { return };
        if let Some((mix, _)) = self.best.clone() {
            let annealed = self.anneal(&mix, n);
            self.offer(annealed);
        }
        if let Some((mix, _)) = self.best.clone() {
            let all: Vec<usize> = (0..self.candidates.len().min(CANDIDATES_TRIED)).collect();
            self.walk(mix, n, &all);
        }
    }

    /// Out of a local minimum: single epochs change hands at random, for the worse ever more rarely.
    fn anneal(&self, from: &Mix, n: u32) -> Mix {
        let mut rng = Rng::new(u64::from(n), "target");
        let one = 1.0 / f64::from(n);
        let roughly = |m: &Mix| self.relaxed.roughly(&m.parts, self.points);
        let (mut now, mut worth) = (from.clone(), roughly(from));
        let (mut best, mut least) = (now.clone(), worth);
        let start = worth.max(1e-9);
        for step in 0..ANNEAL_STEPS {
            let heat = start * 0.1 * 1e-4f64.powf(step as f64 / ANNEAL_STEPS as f64);
            let from = now.parts[rng.below(now.parts.len() as u64) as usize].0;
            let to = rng.below(self.candidates.len() as u64) as usize;
            if from == to {
                continue;
            }
            let next = Mix { parts: shifted(&now.parts, from, to, one) };
            let w = roughly(&next);
            if w <= worth || rng.chance(((worth - w) / heat).exp()) {
                (now, worth) = (next, w);
            }
            if worth < least && self.worth(&now).is_finite() {
                (best, least) = (now.clone(), worth);
            }
        }
        best
    }

    fn walk(&mut self, mut mix: Mix, n: u32, near: &[usize]) {
        self.offer(mix.clone());
        let mut worth = self.relaxed.roughly(&mix.parts, self.points);
        for _ in 0..STEPS_MAX {
            let tries = moves(&mix, n, near).into_iter().map(|m| (self.relaxed.roughly(&m.parts, self.points), m));
            let Some((w, m)) = tries.min_by(|a, b| a.0.total_cmp(&b.0)) else { break };
            if w >= worth {
                break;
            }
            (worth, mix) = (w, m);
            self.offer(mix.clone());
        }
    }

    /// The mix's own candidates, those of the best known, and the ones along which the error falls the most.
    fn near(&self, parts: &[(usize, f64)]) -> Vec<usize> {
        let (_, slopes) = self.relaxed.slope(parts);
        let mut order: Vec<usize> = (0..slopes.len()).collect();
        order.sort_by(|&a, &b| slopes[a].total_cmp(&slopes[b]));
        order.truncate(NEAR);
        order.extend(parts.iter().map(|p| p.0));
        order.extend(self.best.iter().flat_map(|b| b.0.parts.iter().map(|p| p.0)));
        order.sort_unstable();
        order.dedup();
        order
    }

    /// The error; infinite if a bound isn't kept.
    fn worth(&self, mix: &Mix) -> f64 {
        if mix.keeps(self.candidates, self.objective) {
            mix.value(self.candidates, &self.objective.goal)
        } else {
            f64::INFINITY
        }
    }

    fn offer(&mut self, mix: Mix) {
        let worth = self.worth(&mix);
        if worth.is_finite() && self.best.as_ref().is_none_or(|b| worth < b.1) {
            self.best = Some((mix, worth));
        }
    }
}

/// `by` of the share of one candidate given to another.
fn shifted(parts: &[(usize, f64)], from: usize, to: usize, by: f64) -> Vec<(usize, f64)> {
    let mut next: Vec<(usize, f64)> = parts.to_vec();
    for p in next.iter_mut().filter(|p| p.0 == from) {
        p.1 -= by;
    }
    match next.iter_mut().find(|p| p.0 == to) {
        Some(p) => p.1 += by,
        None => next.push((to, by)),
    }
    next.retain(|p| p.1 > 1e-9);
    next.sort_by_key(|p| p.0);
    next
}

/// Whole epochs by largest remainder.
fn rounded(parts: &[(usize, f64)], epochs: u32) -> Mix {
    let whole = f64::from(epochs);
    let mut counts: Vec<(usize, u32, f64)> =
        parts.iter().map(|&(i, w)| (i, (w * whole).floor() as u32, (w * whole).fract())).collect();
    counts.sort_by(|a, b| b.2.total_cmp(&a.2).then(a.0.cmp(&b.0)));
    let given: u32 = counts.iter().map(|c| c.1).sum();
    let n = counts.len();
    (0..epochs.saturating_sub(given) as usize).for_each(|k| counts[k % n].1 += 1);
    counts.sort_by_key(|c| c.0);
    Mix { parts: counts.into_iter().filter(|c| c.1 > 0).map(|c| (c.0, f64::from(c.1) / whole)).collect() }
}

/// All mixes that differ by one epoch given to another of the candidates met.
fn moves(mix: &Mix, epochs: u32, near: &[usize]) -> Vec<Mix> {
    let one = 1.0 / f64::from(epochs);
    let pairs = mix.parts.iter().flat_map(|&(from, _)| near.iter().map(move |&to| (from, to)));
    pairs.filter(|(from, to)| from != to).map(|(from, to)| Mix { parts: shifted(&mix.parts, from, to, one) }).collect()
}
