//! The error of a mix from below, as a convex function of its shares.
//!
//! The square of a percentile's lateness is a sum of `t² - …` over stretches of time. The stretches are those at whose end the mix has not
//! yet reached that percentile's share. Earliness is such a sum, too. So in each stretch the error is a function of the one number
//! `F(t) = Σ share · F_i(t)`. This function is a staircase, falling up to the target's share there and rising beyond it. Its lower convex
//! envelope is piecewise linear, which makes the sum over stretches a convex function of the shares that never exceeds the error.
//!
//! In the limit of all percentiles the error is the squared Wasserstein distance, which is convex in mixtures, and the envelope is the
//! function. Where a percentile is known to lie within a range of stretches, the staircases have fewer steps, and the envelopes come
//! closer. Branch and bound divides these ranges ([`Ranges`]).

use crate::cdf::{Cdf, SHARE_TOLERANCE};

/// Times at which the error is summed.
const TIMES_MAX: usize = 600;

/// In which cells of time each percentile lies: cell `c` reaches from time `c - 1` (not included) to time `c`. Both ends ascend
/// with the percentiles.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Ranges {
    pub low: Vec<usize>,
    pub high: Vec<usize>,
}

impl Ranges {
    /// The percentile `j` lies in cell `k` or before.
    pub fn at_most(&self, j: usize, k: usize) -> Ranges {
        let mut r = self.clone();
        r.high[..=j].iter_mut().for_each(|h| *h = (*h).min(k));
        r
    }

    /// It lies behind cell `k`.
    pub fn behind(&self, j: usize, k: usize) -> Ranges {
        let mut r = self.clone();
        r.low[j..].iter_mut().for_each(|l| *l = (*l).max(k + 1));
        r
    }

    pub fn is_empty(&self) -> bool {
        self.low.iter().zip(&self.high).any(|(l, h)| l > h)
    }
}

/// A convex piecewise linear function: slopes and heights of lines, their maximum being it, and what is added to it.
struct Envelope {
    lines: Vec<(f64, f64)>,
    added: f64,
}

impl Envelope {
    /// The lower convex envelope of points with ascending `x`.
    fn of(points: &[(f64, f64)], added: f64) -> Envelope {
        let mut hull: Vec<(f64, f64)> = Vec::new();
        for &p in points {
            if let Some(l) = hull.last_mut().filter(|l| l.0 == p.0) {
                l.1 = l.1.min(p.1);
                continue;
            }
            while let [.., a, b] = hull[..] {
                // b lies above the line from a to p.
                if (b.1 - a.1) * (p.0 - a.0) >= (p.1 - a.1) * (b.0 - a.0) {
                    hull.pop();
                } else {
                    break;
                }
            }
            hull.push(p);
        }
        let line = |w: &[(f64, f64)]| {
            let slope = (w[1].1 - w[0].1) / (w[1].0 - w[0].0);
            (slope, w[0].1 - slope * w[0].0)
        };
        Envelope { lines: hull.windows(2).map(line).filter(|l| l.0 != 0.0 || l.1 != 0.0).collect(), added }
    }

    /// Height and slope at `x`; never below what is added.
    fn at(&self, x: f64) -> (f64, f64) {
        let lines = self.lines.iter().map(|&(slope, height)| (height + slope * x, slope));
        let (height, slope) = lines.fold((0.0, 0.0), |a: (f64, f64), b| if b.0 > a.0 { b } else { a });
        (self.added + height, slope)
    }
}

/// The envelopes within some [`Ranges`].
pub(super) struct Envelopes {
    late: Vec<Envelope>,
    early: Vec<Envelope>,
}

/// The columns' shares at the times at which the error is summed, and what each stretch counts for each percentile.
pub(super) struct Relaxed {
    pub times_ms: Vec<f64>,
    /// The target: shares, less what rounding may be off by, and times.
    pub points: Vec<(f64, f64)>,
    /// By stretch: the lateness of the percentiles from the n-th on, summed.
    late_from: Vec<Vec<f64>>,
    /// By stretch: the earliness of the first n percentiles, summed.
    early_of: Vec<Vec<f64>>,
    /// Each column's share at each time.
    shares: Vec<Vec<f64>>,
}

