//! The model of a database against what can be said in closed form.

use plimsoll_base::Span;
use plimsoll_lab::database::limiter::Limiter;
use plimsoll_lab::database::{DatabaseConfig, DiskOrder, Front, Measured, Rows, Sensitive, Setting, run};

/// Nothing but bursts on cores.
const CORES_ONLY: DatabaseConfig = DatabaseConfig {
    cores: 4,
    burst: Span::from_millis(1),
    crowding: &[(64, 1000)],
    reads: 0,
    locks: &[],
    durable: false,
    ..DatabaseConfig::TPCC
};

fn measured(database: DatabaseConfig, users: usize, front: Front) -> Measured {
    let (warm, time) = (Span::from_secs(1), Span::from_secs(4));
    run(&Setting { database, users, uneven: false, front, sensitive: None, neighbour: None, warm, time }, 1)
}

#[track_caller]
fn about(got: f64, want: f64, percent: f64) {
    assert!((got / want - 1.0).abs() * 100.0 <= percent, "{got}, wanted {want} within {percent} %");
}

#[test]
fn the_same_seed_is_the_same_run() {
    let setting = Setting {
        database: DatabaseConfig::TPCC,
        users: 80,
        uneven: false,
        front: Front::Auto { zeta: 2, bounds: None },
        sensitive: None,
        neighbour: None,
        warm: Span::from_secs(1),
        time: Span::from_secs(1),
    };
    let (a, b, other) = (run(&setting, 7), run(&setting, 7), run(&setting, 8));
    assert_eq!(a, b);
    assert_ne!(a.rate, other.rate);
}

#[test]
fn one_user_takes_its_burst_and_its_round_trip() {
    about(measured(CORES_ONLY, 1, Front::None).rate, 1e3 / 1.1, 1.5);
}

#[test]
fn cores_bound_many_users_and_crowding_takes_its_part() {
    about(measured(CORES_ONLY, 64, Front::None).rate, 4000.0, 1.0);
    let crowded = DatabaseConfig { crowding: &[(8, 1000), (64, 2000)], ..CORES_ONLY };
    let m = measured(crowded, 64, Front::None);
    // One in sixty or so is on the way to its client.
    about(m.rate, 2000.0, 3.0);
    about(m.spin, 50.0, 3.0);
    about(measured(crowded, 64, Front::Fixed { p: 8, zeta: 1 }).rate, 4000.0, 3.0);
}

#[test]
fn the_law_of_crowding_is_straight_between_its_points() {
    let c = DatabaseConfig { crowding: &[(64, 1000), (128, 1200), (256, 2000)], ..CORES_ONLY };
    let at = [0, 1, 64, 96, 128, 192, 256, 5000].map(|n| c.crowded_milli(n));
    assert_eq!(at, [1000, 1000, 1000, 1100, 1200, 1600, 2000, 2000]);
}

#[test]
fn disks_bound_what_misses() {
    let cfg = DatabaseConfig {
        cores: 64,
        burst: Span::from_micros(10),
        reads: 2,
        cache_pages: 1,
        channels: 5,
        read: Span::from_millis(1),
        ..CORES_ONLY
    };
    for disk_order in [DiskOrder::Fifo, DiskOrder::Fair, DiskOrder::Elevator] {
        let m = measured(DatabaseConfig { disk_order, ..cfg }, 100, Front::None);
        about(m.rate, 2500.0, 2.0);
        assert!(m.hit < 1.0 && m.disk_queue > 80.0, "{m:?}");
    }
    let cached = DatabaseConfig { cache_pages: 1 << 20, own_pages: 9, shared_pages: 10, ..cfg };
    assert!(measured(cached, 100, Front::None).hit > 99.0, "a cache for all of it");
}

#[test]
fn a_row_that_all_lock_serves_one_at_a_time() {
    let hot = DatabaseConfig { locks: &[Rows { share: 1.0, each: 1 }], homes: 1, ..CORES_ONLY };
    let m = measured(hot, 32, Front::None);
    // The burst before the lock overlaps with the holder's; that after it doesn't.
    about(m.rate, 1000.0, 4.0);
    assert!(m.lock_waits_ms.iter().all(|w| *w > 1000.0), "31 of 32 wait");
}

#[test]
fn tickets_bound_those_that_run_and_make_latencies_vary() {
    let ticketed = DatabaseConfig { cores: 64, tickets: Some(8), ..CORES_ONLY };
    let m = measured(ticketed, 64, Front::None);
    assert!(m.rate < 8000.0 && m.rate > 7000.0, "eight at a time, less the time to wake: {}", m.rate);
    let free = measured(DatabaseConfig { cores: 8, tickets: None, ..ticketed }, 64, Front::None);
    assert!(m.variability > 1.5 * free.variability, "{} against {}", m.variability, free.variability);
}

#[test]
fn the_gates_cap_is_exact_in_the_model_too() {
    for p in [2, 7, 30] {
        assert_eq!(measured(DatabaseConfig::TPCC, 90, Front::Fixed { p, zeta: 2 }).inside_max, p);
    }
    assert_eq!(measured(DatabaseConfig::TPCC, 90, Front::Queue(Limiter::Fixed(12))).inside_max, 12);
}

#[test]
fn a_throttle_keeps_the_objective_of_a_few_at_the_others_cost() {
    let of = |front| {
        let s = Sensitive { users: 10, p999: Span::from_millis(40), controlled: false };
        let (warm, time) = (Span::from_secs(30), Span::from_secs(10));
        let database = DatabaseConfig::TPCC;
        run(&Setting { database, users: 150, uneven: false, front, sensitive: Some(s), neighbour: None, warm, time }, 3)
    };
    let (free, slowed) = (of(Front::None), of(Front::Throttle));
    assert!(free.sensitive_p999_ms > 45.0 && slowed.sensitive_p999_ms <= 44.0, "{free:?} {slowed:?}");
    // They are served more often, the others less.
    let others = |m: &Measured| m.rate - m.sensitive_rate;
    assert!(slowed.sensitive_rate > free.sensitive_rate && others(&slowed) < others(&free));
}

#[test]
fn users_of_many_connections_get_more_from_one_queue_and_no_more_from_the_gate() {
    let of = |front| {
        let (warm, time) = (Span::from_secs(1), Span::from_secs(4));
        let setting = Setting {
            database: CORES_ONLY,
            users: 160,
            uneven: true,
            front,
            sensitive: None,
            neighbour: None,
            warm,
            time,
        };
        assert_eq!((setting.user_of(0), setting.user_of(15), setting.user_of(16), setting.user_of(159)), (0, 4, 5, 49));
        run(&setting, 1)
    };
    let (queue, gate) = (of(Front::Queue(Limiter::Fixed(4))), of(Front::Fixed { p: 4, zeta: 1 }));
    assert!(queue.unfairness > 100.0 && gate.unfairness < 10.0, "{} against {}", queue.unfairness, gate.unfairness);
}
