//! Cake, for many tenants (Wang et al., SoCC 2012, as QWin §2.2 and §5 describe and extend it; QW-M13). It sets shares of the
//! cores, and reservations where shares don't suffice. It changes them at fixed intervals by the last interval's tail.
//!
//! The share of a latency-critical queue whose tail was late is multiplied by its lateness, twice at most. Once the share is 95
//! % against any other, a core is reserved for the queue. A queue whose tail was below four fifths of its objective gives back
//! a reserved core, then share. Exact steps aren't published for many tenants: these are ours.

use crate::policy::Policy;
use crate::policy::fair::Fair;
use crate::policy::passing::{Amount, Pace, Supply, settle, takes_ns};
use crate::queue::Queues;
use plimsoll_base::{LatencyHistogram, Span, Time};
use std::cell::RefCell;

const SHARE_START: u64 = 1_000;
const SHARE_MIN: u64 = 100;
/// Nineteen times another's: 95 %.
const SHARE_MAX: u64 = 19_000;

#[derive(Default)]
struct Run {
    /// Identity of the queue: numbers are used again.
    born: u64,
    recent: LatencyHistogram,
    share: u64,
    reserved: u32,
    pace: Pace,
}

/// A queue, before a request of another.
struct Other {
    supply: Supply,
    /// Time of one of its requests.
    takes_ns: f64,
    /// Those that shares put before the other's.
    by_share: f64,
    /// Requests that its own cores may have in service.
    own: f64,
}

impl Other {
    /// Time that unreserved cores work for it before the other's request, if that waits for `wait_ns`.
    fn before(&self, wait_ns: f64) -> Amount {
        let there = self.supply.within(wait_ns);
        let by_share = Amount::level(self.by_share).min(there);
        if self.own == 0.0 || self.takes_ns == 0.0 {
            return by_share.times(self.takes_ns);
        }
        // What its own cores do is done beside.
        let on_own = Amount { value: self.own * wait_ns, slope: self.own }.min(there.times(self.takes_ns));
        by_share.times(self.takes_ns).max(on_own).plus(on_own.times(-1.0))
    }
}

/// See the module's documentation.
pub struct Cake {
    interval: Span,
    due: Time,
    runs: Vec<Run>,
    fair: Fair,
    /// Those that the last forecast looked at: kept for its memory.
    others: RefCell<Vec<Other>>,
}

impl Cake {
    /// Looks every `interval`.
    pub fn new(interval: Span) -> Cake {
        Cake { interval, due: Time::NEVER, runs: Vec::new(), fair: Fair::default(), others: RefCell::default() }
    }

    /// Share of a queue in thousandths of an unchanged one's, and its reserved cores.
    pub fn given(&self, at: usize) -> (u64, u32) {
        (self.runs[at].share, self.runs[at].reserved)
    }

    /// Requests that cores reserved for a queue may have in service.
    fn own(&self, at: usize, queues: &Queues) -> u32 {
        self.runs[at].reserved * queues.depth
    }

    /// Returns whether there is room on the unreserved cores.
    fn has_shared_slot(&self, queues: &Queues) -> bool {
        let over = |at: usize| queues.get(at).in_service.saturating_sub(self.own(at, queues));
        let shared: u32 = (0..queues.len()).map(over).sum();
        let reserved: u32 = (0..queues.len()).map(|at| self.own(at, queues)).sum();
        shared < queues.slots().saturating_sub(reserved)
    }

    /// The queue's weight where cores aren't reserved. Best-effort queues share one part by their weights.
    fn weight(&self, at: usize, queues: &Queues) -> u64 {
        let q = queues.get(at);
        if q.is_critical() { self.runs[at].share } else { SHARE_START * q.weight() / 100 }
    }

