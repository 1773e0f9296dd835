//! Opens a trace file of any format and yields its requests in order of arrival.

use crate::detect::{self, Format, SNIFF_BYTES};
use crate::error::{Position, Problem, TraceError};
use crate::formats::binary::{Oracle, Vscsi1, Vscsi2};
use crate::formats::blkparse::{self, Blkparse};
use crate::formats::columns::{Fiu, FiuCsv, Five};
use crate::formats::comma::{Msr, Spc, Systor, Tencent};
use crate::formats::etw::Etw;
use crate::formats::parquet::Parquet;
use crate::formats::plimsoll::PlimsollCsv;
use crate::formats::{LineSource, RecordSource, Source, Step};
use crate::lines::Lines;
use crate::parse::SECTOR;
use crate::record::{Tables, TraceRecord};
use plimsoll_base::Time;
use std::collections::VecDeque;
use std::fs::File;
use std::io::{BufRead, BufReader, Chain, Cursor, Read};
use std::path::Path;

/// Options of reading a trace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReadOptions {
    /// Format; `None`: it is detected from the content.
    pub format: Option<Format>,
    /// Records held back to put late arrivals in order; `None`: the format's own (none for our CSV, Parquet and
    /// oracleGeneral, 65,536 for ETW text, 4,096 for the others). A record that is late by more is an error.
    pub window_records: Option<usize>,
    /// Bytes from one object number to the next in oracleGeneral; 512 as block traces have it. Not zero.
    pub object_bytes: u64,
}

impl Default for ReadOptions {
    fn default() -> ReadOptions {
        ReadOptions { format: None, window_records: None, object_bytes: SECTOR }
    }
}

/// The requests of a trace, in order of arrival, ties in the file's order. Memory: buffers, the window, and the
/// tables of names, whatever the trace's length. An error comes after all requests read before it, and last.
pub struct TraceReader {
    source: Box<dyn Source>,
    file: String,
    format: Format,
    tables: Tables,
    /// Sorted by arrival.
    window: VecDeque<TraceRecord>,
    window_max: usize,
    base: Option<Time>,
    last: Time,
    skipped: u64,
    is_drained: bool,
    /// Given once the window is empty.
    error: Option<TraceError>,
}

/// Bytes read from the file at once.
const FILE_BUFFER_BYTES: usize = 128 << 10;

impl TraceReader {
    /// Opens the trace in `path`, plain or compressed with gzip or zstd.
    ///
    /// # Errors
    /// If the file can't be read or its format can't be detected.
    pub fn open(path: &Path, options: &ReadOptions) -> Result<TraceReader, TraceError> {
        let name = path.display().to_string();
        let at_file = |p: Problem| p.at(&name, Position::File);
        let io = |e: &std::io::Error| {
            Problem::new(format!("can't be opened: {e}"), "check the path and its permissions")
                .at(&name, Position::File)
        };
        let mut file = File::open(path).map_err(|e| io(&e))?;
        let mut magic = [0; 4];
        let n = read_up_to(&mut file, &mut magic).map_err(|e| io(&e))?;
        if &magic[..n] == b"PAR1" {
            let source = Parquet::new(file).map_err(at_file)?;
            return Ok(TraceReader::new(name, Format::Parquet, Box::new(source), options));
        }
        let whole = Cursor::new(magic[..n].to_vec()).chain(file);
        TraceReader::from_read(&name, Box::new(whole), options)
    }

