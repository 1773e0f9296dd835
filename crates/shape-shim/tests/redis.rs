//! Redis: P is the number of connections that a turn of the event loop is passed.

mod common;

use common::{Server, needs};
use plimsoll_shape::gate::Knobs;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::net::TcpStream;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::scope;
use std::time::{Duration, Instant};

#[test]
fn users_of_few_and_of_many_connections_share_the_loop() {
    needs("/usr/bin/redis-server");
    let s = Server::redis(Knobs { p: 2, zeta: 1, ..Knobs::default() }, &[]);
    let command = |c: &mut TcpStream, line: &str, want: &str| {
        c.write_all(line.as_bytes()).unwrap();
        let mut got = vec![0; want.len()];
        c.read_exact(&mut got).unwrap();
        assert_eq!(String::from_utf8_lossy(&got), want);
    };
    let connect = || {
        let c = TcpStream::connect(("127.0.0.1", s.port)).unwrap();
        c.set_nodelay(true).unwrap();
        c.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        c
    };
    let mut admin = connect();
    command(&mut admin, "ACL SETUSER many on nopass ~* +@all\r\n", "+OK\r\n");
    command(&mut admin, "ACL SETUSER few on nopass ~* +@all\r\n", "+OK\r\n");
    let done = [AtomicU64::new(0), AtomicU64::new(0)];
    // All are connected before any begins: who is alone meanwhile shares with nobody.
    let begin = Barrier::new(24);
    scope(|scope| {
        for i in 0..24 {
            let (done, connect, begin) = (&done, &connect, &begin);
            scope.spawn(move || {
                let who = usize::from(i >= 20);
                let mut c = connect();
                let name = ["many", "few"][who];
                let auth = format!("*3\r\n$4\r\nAUTH\r\n${}\r\n{name}\r\n$1\r\nx\r\n", name.len());
                command(&mut c, &auth, "+OK\r\n");
                begin.wait();
                let begun = Instant::now();
                while begun.elapsed() < Duration::from_secs(2) {
                    command(&mut c, "*3\r\n$3\r\nSET\r\n$1\r\na\r\n$1\r\nb\r\n", "+OK\r\n");
                    done[who].fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    println!("done {done:?}, {:?}", s.counters());
    let [many, few] = done.map(AtomicU64::into_inner);
    assert!(many > 100 && few > 100);
    // By connections it would be five to one.
    assert!(many < few * 2 && few < many * 2, "{many} and {few}");
    assert!(s.counters().admitted > 1000 && s.counters().held > 0 && s.counters().panics == 0);
    s.assert_empty();
}

fn connect(s: &Server) -> TcpStream {
    let c = TcpStream::connect(("127.0.0.1", s.port)).unwrap();
    c.set_nodelay(true).unwrap();
    c.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    c
}

fn asked(c: &mut TcpStream, line: &str) -> String {
    c.write_all(line.as_bytes()).unwrap();
    let mut answer = [0; 512];
    let n = c.read(&mut answer).unwrap();
    String::from_utf8_lossy(&answer[..n]).into_owned()
}

#[test]
fn a_snapshots_fork_is_inert_and_the_load_goes_on() {
    needs("/usr/bin/redis-server");
    let s = Server::redis(Knobs { p: 1, ..Knobs::default() }, &[]);
    let done = AtomicU64::new(0);
    scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let mut c = connect(&s);
                for i in 0..400 {
                    assert_eq!(asked(&mut c, &format!("SET k{i} v\r\n")), "+OK\r\n");
                    done.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        scope.spawn(|| {
            let mut c = connect(&s);
            assert!(asked(&mut c, "BGSAVE\r\n").starts_with("+Background"));
            let end = Instant::now() + Duration::from_secs(20);
            while !asked(&mut c, "INFO persistence\r\n").contains("rdb_bgsave_in_progress:0") {
                assert!(Instant::now() < end, "the snapshot ends");
            }
        });
    });
    assert_eq!(done.into_inner(), 3200);
    assert!(s.dir.path().join("dump.rdb").exists());
    assert_eq!(s.counters().panics, 0);
    s.assert_empty();
}

#[test]
fn a_thousand_connections_and_those_that_vanish_leave_nothing_behind() {
    needs("/usr/bin/redis-server");
    let s = Server::redis(Knobs { p: 2, ..Knobs::default() }, &[]);
    scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for i in 0..125 {
                    let mut c = connect(&s);
                    match i % 3 {
                        0 => assert_eq!(asked(&mut c, "PING\r\n"), "+PONG\r\n"),
                        // It doesn't wait for the answer, or not even for the end of its own words.
                        1 => c.write_all(b"SET a b\r\n").unwrap(),
                        _ => c.write_all(b"SET a").and_then(|()| c.shutdown(Shutdown::Both)).unwrap(),
                    }
                }
            });
        }
    });
    s.await_that(|s| s.known() == 0);
    s.assert_empty();
    assert_eq!(asked(&mut connect(&s), "PING\r\n"), "+PONG\r\n");
}

#[test]
fn threads_for_reading_and_a_restart_change_nothing() {
    needs("/usr/bin/redis-server");
    let mut s =
        Server::redis(Knobs { p: 2, ..Knobs::default() }, &["--io-threads", "2", "--io-threads-do-reads", "yes"]);
    for _ in 0..2 {
        scope(|scope| {
            for _ in 0..12 {
                scope.spawn(|| {
                    let mut c = connect(&s);
                    (0..200).for_each(|_| assert_eq!(asked(&mut c, "INCR n\r\n").as_bytes()[0], b':'));
                });
            }
        });
        s.assert_empty();
        s.restart();
        s.await_port();
    }
    assert_eq!(s.counters().panics, 0);
}

#[test]
fn without_its_controller_the_loop_goes_on() {
    needs("/usr/bin/redis-server");
    let mut s = Server::redis(Knobs { p: 1, ..Knobs::default() }, &[]);
    let mut clients: Vec<TcpStream> = (0..8).map(|_| connect(&s)).collect();
    s.stop_heart();
    let begun = Instant::now();
    // For longer than a controller may be silent.
    while begun.elapsed() < Duration::from_secs(3) {
        clients.iter_mut().for_each(|c| assert_eq!(asked(c, "PING\r\n"), "+PONG\r\n"));
    }
    assert_eq!(s.segment.control().failed_open.load(Ordering::Relaxed), 1);
    s.assert_empty();
}
