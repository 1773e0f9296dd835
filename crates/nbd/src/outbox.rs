//! Bytes that a server has to send during the handshake: the greeting and the replies to options.

use crate::export::{ExportInfo, ListedExport};
use crate::option::InfoWanted;
use crate::wire::{
    EXPORT_NAME_PADDING_BYTES, FLAG_FIXED_NEWSTYLE, FLAG_NO_ZEROES, GREETING_MAGIC, InfoKind, MetaContexts,
    OPTION_MAGIC, OPTION_REPLY_MAGIC, OptionKind, OptionReply, STRING_BYTES_MAX, TransmissionFlags, bounded_text,
};

/// Bytes on their way to the client.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    bytes: Vec<u8>,
    /// Number of `bytes` already sent.
    sent: usize,
}

impl Outbox {
    pub(crate) fn with_greeting() -> Self {
        let mut outbox = Self::default();
        outbox.bytes.extend(GREETING_MAGIC.to_be_bytes());
        outbox.bytes.extend(OPTION_MAGIC.to_be_bytes());
        outbox.bytes.extend((FLAG_FIXED_NEWSTYLE | FLAG_NO_ZEROES).to_be_bytes());
        outbox
    }

    pub(crate) fn pending(&self) -> &[u8] {
        &self.bytes[self.sent..]
    }

    pub(crate) fn sent(&mut self, count: usize) {
        assert!(count <= self.pending().len(), "more sent than there was");
        self.sent += count;
        if self.sent == self.bytes.len() {
            self.bytes.clear();
            self.sent = 0;
        }
    }

    /// One reply with its data.
    pub(crate) fn reply(&mut self, option: u32, reply: OptionReply, data: &[u8]) {
        self.header(option, reply, data.len());
        self.bytes.extend_from_slice(data);
    }

    fn header(&mut self, option: u32, reply: OptionReply, data_bytes: usize) {
        let length = u32::try_from(data_bytes).expect("a reply is made of bounded strings");
        self.bytes.extend(OPTION_REPLY_MAGIC.to_be_bytes());
        self.bytes.extend(option.to_be_bytes());
        self.bytes.extend(reply.to_wire().to_be_bytes());
        self.bytes.extend(length.to_be_bytes());
    }

    /// One line of a list.
    pub(crate) fn server(&mut self, export: &ListedExport) {
        assert!(export.name.len() <= STRING_BYTES_MAX, "an export's name is longer than NBD allows");
        let description = bounded_text(&export.description);
        let data_bytes = 4 + export.name.len() + description.len();
        self.header(OptionKind::List.to_wire(), OptionReply::Server, data_bytes);
        self.bytes.extend((export.name.len() as u32).to_be_bytes());
        self.bytes.extend_from_slice(export.name.as_bytes());
        self.bytes.extend_from_slice(description.as_bytes());
    }

    /// The successful answer to INFO or GO: what was wanted, then the acknowledgement.
    pub(crate) fn export(
        &mut self,
        kind: OptionKind,
        wanted: InfoWanted,
        export: &ExportInfo,
        flags: TransmissionFlags,
    ) {
        self.header(kind.to_wire(), OptionReply::Info, 12);
        self.bytes.extend(InfoKind::Export.to_wire().to_be_bytes());
        self.bytes.extend(export.size_bytes.to_be_bytes());
        self.bytes.extend(flags.to_wire().to_be_bytes());
        if wanted.name {
            self.info_text(kind, InfoKind::Name, &export.canonical_name);
        }
        if wanted.description && !export.description.is_empty() {
            self.info_text(kind, InfoKind::Description, bounded_text(&export.description));
        }
        if wanted.block_sizes {
            let sizes = export.block_sizes;
            self.header(kind.to_wire(), OptionReply::Info, 14);
            self.bytes.extend(InfoKind::BlockSize.to_wire().to_be_bytes());
            for bytes in [sizes.minimum, sizes.preferred, sizes.payload_max] {
                self.bytes.extend(bytes.to_be_bytes());
            }
        }
        self.reply(kind.to_wire(), OptionReply::Ack, &[]);
    }

    fn info_text(&mut self, kind: OptionKind, info: InfoKind, text: &str) {
        self.header(kind.to_wire(), OptionReply::Info, 2 + text.len());
        self.bytes.extend(info.to_wire().to_be_bytes());
        self.bytes.extend_from_slice(text.as_bytes());
    }

    /// The successful answer to LIST_META_CONTEXT or SET_META_CONTEXT.
    pub(crate) fn meta_contexts(&mut self, kind: OptionKind, contexts: MetaContexts) {
        for context in contexts.iter() {
            // Ids mean something only to the choice; a list carries zeroes.
            let id = if kind == OptionKind::SetMetaContext { context.id() } else { 0 };
            self.header(kind.to_wire(), OptionReply::MetaContext, 4 + context.name().len());
            self.bytes.extend(id.to_be_bytes());
            self.bytes.extend_from_slice(context.name().as_bytes());
        }
        self.reply(kind.to_wire(), OptionReply::Ack, &[]);
    }

    /// The successful answer to EXPORT_NAME.
    pub(crate) fn export_name_answer(&mut self, size_bytes: u64, flags: TransmissionFlags, padded: bool) {
        self.bytes.extend(size_bytes.to_be_bytes());
        self.bytes.extend(flags.to_wire().to_be_bytes());
        if padded {
            self.bytes.extend([0; EXPORT_NAME_PADDING_BYTES]);
        }
    }

    pub(crate) fn capacity(&self) -> usize {
        self.bytes.capacity()
    }
}
