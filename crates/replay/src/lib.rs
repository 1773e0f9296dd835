//! Replay: a trace or a workload against one simulated pool, as fast as it goes.
//!
//! ```text
//!  trace / generator ──arrival──► offer (forecast, accept or busy) ─► scheduler ─► device model
//!                                                                          │
//!            Measured ◄── response time, from the trace's arrival ◄── completion
//! ```
//! One pool needs no event queue: the next event is the earlier of the next arrival and the stack's next wake-up. Open loop
//! ([`open_loop`]): requests arrive at their own times. A request that finds the pool full waits outside, and its response time
//! counts from its arrival all the same. Closed loop ([`closed_loop`]): simulated threads wait for their answers. Memory is
//! that of the pool's bound, whatever the length of the trace.
//!
//! * [`workload`] generates requests: in an open loop (arrival times are given) or a closed one (completions bring the next).
//! * [`cluster`] puts many pools, their clients and the network into one event queue.
//! * [`storage`] is a modelled disk with readers and timers in virtual time, [`real_disk`] the same disk in real time.
//! * [`lru`] and [`gdsf`] are plain caches, to compare with.
//! * [`decided`] hashes the decisions of all pools of a sample.
//!
//! The same seed gives the same output. The crate refuses to know the live engine and the command line; policies and models it
//! knows through the stack's contract.
#![forbid(unsafe_code)]

pub mod address;
pub mod closed;
pub mod cluster;
pub mod decided;
pub mod gdsf;
pub mod lru;
pub mod measure;
pub mod open;
pub mod pool;
pub mod real_disk;
pub mod report;
pub mod settings;
pub mod storage;
pub mod workload;

pub use address::Placer;
pub use closed::{closed_loop, closed_loop_watched};
pub use measure::Measured;
pub use open::{Limits, open_loop, open_loop_watched, volume_of};
pub use pool::{DeviceChoice, Pool, PoolConfig, device_names};
pub use report::ReplayReport;
pub use settings::ReplaySettings;
