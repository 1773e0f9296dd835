//! The clock for timeouts of clients that send or take slowly.
//!
//! While the pool's thread is busy, or the whole node is stopped (SIGSTOP, a paused machine), nobody sees a client's progress. Such time
//! isn't the client's. So this clock stands still during long stretches of work, and during sleeps beyond the timeout that the thread
//! asked for.

use plimsoll_base::{Span, Time};

/// Limit on what counts of each stretch of work, and of each sleep beyond its timeout. It isn't zero, because a thread that
/// always has something to do judges its clients, too.
const STRETCH: Span = Span::from_millis(50);

/// See the module's documentation.
#[derive(Default)]
pub struct Patience {
    /// Begin of the current sleep or stretch of work.
    since: Time,
    /// Limit on what counts of it; `None` without one.
    counts: Option<Span>,
    /// Total time that the clock has stood still before.
    behind: Span,
}

impl Patience {
    /// Begins a stretch of work.
    pub fn woke(&mut self, now: Time) {
        self.turn(now, Some(STRETCH));
    }

    /// Begins a sleep of at most `timeout`.
    pub fn sleeps(&mut self, now: Time, timeout: Option<Span>) {
        self.turn(now, timeout.map(|t| t + STRETCH));
    }

    fn turn(&mut self, now: Time, counts: Option<Span>) {
        self.behind += self.still(now);
        (self.since, self.counts) = (now, counts);
    }

    /// Time that the clock has stood still since the last turn.
    #[inline]
    fn still(&self, now: Time) -> Span {
        self.counts.map_or(Span::ZERO, |most| now.since(self.since).saturating_sub(most))
    }

    /// Returns the clock's time.
    #[inline]
    pub fn at(&self, now: Time) -> Time {
        now - (self.behind + self.still(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(s: u64) -> Time {
        Time::ZERO + Span::from_secs(s)
    }

    #[test]
    fn long_work_is_not_the_clients_time() {
        let mut p = Patience::default();
        p.woke(at(10));
        assert_eq!(p.at(at(10)), at(10), "a sleep without a timeout counts whole");
        assert_eq!(p.at(at(70)), at(10) + STRETCH, "also while the work goes on");
        p.sleeps(at(70), Some(Span::from_secs(10)));
        assert_eq!(p.at(at(70)), at(10) + STRETCH);
        p.woke(at(80));
        assert_eq!(p.at(at(80)), at(20) + STRETCH, "the sleep counts whole");
        p.sleeps(at(80) + Span::from_millis(1), None);
        assert_eq!(p.at(at(80) + Span::from_millis(1)), at(20) + STRETCH + Span::from_millis(1), "short work counts");
    }

    #[test]
    fn a_stopped_node_is_not_the_clients_time() {
        let mut p = Patience::default();
        p.woke(at(10));
        p.sleeps(at(10), Some(Span::from_secs(7)));
        p.woke(at(13));
        assert_eq!(p.at(at(13)), at(13), "woken early");
        p.sleeps(at(13), Some(Span::from_secs(7)));
        p.woke(at(1000));
        assert_eq!(p.at(at(1000)), at(20) + STRETCH, "stopped in a sleep of 7 s");
        p.sleeps(at(1000), Some(Span::ZERO));
        p.woke(at(2000));
        assert_eq!(p.at(at(2000)), at(20) + STRETCH + STRETCH, "and in one of none");
    }
}
