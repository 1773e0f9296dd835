//! Schedulers, each with the predictor of a request's wait in it.
//!
//! A scheduler is the last layer above a device. It decides the order of requests and the number that the device has at once,
//! and a forecast ends in it. It knows `plimsoll-stack` and no device: a profile holds the device's costs, or the scheduler
//! learns them from completions.
#![forbid(unsafe_code)]

pub mod admission;
pub mod auto;
pub mod batches;
pub mod blackbox;
pub mod budgets;
mod buffer;
pub mod cfq;
pub mod choice;
pub mod deadline;
pub mod decision;
pub mod device;
pub mod disk;
pub mod expected;
mod fifo;
pub mod inject;
pub mod measure;
pub mod noop;
pub mod ordered;
pub mod osds;
pub mod profile;
pub mod room;
pub mod ssd;
#[cfg(test)]
mod testing;
mod tree;

pub use cfq::{Cfq, CfqConfig, Late};
pub use choice::{SchedulerKind, SchedulerOptions, SchedulerView};
pub use deadline::{Deadline, DeadlineConfig};
pub use device::Discipline;
pub use disk::{DiskModel, Precision};
pub use noop::{Noop, NoopConfig};
pub use profile::{BadProfile, Profile};
