//! Gives a replica up when it hasn't answered for a while, and asks the next (MittOS §7.2: AppTO).
//!
//! A try that is given up is cancelled, and its data aren't used any more. The last replica is waited for without a limit, as
//! otherwise users got errors. Databases that don't fail over give them that error after the first (MittOS Table 1).

use crate::course::Course;
use crate::policy::{Orders, Preference, ReplicaPolicy};
use plimsoll_base::{Span, Time};

/// See the module's documentation.
#[derive(Clone, Copy, Debug)]
pub struct Timeout {
    /// Time that a replica is waited for.
    pub after: Span,
    /// The next replica is asked; otherwise the get fails.
    pub fails_over: bool,
    /// In which order.
    pub order: Preference,
}

impl Timeout {
    fn after_of(&self, course: &Course) -> Span {
        course.get().limit.unwrap_or(self.after)
    }

    fn send(&self, now: Time, node: u16, course: &Course, out: &mut Orders) {
        out.send(node, None);
        let is_last = course.tries().len() + 1 >= course.get().replicas.len();
        if !(is_last && self.fails_over) {
            out.wake_at(now + self.after_of(course));
        }
    }
}

impl ReplicaPolicy for Timeout {
    fn begin(&mut self, now: Time, course: &Course, out: &mut Orders) {
        self.send(now, self.order.nth(course.get(), 0), course, out);
    }

    fn refused(&mut self, now: Time, course: &Course, _: u32, out: &mut Orders) {
        if let Some(node) = self.order.next_untried(course) {
            self.send(now, node, course, out);
        }
    }

    fn timer(&mut self, now: Time, course: &Course, out: &mut Orders) {
        let newest = course.tries().len() - 1;
        let t = &course.tries()[newest];
        if !t.is_under_way() || now < t.sent_at + self.after_of(course) {
            return; // it was of an earlier one, which an error ended
        }
        if !self.fails_over {
            out.abandon(newest as u32);
            return out.give_up();
        }
        // A timer of an earlier try may come late at the last one, which is waited for.
        if let Some(node) = self.order.next_untried(course) {
            out.abandon(newest as u32);
            self.send(now, node, course, out);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::course::Ended;
    use crate::policy::Reply;
    use crate::testing::{answer, begun, ms, sends};

    fn policy(fails_over: bool) -> Timeout {
        Timeout { after: Span::from_millis(13), fails_over, order: Preference::Placement }
    }

    #[test]
    fn two_are_given_up_and_the_third_is_waited_for() {
        let mut p = policy(true);
        let (mut c, step) = begun(&mut p, ms(0));
        assert_eq!((sends(&step), step.orders.timers), (vec![(0, None)], vec![ms(13)]));
        let step = c.timer(ms(13), &mut p);
        assert_eq!(
            (sends(&step), &step.orders.cancels, &step.orders.timers),
            (vec![(1, None)], &vec![0], &vec![ms(26)])
        );
        // What was given up isn't taken, though it comes.
        assert_eq!(c.answered(ms(14), 0, answer(Reply::Done), &mut p).ended, None);
        let step = c.timer(ms(26), &mut p);
        assert_eq!((sends(&step), step.orders.timers.len()), (vec![(2, None)], 0));
        assert_eq!(c.answered(ms(500), 2, answer(Reply::Done), &mut p).ended, Some(Ended::Done(2)));
    }

    #[test]
    fn without_a_failover_users_get_an_error() {
        let mut p = policy(false);
        let (mut c, _) = begun(&mut p, ms(0));
        let step = c.timer(ms(13), &mut p);
        assert_eq!((step.ended, step.orders.sends.len()), (Some(Ended::Failed), 0));
    }

    #[test]
    fn an_error_moves_the_limit() {
        let mut p = policy(true);
        let (mut c, _) = begun(&mut p, ms(0));
        let step = c.answered(ms(5), 0, answer(Reply::Failed), &mut p);
        assert_eq!(step.orders.timers, [ms(18)]);
        assert!(c.timer(ms(13), &mut p).orders.sends.is_empty());
        assert_eq!(sends(&c.timer(ms(18), &mut p)), [(2, None)]);
    }
}
