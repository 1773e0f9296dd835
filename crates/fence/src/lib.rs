//! Time fences (VirtualFence): a volume's performance doesn't depend on other volumes.
//!
//! Time is cut into slots, dealt out round robin. A slot belongs to one volume or to none, and only its owner's requests are served
//! in it. The promise: a fenced volume gets the time of its own slots, whatever other volumes ask for, and no time of others'
//! slots. The fence doesn't promise speed: an idle slot stays idle. In the hybrid service idle time is lent to volumes without a
//! promise, as long as that costs the slot's owner next to nothing.
//!
//! ```text
//!            slot 0: a      slot 1: b      slot 2: -      slot 3: a      slot 0: a
//!  disk   ├─a a a──┤  ├┤  ├─b b──────┼─┤                ├─a──┤
//!  flash  ├aa─┤aaa┤       ├b┤ b  b  b b                 ├aaaa┤
//!                   ▲ ends early:      ▲ overruns: flash is sent
//!                     credit             one at a time; debit
//! ```
//! The path of a request: [`Fence`] stands before the pool's devices, below the cache, with a face for each device. So it sees the
//! requests that a client's request became on each device. It puts each of them into its volume's queue for that device
//! ([`queue`]). When the [`timetable`] reaches the volume's slot, the largest batch goes out that is [`predict`]ed to end within
//! the slot. The next batch follows. The module [`slots`] has the owners of slots; [`mod@plan`] suggests their number and length.
//!
//! The crate has no clock, thread or engine. VirtualFence is by Li (dissertation, chapter 4); decisions are in
//! `docs/papers/virtualfence.md`.
#![forbid(unsafe_code)]

pub mod config;
mod control;
mod forecast;
pub mod idle;
pub mod layer;
pub mod plan;
pub mod predict;
pub mod queue;
pub mod slots;
mod state;
pub mod status;
pub mod timetable;
mod turn;

pub use config::{DeviceKind, FenceConfig, SLOTS_MAX};
pub use control::{FenceControl, FenceTerms};
pub use layer::Fence;
pub use predict::{DiskPredictor, FlashPredictor, Line, Predictor};
pub use status::{FenceStatus, SlotStatus, VolumeStatus};
