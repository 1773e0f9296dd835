//! The simulator's engine: virtual time, one seed, repeatable to the bit, with faults.

pub mod disk;
pub mod events;
pub mod hash;
pub mod oracle;
pub mod pool;
pub mod workers;

pub use disk::{Corruption, DiskFaults, SimDisk};
pub use events::EventQueue;
pub use hash::EventHash;
pub use pool::SimPool;
pub use workers::SimWorkers;
