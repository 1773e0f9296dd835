//! Timetable of slots: round robin, each as long as a slot plus its rest or less its overrun (VF-M7, M10, M11).
//!
//! A slot that ends early leaves its rest to its own next turn. One that overruns loses the same time there; the slots after it
//! begin when it has ended. So a rotation takes `n` slots' time on average, whatever happens in them.

use crate::config::SLOTS_MAX;
use plimsoll_base::{Span, Time};

/// Overruns of more slots than this are forgiven: a device that stood still for seconds was no batch.
const DEBIT_SLOTS_MAX: i64 = 4;

/// See the module's documentation. Small enough to be copied and tried out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Timetable {
    slots: usize,
    slot_ns: i64,
    /// Difference of each slot's next turn from a slot's length, ns.
    balance: [i64; SLOTS_MAX as usize],
    running: usize,
    began_at: Time,
    ends_at: Time,
    /// Difference of the running turn from a slot's length, ns.
    credited: i64,
}

impl Timetable {
    /// Slot 0 begins at `at`.
    ///
    /// # Panics
    /// If there are no slots, too many, or they have no length.
    pub fn new(at: Time, slots: u32, slot: Span) -> Timetable {
        assert!((1..=SLOTS_MAX).contains(&slots) && slot > Span::ZERO, "the configuration was checked");
        Timetable {
            slots: slots as usize,
            slot_ns: slot.as_nanos() as i64,
            balance: [0; SLOTS_MAX as usize],
            running: 0,
            began_at: at,
            ends_at: at + slot,
            credited: 0,
        }
    }

    /// Returns the number of slots.
    pub fn slots(&self) -> usize {
        self.slots
    }

    /// Returns the length of a slot.
    pub fn slot(&self) -> Span {
        Span::from_nanos(self.slot_ns as u64)
    }

    /// The slot that runs.
    pub fn running(&self) -> usize {
        self.running
    }

    /// Returns the start of the running turn.
    pub fn began_at(&self) -> Time {
        self.began_at
    }

    /// Returns the due end of the running turn.
    pub fn ends_at(&self) -> Time {
        self.ends_at
    }

    /// Returns the difference of a slot's next turn from a slot's length, ns; below zero it is shorter.
    pub fn balance_ns(&self, slot: usize) -> i64 {
        self.balance[slot]
    }

    /// True if the running turn is at least as long as a slot.
    pub fn is_whole(&self) -> bool {
        self.credited >= 0
    }

    /// True if the running turn has all the credit that a turn may have: one slot. Its slot's next turn isn't longer if this one
    /// ends early.
    pub fn is_longest(&self) -> bool {
        self.credited >= self.slot_ns
    }

    /// The running slot ends at `at`; what is left of it is kept for its next turn, and what was overrun up to `own`: what
    /// was overrun later isn't its owner's doing. Then the next slot with any time runs. VF-A2: at most a slot's length is
    /// credited.
    pub fn end(&mut self, at: Time, own: Time) {
        let charged = if at > self.ends_at { own.clamp(self.ends_at, at) } else { at };
        let left = self.ends_at.as_nanos() as i64 - charged.as_nanos() as i64;
        self.balance[self.running] = left.clamp(-DEBIT_SLOTS_MAX * self.slot_ns, self.slot_ns);
        loop {
            self.running = (self.running + 1) % self.slots;
            let balance = &mut self.balance[self.running];
            let length = self.slot_ns + *balance;
            if length > 0 {
                (self.credited, *balance) = (*balance, 0);
                (self.began_at, self.ends_at) = (at, at + Span::from_nanos(length as u64));
                return;
            }
            // All of this turn is owed; ends, as each pass pays back a slot.
            *balance = length;
        }
    }

    /// The running turn, which couldn't begin when it should have, begins at `now` instead, in its full length.
    pub fn begin_late(&mut self, now: Time) {
        self.delay(now.since(self.began_at));
    }

    /// The running turn ends `by` later: its owner waited so long for somebody who was lent its time.
    pub fn extend(&mut self, by: Span) {
        self.ends_at += by;
    }

    /// Takes `by` from a slot's next turn.
    pub fn owe(&mut self, slot: usize, by: Span) {
        let owed = self.balance[slot] - by.as_nanos() as i64;
        self.balance[slot] = owed.max(-DEBIT_SLOTS_MAX * self.slot_ns);
    }

    /// The running turn is `by` later.
    pub fn delay(&mut self, by: Span) {
        (self.began_at, self.ends_at) = (self.began_at + by, self.ends_at + by);
    }

    /// Slots in which nothing happens pass, up to the one that runs at `at`.
    pub fn pass(&mut self, at: Time) {
        self.pass_counting(at, &mut |_, _| {});
    }

