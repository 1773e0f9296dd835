//! What a whole stack forecasts against what then happens, with a queue ten deep in each of its layers.
//!
//! The parts of a forecast come from the layers one by one; whether their sum is right only a whole stack can tell. Each
//! combination of layers is brought into the same state again and again: ten requests behind an overlapping one in the
//! front, ten small writes in the logs, ten background reads of the page cache, ten in the scheduler, ten at the device.
//! Then a probe is read, at a place of its own or behind what waits in the front.

use crate::experiment::stats::quantile;
use crate::experiment::{Check, Experiment, Inputs, LabError, RowSpec, Sample};
use crate::profiling::profile_of;
use crate::replay::{DeviceChoice, Pool, PoolConfig};
use plimsoll_base::{Completion, Data, Io, IoHead, Op, Rng, Span, TenantId, Time, VolumeKey};
use plimsoll_device::pagecache::{Lru, PageCache};
use plimsoll_device::{DeviceOptions, DeviceSpec, Model, ModelLayer, PageCacheLayer};
use plimsoll_logs::{Layout, Logs, LogsConfig, Shape};
use plimsoll_sched::{Late, Profile, SchedulerKind, SchedulerOptions};
use plimsoll_stack::{Extent, Front, FrontVolume, Layer, Map, Offered};
use std::collections::VecDeque;

/// See the module's documentation.
pub struct ComposedForecasts;

const DEVICE: &str = "hdd-160g-7200";
const SPREAD: f64 = 0.15;
/// How deep each queue is.
const DEEP: u64 = 10;
const BLOCK: u64 = 4096;
/// Addresses that are used: enough for the arm to move.
const BYTES: u64 = 64 << 30;
const VOLUME: VolumeKey = VolumeKey { id: 1, generation: 1 };
/// Rounds that only teach.
const TAUGHT: u64 = 50;

#[derive(Clone, Copy)]
struct Combination {
    name: &'static str,
    sched: SchedulerKind,
    memory: bool,
    logs: bool,
}

const COMBINATIONS: [Combination; 6] = [
    Combination { name: "noop", sched: SchedulerKind::Noop, memory: false, logs: false },
    Combination { name: "deadline", sched: SchedulerKind::Deadline, memory: false, logs: false },
    Combination { name: "cfq", sched: SchedulerKind::Cfq, memory: false, logs: false },
    Combination { name: "page cache, noop", sched: SchedulerKind::Noop, memory: true, logs: false },
    Combination { name: "logs, noop", sched: SchedulerKind::Noop, memory: false, logs: true },
    Combination { name: "page cache, logs, cfq", sched: SchedulerKind::Cfq, memory: true, logs: true },
];

/// Where the probe is read: nobody else's place, or where ten wait for each other.
const PROBES: [&str; 2] = ["a place of its own", "behind ten in the front"];

/// Reads until what was read is used again: by then the drive's own buffer has forgotten it.
const WARM: u64 = 200;

/// Tags of probes; all else has 0.
const PROBE_TAG: u64 = 1;

/// What a probe was told and what it took, in ms.
struct Seen {
    forecast: f64,
    took: f64,
}

struct Bench {
    pool: Pool,
    rng: Rng,
    now: Time,
    /// Read in earlier rounds, oldest first: in memory, if there is a page cache.
    warm: VecDeque<u64>,
    seen: [Vec<Seen>; 2],
}

fn stack(c: &Combination, profile: &Profile, seed: u64) -> Result<Pool, LabError> {
    let failed = |e: &dyn std::fmt::Display| LabError(format!("{}: {e}", c.name));
    let spec = DeviceSpec::named(DEVICE).map_err(|e| failed(&e))?;
    let model = spec.build(DeviceOptions { seed, mismatch: SPREAD }).map_err(|e| failed(&e))?;
    let costs = profile.disk_model().ok_or_else(|| failed(&"the profile has no costs"))?;
    let options = SchedulerOptions {
        depth: DEEP as u32,
        discipline: profile.discipline(),
        late: Late::Keep,
        ..SchedulerOptions::default()
    };
    let mut layers: Vec<Box<dyn Layer>> = vec![Box::new(Front::new()), Box::new(Map::new())];
    if c.memory {
        let cache = PageCache::<Lru>::new(1 << 16, model.size_bytes() / BLOCK, Span::ZERO);
        layers.push(Box::new(PageCacheLayer::new(cache)));
    }
    if c.logs {
        let layout =
            Layout::new(model.size_bytes(), model.block_bytes(), Shape::default(), 1).map_err(|e| failed(&e))?;
        layers.push(Box::new(Logs::fresh(layout, LogsConfig::default())));
    }
    layers.push(c.sched.layer(&options, costs));
    layers.push(Box::new(ModelLayer::new(model)));
    let mut pool = Pool::of_layers(layers, &PoolConfig { seed, late: Late::Keep, ..PoolConfig::default() })?;
    let volume = FrontVolume { size_bytes: BYTES, read_only: false };
    pool.stack.with_layer(Time::ZERO, |f: &mut Front, _| f.set_volume(VOLUME, volume));
    pool.stack
        .with_layer(Time::ZERO, |m: &mut Map, _| m.set_volume(VOLUME, &[Extent { device_offset: 0, len: BYTES }]));
    Ok(pool)
}

