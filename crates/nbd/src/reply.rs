//! Replies of the transmission phase, appended to a buffer of the caller's.
//!
//! A data payload is never copied here: the caller sends the header that was appended, then the bytes from
//! wherever they lie. The plain functions write one message each; [`Replies`] chooses the kind of message that
//! a connection has negotiated.
//!
//! A READ can be answered whole ([`Replies::read_whole`]); a client with the DF flag or without structured replies accepts
//! nothing else. On structured connections it can be answered as any number of [`offset_data`] and [`offset_hole`] chunks, in
//! any order, that do not overlap. The last message is [`Last::Yes`], or [`end`] where an error could still come up while the
//! last data are sent.

use crate::request::Request;
use crate::wire::{
    CHUNK_FLAG_DONE, ChunkKind, CommandFlags, EXTENTS_MAX, ErrorCode, Extent, SIMPLE_REPLY_MAGIC,
    STRUCTURED_REPLY_MAGIC, bounded_text,
};

/// Position of a chunk in its reply: the last one, or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Last {
    /// It does (NBD_REPLY_FLAG_DONE).
    Yes,
    /// Others of the same cookie follow.
    No,
}

/// Appends a simple reply, all 16 bytes of it. `None` is success; the payload of a READ follows it.
pub fn simple(out: &mut Vec<u8>, cookie: u64, error: Option<ErrorCode>) {
    let mut message = [0; 16];
    message[..4].copy_from_slice(&SIMPLE_REPLY_MAGIC.to_be_bytes());
    message[4..8].copy_from_slice(&error.map_or(0, ErrorCode::to_wire).to_be_bytes());
    message[8..].copy_from_slice(&cookie.to_be_bytes());
    out.extend_from_slice(&message);
}

pub(crate) fn chunk_header(cookie: u64, kind: ChunkKind, last: Last, payload_bytes: u32) -> [u8; 20] {
    let flags = if last == Last::Yes { CHUNK_FLAG_DONE } else { 0 };
    let mut header = [0; 20];
    header[..4].copy_from_slice(&STRUCTURED_REPLY_MAGIC.to_be_bytes());
    header[4..6].copy_from_slice(&flags.to_be_bytes());
    header[6..8].copy_from_slice(&kind.to_wire().to_be_bytes());
    header[8..16].copy_from_slice(&cookie.to_be_bytes());
    header[16..].copy_from_slice(&payload_bytes.to_be_bytes());
    header
}

/// Appends the 28 bytes before `data_bytes` of data that were read at `offset`; the caller sends the data.
///
/// Panics on an empty chunk, which the protocol forbids, and on one whose length does not fit.
pub fn offset_data(out: &mut Vec<u8>, cookie: u64, offset: u64, data_bytes: u32, last: Last) {
    assert!(data_bytes != 0, "a data chunk has at least one byte");
    let payload_bytes = data_bytes.checked_add(8).expect("a data chunk is shorter than 4 GiB");
    let mut header = [0; 28];
    header[..20].copy_from_slice(&chunk_header(cookie, ChunkKind::OffsetData, last, payload_bytes));
    header[20..].copy_from_slice(&offset.to_be_bytes());
    out.extend_from_slice(&header);
}

/// Appends a chunk that says `hole_bytes` (not 0) from `offset` on read as zeroes.
pub fn offset_hole(out: &mut Vec<u8>, cookie: u64, offset: u64, hole_bytes: u32, last: Last) {
    assert!(hole_bytes != 0, "a hole has at least one byte");
    out.extend_from_slice(&chunk_header(cookie, ChunkKind::OffsetHole, last, 12));
    out.extend_from_slice(&offset.to_be_bytes());
    out.extend_from_slice(&hole_bytes.to_be_bytes());
}

/// Appends the extents of one metadata context, in order from the request's offset on.
///
/// Panics where there are none, more than [`EXTENTS_MAX`], or one of length 0: the protocol has no such chunk.
pub fn block_status(out: &mut Vec<u8>, cookie: u64, context_id: u32, extents: &[Extent], last: Last) {
    assert!((1..=EXTENTS_MAX).contains(&extents.len()), "{} extents in a chunk", extents.len());
    let payload_bytes = 4 + 8 * extents.len() as u32;
    out.extend_from_slice(&chunk_header(cookie, ChunkKind::BlockStatus, last, payload_bytes));
    out.extend_from_slice(&context_id.to_be_bytes());
    for extent in extents {
        assert!(extent.length != 0, "an extent of no length");
        out.extend_from_slice(&extent.length.to_be_bytes());
        out.extend_from_slice(&extent.status.to_be_bytes());
    }
}

/// Appends the chunk that only ends a reply. Without an error chunk before it, that is success.
pub fn end(out: &mut Vec<u8>, cookie: u64) {
    out.extend_from_slice(&chunk_header(cookie, ChunkKind::None, Last::Yes, 0));
}

/// Appends an error for the whole request, with at most 4096 bytes of `message` for a human.
pub fn error(out: &mut Vec<u8>, cookie: u64, code: ErrorCode, message: &str, last: Last) {
    let text = bounded_text(message);
    out.extend_from_slice(&chunk_header(cookie, ChunkKind::Error, last, 6 + text.len() as u32));
    error_fields(out, code, text);
}

/// Appends an error at `offset`: content sent before it that ends there or earlier holds.
pub fn error_at(out: &mut Vec<u8>, cookie: u64, code: ErrorCode, message: &str, offset: u64, last: Last) {
    let text = bounded_text(message);
    out.extend_from_slice(&chunk_header(cookie, ChunkKind::ErrorOffset, last, 14 + text.len() as u32));
    error_fields(out, code, text);
    out.extend_from_slice(&offset.to_be_bytes());
}

