//! A pool's thread.

mod patience;
mod snapshot;
#[cfg(test)]
mod tests;

use super::auto_deadline::AutoDeadline;
use super::command::{Command, Ears, Health, Reply};
use super::conn::{Conn, Parsed, Ready, Stalled, Transfer, op_of};
use super::device::Devices;
use super::lag::Pace;
use super::metrics::ExportMetrics;
use super::permits::{Admission, Held, WaitsFor};
use super::promise::Courses;
use super::requests::{Inside, Requests};
use super::ring::{Op as RingOp, Ring, SendBatch};
use super::tape::TapeWriter;
use super::trace::Traces;
use super::workers::Workers;
use crate::planted::{self, Mistake};
use patience::Patience;
use plimsoll_base::{
    BufPool, Completion, Confidence, Data, Io, IoError, IoFlags, IoHead, Op, Outcome, Span, TenantId, Time, VolumeKey,
};
use plimsoll_nbd::promise::{Deadline, Note as Said};
use plimsoll_nbd::request::Request;
use plimsoll_nbd::wire::{Command as NbdCommand, CommandFlags, MetaContext, MetaContexts, NoteKind};
use plimsoll_stack::tape::Taped;
use plimsoll_stack::{Addressed, Extent, Forecast, Front, LayerState, Offered, Stack};
use slab::Slab;
use std::collections::BTreeMap;
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
    /// Is a payload too slow, for one of several reasons?
    fn is_too_slow(&self, t: &Transfer) -> bool {
        let [whole, silent] = [t.took, t.silent].map(Duration::from);
        silent > self.payload_time || whole > self.payload_end(t) || self.is_below_rate(whole, t)
    }

    /// A payload has at least the time that it takes at the slowest rate.
    fn payload_end(&self, t: &Transfer) -> Duration {
        let at_rate = Duration::from_millis(t.whole.saturating_mul(1000) / self.payload_rate.max(1));
        self.payload_end.max(self.payload_time + at_rate)
    }

    fn is_below_rate(&self, whole: Duration, t: &Transfer) -> bool {
        let measured = whole.saturating_sub(self.payload_time).as_millis();
        u128::from(t.done) * 1000 < measured * u128::from(self.payload_rate)
    }

    /// The pace at which answers are to be taken, if others wait for what they hold.
    fn pace(&self) -> Pace {
        Pace { rate: self.payload_rate, allowed: Span::from(self.payload_time) }
    }
}

/// Requests of one connection that are understood at a stretch: about a millisecond's work.
const PARSE_MAX: usize = 256;
/// Withdrawing what a client left behind takes at most this much of the thread's time at a stretch.
const WITHDRAW_TIME: Duration = Duration::from_micros(500);
/// The same as a number of requests.
const WITHDRAW_MAX: usize = 256;
/// Between two stretches, others have this many times as long as the last one took.
const WITHDRAW_REST: u32 = 3;

/// The pool stops sleeping this long before a timer when precise (notes on this kind of machine: a sleeper wakes up to
/// 60 us late when idle).
const SPIN: Duration = Duration::from_micros(60);

/// Takes a layer's report. It is called on the pool's thread and doesn't wait.
pub type Report = Box<dyn Fn(&Addressed) + Send>;

struct Export {
    key: VolumeKey,
    tenant: TenantId,
    metrics: ExportMetrics,
    /// For reads that come without a deadline, where the tenant has one that sets itself.
    auto: Option<AutoDeadline>,
}

