//! Our own CSV: `t_us,dev,op,offset,size,q_us,svc_us[,content],ctx`, sorted by time.

use crate::error::Problem;
use crate::formats::{LineParser, device};
use crate::parse::{checked, hex, nanos, trim, whole};
use crate::record::{Op, Tables, TraceRecord};
use plimsoll_base::{Span, Time};

/// The header every such file starts with. `content` may stand before `ctx`.
pub(crate) const HEADER: &str = "t_us,dev,op,offset,size,q_us,svc_us,ctx";
/// The header with fingerprints.
pub(crate) const HEADER_CONTENT: &str = "t_us,dev,op,offset,size,q_us,svc_us,content,ctx";

/// Our CSV. Times may carry a fraction, to the nanosecond.
#[derive(Default)]
pub(crate) struct PlimsollCsv {
    has_content: bool,
    has_header: bool,
}

impl PlimsollCsv {
    fn header(&mut self, line: &[u8]) -> Result<(), Problem> {
        self.has_content = match trim(line) {
            h if h == HEADER.as_bytes() => false,
            h if h == HEADER_CONTENT.as_bytes() => true,
            other => return Err(Problem::shape(&format!("the header `{HEADER}`"), other)),
        };
        self.has_header = true;
        Ok(())
    }
}

fn span_us(name: &str, field: &[u8]) -> Result<Option<Span>, Problem> {
    match trim(field) {
        b"" => Ok(None),
        f => Ok(Some(Span::from_nanos(nanos(name, f, 1_000)?))),
    }
}

impl LineParser for PlimsollCsv {
    fn parse(&mut self, line: &[u8], tables: &mut Tables) -> Result<Option<TraceRecord>, Problem> {
        if !self.has_header {
            self.header(line)?;
            return Ok(None);
        }
        let shape = || Problem::shape("the fields `t_us,dev,op,offset,size,q_us,svc_us,ctx`", line);
        // The context is last and takes the rest of the line, so that it may hold commas.
        let mut it = line.splitn(if self.has_content { 9 } else { 8 }, |&b| b == b',');
        let mut next = || it.next().ok_or_else(shape);
        let (time, dev, op, offset, size, queue, service) =
            (next()?, next()?, next()?, next()?, next()?, next()?, next()?);
        let content = if self.has_content { next()? } else { b"" };
        let context = next()?;
        let op = match *trim(op) {
            [letter] => Op::from_letter(letter),
            _ => None,
        }
        .ok_or_else(|| Problem::field("op", "R, W, T or F", op))?;
        let content = match trim(content) {
            b"" => None,
            h => Some(hex(h).ok_or_else(|| Problem::field("content", "up to 32 hexadecimal digits", h))?),
        };
        let context = match trim(context) {
            b"" => None,
            c => tables.contexts.intern(c),
        };
        checked(TraceRecord {
            arrived_at: Time::from_nanos(nanos("t_us", time, 1_000)?),
            device: device(tables, trim(dev))?,
            op,
            offset: whole("offset", offset)?,
            len: whole("size", size)?,
            queue: span_us("q_us", queue)?,
            service: span_us("svc_us", service)?,
            content,
            context,
        })
    }
}
