//! MongoDB's OP_MSG: 16 bytes of header, flags, one BSON document whose first key is the command.
//! `hello` and the like (a driver leaves an awaitable one open for ten seconds) never count.

use super::packet::{Event, Framing, Packets, Start};
use super::{Came, Name, Went};
use crate::gate::Answered;

struct Frame;
impl Framing for Frame {
    const HEADER: usize = 16;
    const BODY: bool = true;
    fn body(h: &[u8]) -> Option<u64> {
        u64::from(u32::from_le_bytes([h[0], h[1], h[2], h[3]])).checked_sub(16).filter(|n| *n <= LEN_MAX)
    }
}

/// Longest message that servers take.
const LEN_MAX: u64 = 48_000_000;
const OP_MSG: u32 = 2013;
const OP_COMPRESSED: u32 = 2012;
const MORE_TO_COME: u32 = 2;
/// Bytes of a message in which its transaction is looked for: a command's own fields, with room for a document or some.
const SEARCHED_MAX: usize = 65_536;
const AUTOCOMMIT_OFF: &[u8] = b"\x08autocommit\0\0";
const START_TRANSACTION: &[u8] = b"\x08startTransaction\0\x01";
const EXHAUST: u32 = 1 << 16;

const EXEMPT: [&[u8]; 12] = [
    b"hello",
    b"isMaster",
    b"ismaster",
    b"ping",
    b"saslStart",
    b"saslContinue",
    b"authenticate",
    b"buildInfo",
    b"endSessions",
    b"killCursors",
    b"killOp",
    b"replSetHeartbeat",
];

/// A MongoDB connection.
#[derive(Clone, Copy, Debug)]
pub struct Mongo {
    input: Packets,
    output: Packets,
    talk: Talk,
}

#[derive(Clone, Copy, Debug)]
struct Talk {
    owed: Option<u32>,
    /// Kind of end of the command that has begun to arrive; `None` if it isn't counted.
    begun: Option<Ends>,
    /// Bytes of the present message that were searched.
    searched: usize,
    /// Search for the mark that the message belongs to a transaction.
    autocommit_off: Search,
    /// Search for the mark that the message begins its transaction.
    starts: Search,
    in_trans: bool,
    after: bool,
    undone: bool,
    undoes: bool,
    lost: bool,
    claimed: Name,
    account: Name,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Ends {
    No,
    Commits,
    Aborts,
}

/// Length of the text's part found so far; a text that was found stays found.
#[derive(Clone, Copy, Debug)]
struct Search {
    matched: usize,
}

impl Search {
    const NEW: Search = Search { matched: 0 };

    fn feed(&mut self, text: &[u8], bytes: &[u8]) {
        for b in bytes {
            if self.matched == text.len() {
                return;
            }
            // The first byte of what is looked for is nowhere else in it.
            self.matched = if text[self.matched] == *b { self.matched + 1 } else { usize::from(text[0] == *b) };
        }
    }
}

impl Mongo {
    /// At the first message.
    pub const NEW: Mongo = Mongo {
        input: Packets::NEW,
        output: Packets::NEW,
        talk: Talk {
            owed: None,
            begun: None,
            searched: 0,
            autocommit_off: Search::NEW,
            starts: Search::NEW,
            in_trans: false,
            after: false,
            undone: false,
            undoes: false,
            lost: false,
            claimed: Name::EMPTY,
            account: Name::EMPTY,
        },
    };

    /// See [`super::Walker::input`].
    pub fn input(&mut self, mut bytes: &[u8]) -> Came {
        let mut came = Came::default();
        let talk = &mut self.talk;
        while let Some(rest) = self.input.next::<Frame>(bytes, &mut |e| match e {
            Event::Start(p) => talk.message(&p, &mut came),
            Event::Body(piece) => talk.search(piece),
            Event::End => talk.message_ends(&mut came),
        }) {
            bytes = rest;
        }
        came
    }

    /// See [`super::Walker::output`].
    pub fn output(&mut self, mut bytes: &[u8]) -> Went {
        let mut went = Went::default();
        let talk = &mut self.talk;
        while let Some(rest) = self.output.next::<Frame>(bytes, &mut |e| {
            if let Event::Start(p) = e {
                talk.answer(&p, &mut went);
            }
        }) {
            bytes = rest;
        }
        went
    }

