#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod conflicts;
pub mod front;
pub mod inside;
pub mod layer;
pub mod map;
pub mod message;
mod overlaps;
pub mod pieces;
pub mod ranges;
pub mod sim;
pub mod stack;
pub mod stats;
pub mod tape;
pub mod work;

pub use front::{Front, FrontVolume};
pub use layer::{Actions, Forecast, Layer, LayerState, Offer, Port, Ports, Terms, VolumeTerms};
pub use map::{Extent, Map};
pub use message::{Addressed, Message, OwnTerms};
pub use stack::{Offered, Stack, StackConfig, Target};
pub use stats::{AccountStats, NodeStats};
pub use work::{Answer, Task, Work, Worked};
