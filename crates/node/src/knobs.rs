//! What can be tuned of a pool's layers while it serves: which of it a pool has, within which bounds, and what it is now.
//!
//! Time slots are changed through the pool's fence, deadlines through volumes.

use crate::config::{CacheDedup, PoolConfig};
use plimsoll_base::Span;
use plimsoll_cache::CacheControl;
use plimsoll_cores::{CoresControl, PolicyConfig, QwinConfig};
use plimsoll_logs::LogsControl;
use plimsoll_sched::cfq::CfqControl;
use plimsoll_sched::{SchedulerKind, SchedulerOptions};
use plimsoll_stack::Addressed;
use plimsoll_store::{KnobValues, KnobsRecord};

/// CFQ may keep the device for nobody in particular for no longer than this.
const IDLE_MAX: Span = Span::from_secs(1);
/// Slack is measured against objectives of milliseconds to seconds.
const SLACK_MAX: Span = Span::from_secs(10);

/// A pool's settings as they are now; `None` where it has no layer that they concern.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Knobs {
    /// CFQ's `idle_time`.
    pub idle: Option<Span>,
    /// LoggedWriteSize, and the most that it may be.
    pub logged_write: Option<(u64, u64)>,
    /// Fingerprints kept, in percent of the cache's extents.
    pub fingerprints_percent: Option<u32>,
    /// QWin's thresholds.
    pub core_slack: Option<CoreSlack>,
}

/// When QWin's core policy changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CoreSlack {
    /// With less slack a queue becomes aggressive.
    pub low: Span,
    /// With more it becomes conservative.
    pub high: Span,
    /// Windows from one look to the next.
    pub poll_windows: u64,
}

/// What is to change; `None` stays.
#[derive(Clone, Copy, Debug, Default)]
pub struct Wanted {
    /// CFQ's `idle_time`.
    pub idle: Option<Span>,
    /// LoggedWriteSize in bytes.
    pub logged_write: Option<u64>,
    /// In percent.
    pub fingerprints_percent: Option<u32>,
    /// QWin's lower threshold.
    pub core_slack_low: Option<Span>,
    /// QWin's upper threshold.
    pub core_slack_high: Option<Span>,
    /// Windows from one look to the next.
    pub core_poll_windows: Option<u64>,
}

impl Knobs {
    /// Those of a configuration that was checked.
    pub fn of(config: &PoolConfig) -> Knobs {
        let is_cfq = config.sched.as_ref().is_some_and(|s| s.get_ref().parse() == Ok(SchedulerKind::Cfq));
        let idle = || config.idle_time.map_or(SchedulerOptions::default().slice_idle, |t| t.0);
        let cache = config.cache.as_ref().filter(|c| c.dedup != CacheDedup::Off && c.fingerprints_percent > 0);
        let qwin = |c: QwinConfig| CoreSlack { low: c.slack_low, high: c.slack_high, poll_windows: c.poll_windows };
        Knobs {
            idle: is_cfq.then(idle),
            logged_write: config.logs.as_ref().map(crate::logs::logged_write),
            fingerprints_percent: cache.map(|c| c.fingerprints_percent),
            core_slack: match crate::cores::config(config) {
                Ok(Some(plimsoll_cores::CoresConfig { policy: PolicyConfig::Qwin(c), .. })) => Some(qwin(c)),
                _ => None,
            },
        }
    }

    /// As they are kept in the pool's store.
    pub fn values(&self) -> KnobValues {
        KnobValues {
            idle_ns: self.idle.map(Span::as_nanos),
            logged_write_bytes: self.logged_write.map(|l| l.0),
            fingerprints_percent: self.fingerprints_percent,
            core_slack: self.core_slack.map(|s| (s.low.as_nanos(), s.high.as_nanos(), s.poll_windows)),
        }
    }

    /// What was set live in an earlier life of the node and is still meant, where these are what is configured: each setting that is
    /// configured as it was then.
    pub fn kept(&self, record: &KnobsRecord) -> Wanted {
        fn still<T: PartialEq>(now: Option<T>, then: Option<T>, set: Option<T>) -> Option<T> {
            if now == then && set != now { set } else { None }
        }
        let (now, then, set) = (self.values(), record.configured, record.set);
        let slack = still(now.core_slack, then.core_slack, set.core_slack);
        Wanted {
            idle: still(now.idle_ns, then.idle_ns, set.idle_ns).map(Span::from_nanos),
            logged_write: still(now.logged_write_bytes, then.logged_write_bytes, set.logged_write_bytes),
            fingerprints_percent: still(now.fingerprints_percent, then.fingerprints_percent, set.fingerprints_percent),
            core_slack_low: slack.map(|s| Span::from_nanos(s.0)),
            core_slack_high: slack.map(|s| Span::from_nanos(s.1)),
            core_poll_windows: slack.map(|s| s.2),
        }
    }

