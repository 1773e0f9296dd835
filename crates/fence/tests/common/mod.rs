//! The layer over simulated devices with fixed service times.
#![allow(dead_code)] // each test uses a part of it

use plimsoll_base::{Data, Io, IoFlags, IoHead, Op, Outcome, Span, TenantId, Time, VolumeKey};
use plimsoll_fence::config::DeviceKind;
use plimsoll_fence::{DiskPredictor, Fence, FenceConfig, FlashPredictor};
use plimsoll_stack::map::{Extent, Map};
use plimsoll_stack::sim::{DiskFaults, SimDisk, SimPool};
use plimsoll_stack::{Actions, Forecast, Layer, Offer, Offered, Ports, Stack, StackConfig, Target, VolumeTerms};
use std::sync::{Arc, Mutex};

pub const A: VolumeKey = VolumeKey { id: 1, generation: 0 };
pub const B: VolumeKey = VolumeKey { id: 2, generation: 0 };
pub const C: VolumeKey = VolumeKey { id: 3, generation: 0 };
pub const D: VolumeKey = VolumeKey { id: 4, generation: 0 };
pub const SIZE: u64 = 1 << 30;

pub fn ms(ms: u64) -> Span {
    Span::from_millis(ms)
}

pub fn at(n: u64) -> Time {
    Time::ZERO + ms(n)
}

/// Requests that reached a device: time, operation, and whether it was to be durable.
pub type Seen = Arc<Mutex<Vec<(Time, Op, bool)>>>;

/// A device that serves one request at a time, each in the same time.
struct Serial {
    each: Span,
    free_at: Time,
    queue: Vec<(Time, Io)>,
    seen: Seen,
}

impl Layer for Serial {
    fn name(&self) -> &'static str {
        "serial"
    }
    fn offer(&self, _below: &[Offer]) -> Offer {
        Offer { size_bytes: SIZE, block_bytes: 512, io_bytes_max: 1 << 26, atomic_bytes: 512, queue_max: 64 }
    }
    fn forecast(&self, _at: Time, _head: &IoHead, _below: Ports<'_>) -> Forecast {
        Forecast::NONE
    }
    fn submit(&mut self, now: Time, io: Io, out: &mut Actions) {
        self.seen.lock().unwrap().push((now, io.op, io.flags.has(IoFlags::FUA)));
        self.free_at = self.free_at.max(now) + self.each;
        self.queue.push((self.free_at, io));
        out.wake_at(self.queue[0].0);
    }
    fn wake(&mut self, now: Time, out: &mut Actions) {
        while self.queue.first().is_some_and(|q| q.0 <= now) {
            let (_, io) = self.queue.remove(0);
            out.complete(plimsoll_base::Completion { io, outcome: Outcome::Done, dispatched_at: now });
        }
        if let Some(q) = self.queue.first() {
            out.wake_at(q.0);
        }
    }
    fn is_idle(&self) -> bool {
        self.queue.is_empty()
    }
}

/// Above the fence: what lies at or beyond [`SIZE`] goes to its second face, as a cache's hits do.
struct Split;

impl Layer for Split {
    fn name(&self) -> &'static str {
        "split"
    }
    fn offer(&self, below: &[Offer]) -> Offer {
        Offer { size_bytes: 2 * SIZE, ..below[0] }
    }
    fn forecast(&self, at: Time, head: &IoHead, below: Ports<'_>) -> Forecast {
        let mut head = *head;
        let port = (head.offset / SIZE) as u8;
        head.offset %= SIZE;
        below.ask(port, at, &head)
    }
    fn submit(&mut self, _now: Time, mut io: Io, out: &mut Actions) {
        let port = (io.offset / SIZE) as u8;
        io.head.offset %= SIZE;
        out.submit(port, io);
    }
    fn is_idle(&self) -> bool {
        true
    }
}

pub struct Bench {
    pub pool: SimPool,
    /// Volume, when it was offered, when it ended, how.
    pub ended: Vec<(VolumeKey, Time, Time, Outcome)>,
    /// Requests that reached the disk, and the flash.
    pub seen: [Seen; 2],
}

/// Predictors that are right: a request of the disk takes `disk`, of flash `flash`.
pub fn config(slots: u32, slot: Span, disk: Span, flash: Span) -> FenceConfig {
    let d = DiskPredictor::new(vec![(0, disk.as_nanos())], 0).unwrap();
    let f = FlashPredictor::by_number(flash.as_nanos(), flash.as_nanos());
    FenceConfig { slot, ..FenceConfig::new(slots, vec![DeviceKind::disk(d), DeviceKind::flash(f)]) }
}

