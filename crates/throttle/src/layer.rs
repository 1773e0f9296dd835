//! The layer.

use crate::bucket::Bucket;
use crate::terms::ThrottleTerms;
use plimsoll_base::{Io, IoError, IoHead, IoId, Op, Outcome, Span, Time, VolumeKey};
use plimsoll_stack::layer::CHECKED_MAX;
use plimsoll_stack::{Actions, Forecast, Layer, Offer, Ports, VolumeTerms};
use std::collections::{BTreeMap, BTreeSet};

/// Bytes that a hint costs at most: those of the largest read. A hint has no payload, so its range may have gigabytes.
const HINT_BYTES_MAX: u64 = 32 << 20;
/// Requests that go on in one call: about a millisecond of the pool's thread. Others have their turn before the rest.
const LET_GO_MAX: usize = 256;
/// Steps of planning for each withdrawn request, on average. A queue of this length is planned anew at each withdrawal.
const STEPS_MAX: usize = 16;

/// See the crate's documentation.
///
/// Requests that wait here aren't declared below. They reach the device at their rate, and forecasts of other volumes would count all of
/// them as in front.
#[derive(Default)]
pub struct Throttle {
    /// Volumes with a limit, and those whose limits were lifted while requests waited.
    volumes: BTreeMap<VolumeKey, Capped>,
    /// Requests that wait, over all volumes: the volume, and the number in its queue.
    waiting: BTreeMap<IoId, (VolumeKey, u64)>,
    /// Times at which the first request of each volume's queue may go on.
    due: BTreeSet<(Time, VolumeKey)>,
    /// Requests that had to wait, since the start.
    came: u64,
    /// The pool ends: no volume gets a limit any more.
    stopping: bool,
}

/// Both limits of a volume.
#[derive(Clone, Copy, Debug)]
struct Buckets {
    requests: Option<Bucket>,
    bytes: Option<Bucket>,
}

impl Buckets {
    /// Empty ones.
    fn new(now: Time, terms: ThrottleTerms) -> Buckets {
        let new = |limit| Bucket::new(now, limit);
        Buckets { requests: terms.requests.map(new), bytes: terms.bytes.map(new) }
    }

    /// Changes the limits. A bucket that stays keeps its content.
    fn change(&mut self, now: Time, terms: ThrottleTerms) {
        let with = |old: Option<Bucket>, limit| match (old, limit) {
            (Some(old), Some(limit)) => Some(old.with(now, limit)),
            (None, Some(limit)) => Some(Bucket::new(now, limit)),
            (_, None) => None,
        };
        *self = Buckets { requests: with(self.requests, terms.requests), bytes: with(self.bytes, terms.bytes) };
    }

    /// The time from which on the next request may go on.
    fn free_at(&self) -> Time {
        let of = |b: &Option<Bucket>| b.as_ref().map_or(Time::ZERO, Bucket::free_at);
        of(&self.requests).max(of(&self.bytes))
    }

    /// A request goes on, which was due at `at`.
    fn add(&mut self, at: Time, bytes: u64) {
        self.requests.iter_mut().for_each(|b| b.add(at, 1));
        self.bytes.iter_mut().for_each(|b| b.add(at, bytes));
    }

    /// A request that was added won't go on.
    fn subtract(&mut self, bytes: u64) {
        self.requests.iter_mut().for_each(|b| b.subtract(1));
        self.bytes.iter_mut().for_each(|b| b.subtract(bytes));
    }
}

/// A volume with a limit.
struct Capped {
    terms: ThrottleTerms,
    buckets: Buckets,
    /// Requests that wait, by number in the order of their coming, each with the bytes that it costs.
    queue: BTreeMap<u64, (u64, Io)>,
    /// The queue's entry in [`Throttle::due`].
    due_at: Option<Time>,
    /// The buckets as they will be when the queue's last request has gone on. Each limit runs empty while the other one holds the queue:
    /// the wait is not the longer one of two.
    planned: Buckets,
    /// Requests withdrawn since the whole queue was planned.
    withdrawn: usize,
    held: u64,
    /// Time that requests waited, of those that went on.
    waited: Span,
}

