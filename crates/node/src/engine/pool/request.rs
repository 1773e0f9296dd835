//! A client's request, from its permit to its answer.

use super::Pool;
use crate::engine::exports::account_of;
use crate::engine::inbox::Ready;
use crate::engine::inject::Hit;
use crate::engine::outbox::recycle;
use crate::engine::permits::WaitsFor;
use crate::engine::promise::micros;
use crate::engine::refusals::Spared;
use crate::engine::requests::InFlight;
use crate::engine::terms;
use crate::planted;
use crate::planted::Mistake;
use crate::replica::ReplicaUse;
use plimsoll_base::{Completion, Confidence, Data, IoError, IoHead, Op, Outcome, Span, Time};
use plimsoll_nbd::promise::Note as PromiseNote;
use plimsoll_nbd::request::Request;
use plimsoll_nbd::wire::Command as NbdCommand;
use plimsoll_nbd::wire::NoteKind;
use plimsoll_stack::{Forecast, LayerState, Offered};
use std::io;

impl Pool {
    /// A request wants a permit: it gets one, or is refused if it has a promise and its client wants to hear of it, or waits and
    /// nothing is read meanwhile.
    pub(super) fn ask(&mut self, conn: usize, request: Request) {
        let c = &mut self.clients[conn];
        if let Some(why) = c.behind(&request) {
            c.outbox.refuse_behind(&request, why);
            return self.clients.touch(conn);
        }
        match request.command {
            NbdCommand::Cancel => return self.cancel(conn, request.cookie),
            NbdCommand::BlockStatus if c.outbox.is_for_probes() => {
                let notes = self.probe(conn, &request);
                self.clients[conn].outbox.reply_probe(&request, &notes);
                return self.clients.touch(conn);
            }
            _ => {}
        }
        if !self.stack.is_full() && self.clients.take_permit(conn, &request) {
            let ready = self.clients[conn].inbox.admit(request, None, &mut self.buffers);
            self.enter(conn, ready);
        } else if request.command == NbdCommand::Read && self.head_of(conn, &request, self.now).may_be_refused() {
            self.refuse_without_permit(conn, &request);
        } else {
            let ready = Ready { request, data: Data::Absent, waited_since: None };
            self.clients.stall(self.now, conn, WaitsFor::Permit, ready);
        }
    }

    /// An announced write is complete: it enters if it gets its permit, or waits for that.
    pub(super) fn has_come(&mut self, conn: usize, ready: Ready) {
        let has_room = !self.stack.is_full() || planted::is(Mistake::StackOverfilled);
        if has_room && self.clients.take_permit_for_payload(conn, &ready.request) {
            self.enter(conn, ready);
        } else {
            self.clients.stall(self.now, conn, WaitsFor::PermitForPayload, ready);
        }
    }

    /// Refuses a read whose client opted into a promise, instead of slowing it. Its wait for a permit isn't known: the forecast from
    /// there on is the least that it would have been, and has no confidence.
    pub(super) fn refuse_without_permit(&mut self, conn: usize, request: &Request) {
        let head = self.head_of(conn, request, self.now);
        let forecast = Forecast { confidence: Confidence::NONE, ..self.stack.forecast(self.now, &head) };
        self.refuse(conn, &head, request, forecast);
    }

    /// Withdraws a read that has not begun.
    pub(super) fn cancel(&mut self, conn: usize, cookie: u64) {
        if let Some(id) = self.promises.find(conn, cookie) {
            self.stack.cancel(self.now, id);
        }
    }

    /// Returns the forecast of a read that came now, for a client that asks.
    pub(super) fn probe(&mut self, conn: usize, request: &Request) -> Vec<PromiseNote> {
        let head = self.head_of(conn, &Request { command: NbdCommand::Read, ..*request }, self.now);
        let wait = self.stack.forecast(self.now, &head).wait;
        self.promises.probe(wait, self.stack.inflight(), &self.clients[conn].params.replica)
    }

    /// A device gets a request: its client may want to know.
    pub(super) fn begun(&mut self, head: &IoHead) {
        let Some(at) = self.promises.begun(self.now, head) else { return };
        let inside = &self.inside[at];
        let c = &mut self.clients[inside.conn];
        if c.promise_of(&inside.request).tells {
            c.outbox.note(&inside.request, &[(NoteKind::Begun, 1)]);
            self.clients.touch(inside.conn);
        }
    }

