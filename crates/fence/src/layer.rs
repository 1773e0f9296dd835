//! The layer: requests wait in their volume's queues until a slot of the volume comes.

use crate::config::{FenceConfig, check_slots};
use crate::idle::{Lent, Toll};
use crate::predict::Predictor;
use crate::queue::{Lane, Leaving};
use crate::slots::Slots;
use crate::status::{BatchCounters, FenceStatus, SlotCounters, SlotStatus, VolumeCounters, VolumeStatus};
use crate::timetable::Timetable;
use plimsoll_base::{Completion, Confidence, Io, IoError, IoFlags, IoHead, IoId, Op, Outcome, Span, Time, VolumeKey};
use plimsoll_stack::{Actions, Forecast, Layer, Offer, Order, Port, Ports, VolumeTerms};
use slab::Slab;
use std::collections::BTreeMap;

/// Requests on flash that are lent time for together.
const LENT_FLASH_MAX: usize = 4;
/// A turn that begins later than this part of a slot, because the engine was held up, begins anew.
const LATE_PART: u64 = 4;
/// What doesn't fit a whole slot is sent in this first part of a turn, or not at all.
const FRESH_PART: u64 = 8;

/// For whom a request was sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Role {
    /// The slot's owner.
    Owner,
    /// Somebody without slots, in time that nobody else used.
    Lent,
    /// It isn't held by slots.
    Passed,
}

/// A request below.
struct Sent {
    id: IoId,
    /// As it came.
    tag: u64,
    flags: IoFlags,
    face: u8,
    role: Role,
    volume: VolumeKey,
    since: Time,
}

#[derive(Default)]
struct Volume {
    lanes: Vec<Lane>,
    counters: VolumeCounters,
    toll: Toll,
}

impl Volume {
    fn waiting(&self) -> usize {
        self.lanes.iter().map(Lane::len).sum()
    }
}

/// A device, as far as it is held by slots.
#[derive(Clone, Copy)]
struct Device {
    owners: u32,
    lent: u32,
    /// Where the last request that was sent ends.
    last_end: u64,
    /// The batch there is began then and is predicted to end then.
    began_at: Time,
    due_at: Time,
    /// Requests were sent in this turn.
    used: bool,
    /// Since when the owner has waited for a request that was lent time.
    blocked_since: Time,
    counters: BatchCounters,
}

impl Device {
    const NEW: Device = Device {
        owners: 0,
        lent: 0,
        last_end: 0,
        began_at: Time::ZERO,
        due_at: Time::ZERO,
        used: false,
        blocked_since: Time::NEVER,
        counters: BatchCounters {
            batches: 0,
            requests: 0,
            predicted: Span::ZERO,
            took: Span::ZERO,
            error: Span::ZERO,
            within: 0,
        },
    };

    fn busy(&self) -> u32 {
        self.owners + self.lent
    }
}

/// See the module's documentation.
///
/// What waits here is not declared below: whoever is forecast below this layer comes when it has gone.
pub struct Fence {
    config: FenceConfig,
    table: Timetable,
    slots: Slots,
    /// Slots that each fenced volume was promised.
    promised: BTreeMap<VolumeKey, u32>,
    volumes: BTreeMap<VolumeKey, Volume>,
    /// Requests of volumes without slots, by device.
    without: Vec<Lane>,
    devices: Vec<Device>,
    sent: Slab<Sent>,
    /// Requests in all lanes.
    waiting: usize,
    /// The slot ends as soon as nothing is in flight: the next request of the scarce device doesn't fit.
    closing: bool,
    /// When the last request of this turn ended, and whether it was one that was lent time.
    busy_until: (Time, bool),
    slot_counters: Vec<SlotCounters>,
    /// Slots and length from the end of the running slot on.
    change: Option<(u32, Span)>,
    lent: Lent,
}

impl Fence {
    /// The layer of a configuration; volumes are told later.
    ///
    /// # Panics
    /// If the configuration isn't within its ranges ([`FenceConfig::check`]).
    pub fn new(config: FenceConfig) -> Fence {
        config.check().expect("the configuration was checked");
        let n = config.devices.len();
        Fence {
            table: Timetable::new(Time::ZERO, config.slots, config.slot),
            slots: Slots::new(config.slots as usize),
            promised: BTreeMap::new(),
            volumes: BTreeMap::new(),
            without: (0..n).map(|_| Lane::default()).collect(),
            devices: vec![Device::NEW; n],
            sent: Slab::new(),
            waiting: 0,
            closing: false,
            busy_until: (Time::ZERO, false),
            slot_counters: vec![SlotCounters::default(); config.slots as usize],
            change: None,
            lent: Lent::default(),
            config,
        }
    }

