//! An I/O queue: commands in, completions and data out.
//!
//! [`Queue::next`] looks at the received bytes that were not taken yet, and names the next event in them. Nothing is copied. A
//! write's data come in its capsule, or they are fetched with [`Queue::fetch`], for one write at a time. Commands that arrive
//! meanwhile are parsed meanwhile.

use crate::bytes::{set, u16_at, u32_at, u64_at};
use crate::command::{DataIn, Raw, Status};
use crate::opening::Terms;
use crate::pdu::{DIGEST_BYTES, Digests, Fault, digest};
use crate::wire::{
    BLOCK_BYTES, CAPSULE_DATA_BYTES_MAX, COMMON_BYTES, COMPLETION_BYTES, DEALLOCATE_BLOCKS_MAX, FLAG_LAST,
    FLAG_SUCCESS, H2C_DATA_BYTES_MAX, Kind, NAMESPACE, NAMESPACE_ALL, TRANSFER_BYTES_MAX, fabrics, io_opcode,
};
use std::ops::Range;

const FORCE_UNIT_ACCESS: u32 = 1 << 30;
const DEALLOCATES: u32 = 1 << 25;

/// An I/O command's work.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IoOp {
    /// Read.
    Read,
    /// Write; `durable` is FUA.
    Write {
        /// Durable before it completes.
        durable: bool,
    },
    /// Flush.
    Flush,
    /// Write Zeroes.
    WriteZeroes {
        /// Durable before it completes.
        durable: bool,
        /// The blocks may lose their space.
        deallocates: bool,
    },
    /// Dataset Management, Deallocate.
    Deallocate,
    /// A Dataset Management that only hints: it is done already.
    Nothing,
}

/// An I/O command that can be served as it stands: its blocks are inside the namespace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IoCommand {
    /// The host's number for it.
    pub id: u16,
    /// Its work.
    pub op: IoOp,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub length: u32,
}

/// The next thing among bytes that were received.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Next {
    /// More bytes are needed.
    NeedBytes,
    /// A command; `data` are those of a Write. All up to `taken` is taken once the data have been copied.
    Serve {
        /// The command.
        command: IoCommand,
        /// A Write's data.
        data: Range<usize>,
        /// Bytes of it all.
        taken: usize,
    },
    /// A Write whose data are to be asked for.
    Fetch {
        /// The command.
        command: IoCommand,
        /// Bytes of its capsule.
        taken: usize,
    },
    /// Data follow, of the write that was fetched: [`Queue::took_data`].
    Data {
        /// Bytes of the header before them.
        head: usize,
    },
    /// A command that ends with this status.
    Refuse {
        /// The host's number for it.
        id: u16,
        /// Its end.
        status: Status,
        /// Bytes of its capsule.
        taken: usize,
    },
}

/// A namespace as far as it decides which commands can be served.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Namespace {
    /// Its blocks.
    pub blocks: u64,
    /// The host may not write.
    pub read_only: bool,
}

/// A write whose data were asked for.
#[derive(Clone, Copy, Debug)]
struct Fetched {
    id: u16,
    tag: u16,
    length: u32,
    /// Bytes that came, or that a header announced.
    announced: u32,
}

/// Receiving side of an I/O queue.
#[derive(Debug)]
pub struct Queue {
    digests: Digests,
    namespace: Namespace,
    fetched: Option<Fetched>,
    next_tag: u16,
    /// Data of the PDU that is being received.
    data_left: u32,
}

impl Queue {
    /// A queue that was just connected.
    pub fn new(terms: Terms, namespace: Namespace) -> Queue {
        Queue { digests: terms.digests, namespace, fetched: None, next_tag: 0, data_left: 0 }
    }

    /// Bytes that follow data, when a PDU has them.
    pub fn trailer_bytes(&self) -> usize {
        if self.digests.data { DIGEST_BYTES } else { 0 }
    }

    /// Data that are still to come of the PDU that is being received.
    pub fn data_left(&self) -> usize {
        self.data_left as usize
    }

    /// Records the arrival of `n` bytes.
    ///
    /// # Panics
    /// If that is more than there are.
    pub fn took_data(&mut self, n: usize) {
        assert!(n <= self.data_left(), "{n} bytes of data where {} are left", self.data_left);
        self.data_left -= n as u32;
    }

    /// The data of a PDU, and their digest, are all there. False if they were damaged on their way: then the write ends with
    /// [`Status::TRANSPORT`] once all of its data came.
    pub fn data_are_right(&self, data: &[u8], trailer: &[u8]) -> bool {
        !self.digests.data || digest(data) == u32_at(trailer, 0)
    }

    /// The data of a fetched write are asked for, all at once.
    ///
    /// # Panics
    /// If another write's are.
    pub fn fetch(&mut self, id: u16, length: u32) -> ReadyToTransfer {
        assert!(self.fetched.is_none(), "one write's data are asked for at a time");
        let tag = self.next_tag;
        self.next_tag = self.next_tag.wrapping_add(1);
        self.fetched = Some(Fetched { id, tag, length, announced: 0 });
        ReadyToTransfer { id, tag, length }
    }

