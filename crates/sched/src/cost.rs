//! What accepted work costs a device, and so what a new request would wait: the next-free-time ledger that the
//! schedulers share (MittOS §4.1, MT-M4, MT-M6).
//!
//! The device is free when all accepted work is done, so a new request waits for the sum of the accepted requests'
//! costs, less what has passed of the one in service. Each completion takes exactly its own predicted cost out of the
//! sum, so an error doesn't outlive the request that made it. A decision is O(1). What a request costs is learned:
//! how long the device was kept busy by it, per operation, as a line over its size.
//!
//! Differs from §4.1: with several requests at the device the cost of one is its share of the device's time, the
//! time between two completions of a busy device, not its latency; so the sum of costs is the device's time at any depth.

use plimsoll_base::{Completion, Confidence, IoHead, IoId, Op, Span, Time};
use plimsoll_stack::{Forecast, Ports};
use std::collections::BTreeMap;

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
    /// Of requests that had the device to themselves; zero until one had.
    alone_ns: i64,
    error_ns: i64,
}

const EWMA_SHIFT: u32 = 4;

impl CostModel {
    fn learn(&mut self, len: u64, cost: Span, alone: Option<Span>) {
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
        if let Some(latency) = alone {
            let ns = latency.as_nanos().min(1 << 40) as i64;
            self.alone_ns = if self.alone_ns == 0 { ns } else { self.alone_ns + ((ns - self.alone_ns) >> EWMA_SHIFT) };
        }
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

struct AtDevice {
    id: IoId,
    dispatched_at: Time,
    cost: Span,
    /// The device had nothing else when it was sent, and got nothing else since.
    alone: bool,
}

/// After this long without a completion an idle device is asked again whatever was learned of it: or a service time
/// that was learned too long would refuse everything, and so never be corrected.
const PROBE_AFTER: Span = Span::from_secs(1);

/// The accepted work of one scheduler: what waits above it by declaration, in it, and at its device.
pub struct Ledger {
    depth: usize,
    /// In order of dispatch; at most `depth`.
    at_device: Vec<AtDevice>,
    declared: BTreeMap<IoId, Span>,
    /// The sum of the predicted costs of all that is declared, queued and at the device.
    outstanding: Span,
    /// Since when the device has been working on what it will complete next.
    progress_since: Time,
    costs: [CostModel; 3],
}

impl Ledger {
    /// An empty ledger over a device that is given at most `depth` requests at once.
    ///
    /// # Panics
    /// If `depth` is zero.
    pub fn new(depth: u32) -> Ledger {
        assert!(depth > 0, "a device with depth 0 would serve nothing");
        Ledger {
            depth: depth as usize,
            at_device: Vec::new(),
            declared: BTreeMap::new(),
            outstanding: Span::ZERO,
            progress_since: Time::ZERO,
            costs: Default::default(),
        }
    }

    /// The device takes no more than this.
    pub fn limit_depth(&mut self, queue_max: u32) {
        self.depth = self.depth.min(queue_max as usize).max(1);
    }

    /// May another request go to the device?
    pub fn has_room(&self) -> bool {
        self.at_device.len() < self.depth
    }

    /// Requests at the device.
    pub fn at_device(&self) -> usize {
        self.at_device.len()
    }

    /// A request is accepted; its predicted cost, to be given back to [`Ledger::dispatched`] or [`Ledger::withdrawn`].
    pub fn accepted(&mut self, head: &IoHead) -> Span {
        self.retracted(head.id);
        let cost = self.costs[kind(head.op)].predict(head.len);
        self.outstanding += cost;
        cost
    }

    /// An accepted request goes to the device.
    pub fn dispatched(&mut self, now: Time, id: IoId, cost: Span) {
        if self.at_device.is_empty() {
            self.progress_since = now;
        }
        let alone = self.at_device.is_empty();
        self.at_device.iter_mut().for_each(|d| d.alone = false);
        self.at_device.push(AtDevice { id, dispatched_at: now, cost, alone });
    }

    /// The device has answered: the model learns, and the completion is stamped with its dispatch.
    ///
    /// # Panics
    /// If the request isn't at the device.
    pub fn completed(&mut self, now: Time, c: &mut Completion) {
        let at =
            self.at_device.iter().position(|d| d.id == c.io.id).expect("completions are of requests that were sent");
        let d = self.at_device.remove(at);
        self.outstanding -= d.cost;
        if c.outcome.is_done() {
            let busy = now.since(d.dispatched_at.max(self.progress_since));
            let alone = d.alone.then(|| now.since(d.dispatched_at));
            self.costs[kind(c.io.op)].learn(c.io.len, busy, alone);
        }
        self.progress_since = now;
        c.dispatched_at = c.dispatched_at.min(d.dispatched_at);
    }

    /// An accepted request that never went to the device is gone.
    pub fn withdrawn(&mut self, cost: Span) {
        self.outstanding -= cost;
    }

    /// A layer above will send this later.
    pub fn declared(&mut self, head: &IoHead) {
        let cost = self.costs[kind(head.op)].predict(head.len);
        if self.declared.insert(head.id, cost).is_none() {
            self.outstanding += cost;
        }
    }

    /// It won't, or it's here now.
    pub fn retracted(&mut self, id: IoId) {
        if !self.declared.is_empty()
            && let Some(cost) = self.declared.remove(&id)
        {
            self.outstanding -= cost;
        }
    }

    /// What a request would wait that comes after all accepted work. For a scheduler that reorders this is what it
    /// waits on average, not an upper bound.
    pub fn forecast(&self, at: Time, head: &IoHead, ports: Ports<'_>) -> Forecast {
        if self.outstanding == Span::ZERO && at.since(self.progress_since) > PROBE_AFTER {
            return ports.serve(Span::ZERO, Span::ZERO, Confidence::NONE);
        }
        let model = &self.costs[kind(head.op)];
        let in_service = self.at_device.first().map_or(Span::ZERO, |d| d.cost);
        let wait = self.outstanding.saturating_sub(at.since(self.progress_since).min(in_service));
        // With several at the device its share of the device's time is less than what it takes itself, which is seen
        // only when it's alone: what it takes among others has their service in it, which `wait` counts already.
        let alone = Span::from_nanos(model.alone_ns.max(0) as u64);
        let cost = model.predict(head.len);
        let service = if self.depth == 1 { cost } else { cost.max(alone) };
        ports.serve(wait, service, model.confidence())
    }
}
