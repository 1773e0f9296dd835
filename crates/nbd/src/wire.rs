//! The numbers of the protocol: magics, options, flags, commands, replies and error values.
//!
//! Source of every value: `NBD proto.md`, the protocol's public specification, sections "Handshake",
//! "Transmission" and "Values". All fields on the wire are big-endian.
//!
//! The specification leaves no range of option, command or information numbers to experiments (its authors ask
//! to be contacted for a number); only metadata contexts have such a space, the namespaces `x-*:`. Hence
//! Plimsoll's private addition is a metadata context and not an option.

use std::fmt;

/// First eight bytes a server sends, `NBDMAGIC`.
pub const GREETING_MAGIC: u64 = 0x4e42_444d_4147_4943;
/// Starts every option, and says "newstyle" in the greeting: `IHAVEOPT`.
pub const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
/// Starts every reply to an option.
pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// Starts every request.
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
/// Starts every simple reply.
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// Starts every chunk of a structured reply.
pub const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;

/// Bytes of a greeting: two magics and the handshake flags.
pub const GREETING_BYTES: usize = 18;
/// Bytes of an option before its data: magic, option, length.
pub const OPTION_HEADER_BYTES: usize = 16;
/// Bytes of a reply to an option before its data: magic, option, type, length.
pub const OPTION_REPLY_HEADER_BYTES: usize = 20;
/// Bytes of a request before its payload.
pub const REQUEST_BYTES: usize = 28;
/// Bytes of a simple reply before its payload.
pub const SIMPLE_REPLY_BYTES: usize = 16;
/// Bytes of a structured reply chunk before its payload.
pub const CHUNK_HEADER_BYTES: usize = 20;
/// Zeroes after the answer to EXPORT_NAME unless both sides agreed to leave them out.
pub const EXPORT_NAME_PADDING_BYTES: usize = 124;

/// Longest string (export name, description, query, message) that either side may send, in bytes.
pub const STRING_BYTES_MAX: usize = 4096;
/// Longest payload of a READ or WRITE, in bytes: 32 MiB, the size that the specification asks of every server.
pub const PAYLOAD_BYTES_MAX: u32 = 32 << 20;
/// Most extents in one block status chunk.
pub const EXTENTS_MAX: usize = 1 << 20;

/// Server's handshake flag: it speaks fixed newstyle.
pub const FLAG_FIXED_NEWSTYLE: u16 = 1 << 0;
/// Server's handshake flag: it can leave out the zeroes after EXPORT_NAME.
pub const FLAG_NO_ZEROES: u16 = 1 << 1;
/// Client's answer to [`FLAG_FIXED_NEWSTYLE`].
pub const CLIENT_FLAG_FIXED_NEWSTYLE: u32 = 1 << 0;
/// Client's answer to [`FLAG_NO_ZEROES`].
pub const CLIENT_FLAG_NO_ZEROES: u32 = 1 << 1;

