//! A storage node.
pub mod config;
pub mod engine;
