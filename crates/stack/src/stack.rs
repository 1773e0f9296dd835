//! A stack: the layers of one pool in their order, and the routing of requests, answers and orders between them.
//!
//! The stack itself is a state machine like its layers. An engine offers it client requests, tells it of time and of
//! device completions, and carries out what [`Stack::next_device_io`] and [`Stack::next_done`] hand it.

use crate::front::Front;
use crate::layer::{
    Action, Actions, Face, Forecast, Layer, LayerState, NODES_MAX, Offer, Port, Ports, Terms, VolumeTerms,
};
use crate::map::Map;
use crate::message::Addressed;
use crate::overlaps::{Overlaps, Place};
use crate::sim::EventHash;
use crate::stats::{AccountStats, NodeStats};
use crate::work::{Work, Worked};
use plimsoll_base::{Completion, Io, IoError, IoFlags, IoHead, IoId, Op, Outcome, Span, TenantId, Time, VolumeKey};
use serde::{Deserialize, Serialize};
use slab::Slab;
use std::any::Any;
use std::collections::{BTreeMap, VecDeque};

/// Receiver behind a port: a layer or a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Target {
    /// Another node of the stack, by number (always greater than the node's own).
    Node(usize),
    /// The same, by another of its faces than the first: a layer that stands before several devices at once (a fence before
    /// the disk and the cache's flash) has a face for each, and sees by [`IoHead::face`] which one a request entered.
    /// Requests never skip such a layer.
    Face(usize, Face),
    /// A device of the engine, by number.
    Device(usize),
}

impl Target {
    /// The node and its face.
    fn node(self) -> Option<(usize, Face)> {
        match self {
            Target::Node(n) => Some((n, 0)),
            Target::Face(n, face) => Some((n, face)),
            Target::Device(_) => None,
        }
    }
}

/// One layer in its place.
pub struct Node {
    layer: Box<dyn Layer>,
    ports: Vec<Target>,
    /// The node above each of its faces; none for node 0, whose requests come from the engine.
    above: Vec<(Face, usize)>,
    wake_at: Time,
    started: bool,
    serves: bool,
    stats: NodeStats,
}

/// Admission of requests to a pool's stack.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StackConfig {
    /// Largest number of client requests in the stack; the engine stops taking more before.
    pub inflight_max: usize,
    /// Cost of a failover to another replica (MittOS §3.3, MT-M3: 0.3 ms). A request that would be late by no more than this is
    /// served here after all.
    pub failover_hop: Span,
    /// Refuse nothing: a request that would be refused is only expected late ([`IoHead::expected_at`]), so that what
    /// becomes of it can be compared with the forecast (MT-M28).
    pub flag_only: bool,
}

impl Default for StackConfig {
    fn default() -> StackConfig {
        StackConfig { inflight_max: 65_536, failover_hop: Span::from_micros(300), flag_only: false }
    }
}

/// The layers of one pool. Node 0 is at the top.
pub struct Stack {
    nodes: Vec<Node>,
    device_offers: Vec<Offer>,
    config: StackConfig,
    actions: Actions,
    to_devices: VecDeque<(usize, Io)>,
    done: VecDeque<Completion>,
    to_workers: VecDeque<(usize, Work)>,
    /// Work handed out or waiting to be.
    at_workers: usize,
    /// Client requests under way.
    inflight: Slab<Inflight>,
    /// By account and node: time spent there.
    waited: Vec<[Span; NODES_MAX]>,
    /// Requests at each device.
    at_device: Vec<u32>,
    device_stats: Vec<NodeStats>,
    /// At which nodes a request is declared that hasn't come there yet, one bit each.
    declared: BTreeMap<IoId, u16>,
    /// Changes in flight below the front, where the rule of overlaps is checked.
    overlaps: Option<Box<Overlaps>>,
    /// Every decision so far, where they are hashed.
    decisions: Option<EventHash>,
    now: Time,
    accepted: u64,
    refused: u64,
    ended: u64,
}

