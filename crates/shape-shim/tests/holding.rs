//! Tests of what takes a place: halves of requests, locks of a session, transactions that are busy for long.

mod common;

use common::{Server, during, needs};
use plimsoll_shape::drive::client::{Answer, Client};
use plimsoll_shape::gate::Knobs;
use plimsoll_shape::profile::Profile;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::scope;
use std::time::{Duration, Instant};

const SECOND: Duration = Duration::from_secs(1);

/// Nothing is lent and nothing escapes: a place that is taken stays taken.
fn strict(p: u32) -> Knobs {
    Knobs { p, stall_ns: 60_000_000_000, lend_ns: 60_000_000_000, hold_max_ns: 60_000_000_000, ..Knobs::default() }
}

fn mariadb(knobs: Knobs) -> Server {
    needs("/usr/sbin/mariadbd");
    Server::mariadb(Profile::MysqlThread, knobs, &[])
}

fn postgres(knobs: Knobs) -> Server {
    needs("/usr/lib/postgresql");
    Server::postgres(knobs, &[])
}

fn ok(c: &mut Client, sql: &str) {
    assert_eq!(c.query(sql).unwrap(), Answer::Ok, "{sql}");
}

/// A client that leaves it at half of a long statement.
fn half_a_request(s: &Server, kind: &[u8], text: usize) {
    let mut half = s.client("a");
    half.send_bytes(&[kind, b"SELECT '", &vec![b'x'; text / 2]].concat()).unwrap();
    let mut other = s.client("b");
    let begun = Instant::now();
    (0..20).for_each(|_| ok(&mut other, "SELECT 1"));
    println!("20 statements beside half of one: {:?}", begun.elapsed());
    assert!(begun.elapsed() < 20 * SECOND);
    s.assert_empty();
    half.send_bytes(&[vec![b'x'; text - text / 2], b"'".to_vec()].concat()).unwrap();
    if s.protocol == plimsoll_shape::walk::Protocol::Postgres {
        half.send_bytes(&[0]).unwrap();
    }
    assert_eq!(half.receive().unwrap(), Answer::Ok);
    s.assert_empty();
    assert!(s.counters().finished >= 21, "and when it's whole it counts: {:?}", s.counters());
}

#[test]
fn half_of_a_request_takes_no_place() {
    const TEXT: usize = 30_000;
    let length = (1 + 8 + TEXT as u32 + 1).to_le_bytes();
    half_a_request(&mariadb(strict(1)), &[length[0], length[1], length[2], 0, 3], TEXT);
    let length = (4 + 8 + TEXT as u32 + 2).to_be_bytes();
    half_a_request(&postgres(strict(1)), &[&b"Q"[..], &length].concat(), TEXT);
}

#[test]
fn a_session_that_only_holds_a_lock_is_in_nobodys_way() {
    let s = postgres(strict(1));
    let (mut pinned, mut other) = (s.client("a"), s.client("b"));
    ok(&mut pinned, "SELECT pg_advisory_lock(1)");
    s.await_that(|s| s.inside().0 == 0);
    let begun = Instant::now();
    for _ in 0..20 {
        ok(&mut other, "SELECT 1");
        ok(&mut pinned, "SELECT 1");
    }
    assert!(begun.elapsed() < 20 * SECOND);
    // And a lock of tables ends with its transaction.
    for sql in ["BEGIN", "LOCK TABLE hot IN SHARE MODE", "COMMIT"] {
        ok(&mut other, sql);
    }
    ok(&mut pinned, "SELECT pg_advisory_unlock_all()");
    s.assert_empty();
}

#[test]
fn a_copy_that_failed_or_is_half_done_shuts_nobody_out() {
    let s = postgres(Knobs { p: 1, hold_max_ns: 60_000_000_000, ..Knobs::default() });
    let psql = |script: &str| {
        let mut c = std::process::Command::new("psql");
        c.arg(format!("host=127.0.0.1 port={} user=a dbname=t", s.port)).args(["-q", "-t", "-A"]);
        c.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());
        let mut c = c.spawn().expect("psql (`make test` installs it)");
        let mut to = c.stdin.take().unwrap();
        std::io::Write::write_all(&mut to, script.as_bytes()).unwrap();
        (c, to)
    };
    let rows: String = (10..30_010).map(|i| format!("{i}\t1\n")).collect();
    let (mut failed, stdin) = psql(&format!("COPY hot FROM STDIN;\nnonsense\n{rows}\\.\n"));
    s.await_that(|s| s.counters().undone >= 1);
    // Its client is still there, and silent.
    s.assert_empty();
    drop(stdin);
    failed.wait().unwrap();
    let (mut half, stdin) = psql("COPY hot FROM STDIN;\n10\t1\n");
    s.await_that(|s| s.inside().0 == 1);
    let mut other = s.client("b");
    let begun = Instant::now();
    (0..20).for_each(|_| ok(&mut other, "SELECT 1"));
    println!("20 statements beside half of a COPY: {:?}, {:?}", begun.elapsed(), s.counters());
    assert!(begun.elapsed() < 20 * SECOND);
    drop(stdin);
    half.wait().unwrap();
    s.assert_empty();
}

/// Two transactions that are busy all the time have both places; their answers are no progress for who waits.
#[test]
fn transactions_that_are_busy_for_long_starve_nobody() {
    let s = mariadb(Knobs { p: 2, hold_max_ns: 60_000_000_000, ..Knobs::default() });
    let stop = AtomicBool::new(false);
    let mut waits = Vec::new();
    scope(|scope| {
        for i in 0..2 {
            let (s, stop) = (&s, &stop);
            scope.spawn(move || {
                let mut c = s.client("a");
                ok(&mut c, "BEGIN");
                ok(&mut c, &format!("INSERT INTO hot VALUES ({}, 0)", 100 + i));
                while !stop.load(Ordering::Relaxed) {
                    ok(&mut c, "SELECT BENCHMARK(20000, MD5('x'))");
                }
                ok(&mut c, "ROLLBACK");
            });
        }
        s.await_that(|s| s.inside().0 == 2);
        let mut other = s.client("b");
        during(4 * SECOND, || {
            let begun = Instant::now();
            ok(&mut other, "SELECT 1");
            waits.push(begun.elapsed());
        });
        stop.store(true, Ordering::Relaxed);
    });
    let longest = *waits.iter().max().unwrap();
    println!("{} statements beside two busy transactions, longest {longest:?}, {:?}", waits.len(), s.counters());
    assert!(waits.len() > 5 && longest < 10 * SECOND);
    s.assert_empty();
    assert_eq!(s.counters().undone, 2, "what was rolled back is no throughput");
}
