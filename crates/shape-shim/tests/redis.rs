//! Redis: P is the number of connections that a turn of the event loop is passed.

mod common;

use common::{Server, have};
use plimsoll_shape::gate::Knobs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::scope;
use std::time::{Duration, Instant};

#[test]
fn users_of_few_and_of_many_connections_share_the_loop() {
    if !have("/usr/bin/redis-server") {
        return;
    }
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
    let begun = Instant::now();
    scope(|scope| {
        for i in 0..24 {
            let (done, connect) = (&done, &connect);
            scope.spawn(move || {
                let who = usize::from(i >= 20);
                let mut c = connect();
                let name = ["many", "few"][who];
                let auth = format!("*3\r\n$4\r\nAUTH\r\n${}\r\n{name}\r\n$1\r\nx\r\n", name.len());
                command(&mut c, &auth, "+OK\r\n");
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
    assert!(s.counters().admitted > 1000 && s.counters().held > 0 && s.counters().panics == 0);
    s.assert_empty();
}
