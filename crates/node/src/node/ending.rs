//! A node's end: since when, and which pools are done; volumes that an end left in doubt.

use super::{Node, RunningPool};
use crate::directory::Volume;
use crate::events::{Kind, Severity, unix_us};
use crate::replica::Behind;

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

    /// Adds an event on the volumes that may lack writes since an end that wasn't orderly, if there are such: of one pool, or of all.
    pub fn note_unclean(&self, pool: Option<usize>) {
        let is_asked = |v: &&Volume| pool.is_none_or(|pool| v.pool == pool);
        let note = self.directory_ref(|d| unclean_note(d.volumes.values().filter(is_asked)));
        note.into_iter().for_each(|note| self.events.add(Kind::Node, Severity::Warning, None, note));
    }
}

/// Volumes that are named in the note on ends that weren't orderly.
const NAMED_MOST: usize = 8;

/// Note on the volumes that may lack writes since an end of the node that wasn't orderly, if there are such. It is no problem: the node
/// serves them, and cannot know whether something is missing.
pub fn unclean_note<'a>(volumes: impl Iterator<Item = &'a Volume>) -> Option<String> {
    let marked = volumes.filter(|v| v.replica.behind() == Behind::Unclean);
    let names: Vec<&str> = marked.map(|v| v.name.as_str()).collect();
    let mut named = names[..names.len().min(NAMED_MOST)].join(", ");
    if names.len() > NAMED_MOST {
        named.push_str(", …");
    }
    (!names.is_empty()).then(|| {
        format!(
            "an end of the node wasn't orderly, or a pool's metadata were restored: writes that were acknowledged and not flushed may be \
             lost on volumes {named}: see \"After a restart that wasn't orderly\" in docs/guides/upgrade.md"
        )
    })
}
