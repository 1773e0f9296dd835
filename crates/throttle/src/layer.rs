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

/// A volume with a limit.
struct Capped {
    terms: ThrottleTerms,
    requests: Option<Bucket>,
    bytes: Option<Bucket>,
    queue: VecDeque<Io>,
    /// When the queue's first request may go on; its entry in [`Throttle::due`].
    due_at: Option<Time>,
    /// Bytes that the queue's requests cost.
    queued_bytes: u64,
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
        Op::Trim | Op::WriteZeroes => Some(0),
        Op::Flush | Op::Cache | Op::BlockStatus => None,
    }
}

impl Capped {
    fn new(terms: ThrottleTerms) -> Capped {
        Capped {
            terms,
            requests: terms.requests.map(Bucket::new),
            bytes: terms.bytes.map(Bucket::new),
            queue: VecDeque::new(),
            due_at: None,
            queued_bytes: 0,
            held: 0,
            waited: Span::ZERO,
        }
    }

    /// Changes the limits. What the buckets hold stays.
    fn change(&mut self, terms: ThrottleTerms) {
        let with = |old: Option<Bucket>, limit| match (old, limit) {
            (Some(old), Some(limit)) => Some(old.with(limit)),
            (None, Some(limit)) => Some(Bucket::new(limit)),
            (_, None) => None,
        };
        self.requests = with(self.requests, terms.requests);
        self.bytes = with(self.bytes, terms.bytes);
        self.terms = terms;
    }

    /// When a request may go on that comes after `requests` others of `bytes`.
    fn allows_at(&self, now: Time, requests: u64, bytes: u64) -> Time {
        let by_requests = self.requests.map_or(now, |b| b.allows_at(now, requests));
        let by_bytes = self.bytes.map_or(now, |b| b.allows_at(now, bytes));
        by_requests.max(by_bytes)
    }

    fn add(&mut self, now: Time, bytes: u64) {
        self.requests.iter_mut().for_each(|b| b.add(now, 1));
        self.bytes.iter_mut().for_each(|b| b.add(now, bytes));
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
            let at = v.allows_at(now, 0, 0);
            if at > now {
                v.due_at = Some(at);
                self.due.insert((at, volume));
                break;
            }
            let bytes = cost(io).expect("only requests that cost something wait");
            self.waiting.remove(&io.id);
            v.queued_bytes -= bytes;
            v.waited += now.since(io.entered_at);
            v.add(now, bytes);
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
            (Some(v), Some(_)) => v.allows_at(at, v.queue.len() as u64, v.queued_bytes).since(at),
            _ => Span::ZERO,
        };
        below.after(wait, below.ask(0, at + wait, head))
    }

    fn submit(&mut self, now: Time, io: Io, out: &mut Actions) {
        let (Some(v), Some(bytes)) = (self.volumes.get_mut(&io.volume), cost(&io)) else { return out.submit(0, io) };
        if v.queue.is_empty() && v.allows_at(now, 0, 0) <= now {
            v.add(now, bytes);
            return out.submit(0, io);
        }
        out.declare(0, io.head);
        (v.held, v.queued_bytes) = (v.held + 1, v.queued_bytes + bytes);
        self.waiting.insert(io.id, io.volume);
        let volume = io.volume;
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
        v.queued_bytes -= cost(&io).expect("only requests that cost something wait");
        out.end(io, Outcome::Failed(IoError::Cancelled));
        self.let_go(now, volume, out);
    }

    fn set_volume(&mut self, now: Time, volume: VolumeKey, terms: &VolumeTerms, out: &mut Actions) {
        let wanted: ThrottleTerms = terms.own.get().unwrap_or_default();
        if wanted == ThrottleTerms::default() {
            return self.release(volume, out);
        }
        self.volumes.entry(volume).or_insert_with(|| Capped::new(wanted)).change(wanted);
        self.let_go(now, volume, out);
    }

    fn forget_volume(&mut self, _now: Time, volume: VolumeKey, out: &mut Actions) {
        self.release(volume, out);
    }

    fn is_idle(&self) -> bool {
        self.waiting.is_empty()
    }
}
