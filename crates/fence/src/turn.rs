//! Course of a turn: batches go out, it ends, the next begins; idle time is lent.

use crate::layer::Fence;
use crate::predict::{Arm, Forming, Predictor};
use crate::queue::{Lane, Leaving};
use crate::state::{Role, Sent};
use crate::status::SlotCounters;
use crate::timetable::Timetable;
use plimsoll_base::{Confidence, Io, IoFlags, IoHead, Op, Outcome, Span, Time, VolumeKey};
use plimsoll_stack::{Actions, Port};

/// Requests that are lent an owner's time for together.
const LENT_MAX: usize = 4;
/// A slot's owner that has been idle for this part of a slot gives the rest of the turn away. A client whose next request follows
/// the answer at once isn't too late.
pub(crate) const GRACE_PART: u64 = 50;
/// This part of a slot is kept in reserve where predictions that were wrong have cost owners enough.
const RESERVE_PART: u64 = 4;
/// A turn that begins later than this part of a slot, because the engine was held up, begins anew.
const LATE_PART: u64 = 4;
/// Longer than anything takes.
const FOREVER: Span = Span::from_nanos(u64::MAX);
/// Part of a turn, from its start, in which requests longer than a whole slot may be sent.
const FRESH_PART: u64 = 8;
/// Number of rotations after which a waiting request without slots goes at the beginning of the running turn; one request in
/// each such period.
pub(crate) const OVERDUE_ROTATIONS: u64 = 16;

impl Fence {
    /// Counts idle and lent time up to `now`, before anything changes.
    pub(crate) fn account(&mut self, now: Time) {
        if !self.config.hybrid {
            return;
        }
        let used = self.devices[0].lent > 0;
        let wanted = used || !self.without[0].is_empty();
        let idle = wanted && (self.given || self.owner().is_none() || self.owner_is_idle(&self.table));
        self.lent.account(now, idle, used);
    }

    /// Ends turns that are over.
    pub(crate) fn end_turns(&mut self, now: Time) {
        self.pass_on(now);
        if self.busy() > 0 {
            return;
        }
        if std::mem::take(&mut self.closing) {
            self.end_turn(now.max(self.busy_until()));
        }
        if self.waiting == 0 && self.change.is_none() && self.busy_until() <= self.table.ends_at() {
            return self.pass(now);
        }
        while now >= self.table.ends_at() {
            self.end_turn(self.table.ends_at().max(self.busy_until()));
            let has_work = match self.owner() {
                Some(v) => self.volumes.get(&v).is_some_and(|v| v.waiting() > 0),
                None => self.without.iter().any(|l| !l.is_empty()),
            };
            if has_work {
                let late = now.since(self.table.began_at());
                if late.as_nanos() > self.table.slot().as_nanos() / LATE_PART {
                    self.table.begin_late(now);
                }
                if now < self.table.ends_at() {
                    return;
                }
            }
        }
    }

    /// Returns the end of the last request of this turn.
    fn busy_until(&self) -> Time {
        self.own_until.max(self.lent_until)
    }

    /// Lets lent time go on from a turn into one without an owner.
    pub(crate) fn pass_on(&mut self, now: Time) {
        let lent_only = |f: &Fence| f.busy() > 0 && f.devices.iter().all(|d| d.owners == 0);
        while self.change.is_none()
            && !self.closing
            && now >= self.table.ends_at()
            && lent_only(self)
            && self.stretch().1 > self.table.ends_at()
        {
            self.end_turn(self.table.ends_at());
        }
    }

    /// Returns the owner of the next turn that has one, and the start of that turn.
    fn stretch(&self) -> (Option<VolumeKey>, Time) {
        let mut table = self.table;
        for _ in 0..table.slots() {
            let ends_at = table.ends_at();
            table.end(ends_at, ends_at);
            if let Some(owner) = self.slots.owner(table.running()) {
                return (Some(owner), ends_at);
            }
        }
        (None, table.ends_at())
    }

    /// Returns the time that requests without slots may take now: as predicted, up to the next owner's turn.
    fn lendable(&self, now: Time) -> Span {
        let (next, until) = self.stretch();
        let rest = until.since(now);
        let toll = next.and_then(|v| self.volumes.get(&v)).map(|v| v.toll);
        match toll.is_none_or(|t| t.may_lend(self.config.lend_permille)) {
            true => rest,
            false => rest.saturating_sub(self.table.slot().scale(1, RESERVE_PART)),
        }
    }

