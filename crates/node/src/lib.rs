//! A storage node.
pub mod config;
pub mod directory;
pub mod engine;
pub mod service;
pub mod tls;
