//! Forecasts of a whole stack against actual times, with a queue of ten in each of its layers.
//!
//! The parts of a forecast come from the layers one by one; only a whole stack shows whether their sum is right. Each
//! combination of layers has a load that keeps the queues of its own layers full. So the number of outstanding reads differs
//! between combinations. The queues:
//!
//! * ten reads at the device, and ten in the scheduler;
//! * with logs: ten small writes in them;
//! * with a page cache: about ten background reads;
//! * with cores: ten requests of each tenant that wait for a core;
//! * with a fence: ten requests that wait for their slot.
//!
//! Now and then a probe is read. There are three kinds, in turn:
//!
//! * *alone*: at an address that no other request in flight has;
//! * *blocked*: at an address at which ten writes wait for each other in the front;
//! * *cached*, with a flash cache only: at an address in the cache, behind ten reads at the flash drive and ten in its scheduler.

mod bench;
mod stacks;

use crate::experiment::stats::quantile;
use crate::experiment::{Check, Experiment, Inputs, LabError, RowSpec, Sample};
use bench::{Bench, Seen};
use plimsoll_base::{TenantId, VolumeKey};
use plimsoll_profile::profile_of;
use plimsoll_replay::DeviceChoice;
use plimsoll_sched::Profile;
pub use stacks::{COMBINATIONS, Combination, plan};

/// See the module's documentation.
pub struct ComposedForecasts;

const DEVICE: &str = "hdd-160g-7200";
const SPREAD: f64 = 0.15;
/// Depth of each queue.
const DEEP: u64 = 10;
const BLOCK: u64 = 4096;
/// Addresses of a volume that are used: enough for the arm to move.
const BYTES: u64 = 64 << 30;
/// The probes' volume and tenant, and the others.
const VOLUME: VolumeKey = VolumeKey { id: 1, generation: 1 };
const CRITICAL: TenantId = TenantId(1);
const OTHER_VOLUME: VolumeKey = VolumeKey { id: 2, generation: 1 };
const OTHER: TenantId = TenantId(2);
/// Rounds that only teach.
const TAUGHT: u64 = 60;
const TAUGHT_BRIEF: u64 = 12;

/// Obstacle in front of a probe.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Probe {
    /// Nobody else is at its place.
    Alone,
    /// Ten wait for each other there.
    Blocked,
    /// The flash cache has it.
    Cached,
}

/// The last one only where there is a cache.
const PROBES: [Probe; 3] = [Probe::Alone, Probe::Blocked, Probe::Cached];

impl Probe {
    fn name(self) -> &'static str {
        match self {
            Probe::Alone => "a place of its own",
            Probe::Blocked => "behind ten in the front",
            Probe::Cached => "what the cache has",
        }
    }
}

fn probes(c: &Combination) -> &'static [Probe] {
    if c.cache { &PROBES } else { &PROBES[..2] }
}

/// Bias in percent of the time that probes took, p95 of the absolute error in ms, and the mean time.
fn judged(seen: &[Seen]) -> Option<[f64; 3]> {
    let n = seen.len() as f64;
    let took: f64 = seen.iter().map(|s| s.took).sum();
    let bias: f64 = seen.iter().map(|s| s.took - s.forecast).sum();
    let mut errors: Vec<f64> = seen.iter().map(|s| (s.took - s.forecast).abs()).collect();
    errors.sort_by(f64::total_cmp);
    (n > 0.0 && took > 0.0).then(|| [100.0 * bias / took, quantile(&errors, 0.95), took / n])
}

/// By kind of probe.
fn measure(c: &Combination, profile: &Profile, seed: u64, inputs: &Inputs) -> Result<Vec<Option<[f64; 3]>>, LabError> {
    let mut bench = Bench::new(c, profile, seed)?;
    let rounds = inputs.length(420, 60, 12);
    let taught = inputs.length(TAUGHT, TAUGHT, TAUGHT_BRIEF);
    for round in 0..taught + rounds {
        if round == taught {
            bench.seen.iter_mut().for_each(Vec::clear);
        }
        bench.round(round);
    }
    Ok(bench.seen[..probes(c).len()].iter().map(|seen| judged(seen)).collect())
}

