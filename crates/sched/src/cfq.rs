//! Fair queueing in the manner of CFQ: each tenant has a queue in the order of addresses, and the tenants take turns at
//! the device, each for a slice of time.
//!
//! A tenant whose queue runs empty within its slice keeps the device for `slice_idle` more: a tenant that reads one
//! block after the other would otherwise lose its turn at each (this is the `idle_time` that OpTune tunes, OT-M11). The
//! classes real time, best effort and idle are served strictly in this order. (Groups, weights, priority levels and the
//! wait prediction per queue are MittCFQ's, MT-M10 to M13.)

use crate::cost::Ledger;
use plimsoll_base::{Completion, Io, IoError, IoHead, IoId, Outcome, PriorityClass, Span, TenantId, Time};
use plimsoll_stack::{Actions, Forecast, Layer, Offer, Ports};
use std::collections::{BTreeMap, VecDeque};

/// How the scheduler behaves.
#[derive(Clone, Copy, Debug)]
pub struct CfqConfig {
    /// How many requests the device has at once, at least 1.
    pub depth: u32,
    /// How long a tenant has the device in one turn.
    pub slice: Span,
    /// How long the device waits for a tenant's next request within its turn; zero: not at all.
    pub slice_idle: Span,
}

impl Default for CfqConfig {
    /// The kernel's: slices of 100 ms, idling 8 ms.
    fn default() -> CfqConfig {
        CfqConfig { depth: 1, slice: Span::from_millis(100), slice_idle: Span::from_millis(8) }
    }
}

type QueueKey = (PriorityClass, TenantId);

#[derive(Default)]
struct Queue {
    by_offset: BTreeMap<(u64, IoId), (Io, Span)>,
    next_offset: u64,
    at_device: u32,
}

struct Turn {
    key: QueueKey,
    ends_at: Time,
    /// Set while the device is kept idle for the tenant.
    idles_until: Option<Time>,
}

/// See the module's documentation.
pub struct Cfq {
    config: CfqConfig,
    queues: BTreeMap<QueueKey, Queue>,
    /// Those with something to send and without the turn, in the order in which they get it.
    round: VecDeque<QueueKey>,
    turn: Option<Turn>,
    ledger: Ledger,
}

impl Cfq {
    /// Without tenants.
    ///
    /// # Panics
    /// If the depth is zero.
    pub fn new(config: CfqConfig) -> Cfq {
        let ledger = Ledger::new(config.depth);
        Cfq { config, queues: BTreeMap::new(), round: VecDeque::new(), turn: None, ledger }
    }

    /// Changes how long the device waits within a turn, from the next wait on.
    pub fn set_slice_idle(&mut self, slice_idle: Span) {
        self.config.slice_idle = slice_idle;
    }

    /// Who has the turn now; ends one that is over.
    fn turn_now(&mut self, now: Time) -> Option<QueueKey> {
        if let Some(turn) = &mut self.turn {
            let queue = &self.queues[&turn.key];
            let preempted = self.round.iter().any(|k| k.0 < turn.key.0);
            if !queue.by_offset.is_empty() && now < turn.ends_at && !preempted {
                turn.idles_until = None;
                return Some(turn.key);
            }
            let may_idle =
                queue.by_offset.is_empty() && now < turn.ends_at && !preempted && self.config.slice_idle > Span::ZERO;
            if may_idle {
                // It idles from when its last request came back.
                if queue.at_device > 0 {
                    return None;
                }
                let until = *turn.idles_until.get_or_insert((now + self.config.slice_idle).min(turn.ends_at));
                if now < until {
                    return None;
                }
            }
            if !queue.by_offset.is_empty() {
                self.round.push_back(turn.key);
            }
            self.turn = None;
        }
        let first_class = self.round.iter().map(|k| k.0).min()?;
        let at = self.round.iter().position(|k| k.0 == first_class).expect("just seen");
        let key = self.round.remove(at).expect("just seen");
        self.turn = Some(Turn { key, ends_at: now + self.config.slice, idles_until: None });
        Some(key)
    }

    fn fill_device(&mut self, now: Time, out: &mut Actions) {
        while self.ledger.has_room()
            && let Some(key) = self.turn_now(now)
        {
            let queue = self.queues.get_mut(&key).expect("whoever has the turn has a queue");
            let from = (queue.next_offset, IoId(0));
            let first = queue.by_offset.range(from..).next().or_else(|| queue.by_offset.iter().next());
            let at = *first.expect("it has something to send").0;
            let (io, cost) = queue.by_offset.remove(&at).expect("just seen");
            queue.next_offset = io.end();
            queue.at_device += 1;
            self.ledger.dispatched(now, io.id, cost);
            out.submit(0, io);
        }
        if let Some(until) = self.turn.as_ref().and_then(|t| t.idles_until) {
            out.wake_at(until);
        }
    }
}

