//! Requests at the device, and the time at which it will have finished them: the shared end of every prediction.
//!
//! The device's own queue is modelled as the drive's discipline serves it: in order of arrival, or the nearest first
//! (`sstfTime`, Appendix A, MT-M9). It is worked out when it's first asked for after the queue has changed.

use crate::disk::{DiskModel, Ratio, moves_arm};
use plimsoll_base::{Completion, Confidence, IoHead, IoId, Op, Span, Time};
use plimsoll_stack::layer::CHECKED_MAX;
use serde::{Deserialize, Serialize};
use std::cell::Cell;
use std::collections::BTreeMap;

/// A device's own order of requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum Discipline {
    /// As it came.
    Fifo,
    /// The nearest first.
    #[default]
    Sstf,
}

/// Number of requests beyond which the order isn't computed: the rest is taken in order of arrival.
const SSTF_MAX: usize = 32;

/// After this long without a completed read a device that has none is asked again whatever was learned of it: or a service
/// time that was learned too long would refuse every read, and so never be corrected.
pub(crate) const PROBE_AFTER: Span = Span::from_secs(1);

/// A request that is still in service after all of its predicted time: this share of it is expected to be left.
const OVERDUE_SHARE: u64 = 8;

#[derive(Clone, Copy)]
struct AtDevice {
    head: IoHead,
    dispatched_at: Time,
    /// Predicted for it after what was there when it came: what it costs where the order is that of arrival.
    cost: Span,
    /// Predicted for it while it waited in the scheduler, if it did.
    queued: Option<Span>,
    /// Learned time, if the request was predicted to be late and was sent all the same.
    asked_again: Option<Span>,
}

/// Shift of the moving average of queued work's real time: each sample has the weight 1/2 to the power of this, as a single
/// request carries little information.
const QUEUED_SHIFT: u32 = 7;

/// Prediction for all requests at the device.
#[derive(Clone, Copy)]
struct Outlook {
    /// For what it completes next, and for all that it has.
    next_cost: Span,
    all_cost: Span,
    /// Position of the arm at that time.
    arm_after: u64,
}

/// See the module's documentation.
pub struct DeviceQueue {
    model: DiskModel,
    discipline: Discipline,
    depth: usize,
    /// In order of dispatch; at most `depth`.
    at_device: Vec<AtDevice>,
    /// Last known position of the arm.
    arm: u64,
    /// Since when the device has been working on what it completes next.
    progress_since: Time,
    /// Time at which it last completed a read.
    last_read: Time,
    /// Worked out since the queue last changed, or not yet.
    outlook: Cell<Option<Outlook>>,
    /// Real time of work that was predicted in the scheduler's order, while the drive chooses among the full depth of requests.
    queued: Ratio,
    /// Announced by layers above.
    declared: BTreeMap<IoId, Span>,
    declared_cost: Span,
}

impl DeviceQueue {
    /// An idle device that is given at most `depth` requests at once.
    ///
    /// # Panics
    /// If `depth` is zero.
    pub fn new(model: DiskModel, discipline: Discipline, depth: u32) -> DeviceQueue {
        assert!(depth > 0, "a device with depth 0 would serve nothing");
        DeviceQueue {
            model,
            discipline,
            depth: depth as usize,
            at_device: Vec::new(),
            arm: 0,
            progress_since: Time::ZERO,
            last_read: Time::ZERO,
            outlook: Cell::new(None),
            queued: Ratio::NEUTRAL,
            declared: BTreeMap::new(),
            declared_cost: Span::ZERO,
        }
    }

    /// Asserts that its sums are those of what they count.
    pub(crate) fn check(&self) {
        if self.declared.len() <= CHECKED_MAX {
            let declared = self.declared.values().fold(Span::ZERO, |sum, cost| sum + *cost);
            assert_eq!(self.declared_cost, declared, "declared work is counted twice, or after it has ended");
        }
    }

    /// The device takes no more than this.
    pub fn limit_depth(&mut self, queue_max: u32) {
        self.depth = self.depth.min(queue_max as usize).max(1);
    }

