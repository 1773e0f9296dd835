//! The layer contract: a policy's inputs, its permitted answers, and the rules that every layer keeps.
//!
//! A layer is a pure state machine. It does no I/O, reads no clock, draws no randomness, starts no thread. Its callers pass it
//! each event with the event's time; it answers through [`Actions`].
//!
//! # Overlaps
//!
//! *Changes* are writes, write-zeroes and trims. Below the [`crate::Front`] these rules hold at each target (a node's face, or a device):
//!
//! 1. Two changes in flight at one target never overlap. The sender of a change orders it: the front orders clients' requests by
//!    volume and range, and a layer orders its own changes with those that it passes on. [`crate::Stack`] asserts this rule on every
//!    request in debug builds and in every simulated pool.
//! 2. A read (read, prefetch, block status) may overlap a change in flight, whichever was sent first: a layer may have widened a client's
//!    read, or read for its own purposes. The answer's bytes in the overlap are then undefined: old, new, or a mix of both.
//! 3. The sender of such a read must not hand those bytes to a client, write them, or keep them. The bytes beside the overlap are defined.
//! 4. No layer below may keep those bytes either, or answer another read with them. A layer that keeps what reads bring watches the
//!    changes that it passes on while the read is in flight, as `PageCacheLayer` does.
//!
//! Rejected: ordering all reads with changes in every layer. A cache that reads whole extents would then delay a client's change of
//! other bytes behind a slow read, and promises would not know of that delay.

use crate::message::{Addressed, Message, OwnTerms};
use crate::work::{Work, Worked};
use plimsoll_base::{
    Class, Completion, Confidence, Data, Io, IoHead, IoId, Op, Outcome, Span, TenantId, Time, VolumeKey,
};
use std::any::Any;
use std::collections::VecDeque;

/// Index of one of a layer's ports below: 0 for a layer with one port.
pub type Port = u8;

/// By which of a layer's sides above a request enters it: 0 for a layer with one. See [`crate::Target::Face`].
pub type Face = u8;

/// The most nodes a stack may have: a request's path mask is 16 bits wide.
pub const NODES_MAX: usize = 16;

/// The most requests or volumes that [`Layer::check`] looks through.
pub const CHECKED_MAX: usize = 64;
/// The same of checks that look at each thing in turn, where simulations have many calls.
pub const CHECKED_EACH_MAX: usize = 8;

/// Limits and units that a layer or device offers to the one above it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Offer {
    /// Addressable bytes: a multiple of `block_bytes`.
    pub size_bytes: u64,
    /// Offsets and lengths of reads, writes and write-zeroes must be multiples of it. A power of two.
    pub block_bytes: u32,
    /// The largest read or write.
    pub io_bytes_max: u64,
    /// A write this large and aligned to it is all there or not at all after a power loss.
    pub atomic_bytes: u32,
    /// Number of requests that it takes at once; the layer above never has more outstanding.
    pub queue_max: u32,
}

/// Wait and service time of a request that would arrive at a given time, as far as known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Forecast {
    /// From its arrival until its own service starts, summed over the layers.
    pub wait: Span,
    /// Its own service.
    pub service: Span,
    /// Confidence of the forecast.
    pub confidence: Confidence,
    /// Each node's part of `wait`, by the node's number in the stack.
    pub parts: [Span; NODES_MAX],
    /// If true, the request is accepted even if its forecast exceeds its deadline (MT-M21: the first read of a page).
    pub never_refused: bool,
}

impl Forecast {
    /// No wait and no service: the forecast of a request that is answered at once.
    pub const NONE: Forecast = Forecast {
        wait: Span::ZERO,
        service: Span::ZERO,
        confidence: Confidence::CERTAIN,
        parts: [Span::ZERO; NODES_MAX],
        never_refused: false,
    };

    /// Adds another part of the same request: service times add up. The whole request is never refused if one part is never
    /// refused.
    #[must_use]
    pub fn and_part(self, part: &Forecast) -> Forecast {
        let never_refused = self.never_refused || part.never_refused;
        Forecast { service: self.service + part.service, never_refused, ..self }
    }

    /// Wait plus service.
    pub fn total(&self) -> Span {
        self.wait + self.service
    }
}

/// A layer's view of its ports when it forecasts.
#[derive(Clone, Copy)]
pub struct Ports<'a> {
    nodes: &'a [crate::stack::Node],
    me: usize,
    now: Time,
}

