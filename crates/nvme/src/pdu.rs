//! PDUs: their headers, digests, and what is wrong with those that are malformed.

use crate::bytes::{set, u32_at};
use crate::wire::{COMMON_BYTES, FLAG_DATA_DIGEST, FLAG_HEADER_DIGEST, Kind};
use std::fmt;
use std::ops::Range;

/// Bytes of a digest.
pub(crate) const DIGEST_BYTES: usize = 4;
/// Most bytes of a faulty PDU that are shown to the host.
const SHOWN_BYTES_MAX: usize = 128;

/// Digests that were negotiated.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Digests {
    /// Headers have one.
    pub header: bool,
    /// Data have one.
    pub data: bool,
}

/// A PDU that ends its connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// A header's field, by its offset, is invalid.
    Field(u32),
    /// A PDU that mustn't come now.
    Sequence,
    /// A header's digest is wrong.
    HeaderDigest,
    /// Data that weren't asked for.
    Range,
    /// More data than may come at once.
    Limit,
    /// A parameter, by its offset, isn't supported.
    Parameter(u32),
    /// Data's digest is wrong. No PDU says so: the connection closes.
    DataDigest,
    /// The host ended the connection.
    Host(u16),
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Field(at) => write!(f, "a PDU's header has an invalid field at byte {at}"),
            Fault::Sequence => f.write_str("a PDU came out of sequence"),
            Fault::HeaderDigest => f.write_str("a PDU's header digest is wrong"),
            Fault::Range => f.write_str("data came that were not asked for"),
            Fault::Limit => f.write_str("a PDU has more data than allowed"),
            Fault::Parameter(at) => write!(f, "a parameter at byte {at} is not supported"),
            Fault::DataDigest => f.write_str("a data digest is wrong"),
            Fault::Host(status) => write!(f, "the host ended the connection with fatal error {status}"),
        }
    }
}

impl Fault {
    /// Appends the PDU that tells the host, if there is one; `header` is the beginning of the PDU at fault.
    pub fn tell(self, out: &mut Vec<u8>, header: &[u8]) {
        let (status, information): (u16, u32) = match self {
            Fault::Field(at) => (1, at),
            Fault::Sequence => (2, 0),
            Fault::HeaderDigest => (3, 0),
            Fault::Range => (4, 0),
            Fault::Limit => (5, 0),
            Fault::Parameter(at) => (6, at),
            Fault::DataDigest | Fault::Host(_) => return,
        };
        let shown = &header[..header.len().min(SHOWN_BYTES_MAX)];
        let mut pdu = [0; 24];
        common(&mut pdu, Kind::C2hTerm, 0, 0, 24 + shown.len());
        set(&mut pdu, 8, &status.to_le_bytes());
        set(&mut pdu, 10, &information.to_le_bytes());
        out.extend_from_slice(&pdu);
        out.extend_from_slice(shown);
    }
}

/// Writes a common header.
pub(crate) fn common(pdu: &mut [u8], kind: Kind, flags: u8, data_at: u8, whole: usize) {
    pdu[0] = kind as u8;
    pdu[1] = flags;
    pdu[2] = kind.header_bytes() as u8;
    pdu[3] = data_at;
    set(pdu, 4, &(whole as u32).to_le_bytes());
}

/// The crc32c that digests are.
pub fn digest(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes)
}

/// Continues a digest with more bytes.
pub fn digest_more(digest: u32, bytes: &[u8]) -> u32 {
    crc32c::crc32c_append(digest, bytes)
}

/// Layout of a PDU.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Shape {
    pub kind: Kind,
    pub flags: u8,
    /// Header, digest and padding.
    pub head: usize,
    pub data_bytes: usize,
    /// All of it, digests among it.
    pub whole: usize,
}

impl Shape {
    pub(crate) fn data(&self) -> Range<usize> {
        self.head..self.head + self.data_bytes
    }

    /// True if the digest of a whole PDU's data is right, or the data have none.
    pub(crate) fn data_are_right(&self, pdu: &[u8]) -> bool {
        let data = self.data();
        let has_digest = self.flags & FLAG_DATA_DIGEST != 0 && !data.is_empty();
        !has_digest || digest(&pdu[data.clone()]) == u32_at(pdu, data.end)
    }
}

