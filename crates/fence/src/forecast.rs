//! How long a request will wait for its slot: outside it that is known exactly.

use crate::layer::Fence;
use crate::timetable::Timetable;
use plimsoll_base::{Confidence, IoHead, Span, Time, VolumeKey};
use plimsoll_stack::{Forecast, Port, Ports};

impl Fence {
    /// How long a fenced volume's request that arrives at `at` and takes `own` waits for its slot on device `d`, and whether
    /// that is certain: then nothing of its volume is before it, and it isn't in its slot.
    fn wait_of(&self, at: Time, volume: VolumeKey, d: usize, own: Span) -> (Span, bool) {
        let mut table = self.table_at(at);
        let device = &self.devices[d];
        let mine = |t: &Timetable| self.slots.owner(t.running()) == Some(volume);
        let mut work = self.volumes.get(&volume).map_or(Span::ZERO, |v| device.in_batches(v.lanes[d].cost()));
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
        let closed = self.closing || (d == 0 && mine(&table) && self.is_lendable(at));
        let mut passed = 0;
        loop {
            let is_open = passed > 0 || !closed;
            if mine(&table) && is_open && table.ends_at() > from {
                let has = table.ends_at().since(from);
                if work + own <= has || (own > table.slot() && work < has) {
                    // What goes in the same turn is served by address: half of it first.
                    return ((from + work / 2).since(at), certain);
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

    pub(crate) fn forecast_of(&self, at: Time, head: &IoHead, below: Ports<'_>) -> Forecast {
        let d = usize::from(head.face);
        if self.is_durable_already(head) {
            return Forecast::NONE;
        }
        if self.is_fenced(head.volume) {
            let own = self.config.devices[d].predictor.one(self.arm_for(head.volume, d), head);
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
}
