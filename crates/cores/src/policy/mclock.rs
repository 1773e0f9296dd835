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
use crate::policy::Policy;
use crate::policy::passing::{Amount, Pace, Supply, settle, takes_ns};
use crate::queue::Queues;
use plimsoll_base::{Span, Time};
use std::cell::RefCell;

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
    pace: Pace,
}

impl Tags {
    /// Virtual time from one request to the next.
    fn spacing(&self) -> u64 {
        SECOND_NS / self.weight.max(1)
    }
}

/// See the module's documentation.
pub struct Mclock {
    tags: Vec<Tags>,
    /// The largest share tag with which a request was served.
    reached: u128,
    /// Time at which a queue that is only limited may be served again.
    due: Time,
    /// Those that the last forecast looked at: kept for its memory.
    others: RefCell<Vec<Other>>,
}

impl Default for Mclock {
    fn default() -> Mclock {
        Mclock { tags: Vec::new(), reached: 0, due: Time::NEVER, others: RefCell::default() }
    }
}

impl Mclock {
    /// Queue `at` is served once more: its turn by limit and share moves on.
    fn served(&mut self, at: usize) {
        let t = &mut self.tags[at];
        self.reached = self.reached.max(t.share);
        t.limit = spaced(t.limit, t.rates.limit);
        t.share += u128::from(t.spacing());
    }

    /// The share tag from which a queue other than those that compete, or `at`, goes on that becomes active.
    fn joins_at(&self, now: Time, at: usize, queues: &Queues) -> u128 {
        let competes = |i: usize| i != at && !queues.get(i).waiting().is_empty() && self.tags[i].limit <= now;
        let least = (0..self.tags.len()).filter(|i| competes(*i)).map(|i| self.tags[i].share).min();
        least.unwrap_or(self.reached)
    }

    /// Time during which queue `at` didn't compete isn't saved up.
    fn level(&mut self, now: Time, at: usize, queues: &Queues) {
        let joins_at = self.joins_at(now, at, queues);
        let tags = &mut self.tags[at];
        tags.share = tags.share.max(joins_at);
    }

    /// The queues other than `at` that have requests or expect some, before one of queue `at` whose share tag is `share`.
    fn collect(&self, now: Time, (at, joins_at, share): (usize, u128, u128), queues: &Queues) {
        let mut others = self.others.borrow_mut();
        others.clear();
        for (i, tags) in self.tags.iter().enumerate().filter(|(i, _)| *i != at) {
            let supply = Supply::of(queues, i, &tags.pace, now);
            if supply.is_none() {
                continue;
            }
            // Time during which nothing of it waits isn't saved up.
            let (own, least) = match queues.get(i).waiting().is_empty() {
                true => (tags.share.max(joins_at), now),
                false => (tags.share, Time::ZERO),
            };
            // Of two with one tag the lower number goes first.
            let ahead = u64::try_from((share + u128::from(i < at)).saturating_sub(own)).unwrap_or(u64::MAX);
            let rated = |from: Time, per_s: u64| (per_s > 0).then_some((from.max(least), per_s));
            others.push(Other {
                supply,
                takes_ns: takes_ns(queues, i, at),
                by_share: ahead.div_ceil(tags.spacing().max(1)) as f64,
                limit: rated(tags.limit, tags.rates.limit),
                reservation: rated(tags.reservation, tags.rates.reservation),
            });
        }
    }
}

/// A queue that has or expects requests, before a request of another.
struct Other {
    supply: Supply,
    /// Time of one of its requests.
    takes_ns: f64,
    /// Those that shares put before the other's.
    by_share: f64,
    /// Time of the first, and requests a second from then on, that may go and that are to go.
    limit: Option<(Time, u64)>,
    reservation: Option<(Time, u64)>,
}

impl Other {
    /// Time of its requests that are served before the other's, if that waits for `wait_ns`.
    fn before(&self, now: Time, wait_ns: f64) -> Amount {
        let mut served = Amount::level(self.by_share);
        if let Some((first, per_s)) = self.limit {
            served = served.min(Amount::rate(now, wait_ns, first, per_s));
        }
        if let Some((first, per_s)) = self.reservation {
            served = served.max(Amount::rate(now, wait_ns, first, per_s));
        }
        served.min(self.supply.within(wait_ns)).times(self.takes_ns)
    }

