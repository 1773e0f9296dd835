//! The linear or integer program over the configurations' shares.

use super::{Candidate, Epochs, Unsolved};
use crate::objective::{Bound, Point};
use microlp::{ComparisonOp, Error, LinearExpr, OptimizationDirection, Problem, SolveOptions, SolveOutcome, Variable};

/// `Σ share · at[i] + [used] · extra[i] >= least`.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Row {
    pub at: Vec<f64>,
    /// Additional effect of any use of the candidate: the difference that settling makes. Empty: none.
    pub extra: Vec<f64>,
    pub least: f64,
}

impl Row {
    /// "At least `share` are done within `t_ms`."
    pub fn done_within(candidates: &[Candidate], share: f64, t_ms: f64) -> Row {
        let at: Vec<f64> = candidates.iter().map(|c| c.cdf.at(t_ms)).collect();
        let extra = settling(candidates, |c, s| s.share * (s.cdf.at(t_ms) - c.cdf.at(t_ms)));
        Row { at, extra, least: share }
    }

    /// A bound; a mean's is scaled to the size of a share.
    pub fn of_bound(candidates: &[Candidate], bound: &Bound) -> Row {
        match bound.of {
            Point::Share(s) => Row::done_within(candidates, s, bound.at_most_ms),
            Point::Mean => {
                let mean = mean_row(candidates);
                let scaled = |v: Vec<f64>| v.into_iter().map(|m| -m / bound.at_most_ms).collect();
                Row { at: scaled(mean.0), extra: scaled(mean.1), least: -1.0 }
            }
        }
    }
}

/// Each candidate's mean, and what settling adds to it.
pub(crate) fn mean_row(candidates: &[Candidate]) -> (Vec<f64>, Vec<f64>) {
    let extra = settling(candidates, |c, s| s.share * (s.cdf.mean_ms() - c.mean_ms));
    (candidates.iter().map(|c| c.mean_ms).collect(), extra)
}

fn settling(candidates: &[Candidate], of: impl Fn(&Candidate, &super::Settling) -> f64) -> Vec<f64> {
    if candidates.iter().all(|c| c.settling.is_none()) {
        return Vec::new();
    }
    candidates.iter().map(|c| c.settling.as_ref().map_or(0.0, |s| of(c, s))).collect()
}

/// Cost to be minimised: one per share, and one for use.
#[derive(Clone, PartialEq, Debug, Default)]
pub(crate) struct Cost {
    pub at: Vec<f64>,
    pub extra: Vec<f64>,
}

/// A solved program.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Solved {
    /// Candidates and their shares; empty if the program was given up before it had any.
    pub parts: Vec<(usize, f64)>,
    /// No solution costs less.
    pub bound: f64,
}

/// Branch-and-bound nodes after which an integer program is given up.
const NODES_MAX: u64 = 200_000;
/// Of shares of any size, the least that a candidate in use has where switching costs something.
const SHARE_MIN: f64 = 1e-4;

/// Division of a period.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Division {
    pub epochs: Epochs,
    /// By candidate, the share of a period that it takes to settle; empty if switching costs nothing.
    pub settling: Vec<f64>,
}

impl Division {
    pub fn new(candidates: &[Candidate], epochs: Epochs) -> Division {
        let share = |c: &Candidate| c.settling.as_ref().map_or(0.0, |s| s.share);
        let settles = candidates.iter().any(|c| c.settling.is_some());
        Division { epochs, settling: if settles { candidates.iter().map(share).collect() } else { Vec::new() } }
    }
}

/// Shares that keep all rows, at the least cost; `None` if there are none. Where switching costs something they are of two
/// candidates at least: a lone one doesn't switch, and is judged without a program.
pub(crate) fn minimise(rows: &[Row], cost: &Cost, division: &Division) -> Result<Option<Solved>, Unsolved> {
    minimise_within(rows, cost, division, NODES_MAX)
}

