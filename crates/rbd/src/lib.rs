//! Ceph RBD images by librbd and librados, which are loaded at run time: nothing of Ceph is needed to build.
//!
//! * [`Libraries`] has the functions of the two libraries. All `unsafe` is in it and in the two below.
//! * [`Cluster`] is a connection with its settings; it also carries the monitors' and the manager's commands.
//! * [`Image`] is an open image: blocking calls for metadata, the exclusive lock, and [`Queue`] for data.
//! * [`Queue`] owns what is in flight. An event descriptor tells when something has completed, so that a pool's one loop can wait for
//!   it with everything else.
//!
//! The hot path here takes no lock and allocates nothing but the entry of a request (kept and reused). librbd does both: a completion is
//! an object of its own that can't be used twice, its own threads do the work, and at the event descriptor they queue under a lock.

mod api;
mod cluster;
mod error;
mod image;
mod queue;

pub use api::Libraries;
pub use cluster::Cluster;
pub use error::Error;
pub use image::{Closed, FENCE, Image, LEASE, LockState};
pub use queue::{Done, Queue};
