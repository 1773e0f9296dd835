//! Our Parquet schema: the columns of our CSV, times in nanoseconds.
//!
//! | column | type | |
//! | --- | --- | --- |
//! | t_ns | INT64 | required |
//! | dev, op | BYTE_ARRAY (UTF8) | required; op is R, W, T or F |
//! | offset, size | INT64 | required, bytes |
//! | q_ns, svc_ns | INT64 | optional |
//! | content | FIXED_LEN_BYTE_ARRAY(16), big-endian | optional |
//! | ctx | BYTE_ARRAY (UTF8) | optional |

use crate::error::{Position, Problem};
use crate::formats::thrift::is_plausible;
use crate::formats::{Source, Step, device};
use crate::parse::checked;
use crate::record::{Op, Tables, TraceRecord};
use parquet::column::reader::{ColumnReader, ColumnReaderImpl};
use parquet::data_type::{ByteArrayType, DataType, FixedLenByteArrayType, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::reader::{ChunkReader, FileReader, SerializedFileReader};
use plimsoll_base::{Span, Time};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The schema, in Parquet's own notation.
pub(crate) const SCHEMA: &str = "message trace {
  required int64 t_ns;
  required binary dev (UTF8);
  required binary op (UTF8);
  required int64 offset;
  required int64 size;
  optional int64 q_ns;
  optional int64 svc_ns;
  optional fixed_len_byte_array(16) content;
  optional binary ctx (UTF8);
}";

/// The columns in the order of [`SCHEMA`].
const COLUMNS: [&str; 9] = ["t_ns", "dev", "op", "offset", "size", "q_ns", "svc_ns", "content", "ctx"];

/// Number of columns that must be present.
const COLUMNS_REQUIRED: usize = 5;

/// Rows decoded at once.
const BATCH_ROWS: usize = 4096;

fn problem(err: impl std::fmt::Display) -> Problem {
    Problem::new(
        format!("Parquet: {err}"),
        format!("check that the file is whole and has the columns {}", COLUMNS.join(", ")),
    )
}

/// The decoder asserts about what a file says of itself in places; a damaged file must still be an error here, not
/// the end of the process.
fn guarded<T>(f: impl FnOnce() -> Result<T, ParquetError>) -> Result<T, Problem> {
    match catch_unwind(AssertUnwindSafe(f)) {
        Ok(r) => r.map_err(problem),
        Err(_) => Err(problem("the file is damaged in a way the decoder does not explain")),
    }
}

/// The end of a file: its footer's length and the magic number.
const TAIL_BYTES: u64 = 8;

/// Checks the footer before the decoder reads it, as the decoder would count through lists that can't be there. A file that isn't
/// Parquet at all is left to the decoder to describe.
fn check_footer(input: &impl ChunkReader) -> Result<(), ParquetError> {
    let Some(tail_at) = input.len().checked_sub(TAIL_BYTES) else { return Ok(()) };
    let tail = input.get_bytes(tail_at, TAIL_BYTES as usize)?;
    let len = u64::from(u32::from_le_bytes([tail[0], tail[1], tail[2], tail[3]]));
    let Some(at) = tail_at.checked_sub(len).filter(|_| tail.ends_with(b"PAR1")) else { return Ok(()) };
    if !is_plausible(&input.get_bytes(at, len as usize)?) {
        return Err(ParquetError::General("the footer announces more than it holds".into()));
    }
    Ok(())
}

/// One column of the batch at hand: a value per row.
struct Batch<T: DataType> {
    reader: Option<ColumnReaderImpl<T>>,
    optional: bool,
    values: Vec<T::T>,
    levels: Vec<i16>,
    /// Next value, as absent rows have none.
    next: usize,
}

impl<T: DataType> Default for Batch<T> {
    fn default() -> Batch<T> {
        Batch { reader: None, optional: false, values: Vec::new(), levels: Vec::new(), next: 0 }
    }
}

impl<T: DataType> Batch<T> {
    /// Decodes the next rows; returns how many.
    fn fill(&mut self) -> Result<usize, Problem> {
        self.values.clear();
        self.levels.clear();
        self.next = 0;
        let Some(reader) = &mut self.reader else { return Ok(0) };
        let levels = self.optional.then_some(&mut self.levels);
        let values = &mut self.values;
        let (rows, ..) = guarded(|| reader.read_records(BATCH_ROWS, levels, None, values))?;
        Ok(rows)
    }

    /// The value of row `row`, rows being asked for in order.
    fn take(&mut self, row: usize) -> Option<&T::T> {
        if self.reader.is_none() || (self.optional && self.levels.get(row) != Some(&1)) {
            return None;
        }
        self.next += 1;
        self.values.get(self.next - 1)
    }
}

/// Every column of the row group at hand.
#[derive(Default)]
struct Columns {
    t: Batch<Int64Type>,
    dev: Batch<ByteArrayType>,
    op: Batch<ByteArrayType>,
    offset: Batch<Int64Type>,
    size: Batch<Int64Type>,
    queue: Batch<Int64Type>,
    service: Batch<Int64Type>,
    content: Batch<FixedLenByteArrayType>,
    context: Batch<ByteArrayType>,
}

