//! Conversations, cut at every byte.

mod fuzzing;

use fuzzing::{Concluded, any, walk};
use plimsoll_base::Rng;
use plimsoll_shape::walk::Protocol;

fn mysql(sequence: u8, body: &[u8]) -> Vec<u8> {
    let n = (body.len() as u32).to_le_bytes();
    [&[n[0], n[1], n[2], sequence], body].concat()
}

fn greeting(caps: u32) -> Vec<u8> {
    let c = caps.to_le_bytes();
    let mut b = b"\x0a10.11.0-MariaDB\0\x01\0\0\0scramble\0".to_vec();
    b.extend([c[0], c[1], 45, 2, 0, c[2], c[3], 21]);
    mysql(0, &[&b[..], &[0; 10], b"scramble1234\0mysql_native_password\0"].concat())
}

fn handshake(caps: u32) -> Vec<u8> {
    let mut b = caps.to_le_bytes().to_vec();
    b.extend([0, 0, 0, 1, 45]);
    b.extend([0; 23]);
    b.extend(b"web\0\x03abcshop\0");
    mysql(1, &b)
}

fn ok(sequence: u8, status: u16) -> Vec<u8> {
    let s = status.to_le_bytes();
    mysql(sequence, &[0, 0, 0, s[0], s[1], 0, 0])
}

fn eof(sequence: u8, status: u16) -> Vec<u8> {
    let s = status.to_le_bytes();
    mysql(sequence, &[0xfe, 0, 0, s[0], s[1]])
}

const CAPS: u32 = 0x8000 | 0x8 | 0x200;
const DEPRECATE: u32 = 0x100_0000;

fn login(caps: u32) -> Vec<(bool, Vec<u8>)> {
    vec![(false, greeting(caps | DEPRECATE)), (true, handshake(caps)), (false, ok(2, 2))]
}

fn query(sql: &str) -> (bool, Vec<u8>) {
    (true, mysql(0, &[b"\x03", sql.as_bytes()].concat()))
}

fn checked(protocol: Protocol, talk: &[(bool, Vec<u8>)]) -> Concluded {
    let talk: Vec<(bool, &[u8])> = talk.iter().map(|(c, b)| (*c, b.as_slice())).collect();
    let whole = walk(protocol, &talk, usize::MAX, false);
    let longest = talk.iter().map(|t| t.1.len()).max().unwrap();
    for cut in 0..=longest {
        assert_eq!(walk(protocol, &talk, cut, true), whole, "cut at {cut}");
    }
    for size in 1..40 {
        assert_eq!(walk(protocol, &talk, size, false), whole, "in pieces of {size}");
    }
    whole
}

#[test]
fn mysql_results_transactions_and_errors() {
    let mut talk = login(CAPS);
    // A result set with two columns and a row, then BEGIN, an error inside, an infile, and a deadlock that ends it all.
    talk.push(query("SELECT a, b FROM t"));
    let rows =
        [mysql(1, &[2]), mysql(2, b"\x03def\0"), mysql(3, b"\x03def\0"), eof(4, 2), mysql(5, b"\x01x\x01y"), eof(6, 2)];
    talk.push((false, rows.concat()));
    talk.push(query("BEGIN"));
    talk.push((false, ok(1, 3)));
    talk.push(query("bad"));
    talk.push((false, mysql(1, b"\xff\x28\x04#42000no")));
    let c = checked(Protocol::Mysql, &talk);
    assert_eq!((c.logins, c.requests, c.open, c.lost, c.rest), (1, 3, true, false, true));
    assert_eq!((c.account.as_slice(), c.database.as_slice()), (&b"web"[..], &b"shop"[..]));
    // The login's OK is one answer too.
    assert_eq!(c.answers, 4);
    talk.push(query("LOAD DATA LOCAL INFILE 'x' INTO TABLE t"));
    talk.push((false, mysql(1, b"\xfbx")));
    talk.push((true, [mysql(2, b"some,data\n"), mysql(3, b"")].concat()));
    talk.push((false, ok(4, 3)));
    talk.push(query("UPDATE t SET a = 1"));
    talk.push((false, mysql(1, b"\xff\xbd\x04#40001Deadlock")));
    let c = checked(Protocol::Mysql, &talk);
    assert_eq!((c.requests, c.answers, c.open), (5, 6, false));
}

