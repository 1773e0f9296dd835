//! Microsoft's enterprise and production server traces: the text that xperf dumps from an ETW log.
//!
//! A header between `BeginHeader` and `EndHeader` names each event's columns; then one event a line. Disk events are
//! logged at completion: `TimeStamp` is the completion in microseconds, `ElapsedTime` the response time and
//! `DiskSvcTime` the part at the disk, so the arrival is `TimeStamp - ElapsedTime` and lines are not in the order of
//! arrival. Only DiskRead, DiskWrite and DiskFlush are requests; a trace holds many other events.

use crate::error::Problem;
use crate::formats::{LineParser, device};
use crate::parse::{checked, hex_or_whole, nanos, trim, whole};
use crate::record::{Op, Tables, TraceRecord};
use plimsoll_base::{Span, Time};

/// Places of one event's columns.
#[derive(Clone, Debug)]
struct Columns {
    time: usize,
    process: usize,
    offset: Option<usize>,
    size: Option<usize>,
    elapsed: usize,
    disk: usize,
    service: usize,
}

/// The most columns a line may have.
const COLUMNS_MAX: usize = 32;

/// Microsoft server traces.
pub(crate) struct Etw {
    in_header: bool,
    /// Read, write, flush.
    columns: [Columns; 3],
}

impl Default for Etw {
    /// The columns of the published traces, for pieces cut out of one without its header.
    fn default() -> Etw {
        let transfer =
            Columns { time: 1, process: 2, offset: Some(5), size: Some(6), elapsed: 7, disk: 8, service: 10 };
        let flush = Columns { time: 1, process: 2, offset: None, size: None, elapsed: 5, disk: 6, service: 8 };
        Etw { in_header: false, columns: [transfer.clone(), transfer, flush] }
    }
}

fn event(name: &[u8]) -> Option<(usize, Op)> {
    match name {
        b"DiskRead" => Some((0, Op::Read)),
        b"DiskWrite" => Some((1, Op::Write)),
        b"DiskFlush" => Some((2, Op::Flush)),
        _ => None,
    }
}

impl Etw {
    /// Learns where the columns are from the header's line of an event.
    fn learn(&mut self, line: &[u8]) -> Result<(), Problem> {
        let names: Vec<&[u8]> = line.split(|&b| b == b',').map(trim).take(COLUMNS_MAX).collect();
        let Some((event, op)) = names.first().and_then(|n| event(n)) else { return Ok(()) };
        let find = |name: &str| {
            names
                .iter()
                .position(|n| *n == name.as_bytes())
                .ok_or_else(|| Problem::shape(&format!("a column `{name}` in the header of a disk event"), line))
        };
        let transfer = op != Op::Flush;
        self.columns[event] = Columns {
            time: find("TimeStamp")?,
            process: find("Process Name ( PID)")?,
            offset: transfer.then(|| find("ByteOffset")).transpose()?,
            size: transfer.then(|| find("IOSize")).transpose()?,
            elapsed: find("ElapsedTime")?,
            disk: find("DiskNum")?,
            service: find("DiskSvcTime")?,
        };
        Ok(())
    }

    fn record(&self, line: &[u8], event: usize, op: Op, tables: &mut Tables) -> Result<Option<TraceRecord>, Problem> {
        let mut all = [&line[..0]; COLUMNS_MAX];
        let mut count = 0;
        for (slot, field) in all.iter_mut().zip(line.split(|&b| b == b',')) {
            *slot = trim(field);
            count += 1;
        }
        let c = &self.columns[event];
        let get = |i: usize| {
            if i < count {
                Ok(all[i])
            } else {
                Err(Problem::shape("a disk event with the columns of its header", line))
            }
        };
        let amount = |name, i: Option<usize>| i.map_or(Ok(0), |i| hex_or_whole(name, get(i)?));
        let completed = nanos("TimeStamp", get(c.time)?, 1_000)?;
        let elapsed = nanos("ElapsedTime", get(c.elapsed)?, 1_000)?;
        let service = nanos("DiskSvcTime", get(c.service)?, 1_000)?;
        whole("DiskNum", get(c.disk)?)?;
        checked(TraceRecord {
            // What was under way when the trace began arrived before its zero; it is counted as arriving then.
            arrived_at: Time::from_nanos(completed.saturating_sub(elapsed)),
            device: device(tables, get(c.disk)?)?,
            op,
            offset: amount("ByteOffset", c.offset)?,
            len: amount("IOSize", c.size)?,
            queue: Some(Span::from_nanos(elapsed.saturating_sub(service))),
            service: Some(Span::from_nanos(service)),
            content: None,
            context: tables.contexts.intern(get(c.process)?),
        })
    }
}

impl LineParser for Etw {
    fn parse(&mut self, line: &[u8], tables: &mut Tables) -> Result<Option<TraceRecord>, Problem> {
        let name = trim(line.split(|&b| b == b',').next().unwrap_or_default());
        match name {
            b"BeginHeader" => self.in_header = true,
            b"EndHeader" => self.in_header = false,
            _ if self.in_header => self.learn(line)?,
            _ => {
                if let Some((event, op)) = event(name) {
                    return self.record(line, event, op, tables);
                }
                if !name.first().is_some_and(u8::is_ascii_alphabetic) {
                    return Err(Problem::shape("an event's name and its columns", line));
                }
            }
        }
        Ok(None)
    }
}
