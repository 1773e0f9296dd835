#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod build;
pub mod plan;
mod wiring;

pub use build::{FAST, Models, NVRAM, SLOW, Seen, UNLIMITED, build, compose, seen};
pub use plan::{
    BadPlan, CachePlan, Costs, GivenUp, KnownVolume, LogsPlan, MemoryPlan, ModelPlan, NvramPlan, PoolPlan,
    SchedulerPlan,
};
pub use wiring::Wiring;
