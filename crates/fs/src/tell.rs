//! Messages of a mount for its operator, on standard error: each once.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use crate::error::Error;

/// Messages of one mount.
#[derive(Default)]
pub(crate) struct Told(Mutex<BTreeSet<String>>);

/// Messages beyond which none is printed: those of a device with much damage would fill the memory.
const TOLD_MAX: usize = 1000;

impl Told {
    /// Prints a message, unless it was printed before. Returns whether it did.
    fn tell(&self, text: &str) -> bool {
        let mut told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_new = told.len() < TOLD_MAX && told.insert(text.to_owned());
        if is_new {
            eprintln!("plimsoll: {text}");
        }
        is_new
    }

    /// An operation failed. Errors that users cause themselves aren't printed.
    pub fn error(&self, e: &Error) -> bool {
        !matches!(e, Error::Os(_)) && self.tell(&e.to_string())
    }

    /// The file system accepts no more changes.
    pub fn failure(&self, why: &str) -> bool {
        self.tell(&format!("no more changes: {why}; until it is mounted again changes fail with EROFS, syncs with EIO"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io::Errno;

    #[test]
    fn each_fault_is_told_once() {
        let told = Told::default();
        let corrupt = |block: u64| Error::Corrupt(format!("block {block}"));
        assert!(told.error(&corrupt(1)) && told.error(&corrupt(2)) && told.failure("lost"));
        assert!(!told.error(&corrupt(1)) && !told.failure("lost") && !told.error(&Errno::NOENT.into()));
        assert!((3..2 * TOLD_MAX as u64).filter(|&b| told.error(&corrupt(b))).count() < TOLD_MAX);
    }
}
