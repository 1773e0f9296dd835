//! The layer's calls, and the order of the layer's own work after each.

use crate::config::{CacheVolume, Mode};
use crate::control::{CacheControl, CacheTerms};
use crate::request::{Pending, WorkFor};
use crate::serve::{Cache, FAST, SLOW};
use crate::state::State;
use crate::volumes::Volume;
use plimsoll_base::{Completion, Io, IoHead, IoId, Outcome, TenantId, Time, VolumeKey};
use plimsoll_stack::{Actions, Forecast, Layer, LayerState, Message, Offer, Port, Ports, VolumeTerms, Worked};

impl Cache {
    /// Lets go on what can, after anything has happened, and checks the parts. It does neither unless the cache serves.
    pub(crate) fn progress(&mut self, now: Time, out: &mut Actions) {
        if !self.is_ready() {
            return;
        }
        loop {
            self.feed_starved(now, out);
            self.send_chunks(now, out);
            // Evictions first: what they wait for is begun after them, or nothing may ever happen again.
            let freed = self.progress_evictions(now, out);
            self.resolve_starved(now, out);
            self.progress_destage(now, out);
            self.progress_flush(now, out);
            self.progress_confirming(now, out);
            // A WEU that isn't trimmed is free without an event of its own: who waits for it must not wait for one.
            if !freed || !self.inserts.has_starved() {
                break;
            }
        }
        self.forget_refusals();
        self.progress_relearning(now, out);
        self.write_journal(now, false, out);
        self.durability.check();
        self.gate.check_waiting();
        debug_assert_eq!(self.check_truth(), Ok(()));
    }
}

