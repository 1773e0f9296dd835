//! mClock (Gulati et al., OSDI 2010): reservation, limit and weight in requests a second, by tags.
//!
//! Each queue has a tag for its reservation, its limit and its share, spaced by 1/rate. First whoever's reservation is due,
//! then, of those below their limit, the smallest share tag; a request served by share gives its reservation tag back.

use crate::control::Allotment;
use crate::policy::{Policy, wait_behind};
use crate::queue::Queues;
use plimsoll_base::{Span, Time};

const SECOND_NS: u64 = 1_000_000_000;

#[derive(Clone, Copy)]
struct Tags {
    rates: Allotment,
    weight: u64,
    reservation: Time,
    limit: Time,
    /// Virtual, in seconds over weight.
    share: u128,
    busy: bool,
}

/// See the module's documentation.
pub struct Mclock {
    tags: Vec<Tags>,
    /// Time at which a queue that is only limited may be served again.
    due: Time,
}

impl Default for Mclock {
    fn default() -> Mclock {
        Mclock { tags: Vec::new(), due: Time::NEVER }
    }
}

impl Tags {
    /// One more request is served: its turn by limit and share moves on.
    fn served(&mut self) {
        self.limit = spaced(self.limit, self.rates.limit);
        self.share += u128::from(SECOND_NS / self.weight.max(1));
    }
}

fn spaced(last: Time, rate: u64) -> Time {
    last + Span::from_nanos(SECOND_NS.checked_div(rate).unwrap_or(0))
}

impl Policy for Mclock {
    fn name(&self) -> &'static str {
        "mclock"
    }

    fn queues_changed(&mut self, _now: Time, queues: &mut Queues) {
        for at in 0..queues.len() {
            let (rates, weight) = (queues.get(at).allotment(), queues.get(at).weight());
            match self.tags.get_mut(at) {
                Some(tags) => (tags.rates, tags.weight) = (rates, weight),
                None => {
                    let (reservation, limit) = (Time::ZERO, Time::ZERO);
                    self.tags.push(Tags { rates, weight, reservation, limit, share: 0, busy: false });
                }
            }
        }
    }

    fn arrived(&mut self, now: Time, at: usize, _queues: &mut Queues) {
        if self.tags[at].busy {
            return;
        }
        // Idle time isn't saved up.
        let least = self.tags.iter().filter(|t| t.busy).map(|t| t.share).min();
        let tags = &mut self.tags[at];
        tags.busy = true;
        tags.reservation = tags.reservation.max(now);
        tags.limit = tags.limit.max(now);
        tags.share = tags.share.max(least.unwrap_or(0));
    }

    fn next(&mut self, now: Time, queues: &mut Queues) -> Option<usize> {
        for (at, tags) in self.tags.iter_mut().enumerate() {
            tags.busy = !queues.get(at).waiting.is_empty();
        }
        let busy = || self.tags.iter().enumerate().filter(|(_, t)| t.busy);
        let reserved = busy().filter(|(_, t)| t.rates.reservation > 0 && t.reservation <= now);
        if let Some(at) = reserved.min_by_key(|(at, t)| (t.reservation, *at)).map(|(at, _)| at) {
            let t = &mut self.tags[at];
            t.reservation = spaced(t.reservation, t.rates.reservation);
            t.served();
            return Some(at);
        }
        let free = busy().filter(|(_, t)| t.limit <= now).min_by_key(|(at, t)| (t.share, *at)).map(|(at, _)| at);
        let Some(at) = free else {
            // All that wait are at their limits: until the first may go on.
            self.due = busy().map(|(_, t)| t.limit).min().unwrap_or(Time::NEVER);
            return None;
        };
        self.tags[at].served();
        Some(at)
    }

    fn wake(&mut self, _now: Time, _queues: &mut Queues) {
        self.due = Time::NEVER;
    }

    fn wake_at(&self) -> Time {
        self.due
    }

    fn wait(&self, now: Time, at: usize, queues: &Queues) -> Span {
        let (q, tags) = (queues.get(at), &self.tags[at]);
        let waiting = q.waiting.len() as u64;
        // Its own rate holds it however idle the device is.
        let held = match SECOND_NS.checked_div(tags.rates.limit) {
            Some(each_ns) => tags.limit.since(now) + Span::from_nanos(each_ns) * waiting,
            None => Span::ZERO,
        };
        if queues.has_free_slot() {
            return held;
        }
        let others = queues.all().iter().filter(|q| !q.waiting.is_empty()).count().max(1) as u64;
        held.max(wait_behind(waiting, queues.slots(), q.service.mean()) * others)
    }
}
