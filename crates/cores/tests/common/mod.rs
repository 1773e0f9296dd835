//! A pool of one layer over a device that serves any number of requests at once, each for as long as a function says.
#![allow(dead_code)] // each test file uses its part

use plimsoll_base::{
    Class, Completion, Data, Io, IoError, IoHead, IoId, Objective, Op, Outcome, Span, TenantId, Time, VolumeKey,
};
use plimsoll_cores::{Cores, CoresConfig};
use plimsoll_stack::{Offer, Offered, Stack, StackConfig, Target, Terms};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

pub fn us(n: u64) -> Span {
    Span::from_micros(n)
}

pub fn at_us(n: u64) -> Time {
    Time::ZERO + us(n)
}

pub fn critical(percentile_bp: u16, bound_us: u64) -> Terms {
    let objectives = vec![Objective { percentile_bp, bound: us(bound_us) }];
    Terms::of(Class::LatencyCritical { objectives, weight: 100 }, 128)
}

pub fn best_effort(weight: u32) -> Terms {
    Terms::of(Class::BestEffort { weight }, 128)
}

/// Returns the service time of a request that is sent at a time.
type Takes = Box<dyn FnMut(Time, &IoHead) -> Span>;

pub struct Machine {
    pub stack: Stack,
    at_device: BinaryHeap<Reverse<(Time, u64)>>,
    ios: BTreeMap<u64, (Time, Io)>,
    takes: Takes,
    pub now: Time,
    /// Ended requests, with their times and outcomes.
    pub ended: Vec<(Time, Completion)>,
    /// The most at the device at once.
    pub most: usize,
    slots: usize,
    /// Changes from this offset on fail.
    pub fails_from: u64,
}

impl Machine {
    pub fn new(config: CoresConfig, takes: impl FnMut(Time, &IoHead) -> Span + 'static) -> Machine {
        let slots = (config.cores * config.depth) as usize;
        let offer =
            Offer { size_bytes: 1 << 40, block_bytes: 512, io_bytes_max: 1 << 26, atomic_bytes: 512, queue_max: 4096 };
        let mut stack = Stack::new(StackConfig { failover_hop: Span::ZERO, ..StackConfig::default() }, vec![offer]);
        stack.push(Box::new(Cores::new(config)), vec![Target::Device(0)]);
        stack.start(Time::ZERO);
        Machine {
            stack,
            at_device: BinaryHeap::new(),
            ios: BTreeMap::new(),
            takes: Box::new(takes),
            now: Time::ZERO,
            ended: Vec::new(),
            most: 0,
            slots,
            fails_from: u64::MAX,
        }
    }

    pub fn cores(&self) -> &Cores {
        self.stack.layer::<Cores>().expect("it has one")
    }

    pub fn set_tenant(&mut self, tenant: u16, terms: Option<Terms>) {
        self.stack.set_tenant(self.now, TenantId(tenant), terms.as_ref());
        self.collect();
    }

    pub fn head(&self, tenant: u16, len: u64) -> IoHead {
        IoHead::new(Op::Read, VolumeKey { id: 1, generation: 0 }, TenantId(tenant), 0, len, self.now)
    }

    /// Offers a read of `len` bytes now.
    pub fn offer(&mut self, tenant: u16, len: u64) -> Offered {
        self.offer_head(self.head(tenant, len))
    }

    pub fn offer_many(&mut self, n: u64, tenant: u16, len: u64) {
        (0..n).for_each(|_| _ = self.offer(tenant, len));
    }

    pub fn offer_head(&mut self, head: IoHead) -> Offered {
        let offered = self.stack.offer(self.now, Io::new(head, Data::Absent));
        self.collect();
        offered
    }

    pub fn cancel(&mut self, id: IoId) {
        self.stack.cancel(self.now, id);
        self.collect();
    }

    fn collect(&mut self) {
        while let Some((_, io)) = self.stack.next_device_io() {
            let done_at = self.now + (self.takes)(self.now, &io.head);
            self.at_device.push(Reverse((done_at, io.id.0)));
            self.ios.insert(io.id.0, (self.now, io));
        }
        self.most = self.most.max(self.ios.len());
        assert!(self.ios.len() <= self.slots, "more in service than there are cores");
        while let Some(c) = self.stack.next_done() {
            self.ended.push((self.now, c));
        }
    }

    pub fn next_at(&self) -> Time {
        let device = self.at_device.peek().map_or(Time::NEVER, |r| r.0.0);
        device.min(self.stack.next_wake())
    }

    /// Lets the next thing happen.
    pub fn step(&mut self) {
        let device = self.at_device.peek().map_or(Time::NEVER, |r| r.0.0);
        if device <= self.stack.next_wake() {
            let Reverse((at, id)) = self.at_device.pop().expect("something is due");
            self.now = self.now.max(at);
            let (dispatched_at, io) = self.ios.remove(&id).expect("it's there");
            let fails = io.op.is_change() && io.offset >= self.fails_from;
            let outcome = if fails { Outcome::Failed(IoError::Device) } else { Outcome::Done };
            self.stack.device_done(self.now, 0, Completion { io, outcome, dispatched_at });
        } else {
            assert!(self.stack.next_wake() >= self.now, "a layer asks to be woken in the past");
            self.now = self.stack.next_wake();
            self.stack.wake(self.now);
        }
        self.collect();
    }

    pub fn run_until(&mut self, until: Time) {
        while self.next_at() <= until {
            self.step();
        }
        self.now = self.now.max(until);
    }

    /// Until every request has ended; looks of policies that never stop are no reason to go on.
    pub fn finish(&mut self) {
        for _ in 0..10_000_000u64 {
            if self.stack.inflight() == 0 {
                return;
            }
            assert!(self.next_at().is_set(), "requests are left that nothing will end");
            self.step();
        }
        panic!("it doesn't end");
    }

    pub fn cores_of(&self, queue: usize) -> u32 {
        self.cores().queues().get(queue).cores()
    }

    /// Response times of a tenant's requests that were done.
    pub fn responses(&self, tenant: u16) -> Vec<Span> {
        let of = self.ended.iter().filter(|(_, c)| c.io.tenant == TenantId(tenant) && c.outcome.is_done());
        of.map(|(at, c)| at.since(c.io.arrived_at)).collect()
    }
}
