//! Layers as the node knows them outside their crates.

pub mod look;
