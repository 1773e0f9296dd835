//! The tenants' queues: waiting requests, in order of arrival, and those in service (QW-M1).
//!
//! Tenants with the same objectives share a queue: a latency-critical *type* (§2.1). Each best-effort tenant has its own.

use crate::control::{Allotment, Missed};
use crate::line::Line;
use crate::service::ServiceTimes;
use plimsoll_base::{Class, Io, IoId, Objective, Span, TenantId, Time};
use plimsoll_stack::Terms;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Owner of a queue.
#[derive(Clone, PartialEq, Debug)]
pub enum Kind {
    /// One set of objectives.
    LatencyCritical(Vec<Objective>),
    /// One tenant, with a weight among its like.
    BestEffort(u32),
}

/// A request that waits.
#[derive(Debug)]
pub struct Waiting {
    /// Time of arrival at the pool: promises are measured from it.
    pub arrived_at: Time,
    /// Its place in the order of arrival here, over all queues.
    pub serial: u64,
    /// The request.
    pub io: Io,
    /// The request that it's the rest of, if a part of that has gone below.
    pub of: Option<u32>,
}

/// One queue.
#[derive(Debug)]
pub struct Queue {
    /// Owner.
    pub kind: Kind,
    /// Tells it from others that had its number before.
    pub born: u64,
    /// The tenants that share it, with their terms.
    pub tenants: Vec<(TenantId, Terms)>,
    /// The allotment that they share.
    allotment: Allotment,
    /// Oldest first.
    waiting: Line,
    /// In service.
    pub in_service: u32,
    /// Service times of requests below.
    pub service: ServiceTimes,
    /// Response times while best effort wasn't to blame for them; of latency-critical queues.
    pub alone: Option<ServiceTimes>,
    /// An objective that is missed even then.
    pub missed: Option<Missed>,
    /// Bytes of requests that were done.
    pub done_bytes: u64,
    /// Cores that are its own; 0 where cores belong to nobody.
    cores: u32,
    /// Core time given so far, and until when that is counted.
    core_time: Span,
    counted_until: Time,
    /// Cores added and yielded.
    pub grown: u64,
    /// See `grown`.
    pub yielded: u64,
    /// The most at once.
    pub cores_max: u32,
    /// Windows in which a request was later than an objective, and which windows those were last.
    pub late_windows: u64,
    late_seen: [u64; 8],
    /// The most requests at once in this minute and in the one before, and which minute this is.
    most: [u32; 2],
    minute: u64,
}

fn minute_of(now: Time) -> u64 {
    now.as_nanos() / Span::from_secs(60).as_nanos()
}

impl Queue {
    fn new(kind: Kind, born: u64) -> Queue {
        let percentiles: Vec<u16> = match &kind {
            Kind::LatencyCritical(objectives) => objectives.iter().map(|o| o.percentile_bp).collect(),
            Kind::BestEffort(_) => vec![9990],
        };
        let alone = matches!(kind, Kind::LatencyCritical(_)).then(|| ServiceTimes::new(percentiles.clone()));
        Queue {
            kind,
            born,
            tenants: Vec::new(),
            allotment: Allotment::NONE,
            waiting: Line::default(),
            in_service: 0,
            service: ServiceTimes::new(percentiles),
            alone,
            missed: None,
            done_bytes: 0,
            cores: 0,
            core_time: Span::ZERO,
            counted_until: Time::ZERO,
            grown: 0,
            yielded: 0,
            cores_max: 0,
            late_windows: 0,
            late_seen: [0; 8],
            most: [0; 2],
            minute: 0,
        }
    }

    /// Its objectives; none of a best-effort queue.
    pub fn objectives(&self) -> &[Objective] {
        match &self.kind {
            Kind::LatencyCritical(objectives) => objectives,
            Kind::BestEffort(_) => &[],
        }
    }

    /// Waiting requests, oldest first.
    pub fn waiting(&self) -> &Line {
        &self.waiting
    }

