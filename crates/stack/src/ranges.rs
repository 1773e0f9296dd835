//! The pace of ranges: prefetches, trims and zeroes, whose requests name bytes and carry none.
//!
//! A few bytes on the wire name gigabytes, and layers look at each extent or page of them. So the front passes a long range on in
//! parts, one after the other. It also bounds the bytes of all ranges, long or short: in [`RANGE_EVERY`] no more than one part's
//! are passed on, and of each tenant no more than that are below. Requests of others go between two parts. Tenants take turns.

use plimsoll_base::{IoId, Span, TenantId, Time};
use std::collections::VecDeque;

/// Length of the longest part of a range, unless a layer of the pool needs shorter ones.
pub const RANGE_BYTES: u64 = 64 << 20;
/// Time in which no more bytes of ranges are passed on than one part has.
pub const RANGE_EVERY: Span = Span::from_millis(1);

/// A request at the front: its place and its id. Places are used again, ids aren't.
pub(crate) type Which = (usize, IoId);

/// A tenant's ranges.
struct Turn {
    tenant: TenantId,
    /// Requests with a part to pass on, in their order.
    waiting: VecDeque<Which>,
    /// Bytes below.
    below: u64,
}

/// The longest part.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Parts {
    pub(crate) bytes: u64,
}

impl Default for Parts {
    fn default() -> Parts {
        Parts { bytes: RANGE_BYTES }
    }
}

impl Parts {
    /// Parts of at most `bytes`: a power of two, so that parts of an aligned range are aligned.
    pub(crate) fn of(bytes: u64) -> Parts {
        Parts { bytes: bytes.max(1).next_power_of_two() }
    }

    /// The same, of whole blocks.
    pub(crate) fn in_blocks(self, block_bytes: u64) -> Parts {
        Parts { bytes: self.bytes.max(block_bytes) }
    }

    /// The end of the part of a range that begins at `from`, if the range ends at `to`. Ranges are cut at multiples of the longest
    /// part, where objects and extents below are likely to end, too.
    pub(crate) fn end(self, from: u64, to: u64) -> u64 {
        to.min((from / self.bytes + 1) * self.bytes)
    }
}

/// See the module's documentation.
#[derive(Default)]
pub(crate) struct Ranges {
    pub(crate) parts: Parts,
    /// Tenants with ranges here or below; the first one is next.
    turns: VecDeque<Turn>,
    /// Bytes passed on since `since`.
    passed: u64,
    since: Time,
}

/// The state of a request that waits for its turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum State {
    /// It ended.
    Gone,
    /// It is to be ended without another part.
    Over,
    /// The length of its next part.
    Has(u64),
}

/// The next thing to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Next {
    /// Pass on the next part of this request.
    Pass(Which),
    /// End this request.
    End(Which),
    /// Nothing until this time, or until a part has ended.
    Wait(Time),
}

impl Ranges {
    /// Returns whether no range is here or below.
    pub(crate) fn is_idle(&self) -> bool {
        self.turns.is_empty()
    }

    fn turn(&mut self, tenant: TenantId) -> &mut Turn {
        let at = self.turns.iter().position(|t| t.tenant == tenant).unwrap_or_else(|| {
            self.turns.push_back(Turn { tenant, waiting: VecDeque::new(), below: 0 });
            self.turns.len() - 1
        });
        &mut self.turns[at]
    }

    /// A request has its first part to pass on.
    pub(crate) fn enter(&mut self, tenant: TenantId, which: Which) {
        self.turn(tenant).waiting.push_back(which);
    }

    /// A request has another part to pass on: before other requests of its tenant.
    pub(crate) fn go_on(&mut self, tenant: TenantId, which: Which) {
        self.turn(tenant).waiting.push_front(which);
    }

    /// The next thing to do. The request that it names waits no more; `state` knows each request that waits.
    pub(crate) fn next(&mut self, now: Time, state: impl Fn(Which) -> State) -> Next {
        if now >= self.since + RANGE_EVERY {
            (self.since, self.passed) = (now, 0);
        }
        let mut wait = Time::NEVER;
        let mut at = 0;
        while at < self.turns.len() {
            let turn = &mut self.turns[at];
            let Some(which) = turn.waiting.front().copied() else {
                at += 1;
                continue;
            };
            let len = match state(which) {
                State::Has(len) => len,
                ends => {
                    turn.waiting.pop_front();
                    self.tidy(at);
                    if ends == State::Over {
                        return Next::End(which);
                    }
                    continue;
                }
            };
            if turn.below + len > self.parts.bytes {
                at += 1;
            } else if self.passed + len > self.parts.bytes {
                wait = self.since + RANGE_EVERY;
                at += 1;
            } else {
                turn.waiting.pop_front();
                turn.below += len;
                self.passed += len;
                let turn = self.turns.remove(at).expect("just seen");
                self.turns.push_back(turn);
                return Next::Pass(which);
            }
        }
        Next::Wait(wait)
    }

    /// A part has ended.
    pub(crate) fn ended(&mut self, tenant: TenantId, len: u64) {
        let at = self.turns.iter().position(|t| t.tenant == tenant).expect("it was passed on");
        self.turns[at].below -= len;
        self.tidy(at);
    }

