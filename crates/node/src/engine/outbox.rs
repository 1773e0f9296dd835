//! Sending side of a connection: answers in, batches of bytes out.

use super::conn::Wire;
use super::lag::{Lag, Pace};
use super::nvme;
use super::permits::Held;
use super::promise::micros;
use super::ring::SendBatch;
use crate::replica::{Behind, Replica};
use plimsoll_base::{BufPool, Data, IoError, Outcome, Time};
use plimsoll_nbd::promise::{self, Note};
use plimsoll_nbd::reply::{self, Last, Replies};
use plimsoll_nbd::request::{RefusedRequest, Request};
use plimsoll_nbd::wire::{
    Command, CommandFlags, ErrorCode, Extent, MetaContext, MetaContexts, NoteKind, STATE_HOLE, STATE_ZERO,
};
use plimsoll_nvme::command::Status;
use plimsoll_nvme::pdu::{Fault, digest};
use plimsoll_nvme::queue::ReadyToTransfer;
use std::collections::VecDeque;

/// Payloads up to this size are copied next to their header, larger ones are sent from where they lie.
const COPIED_PAYLOAD_BYTES: usize = 16 << 10;
/// A connection with more than this waiting to be sent isn't served further. Answers beyond this bound were admitted by permits,
/// which are held until the answers have been sent.
const UNSENT_BYTES_MAX: usize = 8 << 20;
/// The same for answers that hold no permit: refusals, errors, probes.
const UNPERMITTED_BYTES_MAX: usize = 256 << 10;
/// Answers are sent in batches of about this size: the permits and blocks of a batch come back when it has been sent.
const BATCH_BYTES: usize = 1 << 20;
/// A batch's buffer up to this size is kept for the next; a larger one goes with it.
const KEPT_BYTES: usize = 64 << 10;
/// Least length of an empty range that is answered as a hole instead of zeroes.
const HOLE_BYTES_MIN: u64 = 512;

/// A request's answer.
pub struct Answer<'a> {
    /// Outcome of the request.
    pub outcome: Outcome,
    /// A read's bytes, or a status.
    pub data: Data,
    /// Notes for a client that speaks promises.
    pub notes: &'a [Note],
    /// The volume as one of several replicas.
    pub replica: &'a Replica,
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

/// The protocol of what is sent.
enum Dialect {
    Nbd { replies: Replies, contexts: MetaContexts },
    Nvme(plimsoll_nvme::queue::Replies),
}

/// See the module's documentation.
pub struct Outbox {
    dialect: Dialect,
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
    /// The peer is gone: answers are dropped.
    broken: bool,
}

impl Outbox {
    /// An empty outbox, for a client of this protocol.
    pub fn new(wire: &Wire, pace: Pace) -> Outbox {
        let dialect = match wire {
            Wire::Nbd { rules, meta_contexts } => {
                let replies = Replies { structured: rules.structured_replies };
                Dialect::Nbd { replies, contexts: *meta_contexts }
            }
            Wire::Nvme(params) => Dialect::Nvme(params.replies.clone()),
        };
        Outbox {
            dialect,
            unsent: Answers::default(),
            full: VecDeque::new(),
            full_bytes: 0,
            unpermitted_bytes: 0,
            sending_bytes: 0,
            sending_held: Held::default(),
            sending_done: 0,
            lag: Lag::new(pace),
            lags: false,
            broken: false,
        }
    }

    /// True if its client speaks `x-plimsoll:promise`.
    #[inline]
    pub fn promises(&self) -> bool {
        matches!(self.dialect, Dialect::Nbd { contexts, .. } if contexts.contains(MetaContext::Promise))
    }

    /// True if block statuses of this client are probes, and nothing else.
    #[inline]
    pub fn is_for_probes(&self) -> bool {
        matches!(self.dialect, Dialect::Nbd { contexts, .. } if contexts == MetaContexts::EMPTY.with(MetaContext::Promise))
    }

    /// True if the peer is gone.
    #[inline]
    pub fn is_broken(&self) -> bool {
        self.broken
    }

    /// True if nothing is being sent, and nothing is left to send to a peer that takes it.
    #[inline]
    pub fn is_done(&self) -> bool {
        self.sending_bytes == 0 && (self.broken || self.unsent_bytes() == 0)
    }

