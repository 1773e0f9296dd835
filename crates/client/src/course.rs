//! One get from its beginning to its end: what was sent for it, what came back, and when it has ended.

use crate::policy::{Answer, Get, Heard, Orders, Probe, ReplicaPolicy, Reply};
use plimsoll_base::{Span, Time};

/// A try.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Try {
    /// To whom.
    pub node: u16,
    /// Send time.
    pub sent_at: Time,
    /// With which promise.
    pub deadline: Option<Span>,
    /// Reply and its time of arrival.
    pub reply: Option<(Reply, Time)>,
    /// The node has begun to execute it.
    pub begun: bool,
    /// A cancel was sent after it.
    pub cancelled: bool,
    /// Nothing that it brings will be taken.
    pub abandoned: bool,
    /// Its answer won't come: a message was lost.
    lost: bool,
}

impl Try {
    /// Returns whether it can still bring the data, as far as a policy knows.
    pub fn is_under_way(&self) -> bool {
        self.reply.is_none() && !self.abandoned
    }
}

/// Result of a get.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ended {
    /// With the data of this try.
    Done(u32),
    /// With an error: nothing is left that could bring the data, the policy gave up, or the caller's limit has come.
    Failed,
}

/// Sends and cancels to be carried out now.
#[derive(Debug)]
#[must_use]
pub struct Step {
    /// For the driver to carry out; the tries are already entered in the course.
    pub orders: Orders,
    /// The get has just ended.
    pub ended: Option<Ended>,
}

/// See the module's documentation. The driver calls its methods with what happened; each gives what to do.
#[derive(Clone, Debug)]
pub struct Course {
    get: Get,
    tries: Vec<Try>,
    probes: Vec<Probe>,
    probes_out: u32,
    timers_out: u32,
    ended: Option<Ended>,
}

impl Course {
    /// A get that hasn't begun.
    pub fn new(get: Get) -> Course {
        Course { get, tries: Vec::new(), probes: Vec::new(), probes_out: 0, timers_out: 0, ended: None }
    }

    /// Returns the get.
    pub fn get(&self) -> &Get {
        &self.get
    }

    /// Returns the tries sent so far, by number.
    pub fn tries(&self) -> &[Try] {
        &self.tries
    }

    /// Answers to its probes, in the order of their coming.
    pub fn probes(&self) -> &[Probe] {
        &self.probes
    }

    /// Returns the result, once the get has ended.
    pub fn ended(&self) -> Option<Ended> {
        self.ended
    }

    /// True if a try was sent to `node`.
    pub fn was_tried(&self, node: u16) -> bool {
        self.tries.iter().any(|t| t.node == node)
    }

    /// Tries that can still bring the data.
    pub fn under_way(&self) -> usize {
        self.tries.iter().filter(|t| t.is_under_way()).count()
    }

