//! Locks of MariaDB that a place at the gate depends on: those that outlive a statement without any flag, and those that an error takes away.

mod common;

use common::{Server, for_a_while, needs};
use plimsoll_shape::drive::client::{Answer, Client};
use plimsoll_shape::gate::Knobs;
use plimsoll_shape::profile::Profile;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::scope;
use std::time::{Duration, Instant};

const SECOND: Duration = Duration::from_secs(1);

fn server(p: u32) -> Server {
    needs("/usr/sbin/mariadbd");
    Server::mariadb(Profile::MysqlThread, Knobs { p, ..Knobs::default() }, &[])
}

fn ok(c: &mut Client, sql: &str) {
    assert_eq!(c.query(sql).unwrap(), Answer::Ok, "{sql}");
}

/// Tables that are locked, all of them at once, and transactions that are prepared by name: who has such a lock goes on, whoever waits.
#[test]
fn locked_tables_flushes_and_prepared_transactions_flow_under_a_small_p() {
    let s = server(2);
    let (done, longest, goes_on) = (AtomicU64::new(0), AtomicU64::new(0), for_a_while(2 * SECOND, 30));
    scope(|scope| {
        for i in 0..9 {
            let (s, done, longest, goes_on) = (&s, &done, &longest, &goes_on);
            scope.spawn(move || {
                let mut c = s.client("a");
                let xa = |what: &str| format!("XA {what} 'x{i}'");
                let statements = match i % 3 {
                    0 => vec![
                        "LOCK TABLES hot WRITE".into(),
                        "UPDATE hot SET n = n + 1 WHERE id = 1".into(),
                        "UNLOCK TABLES".into(),
                    ],
                    1 => vec![
                        "FLUSH TABLES WITH READ LOCK".into(),
                        "SELECT COUNT(*) FROM hot".into(),
                        "UNLOCK TABLES".into(),
                    ],
                    _ => vec![
                        xa("START"),
                        "UPDATE hot SET n = n + 1 WHERE id = 2".into(),
                        xa("END"),
                        xa("PREPARE"),
                        xa("COMMIT"),
                    ],
                };
                while goes_on(done.load(Ordering::Relaxed)) {
                    let begun = Instant::now();
                    for sql in &statements {
                        match c.query(sql).unwrap() {
                            Answer::Ok => {}
                            // Who locks all and who locks one may wait for each other: the server ends that, with a gate or without.
                            Answer::Error(why) => {
                                assert!(why.contains("1213"), "{sql}: {why}");
                                if i % 3 < 2 {
                                    ok(&mut c, "UNLOCK TABLES");
                                } else {
                                    // The rollback may be a victim too, and is then asked for again.
                                    while let Answer::Error(why) = c.query(&xa("ROLLBACK")).unwrap()
                                        && !why.contains("1397")
                                    {
                                        assert!(why.contains("1213"), "neither rolled back nor a victim: {why}");
                                    }
                                }
                                break;
                            }
                        }
                    }
                    longest.fetch_max(begun.elapsed().as_millis() as u64, Ordering::Relaxed);
                    done.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    println!("{done:?} turns, longest {longest:?} ms, {:?}", s.counters());
    assert!(done.into_inner() >= 30 && longest.into_inner() < 10_000);
    s.assert_empty();
}

/// A deadlock's victim is rolled back by the server: its flags are those of before, its place is free all the same.
#[test]
fn the_victim_of_a_deadlock_keeps_no_place() {
    let s = server(3);
    let (victims, done, goes_on) = (AtomicU64::new(0), AtomicU64::new(0), for_a_while(2 * SECOND, 50));
    let mut clients: Vec<Client> = (0..6).map(|_| s.client("a")).collect();
    scope(|scope| {
        for (i, c) in clients.iter_mut().enumerate() {
            let (victims, done, goes_on) = (&victims, &done, &goes_on);
            scope.spawn(move || {
                'transactions: while goes_on(done.load(Ordering::Relaxed)) {
                    ok(c, "BEGIN");
                    let rows = if i % 2 == 0 { [1, 2] } else { [2, 1] };
                    for row in rows {
                        match c.query(&format!("UPDATE hot SET n = n + 1 WHERE id = {row}")).unwrap() {
                            Answer::Ok => {}
                            Answer::Error(why) => {
                                assert!(why.contains("1213") || why.contains("Deadlock"), "{why}");
                                victims.fetch_add(1, Ordering::Relaxed);
                                continue 'transactions;
                            }
                        }
                    }
                    ok(c, "COMMIT");
                    done.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    println!("{victims:?} victims, {done:?} committed, {:?}", s.counters());
    let (victims, done) = (victims.into_inner(), done.into_inner());
    assert!(victims > 0 && done >= 50);
    // What they did is undone, and no throughput.
    s.await_that(|s| s.inside() == (0, 0, 0, 0));
    assert_eq!((s.counters().undone, s.counters().done()), (victims, done));
    // Before anybody leaves.
    s.assert_empty();
    drop(clients);
    s.assert_empty();
}
