//! Errors of the file system, and the errno that each becomes.

use rustix::io::Errno;
use std::fmt;

/// An operation's failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error {
    /// The operation can't be done; the errno says why.
    Os(Errno),
    /// A structure on the device is corrupt. Run `plimsoll fsck`.
    Corrupt(String),
    /// It can't be mounted so, and no repair would help; the text says what would.
    Unfit(String),
    /// The device failed. The file system accepts no more changes.
    Device(String),
}

/// The file system's result.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// The errno that a system call returns for it.
    pub fn errno(&self) -> Errno {
        match self {
            Error::Os(errno) => *errno,
            Error::Corrupt(_) => Errno::UCLEAN,
            Error::Unfit(_) => Errno::INVAL,
            Error::Device(_) => Errno::IO,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Os(errno) => write!(f, "{errno}"),
            Error::Corrupt(what) => write!(f, "corrupt: {what}; run `plimsoll fsck`"),
            Error::Unfit(what) => f.write_str(what),
            Error::Device(what) => write!(f, "the device failed: {what}"),
        }
    }
}

impl Error {
    /// The fault without a remedy, for a check that knows it itself.
    pub(crate) fn what(&self) -> String {
        match self {
            Error::Corrupt(what) => what.clone(),
            e => e.to_string(),
        }
    }
}

impl std::error::Error for Error {}

impl From<Errno> for Error {
    fn from(errno: Errno) -> Error {
        Error::Os(errno)
    }
}

/// A device's error, with what was tried.
pub(crate) fn device(what: &str, block: u64, e: std::io::Error) -> Error {
    Error::Device(format!("{what} block {block}: {e}"))
}
