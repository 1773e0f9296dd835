//! MySQL's protocol: packets of 3 bytes length and a sequence number. A command is a packet numbered 0; the answer's status
//! flags say whether a transaction is open (notes on framing: AP-M1).

use super::packet::{Framing, Packets, Start};
use super::words::{Locks, locks};
use super::{Came, Name};

struct Frame;
impl Framing for Frame {
    const HEADER: usize = 4;
    fn body(h: &[u8]) -> Option<u64> {
        Some(length(h))
    }
}

fn length(h: &[u8]) -> u64 {
    u64::from(h[0]) | u64::from(h[1]) << 8 | u64::from(h[2]) << 16
}

const FULL: u64 = 0xff_ffff;
const CLIENT_CONNECT_WITH_DB: u32 = 0x8;
const CLIENT_COMPRESS: u32 = 0x20;
const CLIENT_SSL: u32 = 0x800;
const CLIENT_SECURE_CONNECTION: u32 = 0x8000;
const CLIENT_PLUGIN_AUTH_LENENC: u32 = 0x20_0000;
const CLIENT_DEPRECATE_EOF: u32 = 0x100_0000;
const STATUS_IN_TRANS: u16 = 0x1;
const STATUS_MORE_RESULTS: u16 = 0x8;
const STATUS_CURSOR: u16 = 0x40;
const ERR_DEADLOCK: u16 = 1213;
const ERR_PROGRESS: u16 = 0xffff;

mod com {
    pub const QUERY: u8 = 0x03;
    pub const FIELD_LIST: u8 = 0x04;
    pub const STATISTICS: u8 = 0x09;
    pub const CHANGE_USER: u8 = 0x11;
    pub const PREPARE: u8 = 0x16;
    pub const EXECUTE: u8 = 0x17;
    pub const LONG_DATA: u8 = 0x18;
    pub const CLOSE: u8 = 0x19;
    pub const FETCH: u8 = 0x1c;
    pub const RESET_CONNECTION: u8 = 0x1f;
    pub const BULK_EXECUTE: u8 = 0xfa;
    pub const QUIT: u8 = 0x01;
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Greeting,
    Handshake,
    Auth,
    Command,
}

/// What of an answer comes next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Answer {
    /// None is owed.
    None,
    /// OK, ERR, a file request or a result's column count.
    First,
    /// Columns, until their EOF.
    Columns,
    /// Column definitions, so many; no EOF after them.
    Count(u32),
    /// Rows, until EOF, OK or ERR.
    Rows,
    /// Definitions and EOFs of a prepared statement, so many packets.
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

/// What is known beside the packets' bounds: apart, so that these can be walked in place.
#[derive(Clone, Copy, Debug)]
struct Talk {
    phase: Phase,
    answer: Answer,
    command: u8,
    /// The last packet from the client was full: the next continues it.
    continues: bool,
    /// The same of the server's.
    output_continues: bool,
    lost: bool,
    tls: bool,
    deprecate_eof: bool,
    server_caps: u32,
    in_trans: bool,
    /// Locks that the session holds, as far as its statements told.
    pins: u8,
    pins_after: u8,
    account: Name,
    database: Name,
}

impl Mysql {
    /// At the greeting.
    pub const NEW: Mysql = Mysql { input: Packets::NEW, output: Packets::NEW, talk: Talk::NEW };

    /// See [`super::Walker::input`].
    pub fn input(&mut self, mut bytes: &[u8]) -> Came {
        let mut came = Came::default();
        while !self.talk.lost
            && let Some(rest) = self.input.next::<Frame>(bytes, &mut |p| self.talk.client_packet(&p, &mut came))
        {
            if rest.is_empty() {
                break;
            }
            bytes = rest;
        }
        came
    }

    /// See [`super::Walker::output`].
    pub fn output(&mut self, mut bytes: &[u8]) -> bool {
        let mut done = false;
        while !self.talk.lost
            && let Some(rest) = self.output.next::<Frame>(bytes, &mut |p| done |= self.talk.server_packet(&p))
        {
            if rest.is_empty() {
                break;
            }
            bytes = rest;
        }
        done
    }

    /// See [`super::Walker::is_open`].
    pub fn is_open(&self) -> bool {
        self.talk.in_trans || self.talk.pins > 0
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
        continues: false,
        output_continues: false,
        lost: false,
        tls: false,
        deprecate_eof: false,
        server_caps: 0,
        in_trans: false,
        pins: 0,
        pins_after: 0,
        account: Name::EMPTY,
        database: Name::EMPTY,
    };

