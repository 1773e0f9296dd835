//! Completely fair queueing, and a request's wait in it (MittOS §4.2: MittCFQ; MT-M10 to M13).
//!
//! ```text
//!  group (tenant, weight) ─┬─ real time    ─┐
//!                          ├─ best effort  ─┼─ process nodes, in turn ── offsets in order ─► dispatch queue ─► device
//!                          └─ idle         ─┘
//! ```
//! The group that has had least for its weight goes next. In it the best class goes next. In that class the node goes next whose
//! turn it is, for a slice of time that its level (0 to 7) sets. A node whose queue runs empty within its slice keeps the device
//! for `slice_idle` more, if its habits predict that its next request is near. This is the `idle_time` that OpTune tunes (OT-M11).
//!
//! **Prediction.** Every node knows the sum of its pending requests' costs. So a new request's wait is computed from the nodes in front
//! of it, not from their requests. The wait is the sum of
//!
//! * the work at the device and in the dispatch queue (`sstfTime`);
//! * the work of better classes and of nodes with an earlier turn, each bounded by its slices;
//! * other groups' claims by then;
//! * the requests in front in the request's own node (`cfqTime`).
//!
//! If later requests in front of an accepted one break its promise, it is given back Busy where it waits ([`Late`]).

mod late;
mod node;
mod tolerance;

use crate::device::{DeviceQueue, Discipline};
use crate::disk::DiskModel;
use crate::tree::Key;
use node::{Group, Node, NodeKey, tree_of};
use plimsoll_base::{Completion, Io, IoError, IoHead, IoId, Op, Outcome, Span, TenantId, Time};
use plimsoll_stack::layer::CHECKED_EACH_MAX;
use plimsoll_stack::{Actions, Forecast, Layer, Message, Offer, Ports, Terms};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use tolerance::NO_LIMIT;

/// Settings of the scheduler.
#[derive(Clone, Copy, Debug)]
pub struct CfqConfig {
    /// Number of requests that the device has at once, at least 1.
    pub depth: u32,
    /// Number of requests that the dispatch queue takes from the nodes at once, at least 1.
    pub dispatch_max: u32,
    /// Time that a node of level 4 has the device for reads in one turn; a fifth more or less for each level.
    pub slice: Span,
    /// Time that a node of level 4 has the device for writes in one turn.
    pub slice_writes: Span,
    /// Time that the device waits for a node's next request within its turn; zero: it doesn't wait.
    pub slice_idle: Span,
    /// Processes that seek are served together, for up to `slice`, before others get their turn again, and the device is kept for
    /// the next of them when none has anything (the kernel's tree of queues without idling of their own, which idles for its
    /// last one). Not in forecasts.
    pub seekers_together: bool,
    /// The device's own order of requests, for prediction.
    pub discipline: Discipline,
    /// A request that would be late by no more is kept (MittOS §3.3).
    pub failover_hop: Span,
    /// Treatment of accepted requests whose promise breaks.
    pub late: Late,
    /// Predict by nodes and their order; otherwise all accepted work counts as in front (an ablation, MT-E13).
    pub predict_order: bool,
}

/// A setting that changes while CFQ serves.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum CfqControl {
    /// Time that the device is kept for a process's next request (OpTune's `idle_time`).
    SliceIdle(Span),
}

impl Message for CfqControl {
    const LAYER: &'static str = "cfq";
}

/// Treatment of an accepted request whose deadline can no longer be met, while nothing of it has reached the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Late {
    /// It ends Busy.
    Cancel,
    /// It is only marked: it is then expected after its deadline (MT-M28, for measuring).
    Flag,
    /// Nothing.
    Keep,
}

impl Default for CfqConfig {
    /// The kernel's: slices of 100 ms for reads and 40 ms for writes, idling 8 ms.
    fn default() -> CfqConfig {
        CfqConfig {
            depth: 1,
            dispatch_max: 1,
            slice: Span::from_millis(100),
            slice_writes: Span::from_millis(40),
            slice_idle: Span::from_millis(8),
            seekers_together: false,
            discipline: Discipline::default(),
            failover_hop: Span::from_micros(300),
            late: Late::Cancel,
            predict_order: true,
        }
    }
}

/// Weight of a tenant that none was set for.
const WEIGHT_DEFAULT: u32 = 100;
/// Nodes kept when they are empty, for their habits; beyond it empty ones go.
const NODES_KEPT: usize = 1024;

