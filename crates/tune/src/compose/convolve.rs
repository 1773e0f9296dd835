//! Composition by numerical convolution.
//!
//! A distribution is its masses on an even grid, or their Fourier transform. Sequences multiply transforms, conditions add
//! them, and a loop is the polynomial of its counts in its body's transform. Only a parallel goes back to the masses, to
//! multiply CDFs. Times of a request span five orders of magnitude. So each composition is computed on four grids, each finer
//! and shorter than the one before. The CDF at a time is taken from the finest grid that reaches it. The CDF below a grid's end
//! doesn't depend on the part beyond, which is dropped.
//!
//! Mass that would wrap around the end of a grid is damped by 10^-8. For that the masses are tilted exponentially before the
//! transform (Grübel and Hermesmeier, 1999). The price is eight digits of precision. A value between two points of a grid is split
//! between them so that means are kept. Times are exact up to one step ([`Convolver::step_ms`]): the end of the grid, divided by
//! [`BINS_FINE`] or [`BINS_COARSE`].

use super::Composer;
use crate::cdf::Cdf;
use crate::graph::{Kind, NodeId};
use crate::space::{Key, Setting};
use realfft::num_complex::Complex;
use realfft::{ComplexToReal, RealFftPlanner, RealToComplex};
use std::collections::BTreeMap;
use std::sync::Arc;

type Spectrum = Vec<Complex<f64>>;

/// Points of a grid for a few hundred settings.
pub const BINS_FINE: usize = 4_096;
/// Points of a grid for tens of thousands of settings.
pub const BINS_COARSE: usize = 1_024;

/// Ratio of the steps of successive grids.
const ZOOM: f64 = 16.0;
const GRIDS: usize = 4;
/// Factor of mass that wraps around.
const DAMPED: f64 = 1e-8;

struct Grid {
    step_ms: f64,
    /// The tilt of each point, and its inverse.
    tilt: Vec<f64>,
    untilt: Vec<f64>,
    forward: Arc<dyn RealToComplex<f64>>,
    inverse: Arc<dyn ComplexToReal<f64>>,
    /// Transforms of nodes below the root, by the part of the setting that moves anything in them.
    cache: BTreeMap<(NodeId, Key), Spectrum>,
}

/// Composes by convolution; keeps what settings share.
pub struct Convolver<'a> {
    composer: &'a Composer<'a>,
    grids: Vec<Grid>,
    /// For each node, the parameters that move anything in it.
    moved_by: Vec<Vec<bool>>,
}

impl Composer<'_> {
    /// A convolver on grids of `bins` points (a power of two); `None` if components are declared correlated, which
    /// convolution can't respect.
    pub fn convolved(&self, bins: usize) -> Option<Convolver<'_>> {
        assert!(bins.is_power_of_two() && bins >= 16, "{bins} bins");
        if self.is_correlated() {
            return None;
        }
        let mut planner = RealFftPlanner::new();
        let (forward, inverse) = (planner.plan_fft_forward(bins), planner.plan_fft_inverse(bins));
        let horizon_ms = self.longest()[self.graph.root()].max(1e-6) * (1.0 + 2.0 / bins as f64);
        let rate = DAMPED.ln() / bins as f64;
        let grid = |level: usize| Grid {
            step_ms: horizon_ms / ZOOM.powi(level as i32) / bins as f64,
            tilt: (0..bins).map(|i| (rate * i as f64).exp()).collect(),
            untilt: (0..bins).map(|i| (-rate * i as f64).exp() / bins as f64).collect(),
            forward: forward.clone(),
            inverse: inverse.clone(),
            cache: BTreeMap::new(),
        };
        Some(Convolver { composer: self, grids: (0..GRIDS).map(grid).collect(), moved_by: self.moved_by() })
    }

    /// For each node, the parameters that move anything in it.
    fn moved_by(&self) -> Vec<Vec<bool>> {
        let parameters = self.space.parameters();
        let mut all: Vec<Vec<bool>> = vec![Vec::new(); self.graph.nodes().len()];
        for &id in self.graph.parts_first() {
            let name = &self.graph.nodes()[id].name;
            let mut moved: Vec<bool> = parameters.iter().map(|p| p.moves.contains(name)).collect();
            for &c in self.graph.children(id) {
                moved.iter_mut().zip(&all[c]).for_each(|(m, n)| *m |= n);
            }
            all[id] = moved;
        }
        all
    }

    /// A time that each node practically never exceeds, under any setting.
    fn longest(&self) -> Vec<f64> {
        let n = self.graph.nodes().len();
        let (mut longest, mut mean_most) = (vec![0.0f64; n], vec![0.0f64; n]);
        let counts = |id: NodeId, w: &crate::graph::Weights| match w {
            crate::graph::Weights::Given(w) => w.len() - 1,
            crate::graph::Weights::Measured => self.known[id].values().map(most).max().unwrap_or(0),
        };
        for &id in self.graph.parts_first() {
            let most_of = |of: &[f64], parts: &[NodeId]| parts.iter().map(|&p| of[p]).fold(0.0, f64::max);
            let sum_of = |of: &[f64], parts: &[NodeId]| parts.iter().map(|&p| of[p]).sum::<f64>();
            let pair = match &self.graph.nodes()[id].kind {
                Kind::Component => {
                    let all = |of: fn(&super::Known) -> f64| self.known[id].values().map(of).fold(0.0, f64::max);
                    (all(largest), all(mean))
                }
                Kind::Sequence(parts) => (sum_of(&longest, parts), sum_of(&mean_most, parts)),
                Kind::Condition(parts, _) => (most_of(&longest, parts), most_of(&mean_most, parts)),
                Kind::Parallel(parts, _) => (most_of(&longest, parts), sum_of(&mean_most, parts)),
                Kind::Loop(body, w) => {
                    // A sum of n: beyond a few, its deviation grows as the root of n. Nobody needs n times the maximum.
                    let n = counts(id, w) as f64;
                    let all = longest[*body] * n.min(8.0 + 4.0 * n.sqrt()) + mean_most[*body] * n;
                    (all, all)
                }
            };
            (longest[id], mean_most[id]) = pair;
        }
        longest
    }
}

