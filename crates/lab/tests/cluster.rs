//! The cluster simulator: against a single pool's replay, twice, and with three policies that choose replicas.

use plimsoll_base::{LatencyHistogram, Rng, Span, Time};
use plimsoll_device::HopSpec;
use plimsoll_device::net::Jitter;
use plimsoll_lab::cluster::{
    Cluster, ClusterConfig, ClusterMeasured, Get, Gets, GetsConfig, Noise, Orders, ReplicaPolicy, Reply,
};
use plimsoll_lab::replay::{DeviceChoice, Limits, Pool, PoolConfig, open_loop};
use plimsoll_lab::trace::record::{Op, Tables, TraceRecord};
use plimsoll_lab::trace::stream::Held;

/// One replica, chosen at random, whatever it takes.
struct Base;

impl ReplicaPolicy for Base {
    fn begin(&mut self, _: Time, get: &Get, out: &mut Orders) {
        out.send(get.replicas[(get.draw % get.replicas.len() as u64) as usize], None);
    }
    fn refused(&mut self, _: Time, _: &Get, _: u32, _: Reply, _: &mut Orders) {}
}

/// Two different ones at once; the slower one is told that it isn't needed.
struct Clone2;

impl ReplicaPolicy for Clone2 {
    fn begin(&mut self, _: Time, get: &Get, out: &mut Orders) {
        let n = get.replicas.len() as u64;
        let (first, step) = (get.draw % n, 1 + (get.draw >> 32) % (n - 1));
        out.send(get.replicas[first as usize], None);
        out.send(get.replicas[((first + step) % n) as usize], None);
    }
    fn refused(&mut self, _: Time, _: &Get, _: u32, _: Reply, _: &mut Orders) {}
    fn ended(&mut self, _: Time, _: &Get, a_try: Option<u32>, out: &mut Orders) {
        if let Some(first) = a_try {
            out.cancel(1 - first);
        }
    }
}

/// One after the other with a deadline, the last without; after a second without any answer the first again.
struct Failover(Span);

impl ReplicaPolicy for Failover {
    fn begin(&mut self, now: Time, get: &Get, out: &mut Orders) {
        out.send(get.replicas[(get.draw % get.replicas.len() as u64) as usize], Some(self.0));
        out.wake_at(now + Span::from_secs(1));
    }
    fn refused(&mut self, _: Time, get: &Get, a_try: u32, _: Reply, out: &mut Orders) {
        let n = get.replicas.len() as u64;
        let next = u64::from(a_try) + 1;
        let deadline = (next + 1 < n).then_some(self.0);
        out.send(get.replicas[((get.draw % n + next) % n) as usize], deadline);
    }
    fn timer(&mut self, now: Time, get: &Get, out: &mut Orders) {
        out.send(get.replicas[0], None);
        out.wake_at(now + Span::from_secs(1));
    }
}

const NODES: u16 = 6;
const DEVICE: &str = "hdd-160g-7200";

fn pools(n: u16, seed: u64) -> Vec<Pool> {
    let device = DeviceChoice::named(DEVICE).unwrap();
    let config = |i| PoolConfig { seed: seed * 100 + i, ..PoolConfig::default() };
    (0..u64::from(n)).map(|i| Pool::new(&device, &config(i)).unwrap()).collect()
}

fn gets(count: u64, seed: u64) -> Gets {
    let config = GetsConfig {
        nodes: NODES,
        clients: 3,
        replicas: 3,
        objects: 1 << 20,
        object_bytes: 4096,
        gap: Span::from_millis(8),
        count,
    };
    Gets::new(config, seed)
}

/// Every 300 ms another node has 12 reads of 256 KiB at once.
fn noise(seed: u64) -> impl Iterator<Item = Noise> {
    let mut rng = Rng::new(seed, "noise");
    (0..u64::MAX).flat_map(move |burst| {
        let node = rng.below(u64::from(NODES)) as u16;
        let offsets: Vec<u64> = (0..12).map(|_| rng.below(1 << 18) << 18).collect();
        let at = Time::ZERO + Span::from_millis(300) * burst;
        offsets.into_iter().map(move |offset| Noise { at, node, op: Op::Read, offset, len: 1 << 18 })
    })
}

fn config(seed: u64, loss: f64) -> ClusterConfig {
    let jitter = Jitter::Exponential { mean_us: 50.0 };
    ClusterConfig {
        hop: HopSpec { base_us: 300.0, jitter, mb_per_s: 120.0, loss, reorders: false },
        seed,
        ..Default::default()
    }
}

