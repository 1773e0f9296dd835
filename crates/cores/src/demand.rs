//! The SLO-to-core calculation (QWin §3.2.2, QW-M3): the number of requests that must be in service at once so that all waiting
//! requests begin in time.
//!
//! A request that waits `w` and is then served ends within the objective at its percentile if `w <= T_slo - Tail_io`. So with mean
//! service time `T_io`, a window of QL requests whose first has waited TW needs
//!
//! ```text
//! N = QL / (T_slo - Tail_io - TW) * T_io                                        [Deadlines::Window, the paper's]
//! ```
//! That formula holds the youngest request to the oldest one's deadline. With steady arrivals it asks for up to twice the cores that
//! are needed. In balance the first request of a window has waited for the window's whole length, so the wait settles at half of the
//! permitted one. The other formula takes each request's own age:
//!
//! ```text
//! N = max over k of  k / (T_slo - Tail_io - age of the k-th) * T_io             [Deadlines::Each, ours]
//! ```
//! This N is the least that lets the k-th request begin in time, for every k (first in, first out is earliest deadline first here).
//! Sixteen points of the queue are examined. Each group of requests is judged by its oldest one, so N is never too small.
//!
//! The paper leaves two points open. First, a deadline may have passed (QW-A1). It is then taken as one mean service time from now:
//! N is the number of due requests, which more cores would not help. Second, the service time's tail may leave less than an eighth
//! of the objective for waiting. No number of cores meets such an objective. An eighth is then taken, and the queue is marked
//! (`hopeless`). N is rounded up (QW-A2).

use crate::config::Deadlines;
use plimsoll_base::{Span, Time};

/// Points of a queue that are looked at.
const POINTS: usize = 16;

/// One objective with what is measured: the bound on the response time and the service time's tail at its percentile.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bound {
    /// `T_slo`.
    pub within: Span,
    /// `Tail_io`.
    pub tail: Span,
}

impl Bound {
    /// Returns the permitted wait of a request: `T_slo - Tail_io`, at least an eighth of the objective.
    pub fn wait(&self) -> Span {
        self.within.saturating_sub(self.tail).max(self.within / 8)
    }

    /// The service's tail leaves no time for waiting: cores can't meet it.
    pub fn is_hopeless(&self) -> bool {
        self.within.saturating_sub(self.tail) < self.within / 8
    }
}

/// Requests that must be in service at once so that `len` waiting ones, the k-th (from 0, oldest first) arrived at
/// `arrived(k)`, all begin within `wait` of their arrival. `mean` is what one takes. At least 1.
pub fn slots(how: Deadlines, now: Time, len: usize, arrived: impl Fn(usize) -> Time, wait: Span, mean: Span) -> u64 {
    if len == 0 || mean == Span::ZERO {
        return 1;
    }
    let mean_ns = mean.as_nanos();
    let needed = |k: usize, oldest: usize| {
        let left_ns = wait.saturating_sub(now.since(arrived(oldest))).as_nanos().max(mean_ns);
        (k as u64).saturating_mul(mean_ns).div_ceil(left_ns)
    };
    match how {
        Deadlines::Window => needed(len, 0),
        Deadlines::Each => {
            let mut most = 1;
            let mut from = 0;
            for point in 1..=POINTS.min(len) {
                let to = len * point / POINTS.min(len);
                most = most.max(needed(to, from));
                from = to;
            }
            most
        }
    }
}

/// Returns the number of dequeues until the number of cores is examined again under the SLO-aware policy (formula 3). It is the
/// number of requests that one core serves in the time that is left, at least 1.
pub fn budget(now: Time, oldest: Time, wait: Span, mean: Span) -> u64 {
    let left = wait.saturating_sub(now.since(oldest));
    (left.as_nanos() / mean.as_nanos().max(1)).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at_us(n: u64) -> Time {
        Time::ZERO + Span::from_micros(n)
    }

    #[test]
    fn the_papers_formula() {
        // 40 requests, the first waited 0.5 ms, 3 ms - 0.5 ms tail: 40 * 100 us / 2 ms = 2.
        let wait = Bound { within: Span::from_millis(3), tail: Span::from_micros(500) }.wait();
        let n =
            |len| slots(Deadlines::Window, at_us(1000), len, |k| at_us(500 + k as u64), wait, Span::from_micros(100));
        assert_eq!((n(40), n(41), n(20), n(1), n(0)), (2, 3, 1, 1, 1));
        assert_eq!(budget(at_us(1000), at_us(500), wait, Span::from_micros(100)), 20);
    }

    #[test]
    fn a_passed_deadline_asks_for_all_at_once_and_no_more() {
        let wait = Span::from_millis(1);
        for how in [Deadlines::Window, Deadlines::Each] {
            assert_eq!(slots(how, at_us(90_000), 7, |_| at_us(0), wait, Span::from_micros(100)), 7);
        }
        let b = Bound { within: Span::from_millis(8), tail: Span::from_millis(9) };
        assert!(b.is_hopeless() && b.wait() == Span::from_millis(1));
    }

    #[test]
    fn in_balance_the_papers_formula_takes_twice_the_cores() {
        // 100 requests that arrived evenly over the last 1.1 ms; 2.2 ms are allowed; 100 us each.
        let (wait, mean) = (Span::from_micros(2200), Span::from_micros(100));
        let of =
            |how, age: u64| slots(how, at_us(10_000), 100, |k| at_us(10_000 - age + k as u64 * age / 100), wait, mean);
        assert_eq!(of(Deadlines::Window, 1100), 10, "serving 100 with 10 takes 1.1 ms: it stays so");
        assert!((5..=6).contains(&of(Deadlines::Each, 2000)), "serving 100 with 5 takes 2 ms: it stays so");
    }

    proptest! {
        /// The naive oracle: with so many slots and every request taking exactly the mean, all begin in time; with one less,
        /// some doesn't (but for the sixteen points, which may ask for more on long queues).
        #[test]
        fn each_is_enough_and_not_more(gaps in proptest::collection::vec(0u64..300, 1..60), mean_us in 20u64..400, wait_us in 500u64..4000) {
            let arrivals: Vec<u64> = gaps.iter().scan(0, |t, g| { *t += g; Some(*t) }).collect();
            let now = *arrivals.last().unwrap();
            let (wait, mean) = (Span::from_micros(wait_us), Span::from_micros(mean_us));
            let n = slots(Deadlines::Each, at_us(now), arrivals.len(), |k| at_us(arrivals[k]), wait, mean);
            // Request k (from 0) begins when k / n rounds are over.
            let late = |n: u64| arrivals.iter().enumerate().any(|(k, &a)| {
                let begins = now + k as u64 / n * mean_us;
                begins > (a + wait_us).max(now)
            });
            prop_assert!(!late(n), "{n} are not enough");
            let exact = (1..=n).find(|&n| !late(n)).unwrap();
            let window = slots(Deadlines::Window, at_us(now), arrivals.len(), |k| at_us(arrivals[k]), wait, mean);
            prop_assert!(n <= window.max(1), "each {n}, window {window}");
            if arrivals.len() <= POINTS {
                // A fluid rate against whole rounds: at most one round is lost.
                let rounds_left = (wait_us / mean_us).max(1);
                prop_assert!(n <= exact + (arrivals.len() as u64).div_ceil(rounds_left) + 1, "{n}, exact {exact}");
            }
        }
    }
}
