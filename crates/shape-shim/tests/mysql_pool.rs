//! MariaDB's pool of threads: events are withheld, never threads.

mod common;

use common::observer::{assert_capped, most_open};
use common::{Server, during, for_a_while, needs};
use plimsoll_shape::drive::client::{Answer, Client};
use plimsoll_shape::gate::Knobs;
use plimsoll_shape::profile::Profile;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::thread::scope;
use std::time::{Duration, Instant};

fn server(p: u32) -> Server {
    needs("/usr/sbin/mariadbd");
    Server::mariadb(Profile::MysqlPool, Knobs { p, ..Knobs::default() }, &["--thread-handling=pool-of-threads"])
}

fn ok(c: &mut Client, sql: &str) {
    assert_eq!(c.query(sql).unwrap(), Answer::Ok, "{sql}");
}

#[test]
fn hot_rows_flow_the_cap_is_exact_and_nothing_is_left() {
    let s = server(4);
    let (done, high, goes_on) = (AtomicU64::new(0), AtomicU32::new(0), for_a_while(Duration::from_secs(3), 300));
    let ((), open) = most_open(&s, || {
        scope(|scope| {
            for i in 0..32 {
                let (s, done, high, goes_on) = (&s, &done, &high, &goes_on);
                scope.spawn(move || {
                    let mut c = s.client(if i % 2 == 0 { "a" } else { "b" });
                    while goes_on(done.load(Ordering::Relaxed)) {
                        for sql in
                            ["BEGIN", "UPDATE hot SET n=n+1 WHERE id=1", "UPDATE hot SET n=n+1 WHERE id=2", "COMMIT"]
                        {
                            ok(&mut c, sql);
                            high.fetch_max(s.inside().0, Ordering::Relaxed);
                        }
                        done.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
        })
    });
    println!("{done:?} transactions, high {high:?}, {:?}", s.counters());
    let done = done.into_inner();
    assert!(done >= 300);
    // Beside them, each client's login may have asked something.
    assert!(s.counters().finished.abs_diff(done) <= 2 * 32, "every transaction is counted");
    assert_eq!(high.into_inner(), 4);
    assert_capped(&s, open, 4);
    s.assert_empty();
}

#[test]
fn idle_transactions_lend_and_kill_reaches_the_held() {
    let s = server(2);
    let mut idle: Vec<Client> = (0..2).map(|_| s.client("a")).collect();
    idle.iter_mut().for_each(|c| ok(c, "BEGIN"));
    idle.iter_mut().enumerate().for_each(|(i, c)| ok(c, &format!("INSERT INTO hot VALUES ({}, 0)", 100 + i)));
    let mut other = s.client("b");
    let begun = Instant::now();
    for _ in 0..20 {
        ok(&mut other, "SELECT 1");
    }
    println!("20 statements beside idle transactions: {:?}", begun.elapsed());
    assert!(begun.elapsed() < Duration::from_secs(8));
    idle.iter_mut().for_each(|c| ok(c, "COMMIT"));
    s.set(|k| (k.p, k.stall_ns) = (1, 60_000_000_000));
    let id = other.mysql_id().unwrap();
    let mut monitor = s.client("root");
    let mut busy = s.client("a");
    busy.send("SELECT SLEEP(8)").unwrap();
    s.await_that(|s| s.inside().0 == 1);
    other.send("SELECT 1").unwrap();
    s.await_that(|s| s.inside().3 == 1);
    let begun = Instant::now();
    ok(&mut monitor, &format!("KILL {id}"));
    assert!(other.receive().is_err());
    assert!(begun.elapsed() < Duration::from_secs(4));
    busy.receive().unwrap();
    s.assert_empty();
}

#[test]
fn a_thousand_connections_leave_nothing_behind() {
    let s = server(2);
    scope(|scope| {
        for t in 0..8 {
            let s = &s;
            scope.spawn(move || {
                for i in 0..125 {
                    let mut c = s.client(if t % 2 == 0 { "a" } else { "b" });
                    match i % 4 {
                        0 => ok(&mut c, "BEGIN"),
                        1 => ok(&mut c, "SELECT 1"),
                        2 => c.send("SELECT 1").unwrap(),
                        _ => {}
                    }
                }
            });
        }
    });
    s.assert_empty();
    s.await_that(|s| s.known() == 0);
    ok(&mut s.client("root"), "SELECT 1");
}

#[test]
fn without_its_controller_the_gate_opens_and_a_restart_leaves_nothing() {
    let mut s = server(1);
    let (mut busy, mut other) = (s.client("a"), s.client("b"));
    s.set(|k| k.stall_ns = 60_000_000_000);
    busy.send("SELECT SLEEP(30)").unwrap();
    s.await_that(|s| s.inside().0 == 1);
    s.stop_heart();
    let begun = Instant::now();
    ok(&mut other, "SELECT 1");
    println!("let in after {:?}", begun.elapsed());
    assert!(begun.elapsed() < Duration::from_secs(8));
    s.start_heart();
    s.set(|k| k.open = 0);
    s.restart();
    s.await_ready("a", "t");
    s.assert_empty();
}

/// The controller can't arm a pooled connection's event: it must leave that to the pool's own threads.
#[test]
fn a_real_controller_raises_p_lowers_it_and_switches_off_with_clients_held() {
    let mut s = server(1);
    s.set(|k| (k.stall_ns, k.hold_max_ns) = (60_000_000_000, 60_000_000_000));
    s.tend(1);
    let (mut busy, mut killer) = (s.client("a"), s.client("root"));
    let id = busy.mysql_id().unwrap();
    let mut held: Vec<Client> = (0..6).map(|i| s.client(if i % 2 == 0 { "a" } else { "b" })).collect();
    let segment = s.segment.clone();
    let control = segment.control();
    for round in 0..3 {
        busy.send("SELECT SLEEP(20)").unwrap();
        s.await_inside((1, 0, 0, 0));
        for off in [false, true] {
            held.iter_mut().for_each(|c| c.send("SELECT 1").unwrap());
            s.await_that(|s| s.inside().3 == 6);
            let begun = Instant::now();
            if off {
                control.flags.store(2, Ordering::Relaxed);
            } else {
                control.p_wanted.store(8, Ordering::Relaxed);
            }
            held.iter_mut().for_each(|c| assert_eq!(c.receive().unwrap(), Answer::Ok));
            println!("round {round}, {}: all let in after {:?}", if off { "off" } else { "P = 8" }, begun.elapsed());
            assert!(begun.elapsed() < Duration::from_secs(12));
            control.p_wanted.store(1, Ordering::Relaxed);
            control.flags.store(0, Ordering::Relaxed);
            s.await_that(|s| s.p() == 1 && s.inside().0 == 1);
        }
        ok(&mut killer, &format!("KILL QUERY {id}"));
        busy.receive().unwrap();
        // An answer is out before its request has ended.
        s.await_inside((0, 0, 0, 0));
    }
}

/// A repaired gate tells all that run again: none of them may go to a second thread while the first still serves it.
#[test]
fn a_gate_that_is_repaired_under_load_gives_no_connection_to_two_threads() {
    let s = server(4);
    let repairs = AtomicU32::new(0);
    scope(|scope| {
        for i in 0..16 {
            let s = &s;
            scope.spawn(move || {
                let mut c = s.client(if i % 2 == 0 { "a" } else { "b" });
                during(Duration::from_secs(3), || {
                    ok(&mut c, "SELECT REPEAT('x', 20000), BENCHMARK(20000, MD5('x'))");
                    assert!(c.answer().len() > 20_000, "all of it, and nothing else");
                });
            });
        }
        during(Duration::from_secs(3), || {
            s.die_in_the_lock();
            s.await_that(|s| s.counters().repairs > u64::from(repairs.load(Ordering::Relaxed)));
            repairs.fetch_add(1, Ordering::Relaxed);
        });
    });
    println!("{repairs:?} repairs, {:?}", s.counters());
    assert!(repairs.into_inner() > 5);
    assert_eq!(s.counters().panics, 0);
    s.assert_empty();
}
