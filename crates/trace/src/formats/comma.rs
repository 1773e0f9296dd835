//! Public formats with a fixed number of comma-separated fields: MSR Cambridge, SPC (UMass), Tencent CBS, SYSTOR '17.

use crate::error::Problem;
use crate::formats::{LineParser, device};
use crate::parse::{checked, fields, nanos, sectors, trim, whole};
use crate::record::{Op, Tables, TraceRecord};
use plimsoll_base::{Span, Time};

/// MSR Cambridge: `filetime,host,disk,Read|Write,offset,size,response`, both times in 100 ns. The time is the
/// arrival's; the response time becomes the service time, as there is nothing finer.
#[derive(Default)]
pub(crate) struct Msr {
    label: Vec<u8>,
}

impl LineParser for Msr {
    fn parse(&mut self, line: &[u8], tables: &mut Tables) -> Result<Option<TraceRecord>, Problem> {
        const SHAPE: &str = "MSR Cambridge's 7 fields `filetime,host,disk,Read|Write,offset,size,response`";
        let [time, host, disk, op, offset, size, response] = fields(line, b',', SHAPE)?;
        whole("disk", disk)?;
        self.label.clear();
        self.label.extend_from_slice(trim(host));
        self.label.extend_from_slice(trim(disk));
        let op = match trim(op) {
            b"Read" => Op::Read,
            b"Write" => Op::Write,
            _ => return Err(Problem::field("type", "Read or Write", op)),
        };
        checked(TraceRecord {
            service: Some(Span::from_nanos(nanos("response", response, 100)?)),
            ..TraceRecord::new(
                Time::from_nanos(nanos("timestamp", time, 100)?),
                device(tables, &self.label)?,
                op,
                whole("offset", offset)?,
                whole("size", size)?,
            )
        })
    }
}

/// SPC trace file format 1 (UMass): `asu,lba,bytes,r|w,seconds[,…]`; the address in 512-byte blocks.
pub(crate) struct Spc;

impl LineParser for Spc {
    fn parse(&mut self, line: &[u8], tables: &mut Tables) -> Result<Option<TraceRecord>, Problem> {
        // The specification allows further fields after the fifth; they carry nothing we use.
        let mut it = line.splitn(6, |&b| b == b',');
        let (Some(asu), Some(lba), Some(size), Some(op), Some(time)) =
            (it.next(), it.next(), it.next(), it.next(), it.next())
        else {
            return Err(Problem::shape("SPC's fields `asu,lba,bytes,r|w,seconds`", line));
        };
        whole("asu", asu)?;
        let op = match trim(op) {
            b"r" | b"R" => Op::Read,
            b"w" | b"W" => Op::Write,
            _ => return Err(Problem::field("opcode", "r or w", op)),
        };
        checked(TraceRecord::new(
            Time::from_nanos(nanos("timestamp", time, 1_000_000_000)?),
            device(tables, trim(asu))?,
            op,
            sectors("lba", lba)?,
            whole("size", size)?,
        ))
    }
}

/// Tencent's cloud block storage: `unix_seconds,offset_sectors,size_sectors,0 read|1 write,volume`. The clock ticks
/// once a second: requests of one second arrive together, in the file's order.
pub(crate) struct Tencent;

impl LineParser for Tencent {
    fn parse(&mut self, line: &[u8], tables: &mut Tables) -> Result<Option<TraceRecord>, Problem> {
        const SHAPE: &str = "Tencent CBS's 5 fields `seconds,offset_sectors,size_sectors,0|1,volume`";
        let [time, offset, size, op, volume] = fields(line, b',', SHAPE)?;
        whole("volume", volume)?;
        let op = match trim(op) {
            b"0" => Op::Read,
            b"1" => Op::Write,
            _ => return Err(Problem::field("type", "0 (read) or 1 (write)", op)),
        };
        checked(TraceRecord::new(
            Time::from_nanos(nanos("timestamp", time, 1_000_000_000)?),
            device(tables, trim(volume))?,
            op,
            sectors("offset", offset)?,
            sectors("size", size)?,
        ))
    }
}

/// SYSTOR '17 (virtual desktops): `unix_seconds,response_seconds,R|W|,lun,offset,size`. Requests without a type are
/// those whose answer was never seen: nothing says what they were, so they are skipped.
pub(crate) struct Systor;

/// Its header line.
pub(crate) const SYSTOR_HEADER: &[u8] = b"Timestamp,Response,IOType,LUN,Offset,Size";

impl LineParser for Systor {
    fn parse(&mut self, line: &[u8], tables: &mut Tables) -> Result<Option<TraceRecord>, Problem> {
        if trim(line) == SYSTOR_HEADER {
            return Ok(None);
        }
        const SHAPE: &str = "SYSTOR '17's 6 fields `seconds,response,R|W,lun,offset,size`";
        let [time, response, op, lun, offset, size] = fields(line, b',', SHAPE)?;
        let op = match trim(op) {
            b"R" => Op::Read,
            b"W" => Op::Write,
            b"" => return Ok(None),
            _ => return Err(Problem::field("type", "R, W or nothing", op)),
        };
        whole("lun", lun)?;
        let service = match trim(response) {
            b"" => None,
            r => Some(Span::from_nanos(nanos("response", r, 1_000_000_000)?)),
        };
        checked(TraceRecord {
            service,
            ..TraceRecord::new(
                Time::from_nanos(nanos("timestamp", time, 1_000_000_000)?),
                device(tables, trim(lun))?,
                op,
                whole("offset", offset)?,
                whole("size", size)?,
            )
        })
    }
}
