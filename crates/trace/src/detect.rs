//! Detection of a trace's format from its beginning.

use crate::error::{Problem, shown};
use crate::formats::LineParser;
use crate::formats::binary::{self, ORACLE_BYTES, VSCSI1_BYTES, VSCSI2_BYTES};
use crate::formats::columns::{FIU_CSV_HEADER, Fiu, Five};
use crate::formats::comma::{Msr, SYSTOR_HEADER, Spc, Systor, Tencent};
use crate::formats::{blkparse, plimsoll};
use crate::parse::{trim, whole};
use crate::record::Tables;
use std::fmt;
use std::str::FromStr;

/// The formats we read. `docs/reference/traces.md` describes each.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Format {
    /// Our CSV: `t_us,dev,op,offset,size,q_us,svc_us,ctx`.
    Csv,
    /// Our Parquet schema.
    Parquet,
    /// MSR Cambridge (SNIA 388).
    Msr,
    /// Microsoft enterprise and production servers (SNIA 130 and 158), as xperf's text.
    Etw,
    /// SPC trace file format 1, as UMass publishes it.
    Spc,
    /// CloudPhysics vscsi, version 1.
    Vscsi1,
    /// CloudPhysics vscsi, version 2.
    Vscsi2,
    /// blkparse's default text output.
    Blkparse,
    /// MQSim's ASCII.
    Mqsim,
    /// DiskSim's ASCII.
    Disksim,
    /// The replayer of MittOS and LinnOS.
    Replay,
    /// FIU I/O deduplication, as published.
    Fiu,
    /// FIU I/O deduplication as CSV.
    FiuCsv,
    /// libCacheSim oracleGeneral.
    OracleGeneral,
    /// Tencent cloud block storage.
    Tencent,
    /// SYSTOR '17.
    Systor,
}

impl Format {
    /// All formats.
    pub const ALL: [Format; 16] = [
        Format::Csv,
        Format::Parquet,
        Format::Msr,
        Format::Etw,
        Format::Spc,
        Format::Vscsi1,
        Format::Vscsi2,
        Format::Blkparse,
        Format::Mqsim,
        Format::Disksim,
        Format::Replay,
        Format::Fiu,
        Format::FiuCsv,
        Format::OracleGeneral,
        Format::Tencent,
        Format::Systor,
    ];

