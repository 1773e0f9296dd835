//! Small layers for the contract's tests.
#![allow(dead_code)] // each test file uses its own part

use plimsoll_base::*;
use plimsoll_stack::*;
use std::collections::VecDeque;

pub const VOL: VolumeKey = VolumeKey { id: 1, generation: 1 };

pub fn us(n: u64) -> Span {
    Span::from_micros(n)
}
pub fn at_us(n: u64) -> Time {
    Time::ZERO + us(n)
}

pub fn io(op: Op, offset: u64, len: u64, now: Time) -> Io {
    Io::new(IoHead::new(op, VOL, TenantId(1), offset, len, now), Data::Absent)
}

pub fn write(offset: u64, bytes: &[u8], now: Time) -> Io {
    let mut w = io(Op::Write, offset, bytes.len() as u64, now);
    w.data = Data::Bytes(Buf::copy_of(bytes));
    w
}

/// A server that takes one request at a time, first in first out, each for 100 us plus 1 us a KiB. A device model
/// without bytes: it has no port.
#[derive(Default)]
pub struct Server {
    queue: VecDeque<Io>,
    busy_until: Option<Time>,
    backlog: Span,
    declared: Vec<IoHead>,
    pub heard_refusals: Vec<IoHead>,
}

pub fn service(head: &IoHead) -> Span {
    us(100) + us(head.len / 1024)
}

impl Server {
    fn begin(&mut self, now: Time, out: &mut Actions) {
        if self.busy_until.is_none()
            && let Some(head) = self.queue.front()
        {
            self.backlog -= service(head);
            self.busy_until = Some(now + service(head));
            out.wake_at(now + service(head));
        }
    }
}

impl Layer for Server {
    fn name(&self) -> &'static str {
        "server"
    }
    fn offer(&self, _below: &[Offer]) -> Offer {
        Offer { size_bytes: 1 << 40, block_bytes: 512, io_bytes_max: 1 << 26, atomic_bytes: 512, queue_max: 1 << 16 }
    }
    fn forecast(&self, at: Time, head: &IoHead, below: Ports<'_>) -> Forecast {
        let declared: Span = self.declared.iter().map(service).sum();
        let rest = self.busy_until.map_or(Span::ZERO, |t| t.since(at));
        below.serve(rest + self.backlog + declared, service(head), Confidence::CERTAIN)
    }
    fn submit(&mut self, now: Time, io: Io, out: &mut Actions) {
        self.declared.retain(|h| h.id != io.id);
        self.backlog += service(&io);
        self.queue.push_back(io);
        self.begin(now, out);
    }
    fn wake(&mut self, now: Time, out: &mut Actions) {
        if self.busy_until.is_some_and(|t| t <= now) {
            self.busy_until = None;
            let io = self.queue.pop_front().expect("busy with the first");
            let dispatched_at = now - service(&io);
            out.complete(Completion { io, outcome: Outcome::Done, dispatched_at });
        }
        self.begin(now, out);
    }
    fn refused(&mut self, _now: Time, head: &IoHead, _forecast: &Forecast, _out: &mut Actions) {
        self.heard_refusals.push(*head);
    }
    fn cancel(&mut self, _now: Time, id: IoId, out: &mut Actions) {
        let first_waiting = usize::from(self.busy_until.is_some());
        if let Some(i) = (first_waiting..self.queue.len()).find(|&i| self.queue[i].id == id) {
            let io = self.queue.remove(i).expect("just found");
            self.backlog -= service(&io);
            out.end(io, Outcome::Failed(IoError::Cancelled));
        }
    }
    fn declared(&mut self, head: &IoHead, _out: &mut Actions) {
        self.declared.push(*head);
    }
    fn retracted(&mut self, id: IoId, _out: &mut Actions) {
        self.declared.retain(|h| h.id != id);
    }
    fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.declared.is_empty()
    }
}

/// Holds everything until its gate opens at `opens_at`, and declares what it holds.
pub struct Gate {
    pub opens_at: Time,
    held: VecDeque<Io>,
}

impl Gate {
    pub fn new(opens_at: Time) -> Gate {
        Gate { opens_at, held: VecDeque::new() }
    }
}

