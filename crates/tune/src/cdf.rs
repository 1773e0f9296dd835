//! A distribution of times, as its whole CDF.

use std::fmt;

/// A discrete distribution: ascending distinct values in milliseconds, each with the share of executions that took at
/// most that long. The last share is 1.
#[derive(Clone, PartialEq, Debug)]
pub struct Cdf {
    values_ms: Vec<f64>,
    shares: Vec<f64>,
}

/// Shares are equal up to this: the solver meets a bound only up to a tenth of it.
pub const SHARE_TOLERANCE: f64 = 1e-6;

/// Reason why there is no distribution.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NoCdf {
    /// No values, or all of weight zero.
    Empty,
    /// A value or weight is negative, infinite or not a number.
    NotATime,
}

impl fmt::Display for NoCdf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            NoCdf::Empty => "there are no recorded times",
            NoCdf::NotATime => "a time or count is negative or no number",
        })
    }
}
impl std::error::Error for NoCdf {}

impl Cdf {
    /// The distribution of values with weights, in any order; equal values are joined.
    ///
    /// # Errors
    /// If nothing has weight, or a value or weight is negative or not finite.
    pub fn of_weighted(mut points: Vec<(f64, f64)>) -> Result<Cdf, NoCdf> {
        if points.iter().any(|&(v, w)| !v.is_finite() || !w.is_finite() || v < 0.0 || w < 0.0) {
            return Err(NoCdf::NotATime);
        }
        points.retain(|p| p.1 > 0.0);
        if points.is_empty() {
            return Err(NoCdf::Empty);
        }
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        let total: f64 = points.iter().map(|p| p.1).sum();
        let (mut values_ms, mut shares) = (Vec::with_capacity(points.len()), Vec::with_capacity(points.len()));
        let mut sum = 0.0;
        for (v, w) in points {
            sum += w;
            if values_ms.last() == Some(&v) {
                *shares.last_mut().expect("as long as the values") = sum / total;
            } else {
                values_ms.push(v);
                shares.push(sum / total);
            }
        }
        *shares.last_mut().expect("not empty") = 1.0;
        Ok(Cdf { values_ms, shares })
    }

    /// The distribution of recorded values.
    ///
    /// # Errors
    /// As [`Cdf::of_weighted`].
    pub fn of_samples(samples_ms: &[f64]) -> Result<Cdf, NoCdf> {
        Cdf::of_weighted(samples_ms.iter().map(|&v| (v, 1.0)).collect())
    }

    /// The distribution of a mixture: each part with its weight (they needn't sum to 1). This is equation 5.3 of
    /// OpTune: configurations that share a period mix their CDFs linearly.
    ///
    /// # Panics
    /// If no part has a positive weight.
    pub fn mix(parts: &[(f64, &Cdf)]) -> Cdf {
        let masses = parts.iter().flat_map(|&(w, c)| c.masses().map(move |(v, m)| (v, w * m)));
        Cdf::of_weighted(masses.collect()).expect("a mixture has a part of positive weight")
    }

    /// Each value with its own share.
    pub fn masses(&self) -> impl Iterator<Item = (f64, f64)> + '_ {
        let before = std::iter::once(0.0).chain(self.shares.iter().copied());
        self.values_ms.iter().zip(self.shares.iter().zip(before)).map(|(&v, (&s, b))| (v, s - b))
    }

    /// Ascending values with the share at most that large.
    pub fn points(&self) -> impl Iterator<Item = (f64, f64)> + '_ {
        self.values_ms.iter().copied().zip(self.shares.iter().copied())
    }

    /// The values at which it rises.
    pub fn values_ms(&self) -> &[f64] {
        &self.values_ms
    }

    /// The share of executions that took at most `t_ms`.
    pub fn at(&self, t_ms: f64) -> f64 {
        match self.values_ms.partition_point(|&v| v <= t_ms) {
            0 => 0.0,
            n => self.shares[n - 1],
        }
    }

    /// The smallest value that at least `share` of the executions keep: the quantile function, `share` in 0..=1.
    pub fn quantile(&self, share: f64) -> f64 {
        let at = self.shares.partition_point(|&s| s < share - SHARE_TOLERANCE);
        self.values_ms[at.min(self.values_ms.len() - 1)]
    }

    /// The mean.
    pub fn mean_ms(&self) -> f64 {
        self.masses().map(|(v, m)| v * m).sum()
    }

    /// The largest value.
    pub fn max_ms(&self) -> f64 {
        *self.values_ms.last().expect("never empty")
    }

    /// The largest difference between the two shares at any time (Kolmogorov–Smirnov), 0 to 1.
    pub fn ks(&self, other: &Cdf) -> f64 {
        let (mut i, mut j, mut most) = (0, 0, 0.0f64);
        while i < self.values_ms.len() || j < other.values_ms.len() {
            let a = self.values_ms.get(i).copied().unwrap_or(f64::INFINITY);
            let b = other.values_ms.get(j).copied().unwrap_or(f64::INFINITY);
            i += usize::from(a <= b);
            j += usize::from(b <= a);
            let share = |shares: &[f64], n: usize| if n == 0 { 0.0 } else { shares[n - 1] };
            most = most.max((share(&self.shares, i) - share(&other.shares, j)).abs());
        }
        most
    }

    /// [`Cdf::ks`], times being equal up to the share `blur` of them: a distribution that was computed on a grid, or read
    /// from a histogram, has its steps a little beside those that were recorded.
    pub fn ks_blurred(&self, other: &Cdf, blur: f64) -> f64 {
        let gap = |t: f64| {
            let ours = self.at(t);
            (other.at(t / (1.0 + blur)) - ours).max(ours - other.at(t * (1.0 + blur)))
        };
        // The other's steps count from where the blur has let go of them.
        let after = other.values_ms.iter().map(|t| t * (1.0 + blur) * (1.0 + 1e-9));
        let times = self.values_ms.iter().chain(&other.values_ms).copied().chain(after);
        times.map(gap).fold(0.0, f64::max)
    }

    /// The same with fewer points: neighbours are joined into the larger as long as the joined share stays below
    /// `share_step` and below a fiftieth of what lies above it. So no percentile becomes smaller, and none grows past
    /// the one `share_step` higher.
    #[must_use]
    pub fn thinned(&self, share_step: f64) -> Cdf {
        let mut kept: Vec<(f64, f64)> = Vec::new();
        let mut since = 0.0;
        let last = self.values_ms.len() - 1;
        for (i, (v, s)) in self.points().enumerate() {
            let next = self.shares.get(i + 1).copied().unwrap_or(1.0);
            if i == last || next - since > share_step.min((1.0 - since) / 50.0) {
                kept.push((v, s));
                since = s;
            }
        }
        let (values_ms, shares) = kept.into_iter().unzip();
        Cdf { values_ms, shares }
    }

    /// Every value times `factor`, which is positive.
    #[must_use]
    pub fn scaled(&self, factor: f64) -> Cdf {
        assert!(factor > 0.0 && factor.is_finite(), "a scale of {factor}");
        Cdf { values_ms: self.values_ms.iter().map(|v| v * factor).collect(), shares: self.shares.clone() }
    }
}

