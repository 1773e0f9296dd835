//! Requests of the transmission phase: 28 bytes from the client, judged before anything is done for them.
//!
//! [`Rules::judge`] has three answers: a request that the export can serve as it stands, the end of the session, or a refusal.
//! A refusal names the error to answer and the bytes of payload to skip. An accepted request lies inside the export, is
//! aligned, and uses only negotiated features.

use std::fmt;

use crate::wire::{Command, CommandFlags, ErrorCode, REQUEST_BYTES, REQUEST_MAGIC, TransmissionFlags};

/// A request as a client sends it and as a server serves it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Command.
    pub command: Command,
    /// Flags.
    pub flags: CommandFlags,
    /// The client's name for the request; its reply carries it.
    pub cookie: u64,
    /// First byte of the range.
    pub offset: u64,
    /// Bytes of the range.
    pub length: u32,
}

impl Request {
    /// Bytes that follow the header on the wire.
    pub const fn payload_bytes(&self) -> u32 {
        match self.command {
            Command::Write => self.length,
            _ => 0,
        }
    }

    /// The header on the wire; the payload of a WRITE is the caller's to send after it.
    pub fn to_wire(&self) -> [u8; REQUEST_BYTES] {
        RawRequest {
            flags: self.flags.to_wire(),
            command: self.command.to_wire(),
            cookie: self.cookie,
            offset: self.offset,
            length: self.length,
        }
        .to_wire()
    }
}

/// The fields of a request's header, whatever they hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawRequest {
    /// Command flags.
    pub flags: u16,
    /// Command number.
    pub command: u16,
    /// The client's name for the request.
    pub cookie: u64,
    /// First byte of the range.
    pub offset: u64,
    /// Bytes of the range.
    pub length: u32,
}

/// Bytes that are no request: the client and the server have lost their common position, and the connection must be closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadRequestMagic(
    /// Bytes found in place of the magic.
    pub u32,
);

impl fmt::Display for BadRequestMagic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a request starts with {:#010x} instead of {REQUEST_MAGIC:#010x}", self.0)
    }
}

impl std::error::Error for BadRequestMagic {}

impl RawRequest {
    /// Takes a header apart. Only the magic is judged.
    pub fn from_wire(header: &[u8; REQUEST_BYTES]) -> Result<Self, BadRequestMagic> {
        let [m0, m1, m2, m3, f0, f1, t0, t1, rest @ ..] = *header;
        let magic = u32::from_be_bytes([m0, m1, m2, m3]);
        if magic != REQUEST_MAGIC {
            return Err(BadRequestMagic(magic));
        }
        let [c0, c1, c2, c3, c4, c5, c6, c7, o0, o1, o2, o3, o4, o5, o6, o7, l0, l1, l2, l3] = rest;
        Ok(Self {
            flags: u16::from_be_bytes([f0, f1]),
            command: u16::from_be_bytes([t0, t1]),
            cookie: u64::from_be_bytes([c0, c1, c2, c3, c4, c5, c6, c7]),
            offset: u64::from_be_bytes([o0, o1, o2, o3, o4, o5, o6, o7]),
            length: u32::from_be_bytes([l0, l1, l2, l3]),
        })
    }

    /// The header on the wire.
    pub fn to_wire(&self) -> [u8; REQUEST_BYTES] {
        let mut header = [0; REQUEST_BYTES];
        header[..4].copy_from_slice(&REQUEST_MAGIC.to_be_bytes());
        header[4..6].copy_from_slice(&self.flags.to_be_bytes());
        header[6..8].copy_from_slice(&self.command.to_be_bytes());
        header[8..16].copy_from_slice(&self.cookie.to_be_bytes());
        header[16..24].copy_from_slice(&self.offset.to_be_bytes());
        header[24..].copy_from_slice(&self.length.to_be_bytes());
        header
    }
}

