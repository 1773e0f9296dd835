//! The TCP proxy before real servers that nothing is preloaded into: the same cap, and each hazard with an upper bound.

mod common;

use common::observer::{assert_capped, most_open};
use common::{Server, for_a_while, needs};
use plimsoll_shape::drive::client::{Answer, Client};
use plimsoll_shape::gate::Knobs;
use plimsoll_shape::profile::Profile;
use std::net::TcpStream;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::thread::scope;
use std::time::{Duration, Instant};

const SECOND: Duration = Duration::from_secs(1);

fn mariadb(p: u32) -> Server {
    let knobs = Knobs { p, ..Knobs::default() };
    needs("/usr/sbin/mariadbd");
    Server::mariadb_as(Profile::MysqlThread, false, knobs, &[])
}

fn ok(c: &mut Client, sql: &str) {
    assert_eq!(c.query(sql).unwrap(), Answer::Ok, "{sql}");
}

fn direct(s: &Server, account: &str) -> Client {
    Client::connect(s.protocol, s.server_port, account, "t").unwrap()
}

/// At least `wanted` transactions on hot rows; how many, and the most inside.
fn hot_rows(s: &Server, clients: u64, wanted: u64) -> (u64, u32) {
    let (done, high, goes_on) = (AtomicU64::new(0), AtomicU32::new(0), for_a_while(2 * SECOND, wanted));
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
fn mariadb_flows_under_a_small_p_and_the_cap_is_exact() {
    let s = mariadb(4);
    let ((done, high), open) = most_open(&s, || hot_rows(&s, 24, 200));
    println!("{done} transactions, {:?}", s.counters());
    assert!(done >= 200);
    assert_eq!((high, s.counters().unparsed), (4, 0));
    assert_capped(&s, open, 4);
    let users: Vec<String> = s.users().into_iter().map(|u| u.0).collect();
    assert!(users.contains(&"a".into()) && users.contains(&"b".into()), "{users:?}");
    s.assert_empty();
}

#[test]
fn postgres_flows_too() {
    needs("/usr/lib/postgresql");
    let s = Server::postgres_as(false, Knobs { p: 3, ..Knobs::default() }, &[]);
    let ((done, high), open) = most_open(&s, || hot_rows(&s, 16, 100));
    println!("{done} transactions, {:?}", s.counters());
    assert!(done >= 100 && high == 3);
    assert_capped(&s, open, 3);
    s.assert_empty();
}

#[test]
fn a_held_client_that_vanishes_goes_at_once_and_kill_reaches_another() {
    let s = mariadb(1);
    s.set(|k| k.stall_ns = 60_000_000_000);
    let (mut busy, mut held, mut vanishing) = (s.client("a"), s.client("b"), s.client("b"));
    let id = held.mysql_id().unwrap();
    busy.send("SELECT SLEEP(10)").unwrap();
    s.await_inside((1, 0, 0, 0));
    held.send("SELECT 1").unwrap();
    vanishing.send("SELECT 1").unwrap();
    s.await_inside((1, 0, 0, 2));
    let begun = Instant::now();
    drop(vanishing);
    s.await_inside((1, 0, 0, 1));
    println!("a vanished client is out of the queue after {:?}", begun.elapsed());
    let begun = Instant::now();
    ok(&mut direct(&s, "root"), &format!("KILL {id}"));
    assert!(held.receive().is_err());
    println!("gone {:?} after KILL", begun.elapsed());
    assert!(begun.elapsed() < 5 * SECOND);
    s.await_inside((1, 0, 0, 0));
    drop(busy);
    s.assert_empty();
}

#[test]
fn idle_transactions_lend_through_the_proxy() {
    let s = mariadb(2);
    let mut idle: Vec<Client> = (0..2).map(|_| s.client("a")).collect();
    for (i, c) in idle.iter_mut().enumerate() {
        ok(c, "BEGIN");
        ok(c, &format!("INSERT INTO hot VALUES ({}, 0)", 100 + i));
    }
    let mut other = s.client("b");
    let begun = Instant::now();
    (0..20).for_each(|_| ok(&mut other, "SELECT 1"));
    println!("20 statements beside idle transactions: {:?}", begun.elapsed());
    assert!(begun.elapsed() < 8 * SECOND);
    idle.iter_mut().for_each(|c| ok(c, "COMMIT"));
    s.assert_empty();
}

#[test]
fn the_server_is_restarted_under_its_clients() {
    let mut s = mariadb(1);
    let (mut busy, mut held) = (s.client("a"), s.client("b"));
    s.set(|k| k.stall_ns = 60_000_000_000);
    busy.send("SELECT SLEEP(30)").unwrap();
    s.await_inside((1, 0, 0, 0));
    held.send("SELECT 1").unwrap();
    s.await_inside((1, 0, 0, 1));
    let begun = Instant::now();
    s.restart();
    s.await_ready("a", "t");
    println!("served again after {:?}", begun.elapsed());
    assert!(begun.elapsed() < 60 * SECOND);
    drop((busy, held));
    s.assert_empty();
    ok(&mut s.client("a"), "SELECT 1");
}

#[test]
fn a_thousand_connections_leave_nothing_behind() {
    let s = mariadb(2);
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
                        _ => drop(TcpStream::connect(("127.0.0.1", s.port))),
                    }
                }
            });
        }
    });
    s.assert_empty();
    s.await_that(|s| s.known() == 0);
    ok(&mut s.client("a"), "SELECT 1");
}