impl Experiment for ComposedForecasts {
    fn id(&self) -> &'static str {
        "MT-FORECAST"
    }
    fn title(&self) -> &'static str {
        "Forecasts of whole stacks, with a queue ten deep in each layer"
    }
    fn source(&self) -> &'static str {
        "beyond MittOS: its predictors are judged one by one"
    }
    fn version(&self) -> u32 {
        2
    }
    fn device(&self) -> &'static str {
        DEVICE
    }
    fn notes(&self) -> Vec<String> {
        vec![
            "all stacks have a front and a map; random requests of 4 KiB, ten each: reads at the device and in the scheduler, small writes \
             to logs, background reads of the page cache after refusals; with cores (one for the tenant of the probes, which has an \
             objective, and one for the other) ten of each tenant wait for theirs; with a fence two volumes have every other slot of 250 ms \
             and 40 reads outstanding each"
                .into(),
            "probes in turn: at a place of their own, behind ten writes of their place in the front, and of what the flash cache has, behind \
             ten at the flash drive and ten in its scheduler"
                .into(),
            "the drives differ from those that were profiled by ±15 % per component, drawn by the seed; the flash drive's costs and all that \
             isn't the disk's are learned; the first 60 rounds only teach; nothing is in order, so the flash cache's read-ahead is off"
                .into(),
            "bias: what probes took less what was forecast, in percent of what they took".into(),
        ]
    }
    fn rows(&self, _inputs: &Inputs) -> Vec<RowSpec> {
        let mut rows = Vec::new();
        for c in &COMBINATIONS {
            for probe in probes(c) {
                let row = |what: &str, unit| RowSpec::new(format!("{}, {}: {what}", c.name, probe.name()), unit);
                rows.push(row("bias", "%").goal(Check::Within(-10.0, 10.0)));
                rows.push(row("p95 error", "ms"));
                rows.push(row("took, mean", "ms"));
            }
        }
        rows
    }
    fn sample(&self, seed: u64, inputs: &Inputs) -> Result<Sample, LabError> {
        let choice = DeviceChoice::named(DEVICE)?;
        let profile = profile_of(choice.disk()?, 1, 10).map_err(|e| LabError(e.to_string()))?;
        let mut values = Vec::new();
        for c in &COMBINATIONS {
            for of_probe in measure(c, &profile, seed, inputs)? {
                values.extend(of_probe.map_or([None; 3], |v| v.map(Some)));
            }
        }
        Ok(Sample { values, plots: Vec::new(), notes: Vec::new() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_cores::Cores;
    use plimsoll_device::PageCacheLayer;
    use plimsoll_fence::Fence;
    use plimsoll_sched::cfq::Cfq;
    use plimsoll_stack::Front;

    /// Every queue is there when a probe comes, in every combination; and a forecast is of the size of what happens.
    #[test]
    fn each_layer_is_ten_deep_and_forecasts_are_of_the_right_size() {
        let choice = DeviceChoice::named(DEVICE).unwrap();
        let profile = profile_of(choice.disk().unwrap(), 1, 4).unwrap();
        for c in &COMBINATIONS {
            let mut b = Bench::new(c, &profile, 1).unwrap();
            for round in 0..60 {
                b.round(round);
            }
            b.prepare(Probe::Blocked);
            let stack = &b.pool.stack;
            assert_eq!(stack.layer::<Front>().expect("a front").waiting() as u64, DEEP, "{}", c.name);
            let deep = |n: u64, at: &str| assert!(n >= DEEP, "{}: {n} {at}", c.name);
            if !c.fence {
                // Between two slots a fenced device has nothing.
                // The flash drive's own scheduler is another one.
                let cfq = stack.layer::<Cfq>().map(Cfq::depths);
                let (waiting, at_device) = cfq.unwrap_or_else(|| {
                    let view = plimsoll_sched::choice::view(stack).expect("a scheduler");
                    (view.waiting, view.at_device)
                });
                deep(at_device as u64, "at the device");
                deep(waiting as u64, "in the scheduler");
            }
            if let Some(cores) = stack.layer::<Cores>() {
                cores.queues().all().iter().for_each(|q| deep(q.waiting().len() as u64, "wait for a core"));
            }
            if let Some(fence) = stack.layer::<Fence>() {
                fence.status(b.now).volumes.iter().for_each(|v| deep(v.waiting, "wait for their slot"));
            }
            if stack.layer::<PageCacheLayer>().is_some() {
                let at = (0..stack.len()).find(|&n| stack.node_stats(n).0 == "pagecache").expect("just seen");
                deep(stack.node_stats(at).1.own_ios / 20, "background reads");
            }
            for (kind, probe) in probes(c).iter().enumerate() {
                let seen = &b.seen[kind];
                assert!(seen.len() >= 20, "{}: {}", c.name, probe.name());
                let (told, took) = seen.iter().fold((0.0, 0.0), |a, s| (a.0 + s.forecast, a.1 + s.took));
                let what = format!("{}, {}: {told} for {took}", c.name, probe.name());
                assert!(told > took / 3.0 && told < took * 3.0, "{what}");
            }
        }
    }
}
