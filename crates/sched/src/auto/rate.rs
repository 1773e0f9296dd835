//! Predictor for a device with a fixed rate per second, such as a provider's throttle. Requests wait for the rate, and credit
//! saved up earlier lets them pass at once.
//!
//! ```text
//!  credit grows with time up to its most ─► spent by requests ─► at none, requests follow each other at the rate
//! ```
//! While outstanding requests take much longer than one alone, the time between two completions is the rate. Credit is found by
//! contradiction: a device at its rate has none left, and a faster device has more than was assumed.

use plimsoll_base::{Span, Time};

/// The time of a unit and of a read alone follow by 1/2 to the power of these.
const RATE_SHIFT: u32 = 5;
const ALONE_SHIFT: u32 = 4;
/// A device is at its rate while reads take this many times as long as one alone, with this many outstanding.
const TIMES_ALONE: u64 = 4;
const OUTSTANDING: u64 = 4;
/// A completion that follows the one before by more says nothing of the rate.
const BETWEEN_MAX: Span = Span::from_secs(10);
/// Fixed point of a unit's time.
const FINE_BITS: u32 = 8;
/// Credit beyond this is as good as no limit.
const CREDIT_MAX_NS: i64 = 3_600_000_000_000;

/// See the module's documentation. Units are requests or bytes.
pub(super) struct Rate {
    /// Time of a unit at the rate, in ns and fixed point; 0 while the device was never at it.
    unit_ns: u64,
    /// Time in ns of a read that nothing is in front of.
    alone_ns: u64,
    /// Units outstanding.
    outstanding: u64,
    requests: u64,
    /// Time's worth of units that go at once, as of `at`; its most.
    credit_ns: i64,
    most_ns: i64,
    at: Time,
    last_done: Time,
    busy_since: Time,
}

impl Rate {
    pub(super) fn new() -> Rate {
        Rate {
            unit_ns: 0,
            alone_ns: 0,
            outstanding: 0,
            requests: 0,
            credit_ns: 0,
            most_ns: 0,
            at: Time::ZERO,
            last_done: Time::ZERO,
            busy_since: Time::ZERO,
        }
    }

    fn worth_ns(&self, units: u64) -> i64 {
        ((u128::from(units) * u128::from(self.unit_ns)) >> FINE_BITS).min(CREDIT_MAX_NS as u128) as i64
    }

    fn credit_at(&self, at: Time) -> i64 {
        let grown = self.credit_ns.saturating_add(at.since(self.at).as_nanos().min(CREDIT_MAX_NS as u64) as i64);
        grown.min(self.most_ns)
    }

    /// Time that a read of `units` would take that comes at `at`.
    pub(super) fn forecast_ns(&self, at: Time, units: u64) -> u64 {
        let waits = self.worth_ns(self.outstanding.saturating_add(units)) - self.credit_at(at);
        self.alone_ns + waits.max(0) as u64
    }

    pub(super) fn sent(&mut self, now: Time, units: u64) {
        if self.requests == 0 {
            self.busy_since = now;
        }
        self.requests += 1;
        self.outstanding += units;
    }

    pub(super) fn withdrawn(&mut self, units: u64) {
        self.requests -= 1;
        self.outstanding -= units;
    }

    /// A request has ended; `in_front` is how many were outstanding when it came, without it.
    pub(super) fn ended(&mut self, now: Time, units: u64, took: Span, is_read: bool, in_front: u64) {
        let took_ns = took.as_nanos();
        if is_read && in_front == 0 {
            let first = self.alone_ns == 0;
            self.alone_ns =
                if first { took_ns } else { self.alone_ns - (self.alone_ns >> ALONE_SHIFT) + (took_ns >> ALONE_SHIFT) };
        }
        let between = now.since(self.last_done.max(self.busy_since));
        let is_slow = self.requests >= OUTSTANDING && took_ns > TIMES_ALONE * self.alone_ns && self.alone_ns > 0;
        let credit = self.credit_at(now).saturating_sub(self.worth_ns(units));
        self.at = now;
        if is_slow && between < BETWEEN_MAX && units > 0 {
            let each = (between.as_nanos() << FINE_BITS) / units;
            let first = self.unit_ns == 0;
            self.unit_ns =
                if first { each } else { self.unit_ns - (self.unit_ns >> RATE_SHIFT) + (each >> RATE_SHIFT) };
            // Credit that was thought to be left never was.
            self.most_ns = (self.most_ns - credit.max(0)).max(0);
            self.credit_ns = 0;
        } else {
            // It went faster than the rate: there was more.
            self.most_ns = (self.most_ns + (-credit).max(0)).min(CREDIT_MAX_NS);
            self.credit_ns = credit.max(0);
        }
        self.withdrawn(units);
        self.last_done = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A throttle of 1,000 a second that lets 200 through at once: bursts of 400 a second apart.
    #[test]
    fn the_rate_and_the_credit_are_found() {
        let mut r = Rate::new();
        let (mut now, mut off) = (Time::ZERO, 0.0);
        let ms = Span::from_millis(1);
        for burst in 0..40 {
            now += Span::from_secs(1);
            let came = now;
            let forecasts: Vec<u64> = (0..400)
                .map(|_| {
                    let f = r.forecast_ns(came, 1);
                    r.sent(came, 1);
                    f
                })
                .collect();
            for i in 0..400u64 {
                let done = came + Span::from_micros(200) + if i < 200 { Span::ZERO } else { ms * (i - 199) };
                now = now.max(done);
                r.ended(now, 1, now.since(came), true, i);
                if burst >= 20 {
                    let took = now.since(came).as_nanos() as f64;
                    off += (forecasts[i as usize] as f64 - took).abs() / 8_000.0;
                }
            }
        }
        assert!(off / 1e6 < 15.0, "mean error {} ms of up to 200", off / 1e6);
    }

    #[test]
    fn a_device_that_was_never_at_its_rate_has_none() {
        let mut r = Rate::new();
        let mut now = Time::ZERO;
        for _ in 0..100 {
            r.sent(now, 1);
            now += Span::from_micros(100);
            r.ended(now, 1, Span::from_micros(100), true, 0);
        }
        assert!((90_000..=100_000).contains(&r.forecast_ns(now, 1)));
    }
}