    /// How it is configured now.
    pub fn config(&self) -> &FenceConfig {
        &self.config
    }

    /// Slots that are nobody's.
    pub fn free_slots(&self) -> usize {
        self.slots.free()
    }

    /// So many slots of this length from the end of the running slot on.
    ///
    /// # Errors
    /// If that can't be, or fewer slots would be left than are promised.
    pub fn set_slots(&mut self, now: Time, slots: u32, slot: Span) -> Result<(), String> {
        check_slots(slots, slot, &self.config.devices)?;
        let promised: u32 = self.promised.values().sum();
        if promised > slots {
            return Err(format!("{promised} slots are promised to volumes: {slots} are too few"));
        }
        self.account(now);
        self.change = Some((slots, slot));
        self.end_turns(now);
        if self.waiting == 0 && self.busy() == 0 {
            self.apply_change(now);
        }
        Ok(())
    }

    /// May this volume be removed now?
    ///
    /// # Errors
    /// If it owns the slot that runs, with when that ends.
    pub fn may_remove(&self, now: Time, volume: VolumeKey) -> Result<(), Span> {
        let table = self.table_at(now);
        match self.slots.owner(table.running()) == Some(volume) {
            true => Err(table.ends_at().since(now)),
            false => Ok(()),
        }
    }

    /// What is going on.
    pub fn status(&self, now: Time) -> FenceStatus {
        let table = self.table_at(now);
        let slot = |i: usize| SlotStatus {
            owner: self.slots.owner(i),
            balance_ns: table.balance_ns(i),
            counters: self.slot_counters[i],
        };
        let volume = |(key, v): (&VolumeKey, &Volume)| VolumeStatus {
            volume: *key,
            slots: self.slots.count(*key) as u32,
            waiting: v.waiting() as u64,
            counters: v.counters,
            imposed: Span::from_nanos(v.toll.imposed_ns()),
        };
        FenceStatus {
            slot: table.slot(),
            running: table.running() as u32,
            running_left: table.ends_at().since(now),
            slots: (0..self.slots.len()).map(slot).collect(),
            volumes: self.volumes.iter().map(volume).collect(),
            devices: self.devices.iter().map(|d| d.counters).collect(),
            hybrid: self.config.hybrid,
            waiting_without: self.without.iter().map(|l| l.len() as u64).sum(),
            idle: (self.lent.idle(), self.lent.lent()),
        }
    }

    /// The timetable as it stands at `now`, if nothing is sent meanwhile.
    fn table_at(&self, now: Time) -> Timetable {
        let mut table = self.table;
        if self.busy() == 0 {
            table.pass(now);
        }
        table
    }

    fn busy(&self) -> u32 {
        self.devices.iter().map(Device::busy).sum()
    }

    fn owner(&self) -> Option<VolumeKey> {
        self.slots.owner(self.table.running())
    }

    fn is_fenced(&self, volume: VolumeKey) -> bool {
        self.promised.contains_key(&volume) && self.slots.count(volume) > 0
    }

    /// Has the running slot's owner nothing to do on device `d`?
    fn owner_is_idle_on(&self, d: usize) -> bool {
        let waits = self.owner().and_then(|v| self.volumes.get(&v)).is_some_and(|v| !v.lanes[d].is_empty());
        !waits && self.devices[d].owners == 0
    }

    /// Counts idle and lent time up to `now`, before anything changes.
    fn account(&mut self, now: Time) {
        if !self.config.hybrid {
            return;
        }
        let used = self.devices[0].lent > 0;
        let wanted = used || !self.without[0].is_empty();
        let idle = wanted && self.owner_is_idle_on(0);
        self.lent.account(now, idle, used);
    }

