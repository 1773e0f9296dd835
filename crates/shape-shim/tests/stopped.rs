//! A controller that was stopped while it had the gate's lock: the server goes on without the gate, and nothing is left in that.

mod common;

use common::{Server, needs};
use plimsoll_shape::drive::client::{Answer, Client};
use plimsoll_shape::gate::Knobs;
use plimsoll_shape::profile::Profile;
use plimsoll_shape::segment::FAILED_SHIM;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

const SECOND: Duration = Duration::from_secs(1);

fn strict() -> Knobs {
    Knobs { p: 1, stall_ns: 60_000_000_000, lend_ns: 60_000_000_000, hold_max_ns: 60_000_000_000, ..Knobs::default() }
}

fn ok(c: &mut Client, sql: &str) {
    assert_eq!(c.query(sql).unwrap(), Answer::Ok, "{sql}");
}

fn failed(s: &Server) -> u32 {
    s.segment.control().failed_open.load(Ordering::Relaxed) & FAILED_SHIM
}

/// One is inside, one is held and one is at rest when it happens.
fn goes_on(mut s: Server, sleep: &str) {
    let shimmed = s.port == s.server_port;
    let (mut busy, mut held, mut rests) = (s.client("a"), s.client("b"), s.client("b"));
    busy.send(sleep).unwrap();
    s.await_inside((1, 0, 0, 0));
    held.send("SELECT 1").unwrap();
    s.await_inside((1, 0, 0, 1));
    let (stopped, guard) = s.stopped_in_the_lock();
    let begun = Instant::now();
    ok(&mut rests, "SELECT 1");
    assert_eq!(held.receive().unwrap(), Answer::Ok);
    let took = begun.elapsed();
    // Not for ever; how long, a busy machine decides. From then on without waiting again.
    assert!(took < 20 * SECOND, "{took:?}");
    ok(&mut rests, "SELECT 1");
    let mut new = s.client("a");
    ok(&mut new, "SELECT 1");
    println!("{}: all go on after {took:?}, {:?} with a new one", s.protocol_name(), begun.elapsed());
    drop(guard);
    drop(stopped);
    if s.launch.profile == Profile::Postgres && shimmed {
        // Those of `held`, `rests` and `new` give back what they owe though their clients are silent.
        s.await_that(|s| s.counters().stuck >= 3);
    }
    assert_eq!(busy.receive().unwrap(), Answer::Ok);
    for c in [&mut busy, &mut held, &mut rests, &mut new] {
        ok(c, "SELECT 1");
    }
    assert_eq!(s.counters().repairs, 0, "the lock was its owner's all the time");
    if s.launch.profile == Profile::Postgres && shimmed {
        // New processes are shaped.
        assert_eq!(failed(&s), 0);
        s.assert_empty();
        let before = s.counters().finished;
        ok(&mut s.client("a"), "SELECT 1");
        s.await_that(|s| s.counters().finished > before);
        s.assert_empty();
        assert!(s.counters().stuck >= 3, "{:?}", s.counters());
        return;
    }
    assert_eq!(failed(&s), FAILED_SHIM);
    // Its places are given back while its clients stay.
    s.await_that(|s| s.counters().stuck == 1 && s.known() == 0);
    s.assert_empty();
    if shimmed {
        s.restart();
        s.await_ready("a", "t");
        assert_eq!(failed(&s), 0, "until the next start");
        s.assert_empty();
    }
}

#[test]
fn mariadb_goes_on_beside_a_stopped_controller() {
    needs("/usr/sbin/mariadbd");
    for (profile, how) in [
        (Profile::MysqlThread, "--thread-handling=one-thread-per-connection"),
        (Profile::MysqlPool, "--thread-handling=pool-of-threads"),
    ] {
        goes_on(Server::mariadb(profile, strict(), &[how]), "SELECT SLEEP(5)");
    }
}

#[test]
fn postgres_goes_on_and_its_next_processes_are_shaped() {
    needs("/usr/lib/postgresql");
    goes_on(Server::postgres(strict(), &[]), "SELECT pg_sleep(5)");
}

#[test]
fn the_proxy_goes_on_too() {
    needs("/usr/lib/postgresql");
    goes_on(Server::postgres_as(false, strict(), &[]), "SELECT pg_sleep(5)");
}
