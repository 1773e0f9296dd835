//! NVMe/TCP on a connection: its commands as the engine's requests, and outcomes as statuses.

use plimsoll_base::{IoError, Outcome};
use plimsoll_nbd::request::Request;
use plimsoll_nbd::wire::{Command, CommandFlags};
use plimsoll_nvme::command::Status;
use plimsoll_nvme::opening::Terms;
use plimsoll_nvme::pdu::Fault;
use plimsoll_nvme::queue::{IoCommand, IoOp, Namespace, Queue, Replies};
use std::collections::VecDeque;

/// A host: its identifier and its NQN, as one number. A host that claims only one of the two of another host isn't that host.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct HostId(pub [u8; 16]);

/// An I/O queue that was connected.
#[derive(Clone, Debug)]
pub struct QueueParams {
    /// The host.
    pub host: HostId,
    /// Terms of the connection.
    pub terms: Terms,
    /// The namespace, which decides on commands.
    pub namespace: Namespace,
    /// The connection's answers so far.
    pub replies: Replies,
}

/// Receiving side of an I/O queue, beside what all connections have.
pub struct Receiving {
    /// The protocol's state.
    pub queue: Queue,
    /// Writes whose data can't be asked for yet: one write's data are on their way at a time.
    pub waiting: VecDeque<Request>,
    entries: usize,
    /// Position in the payload at which the data began that are being received.
    data_from: Option<usize>,
    /// Data of the payload were damaged on their way.
    is_damaged: bool,
}

impl Receiving {
    /// A queue that has received nothing.
    pub fn new(params: &QueueParams) -> Receiving {
        let entries = usize::from(params.terms.entries);
        let queue = Queue::new(params.terms, params.namespace);
        Receiving { queue, waiting: VecDeque::with_capacity(entries), entries, data_from: None, is_damaged: false }
    }

    /// True if data of a write are being received.
    #[inline]
    pub fn is_in_data(&self) -> bool {
        self.data_from.is_some()
    }

    /// Data for a payload of which `filled` bytes are there come next.
    pub fn begin_data(&mut self, filled: usize) {
        self.data_from = Some(filled);
    }

    /// Moves data from `have` to a payload: the bytes taken, and whether the data are all there.
    pub fn take_data(&mut self, have: &[u8], payload: &mut [u8], filled: &mut usize) -> (usize, bool) {
        let from = self.data_from.expect("data are being received");
        let n = self.queue.data_left().min(have.len());
        payload[*filled..*filled + n].copy_from_slice(&have[..n]);
        *filled += n;
        self.queue.took_data(n);
        let trailer = self.queue.trailer_bytes();
        if self.queue.data_left() > 0 || have.len() < n + trailer {
            return (n, false);
        }
        self.data_from = None;
        self.is_damaged |= !self.queue.data_are_right(&payload[from..*filled], &have[n..n + trailer]);
        (n + trailer, true)
    }

    /// The payload is whole. True if some of it was damaged on its way: its write ends with a status, and changes nothing.
    pub fn has_fetched(&mut self) -> bool {
        self.queue.has_fetched();
        std::mem::take(&mut self.is_damaged)
    }

    /// A write waits until its data can be asked for.
    ///
    /// # Errors
    /// If more wait than the queue has entries.
    pub fn wait(&mut self, request: Request) -> Result<(), Fault> {
        if self.waiting.len() == self.entries {
            return Err(Fault::Sequence);
        }
        self.waiting.push_back(request);
        Ok(())
    }
}

/// A command as a request; `None` for one that is done already.
#[inline]
pub fn request_of(c: &IoCommand) -> Option<Request> {
    let fua = |durable| if durable { CommandFlags::FUA } else { CommandFlags::EMPTY };
    let (command, flags) = match c.op {
        IoOp::Read => (Command::Read, CommandFlags::EMPTY),
        IoOp::Write { durable } => (Command::Write, fua(durable)),
        IoOp::Flush => (Command::Flush, CommandFlags::EMPTY),
        IoOp::WriteZeroes { durable, deallocates: true } => (Command::WriteZeroes, fua(durable)),
        IoOp::WriteZeroes { durable, deallocates: false } => {
            (Command::WriteZeroes, fua(durable).with(CommandFlags::NO_HOLE))
        }
        IoOp::Deallocate => (Command::Trim, CommandFlags::EMPTY),
        IoOp::Nothing => return None,
    };
    Some(Request { command, flags, cookie: c.id.into(), offset: c.offset, length: c.length })
}

/// The host's number of a request.
#[inline]
pub fn id_of(request: &Request) -> u16 {
    request.cookie as u16
}

/// The end of a command. Busy is a status of the path: a host takes another, or sends the command again.
pub fn status_of(command: Command, outcome: Outcome) -> Status {
    match outcome {
        Outcome::Done => Status::OK,
        Outcome::Busy { .. } => Status::INACCESSIBLE,
        Outcome::Failed(e) => match e {
            IoError::Device if command == Command::Read => Status::UNRECOVERED_READ,
            IoError::Device => Status::WRITE_FAULT,
            IoError::FlushFailed => Status::INTERNAL,
            IoError::Cancelled => Status::ABORTED,
            IoError::NoSpace => Status::CAPACITY,
            IoError::Invalid | IoError::NotSupported => Status::INVALID_FIELD,
            IoError::ReadOnly => Status::WRITE_PROTECTED,
            IoError::Unavailable => Status::INACCESSIBLE,
        },
    }
}

#[cfg(test)]
pub mod fixture {
    //! An I/O queue that a host has just connected, for tests.

    use super::*;
    use plimsoll_nvme::host::{Command as HostCommand, connect_data, parameters};
    use plimsoll_nvme::{opening::Opening, pdu::Digests};

    /// The queue, of 32 entries and a namespace of 512 MiB, and the target's bytes until then.
    pub fn connected(digests: bool) -> (QueueParams, Vec<u8>) {
        let digests = Digests { header: digests, data: digests };
        let mut bytes = parameters(digests).to_vec();
        let data = connect_data(1, [1; 16], "nqn.h", "nqn.s");
        HostCommand::connect(0, 1, 32, 0, false).send(&mut bytes, digests, &data);
        let mut opening = Opening::default();
        opening.take(&mut &bytes[..]).unwrap().expect("a Connect");
        let (terms, replies) = opening.accept(1);
        let namespace = Namespace { blocks: 1 << 20, read_only: false };
        (QueueParams { host: HostId([1; 16]), terms, namespace, replies }, opening.output().clone())
    }
}
