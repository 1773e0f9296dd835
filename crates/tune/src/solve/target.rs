//! The mix whose CDF comes closest to a target: least mean squared error of the percentiles (equation 5.1).
//!
//! Branch and bound: a node has a range of times for each percentile, and a range of epochs for some candidates. Below it the
//! error is bounded by a convex function ([`relaxed`]), whose minimum is found by cutting planes (Kelley). A parent's planes
//! hold for its children. Where there are few mixes, all are examined instead ([`complete`]). A local search from the mixes met
//! on the way finds good ones ([`local`]). If part of the tree is left at the end of the budget, the least bound of an open
//! node bounds all.

mod complete;
mod local;
mod relaxed;

use super::program::Row;
use super::{Candidate, Epochs, GAP_PROVEN, Mix, Solution, Unsolved, best_static, explain};
use crate::cdf::Cdf;
use crate::objective::Objective;
use local::shifted;
use microlp::{ComparisonOp, Error, LinearExpr, OptimizationDirection, Problem, SolveOutcome, Variable};
use relaxed::{Envelopes, Ranges, Relaxed};
use std::cmp::Ordering;
use std::collections::{BTreeMap, BinaryHeap};
use std::rc::Rc;

/// The error against `(share, ms)` points.
pub fn mean_squared_error(cdf: &Cdf, points: &[(f64, f64)]) -> f64 {
    points.iter().map(|&(s, t)| (cdf.quantile(s) - t).powi(2)).sum::<f64>() / points.len() as f64
}

/// Steps of the descent that finds where the first minimum lies.
const DESCENT_STEPS: usize = 150;
/// Steps of it between two planes.
const PLANE_EVERY: usize = 5;
/// Rounds of cutting planes at the root, and below it.
const ROUNDS: [usize; 2] = [20, 5];
/// Programs between two looks for better mixes near a program's solution.
const IMPROVE_EVERY: u32 = 4;
/// Planes that a node hands on to its children.
const PLANES_KEPT: usize = 24;
/// Programs after which the best mix is given with the gap that is left.
const PROGRAMS_MAX: u32 = 150;
/// Of a node's gap, what its percentiles' ranges must make up for them to be divided rather than epochs.
const RANGES_FIRST: f64 = 0.25;

/// Shares, and what no shares get below.
type Found = (Vec<(usize, f64)>, f64);

/// The error is at least `height + Σ slope · share`.
struct Plane {
    height: f64,
    slopes: Vec<f64>,
}

/// A part of the mixes, with what none of them gets below.
struct Node {
    ranges: Ranges,
    /// Least and most share of some candidates.
    shares: BTreeMap<usize, (f64, f64)>,
    planes: Vec<Rc<Plane>>,
    bound: f64,
    /// Shares with the least relaxed error.
    parts: Vec<(usize, f64)>,
}

impl PartialEq for Node {
    fn eq(&self, other: &Node) -> bool {
        self.bound == other.bound
    }
}
impl Eq for Node {}
impl PartialOrd for Node {
    fn partial_cmp(&self, other: &Node) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Node {
    /// The least bound first.
    fn cmp(&self, other: &Node) -> Ordering {
        other.bound.total_cmp(&self.bound)
    }
}

struct Search<'a> {
    candidates: &'a [Candidate],
    objective: &'a Objective,
    epochs: Epochs,
    relaxed: Relaxed,
    rows: Vec<Row>,
    /// The most that each column may have: candidates everything, settling what switches cost at most.
    most: Vec<f64>,
    best: Option<(Mix, f64)>,
    programs: u32,
}

/// Computes the parts that mixes consist of: the candidates, and the distributions right after switches where switching costs.
/// Each has its largest share. Any mix, with the cost of its switches, is a mix of these.
fn columns(candidates: &[Candidate], epochs: Epochs) -> (Vec<Candidate>, Vec<f64>) {
    let plain = |c: &Candidate| Candidate { settling: None, ..c.clone() };
    let mut columns: Vec<Candidate> = candidates.iter().map(plain).collect();
    let mut most = vec![1.0; columns.len()];
    let used = if let Epochs::Count(n) = epochs { n as usize } else { candidates.len() };
    let mut settling: Vec<(&Cdf, f64, usize)> = Vec::new();
    for s in candidates.iter().filter_map(|c| c.settling.as_ref()) {
        match settling.iter_mut().find(|k| *k.0 == s.cdf) {
            Some(known) => (known.1, known.2) = (known.1.max(s.share), known.2 + 1),
            None => settling.push((&s.cdf, s.share, 1)),
        }
    }
    for (cdf, share, count) in settling {
        columns.push(Candidate::new(candidates[0].setting.clone(), cdf.clone()));
        most.push((share * count.min(used) as f64).min(1.0));
    }
    (columns, most)
}

