//! P (AP-M7, AP-M9, AP-M10): samples propose it through the model, measurements decide.
//!
//! 1. *Sample* three values: the smallest P (the floor), the largest (one place for each user, at most the ceiling), and their
//!    geometric mean.
//! 2. *Propose*: the model's matching point, its half and its double; without a model the gaps between the samples.
//! 3. *Verify*: these are sampled too, then the middles beside the best. The smallest P within half a percent of the best one wins.
//! 4. *Climb* slowly: now and then a neighbour is tried against the present P and taken if it is clearly better.
//! 5. *Again* from the beginning when throughput at the same P has moved for long: the workload shifted. If that finds the same P, the
//!    cause was something else (other programs, a slow disk). From then on throughput must move for twice as long.
//!
//! The values of P that are compared take turns, window by window, there and back. An outside slowdown during the measurement slows all
//! of them alike, and each one's part of its turn is compared. Measured one after the other they would differ by outside effects.
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
const WINDOWS_MAX: usize = 10;
/// Spread of a P's part, in thousandths of its mean, at which more windows are taken.
const SPREAD_MAX_MILLI: u64 = 60;
/// Ratio of equal throughputs, in thousandths. It only decides ties: in a closed loop the time in all is clients over
/// throughput (Little's law), waits outside included, so a P that gives a percent away for being small makes everybody a
/// percent slower, not quicker.
const EQUAL_MILLI: u64 = 995;
/// Times that the middles beside the best are measured.
const REFINED_MAX: u32 = 2;
/// Ratio by which a neighbour must be better, in thousandths.
const BETTER_MILLI: u64 = 1030;
/// Throughput at the same P that moved by more than this, in thousandths, …
const SHIFT_MILLI: u64 = 300;
/// … for this number of windows, is another workload; the second constant is its limit after a false alarm.
const SHIFT_WINDOWS: u32 = 6;
const SHIFT_WINDOWS_MAX: u32 = 384;

/// Stage of the search.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stage {
    /// The first three samples.
    Sampling,
    /// Proposals are measured.
    Verifying,
    /// The middles beside the best are measured.
    Refining,
    /// P is set; a neighbour may be under test.
    Climbing,
}

/// P's that are compared, with what each of their windows measured.
#[derive(Clone, Debug, Default)]
struct Round {
    of: Vec<(u32, Vec<u64>)>,
    turns: usize,
    at: usize,
}

impl Round {
    fn new(ps: Vec<u32>) -> Round {
        Round { of: ps.into_iter().map(|p| (p, Vec::new())).collect(), turns: 0, at: 0 }
    }

    /// There and back: what drifts steadily is the same for all.
    fn now(&self) -> usize {
        if self.turns.is_multiple_of(2) { self.at } else { self.of.len() - 1 - self.at }
    }

    fn p(&self) -> Option<u32> {
        self.of.get(self.now()).map(|x| x.0)
    }

    /// True if enough is known.
    fn take(&mut self, rate: u64) -> bool {
        let now = self.now();
        self.of[now].1.push(rate);
        self.at += 1;
        if self.at < self.of.len() {
            return false;
        }
        (self.at, self.turns) = (0, self.turns + 1);
        let calm = || (0..self.of.len()).all(|i| spread_milli(&self.parts(i)) <= SPREAD_MAX_MILLI);
        self.turns >= WINDOWS_MAX || (self.turns >= WINDOWS_MIN && calm())
    }

    /// Of each turn, a P's part of what all of them did, as if all turns were the mean one.
    fn parts(&self, i: usize) -> Vec<u64> {
        let sum = |turn: usize| self.of.iter().map(|x| u128::from(x.1[turn])).sum::<u128>().max(1);
        let mean = (0..self.turns).map(sum).sum::<u128>() / self.turns.max(1) as u128;
        (0..self.turns).map(|t| (u128::from(self.of[i].1[t]) * mean / sum(t)) as u64).collect()
    }

    fn rates(&self) -> Vec<(u32, u64)> {
        (0..self.of.len()).map(|i| (self.of[i].0, median(&self.parts(i)))).collect()
    }
}

