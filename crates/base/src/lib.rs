//! The words every Plimsoll crate shares: instants and spans, requests and their outcomes, tenants and their
//! promises, buffers, seeded randomness and latency histograms.
//!
//! This crate knows nobody: no layer, no engine, no device, no clock.
#![forbid(unsafe_code)]

pub mod hist;
pub mod rng;
pub mod time;

pub use hist::LatencyHistogram;
pub use rng::Rng;
pub use time::{Span, Time};