    pub(super) fn refuse(&mut self, conn: usize, head: &IoHead, request: &Request, forecast: Forecast) {
        self.traces.refused(self.now, head, forecast);
        let export = self.export(conn);
        self.exports.refused(export, self.now);
        self.teach_deadline(conn, export, request, None);
        self.note_refusal(conn, request, within(head));
        let outcome = Outcome::Busy { wait: forecast.wait, confidence: forecast.confidence };
        let in_all = forecast.total() + self.now.since(head.arrived_at);
        let notes = [(NoteKind::InFlight, self.stack.inflight() as u32), (NoteKind::ForecastUs, micros(in_all))];
        self.clients.refuse(conn, request, outcome, &notes);
    }

    /// A host that sends refused reads again is served then.
    fn note_refusal(&mut self, conn: usize, request: &Request, within: Span) {
        if let Some(who) = self.clients[conn].sends_again() {
            self.refusals.note(self.now, who, (request.offset, request.length.into()), within);
        }
    }

    /// A request's outcome as its client gets it. An NVMe host takes a failed device for the end of the data, unless the status is one of
    /// the path. It is one where the pool has failed (nothing is served here, and the ANA state says so), and at the first failure of a
    /// read of a copy, whose path isn't preferred then: other nodes may have the data ([`Failures`](super::failures::Failures)).
    fn outcome_for(&mut self, conn: usize, request: &Request, arrived_at: Time, outcome: Outcome) -> Outcome {
        let c = &self.clients[conn];
        let (Some(who), Outcome::Failed(IoError::Device)) = (c.sends_again(), outcome) else { return outcome };
        let of_path = match request.command {
            // What was acknowledged may be gone: another path can't make it durable.
            NbdCommand::Flush => false,
            _ if self.state() == LayerState::Failed => true,
            NbdCommand::Read if c.params.used_as == Some(ReplicaUse::Read) => {
                let range = (request.offset, request.length.into());
                !self.failures.failed(self.now, who, range, arrived_at, &c.params.replica)
            }
            _ => false,
        };
        if of_path { Outcome::Failed(IoError::Unavailable) } else { outcome }
    }

    /// A read of a connection took so long, or was refused.
    pub(super) fn teach_deadline(&mut self, conn: usize, export: usize, request: &Request, took: Option<Span>) {
        if terms::teaches(&self.clients[conn], request) {
            self.exports.teach(export, took);
        }
    }

    pub(super) fn head_of(&self, conn: usize, request: &Request, arrived_at: Time) -> IoHead {
        self.head_and_rule_of(conn, request, arrived_at).0
    }

    fn head_and_rule_of(&self, conn: usize, request: &Request, arrived_at: Time) -> (IoHead, Option<Spared>) {
        terms::head(&self.clients[conn], request, (self.now, arrived_at), &self.exports, &self.refusals)
    }

    /// Offers a request to the stack.
    pub(super) fn enter(&mut self, conn: usize, ready: Ready) {
        let Ready { request, data, waited_since } = ready;
        // The time without a permit is part of what the client sees, and of its promise.
        let arrived_at = waited_since.unwrap_or(self.now);
        let (mut head, spared) = self.head_and_rule_of(conn, &request, arrived_at);
        let serial = self.clients.serial(conn);
        let export = self.export(conn);
        let at = self.inside.next_place();
        head.tag = at as u64;
        head.account = account_of(export);
        let is_late_copy = head.op.is_change() && self.clients[conn].is_late_copy();
        if self.devices.may_be_stale() || is_late_copy {
            return self.fail_outside(conn, &head, &request, data, IoError::Unavailable);
        }
        let injected = if self.injections.is_empty() { None } else { self.injections.hit(self.now, &head) };
        let injected = match injected {
            Some(Hit::Fails) => return self.fail_injected(conn, &head, &request, data),
            Some(Hit::Refused(wait)) => return self.refuse_injected(conn, &head, &request, wait),
            Some(Hit::Holds(number)) => number,
            None => 0,
        };
        // Asked for again only where it's kept: a forecast changes nothing, so the stack's own will be the same.
        let sampled = self.traces.due().then(|| self.stack.forecast(self.now, &head));
        let io = self.inside.make(head, data);
        match self.stack.offer(self.now, io) {
            Offered::Accepted(id) => {
                let trace = sampled.map_or(0, |forecast| self.traces.accepted(&head, forecast));
                if let Some(rule) = spared {
                    self.exports.spared(export, rule);
                }
                let c = &mut self.clients[conn];
                c.entered();
                if c.promises() {
                    // The others' number. It isn't in flight itself any more if a layer has ended it at once.
                    self.promises.entered(
                        id,
                        at,
                        (conn, request.cookie),
                        self.stack.inflight().saturating_sub(1),
                        &c.params.replica,
                    );
                }
                self.inside.insert(InFlight {
                    conn,
                    serial,
                    request,
                    export,
                    id,
                    trace,
                    injected,
                    is_spared: spared.is_some(),
                });
            }
            Offered::Busy(forecast) => {
                self.clients.turned_away(conn, &request);
                self.refuse(conn, &head, &request, forecast);
            }
        }
    }

