//! The client's side of the handshake, as a machine that is fed bytes and never waits.
//!
//! It goes through what its [`Wishes`] ask for, in one fixed order: STARTTLS, LIST, STRUCTURED_REPLY,
//! SET_META_CONTEXT, GO. A server that lacks structured replies gets none asked of it later; one that lacks GO,
//! or fixed newstyle altogether, is sent EXPORT_NAME. Its driver works as the server's does: send
//! [`ClientHandshake::output`], poll events, feed [`ClientHandshake::handle`].

use std::fmt;

use crate::cursor::{Cursor, fill};
use crate::export::{BlockSizes, ListedExport};
use crate::wire::{
    CLIENT_FLAG_FIXED_NEWSTYLE, CLIENT_FLAG_NO_ZEROES, EXPORT_NAME_PADDING_BYTES, FLAG_FIXED_NEWSTYLE, FLAG_NO_ZEROES,
    GREETING_BYTES, GREETING_MAGIC, InfoKind, OPTION_MAGIC, OPTION_REPLY_ERROR_BIT, OPTION_REPLY_HEADER_BYTES,
    OPTION_REPLY_MAGIC, OptionKind, OptionReply, STRING_BYTES_MAX, TransmissionFlags,
};

/// Longest data of one reply that a server may send, in bytes.
pub const OPTION_REPLY_BYTES_MAX: usize = 64 << 10;
/// Most bytes of replies to one option, headers and our bookkeeping of each included.
pub const OPTION_REPLIES_BYTES_MAX: usize = 16 << 20;
/// Most metadata contexts that a server may choose for us.
pub const META_CONTEXTS_MAX: usize = 64;

/// Cost of a reply beside its data, for [`OPTION_REPLIES_BYTES_MAX`].
const REPLY_OVERHEAD_BYTES: usize = 64;

/// Options that a client asks for on a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wishes {
    /// The export to open, at most 4096 bytes; `None` ends the session after the list.
    pub export_name: Option<String>,
    /// Ask for the list of exports first.
    pub list: bool,
    /// Upgrade to TLS before anything else; without it the handshake fails.
    pub tls: bool,
    /// Use structured replies if the server has them.
    pub structured_replies: bool,
    /// Names of metadata contexts for BLOCK_STATUS; asked for where there are structured replies.
    pub meta_contexts: Vec<String>,
}

impl Wishes {
    /// Opens `export_name` with structured replies and `base:allocation`, where the server has them.
    pub fn open(export_name: impl Into<String>) -> Self {
        Self {
            export_name: Some(export_name.into()),
            list: false,
            tls: false,
            structured_replies: true,
            meta_contexts: vec!["base:allocation".into()],
        }
    }
}

/// Results of the machine, and its requests to the driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientEvent {
    /// The server's exports, or why it does not list them.
    Listed(Result<Vec<ListedExport>, Refused>),
    /// Send the output, upgrade the stream, then call [`ClientHandshake::tls_established`].
    StartTls,
    /// The export is open. Bytes that were not taken belong to the first reply.
    Transmission(Box<Opened>),
    /// The session ended as wished, without an export.
    Ended,
    /// The export is not open and will not be. Send the output, and close.
    Failed(ClientError),
}

/// Parameters negotiated for the transmission phase.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Opened {
    /// Size in bytes.
    pub size_bytes: u64,
    /// Abilities of the export.
    pub flags: TransmissionFlags,
    /// Size constraints, if the server sent them.
    pub block_sizes: Option<BlockSizes>,
    /// The server's name for the export, if it sent one.
    pub canonical_name: Option<String>,
    /// For a human.
    pub description: Option<String>,
    /// Replies may be structured.
    pub structured_replies: bool,
    /// Chosen metadata contexts: the server's id, and the name.
    pub meta_contexts: Vec<(u32, String)>,
}

/// A server's "no" to an option.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The option's number.
    pub option: u32,
    /// The reply's type; see [`OptionReply`].
    pub reply: u32,
    /// The server's text, which may be empty.
    pub text: String,
}

/// Reason why a handshake failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientError {
    /// The server refused.
    Refused(Refused),
    /// The server is too old for the wish.
    NotFixedNewstyle,
    /// The server broke the protocol.
    Protocol(&'static str),
}

impl fmt::Display for ClientError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(Refused { option, reply, text }) => {
                write!(f, "the server refused option {option} with {reply:#x}")?;
                if text.is_empty() { Ok(()) } else { write!(f, ": {text}") }
            }
            Self::NotFixedNewstyle => f.write_str("the server speaks no fixed newstyle: no list and no TLS"),
            Self::Protocol(what) => write!(f, "the server broke the protocol: {what}"),
        }
    }
}

