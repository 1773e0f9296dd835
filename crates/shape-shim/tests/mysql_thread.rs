//! MariaDB with a thread for each connection: the cap, and each hazard with an upper bound.

mod common;

use common::observer::{assert_capped, most_open};
use common::{Server, for_a_while, needs};
use plimsoll_base::Time;
use plimsoll_shape::drive::client::{Answer, Client};
use plimsoll_shape::gate::Knobs;
use plimsoll_shape::profile::Profile;
use plimsoll_shape::segment::monotonic;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

const SECOND: Duration = Duration::from_secs(1);

fn server(p: u32) -> Server {
    needs("/usr/sbin/mariadbd");
    Server::mariadb(Profile::MysqlThread, Knobs { p, ..Knobs::default() }, &[])
}

fn ok(c: &mut Client, sql: &str) {
    assert_eq!(c.query(sql).unwrap(), Answer::Ok, "{sql}");
}

/// Three updates of hot rows in one transaction, in an order that can't deadlock.
fn hot_transaction(c: &mut Client, seed: u64) {
    ok(c, "BEGIN");
    for row in 1 + seed % 2..4 {
        ok(c, &format!("UPDATE hot SET n = n + 1 WHERE id = {row}"));
    }
    ok(c, "COMMIT");
}

/// Shorter than the ten seconds after which whoever is held is let in: who pauses for less wasn't forgotten by the gate.
const PAUSE_MAX: Duration = Duration::from_secs(8);

