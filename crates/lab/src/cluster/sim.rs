//! The simulator of a cluster.

use crate::cluster::source::InOrder;
use crate::cluster::{Get, GetSource, Noise, Orders, ReplicaPolicy, Reply};
use crate::replay::Pool;
use crate::replay::address::Placer;
use crate::replay::measure::EventHash;
use crate::replay::open::{VOLUME, io, pool_op};
use crate::replay::pool::BadPool;
use plimsoll_base::{IoHead, IoId, LatencyHistogram, Op, Outcome, Rng, Span, TenantId, Time};
use plimsoll_device::{Hop, HopSpec};
use plimsoll_stack::Offered;
use slab::Slab;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// What lies between clients and nodes.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct ClusterConfig {
    /// Each direction of each client's path to each node.
    pub hop: HopSpec,
    /// Bytes of a request, a refusal or a cancel on the wire; an answer has the data besides.
    pub message_bytes: u64,
    /// Draws the hops' jitter and losses.
    pub seed: u64,
    /// Gets under way at most; more is a mistake of the experiment's.
    pub gets_max: usize,
}

impl Default for ClusterConfig {
    fn default() -> ClusterConfig {
        let hop = HopSpec { base_us: 300.0, jitter: Default::default(), mb_per_s: 0.0, loss: 0.0, reorders: false };
        ClusterConfig { hop, message_bytes: 64, seed: 1, gets_max: 1 << 20 }
    }
}

/// What a run of a cluster measured.
#[derive(Clone, Debug)]
pub struct ClusterMeasured {
    /// From the user's asking until the first answer was back.
    pub response: LatencyHistogram,
    /// Gets that got an answer.
    pub done: u64,
    /// Gets whose every try was refused, failed or lost.
    pub failed: u64,
    /// Tries sent.
    pub tries: u64,
    /// Tries that came back refused.
    pub busy: u64,
    /// Answers with data that came after another try's.
    pub wasted: u64,
    /// Messages lost.
    pub lost: u64,
    /// Requests of the noise that ended.
    pub noise: u64,
    /// Events of the queue.
    pub events: u64,
    /// A hash of all of them in their order.
    pub event_hash: u64,
    /// When the last one happened.
    pub clock: Time,
}

enum Event {
    /// A get that the source gave beforehand arrives.
    Get { pending: usize },
    /// The next of the noise arrives.
    Noise,
    /// A try arrives at its node.
    Ask { a_try: usize },
    /// A cancel arrives at its node.
    Cancel { a_try: usize, serial: u64 },
    /// An answer arrives at its client.
    Answer { a_try: usize, reply: Reply },
    /// A policy's timer.
    Timer { get: usize, number: u64 },
    /// An answer was lost: if nothing else is to come, the get has failed.
    Lost { get: usize, number: u64 },
    /// A layer of a node wants to be woken.
    Wake { node: u16 },
}

struct Queued(Time, u64, Event);

impl PartialEq for Queued {
    fn eq(&self, other: &Queued) -> bool {
        (self.0, self.1) == (other.0, other.1)
    }
}
impl Eq for Queued {}
impl PartialOrd for Queued {
    fn partial_cmp(&self, other: &Queued) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Queued {
    fn cmp(&self, other: &Queued) -> std::cmp::Ordering {
        (self.0, self.1).cmp(&(other.0, other.1))
    }
}

struct Node {
    pool: Pool,
    placer: Placer,
    /// The wake-up that is in the queue; older ones in it are void.
    wake_at: Time,
}

struct Asked {
    get: Get,
    /// Its tries, by number; taken out when the last of them is answered and the get has ended.
    tries: Vec<usize>,
    outstanding: u32,
    timers: u32,
    ended: bool,
}

/// A try: at its node, or on one of the ways.
struct Try {
    serial: u64,
    get: usize,
    number: u32,
    node: u16,
    deadline: Option<Span>,
    id: Option<IoId>,
}

/// A simulated cluster.
pub struct Cluster<P> {
    config: ClusterConfig,
    nodes: Vec<Node>,
    policies: Vec<P>,
    /// By client and node: the way there, the way back.
    hops: Vec<[Hop; 2]>,
    queue: BinaryHeap<Reverse<Queued>>,
    queued: u64,
    /// Gets that haven't arrived.
    pending: Slab<Get>,
    gets: Slab<Asked>,
    tries: Slab<Try>,
    now: Time,
    hash: EventHash,
    m: ClusterMeasured,
}

/// Who hears of gets that end.
struct Ends<'a> {
    source: &'a mut dyn GetSource,
    watch: &'a mut dyn FnMut(&Get, Option<Span>),
}

