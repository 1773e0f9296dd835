//! The tuner (OpTune): settings chosen so that several points of a system's latency distribution are met at once.
#![forbid(unsafe_code)]

pub mod adapter;
pub mod cdf;
pub mod compose;
pub mod file;
pub mod graph;
pub mod objective;
pub mod profile;
pub mod record;
pub mod run;
pub mod screen;
pub mod shell;
pub mod solve;
pub mod source;
pub mod space;
