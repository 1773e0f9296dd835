//! Common part of Nitro's experiments: generated traces, the two backends of the paper as models, a plain extent cache to
//! compare with, and a machine that replays a trace on all of it in virtual time.
//!
//! ```text
//!  clients ──► the flash cache, or a plain one ──► SSD model ──► what it holds
//!                              └──► backend (NVRAM, then plain RAID-like, or deduplicating with recipes) ──► array of disk models
//! ```
//! Contents are names: equal names are equal contents, and a name says how well its content compresses (NI-M25).

pub mod backend;
pub mod contents;
pub mod dedup_store;
pub mod extent_cache;
pub mod machine;
pub mod traces;

/// The unit of all of it.
pub const EXTENT_BYTES: u64 = 8 << 10;
