//! The layer: requests wait in their volume's queues until a slot of the volume comes.

use crate::config::{FenceConfig, check_slots};
use crate::control::{FenceControl, FenceTerms};
use crate::idle::Lent;
use crate::predict::{Arm, Predictor};
use crate::queue::{Lane, Leaving};
use crate::slots::Slots;
use crate::state::{Device, Role, Sent, Volume};
use crate::status::{FenceStatus, SlotCounters, SlotStatus, VolumeStatus};
use crate::timetable::Timetable;
use plimsoll_base::{
    Completion, Data, Io, IoError, IoFlags, IoHead, IoId, Op, Origin, Outcome, OwnKind, Span, Time, VolumeKey,
};
use plimsoll_stack::{Actions, Forecast, Layer, Message, Offer, Port, Ports, VolumeTerms};
use slab::Slab;
use std::collections::{BTreeMap, VecDeque};

/// See the module's documentation.
///
/// Requests that wait here are not declared below. A request that is forecast below this layer arrives there after they have gone.
pub struct Fence {
    pub(crate) config: FenceConfig,
    pub(crate) table: Timetable,
    pub(crate) slots: Slots,
    /// Slots that each fenced volume was promised.
    pub(crate) promised: BTreeMap<VolumeKey, u32>,
    pub(crate) volumes: BTreeMap<VolumeKey, Volume>,
    /// Requests of volumes without slots, by device.
    pub(crate) without: Vec<Lane>,
    pub(crate) devices: Vec<Device>,
    pub(crate) sent: Slab<Sent>,
    /// Ended, and answered later.
    pub(crate) padded: VecDeque<(Time, Sent, Completion)>,
    /// Requests in all lanes.
    pub(crate) waiting: usize,
    /// The slot ends as soon as nothing is in flight: the next request of the scarce device doesn't fit.
    pub(crate) closing: bool,
    /// Times at which the last request of this turn's owner ended, and the last one in lent time.
    pub(crate) own_until: Time,
    pub(crate) lent_until: Time,
    /// Since when the running turn's owner has wanted nothing, if it ever did in this turn.
    pub(crate) quiet_since: Time,
    /// The rest of the running turn is given away: its owner, who comes too late, waits for its next one.
    pub(crate) given: bool,
    /// Time at which the pool's own work, or a request overdue, was last sent out of turn.
    pub(crate) helped_at: Time,
    /// Of all slots there ever were; those that there are come first.
    pub(crate) slot_counters: Vec<SlotCounters>,
    /// Slots and length from the end of the running slot on.
    pub(crate) change: Option<(u32, Span)>,
    pub(crate) lent: Lent,
}