    /// Returns the time at which the running turn's owner has been idle for long enough.
    pub(crate) fn lendable_from(&self, table: &Timetable) -> Time {
        let quiet_since = if table.began_at() == self.table.began_at() { self.quiet_since } else { Time::ZERO };
        quiet_since.max(table.began_at()) + table.slot().scale(1, GRACE_PART)
    }

    /// True if the rest of the running turn of `table` is lent, or would be lent at `at` because its owner is idle.
    pub(crate) fn is_lendable(&self, table: &Timetable, at: Time) -> bool {
        let given = self.given && table.began_at() == self.table.began_at();
        self.config.lends() && (given || (self.owner_is_idle(table) && at > self.lendable_from(table)))
    }

    /// Turns at whose end nothing waits pass. The same slot's next turn is a new one, too.
    fn pass(&mut self, now: Time) {
        let (running, began_at) = (self.table.running(), self.table.began_at());
        let counters = &mut self.slot_counters;
        self.table.pass_counting(now, &mut |slot, turns| counters[slot].turns += turns);
        if self.table.began_at() != began_at {
            self.slot_counters[running].used += u64::from(self.devices.iter().any(|d| d.used));
            self.new_turn();
        }
    }

    fn new_turn(&mut self) {
        (self.own_until, self.lent_until) = (Time::ZERO, Time::ZERO);
        (self.quiet_since, self.given) = (Time::ZERO, false);
        self.devices.iter_mut().for_each(|d| (d.used, d.at_home) = (false, false));
    }

    fn end_turn(&mut self, at: Time) {
        let (running, ends_at) = (self.table.running(), self.table.ends_at());
        let (owners, lent_last) = (self.owner().is_some(), self.lent_until > self.own_until);
        // What a borrower overran after the owner's last request isn't the owner's debt.
        let own = if owners && lent_last { self.own_until } else { at };
        let charged = own.clamp(ends_at.min(at), at);
        let c = &mut self.slot_counters[running];
        c.turns += 1;
        c.used += u64::from(self.devices.iter().any(|d| d.used));
        if at < ends_at {
            c.early = (c.early.0 + 1, c.early.1 + ends_at.since(at));
        } else if charged > ends_at {
            c.overruns = (c.overruns.0 + 1, c.overruns.1 + charged.since(ends_at));
        }
        self.table.end(at, own);
        if at > ends_at && lent_last {
            match owners {
                true => self.borrowers_delayed(0, at.since(charged.max(ends_at)), None),
                false => self.borrowers_delayed(0, at.since(ends_at), Some(running)),
            }
        }
        self.new_turn();
        self.apply_change(at);
    }

    pub(crate) fn apply_change(&mut self, at: Time) {
        let Some((slots, slot)) = self.change.take() else { return };
        self.new_turn();
        // Credit and debit are in slots of the old length: they are forgotten. Counts go on.
        let counted = self.slot_counters.len().max(slots as usize);
        self.slot_counters.resize(counted, SlotCounters::default());
        (self.config.slots, self.config.slot) = (slots, slot);
        self.table = Timetable::new(at, slots, slot);
        self.slots.resize(slots as usize, &self.promised);
    }

    /// Lets the slot that runs go on, and the next if it has ended.
    pub(crate) fn go_on(&mut self, now: Time, out: &mut Actions) {
        loop {
            self.end_turns(now);
            match self.owner() {
                Some(v) => {
                    self.help(now, v, out);
                    self.serve(now, Some(v), out);
                    self.lend(now, out);
                }
                None => self.serve(now, None, out),
            }
            if !self.closing || self.busy() > 0 {
                break;
            }
        }
        // Where a batch overruns, its end is what comes next.
        if (self.waiting > 0 || self.change.is_some()) && self.table.ends_at() > now {
            out.wake_at(self.table.ends_at());
        }
        if let Some((until, ..)) = self.padded.front() {
            out.wake_at(*until);
        }
        self.check();
    }

    fn lane(&mut self, whose: Option<VolumeKey>, d: usize) -> Option<&mut Lane> {
        match whose {
            None => self.without.get_mut(d),
            Some(v) => self.volumes.get_mut(&v).map(|v| &mut v.lanes[d]),
        }
    }

