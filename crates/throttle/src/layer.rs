//! The layer.

use crate::bucket::Bucket;
use crate::terms::ThrottleTerms;
use plimsoll_base::{Io, IoError, IoHead, IoId, Op, Outcome, Span, Time, VolumeKey};
use plimsoll_stack::{Actions, Forecast, Layer, Offer, Ports, VolumeTerms};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// See the crate's documentation.
#[derive(Default)]
pub struct Throttle {
    /// Volumes with a limit.
    volumes: BTreeMap<VolumeKey, Capped>,
    /// Requests that wait, over all volumes.
    waiting: BTreeMap<IoId, VolumeKey>,
    /// When the first request of each volume's queue may go on.
    due: BTreeSet<(Time, VolumeKey)>,
}

/// Both limits of a volume.
#[derive(Clone, Copy, Debug, Default)]
struct Buckets {
    requests: Option<Bucket>,
    bytes: Option<Bucket>,
}

impl Buckets {
    fn new(terms: ThrottleTerms) -> Buckets {
        Buckets { requests: terms.requests.map(Bucket::new), bytes: terms.bytes.map(Bucket::new) }
    }

    /// Changes the limits. A bucket that stays is as far from empty as before, in time.
    fn change(&mut self, terms: ThrottleTerms) {
        let with = |old: Option<Bucket>, limit| match (old, limit) {
            (Some(old), Some(limit)) => Some(old.with(limit)),
            (None, Some(limit)) => Some(Bucket::new(limit)),
            (_, None) => None,
        };
        *self = Buckets { requests: with(self.requests, terms.requests), bytes: with(self.bytes, terms.bytes) };
    }

    /// The earliest time at which a request may go on.
    fn allows_at(&self, now: Time) -> Time {
        let of = |b: Option<Bucket>| b.map_or(now, |b| b.allows_at(now));
        of(self.requests).max(of(self.bytes))
    }

    /// A request goes on.
    fn add(&mut self, now: Time, bytes: u64) {
        self.requests.iter_mut().for_each(|b| b.add(now, 1));
        self.bytes.iter_mut().for_each(|b| b.add(now, bytes));
    }
}

/// A volume with a limit.
struct Capped {
    terms: ThrottleTerms,
    buckets: Buckets,
    queue: VecDeque<Io>,
    /// When the queue's first request may go on; its entry in [`Throttle::due`].
    due_at: Option<Time>,
    /// The buckets as they will be when the queue's last request has gone on, and when that is. Each limit runs empty while the other
    /// one holds the queue: the wait is not the longer one of two.
    planned: (Time, Buckets),
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
        Op::Read | Op::Write | Op::Cache => Some(head.len),
        Op::Trim | Op::WriteZeroes => Some(0),
        Op::Flush | Op::BlockStatus => None,
    }
}

impl Capped {
    fn new(terms: ThrottleTerms) -> Capped {
        let buckets = Buckets::new(terms);
        Capped {
            terms,
            buckets,
            queue: VecDeque::new(),
            due_at: None,
            planned: (Time::ZERO, buckets),
            held: 0,
            waited: Span::ZERO,
        }
    }

    /// The earliest time at which a request may go on that comes after all that wait.
    fn allows_next_at(&self, now: Time) -> Time {
        match self.queue.is_empty() {
            true => self.buckets.allows_at(now),
            false => self.planned.1.allows_at(now.max(self.planned.0)),
        }
    }

    /// Plans the whole queue anew. Costs as much as the queue is long.
    fn plan(&mut self, now: Time) {
        let mut buckets = self.buckets;
        let mut at = now;
        for io in &self.queue {
            at = buckets.allows_at(at);
            buckets.add(at, cost(io).expect("only requests that cost something wait"));
        }
        self.planned = (at, buckets);
    }
}

impl Throttle {
    /// No volume has a limit until [`Layer::set_volume`] says so.
    pub fn new() -> Throttle {
        Throttle::default()
    }

