//! State of the gate, as plain integers of fixed layout: it may be in memory shared by processes.

use super::hist::LogHist;
use super::list::{Link, Linked, List};
use crate::tune::fairness::Seen;
use bytemuck::{Pod, Zeroable};
use plimsoll_base::{Span, Time};

/// Delivered user parallelism when nothing is held back.
pub const P_UNLIMITED: u32 = u32::MAX;
/// A weight of one.
pub const WEIGHT_ONE_MILLI: u32 = 1000;
/// Heaviest weight: 1000 times the lightest.
pub const WEIGHT_MAX_MILLI: u32 = 1_000_000;
/// Users that a gate has room for.
pub const USERS_MAX: usize = 2048;
/// Longest name of a user, in bytes; what is longer is cut.
pub const NAME_BYTES: usize = 48;

/// Settings that can be changed while it runs.
#[derive(Clone, Copy, Pod, Zeroable, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Knobs {
    /// P: limit of transactions in the database, escapes aside; 0 holds every new one (up to `hold_max_ns`).
    pub p: u32,
    /// ζ: transactions a user of weight one may start in a round; at least 1.
    pub zeta: u32,
    /// A transaction whose client has been silent for so long lends its place.
    pub lend_ns: u64,
    /// Time without an answer, or without a place given back, after which one more waiting transaction is let in (the number
    /// doubles each time).
    pub stall_ns: u64,
    /// Nobody is held longer.
    pub hold_max_ns: u64,
    /// 1: a transaction costs its user the time it took; 0: each costs the same (AP-A6).
    pub charge_time: u32,
    /// 1: nothing is held (switched off, or failed open).
    pub open: u32,
}

impl Default for Knobs {
    fn default() -> Knobs {
        Knobs {
            p: P_UNLIMITED,
            zeta: 4,
            lend_ns: Span::from_millis(20).as_nanos(),
            stall_ns: Span::from_millis(50).as_nanos(),
            hold_max_ns: Span::from_secs(10).as_nanos(),
            charge_time: 0,
            open: 0,
        }
    }
}

/// Counters since the start.
#[derive(Clone, Copy, Pod, Zeroable, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Counters {
    /// Transactions let in.
    pub admitted: u64,
    /// Of these, after waiting.
    pub held: u64,
    /// Transactions that ended.
    pub finished: u64,
    /// Of these, undone: victims of deadlocks, rollbacks, errors.
    pub undone: u64,
    /// Requests answered, inside transactions too.
    pub requests: u64,
    /// Places lent while a transaction's client was silent.
    pub lent: u64,
    /// Lenders that came back to a full house and went in all the same.
    pub bypass: u64,
    /// Let in because nothing moved.
    pub stall_escapes: u64,
    /// Let in because they had waited for `hold_max_ns`.
    pub hold_escapes: u64,
    /// Let in because the gate was opened (off, or failed open) while they waited.
    pub opened: u64,
    /// Connections taken back from processes that died.
    pub reaped: u64,
    /// Connections whose bytes could not be followed: they pass.
    pub unparsed: u64,
    /// Connections or users that found the tables full.
    pub overflow: u64,
    /// Entries of unused users that were given to others.
    pub given_back: u64,
    /// Panics caught at the boundary.
    pub panics: u64,
    /// Times the lock was taken from an owner that died or failed.
    pub repairs: u64,
    /// Processes that went on without the gate, as the owner of its lock was stopped.
    pub stuck: u64,
}

impl Counters {
    /// Transactions that ended and stand: what throughput is.
    pub fn done(&self) -> u64 {
        self.finished.wrapping_sub(self.undone)
    }
    /// Let in though no place was free.
    pub fn escapes(&self) -> u64 {
        self.stall_escapes + self.hold_escapes
    }
}

/// The gate's own state.
#[derive(Clone, Copy, Pod, Zeroable, Debug)]
#[repr(C)]
pub struct Head {
    /// See [`Knobs`].
    pub knobs: Knobs,
    /// See [`Counters`].
    pub counters: Counters,
    /// Holders of ordinary places; at most P when the last of them was let in.
    pub normal: u32,
    /// Holders let in by an escape or come back from lending: not among `normal`.
    pub over: u32,
    /// Transactions that lent their place and have not come back.
    pub lent: u32,
    /// Connections that wait.
    pub waiting: u32,
    pub(super) idle: List,
    pub(super) by_age: List,
    pub(super) granted: List,
    pub(super) in_turn: List,
    pub(super) free_conns: List,
    pub(super) escape_burst: u32,
    pub(super) users_used: u32,
    /// Scheduling rounds so far (AP-M4).
    pub round: u64,
    pub(super) round_began: u64,
    pub(super) virtual_now: u64,
    /// Number of times that users lined up: among equals the one that came first goes first.
    pub(super) lined_up: u64,
    /// Users whose turn is to come: a heap, the next one first.
    pub(super) line: [u32; USERS_MAX],
    pub(super) line_len: u32,
    /// Connections from here on were never open.
    pub(super) conns_used: u32,
    /// Places beyond P that the present stall has opened.
    pub(super) level: u32,
    pub(super) reserved: u32,
    /// Times of the last answer, the last change of an ordinary place, and the last escape.
    pub(super) answer_at: u64,
    pub(super) place_at: u64,
    pub(super) escaped_at: u64,
    pub(super) mean_service_ns: u64,
    /// Times of slow requests, of quick ones, and of slow transactions from admission to their end: four times that.
    pub(super) slow_request_ns: u64,
    pub(super) quick_request_ns: u64,
    pub(super) slow_stay_ns: u64,
    pub(super) service: LogHist,
    pub(super) holding: LogHist,
    pub(super) service_count: u64,
    /// Of each user's name: looked through instead of the entries, which are far apart.
    pub(super) name_hash: [u64; USERS_MAX],
}

