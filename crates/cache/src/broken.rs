//! When a device fails: what goes on without the cache, what stops, what is lost.

use crate::control::CacheReport;
use crate::index::Key;
use crate::layer::Cache;
use crate::read::Ahead;
use crate::recover::Stage;
use crate::status::LostRange;
use plimsoll_base::{Completion, Io, IoError, Outcome, Time, VolumeKey};
use plimsoll_stack::Actions;

/// Reads of the fast device that may fail before it counts as failed as a whole.
const READ_ERRORS_MAX: u64 = 100;
/// Lost ranges that are remembered.
const LOST_MAX: usize = 1000;

/// Where the layer is in its life.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Life {
    Recovering,
    Ready,
    /// The fast device failed. Writes wait until somebody has noted that what it holds is no longer true.
    Broken {
        why: String,
        noted: bool,
    },
    /// Not this cache's device, or it can't be read.
    Failed(String),
}

impl Cache {
    /// Whether the fast device has failed and the answer to [`CacheReport::DeviceFailed`] is still to come. Changes wait meanwhile.
    pub fn wants_note(&self) -> bool {
        matches!(self.life, Life::Broken { noted: false, .. })
    }

    /// That was noted, durably.
    pub fn noted(&mut self, now: Time, out: &mut Actions) {
        if let Life::Broken { noted, .. } = &mut self.life {
            *noted = true;
        }
        for io in std::mem::take(&mut self.unnoted) {
            self.route(now, io, out);
        }
    }

    /// The pool ends, and that the fast device failed isn't noted: what waits for it waits no longer.
    pub(crate) fn end_unnoted(&mut self, out: &mut Actions) {
        for io in std::mem::take(&mut self.unnoted) {
            out.end(io, Outcome::Failed(IoError::Device));
        }
    }

    /// The fast device has failed: nothing that it holds is served any more, and nothing is written to it.
    pub(crate) fn break_down(&mut self, now: Time, what: &str, out: &mut Actions) {
        if !self.is_ready() {
            if self.life == Life::Recovering {
                self.start_failed(now, what, out);
            }
            return;
        }
        self.life = Life::Broken { why: format!("the fast device failed ({what})"), noted: false };
        out.report(&CacheReport::DeviceFailed);
        self.fills.clear();
        self.ahead = Ahead::default();
        self.recipes.forget(|_| true);
        self.evicting.clear();
        self.dirty.break_down();
        self.confirming.break_down();
        for op in std::mem::take(&mut self.flush_next)
            .into_iter()
            .chain(std::mem::take(&mut self.flush_jobs).into_iter().flat_map(|j| j.ops))
            .chain(self.unsaid.break_down())
        {
            self.ops[op].failed = Some(IoError::Device);
            self.part_done(now, op, out);
        }
        for insert in std::mem::take(&mut self.starved) {
            self.insert_failed(now, insert, out);
        }
        // What hasn't reached the slow device yet must not, before it's noted that the cache holds something older.
        for (_, op) in std::mem::take(&mut self.held) {
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
            self.unnoted.push_back(io);
        }
        // Those that waited for one of those, too: nothing is changed in the cache any more.
        for io in std::mem::take(&mut self.waiting).into_values().flatten() {
            self.route(now, io, out);
        }
    }

    /// The fast device can't be read, or written, while starting. If nobody can miss anything the volumes go on without a cache.
    pub(crate) fn start_failed(&mut self, now: Time, what: &str, out: &mut Actions) {
        let Some(r) = self.recovery.take() else { return };
        let why = format!("the fast device failed ({what})");
        let behind = match r.stage {
            Stage::Flush | Stage::Epoch | Stage::Upgrade => !self.dirty.is_empty() || !self.lost.is_empty(),
            _ => self.may_be_behind(),
        };
        self.life = match behind {
            true => Life::Failed(format!(
                "{why} when it was started; only it may have what was written to {}. Restore the device and start again; if it is lost for \
                 good, give that up with `plimsoll cache give-up VOLUME --lose-data` for each of them, and start again",
                self.behind()
            )),
            false => Life::Broken { why, noted: false },
        };
        if self.wants_note() {
            out.report(&CacheReport::DeviceFailed);
        }
        self.end_early(now, out);
    }

    /// May the cache have something newer than the slow device, as far as is known before it was read?
    pub(crate) fn may_be_behind(&self) -> bool {
        self.known.as_ref().is_none_or(|known| known.values().any(|behind| *behind))
    }

    /// Whose that is.
    pub(crate) fn behind(&self) -> String {
        let Some(known) = &self.known else { return "its write-back volumes".into() };
        let names =
            known.iter().filter(|(_, behind)| **behind).map(|(k, _)| format!("volume {}.{}", k.id, k.generation));
        names.collect::<Vec<_>>().join(", ")
    }

    /// A read of the fast device failed. It may be that place only: what is there is treated as spoiled, until that is too much.
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

    /// What only the cache had of a volume is given up, as its device failed for good: it is lost, and the volume goes on with what the
    /// slow device has. That must be noted for the next start before.
    pub(crate) fn give_up(&mut self, volume: VolumeKey) {
        let broken = matches!(self.life, Life::Broken { .. });
        let Some(slot) = self.by_key.get(&volume).copied().filter(|_| broken) else { return };
        for key in self.dirty.risks_of(slot) {
            self.lose(key);
        }
        self.forget_dirty(slot);
    }

    /// Was what the cache has of a volume given up after the journal was last written?
    pub(crate) fn is_given_up(&self, volume: &VolumeKey) -> bool {
        let Some(since) = self.given_up.get(volume) else { return false };
        let written = self.recovery.as_ref().map_or(self.config.generation, |r| r.generation);
        (written.wrapping_sub(*since) as i16) < 0
    }

    pub(crate) fn end_early(&mut self, now: Time, out: &mut Actions) {
        for io in std::mem::take(&mut self.early) {
            self.route(now, io, out);
        }
    }
}
