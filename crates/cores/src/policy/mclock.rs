//! mClock (Gulati et al., OSDI 2010): reservation, limit and weight in requests a second, by tags.
//!
//! Each queue has a tag for its reservation, its limit and its share, spaced by 1/rate. First whoever's reservation is due,
//! then, of those below their limit, the smallest share tag; a request served by share gives its reservation tag back.

use crate::config::MclockTerms;
use crate::policy::{Policy, wait_behind};
use crate::queue::Queues;
use plimsoll_base::{Span, TenantId, Time};

const SECOND_NS: u64 = 1_000_000_000;

#[derive(Clone, Copy)]
struct Tags {
    terms: MclockTerms,
    reservation: Time,
    limit: Time,
    /// Virtual, in seconds over weight.
    share: u64,
    busy: bool,
}

/// See the module's documentation.
pub struct Mclock {
    terms: Vec<(TenantId, MclockTerms)>,
    tags: Vec<Tags>,
    /// When a queue that is only limited may be served again.
    due: Time,
}

impl Mclock {
    /// With these terms.
    pub fn new(terms: Vec<(TenantId, MclockTerms)>) -> Mclock {
        Mclock { terms, tags: Vec::new(), due: Time::NEVER }
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
        let none = MclockTerms { reservation: 0, weight: 1, limit: 0 };
        for at in 0..queues.len() {
            let named = self.terms.iter().find(|(t, _)| queues.get(at).tenants.iter().any(|(id, _)| id == t));
            let terms = named.map_or(none, |(_, terms)| *terms);
            match self.tags.get_mut(at) {
                Some(tags) => tags.terms = terms,
                None => {
                    let (reservation, limit) = (Time::ZERO, Time::ZERO);
                    self.tags.push(Tags { terms, reservation, limit, share: 0, busy: false });
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
        let reserved = busy().filter(|(_, t)| t.terms.reservation > 0 && t.reservation <= now);
        if let Some(at) = reserved.min_by_key(|(at, t)| (t.reservation, *at)).map(|(at, _)| at) {
            let t = &mut self.tags[at];
            t.reservation = spaced(t.reservation, t.terms.reservation);
            t.limit = spaced(t.limit, t.terms.limit);
            t.share += SECOND_NS / t.terms.weight.max(1);
            return Some(at);
        }
        let free = busy().filter(|(_, t)| t.limit <= now).min_by_key(|(at, t)| (t.share, *at)).map(|(at, _)| at);
        let Some(at) = free else {
            // All that wait are at their limits: until the first may go on.
            self.due = busy().map(|(_, t)| t.limit).min().unwrap_or(Time::NEVER);
            return None;
        };
        let t = &mut self.tags[at];
        t.limit = spaced(t.limit, t.terms.limit);
        t.share += SECOND_NS / t.terms.weight.max(1);
        Some(at)
    }

    fn wake(&mut self, _now: Time, _queues: &mut Queues) {
        self.due = Time::NEVER;
    }

    fn wake_at(&self) -> Time {
        self.due
    }

    fn wait(&self, _now: Time, at: usize, queues: &Queues) -> Span {
        if queues.has_free_slot() {
            return Span::ZERO;
        }
        let q = queues.get(at);
        let others = queues.all().iter().filter(|q| !q.waiting.is_empty()).count().max(1) as u64;
        wait_behind(q.waiting.len() as u64, queues.slots(), q.service.mean()) * others
    }
}
