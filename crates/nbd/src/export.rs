//! A server's description of an export, and reasons to withhold it.

use crate::wire::{MetaContexts, OptionReply, PAYLOAD_BYTES_MAX, STRING_BYTES_MAX, TransmissionFlags, bounded_text};

/// An export's size constraints, in bytes (`NBD proto.md`, "Size constraints").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockSizes {
    /// Requests must be multiples of it: a power of two, 1 to 65,536.
    pub minimum: u32,
    /// Requests should be multiples of it: a power of two, at least 512 and at least `minimum`.
    pub preferred: u32,
    /// Longest payload of a READ or WRITE, at least `preferred`.
    pub payload_max: u32,
}

impl Default for BlockSizes {
    /// Returns the specification's defaults.
    fn default() -> Self {
        Self { minimum: 1, preferred: 4096, payload_max: PAYLOAD_BYTES_MAX }
    }
}

impl BlockSizes {
    /// Returns whether the specification allows these values.
    pub fn is_valid(&self) -> bool {
        self.minimum.is_power_of_two()
            && self.minimum <= 1 << 16
            && self.preferred.is_power_of_two()
            && self.preferred >= self.minimum.max(512)
            && self.payload_max >= self.preferred
    }
}

/// An export, as its server describes it to a client that may use it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportInfo {
    /// Size in bytes; fixed for a connection, even where the volume grows meanwhile.
    pub size_bytes: u64,
    /// Its abilities. The handshake itself sets `HAS_FLAGS`, and clears `SEND_DF` without structured replies.
    pub flags: TransmissionFlags,
    /// Size constraints.
    pub block_sizes: BlockSizes,
    /// The name under which LIST shows it; without the promise that the client's name may carry.
    pub canonical_name: String,
    /// For a human; may be empty.
    pub description: String,
    /// The metadata contexts that may be chosen on it.
    pub meta_contexts: MetaContexts,
}

impl ExportInfo {
    /// Panics where the driver breaks the specification's rules on what a server may say.
    pub(crate) fn check(&self) {
        assert!(self.block_sizes.is_valid(), "block sizes against the specification: {:?}", self.block_sizes);
        assert!(self.canonical_name.len() <= STRING_BYTES_MAX, "an export's name is longer than NBD allows");
    }

    /// The flags to tell a client that did or did not negotiate structured replies.
    pub(crate) fn flags_for(&self, structured_replies: bool) -> TransmissionFlags {
        let mut flags = self.flags.with(TransmissionFlags::HAS_FLAGS);
        if !structured_replies {
            flags = flags.without(TransmissionFlags::SEND_DF);
        }
        if !flags.contains(TransmissionFlags::SEND_WRITE_ZEROES) {
            flags = flags.without(TransmissionFlags::SEND_FAST_ZERO);
        }
        flags
    }
}

/// One export of a list: its name and a description, which may be empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedExport {
    /// As a client would ask for it.
    pub name: String,
    /// For a human.
    pub description: String,
}

/// Reason why a server does not show or open an export, or does not list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusalReason {
    /// There is no such export, or the client must not learn of it.
    Unknown,
    /// It exists, and cannot be used now (a volume that is recovering).
    Unavailable,
    /// This client may not use it, or not with this promise.
    Forbidden,
    /// It is only served over TLS. After TLS this reads as [`RefusalReason::Forbidden`].
    TlsRequired,
    /// The server is going away.
    ShuttingDown,
}

/// A server's "no", with a text for a human, of which at most 4096 bytes are sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Reason.
    pub reason: RefusalReason,
    /// Problem and remedy; may be empty.
    pub text: String,
}

impl Refusal {
    /// A refusal with its text.
    pub fn new(reason: RefusalReason, text: impl Into<String>) -> Self {
        Self { reason, text: text.into() }
    }

    /// The reply that says so.
    pub(crate) fn reply(&self, tls_established: bool) -> OptionReply {
        match self.reason {
            RefusalReason::Unknown | RefusalReason::Unavailable => OptionReply::ErrUnknown,
            RefusalReason::Forbidden => OptionReply::ErrPolicy,
            // The specification forbids asking for TLS where there is TLS.
            RefusalReason::TlsRequired if tls_established => OptionReply::ErrPolicy,
            RefusalReason::TlsRequired => OptionReply::ErrTlsRequired,
            RefusalReason::ShuttingDown => OptionReply::ErrShutdown,
        }
    }

    /// The text as far as the protocol carries it.
    pub(crate) fn wire_text(&self) -> &str {
        bounded_text(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn block_sizes_follow_the_specification() {
        let sizes = |minimum, preferred, payload_max| BlockSizes { minimum, preferred, payload_max }.is_valid();
        assert!(BlockSizes::default().is_valid());
        assert!(sizes(1, 512, 512));
        assert!(sizes(65536, 65536, u32::MAX));
        assert!(!sizes(0, 4096, 4096), "zero is no power of two");
        assert!(!sizes(3, 4096, 4096));
        assert!(!sizes(131_072, 131_072, 1 << 20));
        assert!(!sizes(1, 256, 4096));
        assert!(!sizes(4096, 512, 4096));
        assert!(!sizes(1, 4096, 512));
    }

    #[test]
    fn flags_that_need_another_one_go_with_it() {
        let all = TransmissionFlags::SEND_DF.with(TransmissionFlags::SEND_FAST_ZERO);
        let info = ExportInfo {
            size_bytes: 0,
            flags: all,
            block_sizes: BlockSizes::default(),
            canonical_name: String::new(),
            description: String::new(),
            meta_contexts: MetaContexts::EMPTY,
        };
        assert_eq!(info.flags_for(false), TransmissionFlags::HAS_FLAGS);
        assert_eq!(info.flags_for(true), TransmissionFlags::HAS_FLAGS.with(TransmissionFlags::SEND_DF));
        let writes_zeroes = ExportInfo { flags: all.with(TransmissionFlags::SEND_WRITE_ZEROES), ..info };
        assert!(writes_zeroes.flags_for(true).contains(all));
    }
}
