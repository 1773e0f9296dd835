//! The clock by which clients are judged that send slowly.
//!
//! What a client sends while the pool's thread is busy is seen only after that. Long stretches of work therefore aren't the
//! client's: this clock stands still during them.

use plimsoll_base::{Span, Time};

/// Of each stretch of work, this much counts: a thread that always has something to do judges its clients, too.
const STRETCH: Span = Span::from_millis(50);

/// See the module's documentation.
#[derive(Default)]
pub struct Patience {
    woke_at: Time,
    /// How long the clock has stood still.
    behind: Span,
}

impl Patience {
    /// The thread begins a stretch of work.
    pub fn woke(&mut self, now: Time) {
        self.woke_at = now;
    }

    /// The stretch ends.
    pub fn sleeps(&mut self, now: Time) {
        self.behind += now.since(self.woke_at).saturating_sub(STRETCH);
        self.woke_at = now;
    }

    /// What the clock shows.
    pub fn at(&self, now: Time) -> Time {
        let stretch = now.since(self.woke_at).saturating_sub(STRETCH);
        now - (self.behind + stretch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_work_is_not_the_clients_time() {
        let mut p = Patience::default();
        let at = |s| Time::ZERO + Span::from_secs(s);
        p.woke(at(10));
        assert_eq!(p.at(at(10)), at(10), "sleep counts whole");
        assert_eq!(p.at(at(70)), at(10) + STRETCH, "also while the work goes on");
        p.sleeps(at(70));
        assert_eq!(p.at(at(70)), at(10) + STRETCH);
        p.woke(at(80));
        assert_eq!(p.at(at(80)), at(20) + STRETCH);
        p.sleeps(at(80) + Span::from_millis(1));
        assert_eq!(p.at(at(80) + Span::from_millis(1)), at(20) + STRETCH + Span::from_millis(1), "short work counts");
    }
}