    /// Returns whether it has no tenants, and nothing left of them.
    pub fn is_unused(&self) -> bool {
        self.tenants.is_empty() && self.waiting.is_empty() && self.in_service == 0
    }

    /// True if a request of the queue waits or is being served.
    pub fn is_busy(&self) -> bool {
        self.in_service > 0 || !self.waiting.is_empty()
    }

    /// Returns whether it has objectives.
    pub fn is_critical(&self) -> bool {
        matches!(self.kind, Kind::LatencyCritical(_))
    }

    /// Its tenants' weights together; at least 1.
    pub fn weight(&self) -> u64 {
        let sum: u64 = self.tenants.iter().map(|(_, t)| u64::from(t.weight)).sum();
        match self.kind {
            Kind::LatencyCritical(_) => sum.max(1),
            Kind::BestEffort(weight) => u64::from(weight.max(1)),
        }
    }

    /// Returns the sum of its tenants' allotments. A limit holds if each has one.
    pub fn allotment(&self) -> Allotment {
        self.allotment
    }

    /// Its tenants have changed.
    fn tenants_changed(&mut self) {
        let all: Vec<Allotment> = self.tenants.iter().map(|(_, t)| t.own.get().unwrap_or_default()).collect();
        let is_limited = all.iter().all(|a| a.limit > 0);
        self.allotment = Allotment {
            cores: all.iter().map(|a| a.cores).sum(),
            reservation: all.iter().map(|a| a.reservation).sum(),
            limit: if is_limited { all.iter().map(|a| a.limit).sum() } else { 0 },
        };
    }

    fn most_at(&self, now: Time) -> [u32; 2] {
        match minute_of(now).saturating_sub(self.minute) {
            0 => self.most,
            1 => [0, self.most[0]],
            _ => [0; 2],
        }
    }

    /// The most requests that were here at once in the last minute or two.
    pub fn most_in_flight(&self, now: Time) -> u32 {
        let [newer, older] = self.most_at(now);
        newer.max(older)
    }

    /// Returns the arrival of the request that has waited longest.
    pub fn oldest(&self) -> Option<Time> {
        self.waiting.front().map(|w| w.arrived_at)
    }

    /// Cores that are its own.
    pub fn cores(&self) -> u32 {
        self.cores
    }

    /// Core time that it had up to `now`: of cores that were its own, whether busy or not.
    pub fn core_time(&self, now: Time) -> Span {
        self.core_time + now.since(self.counted_until) * u64::from(self.cores)
    }

    /// Response times while best effort wasn't to blame, if they are enough to judge by.
    pub fn measured_alone(&self) -> Option<&ServiceTimes> {
        self.alone.as_ref().filter(|a| a.count() >= ALONE_MIN)
    }

    /// A request took `response` that best effort can't have delayed. True if an objective is missed since, or no longer.
    pub fn ended_alone(&mut self, response: Span) -> bool {
        let Some(alone) = &mut self.alone else { return false };
        alone.record(response);
        if alone.count() < ALONE_MIN || !alone.count().is_multiple_of(LOOK_EVERY) {
            return false;
        }
        let Kind::LatencyCritical(objectives) = &self.kind else { return false };
        let was_missed = self.missed.is_some();
        let missed = |(o, &(_, alone)): (&Objective, &(u16, Span))| {
            let (percentile_bp, within) = (o.percentile_bp, o.bound);
            // One that is near its bound isn't reported over and over.
            let from = if was_missed { within.scale(9, 10) } else { within };
            (alone > from).then_some(Missed { percentile_bp, within, alone })
        };
        let missed = objectives.iter().zip(alone.tails()).find_map(missed);
        let changed = missed.is_some() != was_missed;
        self.missed = missed;
        changed
    }

    /// A request of window `number` (0: of none) ended `response` after its arrival.
    pub fn ended(&mut self, response: Span, number: u64) {
        let late = self.objectives().iter().any(|o| response > o.bound);
        if late && number > 0 && !self.late_seen.contains(&number) {
            self.late_seen[self.late_windows as usize % self.late_seen.len()] = number;
            self.late_windows += 1;
        }
    }
}