/// Gives an enum its numbers on the wire, once, for both directions.
macro_rules! numbered {
    ($(#[$meta:meta])* $name:ident: $int:ty { $($(#[$doc:meta])* $variant:ident = $value:expr,)+ }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name { $($(#[$doc])* $variant,)+ }

        impl $name {
            /// The number on the wire.
            pub const fn to_wire(self) -> $int {
                match self { $(Self::$variant => $value,)+ }
            }

            /// Returns the meaning of a number on the wire; `None` if it is unknown.
            pub const fn from_wire(number: $int) -> Option<Self> {
                $(if number == $value { return Some(Self::$variant); })+
                None
            }
        }
    };
}

numbered! {
    /// Options that a client may send during the handshake. Others are answered [`OptionReply::ErrUnsupported`].
    OptionKind: u32 {
        /// Choose an export and enter transmission; cannot be refused but by closing.
        ExportName = 1,
        /// End the session.
        Abort = 2,
        /// List the exports.
        List = 3,
        /// Upgrade the connection to TLS.
        StartTls = 5,
        /// Describe an export.
        Info = 6,
        /// Describe an export and enter transmission.
        Go = 7,
        /// Use structured replies in transmission.
        StructuredReply = 8,
        /// List the metadata contexts of an export.
        ListMetaContext = 9,
        /// Choose the metadata contexts that BLOCK_STATUS reports.
        SetMetaContext = 10,
    }
}

/// Set in the number of every option reply that is an error.
pub const OPTION_REPLY_ERROR_BIT: u32 = 1 << 31;

numbered! {
    /// Types of a server's replies to an option.
    OptionReply: u32 {
        /// Done, and successful.
        Ack = 1,
        /// One export of a list.
        Server = 2,
        /// One piece of information on an export.
        Info = 3,
        /// One metadata context.
        MetaContext = 4,
        /// The server does not know the option.
        ErrUnsupported = OPTION_REPLY_ERROR_BIT + 1,
        /// The server's policy forbids it.
        ErrPolicy = OPTION_REPLY_ERROR_BIT + 2,
        /// The option's data makes no sense, or not now.
        ErrInvalid = OPTION_REPLY_ERROR_BIT + 3,
        /// Not possible on the server's platform.
        ErrPlatform = OPTION_REPLY_ERROR_BIT + 4,
        /// Not before TLS.
        ErrTlsRequired = OPTION_REPLY_ERROR_BIT + 5,
        /// The export is not available.
        ErrUnknown = OPTION_REPLY_ERROR_BIT + 6,
        /// The server is shutting down.
        ErrShutdown = OPTION_REPLY_ERROR_BIT + 7,
        /// The client must ask for block sizes first.
        ErrBlockSizeRequired = OPTION_REPLY_ERROR_BIT + 8,
        /// Request or reply too large.
        ErrTooBig = OPTION_REPLY_ERROR_BIT + 9,
    }
}

numbered! {
    /// Kinds of information on an export.
    InfoKind: u16 {
        /// Size and transmission flags; always sent.
        Export = 0,
        /// The canonical name.
        Name = 1,
        /// A description for a human.
        Description = 2,
        /// Minimum and preferred block, largest payload.
        BlockSize = 3,
    }
}

numbered! {
    /// Commands that a client may send during transmission. Others are answered [`ErrorCode::Invalid`].
    Command: u16 {
        /// Read a range.
        Read = 0,
        /// Write a range; the payload follows.
        Write = 1,
        /// End the session.
        Disconnect = 2,
        /// Make acknowledged writes durable.
        Flush = 3,
        /// A range's content is no longer needed.
        Trim = 4,
        /// A range will be wanted soon.
        Cache = 5,
        /// Make a range read as zeroes.
        WriteZeroes = 6,
        /// Report the status of a range in every chosen metadata context.
        BlockStatus = 7,
        /// Withdraw the request whose cookie it has; no answer of its own. Known only where `x-plimsoll:promise` was chosen.
        Cancel = 0x504c,
    }
}

/// Set in the type of every chunk that is an error.
pub const CHUNK_ERROR_BIT: u16 = 1 << 15;
/// Chunk flag: the last one of its reply.
pub const CHUNK_FLAG_DONE: u16 = 1 << 0;

numbered! {
    /// Types of a structured reply's chunks.
    ChunkKind: u16 {
        /// Nothing but the end of the reply.
        None = 0,
        /// Data of a READ, at an offset.
        OffsetData = 1,
        /// Zeroes of a READ, at an offset.
        OffsetHole = 2,
        /// Extents of one metadata context.
        BlockStatus = 5,
        /// The request failed.
        Error = CHUNK_ERROR_BIT + 1,
        /// The request failed at an offset.
        ErrorOffset = CHUNK_ERROR_BIT + 2,
    }
}

numbered! {
    /// Kinds of notes (see [`crate::promise`]).
    NoteKind: u32 {
        /// Wait in microseconds that a refused request would have had, or a request that came now would have.
        WaitUs = 1,
        /// The request has begun to be executed: it can't be withdrawn any more. Its value means nothing.
        Begun = 2,
        /// Requests in the server.
        InFlight = 3,
        /// Time in microseconds that the server's device had the request.
        ServiceUs = 4,
        /// Median response time, in microseconds, of recent requests that arrived at about the same number in flight.
        LatencyUs = 5,
        /// Lower half of the volume's generation: how many changes it has acknowledged since it was made. In a READ's answer:
        /// when it was answered.
        GenerationLow = 6,
        /// Upper half of it.
        GenerationHigh = 7,
        /// 0: the volume has all it ever acknowledged. Otherwise it may lack some: 1 after an unclean stop, 2 after a writer
        /// was lost, 3 while it is caught up.
        Behind = 8,
        /// Lower half of the generation when the READ came: its data are at least as new.
        GenerationBefore = 9,
        /// Connections of clients that write to all replicas (in a probe's answer).
        Writers = 10,
        /// Confidence of a refused request's forecast, in thousandths.
        Confidence = 11,
        /// Microseconds that a READ was forecast to take, from its arrival to its end, when it was accepted or refused.
        ForecastUs = 12,
    }
}

numbered! {
    /// Every error value that may be on the wire (`NBD proto.md`, "Error values"). There is none for "busy".
    ErrorCode: u32 {
        /// EPERM: a write to a read-only export.
        NotPermitted = 1,
        /// EIO.
        Io = 5,
        /// ENOMEM.
        NoMemory = 12,
        /// EINVAL: also whatever value a peer sends that is not in this list.
        Invalid = 22,
        /// ENOSPC: a full device, or a write beyond the end.
        NoSpace = 28,
        /// EOVERFLOW: the answer would be too large.
        Overflow = 75,
        /// ENOTSUP: zeroes cannot be written fast.
        NotSupported = 95,
        /// ESHUTDOWN: the server is going away.
        Shutdown = 108,
    }
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotPermitted => "EPERM",
            Self::Io => "EIO",
            Self::NoMemory => "ENOMEM",
            Self::Invalid => "EINVAL",
            Self::NoSpace => "ENOSPC",
            Self::Overflow => "EOVERFLOW",
            Self::NotSupported => "ENOTSUP",
            Self::Shutdown => "ESHUTDOWN",
        })
    }
}

