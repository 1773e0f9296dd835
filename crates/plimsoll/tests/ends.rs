//! Tests of a node's end: a panic in each of its threads, SIGHUP, and output that nobody reads.

mod common;
use common::client::Client;
use common::{Server, config};
use plimsoll_nbd::wire::{Command, CommandFlags};
use rustix::process::Signal;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command as Process, Stdio};
use std::time::{Duration, Instant};

/// Threads of every kind: a pool with a cache (workers) and a tape, one with a modelled device (watchdog).
fn everything() -> String {
    let pool = config(r#"{ file = "p.img", size = "64MiB" }"#, "16MiB").replacen(
        "[[tenant]]",
        "tape = \"p.tape\"\n[pool.cache]\nfile = \"fast.img\"\ndevice_size = \"64MiB\"\nmode = \"back\"\n[[pool]]\n\
         name = \"m\"\ndevice = { file = \"m.img\", size = \"64MiB\", model = \"cheetah-15k5\" }\n[[tenant]]",
        1,
    );
    pool + "[[volume]]\nname = \"plain\"\npool = \"m\"\nsize = \"16MiB\"\ntenant = \"t\"\n"
}

const PIECE: usize = 64 << 10;

/// Gives every thread something to do. What fails is no matter: the node may be gone already.
fn poke(server: &Server, round: u8) {
    let nbd = |export: &str| {
        let mut c = Client::connect(&server.socket(), export)?;
        c.stream().set_read_timeout(Some(Duration::from_secs(2)))?;
        let (at, none) = (u64::from(round) % 64 * PIECE as u64 + (1 << 20), CommandFlags::EMPTY);
        c.write(at, &[round; PIECE])?.map_err(std::io::Error::other)?;
        c.flush()?.map_err(std::io::Error::other)?;
        c.call(Command::BlockStatus, none, 0, 1 << 20, &[]).map(drop)
    };
    let _ = nbd("vol");
    let _ = nbd("plain");
    if let Ok(mut http) = UnixStream::connect(server.dir.join("control.sock")) {
        use std::io::{Read, Write};
        let _ = http.set_read_timeout(Some(Duration::from_secs(2)));
        let _ = http.write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        let _ = http.read_to_end(&mut Vec::new());
    }
    server.signal(Signal::HUP);
}

/// Only builds with debug assertions have the places where the threads can be ended.
#[test]
#[cfg_attr(not(debug_assertions), ignore = "needs a build with debug assertions")]
fn a_panic_in_any_thread_ends_the_node_and_nothing_durable_is_lost() {
    let dir = tempfile::tempdir().unwrap();
    let text = everything();
    let threads = ["pool", "worker", "block-status", "tape", "watchdog", "nbd", "http", "control"];
    for (n, thread) in threads.into_iter().enumerate() {
        let trigger = dir.path().join(format!("end-{thread}"));
        let asked = format!("{thread}:{}", trigger.display());
        let start = |environment: &[(&str, &str)]| Server::try_start_with(dir.path(), &text, environment);
        let mut server = start(&[("PLIMSOLL_TEST_PANIC", &asked)]).unwrap();
        let mut client = Client::connect(&server.socket(), "vol").unwrap();
        let pattern = [n as u8 + 1; PIECE];
        client.write(0, &pattern).unwrap().unwrap();
        client.flush().unwrap().unwrap();
        assert_eq!(server.has_ended(), None);
        std::fs::write(&trigger, b"").unwrap();
        let end = Instant::now() + Duration::from_secs(30);
        let mut round = 0;
        let status = loop {
            poke(&server, round);
            if let Some(status) = server.has_ended() {
                break status;
            }
            assert!(Instant::now() < end, "{thread}: the node goes on");
            round = round.wrapping_add(1);
        };
        assert!(!status.success(), "{thread}: {status}");
        drop(server);
        let server = start(&[]).unwrap();
        let back = Client::connect(&server.socket(), "vol").unwrap().read(0, PIECE as u32).unwrap().unwrap();
        assert!(back == pattern, "{thread}: what was flushed is gone");
        assert!(server.stop());
    }
}

#[test]
fn sighup_harms_nobody() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), &config("{ null = true, size = \"1GiB\" }", "1MiB"));
    let mut client = Client::connect(&server.socket(), "vol").unwrap();
    for _ in 0..3 {
        server.signal(Signal::HUP);
        client.read(0, 512).unwrap().unwrap();
        Client::connect(&server.socket(), "vol").unwrap();
    }
    drop(client);
    assert!(server.stop());
}

