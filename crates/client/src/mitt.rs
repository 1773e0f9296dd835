//! Reads with a deadline; Busy is answered by going to another replica at once (MittOS §5; MT-M24, MT-M25).
//!
//! * `mitt`: the paper's. The first two tries carry the deadline, the third doesn't (few are busy at once). If the third fails, the
//!   replicas that were only busy are waited for, as under `mitt+wait`: the paper doesn't say.
//! * `mitt+wait`: every replica is tried with the deadline; if all are busy, the one whose predicted wait ends soonest
//!   serves after all; if it fails, the next of those that were only busy. The paper names it as a possible extension (§5, §7.8.1).
//! * `mitt+budget`: the same, with hedges. A try that was accepted and still hasn't answered by its deadline gets a second one
//!   elsewhere. Such hedges have a budget, a share of all gets. Ours: fast rejection rests on predictions, and a read must not
//!   wait for the end of a wrong prediction.
//!
//! A get that is refusable ([`crate::Get::refusable`]) is asked of every replica with the deadline under all three, and fails
//! as soon as all have refused it.

use crate::course::Course;
use crate::learn::Limit;
use crate::policy::{Heard, Orders, Preference, ReplicaPolicy, Reply};
use plimsoll_base::Time;

/// Action when every replica is able to serve but none has promised to do so in time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AllBusy {
    /// The third replica (the last, if there are fewer) is asked without a deadline in the first place.
    LastWaits,
    /// All are asked with the deadline; then the one that would be ready soonest without.
    LeastWait,
}

/// Tries with a deadline under [`AllBusy::LastWaits`].
const TRIES_WITH_DEADLINE: usize = 2;
/// Hedges that can be saved up: a short burst of wrong predictions, as they come in bursts.
const HEDGES_SAVED_MAX: u64 = 10;

/// See the module's documentation.
#[derive(Clone, Copy, Debug)]
pub struct Mitt {
    deadline: Limit,
    all_busy: AllBusy,
    order: Preference,
    /// Hedges for a thousand gets; 0: none.
    budget_permille: u64,
    /// In thousandths of a hedge.
    saved: u64,
}

impl Mitt {
    /// The paper's.
    pub fn new(deadline: Limit, order: Preference) -> Mitt {
        Mitt { deadline, all_busy: AllBusy::LastWaits, order, budget_permille: 0, saved: 0 }
    }

    /// `mitt+wait`.
    pub fn with_wait(deadline: Limit, order: Preference) -> Mitt {
        Mitt { all_busy: AllBusy::LeastWait, ..Mitt::new(deadline, order) }
    }

    /// `mitt+budget`: hedges for `permille` of a thousand gets at most.
    pub fn with_budget(deadline: Limit, order: Preference, permille: u64) -> Mitt {
        Mitt { budget_permille: permille, ..Mitt::with_wait(deadline, order) }
    }

    fn send(&self, now: Time, node: u16, course: &Course, out: &mut Orders) {
        let before = course.tries().len();
        let is_last = before >= TRIES_WITH_DEADLINE || before + 1 >= course.get().replicas.len();
        if is_last && self.all_busy == AllBusy::LastWaits && !course.get().refusable {
            out.send(node, None);
            return;
        }
        let deadline = self.deadline.of(course.get());
        out.send(node, Some(deadline));
        if self.budget_permille > 0 {
            out.wake_at(now + deadline);
        }
    }

    /// Returns the replica whose refusal named the soonest time, of those that weren't asked without a deadline.
    fn least_wait(course: &Course) -> Option<u16> {
        let tries = course.tries();
        let ready = |t: &crate::course::Try| match t.reply {
            Some((Reply::Busy(wait), at)) => Some((at + wait, t.node)),
            _ => None,
        };
        let may_wait = |node: u16| !tries.iter().any(|t| t.node == node && t.deadline.is_none());
        tries.iter().filter_map(ready).filter(|r| may_wait(r.1)).min_by_key(|r| r.0).map(|r| r.1)
    }
}

impl ReplicaPolicy for Mitt {
    fn begin(&mut self, now: Time, course: &Course, out: &mut Orders) {
        self.saved = (self.saved + self.budget_permille).min(HEDGES_SAVED_MAX * 1000);
        self.send(now, self.order.nth(course.get(), 0), course, out);
    }