    /// Returns the model of the costs of requests.
    pub fn model(&self) -> &DiskModel {
        &self.model
    }

    /// True if another request may go to the device.
    pub fn has_room(&self) -> bool {
        self.at_device.len() < self.depth
    }

    /// Requests at the device.
    pub fn len(&self) -> usize {
        self.at_device.len()
    }

    /// True if no request is at the device.
    pub fn is_empty(&self) -> bool {
        self.at_device.is_empty()
    }

    /// Returns the position of the arm after all requests at the device.
    pub fn arm_after(&self) -> u64 {
        match (self.outlook.get(), self.discipline) {
            (Some(outlook), _) => outlook.arm_after,
            (None, Discipline::Fifo) => self.last_end(),
            (None, Discipline::Sstf) => self.outlook().arm_after,
        }
    }

    /// Returns the end of the last request that was sent.
    fn last_end(&self) -> u64 {
        let last = self.at_device.iter().rev().find(|d| moves_arm(d.head.op));
        last.map_or(self.arm, |d| d.head.end())
    }

    /// Returns the time of work that the scheduler predicts to cost `cost`, when the device is kept full.
    pub fn busy_cost(&self, cost: Span) -> Span {
        if self.depth <= 1 || !self.model.calibrates() { cost } else { self.queued.apply(cost) }
    }

    /// Returns the time of a request that the scheduler predicts to cost `cost`, where something `waits` before it or nothing does. One that goes
    /// to the device at once takes the time of one among those that the device then has. Otherwise it waits for a full queue, and takes
    /// the time of one of that.
    pub fn own_cost(&self, cost: Span, waits: bool) -> Span {
        if waits || !self.has_room() {
            self.busy_cost(cost)
        } else {
            self.model.at_depth(cost, self.at_device.len() + 1)
        }
    }

    /// Returns the time of `count` requests that the scheduler predicts to cost `cost` together, and that go to the device behind `before`
    /// others, if it has room for all: each takes the time of one among those that it then has.
    pub fn cost_behind(&self, before: usize, count: usize, cost: Span) -> Span {
        let all = before + count;
        let (mut sum, mut depth) = (Span::ZERO, before + 1);
        while depth <= all {
            // The depths up to a power of two have one ratio.
            let last = depth.next_power_of_two().min(all);
            sum += self.model.at_depth(cost, depth) * (last + 1 - depth) as u64;
            depth = last + 1;
        }
        sum / count.max(1) as u64
    }

    /// True if `count` requests are more than the device may have at once.
    pub fn fills(&self, count: usize) -> bool {
        count > self.depth
    }

    /// Returns the time of a request that costs `cost`, at a device that has all that it may have.
    pub fn cost_when_full(&self, cost: Span) -> Span {
        self.model.at_depth(cost, self.depth)
    }

    /// Among how many the drive chooses its next but `step`: as long as it's full it's filled up again.
    fn choice(&self, step: usize, is_full: bool) -> usize {
        if is_full { self.depth } else { self.at_device.len() - step }
    }

    /// In which order, and until when, the device works.
    fn outlook(&self) -> Outlook {
        self.outlook.get().unwrap_or_else(|| {
            let outlook = self.outlook_if(self.at_device.len() == self.depth);
            self.outlook.set(Some(outlook));
            outlook
        })
    }

    fn outlook_if(&self, is_full: bool) -> Outlook {
        let nearest_first = self.discipline == Discipline::Sstf && self.at_device.len() <= SSTF_MAX;
        if nearest_first { self.nearest_first(is_full) } else { self.as_it_came(is_full) }
    }

    fn as_it_came(&self, is_full: bool) -> Outlook {
        let cost_of = |(i, d): (usize, &AtDevice)| self.model.at_depth(d.cost, self.choice(i, is_full));
        let mut costs = self.at_device.iter().enumerate().map(cost_of);
        let next_cost = costs.next().unwrap_or(Span::ZERO);
        let all_cost = next_cost + costs.fold(Span::ZERO, |sum, cost| sum + cost);
        Outlook { next_cost, all_cost, arm_after: self.last_end() }
    }