impl Bench {
    fn head(&self, op: Op, offset: u64) -> IoHead {
        IoHead::new(op, VOLUME, TenantId(1), offset, BLOCK, self.now)
    }

    fn offer(&mut self, head: IoHead) -> Offered {
        self.pool.stack.offer(self.now, Io::new(head, Data::Absent))
    }

    fn place(&mut self) -> u64 {
        self.rng.below(BYTES / BLOCK) * BLOCK
    }

    /// Fills every queue.
    fn fill(&mut self, c: &Combination) {
        // Twice: at the device, and behind it in the scheduler.
        for _ in 0..2 * DEEP {
            let at = self.place();
            self.warm.push_back(at);
            self.offer(self.head(Op::Read, at));
        }
        if c.logs {
            for _ in 0..DEEP {
                let at = self.place();
                self.offer(self.head(Op::Write, at));
            }
        }
        if c.memory {
            // What was in memory is swapped out, then refused, then brought in in the background.
            for _ in 0..DEEP.min((self.warm.len() as u64).saturating_sub(WARM)) {
                let at = self.warm.pop_front().expect("just counted");
                self.pool.stack.with_layer(self.now, |l: &mut PageCacheLayer, _| l.cache().drop_page(at / BLOCK));
                let mut head = self.head(Op::Read, at);
                head.deadline = self.now;
                let _ = self.offer(head); // refused; or in service at once if nothing is in front
            }
        }
    }

    /// One round: every queue ten deep, a probe, and all of it done.
    fn round(&mut self, c: &Combination, blocked: bool) {
        self.fill(c);
        let crowded = self.place();
        if blocked {
            // One goes ahead, ten wait for each other.
            for i in 0..=DEEP {
                self.offer(self.head(if i % 2 == 0 { Op::Write } else { Op::Read }, crowded));
            }
        }
        let at = if blocked { crowded } else { self.place() };
        let mut probe = self.head(Op::Read, at);
        probe.tag = PROBE_TAG;
        self.offer(probe);
        let seen = self.settle();
        self.seen[usize::from(blocked)].extend(seen);
        self.now += Span::from_millis(500);
        self.pool.stack.wake(self.now);
    }

    /// Lets everything happen that clients wait for; what the probe saw.
    fn settle(&mut self) -> Option<Seen> {
        let mut seen = None;
        loop {
            while let Some(c) = self.pool.stack.next_done() {
                if c.io.tag == PROBE_TAG {
                    seen = Some(self.told(&c));
                }
            }
            let next = self.pool.stack.next_wake();
            if self.pool.stack.inflight() == 0 || !next.is_set() {
                return seen;
            }
            self.now = self.now.max(next);
            self.pool.stack.wake(self.now);
        }
    }

    fn told(&self, c: &Completion) -> Seen {
        let ms = |t: Time| t.since(c.io.arrived_at).as_millis_f64();
        Seen { forecast: ms(c.io.expected_at), took: ms(self.now) }
    }
}

