//! Durability's orders, carried out: the journal is written, devices are flushed, and the requests that waited go on.

use crate::config::Planted;
use crate::durability::{Confirm, Journaled, OnItsWay};
use crate::request::Pending;
use crate::serve::{Cache, SLOW};
use crate::state::State;
use plimsoll_base::{Data, Op, OwnKind, TenantId, Time};
use plimsoll_stack::Actions;

impl Cache {
    /// Writes what the journal has to say, if it isn't writing already.
    pub(crate) fn write_journal(&mut self, now: Time, force: bool, out: &mut Actions) {
        if matches!(self.state, State::Bypassed(_) | State::Failed(_)) {
            return;
        }
        if let Some(w) = self.durability.next_write(self.residency.index(), force) {
            let len = w.bytes.len() as u64;
            let data = Data::Bytes(plimsoll_base::Buf::copy_of(&w.bytes));
            for at in w.at {
                self.send_fast(now, (Op::Write, OwnKind::Metadata), (at, len), data.clone(), Pending::Journal, out);
            }
        }
    }

    /// The journal has come further: the requests that waited for it go on.
    pub(crate) fn journaled(&mut self, now: Time, journaled: Journaled, out: &mut Actions) {
        self.dirty.journaled(journaled.durable);
        for op in journaled.changes {
            self.send_through(now, op, out);
        }
        self.send_diverted(out);
        for op in journaled.flushes {
            self.part_done(now, op, out);
        }
        self.destage_after_record(now, journaled.durable, out);
        self.start_journaled(now, out);
    }

    /// Begins the flushes that are due, and flushes the fast device for one that has what it waits for.
    pub(crate) fn progress_flush(&mut self, now: Time, out: &mut Actions) {
        if !self.is_ready() {
            return;
        }
        let (volumes, ops) = (&self.volumes, &self.ops);
        let part_of = |op: usize| volumes.slot(&ops[op].head.volume).map(|s| volumes[s as usize].partition);
        for (part, ops) in self.durability.due_flushes(part_of) {
            // Only for whom it is: others' chunks would be cut short by it.
            self.close_open(now, Some(&part.into_iter().collect()), out);
            let on_their_way = self.on_their_way();
            self.durability.begin_flush(part, ops, self.packing.next_chunk(), &on_their_way);
        }
        if !self.durability.has_unsent_flush() {
            return;
        }
        if self.durability.poll_flush(&self.on_their_way()) {
            match self.planted(Planted::FlushWithoutBarrier) {
                true => self.fast_flushed(now, out),
                false => {
                    self.send_fast(now, (Op::Flush, OwnKind::Metadata), (0, 0), Data::Absent, Pending::FastFlush, out)
                }
            }
        }
    }

    /// Closed chunks that are being written.
    fn on_their_way(&self) -> Vec<OnItsWay> {
        let closed = self.packing.closed();
        closed
            .map(|c| OnItsWay {
                sequence: c.sequence,
                first_slot: c.first_slot,
                number: c.number,
                dirty: c.dirty,
                part: c.part,
            })
            .collect()
    }

    /// All that was on the device is durable: what it supersedes is dead.
    pub(crate) fn fast_flushed(&mut self, now: Time, out: &mut Actions) {
        let Some(flushed) = self.durability.flushed(&mut self.residency.bits(), self.stopping) else { return };
        for s in flushed.superseded {
            self.residency.unpin(s.place.weu());
            self.residency.unpin(s.bytes_in);
        }
        for op in flushed.ended {
            self.part_done(now, op, out);
        }
        self.destage_after_flush(now, flushed.number, flushed.part, out);
    }

    /// Begins to confirm what is old enough, and goes on with it.
    pub(crate) fn progress_confirming(&mut self, now: Time, out: &mut Actions) {
        let weus = self.config.weus_max.min(self.layout.weus);
        let volumes = &self.volumes;
        let flushed = |slot: u16| volumes[usize::from(slot)].flushed;
        match self.durability.poll_confirm(now, (weus, self.stopping), flushed, self.slow_lost) {
            Confirm::Nothing => {}
            Confirm::Wake(at) => out.wake_at(at),
            Confirm::FlushSlow(slots) => {
                for slot in slots {
                    let v = &mut self.volumes[slot as usize];
                    if !std::mem::replace(&mut v.settling, true) {
                        let (whose, covers) = ((v.key, TenantId::default()), (slot, v.changes));
                        let what = (Op::Flush, OwnKind::Fill);
                        self.send_own(now, SLOW, what, whose, (0, 0), Data::Absent, Pending::Settle(covers), out);
                    }
                }
            }
            Confirm::FlushFast => match self.planted(Planted::ConfirmUnflushed) {
                true => self.durability.confirm_flushed(self.residency.index()),
                false => {
                    self.send_fast(now, (Op::Flush, OwnKind::Metadata), (0, 0), Data::Absent, Pending::Confirm, out)
                }
            },
        }
    }
}
