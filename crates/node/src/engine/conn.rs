//! One client's connection in the transmission phase: an inbox, an outbox, and the volume between them.

use super::auto_deadline::AutoTerms;
use super::inbox::{Heard, Inbox, Ready};
use super::lag::Pace;
use super::nvme::{HostId, QueueParams};
use super::outbox::{Outbox, recycle};
use super::ring::RecvInto;
use crate::replica::{Behind, Claim, Replica, ReplicaUse};
use crate::seats::Seat;
use plimsoll_base::{BufPool, Data, OnBusy, Outcome, Priority, Span, TenantId, Time, VolumeKey};
use plimsoll_nbd::handshake::Negotiated;
use plimsoll_nbd::promise::Promise;
use plimsoll_nbd::request::{Request, Rules};
use plimsoll_nbd::wire::{Command, MetaContexts, TransmissionFlags};
use rustix::net::RecvFlags;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;

/// Source of the deadline of a read that doesn't ask for one itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DeadlineFrom {
    /// The connection's export name.
    Connection,
    /// The volume.
    Volume,
    /// The tenant.
    Tenant,
    /// The tenant's deadline that sets itself.
    Automatic,
}

impl DeadlineFrom {
    /// The word for the API.
    pub const fn name(self) -> &'static str {
        match self {
            DeadlineFrom::Connection => "connection",
            DeadlineFrom::Volume => "volume",
            DeadlineFrom::Tenant => "tenant",
            DeadlineFrom::Automatic => "automatic",
        }
    }
}

/// The protocol on a connection, with what was negotiated.
#[derive(Clone, Debug)]
pub enum Wire {
    /// NBD's transmission phase.
    Nbd {
        /// Rules for requests.
        rules: Rules,
        /// Metadata contexts that BLOCK_STATUS reports.
        meta_contexts: MetaContexts,
    },
    /// An I/O queue of NVMe/TCP.
    Nvme(QueueParams),
}

impl Wire {
    /// Returns true if its client may change nothing.
    pub fn is_read_only(&self) -> bool {
        match self {
            Wire::Nbd { rules, .. } => rules.flags.contains(TransmissionFlags::READ_ONLY),
            Wire::Nvme(queue) => queue.namespace.read_only,
        }
    }
}

impl From<&Negotiated> for Wire {
    fn from(agreed: &Negotiated) -> Wire {
        Wire::Nbd { rules: agreed.rules(), meta_contexts: agreed.meta_contexts }
    }
}

/// The terms of a connection, from its handshake.
#[derive(Clone, Debug)]
pub struct ExportParams {
    /// The client, for people.
    pub peer: Arc<str>,
    /// The volume.
    pub volume: VolumeKey,
    /// Tenant of its requests.
    pub tenant: TenantId,
    /// Reads must be done within this of their arrival, and its source; `None` without a promise.
    pub deadline: Option<(Span, DeadlineFrom)>,
    /// Answer to a read that would miss the deadline. A client that negotiated promises gets the error, with the predicted wait.
    pub on_busy: OnBusy,
    /// Without one: a deadline that sets itself, one for all connections of the tenant to the volume.
    pub auto: Option<AutoTerms>,
    /// Number of changes of the directory before the connection. Of several connections' `auto`, the one of the largest number holds.
    pub as_of: u64,
    /// For schedulers that know priorities.
    pub priority: Priority,
    /// The protocol on the connection.
    pub wire: Wire,
    /// The volume as one of several replicas.
    pub replica: Arc<Replica>,
    /// The connection's use of it.
    pub used_as: Option<ReplicaUse>,
}

/// A request that has no permit yet.
pub struct Stalled {
    /// The request.
    pub request: Request,
    /// Its payload, if it was announced and has been received.
    pub payload: Option<Data>,
    /// Since when it waits for one.
    pub since: Time,
    /// Its wait's.
    pub ticket: u64,
}