struct Deleting {
    key: VolumeKey,
    extents: Vec<Extent>,
    reply: Reply<Result<(), IoError>>,
    /// The layers were told.
    forgotten: bool,
}

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
    conns: Slab<(u64, Conn)>,
    next_serial: u64,
    inside: Requests,
    /// Of those inside whose clients know promises.
    courses: Courses,
    exports: Slab<Export>,
    /// Their places.
    export_places: BTreeMap<(VolumeKey, TenantId), usize>,
    admission: Admission,
    ears: Ears,
    health: Health,
    /// Connections with something to send or receive since the last look.
    touched: Vec<usize>,
    /// Connections whose turn ended before all that they had received was understood.
    going_on: Vec<usize>,
    deleting: Vec<Deleting>,
    zeroing: BTreeMap<u64, Reply<Result<(), IoError>>>,
    next_job: u64,
    traces: Traces,
    /// Removed tenants that still have connections.
    forgetting: Vec<TenantId>,
    /// When to go on withdrawing what clients that are gone left behind.
    withdraw_at: Time,
    /// Since those who wait were last looked at, permits have come back or requests have left the stack.
    freed: bool,
    /// When slow clients were last looked for.
    looked_at: Time,
    patience: Patience,
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
            conns: Slab::new(),
            next_serial: 1,
            inside: Requests::default(),
            courses: Courses::default(),
            exports: Slab::new(),
            export_places: BTreeMap::new(),
            admission: Admission::default(),
            health: Health::UNBORN,
            ears,
            touched: Vec::new(),
            going_on: Vec::new(),
            deleting: Vec::new(),
            zeroing: BTreeMap::new(),
            next_job: 1,
            traces: Traces::new(options.trace_every),
            options,
            forgetting: Vec::new(),
            withdraw_at: Time::ZERO,
            freed: false,
            looked_at: Time::ZERO,
            patience: Patience::default(),
            stopping: false,
            quiet_since: None,
            report: None,
        })
    }

    /// Passes layers' reports to `report`.
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
        self.patience.sleeps(self.now, timeout.map(Span::from));
        self.ring.wait(timeout)?;
        crate::panics::point("pool");
        self.tick();
        self.patience.woke(self.now);
        self.reap()?;
        if self.stack.next_wake() <= self.now {
            self.stack.wake(self.now);
        }
        for conn in std::mem::take(&mut self.going_on) {
            self.conns[conn].1.goes_on = false;
            self.parse(conn)?;
            self.touched.push(conn);
        }
        self.withdraw_some()?;
        self.pump()?;
        self.tell_health();
        if self.health.state == LayerState::Recovering {
            // A layer whose own below has recovered begins to read: nothing else would send that.
            self.stack.start(self.now);
            self.pump()?;
        }
        self.serve_connections()?;
        if Duration::from(self.now.since(self.looked_at)) > self.options.payload_time / 4 {
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
        let wake = self.stack.next_wake();
        // Look around now and then, for clients that don't read while the pool ends, or don't send what they announced.
        let look = match (self.stopping, self.conns.is_empty()) {
            (true, _) => Some(Duration::from_millis(20)),
            (false, false) => Some(self.options.payload_time / 4),
            (false, true) => None,
        };
        if !self.going_on.is_empty() || (self.freed && self.admission.has_due()) {
            return Some(Duration::ZERO);
        }
        let look = match self.inside.withdraws() {
            false => look,
            true => {
                let left = Duration::from(self.withdraw_at.since(self.now.min(self.withdraw_at)));
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
        self.close_connections(None);
        for d in self.deleting.drain(..) {
            let _ = d.reply.send(Err(IoError::Unavailable)); // whoever asked may have gone
        }
        self.stack.stop(self.now);
    }

    fn listen_for_commands(&mut self) -> io::Result<()> {
        self.ring.submit(RingOp::Wakeup { fd: self.ears.wakeup.as_raw_fd(), count: Box::new([0; 8]) })
    }

    fn handle(&mut self, op: RingOp, result: io::Result<usize>) -> io::Result<()> {
        match op {
            RingOp::Recv { conn, into, .. } => {
                let c = &mut self.conns[conn].1;
                c.receiving = false;
                let n = result.unwrap_or(0);
                c.received(self.patience.at(self.now), into, n);
                if n == 0 {
                    // End of stream, or an error on the socket: either way nothing more will come.
                    c.left();
                    c.ending = true;
                }
                self.touched.push(conn);
                self.parse(conn)
            }
            RingOp::Send { conn, batch, start, .. } => self.handle_sent(conn, batch, start, result),
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

    fn handle_sent(
        &mut self,
        conn: usize,
        batch: SendBatch,
        start: usize,
        result: io::Result<usize>,
    ) -> io::Result<()> {
        let c = &mut self.conns[conn].1;
        match result {
            Ok(n) if n > 0 && start + n < batch.len() => {
                let fd = c.raw_fd();
                c.sent_part(self.patience.at(self.now), start + n);
                return self.ring.submit(RingOp::Send { conn, fd, batch, start: start + n });
            }
            Ok(_) => self.sent(conn, batch),
            Err(_) => self.lost(conn, batch),
        }
        self.touched.push(conn);
        Ok(())
    }

    /// Withdraws some of what clients left behind, the oldest first: those are found soonest. Each may cost the layers a look
    /// at all that they hold.
    fn withdraw_some(&mut self) -> io::Result<()> {
        if !self.inside.withdraws() || self.now < self.withdraw_at {
            return Ok(());
        }
        let began = Instant::now();
        for _ in 0..WITHDRAW_MAX {
            let Some(id) = self.inside.next_withdrawn() else { break };
            self.stack.cancel(self.now, id);
            if began.elapsed() >= WITHDRAW_TIME {
                break;
            }
        }
        self.pump()?;
        let took = began.elapsed();
        self.tick();
        self.withdraw_at = self.now + Span::from(took * WITHDRAW_REST);
        Ok(())
    }

    /// Understands what a connection has received, as far as permits reach.
    ///
    /// A receive may bring thousands of requests: after [`PARSE_MAX`], others have their turn.
    fn parse(&mut self, conn: usize) -> io::Result<()> {
        self.tick();
        let mut left = PARSE_MAX;
        while self.conns[conn].1.may_parse() {
            if left == 0 {
                let c = &mut self.conns[conn].1;
                if !std::mem::replace(&mut c.goes_on, true) {
                    self.going_on.push(conn);
                }
                break;
            }
            left -= 1;
            match self.conns[conn].1.parse() {
                Parsed::NeedBytes => break,
                Parsed::Ended(why) => {
                    tracing::debug!(conn, why, "connection ends");
                    self.end(conn);
                    break;
                }
                Parsed::Asks(request) => self.ask(conn, request),
                Parsed::Ready(ready) => self.has_come(conn, ready),
            }
        }
        self.pump()
    }

    /// A request wants a permit: it gets one, or is refused if it has a promise, or waits and nothing is read meanwhile.
    fn ask(&mut self, conn: usize, request: Request) {
        let c = &mut self.conns[conn].1;
        if let Some(why) = c.behind(&request) {
            c.refuse_behind(&request, why);
            return self.touched.push(conn);
        }
        match request.command {
            NbdCommand::Cancel => return self.cancel(conn, request.cookie),
            NbdCommand::BlockStatus if c.params.meta_contexts == MetaContexts::EMPTY.with(MetaContext::Promise) => {
                let notes = self.probe(conn, &request);
                self.conns[conn].1.reply_probe(&request, &notes);
                return self.touched.push(conn);
            }
            _ => {}
        }
        let (tenant, bytes) = (c.params.tenant, bytes_of(&request));
        if Conn::is_announced(&request) {
            match self.admission.announce(tenant, bytes) {
                true => c.receive(request, None, &mut self.buffers),
                false => self.stall(conn, WaitsFor::Room, Ready { request, data: Data::Absent, waited_since: None }),
            }
        } else if !self.stack.is_full() && self.admission.take(tenant, conn, bytes) {
            let ready = c.admit(request, None, &mut self.buffers);
            self.enter(conn, ready);
        } else if request.command == NbdCommand::Read && self.promised(conn, &request).is_some() {
            self.refuse_without_permit(conn, &request);
        } else {
            self.stall(conn, WaitsFor::Permit, Ready { request, data: Data::Absent, waited_since: None });
        }
    }

    /// An announced write is complete: it enters if it gets its permit, or waits for that.
    fn has_come(&mut self, conn: usize, ready: Ready) {
        let tenant = self.conns[conn].1.params.tenant;
        let has_room = !self.stack.is_full() || planted::is(Mistake::StackOverfilled);
        if has_room && self.admission.take_for_payload(tenant, conn, bytes_of(&ready.request)) {
            self.enter(conn, ready);
        } else {
            self.stall(conn, WaitsFor::PermitForPayload, ready);
        }
    }

    /// A connection isn't read from until it has what its request waits for.
    fn stall(&mut self, conn: usize, resource: WaitsFor, ready: Ready) {
        let c = &mut self.conns[conn].1;
        let Ready { request, data, waited_since } = ready;
        let ticket = self.admission.wait(conn, c.params.tenant, resource, bytes_of(&request));
        let payload = (resource == WaitsFor::PermitForPayload).then_some(data);
        c.stalled = Some(Stalled { request, payload, since: waited_since.unwrap_or(self.now), ticket });
    }

    /// No more is taken from a client.
    fn end(&mut self, conn: usize) {
        let c = &mut self.conns[conn].1;
        let tenant = c.params.tenant;
        if let Some(bytes) = c.end(&mut self.buffers) {
            self.admission.withdraw(tenant, bytes);
        }
        self.admission.leave(tenant, conn);
        self.freed = true;
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
        self.courses.probe(wait, self.stack.inflight(), &self.conns[conn].1.params.replica)
    }

    /// A device gets a request: its client may want to know.
    fn begun(&mut self, head: &IoHead) {
        let Some(at) = self.courses.begun(self.now, head) else { return };
        let inside = &self.inside[at];
        let c = &mut self.conns[inside.conn].1;
        if c.promise_of(&inside.request).tells {
            c.note(&inside.request, &[(NoteKind::Begun, 1)]);
            self.touched.push(inside.conn);
        }
    }

    fn refuse(&mut self, conn: usize, head: &IoHead, request: &Request, forecast: Forecast) {
        self.traces.refused(self.now, head, forecast);
        let export = self.export(conn);
        self.exports[export].metrics.busy_refused += 1;
        self.teach_deadline(conn, export, request, None);
        let outcome = Outcome::Busy { wait: forecast.wait, confidence: forecast.confidence };
        let notes = [(NoteKind::InFlight, self.stack.inflight() as u32)];
        self.conns[conn].1.refuse(request, outcome, &notes);
        self.touched.push(conn);
    }

    /// Within what a read must be done: the request's own, the connection's, the volume's or the tenant's deadline, in this
    /// order, or one that sets itself. The one place that decides it.
    fn promised(&self, conn: usize, request: &Request) -> Option<Span> {
        match self.conns[conn].1.promise_of(request).deadline {
            Deadline::Within(us) => return Some(Span::from_micros(u64::from(us))),
            Deadline::None => return None,
            Deadline::Exports => {}
        }
        let params = &self.conns[conn].1.params;
        params.deadline.or_else(|| {
            let terms = params.auto?;
            let export = self.export_places.get(&(params.volume, params.tenant)).map(|at| &self.exports[*at]);
            Some(export.and_then(|e| e.auto.as_ref()).map_or(terms.most, AutoDeadline::deadline))
        })
    }

    /// A read of a connection took so long, or was refused.
    fn teach_deadline(&mut self, conn: usize, export: usize, request: &Request, took: Option<Span>) {
        let c = &self.conns[conn].1;
        if c.params.deadline.is_none()
            && c.promise_of(request).deadline == Deadline::Exports
            && let Some(auto) = &mut self.exports[export].auto
        {
            auto.ended(took);
        }
    }

    fn head_of(&self, conn: usize, request: &Request, arrived_at: Time) -> IoHead {
        let params = &self.conns[conn].1.params;
        let (offset, len) = (request.offset, u64::from(request.length));
        let mut head = IoHead::new(op_of(request.command), params.volume, params.tenant, offset, len, arrived_at);
        head.deadline = self.promised(conn, request).map_or(Time::NEVER, |d| arrived_at + d);
        head.priority = params.priority;
        head.flags = flags_of(request);
        head
    }

    /// Offers a request to the stack.
    fn enter(&mut self, conn: usize, ready: Ready) {
        let Ready { request, data, waited_since } = ready;
        // The time without a permit is part of what the client sees, and of its promise.
        let arrived_at = waited_since.unwrap_or(self.now);
        let mut head = self.head_of(conn, &request, arrived_at);
        let serial = self.conns[conn].0;
        let export = self.export(conn);
        let at = self.inside.next_place();
        head.tag = at as u64;
        head.account = account_of(export);
        // Asked for again only where it's kept: a forecast changes nothing, so the stack's own will be the same.
        let sampled = self.traces.due().then(|| self.stack.forecast(self.now, &head));
        match self.stack.offer(self.now, Io::new(head, data)) {
            Offered::Accepted(id) => {
                let trace = sampled.map_or(0, |forecast| self.traces.accepted(&head, forecast));
                let c = &mut self.conns[conn].1;
                c.inflight += 1;
                if c.promises() {
                    self.courses.entered(id, at, (conn, request.cookie), self.stack.inflight() - 1, &c.params.replica);
                }
                self.inside.insert(Inside { conn, serial, request, export, id, trace });
            }
            Offered::Busy(forecast) => {
                let held = Held::one(bytes_of(&request));
                self.admission.answered(head.tenant, held);
                self.give(conn, head.tenant, held);
                self.refuse(conn, &head, &request, forecast);
            }
        }
    }

    /// The place where a connection's requests are counted.
    fn export(&mut self, conn: usize) -> usize {
        let params = &self.conns[conn].1.params;
        let (key, tenant) = (params.volume, params.tenant);
        *self.export_places.entry((key, tenant)).or_insert_with(|| {
            let auto = params.auto.map(|terms| terms.begin());
            self.exports.insert(Export { key, tenant, metrics: ExportMetrics::default(), auto })
        })
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
                self.answer(first);
                while let Some(c) = self.stack.next_done() {
                    self.answer(c);
                }
            }
            if idle {
                return self.zeroed();
            }
        }
    }

    fn answer(&mut self, c: Completion) {
        let inside = self.inside.remove(c.io.tag as usize);
        let export = &mut self.exports[inside.export];
        export.metrics.ended(self.now, &c);
        let tenant = export.tenant;
        if inside.trace > 0 {
            self.traces.ended(inside.trace, self.now, &c);
        }
        if c.io.op == Op::Read {
            match c.outcome {
                Outcome::Done => {
                    let took = self.now.since(c.io.arrived_at);
                    self.teach_deadline(inside.conn, inside.export, &inside.request, Some(took));
                }
                Outcome::Busy { .. } => self.teach_deadline(inside.conn, inside.export, &inside.request, None),
                Outcome::Failed(_) => {} // says nothing of how long reads take
            }
        }
        let (serial, conn) = &mut self.conns[inside.conn];
        assert_eq!(*serial, inside.serial, "a connection stays until its requests have ended");
        conn.inflight -= 1;
        if matches!(c.io.op, Op::Write | Op::Trim | Op::WriteZeroes | Op::Flush) {
            conn.has_changed(&inside.request, c.outcome);
        }
        let took = (c.io.op == Op::Read && c.outcome.is_done()).then(|| self.now.since(c.io.arrived_at));
        let inflight = self.stack.inflight();
        let course = self.courses.ended(self.now, inside.id, took, inflight, &conn.params.replica);
        let notes = match inside.request.command {
            NbdCommand::BlockStatus => self.courses.probe(Span::ZERO, inflight, &conn.params.replica),
            _ => course,
        };
        let data = if c.outcome.is_done() { c.io.into_data() } else { Data::Absent };
        let mut held = Held::one(bytes_of(&inside.request));
        self.admission.answered(tenant, held);
        // Who waits for the stack may go on, though the permit isn't back yet.
        self.freed = true;
        if planted::is(Mistake::PermitsUntilDone) {
            self.admission.give(tenant, inside.conn, std::mem::take(&mut held));
        }
        let back = conn.reply(&inside.request, c.outcome, data, &notes, held, &mut self.buffers);
        self.give(inside.conn, tenant, back);
        self.touched.push(inside.conn);
    }

    fn give(&mut self, conn: usize, tenant: TenantId, held: Held) {
        if held != Held::default() {
            self.admission.give(tenant, conn, held);
            self.freed = true;
        }
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
                self.conns.iter().for_each(|(_, (_, c))| c.params.replica.lost());
            }
            self.health = health;
            self.ears.health.send_replace(health);
        }
    }

    /// Lets stalled connections go on, and every touched one send and receive.
    fn serve_connections(&mut self) -> io::Result<()> {
        self.freed = false;
        self.unstall()?;
        // Before anybody hears of a failure: who then comes anew finds the door closed.
        self.tell_health();
        while let Some(conn) = self.touched.pop() {
            self.serve_connection(conn)?;
        }
        // What was sent meanwhile gave permits back. Who waits for those has them in the next round, after what the kernel
        // has completed by then: where answers are made at once, it would go on here until all that it sent is used up.
        Ok(())
    }

    fn serve_connection(&mut self, conn: usize) -> io::Result<()> {
        if !self.conns.contains(conn) {
            return Ok(());
        }
        self.send_unsent(conn)?;
        if self.conns[conn].1.has_received() && !self.conns[conn].1.goes_on {
            // It may have stopped because too much was waiting to be sent.
            self.parse(conn)?;
            let was_full = self.conns[conn].1.is_full();
            self.tell_health();
            self.send_unsent(conn)?;
            if was_full && !self.conns[conn].1.is_full() {
                // It stopped for that again, and nothing but this would let it go on.
                self.touched.push(conn);
                return Ok(());
            }
        }
        let (_, c) = &mut self.conns[conn];
        let fd = c.raw_fd();
        if let Some(into) = c.want_recv(self.patience.at(self.now)) {
            c.receiving = true;
            self.ring.submit(RingOp::Recv { conn, fd, into })?;
        }
        if self.conns[conn].1.is_finished() {
            let (_, c) = self.conns.remove(conn);
            let tenant = c.params.tenant;
            if let Some(bytes) = c.remove(&mut self.buffers) {
                self.admission.withdraw(tenant, bytes);
            }
            self.admission.leave(tenant, conn);
            self.freed = true;
            self.forget_tenants();
        }
        Ok(())
    }

    fn send_unsent(&mut self, conn: usize) -> io::Result<()> {
        while let Some(batch) = self.conns[conn].1.take_unsent(self.patience.at(self.now)) {
            self.send(conn, batch)?;
        }
        Ok(())
    }

    /// A batch has been sent: its permits come back.
    fn sent(&mut self, conn: usize, batch: SendBatch) {
        let c = &mut self.conns[conn].1;
        let tenant = c.params.tenant;
        let back = c.sent(self.patience.at(self.now), batch, &mut self.buffers);
        self.give(conn, tenant, back);
    }

    /// Sends a batch: what the socket takes now, now (one call, and no completion to collect); the rest when it can.
    fn send(&mut self, conn: usize, batch: SendBatch) -> io::Result<()> {
        let c = &mut self.conns[conn].1;
        let start = match batch.send_now(c.socket()) {
            Ok(n) if n == batch.len() => {
                self.sent(conn, batch);
                return Ok(());
            }
            Ok(n) => {
                c.sent_part(self.patience.at(self.now), n);
                n
            }
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => 0,
            Err(_) => {
                self.lost(conn, batch);
                return Ok(());
            }
        };
        let fd = c.raw_fd();
        self.ring.submit(RingOp::Send { conn, fd, batch, start })
    }

    /// Nothing can be sent to a client any more, not even `batch`.
    fn lost(&mut self, conn: usize, batch: SendBatch) {
        let c = &mut self.conns[conn].1;
        let tenant = c.params.tenant;
        let back = c.lost(self.patience.at(self.now), batch, &mut self.buffers);
        self.give(conn, tenant, back);
        self.end(conn);
        self.inside.withdraw(conn);
    }

    fn unstall(&mut self) -> io::Result<()> {
        loop {
            let Some(w) = self.admission.next_let_in(self.stack.is_full()) else { return Ok(()) };
            let c = &mut self.conns[w.conn].1;
            let Stalled { request, payload, since, ticket } = c.stalled.take().expect("it waits");
            assert_eq!(ticket, w.ticket, "a connection waits for one thing");
            match w.resource {
                WaitsFor::Room => c.receive(request, Some(since), &mut self.buffers),
                WaitsFor::Permit => {
                    let ready = c.admit(request, Some(since), &mut self.buffers);
                    self.enter(w.conn, ready);
                }
                WaitsFor::PermitForPayload => {
                    let data = payload.expect("it has come");
                    self.enter(w.conn, Ready { request, data, waited_since: Some(since) });
                }
            }
            self.touched.push(w.conn);
            self.parse(w.conn)?;
        }
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
                let serial = self.next_serial;
                self.next_serial += 1;
                let conn = self.conns.insert((serial, Conn::new(fd, params, self.options.pace(), &early, seat)));
                self.conns[conn].1.ending = self.stopping;
                self.touched.push(conn);
                self.parse(conn)?;
            }
            Command::SetVolume { key, front, extents, terms, reply } => {
                self.stack.set_volume(self.now, key, front, &extents);
                self.stack.set_terms(self.now, key, &terms);
                self.pump()?;
                let _ = reply.send(()); // whoever asked may have gone
            }
            Command::DeleteVolume { key, extents, reply } => {
                self.stack.close_volume(self.now, key);
                self.close_connections(Some(key));
                self.deleting.push(Deleting { key, extents, reply, forgotten: false });
            }
            Command::SetTenant { tenant, limits, terms } => {
                self.admission.set_limits(tenant, limits);
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
            Command::Traces { reply } => {
                let _ = reply.send(self.traces.newest_first());
            }
            Command::Recovered { reply } => {
                let recovered = self.stack.recovered(self.now);
                self.tell_health();
                let _ = reply.send(recovered);
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

    /// Takes no more from the connections of `key` (or all), and lets what they have inside finish.
    fn close_connections(&mut self, key: Option<VolumeKey>) {
        let closes = |c: &Conn| key.is_none_or(|k| c.params.volume == k);
        let closing: Vec<usize> = self.conns.iter().filter(|(_, (_, c))| closes(c)).map(|(at, _)| at).collect();
        for at in closing {
            let c = &mut self.conns[at].1;
            c.ending = true;
            c.volume_gone |= key.is_some();
            if c.stalled.is_some() {
                self.end(at);
            }
            // Ends a receive that is under way; what was sent before still goes out.
            let _ = rustix::net::shutdown(self.conns[at].1.socket(), rustix::net::Shutdown::Read);
            self.touched.push(at);
        }
    }

    /// Deleted volumes without requests are zeroed; finished zeroing is reported.
    fn zeroed(&mut self) -> io::Result<()> {
        let mut i = 0;
        while i < self.deleting.len() {
            let key = self.deleting[i].key;
            if self.stack.layer::<Front>().is_some_and(|f| f.inflight_of(key) > 0) {
                i += 1;
                continue;
            }
            if !self.deleting[i].forgotten {
                self.deleting[i].forgotten = true;
                self.stack.forget_volume(self.now, key);
                return self.pump();
            }
            if self.stack.is_using(key) {
                i += 1;
                continue;
            }
            self.forget_exports(|e| e.key == key);
            let Deleting { extents, reply, .. } = self.deleting.swap_remove(i);
            let job = self.next_job;
            self.next_job += 1;
            self.zeroing.insert(job, reply);
            self.stack.zero_volume(self.now, key, job, &extents);
            self.pump()?;
        }
        while !self.zeroing.is_empty()
            && let Some((job, result)) = self.stack.next_zeroed(self.now)
        {
            let reply = self.zeroing.remove(&job).expect("each job is reported once");
            let _ = reply.send(result);
        }
        Ok(())
    }

    /// Tenants that were removed are forgotten when their last connection has gone.
    fn forget_tenants(&mut self) {
        for at in (0..self.forgetting.len()).rev() {
            let tenant = self.forgetting[at];
            if !self.conns.iter().any(|(_, (_, c))| c.params.tenant == tenant) {
                self.forgetting.swap_remove(at);
                self.forget_exports(|e| e.tenant == tenant);
                self.admission.forget(tenant);
                self.stack.set_tenant(self.now, tenant, None);
            }
        }
    }

    /// Looks for slow clients, after what they did until now has been taken in.
    fn look_around(&mut self) -> io::Result<()> {
        self.ring.wait(Some(Duration::ZERO))?;
        self.reap()?;
        self.serve_connections()?;
        self.end_slow();
        Ok(())
    }

    /// Lets go who announced a payload and doesn't send it, and who doesn't take answers whose permits others wait for.
    fn end_slow(&mut self) {
        self.looked_at = self.now;
        let patient = self.patience.at(self.now);
        for (at, (_, c)) in &self.conns {
            let tenant = c.params.tenant;
            let receives = c.receives(patient);
            let sends_slowly =
                receives.is_some_and(|t| self.options.is_too_slow(&t)) && !planted::is(Mistake::PayloadsForEver);
            // Who holds only its own keeps nobody waiting.
            let keeps_others = self.admission.others_wait(tenant, at)
                && (receives.is_some() || self.admission.holds_shared(tenant, at));
            let takes_slowly = keeps_others && c.takes_slowly(patient);
            if sends_slowly || takes_slowly {
                tracing::info!(tenant = c.params.tenant.0, sends_slowly, takes_slowly, "a slow client is let go");
                // Its sends and receives end now, as if the client had closed.
                let _ = rustix::net::shutdown(c.socket(), rustix::net::Shutdown::Both);
            }
        }
    }

    /// Counters go with their volume or tenant: names come and go as long as the node runs.
    fn forget_exports(&mut self, gone: impl Fn(&Export) -> bool) {
        let needed = self.inside.iter().any(|i| gone(&self.exports[i.export]));
        assert!(!needed, "counters are forgotten while a request inside needs them");
        let (stack, places) = (&mut self.stack, &mut self.export_places);
        self.exports.retain(|place, e| {
            let forget = gone(e);
            if forget {
                places.remove(&(e.key, e.tenant));
                stack.forget_account(account_of(place));
            }
            !forget
        });
    }

    /// While stopping: true when everything has finished and the last flush is done.
    fn stop_when_idle(&mut self) -> io::Result<bool> {
        self.quiet_since = self.inside.is_empty().then(|| self.quiet_since.unwrap_or(self.now));
        if self.quiet_since.is_some_and(|since| Duration::from(self.now.since(since)) > self.options.client_end) {
            for (_, (_, c)) in &self.conns {
                // A client that doesn't take its answers: its sends and receives now end.
                let _ = rustix::net::shutdown(c.socket(), rustix::net::Shutdown::Both);
            }
        }
        if !self.stack.is_idle() || !self.conns.is_empty() || !self.zeroing.is_empty() || !self.deleting.is_empty() {
            return Ok(false);
        }
        self.stack.drain(self.now);
        self.pump()?;
        Ok(self.stack.is_idle())
    }
}

/// The last number under which the stack accounts for exports. Unit tests have fewer.
const ACCOUNT_MAX: u16 = if cfg!(test) { 7 } else { u16::MAX };

/// The number under which the stack accounts for an export. Past the last number they share it.
fn account_of(export: usize) -> u16 {
    export.min(usize::from(ACCOUNT_MAX)) as u16
}

/// A BLOCK_STATUS takes a permit of this many bytes: few are inside at once, as each may make the file system read.
const STATUS_BYTES: u64 = 8 << 20;

fn bytes_of(request: &Request) -> u64 {
    match request.command {
        NbdCommand::Read | NbdCommand::Write => u64::from(request.length),
        NbdCommand::BlockStatus => STATUS_BYTES,
        _ => 0,
    }
}

fn flags_of(request: &Request) -> IoFlags {
    let mut flags = IoFlags::NONE;
    for (theirs, ours) in [
        (CommandFlags::FUA, IoFlags::FUA),
        (CommandFlags::NO_HOLE, IoFlags::NO_HOLE),
        (CommandFlags::FAST_ZERO, IoFlags::FAST_ZERO),
    ] {
        if request.flags.contains(theirs) {
            flags = flags.with(ours);
        }
    }
    flags
}
