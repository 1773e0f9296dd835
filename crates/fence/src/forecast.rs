//! Forecast of a request's wait for its slot: it is exact for a request that arrives outside its slot.

use crate::config::SLOTS_MAX;
use crate::layer::Fence;
use crate::predict::{Arm, Predictor};
use crate::timetable::Timetable;
use crate::turn::{GRACE_PART, OVERDUE_ROTATIONS};
use plimsoll_base::{Confidence, IoHead, Span, Time, VolumeKey};
use plimsoll_stack::{Forecast, Port, Ports};

/// Confidence where only other owners' early ends and overruns can prove the forecast wrong.
const NEARLY: Confidence = Confidence(950);
/// Confidence where requests of the same volume are before it, or its turn runs.
const BEHIND: Confidence = Confidence(800);
/// Confidence where slots are about to change.
const CHANGING: Confidence = Confidence(500);
/// Rotations after which those that are like the last are skipped, in the search for the turn of a request without slots.
const ROTATIONS: usize = 3;
/// Rotations that are looked through for it, beside those that are skipped; after that all are taken to be like the last.
const ROTATIONS_MAX: usize = 16;

impl Fence {
    /// Forecasts the wait of a fenced volume's request that arrives at `at` and takes `own`, for its slot on device `d`. Also
    /// returns the confidence, and whether the request goes in the running turn. The forecast is certain on three conditions:
    /// no request of its volume is before it, it isn't in its slot, and no owner whose turn could end early or overrun comes
    /// before.
    fn wait_of(&self, at: Time, volume: VolumeKey, d: usize, own: Span) -> (Span, Confidence, bool) {
        let mut table = self.table_at(at);
        let device = &self.devices[d];
        let mine = |t: &Timetable| self.slots.owner(t.running()) == Some(volume);
        let mut work = self.volumes.get(&volume).map_or(Span::ZERO, |v| device.in_batches(v.lanes[d].cost()));
        let busy = self.busy() > 0;
        let mut sure = match () {
            () if self.change.is_some() => CHANGING,
            () if work > Span::ZERO || mine(&table) => BEHIND,
            () if busy || self.closing || self.without.iter().any(|l| !l.is_empty()) => NEARLY,
            () => Confidence::CERTAIN,
        };
        let mut from = at.max(table.began_at());
        if busy && device.busy() > 0 {
            from = from.max(device.due_at);
        }
        // When the running slot ends, as far as can be told now.
        let last_due = self.devices.iter().filter(|d| d.busy() > 0).map(|d| d.due_at).max().unwrap_or(Time::ZERO);
        let mut ends =
            if self.closing { last_due.max(at) } else { table.ends_at().max(if busy { last_due } else { at }) };
        let closed = self.closing || (mine(&table) && self.is_lendable(&table, at));
        let mut passed = 0;
        loop {
            let is_open = passed > 0 || !closed;
            if mine(&table) && is_open && table.ends_at() > from {
                let has = table.ends_at().since(from);
                if work + own <= has || (own > table.slot() && work < has) {
                    // What goes in the same turn is served by address: half of it first.
                    return ((from + work / 2).since(at), sure, passed == 0);
                }
                work = work.saturating_sub(has);
            }
            if self.slots.owner(table.running()).is_some() || self.config.hybrid {
                sure.0 = sure.0.min(NEARLY.0);
            }
            table.end(ends, ends);
            (from, ends) = (table.began_at().max(at), table.ends_at());
            passed += 1;
            if passed == table.slots() {
                // Whole rotations at once.
                let each = Span::from_nanos(table.slot().as_nanos() * self.slots.count(volume).max(1) as u64);
                let rounds = work.as_nanos() / each.as_nanos();
                let rotation = table.slot() * table.slots() as u64;
                work = Span::from_nanos(work.as_nanos() % each.as_nanos());
                table.delay(rotation * rounds);
                (from, ends) = (table.began_at(), table.ends_at());
            }
            if passed > 3 * table.slots() {
                // It fits no rest of a slot: it goes at the beginning of one.
                return (from.since(at), Confidence(sure.0.min(BEHIND.0)), false);
            }
        }
    }

    pub(crate) fn forecast_of(&self, at: Time, head: &IoHead, below: Ports<'_>) -> Forecast {
        let d = usize::from(head.face);
        if self.is_durable_already(head) {
            return Forecast::NONE;
        }
        if self.is_fenced(head.volume) {
            let predictor = &self.config.devices[d].predictor;
            let mut arm = self.arm_for(at, head.volume, d);
            let (mut wait, mut sure, now) = self.wait_of(at, head.volume, d, predictor.one(arm, head));
            if !now && self.config.arm_away && arm != Arm::Away {
                // In a later turn the arm is away again.
                arm = Arm::Away;
                (wait, sure, _) = self.wait_of(at, head.volume, d, predictor.one(arm, head));
            }
            let own = predictor.one(arm, head);
            let mut forecast = below.after(wait, below.ask(d as Port, at + wait, head));
            // Who is below may not know; and a steady fence answers as late as if the arm had been away.
            let padded = self.config.steady && arm == Arm::Away && matches!(predictor, Predictor::Disk(_));
            if forecast.service == Span::ZERO || padded {
                forecast.service = forecast.service.max(own);
            }
            forecast.confidence = Confidence(forecast.confidence.0.min(sure.0));
            return forecast;
        }
        if !self.config.hybrid || !self.volumes.contains_key(&head.volume) {
            return below.ask(d as Port, at, head);
        }
        let own = self.config.devices[d].predictor.one(Arm::At(self.devices[d].last_end), head);
        let (wait, sure) = self.wait_without(at, d, own);
        let mut forecast = below.after(wait, below.ask(d as Port, at + wait, head));
        forecast.confidence = Confidence(forecast.confidence.0.min(sure.0));
        forecast
    }