    /// The order of a drive that takes the nearest first: quadratic in what it has, which for such a drive is little time.
    fn nearest_first(&self, is_full: bool) -> Outlook {
        let n = self.at_device.len();
        let mut left: u64 = (1 << n) - 1;
        let mut outlook = Outlook { next_cost: Span::ZERO, all_cost: Span::ZERO, arm_after: self.arm };
        for step in 0..n {
            let arm = outlook.arm_after;
            let waits = (0..n).filter(|i| left >> i & 1 != 0);
            let next = waits.min_by_key(|&i| self.at_device[i].head.offset.abs_diff(arm)).expect("one is left");
            let head = &self.at_device[next].head;
            let cost = self.model.at_depth(self.model.cost(self.progress_since, arm, head), self.choice(step, is_full));
            if moves_arm(head.op) {
                outlook.arm_after = head.end();
            }
            if step == 0 {
                outlook.next_cost = cost;
            }
            outlook.all_cost += cost;
            left &= !(1 << next);
        }
        outlook
    }

    /// A request goes to the device; `queued` was predicted for it while it waited, if it did.
    pub fn dispatched(&mut self, now: Time, head: &IoHead, queued: Option<Span>) {
        let alone = self.at_device.is_empty();
        if alone {
            self.progress_since = now;
        }
        let asked_again = self.asks_again(now, head);
        let in_order = self.discipline == Discipline::Fifo || self.depth > SSTF_MAX;
        // In the order of nearness the cost is worked out with the order.
        let cost =
            if alone || in_order { self.model.cost(self.progress_since, self.arm_after(), head) } else { Span::ZERO };
        let arm_after = if moves_arm(head.op) { head.end() } else { self.arm };
        self.at_device.push(AtDevice { head: *head, dispatched_at: now, cost, queued, asked_again });
        let cost = self.model.at_depth(cost, 1);
        self.outlook.set(alone.then_some(Outlook { next_cost: cost, all_cost: cost, arm_after }));
    }

    /// The device has answered: the model learns, and the completion is stamped with its dispatch.
    ///
    /// # Panics
    /// If the request isn't at the device.
    pub fn completed(&mut self, now: Time, c: &mut Completion) {
        let at = self.at_device.iter().position(|d| d.head.id == c.io.id);
        let at = at.expect("completions are of requests that were sent");
        let depth = self.at_device.len();
        let d = self.at_device.remove(at);
        let busy = now.since(d.dispatched_at.max(self.progress_since));
        if c.outcome.is_done() {
            if let Some(queued) = d.queued
                && depth == self.depth
                && depth > 1
            {
                self.queued.learn(busy.as_nanos() as i64, queued.as_nanos() as i64, QUEUED_SHIFT);
            }
            if let Some(learned) = d.asked_again.filter(|learned| busy < *learned) {
                // What queues took is forgotten first. It may have been all that was wrong: then the costs are right as they are.
                self.queued = Ratio::NEUTRAL;
                let own = self.model.cost(d.dispatched_at, self.arm, &d.head);
                self.model.ease(busy, learned.min(own));
            }
            self.model.learn(now, self.arm, &d.head, busy, depth);
            if d.head.op == Op::Read {
                self.last_read = now;
            }
        }
        if moves_arm(d.head.op) {
            self.arm = d.head.end();
        }
        self.progress_since = now;
        self.outlook.set(None);
        c.dispatched_at = c.dispatched_at.min(d.dispatched_at);
    }

    /// A layer above will send this later.
    pub fn declared(&mut self, head: &IoHead) {
        let cost = self.model.cost(self.progress_since, self.arm_after(), head);
        self.declared_cost += cost;
        if let Some(before) = self.declared.insert(head.id, cost) {
            self.declared_cost -= before; // said again, by now at another cost
        }
    }