    /// Numbers of the tries that can still bring the data.
    pub fn numbers_under_way(&self) -> impl Iterator<Item = u32> + '_ {
        self.tries.iter().enumerate().filter(|(_, t)| t.is_under_way()).map(|(i, _)| i as u32)
    }

    /// Returns whether it has ended, and everything that was sent for it come back (or been lost).
    pub fn is_over(&self) -> bool {
        self.ended.is_some() && self.tries.iter().all(|t| t.reply.is_some() || t.lost)
    }

    fn orders(&self) -> Orders {
        Orders { first: self.tries.len() as u32, ..Orders::default() }
    }

    /// It begins.
    pub fn begin<P: ReplicaPolicy + ?Sized>(&mut self, now: Time, policy: &mut P) -> Step {
        assert!(self.tries.is_empty() && self.ended.is_none(), "a get begins once");
        let mut out = self.orders();
        if self.get.until.is_set() {
            out.wake_at(self.get.until);
        }
        if self.get.until <= now {
            return self.end(now, Ended::Failed, Orders::default(), policy);
        }
        policy.begin(now, self, &mut out);
        self.carry_out(now, out, policy)
    }

    /// A try's answer has come.
    ///
    /// # Panics
    /// If it had come before.
    pub fn answered<P: ReplicaPolicy + ?Sized>(
        &mut self,
        now: Time,
        a_try: u32,
        answer: Answer,
        policy: &mut P,
    ) -> Step {
        let t = &mut self.tries[a_try as usize];
        assert!(t.reply.is_none() && !t.lost, "a try is answered once");
        t.reply = Some((answer.reply, now));
        let (abandoned, heard) = (t.abandoned, Heard { node: t.node, sent_at: t.sent_at, answer });
        policy.heard(now, &heard);
        let mut out = self.orders();
        if self.ended.is_none() && !abandoned {
            if answer.reply == Reply::Done {
                return self.end(now, Ended::Done(a_try), out, policy);
            }
            policy.refused(now, self, a_try, &mut out);
        }
        self.carry_out(now, out, policy)
    }

    /// A node tells that it has begun a try.
    pub fn began<P: ReplicaPolicy + ?Sized>(&mut self, now: Time, a_try: u32, policy: &mut P) -> Step {
        self.tries[a_try as usize].begun = true;
        let mut out = self.orders();
        if self.ended.is_none() {
            policy.began(now, self, a_try, &mut out);
        }
        self.carry_out(now, out, policy)
    }

    /// A probe's answer has come.
    pub fn probed<P: ReplicaPolicy + ?Sized>(&mut self, now: Time, probe: Probe, policy: &mut P) -> Step {
        self.probes_out -= 1;
        self.probes.push(probe);
        let mut out = self.orders();
        if self.ended.is_none() {
            policy.probed(now, self, &mut out);
        }
        self.carry_out(now, out, policy)
    }

    /// A time that was asked for has come.
    pub fn timer<P: ReplicaPolicy + ?Sized>(&mut self, now: Time, policy: &mut P) -> Step {
        self.timers_out -= 1;
        let mut out = self.orders();
        if self.ended.is_none() {
            if self.get.until <= now {
                return self.end(now, Ended::Failed, out, policy);
            }
            policy.timer(now, self, &mut out);
        }
        self.carry_out(now, out, policy)
    }

    /// Handles the loss of a try's message: its answer won't come, and the policy isn't notified.
    pub fn lost<P: ReplicaPolicy + ?Sized>(&mut self, now: Time, a_try: u32, policy: &mut P) -> Step {
        self.tries[a_try as usize].lost = true;
        self.carry_out(now, self.orders(), policy)
    }

    /// A probe or its answer was lost.
    pub fn probe_lost<P: ReplicaPolicy + ?Sized>(&mut self, now: Time, policy: &mut P) -> Step {
        self.probes_out -= 1;
        self.carry_out(now, self.orders(), policy)
    }

    /// Its caller has gone: it ends as failed, and nothing more is asked. Nothing to do if it had ended.
    pub fn left<P: ReplicaPolicy + ?Sized>(&mut self, now: Time, policy: &mut P) -> Step {
        match self.ended {
            Some(_) => Step { orders: Orders::default(), ended: None },
            None => self.end(now, Ended::Failed, Orders::default(), policy),
        }
    }

    /// Enters what was ordered, and ends the get if nothing is left to wait for.
    fn carry_out<P: ReplicaPolicy + ?Sized>(&mut self, now: Time, out: Orders, policy: &mut P) -> Step {
        self.enter(now, &out);
        if self.ended.is_some() {
            return Step { orders: out, ended: None };
        }
        // The caller's own limit brings nothing: it isn't worth waiting for.
        let timers = self.timers_out - u32::from(self.get.until.is_set());
        let can_come = self.tries.iter().any(|t| t.is_under_way() && !t.lost);
        if out.gives_up || !(can_come || timers > 0 || self.probes_out > 0) {
            return self.end(now, Ended::Failed, out, policy);
        }
        Step { orders: out, ended: None }
    }

    fn enter(&mut self, now: Time, out: &Orders) {
        let new = |s: &crate::policy::Send| Try {
            node: s.node,
            sent_at: now,
            deadline: s.deadline,
            reply: None,
            begun: false,
            cancelled: false,
            abandoned: false,
            lost: false,
        };
        self.tries.extend(out.sends.iter().map(new));
        assert!(
            self.tries.len() <= 2 * self.get.replicas.len(),
            "each replica once, and once more without a deadline: {self:?}"
        );
        out.cancels.iter().for_each(|&i| self.tries[i as usize].cancelled = true);
        out.abandons.iter().for_each(|&i| self.tries[i as usize].abandoned = true);
        self.probes_out += out.probes.len() as u32;
        self.timers_out += out.timers.len() as u32;
    }

    fn end<P: ReplicaPolicy + ?Sized>(&mut self, now: Time, how: Ended, mut orders: Orders, policy: &mut P) -> Step {
        assert!(self.ended.replace(how).is_none(), "a get ends once");
        let a_try = match how {
            Ended::Done(a_try) => Some(a_try),
            Ended::Failed => None,
        };
        let mut last = self.orders();
        policy.ended(now, self, a_try, &mut last);
        assert!(
            last.sends.is_empty() && last.timers.is_empty() && last.probes.is_empty(),
            "a get that has ended is only cancelled"
        );
        self.enter(now, &last);
        orders.cancels.append(&mut last.cancels);
        if how == Ended::Failed {
            // Nobody waits for them. After data came, a policy may let the others go on.
            let left = |t: &Try| t.is_under_way() && !t.cancelled && !t.lost;
            let left: Vec<u32> = (0..self.tries.len() as u32).filter(|&i| left(&self.tries[i as usize])).collect();
            left.iter().for_each(|&i| self.tries[i as usize].cancelled = true);
            orders.cancels.extend(left);
        }
        Step { orders, ended: Some(how) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Base;
    use crate::policy::Preference;
    use crate::testing::{answer, get, ms};

    #[test]
    fn a_get_ends_with_the_first_data_and_is_over_with_the_last_answer() {
        let mut policy = crate::clone::Cloned { copies: 2, cancels: false, order: Preference::Placement };
        let mut c = Course::new(get(0, 3));
        assert_eq!(c.begin(ms(0), &mut policy).orders.sends.len(), 2);
        assert_eq!(c.answered(ms(5), 1, answer(Reply::Done), &mut policy).ended, Some(Ended::Done(1)));
        assert!(!c.is_over());
        assert_eq!(c.answered(ms(9), 0, answer(Reply::Done), &mut policy).ended, None);
        assert!(c.is_over());
    }

    #[test]
    fn the_callers_limit_is_kept_and_a_limit_that_has_passed_is_an_error() {
        let mut policy = Base { order: Preference::Placement };
        let mut c = Course::new(Get { until: ms(10), ..get(0, 3) });
        let step = c.begin(ms(0), &mut policy);
        assert_eq!((step.orders.timers.as_slice(), step.ended), ([ms(10)].as_slice(), None));
        assert_eq!(c.timer(ms(10), &mut policy).ended, Some(Ended::Failed));
        let mut late = Course::new(Get { until: ms(10), ..get(0, 3) });
        let step = late.begin(ms(10), &mut policy);
        assert!(step.ended == Some(Ended::Failed) && step.orders.sends.is_empty() && late.is_over());
    }

    #[test]
    fn a_get_that_fails_or_is_left_withdraws_what_is_under_way_and_asks_nobody_else() {
        let mut policy = crate::clone::Cloned { copies: 2, cancels: false, order: Preference::Placement };
        let mut c = Course::new(Get { until: ms(10), ..get(0, 3) });
        let _ = c.begin(ms(0), &mut policy);
        assert_eq!(c.timer(ms(10), &mut policy).orders.cancels, [0, 1]);
        let mut c = Course::new(get(0, 3));
        let _ = c.begin(ms(0), &mut policy);
        let step = c.left(ms(1), &mut policy);
        assert_eq!((step.ended, step.orders.cancels), (Some(Ended::Failed), vec![0, 1]));
        for i in 0..2 {
            assert!(c.answered(ms(2), i, answer(Reply::Failed), &mut policy).orders.sends.is_empty());
        }
        assert!(c.is_over());
        let step = c.left(ms(3), &mut policy);
        assert_eq!((step.ended, step.orders.cancels), (None, Vec::new()), "it had ended");
    }

    #[test]
    fn when_all_have_failed_the_limit_isnt_waited_for() {
        let mut policy = Base { order: Preference::Placement };
        let mut c = Course::new(Get { until: ms(1000), ..get(0, 2) });
        assert_eq!(c.begin(ms(0), &mut policy).ended, None);
        assert_eq!(c.answered(ms(1), 0, answer(Reply::Failed), &mut policy).ended, None);
        assert_eq!(c.answered(ms(2), 1, answer(Reply::Failed), &mut policy).ended, Some(Ended::Failed));
    }

    #[test]
    #[should_panic(expected = "answered once")]
    fn a_second_answer_is_the_drivers_mistake() {
        let mut policy = Base { order: Preference::Placement };
        let mut c = Course::new(get(0, 2));
        let _ = c.begin(ms(0), &mut policy);
        let _ = c.answered(ms(1), 0, answer(Reply::Done), &mut policy);
        let _ = c.answered(ms(2), 0, answer(Reply::Done), &mut policy);
    }
}
