//! The client's side of the transmission phase: requests out, replies in.
//!
//! [`Transactions::submit`] writes a request's header and remembers it; [`Transactions::poll`] takes a reply
//! apart into [`Reply`]s, the last of which is [`Reply::Done`]. The data of a READ are never copied: they are
//! slices of what was fed in, as they come. A READ whose `Done` follows no [`Reply::Error`] has been answered
//! byte for byte, once each; where the server does otherwise, the connection is given up.

use std::collections::BTreeMap;
use std::fmt;

use crate::coverage::{Coverage, CoverageError};
use crate::cursor::{Cursor, fill};
use crate::promise::Note;
use crate::request::Request;
use crate::wire::{
    CHUNK_ERROR_BIT, CHUNK_FLAG_DONE, CHUNK_HEADER_BYTES, ChunkKind, Command, CommandFlags, EXTENTS_MAX, ErrorCode,
    Extent, NoteKind, SIMPLE_REPLY_BYTES, SIMPLE_REPLY_MAGIC, STRUCTURED_REPLY_MAGIC,
};

/// Most requests in flight on one connection.
pub const IN_FLIGHT_MAX: usize = 1 << 16;
/// Most bytes of a chunk that are held until it is complete: a block status of [`EXTENTS_MAX`] extents.
pub const CHUNK_BYTES_MAX: usize = 4 + 8 * EXTENTS_MAX;
/// Longest chunk of notes to a READ, in bytes.
const NOTES_BYTES_MAX: usize = 4 + 8 * 64;
/// Longest payload of an error chunk, in bytes.
const ERROR_CHUNK_BYTES_MAX: usize = 16 << 10;

/// One step of the answer to a request, named by its cookie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply<'a> {
    /// The next bytes of a READ; a chunk comes in the same pieces in which it was fed in.
    Data {
        /// Request.
        cookie: u64,
        /// Offset of the bytes in the export.
        offset: u64,
        /// Never empty.
        bytes: &'a [u8],
    },
    /// A part of a READ that is all zeroes.
    Hole {
        /// Request.
        cookie: u64,
        /// Offset of its start.
        offset: u64,
        /// Bytes, never 0.
        length: u32,
    },
    /// Notes of the server about itself, or about a READ in flight ([`crate::promise`]).
    Notes {
        /// Request.
        cookie: u64,
        /// Those of known kinds.
        notes: Vec<Note>,
    },
    /// One metadata context's extents, from the request's offset on.
    Status {
        /// Request.
        cookie: u64,
        /// The context's id, one of those given to [`Transactions::new`].
        context_id: u32,
        /// At least one, none of length 0.
        extents: Vec<Extent>,
    },
    /// The request failed; `Done` still follows.
    Error {
        /// Request.
        cookie: u64,
        /// Error.
        code: ErrorCode,
        /// The server's words, which may be none.
        message: String,
        /// Offset of the error, if the server sent it; data before it are valid.
        offset: Option<u64>,
    },
    /// The reply is complete and the cookie free again.
    Done {
        /// Request.
        cookie: u64,
    },
}

/// Reason why a request was not written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SubmitError {
    /// A request with this cookie is in flight.
    CookieInUse,
    /// [`IN_FLIGHT_MAX`] requests are.
    TooManyInFlight,
    /// A READ of nothing, which servers answer as they please.
    EmptyRead,
}

impl fmt::Display for SubmitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::CookieInUse => f.write_str("a request with this cookie is in flight"),
            Self::TooManyInFlight => write!(f, "{IN_FLIGHT_MAX} requests are in flight"),
            Self::EmptyRead => f.write_str("a READ of no bytes"),
        }
    }
}

impl std::error::Error for SubmitError {}

/// Violation of the protocol by the server. The connection is of no use any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyError {
    /// Neither magic of a reply.
    BadMagic(u32),
    /// No request with this cookie is in flight.
    UnknownCookie(u64),
    /// A structured chunk where none was negotiated, or a simple reply to a READ where they were.
    WrongKind(u64),
    /// A chunk type that is unknown, or does not answer the request's command.
    UnexpectedChunk(u64, u16),
    /// A chunk whose length does not fit its type.
    BadLength(u64, u32),
    /// Content or an error outside the request's range, or content given twice.
    BadRange(u64),
    /// A READ declared done with bytes missing, or a block status with a context missing.
    Incomplete(u64),
    /// Content in more pieces than a sane server makes, or more than one where DF forbade it.
    Fragmented(u64),
    /// Extents that break the rules: empty, past the end, of an unknown context, or more than asked for.
    BadExtents(u64),
}