/// The closest mix; `None` if the bounds can't be kept.
pub(super) fn solve(
    candidates: &[Candidate],
    epochs: Epochs,
    objective: &Objective,
    points: &[(f64, f64)],
) -> Result<Option<Solution>, Unsolved> {
    let static_best = best_static(candidates, objective);
    let mut known = static_best.map(|(i, v)| (Mix::only(i), v));
    if known.is_none() {
        // No configuration keeps the bounds on its own, but a mix may. Only a proof shows that none does.
        let Some(mix) = explain::can(candidates, epochs, &objective.bounds)? else { return Ok(None) };
        let worth = mix.value(candidates, &objective.goal);
        known = mix.keeps(candidates, objective).then_some((mix, worth));
    }
    let (columns, most) = columns(candidates, epochs);
    let cdfs: Vec<&Cdf> = columns.iter().map(|c| &c.cdf).collect();
    let mut search = Search {
        candidates,
        objective,
        epochs,
        relaxed: Relaxed::new(&cdfs, points),
        rows: objective.bounds.iter().map(|b| Row::of_bound(&columns, b)).collect(),
        most,
        best: known,
        programs: 0,
    };
    let bound = match search.complete() {
        Some(bound) => bound,
        None => match search.search()? {
            Some(bound) => bound,
            None => return Ok(None),
        },
    };
    let programs = search.programs;
    let Some((mix, value)) = search.best.take() else {
        return Err(Unsolved::Gave("no mix that keeps the bounds was found, and none was ruled out".into()));
    };
    Ok(Some(Solution { mix, value, bound: bound.min(value), programs, best_static: static_best }))
}