impl Layer for Cache {
    fn name(&self) -> &'static str {
        "cache"
    }

    fn offer(&self, below: &[Offer]) -> Offer {
        below[SLOW as usize]
    }

    fn start(&mut self, now: Time, below: &[Offer], out: &mut Actions) {
        match self.absent.take() {
            Some(why) => self.start_failed(now, &why, out),
            None => self.begin_recovery(now, below[FAST as usize], out),
        }
    }

    /// False only if the slow device has all of the data that weren't given up: the fast device lost acknowledged writes while every volume is
    /// write-through without dirty extents, or after its failure was recorded and no dirty extents are left on it.
    fn durability_lost(&mut self, now: Time, port: Port) -> bool {
        if port == SLOW {
            self.slow_lost(now);
        }
        let written_through = |v: &Volume| v.config.is_none_or(|c| c.mode != Mode::Back) && v.dirty == 0;
        let all_through = self.volumes.iter().all(written_through);
        let is_elsewhere = match &self.state {
            // Its acknowledged data are on the slow device, but for what is dirty. Until the failure is recorded nothing is acknowledged that
            // isn't, if all volumes are write-through.
            State::Bypassed(b) => (b.is_recorded() || all_through) && !self.dirty.is_any_at_risk(),
            // It may have what nobody else has, and nobody knows what.
            State::Failed(_) | State::Recovering(_) | State::Starting(_) => false,
            State::Serving => all_through,
        };
        port == SLOW || self.gate.is_any_closed() || !is_elsewhere
    }

    /// A cache whose fast device failed is ready if the slow device has all data: volumes are served whole, only slower. Its status says
    /// that the device failed.
    fn state(&self) -> LayerState {
        match &self.state {
            State::Recovering(_) | State::Starting(_) => LayerState::Recovering,
            State::Bypassed(b) if b.refuses_changes() || self.dirty.is_any_at_risk() => LayerState::Degraded,
            State::Serving | State::Bypassed(_) if self.lost.is_empty() && self.damage().is_none() => LayerState::Ready,
            State::Serving | State::Bypassed(_) => LayerState::Degraded,
            State::Failed(_) => LayerState::Failed,
        }
    }

    fn set_volume(&mut self, now: Time, volume: VolumeKey, terms: &VolumeTerms, out: &mut Actions) {
        let own: Option<CacheTerms> = terms.own.get();
        debug_assert!(own.is_some(), "a volume of a pool with a cache has terms for it");
        let own = own.unwrap_or(CacheTerms::OFF);
        let weus_max = (own.bytes / u64::from(self.layout.shape.weu_bytes)).min(u64::from(self.layout.weus));
        let config = CacheVolume {
            size_bytes: terms.size_bytes,
            mode: own.mode,
            tenant: TenantId(terms.tenant),
            domain: own.domain,
            weus_max: weus_max as u32,
        };
        // More volumes than there can be slots pass by.
        let _ = self.announce(now, volume, config, out);
    }

    fn forget_volume(&mut self, now: Time, volume: VolumeKey, out: &mut Actions) {
        self.forget(now, volume, out);
    }

    fn is_using(&self, volume: VolumeKey) -> bool {
        // Were it over before, a power loss could bring back what nobody will ever ask for, and only the cache has.
        // While the fast device's failure isn't noted, neither is what that has of the volume: the note gives it up.
        let counts = matches!(self.state, State::Serving) || self.state.is_starting() || self.wants_failure_record();
        if counts && self.durability.is_deleting(&volume) {
            return true;
        }
        let mine = |(_, v): &(u16, &Volume)| v.key == volume;
        (0..=u16::MAX).zip(self.volumes.iter()).find(mine).is_some_and(|(slot, _)| self.is_using_slot(slot))
    }

    fn forecast(&self, at: Time, head: &IoHead, below: Ports<'_>) -> Forecast {
        self.forecast_read(at, head, below)
    }

    fn submit(&mut self, now: Time, io: Io, out: &mut Actions) {
        match self.state.is_starting() {
            true => self.early.push(io),
            false => self.route(now, io, out),
        }
        self.progress(now, out);
    }

    fn completed(&mut self, now: Time, mut c: Completion, out: &mut Actions) {
        match self.pending.remove(c.io.tag as usize) {
            Pending::Pass { head, covers } => {
                self.slow_flushed(covers, c.outcome);
                c.io.head.tag = head.tag;
                out.complete(c);
            }
            Pending::Status { head, runs } => self.status_read(head, &runs, c, out),
            Pending::Settle(covers) => {
                self.volumes[covers.0 as usize].settling = false;
                self.slow_flushed(Some(covers), c.outcome);
                if !c.outcome.is_done() {
                    self.slow_lost(now);
                }
            }
            Pending::Run { op, piece, from, len, token } => self.run_done(now, (op, piece), (from, len), token, c, out),
            p @ (Pending::Through { op } | Pending::SlowFlush { op, .. }) => {
                match p {
                    Pending::SlowFlush { covers, .. } => self.slow_flushed(Some(covers), c.outcome),
                    _ => {
                        let slot = self.volumes.slot_known(&c.io.volume);
                        self.volumes[slot as usize].changes += 1;
                    }
                }
                let o = &mut self.ops[op];
                o.dispatched_at = o.dispatched_at.min(c.dispatched_at);
                if let Outcome::Failed(e) = c.outcome {
                    o.failed = Some(e);
                }
                self.part_done(now, op, out);
            }
            Pending::Fetch(fetch) => self.fetch_read(now, fetch, c, out),
            Pending::Fill { key, count, token, ahead } => self.fill_read(now, (key, count), token, ahead, c, out),
            Pending::Chunk { weu, first_slot } => {
                if !self.own_failed(now, &c, out) {
                    self.chunk_written(now, weu, first_slot);
                }
            }
            Pending::Journal => {
                if !self.own_failed(now, &c, out)
                    && let Some(journaled) = self.durability.journal_written()
                {
                    self.journaled(now, journaled, out);
                }
            }
            Pending::FastFlush => {
                if !self.own_failed(now, &c, out) {
                    self.fast_flushed(now, out);
                }
            }
            Pending::Confirm => {
                if !self.own_failed(now, &c, out) {
                    self.durability.confirm_flushed(self.residency.index());
                }
            }
            Pending::EvictHeader(weu) => {
                self.header_read(now, &c, out);
                self.evict_header_read(now, weu, c, out);
            }
            Pending::Relearn { weu, sequence } => {
                self.header_read(now, &c, out);
                self.relearnt((weu, sequence), &c);
            }
            // Advice: whether it was taken makes no difference.
            Pending::Trim(weu) => self.trimmed(weu),
            Pending::Destage { part, first, count } => {
                self.destage_written(now, part, first..first + count, c.outcome, out);
            }
            Pending::DestageFlush { part } => self.destage_flushed(now, part, c.outcome, out),
            Pending::Recovery(what) => self.recovery_read(now, what, c, out),
            Pending::StartFlush => self.start_flushed(now, c.outcome, out),
            Pending::Upgrade => {
                if !self.own_failed(now, &c, out) {
                    self.started(now, out);
                }
            }
            Pending::Recipe(page) => self.recipe_read(page, c),
        }
        self.progress(now, out);
    }

    fn worked(&mut self, now: Time, done: Worked, out: &mut Actions) {
        match self.works.remove(done.tag as usize) {
            WorkFor::Fingerprint(insert) => self.fingerprinted(now, insert, done.answer, out),
            WorkFor::Pack(insert) => self.packed(now, insert, done.answer, out),
            WorkFor::Unpack(fetch) => {
                let data = (done.answer.words[0] == 1).then_some(done.answer.data);
                self.fetched(now, fetch, data, out);
            }
        }
        self.progress(now, out);
    }

    fn wake(&mut self, now: Time, out: &mut Actions) {
        self.recovery_woken(now, out);
        self.progress(now, out);
    }

    fn cancel(&mut self, _now: Time, id: IoId, out: &mut Actions) {
        // Only what went below under its own id as a whole can be called back.
        let whole = |p: &Pending| match p {
            Pending::Pass { head, .. } | Pending::Status { head, .. } => head.id == id,
            Pending::Run { op, .. } => self.ops[*op].head.id == id && self.ops[*op].pieces.len() == 1,
            _ => false,
        };
        if self.pending.iter().any(|(_, p)| whole(p)) {
            out.cancel(SLOW, id);
        }
    }

    fn told(&mut self, now: Time, message: &[u8], out: &mut Actions) -> bool {
        let Some(control) = CacheControl::decode(message) else { return false };
        match control {
            CacheControl::Flush => {
                self.volumes.iter_mut().for_each(|v| v.draining = v.dirty > 0);
                self.dirty.want_all();
                self.flush_asked = self.dirty.wanted() > 0;
            }
            CacheControl::Bytes(bytes) => {
                let weus = bytes / u64::from(self.layout.shape.weu_bytes);
                self.set_weus_max(now, weus.min(u64::from(self.layout.weus)) as u32, out);
            }
            CacheControl::FailureNoted => self.failure_recorded(now, out),
            CacheControl::FailureUnrecordable => self.failure_unrecordable(out),
            CacheControl::GiveUp { id, generation } => self.give_up(VolumeKey { id, generation }),
            CacheControl::FingerprintsPercent(percent) => self.set_fingerprints(percent),
        }
        self.progress(now, out);
        true
    }

    fn stop(&mut self, now: Time, out: &mut Actions) {
        self.stopping = true;
        self.end_unrecorded(out);
        self.progress(now, out);
    }

    /// Writes the packed extents, so that the next start finds them.
    fn drain(&mut self, now: Time, out: &mut Actions) {
        self.stopping = true;
        if self.is_ready() {
            // Asked for again and again until nothing is under way: what the first time began must not begin anew each time.
            if !std::mem::replace(&mut self.draining, true) {
                self.close_open(now, None, out);
                if self.packing.has_dirty() || self.durability.has_undurable() {
                    self.durability.want_flush([]);
                }
            }
            self.progress(now, out);
        }
    }

    fn is_idle(&self) -> bool {
        self.pending.is_empty()
            && self.ops.is_empty()
            && self.works.is_empty()
            && !self.gate.has_waiting()
            && !self.state.has_waiting()
            && self.early.is_empty()
    }
}
