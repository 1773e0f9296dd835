//! P (AP-M7, AP-M9, AP-M10): three samples propose it through the model, measurements decide.
//!
//! 1. *Sample* at a small P, in the middle and unconstrained. A sample is as many windows as it takes for their spread to
//!    be small, up to a bound.
//! 2. *Propose*: the model's matching point, its half and its double; without a model the gaps between the samples.
//! 3. *Verify*: each is sampled too, then the middles beside the best. The smallest P within 1.5 % of the best one wins:
//!    equal throughput at a smaller P is a lower latency.
//! 4. *Climb* slowly: now and then a neighbour is tried against the present P and taken if it's clearly better.
//! 5. *Again* from the beginning when throughput at the same P has moved for long: the workload shifted.
//!
//! P is never set below the floor (a P of 1 would let one slow statement stop all), nor above the ceiling.

use super::model::{Curve, Point};

/// Limits and pace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TunerConfig {
    /// Smallest P that is ever set; at least 2.
    pub floor: u32,
    /// Largest P that is ever set.
    pub ceiling: u32,
    /// Quiet windows between two climbs.
    pub climb_every: u32,
}

impl Default for TunerConfig {
    fn default() -> TunerConfig {
        TunerConfig { floor: 2, ceiling: 1024, climb_every: 20 }
    }
}

/// Windows of a sample, at least and at most.
const WINDOWS_MIN: usize = 3;
const WINDOWS_MAX: usize = 8;
/// The first window after a change still shows what was before.
const WINDOWS_SKIPPED: u32 = 1;
/// Spread of windows, in thousandths of their mean, at which more windows are taken.
const SPREAD_MAX_MILLI: u64 = 80;
/// What counts as equal throughput, in thousandths: half of the 3 % that noise would suggest, as the peak itself may lie between samples.
const EQUAL_MILLI: u64 = 985;
/// Times that the middles beside the best are measured.
const REFINED_MAX: u32 = 2;
/// A neighbour must be better by so much, in thousandths.
const BETTER_MILLI: u64 = 1030;
/// Throughput at the same P that moved by more than this, in thousandths, …
const SHIFT_MILLI: u64 = 300;
/// … for so many windows, is another workload.
const SHIFT_WINDOWS: u32 = 6;

/// What it is doing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stage {
    /// The first three samples.
    Sampling,
    /// Proposals are measured.
    Verifying,
    /// The middles beside the best are measured.
    Refining,
    /// P is set; a neighbour may be on trial.
    Climbing,
}

/// The optimizer of P.
#[derive(Clone, Debug)]
pub struct Tuner {
    config: TunerConfig,
    stage: Stage,
    p: u32,
    /// What is to be measured next.
    todo: Vec<u32>,
    /// Measured: P and its rate in thousandths of transactions per second.
    measured: Vec<(u32, u64)>,
    windows: Vec<u64>,
    skip: u32,
    quiet: u32,
    home: (u32, u64),
    trial_up: bool,
    shifted: u32,
    refined: u32,
    users: u32,
    model: Option<Curve>,
    proposal: Option<u32>,
}

impl Tuner {
    /// Begins; `users` is how many there are that can ask at once.
    pub fn new(config: TunerConfig, users: u32) -> Tuner {
        let floor = config.floor.max(2);
        let config = TunerConfig { floor, ceiling: config.ceiling.max(floor), ..config };
        let mut tuner = Tuner {
            config,
            stage: Stage::Sampling,
            p: floor,
            todo: Vec::new(),
            measured: Vec::new(),
            windows: Vec::new(),
            skip: 0,
            quiet: 0,
            home: (floor, 0),
            trial_up: true,
            shifted: 0,
            refined: 0,
            users: 0,
            model: None,
            proposal: None,
        };
        tuner.begin(users);
        tuner
    }

    /// P to use now.
    pub fn p(&self) -> u32 {
        self.p
    }
    /// What it is doing.
    pub fn stage(&self) -> Stage {
        self.stage
    }
    /// The model of the last samples, where there was one.
    pub fn model(&self) -> Option<Curve> {
        self.model
    }
    /// The matching point that the model proposed.
    pub fn proposal(&self) -> Option<u32> {
        self.proposal
    }

    /// Samples anew.
    pub fn begin(&mut self, users: u32) {
        self.users = users;
        let low = self.config.floor;
        let high = users.clamp(low, self.config.ceiling);
        let middle = (low * high).isqrt().clamp(low, high);
        // From above: the server isn't throttled first for what may be a long queue.
        self.todo = vec![high, middle, low];
        self.todo.dedup();
        self.measured.clear();
        self.stage = Stage::Sampling;
        self.refined = 0;
        self.next();
    }

