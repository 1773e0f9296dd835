//! A pool's clients: their connections, the order of their turns, their permits, and the limits of slow clients.
//!
//! A connection is touched when it may have something to send or to receive. It is served once for that. Its turn ends after
//! `PARSE_MAX` requests; it goes on in the next round. A request without a permit stalls its connection until the permit's turn comes
//! (see `permits.rs`).

use super::command::ClientFilter;
use super::conn::{Conn, ExportParams, Stalled};
use super::inbox::Ready;
use super::nvme;
use super::outbox::{Answer, recycle};
use super::patience::Patience;
use super::permits::{Admission, Held, PermitLimits, WaitsFor};
use super::ring::{Op as RingOp, RecvInto, Ring, SendBatch};
use super::slow::SlowLimits;
use crate::planted::{self, Mistake};
use crate::replica::Claim;
use crate::seats::Seat;
use plimsoll_base::{BufPool, Data, Outcome, Span, TenantId, Time, VolumeKey};
use plimsoll_nbd::promise::Note;
use plimsoll_nbd::request::Request;
use plimsoll_nbd::wire::Command;
use plimsoll_nvme::command::Status;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::Shutdown;
use slab::Slab;
use std::collections::BTreeMap;
use std::io;
use std::ops::{Index, IndexMut};
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// A BLOCK_STATUS takes a permit of this many bytes: few are inside at once, as each may make the file system read.
const STATUS_BYTES: u64 = 8 << 20;

/// A TRIM, WRITE_ZEROES or CACHE takes a permit of its length, and of this many bytes at most: it carries none, and goes below in
/// parts of its own pace (`plimsoll_stack::ranges`).
const RANGE_PERMIT_MAX: u64 = 1 << 20;

/// The place of a request whose client has yet to send its payload.
pub const CLIENT: &str = "client";

/// Bytes of a request's permit.
fn bytes_of(request: &Request) -> u64 {
    match request.command {
        Command::Read | Command::Write => u64::from(request.length),
        Command::Trim | Command::WriteZeroes | Command::Cache => u64::from(request.length).min(RANGE_PERMIT_MAX),
        Command::BlockStatus => STATUS_BYTES,
        Command::Flush | Command::Disconnect | Command::Cancel => 0,
    }
}

/// A connection whose wait is over.
pub struct LetIn {
    /// The connection.
    pub conn: usize,
    /// Its request, with its permit; `None` if it only got room for its payload.
    pub ready: Option<Ready>,
}

/// See the module's documentation.
pub struct Clients {
    /// With the serial number of each place's user: connections come and go.
    conns: Slab<(u64, Conn)>,
    next_serial: u64,
    permits: Admission,
    /// Connections with something to send or receive since the last look.
    touched: Vec<usize>,
    /// Connections whose turn ended before all that they had received was understood.
    going_on: Vec<usize>,
    /// Since those who wait were last looked at, permits have come back or requests have left the stack.
    freed: bool,
    slow: SlowLimits,
    /// The last time at which slow clients were looked for.
    looked_at: Time,
    patience: Patience,
}

impl Index<usize> for Clients {
    type Output = Conn;

    #[inline]
    fn index(&self, conn: usize) -> &Conn {
        &self.conns[conn].1
    }
}

impl IndexMut<usize> for Clients {
    #[inline]
    fn index_mut(&mut self, conn: usize) -> &mut Conn {
        &mut self.conns[conn].1
    }
}

impl Clients {
    /// No clients yet.
    pub fn new(slow: SlowLimits) -> Clients {
        Clients {
            conns: Slab::new(),
            next_serial: 1,
            permits: Admission::default(),
            touched: Vec::new(),
            going_on: Vec::new(),
            freed: false,
            slow,
            looked_at: Time::ZERO,
            patience: Patience::default(),
        }
    }