/// The result of parsing.
pub enum Parsed {
    /// A complete request.
    Asks(Request),
    /// A write whose bytes need room of their own before they are received.
    Announces(Request),
    /// A write that was announced, now with its bytes.
    Ready(Ready),
    /// The same, and the bytes were damaged on their way.
    Damaged(Ready),
    /// More bytes are needed.
    NeedBytes,
    /// The client ended the session, or broke the protocol.
    Ended(&'static str),
}

/// See the module's documentation.
pub struct Conn {
    fd: Arc<OwnedFd>,
    /// Its terms.
    pub params: ExportParams,
    /// The time at which the pool got it.
    pub attached_at: Time,
    /// Its receiving side.
    pub inbox: Inbox,
    /// Its sending side.
    pub outbox: Outbox,
    /// A request that waits for a permit.
    stalled: Option<Stalled>,
    /// Requests in the stack.
    inflight: u32,
    /// It has received more requests than were understood in its turn; it has another in the next round.
    goes_on: bool,
    /// No more requests will be taken.
    ending: bool,
    /// This node ended it.
    closed_here: bool,
    /// See [`Conn::disconnects`].
    disconnects: Option<bool>,
    /// Its volume was deleted: what was received and not understood yet never will be.
    volume_gone: bool,
    /// The client announced the end of the session.
    disconnected: bool,
    /// It writes to all replicas; until its loss was recorded.
    writes_replicas: bool,
    /// Until it ends, if it excludes others from the volume.
    _claim: Option<Claim>,
    /// Until it ends.
    _seat: Option<Arc<Seat>>,
}

impl Conn {
    /// A connection whose first bytes of transmission, `early`, arrived with the handshake.
    pub fn new(
        now: Time,
        fd: Arc<OwnedFd>,
        params: ExportParams,
        pace: Pace,
        early: &[u8],
        (seat, claim): (Option<Arc<Seat>>, Option<Claim>),
    ) -> Conn {
        let writes_replicas = params.used_as == Some(ReplicaUse::Write);
        if writes_replicas {
            params.replica.writer_came();
        }
        Conn {
            fd,
            inbox: Inbox::new(&params.wire, early),
            outbox: Outbox::new(&params.wire, pace),
            params,
            attached_at: now,
            stalled: None,
            inflight: 0,
            goes_on: false,
            ending: false,
            closed_here: false,
            disconnects: None,
            volume_gone: false,
            disconnected: false,
            writes_replicas,
            _claim: claim,
            _seat: seat,
        }
    }

    /// Its host and volume, if its client sends reads that were refused again.
    #[inline]
    pub fn sends_again(&self) -> Option<(HostId, VolumeKey)> {
        match &self.params.wire {
            Wire::Nbd { .. } => None,
            Wire::Nvme(queue) => Some((queue.host, self.params.volume)),
        }
    }

    /// True if its client speaks `x-plimsoll:promise`.
    #[inline]
    pub fn promises(&self) -> bool {
        self.outbox.promises()
    }

    /// The promise that a request asks for in its cookie.
    #[inline]
    pub fn promise_of(&self, request: &Request) -> Promise {
        let asks = self.promises() && request.command == Command::Read;
        if asks { Promise::of(request.cookie) } else { Promise::default() }
    }

    /// The reason why a request of this connection must not be served: it reads one of several replicas, which may lack writes.
    #[inline]
    pub fn behind(&self, request: &Request) -> Option<Behind> {
        let one_of_several = matches!(self.params.used_as, Some(ReplicaUse::Read | ReplicaUse::Write));
        let reads = one_of_several && request.command == Command::Read;
        Some(self.params.replica.behind()).filter(|b| reads && *b != Behind::No)
    }

    /// True if what it would write is a peer's content for a resync that doesn't go on any more.
    #[inline]
    pub fn is_late_copy(&self) -> bool {
        self.params.used_as == Some(ReplicaUse::Copy) && !self.params.replica.takes_copies()
    }

