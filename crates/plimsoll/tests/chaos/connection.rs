//! A connection whose answers are taken when they have come, so that one thread drives many.

use plimsoll_base::Op;
use plimsoll_chaos::{Asked, Flag};
use plimsoll_nbd::client::{ClientEvent, ClientHandshake, Wishes};
use plimsoll_nbd::request::Request;
use plimsoll_nbd::transactions::{Reply, Transactions};
use plimsoll_nbd::wire::{Command, CommandFlags};
use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// No single send or handshake takes longer.
const TIME_MAX: Duration = Duration::from_secs(60);

/// An answer: of which request, and how it ended.
pub struct Answer {
    pub request: u64,
    pub op: Op,
    pub ended: Result<Vec<u8>, String>,
    /// Of a block status: lengths, and whether they are zeroes.
    pub extents: Vec<(u64, bool)>,
}

/// A flag that the command doesn't have: one of another command's, or one that no command has.
fn foreign(op: Op, n: u64) -> CommandFlags {
    let known = if op == Op::Read { CommandFlags::REQ_ONE } else { CommandFlags::DF };
    [known, CommandFlags::from_wire(1 << 5), CommandFlags::from_wire(1 << 15)][n as usize % 3]
}

struct Partial {
    op: Op,
    offset: u64,
    ended: Result<Vec<u8>, String>,
    extents: Vec<(u64, bool)>,
}

pub struct Connection {
    stream: UnixStream,
    transactions: Transactions,
    received: Vec<u8>,
    partial: BTreeMap<u64, Partial>,
    /// Reads are answered with an error if they would be late.
    pub may_be_refused: bool,
    /// Its replies are structured; without, it has neither DF nor block status.
    pub structured: bool,
}

impl Connection {
    /// Opens `export` with structured replies or without.
    pub fn open(socket: &Path, export: &str, structured: bool) -> io::Result<Connection> {
        let mut stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(TIME_MAX))?;
        stream.set_write_timeout(Some(TIME_MAX))?;
        let mut handshake = ClientHandshake::new(Wishes { structured_replies: structured, ..Wishes::open(export) });
        let mut received = Vec::new();
        loop {
            stream.write_all(handshake.output())?;
            handshake.output_sent(handshake.output().len());
            match handshake.poll_event() {
                Some(ClientEvent::Transmission(opened)) => {
                    let ids = opened.meta_contexts.iter().map(|c| c.0).collect();
                    let transactions = Transactions::new(opened.structured_replies, ids);
                    if opened.structured_replies != structured {
                        return Err(io::Error::other("structured replies weren't negotiated as asked"));
                    }
                    return Ok(Connection {
                        stream,
                        transactions,
                        received,
                        partial: BTreeMap::new(),
                        may_be_refused: export.contains("busy=error"),
                        structured,
                    });
                }
                Some(other) => return Err(io::Error::other(format!("{other:?}"))),
                None => {}
            }
            if received.is_empty() {
                let mut some = [0; 4096];
                let n = stream.read(&mut some)?;
                if n == 0 {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                received.extend_from_slice(&some[..n]);
            }
            let taken = handshake.handle(&received);
            received.drain(..taken);
        }
    }

    /// Returns true if the server must refuse this on this connection.
    pub fn refuses(&self, asked: &Asked) -> bool {
        let foreign = asked.flag == Flag::Foreign;
        foreign || (!self.structured && (asked.flag == Flag::OneChunk || asked.op == Op::BlockStatus))
    }

    /// Sends a request under the number `n`.
    pub fn send(&mut self, n: u64, asked: &Asked, payload: &[u8]) -> io::Result<()> {
        let Asked { op, offset, len: length, fua, flag, .. } = *asked;
        let command = match op {
            Op::Read => Command::Read,
            Op::Write => Command::Write,
            Op::Flush => Command::Flush,
            Op::Trim => Command::Trim,
            Op::WriteZeroes => Command::WriteZeroes,
            Op::Cache => Command::Cache,
            Op::BlockStatus => Command::BlockStatus,
        };
        let flags = if fua { CommandFlags::FUA } else { CommandFlags::EMPTY };
        let flags = flags.with(match flag {
            Flag::None => CommandFlags::EMPTY,
            Flag::NoHole => CommandFlags::NO_HOLE,
            Flag::FastZero => CommandFlags::FAST_ZERO,
            Flag::FastNoHole => CommandFlags::NO_HOLE.with(CommandFlags::FAST_ZERO),
            Flag::OneChunk => CommandFlags::DF,
            Flag::OneExtent => CommandFlags::REQ_ONE,
            Flag::Foreign => foreign(op, n),
        });
        let mut out = Vec::new();
        let request = Request { command, flags, cookie: n, offset, length: length as u32 };
        self.transactions.submit(&mut out, request).map_err(|e| io::Error::other(format!("{e:?}")))?;
        let bytes = vec![0; if op == Op::Read { length as usize } else { 0 }];
        self.partial.insert(n, Partial { op, offset, ended: Ok(bytes), extents: Vec::new() });
        out.extend_from_slice(payload);
        self.stream.write_all(&out)
    }

    /// The next answer of those that were received.
    pub fn next_answer(&mut self) -> io::Result<Option<Answer>> {
        let mut rest = &self.received[..];
        let mut answer = None;
        while answer.is_none()
            && let Some(reply) = self.transactions.poll(&mut rest).map_err(|e| io::Error::other(format!("{e:?}")))?
        {
            match reply {
                Reply::Data { cookie, offset, bytes } => {
                    let p = self.partial.get_mut(&cookie).expect("it was sent");
                    let at = (offset - p.offset) as usize;
                    if let Ok(data) = &mut p.ended {
                        data[at..at + bytes.len()].copy_from_slice(bytes);
                    }
                }
                Reply::Hole { .. } | Reply::Notes { .. } => {}
                Reply::Status { cookie, extents, .. } => {
                    let p = self.partial.get_mut(&cookie).expect("it was sent");
                    // Bit 1: reads as zeroes.
                    p.extents = extents.iter().map(|e| (u64::from(e.length), e.status & 2 != 0)).collect();
                }
                Reply::Error { cookie, code, message, .. } => {
                    self.partial.get_mut(&cookie).expect("it was sent").ended = Err(format!("{code}: {message}"));
                }
                Reply::Done { cookie } => {
                    let Partial { op, ended, extents, .. } = self.partial.remove(&cookie).expect("it was sent");
                    answer = Some(Answer { request: cookie, op, ended, extents });
                }
            }
        }
        let taken = self.received.len() - rest.len();
        self.received.drain(..taken);
        Ok(answer)
    }

    /// Receives once; it is known that there is something.
    pub fn receive(&mut self) -> io::Result<()> {
        let mut some = vec![0; 1 << 16];
        let n = self.stream.read(&mut some)?;
        if n == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.received.extend_from_slice(&some[..n]);
        Ok(())
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}
