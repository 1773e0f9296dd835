//! Explains why bounds can't be kept together, and finds the nearest possible ones (OT-M9).

use super::program::{Cost, Division, Row, minimise};
use super::{Candidate, Epochs, Mix, Unsolved, least};
use crate::objective::{Bound, Goal, Objective};
use std::fmt;

/// Reason, and the nearest possible bounds.
#[derive(Clone, PartialEq, Debug)]
pub struct Explanation {
    /// Bounds that can't be kept together; without any one of them the others of them can.
    pub conflict: Vec<Bound>,
    /// For each bound of the objective, the least that its figure can be if nothing else is asked.
    pub alone_ms: Vec<(Bound, f64)>,
    /// All bounds can be kept if each is this many times as high.
    pub stretch: f64,
    /// A mix that keeps them then.
    pub nearest: Mix,
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let conflict: Vec<String> = self.conflict.iter().map(Bound::to_string).collect();
        let what = if conflict.len() == 1 { "can't be kept at all" } else { "can't be kept together" };
        write!(f, "{} {what}", conflict.join(" and "))?;
        for (bound, least) in &self.alone_ms {
            write!(f, "; {} alone can be {least:.3} ms", bound.of)?;
        }
        write!(f, "; all can be kept if each is {:.3} times as high", self.stretch)
    }
}

/// Stretches tried at most: a bound may be off by this factor.
const STRETCH_MAX: f64 = 1e6;

/// A mix that keeps these bounds; `None` if it's proven that none does.
pub(super) fn can(candidates: &[Candidate], epochs: Epochs, bounds: &[Bound]) -> Result<Option<Mix>, Unsolved> {
    if let Some(one) = candidates.iter().position(|c| c.keeps(bounds)) {
        return Ok(Some(Mix::only(one)));
    }
    let rows: Vec<Row> = bounds.iter().map(|b| Row::of_bound(candidates, b)).collect();
    match minimise(&rows, &Cost::default(), &Division::new(candidates, epochs))? {
        Some(s) if s.parts.is_empty() => Err(Unsolved::Gave("whether the bounds can be kept at all".into())),
        found => Ok(found.map(|s| Mix { parts: s.parts })),
    }
}

/// Explains bounds that no mix keeps.
pub(super) fn explain(
    candidates: &[Candidate],
    epochs: Epochs,
    objective: &Objective,
) -> Result<Explanation, Unsolved> {
    // Leave out bounds one by one as long as what remains still can't be kept.
    let mut conflict = objective.bounds.clone();
    let mut i = 0;
    while i < conflict.len() {
        let mut fewer = conflict.clone();
        fewer.remove(i);
        if can(candidates, epochs, &fewer)?.is_none() {
            conflict = fewer;
        } else {
            i += 1;
        }
    }
    let mut alone_ms = Vec::new();
    for &b in &objective.bounds {
        let free = Objective { goal: Goal::Least(vec![(b.of, 1.0)]), bounds: Vec::new() };
        let found = least::solve(candidates, epochs, &free, &[(b.of, 1.0)])?;
        alone_ms.push((b, found.expect("without bounds there is a best").value));
    }
    let stretched = |by: f64| -> Vec<Bound> {
        objective.bounds.iter().map(|b| Bound { at_most_ms: b.at_most_ms * by, ..*b }).collect()
    };
    let (mut low, mut high) = (1.0f64, 2.0f64);
    let mut nearest = can(candidates, epochs, &stretched(high))?;
    while nearest.is_none() && high < STRETCH_MAX {
        (low, high) = (high, high * 4.0);
        nearest = can(candidates, epochs, &stretched(high))?;
    }
    let Some(mut nearest) = nearest else {
        return Err(Unsolved::Gave(format!("the bounds are beyond {STRETCH_MAX} times too low")));
    };
    while high / low > 1.001 {
        let middle = (low * high).sqrt();
        match can(candidates, epochs, &stretched(middle))? {
            Some(mix) => (nearest, high) = (mix, middle),
            None => low = middle,
        }
    }
    Ok(Explanation { conflict, alone_ms, stretch: high, nearest })
}