impl Relaxed {
    pub fn new(columns: &[&Cdf], target: &[(f64, f64)]) -> Relaxed {
        let times_ms = times(columns, target);
        let n = target.len() as f64;
        let square = |x: f64| x.max(0.0).powi(2);
        let (mut late_from, mut early_of) = (Vec::new(), Vec::new());
        for w in times_ms.windows(2) {
            // Lateness within (w0, w1] counts where even the share at w1 is too low, earliness where the share at w0 is
            // already too high: below the truth, whatever the shares between are.
            let mut late = vec![0.0; target.len() + 1];
            for (j, &(_, t)) in target.iter().enumerate().rev() {
                late[j] = late[j + 1] + (square(w[1] - t) - square(w[0] - t)) / n;
            }
            let mut early = vec![0.0; target.len() + 1];
            for (j, &(_, t)) in target.iter().enumerate() {
                early[j + 1] = early[j] + (square(t - w[0]) - square(t - w[1])) / n;
            }
            late_from.push(late);
            early_of.push(early);
        }
        let shares = columns.iter().map(|c| times_ms.iter().map(|&t| c.at(t)).collect()).collect();
        let points = target.iter().map(|&(s, t)| (s - SHARE_TOLERANCE, t)).collect();
        Relaxed { times_ms, points, late_from, early_of, shares }
    }

    /// Anywhere.
    pub fn everywhere(&self) -> Ranges {
        let n = self.points.len();
        Ranges { low: vec![0; n], high: vec![self.times_ms.len() - 1; n] }
    }

    /// A column's share at a time.
    pub fn share(&self, column: usize, time: usize) -> f64 {
        self.shares[column][time]
    }

    /// A column's shares at all times.
    pub fn shares_of(&self, column: usize) -> &[f64] {
        &self.shares[column]
    }

    /// Returns a lower bound of the error of a mix with these shares: each percentile lies somewhere in its cell.
    pub fn least_error(&self, mixed: &[f64]) -> f64 {
        let (mut c, mut sum) = (0, 0.0);
        for &(s, t) in &self.points {
            while c + 1 < mixed.len() && mixed[c] < s {
                c += 1;
            }
            let from = if c > 0 { self.times_ms[c - 1] } else { 0.0 };
            sum += (from - t).max(t - self.times_ms[c]).max(0.0).powi(2);
        }
        sum / self.points.len() as f64
    }

    pub fn columns(&self) -> usize {
        self.shares.len()
    }

    /// The envelopes where the percentiles lie within `r`.
    pub fn within(&self, r: &Ranges) -> Envelopes {
        let share = |j: usize| self.points[j].0;
        let n = self.points.len();
        let (mut late, mut early) = (Vec::new(), Vec::new());
        for m in 0..self.times_ms.len() - 1 {
            // Not late before a, late for sure from b on; between them it depends on the share at the stretch's end.
            let (a, b) = (r.high.partition_point(|&h| h <= m + 1), r.low.partition_point(|&l| l <= m + 1));
            let rest = |j: usize| self.late_from[m][j] - self.late_from[m][b];
            let mut falls = vec![(if a > 0 { share(a - 1) } else { 0.0 }, rest(a.min(b)))];
            falls.extend((a..b).map(|j| (share(j), rest(j + 1))));
            late.push(Envelope::of(&falls, self.late_from[m][b]));
            // Early for sure before a, not early from b on; between them it depends on the share at its beginning.
            let (a, b) = (r.high.partition_point(|&h| h <= m), r.low.partition_point(|&l| l <= m));
            let sum = |j: usize| self.early_of[m][j] - self.early_of[m][a.min(b)];
            let mut rises = vec![(if a > 0 { share(a - 1) } else { 0.0 }, 0.0)];
            rises.extend((a..b).map(|j| (share(j), sum(j))));
            rises.extend((a < b).then(|| (if b < n { share(b) } else { 1.0 }, sum(b))));
            early.push(Envelope::of(&rises, self.early_of[m][a.min(b)]));
        }
        Envelopes { late, early }
    }

    pub fn mixed(&self, parts: &[(usize, f64)]) -> Vec<f64> {
        let mut mixed = vec![0.0; self.times_ms.len()];
        for &(i, w) in parts {
            mixed.iter_mut().zip(&self.shares[i]).for_each(|(m, s)| *m += w * s);
        }
        mixed
    }

    /// The relaxed error of a mix, and its slope along every column's share.
    pub fn slope(&self, e: &Envelopes, parts: &[(usize, f64)]) -> (f64, Vec<f64>) {
        let mixed = self.mixed(parts);
        let (mut height, mut along) = (0.0, vec![0.0; mixed.len()]);
        for m in 0..e.late.len() {
            for (envelope, x) in [(&e.late[m], m + 1), (&e.early[m], m)] {
                let (h, slope) = envelope.at(mixed[x]);
                height += h;
                along[x] += slope;
            }
        }
        let slopes = self.shares.iter().map(|c| c.iter().zip(&along).map(|(a, b)| a * b).sum()).collect();
        (height, slopes)
    }

    fn error(&self, e: &Envelopes, mixed: &[f64]) -> f64 {
        (0..e.late.len()).map(|m| e.late[m].at(mixed[m + 1]).0 + e.early[m].at(mixed[m]).0).sum()
    }