impl std::error::Error for ClientError {}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Greeting,
    /// Waiting for replies to an option.
    Haggling(OptionKind),
    /// A reply's header is there, its data are not.
    ReplyData {
        option: OptionKind,
        reply: u32,
        length: usize,
    },
    ExportNameAnswer,
    AwaitTls,
    Over,
}

/// A client's handshake with one server.
#[derive(Debug)]
pub struct ClientHandshake {
    wishes: Wishes,
    state: State,
    partial: Vec<u8>,
    output: Vec<u8>,
    event: Option<ClientEvent>,
    no_zeroes: bool,
    /// If true, [`InfoKind::Export`] has arrived.
    export_told: bool,
    /// Cost of the replies so far to the option under way, at most [`OPTION_REPLIES_BYTES_MAX`].
    reply_bytes: usize,
    exports: Vec<ListedExport>,
    opened: Opened,
}

impl ClientHandshake {
    /// A handshake that waits for the server's greeting. Panics on a name or context longer than 4096 bytes,
    /// and on more than [`META_CONTEXTS_MAX`] contexts.
    pub fn new(wishes: Wishes) -> Self {
        let strings = wishes.export_name.iter().chain(&wishes.meta_contexts);
        assert!(strings.into_iter().all(|text| text.len() <= STRING_BYTES_MAX), "a string longer than NBD allows");
        assert!(wishes.meta_contexts.len() <= META_CONTEXTS_MAX, "too many metadata contexts");
        Self {
            wishes,
            state: State::Greeting,
            partial: Vec::new(),
            output: Vec::new(),
            event: None,
            no_zeroes: false,
            export_told: false,
            reply_bytes: 0,
            exports: Vec::new(),
            opened: Opened::default(),
        }
    }

    /// Takes bytes from the server; answers how many. Fewer than all are taken where an event must be polled
    /// first, or the handshake is over.
    pub fn handle(&mut self, input: &[u8]) -> usize {
        let mut rest = input;
        while !rest.is_empty() && self.event.is_none() && self.state != State::Over {
            match self.state {
                State::Over => unreachable!("the loop ends there"),
                State::AwaitTls => self.fail("bytes in the clear after STARTTLS"),
                State::Greeting => {
                    if fill(&mut self.partial, &mut rest, GREETING_BYTES) {
                        self.handle_greeting();
                    }
                }
                State::Haggling(option) => {
                    if fill(&mut self.partial, &mut rest, OPTION_REPLY_HEADER_BYTES) {
                        self.handle_reply_header(option);
                    }
                }
                State::ReplyData { option, reply, length } => {
                    if fill(&mut self.partial, &mut rest, length) {
                        let data = std::mem::take(&mut self.partial);
                        self.state = State::Haggling(option);
                        self.handle_reply(option, reply, &data);
                    }
                }
                State::ExportNameAnswer => {
                    let padding = if self.no_zeroes { 0 } else { EXPORT_NAME_PADDING_BYTES };
                    if fill(&mut self.partial, &mut rest, 10 + padding) {
                        self.handle_export_name_answer();
                    }
                }
            }
        }
        input.len() - rest.len()
    }

    /// Bytes to send to the server.
    pub fn output(&self) -> &[u8] {
        &self.output
    }

    /// Forgets the first `count` bytes of the output, which were sent.
    pub fn output_sent(&mut self, count: usize) {
        self.output.drain(..count);
    }

    /// The next thing that happened.
    pub fn poll_event(&mut self) -> Option<ClientEvent> {
        self.event.take()
    }

    /// Answers [`ClientEvent::StartTls`]: from now on the bytes are those inside TLS.
    pub fn tls_established(&mut self) {
        assert!(self.state == State::AwaitTls && self.event.is_none(), "no TLS was asked for");
        assert!(self.output.is_empty(), "STARTTLS goes out before TLS starts");
        self.after(OptionKind::StartTls);
    }

    /// Bytes of memory held for what the server sent, never less than they are.
    pub fn held_bytes(&self) -> usize {
        self.partial.capacity() + self.reply_bytes
    }

    fn handle_greeting(&mut self) {
        let mut cursor = Cursor::new(&self.partial);
        let (init, option_magic, flags) = (cursor.u64(), cursor.u64(), cursor.u16().unwrap_or(0));
        self.partial.clear();
        if init != Some(GREETING_MAGIC) || option_magic != Some(OPTION_MAGIC) {
            return self.fail("no newstyle greeting");
        }
        let fixed = flags & FLAG_FIXED_NEWSTYLE != 0;
        self.no_zeroes = flags & FLAG_NO_ZEROES != 0;
        let client_flags =
            if fixed { CLIENT_FLAG_FIXED_NEWSTYLE } else { 0 } | if self.no_zeroes { CLIENT_FLAG_NO_ZEROES } else { 0 };
        self.output.extend(client_flags.to_be_bytes());
        if fixed {
            self.start();
        } else if self.wishes.tls || self.wishes.list || self.wishes.export_name.is_none() {
            self.end(ClientEvent::Failed(ClientError::NotFixedNewstyle));
        } else {
            self.send_export_name();
        }
    }

