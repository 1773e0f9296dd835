//! Faults that an operator injects, as clients see them: errors, latency, stalls; and that none outlives its end.

mod common;

use common::client::Client;
use common::{Server, config, ok};
use plimsoll_client::live::{Address, Options, Volume};
use plimsoll_client::{PolicyKind, PolicySettings, Preference};
use plimsoll_nbd::wire::{Command, CommandFlags};
use plimsoll_testkit::until;
use serde_json::{Value, json};
use std::path::Path;
use std::time::{Duration, Instant};

const DEVICE: &str = r#"{ file = "p.img", size = "64MiB" }"#;

fn start(dir: &Path) -> Server {
    Server::start(dir, &config(DEVICE, "16MiB"))
}

fn client(server: &Server) -> Client {
    Client::connect(&server.socket(), "vol").unwrap()
}

/// The only injection, if there is one.
fn injection(server: &Server) -> Option<Value> {
    let all: Value = serde_json::from_str(&server.cli(&["inject", "--list", "--json"])).unwrap();
    let all = all.as_array().unwrap();
    assert!(all.len() < 2, "{all:?}");
    all.first().cloned()
}

fn send_reads(client: &mut Client, n: u64) {
    for i in 0..n {
        client.send(Command::Read, CommandFlags::EMPTY, i * 4096, 4096, &[]).unwrap();
    }
}

#[test]
fn errors_hit_the_share_and_the_operations_that_were_asked_for_and_change_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    let mut c = client(&server);
    c.write(0, &[1; 8192]).unwrap().unwrap();
    server.cli(&["inject", "vol", "--errors", "--only", "writes", "--for", "10m"]);
    assert!(c.write(0, &[2; 65_536]).unwrap().is_err_and(|e| e.contains("the device failed")));
    assert!(c.write(4096, &[2; 512]).unwrap().is_err(), "whose payload came with it, too");
    assert!(c.flush().unwrap().is_err());
    assert_eq!(c.read(0, 8192).unwrap().unwrap(), [1; 8192], "reads are as ever, and nothing was changed");

    // It is seen wherever somebody looks for the reason.
    let health = server.control("GET", "/healthz");
    assert_eq!(health.code, 200, "it is no outage");
    assert!(health.body.contains("100 % of its writes and flushes fail, on purpose"), "{}", health.body);
    assert!(!health.body.contains("requests failed in the last"), "no device failed: {}", health.body);
    assert!(server.cli(&["status"]).contains("`plimsoll inject vol --stop` ends it"));
    let seen = injection(&server).unwrap();
    assert_eq!([&seen["fault"], &seen["only"]], ["errors", "writes"]);
    assert_eq!((seen["seen"].as_u64(), seen["hit"].as_u64()), (Some(3), Some(3)));
    let volume: Value = serde_json::from_str(&server.cli(&["volume", "show", "vol", "--json"])).unwrap();
    assert_eq!(volume["traffic"]["failed"], 3);

    server.cli(&["inject", "vol", "--stop"]);
    c.write(0, &[3; 8192]).unwrap().unwrap();
    c.flush().unwrap().expect("no flush of the device has failed");
    assert_eq!((injection(&server), server.control("GET", "/healthz").code), (None, 200));

    // A share, drawn the same each time.
    let mut failed = |seed: &str| {
        server.cli(&["inject", "vol", "--errors", "--share", "10%", "--only", "reads", "--seed", seed]);
        (0..400).map(|i| c.read(i * 4096, 512).unwrap().is_err()).collect::<Vec<bool>>()
    };
    let first = failed("1");
    let hit = first.iter().filter(|f| **f).count();
    assert!((20..=60).contains(&hit), "{hit} of 400 were hit");
    assert!(first == failed("1") && first != failed("2"));
    drop(c);
    assert!(server.stop());
}

