//! Our Parquet schema.

use crate::error::Problem;
use crate::formats::parquet::SCHEMA;
use crate::record::{Tables, TraceRecord};
use crate::writer::{Sink, device_label};
use parquet::basic::{Compression, ZstdLevel};
use parquet::data_type::{ByteArray, ByteArrayType, DataType, FixedLenByteArray, FixedLenByteArrayType, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::parser::parse_message_type;
use std::fs::File;
use std::sync::Arc;

/// Rows held back to write them column by column: about 10 MiB.
const GROUP_ROWS: usize = 1 << 16;

/// One optional column of a row group: the values there are, and per row whether there is one.
struct Optional<T> {
    values: Vec<T>,
    levels: Vec<i16>,
}

impl<T> Default for Optional<T> {
    fn default() -> Optional<T> {
        Optional { values: Vec::new(), levels: Vec::new() }
    }
}

impl<T> Optional<T> {
    fn push(&mut self, value: Option<T>) {
        self.levels.push(i16::from(value.is_some()));
        self.values.extend(value);
    }
}

/// The rows not yet written.
#[derive(Default)]
struct Rows {
    t: Vec<i64>,
    dev: Vec<ByteArray>,
    op: Vec<ByteArray>,
    offset: Vec<i64>,
    size: Vec<i64>,
    queue: Optional<i64>,
    service: Optional<i64>,
    content: Optional<FixedLenByteArray>,
    context: Optional<ByteArray>,
}

/// A Parquet file being written.
pub(super) struct ParquetSink {
    file: SerializedFileWriter<File>,
    rows: Rows,
}

fn problem(err: &ParquetError) -> Problem {
    Problem::new(format!("writing Parquet failed: {err}"), "check the path, its permissions and the free space")
}

impl ParquetSink {
    pub fn new(file: File) -> Result<ParquetSink, Problem> {
        let create = || {
            let schema = parse_message_type(SCHEMA)?;
            let compression = Compression::ZSTD(ZstdLevel::try_new(3)?);
            let properties = WriterProperties::builder().set_compression(compression).build();
            SerializedFileWriter::new(file, Arc::new(schema), Arc::new(properties))
        };
        Ok(ParquetSink { file: create().map_err(|e| problem(&e))?, rows: Rows::default() })
    }

    /// Writes the rows held back as one row group.
    fn flush(&mut self) -> Result<(), ParquetError> {
        let rows = std::mem::take(&mut self.rows);
        if rows.t.is_empty() {
            return Ok(());
        }
        let mut group = self.file.next_row_group()?;
        column::<Int64Type>(&mut group, &rows.t, None)?;
        column::<ByteArrayType>(&mut group, &rows.dev, None)?;
        column::<ByteArrayType>(&mut group, &rows.op, None)?;
        column::<Int64Type>(&mut group, &rows.offset, None)?;
        column::<Int64Type>(&mut group, &rows.size, None)?;
        column::<Int64Type>(&mut group, &rows.queue.values, Some(&rows.queue.levels))?;
        column::<Int64Type>(&mut group, &rows.service.values, Some(&rows.service.levels))?;
        column::<FixedLenByteArrayType>(&mut group, &rows.content.values, Some(&rows.content.levels))?;
        column::<ByteArrayType>(&mut group, &rows.context.values, Some(&rows.context.levels))?;
        group.close()?;
        Ok(())
    }
}

/// Writes the group's next column.
fn column<T: DataType>(
    group: &mut SerializedRowGroupWriter<'_, File>,
    values: &[T::T],
    levels: Option<&[i16]>,
) -> Result<(), ParquetError> {
    let mut column = group.next_column()?.expect("the file has all columns of the schema");
    column.typed::<T>().write_batch(values, levels, None)?;
    column.close()
}

/// Times and addresses as Parquet's signed numbers: a record's address fits in 63 bits, its time does up to 292 years.
fn signed(v: u64) -> i64 {
    i64::try_from(v).unwrap_or(i64::MAX)
}

impl Sink for ParquetSink {
    fn write(&mut self, r: &TraceRecord, tables: &Tables) -> Result<bool, Problem> {
        let rows = &mut self.rows;
        rows.t.push(signed(r.arrived_at.as_nanos()));
        rows.dev.push(device_label(tables, r.device).into_bytes().into());
        rows.op.push(vec![r.op.letter() as u8].into());
        rows.offset.push(signed(r.offset));
        rows.size.push(signed(r.len));
        rows.queue.push(r.queue.map(|s| signed(s.as_nanos())));
        rows.service.push(r.service.map(|s| signed(s.as_nanos())));
        rows.content.push(r.content.map(|c| FixedLenByteArray::from(c.to_be_bytes().to_vec())));
        rows.context.push(r.context.and_then(|c| tables.contexts.get(c)).map(ByteArray::from));
        if rows.t.len() >= GROUP_ROWS {
            self.flush().map_err(|e| problem(&e))?;
        }
        Ok(true)
    }

    fn finish(mut self: Box<Self>) -> Result<(), Problem> {
        self.flush().and_then(|()| self.file.close().map(|_| ())).map_err(|e| problem(&e))
    }
}
