//! Written traces read back the same; each format's own losses are stated.

use plimsoll_base::{Rng, Span, Time};
use plimsoll_trace::{Op, OutputFormat, ReadOptions, Tables, TraceReader, TraceRecord, TraceWriter};
use std::path::Path;

/// A trace of `n` records with every field, in all its forms.
fn made_up(n: u64) -> (Vec<TraceRecord>, Tables) {
    let mut rng = Rng::new(7, "writers");
    let mut tables = Tables::new();
    for i in 0..5 {
        tables.devices.intern(format!("d{i}").as_bytes());
        tables.contexts.intern(format!("proc, {i}").as_bytes());
    }
    let mut at = 0;
    let records = (0..n).map(|i| {
        at += rng.below(3_000);
        let op = Op::ALL[rng.below(4) as usize];
        let flush = op == Op::Flush;
        let mut maybe = |max| if rng.chance(0.5) { Some(rng.below(max)) } else { None };
        TraceRecord {
            queue: maybe(1 << 30).map(Span::from_nanos),
            service: maybe(1 << 40).map(Span::from_nanos),
            content: if i == 0 { Some(1) } else { maybe(u64::MAX).map(|c| u128::from(c) << 60) },
            // Names are numbered by first sight when read back, so the first rows name them in order.
            context: if i < 5 { Some(i as u32) } else { maybe(5).map(|c| c as u32) },
            ..TraceRecord::new(
                Time::from_nanos(at),
                if i < 5 { i as u32 } else { rng.below(5) as u32 },
                op,
                if flush { 0 } else { rng.below(1 << 40) },
                if flush { 0 } else { 1 + rng.below(1 << 22) },
            )
        }
    });
    let records = records.collect();
    (records, tables)
}

fn write(path: &Path, format: OutputFormat, records: &[TraceRecord], tables: &Tables) -> (u64, u64) {
    let mut w = TraceWriter::create(path, format).unwrap();
    for r in records {
        w.write(r, tables).unwrap();
    }
    let written = w.finish().unwrap();
    (written.records, written.left_out)
}

fn read(path: &Path) -> (Vec<TraceRecord>, Tables) {
    let mut r = TraceReader::open(path, &ReadOptions::default()).unwrap();
    let records = r.by_ref().collect::<Result<Vec<_>, _>>().unwrap();
    (records, r.tables().clone())
}

#[test]
fn csv_and_parquet_lose_nothing() {
    let dir = tempfile::tempdir().unwrap();
    // Two row groups and a part of a third in Parquet.
    let (records, tables) = made_up(150_000);
    for name in ["t.csv", "t.csv.gz", "t.csv.zst", "t.parquet"] {
        let path = dir.path().join(name);
        let format = OutputFormat::from_name(&path).unwrap();
        assert_eq!(write(&path, format, &records, &tables), (150_000, 0));
        let (back, names) = read(&path);
        assert!(back == records, "{name}: differs from what was written");
        assert_eq!(names.devices.labels(), tables.devices.labels());
        assert_eq!(names.contexts.labels(), tables.contexts.labels());
    }
}

#[test]
fn an_empty_trace_has_a_header_and_no_records() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["t.csv", "t.parquet"] {
        let path = dir.path().join(name);
        write(&path, OutputFormat::from_name(&path).unwrap(), &[], &Tables::new());
        assert_eq!(read(&path).0, []);
    }
}

#[test]
fn a_parquet_file_cut_or_changed_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("t.parquet");
    let (records, tables) = made_up(1_000);
    write(&path, OutputFormat::Parquet, &records, &tables);
    let whole = std::fs::read(&path).unwrap();
    std::fs::write(&path, &whole[..whole.len() / 2]).unwrap();
    let Err(e) = TraceReader::open(&path, &ReadOptions::default()) else { panic!("half a file opened") };
    assert!(e.to_string().contains("Parquet"), "{e}");
}

#[test]
fn oracle_general_knows_the_next_access() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("t.oracleGeneral");
    let r = |s, op, sector: u64| TraceRecord::new(Time::ZERO + Span::from_secs(s), 0, op, sector * 512, 4096);
    let records = [r(0, Op::Read, 7), r(1, Op::Trim, 7), r(1, Op::Write, 9), r(2, Op::Write, 7), r(3, Op::Read, 7)];
    assert_eq!(write(&path, OutputFormat::OracleGeneral, &records, &Tables::new()), (4, 1));
    let next: Vec<i64> =
        std::fs::read(&path).unwrap().chunks(24).map(|c| i64::from_le_bytes(c[16..].try_into().unwrap())).collect();
    assert_eq!(next, [3, -1, 4, -1], "records are numbered from 1");
    let offsets: Vec<u64> = read(&path).0.iter().map(|r| r.offset / 512).collect();
    assert_eq!(offsets, [7, 9, 7, 7]);
}
