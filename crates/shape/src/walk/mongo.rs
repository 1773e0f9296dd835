//! MongoDB's OP_MSG: 16 bytes of header, flags, one BSON document whose first key is the command.
//! `hello` and the like (a driver leaves an awaitable one open for ten seconds) never count.

use super::packet::{Framing, Packets, Start};
use super::{Came, Name};

struct Frame;
impl Framing for Frame {
    const HEADER: usize = 16;
    fn body(h: &[u8]) -> Option<u64> {
        u64::from(u32::from_le_bytes([h[0], h[1], h[2], h[3]])).checked_sub(16).filter(|n| *n <= LEN_MAX)
    }
}

/// Longest message that servers take.
const LEN_MAX: u64 = 48_000_000;
const OP_MSG: u32 = 2013;
const OP_COMPRESSED: u32 = 2012;
const MORE_TO_COME: u32 = 2;
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
    owed: Option<u32>,
    in_trans: bool,
    after: bool,
    lost: bool,
    account: Name,
    database: Name,
}

impl Mongo {
    /// At the first message.
    pub const NEW: Mongo = Mongo {
        input: Packets::NEW,
        output: Packets::NEW,
        owed: None,
        in_trans: false,
        after: false,
        lost: false,
        account: Name::EMPTY,
        database: Name::EMPTY,
    };

    /// See [`super::Walker::input`].
    pub fn input(&mut self, mut bytes: &[u8]) -> Came {
        let mut came = Came::default();
        let mut packets = self.input;
        while let Some(rest) = packets.next::<Frame>(bytes, &mut |p| self.message(&p, &mut came)) {
            bytes = rest;
        }
        self.input = packets;
        came
    }

    fn message(&mut self, p: &Start<'_>, came: &mut Came) {
        let word = |at: usize| u32::from_le_bytes([p.header[at], p.header[at + 1], p.header[at + 2], p.header[at + 3]]);
        let flags = p.head.first_chunk::<4>().map_or(0, |c| u32::from_le_bytes(*c));
        self.lost |= word(12) == OP_COMPRESSED;
        let command = (word(12) == OP_MSG && p.head.get(4) == Some(&0)).then(|| first_key(p.head.get(5..)?)).flatten();
        let Some(command) = command else {
            came.exempt = true;
            return;
        };
        if let Some(user) = scram_user(p.head) {
            self.account.set(user);
            came.login = true;
        }
        let waits =
            command == b"getMore" && contains(p.head, b"\x12maxTimeMS\0") | contains(p.head, b"\x10maxTimeMS\0");
        if EXEMPT.contains(&command) || waits || flags & (EXHAUST | MORE_TO_COME) != 0 {
            came.exempt = true;
            return;
        }
        let ends = matches!(command, b"commitTransaction" | b"abortTransaction");
        // Lies behind the command's own fields: found when within the bytes that are kept.
        let begins = contains(p.head, b"\x08autocommit\0\0");
        self.after = if ends { false } else { begins || self.in_trans };
        self.owed = Some(word(4));
        came.request = true;
    }

    /// See [`super::Walker::output`].
    pub fn output(&mut self, mut bytes: &[u8]) -> bool {
        let mut done = false;
        let mut packets = self.output;
        let answer = |p: Start<'_>, w: &mut Mongo| {
            let to = u32::from_le_bytes([p.header[8], p.header[9], p.header[10], p.header[11]]);
            let flags = p.head.first_chunk::<4>().map_or(0, |c| u32::from_le_bytes(*c));
            let ends = w.owed == Some(to) && flags & MORE_TO_COME == 0;
            if ends {
                (w.owed, w.in_trans) = (None, w.after);
            }
            ends
        };
        while let Some(rest) = packets.next::<Frame>(bytes, &mut |p| done |= answer(p, self)) {
            bytes = rest;
        }
        self.output = packets;
        done
    }

    /// See [`super::Walker::is_open`].
    pub fn is_open(&self) -> bool {
        self.in_trans
    }
    /// See [`super::Walker::is_lost`].
    pub fn is_lost(&self) -> bool {
        self.lost || self.input.is_lost() || self.output.is_lost()
    }
    /// See [`super::Walker::at_rest`].
    pub fn at_rest(&self) -> bool {
        self.input.between()
    }
    /// See [`super::Walker::identity`].
    pub fn identity(&self) -> (Name, Name) {
        (self.account, self.database)
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