/// Class of a user's promise (AP-M14).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum UserClass {
    /// A user without an objective, which wants throughput.
    BestEffort,
    /// A user with a tail-latency objective. Its weight follows from the objective.
    LatencySensitive,
}

/// One user: an account, a database, an address, or a group that a rule names.
#[derive(Clone, Copy, Pod, Zeroable, Debug)]
#[repr(C)]
pub struct User {
    pub(super) name: [u8; NAME_BYTES],
    /// φ in thousandths: 1000 to [`WEIGHT_MAX_MILLI`].
    pub weight_milli: u32,
    pub(super) class: u32,
    /// Objective for p99.9, in µs; 0 for none.
    pub objective_us: u64,
    pub(super) queue: List,
    /// Its connections that wait.
    pub waiting: u32,
    /// Its transactions inside.
    pub inside: u32,
    pub(super) link: Link,
    pub(super) ring: u32,
    /// Its connections that are open.
    pub conns: u32,
    /// Transactions that it may still start in its turn.
    pub(super) left: u32,
    pub(super) line_at: u32,
    /// Progress in virtual time.
    pub(super) virtual_at: u64,
    /// Until then a turn that it began holds.
    pub(super) turn_ends: u64,
    pub(super) order: u64,
    /// 1: it came back from silence, and its turns have no part of the round of their own yet.
    pub(super) is_new: u32,
    /// Connections that become its own once they are at rest.
    pub(super) promised: u32,
    /// Number of the user that has this entry: entries are given back.
    pub(super) generation: u32,
    pub(super) reserved: u32,
    /// Time at which its last connection was closed, or the entry was made.
    pub(super) used_at: u64,
    /// Nanoseconds during which it had somebody waiting, up to `backlog_since`.
    pub backlogged_ns: u64,
    pub(super) backlog_since: u64,
    /// Transactions that ended.
    pub finished: u64,
    /// Transactions let in.
    pub admitted: u64,
    /// Sum of their times from arrival to end, in µs.
    pub total_us: u64,
    /// Sum of the squares, in µs².
    pub total_us2: u64,
    /// Waits before being let in.
    pub wait_hist: LogHist,
    /// Times from arrival to end.
    pub total_hist: LogHist,
}

/// Activity of a connection.
pub(super) mod phase {
    pub const FREE: u32 = 0;
    /// Between transactions.
    pub const REST: u32 = 1;
    pub const WAITING: u32 = 2;
    /// A request of it runs.
    pub const RUNNING: u32 = 3;
    /// In a transaction whose client is silent.
    pub const IDLE: u32 = 4;
    /// Between transactions of a session that holds a lock: in nobody's way, and never held.
    pub const PINNED: u32 = 5;
}

/// Kind of place that a connection holds.
pub(super) mod place {
    pub const NONE: u32 = 0;
    pub const NORMAL: u32 = 1;
    pub const OVER: u32 = 2;
    pub const LENT: u32 = 3;
}

/// One connection.
#[derive(Clone, Copy, Pod, Zeroable, Debug)]
#[repr(C)]
pub struct Conn {
    pub(super) phase: u32,
    pub(super) place: u32,
    pub(super) user: u32,
    /// Set while it is in the list of grants whose driver wasn't notified yet.
    pub(super) granted: u32,
    /// Process that owns it; 0 if that doesn't matter.
    pub owner_pid: u32,
    /// Changes whenever a wait ends: a futex word, and what tells a late wake-up from a current one.
    pub epoch: u32,
    /// Hint for the driver on how to wake it.
    pub wake_hint: u64,
    pub(super) link: Link,
    pub(super) age: Link,
    pub(super) arrived_at: u64,
    pub(super) admitted_at: u64,
    /// Time at which its last request began or ended.
    pub(super) since: u64,
    /// One more than the user that it becomes when it is at rest; 0 for none.
    pub(super) next_user: u32,
    pub(super) reserved: u32,
}

impl Linked<0> for Conn {
    fn link(&mut self) -> &mut Link {
        &mut self.link
    }
}
/// By age of the wait.
impl Linked<1> for Conn {
    fn link(&mut self) -> &mut Link {
        &mut self.age
    }
}
impl Linked<0> for User {
    fn link(&mut self) -> &mut Link {
        &mut self.link
    }
}

impl User {
    /// Its name; what isn't UTF-8 is shown as such.
    pub fn name(&self) -> std::borrow::Cow<'_, str> {
        let end = self.name.iter().position(|&b| b == 0).unwrap_or(NAME_BYTES);
        String::from_utf8_lossy(&self.name[..end])
    }
    /// Its class.
    pub fn class(&self) -> UserClass {
        if self.class == 1 { UserClass::LatencySensitive } else { UserClass::BestEffort }
    }
    /// Sets its class.
    pub fn set_class(&mut self, class: UserClass) {
        self.class = u32::from(class == UserClass::LatencySensitive);
    }
    /// Its figures now, to compare with later ones.
    pub fn seen(&self, now: Time) -> Seen {
        Seen {
            generation: self.generation,
            weight_milli: self.weight_milli,
            finished: self.finished,
            total_us: self.total_us,
            total_us2: self.total_us2,
            backlogged_ns: self.backlogged(now).as_nanos(),
        }
    }
    /// For how long it had somebody waiting, up to `now`.
    pub fn backlogged(&self, now: Time) -> Span {
        let open = if self.waiting > 0 { now.as_nanos().saturating_sub(self.backlog_since) } else { 0 };
        Span::from_nanos(self.backlogged_ns + open)
    }
}
