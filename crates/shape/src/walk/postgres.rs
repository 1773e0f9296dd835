//! PostgreSQL's protocol 3: typed messages of 4 bytes length. A request is all up to a Sync (or one simple query); its answer ends
//! with ReadyForQuery, whose byte says whether a transaction is open.

use super::packet::{Event, Framing, Packets, Start};
use super::words::{POSTGRES, Prepared, pins_after};
use super::{Came, Name, Went};
use crate::gate::Answered;

struct Typed;
impl Framing for Typed {
    const HEADER: usize = 5;
    fn body(h: &[u8]) -> Option<u64> {
        u64::from(u32::from_be_bytes([h[1], h[2], h[3], h[4]])).checked_sub(4).filter(|n| *n <= LEN_MAX)
    }
}
struct Untyped;
impl Framing for Untyped {
    const HEADER: usize = 4;
    fn body(h: &[u8]) -> Option<u64> {
        u64::from(u32::from_be_bytes([h[0], h[1], h[2], h[3]])).checked_sub(4).filter(|n| *n <= STARTUP_MAX)
    }
}

/// Longest message that the server takes.
const LEN_MAX: u64 = 0x3fff_ffff;
/// Longest startup packet that the server takes.
const STARTUP_MAX: u64 = 10_000;
const VERSION_3: u32 = 196_608;
const CANCEL_REQUEST: u32 = 80_877_102;
const SSL_REQUEST: u32 = 80_877_103;
const GSS_REQUEST: u32 = 80_877_104;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Startup,
    /// One byte answers a request for TLS (true) or GSS.
    Negotiating(bool),
    Auth,
    Ready,
}

/// A PostgreSQL connection.
#[derive(Clone, Copy, Debug)]
pub struct Postgres {
    input: Packets,
    output: Packets,
    talk: Talk,
}

#[derive(Clone, Copy, Debug)]
struct Talk {
    phase: Phase,
    /// ReadyForQuery messages owed.
    owed: u32,
    /// The first message of a request has begun to come.
    begun: bool,
    /// Something was sent since the last of them: a request runs.
    running: bool,
    lost: bool,
    tls: bool,
    replication: bool,
    in_trans: bool,
    /// The last answer reported an error, or a rollback.
    undone: bool,
    pins: u8,
    pins_after: u8,
    prepared: Prepared,
    /// Named by the client; taken by the server once it is ready for queries.
    claimed: (Name, Name),
    account: Name,
    database: Name,
}

impl Postgres {
    /// At the startup packet.
    pub const NEW: Postgres = Postgres {
        input: Packets::NEW,
        output: Packets::NEW,
        talk: Talk {
            phase: Phase::Startup,
            owed: 0,
            begun: false,
            running: false,
            lost: false,
            tls: false,
            replication: false,
            in_trans: false,
            undone: false,
            pins: 0,
            pins_after: 0,
            prepared: Prepared::NEW,
            claimed: (Name::EMPTY, Name::EMPTY),
            account: Name::EMPTY,
            database: Name::EMPTY,
        },
    };

    /// See [`super::Walker::input`].
    pub fn input(&mut self, mut bytes: &[u8]) -> Came {
        let mut came = Came::default();
        let talk = &mut self.talk;
        while !talk.lost {
            let phase = talk.phase;
            let mut tell = |e: Event<'_>| match e {
                Event::Start(p) if phase == Phase::Startup => talk.startup(&p, &mut came),
                Event::Start(p) => talk.message(&p, &mut came),
                Event::End if std::mem::take(&mut talk.begun) => (talk.running, came.request) = (true, true),
                _ => {}
            };
            let rest = match phase {
                Phase::Startup => self.input.next::<Untyped>(bytes, &mut tell),
                // A client that sends its records right behind the request is TLS from there on.
                Phase::Negotiating(_) => None,
                _ => self.input.next::<Typed>(bytes, &mut tell),
            };
            let Some(rest) = rest else { break };
            bytes = rest;
        }
        came
    }

    /// See [`super::Walker::output`].
    pub fn output(&mut self, mut bytes: &[u8]) -> Went {
        let mut went = Went::default();
        let talk = &mut self.talk;
        if let (Phase::Negotiating(tls), Some(&answer)) = (talk.phase, bytes.first()) {
            bytes = &bytes[1..];
            talk.phase = Phase::Startup;
            match (tls, answer) {
                (true, b'S') => talk.tls = true,
                (_, b'N') => {}
                // An old server's error, or GSS encryption, which isn't followed.
                _ => talk.lost = true,
            }
        }
        while !talk.lost
            && let Some(rest) = self.output.next::<Typed>(bytes, &mut |e| {
                if let Event::Start(p) = e {
                    talk.server_message(&p, &mut went);
                }
            })
        {
            bytes = rest;
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
        self.talk.phase == Phase::Ready && !self.talk.running && !self.talk.replication
    }
    /// See [`super::Walker::lacks`].
    pub fn lacks(&self) -> Option<u64> {
        self.talk.begun.then(|| self.input.missing())
    }
    /// See [`super::Walker::identity`].
    pub fn identity(&self) -> (Name, Name) {
        let (account, database) = (self.talk.account, self.talk.database);
        (account, if database == Name::EMPTY { account } else { database })
    }
}

