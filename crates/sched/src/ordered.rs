//! Common part of the schedulers that keep requests in an order of their own and give them to a device one after the other.

use crate::device::DeviceQueue;
use crate::disk::DiskModel;
use plimsoll_base::{Completion, Io, IoError, IoHead, IoId, Outcome, Span, Time};
use plimsoll_stack::{Actions, Forecast, Layer, Offer, Ports};

/// Order of waiting requests: the next one, and the work before a request that arrives now.
pub trait Order: Send + 'static {
    /// The scheduler's name.
    const NAME: &'static str;

    /// Returns the number of waiting requests.
    fn len(&self) -> usize;

    /// True if no request waits.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// One more waits.
    fn add(&mut self, now: Time, io: Io, device: &DeviceQueue);

    /// The next one for the device, and what it was predicted to cost if it has waited for others.
    fn next(&mut self, now: Time) -> Option<(Io, Option<Span>)>;

    /// Returns the waiting work that goes before `head`, and the cost of `head` after that.
    fn in_front(&self, at: Time, head: &IoHead, device: &DeviceQueue) -> (Span, Span);

    /// Takes out a request that waits.
    fn withdraw(&mut self, id: IoId) -> Option<Io>;
}

/// A scheduler: requests in an order, before a device.
pub struct Ordered<O> {
    order: O,
    device: DeviceQueue,
}

impl<O: Order> Ordered<O> {
    /// Nothing waits.
    pub(crate) fn before(order: O, device: DeviceQueue) -> Ordered<O> {
        Ordered { order, device }
    }

    /// Requests waiting here and at the device.
    pub fn depths(&self) -> (usize, usize) {
        (self.order.len(), self.device.len())
    }

    /// Returns the model that predictions rest on.
    pub fn model(&self) -> &DiskModel {
        self.device.model()
    }

    /// Returns the wait of a request that arrives at `now`, and its own time.
    fn expected(&self, now: Time, head: &IoHead) -> (Span, Span) {
        let (front, own) = self.order.in_front(now, head, &self.device);
        let queued = self.device.busy_cost(front + self.device.declared_cost());
        (self.device.busy_for(now) + queued, self.device.own_cost(own, !self.order.is_empty()))
    }

    fn fill_device(&mut self, now: Time, out: &mut Actions) {
        while self.device.has_room()
            && let Some((io, cost)) = self.order.next(now)
        {
            self.device.dispatched(now, &io, cost);
            out.submit(0, io);
        }
    }
}

impl<O: Order> Layer for Ordered<O> {
    fn name(&self) -> &'static str {
        O::NAME
    }

    fn offer(&self, below: &[Offer]) -> Offer {
        Offer { queue_max: u32::MAX, ..below[0] }
    }

    fn start(&mut self, _now: Time, below: &[Offer], _out: &mut Actions) {
        self.device.limit_depth(below[0].queue_max);
    }

    fn forecast(&self, at: Time, head: &IoHead, below: Ports<'_>) -> Forecast {
        let now = below.now();
        let (wait, learned) = self.expected(now, head);
        // Until it comes, what is there is worked off.
        let wait = wait.saturating_sub(at.since(now));
        let (own, confidence) = self.device.own_part(at, wait, head, learned);
        below.serve(wait, own, confidence)
    }

    fn submit(&mut self, now: Time, io: Io, out: &mut Actions) {
        self.device.retracted(io.id);
        self.order.add(now, io, &self.device);
        self.fill_device(now, out);
    }

    fn completed(&mut self, now: Time, mut c: Completion, out: &mut Actions) {
        self.device.completed(now, &mut c);
        out.complete(c);
        self.fill_device(now, out);
    }

    fn cancel(&mut self, _now: Time, id: IoId, out: &mut Actions) {
        if let Some(io) = self.order.withdraw(id) {
            out.end(io, Outcome::Failed(IoError::Cancelled));
        }
    }

    fn declared(&mut self, head: &IoHead, _out: &mut Actions) {
        self.device.declared(head);
    }

    fn retracted(&mut self, id: IoId, _out: &mut Actions) {
        self.device.retracted(id);
    }

    fn is_idle(&self) -> bool {
        self.order.is_empty() && self.device.is_empty()
    }

    fn check(&self) {
        self.device.check();
        assert!(self.order.is_empty() || !self.device.has_room(), "a request waits while the device has room");
    }
}

#[cfg(test)]
mod tests {
    use crate::device::Discipline;
    use crate::disk::DiskModel;
    use crate::noop::{Noop, NoopConfig};
    use plimsoll_base::{Completion, Data, Io, IoHead, Op, Outcome, Span, TenantId, Time, VolumeKey};
    use plimsoll_stack::{Actions, Forecast, Layer, Offer, Ports, Stack, StackConfig, Target};

    fn ms(n: u64) -> Span {
        Span::from_millis(n)
    }

    /// Forecasts as if each request were held for so long before it goes on.
    struct Holds(Span);

    impl Layer for Holds {
        fn name(&self) -> &'static str {
            "holds"
        }
        fn offer(&self, below: &[Offer]) -> Offer {
            below[0]
        }
        fn forecast(&self, at: Time, head: &IoHead, below: Ports<'_>) -> Forecast {
            below.after(self.0, below.ask(0, at + self.0, head))
        }
        fn submit(&mut self, _: Time, io: Io, out: &mut Actions) {
            out.submit(0, io);
        }
        fn is_idle(&self) -> bool {
            true
        }
    }

    fn read(now: Time) -> Io {
        Io::new(IoHead::new(Op::Read, VolumeKey::POOL, TenantId(0), 0, 4096, now), Data::Absent)
    }

    /// Waiting requests are served by the time a request arrives that another layer holds meanwhile.
    #[test]
    fn a_request_that_comes_later_finds_less() {
        for (held_ms, wait_ms) in [(0, 40), (25, 40), (100, 100)] {
            let offer = Offer {
                size_bytes: 1 << 40,
                block_bytes: 512,
                io_bytes_max: 1 << 26,
                atomic_bytes: 512,
                queue_max: 64,
            };
            let mut s = Stack::new(StackConfig::default(), vec![offer]);
            let config = NoopConfig { depth: 1, discipline: Discipline::Fifo };
            s.push(Box::new(Holds(ms(held_ms))), vec![Target::Node(1)]);
            s.push(Box::new(Noop::new(config, DiskModel::unknown(1 << 40))), vec![Target::Device(0)]);
            s.start(Time::ZERO);
            let mut now = Time::ZERO;
            for _ in 0..200 {
                s.offer(now, read(now));
                let (d, io) = s.next_device_io().expect("sent at once");
                now += ms(10);
                s.device_done(now, d, Completion { io, outcome: Outcome::Done, dispatched_at: now });
            }
            (0..4).for_each(|_| _ = s.offer(now, read(now)));
            let f = s.forecast(now, &read(now).head);
            assert!(f.wait.as_nanos().abs_diff(ms(wait_ms).as_nanos()) < 2_000_000, "held for {held_ms}: {f:?}");
        }
    }
}
