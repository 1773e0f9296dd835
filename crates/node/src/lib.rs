//! A storage node.
pub mod cache;
pub mod config;
pub mod cores;
pub mod directory;
pub mod engine;
pub mod fence;
pub mod http;
pub mod knobs;
pub mod logs;
pub mod node;
pub mod open;
mod predict;
pub mod replica;
pub mod serve;
pub mod service;
mod store;
pub mod tls;
pub mod view;