/// A set of bits of one 16-bit field.
macro_rules! flags {
    ($(#[$meta:meta])* $name:ident { $($(#[$doc:meta])* $flag:ident = $bit:expr,)+ }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
        pub struct $name(u16);

        impl $name {
            /// No bit set.
            pub const EMPTY: Self = Self(0);
            $($(#[$doc])* pub const $flag: Self = Self(1 << $bit);)+

            /// The field on the wire.
            pub const fn to_wire(self) -> u16 {
                self.0
            }

            /// The field from the wire, unknown bits included.
            pub const fn from_wire(bits: u16) -> Self {
                Self(bits)
            }

            /// Returns whether every bit of `other` is set.
            pub const fn contains(self, other: Self) -> bool {
                self.0 & other.0 == other.0
            }

            /// These bits and those of `other`.
            pub const fn with(self, other: Self) -> Self {
                Self(self.0 | other.0)
            }

            /// These bits but those of `other`.
            pub const fn without(self, other: Self) -> Self {
                Self(self.0 & !other.0)
            }

            /// Returns whether no bit is set.
            pub const fn is_empty(self) -> bool {
                self.0 == 0
            }
        }
    };
}

flags! {
    /// Abilities of an export, sent at the end of the handshake.
    TransmissionFlags {
        /// Always set.
        HAS_FLAGS = 0,
        /// Writes are refused.
        READ_ONLY = 1,
        /// FLUSH is served.
        SEND_FLUSH = 2,
        /// The FUA flag is served.
        SEND_FUA = 3,
        /// Behaves as a rotating disk.
        ROTATIONAL = 4,
        /// TRIM is served.
        SEND_TRIM = 5,
        /// WRITE_ZEROES, with or without NO_HOLE, is served.
        SEND_WRITE_ZEROES = 6,
        /// The DF flag of READ is served; only with structured replies.
        SEND_DF = 7,
        /// FLUSH and FUA hold across all connections to the export.
        CAN_MULTI_CONN = 8,
        /// CACHE is served.
        SEND_CACHE = 10,
        /// The FAST_ZERO flag of WRITE_ZEROES is served.
        SEND_FAST_ZERO = 11,
    }
}

flags! {
    /// Flags of a request beside its command.
    CommandFlags {
        /// Durable before it is acknowledged.
        FUA = 0,
        /// WRITE_ZEROES must leave the range allocated.
        NO_HOLE = 1,
        /// READ must be answered with at most one content chunk.
        DF = 2,
        /// BLOCK_STATUS must report exactly one extent per context.
        REQ_ONE = 3,
        /// WRITE_ZEROES must fail at once if it would be no faster than writing.
        FAST_ZERO = 4,
    }
}

/// Status bit of `base:allocation`: nothing is allocated here.
pub const STATE_HOLE: u32 = 1 << 0;
/// Status bit of `base:allocation`: reads as zeroes.
pub const STATE_ZERO: u32 = 1 << 1;

/// A metadata context that a Plimsoll server knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MetaContext {
    /// `base:allocation`: the status is [`STATE_HOLE`] and [`STATE_ZERO`].
    Allocation,
    /// `x-plimsoll:promise`: deadlines of single requests and what a server says of itself ([`crate::promise`]).
    Promise,
    /// `x-plimsoll:written`: the status is the lower half of the generation at which anything in the extent was last changed.
    Written,
}

impl MetaContext {
    /// All of them, in the order in which a server offers them.
    pub const ALL: [Self; 3] = [Self::Allocation, Self::Promise, Self::Written];

    /// The full name: namespace, colon, leaf.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Allocation => "base:allocation",
            Self::Promise => "x-plimsoll:promise",
            Self::Written => "x-plimsoll:written",
        }
    }

    /// The name's part up to and with the colon, a wildcard in LIST_META_CONTEXT.
    pub const fn namespace(self) -> &'static str {
        match self {
            Self::Allocation => "base:",
            Self::Promise | Self::Written => "x-plimsoll:",
        }
    }

    /// The number that our server gives the context in block status chunks; to a client it means nothing else.
    pub const fn id(self) -> u32 {
        match self {
            Self::Allocation => 1,
            Self::Promise => 2,
            Self::Written => 3,
        }
    }
}

