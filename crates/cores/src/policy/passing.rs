//! Wait of a request behind those that a policy serves before it: of other queues that wait already, and that come meanwhile.
//!
//! Work before the request depends on its wait, and its wait on that work. Both are taken to flow evenly, and the wait is found at which they
//! agree: by Newton's method within bounds, as the work grows with the wait by straight pieces.

use crate::queue::Queues;
use plimsoll_base::{Span, Time};

/// Arrivals are counted over one to two of these.
const EPOCH: Span = Span::from_millis(100);
/// Steps towards the wait, each with a look at all queues that have or expect requests, and the share of it by which it may be off.
const STEPS: usize = 12;
const NEAR: f64 = 1.0 / 64.0;
/// Work that comes is taken to use no more than this part of the cores: a wait without an end is no forecast.
const COMES_MOST: f64 = 0.95;
/// No wait is longer.
const WAIT_MAX_NS: f64 = 3.6e12;

/// Arrivals of one queue.
#[derive(Clone, Copy, Default)]
pub(crate) struct Pace {
    /// In this epoch, and in the one before.
    arrived: [u32; 2],
    epoch: u64,
    /// Time at which a request last came that found none waiting.
    busy_since: Time,
}

impl Pace {
    fn at(&self, now: Time) -> [u32; 2] {
        match (now.as_nanos() / EPOCH.as_nanos()) - self.epoch {
            0 => self.arrived,
            1 => [0, self.arrived[0]],
            _ => [0; 2],
        }
    }

    /// A request has come, beside `beside` others that wait.
    pub(crate) fn arrived(&mut self, now: Time, beside: usize) {
        self.arrived = self.at(now);
        self.arrived[0] += 1;
        self.epoch = now.as_nanos() / EPOCH.as_nanos();
        if beside == 0 {
            self.busy_since = now;
        }
    }

    /// Arrivals in a nanosecond.
    fn per_ns(&self, now: Time) -> f64 {
        let epochs_ns = EPOCH.as_nanos() + now.as_nanos() % EPOCH.as_nanos();
        f64::from(self.at(now).iter().sum::<u32>()) / epochs_ns as f64
    }
}

/// A quantity as it is at a wait, and its growth with each nanosecond more.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Amount {
    pub(crate) value: f64,
    pub(crate) slope: f64,
}

impl Amount {
    /// Always the same.
    pub(crate) fn level(value: f64) -> Amount {
        Amount { value, slope: 0.0 }
    }

    /// Events of `per_s` a second up to `wait` after now, of which the first is, or was, at `first`.
    pub(crate) fn rate(now: Time, wait_ns: f64, first: Time, per_s: u64) -> Amount {
        let late_ns = now.since(first).as_nanos() as f64 - first.since(now).as_nanos() as f64;
        let (since_ns, slope) = (wait_ns + late_ns, per_s as f64 / 1e9);
        if since_ns < 0.0 { Amount::level(0.0) } else { Amount { value: 1.0 + since_ns * slope, slope } }
    }

    pub(crate) fn min(self, other: Amount) -> Amount {
        if other.value < self.value { other } else { self }
    }

    pub(crate) fn max(self, other: Amount) -> Amount {
        if other.value > self.value { other } else { self }
    }

    pub(crate) fn times(self, by: f64) -> Amount {
        Amount { value: self.value * by, slope: self.slope * by }
    }

    pub(crate) fn plus(self, other: Amount) -> Amount {
        Amount { value: self.value + other.value, slope: self.slope + other.slope }
    }
}

/// The time of a request of queue `at` on a core, in nanoseconds: of one of `like`'s as long as none was measured.
pub(crate) fn takes_ns(queues: &Queues, at: usize, like: usize) -> f64 {
    let own = queues.get(at).service.mean();
    let mean = if own == Span::ZERO { queues.get(like).service.mean() } else { own };
    mean.as_nanos() as f64
}

/// Requests of a queue that could be served if nothing else were: those that wait, and those that come.
#[derive(Clone, Copy)]
pub(crate) struct Supply {
    waiting: f64,
    per_ns: f64,
}

impl Supply {
    /// Of queue `at`. One in which requests have waited throughout two epochs will go on to have some.
    pub(crate) fn of(queues: &Queues, at: usize, pace: &Pace, now: Time) -> Supply {
        let waiting = queues.get(at).waiting().len();
        if waiting > 0 && now.since(pace.busy_since) > EPOCH * 2 {
            return Supply { waiting: f64::INFINITY, per_ns: 0.0 };
        }
        Supply { waiting: waiting as f64, per_ns: pace.per_ns(now) }
    }

    /// True if nothing waits, and nothing comes as far as is known.
    pub(crate) fn is_none(&self) -> bool {
        self.waiting == 0.0 && self.per_ns == 0.0
    }

    /// Those within a wait.
    pub(crate) fn within(&self, wait_ns: f64) -> Amount {
        Amount { value: self.waiting + wait_ns * self.per_ns, slope: self.per_ns }
    }
}

/// The wait at which `slots` have done the work that goes before a request, which is `before` at a given wait.
pub(crate) fn settle(slots: f64, before: impl Fn(f64) -> Amount) -> Span {
    let (mut wait_ns, mut least, mut most) = (0.0, 0.0, WAIT_MAX_NS);
    for _ in 0..STEPS {
        let work = before(wait_ns).times(1.0 / slots.max(1.0));
        let off = work.value - wait_ns;
        if off.abs() <= wait_ns * NEAR {
            break;
        }
        *(if off > 0.0 { &mut least } else { &mut most }) = wait_ns;
        let next = wait_ns + off / (1.0 - work.slope.min(COMES_MOST));
        // Cores that are a queue's own bend the line the other way: then the middle.
        wait_ns = if (least..=most).contains(&next) { next } else { least.midpoint(most) };
    }
    Span::from_nanos(wait_ns as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrivals_are_those_of_the_last_epochs() {
        let mut pace = Pace::default();
        let at = |ms| Time::ZERO + Span::from_millis(ms);
        (0..1000).for_each(|ms| pace.arrived(at(ms), 0));
        let per_s = |pace: &Pace, ms| (pace.per_ns(at(ms)) * 1e9).round();
        assert_eq!((per_s(&pace, 999), per_s(&pace, 1050), per_s(&pace, 1150)), (1005.0, 667.0, 0.0));
        pace.arrived(at(5000), 0);
        assert_eq!(per_s(&pace, 5000), 10.0);
    }

    /// Twenty requests wait and three of four that are served come back, up to fifty: the wait is where both agree.
    #[test]
    fn a_wait_is_found_where_work_and_wait_agree() {
        let work = |wait_ns: f64| Amount { value: 20e6 + 0.75 * 4.0 * wait_ns, slope: 3.0 }.min(Amount::level(50e6));
        assert_eq!(settle(4.0, work).as_micros(), 12_500);
        let less = |wait_ns: f64| Amount { value: 20e6 + 0.75 * 4.0 * wait_ns, slope: 3.0 }.min(Amount::level(90e6));
        assert_eq!(settle(4.0, less).as_micros(), 20_000);
        assert_eq!(settle(4.0, |_| Amount::level(0.0)), Span::ZERO);
        assert!(
            settle(1.0, |w| Amount { value: 1e6 + 2.0 * w, slope: 2.0 }) > Span::from_millis(20),
            "more comes than is served"
        );
    }
}
