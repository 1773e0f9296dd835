//! Servers of the profiles `generic` and `mongo`: a small one of ours stands in for what can't be installed with the tests. For a real
//! server of MongoDB's protocol see `make shape-mongo`.

mod common;

use common::{Server, for_a_while, needs};
use plimsoll_shape::gate::Knobs;
use plimsoll_shape::profile::Profile;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::scope;
use std::time::{Duration, Instant};

const SECOND: Duration = Duration::from_secs(1);

fn server(profile: Profile, p: u32) -> Server {
    needs("/usr/bin/python3");
    Server::asked(profile, Knobs { p, stall_ns: 60_000_000_000, ..Knobs::default() })
}

fn connect(s: &Server) -> TcpStream {
    let c = TcpStream::connect(("127.0.0.1", s.port)).unwrap();
    c.set_nodelay(true).unwrap();
    c.set_read_timeout(Some(30 * SECOND)).unwrap();
    c
}

/// Asks a line and reads the answer: how many were answered at a time so far.
fn ask(c: &mut TcpStream, line: &str) -> u32 {
    c.write_all(line.as_bytes()).unwrap();
    let mut answer = String::new();
    let mut byte = [0];
    while !answer.ends_with('\n') {
        c.read_exact(&mut byte).unwrap();
        answer.push(char::from(byte[0]));
    }
    answer.trim().parse().unwrap()
}

