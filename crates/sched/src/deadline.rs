//! The deadline scheduler, as the kernel's: requests go to the device in the order of their addresses, in batches,
//! unless one has waited too long.
//!
//! Reads and writes are kept apart. Reads go first; after `writes_starved` read batches a write batch goes. A batch goes
//! on upwards from where the last one of its direction ended, unless the oldest request of the direction has expired:
//! then it starts there. (Linux, Documentation/block/deadline-iosched.rst; the defaults are its.)

use crate::cost::Ledger;
use plimsoll_base::{Completion, Io, IoError, IoHead, IoId, Op, Outcome, Span, Time};
use plimsoll_stack::{Actions, Forecast, Layer, Offer, Ports};
use std::collections::{BTreeMap, VecDeque};

/// How the scheduler behaves.
#[derive(Clone, Copy, Debug)]
pub struct DeadlineConfig {
    /// How many requests the device has at once, at least 1.
    pub depth: u32,
    /// A read that has waited this long goes next.
    pub read_expire: Span,
    /// A write likewise.
    pub write_expire: Span,
    /// Requests of one direction that go in a row.
    pub batch: u32,
    /// Read batches that may go before a waiting write batch.
    pub writes_starved: u32,
}

impl Default for DeadlineConfig {
    fn default() -> DeadlineConfig {
        DeadlineConfig {
            depth: 1,
            read_expire: Span::from_millis(500),
            write_expire: Span::from_secs(5),
            batch: 16,
            writes_starved: 2,
        }
    }
}

/// Reads, or everything else.
#[derive(Default)]
struct Direction {
    by_offset: BTreeMap<(u64, IoId), (Io, Span)>,
    /// In the order of coming; entries that have gone are skipped when they come to the front.
    by_age: VecDeque<(Time, u64, IoId)>,
    next_offset: u64,
}

impl Direction {
    fn add(&mut self, now: Time, io: Io, cost: Span) {
        self.by_age.push_back((now, io.offset, io.id));
        self.by_offset.insert((io.offset, io.id), (io, cost));
    }

    fn oldest(&mut self) -> Option<(Time, u64, IoId)> {
        while let Some(&(t, offset, id)) = self.by_age.front() {
            if self.by_offset.contains_key(&(offset, id)) {
                return Some((t, offset, id));
            }
            self.by_age.pop_front();
        }
        None
    }

    /// The next one upwards; at the end, from the start again.
    fn take_next(&mut self) -> Option<(Io, Span)> {
        let from = (self.next_offset, IoId(0));
        let key = *self.by_offset.range(from..).next().or_else(|| self.by_offset.iter().next())?.0;
        let (io, cost) = self.by_offset.remove(&key)?;
        self.next_offset = io.end();
        Some((io, cost))
    }
}

/// See the module's documentation.
pub struct Deadline {
    config: DeadlineConfig,
    /// Reads, writes.
    directions: [Direction; 2],
    ledger: Ledger,
    /// Which direction's batch is going, and how many are left of it.
    batch: (usize, u32),
    starved: u32,
}

impl Deadline {
    /// An empty queue.
    ///
    /// # Panics
    /// If the depth or the batch is zero.
    pub fn new(config: DeadlineConfig) -> Deadline {
        assert!(config.batch > 0, "a batch of 0 would serve nothing");
        let ledger = Ledger::new(config.depth);
        Deadline { config, directions: Default::default(), ledger, batch: (0, 0), starved: 0 }
    }

