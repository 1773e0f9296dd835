//! Forecast of a request's wait for its slot: it is exact for a request that arrives outside its slot.

use crate::layer::Fence;
use crate::predict::{Arm, Predictor};
use crate::timetable::Timetable;
use plimsoll_base::{Confidence, IoHead, Span, Time, VolumeKey};
use plimsoll_stack::{Forecast, Port, Ports};

/// Confidence where only other owners' early ends and overruns can prove the forecast wrong.
const NEARLY: Confidence = Confidence(950);
/// Confidence where requests of the same volume are before it, or its turn runs.
const BEHIND: Confidence = Confidence(800);
/// Confidence where slots are about to change.
const CHANGING: Confidence = Confidence(500);

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
                let rotation = Span::from_nanos(table.slot().as_nanos() * table.slots() as u64);
                work = Span::from_nanos(work.as_nanos() % each.as_nanos());
                table.delay(Span::from_nanos(rotation.as_nanos() * rounds));
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
        // How much time is left over isn't known: what slots without an owner give is.
        let (n, free) = (self.slots.len() as u64, self.slots.free().max(1) as u64);
        let wait = self.without[d].cost().scale(n, free);
        let mut forecast = below.after(wait, below.ask(d as Port, at + wait, head));
        forecast.confidence = Confidence::NONE;
        forecast
    }
}