/// A volume's limits and what they did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ThrottleStatus {
    /// The limits.
    pub terms: ThrottleTerms,
    /// Requests that wait now.
    pub waiting: usize,
    /// Requests that had to wait, since the start.
    pub held: u64,
    /// Time that they waited, in total.
    pub waited: Span,
}

/// Returns the bytes that a request costs; `None` if it passes.
fn cost(head: &IoHead) -> Option<u64> {
    match head.op {
        Op::Read | Op::Write => Some(head.len),
        Op::Cache => Some(head.len.min(HINT_BYTES_MAX)),
        Op::Trim | Op::WriteZeroes => Some(0),
        Op::Flush | Op::BlockStatus => None,
    }
}

impl Capped {
    fn new(now: Time, terms: ThrottleTerms) -> Capped {
        let buckets = Buckets::new(now, terms);
        Capped {
            terms,
            buckets,
            queue: BTreeMap::new(),
            due_at: None,
            planned: buckets,
            withdrawn: 0,
            held: 0,
            waited: Span::ZERO,
        }
    }

    /// The time from which on a request may go on that comes after all that wait.
    fn free_at(&self) -> Time {
        if self.queue.is_empty() { self.buckets.free_at() } else { self.planned.free_at() }
    }

    /// Adds a request to the queue.
    fn push(&mut self, number: u64, bytes: u64, io: Io) {
        if self.queue.is_empty() {
            (self.planned, self.withdrawn) = (self.buckets, 0);
        }
        self.planned.add(self.planned.free_at(), bytes);
        self.queue.insert(number, (bytes, io));
        self.held += 1;
    }

    /// Removes the queue's first request if it is due. Its cost is added at the time at which it was due: a thread that wakes late takes
    /// nothing of the rate, and the plan holds.
    fn pop(&mut self, now: Time) -> Option<Io> {
        let due_at = self.buckets.free_at();
        let (_, (bytes, io)) = if due_at <= now { self.queue.pop_first() } else { None }?;
        self.buckets.add(due_at, bytes);
        self.waited += now.since(io.entered_at);
        Some(io)
    }

    /// Removes a request from the queue.
    fn withdraw(&mut self, number: u64) -> Io {
        let (bytes, io) = self.queue.remove(&number).expect("it waits");
        // Exact with one limit. With both, the withdrawn request may have held the queue while the other limit ran empty.
        self.planned.subtract(bytes);
        self.withdrawn += 1;
        if self.withdrawn * STEPS_MAX >= self.queue.len() {
            self.plan();
        }
        io
    }

    /// Plans the whole queue anew, a step for each request in it.
    fn plan(&mut self) {
        (self.planned, self.withdrawn) = (self.buckets, 0);
        for (bytes, _) in self.queue.values() {
            self.planned.add(self.planned.free_at(), *bytes);
        }
    }
}

impl Throttle {
    /// No volume has a limit until [`Layer::set_volume`] says so.
    pub fn new() -> Throttle {
        Throttle::default()
    }

    /// Returns each volume that has a limit.
    pub fn status(&self) -> impl Iterator<Item = (VolumeKey, ThrottleStatus)> + '_ {
        self.volumes.iter().filter(|(_, v)| v.terms != ThrottleTerms::default()).map(|(key, v)| {
            let &Capped { terms, held, waited, .. } = v;
            (*key, ThrottleStatus { terms, waiting: v.queue.len(), held, waited })
        })
    }

    /// Lets a volume's requests go on as far as its limits allow, at most `most`, and asks to be woken for the next. Returns their number.
    fn let_go(&mut self, now: Time, volume: VolumeKey, most: usize, out: &mut Actions) -> usize {
        let Some(v) = self.volumes.get_mut(&volume) else { return 0 };
        if let Some(at) = v.due_at.take() {
            self.due.remove(&(at, volume));
        }
        let mut gone = 0;
        while gone < most
            && let Some(io) = v.pop(now)
        {
            self.waiting.remove(&io.id);
            out.submit(0, io);
            gone += 1;
        }
        if !v.queue.is_empty() {
            // Behind those that were due before, if it is due still.
            let at = v.buckets.free_at().max(now);
            v.due_at = Some(at);
            self.due.insert((at, volume));
            out.wake_at(at);
        } else if v.terms == ThrottleTerms::default() {
            self.volumes.remove(&volume);
        }
        gone
    }

    /// Gives a volume these limits. Waiting requests continue under the new limits.
    fn limit(&mut self, now: Time, volume: VolumeKey, terms: ThrottleTerms, out: &mut Actions) {
        if terms == ThrottleTerms::default() && !self.volumes.contains_key(&volume) {
            return;
        }
        let v = self.volumes.entry(volume).or_insert_with(|| Capped::new(now, terms));
        if v.terms != terms {
            v.terms = terms;
            v.buckets.change(now, terms);
            v.plan();
        }
        self.let_go(now, volume, LET_GO_MAX, out);
    }
}