/// A client request under way.
struct Inflight {
    id: IoId,
    /// The engine's own.
    tag: u64,
    account: u16,
    /// The node that it, or its last part, entered last; [`NODES_MAX`] and above are devices.
    at: u8,
    arrived_at: Time,
}

/// Result of [`Stack::offer`].
#[derive(Clone, Copy, Debug)]
pub enum Offered {
    /// Accepted under this id; its completion will come.
    Accepted(IoId),
    /// Refused at once: it would have missed its deadline. Nothing was queued.
    Busy(Forecast),
}

pub(crate) fn forecast_below(
    nodes: &[Node],
    (me, port): (usize, Port),
    now: Time,
    at: Time,
    head: &IoHead,
) -> Forecast {
    match nodes[me].ports[port as usize] {
        Target::Node(n) => nodes[n].layer.forecast(at, head, Ports::new(nodes, n, now)),
        Target::Face(n, face) => nodes[n].layer.forecast(at, &IoHead { face, ..*head }, Ports::new(nodes, n, now)),
        Target::Device(_) => Forecast::NONE,
    }
}

/// True if a device failed to make acknowledged data durable. The kernel reports that once, to whichever request comes first: a
/// client's flush, a layer's own, or a durable write.
fn lost_durability(c: &Completion) -> bool {
    let Outcome::Failed(why) = c.outcome else { return false };
    let durable_change = c.io.op.is_change() && c.io.flags.has(IoFlags::FUA);
    match why {
        IoError::Cancelled | IoError::Unavailable => false,
        IoError::Device => c.io.op == Op::Flush || durable_change,
        _ => c.io.op == Op::Flush,
    }
}

impl Stack {
    /// A stack over `devices` (what each offers). Add layers with [`Stack::push`], top first.
    pub fn new(config: StackConfig, devices: Vec<Offer>) -> Stack {
        Stack {
            nodes: Vec::new(),
            at_device: vec![0; devices.len()],
            device_stats: vec![NodeStats::default(); devices.len()],
            device_offers: devices,
            config,
            actions: Actions::default(),
            to_devices: VecDeque::new(),
            done: VecDeque::new(),
            to_workers: VecDeque::new(),
            at_workers: 0,
            inflight: Slab::new(),
            waited: Vec::new(),
            declared: BTreeMap::new(),
            overlaps: None,
            decisions: None,
            now: Time::ZERO,
            accepted: 0,
            refused: 0,
            ended: 0,
        }
        .checking_overlaps(cfg!(debug_assertions))
    }

    /// Panics from now on when a layer sends a change that overlaps another one in flight at the same target (see "Overlaps" in
    /// [`crate::layer`]). On in debug builds and in simulated pools.
    #[must_use]
    pub fn checking_overlaps(mut self, on: bool) -> Stack {
        self.overlaps = on.then(Box::default);
        self
    }

    /// Hashes every decision from now on: each request accepted or refused with its forecast, each request sent to a device, each
    /// end of a request. For simulated pools: it costs about 20 multiplications per request.
    #[must_use]
    pub fn hashing_decisions(mut self) -> Stack {
        self.decisions = Some(EventHash::default());
        self
    }

    /// The hash of all decisions so far; 0 unless [`Stack::hashing_decisions`].
    pub fn decisions(&self) -> u64 {
        self.decisions.map_or(0, EventHash::value)
    }

    /// Adds a layer whose ports lead to `ports`: nodes that are pushed later, or devices. Returns its number.
    ///
    /// # Panics
    /// If a port leads up, or the stack is full.
    pub fn push(&mut self, layer: Box<dyn Layer>, ports: Vec<Target>) -> usize {
        let me = self.nodes.len();
        assert!(me < NODES_MAX, "a stack has at most {NODES_MAX} layers");
        for p in &ports {
            match *p {
                Target::Node(n) | Target::Face(n, _) => assert!(n > me, "node {me}: port leads up to node {n}"),
                Target::Device(d) => assert!(d < self.device_offers.len(), "node {me}: no device {d}"),
            }
        }
        let mut above: Vec<(Face, usize)> = Vec::new();
        for n in 0..me {
            for (node, face) in self.nodes[n].ports.iter().filter_map(|p| p.node()) {
                if node == me && above.iter().all(|(f, _)| *f != face) {
                    above.push((face, n));
                }
            }
        }
        let serves = layer.serves();
        self.nodes.push(Node {
            layer,
            ports,
            above,
            wake_at: Time::NEVER,
            started: false,
            serves,
            stats: NodeStats::default(),
        });
        me
    }

