//! First in, first out, and a request's wait in it (MittOS §4.1: MittNoop; MT-M4 to M6).
//!
//! The device is free when all accepted work is done (`T_nextFree`). So a new request waits for the device's present work and
//! for the sum of the queued work; a decision takes constant time. Each completion takes exactly its own predicted cost out of
//! the sum, and starts the next one's from the actual time. So an error doesn't outlive the request that made it, which is the
//! paper's `T_nextFree += T_diff`.

use crate::device::{DeviceQueue, Discipline};
use crate::disk::DiskModel;
use crate::ordered::{Order, Ordered};
use plimsoll_base::{Io, IoHead, IoId, Op, Span, Time};
use std::collections::VecDeque;

/// Settings of the scheduler.
#[derive(Clone, Copy, Debug)]
pub struct NoopConfig {
    /// Number of requests that the device has at once, at least 1.
    pub depth: u32,
    /// The device's own order of requests, for prediction.
    pub discipline: Discipline,
}

/// See the module's documentation.
pub type Noop = Ordered<Arrivals>;

/// Requests as they came, each with what it was predicted to cost if others were before it.
#[derive(Default)]
pub struct Arrivals {
    queue: VecDeque<(Io, Option<Span>)>,
    cost: Span,
    /// End of the last request.
    tail: u64,
}

impl Noop {
    /// An empty queue over a device that costs what `model` says.
    ///
    /// # Panics
    /// If `depth` is zero.
    pub fn new(config: NoopConfig, model: DiskModel) -> Noop {
        Ordered::before(Arrivals::default(), DeviceQueue::new(model, config.discipline, config.depth))
    }
}

impl Arrivals {
    /// Returns the position of the arm after all accepted work.
    fn end_of_work(&self, device: &DeviceQueue) -> u64 {
        if self.queue.is_empty() { device.arm_after() } else { self.tail }
    }
}

impl Order for Arrivals {
    const NAME: &'static str = "noop";

    fn len(&self) -> usize {
        self.queue.len()
    }

    fn add(&mut self, now: Time, io: Io, device: &DeviceQueue) {
        let goes_on = self.queue.is_empty() && device.has_room();
        let cost = (!goes_on).then(|| device.model().cost(now, self.end_of_work(device), &io));
        if io.op != Op::Flush {
            self.tail = io.end();
        }
        self.cost += cost.unwrap_or(Span::ZERO);
        self.queue.push_back((io, cost));
    }

    fn next(&mut self, _now: Time) -> Option<(Io, Option<Span>)> {
        let (io, cost) = self.queue.pop_front()?;
        self.cost -= cost.unwrap_or(Span::ZERO);
        Some((io, cost))
    }

    fn in_front(&self, at: Time, head: &IoHead, device: &DeviceQueue) -> (Span, Span) {
        (self.cost, device.model().cost(at, self.end_of_work(device), head))
    }

