//! The layer: requests wait in their tenants' queues until a core is theirs.

use crate::admission::{self, Fit, Planned};
use crate::bound::is_bounded;
use crate::config::CoresConfig;
use crate::control::{CoresControl, CoresReport};
use crate::policy::{self, Policy};
use crate::queue::{CoreChange, Queue, Queues, Waiting};
use crate::status::{CoresStatus, QueueStatus};
use plimsoll_base::{Completion, Confidence, Data, Io, IoError, IoHead, IoId, Outcome, Span, TenantId, Time};
use plimsoll_stack::{Actions, Forecast, Layer, Message, Offer, Ports, Terms};
use slab::Slab;

/// Below this many requests measured, a queue's wait is a guess.
const CONFIDENT_AFTER: u64 = 64;

/// Least interval between two searches for passed deadlines among waiting requests, and the most requests that one ends. If more are late,
/// others have their turn before the rest.
const LATE_EVERY: Span = Span::from_millis(1);
const LATE_MAX: usize = 256;

/// A request in service.
struct Served {
    /// The tag it came with.
    tag: u64,
    queue: u16,
    /// The window it was of; 0 without windows.
    window: u64,
    began_at: Time,
    arrived_at: Time,
    /// The request that it's a piece of.
    of: Option<u32>,
    /// The bound on best effort's changes has it in flight.
    is_bounded: bool,
}

/// A request that goes below in pieces, one after the other.
struct Split {
    head: IoHead,
    /// Pieces that haven't ended, the rest that waits among them.
    outstanding: u32,
    failed: Option<Outcome>,
    dispatched_at: Time,
}

/// See the module's documentation.
///
/// Requests that wait here are not declared below. A request that passes this layer by reaches the device before all that wait;
/// those in front of it are there already. So each request counts once: here while it waits, below once it is there.
pub struct Cores {
    config: CoresConfig,
    queues: Queues,
    policy: Box<dyn Policy>,
    served: Slab<Served>,
    splits: Slab<Split>,
    revoked: u64,
    /// Time of the last search for passed deadlines.
    looked_at: Time,
}

impl Cores {
    /// The layer of a configuration; tenants are declared later.
    ///
    /// # Panics
    /// If the configuration isn't within its ranges ([`CoresConfig::check`]).
    pub fn new(config: CoresConfig) -> Cores {
        config.check().expect("the configuration was checked");
        Cores {
            queues: Queues::new(config.cores, config.depth, config.history_max),
            policy: policy::build(&config.policy),
            served: Slab::new(),
            splits: Slab::new(),
            revoked: 0,
            looked_at: Time::ZERO,
            config,
        }
    }

    /// Declares a tenant, changes its terms, or forgets it.
    pub fn set_tenant(&mut self, now: Time, tenant: TenantId, terms: Option<&Terms>) {
        if self.queues.set_tenant(tenant, terms) {
            self.policy.queues_changed(now, &mut self.queues);
        }
    }

    /// Returns whether these objectives would fit beside those already promised, for a tenant with a given number of requests
    /// in flight. `except` is a tenant whose terms these would replace, `planned` what is to be set together with them.
    pub fn fit(&self, terms: &Terms, except: Option<TenantId>, planned: &[Planned]) -> Fit {
        admission::fit(&self.queues, terms, except, planned)
    }

    /// Takes the times that a device's profile lets expect of requests: objectives are judged by them until requests were measured. Cores are
    /// given by measured times only.
    pub fn expect(&mut self, times: &[Span]) {
        self.queues.expect(times);
    }

    /// The queues, to inspect.
    pub fn queues(&self) -> &Queues {
        &self.queues
    }

    /// The policy, to inspect.
    pub fn policy(&self) -> &dyn Policy {
        self.policy.as_ref()
    }

    /// The last changes of core numbers, oldest first; they are forgotten.
    pub fn take_history(&mut self) -> Vec<CoreChange> {
        self.queues.take_history()
    }

