//! Public formats of blank-separated columns: MQSim and its relatives, and the FIU traces with content hashes.

use crate::error::Problem;
use crate::formats::{LineParser, device};
use crate::parse::{checked, fields, hex, nanos, sectors, trim, whole, words};
use crate::record::{Op, Tables, TraceRecord};
use plimsoll_base::Time;

/// The family `time device address size 0 write|1 read`, which differs in units only.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Five {
    /// MQSim: nanoseconds, sectors.
    Mqsim,
    /// DiskSim: milliseconds, sectors.
    Disksim,
    /// The replayer of MittOS and LinnOS: milliseconds, bytes; blanks or commas between.
    Replay,
}

impl Five {
    /// The five fields, whatever parts them.
    pub fn split(line: &[u8]) -> Option<[&[u8]; 5]> {
        let mut out = [&line[..0]; 5];
        let mut n = 0;
        for f in line.split(|&b| b == b',' || b.is_ascii_whitespace()).filter(|f| !f.is_empty()) {
            *out.get_mut(n)? = f;
            n += 1;
        }
        (n == 5).then_some(out)
    }
}

impl LineParser for Five {
    fn parse(&mut self, line: &[u8], tables: &mut Tables) -> Result<Option<TraceRecord>, Problem> {
        let shape = || match self {
            Five::Mqsim => "MQSim's 5 columns `ns device sector sectors 0|1`",
            Five::Disksim => "DiskSim's 5 columns `ms device sector sectors 0|1`",
            Five::Replay => "the replayer's 5 columns `ms device offset bytes 0|1`",
        };
        let [time, dev, address, size, op] = Five::split(line).ok_or_else(|| Problem::shape(shape(), line))?;
        whole("device", dev)?;
        let unit_ns = if *self == Five::Mqsim { 1 } else { 1_000_000 };
        let amount = if *self == Five::Replay { whole } else { sectors };
        let op = match op {
            b"0" => Op::Write,
            b"1" => Op::Read,
            _ => return Err(Problem::field("type", "0 (write) or 1 (read)", op)),
        };
        checked(TraceRecord::new(
            Time::from_nanos(nanos("time", time, unit_ns)?),
            device(tables, dev)?,
            op,
            amount("address", address)?,
            amount("size", size)?,
        ))
    }
}

/// FIU's I/O deduplication traces as published: `ns pid process sector sectors R|W major minor md5`.
#[derive(Default)]
pub(crate) struct Fiu {
    label: Vec<u8>,
}

impl LineParser for Fiu {
    fn parse(&mut self, line: &[u8], tables: &mut Tables) -> Result<Option<TraceRecord>, Problem> {
        // Read from both ends: a process name may hold blanks.
        const SHAPE: &str = "FIU's 9 columns `ns pid process sector sectors R|W major minor md5`";
        let shape = || Problem::shape(SHAPE, line);
        let mut it = words(line);
        let (time, _pid) = (it.next().ok_or_else(shape)?, it.next().ok_or_else(shape)?);
        let mut tail = [&line[..0]; 6];
        for slot in tail.iter_mut().rev() {
            *slot = it.next_back().ok_or_else(shape)?;
        }
        let process = it.next().ok_or_else(shape)?;
        let [lba, count, op, major, minor, md5] = tail;
        fiu_record(&mut self.label, tables, FiuFields { time, process, lba, count, op, major, minor, md5 })
    }
}

/// The same trace as comma-separated values with the header of [`FIU_CSV_HEADER`].
#[derive(Default)]
pub(crate) struct FiuCsv {
    label: Vec<u8>,
}

/// Header line of the CSV form of a FIU trace.
pub(crate) const FIU_CSV_HEADER: &[u8] = b"t_ns,pid,process,lba_sector,sectors,op,major,minor,md5";

impl LineParser for FiuCsv {
    fn parse(&mut self, line: &[u8], tables: &mut Tables) -> Result<Option<TraceRecord>, Problem> {
        if trim(line) == FIU_CSV_HEADER {
            return Ok(None);
        }
        const SHAPE: &str = "9 fields `t_ns,pid,process,lba_sector,sectors,op,major,minor,md5`";
        let [time, _pid, process, lba, count, op, major, minor, md5] = fields(line, b',', SHAPE)?;
        fiu_record(&mut self.label, tables, FiuFields { time, process, lba, count, op, major, minor, md5 })
    }
}

struct FiuFields<'a> {
    time: &'a [u8],
    process: &'a [u8],
    lba: &'a [u8],
    count: &'a [u8],
    op: &'a [u8],
    major: &'a [u8],
    minor: &'a [u8],
    md5: &'a [u8],
}

fn fiu_record(label: &mut Vec<u8>, tables: &mut Tables, f: FiuFields<'_>) -> Result<Option<TraceRecord>, Problem> {
    whole("major", f.major)?;
    whole("minor", f.minor)?;
    label.clear();
    label.extend_from_slice(trim(f.major));
    label.push(b':');
    label.extend_from_slice(trim(f.minor));
    let op = match trim(f.op) {
        b"R" | b"r" => Op::Read,
        b"W" | b"w" => Op::Write,
        _ => return Err(Problem::field("op", "R or W", f.op)),
    };
    let content = match trim(f.md5) {
        b"" => None,
        h => Some(hex(h).filter(|_| h.len() == 32).ok_or_else(|| Problem::field("md5", "32 hexadecimal digits", h))?),
    };
    checked(TraceRecord {
        content,
        context: tables.contexts.intern(trim(f.process)),
        ..TraceRecord::new(
            Time::from_nanos(nanos("time", f.time, 1)?),
            device(tables, label)?,
            op,
            sectors("sector", f.lba)?,
            sectors("sectors", f.count)?,
        )
    })
}
