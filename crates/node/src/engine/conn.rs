//! One client's connection in the transmission phase: bytes in, requests out; completions in, replies out.

use super::auto_deadline::AutoTerms;
use super::lag::{Lag, Pace};
use super::permits::Held;
use super::promise::micros;
use super::ring::{RecvInto, SendBatch};
use crate::planted::{self, Mistake};
use crate::replica::{Behind, Replica, ReplicaUse};
use crate::seats::Seat;
use plimsoll_base::{BufMut, BufPool, Data, IoError, Op, Outcome, Priority, Span, TenantId, Time, VolumeKey};
use plimsoll_nbd::promise::{self, Note, Promise};
use plimsoll_nbd::reply::{self, Last, Replies};
use plimsoll_nbd::request::{Incoming, Request, Rules};
use plimsoll_nbd::wire::{
    Command, CommandFlags, ErrorCode, Extent, MetaContext, MetaContexts, NoteKind, REQUEST_BYTES, STATE_HOLE,
    STATE_ZERO,
};
use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;

/// What a connection was granted at its handshake.
#[derive(Clone, Debug)]
pub struct ExportParams {
    /// The volume.
    pub volume: VolumeKey,
    /// Who pays.
    pub tenant: TenantId,
    /// Reads must be done within this of their arrival, or are refused Busy at once; `None` without a promise.
    pub deadline: Option<Span>,
    /// Without one: a deadline that sets itself, one for all connections of the tenant to the volume.
    pub auto: Option<AutoTerms>,
    /// For schedulers that know priorities.
    pub priority: Priority,
    /// What requests are allowed.
    pub rules: Rules,
    /// Which metadata contexts BLOCK_STATUS reports.
    pub meta_contexts: MetaContexts,
    /// The volume as one of several replicas.
    pub replica: Arc<Replica>,
    /// What the connection is to it.
    pub used_as: Option<ReplicaUse>,
}

/// Bytes received but not yet understood are at most this many.
pub const RECV_BYTES: usize = 256 << 10;
/// Payloads of writes up to this size are received into the connection's own buffer: their requests take a permit, and
/// a block of memory, when all their bytes are there. Larger ones are announced (see `permits.rs`).
pub const BUFFERED_PAYLOAD_BYTES: usize = 32 << 10;
/// Payloads up to this size are copied next to their header, larger ones are sent from where they lie.
const COPIED_PAYLOAD_BYTES: usize = 16 << 10;
/// A connection with more than this waiting to be sent isn't served further. What comes on top was let in by permits, which
/// are held until it has been sent.
const UNSENT_BYTES_MAX: usize = 8 << 20;
/// The same for answers that hold no permit: refusals, errors, probes.
const UNPERMITTED_BYTES_MAX: usize = 256 << 10;
/// Answers are sent in batches of about this size: the permits and blocks of a batch come back when it has been sent.
const BATCH_BYTES: usize = 1 << 20;
/// A batch's buffer up to this size is kept for the next; a larger one goes with it.
const KEPT_BYTES: usize = 64 << 10;
/// An empty range of a read at least this long is told as a hole instead of sent as zeroes.
const HOLE_BYTES_MIN: u64 = 512;

