//! A pool's thread.
//!
//! The thread works in rounds. A round waits for the kernel, takes in everything that has completed, and serves each connection that was
//! touched. A connection that is served may parse requests, which enter the stack.
//!
//! Each call into the stack is followed by a pump before the round ends. A pump carries out the stack's orders until the stack has none, and
//! encodes the answers of requests that ended. An answer touches its connection.
//!
//! A round ends because permits that come back while connections are served are given on in the next round only, and because a
//! connection's turn is bounded by `PARSE_MAX`.

mod snapshot;
#[cfg(test)]
mod tests;

use super::clients::{Clients, LetIn};
use super::command::{Command, Ears, Health};
use super::conn::Parsed;
use super::deletions::{Deletions, Step};
use super::device::Devices;
use super::exports::{Exports, account_of};
use super::inbox::Ready;
use super::inject::{Hit, Injections};
use super::outbox::recycle;
use super::permits::WaitsFor;
use super::promise::{Courses, micros};
use super::refusals::Refusals;
use super::requests::{Inside, Requests};
use super::ring::{Op as RingOp, Ring};
use super::slow::SlowLimits;
use super::tape::TapeWriter;
use super::terms;
use super::trace::Traces;
use super::withdrawal::{STRETCH_MAX, STRETCH_TIME, Withdrawal};
use super::workers::Workers;
use crate::planted::{self, Mistake};
use plimsoll_base::{
    BufPool, Completion, Confidence, Data, Io, IoError, IoHead, Op, Outcome, Span, TenantId, Time, VolumeKey,
};
use plimsoll_nbd::promise::Note as Said;
use plimsoll_nbd::request::Request;
use plimsoll_nbd::wire::{Command as NbdCommand, NoteKind};
use plimsoll_stack::tape::Taped;
use plimsoll_stack::{Addressed, Forecast, Front, LayerState, Offered, Stack};
use std::io;
use std::os::fd::AsRawFd;
use std::sync::mpsc::TryRecvError;
use std::time::{Duration, Instant};

/// How a pool's thread behaves.
#[derive(Clone, Debug)]
pub struct PoolOptions {
    /// Sleep until shortly before a layer's timer and spin the rest: for devices modelled in real time, whose
    /// completions are due to the microsecond.
    pub precise_timers: bool,
    /// Every how many requests one is traced; 0 traces only refused ones.
    pub trace_every: u32,
    /// How long clients have to take their last answers when the pool ends and has made all of them.
    pub client_end: Duration,
    /// A client that sends nothing for this long of a payload that it announced is let go.
    pub payload_time: Duration,
    /// The same for one that sends fewer bytes of it a second, on average after [`PoolOptions::payload_time`]; or that is
    /// behind this rate by more than that time in taking its answers, while its tenant's other clients wait for what it
    /// holds.
    pub payload_rate: u64,
    /// The same for one that hasn't sent all of it after this long, and could have at [`PoolOptions::payload_rate`].
    pub payload_end: Duration,
    /// Threads that do layers' work at most.
    pub workers_max: usize,
    /// Where they are pinned, one on each; none if they may run anywhere.
    pub worker_cpus: Vec<usize>,
}

impl Default for PoolOptions {
    fn default() -> PoolOptions {
        PoolOptions {
            precise_timers: false,
            trace_every: 1024,
            client_end: Duration::from_secs(10),
            payload_time: Duration::from_secs(30),
            payload_rate: 64 << 10,
            payload_end: Duration::from_secs(120),
            workers_max: 1,
            worker_cpus: Vec::new(),
        }
    }
}

impl PoolOptions {
    fn slow_limits(&self) -> SlowLimits {
        let PoolOptions { payload_time, payload_rate, payload_end, .. } = self;
        SlowLimits { silent: Span::from(*payload_time), rate: *payload_rate, whole: Span::from(*payload_end) }
    }
}

/// Requests of one connection that are understood at a stretch: about a millisecond's work.
const PARSE_MAX: usize = 256;
/// The pool stops sleeping this long before a timer when precise (notes on this kind of machine: a sleeper wakes up to
/// 60 us late when idle).
const SPIN: Duration = Duration::from_micros(60);

/// Takes a layer's report. It is called on the pool's thread and doesn't wait.
pub type Report = Box<dyn Fn(&Addressed) + Send>;

