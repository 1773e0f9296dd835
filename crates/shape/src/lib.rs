//! Request shaping in front of a database that knows nothing of it (AppleS).
#![deny(unsafe_code)]

pub mod gate;
pub mod walk;
pub mod segment;
pub mod users;
pub mod profile;
pub mod drive;
