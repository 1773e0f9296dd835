//! The predictor that chooses itself: first in, first out, over a device of which only its outside is known.
//!
//! ```text
//!         ┌─ costs of requests and the queue (from a profile, or learned) ─┐
//!  read ─►├─ rates and credit of a throttle ───────────────────────────────┤ each: a spread ─► chance to be late ─► judge
//!         ├─ how long reads take that look so ─────────────────────────────┤                                        │
//!         └─ how likely reads are late that look so ───────────────────────┘       quantile of the best: the forecast
//! ```
//! Each read has a row in each of some small tables. These features choose the rows:
//!
//! * the forecasts of the other candidates;
//! * the part of the drive that the read needs;
//! * the outstanding requests and their age;
//! * the times of the last reads and writes;
//! * bytes written lately, flushes, and the time since.
//!
//! Every candidate gives every read a probability of being late. The judge looks at recent reads. For each candidate it counts the late
//! reads that the candidate would have found within the budget of needless refusals. The best candidate forecasts. Until there are
//! enough samples, the costs forecast by themselves, from a profile or as far as they are learned.

mod judge;
mod predictor;
mod rate;
mod scene;
mod spread;
mod tables;

pub use predictor::{AutoPredictor, Candidate};

use crate::device::{DeviceQueue, Discipline};
use crate::disk::DiskModel;
use crate::noop::Arrivals;
use crate::ordered::Order;
use plimsoll_base::{Completion, Confidence, Io, IoError, IoHead, IoId, Op, Outcome, Span, Time};
use plimsoll_stack::{Actions, Forecast, Layer, Offer, Ports};

/// Settings of the predictor that chooses itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AutoConfig {
    /// Requests at the device at once, at least 1.
    pub depth: u32,
    /// The device's order of requests, for the costs.
    pub discipline: Discipline,
    /// Of a thousand reads that would be in time, the number that may be refused.
    pub needless_permille: u32,
    /// Layers above leave room for the errors of forecasts ([`crate::room`]): no forecast is then less than a read's median time, whatever the
    /// budget of needless refusals.
    pub has_room: bool,
}

impl Default for AutoConfig {
    fn default() -> AutoConfig {
        AutoConfig { depth: 32, discipline: Discipline::Fifo, needless_permille: 10, has_room: false }
    }
}

/// See the module's documentation.
pub struct Auto {
    order: Arrivals,
    device: DeviceQueue,
    predictor: AutoPredictor,
    /// Each request's own tag, while its tag here is the predictor's key.
    tags: Vec<u64>,
}

impl Auto {
    /// An empty queue over a device that costs what `model` says, as far as that is known.
    ///
    /// # Panics
    /// If the depth is zero.
    pub fn new(config: AutoConfig, model: DiskModel) -> Auto {
        Auto {
            order: Arrivals::default(),
            device: DeviceQueue::new(model, config.discipline, config.depth),
            predictor: AutoPredictor::new(config.needless_permille, config.has_room),
            tags: Vec::new(),
        }
    }

    /// Requests waiting here and at the device.
    pub fn depths(&self) -> (usize, usize) {
        (self.order.len(), self.device.len())
    }

    /// Source of the costs.
    pub fn model(&self) -> &DiskModel {
        self.device.model()
    }

    /// Its learned state.
    pub fn predictor(&self) -> &AutoPredictor {
        &self.predictor
    }

    /// Confidence of its forecasts.
    pub fn confidence(&self) -> Confidence {
        self.predictor.confidence().unwrap_or(self.device.confidence())
    }

    /// Wait and service time, by the costs, of a request that comes at `now`.
    fn by_costs(&self, now: Time, head: &IoHead) -> (Span, Span) {
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

    /// Gives a request its own tag back; returns the predictor's key.
    fn untag(&self, io: &mut Io) -> usize {
        let key = io.tag as usize;
        io.head.tag = self.tags[key];
        key
    }
}

impl Layer for Auto {
    fn name(&self) -> &'static str {
        "auto"
    }

    fn offer(&self, below: &[Offer]) -> Offer {
        Offer { queue_max: u32::MAX, ..below[0] }
    }

    fn start(&mut self, _now: Time, below: &[Offer], _out: &mut Actions) {
        self.device.limit_depth(below[0].queue_max);
    }

    fn forecast(&self, at: Time, head: &IoHead, below: Ports<'_>) -> Forecast {
        let now = below.now();
        let (wait, own) = self.by_costs(now, head);
        // Until it comes, what is there is worked off.
        let wait = wait.saturating_sub(at.since(now));
        let forecast = if head.op == Op::Read { self.predictor.predict(at, head, wait + own) } else { None };
        let Some(total) = forecast else {
            let (own, confidence) = self.device.own_part(at, wait, head, own);
            return below.serve(wait, own, confidence);
        };
        if head.deadline.is_set() && at + total > head.deadline && self.predictor.is_forgotten(at) {
            let least = self.model().measured_cost(at, self.device.arm_after(), head);
            return below.serve(wait, least, Confidence::NONE);
        }
        let own = own.min(total);
        below.serve(total - own, own, self.confidence())
    }

    fn refused(&mut self, now: Time, head: &IoHead, _forecast: &Forecast, _out: &mut Actions) {
        let (wait, own) = self.by_costs(now, head);
        self.predictor.refused(now, head, wait + own);
    }

    fn submit(&mut self, now: Time, mut io: Io, out: &mut Actions) {
        self.device.retracted(io.id);
        let (wait, own) = self.by_costs(now, &io);
        let key = self.predictor.sent(now, &io, wait + own);
        if self.tags.len() <= key {
            self.tags.resize(key + 1, 0);
        }
        self.tags[key] = std::mem::replace(&mut io.head.tag, key as u64);
        self.order.add(now, io, &self.device);
        self.fill_device(now, out);
    }

    fn completed(&mut self, now: Time, mut c: Completion, out: &mut Actions) {
        self.device.completed(now, &mut c);
        let key = self.untag(&mut c.io);
        if c.outcome.is_done() {
            self.predictor.ended(now, key);
        } else {
            self.predictor.withdrawn(key);
        }
        out.complete(c);
        self.fill_device(now, out);
    }

    fn cancel(&mut self, _now: Time, id: IoId, out: &mut Actions) {
        if let Some(mut io) = self.order.withdraw(id) {
            let key = self.untag(&mut io);
            self.predictor.withdrawn(key);
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