    /// Returns the stack's offer to clients.
    pub fn offered(&self) -> Offer {
        self.offer_of(0, 0)
    }

    fn offer_of(&self, node: usize, face: Face) -> Offer {
        let below = self.offers_below(node);
        self.nodes[node].layer.offer_at(face, &below)
    }

    fn offers_below(&self, node: usize) -> Vec<Offer> {
        let of = |p: &Target| match *p {
            Target::Node(n) => self.offer_of(n, 0),
            Target::Face(n, face) => self.offer_of(n, face),
            Target::Device(d) => self.device_offers[d],
        };
        self.nodes[node].ports.iter().map(of).collect()
    }

    /// Starts the layers, bottom up: each when all below it serve. Call again whenever time has passed or a device
    /// answered, until [`Stack::state`] isn't [`LayerState::Recovering`].
    pub fn start(&mut self, now: Time) {
        for n in (0..self.nodes.len()).rev() {
            let serves = |p: &Target| match *p {
                Target::Node(b) | Target::Face(b, _) => {
                    self.nodes[b].started
                        && matches!(self.nodes[b].layer.state(), LayerState::Ready | LayerState::Degraded)
                }
                Target::Device(_) => true,
            };
            if !self.nodes[n].started && self.nodes[n].ports.iter().all(serves) {
                let below = self.offers_below(n);
                self.nodes[n].started = true;
                self.call(now, n, |layer, out| layer.start(now, &below, out));
                self.run(now);
            }
        }
    }

    /// The worst state of any layer; recovering if one hasn't started.
    pub fn state(&self) -> LayerState {
        let state = |n: &Node| if n.started { n.layer.state() } else { LayerState::Recovering };
        self.nodes.iter().map(state).max().unwrap_or(LayerState::Ready)
    }

    /// Forecasts the wait of a request that would arrive now.
    pub fn forecast(&self, now: Time, head: &IoHead) -> Forecast {
        self.nodes[0].layer.forecast(now, head, Ports::new(&self.nodes, 0, now))
    }

    /// Offers a client's request: forecasts it and, in the same step, accepts or refuses it.
    ///
    /// Only a read with a deadline is refused (MittOS §3.1 rejects reads; an acknowledged write is buffered anyway, and a
    /// refused write would be a lost vote to a replicating client). Refused if `wait + own service > deadline + hop`
    /// (MT-A2: the paper tests the wait in §4.1 and the whole in §7.6; the user's deadline is for the whole). A read whose
    /// client waits ([`IoFlags::WAITS`]) is accepted instead, and marked [`IoFlags::LATE`].
    ///
    /// # Panics
    /// If more than `inflight_max` are offered: the engine must stop before.
    pub fn offer(&mut self, now: Time, mut io: Io) -> Offered {
        assert!(!self.is_full(), "the engine overfilled the pool");
        let forecast = self.forecast(now, &io.head);
        let expected_at = now + forecast.total();
        let promised = io.op == Op::Read && io.deadline.is_set() && !forecast.never_refused;
        let beyond = promised && expected_at > io.deadline + self.config.failover_hop;
        let late = beyond && io.may_be_refused();
        if let Some(hash) = &mut self.decisions {
            let (wait, service) = (forecast.wait.as_nanos(), forecast.service.as_nanos());
            hash.note([now.as_nanos(), io.head.op as u64, io.head.offset, io.head.len, wait, service, u64::from(late)]);
        }
        if late && !self.config.flag_only {
            self.refuse(now, &io.head, &forecast);
            return Offered::Busy(forecast);
        }
        let id = self.actions.new_id();
        io.head.arrived_at = io.head.arrived_at.min(now);
        let (tag, account, arrived_at) = (io.tag, io.account, io.arrived_at);
        let entry = self.inflight.insert(Inflight { id, tag, account, at: 0, arrived_at });
        io.head.id = id;
        io.head.tag = entry as u64;
        io.head.root = entry as u32;
        if self.waited.len() <= usize::from(account) {
            self.waited.resize(usize::from(account) + 1, [Span::ZERO; NODES_MAX]);
        }
        io.head.expected_at = expected_at;
        if beyond && !self.config.flag_only {
            io.head.flags = io.flags.with(IoFlags::LATE);
        }
        self.accepted += 1;
        self.enter(now, (0, 0), io);
        self.run(now);
        Offered::Accepted(id)
    }