    /// Sends what fits of a volume's requests (or of those without slots).
    fn serve(&mut self, now: Time, whose: Option<VolumeKey>, out: &mut Actions) {
        let role = if whose.is_some() { Role::Owner } else { Role::Lent };
        if self.closing {
            return;
        }
        if now >= self.table.ends_at() {
            // VF-M11, VF-A3: while a batch of the scarce device overruns, the others get one request at a time of who overruns.
            let overruns = if whose.is_some() { self.devices[0].owners } else { self.devices[0].lent };
            for d in 1..self.devices.len() {
                if overruns > 0 && self.devices[d].busy() == 0 {
                    self.send_batch(now, whose, d, (Span::ZERO, 1, FOREVER), role, out);
                }
            }
            return;
        }
        let rest = if whose.is_none() { self.lendable(now) } else { self.table.ends_at().since(now) };
        let fresh = self.is_fresh(now);
        let given = whose.is_some() && self.given;
        for d in 0..self.devices.len() {
            self.revoke_late(now, whose, d, out);
            if given || self.devices[d].busy() > 0 || self.lane(whose, d).is_none_or(|l| l.is_empty()) {
                continue;
            }
            let first = fresh && !self.devices[d].used;
            let anyway = if first { self.first_anyway(d) } else { Span::ZERO };
            let most = self.config.devices[d].batch_max;
            // What nobody waits for ends no turn, but if it's longer than a whole one: it would never go.
            let wanted = self.lane(whose, d).is_some_and(|l| l.is_wanted()) || (first && self.table.is_whole());
            if !self.send_batch(now, whose, d, (rest, most, anyway), role, out) && d == 0 && wanted {
                self.closing = true; // VF-M10
                return;
            }
        }
    }

    /// Returns the permitted time of a turn's first batch on device `d` although it doesn't fit.
    fn first_anyway(&self, d: usize) -> Span {
        let config = &self.config;
        match d > 0 || self.table.is_longest() || (config.first_anyway && self.table.is_whole()) {
            true => FOREVER,
            false if config.first_anyway => self.table.slot(),
            false => Span::ZERO,
        }
    }

    /// True in the first part of a turn: before 1/`FRESH_PART` of a slot has passed.
    fn is_fresh(&self, now: Time) -> bool {
        now.since(self.table.began_at()).as_nanos() * FRESH_PART < self.table.slot().as_nanos()
    }

    /// Lends the rest of a turn whose owner is idle.
    fn lend(&mut self, now: Time, out: &mut Actions) {
        let nobody = self.without.iter().all(Lane::is_empty);
        if !self.config.lends() || nobody || self.closing || now >= self.table.ends_at() {
            return;
        }
        if !self.is_lendable(&self.table, now) {
            if self.owner_is_idle(&self.table) {
                out.wake_at(self.lendable_from(&self.table).max(now) + Span::from_nanos(1));
            }
            return;
        }
        let rest = self.lendable(now);
        for d in 0..self.devices.len() {
            if self.devices[d].busy() == 0 && !self.without[d].is_empty() {
                self.send_batch(now, None, d, (rest, LENT_MAX, Span::ZERO), Role::Lent, out);
            }
        }
    }

    /// Serves requests without slots where every slot has an owner. They depend on time that owners leave, which may be none
    /// for ever. So the pool's own work goes at the beginning of a turn whose owner is idle. Once in [`OVERDUE_ROTATIONS`] the
    /// request that has waited longest goes in any case. The owner's turn is lengthened by that time.
    fn help(&mut self, now: Time, owner: VolumeKey, out: &mut Actions) {
        let nobody = self.without.iter().all(Lane::is_empty);
        if nobody || self.slots.free() > 0 || self.closing || self.busy() > 0 || !self.is_fresh(now) {
            return;
        }
        let patience = self.table.slot().scale(OVERDUE_ROTATIONS * self.table.slots() as u64, 1);
        let helped_at = self.helped_at;
        let is_overdue = |since: Time| now.since(since.max(helped_at)) >= patience;
        let idle = self.owner_is_idle(&self.table);
        for d in 0..self.devices.len() {
            let rest = self.table.ends_at().since(now);
            let Some(since) = self.without[d].oldest() else { continue };
            let sent = if is_overdue(since) {
                self.helped_at = now;
                self.without[d].favour_oldest();
                self.send_batch(now, None, d, (Span::ZERO, 1, FOREVER), Role::Lent, out)
            } else {
                let zeroing = !self.without[d].is_wanted();
                zeroing && idle && self.send_batch(now, None, d, (rest, LENT_MAX, Span::ZERO), Role::Lent, out)
            };
            if sent {
                let waits = self.volumes.get(&owner).is_some_and(|v| !v.lanes[d].is_empty());
                self.devices[d].blocked_since = if waits { now } else { Time::NEVER };
                return;
            }
        }
    }

