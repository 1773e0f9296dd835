//! The cluster simulator: against a single pool's replay, twice, and with three policies that choose replicas.

use plimsoll_base::{LatencyHistogram, Rng, Span, Time};
use plimsoll_client::base::Base;
use plimsoll_client::clone::Cloned;
use plimsoll_client::{Course, Get, Orders, PolicyKind, PolicySettings, Preference, ReplicaPolicy};
use plimsoll_device::HopSpec;
use plimsoll_device::net::Jitter;
use plimsoll_replay::cluster::{
    Clairvoyant, Cluster, ClusterConfig, ClusterMeasured, Gets, GetsConfig, Noise, Users, gap_closed,
};
use plimsoll_replay::{DeviceChoice, Limits, Pool, PoolConfig, open_loop};
use plimsoll_trace::record::{Op, Tables, TraceRecord};
use plimsoll_trace::stream::Held;

/// One replica, chosen at random, whatever it takes.
const BASE: Base = Base { order: Preference::Drawn };
/// Two different ones at once; the slower one is told that it isn't needed.
const CLONE: Cloned = Cloned { copies: 2, cancels: true, order: Preference::Drawn };

/// One after the other with a deadline, the last without; after a second without any answer the first again, once.
struct Failover(Span);

impl ReplicaPolicy for Failover {
    fn begin(&mut self, now: Time, course: &Course, out: &mut Orders) {
        out.send(Preference::Drawn.nth(course.get(), 0), Some(self.0));
        out.wake_at(now + Span::from_secs(1));
    }
    fn refused(&mut self, _: Time, course: &Course, _: u32, out: &mut Orders) {
        let deadline = (course.tries().len() + 1 < course.get().replicas.len()).then_some(self.0);
        if let Some(node) = Preference::Drawn.next_untried(course) {
            out.send(node, deadline);
        }
    }
    fn timer(&mut self, now: Time, course: &Course, out: &mut Orders) {
        if course.tries().len() <= course.get().replicas.len() {
            out.send(course.get().replicas[0], None);
            out.wake_at(now + Span::from_secs(1));
        }
    }
}

const NODES: u16 = 6;
const DEVICE: &str = "hdd-160g-7200";

fn pools(n: u16, seed: u64) -> Vec<Pool> {
    let device = DeviceChoice::named(DEVICE).unwrap();
    let config = |i| PoolConfig { seed: seed * 100 + i, ..PoolConfig::default() };
    (0..u64::from(n)).map(|i| Pool::new(&device, &config(i)).unwrap()).collect()
}

fn gets_config(count: u64, gap: Span) -> GetsConfig {
    GetsConfig { nodes: NODES, clients: 3, replicas: 3, objects: 1 << 20, object_bytes: 4096, gap, count }
}

fn gets(count: u64, seed: u64) -> Gets {
    Gets::new(gets_config(count, Span::from_millis(8)), seed)
}

/// Every 300 ms another node has 12 reads of 256 KiB at once.
fn noise(seed: u64) -> impl Iterator<Item = Noise> {
    let mut rng = Rng::new(seed, "noise");
    (0..u64::MAX).flat_map(move |burst| {
        let node = rng.below(u64::from(NODES)) as u16;
        let offsets: Vec<u64> = (0..12).map(|_| rng.below(1 << 18) << 18).collect();
        let at = Time::ZERO + Span::from_millis(300) * burst;
        offsets.into_iter().map(move |offset| Noise::read(at, node, offset, 1 << 18))
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

/// Returns the figures of 4,000 gets, and each get's response time.
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
            run(seed, 0.0, || BASE).0.event_hash,
            run(seed, 0.0, || CLONE).0.event_hash,
            run(seed, 0.01, || Failover(Span::from_millis(20))).0.event_hash,
        ]
    };
    assert_eq!(hash(1), hash(1));
    assert!(hash(1).iter().zip(hash(2)).all(|(a, b)| *a != b));
}

