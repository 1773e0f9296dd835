//! The few words of a statement that show a lock which no status flag shows, or a transaction's unsuccessful end.

/// Effect of a statement beside the server's answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Word {
    /// Nothing that is known here.
    None,
    /// Takes a lock that the session keeps.
    Take,
    /// Gives one back.
    Give,
    /// Gives all back.
    GiveAll,
    /// It ends another statement: never held.
    Kill,
    /// Undoes the transaction.
    Undo,
}

/// Dialect of statements: a word that locks for a session in one locks for a transaction, or doesn't exist, in another.
pub struct Dialect {
    /// Anywhere in the statement; the first that is found. All have LOCK in them.
    marks: &'static [(&'static str, Word)],
    /// At its beginning. A space stands for any white space.
    first: &'static [(&'static str, Word)],
}

/// MySQL's and MariaDB's.
pub const MYSQL: Dialect = Dialect {
    marks: &[
        ("RELEASE_ALL_LOCKS(", Word::GiveAll),
        ("RELEASE_LOCK(", Word::Give),
        ("GET_LOCK(", Word::Take),
        ("WITH READ LOCK", Word::Take),
    ],
    first: &[
        ("LOCK TABLE", Word::Take),
        ("UNLOCK TABLE", Word::GiveAll),
        ("XA START", Word::Take),
        ("XA BEGIN", Word::Take),
        ("XA COMMIT", Word::GiveAll),
        ("XA ROLLBACK", Word::GiveAll),
        ("BACKUP STAGE START", Word::Take),
        ("BACKUP STAGE END", Word::GiveAll),
        ("BACKUP LOCK", Word::Take),
        ("BACKUP UNLOCK", Word::GiveAll),
        ("KILL", Word::Kill),
        ("ROLLBACK", Word::Undo),
    ],
};

/// PostgreSQL's. `LOCK TABLE` is a transaction's there, which the answer shows.
pub const POSTGRES: Dialect = Dialect {
    marks: &[
        ("PG_ADVISORY_UNLOCK_ALL(", Word::GiveAll),
        ("PG_ADVISORY_UNLOCK", Word::Give),
        ("PG_ADVISORY_LOCK", Word::Take),
        ("PG_TRY_ADVISORY_LOCK", Word::Take),
    ],
    first: &[("DISCARD ALL", Word::GiveAll)],
};

/// Prepared statements of a connection that take or give locks: few, as statements of that kind are.
#[derive(Clone, Copy, Debug)]
pub struct Prepared {
    /// Names of statements and their effects; [`Word::None`] is an empty place.
    known: [(u32, Word); Prepared::MOST],
}

impl Prepared {
    const MOST: usize = 4;
    /// None.
    pub const NEW: Prepared = Prepared { known: [(0, Word::None); Prepared::MOST] };

    /// The statement of this name is another one now. False if there is no room for what must be known of it.
    #[must_use]
    pub fn set(&mut self, name: u32, word: Word) -> bool {
        self.forget(name);
        let word = if matches!(word, Word::Take | Word::Give | Word::GiveAll) { word } else { Word::None };
        let free = self.known.iter_mut().find(|k| k.1 == Word::None);
        match (word, free) {
            (Word::None, _) => true,
            (_, Some(free)) => {
                *free = (name, word);
                true
            }
            (_, None) => false,
        }
    }

    /// The statement of this name is gone.
    pub fn forget(&mut self, name: u32) {
        self.known.iter_mut().filter(|k| k.0 == name).for_each(|k| k.1 = Word::None);
    }

    /// Returns the effect of the statement of this name.
    pub fn word(&self, name: u32) -> Word {
        self.known.iter().find(|k| k.0 == name).map_or(Word::None, |k| k.1)
    }
}

/// After `pins` locks of the session's, as far as is known, this.
pub fn pins_after(pins: u8, word: Word) -> u8 {
    match word {
        Word::Take => pins.saturating_add(1),
        Word::Give => pins.saturating_sub(1),
        Word::GiveAll => 0,
        Word::None | Word::Kill | Word::Undo => pins,
    }
}

fn starts(text: &[u8], word: &str) -> bool {
    text.get(..word.len()).is_some_and(|t| t.eq_ignore_ascii_case(word.as_bytes()))
}