    /// It won't, or it's here now.
    pub fn retracted(&mut self, id: IoId) {
        if !self.declared.is_empty()
            && let Some(cost) = self.declared.remove(&id)
        {
            self.declared_cost -= cost;
        }
    }

    /// Returns the cost of declared work that hasn't arrived.
    pub fn declared_cost(&self) -> Span {
        self.declared_cost
    }

    /// Returns the time that the device still works on its present requests, seen at `at`.
    pub fn busy_for(&self, at: Time) -> Span {
        if self.at_device.is_empty() {
            return Span::ZERO;
        }
        self.left_of(self.outlook(), at)
    }

    /// Returns the same if others follow as long as the device works on its present requests.
    pub fn busy_for_when_full(&self, at: Time) -> Span {
        if self.at_device.is_empty() {
            return Span::ZERO;
        }
        self.left_of(self.outlook_if(true), at)
    }

    fn left_of(&self, Outlook { next_cost, all_cost, .. }: Outlook, at: Time) -> Span {
        let least = next_cost / OVERDUE_SHARE;
        let left = next_cost.saturating_sub(at.since(self.progress_since)).max(least);
        all_cost.saturating_sub(next_cost) + left
    }

    /// True if no read was seen of the device for `PROBE_AFTER`, and none is at it. A read must then be sent to learn its state.
    fn is_forgotten(&self, at: Time) -> bool {
        at.since(self.last_read) > PROBE_AFTER && self.at_device.iter().all(|d| d.head.op != Op::Read)
    }

    /// Predicts the own time of a request that arrives at `at`, waits for `wait` and was learned to take `learned`, and the
    /// confidence of that.
    ///
    /// A read that would be late is let through if none was seen for a long time. Its cost is then assumed to be the measured
    /// one, or zero without a measurement.
    pub fn own_part(&self, at: Time, wait: Span, head: &IoHead, learned: Span) -> (Span, Confidence) {
        let is_late = head.op == Op::Read && head.deadline.is_set() && at + wait + learned > head.deadline;
        if !is_late || !self.is_forgotten(at) {
            return (learned, self.confidence());
        }
        let confidence = if self.model.is_profiled() { self.confidence() } else { Confidence::NONE };
        (self.model.measured_cost(at, self.arm_after(), head).min(learned), confidence)
    }

    /// Returns the learned time of a read that goes to the device although that time would make it late.
    fn asks_again(&self, now: Time, head: &IoHead) -> Option<Span> {
        if head.op != Op::Read || !head.deadline.is_set() || !self.is_forgotten(now) {
            return None;
        }
        let learned = self.own_cost(self.model.cost(now, self.arm_after(), head), false);
        (now + learned > head.deadline).then_some(learned)
    }