/// The difference between two samples that chance alone exceeds with probability `alpha`, if both have one
/// distribution (the two-sample Kolmogorov–Smirnov test's asymptotic critical value).
pub fn ks_critical(alpha: f64, n: f64, m: f64) -> f64 {
    (-(alpha / 2.0).ln() / 2.0).sqrt() * ((n + m) / (n * m)).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_base::Rng;

    #[test]
    fn quantiles_and_shares_are_those_of_the_sorted_values() {
        let c = Cdf::of_samples(&[3.0, 1.0, 2.0, 2.0]).unwrap();
        assert_eq!((c.at(0.5), c.at(1.0), c.at(2.5), c.at(9.0)), (0.0, 0.25, 0.75, 1.0));
        assert_eq!((c.quantile(0.25), c.quantile(0.26), c.quantile(0.75), c.quantile(1.0)), (1.0, 2.0, 2.0, 3.0));
        assert_eq!((c.mean_ms(), c.max_ms()), (2.0, 3.0));
        assert_eq!(Cdf::of_samples(&[]), Err(NoCdf::Empty));
        assert_eq!(Cdf::of_samples(&[1.0, f64::NAN]), Err(NoCdf::NotATime));
        assert_eq!(Cdf::of_samples(&[-1.0]), Err(NoCdf::NotATime));
    }

    #[test]
    fn a_mixture_is_linear_in_its_parts() {
        let (a, b) = (Cdf::of_samples(&[1.0, 2.0]).unwrap(), Cdf::of_samples(&[2.0, 5.0]).unwrap());
        let m = Cdf::mix(&[(1.0, &a), (3.0, &b)]);
        for t in [0.0, 1.0, 2.0, 4.0, 5.0] {
            assert!((m.at(t) - (a.at(t) + 3.0 * b.at(t)) / 4.0).abs() < 1e-12, "at {t}");
        }
    }

    #[test]
    fn ks_is_the_largest_gap() {
        let (a, b) = (Cdf::of_samples(&[1.0, 2.0, 3.0, 4.0]).unwrap(), Cdf::of_samples(&[3.0, 4.0, 5.0, 6.0]).unwrap());
        assert_eq!((a.ks(&b), b.ks(&a), a.ks(&a)), (0.5, 0.5, 0.0));
        let apart = |v| Cdf::of_samples(&[v]).unwrap();
        assert_eq!((apart(3.0).ks_blurred(&apart(1.0), 0.01), apart(1.0).ks_blurred(&apart(3.0), 0.01)), (1.0, 1.0));
        let beside = a.scaled(1.005);
        assert_eq!((a.ks(&beside), a.ks_blurred(&beside, 0.01), a.ks_blurred(&b, 0.01)), (0.25, 0.0, 0.5));
        // Two samples of one distribution differ by more than the critical value about as often as it says.
        let mut rng = Rng::new(4, "ks");
        let mut draw = || Cdf::of_samples(&(0..200).map(|_| rng.exp1()).collect::<Vec<_>>()).unwrap();
        let alarms = (0..500).filter(|_| draw().ks(&draw()) > ks_critical(0.05, 200.0, 200.0)).count();
        assert!((8..=40).contains(&alarms), "{alarms} of 500");
    }

    #[test]
    fn thinning_never_flatters() {
        let mut rng = Rng::new(5, "thin");
        let c = Cdf::of_samples(&(0..20_000).map(|_| rng.exp1()).collect::<Vec<_>>()).unwrap();
        let thin = c.thinned(1e-3);
        assert!(thin.values_ms().len() < 2_000, "{}", thin.values_ms().len());
        for p in [0.01, 0.5, 0.9, 0.99, 0.999, 1.0] {
            let (exact, ours) = (c.quantile(p), thin.quantile(p));
            assert!(exact <= ours && ours <= c.quantile((p + 1e-3).min(1.0)), "p{p}: {exact} {ours}");
        }
    }
}
