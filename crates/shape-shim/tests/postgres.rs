//! PostgreSQL: a process for each connection, held in epoll with the latch live.

mod common;

use common::observer::{assert_capped, most_open};
use common::{Server, for_a_while, needs};
use plimsoll_shape::drive::client::{Answer, Client};
use plimsoll_shape::gate::Knobs;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

const SECOND: Duration = Duration::from_secs(1);

fn server(p: u32) -> Server {
    needs("/usr/lib/postgresql");
    Server::postgres(Knobs { p, ..Knobs::default() }, &[])
}

fn ok(c: &mut Client, sql: &str) {
    assert_eq!(c.query(sql).unwrap(), Answer::Ok, "{sql}");
}

fn load(s: &Server, clients: u64, goes_on: impl Fn(u64) -> bool + Sync) -> (u64, u32) {
    let (done, high) = (AtomicU64::new(0), AtomicU32::new(0));
    scope(|scope| {
        for i in 0..clients {
            let (done, high, goes_on) = (&done, &high, &goes_on);
            scope.spawn(move || {
                let mut c = s.client(if i % 2 == 0 { "a" } else { "b" });
                while goes_on(done.load(Ordering::Relaxed)) {
                    for sql in ["BEGIN", "UPDATE hot SET n=n+1 WHERE id=1", "UPDATE hot SET n=n+1 WHERE id=2", "COMMIT"]
                    {
                        ok(&mut c, sql);
                        high.fetch_max(s.inside().0, Ordering::Relaxed);
                    }
                    done.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    (done.into_inner(), high.into_inner())
}

#[test]
fn hot_rows_flow_and_the_cap_is_exact() {
    let s = server(4);
    let ((done, high), open) = most_open(&s, || load(&s, 24, for_a_while(3 * SECOND, 300)));
    println!("{done} transactions, high {high}, {:?}", s.counters());
    assert!(done >= 300);
    assert_eq!(high, 4);
    assert_capped(&s, open, 4);
    s.assert_empty();
}

/// However a test ends, what keeps the cores busy does.
struct Stop<'a>(&'a AtomicBool);
impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

/// A process that is descheduled between looking for a request and reading it reads only what it saw: a request that came meanwhile
/// asks for its place.
#[test]
fn on_busy_cores_nobody_goes_in_unasked() {
    let s = server(4);
    // A client that gets no core in time must not look silent, nor the server stalled: nobody escapes.
    s.set(|k| (k.lend_ns, k.stall_ns, k.hold_max_ns) = (60_000_000_000, 60_000_000_000, 60_000_000_000));
    let busy = AtomicBool::new(true);
    let ((done, high), open) = scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while busy.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        let _stop = Stop(&busy);
        most_open(&s, || load(&s, 24, for_a_while(3 * SECOND, 20)))
    });
    let c = s.counters();
    println!("{done} transactions, high {high}, {open} open, {c:?}");
    assert_eq!((c.bypass, c.lent, c.stall_escapes, c.hold_escapes), (0, 0, 0, 0));
    assert!(done >= 20 && (1..=4).contains(&open), "{done} done, {open} open");
    s.assert_empty();
}

#[test]
fn idle_transactions_lend_their_places() {
    let s = server(2);
    let mut idle: Vec<Client> = (0..2).map(|_| s.client("a")).collect();
    for (i, c) in idle.iter_mut().enumerate() {
        ok(c, "BEGIN");
        ok(c, &format!("INSERT INTO hot VALUES ({}, 0)", 100 + i));
    }
    let (done, _) = load(&s, 4, for_a_while(SECOND, 50));
    let begun = Instant::now();
    idle.iter_mut().for_each(|c| ok(c, "COMMIT"));
    println!("{done} transactions beside idle ones, which commit in {:?}", begun.elapsed());
    assert!(done >= 50 && begun.elapsed() < 8 * SECOND, "sooner than whoever is held is let in");
    s.assert_empty();
}

#[test]
fn terminate_reaches_the_held_and_a_vanished_client_leaves_nothing() {
    let s = server(1);
    s.set(|k| k.stall_ns = 60_000_000_000);
    let (mut busy, mut held, mut vanishing) = (s.client("a"), s.client("b"), s.client("b"));
    let mut monitor = s.client("root");
    ok(&mut monitor, "BEGIN");
    ok(&mut monitor, "COMMIT");
    s.set(|k| k.p = 2);
    ok(&mut monitor, "BEGIN");
    busy.send("SELECT pg_sleep(8)").unwrap();
    s.await_that(|s| s.inside().0 + s.inside().2 == 2);
    s.set(|k| (k.p, k.lend_ns) = (1, 60_000_000_000));
    held.send("SELECT 1").unwrap();
    vanishing.send("SELECT 1").unwrap();
    s.await_that(|s| s.inside().3 == 2);
    drop(vanishing);
    let begun = Instant::now();
    ok(&mut monitor, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'b'");
    assert!(held.receive().is_err() || !held.answer().is_empty());
    println!("gone {:?} after pg_terminate_backend", begun.elapsed());
    assert!(begun.elapsed() < 4 * SECOND);
    ok(&mut monitor, "COMMIT");
    busy.receive().unwrap();
    s.assert_empty();
}

#[test]
fn a_killed_backend_gives_its_place_back() {
    let s = server(1);
    let mut busy = s.client("a");
    ok(&mut busy, "SELECT pg_backend_pid()");
    let digits: String = busy.answer().iter().map(|b| char::from(*b)).collect();
    let pid: u32 = digits
        .split(|c: char| !c.is_ascii_digit())
        .filter_map(|w| w.parse().ok())
        .rfind(|p: &u32| std::path::Path::new(&format!("/proc/{p}")).exists() && *p > 100)
        .unwrap();
    busy.send("SELECT pg_sleep(30)").unwrap();
    s.await_that(|s| s.inside().0 == 1);
    let begun = Instant::now();
    assert!(std::process::Command::new("kill").args(["-9", &pid.to_string()]).status().unwrap().success());
    // The postmaster restarts everything; then new clients are served again.
    let served = || Client::connect(s.protocol, s.port, "b", "t").and_then(|mut c| c.query("SELECT 1"));
    while !matches!(served(), Ok(Answer::Ok)) {
        assert!(begun.elapsed() < 60 * SECOND, "{}", s.log());
        sleep(SECOND / 10);
    }
    println!("served again {:?} after kill -9", begun.elapsed());
    s.await_that(|s| s.counters().reaped >= 1);
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
                    match i % 3 {
                        0 => ok(&mut c, "BEGIN"),
                        1 => ok(&mut c, "SELECT 1"),
                        _ => c.send("SELECT 1").unwrap(),
                    }
                }
            });
        }
    });
    s.assert_empty();
    s.await_that(|s| s.known() == 0);
}

