//! Receiving side of a connection: bytes in, requests out.

use super::conn::Wire;
use super::nvme::{self, Receiving};
use super::ring::RecvInto;
use crate::planted::{self, Mistake};
use plimsoll_base::{BufMut, BufPool, Data, Span, Time};
use plimsoll_nbd::request::{Incoming, RefusedRequest, Request, Rules};
use plimsoll_nbd::wire::{Command, REQUEST_BYTES, REQUEST_MAGIC};
use plimsoll_nvme::command::Status;
use plimsoll_nvme::pdu::Fault;
use plimsoll_nvme::queue::{Next, ReadyToTransfer};

/// Bytes received but not yet understood are at most this many.
pub const RECV_BYTES: usize = 256 << 10;
/// Payloads of writes up to this size are received into the connection's own buffer: their requests take a permit, and
/// a block of memory, when all their bytes are there. Larger ones are announced (see `permits.rs`).
pub const BUFFERED_PAYLOAD_BYTES: usize = 32 << 10;

/// A request that is ready to go into the stack.
pub struct Ready {
    /// As the client sent it.
    pub request: Request,
    /// A write's bytes.
    pub data: Data,
    /// Its arrival, if it had to wait for a permit since.
    pub waited_since: Option<Time>,
}

/// The next of a client's messages.
pub enum Heard {
    /// A complete request.
    Asks(Request),
    /// A write whose bytes need room of their own before they are received.
    Announces(Request),
    /// A write that was announced, now with its bytes.
    Ready(Ready),
    /// The same, and the bytes aren't those that the host sent.
    Damaged(Ready),
    /// A request that is answered without being served. Its payload is skipped.
    Refused(RefusedRequest),
    /// More bytes are needed.
    NeedBytes,
    /// The client ends the session.
    Disconnects,
    /// Bytes that are no NBD.
    Nonsense,
    /// An NVMe command that ended without being served.
    Completed(u16, Status),
    /// Bytes that are no NVMe/TCP.
    Faulty(Fault),
}

/// The protocol of what is received.
enum Dialect {
    Nbd(Rules),
    Nvme(Box<Receiving>),
}

/// True if an NBD request is a write whose bytes need room of their own before they are received.
#[inline]
fn is_announced(request: &Request) -> bool {
    request.command == Command::Write && request.length as usize > BUFFERED_PAYLOAD_BYTES
}