    fn start(&mut self) {
        if self.wishes.tls {
            self.send(OptionKind::StartTls, &[]);
        } else {
            self.after(OptionKind::StartTls);
        }
    }

    /// Sends the first option, in the order of the module's head, that comes after `done` and is wished for.
    fn after(&mut self, done: OptionKind) {
        use OptionKind as O;
        let structured = self.wishes.structured_replies && self.wishes.export_name.is_some();
        match done {
            O::StartTls if self.wishes.list => self.send(O::List, &[]),
            O::StartTls | O::List if structured => self.send(O::StructuredReply, &[]),
            O::StructuredReply if self.opened.structured_replies && !self.wishes.meta_contexts.is_empty() => {
                self.send_set_meta_context();
            }
            _ => match self.wishes.export_name.clone() {
                Some(name) => self.send_go(&name),
                None => self.send(O::Abort, &[]),
            },
        }
    }

    fn send(&mut self, option: OptionKind, data: &[u8]) {
        self.output.extend(OPTION_MAGIC.to_be_bytes());
        self.output.extend(option.to_wire().to_be_bytes());
        self.output.extend((data.len() as u32).to_be_bytes());
        self.output.extend_from_slice(data);
        self.reply_bytes = 0;
        self.state = State::Haggling(option);
    }

    fn send_set_meta_context(&mut self) {
        let name = self.wishes.export_name.as_deref().unwrap_or_default();
        let mut data = Vec::new();
        push_string(&mut data, name);
        data.extend((self.wishes.meta_contexts.len() as u32).to_be_bytes());
        for query in &self.wishes.meta_contexts {
            push_string(&mut data, query);
        }
        self.send(OptionKind::SetMetaContext, &data);
    }

    fn send_go(&mut self, name: &str) {
        let mut data = Vec::new();
        push_string(&mut data, name);
        let wanted = [InfoKind::Name, InfoKind::Description, InfoKind::BlockSize];
        data.extend((wanted.len() as u16).to_be_bytes());
        for kind in wanted {
            data.extend(kind.to_wire().to_be_bytes());
        }
        self.send(OptionKind::Go, &data);
    }

    fn send_export_name(&mut self) {
        let name = self.wishes.export_name.clone().unwrap_or_default();
        self.send(OptionKind::ExportName, name.as_bytes());
        self.state = State::ExportNameAnswer;
    }

    fn handle_export_name_answer(&mut self) {
        let mut cursor = Cursor::new(&self.partial);
        self.opened.size_bytes = cursor.u64().unwrap_or(0);
        self.opened.flags = TransmissionFlags::from_wire(cursor.u16().unwrap_or(0));
        self.partial = Vec::new();
        self.open();
    }

    fn handle_reply_header(&mut self, option: OptionKind) {
        let mut cursor = Cursor::new(&self.partial);
        let (magic, replied) = (cursor.u64(), cursor.u32());
        let (reply, length) = (cursor.u32().unwrap_or(0), cursor.u32().unwrap_or(0) as usize);
        self.partial.clear();
        if magic != Some(OPTION_REPLY_MAGIC) {
            return self.fail("a reply without its magic");
        }
        if replied != Some(option.to_wire()) {
            return self.fail("a reply to an option that was not sent");
        }
        let reply_bytes = self.reply_bytes + length + REPLY_OVERHEAD_BYTES;
        if length > OPTION_REPLY_BYTES_MAX || reply_bytes > OPTION_REPLIES_BYTES_MAX {
            return self.fail("replies longer than we hold");
        }
        self.reply_bytes = reply_bytes;
        if length == 0 {
            self.handle_reply(option, reply, &[]);
        } else {
            self.state = State::ReplyData { option, reply, length };
        }
    }

    fn handle_reply(&mut self, option: OptionKind, reply: u32, data: &[u8]) {
        if reply & OPTION_REPLY_ERROR_BIT != 0 {
            let text = String::from_utf8_lossy(data).into_owned();
            return self.handle_refused(option, Refused { option: option.to_wire(), reply, text });
        }
        let understood = match (OptionReply::from_wire(reply), option) {
            (Some(OptionReply::Ack), _) => return self.handle_ack(option),
            (Some(OptionReply::Server), OptionKind::List) => self.handle_server(data),
            (Some(OptionReply::Info), OptionKind::Go) => self.handle_info(data),
            (Some(OptionReply::MetaContext), OptionKind::SetMetaContext) => self.handle_context(data),
            _ => None,
        };
        if understood.is_none() {
            self.fail("a reply that does not fit its option");
        }
    }