    /// Reads a trace from a stream, plain or compressed; not Parquet, which begins at its end. `name` is how errors
    /// call it.
    ///
    /// # Errors
    /// If the stream can't be read or its format can't be detected.
    pub fn from_read(name: &str, input: Box<dyn Read>, options: &ReadOptions) -> Result<TraceReader, TraceError> {
        let at_file = |p: Problem| p.at(name, Position::File);
        let mut plain = decompressed(input).map_err(at_file)?;
        let mut head = vec![0; SNIFF_BYTES];
        let n = read_up_to(&mut plain, &mut head).map_err(|e| at_file(Problem::io(&e)))?;
        head.truncate(n);
        let is_whole = n < SNIFF_BYTES;
        let format = match options.format {
            Some(f) => f,
            None => detect::detect(&head, is_whole).map_err(at_file)?,
        };
        if format == Format::Parquet {
            return Err(at_file(Problem::new(
                "a Parquet trace begins with `PAR1`, uncompressed, and can't come from a stream",
                "decompress it to a file",
            )));
        }
        // Which event a blkparse request arrives at is told from the beginning as well.
        let arrival = (format == Format::Blkparse)
            .then(|| blkparse::earliest_kind(detect::head_lines(&head, is_whole).into_iter()))
            .flatten();
        let rest: Chain<Cursor<Vec<u8>>, Box<dyn BufRead>> = Cursor::new(head).chain(plain);
        let source = source(format, Box::new(rest), arrival, options);
        Ok(TraceReader::new(name.to_string(), format, source, options))
    }

    /// Reads a Parquet trace held in memory.
    ///
    /// # Errors
    /// If it isn't one.
    pub fn from_parquet_bytes(name: &str, bytes: Vec<u8>, options: &ReadOptions) -> Result<TraceReader, TraceError> {
        let source = Parquet::new(bytes::Bytes::from(bytes)).map_err(|p| p.at(name, Position::File))?;
        Ok(TraceReader::new(name.to_string(), Format::Parquet, Box::new(source), options))
    }

    fn new(file: String, format: Format, source: Box<dyn Source>, options: &ReadOptions) -> TraceReader {
        TraceReader {
            source,
            file,
            format,
            tables: Tables::new(),
            window: VecDeque::new(),
            window_max: options.window_records.unwrap_or(format.window_default()),
            base: None,
            last: Time::ZERO,
            skipped: 0,
            is_drained: false,
            error: None,
        }
    }

    /// The format found or named.
    pub fn format(&self) -> Format {
        self.format
    }

    /// The names behind the numbers of the records yielded so far.
    pub fn tables(&self) -> &Tables {
        &self.tables
    }

    /// The file as errors call it.
    pub fn name(&self) -> &str {
        &self.file
    }

    /// Well-formed lines or records so far that are no requests: headers, other events, requests of no bytes.
    pub fn skipped(&self) -> u64 {
        self.skipped
    }

    /// Puts a record in its place in the window.
    fn insert(&mut self, r: TraceRecord) -> Result<(), TraceError> {
        if r.arrived_at < self.last {
            let late = self.last.since(r.arrived_at);
            let fix = "sort the trace by arrival, or read it with a larger window";
            let what = format!(
                "this request arrived {late} before one already given, {} records back or more",
                self.window_max
            );
            return Err(Problem::new(what, fix).at(&self.file, self.source.position()));
        }
        // In nearly every trace nearly every record belongs at the end.
        if self.window.back().is_none_or(|b| b.arrived_at <= r.arrived_at) {
            self.window.push_back(r);
        } else {
            let at = self.window.partition_point(|w| w.arrived_at <= r.arrived_at);
            self.window.insert(at, r);
        }
        Ok(())
    }

    /// Reads until the window is more than full or the trace ends.
    fn fill(&mut self) -> Result<(), TraceError> {
        while !self.is_drained && self.window.len() <= self.window_max {
            match self.source.step(&mut self.tables) {
                Ok(Step::Record(r)) => self.insert(r)?,
                Ok(Step::Skipped) => self.skipped += 1,
                Ok(Step::More) => {}
                Ok(Step::End) => self.is_drained = true,
                Err(p) => return Err(p.at(&self.file, self.source.position())),
            }
        }
        Ok(())
    }
}

