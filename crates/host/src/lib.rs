//! Host mode: reads with deadlines on a stock Linux kernel.
//!
//! The agent (feature `agent`; one a host, privileged) attaches BPF programs to the block layer, which keep each device's load and next free
//! time in memory that readers map. A [`Reader`] (in any process) forecasts from there, without a system call, asks the kernel
//! whether the pages are resident, and refuses a read that would be late: MittOS (§4.1, §4.4, §5) without a patch.
//!
//! ```text
//!  block layer ─► BPF ─► states (frozen map) ─────► Reader ─► resident? ─► read, or Busy{wait, confidence}
//!                  ▲ orders     │ timed reads          ▲
//!                  └────────── Agent ── notice (heartbeat, costs, errors)
//! ```
//! It knows nothing of volumes, nodes and the wire. Without an agent every read is a plain read.

pub mod accuracy;
#[cfg(feature = "agent")]
pub mod agent;
pub mod blame;
pub mod calibrate;
pub mod disk;
mod fetch;
pub mod forecast;
pub mod layout;
pub mod link;
mod mapped;
mod ordered;
mod reader;
mod resident;
pub mod say;
mod seen;
pub mod shared;

pub use reader::{Answer, Busy, Counts, Options, Reader};
