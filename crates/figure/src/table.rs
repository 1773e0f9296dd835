//! Results as tables: written as CSV or Parquet, by the file's name.

use parquet::basic::{Compression, ZstdLevel};
use parquet::data_type::{ByteArray, ByteArrayType, DoubleType, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use std::fmt::Write as _;
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;

/// The values of a column.
#[derive(Clone, PartialEq, Debug)]
pub enum Values {
    /// Names.
    Text(Vec<String>),
    /// Counts.
    Whole(Vec<i64>),
    /// Measures; `None` where there is none.
    Real(Vec<Option<f64>>),
}

impl Values {
    fn len(&self) -> usize {
        match self {
            Values::Text(v) => v.len(),
            Values::Whole(v) => v.len(),
            Values::Real(v) => v.len(),
        }
    }

    fn cell(&self, row: usize) -> String {
        match self {
            Values::Text(v) if v[row].contains([',', '"', '\n']) => format!("\"{}\"", v[row].replace('"', "\"\"")),
            Values::Text(v) => v[row].clone(),
            Values::Whole(v) => v[row].to_string(),
            Values::Real(v) => v[row].map_or(String::new(), |x| x.to_string()),
        }
    }
}

/// Columns of equal length, each with its name (units in the name).
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Table {
    columns: Vec<(&'static str, Values)>,
}

impl Table {
    /// No columns.
    pub fn new() -> Table {
        Table::default()
    }

    /// With one column more.
    ///
    /// # Panics
    /// If its length differs from the others'.
    #[must_use]
    pub fn column(mut self, name: &'static str, values: Values) -> Table {
        assert!(self.columns.iter().all(|c| c.1.len() == values.len()), "column `{name}` is of another length");
        self.columns.push((name, values));
        self
    }

    fn rows(&self) -> usize {
        self.columns.first().map_or(0, |c| c.1.len())
    }

    /// As CSV with a header line.
    pub fn to_csv(&self) -> String {
        let names: Vec<&str> = self.columns.iter().map(|c| c.0).collect();
        let mut text = names.join(",") + "\n";
        for row in 0..self.rows() {
            let cells: Vec<String> = self.columns.iter().map(|c| c.1.cell(row)).collect();
            writeln!(text, "{}", cells.join(",")).expect("strings take text");
        }
        text
    }

    /// Writes a `.parquet` file, or CSV under any other name.
    ///
    /// # Errors
    /// If the file can't be written; the error names it.
    pub fn write(&self, path: &Path) -> io::Result<()> {
        let named = |e: &dyn std::fmt::Display| io::Error::other(format!("{}: {e}", path.display()));
        if path.extension().is_some_and(|e| e == "parquet") {
            let file = File::create(path).map_err(|e| named(&e))?;
            return self.write_parquet(file).map_err(|e| named(&e));
        }
        std::fs::write(path, self.to_csv()).map_err(|e| named(&e))
    }

    fn write_parquet(&self, file: File) -> Result<(), ParquetError> {
        let field = |(name, values): &(&str, Values)| match values {
            Values::Text(_) => format!("required binary {name} (UTF8);"),
            Values::Whole(_) => format!("required int64 {name};"),
            Values::Real(_) => format!("optional double {name};"),
        };
        let fields: Vec<String> = self.columns.iter().map(field).collect();
        let schema = parse_message_type(&format!("message result {{ {} }}", fields.join(" ")))?;
        let compression = Compression::ZSTD(ZstdLevel::try_new(3)?);
        let properties = WriterProperties::builder().set_compression(compression).build();
        let mut writer = SerializedFileWriter::new(file, Arc::new(schema), Arc::new(properties))?;
        let mut group = writer.next_row_group()?;
        for (_, values) in &self.columns {
            let mut column = group.next_column()?.expect("the file has all columns of the schema");
            match values {
                Values::Text(v) => {
                    let v: Vec<ByteArray> = v.iter().map(|t| ByteArray::from(t.as_str())).collect();
                    column.typed::<ByteArrayType>().write_batch(&v, None, None)?;
                }
                Values::Whole(v) => {
                    column.typed::<Int64Type>().write_batch(v, None, None)?;
                }
                Values::Real(v) => {
                    let there: Vec<f64> = v.iter().flatten().copied().collect();
                    let levels: Vec<i16> = v.iter().map(|x| i16::from(x.is_some())).collect();
                    column.typed::<DoubleType>().write_batch(&there, Some(&levels), None)?;
                }
            }
            column.close()?;
        }
        group.close()?;
        writer.close()?;
        Ok(())
    }
}

/// A 64-bit name of some bytes, for caches and reports.
pub fn hash_of(bytes: &[u8]) -> u64 {
    xxhash_rust::xxh3::xxh3_64(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use parquet::file::reader::{FileReader, SerializedFileReader};
    use parquet::record::RowAccessor;

    fn sample() -> Table {
        Table::new()
            .column("name", Values::Text(vec!["a,b".into(), "plain".into()]))
            .column("count", Values::Whole(vec![3, -1]))
            .column("mean_ms", Values::Real(vec![Some(1.5), None]))
    }

    #[test]
    fn csv_quotes_and_leaves_gaps() {
        assert_eq!(sample().to_csv(), "name,count,mean_ms\n\"a,b\",3,1.5\nplain,-1,\n");
    }

    #[test]
    fn parquet_reads_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t.parquet");
        sample().write(&path).unwrap();
        let reader = SerializedFileReader::new(File::open(&path).unwrap()).unwrap();
        let rows: Vec<_> = reader.get_row_iter(None).unwrap().map(Result::unwrap).collect();
        assert_eq!((rows.len(), rows[0].get_string(0).unwrap().as_str()), (2, "a,b"));
        assert_eq!((rows[1].get_long(1).unwrap(), rows[0].get_double(2).unwrap()), (-1, 1.5));
        assert!(rows[1].get_double(2).is_err(), "a gap stays one");
    }
}
