//! A connection to one replica: what was agreed on, what is under way, and whether it may be read.

use super::stream::Stream;
use plimsoll_base::{Span, Time};
use plimsoll_nbd::client::Opened;
use plimsoll_nbd::promise::{Deadline, NUMBERS, Note, Promise};
use plimsoll_nbd::request::Request;
use plimsoll_nbd::transactions::Transactions;
use plimsoll_nbd::wire::{Command, CommandFlags, MetaContext, NoteKind};
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::Notify;

/// Largest confidence of a forecast, in thousandths. A node may send any number.
pub const CONFIDENCE_MAX: u32 = 1000;

/// Readability of a replica.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LinkState {
    /// It is being connected to for the first time.
    Opening,
    /// There is no connection, and why.
    Down(String),
    /// There is one, but it may lack writes, and why.
    Behind(String),
    /// It's read.
    Up,
}

/// Purpose of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum For {
    /// A try of a get.
    Try {
        /// The get's place, and which user of it.
        get: (usize, u64),
        /// The try's number.
        number: u32,
    },
    /// A probe of a get.
    Probe {
        /// The get's place, and which user of it.
        get: (usize, u64),
    },
    /// The link's own question, how its replica is.
    Health {
        /// This generation must have been reached by now.
        required: u64,
        /// Generation that the replica's answers have reported so far.
        claimed: u64,
    },
}

/// A request under way.
#[derive(Debug)]
pub struct Pending {
    /// Purpose.
    pub what: For,
    /// A read's data, and where they begin.
    pub data: Vec<u8>,
    /// First byte.
    pub offset: u64,
    /// Bytes asked for.
    pub length: u32,
    /// Notes that the node sent with it.
    pub notes: Vec<Note>,
    /// In this number of chunks.
    pub note_chunks: u32,
    /// Its error's words.
    pub error: Option<String>,
}

impl Pending {
    /// A note's value.
    pub fn note(&self, kind: NoteKind) -> Option<u32> {
        self.notes.iter().find(|n| n.0 == kind).map(|n| n.1)
    }

    /// Takes further notes of the node.
    pub fn heard(&mut self, notes: Vec<Note>) {
        merge(&mut self.notes, notes);
    }

    /// The generation in a probe's answer.
    pub fn generation(&self) -> Option<u64> {
        let low = self.note(NoteKind::GenerationLow)?;
        Some(u64::from(self.note(NoteKind::GenerationHigh).unwrap_or(0)) << 32 | u64::from(low))
    }
}

/// Adds further notes. The last of each kind is valid; known kinds are few, so that a server can't fill this memory.
pub fn merge(notes: &mut Vec<Note>, further: Vec<Note>) {
    for note in further {
        match notes.iter_mut().find(|n| n.0 == note.0) {
            Some(n) => *n = note,
            None => notes.push(note),
        }
    }
}

/// State that exists while there is a connection.
#[derive(Debug)]
pub struct Open {
    /// Its socket.
    pub stream: Arc<Stream>,
    /// Its replies.
    pub transactions: Transactions,
    /// By cookie.
    pub pending: BTreeMap<u64, Pending>,
    /// Encoded, not sent yet.
    pub unsent: Vec<u8>,
    /// The node speaks promises.
    pub promises: bool,
    /// Size of the export in bytes.
    pub size_bytes: u64,
    /// Requests must be multiples of it, in bytes.
    pub block_bytes: u32,
    /// Longest read in bytes.
    pub read_bytes_max: u32,
    /// Time of the last arrival, or of the start of waiting for one.
    pub heard_at: Time,
    next: u32,
}

impl Open {
    /// A connection on which nothing is under way.
    pub fn new(now: Time, stream: Arc<Stream>, opened: &Opened) -> Open {
        let id = opened.meta_contexts.iter().find(|c| c.1 == MetaContext::Promise.name()).map(|c| c.0);
        let transactions = Transactions::new(opened.structured_replies, id.into_iter().collect());
        let sizes = opened.block_sizes.unwrap_or_default();
        Open {
            stream,
            transactions: match id {
                Some(id) => transactions.with_promises(id),
                None => transactions,
            },
            pending: BTreeMap::new(),
            unsent: Vec::new(),
            promises: id.is_some(),
            size_bytes: opened.size_bytes,
            block_bytes: sizes.minimum,
            read_bytes_max: sizes.payload_max,
            heard_at: now,
            next: 0,
        }
    }

    fn cookie(&mut self, promise: Promise) -> u64 {
        loop {
            self.next = (self.next + 1) % NUMBERS;
            let cookie = promise.cookie(self.next);
            if !self.pending.contains_key(&cookie) {
                return cookie;
            }
        }
    }

