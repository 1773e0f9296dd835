//! A leaky bucket, in time: a cost is how long the limit's rate takes for it.

use crate::terms::Limit;
use plimsoll_base::{Span, Time};

/// One limit's state.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bucket {
    limit: Limit,
    /// When the bucket is empty again.
    empty_at: Time,
}

impl Bucket {
    pub fn new(limit: Limit) -> Bucket {
        Bucket { limit, empty_at: Time::ZERO }
    }

    /// The same content under another limit.
    pub fn with(self, limit: Limit) -> Bucket {
        Bucket { limit, ..self }
    }

    fn takes(&self, units: u64) -> Span {
        let ns = u128::from(units) * 1_000_000_000 / u128::from(self.limit.per_s.max(1));
        Span::from_nanos(u64::try_from(ns).unwrap_or(u64::MAX))
    }

    /// The earliest time at which a request may go on, after requests of `queued` units that wait before it.
    pub fn allows_at(&self, now: Time, queued: u64) -> Time {
        let empty_at = self.empty_at.max(now) + self.takes(queued);
        (empty_at - self.takes(self.limit.burst)).max(now)
    }

    /// A request of `units` goes on.
    pub fn add(&mut self, now: Time, units: u64) {
        self.empty_at = self.empty_at.max(now) + self.takes(units);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_goes_on_at_once_and_the_rest_at_the_rate() {
        let mut b = Bucket::new(Limit { per_s: 100, burst: 5 });
        let t = Time::from_nanos(7_000_000_000);
        for _ in 0..6 {
            assert_eq!(b.allows_at(t, 0), t);
            b.add(t, 1);
        }
        assert_eq!(b.allows_at(t, 0), t + Span::from_millis(10));
        assert_eq!(b.allows_at(t, 3), t + Span::from_millis(40));
        assert_eq!(b.allows_at(t + Span::from_secs(1), 0), t + Span::from_secs(1), "idle time empties it");
    }

    #[test]
    fn a_request_larger_than_the_burst_goes_on_and_is_paid_for_later() {
        let mut b = Bucket::new(Limit { per_s: 1000, burst: 10 });
        b.add(Time::ZERO, 5000);
        assert_eq!(b.allows_at(Time::ZERO, 0), Time::ZERO + Span::from_millis(4990));
    }
}
