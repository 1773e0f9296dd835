//! A Plimsoll pool as a system to tune, in the simulator: scheduler, depth and `idle_time` as parameters, a workload as the
//! load. (A live node is tuned through the shell adapter: docs/tuner.md.)

use crate::experiment::LabError;
use crate::replay::{DeviceChoice, Limits, Pool, PoolConfig, open_loop_watched};
use crate::system::set_each;
use crate::trace::record::{Tables, TraceRecord};
use crate::trace::stream::Held;
use plimsoll_base::{Span, Time};
use plimsoll_sched::SchedulerKind;
use plimsoll_tune::adapter::{Adapter, AdapterError, Run};
use plimsoll_tune::graph::{ServiceGraph, WrittenGraph};
use plimsoll_tune::profile::Observation;
use plimsoll_tune::space::{Parameter, Setting, Space};

/// A pool that serves its records window by window, each under the setting that is then in place.
pub struct NodePool {
    device: DeviceChoice,
    records: Vec<TraceRecord>,
    next: usize,
    config: PoolConfig,
    space: Space,
}

/// One component: the whole request.
pub fn graph() -> ServiceGraph {
    let written: WrittenGraph = toml::from_str("root = 'request'\ncomponents = ['request']").expect("a constant");
    ServiceGraph::new(&written).expect("a constant")
}

/// Schedulers and depths.
pub fn space() -> Space {
    let p = |name: &str, values: Vec<String>| Parameter { name: name.into(), values, moves: vec!["request".into()] };
    let scheds = SchedulerKind::FOR_DISKS.iter().map(|s| s.name().to_string()).collect();
    let depths = [1, 2, 4, 8, 16].iter().map(u32::to_string).collect();
    Space::new(vec![p("sched", scheds), p("depth", depths)]).expect("distinct values")
}

impl NodePool {
    /// Serves `records`, in the order of time, on the device of that name; they repeat.
    ///
    /// # Errors
    /// If there is no such device, or no record.
    pub fn new(device: &str, records: Vec<TraceRecord>, seed: u64) -> Result<NodePool, LabError> {
        if records.is_empty() {
            return Err(LabError("a pool without requests can't be tuned".into()));
        }
        let config = PoolConfig { seed, mismatch: 0.15, ..PoolConfig::default() };
        Ok(NodePool { device: DeviceChoice::named(device)?, records, next: 0, config, space: space() })
    }
}

impl Adapter for NodePool {
    fn apply(&mut self, setting: &Setting) -> Result<(), AdapterError> {
        set_each(&self.space, setting, "a pool", |name, value| {
            match name {
                "sched" => self.config.sched = value.parse().ok()?,
                "depth" => self.config.depth = value.parse().ok()?,
                _ => return None,
            }
            Some(())
        })
    }

    fn measure(&mut self, time: Span) -> Result<Run, AdapterError> {
        let told = |e: &dyn std::fmt::Display| AdapterError(e.to_string());
        let base = self.records[self.next].arrived_at;
        let mut window: Vec<TraceRecord> = Vec::new();
        while self.next < self.records.len() && self.records[self.next].arrived_at.since(base) < time {
            let mut r = self.records[self.next];
            r.arrived_at = Time::ZERO + r.arrived_at.since(base);
            window.push(r);
            self.next += 1;
        }
        self.next %= self.records.len();
        let mut pool = Pool::new(&self.device, &self.config).map_err(|e| told(&e))?;
        let mut source = Held::new(window, Tables::new());
        let mut all: Vec<Observation> = Vec::new();
        let mut watch = |now: Time, c: &plimsoll_base::Completion| {
            let value = now.since(c.io.arrived_at).as_millis_f64();
            all.push(Observation { request: all.len() as u64, value, weight: 1.0 });
        };
        open_loop_watched(&mut pool, &mut source, &Limits::default(), &mut |_, _| {}, &mut watch)
            .map_err(|e| told(&e))?;
        Ok(Run::from([("request".to_string(), all)]))
    }
}
