//! Request shaping in front of a database that knows nothing of it (AppleS). Users wait outside, in their own queues. The
//! number of transactions in the database is the one that it serves best, and turns are fair.
//!
//! * [`gate`] is the scheduler, a pure state machine in memory that processes can share.
//! * [`walk`] follows protocols; [`profile`] describes how a server reads; [`users`] finds a connection's user.
//! * [`tune`] and [`control`] turn the knobs.
//! * [`segment`] is the memory that the shim in the server and the controller share.
//! * [`proxy`] is the other face of the gate, for servers that nothing can be preloaded into.
//! * [`drive`] puts load on real servers.
//!
//! One request through the shim: the server reads it, and `walk` sees a request begin. `gate` lets it go, or the thread waits. An
//! answer goes out. `walk` sees the answer end, and whether a transaction stays open. `gate` hands the place on.
#![deny(unsafe_code)]

pub mod control;
pub mod drive;
pub mod gate;
pub mod profile;
pub mod proxy;
pub mod segment;
pub mod sync;
pub mod tend;
pub mod tune;
pub mod users;
pub mod walk;
