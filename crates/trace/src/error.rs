//! Problems of a trace: problem, place and remedy.

use std::fmt;

/// Place in a trace file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Position {
    /// The file as a whole.
    File,
    /// A line of a text format, from 1.
    Line(u64),
    /// A byte of a binary format (after decompression), from 0.
    Byte(u64),
    /// A row of a columnar format, from 0.
    Row(u64),
}

/// A trace that can't be read or written: reading it stops here.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TraceError {
    /// The file as the caller named it.
    pub file: String,
    /// Place in it.
    pub at: Position,
    /// Expectation and finding.
    pub what: String,
    /// Remedy for the user.
    pub fix: String,
}

impl fmt::Display for TraceError {
    /// `web.csv:17: expected …, found …; do …`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.at {
            Position::File => write!(f, "{}: ", self.file)?,
            Position::Line(n) => write!(f, "{}:{n}: ", self.file)?,
            Position::Byte(n) => write!(f, "{}: byte {n}: ", self.file)?,
            Position::Row(n) => write!(f, "{}: row {n}: ", self.file)?,
        }
        write!(f, "{}; {}", self.what, self.fix)
    }
}
impl std::error::Error for TraceError {}

/// A [`TraceError`] before the reader says which file and where.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Problem {
    /// The fault.
    pub what: String,
    /// The remedy.
    pub fix: String,
}

/// Remedy for a line that is simply wrong.
const FIX_LINE: &str = "correct or remove the line, or name the right format";

impl Problem {
    /// `what` is wrong; `fix` is the remedy.
    pub fn new(what: impl Into<String>, fix: impl Into<String>) -> Problem {
        Problem { what: what.into(), fix: fix.into() }
    }

    /// A field that isn't what the format says.
    pub fn field(name: &str, expected: &str, found: &[u8]) -> Problem {
        Problem::new(format!("{name}: expected {expected}, found `{}`", shown(found)), FIX_LINE)
    }

    /// A line of another shape than the format's.
    pub fn shape(expected: &str, line: &[u8]) -> Problem {
        Problem::new(format!("expected {expected}, found `{}`", shown(line)), FIX_LINE)
    }

    /// A failed read.
    pub fn io(err: &std::io::Error) -> Problem {
        Problem::new(
            format!("reading failed: {err}"),
            "check that the file is readable and, if compressed, that it was copied whole",
        )
    }

    /// The same, with file and place.
    pub fn at(self, file: &str, at: Position) -> TraceError {
        TraceError { file: file.to_string(), at, what: self.what, fix: self.fix }
    }
}

/// At most 80 bytes of what was found, with control and foreign bytes escaped: an error message must stay one line
/// whatever the file holds.
pub(crate) fn shown(bytes: &[u8]) -> String {
    const SHOWN_MAX: usize = 80;
    let cut = &bytes[..bytes.len().min(SHOWN_MAX)];
    let dots = if cut.len() < bytes.len() { "…" } else { "" };
    format!("{}{dots}", cut.escape_ascii())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_one_line_with_place_and_advice() {
        let e = Problem::field("offset", "bytes", b"\n\x1b[2J").at("t.csv", Position::Line(17));
        assert_eq!(
            e.to_string(),
            "t.csv:17: offset: expected bytes, found `\\n\\x1b[2J`; correct or remove the line, or name the right format"
        );
        assert!(shown(&[0; 500]).len() < 400);
    }
}
