//! A host's side, as far as tests and load generators need it: commands in their PDUs, and a target's PDUs taken apart.

use crate::auth::{PROTOCOL, PROTOCOL_SPECIFIC};
use crate::bytes::{set, set_text, u16_at, u32_at, u64_at};
use crate::command::Status;
use crate::pdu::{Digests, Fault, Gathered, common, digest};
use crate::wire::{
    COMMAND_BYTES, CONNECT_DATA_BYTES, FLAG_LAST, FLAG_SUCCESS, Kind, NAMESPACE, TRANSFER_BYTES_MAX, admin_opcode,
    fabrics, io_opcode,
};

/// A command that is being made.
#[derive(Clone, Copy, Debug)]
pub struct Command(pub [u8; COMMAND_BYTES]);

impl Command {
    fn new(opcode: u8, id: u16, namespace: u32) -> Command {
        let mut b = [0; COMMAND_BYTES];
        (b[0], b[1]) = (opcode, 0x40);
        set(&mut b, 2, &id.to_le_bytes());
        set(&mut b, 4, &namespace.to_le_bytes());
        Command(b)
    }

    /// Sets command dword `n`.
    #[must_use]
    pub fn dword(mut self, n: usize, value: u32) -> Command {
        set(&mut self.0, n * 4, &value.to_le_bytes());
        self
    }

    /// Its data, `bytes` of them, come in the capsule, or go over the transport.
    #[must_use]
    pub fn data(mut self, bytes: u32, in_capsule: bool) -> Command {
        set(&mut self.0, 32, &bytes.to_le_bytes());
        self.0[39] = if in_capsule { 0x01 } else { 0x5a };
        self
    }

    fn blocks(self, start: u64, blocks: u32) -> Command {
        self.dword(10, start as u32).dword(11, (start >> 32) as u32).dword(12, blocks - 1)
    }

    /// Connect; its data are [`connect_data`].
    pub fn connect(id: u16, queue: u16, entries: u16, keep_alive_ms: u32, flow_control: bool) -> Command {
        let mut command = Command::new(fabrics::OPCODE, id, u32::from(fabrics::CONNECT));
        set(&mut command.0, 42, &queue.to_le_bytes());
        set(&mut command.0, 44, &(entries - 1).to_le_bytes());
        command.0[46] = if flow_control { 0 } else { 4 };
        command.dword(12, keep_alive_ms).data(CONNECT_DATA_BYTES as u32, true)
    }

    /// Authentication Send of a message of `bytes`, in the capsule.
    pub fn authentication_send(id: u16, bytes: u32) -> Command {
        Command::authentication(fabrics::AUTHENTICATION_SEND, id, bytes, true)
    }

    /// Authentication Receive of a message of at most `bytes`.
    pub fn authentication_receive(id: u16, bytes: u32) -> Command {
        Command::authentication(fabrics::AUTHENTICATION_RECEIVE, id, bytes, false)
    }

    fn authentication(kind: u8, id: u16, bytes: u32, in_capsule: bool) -> Command {
        let mut command = Command::new(fabrics::OPCODE, id, u32::from(kind)).data(bytes, in_capsule);
        set(&mut command.0, 41, &[PROTOCOL_SPECIFIC, PROTOCOL_SPECIFIC, PROTOCOL]);
        set(&mut command.0, 44, &bytes.to_le_bytes());
        command
    }

    /// Property Get of 4 or 8 bytes.
    pub fn property_get(id: u16, register: u32, is_wide: bool) -> Command {
        let command = Command::new(fabrics::OPCODE, id, u32::from(fabrics::PROPERTY_GET));
        command.dword(10, is_wide.into()).dword(11, register)
    }

    /// Property Set of 4 bytes.
    pub fn property_set(id: u16, register: u32, value: u32) -> Command {
        let command = Command::new(fabrics::OPCODE, id, u32::from(fabrics::PROPERTY_SET));
        command.dword(11, register).dword(12, value)
    }

    /// An admin command.
    pub fn admin(opcode: u8, id: u16, namespace: u32) -> Command {
        Command::new(opcode, id, namespace)
    }