    /// All data of the fetched write came.
    pub fn has_fetched(&mut self) {
        self.fetched = None;
    }

    /// Names the next thing in `have`.
    ///
    /// # Errors
    /// A fault: the connection ends.
    ///
    /// # Panics
    /// If data are still to come.
    pub fn next(&mut self, have: &[u8]) -> Result<Next, Fault> {
        assert!(self.data_left == 0, "data are still to come");
        let Some((start, _)) = have.split_first_chunk::<COMMON_BYTES>() else { return Ok(Next::NeedBytes) };
        let data_max = if start[0] == Kind::Command as u8 { CAPSULE_DATA_BYTES_MAX } else { H2C_DATA_BYTES_MAX };
        let kinds = [Kind::Command, Kind::H2cData, Kind::H2cTerm];
        let shape = self.digests.shape(start, &kinds, data_max as usize)?;
        if have.len() < shape.head || (shape.kind != Kind::H2cData && have.len() < shape.whole) {
            return Ok(Next::NeedBytes);
        }
        self.digests.check_header(&shape, have)?;
        match shape.kind {
            Kind::H2cTerm => return Err(Fault::Host(u16_at(have, 8))),
            Kind::H2cData => return self.announce(have, &shape),
            _ => {}
        }
        let raw = Raw::of(have);
        let (id, taken) = (raw.id(), shape.whole);
        if !shape.data_are_right(have) {
            return Ok(Next::Refuse { id, status: Status::TRANSPORT, taken });
        }
        Ok(match self.judge(raw, &have[shape.data()]) {
            Ok((command, DataIn::Transport(_))) if matches!(command.op, IoOp::Write { .. }) => {
                Next::Fetch { command, taken }
            }
            Ok((command, _)) => Next::Serve { command, data: shape.data(), taken },
            Err(status) => Next::Refuse { id, status, taken },
        })
    }

    /// A header says which data follow.
    fn announce(&mut self, have: &[u8], shape: &crate::pdu::Shape) -> Result<Next, Fault> {
        let Some(fetched) = &mut self.fetched else { return Err(Fault::Range) };
        let (id, tag) = (u16_at(have, 8), u16_at(have, 10));
        let (offset, length) = (u32_at(have, 12), u32_at(have, 16));
        if length as usize != shape.data_bytes {
            return Err(Fault::Field(16));
        }
        let fits = length > 0 && offset == fetched.announced && length <= fetched.length - fetched.announced;
        if (id, tag) != (fetched.id, fetched.tag) || !fits {
            return Err(Fault::Range);
        }
        fetched.announced += length;
        if (shape.flags & FLAG_LAST != 0) != (fetched.announced == fetched.length) {
            return Err(Fault::Field(1));
        }
        self.data_left = length;
        Ok(Next::Data { head: shape.head })
    }

    fn judge(&self, raw: Raw<'_>, capsule: &[u8]) -> Result<(IoCommand, DataIn), Status> {
        if raw.opcode() == fabrics::OPCODE {
            return Err(Status::SEQUENCE);
        }
        raw.check_flags()?;
        let namespace = raw.namespace();
        let all = raw.opcode() == io_opcode::FLUSH && namespace == NAMESPACE_ALL;
        if namespace != NAMESPACE && !all {
            return Err(Status::INVALID_NAMESPACE);
        }
        let flags = raw.dword(12);
        let (durable, deallocates) = (flags & FORCE_UNIT_ACCESS != 0, flags & DEALLOCATES != 0);
        let blocks = (flags & 0xffff) + 1;
        let id = raw.id();
        match raw.opcode() {
            io_opcode::FLUSH => Ok((IoCommand { id, op: IoOp::Flush, offset: 0, length: 0 }, DataIn::Transport(0))),
            io_opcode::READ => {
                let command = self.range(id, IoOp::Read, raw.start_block(), blocks)?;
                Ok((command, check_transfer(&command, raw.data(capsule.len())?)?))
            }
            io_opcode::WRITE => {
                let command = self.change(id, IoOp::Write { durable }, raw.start_block(), blocks)?;
                Ok((command, check_transfer(&command, raw.data(capsule.len())?)?))
            }
            io_opcode::WRITE_ZEROES => {
                let op = IoOp::WriteZeroes { durable, deallocates };
                Ok((self.change(id, op, raw.start_block(), blocks)?, DataIn::Transport(0)))
            }
            io_opcode::DATASET_MANAGEMENT => Ok((self.judge_dataset(raw, capsule)?, DataIn::Transport(0))),
            _ => Err(Status::INVALID_OPCODE),
        }
    }

    /// Dataset Management: Identify says that one range is the most.
    fn judge_dataset(&self, raw: Raw<'_>, capsule: &[u8]) -> Result<IoCommand, Status> {
        let id = raw.id();
        if raw.dword(11) & 4 == 0 {
            return Ok(IoCommand { id, op: IoOp::Nothing, offset: 0, length: 0 });
        }
        if raw.dword(10) & 0xff != 0 {
            return Err(Status::SIZE_LIMIT);
        }
        match raw.data(capsule.len())? {
            DataIn::Capsule(16..) => {}
            DataIn::Capsule(_) => return Err(Status::DATA_LENGTH),
            DataIn::Transport(_) => return Err(Status::SGL_TYPE),
        }
        match u32_at(capsule, 4) {
            0 => Ok(IoCommand { id, op: IoOp::Nothing, offset: 0, length: 0 }),
            blocks if blocks > DEALLOCATE_BLOCKS_MAX => Err(Status::SIZE_LIMIT),
            blocks => self.change(id, IoOp::Deallocate, u64_at(capsule, 8), blocks),
        }
    }

