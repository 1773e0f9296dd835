//! Walkers: they follow a connection's bytes in both directions, however these are cut. They find where requests begin and end,
//! the connection's user, and whether a transaction is open. They answer nothing, change nothing and never allocate.

pub mod generic;
pub mod mongo;
pub mod mysql;
pub mod packet;
pub mod postgres;
pub mod redis;
pub mod words;

use crate::gate::{Answered, NAME_BYTES};

/// Events in a client's bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Came {
    /// All of a request that counts has come. Half of one takes no place: its client may leave it at that.
    pub request: bool,
    /// A request began that never counts: a ping, a kill, replication.
    pub exempt: bool,
    /// It goes on with a transaction that was begun on another connection, and must not be held.
    pub urgent: bool,
    /// The transaction that was open on this connection isn't any more: it goes on elsewhere.
    pub moved_on: bool,
}

/// Events in the server's bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Went {
    /// The answer that was owed is complete.
    pub done: bool,
    /// The server took the account (another one than before): now it is known whose connection it is.
    pub login: bool,
}

/// An account or database name as it came over the wire, cut to the length that is kept.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Name {
    bytes: [u8; NAME_BYTES],
    len: u8,
}

impl Name {
    /// No name.
    pub const EMPTY: Name = Name { bytes: [0; NAME_BYTES], len: 0 };

    /// Takes up to [`NAME_BYTES`] bytes.
    pub fn set(&mut self, text: &[u8]) {
        let len = text.len().min(NAME_BYTES);
        self.bytes = [0; NAME_BYTES];
        self.bytes[..len].copy_from_slice(&text[..len]);
        self.len = len as u8;
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len).min(NAME_BYTES)]
    }
}

impl std::fmt::Debug for Name {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", String::from_utf8_lossy(self.as_bytes()))
    }
}

/// Protocol of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Protocol {
    /// MySQL's and MariaDB's.
    Mysql,
    /// PostgreSQL's, version 3.
    Postgres,
    /// MongoDB's OP_MSG.
    Mongo,
    /// Redis' RESP.
    Redis,
    /// Any in which a client asks and waits for the answer.
    Generic,
}

/// A connection's walker.
#[derive(Clone, Copy, Debug)]
pub enum Walker {
    /// See [`mysql`].
    Mysql(mysql::Mysql),
    /// See [`postgres`].
    Postgres(postgres::Postgres),
    /// See [`mongo`].
    Mongo(mongo::Mongo),
    /// See [`redis`].
    Redis(redis::Redis),
    /// See [`generic`].
    Generic(generic::Generic),
    /// See [`Walker::pass_unseen`].
    Lost(Lost),
}

/// A connection some of whose bytes passed unseen: nothing is concluded any more.
#[derive(Clone, Copy, Debug)]
pub struct Lost;

impl Lost {
    fn input(self, _: &[u8]) -> Came {
        Came::default()
    }
    fn output(self, _: &[u8]) -> Went {
        Went::default()
    }
    fn stands(self) -> Answered {
        Answered::Done
    }
    fn is_lost(self) -> bool {
        true
    }
    fn at_rest(self) -> bool {
        false
    }
    fn identity(self) -> (Name, Name) {
        (Name::EMPTY, Name::EMPTY)
    }
}

macro_rules! each {
    ($self:expr, $w:ident => $what:expr) => {
        match $self {
            Walker::Mysql($w) => $what,
            Walker::Postgres($w) => $what,
            Walker::Mongo($w) => $what,
            Walker::Redis($w) => $what,
            Walker::Generic($w) => $what,
            Walker::Lost($w) => $what,
        }
    };
}

impl Walker {
    /// At a connection's first byte.
    pub const fn new(protocol: Protocol) -> Walker {
        match protocol {
            Protocol::Mysql => Walker::Mysql(mysql::Mysql::NEW),
            Protocol::Postgres => Walker::Postgres(postgres::Postgres::NEW),
            Protocol::Mongo => Walker::Mongo(mongo::Mongo::NEW),
            Protocol::Redis => Walker::Redis(redis::Redis::NEW),
            Protocol::Generic => Walker::Generic(generic::Generic::NEW),
        }
    }
    /// Bytes from the client.
    pub fn input(&mut self, bytes: &[u8]) -> Came {
        each!(self, w => w.input(bytes))
    }
    /// Bytes to the client.
    pub fn output(&mut self, bytes: &[u8]) -> Went {
        each!(self, w => w.output(bytes))
    }
    /// Bytes from the client, or to it, passed and can't be seen. Only a protocol whose bytes don't matter goes on.
    pub fn pass_unseen(&mut self) {
        if !matches!(self, Walker::Generic(_)) {
            *self = Walker::Lost(Lost);
        }
    }
    /// Returns the state of the connection after its last answer.
    pub fn stands(&self) -> Answered {
        each!(self, w => w.stands())
    }
    /// A transaction, or a lock that the session holds, is open.
    pub fn is_open(&self) -> bool {
        matches!(self.stands(), Answered::Open | Answered::Pinned)
    }
    /// The bytes could not be followed (compressed, unknown, malformed): nothing is to be concluded any more.
    pub fn is_lost(&self) -> bool {
        each!(self, w => w.is_lost())
    }
    /// The next bytes from the client are TLS records: feed this with what is inside them.
    pub fn is_tls(&self) -> bool {
        match self {
            Walker::Mysql(w) => w.is_tls(),
            Walker::Postgres(w) => w.is_tls(),
            _ => false,
        }
    }
    /// The server, if it reads now, waits for a new request: what came before is done.
    pub fn at_rest(&self) -> bool {
        each!(self, w => w.at_rest())
    }
    /// Bytes that a request which has begun to come still lacks, as far as its header says; `None` if none has begun.
    pub fn lacks(&self) -> Option<u64> {
        match self {
            Walker::Postgres(w) => w.lacks(),
            _ => None,
        }
    }
    /// Account and database that the server took.
    pub fn identity(&self) -> (Name, Name) {
        each!(self, w => w.identity())
    }
}
