//! Inside TLS: under the shim a server's `SSL_read` and `SSL_write` show the same requests; the proxy lets them pass. Clients are the
//! distribution's own.

mod common;

use common::observer::most_open;
use common::{Server, needs};
use plimsoll_shape::gate::Knobs;
use plimsoll_shape::profile::Profile;
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::scope;
use std::time::{Duration, Instant};

const CLIENTS: u64 = 6;
const TRANSACTIONS: u64 = 40;
const BOUND: Duration = Duration::from_secs(60);

/// A certificate of its own, readable for the account that the server runs as. The folder goes with the test.
fn certificate(owner: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let (key, cert) = (dir.path().join("key.pem"), dir.path().join("cert.pem"));
    let made = Command::new("openssl")
        .args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost", "-keyout"])
        .arg(&key)
        .arg("-out")
        .arg(&cert)
        .output()
        .expect("openssl (`make test` installs it)");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o600)).unwrap();
    if let Some((uid, gid)) = common::account(owner).filter(|_| rustix::process::geteuid().is_root()) {
        chown(&key, Some(uid), Some(gid)).unwrap();
    }
    dir
}

/// Runs clients at the same time, each with this text; how many transactions the server had open at most.
fn clients(s: &Server, command: &(dyn Fn() -> Command + Sync), text: &str) -> u32 {
    let begun = Instant::now();
    let ((), open) = most_open(s, || scope_of_clients(command, text));
    println!(
        "{} transactions in {:?}, at most {open} open, {:?}",
        CLIENTS * TRANSACTIONS,
        begun.elapsed(),
        s.counters()
    );
    assert!(begun.elapsed() < BOUND);
    open
}

fn scope_of_clients(command: &(dyn Fn() -> Command + Sync), text: &str) {
    scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| {
                let mut c =
                    command().stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
                c.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
                let out = c.wait_with_output().unwrap();
                assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
            });
        }
    });
}

/// Long enough to be seen by who looks ten times a second.
fn transactions(sleep: &str) -> String {
    format!("BEGIN; UPDATE hot SET n = n + 1 WHERE id = 1; SELECT {sleep}(0.01); UPDATE hot SET n = n + 1 WHERE id = 2; COMMIT;\n")
        .repeat(TRANSACTIONS as usize)
}

/// Nobody goes in beyond P: no place is lent, and no stall is taken for one.
fn strict(p: u32) -> Knobs {
    Knobs { p, stall_ns: 60_000_000_000, lend_ns: 60_000_000_000, ..Knobs::default() }
}

fn mariadb_client(port: u16, tls: bool) -> Command {
    let mut c = Command::new("mariadb");
    c.args(["--no-defaults", "--protocol=tcp", "--host=127.0.0.1", "--user=a", "--database=t", "--batch"]);
    c.arg(format!("--port={port}")).args(tls.then_some("--ssl"));
    c
}

fn mariadb_with(dir: &Path, preload: bool, p: u32) -> Server {
    let (cert, key) = (dir.join("cert.pem"), dir.join("key.pem"));
    let options = [format!("--ssl-cert={}", cert.display()), format!("--ssl-key={}", key.display())];
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    Server::mariadb_as(Profile::MysqlThread, preload, strict(p), &options)
}

#[test]
fn mariadbs_transactions_in_tls_are_capped_and_counted() {
    needs("/usr/sbin/mariadbd");
    let dir = certificate("mysql");
    let s = mariadb_with(dir.path(), true, 2);
    let mut asked = mariadb_client(s.port, true);
    let said = asked.args(["-e", "SHOW STATUS LIKE 'Ssl_cipher'"]).output().unwrap();
    assert!(String::from_utf8_lossy(&said.stdout).contains("TLS_"), "{said:?}");
    s.reset();
    let open = clients(&s, &|| mariadb_client(s.port, true), &transactions("SLEEP"));
    let c = s.counters();
    assert!((1..=2).contains(&open) && c.held > 0, "{open} open");
    assert_eq!((c.unparsed, c.panics), (0, 0));
    assert!(c.finished >= CLIENTS * TRANSACTIONS, "every transaction is counted: {c:?}");
    assert!(s.users().iter().any(|(name, done)| name == "a" && *done >= CLIENTS * TRANSACTIONS), "{:?}", s.users());
    s.assert_empty();
}

#[test]
fn postgres_transactions_in_tls_are_capped_and_counted() {
    needs("/usr/lib/postgresql");
    let dir = certificate("postgres");
    let at = |name: &str| dir.path().join(name).display().to_string();
    let settings =
        ["ssl=on".to_string(), format!("ssl_cert_file={}", at("cert.pem")), format!("ssl_key_file={}", at("key.pem"))];
    let settings: Vec<&str> = settings.iter().map(String::as_str).collect();
    let s = Server::postgres(strict(2), &settings);
    let psql = || {
        let mut c = Command::new("psql");
        c.arg(format!("sslmode=require host=127.0.0.1 port={} user=a dbname=t", s.port)).args([
            "-q",
            "-v",
            "ON_ERROR_STOP=1",
        ]);
        c
    };
    let open = clients(&s, &psql, &transactions("pg_sleep"));
    let c = s.counters();
    assert!((1..=2).contains(&open) && c.held > 0, "{open} open");
    assert_eq!((c.unparsed, c.panics), (0, 0));
    assert!(s.users().iter().any(|(name, done)| name == "a" && *done >= CLIENTS * TRANSACTIONS), "{:?}", s.users());
    s.assert_empty();
}

#[test]
fn in_tls_too_the_gate_opens_without_its_controller() {
    needs("/usr/sbin/mariadbd");
    let dir = certificate("mysql");
    let mut s = mariadb_with(dir.path(), true, 1);
    s.set(|k| k.hold_max_ns = 60_000_000_000);
    let ask = |sql: &str| {
        let mut c = mariadb_client(s.port, true);
        c.args(["-e", sql]).stdout(Stdio::null()).spawn().unwrap()
    };
    let mut busy = ask("SELECT SLEEP(12)");
    s.await_inside((1, 0, 0, 0));
    let mut held = ask("SELECT 1");
    s.await_inside((1, 0, 0, 1));
    let begun = Instant::now();
    s.stop_heart();
    assert!(held.wait().unwrap().success());
    println!("let in after {:?}", begun.elapsed());
    assert!(begun.elapsed() < Duration::from_secs(9));
    busy.wait().unwrap();
    s.assert_empty();
}

#[test]
fn through_the_proxy_tls_passes_unshaped() {
    needs("/usr/sbin/mariadbd");
    let dir = certificate("mysql");
    let s = mariadb_with(dir.path(), false, 1);
    s.reset();
    let open = clients(&s, &|| mariadb_client(s.port, true), &transactions("SLEEP"));
    assert!(open > 1, "the server sees that nothing is held: {open}");
    assert_eq!((s.counters().admitted, s.counters().unparsed), (0, 0));
    s.assert_empty();
}

#[test]
fn compressed_connections_pass_and_are_counted() {
    needs("/usr/sbin/mariadbd");
    let s = Server::mariadb(Profile::MysqlThread, strict(1), &[]);
    let compressed = || {
        let mut c = mariadb_client(s.port, false);
        c.arg("--compress");
        c
    };
    let open = clients(&s, &compressed, &transactions("SLEEP"));
    assert!(open > 1, "the server sees that nothing is held: {open}");
    assert_eq!(s.counters().unparsed, CLIENTS);
    s.assert_empty();
}