    fn change(&self, id: u16, op: IoOp, start: u64, blocks: u32) -> Result<IoCommand, Status> {
        let command = self.range(id, op, start, blocks)?;
        if self.namespace.read_only { Err(Status::WRITE_PROTECTED) } else { Ok(command) }
    }

    fn range(&self, id: u16, op: IoOp, start: u64, blocks: u32) -> Result<IoCommand, Status> {
        let end = start.checked_add(u64::from(blocks)).filter(|end| *end <= self.namespace.blocks);
        if end.is_none() {
            return Err(Status::OUT_OF_RANGE);
        }
        Ok(IoCommand { id, op, offset: start * BLOCK_BYTES, length: blocks * BLOCK_BYTES as u32 })
    }
}

/// Checks that a command's data are as long as its blocks, and not too long.
fn check_transfer(command: &IoCommand, data: DataIn) -> Result<DataIn, Status> {
    let bytes = match (data, command.op) {
        (DataIn::Capsule(_), IoOp::Read) => return Err(Status::SGL_TYPE),
        (DataIn::Capsule(bytes) | DataIn::Transport(bytes), _) => bytes,
    };
    if bytes != command.length {
        return Err(Status::DATA_LENGTH);
    }
    if bytes > TRANSFER_BYTES_MAX { Err(Status::INVALID_FIELD) } else { Ok(data) }
}

/// The target is ready for a write's data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReadyToTransfer {
    id: u16,
    tag: u16,
    length: u32,
}

/// Sending side of a queue.
#[derive(Clone, Debug)]
pub struct Replies {
    terms: Terms,
    /// Entries of the submission queue whose commands have been answered, modulo its size.
    head: u16,
}

impl Replies {
    pub(crate) fn new(terms: Terms) -> Replies {
        Replies { terms, head: 0 }
    }

    /// Appends a completion; `value` is its first two dwords.
    pub fn complete(&mut self, out: &mut Vec<u8>, id: u16, value: u64, status: Status) {
        let head = self.answered();
        self.terms.digests.header(out, (Kind::Response, 0), (0, 4), |pdu| {
            let entry = &mut pdu[COMMON_BYTES..COMMON_BYTES + COMPLETION_BYTES];
            set(entry, 0, &value.to_le_bytes());
            set(entry, 8, &head.to_le_bytes());
            set(entry, 12, &id.to_le_bytes());
            set(entry, 14, &(status.to_wire() << 1).to_le_bytes());
        });
    }

    /// A command is being answered: the head that its completion tells.
    fn answered(&mut self) -> u16 {
        if !self.terms.flow_control {
            return 0xffff;
        }
        self.head = (self.head + 1) % self.terms.entries.max(1);
        self.head
    }

    /// Appends what comes before `bytes` of data that answer a command.
    pub fn data_header(&self, out: &mut Vec<u8>, id: u16, bytes: u32) {
        // Without flow control a success that tells of nothing else needs no completion.
        let flags = FLAG_LAST | if self.terms.flow_control { 0 } else { FLAG_SUCCESS };
        let aligned = (bytes as usize, self.terms.alignment);
        self.terms.digests.header(out, (Kind::C2hData, flags), aligned, |pdu| {
            set(pdu, 8, &id.to_le_bytes());
            set(pdu, 16, &bytes.to_le_bytes());
        });
    }

    /// True if data have a digest.
    pub fn has_data_digest(&self) -> bool {
        self.terms.digests.data
    }

    /// Appends what comes after data: their digest, where data have one, and the completion.
    pub fn data_trailer(&mut self, out: &mut Vec<u8>, id: u16, digest: u32) {
        if self.terms.digests.data {
            out.extend_from_slice(&digest.to_le_bytes());
        }
        if self.terms.flow_control {
            self.complete(out, id, 0, Status::OK);
        }
    }

    /// Appends a whole answer with its data.
    pub fn data(&mut self, out: &mut Vec<u8>, id: u16, data: &[u8]) {
        self.data_header(out, id, data.len() as u32);
        out.extend_from_slice(data);
        let right = if self.has_data_digest() { digest(data) } else { 0 };
        self.data_trailer(out, id, right);
    }

    /// Appends the request for a write's data.
    pub fn ready_to_transfer(&self, out: &mut Vec<u8>, r2t: ReadyToTransfer) {
        self.terms.digests.header(out, (Kind::R2t, 0), (0, 4), |pdu| {
            set(pdu, 8, &r2t.id.to_le_bytes());
            set(pdu, 10, &r2t.tag.to_le_bytes());
            set(pdu, 16, &r2t.length.to_le_bytes());
        });
    }
}
