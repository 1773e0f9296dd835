//! A leaky bucket, in time: a cost is how long the limit's rate takes for it.

use crate::terms::Limit;
use plimsoll_base::{Span, Time};

/// One limit's state.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bucket {
    limit: Limit,
    /// Time that the rate takes for the burst.
    burst: Span,
    /// Time at which the bucket is empty again.
    empty_at: Time,
}

impl Bucket {
    /// An empty one.
    pub fn new(now: Time, limit: Limit) -> Bucket {
        Bucket { limit, burst: takes(limit, limit.burst), empty_at: now }
    }

    /// With the same content under another limit. A higher rate empties it sooner. A lower one takes no longer than the old one would have.
    ///
    /// Requests of a burst that the old limit allowed fill the new bucket at most, and those beyond that burst are owed for no longer
    /// than the new bucket takes to fill up again. Otherwise a volume would stop for as long as the old burst was, up to an hour.
    pub fn with(self, now: Time, limit: Limit) -> Bucket {
        if limit == self.limit {
            return Bucket { empty_at: self.empty_at.max(now), ..self };
        }
        let new = Bucket::new(now, limit);
        let under_new = |left: Span| left.min(left.scale(self.limit.per_s, limit.per_s.max(1)));
        let owed = under_new(self.free_at().since(now)).min(takes(limit, limit.burst.max(1)));
        Bucket { empty_at: now + under_new(self.empty_at.since(now)).min(new.burst + owed), ..new }
    }

    /// The time from which on the next request may go on.
    pub fn free_at(&self) -> Time {
        self.empty_at - self.burst
    }

    /// A request of `units` goes on, which was due at `at`.
    pub fn add(&mut self, at: Time, units: u64) {
        self.empty_at = self.empty_at.max(at) + takes(self.limit, units);
    }

    /// A request of `units` that was added won't go on.
    pub fn subtract(&mut self, units: u64) {
        self.empty_at = self.empty_at - takes(self.limit, units);
    }
}

fn takes(limit: Limit, units: u64) -> Span {
    const SECOND: u64 = 1_000_000_000;
    // In 64 bits, where a division is fast, for whatever a request costs.
    match units.checked_mul(SECOND) {
        Some(ns) => Span::from_nanos(ns / limit.per_s.max(1)),
        None => Span::from_secs(1).scale(units, limit.per_s.max(1)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_goes_on_at_once_and_the_rest_at_the_rate() {
        let t = Time::from_nanos(7_000_000_000);
        let mut b = Bucket::new(t, Limit { per_s: 100, burst: 5 });
        for _ in 0..6 {
            assert!(b.free_at() <= t);
            b.add(t, 1);
        }
        assert_eq!(b.free_at(), t + Span::from_millis(10));
        b.subtract(1);
        assert_eq!(b.free_at(), t);
    }

    #[test]
    fn a_request_larger_than_the_burst_goes_on_and_is_paid_for_later() {
        let mut b = Bucket::new(Time::ZERO, Limit { per_s: 1000, burst: 10 });
        b.add(Time::ZERO, 5000);
        assert_eq!(b.free_at(), Time::ZERO + Span::from_millis(4990));
    }

    #[test]
    fn large_costs_are_exact() {
        let hour = Limit { per_s: 1_000_000_000_000, burst: 3_599_000_000_000_000 };
        assert_eq!(takes(hour, hour.burst), Span::from_secs(3599));
        assert_eq!(takes(hour, u64::MAX), Span::from_secs(1).scale(u64::MAX, hour.per_s));
    }
}