    /// Returns the part of the share of `from` that is best moved to `to`: the error is convex along the way.
    pub fn best_move(&self, e: &Envelopes, parts: &[(usize, f64)], from: (usize, f64), to: usize) -> f64 {
        let mixed = self.mixed(parts);
        let along: Vec<f64> = self.shares[to].iter().zip(&self.shares[from.0]).map(|(a, b)| a - b).collect();
        let at = |x: f64| self.error(e, &mixed.iter().zip(&along).map(|(m, d)| m + x * d).collect::<Vec<_>>());
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

    /// In which cell each percentile of a mix lies.
    pub fn cells(&self, parts: &[(usize, f64)]) -> Vec<usize> {
        let mixed = self.mixed(parts);
        let cell = |&(s, _): &(f64, f64)| mixed.partition_point(|&x| x < s).min(mixed.len() - 1);
        self.points.iter().map(cell).collect()
    }

    /// The error of the percentiles on the grid of times: quick, and close to the truth.
    pub fn roughly(&self, parts: &[(usize, f64)]) -> f64 {
        let cells = self.cells(parts);
        let square = |(c, &(_, t)): (usize, &(f64, f64))| (self.times_ms[c] - t).powi(2);
        cells.into_iter().zip(&self.points).map(square).sum::<f64>() / self.points.len() as f64
    }
}

/// Chooses the times: the target's own, both ends, the columns' percentiles, and evenly spaced ones, as an error has the same
/// weight where percentiles are few. At most [`TIMES_MAX`].
fn times(columns: &[&Cdf], target: &[(f64, f64)]) -> Vec<f64> {
    let longest = columns.iter().map(|c| c.max_ms()).fold(0.0, f64::max);
    let mut times = vec![0.0, longest];
    times.extend(target.iter().map(|p| p.1));
    let every = (columns.len() * target.len()).div_ceil(TIMES_MAX * 8).max(1);
    let spread = columns.iter().flat_map(|c| target.iter().map(move |p| c.quantile(p.0)));
    let mut more: Vec<f64> = spread.step_by(every).collect();
    more.sort_by(f64::total_cmp);
    let room = (TIMES_MAX - times.len().min(TIMES_MAX)) / 2;
    let step = more.len().div_ceil(room.max(1)).max(1);
    times.extend(more.into_iter().step_by(step));
    // Beyond the target's reach how late a percentile is needn't be known closely: it's too late.
    let reach = target.last().map_or(longest, |p| 1.5 * p.1).min(longest);
    times.extend((1..=room).map(|i| reach * i as f64 / room as f64));
    times.sort_by(f64::total_cmp);
    times.dedup();
    times
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_base::Rng;

    /// The relaxed value is never above the error, and never below the value of less knowledge. This holds for any mix and any
    /// ranges that contain its percentiles.
    #[test]
    fn it_is_below_the_error_and_the_closer_the_more_is_known() {
        let mut rng = Rng::new(4, "relaxed");
        let draw = |rng: &mut Rng, scale: f64| {
            let all: Vec<f64> = (0..80).map(|_| rng.exp1() * scale).collect();
            Cdf::of_samples(&all).unwrap()
        };
        for _ in 0..40 {
            let cdfs: Vec<Cdf> = (0..4).map(|i| draw(&mut rng, 1.0 + f64::from(i))).collect();
            let made = draw(&mut rng, 2.0);
            let target: Vec<(f64, f64)> =
                (1..=20).map(|i| f64::from(i) / 20.0).map(|s| (s, made.quantile(s))).collect();
            let columns: Vec<&Cdf> = cdfs.iter().collect();
            let relaxed = Relaxed::new(&columns, &target);
            let first = rng.unit();
            let parts = [(0, first), (2, 1.0 - first)];
            let mix = Cdf::mix(&[(first, &cdfs[0]), (1.0 - first, &cdfs[2])]);
            let error = super::super::mean_squared_error(&mix, &target);
            let everywhere = relaxed.everywhere();
            let root = relaxed.slope(&relaxed.within(&everywhere), &parts).0;
            let cells = relaxed.cells(&parts);
            let j = rng.below(20) as usize;
            let around = everywhere.at_most(j, cells[j] + 3).behind(j, cells[j].saturating_sub(3));
            let around = if cells[j] < 3 { everywhere.at_most(j, cells[j] + 3) } else { around };
            let known = relaxed.slope(&relaxed.within(&around), &parts).0;
            let exact = Ranges { low: cells.clone(), high: cells.clone() };
            let all_known = relaxed.slope(&relaxed.within(&exact), &parts).0;
            assert!(root <= known + 1e-9 && known <= all_known + 1e-9, "{root} {known} {all_known}");
            assert!(all_known <= error + 1e-9, "{all_known} {error}");
        }
    }
}