/// A set of [`MetaContext`]s.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct MetaContexts(u32);

impl MetaContexts {
    /// None of them.
    pub const EMPTY: Self = Self(0);

    /// Adds one.
    pub const fn with(self, context: MetaContext) -> Self {
        Self(self.0 | 1 << context.id())
    }

    /// Returns whether it is in the set.
    pub const fn contains(self, context: MetaContext) -> bool {
        self.0 & 1 << context.id() != 0
    }

    /// Returns the intersection of both sets.
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Returns whether there is none.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Those in the set, in the order of [`MetaContext::ALL`].
    pub fn iter(self) -> impl Iterator<Item = MetaContext> {
        MetaContext::ALL.into_iter().filter(move |context| self.contains(*context))
    }
}

/// `length` consecutive bytes of one status, in a block status chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Bytes, never 0.
    pub length: u32,
    /// Status by the metadata context.
    pub status: u32,
}

/// The longest beginning of `text` that the protocol allows as a string.
pub(crate) fn bounded_text(text: &str) -> &str {
    &text[..text.floor_char_boundary(STRING_BYTES_MAX)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_survive_both_directions_and_unknown_ones_are_none() {
        for number in 0..=200u32 {
            for known in [number, number | OPTION_REPLY_ERROR_BIT] {
                assert!(OptionReply::from_wire(known).is_none_or(|reply| reply.to_wire() == known));
            }
            assert!(ErrorCode::from_wire(number).is_none_or(|code| code.to_wire() == number));
        }
        assert_eq!(OptionKind::from_wire(4), None, "PEEK_EXPORT was withdrawn");
        assert_eq!(Command::from_wire(8), None, "RESIZE is another experiment");
        assert_eq!(OptionReply::ErrTooBig.to_wire(), 0x8000_0009);
        assert_eq!(ChunkKind::from_wire(0x8002), Some(ChunkKind::ErrorOffset));
    }

    #[test]
    fn a_long_text_is_cut_between_characters() {
        let text = "é".repeat(3000);
        assert_eq!(bounded_text(&text).len(), 4096);
        let shifted = format!("a{text}");
        assert_eq!(bounded_text(&shifted).len(), 4095);
    }

    #[test]
    fn context_sets_iterate_in_the_order_they_are_offered() {
        let all =
            MetaContexts::EMPTY.with(MetaContext::Written).with(MetaContext::Promise).with(MetaContext::Allocation);
        assert_eq!(all.iter().collect::<Vec<_>>(), MetaContext::ALL);
        assert!(!MetaContexts::EMPTY.with(MetaContext::Allocation).contains(MetaContext::Promise));
        for context in MetaContext::ALL {
            assert!(context.name().starts_with(context.namespace()));
        }
    }
}