/// Treatment of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Incoming {
    /// Serve it; [`Request::payload_bytes`] of payload follow on the stream.
    Serve(Request),
    /// Finish what is in flight and close; no reply.
    Disconnect,
    /// Answer an error.
    Refuse(RefusedRequest),
}

/// A request that is answered without being served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RefusedRequest {
    /// The client's name for it.
    pub cookie: u64,
    /// Its command's number, which may be an unknown one.
    pub command: u16,
    /// Error to answer.
    pub error: ErrorCode,
    /// Reason, for the message of a structured reply.
    pub message: &'static str,
    /// Bytes of payload to read and throw away before the next request. Up to 4 GiB: a server may close instead.
    pub skip_bytes: u32,
}

/// Negotiated parameters of a connection that decide which requests are allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Size of the export in bytes, as sent to this client.
    pub size_bytes: u64,
    /// Transmission flags sent to this client.
    pub flags: TransmissionFlags,
    /// Offsets and lengths must be multiples of it; a power of two.
    pub block_bytes_min: u32,
    /// Longest READ or WRITE in bytes.
    pub payload_bytes_max: u32,
    /// If true, structured replies were negotiated.
    pub structured_replies: bool,
    /// If true, at least one metadata context was chosen.
    pub block_status: bool,
    /// If true, `x-plimsoll:promise` is one of the chosen metadata contexts.
    pub promises: bool,
}