impl Layer for Throttle {
    fn name(&self) -> &'static str {
        "throttle"
    }

    fn offer(&self, below: &[Offer]) -> Offer {
        below[0]
    }

    fn forecast(&self, at: Time, head: &IoHead, below: Ports<'_>) -> Forecast {
        let wait = match (self.volumes.get(&head.volume), cost(head)) {
            (Some(v), Some(_)) => v.free_at().since(at),
            _ => Span::ZERO,
        };
        below.after(wait, below.ask(0, at + wait, head))
    }

    fn submit(&mut self, now: Time, io: Io, out: &mut Actions) {
        let (Some(v), Some(bytes)) = (self.volumes.get_mut(&io.volume), cost(&io)) else { return out.submit(0, io) };
        let is_first = v.queue.is_empty();
        if is_first && v.buckets.free_at() <= now {
            v.buckets.add(now, bytes);
            return out.submit(0, io);
        }
        let volume = io.volume;
        self.came += 1;
        self.waiting.insert(io.id, (volume, self.came));
        v.push(self.came, bytes, io);
        if is_first {
            self.let_go(now, volume, LET_GO_MAX, out);
        }
    }

    fn wake(&mut self, now: Time, out: &mut Actions) {
        let mut left = LET_GO_MAX;
        while left > 0
            && let Some((_, volume)) = self.due.first().copied().filter(|(at, _)| *at <= now)
        {
            left -= self.let_go(now, volume, left, out);
        }
        if let Some((at, _)) = self.due.first() {
            out.wake_at(*at);
        }
    }

    fn cancel(&mut self, now: Time, id: IoId, out: &mut Actions) {
        let Some((volume, number)) = self.waiting.remove(&id) else { return out.cancel(0, id) };
        let v = self.volumes.get_mut(&volume).expect("requests wait for volumes with a limit");
        let io = v.withdraw(number);
        let was_last = v.queue.is_empty();
        out.end(io, Outcome::Failed(IoError::Cancelled));
        if was_last {
            self.let_go(now, volume, LET_GO_MAX, out);
        }
    }

    fn set_volume(&mut self, now: Time, volume: VolumeKey, terms: &VolumeTerms, out: &mut Actions) {
        if !self.stopping {
            self.limit(now, volume, terms.own.get().unwrap_or_default(), out);
        }
    }

    /// The volume is closed: whatever waits is refused below.
    fn forget_volume(&mut self, now: Time, volume: VolumeKey, out: &mut Actions) {
        self.limit(now, volume, ThrottleTerms::default(), out);
    }

    fn is_using(&self, volume: VolumeKey) -> bool {
        self.volumes.get(&volume).is_some_and(|v| !v.queue.is_empty())
    }

    /// A pool that ends waits for nobody's rate.
    fn stop(&mut self, now: Time, out: &mut Actions) {
        self.stopping = true;
        for volume in self.volumes.keys().copied().collect::<Vec<_>>() {
            self.limit(now, volume, ThrottleTerms::default(), out);
        }
    }

    fn is_idle(&self) -> bool {
        self.waiting.is_empty()
    }

    fn check(&self) {
        if self.waiting.len() > CHECKED_MAX || self.volumes.len() > CHECKED_MAX {
            return;
        }
        let queued: usize = self.volumes.values().map(|v| v.queue.len()).sum();
        assert_eq!(self.waiting.len(), queued, "a request waits in two queues, or in none");
        let due = self.volumes.iter().filter_map(|(key, v)| v.due_at.map(|at| (at, *key)));
        assert!(due.collect::<BTreeSet<_>>() == self.due, "a queue's turn is known in one place only");
        assert!(self.volumes.values().all(|v| v.queue.is_empty() || v.due_at.is_some()), "a queue has no turn");
    }
}
