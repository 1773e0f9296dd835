//! Seeded randomness: one stream per actor, so that adding an actor never changes another's draws.

use rand_core::{Rng as _, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

/// A seeded pseudo-random stream. Only experiments, models and tests own one; a policy never does.
#[derive(Clone, Debug)]
pub struct Rng(Xoshiro256PlusPlus);

impl Rng {
    /// The stream named `actor` of the run seeded with `seed`. The same pair always gives the same stream;
    /// different names give independent streams (the name is hashed into the seed with FNV-1a).
    pub fn new(seed: u64, actor: &str) -> Rng {
        let mut h: u64 = 0xcbf2_9ce4_8422_2325 ^ seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        for b in actor.bytes() {
            h = (h ^ u64::from(b)).wrapping_mul(0x0000_0100_0000_01b3);
        }
        Rng(Xoshiro256PlusPlus::seed_from_u64(h))
    }

    /// A stream of its own for the part named `part`; draws once from this one.
    pub fn split(&mut self, part: &str) -> Rng {
        Rng::new(self.next_u64(), part)
    }

    /// 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// A whole number in `0..n`, by multiplication (bias below 2^-64 · n).
    ///
    /// # Panics
    /// If `n` is zero.
    pub fn below(&mut self, n: u64) -> u64 {
        assert!(n > 0, "Rng::below(0)");
        ((u128::from(self.next_u64()) * u128::from(n)) >> 64) as u64
    }

    /// A number in `[0, 1)` with 53 random bits.
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }

    /// True with probability `p` (clamped to 0..=1).
    pub fn chance(&mut self, p: f64) -> bool {
        self.unit() < p
    }

    /// An exponential draw with mean 1.
    pub fn exp1(&mut self) -> f64 {
        -(1.0 - self.unit()).ln()
    }

    /// A standard normal draw (Box–Muller, one of the pair).
    pub fn normal(&mut self) -> f64 {
        let r = (-2.0 * (1.0 - self.unit()).ln()).sqrt();
        r * (std::f64::consts::TAU * self.unit()).cos()
    }

    /// Puts `items` in a random order (Fisher–Yates).
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i as u64 + 1) as usize);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_repeat_and_differ_by_name() {
        let draw = |seed, name| Rng::new(seed, name).next_u64();
        assert_eq!(draw(7, "disk"), draw(7, "disk"));
        assert_ne!(draw(7, "disk"), draw(7, "client"));
        assert_ne!(draw(7, "disk"), draw(8, "disk"));
    }

    #[test]
    fn draws_have_their_means() {
        let mut r = Rng::new(1, "means");
        let n = 200_000;
        let mean = |f: &mut dyn FnMut() -> f64| (0..n).map(|_| f()).sum::<f64>() / f64::from(n);
        assert!((mean(&mut || r.unit()) - 0.5).abs() < 0.005);
        assert!((mean(&mut || r.exp1()) - 1.0).abs() < 0.01);
        assert!((mean(&mut || r.below(10) as f64) - 4.5).abs() < 0.03);
        let mut sum_sq = 0.0;
        assert!(
            mean(&mut || {
                let x = r.normal();
                sum_sq += x * x;
                x
            })
            .abs()
                < 0.01
        );
        assert!((sum_sq / f64::from(n) - 1.0).abs() < 0.02);
    }
}
