//! Common part of the experiments on replica choice: the cluster, its gets and its noise, and playing them under a policy.
//!
//! All policies of one seed have the same gets at the same times, the same noise and the same drives. Gets come in an open
//! loop: a policy that makes users wait doesn't get fewer of them while the noise lasts. Arrivals of the first seconds warm
//! drives and predictors up and aren't counted.

pub mod adaptive;
pub mod failover;
pub mod flash;
pub mod memory;
pub mod micro;
pub mod mix;
mod nodes;
pub mod one_host;
pub mod scale;
pub mod strategies;
pub mod tiers;
pub mod two_levels;
mod wait_only;
pub mod writes;

use crate::experiment::stats::quantile;
use crate::experiment::{Inputs, LabError, RowSpec, Sample, Switch};
use plimsoll_base::{Rng, Span, Time};
use plimsoll_client::{Get, PolicyKind, PolicySettings, Preference, ReplicaPolicy};
use plimsoll_device::HopSpec;
use plimsoll_figure::plot::Curve;
use plimsoll_replay::PoolConfig;
use plimsoll_replay::cluster::{Cluster, ClusterConfig, ClusterMeasured, GetSource, Hog, HostCpu, Noise};
use plimsoll_replay::workload::noise::{NoiseProfile, NoiseSchedule, SlowPeriods};
use plimsoll_sched::SchedulerKind;
use std::fs::File;
use std::io::BufReader;

/// The disk of MittOS's testbed, as far as its kind goes.
const DEVICE: &str = "constellation-es3-1tb";
/// A tenant's share of the disk, as in MT-E2.
const TENANT_BYTES: u64 = 50 << 30;
/// Addresses of tenants that are all over the disk: beyond its end they would wrap around.
const DISK_BYTES: u64 = 900 << 30;
/// A page of the database, which a get of 1 KB reads.
const GET_BYTES: u64 = 4096;
/// The noise's reads: on our disk these keep it busy for the 12 ms that MittOS's of 1 MiB did (§7.2).
const NOISE_BYTES: u64 = 512 << 10;
/// The authors' noise, see `MT-E4`.
const SCHEDULE: &str = "latency/mittos_ec2_noise_schedule.csv";
/// The flash drive of MittOS's testbed, and the size that it is shrunk to, so that its past fits in memory.
const FLASH: &str = "mittos-openchannel";
const FLASH_BYTES: u64 = 2 << 30;
/// Bytes that a node has in memory, and what finding and copying one of their pages takes (MT-E2: 0.02 ms).
const MEMORY_BYTES: u64 = 1 << 30;
const MEMORY_HIT: Span = Span::from_micros(20);
const PAGE_BYTES: u64 = 4096;
/// Replicas of everything.
const REPLICAS: u16 = 3;

/// Source of noise.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum NoiseKind {
    /// Our generator with §6's figures.
    Generated,
    /// The authors' schedule of three nodes; each of ours follows one of them from a slot that the seed draws.
    Published,
}

/// Storage of the nodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Storage {
    Disk,
    Flash,
    /// Two channels of a flash drive: what a sixth of it is.
    FlashPart,
    /// A page cache over the disk that has had everything; see [`Scene::dropped`].
    Memory,
    /// A page cache over a flash cache over the disk; see [`tiers`].
    Tiers,
}

/// Parts of a run besides its policy.
struct Scene {
    nodes: u16,
    storage: Storage,
    hop_us: f64,
    clients: u16,
    pool: PoolConfig,
    gets: Vec<Get>,
    noise: Vec<Noise>,
    hogs: Vec<Hog>,
    /// With memory: how many permille of each node's pages are gone.
    dropped: Vec<u32>,
    order: Preference,
    /// See [`ClusterConfig::cpu`].
    cpu: Option<HostCpu>,
    /// See [`ClusterConfig::watched`].
    watched: Option<u16>,
    /// Gets that arrive before aren't counted.
    warm: Time,
    /// Assumptions changed.
    switches: Vec<Switch>,
    seed: u64,
}

/// Results.
struct Played {
    /// By the get's number.
    each: Vec<Option<Span>>,
    m: ClusterMeasured,
}

impl Scene {
    /// `nodes` disks of the testbed's kind under CFQ, with gets to come.
    fn new(nodes: u16, clients: u16, seed: u64) -> Scene {
        let pool = PoolConfig { sched: SchedulerKind::Cfq, depth: 4, mismatch: 0.15, ..PoolConfig::default() };
        Scene {
            nodes,
            storage: Storage::Disk,
            hop_us: 300.0,
            clients,
            pool,
            gets: Vec::new(),
            noise: Vec::new(),
            hogs: Vec::new(),
            dropped: Vec::new(),
            order: Preference::Drawn,
            cpu: None,
            watched: None,
            warm: Time::ZERO,
            switches: Vec::new(),
            seed,
        }
    }

