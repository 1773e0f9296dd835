//! Noisy neighbours: times and lengths of other tenants' load on a node.
//!
//! Two sources, both open loop:
//! * [`NoiseSchedule`]: a time series from a file, such as the one MittOS's authors derived from EC2
//!   (`latency/mittos_ec2_noise_schedule.csv`): the number of concurrent 1 MiB random reads in each 10 ms slot, per node.
//! * [`SlowPeriods`]: **a generator that was given MittOS §6's figures.** Its agreement with them is no finding; a report of it
//!   says "generator check".

use crate::workload::BadWorkload;
use crate::workload::open::exponential;
use plimsoll_base::{Rng, Span, Time};
use plimsoll_trace::error::{Problem, TraceError};
use plimsoll_trace::lines::Lines;
use plimsoll_trace::parse::{trim, whole};
use plimsoll_trace::record::{Op, Tables, TraceRecord};
use plimsoll_trace::stream::RecordStream;
use std::io::BufRead;

/// Bytes of one of the noise's reads (MittOS §7.2: concurrent 1 MB reads).
pub const NOISE_READ_BYTES: u64 = 1 << 20;
/// Time that one of them keeps MittOS's disk busy (§7.2: two add 24 ms).
pub const NOISE_READ_BUSY: Span = Span::from_millis(12);

/// Most slots of a schedule: a day of 10 ms.
const SLOTS_MAX: usize = 8_640_000;
/// Most reads in one slot: a slip in the file must not become a billion requests.
const READS_MAX: u64 = 10_000;

/// Number of reads that start in each slot on each node; repeats after its last slot.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NoiseSchedule {
    slot: Span,
    /// By slot, then node.
    reads: Vec<Vec<u16>>,
}

impl NoiseSchedule {
    /// Reads the file's columns `slot,start_ms,node1,node2,…`. Slots must be numbered from 0 and evenly spaced.
    ///
    /// # Errors
    /// If they aren't, or a line isn't of that form; with the line.
    pub fn from_csv(name: &str, input: Box<dyn BufRead>) -> Result<NoiseSchedule, TraceError> {
        let mut lines = Lines::new(input);
        NoiseSchedule::parse(&mut lines).map_err(|p| p.at(name, lines.position()))
    }

    fn parse(lines: &mut Lines) -> Result<NoiseSchedule, Problem> {
        const SHAPE: &str = "the header `slot,start_ms,node1,…`";
        lines.advance()?;
        let header: Vec<&[u8]> = lines.current().split(|&b| b == b',').map(trim).collect();
        if header.len() < 3 || header[..2] != [&b"slot"[..], b"start_ms"] {
            return Err(Problem::shape(SHAPE, lines.current()));
        }
        let nodes = header.len() - 2;
        let (mut reads, mut step_ms) = (Vec::new(), 0);
        while lines.advance()? {
            let fields: Vec<&[u8]> = lines.current().split(|&b| b == b',').collect();
            if fields.len() != nodes + 2 || reads.len() == SLOTS_MAX {
                return Err(Problem::shape(
                    "the header's number of fields, in at most 8,640,000 slots",
                    lines.current(),
                ));
            }
            let (slot, start_ms) = (whole("slot", fields[0])?, whole("start_ms", fields[1])?);
            if slot == 1 {
                step_ms = start_ms;
            }
            if slot != reads.len() as u64 || slot.checked_mul(step_ms) != Some(start_ms) || (slot == 1 && step_ms == 0)
            {
                return Err(Problem::shape("slots numbered from 0 at even distances", lines.current()));
            }
            let read = |f: &&[u8]| match whole("reads", f)? {
                n if n <= READS_MAX => Ok(n as u16),
                _ => Err(Problem::field("reads", "at most 10000 reads in a slot", f)),
            };
            reads.push(fields[2..].iter().map(read).collect::<Result<Vec<_>, _>>()?);
        }
        if reads.len() < 2 {
            return Err(Problem::new("fewer than two slots", "their distance is unknown: add slots"));
        }
        Ok(NoiseSchedule { slot: Span::from_millis(step_ms), reads })
    }

    /// Nodes.
    pub fn nodes(&self) -> usize {
        self.reads[0].len()
    }

    /// Time from one slot to the next.
    pub fn slot(&self) -> Span {
        self.slot
    }

    /// Slots until it repeats.
    pub fn slots(&self) -> usize {
        self.reads.len()
    }

    /// Reads of slot `slot` (counted on past the end) on `node`.
    ///
    /// # Panics
    /// If there is no such node.
    pub fn reads(&self, slot: u64, node: usize) -> u16 {
        self.reads[(slot % self.reads.len() as u64) as usize][node]
    }

    /// In how many slots exactly `x` nodes have noise, for `x` in `0..=nodes`.
    pub fn slots_by_busy_nodes(&self) -> Vec<u64> {
        let mut counts = vec![0; self.nodes() + 1];
        for slot in &self.reads {
            counts[slot.iter().filter(|&&n| n > 0).count()] += 1;
        }
        counts
    }
}

