//! Redis: the walker finds only the connection's user. Turns of the server's event loop settle a request's cost, as one thread
//! does all and a transaction never spans two turns.

use super::{Came, Name, Went};
use crate::gate::Answered;

/// Bytes of a command in which an account is looked for.
const HEAD_BYTES: usize = 160;

/// A Redis connection.
#[derive(Clone, Copy, Debug)]
pub struct Redis {
    account: Name,
    /// Named in a command that isn't answered yet.
    claimed: Name,
    /// The beginning of a command that may turn out to name the account.
    head: [u8; HEAD_BYTES],
    head_len: u8,
}

impl Redis {
    /// At the first command.
    pub const NEW: Redis = Redis { account: Name::EMPTY, claimed: Name::EMPTY, head: [0; HEAD_BYTES], head_len: 0 };

    /// See [`super::Walker::input`].
    pub fn input(&mut self, bytes: &[u8]) -> Came {
        if self.head_len > 0 || bytes.first() == Some(&b'*') {
            let have = usize::from(self.head_len);
            let take = bytes.len().min(HEAD_BYTES - have);
            self.head[have..have + take].copy_from_slice(&bytes[..take]);
            let len = have + take;
            self.head_len = 0;
            match auth_user(&self.head[..len]) {
                Auth::User(user) => self.claimed.set(user),
                Auth::Unfinished if len < HEAD_BYTES => self.head_len = len as u8,
                Auth::Unfinished | Auth::Other => {}
            }
        }
        Came { request: !bytes.is_empty(), ..Came::default() }
    }
    /// See [`super::Walker::output`].
    pub fn output(&mut self, bytes: &[u8]) -> Went {
        let claimed = if bytes.is_empty() { Name::EMPTY } else { std::mem::replace(&mut self.claimed, Name::EMPTY) };
        // What was asked before it in the same turn is answered in the same write.
        let refused = bytes.starts_with(b"-") || bytes.windows(3).any(|w| w == b"\r\n-");
        let login = claimed != Name::EMPTY && !refused;
        if login {
            self.account = claimed;
        }
        Went { done: !bytes.is_empty(), login }
    }
    /// Always done: see the module.
    pub fn stands(&self) -> Answered {
        Answered::Done
    }
    /// Never.
    pub fn is_lost(&self) -> bool {
        false
    }
    /// Always: the event loop's turn is what ends a request.
    pub fn at_rest(&self) -> bool {
        true
    }
    /// See [`super::Walker::identity`].
    pub fn identity(&self) -> (Name, Name) {
        (self.account, Name::EMPTY)
    }
}

/// Account named in a command.
#[derive(PartialEq, Eq, Debug)]
enum Auth<'a> {
    User(&'a [u8]),
    /// More of it must come before that can be decided.
    Unfinished,
    Other,
}

/// The account of an `AUTH user password` or `HELLO n AUTH user password` at the beginning of `bytes`.
fn auth_user(bytes: &[u8]) -> Auth<'_> {
    let lines = || bytes.split_inclusive(|b| *b == b'\n').filter(|l| l.ends_with(b"\n")).map(<[u8]>::trim_ascii_end);
    let Some(first) = lines().next() else { return Auth::Unfinished };
    let count = first.strip_prefix(b"*").and_then(|n| std::str::from_utf8(n).ok()?.parse::<usize>().ok());
    let Some(count) = count else { return Auth::Other };
    // Each argument is two lines: its length and its text.
    let arg = |i: usize| lines().nth(2 + 2 * i);
    let Some(command) = arg(0) else { return Auth::Unfinished };
    let at = if command.eq_ignore_ascii_case(b"AUTH") && count == 3 {
        1
    } else if command.eq_ignore_ascii_case(b"HELLO") && count >= 5 {
        let Some(word) = arg(2) else { return Auth::Unfinished };
        if !word.eq_ignore_ascii_case(b"AUTH") {
            return Auth::Other;
        }
        3
    } else {
        return Auth::Other;
    };
    arg(at).map_or(Auth::Unfinished, Auth::User)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HELLO: &str = "*5\r\n$5\r\nHELLO\r\n$1\r\n3\r\n$4\r\nAUTH\r\n$3\r\nbob\r\n$1\r\nx\r\n";

    #[test]
    fn accounts_are_found_however_they_are_cut() {
        for (text, want) in [
            ("*3\r\n$4\r\nAUTH\r\n$3\r\nbob\r\n$1\r\nx\r\n", "bob"),
            ("*2\r\n$4\r\nAUTH\r\n$1\r\nx\r\n", ""),
            (HELLO, "bob"),
            ("*3\r\n$3\r\nSET\r\n$1\r\na\r\n$1\r\nb\r\n", ""),
            ("PING\r\n", ""),
            ("", ""),
        ] {
            for cut in 0..=text.len() {
                let mut w = Redis::NEW;
                for part in [&text[..cut], &text[cut..]] {
                    w.input(part.as_bytes());
                }
                let mut refused = w;
                assert!(!refused.output(b"+PONG\r\n-WRONGPASS\r\n").login && refused.identity().0 == Name::EMPTY);
                assert!(!refused.output(b"+OK\r\n").login, "that answers something else");
                assert_eq!(w.output(b"+OK\r\n").login, !want.is_empty());
                assert_eq!(w.identity().0.as_bytes(), want.as_bytes(), "{text:?} cut at {cut}");
            }
            let mut w = Redis::NEW;
            for b in text.bytes() {
                w.input(&[b]);
            }
            w.output(b"+OK\r\n");
            assert_eq!(w.identity().0.as_bytes(), want.as_bytes(), "{text:?} byte by byte");
        }
    }

    #[test]
    fn what_never_ends_is_given_up() {
        let mut w = Redis::NEW;
        w.input(b"*3\r\n$4\r\nAUTH\r\n$900\r\n");
        w.input(&[b'x'; 900]);
        w.input(b"\r\n$1\r\nx\r\n");
        assert!(!w.output(b"+OK\r\n").login && w.identity().0 == Name::EMPTY);
        w.input(HELLO.as_bytes());
        assert!(w.output(b"%7\r\n").login, "the next one is seen");
    }
}