    /// True if too much waits to be sent. Then a client that doesn't read answers gets no more of them.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.unsent_bytes() > UNSENT_BYTES_MAX || self.unpermitted_bytes > UNPERMITTED_BYTES_MAX
    }

    #[inline]
    fn unsent_bytes(&self) -> usize {
        self.unsent.len() + self.full_bytes + self.sending_bytes
    }

    /// Notes what was encoded since the batch had `before` bytes as answers that hold no permit.
    fn unpermitted(&mut self, before: usize) {
        self.unpermitted_bytes += self.unsent.len() - before;
        self.fill(Held::default());
    }

    /// Adds the permits of what was just encoded; a full batch is closed.
    #[inline]
    fn fill(&mut self, held: Held) {
        self.unsent.held.add(held);
        if self.unsent.len() >= BATCH_BYTES {
            let full = std::mem::take(&mut self.unsent);
            self.full_bytes += full.len();
            self.full.push_back(full);
        }
    }

    /// True if the client takes its answers too slowly. All that is unsent is judged together, however many batches it makes.
    pub fn is_slow(&self, now: Time) -> bool {
        self.sending_bytes > 0 && self.lag.is_too_long(now)
    }

    /// True if something is to be sent, and nothing is under way.
    #[inline]
    pub fn wants_send(&self) -> bool {
        let has_unsent = !self.unsent.batch.is_empty() || !self.full.is_empty();
        has_unsent && self.sending_bytes == 0 && !self.broken
    }

    /// Takes what is to be sent, if anything is and nothing is under way.
    #[inline]
    pub fn take_unsent(&mut self, now: Time) -> Option<SendBatch> {
        if !self.wants_send() {
            return None;
        }
        let next = match self.full.pop_front() {
            Some(full) => {
                self.full_bytes -= full.len();
                full
            }
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

    /// The peer is gone: nothing more is sent, not even `batch`, which was on its way. The permits that come back.
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

    /// Ends a request that never entered the stack.
    pub fn refuse(&mut self, request: &Request, outcome: Outcome, notes: &[Note]) {
        let before = self.unsent.len();
        self.fail(request, outcome, notes);
        self.unpermitted(before);
    }

    /// Ends a request that the rules of the session refuse.
    pub fn refuse_by_rule(&mut self, r: &RefusedRequest) {
        let before = self.unsent.len();
        if let Dialect::Nbd { replies, .. } = &self.dialect {
            replies.failed(&mut self.unsent.batch.bytes, r.cookie, r.error, r.message);
        }
        self.unpermitted(before);
    }

    /// Ends an NVMe command that isn't served.
    pub fn complete_by_rule(&mut self, id: u16, status: Status) {
        let before = self.unsent.len();
        if let Dialect::Nvme(replies) = &mut self.dialect {
            replies.complete(&mut self.unsent.batch.bytes, id, 0, status);
        }
        self.unpermitted(before);
    }

    /// Asks an NVMe host for a write's data.
    pub fn ask_for(&mut self, r2t: ReadyToTransfer) {
        let before = self.unsent.len();
        if let Dialect::Nvme(replies) = &self.dialect
            && !self.broken
        {
            replies.ready_to_transfer(&mut self.unsent.batch.bytes, r2t);
        }
        self.unpermitted(before);
    }

    /// Tells an NVMe host why its connection ends; `header` is what was at fault.
    pub fn terminate(&mut self, fault: Fault, header: &[u8]) {
        let before = self.unsent.len();
        fault.tell(&mut self.unsent.batch.bytes, header);
        self.unpermitted(before);
    }

    /// Refuses a read of a replica that may lack writes.
    pub fn refuse_behind(&mut self, request: &Request, why: Behind) {
        let before = self.unsent.len();
        self.note(request, &[(NoteKind::Behind, why as u32)]);
        let out = &mut self.unsent.batch.bytes;
        match &mut self.dialect {
            Dialect::Nbd { replies, .. } => {
                let message =
                    format!("this replica may lack acknowledged writes ({why}): `plimsoll volume resync` brings it up");
                replies.failed(out, request.cookie, ErrorCode::Io, &message);
            }
            Dialect::Nvme(replies) => replies.complete(out, nvme::id_of(request), 0, Status::INACCESSIBLE),
        }
        self.unpermitted(before);
    }

    /// Tells a client that speaks promises something of a read that goes on.
    #[inline]
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

    /// Encodes the reply to `request` whose permit is `held` until the reply has been sent. The permit comes back at
    /// once if nobody is there to take the reply.
    pub fn reply(&mut self, request: &Request, answer: Answer<'_>, held: Held, pool: &mut BufPool) -> Held {
        if self.broken {
            recycle(answer.data, pool);
            return held;
        }
        self.encode(request, answer, pool);
        self.fill(held);
        Held::default()
    }

    fn encode(&mut self, request: &Request, answer: Answer<'_>, pool: &mut BufPool) {
        let Answer { outcome, data, notes, replica } = answer;
        let Dialect::Nbd { replies, contexts } = self.dialect else {
            return match (outcome, request.command) {
                (Outcome::Done, Command::Read) => self.send_data(request, data, pool),
                _ => self.fail(request, outcome, notes),
            };
        };
        if outcome.is_done() {
            self.note(request, notes);
        }
        match (outcome, request.command) {
            (Outcome::Done, Command::Read) => self.reply_read(replies, request, data, pool),
            (Outcome::Done, Command::BlockStatus) => self.reply_status(contexts, request, &data, notes, replica),
            (Outcome::Done, _) => replies.done(&mut self.unsent.batch.bytes, request.cookie),
            _ => self.fail(request, outcome, notes),
        }
    }

    /// Answers an NVMe host's read.
    fn send_data(&mut self, request: &Request, data: Data, pool: &mut BufPool) {
        let Dialect::Nvme(replies) = &mut self.dialect else { unreachable!("it's NVMe") };
        let has_digest = replies.has_data_digest();
        let id = nvme::id_of(request);
        let right;
        replies.data_header(&mut self.unsent.batch.bytes, id, request.length);
        match data {
            Data::Bytes(b) => {
                right = if has_digest { digest(b.as_slice()) } else { 0 };
                self.payload(b, pool);
            }
            other => {
                let at = self.unsent.batch.bytes.len();
                self.unsent.batch.bytes.resize(at + request.length as usize, 0);
                other.copy_to(&mut self.unsent.batch.bytes[at..]);
                right = if has_digest { digest(&self.unsent.batch.bytes[at..]) } else { 0 };
            }
        }
        if let Dialect::Nvme(replies) = &mut self.dialect {
            replies.data_trailer(&mut self.unsent.batch.bytes, id, right);
        }
    }

    fn reply_read(&mut self, replies: Replies, request: &Request, data: Data, pool: &mut BufPool) {
        let whole = u64::from(request.length);
        if let Data::Parts(parts) = &data
            && replies.may_fragment(request)
        {
            let mut at = request.offset;
            for (i, (len, part)) in parts.iter().enumerate() {
                let last = if i + 1 == parts.len() { Last::Yes } else { Last::No };
                self.chunk(request.cookie, at, *len, part.clone(), last, pool);
                at += len;
            }
        } else if replies.may_fragment(request) {
            self.chunk(request.cookie, request.offset, whole, data, Last::Yes, pool);
        } else {
            replies.read_whole(&mut self.unsent.batch.bytes, request.cookie, request.offset, request.length);
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

    fn reply_status(
        &mut self,
        contexts: MetaContexts,
        request: &Request,
        data: &Data,
        notes: &[Note],
        replica: &Replica,
    ) {
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
        let contexts: Vec<MetaContext> = contexts.iter().collect();
        for (i, c) in contexts.iter().enumerate() {
            let last = if i + 1 == contexts.len() { Last::Yes } else { Last::No };
            let (out, cookie) = (&mut self.unsent.batch.bytes, request.cookie);
            match c {
                MetaContext::Allocation => reply::block_status(out, cookie, c.id(), &extents, last),
                MetaContext::Promise => promise::notes(out, cookie, c.id(), notes, last),
                MetaContext::Written => {
                    let written = replica.written(request.offset, u64::from(request.length));
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
        if let Dialect::Nvme(replies) = &mut self.dialect {
            let status = nvme::status_of(request.command, outcome);
            return replies.complete(&mut self.unsent.batch.bytes, nvme::id_of(request), 0, status);
        }
        self.note(request, notes);
        let (code, message) = match outcome {
            Outcome::Done => unreachable!("success has a reply of its own"),
            // NBD has no EBUSY. EIO is what every client takes as "try elsewhere"; the message says what it was.
            Outcome::Busy { wait, confidence } => {
                let sure = u32::from(confidence.0);
                self.note(request, &[(NoteKind::WaitUs, micros(wait)), (NoteKind::Confidence, sure)]);
                let what = format!("busy: predicted wait {} us, confidence {}/1000", wait.as_micros(), confidence.0);
                (ErrorCode::Io, what)
            }
            Outcome::Failed(e) => (error_code(e), e.to_string()),
        };
        if let Dialect::Nbd { replies, .. } = &self.dialect {
            replies.failed(&mut self.unsent.batch.bytes, request.cookie, code, &message);
        }
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
pub fn recycle(data: Data, pool: &mut BufPool) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_base::Span;
    use plimsoll_nbd::request::Rules;
    use plimsoll_nbd::wire::TransmissionFlags;
    use std::sync::Arc;

    struct Scene {
        outbox: Outbox,
        pool: BufPool,
        replica: Arc<Replica>,
    }

    impl Scene {
        fn new() -> Scene {
            let pace = Pace { rate: 64 << 10, allowed: Span::from_secs(30) };
            let rules = Rules {
                size_bytes: 1 << 20,
                flags: TransmissionFlags::SEND_FLUSH,
                block_bytes_min: 1,
                payload_bytes_max: 32 << 20,
                structured_replies: true,
                block_status: false,
                promises: false,
            };
            let outbox = Outbox::new(&Wire::Nbd { rules, meta_contexts: MetaContexts::EMPTY }, pace);
            Scene { outbox, pool: BufPool::new(), replica: Replica::new(1 << 20, Default::default(), None) }
        }

        fn answer_read(&mut self, length: u32) {
            let request = Request { command: Command::Read, flags: CommandFlags::EMPTY, cookie: 1, offset: 0, length };
            let data = Data::Bytes(self.pool.take(length as usize).freeze());
            let answer = Answer { outcome: Outcome::Done, data, notes: &[], replica: &self.replica };
            let back = self.outbox.reply(&request, answer, Held::one(length.into()), &mut self.pool);
            assert_eq!(back, Held::default(), "held until it is sent");
        }

        fn send_all(&mut self) -> Held {
            let mut back = Held::default();
            while let Some(batch) = self.outbox.take_unsent(Time::ZERO) {
                back.add(self.outbox.sent(Time::ZERO, batch, &mut self.pool));
            }
            back
        }
    }

    /// A connection with more answers than it may have unsent is full until they are sent; then all permits are back.
    #[test]
    fn permits_come_back_with_what_was_sent() {
        let mut s = Scene::new();
        (0..10).for_each(|_| s.answer_read(1 << 20));
        assert!(s.outbox.is_full() && !s.outbox.is_done());
        assert_eq!(s.send_all(), Held { jobs: 10, bytes: 10 << 20 });
        assert!(!s.outbox.is_full() && s.outbox.is_done());
    }

    /// A peer that is gone takes no answers: permits of those on their way, and of later ones, come back at once.
    #[test]
    fn permits_come_back_of_what_is_never_sent() {
        let mut s = Scene::new();
        (0..10).for_each(|_| s.answer_read(1 << 20));
        let batch = s.outbox.take_unsent(Time::ZERO).expect("a batch");
        assert_eq!(s.outbox.lost(Time::ZERO, batch, &mut s.pool), Held { jobs: 10, bytes: 10 << 20 });
        assert!(s.outbox.is_broken() && s.outbox.is_done());
        let request = Request { command: Command::Flush, flags: CommandFlags::EMPTY, cookie: 1, offset: 0, length: 0 };
        let answer = Answer { outcome: Outcome::Done, data: Data::Absent, notes: &[], replica: &s.replica };
        assert_eq!(s.outbox.reply(&request, answer, Held::one(7), &mut s.pool), Held::one(7));
        assert!(s.outbox.take_unsent(Time::ZERO).is_none());
    }

    /// A connection's buffers for answers shrink again after the largest one.
    #[test]
    fn a_connection_keeps_a_small_buffer_for_its_answers() {
        let mut s = Scene::new();
        let mut kept = Vec::new();
        for answers in [1, 5000, 1, 3, 20_000, 2] {
            (0..answers).for_each(|_| s.answer_read(512));
            s.send_all();
            let unsent = &s.outbox.unsent.batch.bytes;
            assert!(unsent.is_empty() && unsent.capacity() <= KEPT_BYTES, "{} bytes are kept", unsent.capacity());
            kept.push(unsent.capacity() > 0);
        }
        assert_eq!(kept, [true, false, true, true, false, true], "small ones are used again");
    }
}