/// A change of how many cores a queue has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CoreChange {
    /// Time.
    pub at: Time,
    /// Queue.
    pub queue: u16,
    /// From now on.
    pub cores: u16,
}

/// All queues, and the cores.
#[derive(Debug)]
pub struct Queues {
    list: Vec<Queue>,
    /// Number of cores.
    pub cores: u32,
    /// Requests in flight on one.
    pub depth: u32,
    /// Limit of requests that the layers below take.
    pub slots_max: u32,
    /// Requests in service, of all queues.
    pub busy: u32,
    /// Tenant's number to its queue.
    by_tenant: Vec<u16>,
    /// Times that the device's profile lets expect.
    expected: Option<ServiceTimes>,
    next_serial: u64,
    /// Requests that wait for a core longer than a call: queue and number. The rest of a split request isn't among them.
    places: BTreeMap<IoId, (u16, u64)>,
    /// Those of them that end when their deadline has passed.
    due: BTreeSet<(Time, u64, u16)>,
    /// Queues that were ever made.
    born: u64,
    history: VecDeque<CoreChange>,
    history_max: usize,
}

/// Requests that an objective is judged by, alone; and how often it is.
const ALONE_MIN: u64 = 512;
const LOOK_EVERY: u64 = 64;
/// No queue.
const NOWHERE: u16 = u16::MAX;
/// Weight of a tenant that nobody declared: a pool's own zeroing, an operator's copy.
const WEIGHT_UNKNOWN: u32 = 100;

impl Queues {
    /// No queue yet.
    pub fn new(cores: u32, depth: u32, history_max: usize) -> Queues {
        Queues {
            list: Vec::new(),
            cores,
            depth,
            slots_max: u32::MAX,
            busy: 0,
            by_tenant: Vec::new(),
            expected: None,
            next_serial: 0,
            places: BTreeMap::new(),
            due: BTreeSet::new(),
            born: 0,
            history: VecDeque::new(),
            history_max,
        }
    }

    /// See [`Cores::expect`](crate::Cores::expect).
    pub fn expect(&mut self, times: &[Span]) {
        let mut expected = ServiceTimes::new([]);
        times.iter().for_each(|took| expected.record(*took));
        self.expected = Some(expected).filter(|e| e.count() > 0);
    }

    /// Times that the device's profile lets expect, if it is known.
    pub fn expected(&self) -> Option<&ServiceTimes> {
        self.expected.as_ref()
    }

    /// All of them, by number.
    pub fn all(&self) -> &[Queue] {
        &self.list
    }

    /// Returns the number of queues. Their numbers stay; a queue that isn't used any more is given to the next tenant that
    /// needs one.
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// True if there is no queue yet.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// One of them.
    pub fn get(&self, at: usize) -> &Queue {
        &self.list[at]
    }

    /// One of them, to change.
    pub fn get_mut(&mut self, at: usize) -> &mut Queue {
        &mut self.list[at]
    }

    /// Requests that may be in service at once.
    pub fn slots(&self) -> u32 {
        (self.cores * self.depth).min(self.slots_max)
    }

    /// Returns whether one more request can be served.
    pub fn has_free_slot(&self) -> bool {
        self.busy < self.slots()
    }

