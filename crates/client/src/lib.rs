//! The client: a read of data that several nodes have, with a deadline, and what chooses among the nodes.
//!
//! ```text
//!  get ─► Course ─► policy: begin, heard, refused, began, probed, timer, ended
//!           │            │
//!           │            └─ Orders: send, cancel, abandon, probe, wake, give up ─► driver: simulator, or sockets and a clock
//!           └─ ends once: the first data, or an error when nothing is left that could bring any
//! ```
//! A [`ReplicaPolicy`] is a pure state machine: it reads no clock, draws nothing and does no I/O. Their common part is
//! [`Course`]: the tries that were sent, the replies, and the end of a get. A driver passes events to the course's methods and
//! carries out the [`Step`]s that they return.
//!
//! | policy | file | in short |
//! | --- | --- | --- |
//! | base | [`base`] | one replica, whatever it takes |
//! | timeout | [`timeout`] | gives a replica up after a while |
//! | clone | [`clone`] | two at once |
//! | hedged | [`hedged`] | a second one when the first is late |
//! | tied | [`tied`] | two, of which the first that begins calls the other off |
//! | snitch | [`snitch`] | whose median was best |
//! | c3 | [`c3`] | whose queue and service promise the soonest answer |
//! | prequal | [`prequal`] | asks for load first |
//! | mitt, mitt+wait, mitt+budget | [`mitt`] | with a deadline; Busy is answered elsewhere at once |
//!
//! The policies know requests' words (`plimsoll-base`) and nobody else; [`live`] drives them over NBD (`plimsoll-nbd`).
#![forbid(unsafe_code)]

pub mod base;
pub mod c3;
pub mod choice;
pub mod clone;
pub mod course;
pub mod hedged;
pub mod learn;
pub mod live;
pub mod mitt;
pub mod policy;
pub mod prequal;
pub mod snitch;
#[cfg(test)]
mod testing;
pub mod tied;
pub mod timeout;

pub use choice::{BadPolicy, PolicyKind, PolicySettings};
pub use course::{Course, Ended, Step, Try};
pub use learn::Limit;
pub use policy::{Answer, Get, Heard, Orders, Preference, Probe, ReplicaPolicy, Reply, Send};

/// The examples of README.md, which tests run.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
