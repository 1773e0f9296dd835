//! PostgreSQL's protocol 3: typed messages of 4 bytes length. A request is all up to a Sync (or one simple query); its answer ends
//! with ReadyForQuery, whose byte says whether a transaction is open.

use super::packet::{Framing, Packets, Start};
use super::words::{Locks, locks};
use super::{Came, Name};

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
    phase: Phase,
    /// ReadyForQuery messages owed.
    owed: u32,
    /// Something was sent since the last of them: a request runs.
    running: bool,
    lost: bool,
    tls: bool,
    replication: bool,
    in_trans: bool,
    pins: u8,
    pins_after: u8,
    account: Name,
    database: Name,
}

impl Postgres {
    /// At the startup packet.
    pub const NEW: Postgres = Postgres {
        input: Packets::NEW,
        output: Packets::NEW,
        phase: Phase::Startup,
        owed: 0,
        running: false,
        lost: false,
        tls: false,
        replication: false,
        in_trans: false,
        pins: 0,
        pins_after: 0,
        account: Name::EMPTY,
        database: Name::EMPTY,
    };

    /// See [`super::Walker::input`].
    pub fn input(&mut self, mut bytes: &[u8]) -> Came {
        let mut came = Came::default();
        let mut packets = self.input;
        while !self.lost {
            let rest = match self.phase {
                Phase::Startup => packets.next::<Untyped>(bytes, &mut |p| self.startup(&p, &mut came)),
                // A client that sends its records right behind the request is TLS from there on.
                Phase::Negotiating(_) => None,
                _ => packets.next::<Typed>(bytes, &mut |p| self.message(&p, &mut came)),
            };
            let Some(rest) = rest else { break };
            bytes = rest;
        }
        self.input = packets;
        came
    }

    fn startup(&mut self, p: &Start<'_>, came: &mut Came) {
        let code = p.head.first_chunk::<4>().map(|c| u32::from_be_bytes(*c));
        match code {
            Some(SSL_REQUEST) => self.phase = Phase::Negotiating(true),
            Some(GSS_REQUEST) => self.phase = Phase::Negotiating(false),
            Some(VERSION_3) => {
                let mut fields = p.head[4..].split(|b| *b == 0);
                while let (Some(key), Some(value)) = (fields.next(), fields.next()) {
                    match key {
                        b"user" => self.account.set(value),
                        b"database" => self.database.set(value),
                        b"replication" => self.replication = true,
                        _ => {}
                    }
                }
                came.login = true;
                self.phase = Phase::Auth;
            }
            // A cancel request ends the connection; anything else is no PostgreSQL.
            _ => self.lost = true,
        }
    }

    fn message(&mut self, p: &Start<'_>, came: &mut Came) {
        if self.phase != Phase::Ready || self.replication {
            came.exempt = true;
            return;
        }
        let kind = p.header[0];
        match kind {
            b'X' => {
                came.exempt = true;
                return;
            }
            b'Q' | b'F' | b'S' => self.owed = self.owed.saturating_add(1),
            _ => {}
        }
        if matches!(kind, b'Q' | b'P') {
            // A parse message has the statement's name before its text: that does no harm to the search.
            let found = locks(p.head);
            match found {
                Locks::Take => self.pins = self.pins.saturating_add(1),
                Locks::Give => self.pins_after = self.pins_after.saturating_sub(1),
                Locks::GiveAll => self.pins_after = 0,
                _ => {}
            }
            if found == Locks::Take {
                self.pins_after = self.pins;
            }
        }
        if !std::mem::replace(&mut self.running, true) {
            came.request = true;
        }
    }

    /// See [`super::Walker::output`].
    pub fn output(&mut self, mut bytes: &[u8]) -> bool {
        let mut done = false;
        if let (Phase::Negotiating(tls), Some(&answer)) = (self.phase, bytes.first()) {
            bytes = &bytes[1..];
            self.phase = Phase::Startup;
            match (tls, answer) {
                (true, b'S') => self.tls = true,
                (_, b'N') => {}
                // An old server's error, or GSS encryption, which isn't followed.
                _ => self.lost = true,
            }
        }
        let mut packets = self.output;
        while !self.lost
            && let Some(rest) = packets.next::<Typed>(bytes, &mut |p| done |= self.server_message(&p))
        {
            bytes = rest;
        }
        self.output = packets;
        done
    }

    fn server_message(&mut self, p: &Start<'_>) -> bool {
        if p.header[0] != b'Z' {
            return false;
        }
        self.in_trans = p.head.first() != Some(&b'I');
        self.owed = self.owed.saturating_sub(1);
        if self.phase != Phase::Ready {
            self.phase = Phase::Ready;
            return false;
        }
        if self.owed == 0 {
            self.running = false;
            self.pins = self.pins_after;
        }
        self.owed == 0
    }

    /// See [`super::Walker::is_open`].
    pub fn is_open(&self) -> bool {
        self.in_trans || self.pins > 0
    }
    /// See [`super::Walker::is_lost`].
    pub fn is_lost(&self) -> bool {
        self.lost || self.input.is_lost() || self.output.is_lost()
    }
    /// See [`super::Walker::is_tls`].
    pub fn is_tls(&self) -> bool {
        self.tls
    }
    /// See [`super::Walker::at_rest`].
    pub fn at_rest(&self) -> bool {
        self.phase == Phase::Ready && !self.running && !self.replication
    }
    /// See [`super::Walker::identity`].
    pub fn identity(&self) -> (Name, Name) {
        (self.account, if self.database == Name::EMPTY { self.account } else { self.database })
    }
}
