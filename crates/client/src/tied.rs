//! Two replicas a moment apart; whichever begins to execute calls the other off (Dean and Barroso 2013: tied requests).
//!
//! MittOS could not compare with it (§7.8.2): no device informed a database when its request began. Our nodes do: a request
//! begins when it leaves the scheduler for the device, after which no cancel reaches it. The notice and the cancel go by way of
//! the client, one hop more than between servers that know each other. So the second copy goes out after three times a
//! message's time (Dean and Barroso: twice). By then the notice of an idle replica has arrived.

use crate::base::elsewhere;
use crate::course::Course;
use crate::policy::{Orders, Preference, ReplicaPolicy};
use plimsoll_base::{Span, Time};

/// See the module's documentation.
#[derive(Clone, Copy, Debug)]
pub struct Tied {
    /// Delay until the second copy goes out.
    pub delay: Span,
    /// In which order.
    pub order: Preference,
}

impl ReplicaPolicy for Tied {
    fn begin(&mut self, now: Time, course: &Course, out: &mut Orders) {
        out.send_telling(self.order.nth(course.get(), 0));
        out.wake_at(now + self.delay);
    }

    fn began(&mut self, _: Time, course: &Course, a_try: u32, out: &mut Orders) {
        let waits = |i: u32| !course.tries()[i as usize].begun && !course.tries()[i as usize].cancelled;
        course.numbers_under_way().filter(|&i| i != a_try && waits(i)).for_each(|i| out.cancel(i));
    }

    fn refused(&mut self, _: Time, course: &Course, _: u32, out: &mut Orders) {
        elsewhere(self.order, course, out);
    }

    fn timer(&mut self, _: Time, course: &Course, out: &mut Orders) {
        if let [only] = course.tries()
            && only.is_under_way()
            && !only.begun
            && let Some(node) = self.order.next_untried(course)
        {
            out.send_telling(node);
        }
    }

    fn ended(&mut self, _: Time, course: &Course, _: Option<u32>, out: &mut Orders) {
        let unheard = |i: &u32| !course.tries()[*i as usize].cancelled;
        course.numbers_under_way().filter(unheard).for_each(|i| out.cancel(i));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::course::Ended;
    use crate::policy::Reply;
    use crate::testing::{answer, begun, ms, sends};

    fn policy() -> Tied {
        Tied { delay: Span::from_millis(1), order: Preference::Placement }
    }

    #[test]
    fn who_begins_calls_the_other_off() {
        let mut p = policy();
        let (mut c, step) = begun(&mut p, ms(0));
        assert!(step.orders.sends[0].tells);
        assert_eq!(sends(&c.timer(ms(1), &mut p)), [(1, None)]);
        assert_eq!(c.began(ms(2), 1, &mut p).orders.cancels, [0]);
        assert!(c.began(ms(2), 1, &mut p).orders.cancels.is_empty(), "once");
        // The one that was called off says so; nothing more is asked.
        assert!(c.answered(ms(3), 0, answer(Reply::Failed), &mut p).orders.sends.is_empty());
        assert_eq!(c.answered(ms(9), 1, answer(Reply::Done), &mut p).ended, Some(Ended::Done(1)));
    }

    #[test]
    fn an_idle_replica_is_tried_alone() {
        let mut p = policy();
        let (mut c, _) = begun(&mut p, ms(0));
        assert!(c.began(ms(1), 0, &mut p).orders.cancels.is_empty());
        assert!(c.timer(ms(1), &mut p).orders.sends.is_empty());
    }

    #[test]
    fn if_both_have_begun_both_go_on_and_an_error_asks_the_third() {
        let mut p = policy();
        let (mut c, _) = begun(&mut p, ms(0));
        let _ = c.timer(ms(1), &mut p);
        assert_eq!(c.began(ms(2), 0, &mut p).orders.cancels, [1]);
        assert!(c.began(ms(2), 1, &mut p).orders.cancels.is_empty(), "the first runs already");
        assert!(c.answered(ms(3), 1, answer(Reply::Failed), &mut p).orders.sends.is_empty());
        assert_eq!(sends(&c.answered(ms(3), 0, answer(Reply::Failed), &mut p)), [(2, None)]);
    }
}