    fn refuse(&mut self, now: Time, head: &IoHead, forecast: &Forecast) {
        self.refused += 1;
        let mut head = *head;
        for n in 0..self.nodes.len() {
            self.nodes[n].stats.refused_part(forecast.parts[n]);
            self.call(now, n, |layer, out| layer.refused(now, &head, forecast, out));
            head = self.nodes[n].layer.below_as(&head);
        }
        self.run(now);
    }

    /// Withdraws a client's request. It still ends exactly once.
    pub fn cancel(&mut self, now: Time, id: IoId) {
        self.call(now, 0, |layer, out| layer.cancel(now, id, out));
        self.run(now);
    }

    /// Tells the layers above a device that it lost what it had acknowledged, as far up as they say that it matters. Returns true if it
    /// matters to all of them: an acknowledged durable write may have been on this device only.
    pub fn tell_of_loss(&mut self, now: Time, device: usize) -> bool {
        // The ports of each node that lead to it, if what is above must know. A port leads to nodes of greater numbers.
        let mut doubted = [0u32; NODES_MAX];
        for n in (0..self.nodes.len()).rev() {
            for port in 0..self.nodes[n].ports.len() {
                let leads = match self.nodes[n].ports[port] {
                    Target::Device(d) => d == device,
                    // A layer with several faces has a port for each.
                    Target::Node(m) if self.nodes[m].above.len() == 1 => doubted[m] != 0,
                    Target::Node(m) => doubted[m] & 1 != 0,
                    Target::Face(m, face) => doubted[m] & (1 << face) != 0,
                };
                if leads && self.nodes[n].layer.durability_lost(now, port as Port) {
                    doubted[n] |= 1 << port;
                }
            }
        }
        doubted[0] != 0
    }

    /// A device has answered a request that [`Stack::next_device_io`] handed out.
    pub fn device_done(&mut self, now: Time, device: usize, c: Completion) {
        assert!(self.at_device[device] > 0, "device {device} answered a request it was never given");
        self.at_device[device] -= 1;
        self.device_stats[device].served(now, c.dispatched_at);
        if let Some(overlaps) = &mut self.overlaps {
            overlaps.ended(Place::Device(device), &c.io.head);
        }
        if lost_durability(&c) {
            self.tell_of_loss(now, device);
        }
        // The device's parent is the lowest node with a port to it.
        let to = (0..self.nodes.len()).rev().find(|&n| self.nodes[n].ports.contains(&Target::Device(device)));
        match to {
            Some(to) => self.call(now, to, |layer, out| layer.completed(now, c, out)),
            None => self.finish(c),
        }
        self.run(now);
    }

    /// Workers have done what [`Stack::next_work`] handed out for node `node`.
    pub fn worked(&mut self, now: Time, node: usize, done: Worked) {
        assert!(self.at_workers > 0, "a worker answered what it was never given");
        self.at_workers -= 1;
        self.call(now, node, |layer, out| layer.worked(now, done, out));
        self.run(now);
    }

    /// Returns the earliest time at which a layer wants to be woken; [`Time::NEVER`] if none does.
    pub fn next_wake(&self) -> Time {
        self.nodes.iter().map(|n| n.wake_at).min().unwrap_or(Time::NEVER)
    }