    fn client_packet(&mut self, p: &Start<'_>, came: &mut Came) {
        let continued = std::mem::replace(&mut self.continues, p.len == FULL);
        match self.phase {
            // Nobody speaks before the greeting.
            Phase::Greeting => self.lost = true,
            Phase::Handshake => self.handshake(p.head, came),
            Phase::Auth => {}
            Phase::Command if p.header[3] == 0 && !continued => self.command(p.head, came),
            Phase::Command => {}
        }
    }

    fn handshake(&mut self, head: &[u8], came: &mut Came) {
        let Some(caps) = head.first_chunk::<4>().map(|c| u32::from_le_bytes(*c)) else {
            self.lost = true;
            return;
        };
        if caps & CLIENT_SSL != 0 && head.len() == 32 && !self.tls {
            self.tls = true;
            return;
        }
        if caps & CLIENT_COMPRESS != 0 && self.server_caps & CLIENT_COMPRESS != 0 {
            self.lost = true;
        }
        self.deprecate_eof = caps & self.server_caps & CLIENT_DEPRECATE_EOF != 0;
        let Some((user, rest)) = head.get(32..).and_then(until_nul) else { return };
        self.account.set(user);
        let secret = match rest {
            [len, r @ ..] if caps & (CLIENT_SECURE_CONNECTION | CLIENT_PLUGIN_AUTH_LENENC) != 0 => {
                r.get(usize::from(*len)..)
            }
            _ => until_nul(rest).map(|x| x.1),
        };
        if caps & CLIENT_CONNECT_WITH_DB != 0
            && let Some((database, _)) = secret.and_then(until_nul)
        {
            self.database.set(database);
        }
        came.login = true;
        self.phase = Phase::Auth;
    }

    fn command(&mut self, head: &[u8], came: &mut Came) {
        let Some((&command, text)) = head.split_first() else {
            came.exempt = true;
            return;
        };
        self.command = command;
        self.pins_after = self.pins;
        self.answer = match command {
            com::QUIT | com::CLOSE | com::LONG_DATA => Answer::None,
            _ => Answer::First,
        };
        match command {
            com::QUERY | com::PREPARE => match locks(text) {
                Locks::Kill => {
                    came.exempt = true;
                    return;
                }
                Locks::Take => {
                    self.pins = self.pins.saturating_add(1);
                    self.pins_after = self.pins;
                }
                Locks::Give => self.pins_after = self.pins.saturating_sub(1),
                Locks::GiveAll => self.pins_after = 0,
                Locks::None => {}
            },
            com::EXECUTE | com::BULK_EXECUTE | com::FETCH => {}
            com::RESET_CONNECTION => self.pins_after = 0,
            com::CHANGE_USER => self.change_user(text, came),
            _ => {}
        }
        let counts = matches!(command, com::QUERY | com::PREPARE | com::EXECUTE | com::BULK_EXECUTE | com::FETCH);
        *if counts { &mut came.request } else { &mut came.exempt } = true;
    }

    fn change_user(&mut self, text: &[u8], came: &mut Came) {
        if let Some((user, rest)) = until_nul(text) {
            self.account.set(user);
            self.database = Name::EMPTY;
            let after = rest.split_first().and_then(|(len, r)| r.get(usize::from(*len)..));
            if let Some((database, _)) = after.and_then(until_nul) {
                self.database.set(database);
            }
        }
        came.login = true;
        (self.phase, self.pins_after, self.pins, self.in_trans) = (Phase::Auth, 0, 0, false);
    }

    fn server_packet(&mut self, p: &Start<'_>) -> bool {
        if std::mem::replace(&mut self.output_continues, p.len == FULL) {
            return false;
        }
        match self.phase {
            Phase::Greeting => {
                self.greeting(p.head);
                false
            }
            Phase::Handshake => false,
            Phase::Auth => {
                match p.head.first() {
                    Some(0) => {
                        self.status(ok_status(p.head));
                        self.phase = Phase::Command;
                    }
                    Some(0xff) if self.command == com::CHANGE_USER => self.phase = Phase::Command,
                    _ => {}
                }
                self.phase == Phase::Command
            }
            Phase::Command => self.answer_packet(p),
        }
    }

    fn greeting(&mut self, head: &[u8]) {
        let Some((_, rest)) = head.strip_prefix(&[10]).and_then(until_nul) else {
            // Too many connections is said with an ERR packet instead; anything else is no MySQL.
            self.lost = head.first() != Some(&0xff);
            return;
        };
        // Connection id 4, scramble 8, filler 1, then capabilities low 2, charset 1, status 2, capabilities high 2.
        if let (Some(low), Some(high)) = (rest.get(13..15), rest.get(18..20)) {
            self.server_caps = u32::from_le_bytes([low[0], low[1], high[0], high[1]]);
        }
        self.phase = Phase::Handshake;
    }