#[test]
fn a_lock_of_the_session_is_followed_and_p_is_changed_under_load() {
    let s = server(2);
    let (done, longest) = (AtomicU64::new(0), AtomicU64::new(0));
    let seen = AtomicBool::new(false);
    scope(|scope| {
        for _ in 0..10 {
            scope.spawn(|| {
                let mut c = s.client("a");
                // Until all has been seen, or it's too late for it.
                let end = Instant::now() + 80 * SECOND;
                while !seen.load(Ordering::Relaxed) && Instant::now() < end {
                    let begun = Instant::now();
                    ok(&mut c, "SELECT pg_advisory_lock(1)");
                    ok(&mut c, "SELECT 1");
                    ok(&mut c, "SELECT pg_advisory_unlock(1)");
                    longest.fetch_max(begun.elapsed().as_millis() as u64, Ordering::Relaxed);
                    done.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        // From 2 to 0 to 16 while they run.
        // Each statement of a session that only holds a lock is a transaction of its own.
        s.await_that(|s| s.counters().finished > 150);
        s.set(|k| (k.p, k.hold_max_ns) = (0, 30_000_000_000));
        s.await_that(|s| s.inside().0 == 0 && s.inside().3 > 0);
        s.set(|k| k.p = 16);
        let before = s.counters().finished;
        s.await_that(|s| s.counters().finished > before + 60);
        seen.store(true, Ordering::Relaxed);
    });
    println!("{done:?} turns, longest {longest:?} ms, {:?}", s.counters());
    assert!(done.into_inner() > 50 && longest.into_inner() < 20_000);
    s.assert_empty();
}

#[test]
fn without_its_controller_the_gate_opens() {
    let mut s = server(1);
    let (mut busy, mut other) = (s.client("a"), s.client("b"));
    s.set(|k| k.stall_ns = 60_000_000_000);
    busy.send("SELECT pg_sleep(12)").unwrap();
    s.await_inside((1, 0, 0, 0));
    s.stop_heart();
    let begun = Instant::now();
    ok(&mut other, "SELECT 1");
    println!("let in after {:?}", begun.elapsed());
    assert!(begun.elapsed() < 8 * SECOND);
    assert_eq!(s.segment.control().failed_open.load(Ordering::Relaxed), 1);
    drop(busy);
}

#[test]
fn the_server_is_restarted_with_clients_held_and_inside() {
    let mut s = server(1);
    s.set(|k| k.stall_ns = 60_000_000_000);
    let (mut busy, mut held) = (s.client("a"), s.client("b"));
    busy.send("SELECT pg_sleep(60)").unwrap();
    s.await_inside((1, 0, 0, 0));
    held.send("SELECT 1").unwrap();
    s.await_inside((1, 0, 0, 1));
    let begun = Instant::now();
    s.restart();
    s.await_ready("a", "t");
    println!("served again after {:?}", begun.elapsed());
    assert!(begun.elapsed() < 60 * SECOND);
    s.assert_empty();
    ok(&mut s.client("b"), "SELECT 1");
}

#[test]
fn copy_both_ways_and_errors_in_transactions_are_followed() {
    let s = server(1);
    let run = |script: &str| {
        let mut c = std::process::Command::new("psql");
        c.arg(format!("host=127.0.0.1 port={} user=a dbname=t", s.port)).args(["-q", "-t", "-A"]);
        c.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped());
        c.stderr(std::process::Stdio::null());
        let mut c = c.spawn().expect("psql (`make test` installs it)");
        std::io::Write::write_all(&mut c.stdin.take().unwrap(), script.as_bytes()).unwrap();
        String::from_utf8(c.wait_with_output().unwrap().stdout).unwrap()
    };
    let rows: String = (10..3010).map(|i| format!("{i}\t1\n")).collect();
    let said = run(&format!("COPY hot FROM STDIN;\n{rows}\\.\nSELECT count(*) FROM hot;\n"));
    assert_eq!(said.trim(), "3004");
    assert_eq!(run("COPY (SELECT id FROM hot WHERE id > 10 ORDER BY id) TO STDOUT;\n").lines().count(), 2999);
    let said = run("BEGIN; SELECT 1/0; SELECT 1; ROLLBACK; SELECT 'after';\n");
    assert_eq!(said.trim(), "after");
    assert_eq!((s.counters().unparsed, s.counters().panics, s.counters().stall_escapes), (0, 0, 0));
    s.assert_empty();
}