    /// Sends the largest batch that fits. Returns whether there was one.
    fn send_batch(
        &mut self,
        now: Time,
        whose: Option<VolumeKey>,
        d: usize,
        (rest, most, anyway): (Span, usize, Span),
        role: Role,
        out: &mut Actions,
    ) -> bool {
        let (last_end, is_nobodys) = (self.devices[d].last_end, self.owner().is_none());
        let arm = whose.map_or(Arm::At(last_end), |v| self.arm_for(now, v, d));
        let predictor = &self.config.devices[d].predictor;
        let lane = match whose {
            None => &mut self.without[d],
            Some(v) => &mut self.volumes.get_mut(&v).expect("it has requests").lanes[d],
        };
        let waited = lane.cost();
        let (mut batch, predicted) = match (whose, predictor) {
            (None, Predictor::Disk(_)) => lane.take_nearest(predictor, last_end, rest, most, anyway),
            _ => lane.take_batch(predictor, arm, rest, most, anyway),
        };
        let alone = waited.saturating_sub(lane.cost());
        let Some((first, _)) = batch.first() else { return false };
        let moves = |io: &Io| io.len > 0 && matches!(io.op, Op::Read | Op::Write | Op::WriteZeroes);
        debug_assert!(usize::from(first.face) == d);
        self.waiting -= batch.len();
        batch.sort_by_key(|(io, _)| io.offset);
        let mut known = Forming::new(predictor, Arm::At(last_end));
        let known = batch.iter().fold(Span::ZERO, |_, (io, _)| known.add(io));
        // The arm's way back, where it was spared; but nobody is answered later for that than if it hadn't been: what is near may take
        // longer than predicted, and only who is alone would wait for it.
        let pad = if self.config.steady { predicted.saturating_sub(known) } else { Span::ZERO };
        let mut due = Forming::new(predictor, arm);
        let due: Vec<Time> = batch.iter().map(|(io, _)| now + due.add(io)).collect();
        let expected = known + pad;
        let device = &mut self.devices[d];
        (device.began_at, device.due_at) = (now, now + predicted);
        device.used |= role == Role::Owner || is_nobodys;
        if batch.len() > 1 {
            device.batched(predicted, alone);
        }
        device.expected = expected;
        // A flush moves no arm.
        device.at_home = role == Role::Owner && (device.at_home || batch.iter().any(|(io, _)| moves(io)));
        match role {
            Role::Owner => {
                device.owners += batch.len() as u32;
                let c = &mut device.counters;
                (c.batches, c.requests) = (c.batches + 1, c.requests + batch.len() as u64);
                c.predicted += expected;
            }
            _ => device.lent += batch.len() as u32,
        }
        if let Some((io, _)) = batch.iter().rev().find(|(io, _)| moves(io)) {
            device.last_end = io.end();
        }
        for (leaving, due_at) in batch.into_iter().zip(due) {
            self.send(now, leaving, (role, pad, due_at), out);
        }
        true
    }

    pub(crate) fn send(
        &mut self,
        now: Time,
        (mut io, since): Leaving,
        (role, pad, due_at): (Role, Span, Time),
        out: &mut Actions,
    ) {
        let d = usize::from(io.face);
        let IoHead { id, tag, flags, face, volume, .. } = io.head;
        let sent = Sent { id, tag, flags, face, role, volume, since, pad, due_at, covers: self.devices[d].buffered };
        if role != Role::Passed
            && let Some(v) = self.volumes.get_mut(&io.volume)
        {
            v.counters.waited += now.since(since);
        }
        if self.config.devices[d].durable_writes && matches!(io.op, Op::Write | Op::WriteZeroes) {
            io.head.flags = io.flags.with(IoFlags::FUA);
        }
        io.head.tag = self.sent.insert(sent) as u64;
        out.submit(d as Port, io);
    }

    fn revoke_late(&mut self, now: Time, whose: Option<VolumeKey>, d: usize, out: &mut Actions) {
        if !self.config.revoke_late {
            return;
        }
        let late = self.lane(whose, d).map(|l| l.take_late(now)).unwrap_or_default();
        self.waiting -= late.len();
        for (io, since) in late {
            if let Some(v) = self.volumes.get_mut(&io.volume) {
                v.counters.revoked += 1;
            }
            out.end(io, Outcome::Busy { wait: now.since(since), confidence: Confidence::CERTAIN });
        }
    }
}