    fn answer_packet(&mut self, p: &Start<'_>) -> bool {
        let first = p.head.first().copied().unwrap_or(0);
        if first == 0xff && !matches!(self.answer, Answer::None | Answer::Prepared(_) | Answer::Count(_)) {
            return self.error(p.head);
        }
        let eof = first == 0xfe && p.len < FULL;
        self.answer = match self.answer {
            Answer::None => return false,
            Answer::First | Answer::File => return self.first_packet(p, first),
            Answer::Columns if eof && p.len < 9 => {
                let status = eof_status(p.head);
                if status.is_some_and(|s| s & STATUS_CURSOR != 0) || self.command == com::FIELD_LIST {
                    return self.ended(status);
                }
                Answer::Rows
            }
            Answer::Columns => Answer::Columns,
            Answer::Count(n) if n <= 1 => Answer::Rows,
            Answer::Count(n) => Answer::Count(n - 1),
            Answer::Rows if eof => {
                let status = if p.len == 5 { eof_status(p.head) } else { ok_status(p.head) };
                return self.ended(status);
            }
            Answer::Rows => Answer::Rows,
            Answer::Prepared(n) if n <= 1 => return self.ended(None),
            Answer::Prepared(n) => Answer::Prepared(n - 1),
        };
        false
    }

    fn first_packet(&mut self, p: &Start<'_>, first: u8) -> bool {
        match (self.command, first) {
            (com::STATISTICS, _) => return self.ended(None),
            (com::PREPARE, 0) => {
                let count =
                    |at: usize| p.head.get(at..at + 2).map_or(0, |b| u32::from(u16::from_le_bytes([b[0], b[1]])));
                let (columns, params) = (count(5), count(7));
                let eof = u32::from(!self.deprecate_eof);
                let packets = columns + params + eof * (u32::from(columns > 0) + u32::from(params > 0));
                if packets == 0 {
                    return self.ended(None);
                }
                self.answer = Answer::Prepared(packets);
            }
            (_, 0) => return self.ended(ok_status(p.head)),
            (com::FIELD_LIST, 0xfe) => return self.ended(eof_status(p.head)),
            (com::FETCH, _) => {
                self.answer = Answer::Rows;
                return self.answer_packet(p);
            }
            (_, 0xfb) => self.answer = Answer::File,
            _ if self.deprecate_eof => {
                let n = lenenc(p.head).map_or(0, |x| x.0) as u32;
                self.answer = if self.command == com::FIELD_LIST { Answer::Rows } else { Answer::Count(n) };
            }
            _ => self.answer = Answer::Columns,
        }
        false
    }

    fn error(&mut self, head: &[u8]) -> bool {
        let code = head.get(1..3).map_or(0, |b| u16::from_le_bytes([b[0], b[1]]));
        if code == ERR_PROGRESS {
            return false;
        }
        // A deadlock's victim is rolled back; after other errors the transaction stands as it was.
        if code == ERR_DEADLOCK {
            self.in_trans = false;
        }
        self.ended(None)
    }

    fn ended(&mut self, status: Option<u16>) -> bool {
        self.status(status);
        if status.is_some_and(|s| s & STATUS_MORE_RESULTS != 0) {
            self.answer = Answer::First;
            return false;
        }
        self.answer = Answer::None;
        self.pins = self.pins_after;
        true
    }

    fn status(&mut self, status: Option<u16>) {
        if let Some(s) = status {
            self.in_trans = s & STATUS_IN_TRANS != 0;
        }
    }
}

fn until_nul(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = text.iter().position(|&b| b == 0)?;
    Some((&text[..end], &text[end + 1..]))
}

/// A length-encoded integer and what follows.
fn lenenc(b: &[u8]) -> Option<(u64, &[u8])> {
    let (&first, rest) = b.split_first()?;
    let n = match first {
        0..=0xfa => return Some((u64::from(first), rest)),
        0xfc => 2,
        0xfd => 3,
        0xfe => 8,
        _ => return None,
    };
    let value = rest.get(..n)?.iter().rev().fold(0, |v, b| v << 8 | u64::from(*b));
    Some((value, &rest[n..]))
}

/// The status flags of an OK packet (also of one that begins with 0xfe).
fn ok_status(head: &[u8]) -> Option<u16> {
    let (_, rest) = lenenc(head.get(1..)?)?;
    let (_, rest) = lenenc(rest)?;
    Some(u16::from_le_bytes(*rest.first_chunk()?))
}

fn eof_status(head: &[u8]) -> Option<u16> {
    Some(u16::from_le_bytes([*head.get(3)?, *head.get(4)?]))
}
