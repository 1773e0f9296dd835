//! Request shaping in front of a database that knows nothing of it (AppleS).
#![deny(unsafe_code)]

pub mod drive;
pub mod gate;
pub mod profile;
pub mod segment;
pub mod tune;
pub mod users;
pub mod walk;
