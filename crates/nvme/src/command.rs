//! Commands, and the statuses that they end with.

use crate::bytes::{u16_at, u32_at, u64_at};
use crate::wire::COMMAND_BYTES;
use std::fmt;

/// End of a command: status code, status code type, and whether a retry is of no use.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Status(u16);

impl Status {
    /// Success.
    pub const OK: Status = Status(0);
    /// An opcode that isn't served.
    pub const INVALID_OPCODE: Status = Status(0x4001);
    /// A field that can't be served.
    pub const INVALID_FIELD: Status = Status(0x4002);
    /// The device failed.
    pub const INTERNAL: Status = Status(0x4006);
    /// The command was withdrawn.
    pub const ABORTED: Status = Status(0x0007);
    /// A fused command.
    pub const FUSED_MISSING: Status = Status(0x400a);
    /// No such namespace.
    pub const INVALID_NAMESPACE: Status = Status(0x400b);
    /// A command that mustn't come now.
    pub const SEQUENCE: Status = Status(0x400c);
    /// The data's length doesn't fit the command.
    pub const DATA_LENGTH: Status = Status(0x400f);
    /// The kind of description of the data isn't known.
    pub const SGL_TYPE: Status = Status(0x4011);
    /// An offset into a capsule that isn't 0.
    pub const SGL_OFFSET: Status = Status(0x4016);
    /// The namespace can't be written by this host.
    pub const WRITE_PROTECTED: Status = Status(0x4020);
    /// Data were damaged on their way; a retry helps.
    pub const TRANSPORT: Status = Status(0x0022);
    /// Blocks beyond the namespace's end.
    pub const OUT_OF_RANGE: Status = Status(0x4080);
    /// No space left.
    pub const CAPACITY: Status = Status(0x4081);
    /// Connect: the record format is unknown.
    pub const CONNECT_FORMAT: Status = Status(0x4180);
    /// Connect: the controller can't take the queue now.
    pub const CONNECT_BUSY: Status = Status(0x0181);
    /// Connect: a parameter is invalid.
    pub const CONNECT_PARAMETER: Status = Status(0x4182);
    /// Connect: the host may not.
    pub const CONNECT_HOST: Status = Status(0x4184);
    /// The queue's host hasn't proved itself yet.
    pub const NOT_AUTHENTICATED: Status = Status(0x4191);
    /// More event requests than allowed.
    pub const EVENT_LIMIT: Status = Status(0x4105);
    /// No such log page.
    pub const INVALID_LOG: Status = Status(0x4109);
    /// A feature that can't be changed.
    pub const FIXED_FEATURE: Status = Status(0x410e);
    /// A Dataset Management with more or longer ranges than one may have.
    pub const SIZE_LIMIT: Status = Status(0x4183);
    /// A write failed.
    pub const WRITE_FAULT: Status = Status(0x4280);
    /// A read failed.
    pub const UNRECOVERED_READ: Status = Status(0x4281);
    /// The path can't serve the command: hosts with another path use that.
    pub const INACCESSIBLE: Status = Status(0x0303);

    /// As in a completion, without the phase bit.
    pub const fn to_wire(self) -> u16 {
        self.0
    }

    /// From a completion, without the phase bit.
    pub const fn from_wire(value: u16) -> Status {
        Status(value & 0x7fff)
    }

    /// Status code type and status code alone.
    pub const fn code(self) -> u16 {
        self.0 & 0x7ff
    }
}

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#05x}{}", self.code(), if self.0 & 0x4000 != 0 { " (no retry)" } else { "" })
    }
}

/// A command as it came.
#[derive(Clone, Copy)]
pub(crate) struct Raw<'a>(&'a [u8; COMMAND_BYTES]);

/// Place of a command's data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum DataIn {
    /// In its capsule: bytes.
    Capsule(u32),
    /// They go over the transport: bytes.
    Transport(u32),
}

impl<'a> Raw<'a> {
    /// The command of a capsule's PDU.
    pub(crate) fn of(pdu: &'a [u8]) -> Raw<'a> {
        Raw(pdu[8..8 + COMMAND_BYTES].try_into().expect("a command's length"))
    }

    pub(crate) fn opcode(self) -> u8 {
        self.0[0]
    }

    pub(crate) fn id(self) -> u16 {
        u16_at(self.0, 2)
    }

    pub(crate) fn namespace(self) -> u32 {
        u32_at(self.0, 4)
    }

    /// A fabrics command's type.
    pub(crate) fn fabrics_type(self) -> u8 {
        self.0[4]
    }

    /// Command dword 10 to 15.
    pub(crate) fn dword(self, n: usize) -> u32 {
        debug_assert!((10..=15).contains(&n));
        u32_at(self.0, n * 4)
    }

    pub(crate) fn bytes(self) -> &'a [u8; COMMAND_BYTES] {
        self.0
    }

    pub(crate) fn start_block(self) -> u64 {
        u64_at(self.0, 40)
    }

    /// Checks that the flags are those of a command that isn't fused and whose data an SGL describes.
    pub(crate) fn check_flags(self) -> Result<(), Status> {
        match (self.0[1] & 3, self.0[1] >> 6) {
            (0, 1) => Ok(()),
            (0, _) => Err(Status::INVALID_FIELD),
            _ => Err(Status::FUSED_MISSING),
        }
    }

    /// Place of its data, of which `capsule_bytes` came with it.
    pub(crate) fn data(self, capsule_bytes: usize) -> Result<DataIn, Status> {
        let (address, length, kind) = (u64_at(self.0, 24), u32_at(self.0, 32), self.0[39]);
        match kind {
            0x01 if address != 0 => Err(Status::SGL_OFFSET),
            0x01 if length as usize != capsule_bytes => Err(Status::DATA_LENGTH),
            0x01 => Ok(DataIn::Capsule(length)),
            0x5a if capsule_bytes != 0 => Err(Status::DATA_LENGTH),
            0x5a => Ok(DataIn::Transport(length)),
            _ => Err(Status::SGL_TYPE),
        }
    }
}
