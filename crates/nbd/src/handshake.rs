//! The server's side of the handshake: fixed newstyle, as a machine that is fed bytes and never waits.
//!
//! The driver repeats three steps. It sends [`ServerHandshake::output`], and reports the sent bytes by
//! [`ServerHandshake::output_sent`]. It takes [`ServerHandshake::poll_event`] and answers the event. It passes received bytes
//! to [`ServerHandshake::handle`]. `handle` takes bytes up to the next decision and leaves the rest to the driver, which offers
//! them again after its answer. So no more than one option's data is ever held. When transmission begins, the bytes that were
//! not taken are the first request's.
//!
//! Bounds: [`OPTION_BYTES_MAX`] of data for one option, [`OPTION_SKIP_BYTES_MAX`] read and discarded for a longer one,
//! [`OPTIONS_MAX`] options. No byte is taken while more than [`OUTPUT_BYTES_MAX`] wait to be sent. A violation of the
//! protocol's framing closes the connection; any other mistake is answered with an error.
//!
//! TLS: a byte offered between the answer to STARTTLS and [`ServerHandshake::tls_established`] closes the connection. An
//! attacker could have written it in the clear to pass for the client later. All that was negotiated before TLS is forgotten.

use crate::cursor::{Cursor, fill};
use crate::export::{ExportInfo, ListedExport, Refusal};
use crate::option::{self, InfoWanted, Malformed, MetaPurpose};
use crate::outbox::Outbox;
use crate::wire::{
    CLIENT_FLAG_FIXED_NEWSTYLE, CLIENT_FLAG_NO_ZEROES, MetaContexts, OPTION_HEADER_BYTES, OPTION_MAGIC, OptionKind,
    OptionReply, STRING_BYTES_MAX, TransmissionFlags,
};

pub use crate::event::{Closed, Event, Negotiated, TlsMode};

/// Most data of one option that are looked at, in bytes.
pub const OPTION_BYTES_MAX: usize = 64 << 10;
/// Most data of one option that are read and thrown away; an option that announces more closes the connection.
pub const OPTION_SKIP_BYTES_MAX: u32 = 1 << 20;
/// Options a client may send before it enters transmission.
pub const OPTIONS_MAX: u32 = 256;
/// Once more bytes than this wait to be sent, none is taken.
pub const OUTPUT_BYTES_MAX: usize = 64 << 10;

/// Purpose of the lookup of an export.
#[derive(Clone, Debug)]
enum Wanted {
    ExportName { name: String },
    Info { wanted: InfoWanted },
    Go { name: String, wanted: InfoWanted },
    ListMeta { matched: MetaContexts },
    SetMeta { name: String, matched: MetaContexts },
}

#[derive(Debug)]
enum State {
    ClientFlags,
    OptionHeader,
    OptionData {
        kind: OptionKind,
        length: usize,
    },
    /// Throwing away an option's data; `reply` goes out when they are gone.
    Skip {
        option: u32,
        rest: u32,
        reply: OptionReply,
        text: &'static str,
    },
    AwaitList,
    AwaitExport(Wanted),
    AwaitTls,
    /// Transmission or closed: nothing is taken any more.
    Over,
}

/// A server's handshake with one client.
#[derive(Debug)]
pub struct ServerHandshake {
    tls_mode: TlsMode,
    state: State,
    /// The start of a message that has not arrived in full.
    partial: Vec<u8>,
    outbox: Outbox,
    event: Option<Event>,
    options_seen: u32,
    fixed_newstyle: bool,
    no_zeroes: bool,
    tls: bool,
    structured_replies: bool,
    /// Choice of SET_META_CONTEXT, and the export name that it is for.
    meta_contexts: Option<(String, MetaContexts)>,
}

impl ServerHandshake {
    /// A handshake whose greeting waits in the output.
    pub fn new(tls_mode: TlsMode) -> Self {
        Self {
            tls_mode,
            state: State::ClientFlags,
            partial: Vec::new(),
            outbox: Outbox::with_greeting(),
            event: None,
            options_seen: 0,
            fixed_newstyle: false,
            no_zeroes: false,
            tls: false,
            structured_replies: false,
            meta_contexts: None,
        }
    }