impl Bench {
    pub fn new(config: FenceConfig, (disk, flash): (Span, Span), volumes: &[(VolumeKey, u32)]) -> Bench {
        let disks = vec![SimDisk::new(SIZE, (Span::ZERO, Span::ZERO), 1, DiskFaults::default())];
        let seen = [Seen::default(), Seen::default()];
        let serial =
            |each, d: usize| Box::new(Serial { each, free_at: Time::ZERO, queue: Vec::new(), seen: seen[d].clone() });
        let mut pool = SimPool::with_stack(disks, |offers| {
            let mut s = Stack::new(StackConfig::default(), offers);
            let mut map = Map::new();
            for v in [A, B, C, D] {
                map.set_volume(v, &[Extent { device_offset: 0, len: 2 * SIZE }]);
            }
            s.push(Box::new(map), vec![Target::Node(1)]);
            s.push(Box::new(Split), vec![Target::Node(2), Target::Face(2, 1)]);
            s.push(Box::new(Fence::new(config)), vec![Target::Node(3), Target::Node(4)]);
            s.push(serial(disk, 0), vec![]);
            s.push(serial(flash, 1), vec![]);
            s
        });
        pool.start();
        for (v, slots) in volumes {
            pool.stack().set_volume(Time::ZERO, *v, &terms(*slots));
        }
        Bench { pool, ended: Vec::new(), seen }
    }

    pub fn run_to(&mut self, t: Time) {
        while self.pool.next_event_at() <= t && self.pool.step().is_some() {
            self.collect();
        }
        self.pool.run_until(t);
        self.collect();
    }

    pub fn collect(&mut self) {
        let now = self.pool.now();
        while let Some(c) = self.pool.next_done() {
            self.ended.push((c.io.volume, Time::from_nanos(c.io.tag), now, c.outcome));
        }
    }

    pub fn head(v: VolumeKey, offset: u64, now: Time) -> IoHead {
        let mut head = IoHead::new(Op::Read, v, TenantId(1), offset, 4096, now);
        head.tag = now.as_nanos();
        head
    }

    pub fn send(&mut self, t: Time, v: VolumeKey, offset: u64) {
        self.send_head(t, Bench::head(v, offset, t));
    }

    pub fn send_op(&mut self, t: Time, v: VolumeKey, offset: u64, op: Op) {
        let len = if op == Op::Flush { 0 } else { 4096 };
        self.send_head(t, IoHead { op, len, ..Bench::head(v, offset, t) });
    }

    pub fn send_head(&mut self, t: Time, head: IoHead) {
        self.run_to(t);
        let offered = self.pool.offer(t, Io::new(head, Data::Absent));
        assert!(matches!(offered, Offered::Accepted(_)));
        self.collect();
    }

    /// Returns the times at which a volume's requests ended, ms.
    pub fn ends(&self, v: VolumeKey) -> Vec<f64> {
        self.ended.iter().filter(|e| e.0 == v).map(|e| e.2.since(Time::ZERO).as_millis_f64()).collect()
    }

    pub fn fence(&mut self) -> &Fence {
        self.pool.stack().layer::<Fence>().unwrap()
    }
}

/// A disk whose requests take 5 ms near and 15 from half of it away, as far as its predictor knows.
pub fn by_distance(change: impl Fn(&mut FenceConfig)) -> Bench {
    by_distance_of(ms(5), change)
}

/// The same; each really takes so long.
pub fn by_distance_of(really: Span, change: impl Fn(&mut FenceConfig)) -> Bench {
    let mut c = config(2, ms(20), ms(5), ms(1));
    let knots = vec![(0, 5_000_000), (1 << 20, 5_000_000), (SIZE, 25_000_000)];
    c.devices[0] = DeviceKind::disk(DiskPredictor::new(knots, 0).unwrap());
    change(&mut c);
    Bench::new(c, (really, ms(1)), &[(A, 1), (B, 1)])
}

pub fn terms(slots: u32) -> VolumeTerms {
    VolumeTerms {
        size_bytes: SIZE,
        tenant: 1,
        own: plimsoll_stack::OwnTerms::of(&plimsoll_fence::FenceTerms { slots }),
    }
}

pub const FLASH: u64 = SIZE;