impl Ends<'_> {
    fn tell(&mut self, now: Time, get: &Get, response: Option<Span>) {
        (self.watch)(get, response);
        self.source.ended(now, get);
    }
}

/// Tags of noise at a node; a get's tries have their number.
const NOISE_TAG: u64 = u64::MAX;

impl<P: ReplicaPolicy> Cluster<P> {
    /// A cluster of `nodes`, with one client for each of `policies`.
    ///
    /// # Errors
    /// If a hop can't be as described, or there is no node or no client.
    pub fn new(config: ClusterConfig, nodes: Vec<Pool>, policies: Vec<P>) -> Result<Cluster<P>, BadPool> {
        let bad = |e: &dyn std::fmt::Display| BadPool(format!("cluster: {e}"));
        if nodes.is_empty() || policies.is_empty() || nodes.len().max(policies.len()) > usize::from(u16::MAX) {
            return Err(bad(&"it needs between 1 and 65,535 nodes and clients"));
        }
        let hop = || Hop::new(config.hop, config.seed, "hop").map_err(|e| bad(&e));
        let hops = (0..nodes.len() * policies.len()).map(|_| Ok([hop()?, hop()?])).collect::<Result<_, _>>()?;
        let node = |pool: Pool| {
            let o = pool.offer();
            Node { placer: Placer::new(o.size_bytes, o.block_bytes, o.io_bytes_max), pool, wake_at: Time::NEVER }
        };
        Ok(Cluster {
            config,
            nodes: nodes.into_iter().map(node).collect(),
            policies,
            hops,
            queue: BinaryHeap::new(),
            queued: 0,
            pending: Slab::new(),
            gets: Slab::new(),
            tries: Slab::new(),
            now: Time::ZERO,
            hash: EventHash::default(),
            m: ClusterMeasured {
                response: LatencyHistogram::new(),
                done: 0,
                failed: 0,
                tries: 0,
                busy: 0,
                wasted: 0,
                lost: 0,
                noise: 0,
                events: 0,
                event_hash: 0,
                clock: Time::ZERO,
            },
        })
    }

    /// Runs until all of `gets`, an open loop in order of arrivals, have ended; `noise`, in order of time, stops with the last of
    /// them. `watch` hears of each get that ended, with its response time (`None`: it failed), in the order of ending: what
    /// paired comparisons need.
    ///
    /// # Panics
    /// If a get names a node or client that isn't there, arrivals go back, or more than `gets_max` are under way.
    pub fn run(
        self,
        gets: impl Iterator<Item = Get>,
        noise: impl Iterator<Item = Noise>,
        watch: &mut dyn FnMut(&Get, Option<Span>),
    ) -> ClusterMeasured {
        self.run_source(&mut InOrder(gets), noise, watch)
    }