impl<'a> Ports<'a> {
    pub(crate) fn new(nodes: &'a [crate::stack::Node], me: usize, now: Time) -> Ports<'a> {
        Ports { nodes, me, now }
    }

    /// Returns the time at which the forecast is made. It rests on the state at that time, whenever the request is to arrive.
    pub fn now(&self) -> Time {
        self.now
    }

    /// Returns the forecast for `head` below `port`, if it arrived there at `at` and nothing else came before. `head` may be
    /// derived from a client's request, with another address or size. Pass `at = now` from a layer that keeps the layers below
    /// saturated: their queues will then be as long at `at` as they are now.
    pub fn ask(&self, port: Port, at: Time, head: &IoHead) -> Forecast {
        crate::stack::forecast_below(self.nodes, (self.me, port), self.now, at, head)
    }

    /// Returns `below` with this layer's own `wait` added.
    pub fn after(&self, wait: Span, mut below: Forecast) -> Forecast {
        below.wait += wait;
        below.parts[self.me] += wait;
        below
    }

    /// Returns the forecast of a layer that serves the request itself.
    pub fn serve(&self, wait: Span, service: Span, confidence: Confidence) -> Forecast {
        let mut f = Forecast { wait, service, confidence, ..Forecast::NONE };
        f.parts[self.me] = wait;
        f
    }
}

/// Phase of a layer. Of several layers the greatest is the pool's.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum LayerState {
    /// Serving.
    Ready,
    /// Serving without something that it lost; says what in its own status.
    Degraded,
    /// Reading what it needs from below; takes no client request yet.
    Recovering,
    /// Not serving.
    Failed,
}

/// Orders of a layer. The stack hands it out for the length of one call.
#[derive(Default)]
pub struct Actions {
    /// Orders still to be carried out, each with the node that gave it.
    pub(crate) queue: VecDeque<(usize, Action)>,
    /// The node that is being called.
    pub(crate) from: usize,
    pub(crate) wake_at: Option<Time>,
    pub(crate) next_id: u64,
    /// Reports that the engine hasn't taken yet.
    pub(crate) reports: VecDeque<Addressed>,
}

/// Reports that wait for the engine at most. A simulated pool may take none: beyond the limit, the oldest is dropped.
const REPORTS_MAX: usize = 64;

/// One order of a layer, for the stack to carry out in turn.
#[derive(Debug)]
pub(crate) enum Action {
    Submit {
        port: Port,
        io: Io,
    },
    Complete(Completion),
    Cancel {
        port: Port,
        id: IoId,
    },
    /// The head is boxed or it would make every order its size.
    Declare {
        port: Port,
        head: Box<IoHead>,
    },
    Retract {
        port: Port,
        id: IoId,
    },
    Work(Work),
}

impl Actions {
    /// Passes a request on (same id) or sends one that this layer made (an id from [`Actions::new_id`]).
    pub fn submit(&mut self, port: Port, io: Io) {
        self.order(Action::Submit { port, io });
    }

    fn order(&mut self, action: Action) {
        self.queue.push_back((self.from, action));
    }

    /// Ends a request that was submitted to this layer.
    pub fn complete(&mut self, c: Completion) {
        self.order(Action::Complete(c));
    }

    /// Ends a request with `outcome` that no device has seen.
    pub fn end(&mut self, io: Io, outcome: Outcome) {
        self.complete(Completion { io, outcome, dispatched_at: Time::NEVER });
    }

    /// Ends a request as done at once, its answer `data`.
    pub fn done(&mut self, mut io: Io, data: Data) {
        io.data = data;
        self.end(io, Outcome::Done);
    }

    /// Asks for [`Layer::wake`] at `at` or soon after. Only the earliest wish is kept; a layer that is woken asks again.
    pub fn wake_at(&mut self, at: Time) {
        self.wake_at = Some(self.wake_at.map_or(at, |t| t.min(at)));
    }

    /// Withdraws a request sent below. It still completes: as [`plimsoll_base::IoError::Cancelled`] if nothing of it
    /// reached a device, else as it would have.
    pub fn cancel(&mut self, port: Port, id: IoId) {
        self.order(Action::Cancel { port, id });
    }

    /// Declares work that is accepted here and not yet passed on, so that the forecasts of the layers below count it. The
    /// declaration ends when a request of that id is submitted or has ended, or at [`Actions::retract`].
    pub fn declare(&mut self, port: Port, head: IoHead) {
        self.order(Action::Declare { port, head: Box::new(head) });
    }

    /// Takes a declaration back.
    pub fn retract(&mut self, port: Port, id: IoId) {
        self.order(Action::Retract { port, id });
    }