    /// Returns the present state.
    pub fn status(&self, now: Time) -> CoresStatus {
        let queues = self.queues.all().iter().enumerate();
        CoresStatus {
            policy: self.policy.name(),
            cores: self.queues.cores,
            depth: self.queues.depth,
            busy: self.queues.busy,
            unowned: self.queues.unowned(),
            revoked: self.revoked,
            bound: self.policy.write_bound().map(|b| b.status()),
            queues: queues.map(|(at, q)| self.queue_status(now, at, q)).collect(),
        }
    }

    fn queue_status(&self, now: Time, at: usize, q: &Queue) -> QueueStatus {
        let fit = q.is_critical().then(|| admission::standing(&self.queues, q));
        let present = q.is_critical().then(|| admission::present(&self.queues, q, now));
        let of = QueueStatus { fit, present, ..QueueStatus::of(now, q, self.policy.windows(at), self.queues.depth) };
        let Some(bound) = self.policy.write_bound() else { return of };
        let is_held = |head: &IoHead| !q.is_critical() && is_bounded(head) && bound.may_pass_at(now) != Time::ZERO;
        QueueStatus {
            held: q.waiting().front().filter(|w| is_held(&w.io.head)).map(|w| now.since(w.arrived_at)),
            is_deciding: bound.is_decided_by(at),
            is_hopeless: q.missed.is_some(),
            ..of
        }
    }

    /// Serves what can be served, and ends at most `left` requests that are too late for it.
    fn fill(&mut self, now: Time, mut left: usize, out: &mut Actions) {
        while left > 0
            && self.queues.has_free_slot()
            && let Some(at) = self.policy.next(now, &mut self.queues)
        {
            let piece_bytes = self.policy.piece_bytes(at, &self.queues);
            let mut waiting = self.queues.take(at);
            if waiting.io.len > piece_bytes {
                waiting = self.split(at, waiting, piece_bytes, out);
            }
            if self.is_too_late(now, &waiting.io) {
                self.revoke(now, at, waiting.io, out);
                left -= 1;
                continue;
            }
            let window = self.policy.windows(at).map_or(0, |w| w.number);
            let (tag, arrived_at) = (waiting.io.tag, waiting.arrived_at);
            let is_bounded = self.policy.sent(now, at, &waiting.io.head, &self.queues);
            let of = waiting.of;
            let served = Served { tag, queue: at as u16, window, began_at: now, arrived_at, of, is_bounded };
            waiting.io.head.tag = self.served.insert(served) as u64;
            out.submit(0, waiting.io);
        }
        let due = self.policy.wake_at().min(self.late_at());
        if due.is_set() {
            out.wake_at(due.max(now)); // what it asked for may be over: it's told at once
        }
        if left == 0 {
            out.wake_at(now); // a core may be free, and more may be late
        }
        self.check();
    }

    /// The first `len` bytes of a request; the rest waits at the front of the queue.
    fn split(&mut self, at: usize, whole: Waiting, len: u64, out: &mut Actions) -> Waiting {
        let Waiting { arrived_at, serial, io, of } = whole;
        let of = of.unwrap_or_else(|| {
            let split = Split { head: io.head, outstanding: 1, failed: None, dispatched_at: Time::NEVER };
            self.splits.insert(split) as u32
        });
        self.splits[of as usize].outstanding += 1;
        let mut part = |from: u64, len: u64| {
            let mut part = out.piece(&io.head, io.op, io.offset + from, len, 0);
            part.data = io.data.slice(io.len, from, len);
            Waiting { arrived_at, serial, io: part, of: Some(of) }
        };
        let first = part(0, len);
        self.queues.push_rest(at, part(len, io.len - len));
        first
    }

    /// A piece of `of` from queue `at` has ended. After one that failed, the rest isn't begun.
    fn piece_ended(&mut self, now: Time, at: usize, of: u32, c: Completion, out: &mut Actions) {
        let split = &mut self.splits[of as usize];
        split.outstanding -= 1;
        split.dispatched_at = split.dispatched_at.min(c.dispatched_at);
        if !c.outcome.is_done() {
            split.failed = Some(c.outcome);
            if let Some(rest) = self.queues.take_rest(at, of) {
                split.outstanding -= 1;
                self.policy.withdrawn(now, at, rest.serial, &mut self.queues);
            }
        }
        self.end_split(of as usize, out);
    }

