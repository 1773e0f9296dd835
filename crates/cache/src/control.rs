//! Messages that the cache understands, and its reports.

use crate::config::Mode;
use plimsoll_stack::Message;
use serde::{Deserialize, Serialize};

/// The name that messages are addressed to.
pub(crate) const NAME: &str = "cache";

/// An operator's order, or a setting that changes while the cache serves.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum CacheControl {
    /// Write all dirty extents back.
    Flush,
    /// Use at most this many bytes of the device from now on.
    Bytes(u64),
    /// The next start knows that the device failed: its content is out of date.
    FailureNoted,
    /// The next start knows that this volume's dirty extents are given up, as the device failed.
    GiveUp {
        /// The volume's number.
        id: u32,
        /// The number's generation.
        generation: u32,
    },
    /// Keep fingerprints of this share of the extents (Nitro's fingerprint index ratio), 1 to 100 percent.
    FingerprintsPercent(u32),
    /// The device's failure can't be recorded before a restart: changes fail instead of waiting for that.
    FailureUnrecordable,
}

impl Message for CacheControl {
    const LAYER: &'static str = NAME;
}

/// A report to the pool's owner.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum CacheReport {
    /// The fast device failed. Changes wait until the owner has recorded that its content is out of date, and has answered with
    /// [`CacheControl::FailureNoted`]; or fail from its answer [`CacheControl::FailureUnrecordable`] on.
    DeviceFailed,
}

impl Message for CacheReport {
    const LAYER: &'static str = NAME;
}

/// A volume's terms, as far as the cache is concerned. A volume without them passes by.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CacheTerms {
    /// The volume's cache mode.
    pub mode: Mode,
    /// Deduplication reaches as far as this is the same: a stable name of the tenant, or 0 for all.
    pub domain: u64,
    /// Bytes of the cache that the volume may have where each volume has its own part.
    pub bytes: u64,
}

impl Message for CacheTerms {
    const LAYER: &'static str = NAME;
}

impl CacheTerms {
    /// A volume that passes by.
    pub const OFF: CacheTerms = CacheTerms { mode: Mode::Off, domain: 0, bytes: 0 };
}