    /// Orders a computation beside the pool's thread; [`Layer::worked`] gets the result. The layer bounds its outstanding
    /// work, isn't idle meanwhile, and charges the work to the tenant that it serves.
    pub fn work(&mut self, work: Work) {
        self.order(Action::Work(work));
    }

    /// Sends a report to the pool's owner, in this layer's own encoding. A report isn't repeated. [`Layer::told`] gets an answer,
    /// if the layer waits for one.
    pub fn report<M: Message>(&mut self, report: &M) {
        if self.reports.len() == REPORTS_MAX {
            self.reports.pop_front();
        }
        self.reports.push_back(Addressed::new(report));
    }

    /// Returns a new id for a request that this layer makes.
    pub fn new_id(&mut self) -> IoId {
        self.next_id += 1;
        IoId(self.next_id)
    }

    /// A part of `parent`'s range, or of what it was translated to: as [`Actions::child`], and counted as the client's if `parent` is
    /// (see [`IoHead::piece`]).
    pub fn piece(&mut self, parent: &IoHead, op: Op, offset: u64, len: u64, tag: u64) -> Io {
        self.child(&parent.piece(), op, offset, len, tag)
    }

    /// A request derived from `parent` with an id of its own and no payload: same tenant, volume, priority, deadline
    /// and path; whoever makes it sets the rest.
    pub fn child(&mut self, parent: &IoHead, op: Op, offset: u64, len: u64, tag: u64) -> Io {
        let mut head = *parent;
        head.id = self.new_id();
        (head.op, head.offset, head.len, head.tag) = (op, offset, len, tag);
        Io::new(head, Data::Absent)
    }
}

/// Promise and limits of a tenant.
#[derive(Clone, PartialEq, Debug)]
pub struct Terms {
    /// Its promise.
    pub class: Class,
    /// Its share relative to others': 1 to 10,000.
    pub weight: u32,
    /// Percentile that the tenant's deadlines are of, in hundredths of a percent (9900: p99), and the number of reads over
    /// which it holds. The other reads may be late. `None`: every read that would be late is refused.
    pub budget: Option<(u16, u32)>,
    /// Limit of its requests in flight.
    pub in_flight_max: u32,
    /// Terms that concern one layer each.
    pub own: OwnTerms,
}

impl Terms {
    /// Default of `in_flight_max`: no load that anybody expects.
    pub const IN_FLIGHT_DEFAULT: u32 = 1024;

    /// A class by its own weight, and nothing else.
    pub fn of(class: Class, in_flight_max: u32) -> Terms {
        Terms { weight: class.weight(), class, budget: None, in_flight_max, own: OwnTerms::default() }
    }
}

/// Facts about a volume that layers need beside its place.
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub struct VolumeTerms {
    /// Its size.
    pub size_bytes: u64,
    /// Tenant that is charged for work on the volume that no request asked for.
    pub tenant: u16,
    /// Terms that concern one layer each.
    pub own: OwnTerms,
}

/// A policy or a device model in a stack. The methods are called by the stack only; see the crate's documentation for
/// the clauses that every layer keeps.
pub trait Layer: Any + Send {
    /// A short name for metrics and traces: `fifo`, `cache`.
    fn name(&self) -> &'static str;

    /// Returns whether it serves requests itself, as a device does. Then the stack measures their service time.
    fn serves(&self) -> bool {
        false
    }

    /// Returns this layer's offer to the layer above, given the offers below (one per port, in order).
    fn offer(&self, below: &[Offer]) -> Offer;

    /// Returns the offer of a layer with several faces at one of them.
    fn offer_at(&self, face: Face, below: &[Offer]) -> Offer {
        let _ = face;
        self.offer(below)
    }

    /// Called once, bottom up, when all below are ready or degraded. A layer that must first read from below stays
    /// [`LayerState::Recovering`] until it has.
    fn start(&mut self, now: Time, below: &[Offer], out: &mut Actions) {
        let _ = (now, below, out);
    }

    /// Returns the layer's phase.
    fn state(&self) -> LayerState {
        LayerState::Ready
    }

    /// Forecasts the wait of `head`, here and below, if it arrived here at `at`. Changes nothing. Constant time.
    fn forecast(&self, at: Time, head: &IoHead, below: Ports<'_>) -> Forecast {
        below.ask(0, at, head)
    }

    /// Takes a request from above. It ends exactly once, through [`Actions::complete`].
    fn submit(&mut self, now: Time, io: Io, out: &mut Actions);