/// A node in a decision.
#[derive(Clone, Copy)]
struct Summary {
    /// Predicted service time of its pending requests.
    work: Span,
    slice: Span,
    is_waited_for: bool,
}

/// Requests that will be at the device at once: how many decides what each takes.
#[derive(Clone, Copy, Default)]
struct Together {
    /// Number that is there already.
    before: usize,
    /// Number that waits here, without a new one.
    waiting: usize,
    /// All are of one node, as the device is kept for it.
    is_alone: bool,
}

/// A request on its way to the device.
struct Dispatched {
    node: usize,
    io: Io,
    cost: Span,
    /// Predicted service time among its node's requests.
    queued: Span,
}

struct Turn {
    node: usize,
    began: Time,
    ends_at: Time,
    /// Set while the device is kept idle for the node.
    idles_until: Option<Time>,
}

/// See the module's documentation.
pub struct Cfq {
    config: CfqConfig,
    index: BTreeMap<NodeKey, usize>,
    nodes: slab::Slab<Node>,
    /// Facts about each node that a decision needs, side by side.
    summaries: Vec<Summary>,
    groups: Vec<Group>,
    turn: Option<Turn>,
    dispatch: VecDeque<Dispatched>,
    dispatch_cost: Span,
    /// Node of each request at the device.
    outside: BTreeMap<IoId, usize>,
    device: DeviceQueue,
    pending: usize,
    /// Waiting requests with a promise, by the time at which the promise breaks, each with its node and place.
    due: BTreeMap<(Time, IoId), (usize, Key)>,
    /// Node and place of each waiting request.
    places: BTreeMap<IoId, (usize, Key)>,
    /// Tenants of whose waiting requests some are late and not ended yet.
    late: BTreeSet<TenantId>,
    revoked: u64,
    /// With [`Late::Flag`]: which were flagged after they had been accepted, and when.
    flagged: Vec<(IoId, Time)>,
    /// Until when those that seek go before others.
    seekers_until: Time,
}

impl Cfq {
    /// Without tenants, over a device that costs what `model` says.
    ///
    /// # Panics
    /// If the depth is zero.
    pub fn new(config: CfqConfig, model: DiskModel) -> Cfq {
        Cfq {
            device: DeviceQueue::new(model, config.discipline, config.depth),
            config,
            index: BTreeMap::new(),
            nodes: slab::Slab::new(),
            summaries: Vec::new(),
            groups: Vec::new(),
            turn: None,
            dispatch: VecDeque::new(),
            dispatch_cost: Span::ZERO,
            outside: BTreeMap::new(),
            pending: 0,
            due: BTreeMap::new(),
            places: BTreeMap::new(),
            late: BTreeSet::new(),
            revoked: 0,
            flagged: Vec::new(),
            seekers_until: Time::ZERO,
        }
    }

    /// A tenant's share of the device relative to others' (1 to 10,000; 100 without).
    pub fn set_weight(&mut self, tenant: TenantId, weight: u32) {
        let at = self.group_of(tenant);
        self.groups[at].weight = weight.clamp(1, 10_000);
        self.groups[at].has_left = false;
    }

    /// A tenant goes: nothing of it is kept but what is still inside, and that until it ends.
    fn forget_tenant(&mut self, now: Time, tenant: TenantId) {
        let Some(group) = self.groups.iter().position(|g| g.tenant == tenant) else { return };
        if let Some(turn) = &self.turn {
            let node = &self.nodes[turn.node];
            if node.group == group && node.pending.is_empty() && node.outside == 0 {
                self.end_turn(now);
            }
        }
        self.groups[group].weight = WEIGHT_DEFAULT;
        self.groups[group].has_left = true;
        (0..self.groups.len()).rev().for_each(|group| self.drop_if_left(group));
    }

    fn drop_if_left(&mut self, group: usize) {
        if !self.groups[group].has_left {
            return;
        }
        self.forget_empty_nodes(Some(group));
        if self.nodes.iter().all(|(_, n)| n.group != group) {
            let last = self.groups.len() - 1;
            self.groups.swap_remove(group);
            self.nodes.iter_mut().filter(|(_, n)| n.group == last).for_each(|(_, n)| n.group = group);
        }
    }