    fn next(&mut self) {
        self.windows.clear();
        if let Some(p) = self.todo.pop() {
            self.skip = if p == self.p { 0 } else { WINDOWS_SKIPPED };
            self.p = p;
            return;
        }
        match self.stage {
            Stage::Sampling => self.propose(),
            Stage::Verifying => self.refine(),
            Stage::Refining if self.refined < REFINED_MAX => self.refine(),
            Stage::Refining | Stage::Climbing => self.settle(),
        }
    }

    /// A window at [`Tuner::p`] passed, with this rate in thousandths of transactions per second. `full`: somebody waited or
    /// everybody was inside for most of it; a window without demand says nothing (AP-A5).
    pub fn window(&mut self, rate_milli: u64, full: bool) {
        if self.skip > 0 {
            self.skip -= 1;
            return;
        }
        if !full {
            return;
        }
        if self.stage == Stage::Climbing && self.p == self.home.0 {
            self.at_home(rate_milli);
            return;
        }
        self.windows.push(rate_milli);
        let n = self.windows.len();
        if n < WINDOWS_MIN || (n < WINDOWS_MAX && spread_milli(&self.windows) > SPREAD_MAX_MILLI) {
            return;
        }
        let rate = median(&self.windows);
        if self.stage == Stage::Climbing {
            self.judge_trial(rate);
            return;
        }
        self.measured.retain(|m| m.0 != self.p);
        self.measured.push((self.p, rate));
        self.next();
    }

    fn propose(&mut self) {
        self.measured.sort_unstable();
        let point = |m: &(u32, u64)| Point { p: m.0, rate: m.1 as f64 / 1000.0 };
        let points: Vec<Point> = self.measured.iter().map(point).collect();
        self.model = <[Point; 3]>::try_from(points).ok().and_then(Curve::fit);
        let (low, high) = (self.config.floor, self.users.clamp(self.config.floor, self.config.ceiling));
        self.proposal = self.model.map(|m| m.peak(low, high));
        let wanted = match self.proposal {
            // Bounded: a fit through noise may point anywhere.
            Some(p) => vec![p * 2, p, p / 2],
            None => gaps(&self.measured),
        };
        self.stage = Stage::Verifying;
        self.ask(wanted);
    }

    fn refine(&mut self) {
        self.measured.sort_unstable();
        let best = self.best();
        let at = self.measured.iter().position(|m| m.0 == best).unwrap_or(0);
        let beside = at.saturating_sub(1)..(at + 2).min(self.measured.len());
        let wanted = gaps(&self.measured[beside]);
        self.stage = Stage::Refining;
        self.refined += 1;
        self.ask(wanted);
    }

    fn ask(&mut self, wanted: Vec<u32>) {
        let (low, high) = (self.config.floor, self.users.clamp(self.config.floor, self.config.ceiling));
        self.todo.clear();
        for p in wanted.into_iter().map(|p| p.clamp(low, high)) {
            // A P within an eighth of one that was measured would measure the noise.
            let near = |m: u32| m.abs_diff(p) * 8 <= m;
            if !self.measured.iter().any(|m| near(m.0)) && !self.todo.contains(&p) {
                self.todo.push(p);
            }
        }
        self.next();
    }

    /// The smallest P whose rate is about the best one.
    fn best(&self) -> u32 {
        let top = self.measured.iter().map(|m| m.1).max().unwrap_or(0);
        let good = self.measured.iter().filter(|m| m.1 * 1000 >= top * EQUAL_MILLI);
        good.map(|m| m.0).min().unwrap_or(self.config.floor)
    }

    fn settle(&mut self) {
        let best = self.best();
        let rate = self.measured.iter().find(|m| m.0 == best).map_or(0, |m| m.1);
        (self.home, self.p, self.stage) = ((best, rate), best, Stage::Climbing);
        (self.quiet, self.shifted, self.skip) = (0, 0, WINDOWS_SKIPPED);
    }

    fn at_home(&mut self, rate: u64) {
        let known = self.home.1;
        if known > 0 && rate.abs_diff(known) * 1000 > known * SHIFT_MILLI {
            self.shifted += 1;
            if self.shifted >= SHIFT_WINDOWS {
                self.begin(self.users);
            }
            return;
        }
        self.shifted = 0;
        // Follows slow drift.
        self.home.1 = (known * 7 + rate) / 8;
        self.quiet += 1;
        if self.quiet >= self.config.climb_every {
            self.quiet = 0;
            self.trial_up = !self.trial_up;
            let step = (self.home.0 / 8).max(1);
            let p = if self.trial_up { self.home.0 + step } else { self.home.0.saturating_sub(step) };
            let p = p.clamp(self.config.floor, self.config.ceiling);
            if p != self.home.0 {
                (self.p, self.skip) = (p, WINDOWS_SKIPPED);
                self.windows.clear();
            }
        }
    }

