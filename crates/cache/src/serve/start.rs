//! From a recovery to serving: what was found is taken over, and made durable.
//!
//! ```text
//!  recovered ──► flush ──► a new epoch of the journal ──► the page, if the device was of version 2 ──► serving
//! ```

use crate::config::Mode;
use crate::control::CacheReport;
use crate::durability::Restored;
use crate::layout::{Layout, PAGE_BYTES};
use crate::recover::{Failure, Order, Recovered, Recovery, Step, World};
use crate::relearn::Relearn;
use crate::request::Pending;
use crate::residency::FoundDirty;
use crate::serve::Cache;
use crate::state::{Bypassed, Starting, State};
use crate::status::StartReport;
use crate::tasks::bytes_of;
use plimsoll_base::{Buf, BufMut, Completion, Data, IoError, Op, Outcome, OwnKind, Time};
use plimsoll_stack::{Actions, Offer};

impl Cache {
    pub(crate) fn begin_recovery(&mut self, now: Time, fast: Offer, out: &mut Actions) {
        self.recover(now, |r, _| r.begin(now, fast.size_bytes, fast.block_bytes), out);
    }

    /// Runs a step of the recovery, carries out its orders, and continues with its result.
    fn recover(&mut self, now: Time, step: impl FnOnce(&mut Recovery, &mut World) -> Step, out: &mut Actions) {
        let State::Recovering(recovery) = &mut self.state else { return };
        let mut world =
            World { config: &self.config, index: self.residency.index_to_fill(), volumes: &mut self.volumes };
        let ended = step(recovery, &mut world);
        for order in recovery.take_orders() {
            match order {
                Order::Layout(found) => self.take_layout(now, found, out),
                Order::Read { what, range } => {
                    let read = (Op::Read, OwnKind::Recovery);
                    self.send_fast(now, read, range, Data::Absent, Pending::Recovery(what), out);
                }
                Order::Wake(at) => out.wake_at(at),
            }
        }
        match ended {
            Ok(None) => {}
            Ok(Some(found)) => self.take_recovered(now, *found, out),
            Err(Failure::Foreign(why)) => {
                self.state = State::Failed(why);
                for io in std::mem::take(&mut self.early) {
                    out.end(io, Outcome::Failed(IoError::Unavailable));
                }
            }
            Err(Failure::Device(what)) => self.start_failed(now, &what, out),
        }
    }

    pub(crate) fn recovery_read(&mut self, now: Time, what: u32, c: Completion, out: &mut Actions) {
        let zeroes = || BufMut::zeroed(c.io.len as usize).freeze();
        let bytes = c.outcome.is_done().then(|| bytes_of(&c.io.data, c.io.len).unwrap_or_else(zeroes));
        let range = (c.io.offset, c.io.len);
        self.recover(now, |r, world| r.handle_read(now, what, range, bytes, world), out);
    }

    pub(crate) fn recovery_woken(&mut self, now: Time, out: &mut Actions) {
        let woken = |r: &mut Recovery, _: &mut World| {
            r.handle_wake(now);
            Ok(None)
        };
        self.recover(now, woken, out);
    }

    /// Takes over the device's layout, which has the number of WEUs that the program had that made it.
    fn take_layout(&mut self, now: Time, found: Layout, out: &mut Actions) {
        let had = std::mem::replace(&mut self.layout, found).weus;
        if found.weus != had {
            if self.config.weus_max >= had {
                self.config.weus_max = u32::MAX;
            }
            self.residency.set_weus(found.weus);
            self.share_out();
        }
        for v in 0..self.volumes.len() {
            let (key, config) = (self.volumes[v].key, self.volumes[v].config);
            if let Some(config) = config {
                // Its fingerprints' key depends on the salt.
                let known = self.announce(now, key, config, out);
                debug_assert!(known.is_ok());
            }
        }
    }

