//! Admission beyond P. A transaction that waits outside may hold a lock that those in the database wait for, and no protocol shows
//! every lock.
//!
//! * A *silent* transaction lends its place after `lend_ns`. When its client goes on, it comes back at once.
//! * A *stall*: a transaction waits, and for S there was no answer, or no ordinary place was given back. Then 1, 2, 4, … are let in.
//!   S is four times the slow end (p99) of requests' times, or of transactions' stays; at least `stall_ns`, and otherwise at most a
//!   second. Answers alone are no progress: transactions that are busy for minutes would keep all others outside. Places taken in this
//!   way, with those of lenders that came back, are P at most. While the stall lasts, they stay open for the next.
//! * A *standstill*: these places are taken too, and there is no answer at all for longer still. More are let in, without a
//!   budget: this ends a deadlock through a lock that nothing shows. The limit is five times `stall_ns`, or four times the time of quick
//!   requests (the fastest quarter) if that is longer. So slow statements alone are no standstill.
//! * A transaction that has waited for `hold_max_ns`.

use super::state::place;
use super::{Gate, LogHist, Span, Time};

/// Answers over which the slow end of service times is taken; powers of two before, or a server of slow statements would be taken for a
/// stalled one for a thousand of them.
const WINDOW: u64 = 1024;
/// S is no longer, whatever was measured.
const STALL_MOST_NS: u64 = 1_000_000_000;
/// Factor of S over the slow end.
const TIMES: u64 = 4;
/// Least length of a standstill, in stalls.
const STANDSTILL_STALLS: u64 = 5;

fn slow_ns(hist: &LogHist, per_mille: u64) -> u64 {
    hist.quantile(per_mille).as_nanos().saturating_mul(TIMES)
}

impl Gate<'_> {
    /// Something was answered.
    pub(super) fn progressed(&mut self, now: Time, service: Span) {
        let h = &mut *self.head;
        h.counters.requests += 1;
        (h.answer_at, h.escape_burst) = (now.as_nanos(), 1);
        h.service.record(service);
        h.service_count += 1;
        let whole = h.service_count.is_multiple_of(WINDOW);
        if whole || (h.service_count < WINDOW && h.service_count.is_power_of_two()) {
            (h.slow_request_ns, h.quick_request_ns) = (slow_ns(&h.service, 990), slow_ns(&h.service, 250));
            h.slow_stay_ns = slow_ns(&h.holding, 990).max(h.slow_request_ns);
        }
        if whole {
            h.service.clear();
            h.holding.clear();
        }
    }

    /// Frees the place of a transaction whose client is silent for long enough.
    pub(super) fn lend(&mut self, now: Time) -> bool {
        if self.head.knobs.p == 0 || self.head.normal > self.head.knobs.p {
            return false;
        }
        let Some(i) = self.head.idle.first() else { return false };
        if now.as_nanos() < self.conns[i as usize].since.saturating_add(self.head.knobs.lend_ns) {
            return false;
        }
        self.head.idle.remove::<0, _>(self.conns, i);
        self.conns[i as usize].place = place::LENT;
        self.head.normal -= 1;
        self.head.lent += 1;
        self.head.counters.lent += 1;
        true
    }

    /// Time went on: does what is due. Call it at [`Gate::next_wake`], or whenever.
    pub fn tick(&mut self, now: Time) {
        self.pump(now);
        if self.head.waiting > 0 && now.as_nanos() >= self.escape_due() {
            let budget = self.budget().saturating_sub(self.head.over);
            let most = if budget > 0 { budget } else { u32::MAX };
            for _ in 0..self.head.escape_burst.min(self.head.waiting).min(most) {
                self.let_escape(now);
            }
            let h = &mut *self.head;
            (h.escape_burst, h.escaped_at) = (h.escape_burst.saturating_mul(2), now.as_nanos());
            h.level = h.over;
        }
        while let Some(i) = self.head.by_age.first()
            && now.as_nanos() >= self.hold_due(i)
        {
            self.grant(now, i, place::OVER);
            self.head.counters.hold_escapes += 1;
        }
    }

    fn let_escape(&mut self, now: Time) {
        let next = self.next_in_turn();
        self.grant(now, next, place::OVER);
        self.head.counters.stall_escapes += 1;
    }

    /// Places beyond P that a stall has opened stay open while no ordinary one is given back: who leaves one makes room for the next.
    pub(super) fn hand_on(&mut self, now: Time) {
        let level = self.head.level.min(self.budget());
        while self.head.waiting > 0 && self.head.over < level && now.as_nanos() >= self.places_due() {
            self.let_escape(now);
        }
    }

    /// Places beyond P, at most, that stalls fill.
    fn budget(&self) -> u32 {
        self.head.knobs.p.max(1)
    }

    fn stall_ns(&self, slow_ns: u64) -> u64 {
        self.head.knobs.stall_ns.max(slow_ns.min(STALL_MOST_NS))
    }

    /// No ordinary place was given back for long enough.
    fn places_due(&self) -> u64 {
        self.head.place_at.saturating_add(self.stall_ns(self.head.slow_stay_ns))
    }

    fn escape_due(&self) -> u64 {
        let h = &*self.head;
        if h.knobs.p == 0 {
            // Nothing moves because it was told not to.
            return u64::MAX;
        }
        if h.over >= self.budget() {
            let still = h.knobs.stall_ns.saturating_mul(STANDSTILL_STALLS).max(h.quick_request_ns);
            return h.answer_at.max(h.escaped_at).saturating_add(still);
        }
        let stall = self.stall_ns(h.slow_request_ns);
        let due = h.answer_at.saturating_add(stall).min(self.places_due());
        due.max(h.escaped_at.saturating_add(stall))
    }

    fn hold_due(&self, i: u32) -> u64 {
        self.conns[i as usize].arrived_at.saturating_add(self.head.knobs.hold_max_ns)
    }

    /// Returns the time at which [`Gate::tick`] has work, if nothing else happens before.
    pub fn next_wake(&self) -> Option<Time> {
        let oldest = self.head.by_age.first()?;
        let lend = self.head.idle.first().filter(|_| self.head.knobs.p > 0);
        let lend = lend.map_or(u64::MAX, |i| self.conns[i as usize].since.saturating_add(self.head.knobs.lend_ns));
        Some(Time::from_nanos(lend.min(self.escape_due()).min(self.hold_due(oldest))))
    }
}
