//! Profile of how a server reads its clients' requests, for the shim (AP-M1: "the difference lies in the calls").

use crate::walk::Protocol;
use std::fmt;
use std::str::FromStr;

/// A kind of server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Profile {
    /// MySQL, MariaDB with a thread for each connection: held where the thread reads.
    MysqlThread,
    /// MariaDB's pool of threads: a connection's event is withheld.
    MysqlPool,
    /// A process for each connection: the socket's event is hidden while the latch stays live.
    Postgres,
    /// One event loop: fewer ready clients a turn.
    Redis,
    /// A thread for each connection, OP_MSG.
    Mongo,
    /// A thread for each connection, any protocol of question and answer.
    Generic,
}

/// Profiles and their names.
pub const PROFILES: [(&str, Profile); 6] = [
    ("mysql-thread", Profile::MysqlThread),
    ("mysql-pool", Profile::MysqlPool),
    ("postgres", Profile::Postgres),
    ("redis", Profile::Redis),
    ("mongo", Profile::Mongo),
    ("generic", Profile::Generic),
];

impl Profile {
    /// As kept in the control segment, where 0 is no server under the shim.
    pub fn code(self) -> u32 {
        1 + PROFILES.iter().position(|p| p.1 == self).map_or(0, |i| i as u32)
    }
    /// From the control segment.
    pub fn of_code(code: u32) -> Option<Profile> {
        PROFILES.get(code.checked_sub(1)? as usize).map(|p| p.1)
    }
    /// Returns the protocol.
    pub fn protocol(self) -> Protocol {
        match self {
            Profile::MysqlThread | Profile::MysqlPool => Protocol::Mysql,
            Profile::Postgres => Protocol::Postgres,
            Profile::Redis => Protocol::Redis,
            Profile::Mongo => Protocol::Mongo,
            Profile::Generic => Protocol::Generic,
        }
    }

    /// The thread that reads a request is the one that serves it, and it may wait there.
    pub fn holds_in_read(self) -> bool {
        matches!(self, Profile::MysqlThread | Profile::Mongo | Profile::Generic)
    }
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = PROFILES.iter().find(|p| p.1 == *self).map_or("", |p| p.0);
        f.write_str(name)
    }
}

/// There is no such profile.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BadProfile(String);
impl fmt::Display for BadProfile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = PROFILES.iter().map(|p| p.0).collect();
        write!(f, "there is no profile `{}`; there are {}", self.0, names.join(", "))
    }
}
impl std::error::Error for BadProfile {}

impl FromStr for Profile {
    type Err = BadProfile;
    fn from_str(text: &str) -> Result<Profile, BadProfile> {
        PROFILES.iter().find(|p| p.0 == text).map(|p| p.1).ok_or_else(|| BadProfile(text.into()))
    }
}