    /// [`Cluster::run`] with gets that may depend on what became of others: a closed loop.
    ///
    /// # Panics
    /// As [`Cluster::run`].
    pub fn run_source(
        mut self,
        source: &mut dyn GetSource,
        mut noise: impl Iterator<Item = Noise>,
        watch: &mut dyn FnMut(&Get, Option<Span>),
    ) -> ClusterMeasured {
        let mut ends = Ends { source, watch };
        let mut next_noise = noise.next();
        self.look_ahead(&mut ends);
        if let Some(n) = &next_noise {
            self.push(n.at, Event::Noise);
        }
        while !self.pending.is_empty() || !self.gets.is_empty() {
            let Some(Reverse(Queued(at, _, event))) = self.queue.pop() else {
                panic!("{} gets are left that nothing will end", self.gets.len());
            };
            assert!(at >= self.now, "time went backwards");
            self.now = at;
            match event {
                Event::Get { pending } => {
                    let get = self.pending.remove(pending);
                    self.look_ahead(&mut ends);
                    self.begin(get, &mut ends);
                }
                Event::Noise => {
                    let n = next_noise.take().expect("it is in the queue");
                    next_noise = noise.next();
                    if let Some(n) = &next_noise {
                        self.push(n.at, Event::Noise);
                    }
                    self.noise(&n);
                }
                Event::Ask { a_try } => self.ask(a_try),
                Event::Cancel { a_try, serial } => self.cancel(a_try, serial),
                Event::Answer { a_try, reply } => self.answer(a_try, reply, &mut ends),
                Event::Timer { get, number } => self.timer(get, number, &mut ends),
                Event::Lost { get, number } => {
                    if self.gets.get(get).is_some_and(|a| a.get.number == number) {
                        self.obey(get, Orders::default(), &mut ends);
                    }
                }
                Event::Wake { node } => self.wake(node),
            }
            self.look_ahead(&mut ends);
        }
        self.m.event_hash = self.hash.value();
        self.m.clock = self.now;
        self.m
    }

    /// Takes gets from the source as far as it knows when they arrive.
    fn look_ahead(&mut self, ends: &mut Ends<'_>) {
        while self.pending.len() < ends.source.ahead()
            && let Some(get) = ends.source.next_get()
        {
            let at = get.arrived_at;
            assert!(at >= self.now, "get {} arrives before the one that went before it", get.number);
            let pending = self.pending.insert(get);
            self.push(at, Event::Get { pending });
        }
    }

    fn push(&mut self, at: Time, event: Event) {
        self.queued += 1;
        self.queue.push(Reverse(Queued(at.max(self.now), self.queued, event)));
    }

    fn note(&mut self, what: u64, a: u64, b: u64) {
        self.m.events += 1;
        self.hash.note([self.now.as_nanos(), what << 48 | a, b]);
    }

    fn begin(&mut self, get: Get, ends: &mut Ends<'_>) {
        assert!(
            self.gets.len() < self.config.gets_max,
            "{} gets are under way: the cluster can't keep up",
            self.gets.len()
        );
        self.note(1, u64::from(get.client), get.number);
        let client = usize::from(get.client);
        let at = self.gets.insert(Asked { get, tries: Vec::new(), outstanding: 0, timers: 0, ended: false });
        let mut out = Orders::default();
        self.policies[client].begin(self.now, &self.gets[at].get, &mut out);
        self.obey(at, out, ends);
    }

    /// Carries out what a policy ordered for a get.
    fn obey(&mut self, at: usize, out: Orders, ends: &mut Ends<'_>) {
        for (node, deadline) in out.sends {
            let number = self.gets[at].tries.len() as u32;
            self.m.tries += 1;
            let serial = self.m.tries;
            let a_try = self.tries.insert(Try { serial, get: at, number, node, deadline, id: None });
            self.gets[at].tries.push(a_try);
            self.gets[at].outstanding += 1;
            match self.travel(a_try, 0, self.config.message_bytes) {
                Some(arrival) => self.push(arrival, Event::Ask { a_try }),
                None => self.lose(a_try),
            }
        }
        for number in out.cancels {
            let a_try = self.gets[at].tries[number as usize];
            let serial = self.tries.get(a_try).filter(|t| t.get == at && t.number == number).map(|t| t.serial);
            if let Some(serial) = serial
                && let Some(arrival) = self.travel(a_try, 2, self.config.message_bytes)
            {
                self.push(arrival, Event::Cancel { a_try, serial });
            }
        }
        let number = self.gets[at].get.number;
        for time in out.timers {
            self.gets[at].timers += 1;
            self.push(time, Event::Timer { get: at, number });
        }
        let asked = &self.gets[at];
        if !asked.ended && asked.outstanding == 0 && asked.timers == 0 {
            self.end(at, None, ends);
        }
        self.forget(at);
    }