    /// Changes how long the device waits for a node's next request (OT-M11).
    pub fn set_slice_idle(&mut self, slice_idle: Span) {
        self.config.slice_idle = slice_idle;
        for at in 0..self.summaries.len() {
            if self.nodes.contains(at) {
                self.summarize(at);
            }
        }
    }

    /// Accepted requests that were given back (or marked) because their promise broke.
    pub fn revoked(&self) -> u64 {
        self.revoked
    }

    /// Requests that were flagged after they had been accepted, and when, in that order. Only [`Late::Flag`] has any, which is for experiments
    /// that come to an end: none is ever forgotten.
    pub fn flagged(&self) -> &[(IoId, Time)] {
        &self.flagged
    }

    /// Requests waiting here and at the device.
    pub fn depths(&self) -> (usize, usize) {
        (self.pending + self.dispatch.len(), self.device.len())
    }

    /// Returns the model that predictions rest on.
    pub fn model(&self) -> &DiskModel {
        self.device.model()
    }

    fn group_of(&mut self, tenant: TenantId) -> usize {
        if let Some(at) = self.groups.iter().position(|g| g.tenant == tenant) {
            return at;
        }
        self.groups.push(Group::new(tenant, WEIGHT_DEFAULT));
        self.groups.len() - 1
    }

    fn node_of(&mut self, head: &IoHead) -> usize {
        let key = NodeKey::of(head);
        if let Some(&at) = self.index.get(&key) {
            return at;
        }
        if self.nodes.len() >= NODES_KEPT {
            self.forget_empty_nodes(None);
        }
        let group = self.group_of(key.tenant);
        let at = self.nodes.insert(Node::new(key, group, &self.config));
        self.index.insert(key, at);
        self.summarize(at);
        at
    }

    /// Something of a node has changed.
    fn summarize(&mut self, at: usize) {
        let node = &self.nodes[at];
        let summary = Summary {
            work: self.work_of(node, node.pending.total(), node.pending.len()),
            slice: node.slice,
            is_waited_for: node.is_waited_for(self.config.slice_idle),
        };
        if at < self.summaries.len() {
            self.summaries[at] = summary;
        } else {
            // A slab's numbers come without gaps.
            self.summaries.push(summary);
        }
    }

    /// Returns the time of `count` requests of a node in its turn, which cost `cost` together. Those of a node that is waited for are at the device
    /// without others'.
    fn work_of(&self, node: &Node, cost: Span, count: usize) -> Span {
        if node.is_waited_for(self.config.slice_idle) && !self.device.fills(count) {
            self.device.cost_behind(0, count, cost)
        } else {
            self.device.busy_cost(cost)
        }
    }

    /// Those of one group, or of all.
    fn forget_empty_nodes(&mut self, of: Option<usize>) {
        let turn = self.turn.as_ref().map(|t| t.node);
        let is_empty = |at: usize, n: &Node| n.pending.is_empty() && n.outside == 0 && !n.in_round && turn != Some(at);
        let gone = |at: usize, n: &Node| of.is_none_or(|group| n.group == group) && is_empty(at, n);
        self.index.retain(|_, at| !gone(*at, &self.nodes[*at]));
        self.nodes.retain(|at, n| !gone(at, n));
    }

    fn others_wait(&self) -> bool {
        self.groups.iter().any(Group::waits)
    }

    /// Returns the node that has the turn now, and ends a turn that is over. `None` while no node has requests, or the device
    /// is kept idle.
    fn turn_now(&mut self, now: Time) -> Option<usize> {
        let keeps = self.keeps_for_seekers(now);
        if let Some(turn) = &mut self.turn {
            let node = &self.nodes[turn.node];
            let preempted = self.groups[node.group].waits_above(node.key.class);
            let on = now < turn.ends_at && !preempted;
            if on && !node.pending.is_empty() {
                turn.idles_until = None;
                return Some(turn.node);
            }
            if on && (keeps || node.is_waited_for(self.config.slice_idle)) {
                // It idles from when its last request came back.
                if node.outside > 0 {
                    return None;
                }
                let until = *turn.idles_until.get_or_insert((now + self.config.slice_idle).min(turn.ends_at));
                if now < until {
                    return None;
                }
            }
            self.end_turn(now);
        }
        self.begin_turn(now)
    }