    fn has(&self, switch: Switch) -> bool {
        self.switches.contains(&switch)
    }

    /// Plays it with `kind` at every client; `limit` is its deadline, time-out or delay.
    fn play(&self, kind: PolicyKind, limit: Span) -> Result<Played, LabError> {
        self.play_with(self.policies(kind, limit)?, kind == PolicyKind::Tied)
    }

    fn policies(&self, kind: PolicyKind, limit: Span) -> Result<Vec<Box<dyn ReplicaPolicy + Send>>, LabError> {
        let settings = PolicySettings {
            limit,
            order: self.order,
            clients: self.clients,
            hop: Span::from_millis_f64(self.hop_us / 1e3),
            ..PolicySettings::default()
        };
        let bad = |e: plimsoll_client::BadPolicy| LabError(e.to_string());
        (0..self.clients).map(|_| kind.build(&settings).map_err(bad)).collect()
    }

    /// Plays it with these policies, one a client.
    fn play_with<P: ReplicaPolicy>(&self, policies: Vec<P>, tells_begin: bool) -> Result<Played, LabError> {
        let mut each = vec![None; self.gets.len()];
        let watch = &mut |g: &Get, r| each[g.number as usize] = r;
        let (gets, noise) = (self.gets.iter().cloned(), self.noise.iter().copied());
        let m = self.cluster(policies, tells_begin)?.run(gets, noise, watch);
        Ok(Played { each, m })
    }

    /// Plays it with users that wait for their answers instead of its gets; responses come in the order of ending.
    fn play_users(
        &self,
        users: &mut dyn GetSource,
        kind: PolicyKind,
        limit: Span,
    ) -> Result<(Tail, ClusterMeasured), LabError> {
        let mut tail = Tail { sorted: Vec::new(), failed: 0 };
        let watch = &mut |g: &Get, response: Option<Span>| match response {
            _ if g.arrived_at < self.warm => {}
            Some(r) => tail.sorted.push(r.as_millis_f64()),
            None => tail.failed += 1,
        };
        let cluster = self.cluster(self.policies(kind, limit)?, kind == PolicyKind::Tied)?;
        let m = cluster.run_source(users, self.noise.iter().copied(), watch);
        tail.sorted.sort_by(f64::total_cmp);
        Ok((tail, m))
    }

    fn cluster<P: ReplicaPolicy>(&self, policies: Vec<P>, tells_begin: bool) -> Result<Cluster<P>, LabError> {
        let pools = (0..self.nodes).map(|i| self.node(i, tells_begin)).collect::<Result<_, _>>()?;
        let hop = HopSpec { base_us: self.hop_us, ..ClusterConfig::default().hop };
        let (cpu, watched) = (self.cpu, self.watched);
        let config = ClusterConfig { seed: self.seed, hop, cpu, watched, ..ClusterConfig::default() };
        Ok(Cluster::new(config, pools, policies)?.with_hogs(self.hogs.clone()))
    }

    /// Bytes that gets, and noise beside them, are spread over.
    fn span_bytes(&self) -> u64 {
        match self.storage {
            Storage::Disk if self.has(Switch::AllWholeDisk) => DISK_BYTES,
            Storage::Disk => TENANT_BYTES,
            Storage::Flash | Storage::FlashPart => FLASH_BYTES / 2,
            Storage::Memory => MEMORY_BYTES,
            Storage::Tiers => tiers::SPAN_BYTES,
        }
    }

    /// The counted responses; a user's request is `sf` gets that follow each other, and takes as long as its slowest.
    fn tail(&self, each: &[Option<Span>], sf: usize) -> Tail {
        let mut tail = Tail { sorted: Vec::new(), failed: 0 };
        for (gets, responses) in self.gets.chunks(sf).zip(each.chunks(sf)) {
            if gets[0].arrived_at < self.warm {
                continue;
            }
            match responses.iter().copied().collect::<Option<Vec<Span>>>() {
                Some(all) => tail.sorted.push(all.into_iter().max().unwrap_or(Span::ZERO).as_millis_f64()),
                None => tail.failed += 1,
            }
        }
        tail.sorted.sort_by(f64::total_cmp);
        tail
    }
}

/// Responses in milliseconds, ascending.
struct Tail {
    sorted: Vec<f64>,
    failed: u64,
}

impl Tail {
    fn at(&self, percent: f64) -> f64 {
        quantile(&self.sorted, percent / 100.0)
    }
    fn mean(&self) -> f64 {
        self.sorted.iter().sum::<f64>() / self.sorted.len().max(1) as f64
    }
    /// Percent of the requests that took longer than `ms`.
    fn above(&self, ms: f64) -> f64 {
        100.0 * (self.sorted.len() - self.sorted.partition_point(|&v| v <= ms)) as f64 / self.sorted.len().max(1) as f64
    }
    fn curve(&self, name: &str) -> Curve {
        Curve::of_values(name, self.sorted.clone()).thinned()
    }
}

