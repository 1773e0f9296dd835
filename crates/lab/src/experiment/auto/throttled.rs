//! A device behind a provider's throttle: a token bucket in the order of arrival.

use plimsoll_base::{Span, Time};
use plimsoll_device::{Done, Model, Request};
use std::collections::VecDeque;

/// See the module's documentation.
#[derive(Clone)]
pub(super) struct Throttled<M> {
    model: M,
    /// Between two requests at the rate, and time's worth of requests that go at once.
    each: Span,
    most: Span,
    /// Time's worth of tokens, as of `at`.
    tokens: Span,
    at: Time,
    waiting: VecDeque<Request>,
}

impl<M: Model> Throttled<M> {
    /// `per_s` requests a second, `burst` of them at once; the bucket is full.
    pub(super) fn new(model: M, per_s: u64, burst: u64) -> Throttled<M> {
        let each = Span::from_nanos(1_000_000_000 / per_s);
        Throttled { model, each, most: each * burst, tokens: each * burst, at: Time::ZERO, waiting: VecDeque::new() }
    }

    fn refill(&mut self, now: Time) {
        self.tokens = (self.tokens + now.since(self.at)).min(self.most);
        self.at = now;
    }

    /// Returns the time at which the first waiting request may go.
    fn next_turn(&self) -> Time {
        if self.waiting.is_empty() || self.model.outstanding() == self.model.queue_max() {
            return Time::NEVER;
        }
        self.at + self.each.saturating_sub(self.tokens)
    }

    fn let_through(&mut self, now: Time) {
        self.refill(now);
        while self.tokens >= self.each && self.model.outstanding() < self.model.queue_max() {
            let Some(req) = self.waiting.pop_front() else { return };
            self.tokens -= self.each;
            self.model.submit(now, req);
        }
    }
}

impl<M: Model> Model for Throttled<M> {
    fn size_bytes(&self) -> u64 {
        self.model.size_bytes()
    }
    fn block_bytes(&self) -> u32 {
        self.model.block_bytes()
    }
    fn submit(&mut self, now: Time, req: Request) {
        self.waiting.push_back(req);
        self.let_through(now);
    }
    fn next_event(&self) -> Time {
        self.model.next_event().min(self.next_turn())
    }
    fn advance(&mut self, now: Time, done: &mut Vec<Done>) {
        while self.next_event() <= now {
            let at = self.next_event();
            self.model.advance(at, done);
            self.let_through(at);
        }
        self.model.advance(now, done);
    }
    fn outstanding(&self) -> usize {
        self.waiting.len() + self.model.outstanding()
    }
    fn queue_max(&self) -> usize {
        4096
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_device::{DeviceOptions, DeviceSpec, Op};

    #[test]
    fn a_burst_goes_at_once_and_the_rest_at_the_rate() {
        let model = DeviceSpec::named("sized:1G:nvme-modern").unwrap().build(DeviceOptions::default()).unwrap();
        let mut t = Throttled::new(model, 1000, 50);
        (0..150u64).for_each(|tag| t.submit(Time::ZERO, Request { tag, op: Op::Read, offset: tag * 4096, len: 4096 }));
        let mut done = Vec::new();
        while t.outstanding() > 0 {
            t.advance(t.next_event(), &mut done);
        }
        let at = |n: usize| done[n].at.since(Time::ZERO).as_millis_f64();
        assert!(at(49) < 5.0 && (99.0..105.0).contains(&at(149)), "{} {}", at(49), at(149));
    }
}
