//! Load for real servers: the smallest clients that can ask and wait, and workloads over them.

pub mod client;
pub mod workload;