    /// Returns the model's confidence.
    pub fn confidence(&self) -> Confidence {
        self.model.confidence()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::OpCosts;
    use plimsoll_base::{Data, Io, Outcome, TenantId, VolumeKey};

    /// A millisecond a gigabyte.
    fn linear() -> DiskModel {
        let points = vec![(4096, Span::from_nanos(4)), (1 << 40, Span::from_millis(1024))];
        let c = OpCosts { sequential: Span::ZERO, distances: [points.clone(), points], transfer_ns_per_kib: [0; 8] };
        DiskModel::from_costs(1 << 40, &[c.clone(), c], 0)
    }

    fn read(id: u64, gib: u64) -> IoHead {
        let mut h = IoHead::new(Op::Read, VolumeKey::POOL, TenantId(0), gib << 30, 0, Time::ZERO);
        h.id = IoId(id);
        h
    }

    fn about(a: Span, ms: u64) {
        let want = Span::from_millis(ms).as_nanos();
        assert!(a.as_nanos().abs_diff(want) <= want / 20 + 100_000, "{a} instead of {ms} ms");
    }

    /// Appendix A's example: the arm is near D, so D goes first, and the others on the way back.
    #[test]
    fn the_nearest_goes_first() {
        for (discipline, ms) in [(Discipline::Fifo, 10 + 60 + 50 + 90), (Discipline::Sstf, 10 + 10 + 90)] {
            let mut q = DeviceQueue::new(linear(), discipline, 8);
            for (id, gib) in [(1, 10), (2, 70), (3, 20), (4, 110)] {
                q.dispatched(Time::ZERO, &read(id, gib), None);
            }
            about(q.busy_for(Time::ZERO), ms);
        }
    }

    /// A drive that takes the nearest first needs less for each than their order of arrival says: what waits is believed to
    /// take what such work took.
    #[test]
    fn what_waits_takes_what_waiting_work_took() {
        let mut q = DeviceQueue::new(linear(), Discipline::Sstf, 2);
        let mut now = Time::ZERO;
        let said = Span::from_millis(100);
        q.dispatched(now, &read(0, 0), Some(said));
        for id in 1..2000 {
            q.dispatched(now, &read(id, id % 7 * 10), Some(said));
            now += Span::from_millis(25);
            let io = Io::new(read(id - 1, (id - 1) % 7 * 10), Data::Absent);
            q.completed(now, &mut Completion { io, outcome: Outcome::Done, dispatched_at: Time::NEVER });
        }
        about(q.busy_cost(said * 10), 250);
    }

    /// This machine paused for 20 s under a full queue: that is no cost of waiting work, and what is asked again isn't made cheaper for it.
    #[test]
    fn one_pause_does_not_raise_all_costs() {
        let mut q = DeviceQueue::new(linear(), Discipline::Fifo, 2);
        let mut now = Time::ZERO;
        let said = Span::from_millis(4);
        q.dispatched(now, &read(0, 0), Some(said));
        for id in 1..400 {
            q.dispatched(now, &read(id, id % 2 * 4), Some(said));
            now += if id == 300 { Span::from_secs(20) } else { said };
            let io = Io::new(read(id - 1, (id - 1) % 2 * 4), Data::Absent);
            q.completed(now, &mut Completion { io, outcome: Outcome::Done, dispatched_at: Time::NEVER });
            let cost = q.busy_cost(said);
            assert!(cost < said * 2, "after {id}: {cost}");
        }
    }

    #[test]
    fn commands_do_not_move_the_arm() {
        let mut q = DeviceQueue::new(linear(), Discipline::Fifo, 8);
        q.dispatched(Time::ZERO, &read(1, 10), None);
        let arm = q.arm_after();
        for (id, op) in [(2, Op::BlockStatus), (3, Op::Cache), (4, Op::Trim)] {
            q.dispatched(Time::ZERO, &IoHead { op, len: 1 << 30, ..read(id, 500) }, None);
            assert_eq!(q.arm_after(), arm, "{op:?}");
        }
    }

    #[test]
    fn what_is_declared_twice_counts_once_and_goes_whole() {
        let mut q = DeviceQueue::new(linear(), Discipline::Fifo, 8);
        q.declared(&read(1, 10));
        let once = q.declared_cost();
        q.dispatched(Time::ZERO, &read(2, 500), None);
        q.declared(&read(1, 10));
        assert!(q.declared_cost() > once, "the arm is elsewhere by now");
        q.retracted(IoId(1));
        assert_eq!(q.declared_cost(), Span::ZERO);
    }

    #[test]
    fn time_passes_and_a_late_one_is_not_counted_for_ever() {
        let mut q = DeviceQueue::new(linear(), Discipline::Fifo, 8);
        q.dispatched(Time::ZERO, &read(1, 80), None);
        about(q.busy_for(Time::ZERO + Span::from_millis(30)), 50);
        about(q.busy_for(Time::ZERO + Span::from_millis(300)), 10);
        let io = Io::new(read(1, 80), Data::Absent);
        let now = Time::ZERO + Span::from_millis(300);
        q.completed(now, &mut Completion { io, outcome: Outcome::Done, dispatched_at: Time::NEVER });
        about(q.busy_for(now), 0);
    }
}