    /// See [`super::Walker::stands`].
    pub fn stands(&self) -> Answered {
        match (self.talk.in_trans, self.talk.undone) {
            (true, _) => Answered::Open,
            (_, true) => Answered::Undone,
            _ => Answered::Done,
        }
    }
    /// See [`super::Walker::is_lost`].
    pub fn is_lost(&self) -> bool {
        self.talk.lost || self.input.is_lost() || self.output.is_lost()
    }
    /// See [`super::Walker::at_rest`].
    pub fn at_rest(&self) -> bool {
        self.input.between()
    }
    /// See [`super::Walker::identity`].
    pub fn identity(&self) -> (Name, Name) {
        (self.talk.account, Name::EMPTY)
    }
}

impl Talk {
    fn message(&mut self, p: &Start<'_>, came: &mut Came) {
        (self.searched, self.autocommit_off, self.starts, self.begun) = (0, Search::NEW, Search::NEW, None);
        let word = |at: usize| u32::from_le_bytes([p.header[at], p.header[at + 1], p.header[at + 2], p.header[at + 3]]);
        let flags = p.head.first_chunk::<4>().map_or(0, |c| u32::from_le_bytes(*c));
        self.lost |= word(12) == OP_COMPRESSED;
        let command = (word(12) == OP_MSG && p.head.get(4) == Some(&0)).then(|| first_key(p.head.get(5..)?)).flatten();
        let Some(command) = command else {
            came.exempt = true;
            return;
        };
        if let Some(user) = scram_user(p.head) {
            self.claimed.set(user);
        }
        let waits =
            command == b"getMore" && contains(p.head, b"\x12maxTimeMS\0") | contains(p.head, b"\x10maxTimeMS\0");
        if EXEMPT.contains(&command) || waits || flags & (EXHAUST | MORE_TO_COME) != 0 {
            came.exempt = true;
            return;
        }
        self.owed = Some(word(4));
        self.begun = Some(match command {
            b"commitTransaction" => Ends::Commits,
            b"abortTransaction" => Ends::Aborts,
            _ => Ends::No,
        });
    }

    fn search(&mut self, piece: &[u8]) {
        let left = SEARCHED_MAX.saturating_sub(self.searched).min(piece.len());
        self.searched += left;
        self.autocommit_off.feed(AUTOCOMMIT_OFF, &piece[..left]);
        self.starts.feed(START_TRANSACTION, &piece[..left]);
    }

    /// A driver's sessions take whichever connection is free: a transaction may go on, or end, on another one than it began on.
    fn message_ends(&mut self, came: &mut Came) {
        let Some(ends) = self.begun.take() else { return };
        let of_one = self.autocommit_off.matched == AUTOCOMMIT_OFF.len();
        let starts = self.starts.matched == START_TRANSACTION.len();
        came.request = true;
        came.urgent |= of_one && !starts && !self.in_trans;
        came.moved_on |= self.in_trans && (!of_one || starts);
        self.in_trans &= of_one && !starts;
        self.after = of_one && ends == Ends::No;
        self.undoes = ends == Ends::Aborts;
    }

    fn answer(&mut self, p: &Start<'_>, went: &mut Went) {
        let to = u32::from_le_bytes([p.header[8], p.header[9], p.header[10], p.header[11]]);
        let flags = p.head.first_chunk::<4>().map_or(0, |c| u32::from_le_bytes(*c));
        // The last word of an authentication.
        if contains(p.head, b"\x08done\0\x01") && self.claimed != Name::EMPTY {
            self.account = std::mem::replace(&mut self.claimed, Name::EMPTY);
            went.login = true;
        }
        if self.owed == Some(to) && flags & MORE_TO_COME == 0 {
            (self.owed, self.in_trans, self.undone, went.done) = (None, self.after, self.undoes, true);
        }
    }
}

/// The first key of a BSON document.
fn first_key(doc: &[u8]) -> Option<&[u8]> {
    let key = doc.get(5..)?;
    Some(&key[..key.iter().position(|&b| b == 0)?])
}

fn contains(text: &[u8], what: &[u8]) -> bool {
    text.windows(what.len()).any(|w| w == what)
}

/// The account in a SCRAM first message, `n,,n=USER,r=…`.
fn scram_user(head: &[u8]) -> Option<&[u8]> {
    let at = head.windows(5).position(|w| w == b"n,,n=")? + 5;
    let end = head[at..].iter().position(|&b| b == b',')?;
    Some(&head[at..at + end])
}
