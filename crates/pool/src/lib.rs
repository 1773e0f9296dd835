#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod build;
pub mod plan;
mod wiring;

pub use build::{FAST, Models, NVRAM, SLOW, Seen, UNLIMITED, build, compose, logs_layout, seen, zoned, zones_layout};
pub use plan::{
    BadPlan, BandsPlan, CachePlan, Costs, GivenUp, KnownVolume, LogsPlan, MemoryPlan, ModelPlan, NvramPlan, PoolPlan,
    SchedulerPlan,
};
pub use wiring::Wiring;