    /// The numbers of the latency-critical queues.
    pub fn critical(&self) -> impl Iterator<Item = usize> + '_ {
        self.list.iter().enumerate().filter(|(_, q)| q.is_critical()).map(|(i, _)| i)
    }

    /// The number of the tenant's queue; a tenant that nobody declared gets a best-effort one.
    pub fn of_tenant(&mut self, tenant: TenantId) -> usize {
        match self.by_tenant.get(usize::from(tenant.0)) {
            Some(&at) if at != NOWHERE => usize::from(at),
            _ => {
                let class = Class::BestEffort { weight: WEIGHT_UNKNOWN };
                self.set_tenant(tenant, Some(&Terms::of(class, u32::MAX)));
                usize::from(self.by_tenant[usize::from(tenant.0)])
            }
        }
    }

    /// The number of the tenant's queue, if it has one.
    pub fn known(&self, tenant: TenantId) -> Option<usize> {
        self.by_tenant.get(usize::from(tenant.0)).filter(|&&at| at != NOWHERE).map(|&at| usize::from(at))
    }

    /// Declares a tenant, changes its terms, or forgets it. Waiting requests stay in their queue. Returns true if queues were
    /// added, or their tenants changed.
    pub fn set_tenant(&mut self, tenant: TenantId, terms: Option<&Terms>) -> bool {
        let before = self.known(tenant);
        if let Some(at) = before {
            let same = terms.is_some_and(|t| self.list[at].tenants.iter().any(|(id, old)| *id == tenant && old == t));
            if same {
                return false;
            }
            self.list[at].tenants.retain(|(id, _)| *id != tenant);
            self.list[at].tenants_changed();
        }
        let index = usize::from(tenant.0);
        if self.by_tenant.len() <= index {
            self.by_tenant.resize(index + 1, NOWHERE);
        }
        let Some(terms) = terms else {
            self.by_tenant[index] = NOWHERE;
            return before.is_some();
        };
        let at = self.queue_for(terms, before);
        self.list[at].tenants.push((tenant, terms.clone()));
        self.list[at].tenants.sort_by_key(|(id, _)| *id);
        self.list[at].tenants_changed();
        self.by_tenant[index] = at as u16;
        true
    }

    /// The queue with these terms' objectives, or the tenant's own of `before` if nothing is in it; else one that nobody uses any more, or a
    /// new one.
    fn queue_for(&mut self, terms: &Terms, before: Option<usize>) -> usize {
        let kind = match &terms.class {
            Class::LatencyCritical { objectives, .. } => Kind::LatencyCritical(objectives.clone()),
            Class::BestEffort { weight } => Kind::BestEffort(*weight),
            // Its slots are a lower layer's to give; here it has the rest with the others.
            Class::Fenced { slots } => Kind::BestEffort(slots.saturating_mul(WEIGHT_UNKNOWN)),
        };
        let fits =
            |(at, q): (usize, &Queue)| q.kind == kind && (q.is_critical() || (before == Some(at) && q.is_unused()));
        if let Some(at) = self.list.iter().enumerate().position(fits) {
            return at;
        }
        self.born += 1;
        // One that still has cores is somebody's until its policy has taken them back.
        if let Some(at) = self.list.iter().position(|q| q.is_unused() && q.cores == 0) {
            self.list[at] = Queue::new(kind, self.born);
            return at;
        }
        self.list.push(Queue::new(kind, self.born));
        assert!(self.list.len() < usize::from(NOWHERE), "there are no more tenants than 65,535");
        self.list.len() - 1
    }

    /// A request waits from now on; returns its queue.
    pub fn push(&mut self, io: Io) -> usize {
        let at = self.of_tenant(io.tenant);
        self.next_serial += 1;
        let waiting = Waiting { arrived_at: io.arrived_at, serial: self.next_serial, io, of: None };
        self.list[at].waiting.push(waiting);
        at
    }

    /// Notes how many requests are in queue `at`.
    pub fn note_load(&mut self, now: Time, at: usize) {
        let q = &mut self.list[at];
        (q.most, q.minute) = (q.most_at(now), minute_of(now));
        q.most[0] = q.most[0].max(q.waiting.len() as u32 + q.in_service);
    }

    /// The request that was pushed last into queue `at`, if it still waits: from now on it is found by its id and, if `ends_late`, by its
    /// deadline. (Most requests are taken at once, and need neither.) The rest of one that was taken and split is no request of its own.
    pub fn keep_last(&mut self, at: usize, ends_late: impl Fn(&Io) -> bool) {
        let Some(w) = self.list[at].waiting.back().filter(|w| w.serial == self.next_serial && w.of.is_none()) else {
            return;
        };
        self.places.insert(w.io.id, (at as u16, w.serial));
        if ends_late(&w.io) {
            self.due.insert((w.io.deadline, w.serial, at as u16));
        }
    }

    /// The rest of a request of which a part was taken: it waits in its place, before all others of queue `at`.
    pub fn push_rest(&mut self, at: usize, rest: Waiting) {
        self.list[at].waiting.push(rest);
    }

    /// Takes the rest of split request `of` out of queue `at`, if it is there.
    pub fn take_rest(&mut self, at: usize, of: u32) -> Option<Waiting> {
        let rest = self.list[at].waiting.front().filter(|w| w.of == Some(of))?.serial;
        self.list[at].waiting.remove(rest)
    }

    /// Takes a waiting request out, with its queue; `None` if it doesn't wait.
    pub fn withdraw(&mut self, id: IoId) -> Option<(usize, Waiting)> {
        let &(at, serial) = self.places.get(&id)?;
        let waiting = self.list[usize::from(at)].waiting.remove(serial).expect("it is known to wait");
        self.no_longer_waits(at, &waiting);
        Some((usize::from(at), waiting))
    }

    /// Takes a request out whose deadline was before `now`, with its queue; `None` if there is none.
    pub fn take_late(&mut self, now: Time) -> Option<(usize, Waiting)> {
        let &(_, serial, at) = self.due.first().filter(|(deadline, ..)| *deadline < now)?;
        let waiting = self.list[usize::from(at)].waiting.remove(serial).expect("it is known to wait");
        self.no_longer_waits(at, &waiting);
        Some((usize::from(at), waiting))
    }

    /// The first deadline of those that end when theirs has passed.
    pub fn first_due(&self) -> Option<Time> {
        self.due.first().map(|(deadline, ..)| *deadline)
    }

    fn no_longer_waits(&mut self, at: u16, w: &Waiting) {
        if self.places.remove(&w.io.id).is_some() {
            self.due.remove(&(w.io.deadline, w.serial, at));
        }
    }

    /// Takes the oldest of a queue into service.
    ///
    /// # Panics
    /// If there is none, or no room.
    pub fn take(&mut self, at: usize) -> Waiting {
        assert!(self.has_free_slot(), "no core is free");
        self.busy += 1;
        self.list[at].in_service += 1;
        let waiting = self.list[at].waiting.pop_front().expect("a policy chooses a queue in which something waits");
        self.no_longer_waits(at as u16, &waiting);
        waiting
    }

    /// Asserts that what is found by id or deadline waits.
    pub fn check(&self) {
        debug_assert!(self.places.len() <= self.list.iter().map(|q| q.waiting.len()).sum());
        debug_assert!(self.due.len() <= self.places.len(), "a deadline is kept without its request");
    }

    /// A request of the queue is no longer in service.
    pub fn release(&mut self, at: usize) {
        assert!(self.list[at].in_service > 0 && self.busy > 0, "a request ended that wasn't in service");
        self.list[at].in_service -= 1;
        self.busy -= 1;
    }

    /// Cores that belong to no queue: best effort's.
    pub fn unowned(&self) -> u32 {
        let owned: u32 = self.list.iter().map(|q| q.cores).sum();
        assert!(owned <= self.cores, "more cores are given than there are");
        self.cores - owned
    }

    /// From now on the queue has `cores` cores of its own.
    pub fn set_cores(&mut self, now: Time, at: usize, cores: u32) {
        let q = &mut self.list[at];
        if cores == q.cores {
            return;
        }
        q.core_time = q.core_time(now);
        q.counted_until = now;
        q.grown += u64::from(cores.saturating_sub(q.cores));
        q.yielded += u64::from(q.cores.saturating_sub(cores));
        q.cores = cores;
        q.cores_max = q.cores_max.max(cores);
        if self.history_max > 0 {
            if self.history.len() == self.history_max {
                self.history.pop_front();
            }
            self.history.push_back(CoreChange { at: now, queue: at as u16, cores: cores as u16 });
        }
    }

    /// The last changes of core numbers, oldest first; they are forgotten.
    pub fn take_history(&mut self) -> Vec<CoreChange> {
        std::mem::take(&mut self.history).into()
    }
}