    /// A request that changes something, or makes it durable, has ended.
    pub fn has_changed(&self, request: &Request, outcome: Outcome) {
        let replica = &self.params.replica;
        match outcome {
            Outcome::Done if request.command == Command::Flush => {}
            // The peer from whom it is has counted it.
            Outcome::Done if self.params.used_as == Some(ReplicaUse::Copy) && replica.behind() == Behind::Resync => {}
            Outcome::Done => replica.changed(request.offset, u64::from(request.length)),
            // Other replicas may have acknowledged it, whatever is the reason here: they may be larger, or writable.
            _ if self.params.used_as == Some(ReplicaUse::Write) => replica.lost(),
            _ => {}
        }
    }

    /// Nothing more comes of its client.
    fn left(&mut self) {
        if std::mem::take(&mut self.writes_replicas) {
            self.params.replica.writer_left(self.disconnected);
        }
    }

    /// The socket.
    pub fn raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    /// The socket, for calls that take one.
    pub fn socket(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// True if bytes are wanted now, and no receive is under way.
    #[inline]
    pub fn wants_recv(&self) -> bool {
        let waits = self.goes_on || self.stalled.is_some() || self.outbox.is_full();
        let ends = self.ending || self.outbox.is_broken();
        !waits && !ends && !self.inbox.is_receiving()
    }

    /// True if a receive is under way.
    #[cfg(test)]
    pub fn is_receiving(&self) -> bool {
        self.inbox.is_receiving()
    }

    /// A receive has ended. With no bytes nothing more will come: the end of the stream, or an error on the socket.
    pub fn received(&mut self, now: Time, into: RecvInto, n: usize) {
        self.inbox.received(now, into, n);
        if n == 0 {
            self.left();
            self.ending = true;
        }
    }

    /// True if the next request may be looked for.
    #[inline]
    pub fn may_parse(&self) -> bool {
        let ends = self.volume_gone || self.outbox.is_broken();
        self.stalled.is_none() && !self.inbox.is_receiving() && !ends && !self.outbox.is_full()
    }

    /// Understands the next request of what was received.
    #[inline]
    pub fn parse(&mut self) -> Parsed {
        loop {
            match self.inbox.next() {
                Heard::Asks(request) => return Parsed::Asks(request),
                Heard::Announces(request) => return Parsed::Announces(request),
                Heard::Ready(ready) => return Parsed::Ready(ready),
                Heard::Damaged(ready) => return Parsed::Damaged(ready),
                Heard::NeedBytes => return Parsed::NeedBytes,
                Heard::Nonsense => return Parsed::Ended("what the client sent is no NBD request"),
                Heard::Disconnects => {
                    self.disconnected = true;
                    return Parsed::Ended("the client disconnected");
                }
                Heard::Faulty(fault) => {
                    tracing::debug!(%fault, "an NVMe host broke the protocol");
                    self.outbox.terminate(fault, self.inbox.received_bytes());
                    return Parsed::Ended("what the host sent is no NVMe/TCP");
                }
                Heard::Refused(refused) => self.outbox.refuse_by_rule(&refused),
                Heard::Completed(id, status) => self.outbox.complete_by_rule(id, status),
            }
            if self.outbox.is_full() {
                return Parsed::NeedBytes;
            }
        }
    }

    /// Prepares room for an announced write's payload, which is received next.
    pub fn expect_payload(&mut self, request: Request, waited_since: Option<Time>, pool: &mut BufPool) {
        if let Some(r2t) = self.inbox.expect_payload(request, waited_since, pool) {
            self.outbox.ask_for(r2t);
        }
    }

    /// Its turn ended before everything received was understood. False if that is known.
    pub fn end_turn(&mut self) -> bool {
        !std::mem::replace(&mut self.goes_on, true)
    }

    /// Its next turn begins.
    pub fn begin_turn(&mut self) {
        self.goes_on = false;
    }

    /// True if it has received something that can be understood in this turn.
    #[inline]
    pub fn has_turn(&self) -> bool {
        self.inbox.has_received() && !self.goes_on
    }

    /// Nothing is read from it until its request has its permit.
    #[inline]
    pub fn stall(&mut self, stalled: Stalled) {
        self.stalled = Some(stalled);
    }

    /// The request that waits for a permit waits no longer.
    #[inline]
    pub fn unstall(&mut self) -> Option<Stalled> {
        self.stalled.take()
    }

    /// Time since when a request waits for a permit.
    pub fn stalled_since(&self) -> Option<Time> {
        self.stalled.as_ref().map(|s| s.since)
    }

    /// True if it has nothing in the stack, and answers that its client doesn't take.
    pub fn waits_for_its_own_answers(&self) -> bool {
        self.inflight == 0 && !self.outbox.is_done()
    }

    /// Requests in the stack.
    pub fn in_flight(&self) -> u32 {
        self.inflight
    }

    /// True if no client waits for its answers any more, or comes with further requests.
    pub fn is_ending(&self) -> bool {
        self.ending || self.outbox.is_broken()
    }

    /// A request of it entered the stack.
    #[inline]
    pub fn entered(&mut self) {
        self.inflight += 1;
    }

    /// A request of it left the stack.
    #[inline]
    pub fn answered(&mut self) {
        self.inflight -= 1;
    }

    /// True if [`Conn::close`] ended it.
    pub fn is_closed_here(&self) -> bool {
        self.closed_here
    }

    /// True if the last bytes that its client sent are NBD's disconnect. To be asked once nothing more can come.
    pub fn disconnects(&mut self) -> bool {
        if let Some(known) = self.disconnects {
            return known;
        }
        let found = self.inbox.is_nbd() && {
            let unread = unread(self.socket());
            self.inbox.ends_with_disconnect(&unread)
        };
        *self.disconnects.insert(found)
    }

    /// Takes no new bytes. With `volume_gone`, what was received and not understood yet never will be.
    pub fn close(&mut self, volume_gone: bool) {
        (self.ending, self.closed_here) = (true, true);
        self.volume_gone |= volume_gone;
    }

    /// No more is taken from the client: what it sent and wasn't understood yet never will be. A request that waits for a
    /// permit goes with it: what follows it may be its payload, and must not be taken for requests. Bytes of a payload whose
    /// room is to be given back.
    pub fn end(&mut self, pool: &mut BufPool) -> Option<u64> {
        self.left();
        self.ending = true;
        self.inbox.clear();
        let Stalled { request, payload, .. } = self.stalled.take()?;
        let received = payload?;
        recycle(received, pool);
        Some(u64::from(request.length))
    }

    /// The connection is removed: bytes of a payload whose room is to be given back.
    pub fn remove(mut self, pool: &mut BufPool) -> Option<u64> {
        let waiting = self.end(pool);
        let receiving = self.inbox.abandon_payload(pool);
        debug_assert!(waiting.is_none() || receiving.is_none(), "a connection receives one payload at a time");
        waiting.or(receiving)
    }

    /// Nothing left to do for a connection that is ending.
    #[inline]
    pub fn is_finished(&self) -> bool {
        let quiet = !self.inbox.is_receiving() && self.inflight == 0 && !self.goes_on;
        quiet && self.ending && self.outbox.is_done()
    }
}

/// A socket's buffer has less.
const UNREAD_MAX: u64 = 64 << 20;

/// Bytes that a socket has and nobody has read; they stay there. Nothing if that can't be had.
fn unread(socket: BorrowedFd<'_>) -> Vec<u8> {
    let mut bytes = vec![0; rustix::io::ioctl_fionread(socket).map_or(0, |n| n.min(UNREAD_MAX)) as usize];
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    let came = rustix::net::recv(socket, bytes.as_mut_slice(), flags).map_or(0, |(n, _)| n);
    bytes.truncate(came);
    bytes
}