    /// The queues other than `of` that have requests or expect some, or cores of their own, before a request of queue `of` whose turn comes at
    /// `turn`.
    fn collect(&self, now: Time, (of, turn): (usize, u128), queues: &Queues) {
        let mut others = self.others.borrow_mut();
        others.clear();
        for (i, run) in self.runs.iter().enumerate().filter(|(i, _)| *i != of) {
            let supply = Supply::of(queues, i, &run.pace, now);
            if supply.is_none() && run.reserved == 0 {
                continue;
            }
            let by_share = self.fair.before(i, self.weight(i, queues), (of, turn));
            others.push(Other {
                supply,
                takes_ns: takes_ns(queues, i, of),
                by_share,
                own: f64::from(self.own(i, queues)),
            });
        }
    }

    fn look(&mut self, at: usize, queues: &Queues) {
        let reserved: u32 = self.runs.iter().map(|r| r.reserved).sum();
        let run = &mut self.runs[at];
        if run.recent.count() == 0 {
            run.reserved = run.reserved.saturating_sub(1);
            return;
        }
        // Its objective that fares worst, in thousandths of the bound.
        let permille = |o: &plimsoll_base::Objective| {
            let tail = run.recent.percentile(f64::from(o.percentile_bp) / 100.0);
            tail.as_nanos().saturating_mul(1000) / o.bound.as_nanos().max(1)
        };
        let worst = queues.get(at).objectives().iter().map(permille).max().unwrap_or(0);
        if worst > 1000 {
            if run.share == SHARE_MAX && reserved + 1 < queues.cores {
                run.reserved += 1;
            }
            run.share = (run.share * worst.min(2000) / 1000).min(SHARE_MAX);
        } else if worst < 800 {
            if run.reserved > 0 {
                run.reserved -= 1;
            } else {
                run.share = (run.share * worst.max(500) / 1000).max(SHARE_MIN);
            }
        }
        run.recent.clear();
    }
}

