//! Good mixes of whole epochs near a mix of any shares.

use super::Search;
use crate::cdf::SHARE_TOLERANCE;
use crate::solve::program::Row;
use crate::solve::{Epochs, Mix};
use plimsoll_base::Rng;

/// Steps of the local search.
const STEPS_MAX: usize = 40;
/// Epochs that the local search moves where any shares are allowed.
const EPOCHS_OF_ANY: u32 = 200;
/// Times that it's annealed, each from the best so far.
const STARTS: u64 = 6;
/// Steps of each.
const ANNEAL_STEPS: usize = 10_000;
/// Candidates that the last local search tries.
const CANDIDATES_TRIED: usize = 2_000;
/// Amount by which a row may be missed where the bound itself is kept.
pub(super) const ROUNDING: f64 = 2.0 * SHARE_TOLERANCE;
/// Candidates that the local search tries besides the mix's own.
const NEAR: usize = 12;

impl Search<'_> {
    /// Rounds a mix to whole epochs and moves single epochs as long as that helps; `slopes` is how the relaxed error changes
    /// with each candidate's share.
    pub(super) fn improve(&mut self, parts: &[(usize, f64)], slopes: &[f64]) {
        let parts = self.real(parts);
        let n = match self.epochs {
            Epochs::Count(n) => n,
            Epochs::Any => {
                self.offer(Mix { parts: parts.clone() });
                EPOCHS_OF_ANY
            }
        };
        let near = self.near(&parts, slopes);
        self.walk(rounded(&parts, n), n, &near);
    }

    /// The same from the best that is known, trying every candidate.
    pub(super) fn finish(&mut self) {
        let Epochs::Count(n) = self.epochs else { return };
        for start in 0..STARTS {
            if let Some((mix, _)) = self.best.clone() {
                let annealed = self.anneal(&mix, n, start);
                self.offer(annealed);
            }
        }
        if let Some((mix, _)) = self.best.clone() {
            let all: Vec<usize> = (0..self.candidates.len().min(CANDIDATES_TRIED)).collect();
            self.walk(mix, n, &all);
        }
    }

    /// Out of a local minimum: single epochs change hands at random, for the worse ever more rarely.
    fn anneal(&self, from: &Mix, n: u32, start: u64) -> Mix {
        let mut rng = Rng::new(u64::from(n) << 8 | start, "target");
        let one = 1.0 / f64::from(n);
        let roughly = |m: &Mix| self.relaxed.roughly(&m.parts);
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
        let mut worth = self.relaxed.roughly(&mix.parts);
        for _ in 0..STEPS_MAX {
            let tries = moves(&mix, n, near).into_iter().map(|m| (self.relaxed.roughly(&m.parts), m));
            let Some((w, m)) = tries.min_by(|a, b| a.0.total_cmp(&b.0)) else { break };
            if w >= worth {
                break;
            }
            (worth, mix) = (w, m);
            self.offer(mix.clone());
        }
    }

    /// The mix's own candidates, those of the best known, and the ones along which the error falls the most.
    fn near(&self, parts: &[(usize, f64)], slopes: &[f64]) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.candidates.len()).collect();
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
        if self.may_keep(&mix.parts) && mix.keeps(self.candidates, self.objective) {
            mix.value(self.candidates, &self.objective.goal)
        } else {
            f64::INFINITY
        }
    }

    /// False if it's quickly seen that a bound isn't kept: they are linear in the shares, where nothing settles.
    pub(super) fn may_keep(&self, parts: &[(usize, f64)]) -> bool {
        let keeps = |r: &Row| parts.iter().map(|&(i, w)| w * r.at[i]).sum::<f64>() >= r.least - ROUNDING;
        self.relaxed.columns() > self.candidates.len() || self.rows.iter().all(keeps)
    }

    pub(super) fn offer(&mut self, mix: Mix) {
        let worth = self.worth(&mix);
        if worth.is_finite() && self.best.as_ref().is_none_or(|b| worth < b.1) {
            self.best = Some((mix, worth));
        }
    }

    /// Without the columns that only stand for settling.
    fn real(&self, parts: &[(usize, f64)]) -> Vec<(usize, f64)> {
        let mut real: Vec<(usize, f64)> = parts.iter().copied().filter(|p| p.0 < self.candidates.len()).collect();
        let sum: f64 = real.iter().map(|p| p.1).sum();
        if sum <= 0.0 {
            return vec![(0, 1.0)];
        }
        real.iter_mut().for_each(|p| p.1 /= sum);
        real
    }
}

/// `by` of the share of one candidate given to another.
pub(super) fn shifted(parts: &[(usize, f64)], from: usize, to: usize, by: f64) -> Vec<(usize, f64)> {
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
