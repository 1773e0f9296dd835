//! Pools over shingled drives: a file that keeps the zones' rules, and models of drives in real time. Foreign clients verify their bytes, nodes
//! are killed under load, and mistakes are planted that must be found.

mod common;
use common::client::Client;
use common::killed::{load_then, verify};
use common::{Server, config, ok};
use plimsoll_base::Rng;
use serde_json::Value;
use std::time::{Duration, Instant};

/// A pool of `device` with logs and bands that are cleaned within a test.
fn with_bands(device: &str, logs: &str, bands: &str, volume: &str) -> String {
    let sections = format!("[pool.logs]\nextents = 4096\n{logs}\n[pool.bands]\n{bands}\n[[tenant]]");
    config(device, volume).replace("[[tenant]]", &sections)
}

fn bands_of(server: &Server) -> Value {
    serde_json::from_str(&server.cli(&["bands", "status", "p", "--json"])).expect("JSON")
}

fn count(status: &Value, key: &str) -> u64 {
    status[key].as_u64().unwrap_or_else(|| panic!("{key}: {status}"))
}

/// Writes with checksums, and reads all back; again after the logs were emptied into bands, and after a restart.
fn verified(device: &str, bands: &str, size: &str) -> Value {
    let dir = tempfile::tempdir().unwrap();
    let config = with_bands(device, "log = \"256KiB\"\nlogged_write = \"32KiB\"", bands, "16MiB");
    let server = Server::start(dir.path(), &config);
    let state = dir.path().to_str().unwrap();
    let fio = |server: &Server, more: &[&str]| {
        let uri = format!("--uri={}", server.uri("vol"));
        let mut args = vec!["--name=v", "--ioengine=nbd", &uri, "--rw=randwrite", "--bsrange=4k-64k", "--iodepth=8"];
        args.extend([size, "--verify=crc32c", "--verify_fatal=1", "--randseed=7", "--aux-path", state]);
        let said = ok("fio", &[&args, more].concat());
        assert!(said.contains("err= 0"), "{said}");
    };
    fio(&server, &["--fsync=16"]);
    server.cli(&["logs", "checkpoint", "p"]);
    fio(&server, &["--verify_only"]);
    let status = bands_of(&server);
    assert!(count(&status, "copied") > 0, "{status}");
    assert_eq!(count(&status, "copy_errors"), 0, "{status}");
    let shown = server.cli(&["bands", "status"]);
    assert!(shown.contains("bands of ") && shown.contains("spare zones"), "{shown}");
    let metrics = server.control("GET", "/metrics").body;
    assert!(metrics.contains("plimsoll_bands_copied_total{pool=\"p\"}"), "{metrics}");
    assert!(server.stop());
    let server = Server::start(dir.path(), &config);
    fio(&server, &["--verify_only"]);
    assert!(server.stop());
    status
}

#[test]
fn fio_verifies_what_it_wrote_to_a_zoned_file() {
    let device = r#"{ file = "p.img", size = "128MiB", zones = { size = "1MiB", conventional_every = 8 } }"#;
    let status = verified(device, "idle = \"1ms\"\ncopy_patience = \"5ms\"\npatience = \"1ms\"", "--size=16M");
    assert_eq!(count(&status, "zones_refused"), 0, "{status}");
    assert!(count(&status, "zones_reset") > 0, "{status}");
}

/// A drive that cleans by itself, and one whose zones the host manages: in real time.
#[test]
fn fio_verifies_what_it_wrote_to_modelled_shingled_drives() {
    let quick = "idle = \"1ms\"\ncopy_patience = \"5ms\"\npatience = \"1ms\"";
    let drive_managed = r#"{ file = "p.img", size = "128MiB", model = "seagate-archive-8tb" }"#;
    verified(drive_managed, &format!("zone = \"1MiB\"\nfree_every = 8\n{quick}"), "--size=1M");
    let host_managed = r#"{ file = "p.img", size = "128MiB", model = "spread:8:zoned:1M:hdd-160g-7200" }"#;
    verified(host_managed, quick, "--size=1M");
    let both = r#"{ file = "p.img", size = "128MiB", model = "hdd-160g-7200", zones = { size = "1MiB", conventional_every = 8 } }"#;
    let status = verified(both, quick, "--size=1M");
    assert_eq!(count(&status, "zones_refused"), 0, "{status}");
}

