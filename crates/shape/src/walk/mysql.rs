//! MySQL's protocol: packets of 3 bytes length and a sequence number. A command is a packet numbered 0; the answer's status
//! flags say whether a transaction is open (notes on framing: AP-M1).

mod answer;
mod wire;

use super::packet::{Event, Framing, Packets, Start};
use super::words::{MYSQL, Prepared, Word, pins_after};
use super::{Came, Name, Went};
use crate::gate::Answered;
use wire::{caps, com, extended, lenenc, until_nul};

struct Frame;
impl Framing for Frame {
    const HEADER: usize = 4;
    fn body(h: &[u8]) -> Option<u64> {
        Some(u64::from(h[0]) | u64::from(h[1]) << 8 | u64::from(h[2]) << 16)
    }
}

/// A packet of this length goes on in the next.
const FULL: u64 = 0xff_ffff;
/// Means the statement that was prepared last (MariaDB).
const STATEMENT_LAST: u32 = u32::MAX;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Greeting,
    Handshake,
    Auth,
    Command,
}

/// Next part of an answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Answer {
    /// None is owed.
    None,
    /// OK, ERR, a file request or a result's column count.
    First,
    /// Columns, until their EOF.
    Columns,
    /// Column definitions, with their number; no EOF after them.
    Count(u32),
    /// Rows, until EOF, OK or ERR.
    Rows,
    /// Definitions and EOFs of a prepared statement, with the number of packets.
    Prepared(u32),
    /// The client sends a file; then OK or ERR.
    File,
}

/// A MySQL connection.
#[derive(Clone, Copy, Debug)]
pub struct Mysql {
    input: Packets,
    output: Packets,
    talk: Talk,
}

/// State beside the packets' bounds: apart, so that these can be walked in place.
#[derive(Clone, Copy, Debug)]
struct Talk {
    phase: Phase,
    answer: Answer,
    command: u8,
    /// A command that counts has begun to come.
    begun: bool,
    /// The last packet from the client was full: the next continues it.
    continues: bool,
    /// The same of the server's.
    output_continues: bool,
    lost: bool,
    tls: bool,
    server_caps: u32,
    server_extended: u32,
    deprecate_eof: bool,
    /// A result's first packet says whether definitions follow.
    cache_metadata: bool,
    /// Statements have attributes before them.
    attributes: bool,
    in_trans: bool,
    /// The last transaction ended without being committed.
    undone: bool,
    /// Effect of the present command if it succeeds.
    word: Word,
    /// Locks that the session holds, as far as its statements show.
    pins: u8,
    prepared: Prepared,
    last_prepared: u32,
    /// Name in the client's request; it becomes valid when the server confirms it.
    claimed: (Name, Name),
    account: Name,
    database: Name,
}

impl Mysql {
    /// At the greeting.
    pub const NEW: Mysql = Mysql { input: Packets::NEW, output: Packets::NEW, talk: Talk::NEW };

    /// See [`super::Walker::input`].
    pub fn input(&mut self, mut bytes: &[u8]) -> Came {
        let mut came = Came::default();
        let talk = &mut self.talk;
        while !talk.lost
            && let Some(rest) = self.input.next::<Frame>(bytes, &mut |e| match e {
                Event::Start(p) => talk.client_packet(&p, &mut came),
                Event::End => came.request |= !talk.continues && std::mem::take(&mut talk.begun),
                Event::Body(_) => {}
            })
        {
            bytes = rest;
            if bytes.is_empty() {
                break;
            }
        }
        came
    }

    /// See [`super::Walker::output`].
    pub fn output(&mut self, mut bytes: &[u8]) -> Went {
        let mut went = Went::default();
        let talk = &mut self.talk;
        while !talk.lost
            && let Some(rest) = self.output.next::<Frame>(bytes, &mut |e| {
                if let Event::Start(p) = e {
                    went.done |= talk.server_packet(&p, &mut went.login);
                }
            })
        {
            bytes = rest;
            if bytes.is_empty() {
                break;
            }
        }
        went
    }

    /// See [`super::Walker::stands`].
    pub fn stands(&self) -> Answered {
        match (self.talk.in_trans, self.talk.pins, self.talk.undone) {
            (true, ..) => Answered::Open,
            (_, 1.., _) => Answered::Pinned,
            (_, _, true) => Answered::Undone,
            _ => Answered::Done,
        }
    }
    /// See [`super::Walker::is_lost`].
    pub fn is_lost(&self) -> bool {
        self.talk.lost || self.input.is_lost() || self.output.is_lost()
    }
    /// See [`super::Walker::is_tls`].
    pub fn is_tls(&self) -> bool {
        self.talk.tls
    }
    /// See [`super::Walker::at_rest`].
    pub fn at_rest(&self) -> bool {
        self.talk.phase == Phase::Command
            && self.input.between()
            && !self.talk.continues
            && self.talk.answer != Answer::File
    }
    /// See [`super::Walker::identity`].
    pub fn identity(&self) -> (Name, Name) {
        (self.talk.account, self.talk.database)
    }
}

