//! First in, first out, at most `depth` at the device, with a next-free-time forecast.
//!
//! The forecast is MittNoop's (MittOS §4.1, MT-M4): the device is free when all accepted work is done, so a new request
//! waits for the sum of the accepted requests' costs, less what has passed of the one in service. Each completion takes
//! exactly its own predicted cost out of the sum, so an error doesn't outlive the request that made it (MT-M6). A
//! decision is O(1). What a request costs is learned: how long the device was kept busy by it, per operation, as a line
//! over its size. (A seek profile in its place is the business of the fast-rejection predictors.)
//!
//! Differs from §4.1: with several requests at the device the cost of one is its share of the device's time, the
//! time between two completions of a busy device, not its latency; so the sum of costs is the device's time at any depth.

use plimsoll_base::{Completion, Confidence, Io, IoError, IoHead, IoId, Op, Outcome, Span, Time};
use plimsoll_stack::{Actions, Forecast, Layer, Offer, Ports};
use std::collections::{BTreeMap, VecDeque};

/// How the scheduler behaves.
#[derive(Clone, Copy, Debug)]
pub struct FifoConfig {
    /// How many requests the device has at once, at least 1.
    pub depth: u32,
}

/// See the module's documentation.
pub struct Fifo {
    depth: usize,
    queue: VecDeque<Queued>,
    at_device: BTreeMap<IoId, AtDevice>,
    declared: BTreeMap<IoId, Span>,
    /// The sum of the predicted costs of all that is declared, queued and at the device.
    outstanding: Span,
    /// Since when the device has been working on what it will complete next.
    progress_since: Time,
    costs: [CostModel; 3],
}

struct Queued {
    io: Io,
    cost: Span,
}

struct AtDevice {
    dispatched_at: Time,
    cost: Span,
}

/// What one kind of request costs the device: `base + len · per_kib`, tracked by two exponentially weighted means (of the
/// cost and of the size) and their covariance, in integers so that a replay decides the same.
#[derive(Clone, Copy, Default)]
struct CostModel {
    samples: u32,
    mean_ns: i64,
    mean_kib: i64,
    /// ns · KiB
    covariance: i64,
    /// KiB²
    variance: i64,
    latency_ns: i64,
    error_ns: i64,
}

const EWMA_SHIFT: u32 = 4;

impl CostModel {
    fn learn(&mut self, len: u64, cost: Span, latency: Span) {
        let kib = (len / 1024) as i64;
        let ns = cost.as_nanos().min(1 << 40) as i64;
        let error = (ns - self.predict(len).as_nanos() as i64).abs();
        self.samples = self.samples.saturating_add(1);
        // The first samples weigh as in a plain mean, later ones 1/16.
        let shift = (31 - self.samples.leading_zeros()).min(EWMA_SHIFT);
        let (dx, dy) = (kib - self.mean_kib, ns - self.mean_ns);
        self.mean_kib += dx >> shift;
        self.mean_ns += dy >> shift;
        self.covariance += (dx.saturating_mul(dy) - self.covariance) >> shift;
        self.variance += (dx * dx - self.variance) >> shift;
        self.latency_ns += (latency.as_nanos().min(1 << 40) as i64 - self.latency_ns) >> shift;
        self.error_ns += (error - self.error_ns) >> shift;
    }

    fn predict(&self, len: u64) -> Span {
        let slope = if self.variance > 0 { (self.covariance / self.variance).max(0) } else { 0 };
        let ns = self.mean_ns + slope.saturating_mul((len / 1024) as i64 - self.mean_kib);
        // A request is never cheaper than a quarter of the mean: the line is only trusted near what was seen.
        Span::from_nanos(ns.max(self.mean_ns / 4).max(0) as u64)
    }

    fn confidence(&self) -> Confidence {
        if self.samples < 16 {
            return Confidence::NONE;
        }
        let relative = self.error_ns.saturating_mul(1000) / self.mean_ns.max(1);
        Confidence((1000 - relative).clamp(50, 990) as u16)
    }
}

fn kind(op: Op) -> usize {
    match op {
        Op::Read | Op::Cache | Op::BlockStatus => 0,
        Op::Write | Op::Trim | Op::WriteZeroes => 1,
        Op::Flush => 2,
    }
}

impl Fifo {
    /// An empty queue.
    ///
    /// # Panics
    /// If `depth` is zero.
    pub fn new(config: FifoConfig) -> Fifo {
        assert!(config.depth > 0, "a device with depth 0 would serve nothing");
        Fifo {
            depth: config.depth as usize,
            queue: VecDeque::new(),
            at_device: BTreeMap::new(),
            declared: BTreeMap::new(),
            outstanding: Span::ZERO,
            progress_since: Time::ZERO,
            costs: Default::default(),
        }
    }

