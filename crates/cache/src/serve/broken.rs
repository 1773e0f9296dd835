//! The failure of a device: requests that are served without the cache, requests that stop, data that is lost.

use crate::ahead::Ahead;
use crate::control::CacheReport;
use crate::index::Key;
use crate::serve::Cache;
use crate::state::{Bypassed, State};
use crate::status::LostRange;
use plimsoll_base::{Completion, Io, IoError, Outcome, Time, VolumeKey};
use plimsoll_stack::Actions;

/// Reads of the fast device that may fail before it counts as failed as a whole.
const READ_ERRORS_MAX: u64 = 100;
/// Lost ranges that are remembered.
const LOST_MAX: usize = 1000;

impl Cache {
    /// True if the fast device has failed and the answer to [`CacheReport::DeviceFailed`] is still to come. Changes wait meanwhile.
    pub fn wants_failure_record(&self) -> bool {
        self.state.bypassed().is_some_and(|b| !b.is_recorded() && !b.refuses_changes())
    }

    /// The fast device's failure is durably recorded: changes that waited for it continue.
    pub fn failure_recorded(&mut self, now: Time, out: &mut Actions) {
        for io in self.state.bypassed_mut().map(Bypassed::set_recorded).unwrap_or_default() {
            self.route(now, io, out);
        }
    }

    /// The fast device's failure can't be recorded before a restart: changes fail from now on, those that wait included. Without the record
    /// the next start would take what the device holds for the newest.
    pub(crate) fn failure_unrecordable(&mut self, out: &mut Actions) {
        if let Some(bypassed) = self.state.bypassed_mut().filter(|b| !b.is_recorded()) {
            bypassed.refuse_changes();
            self.end_unrecorded(out);
        }
    }

    /// The pool ends before the fast device's failure is recorded: the requests that wait for the record fail.
    pub(crate) fn end_unrecorded(&mut self, out: &mut Actions) {
        for io in self.state.bypassed_mut().map(Bypassed::end_waiting).unwrap_or_default() {
            out.end(io, Outcome::Failed(IoError::Device));
        }
    }

    /// The fast device has failed: nothing that it holds is served any more, and nothing is written to it.
    pub(crate) fn break_down(&mut self, now: Time, what: &str, out: &mut Actions) {
        if !self.is_ready() {
            return self.start_failed(now, what, out);
        }
        self.state = State::Bypassed(Bypassed::new(format!("the fast device failed ({what})"), now));
        out.report(&CacheReport::DeviceFailed);
        self.gate.end_all_fills();
        self.ahead = Ahead::default();
        self.recipes.forget(|_| true);
        self.residency.break_down();
        self.dirty.break_down();
        let waited = self.durability.break_down();
        for op in waited.flushes {
            self.ops[op].failed = Some(IoError::Device);
            self.part_done(now, op, out);
        }
        for insert in self.inserts.take_starved() {
            self.insert_failed(now, insert, out);
        }
        self.break_diverted(now, out);
        // What hasn't reached the slow device yet must not, before it's recorded that the cache holds something older.
        for op in waited.changes {
            let o = &mut self.ops[op];
            let mut io = Io::new(o.head, std::mem::take(&mut o.data));
            if o.outstanding > 1 || !o.locked.is_empty() {
                o.failed = Some(IoError::Device);
                self.part_done(now, op, out);
                continue;
            }
            let o = self.ops.remove(op);
            self.unlock(&o);
            io.head = o.head;
            if let State::Bypassed(b) = &mut self.state {
                b.wait(io);
            }
        }
        // Those that waited for one of those, too: nothing is changed in the cache any more.
        for io in self.gate.take_all_waiting() {
            self.route(now, io, out);
        }
    }

    /// A read of the fast device failed. The fault may be at that place only: its content is treated as corrupt. After
    /// [`READ_ERRORS_MAX`] failed reads, the device counts as failed.
    pub(crate) fn read_failed(&mut self, now: Time, out: &mut Actions) {
        self.counters.unreadable += 1;
        if self.counters.unreadable >= READ_ERRORS_MAX {
            self.break_down(now, "too many reads failed", out);
        }
    }

    pub(crate) fn own_failed(&mut self, now: Time, c: &Completion, out: &mut Actions) -> bool {
        match c.outcome {
            Outcome::Done => false,
            other => {
                let what = match other {
                    Outcome::Failed(e) => e.to_string(),
                    _ => unreachable!("own I/O is never refused"),
                };
                self.break_down(now, &what, out);
                true
            }
        }
    }

    /// A header was read, or not: then it's as if it were damaged.
    pub(crate) fn header_read(&mut self, now: Time, c: &Completion, out: &mut Actions) {
        if !c.outcome.is_done() {
            self.read_failed(now, out);
        }
    }

    pub(crate) fn lose(&mut self, key: Key) {
        self.counters.lost += 1;
        let (e, name) = (self.extent_bytes(), self.name_of(key));
        let offset = name.extent * e;
        let has_room = self.lost.len() < LOST_MAX;
        match self.lost.last_mut() {
            Some(l) if l.volume == name.volume && l.offset + l.len == offset => l.len += e,
            _ if has_room => self.lost.push(LostRange { volume: name.volume, offset, len: e }),
            _ => {}
        }
    }

    /// Gives up a volume's dirty extents, as the fast device has permanently failed. They are lost, and the volume continues with the
    /// slow device's content. A change under way fails if a part of it was among them. The caller must record that for the next start
    /// before.
    pub(crate) fn give_up(&mut self, volume: VolumeKey) {
        let broken = self.state.bypassed().is_some();
        let Some(slot) = self.volumes.slot(&volume).filter(|_| broken) else { return };
        let given_up = self.dirty.risks_of(slot);
        for key in &given_up {
            self.lose(*key);
        }
        // Its other parts may end well on the slow device, and a flush would promise all of it.
        for (_, o) in self.ops.iter_mut().filter(|(_, o)| o.locked.iter().any(|k| given_up.contains(k))) {
            o.failed = Some(IoError::Device);
        }
        self.forget_dirty(slot);
    }

    /// True if the fast device has failed, that is recorded, and the slow device has all of a volume: nothing newer is on the fast device,
    /// whenever that comes back, and nothing is written to it before. So the volume needs the cache no longer, in whatever mode it is.
    pub fn is_whole_without(&self, volume: VolumeKey) -> bool {
        let recorded = self.state.bypassed().is_some_and(Bypassed::is_recorded);
        let Some(slot) = self.volumes.slot(&volume).filter(|_| recorded) else { return false };
        let lost = self.lost.iter().any(|l| l.volume == volume) || !self.durability.missed().is_empty();
        !lost && !self.dirty.has_risk(slot) && !self.gate.is_changing(slot)
    }

    /// Describes the damage that was found at the start, if there is any.
    pub(crate) fn damage(&self) -> Option<String> {
        if !self.durability.missed().is_empty() {
            let when = match self.start_report.damaged_dirty {
                0 => "headers of what only the cache had were damaged when it was started earlier".to_string(),
                n => format!("{n} headers of what only the cache had were damaged when it was started"),
            };
            let names = self.durability.missed().iter().map(|k| match *k == VolumeKey::POOL {
                true => self.volumes.behind(),
                false => format!("volume {}.{}", k.id, k.generation),
            });
            let whose = names.collect::<Vec<_>>().join(", ");
            return Some(format!("{when}: what was written last to {whose} may be missing there"));
        }
        self.start_report.journal_lost.then(|| {
            "its journal was corrupt when it was started: it began anew, with nothing in it; volumes have what is on the pool's own \
             device"
                .into()
        })
    }
}
