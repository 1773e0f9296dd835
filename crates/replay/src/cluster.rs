//! Many nodes, clients and the network between them, in one event queue.
//!
//! ```text
//!  gets ─► client: its policy chooses replicas ─► hop ─► node: stack over a device model ─► hop ─► client
//!                ▲  timers, second tries, cancels                ▲ noise of others
//! ```
//!
//! Each node is a whole [`Pool`](crate::Pool). Replicas are chosen by a [`ReplicaPolicy`](plimsoll_client::ReplicaPolicy), the
//! one that a live client has. A node's answers carry its requests in flight and its device's time. It answers probes, and
//! reports the start of a request's execution ([`Begins`]). All of these take the network's time.
//!
//! Compared policies have the same gets, with their arrivals, replicas and one random word each. They have the same noise and
//! devices, and the same hops' jitter of each message that both send. That jitter is drawn from the get, the try and the
//! direction, not from a stream that other messages draw from. So a difference between two runs with one seed is the policies'.
//!
//! The same seed gives the same [`ClusterMeasured::event_hash`]. Gets come in an open loop ([`Gets`]) or from users that wait
//! for their answers ([`Users`]). [`Clairvoyant`] has the best that could be gained under a seed.

mod begins;
mod cpu;
mod hogs;
mod oracle;
mod sim;
mod source;

pub use begins::Begins;
pub use cpu::HostCpu;
pub use hogs::Hog;
pub use oracle::{Clairvoyant, Foretold, gap_closed};
pub use sim::{Asking, Cluster, ClusterConfig, ClusterMeasured};
pub use source::{GetSource, Gets, GetsConfig, Noise, Users};
