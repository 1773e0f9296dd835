//! Lines of a text trace, one at a time, with a bound on their length.

use crate::error::{Position, Problem, shown};
use std::io::{BufRead, Read};

/// The longest line read: blkparse and ETW lines stay under 1 KiB.
const LINE_BYTES_MAX: usize = 64 << 10;

/// Numbered lines without their ends.
pub struct Lines {
    input: Box<dyn BufRead>,
    line: Vec<u8>,
    number: u64,
}

impl Lines {
    /// Before the first line of `input`.
    pub fn new(input: Box<dyn BufRead>) -> Lines {
        Lines { input, line: Vec::with_capacity(256), number: 0 }
    }

    /// Returns the place of the line last read.
    pub fn position(&self) -> Position {
        Position::Line(self.number)
    }

    /// Moves to the next line that is neither blank nor a `#` comment; false at the end of the file.
    ///
    /// # Errors
    /// If reading fails, or a line is too long for any text trace.
    pub fn advance(&mut self) -> Result<bool, Problem> {
        loop {
            self.line.clear();
            self.number += 1;
            let n = (&mut self.input)
                .take(LINE_BYTES_MAX as u64)
                .read_until(b'\n', &mut self.line)
                .map_err(|e| Problem::io(&e))?;
            if n == 0 {
                return Ok(false);
            }
            if n == LINE_BYTES_MAX && self.line.last() != Some(&b'\n') {
                return Err(Problem::new(
                    format!("a line longer than {LINE_BYTES_MAX} bytes, starting `{}`", shown(&self.line)),
                    "this is no text trace: name its format, or decompress it",
                ));
            }
            while matches!(self.line.last(), Some(b'\n' | b'\r')) {
                self.line.pop();
            }
            if self.line.first().is_some_and(|&b| b != b'#') && !self.line.trim_ascii().is_empty() {
                return Ok(true);
            }
        }
    }

    /// The line last read.
    pub fn current(&self) -> &[u8] {
        &self.line
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Cursor;

    #[test]
    fn lines_are_numbered_as_an_editor_does() {
        let mut l = Lines::new(Box::new(Cursor::new(b"# made by hand\n\na\r\n  \nlast".to_vec())));
        assert_eq!(l.advance(), Ok(true));
        assert_eq!((l.current(), l.position()), (&b"a"[..], Position::Line(3)));
        assert_eq!(l.advance(), Ok(true));
        assert_eq!((l.current(), l.position()), (&b"last"[..], Position::Line(5)));
        assert_eq!(l.advance(), Ok(false));
    }

    #[test]
    fn an_endless_line_is_refused_before_it_fills_memory() {
        let mut l = Lines::new(Box::new(std::io::BufReader::new(std::io::repeat(b'x'))));
        assert!(l.advance().unwrap_err().what.contains("longer than"));
    }
}