/// Waits until a node that says nothing serves.
fn wait_until_it_serves(child: &mut Child, dir: &Path) {
    let end = Instant::now() + Duration::from_secs(20);
    while Client::connect(&dir.join("nbd.sock"), "vol").is_err() {
        assert_eq!(child.try_wait().unwrap(), None, "it has ended");
        assert!(Instant::now() < end, "it never serves");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn nobody_has_to_read_what_a_node_says() {
    let binary = env!("CARGO_BIN_EXE_plimsoll");
    for closed in [
        "| head -c 1 >/dev/null",
        ">&-",
        ">&- 2>&-",
        "2>&1 | head -c 1 >/dev/null",
        "</dev/null >/dev/full 2>/dev/full",
    ] {
        let dir = tempfile::tempdir().unwrap();
        let text = config("{ null = true, size = \"1GiB\" }", "1MiB");
        std::fs::write(dir.path().join("node.toml"), text).unwrap();
        // The node says its process id itself: behind a pipe, the shell's child is another.
        let script = format!("sh -c 'echo $$ > pid; exec {binary} serve --config node.toml' {closed}");
        let mut shell =
            Process::new("sh").args(["-c", &script]).current_dir(dir.path()).stderr(Stdio::null()).spawn().unwrap();
        wait_until_it_serves(&mut shell, dir.path());
        let mut client = Client::connect(&dir.path().join("nbd.sock"), "vol").unwrap();
        client.read(0, 512).unwrap().unwrap();
        let pid = std::fs::read_to_string(dir.path().join("pid")).unwrap().trim().parse().unwrap();
        let pid = rustix::process::Pid::from_raw(pid).unwrap();
        // What it logs now finds nobody either.
        rustix::process::kill_process(pid, Signal::HUP).unwrap();
        client.read(0, 512).unwrap().unwrap();
        drop(client);
        rustix::process::kill_process(pid, Signal::TERM).unwrap();
        assert!(shell.wait().unwrap().success(), "{closed}");
        assert!(!dir.path().join("nbd.sock").exists(), "{closed}: it ended in order");
    }
}

/// While one pool finishes its requests, the others that are done are no outage.
#[test]
fn an_orderly_end_is_no_outage() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::start(dir.path(), &everything());
    // Scattered over the volume: the modelled disk has seconds to do.
    let mut c = Client::connect(&server.socket(), "plain").unwrap();
    for n in 0..800 {
        c.send(Command::Read, CommandFlags::EMPTY, n * 7919 % 4000 * 4096, 4096, &[]).unwrap();
    }
    c.receive().unwrap().1.unwrap();
    let reader = std::thread::spawn(move || while c.receive().is_ok() {});
    server.signal(Signal::TERM);
    let ask = |path: &str| {
        use std::io::{Read, Write};
        let mut http = UnixStream::connect(dir.path().join("control.sock")).ok()?;
        write!(http, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").ok()?;
        let mut answer = String::new();
        http.read_to_string(&mut answer).ok()?;
        (!answer.is_empty()).then_some(answer)
    };
    let (mut told, mut measured) = (false, false);
    while server.has_ended().is_none() {
        let (Some(health), Some(status), Some(metrics)) = (ask("/healthz"), ask("/v1/status"), ask("/metrics")) else {
            continue; // it has ended meanwhile
        };
        for said in [&health, &status] {
            assert!(!said.contains("has ended"), "{said}");
            told |= said.contains("the node is ending since 2") && said.contains(" requests in flight in pool `m`");
        }
        assert!(!health.contains("the node is ending") || health.starts_with("HTTP/1.1 503"), "{health}");
        assert!(!metrics.contains("state=\"ended\"} 1"), "{metrics}");
        measured |= metrics.contains("plimsoll_pool_state{pool=\"p\",state=\"ending\"} 1");
    }
    reader.join().unwrap();
    assert!(told && measured, "{told} {measured}");
    assert_eq!(server.has_ended().and_then(|status| status.code()), Some(0));
}

/// After a kill the start says which volumes may lack writes: in an event, which is logged, in `status` and in `volume list`. That is no
/// outage. After an orderly end it says nothing.
#[test]
fn a_start_tells_of_an_end_that_was_not_orderly() {
    let dir = tempfile::tempdir().unwrap();
    let text = config(r#"{ file = "p.img", size = "64MiB" }"#, "1MiB")
        + "[[volume]]\nname = \"unused\"\npool = \"p\"\nsize = \"1MiB\"\ntenant = \"t\"\n";
    let server = Server::start(dir.path(), &text);
    Client::connect(&server.socket(), "vol").unwrap().write(0, &[1; 4096]).unwrap().unwrap();
    server.kill();
    let server = Server::start(dir.path(), &text);
    let note = "writes that were acknowledged and not flushed may be lost on volumes vol: \
                see \\\"After a restart that wasn't orderly\\\" in docs/guides/upgrade.md";
    let events = server.control("GET", "/v1/events?kind=node").body;
    assert!(events.contains(note) && events.contains("\"warning\""), "{events}");
    let status = server.cli(&["status"]);
    assert!(status.contains("healthy") && status.contains("  note: an end of the node wasn't orderly"), "{status}");
    assert_eq!(server.control("GET", "/healthz").code, 200);
    let list = server.cli(&["volume", "list"]);
    assert!(list.contains("ready (unclean stop)") && list.matches("unclean").count() == 1, "{list}");
    server.cli(&["volume", "resync", "vol", "--trust"]);
    assert!(!server.cli(&["status"]).contains("note:"));
    assert!(server.stop());
    let server = Server::start(dir.path(), &text);
    assert!(!server.control("GET", "/v1/events?kind=node").body.contains("orderly"));
    assert!(server.stop());
}