    /// Ends a split request if nothing of it waits or is below any more.
    fn end_split(&mut self, of: usize, out: &mut Actions) {
        if self.splits[of].outstanding == 0 {
            let Split { head, failed, dispatched_at, .. } = self.splits.remove(of);
            let outcome = failed.unwrap_or(Outcome::Done);
            out.complete(Completion { io: Io::new(head, Data::Absent), outcome, dispatched_at });
        }
    }

    /// A split request is no longer wanted: what still waits of it isn't begun. It ends when its pieces below have.
    fn withdraw_rest(&mut self, now: Time, of: usize, out: &mut Actions) {
        for at in 0..self.queues.len() {
            let Some(rest) = self.queues.take_rest(at, of as u32) else { continue };
            self.policy.withdrawn(now, at, rest.serial, &mut self.queues);
            let split = &mut self.splits[of];
            split.outstanding -= 1;
            split.failed.get_or_insert(Outcome::Failed(IoError::Cancelled));
            return self.end_split(of, out);
        }
    }

    /// Returns whether it is ended when its deadline passes while it waits. Nothing of it has reached a device.
    fn may_revoke(&self, io: &Io) -> bool {
        self.config.revoke_late && io.may_be_refused()
    }

    fn is_too_late(&self, now: Time, io: &Io) -> bool {
        self.may_revoke(io) && now > io.deadline
    }

    /// Returns the time of the next search for passed deadlines; [`Time::NEVER`] if none is waited for.
    fn late_at(&self) -> Time {
        let passed = |deadline: Time| (deadline + Span::from_nanos(1)).max(self.looked_at + LATE_EVERY);
        self.queues.first_due().map_or(Time::NEVER, passed)
    }

    /// Ends what waits and is too late: who has no core would else hear of it when it gets one. Returns how many more this call may end.
    fn end_late(&mut self, now: Time, out: &mut Actions) -> usize {
        for ended in 0..LATE_MAX {
            let Some((at, w)) = self.queues.take_late(now) else {
                self.looked_at = now;
                return LATE_MAX - ended;
            };
            self.revoked += 1;
            self.policy.withdrawn(now, at, w.serial, &mut self.queues);
            let wait = now.since(w.arrived_at);
            out.end(w.io, Outcome::Busy { wait, confidence: Confidence::CERTAIN });
        }
        0
    }

    fn revoke(&mut self, now: Time, at: usize, io: Io, out: &mut Actions) {
        self.revoked += 1;
        self.queues.release(at);
        let waited = now.since(io.arrived_at);
        self.policy.ended(now, at, waited, &mut self.queues);
        out.end(io, Outcome::Busy { wait: waited, confidence: Confidence::CERTAIN });
    }

    fn check(&self) {
        let q = &self.queues;
        assert_eq!(q.busy as usize, self.served.len(), "a core is lost, or served twice");
        debug_assert_eq!(q.all().iter().map(|q| q.in_service).sum::<u32>(), q.busy);
        debug_assert!(q.unowned() <= q.cores);
        q.check();
    }
}

fn report(q: &Queue) -> CoresReport {
    let tenants = q.tenants.iter().map(|(id, _)| id.0).collect();
    match q.missed {
        Some(missed) => CoresReport::Unkept { tenants, missed },
        None => CoresReport::KeptAgain { tenants },
    }
}