impl Iterator for TraceReader {
    type Item = Result<TraceRecord, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Err(e) = self.fill() {
            self.is_drained = true;
            self.error = Some(e);
        }
        // What was read before an error is good: the error comes after it.
        let Some(mut r) = self.window.pop_front() else { return self.error.take().map(Err) };
        self.last = r.arrived_at;
        let first = if self.format.is_relative() { Time::ZERO } else { r.arrived_at };
        let base = *self.base.get_or_insert(first);
        r.arrived_at = Time::from_nanos(r.arrived_at.since(base).as_nanos());
        Some(Ok(r))
    }
}

fn source(
    format: Format,
    input: Box<dyn BufRead>,
    arrival: Option<blkparse::Kind>,
    options: &ReadOptions,
) -> Box<dyn Source> {
    match format {
        Format::Vscsi1 => return Box::new(RecordSource::new(input, Vscsi1)),
        Format::Vscsi2 => return Box::new(RecordSource::new(input, Vscsi2)),
        Format::OracleGeneral => {
            return Box::new(RecordSource::new(input, Oracle { object_bytes: options.object_bytes.max(1) }));
        }
        _ => {}
    }
    let lines = Lines::new(input);
    match format {
        Format::Csv => Box::new(LineSource::new(lines, PlimsollCsv::default())),
        Format::Msr => Box::new(LineSource::new(lines, Msr::default())),
        Format::Etw => Box::new(LineSource::new(lines, Etw::default())),
        Format::Spc => Box::new(LineSource::new(lines, Spc)),
        Format::Blkparse => Box::new(Blkparse::new(lines, arrival.unwrap_or(blkparse::Kind::Queued))),
        Format::Mqsim => Box::new(LineSource::new(lines, Five::Mqsim)),
        Format::Disksim => Box::new(LineSource::new(lines, Five::Disksim)),
        Format::Replay => Box::new(LineSource::new(lines, Five::Replay)),
        Format::Fiu => Box::new(LineSource::new(lines, Fiu::default())),
        Format::FiuCsv => Box::new(LineSource::new(lines, FiuCsv::default())),
        Format::Tencent => Box::new(LineSource::new(lines, Tencent)),
        Format::Systor => Box::new(LineSource::new(lines, Systor)),
        Format::Parquet | Format::Vscsi1 | Format::Vscsi2 | Format::OracleGeneral => {
            unreachable!("handled above")
        }
    }
}

/// Fills `buffer` as far as the input reaches; returns how far.
fn read_up_to(input: &mut dyn Read, buffer: &mut [u8]) -> std::io::Result<usize> {
    let mut n = 0;
    while n < buffer.len() {
        match input.read(&mut buffer[n..]) {
            Ok(0) => break,
            Ok(k) => n += k,
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(n)
}

/// Returns the input without its compression, which its first bytes show.
fn decompressed(mut input: Box<dyn Read>) -> Result<Box<dyn BufRead>, Problem> {
    let mut magic = [0; 6];
    let n = read_up_to(&mut *input, &mut magic).map_err(|e| Problem::io(&e))?;
    let whole = BufReader::with_capacity(FILE_BUFFER_BYTES, Cursor::new(magic[..n].to_vec()).chain(input));
    Ok(match magic {
        [0x1f, 0x8b, ..] => {
            Box::new(BufReader::with_capacity(FILE_BUFFER_BYTES, flate2::bufread::MultiGzDecoder::new(whole)))
        }
        [0x28, 0xb5, 0x2f, 0xfd, ..] => {
            let decoder = zstd::stream::read::Decoder::with_buffer(whole).map_err(|e| Problem::io(&e))?;
            Box::new(BufReader::with_capacity(FILE_BUFFER_BYTES, decoder))
        }
        [0xfd, b'7', b'z', b'X', b'Z', 0] => return Err(unread_compression("xz")),
        [b'B', b'Z', b'h', ..] => return Err(unread_compression("bzip2")),
        _ => Box::new(whole),
    })
}

fn unread_compression(name: &str) -> Problem {
    Problem::new(
        format!("compressed with {name}, which isn't read"),
        "decompress it, or recompress it with gzip or zstd",
    )
}