    /// These with what is wanted, and the messages that make it so.
    ///
    /// # Errors
    /// What the pool has not, or what is out of its range.
    pub fn changed(&self, wanted: &Wanted) -> Result<(Knobs, Vec<Addressed>), String> {
        let (mut new, mut orders) = (*self, Vec::new());
        if let Some(idle) = wanted.idle {
            new.idle.as_mut().map(|i| *i = idle).ok_or("idle time: the pool's scheduler isn't cfq")?;
            if idle > IDLE_MAX {
                return Err(format!("idle time: {idle} is more than {IDLE_MAX}"));
            }
            orders.push(Addressed::new(&CfqControl::SliceIdle(idle)));
        }
        if let Some(bytes) = wanted.logged_write {
            let (now, most) = new.logged_write.as_mut().ok_or("logged write: the pool has no logs")?;
            if bytes > *most {
                return Err(format!("logged write: {bytes} bytes are more than a quarter of a log: at most {most}"));
            }
            *now = bytes;
            orders.push(Addressed::new(&LogsControl::LoggedWriteBytes(bytes)));
        }
        if let Some(percent) = wanted.fingerprints_percent {
            let now = new.fingerprints_percent.as_mut();
            *now.ok_or("fingerprints: the pool has no cache, or one that doesn't look for duplicates")? = percent;
            if !(1..=100).contains(&percent) {
                return Err(format!("fingerprints: {percent} % is not between 1 and 100"));
            }
            orders.push(Addressed::new(&CacheControl::FingerprintsPercent(percent)));
        }
        if wanted.core_slack_low.is_some() || wanted.core_slack_high.is_some() || wanted.core_poll_windows.is_some() {
            let s = new.core_slack.as_mut().ok_or("core slack: the pool has no cores, or their policy isn't QWin's")?;
            s.low = wanted.core_slack_low.unwrap_or(s.low);
            s.high = wanted.core_slack_high.unwrap_or(s.high);
            s.poll_windows = wanted.core_poll_windows.unwrap_or(s.poll_windows);
            if s.low > s.high || s.high > SLACK_MAX {
                return Err(format!("core slack: {} to {} doesn't ascend within 0 to {SLACK_MAX}", s.low, s.high));
            }
            if s.poll_windows == 0 {
                return Err("core slack: 0 windows from one look to the next: nobody would ever look".into());
            }
            let CoreSlack { low, high, poll_windows } = *s;
            orders.push(Addressed::new(&CoresControl::Slack { low, high, poll_windows }));
        }
        Ok((new, orders))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn knobs() -> Knobs {
        Knobs {
            idle: Some(Span::from_millis(8)),
            logged_write: Some((4096, 65_536)),
            fingerprints_percent: None,
            core_slack: Some(CoreSlack {
                low: Span::from_micros(300),
                high: Span::from_micros(1000),
                poll_windows: 2000,
            }),
        }
    }

    #[test]
    fn what_is_wanted_changes_and_the_rest_stays() {
        let wanted =
            Wanted { idle: Some(Span::ZERO), core_slack_high: Some(Span::from_millis(5)), ..Wanted::default() };
        let (new, orders) = knobs().changed(&wanted).unwrap();
        assert_eq!((new.idle, new.logged_write), (Some(Span::ZERO), Some((4096, 65_536))));
        let (low, high) = (Span::from_micros(300), Span::from_millis(5));
        let slack = CoresControl::Slack { low, high, poll_windows: 2000 };
        assert_eq!(orders, [Addressed::new(&CfqControl::SliceIdle(Span::ZERO)), Addressed::new(&slack)]);
        assert_eq!(knobs().changed(&Wanted::default()).unwrap(), (knobs(), vec![]));
    }

    #[test]
    fn what_was_set_live_holds_until_something_else_is_configured() {
        let wanted = Wanted { idle: Some(Span::ZERO), core_poll_windows: Some(500), ..Wanted::default() };
        let (set, _) = knobs().changed(&wanted).unwrap();
        let record = KnobsRecord { set: set.values(), configured: knobs().values() };
        assert_eq!(knobs().changed(&knobs().kept(&record)).unwrap().0, set, "the same is configured");
        let (other, _) = knobs().changed(&Wanted { idle: Some(Span::from_millis(4)), ..Wanted::default() }).unwrap();
        let kept = other.changed(&other.kept(&record)).unwrap().0;
        assert_eq!(
            (kept.idle, kept.core_slack),
            (Some(Span::from_millis(4)), set.core_slack),
            "what else was set holds"
        );
        assert_eq!(Knobs::default().kept(&record).idle, None, "the pool has no such layer any more");
    }

    #[test]
    fn what_the_pool_has_not_or_is_out_of_range_is_refused() {
        let told = |wanted: Wanted| knobs().changed(&wanted).unwrap_err();
        let d = Wanted::default();
        assert!(told(Wanted { fingerprints_percent: Some(50), ..d }).contains("has no cache"));
        assert!(told(Wanted { logged_write: Some(65_537), ..d }).contains("at most 65536"));
        assert!(told(Wanted { idle: Some(Span::from_secs(2)), ..d }).contains("more than 1.00s"));
        assert!(told(Wanted { core_slack_low: Some(Span::from_millis(2)), ..d }).contains("doesn't ascend"));
        assert!(told(Wanted { core_poll_windows: Some(0), ..d }).contains("nobody would ever look"));
        let none = Knobs::default().changed(&Wanted { idle: Some(Span::ZERO), ..d }).unwrap_err();
        assert!(none.contains("isn't cfq"));
    }
}
