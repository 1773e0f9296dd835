//! Requests on their way: a client's into the cache or past it, and how it ends; the cache's own, and tasks for workers.

use crate::config::Planted;
use crate::index::Key;
use crate::request::{Pending, WorkFor, join};
use crate::serve::{Cache, FAST, SLOW};
use crate::state::State;
use plimsoll_base::{
    Completion, Data, Io, IoError, IoFlags, IoHead, IoId, Op, Origin, Outcome, OwnKind, Priority, PriorityClass,
    TenantId, Time, VolumeKey,
};
use plimsoll_stack::{Actions, Port, Work};

impl Cache {
    /// Sends a client's request on its way: into the cache or past it.
    pub(crate) fn route(&mut self, now: Time, io: Io, out: &mut Actions) {
        if let State::Failed(_) = self.state {
            return out.end(io, Outcome::Failed(IoError::Unavailable));
        }
        match io.op {
            Op::Read => self.read(now, io, out),
            Op::Write | Op::Trim | Op::WriteZeroes => self.change(now, io, out),
            Op::Flush => self.flush(now, io, out),
            Op::BlockStatus => self.block_status(io, out),
            Op::Cache => self.pass(io, out),
        }
    }

    /// Sends a client's request to the slow device as it is.
    pub(crate) fn pass(&mut self, mut io: Io, out: &mut Actions) {
        let slot = self.volumes.slot(&io.volume).filter(|_| io.op == Op::Flush);
        let covers = slot.map(|s| (s, self.volumes[s as usize].changes));
        io.head.tag = self.pending.insert(Pending::Pass { head: io.head, covers }) as u64;
        out.submit(SLOW, io);
    }

    /// Sends a request of the cache's own; `volume` is [`VolumeKey::POOL`] for the fast device.
    #[allow(clippy::too_many_arguments)] // a request has that many parts
    pub(crate) fn send_own(
        &mut self,
        now: Time,
        port: Port,
        (op, kind): (Op, OwnKind),
        (volume, tenant): (VolumeKey, TenantId),
        (offset, len): (u64, u64),
        data: Data,
        pending: Pending,
        out: &mut Actions,
    ) -> IoId {
        let is_broken = self.state.bypassed().is_some() && !self.planted(Planted::BrokenWritten);
        debug_assert!(port != FAST || !is_broken, "a device that has failed is used: {op:?} at {offset}");
        let mut head = IoHead::new(op, volume, tenant, offset, len, now);
        head.id = out.new_id();
        head.origin = Origin::Own(kind);
        head.tag = self.pending.insert(pending) as u64;
        if matches!(self.pending[head.tag as usize], Pending::Journal | Pending::Upgrade) {
            head.flags = IoFlags::FUA;
        }
        // Background work, unless somebody waits for the room that it makes.
        if op == Op::Write && kind == OwnKind::WriteBack && !self.inserts.has_starved() {
            head.priority = Priority { class: PriorityClass::Idle, level: 0 };
        }
        out.submit(port, Io::new(head, data));
        head.id
    }

    /// The same, to the fast device.
    pub(crate) fn send_fast(
        &mut self,
        now: Time,
        op: (Op, OwnKind),
        range: (u64, u64),
        data: Data,
        pending: Pending,
        out: &mut Actions,
    ) {
        self.send_own(now, FAST, op, (VolumeKey::POOL, TenantId::default()), range, data, pending, out);
    }

    /// Orders a task for a worker thread.
    pub(crate) fn order_work(
        &mut self,
        what: WorkFor,
        tenant: TenantId,
        priority: plimsoll_base::Priority,
        task: Box<dyn plimsoll_stack::Task>,
        out: &mut Actions,
    ) {
        let tag = self.works.insert(what) as u64;
        out.work(Work { tag, tenant, priority, task });
    }

    /// A part of a client's request has ended; the last one ends it.
    pub(crate) fn part_done(&mut self, now: Time, op: usize, out: &mut Actions) {
        let ready = self.is_ready();
        let o = &mut self.ops[op];
        o.outstanding -= 1;
        if o.outstanding > 0 {
            return;
        }
        if o.flush_after && !ready {
            o.failed = Some(IoError::Device); // what should be flushed is gone
        }
        if o.flush_after && o.failed.is_none() && o.busy.is_none() {
            o.flush_after = false;
            o.outstanding = 1;
            self.durability.want_flush_for(op);
            return self.progress_flush(now, out);
        }
        let o = self.ops.remove(op);
        self.changed(now, &o, out);
        let outcome = o.busy.or(o.failed.map(Outcome::Failed)).unwrap_or(Outcome::Done);
        let mut data = Data::Absent;
        if o.head.op == Op::Read && outcome.is_done() {
            let slot = self.volumes.slot_known(&o.head.volume);
            let v = &mut self.volumes[slot as usize];
            v.reads += 1;
            v.read_hits += u64::from(o.hit);
            self.counters.reads += 1;
            self.counters.read_hits += u64::from(o.hit);
            data = join(o.pieces);
        }
        out.complete(Completion { io: Io::new(o.head, data), outcome, dispatched_at: o.dispatched_at });
        for key in o.locked.iter().chain(o.touched.iter().map(|t| &t.0)) {
            self.retry_waiting(now, *key, out);
        }
    }

    /// Client requests that waited for an extent try again, if it is free.
    fn retry_waiting(&mut self, now: Time, key: Key, out: &mut Actions) {
        for io in self.gate.take_waiting(&key) {
            self.route(now, io, out);
        }
    }
}