fn minimise_within(rows: &[Row], cost: &Cost, division: &Division, nodes: u64) -> Result<Option<Solved>, Unsolved> {
    let (epochs, switches) = (division.epochs, !division.settling.is_empty());
    let columns = unbeaten(rows, cost, switches);
    if switches && (columns.len() < 2 || epochs == Epochs::Count(1)) {
        return Ok(None);
    }
    let whole = match epochs {
        Epochs::Count(n) => f64::from(n),
        Epochs::Any => 1.0,
    };
    let mut problem = Problem::new(OptimizationDirection::Minimize);
    let part = |v: &[f64], i: usize| v.get(i).copied().unwrap_or(0.0);
    let shares: Vec<Variable> = columns
        .iter()
        .map(|&i| match epochs {
            Epochs::Count(n) => problem.add_integer_var(part(&cost.at, i), (0, n as i32)),
            Epochs::Any => problem.add_var(part(&cost.at, i), (0.0, 1.0)),
        })
        .collect();
    let used: Vec<Variable> = match switches {
        true => columns.iter().map(|&i| problem.add_binary_var(whole * part(&cost.extra, i))).collect(),
        false => Vec::new(),
    };
    problem.add_constraint(shares.iter().map(|&v| (v, 1.0)), ComparisonOp::Eq, whole);
    for ((&v, &u), &i) in shares.iter().zip(&used).zip(&columns) {
        problem.add_constraint([(v, 1.0), (u, -whole)], ComparisonOp::Le, 0.0);
        // What is in use lasts as long as it takes to settle, an epoch at least.
        let least = if epochs == Epochs::Any { division.settling[i].max(SHARE_MIN) } else { 1.0 };
        problem.add_constraint([(v, 1.0), (u, -least)], ComparisonOp::Ge, 0.0);
    }
    if switches {
        problem.add_constraint(used.iter().map(|&u| (u, 1.0)), ComparisonOp::Ge, 2.0);
    }
    for row in rows {
        let mut lhs = LinearExpr::empty();
        shares.iter().zip(&columns).for_each(|(&v, &i)| lhs.add(v, row.at[i]));
        used.iter().zip(&columns).for_each(|(&u, &i)| lhs.add(u, whole * part(&row.extra, i)));
        problem.add_constraint(lhs, ComparisonOp::Ge, whole * row.least);
    }
    let mut options = SolveOptions::default();
    options.node_limit = Some(nodes);
    match problem.solve_with(options) {
        Ok(SolveOutcome::Solution(s)) => {
            let found = columns.iter().zip(&shares).map(|(&i, &v)| (i, s.var_value(v)));
            let parts: Vec<(usize, f64)> = match epochs {
                Epochs::Count(_) => found.map(|(i, k)| (i, k.round() / whole)).filter(|p| p.1 > 0.0).collect(),
                Epochs::Any => normal(found.filter(|p| p.1 > 1e-9).collect()),
            };
            let bound = s.stats().best_bound.unwrap_or(f64::NEG_INFINITY) / whole;
            Ok(Some(Solved { parts, bound }))
        }
        Ok(SolveOutcome::Interrupted(i)) => {
            // Costs are never negative.
            let bound = i.stats().best_bound.map_or(0.0, |b| b / whole);
            Ok(Some(Solved { parts: Vec::new(), bound }))
        }
        Err(Error::Infeasible) => Ok(None),
        Err(e) => Err(Unsolved::Gave(e.to_string())),
    }
}

fn normal(mut parts: Vec<(usize, f64)>) -> Vec<(usize, f64)> {
    let sum: f64 = parts.iter().map(|p| p.1).sum();
    parts.iter_mut().for_each(|p| p.1 /= sum);
    parts
}

