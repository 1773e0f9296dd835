//! The few words of a statement that tell of a lock which no status flag shows.

/// What a statement does to locks that outlive it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Locks {
    /// Nothing that is known here.
    None,
    /// Takes one that the session keeps.
    Take,
    /// Gives one back.
    Give,
    /// Gives all back.
    GiveAll,
    /// It ends another statement: never held.
    Kill,
}

const MARKS: &[(&str, Locks)] = &[
    ("RELEASE_ALL_LOCKS(", Locks::GiveAll),
    ("RELEASE_LOCK(", Locks::Give),
    ("GET_LOCK(", Locks::Take),
    ("PG_ADVISORY_UNLOCK_ALL(", Locks::GiveAll),
    ("PG_ADVISORY_UNLOCK", Locks::Give),
    ("PG_ADVISORY_LOCK", Locks::Take),
    ("PG_TRY_ADVISORY_LOCK", Locks::Take),
    ("WITH READ LOCK", Locks::Take),
];

const FIRST: &[(&str, Locks)] = &[
    ("LOCK TABLE", Locks::Take),
    ("UNLOCK TABLE", Locks::GiveAll),
    ("XA START", Locks::Take),
    ("XA BEGIN", Locks::Take),
    ("XA COMMIT", Locks::GiveAll),
    ("XA ROLLBACK", Locks::GiveAll),
    ("DISCARD ALL", Locks::GiveAll),
    ("KILL", Locks::Kill),
];

fn starts(text: &[u8], word: &str) -> bool {
    text.get(..word.len()).is_some_and(|t| t.eq_ignore_ascii_case(word.as_bytes()))
}

/// What the statement that begins with `text` does.
pub fn locks(text: &[u8]) -> Locks {
    let text = skip_comments(text);
    let first = text.first().map(u8::to_ascii_uppercase);
    let begins = |w: &str| first == w.bytes().next() && starts(text, w);
    if let Some((_, l)) = FIRST.iter().find(|(w, _)| begins(w)) {
        return *l;
    }
    if !has_lock(text) {
        return Locks::None;
    }
    let at = |i: usize| MARKS.iter().find(|(w, _)| starts(&text[i..], w)).map(|(_, l)| *l);
    (0..text.len()).find_map(at).unwrap_or(Locks::None)
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
        let Some(inside) = text.strip_prefix(b"/*") else { return text };
        let Some(end) = inside.windows(2).position(|w| w == b"*/") else { return text };
        text = &inside[end + 2..];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_found_in_any_case_and_behind_comments() {
        for (text, want) in [
            ("select get_lock('a', 10)", Locks::Take),
            ("SELECT RELEASE_LOCK('a')", Locks::Give),
            ("/* x */ LOCK TABLES t WRITE", Locks::Take),
            ("unlock tables", Locks::GiveAll),
            ("flush tables with read lock", Locks::Take),
            ("select pg_advisory_lock(1)", Locks::Take),
            ("SELECT pg_advisory_unlock(1)", Locks::Give),
            ("kill 5", Locks::Kill),
            ("select 1", Locks::None),
            ("/*", Locks::None),
            ("", Locks::None),
        ] {
            assert_eq!(locks(text.as_bytes()), want, "{text}");
        }
    }
}