    /// Identify.
    pub fn identify(id: u16, structure: u8, namespace: u32) -> Command {
        Command::new(admin_opcode::IDENTIFY, id, namespace).dword(10, structure.into()).data(4096, false)
    }

    /// Get Log Page of `bytes`.
    pub fn log_page(id: u16, log: u8, bytes: u32) -> Command {
        let dwords = bytes / 4 - 1;
        let command = Command::new(admin_opcode::GET_LOG_PAGE, id, 0);
        command.dword(10, u32::from(log) | dwords << 16).dword(11, dwords >> 16).data(bytes, false)
    }

    /// Set Features.
    pub fn set_feature(id: u16, feature: u8, value: u32) -> Command {
        Command::new(admin_opcode::SET_FEATURES, id, 0).dword(10, feature.into()).dword(11, value)
    }

    /// Asynchronous Event Request.
    pub fn event_request(id: u16) -> Command {
        Command::new(admin_opcode::ASYNC_EVENT, id, 0)
    }

    /// Keep Alive.
    pub fn keep_alive(id: u16) -> Command {
        Command::new(admin_opcode::KEEP_ALIVE, id, 0)
    }

    /// Read.
    pub fn read(id: u16, start: u64, blocks: u32) -> Command {
        Command::new(io_opcode::READ, id, NAMESPACE).blocks(start, blocks).data(blocks * 512, false)
    }

    /// Write, with its data in the capsule or fetched.
    pub fn write(id: u16, start: u64, blocks: u32, in_capsule: bool) -> Command {
        Command::new(io_opcode::WRITE, id, NAMESPACE).blocks(start, blocks).data(blocks * 512, in_capsule)
    }

    /// Flush.
    pub fn flush(id: u16) -> Command {
        Command::new(io_opcode::FLUSH, id, NAMESPACE)
    }

    /// Write Zeroes.
    pub fn write_zeroes(id: u16, start: u64, blocks: u32) -> Command {
        Command::new(io_opcode::WRITE_ZEROES, id, NAMESPACE).blocks(start, blocks)
    }

    /// Dataset Management that deallocates `ranges`, whose data are in the capsule.
    pub fn deallocate(id: u16, ranges: u8) -> Command {
        let command = Command::new(io_opcode::DATASET_MANAGEMENT, id, NAMESPACE);
        command.dword(10, u32::from(ranges) - 1).dword(11, 4).data(u32::from(ranges) * 16, true)
    }

    /// Sets FUA.
    #[must_use]
    pub fn durable(self) -> Command {
        let flags = u32_at(&self.0, 48);
        self.dword(12, flags | 1 << 30)
    }

    /// Appends its PDU, with `data` in the capsule.
    pub fn send(&self, out: &mut Vec<u8>, digests: Digests, data: &[u8]) {
        digests.header(out, (Kind::Command, 0), (data.len(), 4), |pdu| set(pdu, 8, &self.0));
        append(out, digests, data);
    }
}

fn append(out: &mut Vec<u8>, digests: Digests, data: &[u8]) {
    out.extend_from_slice(data);
    if digests.data && !data.is_empty() {
        out.extend_from_slice(&digest(data).to_le_bytes());
    }
}

/// One range of a Dataset Management.
pub fn range(start: u64, blocks: u32) -> [u8; 16] {
    let mut b = [0; 16];
    set(&mut b, 4, &blocks.to_le_bytes());
    set(&mut b, 8, &start.to_le_bytes());
    b
}

/// The first PDU of a connection.
pub fn parameters(digests: Digests) -> [u8; 128] {
    let mut b = [0; 128];
    common(&mut b, Kind::IcReq, 0, 0, 128);
    b[11] = u8::from(digests.header) | u8::from(digests.data) << 1;
    b
}

/// Connect's data; `controller` is `0xffff` for queue 0.
pub fn connect_data(controller: u16, host_id: [u8; 16], host: &str, subsystem: &str) -> [u8; CONNECT_DATA_BYTES] {
    let mut b = [0; CONNECT_DATA_BYTES];
    set(&mut b, 0, &host_id);
    set(&mut b, 16, &controller.to_le_bytes());
    set_text(&mut b, 256..511, subsystem, 0);
    set_text(&mut b, 512..767, host, 0);
    b
}