fn largest(k: &super::Known) -> f64 {
    if let super::Known::Times(c) = k { c.max_ms() } else { 0.0 }
}

fn mean(k: &super::Known) -> f64 {
    if let super::Known::Times(c) = k { c.mean_ms() } else { 0.0 }
}

fn most(k: &super::Known) -> usize {
    if let super::Known::Outcomes(w) = k { w.len() - 1 } else { 0 }
}

impl Convolver<'_> {
    /// Returns the exactness of a time: one step of the finest grid that reaches it.
    pub fn step_ms(&self, t_ms: f64) -> f64 {
        let reaches = |g: &&Grid| t_ms < g.step_ms * (g.tilt.len() - 1) as f64;
        self.grids.iter().rev().find(reaches).unwrap_or(&self.grids[0]).step_ms
    }

    /// The distribution of requests under `setting`.
    pub fn cdf(&mut self, setting: &Setting) -> Cdf {
        let root = self.composer.graph.root();
        if self.composer.graph.nodes()[root].kind == Kind::Component {
            return self.composer.times(root, setting).clone(); // nothing to compose
        }
        let mut points: Vec<(f64, f64)> = Vec::new();
        let mut reached = 0.0f64;
        // From the finest grid to the longest; each takes over where the one before ends.
        for level in (0..self.grids.len()).rev() {
            let shares = self.shares(level, setting);
            let step = self.grids[level].step_ms;
            let from = points.last().map_or(-1.0, |p| p.0);
            for (i, &s) in shares.iter().enumerate() {
                let t = i as f64 * step;
                if t > from && s > reached {
                    points.push((t, s - reached));
                    reached = s;
                }
            }
        }
        Cdf::of_weighted(points).expect("some mass lies before the horizon")
    }

    /// The CDF at each point of a grid.
    fn shares(&mut self, level: usize, setting: &Setting) -> Vec<f64> {
        let mut spectrum = self.spectrum(level, self.composer.graph.root(), setting);
        let mass = self.grids[level].mass(&mut spectrum);
        running_sum(mass)
    }

    fn key(&self, id: NodeId, setting: &Setting) -> Key {
        Key(self.moved_by[id].iter().zip(&setting.0).map(|(&m, &v)| m.then_some(v)).collect())
    }

    fn spectrum(&mut self, level: usize, id: NodeId, setting: &Setting) -> Spectrum {
        let is_root = id == self.composer.graph.root();
        let cached = (id, self.key(id, setting));
        if let Some(s) = self.grids[level].cache.get(&cached) {
            return s.clone();
        }
        let composer = self.composer;
        let spectrum = match &composer.graph.nodes()[id].kind {
            Kind::Component => self.grids[level].of_cdf(composer.times(id, setting)),
            Kind::Sequence(parts) => {
                let mut product = self.spectrum(level, parts[0], setting);
                for &p in &parts[1..] {
                    self.multiply(level, p, setting, &mut product);
                }
                product
            }
            Kind::Condition(parts, w) => {
                let weights = composer.weights(id, w, setting);
                let mut sum = vec![Complex::default(); self.grids[level].tilt.len() / 2 + 1];
                for (&p, &weight) in parts.iter().zip(weights).filter(|p| *p.1 > 0.0) {
                    let part = self.spectrum(level, p, setting);
                    sum.iter_mut().zip(part).for_each(|(s, x)| *s += x * weight);
                }
                sum
            }
            Kind::Loop(body, w) => {
                let weights = composer.weights(id, w, setting);
                let body = self.spectrum(level, *body, setting);
                let polynomial = |x: Complex<f64>| weights.iter().rev().fold(Complex::default(), |sum, &w| sum * x + w);
                body.into_iter().map(polynomial).collect()
            }
            Kind::Parallel(parts, w) => {
                let mut product = vec![1.0; self.grids[level].tilt.len()];
                for &p in parts {
                    let mut part = self.spectrum(level, p, setting);
                    let shares = running_sum(self.grids[level].mass(&mut part));
                    product.iter_mut().zip(shares).for_each(|(a, s)| *a *= s);
                }
                let weights = composer.weights(id, w, setting);
                let barrier = |x: f64| weights.iter().rev().fold(0.0, |sum, &w| sum * x + w);
                self.grids[level].of_shares(product.into_iter().map(barrier))
            }
        };
        if !is_root {
            self.grids[level].cache.insert(cached, spectrum.clone());
        }
        spectrum
    }

    /// Multiplies with a part's transform without copying one that is kept.
    fn multiply(&mut self, level: usize, id: NodeId, setting: &Setting, product: &mut Spectrum) {
        let key = (id, self.key(id, setting));
        if !self.grids[level].cache.contains_key(&key) {
            self.spectrum(level, id, setting);
        }
        let part = &self.grids[level].cache[&key];
        product.iter_mut().zip(part).for_each(|(a, b)| *a *= b);
    }
}

