//! Configuration of cores: their number, the policy that allocates them, and the policies' parameters.

use crate::window::CorePolicy;
use plimsoll_base::Span;
use serde::{Deserialize, Serialize};

/// Cores, and who decides about them.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CoresConfig {
    /// Number of cores, 1 to 1024.
    pub cores: u32,
    /// Requests that a core may have in flight, 1 to 1024. 1 is the paper's thread that runs to completion.
    pub depth: u32,
    /// Policy that decides.
    pub policy: PolicyConfig,
    /// A client's read whose own deadline has passed while it waited is answered Busy instead of being served.
    pub revoke_late: bool,
    /// Changes of core numbers that are kept for [`crate::Cores::take_history`]; 0: none.
    pub history_max: usize,
}

/// The most cores, and the most requests in flight on one.
pub const CORES_MAX: u32 = 1024;

impl CoresConfig {
    /// QWin over `cores` cores of depth 1.
    pub fn new(cores: u32) -> CoresConfig {
        CoresConfig {
            cores,
            depth: 1,
            policy: PolicyConfig::Qwin(QwinConfig::default()),
            revoke_late: true,
            history_max: 0,
        }
    }

    /// Checks that each setting is within its range.
    ///
    /// # Errors
    /// The setting that is out of range, and a value to write instead.
    pub fn check(&self) -> Result<(), String> {
        if !(1..=CORES_MAX).contains(&self.cores) {
            return Err(format!("cores = {} is not between 1 and {CORES_MAX}", self.cores));
        }
        if !(1..=CORES_MAX).contains(&self.depth) {
            return Err(format!("core_depth = {} is not between 1 and {CORES_MAX}", self.depth));
        }
        match &self.policy {
            PolicyConfig::Cake { interval } | PolicyConfig::Shenango { interval } if *interval == Span::ZERO => {
                Err("an interval of 0 would never end".into())
            }
            PolicyConfig::Qwin(q) if q.poll_windows == 0 => Err("poll_windows = 0 would never poll".into()),
            PolicyConfig::Qwin(q) if q.slack_low > q.slack_high => {
                Err(format!("core_slack: {} at least is above {} at most", q.slack_low, q.slack_high))
            }
            _ => Ok(()),
        }
    }
}

/// The policies: QWin, and what it is compared with (QW-M13, QW-M14).
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum PolicyConfig {
    /// Cores by the objectives' needs; best effort has the rest.
    Qwin(QwinConfig),
    /// One queue for all, any core (Fig 1a).
    ShareEverything,
    /// A queue a tenant, any core serves them in turn (Fig 1b).
    PartialSharing,
    /// Latency-critical requests first, in order of arrival (Ceph's two priorities).
    TwoPriorities,
    /// Shares and reservations by the last interval's tail (Cake).
    Cake {
        /// From one look to the next: 1, 5 or 10 s in the paper.
        interval: Span,
    },
    /// One core more when a request waits through two looks; all back when the queue is empty (Shenango).
    Shenango {
        /// From one look to the next: 5 us in Shenango.
        interval: Span,
    },
    /// Fixed numbers (Fig 1c): each latency-critical queue has the cores that its tenants are allotted, at least one.
    Static,
    /// Reservations and limits in requests a second, as tenants are allotted, and their weights (mClock).
    Mclock,
    /// Knows what every request will take: the least number of cores at each moment (an oracle, for the lab).
    Clairvoyant {
        /// From when on a request takes how long, ascending.
        service: Vec<(plimsoll_base::Time, Span)>,
    },
}

/// By whose deadline a window's requests are judged; see [`crate::demand`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum Deadlines {
    /// The first one's, as published.
    Window,
    /// Each one's own, less a margin that keeps the measured slack between the thresholds.
    #[default]
    Each,
}

/// Core policy of a queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum CoreRule {
    /// Changed by slack every [`QwinConfig::poll_windows`] windows (QW-M7).
    #[default]
    BySlack,
    /// Always the same one.
    Always(CorePolicy),
}

/// QWin's parameters. [`QwinConfig::published`] are the paper's (§5); by default each request has its own deadline and cores are
/// looked at after each request, as slack is then kept by a margin.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QwinConfig {
    /// Method of calculating the demand.
    pub deadlines: Deadlines,
    /// Times of calculation.
    pub rule: CoreRule,
    /// `THRESH_WIN`: windows from one look at the measured tail to the next.
    pub poll_windows: u64,
    /// `THRESH_LOW`: with less slack than this a queue becomes aggressive.
    pub slack_low: Span,
    /// `THRESH_HIGH`: with more it becomes conservative.
    pub slack_high: Span,
    /// Bound what best effort writes by how many requests are late ([`crate::bound`]; not in the paper).
    pub bound_writes: bool,
}

impl Default for QwinConfig {
    fn default() -> QwinConfig {
        QwinConfig {
            deadlines: Deadlines::Each,
            rule: CoreRule::Always(CorePolicy::Aggressive),
            poll_windows: 2000,
            slack_low: Span::from_micros(300),
            slack_high: Span::from_micros(1000),
            bound_writes: false,
        }
    }
}

impl QwinConfig {
    /// As published: the window's deadline, the core policy by slack.
    pub fn published() -> QwinConfig {
        QwinConfig { deadlines: Deadlines::Window, rule: CoreRule::BySlack, ..QwinConfig::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_makes_no_sense_is_told() {
        let ok = CoresConfig::new(8);
        assert_eq!(ok.check(), Ok(()));
        let bad = |change: fn(&mut CoresConfig)| {
            let mut c = CoresConfig::new(8);
            change(&mut c);
            c.check().expect_err("bad")
        };
        assert!(bad(|c| c.cores = 0).contains("cores = 0 is not between"));
        assert!(bad(|c| c.depth = 5000).contains("core_depth = 5000"));
        assert!(bad(|c| c.policy = PolicyConfig::Cake { interval: Span::ZERO }).contains("interval"));
        let slack = QwinConfig { slack_low: Span::from_secs(1), ..QwinConfig::default() };
        let mut c = CoresConfig::new(1);
        c.policy = PolicyConfig::Qwin(slack);
        assert!(c.check().unwrap_err().contains("1.00s at least is above"));
    }
}