/// The noise on one node as requests: at the start of each slot its reads, at random addresses.
pub struct NoiseReads {
    schedule: NoiseSchedule,
    node: usize,
    first_slot: u64,
    bytes: u64,
    until: Time,
    rng: Rng,
    slot: u64,
    left: u16,
    tables: Tables,
}

impl NoiseReads {
    /// Noise of `schedule`'s `node` on a device of `bytes` bytes, until `until`, beginning with slot `first_slot` (the
    /// alignment that a seed varies).
    ///
    /// # Errors
    /// If there is no such node or the device is smaller than a read.
    pub fn new(
        schedule: &NoiseSchedule,
        node: usize,
        first_slot: u64,
        bytes: u64,
        until: Time,
        seed: u64,
    ) -> Result<NoiseReads, BadWorkload> {
        if node >= schedule.nodes() {
            return Err(BadWorkload::new("node", format!("{node}: the schedule has {} nodes", schedule.nodes())));
        }
        if bytes < NOISE_READ_BYTES {
            return Err(BadWorkload::new("bytes", "the device is smaller than a read of 1 MiB"));
        }
        let mut tables = Tables::new();
        tables.devices.intern(b"noise");
        let rng = Rng::new(seed, &format!("noise node {node}"));
        let left = schedule.reads(first_slot, node);
        let first_slot = first_slot % schedule.slots() as u64;
        Ok(NoiseReads { schedule: schedule.clone(), node, first_slot, bytes, until, rng, slot: 0, left, tables })
    }
}

impl RecordStream for NoiseReads {
    fn next_record(&mut self) -> Option<Result<TraceRecord, TraceError>> {
        loop {
            let at = Time::ZERO + self.schedule.slot() * self.slot;
            if at >= self.until {
                return None;
            }
            if self.left > 0 {
                self.left -= 1;
                let offset = self.rng.below(self.bytes / NOISE_READ_BYTES) * NOISE_READ_BYTES;
                return Some(Ok(TraceRecord::new(at, 0, Op::Read, offset, NOISE_READ_BYTES)));
            }
            self.slot += 1;
            self.left = self.schedule.reads(self.first_slot + self.slot, self.node);
        }
    }

    fn tables(&self) -> &Tables {
        &self.tables
    }
}

/// Figures given to [`SlowPeriods`].
#[derive(Clone, PartialEq, Debug)]
pub struct NoiseProfile {
    /// Length of a period: 100 ms for disks, 20 ms for flash and memory (MT-E3).
    pub slot: Span,
    /// Probability that exactly 1, 2, … nodes are busy in a period (MT-E4).
    pub busy_nodes: Vec<f64>,
    /// Least added delay in a slow period.
    pub added_min: Span,
    /// Mean of the exponential part on top.
    pub added_mean: Span,
}

/// MT-E4 (Fig 3g): one node busy in 25 % of the time, two in 5 %. Beyond that the paper says "diminishes rapidly"; we
/// go on with the ratio of those two, down to less than one period in the paper's 8 hours.
fn busy_nodes() -> Vec<f64> {
    (0..8).map(|k| 0.25 * 0.2f64.powi(k)).collect()
}

impl NoiseProfile {
    /// MT-E2 and MT-E3 for disks: 6–10 ms without noise, slow from 20 ms (p97), beyond 70 ms at p99. A third of the
    /// slow requests are thus beyond 70 ms: an exponential tail of mean 50 ms / ln 3 above 20 ms.
    pub fn disk() -> NoiseProfile {
        let (added_min, added_mean) = (Span::from_millis(12), Span::from_micros(45_512));
        NoiseProfile { slot: Span::from_millis(100), busy_nodes: busy_nodes(), added_min, added_mean }
    }

    /// MT-E2 and MT-E3 for flash: 0.1 ms without noise, slow from 0.5 ms (p97), beyond 2 ms at p99. The generator was given
    /// these figures.
    pub fn flash() -> NoiseProfile {
        let (added_min, added_mean) = (Span::from_micros(400), Span::from_micros(1_365));
        NoiseProfile { slot: Span::from_millis(20), busy_nodes: busy_nodes(), added_min, added_mean }
    }

    /// MT-E2 and MT-E3 for the page cache: 0.02 ms without noise, and from p99 on beyond 1 ms. The length of that
    /// tail isn't given: its mean of 1 ms is our assumption.
    pub fn cache() -> NoiseProfile {
        let (added_min, added_mean) = (Span::from_micros(980), Span::from_millis(1));
        NoiseProfile { slot: Span::from_millis(20), busy_nodes: busy_nodes(), added_min, added_mean }
    }
}

/// A node's slow period.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SlowPeriod {
    /// Number of the period.
    pub slot: u64,
    /// Node.
    pub node: u32,
    /// Additional time of a request in it.
    pub added: Span,
}