/// What came of 4,000 gets, and each one's response.
fn run<P: ReplicaPolicy>(seed: u64, loss: f64, policy: impl Fn() -> P) -> (ClusterMeasured, Vec<Option<Span>>) {
    let policies = (0..3).map(|_| policy()).collect();
    let mut each = vec![None; 4000];
    let cluster = Cluster::new(config(seed, loss), pools(NODES, seed), policies).unwrap();
    let m = cluster.run(gets(4000, seed), noise(seed), &mut |g, response| each[g.number as usize] = response);
    assert_eq!((m.done + m.failed, m.response.count()), (4000, m.done));
    (m, each)
}

#[test]
fn the_same_seed_gives_the_same_events() {
    let hash = |seed| {
        [
            run(seed, 0.0, || Base).0.event_hash,
            run(seed, 0.0, || Clone2).0.event_hash,
            run(seed, 0.01, || Failover(Span::from_millis(20))).0.event_hash,
        ]
    };
    assert_eq!(hash(1), hash(1));
    assert!(hash(1).iter().zip(hash(2)).all(|(a, b)| *a != b));
}

#[test]
fn two_tries_beat_one_and_a_refusal_beats_both_under_noise() {
    let p = |m: &ClusterMeasured, percent| m.response.percentile(percent);
    let (base, base_each) = run(7, 0.0, || Base);
    let (clone, clone_each) = run(7, 0.0, || Clone2);
    let (failover, _) = run(7, 0.0, || Failover(Span::from_millis(20)));
    for (name, m) in [("base", &base), ("clone", &clone), ("failover", &failover)] {
        println!(
            "{name:<9} {:?}; {} tries, {} busy, {} wasted, {} events",
            m.response, m.tries, m.busy, m.wasted, m.events
        );
    }
    assert_eq!((base.tries, base.wasted, clone.tries), (4000, 0, 8000));
    assert!(p(&clone, 95.0) < p(&base, 95.0), "the other replica has no noise, most of the time");
    assert!(p(&failover, 95.0) < p(&base, 95.0) && failover.busy > 0);
    // The gets are the same ones: most have the very same first try, and differ only by what else was sent.
    let same = base_each.iter().zip(&clone_each).filter(|(b, c)| c <= b).count();
    assert!(same > 2600, "only {same} of 4000 were as fast with two tries as with their first alone");
}

#[test]
fn losses_are_survived_by_timers_only() {
    let (base, _) = run(3, 0.02, || Base);
    assert!(base.failed > 50 && base.lost == base.failed, "{base:?}");
    let (failover, each) = run(3, 0.02, || Failover(Span::from_millis(20)));
    assert!(failover.lost > 50 && failover.failed == 0, "{failover:?}");
    assert!(each.iter().filter(|r| **r > Some(Span::from_secs(1))).count() > 50);
    let (all_lost, _) = run(3, 1.0, || Base);
    assert_eq!((all_lost.failed, all_lost.done), (4000, 0));
}

/// One node and one client are a replay, seen through two hops.
#[test]
fn one_node_is_a_pool() {
    const HOP: Span = Span::from_micros(300);
    let one = GetsConfig {
        nodes: 1,
        clients: 1,
        replicas: 1,
        objects: 1 << 20,
        object_bytes: 8192,
        gap: Span::from_millis(9),
        count: 3000,
    };
    let all: Vec<Get> = Gets::new(one, 5).collect();
    let hop = HopSpec { base_us: 300.0, jitter: Jitter::None, mb_per_s: 0.0, loss: 0.0, reorders: false };
    let cluster = Cluster::new(ClusterConfig { hop, ..Default::default() }, pools(1, 5), vec![Base]).unwrap();
    let mut responses = LatencyHistogram::new();
    cluster.run(all.iter().cloned(), std::iter::empty(), &mut |_, r| responses.record(r.unwrap() - HOP * 2));

    let record = |g: &Get| TraceRecord::new(g.arrived_at + HOP, 0, Op::Read, g.offset, g.len);
    let mut trace = Held::new(all.iter().map(record).collect(), Tables::default());
    let mut pool = pools(1, 5).remove(0);
    let replayed = open_loop(&mut pool, &mut trace, &Limits::default(), &mut |_, _| {}).unwrap();
    let buckets = |h: &LatencyHistogram| h.buckets().collect::<Vec<_>>();
    assert_eq!(buckets(&responses), buckets(&replayed.response[0]));
    assert_eq!(responses.sum(), replayed.response[0].sum());
}

#[test]
fn a_cluster_needs_nodes_clients_and_a_possible_network() {
    let error = Cluster::<Base>::new(ClusterConfig::default(), pools(1, 1), Vec::new()).err().unwrap().to_string();
    assert!(error.contains("between 1 and 65,535 nodes and clients"), "{error}");
    let error = Cluster::new(config(1, 7.0), pools(1, 1), vec![Base]).err().unwrap().to_string();
    assert!(error.contains("loss is 7"), "{error}");
}
