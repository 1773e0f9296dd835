//! Comparing a model with what a real drive did: measured requests, closed-loop replay, demerit figure.

use std::fmt;
use std::io::BufRead;

use plimsoll_base::{Span, Time};

use crate::model::{Done, Model, Op, Request};

/// One request that was put to a real drive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Measured {
    /// Read or write.
    pub op: Op,
    /// First 512-byte block.
    pub lbn: u64,
    /// Number of blocks.
    pub blocks: u64,
    /// Service time of the drive.
    pub service: Span,
    /// Pause between its completion and the next request.
    pub think: Span,
}

/// A line that is no measurement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadLine {
    /// Counted from 1.
    pub line: usize,
    /// Problem of the record.
    pub what: String,
}

impl fmt::Display for BadLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.what)
    }
}
impl std::error::Error for BadLine {}

/// The heading of a measurement file. The second column says what kind of answer the extraction expected;
/// it is never looked at, as a model must find that out for itself.
pub const HEADING: &str = "op,buffer,blkno,blocks,svc_us,think_us";

/// Reads a measurement file: CSV with the columns of [`HEADING`].
pub fn read(input: impl BufRead) -> Result<Vec<Measured>, BadLine> {
    let mut out = Vec::new();
    for (i, line) in input.lines().enumerate() {
        let bad = |what: String| BadLine { line: i + 1, what };
        let line = line.map_err(|e| bad(format!("can't be read: {e}")))?;
        if i == 0 {
            if line.trim() != HEADING {
                return Err(bad(format!("expected the heading `{HEADING}`")));
            }
            continue;
        }
        let fields: Vec<&str> = line.trim().split(',').collect();
        let &[op, _, lbn, blocks, service, think] = fields.as_slice() else {
            return Err(bad(format!("has {} fields instead of 6", fields.len())));
        };
        let number = |text: &str| text.parse::<u64>().map_err(|_| bad(format!("`{text}` is no whole number")));
        let op = match op {
            "R" => Op::Read,
            "W" => Op::Write { fua: false },
            _ => return Err(bad(format!("`{op}` is neither R nor W"))),
        };
        out.push(Measured {
            op,
            lbn: number(lbn)?,
            blocks: number(blocks)?,
            service: Span::from_micros(number(service)?),
            think: Span::from_micros(number(think)?),
        });
    }
    Ok(out)
}

/// Puts the requests to `model` as they were put to the drive, each one think time after its predecessor's
/// completion, and gives the model's service times. A request beyond the model's end is an error.
pub fn replay(model: &mut dyn Model, requests: &[Measured]) -> Result<Vec<Span>, String> {
    let mut now = Time::ZERO;
    let mut done: Vec<Done> = Vec::with_capacity(1);
    let mut times = Vec::with_capacity(requests.len());
    for (i, m) in requests.iter().enumerate() {
        let (offset, len) = (m.lbn * 512, m.blocks * 512);
        if len == 0 || offset + len > model.size_bytes() {
            return Err(format!(
                "request {} ends at byte {}, but the model has {}",
                i + 1,
                offset + len,
                model.size_bytes()
            ));
        }
        model.submit(now, Request { tag: i as u64, op: m.op, offset, len });
        while done.is_empty() {
            model.advance(model.next_event(), &mut done);
        }
        let at = done.pop().map_or(now, |d| d.at);
        times.push(at.since(now));
        now = at + m.think;
    }
    Ok(times)
}

/// Mean of some spans, in milliseconds.
pub fn mean_millis(times: &[Span]) -> f64 {
    times.iter().map(|t| t.as_millis_f64()).sum::<f64>() / times.len().max(1) as f64
}

/// Returns the distance of two service-time distributions: the root mean square of the horizontal distance between
/// their curves, in milliseconds (C. Ruemmler and J. Wilkes, IEEE Computer 27(3), 1994). Divide by the measured
/// mean for the relative figure.
///
/// # Panics
/// If the two have not the same number of elements.
pub fn demerit_millis(measured: &[Span], model: &[Span]) -> f64 {
    assert_eq!(measured.len(), model.len(), "the same requests on both sides");
    let sorted = |times: &[Span]| {
        let mut t = times.to_vec();
        t.sort_unstable();
        t
    };
    let (a, b) = (sorted(measured), sorted(model));
    let squares: f64 = a.iter().zip(&b).map(|(x, y)| (x.as_millis_f64() - y.as_millis_f64()).powi(2)).sum();
    (squares / a.len().max(1) as f64).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shift_is_its_own_demerit() {
        let a: Vec<Span> = [3, 1, 2].map(Span::from_millis).to_vec();
        let b: Vec<Span> = [4, 3, 2].map(Span::from_millis).to_vec();
        assert_eq!(demerit_millis(&a, &a), 0.0);
        assert!((demerit_millis(&a, &b) - 1.0).abs() < 1e-9);
    }

    #[test]
    fn lines_are_checked() {
        let read_text = |t: &str| read(t.as_bytes());
        let good = read_text("op,buffer,blkno,blocks,svc_us,think_us\nR,Hit,10,4,500,20\n").unwrap();
        assert_eq!(good[0].service, Span::from_micros(500));
        for (text, line) in [
            ("nonsense\n", 1),
            ("op,buffer,blkno,blocks,svc_us,think_us\nX,Hit,1,1,1,1\n", 2),
            ("op,buffer,blkno,blocks,svc_us,think_us\nR,Hit,1,1,1,1\nR,Hit,1,1,1\n", 3),
            ("op,buffer,blkno,blocks,svc_us,think_us\nR,Hit,-1,1,1,1\n", 2),
        ] {
            assert_eq!(read_text(text).unwrap_err().line, line, "{text}");
        }
    }
}
