//! Request-based windows, and when within one the number of cores is looked at again (QWin §3.2.1, §3.3.1; QW-M2, M5–M7).
//!
//! A window is the set of requests that wait when the last request of the window before is taken up. Later arrivals belong to
//! the next window. So each window's load is known, whatever its length in time.

use crate::config::{CoreRule, QwinConfig};
use plimsoll_base::{LatencyHistogram, Objective, Span};
use serde::{Deserialize, Serialize};

/// Times at which the number of cores is examined within a window.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum CorePolicy {
    /// Only at its beginning.
    Conservative,
    /// Whenever a budget of requests has been served.
    SloAware,
    /// After each request. A new queue begins with this (QW-M8).
    #[default]
    Aggressive,
}

impl CorePolicy {
    /// The word for metrics and configurations.
    pub const fn name(self) -> &'static str {
        match self {
            CorePolicy::Conservative => "conservative",
            CorePolicy::SloAware => "slo-aware",
            CorePolicy::Aggressive => "aggressive",
        }
    }
}

/// Number of windows after which a new queue is polled, and again after twice that number, until the regular poll. Otherwise it
/// could be late for seconds because nothing was known of it.
const POLL_FIRST: u64 = 64;
/// Number of requests beyond a percentile from which its tail is known well enough to relax by.
const TAIL_MIN: u64 = 100;

/// One queue's windows: what is left of the present one, what was served, which policy it has.
#[derive(Clone, Debug, Default)]
pub struct Windows {
    /// Windows begun so far: the present one's number, from 1.
    pub number: u64,
    /// Its requests that haven't been taken up yet.
    pub left: u64,
    /// Number of its last request.
    last: u64,
    /// Requests served, of all windows (`wcnt`).
    pub served: u64,
    /// Temp windows looked at.
    pub temp: u64,
    /// Requests from one look to the next; 0: only at a window's beginning.
    pub budget: u64,
    /// Times of examination.
    pub policy: CorePolicy,
    /// Changes of that.
    pub policy_changes: u64,
    /// Time taken off the wait that an objective allows, so that the measured slack comes to lie between the two thresholds
    /// (ours; only where each request has its own deadline).
    pub margin: Span,
    /// Response times since the last poll.
    recent: LatencyHistogram,
    /// The tail seen at the last poll, at the objective with the least slack.
    pub measured_tail: Span,
}

impl Windows {
    /// A new queue's: aggressive, or what the rule says. Nothing is measured yet, so its margin is the upper threshold.
    pub fn new(config: &QwinConfig) -> Windows {
        let policy = match config.rule {
            CoreRule::BySlack => CorePolicy::Aggressive,
            CoreRule::Always(policy) => policy,
        };
        let budget = u64::from(policy == CorePolicy::Aggressive);
        Windows { policy, budget, margin: config.slack_high, ..Windows::default() }
    }

    /// True if the present window is used up, so that the next request begins a new one.
    pub fn is_over(&self) -> bool {
        self.left == 0
    }

    /// Begins a window of `waiting` requests, of which `last` is the number of the last. `budget` is what the SLO-aware policy would have.
    ///
    /// # Panics
    /// If the last one isn't over, or nothing waits.
    pub fn begin(&mut self, (waiting, last): (u64, u64), objectives: &[Objective], config: &QwinConfig, budget: u64) {
        assert!(self.left == 0 && waiting > 0, "a window begins when the last is over and something waits");
        self.number += 1;
        (self.left, self.last) = (waiting, last);
        let early = self.number < config.poll_windows && self.number >= POLL_FIRST && self.number.is_power_of_two();
        if early || self.number.is_multiple_of(config.poll_windows) {
            self.poll(objectives, config, early);
        }
        self.budget = match self.policy {
            CorePolicy::Conservative => 0,
            CorePolicy::SloAware => budget,
            CorePolicy::Aggressive => 1,
        };
    }

    /// One of its requests is taken up.
    pub fn take_up(&mut self) {
        assert!(self.left > 0, "a request belongs to a window");
        self.left -= 1;
    }

    /// A request that waits, with this number, was withdrawn.
    pub fn withdrawn(&mut self, serial: u64) {
        if self.left > 0 && serial <= self.last {
            self.left -= 1;
        }
    }

    /// A request ended `response` after its arrival. True if a temp window is due.
    pub fn served(&mut self, response: Span) -> bool {
        self.recent.record(response);
        self.served += 1;
        self.left > 0 && self.budget > 0 && self.served.is_multiple_of(self.budget)
    }

    /// Examines the tail measured since the last time and chooses the policy by the least slack of all objectives. An early
    /// look makes the margin smaller only if the number of measurements suffices for the tail.
    fn poll(&mut self, objectives: &[Objective], config: &QwinConfig, early: bool) {
        if self.recent.count() == 0 {
            return;
        }
        let tail = |o: &Objective| self.recent.percentile(f64::from(o.percentile_bp) / 100.0);
        // Slack is signed: what is late by much is less than what is late by little.
        let slack = |o: &Objective| o.bound.as_nanos() as i64 - tail(o).as_nanos() as i64;
        let Some(tightest) = objectives.iter().min_by_key(|o| slack(o)) else { return };
        let slack_ns = slack(tightest);
        self.measured_tail = tail(tightest);
        let beyond = self.recent.count() * u64::from(10_000 - tightest.percentile_bp) / 10_000;
        if !early || beyond >= TAIL_MIN || slack_ns < config.slack_low.as_nanos() as i64 {
            self.adapt(slack_ns, tightest.bound, config);
        }
        if config.rule == CoreRule::BySlack && !early {
            let policy = if slack_ns > config.slack_high.as_nanos() as i64 {
                CorePolicy::Conservative
            } else if slack_ns < config.slack_low.as_nanos() as i64 {
                CorePolicy::Aggressive
            } else {
                CorePolicy::SloAware
            };
            self.policy_changes += u64::from(policy != self.policy);
            self.policy = policy;
        }
        self.recent.clear();
    }
}

