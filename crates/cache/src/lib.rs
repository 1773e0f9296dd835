#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod allocation;
mod batch;
mod bits;
mod broken;
pub mod chunk;
pub mod config;
mod control;
mod destage;
mod dirty;
mod durability;
mod durable;
mod evict;
mod fingerprints;
pub mod format;
pub mod found;
mod gate;
pub mod index;
mod insert;
mod inserts;
pub mod journal;
pub mod layer;
pub mod layout;
mod packing;
mod parts;
pub mod place;
mod policy;
mod read;
mod recipes;
mod recover;
mod refused;
mod relearn;
pub mod replay;
mod request;
mod residency;
mod start;
mod state;
pub mod status;
pub mod streams;
pub mod table;
pub mod tasks;
mod truth;
mod volumes;
mod weu;
mod write;

pub use config::{CacheConfig, CacheVolume, Codec, Eviction, Hash, Mode, Planted, Shape, Sharing, Speeds};
pub use control::{CacheControl, CacheReport, CacheTerms};
pub use layer::{Cache, FAST, SLOW};
pub use layout::Layout;
pub use parts::WEUS_MIN;
pub use refused::WriteBackFails;
pub use status::{Activity, CacheStatus, Counters, LostRange, StartReport, VolumeStatus};

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
