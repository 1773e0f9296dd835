//! Requests under way: clients' and the cache's own, and what each is for.

use crate::index::Key;
use plimsoll_base::{Data, IoError, IoHead, Outcome, Span, Time};

/// Time between two tries to write back what the slow device refused.
pub(crate) const RETRY: Span = Span::from_secs(1);

/// A client's request under way.
pub(crate) struct ClientOp {
    pub head: IoHead,
    pub data: Data,
    /// Parts that haven't ended.
    pub outstanding: u32,
    pub failed: Option<IoError>,
    /// The whole of it was refused below.
    pub busy: Option<Outcome>,
    pub dispatched_at: Time,
    /// A read's answer: lengths and data, in order.
    pub pieces: Vec<(u64, Data)>,
    /// Nothing of it needed the slow device.
    pub hit: bool,
    /// A change's ranges that go to the slow device.
    pub through: Vec<(u64, u64)>,
    /// Extents of those ranges, and whether they were cached.
    pub touched: Vec<(Key, bool)>,
    /// Extents that it changes in the cache.
    pub locked: Vec<Key>,
    /// It must be durable before it ends.
    pub flush_after: bool,
    /// The content that went through may be cached at its end: the slow device has lost nothing meanwhile.
    pub fills: bool,
}

/// The purpose of a request that was sent below.
pub(crate) enum Pending {
    /// A client's request that passes by; if it's a flush, what it covers.
    Pass {
        head: IoHead,
        covers: Option<Covers>,
    },
    /// A client's BLOCK_STATUS, and the runs that are data whatever the slow device says.
    Status {
        head: IoHead,
        runs: Vec<std::ops::Range<u64>>,
    },
    /// A run of a client's read: the piece, where the run began, and the fills' token.
    Run {
        op: usize,
        piece: usize,
        from: u64,
        len: u64,
        token: u64,
    },
    /// A part of a client's change.
    Through {
        op: usize,
    },
    /// A client's flush, at the slow device.
    SlowFlush {
        op: usize,
        covers: Covers,
    },
    /// The cache's own, before something that the slow device may still lose counts as cached.
    Settle(Covers),
    /// A fetch, at either device.
    Fetch(usize),
    /// A read ahead, or a fill of its own.
    Fill {
        key: Key,
        count: u64,
        token: u64,
        ahead: bool,
    },
    Chunk {
        weu: u32,
        first_slot: u32,
    },
    Journal,
    FastFlush,
    /// A flush of the fast device, for WEUs being confirmed.
    Confirm,
    EvictHeader(u32),
    /// A header, once more, of a WEU under a number.
    Relearn {
        weu: u32,
        sequence: u64,
    },
    Trim(u32),
    /// A piece of a partition's batch.
    Destage {
        part: u16,
        first: usize,
        count: usize,
    },
    DestageFlush {
        part: u16,
    },
    Recovery(u32),
    /// The flush after a recovery.
    StartFlush,
    /// The page that makes a device one of this version.
    Upgrade,
    /// A page of a recipe.
    Recipe(Key),
}

/// A volume, and how many of its changes a flush of the slow device covers.
pub(crate) type Covers = (u16, u64);

/// The purpose of a worker's task.
pub(crate) enum WorkFor {
    Fingerprint(usize),
    Pack(usize),
    Unpack(usize),
}

/// Pieces of data as one.
pub(crate) fn join(mut pieces: Vec<(u64, Data)>) -> Data {
    if pieces.len() == 1 {
        return pieces.pop().expect("one").1;
    }
    if pieces.iter().all(|(_, d)| matches!(d, Data::Absent)) {
        return Data::Absent;
    }
    Data::Parts(pieces.into())
}
