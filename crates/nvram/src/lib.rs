#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod layer;
mod planted;
mod ring;

pub use layer::{DEVICE, NVRAM, Nvram};
pub use planted::Planted;
pub use ring::RecordOf;