impl Layer for Cfq {
    fn name(&self) -> &'static str {
        "cfq"
    }

    fn offer(&self, below: &[Offer]) -> Offer {
        Offer { queue_max: u32::MAX, ..below[0] }
    }

    fn start(&mut self, _now: Time, below: &[Offer], _out: &mut Actions) {
        self.ledger.limit_depth(below[0].queue_max);
    }

    fn forecast(&self, at: Time, head: &IoHead, below: Ports<'_>) -> Forecast {
        self.ledger.forecast(at, head, below)
    }

    fn submit(&mut self, now: Time, io: Io, out: &mut Actions) {
        let key = (io.priority.class, io.tenant);
        let cost = self.ledger.accepted(&io.head);
        let queue = self.queues.entry(key).or_default();
        let was_empty = queue.by_offset.is_empty();
        queue.by_offset.insert((io.offset, io.id), (io, cost));
        let has_turn = self.turn.as_ref().is_some_and(|t| t.key == key);
        if was_empty && !has_turn {
            self.round.push_back(key);
        }
        self.fill_device(now, out);
    }

    fn completed(&mut self, now: Time, mut c: Completion, out: &mut Actions) {
        self.ledger.completed(now, &mut c);
        let key = (c.io.priority.class, c.io.tenant);
        self.queues.get_mut(&key).expect("it was sent from there").at_device -= 1;
        out.complete(c);
        self.fill_device(now, out);
    }

    fn wake(&mut self, now: Time, out: &mut Actions) {
        self.fill_device(now, out);
    }

    fn cancel(&mut self, _now: Time, id: IoId, out: &mut Actions) {
        let found = self.queues.iter().find_map(|(k, q)| Some((*k, *q.by_offset.keys().find(|o| o.1 == id)?)));
        let Some((key, at)) = found else { return };
        let queue = self.queues.get_mut(&key).expect("just found");
        let (io, cost) = queue.by_offset.remove(&at).expect("just found");
        if queue.by_offset.is_empty() {
            self.round.retain(|k| *k != key);
        }
        self.ledger.withdrawn(cost);
        out.end(io, Outcome::Failed(IoError::Cancelled));
    }

    fn declared(&mut self, head: &IoHead, _out: &mut Actions) {
        self.ledger.declared(head);
    }

    fn retracted(&mut self, id: IoId, _out: &mut Actions) {
        self.ledger.retracted(id);
    }

    fn is_idle(&self) -> bool {
        self.queues.values().all(|q| q.by_offset.is_empty()) && self.ledger.at_device() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Bench, ms};
    use plimsoll_base::Op;

    fn cfq(slice_ms: u64, idle_ms: u64) -> Bench {
        let config = CfqConfig { depth: 1, slice: Span::from_millis(slice_ms), slice_idle: Span::from_millis(idle_ms) };
        Bench::new(Box::new(Cfq::new(config)))
    }

    #[test]
    fn tenants_take_turns_of_a_slice() {
        let mut b = cfq(25, 0);
        for i in 0..4 {
            b.offer_as(1, Op::Read, 10 + i, ms(0));
            b.offer_as(2, Op::Read, 90 - i, ms(0));
        }
        // Ten milliseconds each: three in a slice of 25.
        let mut order = Vec::new();
        for i in 1..=8 {
            order.push(b.finish_one(ms(i * 10)));
        }
        assert_eq!(order, [10, 11, 12, 87, 88, 89, 13, 90]);
    }

    #[test]
    fn the_device_waits_for_who_has_the_turn() {
        let mut b = cfq(100, 8);
        b.offer_as(1, Op::Read, 10, ms(0));
        b.offer_as(2, Op::Read, 90, ms(0));
        assert_eq!(b.finish_one(ms(5)), 10);
        assert_eq!(b.at_device(), 0, "idling for tenant 1");
        b.offer_as(1, Op::Read, 11, ms(9));
        assert_eq!(b.finish_one(ms(14)), 11);
        b.wake(ms(22));
        assert_eq!(b.finish_one(ms(30)), 90, "tenant 1 did not come back in time");
    }

    #[test]
    fn real_time_goes_before_best_effort() {
        let mut b = cfq(100, 0);
        b.offer_as(1, Op::Read, 10, ms(0));
        b.offer_as(1, Op::Read, 11, ms(0));
        b.offer_real_time(2, Op::Read, 90, ms(1));
        assert_eq!(b.order(ms(2)), [10, 90, 11]);
    }
}
