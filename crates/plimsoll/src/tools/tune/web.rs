//! OpTune's web server, for real: static files over HTTP, a GDSF memory cache, a disk modelled in real time (§5.3.1).
//!
//! The server and its load are systems to try the tuner on, and to see what a setting does; the simulator has the same one
//! (`plimsoll-lab`'s `system::web`), with the same cache, disk and file sizes.

mod files;
mod load;
mod reply;
mod server;

pub use load::{WebLoad, WebSet};
pub use server::WebServer;

/// Under this path the server is set and asked; no file has such a name.
const CONTROL: &str = "/-/";