    /// The same; `ended` hears which slots' turns ended, and how many of each.
    pub fn pass_counting(&mut self, at: Time, ended: &mut dyn FnMut(usize, u64)) {
        let mut passed = 0;
        while at >= self.ends_at {
            let ends_at = self.ends_at;
            ended(self.running, 1);
            self.end(ends_at, ends_at);
            passed += 1;
            // From now on every slot has its plain length: whole rotations are skipped.
            if passed >= self.slots && self.balance[..self.slots].iter().all(|b| *b == 0) && self.credited == 0 {
                let rotation = Span::from_nanos(self.slot_ns as u64 * self.slots as u64);
                let rounds = at.since(self.began_at).as_nanos() / rotation.as_nanos();
                let skipped = Span::from_nanos(rotation.as_nanos() * rounds);
                if rounds > 0 {
                    (0..self.slots).for_each(|slot| ended(slot, rounds));
                }
                (self.began_at, self.ends_at) = (self.began_at + skipped, self.ends_at + skipped);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(ms: u64) -> Time {
        Time::ZERO + Span::from_millis(ms)
    }

    /// VF-M10, M11: what is left is had the next time, what was overrun is owed the next time; others keep their length.
    #[test]
    fn credit_and_debit_go_to_the_same_slot() {
        let mut t = Timetable::new(at(0), 2, Span::from_millis(20));
        t.end(at(15), at(15)); // 5 ms left
        assert_eq!((t.running(), t.began_at(), t.ends_at()), (1, at(15), at(35)));
        t.end(at(38), at(38)); // 3 ms over
        assert_eq!((t.running(), t.began_at(), t.ends_at()), (0, at(38), at(63)));
        assert!(!t.is_longest());
        t.end(at(63), at(63));
        assert_eq!((t.running(), t.began_at(), t.ends_at()), (1, at(63), at(80)));
        t.end(at(80), at(80));
        assert_eq!(t.ends_at(), at(100));
    }

    /// VF-A2: a slot that always ends at once doesn't gather more than one slot's length.
    #[test]
    fn credit_is_capped() {
        let mut t = Timetable::new(at(0), 1, Span::from_millis(20));
        for _ in 0..10 {
            let now = t.began_at();
            t.end(now, now);
        }
        assert_eq!(t.ends_at().since(t.began_at()), Span::from_millis(40));
        assert!(t.is_longest());
    }

    #[test]
    fn what_is_extended_here_is_owed_elsewhere() {
        let mut t = Timetable::new(at(0), 2, Span::from_millis(20));
        t.extend(Span::from_millis(4));
        t.owe(1, Span::from_millis(4));
        t.end(at(24), at(24));
        assert_eq!((t.running(), t.ends_at()), (1, at(40)), "the rotation is as long as ever");
        t.owe(0, Span::from_secs(5));
        assert_eq!(t.balance_ns(0), -80_000_000);
    }

    /// Time that other volumes overran is neither debited nor credited.
    #[test]
    fn only_its_own_overrun_is_debited() {
        let mut t = Timetable::new(at(0), 3, Span::from_millis(20));
        t.end(at(30), at(23));
        assert_eq!((t.balance_ns(0), t.began_at()), (-3_000_000, at(30)));
        t.end(at(60), at(40));
        assert_eq!((t.balance_ns(1), t.began_at()), (0, at(60)));
        t.end(at(70), at(65));
        assert_eq!(t.balance_ns(2), 10_000_000, "ended early");
    }

    #[test]
    fn a_turn_that_is_owed_is_passed_over() {
        let mut t = Timetable::new(at(0), 2, Span::from_millis(20));
        t.end(at(70), at(70)); // 50 over: two and a half turns
        assert_eq!((t.running(), t.ends_at()), (1, at(90)));
        t.end(at(90), at(90));
        assert_eq!((t.running(), t.ends_at()), (1, at(110)), "slot 0 owes its turn");
        t.end(at(110), at(110));
        assert_eq!((t.running(), t.ends_at()), (1, at(130)), "and the next");
        t.end(at(130), at(130));
        assert_eq!((t.running(), t.ends_at()), (0, at(140)), "then half of it");
    }

    /// Slot by slot, without skipping: obviously right.
    fn pass_slowly(t: &mut Timetable, until: Time) -> Vec<u64> {
        let mut ended = vec![0; t.slots()];
        while until >= t.ends_at() {
            let ends_at = t.ends_at();
            ended[t.running()] += 1;
            t.end(ends_at, ends_at);
        }
        ended
    }

    proptest! {
        /// Passing idle time in one go is the same as slot by slot; a rotation is `n` slots on average.
        #[test]
        fn passing_is_walking(slots in 1u32..9, steps in proptest::collection::vec((0u64..60, any::<bool>()), 1..60)) {
            let slot = Span::from_millis(20);
            let mut t = Timetable::new(at(0), slots, slot);
            let mut time = vec![0i64; slots as usize];
            let mut turns = vec![0i64; slots as usize];
            for (ms, idle) in steps {
                let now = t.began_at() + Span::from_millis(ms);
                if idle {
                    let until = now + Span::from_millis(ms * 37);
                    let mut slow = t;
                    let walked = pass_slowly(&mut slow, until);
                    let mut counted = vec![0; slots as usize];
                    t.pass_counting(until, &mut |slot, turns| counted[slot] += turns);
                    prop_assert_eq!(t, slow);
                    prop_assert_eq!(counted, walked);
                    time.fill(0);
                    turns.fill(0);
                } else {
                    let running = t.running();
                    t.end(now, now);
                    time[running] += ms as i64;
                    turns[running] += 1;
                    let owed = t.balance_ns(running);
                    prop_assert!((-80_000_000..=20_000_000).contains(&owed));
                    prop_assert!(t.ends_at() > t.began_at());
                    prop_assert!(t.ends_at().since(t.began_at()) <= Span::from_millis(40));
                }
            }
        }
    }
}
