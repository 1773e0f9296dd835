//! Events of a server's handshake for its driver, and the handshake's result.

use std::fmt;

use crate::export::ExportInfo;
#[cfg(doc)]
use crate::handshake::ServerHandshake;
use crate::handshake::{OPTION_SKIP_BYTES_MAX, OPTIONS_MAX};
use crate::request::Rules;
use crate::wire::{MetaContext, MetaContexts, OPTION_MAGIC, TransmissionFlags};

/// Use of TLS on a connection: impossible, possible or required.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlsMode {
    /// It cannot (NOTLS).
    Off,
    /// The client may; the driver may refuse single exports before it (SELECTIVETLS).
    Optional,
    /// No information is sent and no export opened before it (FORCEDTLS).
    Required,
}

/// Event for the driver: a question or a result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Answer with [`ServerHandshake::answer_list`].
    ListExports,
    /// Answer with [`ServerHandshake::answer_export`].
    LookUpExport {
        /// The name as the client sent it, with the promise it may carry; empty for the default export.
        name: String,
        /// If true, the client goes on to use it now; otherwise it only asks.
        opens: bool,
    },
    /// Send the output in the clear, upgrade the stream, then call [`ServerHandshake::tls_established`]; if the
    /// upgrade fails, close.
    StartTls,
    /// The handshake is over. Send the output; what was not taken is the first request.
    Transmission(Box<Negotiated>),
    /// Send the output and close.
    Closed(Closed),
}

/// Parameters negotiated for the transmission phase.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Negotiated {
    /// The chosen export's name as the client sent it.
    pub export_name: String,
    /// The driver's description of it.
    pub export: ExportInfo,
    /// The transmission flags sent to the client.
    pub flags: TransmissionFlags,
    /// Replies may, and answers to READ must, be structured.
    pub structured_replies: bool,
    /// The metadata contexts to report in BLOCK_STATUS.
    pub meta_contexts: MetaContexts,
    /// The client asked for the block sizes when it opened the export, so it must keep to them.
    pub block_sizes_told: bool,
    /// The client did without the zeroes after EXPORT_NAME.
    pub no_zeroes: bool,
    /// The connection runs over TLS.
    pub tls: bool,
}

impl Negotiated {
    /// The rules by which this connection's requests are judged.
    pub fn rules(&self) -> Rules {
        Rules {
            size_bytes: self.export.size_bytes,
            flags: self.flags,
            block_bytes_min: self.export.block_sizes.minimum,
            payload_bytes_max: self.export.block_sizes.payload_max,
            structured_replies: self.structured_replies,
            block_status: !self.meta_contexts.is_empty(),
            promises: self.meta_contexts.contains(MetaContext::Promise),
        }
    }
}

/// Reason why the handshake ended without an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closed {
    /// The client asked for it.
    Aborted,
    /// The client's flags hold one that we did not offer.
    UnknownClientFlags(u32),
    /// An option does not start with the option magic.
    BadOptionMagic(u64),
    /// A client that did not agree to fixed newstyle sent another option than EXPORT_NAME.
    NotFixedNewstyle(u32),
    /// An option announces more data than we are willing to skip.
    OptionTooLong(u32),
    /// More options than a client needs.
    TooManyOptions,
    /// EXPORT_NAME, which has no error reply, for an export that was refused or a name that is none.
    ExportNameRefused,
    /// EXPORT_NAME in the clear where TLS is required.
    TlsRequired,
    /// Bytes in the clear after STARTTLS.
    PlaintextAfterStartTls,
}

impl fmt::Display for Closed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Aborted => f.write_str("the client ended the handshake"),
            Self::UnknownClientFlags(flags) => write!(f, "unknown client flags {flags:#x}"),
            Self::BadOptionMagic(magic) => {
                write!(f, "an option starts with {magic:#018x} instead of {OPTION_MAGIC:#018x}")
            }
            Self::NotFixedNewstyle(option) => {
                write!(f, "option {option} from a client that does not speak fixed newstyle")
            }
            Self::OptionTooLong(bytes) => {
                write!(f, "an option of {bytes} bytes; at most {OPTION_SKIP_BYTES_MAX} are skipped")
            }
            Self::TooManyOptions => write!(f, "more than {OPTIONS_MAX} options"),
            Self::ExportNameRefused => f.write_str("the export asked for with EXPORT_NAME was refused"),
            Self::TlsRequired => f.write_str("EXPORT_NAME without TLS where TLS is required"),
            Self::PlaintextAfterStartTls => f.write_str("bytes in the clear after STARTTLS"),
        }
    }
}
