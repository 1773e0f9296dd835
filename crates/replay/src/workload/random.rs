//! Random draws that workloads share: Zipf, scrambling, sizes.

use crate::workload::BadWorkload;
use plimsoll_base::Rng;

/// Zipf's law over ranks `1..=n`: rank `k` comes with a probability proportional to `k^-theta`. Exact, without
/// tables, by rejection-inversion (Hörmann and Derflinger, "Rejection-inversion to generate variates from monotone
/// discrete distributions", 1996): about 1.1 tries a draw whatever `n`.
#[derive(Clone, Debug)]
pub struct Zipf {
    n: f64,
    theta: f64,
    h_at_1: f64,
    h_at_n: f64,
    /// Distances from a rank up to here are accepted without a second look.
    s: f64,
}

impl Zipf {
    /// Ranks `1..=n` with exponent `theta`.
    ///
    /// # Errors
    /// If `n` is zero or `theta` isn't positive and finite.
    pub fn new(n: u64, theta: f64) -> Result<Zipf, BadWorkload> {
        if n == 0 {
            return Err(BadWorkload::new("zipf items", "there must be at least one"));
        }
        if !(theta > 0.0 && theta.is_finite()) {
            return Err(BadWorkload::new("zipf theta", format!("{theta} is not a positive number; YCSB's is 0.99")));
        }
        let mut z = Zipf { n: n as f64, theta, h_at_1: 0.0, h_at_n: 0.0, s: 0.0 };
        z.h_at_1 = z.integral(1.5) - 1.0;
        z.h_at_n = z.integral(z.n + 0.5);
        z.s = 2.0 - z.inverse(z.integral(2.5) - 2f64.powf(-theta));
        Ok(z)
    }

    /// The integral of `x^-theta`, up to a constant.
    fn integral(&self, x: f64) -> f64 {
        let e = 1.0 - self.theta;
        let ln = x.ln();
        // expm1 keeps precision near theta = 1, where the plain form divides zero by zero.
        if e.abs() < 1e-12 { ln } else { (e * ln).exp_m1() / e }
    }

    fn inverse(&self, y: f64) -> f64 {
        let e = 1.0 - self.theta;
        // Rounding may push the argument below -1, of which there is no logarithm.
        if e.abs() < 1e-12 { y.exp() } else { ((e * y).max(-1.0).ln_1p() / e).exp() }
    }

    /// A rank, 1 being the most frequent.
    pub fn draw(&self, rng: &mut Rng) -> u64 {
        loop {
            let u = self.h_at_n + rng.unit() * (self.h_at_1 - self.h_at_n);
            let x = self.inverse(u);
            let k = x.round().clamp(1.0, self.n);
            if k - x <= self.s || u >= self.integral(k + 0.5) - k.powf(-self.theta) {
                return k as u64;
            }
        }
    }
}

/// FNV-1a over the eight bytes of `value`, lowest first, folded to a non-negative 63-bit number: how YCSB scatters
/// popular items over the key space (`Utils.fnvhash64`).
pub fn fnv_scramble(value: u64) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    for byte in value.to_le_bytes() {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    }
    (hash as i64).unsigned_abs()
}

/// A gamma draw of shape 1.5 with the given mean: filebench's file sizes. A gamma of shape 1/2 is half a squared
/// normal, and an exponential adds 1 to the shape.
pub fn gamma_1_5(rng: &mut Rng, mean: f64) -> f64 {
    let z = rng.normal();
    (rng.exp1() + 0.5 * z * z) / 1.5 * mean
}

/// Request sizes and their weights.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Sizes {
    /// Sizes and cumulative weights.
    cumulative: Vec<(u64, u64)>,
}

impl Sizes {
    /// One size for all.
    ///
    /// # Errors
    /// If it is zero.
    pub fn fixed(bytes: u64) -> Result<Sizes, BadWorkload> {
        Sizes::weighted(&[(bytes, 1)])
    }

    /// `(bytes, weight)`: fio's `bssplit`.
    ///
    /// # Errors
    /// If there are none, a size is zero, or the weights are all zero or overflow.
    pub fn weighted(parts: &[(u64, u64)]) -> Result<Sizes, BadWorkload> {
        let mut sum = 0u64;
        let mut cumulative = Vec::new();
        for &(bytes, weight) in parts {
            if bytes == 0 {
                return Err(BadWorkload::new("sizes", "a size of no bytes"));
            }
            sum = sum.checked_add(weight).ok_or_else(|| BadWorkload::new("sizes", "the weights overflow"))?;
            cumulative.push((bytes, sum));
        }
        if sum == 0 {
            return Err(BadWorkload::new("sizes", "no size has a weight"));
        }
        Ok(Sizes { cumulative })
    }