impl Talk {
    const NEW: Talk = Talk {
        phase: Phase::Greeting,
        answer: Answer::None,
        command: 0,
        begun: false,
        continues: false,
        output_continues: false,
        lost: false,
        tls: false,
        server_caps: 0,
        server_extended: 0,
        deprecate_eof: false,
        cache_metadata: false,
        attributes: false,
        in_trans: false,
        undone: false,
        word: Word::None,
        pins: 0,
        prepared: Prepared::NEW,
        last_prepared: 0,
        claimed: (Name::EMPTY, Name::EMPTY),
        account: Name::EMPTY,
        database: Name::EMPTY,
    };

    fn client_packet(&mut self, p: &Start<'_>, came: &mut Came) {
        let continued = std::mem::replace(&mut self.continues, p.len == FULL);
        match self.phase {
            // Nobody speaks before the greeting.
            Phase::Greeting => self.lost = true,
            Phase::Handshake => self.handshake(p.head),
            Phase::Auth => {}
            Phase::Command if p.header[3] == 0 && !continued => self.command(p.head, came),
            Phase::Command => {}
        }
    }

    fn handshake(&mut self, head: &[u8]) {
        let Some(asked) = head.first_chunk::<4>().map(|c| u32::from_le_bytes(*c)) else {
            self.lost = true;
            return;
        };
        if asked & caps::SSL != 0 && head.len() == 32 && !self.tls {
            self.tls = true;
            return;
        }
        let both = asked & self.server_caps;
        self.lost |= both & (caps::COMPRESS | caps::ZSTD) != 0;
        self.deprecate_eof = both & caps::DEPRECATE_EOF != 0;
        self.attributes = both & caps::QUERY_ATTRIBUTES != 0;
        // MariaDB's own flags lie where MySQL has nothing, if neither side claims to be MySQL.
        let more = head.get(28..32).filter(|_| (asked | self.server_caps) & caps::MYSQL == 0);
        let more = more.map_or(0, |b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]));
        self.cache_metadata = more & self.server_extended & extended::CACHE_METADATA != 0;
        let Some((user, rest)) = head.get(32..).and_then(until_nul) else { return };
        self.claimed = (Name::EMPTY, Name::EMPTY);
        self.claimed.0.set(user);
        let secret = match rest {
            [len, r @ ..] if asked & (caps::SECURE_CONNECTION | caps::PLUGIN_AUTH_LENENC) != 0 => {
                r.get(usize::from(*len)..)
            }
            _ => until_nul(rest).map(|x| x.1),
        };
        if asked & caps::CONNECT_WITH_DB != 0
            && let Some((database, _)) = secret.and_then(until_nul)
        {
            self.claimed.1.set(database);
        }
        self.phase = Phase::Auth;
    }

    fn command(&mut self, head: &[u8], came: &mut Came) {
        let Some((&command, text)) = head.split_first() else {
            came.exempt = true;
            return;
        };
        (self.command, self.word) = (command, Word::None);
        self.answer = match command {
            com::QUIT | com::CLOSE | com::LONG_DATA => Answer::None,
            _ => Answer::First,
        };
        let statement = || text.first_chunk::<4>().map_or(STATEMENT_LAST, |c| u32::from_le_bytes(*c));
        match command {
            com::QUERY => self.word = MYSQL.word(self.without_attributes(text)),
            // Known by its number, once it has one.
            com::PREPARE => self.word = MYSQL.word(text),
            com::EXECUTE | com::BULK_EXECUTE => {
                let number = if statement() == STATEMENT_LAST { self.last_prepared } else { statement() };
                self.word = self.prepared.word(number);
            }
            com::CLOSE => self.prepared.forget(statement()),
            com::RESET_CONNECTION => (self.word, self.prepared) = (Word::GiveAll, Prepared::NEW),
            com::CHANGE_USER => self.change_user(text),
            _ => {}
        }
        let counts = matches!(command, com::QUERY | com::PREPARE | com::EXECUTE | com::BULK_EXECUTE | com::FETCH);
        if counts && self.word != Word::Kill {
            self.begun = true;
        } else {
            came.exempt = true;
        }
    }

    /// A statement's text. With attributes its first word isn't looked for: their values would have to be walked by type.
    fn without_attributes<'a>(&self, text: &'a [u8]) -> &'a [u8] {
        let after = || {
            let (_, rest) = lenenc(text)?;
            Some(lenenc(rest)?.1)
        };
        if self.attributes { after().unwrap_or(text) } else { text }
    }

    fn change_user(&mut self, text: &[u8]) {
        self.claimed = (Name::EMPTY, Name::EMPTY);
        if let Some((user, rest)) = until_nul(text) {
            self.claimed.0.set(user);
            let after = rest.split_first().and_then(|(len, r)| r.get(usize::from(*len)..));
            if let Some((database, _)) = after.and_then(until_nul) {
                self.claimed.1.set(database);
            }
        }
        (self.phase, self.pins, self.in_trans, self.prepared) = (Phase::Auth, 0, false, Prepared::NEW);
    }

    /// The present command has succeeded.
    fn takes_effect(&mut self) {
        self.pins = pins_after(self.pins, self.word);
    }
}