    /// Takes bytes from the client; answers how many. Fewer than all are taken where an event waits for its
    /// answer, too much output waits to be sent, or the handshake is over.
    pub fn handle(&mut self, input: &[u8]) -> usize {
        let mut rest = input;
        while !rest.is_empty() && self.output().len() <= OUTPUT_BYTES_MAX {
            match &mut self.state {
                State::AwaitList | State::AwaitExport(_) | State::Over => break,
                State::AwaitTls => self.close(Closed::PlaintextAfterStartTls),
                State::ClientFlags => {
                    if fill(&mut self.partial, &mut rest, 4) {
                        self.handle_client_flags();
                    }
                }
                State::OptionHeader => {
                    if fill(&mut self.partial, &mut rest, OPTION_HEADER_BYTES) {
                        self.handle_option_header();
                    }
                }
                State::OptionData { kind, length } => {
                    let (kind, length) = (*kind, *length);
                    if fill(&mut self.partial, &mut rest, length) {
                        let data = std::mem::take(&mut self.partial);
                        self.handle_option(kind, &data);
                    }
                }
                State::Skip { rest: left, .. } => {
                    let count = rest.len().min(*left as usize);
                    rest = &rest[count..];
                    *left -= count as u32;
                    self.end_skip_when_done();
                }
            }
        }
        input.len() - rest.len()
    }

    /// Bytes to send to the client.
    pub fn output(&self) -> &[u8] {
        self.outbox.pending()
    }

    /// Forgets the first `count` bytes of the output, which were sent.
    pub fn output_sent(&mut self, count: usize) {
        self.outbox.sent(count);
    }

