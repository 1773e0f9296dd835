//! A process that is killed with the lock in its hand.

use plimsoll_shape::gate::Knobs;
use plimsoll_shape::segment::{Segment, monotonic};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const SEGMENT: &str = "SHAPE_TEST_SEGMENT";

/// Not a test by itself: what the one below kills.
#[test]
fn holder() {
    let Some(path) = std::env::var_os(SEGMENT) else { return };
    let segment = Segment::open(Path::new(&path)).unwrap();
    // As a server's only thread, whose remains stay until somebody waits for it.
    let guard = segment.lock(std::process::id(), monotonic());
    println!("it has the lock");
    std::thread::park_timeout(Duration::from_secs(60));
    drop(guard);
}

#[test]
fn whoever_comes_next_takes_the_lock_over_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("segment");
    let segment = Segment::create(&path, Knobs::default(), monotonic()).unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "holder", "--nocapture"])
        .env(SEGMENT, &path)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let said = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(said.map(Result::unwrap).any(|l| l.contains("it has the lock")));
    // Nobody waits for it yet: its id is still taken.
    child.kill().unwrap();
    let begun = Instant::now();
    assert_eq!(segment.lock(1, monotonic()).gate().head.counters.repairs, 1);
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    child.wait().unwrap();
}