impl Search<'_> {
    /// Searches for the bound below every mix's error; `None` if the bounds can't be kept.
    fn search(&mut self) -> Result<Option<f64>, Unsolved> {
        let Some(root) = self.root()? else { return Ok(None) };
        self.finish();
        let mut open = BinaryHeap::from([root]);
        // Nodes that can't be divided any further bound what is in them.
        let mut divided = f64::INFINITY;
        while let Some(node) = open.pop() {
            if self.is_beaten(node.bound.min(divided)) || self.programs >= PROGRAMS_MAX {
                return Ok(Some(node.bound.min(divided)));
            }
            let children = self.divide(&node);
            if children.is_empty() {
                divided = divided.min(node.bound);
            }
            for child in children {
                open.extend(self.bounded(child)?);
            }
        }
        Ok(Some(divided))
    }

    /// True if no mix with this bound can be better than the best known one by more than [`GAP_PROVEN`].
    fn is_beaten(&self, bound: f64) -> bool {
        self.best.as_ref().is_some_and(|b| bound >= b.1 * (1.0 - GAP_PROVEN))
    }

    /// All mixes.
    fn root(&mut self) -> Result<Option<Node>, Unsolved> {
        let ranges = self.relaxed.everywhere();
        let mut root = Node { ranges, shares: BTreeMap::new(), planes: Vec::new(), bound: 0.0, parts: Vec::new() };
        // Where a mix keeps the bounds at all.
        let Some((parts, _)) = self.least(&root)? else { return Ok(None) };
        root.parts = parts;
        let envelopes = self.relaxed.within(&root.ranges);
        if self.rows.is_empty() && self.relaxed.columns() == self.candidates.len() {
            if let Some((mix, _)) = &self.best {
                root.parts = mix.parts.clone();
            }
            self.descend(&mut root, &envelopes);
        }
        self.cut(&mut root, &envelopes, ROUNDS[0])?;
        Ok(Some(root))
    }

    /// A child with its bound; `None` if there is nothing in it, or nothing better than what is known.
    fn bounded(&mut self, mut node: Node) -> Result<Option<Node>, Unsolved> {
        let envelopes = self.relaxed.within(&node.ranges);
        let there = self.cut(&mut node, &envelopes, ROUNDS[1])?;
        Ok(Some(node).filter(|n| there && !self.is_beaten(n.bound)))
    }

    /// Cutting planes: the least of all planes is a bound, and the plane that touches the error there comes next. False if
    /// no mix is in the node.
    fn cut(&mut self, node: &mut Node, envelopes: &Envelopes, rounds: usize) -> Result<bool, Unsolved> {
        for _ in 0..rounds {
            let Some((parts, below)) = self.least(node)? else { return Ok(false) };
            (node.parts, node.bound) = (parts, node.bound.max(below));
            let here = self.touch(node, envelopes);
            if here - node.bound <= 1e-3 * here || self.is_beaten(node.bound) {
                break;
            }
        }
        let extra = node.planes.len().saturating_sub(PLANES_KEPT);
        node.planes.drain(..extra);
        Ok(true)
    }

    /// Adds the plane that touches the relaxed error at the node's mix, tries to improve on nearby mixes, and returns the error
    /// there.
    fn touch(&mut self, node: &mut Node, envelopes: &Envelopes) -> f64 {
        let (here, slopes) = self.relaxed.slope(envelopes, &node.parts);
        if self.programs.is_multiple_of(IMPROVE_EVERY) {
            self.improve(&node.parts, &slopes);
        }
        let height = here - node.parts.iter().map(|&(i, w)| w * slopes[i]).sum::<f64>();
        node.planes.push(Rc::new(Plane { height, slopes }));
        here
    }

    /// Pairwise conditional gradients: share moves from the candidate with the steepest rise to the one with the steepest fall,
    /// by the best amount. The planes met on the way start the cutting planes near the minimum.
    fn descend(&mut self, node: &mut Node, envelopes: &Envelopes) {
        for step in 0..DESCENT_STEPS {
            let (height, slopes) = self.relaxed.slope(envelopes, &node.parts);
            let here: f64 = node.parts.iter().map(|&(i, w)| w * slopes[i]).sum();
            let to = (0..slopes.len()).min_by(|&a, &b| slopes[a].total_cmp(&slopes[b])).expect("candidates");
            node.bound = node.bound.max(height + slopes[to] - here);
            if height - node.bound <= 1e-3 * height {
                break;
            }
            if step % PLANE_EVERY == 0 {
                self.touch(node, envelopes);
            }
            let all = node.parts.iter().copied();
            let from = all.max_by(|a, b| slopes[a.0].total_cmp(&slopes[b.0])).expect("shares sum to 1");
            let moved = self.relaxed.best_move(envelopes, &node.parts, from, to);
            if moved <= 0.0 {
                break;
            }
            node.parts = shifted(&node.parts, from.0, to, moved);
        }
    }

    /// The least of all planes over the shares that are in the node and keep the bounds.
    fn least(&mut self, node: &Node) -> Result<Option<Found>, Unsolved> {
        self.programs += 1;
        let mut problem = Problem::new(OptimizationDirection::Minimize);
        let error = problem.add_var(1.0, (0.0, f64::INFINITY));
        let range = |i: usize| node.shares.get(&i).copied().unwrap_or((0.0, self.most[i]));
        let shares: Vec<Variable> = (0..self.most.len()).map(|i| problem.add_var(0.0, range(i))).collect();
        problem.add_constraint(shares.iter().map(|&v| (v, 1.0)), ComparisonOp::Eq, 1.0);
        for row in &self.rows {
            problem.add_constraint(shares.iter().copied().zip(row.at.iter().copied()), ComparisonOp::Ge, row.least);
        }
        self.keep_ranges(&mut problem, &shares, &node.ranges);
        // Planes in units of the best error known, so that the numbers are near 1.
        let unit = self.best.as_ref().map_or(1.0, |b| b.1).max(1e-9);
        for plane in &node.planes {
            let mut lhs = LinearExpr::empty();
            lhs.add(error, 1.0);
            shares.iter().zip(&plane.slopes).for_each(|(&v, s)| lhs.add(v, -s / unit));
            problem.add_constraint(lhs, ComparisonOp::Ge, plane.height / unit);
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

    /// The node's ranges as rows: the share at a range's end is reached, the one before its beginning isn't. Of equal ends the
    /// strictest says all.
    fn keep_ranges(&self, problem: &mut Problem, shares: &[Variable], ranges: &Ranges) {
        let row = |time: usize| shares.iter().enumerate().map(move |(i, &v)| (v, self.relaxed.share(i, time)));
        let (points, last) = (&self.relaxed.points, self.relaxed.times_ms.len() - 1);
        for (j, &(share, _)) in points.iter().enumerate() {
            let (low, high) = (ranges.low[j], ranges.high[j]);
            if high < last && ranges.high.get(j + 1) != Some(&high) {
                problem.add_constraint(row(high), ComparisonOp::Ge, share);
            }
            if low > 0 && (j == 0 || ranges.low[j - 1] != low) {
                problem.add_constraint(row(low - 1), ComparisonOp::Le, share);
            }
        }
    }

    /// Two halves of a node: by the percentile whose error the relaxation knows least of, or by a candidate's epochs. None if
    /// neither is left to divide.
    fn divide(&self, node: &Node) -> Vec<Node> {
        let cells = self.relaxed.cells(&node.parts);
        let n = self.relaxed.points.len() as f64;
        let times = &self.relaxed.times_ms;
        let unknown = |j: usize| {
            let t = self.relaxed.points[j].1;
            let (low, high) = (node.ranges.low[j], node.ranges.high[j]);
            let from = if low > 0 { times[low - 1] } else { 0.0 };
            let least = (from - t).max(t - times[high]).max(0.0);
            if low == high { 0.0 } else { ((times[cells[j]] - t).powi(2) - least.powi(2)) / n }
        };
        let worst = (0..cells.len()).map(|j| (unknown(j), j)).max_by(|a, b| a.0.total_cmp(&b.0));
        let gap = self.best.as_ref().map_or(f64::INFINITY, |b| b.1) - node.bound;
        let child = |ranges: Ranges, shares: BTreeMap<usize, (f64, f64)>| Node {
            ranges,
            shares,
            planes: node.planes.clone(),
            bound: node.bound,
            parts: Vec::new(),
        };
        let fraction = self.most_divided(node);
        if let Some((unknown, j)) = worst
            && unknown > 0.0
            && (unknown >= RANGES_FIRST * gap / n.sqrt() || fraction.is_none())
        {
            let (low, high) = (node.ranges.low[j], node.ranges.high[j]);
            let wanted = times.partition_point(|&t| t < self.relaxed.points[j].1).clamp(low, high);
            let k = ((wanted + cells[j].clamp(low, high)) / 2).clamp(low, high - 1);
            let halves = [node.ranges.at_most(j, k), node.ranges.behind(j, k)];
            return halves.into_iter().filter(|r| !r.is_empty()).map(|r| child(r, node.shares.clone())).collect();
        }
        let Some((i, below, above)) = fraction else { return Vec::new() };
        let (least, most) = node.shares.get(&i).copied().unwrap_or((0.0, self.most[i]));
        let halves = [(least, below), (above, most)];
        halves
            .into_iter()
            .map(|half| {
                let mut shares = node.shares.clone();
                shares.insert(i, half);
                child(node.ranges.clone(), shares)
            })
            .collect()
    }

    /// The candidate whose share is farthest from whole epochs, and the whole numbers around it, as shares.
    fn most_divided(&self, node: &Node) -> Option<(usize, f64, f64)> {
        let Epochs::Count(n) = self.epochs else { return None };
        // With settling, a candidate's epochs are its share and what its settling has: not known from the parts.
        if self.relaxed.columns() > self.candidates.len() {
            return None;
        }
        let n = f64::from(n);
        let apart = |w: f64| (w * n - (w * n).round()).abs();
        let (i, w) = node.parts.iter().copied().max_by(|a, b| apart(a.1).total_cmp(&apart(b.1)))?;
        (apart(w) > 1e-6).then(|| (i, (w * n).floor() / n, (w * n).ceil() / n))
    }
}