    /// When a message of a try arrives, on its way there (0), back (1), or a cancel's way there (2).
    fn travel(&mut self, a_try: usize, way: u64, bytes: u64) -> Option<Time> {
        let t = &self.tries[a_try];
        let get = &self.gets[t.get].get;
        let pair = usize::from(get.client) * self.nodes.len() + usize::from(t.node);
        // The draw belongs to the message: the same in every run in which it is sent.
        let message = get.number << 8 | u64::from(t.number) << 2 | way;
        let mut rng = Rng::new(self.config.seed ^ message.wrapping_mul(0x9e37_79b9_7f4a_7c15), "hop");
        let arrival = self.hops[pair][usize::from(way == 1)].send_drawing(self.now, bytes, &mut rng);
        self.m.lost += u64::from(arrival.is_none());
        arrival
    }

    /// Nothing will come of a try, and nobody is told: the policy has timers or it waits for ever.
    fn lose(&mut self, a_try: usize) {
        let t = self.tries.remove(a_try);
        self.gets[t.get].outstanding -= 1;
    }

    fn ask(&mut self, a_try: usize) {
        let t = &self.tries[a_try];
        let (node, deadline, get) = (t.node, t.deadline, &self.gets[t.get].get);
        let (number, offset, len) = (get.number, get.offset, get.len);
        self.note(2, u64::from(node), number);
        let n = &mut self.nodes[usize::from(node)];
        let (offset, len) = n.placer.place(0, offset, len);
        let mut head = IoHead::new(Op::Read, VOLUME, TenantId(0), offset, len, self.now);
        head.tag = a_try as u64;
        head.deadline = deadline.map_or(Time::NEVER, |d| self.now + d);
        if n.pool.is_full() {
            return self.reply(a_try, Reply::Failed);
        }
        match n.pool.stack.offer(self.now, io(head)) {
            Offered::Accepted(id) => self.tries[a_try].id = Some(id),
            Offered::Busy(f) => self.reply(a_try, Reply::Busy(f.wait)),
        }
        self.collect(node);
    }

    fn noise(&mut self, noise: &Noise) {
        self.note(3, u64::from(noise.node), noise.offset);
        let n = &mut self.nodes[usize::from(noise.node)];
        let (offset, len) = n.placer.place(1, noise.offset, noise.len);
        let mut head = IoHead::new(pool_op(noise.op), VOLUME, TenantId(1), offset, len, self.now);
        head.tag = NOISE_TAG;
        if !n.pool.is_full() {
            n.pool.stack.offer(self.now, io(head));
        }
        self.collect(noise.node);
    }

    fn cancel(&mut self, a_try: usize, serial: u64) {
        let Some(t) = self.tries.get(a_try).filter(|t| t.serial == serial) else { return };
        let (node, id) = (t.node, t.id);
        self.note(4, u64::from(node), serial);
        if let Some(id) = id {
            self.nodes[usize::from(node)].pool.stack.cancel(self.now, id);
            self.collect(node);
        }
    }

    fn wake(&mut self, node: u16) {
        let n = &mut self.nodes[usize::from(node)];
        if n.wake_at != self.now {
            return; // an earlier one came in between
        }
        n.wake_at = Time::NEVER;
        n.pool.stack.wake(self.now);
        self.note(5, u64::from(node), 0);
        self.collect(node);
    }

