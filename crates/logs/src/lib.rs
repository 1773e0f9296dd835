#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod adapt;
mod append;
mod clean;
pub mod config;
mod control;
mod flush;
pub mod format;
mod format_v1;
mod image;
pub mod layer;
pub mod layout;
mod layout_pages;
mod log;
pub mod mtl;
mod recover;
mod stale;
pub mod status;
mod walk;
mod witness;

pub use config::{Capacitor, CleanConfig, LogsConfig, OffHours, Planted};
pub use control::LogsControl;
pub use format::{Formatted, decode_layout, format_device, is_formatted, of_unknown_version};
pub use layer::Logs;
pub use layout::{BadLayout, Layout, Shape};
pub use status::{Activity, CleanReport, Counters, LogsStatus, RecoveryReport, Why};