#[test]
fn latency_is_added_to_answers_of_what_was_done() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    let mut c = client(&server);
    server.cli(&["inject", "vol", "--latency", "120ms", "--only", "writes", "--for", "1h"]);
    c.send(Command::Write, CommandFlags::EMPTY, 0, 4096, &[5; 4096]).unwrap();
    let mut other = client(&server);
    // The write was carried out before it was answered.
    until("the write", || other.read(0, 4096).unwrap().unwrap() == [5; 4096]);
    let began = Instant::now();
    c.receive().unwrap().1.unwrap();
    c.write(4096, &[6; 4096]).unwrap().unwrap();
    assert!(began.elapsed() >= Duration::from_millis(120), "{:?}", began.elapsed());
    let seen = injection(&server).unwrap();
    assert_eq!((seen["latency_us"].as_u64(), seen["hit"].as_u64()), (Some(120_000), Some(2)));
    // It ends by itself.
    server.cli(&["inject", "vol", "--latency", "1m", "--for", "100ms"]);
    c.write(8192, &[7; 4096]).unwrap().unwrap();
    until("its end", || injection(&server).is_none());
    assert!(server.stop());
}

/// Refusals hit reads that may be refused and no others; who has a second replica reads there.
#[test]
fn refusals_hit_reads_with_a_deadline_only() {
    let dirs = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let nodes = [start(dirs[0].path()), start(dirs[1].path())];
    let server = &nodes[0];
    server.cli(&["inject", "vol", "--busy", "40ms", "--for", "10m"]);
    let mut c = client(server);
    c.write(0, &[1; 4096]).unwrap().unwrap();
    assert_eq!(c.read(0, 4096).unwrap().unwrap(), [1; 4096], "it has no deadline");
    let mut waits = Client::connect(&server.socket(), "vol?deadline=10s").unwrap();
    assert_eq!(waits.read(0, 4096).unwrap().unwrap(), [1; 4096], "it waits");
    assert_eq!(injection(server).unwrap()["seen"], 0);
    let mut refused = Client::connect(&server.socket(), "vol?deadline=10s&busy=error").unwrap();
    assert!(refused.read(0, 4096).unwrap().is_err());
    refused.write(4096, &[2; 4096]).unwrap().unwrap();
    let read = ["read", &server.uri("vol"), "--deadline", "10s", "--count", "20", "--rate", "1000", "--json"];
    let answers: Vec<Value> = serde_json::from_str(&ok(env!("CARGO_BIN_EXE_plimsoll"), &read)).unwrap();
    assert!(answers.len() == 20 && answers.iter().all(|a| a["predicted_wait_us"] == 40_000), "{answers:?}");
    let seen = injection(server).unwrap();
    assert_eq!(
        [&seen["fault"], &seen["wait_us"], &seen["seen"], &seen["hit"]],
        [&json!("busy"), &json!(40_000), &json!(21), &json!(21)]
    );
    let health = server.control("GET", "/healthz").body;
    assert!(health.contains("100 % of its reads with a deadline are refused, on purpose"), "{health}");
    let volume: Value = serde_json::from_str(&server.cli(&["volume", "show", "vol", "--json"])).unwrap();
    assert_eq!((&volume["traffic"]["busy_refused"], &volume["traffic"]["failed"]), (&json!(21), &json!(0)), "{volume}");

    let addresses: Vec<Address> = nodes.iter().map(|n| n.uri("vol").parse().unwrap()).collect();
    let settings = PolicySettings { order: Preference::Placement, ..PolicySettings::default() };
    let options = Options { policy: PolicyKind::MittWait, settings, ..Options::default() };
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
        let volume = Volume::open(&addresses, &options).await.unwrap();
        for n in 0..10u64 {
            let within = Some(Duration::from_secs(10));
            assert_eq!(volume.read(65_536 + n * 4096..65_536 + (n + 1) * 4096, within).await.unwrap(), [0; 4096]);
        }
    });
    assert_eq!(injection(server).unwrap()["hit"], 31, "each was refused once, and served by the other");
}

