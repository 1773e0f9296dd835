//! Lending idle slot time to volumes without a promise (§4.7's hybrid, which nobody built).
//!
//! A disk can't be called back: were a slot's idle time lent out while its owner may still come, the owner's next request would find
//! it busy, and its arm elsewhere. So an owner who has wanted nothing of the disk for a moment gives the rest of its turn away,
//! *whether somebody borrows it or not*: what comes later waits for the next turn, in either case. Who borrows changes nothing for the
//! owner then but by requests that take longer than predicted and hold its next turn up. How long it waits for those is known exactly,
//! and is the price: as long as it stays below a few thousandths of what the owner's requests took, time is lent up to the end of a
//! stretch; else something is kept in reserve.

use plimsoll_base::{Span, Time};

/// What lending cost a volume, and what its requests took.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Toll {
    imposed_ns: u64,
    response_ns: u64,
}

impl Toll {
    /// So many of its requests waited for somebody else's.
    pub fn imposed(&mut self, wait: Span, requests: usize) {
        self.imposed_ns += wait.as_nanos() * requests as u64;
    }

    /// Its request took so long.
    pub fn responded(&mut self, took: Span) {
        self.response_ns += took.as_nanos();
    }

    /// What it waited for others.
    pub fn imposed_ns(&self) -> u64 {
        self.imposed_ns
    }

    /// May it be made to wait once more?
    pub fn may_lend(&self, permille: u64) -> bool {
        u128::from(self.imposed_ns) * 1000 <= u128::from(self.response_ns) * u128::from(permille)
    }
}

/// How much time of the first device was idle while others had work, and how much of it they got.
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

    /// What of it was used.
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