    fn handle_ack(&mut self, option: OptionKind) {
        match option {
            OptionKind::StartTls => {
                self.state = State::AwaitTls;
                self.event = Some(ClientEvent::StartTls);
            }
            OptionKind::List => {
                let exports = std::mem::take(&mut self.exports);
                self.event = Some(ClientEvent::Listed(Ok(exports)));
                self.after(option);
            }
            OptionKind::StructuredReply => {
                self.opened.structured_replies = true;
                self.after(option);
            }
            OptionKind::Go if self.export_told => self.open(),
            OptionKind::Go => self.fail("an export without its size"),
            OptionKind::Abort => self.end(ClientEvent::Ended),
            _ => self.after(option),
        }
    }

    fn handle_refused(&mut self, option: OptionKind, refused: Refused) {
        match option {
            OptionKind::List => {
                self.event = Some(ClientEvent::Listed(Err(refused)));
                self.after(option);
            }
            OptionKind::StructuredReply => self.after(option),
            OptionKind::SetMetaContext => {
                // What came before an error does not count (`NBD proto.md`, NBD_OPT_LIST_META_CONTEXT).
                self.opened.meta_contexts.clear();
                self.after(option);
            }
            OptionKind::Go if refused.reply == OptionReply::ErrUnsupported.to_wire() => self.send_export_name(),
            OptionKind::Abort => self.end(ClientEvent::Ended),
            _ => {
                // A client leaves with ABORT; whether the answer is waited for is the driver's choice.
                self.send(OptionKind::Abort, &[]);
                self.end(ClientEvent::Failed(ClientError::Refused(refused)));
            }
        }
    }

    fn handle_server(&mut self, data: &[u8]) -> Option<()> {
        let mut cursor = Cursor::new(data);
        let length = cursor.u32()? as usize;
        let name = String::from_utf8(cursor.bytes(length)?.to_vec()).ok()?;
        self.exports.push(ListedExport { name, description: String::from_utf8_lossy(cursor.rest()).into_owned() });
        Some(())
    }

    fn handle_info(&mut self, data: &[u8]) -> Option<()> {
        let mut cursor = Cursor::new(data);
        match InfoKind::from_wire(cursor.u16()?) {
            Some(InfoKind::Export) => {
                self.opened.size_bytes = cursor.u64()?;
                self.opened.flags = TransmissionFlags::from_wire(cursor.u16()?);
                self.export_told = true;
            }
            Some(InfoKind::Name) => {
                self.opened.canonical_name = Some(String::from_utf8(cursor.rest().to_vec()).ok()?);
                return Some(());
            }
            Some(InfoKind::Description) => {
                self.opened.description = Some(String::from_utf8_lossy(cursor.rest()).into_owned());
                return Some(());
            }
            Some(InfoKind::BlockSize) => {
                let sizes = BlockSizes { minimum: cursor.u32()?, preferred: cursor.u32()?, payload_max: cursor.u32()? };
                self.opened.block_sizes = Some(sizes).filter(BlockSizes::is_valid);
                self.opened.block_sizes?;
            }
            None => return Some(()),
        }
        cursor.is_empty().then_some(())
    }

    fn handle_context(&mut self, data: &[u8]) -> Option<()> {
        let mut cursor = Cursor::new(data);
        let id = cursor.u32()?;
        let name = String::from_utf8(cursor.rest().to_vec()).ok()?;
        let contexts = &mut self.opened.meta_contexts;
        if contexts.len() == META_CONTEXTS_MAX || contexts.iter().any(|(known, _)| *known == id) {
            return None;
        }
        contexts.push((id, name));
        Some(())
    }

    fn open(&mut self) {
        let opened = std::mem::take(&mut self.opened);
        self.end(ClientEvent::Transmission(Box::new(opened)));
    }

    fn fail(&mut self, what: &'static str) {
        self.end(ClientEvent::Failed(ClientError::Protocol(what)));
    }

    fn end(&mut self, event: ClientEvent) {
        self.partial = Vec::new();
        self.exports = Vec::new();
        self.reply_bytes = 0;
        self.state = State::Over;
        self.event = Some(event);
    }
}

fn push_string(data: &mut Vec<u8>, text: &str) {
    data.extend((text.len() as u32).to_be_bytes());
    data.extend_from_slice(text.as_bytes());
}
