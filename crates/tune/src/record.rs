//! Profiles as tables: CSV or Parquet. The columns are `request`, `node`, `value`, and optionally `count`. Each parameter has a further
//! column with its value, as the tune file writes it.

use crate::profile::{Observation, Profile};
use crate::space::{Setting, Space};
use parquet::basic::{Compression, ZstdLevel};
use parquet::data_type::{ByteArray, ByteArrayType, DoubleType, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::file::writer::SerializedFileWriter;
use parquet::record::Field;
use parquet::schema::parser::parse_message_type;
use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::sync::Arc;

/// Problem of a file: `FILE:LINE: what`, or `FILE: what`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BadRecord(pub String);

impl fmt::Display for BadRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
impl std::error::Error for BadRecord {}

/// Rows a profile may have: some gigabytes.
pub const ROWS_MAX: u64 = 1 << 27;
const COLUMNS: [&str; 3] = ["request", "node", "value"];

/// Columns by which a row of text becomes an observation.
struct Columns<'a> {
    space: &'a Space,
    request: usize,
    node: usize,
    value: usize,
    count: Option<usize>,
    /// By parameter.
    parameters: Vec<usize>,
}

impl<'a> Columns<'a> {
    fn new(space: &'a Space, names: &[&str]) -> Result<Columns<'a>, String> {
        let find = |name: &str| names.iter().position(|n| *n == name);
        let need = |name: &str| find(name).ok_or_else(|| format!("there is no column `{name}`"));
        let [request, node, value] = COLUMNS.map(need);
        let parameters = space.parameters().iter().map(|p| need(&p.name)).collect::<Result<_, _>>()?;
        Ok(Columns { space, request: request?, node: node?, value: value?, count: find("count"), parameters })
    }

    fn add(&self, cells: &[&str], profile: &mut Profile) -> Result<(), String> {
        let number = |at: usize, name: &str| {
            let x = cells[at].parse::<f64>().ok().filter(|x| x.is_finite() && *x >= 0.0);
            x.ok_or_else(|| format!("`{}` is no {name}: a number from 0 on is needed", cells[at]))
        };
        let request =
            cells[self.request].parse().map_err(|_| format!("`{}` is no request number", cells[self.request]))?;
        let weight = self.count.map_or(Ok(1.0), |c| number(c, "count"))?;
        let observation = Observation { request, value: number(self.value, "value")?, weight };
        let digit = |(p, &at): (&crate::space::Parameter, &usize)| {
            let known = p.values.iter().position(|v| v == cells[at]);
            known.map(|d| d as u16).ok_or_else(|| format!("`{}` is none of the values of `{}`", cells[at], p.name))
        };
        let setting = self.space.parameters().iter().zip(&self.parameters).map(digit).collect::<Result<_, _>>()?;
        profile.add(cells[self.node], &Setting(setting), observation);
        Ok(())
    }
}

/// Reads a profile: Parquet if the name ends so, else CSV.
///
/// # Errors
/// With file and, for CSV, line: an unreadable, empty or truncated file, a missing column, a value that is none.
pub fn read(path: &Path, space: &Space) -> Result<Profile, BadRecord> {
    let named = |what: String| BadRecord(format!("{}: {what}", path.display()));
    let file = File::open(path).map_err(|e| named(format!("{e}: record a profile first (plimsoll tune profile)")))?;
    let profile = if path.extension().is_some_and(|e| e == "parquet") {
        read_parquet(file, space).map_err(named)?
    } else {
        read_csv(BufReader::new(file), space)
            .map_err(|(line, what)| BadRecord(format!("{}:{line}: {what}", path.display())))?
    };
    if profile.nodes().next().is_none() {
        return Err(named("an empty profile: nothing was recorded".into()));
    }
    Ok(profile)
}

fn read_csv(mut input: impl BufRead, space: &Space) -> Result<Profile, (u64, String)> {
    let mut profile = Profile::new();
    let mut text = String::new();
    let mut line = 0;
    let mut columns: Option<(Columns<'_>, usize)> = None;
    loop {
        text.clear();
        line += 1;
        if input.read_line(&mut text).map_err(|e| (line, e.to_string()))? == 0 {
            return Ok(profile);
        }
        if line > ROWS_MAX {
            return Err((line, format!("more than {ROWS_MAX} rows: record histograms (a `count` column) instead")));
        }
        if !text.ends_with('\n') {
            return Err((line, "the last line has no end: the file is truncated".into()));
        }
        let cells: Vec<&str> = text.trim_end().split(',').collect();
        match &columns {
            None => columns = Some((Columns::new(space, &cells).map_err(|e| (line, e))?, cells.len())),
            Some((_, n)) if cells.len() != *n => {
                return Err((line, format!("{} cells where the header has {n}", cells.len())));
            }
            Some((c, _)) => c.add(&cells, &mut profile).map_err(|e| (line, e))?,
        }
    }
}

fn read_parquet(file: File, space: &Space) -> Result<Profile, String> {
    let told = |e: ParquetError| format!("{e}: is it truncated, or no Parquet file?");
    let reader = SerializedFileReader::new(file).map_err(told)?;
    let schema = reader.metadata().file_metadata().schema_descr();
    let names: Vec<String> = schema.columns().iter().map(|c| c.name().to_string()).collect();
    let columns = Columns::new(space, &names.iter().map(String::as_str).collect::<Vec<_>>())?;
    let mut profile = Profile::new();
    for (n, row) in reader.get_row_iter(None).map_err(told)?.enumerate() {
        let row = row.map_err(told)?;
        let text = |f: &Field| match f {
            Field::Str(s) => s.clone(),
            other => other.to_string(),
        };
        let cells: Vec<String> = row.get_column_iter().map(|(_, f)| text(f)).collect();
        let cells: Vec<&str> = cells.iter().map(String::as_str).collect();
        columns.add(&cells, &mut profile).map_err(|e| format!("row {}: {e}", n + 1))?;
    }
    Ok(profile)
}

/// Writes a profile: Parquet if the name ends so, else CSV.
///
/// # Errors
/// If the file can't be written; the error names it.
pub fn write(path: &Path, space: &Space, profile: &Profile) -> Result<(), BadRecord> {
    let named = |what: String| BadRecord(format!("{}: {what}", path.display()));
    if path.extension().is_some_and(|e| e == "parquet") {
        let file = File::create(path).map_err(|e| named(e.to_string()))?;
        return write_parquet(file, space, profile).map_err(|e| named(e.to_string()));
    }
    let names: String = space.parameters().iter().map(|p| format!(",{}", p.name)).collect();
    let mut text = format!("request,node,value,count{names}\n");
    for (node, setting, observations) in profile.iter() {
        let values: String = space.values(setting).map(|(_, v)| format!(",{v}")).collect();
        for o in observations {
            writeln!(text, "{},{node},{},{}{values}", o.request, o.value, o.weight).expect("strings take text");
        }
    }
    std::fs::write(path, text).map_err(|e| named(e.to_string()))
}

fn write_parquet(file: File, space: &Space, profile: &Profile) -> Result<(), ParquetError> {
    let text = |name: &str| format!("required binary {name} (UTF8);");
    let parameters: Vec<String> = space.parameters().iter().map(|p| text(&p.name)).collect();
    let schema = format!(
        "message profile {{ required int64 request; {} required double value; required double count; {} }}",
        text("node"),
        parameters.join(" ")
    );
    let schema = parse_message_type(&schema)?;
    let properties = WriterProperties::builder().set_compression(Compression::ZSTD(ZstdLevel::try_new(3)?)).build();
    let mut writer = SerializedFileWriter::new(file, Arc::new(schema), Arc::new(properties))?;
    for (node, setting, observations) in profile.iter() {
        let n = observations.len();
        let mut group = writer.next_row_group()?;
        let mut column = group.next_column()?.expect("as the schema says");
        let requests: Vec<i64> = observations.iter().map(|o| o.request as i64).collect();
        column.typed::<Int64Type>().write_batch(&requests, None, None)?;
        column.close()?;
        let repeated = |group: &mut parquet::file::writer::SerializedRowGroupWriter<'_, File>, text: &str| {
            let mut column = group.next_column()?.expect("as the schema says");
            column.typed::<ByteArrayType>().write_batch(&vec![ByteArray::from(text); n], None, None)?;
            column.close()
        };
        repeated(&mut group, node)?;
        let of: [fn(&Observation) -> f64; 2] = [|o| o.value, |o| o.weight];
        for f in of {
            let mut column = group.next_column()?.expect("as the schema says");
            let values: Vec<f64> = observations.iter().map(f).collect();
            column.typed::<DoubleType>().write_batch(&values, None, None)?;
            column.close()?;
        }
        for (_, v) in space.values(setting) {
            repeated(&mut group, v)?;
        }
        group.close()?;
    }
    writer.close()?;
    Ok(())
}

/// Reads one run's observations, recorded under one setting: CSV lines `request,node,value` with an optional header, as
/// an adapter's `measure` command prints them.
///
/// # Errors
/// With the line.
pub fn read_run(text: &str) -> Result<BTreeMap<String, Vec<Observation>>, BadRecord> {
    let mut run: BTreeMap<String, Vec<Observation>> = BTreeMap::new();
    for (n, line) in text.lines().enumerate().map(|(i, l)| (i + 1, l.trim())) {
        if line.is_empty() || line.starts_with('#') || (n == 1 && line.starts_with("request,node,value")) {
            continue;
        }
        let bad = |what: &str| BadRecord(format!("line {n}: `{line}` {what}"));
        let cells: Vec<&str> = line.split(',').collect();
        let [request, node, value, rest @ ..] = cells.as_slice() else {
            return Err(bad("isn't `request,node,value`"));
        };
        let request = request.trim().parse().map_err(|_| bad("has no request number"))?;
        let number = |t: &str| t.trim().parse::<f64>().ok().filter(|x| x.is_finite() && *x >= 0.0);
        let value = number(value).ok_or_else(|| bad("has no value from 0 on"))?;
        let weight = rest.first().map_or(Some(1.0), |t| number(t)).ok_or_else(|| bad("has no count from 0 on"))?;
        run.entry(node.trim().to_string()).or_default().push(Observation { request, value, weight });
    }
    if run.is_empty() {
        return Err(BadRecord("it measured nothing: print `request,node,value` lines".into()));
    }
    Ok(run)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::space::Parameter;

    fn space() -> Space {
        let p = Parameter { name: "idle".into(), values: vec!["0ms".into(), "8ms".into()], moves: vec!["disk".into()] };
        Space::new(vec![p]).unwrap()
    }

    #[test]
    fn both_formats_read_back_as_written() {
        let dir = tempfile::tempdir().unwrap();
        let space = space();
        let mut profile = Profile::new();
        for (request, s) in space.settings().enumerate() {
            for node in ["disk", "cache"] {
                let value = request as f64 + 0.25;
                profile.add(node, &s, Observation { request: request as u64, value, weight: 3.0 });
            }
        }
        for name in ["p.csv", "p.parquet"] {
            let path = dir.path().join(name);
            write(&path, &space, &profile).unwrap();
            assert_eq!(read(&path, &space).unwrap(), profile, "{name}");
        }
        let whole = std::fs::read(dir.path().join("p.parquet")).unwrap();
        std::fs::write(dir.path().join("cut.parquet"), &whole[..whole.len() / 2]).unwrap();
        let e = read(&dir.path().join("cut.parquet"), &space).unwrap_err().to_string();
        assert!(e.contains("cut.parquet: ") && e.contains("truncated"), "{e}");
    }

    #[test]
    fn mistakes_have_file_and_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("p.csv");
        for (text, says) in [
            ("", "p.csv: an empty profile"),
            ("request,node,value,idle\n", "p.csv: an empty profile"),
            ("request,node,value\n", "p.csv:1: there is no column `idle`"),
            ("request,node,value,idle\n1,disk,2.5,8ms\n1,disk,2.5", "p.csv:3: the last line has no end"),
            ("request,node,value,idle\n1,disk,2.5\n", "p.csv:2: 3 cells where the header has 4"),
            ("request,node,value,idle\n1,disk,-1,8ms\n", "p.csv:2: `-1` is no value"),
            ("request,node,value,idle\n1,disk,1,9ms\n", "p.csv:2: `9ms` is none of the values of `idle`"),
            ("request,node,value,idle\nx,disk,1,8ms\n", "p.csv:2: `x` is no request number"),
        ] {
            std::fs::write(&path, text).unwrap();
            let e = read(&path, &space()).unwrap_err().to_string();
            assert!(e.contains(says), "{text:?}: {e}");
        }
        assert!(
            read(&dir.path().join("none.csv"), &space()).unwrap_err().to_string().contains("record a profile first")
        );
        for (text, says) in
            [("", "measured nothing"), ("1,disk\n", "line 1: `1,disk` isn't"), ("1,disk,x\n", "no value")]
        {
            assert!(read_run(text).unwrap_err().to_string().contains(says), "{text:?}");
        }
        assert_eq!(read_run("request,node,value\n1,disk,2\n2,disk,3,10\n").unwrap()["disk"][1].weight, 10.0);
    }
}
