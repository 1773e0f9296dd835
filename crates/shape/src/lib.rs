//! Request shaping in front of a database that knows nothing of it (AppleS): users wait outside, in their own queues, so that as many
//! transactions are inside as the database serves best, in turns that are fair.
//!
//! * [`gate`] is the scheduler, a pure state machine in memory that processes can share.
//! * [`walk`] follows protocols; [`profile`] says how a server reads; [`users`] says whose a connection is.
//! * [`tune`] and [`control`] turn the knobs.
//! * [`segment`] is the memory that the shim in the server and the controller share; [`proxy`] is the other face, for servers
//!   that nothing can be preloaded into.
//! * [`drive`] puts load on real servers.
//!
//! One request through the shim: the server reads it; `walk` sees a request begin; `gate` says go or wait; the thread waits; an answer goes
//! out; `walk` sees it end, and whether a transaction stays open; `gate` hands the place on.
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