    /// Fails a request by an injected error.
    fn fail_injected(&mut self, conn: usize, head: &IoHead, request: &Request, data: Data) {
        let export = self.export(conn);
        self.exports.injected(export, head.op);
        self.fail_outside(conn, head, request, data, IoError::Device);
    }

    /// A client has left while its requests waited for a permit, or for its next turn. It may have repeated them on another connection, and
    /// changed the same place since: nothing of what it sent on this one is begun any more.
    pub(super) fn drop_late(&mut self, conn: usize, ready: Option<Ready>) {
        if let Some(Ready { request, data, .. }) = ready {
            recycle(data, &mut self.buffers);
            self.clients.turned_away(conn, &request);
        }
        self.clients.end(conn, &mut self.buffers);
    }

    /// Refuses a read on purpose. It is counted as its client sees it; the deadline that sets itself learns nothing of it.
    fn refuse_injected(&mut self, conn: usize, head: &IoHead, request: &Request, wait: Span) {
        let export = self.export(conn);
        self.exports.refused(export, self.now);
        self.note_refusal(conn, request, within(head));
        self.clients.turned_away(conn, request);
        let outcome = Outcome::Busy { wait, confidence: Confidence::CERTAIN };
        self.clients.refuse(conn, request, outcome, &[]);
    }

    /// Fails a request that never enters the stack.
    fn fail_outside(&mut self, conn: usize, head: &IoHead, request: &Request, data: Data, why: IoError) {
        recycle(data, &mut self.buffers);
        let outcome = Outcome::Failed(why);
        if changes_or_flushes(head.op) {
            self.clients[conn].has_changed(request, outcome);
        }
        self.clients.turned_away(conn, request);
        let outcome = self.outcome_for(conn, request, head.arrived_at, outcome);
        self.clients.refuse(conn, request, outcome, &[]);
    }

    /// Sends answers that were held back long enough, and ends injections that are over.
    pub(super) fn end_injected(&mut self) {
        if self.injections.next_due() > self.now {
            return;
        }
        while let Some(c) = self.injections.next_released(self.now) {
            self.answer(c);
        }
        while let Some(over) = self.injections.next_over(self.now) {
            tracing::info!(volume = over.key.id, seen = over.seen, hit = over.hit, "the injection of faults is over");
        }
    }

    /// The place where a connection's requests are counted.
    pub(super) fn export(&mut self, conn: usize) -> usize {
        let params = &self.clients[conn].params;
        self.exports.place(params.volume, params.tenant, params.auto.map(|terms| (terms, params.as_of)))
    }

    /// Carries out what the stack ordered until it orders nothing more.
    pub(super) fn pump(&mut self) -> io::Result<()> {
        loop {
            let mut idle = true;
            while let Some((device, io)) = self.stack.next_device_io() {
                idle = false;
                self.begun(&io.head);
                self.devices.begin(self.now, device, io, &mut self.ring, &mut self.buffers)?;
            }
            while let Some((device, c)) = self.devices.next_ready() {
                idle = false;
                self.stack.device_done(self.now, device, c);
            }
            while let Some((node, work)) = self.stack.next_work() {
                idle = false;
                self.workers.begin(node, work)?;
            }
            if let Some(first) = self.stack.next_done() {
                idle = false;
                // Once for all that ended together: what a device without delay takes is the node's own time.
                self.tick();
                self.answer_unless_held(first);
                while let Some(c) = self.stack.next_done() {
                    self.answer_unless_held(c);
                }
            }
            if idle {
                return if self.deletions.is_empty() { Ok(()) } else { self.go_on_deleting() };
            }
        }
    }

