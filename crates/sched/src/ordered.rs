//! What schedulers have in common that keep requests in an order of their own and give them to a device one after the other.

use crate::device::DeviceQueue;
use crate::disk::{DiskModel, Ratio};
use plimsoll_base::{Completion, Confidence, Io, IoError, IoHead, IoId, Op, Outcome, Span, Time};
use plimsoll_stack::{Actions, Forecast, Layer, Offer, Ports};
use std::collections::BTreeMap;

/// Who goes next, and what goes before a request that comes now.
pub trait Order: Send + 'static {
    /// The scheduler's name.
    const NAME: &'static str;
    /// May what comes later go first?
    const REORDERS: bool;

    /// How many wait.
    fn len(&self) -> usize;

    /// Does none?
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// One more waits.
    fn add(&mut self, now: Time, io: Io, device: &DeviceQueue);

    /// The next one for the device, and what it was predicted to cost if it has waited for others.
    fn next(&mut self, now: Time) -> Option<(Io, Option<Span>)>;

    /// What goes before `head` of what waits here, and what it costs itself after that.
    fn in_front(&self, at: Time, head: &IoHead, device: &DeviceQueue) -> (Span, Span);

    /// Takes out a request that waits.
    fn withdraw(&mut self, id: IoId) -> Option<Io>;
}

/// How much longer requests wait than what is there when they come explains, as others come that go first: follows by 1/2 to
/// the power of this.
const PASSED_SHIFT: u32 = 6;
/// Of so many requests one is watched for that.
const WATCHED: u64 = 4;

/// A scheduler: requests in an order, before a device.
pub struct Ordered<O> {
    order: O,
    device: DeviceQueue,
    /// What was predicted of the wait of requests that are watched, and when that was.
    watched: BTreeMap<IoId, (Time, Span)>,
    passed: Ratio,
}

impl<O: Order> Ordered<O> {
    /// Nothing waits.
    pub(crate) fn before(order: O, device: DeviceQueue) -> Ordered<O> {
        Ordered { order, device, watched: BTreeMap::new(), passed: Ratio::NEUTRAL }
    }

    /// Requests waiting here and at the device.
    pub fn depths(&self) -> (usize, usize) {
        (self.order.len(), self.device.len())
    }

    /// What the predictions rest on.
    pub fn model(&self) -> &DiskModel {
        self.device.model()
    }

    /// How long a request that comes at `now` waits for what is there, and what it takes itself.
    fn expected(&self, now: Time, head: &IoHead) -> (Span, Span) {
        let (front, own) = self.order.in_front(now, head, &self.device);
        let queued = self.device.busy_cost(front + self.device.declared_cost());
        (self.device.busy_for(now) + queued, self.device.busy_cost(own))
    }

    /// A request that is watched has ended: it waited longer than what was there explains, or shorter.
    fn learn_passed(&mut self, now: Time, c: &Completion) {
        if let Some((since, expected)) = self.watched.remove(&c.io.id)
            && c.outcome.is_done()
        {
            self.passed.learn(now.since(since).as_nanos() as i64, expected.as_nanos() as i64, PASSED_SHIFT);
        }
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
        if self.device.is_forgotten(at) && self.order.is_empty() {
            return below.serve(Span::ZERO, Span::ZERO, Confidence::NONE);
        }
        let now = below.now();
        let (wait, own) = self.expected(now, head);
        let wait = if O::REORDERS { self.passed.apply(wait) } else { wait };
        // Until it comes, what is there is worked off.
        below.serve(wait.saturating_sub(at.since(now)), own, self.device.confidence())
    }

    fn submit(&mut self, now: Time, io: Io, out: &mut Actions) {
        self.device.retracted(io.id);
        if O::REORDERS && io.op == Op::Read && io.id.0.is_multiple_of(WATCHED) && !self.order.is_empty() {
            let (wait, own) = self.expected(now, &io);
            self.watched.insert(io.id, (now, wait + own));
        }
        self.order.add(now, io, &self.device);
        self.fill_device(now, out);
    }

    fn completed(&mut self, now: Time, mut c: Completion, out: &mut Actions) {
        self.device.completed(now, &mut c);
        if O::REORDERS {
            self.learn_passed(now, &c);
        }
        out.complete(c);
        self.fill_device(now, out);
    }

    fn cancel(&mut self, _now: Time, id: IoId, out: &mut Actions) {
        if let Some(io) = self.order.withdraw(id) {
            self.watched.remove(&id);
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
}