    /// Time has passed: wakes each layer whose time has come, lowest first (what ended below is heard above at once).
    pub fn wake(&mut self, now: Time) {
        for n in (0..self.nodes.len()).rev() {
            if self.nodes[n].wake_at <= now {
                self.nodes[n].wake_at = Time::NEVER;
                self.call(now, n, |layer, out| layer.wake(now, out));
                self.run(now);
            }
        }
    }

    /// The next request for a device, in the order they were sent.
    pub fn next_device_io(&mut self) -> Option<(usize, Io)> {
        self.to_devices.pop_front()
    }

    /// The next work for a worker, and the node that ordered it.
    pub fn next_work(&mut self) -> Option<(usize, Work)> {
        self.to_workers.pop_front()
    }

    /// The next client request that ended, with the engine's tag restored.
    pub fn next_done(&mut self) -> Option<Completion> {
        self.done.pop_front()
    }

    /// True if the engine has yet to carry something out: a request for a device, work, or an answer.
    pub fn has_orders(&self) -> bool {
        !(self.to_devices.is_empty() && self.to_workers.is_empty() && self.done.is_empty())
    }

    /// The next report of a layer to the pool's owner.
    pub fn next_report(&mut self) -> Option<Addressed> {
        self.actions.reports.pop_front()
    }

    /// Asks all layers to drain, top first.
    pub fn drain(&mut self, now: Time) {
        for n in 0..self.nodes.len() {
            self.call(now, n, |layer, out| layer.drain(now, out));
            self.run(now);
        }
    }

    /// Returns whether all layers can trust flushes again after one failed, without being rebuilt.
    pub fn can_trust_flush(&self) -> bool {
        self.nodes.iter().all(|n| n.layer.can_trust_flush())
    }

    /// Passes a message to the layer that it is addressed to; false if there is none, or it doesn't understand the message.
    pub fn tell(&mut self, now: Time, to: &Addressed) -> bool {
        let Some(n) = self.nodes.iter().position(|n| n.layer.name() == to.layer) else { return false };
        let understood = self.call(now, n, |layer, out| layer.told(now, &to.message, out));
        self.run(now);
        understood
    }

    /// Tells all layers, top first, that the pool will end.
    pub fn stop(&mut self, now: Time) {
        for n in 0..self.nodes.len() {
            self.call(now, n, |layer, out| layer.stop(now, out));
            self.run(now);
        }
    }

    /// Tells all layers, top first, of a tenant's terms; `None`: it goes.
    pub fn set_tenant(&mut self, now: Time, tenant: TenantId, terms: Option<&Terms>) {
        for n in 0..self.nodes.len() {
            self.call(now, n, |layer, out| layer.tenant(now, tenant, terms, out));
            self.run(now);
        }
    }

    /// Tells all layers of a volume.
    pub fn set_volume(&mut self, now: Time, volume: VolumeKey, terms: &VolumeTerms) {
        for n in 0..self.nodes.len() {
            self.call(now, n, |layer, out| layer.set_volume(now, volume, terms, out));
            self.run(now);
        }
    }

    /// Tells all layers that a volume was deleted. [`Stack::is_using`] tells when nothing of it is under way any more.
    pub fn forget_volume(&mut self, now: Time, volume: VolumeKey) {
        for n in 0..self.nodes.len() {
            self.call(now, n, |layer, out| layer.forget_volume(now, volume, out));
            self.run(now);
        }
    }

    /// True if a layer has requests of its own in flight for a volume that was deleted, or will have when it starts.
    pub fn is_using(&self, volume: VolumeKey) -> bool {
        (0..self.nodes.len()).any(|n| self.nodes[n].layer.is_using(volume) && !self.never_starts(n))
    }

    /// True if a layer hasn't started, and a layer below it has failed.
    fn never_starts(&self, node: usize) -> bool {
        let has_failed = |n: usize| self.nodes[n].started && self.nodes[n].layer.state() == LayerState::Failed;
        let mut below = self.nodes[node].ports.iter().filter_map(|p| p.node());
        !self.nodes[node].started && below.any(|(n, _)| has_failed(n) || self.never_starts(n))
    }