    /// A size.
    pub fn draw(&self, rng: &mut Rng) -> u64 {
        let (last, total) = self.cumulative[self.cumulative.len() - 1];
        // Drawing nothing for a single size keeps the stream of addresses the same as a user changes the size.
        if self.cumulative.len() == 1 {
            return last;
        }
        let at = rng.below(total);
        let i = self.cumulative.partition_point(|&(_, sum)| sum <= at);
        self.cumulative[i].0
    }

    /// The smallest size that has a weight.
    pub fn min(&self) -> u64 {
        self.cumulative.iter().filter(|c| c.1 > 0).map(|c| c.0).min().unwrap_or(1)
    }

    /// The largest size.
    pub fn max(&self) -> u64 {
        self.cumulative.iter().map(|c| c.0).max().unwrap_or(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Draws against the formula: each rank's count within five standard deviations, and the whole by chi-squared.
    fn check_zipf(n: u64, theta: f64, seed: u64) {
        let zipf = Zipf::new(n, theta).unwrap();
        let mut rng = Rng::new(seed, "zipf");
        let draws = 400_000;
        let mut counts = vec![0u64; n as usize];
        for _ in 0..draws {
            counts[zipf.draw(&mut rng) as usize - 1] += 1;
        }
        let weight = |k: u64| (k as f64).powf(-theta);
        let sum: f64 = (1..=n).map(weight).sum();
        let mut chi_squared = 0.0;
        for (i, &count) in counts.iter().enumerate() {
            let p = weight(i as u64 + 1) / sum;
            let expected = p * f64::from(draws);
            let sigma = (expected * (1.0 - p)).sqrt();
            assert!(
                (count as f64 - expected).abs() < 5.0 * sigma,
                "theta {theta}, rank {}: {count} for {expected}",
                i + 1
            );
            chi_squared += (count as f64 - expected).powi(2) / expected;
        }
        let freedom = (n - 1) as f64;
        assert!(
            (chi_squared - freedom).abs() < 5.0 * (2.0 * freedom).sqrt(),
            "chi-squared {chi_squared} for {freedom}"
        );
    }

    #[test]
    fn zipf_ranks_come_as_the_formula_says() {
        for (theta, seed) in [(0.99, 1), (1.0, 2), (0.5, 3), (1.5, 4)] {
            check_zipf(100, theta, seed);
        }
        assert_eq!(Zipf::new(1, 0.99).unwrap().draw(&mut Rng::new(1, "one")), 1);
    }

    #[test]
    fn zipf_needs_no_table_for_ten_thousand_million_items() {
        let n = 10_000_000_000u64;
        let zipf = Zipf::new(n, 0.99).unwrap();
        let mut rng = Rng::new(5, "large");
        let draws = 200_000;
        let ones = (0..draws).filter(|_| zipf.draw(&mut rng) == 1).count();
        // YCSB's published constant for this sum.
        let p = 1.0 / 26.469_028_201_783_02;
        assert!((ones as f64 / f64::from(draws) - p).abs() < 5.0 * (p / f64::from(draws)).sqrt());
    }

    #[test]
    fn gamma_has_its_mean_and_variance() {
        let mut rng = Rng::new(6, "gamma");
        let n = 200_000;
        let (mut sum, mut squares) = (0.0, 0.0);
        for _ in 0..n {
            let x = gamma_1_5(&mut rng, 3.0);
            sum += x;
            squares += x * x;
        }
        let mean = sum / f64::from(n);
        // A gamma's variance is its squared mean over its shape: 9 / 1.5.
        let variance = squares / f64::from(n) - mean * mean;
        assert!((mean - 3.0).abs() < 0.03 && (variance - 6.0).abs() < 0.2, "{mean} {variance}");
    }

    #[test]
    fn sizes_come_by_weight() {
        let sizes = Sizes::weighted(&[(512, 1), (4096, 0), (8192, 3)]).unwrap();
        let mut rng = Rng::new(7, "sizes");
        let n = 100_000;
        let small = (0..n).filter(|_| sizes.draw(&mut rng) == 512).count();
        assert!((small as f64 / f64::from(n) - 0.25).abs() < 0.01);
        assert_eq!((sizes.min(), sizes.max()), (512, 8192));
        assert!(Sizes::weighted(&[(512, 0)]).is_err() && Sizes::weighted(&[(0, 1)]).is_err());
    }
}