    /// Time that an owner's requests need of its next turns, on whichever device has more of them.
    fn wanted(&self, owner: VolumeKey) -> Span {
        let Some(v) = self.volumes.get(&owner) else { return Span::ZERO };
        let lanes = v.lanes.iter().zip(&self.devices);
        lanes.map(|(lane, device)| device.in_batches(lane.cost())).max().unwrap_or(Span::ZERO)
    }

    /// Forecasts the wait of a request of a volume without slots that arrives at `at` and takes `own` on device `d`, and the confidence. It
    /// is served in slots without an owner, and in what owners leave of their turns if they lend. Owners are taken to want no more than what
    /// waits now. So if they lend, the request waits for so long at least; how much more they will want isn't known.
    fn wait_without(&self, at: Time, d: usize, own: Span) -> (Span, Confidence) {
        let mut table = self.table_at(at);
        let n = table.slots();
        let lends = self.config.lends();
        let sure = if lends { Confidence::NONE } else { BEHIND };
        let grace = table.slot().scale(1, GRACE_PART);
        // By the first slot of each owner.
        let mut first = [0; SLOTS_MAX as usize];
        let mut wanted = [Span::ZERO; SLOTS_MAX as usize];
        for slot in 0..n {
            let owner = self.slots.owner(slot);
            first[slot] = (0..slot).find(|s| self.slots.owner(*s) == owner).unwrap_or(slot);
            if first[slot] == slot && lends {
                wanted[slot] = owner.map_or(Span::ZERO, |v| self.wanted(v));
            }
        }
        let mut work = self.devices[d].in_batches(self.without[d].cost());
        let busy_until = |busy: fn(&crate::state::Device) -> bool| {
            self.devices.iter().filter(|d| busy(d)).map(|d| d.due_at).max().unwrap_or(Time::ZERO)
        };
        let last_due = busy_until(|d| d.busy() > 0).max(at);
        let mut ends = match (self.closing, self.busy() > 0) {
            (true, _) => last_due,
            (false, true) => table.ends_at().max(last_due),
            (false, false) => table.ends_at(),
        };
        let mut from = at.max(table.began_at());
        if self.devices[d].busy() > 0 {
            from = from.max(self.devices[d].due_at);
        }
        let rotation = table.slot() * n as u64;
        // Where every slot has an owner, the one that has waited longest goes once in [`OVERDUE_ROTATIONS`].
        let since = self.without[d].oldest().unwrap_or(at).max(self.helped_at);
        let helped = (since + rotation * OVERDUE_ROTATIONS * (self.without[d].len() as u64 + 1)).since(at);
        let at_most = if self.slots.free() > 0 { Span::MAX } else { helped };
        let (mut given_in_rotation, mut longest, mut ran_dry) = (Span::ZERO, Span::ZERO, false);
        for passed in 0..ROTATIONS_MAX * n {
            let running = table.running();
            if passed % n == 0 {
                (given_in_rotation, ran_dry) = (Span::ZERO, false);
            }
            let usable_from = match self.slots.owner(running) {
                None => from,
                Some(_) if !lends => ends,
                Some(_) if passed == 0 && self.is_lendable(&table, at) => from,
                Some(_) => {
                    let wanted = &mut wanted[first[running]];
                    let has = ends.since(from);
                    ran_dry |= *wanted > Span::ZERO && *wanted <= has;
                    let used = has.min(*wanted);
                    *wanted = wanted.saturating_sub(has);
                    let owners_end = if passed == 0 { busy_until(|d| d.owners > 0) } else { Time::ZERO };
                    let quiet = if passed == 0 { self.lendable_from(&table) } else { table.began_at() + grace };
                    let until = (from + used).max(owners_end);
                    if until > from { quiet.max(until + grace) } else { quiet.max(from) }
                }
            };
            let closed = passed == 0 && self.closing;
            if usable_from < ends && !closed {
                let has = ends.since(usable_from);
                let anyway = self.slots.owner(running).is_none() && self.config.first_anyway && own > table.slot();
                if work + own <= has || (anyway && work < has) {
                    return ((usable_from + work).since(at).min(at_most), sure);
                }
                work = work.saturating_sub(has);
                longest = longest.max(has);
                given_in_rotation += has;
            }
            table.end(ends, ends);
            let is_plain = passed + 1 >= ROTATIONS * n && (passed + 1) % n == 0 && !ran_dry;
            if is_plain {
                // Rotations like this one at once: until the first owner has all that it wants, or it is the request's turn.
                let turns = |slot: usize| table.slot() * (0..n).filter(|s| first[*s] == slot).count() as u64;
                let busy = (0..n).filter(|slot| wanted[*slot] > Span::ZERO);
                let until_dry = busy.map(|slot| wanted[slot].as_nanos() / turns(slot).as_nanos()).min();
                if until_dry.is_none() && own > longest {
                    break; // it fits no rest
                }
                let until_served = work.as_nanos().checked_div(given_in_rotation.as_nanos());
                let Some(rounds) = until_dry.into_iter().chain(until_served).min() else { break };
                for (slot, wanted) in wanted.iter_mut().enumerate().take(n) {
                    *wanted = wanted.saturating_sub(turns(slot) * rounds);
                }
                work = work.saturating_sub(given_in_rotation * rounds);
                table.delay(rotation * rounds);
            }
            (from, ends) = (table.began_at().max(at), table.ends_at());
        }
        let in_rounds = match work.as_nanos().checked_div(given_in_rotation.as_nanos()) {
            Some(rounds) if own <= longest || self.slots.free() > 0 => from.since(at) + rotation * rounds,
            _ => helped,
        };
        (in_rounds.min(at_most), sure)
    }
}
