//! A pool's thread.
//!
//! The thread works in rounds. A round waits for the kernel, takes in everything that has completed, and serves each connection that was
//! touched. A connection that is served may parse requests, which enter the stack.
//!
//! Each call into the stack is followed by a pump before the round ends. A pump carries out the stack's orders until the stack has none,
//! and encodes the answers of requests that ended. An answer touches its connection.
//!
//! Every round ends, for two reasons. Permits that come back while connections are served are given out in the next round only. A
//! connection's turn is at most `PARSE_MAX` requests.

mod orders;
mod request;
mod snapshot;
#[cfg(test)]
mod tests;

use super::clients::{Clients, LetIn};
use super::command::{ClientFilter, Health, PoolReceiver};
use super::conn::Parsed;
use super::deletions::Deletions;
use super::device::Devices;
use super::exports::Exports;
use super::failures::Failures;
use super::inject::Injections;
use super::promise::PromiseTracker;
use super::refusals::Refusals;
use super::requests::Requests;
use super::ring::{Op as RingOp, Ring};
use super::slow::SlowLimits;
use super::tape::TapeWriter;
use super::trace::Traces;
use super::withdrawal::{STRETCH_MAX, STRETCH_TIME, Withdrawal};
use super::workers::Workers;
use plimsoll_base::{BufPool, Span, TenantId, Time};
use plimsoll_stack::tape::Taped;
use plimsoll_stack::{Addressed, Front, LayerState, Stack};
use std::io;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

/// Settings of a pool's thread.
#[derive(Clone, Debug)]
pub struct PoolOptions {
    /// Sleep until shortly before a layer's timer and spin the rest: for devices modelled in real time, whose
    /// completions are due to the microsecond.
    pub precise_timers: bool,
    /// Number of requests of which one is traced; 0 traces only refused ones.
    pub trace_every: u32,
    /// Time that clients have to take their last answers, after the pool has produced all of them and ends.
    pub client_end: Duration,
    /// Idle time after which a client that owes a write's payload is disconnected.
    pub payload_time: Duration,
    /// The same for one that sends fewer bytes of it a second, on average after [`PoolOptions::payload_time`]; or that is
    /// behind this rate by more than that time in taking its answers, while its tenant's other clients wait for what it
    /// holds.
    pub payload_rate: u64,
    /// The same for one that hasn't sent all of it after this long, and could have at [`PoolOptions::payload_rate`].
    pub payload_end: Duration,
    /// Threads that do layers' work at most.
    pub workers_max: usize,
    /// CPUs to which the worker threads are pinned, one on each. Empty if they may run anywhere.
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
    promises: PromiseTracker,
    exports: Exports,
    injections: Injections,
    refusals: Refusals,
    /// Reads that failed on a copy: see [`Pool::outcome_for`].
    failures: Failures,
    receiver: PoolReceiver,
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
    /// A pool over `stack` and its devices, taking commands from `receiver`, recorded on `tape` if there is one.
    pub fn new(
        stack: Stack,
        tape: Option<TapeWriter>,
        mut devices: Devices,
        receiver: PoolReceiver,
        options: PoolOptions,
    ) -> io::Result<Pool> {
        devices.wake_through(receiver.wakeup.clone());
        let ring = Ring::new(1024)?;
        Ok(Pool {
            started: Instant::now(),
            now: Time::ZERO,
            stack: Taped::new(stack, tape),
            devices,
            workers: Workers::new(options.workers_max, options.worker_cpus.clone(), receiver.wakeup.clone()),
            buffers: ring.buffers(),
            ring,
            clients: Clients::new(options.slow_limits()),
            inside: Requests::default(),
            promises: PromiseTracker::default(),
            exports: Exports::default(),
            injections: Injections::default(),
            refusals: Refusals::default(),
            failures: Failures::default(),
            health: Health::NOT_STARTED,
            receiver,
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

    /// Runs until a shutdown is ordered, on the calling thread.
    pub fn run(mut self) -> io::Result<()> {
        if self.options.precise_timers {
            // Without this a sleeper is woken up to 50 us late by design.
            rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1))?;
        }
        self.begin()?;
        while !self.round()? {}
        self.check_end();
        let left_behind = self.stack.left_behind();
        self.stack.end();
        for (device, e) in self.devices.sync() {
            // A cache's device may have failed before, and the pool gone on without it.
            if self.stack.tell_of_loss(self.now, device) {
                return Err(e);
            }
            tracing::warn!(device, error = %e, "a pool's device can't be flushed at its end; the others have all of the data that weren't given up or lost before");
        }
        // The volumes didn't end in order: who has a copy of theirs must know.
        left_behind.map_or(Ok(()), |what| Err(io::Error::other(what)))
    }

    fn begin(&mut self) -> io::Result<()> {
        self.listen_for_commands()?;
        self.devices.listen(&mut self.ring)?;
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
        debug_assert!(!self.stack.has_orders(), "the pool sleeps although a layer has ordered something");
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
            if self.clients.has_left(conn) {
                self.drop_late(conn, None);
            } else {
                self.parse(conn)?;
            }
            self.clients.touch(conn);
        }
        self.withdraw_some()?;
        self.end_injected();
        self.failures.end_old(self.now);
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
        self.check();
        Ok(self.stopping && self.stop_when_idle()?)
    }

