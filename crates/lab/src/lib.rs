//! The lab: traces and workloads (what a stack is fed with, recorded or made up), their replay on simulated pools, and
//! the experiments built on that.
//!
//! * [`trace`] reads public block-trace formats as one stream of [`trace::TraceRecord`]s, writes them, and holds the
//!   tools on them: describe, cut, mix, re-rate, convert.
//! * [`workload`] generates the same records (open loop: arrival times are given) or answers completions with the
//!   next requests (closed loop: think times and sync points).
//! * [`lru`] replays a trace through a plain LRU cache, to compare our reading of a trace with other simulators'.
//! * [`replay`] drives one simulated pool, scheduler over device model, with either, and measures it.
//! * [`system`] has the systems that the tuner is shown on.
//! * [`experiment`] holds the papers' experiments by the ids of our checklist, and runs them over seeds.
//! * [`plot`] and [`report`] draw distributions and write the HTML page; [`table`] writes results as CSV and Parquet.
//!
//! The crate promises: memory that does not grow with the length of a trace (each structure that grows with
//! something else says so), the same output for the same seed, and an error with file and line for whatever a trace
//! file holds. It refuses to know the live engine, clocks and the command line; policies and models it knows through
//! the stack's contract.
//!
//! One request's path: file → [`trace::TraceReader::open`] → decompression → detected format's parser → re-ordering
//! window → [`trace::TraceRecord`] → (tools: cut, mix, rerate) → [`replay`], or a [`trace::TraceWriter`].
#![forbid(unsafe_code)]

pub mod cluster;
pub mod database;
mod decided;
pub mod experiment;
pub mod lru;
pub mod nitro;
pub mod plot;
pub mod profiling;
pub mod replay;
pub mod report;
pub mod system;
pub mod table;
pub mod trace;
pub mod workload;

#[doc(hidden)]
pub use trace::fuzz as fuzzing;
