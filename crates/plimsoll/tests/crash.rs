//! kill -9 in the middle of a verified write load, over a device that drops, tears and reorders what isn't flushed.

mod common;
use common::killed::{load, verify};
use common::{Server, config};
use plimsoll_base::Rng;

fn crash_once(seed: u64, volatile: &str, logs: &str) -> Result<(), String> {
    let dir = tempfile::tempdir().unwrap();
    let device = format!(r#"{{ file = "p.img", size = "64MiB", volatile_cache = {{ seed = {seed}{volatile} }} }}"#);
    let config = config(&device, "4MiB").replace("[[tenant]]", &format!("{logs}\n[[tenant]]"));
    let requests = 20 + Rng::new(seed, "when to kill").below(400);
    let known = load(Server::start(dir.path(), &config), seed, requests);
    verify(dir.path(), &config, &known)
}

#[test]
fn what_was_flushed_survives_kill_9_at_random_moments() {
    let kills = std::env::var("PLIMSOLL_SOAK_KILLS").map_or(12, |n| n.parse().expect("a number"));
    for seed in 0..kills {
        crash_once(seed, "", "").unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    }
    println!("{kills} kills, nothing flushed was lost");
}

/// The test's own test: a node that only says it flushes, or ignores FUA, is found out.
#[test]
fn a_node_that_lies_is_found_out() {
    for lie in [", flush_lies = true", ", fua_lies = true"] {
        assert!((0..6).any(|seed| crash_once(seed, lie, "").is_err()), "not found: {lie}");
    }
}

/// A real file: the kernel keeps what a killed process wrote, so all that was acknowledged must be there.
#[test]
fn what_was_acknowledged_survives_kill_9_on_a_plain_file() {
    for seed in 100..104 {
        let dir = tempfile::tempdir().unwrap();
        let config = config(r#"{ file = "p.img", size = "64MiB" }"#, "4MiB");
        let mut known = load(Server::start(dir.path(), &config), seed, 300);
        known.values_mut().for_each(|k| k.durable = k.acknowledged);
        verify(dir.path(), &config, &known).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    }
}

/// The same with scattered logs between: what was logged is found by their headers, what went home stays there.
#[test]
fn what_was_logged_survives_kill_9_at_random_moments() {
    let kills = std::env::var("PLIMSOLL_SOAK_KILLS").map_or(8, |n| n.parse().expect("a number"));
    for seed in 0..kills {
        // Logs so small that they fill, and idle times so short that they are cleaned, within a run.
        let logs =
            "[pool.logs]\ngroup = \"1MiB\"\nlog = \"64KiB\"\nextents = 4096\nlogged_write = \"2KiB\"\nidle = \"2ms\"";
        crash_once(seed, "", logs).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
    }
    println!("{kills} kills, nothing flushed was lost");
}
