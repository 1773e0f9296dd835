//! Many nodes, clients and the network between them, in one event queue.
//!
//! ```text
//!  gets ─► client: its policy chooses replicas ─► hop ─► node: stack over a device model ─► hop ─► client
//!                ▲  timers, second tries, cancels                ▲ noise of others
//! ```
//!
//! Each node is a whole [`Pool`](crate::Pool); what chooses replicas is a
//! [`ReplicaPolicy`](plimsoll_client::ReplicaPolicy), the one that a live client has. A node's answers carry how many requests are
//! in it and how long its device took; it answers probes, and tells when it begins to execute what it is to tell of ([`Begins`]):
//! all of these take the network's time. What
//! compared policies share: the gets with their arrivals, replicas and one random word each; the noise; the devices;
//! and the hops' jitter of each message that both send (it is drawn from the get, the try and the direction, not from a
//! stream that other messages draw from). So a difference between two runs with one seed is the policies'.
//!
//! The same seed gives the same [`ClusterMeasured::event_hash`]. Gets come in an open loop ([`Gets`]) or from users that wait for
//! their answers ([`Users`]). What could be gained at best under a seed is [`Clairvoyant`]'s.

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
