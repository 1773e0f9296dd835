//! A process that is killed, or stopped, with the lock in its hand.

use plimsoll_shape::gate::Knobs;
use plimsoll_shape::segment::{Segment, monotonic};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const SEGMENT: &str = "SHAPE_TEST_SEGMENT";
const HOW: &str = "SHAPE_TEST_HOW";
const SECOND: Duration = Duration::from_secs(1);

/// Not a test by itself: what those below kill and stop.
#[test]
fn holder() {
    let Some(path) = std::env::var_os(SEGMENT) else { return };
    let segment = Segment::open(Path::new(&path)).unwrap();
    // As a server's only thread, whose remains stay until somebody waits for it.
    let guard = segment.lock(tid(), monotonic());
    println!("it has the lock");
    if std::env::var(HOW).is_ok_and(|how| how == "busy") {
        let end = Instant::now() + 4 * SECOND;
        while Instant::now() < end {
            std::hint::spin_loop();
        }
    } else {
        let _ = std::io::stdin().read(&mut [0]); // a byte, or its parent's end
    }
    drop(guard);
    println!("it gave it back");
    let _ = std::io::stdin().read(&mut [0]); // as above
}

/// This thread's id.
fn tid() -> u32 {
    rustix::thread::gettid().as_raw_nonzero().get() as u32
}

struct Holder {
    child: Child,
    said: BufReader<std::process::ChildStdout>,
}

impl Holder {
    fn of(path: &Path, how: &str) -> Holder {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "holder", "--nocapture"])
            .env(SEGMENT, path)
            .env(HOW, how)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let said = BufReader::new(child.stdout.take().unwrap());
        let mut holder = Holder { child, said };
        holder.await_line("it has the lock");
        holder
    }

    fn await_line(&mut self, wanted: &str) {
        let mut line = String::new();
        while !line.contains(wanted) {
            line.clear();
            assert_ne!(self.said.read_line(&mut line).unwrap(), 0, "it ended");
        }
    }

    fn signal(&self, signal: rustix::process::Signal) {
        rustix::process::kill_process(rustix::process::Pid::from_child(&self.child), signal).unwrap();
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.child.kill(); // it may have ended
        let _ = self.child.wait();
    }
}

#[test]
fn whoever_comes_next_takes_the_lock_over_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("segment");
    let segment = Segment::create(&path, Knobs::default(), monotonic()).unwrap();
    let mut holder = Holder::of(&path, "");
    // Nobody waits for it yet: its id is still taken.
    holder.child.kill().unwrap();
    let begun = Instant::now();
    assert_eq!(segment.lock(1, monotonic()).gate().head.counters.repairs, 1);
    assert!(begun.elapsed() < 10 * SECOND, "{:?}", begun.elapsed());
}

#[test]
fn a_stopped_owner_is_given_up_on_and_goes_on_undisturbed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("segment");
    let segment = Segment::create(&path, Knobs::default(), monotonic()).unwrap();
    let mut holder = Holder::of(&path, "");
    holder.signal(rustix::process::Signal::STOP);
    let begun = Instant::now();
    assert!(segment.lock_in_time(1, monotonic()).is_none());
    let waited = begun.elapsed();
    assert!(waited >= SECOND && waited < 20 * SECOND, "{waited:?}");
    // Nobody else waits for the same hold.
    let begun = Instant::now();
    (0..100).for_each(|_| assert!(segment.lock_in_time(2, monotonic()).is_none()));
    assert!(begun.elapsed() < 20 * SECOND, "a hundred waits of a second: {:?}", begun.elapsed());
    holder.signal(rustix::process::Signal::CONT);
    holder.child.stdin.as_ref().unwrap().write_all(b"!").unwrap();
    holder.await_line("it gave it back");
    let repairs = segment.lock_in_time(2, monotonic()).expect("it is free").gate().head.counters.repairs;
    assert_eq!(repairs, 0, "nothing was half done");
}

/// Nobody else looks after the gate: the process that gave up on the owner is the one that must notice its end.
#[test]
fn a_stopped_owner_that_is_killed_after_it_was_given_up_on_is_followed() {
    let dir = tempfile::tempdir().unwrap();
    for without_waiting in [false, true] {
        let path = dir.path().join("segment");
        let segment = Segment::create(&path, Knobs::default(), monotonic()).unwrap();
        let mut holder = Holder::of(&path, "");
        holder.signal(rustix::process::Signal::STOP);
        assert!(segment.lock_in_time(1, monotonic()).is_none());
        assert!(segment.lock_now(1, monotonic()).is_none(), "it may go on");
        holder.child.kill().unwrap();
        holder.child.wait().unwrap();
        let guard =
            if without_waiting { segment.lock_now(1, monotonic()) } else { segment.lock_in_time(1, monotonic()) };
        assert_eq!(guard.expect("its owner is dead").gate().head.counters.repairs, 1);
        let again = segment.lock_now(1, monotonic()).expect("it is free").gate().head.counters.repairs;
        assert_eq!(again, 1);
    }
}

/// An owner that has to share its core isn't taken for a stopped one.
#[test]
fn an_owner_that_runs_is_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("segment");
    let segment = Segment::create(&path, Knobs::default(), monotonic()).unwrap();
    let _holder = Holder::of(&path, "busy");
    let begun = Instant::now();
    assert!(segment.lock_in_time(1, monotonic()).is_some(), "given up after {:?}", begun.elapsed());
}
