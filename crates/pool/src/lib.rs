#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod build;
pub mod plan;
mod wiring;

pub use build::{FAST, NVRAM, SLOW, Seen, build, seen};
pub use plan::{
    BadPlan, CachePlan, Costs, GivenUp, KnownVolume, LogsPlan, MemoryPlan, ModelPlan, NvramPlan, PoolPlan,
    SchedulerPlan,
};