impl Digests {
    /// Takes the common header of a PDU apart that is of one of `kinds`, with at most `data_max` bytes of data.
    pub(crate) fn shape(self, start: &[u8; COMMON_BYTES], kinds: &[Kind], data_max: usize) -> Result<Shape, Fault> {
        let [kind, flags, header_bytes, data_at, ..] = *start;
        let kind = Kind::from_wire(kind).ok_or(Fault::Field(0))?;
        if !kinds.contains(&kind) {
            return Err(Fault::Sequence);
        }
        if usize::from(header_bytes) != kind.header_bytes() {
            return Err(Fault::Field(2));
        }
        let whole = u32_at(start, 4) as usize;
        let has_digests = matches!(kind, Kind::Command | Kind::Response | Kind::H2cData | Kind::C2hData | Kind::R2t);
        if (flags & FLAG_HEADER_DIGEST != 0) != (self.header && has_digests) {
            return Err(Fault::Field(1));
        }
        let least = kind.header_bytes() + if self.header && has_digests { DIGEST_BYTES } else { 0 };
        if whole < least {
            return Err(Fault::Field(4));
        }
        if whole == least {
            // A data digest of no data: nobody needs it, and the flag alone does no harm.
            return Ok(Shape { kind, flags, head: least, data_bytes: 0, whole });
        }
        let head = if has_digests { usize::from(data_at) } else { least };
        if head < least || !head.is_multiple_of(4) || head > least + 128 {
            return Err(Fault::Field(3));
        }
        let data_digest = self.data && has_digests;
        if (flags & FLAG_DATA_DIGEST != 0) != data_digest {
            return Err(Fault::Field(1));
        }
        let around = head + if data_digest { DIGEST_BYTES } else { 0 };
        let data_bytes = whole.checked_sub(around).ok_or(Fault::Field(4))?;
        if data_bytes > data_max {
            return Err(Fault::Limit);
        }
        Ok(Shape { kind, flags, head, data_bytes, whole })
    }

    /// Checks the digest of a header that has come.
    pub(crate) fn check_header(self, shape: &Shape, pdu: &[u8]) -> Result<(), Fault> {
        let at = shape.kind.header_bytes();
        match shape.flags & FLAG_HEADER_DIGEST != 0 && digest(&pdu[..at]) != u32_at(pdu, at) {
            true => Err(Fault::HeaderDigest),
            false => Ok(()),
        }
    }

    /// Appends a PDU's header of `kind` with its digest, and the padding before its data at a multiple of `align`; `fields` writes
    /// what is special to it.
    pub(crate) fn header(
        self,
        out: &mut Vec<u8>,
        (kind, flags): (Kind, u8),
        (data_bytes, align): (usize, usize),
        fields: impl FnOnce(&mut [u8]),
    ) {
        let header = kind.header_bytes();
        let mut least = header + if self.header { DIGEST_BYTES } else { 0 };
        let mut flags = flags | if self.header { FLAG_HEADER_DIGEST } else { 0 };
        let (mut data_at, mut whole) = (0, least);
        if data_bytes > 0 {
            least = least.next_multiple_of(align);
            data_at = least as u8;
            whole = least + data_bytes;
            if self.data {
                flags |= FLAG_DATA_DIGEST;
                whole += DIGEST_BYTES;
            }
        }
        let at = out.len();
        out.resize(at + least, 0);
        let pdu = &mut out[at..];
        common(pdu, kind, flags, data_at, whole);
        fields(pdu);
        if self.header {
            let right = digest(&pdu[..header]);
            set(pdu, header, &right.to_le_bytes());
        }
    }
}

/// Gathers one PDU after the other from bytes that come in pieces.
#[derive(Debug, Default)]
pub(crate) struct Gathered {
    bytes: Vec<u8>,
}

impl Gathered {
    /// Takes from `input` what the next PDU lacks; its shape once it is there.
    pub(crate) fn take(
        &mut self,
        input: &mut &[u8],
        shape: impl Fn(&[u8; COMMON_BYTES]) -> Result<Shape, Fault>,
    ) -> Result<Option<Shape>, Fault> {
        if !self.fill(input, COMMON_BYTES) {
            return Ok(None);
        }
        let start = self.bytes[..COMMON_BYTES].try_into().expect("a common header's length");
        let shape = shape(start)?;
        Ok(self.fill(input, shape.whole).then_some(shape))
    }

    fn fill(&mut self, input: &mut &[u8], wanted: usize) -> bool {
        let n = input.len().min(wanted.saturating_sub(self.bytes.len()));
        self.bytes.extend_from_slice(&input[..n]);
        *input = &input[n..];
        self.bytes.len() >= wanted
    }

    pub(crate) fn pdu(&self) -> &[u8] {
        &self.bytes
    }

    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
    }
}