    /// Forgets a tenant without ranges.
    fn tidy(&mut self, at: usize) {
        if self.turns[at].below == 0 && self.turns[at].waiting.is_empty() {
            self.turns.remove(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn at_us(us: u64) -> Time {
        Time::ZERO + Span::from_micros(us)
    }

    fn which(n: u64) -> Which {
        (n as usize, IoId(n))
    }

    fn of_a_mib() -> Ranges {
        Ranges { parts: Parts::of(MIB), ..Ranges::default() }
    }

    #[test]
    fn parts_end_at_multiples_of_the_longest() {
        let p = Parts::of(4096);
        assert_eq!((p.end(0, 10_000), p.end(4096, 10_000), p.end(8192, 10_000)), (4096, 8192, 10_000));
        assert_eq!((p.end(5000, 6000), p.end(5000, 9000), p.end(4000, 4096)), (6000, 8192, 4096));
        assert_eq!(Parts::of(5000).end(0, 10_000), 8192, "a power of two");
        assert_eq!(p.in_blocks(MIB).end(0, 10 * MIB), MIB);
    }

    /// In each millisecond one part's bytes in all; of a tenant that many below.
    #[test]
    fn the_pace_is_kept() {
        let mut r = of_a_mib();
        let pass = |r: &mut Ranges, us, len| r.next(at_us(us), |_| State::Has(len));
        (0..8).for_each(|n| r.enter(TenantId(1), which(n)));
        assert_eq!(pass(&mut r, 5000, MIB / 2), Next::Pass(which(0)));
        assert_eq!(pass(&mut r, 5000, MIB / 4), Next::Pass(which(1)));
        assert_eq!(pass(&mut r, 5100, MIB / 2), Next::Wait(Time::NEVER), "too much of it is below");
        assert_eq!(pass(&mut r, 5100, MIB / 4), Next::Pass(which(2)));
        r.ended(TenantId(1), MIB / 2);
        assert_eq!(pass(&mut r, 5200, MIB / 2), Next::Wait(at_us(6000)), "too much was passed on");
        r.enter(TenantId(2), which(9));
        assert_eq!(pass(&mut r, 5999, 512), Next::Wait(at_us(6000)), "by others, too");
        assert_eq!(pass(&mut r, 6000, MIB / 2), Next::Pass(which(3)));
        assert_eq!(pass(&mut r, 9000, 512), Next::Pass(which(9)), "what is below is another's");
        assert_eq!(pass(&mut r, 9000, 512), Next::Wait(Time::NEVER));
    }

    /// A whole part isn't passed by for ever by the short ranges of others.
    #[test]
    fn the_longest_part_comes() {
        let mut r = of_a_mib();
        let state = |(at, _): Which| State::Has(if at == 0 { MIB } else { 4096 });
        r.enter(TenantId(2), which(1));
        assert_eq!(r.next(at_us(5000), state), Next::Pass(which(1)));
        r.enter(TenantId(1), which(0));
        for n in 2..100 {
            r.enter(TenantId(2), which(n));
            let next = r.next(at_us(5000 + 100 * n), state);
            r.ended(TenantId(2), 4096);
            if next == Next::Pass(which(0)) {
                return assert!(n >= 10);
            }
        }
        panic!("it never comes");
    }

    /// Tenants take turns, however many requests each has. A tenant's requests end in their order.
    #[test]
    fn tenants_take_turns() {
        let mut r = of_a_mib();
        (0..4).for_each(|n| r.enter(TenantId(1), which(n)));
        r.enter(TenantId(2), which(10));
        let (mut order, mut left) = (Vec::new(), [2; 11]);
        for round in 0.. {
            let now = at_us(1000 * round);
            let Next::Pass((n, id)) = r.next(now, |_| State::Has(MIB)) else { break };
            order.push(n);
            let tenant = TenantId(if n == 10 { 2 } else { 1 });
            r.ended(tenant, MIB);
            left[n] -= 1;
            if left[n] > 0 {
                r.go_on(tenant, (n, id));
            }
        }
        assert_eq!(order, [0, 10, 0, 10, 1, 1, 2, 2, 3, 3]);
        assert!(r.turns.is_empty());
    }

    /// Requests that ended meanwhile, or are to be ended, take nothing of the pace.
    #[test]
    fn what_is_over_costs_nothing() {
        let mut r = of_a_mib();
        (0..6).for_each(|n| r.enter(TenantId(1), which(n)));
        let state = |(at, _): Which| [State::Gone, State::Over, State::Has(MIB)][at % 3];
        assert_eq!(r.next(at_us(1), state), Next::End(which(1)));
        assert_eq!(r.next(at_us(1), state), Next::Pass(which(2)));
        assert_eq!(r.next(at_us(1), state), Next::End(which(4)));
        assert_eq!(r.next(at_us(1), state), Next::Wait(Time::NEVER));
        r.ended(TenantId(1), MIB);
        assert_eq!(r.next(at_us(1000), state), Next::Pass(which(5)));
        r.ended(TenantId(1), MIB);
        assert!(r.turns.is_empty());
    }
}
