//! An NVMe/TCP host with one queue, whose answers are taken when they have come.

use crate::connection::Answer;
use plimsoll_base::Op;
use plimsoll_nvme::command::Status;
use plimsoll_nvme::host::{Command, Ear, Heard, connect_data, parameters, range};
use plimsoll_nvme::pdu::Digests;
use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

const HOST: &str = "nqn.2026-11.chaos:host";
const DIGESTS: Digests = Digests { header: true, data: true };
const BLOCK: u64 = 512;
/// Entries of the queue: more than there are requests in flight.
const ENTRIES: u16 = 64;
/// Larger writes are fetched.
const IN_CAPSULE_MAX: u64 = 16 << 10;
const TIME_MAX: Duration = Duration::from_secs(60);

struct Partial {
    request: u64,
    op: Op,
    bytes: Vec<u8>,
    /// Of a write that is fetched.
    payload: Vec<u8>,
}

struct Queue {
    stream: TcpStream,
    ear: Ear,
    received: Vec<u8>,
}

pub struct Host {
    io: Queue,
    /// The controller is there as long as this is.
    _admin: Queue,
    partial: BTreeMap<u16, Partial>,
    last_id: u16,
}

impl Queue {
    fn open(address: &str) -> io::Result<Queue> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(TIME_MAX))?;
        stream.set_write_timeout(Some(TIME_MAX))?;
        let mut queue = Queue { stream, ear: Ear::default(), received: Vec::new() };
        queue.stream.write_all(&parameters(DIGESTS))?;
        match queue.wait()? {
            Heard::Parameters(..) => Ok(queue),
            other => Err(io::Error::other(format!("{other:?}"))),
        }
    }

    fn connect(&mut self, number: u16, controller: u16, nqn: &str) -> io::Result<u16> {
        let data = connect_data(controller, [7; 16], HOST, nqn);
        self.done(Command::connect(0, number, ENTRIES, 0, false), &data).map(|value| value as u16)
    }

    fn send(&mut self, command: &Command, data: &[u8]) -> io::Result<()> {
        let mut out = Vec::new();
        command.send(&mut out, DIGESTS, data);
        self.stream.write_all(&out)
    }

    fn done(&mut self, command: Command, data: &[u8]) -> io::Result<u64> {
        self.send(&command, data)?;
        match self.wait()? {
            Heard::Done { status: Status::OK, value, .. } => Ok(value),
            other => Err(io::Error::other(format!("{other:?}"))),
        }
    }

    fn hear(&mut self) -> io::Result<Option<Heard>> {
        let mut rest = &self.received[..];
        let heard = self.ear.take(&mut rest).map_err(|e| io::Error::other(format!("{e:?}")))?;
        let taken = self.received.len() - rest.len();
        self.received.drain(..taken);
        Ok(heard)
    }

    fn wait(&mut self) -> io::Result<Heard> {
        loop {
            match self.hear()? {
                Some(heard) => return Ok(heard),
                None => self.receive()?,
            }
        }
    }

    fn receive(&mut self) -> io::Result<()> {
        let mut some = vec![0; 1 << 16];
        let n = self.stream.read(&mut some)?;
        if n == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.received.extend_from_slice(&some[..n]);
        Ok(())
    }
}

impl Host {
    pub fn open(address: &str, nqn: &str) -> io::Result<Host> {
        let mut admin = Queue::open(address)?;
        let controller = admin.connect(0, 0xffff, nqn)?;
        admin.done(Command::property_set(0, 0x14, 0x46_0001), &[])?;
        let mut io = Queue::open(address)?;
        io.connect(1, controller, nqn)?;
        Ok(Host { io, _admin: admin, partial: BTreeMap::new(), last_id: 0 })
    }

    /// True if the protocol has such a request.
    pub fn has(op: Op, (offset, length): (u64, u64), fua: bool) -> bool {
        let whole = offset.is_multiple_of(BLOCK) && length.is_multiple_of(BLOCK);
        match op {
            Op::Read | Op::Flush => whole,
            Op::Write | Op::WriteZeroes => whole && length > 0,
            Op::Trim => whole && length > 0 && !fua,
            Op::Cache | Op::BlockStatus => false,
        }
    }

    /// Sends a request under the number `request`.
    pub fn send(
        &mut self,
        request: u64,
        op: Op,
        (offset, length): (u64, u64),
        fua: bool,
        payload: &[u8],
    ) -> io::Result<()> {
        while self.last_id == 0 || self.partial.contains_key(&self.last_id) {
            self.last_id = self.last_id.wrapping_add(1);
        }
        let (id, start, blocks) = (self.last_id, offset / BLOCK, (length / BLOCK) as u32);
        self.last_id = self.last_id.wrapping_add(1);
        let in_capsule = length <= IN_CAPSULE_MAX;
        let command = match op {
            Op::Read => Command::read(id, start, blocks),
            Op::Write => Command::write(id, start, blocks, in_capsule),
            Op::WriteZeroes => Command::write_zeroes(id, start, blocks),
            Op::Trim => Command::deallocate(id, 1),
            Op::Flush => Command::flush(id),
            Op::Cache | Op::BlockStatus => unreachable!("the protocol has none"),
        };
        let command = if fua && op != Op::Flush { command.durable() } else { command };
        let fetched = op == Op::Write && !in_capsule;
        let bytes = vec![0; if op == Op::Read { length as usize } else { 0 }];
        let payload_kept = if fetched { payload.to_vec() } else { Vec::new() };
        self.partial.insert(id, Partial { request, op, bytes, payload: payload_kept });
        match op {
            Op::Trim => self.io.send(&command, &range(start, blocks)),
            _ => self.io.send(&command, if fetched { &[] } else { payload }),
        }
    }

    /// The next answer of those that were received. Data that the node asks for go out.
    pub fn next_answer(&mut self) -> io::Result<Option<Answer>> {
        while let Some(heard) = self.io.hear()? {
            let (id, ended) = match heard {
                Heard::Data { id, offset, data, done } => {
                    let p = self.partial.get_mut(&id).ok_or_else(|| io::Error::other("data of no request"))?;
                    p.bytes[offset as usize..][..data.len()].copy_from_slice(&data);
                    if !done {
                        continue;
                    }
                    (id, Ok(()))
                }
                Heard::Done { id, status: Status::OK, .. } => (id, Ok(())),
                Heard::Done { id, status, .. } => (id, Err(format!("{status:?}"))),
                Heard::Ready { id, .. } => {
                    let p = self.partial.get(&id).ok_or_else(|| io::Error::other("ready for no request"))?;
                    let mut out = Vec::new();
                    heard.send_data(&mut out, DIGESTS, &p.payload, 32 << 10);
                    self.io.stream.write_all(&out)?;
                    continue;
                }
                other => return Err(io::Error::other(format!("{other:?}"))),
            };
            let p = self.partial.remove(&id).ok_or_else(|| io::Error::other("an answer to no request"))?;
            let ended = ended.map(|()| p.bytes);
            return Ok(Some(Answer { request: p.request, op: p.op, ended, extents: Vec::new() }));
        }
        Ok(None)
    }

    /// Receives once; it is known that there is something.
    pub fn receive(&mut self) -> io::Result<()> {
        self.io.receive()
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.io.stream.as_fd()
    }
}