    /// Requests waiting here and at the device.
    pub fn depths(&self) -> (usize, usize) {
        (self.queue.len(), self.at_device.len())
    }

    /// When the oldest of the requests that wait here arrived at the pool.
    pub fn oldest_queued(&self) -> Option<Time> {
        self.queue.iter().map(|q| q.io.arrived_at).min()
    }

    fn cost(&self, head: &IoHead) -> Span {
        self.costs[kind(head.op)].predict(head.len)
    }

    fn fill_device(&mut self, now: Time, out: &mut Actions) {
        while self.at_device.len() < self.depth
            && let Some(Queued { io, cost }) = self.queue.pop_front()
        {
            if self.at_device.is_empty() {
                self.progress_since = now;
            }
            self.at_device.insert(io.id, AtDevice { dispatched_at: now, cost });
            out.submit(0, io);
        }
    }
}

impl Layer for Fifo {
    fn name(&self) -> &'static str {
        "fifo"
    }

    fn offer(&self, below: &[Offer]) -> Offer {
        Offer { queue_max: u32::MAX, ..below[0] }
    }

    fn start(&mut self, _now: Time, below: &[Offer], _out: &mut Actions) {
        self.depth = self.depth.min(below[0].queue_max as usize);
    }

    fn forecast(&self, at: Time, head: &IoHead, below: Ports<'_>) -> Forecast {
        let model = &self.costs[kind(head.op)];
        let in_service = self.at_device.first_key_value().map_or(Span::ZERO, |(_, d)| d.cost);
        let wait = self.outstanding.saturating_sub(at.since(self.progress_since).min(in_service));
        let service =
            if self.depth == 1 { model.predict(head.len) } else { Span::from_nanos(model.latency_ns.max(0) as u64) };
        below.serve(wait, service, model.confidence())
    }

    fn submit(&mut self, now: Time, io: Io, out: &mut Actions) {
        self.retracted(io.id, out);
        let cost = self.cost(&io.head);
        self.outstanding += cost;
        self.queue.push_back(Queued { io, cost });
        self.fill_device(now, out);
    }

    fn completed(&mut self, now: Time, mut c: Completion, out: &mut Actions) {
        let d = self.at_device.remove(&c.io.id).expect("completions are of requests that were sent");
        self.outstanding -= d.cost;
        if c.outcome.is_done() {
            let busy = now.since(d.dispatched_at.max(self.progress_since));
            self.costs[kind(c.io.op)].learn(c.io.len, busy, now.since(d.dispatched_at));
        }
        self.progress_since = now;
        c.dispatched_at = c.dispatched_at.min(d.dispatched_at);
        out.complete(c);
        self.fill_device(now, out);
    }

    fn cancel(&mut self, _now: Time, id: IoId, out: &mut Actions) {
        if let Some(i) = self.queue.iter().position(|q| q.io.id == id) {
            let Queued { io, cost } = self.queue.remove(i).expect("just found");
            self.outstanding -= cost;
            out.end(io, Outcome::Failed(IoError::Cancelled));
        }
    }

    fn declared(&mut self, head: &IoHead, _out: &mut Actions) {
        let cost = self.cost(head);
        if self.declared.insert(head.id, cost).is_none() {
            self.outstanding += cost;
        }
    }

    fn retracted(&mut self, id: IoId, _out: &mut Actions) {
        if let Some(cost) = self.declared.remove(&id) {
            self.outstanding -= cost;
        }
    }

    fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.at_device.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_base::{TenantId, VolumeKey};
    use plimsoll_stack::{Offered, Stack, StackConfig, Target};

    fn us(n: u64) -> Span {
        Span::from_micros(n)
    }

    /// A fifo over device 0, driven by hand.
    fn stack(depth: u32) -> Stack {
        let offer =
            Offer { size_bytes: 1 << 40, block_bytes: 512, io_bytes_max: 1 << 26, atomic_bytes: 512, queue_max: 64 };
        let config = StackConfig { failover_hop: Span::ZERO, ..StackConfig::default() };
        let mut s = Stack::new(config, vec![offer]);
        s.push(Box::new(Fifo::new(FifoConfig { depth })), vec![Target::Device(0)]);
        s.start(Time::ZERO);
        s
    }

    fn read(offset: u64, len: u64, now: Time) -> Io {
        let head = IoHead::new(Op::Read, VolumeKey::POOL, TenantId(0), offset, len, now);
        Io { head, data: Default::default() }
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
}