    fn end_turn(&mut self, now: Time) {
        let Some(turn) = self.turn.take() else { return };
        let node = &mut self.nodes[turn.node];
        let group = &mut self.groups[node.group];
        group.had += group.charge(now.since(turn.began));
        if !node.pending.is_empty() {
            node.in_round = true;
            group.round[tree_of(node.key.class)].push_back(turn.node);
        }
    }

    /// True if the device is kept idle for the next seeking process: none waits, and a request is expected before `seekers_until`.
    fn keeps_for_seekers(&self, now: Time) -> bool {
        let Some(turn) = self.turn.as_ref().filter(|_| self.config.seekers_together) else { return false };
        let node = &self.nodes[turn.node];
        let waits = self.groups[node.group].round[tree_of(node.key.class)].iter().any(|&n| self.nodes[n].is_seeky());
        self.config.slice_idle > Span::ZERO && now < self.seekers_until && node.is_seeky() && !waits
    }

    /// Returns the next node in a group: the next seeker, as long as seekers are served together.
    fn next_of(&mut self, now: Time, group: usize) -> Option<usize> {
        let round = self.groups[group].round.iter_mut().find(|r| !r.is_empty())?;
        let seeker = round.iter().position(|&n| self.nodes[n].is_seeky());
        let together = self.config.seekers_together && now < self.seekers_until;
        let next = round.remove(seeker.filter(|_| together).unwrap_or(0))?;
        if !self.nodes[next].is_seeky() {
            self.seekers_until = Time::ZERO;
        } else if now >= self.seekers_until {
            self.seekers_until = now + self.config.slice;
        }
        Some(next)
    }

    fn begin_turn(&mut self, now: Time) -> Option<usize> {
        let waiting = self.groups.iter().enumerate().filter(|(_, g)| g.waits());
        let (group, _) = waiting.min_by_key(|(_, g)| g.had)?;
        let node = self.next_of(now, group).expect("it waits");
        self.nodes[node].in_round = false;
        let ends_at = now + self.nodes[node].slice;
        self.turn = Some(Turn { node, began: now, ends_at, idles_until: None });
        Some(node)
    }

    /// A group that comes back from having nothing doesn't get what it didn't use.
    fn join_round(&mut self, at: usize) {
        let (group, tree) = (self.nodes[at].group, tree_of(self.nodes[at].key.class));
        if !self.groups[group].waits() {
            let active = self.turn.as_ref().map(|t| self.nodes[t.node].group);
            let least = self.groups.iter().enumerate().filter(|(i, g)| g.waits() || active == Some(*i));
            if let Some(least) = least.map(|(_, g)| g.had).min() {
                self.groups[group].had = self.groups[group].had.max(least);
            }
        }
        self.nodes[at].in_round = true;
        self.groups[group].round[tree].push_back(at);
    }

    /// Sends what the device has room for, and gives back at most `left` requests that are too late for it.
    fn fill_device(&mut self, now: Time, mut left: usize, out: &mut Actions) {
        loop {
            while self.device.has_room()
                && let Some(Dispatched { node, io, cost, queued }) = self.dispatch.pop_front()
            {
                self.dispatch_cost -= cost;
                self.device.dispatched(now, &io, Some(queued));
                self.outside.insert(io.id, node);
                out.submit(0, io);
            }
            if self.dispatch.len() >= self.config.dispatch_max as usize || !self.device.has_room() {
                break;
            }
            if left == 0 {
                out.wake_at(now); // the device has room, and more may be late
                break;
            }
            let Some(node) = self.turn_now(now) else { break };
            left -= usize::from(!self.take_next(now, node, out));
        }
        // Who has idled long enough, while the device had no room, goes on when a request comes back.
        if let Some(until) = self.turn.as_ref().and_then(|t| t.idles_until).filter(|until| *until > now) {
            out.wake_at(until);
        }
        if let Some((&(due, _), _)) = self.due.first_key_value() {
            out.wake_at(due.max(now));
        }
        if !self.late.is_empty() {
            out.wake_at(now);
        }
    }

