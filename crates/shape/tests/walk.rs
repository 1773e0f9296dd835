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

/// MariaDB's greeting and handshake: its own capabilities in bytes that MySQL reserves, as bit 0 isn't set.
fn login_mariadb(caps: u32, extended: u32) -> Vec<(bool, Vec<u8>)> {
    let place = |mut packet: Vec<u8>, at: usize| {
        packet[at..at + 4].copy_from_slice(&extended.to_le_bytes());
        packet
    };
    let server = greeting(caps);
    // Behind the version's NUL: 20 bytes of MySQL's, the scramble's length, 6 reserved.
    let at = 4 + server[4..].iter().position(|b| *b == 0).unwrap() + 1 + 27;
    vec![(false, place(server, at)), (true, place(handshake(caps), 4 + 28)), (false, ok(2, 2))]
}

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
    assert_eq!(c.undone, 1, "a deadlock's victim; the error inside left the transaction open");
    talk.push(query("ROLLBACK"));
    talk.push((false, ok(1, 2)));
    talk.push(query("SELECT nothing"));
    talk.push((false, mysql(1, b"\xff\x28\x04#42000no")));
    assert_eq!(checked(Protocol::Mysql, &talk).undone, 3);
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

/// The server leaves a result's definitions out that the client has from the same prepared statement's last execution.
#[test]
fn mariadb_definitions_that_the_client_has_kept_are_not_waited_for() {
    let execute = (true, mysql(0, b"\x17\x01\0\0\0\0\x01\0\0\0"));
    let last = |seq| mysql(seq, &[0xfe, 0, 0, 2, 0, 0, 0]);
    let result = |kept: bool| {
        let mut all = vec![mysql(1, &[2, u8::from(!kept)])];
        if !kept {
            all.extend([mysql(2, b"\x03def"), mysql(3, b"\x03def")]);
        }
        all.extend([mysql(4, b"\0\0\x05\x05"), last(5)]);
        (false, all.concat())
    };
    let mut talk = login_mariadb(CAPS | DEPRECATE, 0x10);
    for kept in [false, true, true] {
        talk.extend([execute.clone(), result(kept)]);
    }
    let c = checked(Protocol::Mysql, &talk);
    assert_eq!((c.requests, c.answers, c.lost, c.rest), (3, 4, false, true));
    // Without DEPRECATE_EOF the EOF behind the definitions comes all the same.
    let mut talk = login_mariadb(CAPS, 0x10);
    talk.extend([execute, (false, [mysql(1, &[2, 0]), eof(2, 2), mysql(3, b"\0\0\x05\x05"), eof(4, 2)].concat())]);
    assert_eq!(checked(Protocol::Mysql, &talk).answers, 2);
}

#[test]
fn mysql_attributes_before_statements_and_newer_compression() {
    let caps = CAPS | 0x800_0000;
    let mut talk = vec![(false, greeting(caps)), (true, handshake(caps)), (false, ok(2, 2))];
    talk.push((true, mysql(0, b"\x03\0\x01LOCK TABLES t WRITE")));
    talk.push((false, ok(1, 2)));
    let c = checked(Protocol::Mysql, &talk);
    assert_eq!((c.requests, c.pinned), (1, true));
    talk.push((true, mysql(0, b"\x03\0\x01KILL 5")));
    talk.push((false, ok(1, 2)));
    assert_eq!(checked(Protocol::Mysql, &talk).requests, 1);
    let zstd = CAPS | 0x400_0000;
    assert!(checked(Protocol::Mysql, &[(false, greeting(zstd)), (true, handshake(zstd))]).lost);
}

