//! Options of reading a volume.

use crate::choice::{PolicyKind, PolicySettings};
use std::time::Duration;

/// Options for all reads of a volume.
#[derive(Clone, Debug)]
pub struct Options {
    /// Policy that chooses a replica.
    pub policy: PolicyKind,
    /// With what; a read's own deadline goes before `limit`.
    pub settings: PolicySettings,
    /// A read that has no limit of its own fails after this long.
    pub limit: Duration,
    /// A node from which nothing comes for this long, while something should, is given up; at least two seconds, as nodes
    /// are asked how they are every second.
    pub stall: Duration,
    /// Within this long a node must take a connection and agree on the export.
    pub connect: Duration,
    /// No read gives older data than one that ended before it began: what a replica says that hasn't seen the changes that
    /// another had seen isn't taken. Exact while one change at a time is under way: replicas may take several in different
    /// orders, and a count of changes doesn't say which. Ends where an operator has an older replica taken for right.
    pub monotonic: bool,
    /// The servers aren't Plimsoll's: no deadlines, no probes, no generations; and exports' names are left as they are. Without it such
    /// servers aren't read.
    pub foreign: bool,
    /// For policies that draw.
    pub seed: u64,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            policy: PolicyKind::MittWait,
            settings: PolicySettings::default(),
            limit: Duration::from_secs(30),
            stall: Duration::from_secs(5),
            connect: Duration::from_secs(5),
            monotonic: true,
            foreign: false,
            seed: 1,
        }
    }
}