    /// Sends back what has ended at a node, and sees to its next wake-up.
    fn collect(&mut self, node: u16) {
        while let Some(c) = self.nodes[usize::from(node)].pool.stack.next_done() {
            if c.io.tag == NOISE_TAG {
                self.m.noise += 1;
                continue;
            }
            let a_try = c.io.tag as usize;
            self.tries[a_try].id = None;
            let reply = match c.outcome {
                Outcome::Done => Reply::Done,
                Outcome::Busy { wait, .. } => Reply::Busy(wait),
                Outcome::Failed(_) => Reply::Failed,
            };
            self.reply(a_try, reply);
        }
        let n = &mut self.nodes[usize::from(node)];
        let wake = n.pool.stack.next_wake();
        if wake.is_set() && wake < n.wake_at {
            n.wake_at = wake.max(self.now);
            let at = n.wake_at;
            self.push(at, Event::Wake { node });
        }
    }

    fn reply(&mut self, a_try: usize, reply: Reply) {
        let data = if reply == Reply::Done { self.gets[self.tries[a_try].get].get.len } else { 0 };
        match self.travel(a_try, 1, self.config.message_bytes + data) {
            Some(arrival) => self.push(arrival, Event::Answer { a_try, reply }),
            None => {
                let get = self.tries[a_try].get;
                let number = self.gets[get].get.number;
                self.lose(a_try);
                self.push(self.now, Event::Lost { get, number });
            }
        }
    }

    fn answer(&mut self, a_try: usize, reply: Reply, ends: &mut Ends<'_>) {
        let t = self.tries.remove(a_try);
        let asked = &mut self.gets[t.get];
        asked.outstanding -= 1;
        let (client, number, ended) = (usize::from(asked.get.client), asked.get.number, asked.ended);
        self.note(6, u64::from(t.node), number);
        self.m.busy += u64::from(matches!(reply, Reply::Busy(_)));
        if ended {
            self.m.wasted += u64::from(reply == Reply::Done);
            self.policies[client].too_late(self.now, t.node, reply);
            return self.forget(t.get);
        }
        if reply == Reply::Done {
            self.end(t.get, Some(t.number), ends);
            return self.forget(t.get);
        }
        let mut out = Orders { tries: self.gets[t.get].tries.len() as u32, ..Orders::default() };
        self.policies[client].refused(self.now, &self.gets[t.get].get, t.number, reply, &mut out);
        self.obey(t.get, out, ends);
    }

    fn timer(&mut self, at: usize, number: u64, ends: &mut Ends<'_>) {
        let Some(asked) = self.gets.get_mut(at).filter(|a| a.get.number == number) else { return };
        asked.timers -= 1;
        if asked.ended {
            return;
        }
        let client = usize::from(asked.get.client);
        let mut out = Orders { tries: asked.tries.len() as u32, ..Orders::default() };
        self.note(7, client as u64, number);
        self.policies[client].timer(self.now, &self.gets[at].get, &mut out);
        self.obey(at, out, ends);
    }

    fn end(&mut self, at: usize, a_try: Option<u32>, ends: &mut Ends<'_>) {
        let asked = &mut self.gets[at];
        asked.ended = true;
        let response = a_try.map(|_| self.now.since(asked.get.arrived_at));
        let client = usize::from(asked.get.client);
        ends.tell(self.now, &asked.get, response);
        match response {
            Some(r) => {
                self.m.response.record(r);
                self.m.done += 1;
            }
            None => self.m.failed += 1,
        }
        let mut out = Orders { tries: asked.tries.len() as u32, ..Orders::default() };
        self.policies[client].ended(self.now, &self.gets[at].get, a_try, &mut out);
        assert!(out.sends.is_empty() && out.timers.is_empty(), "a get that has ended is only cancelled");
        self.obey(at, out, ends);
    }

    /// A get that has ended is gone when its last try is.
    fn forget(&mut self, at: usize) {
        if self.gets.get(at).is_some_and(|a| a.ended && a.outstanding == 0) {
            self.gets.remove(at);
        }
    }
}
