//! The live client: one volume that several nodes have, read with a deadline.
//!
//! ```text
//!  Volume::read ─► Driver (one lock) ── Course, policy ─► Link's cookie ─► socket ─► node
//!        ▲              ▲    ▲                                                        │
//!        └─ oneshot ────┘    └──── timers' task            link's task: bytes, probes ◄┘
//! ```
//! The [`Driver`](driver::Driver) does for sockets what the simulator does for its event queue. It passes events to a
//! [`crate::Course`] and carries out its orders, with the same policies. The thread that brings an event (a caller, a link's
//! task, the timers) takes the lock, and sends the course's orders at once. So a refusal is followed by a request to the next
//! node without another task being woken.
//!
//! Everything is bounded by the caller's limit ([`Options::limit`] where a read has none of its own). A node that hangs is
//! given up after [`Options::stall`]. Bytes that are no NBD end the connection. A node that is down is tried again in the
//! background. None of these nodes is asked meanwhile.

mod address;
mod blocking;
mod connect;
mod driver;
mod error;
mod home;
mod link;
mod options;
mod session;
mod stream;
mod timers;
mod tls;
mod volume;
mod writer;

pub use address::{Address, BadAddress};
pub use blocking::Blocking;
pub use driver::Counts;
pub use error::{OpenError, ReadError};
pub use link::LinkState;
pub use options::Options;
pub use session::{Health, Promised, Session};
pub use volume::{Ask, ReplicaStatus, Volume};
pub use writer::{WriteError, Writer};