impl Fence {
    /// Creates the layer of a configuration; volumes are added later.
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
            padded: VecDeque::new(),
            waiting: 0,
            closing: false,
            own_until: Time::ZERO,
            lent_until: Time::ZERO,
            helped_at: Time::ZERO,
            quiet_since: Time::ZERO,
            given: false,
            slot_counters: vec![SlotCounters::default(); config.slots as usize],
            change: None,
            lent: Lent::default(),
            config,
        }
    }

    /// Returns the present configuration.
    pub fn config(&self) -> &FenceConfig {
        &self.config
    }

    /// Slots that are nobody's.
    pub fn free_slots(&self) -> usize {
        self.slots.free()
    }

    /// Sets the number of slots and their length from the end of the running slot on.
    ///
    /// # Errors
    /// If that is impossible, or fewer slots would be left than are promised.
    pub fn set_slots(&mut self, now: Time, slots: u32, slot: Span) -> Result<(), String> {
        check_slots(slots, slot, &self.config.devices, false)?;
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

    /// Returns the present state.
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
    pub(crate) fn table_at(&self, now: Time) -> Timetable {
        let mut table = self.table;
        if self.busy() == 0 {
            table.pass(now);
        }
        table
    }

    pub(crate) fn busy(&self) -> u32 {
        self.devices.iter().map(Device::busy).sum()
    }

    pub(crate) fn owner(&self) -> Option<VolumeKey> {
        self.slots.owner(self.table.running())
    }

    /// Returns whether it is held to slots. A volume whose slots come with a pending change waits for that change.
    pub(crate) fn is_fenced(&self, volume: VolumeKey) -> bool {
        self.promised.contains_key(&volume) && (self.slots.count(volume) > 0 || self.change.is_some())
    }

    /// True if the running slot of `table` has an owner without requests, waiting or at a device. False if the slot has no owner.
    pub(crate) fn owner_is_idle(&self, table: &Timetable) -> bool {
        let Some(v) = self.slots.owner(table.running()) else { return false };
        let waits = self.volumes.get(&v).is_some_and(|v| v.waiting() > 0);
        !waits && self.devices.iter().all(|d| d.owners == 0)
    }

    /// Accounts for a borrower that delayed the turns from `first` slots after the running one on by `by`. Their owners' waits
    /// are counted, up to the slot that owes the time: that slot becomes shorter by `by`, so that later ones are in time.
    /// `owing` defaults to the next slot without an owner.
    pub(crate) fn borrowers_delayed(&mut self, first: usize, by: Span, owing: Option<usize>) {
        let n = self.slots.len();
        for i in first..=n {
            let slot = (self.table.running() + i) % n;
            match self.slots.owner(slot) {
                _ if owing == Some(slot) => return,
                None if owing.is_none() && i > 0 => return self.table.owe(slot, by),
                None => {}
                // The running turn is later if only for who comes now.
                Some(v) => {
                    if let Some(v) = self.volumes.get_mut(&v) {
                        v.toll.imposed(by, v.waiting().max(usize::from(i == 0)));
                    }
                }
            }
        }
    }

    /// Returns the assumed position of a device when a volume's batch begins there at `at`.
    pub(crate) fn arm_for(&self, at: Time, volume: VolumeKey, d: usize) -> Arm {
        let device = &self.devices[d];
        let is_its_turn = || at < self.table.ends_at() || self.busy() > 0;
        let at_home = device.at_home && self.owner() == Some(volume) && is_its_turn();
        match self.config.arm_away && self.is_fenced(volume) && !at_home {
            true => Arm::Away,
            false => Arm::At(device.last_end),
        }
    }

    pub(crate) fn check(&self) {
        debug_assert_eq!(
            self.waiting,
            self.without.iter().map(Lane::len).sum::<usize>()
                + self.volumes.values().map(Volume::waiting).sum::<usize>()
        );
        let below = self.sent.iter().filter(|(_, s)| s.role != Role::Passed).count() + self.padded.len();
        debug_assert_eq!(self.busy() as usize, below, "a request is lost below");
    }

    /// Moves the waiting requests of a volume that no longer has slots to those of volumes without slots.
    fn unfence(&mut self, now: Time, volume: VolumeKey, out: &mut Actions) {
        let Some(v) = self.volumes.get_mut(&volume) else { return };
        let all: Vec<Leaving> = v.lanes.iter_mut().flat_map(Lane::take_all).collect();
        self.waiting -= all.len();
        for (io, since) in all {
            self.take_in(now, io, since, out);
        }
    }

    /// True if this is a flush that has nothing to do, and so needs no turn: each write is durable when it ends, and the device has
    /// buffered nothing since its last flush.
    pub(crate) fn is_durable_already(&self, head: &IoHead) -> bool {
        let d = usize::from(head.face);
        let device = &self.devices[d];
        head.op == Op::Flush && self.config.devices[d].durable_writes && device.buffered == device.flushed
    }

    fn take_in(&mut self, now: Time, io: Io, since: Time, out: &mut Actions) {
        let d = usize::from(io.face);
        if self.is_durable_already(&io) {
            if let Some(v) = self.volumes.get_mut(&io.volume) {
                v.counters.requests += 1;
            }
            return out.done(io, Data::Absent);
        }
        let cost = self.config.devices[d].predictor.one(self.arm_for(now, io.volume, d), &io);
        let zeroing = io.volume == VolumeKey::POOL && io.origin == Origin::Own(OwnKind::Zeroing) && io.op != Op::Flush;
        if self.is_fenced(io.volume) {
            if self.owner() == Some(io.volume) && self.is_lendable(&self.table, now) {
                self.given = true;
            } else if self.owner() == Some(io.volume) && self.devices[d].lent > 0 {
                self.devices[d].blocked_since = self.devices[d].blocked_since.min(now);
            }
            self.volumes.get_mut(&io.volume).expect("it is known").lanes[d].push(io, cost, since);
        } else if zeroing || (self.config.hybrid && self.volumes.contains_key(&io.volume)) {
            self.without[d].push(io, cost, since);
        } else {
            return self.send(now, (io, since), (Role::Passed, Span::ZERO, Time::ZERO), out);
        }
        self.waiting += 1;
    }

    /// Records that a completed request is durable, or is buffered until a flush.
    fn note_durability(&mut self, s: &Sent, c: &Completion) {
        let durable = self.config.devices[usize::from(s.face)].durable_writes || s.flags.has(IoFlags::FUA);
        let device = &mut self.devices[usize::from(s.face)];
        match c.io.op {
            Op::Flush if c.outcome.is_done() => device.flushed = device.flushed.max(s.covers),
            Op::Write | Op::WriteZeroes if !durable => device.buffered += 1,
            Op::Trim => device.buffered += 1,
            _ => {}
        }
    }

    /// A request that was held by slots has ended.
    fn ended(&mut self, now: Time, s: &Sent, c: &Completion) {
        let (owner, d) = (self.owner(), usize::from(s.face));
        let device = &mut self.devices[d];
        match s.role {
            Role::Owner => device.owners -= 1,
            _ => device.lent -= 1,
        }
        match s.role {
            Role::Owner => (self.own_until, self.quiet_since) = (now, now),
            _ => self.lent_until = now,
        }
        if device.lent == 0 && device.blocked_since.is_set() {
            let wait = now.since(std::mem::replace(&mut device.blocked_since, Time::NEVER));
            if let Some(v) = owner.and_then(|v| self.volumes.get_mut(&v)) {
                v.toll.imposed(wait, v.lanes[d].len());
                // Its slot is as long as ever; the time is taken from who borrowed.
                self.table.extend(wait);
                self.borrowers_delayed(1, wait, None);
            }
        }
        let device = &mut self.devices[d];
        if device.busy() == 0 && s.role == Role::Owner {
            let (took, predicted) = (now.since(device.began_at), device.expected);
            let error = if took > predicted { took.saturating_sub(predicted) } else { predicted.saturating_sub(took) };
            let bound = match self.config.devices[d].predictor {
                Predictor::Disk(_) => Span::from_millis(5),
                Predictor::Flash(_) => Span::from_micros(250),
            };
            let counters = &mut device.counters;
            counters.took += took;
            counters.error += error;
            counters.within += u64::from(error <= bound);
            if d == 0
                && let Some(v) = owner.and_then(|v| self.volumes.get_mut(&v))
            {
                v.counters.held += took;
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
        self.forecast_of(at, head, below)
    }

    fn submit(&mut self, now: Time, io: Io, out: &mut Actions) {
        self.account(now);
        self.end_turns(now);
        self.take_in(now, io, now, out);
        self.go_on(now, out);
    }

    fn completed(&mut self, now: Time, mut c: Completion, out: &mut Actions) {
        self.account(now);
        self.pass_on(now);
        let s = self.sent.remove(c.io.tag as usize);
        self.note_durability(&s, &c);
        (c.io.head.tag, c.io.head.flags, c.io.head.face) = (s.tag, s.flags, s.face);
        let until = (now + s.pad).min(s.due_at);
        if s.role == Role::Owner && until > now {
            let at = self.padded.partition_point(|p| p.0 <= until);
            self.padded.insert(at, (until, s, c));
            return out.wake_at(until);
        }
        if s.role != Role::Passed {
            self.ended(now, &s, &c);
        }
        out.complete(c);
        self.go_on(now, out);
    }

    fn wake(&mut self, now: Time, out: &mut Actions) {
        self.account(now);
        while let Some((_, s, c)) = self.padded.pop_front_if(|p| p.0 <= now) {
            self.ended(now, &s, &c);
            out.complete(c);
        }
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
        let slots = terms.own.get::<FenceTerms>().unwrap_or_default().slots;
        self.account(now);
        self.end_turns(now);
        let n = self.devices.len();
        self.volumes
            .entry(volume)
            .or_insert_with(|| Volume { lanes: (0..n).map(|_| Lane::default()).collect(), ..Volume::default() });
        if self.promised.get(&volume).copied().unwrap_or(0) == slots {
            return;
        }
        self.slots.release(volume);
        match slots {
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
                self.send(now, leaving, (Role::Passed, Span::ZERO, Time::ZERO), out);
            }
        }
        self.go_on(now, out);
    }

    fn is_using(&self, volume: VolumeKey) -> bool {
        self.sent.iter().any(|(_, s)| s.volume == volume) || self.padded.iter().any(|p| p.1.volume == volume)
    }

    fn told(&mut self, now: Time, message: &[u8], out: &mut Actions) -> bool {
        let Some(FenceControl::Slots { slots, slot }) = FenceControl::decode(message) else { return false };
        // Whoever sent the message has checked it.
        let _ = self.set_slots(now, slots, slot);
        self.go_on(now, out);
        true
    }

    fn is_idle(&self) -> bool {
        self.waiting == 0 && self.sent.is_empty() && self.padded.is_empty()
    }
}
