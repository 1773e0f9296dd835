//! Many nodes, clients and the network between them, in one event queue.
//!
//! ```text
//!  gets ─► client: its policy chooses replicas ─► hop ─► node: stack over a device model ─► hop ─► client
//!                ▲  timers, second tries, cancels                ▲ noise of others
//! ```
//!
//! Each node is a whole [`Pool`]; what chooses replicas is a [`ReplicaPolicy`], a pure state machine like a layer. What
//! compared policies share: the gets with their arrivals, replicas and one random word each; the noise; the devices;
//! and the hops' jitter of each message that both send (it is drawn from the get, the try and the direction, not from a
//! stream that other messages draw from). So a difference between two runs with one seed is the policies'.
//!
//! The same seed gives the same [`ClusterMeasured::event_hash`]. Gets come in an open loop ([`Gets`]) or from users that wait for
//! their answers ([`Users`]). What could be gained at best under a seed is [`Clairvoyant`]'s.

mod oracle;
mod sim;
mod source;

pub use oracle::{Clairvoyant, Foretold, gap_closed};
pub use sim::{Cluster, ClusterConfig, ClusterMeasured};
pub use source::{GetSource, Gets, GetsConfig, Noise, Users};

use plimsoll_base::{Span, Time};

/// A read of one object that has several replicas.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Get {
    /// Counts all gets of the run from 0.
    pub number: u64,
    /// When the user asked.
    pub arrived_at: Time,
    /// Whose client.
    pub client: u16,
    /// The nodes that have it, in the order of the data's placement.
    pub replicas: Box<[u16]>,
    /// Where it is on each of them.
    pub offset: u64,
    /// How many bytes.
    pub len: u64,
    /// For policies that choose at random: the same under all of them.
    pub draw: u64,
}

/// What came back of one try.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reply {
    /// The bytes.
    Done,
    /// Refused, at once or later: it would have waited so long.
    Busy(Span),
    /// An error, or the node had no room.
    Failed,
}

/// What a policy wants done for a get.
#[derive(Default, Debug)]
pub struct Orders {
    pub(crate) sends: Vec<(u16, Option<Span>)>,
    pub(crate) cancels: Vec<u32>,
    pub(crate) timers: Vec<Time>,
    pub(crate) tries: u32,
}

impl Orders {
    /// Sends the get to `node`, to be refused there if it would take longer than `deadline` from its arrival there.
    /// Gives the try's number, counted from 0 for each get.
    pub fn send(&mut self, node: u16, deadline: Option<Span>) -> u32 {
        self.sends.push((node, deadline));
        self.tries += 1;
        self.tries - 1
    }

    /// Sends a cancel after a try; what a device has begun, it finishes.
    pub fn cancel(&mut self, a_try: u32) {
        self.cancels.push(a_try);
    }

    /// Asks for [`ReplicaPolicy::timer`] at `at`, if the get hasn't ended by then.
    pub fn wake_at(&mut self, at: Time) {
        self.timers.push(at);
    }
}

/// Chooses among replicas, for one client. It reads no clock and draws nothing.
pub trait ReplicaPolicy {
    /// A get begins: orders at least one try.
    fn begin(&mut self, now: Time, get: &Get, out: &mut Orders);

    /// A try of a get that hasn't ended was refused or failed. If nothing is under way then and nothing is ordered, the
    /// get has failed.
    fn refused(&mut self, now: Time, get: &Get, a_try: u32, reply: Reply, out: &mut Orders);

    /// A time asked for has come, and the get hasn't ended.
    fn timer(&mut self, now: Time, get: &Get, out: &mut Orders) {
        let _ = (now, get, out);
    }

    /// Try `a_try` was the first to bring the bytes; `None`: the get has failed. Only cancels can be ordered.
    fn ended(&mut self, now: Time, get: &Get, a_try: Option<u32>, out: &mut Orders) {
        let _ = (now, get, a_try, out);
    }

    /// An answer to a try after its get had ended, for what learns from all answers.
    fn too_late(&mut self, now: Time, node: u16, reply: Reply) {
        let _ = (now, node, reply);
    }
}