impl Columns {
    /// Takes the reader of column number `which` of [`COLUMNS`], unless it is of another type.
    fn set_reader(&mut self, which: usize, reader: ColumnReader, optional: bool) -> Result<(), ()> {
        fn put<T: DataType>(batch: &mut Batch<T>, reader: ColumnReaderImpl<T>, optional: bool) {
            batch.reader = Some(reader);
            batch.optional = optional;
        }
        match (which, reader) {
            (0, ColumnReader::Int64ColumnReader(r)) => put(&mut self.t, r, optional),
            (1, ColumnReader::ByteArrayColumnReader(r)) => put(&mut self.dev, r, optional),
            (2, ColumnReader::ByteArrayColumnReader(r)) => put(&mut self.op, r, optional),
            (3, ColumnReader::Int64ColumnReader(r)) => put(&mut self.offset, r, optional),
            (4, ColumnReader::Int64ColumnReader(r)) => put(&mut self.size, r, optional),
            (5, ColumnReader::Int64ColumnReader(r)) => put(&mut self.queue, r, optional),
            (6, ColumnReader::Int64ColumnReader(r)) => put(&mut self.service, r, optional),
            (7, ColumnReader::FixedLenByteArrayColumnReader(r)) => put(&mut self.content, r, optional),
            (8, ColumnReader::ByteArrayColumnReader(r)) => put(&mut self.context, r, optional),
            _ => return Err(()),
        }
        Ok(())
    }

    /// Decodes the next rows of every column; returns how many.
    fn fill(&mut self) -> Result<usize, Problem> {
        let rows = self.t.fill()?;
        let required = [self.dev.fill()?, self.op.fill()?, self.offset.fill()?, self.size.fill()?];
        let optional = [
            (self.queue.fill()?, self.queue.reader.is_some()),
            (self.service.fill()?, self.service.reader.is_some()),
            (self.content.fill()?, self.content.reader.is_some()),
            (self.context.fill()?, self.context.reader.is_some()),
        ];
        let uneven = required.iter().any(|&n| n != rows) || optional.iter().any(|&(n, is_there)| is_there && n != rows);
        if uneven { Err(problem("columns of different lengths")) } else { Ok(rows) }
    }

    /// The request of row `row` of the batch, rows being asked for in order.
    fn record(&mut self, row: usize, tables: &mut Tables) -> Result<Option<TraceRecord>, Problem> {
        let amount = |name: &str, v: Option<&i64>| {
            let v = v.ok_or_else(|| problem(format!("no {name}")))?;
            u64::try_from(*v).map_err(|_| problem(format!("{name} is negative: {v}")))
        };
        let span = |name: &str, v: Option<&i64>| v.map(|v| amount(name, Some(v)).map(Span::from_nanos)).transpose();
        let label = self.dev.take(row).ok_or_else(|| problem("no dev"))?;
        let device = device(tables, label.data())?;
        let op = self.op.take(row).ok_or_else(|| problem("no op"))?;
        let op = match *op.data() {
            [letter] => Op::from_letter(letter),
            _ => None,
        }
        .ok_or_else(|| Problem::field("op", "R, W, T or F", op.data()))?;
        let content = self.content.take(row).map(|c| {
            <[u8; 16]>::try_from(c.data()).map(u128::from_be_bytes).map_err(|_| problem("content isn't 16 bytes"))
        });
        checked(TraceRecord {
            arrived_at: Time::from_nanos(amount("t_ns", self.t.take(row))?),
            device,
            op,
            offset: amount("offset", self.offset.take(row))?,
            len: amount("size", self.size.take(row))?,
            queue: span("q_ns", self.queue.take(row))?,
            service: span("svc_ns", self.service.take(row))?,
            content: content.transpose()?,
            context: self.context.take(row).and_then(|c| tables.contexts.intern(c.data())),
        })
    }
}

/// A Parquet trace.
pub(crate) struct Parquet<R: ChunkReader + 'static> {
    file: SerializedFileReader<R>,
    group: usize,
    columns: Columns,
    rows: usize,
    row: usize,
    row_number: u64,
}

impl<R: ChunkReader + 'static> Parquet<R> {
    pub fn new(input: R) -> Result<Parquet<R>, Problem> {
        guarded(|| check_footer(&input))?;
        let file = guarded(|| SerializedFileReader::new(input))?;
        Ok(Parquet { file, group: 0, columns: Columns::default(), rows: 0, row: 0, row_number: 0 })
    }

    /// Opens the columns of the next row group; false at the end.
    fn next_group(&mut self) -> Result<bool, Problem> {
        if self.group >= self.file.num_row_groups() {
            return Ok(false);
        }
        let rg = guarded(|| self.file.get_row_group(self.group))?;
        let schema = rg.metadata().schema_descr_ptr();
        let mut columns = Columns::default();
        for (which, name) in COLUMNS.iter().enumerate() {
            let Some(i) = (0..schema.num_columns()).find(|&i| schema.column(i).name() == *name) else {
                if which < COLUMNS_REQUIRED {
                    return Err(problem(format!("no column `{name}`")));
                }
                continue;
            };
            if schema.column(i).max_rep_level() > 0 || schema.column(i).max_def_level() > 1 {
                return Err(problem(format!("column `{name}` is nested")));
            }
            let optional = schema.column(i).max_def_level() == 1;
            let reader = guarded(|| rg.get_column_reader(i))?;
            columns
                .set_reader(which, reader, optional)
                .map_err(|()| problem(format!("column `{name}` has another type than ours")))?;
        }
        self.columns = columns;
        self.group += 1;
        Ok(true)
    }
}

impl<R: ChunkReader + 'static> Source for Parquet<R> {
    fn step(&mut self, tables: &mut Tables) -> Result<Step, Problem> {
        while self.row == self.rows {
            self.row = 0;
            self.rows = self.columns.fill()?;
            if self.rows == 0 && !self.next_group()? {
                return Ok(Step::End);
            }
        }
        let found = self.columns.record(self.row, tables)?;
        self.row += 1;
        self.row_number += 1;
        Ok(found.map_or(Step::Skipped, Step::Record))
    }

    fn position(&self) -> Position {
        Position::Row(self.row_number)
    }
}
