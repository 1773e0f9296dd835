//! One parser per format, and the two shapes of input they read: lines and fixed-size binary records.

pub(crate) mod binary;
pub(crate) mod blkparse;
pub(crate) mod columns;
pub(crate) mod comma;
pub(crate) mod etw;
pub(crate) mod parquet;
pub(crate) mod plimsoll;
mod thrift;

use crate::error::{Position, Problem};
use crate::lines::Lines;
use crate::record::{Tables, TraceRecord};
use std::io::{BufRead, Read};

/// Result of one step through a trace.
#[derive(Debug)]
pub(crate) enum Step {
    /// A request. Its time is the source's own clock; the reader makes it relative.
    Record(TraceRecord),
    /// Something well-formed that is no request.
    Skipped,
    /// Part of a request that isn't whole yet.
    More,
    /// The end.
    End,
}

/// A trace being read, before re-ordering.
pub(crate) trait Source {
    fn step(&mut self, tables: &mut Tables) -> Result<Step, Problem>;
    /// Returns the place of the record last read.
    fn position(&self) -> Position;
}

/// A format of which each line stands alone. `None` for a well-formed line that is no request.
pub(crate) trait LineParser {
    fn parse(&mut self, line: &[u8], tables: &mut Tables) -> Result<Option<TraceRecord>, Problem>;
}

/// Lines through a [`LineParser`].
pub(crate) struct LineSource<P> {
    lines: Lines,
    parser: P,
}

impl<P: LineParser> LineSource<P> {
    pub fn new(lines: Lines, parser: P) -> LineSource<P> {
        LineSource { lines, parser }
    }
}

impl<P: LineParser> Source for LineSource<P> {
    fn step(&mut self, tables: &mut Tables) -> Result<Step, Problem> {
        if !self.lines.advance()? {
            return Ok(Step::End);
        }
        Ok(match self.parser.parse(self.lines.current(), tables)? {
            Some(r) => Step::Record(r),
            None => Step::Skipped,
        })
    }

    fn position(&self) -> Position {
        self.lines.position()
    }
}

/// A format of records of `BYTES` bytes, each of which stands alone.
pub(crate) trait RecordParser<const BYTES: usize> {
    fn parse(&mut self, record: &[u8; BYTES], tables: &mut Tables) -> Result<Option<TraceRecord>, Problem>;
}

/// Fixed-size records through a [`RecordParser`].
pub(crate) struct RecordSource<P, const BYTES: usize> {
    input: Box<dyn BufRead>,
    parser: P,
    at: u64,
}

impl<P: RecordParser<BYTES>, const BYTES: usize> RecordSource<P, BYTES> {
    pub fn new(input: Box<dyn BufRead>, parser: P) -> Self {
        RecordSource { input, parser, at: 0 }
    }
}

impl<P: RecordParser<BYTES>, const BYTES: usize> Source for RecordSource<P, BYTES> {
    fn step(&mut self, tables: &mut Tables) -> Result<Step, Problem> {
        let mut record = [0; BYTES];
        let mut filled = 0;
        while filled < BYTES {
            match self.input.read(&mut record[filled..]) {
                Ok(0) => break,
                Ok(n) => filled += n,
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                Err(e) => return Err(Problem::io(&e)),
            }
        }
        if filled == 0 {
            return Ok(Step::End);
        }
        if filled < BYTES {
            return Err(Problem::new(
                format!("the file ends after {filled} of a record's {BYTES} bytes"),
                "copy the file again, or cut it to whole records",
            ));
        }
        let found = self.parser.parse(&record, tables)?;
        self.at += BYTES as u64;
        Ok(found.map_or(Step::Skipped, Step::Record))
    }

    fn position(&self) -> Position {
        Position::Byte(self.at)
    }
}

/// The device numbered by `label`, or an error if there are too many to be true.
pub(crate) fn device(tables: &mut Tables, label: &[u8]) -> Result<u32, Problem> {
    tables.devices.intern(label).ok_or_else(|| {
        Problem::new(
            format!("more than {} devices", Tables::DEVICES_MAX),
            "check the format: is this column the device?",
        )
    })
}