    fn judge_trial(&mut self, rate: u64) {
        // A larger P must earn its latency; a smaller one need only not lose.
        let needed = if self.p > self.home.0 { BETTER_MILLI } else { 1000 };
        if rate * 1000 >= self.home.1 * needed {
            self.home = (self.p, rate);
        }
        self.windows.clear();
        (self.p, self.skip) = (self.home.0, WINDOWS_SKIPPED);
    }

    /// Users came or went: P is sampled anew if there are twice as many or half.
    pub fn users(&mut self, users: u32) {
        if users > self.users.saturating_mul(2) || users.saturating_mul(2) < self.users {
            self.begin(users);
        }
    }
}

/// The geometric middles of neighbours.
fn gaps(measured: &[(u32, u64)]) -> Vec<u32> {
    measured.windows(2).map(|w| (w[0].0 * w[1].0).isqrt()).collect()
}

fn median(values: &[u64]) -> u64 {
    let mut v = values.to_vec();
    v.sort_unstable();
    v[v.len() / 2]
}

/// Standard deviation in thousandths of the mean.
fn spread_milli(values: &[u64]) -> u64 {
    let n = values.len() as u128;
    let sum: u128 = values.iter().map(|v| u128::from(*v)).sum();
    let squares: u128 = values.iter().map(|v| u128::from(*v).pow(2)).sum();
    let variance = (squares * n).saturating_sub(sum * sum);
    (variance.isqrt() * 1000).checked_div(sum).unwrap_or(0) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_base::Rng;

    /// Measured on MariaDB and PostgreSQL: P and transactions per second.
    const RECORDED: [(&str, &[(u32, f64)]); 3] = [
        ("select-only", &[(1, 5.2), (2, 7.1), (4, 11.2), (8, 13.8), (16, 14.1), (32, 10.1)]),
        ("hot rows", &[(2, 2.008), (8, 2.356), (16, 2.541), (64, 2.245)]),
        ("pgbench", &[(1, 0.8), (2, 1.014), (4, 1.113), (8, 1.258), (16, 1.484), (32, 1.43)]),
    ];

    /// Between recorded points straight in log P.
    fn rate(curve: &[(u32, f64)], p: u32) -> f64 {
        let x = f64::from(p).ln();
        let at = curve.iter().position(|c| c.0 >= p).unwrap_or(curve.len() - 1).max(1);
        let ((p0, r0), (p1, r1)) = (curve[at - 1], curve[at]);
        let part = ((x - f64::from(p0).ln()) / (f64::from(p1).ln() - f64::from(p0).ln())).clamp(0.0, 1.0);
        r0 + (r1 - r0) * part
    }

    fn regret(curve: &[(u32, f64)], users: u32, noise: f64, seed: u64) -> f64 {
        let mut rng = Rng::new(seed, "noise");
        let mut t = Tuner::new(TunerConfig::default(), users);
        let mut windows = 0;
        while t.stage() != Stage::Climbing {
            let r = rate(curve, t.p()) * (1.0 + noise * rng.normal());
            t.window((r * 1e6) as u64, true);
            windows += 1;
            assert!(windows < 200, "it comes to an end");
        }
        let best = curve.iter().map(|c| c.1).fold(0.0, f64::max);
        1.0 - rate(curve, t.p()) / best
    }

    #[test]
    fn on_recorded_curves_with_noise_it_is_within_a_tenth_in_nine_of_ten_runs() {
        for (name, curve) in RECORDED {
            let users = curve.last().unwrap().0;
            let good = (0..200).filter(|s| regret(curve, users, 0.05, *s) <= 0.10).count();
            assert!(good >= 180, "{name}: {good} of 200");
        }
    }

    #[test]
    fn without_noise_it_is_within_three_percent() {
        for (name, curve) in RECORDED {
            let r = regret(curve, curve.last().unwrap().0, 0.0, 1);
            assert!(r <= 0.035, "{name}: {r}");
        }
    }

    #[test]
    fn a_shift_of_the_workload_is_noticed_and_the_floor_holds() {
        let mut t = Tuner::new(TunerConfig { floor: 4, ..TunerConfig::default() }, 64);
        let mut lowest = u32::MAX;
        for i in 0..2000u32 {
            let best = if i < 500 { 16 } else { 48 };
            let p = t.p();
            lowest = lowest.min(p);
            let r = if p <= best { f64::from(p) } else { f64::from(best) * 0.8 } * if i < 500 { 1.0 } else { 3.0 };
            t.window((r * 1e6) as u64, true);
            if i == 499 {
                assert!((13..=16).contains(&t.p()), "{}", t.p());
            }
        }
        assert!(t.p() >= 40 && lowest >= 4, "{} {lowest}", t.p());
    }

    #[test]
    fn windows_without_demand_change_nothing() {
        let mut t = Tuner::new(TunerConfig::default(), 64);
        let p = t.p();
        (0..100).for_each(|_| t.window(5_000, false));
        assert_eq!((t.p(), t.stage()), (p, Stage::Sampling));
    }
}
