//! A storage node.
pub mod config;
pub mod crowd;
pub mod directory;
pub mod engine;
pub mod events;
pub mod http;
pub mod look;
mod memory;
pub mod node;
mod notify;
pub mod objectives;
pub mod open;
pub mod panics;
pub mod parts;
pub mod plan;
mod planted;
mod predict;
mod rbd;
pub mod reload;
pub mod replica;
pub mod seats;
pub mod secrets;
pub mod serve;
pub mod service;
mod store;
pub mod tls;
mod turns;
pub mod view;

/// Time for which the owner of an RBD image may answer from its caches after its lock was last confirmed.
pub use plimsoll_rbd::LEASE as LOCK_LEASE;
