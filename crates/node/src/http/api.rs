//! The types of the API, for the node and for its clients. Times are in microseconds and sizes in bytes, as the fields' names
//! state. Rates are left to the reader, who has two answers and the time between them.

mod config;
mod connection;
mod error;
mod event;
mod inject;
mod node;
mod pool;
mod promise;
mod tenant;
mod trace;
mod volume;

pub use config::*;
pub use connection::*;
pub use error::*;
pub use event::*;
pub use inject::*;
pub use node::*;
pub use pool::*;
pub use promise::*;
pub use tenant::*;
pub use trace::*;
pub use volume::*;