impl fmt::Display for ReplyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BadMagic(magic) => write!(f, "a reply starts with {magic:#010x}"),
            Self::UnknownCookie(cookie) => write!(f, "a reply to {cookie:#x}, which is not in flight"),
            Self::WrongKind(cookie) => write!(f, "a reply to {cookie:#x} of a kind that was not negotiated"),
            Self::UnexpectedChunk(cookie, kind) => write!(f, "a chunk of type {kind} in the reply to {cookie:#x}"),
            Self::BadLength(cookie, length) => write!(f, "a chunk of {length} bytes in the reply to {cookie:#x}"),
            Self::BadRange(cookie) => write!(f, "the reply to {cookie:#x} strays from the request's range"),
            Self::Incomplete(cookie) => write!(f, "the reply to {cookie:#x} ends before it is complete"),
            Self::Fragmented(cookie) => write!(f, "the reply to {cookie:#x} comes in too many chunks"),
            Self::BadExtents(cookie) => write!(f, "impossible extents in the reply to {cookie:#x}"),
        }
    }
}

impl std::error::Error for ReplyError {}

#[derive(Debug)]
struct Pending {
    request: Request,
    content: Coverage,
    content_chunks: u32,
    /// Bit `i` is set once the context at index `i` was reported.
    contexts_seen: u64,
    failed: bool,
}

#[derive(Clone, Copy, Debug)]
enum State {
    Header,
    /// `held` bytes of payload to hold before the chunk is understood (of a data chunk: its offset).
    Payload {
        cookie: u64,
        kind: u16,
        last: bool,
        chunk_bytes: u32,
        held: usize,
    },
    Data {
        cookie: u64,
        offset: u64,
        left: u32,
        last: bool,
    },
}

/// The requests in flight on one connection.
#[derive(Debug)]
pub struct Transactions {
    structured: bool,
    context_ids: Vec<u32>,
    /// The id of `x-plimsoll:promise`, where it was chosen.
    notes_id: Option<u32>,
    pending: BTreeMap<u64, Pending>,
    state: State,
    partial: Vec<u8>,
    /// A cookie whose reply is complete and only has to be reported.
    ending: Option<u64>,
    failure: Option<ReplyError>,
}

impl Transactions {
    /// A connection on which nothing is in flight. Panics on more than 64 context ids.
    pub fn new(structured: bool, context_ids: Vec<u32>) -> Self {
        assert!(context_ids.len() <= 64, "more metadata contexts than a handshake gives");
        Self {
            structured,
            context_ids,
            notes_id: None,
            pending: BTreeMap::new(),
            state: State::Header,
            partial: Vec::new(),
            ending: None,
            failure: None,
        }
    }

    /// The context `x-plimsoll:promise` has this id, one of those given to [`Transactions::new`].
    pub fn with_promises(mut self, context_id: u32) -> Self {
        self.notes_id = Some(context_id);
        self
    }

    /// Appends a request's header to `out`; the payload of a WRITE is the caller's to send after it.
    ///
    /// Whether the server offers the command is not asked. A DISC is written, and not remembered; so is a CANCEL, whose
    /// cookie is another request's.
    pub fn submit(&mut self, out: &mut Vec<u8>, request: Request) -> Result<(), SubmitError> {
        if request.command == Command::Read && request.length == 0 {
            return Err(SubmitError::EmptyRead);
        }
        if request.command == Command::Cancel {
            out.extend_from_slice(&request.to_wire());
            return Ok(());
        }
        if self.pending.contains_key(&request.cookie) {
            return Err(SubmitError::CookieInUse);
        }
        if self.pending.len() == IN_FLIGHT_MAX {
            return Err(SubmitError::TooManyInFlight);
        }
        if request.command != Command::Disconnect {
            let pending =
                Pending { request, content: Coverage::default(), content_chunks: 0, contexts_seen: 0, failed: false };
            self.pending.insert(request.cookie, pending);
        }
        out.extend_from_slice(&request.to_wire());
        Ok(())
    }

    /// Requests whose `Done` has not been given.
    pub fn in_flight(&self) -> usize {
        self.pending.len()
    }

    /// Bytes of memory held for a chunk that has not arrived in full.
    pub fn held_bytes(&self) -> usize {
        self.partial.capacity()
    }

