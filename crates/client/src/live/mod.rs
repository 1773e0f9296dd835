//! The live client: one volume that several nodes have, read with a deadline.
//!
//! ```text
//!  Volume::read ─► Driver (one lock) ── Course, policy ─► Link's cookie ─► socket ─► node
//!        ▲              ▲    ▲                                                        │
//!        └─ oneshot ────┘    └──── timers' task            link's task: bytes, probes ◄┘
//! ```
//! The [`Driver`](driver::Driver) does for sockets what the simulator does for its event queue: it tells a [`crate::Course`] what
//! happened and carries out its orders, with the same policies. Whoever brings news (a caller, a link's task, the timers)
//! takes the lock, and what follows from it goes out at once, on that thread: a refusal is answered by a request to the next
//! node without another task being woken.
//!
//! Everything is bounded by the caller's limit ([`Options::limit`] where a read has none of its own): a node that hangs is
//! given up after [`Options::stall`], what it sends that is no NBD ends its connection, one that is down is tried again in the
//! background, and none of these is asked meanwhile.

mod address;
mod blocking;
mod connect;
mod driver;
mod error;
mod link;
mod options;
mod session;
mod stream;
mod timers;
mod volume;

pub use address::{Address, BadAddress};
pub use blocking::Blocking;
pub use driver::Counts;
pub use error::{OpenError, ReadError};
pub use link::LinkState;
pub use options::Options;
pub use session::{Health, Promised, Session};
pub use volume::{ReplicaStatus, Volume};
