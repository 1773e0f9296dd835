//! The deadline scheduler, as the kernel's: requests go to the device in the order of their addresses, in batches,
//! unless one has waited too long.
//!
//! Reads and writes are kept apart. Reads go first; after `writes_starved` read batches a write batch goes. A batch goes on
//! upwards from the end of the last one of its direction. If the oldest request of the direction has expired, the batch starts
//! there. (Linux, Documentation/block/deadline-iosched.rst, which also has the defaults.)
//!
//! A new request waits for the device's present requests and for those in front of it in the order of its direction. It also waits
//! for the batches of the other direction that go in between.

use crate::device::{DeviceQueue, Discipline};
use crate::disk::DiskModel;
use crate::ordered::{Order, Ordered};
use crate::tree::OffsetTree;
use plimsoll_base::{Io, IoHead, IoId, Op, Span, Time};
use std::collections::VecDeque;

/// Settings of the scheduler.
#[derive(Clone, Copy, Debug)]
pub struct DeadlineConfig {
    /// Number of requests that the device has at once, at least 1.
    pub depth: u32,
    /// A read that has waited this long goes next.
    pub read_expire: Span,
    /// Time after which a write expires.
    pub write_expire: Span,
    /// Requests of one direction that go in a row.
    pub batch: u32,
    /// Read batches that may go before a waiting write batch.
    pub writes_starved: u32,
    /// The device's own order of requests, for prediction.
    pub discipline: Discipline,
}

impl Default for DeadlineConfig {
    fn default() -> DeadlineConfig {
        DeadlineConfig {
            depth: 1,
            read_expire: Span::from_millis(500),
            write_expire: Span::from_secs(5),
            batch: 16,
            writes_starved: 2,
            discipline: Discipline::default(),
        }
    }
}

/// Reads, or everything else.
struct Direction {
    by_offset: OffsetTree,
    /// In the order of coming; entries that have gone are skipped when they come to the front.
    by_age: VecDeque<(Time, u64, IoId)>,
    next_offset: u64,
}

impl Direction {
    fn new() -> Direction {
        Direction { by_offset: OffsetTree::new(), by_age: VecDeque::new(), next_offset: 0 }
    }

    fn add(&mut self, now: Time, io: Io, model: &DiskModel) {
        self.by_age.push_back((now, io.offset, io.id));
        let from = self.by_offset.last_before((io.offset, io.id)).map_or(self.next_offset, |io| io.end());
        let cost = model.cost(now, from, &io);
        self.by_offset.insert(io, cost, 0);
    }

    fn oldest(&mut self) -> Option<(Time, u64, IoId)> {
        while let Some(&(t, offset, id)) = self.by_age.front() {
            if self.by_offset.get((offset, id)).is_some() {
                return Some((t, offset, id));
            }
            self.by_age.pop_front();
        }
        None
    }

    /// The next one upwards, and what it was taken to cost; at the end, from the start again.
    fn take_next(&mut self) -> Option<(Io, Span)> {
        let upwards = self.by_offset.first_from((self.next_offset, IoId(0)));
        let key = upwards.or_else(|| self.by_offset.first_from((0, IoId(0))))?;
        let before = self.by_offset.total();
        let (io, _) = self.by_offset.remove(key)?;
        self.next_offset = io.end();
        Some((io, before - self.by_offset.total()))
    }

    /// Returns the work that goes before a new request at `offset`, and the place from which the arm reaches it.
    fn front_of(&self, offset: u64) -> (Span, Option<u64>) {
        let key = (offset, IoId(u64::MAX));
        let (passed, _) = self.by_offset.sum_before((self.next_offset, IoId(0)));
        let (up_to, _) = self.by_offset.sum_before(key);
        let from = self.by_offset.last_before(key).map(|io| io.end());
        if offset >= self.next_offset {
            (up_to.saturating_sub(passed), from)
        } else {
            (self.by_offset.total() + up_to - passed, from)
        }
    }
}

/// See the module's documentation.
pub type Deadline = Ordered<Elevator>;

/// Two directions, and whose batch is going.
pub struct Elevator {
    config: DeadlineConfig,
    /// Reads, writes.
    directions: [Direction; 2],
    /// Direction of the current batch, and the number of requests left in it.
    batch: (usize, u32),
    starved: u32,
}

impl Deadline {
    /// An empty queue over a device that costs what `model` says.
    ///
    /// # Panics
    /// If the depth or the batch is zero.
    pub fn new(config: DeadlineConfig, model: DiskModel) -> Deadline {
        assert!(config.batch > 0, "a batch of 0 would serve nothing");
        let device = DeviceQueue::new(model, config.discipline, config.depth);
        let directions = [Direction::new(), Direction::new()];
        Ordered::before(Elevator { config, directions, batch: (0, 0), starved: 0 }, device)
    }
}

impl Elevator {
    fn take_next(&mut self, now: Time) -> Option<(Io, Span)> {
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
}

impl Order for Elevator {
    const NAME: &'static str = "deadline";

    fn len(&self) -> usize {
        self.directions.iter().map(|d| d.by_offset.len()).sum()
    }

    fn add(&mut self, now: Time, io: Io, device: &DeviceQueue) {
        self.directions[usize::from(io.op != Op::Read)].add(now, io, device.model());
    }

    fn next(&mut self, now: Time) -> Option<(Io, Option<Span>)> {
        self.take_next(now).map(|(io, cost)| (io, Some(cost)))
    }

    fn in_front(&self, at: Time, head: &IoHead, device: &DeviceQueue) -> (Span, Span) {
        let mine = usize::from(head.op != Op::Read);
        let (front, from) = self.directions[mine].front_of(head.offset);
        let others = self.directions[1 - mine].by_offset.total();
        // Reads let one batch of writes in after so many of theirs; writes wait for the reads that are there.
        let between = if mine == 0 { others.min(front / u64::from(self.config.writes_starved.max(1))) } else { others };
        (front + between, device.model().cost(at, from.unwrap_or(device.arm_after()), head))
    }

    fn withdraw(&mut self, id: IoId) -> Option<Io> {
        let withdraw = |d: &mut Direction| Some(d.by_offset.remove(d.by_offset.key_of(id)?)?.0);
        self.directions.iter_mut().find_map(withdraw)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Bench, ms};

    #[test]
    fn it_goes_upwards_in_batches_and_reads_go_first() {
        let config = DeadlineConfig { batch: 2, writes_starved: 1, ..DeadlineConfig::default() };
        let mut b = Bench::new(Box::new(Deadline::new(config, DiskModel::unknown(1 << 40))));
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
        let mut b = Bench::new(Box::new(Deadline::new(
            DeadlineConfig { batch: 1, ..DeadlineConfig::default() },
            DiskModel::unknown(1 << 40),
        )));
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
        let mut b = Bench::new(Box::new(Deadline::new(DeadlineConfig::default(), DiskModel::unknown(1 << 40))));
        b.offer(Op::Read, 50, ms(0));
        let id = b.offer(Op::Read, 60, ms(0));
        b.offer(Op::Read, 70, ms(0));
        b.cancel(id);
        assert_eq!(b.order(ms(1)), [50, 70]);
    }
}