    /// True if nothing is in flight anywhere: no request, no device, no worker, no layer's own work.
    pub fn is_idle(&self) -> bool {
        self.inflight.is_empty()
            && self.at_device.iter().all(|&n| n == 0)
            && self.at_workers == 0
            && self.nodes.iter().all(|n| n.layer.is_idle())
    }

    /// After a drain: what couldn't be written out (see [`Layer::left_behind`]).
    pub fn left_behind(&self) -> Option<String> {
        self.nodes.iter().find_map(|n| n.layer.left_behind())
    }

    /// Returns the number of client requests in flight.
    pub fn inflight(&self) -> usize {
        self.inflight.len()
    }

    /// Returns whether the number of client requests has reached its limit.
    pub fn is_full(&self) -> bool {
        self.inflight.len() >= self.config.inflight_max
    }

    /// Returns the number of layers.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// True if no layer was pushed.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// A node's layer name and statistics.
    pub fn node_stats(&self, node: usize) -> (&'static str, &NodeStats) {
        (self.nodes[node].layer.name(), &self.nodes[node].stats)
    }

    /// A device's statistics: requests that were sent to it, and how long it took for them.
    pub fn device_stats(&self, device: usize) -> &NodeStats {
        &self.device_stats[device]
    }

    /// Returns how an account's requests spent their time, and where those in flight are. Walks over all requests in flight.
    pub fn account_stats(&self, account: u16) -> AccountStats {
        let mut stats = AccountStats { waited: self.waited(account), ..AccountStats::default() };
        for (_, i) in self.inflight.iter().filter(|(_, i)| i.account == account) {
            let place = usize::from(i.at);
            *stats.inside.entry(place).or_default() += 1;
            if stats.oldest.is_none_or(|(at, _)| i.arrived_at < at) {
                stats.oldest = Some((i.arrived_at, place));
            }
        }
        stats
    }

    /// Time that an account's requests spent in each layer before it passed them on.
    pub fn waited(&self, account: u16) -> [Span; NODES_MAX] {
        self.waited.get(usize::from(account)).copied().unwrap_or_default()
    }

    /// Returns the oldest client request in flight: its arrival, its place, and its account. Walks over all.
    pub fn oldest(&self) -> Option<(Time, &'static str, u16)> {
        let oldest = self.inflight.iter().map(|(_, i)| i).min_by_key(|i| i.arrived_at)?;
        Some((oldest.arrived_at, self.place_name(oldest.at.into()), oldest.account))
    }

    /// Forgets an account of which nothing is inside: its number may be another's from now on.
    pub fn forget_account(&mut self, account: u16) {
        if let Some(waited) = self.waited.get_mut(usize::from(account)) {
            *waited = [Span::ZERO; NODES_MAX];
        }
    }