    /// A client whose handshake is over. Returns its connection's place.
    pub fn attach(
        &mut self,
        now: Time,
        fd: Arc<OwnedFd>,
        params: ExportParams,
        early: &[u8],
        (seat, claim): (Option<Arc<Seat>>, Option<Claim>),
    ) -> usize {
        let serial = self.next_serial;
        self.next_serial += 1;
        let conn = self.conns.insert((serial, Conn::new(now, fd, params, self.slow.pace(), early, (seat, claim))));
        self.touched.push(conn);
        conn
    }

    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.conns.is_empty()
    }

    /// All connections.
    pub fn iter(&self) -> impl Iterator<Item = &Conn> {
        self.conns.iter().map(|(_, (_, c))| c)
    }

    /// The serial number of a place's user.
    #[inline]
    pub fn serial(&self, conn: usize) -> u64 {
        self.conns[conn].0
    }

    #[inline]
    fn tenant(&self, conn: usize) -> TenantId {
        self[conn].params.tenant
    }

    /// Connections by volume and tenant.
    pub fn by_export(&self) -> BTreeMap<(VolumeKey, TenantId), u32> {
        let mut all = BTreeMap::new();
        for c in self.iter() {
            *all.entry((c.params.volume, c.params.tenant)).or_default() += 1;
        }
        all
    }

    /// Begin, reason and volume of each wait outside the stack: for a permit, or for the client itself ([`CLIENT`]): for a payload, or
    /// until it takes the answers that hold its permits.
    pub fn waits(&self, now: Time) -> impl Iterator<Item = (Time, &'static str, VolumeKey)> {
        let patient = self.patience.at(now);
        self.iter().filter_map(move |c| match (c.stalled_since(), c.inbox.transfer(patient)) {
            (Some(since), _) if c.waits_for_its_own_answers() => Some((since, CLIENT, c.params.volume)),
            (Some(since), _) => Some((since, "permit", c.params.volume)),
            (None, Some(t)) => Some((now - t.silent, CLIENT, c.params.volume)),
            (None, None) => None,
        })
    }

    // Time.

    /// The thread begins a sleep of at most `timeout`.
    pub fn sleeps(&mut self, now: Time, timeout: Option<Span>) {
        self.patience.sleeps(now, timeout);
    }

    /// The thread has woken up.
    pub fn woke(&mut self, now: Time) {
        self.patience.woke(now);
    }

    /// Time between two looks for slow clients.
    pub fn look_interval(&self) -> Span {
        Span::from_nanos(self.slow.silent.as_nanos() / 4)
    }

    /// True if it is time to look for slow clients.
    #[inline]
    pub fn look_is_due(&self, now: Time) -> bool {
        now.since(self.looked_at) > self.look_interval()
    }

    /// Lets go who announced a payload and doesn't send it, and who doesn't take answers whose permits others wait for, or the last ones of
    /// a connection that is being closed.
    pub fn end_slow(&mut self, now: Time) {
        self.looked_at = now;
        let patient = self.patience.at(now);
        for (at, (_, c)) in &self.conns {
            let tenant = c.params.tenant;
            let receives = c.inbox.transfer(patient);
            let sends_slowly =
                receives.is_some_and(|t| self.slow.is_too_slow(&t)) && !planted::is(Mistake::PayloadsForEver);
            // Who holds only its own keeps nobody waiting.
            let keeps_others =
                self.permits.others_wait(tenant, at) && (receives.is_some() || self.permits.holds_shared(tenant, at));
            let takes_slowly = (keeps_others || c.is_ending()) && c.outbox.is_slow(patient);
            if sends_slowly || takes_slowly {
                tracing::info!(
                    tenant = tenant.0,
                    sends_slowly,
                    takes_slowly,
                    "disconnected a slow client: it held requests that others of its tenant waited for, or its connection was to be closed (docs/reference/limits.md)"
                );
                // Its sends and receives end now, as if the client had closed.
                let _ = rustix::net::shutdown(c.socket(), Shutdown::Both);
            }
        }
    }

    // Turns.

    /// A connection may have something to send or to receive.
    #[inline]
    pub fn touch(&mut self, conn: usize) {
        self.touched.push(conn);
    }

    /// The next connection to be served that is still there.
    #[inline]
    pub fn next_touched(&mut self) -> Option<usize> {
        while let Some(conn) = self.touched.pop() {
            if self.conns.contains(conn) {
                return Some(conn);
            }
        }
        None
    }

    /// A connection has been understood for long enough: it goes on in the next round.
    pub fn end_turn(&mut self, conn: usize) {
        if self[conn].end_turn() {
            self.going_on.push(conn);
        }
    }

    /// Connections that go on in this round.
    pub fn begin_turns(&mut self) -> Vec<usize> {
        let all = std::mem::take(&mut self.going_on);
        all.iter().for_each(|conn| self[*conn].begin_turn());
        all
    }

    /// True if something can be done without waiting: a connection has more to do, or a wait may be over.
    #[inline]
    pub fn has_turns(&self) -> bool {
        !self.going_on.is_empty() || (self.freed && self.has_due())
    }

    /// True if a connection's wait is to be looked at.
    pub fn has_due(&self) -> bool {
        self.permits.has_due()
    }

    // Permits.

    /// Changes what a tenant may have inside.
    pub fn set_limits(&mut self, tenant: TenantId, limits: PermitLimits) {
        self.permits.set_limits(tenant, limits);
    }

    /// Forgets a tenant's permits, unless it is still connected. True if it was forgotten.
    pub fn forget_tenant(&mut self, tenant: TenantId) -> bool {
        let gone = !self.iter().any(|c| c.params.tenant == tenant);
        if gone {
            self.permits.forget(tenant);
        }
        gone
    }

    /// Requests and bytes in flight, by tenant.
    pub fn inside(&self) -> BTreeMap<TenantId, (u32, u64)> {
        self.permits.inside()
    }

    /// Connections that wait for a permit, by tenant.
    pub fn waiting(&self) -> BTreeMap<TenantId, u32> {
        self.permits.waiting()
    }

    /// Requests that hold a permit and are in the stack.
    pub fn in_stack(&self) -> u64 {
        self.permits.in_stack()
    }

    /// Asserts that the last client took nothing with it.
    ///
    /// # Panics
    /// In debug builds, if a permit is out, or a connection is still there or waits.
    pub fn check_end(&self) {
        debug_assert!(self.conns.is_empty(), "a pool ends with connections");
        debug_assert!(self.permits.not_at_rest().is_none(), "a permit is lost: {:?}", self.permits.not_at_rest());
    }

    /// Takes a permit for a complete request, if there is one.
    #[inline]
    pub fn take_permit(&mut self, conn: usize, request: &Request) -> bool {
        self.permits.take(self.tenant(conn), conn, bytes_of(request))
    }

    /// Takes a permit for an announced write that is complete, if there is one. Its room is given back.
    pub fn take_permit_for_payload(&mut self, conn: usize, request: &Request) -> bool {
        self.permits.take_for_payload(self.tenant(conn), conn, bytes_of(request))
    }

    /// A write is announced: its payload is received now if there is room for it, or later.
    pub fn announce(&mut self, now: Time, conn: usize, request: Request, buffers: &mut BufPool) {
        match self.permits.announce(self.tenant(conn), bytes_of(&request)) {
            true => {
                self[conn].expect_payload(request, None, buffers);
                self.touch(conn);
            }
            false => self.stall(now, conn, WaitsFor::Room, Ready { request, data: Data::Absent, waited_since: None }),
        }
    }

    /// A connection isn't read from until it has what its request waits for.
    pub fn stall(&mut self, now: Time, conn: usize, resource: WaitsFor, ready: Ready) {
        let Ready { request, data, waited_since } = ready;
        let ticket = self.permits.wait(conn, self.tenant(conn), resource, bytes_of(&request));
        let payload = (resource == WaitsFor::PermitForPayload).then_some(data);
        self[conn].stall(Stalled { request, payload, since: waited_since.unwrap_or(now), ticket });
    }

    /// All who wait are looked at from here on.
    #[inline]
    pub fn look_at_waits(&mut self) {
        self.freed = false;
    }

    /// The next connection whose wait is over.
    pub fn next_let_in(&mut self, stack_is_full: bool, buffers: &mut BufPool) -> Option<LetIn> {
        let w = self.permits.next_let_in(stack_is_full)?;
        let c = &mut self.conns[w.conn].1;
        let Stalled { request, payload, since, ticket } = c.unstall().expect("it waits");
        assert_eq!(ticket, w.ticket, "a connection waits for one thing");
        self.touched.push(w.conn);
        let ready = match w.resource {
            WaitsFor::Room => {
                c.expect_payload(request, Some(since), buffers);
                None
            }
            WaitsFor::Permit => Some(c.inbox.admit(request, Some(since), buffers)),
            WaitsFor::PermitForPayload => {
                Some(Ready { request, data: payload.expect("it has come"), waited_since: Some(since) })
            }
        };
        Some(LetIn { conn: w.conn, ready })
    }

    /// True if a connection's client has left, though some of what it sent isn't read yet. Costs a system call; once in a connection's life,
    /// two more.
    ///
    /// A half-closed NBD connection whose last request is a disconnect is none of these: what came before is to be served.
    pub fn has_left(&mut self, conn: usize) -> bool {
        let c = &mut self.conns[conn].1;
        if c.is_closed_here() {
            return false; // what it shows at its end is this node's doing
        }
        let mut fds = [PollFd::from_borrowed_fd(c.socket(), PollFlags::RDHUP)];
        // An end and an error are reported unasked. What can't be asked is found by the next receive or send.
        let is_over = poll(&mut fds, Some(&Timespec::default())).is_ok_and(|events| events > 0);
        is_over && !c.disconnects()
    }

    #[inline]
    fn give(&mut self, conn: usize, held: Held) {
        if held != Held::default() {
            self.permits.give(self.tenant(conn), conn, held);
            self.freed = true;
        }
    }

    // Answers.

    /// The stack refused a request that had its permit, which comes back at once.
    pub fn turned_away(&mut self, conn: usize, request: &Request) {
        let held = Held::one(bytes_of(request));
        self.permits.answered(self.tenant(conn), held);
        self.give(conn, held);
    }

    /// Ends a request that isn't in the stack.
    #[inline]
    pub fn refuse(&mut self, conn: usize, request: &Request, outcome: Outcome, notes: &[Note]) {
        self[conn].outbox.refuse(request, outcome, notes);
        self.touch(conn);
    }

    /// Ends an announced write whose bytes were damaged on their way. Its room is given back; its host sends it again.
    pub fn refuse_damaged(&mut self, conn: usize, ready: Ready, buffers: &mut BufPool) {
        let Ready { request, data, .. } = ready;
        recycle(data, buffers);
        self.permits.withdraw(self.tenant(conn), bytes_of(&request));
        self.freed = true;
        self[conn].outbox.complete_by_rule(nvme::id_of(&request), Status::TRANSPORT);
        self.touch(conn);
    }

    /// Answers a request that has left the stack. Its permit is held until the answer has been sent.
    pub fn answer(
        &mut self,
        conn: usize,
        request: &Request,
        (outcome, data): (Outcome, Data),
        notes: &[Note],
        buffers: &mut BufPool,
    ) {
        let mut held = Held::one(bytes_of(request));
        self.permits.answered(self.tenant(conn), held);
        // Who waits for the stack may go on, though the permit isn't back yet.
        self.freed = true;
        if planted::is(Mistake::PermitsUntilDone) {
            self.permits.give(self.tenant(conn), conn, std::mem::take(&mut held));
        }
        let c = &mut self.conns[conn].1;
        let answer = Answer { outcome, data, notes, replica: &c.params.replica };
        let back = c.outbox.reply(request, answer, held, buffers);
        self.give(conn, back);
        self.touch(conn);
    }

    // Sockets.

    /// A receive has ended.
    pub fn received(&mut self, now: Time, conn: usize, into: RecvInto, n: usize) {
        let patient = self.patience.at(now);
        self[conn].received(patient, into, n);
        self.touch(conn);
    }

    /// Begins a receive, if bytes are wanted.
    #[inline]
    pub fn receive(&mut self, now: Time, conn: usize, ring: &mut Ring) -> io::Result<()> {
        let c = &mut self.conns[conn].1;
        if !c.wants_recv() {
            return Ok(());
        }
        let (fd, into) = (c.raw_fd(), c.inbox.receive(self.patience.at(now)));
        ring.submit(RingOp::Recv { conn, fd, into })
    }

    /// Sends what a connection has unsent: what the socket takes now, now (one call, and no completion to collect); the rest when it
    /// can. False if the client turns out to be gone.
    pub fn send(&mut self, now: Time, conn: usize, ring: &mut Ring, buffers: &mut BufPool) -> io::Result<bool> {
        while self[conn].outbox.wants_send() {
            let patient = self.patience.at(now);
            let c = &mut self.conns[conn].1;
            let batch = c.outbox.take_unsent(patient).expect("just seen");
            let start = match batch.send_now(c.socket()) {
                Ok(n) if n == batch.len() => {
                    self.sent(now, conn, batch, buffers);
                    continue;
                }
                Ok(n) => {
                    c.outbox.sent_part(patient, n);
                    n
                }
                Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => 0,
                Err(_) => {
                    self.lost(now, conn, batch, buffers);
                    return Ok(false);
                }
            };
            let fd = c.raw_fd();
            ring.submit(RingOp::Send { conn, fd, batch, start })?;
        }
        Ok(true)
    }

    /// The kernel has sent a batch from `start` on, in part or in whole. False if the client turns out to be gone.
    pub fn handle_sent(
        &mut self,
        now: Time,
        (conn, batch, start): (usize, SendBatch, usize),
        result: io::Result<usize>,
        ring: &mut Ring,
        buffers: &mut BufPool,
    ) -> io::Result<bool> {
        match result {
            Ok(n) if n > 0 && start + n < batch.len() => {
                let patient = self.patience.at(now);
                let c = &mut self[conn];
                let fd = c.raw_fd();
                c.outbox.sent_part(patient, start + n);
                ring.submit(RingOp::Send { conn, fd, batch, start: start + n })?;
                return Ok(true);
            }
            Ok(_) => self.sent(now, conn, batch, buffers),
            Err(_) => self.lost(now, conn, batch, buffers),
        }
        self.touch(conn);
        Ok(!self[conn].outbox.is_broken())
    }

    /// A batch has been sent: its permits come back.
    fn sent(&mut self, now: Time, conn: usize, batch: SendBatch, buffers: &mut BufPool) {
        let patient = self.patience.at(now);
        let back = self[conn].outbox.sent(patient, batch, buffers);
        self.give(conn, back);
    }

    /// Nothing can be sent to a client any more, not even `batch`.
    fn lost(&mut self, now: Time, conn: usize, batch: SendBatch, buffers: &mut BufPool) {
        let patient = self.patience.at(now);
        let back = self[conn].outbox.lost(patient, batch, buffers);
        self.give(conn, back);
        self.end(conn, buffers);
    }

    // Ends.

    /// No more is taken from a client.
    pub fn end(&mut self, conn: usize, buffers: &mut BufPool) {
        let tenant = self.tenant(conn);
        if let Some(bytes) = self[conn].end(buffers) {
            self.permits.withdraw(tenant, bytes);
        }
        self.permits.leave(tenant, conn);
        self.freed = true;
    }

    /// Takes no more from the connections that are meant, and lets what they have inside finish. With `volume_gone`, what was received
    /// and not understood yet never will be. Returns their number; those that are ending already don't count.
    pub fn close(&mut self, of: &ClientFilter, volume_gone: bool, buffers: &mut BufPool) -> usize {
        let is_meant = |c: &Conn| of.is_meant(&c.params);
        let closing: Vec<usize> = self.conns.iter().filter(|(_, (_, c))| is_meant(c)).map(|(at, _)| at).collect();
        let were_open = closing.iter().filter(|at| !self[**at].is_ending()).count();
        for at in closing {
            self[at].close(volume_gone);
            if self[at].stalled_since().is_some() {
                self.end(at, buffers);
            }
            // Ends a receive that is under way; what was sent before still goes out.
            let _ = rustix::net::shutdown(self[at].socket(), Shutdown::Read);
            self.touch(at);
        }
        were_open
    }

    /// Ends all sends and receives that are under way: of clients that don't take their answers while the pool ends.
    pub fn cut(&self) {
        for c in self.iter() {
            let _ = rustix::net::shutdown(c.socket(), Shutdown::Both);
        }
    }

    /// Removes a connection that has nothing left to do. True if it was removed.
    #[inline]
    pub fn remove_finished(&mut self, conn: usize, buffers: &mut BufPool) -> bool {
        if !self[conn].is_finished() {
            return false;
        }
        let (_, c) = self.conns.remove(conn);
        let tenant = c.params.tenant;
        if let Some(bytes) = c.remove(buffers) {
            self.permits.withdraw(tenant, bytes);
        }
        self.permits.leave(tenant, conn);
        self.freed = true;
        true
    }
}
