//! MariaDB leaves a result's definitions out that the client has kept from a prepared statement's last execution, if both can do that.

mod common;

use common::{Server, needs};
use plimsoll_shape::gate::Knobs;
use plimsoll_shape::profile::Profile;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// A client of its own that asks for it; without a password.
struct Raw(TcpStream);

impl Raw {
    fn packet(&mut self) -> Vec<u8> {
        let mut header = [0; 4];
        self.0.read_exact(&mut header).unwrap();
        let mut body = vec![0; usize::from(header[0]) | usize::from(header[1]) << 8 | usize::from(header[2]) << 16];
        self.0.read_exact(&mut body).unwrap();
        body
    }

    fn send(&mut self, sequence: u8, body: &[u8]) {
        let n = (body.len() as u32).to_le_bytes();
        self.0.write_all(&[&[n[0], n[1], n[2], sequence], body].concat()).unwrap();
    }

    fn login(port: u16) -> Raw {
        let mut raw = Raw(TcpStream::connect(("127.0.0.1", port)).unwrap());
        raw.0.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        raw.packet();
        // Protocol 4.1, secure connection, transactions, plugins, no EOF; not MySQL's bit 0, so that MariaDB's own follow.
        let caps: u32 = 0x200 | 0x8000 | 0x2000 | 0x8_0000 | 0x100_0000;
        let mut body = caps.to_le_bytes().to_vec();
        body.extend(0x0100_0000u32.to_le_bytes());
        body.push(45);
        body.extend([0; 19]);
        body.extend(0x10u32.to_le_bytes());
        body.extend(b"a\0\0mysql_native_password\0");
        raw.send(1, &body);
        assert_eq!(raw.packet()[0], 0, "it is let in");
        raw
    }

    /// Executes a prepared statement; how many packets the answer has.
    fn execute(&mut self, statement: &[u8]) -> u32 {
        self.send(0, &[b"\x17", statement, b"\0\x01\0\0\0"].concat());
        let mut n = 0;
        loop {
            let first = self.packet()[0];
            n += 1;
            assert_ne!(first, 0xff, "it is refused");
            if n > 1 && first == 0xfe {
                return n;
            }
        }
    }
}

fn prepared(s: &Server) {
    let mut raw = Raw::login(s.port);
    raw.send(0, b"\x16SELECT id, n FROM t.hot");
    let statement = raw.packet()[1..5].to_vec();
    // Two definitions, and no parameters.
    raw.packet();
    raw.packet();
    let answers = [0; 4].map(|_: u32| raw.execute(&statement));
    println!("packets of each answer: {answers:?}");
    assert_eq!(answers, [6; 4], "the count, four rows and the end: definitions came when it was prepared");
    s.assert_empty();
    s.await_that(|s| s.counters().finished >= 5);
    assert_eq!((s.counters().unparsed, s.counters().stall_escapes), (0, 0));
    drop(raw);
    s.assert_empty();
}

#[test]
fn answers_without_definitions_end_where_they_end() {
    needs("/usr/sbin/mariadbd");
    let strict = Knobs { p: 1, stall_ns: 60_000_000_000, lend_ns: 60_000_000_000, ..Knobs::default() };
    for preload in [true, false] {
        prepared(&Server::mariadb_as(Profile::MysqlThread, preload, strict, &[]));
    }
}