    /// Returns each volume that has a limit.
    pub fn status(&self) -> impl Iterator<Item = (VolumeKey, ThrottleStatus)> + '_ {
        self.volumes.iter().map(|(key, v)| {
            let &Capped { terms, held, waited, .. } = v;
            (*key, ThrottleStatus { terms, waiting: v.queue.len(), held, waited })
        })
    }

    /// Lets a volume's requests go on as far as its limits allow, and asks to be woken for the next.
    fn let_go(&mut self, now: Time, volume: VolumeKey, out: &mut Actions) {
        let Some(v) = self.volumes.get_mut(&volume) else { return };
        if let Some(at) = v.due_at.take() {
            self.due.remove(&(at, volume));
        }
        while let Some(io) = v.queue.front() {
            let at = v.buckets.allows_at(now);
            if at > now {
                v.due_at = Some(at);
                self.due.insert((at, volume));
                break;
            }
            let bytes = cost(io).expect("only requests that cost something wait");
            self.waiting.remove(&io.id);
            v.waited += now.since(io.entered_at);
            v.buckets.add(now, bytes);
            out.submit(0, v.queue.pop_front().expect("just seen"));
        }
        if let Some((at, _)) = self.due.first() {
            out.wake_at(*at);
        }
    }

    /// Takes a volume's limits away: everything that waits goes on.
    fn release(&mut self, volume: VolumeKey, out: &mut Actions) {
        let Some(v) = self.volumes.remove(&volume) else { return };
        if let Some(at) = v.due_at {
            self.due.remove(&(at, volume));
        }
        for io in v.queue {
            self.waiting.remove(&io.id);
            out.submit(0, io);
        }
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
            (Some(v), Some(_)) => v.allows_next_at(at).since(at),
            _ => Span::ZERO,
        };
        below.after(wait, below.ask(0, at + wait, head))
    }

    fn submit(&mut self, now: Time, io: Io, out: &mut Actions) {
        let (Some(v), Some(bytes)) = (self.volumes.get_mut(&io.volume), cost(&io)) else { return out.submit(0, io) };
        if v.queue.is_empty() && v.buckets.allows_at(now) <= now {
            v.buckets.add(now, bytes);
            return out.submit(0, io);
        }
        out.declare(0, io.head);
        v.held += 1;
        self.waiting.insert(io.id, io.volume);
        let volume = io.volume;
        let at = v.allows_next_at(now);
        if v.queue.is_empty() {
            v.planned.1 = v.buckets;
        }
        v.planned.0 = at;
        v.planned.1.add(at, bytes);
        v.queue.push_back(io);
        self.let_go(now, volume, out);
    }

    fn wake(&mut self, now: Time, out: &mut Actions) {
        while let Some((at, volume)) = self.due.first().copied().filter(|(at, _)| *at <= now) {
            self.due.remove(&(at, volume));
            self.let_go(now, volume, out);
        }
        if let Some((at, _)) = self.due.first() {
            out.wake_at(*at);
        }
    }

    fn cancel(&mut self, now: Time, id: IoId, out: &mut Actions) {
        let Some(volume) = self.waiting.remove(&id) else { return out.cancel(0, id) };
        let v = self.volumes.get_mut(&volume).expect("requests wait for volumes with a limit");
        let at = v.queue.iter().position(|io| io.id == id).expect("it waits");
        let io = v.queue.remove(at).expect("just found");
        v.plan(now);
        out.end(io, Outcome::Failed(IoError::Cancelled));
        self.let_go(now, volume, out);
    }

    fn set_volume(&mut self, now: Time, volume: VolumeKey, terms: &VolumeTerms, out: &mut Actions) {
        let wanted: ThrottleTerms = terms.own.get().unwrap_or_default();
        if wanted == ThrottleTerms::default() {
            return self.release(volume, out);
        }
        let v = self.volumes.entry(volume).or_insert_with(|| Capped::new(wanted));
        v.terms = wanted;
        v.buckets.change(wanted);
        v.plan(now);
        self.let_go(now, volume, out);
    }

    fn forget_volume(&mut self, _now: Time, volume: VolumeKey, out: &mut Actions) {
        self.release(volume, out);
    }

    /// A pool that ends waits for nobody's rate.
    fn stop(&mut self, _now: Time, out: &mut Actions) {
        while let Some(volume) = self.volumes.first_key_value().map(|(volume, _)| *volume) {
            self.release(volume, out);
        }
    }

    fn is_idle(&self) -> bool {
        self.waiting.is_empty()
    }
}