#[test]
fn any_question_and_answer_is_capped_and_a_forked_helper_changes_nothing() {
    let s = server(Profile::Generic, 3);
    let (done, goes_on) = (AtomicU64::new(0), for_a_while(2 * SECOND, 50));
    scope(|scope| {
        for i in 0..12 {
            let (s, done, goes_on) = (&s, &done, &goes_on);
            scope.spawn(move || {
                let mut c = connect(s);
                let line = if i == 0 { "fork 0.01\n" } else { "0.01\n" };
                while goes_on(done.load(Ordering::Relaxed)) {
                    assert!(ask(&mut c, line) <= 3, "at most three at a time");
                    done.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    // An answer is out before its request has ended: that is when the server's thread reads again.
    s.assert_empty();
    println!("{done:?} questions, {:?}", s.counters());
    assert!(done.load(Ordering::Relaxed) >= 50);
    let c = s.counters();
    assert_eq!((c.panics, c.stall_escapes), (0, 0));
    assert_eq!(c.finished, done.into_inner());
}

#[test]
fn who_vanishes_from_an_unknown_protocol_leaves_nothing() {
    let s = server(Profile::Generic, 1);
    s.set(|k| k.stall_ns = 60_000_000_000);
    let mut busy = connect(&s);
    busy.write_all(b"8\n").unwrap();
    s.await_inside((1, 0, 0, 0));
    let held: Vec<TcpStream> = (0..20)
        .map(|_| {
            let mut c = connect(&s);
            c.write_all(b"0\n").unwrap();
            c
        })
        .collect();
    s.await_inside((1, 0, 0, 20));
    drop(held);
    drop(busy);
    s.assert_empty();
    s.await_that(|s| s.known() == 0);
    assert_eq!(ask(&mut connect(&s), "0\n"), 1);
}

/// A command: `name: value`, and more of the document.
fn message(request: u32, name: &str, more: &[u8]) -> Vec<u8> {
    let mut document = [b"\x10", name.as_bytes(), b"\0\x01\0\0\0", more, b"\0"].concat();
    let length = document.len() as u32 + 4;
    document.splice(0..0, length.to_le_bytes());
    let mut m = Vec::new();
    [16 + 5 + length, request, 0, 2013, 0].iter().for_each(|n| m.extend(n.to_le_bytes()));
    m.push(0);
    m.extend(document);
    m
}

/// Reads an answer; how many commands were answered at a time so far.
fn answer(c: &mut TcpStream) -> u32 {
    let mut header = [0; 16];
    c.read_exact(&mut header).unwrap();
    let mut body = vec![0; u32::from_le_bytes(header[..4].try_into().unwrap()) as usize - 16];
    c.read_exact(&mut body).unwrap();
    u32::from_le_bytes(body[15..19].try_into().unwrap())
}

/// Reads that aren't of the stream, or that nobody sees: the server goes on, and only a connection whose bytes passed unseen isn't
/// followed any more.
#[test]
fn odd_reads_harm_nobody() {
    let knobs = Knobs { p: 2, stall_ns: 60_000_000_000, ..Knobs::default() };
    let s = Server::odd(knobs);
    let exchange = |c: &mut TcpStream, request: u32| {
        c.write_all(&message(request, "find", b"")).unwrap();
        if request == 3 {
            rustix::net::send(&c, b"!", rustix::net::SendFlags::OOB).unwrap();
        }
        let mut out = [0; 38];
        c.read_exact(&mut out).unwrap_or_else(|e| panic!("request {request}: {e}\n{}", s.log()));
        assert_eq!(out[8..12], request.to_le_bytes());
    };
    let mut c = connect(&s);
    exchange(&mut c, 1);
    exchange(&mut c, 3);
    exchange(&mut c, 4);
    exchange(&mut c, 1);
    let seen = s.counters();
    assert_eq!((seen.unparsed, seen.panics), (0, 0), "its stream was followed all the time");
    assert!(seen.finished >= 3, "{seen:?}");
    exchange(&mut c, 2);
    exchange(&mut c, 2);
    exchange(&mut c, 1);
    assert_eq!(s.counters().unparsed, 1, "what passed unseen can't be followed");
    drop(c);
    s.assert_empty();
    // The next connection is followed again.
    let mut c = connect(&s);
    exchange(&mut c, 1);
    exchange(&mut c, 1);
    s.await_that(|s| s.counters().finished > seen.finished);
    drop(c);
    s.assert_empty();
    assert_eq!(s.counters().panics, 0);
}

/// A connection that its server closed unseen, with a request inside, gives its place back when its number is accepted again. There is one
/// place, so whoever comes next would wait for ever without it.
#[test]
fn a_place_comes_back_after_a_close_that_is_not_seen() {
    let s = Server::odd(Knobs { p: 1, stall_ns: 600_000_000_000, ..Knobs::default() });
    for round in 0..4 {
        let mut c = connect(&s);
        c.write_all(&message(1, "find", b"")).unwrap();
        c.read_exact(&mut [0; 38]).unwrap_or_else(|e| panic!("round {round}: {e}\n{}", s.log()));
        c.write_all(&message(5, "find", b"")).unwrap();
        assert_eq!(c.read(&mut [0]).unwrap(), 0, "closed without an answer");
    }
    let mut c = connect(&s);
    c.write_all(&message(1, "find", b"")).unwrap();
    c.read_exact(&mut [0; 38]).unwrap();
    drop(c);
    s.assert_empty();
    let seen = s.counters();
    assert_eq!((seen.panics, seen.escapes()), (0, 0), "nobody went by an escape: {seen:?}");
}

#[test]
fn mongo_commands_are_capped_and_an_awaitable_hello_takes_no_place() {
    let s = server(Profile::Mongo, 2);
    let begun = Instant::now();
    let mut watchers: Vec<TcpStream> = (0..6).map(|_| connect(&s)).collect();
    for w in &mut watchers {
        w.write_all(&message(1, "hello", b"\x10maxAwaitTimeMS\0\xc0\x27\x09\0")).unwrap();
    }
    let (done, goes_on) = (AtomicU64::new(0), for_a_while(2 * SECOND, 50));
    scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let mut c = connect(&s);
                let mut request = 1;
                while goes_on(done.load(Ordering::Relaxed)) {
                    request += 1;
                    c.write_all(&message(request, "find", b"")).unwrap();
                    assert!(answer(&mut c) <= 2, "at most two at a time");
                    done.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    s.assert_empty();
    println!("{done:?} commands beside six awaitable hellos, {:?}", s.counters());
    assert!(begun.elapsed() < 500 * SECOND, "the hellos, of ten minutes, are still open");
    let c = s.counters();
    assert!(done.load(Ordering::Relaxed) >= 50 && c.finished == done.into_inner() && c.stall_escapes == 0);
    // Who only says hello isn't in the gate.
    s.await_that(|s| s.known() == 0);
    drop(watchers);
}

#[test]
fn a_mongo_transaction_keeps_its_place_until_it_is_committed() {
    let s = server(Profile::Mongo, 1);
    s.set(|k| (k.stall_ns, k.lend_ns) = (60_000_000_000, 60_000_000_000));
    let (mut a, mut b) = (connect(&s), connect(&s));
    a.write_all(&message(2, "insert", b"\x08startTransaction\0\x01\x08autocommit\0\0")).unwrap();
    answer(&mut a);
    // The next read of the server's thread says that the answer is out.
    s.await_inside((1, 0, 0, 0));
    b.write_all(&message(2, "find", b"")).unwrap();
    s.await_inside((1, 0, 0, 1));
    a.write_all(&message(3, "commitTransaction", b"\x08autocommit\0\0")).unwrap();
    answer(&mut a);
    answer(&mut b);
    s.assert_empty();
}

/// Returns a request in the profile's protocol.
fn question(profile: Profile, request: u32, seconds: &str) -> Vec<u8> {
    if profile == Profile::Mongo { message(request, "find", b"") } else { format!("{seconds}\n").into_bytes() }
}

fn answered(profile: Profile, c: &mut TcpStream) {
    if profile == Profile::Mongo {
        answer(c);
    } else {
        let mut byte = [0];
        while byte != *b"\n" {
            c.read_exact(&mut byte).unwrap();
        }
    }
}

#[test]
fn a_thousand_connections_leave_nothing_behind() {
    for profile in [Profile::Generic, Profile::Mongo] {
        let s = server(profile, 2);
        scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for i in 0..125 {
                        let mut c = connect(&s);
                        let all = question(profile, 1, "0");
                        match i % 4 {
                            0 => {
                                c.write_all(&all).unwrap();
                                answered(profile, &mut c);
                            }
                            1 => c.write_all(&all).unwrap(),
                            2 => c.write_all(&all[..all.len() / 2]).unwrap(),
                            _ => {}
                        }
                    }
                });
            }
        });
        s.assert_empty();
        s.await_that(|s| s.known() == 0);
    }
}

#[test]
fn without_its_controller_the_gate_opens() {
    for profile in [Profile::Generic, Profile::Mongo] {
        let mut s = server(profile, 1);
        s.set(|k| (k.lend_ns, k.hold_max_ns) = (60_000_000_000, 60_000_000_000));
        let (mut busy, mut held) = (connect(&s), connect(&s));
        // A transaction keeps its place; so does a question that takes long.
        match profile {
            Profile::Mongo => {
                busy.write_all(&message(2, "insert", b"\x08startTransaction\0\x01\x08autocommit\0\0")).unwrap();
                answer(&mut busy);
            }
            _ => busy.write_all(b"12\n").unwrap(),
        }
        s.await_inside((1, 0, 0, 0));
        held.write_all(&question(profile, 3, "0")).unwrap();
        s.await_inside((1, 0, 0, 1));
        s.stop_heart();
        let begun = Instant::now();
        answered(profile, &mut held);
        println!("{profile}: let in after {:?}", begun.elapsed());
        assert!(begun.elapsed() < 8 * SECOND);
    }
}

/// A client that has closed its sending side still gets its answer.
#[test]
fn through_the_proxy_a_client_that_hangs_up_gets_its_answer() {
    needs("/usr/bin/python3");
    let s = Server::asked_as(Profile::Generic, false, Knobs { p: 1, stall_ns: 60_000_000_000, ..Knobs::default() });
    let mut clients: Vec<TcpStream> = (0..3).map(|_| connect(&s)).collect();
    for c in &mut clients {
        c.write_all(b"0.3\n").unwrap();
        c.shutdown(std::net::Shutdown::Write).unwrap();
    }
    for c in &mut clients {
        let mut answer = String::new();
        c.read_to_string(&mut answer).unwrap();
        assert_eq!(answer, "1\n", "one at a time");
    }
    s.assert_empty();
    s.await_that(|s| s.known() == 0);
}