/// Candidates that no other one is at least as good as, in every row and in cost: replacing the worse by the better
/// keeps every row. Where using a candidate costs, that is one figure more, and the worse may only be left out if two are better
/// than it (the one that it shares a period with may be the one better) and its own settling helps in nothing.
fn unbeaten(rows: &[Row], cost: &Cost, switches: bool) -> Vec<usize> {
    let n = rows.iter().map(|r| r.at.len()).chain([cost.at.len()]).max().unwrap_or(0);
    let figures = |i: usize| {
        let part = |v: &[f64], sign: f64| v.get(i).map(|x| sign * x);
        let of_rows = rows.iter().flat_map(move |r| [part(&r.at, 1.0), part(&r.extra, 1.0)]);
        of_rows.chain([part(&cost.at, -1.0), part(&cost.extra, -1.0)]).flatten().collect::<Vec<f64>>()
    };
    let helps = |i: usize| {
        let is = |v: &[f64], sign: f64| v.get(i).is_some_and(|x| sign * x > 0.0);
        rows.iter().any(|r| is(&r.extra, 1.0)) || is(&cost.extra, -1.0)
    };
    let needed = if switches { 2 } else { 1 };
    // From the largest sum of figures down, only one that was kept can beat one that comes later.
    let mut order: Vec<(f64, usize, Vec<f64>)> =
        (0..n).map(|i| (i, figures(i))).map(|(i, f)| (f.iter().sum(), i, f)).collect();
    order.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    let mut kept: Vec<(usize, Vec<f64>)> = Vec::new();
    for (_, i, f) in order {
        let beats = |k: &&(usize, Vec<f64>)| k.1.iter().zip(&f).all(|(k, f)| k >= f);
        let is_beaten = kept.iter().filter(beats).take(needed).count() == needed;
        if !is_beaten || (switches && helps(i)) {
            kept.push((i, f));
        }
    }
    let mut columns: Vec<usize> = kept.into_iter().map(|k| k.0).collect();
    columns.sort_unstable();
    columns
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(at: &[f64], least: f64) -> Row {
        Row { at: at.to_vec(), extra: Vec::new(), least }
    }

    fn of(epochs: Epochs) -> Division {
        Division { epochs, settling: Vec::new() }
    }

    #[test]
    fn what_is_given_up_keeps_what_was_proven() {
        // Halves of two are the best, which three epochs aren't: one node doesn't get that far.
        let rows = [row(&[0.9, 0.1, 0.3], 0.45), row(&[0.1, 0.9, 0.3], 0.45)];
        let cost = Cost { at: vec![1.0, 1.0, 5.0], extra: Vec::new() };
        let division = of(Epochs::Count(3));
        let s = minimise_within(&rows, &cost, &division, 1).unwrap().unwrap();
        let exact = minimise(&rows, &cost, &division).unwrap();
        assert!(s.bound >= 0.0 && exact.as_ref().is_none_or(|e| s.bound <= e.bound), "{s:?} {exact:?}");
    }

    #[test]
    fn with_settling_two_are_used_and_what_settles_lasts() {
        let r = Row { at: vec![0.9, 0.8, 0.7], extra: vec![-0.05, -0.05, -0.05], least: 0.1 };
        let cost = Cost { at: vec![1.0, 2.0, 3.0], extra: vec![0.1; 3] };
        for epochs in [Epochs::Count(10), Epochs::Any] {
            let division = Division { epochs, settling: vec![0.05; 3] };
            let s = minimise(std::slice::from_ref(&r), &cost, &division).unwrap().unwrap();
            assert_eq!(s.parts.iter().map(|p| p.0).collect::<Vec<_>>(), [0, 1], "{epochs:?}");
            let least = if epochs == Epochs::Any { 0.05 } else { 0.1 };
            assert!((s.parts[1].1 - least).abs() < 1e-6, "{epochs:?}: {s:?}");
        }
        let one = Division { epochs: Epochs::Count(1), settling: vec![0.05; 3] };
        assert_eq!(minimise(&[r], &cost, &one).unwrap(), None);
    }

    #[test]
    fn two_bounds_need_two_configurations() {
        let rows = [row(&[0.9, 0.1, 0.3], 0.45), row(&[0.1, 0.9, 0.3], 0.45)];
        let s = minimise(&rows, &Cost::default(), &of(Epochs::Count(4))).unwrap().unwrap();
        assert_eq!(s.parts, [(0, 0.5), (1, 0.5)]);
        assert_eq!(
            minimise(&rows, &Cost::default(), &of(Epochs::Count(1))).unwrap(),
            None,
            "one epoch is one configuration"
        );
        let cost = Cost { at: vec![1.0, 2.0, 0.0], extra: Vec::new() };
        let s = minimise(&rows, &cost, &of(Epochs::Any)).unwrap().unwrap();
        assert!((s.bound - 1.125).abs() < 1e-6, "{s:?}"); // the third is free: 3/8 of the others do
    }

    #[test]
    fn a_beaten_candidate_is_left_out_and_an_equal_one_once() {
        let rows = [row(&[0.5, 0.4, 0.5, 0.6], 0.0), row(&[0.5, 0.4, 0.5, 0.1], 0.0)];
        assert_eq!(unbeaten(&rows, &Cost::default(), false), [0, 3]);
        let cost = Cost { at: vec![1.0, 0.5, 1.0, 1.0], extra: Vec::new() };
        assert_eq!(unbeaten(&rows, &cost, false), [0, 1, 3]);
        // Where switching costs, the better one may be all that the worse one shares a period with.
        let chain = |extra: &[f64]| [Row { at: vec![0.5, 0.4, 0.3, 0.2], extra: extra.to_vec(), least: 0.0 }];
        assert_eq!(unbeaten(&chain(&[-0.1; 4]), &Cost::default(), true), [0, 1]);
        assert_eq!(unbeaten(&chain(&[-0.1, -0.1, -0.1, 0.1]), &Cost::default(), true), [0, 1, 3]);
    }
}
