//! A scheduler over device 0, driven by hand.

use plimsoll_base::{
    Completion, Data, Io, IoHead, IoId, Op, Outcome, Priority, PriorityClass, Span, TenantId, Time, VolumeKey,
};
use plimsoll_stack::{Layer, Offer, Offered, Stack, StackConfig, Target};
use std::collections::VecDeque;

pub(crate) fn ms(n: u64) -> Time {
    Time::ZERO + Span::from_millis(n)
}

/// Addresses in tests are counted in blocks of 4 KiB.
const BLOCK: u64 = 4096;

pub(crate) struct Bench {
    stack: Stack,
    at_device: VecDeque<Io>,
    now: Time,
}

impl Bench {
    pub(crate) fn new(scheduler: Box<dyn Layer>) -> Bench {
        let offer =
            Offer { size_bytes: 1 << 40, block_bytes: 512, io_bytes_max: 1 << 26, atomic_bytes: 512, queue_max: 64 };
        let mut stack = Stack::new(StackConfig::default(), vec![offer]);
        stack.push(scheduler, vec![Target::Device(0)]);
        stack.start(Time::ZERO);
        Bench { stack, at_device: VecDeque::new(), now: Time::ZERO }
    }

    fn collect(&mut self) {
        while let Some((_, io)) = self.stack.next_device_io() {
            self.at_device.push_back(io);
        }
    }

    fn offer_io(&mut self, op: Op, block: u64, tenant: u16, priority: Priority, now: Time) -> IoId {
        self.now = now;
        let mut head = IoHead::new(op, VolumeKey::POOL, TenantId(tenant), block * BLOCK, BLOCK, now);
        head.priority = priority;
        let Offered::Accepted(id) = self.stack.offer(now, Io::new(head, Data::Absent)) else { panic!("no deadline") };
        self.collect();
        id
    }

    pub(crate) fn offer(&mut self, op: Op, block: u64, now: Time) -> IoId {
        self.offer_io(op, block, 1, Priority::DEFAULT, now)
    }

    pub(crate) fn offer_as(&mut self, tenant: u16, op: Op, block: u64, now: Time) -> IoId {
        self.offer_io(op, block, tenant, Priority::DEFAULT, now)
    }

    pub(crate) fn offer_real_time(&mut self, tenant: u16, op: Op, block: u64, now: Time) -> IoId {
        self.offer_io(op, block, tenant, Priority { class: PriorityClass::RealTime, level: 4 }, now)
    }

    pub(crate) fn cancel(&mut self, id: IoId) {
        self.stack.cancel(self.now, id);
        self.collect();
    }

    pub(crate) fn wake(&mut self, now: Time) {
        self.stack.wake(now);
        self.collect();
    }

    pub(crate) fn at_device(&self) -> usize {
        self.at_device.len()
    }

    /// The device answers its oldest request at `now`; which block that was.
    pub(crate) fn finish_one(&mut self, now: Time) -> u64 {
        let io = self.at_device.pop_front().expect("the device has something");
        let block = io.offset / BLOCK;
        self.stack.device_done(now, 0, Completion { io, outcome: Outcome::Done, dispatched_at: now });
        self.collect();
        block
    }

    /// The device answers everything, all at `now`, in the order in which it gets it.
    pub(crate) fn order(&mut self, now: Time) -> Vec<u64> {
        let mut order = Vec::new();
        while !self.at_device.is_empty() {
            order.push(self.finish_one(now));
        }
        order
    }
}