impl Layer for Cores {
    fn name(&self) -> &'static str {
        "cores"
    }

    fn offer(&self, below: &[Offer]) -> Offer {
        Offer { queue_max: u32::MAX, ..below[0] }
    }

    fn start(&mut self, _now: Time, below: &[Offer], _out: &mut Actions) {
        self.queues.slots_max = below[0].queue_max.max(1);
    }

    fn tenant(&mut self, now: Time, tenant: TenantId, terms: Option<&Terms>, out: &mut Actions) {
        self.set_tenant(now, tenant, terms);
        self.fill(now, LATE_MAX, out);
    }

    fn forecast(&self, at: Time, head: &IoHead, below: Ports<'_>) -> Forecast {
        let Some(queue) = self.queues.known(head.tenant) else { return below.ask(0, at, head) };
        let wait = self.policy.wait(at, queue, &self.queues);
        // What leaves below while it waits here is replaced from here: it finds as much there as is there now.
        let mut forecast = below.after(wait, below.ask(0, at, head));
        if wait > Span::ZERO && self.queues.get(queue).service.count() < CONFIDENT_AFTER {
            forecast.confidence = Confidence::NONE;
        }
        forecast
    }

    fn submit(&mut self, now: Time, io: Io, out: &mut Actions) {
        let known = self.queues.known(io.tenant).is_some();
        let at = self.queues.push(io);
        self.queues.note_load(now, at);
        if !known {
            self.policy.queues_changed(now, &mut self.queues);
        }
        self.policy.arrived(now, at, &mut self.queues);
        self.fill(now, LATE_MAX, out);
        let revoke_late = self.config.revoke_late;
        self.queues.keep_last(at, |io| revoke_late && io.may_be_refused());
        let late_at = self.late_at();
        if late_at.is_set() {
            out.wake_at(late_at.max(now));
        }
    }

    fn completed(&mut self, now: Time, mut c: Completion, out: &mut Actions) {
        let served = self.served.remove(c.io.tag as usize);
        c.io.head.tag = served.tag;
        let at = usize::from(served.queue);
        self.queues.release(at);
        let (response, took) = (now.since(served.arrived_at), now.since(served.began_at));
        if c.outcome.is_done() {
            let q = self.queues.get_mut(at);
            q.service.record(took);
            q.ended(response, served.window);
            q.done_bytes += c.io.len;
            if q.is_critical()
                && self.policy.write_bound().is_some_and(|b| b.is_blameless(served.arrived_at))
                && q.ended_alone(response)
            {
                out.report(&report(q));
            }
        }
        if served.is_bounded {
            self.policy.left(now, &c.io.head, took);
        }
        self.policy.ended(now, at, response, &mut self.queues);
        match served.of {
            Some(of) => self.piece_ended(now, at, of, c, out),
            None => out.complete(c),
        }
        self.fill(now, LATE_MAX, out);
    }

    fn wake(&mut self, now: Time, out: &mut Actions) {
        self.policy.wake(now, &mut self.queues);
        let left = if now >= self.late_at() { self.end_late(now, out) } else { LATE_MAX };
        self.fill(now, left, out);
    }

    fn cancel(&mut self, now: Time, id: IoId, out: &mut Actions) {
        if let Some((at, waiting)) = self.queues.withdraw(id) {
            self.policy.withdrawn(now, at, waiting.serial, &mut self.queues);
            out.end(waiting.io, Outcome::Failed(IoError::Cancelled));
            return self.fill(now, LATE_MAX, out);
        }
        if let Some((of, _)) = self.splits.iter().find(|(_, split)| split.head.id == id) {
            self.withdraw_rest(now, of, out);
            return self.fill(now, LATE_MAX, out);
        }
        out.cancel(0, id);
    }

    fn stop(&mut self, now: Time, out: &mut Actions) {
        self.policy.hold_no_more();
        self.fill(now, LATE_MAX, out);
    }

    fn told(&mut self, _now: Time, message: &[u8], _out: &mut Actions) -> bool {
        let Some(CoresControl::Slack { low, high, poll_windows }) = CoresControl::decode(message) else { return false };
        self.policy.set_slack(low, high, poll_windows);
        true
    }

    fn is_idle(&self) -> bool {
        self.served.is_empty() && self.splits.is_empty() && self.queues.all().iter().all(|q| q.waiting().is_empty())
    }
}
