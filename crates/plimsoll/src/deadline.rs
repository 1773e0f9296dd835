//! A deadline on the command line.

use plimsoll_base::Span;

/// A deadline, or none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Deadline(Option<Span>);

impl Deadline {
    /// As the API has it; 0: none.
    pub fn micros(self) -> u64 {
        self.0.map_or(0, Span::as_micros)
    }
}

/// From its text: a time, or `none`.
///
/// # Errors
/// If it is neither.
pub fn deadline(text: &str) -> Result<Deadline, String> {
    if text == "none" {
        return Ok(Deadline(None));
    }
    let span: Span = text.parse().map_err(|e| format!("{e}"))?;
    if span < Span::from_micros(1) {
        return Err("a deadline has a microsecond at least; `none` takes it away".into());
    }
    Ok(Deadline(Some(span)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_is_a_time_or_none() {
        assert_eq!(
            (deadline("20ms").map(Deadline::micros), deadline("none").map(Deadline::micros)),
            (Ok(20_000), Ok(0))
        );
        assert!(deadline("0ms").is_err() && deadline("20").is_err() && deadline("soon").is_err());
    }
}