    #[inline]
    pub(super) fn answer_unless_held(&mut self, c: Completion) {
        match self.inside[c.io.tag as usize].injected {
            0 => self.answer(c),
            number => {
                if let Err(c) = self.injections.hold(self.now, number, c) {
                    self.answer(c);
                }
            }
        }
    }

    /// True of a read that was withdrawn as late, if one that it overlaps was refused to its host since it came.
    fn must_still_serve(&self, c: &Completion) -> bool {
        // A full stack takes nothing: other requests may have come since this one was withdrawn.
        if !matches!(c.outcome, Outcome::Busy { .. }) || self.stack.is_full() {
            return false;
        }
        let conn = &self.clients[self.inside[c.io.tag as usize].conn];
        let range = (c.io.offset, c.io.len);
        // Of a client that has left, nothing is begun.
        !conn.is_ending() && conn.sends_again().is_some_and(|who| self.refusals.spares(self.now, who, range).is_some())
    }

    /// Offers such a read once more, to be served however late.
    fn enter_again(&mut self, c: Completion) {
        let inside = self.inside.remove(c.io.tag as usize);
        if inside.trace > 0 {
            self.traces.ended(inside.trace, self.now, &c);
        }
        let waited_since = Some(c.io.arrived_at);
        recycle(self.inside.give_back(c.io), &mut self.buffers);
        self.clients[inside.conn].answered();
        self.enter(inside.conn, Ready { request: inside.request, data: Data::Absent, waited_since });
    }

    pub(super) fn answer(&mut self, c: Completion) {
        if self.must_still_serve(&c) {
            return self.enter_again(c);
        }
        let inside = self.inside.remove(c.io.tag as usize);
        if self.exports.ended(inside.export, self.now, &c) {
            self.exports.mark(inside.export, self.now, self.stack.waited(account_of(inside.export)));
        }
        if inside.trace > 0 {
            self.traces.ended(inside.trace, self.now, &c);
        }
        if c.io.op == Op::Read {
            match c.outcome {
                // What an injected fault held back says nothing of the storage.
                Outcome::Done if inside.injected > 0 => {}
                Outcome::Done => {
                    let took = self.now.since(c.io.arrived_at);
                    if inside.is_spared {
                        self.exports.spared_took(inside.export, took);
                    }
                    self.teach_deadline(inside.conn, inside.export, &inside.request, Some(took));
                }
                Outcome::Busy { .. } => {
                    self.note_refusal(inside.conn, &inside.request, within(&c.io.head));
                    self.teach_deadline(inside.conn, inside.export, &inside.request, None);
                }
                Outcome::Failed(_) => {} // says nothing of how long reads take
            }
        }
        assert_eq!(self.clients.serial(inside.conn), inside.serial, "a connection stays until its requests have ended");
        let conn = &mut self.clients[inside.conn];
        conn.answered();
        if changes_or_flushes(c.io.op) {
            conn.has_changed(&inside.request, c.outcome);
        }
        let took = (c.io.op == Op::Read && c.outcome.is_done()).then(|| self.now.since(c.io.arrived_at));
        let inflight = self.stack.inflight();
        let mut promise_notes = self.promises.ended(self.now, inside.id, took, inflight, &conn.params.replica);
        if took.is_some() && !promise_notes.is_empty() && c.io.expected_at.is_set() {
            promise_notes.push((NoteKind::ForecastUs, micros(c.io.expected_at.since(c.io.arrived_at))));
        }
        let notes = match inside.request.command {
            NbdCommand::BlockStatus => self.promises.probe(Span::ZERO, inflight, &conn.params.replica),
            _ => promise_notes,
        };
        let is_done = c.outcome.is_done();
        let outcome = match is_done {
            true => c.outcome,
            false => self.outcome_for(inside.conn, &inside.request, c.io.arrived_at, c.outcome),
        };
        let data = self.inside.give_back(c.io);
        let data = if is_done { data } else { Data::Absent };
        self.clients.answer(inside.conn, &inside.request, (outcome, data), &notes, &mut self.buffers);
    }
}

/// Time within which a request was to be done, from its arrival on; zero without a deadline.
fn within(head: &IoHead) -> Span {
    if head.deadline.is_set() { head.deadline.since(head.arrived_at) } else { Span::ZERO }
}

fn changes_or_flushes(op: Op) -> bool {
    op.is_change() || op == Op::Flush
}