fn running_sum(mut mass: Vec<f64>) -> Vec<f64> {
    // Rounding makes masses of -10^-9 where there are none: summed as they are they cancel.
    let (mut sum, mut most) = (0.0f64, 0.0f64);
    for m in &mut mass {
        sum += *m;
        most = most.max(sum).min(1.0);
        *m = most;
    }
    mass
}

impl Grid {
    fn of_cdf(&self, cdf: &Cdf) -> Spectrum {
        let bins = self.tilt.len();
        let mut mass = vec![0.0; bins];
        for (v, m) in cdf.masses() {
            let at = v / self.step_ms;
            let below = at.floor();
            if below >= bins as f64 {
                break;
            }
            let (i, part) = (below as usize, at - below);
            mass[i] += m * (1.0 - part);
            if i + 1 < bins {
                mass[i + 1] += m * part;
            }
        }
        self.transform(mass)
    }

    fn of_shares(&self, shares: impl Iterator<Item = f64>) -> Spectrum {
        let mut before = 0.0;
        let mass = shares.map(|s| s - std::mem::replace(&mut before, s)).collect();
        self.transform(mass)
    }

    fn transform(&self, mut mass: Vec<f64>) -> Spectrum {
        mass.iter_mut().zip(&self.tilt).for_each(|(m, t)| *m *= t);
        let mut spectrum = self.forward.make_output_vec();
        self.forward.process(&mut mass, &mut spectrum).expect("lengths are the plan's");
        spectrum
    }

    fn mass(&self, spectrum: &mut Spectrum) -> Vec<f64> {
        // Rounding leaves imaginary parts where a real signal has none.
        spectrum[0].im = 0.0;
        spectrum.last_mut().expect("never empty").im = 0.0;
        let mut mass = self.inverse.make_output_vec();
        self.inverse.process(spectrum, &mut mass).expect("lengths are the plan's");
        mass.iter_mut().zip(&self.untilt).for_each(|(m, u)| *m *= u);
        mass
    }
}
