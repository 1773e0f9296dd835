//! The NVMe/TCP protocol without I/O: the target's side as machines that are fed bytes, and enough of a host's side to test
//! them.
//!
//! **Promises.** Nothing that a peer sends causes a panic. Every buffer that a peer fills has a bound. The same bytes give the
//! same result however they are cut. Nothing is allocated for a command of an I/O queue. Malformed input is answered with a
//! status, or ends the connection with a PDU that names the reason.
//!
//! **Refuses to know.** Sockets, clocks, threads, volumes, tenants, promises. The driver decides whether a host may connect to
//! a subsystem.
//!
//! **The path of one connection.** [`opening::Opening`] negotiates digests and takes the Connect command. The driver accepts or
//! refuses it, or demands a proof first ([`auth`]). Queue 0 is a [`controller::Controller`]'s: properties, Identify, features, log pages, events, keep-alive. Any
//! other queue carries reads and writes: [`queue::Queue`] understands what comes in, [`queue::Replies`] encodes answers.
//!
//! **Limits.** A subsystem has one namespace, 1, of blocks of 512 bytes. Submission queues have at most
//! [`wire::QUEUE_ENTRIES_MAX`] entries. A transfer has at most [`wire::TRANSFER_BYTES_MAX`] bytes. Fused commands and metadata
//! are refused.
//!
//! The facts are those of the NVM Express base, NVM command set, and NVMe/TCP transport specifications, revisions 1.4 to 2.0.
#![forbid(unsafe_code)]

pub mod auth;
pub mod away;
mod bytes;
pub mod command;
pub mod controller;
pub mod host;
mod identify;
mod logs;
pub mod opening;
pub mod pdu;
pub mod queue;
pub mod wire;
