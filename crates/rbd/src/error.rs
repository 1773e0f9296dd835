//! Failures of Ceph's libraries.

use std::fmt;
use std::io;

/// A failed call: the action, the object, and the library's error.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Error {
    /// The action and its object, and the remedy where there is one.
    pub what: String,
    /// The library's error number, positive; 0 if there is none.
    pub errno: i32,
}

impl Error {
    /// Makes an error of a negative result.
    pub(crate) fn of(what: impl Into<String>, result: i32) -> Error {
        Error { what: what.into(), errno: -result }
    }

    /// Makes an error without a number.
    pub(crate) fn says(what: impl Into<String>) -> Error {
        Error { what: what.into(), errno: 0 }
    }

    /// The error for callers that know I/O errors only.
    pub fn io(self) -> io::Error {
        io::Error::other(self)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.errno {
            0 => f.write_str(&self.what),
            n => write!(f, "{}: {}", self.what, io::Error::from_raw_os_error(n)),
        }
    }
}

impl std::error::Error for Error {}

/// Returns a result's value, or the error of a negative one.
pub(crate) fn check(result: i32, what: impl FnOnce() -> String) -> Result<i32, Error> {
    if result < 0 { Err(Error::of(what(), result)) } else { Ok(result) }
}