#[test]
fn mysql_newer_results_many_results_and_prepared_statements() {
    let mut talk = login(CAPS | DEPRECATE);
    talk.push(query("SELECT 1; SELECT 2"));
    let last = |seq, status: u16| {
        let s = status.to_le_bytes();
        mysql(seq, &[0xfe, 0, 0, s[0], s[1], 0, 0])
    };
    let result = |status| [mysql(1, &[1]), mysql(2, b"\x03def\0"), mysql(3, b"\x011"), last(4, status)].concat();
    talk.push((false, [result(2 | 8), result(2)].concat()));
    talk.push((true, mysql(0, b"\x16SELECT ?")));
    talk.push((
        false,
        [mysql(1, &[0, 1, 0, 0, 0, 1, 0, 1, 0, 0, 0, 0]), mysql(2, b"\x03def"), mysql(3, b"\x03def")].concat(),
    ));
    talk.push((true, mysql(0, b"\x17\x01\0\0\0\0\x01\0\0\0")));
    talk.push((false, [mysql(1, &[1]), mysql(2, b"\x03def"), mysql(3, b"\0\0\x05"), last(4, 2)].concat()));
    talk.push((true, mysql(0, b"\x19\x01\0\0\0")));
    talk.push((true, mysql(0, b"\x0e")));
    talk.push((false, ok(1, 2)));
    let c = checked(Protocol::Mysql, &talk);
    assert_eq!((c.requests, c.answers, c.open, c.lost), (3, 5, false, false));
}

#[test]
fn mysql_locks_of_the_session_and_tls_and_compression() {
    let mut talk = login(CAPS);
    talk.push(query("SELECT GET_LOCK('a', 5)"));
    talk.push((false, [mysql(1, &[1]), mysql(2, b"\x03def"), eof(3, 2), mysql(4, b"\x011"), eof(5, 2)].concat()));
    assert!(checked(Protocol::Mysql, &talk).open);
    talk.push(query("DO RELEASE_LOCK('a')"));
    assert!(checked(Protocol::Mysql, &talk).open, "until it's answered");
    talk.push((false, ok(1, 2)));
    assert!(!checked(Protocol::Mysql, &talk).open);
    let request = mysql(1, &[&(CAPS | 0x800).to_le_bytes()[..], &[0; 28]].concat());
    let c = checked(Protocol::Mysql, &[(false, greeting(CAPS)), (true, request)]);
    assert!(c.tls && !c.lost);
    let c = checked(Protocol::Mysql, &[(false, greeting(CAPS | 0x20)), (true, handshake(CAPS | 0x20))]);
    assert!(c.lost, "compressed");
    let other = b"SSH-2.0-OpenSSH\r\n but no database at all....".repeat(900);
    assert!(!checked(Protocol::Mysql, &[(false, other)]).rest);
}

fn pg(kind: u8, body: &[u8]) -> Vec<u8> {
    [&[kind], &(body.len() as u32 + 4).to_be_bytes()[..], body].concat()
}

fn pg_start() -> Vec<u8> {
    let body = [&196_608u32.to_be_bytes()[..], b"user\0web\0database\0shop\0\0"].concat();
    [&(body.len() as u32 + 4).to_be_bytes()[..], &body].concat()
}

#[test]
fn postgres_queries_pipelines_and_copy() {
    let mut talk = vec![(true, pg_start()), (false, [pg(b'R', &[0; 4]), pg(b'S', b"a\0b\0"), pg(b'Z', b"I")].concat())];
    talk.push((true, pg(b'Q', b"BEGIN\0")));
    talk.push((false, [pg(b'C', b"BEGIN\0"), pg(b'Z', b"T")].concat()));
    let c = checked(Protocol::Postgres, &talk);
    assert_eq!((c.requests, c.answers, c.open, c.account.as_slice()), (1, 1, true, &b"web"[..]));
    // Two pipelined batches are one request until both are answered.
    let batch =
        [pg(b'P', b"\0SELECT 1\0\0\0"), pg(b'B', b"\0\0\0\0\0\0\0\0"), pg(b'E', b"\0\0\0\0\0"), pg(b'S', b"")].concat();
    talk.push((true, [batch.clone(), batch].concat()));
    talk.push((false, [pg(b'1', b""), pg(b'2', b""), pg(b'C', b"SELECT 1\0"), pg(b'Z', b"T")].concat()));
    assert!(!checked(Protocol::Postgres, &talk).rest);
    talk.push((false, [pg(b'C', b"SELECT 1\0"), pg(b'Z', b"T")].concat()));
    let c = checked(Protocol::Postgres, &talk);
    assert_eq!((c.requests, c.answers, c.rest), (2, 2, true));
    talk.push((true, pg(b'Q', b"COPY t FROM STDIN\0")));
    talk.push((false, pg(b'G', &[0, 0, 0])));
    talk.push((true, [pg(b'd', b"1\n"), pg(b'c', b"")].concat()));
    talk.push((false, [pg(b'C', b"COPY 1\0"), pg(b'Z', b"E")].concat()));
    let c = checked(Protocol::Postgres, &talk);
    assert_eq!((c.requests, c.answers, c.open), (3, 3, true));
}

