//! The simulator of a cluster.

use crate::Pool;
use crate::address::Placer;
use crate::cluster::cpu::Threads;
use crate::cluster::source::InOrder;
use crate::cluster::{Begins, GetSource, Hog, HostCpu, Noise};
use crate::decided;
use crate::open::{VOLUME, io, pool_op};
use crate::pool::BadPool;
use plimsoll_base::{
    Completion, IoHead, IoId, LatencyByLoad, LatencyHistogram, Op, Outcome, Rng, Span, TenantId, Time, VolumeKey,
};
use plimsoll_client::{Answer, Course, Ended, Get, Probe, ReplicaPolicy, Reply, Step};
use plimsoll_device::{Hop, HopSpec};
use plimsoll_stack::Offered;
use plimsoll_stack::sim::EventHash;
use slab::Slab;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Configuration of clients, nodes and the network between them.
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
    /// All nodes are servers of one machine with this processor; `None`: each has all the processor time that it needs.
    pub cpu: Option<HostCpu>,
    /// A node whose tries are recorded one by one.
    pub watched: Option<u16>,
}

/// A try as its node saw it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Asking {
    /// Time of arrival at the node.
    pub came_at: Time,
    /// Requests that were there.
    pub others: u32,
    /// From then until it was answered.
    pub took: Span,
    /// True if it was refused.
    pub busy: bool,
}

impl Default for ClusterConfig {
    fn default() -> ClusterConfig {
        let hop = HopSpec { base_us: 300.0, jitter: Default::default(), mb_per_s: 0.0, loss: 0.0, reorders: false };
        ClusterConfig { hop, message_bytes: 64, seed: 1, gets_max: 1 << 20, cpu: None, watched: None }
    }
}

/// Measurements of a cluster's run.
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
    /// Probes sent.
    pub probes: u64,
    /// Tries that went to a node's device.
    pub executed: u64,
    /// Tries that came back refused.
    pub busy: u64,
    /// Answers with data that came after another try's.
    pub wasted: u64,
    /// Messages lost.
    pub lost: u64,
    /// Requests of the noise that ended.
    pub noise: u64,
    /// Sum of all tries' waits for the machine's processor, where servers share one.
    pub cpu_waited: Span,
    /// The tries of the watched node, in the order of their answers.
    pub watched: Vec<Asking>,
    /// Events of the queue.
    pub events: u64,
    /// A hash of all of them in their order.
    pub event_hash: u64,
    /// Time of the last event.
    pub clock: Time,
}

enum Event {
    /// A get that the source gave beforehand arrives.
    Get { pending: usize },
    /// The next of the noise arrives.
    Noise,
    /// A hog asks anew.
    Hog { hog: usize },
    /// A try arrives at its node.
    Arrive { a_try: usize },
    /// Its server asks the storage.
    Ask { a_try: usize },
    /// A cancel arrives at its node.
    Cancel { a_try: usize, serial: u64 },
    /// An answer arrives at its client.
    Answer { a_try: usize, answer: Answer },
    /// A node's word that it has begun a try arrives at the client.
    Began { a_try: usize, serial: u64 },
    /// A probe arrives at its node.
    Probe { get: usize, number: u64, node: u16 },
    /// A probe's answer arrives at its client.
    Probed { get: usize, number: u64, probe: Probe },
    /// A timer of a get.
    Timer { get: usize, number: u64 },
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
    /// Response times of gets here.
    latency: LatencyByLoad,
}

/// A get; taken out when it is over.
struct Asked {
    course: Course,
    /// Its tries, by number.
    tries: Vec<usize>,
}

/// A try: at its node, or on one of the ways.
struct Try {
    serial: u64,
    get: usize,
    number: u32,
    node: u16,
    deadline: Option<Span>,
    tells: bool,
    id: Option<IoId>,
    /// Time of arrival at its node, and the number of requests in flight there.
    came: (Time, u32),
}