/// One kill, over a drive with a volatile cache. Bands so small that they are copied again and again within a run.
fn crash_once(seed: u64, zones: bool, lies: &str, copied: &mut u64) -> Result<(), String> {
    let dir = tempfile::tempdir().unwrap();
    let zoned = if zones { "zones = { size = \"128KiB\", conventional_every = 8 }, " } else { "" };
    let device = format!(r#"{{ file = "p.img", size = "64MiB", {zoned}volatile_cache = {{ seed = {seed}{lies} }} }}"#);
    let logs = "log = \"64KiB\"\nlogged_write = \"2KiB\"\nidle = \"2ms\"";
    let bands = "zone = \"128KiB\"\nfree_every = 8\nbuffer = \"256KiB\"\nidle = \"1ms\"\ncopy_patience = \"1ms\"\npatience = \"1ms\"";
    let config = with_bands(&device, logs, bands, "4MiB");
    let requests = 20 + Rng::new(seed, "when to kill").below(400);
    let known = load_then(Server::start(dir.path(), &config), seed, requests, |server| {
        let status = bands_of(server);
        *copied += count(&status, "copied");
        if zones {
            assert_eq!(count(&status, "zones_refused"), 0, "{status}");
        }
    });
    verify(dir.path(), &config, &known)
}

#[test]
fn what_was_flushed_to_bands_survives_kill_9_at_random_moments() {
    let kills = std::env::var("PLIMSOLL_SOAK_KILLS").map_or(8, |n| n.parse().expect("a number"));
    let mut copied = 0;
    for seed in 0..kills {
        crash_once(seed, seed % 4 != 3, "", &mut copied).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    }
    println!("{kills} kills and {copied} copies of bands, nothing flushed was lost");
    assert!(copied > 2 * kills, "hardly any band was copied: {copied}");
}

/// The test's own test: a drive that only says it flushes is found out.
#[test]
fn a_drive_that_lies_is_found_out() {
    assert!((0..8).any(|seed| crash_once(seed, true, ", flush_lies = true", &mut 0).is_err()), "not found");
}

/// A node that writes zones without resetting them: the file refuses that, the client's flush fails, and the status names the write.
#[test]
fn a_write_beside_the_pointer_fails() {
    if !cfg!(debug_assertions) {
        println!("ran without a planted mistake: this build has no debug assertions");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let device = r#"{ file = "p.img", size = "64MiB", zones = { size = "256KiB", conventional_every = 8 } }"#;
    let config = with_bands(device, "log = \"64KiB\"\nlogged_write = \"4KiB\"", "patience = \"1ms\"", "4MiB");
    let mistake = [("PLIMSOLL_TEST_MISTAKE", "ZonesUnreset")];
    let server = Server::try_start_with(dir.path(), &config, &mistake).unwrap_or_else(|e| panic!("{e}"));
    let mut client = Client::connect(&server.socket(), "vol").unwrap();
    let end = Instant::now() + Duration::from_secs(60);
    // The first copies go to zones that are empty still.
    while client.write(0, &[7; 65_536]).unwrap().and_then(|_| client.flush().unwrap()).is_ok() {
        assert!(Instant::now() < end, "no write was refused: {}", bands_of(&server));
    }
    let status = bands_of(&server);
    assert!(count(&status, "zones_refused") > 0 && count(&status, "copy_errors") > 0, "{status}");
    let why = status["zones_refusal"].as_str().unwrap();
    assert!(why.contains("write pointer") || why.contains("the zone is full"), "{why}");
}

#[test]
fn a_device_with_other_bands_is_refused_and_named() {
    let dir = tempfile::tempdir().unwrap();
    let device = r#"{ file = "p.img", size = "64MiB" }"#;
    let (logs, bands) = ("log = \"64KiB\"\nlogged_write = \"4KiB\"", "zone = \"256KiB\"\nfree_every = 8");
    let made = with_bands(device, logs, bands, "4MiB");
    assert!(Server::start(dir.path(), &made).stop());
    let file = dir.path().join("check.toml");
    let others = [
        ("256KiB", "512KiB"),
        ("free_every = 8", "free_every = 9"),
        ("256KiB\"", "256KiB\"\nspares = 3"),
        ("\"64KiB\"", "\"128KiB\""),
    ];
    for (was, is) in others {
        let Err(said) = Server::try_start(dir.path(), &made.replace(was, is)) else { panic!("{is}: it started") };
        assert!(said.contains("the device was made with other bands or logs, or without bands"), "{is}: {said}");
    }
    let without = made.replace(&format!("[pool.bands]\n{bands}"), "");
    let Err(said) = Server::try_start(dir.path(), &without) else { panic!("it started without bands") };
    assert!(said.contains("and [pool.bands] if the device was made with it"), "{said}");
    std::fs::write(&file, &made).unwrap();
    ok(env!("CARGO_BIN_EXE_plimsoll"), &["check", file.to_str().unwrap()]);
    assert!(Server::start(dir.path(), &made).stop());
}

/// Written without the rules of zones, data lie beyond the pointers of the table that is still there: they would be read as zeroes later.
#[test]
fn zones_that_are_taken_out_are_refused_and_named() {
    // The table lies behind the bands, or, where no room is left there, in the place of the last one: then there is a band less.
    for (zone, why) in [
        ("3MiB", "the device was made with `zones`"),
        ("256KiB", "and `zones` and `model` of the device, as they were"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let zones = format!(", zones = {{ size = \"{zone}\", conventional_every = 8 }}");
        let device = format!(r#"{{ file = "p.img", size = "256MiB"{zones} }}"#);
        let bands = format!("zone = \"{zone}\"\nfree_every = 8");
        let made = with_bands(&device, "log = \"64KiB\"\nlogged_write = \"4KiB\"", &bands, "4MiB");
        assert!(Server::start(dir.path(), &made).stop());
        let Err(said) = Server::try_start(dir.path(), &made.replace(&zones, "")) else {
            panic!("it started without zones of {zone}")
        };
        assert!(said.contains(why), "{said}");
        assert!(Server::start(dir.path(), &made).stop());
    }
}