    /// Takes over what was found, and makes it durable.
    fn take_recovered(&mut self, now: Time, found: Recovered, out: &mut Actions) {
        for FoundDirty { key, loc, own } in self.residency.restore(found.refs, found.of_names, found.maybe_dirty) {
            self.mark_dirty(key, loc, own);
            if self.volumes[key.volume() as usize].config.is_none() {
                self.dirty.hold(key, Time::NEVER);
            }
        }
        for v in self.volumes.iter_mut() {
            v.draining = v.config.is_some_and(|c| c.mode != Mode::Back) && v.dirty > 0;
        }
        let max = self.residency.index().fingerprints_max();
        self.relearn = Relearn::of(if max > 0 { found.fingerprints } else { Vec::new() }, max);
        self.packing.restore(self.layout, found.first);
        let Recovered { durable_chunks, next_epoch, suspect, gone, missed, .. } = found;
        let restored = Restored { durable_chunks, next_epoch, suspect, gone, missed };
        self.durability.restore(self.layout, self.config.generation, restored);
        let report = StartReport { dirty: self.dirty.len() as u64, ..found.report };
        self.state = State::Starting(Starting { begun_at: found.begun_at, upgrades: found.old, report });
        for key in found.lost {
            self.dirty.set_lost(key);
            self.lose(key);
        }
        // Whether the power was lost or only the node: what is trusted from now on must stay.
        self.send_fast(now, (Op::Flush, OwnKind::Recovery), (0, 0), Data::Absent, Pending::StartFlush, out);
    }

    /// Goes on once the found data is durable, or fails.
    pub(crate) fn start_flushed(&mut self, now: Time, outcome: Outcome, out: &mut Actions) {
        match outcome.is_done() {
            true => self.write_journal(now, true, out),
            false => self.start_failed(now, "Flush: it can't be read or flushed", out),
        }
    }

    /// A write of the journal is durable: if that was the last of the new epoch's snapshot the cache may serve.
    pub(crate) fn start_journaled(&mut self, now: Time, out: &mut Actions) {
        let State::Starting(starting) = &self.state else { return };
        if self.durability.in_snapshot() {
            return self.write_journal(now, false, out);
        }
        if !starting.upgrades {
            return self.started(now, out);
        }
        // All that the new version needs is there. A page of both versions is one of the new: see `layout`.
        let page = Data::Bytes(Buf::copy_of(&self.layout.encode()));
        let write = (Op::Write, OwnKind::Metadata);
        self.send_fast(now, write, (0, PAGE_BYTES), page, Pending::Upgrade, out);
    }

    /// Everything is as serving needs it.
    pub(crate) fn started(&mut self, now: Time, out: &mut Actions) {
        let State::Starting(starting) = &self.state else { return };
        self.start_report = StartReport { took: now.since(starting.begun_at), ..starting.report };
        self.durability.started();
        self.share_out();
        self.state = State::Serving;
        self.end_early(now, out);
        self.progress(now, out);
    }

    /// The fast device can't be opened, read or written while starting. If no volume can miss anything the volumes go on without a cache;
    /// otherwise the cache, and with it the pool, fails. The invariant: a volume of which the cache may have newer data than the slow
    /// device is never served from the slow device alone.
    pub(crate) fn start_failed(&mut self, now: Time, what: &str, out: &mut Actions) {
        let behind = match self.state {
            State::Recovering(_) => self.volumes.may_be_behind(),
            State::Starting(Starting { report, .. }) => {
                // Entries that it couldn't read or found torn are dead in memory only: at a later start they may count again.
                let is_all = report.unreadable == 0 && report.torn == 0 && self.durability.missed().is_empty();
                !self.dirty.is_empty() || !self.lost.is_empty() || (!is_all && self.volumes.may_be_behind())
            }
            _ => return,
        };
        let why = format!("the fast device failed ({what})");
        self.state = match behind {
            true => State::Failed(format!(
                "{why} when it was started; only it may have what was written to {}. Restore the device and start again; if it is lost for \
                 good, give that up with `plimsoll cache give-up VOLUME --lose-data` for each of them, and start again",
                self.volumes.behind()
            )),
            false => State::Bypassed(Bypassed::new(why, now)),
        };
        if self.wants_failure_record() {
            out.report(&CacheReport::DeviceFailed);
        }
        self.end_early(now, out);
    }

    pub(crate) fn end_early(&mut self, now: Time, out: &mut Actions) {
        for io in std::mem::take(&mut self.early) {
            self.route(now, io, out);
        }
    }
}