/// A request that is ready to go into the stack.
pub struct Ready {
    /// As the client sent it.
    pub request: Request,
    /// A write's bytes.
    pub data: Data,
    /// When it came, if it had to wait for a permit since.
    pub waited_since: Option<Time>,
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

/// What parsing stopped at.
pub enum Parsed {
    /// A request. Unless [`Conn::is_announced`], it is complete.
    Asks(Request),
    /// A write that was announced, now with its bytes.
    Ready(Ready),
    /// More bytes are needed.
    NeedBytes,
    /// The client ended the session, or sent what is no NBD.
    Ended(&'static str),
}

struct Payload {
    request: Request,
    buf: BufMut,
    filled: usize,
    waited_since: Option<Time>,
    /// Time that the node has waited for it; it passes only while the node reads the socket.
    waited: Span,
}

/// Answers on their way to the client.
#[derive(Default)]
struct Answers {
    batch: SendBatch,
    payload_bytes: usize,
    /// The permits of their requests.
    held: Held,
}

impl Answers {
    fn len(&self) -> usize {
        self.batch.bytes.len() + self.payload_bytes
    }
}

/// A payload that a client is slow to send.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Transfer {
    /// Time that the client has had for it so far.
    pub took: Span,
    /// The same since it last went on.
    pub silent: Span,
    /// Bytes that have come.
    pub done: u64,
    /// All bytes.
    pub whole: u64,
}

/// See the module's documentation.
pub struct Conn {
    fd: OwnedFd,
    /// What it was granted.
    pub params: ExportParams,
    replies: Replies,
    /// Absent while the kernel fills it.
    buffer: Option<Box<[u8]>>,
    have: std::ops::Range<usize>,
    payload: Option<Payload>,
    skip: u64,
    /// Encoded, not yet handed to the kernel: the batch that is being filled.
    unsent: Answers,
    /// Full batches before it.
    full: VecDeque<Answers>,
    full_bytes: usize,
    /// Unsent bytes of answers that hold no permit.
    unpermitted_bytes: usize,
    /// Bytes of the batch that is being sent; 0 if none is.
    sending_bytes: usize,
    /// Their requests' permits.
    sending_held: Held,
    /// Bytes of it that the client has taken.
    sending_done: usize,
    /// The client's lag in taking all unsent answers.
    lag: Lag,
    /// Something has been unsent since the lag began.
    lags: bool,
    /// A receive is under way.
    pub receiving: bool,
    /// Since when.
    receives_since: Time,
    /// A request that waits for a permit.
    pub stalled: Option<Stalled>,
    /// Requests in the stack.
    pub inflight: u32,
    /// It has received more requests than were understood in its turn; it has another in the next round.
    pub goes_on: bool,
    /// No more requests will be taken.
    pub ending: bool,
    /// Its volume was deleted: what was received and not understood yet never will be.
    pub volume_gone: bool,
    /// The peer is gone: replies are dropped.
    pub broken: bool,
    /// It said that it ends the session.
    disconnected: bool,
    /// It writes to all replicas; until it was told of as gone.
    writes_replicas: bool,
    /// Until it ends.
    _seat: Option<Arc<Seat>>,
}

impl Conn {
    /// A connection whose first bytes of transmission, `early`, arrived with the handshake.
    pub fn new(fd: OwnedFd, params: ExportParams, pace: Pace, early: &[u8], seat: Option<Arc<Seat>>) -> Conn {
        let writes_replicas = params.used_as == Some(ReplicaUse::Write);
        if writes_replicas {
            params.replica.writer_came();
        }
        let mut buffer = vec![0; RECV_BYTES.max(early.len())].into_boxed_slice();
        buffer[..early.len()].copy_from_slice(early);
        Conn {
            fd,
            replies: Replies { structured: params.rules.structured_replies },
            params,
            buffer: Some(buffer),
            have: 0..early.len(),
            payload: None,
            skip: 0,
            unsent: Answers::default(),
            full: VecDeque::new(),
            full_bytes: 0,
            unpermitted_bytes: 0,
            sending_bytes: 0,
            sending_held: Held::default(),
            sending_done: 0,
            lag: Lag::new(pace),
            lags: false,
            receiving: false,
            receives_since: Time::ZERO,
            stalled: None,
            inflight: 0,
            goes_on: false,
            ending: false,
            volume_gone: false,
            broken: false,
            disconnected: false,
            writes_replicas,
            _seat: seat,
        }
    }

    /// Does its client speak `x-plimsoll:promise`?
    pub fn promises(&self) -> bool {
        self.params.meta_contexts.contains(MetaContext::Promise)
    }

    /// What a request asks for beside what its command says.
    pub fn promise_of(&self, request: &Request) -> Promise {
        let asks = self.promises() && request.command == Command::Read;
        if asks { Promise::of(request.cookie) } else { Promise::default() }
    }

    /// Why a request of this connection must not be served: it reads one of several replicas, which may lack writes.
    pub fn behind(&self, request: &Request) -> Option<Behind> {
        let one_of_several = matches!(self.params.used_as, Some(ReplicaUse::Read | ReplicaUse::Write));
        let reads = one_of_several && request.command == Command::Read;
        Some(self.params.replica.behind()).filter(|b| reads && *b != Behind::No)
    }

    /// A request that changes something, or makes it durable, has ended.
    pub fn has_changed(&self, request: &Request, outcome: Outcome) {
        let replica = &self.params.replica;
        match outcome {
            Outcome::Done if request.command == Command::Flush => {}
            // The peer from whom it is has counted it.
            Outcome::Done if self.params.used_as == Some(ReplicaUse::Copy) && replica.behind() == Behind::Resync => {}
            Outcome::Done => replica.changed(request.offset, u64::from(request.length)),
            // Refused for what it is, it changed nothing anywhere.
            Outcome::Failed(IoError::NotSupported | IoError::Invalid | IoError::ReadOnly) => {}
            // Other replicas may have acknowledged it.
            _ if self.params.used_as == Some(ReplicaUse::Write) => replica.lost(),
            _ => {}
        }
    }

