//! The live engine: one thread per pool that owns everything the pool has.
//!
//! The thread waits in one place (the ring) for any event: bytes from clients, answers of devices, a layer's timer, a command. It passes the
//! event to the stack, carries out the stack's orders, and waits again. No lock is taken and nothing is logged per request.

mod auto_deadline;
mod clients;
mod command;
mod conn;
mod deletions;
mod device;
mod exports;
mod failures;
mod inbox;
mod inject;
mod lag;
pub mod lateness;
pub mod metrics;
mod nvme;
mod outbox;
mod patience;
mod permits;
mod pool;
mod promise;
pub mod recent;
pub mod refusals;
mod requests;
mod ring;
mod slow;
mod statuses;
mod syncs;
pub mod tape;
mod terms;
mod trace;
mod volatile;
pub mod watchdog;
mod withdrawal;
mod workers;

pub use auto_deadline::AutoTerms;
pub use command::{
    CONNECTIONS_MAX, ClientFilter, Command, Connection, Health, Look, PoolGone, PoolHandle, PoolReceiver, PoolSnapshot,
    Recovered, Reply,
};
pub use conn::{DeadlineFrom, ExportParams, Wire};
pub use device::{Device, Devices, FileDevice, RbdDevice};
pub use inbox::is_disconnect;
pub use inject::{Fault, InjectTerms, InjectView, Only};
pub use nvme::{HostId, QueueParams};
pub use permits::PermitLimits;
pub use pool::{Pool, PoolOptions, Report};
pub use ring::check_io_uring;
pub use trace::Trace;
pub use volatile::VolatileFile;
pub(crate) use workers::{check_allowed, check_cpus};
