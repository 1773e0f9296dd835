//! What a whole stack forecasts against what then happens, with a queue ten deep in each of its layers.
//!
//! The parts of a forecast come from the layers one by one; whether their sum is right only a whole stack can tell. Each
//! combination of layers is kept under the same load: ten reads at the device and ten in the scheduler, ten small writes in
//! the logs, about ten background reads of the page cache. Now and then a probe is read, at a place of its own or behind ten
//! writes that wait for each other in the front.

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
const WARM: usize = 200;

/// What a request is for.
const PROBE_TAG: u64 = 1;
const READ_TAG: u64 = 2;
const WRITE_TAG: u64 = 3;
const CROWD_TAG: u64 = 4;

/// What a probe was told and what it took, in ms.
struct Seen {
    forecast: f64,
    took: f64,
}

struct Bench {
    pool: Pool,
    rng: Rng,
    now: Time,
    /// Read earlier, oldest first: in memory, if there is a page cache.
    warm: VecDeque<u64>,
    /// Reads until the next is refused on purpose: every other one.
    refuses: bool,
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

    fn send(&mut self, op: Op, offset: u64, tag: u64) {
        let mut head = self.head(op, offset);
        head.tag = tag;
        self.offer(head);
    }

    /// One more of those that keep the queues full.
    fn send_load(&mut self, tag: u64) {
        let at = self.place();
        match tag {
            READ_TAG => {
                self.warm.push_back(at);
                self.send(Op::Read, at, READ_TAG);
            }
            _ => self.send(Op::Write, at, tag),
        }
    }

    /// As many as there are to be: at the device, behind it in the scheduler, and in the logs.
    fn fill(&mut self, c: &Combination) {
        (0..2 * DEEP).for_each(|_| self.send_load(READ_TAG));
        if c.logs {
            (0..DEEP).for_each(|_| self.send_load(WRITE_TAG));
        }
    }

    /// What was in memory is swapped out, then refused, then brought in in the background: for every other read, so that
    /// half as many are under way.
    fn refuse_one(&mut self) {
        self.refuses = !self.refuses;
        if !self.refuses || self.warm.len() < WARM {
            return;
        }
        let at = self.warm.pop_front().expect("just counted");
        self.pool.stack.with_layer(self.now, |l: &mut PageCacheLayer, _| l.cache().drop_page(at / BLOCK));
        let mut head = self.head(Op::Read, at);
        head.deadline = Time::ZERO;
        self.offer(head);
    }

    /// Lets the load go on until `ends` reads of it have ended, or the probe has.
    fn go_on(&mut self, c: &Combination, mut ends: u64) -> Option<Seen> {
        let mut seen = None;
        while ends > 0 && seen.is_none() {
            self.now = self.pool.stack.next_wake().max(self.now);
            self.pool.stack.wake(self.now);
            while let Some(done) = self.pool.stack.next_done() {
                match done.io.tag {
                    PROBE_TAG => seen = Some(self.told(&done)),
                    tag @ (READ_TAG | WRITE_TAG) => {
                        self.send_load(tag);
                        if tag == READ_TAG {
                            ends -= 1.min(ends);
                            if c.memory {
                                self.refuse_one();
                            }
                        }
                    }
                    _ => {}
                }
            }
        }
        seen
    }

    /// One round: the load goes on for a while, then a probe comes.
    fn round(&mut self, c: &Combination, blocked: bool) {
        let pause = 1 + self.rng.below(2 * DEEP);
        self.go_on(c, pause);
        let at = self.place();
        if blocked {
            // One goes ahead, ten wait for each other.
            (0..=DEEP).for_each(|_| self.send(Op::Write, at, CROWD_TAG));
        }
        self.send(Op::Read, at, PROBE_TAG);
        let seen = self.go_on(c, u64::MAX);
        self.seen[usize::from(blocked)].extend(seen);
    }

    fn told(&self, c: &Completion) -> Seen {
        let ms = |t: Time| t.since(c.io.arrived_at).as_millis_f64();
        Seen { forecast: ms(c.io.expected_at), took: ms(self.now) }
    }
}

/// Bias in percent of the time that probes took, p95 of the absolute error in ms, and the mean time, by kind of probe.
fn bench(c: &Combination, profile: &Profile, seed: u64) -> Result<Bench, LabError> {
    let (pool, rng) = (stack(c, profile, seed)?, Rng::new(seed, "composed"));
    let (warm, seen) = (VecDeque::new(), [Vec::new(), Vec::new()]);
    let mut bench = Bench { pool, rng, now: Time::ZERO, warm, refuses: false, seen };
    bench.fill(c);
    Ok(bench)
}

fn measure(c: &Combination, profile: &Profile, seed: u64, rounds: u64) -> Result<[Option<[f64; 3]>; 2], LabError> {
    let mut bench = bench(c, profile, seed)?;
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
            "all stacks have a front and a map; random requests of 4 KiB, ten each: reads at the device and in the scheduler, small writes \
             to logs, background reads of the page cache after refusals; every other probe behind ten writes of its place in the front"
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
            let mut b = bench(c, &profile, 1).unwrap();
            for round in 0..40 {
                b.round(c, round % 2 == 1);
            }
            let crowded = b.place();
            (0..=DEEP).for_each(|_| b.send(Op::Write, crowded, CROWD_TAG));
            let view = plimsoll_sched::choice::view(&b.pool.stack).expect("a scheduler");
            assert_eq!(view.at_device as u64, DEEP, "{}", c.name);
            assert!(view.waiting as u64 >= DEEP, "{}: {}", c.name, view.waiting);
            assert_eq!(b.pool.stack.layer::<Front>().expect("a front").waiting() as u64, DEEP, "{}", c.name);
            if c.memory {
                let own = b.pool.stack.node_stats(2).1.own_ios;
                assert!(own >= 20 * DEEP, "{}: {own} background reads", c.name);
            }
            for (kind, seen) in b.seen.iter().enumerate() {
                assert_eq!(seen.len(), 20, "{}: {}", c.name, PROBES[kind]);
                let (told, took) = seen.iter().fold((0.0, 0.0), |a, s| (a.0 + s.forecast, a.1 + s.took));
                assert!(told > took / 3.0 && told < took * 3.0, "{}, {}: {told} for {took}", c.name, PROBES[kind]);
            }
        }
    }
}