/// Bias in percent of the time that probes took, p95 of the absolute error in ms, and the mean time, by kind of probe.
fn measure(c: &Combination, profile: &Profile, seed: u64, rounds: u64) -> Result<[Option<[f64; 3]>; 2], LabError> {
    let pool = stack(c, profile, seed)?;
    let rng = Rng::new(seed, "composed");
    let mut bench = Bench { pool, rng, now: Time::ZERO, warm: VecDeque::new(), seen: [Vec::new(), Vec::new()] };
    for round in 0..TAUGHT + rounds {
        if round == TAUGHT {
            bench.seen = [Vec::new(), Vec::new()];
        }
        bench.round(c, round % 2 == 1);
    }
    Ok(bench.seen.map(|seen| {
        let n = seen.len() as f64;
        let took: f64 = seen.iter().map(|s| s.took).sum();
        let bias: f64 = seen.iter().map(|s| s.took - s.forecast).sum();
        let mut errors: Vec<f64> = seen.iter().map(|s| (s.took - s.forecast).abs()).collect();
        errors.sort_by(f64::total_cmp);
        (n > 0.0 && took > 0.0).then(|| [100.0 * bias / took, quantile(&errors, 0.95), took / n])
    }))
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
    fn device(&self) -> &'static str {
        DEVICE
    }
    fn notes(&self) -> Vec<String> {
        vec![
            "all stacks have a front and a map; ten requests of 4 KiB each: in the front behind an overlapping one (every other round), \
             small writes to logs, background reads of the page cache after refusals, in the scheduler, at the device"
                .into(),
            "the drive differs from the one that was profiled by ±15 % per component, drawn by the seed; the first 50 rounds only teach"
                .into(),
            "bias: what probes took less what was forecast, in percent of what they took".into(),
        ]
    }
    fn rows(&self, _inputs: &Inputs) -> Vec<RowSpec> {
        let mut rows = Vec::new();
        for c in &COMBINATIONS {
            for probe in PROBES {
                let row = |what: &str, unit| RowSpec::new(format!("{}, {probe}: {what}", c.name), unit);
                rows.push(row("bias", "%").check(Check::Within(-10.0, 10.0)));
                rows.push(row("p95 error", "ms"));
                rows.push(row("took, mean", "ms"));
            }
        }
        rows
    }
    fn sample(&self, seed: u64, inputs: &Inputs) -> Result<Sample, LabError> {
        let choice = DeviceChoice::named(DEVICE)?;
        let profile = profile_of(choice.disk()?, 1, 10).map_err(|e| LabError(e.to_string()))?;
        let rounds = if inputs.quick { 60 } else { 400 };
        let mut values = Vec::new();
        for c in &COMBINATIONS {
            for of_probe in measure(c, &profile, seed, rounds)? {
                values.extend(of_probe.map_or([None; 3], |v| v.map(Some)));
            }
        }
        Ok(Sample { values, plots: Vec::new(), notes: Vec::new() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every queue is there when a probe comes, in every combination; and a forecast is of the size of what happens.
    #[test]
    fn each_layer_is_ten_deep_and_forecasts_are_of_the_right_size() {
        let choice = DeviceChoice::named(DEVICE).unwrap();
        let profile = profile_of(choice.disk().unwrap(), 1, 4).unwrap();
        for c in &COMBINATIONS {
            let pool = stack(c, &profile, 1).unwrap();
            let rng = Rng::new(1, "composed");
            let mut b = Bench { pool, rng, now: Time::ZERO, warm: VecDeque::new(), seen: [Vec::new(), Vec::new()] };
            for round in 0..16 {
                b.round(c, round % 2 == 1);
            }
            b.fill(c);
            let crowded = b.place();
            (0..=DEEP).for_each(|_| {
                b.offer(b.head(Op::Write, crowded));
            });
            let view = plimsoll_sched::choice::view(&b.pool.stack).expect("a scheduler");
            assert_eq!(view.at_device as u64, DEEP, "{}", c.name);
            assert!(view.waiting as u64 >= DEEP, "{}: {}", c.name, view.waiting);
            assert_eq!(b.pool.stack.layer::<Front>().expect("a front").waiting() as u64, DEEP, "{}", c.name);
            if c.memory {
                let own = b.pool.stack.node_stats(2).1.own_ios;
                assert!(own >= 2 * DEEP, "{}: {own} background reads", c.name);
            }
            for (kind, seen) in b.seen.iter().enumerate() {
                assert_eq!(seen.len(), 8, "{}: {}", c.name, PROBES[kind]);
                let (told, took) = seen.iter().fold((0.0, 0.0), |a, s| (a.0 + s.forecast, a.1 + s.took));
                assert!(told > took / 6.0 && told < took * 6.0, "{}, {}: {told} for {took}", c.name, PROBES[kind]);
            }
        }
    }
}