fn error_fields(out: &mut Vec<u8>, code: ErrorCode, text: &str) {
    out.extend_from_slice(&code.to_wire().to_be_bytes());
    out.extend_from_slice(&(text.len() as u16).to_be_bytes());
    out.extend_from_slice(text.as_bytes());
}

/// Chooses the messages that a connection's client understands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replies {
    /// If true, structured replies were negotiated.
    pub structured: bool,
}

impl Replies {
    /// Success of anything but READ and BLOCK_STATUS. A simple reply even on structured connections: 16 bytes
    /// against 20, and the specification allows it where there is no payload.
    pub fn done(self, out: &mut Vec<u8>, cookie: u64) {
        simple(out, cookie, None);
    }

    /// The header of a READ that is answered in one piece; the caller sends `data_bytes` after it.
    pub fn read_whole(self, out: &mut Vec<u8>, cookie: u64, offset: u64, data_bytes: u32) {
        if self.structured {
            offset_data(out, cookie, offset, data_bytes, Last::Yes);
        } else {
            simple(out, cookie, None);
        }
    }

    /// A failure of any command; the message is lost on a client without structured replies.
    pub fn failed(self, out: &mut Vec<u8>, cookie: u64, code: ErrorCode, message: &str) {
        if self.structured {
            error(out, cookie, code, message, Last::Yes);
        } else {
            simple(out, cookie, Some(code));
        }
    }

    /// Returns whether a READ may be answered with several content chunks.
    pub fn may_fragment(self, read: &Request) -> bool {
        self.structured && !read.flags.contains(CommandFlags::DF)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Command;

    const COOKIE: u64 = 0x0102_0304_0506_0708;

    fn written(write: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
        let mut out = vec![0xee];
        write(&mut out);
        assert_eq!(out.remove(0), 0xee, "what stood in the buffer stays");
        out
    }

    #[test]
    fn simple_replies_match_the_specification() {
        assert_eq!(
            written(|out| simple(out, COOKIE, None)),
            b"\x67\x44\x66\x98\0\0\0\0\x01\x02\x03\x04\x05\x06\x07\x08"
        );
        assert_eq!(
            written(|out| simple(out, COOKIE, Some(ErrorCode::Shutdown))),
            b"\x67\x44\x66\x98\0\0\0\x6c\x01\x02\x03\x04\x05\x06\x07\x08"
        );
    }

    #[test]
    fn chunks_match_the_specification() {
        let head = |flags: u8, kind: [u8; 2], length: u32| {
            let mut head = b"\x66\x8e\x33\xef\0".to_vec();
            head.push(flags);
            head.extend(kind);
            head.extend(b"\x01\x02\x03\x04\x05\x06\x07\x08");
            head.extend(length.to_be_bytes());
            head
        };
        let with = |mut head: Vec<u8>, rest: &[u8]| {
            head.extend(rest);
            head
        };
        assert_eq!(written(|out| end(out, COOKIE)), head(1, [0, 0], 0));
        assert_eq!(
            written(|out| offset_data(out, COOKIE, 0x1000, 512, Last::Yes)),
            with(head(1, [0, 1], 520), b"\0\0\0\0\0\0\x10\0")
        );
        assert_eq!(
            written(|out| offset_hole(out, COOKIE, 0x1000, 65536, Last::No)),
            with(head(0, [0, 2], 12), b"\0\0\0\0\0\0\x10\0\0\x01\0\0")
        );
        let extents = [Extent { length: 4096, status: 0 }, Extent { length: 512, status: 3 }];
        assert_eq!(
            written(|out| block_status(out, COOKIE, 1, &extents, Last::Yes)),
            with(head(1, [0, 5], 20), b"\0\0\0\x01\0\0\x10\0\0\0\0\0\0\0\x02\0\0\0\0\x03")
        );
        assert_eq!(
            written(|out| error(out, COOKIE, ErrorCode::Invalid, "busy", Last::Yes)),
            with(head(1, [0x80, 1], 10), b"\0\0\0\x16\0\x04busy")
        );
        assert_eq!(
            written(|out| error_at(out, COOKIE, ErrorCode::Io, "", 0x200, Last::No)),
            with(head(0, [0x80, 2], 14), b"\0\0\0\x05\0\0\0\0\0\0\0\0\x02\0")
        );
    }

    #[test]
    fn a_connection_without_structured_replies_gets_simple_ones_only() {
        let simple_only = Replies { structured: false };
        assert_eq!(written(|out| simple_only.read_whole(out, COOKIE, 0, 512)).len(), 16);
        assert_eq!(written(|out| simple_only.failed(out, COOKIE, ErrorCode::Io, "disk")).len(), 16);
        let read = Request { command: Command::Read, flags: CommandFlags::EMPTY, cookie: 0, offset: 0, length: 512 };
        let whole = Request { flags: CommandFlags::DF, ..read };
        assert!(!simple_only.may_fragment(&read));
        let structured = Replies { structured: true };
        assert_eq!(written(|out| structured.read_whole(out, COOKIE, 0, 512)).len(), 28);
        assert_eq!(written(|out| structured.failed(out, COOKIE, ErrorCode::Io, "disk")).len(), 20 + 6 + 4);
        assert!(structured.may_fragment(&read) && !structured.may_fragment(&whole));
    }

    #[test]
    fn a_message_is_cut_at_the_protocols_limit() {
        let long = "x".repeat(70_000);
        let out = written(|out| error(out, COOKIE, ErrorCode::Io, &long, Last::Yes));
        assert_eq!(out.len(), 20 + 6 + 4096);
        assert_eq!(out[24..26], 4096u16.to_be_bytes());
    }
}