/// By how many percent `ours` is less than `other`: MittOS's "latency reduction".
fn reduction(ours: f64, other: f64) -> f64 {
    100.0 * (other - ours) / other
}

/// The p95 of the base policy: deadline, time-out and delay of all others (§7.2).
fn p95_of_base(scene: &Scene) -> Result<(Span, Played), LabError> {
    let played = scene.play(PolicyKind::Base, Span::from_secs(1))?;
    let ms = scene.tail(&played.each, 1).at(95.0);
    Ok((Span::from_millis_f64(ms), played))
}

/// Gets that arrive at random, `sf` at a time at different nodes, for `length`; `gap` is the mean time between two gets of all
/// clients. Each is to a random object whose replicas are on the next three nodes.
fn gets(scene: &Scene, sf: u16, gap: Span, length: Span) -> Vec<Get> {
    let mut rng = Rng::new(scene.seed, "gets of users");
    let (mut at, mut all) = (Time::ZERO, Vec::new());
    let mut homes: Vec<u16> = (0..scene.nodes).collect();
    loop {
        at += Span::from_nanos((rng.exp1() * (gap * u64::from(sf)).as_nanos() as f64).round() as u64);
        if at >= Time::ZERO + length {
            return all;
        }
        rng.shuffle(&mut homes);
        let client = rng.below(u64::from(scene.clients)) as u16;
        for &home in &homes[..usize::from(sf)] {
            all.push(Get {
                number: all.len() as u64,
                arrived_at: at,
                until: Time::NEVER,
                client,
                replicas: (0..REPLICAS).map(|i| (home + i) % scene.nodes).collect(),
                offset: rng.below(scene.span_bytes() / GET_BYTES) * GET_BYTES,
                len: GET_BYTES,
                draw: rng.next_u64(),
                limit: None,
                refusable: false,
            });
        }
    }
}

/// The noise of `kind` on all nodes for `length`, in order of time; `None`: its data aren't there.
fn noise(kind: NoiseKind, scene: &Scene, length: Span, inputs: &Inputs) -> Result<Option<Vec<Noise>>, LabError> {
    let mut rng = Rng::new(scene.seed, "noise addresses");
    let everywhere = scene.has(Switch::NoiseWholeDisk) || scene.has(Switch::AllWholeDisk);
    let span_bytes = if everywhere { DISK_BYTES } else { TENANT_BYTES };
    let mut read = |at: Time, node: u16| {
        let mut noise = Noise::read(at, node, rng.below(span_bytes / NOISE_BYTES) * NOISE_BYTES, NOISE_BYTES);
        // Another process of the same machine, as MittOS's injector: no group of its own that CFQ would protect gets from.
        noise.tenant = plimsoll_base::TenantId(0);
        noise
    };
    let mut all = Vec::new();
    match kind {
        NoiseKind::Generated => {
            let profile = NoiseProfile::disk();
            for p in SlowPeriods::new(&profile, u32::from(scene.nodes), scene.seed)? {
                let at = Time::ZERO + profile.slot * p.slot;
                if at >= Time::ZERO + length {
                    break;
                }
                (0..p.reads()).for_each(|_| all.push(read(at, p.node as u16)));
            }
        }
        NoiseKind::Published => {
            let Some(path) = inputs.file(SCHEDULE) else { return Ok(None) };
            let name = path.display().to_string();
            let file = File::open(&path).map_err(|e| LabError(format!("{name}: {e}")))?;
            let schedule = NoiseSchedule::from_csv(&name, Box::new(BufReader::new(file)))?;
            let mut starts = Rng::new(scene.seed, "noise starts");
            let starts: Vec<u64> = (0..scene.nodes).map(|_| starts.below(schedule.slots() as u64)).collect();
            for slot in 0..length.as_nanos() / schedule.slot().as_nanos() {
                for node in 0..scene.nodes {
                    let column = usize::from(node) % schedule.nodes();
                    let reads = schedule.reads(starts[usize::from(node)] + slot, column);
                    (0..reads).for_each(|_| all.push(read(Time::ZERO + schedule.slot() * slot, node)));
                }
            }
        }
    }
    Ok(Some(all))
}

/// A row and how it is filled, in one place; the value is `None` when only the rows are wanted.
type Filled = (RowSpec, Option<f64>);

/// The rows without their values.
fn specs(filled: Vec<Filled>) -> Vec<RowSpec> {
    filled.into_iter().map(|f| f.0).collect()
}

/// The values, into a sample.
fn fill(sample: &mut Sample, filled: Vec<Filled>) {
    sample.values.extend(filled.into_iter().map(|f| f.1));
}