    /// Moves the next request of `at` to the dispatch queue, or gives it back if it can't be in time any more: then returns false.
    fn take_next(&mut self, now: Time, at: usize, out: &mut Actions) -> bool {
        let node = &mut self.nodes[at];
        let from = (node.next_offset, IoId(0));
        let key = node.pending.first_from(from).or_else(|| node.pending.first_from((0, IoId(0))));
        let key = key.expect("who has the turn has something to send");
        let before = node.pending.total();
        let (mut io, group) = node.pending.remove(key).expect("just seen");
        let queued = before - node.pending.total();
        if group != NO_LIMIT {
            node.tolerance.remove(group, key);
        }
        self.no_longer_waits(&io);
        let cost = self.device.model().cost(now, self.device.arm_after(), &io);
        let mut wait = self.device.busy_for(now) + self.dispatch_cost;
        let before = self.device.len() + self.dispatch.len();
        let (mut own, _) = self.device.own_part(now, wait, &io, self.device.cost_behind(before, 1, cost));
        let latest = io.deadline + self.config.failover_hop;
        let behind = if self.is_alone(at) { self.nodes[at].pending.len() } else { self.pending };
        if now + wait + own > latest && self.device.fills(before + 1 + behind) {
            // The forecast was of a full queue, and so it is: as those before it end, others follow.
            wait = self.device.busy_for_when_full(now) + self.dispatch_cost;
            own = self.device.cost_when_full(cost).min(own);
        }
        if now + wait + own > latest && self.revoke(now, &mut io) {
            self.summarize(at);
            out.end(io, Outcome::Busy { wait, confidence: self.device.confidence() });
            return false;
        }
        let node = &mut self.nodes[at];
        node.next_offset = io.end();
        node.outside += 1;
        self.dispatch_cost += cost;
        self.dispatch.push_back(Dispatched { node: at, io, cost, queued });
        self.summarize(at);
        true
    }

    /// Removes a pending request; the request after it is then reached from the one before it.
    fn withdraw(&mut self, now: Time, at: usize, key: Key) -> Option<Io> {
        let node = &mut self.nodes[at];
        let (io, group) = node.pending.remove(key)?;
        if group != NO_LIMIT {
            node.tolerance.remove(group, key);
        }
        self.no_longer_waits(&io);
        let node = &mut self.nodes[at];
        if let Some(next) = node.pending.first_from(key) {
            let from = node.pending.last_before(key).map_or(node.next_offset, |io| io.end());
            let cost = self.device.model().cost(now, from, node.pending.get(next).expect("just seen"));
            node.pending.set_cost(next, cost);
        }
        self.summarize(at);
        Some(io)
    }

    fn no_longer_waits(&mut self, io: &Io) {
        self.pending -= 1;
        self.places.remove(&io.id);
        if let Some(due) = self.due(io) {
            self.due.remove(&(due, io.id));
        }
    }

    /// Puts a request among its node's others; what that adds to what they cost together.
    fn add_pending(&mut self, now: Time, at: usize, io: Io) -> Span {
        let model = self.device.model();
        let node = &mut self.nodes[at];
        let key = (io.offset, io.id);
        let total = node.pending.total();
        let from = node.pending.last_before(key).map_or(node.next_offset, |io| io.end());
        node.arrived(now, io.offset);
        let cost = model.cost(now, from, &io);
        if let Some(next) = node.pending.first_from(key) {
            let after = model.cost(now, io.end(), node.pending.get(next).expect("just seen"));
            node.pending.set_cost(next, after);
        }
        let slack = (io.deadline + self.config.failover_hop).since(io.expected_at).as_nanos();
        if let Some(due) = self.due(&io) {
            self.due.insert((due, io.id), (at, key));
        }
        let node = &mut self.nodes[at];
        let bounded = io.may_be_refused() && slack > 0;
        let group = if bounded { node.tolerance.add(slack.min(i64::MAX as u64) as i64, key) } else { NO_LIMIT };
        self.places.insert(io.id, (at, key));
        node.pending.insert(io, cost, group);
        self.pending += 1;
        let added = node.pending.total().saturating_sub(total);
        self.summarize(at);
        added
    }

