//! Extents on their way from a device, and what each is for.

use crate::index::{Key, Loc};
use plimsoll_base::{Priority, TenantId};

/// The purpose of fetching an extent.
#[derive(Clone, Debug)]
pub(crate) enum Purpose {
    /// A piece of a client's read.
    Piece { op: usize, piece: usize },
    /// The rest of an extent that a client writes in part.
    Rest { op: usize },
    /// Writing it back: the partition, and which of its batch.
    Destage { part: u16, at: usize },
    /// Putting it in again, as its WEU leaves.
    Reinsert { token: u64 },
}

/// An extent on its way.
#[derive(Clone, Debug)]
pub(crate) struct Fetch {
    pub key: Key,
    /// Its place when this began; `None` for the slow device.
    pub loc: Option<Loc>,
    /// The wanted part of it: offset and length.
    pub wanted: (u64, u64),
    pub purpose: Purpose,
    pub tenant: TenantId,
    pub priority: Priority,
    /// The offset of the extent, or of its head, in the bytes read.
    pub at: u64,
    /// Others that want what this one reads.
    pub joined: Vec<usize>,
}