impl Policy for Cake {
    fn name(&self) -> &'static str {
        "cake"
    }

    fn queues_changed(&mut self, now: Time, queues: &mut Queues) {
        self.runs.resize_with(queues.len(), Run::default);
        for (run, q) in self.runs.iter_mut().zip(queues.all()).filter(|(run, q)| run.born != q.born) {
            *run = Run { born: q.born, share: SHARE_START, ..Run::default() };
        }
        if !self.due.is_set() {
            self.due = now + self.interval;
        }
    }

    fn next(&mut self, _now: Time, queues: &mut Queues) -> Option<usize> {
        let at = match self.fair.pick(queues, |at| queues.get(at).in_service < self.own(at, queues)) {
            Some(at) => at,
            None if self.has_shared_slot(queues) => self.fair.pick(queues, |_| true)?,
            None => return None,
        };
        let weight = self.weight(at, queues);
        self.fair.charge(at, queues, weight, u64::MAX);
        Some(at)
    }

    fn arrived(&mut self, now: Time, at: usize, queues: &mut Queues) {
        self.runs[at].pace.arrived(now, queues.get(at).waiting().len() - 1);
    }

    fn ended(&mut self, _now: Time, at: usize, response: Span, _queues: &mut Queues) {
        self.runs[at].recent.record(response);
    }

    fn wake(&mut self, now: Time, queues: &mut Queues) {
        if self.due <= now {
            let critical: Vec<usize> = queues.critical().collect();
            critical.into_iter().for_each(|at| self.look(at, queues));
            // Looks that a pause made it miss would see no samples, and each give away a core.
            self.due += self.interval;
            if self.due <= now {
                self.due = now + self.interval;
            }
        }
    }

    fn wake_at(&self) -> Time {
        self.due
    }

    /// As requests will be served: in its turn by weight, or on its reserved cores if that is sooner.
    fn wait(&self, now: Time, at: usize, queues: &Queues) -> Span {
        let q = queues.get(at);
        let own = self.own(at, queues);
        if queues.has_free_slot() && (q.in_service < own || self.has_shared_slot(queues)) {
            return Span::ZERO;
        }
        let reserved: u32 = (0..queues.len()).map(|i| self.own(i, queues)).sum();
        let shared = f64::from(queues.slots().saturating_sub(reserved).max(1));
        // Those before it in its queue, and one more until a core is free.
        let work_ns = (q.waiting().len() + 1) as f64 * takes_ns(queues, at, at);
        let turn = self.fair.turn(at, self.weight(at, queues), q.waiting().len());
        let own = f64::from(own);
        self.collect(now, (at, turn), queues);
        let others = self.others.borrow();
        let in_turn = settle(shared, |wait_ns| {
            let done_on_own = Amount { value: own * wait_ns, slope: own }.min(Amount::level(work_ns));
            let left = Amount::level(work_ns).plus(done_on_own.times(-1.0));
            others.iter().fold(left, |sum, other| sum.plus(other.before(wait_ns)))
        });
        if own > 0.0 { in_turn.min(Span::from_nanos((work_ns / own) as u64)) } else { in_turn }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_base::{Class, Data, Io, IoHead, IoId, Objective, Op, Rng, TenantId, VolumeKey};
    use plimsoll_stack::Terms;
    use std::collections::VecDeque;

    const INTERVAL: Span = Span::from_millis(10);

    /// Cake over eight cores, of which three are reserved for a queue that is always late.
    fn with_reserved_cores() -> (Cake, Queues) {
        let (mut cake, mut queues) = (Cake::new(INTERVAL), Queues::new(8, 1, 0));
        let objectives = vec![Objective { percentile_bp: 9900, bound: Span::from_millis(1) }];
        let terms = Terms::of(Class::LatencyCritical { objectives, weight: 100 }, 8);
        queues.set_tenant(TenantId(1), Some(&terms));
        cake.queues_changed(Time::ZERO, &mut queues);
        while cake.given(0).1 < 3 {
            cake.ended(cake.due, 0, Span::from_millis(5), &mut queues);
            cake.wake(cake.due, &mut queues);
        }
        (cake, queues)
    }

    /// The thread was away for a hundred intervals: those that it missed would see no requests, and each would give a core back.
    #[test]
    fn after_a_pause_it_looks_once() {
        for was_late in [true, false] {
            let (mut cake, mut queues) = with_reserved_cores();
            let (share, reserved) = cake.given(0);
            if was_late {
                cake.ended(cake.due, 0, Span::from_millis(5), &mut queues);
            }
            let now = cake.due + INTERVAL * 100;
            cake.wake(now, &mut queues);
            assert_eq!(cake.given(0), (share, if was_late { reserved + 1 } else { reserved - 1 }), "late: {was_late}");
            assert_eq!(cake.wake_at(), now + INTERVAL);
            cake.wake(now, &mut queues);
            assert_eq!(cake.wake_at(), now + INTERVAL, "and not again at once");
        }
    }

    /// A thread that comes a little late doesn't make the intervals longer.
    #[test]
    fn a_late_look_moves_no_other() {
        let (mut cake, mut queues) = with_reserved_cores();
        let due = cake.due;
        cake.wake(due + INTERVAL / 2, &mut queues);
        assert_eq!(cake.wake_at(), due + INTERVAL);
    }

    /// Time that unreserved cores work for queue `i` before a request of queue `of` whose turn comes at `turn`, if that waits for `wait_ns`.
    fn before(c: &Cake, now: Time, wait_ns: f64, i: usize, (of, turn): (usize, u128), queues: &Queues) -> Amount {
        let there = Supply::of(queues, i, &c.runs[i].pace, now).within(wait_ns);
        let by_share = Amount::level(c.fair.before(i, c.weight(i, queues), (of, turn))).min(there);
        let own = f64::from(c.own(i, queues));
        let takes_ns = takes_ns(queues, i, of);
        if own == 0.0 || takes_ns == 0.0 {
            return by_share.times(takes_ns);
        }
        // What its own cores do is done beside.
        let on_own = Amount { value: own * wait_ns, slope: own }.min(there.times(takes_ns));
        by_share.times(takes_ns).max(on_own).plus(on_own.times(-1.0))
    }

    /// The forecast by its rules, with a look at every queue for every step.
    fn naive_wait(c: &Cake, now: Time, at: usize, queues: &Queues) -> Span {
        let q = queues.get(at);
        let own = c.own(at, queues);
        if queues.has_free_slot() && (q.in_service < own || c.has_shared_slot(queues)) {
            return Span::ZERO;
        }
        let reserved: u32 = (0..queues.len()).map(|i| c.own(i, queues)).sum();
        let shared = f64::from(queues.slots().saturating_sub(reserved).max(1));
        let others = || (0..queues.len()).filter(|i| *i != at);
        let work_ns = (q.waiting().len() + 1) as f64 * takes_ns(queues, at, at);
        let turn = c.fair.turn(at, c.weight(at, queues), q.waiting().len());
        let own = f64::from(own);
        let in_turn = settle(shared, |wait_ns| {
            let done_on_own = Amount { value: own * wait_ns, slope: own }.min(Amount::level(work_ns));
            let left = Amount::level(work_ns).plus(done_on_own.times(-1.0));
            others().fold(left, |sum, i| sum.plus(before(c, now, wait_ns, i, (at, turn), queues)))
        });
        if own > 0.0 { in_turn.min(Span::from_nanos((work_ns / own) as u64)) } else { in_turn }
    }

    /// Against the obvious way, in random states of 40 queues of which most are idle, and some have cores.
    #[test]
    fn forecasts_leave_out_idle_queues_only() {
        let (mut rng, mut compared, mut reserved) = (Rng::new(9, "others"), 0, 0);
        for round in 0..20 {
            let (mut cake, mut queues) = (Cake::new(INTERVAL), Queues::new(8, 1, 0));
            for tenant in 0..40u16 {
                let objectives =
                    vec![Objective { percentile_bp: 9900, bound: Span::from_micros(200 + u64::from(tenant)) }];
                let class = match tenant % 4 {
                    0 => Class::LatencyCritical { objectives, weight: 100 },
                    _ => Class::BestEffort { weight: 10 + rng.below(500) as u32 },
                };
                queues.set_tenant(TenantId(tenant), Some(&Terms::of(class, 128)));
                let took = Span::from_micros(rng.below(3) * (50 + rng.below(100)));
                (0..4).for_each(|_| queues.get_mut(usize::from(tenant)).service.record(took));
            }
            cake.queues_changed(Time::ZERO, &mut queues);
            let (mut now, mut served) = (Time::ZERO, VecDeque::new());
            for id in 0..3000 {
                now += Span::from_micros(rng.below(if round % 2 == 0 { 40 } else { 1000 }));
                let tenant = TenantId((rng.below(40) * rng.below(40) / 40 * rng.below(2)) as u16);
                let len = 4096 << rng.below(5);
                let head = IoHead::new(Op::Read, VolumeKey::POOL, tenant, 0, len, now);
                let at = queues.push(Io::new(IoHead { id: IoId(id), ..head }, Data::Absent));
                cake.arrived(now, at, &mut queues);
                if served.len() > 3 && rng.chance(0.9) {
                    let at = served.pop_front().expect("some are served");
                    queues.release(at);
                    cake.ended(now, at, Span::from_micros(rng.below(1000)), &mut queues);
                }
                if cake.wake_at() <= now {
                    cake.wake(now, &mut queues);
                }
                while queues.has_free_slot()
                    && let Some(at) = cake.next(now, &mut queues)
                {
                    queues.take(at);
                    served.push_back(at);
                }
                let of = rng.below(40) as usize;
                let (wait, naive) = (cake.wait(now, of, &queues), naive_wait(&cake, now, of, &queues));
                assert_eq!(wait, naive, "of queue {of} in step {id} of round {round}");
                compared += u32::from(wait > Span::ZERO);
                reserved = reserved.max(cake.runs.iter().map(|r| r.reserved).sum());
            }
        }
        assert!(
            compared > 10_000 && reserved > 1,
            "{compared} forecasts were more than none, {reserved} cores reserved"
        );
    }
}
