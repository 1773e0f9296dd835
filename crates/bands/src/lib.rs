#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod config;
mod layer;
mod map;
mod pieces;
mod rewrite;
mod shape;

pub use config::{BandsConfig, Planted};
pub use layer::{Bands, BandsStatus, Counters};
pub use map::format_device;
pub use shape::{BadShape, Place, Places, Shape};