    /// Ends turns that are over.
    fn end_turns(&mut self, now: Time) {
        if self.busy() > 0 {
            return;
        }
        if std::mem::take(&mut self.closing) {
            self.end_turn(now.max(self.busy_until.0));
        }
        if self.waiting == 0 && self.change.is_none() && self.busy_until.0 <= self.table.ends_at() {
            return self.pass(now);
        }
        while now >= self.table.ends_at() {
            self.end_turn(self.table.ends_at().max(self.busy_until.0));
            let has_work = match self.owner() {
                Some(v) => self.volumes.get(&v).is_some_and(|v| v.waiting() > 0),
                None => self.config.hybrid && self.without.iter().any(|l| !l.is_empty()),
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

    /// Turns in which nothing happened pass.
    fn pass(&mut self, now: Time) {
        let running = self.table.running();
        self.table.pass(now);
        if self.table.running() != running {
            self.slot_counters[running].turns += 1;
            self.new_turn();
        }
    }

    fn new_turn(&mut self) {
        self.busy_until = (Time::ZERO, false);
        self.devices.iter_mut().for_each(|d| d.used = false);
    }

    fn end_turn(&mut self, at: Time) {
        let (running, ends_at) = (self.table.running(), self.table.ends_at());
        let forgives = at > ends_at && self.busy_until.1 && self.owner().is_some();
        let c = &mut self.slot_counters[running];
        c.turns += 1;
        c.used += u64::from(self.devices.iter().any(|d| d.used));
        if at < ends_at {
            c.early = (c.early.0 + 1, c.early.1 + ends_at.since(at));
        } else if at > ends_at && !forgives {
            c.overruns = (c.overruns.0 + 1, c.overruns.1 + at.since(ends_at));
        }
        self.table.end(at, forgives);
        if forgives && let Some(v) = self.owner().and_then(|v| self.volumes.get_mut(&v)).filter(|v| v.waiting() > 0) {
            v.toll.imposed(at.since(ends_at));
        }
        self.new_turn();
        self.apply_change(at);
    }

    fn apply_change(&mut self, at: Time) {
        let Some((slots, slot)) = self.change.take() else { return };
        (self.config.slots, self.config.slot) = (slots, slot);
        self.table = Timetable::new(at, slots, slot);
        self.slots.resize(slots as usize, &self.promised);
        self.slot_counters = vec![SlotCounters::default(); slots as usize];
    }

    /// Lets the slot that runs go on, and the next if it has ended.
    fn go_on(&mut self, now: Time, out: &mut Actions) {
        loop {
            self.end_turns(now);
            match self.owner() {
                Some(v) => {
                    self.serve(now, Some(v), out);
                    self.lend(now, v, out);
                }
                None if self.config.hybrid => self.serve(now, None, out),
                None => {}
            }
            if !self.closing || self.busy() > 0 {
                break;
            }
        }
        // Where a batch overruns, its end is what comes next.
        if (self.waiting > 0 || self.change.is_some()) && self.table.ends_at() > now {
            out.wake_at(self.table.ends_at());
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
            // VF-M11, VF-A3: while a batch of the scarce device overruns, the others get one request at a time.
            for d in 1..self.devices.len() {
                if self.devices[0].busy() > 0 && self.devices[d].busy() == 0 {
                    self.send_batch(now, whose, d, (Span::ZERO, 1, true), role, out);
                }
            }
            return;
        }
        let rest = self.table.ends_at().since(now);
        let fresh = now.since(self.table.began_at()).as_nanos() * FRESH_PART < self.table.slot().as_nanos();
        for d in 0..self.devices.len() {
            self.revoke_late(now, whose, d, out);
            if self.devices[d].busy() > 0 || self.lane(whose, d).is_none_or(|l| l.is_empty()) {
                continue;
            }
            let anyway = fresh && !self.devices[d].used && (d > 0 || self.table.is_longest());
            let most = self.config.devices[d].batch_max;
            if !self.send_batch(now, whose, d, (rest, most, anyway), role, out) && d == 0 {
                self.closing = true; // VF-M10
                return;
            }
        }
    }

    /// Lends the rest of a slot whose owner is idle.
    fn lend(&mut self, now: Time, owner: VolumeKey, out: &mut Actions) {
        if !self.config.hybrid || self.closing || now >= self.table.ends_at() {
            return;
        }
        let Some(v) = self.volumes.get(&owner) else { return };
        let idle = v.waiting() == 0 && self.devices.iter().all(|d| d.owners == 0);
        if !idle || !v.toll.may_lend(self.config.lend_permille) {
            return;
        }
        // The owner's next turn must not begin late, so a request needs half as much again as it's predicted to take.
        let rest = self.table.ends_at().since(now).scale(2, 3);
        for d in 0..self.devices.len() {
            if self.devices[d].busy() == 0 && !self.without[d].is_empty() {
                let most = match self.config.devices[d].predictor {
                    Predictor::Disk(_) => 1,
                    Predictor::Flash(_) => LENT_FLASH_MAX,
                };
                self.send_batch(now, None, d, (rest, most, false), Role::Lent, out);
            }
        }
    }

    /// Sends the largest batch that fits; was there one?
    fn send_batch(
        &mut self,
        now: Time,
        whose: Option<VolumeKey>,
        d: usize,
        (rest, most, anyway): (Span, usize, bool),
        role: Role,
        out: &mut Actions,
    ) -> bool {
        let predictor = &self.config.devices[d].predictor;
        let last_end = self.devices[d].last_end;
        let lane = match whose {
            None => &mut self.without[d],
            Some(v) => &mut self.volumes.get_mut(&v).expect("it has requests").lanes[d],
        };
        let (mut batch, predicted) = lane.take_batch(predictor, last_end, rest, most, anyway);
        let Some((first, _)) = batch.first() else { return false };
        let moves = |io: &Io| io.len > 0 && matches!(io.op, Op::Read | Op::Write | Op::WriteZeroes);
        debug_assert!(usize::from(first.face) == d);
        self.waiting -= batch.len();
        batch.sort_by_key(|(io, _)| io.offset);
        let device = &mut self.devices[d];
        (device.began_at, device.due_at, device.used) = (now, now + predicted, true);
        match role {
            Role::Owner => {
                device.owners += batch.len() as u32;
                let c = &mut device.counters;
                (c.batches, c.requests) = (c.batches + 1, c.requests + batch.len() as u64);
                c.predicted += predicted;
            }
            _ => device.lent += batch.len() as u32,
        }
        if let Some((io, _)) = batch.iter().rev().find(|(io, _)| moves(io)) {
            device.last_end = io.end();
        }
        for leaving in batch {
            self.send(now, leaving, role, out);
        }
        true
    }

    fn send(&mut self, now: Time, (mut io, since): Leaving, role: Role, out: &mut Actions) {
        let sent = Sent { id: io.id, tag: io.tag, flags: io.flags, face: io.face, role, volume: io.volume, since };
        let d = usize::from(io.face);
        if role != Role::Passed {
            if let Some(v) = self.volumes.get_mut(&io.volume) {
                v.counters.waited += now.since(since);
            }
            if self.config.devices[d].durable_writes && matches!(io.op, Op::Write | Op::WriteZeroes) {
                io.head.flags = io.flags.with(IoFlags::FUA);
            }
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

    /// How long a fenced volume's request that arrives at `at` and takes `own` waits for its slot on device `d`, and whether
    /// that is certain: then nothing of its volume is before it, and it isn't in its slot.
    fn wait_of(&self, at: Time, volume: VolumeKey, d: usize, own: Span) -> (Span, bool) {
        let mut table = self.table_at(at);
        let device = &self.devices[d];
        let mine = |t: &Timetable| self.slots.owner(t.running()) == Some(volume);
        let mut work = self.volumes.get(&volume).map_or(Span::ZERO, |v| v.lanes[d].cost());
        let certain = work == Span::ZERO && !mine(&table);
        let busy = self.busy() > 0;
        let mut from = at.max(table.began_at());
        if busy && device.busy() > 0 {
            from = from.max(device.due_at);
        }
        // When the running slot ends, as far as can be told now.
        let last_due = self.devices.iter().filter(|d| d.busy() > 0).map(|d| d.due_at).max().unwrap_or(Time::ZERO);
        let mut ends =
            if self.closing { last_due.max(at) } else { table.ends_at().max(if busy { last_due } else { at }) };
        let closed = self.closing;
        let mut passed = 0;
        loop {
            let is_open = passed > 0 || !closed;
            if mine(&table) && is_open && table.ends_at() > from {
                let has = table.ends_at().since(from);
                if work + own <= has || (own > table.slot() && work < has) {
                    return ((from + work).since(at), certain);
                }
                work = work.saturating_sub(has);
            }
            table.end(ends, false);
            (from, ends) = (table.began_at().max(at), table.ends_at());
            passed += 1;
            if passed == table.slots() {
                // Whole rotations at once.
                let each = Span::from_nanos(table.slot().as_nanos() * self.slots.count(volume).max(1) as u64);
                let rounds = work.as_nanos() / each.as_nanos();
                let rotation = Span::from_nanos(table.slot().as_nanos() * table.slots() as u64);
                work = Span::from_nanos(work.as_nanos() % each.as_nanos());
                table.delay(Span::from_nanos(rotation.as_nanos() * rounds));
                (from, ends) = (table.began_at(), table.ends_at());
            }
            if passed > 3 * table.slots() {
                // It fits no rest of a slot: it goes at the beginning of one.
                return (from.since(at), false);
            }
        }
    }

    fn check(&self) {
        debug_assert_eq!(
            self.waiting,
            self.without.iter().map(Lane::len).sum::<usize>()
                + self.volumes.values().map(Volume::waiting).sum::<usize>()
        );
        let below = self.sent.iter().filter(|(_, s)| s.role != Role::Passed).count();
        debug_assert_eq!(self.busy() as usize, below, "a request is lost below");
    }

    /// What waits of a volume that no longer has slots goes where requests of such volumes go.
    fn unfence(&mut self, now: Time, volume: VolumeKey, out: &mut Actions) {
        let Some(v) = self.volumes.get_mut(&volume) else { return };
        let all: Vec<Leaving> = v.lanes.iter_mut().flat_map(Lane::take_all).collect();
        self.waiting -= all.len();
        for (io, since) in all {
            self.take_in(now, io, since, out);
        }
    }

    fn take_in(&mut self, now: Time, io: Io, since: Time, out: &mut Actions) {
        let d = usize::from(io.face);
        let cost = self.config.devices[d].predictor.one(self.devices[d].last_end, &io);
        if self.is_fenced(io.volume) {
            if self.owner() == Some(io.volume) && self.devices[d].lent > 0 {
                self.devices[d].blocked_since = self.devices[d].blocked_since.min(now);
            }
            self.volumes.get_mut(&io.volume).expect("it is known").lanes[d].push(io, cost, since);
        } else if self.config.hybrid && self.volumes.contains_key(&io.volume) {
            self.without[d].push(io, cost, since);
        } else {
            return self.send(now, (io, since), Role::Passed, out);
        }
        self.waiting += 1;
    }

    /// A request that was held by slots has ended.
    fn ended(&mut self, now: Time, s: &Sent, c: &Completion) {
        let (owner, d) = (self.owner(), usize::from(s.face));
        let device = &mut self.devices[d];
        match s.role {
            Role::Owner => device.owners -= 1,
            _ => device.lent -= 1,
        }
        if device.lent == 0 && device.blocked_since.is_set() {
            let wait = now.since(std::mem::replace(&mut device.blocked_since, Time::NEVER));
            if let Some(v) = owner.and_then(|v| self.volumes.get_mut(&v)) {
                v.toll.imposed(wait);
            }
        }
        let device = &mut self.devices[d];
        if device.busy() == 0 {
            self.busy_until = (now, s.role == Role::Lent);
            if s.role == Role::Owner {
                let (took, predicted) = (now.since(device.began_at), device.due_at.since(device.began_at));
                let error =
                    if took > predicted { took.saturating_sub(predicted) } else { predicted.saturating_sub(took) };
                let bound = match self.config.devices[d].predictor {
                    Predictor::Disk(_) => Span::from_millis(5),
                    Predictor::Flash(_) => Span::from_micros(250),
                };
                let counters = &mut device.counters;
                counters.took += took;
                counters.error += error;
                counters.within += u64::from(error <= bound);
            }
        }
        if let Some(v) = self.volumes.get_mut(&s.volume)
            && c.outcome.is_done()
        {
            let took = now.since(s.since);
            v.counters.requests += 1;
            v.counters.bytes += c.io.len;
            v.counters.response += took;
            v.toll.responded(took);
        }
    }
}

impl Layer for Fence {
    fn name(&self) -> &'static str {
        "fence"
    }

    fn offer(&self, below: &[Offer]) -> Offer {
        self.offer_at(0, below)
    }

    fn offer_at(&self, face: u8, below: &[Offer]) -> Offer {
        Offer { queue_max: u32::MAX, ..below[usize::from(face)] }
    }

    fn start(&mut self, now: Time, _below: &[Offer], _out: &mut Actions) {
        self.table = Timetable::new(now, self.config.slots, self.config.slot);
        self.lent.account(now, false, false);
    }

    fn forecast(&self, at: Time, head: &IoHead, below: Ports<'_>) -> Forecast {
        let d = usize::from(head.face);
        if self.is_fenced(head.volume) {
            let own = self.config.devices[d].predictor.one(self.devices[d].last_end, head);
            let (wait, certain) = self.wait_of(at, head.volume, d, own);
            let mut forecast = below.after(wait, below.ask(d as Port, at + wait, head));
            if forecast.service == Span::ZERO {
                forecast.service = own; // who is below doesn't know
            }
            if !certain {
                forecast.confidence = Confidence(forecast.confidence.0.min(800));
            }
            return forecast;
        }
        if !self.config.hybrid || !self.volumes.contains_key(&head.volume) {
            return below.ask(d as Port, at, head);
        }
        // How much time is left over isn't known: what slots without an owner give is.
        let (n, free) = (self.slots.len() as u64, self.slots.free().max(1) as u64);
        let wait = self.without[d].cost().scale(n, free);
        let mut forecast = below.after(wait, below.ask(d as Port, at + wait, head));
        forecast.confidence = Confidence::NONE;
        forecast
    }

    fn submit(&mut self, now: Time, io: Io, out: &mut Actions) {
        self.account(now);
        self.end_turns(now);
        self.take_in(now, io, now, out);
        self.go_on(now, out);
    }

    fn completed(&mut self, now: Time, mut c: Completion, out: &mut Actions) {
        self.account(now);
        let s = self.sent.remove(c.io.tag as usize);
        (c.io.head.tag, c.io.head.flags, c.io.head.face) = (s.tag, s.flags, s.face);
        if s.role != Role::Passed {
            self.ended(now, &s, &c);
        }
        out.complete(c);
        self.go_on(now, out);
    }

    fn wake(&mut self, now: Time, out: &mut Actions) {
        self.account(now);
        self.go_on(now, out);
    }

    fn cancel(&mut self, now: Time, id: IoId, out: &mut Actions) {
        self.account(now);
        let lanes = self.volumes.values_mut().flat_map(|v| &mut v.lanes).chain(&mut self.without);
        if let Some((io, _)) = lanes.filter(|l| !l.is_empty()).find_map(|l| l.remove(id)) {
            self.waiting -= 1;
            out.end(io, Outcome::Failed(IoError::Cancelled));
            return self.go_on(now, out);
        }
        if let Some((_, s)) = self.sent.iter().find(|(_, s)| s.id == id) {
            out.cancel(s.face, id);
        }
    }

    fn declared(&mut self, head: &IoHead, out: &mut Actions) {
        out.declare(head.face, *head);
    }

    fn retracted(&mut self, id: IoId, out: &mut Actions) {
        (0..self.devices.len()).for_each(|d| out.retract(d as Port, id));
    }

    /// A volume that wants more slots than are free gets those; who configures it must have seen to that before.
    fn set_volume(&mut self, now: Time, volume: VolumeKey, terms: &VolumeTerms, out: &mut Actions) {
        self.account(now);
        self.end_turns(now);
        let n = self.devices.len();
        self.volumes
            .entry(volume)
            .or_insert_with(|| Volume { lanes: (0..n).map(|_| Lane::default()).collect(), ..Volume::default() });
        if self.promised.get(&volume).copied().unwrap_or(0) == terms.slots {
            return;
        }
        self.slots.release(volume);
        match terms.slots {
            0 => {
                self.promised.remove(&volume);
            }
            slots => {
                self.promised.insert(volume, slots);
                self.slots.assign(volume, slots as usize);
            }
        }
        if !self.is_fenced(volume) {
            self.unfence(now, volume, out);
        }
        self.go_on(now, out);
    }

    fn forget_volume(&mut self, now: Time, volume: VolumeKey, out: &mut Actions) {
        self.account(now);
        self.slots.release(volume);
        self.promised.remove(&volume);
        if let Some(mut v) = self.volumes.remove(&volume) {
            // Own work of layers above: it isn't held any more.
            let all: Vec<Leaving> = v.lanes.iter_mut().flat_map(Lane::take_all).collect();
            self.waiting -= all.len();
            for leaving in all {
                self.send(now, leaving, Role::Passed, out);
            }
        }
        self.go_on(now, out);
    }

    fn is_using(&self, volume: VolumeKey) -> bool {
        self.sent.iter().any(|(_, s)| s.volume == volume)
    }

    fn ordered(&mut self, now: Time, order: Order, out: &mut Actions) {
        if let Order::Fence { slots, slot_ns } = order {
            // What can't be was refused where it was ordered.
            let _ = self.set_slots(now, slots, Span::from_nanos(slot_ns));
            self.go_on(now, out);
        }
    }

    fn is_idle(&self) -> bool {
        self.waiting == 0 && self.sent.is_empty()
    }
}