type Reason = (ErrorCode, &'static str);

impl Rules {
    /// Judges a header that was just received.
    pub fn judge(&self, header: &[u8; REQUEST_BYTES]) -> Result<Incoming, BadRequestMagic> {
        let raw = RawRequest::from_wire(header)?;
        let Some(command) = Command::from_wire(raw.command) else {
            return Ok(refuse(&raw, 0, (ErrorCode::Invalid, "unknown command")));
        };
        if command == Command::Disconnect {
            return Ok(Incoming::Disconnect);
        }
        let request = Request {
            command,
            flags: CommandFlags::from_wire(raw.flags),
            cookie: raw.cookie,
            offset: raw.offset,
            length: raw.length,
        };
        if command == Command::Cancel && self.promises {
            return Ok(Incoming::Serve(request));
        }
        Ok(match self.check(&request) {
            Ok(()) => Incoming::Serve(request),
            Err(reason) => refuse(&raw, request.payload_bytes(), reason),
        })
    }

    fn check(&self, request: &Request) -> Result<(), Reason> {
        self.check_offered(request.command)?;
        self.check_flags(request)?;
        if request.command == Command::Flush {
            return match (request.offset, request.length) {
                (0, 0) => Ok(()),
                _ => Err((ErrorCode::Invalid, "a flush has no offset and no length")),
            };
        }
        self.check_range(request)
    }

    /// Checks that the command was offered to this client.
    fn check_offered(&self, command: Command) -> Result<(), Reason> {
        use TransmissionFlags as F;
        let writes = matches!(command, Command::Write | Command::Trim | Command::WriteZeroes);
        if writes && self.flags.contains(F::READ_ONLY) {
            return Err((ErrorCode::NotPermitted, "the export is read-only"));
        }
        let offered = match command {
            Command::Read | Command::Write | Command::Disconnect => true,
            Command::Flush => self.flags.contains(F::SEND_FLUSH),
            Command::Trim => self.flags.contains(F::SEND_TRIM),
            Command::Cache => self.flags.contains(F::SEND_CACHE),
            Command::WriteZeroes => self.flags.contains(F::SEND_WRITE_ZEROES),
            Command::BlockStatus => self.block_status,
            Command::Cancel => false,
        };
        if offered { Ok(()) } else { Err((ErrorCode::Invalid, "the command was not negotiated")) }
    }

    /// Checks that each flag of the request is known, allowed with the command, and negotiated.
    fn check_flags(&self, request: &Request) -> Result<(), Reason> {
        use TransmissionFlags as F;
        let mut allowed = match request.command {
            Command::Read if self.structured_replies && self.flags.contains(F::SEND_DF) => CommandFlags::DF,
            Command::BlockStatus => CommandFlags::REQ_ONE,
            Command::WriteZeroes if self.flags.contains(F::SEND_FAST_ZERO) => {
                CommandFlags::NO_HOLE.with(CommandFlags::FAST_ZERO)
            }
            Command::WriteZeroes => CommandFlags::NO_HOLE,
            _ => CommandFlags::EMPTY,
        };
        // Known clients set FUA on commands that write nothing, so the specification has servers accept it.
        if self.flags.contains(F::SEND_FUA) {
            allowed = allowed.with(CommandFlags::FUA);
        }
        if allowed.contains(request.flags) {
            Ok(())
        } else {
            Err((ErrorCode::Invalid, "a flag that is unknown, not negotiated or not for this command"))
        }
    }

    /// Checks that the request's range isn't empty, is aligned, lies in the export, and isn't too long.
    fn check_range(&self, request: &Request) -> Result<(), Reason> {
        match request.command {
            Command::Write if request.length > self.payload_bytes_max => {
                return Err((ErrorCode::Invalid, "the payload is longer than the server takes"));
            }
            Command::Read if request.length > self.payload_bytes_max => {
                // EOVERFLOW belongs to clients that know structured replies (`NBD proto.md`, NBD_CMD_READ).
                let error = if self.structured_replies { ErrorCode::Overflow } else { ErrorCode::Invalid };
                return Err((error, "the range is longer than the server sends"));
            }
            _ => {}
        }
        // The specification leaves empty ranges open; no layer below has a use for one.
        if request.length == 0 {
            return Err((ErrorCode::Invalid, "the range is empty"));
        }
        let misaligned = (request.offset | u64::from(request.length)) & u64::from(self.block_bytes_min - 1);
        if misaligned != 0 {
            return Err((ErrorCode::Invalid, "the range is not aligned to the minimum block size"));
        }
        let inside = request.offset.checked_add(u64::from(request.length)).is_some_and(|end| end <= self.size_bytes);
        match request.command {
            _ if inside => Ok(()),
            Command::Write | Command::WriteZeroes => {
                Err((ErrorCode::NoSpace, "the range ends beyond the end of the export"))
            }
            _ => Err((ErrorCode::Invalid, "the range ends beyond the end of the export")),
        }
    }
}

fn refuse(raw: &RawRequest, skip_bytes: u32, (error, message): Reason) -> Incoming {
    Incoming::Refuse(RefusedRequest { cookie: raw.cookie, command: raw.command, error, message, skip_bytes })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn rules() -> Rules {
        use TransmissionFlags as F;
        Rules {
            size_bytes: 64 * MIB,
            flags: F::HAS_FLAGS
                .with(F::SEND_FLUSH)
                .with(F::SEND_FUA)
                .with(F::SEND_TRIM)
                .with(F::SEND_WRITE_ZEROES)
                .with(F::SEND_DF)
                .with(F::SEND_CACHE)
                .with(F::SEND_FAST_ZERO),
            block_bytes_min: 1,
            payload_bytes_max: 32 << 20,
            structured_replies: true,
            block_status: true,
            promises: false,
        }
    }

    fn judge(rules: &Rules, command: u16, flags: u16, offset: u64, length: u32) -> Result<Request, (ErrorCode, u32)> {
        let header = RawRequest { flags, command, cookie: 7, offset, length }.to_wire();
        match rules.judge(&header).expect("the magic is right") {
            Incoming::Serve(request) => Ok(request),
            Incoming::Refuse(refused) => {
                assert_eq!((refused.cookie, refused.command), (7, command));
                Err((refused.error, refused.skip_bytes))
            }
            Incoming::Disconnect => panic!("no DISC was sent"),
        }
    }

    #[test]
    fn a_literal_write_header_is_understood() {
        // magic, flags FUA, type WRITE, cookie, offset 0x10000, length 512: from the specification's table.
        let header = *b"\x25\x60\x95\x13\x00\x01\x00\x01ABCDEFGH\x00\x00\x00\x00\x00\x01\x00\x00\x00\x00\x02\x00";
        let expected = Request {
            command: Command::Write,
            flags: CommandFlags::FUA,
            cookie: u64::from_be_bytes(*b"ABCDEFGH"),
            offset: 0x1_0000,
            length: 512,
        };
        assert_eq!(rules().judge(&header), Ok(Incoming::Serve(expected)));
        assert_eq!(expected.payload_bytes(), 512);
        assert_eq!(expected.to_wire(), header);
    }

    #[test]
    fn a_wrong_magic_is_fatal() {
        let header = [0x25; REQUEST_BYTES];
        assert_eq!(rules().judge(&header), Err(BadRequestMagic(0x2525_2525)));
    }

    #[test]
    fn disc_ends_the_session_whatever_else_it_holds() {
        let header = RawRequest { flags: 0xffff, command: 2, cookie: 0, offset: 1, length: 1 }.to_wire();
        assert_eq!(rules().judge(&header), Ok(Incoming::Disconnect));
    }

    #[test]
    fn only_a_write_has_payload_to_skip() {
        let rules = rules();
        assert_eq!(judge(&rules, 1, 0x8000, 0, 100), Err((ErrorCode::Invalid, 100)));
        assert_eq!(judge(&rules, 0, 0x8000, 0, 100), Err((ErrorCode::Invalid, 0)));
        assert_eq!(judge(&rules, 99, 0, 0, 100), Err((ErrorCode::Invalid, 0)), "unknown command");
        assert_eq!(judge(&rules, 1, 0, 0, (32 << 20) + 1), Err((ErrorCode::Invalid, (32 << 20) + 1)));
    }

    #[test]
    fn payloads_end_at_32_mib_and_ranges_without_payload_do_not() {
        let rules = rules();
        assert!(judge(&rules, 0, 0, 0, 32 << 20).is_ok());
        assert!(judge(&rules, 1, 0, 0, 32 << 20).is_ok());
        assert_eq!(judge(&rules, 0, 0, 0, (32 << 20) + 1), Err((ErrorCode::Overflow, 0)));
        let simple = Rules { structured_replies: false, ..rules };
        assert_eq!(judge(&simple, 0, 0, 0, (32 << 20) + 1), Err((ErrorCode::Invalid, 0)));
        for command in [4, 5, 6, 7] {
            assert!(judge(&rules, command, 0, 0, 64 << 20).is_ok(), "command {command}");
        }
    }

    #[test]
    fn beyond_the_end_is_enospc_for_what_would_fill_it_and_einval_for_the_rest() {
        let rules = rules();
        for (command, error) in [
            (0, ErrorCode::Invalid),
            (1, ErrorCode::NoSpace),
            (4, ErrorCode::Invalid),
            (5, ErrorCode::Invalid),
            (6, ErrorCode::NoSpace),
            (7, ErrorCode::Invalid),
        ] {
            for offset in [64 * MIB - 511, u64::MAX - 10] {
                let refused = judge(&rules, command, 0, offset, 512).expect_err("it is beyond the end");
                assert_eq!(refused.0, error, "command {command} at {offset}");
            }
            assert!(judge(&rules, command, 0, 64 * MIB - 512, 512).is_ok(), "command {command}");
            assert_eq!(judge(&rules, command, 0, 0, 0), Err((ErrorCode::Invalid, 0)), "empty");
        }
    }

    #[test]
    fn each_flag_belongs_to_its_commands() {
        let rules = rules();
        let takes =
            |command: u16| (0..16).filter(|bit| judge(&rules, command, 1 << bit, 0, 512).is_ok()).collect::<Vec<u32>>();
        assert_eq!(takes(0), [0, 2], "READ: FUA, DF");
        assert_eq!(takes(1), [0], "WRITE: FUA");
        assert_eq!(takes(4), [0], "TRIM: FUA");
        assert_eq!(takes(5), [0], "CACHE: FUA");
        assert_eq!(takes(6), [0, 1, 4], "WRITE_ZEROES: FUA, NO_HOLE, FAST_ZERO");
        assert_eq!(takes(7), [0, 3], "BLOCK_STATUS: FUA, REQ_ONE");
        assert!(judge(&rules, 6, 0b10011, 0, 512).is_ok(), "together, too");
        assert!(judge(&rules, 3, 1, 0, 0).is_ok(), "FLUSH: FUA");
    }

    #[test]
    fn what_was_not_negotiated_is_refused() {
        let bare =
            Rules { flags: TransmissionFlags::HAS_FLAGS, structured_replies: false, block_status: false, ..rules() };
        assert!(judge(&bare, 0, 0, 0, 512).is_ok());
        assert!(judge(&bare, 1, 0, 0, 512).is_ok());
        for command in [3, 4, 5, 6, 7] {
            let length = if command == 3 { 0 } else { 512 };
            assert_eq!(judge(&bare, command, 0, 0, length), Err((ErrorCode::Invalid, 0)), "command {command}");
        }
        assert_eq!(judge(&bare, 0, 1, 0, 512), Err((ErrorCode::Invalid, 0)), "FUA");
        assert_eq!(judge(&bare, 0, 4, 0, 512), Err((ErrorCode::Invalid, 0)), "DF");
        let slow_zeroes = Rules { flags: rules().flags.without(TransmissionFlags::SEND_FAST_ZERO), ..rules() };
        assert_eq!(judge(&bare, 0x504c, 0, 0, 0), Err((ErrorCode::Invalid, 0)), "CANCEL");
        let promising = Rules { promises: true, ..rules() };
        assert!(judge(&promising, 0x504c, 0, 0, 0).is_ok(), "CANCEL where promises were negotiated");
        assert_eq!(judge(&slow_zeroes, 6, 16, 0, 512), Err((ErrorCode::Invalid, 0)), "FAST_ZERO");
        assert!(judge(&slow_zeroes, 6, 2, 0, 512).is_ok(), "NO_HOLE comes with WRITE_ZEROES");
    }

    #[test]
    fn a_read_only_export_answers_eperm_and_still_skips_the_payload() {
        let read_only = Rules { flags: rules().flags.with(TransmissionFlags::READ_ONLY), ..rules() };
        assert_eq!(judge(&read_only, 1, 0, 0, 512), Err((ErrorCode::NotPermitted, 512)));
        assert_eq!(judge(&read_only, 4, 0, 0, 512), Err((ErrorCode::NotPermitted, 0)));
        assert_eq!(judge(&read_only, 6, 0, 0, 512), Err((ErrorCode::NotPermitted, 0)));
        assert!(judge(&read_only, 0, 0, 0, 512).is_ok());
        assert!(judge(&read_only, 3, 0, 0, 0).is_ok());
    }

    #[test]
    fn alignment_and_flush_fields_are_checked() {
        let aligned = Rules { block_bytes_min: 512, ..rules() };
        assert!(judge(&aligned, 0, 0, 512, 1024).is_ok());
        assert_eq!(judge(&aligned, 0, 0, 1, 512), Err((ErrorCode::Invalid, 0)));
        assert_eq!(judge(&aligned, 1, 0, 512, 511), Err((ErrorCode::Invalid, 511)));
        assert_eq!(judge(&aligned, 3, 0, 0, 512), Err((ErrorCode::Invalid, 0)));
        assert_eq!(judge(&aligned, 3, 0, 512, 0), Err((ErrorCode::Invalid, 0)));
    }
}