    /// The next thing for the driver to do. Nothing is taken from the client until it was polled and answered.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.event.take()
    }

    /// Answers [`Event::ListExports`] with the exports that this client may see, or why it may see none.
    pub fn answer_list(&mut self, exports: Result<&[ListedExport], Refusal>) {
        assert!(matches!(self.state, State::AwaitList) && self.event.is_none(), "no list was asked for");
        match exports {
            Ok(exports) => {
                for export in exports {
                    self.outbox.server(export);
                }
                self.outbox.reply(OptionKind::List.to_wire(), OptionReply::Ack, &[]);
            }
            Err(refusal) => self.reply_refusal(OptionKind::List, &refusal),
        }
        self.next_option();
    }

    /// Answers [`Event::LookUpExport`] with the export, or why the client does not get it.
    ///
    /// Panics on block sizes that the specification forbids.
    pub fn answer_export(&mut self, answer: Result<ExportInfo, Refusal>) {
        assert!(self.event.is_none(), "the question was not polled");
        let State::AwaitExport(wanted) = std::mem::replace(&mut self.state, State::OptionHeader) else {
            panic!("no export was asked for");
        };
        match answer {
            Ok(export) => {
                export.check();
                self.grant(wanted, export);
            }
            Err(refusal) => self.refuse(&wanted, &refusal),
        }
    }

    /// Answers [`Event::StartTls`]: from now on the bytes are those inside TLS.
    ///
    /// Panics if output that must go out in the clear was not sent.
    pub fn tls_established(&mut self) {
        assert!(matches!(self.state, State::AwaitTls) && self.event.is_none(), "no TLS was asked for");
        assert!(self.output().is_empty(), "the answer to STARTTLS goes out before TLS starts");
        self.tls = true;
        self.structured_replies = false;
        self.meta_contexts = None;
        self.next_option();
    }

    fn handle_client_flags(&mut self) {
        let flags = Cursor::new(&self.partial).u32().expect("four bytes were read");
        self.partial.clear();
        if flags & !(CLIENT_FLAG_FIXED_NEWSTYLE | CLIENT_FLAG_NO_ZEROES) != 0 {
            return self.close(Closed::UnknownClientFlags(flags));
        }
        self.fixed_newstyle = flags & CLIENT_FLAG_FIXED_NEWSTYLE != 0;
        self.no_zeroes = flags & CLIENT_FLAG_NO_ZEROES != 0;
        self.next_option();
    }

    /// Decides by the header alone whether the data are worth holding.
    fn handle_option_header(&mut self) {
        let mut cursor = Cursor::new(&self.partial);
        let (magic, option, length) = match (cursor.u64(), cursor.u32(), cursor.u32()) {
            (Some(magic), Some(option), Some(length)) => (magic, option, length),
            _ => unreachable!("sixteen bytes were read"),
        };
        self.partial.clear();
        self.options_seen += 1;
        if magic != OPTION_MAGIC {
            return self.close(Closed::BadOptionMagic(magic));
        }
        if self.options_seen > OPTIONS_MAX {
            return self.close(Closed::TooManyOptions);
        }
        let kind = OptionKind::from_wire(option);
        if !self.fixed_newstyle && kind != Some(OptionKind::ExportName) {
            return self.close(Closed::NotFixedNewstyle(option));
        }
        if length > OPTION_SKIP_BYTES_MAX {
            return self.close(Closed::OptionTooLong(length));
        }
        let tls_missing = self.tls_mode == TlsMode::Required && !self.tls;
        let skip = |reply, text| State::Skip { option, rest: length, reply, text };
        self.state = match kind {
            Some(OptionKind::ExportName) if tls_missing => return self.close(Closed::TlsRequired),
            Some(OptionKind::ExportName) if length as usize > STRING_BYTES_MAX => {
                return self.close(Closed::ExportNameRefused);
            }
            // ABORT's data are ignored by the specification's wish.
            Some(OptionKind::Abort) => skip(OptionReply::Ack, ""),
            Some(OptionKind::StartTls) if length == 0 => return self.handle_option(OptionKind::StartTls, &[]),
            Some(kind) if tls_missing && kind != OptionKind::StartTls => {
                skip(OptionReply::ErrTlsRequired, "this server requires TLS: send STARTTLS first")
            }
            None if tls_missing => skip(OptionReply::ErrTlsRequired, "this server requires TLS: send STARTTLS first"),
            None => skip(OptionReply::ErrUnsupported, "unknown option"),
            Some(kind) => {
                // A failed SET_META_CONTEXT, too, ends what an earlier one chose.
                if kind == OptionKind::SetMetaContext {
                    self.meta_contexts = None;
                }
                if length as usize > OPTION_BYTES_MAX {
                    skip(OptionReply::ErrTooBig, "the option's data are longer than 64 KiB")
                } else if length == 0 {
                    return self.handle_option(kind, &[]);
                } else {
                    State::OptionData { kind, length: length as usize }
                }
            }
        };
        self.end_skip_when_done();
    }

    fn end_skip_when_done(&mut self) {
        if let State::Skip { option, rest: 0, reply, text } = self.state {
            self.outbox.reply(option, reply, text.as_bytes());
            if option == OptionKind::Abort.to_wire() {
                self.close(Closed::Aborted);
            } else {
                self.next_option();
            }
        }
    }

    fn handle_option(&mut self, kind: OptionKind, data: &[u8]) {
        match kind {
            OptionKind::ExportName => match option::string(data) {
                Ok(name) => self.look_up(name, true, Wanted::ExportName { name: name.to_owned() }),
                Err(_) => self.close(Closed::ExportNameRefused),
            },
            OptionKind::List | OptionKind::StructuredReply | OptionKind::StartTls if !data.is_empty() => {
                self.reply_malformed(kind, "the option has no data");
            }
            OptionKind::List => {
                self.state = State::AwaitList;
                self.event = Some(Event::ListExports);
            }
            OptionKind::StructuredReply => {
                self.structured_replies = true;
                self.outbox.reply(kind.to_wire(), OptionReply::Ack, &[]);
                self.next_option();
            }
            OptionKind::StartTls => self.handle_start_tls(),
            OptionKind::Info | OptionKind::Go => match option::info_or_go(data) {
                Ok((name, wanted)) if kind == OptionKind::Go => {
                    self.look_up(name, true, Wanted::Go { name: name.to_owned(), wanted });
                }
                Ok((name, wanted)) => self.look_up(name, false, Wanted::Info { wanted }),
                Err(malformed) => self.reply_malformed(kind, malformed),
            },
            OptionKind::ListMetaContext | OptionKind::SetMetaContext => self.handle_meta_context(kind, data),
            OptionKind::Abort => unreachable!("ABORT's data are skipped"),
        }
    }

    fn handle_start_tls(&mut self) {
        let option = OptionKind::StartTls.to_wire();
        if self.tls {
            self.reply_malformed(OptionKind::StartTls, "TLS runs already");
        } else if self.tls_mode == TlsMode::Off {
            self.outbox.reply(option, OptionReply::ErrPolicy, b"this server does not offer TLS");
            self.next_option();
        } else {
            self.outbox.reply(option, OptionReply::Ack, &[]);
            self.state = State::AwaitTls;
            self.event = Some(Event::StartTls);
        }
    }

    fn handle_meta_context(&mut self, kind: OptionKind, data: &[u8]) {
        let purpose = if kind == OptionKind::SetMetaContext { MetaPurpose::Set } else { MetaPurpose::List };
        match option::meta_context(data, purpose) {
            Err(malformed) => self.reply_malformed(kind, malformed),
            Ok(_) if !self.structured_replies => {
                self.reply_malformed(kind, "metadata contexts need structured replies: send STRUCTURED_REPLY first");
            }
            Ok((name, matched)) if purpose == MetaPurpose::Set => {
                self.look_up(name, false, Wanted::SetMeta { name: name.to_owned(), matched });
            }
            Ok((name, matched)) => self.look_up(name, false, Wanted::ListMeta { matched }),
        }
    }

    fn look_up(&mut self, name: &str, opens: bool, wanted: Wanted) {
        self.state = State::AwaitExport(wanted);
        self.event = Some(Event::LookUpExport { name: name.to_owned(), opens });
    }

    fn grant(&mut self, wanted: Wanted, export: ExportInfo) {
        match wanted {
            Wanted::ExportName { name } => {
                self.outbox.export_name_answer(export.size_bytes, self.flags_of(&export), !self.no_zeroes);
                self.enter_transmission(name, export, false);
            }
            Wanted::Info { wanted } => {
                self.outbox.export(OptionKind::Info, wanted, &export, self.flags_of(&export));
                self.next_option();
            }
            Wanted::Go { name, wanted } => {
                self.outbox.export(OptionKind::Go, wanted, &export, self.flags_of(&export));
                self.enter_transmission(name, export, wanted.block_sizes);
            }
            Wanted::ListMeta { matched } => {
                self.outbox.meta_contexts(OptionKind::ListMetaContext, matched.and(export.meta_contexts));
                self.next_option();
            }
            Wanted::SetMeta { name, matched } => {
                let chosen = matched.and(export.meta_contexts);
                self.meta_contexts = Some((name, chosen));
                self.outbox.meta_contexts(OptionKind::SetMetaContext, chosen);
                self.next_option();
            }
        }
    }

    fn refuse(&mut self, wanted: &Wanted, refusal: &Refusal) {
        let kind = match wanted {
            Wanted::ExportName { .. } => return self.close(Closed::ExportNameRefused),
            Wanted::Info { .. } => OptionKind::Info,
            Wanted::Go { .. } => OptionKind::Go,
            Wanted::ListMeta { .. } => OptionKind::ListMetaContext,
            Wanted::SetMeta { .. } => OptionKind::SetMetaContext,
        };
        self.reply_refusal(kind, refusal);
        self.next_option();
    }

    fn flags_of(&self, export: &ExportInfo) -> TransmissionFlags {
        export.flags_for(self.structured_replies)
    }

    fn enter_transmission(&mut self, export_name: String, export: ExportInfo, block_sizes_told: bool) {
        // Contexts hold for the export they were chosen on, named in the very same way.
        let meta_contexts = match self.meta_contexts.take() {
            Some((name, contexts)) if name == export_name => contexts,
            _ => MetaContexts::EMPTY,
        };
        self.state = State::Over;
        self.event = Some(Event::Transmission(Box::new(Negotiated {
            flags: self.flags_of(&export),
            export_name,
            export,
            structured_replies: self.structured_replies,
            meta_contexts,
            block_sizes_told,
            no_zeroes: self.no_zeroes,
            tls: self.tls,
        })));
    }

    fn next_option(&mut self) {
        self.partial.clear();
        self.state = State::OptionHeader;
    }

    /// Ends the handshake. An event that the driver has not polled (STARTTLS, then bytes in the clear) is void.
    fn close(&mut self, reason: Closed) {
        self.partial = Vec::new();
        self.state = State::Over;
        self.event = Some(Event::Closed(reason));
    }

    fn reply_malformed(&mut self, kind: OptionKind, reason: Malformed) {
        self.outbox.reply(kind.to_wire(), OptionReply::ErrInvalid, reason.as_bytes());
        self.next_option();
    }

    fn reply_refusal(&mut self, kind: OptionKind, refusal: &Refusal) {
        self.outbox.reply(kind.to_wire(), refusal.reply(self.tls), refusal.wire_text().as_bytes());
    }

    /// Bytes of memory held for this client: what it sent and was not understood yet, and what waits to be sent.
    pub fn held_bytes(&self) -> usize {
        self.partial.capacity() + self.outbox.capacity()
    }
}
