//! Writes records to our CSV, our Parquet schema or libCacheSim's oracleGeneral.

mod csv;
mod oracle;
mod parquet;

use crate::error::{Position, Problem, TraceError};
use crate::record::{Tables, TraceRecord};
use std::fs::File;
use std::path::Path;

/// Format of a written trace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OutputFormat {
    /// Our CSV; compressed if the file's name ends in `.gz` or `.zst`. Times to the nanosecond.
    Csv,
    /// Our Parquet schema, zstd inside. Times to the nanosecond.
    Parquet,
    /// libCacheSim's oracleGeneral: whole seconds, reads and writes only, without their direction.
    OracleGeneral,
}

impl OutputFormat {
    /// The format a file's name asks for: `.csv`, `.csv.gz`, `.csv.zst`, `.parquet`, `.oracleGeneral` or
    /// `.oracleGeneral.bin`; `None` for any other.
    pub fn from_name(path: &Path) -> Option<OutputFormat> {
        let name = path.file_name()?.to_str()?;
        let ends = |suffixes: &[&str]| suffixes.iter().any(|s| name.ends_with(s));
        match () {
            () if ends(&[".csv", ".csv.gz", ".csv.zst"]) => Some(OutputFormat::Csv),
            () if ends(&[".parquet"]) => Some(OutputFormat::Parquet),
            () if ends(&[".oracleGeneral", ".oracleGeneral.bin"]) => Some(OutputFormat::OracleGeneral),
            () => None,
        }
    }
}

/// Summary of the written trace.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Written {
    /// Records in the file.
    pub records: u64,
    /// Records that the format can't say: trims and flushes in oracleGeneral.
    pub left_out: u64,
}

/// One format's way to write.
trait Sink {
    /// Writes a record; false if the format can't say it.
    fn write(&mut self, record: &TraceRecord, tables: &Tables) -> Result<bool, Problem>;
    /// Everything out of our hands.
    fn finish(self: Box<Self>) -> Result<(), Problem>;
}

/// A trace being written. Without [`TraceWriter::finish`] the file is incomplete.
#[must_use = "a trace is complete only after `finish`"]
pub struct TraceWriter {
    sink: Box<dyn Sink>,
    file: String,
    written: Written,
}

fn io(err: &std::io::Error) -> Problem {
    Problem::new(format!("writing failed: {err}"), "check the path, its permissions and the free space")
}

impl TraceWriter {
    /// Creates (or empties) the file at `path`.
    ///
    /// # Errors
    /// If it can't be created.
    pub fn create(path: &Path, format: OutputFormat) -> Result<TraceWriter, TraceError> {
        let name = path.display().to_string();
        let sink = || -> Result<Box<dyn Sink>, Problem> {
            // oracleGeneral is read back while it is completed.
            let file =
                File::options().read(true).write(true).create(true).truncate(true).open(path).map_err(|e| io(&e))?;
            Ok(match format {
                OutputFormat::Csv => Box::new(csv::CsvSink::new(file, path)?),
                OutputFormat::Parquet => Box::new(parquet::ParquetSink::new(file)?),
                OutputFormat::OracleGeneral => Box::new(oracle::OracleSink::new(file)),
            })
        };
        let sink = sink().map_err(|p| p.at(&name, Position::File))?;
        Ok(TraceWriter { sink, file: name, written: Written::default() })
    }

    /// Appends a record. `tables` are those its numbers are from.
    ///
    /// # Errors
    /// If the file can't take it.
    pub fn write(&mut self, record: &TraceRecord, tables: &Tables) -> Result<(), TraceError> {
        let row = self.written.records + self.written.left_out;
        match self.sink.write(record, tables) {
            Ok(true) => self.written.records += 1,
            Ok(false) => self.written.left_out += 1,
            Err(p) => return Err(p.at(&self.file, Position::Row(row))),
        }
        Ok(())
    }

    /// Completes the file.
    ///
    /// # Errors
    /// If the rest can't be written.
    pub fn finish(self) -> Result<Written, TraceError> {
        self.sink.finish().map_err(|p| p.at(&self.file, Position::File))?;
        Ok(self.written)
    }
}

/// The label of a device, as text that fits between commas.
fn device_label(tables: &Tables, device: u32) -> String {
    match tables.devices.get(device) {
        Some(label) => label.replace([',', '\n', '\r'], "_"),
        None => device.to_string(),
    }
}