impl Talk {
    fn startup(&mut self, p: &Start<'_>, came: &mut Came) {
        let code = p.head.first_chunk::<4>().map(|c| u32::from_be_bytes(*c));
        match code {
            Some(SSL_REQUEST) => self.phase = Phase::Negotiating(true),
            Some(GSS_REQUEST) => self.phase = Phase::Negotiating(false),
            Some(VERSION_3) => {
                let mut fields = p.head[4..].split(|b| *b == 0);
                while let (Some(key), Some(value)) = (fields.next(), fields.next()) {
                    match key {
                        b"user" => self.claimed.0.set(value),
                        b"database" => self.claimed.1.set(value),
                        b"replication" => self.replication = true,
                        _ => {}
                    }
                }
                self.phase = Phase::Auth;
            }
            // Nothing follows: the server acts on it and closes.
            Some(CANCEL_REQUEST) => (self.phase, came.exempt) = (Phase::Auth, true),
            _ => self.lost = true,
        }
    }

    fn message(&mut self, p: &Start<'_>, came: &mut Came) {
        let kind = p.header[0];
        // Of a COPY that has failed the rest comes after the server's last word, and a Flush asks for nothing of its own: neither is answered.
        let unanswered = !self.running && matches!(kind, b'd' | b'c' | b'f' | b'H');
        if self.phase != Phase::Ready || self.replication || kind == b'X' || unanswered {
            came.exempt = true;
            return;
        }
        if matches!(kind, b'Q' | b'F' | b'S') {
            self.owed = self.owed.saturating_add(1);
        }
        match kind {
            b'Q' => self.pins_after = pins_after(self.pins_after, POSTGRES.word(p.head)),
            b'P' => self.parse(p.head),
            b'B' => self.bind(p.head),
            b'C' if p.head.first() == Some(&b'S') => self.prepared.forget(named(&p.head[1..])),
            _ => {}
        }
        self.begun = !self.running;
    }

    /// A statement's name and text.
    fn parse(&mut self, head: &[u8]) {
        let end = head.iter().position(|b| *b == 0).unwrap_or(head.len());
        let word = POSTGRES.word(head.get(end + 1..).unwrap_or(&[]));
        if !self.prepared.set(named(head), word) {
            // No room to remember it: as if it were executed now.
            self.pins_after = pins_after(self.pins_after, word);
        }
    }

    /// A portal's name and its statement's: what is bound is executed.
    fn bind(&mut self, head: &[u8]) {
        let end = head.iter().position(|b| *b == 0).unwrap_or(head.len());
        let word = self.prepared.word(named(head.get(end + 1..).unwrap_or(&[])));
        self.pins_after = pins_after(self.pins_after, word);
    }

    fn server_message(&mut self, p: &Start<'_>, went: &mut Went) {
        match p.header[0] {
            // What it was to take wasn't taken.
            b'E' => (self.undone, self.pins_after) = (true, self.pins),
            b'C' => self.undone = p.head.starts_with(b"ROLLBACK"),
            b'Z' => self.ready(p.head.first() == Some(&b'I'), went),
            _ => {}
        }
    }

    fn ready(&mut self, idle: bool, went: &mut Went) {
        self.in_trans = !idle;
        self.owed = self.owed.saturating_sub(1);
        if self.phase != Phase::Ready {
            (self.account, self.database) = self.claimed;
            (self.phase, went.login) = (Phase::Ready, true);
        } else if self.owed == 0 {
            (self.running, self.pins, went.done) = (false, self.pins_after, true);
        }
    }
}

/// A number for a name (up to its NUL): statements of one connection are few.
fn named(name: &[u8]) -> u32 {
    let name = name.iter().take_while(|b| **b != 0);
    name.fold(0x811c_9dc5, |h, b| (h ^ u32::from(*b)).wrapping_mul(0x0100_0193))
}
