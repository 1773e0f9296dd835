//! Several replicas at once; the first answer is taken (MittOS §7.2: Clone, two of three).

use crate::base::elsewhere;
use crate::course::Course;
use crate::policy::{Orders, Preference, ReplicaPolicy};
use plimsoll_base::Time;

/// See the module's documentation.
#[derive(Clone, Copy, Debug)]
pub struct Cloned {
    /// Number of copies, at most the number of replicas.
    pub copies: usize,
    /// If true, the other copies are cancelled when one has answered.
    pub cancels: bool,
    /// Order in which replicas are chosen.
    pub order: Preference,
}

impl ReplicaPolicy for Cloned {
    fn begin(&mut self, _: Time, course: &Course, out: &mut Orders) {
        for i in 0..self.copies.clamp(1, course.get().replicas.len()) {
            out.send(self.order.nth(course.get(), i), None);
        }
    }

    fn refused(&mut self, _: Time, course: &Course, _: u32, out: &mut Orders) {
        elsewhere(self.order, course, out);
    }

    fn ended(&mut self, _: Time, course: &Course, _: Option<u32>, out: &mut Orders) {
        if self.cancels {
            course.numbers_under_way().for_each(|i| out.cancel(i));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::course::Ended;
    use crate::policy::Reply;
    use crate::testing::{answer, begun, ms, sends};

    #[test]
    fn the_slower_one_is_cancelled_if_that_is_wanted() {
        for cancels in [false, true] {
            let mut p = Cloned { copies: 2, cancels, order: Preference::Placement };
            let (mut c, step) = begun(&mut p, ms(0));
            assert_eq!(sends(&step), [(0, None), (1, None)]);
            let step = c.answered(ms(4), 1, answer(Reply::Done), &mut p);
            assert_eq!(step.ended, Some(Ended::Done(1)));
            assert_eq!(step.orders.cancels, if cancels { vec![0] } else { vec![] });
        }
    }

    #[test]
    fn the_third_is_asked_when_both_have_failed() {
        let mut p = Cloned { copies: 2, cancels: false, order: Preference::Placement };
        let (mut c, _) = begun(&mut p, ms(0));
        assert!(sends(&c.answered(ms(1), 1, answer(Reply::Failed), &mut p)).is_empty());
        assert_eq!(sends(&c.answered(ms(2), 0, answer(Reply::Failed), &mut p)), [(2, None)]);
    }
}