    /// Returns the work in front of `head` in its own node, its number of requests, and the cost of `head` itself.
    fn own_part(&self, now: Time, at: Option<usize>, head: &IoHead) -> (Span, usize, Span) {
        let model = self.device.model();
        let Some(node) = at.map(|at| &self.nodes[at]) else {
            return (Span::ZERO, 0, model.cost(now, self.device.arm_after(), head));
        };
        let key = (head.offset, IoId(u64::MAX));
        let before = node.pending.last_before(key);
        let (passed, passed_count) = node.pending.sum_before((node.next_offset, IoId(0)));
        let (up_to, up_to_count) = node.pending.sum_before(key);
        // The arm goes upwards from where the node was, then once more from the bottom.
        let (front, count) = if head.offset >= node.next_offset {
            (up_to.saturating_sub(passed), up_to_count.saturating_sub(passed_count))
        } else {
            (node.pending.total() + up_to - passed, node.pending.len() + up_to_count - passed_count)
        };
        let from = match before {
            Some(io) => io.end(),
            None if node.pending.is_empty() && node.outside == 0 => self.device.arm_after(),
            None => node.next_offset,
        };
        (front, count, model.cost(now, from, head))
    }

    /// True if a node's requests are at the device without others': the device is kept for that node.
    fn is_alone(&self, at: usize) -> bool {
        self.nodes[at].is_waited_for(self.config.slice_idle)
    }

    /// Returns those that will be at the device with a new request of a node that has `own` waiting.
    fn together(&self, at: Option<usize>, is_alone: bool, own: usize) -> Together {
        // It is kept for another one's next request: that one's earlier ones have ended by then.
        let is_kept = self.turn.as_ref().is_some_and(|turn| {
            Some(turn.node) != at && self.nodes[turn.node].pending.is_empty() && self.is_alone(turn.node)
        });
        let before = if is_kept { 0 } else { self.device.len() } + self.dispatch.len();
        Together { before, waiting: if is_alone { own } else { self.pending }, is_alone }
    }

    /// Returns the time of `count` requests of those together, behind `front` others of them, which cost `cost` in the scheduler's order.
    fn cost_in(&self, t: Together, front: usize, count: usize, cost: Span) -> Span {
        if self.device.fills(t.before + t.waiting + 1) {
            self.device.busy_cost(cost)
        } else {
            self.device.cost_behind(t.before + front, count, cost)
        }
    }

    /// Returns the time of another node's requests before one of those together.
    fn work_before(&self, at: usize, t: Together) -> Span {
        if t.is_alone || self.summaries[at].is_waited_for {
            return self.summaries[at].work;
        }
        self.cost_in(t, 0, t.waiting, self.nodes[at].pending.total())
    }

    /// Returns the time that nodes of other processes get before a request whose own node must first do `front`.
    fn others_part(&self, key: &NodeKey, at: Option<usize>, front: Span, together: Together, now: Time) -> Span {
        let (mut wait, mut turns_first) = (Span::ZERO, 1);
        let slice = at.map_or(self.config.slice, |at| self.nodes[at].slice);
        let mut active_group = None;
        if let Some(turn) = &self.turn {
            let left = turn.ends_at.since(now);
            let active = &self.nodes[turn.node];
            active_group = Some(active.group);
            // One that is preempted goes to the end of its round: behind whoever is in it by then.
            let preempted = self.groups[active.group].waits_above(active.key.class);
            if Some(turn.node) == at {
                if !preempted && front < left {
                    return Span::ZERO;
                }
                turns_first = u64::from(preempted);
            } else if !preempted && (active.key.tenant != key.tenant || tree_of(active.key.class) <= tree_of(key.class))
            {
                wait += self.turn_cost(turn.node, together, left);
            }
        }
        let Some(own) = self.groups.iter().position(|g| g.tenant == key.tenant) else {
            return wait + self.other_groups(None, active_group, front, together);
        };
        let turns = front.as_nanos() / slice.as_nanos().max(1) + turns_first;
        let (group, tree) = (&self.groups[own], tree_of(key.class));
        let mut inside = Span::ZERO;
        for &n in group.round[..tree].iter().flatten() {
            inside += self.work_before(n, together);
        }
        let mut before_us = true;
        for &n in &group.round[tree] {
            if Some(n) == at {
                before_us = false;
                continue;
            }
            let turns = if before_us { turns } else { turns - 1 };
            if turns > 0 {
                inside += self.turn_cost(n, together, self.summaries[n].slice * turns);
            }
        }
        wait + inside + self.other_groups(Some(own), active_group, inside + front, together)
    }

    /// Returns the part of `time` that a node uses.
    fn turn_cost(&self, node: usize, together: Together, time: Span) -> Span {
        let work = self.work_before(node, together);
        if work >= time {
            return time;
        }
        let idle = if self.summaries[node].is_waited_for { self.config.slice_idle } else { Span::ZERO };
        (work + idle).min(time)
    }