    /// Takes bytes from the front of `input` until there is an event; `None` wants more input.
    ///
    /// After an error it returns that error for ever.
    pub fn poll<'a>(&mut self, input: &mut &'a [u8]) -> Result<Option<Reply<'a>>, ReplyError> {
        if let Some(failure) = self.failure {
            return Err(failure);
        }
        let polled = self.step(input);
        self.failure = polled.as_ref().err().copied();
        polled
    }

    fn step<'a>(&mut self, input: &mut &'a [u8]) -> Result<Option<Reply<'a>>, ReplyError> {
        loop {
            if let Some(cookie) = self.ending.take() {
                return self.finish(cookie).map(Some);
            }
            match self.state {
                State::Header => {
                    if !self.fill_header(input)? {
                        return Ok(None);
                    }
                    if let Some(reply) = self.handle_header()? {
                        return Ok(Some(reply));
                    }
                }
                State::Payload { cookie, kind, last, chunk_bytes, held } => {
                    if !fill(&mut self.partial, input, held) {
                        return Ok(None);
                    }
                    let payload = std::mem::take(&mut self.partial);
                    self.state = State::Header;
                    if let Some(reply) = self.handle_payload(cookie, kind, last, chunk_bytes, &payload)? {
                        return Ok(Some(reply));
                    }
                }
                State::Data { cookie, offset, left, last } => {
                    if input.is_empty() {
                        return Ok(None);
                    }
                    let count = input.len().min(left as usize);
                    let (bytes, rest) = input.split_at(count);
                    *input = rest;
                    self.advance_data(cookie, offset + count as u64, left - count as u32, last);
                    return Ok(Some(Reply::Data { cookie, offset, bytes }));
                }
            }
        }
    }

    /// Gathers a header, whose length its magic decides.
    fn fill_header(&mut self, input: &mut &[u8]) -> Result<bool, ReplyError> {
        if self.partial.len() < 4 && !fill(&mut self.partial, input, 4) {
            return Ok(false);
        }
        match Cursor::new(&self.partial).u32() {
            Some(SIMPLE_REPLY_MAGIC) => Ok(fill(&mut self.partial, input, SIMPLE_REPLY_BYTES)),
            Some(STRUCTURED_REPLY_MAGIC) => Ok(fill(&mut self.partial, input, CHUNK_HEADER_BYTES)),
            other => Err(ReplyError::BadMagic(other.unwrap_or(0))),
        }
    }

    fn handle_header<'a>(&mut self) -> Result<Option<Reply<'a>>, ReplyError> {
        let header = std::mem::take(&mut self.partial);
        let mut cursor = Cursor::new(&header);
        let parsed = match cursor.u32() {
            Some(SIMPLE_REPLY_MAGIC) => {
                cursor.u32().zip(cursor.u64()).map(|(error, cookie)| self.handle_simple(cookie, error))
            }
            _ => match (cursor.u16(), cursor.u16(), cursor.u64(), cursor.u32()) {
                (Some(flags), Some(kind), Some(cookie), Some(length)) => {
                    Some(self.handle_chunk(cookie, flags, kind, length).map(|()| None))
                }
                _ => None,
            },
        };
        self.partial = header;
        self.partial.clear();
        parsed.expect("the header is complete")
    }

    fn handle_simple<'a>(&mut self, cookie: u64, error: u32) -> Result<Option<Reply<'a>>, ReplyError> {
        let pending = self.pending.get_mut(&cookie).ok_or(ReplyError::UnknownCookie(cookie))?;
        let request = pending.request;
        if self.structured && request.command == Command::Read {
            return Err(ReplyError::WrongKind(cookie));
        }
        if error != 0 {
            pending.failed = true;
            self.ending = Some(cookie);
            let code = ErrorCode::from_wire(error).unwrap_or(ErrorCode::Invalid);
            return Ok(Some(Reply::Error { cookie, code, message: String::new(), offset: None }));
        }
        if request.command == Command::Read {
            self.begin_data(cookie, request.offset, request.length, true)?;
        } else {
            self.ending = Some(cookie);
        }
        Ok(None)
    }

    /// Judges a chunk by its header, and sets the bytes of its payload that must be held to understand it.
    fn handle_chunk(&mut self, cookie: u64, flags: u16, kind: u16, length: u32) -> Result<(), ReplyError> {
        if !self.structured {
            return Err(ReplyError::WrongKind(cookie));
        }
        let pending = self.pending.get(&cookie).ok_or(ReplyError::UnknownCookie(cookie))?;
        let command = pending.request.command;
        let last = flags & CHUNK_FLAG_DONE != 0;
        let bytes = length as usize;
        let (fits, held) = match (ChunkKind::from_wire(kind), command) {
            (Some(ChunkKind::None), _) => (bytes == 0 && last, 0),
            (Some(ChunkKind::OffsetData), Command::Read) => (bytes > 8, 8),
            (Some(ChunkKind::OffsetHole), Command::Read) => (bytes == 12, bytes),
            (Some(ChunkKind::BlockStatus), Command::Read) if self.notes_id.is_some() => {
                (bytes >= 12 && bytes % 8 == 4 && bytes <= NOTES_BYTES_MAX, bytes)
            }
            (Some(ChunkKind::BlockStatus), Command::BlockStatus) => {
                (bytes >= 12 && bytes % 8 == 4 && bytes <= CHUNK_BYTES_MAX, bytes)
            }
            (Some(ChunkKind::ErrorOffset), _) => ((14..=ERROR_CHUNK_BYTES_MAX).contains(&bytes), bytes),
            _ if kind & CHUNK_ERROR_BIT != 0 => ((6..=ERROR_CHUNK_BYTES_MAX).contains(&bytes), bytes),
            _ => return Err(ReplyError::UnexpectedChunk(cookie, kind)),
        };
        if !fits {
            return Err(ReplyError::BadLength(cookie, length));
        }
        if held == 0 {
            self.ending = Some(cookie);
        } else {
            self.state = State::Payload { cookie, kind, last, chunk_bytes: length, held };
        }
        Ok(())
    }

    fn handle_payload<'a>(
        &mut self,
        cookie: u64,
        kind: u16,
        last: bool,
        chunk_bytes: u32,
        payload: &[u8],
    ) -> Result<Option<Reply<'a>>, ReplyError> {
        if last {
            self.ending = Some(cookie);
        }
        let mut cursor = Cursor::new(payload);
        let malformed = ReplyError::BadLength(cookie, chunk_bytes);
        match ChunkKind::from_wire(kind) {
            Some(ChunkKind::OffsetData) => {
                self.ending = None;
                let offset = cursor.u64().ok_or(malformed)?;
                self.begin_data(cookie, offset, chunk_bytes - 8, last)?;
                Ok(None)
            }
            Some(ChunkKind::OffsetHole) => {
                let (offset, length) = cursor.u64().zip(cursor.u32()).ok_or(malformed)?;
                self.cover(cookie, offset, length)?;
                Ok(Some(Reply::Hole { cookie, offset, length }))
            }
            Some(ChunkKind::BlockStatus) => {
                let context_id = cursor.u32().ok_or(malformed)?;
                if self.notes_id == Some(context_id) {
                    return self.handle_notes(cookie, cursor).map(Some);
                }
                if self.pending.get(&cookie).is_some_and(|p| p.request.command == Command::Read) {
                    return Err(ReplyError::UnexpectedChunk(cookie, kind));
                }
                let mut extents = Vec::with_capacity(payload.len() / 8);
                while let Some((length, status)) = cursor.u32().zip(cursor.u32()) {
                    extents.push(Extent { length, status });
                }
                self.check_extents(cookie, context_id, &extents)?;
                Ok(Some(Reply::Status { cookie, context_id, extents }))
            }
            _ => self.handle_error(cookie, kind, cursor).map(Some),
        }
    }

    fn handle_notes<'a>(&mut self, cookie: u64, mut cursor: Cursor<'_>) -> Result<Reply<'a>, ReplyError> {
        let index = self.context_ids.iter().position(|id| Some(*id) == self.notes_id);
        let pending = self.pending.get_mut(&cookie).ok_or(ReplyError::UnknownCookie(cookie))?;
        pending.contexts_seen |= index.map_or(0, |i| 1 << i);
        let mut notes = Vec::new();
        while let Some((kind, value)) = cursor.u32().zip(cursor.u32()) {
            notes.extend(NoteKind::from_wire(kind).map(|kind| (kind, value)));
        }
        Ok(Reply::Notes { cookie, notes })
    }

    fn handle_error<'a>(&mut self, cookie: u64, kind: u16, mut cursor: Cursor<'_>) -> Result<Reply<'a>, ReplyError> {
        let pending = self.pending.get_mut(&cookie).ok_or(ReplyError::UnknownCookie(cookie))?;
        pending.failed = true;
        let request = pending.request;
        let malformed = ReplyError::BadLength(cookie, cursor.rest().len() as u32);
        let error = cursor.u32().filter(|error| *error != 0).ok_or(malformed)?;
        let text_bytes = cursor.u16().ok_or(malformed)?;
        let text = cursor.bytes(text_bytes.into()).ok_or(malformed)?;
        let offset = match ChunkKind::from_wire(kind) {
            Some(ChunkKind::ErrorOffset) => Some(cursor.u64().ok_or(malformed)?),
            _ => None,
        };
        let end = request.offset.saturating_add(request.length.into());
        if offset.is_some_and(|offset| offset < request.offset || offset >= end) {
            return Err(ReplyError::BadRange(cookie));
        }
        let code = ErrorCode::from_wire(error).unwrap_or(ErrorCode::Invalid);
        Ok(Reply::Error { cookie, code, message: String::from_utf8_lossy(text).into_owned(), offset })
    }

    fn begin_data(&mut self, cookie: u64, offset: u64, length: u32, last: bool) -> Result<(), ReplyError> {
        self.cover(cookie, offset, length)?;
        self.state = State::Data { cookie, offset, left: length, last };
        Ok(())
    }

    fn advance_data(&mut self, cookie: u64, offset: u64, left: u32, last: bool) {
        if left > 0 {
            self.state = State::Data { cookie, offset, left, last };
            return;
        }
        self.state = State::Header;
        if last {
            self.ending = Some(cookie);
        }
    }

    /// Notes content of a READ, which must lie inside the request and be new.
    fn cover(&mut self, cookie: u64, offset: u64, length: u32) -> Result<(), ReplyError> {
        let pending = self.pending.get_mut(&cookie).ok_or(ReplyError::UnknownCookie(cookie))?;
        let request = pending.request;
        let end = offset.checked_add(length.into()).ok_or(ReplyError::BadRange(cookie))?;
        let inside = offset >= request.offset && end - request.offset <= u64::from(request.length);
        if length == 0 || !inside {
            return Err(ReplyError::BadRange(cookie));
        }
        pending.content_chunks += 1;
        if request.flags.contains(CommandFlags::DF) && pending.content_chunks > 1 {
            return Err(ReplyError::Fragmented(cookie));
        }
        pending.content.add(offset, end).map_err(|error| match error {
            CoverageError::Overlap => ReplyError::BadRange(cookie),
            CoverageError::TooManyPieces => ReplyError::Fragmented(cookie),
        })
    }

    fn check_extents(&mut self, cookie: u64, context_id: u32, extents: &[Extent]) -> Result<(), ReplyError> {
        let bad = ReplyError::BadExtents(cookie);
        let pending = self.pending.get_mut(&cookie).ok_or(ReplyError::UnknownCookie(cookie))?;
        let request = pending.request;
        let index = self.context_ids.iter().position(|id| *id == context_id).ok_or(bad)?;
        let (Some(final_extent), bit) = (extents.last(), 1u64 << index) else { return Err(bad) };
        let total: u64 = extents.iter().map(|extent| u64::from(extent.length)).sum();
        let before_final = total - u64::from(final_extent.length);
        let empty = extents.iter().any(|extent| extent.length == 0);
        let asked_for_one = request.flags.contains(CommandFlags::REQ_ONE);
        let too_many = asked_for_one && (extents.len() > 1 || total > u64::from(request.length));
        let beyond = extents.len() > 1 && before_final >= u64::from(request.length);
        if empty || too_many || beyond || pending.contexts_seen & bit != 0 {
            return Err(bad);
        }
        pending.contexts_seen |= bit;
        Ok(())
    }

    fn finish<'a>(&mut self, cookie: u64) -> Result<Reply<'a>, ReplyError> {
        let Pending { request, content, contexts_seen, failed, .. } =
            self.pending.remove(&cookie).ok_or(ReplyError::UnknownCookie(cookie))?;
        let complete = match request.command {
            Command::Read => content.is(request.offset, request.offset.saturating_add(request.length.into())),
            Command::BlockStatus => contexts_seen.count_ones() as usize == self.context_ids.len(),
            _ => true,
        };
        if complete || failed { Ok(Reply::Done { cookie }) } else { Err(ReplyError::Incomplete(cookie)) }
    }
}
