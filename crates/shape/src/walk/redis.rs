//! Redis: only whose connection it is. What a request costs is settled by turns of the server's event loop, as one thread
//! does all and a transaction never spans two turns.

use super::{Came, Name};

/// A Redis connection.
#[derive(Clone, Copy, Debug)]
pub struct Redis {
    account: Name,
}

impl Redis {
    /// At the first command.
    pub const NEW: Redis = Redis { account: Name::EMPTY };

    /// See [`super::Walker::input`].
    pub fn input(&mut self, bytes: &[u8]) -> Came {
        let user = auth_user(bytes);
        if let Some(user) = user {
            self.account.set(user);
        }
        Came { login: user.is_some(), request: !bytes.is_empty(), exempt: false }
    }
    /// See [`super::Walker::output`].
    pub fn output(&mut self, bytes: &[u8]) -> bool {
        !bytes.is_empty()
    }
    /// Never: see the module.
    pub fn is_open(&self) -> bool {
        false
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

/// The account of an `AUTH user password` or `HELLO n AUTH user password` at the beginning of `bytes`.
fn auth_user(bytes: &[u8]) -> Option<&[u8]> {
    let mut words = bytes.get(..bytes.len().min(160))?.split(|b| *b == b'\n').map(|w| w.trim_ascii_end());
    let count: usize = std::str::from_utf8(words.next()?.strip_prefix(b"*")?).ok()?.parse().ok()?;
    // Each argument is two lines: its length and its text.
    let mut args = words.skip(1).step_by(2);
    let first = args.next()?;
    if first.eq_ignore_ascii_case(b"AUTH") && count == 3 {
        return args.next();
    }
    let hello = first.eq_ignore_ascii_case(b"HELLO") && count >= 5;
    (hello && args.nth(1)?.eq_ignore_ascii_case(b"AUTH")).then(|| args.next())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accounts_are_found() {
        let user = |t: &str| auth_user(t.as_bytes()).map(|u| String::from_utf8_lossy(u).into_owned());
        assert_eq!(user("*3\r\n$4\r\nAUTH\r\n$3\r\nbob\r\n$1\r\nx\r\n").as_deref(), Some("bob"));
        assert_eq!(user("*2\r\n$4\r\nAUTH\r\n$1\r\nx\r\n"), None);
        let hello = "*5\r\n$5\r\nHELLO\r\n$1\r\n3\r\n$4\r\nAUTH\r\n$3\r\nbob\r\n$1\r\nx\r\n";
        assert_eq!(user(hello).as_deref(), Some("bob"));
        assert_eq!(user("*3\r\n$3\r\nSET\r\n$1\r\na\r\n$1\r\nb\r\n"), None);
        assert_eq!(user(""), None);
    }
}
