//! An examination of all mixes, if they are few enough. The result is a proof.
//!
//! On the grid of times the cell of each of a mix's percentiles is known, and so a lower bound of its error. Only mixes that
//! this bound doesn't exclude are computed exactly. OpTune's own systems, 20 to 36 configurations and five epochs, are such.

use super::Search;
use super::local::ROUNDING;
use crate::solve::program::Row;
use crate::solve::{Epochs, GAP_PROVEN, Mix};

/// Difference below which two values are equal.
const EQUAL: f64 = GAP_PROVEN / 2.0;

/// Mixes that are looked at: a second's work.
const MIXES_MAX: u64 = 400_000;

/// Multisets of `epochs` out of `n`, if they are no more than [`MIXES_MAX`].
fn few(n: u64, epochs: u64) -> bool {
    let mut count = 1u64;
    for k in 1..=epochs {
        // Binomial of n + k - 1 over k, exact at every step; it only grows.
        count = count.saturating_mul(n + k - 1) / k;
        if count > MIXES_MAX {
            return false;
        }
    }
    true
}

impl Search<'_> {
    /// Looks at every mix, if they are few: what none gets below. `None` if they are too many.
    pub(super) fn complete(&mut self) -> Option<f64> {
        let Epochs::Count(epochs) = self.epochs else { return None };
        // What settling does to the percentiles isn't on the grid.
        let is_plain = self.relaxed.columns() == self.candidates.len();
        if !is_plain || !few(self.candidates.len() as u64, u64::from(epochs)) {
            return None;
        }
        let zero = vec![0.0; self.relaxed.times_ms.len()];
        let mut sums = vec![zero; epochs as usize + 1];
        self.all_from(0, &mut vec![0; epochs as usize], 0, &mut sums);
        // What was ruled out is no better than the best, but for what counts as equal.
        self.best.as_ref().map(|b| b.1 * (1.0 - EQUAL)).or(Some(f64::INFINITY))
    }

    /// All mixes whose first epochs have what `chosen` says, the others candidates from `first` on.
    fn all_from(&mut self, first: usize, chosen: &mut Vec<usize>, at: usize, sums: &mut [Vec<f64>]) {
        let one = 1.0 / chosen.len() as f64;
        for i in first..self.candidates.len() {
            chosen[at] = i;
            let (before, after) = sums.split_at_mut(at + 1);
            let row = self.relaxed.shares_of(i);
            for ((sum, old), share) in after[0].iter_mut().zip(&before[at]).zip(row) {
                *sum = old + one * share;
            }
            if at + 1 < chosen.len() {
                self.all_from(i, chosen, at + 1, sums);
                continue;
            }
            let least = self.relaxed.least_error(&sums[at + 1]);
            let may_be_best = self.best.as_ref().is_none_or(|b| least < b.1 * (1.0 - EQUAL));
            let row = |r: &Row| chosen.iter().map(|&i| r.at[i]).sum::<f64>() * one >= r.least - ROUNDING;
            if may_be_best && self.rows.iter().all(row) {
                self.offer(mix_of(chosen));
            }
        }
    }
}

/// A mix of these candidates, in ascending order, an epoch each.
fn mix_of(chosen: &[usize]) -> Mix {
    let one = 1.0 / chosen.len() as f64;
    let mut parts: Vec<(usize, f64)> = Vec::new();
    for &i in chosen {
        match parts.last_mut() {
            Some(p) if p.0 == i => p.1 += one,
            _ => parts.push((i, one)),
        }
    }
    Mix { parts }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn optunes_systems_are_few() {
        assert!(few(20, 5) && few(30, 5) && few(8, 4) && few(1, 100_000));
        assert!(!few(400, 5) && !few(46_656, 10) && !few(u64::from(u32::MAX), 100_000));
    }
}
