//! A storage node.
pub mod config;
pub mod directory;
pub mod engine;
pub mod http;
pub mod logs;
pub mod node;
pub mod predict;
pub mod serve;
pub mod service;
pub mod tls;
pub mod view;
