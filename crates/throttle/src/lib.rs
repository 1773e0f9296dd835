#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod bucket;
mod layer;
mod terms;

pub use layer::{Throttle, ThrottleStatus};
pub use terms::{Limit, ThrottleTerms};
