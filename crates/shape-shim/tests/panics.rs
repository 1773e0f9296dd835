//! A mistake of ours inside a server: the shim switches itself off there, nobody hangs, and it is said.

mod common;

use common::{Server, needs};
use plimsoll_shape::drive::client::Answer;
use plimsoll_shape::gate::Knobs;
use plimsoll_shape::profile::Profile;
use plimsoll_shape::segment::FAILED_SHIM;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

const SECOND: Duration = Duration::from_secs(1);

fn strict() -> Knobs {
    Knobs { p: 1, stall_ns: 60_000_000_000, lend_ns: 60_000_000_000, hold_max_ns: 60_000_000_000, ..Knobs::default() }
}

/// One is inside, three are held, and the gate breaks.
fn broken(mut s: Server, sleep: &str) -> u32 {
    let mut busy = s.client("a");
    let mut held: Vec<_> = (0..3).map(|_| s.client("b")).collect();
    busy.send(sleep).unwrap();
    s.await_inside((1, 0, 0, 0));
    held.iter_mut().for_each(|c| c.send("SELECT 1").unwrap());
    s.await_inside((1, 0, 0, 3));
    let begun = Instant::now();
    // With more places than there are waiting, the next that looks falls over the rest; that must be the server, not the test's own heart.
    s.pause_heart();
    s.break_gate(16);
    held.iter_mut().for_each(|c| assert_eq!(c.receive().unwrap(), Answer::Ok));
    println!("{}: all are let go after {:?}, {:?}", s.protocol_name(), begun.elapsed(), s.counters());
    assert!(begun.elapsed() < 15 * SECOND);
    // It is counted after those that waited were let go.
    s.await_that(|s| s.counters().panics >= 1);
    s.tend(1);
    assert_eq!(busy.receive().unwrap(), Answer::Ok);
    let mut new = s.client("a");
    held.iter_mut().chain([&mut new]).for_each(|c| assert_eq!(c.query("SELECT 1").unwrap(), Answer::Ok));
    s.assert_empty();
    // A controller that is there doesn't take it back.
    let failed = s.segment.control().failed_open.load(Ordering::Relaxed);
    if failed & FAILED_SHIM != 0 {
        s.restart();
        s.await_ready("a", "t");
        assert_eq!(s.segment.control().failed_open.load(Ordering::Relaxed) & FAILED_SHIM, 0, "until the next start");
    }
    failed
}

#[test]
fn mariadb_goes_on_without_the_shim_and_that_is_said() {
    needs("/usr/sbin/mariadbd");
    for (profile, how) in [
        (Profile::MysqlThread, "--thread-handling=one-thread-per-connection"),
        (Profile::MysqlPool, "--thread-handling=pool-of-threads"),
    ] {
        let s = Server::mariadb(profile, strict(), &[how]);
        assert_eq!(broken(s, "SELECT SLEEP(6)"), FAILED_SHIM, "{how}");
    }
}

/// One process is without the shim, the others go on.
#[test]
fn a_process_of_postgres_whose_client_is_held_lets_it_go() {
    needs("/usr/lib/postgresql");
    assert_eq!(broken(Server::postgres(strict(), &[]), "SELECT pg_sleep(6)"), 0);
}

/// Of three events that the server is handed at once, the first is withheld, the second passes, and the shim fails over the third: each
/// comes to the server, once.
///
/// In a build without debug assertions the broken counter wraps and nothing fails.
#[cfg(debug_assertions)]
#[test]
fn a_failure_amid_a_batch_of_events_loses_none_and_doubles_none() {
    needs("/usr/bin/python3");
    let s = Server::pooled(strict());
    let mut inside = s.client("inside");
    assert_eq!(inside.query("BEGIN").unwrap(), Answer::Ok);
    s.await_inside((1, 0, 0, 0));
    let (mut waits, mut passes, mut fails) = (s.client("waits"), s.client("passes"), s.client("fails"));
    s.await_that(|s| s.known() == 4);
    s.break_user("fails");
    // All three have come before it looks.
    let server = rustix::process::Pid::from_child(&s.child);
    rustix::process::kill_process(server, rustix::process::Signal::STOP).unwrap();
    waits.send("SELECT 1").unwrap();
    passes.send("KILL 1").unwrap();
    fails.send("SELECT 1").unwrap();
    rustix::process::kill_process(server, rustix::process::Signal::CONT).unwrap();
    for c in [&mut waits, &mut passes, &mut fails] {
        assert_eq!(c.receive().unwrap(), Answer::Ok);
    }
    assert_eq!(s.segment.control().failed_open.load(Ordering::Relaxed), FAILED_SHIM);
    assert_eq!(s.counters().panics, 1);
    assert_eq!(waits.query("SELECT 1").unwrap(), Answer::Ok);
    assert_eq!(waits.answer()[5], 0, "events without anything to read");
}
