//! Our CSV.

use crate::error::Problem;
use crate::formats::plimsoll::{HEADER, HEADER_CONTENT};
use crate::record::{Tables, TraceRecord};
use crate::writer::{Sink, device_label, io};
use plimsoll_base::Span;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

/// The file, whatever it is compressed with.
enum Output {
    Plain(BufWriter<File>),
    Gzip(flate2::write::GzEncoder<BufWriter<File>>),
    Zstd(zstd::stream::write::Encoder<'static, BufWriter<File>>),
}

impl Output {
    fn new(file: File, path: &Path) -> std::io::Result<Output> {
        let file = BufWriter::with_capacity(128 << 10, file);
        Ok(match path.extension().and_then(|e| e.to_str()) {
            Some("gz") => Output::Gzip(flate2::write::GzEncoder::new(file, flate2::Compression::default())),
            Some("zst") => Output::Zstd(zstd::stream::write::Encoder::new(file, zstd::DEFAULT_COMPRESSION_LEVEL)?),
            _ => Output::Plain(file),
        })
    }

    fn write_all(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        match self {
            Output::Plain(f) => f.write_all(bytes),
            Output::Gzip(f) => f.write_all(bytes),
            Output::Zstd(f) => f.write_all(bytes),
        }
    }

    fn finish(self) -> std::io::Result<()> {
        match self {
            Output::Plain(mut f) => f.flush(),
            Output::Gzip(f) => f.finish()?.flush(),
            Output::Zstd(f) => f.finish()?.flush(),
        }
    }
}

/// Our CSV being written. Whether it has fingerprints is settled by the first record.
pub(super) struct CsvSink {
    output: Output,
    line: Vec<u8>,
    has_content: Option<bool>,
}

impl CsvSink {
    pub fn new(file: File, path: &Path) -> Result<CsvSink, Problem> {
        let output = Output::new(file, path).map_err(|e| io(&e))?;
        Ok(CsvSink { output, line: Vec::with_capacity(128), has_content: None })
    }

    fn header(&mut self, has_content: bool) -> Result<(), Problem> {
        self.has_content = Some(has_content);
        let header = if has_content { HEADER_CONTENT } else { HEADER };
        self.output.write_all(format!("{header}\n").as_bytes()).map_err(|e| io(&e))
    }

    /// A time in microseconds, with a fraction only where it has one.
    fn push_us(&mut self, ns: u64) {
        let (us, rest) = (ns / 1_000, ns % 1_000);
        // Writing to a vector can't fail.
        let _ = if rest == 0 { write!(self.line, "{us}") } else { write!(self.line, "{us}.{rest:03}") };
    }

    fn push_span(&mut self, span: Option<Span>) {
        if let Some(s) = span {
            self.push_us(s.as_nanos());
        }
        self.line.push(b',');
    }
}

impl Sink for CsvSink {
    fn write(&mut self, r: &TraceRecord, tables: &Tables) -> Result<bool, Problem> {
        let has_content = match self.has_content {
            Some(h) => h,
            None => {
                self.header(r.content.is_some())?;
                r.content.is_some()
            }
        };
        if r.content.is_some() && !has_content {
            return Err(Problem::new(
                "a record with a content fingerprint, though the first one had none and so the file has no column for it",
                "write Parquet, which always has the column",
            ));
        }
        self.line.clear();
        self.push_us(r.arrived_at.as_nanos());
        let label = device_label(tables, r.device);
        let _ = write!(self.line, ",{label},{},{},{},", r.op.letter(), r.offset, r.len);
        self.push_span(r.queue);
        self.push_span(r.service);
        if has_content {
            if let Some(c) = r.content {
                let _ = write!(self.line, "{c:032x}");
            }
            self.line.push(b',');
        }
        if let Some(context) = r.context.and_then(|c| tables.contexts.get(c)) {
            self.line.extend(context.bytes().map(|b| if b == b'\n' || b == b'\r' { b' ' } else { b }));
        }
        self.line.push(b'\n');
        self.output.write_all(&self.line).map_err(|e| io(&e))?;
        Ok(true)
    }

    fn finish(mut self: Box<Self>) -> Result<(), Problem> {
        if self.has_content.is_none() {
            self.header(false)?;
        }
        self.output.finish().map_err(|e| io(&e))
    }
}