    /// Nothing more comes of its client.
    pub fn left(&mut self) {
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

    /// Where the next bytes should go, if any are wanted now.
    pub fn want_recv(&mut self, now: Time) -> Option<RecvInto> {
        if self.receiving || self.goes_on || self.ending || self.broken || self.stalled.is_some() || self.is_full() {
            return None;
        }
        self.receives_since = now;
        if let Some(p) = self.payload.take_if(|_| self.have.is_empty()) {
            let mut p = p;
            let (buf, filled) = (std::mem::replace(&mut p.buf, BufMut::zeroed(0)), p.filled);
            self.payload = Some(p);
            return Some(RecvInto::Payload(buf, filled));
        }
        let mut buffer = self.buffer.take().expect("not receiving, so the buffer is here");
        if self.have.start > 0 {
            buffer.copy_within(self.have.clone(), 0);
            self.have = 0..self.have.len();
        }
        Some(RecvInto::Buffer(buffer, self.have.end))
    }

    /// `n` bytes have arrived where [`Conn::want_recv`] said.
    pub fn received(&mut self, now: Time, into: RecvInto, n: usize) {
        if let Some(p) = &mut self.payload {
            p.waited += now.since(self.receives_since);
        }
        match into {
            RecvInto::Buffer(buffer, _) => {
                self.buffer = Some(buffer);
                self.have.end += n;
            }
            RecvInto::Payload(buf, _) => {
                let p = self.payload.as_mut().expect("a payload was wanted");
                p.buf = buf;
                p.filled += n;
            }
        }
    }

    /// May the next request be looked for?
    pub fn may_parse(&self) -> bool {
        self.stalled.is_none() && !self.receiving && !self.volume_gone && !self.broken && !self.is_full()
    }

    /// Is there something received that could be understood?
    pub fn has_received(&self) -> bool {
        !self.have.is_empty()
    }

    /// Waits too much to be sent? Then whoever doesn't read answers gets no more of them.
    pub fn is_full(&self) -> bool {
        self.unsent_bytes() > UNSENT_BYTES_MAX || self.unpermitted_bytes > UNPERMITTED_BYTES_MAX
    }

    fn unsent_bytes(&self) -> usize {
        self.unsent.len() + self.full_bytes + self.sending_bytes
    }

    /// Notes what was encoded since the batch had `before` bytes as answers that hold no permit.
    fn unpermitted(&mut self, before: usize) {
        self.unpermitted_bytes += self.unsent.len() - before;
        self.fill(Held::default());
    }

    /// Adds the permits of what was just encoded; a full batch is closed.
    fn fill(&mut self, held: Held) {
        self.unsent.held.add(held);
        if self.unsent.len() >= BATCH_BYTES {
            let full = std::mem::take(&mut self.unsent);
            self.full_bytes += full.len();
            self.full.push_back(full);
        }
    }

    /// Understands the next request of what was received.
    pub fn parse(&mut self) -> Parsed {
        loop {
            if let Some(ready) = self.finish_payload() {
                return Parsed::Ready(ready);
            }
            if self.payload.is_some() {
                return Parsed::NeedBytes;
            }
            let skipped = self.skip.min(self.have.len() as u64) as usize;
            self.skip -= skipped as u64;
            self.have.start += skipped;
            if self.have.len() < REQUEST_BYTES || self.skip > 0 {
                return Parsed::NeedBytes;
            }
            let buffer = self.buffer.as_ref().expect("not receiving");
            let header = buffer[self.have.start..][..REQUEST_BYTES].try_into().expect("a header's length");
            let Ok(incoming) = self.params.rules.judge(header) else {
                return Parsed::Ended("what the client sent is no NBD request");
            };
            if let Incoming::Serve(request) = &incoming
                && request.command == Command::Write
                && !Conn::is_announced(request)
                && self.have.len() < REQUEST_BYTES + request.length as usize
            {
                return Parsed::NeedBytes;
            }
            self.have.start += REQUEST_BYTES;
            match incoming {
                Incoming::Disconnect => {
                    self.disconnected = true;
                    return Parsed::Ended("the client disconnected");
                }
                Incoming::Refuse(r) => {
                    self.skip = u64::from(r.skip_bytes);
                    let before = self.unsent.len();
                    self.replies.failed(&mut self.unsent.batch.bytes, r.cookie, r.error, r.message);
                    self.unpermitted(before);
                    if self.is_full() {
                        return Parsed::NeedBytes;
                    }
                }
                Incoming::Serve(request) => return Parsed::Asks(request),
            }
        }
    }

    /// Is the request a write whose bytes need room of their own before they are received?
    pub fn is_announced(request: &Request) -> bool {
        request.command == Command::Write && request.length as usize > BUFFERED_PAYLOAD_BYTES
    }

    /// A complete request has its permit: it's ready.
    pub fn admit(&mut self, request: Request, waited_since: Option<Time>, pool: &mut BufPool) -> Ready {
        if request.command != Command::Write {
            return Ready { request, data: Data::Absent, waited_since };
        }
        let len = request.length as usize;
        let mut buf = pool.take(len);
        let buffer = self.buffer.as_ref().expect("not receiving");
        buf.as_mut_slice().copy_from_slice(&buffer[self.have.start..][..len]);
        self.have.start += len;
        Ready { request, data: Data::Bytes(buf.freeze()), waited_since }
    }

    /// A write has room for its payload, which is received now.
    pub fn receive(&mut self, request: Request, waited_since: Option<Time>, pool: &mut BufPool) {
        let buf = pool.take(request.length as usize);
        self.payload = Some(Payload { buf, request, filled: 0, waited_since, waited: Span::ZERO });
    }

    /// The payload that is being received. Time in which the node itself doesn't read the socket isn't the client's.
    pub fn receives(&self, now: Time) -> Option<Transfer> {
        let silent = if self.receiving { now.since(self.receives_since) } else { Span::ZERO };
        self.payload.as_ref().map(|p| Transfer {
            took: p.waited + silent,
            silent,
            done: p.filled as u64,
            whole: u64::from(p.request.length),
        })
    }

    /// Does the client take its answers too slowly? All that is unsent is judged together, however many batches it makes.
    pub fn takes_slowly(&self, now: Time) -> bool {
        self.sending_bytes > 0 && self.lag.is_too_long(now)
    }

    /// Moves what the buffer has of the payload; the request if that was the rest.
    fn finish_payload(&mut self) -> Option<Ready> {
        let p = self.payload.as_mut()?;
        let wanted = p.request.length as usize - p.filled;
        let n = wanted.min(self.have.len());
        if n > 0 {
            let buffer = self.buffer.as_ref().expect("not receiving");
            p.buf.as_mut_slice()[p.filled..p.filled + n].copy_from_slice(&buffer[self.have.start..][..n]);
            p.filled += n;
            self.have.start += n;
        }
        if p.filled < p.request.length as usize {
            return None;
        }
        let p = self.payload.take().expect("just seen");
        Some(Ready { request: p.request, data: Data::Bytes(p.buf.freeze()), waited_since: p.waited_since })
    }

    /// Takes what is to be sent, if anything is and nothing is under way.
    pub fn take_unsent(&mut self, now: Time) -> Option<SendBatch> {
        if self.sending_bytes > 0 || self.broken {
            return None;
        }
        let next = match self.full.pop_front() {
            Some(full) => {
                self.full_bytes -= full.len();
                full
            }
            None if self.unsent.batch.is_empty() => return None,
            None => std::mem::take(&mut self.unsent),
        };
        if !std::mem::replace(&mut self.lags, true) {
            self.lag.begin(now);
        }
        self.sending_bytes = next.len();
        self.sending_held = next.held;
        self.sending_done = 0;
        Some(next.batch)
    }

    /// The client has taken `done` bytes of the batch that is being sent.
    pub fn sent_part(&mut self, now: Time, done: usize) {
        self.lag.took(now, done - self.sending_done);
        self.sending_done = done;
    }

    /// A batch was sent whole: its vectors are used again, its payloads may be too. The permits that come back.
    pub fn sent(&mut self, now: Time, batch: SendBatch, pool: &mut BufPool) -> Held {
        self.sent_part(now, self.sending_bytes);
        self.sending_bytes = 0;
        let batch = recycled(batch, pool);
        if self.unsent.batch.bytes.capacity() == 0 && batch.bytes.capacity() <= KEPT_BYTES {
            self.unsent.batch = batch;
        }
        if self.unsent_bytes() == 0 {
            self.unpermitted_bytes = 0;
            self.lags = false;
        }
        std::mem::take(&mut self.sending_held)
    }

    /// No more is taken from the client: what it sent and wasn't understood yet never will be. A request that waits for a
    /// permit goes with it: what follows it may be its payload, and must not be taken for requests. Bytes of a payload whose
    /// room is to be given back.
    pub fn end(&mut self, pool: &mut BufPool) -> Option<u64> {
        self.left();
        self.ending = true;
        self.have.start = self.have.end;
        let Stalled { request, payload, .. } = self.stalled.take()?;
        let received = payload?;
        recycle(received, pool);
        Some(u64::from(request.length))
    }

    /// The connection is removed: bytes of a payload whose room is to be given back.
    pub fn remove(mut self, pool: &mut BufPool) -> Option<u64> {
        let waiting = self.end(pool);
        let receiving = self.payload.take().map(|p| {
            if planted::is(Mistake::PayloadsLost) {
                std::mem::forget(p.buf);
            } else {
                pool.give(p.buf.freeze());
            }
            u64::from(p.request.length)
        });
        debug_assert!(waiting.is_none() || receiving.is_none(), "a connection receives one payload at a time");
        waiting.or(receiving)
    }

    /// The peer is gone: nothing more is sent, not even `batch`, which was on its way. The permits that come back. The
    /// caller ends the connection, too.
    pub fn lost(&mut self, now: Time, batch: SendBatch, pool: &mut BufPool) -> Held {
        self.broken = true;
        let mut held = self.sent(now, batch, pool);
        for unsent in self.full.drain(..).chain([std::mem::take(&mut self.unsent)]) {
            recycled(unsent.batch, pool);
            held.add(unsent.held);
        }
        self.full_bytes = 0;
        held
    }

    /// Nothing left to do for a connection that is ending.
    pub fn is_finished(&self) -> bool {
        let quiet = self.sending_bytes == 0 && !self.receiving && self.inflight == 0 && !self.goes_on;
        quiet && self.ending && (self.broken || self.unsent_bytes() == 0)
    }

    /// Ends a request that never entered the stack.
    pub fn refuse(&mut self, request: &Request, outcome: Outcome, notes: &[Note]) {
        let before = self.unsent.len();
        self.fail(request, outcome, notes);
        self.unpermitted(before);
    }

    /// Refuses a read of a replica that may lack writes.
    pub fn refuse_behind(&mut self, request: &Request, why: Behind) {
        let before = self.unsent.len();
        self.note(request, &[(NoteKind::Behind, why as u32)]);
        let message =
            format!("this replica may lack acknowledged writes ({why}): `plimsoll volume resync` brings it up");
        self.replies.failed(&mut self.unsent.batch.bytes, request.cookie, ErrorCode::Io, &message);
        self.unpermitted(before);
    }

    /// Tells a client that speaks promises something of a read that goes on.
    pub fn note(&mut self, request: &Request, notes: &[Note]) {
        if self.promises() && request.command == Command::Read && !self.broken {
            promise::notes(&mut self.unsent.batch.bytes, request.cookie, MetaContext::Promise.id(), notes, Last::No);
        }
    }

    /// Answers a probe.
    pub fn reply_probe(&mut self, request: &Request, notes: &[Note]) {
        if !self.broken {
            let before = self.unsent.len();
            promise::notes(&mut self.unsent.batch.bytes, request.cookie, MetaContext::Promise.id(), notes, Last::Yes);
            self.unpermitted(before);
        }
    }

    /// Encodes the reply to `request`, whose permit is `held` until the reply has been sent. The permit comes back at once
    /// if nobody is there to take the reply.
    pub fn reply(
        &mut self,
        request: &Request,
        outcome: Outcome,
        data: Data,
        notes: &[Note],
        held: Held,
        pool: &mut BufPool,
    ) -> Held {
        if self.broken {
            recycle(data, pool);
            return held;
        }
        self.encode(request, outcome, data, notes, pool);
        self.fill(held);
        Held::default()
    }

    fn encode(&mut self, request: &Request, outcome: Outcome, data: Data, notes: &[Note], pool: &mut BufPool) {
        if outcome.is_done() {
            self.note(request, notes);
        }
        match (outcome, request.command) {
            (Outcome::Done, Command::Read) => self.reply_read(request, data, pool),
            (Outcome::Done, Command::BlockStatus) => self.reply_status(request, &data, notes),
            (Outcome::Done, _) => self.replies.done(&mut self.unsent.batch.bytes, request.cookie),
            _ => self.fail(request, outcome, notes),
        }
    }

    fn reply_read(&mut self, request: &Request, data: Data, pool: &mut BufPool) {
        let whole = u64::from(request.length);
        if let Data::Parts(parts) = &data
            && self.replies.may_fragment(request)
        {
            let mut at = request.offset;
            for (i, (len, part)) in parts.iter().enumerate() {
                let last = if i + 1 == parts.len() { Last::Yes } else { Last::No };
                self.chunk(request.cookie, at, *len, part.clone(), last, pool);
                at += len;
            }
        } else if self.replies.may_fragment(request) {
            self.chunk(request.cookie, request.offset, whole, data, Last::Yes, pool);
        } else {
            self.replies.read_whole(&mut self.unsent.batch.bytes, request.cookie, request.offset, request.length);
            match data {
                Data::Bytes(b) => self.payload(b, pool),
                other => {
                    let at = self.unsent.batch.bytes.len();
                    self.unsent.batch.bytes.resize(at + whole as usize, 0);
                    other.copy_to(&mut self.unsent.batch.bytes[at..]);
                }
            }
        }
    }

    fn chunk(&mut self, cookie: u64, offset: u64, len: u64, data: Data, last: Last, pool: &mut BufPool) {
        match data {
            Data::Bytes(b) => {
                reply::offset_data(&mut self.unsent.batch.bytes, cookie, offset, len as u32, last);
                self.payload(b, pool);
            }
            Data::Zeroes | Data::Absent if len >= HOLE_BYTES_MIN => {
                reply::offset_hole(&mut self.unsent.batch.bytes, cookie, offset, len as u32, last);
            }
            other => {
                reply::offset_data(&mut self.unsent.batch.bytes, cookie, offset, len as u32, last);
                let at = self.unsent.batch.bytes.len();
                self.unsent.batch.bytes.resize(at + len as usize, 0);
                other.copy_to(&mut self.unsent.batch.bytes[at..]);
            }
        }
    }

    fn payload(&mut self, b: plimsoll_base::Buf, pool: &mut BufPool) {
        if b.len() <= COPIED_PAYLOAD_BYTES {
            self.unsent.batch.bytes.extend_from_slice(b.as_slice());
            pool.give(b);
        } else {
            self.unsent.payload_bytes += b.len();
            self.unsent.batch.payloads.push((self.unsent.batch.bytes.len(), b));
        }
    }

    fn reply_status(&mut self, request: &Request, data: &Data, notes: &[Note]) {
        let one = request.flags.contains(CommandFlags::REQ_ONE);
        let mut extents: Vec<Extent> = Vec::new();
        if let Data::Status(found) = data {
            for e in found.iter().take(if one { 1 } else { EXTENTS_MAX }) {
                let status = if e.hole { STATE_HOLE } else { 0 } | if e.zero { STATE_ZERO } else { 0 };
                extents.push(Extent { length: e.len as u32, status });
            }
        }
        if extents.is_empty() {
            // Nothing is known of the range: all of it is allocated data, which is always a true answer.
            extents.push(Extent { length: request.length, status: 0 });
        }
        let contexts: Vec<MetaContext> = self.params.meta_contexts.iter().collect();
        for (i, c) in contexts.iter().enumerate() {
            let last = if i + 1 == contexts.len() { Last::Yes } else { Last::No };
            let (out, cookie) = (&mut self.unsent.batch.bytes, request.cookie);
            match c {
                MetaContext::Allocation => reply::block_status(out, cookie, c.id(), &extents, last),
                MetaContext::Promise => promise::notes(out, cookie, c.id(), notes, last),
                MetaContext::Written => {
                    let written = self.params.replica.written(request.offset, u64::from(request.length));
                    let extent =
                        |(len, generation): &(u64, u64)| Extent { length: *len as u32, status: *generation as u32 };
                    let kept = written.iter().take(if one { 1 } else { EXTENTS_MAX });
                    let extents: Vec<Extent> = kept.map(extent).collect();
                    reply::block_status(out, cookie, c.id(), &extents, last);
                }
            }
        }
    }

    fn fail(&mut self, request: &Request, outcome: Outcome, notes: &[Note]) {
        self.note(request, notes);
        let (code, message) = match outcome {
            Outcome::Done => unreachable!("success has a reply of its own"),
            // NBD has no EBUSY. EIO is what every client takes as "try elsewhere"; the message says what it was.
            Outcome::Busy { wait, confidence } => {
                self.note(request, &[(NoteKind::WaitUs, micros(wait))]);
                let what = format!("busy: predicted wait {} us, confidence {}/1000", wait.as_micros(), confidence.0);
                (ErrorCode::Io, what)
            }
            Outcome::Failed(e) => (error_code(e), e.to_string()),
        };
        self.replies.failed(&mut self.unsent.batch.bytes, request.cookie, code, &message);
    }
}

/// Gives a batch's blocks back; its empty vectors.
fn recycled(mut batch: SendBatch, pool: &mut BufPool) -> SendBatch {
    for (_, payload) in batch.payloads.drain(..) {
        pool.give(payload);
    }
    batch.bytes.clear();
    batch
}

/// Gives a request's blocks back.
fn recycle(data: Data, pool: &mut BufPool) {
    if let Data::Bytes(b) = data {
        pool.give(b);
    }
}

const EXTENTS_MAX: usize = 1024;

fn error_code(e: IoError) -> ErrorCode {
    match e {
        IoError::Device | IoError::FlushFailed | IoError::Cancelled => ErrorCode::Io,
        IoError::NoSpace => ErrorCode::NoSpace,
        IoError::Invalid => ErrorCode::Invalid,
        IoError::ReadOnly => ErrorCode::NotPermitted,
        IoError::NotSupported => ErrorCode::NotSupported,
        IoError::Unavailable => ErrorCode::Shutdown,
    }
}

/// The stack's word for an NBD command.
pub fn op_of(command: Command) -> Op {
    match command {
        Command::Read => Op::Read,
        Command::Write => Op::Write,
        Command::Flush => Op::Flush,
        Command::Trim => Op::Trim,
        Command::WriteZeroes => Op::WriteZeroes,
        Command::Cache => Op::Cache,
        Command::BlockStatus => Op::BlockStatus,
        Command::Disconnect | Command::Cancel => unreachable!("never enters the stack"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_nbd::wire::TransmissionFlags;
    use proptest::prelude::*;

    fn conn() -> Conn {
        let (ours, _) = std::os::unix::net::UnixStream::pair().expect("a pair of sockets");
        let flags = TransmissionFlags::SEND_FLUSH.with(TransmissionFlags::SEND_TRIM);
        let rules = Rules {
            size_bytes: 1 << 20,
            flags,
            block_bytes_min: 1,
            payload_bytes_max: 1 << 16,
            structured_replies: true,
            block_status: false,
            promises: false,
        };
        let (volume, meta_contexts) = (VolumeKey { id: 1, generation: 1 }, MetaContexts::EMPTY);
        let (tenant, deadline, auto, priority) = (TenantId(1), None, None, Priority::DEFAULT);
        let (replica, used_as) = (Replica::new(1 << 20, Default::default(), None), None);
        let params = ExportParams { volume, tenant, deadline, auto, priority, rules, meta_contexts, replica, used_as };
        Conn::new(ours.into(), params, Pace { rate: 64 << 10, allowed: Span::from_secs(30) }, &[], None)
    }

    /// Plays the kernel and the pool: `bytes` come in pieces of at most `piece`, every request gets its permit at once.
    /// What was understood, and what was answered to the rest.
    fn understood(bytes: &[u8], piece: usize) -> (Vec<String>, Vec<u8>) {
        let (mut conn, mut pool, mut rest, mut seen) = (conn(), BufPool::new(), bytes, Vec::new());
        let note = |ready: &Ready| {
            let mut payload = Vec::new();
            if let Data::Bytes(b) = &ready.data {
                payload.extend_from_slice(b.as_slice());
            }
            format!("{:?} {payload:?}", ready.request)
        };
        while let Some(mut into) = conn.want_recv(Time::ZERO) {
            let room = match &mut into {
                RecvInto::Buffer(b, start) => &mut b[*start..],
                RecvInto::Payload(b, start) => &mut b.as_mut_slice()[*start..],
            };
            let n = room.len().min(rest.len()).min(piece);
            room[..n].copy_from_slice(&rest[..n]);
            rest = &rest[n..];
            conn.received(Time::ZERO, into, n);
            loop {
                match conn.parse() {
                    Parsed::NeedBytes => break,
                    Parsed::Ended(why) => {
                        seen.push(why.to_string());
                        conn.end(&mut pool);
                        break;
                    }
                    Parsed::Asks(request) if Conn::is_announced(&request) => {
                        conn.receive(request, None, &mut pool);
                    }
                    Parsed::Asks(request) => seen.push(note(&conn.admit(request, None, &mut pool))),
                    Parsed::Ready(ready) => seen.push(note(&ready)),
                }
            }
            if n == 0 {
                break;
            }
        }
        (seen, conn.unsent.batch.bytes)
    }

    fn read_of(length: u32) -> Request {
        Request { command: Command::Read, flags: CommandFlags::EMPTY, cookie: 1, offset: 0, length }
    }

    /// While the node doesn't read a socket because its client has too many answers to take, a payload's time stands still.
    #[test]
    fn a_payloads_time_runs_only_while_the_node_reads() {
        let (mut conn, mut pool) = (conn(), BufPool::new());
        let at = |s| Time::ZERO + Span::from_secs(s);
        let receive = |conn: &mut Conn, asked: u64, came: u64, n: usize| {
            let into = conn.want_recv(at(asked)).expect("it wants more");
            conn.receiving = true;
            assert_eq!(conn.receives(at(came)).map(|t| t.silent), Some(Span::from_secs(came - asked)));
            conn.receiving = false;
            conn.received(at(came), into, n);
            assert!(matches!(conn.parse(), Parsed::NeedBytes));
        };
        let took = |conn: &Conn, now| {
            let t = conn.receives(at(now)).expect("a payload");
            (t.took, t.silent, t.done)
        };
        conn.receive(Request { command: Command::Write, ..read_of(1 << 20) }, None, &mut pool);
        assert_eq!(took(&conn, 5), (Span::ZERO, Span::ZERO, 0), "nobody reads yet");
        receive(&mut conn, 5, 7, 1000);
        assert_eq!(took(&conn, 7), (Span::from_secs(2), Span::ZERO, 1000));
        // Answers to earlier requests arrive, more than the connection may have unsent.
        for _ in 0..10 {
            let data = Data::Bytes(pool.take(1 << 20).freeze());
            conn.reply(&read_of(1 << 20), Outcome::Done, data, &[], Held::one(1 << 20), &mut pool);
        }
        assert!(conn.is_full() && conn.want_recv(at(8)).is_none());
        assert_eq!(took(&conn, 9_999), (Span::from_secs(2), Span::ZERO, 1000), "the client could send nothing");
        let mut back = Held::default();
        while let Some(batch) = conn.take_unsent(at(10_000)) {
            back.add(conn.sent(at(10_000), batch, &mut pool));
        }
        assert_eq!(back, Held { jobs: 10, bytes: 10 << 20 });
        receive(&mut conn, 10_000, 10_003, 1000);
        assert_eq!(took(&conn, 10_004), (Span::from_secs(5), Span::ZERO, 2000));
    }

    /// A connection's buffers for answers shrink again after the largest one.
    #[test]
    fn a_connection_keeps_a_small_buffer_for_its_answers() {
        let (mut conn, mut pool) = (conn(), BufPool::new());
        let mut kept = Vec::new();
        for answers in [1, 5000, 1, 3, 20_000, 2] {
            for _ in 0..answers {
                let data = Data::Bytes(pool.take(512).freeze());
                conn.reply(&read_of(512), Outcome::Done, data, &[], Held::one(512), &mut pool);
            }
            while let Some(batch) = conn.take_unsent(Time::ZERO) {
                conn.sent(Time::ZERO, batch, &mut pool);
            }
            let unsent = &conn.unsent.batch.bytes;
            assert!(unsent.is_empty() && unsent.capacity() <= KEPT_BYTES, "{} bytes are kept", unsent.capacity());
            kept.push(unsent.capacity() > 0);
        }
        assert_eq!(kept, [true, false, true, true, false, true], "small ones are used again");
    }

    /// A header that may be lawful, with its payload if it says that it has one.
    fn message() -> impl Strategy<Value = Vec<u8>> {
        let magic = prop_oneof![20 => Just(0x2560_9513_u32), 1 => any::<u32>()];
        let length = prop_oneof![8 => 0u32..5000, 1 => any::<u32>()];
        (magic, 0u16..4, 0u16..9, any::<u64>(), 0u64..2 << 20, length, any::<u8>()).prop_map(
            |(magic, flags, command, cookie, offset, length, fill)| {
                let mut b = magic.to_be_bytes().to_vec();
                b.extend(flags.to_be_bytes());
                b.extend(command.to_be_bytes());
                b.extend(cookie.to_be_bytes());
                b.extend(offset.to_be_bytes());
                b.extend(length.to_be_bytes());
                let payload = if command == 1 { length.min(70_000) as usize } else { 0 };
                b.resize(b.len() + payload, fill);
                b
            },
        )
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn how_the_bytes_arrive_changes_nothing(messages in prop::collection::vec(message(), 0..12), piece in 1usize..3000) {
            let bytes = messages.concat();
            prop_assert_eq!(understood(&bytes, piece), understood(&bytes, usize::MAX));
        }

        #[test]
        fn no_bytes_are_too_strange(bytes in prop::collection::vec(any::<u8>(), 0..300), piece in 1usize..40) {
            prop_assert_eq!(understood(&bytes, piece), understood(&bytes, usize::MAX));
        }
    }
}