    /// Returns the time owed to other groups once a group has had `work` more.
    fn other_groups(&self, own: Option<usize>, active: Option<usize>, work: Span, together: Together) -> Span {
        if self.groups.len() < 2 && own.is_some() {
            return Span::ZERO;
        }
        let starts = self.groups.iter().enumerate().filter(|(i, g)| g.waits() || active == Some(*i));
        let least = starts.map(|(_, g)| g.had).min().unwrap_or(0);
        let until = match own {
            Some(own) => {
                let g = &self.groups[own];
                let had = if g.waits() || active == Some(own) { g.had } else { g.had.max(least) };
                had + g.charge(work)
            }
            None => least + Group::new(TenantId(0), WEIGHT_DEFAULT).charge(work),
        };
        let mut sum = Span::ZERO;
        for (i, g) in self.groups.iter().enumerate() {
            if Some(i) == own || !g.waits() || g.had > until {
                continue;
            }
            // A turn is begun whole by who has had no more than us.
            let first = g.round.iter().flatten().next().map_or(Span::ZERO, |n| self.nodes[*n].slice);
            let owed = g.time_of(until - g.had).max(first);
            let work = g
                .round
                .iter()
                .flatten()
                .fold(Span::ZERO, |sum, n| if sum >= owed { sum } else { sum + self.work_before(*n, together) });
            sum += work.min(owed);
        }
        sum
    }
}