/// True for the bytes of an NBD disconnect request.
pub fn is_disconnect(bytes: &[u8]) -> bool {
    let disconnect = Command::Disconnect as u16;
    bytes.len() == REQUEST_BYTES
        && bytes.starts_with(&REQUEST_MAGIC.to_be_bytes())
        && bytes[6..8] == disconnect.to_be_bytes()
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

struct Payload {
    request: Request,
    buf: BufMut,
    filled: usize,
    waited_since: Option<Time>,
    /// Time that the node has waited for it; it passes only while the node reads the socket.
    waited: Span,
}

impl Payload {
    #[inline]
    fn is_whole(&self) -> bool {
        self.filled == self.request.length as usize
    }

    /// Its request, now with all bytes.
    fn ready(self) -> Ready {
        Ready { request: self.request, data: Data::Bytes(self.buf.freeze()), waited_since: self.waited_since }
    }
}

/// True if the next bytes from the client are a payload's rest only.
#[inline]
fn comes_alone(dialect: &Dialect, p: &Payload) -> bool {
    match dialect {
        Dialect::Nbd(_) => true,
        Dialect::Nvme(receiving) => {
            let left = receiving.queue.data_left();
            left > 0 && left == p.request.length as usize - p.filled
        }
    }
}

/// See the module's documentation.
pub struct Inbox {
    dialect: Dialect,
    /// Absent while the kernel fills it.
    buffer: Option<Box<[u8]>>,
    have: std::ops::Range<usize>,
    payload: Option<Payload>,
    skip: u64,
    /// Bytes to skip behind the payload of the request that is to be admitted.
    trailer: usize,
    /// A receive is under way.
    receiving: bool,
    /// Since when.
    receives_since: Time,
}

impl Inbox {
    /// An inbox whose first bytes, `early`, arrived with the handshake.
    pub fn new(wire: &Wire, early: &[u8]) -> Inbox {
        let mut buffer = vec![0; RECV_BYTES.max(early.len())].into_boxed_slice();
        buffer[..early.len()].copy_from_slice(early);
        Inbox {
            dialect: match wire {
                Wire::Nbd { rules, .. } => Dialect::Nbd(*rules),
                Wire::Nvme(params) => Dialect::Nvme(Box::new(Receiving::new(params))),
            },
            buffer: Some(buffer),
            have: 0..early.len(),
            payload: None,
            skip: 0,
            trailer: 0,
            receiving: false,
            receives_since: Time::ZERO,
        }
    }

    /// True if a receive is under way.
    #[inline]
    pub fn is_receiving(&self) -> bool {
        self.receiving
    }

    /// True if something could be understood though no more is received: bytes, a payload that is whole, or a write whose data can be asked
    /// for now.
    #[inline]
    pub fn has_received(&self) -> bool {
        let waits = || matches!(&self.dialect, Dialect::Nvme(receiving) if !receiving.waiting.is_empty());
        !self.have.is_empty() || self.payload.as_ref().map_or_else(waits, Payload::is_whole)
    }

    /// True if the protocol is NBD.
    pub fn is_nbd(&self) -> bool {
        matches!(self.dialect, Dialect::Nbd(_))
    }

    /// True if what is here and `unread`, which comes after it, ends with an NBD disconnect. A payload's bytes that look like one are taken for
    /// it: they are the client's own.
    pub fn ends_with_disconnect(&self, unread: &[u8]) -> bool {
        let here = self.buffer.as_deref().map_or(&[][..], |buffer| &buffer[self.have.clone()]);
        let from_here = REQUEST_BYTES.saturating_sub(unread.len()).min(here.len());
        let end = [&here[here.len() - from_here..], &unread[unread.len().saturating_sub(REQUEST_BYTES)..]].concat();
        is_disconnect(&end)
    }

    /// Begins a receive. Returns the place of the next bytes.
    #[inline]
    pub fn receive(&mut self, now: Time) -> RecvInto {
        self.receiving = true;
        self.receives_since = now;
        if self.have.is_empty()
            && let Some(p) = &mut self.payload
            && comes_alone(&self.dialect, p)
        {
            return RecvInto::Payload(std::mem::replace(&mut p.buf, BufMut::zeroed(0)), p.filled);
        }
        let mut buffer = self.buffer.take().expect("not receiving, so the buffer is here");
        if self.have.start > 0 {
            buffer.copy_within(self.have.clone(), 0);
            self.have = 0..self.have.len();
        }
        RecvInto::Buffer(buffer, self.have.end)
    }

    /// A receive has ended: `n` bytes have arrived at the place of [`Inbox::receive`].
    #[inline]
    pub fn received(&mut self, now: Time, into: RecvInto, n: usize) {
        self.receiving = false;
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
                if let Dialect::Nvme(receiving) = &mut self.dialect {
                    receiving.queue.took_data(n);
                }
            }
        }
    }

    /// Understands the next message of what was received.
    pub fn next(&mut self) -> Heard {
        match self.dialect {
            Dialect::Nbd(rules) => self.next_nbd(&rules),
            Dialect::Nvme(_) => self.next_nvme(),
        }
    }

    fn next_nvme(&mut self) -> Heard {
        let Inbox { dialect: Dialect::Nvme(receiving), buffer, have, payload, trailer, .. } = self else {
            unreachable!("it's NVMe");
        };
        let buffer = buffer.as_ref().expect("not receiving");
        loop {
            if receiving.is_in_data() {
                let p = payload.as_mut().expect("data are asked for when there is room");
                let (taken, are_there) =
                    receiving.take_data(&buffer[have.clone()], p.buf.as_mut_slice(), &mut p.filled);
                have.start += taken;
                if !are_there {
                    return Heard::NeedBytes;
                }
                if p.is_whole() {
                    let ready = payload.take().expect("just seen").ready();
                    return if receiving.has_fetched() { Heard::Damaged(ready) } else { Heard::Ready(ready) };
                }
            }
            if payload.is_none()
                && let Some(request) = receiving.waiting.pop_front()
            {
                return Heard::Announces(request);
            }
            match receiving.queue.next(&buffer[have.clone()]) {
                Ok(Next::NeedBytes) => return Heard::NeedBytes,
                Ok(Next::Data { head }) => {
                    have.start += head;
                    receiving.begin_data(payload.as_ref().map_or(0, |p| p.filled));
                }
                Ok(Next::Serve { command, data, taken }) => {
                    let Some(request) = nvme::request_of(&command) else {
                        have.start += taken;
                        return Heard::Completed(command.id, Status::OK);
                    };
                    let is_write = request.command == Command::Write;
                    have.start += if is_write { data.start } else { taken };
                    *trailer = if is_write { taken - data.end } else { 0 };
                    return Heard::Asks(request);
                }
                Ok(Next::Fetch { command, taken }) => {
                    have.start += taken;
                    let request = nvme::request_of(&command).expect("a write");
                    if let Err(fault) = receiving.wait(request) {
                        return Heard::Faulty(fault);
                    }
                }
                Ok(Next::Refuse { id, status, taken }) => {
                    have.start += taken;
                    return Heard::Completed(id, status);
                }
                Err(fault) => return Heard::Faulty(fault),
            }
        }
    }

    /// Received and not understood.
    pub fn received_bytes(&self) -> &[u8] {
        self.buffer.as_ref().map_or(&[], |b| &b[self.have.clone()])
    }

    fn next_nbd(&mut self, rules: &Rules) -> Heard {
        if let Some(ready) = self.finish_payload() {
            return Heard::Ready(ready);
        }
        if self.payload.is_some() {
            return Heard::NeedBytes;
        }
        let skipped = self.skip.min(self.have.len() as u64) as usize;
        self.skip -= skipped as u64;
        self.have.start += skipped;
        if self.have.len() < REQUEST_BYTES || self.skip > 0 {
            return Heard::NeedBytes;
        }
        let buffer = self.buffer.as_ref().expect("not receiving");
        let header = buffer[self.have.start..][..REQUEST_BYTES].try_into().expect("a header's length");
        let Ok(incoming) = rules.judge(header) else { return Heard::Nonsense };
        if let Incoming::Serve(request) = &incoming
            && request.command == Command::Write
            && !is_announced(request)
            && self.have.len() < REQUEST_BYTES + request.length as usize
        {
            return Heard::NeedBytes;
        }
        self.have.start += REQUEST_BYTES;
        match incoming {
            Incoming::Disconnect => Heard::Disconnects,
            Incoming::Refuse(r) => {
                self.skip = u64::from(r.skip_bytes);
                Heard::Refused(r)
            }
            Incoming::Serve(request) if is_announced(&request) => Heard::Announces(request),
            Incoming::Serve(request) => Heard::Asks(request),
        }
    }

    /// Takes a complete request's payload out of the buffer.
    #[inline]
    pub fn admit(&mut self, request: Request, waited_since: Option<Time>, pool: &mut BufPool) -> Ready {
        if request.command != Command::Write {
            return Ready { request, data: Data::Absent, waited_since };
        }
        let len = request.length as usize;
        let mut buf = pool.take(len);
        let buffer = self.buffer.as_ref().expect("not receiving");
        buf.as_mut_slice().copy_from_slice(&buffer[self.have.start..][..len]);
        self.have.start += len + std::mem::take(&mut self.trailer);
        Ready { request, data: Data::Bytes(buf.freeze()), waited_since }
    }

    /// Prepares room for an announced write's payload, which is received next. An NVMe host must be asked for it.
    pub fn expect_payload(
        &mut self,
        request: Request,
        waited_since: Option<Time>,
        pool: &mut BufPool,
    ) -> Option<ReadyToTransfer> {
        let buf = pool.take(request.length as usize);
        self.payload = Some(Payload { buf, request, filled: 0, waited_since, waited: Span::ZERO });
        match &mut self.dialect {
            Dialect::Nbd(_) => None,
            Dialect::Nvme(receiving) => Some(receiving.queue.fetch(nvme::id_of(&request), request.length)),
        }
    }

    /// The payload that is being received. Time in which the node itself doesn't read the socket isn't the client's.
    pub fn transfer(&self, now: Time) -> Option<Transfer> {
        let silent = if self.receiving { now.since(self.receives_since) } else { Span::ZERO };
        self.payload.as_ref().map(|p| Transfer {
            took: p.waited + silent,
            silent,
            done: p.filled as u64,
            whole: u64::from(p.request.length),
        })
    }

    /// Moves what the buffer has of the payload; the request if that was the rest.
    #[inline]
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
        Some(self.payload.take().expect("just seen").ready())
    }

    /// Drops what was received and not understood yet.
    pub fn clear(&mut self) {
        self.have.start = self.have.end;
    }

    /// Gives an unfinished payload's block back. Returns the payload's bytes, whose room is to be given back.
    pub fn abandon_payload(&mut self, pool: &mut BufPool) -> Option<u64> {
        let p = self.payload.take()?;
        if planted::is(Mistake::PayloadsLost) {
            std::mem::forget(p.buf);
        } else {
            pool.give(p.buf.freeze());
        }
        Some(u64::from(p.request.length))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_nbd::wire::{CommandFlags, TransmissionFlags};
    use proptest::prelude::*;

    fn inbox() -> Inbox {
        let rules = Rules {
            size_bytes: 1 << 20,
            flags: TransmissionFlags::SEND_FLUSH.with(TransmissionFlags::SEND_TRIM),
            block_bytes_min: 1,
            payload_bytes_max: 1 << 16,
            structured_replies: true,
            block_status: false,
            promises: false,
        };
        Inbox::new(&Wire::Nbd { rules, meta_contexts: plimsoll_nbd::wire::MetaContexts::EMPTY }, &[])
    }

    /// Plays the kernel and the pool: `bytes` come in pieces of at most `piece`, every request gets its permit at once.
    fn understood(mut inbox: Inbox, bytes: &[u8], piece: usize) -> Vec<String> {
        let (mut pool, mut rest, mut seen) = (BufPool::new(), bytes, Vec::new());
        let note = |ready: &Ready| {
            let mut payload = Vec::new();
            if let Data::Bytes(b) = &ready.data {
                payload.extend_from_slice(b.as_slice());
            }
            format!("{:?} {payload:?}", ready.request)
        };
        'session: loop {
            let mut into = inbox.receive(Time::ZERO);
            let room = match &mut into {
                RecvInto::Buffer(b, start) => &mut b[*start..],
                RecvInto::Payload(b, start) => &mut b.as_mut_slice()[*start..],
            };
            let n = room.len().min(rest.len()).min(piece);
            room[..n].copy_from_slice(&rest[..n]);
            rest = &rest[n..];
            inbox.received(Time::ZERO, into, n);
            loop {
                match inbox.next() {
                    Heard::NeedBytes => break,
                    Heard::Disconnects => seen.push("disconnects".to_string()),
                    Heard::Nonsense => seen.push("nonsense".to_string()),
                    Heard::Completed(id, status) => {
                        seen.push(format!("{id} {status:?}"));
                        continue;
                    }
                    Heard::Faulty(fault) => seen.push(fault.to_string()),
                    Heard::Refused(r) => {
                        seen.push(format!("{r:?}"));
                        continue;
                    }
                    Heard::Announces(request) => {
                        inbox.expect_payload(request, None, &mut pool);
                        continue;
                    }
                    Heard::Asks(request) => {
                        seen.push(note(&inbox.admit(request, None, &mut pool)));
                        continue;
                    }
                    Heard::Ready(ready) => {
                        seen.push(note(&ready));
                        continue;
                    }
                    Heard::Damaged(ready) => {
                        seen.push(format!("damaged {}", note(&ready)));
                        continue;
                    }
                }
                break 'session;
            }
            if n == 0 {
                break;
            }
        }
        seen
    }

    /// While the node doesn't read a socket because its client has too many answers to take, a payload's time stands still.
    #[test]
    fn a_payloads_time_runs_only_while_the_node_reads() {
        let (mut inbox, mut pool) = (inbox(), BufPool::new());
        let at = |s| Time::ZERO + Span::from_secs(s);
        let receive = |inbox: &mut Inbox, asked: u64, came: u64, n: usize| {
            let into = inbox.receive(at(asked));
            assert_eq!(inbox.transfer(at(came)).map(|t| t.silent), Some(Span::from_secs(came - asked)));
            inbox.received(at(came), into, n);
            assert!(matches!(inbox.next(), Heard::NeedBytes));
        };
        let took = |inbox: &Inbox, now| {
            let t = inbox.transfer(at(now)).expect("a payload");
            (t.took, t.silent, t.done)
        };
        let flags = CommandFlags::EMPTY;
        let write = Request { command: Command::Write, flags, cookie: 1, offset: 0, length: 1 << 20 };
        inbox.expect_payload(write, None, &mut pool);
        assert_eq!(took(&inbox, 5), (Span::ZERO, Span::ZERO, 0), "nobody reads yet");
        receive(&mut inbox, 5, 7, 1000);
        assert_eq!(took(&inbox, 7), (Span::from_secs(2), Span::ZERO, 1000));
        assert_eq!(took(&inbox, 9_999), (Span::from_secs(2), Span::ZERO, 1000), "the client could send nothing");
        receive(&mut inbox, 10_000, 10_003, 1000);
        assert_eq!(took(&inbox, 10_004), (Span::from_secs(5), Span::ZERO, 2000));
    }

    /// An I/O queue, and what a host sends on it: reads, and writes whose data are in the capsule or come when they are asked for.
    fn nvme(digests: bool, commands: &[(u8, u32, usize)]) -> (Wire, Vec<u8>) {
        use plimsoll_nvme::host::{Command, Heard};
        let wire = Wire::Nvme(super::nvme::fixture::connected(digests).0);
        let digests = plimsoll_nvme::pdu::Digests { header: digests, data: digests };
        let (mut out, mut tag) = (Vec::new(), 0);
        for (n, &(kind, blocks, piece)) in commands.iter().enumerate() {
            let (id, data) = (n as u16, vec![n as u8; blocks as usize * 512]);
            match kind {
                0 => Command::read(id, 0, blocks).send(&mut out, digests, &[]),
                1 if blocks <= 64 => Command::write(id, 0, blocks, true).send(&mut out, digests, &data),
                _ => {
                    Command::write(id, 0, blocks, false).send(&mut out, digests, &[]);
                    let ready = Heard::Ready { id, tag, offset: 0, length: blocks * 512 };
                    ready.send_data(&mut out, digests, &data, piece);
                    tag += 1;
                }
            }
        }
        (wire, out)
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
            prop_assert_eq!(understood(inbox(), &bytes, piece), understood(inbox(), &bytes, usize::MAX));
        }

        #[test]
        fn how_an_nvme_hosts_bytes_arrive_changes_nothing(
            commands in prop::collection::vec((0u8..3, 1u32..200, 1usize..100_000), 1..12),
            digests: bool,
            damage in prop::option::of(any::<prop::sample::Index>()),
            piece in 1usize..100_000,
        ) {
            let (wire, mut bytes) = nvme(digests, &commands);
            let whole = || understood(Inbox::new(&wire, &[]), &bytes, usize::MAX);
            prop_assert_eq!(whole().len(), commands.len());
            prop_assert_eq!(understood(Inbox::new(&wire, &[]), &bytes, piece), whole());
            if let Some(damage) = damage {
                let at = damage.index(bytes.len());
                bytes[at] ^= 0x10;
                let whole = understood(Inbox::new(&wire, &[]), &bytes, usize::MAX);
                prop_assert_eq!(understood(Inbox::new(&wire, &[]), &bytes, piece), whole);
            }
        }

        #[test]
        fn no_bytes_are_too_strange(bytes in prop::collection::vec(any::<u8>(), 0..300), piece in 1usize..40) {
            prop_assert_eq!(understood(inbox(), &bytes, piece), understood(inbox(), &bytes, usize::MAX));
        }
    }
}