    fn withdraw(&mut self, id: IoId) -> Option<Io> {
        let at = self.queue.iter().position(|(io, _)| io.id == id)?;
        let (io, cost) = self.queue.remove(at)?;
        self.cost -= cost.unwrap_or(Span::ZERO);
        Some(io)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_base::{Completion, Confidence, Outcome, TenantId, VolumeKey};
    use plimsoll_stack::{Offer, Offered, Stack, StackConfig, Target};

    fn us(n: u64) -> Span {
        Span::from_micros(n)
    }

    /// A noop over device 0, driven by hand.
    fn stack(depth: u32) -> Stack {
        let offer =
            Offer { size_bytes: 1 << 40, block_bytes: 512, io_bytes_max: 1 << 26, atomic_bytes: 512, queue_max: 64 };
        let config = StackConfig { failover_hop: Span::ZERO, ..StackConfig::default() };
        let mut s = Stack::new(config, vec![offer]);
        s.push(
            Box::new(Noop::new(NoopConfig { depth, discipline: Discipline::Fifo }, DiskModel::unknown(1 << 40))),
            vec![Target::Device(0)],
        );
        s.start(Time::ZERO);
        s
    }

    fn read(offset: u64, len: u64, now: Time) -> Io {
        let head = IoHead::new(Op::Read, VolumeKey::POOL, TenantId(0), offset, len, now);
        Io::new(head, Default::default())
    }

    /// One request at a time, each `cost(len)` long: what the fifo has learned after `n` of them.
    fn train(s: &mut Stack, now: &mut Time, n: u64, cost: impl Fn(u64) -> Span) {
        for i in 0..n {
            let len = 4096 << (i % 3);
            s.offer(*now, read(0, len, *now));
            let (d, io) = s.next_device_io().expect("sent at once");
            *now += cost(len);
            s.device_done(*now, d, Completion { io, outcome: Outcome::Done, dispatched_at: *now });
            s.next_done().expect("ended");
        }
    }

    #[test]
    fn order_and_depth() {
        let mut s = stack(2);
        for i in 0..5 {
            s.offer(Time::ZERO, read(i * 4096, 4096, Time::ZERO));
        }
        let mut order = Vec::new();
        let mut at_device = Vec::new();
        while let Some((_, io)) = s.next_device_io() {
            order.push(io.offset / 4096);
            at_device.push(io);
            if at_device.len() == 2 {
                let io = at_device.remove(0);
                s.device_done(
                    Time::ZERO + us(1),
                    0,
                    Completion { io, outcome: Outcome::Done, dispatched_at: Time::ZERO },
                );
            }
        }
        assert_eq!(order, [0, 1, 2, 3, 4]);
        assert_eq!(at_device.len(), 1);
    }

    #[test]
    fn it_learns_a_line_and_adds_up_the_queue() {
        let mut s = stack(1);
        let mut now = Time::ZERO;
        let cost = |len: u64| us(500) + us(len / 1024 * 10);
        train(&mut s, &mut now, 300, cost);
        let f = s.forecast(now, &read(0, 8192, now).head);
        assert!(f.wait == Span::ZERO && f.confidence > Confidence(900), "{f:?}");
        let near = |a: Span, b: Span| a.as_nanos().abs_diff(b.as_nanos()) < b.as_nanos() / 10;
        assert!(near(f.service, cost(8192)), "{f:?}");
        for _ in 0..4 {
            s.offer(now, read(0, 8192, now));
        }
        let f = s.forecast(now + us(200), &read(0, 4096, now).head);
        assert!(near(f.wait, cost(8192) * 4 - us(200)), "{f:?}");
    }

    #[test]
    fn a_late_request_delays_only_while_it_lasts() {
        let mut s = stack(1);
        let mut now = Time::ZERO;
        train(&mut s, &mut now, 100, |_| us(100));
        s.offer(now, read(0, 4096, now));
        s.offer(now, read(0, 4096, now));
        let (_, io) = s.next_device_io().unwrap();
        now += us(5000); // fifty times as long as predicted
        let f = s.forecast(now, &read(0, 4096, now).head);
        assert!(f.wait >= us(90) && f.wait <= us(210), "at least the one behind it: {f:?}");
        s.device_done(now, 0, Completion { io, outcome: Outcome::Done, dispatched_at: now });
        let (_, io) = s.next_device_io().unwrap();
        now += us(100);
        s.device_done(now, 0, Completion { io, outcome: Outcome::Done, dispatched_at: now });
        assert_eq!(s.forecast(now, &read(0, 4096, now).head).wait, Span::ZERO);
        assert!(s.is_idle());
    }

    #[test]
    fn what_is_known_late_is_refused_once_learned() {
        let mut s = stack(1);
        let mut now = Time::ZERO;
        train(&mut s, &mut now, 100, |_| us(1000));
        let mut offer = |deadline: Span| {
            let mut io = read(0, 4096, now);
            io.head.deadline = now + deadline;
            matches!(s.offer(now, io), Offered::Accepted(_))
        };
        assert!(offer(us(1100)));
        assert!(!offer(us(1100)));
        assert!(offer(us(2200)));
    }

    #[test]
    fn at_depth_the_devices_queue_is_counted_once() {
        // A device that serves one at a time, 10 ms each, whatever it's given: depth 4 only moves the queue into it.
        let mut s = stack(4);
        let mut now = Time::ZERO;
        train(&mut s, &mut now, 20, |_| us(10_000));
        let mut at_device = VecDeque::new();
        for _ in 0..200 {
            while s.inflight() < 8 {
                s.offer(now, read(0, 4096, now));
            }
            while let Some((_, io)) = s.next_device_io() {
                at_device.push_back(io);
            }
            now += us(10_000);
            let io = at_device.pop_front().expect("the device is busy");
            s.device_done(now, 0, Completion { io, outcome: Outcome::Done, dispatched_at: now });
        }
        let f = s.forecast(now, &read(0, 4096, now).head);
        let total = f.total().as_nanos() as f64 / 1e6;
        assert!((70.0..95.0).contains(&total), "seven requests of 10 ms are in front: {f:?}");
    }

    /// A device that serves four at once in 10 ms, so that a full queue moves on by one in 2.5 ms: a read alone takes 10 ms all the same. One
    /// that is put to a few takes its share of the device, after theirs.
    #[test]
    fn a_lone_read_does_not_take_what_one_of_a_full_queue_takes() {
        let (mut s, mut now) = (stack(4), Time::ZERO);
        let (mut at_device, mut n) = (VecDeque::new(), 0);
        // Far from each other: the drive's buffer has none of them.
        let mut place = || {
            n += 1;
            ((n % 2 * 512) << 30) + (n << 20)
        };
        let mut next = |s: &mut Stack, now: &mut Time| {
            at_device.extend(std::iter::from_fn(|| s.next_device_io().map(|(_, io)| io)));
            *now += us(10_000) / at_device.len() as u64;
            let io = at_device.pop_front().expect("the device is busy");
            s.device_done(*now, 0, Completion { io, outcome: Outcome::Done, dispatched_at: *now });
            s.next_done().expect("ended");
        };
        let total_ms = |s: &Stack, now, place| s.forecast(now, &read(place, 4096, now).head).total().as_millis_f64();
        for round in 0..60 {
            for _ in 0..if round == 0 { 200 } else { 4 } {
                let at = place();
                let alone = total_ms(&s, now, at);
                // The first full queues are taken for slow requests.
                let most_off = [3.5, 1.0][usize::from(round >= 40)];
                assert!(round == 0 || (alone - 10.0).abs() < most_off, "{alone} ms alone in round {round}");
                s.offer(now, read(at, 4096, now));
                next(&mut s, &mut now);
            }
            if round >= 40 {
                // In the end they are served by twos and threes: 5 + 10 ms, and 10 / 3 + 5 + 10 ms.
                for behind_few in [15.0, 18.3] {
                    s.offer(now, read(place(), 4096, now));
                    let said = total_ms(&s, now, place());
                    assert!((said - behind_few).abs() < 1.5, "{said} ms instead of {behind_few} in round {round}");
                }
                (0..2).for_each(|_| next(&mut s, &mut now));
            }
            for _ in 0..40 {
                while s.inflight() < 8 {
                    s.offer(now, read(place(), 4096, now));
                }
                next(&mut s, &mut now);
            }
            let queued = total_ms(&s, now, place());
            assert!(round < 8 || (16.0..24.0).contains(&queued), "{queued} ms behind seven in round {round}");
            while s.inflight() > 0 {
                next(&mut s, &mut now);
            }
        }
    }

    #[test]
    fn an_idle_device_is_asked_again() {
        let mut s = stack(1);
        let mut now = Time::ZERO;
        train(&mut s, &mut now, 20, |_| us(50_000));
        let mut accepts = |now: Time| {
            let mut io = read(0, 4096, now);
            io.head.deadline = now + us(1000);
            matches!(s.offer(now, io), Offered::Accepted(_))
        };
        assert!(!accepts(now), "50 ms was learned");
        assert!(accepts(now + us(1_100_000)), "it may have become faster since");
    }
}
