//! Faults of a configuration, of its values, and of files that it names.

use super::Place;
use std::borrow::Cow;
use std::fmt;
use std::path::Path;

/// A value of a configuration that can't be, or a file that it names and that can't be used: one sentence with the fault and the remedy.
/// It knows its subjects and its place in the file.
///
/// The API, the command line and export names take the same values, with the same errors. The text has the text of the cause in it, so no
/// `source` repeats it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BadConfig {
    place: Place,
    /// Sections, keys and files, the outermost last.
    subjects: Vec<Cow<'static, str>>,
    fault: Cow<'static, str>,
}

impl BadConfig {
    /// The fault, and the remedy.
    pub fn new(fault: impl Into<Cow<'static, str>>) -> BadConfig {
        BadConfig { place: None, subjects: Vec::new(), fault: fault.into() }
    }

    /// The fault that another crate or the system found.
    pub fn found(cause: impl fmt::Display) -> BadConfig {
        BadConfig::new(cause.to_string())
    }

    /// A file that is named and can't be used.
    pub fn of_file(path: &Path, cause: impl fmt::Display) -> BadConfig {
        BadConfig::found(cause).about(path.display().to_string())
    }

    /// The same, of a section or a key around those that it names already.
    #[must_use]
    pub fn about(mut self, subject: impl Into<Cow<'static, str>>) -> BadConfig {
        self.subjects.push(subject.into());
        self
    }

    /// The same, at a place in the file; one that is known already is more exact.
    #[must_use]
    pub fn at(mut self, place: impl Into<Place>) -> BadConfig {
        self.place = self.place.or(place.into());
        self
    }

    /// The place in the file.
    pub fn place(&self) -> Place {
        self.place
    }
}

impl fmt::Display for BadConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.subjects.iter().rev().try_for_each(|subject| write!(f, "{subject}: "))?;
        f.write_str(&self.fault)
    }
}

impl std::error::Error for BadConfig {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_outermost_subject_is_first_and_the_innermost_place_holds() {
        let inner = BadConfig::new("50 is too many").about("iops").at(7);
        let all = inner.clone().about("volume `v`").at(3);
        assert_eq!((all.to_string().as_str(), all.place()), ("volume `v`: iops: 50 is too many", Some(7)));
        assert_eq!(inner.at(None).place(), Some(7));
        let file = BadConfig::of_file(Path::new("/a/b"), "is missing").at(3);
        assert_eq!((file.to_string().as_str(), file.place()), ("/a/b: is missing", Some(3)));
    }
}
