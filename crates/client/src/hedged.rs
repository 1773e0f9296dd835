//! A second replica when the first is late (Dean and Barroso, "The Tail at Scale", 2013; MittOS §7.2: Hedged).
//!
//! "Late" is a percentile of what answers take, p95 in both papers, which bounds the additional load at one in twenty.
//! MittOS doesn't cancel the slower one; Dean and Barroso do.

use crate::base::elsewhere;
use crate::course::Course;
use crate::learn::Limit;
use crate::policy::{Heard, Orders, Preference, ReplicaPolicy, Reply};
use plimsoll_base::Time;

/// See the module's documentation.
#[derive(Clone, Copy, Debug)]
pub struct Hedged {
    /// Delay until the second replica is asked.
    pub delay: Limit,
    /// If true, the slower replica's request is cancelled when the other has answered.
    pub cancels: bool,
    /// In which order.
    pub order: Preference,
}

impl ReplicaPolicy for Hedged {
    fn begin(&mut self, now: Time, course: &Course, out: &mut Orders) {
        out.send(self.order.nth(course.get(), 0), None);
        out.wake_at(now + self.delay.of(course.get()));
    }

    fn refused(&mut self, _: Time, course: &Course, _: u32, out: &mut Orders) {
        elsewhere(self.order, course, out);
    }

    fn timer(&mut self, _: Time, course: &Course, out: &mut Orders) {
        if let [only] = course.tries()
            && only.is_under_way()
            && let Some(node) = self.order.next_untried(course)
        {
            out.send(node, None);
        }
    }

    fn ended(&mut self, _: Time, course: &Course, _: Option<u32>, out: &mut Orders) {
        if self.cancels {
            course.numbers_under_way().for_each(|i| out.cancel(i));
        }
    }

    fn heard(&mut self, now: Time, heard: &Heard) {
        if heard.answer.reply == Reply::Done {
            self.delay.saw(Some(now.since(heard.sent_at)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::course::Ended;
    use crate::learn::Quantile;
    use crate::testing::{answer, begun, ms, sends};
    use plimsoll_base::Span;

    fn policy(cancels: bool) -> Hedged {
        Hedged { delay: Limit::Given(Span::from_millis(13)), cancels, order: Preference::Placement }
    }

    #[test]
    fn the_second_is_sent_late_and_only_if_needed() {
        let mut p = policy(true);
        let (mut c, step) = begun(&mut p, ms(0));
        assert_eq!((sends(&step), step.orders.timers), (vec![(0, None)], vec![ms(13)]));
        assert_eq!(sends(&c.timer(ms(13), &mut p)), [(1, None)]);
        let step = c.answered(ms(20), 1, answer(Reply::Done), &mut p);
        assert_eq!((step.ended, step.orders.cancels), (Some(Ended::Done(1)), vec![0]));

        let (mut c, _) = begun(&mut p, ms(30));
        assert_eq!(c.answered(ms(36), 0, answer(Reply::Done), &mut p).ended, Some(Ended::Done(0)));
        assert!(c.timer(ms(43), &mut p).orders.sends.is_empty());
    }

    #[test]
    fn the_delay_follows_the_answers() {
        let delay = Limit::Learned(Quantile::new(Span::from_millis(30), 950));
        let mut p = Hedged { delay, ..policy(false) };
        for i in 0..12_000u64 {
            let (mut c, _) = begun(&mut p, ms(100 * i));
            // One in a hundred takes 40 ms, the others 10.
            let took = if i % 100 == 0 { 40 } else { 10 };
            let _ = c.answered(ms(100 * i + took), 0, answer(Reply::Done), &mut p);
        }
        let learned = p.delay.span();
        assert!((Span::from_millis(9)..Span::from_millis(13)).contains(&learned), "p95 is 10 ms, not {learned}");
    }
}