#[test]
fn mysql_locks_by_prepared_statements_are_taken_when_these_are_executed() {
    let mut talk = login(CAPS);
    talk.push((true, mysql(0, b"\x16SELECT GET_LOCK(?, 5)")));
    let prepared = [0, 7, 0, 0, 0, 1, 0, 1, 0, 0, 0, 0];
    let definitions = |seq| [mysql(seq, b"\x03def"), eof(seq + 1, 2)].concat();
    talk.push((false, [mysql(1, &prepared), definitions(2), definitions(4)].concat()));
    assert!(!checked(Protocol::Mysql, &talk).open, "only prepared");
    talk.push((true, mysql(0, b"\x17\x07\0\0\0\0\x01\0\0\0")));
    talk.push((false, [mysql(1, &[1]), definitions(2), mysql(4, b"\0\0\x01"), eof(5, 2)].concat()));
    let c = checked(Protocol::Mysql, &talk);
    assert!(c.pinned && !c.lost);
    // Refused, it wasn't taken.
    let mut refused = talk[..talk.len() - 1].to_vec();
    refused.push((false, mysql(1, b"\xff\x28\x04#42000no")));
    assert!(!checked(Protocol::Mysql, &refused).open);
    talk.push((true, mysql(0, b"\x1f")));
    talk.push((false, ok(1, 2)));
    assert!(!checked(Protocol::Mysql, &talk).open, "and a reset gives all back");
}

/// Half of a statement asks for nothing yet: its client may leave it at that.
#[test]
fn a_request_is_one_when_all_of_it_has_come() {
    let long = query(&format!("SELECT '{}'", "x".repeat(1000))).1;
    let mut talk = login(CAPS);
    talk.push((true, long[..600].to_vec()));
    assert_eq!(checked(Protocol::Mysql, &talk).requests, 0);
    talk.push((true, long[600..].to_vec()));
    assert_eq!(checked(Protocol::Mysql, &talk).requests, 1);
    let mut talk = pg_login();
    let q = pg(b'Q', &[b"SELECT '".to_vec(), vec![b'x'; 1000], b"'\0".to_vec()].concat());
    talk.push((true, q[..600].to_vec()));
    let c = checked(Protocol::Postgres, &talk);
    assert_eq!((c.requests, c.rest), (0, true));
    talk.push((true, q[600..].to_vec()));
    assert_eq!(checked(Protocol::Postgres, &talk).requests, 1);
    let m = mongo(3, 0, 0, &[&b"\x02insert\0\x02\0\0\0a\0\x05pad\0"[..], &[b'x'; 1000]].concat());
    assert_eq!(checked(Protocol::Mongo, &[(true, m[..600].to_vec())]).requests, 0);
    assert_eq!(checked(Protocol::Mongo, &[(true, m)]).requests, 1);
}

/// A packet of 16 MB goes on in the next; a cursor's rows are fetched in parts; another account takes the connection over.
#[test]
fn mysql_long_packets_cursors_and_another_account() {
    let mut talk = login(CAPS);
    let mut long = mysql(0, &[0xff, 0xff, 0xff]);
    long.splice(..4, [0xff, 0xff, 0xff, 0]);
    long.truncate(4);
    long.extend(b"\x03SELECT '");
    long.resize(4 + 0xff_ffff, b'x');
    long.extend(mysql(1, b"'"));
    let walked = |talk: &[(bool, Vec<u8>)]| {
        let talk: Vec<(bool, &[u8])> = talk.iter().map(|(c, b)| (*c, b.as_slice())).collect();
        let whole = walk(Protocol::Mysql, &talk, usize::MAX, false);
        for cut in [1 << 20, 0xff_ffff, 0xff_ffff + 4, 0xff_ffff + 5] {
            assert_eq!(walk(Protocol::Mysql, &talk, cut, true), whole, "cut at {cut}");
        }
        whole
    };
    talk.push((true, long));
    let one = [mysql(1, &[1]), mysql(2, b"\x03def"), eof(3, 2), mysql(4, b"\x01x"), eof(5, 2)].concat();
    talk.push((false, one));
    let c = walked(&talk);
    assert_eq!((c.requests, c.answers, c.rest, c.lost), (1, 2, true, false));
    let mut talk = login(CAPS);
    // The flag 0x40 says that there is a cursor: rows come when they are fetched.
    talk.push((true, mysql(0, b"\x17\x01\0\0\0\x01\x01\0\0\0")));
    talk.push((false, [mysql(1, &[1]), mysql(2, b"\x03def"), eof(3, 0x42)].concat()));
    talk.push((true, mysql(0, b"\x1c\x01\0\0\0\x05\0\0\0")));
    talk.push((false, [mysql(1, b"\0\0\x05"), eof(2, 0x82)].concat()));
    talk.push((true, mysql(0, b"\x11other\0\x02abshop2\0")));
    let c = checked(Protocol::Mysql, &talk);
    assert_eq!((c.requests, c.answers, c.logins, c.account.as_slice()), (2, 3, 1, &b"web"[..]), "not taken yet");
    let mut refused = talk.clone();
    refused.push((false, mysql(1, b"\xff\x15\x04#28000no")));
    assert_eq!(checked(Protocol::Mysql, &refused).account, b"web");
    talk.push((false, ok(1, 2)));
    let c = checked(Protocol::Mysql, &talk);
    assert_eq!((c.logins, c.account.as_slice(), c.database.as_slice()), (2, &b"other"[..], &b"shop2"[..]));
}