/// A simulated cluster.
pub struct Cluster<P> {
    config: ClusterConfig,
    nodes: Vec<Node>,
    policies: Vec<P>,
    hogs: Vec<Hog>,
    threads: Option<Threads>,
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

/// Observers of gets that end.
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

/// Tags of noise at a node: of the series, and from there down of each hog; a get's tries have their number.
const NOISE_TAG: u64 = u64::MAX;
/// All tags from here on are noise's.
const NOISE_TAGS: u64 = u64::MAX - (1 << 16);
/// Wait of a hog when a node has no room.
const HOG_WAITS: Span = Span::from_millis(1);
/// Noise comes from another process than gets, and each hog is one of its own.
const NOISE_VOLUME: VolumeKey = VolumeKey { id: VOLUME.id + 1, generation: 0 };

/// The volume of a hog.
fn hog_volume(hog: usize) -> VolumeKey {
    VolumeKey { id: NOISE_VOLUME.id + 1 + hog as u32, ..NOISE_VOLUME }
}

/// A message's direction, which its jitter is drawn by.
const THERE: u64 = 0;
const BACK: u64 = 1;
const CANCEL: u64 = 2;
const BEGAN: u64 = 3;
/// Added to a node's number where a probe's message has its try's.
const PROBE: u64 = 1 << 16;

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
        let hops = (0..nodes.len() * policies.len()).map(|_| Ok([hop()?, hop()?])).collect::<Result<_, BadPool>>()?;
        let node = |mut pool: Pool| {
            pool.add_volume(NOISE_VOLUME);
            let o = pool.offer();
            let placer = Placer::new(o.size_bytes, o.block_bytes, o.io_bytes_max);
            Node { placer, pool, wake_at: Time::NEVER, latency: LatencyByLoad::default() }
        };
        Ok(Cluster {
            config,
            // Nodes that had to read before they were ready are at different times: all go on from the last one's.
            now: nodes.iter().map(Pool::ready_at).max().expect("there is a node"),
            nodes: nodes.into_iter().map(node).collect(),
            policies,
            hogs: Vec::new(),
            threads: config.cpu.map(Threads::new),
            hops,
            queue: BinaryHeap::new(),
            queued: 0,
            pending: Slab::new(),
            gets: Slab::new(),
            tries: Slab::new(),
            hash: EventHash::default(),
            m: ClusterMeasured {
                response: LatencyHistogram::new(),
                done: 0,
                failed: 0,
                tries: 0,
                probes: 0,
                executed: 0,
                busy: 0,
                wasted: 0,
                lost: 0,
                noise: 0,
                cpu_waited: Span::ZERO,
                watched: Vec::new(),
                events: 0,
                event_hash: 0,
                clock: Time::ZERO,
            },
        })
    }

    /// With noise in a closed loop.
    ///
    /// # Panics
    /// If there are 65,536 or more.
    #[must_use]
    pub fn with_hogs(mut self, hogs: Vec<Hog>) -> Cluster<P> {
        assert!(hogs.len() < 1 << 16, "too many hogs");
        for hog in 0..hogs.len() {
            self.nodes.iter_mut().for_each(|n| n.pool.add_volume(hog_volume(hog)));
        }
        self.hogs = hogs;
        self
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
        for hog in 0..self.hogs.len() {
            self.push(Time::ZERO, Event::Hog { hog });
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
                    self.noise(&n, &mut ends);
                }
                Event::Hog { hog } => self.hog(hog, &mut ends),
                Event::Arrive { a_try } => self.arrive(a_try, &mut ends),
                Event::Ask { a_try } => self.ask(a_try, &mut ends),
                Event::Cancel { a_try, serial } => self.cancel(a_try, serial, &mut ends),
                Event::Answer { a_try, answer } => self.answer(a_try, answer, &mut ends),
                Event::Began { a_try, serial } => self.began(a_try, serial, &mut ends),
                Event::Probe { get, number, node } => self.probe(get, number, node, &mut ends),
                Event::Probed { get, number, probe } => self.probed(get, number, probe, &mut ends),
                Event::Timer { get, number } => self.timer(get, number, &mut ends),
                Event::Wake { node } => self.wake(node, &mut ends),
            }
            self.look_ahead(&mut ends);
        }
        self.m.event_hash = self.hash.value();
        decided::note(self.m.event_hash);
        self.m.clock = self.now;
        self.m.cpu_waited = self.threads.map_or(Span::ZERO, |t| t.waited);
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
        let asked = Asked { course: Course::new(get), tries: Vec::new() };
        let at = self.gets.insert(asked);
        let step = self.gets[at].course.begin(self.now, &mut self.policies[client]);
        self.carry_out(at, step, ends);
    }

    /// Carries out a step of a get's course.
    fn carry_out(&mut self, at: usize, step: Step, ends: &mut Ends<'_>) {
        let Step { orders, ended } = step;
        if let Some(how) = ended {
            self.ended(at, how, ends);
        }
        let mut lost = Vec::new();
        for s in orders.sends {
            let number = self.gets[at].tries.len() as u32;
            self.m.tries += 1;
            let (serial, came) = (self.m.tries, (self.now, 0));
            let new =
                Try { serial, get: at, number, node: s.node, deadline: s.deadline, tells: s.tells, id: None, came };
            let a_try = self.tries.insert(new);
            self.gets[at].tries.push(a_try);
            match self.travel_try(a_try, THERE, self.config.message_bytes) {
                Some(arrival) => self.push(arrival, Event::Arrive { a_try }),
                None => lost.push(a_try),
            }
        }
        for number in orders.cancels {
            let a_try = self.gets[at].tries[number as usize];
            let serial = self.tries.get(a_try).filter(|t| t.get == at && t.number == number).map(|t| t.serial);
            if let Some(serial) = serial
                && let Some(arrival) = self.travel_try(a_try, CANCEL, self.config.message_bytes)
            {
                self.push(arrival, Event::Cancel { a_try, serial });
            }
        }
        let number = self.gets[at].course.get().number;
        for time in orders.timers {
            self.push(time, Event::Timer { get: at, number });
        }
        let mut probes_lost = 0;
        for node in orders.probes {
            self.m.probes += 1;
            match self.travel(at, node, PROBE + u64::from(node), THERE, self.config.message_bytes) {
                Some(arrival) => self.push(arrival, Event::Probe { get: at, number, node }),
                None => probes_lost += 1,
            }
        }
        for _ in 0..probes_lost {
            self.probe_lost(at, number, ends);
        }
        for a_try in lost {
            self.lose(a_try, ends);
        }
        self.forget(at);
    }

    /// Returns the arrival of a try's message.
    fn travel_try(&mut self, a_try: usize, way: u64, bytes: u64) -> Option<Time> {
        let t = &self.tries[a_try];
        self.travel(t.get, t.node, u64::from(t.number), way, bytes)
    }

    /// Returns the arrival of a get's message to a node, or from it.
    fn travel(&mut self, get: usize, node: u16, number: u64, way: u64, bytes: u64) -> Option<Time> {
        let get = self.gets[get].course.get();
        let pair = usize::from(get.client) * self.nodes.len() + usize::from(node);
        // The draw belongs to the message: the same in every run in which it is sent.
        let message = get.number << 20 | number << 2 | way;
        let mut rng = Rng::new(self.config.seed ^ message.wrapping_mul(0x9e37_79b9_7f4a_7c15), "hop");
        let is_back = matches!(way, BACK | BEGAN);
        let arrival = self.hops[pair][usize::from(is_back)].send_drawing(self.now, bytes, &mut rng);
        self.m.lost += u64::from(arrival.is_none());
        arrival
    }

    /// Ends a try without a result; its policy isn't notified.
    fn lose(&mut self, a_try: usize, ends: &mut Ends<'_>) {
        let t = self.tries.remove(a_try);
        let asked = &mut self.gets[t.get];
        let client = usize::from(asked.course.get().client);
        let step = asked.course.lost(self.now, t.number, &mut self.policies[client]);
        self.carry_out(t.get, step, ends);
    }

    fn probe_lost(&mut self, at: usize, number: u64, ends: &mut Ends<'_>) {
        if self.asked(at, number).is_none() {
            return;
        }
        let asked = &mut self.gets[at];
        let client = usize::from(asked.course.get().client);
        let step = asked.course.probe_lost(self.now, &mut self.policies[client]);
        self.carry_out(at, step, ends);
    }

    fn arrive(&mut self, a_try: usize, ends: &mut Ends<'_>) {
        match &mut self.threads {
            Some(threads) => {
                let at = threads.run(self.now);
                self.push(at, Event::Ask { a_try });
            }
            None => self.ask(a_try, ends),
        }
    }

    fn ask(&mut self, a_try: usize, ends: &mut Ends<'_>) {
        let t = &mut self.tries[a_try];
        let (node, deadline, get) = (t.node, t.deadline, self.gets[t.get].course.get());
        let n = &mut self.nodes[usize::from(node)];
        t.came = (self.now, n.pool.stack.inflight() as u32);
        let (number, offset, len) = (get.number, get.offset, get.len);
        let (offset, len) = n.placer.place(0, offset, len);
        let mut head = IoHead::new(Op::Read, VOLUME, TenantId(0), offset, len, self.now);
        head.tag = a_try as u64;
        head.deadline = deadline.map_or(Time::NEVER, |d| self.now + d);
        let offered = if n.pool.is_full() { None } else { Some(n.pool.stack.offer(self.now, io(head))) };
        self.note(2, u64::from(node), number);
        match offered {
            Some(Offered::Accepted(id)) => self.tries[a_try].id = Some(id),
            Some(Offered::Busy(f)) => self.reply(a_try, Reply::Busy(f.wait), Span::ZERO, ends),
            None => return self.reply(a_try, Reply::Failed, Span::ZERO, ends),
        }
        self.collect(node, ends);
    }

    fn noise(&mut self, noise: &Noise, ends: &mut Ends<'_>) {
        self.add_noise(noise, NOISE_TAG, NOISE_VOLUME, ends);
    }

    fn hog(&mut self, hog: usize, ends: &mut Ends<'_>) {
        let noise = self.hogs[hog].next(self.now);
        if !self.add_noise(&noise, NOISE_TAG - 1 - hog as u64, hog_volume(hog), ends) {
            self.push(self.now + HOG_WAITS, Event::Hog { hog });
        }
    }

    /// False if the node has no room.
    fn add_noise(&mut self, noise: &Noise, tag: u64, volume: VolumeKey, ends: &mut Ends<'_>) -> bool {
        self.note(3, u64::from(noise.node), noise.offset);
        let n = &mut self.nodes[usize::from(noise.node)];
        let (offset, len) = n.placer.place(1, noise.offset, noise.len);
        let mut head = IoHead::new(pool_op(noise.op), volume, noise.tenant, offset, len, self.now);
        head.priority = noise.priority;
        head.tag = tag;
        let has_room = !n.pool.is_full();
        if has_room {
            n.pool.stack.offer(self.now, io(head));
        }
        self.collect(noise.node, ends);
        has_room
    }

    fn cancel(&mut self, a_try: usize, serial: u64, ends: &mut Ends<'_>) {
        let Some(t) = self.tries.get(a_try).filter(|t| t.serial == serial) else { return };
        let (node, id) = (t.node, t.id);
        self.note(4, u64::from(node), serial);
        if let Some(id) = id {
            self.nodes[usize::from(node)].pool.stack.cancel(self.now, id);
            self.collect(node, ends);
        }
    }

    fn wake(&mut self, node: u16, ends: &mut Ends<'_>) {
        let n = &mut self.nodes[usize::from(node)];
        if n.wake_at != self.now {
            return; // an earlier one came in between
        }
        n.wake_at = Time::NEVER;
        n.pool.advance(self.now);
        self.note(5, u64::from(node), 0);
        self.collect(node, ends);
    }

    /// Sends back what has begun and what has ended at a node, and sees to its next wake-up.
    fn collect(&mut self, node: u16, ends: &mut Ends<'_>) {
        self.tell_begun(node);
        while let Some(c) = self.nodes[usize::from(node)].pool.stack.next_done() {
            if c.io.tag > NOISE_TAGS {
                self.m.noise += 1;
                if c.io.tag < NOISE_TAG {
                    self.push(self.now, Event::Hog { hog: (NOISE_TAG - 1 - c.io.tag) as usize });
                }
            } else {
                self.done(node, &c, ends);
            }
        }
        let n = &mut self.nodes[usize::from(node)];
        n.pool.collect(self.now);
        let wake = n.pool.next_event();
        if wake.is_set() && wake < n.wake_at {
            n.wake_at = wake.max(self.now);
            let at = n.wake_at;
            self.push(at, Event::Wake { node });
        }
    }

    /// A try has ended at its node.
    fn done(&mut self, node: u16, c: &Completion, ends: &mut Ends<'_>) {
        let a_try = c.io.tag as usize;
        let t = &mut self.tries[a_try];
        t.id = None;
        let (came_at, others) = t.came;
        let service = if c.dispatched_at.is_set() { self.now.since(c.dispatched_at) } else { Span::ZERO };
        let reply = match c.outcome {
            Outcome::Done => Reply::Done,
            Outcome::Busy { wait, .. } => Reply::Busy(wait),
            Outcome::Failed(_) => Reply::Failed,
        };
        if reply == Reply::Done {
            self.m.executed += 1;
            self.nodes[usize::from(node)].latency.saw(others, self.now.since(came_at));
        }
        self.reply(a_try, reply, service, ends);
    }

    /// Sends word of the tries that have begun at a node, to clients that want it.
    fn tell_begun(&mut self, node: u16) {
        let n = &mut self.nodes[usize::from(node)];
        let Some(begun) = n.pool.stack.with_layer(self.now, |b: &mut Begins, _| b.take().collect::<Vec<_>>()) else {
            return;
        };
        for id in begun {
            // Few are at a node at once, and fewer are to be told of.
            let found = self.tries.iter().find(|(_, t)| t.node == node && t.tells && t.id == Some(id));
            let Some((a_try, serial)) = found.map(|(at, t)| (at, t.serial)) else { continue };
            if let Some(arrival) = self.travel_try(a_try, BEGAN, self.config.message_bytes) {
                self.push(arrival, Event::Began { a_try, serial });
            }
        }
    }

    fn reply(&mut self, a_try: usize, reply: Reply, service: Span, ends: &mut Ends<'_>) {
        let t = &self.tries[a_try];
        if self.config.watched == Some(t.node) {
            let (came_at, others) = t.came;
            let (took, busy) = (self.now.since(came_at), matches!(reply, Reply::Busy(_)));
            self.m.watched.push(Asking { came_at, others, took, busy });
        }
        let data = if reply == Reply::Done { self.gets[t.get].course.get().len } else { 0 };
        let in_flight = self.nodes[usize::from(t.node)].pool.stack.inflight() as u32;
        let answer = Answer { reply, in_flight, service };
        match self.travel_try(a_try, BACK, self.config.message_bytes + data) {
            Some(arrival) => self.push(arrival, Event::Answer { a_try, answer }),
            None => self.lose(a_try, ends),
        }
    }

    fn answer(&mut self, a_try: usize, answer: Answer, ends: &mut Ends<'_>) {
        let t = self.tries.remove(a_try);
        let asked = &mut self.gets[t.get];
        let (client, number) = (usize::from(asked.course.get().client), asked.course.get().number);
        let step = asked.course.answered(self.now, t.number, answer, &mut self.policies[client]);
        self.note(6, u64::from(t.node), number);
        self.m.busy += u64::from(matches!(answer.reply, Reply::Busy(_)));
        self.m.wasted += u64::from(answer.reply == Reply::Done && step.ended != Some(Ended::Done(t.number)));
        self.carry_out(t.get, step, ends);
    }

    fn began(&mut self, a_try: usize, serial: u64, ends: &mut Ends<'_>) {
        let Some(t) = self.tries.get(a_try).filter(|t| t.serial == serial) else { return };
        let (get, number, node) = (t.get, t.number, t.node);
        self.note(8, u64::from(node), serial);
        let asked = &mut self.gets[get];
        let client = usize::from(asked.course.get().client);
        let step = asked.course.began(self.now, number, &mut self.policies[client]);
        self.carry_out(get, step, ends);
    }

    /// A get, unless it is over and its place another's.
    fn asked(&self, at: usize, number: u64) -> Option<&Asked> {
        self.gets.get(at).filter(|a| a.course.get().number == number)
    }

    fn probe(&mut self, at: usize, number: u64, node: u16, ends: &mut Ends<'_>) {
        if self.asked(at, number).is_none() {
            return;
        }
        self.note(9, u64::from(node), number);
        let n = &self.nodes[usize::from(node)];
        let in_flight = n.pool.stack.inflight() as u32;
        let probe = Probe { node, in_flight, latency: n.latency.estimate(in_flight) };
        match self.travel(at, node, PROBE + u64::from(node), BACK, self.config.message_bytes) {
            Some(arrival) => self.push(arrival, Event::Probed { get: at, number, probe }),
            None => self.probe_lost(at, number, ends),
        }
    }

    fn probed(&mut self, at: usize, number: u64, probe: Probe, ends: &mut Ends<'_>) {
        if self.asked(at, number).is_none() {
            return;
        }
        let asked = &mut self.gets[at];
        let client = usize::from(asked.course.get().client);
        let step = asked.course.probed(self.now, probe, &mut self.policies[client]);
        self.note(10, u64::from(probe.node), number);
        self.carry_out(at, step, ends);
    }

    fn timer(&mut self, at: usize, number: u64, ends: &mut Ends<'_>) {
        if self.asked(at, number).is_none() {
            return;
        }
        let asked = &mut self.gets[at];
        let client = usize::from(asked.course.get().client);
        let step = asked.course.timer(self.now, &mut self.policies[client]);
        self.note(7, client as u64, number);
        self.carry_out(at, step, ends);
    }

    fn ended(&mut self, at: usize, how: Ended, ends: &mut Ends<'_>) {
        let get = self.gets[at].course.get();
        let response = (how != Ended::Failed).then(|| self.now.since(get.arrived_at));
        ends.tell(self.now, get, response);
        match response {
            Some(r) => {
                self.m.response.record(r);
                self.m.done += 1;
            }
            None => self.m.failed += 1,
        }
    }

    /// A get that is over goes; what the queue still has of it finds another number in its place.
    fn forget(&mut self, at: usize) {
        if self.gets.get(at).is_some_and(|a| a.course.is_over()) {
            self.gets.remove(at);
        }
    }
}