    /// The name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Format::Csv => "csv",
            Format::Parquet => "parquet",
            Format::Msr => "msr",
            Format::Etw => "etw",
            Format::Spc => "spc",
            Format::Vscsi1 => "vscsi1",
            Format::Vscsi2 => "vscsi2",
            Format::Blkparse => "blkparse",
            Format::Mqsim => "mqsim",
            Format::Disksim => "disksim",
            Format::Replay => "replay",
            Format::Fiu => "fiu",
            Format::FiuCsv => "fiu-csv",
            Format::OracleGeneral => "oracle-general",
            Format::Tencent => "tencent",
            Format::Systor => "systor",
        }
    }

    /// Returns the number of records that a reader holds back to put arrivals in order, where the format's writers don't sort.
    /// Our own files are sorted by definition, and oracleGeneral's clock of one second can't go back unnoticed.
    pub(crate) const fn window_default(self) -> usize {
        match self {
            Format::Csv | Format::Parquet | Format::OracleGeneral => 0,
            // Sorted by completion: as many as were ever outstanding at once.
            Format::Etw => 1 << 16,
            _ => 1 << 12,
        }
    }

    /// Returns whether times are relative to the trace's start already.
    pub(crate) const fn is_relative(self) -> bool {
        matches!(self, Format::Csv | Format::Parquet)
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A name that is no format's.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnknownFormat(String);

impl fmt::Display for UnknownFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` is no trace format: use one of {}", self.0, names())
    }
}
impl std::error::Error for UnknownFormat {}

impl FromStr for Format {
    type Err = UnknownFormat;
    fn from_str(text: &str) -> Result<Format, UnknownFormat> {
        Format::ALL.into_iter().find(|f| f.name() == text).ok_or_else(|| UnknownFormat(text.to_string()))
    }
}

fn names() -> String {
    Format::ALL.map(Format::name).join(", ")
}

/// Length of the beginning that detection examines, after decompression.
pub(crate) const SNIFF_BYTES: usize = 64 << 10;
/// Lines that must all parse.
const LINES_SEEN_MAX: usize = 64;
/// Binary records that must all make sense.
const RECORDS_SEEN_MAX: usize = 64;

/// The format of a trace that begins with `head`; `is_whole` if that is all of it.
pub(crate) fn detect(head: &[u8], is_whole: bool) -> Result<Format, Problem> {
    if head.is_empty() {
        return Err(Problem::new("the trace is empty", "check that it was written or copied whole"));
    }
    if head.starts_with(b"PAR1") {
        return Ok(Format::Parquet);
    }
    let found = if head.contains(&0) { detect_binary(head) } else { detect_text(head, is_whole) };
    found.ok_or_else(|| {
        Problem::new(
            format!("no known trace format begins with `{}`", shown(&head[..head.len().min(60)])),
            format!("name the format if you know it ({}), or convert the trace to csv", names()),
        )
    })
}

fn detect_binary(head: &[u8]) -> Option<Format> {
    let all = |bytes: usize, test: &dyn Fn(usize, &[u8]) -> bool| {
        head.len() >= bytes && head.chunks_exact(bytes).take(RECORDS_SEEN_MAX).enumerate().all(|(i, r)| test(i, r))
    };
    let versions = |at: usize, version: u16| move |_: usize, r: &[u8]| binary::u16_at(r, at) >> 8 == version;
    if all(VSCSI2_BYTES, &versions(2, 2)) {
        return Some(Format::Vscsi2);
    }
    if all(VSCSI1_BYTES, &versions(14, 1)) {
        return Some(Format::Vscsi1);
    }
    // An oracleGeneral record knows the number of the next access to its object, which lies ahead, or says never.
    let next_lies_ahead = |i: usize, r: &[u8]| {
        let next = binary::u64_at(r, 16) as i64;
        binary::u32_at(r, 12) < 1 << 30 && (next == -1 || next > i as i64)
    };
    all(ORACLE_BYTES, &next_lies_ahead).then_some(Format::OracleGeneral)
}

/// The complete lines at the beginning, without blank ones and comments.
pub(crate) fn head_lines(head: &[u8], is_whole: bool) -> Vec<&[u8]> {
    let mut lines: Vec<&[u8]> = head.split(|&b| b == b'\n').collect();
    if !is_whole && lines.len() > 1 {
        lines.pop();
    }
    lines.into_iter().map(trim).filter(|l| !l.is_empty() && l[0] != b'#').take(LINES_SEEN_MAX).collect()
}

fn detect_text(head: &[u8], is_whole: bool) -> Option<Format> {
    let lines = head_lines(head, is_whole);
    let first = *lines.first()?;
    if first == plimsoll::HEADER.as_bytes() || first == plimsoll::HEADER_CONTENT.as_bytes() {
        return Some(Format::Csv);
    }
    if first == FIU_CSV_HEADER {
        return Some(Format::FiuCsv);
    }
    if first == SYSTOR_HEADER {
        return Some(Format::Systor);
    }
    let is_disk_event = |l: &&[u8]| l.starts_with(b"DiskRead") || l.starts_with(b"DiskWrite");
    if first == b"BeginHeader" || lines.iter().any(is_disk_event) {
        return Some(Format::Etw);
    }
    if blkparse::earliest_kind(lines.iter().copied()).is_some() {
        return Some(Format::Blkparse);
    }
    if parses(&lines, Msr::default()) {
        return Some(Format::Msr);
    }
    if parses(&lines, Systor) {
        return Some(Format::Systor);
    }
    if parses(&lines, Fiu::default()) {
        return Some(Format::Fiu);
    }
    if parses(&lines, Spc) {
        return Some(Format::Spc);
    }
    detect_five(&lines)
}

/// Returns whether the first line parses. One is enough to tell the shape, and a trace with a wrong line further down must
/// be reported as such, not as unknown.
fn parses(lines: &[&[u8]], mut parser: impl LineParser) -> bool {
    lines.first().is_some_and(|l| parser.parse(l, &mut Tables::new()).is_ok())
}

/// Detects the formats of five numbers by their values.
fn detect_five(lines: &[&[u8]]) -> Option<Format> {
    let rows: Vec<[&[u8]; 5]> = lines.iter().map_while(|l| Five::split(l)).collect();
    let first = rows.first()?;
    // Tencent's time is a Unix time and its fourth field the type; in the others the fifth is the type.
    let unix_2001 = 1_000_000_000;
    if parses(lines, Tencent) && whole("time", first[0]).is_ok_and(|t| t >= unix_2001) {
        return Some(Format::Tencent);
    }
    if !parses(lines, Five::Mqsim) && !parses(lines, Five::Disksim) {
        return None;
    }
    let is_in_bytes = |r: &[&[u8]; 5]| {
        let multiple = |f| whole("amount", f).is_ok_and(|v| v % 512 == 0);
        multiple(r[2]) && multiple(r[3]) && r[3] != b"0"
    };
    if rows.iter().all(is_in_bytes) {
        return Some(Format::Replay);
    }
    Some(if rows.iter().any(|r| r[0].contains(&b'.')) { Format::Disksim } else { Format::Mqsim })
}
