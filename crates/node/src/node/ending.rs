//! A node's end: since when, and which pools are done.

use super::{Node, RunningPool};
use crate::events::unix_us;

/// The end of a node that has begun.
#[derive(Clone, Debug)]
pub struct Ending {
    /// Microseconds since 1970.
    pub since_unix_us: u64,
    /// The pool whose thread ended before, which is the reason.
    lost: Option<String>,
}

impl Node {
    /// Notes that the node ends from now on. `lost` is the pool whose thread has ended, where that is the reason.
    pub fn begin_end(&self, lost: Option<String>) {
        self.ending.get_or_init(|| Ending { since_unix_us: unix_us(), lost });
    }

    /// The node's end, once it has begun.
    pub fn ending(&self) -> Option<&Ending> {
        self.ending.get()
    }

    /// True if a pool whose thread has ended did so in order, as the node ends.
    pub fn is_done(&self, pool: &RunningPool) -> bool {
        self.ending().is_some_and(|e| e.lost.as_ref() != Some(&pool.name))
            && pool.failed.is_none()
            && !pool.has_failed()
    }
}