#[test]
fn who_is_not_let_in_by_the_server_is_nobody() {
    let mut talk = login(CAPS);
    talk.pop();
    talk.push((false, mysql(2, b"\xff\x15\x04#28000no")));
    let c = checked(Protocol::Mysql, &talk);
    assert_eq!((c.logins, c.account.len()), (0, 0));
    let talk = vec![(true, pg_start()), (false, pg(b'E', b"SFATAL\0C28P01\0\0"))];
    let c = checked(Protocol::Postgres, &talk);
    assert_eq!((c.logins, c.account.len()), (0, 0));
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

fn pg_login() -> Vec<(bool, Vec<u8>)> {
    vec![(true, pg_start()), (false, [pg(b'R', &[0; 4]), pg(b'S', b"a\0b\0"), pg(b'Z', b"I")].concat())]
}

fn pg_answer(tag: &[u8], state: &[u8]) -> (bool, Vec<u8>) {
    (false, [pg(b'C', tag), pg(b'Z', state)].concat())
}

/// A lock of tables is a transaction's; advisory ones are the session's, by whatever statement they are taken.
#[test]
fn postgres_locks_and_what_is_undone() {
    let mut talk = pg_login();
    for (sql, tag, state) in
        [("BEGIN\0", "BEGIN\0", "T"), ("LOCK TABLE hot\0", "LOCK TABLE\0", "T"), ("COMMIT\0", "COMMIT\0", "I")]
    {
        talk.push((true, pg(b'Q', sql.as_bytes())));
        talk.push(pg_answer(tag.as_bytes(), state.as_bytes()));
    }
    assert!(!checked(Protocol::Postgres, &talk).open);
    // Prepared by name, bound and executed later; then all is given back, prepared too.
    talk.push((true, [pg(b'P', b"lock\0SELECT pg_advisory_lock($1)\0\0\0"), pg(b'S', b"")].concat()));
    talk.push((false, [pg(b'1', b""), pg(b'Z', b"I")].concat()));
    assert!(!checked(Protocol::Postgres, &talk).open);
    let run = |name: &[u8]| {
        [pg(b'B', &[b"\0", name, b"\0\0\0\0\0\0\0"].concat()), pg(b'E', b"\0\0\0\0\0"), pg(b'S', b"")].concat()
    };
    talk.push((true, run(b"lock")));
    talk.push(pg_answer(b"SELECT 1\0", b"I"));
    assert!(checked(Protocol::Postgres, &talk).pinned);
    talk.push((true, [pg(b'P', b"\0DISCARD ALL\0\0\0"), run(b"")].concat()));
    talk.push(pg_answer(b"DISCARD ALL\0", b"I"));
    let c = checked(Protocol::Postgres, &talk);
    assert_eq!((c.open, c.undone), (false, 0));
    // Refused, it wasn't taken; and what ends by a rollback, or an error, is undone.
    talk.push((true, run(b"lock")));
    talk.push((false, [pg(b'E', b"SERROR\0\0"), pg(b'Z', b"I")].concat()));
    talk.push((true, pg(b'Q', b"COMMIT\0")));
    talk.push(pg_answer(b"ROLLBACK\0", b"I"));
    let c = checked(Protocol::Postgres, &talk);
    assert_eq!((c.open, c.undone), (false, 2));
}

/// The server has said its last word on a COPY that failed; what its client sends of it still is nothing that will be answered.
#[test]
fn postgres_the_rest_of_a_failed_copy_asks_for_nothing() {
    let mut talk = pg_login();
    talk.push((true, pg(b'Q', b"COPY t FROM STDIN\0")));
    talk.push((false, pg(b'G', &[0, 0, 0])));
    talk.push((true, pg(b'd', b"nonsense\n")));
    talk.push((false, [pg(b'E', b"SERROR\0\0"), pg(b'Z', b"I")].concat()));
    talk.push((true, [pg(b'd', b"1\n"), pg(b'd', b"2\n"), pg(b'c', b"")].concat()));
    let c = checked(Protocol::Postgres, &talk);
    assert_eq!((c.requests, c.answers, c.rest), (1, 1, true));
    talk.push((true, [pg(b'f', b"no more\0"), pg(b'H', b"")].concat()));
    talk.push((true, pg(b'Q', b"SELECT 1\0")));
    talk.push(pg_answer(b"SELECT 1\0", b"I"));
    let c = checked(Protocol::Postgres, &talk);
    assert_eq!((c.requests, c.answers, c.rest), (2, 2, true));
}

#[test]
fn postgres_queries_pipelines_and_copy() {
    let mut talk = pg_login();
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
    let mut refused = vec![(true, ask.clone()), (false, b"N".to_vec())];
    refused.extend(pg_login());
    assert_eq!(checked(Protocol::Postgres, &refused).account, b"web");
    assert!(checked(Protocol::Postgres, &[(true, ask), (false, b"S".to_vec())]).tls);
    assert!(checked(Protocol::Postgres, &[(true, b"GET / HTTP/1.1\r\n\r\n".to_vec())]).lost);
    let cancel = [&16u32.to_be_bytes()[..], &80_877_102u32.to_be_bytes(), &[0; 8]].concat();
    assert!(!checked(Protocol::Postgres, &[(true, cancel)]).lost, "a cancel request is none of nonsense");
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
        (false, mongo(9, 2, 0, b"\x08done\0\x00\x10ok\0\x01\0\0\0")),
        (true, mongo(7, 0, 0, b"\x10saslContinue\0\x01\0\0\0")),
        (false, mongo(9, 7, 0, b"\x08done\0\x01\x10ok\0\x01\0\0\0")),
        (true, mongo(3, 0, 0, b"\x02insert\0\x02\0\0\0a\0\x08autocommit\0\0\x08startTransaction\0\x01")),
        (false, mongo(9, 3, 0, b"\x10ok\0\x01\0\0\0")),
    ];
    let c = checked(Protocol::Mongo, &talk);
    assert_eq!((c.requests, c.answers, c.open, c.account.as_slice()), (1, 1, true, &b"web"[..]));
    let mut more = talk.clone();
    more.push((true, mongo(4, 0, 0, b"\x10commitTransaction\0\x01\0\0\0\x08autocommit\0\0")));
    more.push((false, mongo(9, 4, 0, b"\x10ok\0\x01\0\0\0")));
    let c = checked(Protocol::Mongo, &more);
    assert_eq!((c.requests, c.answers, c.open, c.urgent), (2, 2, false, false));
    // The driver's next session takes this connection: the transaction goes on, and ends, on another, where it must not be held.
    let mut other = talk.clone();
    other.push((true, mongo(4, 0, 0, b"\x02find\0\x02\0\0\0a\0")));
    let c = checked(Protocol::Mongo, &other);
    assert!(!c.open && c.moved_on && !c.urgent);
    let pad = [&b"\x02insert\0\x02\0\0\0a\0\x05pad\0"[..], &[b'x'; 3000], b"\x08autocommit\0\0"].concat();
    let far = vec![(true, mongo(5, 0, 0, &pad)), (false, mongo(9, 5, 0, b"\x10ok\0\x01\0\0\0"))];
    let c = checked(Protocol::Mongo, &far);
    assert!(c.open && c.urgent, "however long the command is");
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