/// Something that a target sent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Heard {
    /// The transport's parameters: digests, and the host's longest data in a PDU.
    Parameters(Digests, u32),
    /// A completion.
    Done {
        /// The command's number.
        id: u16,
        /// Its end.
        status: Status,
        /// The first two dwords.
        value: u64,
        /// The submission queue's head.
        head: u16,
    },
    /// Data of a read; `done` if no completion follows.
    Data {
        /// The command's number.
        id: u16,
        /// Offset in its data.
        offset: u32,
        /// The bytes.
        data: Vec<u8>,
        /// No completion follows.
        done: bool,
    },
    /// The target is ready for a write's data.
    Ready {
        /// The command's number.
        id: u16,
        /// To be repeated with the data.
        tag: u16,
        /// Offset in its data.
        offset: u32,
        /// Bytes.
        length: u32,
    },
    /// The target ends the connection.
    Terminated(u16),
}

impl Heard {
    /// Appends the data that it asks for, of a write with these `data`, in PDUs of at most `piece` bytes.
    ///
    /// # Panics
    /// If it asks for none.
    pub fn send_data(&self, out: &mut Vec<u8>, digests: Digests, data: &[u8], piece: usize) {
        let Heard::Ready { id, tag, offset, length } = *self else { panic!("no data are asked for: {self:?}") };
        let end = offset as usize + length as usize;
        for at in (offset as usize..end).step_by(piece) {
            let part = &data[at..end.min(at + piece)];
            let flags = if at + part.len() == end { FLAG_LAST } else { 0 };
            digests.header(out, (Kind::H2cData, flags), (part.len(), 4), |pdu| {
                set(pdu, 8, &id.to_le_bytes());
                set(pdu, 10, &tag.to_le_bytes());
                set(pdu, 12, &(at as u32).to_le_bytes());
                set(pdu, 16, &(part.len() as u32).to_le_bytes());
            });
            append(out, digests, part);
        }
    }
}

/// Takes a target's PDUs apart.
#[derive(Debug, Default)]
pub struct Ear {
    gathered: Gathered,
    digests: Digests,
}

impl Ear {
    /// Takes from the front of `input` until a PDU is there; `None` wants more input.
    ///
    /// # Errors
    /// If the target breaks the protocol.
    pub fn take(&mut self, input: &mut &[u8]) -> Result<Option<Heard>, Fault> {
        let digests = self.digests;
        let kinds = [Kind::IcResp, Kind::C2hTerm, Kind::Response, Kind::C2hData, Kind::R2t];
        let Some(shape) = self.gathered.take(input, |s| digests.shape(s, &kinds, TRANSFER_BYTES_MAX as usize))? else {
            return Ok(None);
        };
        let pdu = self.gathered.pdu();
        digests.check_header(&shape, pdu)?;
        if !shape.data_are_right(pdu) {
            return Err(Fault::DataDigest);
        }
        let heard = match shape.kind {
            Kind::IcResp => {
                let digests = Digests { header: pdu[11] & 1 != 0, data: pdu[11] & 2 != 0 };
                self.digests = digests;
                Heard::Parameters(digests, u32_at(pdu, 12))
            }
            Kind::Response => Heard::Done {
                id: u16_at(pdu, 20),
                status: Status::from_wire(u16_at(pdu, 22) >> 1),
                value: u64_at(pdu, 8),
                head: u16_at(pdu, 16),
            },
            Kind::C2hData => {
                let done = shape.flags & FLAG_SUCCESS != 0;
                Heard::Data { id: u16_at(pdu, 8), offset: u32_at(pdu, 12), data: pdu[shape.data()].to_vec(), done }
            }
            Kind::R2t => Heard::Ready {
                id: u16_at(pdu, 8),
                tag: u16_at(pdu, 10),
                offset: u32_at(pdu, 12),
                length: u32_at(pdu, 16),
            },
            _ => Heard::Terminated(u16_at(pdu, 8)),
        };
        self.gathered.clear();
        Ok(Some(heard))
    }
}