/// A stall holds answers until it ends, whatever ends it: a command, its client, its volume, the node.
#[test]
fn a_stall_ends_with_whatever_it_stalls() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    let held = |n: u64| {
        until("held answers", || injection(&server).is_some_and(|i| i["held"] == n));
    };
    let stall = || server.cli(&["inject", "vol", "--stall", "--for", "1h"]);
    stall();
    let mut c = client(&server);
    send_reads(&mut c, 20);
    held(20);
    // One that replaces it lets go what was held for the first.
    stall();
    (0..20).for_each(|_| assert_eq!(c.receive().unwrap().1.unwrap().len(), 4096));
    send_reads(&mut c, 7);
    held(7);
    server.cli(&["inject", "vol", "--stop"]);
    (0..7).for_each(|_| assert!(c.receive().unwrap().1.is_ok()));

    // A client that leaves doesn't stay for its answers.
    stall();
    send_reads(&mut c, 9);
    held(9);
    drop(c);
    held(0);
    let connections = || {
        let shown: Value = serde_json::from_str(&server.cli(&["volume", "show", "vol", "--json"])).unwrap();
        shown["connections"].as_u64().unwrap()
    };
    until("the connection's end", || connections() == 0);

    // A volume that is deleted.
    let mut c = client(&server);
    send_reads(&mut c, 5);
    held(5);
    server.cli(&["volume", "delete", "vol", "--yes", "--disconnect", "--declared"]);
    assert_eq!(injection(&server), None);
    server.cli(&["volume", "create", "vol", "--pool", "p", "--size", "16MiB", "--tenant", "t"]);

    // The node: it ends in order, and knows nothing of it afterwards.
    stall();
    let mut c = client(&server);
    send_reads(&mut c, 5);
    held(5);
    assert!(server.stop());
    let server = start(dir.path());
    assert_eq!(injection(&server), None);
    assert!(Client::once_served(&server.socket(), "vol").read(0, 512).unwrap().is_ok());
    assert!(server.stop());
}

/// The purpose of injections: clients that should read elsewhere do.
#[test]
fn clients_fail_over_from_an_injected_fault() {
    let dirs = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let nodes = [start(dirs[0].path()), start(dirs[1].path())];
    nodes[0].cli(&["inject", "vol", "--errors", "--only", "reads"]);
    let addresses: Vec<Address> = nodes.iter().map(|n| n.uri("vol").parse().unwrap()).collect();
    let settings = PolicySettings { order: Preference::Placement, ..PolicySettings::default() };
    let options = Options { policy: PolicyKind::MittWait, settings, ..Options::default() };
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
        let volume = Volume::open(&addresses, &options).await.unwrap();
        for n in 0..10u64 {
            assert_eq!(volume.read(n * 4096..(n + 1) * 4096, None).await.unwrap(), [0; 4096]);
        }
        assert!(volume.counts().tries >= 20, "{:?}", volume.counts());
    });
    let hit = injection(&nodes[0]).unwrap()["hit"].as_u64().unwrap();
    assert!(hit >= 10, "{hit}");
    // An unmodified client retries nothing: it says what it was told.
    let qemu = common::run("qemu-io", &["-r", "-f", "raw", "-c", "read 0 4k", &nodes[0].uri("vol")]);
    assert!(String::from_utf8_lossy(&[qemu.stdout, qemu.stderr].concat()).contains("Input/output error"));
    ok("qemu-io", &["-r", "-f", "raw", "-c", "read 0 4k", &nodes[1].uri("vol")]);
}

#[test]
fn what_cannot_be_meant_is_refused_with_a_reason() {
    let dir = tempfile::tempdir().unwrap();
    let server = start(dir.path());
    for (arguments, says) in [
        (&["inject", "vol", "--latency", "2m"][..], "not between 1 us and"),
        (&["inject", "vol", "--busy", "2m"], "not between 1 us and"),
        (&["inject", "vol", "--busy", "1ms", "--only", "writes"], "writes aren't refused"),
        (&["inject", "vol", "--errors", "--for", "2h"], "and an hour"),
        (&["inject", "vol", "--errors", "--for", "0s"], "and an hour"),
        (&["inject", "vol", "--errors", "--share", "0%"], "0.1% to 100%"),
        (&["inject", "vol", "--errors", "--stall"], "cannot be used with"),
        (&["inject", "vol"], "required"),
        (&["inject", "--errors"], "required"),
        (&["inject", "nothing", "--errors"], "there is no volume `nothing`"),
        (&["inject", "vol", "--stop"], "nothing is injected into it"),
    ] {
        let said = server.cli_fails(arguments);
        assert!(said.contains(says), "{arguments:?}: {said}");
    }
}