    /// Asserts, in debug builds, that each request in the stack has its client and its permit.
    fn check(&self) {
        debug_assert_eq!(
            self.clients.in_stack(),
            self.inside.len() as u64,
            "a request has no permit, or a permit no request"
        );
        debug_assert!(self.stack.inflight() <= self.inside.len(), "a request in the stack has no client");
        debug_assert!(self.promises.len() <= self.inside.len(), "a promise outlives its request");
    }

    /// Asserts, in debug builds, that a pool ends with nothing of what clients and layers brought.
    fn check_end(&self) {
        self.check();
        debug_assert!(self.inside.is_empty(), "a pool ends with requests");
        self.clients.check_end();
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
        let wake = self.stack.next_wake().min(self.injections.next_due()).min(self.failures.next_due());
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
        self.clients.close(&ClientFilter::default(), false, &mut self.buffers);
        self.deletions.stop();
        self.stack.stop(self.now);
    }

    fn listen_for_commands(&mut self) -> io::Result<()> {
        self.ring.submit(RingOp::Wakeup { fd: self.receiver.wakeup.as_raw_fd(), count: Box::new([0; 8]) })
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
                self.drain_commands()
            }
            RingOp::Announced { device, .. } => {
                // Before completions are taken: one that ends meanwhile announces itself again.
                self.devices.listen_to(device, &mut self.ring)?;
                while let Some(c) = self.devices.next_announced(device, &mut self.buffers) {
                    self.stack.device_done(self.now, device, c);
                }
                Ok(())
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
                Parsed::Damaged(ready) => self.clients.refuse_damaged(conn, ready, &mut self.buffers),
            }
        }
        self.pump()
    }

    /// Passes layers' reports on, and the pool's health where that has changed.
    fn tell_health(&mut self) {
        while let Some(report) = self.stack.next_report() {
            if let Some(take) = &self.report {
                take(&report);
            }
        }
        let flush_failed = self.stack.layer::<Front>().is_some_and(Front::flush_failed);
        let health = Health { state: self.state(), flush_failed };
        if health != self.health {
            if health.flush_failed {
                // What was acknowledged may be gone, and others have it.
                self.clients.iter().for_each(|c| c.params.replica.lost());
            }
            self.health = health;
            self.receiver.health.send_replace(health);
        }
    }

    /// State of the pool. One whose device is lost to another owner, or may be while caches answer, has failed, whatever its layers are.
    fn state(&self) -> LayerState {
        if self.devices.is_lost() || self.devices.may_be_stale() { LayerState::Failed } else { self.stack.state() }
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
            if self.clients.has_left(conn) {
                self.drop_late(conn, ready);
                continue;
            }
            if let Some(ready) = ready {
                self.enter(conn, ready);
            }
            self.parse(conn)?;
        }
        Ok(())
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