#[test]
fn postgres_tls_refused_and_taken_and_nonsense() {
    let ask = [&8u32.to_be_bytes()[..], &80_877_103u32.to_be_bytes()].concat();
    let refused = [(true, ask.clone()), (false, b"N".to_vec()), (true, pg_start())];
    assert_eq!(checked(Protocol::Postgres, &refused).account, b"web");
    assert!(checked(Protocol::Postgres, &[(true, ask), (false, b"S".to_vec())]).tls);
    assert!(checked(Protocol::Postgres, &[(true, b"GET / HTTP/1.1\r\n\r\n".to_vec())]).lost);
    let cancel = [&16u32.to_be_bytes()[..], &80_877_102u32.to_be_bytes(), &[0; 8]].concat();
    assert!(checked(Protocol::Postgres, &[(true, cancel)]).lost);
}

fn mongo(id: u32, to: u32, flags: u32, document: &[u8]) -> Vec<u8> {
    let len = (16 + 4 + 1 + 4 + document.len() + 1) as u32;
    let mut b = Vec::new();
    [len, id, to, 2013, flags].iter().for_each(|n| b.extend(n.to_le_bytes()));
    b.push(0);
    b.extend((document.len() as u32 + 5).to_le_bytes());
    b.extend(document);
    b.push(0);
    b
}

#[test]
fn mongo_commands_transactions_and_what_is_exempt() {
    let talk = vec![
        (true, mongo(1, 0, 0, b"\x10hello\0\x01\0\0\0")),
        (false, mongo(9, 1, 0, b"\x10ok\0\x01\0\0\0")),
        (true, mongo(2, 0, 0, b"\x10saslStart\0\x01\0\0\0\x05payload\0\0\0\0\0n,,n=web,r=abc")),
        (false, mongo(9, 2, 0, b"\x10ok\0\x01\0\0\0")),
        (true, mongo(3, 0, 0, b"\x02insert\0\x02\0\0\0a\0\x08autocommit\0\0")),
        (false, mongo(9, 3, 0, b"\x10ok\0\x01\0\0\0")),
    ];
    let c = checked(Protocol::Mongo, &talk);
    assert_eq!((c.requests, c.answers, c.open, c.account.as_slice()), (1, 1, true, &b"web"[..]));
    let mut more = talk.clone();
    more.push((true, mongo(4, 0, 0, b"\x10commitTransaction\0\x01\0\0\0\x08autocommit\0\0")));
    more.push((false, mongo(9, 4, 0, b"\x10ok\0\x01\0\0\0")));
    let c = checked(Protocol::Mongo, &more);
    assert_eq!((c.requests, c.answers, c.open), (2, 2, false));
    // An awaitable hello (exhaust) never counts, nor does a write without an answer.
    let c = checked(
        Protocol::Mongo,
        &[(true, mongo(1, 0, 1 << 16, b"\x10hello\0\x01\0\0\0")), (true, mongo(2, 0, 2, b"\x02insert\0"))],
    );
    assert_eq!(c.requests, 0);
    assert!(checked(Protocol::Mongo, &[(true, vec![0xff; 64])]).lost);
}

#[test]
fn any_bytes_do_no_harm() {
    let mut rng = Rng::new(3, "bytes");
    for _ in 0..3000 {
        let n = rng.below(600) as usize;
        let mut data: Vec<u8> = (0..n).map(|_| rng.below(256) as u8).collect();
        any(&data);
        // Lengths of zero are the rarest otherwise.
        data.iter_mut().for_each(|b| *b &= 0x83);
        any(&data);
    }
}
