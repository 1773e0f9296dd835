//! A request's own promise, between a client and a server that both know the metadata context `x-plimsoll:promise`.
//!
//! NBD has no field for a deadline, and other clients must go on as before. So the extension between two Plimsolls changes no
//! framing. It holds only where the context was chosen on the connection (with structured replies, as every context):
//!
//! * the upper half of a READ's **cookie** is its deadline in microseconds. 0 leaves it to the export; `u32::MAX` asks for
//!   none, whatever the export promises. Bit 31 asks for a notice when the request begins to be executed. The rest is the
//!   client's own number. Any server echoes a cookie as it is.
//! * answers carry **notes**: a chunk of the type of a block status, in the context's own name, with pairs of a [`NoteKind`]
//!   and its value. A READ's answer has at most one such chunk when it begins and one before its end. The answer to
//!   BLOCK_STATUS has one with the server's state (a probe). Unknown kinds are passed over.
//! * [`Command::Cancel`](crate::wire::Command::Cancel) withdraws the request whose cookie it carries, and has no answer of its
//!   own: what was not begun is answered an error.

use crate::wire::{ChunkKind, NoteKind};

/// One thing that a server tells: what, and its value (times in microseconds, none greater than `u32::MAX`).
pub type Note = (NoteKind, u32);

/// Within what a READ must be answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Deadline {
    /// As the export promises.
    #[default]
    Exports,
    /// In this number of microseconds from its arrival, or it's refused; never 0 and never `u32::MAX`.
    Within(u32),
    /// Whenever it is ready, even where the export promises more.
    None,
}

/// Promise that a READ asks for in its cookie.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Promise {
    /// Within what.
    pub deadline: Deadline,
    /// The server is to tell when it begins to execute it.
    pub tells: bool,
}

const TELLS: u64 = 1 << 31;
/// Numbers of a client's own are smaller.
pub const NUMBERS: u32 = 1 << 31;

impl Promise {
    /// The cookie of request `number` with this promise.
    ///
    /// # Panics
    /// If the number isn't below [`NUMBERS`], or the deadline is 0 or `u32::MAX` microseconds.
    pub fn cookie(self, number: u32) -> u64 {
        assert!(number < NUMBERS, "a number has 31 bits");
        let upper = match self.deadline {
            Deadline::Exports => 0,
            Deadline::Within(us) => {
                assert!(us != 0 && us != u32::MAX, "a deadline of {us} us can't be expressed");
                us
            }
            Deadline::None => u32::MAX,
        };
        u64::from(upper) << 32 | if self.tells { TELLS } else { 0 } | u64::from(number)
    }

    /// Returns the promise in a cookie. Every cookie asks for something.
    pub const fn of(cookie: u64) -> Promise {
        let deadline = match (cookie >> 32) as u32 {
            0 => Deadline::Exports,
            u32::MAX => Deadline::None,
            us => Deadline::Within(us),
        };
        Promise { deadline, tells: cookie & TELLS != 0 }
    }

    /// The client's own number in a cookie.
    pub const fn number(cookie: u64) -> u32 {
        (cookie & (TELLS - 1)) as u32
    }
}

/// Appends a chunk of notes to a reply's buffer. Does nothing without any, unless it is the last chunk.
///
/// # Panics
/// If it is to be the last one and there is no note: the protocol has no such chunk.
pub fn notes(out: &mut Vec<u8>, cookie: u64, context_id: u32, notes: &[Note], last: crate::reply::Last) {
    if notes.is_empty() {
        assert!(last == crate::reply::Last::No, "a reply can't end with no note");
        return;
    }
    let payload_bytes = 4 + 8 * notes.len() as u32;
    out.extend_from_slice(&crate::reply::chunk_header(cookie, ChunkKind::BlockStatus, last, payload_bytes));
    out.extend_from_slice(&context_id.to_be_bytes());
    for (kind, value) in notes {
        out.extend_from_slice(&kind.to_wire().to_be_bytes());
        out.extend_from_slice(&value.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reply::Last;

    #[test]
    fn a_cookie_carries_its_promise() {
        for deadline in [Deadline::Exports, Deadline::Within(1), Deadline::Within(u32::MAX - 1), Deadline::None] {
            for tells in [false, true] {
                for number in [0, 1, NUMBERS - 1] {
                    let cookie = Promise { deadline, tells }.cookie(number);
                    assert_eq!(Promise::of(cookie), Promise { deadline, tells });
                    assert_eq!(Promise::number(cookie), number);
                }
            }
        }
        assert_eq!(Promise { deadline: Deadline::Within(13_000), tells: true }.cookie(7), 13_000 << 32 | 0x8000_0007);
        assert_eq!(Promise::of(42), Promise::default(), "a small number asks for nothing");
    }

    #[test]
    fn notes_are_a_chunk_of_their_context() {
        let mut out = Vec::new();
        notes(&mut out, 7, 2, &[(NoteKind::WaitUs, 1500), (NoteKind::InFlight, 3)], Last::No);
        assert_eq!(out[..20], *b"\x66\x8e\x33\xef\0\0\0\x05\0\0\0\0\0\0\0\x07\0\0\0\x14");
        assert_eq!(out[20..], *b"\0\0\0\x02\0\0\0\x01\0\0\x05\xdc\0\0\0\x03\0\0\0\x03");
        notes(&mut out, 7, 2, &[], Last::No);
        assert_eq!(out.len(), 40);
    }
}