/// As [`starts`], with any white space for a space.
fn begins(mut text: &[u8], words: &str) -> bool {
    words.split(' ').enumerate().all(|(i, word)| {
        let (before, trimmed) = (text.len(), text.trim_ascii_start());
        let apart = i == 0 || trimmed.len() < before;
        let found = apart && starts(trimmed, word);
        text = trimmed.get(word.len()..).unwrap_or(&[]);
        found
    })
}

impl Dialect {
    /// Returns the effect of the statement that begins with `text`.
    pub fn word(&self, text: &[u8]) -> Word {
        let text = skip_comments(text);
        let first = text.first().map(u8::to_ascii_uppercase);
        let is = |w: &str| first == w.bytes().next() && begins(text, w);
        if let Some((_, word)) = self.first.iter().find(|(w, _)| is(w)) {
            return *word;
        }
        if !has_lock(text) {
            return Word::None;
        }
        let at = |i: usize| self.marks.iter().find(|(w, _)| starts(&text[i..], w)).map(|(_, l)| *l);
        (0..text.len()).find_map(at).unwrap_or(Word::None)
    }
}

/// All marks have LOCK in them, and most statements don't: four bytes at a time are skipped where the last is no letter of it.
fn has_lock(text: &[u8]) -> bool {
    let mut i = 3;
    while let Some(b) = text.get(i) {
        i += match b | 0x20 {
            b'k' if starts(&text[i - 3..], "LOCK") => return true,
            b'l' => 3,
            b'o' => 2,
            b'c' => 1,
            _ => 4,
        };
    }
    false
}

fn skip_comments(mut text: &[u8]) -> &[u8] {
    loop {
        text = text.trim_ascii_start();
        let (inside, end): (_, &[u8]) = match (text.strip_prefix(b"/*"), text.strip_prefix(b"--")) {
            (Some(inside), _) => (inside, b"*/"),
            (_, Some(inside)) => (inside, b"\n"),
            _ => return text,
        };
        let Some(at) = inside.windows(end.len()).position(|w| w == end) else { return text };
        text = &inside[at + end.len()..];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_found_in_any_case_and_behind_comments() {
        for (text, want) in [
            ("select get_lock('a', 10)", Word::Take),
            ("SELECT RELEASE_LOCK('a')", Word::Give),
            ("/* x */ LOCK TABLES t WRITE", Word::Take),
            ("-- x\nLOCK\t TABLES t WRITE", Word::Take),
            ("unlock tables", Word::GiveAll),
            ("flush tables with read lock", Word::Take),
            ("backup stage start", Word::Take),
            ("kill 5", Word::Kill),
            ("rollback", Word::Undo),
            ("select pg_advisory_lock(1)", Word::None),
            ("select 1", Word::None),
            ("locktable", Word::None),
            ("/*", Word::None),
            ("--", Word::None),
            ("", Word::None),
        ] {
            assert_eq!(MYSQL.word(text.as_bytes()), want, "{text}");
        }
        for (text, want) in [
            ("select pg_advisory_lock(1)", Word::Take),
            ("SELECT pg_advisory_unlock(1)", Word::Give),
            ("SELECT pg_advisory_unlock_all()", Word::GiveAll),
            ("SELECT pg_advisory_xact_lock(1)", Word::None),
            ("discard all", Word::GiveAll),
            ("LOCK TABLE t IN EXCLUSIVE MODE", Word::None),
            ("SELECT get_lock('a', 10)", Word::None),
        ] {
            assert_eq!(POSTGRES.word(text.as_bytes()), want, "{text}");
        }
    }

    #[test]
    fn a_few_prepared_statements_are_remembered_by_their_names() {
        let mut p = Prepared::NEW;
        assert!(p.set(7, Word::None) && p.word(7) == Word::None);
        for name in 0..4 {
            assert!(p.set(name, Word::Take));
        }
        assert!(!p.set(9, Word::Take), "no room");
        assert!(p.set(2, Word::None) && p.set(9, Word::Give));
        assert_eq!([0, 2, 9].map(|n| p.word(n)), [Word::Take, Word::None, Word::Give]);
    }
}