impl Layer for Cfq {
    fn name(&self) -> &'static str {
        "cfq"
    }

    fn offer(&self, below: &[Offer]) -> Offer {
        Offer { queue_max: u32::MAX, ..below[0] }
    }

    fn start(&mut self, _now: Time, below: &[Offer], _out: &mut Actions) {
        self.device.limit_depth(below[0].queue_max);
    }

    fn forecast(&self, at: Time, head: &IoHead, below: Ports<'_>) -> Forecast {
        let (key, now) = (NodeKey::of(head), below.now());
        let node = self.index.get(&key).copied();
        let outside =
            self.device.busy_for(now) + self.device.busy_cost(self.dispatch_cost + self.device.declared_cost());
        let (own, count, cost) = if head.op == Op::Flush {
            (Span::ZERO, 0, self.device.model().cost(at, 0, head))
        } else {
            self.own_part(at, node, head)
        };
        // Priced as it will be judged when its turn has come.
        let together = match node {
            _ if head.op == Op::Flush => {
                Together { before: self.device.len() + self.dispatch.len(), ..Together::default() }
            }
            Some(at) => self.together(node, self.is_alone(at), self.nodes[at].pending.len()),
            None => self.together(None, key.may_be_waited_for(self.config.slice_idle), 0),
        };
        let front_count = if together.is_alone { count } else { together.waiting };
        let front = if head.op == Op::Flush || self.pending == 0 && self.turn.is_none() {
            Span::ZERO
        } else if self.config.predict_order {
            let own = self.cost_in(together, 0, front_count, own);
            own + self.others_part(&key, node, own, together, now)
        } else {
            self.nodes.iter().map(|(at, _)| self.summaries[at].work).sum()
        };
        // Until it comes, what is there is worked off.
        let wait = (outside + front).saturating_sub(at.since(now));
        let (own, confidence) = self.device.own_part(at, wait, head, self.cost_in(together, front_count, 1, cost));
        below.serve(wait, own, confidence)
    }

    fn submit(&mut self, now: Time, io: Io, out: &mut Actions) {
        self.device.retracted(io.id);
        let at = self.node_of(&io.head);
        if io.op == Op::Flush {
            // It has no address to sort by: it goes straight to the dispatch queue.
            self.nodes[at].outside += 1;
            let cost = self.device.model().cost(now, 0, &io);
            self.dispatch_cost += cost;
            self.dispatch.push_back(Dispatched { node: at, io, cost, queued: cost });
            return self.fill_device(now, late::REVOKED_MAX, out);
        }
        let was_empty = self.nodes[at].pending.is_empty();
        let cost = self.add_pending(now, at, io);
        let has_turn = self.turn.as_ref().is_some_and(|t| t.node == at);
        if was_empty && !has_turn {
            self.join_round(at);
        }
        let mut left = late::REVOKED_MAX;
        if self.others_wait() {
            self.delay_others(now, at, cost);
            let group = self.nodes[at].group;
            left = self.revoke_late(now, group, left, out);
        }
        self.fill_device(now, left, out);
    }

    fn completed(&mut self, now: Time, mut c: Completion, out: &mut Actions) {
        self.device.completed(now, &mut c);
        let node = self.outside.remove(&c.io.id).expect("what comes back was sent");
        self.nodes[node].came_back(now);
        self.summarize(node);
        out.complete(c);
        let (group, is_empty) = (self.nodes[node].group, self.nodes[node].pending.is_empty());
        if is_empty && self.nodes[node].outside == 0 && self.groups[group].has_left {
            self.turn.take_if(|t| t.node == node);
            self.drop_if_left(group);
        }
        self.fill_device(now, late::REVOKED_MAX, out);
    }

    fn wake(&mut self, now: Time, out: &mut Actions) {
        let left = self.end_overdue(now, out);
        let left = self.go_on_revoking(now, left, out);
        self.fill_device(now, left, out);
    }

    fn cancel(&mut self, now: Time, id: IoId, out: &mut Actions) {
        if let Some(&(at, key)) = self.places.get(&id) {
            let io = self.withdraw(now, at, key).expect("it is known to wait");
            out.end(io, Outcome::Failed(IoError::Cancelled));
            if self.nodes[at].in_round && self.nodes[at].pending.is_empty() {
                let (group, tree) = (self.nodes[at].group, tree_of(self.nodes[at].key.class));
                self.groups[group].round[tree].retain(|n| *n != at);
                self.nodes[at].in_round = false;
            }
            self.fill_device(now, late::REVOKED_MAX, out);
        }
    }

    fn declared(&mut self, head: &IoHead, _out: &mut Actions) {
        self.device.declared(head);
    }

    fn retracted(&mut self, id: IoId, _out: &mut Actions) {
        self.device.retracted(id);
    }

    fn tenant(&mut self, now: Time, tenant: TenantId, terms: Option<&Terms>, out: &mut Actions) {
        match terms {
            Some(terms) => self.set_weight(tenant, terms.weight),
            None => {
                self.forget_tenant(now, tenant);
                self.fill_device(now, late::REVOKED_MAX, out);
            }
        }
    }

    fn told(&mut self, now: Time, message: &[u8], out: &mut Actions) -> bool {
        let Some(CfqControl::SliceIdle(idle)) = CfqControl::decode(message) else { return false };
        self.set_slice_idle(idle);
        // Whoever the device is kept for may no longer be waited for.
        self.fill_device(now, late::REVOKED_MAX, out);
        true
    }

    fn is_idle(&self) -> bool {
        self.pending == 0 && self.dispatch.is_empty() && self.device.is_empty()
    }

    fn check(&self) {
        self.device.check();
        assert_eq!(self.outside.len(), self.device.len(), "a request at the device has no node");
        assert!(self.due.len() <= self.pending, "a promise waits without its request");
        assert_eq!(self.places.len(), self.pending, "a waiting request isn't found by its id");
        if self.nodes.len() > CHECKED_EACH_MAX || self.dispatch.len() > CHECKED_EACH_MAX {
            return;
        }
        let (mut pending, mut outside) = (0, 0);
        for (at, node) in &self.nodes {
            pending += node.pending.len();
            outside += node.outside as usize;
            let round = &self.groups[node.group].round[tree_of(node.key.class)];
            assert_eq!(round.contains(&at), node.in_round, "node {at} and its round don't agree");
            let has_turn = self.turn.as_ref().is_some_and(|t| t.node == at);
            assert!(
                node.pending.is_empty() || node.in_round || has_turn,
                "node {at} waits for a turn that never comes"
            );
            assert!(!node.pending.is_empty() || !node.in_round, "node {at} is in the round with nothing to send");
        }
        assert_eq!(self.pending, pending, "waiting requests are counted wrongly");
        assert_eq!(self.dispatch.len() + self.outside.len(), outside, "dispatched requests are counted wrongly");
        let cost = self.dispatch.iter().fold(Span::ZERO, |sum, d| sum + d.cost);
        assert_eq!(self.dispatch_cost, cost, "the cost of dispatched requests is wrong");
    }
}

#[cfg(test)]
mod tests;