/// Runs clients while `goes_on` says so of the transactions that are done; how many they are, and the longest pause between two of anybody.
fn load(s: &Server, clients: u64, goes_on: impl Fn(u64) -> bool + Sync) -> (u64, Duration) {
    let done = AtomicU64::new(0);
    let last = AtomicU64::new(0);
    let longest = AtomicU64::new(0);
    let begun = Instant::now();
    scope(|scope| {
        for i in 0..clients {
            let (done, last, longest, goes_on) = (&done, &last, &longest, &goes_on);
            scope.spawn(move || {
                let mut c = s.client(if i % 2 == 0 { "a" } else { "b" });
                while goes_on(done.load(Ordering::Relaxed)) {
                    hot_transaction(&mut c, i);
                    let now = begun.elapsed().as_millis() as u64;
                    longest.fetch_max(now.saturating_sub(last.swap(now, Ordering::Relaxed)), Ordering::Relaxed);
                    done.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    (done.load(Ordering::Relaxed), Duration::from_millis(longest.load(Ordering::Relaxed)))
}

#[test]
fn hot_rows_under_a_small_p_flow_and_the_cap_is_exact() {
    let s = server(4);
    let watching = AtomicBool::new(true);
    let high = AtomicU32::new(0);
    let ((done, pause), open) = most_open(&s, || {
        scope(|scope| {
            scope.spawn(|| {
                while watching.load(Ordering::Relaxed) {
                    high.fetch_max(s.inside().0, Ordering::Relaxed);
                    sleep(Duration::from_micros(200));
                }
            });
            let out = load(&s, 48, for_a_while(3 * SECOND, 300));
            watching.store(false, Ordering::Relaxed);
            out
        })
    });
    println!("{done} transactions, longest pause {pause:?}, {:?}", s.counters());
    assert!(done >= 300 && pause < PAUSE_MAX);
    assert_eq!(high.load(Ordering::Relaxed), 4);
    assert_capped(&s, open, 4);
    assert_eq!((s.counters().panics, s.counters().unparsed), (0, 0));
    s.assert_empty();
}

#[test]
fn clients_idle_in_a_transaction_lend_their_places() {
    let s = server(4);
    let mut idle: Vec<Client> = (0..4).map(|_| s.client("a")).collect();
    for (i, c) in idle.iter_mut().enumerate() {
        ok(c, "BEGIN");
        ok(c, &format!("INSERT INTO hot VALUES ({}, 0)", 100 + i));
    }
    let (done, pause) = load(&s, 8, for_a_while(2 * SECOND, 100));
    let begun = Instant::now();
    idle.iter_mut().for_each(|c| ok(c, "COMMIT"));
    println!("{done} transactions, longest pause {pause:?}; the idle ones commit in {:?}", begun.elapsed());
    assert!(done >= 100 && pause < PAUSE_MAX && begun.elapsed() < PAUSE_MAX);
    assert!(s.counters().lent >= 4);
    s.assert_empty();
}

#[test]
fn a_lock_that_no_flag_shows_is_followed_by_its_words() {
    let s = server(2);
    let goes_on = for_a_while(2 * SECOND, 100);
    let (done, longest) = (AtomicU64::new(0), AtomicU64::new(0));
    scope(|scope| {
        for _ in 0..12 {
            scope.spawn(|| {
                let mut c = s.client("a");
                while goes_on(done.load(Ordering::Relaxed)) {
                    let begun = Instant::now();
                    ok(&mut c, "SELECT GET_LOCK('x', 20)");
                    ok(&mut c, "SELECT 1");
                    ok(&mut c, "SELECT RELEASE_LOCK('x')");
                    longest.fetch_max(begun.elapsed().as_millis() as u64, Ordering::Relaxed);
                    done.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    println!("{done:?} turns, longest {longest:?} ms, {:?}", s.counters());
    assert!(done.into_inner() >= 100 && Duration::from_millis(longest.into_inner()) < PAUSE_MAX);
    s.assert_empty();
}

#[test]
fn a_lock_that_nothing_shows_is_survived_by_the_stall_escape() {
    let s = server(2);
    s.sql(
        "root",
        "t",
        &["CREATE PROCEDURE take() SELECT GET_LOCK('x', 120)", "CREATE PROCEDURE give() SELECT RELEASE_LOCK('x')"],
    );
    let begun = Instant::now();
    scope(|scope| {
        for _ in 0..12 {
            scope.spawn(|| {
                let mut c = s.client("a");
                for _ in 0..3 {
                    ok(&mut c, "CALL take()");
                    ok(&mut c, "CALL give()");
                }
            });
        }
    });
    println!("36 turns in {:?}, {:?}", begun.elapsed(), s.counters());
    assert!(s.counters().stall_escapes > 0 && begun.elapsed() < 60 * SECOND);
    s.assert_empty();
}

#[test]
fn kill_reaches_a_held_connection_and_a_vanished_client_leaves_nothing() {
    let s = server(1);
    let mut busy = s.client("a");
    let mut held = s.client("b");
    let id = held.mysql_id().unwrap();
    let mut vanishing = s.client("b");
    let mut monitor = s.client("root");
    let sleeps = busy.mysql_id().unwrap();
    // The end of a client's last statement is seen a little after its answer.
    s.await_inside((0, 0, 0, 0));
    busy.send("SELECT SLEEP(600)").unwrap();
    s.await_inside((1, 0, 0, 0));
    // An escape would let them in: not what is tested here.
    s.set(|k| (k.stall_ns, k.hold_max_ns) = (600_000_000_000, 600_000_000_000));
    held.send("SELECT 1").unwrap();
    vanishing.send("SELECT 1").unwrap();
    s.await_inside((1, 0, 0, 2));
    drop(vanishing);
    let begun = Instant::now();
    ok(&mut monitor, &format!("KILL {id}"));
    assert!(held.receive().is_err());
    println!("gone {:?} after KILL", begun.elapsed());
    assert_eq!(s.inside().0, 1, "and not because the place was free");
    ok(&mut monitor, &format!("KILL QUERY {sleeps}"));
    busy.receive().unwrap();
    s.assert_empty();
}

#[test]
fn p_is_changed_under_load() {
    let s = &server(4);
    let over = AtomicBool::new(false);
    scope(|scope| {
        let too_late = Instant::now() + 80 * SECOND;
        let over = &over;
        let running = scope.spawn(move || load(s, 16, |_| !over.load(Ordering::Relaxed) && Instant::now() < too_late));
        s.await_that(|s| s.counters().finished > 20);
        s.set(|k| (k.p, k.hold_max_ns) = (0, 60_000_000_000));
        s.await_that(|s| matches!(s.inside(), (0, 0, 0, 16)));
        let before = s.counters().finished;
        sleep(SECOND / 4);
        assert_eq!(s.counters().finished, before, "P = 0 holds all");
        s.set(|k| k.p = 64);
        s.await_that(|s| s.counters().finished > before + 20);
        over.store(true, Ordering::Relaxed);
        running.join().unwrap();
    });
    s.assert_empty();
}

#[test]
fn without_its_controller_the_gate_opens_and_with_it_it_closes() {
    let mut s = server(1);
    let mut busy = s.client("a");
    let mut other = s.client("b");
    s.set(|k| k.stall_ns = 60_000_000_000);
    let (sleeps, mut monitor) = (busy.mysql_id().unwrap(), s.client("root"));
    // The end of a client's last statement is seen a little after its answer.
    s.await_inside((0, 0, 0, 0));
    busy.send("SELECT SLEEP(600)").unwrap();
    s.await_inside((1, 0, 0, 0));
    s.stop_heart();
    let begun = Instant::now();
    ok(&mut other, "SELECT 1");
    println!("let in after {:?}", begun.elapsed());
    assert_eq!(s.counters().opened, 1, "and not because the place was free");
    assert_eq!(s.segment.control().failed_open.load(Ordering::Relaxed), 1);
    s.start_heart();
    s.set(|k| k.open = 0);
    other.send("SELECT 1").unwrap();
    s.await_that(|s| s.inside().3 == 1);
    assert_eq!(s.counters().opened, 1, "held again");
    ok(&mut monitor, &format!("KILL QUERY {sleeps}"));
    busy.receive().unwrap();
    other.receive().unwrap();
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
    let begun = Instant::now();
    loop {
        let mut guard = s.segment.lock(std::process::id(), plimsoll_shape::segment::monotonic());
        let left: u32 = guard.gate().known_users().iter().map(|u| u.conns).sum();
        drop(guard);
        if left == 0 {
            break;
        }
        assert!(begun.elapsed() < 20 * SECOND, "{left} connections left");
        sleep(SECOND / 50);
    }
    let mut monitor = s.client("root");
    ok(&mut monitor, "SELECT 1");
}

#[test]
fn answers_are_the_same_with_and_without() {
    let s = server(1);
    let mut c = s.client("a");
    for sql in [
        "SELECT * FROM hot",
        "SELECT 1; SELECT 2",
        "SELECT REPEAT('x', 100000)",
        "PREPARE s FROM 'SELECT ?'",
        "EXECUTE s USING 5",
        "SELECT nothing",
        "SHOW TABLES",
        "DO 1",
        "CHECK TABLE hot",
        "SELECT SEQ FROM mysql.nothing",
    ] {
        let one = (c.query(sql).unwrap(), c.answer().to_vec());
        s.set(|k| k.open = 1);
        assert_eq!((c.query(sql).unwrap(), c.answer().to_vec()), one, "{sql}");
        s.set(|k| k.open = 0);
        assert!(!c.is_open());
    }
    assert_eq!(s.counters().unparsed, 0);
    drop(c);
    s.assert_empty();
}

#[test]
fn the_server_is_restarted_or_killed_with_clients_held_and_inside() {
    let mut s = server(1);
    restarted(&mut s, Server::restart);
    println!("now by kill -9");
    restarted(&mut s, Server::restart_killed);
}

fn restarted(s: &mut Server, how: fn(&mut Server)) {
    s.set(|k| k.stall_ns = 60_000_000_000);
    let (mut busy, mut held) = (s.client("a"), s.client("b"));
    // The one inside is to be the busy one, not the last of those before.
    s.assert_empty();
    busy.send("SELECT SLEEP(60)").unwrap();
    s.await_inside((1, 0, 0, 0));
    held.send("SELECT 1").unwrap();
    s.await_inside((1, 0, 0, 1));
    let begun = Instant::now();
    how(s);
    s.await_ready("a", "t");
    println!("served again after {:?}", begun.elapsed());
    assert!(begun.elapsed() < 60 * SECOND);
    assert!(held.receive().is_err());
    s.assert_empty();
    ok(&mut s.client("b"), "SELECT 1");
}

/// Transactions of two users in the same time, with these numbers of connections; 300 or more in all, so that a few don't decide.
fn shares(s: &Server, connections: [usize; 2]) -> [u64; 2] {
    let done = [AtomicU64::new(0), AtomicU64::new(0)];
    // All are connected before any begins: who is alone meanwhile shares with nobody.
    let of = |who: usize| (0..connections[who]).map(move |_| (who, s.client(["a", "b"][who])));
    let clients: Vec<(usize, Client)> = of(0).chain(of(1)).collect();
    let (begin, goes_on) = (Barrier::new(clients.len()), for_a_while(2 * SECOND, 300));
    scope(|scope| {
        for (who, mut c) in clients {
            let (done, begin, goes_on) = (&done, &begin, &goes_on);
            scope.spawn(move || {
                begin.wait();
                // Each takes longer than a client that waits for a core: else the few would often have none that waits.
                while goes_on(done.iter().map(|d| d.load(Ordering::Relaxed)).sum()) {
                    ok(&mut c, "SELECT BENCHMARK(20000, MD5('x'))");
                    done[who].fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    done.map(AtomicU64::into_inner)
}

#[test]
fn users_share_by_weight_and_not_by_connections() {
    let s = server(2);
    s.set(|k| k.zeta = 1);
    let [many, few] = shares(&s, [28, 6]);
    println!("28 connections: {many}, 6 connections: {few}");
    assert!(many < few * 3 / 2 && few < many * 3 / 2, "ungated it would be five to one");
    s.set_weight("b", 3000);
    let [one, three] = shares(&s, [12, 12]);
    println!("weight 1: {one}, weight 3: {three}");
    assert!(three > one * 2 && three < one * 4);
    s.assert_empty();
}

/// Users' entries are given back to who needs one; who comes while there are none is served like anybody, in `others`' turns.
#[test]
fn beyond_the_last_entry_of_the_users_table_the_next_are_served_in_one() {
    let s = server(2);
    let finished = |name: &str| s.users().into_iter().find(|u| u.0 == name).map(|u| u.1);
    s.fill_users("old", Time::ZERO);
    s.reset();
    let mut a = s.client("a");
    // An answer is out before its account is looked up.
    s.await_that(|s| (s.counters().given_back, s.counters().overflow) == (1, 0));
    s.fill_users("new", monotonic());
    s.reset();
    let mut b = s.client("b");
    let begun = Instant::now();
    for i in 0..20 {
        hot_transaction(&mut a, i);
        hot_transaction(&mut b, i);
    }
    assert!(begun.elapsed() < 20 * SECOND);
    assert_eq!((s.counters().given_back, s.counters().overflow), (0, 1));
    // An answer is out before its request has ended: that is when the server's thread reads again.
    s.await_that(|_| finished("a") >= Some(20) && finished("others") >= Some(20));
    assert_eq!(finished("b"), None);
    drop((a, b));
    s.assert_empty();
}
