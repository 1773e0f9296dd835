//! Numbers of the specifications, and this target's limits.

/// Bytes of a logical block.
pub const BLOCK_BYTES: u64 = 512;
/// The one namespace of a subsystem.
pub const NAMESPACE: u32 = 1;
/// All namespaces, for a Flush.
pub const NAMESPACE_ALL: u32 = u32::MAX;
/// The one ANA group of a subsystem.
pub const ANA_GROUP: u32 = 1;

/// Longest transfer of a Read or Write. The exponent is Identify's MDTS, in pages of 4 KiB.
pub const TRANSFER_BYTES_MAX: u32 = 4096 << MDTS;
pub(crate) const MDTS: u8 = 8;
/// Longest data of a host in one PDU: a whole transfer, so that each write's data come in one.
pub const H2C_DATA_BYTES_MAX: u32 = TRANSFER_BYTES_MAX;
/// Longest data within a command's capsule on an I/O queue.
pub const CAPSULE_DATA_BYTES_MAX: u32 = 32 << 10;
/// The same on an admin queue; the transport specification fixes it.
pub const ADMIN_CAPSULE_DATA_BYTES_MAX: u32 = 8 << 10;
/// Most entries of a submission queue.
pub const QUEUE_ENTRIES_MAX: u16 = 128;
/// Fewest entries of an admin submission queue, by the specification.
pub const ADMIN_ENTRIES_MIN: u16 = 32;
/// Longest Deallocate, in blocks: 2 GiB.
pub const DEALLOCATE_BLOCKS_MAX: u32 = 1 << 22;

/// Bytes of a PDU's common header.
pub const COMMON_BYTES: usize = 8;
/// Bytes of a command.
pub const COMMAND_BYTES: usize = 64;
/// Bytes of a completion.
pub const COMPLETION_BYTES: usize = 16;
/// Bytes of a Connect command's data.
pub const CONNECT_DATA_BYTES: usize = 1024;

/// A name of the discovery subsystem.
pub const DISCOVERY_NQN: &str = "nqn.2014-08.org.nvmexpress.discovery";
/// Longest NQN in bytes.
pub const NQN_BYTES_MAX: usize = 223;

pub(crate) const FLAG_HEADER_DIGEST: u8 = 1;
pub(crate) const FLAG_DATA_DIGEST: u8 = 2;
pub(crate) const FLAG_LAST: u8 = 4;
pub(crate) const FLAG_SUCCESS: u8 = 8;

/// Kinds of PDUs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Kind {
    /// A host asks for a connection.
    IcReq = 0,
    /// The target's answer.
    IcResp = 1,
    /// A host ends the connection.
    H2cTerm = 2,
    /// A target ends the connection.
    C2hTerm = 3,
    /// A command.
    Command = 4,
    /// A command's completion.
    Response = 5,
    /// A write's data.
    H2cData = 6,
    /// A read's data.
    C2hData = 7,
    /// A target is ready for a write's data.
    R2t = 9,
}

impl Kind {
    pub(crate) fn from_wire(value: u8) -> Option<Kind> {
        Some(match value {
            0 => Kind::IcReq,
            1 => Kind::IcResp,
            2 => Kind::H2cTerm,
            3 => Kind::C2hTerm,
            4 => Kind::Command,
            5 => Kind::Response,
            6 => Kind::H2cData,
            7 => Kind::C2hData,
            9 => Kind::R2t,
            _ => return None,
        })
    }

    /// Bytes of its header, the common one among them.
    pub(crate) const fn header_bytes(self) -> usize {
        match self {
            Kind::IcReq | Kind::IcResp => 128,
            Kind::Command => 72,
            _ => 24,
        }
    }
}

/// Opcodes of I/O commands.
pub(crate) mod io_opcode {
    pub const FLUSH: u8 = 0;
    pub const WRITE: u8 = 1;
    pub const READ: u8 = 2;
    pub const WRITE_ZEROES: u8 = 8;
    pub const DATASET_MANAGEMENT: u8 = 9;
}

/// Opcodes of admin commands.
pub(crate) mod admin_opcode {
    pub const GET_LOG_PAGE: u8 = 2;
    pub const IDENTIFY: u8 = 6;
    pub const ABORT: u8 = 8;
    pub const SET_FEATURES: u8 = 9;
    pub const GET_FEATURES: u8 = 0xa;
    pub const ASYNC_EVENT: u8 = 0xc;
    pub const KEEP_ALIVE: u8 = 0x18;
}

/// The opcode of fabrics commands, and their types.
pub(crate) mod fabrics {
    pub const OPCODE: u8 = 0x7f;
    pub const PROPERTY_SET: u8 = 0;
    pub const CONNECT: u8 = 1;
    pub const PROPERTY_GET: u8 = 4;
    pub const AUTHENTICATION_SEND: u8 = 5;
    pub const AUTHENTICATION_RECEIVE: u8 = 6;
}

/// Access to a namespace by way of a controller.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum AnaState {
    /// It is served.
    Optimized = 1,
    /// It is served, and better through another path.
    NonOptimized = 2,
    /// It can't be served here now.
    Inaccessible = 3,
}