    fn next(&mut self, now: Time) -> Option<(Io, Span)> {
        let (going, left) = self.batch;
        if left > 0 && !self.directions[going].by_offset.is_empty() {
            self.batch.1 -= 1;
            return self.directions[going].take_next();
        }
        let waits = |d: &Direction| !d.by_offset.is_empty();
        let chosen = match (waits(&self.directions[0]), waits(&self.directions[1])) {
            (false, false) => return None,
            (true, false) => 0,
            (false, true) => 1,
            (true, true) if self.starved >= self.config.writes_starved => 1,
            (true, true) => 0,
        };
        self.starved = if chosen == 0 && waits(&self.directions[1]) { self.starved + 1 } else { 0 };
        let expire = [self.config.read_expire, self.config.write_expire][chosen];
        let direction = &mut self.directions[chosen];
        if let Some((since, offset, _)) = direction.oldest()
            && now.since(since) >= expire
        {
            direction.next_offset = offset;
        }
        self.batch = (chosen, self.config.batch - 1);
        direction.take_next()
    }

    fn fill_device(&mut self, now: Time, out: &mut Actions) {
        while self.ledger.has_room()
            && let Some((io, cost)) = self.next(now)
        {
            self.ledger.dispatched(now, io.id, cost);
            out.submit(0, io);
        }
    }
}

impl Layer for Deadline {
    fn name(&self) -> &'static str {
        "deadline"
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
        let cost = self.ledger.accepted(&io.head);
        self.directions[usize::from(io.op != Op::Read)].add(now, io, cost);
        self.fill_device(now, out);
    }

    fn completed(&mut self, now: Time, mut c: Completion, out: &mut Actions) {
        self.ledger.completed(now, &mut c);
        out.complete(c);
        self.fill_device(now, out);
    }

    fn cancel(&mut self, _now: Time, id: IoId, out: &mut Actions) {
        for d in &mut self.directions {
            if let Some(key) = d.by_offset.keys().copied().find(|k| k.1 == id) {
                let (io, cost) = d.by_offset.remove(&key).expect("just found");
                self.ledger.withdrawn(cost);
                return out.end(io, Outcome::Failed(IoError::Cancelled));
            }
        }
    }

    fn declared(&mut self, head: &IoHead, _out: &mut Actions) {
        self.ledger.declared(head);
    }

    fn retracted(&mut self, id: IoId, _out: &mut Actions) {
        self.ledger.retracted(id);
    }

    fn is_idle(&self) -> bool {
        self.directions.iter().all(|d| d.by_offset.is_empty()) && self.ledger.at_device() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Bench, ms};

    #[test]
    fn it_goes_upwards_in_batches_and_reads_go_first() {
        let config = DeadlineConfig { batch: 2, writes_starved: 1, ..DeadlineConfig::default() };
        let mut b = Bench::new(Box::new(Deadline::new(config)));
        b.offer(Op::Read, 50, ms(0)); // at the device at once
        for (op, at) in
            [(Op::Read, 90), (Op::Read, 10), (Op::Read, 70), (Op::Write, 5), (Op::Read, 60), (Op::Write, 80)]
        {
            b.offer(op, at, ms(0));
        }
        assert_eq!(b.order(ms(1)), [50, 60, 70, 90, 5, 80, 10], "no write waited yet when the first batch began");
    }

    #[test]
    fn an_expired_request_goes_next() {
        let mut b = Bench::new(Box::new(Deadline::new(DeadlineConfig { batch: 1, ..DeadlineConfig::default() })));
        b.offer(Op::Read, 50, ms(0));
        b.offer(Op::Read, 10, ms(0));
        b.offer(Op::Read, 60, ms(499));
        b.offer(Op::Read, 70, ms(499));
        assert_eq!(b.finish_one(ms(499)), 50);
        assert_eq!(b.finish_one(ms(501)), 60, "it was sent before 10 expired");
        assert_eq!(b.order(ms(501)), [10, 70]);
    }

    #[test]
    fn a_cancelled_request_is_skipped() {
        let mut b = Bench::new(Box::new(Deadline::new(DeadlineConfig::default())));
        b.offer(Op::Read, 50, ms(0));
        let id = b.offer(Op::Read, 60, ms(0));
        b.offer(Op::Read, 70, ms(0));
        b.cancel(id);
        assert_eq!(b.order(ms(1)), [50, 70]);
    }
}
