//! The tuner (OpTune): settings chosen so that several points of a system's latency distribution are met at once.
#![forbid(unsafe_code)]

pub mod cdf;
pub mod compose;
pub mod graph;
pub mod objective;
pub mod profile;
pub mod solve;
pub mod space;