/// See the module's documentation.
pub struct Pool {
    started: Instant,
    now: Time,
    options: PoolOptions,
    ring: Ring,
    stack: Taped<TapeWriter>,
    devices: Devices,
    workers: Workers,
    buffers: BufPool,
    clients: Clients,
    inside: Requests,
    /// Of those inside whose clients know promises.
    courses: Courses,
    exports: Exports,
    injections: Injections,
    refusals: Refusals,
    ears: Ears,
    health: Health,
    deletions: Deletions,
    traces: Traces,
    /// Removed tenants that still have connections.
    forgetting: Vec<TenantId>,
    withdrawal: Withdrawal,
    stopping: bool,
    /// While stopping: since when nothing is inside.
    quiet_since: Option<Time>,
    report: Option<Report>,
}

impl Pool {
    /// A pool over `stack` and its devices, taking commands from `ears`, recorded on `tape` if there is one.
    pub fn new(
        stack: Stack,
        tape: Option<TapeWriter>,
        mut devices: Devices,
        ears: Ears,
        options: PoolOptions,
    ) -> io::Result<Pool> {
        devices.wake_through(ears.wakeup.clone());
        let ring = Ring::new(1024)?;
        Ok(Pool {
            started: Instant::now(),
            now: Time::ZERO,
            stack: Taped::new(stack, tape),
            devices,
            workers: Workers::new(options.workers_max, options.worker_cpus.clone(), ears.wakeup.clone()),
            buffers: ring.buffers(),
            ring,
            clients: Clients::new(options.slow_limits()),
            inside: Requests::default(),
            courses: Courses::default(),
            exports: Exports::default(),
            injections: Injections::default(),
            refusals: Refusals::default(),
            health: Health::UNBORN,
            ears,
            deletions: Deletions::default(),
            traces: Traces::new(options.trace_every),
            options,
            forgetting: Vec::new(),
            withdrawal: Withdrawal::default(),
            stopping: false,
            quiet_since: None,
            report: None,
        })
    }

    /// Passes layers' reports to `report`, if anybody takes them.
    pub fn with_report(mut self, report: Report) -> Pool {
        self.report = Some(report);
        self
    }