    /// The same of requests that are served by reservations before the other's own is due, at `due`.
    fn reserved_before(&self, now: Time, wait_ns: f64, due: Time) -> Amount {
        let Some((first, per_s)) = self.reservation else { return Amount::level(0.0) };
        let served = Amount::rate(now, due.since(now).as_nanos() as f64, first, per_s).value;
        Amount::level(served).min(self.supply.within(wait_ns)).times(self.takes_ns)
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
            let new = Tags {
                born,
                rates,
                weight,
                reservation: Time::ZERO,
                limit: Time::ZERO,
                share: 0,
                pace: Pace::default(),
            };
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
        self.tags[at].pace.arrived(now, queues.get(at).waiting().len() - 1);
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

    /// As requests will be served: by shares, or by its reservation if that comes first, with all of other queues that go before it by the same
    /// rules.
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
        let (slots, own_ns) = (f64::from(queues.slots()), takes_ns(queues, at, at));
        // Those before it in its queue, and one more until a core is free.
        let own = Amount::level((waiting + 1) as f64 * own_ns);
        let joins_at = self.joins_at(now, at, queues);
        let first = if waiting == 0 { tags.share.max(joins_at) } else { tags.share };
        self.collect(now, (at, joins_at, first + u128::from(waiting * tags.spacing())), queues);
        let others = self.others.borrow();
        let by_share =
            settle(slots, |wait_ns| others.iter().fold(own, |sum, other| sum.plus(other.before(now, wait_ns))));
        let by_reservation = SECOND_NS.checked_div(tags.rates.reservation).map(|each_ns| {
            let due =
                tags.reservation.max(if waiting == 0 { now } else { Time::ZERO }) + Span::from_nanos(each_ns) * waiting;
            let reserved = settle(slots, |wait_ns| {
                others.iter().fold(own, |sum, other| sum.plus(other.reserved_before(now, wait_ns, due)))
            });
            reserved.max(due.since(now) + Span::from_nanos((own_ns / slots) as u64))
        });
        held.max(by_reservation.map_or(by_share, |wait| wait.min(by_share)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_base::{Class, Data, Io, IoHead, IoId, Op, Rng, TenantId, VolumeKey};
    use plimsoll_stack::{OwnTerms, Terms};
    use std::collections::VecDeque;

    /// Time of the requests of queue `i` that are served before one of queue `at` with the share tag `share`, if that waits for `wait_ns`.
    fn before(
        m: &Mclock,
        now: Time,
        wait_ns: f64,
        i: usize,
        (at, joins_at, share): (usize, u128, u128),
        q: &Queues,
    ) -> Amount {
        let tags = &m.tags[i];
        // Time during which nothing of it waits isn't saved up.
        let (own, least) = match q.get(i).waiting().is_empty() {
            true => (tags.share.max(joins_at), now),
            false => (tags.share, Time::ZERO),
        };
        // Of two with one tag the lower number goes first.
        let ahead = u64::try_from((share + u128::from(i < at)).saturating_sub(own)).unwrap_or(u64::MAX);
        let mut served = Amount::level(ahead.div_ceil(tags.spacing().max(1)) as f64);
        if tags.rates.limit > 0 {
            served = served.min(Amount::rate(now, wait_ns, tags.limit.max(least), tags.rates.limit));
        }
        if tags.rates.reservation > 0 {
            served = served.max(Amount::rate(now, wait_ns, tags.reservation.max(least), tags.rates.reservation));
        }
        served.min(Supply::of(q, i, &tags.pace, now).within(wait_ns)).times(takes_ns(q, i, at))
    }

    /// The same of requests that are served by reservations before its own is due, at `due`.
    fn reserved_before(m: &Mclock, now: Time, wait_ns: f64, i: usize, (at, due): (usize, Time), q: &Queues) -> Amount {
        let tags = &m.tags[i];
        if tags.rates.reservation == 0 {
            return Amount::level(0.0);
        }
        let first = tags.reservation.max(if q.get(i).waiting().is_empty() { now } else { Time::ZERO });
        let served = Amount::rate(now, due.since(now).as_nanos() as f64, first, tags.rates.reservation).value;
        Amount::level(served).min(Supply::of(q, i, &tags.pace, now).within(wait_ns)).times(takes_ns(q, i, at))
    }

    /// The forecast by its rules, with a look at every queue for every step.
    fn naive_wait(m: &Mclock, now: Time, at: usize, queues: &Queues) -> Span {
        let (q, tags) = (queues.get(at), &m.tags[at]);
        let waiting = q.waiting().len() as u64;
        let held = match SECOND_NS.checked_div(tags.rates.limit) {
            Some(each_ns) => tags.limit.since(now) + Span::from_nanos(each_ns) * waiting,
            None => Span::ZERO,
        };
        if queues.has_free_slot() {
            return held;
        }
        let (slots, own_ns) = (f64::from(queues.slots()), takes_ns(queues, at, at));
        let others = || (0..m.tags.len()).filter(|i| *i != at);
        let own = Amount::level((waiting + 1) as f64 * own_ns);
        let joins_at = m.joins_at(now, at, queues);
        let first = if waiting == 0 { tags.share.max(joins_at) } else { tags.share };
        let its = (at, joins_at, first + u128::from(waiting * tags.spacing()));
        let by_share =
            settle(slots, |wait_ns| others().fold(own, |sum, i| sum.plus(before(m, now, wait_ns, i, its, queues))));
        let by_reservation = SECOND_NS.checked_div(tags.rates.reservation).map(|each_ns| {
            let due =
                tags.reservation.max(if waiting == 0 { now } else { Time::ZERO }) + Span::from_nanos(each_ns) * waiting;
            let reserved = settle(slots, |wait_ns| {
                others().fold(own, |sum, i| sum.plus(reserved_before(m, now, wait_ns, i, (at, due), queues)))
            });
            reserved.max(due.since(now) + Span::from_nanos((own_ns / slots) as u64))
        });
        held.max(by_reservation.map_or(by_share, |wait| wait.min(by_share)))
    }

    /// Against the obvious way, in random states of 40 queues of which most are idle.
    #[test]
    fn forecasts_leave_out_idle_queues_only() {
        let (mut rng, mut compared) = (Rng::new(8, "others"), 0);
        for round in 0..20 {
            let (mut m, mut queues) = (Mclock::default(), Queues::new(4, 1, 0));
            for tenant in 0..40u16 {
                let mut some = |n: u64| if rng.chance(0.3) { 1 + rng.below(n) } else { 0 };
                let own = OwnTerms::of(&Allotment { cores: 0, reservation: some(3000), limit: some(5000) });
                let class = Class::BestEffort { weight: 10 + rng.below(500) as u32 };
                queues.set_tenant(TenantId(tenant), Some(&Terms { own, ..Terms::of(class, 128) }));
                let took = Span::from_micros(rng.below(3) * (50 + rng.below(100)));
                (0..4).for_each(|_| queues.get_mut(usize::from(tenant)).service.record(took));
            }
            m.queues_changed(Time::ZERO, &mut queues);
            let (mut now, mut served) = (Time::ZERO, VecDeque::new());
            for id in 0..3000 {
                now += Span::from_micros(rng.below(if round % 2 == 0 { 40 } else { 1000 }));
                let tenant = TenantId((rng.below(40) * rng.below(40) / 40 * rng.below(2)) as u16);
                let head = IoHead::new(Op::Read, VolumeKey::POOL, tenant, 0, 4096, now);
                let at = queues.push(Io::new(IoHead { id: IoId(id), ..head }, Data::Absent));
                m.arrived(now, at, &mut queues);
                if served.len() == 4 && rng.chance(0.9) {
                    queues.release(served.pop_front().expect("four are served"));
                }
                while queues.has_free_slot()
                    && let Some(at) = m.next(now, &mut queues)
                {
                    queues.take(at);
                    served.push_back(at);
                }
                let of = rng.below(40) as usize;
                let (wait, naive) = (m.wait(now, of, &queues), naive_wait(&m, now, of, &queues));
                assert_eq!(wait, naive, "of queue {of} in step {id} of round {round}");
                compared += u32::from(wait > Span::ZERO);
            }
        }
        assert!(compared > 10_000, "{compared} forecasts were more than none");
    }
}