    /// Writes a request to what is to be sent; its cookie, or `None` where too many are under way.
    pub fn submit(&mut self, now: Time, what: For, command: Command, at: (u64, u32), promise: Promise) -> Option<u64> {
        let promise = if self.promises && command == Command::Read { promise } else { Promise::default() };
        let cookie = self.cookie(promise);
        let (offset, length) = at;
        let request = Request { command, flags: CommandFlags::EMPTY, cookie, offset, length };
        self.transactions.submit(&mut self.unsent, request).ok()?;
        if self.pending.is_empty() {
            self.heard_at = now;
        }
        self.pending.insert(
            cookie,
            Pending { what, data: Vec::new(), offset, length, notes: Vec::new(), note_chunks: 0, error: None },
        );
        Some(cookie)
    }

    /// Withdraws a request, where the node knows how.
    pub fn cancel(&mut self, cookie: u64) {
        if self.promises && self.pending.contains_key(&cookie) {
            let request =
                Request { command: Command::Cancel, flags: CommandFlags::EMPTY, cookie, offset: 0, length: 0 };
            let written = self.transactions.submit(&mut self.unsent, request);
            debug_assert!(written.is_ok(), "a cancel is always written");
        }
    }
}

/// The promise of a try.
pub fn promise_of(deadline: Option<Span>, tells: bool) -> Promise {
    let within = |d: Span| Deadline::Within(u32::try_from(d.as_micros()).unwrap_or(u32::MAX).clamp(1, u32::MAX - 1));
    Promise { deadline: deadline.map_or(Deadline::None, within), tells }
}

/// One replica.
#[derive(Debug)]
pub struct Link {
    /// Address, for people.
    pub address: String,
    /// Readability.
    pub state: LinkState,
    /// The connection, if there is one.
    pub open: Option<Open>,
    /// Wakes the link's task when something couldn't be sent at once.
    pub stuck: Arc<Notify>,
    /// Generation that its replica last reported.
    pub generation: u64,
    /// Its answer when it was last asked for all of it, not for its lower half.
    pub confirmed: u64,
    /// Time of that answer; `None` before the first.
    pub confirmed_at: Option<Time>,
    /// The smallest count that was too large to be its own; `None` since a possible one.
    pub refused: Option<u64>,
    /// Generation that others are measured by: the one last reported while it was readable; 0 if it is connected but not
    /// readable.
    pub counts: u64,
    /// It says itself that it may lack writes.
    pub marked: bool,
    /// Largest valid generation of any replica at the time of its own last report.
    pub known_then: u64,
}

impl Link {
    /// One that isn't connected to yet.
    pub fn new(address: String) -> Link {
        let stuck = Arc::new(Notify::new());
        Link {
            address,
            state: LinkState::Opening,
            open: None,
            stuck,
            generation: 0,
            confirmed: 0,
            confirmed_at: None,
            refused: None,
            counts: 0,
            marked: false,
            known_then: 0,
        }
    }

    /// Sends what can be sent now. False: the connection is broken.
    pub fn flush(&mut self) -> bool {
        let Some(open) = &mut self.open else { return true };
        while !open.unsent.is_empty() {
            match open.stream.write_now(&open.unsent) {
                Ok(Some(0)) | Err(_) => return false,
                Ok(Some(n)) if n == open.unsent.len() => open.unsent.clear(),
                Ok(Some(n)) => drop(open.unsent.drain(..n)),
                Ok(None) => {
                    self.stuck.notify_one();
                    return true;
                }
            }
        }
        true
    }

    /// Returns the reason why it isn't read; `None` if it is read.
    pub fn closed(&self) -> Option<String> {
        match &self.state {
            LinkState::Up => None,
            LinkState::Opening => Some(format!("{}: not connected yet", self.address)),
            LinkState::Down(why) | LinkState::Behind(why) => Some(format!("{}: {why}", self.address)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_refusal_says_in_two_chunks_is_all_heard() {
        let what = For::Health { required: 0, claimed: 0 };
        let mut p =
            Pending { what, data: Vec::new(), offset: 0, length: 1, notes: Vec::new(), note_chunks: 0, error: None };
        p.heard(vec![(NoteKind::InFlight, 7), (NoteKind::WaitUs, 1)]);
        (2..100).for_each(|us| p.heard(vec![(NoteKind::WaitUs, us)]));
        assert_eq!((p.note(NoteKind::InFlight), p.note(NoteKind::WaitUs)), (Some(7), Some(99)));
        assert_eq!(p.notes.len(), 2, "a node that says much doesn't fill our memory");
    }
}