/// The optimizer of P.
#[derive(Clone, Debug)]
pub struct Tuner {
    config: TunerConfig,
    stage: Stage,
    round: Round,
    /// Measured: P and its rate in thousandths of transactions per second.
    measured: Vec<(u32, u64)>,
    quiet: u32,
    home: (u32, u64),
    trial_up: bool,
    shifted: u32,
    shift_windows: u32,
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
            round: Round::default(),
            measured: Vec::new(),
            quiet: 0,
            home: (0, 0),
            trial_up: true,
            shifted: 0,
            shift_windows: SHIFT_WINDOWS,
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
        self.round.p().unwrap_or(self.home.0)
    }
    /// Returns the stage.
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
        let (low, high) = self.range();
        let mut wanted = vec![low, (low * high).isqrt().clamp(low, high), high];
        wanted.dedup();
        self.measured.clear();
        (self.stage, self.refined) = (Stage::Sampling, 0);
        self.round = Round::new(wanted);
    }

    fn range(&self) -> (u32, u32) {
        (self.config.floor, self.users.clamp(self.config.floor, self.config.ceiling))
    }

    /// A window at [`Tuner::p`] passed, with this rate in thousandths of transactions per second. `full`: somebody waited or
    /// everybody was inside for most of it; a window without demand says nothing (AP-A5). The window doesn't include the time that
    /// a change of P needs to take effect.
    pub fn window(&mut self, rate_milli: u64, full: bool) {
        if !full {
            return;
        }
        if self.round.of.is_empty() {
            self.at_home(rate_milli);
        } else if self.round.take(rate_milli) {
            let rates = std::mem::take(&mut self.round).rates();
            match self.stage {
                Stage::Climbing => self.judge_trial(&rates),
                _ => self.sampled(&rates),
            }
        }
    }

    /// Rates of a round, on the scale of those before: the best one so far was in both.
    fn sampled(&mut self, rates: &[(u32, u64)]) {
        let known = |p: u32| self.measured.iter().find(|m| m.0 == p).map(|m| m.1);
        let scale = rates.iter().find_map(|r| Some((known(r.0)?, r.1.max(1)))).unwrap_or((1, 1));
        for (p, rate) in rates {
            if !self.measured.iter().any(|m| m.0 == *p) {
                self.measured.push((*p, (u128::from(*rate) * u128::from(scale.0) / u128::from(scale.1)) as u64));
            }
        }
        self.measured.sort_unstable();
        self.next();
    }

    fn next(&mut self) {
        match self.stage {
            Stage::Sampling => self.propose(),
            Stage::Verifying => self.refine(),
            Stage::Refining if self.refined < REFINED_MAX => self.refine(),
            Stage::Refining | Stage::Climbing => self.settle(),
        }
    }

    fn propose(&mut self) {
        let point = |m: &(u32, u64)| Point { p: m.0, rate: m.1 as f64 / 1000.0 };
        let points: Vec<Point> = self.measured.iter().map(point).collect();
        self.model = <[Point; 3]>::try_from(points).ok().and_then(Curve::fit);
        let (low, high) = self.range();
        self.proposal = self.model.map(|m| m.peak(low, high));
        let wanted = match self.proposal {
            // Bounded: a fit through noise may point anywhere.
            Some(p) => vec![p / 2, p, p * 2],
            None => gaps(&self.measured),
        };
        self.stage = Stage::Verifying;
        self.ask(wanted);
    }

    fn refine(&mut self) {
        let best = self.best();
        let at = self.measured.iter().position(|m| m.0 == best).unwrap_or(0);
        let beside = at.saturating_sub(1)..(at + 2).min(self.measured.len());
        let wanted = gaps(&self.measured[beside]);
        self.stage = Stage::Refining;
        self.refined += 1;
        self.ask(wanted);
    }

    fn ask(&mut self, wanted: Vec<u32>) {
        let (low, high) = self.range();
        let mut round = Vec::new();
        for p in wanted.into_iter().map(|p| p.clamp(low, high)) {
            // A P within an eighth of one that was measured would measure the noise.
            let near = |m: u32| m.abs_diff(p) * 8 <= m;
            if !self.measured.iter().any(|m| near(m.0)) && !round.contains(&p) {
                round.push(p);
            }
        }
        if round.is_empty() {
            self.next();
            return;
        }
        round.push(self.best());
        self.round = Round::new(round);
    }

    /// The smallest P whose rate is about the best one.
    fn best(&self) -> u32 {
        let top = self.measured.iter().map(|m| m.1).max().unwrap_or(0);
        let good = self.measured.iter().filter(|m| m.1 * 1000 >= top * EQUAL_MILLI);
        good.map(|m| m.0).min().unwrap_or(self.config.floor)
    }

    fn settle(&mut self) {
        let (before, best) = (self.home.0, self.best());
        let same = before.abs_diff(best) * 4 <= before;
        self.shift_windows = if same { (self.shift_windows * 2).min(SHIFT_WINDOWS_MAX) } else { SHIFT_WINDOWS };
        // What it does here is learned from the first window on.
        (self.home, self.stage) = ((best, 0), Stage::Climbing);
        (self.quiet, self.shifted) = (0, 0);
    }

    fn at_home(&mut self, rate: u64) {
        let known = self.home.1;
        if known > 0 && rate.abs_diff(known) * 1000 > known * SHIFT_MILLI {
            self.shifted += 1;
            if self.shifted >= self.shift_windows {
                self.begin(self.users);
            }
            return;
        }
        self.shifted = 0;
        // Follows slow drift.
        self.home.1 = if known == 0 { rate } else { (known * 7 + rate) / 8 };
        self.quiet += 1;
        if self.quiet >= self.config.climb_every {
            self.quiet = 0;
            self.trial_up = !self.trial_up;
            let step = (self.home.0 / 8).max(1);
            let p = if self.trial_up { self.home.0 + step } else { self.home.0.saturating_sub(step) };
            let p = p.clamp(self.config.floor, self.config.ceiling);
            if p != self.home.0 {
                self.round = Round::new(vec![self.home.0, p]);
            }
        }
    }

    fn judge_trial(&mut self, rates: &[(u32, u64)]) {
        let [home, trial] = rates else { return };
        // A larger P must earn its latency; a smaller one need only not lose.
        let needed = if trial.0 > home.0 { BETTER_MILLI } else { 1000 };
        if trial.1 * 1000 >= home.1 * needed {
            self.home.0 = trial.0;
        }
        self.home.1 = 0;
    }

    /// Handles a change of the number of users: P is sampled anew if there are more than twice or fewer than half.
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

    /// Other programs take half of the machine for seconds at a time: all samples are hit, each at another time.
    #[test]
    fn a_machine_that_others_use_does_not_choose_p() {
        for (name, curve) in RECORDED {
            let users = curve.last().unwrap().0;
            let good = (0..100).filter(|seed| {
                let mut rng = Rng::new(*seed, "weather");
                let mut t = Tuner::new(TunerConfig::default(), users);
                let (mut windows, mut slowed) = (0, 1.0);
                while t.stage() != Stage::Climbing {
                    // The weather changes about every eight windows.
                    if rng.chance(0.125) {
                        slowed = 0.4 + 0.6 * rng.unit();
                    }
                    t.window((rate(curve, t.p()) * slowed * (1.0 + 0.03 * rng.normal()) * 1e6) as u64, true);
                    windows += 1;
                    assert!(windows < 400, "it comes to an end");
                }
                let best = curve.iter().map(|c| c.1).fold(0.0, f64::max);
                rate(curve, t.p()) >= 0.9 * best
            });
            let good = good.count();
            assert!(good >= 90, "{name}: {good} of 100");
        }
    }

    #[test]
    fn what_is_no_shift_is_looked_into_ever_more_seldom() {
        let mut t = Tuner::new(TunerConfig::default(), 64);
        let mut begun = 0;
        let mut sampling = true;
        for i in 0..3000u32 {
            // Twice as fast for half of the time: the same P is best.
            let r = if t.p() <= 16 { f64::from(t.p()) } else { 13.0 } * if i / 40 % 2 == 0 { 1.0 } else { 2.0 };
            t.window((r * 1e6) as u64, true);
            let now = t.stage() == Stage::Sampling;
            begun += u32::from(now && !sampling);
            sampling = now;
        }
        assert!(begun <= 5, "sampled anew {begun} times");
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
        let (mut lowest, mut homes) = (u32::MAX, Vec::new());
        for i in 0..2000u32 {
            let best = if i < 500 { 16 } else { 48 };
            let p = t.p();
            lowest = lowest.min(p);
            let r = if p <= best { f64::from(p) } else { f64::from(best) * 0.8 } * if i < 500 { 1.0 } else { 3.0 };
            t.window((r * 1e6) as u64, true);
            // A neighbour may be on trial in some windows.
            if i == 450 || i == 1950 {
                homes.clear();
            }
            homes.push(p);
            if i == 499 {
                homes.sort_unstable();
                assert!((13..=16).contains(&homes[homes.len() / 2]), "{homes:?}");
            }
        }
        homes.sort_unstable();
        assert!(homes[homes.len() / 2] >= 40 && lowest >= 4, "{homes:?} {lowest}");
    }

    #[test]
    fn windows_without_demand_change_nothing() {
        let mut t = Tuner::new(TunerConfig::default(), 64);
        let p = t.p();
        (0..100).for_each(|_| t.window(5_000, false));
        assert_eq!((t.p(), t.stage()), (p, Stage::Sampling));
    }
}
