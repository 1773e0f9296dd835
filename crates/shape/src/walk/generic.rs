//! Any protocol in which a client asks and waits. A request begins with the first bytes after an answer. It is done when the server, having
//! answered, reads again. Nothing is known of transactions.

use super::{Came, Name, Went};
use crate::gate::Answered;

/// A connection of an unknown protocol.
#[derive(Clone, Copy, Debug)]
pub struct Generic {
    asked: bool,
    answered: bool,
}

impl Generic {
    /// At the first byte.
    pub const NEW: Generic = Generic { asked: false, answered: false };

    /// See [`super::Walker::input`].
    pub fn input(&mut self, bytes: &[u8]) -> Came {
        if bytes.is_empty() {
            return Came::default();
        }
        let begins = !self.asked || self.answered;
        (self.asked, self.answered) = (true, false);
        Came { request: begins, ..Came::default() }
    }
    /// See [`super::Walker::output`]: that an answer is complete can't be seen in its bytes; a face that has nothing better
    /// takes any answer for a complete one.
    pub fn output(&mut self, bytes: &[u8]) -> Went {
        self.answered = self.asked && !bytes.is_empty();
        Went { done: self.answered, login: false }
    }
    /// Always done.
    pub fn stands(&self) -> Answered {
        Answered::Done
    }
    /// Never.
    pub fn is_lost(&self) -> bool {
        false
    }
    /// See [`super::Walker::at_rest`].
    pub fn at_rest(&self) -> bool {
        self.answered
    }
    /// Nobody.
    pub fn identity(&self) -> (Name, Name) {
        (Name::EMPTY, Name::EMPTY)
    }
}