#[test]
fn two_tries_beat_one_and_a_refusal_beats_both_under_noise() {
    let p = |m: &ClusterMeasured, percent| m.response.percentile(percent);
    let (base, base_each) = run(7, 0.0, || BASE);
    let (clone, clone_each) = run(7, 0.0, || CLONE);
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
fn an_oracle_shows_what_there_was_to_gain() {
    let mean = |each: &[Option<Span>]| each.iter().map(|r| r.unwrap().as_millis_f64()).sum::<f64>() / each.len() as f64;
    let p99 = |each: &[Option<Span>]| {
        let mut all: Vec<Span> = each.iter().map(|r| r.unwrap()).collect();
        all.sort_unstable();
        all[all.len() * 99 / 100].as_millis_f64()
    };
    let (base, failover) = (run(7, 0.0, || BASE).1, run(7, 0.0, || Failover(Span::from_millis(20))).1);
    let oracle = Clairvoyant::of(4000, 3, 6, |policy| run(7, 0.0, || policy.clone()).1);
    for (name, of) in [("mean", &mean as &dyn Fn(&[Option<Span>]) -> f64), ("p99", &p99)] {
        let (b, f, o) = (of(&base), of(&failover), of(&oracle.response));
        let gap = gap_closed(b, f, o).expect("the oracle gains something");
        println!("{name}: base {b:.1}, failover {f:.1}, oracle {o:.1} ms: {:.0} % of the gap closed", 100.0 * gap);
        assert!(o < f && f < b && gap > 0.3, "{name}");
    }
}

/// Every policy by name, on nodes that say when they begin.
fn run_kind(kind: PolicyKind) -> ClusterMeasured {
    let settings = PolicySettings { limit: Span::from_millis(20), clients: 3, ..PolicySettings::default() };
    let policies = (0..3).map(|_| kind.build(&settings).unwrap()).collect();
    let device = DeviceChoice::named(DEVICE).unwrap();
    let pool = |i| PoolConfig { seed: 700 + i, tells_begin: true, ..PoolConfig::default() };
    let pools = (0..u64::from(NODES)).map(|i| Pool::new(&device, &pool(i)).unwrap()).collect();
    let m = Cluster::new(config(7, 0.0), pools, policies).unwrap().run(gets(4000, 7), noise(7), &mut |_, _| {});
    assert_eq!((m.done, m.failed), (4000, 0), "{kind}");
    m
}

#[test]
fn every_policy_runs_in_the_cluster_and_does_what_it_says() {
    let all: Vec<(PolicyKind, ClusterMeasured)> = PolicyKind::ALL.map(|k| (k, run_kind(k))).into();
    let of = |kind| &all.iter().find(|(k, _)| *k == kind).unwrap().1;
    for (kind, m) in &all {
        println!(
            "{kind:<13} {:?}; {} tries, {} executed, {} busy, {} wasted, {} probes",
            m.response, m.tries, m.executed, m.busy, m.wasted, m.probes
        );
        assert_eq!(m.event_hash, run_kind(*kind).event_hash, "{kind}: the same seed, the same events");
        assert_eq!(m.probes, if *kind == PolicyKind::Prequal { 12_000 } else { 0 });
        assert!(m.executed >= 4000 && m.executed <= m.tries);
    }
    let base = of(PolicyKind::Base);
    assert_eq!((base.tries, base.executed), (4000, 4000));
    let clone = of(PolicyKind::Clone);
    assert_eq!((clone.tries, clone.executed), (8000, 8000 - (4000 - clone.wasted)), "what isn't cancelled is executed");
    // A word that one has begun spares most of the second executions, and a cancel spares some.
    assert!(of(PolicyKind::Tied).executed < 4000 + 800, "{}", of(PolicyKind::Tied).executed);
    assert!(of(PolicyKind::HedgedCancel).executed < of(PolicyKind::Hedged).executed);
    // Without predictions wrong beyond the deadline nothing is executed twice.
    assert_eq!(of(PolicyKind::Mitt).executed, 4000);
    assert!(of(PolicyKind::MittBudget).executed <= 4000 + 80 + 10);
    let p95 = |kind| of(kind).response.percentile(95.0);
    for better in [PolicyKind::Hedged, PolicyKind::Mitt, PolicyKind::MittWait, PolicyKind::MittBudget] {
        assert!(p95(better) < p95(PolicyKind::Base), "{better}");
    }
}

/// 24 users who think for 100 ms: what the policies make of the same gets.
fn run_closed<P: ReplicaPolicy>(
    users: u32,
    think: Span,
    policy: impl Fn() -> P,
) -> (ClusterMeasured, Vec<(u64, Span, u64)>) {
    let mut source = Users::new(gets_config(4800, think), users, 7);
    let mut each = vec![(0, Span::ZERO, 0); 4800];
    let cluster = Cluster::new(config(7, 0.0), pools(NODES, 7), (0..3).map(|_| policy()).collect()).unwrap();
    let m = cluster.run_source(&mut source, noise(7), &mut |g, response| {
        each[g.number as usize] = (g.arrived_at.as_nanos(), response.unwrap(), g.offset ^ g.draw);
    });
    assert_eq!(m.done, 4800);
    (m, each)
}

#[test]
fn users_of_a_closed_loop_wait_for_their_answers() {
    const THINK: Span = Span::from_millis(100);
    let (slow, slow_each) = run_closed(24, THINK, || BASE);
    assert_eq!(slow.event_hash, run_closed(24, THINK, || BASE).0.event_hash);
    let (fast, fast_each) = run_closed(24, THINK, || Failover(Span::from_millis(20)));
    // A user's n-th get is the same one under every policy, and begins when the one before has ended and been thought about.
    assert!(slow_each.iter().zip(&fast_each).all(|(s, f)| s.2 == f.2));
    for each in [&slow_each, &fast_each] {
        for (before, after) in each.iter().zip(&each[24..]) {
            assert!(after.0 >= before.0 + before.1.as_nanos());
        }
    }
    // Little's law: users = throughput x (response + thought).
    for m in [&slow, &fast] {
        let throughput = m.done as f64 / m.clock.as_secs_f64();
        let users = throughput * (m.response.mean().as_secs_f64() + THINK.as_secs_f64());
        // A little less, as users don't end at the same time.
        assert!((20.0..=24.0).contains(&users), "{users}");
    }
    assert!(fast.clock < slow.clock, "who waits less asks more");
    // Without a thought one user is always waiting.
    let (one, _) = run_closed(1, Span::ZERO, || BASE);
    assert!(one.clock.since(Time::ZERO).as_nanos().abs_diff(one.response.sum().as_nanos()) < 1_000_000);
}

#[test]
fn losses_are_survived_by_timers_only() {
    let (base, _) = run(3, 0.02, || BASE);
    assert!(base.failed > 50 && base.lost == base.failed, "{base:?}");
    let (failover, each) = run(3, 0.02, || Failover(Span::from_millis(20)));
    assert!(failover.lost > 50 && failover.failed == 0, "{failover:?}");
    assert!(each.iter().filter(|r| **r > Some(Span::from_secs(1))).count() > 50);
    let (all_lost, _) = run(3, 1.0, || BASE);
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
    let cluster = Cluster::new(ClusterConfig { hop, ..Default::default() }, pools(1, 5), vec![BASE]).unwrap();
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
    let error = Cluster::new(config(1, 7.0), pools(1, 1), vec![BASE]).err().unwrap().to_string();
    assert!(error.contains("loss is 7"), "{error}");
}