impl SlowPeriod {
    /// Returns the number of concurrent 1 MiB reads that have this effect, at least 1, as MittOS injects them (§7.2).
    pub fn reads(&self) -> u64 {
        let busy = NOISE_READ_BUSY.as_nanos();
        ((self.added.as_nanos() + busy / 2) / busy).max(1)
    }
}

/// Presence of a node's neighbours: ours, as MittOS only says that intervals are irregular and differ from node
/// to node (MT-E3).
struct NodeMood {
    /// Popularity of the node with noisy tenants.
    weight: f64,
    is_active: bool,
    /// Next change.
    changes_at: Time,
    mean: Span,
}

/// Factor of an active node's likelihood over a quiet one's.
const ACTIVE_FACTOR: f64 = 6.0;

/// Slow periods of many nodes, by period and then by node: a generator whose inputs are MittOS §6's figures.
///
/// In each period the number of busy nodes is drawn from MT-E4's probabilities, then that many nodes, by weight.
/// Nodes have weights of their own (log-normal, sigma 0.5: "some nodes are more busy than others") that are six times
/// as large during active spells; spells last 2 to 20 s on average, by node. So intervals are irregular, differ by
/// node, and bunch without running together. Note that the paper's figures don't quite agree with each other: its
/// busy nodes (MT-E4) make a node slow in 2 % of the periods, its percentiles (MT-E2) in 3 %; we keep to MT-E4.
pub struct SlowPeriods {
    profile: NoiseProfile,
    nodes: Vec<NodeMood>,
    rng: Rng,
    slot: u64,
    ready: Vec<SlowPeriod>,
}

impl SlowPeriods {
    /// Slow periods of `nodes` nodes.
    ///
    /// # Errors
    /// If the profile's probabilities are none, or there are fewer nodes than may be busy at once.
    pub fn new(profile: &NoiseProfile, nodes: u32, seed: u64) -> Result<SlowPeriods, BadWorkload> {
        let sum: f64 = profile.busy_nodes.iter().sum();
        if !profile.busy_nodes.iter().all(|p| (0.0..=1.0).contains(p)) || sum > 1.0 {
            return Err(BadWorkload::new("busy_nodes", "probabilities lie in 0 to 1 and add up to 1 at most"));
        }
        if (nodes as usize) < profile.busy_nodes.len() || profile.slot == Span::ZERO {
            return Err(BadWorkload::new(
                "nodes",
                "at least the number of nodes that may be busy at once, and periods longer than 0",
            ));
        }
        let mut rng = Rng::new(seed, "slow periods");
        let mood = |rng: &mut Rng| {
            let weight = (0.5 * rng.normal()).exp();
            let mean = Span::from_millis(2_000 + rng.below(18_000));
            NodeMood { weight, is_active: rng.chance(0.3), changes_at: Time::ZERO + exponential(rng, mean), mean }
        };
        let nodes = (0..nodes).map(|_| mood(&mut rng)).collect();
        Ok(SlowPeriods { profile: profile.clone(), nodes, rng, slot: 0, ready: Vec::new() })
    }

    fn moods(&mut self, now: Time) {
        for n in &mut self.nodes {
            while n.changes_at <= now {
                n.is_active = !n.is_active;
                // Active spells are shorter than quiet ones, so that they stand out.
                let mean = if n.is_active { n.mean.scale(3, 7) } else { n.mean };
                n.changes_at += exponential(&mut self.rng, mean).max(Span::from_nanos(1));
            }
        }
    }

    fn draw_count(&mut self) -> usize {
        let mut u = self.rng.unit();
        for (i, p) in self.profile.busy_nodes.iter().enumerate() {
            if u < *p {
                return i + 1;
            }
            u -= p;
        }
        0
    }

    /// Decides one period.
    fn period(&mut self) {
        self.moods(Time::ZERO + self.profile.slot * self.slot);
        let count = self.draw_count();
        let weigh = |n: &NodeMood| n.weight * if n.is_active { ACTIVE_FACTOR } else { 1.0 };
        let mut weights: Vec<f64> = self.nodes.iter().map(weigh).collect();
        for _ in 0..count {
            let mut u = self.rng.unit() * weights.iter().sum::<f64>();
            let mut node = 0;
            for (i, w) in weights.iter().enumerate().filter(|(_, w)| **w > 0.0) {
                node = i;
                if u < *w {
                    break;
                }
                u -= w;
            }
            weights[node] = 0.0;
            let added = self.profile.added_min + exponential(&mut self.rng, self.profile.added_mean);
            self.ready.push(SlowPeriod { slot: self.slot, node: node as u32, added });
        }
        self.ready.sort_by_key(|p| std::cmp::Reverse(p.node));
        self.slot += 1;
    }
}

impl Iterator for SlowPeriods {
    type Item = SlowPeriod;
    /// The next slow period; there is always another, unless no node is ever busy.
    fn next(&mut self) -> Option<SlowPeriod> {
        if self.profile.busy_nodes.iter().all(|&p| p == 0.0) {
            return None;
        }
        while self.ready.is_empty() {
            self.period();
        }
        self.ready.pop()
    }
}
