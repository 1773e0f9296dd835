//! mClock (Gulati et al., OSDI 2010): reservation, limit and weight in requests a second, by tags.
//!
//! Each queue has a tag for its reservation, its limit and its share, spaced by 1/rate. First whoever's reservation is due,
//! then, of those below their limit, the smallest share tag; a request served by share gives its reservation tag back.
//!
//! The paper spaces share tags in real time: the larger of the one before plus 1/weight, and now. Whenever a queue becomes active, it moves
//! all others' tags so that the least is now. Ours are in a time of their own, which nothing moves: a queue that becomes active takes the
//! least tag of those that compete, if that is larger than its own. Two deviations are ours. A queue held by its limit doesn't compete:
//! its tag lags far behind, and who took it would have all of the device until it is level with the others. And where nobody competes, the
//! largest tag served so far is taken: use of an idle device is held against nobody.

use crate::control::Allotment;
use crate::policy::{Policy, wait_behind};
use crate::queue::Queues;
use plimsoll_base::{Span, Time};

const SECOND_NS: u64 = 1_000_000_000;

#[derive(Clone, Copy)]
struct Tags {
    /// Identity of the queue: numbers are used again.
    born: u64,
    rates: Allotment,
    weight: u64,
    reservation: Time,
    limit: Time,
    /// Virtual, in seconds over weight.
    share: u128,
}

/// See the module's documentation.
pub struct Mclock {
    tags: Vec<Tags>,
    /// The largest share tag with which a request was served.
    reached: u128,
    /// Time at which a queue that is only limited may be served again.
    due: Time,
}

impl Default for Mclock {
    fn default() -> Mclock {
        Mclock { tags: Vec::new(), reached: 0, due: Time::NEVER }
    }
}

impl Mclock {
    /// Queue `at` is served once more: its turn by limit and share moves on.
    fn served(&mut self, at: usize) {
        let t = &mut self.tags[at];
        self.reached = self.reached.max(t.share);
        t.limit = spaced(t.limit, t.rates.limit);
        t.share += u128::from(SECOND_NS / t.weight.max(1));
    }

    /// Time during which queue `at` didn't compete isn't saved up.
    fn level(&mut self, now: Time, at: usize, queues: &Queues) {
        let competes = |i: usize| i != at && !queues.get(i).waiting().is_empty() && self.tags[i].limit <= now;
        let least = (0..self.tags.len()).filter(|i| competes(*i)).map(|i| self.tags[i].share).min();
        let tags = &mut self.tags[at];
        tags.share = tags.share.max(least.unwrap_or(self.reached));
    }
}

fn spaced(last: Time, rate: u64) -> Time {
    last + Span::from_nanos(SECOND_NS.checked_div(rate).unwrap_or(0))
}

impl Policy for Mclock {
    fn name(&self) -> &'static str {
        "mclock"
    }

    fn queues_changed(&mut self, now: Time, queues: &mut Queues) {
        for at in 0..queues.len() {
            let q = queues.get(at);
            let (born, rates, weight) = (q.born, q.allotment(), q.weight());
            let new = Tags { born, rates, weight, reservation: Time::ZERO, limit: Time::ZERO, share: 0 };
            match self.tags.get_mut(at) {
                None => self.tags.push(new),
                Some(tags) if tags.born != born => *tags = new,
                Some(tags) => {
                    let limit = std::mem::replace(&mut tags.rates, rates).limit;
                    tags.weight = weight;
                    if limit != rates.limit {
                        self.level(now, at, queues);
                    }
                }
            }
        }
    }

    fn arrived(&mut self, now: Time, at: usize, queues: &mut Queues) {
        if queues.get(at).waiting().len() > 1 {
            return;
        }
        self.level(now, at, queues);
        let tags = &mut self.tags[at];
        tags.reservation = tags.reservation.max(now);
        tags.limit = tags.limit.max(now);
    }

    fn next(&mut self, now: Time, queues: &mut Queues) -> Option<usize> {
        let busy = || self.tags.iter().enumerate().filter(|(at, _)| !queues.get(*at).waiting().is_empty());
        let reserved = busy().filter(|(_, t)| t.rates.reservation > 0 && t.reservation <= now);
        if let Some(at) = reserved.min_by_key(|(at, t)| (t.reservation, *at)).map(|(at, _)| at) {
            let t = &mut self.tags[at];
            t.reservation = spaced(t.reservation, t.rates.reservation);
            self.served(at);
            return Some(at);
        }
        let free = busy().filter(|(_, t)| t.limit <= now).min_by_key(|(at, t)| (t.share, *at)).map(|(at, _)| at);
        let Some(at) = free else {
            // All that wait are at their limits: until the first may go on.
            self.due = busy().map(|(_, t)| t.limit).min().unwrap_or(Time::NEVER);
            return None;
        };
        self.served(at);
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
        let waiting = q.waiting().len() as u64;
        // Its own rate holds it however idle the device is.
        let held = match SECOND_NS.checked_div(tags.rates.limit) {
            Some(each_ns) => tags.limit.since(now) + Span::from_nanos(each_ns) * waiting,
            None => Span::ZERO,
        };
        if queues.has_free_slot() {
            return held;
        }
        let others = queues.all().iter().filter(|q| !q.waiting().is_empty()).count().max(1) as u64;
        held.max(wait_behind(waiting, queues.slots(), q.service.mean()) * others)
    }
}