    /// Takes the end of a request that this layer sent below.
    fn completed(&mut self, now: Time, c: Completion, out: &mut Actions) {
        let _ = now;
        out.complete(c);
    }

    /// Takes the result of work that this layer ordered.
    fn worked(&mut self, now: Time, done: Worked, out: &mut Actions) {
        let _ = (now, out);
        unreachable!("{} ordered no work: {done:?}", self.name());
    }

    /// Handles the arrival of the time that this layer asked for.
    fn wake(&mut self, now: Time, out: &mut Actions) {
        let _ = (now, out);
    }

    /// Returns the form of a request below this layer (its address, its length), if it is passed on in one piece; else the form
    /// of its first piece.
    fn below_as(&self, head: &IoHead) -> IoHead {
        *head
    }

    /// A request was refused Busy above, by this forecast; it won't come. (Budgets, learning, swap-in in the background.)
    /// Its head is as this layer would have got it.
    fn refused(&mut self, now: Time, head: &IoHead, forecast: &Forecast, out: &mut Actions) {
        let _ = (now, head, forecast, out);
    }

    /// The request above is no longer wanted. If nothing of it reached a device it ends
    /// [`plimsoll_base::IoError::Cancelled`]; else it ends as it would have. Unknown ids are ignored.
    fn cancel(&mut self, now: Time, id: IoId, out: &mut Actions) {
        let _ = now;
        out.cancel(0, id);
    }

    /// Handles the failure of a device behind a port to make acknowledged data durable. Flushes of that device are not trusted
    /// any more.
    ///
    /// Returns whether layers above must be notified. Return false if no acknowledged durable write is on this device only (for
    /// example a write-through cache).
    fn durability_lost(&mut self, now: Time, port: Port) -> bool {
        let _ = (now, port);
        true
    }

    /// Returns whether the layer can trust flushes again after one failed, while it serves. False if only recovery can find out
    /// the device's content.
    fn can_trust_flush(&self) -> bool {
        true
    }

    /// Work that a layer above has accepted and will send later.
    fn declared(&mut self, head: &IoHead, out: &mut Actions) {
        out.declare(0, *head);
    }

    /// A declaration is taken back.
    fn retracted(&mut self, id: IoId, out: &mut Actions) {
        out.retract(0, id);
    }

    /// A tenant is declared, its terms change, or (`None`) it goes. Requests of tenants that were never declared may come, too.
    fn tenant(&mut self, now: Time, tenant: TenantId, terms: Option<&Terms>, out: &mut Actions) {
        let _ = (now, tenant, terms, out);
    }

    /// Handles a new volume, or a change of one.
    fn set_volume(&mut self, now: Time, volume: VolumeKey, terms: &VolumeTerms, out: &mut Actions) {
        let _ = (now, volume, terms, out);
    }

    /// Handles the deletion of a volume: no request of it is in flight, and none will come.
    fn forget_volume(&mut self, now: Time, volume: VolumeKey, out: &mut Actions) {
        let _ = (now, volume, out);
    }

    /// Returns whether the layer has own requests in flight for a volume that it was ordered to forget.
    fn is_using(&self, volume: VolumeKey) -> bool {
        let _ = volume;
        false
    }

    /// A message for this layer, in its own encoding (see [`crate::Message`]): an operator's order, a setting that changes. False if the
    /// layer doesn't understand it; nothing changes then.
    fn told(&mut self, now: Time, message: &[u8], out: &mut Actions) -> bool {
        let _ = (now, message, out);
        false
    }

    /// Handles the coming end of the pool: the layer begins no own work that can wait for the next start.
    fn stop(&mut self, now: Time, out: &mut Actions) {
        let _ = (now, out);
    }

    /// Stops own I/O and writes out all data that must survive. The layer is drained when [`Layer::is_idle`].
    fn drain(&mut self, now: Time, out: &mut Actions) {
        let _ = (now, out);
    }

    /// Returns whether it has nothing accepted, nothing in flight and nothing left to write out.
    fn is_idle(&self) -> bool;

    /// After a drain: what of clients' acknowledged changes couldn't be written out and is lost with the pool's end, in words for the operator.
    fn left_behind(&self) -> Option<String> {
        None
    }

    /// Asserts what holds between two calls: sums that are kept beside what they count, requests that are in one place each. The stack calls
    /// it after each call into the layer, in debug builds only. It looks at a constant number of things, or returns at once while there are
    /// more than [`CHECKED_MAX`]: a test with thousands of requests would take quadratic time.
    ///
    /// # Panics
    /// If it doesn't hold.
    fn check(&self) {}
}
