//! One replica, whatever it takes (MittOS §7.2: Base). Only an error sends it elsewhere.

use crate::course::Course;
use crate::policy::{Orders, Preference, ReplicaPolicy};
use plimsoll_base::Time;

/// See the module's documentation.
#[derive(Clone, Copy, Debug, Default)]
pub struct Base {
    /// Order in which replicas are chosen.
    pub order: Preference,
}

impl ReplicaPolicy for Base {
    fn begin(&mut self, _: Time, course: &Course, out: &mut Orders) {
        out.send(self.order.nth(course.get(), 0), None);
    }

    fn refused(&mut self, _: Time, course: &Course, _: u32, out: &mut Orders) {
        elsewhere(self.order, course, out);
    }
}

/// After an error: the next replica without a deadline, unless another try is under way.
pub(crate) fn elsewhere(order: Preference, course: &Course, out: &mut Orders) {
    if course.under_way() == 0
        && let Some(node) = order.next_untried(course)
    {
        out.send(node, None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::course::Ended;
    use crate::policy::Reply;
    use crate::testing::{answer, begun, ms, sends};

    #[test]
    fn it_waits_for_one_and_leaves_it_only_for_an_error() {
        let mut p = Base { order: Preference::Placement };
        let (mut c, step) = begun(&mut p, ms(0));
        assert_eq!((sends(&step), step.orders.timers.len()), (vec![(0, None)], 0));
        assert_eq!(sends(&c.answered(ms(1), 0, answer(Reply::Failed), &mut p)), [(1, None)]);
        assert_eq!(c.answered(ms(900), 1, answer(Reply::Done), &mut p).ended, Some(Ended::Done(1)));
    }
}