impl Layer for Gate {
    fn name(&self) -> &'static str {
        "gate"
    }
    fn offer(&self, below: &[Offer]) -> Offer {
        below[0]
    }
    fn forecast(&self, at: Time, head: &IoHead, below: Ports<'_>) -> Forecast {
        let wait = self.opens_at.since(at);
        below.after(wait, below.ask(0, at + wait, head))
    }
    fn submit(&mut self, now: Time, io: Io, out: &mut Actions) {
        if now >= self.opens_at {
            return out.submit(0, io);
        }
        out.declare(0, io.head);
        out.wake_at(self.opens_at);
        self.held.push_back(io);
    }
    fn wake(&mut self, _now: Time, out: &mut Actions) {
        for io in self.held.drain(..) {
            out.submit(0, io);
        }
    }
    fn cancel(&mut self, _now: Time, id: IoId, out: &mut Actions) {
        match self.held.iter().position(|io| io.id == id) {
            Some(i) => {
                out.retract(0, id);
                let io = self.held.remove(i).expect("just found");
                out.end(io, Outcome::Failed(IoError::Cancelled));
            }
            None => out.cancel(0, id),
        }
    }
    fn is_idle(&self) -> bool {
        self.held.is_empty()
    }
}

/// Breaks a clause on purpose: ends every request of the kind `breaks` with Busy.
pub struct Breaker {
    pub after_dispatch: bool,
    pub own: bool,
}

impl Layer for Breaker {
    fn name(&self) -> &'static str {
        "breaker"
    }
    fn offer(&self, below: &[Offer]) -> Offer {
        below[0]
    }
    fn submit(&mut self, now: Time, mut io: Io, out: &mut Actions) {
        if self.own {
            io.head.origin = Origin::Own(OwnKind::Fill);
        }
        let outcome = Outcome::Busy { wait: Span::ZERO, confidence: Confidence::NONE };
        let dispatched_at = if self.after_dispatch { now } else { Time::NEVER };
        out.complete(Completion { io, outcome, dispatched_at });
    }
    fn is_idle(&self) -> bool {
        true
    }
}

/// The longest part of a range over a `Server`.
pub const PART: u64 = 16 << 20;

/// A front over `layers` over a `Server`, with one volume of 1 TiB.
pub fn over_server(layers: Vec<Box<dyn Layer>>) -> sim::SimPool {
    let mut all: Vec<Box<dyn Layer>> = vec![Box::new(Front::new().with_parts(PART))];
    all.extend(layers);
    all.push(Box::new(Server::default()));
    let n = all.len();
    let mut pool = sim::SimPool::with_stack(vec![], |offers| {
        let mut stack = Stack::new(StackConfig { failover_hop: Span::ZERO, ..StackConfig::default() }, offers);
        for (i, layer) in all.into_iter().enumerate() {
            stack.push(layer, if i + 1 < n { vec![Target::Node(i + 1)] } else { vec![] });
        }
        stack
    });
    pool.with_layer(|f: &mut Front, _| {
        f.set_volume(VOL, FrontVolume { size_bytes: 1 << 40, read_only: false });
    });
    assert_eq!(pool.start(), LayerState::Ready);
    pool
}

/// A front and a map over a faulty disk; the volume of `size` bytes lies in two extents, so that requests cross.
pub fn over_disk(size: u64, disk: sim::SimDisk) -> sim::SimPool {
    // Ranges of a few blocks are long ones.
    let front = Box::new(Front::new().with_parts(2048));
    let mut pool = sim::SimPool::chain(StackConfig::default(), vec![front, Box::new(Map::new())], vec![disk]);
    let half = (size / 2).next_multiple_of(512);
    pool.with_layer(|f: &mut Front, _| {
        f.set_volume(VOL, FrontVolume { size_bytes: size, read_only: false });
    });
    pool.with_layer(|m: &mut Map, _| {
        m.set_volume(VOL, &[Extent { device_offset: half + 4096, len: half }, Extent { device_offset: 0, len: half }]);
    });
    assert_eq!(pool.start(), LayerState::Ready);
    pool
}
