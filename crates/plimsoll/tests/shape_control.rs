//! The controller's own end, and the server's: killed, replaced by another one, interrupted.

mod common;

use common::shaped::{Ended, PLIMSOLL, Shaped, free_port, ping, refused, until};
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, Read};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// A server outlives its controller by kill -9: it passes everything, until another one looks after it.
#[test]
fn a_killed_controller_leaves_the_server_open_and_another_takes_over() {
    let (dir, port) = (tempfile::tempdir().unwrap(), free_port());
    let pidfile = dir.path().join("pid");
    let options =
        ["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--pidfile", pidfile.to_str().unwrap()]
            .map(String::from);
    let server: Vec<&str> = ["redis-server"].into_iter().chain(options.iter().map(String::as_str)).collect();
    let mut s = Shaped::start(
        dir.path(),
        &["--profile", "redis", "--p", "auto", "--p-floor", "3", "--p-ceiling", "9"],
        &server,
    );
    until("the server is up", || ping(port, 1).is_ok());
    until("it is shaped", || s.top()["state"] == "shaping");
    let e = refused(&["attach", "--control", &s.control]);
    assert!(e.contains("looks after it"), "{e}");
    s.child.kill().unwrap();
    s.child.wait().unwrap();
    until("it passes everything and says so", || {
        ping(port, 20).unwrap();
        s.top()["state"] == "FAILED OPEN: the controller is silent, all pass"
    });
    let e = refused(&["attach", "--control", &s.control, "--p-floor", "10"]);
    assert!(e.contains("the tuner's floor of 10 is above its ceiling of 9"), "{e}");
    let attach = || {
        let mut c = Command::new(PLIMSOLL);
        c.args(["shape", "attach", "--control", &s.control]).stdin(Stdio::null());
        Ended(c.spawn().unwrap())
    };
    let mut second = attach();
    until("another looks after it", || s.top()["state"] == "shaping");
    s.command("set", &["p=5", "zeta=7"]);
    until("and does what it's told", || s.top()["p"] == 5 && s.top()["zeta"] == 7);
    until("ζ stays as it was set", || ping(port, 50).is_ok() && s.top()["zeta"] == 7);
    // It is told to end, and the server stays.
    kill_process(Pid::from_child(&second.0), Signal::TERM).unwrap();
    assert!(second.0.wait().unwrap().success());
    until("open again", || ping(port, 1).is_ok() && s.top()["state"].as_str().unwrap().starts_with("FAILED OPEN"));
    let mut third = attach();
    until("shaped again, with what was set", || s.top()["state"] == "shaping" && s.top()["p"] == 5);
    let mut watcher = Command::new(PLIMSOLL);
    watcher.args(["shape", "top", "--control", &s.control]).stdout(Stdio::piped());
    let mut watcher = Ended(watcher.spawn().unwrap());
    // It has begun once it has shown the users.
    let mut shown = std::io::BufReader::new(watcher.0.stdout.take().unwrap());
    shown.read_line(&mut String::new()).unwrap();
    let pid: i32 = std::fs::read_to_string(&pidfile).unwrap().trim().parse().unwrap();
    kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
    let mut status = None;
    until("it ends with the server", || {
        status = third.0.try_wait().unwrap();
        status.is_some()
    });
    assert!(status.unwrap().success());
    let ended = format!("the shaped server (process {pid}) has ended");
    let mut rest = String::new();
    shown.read_to_string(&mut rest).unwrap();
    assert!(rest.contains(&ended) && watcher.0.wait().unwrap().success(), "{rest}");
    let e = refused(&["top", "--once", "--control", &s.control]);
    assert!(e.contains(&ended), "{e}");
    let e = refused(&["attach", "--control", &s.control]);
    assert!(e.contains("no server runs under it"), "{e}");
}

/// An interrupt ends PostgreSQL though a client is connected, which a termination would wait for.
#[test]
fn an_interrupt_ends_the_server_whoever_is_connected() {
    let versions = std::fs::read_dir("/usr/lib/postgresql").expect("PostgreSQL is missing: `make test` installs it");
    let bin = versions.flatten().map(|v| v.path().join("bin")).max().expect("a version of PostgreSQL");
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o1777)).unwrap();
    let data = dir.path().join("data").display().to_string();
    let as_postgres = |program: &str, arguments: &[&str]| {
        let mut c = Command::new("setpriv");
        c.args(["--reuid=postgres", "--regid=postgres", "--clear-groups", program]).args(arguments).current_dir("/");
        c
    };
    if !rustix::process::geteuid().is_root() {
        println!("ran without the account postgres: only root can take it");
        return;
    }
    let made =
        as_postgres(bin.join("initdb").to_str().unwrap(), &["-D", &data, "-A", "trust", "-U", "root", "--no-sync"])
            .output()
            .unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let port = free_port().to_string();
    let socket = format!("unix_socket_directories={}", dir.path().display());
    let program = bin.join("postgres").display().to_string();
    let server = [
        program.as_str(),
        "-D",
        &data,
        "-p",
        &port,
        "-c",
        "listen_addresses=127.0.0.1",
        "-c",
        &socket,
        "-c",
        "fsync=off",
    ];
    let mut s = Shaped::start(dir.path(), &["--profile", "postgres", "--p", "8", "--user", "postgres"], &server);
    let psql = |text: &str| {
        let mut c = Command::new("psql");
        c.args(["-h", "127.0.0.1", "-p", &port, "-U", "root", "-d", "postgres", "-c", text]);
        c.stdout(Stdio::null()).stderr(Stdio::null());
        c
    };
    until("PostgreSQL is up", || psql("SELECT 1").status().unwrap().success());
    let _client = Ended(psql("SELECT pg_sleep(300)").spawn().unwrap());
    until("a client is inside", || s.top()["inside"] == 1);
    let begun = Instant::now();
    s.signal(Signal::INT);
    let mut status = None;
    until("it ends", || {
        status = s.child.try_wait().unwrap();
        status.is_some()
    });
    println!("ended {:?} after the interrupt", begun.elapsed());
    assert!(status.unwrap().success() && begun.elapsed() < Duration::from_secs(50));
}
