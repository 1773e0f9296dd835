#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod ahead;
mod batch;
mod bits;
pub mod chunk;
pub mod config;
mod control;
mod dirty;
mod durability;
mod fetch;
mod fingerprints;
pub mod format;
pub mod found;
mod gate;
pub mod index;
mod inserts;
pub mod journal;
pub mod layout;
mod packing;
mod parts;
pub mod place;
mod policy;
mod recipes;
mod recover;
mod refusals;
mod relearn;
pub mod replay;
mod request;
mod residency;
mod serve;
mod state;
pub mod status;
pub mod streams;
pub mod table;
pub mod tasks;
mod volumes;
mod weu;

pub use config::{Admission, CacheConfig, CacheVolume, Codec, Eviction, Hash, Mode, Planted, Shape, Sharing, Speeds};
pub use control::{CacheControl, CacheReport, CacheTerms};
pub use layout::Layout;
pub use parts::WEUS_MIN;
pub use serve::{Cache, FAST, SLOW};
pub use status::{Activity, CacheStatus, Counters, LostRange, StartReport, VolumeStatus, WriteBackFails};

/// Writes that make a cache of a fast device: places and bytes, in this order. The page is last: until then there is no cache.
pub fn format_device(layout: &Layout, generation: u16) -> Vec<(u64, Vec<u8>)> {
    let first = format::JournalBlock {
        salt: layout.salt,
        epoch: 2,
        index: 0,
        since: 0,
        snapshot: 2,
        generation,
        durable: 0,
        records: Vec::new(),
    };
    let first = first.encode(layout.block_bytes);
    let [one, other] = layout.copies_at(2);
    vec![(one, first.clone()), (other, first), (0, layout.encode())]
}
