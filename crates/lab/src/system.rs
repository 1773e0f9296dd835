//! Systems to tune, in virtual time: OpTune's web server and file-system emulator over a modelled disk, and its MapReduce
//! scheduler (§5.3). Each is a [`plimsoll_tune::adapter::Adapter`], as a live one is.

pub mod fs_emulator;
pub mod gdsf;
pub mod map_reduce;
pub mod node;
pub mod storage;
pub mod web;

use plimsoll_base::Rng;

/// A popularity rank from 0 on, by Zipf's law.
#[derive(Clone, Debug)]
pub struct Zipf {
    shares: Vec<f64>,
}

impl Zipf {
    /// `n` ranks; rank k is asked for in proportion to (k + 1)^-`exponent`.
    pub fn new(n: usize, exponent: f64) -> Zipf {
        assert!(n > 0, "no ranks");
        let mut sum = 0.0;
        let mut shares: Vec<f64> = (1..=n)
            .map(|k| {
                sum += (k as f64).powf(-exponent);
                sum
            })
            .collect();
        shares.iter_mut().for_each(|s| *s /= sum);
        Zipf { shares }
    }

    /// The next one.
    pub fn draw(&self, rng: &mut Rng) -> usize {
        let u = rng.unit();
        self.shares.partition_point(|&s| s <= u).min(self.shares.len() - 1)
    }
}
