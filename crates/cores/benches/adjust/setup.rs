//! Layers in the state in which an adjustment is measured, shared by the benchmark and the instruction count.

use plimsoll_base::{Class, Completion, Data, Io, IoHead, Objective, Op, Outcome, Span, TenantId, Time, VolumeKey};
use plimsoll_cores::config::{CoresConfig, Deadlines, PolicyConfig, QwinConfig};
use plimsoll_cores::{CorePolicy, CoreRule, Cores, demand};
use plimsoll_stack::{Offer, Stack, StackConfig, Target, Terms};
use std::collections::VecDeque;

const NOW: Time = Time::from_nanos(1_000_000_000);

/// Arrival times of so many requests over the last two milliseconds.
pub fn arrivals(n: u64) -> Vec<Time> {
    (0..n).map(|k| NOW - Span::from_nanos(2_000_000 - k * 2_000_000 / n)).collect()
}

/// The calculation for all of them.
pub fn demand(arrivals: &[Time]) -> u64 {
    let (wait, mean) = (Span::from_micros(2700), Span::from_micros(80));
    demand::slots(Deadlines::Each, NOW, arrivals.len(), |k| arrivals[k], wait, mean)
}

fn stack(cores: u32) -> Stack {
    let offer =
        Offer { size_bytes: 1 << 40, block_bytes: 512, io_bytes_max: 1 << 26, atomic_bytes: 512, queue_max: 4096 };
    let rule = CoreRule::Always(CorePolicy::Aggressive);
    let policy = PolicyConfig::Qwin(QwinConfig { rule, ..QwinConfig::default() });
    let mut stack = Stack::new(StackConfig::default(), vec![offer]);
    stack.push(Box::new(Cores::new(CoresConfig { policy, ..CoresConfig::new(cores) })), vec![Target::Device(0)]);
    stack.start(Time::ZERO);
    for tenant in 0..3 {
        let objectives = vec![Objective { percentile_bp: 9990, bound: Span::from_millis(3 + u64::from(tenant)) }];
        let terms = Terms::of(Class::LatencyCritical { objectives, weight: 100 }, 128);
        stack.set_tenant(Time::ZERO, TenantId(tenant), Some(&terms));
    }
    stack
}

/// A closed loop of 128 requests on 24 cores: each turn ends the oldest at the device and sends another, and the core
/// that served it looks at what waits.
pub struct Loop {
    stack: Stack,
    at_device: VecDeque<Io>,
    now: Time,
}

impl Loop {
    /// Warmed up.
    pub fn new() -> Loop {
        let mut l = Loop { stack: stack(24), at_device: VecDeque::new(), now: Time::ZERO };
        (0..128).for_each(|_| l.offer());
        (0..20_000).for_each(|_| l.turn());
        l
    }

    fn offer(&mut self) {
        let head = IoHead::new(Op::Read, VolumeKey { id: 1, generation: 0 }, TenantId(0), 0, 4096, self.now);
        self.stack.offer(self.now, Io::new(head, Data::Absent));
        while let Some((_, io)) = self.stack.next_device_io() {
            self.at_device.push_back(io);
        }
    }

    /// One request ends, one comes.
    pub fn turn(&mut self) {
        self.now += Span::from_micros(17);
        let io = self.at_device.pop_front().expect("the device is busy");
        let c = Completion { io, outcome: Outcome::Done, dispatched_at: self.now };
        self.stack.device_done(self.now, 0, c);
        while self.stack.next_done().is_some() {}
        self.offer();
    }
}

/// Three queues that together ask for more than there is; the next completion begins a window of one.
pub struct Crowded {
    stack: Stack,
    at_device: VecDeque<Io>,
    now: Time,
}

/// In that state.
pub fn crowded() -> Crowded {
    let mut c = Crowded { stack: stack(6), at_device: VecDeque::new(), now: Time::ZERO };
    for i in 0..384u16 {
        let head = IoHead::new(Op::Read, VolumeKey { id: 1, generation: 0 }, TenantId(i % 3), 0, 4096, c.now);
        c.stack.offer(c.now, Io::new(head, Data::Absent));
    }
    for _ in 0..3 {
        c.begin();
    }
    c
}

impl Crowded {
    /// A request ends.
    pub fn begin(&mut self) {
        while let Some((_, io)) = self.stack.next_device_io() {
            self.at_device.push_back(io);
        }
        self.now += Span::from_micros(100);
        let io = self.at_device.pop_front().expect("the device is busy");
        self.stack.device_done(self.now, 0, Completion { io, outcome: Outcome::Done, dispatched_at: self.now });
        while self.stack.next_done().is_some() {}
    }
}