    /// Runs until told to shut down, on the calling thread.
    pub fn run(mut self) -> io::Result<()> {
        if self.options.precise_timers {
            // Without this a sleeper is woken up to 50 us late by design.
            rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1))?;
        }
        self.begin()?;
        while !self.round()? {}
        self.stack.end();
        self.devices.sync()
    }

    fn begin(&mut self) -> io::Result<()> {
        self.listen_for_commands()?;
        self.tick();
        self.stack.start(self.now);
        self.pump()?;
        self.tell_health();
        Ok(())
    }

    /// Waits until there is something to do, and does it. True when the pool has ended.
    fn round(&mut self) -> io::Result<bool> {
        self.tick();
        let timeout = self.timeout();
        self.clients.sleeps(self.now, timeout.map(Span::from));
        self.ring.wait(timeout)?;
        crate::panics::point("pool");
        self.tick();
        self.clients.woke(self.now);
        self.reap()?;
        if self.stack.next_wake() <= self.now {
            self.stack.wake(self.now);
        }
        for conn in self.clients.begin_turns() {
            self.parse(conn)?;
            self.clients.touch(conn);
        }
        self.withdraw_some()?;
        self.end_injected();
        self.pump()?;
        self.tell_health();
        if self.health.state == LayerState::Recovering {
            // A layer whose own below has recovered begins to read: nothing else would send that.
            self.stack.start(self.now);
            self.pump()?;
        }
        self.serve_connections()?;
        if self.clients.look_is_due(self.now) {
            self.look_around()?;
        }
        Ok(self.stopping && self.stop_when_idle()?)
    }

    /// Handles what the kernel has completed.
    fn reap(&mut self) -> io::Result<()> {
        while let Some((op, result)) = self.ring.next_completed() {
            let from_client = matches!(op, RingOp::Recv { .. });
            self.handle(op, result)?;
            if from_client {
                // What could be answered at once goes out at once: its client works on while others are served.
                self.serve_connections()?;
            }
        }
        Ok(())
    }

    fn tick(&mut self) {
        self.now = Time::from_nanos(self.started.elapsed().as_nanos() as u64).max(self.now);
    }

    /// Returns how long the thread may sleep until it has something to do.
    fn timeout(&mut self) -> Option<Duration> {
        let wake = self.stack.next_wake().min(self.injections.next_due());
        // Look around now and then, for clients that don't read while the pool ends, or don't send what they announced.
        let look = match (self.stopping, self.clients.is_empty()) {
            (true, _) => Some(Duration::from_millis(20)),
            (false, false) => Some(self.clients.look_interval().into()),
            (false, true) => None,
        };
        if self.clients.has_turns() {
            return Some(Duration::ZERO);
        }
        let look = match self.inside.withdraws() {
            false => look,
            true => {
                let left = Duration::from(self.withdrawal.rest(self.now));
                Some(look.map_or(left, |look| look.min(left)))
            }
        };
        if !wake.is_set() {
            self.stack.pause();
            return look;
        }
        self.tick();
        let left: Duration = wake.since(self.now).into();
        let left = if !self.options.precise_timers {
            left
        } else if left > SPIN {
            left - SPIN
        } else {
            Duration::ZERO
        };
        Some(look.map_or(left, |look| look.min(left)))
    }

    /// Takes nothing more in; what is inside finishes. Space that is being zeroed stays in deletion: the next start goes on.
    fn stop(&mut self) {
        if self.stopping {
            return;
        }
        self.stopping = true;
        self.injections.end_all();
        self.clients.close(None, &mut self.buffers);
        self.deletions.stop();
        self.stack.stop(self.now);
    }

    fn listen_for_commands(&mut self) -> io::Result<()> {
        self.ring.submit(RingOp::Wakeup { fd: self.ears.wakeup.as_raw_fd(), count: Box::new([0; 8]) })
    }

    fn handle(&mut self, op: RingOp, result: io::Result<usize>) -> io::Result<()> {
        match op {
            RingOp::Recv { conn, into, .. } => {
                self.clients.received(self.now, conn, into, result.unwrap_or(0));
                self.parse(conn)
            }
            RingOp::Send { conn, batch, start, .. } => {
                let sent = (conn, batch, start);
                let is_there = self.clients.handle_sent(self.now, sent, result, &mut self.ring, &mut self.buffers)?;
                self.withdraw_unless(is_there, conn);
                Ok(())
            }
            RingOp::Wakeup { .. } => {
                self.listen_for_commands()?;
                while let Some((node, done)) = self.workers.next_done()? {
                    self.stack.worked(self.now, node, done);
                }
                while let Some((device, c)) = self.devices.next_status()? {
                    self.stack.device_done(self.now, device, c);
                }
                self.obey()
            }
            other => {
                if let Some((device, c)) = self.devices.completed(other, result, &mut self.ring, &mut self.buffers)? {
                    self.stack.device_done(self.now, device, c);
                }
                Ok(())
            }
        }
    }

    /// Requests of a client that is gone are to be withdrawn.
    fn withdraw_unless(&mut self, is_there: bool, conn: usize) {
        if !is_there {
            self.inside.withdraw(conn);
        }
    }

    /// Withdraws some of what clients left behind, the oldest first: those are found soonest. Each may cost the layers a look
    /// at all that they hold.
    fn withdraw_some(&mut self) -> io::Result<()> {
        if !self.inside.withdraws() || !self.withdrawal.is_due(self.now) {
            return Ok(());
        }
        let began = Instant::now();
        for _ in 0..STRETCH_MAX {
            let Some(id) = self.inside.next_withdrawn() else { break };
            self.stack.cancel(self.now, id);
            if began.elapsed() >= STRETCH_TIME {
                break;
            }
        }
        self.pump()?;
        let took = began.elapsed();
        self.tick();
        self.withdrawal.ended(self.now, took);
        Ok(())
    }

    /// Understands what a connection has received, as far as permits reach.
    ///
    /// A receive may bring thousands of requests: after [`PARSE_MAX`], others have their turn.
    fn parse(&mut self, conn: usize) -> io::Result<()> {
        self.tick();
        let mut left = PARSE_MAX;
        while self.clients[conn].may_parse() {
            if left == 0 {
                self.clients.end_turn(conn);
                break;
            }
            left -= 1;
            match self.clients[conn].parse() {
                Parsed::NeedBytes => break,
                Parsed::Ended(why) => {
                    tracing::debug!(conn, why, "connection ends");
                    self.clients.end(conn, &mut self.buffers);
                    break;
                }
                Parsed::Asks(request) => self.ask(conn, request),
                Parsed::Announces(request) => self.clients.announce(self.now, conn, request, &mut self.buffers),
                Parsed::Ready(ready) => self.has_come(conn, ready),
            }
        }
        self.pump()
    }

    /// A request wants a permit: it gets one, or is refused if it has a promise and its client wants to hear of it, or waits and
    /// nothing is read meanwhile.
    fn ask(&mut self, conn: usize, request: Request) {
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
    fn has_come(&mut self, conn: usize, ready: Ready) {
        let has_room = !self.stack.is_full() || planted::is(Mistake::StackOverfilled);
        if has_room && self.clients.take_permit_for_payload(conn, &ready.request) {
            self.enter(conn, ready);
        } else {
            self.clients.stall(self.now, conn, WaitsFor::PermitForPayload, ready);
        }
    }

    /// Who opted into a promise isn't slowed but told at once. What it would have waited for a permit nobody knows: the
    /// forecast from there on is the least it would have been, and worth no confidence.
    fn refuse_without_permit(&mut self, conn: usize, request: &Request) {
        let head = self.head_of(conn, request, self.now);
        let forecast = Forecast { confidence: Confidence::NONE, ..self.stack.forecast(self.now, &head) };
        self.refuse(conn, &head, request, forecast);
    }

    /// Withdraws a read that has not begun.
    fn cancel(&mut self, conn: usize, cookie: u64) {
        if let Some(id) = self.courses.find(conn, cookie) {
            self.stack.cancel(self.now, id);
        }
    }

    /// What a connection's client is told when it asks how a read would fare now.
    fn probe(&mut self, conn: usize, request: &Request) -> Vec<Said> {
        let head = self.head_of(conn, &Request { command: NbdCommand::Read, ..*request }, self.now);
        let wait = self.stack.forecast(self.now, &head).wait;
        self.courses.probe(wait, self.stack.inflight(), &self.clients[conn].params.replica)
    }

    /// A device gets a request: its client may want to know.
    fn begun(&mut self, head: &IoHead) {
        let Some(at) = self.courses.begun(self.now, head) else { return };
        let inside = &self.inside[at];
        let c = &mut self.clients[inside.conn];
        if c.promise_of(&inside.request).tells {
            c.outbox.note(&inside.request, &[(NoteKind::Begun, 1)]);
            self.clients.touch(inside.conn);
        }
    }

    fn refuse(&mut self, conn: usize, head: &IoHead, request: &Request, forecast: Forecast) {
        self.traces.refused(self.now, head, forecast);
        let export = self.export(conn);
        self.exports.refused(export, self.now);
        self.teach_deadline(conn, export, request, None);
        self.note_refusal(conn, request);
        let outcome = Outcome::Busy { wait: forecast.wait, confidence: forecast.confidence };
        let notes = [(NoteKind::InFlight, self.stack.inflight() as u32)];
        self.clients.refuse(conn, request, outcome, &notes);
    }

    /// A host that sends refused reads again is served then.
    fn note_refusal(&mut self, conn: usize, request: &Request) {
        if let Some(who) = self.clients[conn].sends_again() {
            self.refusals.note(self.now, who, (request.offset, request.length.into()));
        }
    }

    /// A read of a connection took so long, or was refused.
    fn teach_deadline(&mut self, conn: usize, export: usize, request: &Request, took: Option<Span>) {
        if terms::teaches(&self.clients[conn], request) {
            self.exports.teach(export, took);
        }
    }

    fn head_of(&self, conn: usize, request: &Request, arrived_at: Time) -> IoHead {
        terms::head(&self.clients[conn], request, (self.now, arrived_at), &self.exports, &self.refusals)
    }

    /// Offers a request to the stack.
    fn enter(&mut self, conn: usize, ready: Ready) {
        let Ready { request, data, waited_since } = ready;
        // The time without a permit is part of what the client sees, and of its promise.
        let arrived_at = waited_since.unwrap_or(self.now);
        let mut head = self.head_of(conn, &request, arrived_at);
        let serial = self.clients.serial(conn);
        let export = self.export(conn);
        let at = self.inside.next_place();
        head.tag = at as u64;
        head.account = account_of(export);
        let injected = if self.injections.is_empty() { None } else { self.injections.hit(self.now, &head) };
        let injected = match injected {
            Some(Hit::Fails) => return self.fail_injected(conn, &head, &request, data),
            Some(Hit::Holds(number)) => number,
            None => 0,
        };
        // Asked for again only where it's kept: a forecast changes nothing, so the stack's own will be the same.
        let sampled = self.traces.due().then(|| self.stack.forecast(self.now, &head));
        match self.stack.offer(self.now, Io::new(head, data)) {
            Offered::Accepted(id) => {
                let trace = sampled.map_or(0, |forecast| self.traces.accepted(&head, forecast));
                let c = &mut self.clients[conn];
                c.entered();
                if c.promises() {
                    self.courses.entered(id, at, (conn, request.cookie), self.stack.inflight() - 1, &c.params.replica);
                }
                self.inside.insert(Inside { conn, serial, request, export, id, trace, injected });
            }
            Offered::Busy(forecast) => {
                self.clients.turned_away(conn, &request);
                self.refuse(conn, &head, &request, forecast);
            }
        }
    }

    /// Fails a request that never enters the stack: an injected error.
    fn fail_injected(&mut self, conn: usize, head: &IoHead, request: &Request, data: Data) {
        recycle(data, &mut self.buffers);
        let outcome = Outcome::Failed(IoError::Device);
        let export = self.export(conn);
        self.exports.injected(export, head.op);
        if changes_or_flushes(head.op) {
            self.clients[conn].has_changed(request, outcome);
        }
        self.clients.turned_away(conn, request);
        self.clients.refuse(conn, request, outcome, &[]);
    }

    /// Sends answers that were held back long enough, and ends injections that are over.
    fn end_injected(&mut self) {
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
    fn export(&mut self, conn: usize) -> usize {
        let params = &self.clients[conn].params;
        self.exports.place(params.volume, params.tenant, params.auto)
    }

    /// Carries out what the stack ordered until it orders nothing more.
    fn pump(&mut self) -> io::Result<()> {
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
    fn answer_unless_held(&mut self, c: Completion) {
        match self.inside[c.io.tag as usize].injected {
            0 => self.answer(c),
            number => {
                if let Err(c) = self.injections.hold(self.now, number, c) {
                    self.answer(c);
                }
            }
        }
    }

    fn answer(&mut self, c: Completion) {
        let inside = self.inside.remove(c.io.tag as usize);
        if self.exports.ended(inside.export, self.now, &c) {
            self.exports.mark(inside.export, self.now, self.stack.waited(account_of(inside.export)));
        }
        if inside.trace > 0 {
            self.traces.ended(inside.trace, self.now, &c);
        }
        if c.io.op == Op::Read {
            match c.outcome {
                Outcome::Done => {
                    let took = self.now.since(c.io.arrived_at);
                    self.teach_deadline(inside.conn, inside.export, &inside.request, Some(took));
                }
                Outcome::Busy { .. } => {
                    self.note_refusal(inside.conn, &inside.request);
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
        let mut course = self.courses.ended(self.now, inside.id, took, inflight, &conn.params.replica);
        if took.is_some() && !course.is_empty() && c.io.expected_at.is_set() {
            course.push((NoteKind::ForecastUs, micros(c.io.expected_at.since(c.io.arrived_at))));
        }
        let notes = match inside.request.command {
            NbdCommand::BlockStatus => self.courses.probe(Span::ZERO, inflight, &conn.params.replica),
            _ => course,
        };
        let data = if c.outcome.is_done() { c.io.into_data() } else { Data::Absent };
        self.clients.answer(inside.conn, &inside.request, (c.outcome, data), &notes, &mut self.buffers);
    }

    /// Passes layers' reports on, and the pool's health where that has changed.
    fn tell_health(&mut self) {
        while let Some(report) = self.stack.next_report() {
            if let Some(take) = &self.report {
                take(&report);
            }
        }
        let flush_failed = self.stack.layer::<Front>().is_some_and(Front::flush_failed);
        let health = Health { state: self.stack.state(), flush_failed };
        if health != self.health {
            if health.flush_failed {
                // What was acknowledged may be gone, and others have it.
                self.clients.iter().for_each(|c| c.params.replica.lost());
            }
            self.health = health;
            self.ears.health.send_replace(health);
        }
    }

    /// Lets stalled connections go on, and every touched one send and receive.
    fn serve_connections(&mut self) -> io::Result<()> {
        self.clients.look_at_waits();
        self.unstall()?;
        // Before anybody hears of a failure: who then comes anew finds the door closed.
        self.tell_health();
        while let Some(conn) = self.clients.next_touched() {
            self.serve_connection(conn)?;
        }
        // What was sent meanwhile gave permits back. Who waits for those has them in the next round, after what the kernel
        // has completed by then: where answers are made at once, it would go on here until all that it sent is used up.
        Ok(())
    }

    fn serve_connection(&mut self, conn: usize) -> io::Result<()> {
        self.send(conn)?;
        if self.clients[conn].has_turn() {
            // It may have stopped because too much was waiting to be sent.
            self.parse(conn)?;
            let was_full = self.clients[conn].outbox.is_full();
            self.tell_health();
            self.send(conn)?;
            if was_full && !self.clients[conn].outbox.is_full() {
                // It stopped for that again, and nothing but this would let it go on.
                self.clients.touch(conn);
                return Ok(());
            }
        }
        self.clients.receive(self.now, conn, &mut self.ring)?;
        if self.clients.remove_finished(conn, &mut self.buffers) {
            self.forget_tenants();
        }
        Ok(())
    }

    fn send(&mut self, conn: usize) -> io::Result<()> {
        let is_there = self.clients.send(self.now, conn, &mut self.ring, &mut self.buffers)?;
        self.withdraw_unless(is_there, conn);
        Ok(())
    }

    fn unstall(&mut self) -> io::Result<()> {
        while let Some(LetIn { conn, ready }) = self.clients.next_let_in(self.stack.is_full(), &mut self.buffers) {
            if let Some(ready) = ready {
                self.enter(conn, ready);
            }
            self.parse(conn)?;
        }
        Ok(())
    }

    fn obey(&mut self) -> io::Result<()> {
        loop {
            match self.ears.commands.try_recv() {
                Ok(command) => self.obey_one(command)?,
                Err(TryRecvError::Empty) => return Ok(()),
                Err(TryRecvError::Disconnected) => {
                    self.stop();
                    return Ok(());
                }
            }
        }
    }

    fn obey_one(&mut self, command: Command) -> io::Result<()> {
        match command {
            Command::Attach { fd, params, early, seat } => {
                if self.stack.layer::<Front>().is_some_and(|f| !f.knows(params.volume)) {
                    // It was deleted between the look-up and now. Its socket closes.
                    tracing::debug!("a client of a volume that was just deleted is let go");
                    return Ok(());
                }
                let conn = self.clients.attach(self.now, fd, params, &early, seat);
                if self.stopping {
                    self.clients[conn].close(false);
                }
                self.parse(conn)?;
            }
            Command::SetVolume { key, front, extents, terms, reply } => {
                self.stack.set_volume(self.now, key, front, &extents);
                self.stack.set_terms(self.now, key, &terms);
                self.pump()?;
                let _ = reply.send(()); // whoever asked may have gone
            }
            Command::DeleteVolume { key, extents, reply } => {
                self.injections.end(key);
                self.end_injected();
                self.stack.close_volume(self.now, key);
                self.clients.close(Some(key), &mut self.buffers);
                self.deletions.begin(key, extents, reply);
            }
            Command::SetTenant { tenant, limits, terms } => {
                self.clients.set_limits(tenant, limits);
                self.exports.set_class(tenant, Some(&terms.class));
                self.stack.set_tenant(self.now, tenant, Some(&terms));
                self.pump()?;
            }
            Command::ForgetTenant { tenant } => {
                self.forgetting.push(tenant);
                self.forget_tenants();
                self.pump()?;
            }
            Command::Look(look) => look(&self.stack, self.now),
            Command::Snapshot { reply } => {
                let _ = reply.send(Box::new(self.snapshot()));
            }
            Command::SnapshotExport { at, reply } => {
                let _ = reply.send(self.snapshot_export(at));
            }
            Command::History { volume, tenant, reply } => {
                let _ = reply.send(self.exports.history(self.now, volume, tenant));
            }
            Command::Connections { volume, tenant, reply } => {
                let _ = reply.send(self.connections(volume, tenant));
            }
            Command::Traces { reply } => {
                let _ = reply.send(self.traces.newest_first());
            }
            Command::Recovered { reply } => {
                let recovered = self.stack.recovered(self.now);
                self.tell_health();
                let _ = reply.send(recovered);
            }
            Command::Inject { key, terms, reply } => {
                let known = self.stack.layer::<Front>().is_some_and(|f| f.knows(key));
                let had = match terms.filter(|_| known && !self.stopping) {
                    Some(terms) => {
                        self.injections.begin(self.now, key, terms);
                        true
                    }
                    None => self.injections.end(key),
                };
                self.end_injected();
                let _ = reply.send(had);
            }
            Command::Tell { to, reply } => {
                let known = self.stack.tell(self.now, to);
                self.pump()?;
                let _ = reply.send(known);
            }
            Command::Shutdown => {
                self.stop();
            }
        }
        Ok(())
    }

    /// Takes the next steps of deletions, and answers for those that are done.
    fn go_on_deleting(&mut self) -> io::Result<()> {
        loop {
            let has_requests = |key| self.stack.layer::<Front>().is_some_and(|f| f.inflight_of(key) > 0);
            match self.deletions.next(has_requests, |key| self.stack.is_using(key)) {
                None => break,
                Some(Step::Forget(key)) => self.stack.forget_volume(self.now, key),
                Some(Step::Zero { key, job, extents }) => {
                    self.forget_exports(|k, _| k == key);
                    self.stack.zero_volume(self.now, key, job, &extents);
                }
            }
            self.pump()?;
        }
        while self.deletions.is_zeroing()
            && let Some((job, result)) = self.stack.next_zeroed(self.now)
        {
            self.deletions.zeroed(job, result);
        }
        Ok(())
    }

    /// Tenants that were removed are forgotten when their last connection has gone.
    fn forget_tenants(&mut self) {
        for at in (0..self.forgetting.len()).rev() {
            let tenant = self.forgetting[at];
            if self.clients.forget_tenant(tenant) {
                self.forgetting.swap_remove(at);
                self.forget_exports(|_, t| t == tenant);
                self.exports.set_class(tenant, None);
                self.stack.set_tenant(self.now, tenant, None);
            }
        }
    }

    /// Looks for slow clients, after what they did until now has been taken in.
    fn look_around(&mut self) -> io::Result<()> {
        self.ring.wait(Some(Duration::ZERO))?;
        self.reap()?;
        self.serve_connections()?;
        self.clients.end_slow(self.now);
        if !self.injections.is_empty() {
            // Whose client sends nothing more needn't wait for its answers to go.
            let (clients, inside) = (&self.clients, &self.inside);
            self.injections.let_go(|c| clients[inside[c.io.tag as usize].conn].is_ending());
        }
        Ok(())
    }

    /// Counters go with their volume or tenant.
    ///
    /// # Panics
    /// If a request inside needs them.
    fn forget_exports(&mut self, gone: impl Fn(VolumeKey, TenantId) -> bool) {
        for place in self.exports.forget(gone) {
            assert!(self.inside.iter().all(|i| i.export != place), "counters are forgotten while a request needs them");
            self.stack.forget_account(account_of(place));
        }
    }

    /// While stopping: true when everything has finished and the last flush is done.
    fn stop_when_idle(&mut self) -> io::Result<bool> {
        self.quiet_since = self.inside.is_empty().then(|| self.quiet_since.unwrap_or(self.now));
        if self.quiet_since.is_some_and(|since| Duration::from(self.now.since(since)) > self.options.client_end) {
            // Clients that don't take their answers.
            self.clients.cut();
        }
        if !self.stack.is_idle() || !self.clients.is_empty() || !self.deletions.is_empty() {
            return Ok(false);
        }
        self.stack.drain(self.now);
        self.pump()?;
        Ok(self.stack.is_idle())
    }
}

fn changes_or_flushes(op: Op) -> bool {
    op.is_change() || op == Op::Flush
}