    /// The name of a place, as [`AccountStats`] counts them.
    pub fn place_name(&self, place: usize) -> &'static str {
        self.nodes.get(place).map_or("device", |n| n.layer.name())
    }

    /// Client requests accepted, refused Busy at the top, and ended, since the start.
    pub fn counts(&self) -> (u64, u64, u64) {
        (self.accepted, self.refused, self.ended)
    }

    /// The first layer of type `L`, to configure or inspect it between requests. Orders that its change calls for are
    /// given through [`Stack::with_layer`].
    pub fn layer<L: Layer>(&self) -> Option<&L> {
        self.nodes.iter().find_map(|n| (n.layer.as_ref() as &dyn Any).downcast_ref::<L>())
    }

    /// Calls `f` on the first layer of type `L`; what it orders is carried out.
    pub fn with_layer<L: Layer, R>(&mut self, now: Time, f: impl FnOnce(&mut L, &mut Actions) -> R) -> Option<R> {
        let n = (0..self.nodes.len()).find(|&n| (self.nodes[n].layer.as_ref() as &dyn Any).is::<L>())?;
        let r = self.call(now, n, |layer, out| {
            let layer = (layer as &mut dyn Any).downcast_mut::<L>().expect("just checked");
            f(layer, out)
        });
        self.run(now);
        Some(r)
    }

    /// Calls into one layer. The layer's orders wait in `actions` for [`Stack::run`].
    fn call<R>(&mut self, now: Time, n: usize, f: impl FnOnce(&mut dyn Layer, &mut Actions) -> R) -> R {
        assert!(now >= self.now, "the engine moved time backwards");
        self.now = now;
        self.actions.from = n;
        let r = f(self.nodes[n].layer.as_mut(), &mut self.actions);
        if let Some(at) = self.actions.wake_at.take() {
            self.nodes[n].wake_at = self.nodes[n].wake_at.min(at);
        }
        if cfg!(debug_assertions) {
            self.nodes[n].layer.check();
        }
        r
    }

    /// Carries out what layers ordered, in order, and what that leads to, until nothing is left. Requests are moved
    /// from the layer's order straight into the next layer: copying them is most of what the stack itself costs.
    fn run(&mut self, now: Time) {
        while let Some((n, action)) = self.actions.queue.pop_front() {
            match action {
                Action::Submit { port, io } => {
                    let waited = now.since(io.entered_at);
                    self.nodes[n].stats.passed(waited, &io.head);
                    if waited > Span::ZERO
                        && io.is_of_client()
                        && let Some(by_node) = self.waited.get_mut(usize::from(io.account))
                    {
                        by_node[n] += waited;
                    }
                    let target = self.nodes[n].ports[port as usize];
                    self.check_overlaps(n, target, &io.head);
                    match target {
                        Target::Node(to) => self.enter(now, (to, 0), io),
                        Target::Face(to, face) => self.enter(now, (to, face), io),
                        Target::Device(d) => self.send_to_device(d, io),
                    }
                }
                Action::Complete(c) => self.complete(now, n, c),
                Action::Work(work) => {
                    self.at_workers += 1;
                    self.to_workers.push_back((n, work));
                }
                Action::Cancel { port, id } => {
                    if let Some((to, _)) = self.nodes[n].ports.get(port as usize).and_then(|p| p.node()) {
                        self.call(now, to, |layer, out| layer.cancel(now, id, out));
                    }
                }
                Action::Declare { port, head } => {
                    if let Some((to, face)) = self.nodes[n].ports.get(port as usize).and_then(|p| p.node()) {
                        let head = IoHead { face, ..*head };
                        *self.declared.entry(head.id).or_default() |= 1 << to;
                        self.call(now, to, |layer, out| layer.declared(&head, out));
                    }
                }
                Action::Retract { port, id } => {
                    if let Some((to, _)) = self.nodes[n].ports.get(port as usize).and_then(|p| p.node()) {
                        self.undeclare(id, to);
                        self.call(now, to, |layer, out| layer.retracted(id, out));
                    }
                }
            }
        }
        debug_assert_eq!(self.accepted - self.ended, self.inflight.len() as u64, "a request was lost, or ended twice");
    }

    /// Hands a request to a layer.
    fn enter(&mut self, now: Time, (to, face): (usize, Face), mut io: Io) {
        self.undeclare(io.id, to);
        (io.head.entered_at, io.head.face) = (now, face);
        self.nodes[to].stats.entered();
        self.came_to(to, &io.head);
        self.call(now, to, |layer, out| layer.submit(now, io, out));
    }

    /// Checks the rule of overlaps on what node `from` sends, if it is the front or below it.
    fn check_overlaps(&mut self, from: usize, target: Target, head: &IoHead) {
        let Some(overlaps) = &mut self.overlaps else { return };
        let is = |n: &Node, what: fn(&dyn Any) -> bool| what(n.layer.as_ref());
        let front = self.nodes.iter().position(|n| is(n, |l| l.is::<Front>()));
        if front.is_none_or(|front| from < front) {
            return;
        }
        let map = self.nodes.iter().position(|n| is(n, |l| l.is::<Map>()));
        let (place, name) = match target {
            Target::Device(d) => (Place::Device(d), "a device"),
            Target::Node(to) | Target::Face(to, _) => {
                let face = target.node().map_or(0, |(_, face)| face);
                let face = if self.nodes[to].above.len() > 1 { face } else { 0 };
                (Place::Node(to, face), self.nodes[to].layer.name())
            }
        };
        // Addresses are a volume's up to the map; in a stack without one, what they are is not known.
        let by_volume = match target {
            Target::Node(to) | Target::Face(to, _) => map.is_none_or(|map| to <= map),
            Target::Device(_) => map.is_none(),
        };
        overlaps.sent(place, by_volume, head, name);
    }

    /// Remembers where a client's request is.
    fn came_to(&mut self, place: usize, head: &IoHead) {
        if head.is_of_client()
            && let Some(i) = self.inflight.get_mut(head.root as usize)
        {
            i.at = place as u8;
        }
    }

    /// A declaration at a node ends.
    fn undeclare(&mut self, id: IoId, node: usize) {
        if self.declared.is_empty() {
            return;
        }
        if let Some(nodes) = self.declared.get_mut(&id) {
            *nodes &= !(1 << node);
            if *nodes == 0 {
                self.declared.remove(&id);
            }
        }
    }

    /// A request has ended: where it was declared and never came (a layer above answered it, or sent others for it) it isn't
    /// expected any more.
    fn undeclare_all(&mut self, now: Time, id: IoId) {
        while let Some(nodes) = self.declared.get(&id) {
            let node = nodes.trailing_zeros() as usize;
            self.undeclare(id, node);
            self.call(now, node, |layer, out| layer.retracted(id, out));
        }
    }

    fn send_to_device(&mut self, device: usize, io: Io) {
        self.at_device[device] += 1;
        self.device_stats[device].entered();
        self.came_to(NODES_MAX + device, &io.head);
        if let Some(hash) = &mut self.decisions {
            hash.note([self.now.as_nanos(), device as u64, io.head.op as u64, io.head.offset, io.head.len]);
        }
        self.to_devices.push_back((device, io));
    }

    /// Node `n` has ended a request: tells the next layer above that it passed, or the engine.
    fn complete(&mut self, now: Time, n: usize, c: Completion) {
        if let Outcome::Busy { .. } = c.outcome {
            let waits = c.io.flags.has(IoFlags::WAITS);
            let may = c.io.is_client() && c.io.op == Op::Read && !waits;
            assert!(may, "only a client's read that doesn't wait may end Busy: {:?}", c.io.head);
            assert!(!c.dispatched_at.is_set(), "a request that reached a device ended Busy: {:?}", c.io.head);
            self.nodes[n].stats.revoked();
        }
        if let Some(overlaps) = &mut self.overlaps {
            let face = if self.nodes[n].above.len() > 1 { c.io.face } else { 0 };
            overlaps.ended(Place::Node(n, face), &c.io.head);
        }
        if self.nodes[n].serves {
            self.nodes[n].stats.served(now, c.dispatched_at);
        }
        if !self.declared.is_empty() {
            self.undeclare_all(now, c.io.id);
        }
        match self.above(n, c.io.face) {
            Some(to) => self.call(now, to, |layer, out| layer.completed(now, c, out)),
            None => self.finish(c),
        }
    }

    /// Returns the node above a node's face.
    fn above(&self, node: usize, face: Face) -> Option<usize> {
        match self.nodes[node].above.as_slice() {
            [] => None,
            [(_, only)] => Some(*only),
            several => {
                let found = several.iter().find(|(f, _)| *f == face);
                Some(found.expect("a layer with several faces keeps a request's").1)
            }
        }
    }

    fn finish(&mut self, mut c: Completion) {
        let ended = self.inflight.try_remove(c.io.tag as usize).expect("a request ended twice");
        assert_eq!(ended.id, c.io.id, "a request ended twice");
        c.io.head.tag = ended.tag;
        if let Some(hash) = &mut self.decisions {
            let how = match c.outcome {
                Outcome::Done => 0,
                Outcome::Busy { wait, .. } => 1 + wait.as_nanos(),
                Outcome::Failed(why) => u64::MAX - why as u64,
            };
            hash.note([self.now.as_nanos(), ended.id.0, how]);
        }
        self.ended += 1;
        self.done.push_back(c);
    }
}
