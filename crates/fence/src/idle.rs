//! Lending idle slot time to volumes without a promise (the hybrid of §4.7, which its author didn't build).
//!
//! A disk can't be called back. Suppose a slot's idle time were lent while its owner may still send requests. The owner's next
//! request would find the disk busy, and its arm elsewhere. So an owner that has been idle for a moment gives the rest of its turn
//! away, *whether another volume borrows it or not*. The owner's later requests wait for the next turn in either case. A borrower
//! then affects the owner only by requests that take longer than predicted and delay the owner's next turn. That delay is known
//! exactly, and is the price of lending. The sum of these delays is compared with `lend_permille` of the sum of the owner's
//! response times. While it is smaller, time is lent up to the next owner's turn. Otherwise a quarter of a slot is kept in reserve.

use plimsoll_base::{Span, Time};

/// Cost of lending to a volume, and the time of its requests.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Toll {
    imposed_ns: u64,
    response_ns: u64,
}

impl Toll {
    /// Records the wait of `requests` of its requests for another volume's.
    pub fn imposed(&mut self, wait: Span, requests: usize) {
        self.imposed_ns += wait.as_nanos() * requests as u64;
    }

    /// Its request took so long.
    pub fn responded(&mut self, took: Span) {
        self.response_ns += took.as_nanos();
    }

    /// Returns the time that it waited for others.
    pub fn imposed_ns(&self) -> u64 {
        self.imposed_ns
    }

    /// Returns whether it may be made to wait once more.
    pub fn may_lend(&self, permille: u64) -> bool {
        u128::from(self.imposed_ns) * 1000 <= u128::from(self.response_ns) * u128::from(permille)
    }
}

/// Time of the first device that was idle while others had work, and the part of it that they got.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Lent {
    idle_ns: u64,
    lent_ns: u64,
    until: Time,
}

impl Lent {
    /// Time has come to `now`; since the last call somebody could have used the device (`idle`), and did (`used`).
    pub fn account(&mut self, now: Time, idle: bool, used: bool) {
        let passed = now.since(self.until).as_nanos();
        self.until = now;
        self.idle_ns += if idle { passed } else { 0 };
        self.lent_ns += if idle && used { passed } else { 0 };
    }

    /// Idle time that somebody could have used.
    pub fn idle(&self) -> Span {
        Span::from_nanos(self.idle_ns)
    }

    /// Returns the used part.
    pub fn lent(&self) -> Span {
        Span::from_nanos(self.lent_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lending_stops_when_it_has_cost_its_share() {
        let mut t = Toll::default();
        assert!(t.may_lend(10), "nothing was lent yet");
        t.responded(Span::from_millis(1000));
        t.imposed(Span::from_millis(5), 2);
        assert!(t.may_lend(10));
        t.imposed(Span::from_nanos(1), 1);
        assert!(!t.may_lend(10));
        t.responded(Span::from_millis(1));
        assert!(t.may_lend(10));
        assert!(!t.may_lend(0));
    }

    #[test]
    fn idle_time_counts_when_somebody_could_use_it() {
        let mut l = Lent::default();
        let at = |ms| Time::ZERO + Span::from_millis(ms);
        l.account(at(10), false, false);
        l.account(at(14), true, true);
        l.account(at(15), true, false);
        assert_eq!((l.idle(), l.lent()), (Span::from_millis(5), Span::from_millis(4)));
    }
}
