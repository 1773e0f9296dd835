//! Binary formats: CloudPhysics' vscsi (both versions) and libCacheSim's oracleGeneral. All numbers little-endian.

use crate::error::Problem;
use crate::formats::{RecordParser, device};
use crate::parse::{SECTOR, checked};
use crate::record::{Op, Tables, TraceRecord};
use plimsoll_base::{Span, Time};

/// Bytes of a vscsi record of version 1: `sn len segments: u32, cmd ver: u16, lbn ts: u64`.
pub(crate) const VSCSI1_BYTES: usize = 32;
/// Bytes of a vscsi record of version 2: `cmd ver: u16, sn len segments: u32, lbn ts rt: u64`.
pub(crate) const VSCSI2_BYTES: usize = 40;
/// Bytes of an oracleGeneral record: `time: u32, object: u64, size: u32, next access: i64`.
pub(crate) const ORACLE_BYTES: usize = 24;

pub(crate) fn u16_at(b: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([b[at], b[at + 1]])
}
pub(crate) fn u32_at(b: &[u8], at: usize) -> u32 {
    let mut v = [0; 4];
    v.copy_from_slice(&b[at..at + 4]);
    u32::from_le_bytes(v)
}
pub(crate) fn u64_at(b: &[u8], at: usize) -> u64 {
    let mut v = [0; 8];
    v.copy_from_slice(&b[at..at + 8]);
    u64::from_le_bytes(v)
}

/// Returns the operation of a SCSI command; `None` for those that move no data (inquiries and the like).
fn scsi_op(command: u16) -> Option<Op> {
    match command {
        0x08 | 0x28 | 0xa8 | 0x88 => Some(Op::Read),
        0x0a | 0x2a | 0xaa | 0x8a | 0x41 | 0x93 => Some(Op::Write),
        0x42 => Some(Op::Trim),
        0x35 | 0x91 => Some(Op::Flush),
        _ => None,
    }
}

/// The fields both versions have.
struct Vscsi {
    command: u16,
    bytes: u32,
    lbn: u64,
    time_us: u64,
    response_us: Option<u64>,
}

impl Vscsi {
    fn record(self, tables: &mut Tables) -> Result<Option<TraceRecord>, Problem> {
        let Some(op) = scsi_op(self.command) else { return Ok(None) };
        let too_big = |what: &str, v: u64| {
            Problem::new(format!("{what} {v} is beyond any disk or clock"), "this is no vscsi trace: name its format")
        };
        let offset = self.lbn.checked_mul(SECTOR).ok_or_else(|| too_big("block number", self.lbn))?;
        let at = self.time_us.checked_mul(1_000).ok_or_else(|| too_big("time", self.time_us))?;
        let service = self.response_us.map(|us| us.checked_mul(1_000).ok_or_else(|| too_big("response time", us)));
        checked(TraceRecord {
            service: service.transpose()?.map(Span::from_nanos),
            ..TraceRecord::new(Time::from_nanos(at), device(tables, b"0")?, op, offset, u64::from(self.bytes))
        })
    }
}

/// vscsi, version 1.
pub(crate) struct Vscsi1;
impl RecordParser<VSCSI1_BYTES> for Vscsi1 {
    fn parse(&mut self, b: &[u8; VSCSI1_BYTES], tables: &mut Tables) -> Result<Option<TraceRecord>, Problem> {
        version(u16_at(b, 14), 1)?;
        let (command, bytes) = (u16_at(b, 12), u32_at(b, 4));
        Vscsi { command, bytes, lbn: u64_at(b, 16), time_us: u64_at(b, 24), response_us: None }.record(tables)
    }
}

/// vscsi, version 2, which adds the response time (taken as microseconds, like the time stamp).
pub(crate) struct Vscsi2;
impl RecordParser<VSCSI2_BYTES> for Vscsi2 {
    fn parse(&mut self, b: &[u8; VSCSI2_BYTES], tables: &mut Tables) -> Result<Option<TraceRecord>, Problem> {
        version(u16_at(b, 2), 2)?;
        let (command, bytes) = (u16_at(b, 0), u32_at(b, 8));
        Vscsi { command, bytes, lbn: u64_at(b, 16), time_us: u64_at(b, 24), response_us: Some(u64_at(b, 32)) }
            .record(tables)
    }
}

fn version(found: u16, expected: u16) -> Result<(), Problem> {
    if found >> 8 == expected {
        return Ok(());
    }
    Err(Problem::new(
        format!("expected a vscsi record of version {expected}, found version {}", found >> 8),
        "the file is damaged here, or not a vscsi trace: name its format",
    ))
}

/// libCacheSim's oracleGeneral: requests for objects. A block trace converted by libCacheSim has block numbers as
/// objects, so an object becomes the address `object · object_bytes`. There are no directions: all are reads. The
/// next access is what a clairvoyant cache needs; we recompute it where we need it.
pub(crate) struct Oracle {
    pub object_bytes: u64,
}
impl RecordParser<ORACLE_BYTES> for Oracle {
    fn parse(&mut self, b: &[u8; ORACLE_BYTES], tables: &mut Tables) -> Result<Option<TraceRecord>, Problem> {
        let object = u64_at(b, 4);
        let offset = object.checked_mul(self.object_bytes).ok_or_else(|| {
            Problem::new(
                format!("object {object} is no number of a {}-byte block", self.object_bytes),
                "if objects are hashes or byte addresses here, read the trace with an object size of 1",
            )
        })?;
        let at = Time::from_nanos(u64::from(u32_at(b, 0)) * 1_000_000_000);
        checked(TraceRecord::new(at, device(tables, b"0")?, Op::Read, offset, u64::from(u32_at(b, 12))))
    }
}