impl Windows {
    /// Too little slack is made up for at once; half of what is too much is given up, a quarter of what is enough.
    fn adapt(&mut self, slack_ns: i64, bound: Span, config: &QwinConfig) {
        let (low, high) = (config.slack_low.as_nanos() as i64, config.slack_high.as_nanos() as i64);
        let margin = self.margin.as_nanos() as i64;
        let change = match slack_ns {
            few if few < low => low - few,
            many if many > high => -((many - low) / 2),
            enough => -((enough - low) / 4),
        };
        let most = bound.as_nanos() as i64 / 2;
        self.margin = Span::from_nanos((margin + change).clamp(0, most) as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const OBJECTIVES: [Objective; 2] = [
        Objective { percentile_bp: 9900, bound: Span::from_millis(2) },
        Objective { percentile_bp: 9990, bound: Span::from_millis(4) },
    ];

    #[test]
    fn the_policy_follows_the_least_slack() {
        let config = QwinConfig { poll_windows: 10, ..QwinConfig::published() };
        let mut w = Windows::new(&config);
        assert_eq!(w.policy, CorePolicy::Aggressive);
        let mut seen = Vec::new();
        // p99 2 ms, p99.9 4 ms; thresholds 0.3 and 1 ms. The last one is only just within p99.9.
        for us in [500, 1500, 1900, 2500, 900, 3900] {
            for i in 0..10 {
                w.begin((1, 0), &OBJECTIVES, &config, 7);
                w.take_up();
                w.served(Span::from_micros(us));
                seen.extend((i == 9).then_some((w.policy, w.budget)));
            }
        }
        use CorePolicy::{Aggressive, Conservative, SloAware};
        // A window's beginning sees the nine served since the last poll, and the one before it.
        let wanted =
            [(Conservative, 0), (SloAware, 7), (Aggressive, 1), (Aggressive, 1), (Aggressive, 1), (Aggressive, 1)];
        assert_eq!(seen, wanted, "900 us: one of ten was still 2.5 ms");
        assert_eq!(w.policy_changes, 3);
        assert!(w.measured_tail >= Span::from_micros(3800));
    }

    #[test]
    fn a_fixed_rule_stays() {
        let rule = CoreRule::Always(CorePolicy::SloAware);
        let config = QwinConfig { poll_windows: 1, rule, ..QwinConfig::default() };
        let mut w = Windows::new(&config);
        for _ in 0..5 {
            w.begin((1, 0), &OBJECTIVES, &config, 3);
            w.take_up();
            w.served(Span::from_secs(1));
        }
        assert_eq!((w.policy, w.policy_changes, w.budget), (CorePolicy::SloAware, 0, 3));
    }

    #[test]
    fn the_margin_brings_the_slack_down_to_the_lower_threshold() {
        let config = QwinConfig { poll_windows: 4, ..QwinConfig::default() };
        // A load whose tail lies 2 ms above whatever wait it is allowed, and one whose tail lies 3 ms below.
        for (off_us, objective_ms) in [(2000i64, 8), (-3000, 8)] {
            let objectives = [Objective { percentile_bp: 9990, bound: Span::from_millis(objective_ms) }];
            let mut w = Windows::new(&config);
            for _ in 0..200 {
                w.begin((1, 0), &objectives, &config, 1);
                w.take_up();
                let us = objective_ms as i64 * 1000 - w.margin.as_micros() as i64 + off_us;
                w.served(Span::from_micros(us as u64));
            }
            let slack = objectives[0].bound.saturating_sub(w.measured_tail);
            let wanted = if off_us > 0 { 290..=310 } else { 2900..=3100 };
            assert!(wanted.contains(&slack.as_micros()), "{slack}: with no margin left it can't be less");
        }
    }

    proptest! {
        /// Against a list of lists: which window each request belongs to, and when a temp window is due.
        #[test]
        fn windows_are_what_waited_when_the_last_was_over(steps in proptest::collection::vec(0u8..3, 1..400), budget in 1u64..5) {
            let rule = CoreRule::Always(CorePolicy::SloAware);
            let config = QwinConfig { rule, ..QwinConfig::default() };
            let mut w = Windows::new(&config);
            let (mut waiting, mut naive, mut window, mut served) = (0u64, Vec::new(), 0u64, 0u64);
            for step in steps {
                match step {
                    0 | 1 => waiting += 1,
                    _ if waiting > 0 => {
                        if naive.is_empty() {
                            window += 1;
                            naive = vec![window; waiting as usize];
                        }
                        if w.is_over() {
                            w.begin((waiting, 0), &OBJECTIVES, &config, budget);
                        }
                        w.take_up();
                        prop_assert_eq!(naive.pop(), Some(w.number));
                        prop_assert_eq!(naive.len() as u64, w.left);
                        waiting -= 1;
                        served += 1;
                        let due = w.served(Span::from_micros(1));
                        prop_assert_eq!(due, !naive.is_empty() && served % budget == 0);
                    }
                    _ => {}
                }
            }
        }
    }
}