    fn refused(&mut self, now: Time, course: &Course, _: u32, out: &mut Orders) {
        if course.under_way() > 0 {
            return; // a hedge was refused, or what it was to replace
        }
        if let Some(node) = self.order.next_untried(course) {
            self.send(now, node, course, out);
        } else if course.get().refusable {
            out.give_up(); // a hedge's timer isn't waited for
        } else if let Some(node) = Mitt::least_wait(course) {
            out.send(node, None);
        }
    }

    fn timer(&mut self, now: Time, course: &Course, out: &mut Orders) {
        let late = |i: u32| {
            let t = &course.tries()[i as usize];
            t.deadline.is_some_and(|d| now >= t.sent_at + d)
        };
        let is_overdue = course.under_way() == 1 && course.numbers_under_way().all(late);
        if is_overdue
            && self.saved >= 1000
            && let Some(node) = self.order.next_untried(course)
        {
            self.saved -= 1000;
            out.send(node, Some(self.deadline.of(course.get())));
        }
    }

    fn heard(&mut self, now: Time, heard: &Heard) {
        match heard.answer.reply {
            Reply::Done => self.deadline.saw(Some(now.since(heard.sent_at))),
            Reply::Busy(_) => self.deadline.saw(None),
            Reply::Failed => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::course::{Ended, Step};
    use crate::testing::{answer, begun, ms, sends};
    use plimsoll_base::Span;

    const D: Span = Span::from_millis(13);

    fn limit() -> Limit {
        Limit::Given(D)
    }

    fn busy(c: &mut Course, p: &mut Mitt, at: u64, a_try: u32, wait: u64) -> Step {
        c.answered(ms(at), a_try, answer(Reply::Busy(Span::from_millis(wait))), p)
    }

    #[test]
    fn two_tries_have_the_deadline_and_the_third_waits() {
        let mut p = Mitt::new(limit(), Preference::Placement);
        let (mut c, step) = begun(&mut p, ms(0));
        assert_eq!(sends(&step), [(0, Some(D))]);
        assert_eq!(sends(&busy(&mut c, &mut p, 1, 0, 40)), [(1, Some(D))]);
        assert_eq!(sends(&busy(&mut c, &mut p, 2, 1, 30)), [(2, None)]);
        assert_eq!(c.answered(ms(90), 2, answer(Reply::Done), &mut p).ended, Some(Ended::Done(2)));
    }

    #[test]
    fn of_two_replicas_the_second_waits_and_a_single_one_has_no_deadline() {
        let mut p = Mitt::new(limit(), Preference::Placement);
        let mut c = Course::new(crate::testing::get(0, 2));
        assert_eq!(sends(&c.begin(ms(0), &mut p)), [(0, Some(D))]);
        assert_eq!(sends(&busy(&mut c, &mut p, 1, 0, 40)), [(1, None)]);
        let mut c = Course::new(crate::testing::get(0, 1));
        assert_eq!(sends(&c.begin(ms(0), &mut p)), [(0, None)]);
    }

    #[test]
    fn when_all_are_busy_the_one_that_is_ready_soonest_serves() {
        let mut p = Mitt::with_wait(limit(), Preference::Placement);
        let (mut c, _) = begun(&mut p, ms(0));
        assert_eq!(sends(&busy(&mut c, &mut p, 1, 0, 31)), [(1, Some(D))]);
        assert_eq!(sends(&busy(&mut c, &mut p, 2, 1, 40)), [(2, Some(D))]);
        // 0 is ready at 32 ms, 1 at 42, 2 at 33 though its wait is the shortest.
        assert_eq!(sends(&busy(&mut c, &mut p, 3, 2, 30)), [(0, None)]);
        // It has failed: the others were only busy, and each is waited for once.
        assert_eq!(sends(&c.answered(ms(4), 3, answer(Reply::Failed), &mut p)), [(2, None)]);
        assert_eq!(sends(&c.answered(ms(5), 4, answer(Reply::Failed), &mut p)), [(1, None)]);
        assert_eq!(c.answered(ms(6), 5, answer(Reply::Failed), &mut p).ended, Some(Ended::Failed), "no seventh");
    }

    #[test]
    fn one_that_was_only_busy_is_waited_for_when_the_last_has_failed() {
        let mut p = Mitt::new(limit(), Preference::Placement);
        let mut c = Course::new(crate::testing::get(0, 2));
        let _ = c.begin(ms(0), &mut p);
        assert_eq!(sends(&busy(&mut c, &mut p, 1, 0, 40)), [(1, None)]);
        assert_eq!(sends(&c.answered(ms(2), 1, answer(Reply::Failed), &mut p)), [(0, None)]);
        assert_eq!(c.answered(ms(90), 2, answer(Reply::Done), &mut p).ended, Some(Ended::Done(2)));
    }

    #[test]
    fn one_that_refuses_without_a_deadline_isnt_asked_a_third_time() {
        let placement = Preference::Placement;
        for (mut p, all) in [(Mitt::new(limit(), placement), 5), (Mitt::with_wait(limit(), placement), 6)] {
            let (mut c, _) = begun(&mut p, ms(0));
            let mut tries = 1;
            while c.ended().is_none() {
                tries += busy(&mut c, &mut p, u64::from(tries), tries - 1, 40).orders.sends.len() as u32;
            }
            assert_eq!(tries, all, "each without a deadline once; under mitt the third never had one");
        }
    }

    #[test]
    fn a_refusable_get_never_waits_and_fails_when_all_have_refused() {
        for mut p in [
            Mitt::new(limit(), Preference::Placement),
            Mitt::with_wait(limit(), Preference::Placement),
            Mitt::with_budget(limit(), Preference::Placement, 20),
        ] {
            let get = |replicas| crate::policy::Get { refusable: true, ..crate::testing::get(0, replicas) };
            let mut c = Course::new(get(2));
            assert_eq!(sends(&c.begin(ms(0), &mut p)), [(0, Some(D))]);
            assert_eq!(sends(&busy(&mut c, &mut p, 1, 0, 40)), [(1, Some(D))]);
            assert_eq!(busy(&mut c, &mut p, 2, 1, 30).ended, Some(Ended::Failed));
            let mut alone = Course::new(get(1));
            assert_eq!(sends(&alone.begin(ms(0), &mut p)), [(0, Some(D))]);
            assert_eq!(busy(&mut alone, &mut p, 1, 0, 40).ended, Some(Ended::Failed));
        }
    }

    #[test]
    fn nodes_that_have_failed_arent_asked_again() {
        let mut p = Mitt::with_wait(limit(), Preference::Placement);
        let (mut c, _) = begun(&mut p, ms(0));
        let _ = c.answered(ms(1), 0, answer(Reply::Failed), &mut p);
        let _ = busy(&mut c, &mut p, 2, 1, 500);
        assert_eq!(sends(&c.answered(ms(3), 2, answer(Reply::Failed), &mut p)), [(1, None)]);
        let (mut c, _) = begun(&mut p, ms(10));
        for i in 0..2 {
            assert_eq!(c.answered(ms(11), i, answer(Reply::Failed), &mut p).ended, None);
        }
        assert_eq!(c.answered(ms(12), 2, answer(Reply::Failed), &mut p).ended, Some(Ended::Failed));
    }

    #[test]
    fn a_promise_that_was_broken_is_hedged_while_the_budget_lasts() {
        let mut p = Mitt::with_budget(limit(), Preference::Placement, 20);
        let mut hedges = 0;
        for i in 0..1000u64 {
            let at = 100 * i;
            let (mut c, step) = begun(&mut p, ms(at));
            assert_eq!(step.orders.timers, [ms(at + 13)]);
            let step = c.timer(ms(at + 13), &mut p);
            hedges += step.orders.sends.len();
            if let [(node, deadline)] = sends(&step)[..] {
                assert_eq!((node, deadline), (1, Some(D)));
                // Refused there: the first goes on alone.
                assert!(busy(&mut c, &mut p, at + 14, 1, 99).orders.sends.is_empty());
            }
            assert_eq!(c.answered(ms(at + 50), 0, answer(Reply::Done), &mut p).ended, Some(Ended::Done(0)));
        }
        assert_eq!(hedges, 20, "one in fifty");
    }

    #[test]
    fn an_answer_in_time_needs_no_hedge() {
        let mut p = Mitt::with_budget(limit(), Preference::Placement, 1000);
        let (mut c, _) = begun(&mut p, ms(0));
        let step = busy(&mut c, &mut p, 5, 0, 40);
        assert_eq!(step.orders.timers, [ms(18)]);
        assert!(c.timer(ms(13), &mut p).orders.sends.is_empty(), "the second was sent at 5 ms");
        assert_eq!(sends(&c.timer(ms(18), &mut p)), [(2, Some(D))]);
    }
}
